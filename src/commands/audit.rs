//! `pylair audit`: reads the audit record. Its files are of mode 0600: whoever can read them runs the server.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    os::unix::fs::MetadataExt,
    path::Path,
    time::Duration,
};

use jiff::Timestamp;

use super::{Exit, Failure, Surroundings, client::Client, say};
use crate::cli::AuditArgs;
use pylair_core::audit::{
    What,
    file::{self, Entry, Head},
};
use pylair_text::plain::{one_line, shown};
use pylair_web::token::parse_time;

/// How often a followed file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const SHOWN_CODE_CHARS: usize = 100;

pub fn audit(args: &AuditArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let path = surroundings.places.audit();
    if args.verify {
        return verify(args, &path, surroundings);
    }
    let since = args.since.as_deref().map(parse_time).transpose()?;
    let since = since.and_then(|since| Timestamp::now().checked_sub(since).ok());
    let tell = |line: &[u8]| -> Result<(), Failure> {
        let Ok(entry) = serde_json::from_slice::<Entry>(line) else {
            let torn = String::from_utf8_lossy(line);
            return match (line.is_empty(), args.json) {
                (true, _) => Ok(()),
                (false, true) => say(&serde_json::json!({ "torn": torn }).to_string()),
                (false, false) => say(&format!("(torn: {})", shown(&torn))),
            };
        };
        let is_meant = since.is_none_or(|since| entry.line.at >= since)
            && (!args.denied || entry.line.what == What::Denied)
            && args.owner.as_ref().is_none_or(|owner| entry.line.owner.as_ref() == Some(owner));
        match (is_meant, args.json) {
            (false, _) => Ok(()),
            (true, true) => say(&String::from_utf8_lossy(line)),
            (true, false) => say(&in_words(&entry)),
        }
    };
    let files = file::files(&path);
    if files.is_empty() && !args.follow {
        say(if args.json { "" } else { "nothing was recorded yet" })?;
        return Ok(Exit::Ok);
    }
    let mut told = Ok(());
    let old = if args.follow { files.split_last().map_or(&[][..], |(_, old)| old) } else { &files[..] };
    for file in old {
        file::read(file, |line| {
            if told.is_ok() {
                told = tell(line);
            }
        })?;
    }
    told?;
    if args.follow { follow(&path, tell) } else { Ok(Exit::Ok) }
}

/// Shows lines as they come, also when a full file is put aside.
fn follow(path: &Path, tell: impl Fn(&[u8]) -> Result<(), Failure>) -> Result<Exit, Failure> {
    let mut open: Option<(u64, BufReader<File>)> = None;
    let mut line = Vec::new();
    loop {
        // Looked at before reading: what was written to a file until it was put aside is then read to its end.
        let current = std::fs::metadata(path).ok().map(|metadata| metadata.ino());
        if let Some((_, reader)) = &mut open {
            while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
                tell(line.strip_suffix(b"\n").unwrap_or(&line))?;
                line.clear();
            }
        }
        if current.is_some() && current != open.as_ref().map(|(inode, _)| *inode) {
            let file = File::open(path)?;
            open = Some((file.metadata()?.ino(), BufReader::new(file)));
            line.clear();
            continue;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn verify(args: &AuditArgs, path: &Path, surroundings: &Surroundings) -> Result<Exit, Failure> {
    // Only whoever wrote the last line knows that it is the last.
    let head: Option<Head> = match Client::connect(surroundings)? {
        Some(mut client) => client.get("/api/audit/head")?,
        None => None,
    };
    let verdict = file::verify(path, head.as_ref())?;
    if args.json {
        say(&serde_json::to_string(&verdict).unwrap_or_default())?;
    } else {
        let first = verdict.first_seq.unwrap_or(0);
        say(&format!("{} lines, {first} to {}", verdict.lines, verdict.last_seq))?;
        let end = if head.is_some() {
            "to the line the daemon wrote last"
        } else {
            "as far as it goes; no daemon runs to say where it ends"
        };
        if verdict.faults.is_empty() {
            say(&format!("the chain is whole, {end}"))?;
        }
        if verdict.dropped > 0 {
            say(&format!("{} lines were lost because they came too fast or could not be written", verdict.dropped))?;
        }
        if verdict.torn > 0 {
            say(&format!("{} lines were cut short when they were written", verdict.torn))?;
        }
        for fault in &verdict.faults {
            say(&format!("FAULT {fault}"))?;
        }
    }
    Ok(if verdict.faults.is_empty() { Exit::Ok } else { Exit::Raised })
}

fn in_words(entry: &Entry) -> String {
    let line = &entry.line;
    let what = match line.what {
        What::DaemonStarted => "daemon started",
        What::DaemonStopped => "daemon stopped",
        What::Called => "called",
        What::Ended => "ended",
        What::Denied => "DENIED",
        What::TokenFound => "token found",
        What::TokenAdded => "token added",
        What::TokenRotated => "token rotated",
        What::TokenRevoked => "token revoked",
    };
    let mut words = vec![line.at.strftime("%Y-%m-%d %H:%M:%S").to_string(), what.to_owned()];
    let fields = [
        ("owner", &line.owner),
        ("client", &line.client),
        ("door", &line.door),
        ("token", &line.token),
        ("peer", &line.peer),
        ("", &line.action),
        ("in", &line.target),
        ("outcome", &line.outcome),
        ("because", &line.reason),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            words.push(if name.is_empty() { shown(value) } else { format!("{name} {}", shown(value)) });
        }
    }
    for (name, value) in &line.details {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        words.push(format!("{} {}", shown(name), one_line(&value, SHOWN_CODE_CHARS)));
    }
    if let (Some(code), Some(hash)) = (&line.code, &line.code_sha256) {
        words.push(format!("code {} {}", &hash[..hash.len().min(12)], one_line(code, SHOWN_CODE_CHARS)));
    }
    if let Some(dropped) = line.dropped {
        words.push(format!("({dropped} lines before this one were lost)"));
    }
    words.join("  ")
}
