//! What a run reports, one JSON object per line, and what is answered. docs/wire.md, "Test runs", is the contract; the probe's
//! `reporting.py` writes it, imports make the same records. Unknown fields are ignored, so that an older daemon takes a newer plugin.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{environment::Packages, view::Closing};

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ev", rename_all = "snake_case")]
pub enum Record {
    Run(Box<Began>),
    Code(Code),
    Test(Box<Tested>),
    End(Ended),
}

impl Record {
    /// The id of the run it is of.
    pub fn run(&self) -> &str {
        match self {
            Self::Run(began) => &began.run,
            Self::Code(code) => &code.run,
            Self::Test(test) => &test.run,
            Self::End(ended) => &ended.run,
        }
    }
}

/// Where a run's records come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    #[default]
    Plugin,
    Junit,
    Reportlog,
    /// `record_failure`, `POST /api/failures`, `pylair failures register`.
    Hand,
}

/// The beginning of a run. `run` is the reporter's own id, so that records that are sent twice are known again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Began {
    pub run: String,
    pub at: Timestamp,
    #[serde(default)]
    pub source: Source,
    pub project: Project,
    #[serde(default)]
    pub argv: Vec<String>,
    #[serde(default)]
    pub cwd: Option<String>,
    #[serde(default)]
    pub host: Option<String>,
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub pid: Option<i32>,
    #[serde(default)]
    pub python: Option<String>,
    #[serde(default)]
    pub implementation: Option<String>,
    #[serde(default)]
    pub platform: Option<String>,
    #[serde(default)]
    pub pytest: Option<String>,
    #[serde(default)]
    pub packages: Packages,
    #[serde(default)]
    pub ci: bool,
    /// How many xdist workers, when there are any.
    #[serde(default)]
    pub workers: Option<u32>,
}

impl Began {
    /// A run of which nothing more is known yet.
    pub fn new(run: String, at: Timestamp, source: Source, project: Project) -> Self {
        Self {
            run,
            at,
            source,
            project,
            argv: Vec::new(),
            cwd: None,
            host: None,
            user: None,
            pid: None,
            python: None,
            implementation: None,
            platform: None,
            pytest: None,
            packages: Packages::new(),
            ci: false,
            workers: None,
        }
    }
}

/// What is tested. `remote` (the repository's address without credentials) names it across machines, else the root does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Project {
    pub root: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
}

/// The code that is tested. Two runs with one hash ran the same code, whatever their commits are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Code {
    pub run: String,
    pub hash: String,
    pub how: CodeHash,
    #[serde(default)]
    pub commit: Option<String>,
    #[serde(default)]
    pub branch: Option<String>,
    #[serde(default)]
    pub dirty: bool,
    /// Files that differ from the commit, up to a bound.
    #[serde(default)]
    pub changed: Vec<String>,
    /// The hash of files that are not code, such as notes: two runs in which only these differ show nothing about each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<String>,
    /// When the commit was made: what passes on an older one is no fix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub committed: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CodeHash {
    /// Files that git tracks, as they are in the work tree, and code that it does not.
    Git,
    /// The Python files of the project.
    Files,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Passed,
    /// The test itself failed.
    Failed,
    /// Setup, teardown or collection failed.
    Error,
    Skipped,
    Xfailed,
    /// Passed although it was marked as failing; strict ones are `Failed`.
    Xpassed,
    /// Failed, and was run again.
    Rerun,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Collect,
    Setup,
    Call,
    Teardown,
}

/// One test, or one try of it: a test that fails and is run again is reported once for each. A test whose call and teardown
/// both fail is reported twice, as pytest counts it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tested {
    pub run: String,
    pub nodeid: String,
    pub outcome: Outcome,
    /// Where it failed, or was skipped; `call` for what passed.
    pub phase: Phase,
    /// Counts from 1; reruns count on.
    #[serde(default = "one")]
    pub attempt: u32,
    /// Of a subtest, what it calls itself.
    #[serde(default)]
    pub subtest: Option<String>,
    #[serde(default)]
    pub at: Option<Timestamp>,
    #[serde(default)]
    pub file: Option<String>,
    /// Where the test is defined, from 1.
    #[serde(default)]
    pub line: Option<u32>,
    /// Name and `repr` of each parameter.
    #[serde(default)]
    pub params: BTreeMap<String, String>,
    #[serde(default)]
    pub markers: Vec<String>,
    #[serde(default)]
    pub seconds: Seconds,
    /// Why it was skipped or expected to fail.
    #[serde(default)]
    pub reason: Option<String>,
    #[serde(default)]
    pub worker: Option<String>,
    #[serde(default)]
    pub failure: Option<Box<Evidence>>,
}

fn one() -> u32 {
    1
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Seconds {
    #[serde(default)]
    pub setup: f64,
    #[serde(default)]
    pub call: f64,
    #[serde(default)]
    pub teardown: f64,
}

/// What is known of one failing. Everything is cut by the reporter; `cut` names what was.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// The reporter's own id of this occurrence; a frozen copy is found by it.
    #[serde(default)]
    pub occurrence: String,
    pub exception: Exception,
    /// What the exception was raised from or during, nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<Linked>,
    /// Innermost first.
    #[serde(default)]
    pub frames: Vec<Frame>,
    /// The traceback as pytest prints it.
    #[serde(default)]
    pub text: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stdout: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stderr: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub log: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<Frozen>,
    /// The working directory when it failed, which a test may have changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The modules it is about, by name, as they were imported: those of its frames, on its lines and in its message.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub modules: BTreeMap<String, Module>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut: Vec<String>,
}

/// Source that the compiler refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SyntaxPlace {
    /// Relative to the project's root if it is below.
    pub file: String,
    pub line: u32,
    #[serde(default)]
    pub text: String,
}

/// A module as the test's process had imported it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Module {
    /// Its `__file__`, relative to the project's root if it is below. A built-in module and a package without a file have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// What a name was looked up in, and was not found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lookup {
    pub name: String,
    pub owner: Owner,
    /// The class of an instance, else the class, module or function itself.
    pub of: String,
    /// Names that were there, up to a bound.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// How many more were there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    #[default]
    Instance,
    Class,
    Module,
    /// Names of a frame: its own and those of its module.
    Frame,
    /// Modules of a package, which may not be imported.
    Package,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Exception {
    /// The qualified name, without the module.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    #[serde(default)]
    pub message: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Of a syntax error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syntax: Option<SyntaxPlace>,
    /// Of an exception that says that a name is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lookup: Option<Lookup>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Linked {
    pub relation: Relation,
    pub exception: Exception,
    #[serde(default)]
    pub frames: Vec<Frame>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// `raise … from`.
    Cause,
    /// Raised while the other was handled.
    Context,
    /// One of a group's.
    Group,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Frame {
    /// Relative to the project's root if it is below.
    pub file: String,
    pub line: u32,
    pub function: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Whether it is the project's own code: not the standard library, an installed package or pytest.
    #[serde(default)]
    pub in_app: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Lines>,
    /// The first and the last line of the failing statement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statement: Option<(u32, u32)>,
    /// The expression in it that failed, where the interpreter says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expression: Option<String>,
    /// Which of the names in `source` the module or the builtins have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub globals: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locals: Vec<Local>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_locals: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Lines of source around the one that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lines {
    /// The number of the first one.
    pub first: u32,
    pub lines: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Local {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub value: String,
}

/// Whether a living copy was left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Frozen {
    Pid(i32),
    WhyNot(String),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub run: String,
    pub at: Timestamp,
    pub exit_code: i32,
    pub seconds: f64,
    /// Tests that were collected and not run, such as after `-x`.
    #[serde(default)]
    pub not_run: u32,
    #[serde(default)]
    pub note: Option<String>,
}

/// The answer to a batch: every record of it is on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Taken {
    /// How many records, those that had been taken before included.
    pub taken: usize,
    /// By occurrence.
    pub failures: BTreeMap<String, StoredFailure>,
    /// How many frozen copies may be made, 0 when they are switched off.
    pub freeze: u32,
    /// Once the run has ended: what there is to say of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closing: Option<Closing>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Known")]
pub struct StoredFailure {
    pub id: String,
    pub group: String,
    pub status: Status,
    pub occurrences: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    New,
    /// An analysis was recorded.
    InProgress,
    /// The test passed on changed code, or a person said so.
    Resolved,
    /// It passes and fails on the same code.
    Flaky,
    /// Failed again after it was resolved.
    Reopened,
}
