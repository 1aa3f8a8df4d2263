//! Test runs and what failed in them: what pytest runs report, kept, grouped, explained and worked through to a verified fix.
//!
//! `record` is what comes in, from the plugin (docs/wire.md, "Test runs"), from imports (`import`) and by hand. What is made of it is plain
//! code over plain types: `hypotheses` and `next_step` explain one failure, `analysis` many, `rules` is how far an investigation is,
//! `prompt` tells all of it to a model, `guide` tells how it is used. Called by the doors.

pub mod analysis;
pub mod guide;
pub mod hypotheses;
pub mod import;
pub mod next_step;
pub mod prompt;
pub mod record;
pub mod rules;
