//! Door 1: the Model Context Protocol. The only code that knows MCP or JSON-RPC.

pub mod http;
pub mod prompts;
pub mod render;
pub mod server;
pub mod stdio;
pub mod tasks;
pub mod tools;
