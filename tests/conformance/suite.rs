//! Runs the official suite, `@modelcontextprotocol/conformance`, and reads what it found.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use tokio::process::Command;

/// The suite's own dependencies do not load in an older one.
const OLDEST_NODE: u32 = 22;

/// A run takes about ten seconds; this is for one that hangs.
const RUN_TIMEOUT: Duration = Duration::from_mins(10);

/// A scenario and every reason it does not pass; none means that it passes.
pub struct Scenario {
    pub name: String,
    pub problems: Vec<String>,
}

pub struct Suite {
    node: PathBuf,
    program: PathBuf,
    results: PathBuf,
}

impl Suite {
    /// Finds the suite in a directory where npm installed it, and a node that can run it.
    pub async fn find(directory: &Path, results: &Path) -> Result<Self> {
        let modules = directory.join("node_modules");
        let program = modules.join("@modelcontextprotocol/conformance/dist/index.js");
        ensure!(program.is_file(), "the conformance suite is not at `{}`", program.display());
        Ok(Self { node: find_node(&modules).await?, program, results: results.to_owned() })
    }

    /// Runs every scenario one revision requires, and those the suite runs for information with it.
    pub async fn run(&self, revision: &str, server: SocketAddr) -> Result<Vec<Scenario>> {
        let output = Command::new(&self.node)
            .arg(&self.program)
            .args(["server", "--url", &format!("http://{server}/mcp")])
            .args(["--requirements", revision])
            .arg("--output-dir")
            .arg(&self.results)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(RUN_TIMEOUT, output)
            .await
            .with_context(|| format!("the suite did not finish within {RUN_TIMEOUT:?}"))?
            .context("the suite did not start")?;
        let output = String::from_utf8_lossy(&output.stdout);
        read_scenarios(&output).with_context(|| format!("the suite said:\n{output}"))
    }
}

/// Prefers the node installed beside the suite, whose version is chosen with it.
async fn find_node(modules: &Path) -> Result<PathBuf> {
    let mut candidates = Vec::new();
    for entry in modules.read_dir()? {
        let package = entry?.path();
        let name = package.file_name().and_then(OsStr::to_str);
        if name.is_some_and(|name| name == "node" || name.starts_with("node-")) {
            candidates.push(package.join("bin/node"));
        }
    }
    candidates.push("node".into());
    for node in candidates {
        let output = Command::new(&node).arg("--version").output().await;
        let version = output.map(|output| output.stdout).unwrap_or_default();
        if major_version(&version).is_some_and(|major| major >= OLDEST_NODE) {
            return Ok(node);
        }
    }
    bail!("no node {OLDEST_NODE} or newer, neither in `{}` nor on the PATH", modules.display())
}

/// The 22 of `v22.23.3`.
fn major_version(version: &[u8]) -> Option<u32> {
    let version = str::from_utf8(version).ok()?;
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// What the suite writes for each scenario, as far as it matters here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Check {
    id: String,
    status: Status,
    error_message: Option<String>,
}

#[derive(Deserialize, PartialEq, Debug)]
#[serde(rename_all = "UPPERCASE")]
enum Status {
    Success,
    Failure,
    Warning,
    Skipped,
    Info,
}

/// Reads which scenarios ran from the output, and how they went from the files it names.
fn read_scenarios(output: &str) -> Result<Vec<Scenario>> {
    let mut scenarios: Vec<Scenario> = Vec::new();
    let mut finished = false;
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("=== Running scenario: ").and_then(|rest| rest.strip_suffix(" ===")) {
            scenarios.push(Scenario { name: name.to_owned(), problems: vec!["the suite could not run it".to_owned()] });
        } else if let Some(directory) = line.strip_prefix("Results saved to ") {
            let scenario = scenarios.last_mut().context("results of no scenario")?;
            let file = Path::new(directory).join("checks.json");
            let checks = std::fs::read(&file).with_context(|| format!("no results in `{}`", file.display()))?;
            scenario.problems = problems(&serde_json::from_slice::<Vec<Check>>(&checks)?);
        }
        finished |= line == "=== SUMMARY ===";
    }
    ensure!(finished, "the suite broke off");
    Ok(scenarios)
}

/// Stricter than the suite, for which a warning is no failure, and a scenario that checked nothing passes.
fn problems(checks: &[Check]) -> Vec<String> {
    let mut problems: Vec<String> = checks
        .iter()
        .filter(|check| matches!(check.status, Status::Failure | Status::Warning))
        .map(|check| {
            let message = check.error_message.as_deref().unwrap_or("no message");
            format!("{:?} in {}: {message}", check.status, check.id)
        })
        .collect();
    let succeeded = |check: &Check| check.status == Status::Success;
    if problems.is_empty() && !checks.iter().any(succeeded) {
        problems.push("it checked nothing".to_owned());
    }
    problems
}
