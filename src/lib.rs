//! pylair: live Python for AI agents and the people beside them. The map, in the order data flows:
//!
//! - [`cli`], [`config`], [`commands`]: the command line, settings, one function per subcommand
//! - [`bridge`]: how an MCP client's stdio reaches the daemon, and what survives its death
//! - [`mcp`], [`web`]: the two doors
//! - [`daemon`]: what the doors share, and its life
//! - [`caller`], [`rights`]: who asks, and what that needs
//! - [`audit`], [`mask`], [`hash`]: what is written down of it, and what never is
//! - [`target`]: targets as callers write them
//! - [`session`]: interpreters we own
//! - [`app`]: processes we visit
//! - [`attach`]: starting a probe in a process that was never prepared
//! - [`files`]: what is in a session's workspace
//! - [`output`], [`journal`]: what cells printed, what happened
//! - [`history`]: sessions told from the journal, and handed over as notebook, script or page
//! - [`packages`]: installing packages, and which one a module comes in
//! - [`python`]: finding interpreters
//! - [`probe`]: the Rust end of the wire: templates, links, frames
//! - [`stacks`]: what the threads of a process are doing, from its memory
//! - [`process_access`]: why a process of others cannot be looked into
//! - [`inherited`]: what the daemon was started with and gives back
//! - [`open_files`]: how many descriptors there are, and what the last are kept for
//! - [`plain`]: words of others in lines of ours
//! - [`regular`]: reading files that others made
//! - [`sqlite`]: the one writer of a database file
//! - [`order`]: who sends calls, and in which order they came
//! - [`turns`], [`budget`]: one at a time for each key, and sharing what is bounded
//! - [`clock`], [`out_of_memory`]: how old things are, and why processes are gone
//! - [`failures`]: test runs and what failed in them
//! - [`event_loop`]: nobody keeps the one thread for long
//! - [`descriptor`]: descriptors the runtime waits on
//! - [`sandbox`]: what a session may do, and whether that holds
//! - [`keeper`]: the process above each session, and confinement

// Optimised builds lay out the futures of the tools, which are deeper than the compiler takes for reasonable.
#![recursion_limit = "256"]

pub mod app;
pub mod arguments;
pub mod attach;
pub mod audit;
pub mod bridge;
pub mod budget;
pub mod caller;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod daemon;
pub mod descriptor;
pub mod event_loop;
pub mod failures;
pub mod fence;
pub mod files;
pub mod hash;
pub mod history;
pub mod inherited;
pub mod journal;
pub mod keeper;
pub mod machine;
pub mod mask;
pub mod mcp;
pub mod open_files;
pub mod order;
pub mod out_of_memory;
pub mod output;
pub mod packages;
pub mod plain;
pub mod probe;
pub mod process_access;
pub mod python;
pub mod regular;
pub mod rights;
pub mod sandbox;
pub mod session;
pub mod sqlite;
pub mod stacks;
pub mod target;
pub mod turns;
pub mod web;
