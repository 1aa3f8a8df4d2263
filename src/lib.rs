//! pylair: live Python for AI agents and the people beside them. The layers are crates of their own (`crates/README.md`); this one puts
//! them together:
//!
//! - [`cli`], [`commands`]: the command line, one function per subcommand
//! - [`config`]: where settings come from
//! - [`lifecycle`]: starting, finding and ending the daemon; the one place where doors and core meet

// Optimised builds lay out the futures of the tools, which are deeper than the compiler takes for reasonable.
#![recursion_limit = "256"]

pub mod cli;
pub mod commands;
pub mod config;
pub mod lifecycle;
