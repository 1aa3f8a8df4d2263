//! `pylair repl`: a person at a prompt in a session that others may be using at the same time.
//!
//! Cells go the same way as those of `pylair exec`. A second connection follows the session's events, so that what others
//! run is shown while the prompt waits.

mod editor;

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal},
    rc::Rc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use hyper::Method;
use rustyline::{
    ColorMode, CompletionType, Config, Editor, EventHandler, ExternalPrinter, KeyCode, KeyEvent, Modifiers,
    error::ReadlineError, history::FileHistory,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    runtime::Runtime,
    signal::unix::{Signal, SignalKind, signal},
};

use super::{
    Exit, Failure, Surroundings,
    client::{Address, Client, Connection, lost},
    complain, exec, say,
    words::with_commands,
};
use crate::cli::{ExecArgs, ReplArgs};
use editor::{Assistant, NextLine};
use pylair_output::Stream;
use pylair_text::{
    escape::url_value,
    plain::{one_line, shown},
};
use pylair_web::api::{CompleteBody, Completion, ExecuteBody, Origin, TargetBody};

const HISTORY_LINES: usize = 10_000;
/// What had happened when a person joins, in cells.
const SHOWN_AT_FIRST: usize = 3;
/// A prompt does not wait longer for a completion.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(3);
const MAX_CODE_CHARS: usize = 60;

const HELP: &str = "\
Type Python; a blank line ends a block. Tab completes, Up and Ctrl-R recall, Ctrl-C stops the running cell.
  :history [N]   show the newest N cells, of everybody
  :interrupt     stop what the session is running, whoever started it
  :help          show this
  :quit, Ctrl-D  leave; the session goes on";

pub fn repl(args: &ReplArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let target = args.target.clone().filter(|target| !target.is_empty());
    if !io::stdin().is_terminal() {
        let args = ExecArgs { target, timeout: None, json: false, code: Some("-".to_owned()), args: Vec::new() };
        return exec::exec(&args, surroundings);
    }
    let mut client = Client::start(surroundings)?;
    let from = Origin { cwd: surroundings.cwd.clone(), env: Some(surroundings.env.clone()), client: None };
    let status: TargetStatus =
        client.post("/api/sessions/find", &TargetBody { target, job: None, forget: false, from })?;
    let (runtime, _) = client.into_parts();
    let colour = has_colour(&surroundings.env);
    let mut prompt = Prompt {
        runtime: Rc::new(runtime),
        surroundings,
        target: status.reference().to_owned(),
        is_app: matches!(status, TargetStatus::App(_)),
        client: format!("repl-{}", std::process::id()),
        paint: Paint { colour },
        cell: status.cell(),
    };
    prompt.greet(&status)?;
    prompt.run()
}

/// `NO_COLOR` set to anything means none, as everywhere.
fn has_colour(env: &BTreeMap<String, String>) -> bool {
    let refused = env.get("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = env.get("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !refused && !dumb
}

/// What is needed of the status of what was found.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TargetStatus {
    Session(SessionStatus),
    App(AppStatus),
}

impl TargetStatus {
    fn reference(&self) -> &str {
        match self {
            Self::Session(session) => &session.handle,
            Self::App(app) => &app.target,
        }
    }

    fn cell(&self) -> u64 {
        match self {
            Self::Session(session) => session.cell,
            Self::App(app) => app.calls,
        }
    }
}

#[derive(Debug, Deserialize)]
struct AppStatus {
    target: String,
    state: String,
    python: String,
    calls: u64,
    readonly: bool,
}

#[derive(Debug, Deserialize)]
struct SessionStatus {
    name: String,
    handle: String,
    state: String,
    cell: u64,
    python: String,
}

/// What is needed of a page of history.
#[derive(Debug, Deserialize)]
struct Page {
    entries: Vec<PageEntry>,
}

#[derive(Debug, Deserialize)]
struct PageEntry {
    cell: Option<u64>,
    code: Option<String>,
    client: Option<String>,
    outcome: Option<String>,
}

/// What is needed of an event.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Event {
    CellStarted {
        cell: u64,
        code: String,
        client: String,
    },
    SessionRestarted {
        reason: String,
    },
    SessionRolledBack {
        checkpoint_cell: u64,
        reason: String,
    },
    SessionClosed {
        reason: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Debug, Clone, Copy)]
struct Paint {
    colour: bool,
}

impl Paint {
    fn with(self, code: &str, text: &str) -> String {
        if self.colour && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    fn red(self, text: &str) -> String {
        self.with("31", text)
    }
}

struct Prompt<'a> {
    runtime: Rc<Runtime>,
    surroundings: &'a Surroundings,
    /// The handle of a session, or an app and its process.
    target: String,
    is_app: bool,
    /// What we are called in the history: two people at one session are told apart.
    client: String,
    paint: Paint,
    /// The newest cell we know of.
    cell: u64,
}

impl Prompt<'_> {
    fn greet(&mut self, found: &TargetStatus) -> Result<(), Failure> {
        let line = match found {
            TargetStatus::Session(status) => {
                let busy = if status.state == "busy" { ", running a cell" } else { "" };
                let (name, python) = (shown(&status.name), shown(&status.python));
                format!(
                    "Session {name}{busy}, Python {python}. Tab completes, Ctrl-D leaves and keeps the session, :help says more."
                )
            }
            TargetStatus::App(status) => {
                let state = if status.state == "idle" { String::new() } else { format!(", {}", status.state) };
                let readonly = if status.readonly { ", read-only" } else { "" };
                let (name, python) = (shown(&status.target), shown(&status.python));
                format!("App {name}{state}{readonly}, Python {python}. Tab completes, Ctrl-D leaves, :help says more.")
            }
        };
        say(&self.paint.dim(&line))?;
        if self.is_app { Ok(()) } else { self.show_history(SHOWN_AT_FIRST) }
    }

    fn run(&mut self) -> Result<Exit, Failure> {
        let places = &self.surroundings.places;
        places.create()?;
        let history = places.state.join("repl_history");
        let mut editor = self.editor()?;
        // None yet, or one of another kind: neither is a reason not to start.
        let _absent = editor.load_history(&history);
        if !self.is_app {
            self.follow(&mut editor)?;
        }
        let mut interrupts = {
            let _entered = self.runtime.enter();
            signal(SignalKind::interrupt())?
        };
        loop {
            let status: TargetStatus = self.post("/api/sessions/find", &self.target())?;
            self.cell = status.cell();
            let prompt = format!("In [{}]: ", self.cell + 1);
            let painted = self.paint.with("32", &prompt);
            let input = match editor.readline(&(prompt, painted)) {
                Ok(input) => input,
                Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => continue,
                Err(ReadlineError::Eof) => return Ok(Exit::Ok),
                Err(error) => return Err(Failure::new(error.to_string(), "use `pylair exec` without a terminal")),
            };
            let input = input.trim_end();
            if input.is_empty() {
                continue;
            }
            // Saved at once: a terminal may be closed at any time. A prompt without a memory is still a prompt.
            let _unsaved = editor.add_history_entry(input).and_then(|_| editor.append_history(&history));
            let done = match input.strip_prefix(':') {
                Some(command) => match self.command(command) {
                    Ok(Some(exit)) => return Ok(exit),
                    Ok(None) => Ok(()),
                    Err(failure) => Err(failure),
                },
                None => self.runtime.clone().block_on(self.execute(input, &mut interrupts)),
            };
            if let Err(failure) = done {
                complain(&failure);
            }
        }
    }

    fn editor(&self) -> Result<Editor<Assistant, FileHistory>, Failure> {
        let config = Config::builder()
            .max_history_size(HISTORY_LINES)
            .and_then(|config| config.history_ignore_dups(true))
            .map_err(|error| Failure::new(error.to_string(), "this is a bug of pylair"))?
            .completion_type(CompletionType::List)
            .color_mode(if self.paint.colour { ColorMode::Enabled } else { ColorMode::Disabled })
            .indent_size(4)
            .build();
        let no_terminal =
            |error: ReadlineError| Failure::new(error.to_string(), "use `pylair exec` without a terminal");
        let mut editor = Editor::with_config(config).map_err(no_terminal)?;
        let (runtime, address, session) = (self.runtime.clone(), Address::of(self.surroundings), self.target.clone());
        let ask = move |code: &str, cursor: usize| {
            let body = CompleteBody {
                target: Some(session.clone()),
                code: code.to_owned(),
                cursor: Some(cursor),
                ..CompleteBody::default()
            };
            let asked = call::<Completion>(&address, Method::POST, "/api/complete", json(&body));
            // A busy session has no answer now; then Tab does nothing.
            runtime.block_on(async { tokio::time::timeout(COMPLETION_TIMEOUT, asked).await }).ok()?.ok()
        };
        editor.set_helper(Some(Assistant { colour: self.paint.colour, ask: Box::new(ask) }));
        let enter = KeyEvent(KeyCode::Enter, Modifiers::NONE);
        editor.bind_sequence(enter, EventHandler::Conditional(Box::new(NextLine)));
        Ok(editor)
    }

    /// Shows what others do in the session, above the line that is being typed.
    fn follow(&self, editor: &mut Editor<Assistant, FileHistory>) -> Result<(), Failure> {
        let mut printer = editor
            .create_external_printer()
            .map_err(|error| Failure::new(error.to_string(), "use `pylair exec` without a terminal"))?;
        let path = format!("/api/events?target={}", url_value(&self.target));
        let (address, own, paint) = (Address::of(self.surroundings), self.client.clone(), self.paint);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut events = runtime.block_on(open_stream(&address, &path))?;
        // Ends with the process, or with the daemon, of which the next cell tells.
        std::thread::spawn(move || {
            let mut buffer = BytesMut::new();
            while let Ok(event) = runtime.block_on(exec::next_line(&mut events, &mut buffer)) {
                let Some(line) = told(&event, &own) else { continue };
                if printer.print(format!("{}\n", paint.dim(&line))).is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    fn command(&self, command: &str) -> Result<Option<Exit>, Failure> {
        let (name, argument) = command.trim().split_once(' ').unwrap_or((command.trim(), ""));
        match name {
            "help" | "h" | "?" => say(HELP)?,
            "quit" | "q" | "exit" => return Ok(Some(Exit::Ok)),
            "history" if self.is_app => say("an app keeps no history")?,
            "history" => self.show_history(argument.trim().parse().unwrap_or(20).clamp(1, 100))?,
            "interrupt" => {
                let stopped: serde_json::Value = self.post("/api/interrupt", &self.target())?;
                let what = stopped["job"].as_str().map_or("nothing was running", |_| "stopped");
                say(&self.paint.dim(&format!("[{what}]")))?;
            }
            _ => say(&format!("there is no command `:{name}`; `:help` lists them"))?,
        }
        Ok(None)
    }

    fn show_history(&self, limit: usize) -> Result<(), Failure> {
        let path = format!("/api/history?target={}&limit={limit}", url_value(&self.target));
        let address = Address::of(self.surroundings);
        let page: Page = self.runtime.block_on(call(&address, Method::GET, &path, Bytes::new()))?;
        for entry in page.entries {
            let (Some(cell), Some(code), Some(client)) = (entry.cell, entry.code, entry.client) else { continue };
            let outcome = entry.outcome.filter(|outcome| outcome != "ok");
            let outcome = outcome.map(|outcome| format!(", {outcome}")).unwrap_or_default();
            say(&self.paint.dim(&format!("[cell {cell} by {}{outcome}: {}]", shown(&client), first_line(&code))))?;
        }
        Ok(())
    }

    /// Runs a cell, showing what it prints as it comes.
    async fn execute(&self, code: &str, interrupts: &mut Signal) -> Result<(), Failure> {
        let body = ExecuteBody {
            code: code.to_owned(),
            file: None,
            target: Some(self.target.clone()),
            // Whoever sits at the prompt stops it when it has been long enough.
            timeout_s: Some(0.0),
            max_chars: None,
            from: Origin { client: Some(self.client.clone()), ..Origin::default() },
        };
        // What was pressed before this cell does not mean it.
        while interrupts.recv().now_or_never().is_some() {}
        let mut connection = connect(&Address::of(self.surroundings)).await?;
        let mut stream = connection.send(Method::POST, "/api/execute", json(&body)).await?;
        let mut buffer = BytesMut::new();
        let mut job = None;
        let mut at_line_start = true;
        loop {
            let line = tokio::select! {
                line = exec::next_line(&mut stream, &mut buffer) => line?,
                _ = interrupts.recv(), if job.is_some() => {
                    exec::interrupt(self.surroundings, job.as_deref().unwrap_or_default()).await?;
                    continue;
                }
            };
            match line {
                exec::Line::Job { job: id } => job = Some(id),
                exec::Line::Output { stream, text } => {
                    at_line_start = text.ends_with('\n');
                    let text = if stream == Stream::Stderr { self.paint.red(&text) } else { text };
                    exec::write(&mut io::stdout(), &text)?;
                }
                exec::Line::Report(report) => {
                    if !at_line_start {
                        say("")?;
                    }
                    return self.conclude(&report);
                }
            }
        }
    }

    fn conclude(&self, report: &serde_json::Value) -> Result<(), Failure> {
        for display in report["displays"].as_array().into_iter().flatten() {
            let text = |key: &str| display[key].as_str().unwrap_or_default();
            say(&self.paint.dim(&format!("[{} {}]", text("mime"), text("resource"))))?;
        }
        if let Some(result) = report["result"].as_str() {
            let label = self.paint.red(&format!("Out[{}]:", report["cell"]));
            let gap = if result.contains('\n') { "\n" } else { " " };
            say(&format!("{label}{gap}{result}"))?;
        }
        if let Some(error) = report["error"].as_object() {
            let text = |key: &str| error.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
            if text("traceback").is_empty() || report["outcome"] == "died" {
                say(&self.paint.red(&format!("{}: {}", text("type"), text("message"))))?;
            }
            if !text("traceback").is_empty() {
                say(&self.paint.red(text("traceback").trim_end()))?;
            }
        }
        for note in report["notes"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str) {
            say(&self.paint.dim(&format!("note: {}", with_commands(note))))?;
        }
        Ok(())
    }

    fn target(&self) -> TargetBody {
        TargetBody { target: Some(self.target.clone()), job: None, forget: false, from: Origin::default() }
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        let address = Address::of(self.surroundings);
        self.runtime.block_on(call(&address, Method::POST, path, json(body)))
    }
}

/// What is said of an event, unless it is our own or of no interest.
fn told(event: &Event, own: &str) -> Option<String> {
    Some(match event {
        Event::CellStarted { client, .. } if client == own => return None,
        Event::CellStarted { cell, code, client } => {
            format!("[{} runs cell {cell}: {}]", shown(client), first_line(code))
        }
        Event::SessionRestarted { reason } => format!("[the session was restarted: {}]", shown(reason)),
        Event::SessionRolledBack { checkpoint_cell, reason } => {
            format!("[the session was set back to where it was after cell {checkpoint_cell}: {}]", shown(reason))
        }
        Event::SessionClosed { reason } => format!("[the session was closed: {}]", shown(reason)),
        Event::Other => return None,
    })
}

/// The beginning of a cell, on one line and harmless to a terminal.
fn first_line(code: &str) -> String {
    let mut lines = code.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    let begin = one_line(first, MAX_CODE_CHARS);
    let cut = lines.next().is_some() || first.chars().count() > MAX_CODE_CHARS;
    if cut { format!("{begin}…") } else { begin }
}

fn json(body: &impl Serialize) -> Bytes {
    Bytes::from(serde_json::to_vec(body).unwrap_or_default())
}

/// A connection for each request: a prompt may wait for days, and the daemon need not.
async fn connect(address: &Address) -> Result<Connection, Failure> {
    Connection::open(address).await?.ok_or_else(|| lost("no daemon is running"))
}

async fn call<T: DeserializeOwned>(address: &Address, method: Method, path: &str, body: Bytes) -> Result<T, Failure> {
    connect(address).await?.json(method, path, body).await
}

async fn open_stream(address: &Address, path: &str) -> Result<hyper::body::Incoming, Failure> {
    connect(address).await?.send(Method::GET, path, Bytes::new()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_told_of_in_one_harmless_line() {
        let started =
            |client: &str, code: &str| Event::CellStarted { cell: 7, code: code.to_owned(), client: client.to_owned() };
        assert_eq!(told(&started("repl-1", "x"), "repl-1"), None);
        let line = told(&started("claude-code", "\n\x1b[2Jdf = load()\nmore()"), "repl-1");
        assert_eq!(line.as_deref(), Some("[claude-code runs cell 7: [2Jdf = load()…]"));
        let event: Event = serde_json::from_str(r#"{"seq":1,"kind":"checkpoint_made","cell":3}"#).unwrap();
        assert_eq!(told(&event, ""), None);
    }
}
