//! `pylair sessions`: what is open, and sessions as files.

use std::io::{self, Write};

use super::{Exit, Failure, Surroundings, client::Client, say, table};
use crate::cli::{ExportArgs, JsonArgs, SessionsArgs, SessionsCommand};
use pylair_core::session::{Status, saved::Store, stopped_status};
use pylair_text::{escape::url_value, plain::shown};

pub fn sessions(args: &SessionsArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    match &args.command {
        Some(SessionsCommand::Export(args)) => export(args, surroundings),
        None => list(&args.list, surroundings),
    }
}

fn export(args: &ExportArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let suffix = args.output.as_ref().and_then(|path| path.extension()?.to_str()).unwrap_or("ipynb");
    let format = args.format.as_deref().unwrap_or(suffix);
    let session = args.session.as_deref().filter(|session| !session.is_empty());
    let target = session.map(|session| format!("&target={}", url_value(session))).unwrap_or_default();
    let path = format!("/api/export?format={}{target}", url_value(format));
    let bytes = Client::start(surroundings)?.get_bytes(&path)?;
    match &args.output {
        Some(path) => std::fs::write(path, bytes).map_err(|error| {
            Failure::new(format!("cannot write `{}`: {error}", path.display()), "pass a path you can write to")
        })?,
        None => match io::stdout().write_all(&bytes) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            result => result?,
        },
    }
    Ok(Exit::Ok)
}

/// Those that a daemon would start again, when there is none.
fn stopped(surroundings: &Surroundings) -> Vec<Status> {
    let data = &surroundings.places.data;
    if !data.join("sessions").is_dir() {
        return Vec::new();
    }
    // Whether one is too old to come back is the daemon's to say.
    Store::open(data).map_or_else(|_| Vec::new(), |store| store.load(None).iter().map(stopped_status).collect())
}

fn list(args: &JsonArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let answer: serde_json::Value = match Client::connect(surroundings)? {
        Some(mut client) => client.get("/api/sessions")?,
        None => serde_json::json!({"sessions": stopped(surroundings)}),
    };
    if args.json {
        say(&answer.to_string())?;
        return Ok(Exit::Ok);
    }
    let sessions = answer["sessions"].as_array().cloned().unwrap_or_default();
    if sessions.is_empty() {
        say("no session is open")?;
        return Ok(Exit::Ok);
    }
    let header = ["NAME", "STATE", "CELL", "PYTHON", "SANDBOX", "MB", "MINE", "DIRECTORY"].map(str::to_owned).to_vec();
    let mut rows = vec![header];
    for session in &sessions {
        let text = |key: &str| match &session[key] {
            serde_json::Value::String(text) if !text.is_empty() => shown(text),
            serde_json::Value::Number(number) => {
                number.as_f64().filter(|_| number.is_f64()).map_or_else(|| number.to_string(), |mb| format!("{mb:.0}"))
            }
            serde_json::Value::Bool(true) => "yes".to_owned(),
            _ => "-".to_owned(),
        };
        rows.push(["name", "state", "cell", "python", "sandbox", "rss_mb", "mine", "cwd"].map(text).to_vec());
    }
    table(&rows)?;
    Ok(Exit::Ok)
}
