//! Test runs and what failed in them: what pytest runs report, kept, grouped, explained and worked through to a verified fix.
//!
//! `record` is what comes in, from the plugin (docs/wire.md, "Test runs"), from imports and by hand. Called by the doors.

pub mod record;
