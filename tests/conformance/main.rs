//! The official MCP conformance suite against pylair's HTTP service.
//!
//! The suite wants tools, resources and prompts with names of its own, so it does not test pylair's handler but
//! a fixture (`fixture`, with `tools`, `inputs` and `tasks`) behind the same service (`server`). It runs once for
//! each revision of the specification in `REVISIONS` (`suite`), and every scenario must pass, except for those in
//! `known`.
//!
//! Needs node and the suite, in the `node_modules` of the directory that `PYLAIR_CONFORMANCE_DIR` names. Without
//! the variable nothing runs. Arguments that name other tests than `conformance` skip it too, so that
//! `cargo test NAME` stays quick.

#![expect(clippy::print_stdout, reason = "a test without a harness reports by itself")]
#![expect(deprecated, reason = "SEP-2577 deprecates sampling, roots and logging, and the suite tests them")]

mod fixture;
mod inputs;
mod known;
mod server;
mod suite;
mod tasks;
mod tools;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use known::KNOWN;
use suite::{Scenario, Suite};

const DIRECTORY: &str = "PYLAIR_CONFORMANCE_DIR";
const REVISIONS: [&str; 2] = ["2025-11-25", "2026-07-28"];

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let mut filters = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).peekable();
    if filters.peek().is_some() && !filters.any(|filter| "conformance".contains(&filter)) {
        return Ok(ExitCode::SUCCESS);
    }
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        println!("conformance: skipped, {DIRECTORY} is not set");
        return Ok(ExitCode::SUCCESS);
    };
    // The suite never overwrites results, so those of the last run go first.
    let results = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance");
    if results.exists() {
        std::fs::remove_dir_all(&results)?;
    }
    let suite = Suite::find(Path::new(&directory), &results).await?;

    let mut as_expected = true;
    for revision in REVISIONS {
        let server = server::start().await?;
        let scenarios = suite.run(revision, server).await?;
        as_expected &= report(revision, &scenarios);
    }
    if as_expected {
        return Ok(ExitCode::SUCCESS);
    }
    println!("conformance: every check is in {}", results.display());
    Ok(ExitCode::FAILURE)
}

/// Prints what does not pass, and says whether that is what `known` says.
fn report(revision: &str, scenarios: &[Scenario]) -> bool {
    let passed = scenarios.iter().filter(|scenario| scenario.problems.is_empty()).count();
    println!("conformance {revision}: {passed} of {} scenarios pass", scenarios.len());

    let mut as_expected = !scenarios.is_empty();
    for Scenario { name, problems } in scenarios {
        let known = KNOWN.iter().find(|known| known.revision == revision && known.scenario == name);
        match (known, problems.as_slice()) {
            (None, []) => {}
            (Some(known), [_, ..]) => println!("  {name}: known, {}", known.reason),
            (Some(_), []) => {
                as_expected = false;
                println!("  {name}: PASSES, remove it from known.rs");
            }
            (None, problems) => {
                as_expected = false;
                println!("  {name}: DOES NOT PASS");
                for problem in problems {
                    println!("    {problem}");
                }
            }
        }
    }
    for known in KNOWN.iter().filter(|known| known.revision == revision) {
        if !scenarios.iter().any(|scenario| scenario.name == known.scenario) {
            as_expected = false;
            println!("  {}: NOT IN THE SUITE, remove it from known.rs", known.scenario);
        }
    }
    as_expected
}
