//! One function per subcommand, and what they share: the environment, exit codes, how errors are shown.

mod apps;
mod attach;
mod audit;
pub mod client;
pub mod daemon;
mod doctor;
mod exceed;
mod exec;
mod failures;
mod interrupt;
mod mcp;
mod output;
mod repl;
mod serve;
mod sessions;
pub mod stacks;
mod test;
mod token;
mod words;
mod wrap;

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use crate::{
    cli::{Cli, Command},
    config::{self, Flags},
};
use pylair_core::settings::{Config, Introduction, Places, PlacesError};
use pylair_os::event_loop;
use pylair_text::plain::{shown_lines, with_causes};
use pylair_web::settings::HttpSettings;

/// How a command ended. The numbers are part of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Ok = 0,
    /// The user's code raised, ran out of time or died.
    Raised = 1,
    /// pylair could not do it.
    Failed = 2,
    /// The command that was to be run is no program; as shells have it.
    NotStarted = 126,
    NotFound = 127,
    Interrupted = 130,
}

/// What went wrong and the way out.
#[derive(Debug)]
pub struct Failure {
    pub message: String,
    pub hint: String,
}

impl Failure {
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: words::with_commands(&hint.into()) }
    }
}

impl From<crate::lifecycle::Error> for Failure {
    fn from(error: crate::lifecycle::Error) -> Self {
        Self::new(with_causes(&error), error.hint())
    }
}

impl From<PlacesError> for Failure {
    fn from(error: PlacesError) -> Self {
        Self::new(with_causes(&error), error.hint())
    }
}

impl From<crate::config::Error> for Failure {
    fn from(error: crate::config::Error) -> Self {
        Self::new(with_causes(&error), error.hint())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(error.to_string(), "`pylair doctor` may say more")
    }
}

/// What a command finds around itself.
pub struct Surroundings {
    pub env: BTreeMap<String, String>,
    pub cwd: Option<PathBuf>,
    pub places: Places,
    pub program: PathBuf,
}

impl Surroundings {
    pub fn find() -> Result<Self, Failure> {
        let env: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        // The daemon works in another directory: a relative home would be another place there.
        let mut env = env;
        if let (Some(home), Ok(cwd)) = (env.get("PYLAIR_HOME").filter(|home| !home.is_empty()), std::env::current_dir())
        {
            let absolute = cwd.join(home).display().to_string();
            env.insert("PYLAIR_HOME".to_owned(), absolute);
        }
        // For tests: which polls keep the thread that serves all others too long.
        if let Some(file) = env.get("PYLAIR_SLOW_POLLS") {
            event_loop::watch(Some(file.into()));
        }
        let places = Places::resolve(&env, rustix::process::getuid().as_raw());
        let program = std::env::current_exe()
            .map_err(|error| Failure::new(format!("cannot find our own program: {error}"), "is /proc mounted?"))?;
        Ok(Self { env, cwd: std::env::current_dir().ok(), places, program })
    }

    pub fn config(&self, flags: &Flags) -> Result<Config, Failure> {
        Ok(self.configs(flags)?.0)
    }

    /// The same, with the settings of the HTTP door.
    pub fn configs(&self, flags: &Flags) -> Result<(Config, HttpSettings), Failure> {
        Ok(config::resolve(flags, &self.env, self.cwd.as_deref(), &self.places)?)
    }

    fn resolve(&self, flags: &Flags, project: Option<&Path>) -> Result<Config, config::Error> {
        Ok(config::resolve(flags, &self.env, project, &self.places)?.0)
    }

    /// The settings of this caller of a daemon, and what has to be said about them. A project's file that is refused does not count: the
    /// project may be somebody else's, and is no reason to do nothing there.
    pub fn own_config(&self, flags: &Flags) -> Result<(Config, Vec<String>), Failure> {
        match self.resolve(flags, self.cwd.as_deref()) {
            Err(error) if error.is_of_project(self.cwd.as_deref()) => {
                let note = format!("{}; the file does not count. {}", with_causes(&error), error.hint());
                Ok((self.resolve(flags, None)?, vec![note]))
            }
            resolved => Ok((resolved?, Vec::new())),
        }
    }

    /// What a daemon is told about this caller.
    pub fn introduction(&self, flags: &Flags) -> Result<Introduction, Failure> {
        let (config, notes) = self.own_config(flags)?;
        Ok(Introduction::new(&config, notes))
    }
}

pub fn run(cli: Cli) -> ExitCode {
    let result = Surroundings::find().and_then(|surroundings| match cli.command {
        Command::Serve(args) => serve::serve(&args, surroundings),
        Command::Mcp(args) => mcp::mcp(&args, &surroundings),
        Command::Exec(args) => exec::exec(&args, &surroundings),
        Command::Interrupt(args) => interrupt::interrupt(&args, &surroundings),
        Command::Repl(args) => repl::repl(&args, &surroundings),
        Command::Apps(args) => apps::apps(&args, &surroundings),
        Command::Sessions(args) => sessions::sessions(&args, &surroundings),
        Command::Attach(args) => attach::attach(&args, &surroundings),
        Command::Stacks(args) => stacks::stacks(&args, &surroundings),
        Command::Output(args) => output::output(&args, &surroundings),
        Command::Wrap(args) => wrap::wrap(&args, &surroundings),
        Command::Test(args) => test::test(&args, &surroundings),
        Command::Failures(args) => failures::failures(&args, &surroundings),
        Command::Stop => daemon::stop(&surroundings),
        Command::Doctor(args) => doctor::doctor(&args, &surroundings),
        Command::Token(args) => token::token(&args, &surroundings),
        Command::Audit(args) => audit::audit(&args, &surroundings),
    });
    let exit = result.unwrap_or_else(|failure| {
        complain(&failure);
        Exit::Failed
    });
    ExitCode::from(exit as u8)
}

/// One line to stdout. A reader that has gone is the end of the command, not an error of it.
pub fn say(line: &str) -> Result<(), Failure> {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => Ok(result?),
    }
}

/// Rows of the same length in columns, to stdout.
fn table(rows: &[Vec<String>]) -> Result<(), Failure> {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> =
        (0..columns).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    for row in rows {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        say(cells.join("  ").trim_end())?;
    }
    Ok(())
}

/// A failure on stderr, with its hint.
pub fn complain(failure: &Failure) {
    let colour = io::stderr().is_terminal();
    let (red, dim, off) = if colour { ("\x1b[31m", "\x1b[2m", "\x1b[0m") } else { ("", "", "") };
    let (message, hint) = (shown_lines(&failure.message), shown_lines(&failure.hint));
    // Nothing can be done about a stderr that is gone.
    let _unheard = writeln!(io::stderr(), "{red}pylair: {message}{off}\n{dim}hint: {hint}{off}");
}

/// Logging of commands: to stderr, quiet unless `RUST_LOG` says otherwise.
pub fn log_to_stderr(default: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| default.into());
    // Set twice only in tests.
    let _already = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(|| MaskedStderr)
        // Otherwise it is told on stderr what could not be written there, which panics.
        .log_internal_errors(false)
        .try_init();
}

/// Lines of the log on stderr, without the secrets in them.
struct MaskedStderr;

impl Write for MaskedStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(&daemon::masked_line(bytes)).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
