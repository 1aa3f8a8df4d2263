//! `pylair exec`: runs code in a session from a shell, streaming what it prints.

use std::{
    io::{self, IsTerminal, Read, Write},
    path::Path,
};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::{Method, body::Incoming};
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    Exit, Failure, Surroundings,
    client::{Address, Client, Connection, lost},
    say,
    words::with_commands,
};
use crate::cli::ExecArgs;
use pylair_output::Stream;
use pylair_web::api::{ExecuteBody, Origin, Script, TargetBody};

pub fn exec(args: &ExecArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let file = script(args, surroundings)?;
    let body = ExecuteBody {
        code: match &file {
            Some(Script { name, .. }) => std::fs::read_to_string(name).map_err(|error| {
                Failure::new(format!("cannot read `{name}`: {error}"), "pass a file of Python source in UTF-8")
            })?,
            None => read_code(args.code.as_deref())?,
        },
        file,
        target: args.target.clone().filter(|target| !target.is_empty()),
        timeout_s: args.timeout,
        max_chars: None,
        from: Origin { cwd: surroundings.cwd.clone(), env: Some(surroundings.env.clone()), client: None },
    };
    let (runtime, connection) = Client::start(surroundings)?.into_parts();
    runtime.block_on(run(connection, body, args.json, surroundings))
}

/// The file that is to be run, as the session finds it.
fn script(args: &ExecArgs, surroundings: &Surroundings) -> Result<Option<Script>, Failure> {
    match args.code.as_deref() {
        Some(name) if looks_like_file(name) => {
            let path = surroundings.cwd.as_deref().unwrap_or(Path::new("")).join(name);
            Ok(Some(Script { path, name: name.to_owned(), args: args.args.clone() }))
        }
        Some(name) if is_file_name(name) => Err(Failure::new(
            format!("there is no file `{name}`"),
            "name an existing file; code that looks like one is read from standard input",
        )),
        Some(name) if !args.args.is_empty() => Err(Failure::new(
            format!("only a file takes arguments, and `{}` is not a file", pylair_text::plain::one_line(name, 100)),
            "name an existing file with `.py` or `/` in its name, or leave the arguments out",
        )),
        _ => Ok(None),
    }
}

fn read_code(argument: Option<&str>) -> Result<String, Failure> {
    let from_stdin = || {
        let mut code = String::new();
        io::stdin().read_to_string(&mut code).map_err(|error| {
            Failure::new(format!("standard input is not text: {error}"), "pass Python source in UTF-8")
        })?;
        Ok(code)
    };
    match argument {
        Some("-") => from_stdin(),
        Some(code) => Ok(code.to_owned()),
        None if io::stdin().is_terminal() => Err(Failure::new(
            "no code was given",
            "pass it as an argument, a file, or on standard input; see `pylair exec --help`",
        )),
        None => from_stdin(),
    }
}

/// A file that exists, or a name that can only be meant as one: `x` is code even where a file `x` lies around.
fn looks_like_file(text: &str) -> bool {
    let has_suffix = Path::new(text).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("py"));
    !text.contains('\n') && text.len() < 4096 && (has_suffix || text.contains('/')) && Path::new(text).is_file()
}

/// A name that nobody writes as code, whether there is such a file or not.
fn is_file_name(text: &str) -> bool {
    let has_suffix = Path::new(text).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("py"));
    has_suffix && text.chars().all(|c| c.is_alphanumeric() || "_-./~".contains(c))
}

/// One line of the answer to `/api/execute`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    Job { job: String },
    Output { stream: Stream, text: String },
    Report(serde_json::Value),
}

async fn run(
    mut connection: Connection,
    body: ExecuteBody,
    json: bool,
    surroundings: &Surroundings,
) -> Result<Exit, Failure> {
    let bytes = Bytes::from(serde_json::to_vec(&body).unwrap_or_default());
    let mut stream = connection.send(Method::POST, "/api/execute", bytes).await?;
    let mut interrupts = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
    let mut buffer = BytesMut::new();
    let mut job = String::new();
    let mut interrupted = None;
    loop {
        let line = tokio::select! {
            line = next_line(&mut stream, &mut buffer) => line?,
            _ = interrupts.recv() => {
                interrupted = Some(interrupt(surroundings, &job).await?);
                continue;
            }
            answer = answered(&mut interrupted) => {
                interrupted = None;
                let outcome = answer["outcome"].as_str();
                if outcome.is_some() || answer["job"].is_null() {
                    // Its end comes on the stream.
                    continue;
                }
                tell_notes(&answer)?;
                write(&mut io::stderr(), &format!("note: it goes on without this command; `pylair output {job}` shows what it printed\n"))?;
                return Ok(Exit::Interrupted);
            }
        };
        match line {
            Line::Job { job: id } => job = id,
            Line::Output { .. } if json => {}
            Line::Output { stream: Stream::Stdout, text } => write(&mut io::stdout(), &text)?,
            Line::Output { stream: Stream::Stderr, text } => write(&mut io::stderr(), &text)?,
            Line::Report(report) => return conclude(&report, json),
        }
    }
}

/// The next of the lines that an answer is made of, one JSON value each.
pub(super) async fn next_line<T: DeserializeOwned>(stream: &mut Incoming, buffer: &mut BytesMut) -> Result<T, Failure> {
    loop {
        if let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line = buffer.split_to(end + 1);
            return serde_json::from_slice(&line).map_err(lost);
        }
        match stream.frame().await {
            Some(frame) => {
                if let Ok(data) = frame.map_err(lost)?.into_data() {
                    buffer.extend_from_slice(&data);
                }
            }
            None => return Err(lost("it ended before the cell did")),
        }
    }
}

/// Ctrl-C goes to the cell; its end comes on the stream as always. Pressing it again takes the next step of the ladder.
pub(super) async fn interrupt(surroundings: &Surroundings, job: &str) -> Result<Interrupting, Failure> {
    let Some(mut connection) = Connection::open(&Address::of(surroundings)).await? else {
        return Err(lost("it is gone"));
    };
    let body = TargetBody { target: None, job: Some(job.to_owned()), forget: false, from: Origin::default() };
    let bytes = Bytes::from(serde_json::to_vec(&body).unwrap_or_default());
    Ok(pylair_os::event_loop::spawn(async move {
        connection.json(Method::POST, "/api/interrupt", bytes).await.unwrap_or_default()
    }))
}

/// The answer to an interrupt, which comes when the cell has ended, or cannot be made to.
pub(super) type Interrupting = tokio::task::JoinHandle<serde_json::Value>;

async fn answered(interrupting: &mut Option<Interrupting>) -> serde_json::Value {
    match interrupting {
        Some(interrupting) => interrupting.await.unwrap_or_default(),
        None => std::future::pending().await,
    }
}

fn tell_notes(told: &serde_json::Value) -> Result<(), Failure> {
    for note in told["notes"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str) {
        write(&mut io::stderr(), &format!("note: {}\n", with_commands(note)))?;
    }
    Ok(())
}

fn conclude(report: &serde_json::Value, json: bool) -> Result<Exit, Failure> {
    if json {
        say(&report.to_string())?;
    } else {
        if let Some(result) = report["result"].as_str() {
            say(result)?;
        }
        let mut stderr = io::stderr();
        if let Some(error) = report["error"].as_object() {
            let text = |key: &str| error.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
            if text("traceback").is_empty() || report["outcome"] == "died" {
                write(&mut stderr, &format!("{}: {}\n", text("type"), text("message")))?;
            }
            write(&mut stderr, &with_newline(text("traceback")))?;
        }
        tell_notes(report)?;
    }
    Ok(match report["outcome"].as_str() {
        Some("ok") => Exit::Ok,
        Some("interrupted") => Exit::Interrupted,
        _ => Exit::Raised,
    })
}

pub(super) fn with_newline(text: &str) -> String {
    if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

pub(super) fn write(to: &mut impl Write, text: &str) -> Result<(), Failure> {
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        // `pylair exec … | head` has seen enough; the cell goes on as a job.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(Exit::Ok as i32),
        result => Ok(result?),
    }
}
