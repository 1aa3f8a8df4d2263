//! Tools on apps: what they logged, what they look like.

use std::{fmt::Write, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::tz::TimeZone;
use rmcp::model::{CallToolResult, ContentBlock};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ToolError, parse, session::duration};
use crate::{render, server::Call};
use pylair_core::{caller::Scope, daemon::targets, session as core};
use pylair_probe::wire::{self, Op};

/// The longest time a reader of logs may wait for new ones.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// What an answer may take besides.
const ANSWER_GRACE: Duration = Duration::from_secs(10);
/// A picture is drawn by the app, on its own main thread if it has an invoker.
const SCREENSHOT_TIMEOUT: Duration = Duration::from_secs(40);
/// A longer picture is kept on disk and read as a resource.
const MAX_PICTURE_BYTES: usize = 5 << 20;
const MAX_MESSAGE_CHARS: usize = 2000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogsArgs {
    /// An app, as app:ID
    target: Option<String>,
    /// Maximum number of records (default 200)
    limit: Option<u64>,
    /// Records after this one: `next_after_id` of the last answer
    after_id: Option<u64>,
    /// Records before this one
    before_id: Option<u64>,
    /// This level and above, such as WARNING
    level: Option<String>,
    /// This logger and those below it
    logger: Option<String>,
    /// Wait so long for new records, at most 30
    wait_s: Option<f64>,
}

/// A page of an app's log.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Logs {
    entries: Vec<Record>,
    count: u64,
    first_id: Option<u64>,
    last_id: Option<u64>,
    has_older: bool,
    has_newer: bool,
    next_before_id: Option<u64>,
    next_after_id: Option<u64>,
    notes: Vec<String>,
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct Record {
    id: u64,
    /// Seconds since 1970.
    ts: f64,
    level: String,
    logger: String,
    message: String,
}

pub async fn read_logs(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: LogsArgs = parse(&call)?;
    let wait = duration("wait_s", args.wait_s)?.unwrap_or_default().min(MAX_WAIT);
    let instead = "a session keeps no log records; configure logging there with execute and read what it prints";
    let app = call.daemon.app(&call.caller, args.target.as_deref(), call.tool, instead).await?;
    call.note(app.take_notes());
    let request = wire::Logs {
        limit: args.limit,
        after_id: args.after_id,
        before_id: args.before_id,
        level: args.level,
        logger: args.logger,
        wait_s: (!wait.is_zero()).then_some(wait.as_secs_f64()),
    };
    let asked = app.ask_json::<Logs>(Some(&call.caller), Op::Logs(request), &[], wait + ANSWER_GRACE);
    let logs = tokio::select! {
        logs = asked => logs?,
        // The probe gives up waiting by itself.
        () = call.cancelled() => Logs::default(),
    };
    let text = logs.text();
    Ok(render::data(&logs, Some(text)))
}

impl Logs {
    fn text(&self) -> String {
        let zone = TimeZone::system();
        let mut text = String::new();
        if self.has_older {
            let before = self.next_before_id.or(self.first_id).unwrap_or_default();
            let _infallible = writeln!(text, "[older: before_id={before}]");
        }
        for record in &self.entries {
            record.write(&mut text, &zone);
        }
        if self.entries.is_empty() {
            text.push_str("[no records]\n");
        }
        if let Some(after) = self.next_after_id.or(self.last_id) {
            let label = if self.has_newer { "newer" } else { "those to come" };
            let _infallible = writeln!(text, "[{label}: after_id={after}]");
        }
        for note in &self.notes {
            let _infallible = writeln!(text, "Note: {note}.");
        }
        text.truncate(text.trim_end().len());
        text
    }
}

impl Record {
    /// Local time, level, logger and message; further lines of a message are set in.
    fn write(&self, text: &mut String, zone: &TimeZone) {
        let time = jiff::SignedDuration::try_from_secs_f64(self.ts)
            .ok()
            .and_then(|time| jiff::Timestamp::from_duration(time).ok())
            .map(|time| time.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M:%S%.3f").to_string());
        let (message, _) = core::cut_middle(&self.message, MAX_MESSAGE_CHARS);
        let message = message.replace('\n', "\n    ");
        let time = time.unwrap_or_else(|| "?".to_owned());
        let _infallible = writeln!(text, "{} {time} {} {}: {message}", self.id, self.level, self.logger);
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScreenshotArgs {
    /// An app, as app:ID
    target: Option<String>,
    /// Code to render alone instead
    code: Option<String>,
}

pub async fn screenshot(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: ScreenshotArgs = parse(&call)?;
    let code = args.code.as_deref().filter(|code| !code.trim().is_empty());
    if code.is_some() && !call.caller.may(Scope::Run) {
        return Err(core::Error::NotAllowed("run code").into());
    }
    let instead = "in a session, show the picture with execute: a figure or a PIL image as the last value";
    let app = call.daemon.app(&call.caller, args.target.as_deref(), call.tool, instead).await?;
    call.note(app.take_notes());
    if let Some(code) = code {
        call.begin(&targets::Target::App(app.clone()), Some(code));
    }
    let limit = call.caller.settings.timeout.unwrap_or(SCREENSHOT_TIMEOUT).min(SCREENSHOT_TIMEOUT);
    let (mime, picture, notes) = app.screenshot(&call.caller, code, limit).await?;
    let facts = format!("[{}: {mime}, {}]", app.name(), render::size_text(picture.len() as u64));
    if picture.len() > MAX_PICTURE_BYTES || !matches!(&*mime, "image/png" | "image/jpeg" | "image/webp" | "image/gif") {
        let resource = keep(&call, mime, picture).await?;
        call.note(notes);
        return Ok(CallToolResult::success(vec![ContentBlock::text(format!("{facts}\nread {resource}"))]));
    }
    call.note(notes);
    let image = ContentBlock::image(BASE64_STANDARD.encode(&picture), mime);
    Ok(CallToolResult::success(vec![image, ContentBlock::text(facts)]))
}

/// Where a picture that no model takes can be read.
async fn keep(call: &Call<'_>, mime: String, picture: Vec<u8>) -> Result<String, ToolError> {
    let (outputs, id) = (call.daemon.sessions.parts.outputs.clone(), format!("{}-picture", core::new_handle()));
    let (name, owner) = (id.clone(), call.caller.owner.clone());
    let kept = tokio::task::spawn_blocking(move || outputs.keep_part(&owner, &name, 1, &mime, &picture)).await;
    match kept {
        Ok(Ok(())) => Ok(format!("pylair://display/{id}/1")),
        Ok(Err(error)) => Err(targets::Error::App(error.into()).into()),
        Err(_) => Err(core::Error::Gone.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_lines_with_the_way_to_the_others() {
        let logs: Logs = serde_json::from_value(serde_json::json!({
            "entries": [{"id": 7, "ts": 0.25, "level": "INFO", "logger": "app.db", "message": "two\nlines"}],
            "count": 1, "first_id": 7, "last_id": 7, "has_older": true, "next_before_id": 7, "next_after_id": 7,
            "notes": ["below WARNING nothing is made"],
        }))
        .unwrap();
        let text = logs.text();
        assert!(text.starts_with("[older: before_id=7]\n7 19"), "{text}");
        assert!(text.contains(".250 INFO app.db: two\n    lines\n[those to come: after_id=7]\nNote: below"), "{text}");
        assert_eq!(Logs::default().text(), "[no records]");
    }
}
