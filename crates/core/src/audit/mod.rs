//! The audit record: who executed what where, through which door, and what was denied. One JSON object a line, in order, each with the
//! hash of the line before, so that a line that was changed or taken out shows.
//!
//! The doors record; a thread of its own hashes, masks and writes (`file`), so that nobody waits for a disk. Its queue has a bound: what
//! does not fit is counted, and the next line says how much. `pylair audit` reads the files; nothing here is served over HTTP.

pub mod deed;
pub mod file;

use std::{
    collections::VecDeque,
    io,
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    caller::{Caller, Door},
    rights::Denied,
    settings::AuditSettings,
};
use file::{File, Head};
use pylair_text::{
    hash::{hex, sha256},
    mask::{self, Reading},
    plain::one_line,
};

const MAX_QUEUED: usize = 4096;
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Of code, in the line itself; its hash is of the whole.
const MAX_EXCERPT_CHARS: usize = 400;
const MAX_TEXT_CHARS: usize = 300;

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    DaemonStarted,
    DaemonStopped,
    /// Something was asked for and done; with code, something begins to run.
    Called,
    /// How what had begun has ended.
    Ended,
    Denied,
    /// One that was there when the daemon started to look.
    TokenFound,
    TokenAdded,
    TokenRotated,
    TokenRevoked,
}

/// One line, but for its place in the chain. What is not known or does not apply is left out.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Line {
    pub at: Timestamp,
    pub what: What,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub door: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The tool or the route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Joins what began with how it ended, within one life of the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<u64>,
    /// What was asked for besides: paths, names, packages; see `deed`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub details: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_sha256: Option<String>,
    /// The beginning, masked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Lines that were lost before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
}

impl Line {
    pub fn new(what: What) -> Self {
        Self {
            at: Timestamp::now(),
            what,
            owner: None,
            client: None,
            door: None,
            token: None,
            peer: None,
            action: None,
            target: None,
            call: None,
            details: Map::new(),
            code_sha256: None,
            code: None,
            outcome: None,
            reason: None,
            dropped: None,
        }
    }

    fn of(caller: &Caller, what: What, action: &str) -> Self {
        let door = match caller.door {
            Door::Bridge => "bridge",
            Door::Cli => "cli",
            Door::Http => "http",
        };
        let credential = caller.credential.as_deref();
        Self {
            owner: Some(caller.owner.to_string()),
            client: Some(caller.client.clone()),
            door: Some(door.to_owned()),
            token: credential.map(|credential| credential.token.to_string()),
            peer: credential.map(|credential| credential.peer.clone()),
            action: Some(action.to_owned()),
            ..Self::new(what)
        }
    }

    /// Hashes the code, and cuts and masks what is not ours to repeat. On the writer's thread.
    fn finish(&mut self) {
        if let Some(code) = self.code.take() {
            self.code_sha256 = Some(hex(&sha256(code.as_bytes())));
            // Masked before it is cut: half a literal would not be known as one.
            let near = &code[..code.floor_char_boundary(16 * MAX_EXCERPT_CHARS)];
            let masked = mask::masked(near, Reading::Code);
            let masked = masked.as_deref().unwrap_or(near);
            let excerpt: String = masked.chars().take(MAX_EXCERPT_CHARS).collect();
            self.code =
                Some(if excerpt.len() < masked.len() || near.len() < code.len() { excerpt + "…" } else { excerpt });
        }
        let texts =
            [&mut self.owner, &mut self.client, &mut self.peer, &mut self.action, &mut self.target, &mut self.reason];
        for text in texts.into_iter().flatten() {
            mask::mask(text, Reading::Text);
            *text = one_line(text, MAX_TEXT_CHARS);
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Line>,
    bytes: usize,
    dropped: u64,
    /// Why nothing can be written now.
    trouble: Option<String>,
    closed: bool,
    /// Where the chain is, and how far the writer has come.
    head: Option<Head>,
    writing: bool,
}

#[derive(Debug, Default)]
struct AuditQueue {
    /// A std mutex: held for a push or a few pointer copies.
    queue: Mutex<Queue>,
    wake: Condvar,
    written: Condvar,
}

impl AuditQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing under the lock leaves it half changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The record that a daemon writes. Dropping it writes what is left.
#[derive(Debug)]
pub struct Audit {
    shared: Arc<AuditQueue>,
    calls: AtomicU64,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Audit {
    pub fn open(path: PathBuf, settings: AuditSettings) -> io::Result<Arc<Self>> {
        let file = File::open(path, settings)?;
        let shared = Arc::new(AuditQueue::default());
        shared.lock().head = Some(file.head());
        let for_writer = shared.clone();
        let writer = std::thread::Builder::new().name("audit".to_owned()).spawn(move || write(&for_writer, file))?;
        Ok(Arc::new(Self { shared, calls: AtomicU64::new(0), writer: Mutex::new(Some(writer)) }))
    }

    /// Never waits.
    pub fn record(&self, line: Line) {
        let bytes = line.code.as_ref().map_or(0, String::len);
        let mut queue = self.shared.lock();
        if queue.closed || queue.lines.len() >= MAX_QUEUED || queue.bytes + bytes > MAX_QUEUED_BYTES {
            queue.dropped += 1;
            return;
        }
        queue.bytes += bytes;
        let wake = queue.lines.is_empty() && !queue.writing;
        queue.lines.push_back(line);
        drop(queue);
        if wake {
            self.shared.wake.notify_one();
        }
    }

    /// A call that is to be recorded when it begins to run code, or else when it ends.
    pub fn call(self: &Arc<Self>, caller: &Caller, action: &str) -> Pending {
        let line = Line::of(caller, What::Called, action);
        Pending { audit: self.clone(), line, call: None, came_of: None, is_over: false }
    }

    pub fn denied(&self, caller: &Caller, action: &str, target: Option<&str>, reason: &str) {
        self.record(Line {
            target: target.map(str::to_owned),
            reason: Some(reason.to_string()),
            ..Line::of(caller, What::Denied, action)
        });
    }

    /// Where the chain is, when everything recorded before has been written.
    pub fn head(&self) -> Option<Head> {
        let queue = self.shared.lock();
        let waited =
            self.shared.written.wait_while(queue, |queue| !queue.closed && (queue.writing || !queue.lines.is_empty()));
        waited.unwrap_or_else(PoisonError::into_inner).head.clone()
    }

    /// What is wrong with the record, if it cannot be written now.
    pub fn trouble(&self) -> Option<String> {
        let queue = self.shared.lock();
        let trouble = queue.trouble.as_ref()?;
        Some(format!("it cannot be written: {trouble}; {} lines were lost so far", queue.dropped))
    }

    /// Writes what is left. Blocks; later lines are lost.
    pub fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.wake.notify_one();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            // A writer that panicked has said so.
            let _panicked = writer.join();
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.close();
    }
}

/// A call on its way. Dropped without having ended, it was given up by whoever asked.
#[derive(Debug)]
pub struct Pending {
    audit: Arc<Audit>,
    line: Line,
    /// Set once something has begun to run.
    call: Option<u64>,
    came_of: Option<String>,
    is_over: bool,
}

impl Pending {
    /// How code that ran has ended, or that it still runs.
    pub fn came_of(&mut self, outcome: &str) {
        self.came_of = Some(outcome.to_owned());
    }

    pub fn target(&mut self, target: Option<&str>) {
        self.line.target = target.map(str::to_owned);
    }

    /// What was asked for, of the arguments of this call.
    pub fn details(&mut self, arguments: &Map<String, Value>) {
        let action = self.line.action.as_deref().unwrap_or_default();
        self.line.details = deed::details(action, arguments);
    }

    /// Something that was found out meanwhile.
    pub fn detail(&mut self, name: &str, value: Value) {
        self.line.details.insert(name.to_owned(), value);
    }

    /// Code is about to run: handed to the writer at once, since nobody knows whether we live to see its end.
    pub fn begin(&mut self, target: &str, code: Option<&str>) {
        let call = self.audit.calls.fetch_add(1, Ordering::Relaxed) + 1;
        self.line.target = Some(target.to_owned());
        self.audit.record(Line {
            at: Timestamp::now(),
            call: Some(call),
            code: code.map(str::to_owned),
            outcome: Some("started".to_owned()),
            ..self.line.clone()
        });
        // Its beginning has told them.
        self.line.details.clear();
        self.call = Some(call);
    }

    /// Ends it with what came of it: nothing wrong, or a kind of error and its message.
    pub fn conclude(self, error: Option<(&str, &str)>) {
        match error {
            None => {
                let outcome = self.came_of.clone();
                self.end(outcome.as_deref().unwrap_or("ok"), None);
            }
            Some((kind, message)) => self.end(kind, Some(message)),
        }
    }

    pub fn end(mut self, outcome: &str, reason: Option<&str>) {
        self.finish(outcome, reason);
    }

    fn finish(&mut self, outcome: &str, reason: Option<&str>) {
        let mut line = std::mem::replace(&mut self.line, Line::new(What::Ended));
        self.is_over = true;
        line.at = Timestamp::now();
        line.what = match self.call {
            _ if outcome == Denied::KIND => What::Denied,
            Some(_) => What::Ended,
            None => What::Called,
        };
        line.call = self.call;
        line.outcome = Some(outcome.to_owned());
        line.reason = reason.map(str::to_owned);
        self.audit.record(line);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_over {
            self.finish("given_up", None);
        }
    }
}

/// The writer's thread.
fn write(shared: &AuditQueue, mut file: File) {
    let mut trouble: Option<String> = None;
    loop {
        let (lines, dropped, closed) = {
            let queue = shared.wake.wait_while(shared.lock(), |queue| queue.lines.is_empty() && !queue.closed);
            let mut queue = queue.unwrap_or_else(PoisonError::into_inner);
            queue.bytes = 0;
            queue.writing = true;
            let dropped = if queue.lines.is_empty() { 0 } else { std::mem::take(&mut queue.dropped) };
            (std::mem::take(&mut queue.lines), dropped, queue.closed)
        };
        let mut dropped = Some(dropped).filter(|dropped| *dropped > 0);
        let is_last = closed && lines.is_empty();
        for mut line in lines {
            line.dropped = dropped.take();
            line.finish();
            match file.append(&line) {
                Ok(()) => trouble = None,
                Err(error) => {
                    if trouble.is_none() {
                        tracing::error!(%error, "the audit record cannot be written");
                    }
                    trouble = Some(error.to_string());
                    dropped = Some(1 + line.dropped.unwrap_or(0));
                }
            }
        }
        let mut queue = shared.lock();
        queue.dropped += dropped.unwrap_or(0);
        queue.trouble.clone_from(&trouble);
        queue.head = Some(file.head());
        queue.writing = false;
        drop(queue);
        shared.written.notify_all();
        if is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
