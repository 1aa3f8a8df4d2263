//! `pylair failures`: what failed, what was found out about it, and results from elsewhere. Everything is asked of the daemon, over the
//! routes that REST has.

mod demo;
mod import;
mod show;

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, Read},
};

use serde_json::{Value, json};

use super::{Exit, Failure, Surroundings, client::Client, say, table};
use crate::cli::{
    JsonArgs,
    failures::{AnalyzeArgs, DebugArgs, FailuresArgs, FailuresCommand, ListArgs, PromptArgs, RegisterArgs, ShowArgs},
};
use pylair_text::{
    escape::url_value,
    plain::{one_line, shown, shown_lines},
};

/// More of a traceback is not read.
const MAX_INPUT_BYTES: u64 = 64 << 20;

pub fn failures(args: &FailuresArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    match &args.command {
        None => list(&args.list, surroundings),
        Some(FailuresCommand::List(args)) => list(args, surroundings),
        Some(FailuresCommand::Show(args)) => show_one(args, surroundings),
        Some(FailuresCommand::Debug(args)) => debug(args, surroundings),
        Some(FailuresCommand::Analyze(args)) => analyze(args, surroundings),
        Some(FailuresCommand::Prompt(args)) => prompt(args, surroundings),
        Some(FailuresCommand::Register(args)) => register(args, surroundings),
        Some(FailuresCommand::Import(args)) => import::import(args, surroundings),
        Some(FailuresCommand::Demo(args)) => demo::demo(args, surroundings),
        Some(FailuresCommand::Docs { topic }) => docs(topic.as_deref(), surroundings),
    }
}

/// A path with those of the parameters that have a value.
fn with_query(path: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| Some(format!("{name}={}", url_value((*value)?))));
    let query = given.collect::<Vec<_>>().join("&");
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

/// The answer as it is, or as people read it.
fn tell(answer: &Value, json: &JsonArgs, show: impl FnOnce(&Value) -> Result<(), Failure>) -> Result<Exit, Failure> {
    if json.json {
        say(&answer.to_string())?;
    } else {
        show(answer)?;
    }
    Ok(Exit::Ok)
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

fn status(value: &Value) -> String {
    let unverified = value["status"] == "resolved" && value["verified"] == false;
    format!("{}{}", text(value, "status").replace('_', " "), if unverified { " (not verified)" } else { "" })
}

/// How long ago, roughly.
fn ago(at: &str) -> String {
    let Ok(at) = at.parse::<jiff::Timestamp>() else { return "-".to_owned() };
    let seconds = jiff::Timestamp::now().duration_since(at).as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

/// Who works at this shell: as it says, else as the user database does.
fn author(surroundings: &Surroundings) -> String {
    let told = ["USER", "LOGNAME"].iter().filter_map(|name| surroundings.env.get(*name)).find(|name| !name.is_empty());
    told.cloned().unwrap_or_else(|| pylair_os::process_access::user_name(rustix::process::getuid().as_raw()))
}

/// Where the caller is, which says what its own project is.
fn cwd(surroundings: &Surroundings) -> Option<&str> {
    surroundings.cwd.as_deref()?.to_str()
}

/// Says which project was assumed.
fn say_project(answer: &Value) -> Result<(), Failure> {
    match answer["project_note"].as_str() {
        Some(note) => say(&one_line(&note.replace("project \"all\"", "--project all"), 400)),
        None => Ok(()),
    }
}

fn list(args: &ListArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let limit = args.limit.to_string();
    let path = with_query(
        "/api/failures",
        &[
            ("status", args.status.as_deref()),
            ("group", args.group.as_deref()),
            ("project", args.project.as_deref()),
            ("cwd", cwd(surroundings)),
            ("test", args.test.as_deref()),
            ("limit", Some(&limit)),
            ("after", args.after.as_deref()),
        ],
    );
    let answer: Value = Client::start(surroundings)?.get(&path)?;
    tell(&answer, &args.json, |answer| {
        let failures = answer["failures"].as_array().cloned().unwrap_or_default();
        if failures.is_empty() {
            say(&nothing_listed(args, answer))?;
            return say_project(answer);
        }
        let mut rows = vec![["ID", "STATUS", "SEEN", "LAST", "GROUP", "TEST", "ERROR"].map(str::to_owned).to_vec()];
        for failure in &failures {
            let error = format!("{}: {}", text(failure, "type"), text(failure, "message"));
            rows.push(vec![
                shown(text(failure, "id")),
                status(failure),
                failure["occurrences"].to_string(),
                ago(text(failure, "last_seen")),
                shown(text(failure, "group")),
                one_line(text(failure, "test"), 80),
                one_line(error.trim_end_matches(": "), 80),
            ]);
        }
        table(&rows)?;
        if let Some(next) = answer["next"].as_str() {
            say(&format!("{} of {}; --after {next} for more", failures.len(), answer["total"]))?;
        }
        say_project(answer)
    })
}

/// Why a list is empty: nothing was recorded, or nothing is like that.
fn nothing_listed(args: &ListArgs, answer: &Value) -> String {
    let asked = [
        ("--status", &args.status),
        ("--group", &args.group),
        ("--project", &args.project),
        ("--test", &args.test),
        ("--after", &args.after),
    ];
    let asked: Vec<String> =
        asked.iter().filter_map(|(name, value)| Some(format!("{name} {}", shown(value.as_deref()?)))).collect();
    if asked.is_empty() && answer["project_note"].is_string() {
        format!("no failure of {} is recorded", shown(text(answer, "project")))
    } else if asked.is_empty() {
        "no failure is recorded; `pylair test` runs pytest and records what fails".to_owned()
    } else {
        format!("no failure is like that ({}); `pylair failures list` shows all", asked.join(" "))
    }
}

/// An id as somebody gave it: a target is one too.
fn id_of<'a>(given: &'a str, what: &str) -> Result<&'a str, Failure> {
    let id = given.trim();
    let id = id.strip_prefix("failure:").unwrap_or(id);
    if id.is_empty() {
        return Err(Failure::new(format!("the id of the {what} is empty"), "`pylair failures list` shows ids"));
    }
    Ok(id)
}

fn show_one(args: &ShowArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let answer: Value =
        Client::start(surroundings)?.get(&format!("/api/failures/{}", url_value(id_of(&args.id, "failure")?)))?;
    tell(&answer, &args.json, |answer| show::failure(answer, args.all))
}

/// Standard input, if there is any.
fn read_input(what: &str) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    if !io::stdin().is_terminal() {
        io::stdin()
            .take(MAX_INPUT_BYTES)
            .read_to_end(&mut bytes)
            .map_err(|error| Failure::new(format!("{what} cannot be read: {error}"), "pass it on standard input"))?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn debug(args: &DebugArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    // With --failure-id the first word is the analysis.
    let (id, first) = match &args.failure_id {
        Some(id) => (id, args.id.as_ref()),
        None => (args.id.as_ref().expect("clap asks for one"), None),
    };
    let given = args.analysis.as_ref().or(args.text.as_ref()).or(first);
    let analysis = match given.map(String::as_str) {
        Some("-") => Some(read_input("the analysis")?),
        given => given.map(ToOwned::to_owned),
    };
    let more = args.text.as_ref().or(first.filter(|_| args.analysis.is_some()));
    if let Some(more) = more.filter(|_| args.failure_id.is_some() && args.id.is_some()) {
        return Err(Failure::new(format!("`{}` is one word too many", shown(more)), "put the analysis in quotes"));
    }
    if args.force && args.status.as_deref() != Some("resolved") {
        return Err(Failure::new(
            "only that a failure is resolved can be forced",
            "leave --force out: nothing has to be shown for another status",
        ));
    }
    if analysis.is_none() && args.status.is_none() {
        return Err(Failure::new(
            "there is neither an analysis nor a status",
            "say what you found out, or pass --status; see `pylair failures debug --help`",
        ));
    }
    let body = json!({
        "rule": args.rule,
        "analysis": analysis,
        "status": args.status,
        "force": args.force,
        "author": author(surroundings),
    });
    let path = format!("/api/failures/{}/debug", url_value(id_of(id, "failure")?));
    let answer: Value = Client::start(surroundings)?.post(&path, &body)?;
    tell(&answer, &args.json, |answer| {
        say(&shown(text(answer, "message")))?;
        let progress = &answer["progress"];
        let next = &answer["next_principle"];
        say(&format!("{} of {} rules have an analysis", progress["completed"], progress["total"]))?;
        if next.is_object() {
            say(&format!("next: {} {}. {}", next["number"], text(next, "name"), text(next, "question")))?;
        }
        Ok(())
    })
}

fn analyze(args: &AnalyzeArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let path = with_query(
        "/api/analytics",
        &[
            ("group_by", args.group_by.as_deref()),
            ("time_range", args.time_range.as_deref()),
            ("include_resolved", args.include_resolved.then_some("true")),
            ("project", args.project.as_deref()),
            ("cwd", cwd(surroundings)),
        ],
    );
    let answer: Value = Client::start(surroundings)?.get(&path)?;
    tell(&answer, &args.json, |answer| {
        show::analysis(answer)?;
        say_project(answer)
    })
}

fn prompt(args: &PromptArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let tokens = args.max_tokens.map(|tokens| tokens.to_string());
    let how = [
        ("prompt_style", args.style.as_deref()),
        ("max_tokens", tokens.as_deref()),
        ("project", args.project.as_deref()),
        ("cwd", cwd(surroundings)),
    ];
    let path = if let Some(id) = &args.id {
        with_query(&format!("/api/prompts/{}", url_value(id_of(id, "failure or group")?)), &how)
    } else {
        let subject = [("failure_id", args.failure_id.as_deref()), ("group_id", args.group_id.as_deref())];
        with_query("/api/prompt", &[&subject[..], &how[..]].concat())
    };
    let answer: Value = Client::start(surroundings)?.get(&path)?;
    tell(&answer, &args.json, |answer| say(&shown_lines(text(answer, "prompt"))))
}

fn register(args: &RegisterArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let mut locals = BTreeMap::new();
    for local in &args.local {
        let (name, value) = local
            .split_once('=')
            .ok_or_else(|| Failure::new(format!("`{local}` is not NAME=VALUE"), "pass --local NAME=VALUE"))?;
        locals.insert(name, value);
    }
    let traceback = match &args.traceback {
        Some(path) => {
            std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(|error| {
                Failure::new(format!("cannot read `{}`: {error}", path.display()), "pass a file of text")
            })?
        }
        None => read_input("the traceback")?,
    };
    let body = json!({
        "test": args.test_name,
        "file": args.file_path,
        "line": args.line_number,
        "message": args.error_message,
        "traceback": traceback,
        "locals": locals,
        "project": args.project,
        "cwd": cwd(surroundings),
        "author": author(surroundings),
    });
    let answer: Value = Client::start(surroundings)?.post("/api/failures", &body)?;
    tell(&answer, &args.json, |answer| {
        let id = text(answer, "id");
        say(&format!("recorded as {id}; `pylair failures show {id}` shows it"))
    })
}

fn docs(topic: Option<&str>, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let answer: Value = Client::start(surroundings)?.get(&with_query("/api/docs", &[("topic", topic)]))?;
    say(text(&answer, "docs").trim_end())?;
    Ok(Exit::Ok)
}
