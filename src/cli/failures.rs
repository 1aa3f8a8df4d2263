//! Arguments of `pylair test` and `pylair failures`.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Subcommand};

use super::JsonArgs;
use pylair_failures::prompt;

#[derive(Debug, Args)]
#[command(
    override_usage = "pylair test [--python PYTHON] [PYTEST ARGS]...",
    after_help = "\
Everything but --python goes to pytest; put it first. Nothing has to be installed in the project beside pytest.

    pylair test
    pylair test -x tests/test_cart.py -k discount
    pylair test --python 3.12 -n 4
    pylair test -- --help                 the help of pytest

Output and exit code are pytest's own, with a closing line for each failure that has its id:

    pylair failures show ID               what was seen, what is thought of it, what to do next
    pylair exec -t failure:ID 'locals()'  code in the failing frame, as long as its copy lives

The Python is that of the virtual environment, else of `.venv` here, else the configured one, else the first on PATH.
Exit codes: those of pytest; 2 also if pylair could not start it, 127 if there is no pytest."
)]
pub struct TestArgs {
    /// Interpreter to test with: a path, an environment, a project or a version
    #[arg(long)]
    pub python: Option<String>,
    /// For pytest
    #[arg(value_name = "PYTEST ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct FailuresArgs {
    #[command(subcommand)]
    pub command: Option<FailuresCommand>,
    #[command(flatten)]
    pub list: ListArgs,
}

#[derive(Debug, Subcommand)]
pub enum FailuresCommand {
    /// List what failed, last seen first
    #[command(after_help = "\
Examples:
  pylair failures list --status new          what nobody has looked at
  pylair failures list --test test_cart      of tests whose name has this in it
  pylair failures list --group g8d0k2        what is together
  pylair failures list --json --limit 1000   for a program; `next` of a page is --after of the next")]
    List(ListArgs),
    /// Show a failure: evidence, hypotheses, next step, trail
    Show(ShowArgs),
    /// Record what you found out under one of the nine rules, or say what a failure is
    #[command(
        override_usage = "pylair failures debug ID [ANALYSIS] [--rule RULE] [--status STATUS [--force]]",
        after_help = "\
Examples:
  pylair failures debug k3n7q2 --rule 3 'total() takes the discount for an amount'
  git diff | pylair failures debug k3n7q2 --rule 6 -
  pylair failures debug k3n7q2 --status resolved
  pylair failures debug k3n7q2 --status resolved --force

That a failure is resolved has to be shown by a passing run of its test. With --force you say so
yourself, and it is kept as not verified. `pylair failures docs principles` lists the rules."
    )]
    Debug(DebugArgs),
    /// Put failures together and say what to look at first
    #[command(after_help = "\
Examples:
  pylair failures analyze
  pylair failures analyze --group-by error_type --time-range week
  pylair failures analyze --include-resolved --json")]
    Analyze(AnalyzeArgs),
    /// Write a prompt for a model, of a failure or of a group
    #[command(after_help = "\
Examples:
  pylair failures prompt k3n7q2
  pylair failures prompt k3n7q2 --style root_cause --max-tokens 2000 | pbcopy
  pylair failures prompt error_type:ValueError --style concise")]
    Prompt(PromptArgs),
    /// Record a failure by hand; the traceback comes on standard input
    #[command(after_help = "\
Example:
  pylair failures register --test-name test_cart.py::test_sum --file-path cart.py --line-number 7 \\
      --error-message 'ValueError: no price' < traceback.txt")]
    Register(RegisterArgs),
    #[command(
        about = "Take in results that others wrote: JUnit XML, pytest-reportlog",
        after_help = "\
Examples:
  pytest --junitxml=results.xml; pylair failures import results.xml
  pylair failures import --project shop ci/*.xml report.jsonl

The same file may be imported again: known results are not taken twice."
    )]
    Import(ImportArgs),
    /// Make a small failing project and walk through it
    Demo(DemoArgs),
    /// How failures are worked with, by topic
    Docs {
        /// general, integration, principles, api, client, webui, analytics, prompts or all
        topic: Option<String>,
    },
}

#[derive(Debug, Args)]
pub struct ListArgs {
    #[arg(long, help = "new, in_progress, resolved, flaky or reopened")]
    pub status: Option<String>,
    /// The id of a group
    #[arg(long)]
    pub group: Option<String>,
    /// Name, directory or repository of a project, or all; the one you are in by default
    #[arg(long)]
    pub project: Option<String>,
    /// A part of the test's name
    #[arg(long)]
    pub test: Option<String>,
    /// How many, at most 1000
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
    /// Go on after a page, with its `next`
    #[arg(long)]
    pub after: Option<String>,
    #[command(flatten)]
    pub json: JsonArgs,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The failure
    pub id: String,
    /// Show every frame, also of libraries, and all output
    #[arg(short, long)]
    pub all: bool,
    #[command(flatten)]
    pub json: JsonArgs,
}

#[derive(Debug, Args)]
pub struct DebugArgs {
    /// The failure
    #[arg(required_unless_present = "failure_id", value_name = "ID")]
    pub id: Option<String>,
    /// The failure, as an option; the word that follows is the analysis
    #[arg(long, value_name = "ID")]
    pub failure_id: Option<String>,
    /// What you found out; - for standard input
    #[arg(value_name = "ANALYSIS", allow_hyphen_values = true)]
    pub text: Option<String>,
    /// What you found out, as an option
    #[arg(long, value_name = "TEXT", conflicts_with = "text")]
    pub analysis: Option<String>,
    /// One of the nine rules, by number or name
    #[arg(long, alias = "principle")]
    pub rule: Option<String>,
    #[arg(long, help = "What the failure is: in_progress, resolved, flaky or reopened")]
    pub status: Option<String>,
    /// With --status resolved: whatever the runs show
    #[arg(long, requires = "status")]
    pub force: bool,
    #[command(flatten)]
    pub json: JsonArgs,
}

#[derive(Debug, Args)]
pub struct AnalyzeArgs {
    #[arg(long, help = "fingerprint, error_type, file_path or pattern")]
    pub group_by: Option<String>,
    /// all, today, week or month
    #[arg(long)]
    pub time_range: Option<String>,
    /// Count what is resolved too
    #[arg(long)]
    pub include_resolved: bool,
    /// Name, directory or repository of a project, or all; the one you are in by default
    #[arg(long)]
    pub project: Option<String>,
    #[command(flatten)]
    pub json: JsonArgs,
}

#[derive(Debug, Args)]
pub struct PromptArgs {
    /// A failure or a group
    #[arg(required_unless_present_any = ["failure_id", "group_id"])]
    pub id: Option<String>,
    /// A failure
    #[arg(long, value_name = "ID", conflicts_with_all = ["id", "group_id"])]
    pub failure_id: Option<String>,
    /// A group
    #[arg(long, value_name = "ID", conflicts_with = "id")]
    pub group_id: Option<String>,
    #[arg(long, help = "Of a group such as error_type:ValueError: a project, or all; the one you are in by default")]
    pub project: Option<String>,
    #[arg(long, alias = "prompt-style", help = "detailed, concise, step_by_step or root_cause")]
    pub style: Option<String>,
    #[arg(long, value_name = "N", help = "How long it may be: 400 to 100000, 4000 by default", value_parser = tokens())]
    pub max_tokens: Option<u32>,
    #[command(flatten)]
    pub json: JsonArgs,
}

fn tokens() -> clap::builder::RangedI64ValueParser<u32> {
    let bound = |tokens: usize| i64::try_from(tokens).expect("it is small");
    clap::value_parser!(u32).range(bound(prompt::LEAST_TOKENS)..=bound(prompt::MOST_TOKENS))
}

#[derive(Debug, Args)]
pub struct RegisterArgs {
    /// The test
    #[arg(long, alias = "test", value_name = "NAME")]
    pub test_name: String,
    /// Where it failed
    #[arg(long, alias = "file", value_name = "FILE")]
    pub file_path: Option<String>,
    /// In which line
    #[arg(long, alias = "line", value_name = "N")]
    pub line_number: Option<u32>,
    /// Type and message, as Python prints them
    #[arg(long, alias = "message", value_name = "TEXT", default_value = "")]
    pub error_message: String,
    /// A file with the traceback, instead of standard input
    #[arg(long, value_name = "FILE")]
    pub traceback: Option<PathBuf>,
    /// A variable of the failing frame; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub local: Vec<String>,
    /// The project it is of; the one you are in by default
    #[arg(long)]
    pub project: Option<String>,
    #[command(flatten)]
    pub json: JsonArgs,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    #[arg(required = true, value_name = "FILE", help = "JUnit XML or pytest-reportlog")]
    pub files: Vec<PathBuf>,
    /// What the project is called; the name of the directory by default
    #[arg(long)]
    pub project: Option<String>,
    /// The directory that was tested; this one by default
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    #[command(flatten)]
    pub json: JsonArgs,
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Leave the project there
    #[arg(long)]
    pub keep: bool,
    /// Interpreter to test with; it needs pytest
    #[arg(long)]
    pub python: Option<String>,
}
