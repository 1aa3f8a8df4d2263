//! Door 2: HTTP. `router` puts the routes together, `door` says who is let in and how much may come in, `pages` which names are ours and
//! what browsers may do, `listen` takes TCP connections, with TLS if there is a certificate (`tls`). `api` holds the functions behind
//! `/api`, `failures` those of them about tests, `files` those behind `/files`; `problem` is how they refuse, `openapi` tells what there is. `token` keeps the tokens, `visitors` knows them in a running daemon.
//!
//! The same `/api` is served on the daemon's Unix socket for the command line, where the kernel says who asks, and on
//! loopback TCP for everybody with the token.

// Optimised builds lay out the futures of the tools, which are deeper than the compiler takes for reasonable.
#![recursion_limit = "256"]

pub mod api;
mod bodies;
pub mod door;
mod failures;
mod files;
mod form;
pub mod guests;
pub mod listen;
pub mod load;
mod openapi;
mod pages;
mod patient;
mod problem;
pub mod room;
pub mod router;
pub mod settings;
pub mod tls;
pub mod token;
mod unique;
pub mod visitors;
