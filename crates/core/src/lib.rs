//! What the doors share. Knows neither MCP nor HTTP, and reads no environment, working directory or home.
//!
//! - [`daemon`]: the one process per user that owns all targets
//! - [`caller`], [`rights`], [`order`], [`visit`]: who asks, what that needs, in which order calls came, who was let in with a token
//! - [`settings`]: settings as plain values
//! - [`target`]: targets as callers write them
//! - [`session`]: interpreters we own
//! - [`app`]: processes we visit
//! - [`packages`]: installing packages
//! - [`history`]: sessions told from the journal, and handed over as notebook, script or page
//! - [`audit`]: who executed what where, in a chained record

// Optimised builds lay out the futures of the tools, which are deeper than the compiler takes for reasonable.
#![recursion_limit = "256"]

pub mod app;
pub mod audit;
pub mod caller;
pub mod daemon;
pub mod history;
pub mod order;
pub mod packages;
pub mod rights;
pub mod session;
pub mod settings;
pub mod target;
pub mod visit;
