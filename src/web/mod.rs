//! Door 2: HTTP. `router` puts the routes together, `door` says who is let in and how much may come in, `pages` which names are ours and
//! what browsers may do, `listen` takes TCP connections, with TLS if there is a certificate (`tls`). `api` holds the functions behind
//! `/api`, `files` those behind `/files`. `token` keeps the tokens, `visitors` knows them in a running daemon.
//!
//! The same `/api` is served on the daemon's Unix socket for the command line, where the kernel says who asks, and on
//! loopback TCP for everybody with the token.

pub mod api;
pub mod door;
mod files;
mod form;
pub mod listen;
mod mcp_sessions;
mod pages;
pub mod router;
pub mod tls;
pub mod token;
mod unique;
pub mod visitors;
