//! Words of others in texts of ours. Nothing here knows a target, a caller or a door.
//!
//! - [`plain`]: on one line, with what cannot be seen written out
//! - [`fence`]: as a part of a text for a model
//! - [`mask`]: without secrets, for what is kept
//! - [`escape`]: in addresses and pages
//! - [`hash`]: as SHA-256
//! - [`arguments`]: what is wrong with arguments, told by their schema

pub mod arguments;
pub mod escape;
pub mod fence;
pub mod hash;
pub mod mask;
pub mod plain;
