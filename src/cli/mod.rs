//! The command line: clap types and nothing else.

pub mod failures;

use clap::{Args, Parser, Subcommand};

use failures::{FailuresArgs, TestArgs};

/// Live Python for AI agents and the people beside them.
#[derive(Debug, Parser)]
#[command(name = "pylair", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start the server in the foreground with the HTTP door open
    Serve(ServeArgs),
    /// Serve MCP on stdin and stdout; this is what an MCP client starts
    Mcp(McpArgs),
    /// Run Python in a session or an app: an argument, a file, or standard input
    Exec(ExecArgs),
    /// Stop what runs in a session, an app or a frozen failure
    Interrupt(InterruptArgs),
    /// Join a session or an app at a prompt, beside the agent that uses it
    Repl(ReplArgs),
    /// List the open sessions, or hand one over as a file
    #[command(args_conflicts_with_subcommands = true)]
    Sessions(SessionsArgs),
    /// List the apps: running Python processes that can be looked into
    Apps(JsonArgs),
    /// Start a probe in a running Python that was not prepared for it
    Attach(AttachArgs),
    /// Show what every thread of a running Python process is doing
    Stacks(StacksArgs),
    /// Show the whole output of a cell
    Output(OutputArgs),
    /// Run a command whose Pythons can be looked into, without touching their code
    Wrap(WrapArgs),
    /// Run pytest and record what fails: everything after it goes to pytest
    Test(TestArgs),
    /// List, show, debug and analyze what failed in test runs
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "\
Examples:
  pylair failures                        what failed, last seen first
  pylair failures show ID                evidence, hypotheses, next step, trail
  pylair exec -t failure:ID 'locals()'   code in the failing frame, as long as its copy lives
  pylair failures debug ID --rule 3 '…'  record what you found out
  pylair failures analyze                what they have in common, and where to begin
  pylair failures demo                   all of it on a small project"
    )]
    Failures(FailuresArgs),
    /// Stop the daemon and all its sessions
    Stop,
    /// Show what is configured, from where, and what works here
    Doctor(DoctorArgs),
    /// Show the token of the HTTP door, making one if there is none, or make, list and revoke others
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "\
Examples:
  pylair token                                          print your own, for clients of yours
  pylair token rotate                                   when somebody may have seen it
  pylair token add ci --scope run --expires 30d         sandboxed sessions for a job
  pylair token add anna --scope run --scope tests       somebody with sessions of her own
  pylair token add board --scope read --owner anna      something that looks at hers
  pylair token revoke ci                                at once, also where it is in use"
    )]
    Token(TokenArgs),
    /// Show who executed what where, and what was denied
    #[command(after_help = "\
Examples:
  pylair audit --since 1h              the last hour
  pylair audit --denied --follow       what is refused, as it happens
  pylair audit --owner anna --json     what one owner did, for a program
  pylair audit --verify                whether a line was changed or taken out

The record is state/audit.jsonl; `pylair doctor` shows where that is.")]
    Audit(AuditArgs),
}

#[derive(Debug, Args)]
pub struct TokenArgs {
    #[command(subcommand)]
    pub command: Option<TokenCommand>,
}

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Replace your own token; the old one opens nothing from then on
    Rotate,
    /// Make a token for somebody or something else, and print it once
    #[command(after_help = "\
read   look at the owner's sessions
run    run code in sandboxed sessions; includes read
tests  run tests in a sandbox and work on failures; nothing else
admin  everything, with the rights of the user who runs the server

Sessions belong to the owner and are invisible to all others. `--owner me` means your own.")]
    Add(TokenAddArgs),
    /// List all tokens with their owners, scopes and last use
    List(JsonArgs),
    /// Take a token back, at once
    Revoke {
        /// Its name
        name: String,
    },
}

#[derive(Debug, Args)]
pub struct TokenAddArgs {
    /// What to call it
    pub name: String,
    /// What it may do; may be repeated
    #[arg(long, required = true, value_parser = ["read", "run", "tests", "admin"])]
    pub scope: Vec<String>,
    /// Whose sessions it uses; those of its own name by default
    #[arg(long)]
    pub owner: Option<String>,
    /// How long it opens the door, such as 12h or 30d; for ever by default
    #[arg(long, value_name = "TIME")]
    pub expires: Option<String>,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct AuditArgs {
    /// Go on showing lines as they are written
    #[arg(short, long, conflicts_with = "verify")]
    pub follow: bool,
    /// Print the lines as they are, JSON
    #[arg(long)]
    pub json: bool,
    /// Only what happened in this time, such as 1h or 7d
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only what was denied
    #[arg(long)]
    pub denied: bool,
    /// Only what this owner did
    #[arg(long)]
    pub owner: Option<String>,
    /// Check that no line was changed or taken out
    #[arg(long)]
    pub verify: bool,
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Address to listen on; other than loopback only with TLS, or behind a proxy that has it
    #[arg(long)]
    pub host: Option<String>,
    /// Port to listen on; 0 for any free one [default: 7420]
    #[arg(long)]
    pub port: Option<u16>,
    /// A proxy in front has TLS; its X-Forwarded-For is written down
    #[arg(long)]
    pub behind_proxy: bool,
    /// A name that requests may be addressed to, such as py.example.org; may be repeated
    #[arg(long, value_name = "NAME")]
    pub allowed_host: Vec<String>,
    /// Certificate chain for TLS of our own, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<String>,
    /// Its key, in PEM, of mode 0600
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<String>,
    #[command(flatten)]
    pub tools: ToolArgs,
}

#[derive(Debug, Args)]
pub struct McpArgs {
    /// Serve in this process, without a daemon: for containers and CI
    #[arg(long)]
    pub standalone: bool,
    #[command(flatten)]
    pub tools: ToolArgs,
}

#[derive(Debug, Args)]
pub struct ToolArgs {
    /// Toolsets to serve, such as run,look, or all
    #[arg(long, value_name = "SETS")]
    pub tools: Option<String>,
    /// Serve only tools that change nothing
    #[arg(long)]
    pub readonly: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without CODE the program is read from standard input, so that a heredoc works:

    pylair exec <<'PY'
    import math
    math.tau
    PY

The session is the one of the agent this shell belongs to, else `main`; -t or PYLAIR_SESSION choose another.
Exit codes: 0 ok, 1 the code raised, timed out or died, 2 pylair could not run it, 130 interrupted.")]
pub struct ExecArgs {
    /// Session or app to run in: a name, a handle, app:ID, app:ID@PID, pid:PID or failure:ID
    #[arg(short, long, env = "PYLAIR_SESSION")]
    pub target: Option<String>,
    /// Stop the cell after this many seconds; 0 for never
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<f64>,
    /// Print the structured outcome as JSON instead of streaming output
    #[arg(long)]
    pub json: bool,
    /// Code, a file, or - for standard input
    #[arg(value_name = "CODE|FILE|-", allow_hyphen_values = true)]
    pub code: Option<String>,
    /// What the file finds in sys.argv[1:]; after `--` also what looks like an option of this command
    #[arg(value_name = "ARGS", allow_hyphen_values = true, trailing_var_arg = true)]
    pub args: Vec<String>,
}

#[derive(Debug, Args)]
pub struct InterruptArgs {
    /// A name, a handle, app:ID, app:ID@PID, pid:PID or failure:ID [default: the session `pylair exec` would use]
    pub target: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Type Python; a blank line ends a block. Tab completes from the live session, Up and Ctrl-R recall what you typed before.
Ctrl-C stops the running cell, and pressed again takes the next step until it stops. Ctrl-D leaves; the session goes on.
What others run meanwhile is shown as it happens. `:help` lists a few commands.

The session is the one of the agent this shell belongs to, else `main`; -t or PYLAIR_SESSION choose another.
If standard input is not a terminal, all of it is run as one cell, as `pylair exec -` does.")]
pub struct ReplArgs {
    /// Session or app to join: a name, a handle, app:ID, app:ID@PID or pid:PID
    #[arg(short, long, env = "PYLAIR_SESSION")]
    pub target: Option<String>,
}

#[derive(Debug, Args)]
pub struct SessionsArgs {
    #[command(subcommand)]
    pub command: Option<SessionsCommand>,
    #[command(flatten)]
    pub list: JsonArgs,
}

#[derive(Debug, Subcommand)]
pub enum SessionsCommand {
    /// Write a session's cells as a notebook, a script that runs, or a page
    #[command(after_help = "\
Works for closed sessions too. Cells that were undone are left out; a cell that raised raises again where it is run.")]
    Export(ExportArgs),
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The session, by name or handle [default: the one `pylair exec` would use]
    pub session: Option<String>,
    /// Kind of file; the ending of FILE by default, else ipynb
    #[arg(short, long, value_parser = ["ipynb", "py", "html"])]
    pub format: Option<String>,
    /// Where to write it; standard output by default
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<std::path::PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "pylair wrap [OPTIONS] -- <CMD>...",
    after_help = "\
Every Python that CMD starts becomes an app, which tools find by its id: `app:ID`, or `app:ID@PID`
where there are several.

    pylair wrap -- python app.py
    pylair wrap --app-id web -- gunicorn -w 2 app:app

An app is named after its script; a Python that it starts has an id of its own below it. `__main__`
is registered as `main`. Output, signals, exit code and an existing `sitecustomize` stay as they are.
A Python that ignores PYTHONPATH (-I, -E, -S) runs as it would without pylair; `pylair attach PID`
reaches it.

Exit codes: those of CMD; 2 pylair could not prepare it, 126 CMD cannot be run, 127 there is no CMD."
)]
pub struct WrapArgs {
    /// Name of the app [default: the name of its script]
    #[arg(long, value_name = "ID", value_parser = app_id)]
    pub app_id: Option<String>,
    /// Also listen on this port of 127.0.0.1, with a token; 0 for any free one
    #[arg(long, value_name = "N")]
    pub port: Option<u16>,
    /// Let nobody change anything in the app
    #[arg(long)]
    pub readonly: bool,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<std::ffi::OsString>,
}

/// The same as `checked_id` of the probe's registry, told before anything is started.
fn app_id(text: &str) -> Result<String, String> {
    let text = text.trim();
    let is_good = |c: char| !c.is_control() && c != '@';
    if text.is_empty() || text.chars().count() > 64 || !text.chars().all(is_good) {
        return Err("an app id has 1 to 64 printable characters and no @".to_owned());
    }
    Ok(text.to_owned())
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Do not try to pass the limits of sandboxes, which takes seconds
    #[arg(long)]
    pub quick: bool,
}

#[derive(Debug, Args)]
pub struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The program goes on as before: a thread of it is held for about a millisecond, and others may wait some milliseconds while the probe
loads. What is attached to is an app, and stays one until --detach or its end. What is attached read-only here is detached here only.")]
pub struct AttachArgs {
    /// The process
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,
    /// Only look: the probe runs no code and changes nothing
    #[arg(long)]
    pub readonly: bool,
    /// What to call the app; after its program by default
    #[arg(long, value_name = "ID", value_parser = app_id)]
    pub app_id: Option<String>,
    /// Take the probe out again
    #[arg(long, conflicts_with_all = ["readonly", "app_id"])]
    pub detach: bool,
    #[command(flatten)]
    pub json: JsonArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The process needs no preparation, is not stopped and runs nothing: its memory is read. CPython 3.8 to 3.15.
asyncio tasks, with who waits for whom, are shown from 3.14 on. Other users' processes need root.")]
pub struct StacksArgs {
    /// The process to look into
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Leave out the variables of the frames
    #[arg(long)]
    pub no_locals: bool,
}

#[derive(Debug, Args)]
pub struct OutputArgs {
    /// The job whose output to show
    pub job: String,
    /// Start at this byte
    #[arg(long, default_value_t = 0)]
    pub offset: u64,
    /// Show at most this many bytes; all of it by default
    #[arg(long)]
    pub limit: Option<u64>,
}
