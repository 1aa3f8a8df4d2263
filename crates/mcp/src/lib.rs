//! Door 1: the Model Context Protocol. The only code that knows MCP or JSON-RPC.

// Optimised builds lay out the futures of the tools, which are deeper than the compiler takes for reasonable.
#![recursion_limit = "256"]

pub mod bridge;
pub mod bridges;
pub mod http;
mod http_sessions;
pub mod prompts;
pub mod render;
pub mod server;
pub mod stdio;
pub mod tasks;
pub mod tools;
