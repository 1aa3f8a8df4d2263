//! Workers from the daemon's side: templates that they are forked from, the nursery that makes keepers for confined ones, and links to
//! them.
//!
//! Called by the nouns. Knows processes, descriptors and frames; knows nothing of what a cell means.

mod burst;
pub mod control;
pub mod link;
pub mod nursery;
pub mod template;
