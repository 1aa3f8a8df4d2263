//! Test runs and what failed in them: what pytest runs report, kept, grouped, explained and worked through to a verified fix.
//!
//! - `record` is what comes in, from the plugin (docs/wire.md, "Test runs"), from imports and by hand; `spool` takes in what was reported while
//!   no daemon was there
//! - `pattern`, `fingerprint`, `grouping` tell what is the same; `status` what became of it
//! - `ingest` writes it, many reports in one transaction; `store` keeps it in SQLite or PostgreSQL and answers with what is in `view`
//!
//! Called by the doors.

pub mod fingerprint;
pub mod grouping;
pub mod pattern;
pub mod record;
pub mod status;
pub mod view;
