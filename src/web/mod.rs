//! Door 2: HTTP. `router` puts the routes together, `listen` takes TCP connections, `api` holds the functions behind `/api`, `files`
//! those behind `/files`, `token` the secret.
//!
//! The same `/api` is served on the daemon's Unix socket for the command line, where the kernel says who asks, and on
//! loopback TCP for everybody with the token.

pub mod api;
mod files;
mod form;
pub mod listen;
pub mod router;
pub mod token;
