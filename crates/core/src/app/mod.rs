//! Apps: processes of somebody else's that pylair visits.
//!
//! `Apps` is the collection: it reads the registry and remembers what it has seen. `App` is a handle to one process. Calls that run code
//! become jobs like a session's cells (`calls`); a link is opened when it is needed and closed when it is not.

mod calls;
mod error;
mod link;
mod status;

use std::{
    collections::{HashMap, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde::de::DeserializeOwned;

pub use error::Error;
pub use pylair_attach::registry::{self, By, Entry, FrameAt};
pub(crate) use status::time;
pub use status::{RunningCall, State, Status};

use crate::{
    caller::{Caller, DefaultSession, Door, Scope},
    session::{self, Parts},
    target::Reference,
};
use link::{End, Link, Whose};
use pylair_os::foreign::{Doing, doing};
use pylair_os::{event_loop, process::Process};
use pylair_probe::wire::{Op, Reply};
use pylair_workers::link::Refusal;

/// How long an app may take to look something up, or to greet us.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// One whose process is stopped is not waited for as long.
const STOPPED_TIMEOUT: Duration = Duration::from_secs(1);
/// How much longer than its time a request is waited for: the probe itself answers then that it has not begun.
const LATE_GRACE: Duration = Duration::from_millis(500);
/// Processes that are remembered after they have gone.
const REMEMBERED: usize = 256;
/// Reasons that are remembered.
const REASONS: usize = 1000;

/// An app as it is written back to callers.
pub fn name_of(entry: &Entry) -> String {
    Reference::App { id: entry.app_id.clone(), pid: Some(entry.pid) }.to_string()
}

/// All apps of this user.
#[derive(Debug)]
pub struct Apps {
    directory: PathBuf,
    parts: Arc<Parts>,
    known: Mutex<Instances>,
}

/// What is remembered between calls.
#[derive(Debug, Default)]
struct Instances {
    by_process: HashMap<Process, Arc<Instance>>,
    /// The process that last ran code under an id.
    last: HashMap<String, Arc<Instance>>,
    /// Why copies of failures were ended, by occurrence, the newest last.
    ended: VecDeque<(String, String)>,
}

/// A handle to one process.
#[derive(Debug, Clone)]
pub struct App {
    pub entry: Arc<Entry>,
    apps: Arc<Apps>,
    instance: Arc<Instance>,
    called: Option<Called>,
}

/// What a process is called that is the copy of a failure, and which of its frames is meant.
#[derive(Debug, Clone)]
pub struct Called {
    pub name: String,
    pub frame: Option<usize>,
}

/// One process, for as long as somebody remembers it.
#[derive(Debug)]
struct Instance {
    process: Process,
    /// What it runs, and where.
    program: Program,
    /// When this daemon first saw it.
    seen: Instant,
    /// Opaque and unique: the beginning of its job ids.
    handle: String,
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
    live: Mutex<Live>,
}

#[derive(Debug, Default)]
struct Live {
    calls: u64,
    running: Vec<calls::Running>,
    last: Option<calls::Last>,
    gone: Option<Gone>,
    /// What the next answer must say.
    notes: Vec<String>,
}

/// The end of a process that we saw.
#[derive(Debug)]
struct Gone {
    at: Instant,
    how: Option<String>,
}

impl Instance {
    fn new(entry: &Entry) -> Self {
        let (handle, link) = (session::new_handle(), tokio::sync::Mutex::default());
        let program = Program::of(entry);
        Self { process: entry.process(), program, seen: Instant::now(), handle, link, live: Mutex::default() }
    }

    /// Whether this process was there before another one ended.
    fn was_there_before_the_end_of(&self, other: &Self) -> bool {
        self.process.started < other.process.started
            || other.live().gone.as_ref().is_some_and(|gone| self.seen < gone.at)
    }

    fn is_gone(&self) -> bool {
        doing(self.process) == Doing::Ended
    }

    fn live(&self) -> std::sync::MutexGuard<'_, Live> {
        self.live.lock().expect("no panic while locked")
    }

    /// What became of a process that is gone, with the call it came after.
    fn epitaph(&self) -> String {
        let live = self.live();
        let pid = self.process.pid;
        let how = live.gone.as_ref().and_then(|gone| gone.how.clone()).map(|how| format!(" ({how})"));
        let how = how.unwrap_or_default();
        match (&live.gone, &live.last) {
            (Some(gone), Some(last)) => {
                let after = gone.at.saturating_duration_since(last.ended).as_secs_f64();
                format!("the process {pid} ended {after:.1} s after call {}{how}", last.call)
            }
            (None, Some(last)) => format!("the process {pid} ended some time after call {}", last.call),
            _ => format!("the process {pid} has ended{how}"),
        }
    }
}

/// What a process runs: two that have the same are starts of one program, as far as anybody can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    command: Vec<u8>,
    cwd: String,
}

impl Program {
    fn of(entry: &Entry) -> Self {
        let command = std::fs::read(format!("/proc/{}/cmdline", entry.pid)).unwrap_or_default();
        Self { command, cwd: entry.cwd.clone() }
    }

    fn is(&self, other: &Self) -> bool {
        !self.command.is_empty() && self == other
    }
}

impl Apps {
    pub fn new(directory: PathBuf, parts: Arc<Parts>) -> Arc<Self> {
        Arc::new(Self { directory, parts, known: Mutex::default() })
    }

    /// Whether a caller may see apps at all: they are processes of the user's own, outside of any sandbox.
    pub fn visible_to(caller: &Caller) -> bool {
        caller.floor.is_none() && (caller.door != Door::Http || caller.may(Scope::Admin))
    }

    /// The entries of all whose process is there.
    pub async fn entries(&self) -> Vec<Entry> {
        let directory = self.directory.clone();
        tokio::task::spawn_blocking(move || registry::read(&directory)).await.unwrap_or_default()
    }

    /// Ends a process that is ours to end, takes its entry out, and remembers why.
    pub async fn end(&self, entry: &Entry, reason: &str) -> std::io::Result<()> {
        if let Some(occurrence) = entry.occurrence.clone() {
            // Before it: whoever finds it gone asks why.
            let mut known = self.known.lock().expect("no panic while locked");
            if known.ended.len() >= REASONS {
                known.ended.pop_front();
            }
            known.ended.push_back((occurrence, reason.to_owned()));
        }
        let (directory, entry) = (self.directory.clone(), entry.clone());
        let ended = tokio::task::spawn_blocking(move || registry::end(&directory, &entry)).await;
        ended.unwrap_or_else(|error| Err(std::io::Error::other(error)))
    }

    /// Why the copy of a failure was ended, by the reporter's id of what happened.
    pub fn why_ended(&self, occurrence: &str) -> Option<String> {
        let known = self.known.lock().expect("no panic while locked");
        known.ended.iter().rev().find(|(ended, _)| ended == occurrence).map(|(_, reason)| reason.clone())
    }

    /// All apps whose process is there.
    pub async fn list(self: &Arc<Self>, caller: &Caller) -> Vec<App> {
        if !Self::visible_to(caller) {
            return Vec::new();
        }
        self.all().await
    }

    /// The copy of one occurrence of a failure, for the daemon itself.
    pub(crate) async fn of_occurrence(self: &Arc<Self>, occurrence: &str) -> Option<App> {
        self.all().await.into_iter().find(|app| app.entry.occurrence.as_deref() == Some(occurrence))
    }

    async fn all(self: &Arc<Self>) -> Vec<App> {
        let entries = self.entries().await;
        let mut known = self.known.lock().expect("no panic while locked");
        if known.by_process.len() > entries.len() + REMEMBERED {
            known.by_process.retain(|process, instance| {
                entries.iter().any(|entry| entry.process() == *process) || !instance.live().running.is_empty()
            });
        }
        let instance = |entry: Entry| App {
            instance: known
                .by_process
                .entry(entry.process())
                .or_insert_with(|| Arc::new(Instance::new(&entry)))
                .clone(),
            entry: Arc::new(entry),
            apps: self.clone(),
            called: None,
        };
        entries.into_iter().map(instance).collect()
    }

    /// The app of this id; `pid` says which if there are several.
    pub async fn find(self: &Arc<Self>, caller: &Caller, id: &str, pid: Option<i32>) -> Result<App, Error> {
        let apps = self.list(caller).await;
        let mut named: Vec<_> = apps.iter().filter(|app| app.entry.app_id == id).cloned().collect();
        if let Some(pid) = pid {
            named.retain(|app| app.entry.pid == pid);
        }
        match named.as_slice() {
            [only] => {
                self.notice_successor(only);
                Ok(only.clone())
            }
            [] => Err(Error::Unknown {
                id: pid.map_or_else(|| id.to_owned(), |pid| format!("{id}@{pid}")),
                ended: self
                    .last_of(id)
                    .filter(|last| last.is_gone() && Self::visible_to(caller))
                    .map(|last| last.epitaph()),
                running: apps.iter().map(App::name).collect(),
            }),
            several => Err(Error::Ambiguous { id: id.to_owned(), instances: several.iter().map(App::name).collect() }),
        }
    }

    /// The app that this process is.
    pub async fn find_process(self: &Arc<Self>, caller: &Caller, pid: i32) -> Result<App, Error> {
        let apps = self.list(caller).await;
        let found = apps.iter().find(|app| app.entry.pid == pid).cloned();
        let found = found.ok_or_else(|| Error::NotAnApp { pid, running: apps.iter().map(App::name).collect() })?;
        self.notice_successor(&found);
        Ok(found)
    }

    fn last_of(&self, id: &str) -> Option<Arc<Instance>> {
        self.known.lock().expect("no panic while locked").last.get(id).cloned()
    }

    /// The process that code was run in has ended, and another one has its id: whoever asks next is told, and whether it is the same program.
    fn notice_successor(&self, app: &App) {
        let id = &app.entry.app_id;
        let Some(last) = self.last_of(id).filter(|last| last.process != app.instance.process && last.is_gone()) else {
            return;
        };
        let (pid, cwd) = (app.entry.pid, pylair_text::plain::shown(&app.entry.cwd));
        let now = if app.instance.was_there_before_the_end_of(&last) {
            format!("process {pid}, which has the id `{id}` too, was there before")
        } else if app.instance.program.is(&last.program) {
            format!("`{id}` is now process {pid}, the same command in the same directory")
        } else {
            let argv: Vec<_> = app.entry.argv.iter().map(|word| pylair_text::plain::one_line(word, 60)).collect();
            format!("another program has the id `{id}` now: process {pid} ({} in {cwd})", argv.join(" "))
        };
        let note = format!("{}; {now}", last.epitaph());
        app.instance.live().notes.push(note);
        self.known.lock().expect("no panic while locked").last.remove(id);
    }

    fn remember_last(&self, app: &App) {
        let mut known = self.known.lock().expect("no panic while locked");
        if known.last.len() > REMEMBERED {
            known.last.retain(|_, instance| !instance.is_gone());
        }
        known.last.insert(app.entry.app_id.clone(), app.instance.clone());
    }

    /// The app whose job this is, also when its process is gone.
    pub fn of_job(self: &Arc<Self>, job: &session::Job) -> Option<App> {
        let known = self.known.lock().expect("no panic while locked");
        let is_its = |running: &calls::Running| running.job.id == job.id;
        let instance = known.by_process.values().find(|instance| instance.live().running.iter().any(is_its))?.clone();
        let entry = instance.live().running.iter().find(|running| is_its(running))?.entry.clone();
        let called = entry.is_frozen().then(|| Called { name: job.session.to_string(), frame: None });
        Some(App { entry, apps: self.clone(), instance, called })
    }
}

/// Whose scratch namespace a caller uses: the one that goes with its default session.
fn scratch_of(caller: &Caller) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let default = match &caller.default_session {
        DefaultSession::ProcessTree(process) => format!("tree-{}-{}", process.pid, process.started),
        // An app has no use for the id itself, which is as good as a key to the session.
        DefaultSession::McpSession(id) => {
            let mut hasher = DefaultHasher::new();
            id.hash(&mut hasher);
            format!("mcp-{:016x}", hasher.finish())
        }
        DefaultSession::Fresh => "http".to_owned(),
        DefaultSession::Main => "main".to_owned(),
    };
    format!("{}/{default}", caller.owner)
}

impl App {
    /// As it is written back to callers: `app:web@4711`.
    pub fn name(&self) -> String {
        self.called.as_ref().map_or_else(|| name_of(&self.entry), |called| called.name.clone())
    }

    /// The same as a frozen failure, by the name that it has for callers.
    #[must_use]
    pub fn called(self, name: String, frame: Option<usize>) -> Self {
        Self { called: Some(Called { name, frame }), ..self }
    }

    /// Calls that this daemon has made.
    pub fn calls(&self) -> u64 {
        self.instance.live().calls
    }

    fn whose<'a>(&self, client: Option<&'a str>, limit: Option<Duration>) -> Whose<'a> {
        let begin_by = limit.map(|limit| pylair_os::clock::monotonic_s() + limit.as_secs_f64());
        Whose { client, frame: self.called.as_ref().and_then(|called| called.frame), begin_by }
    }

    /// The next answer about it says this too.
    pub fn note(&self, note: String) {
        let mut live = self.instance.live();
        if !live.notes.contains(&note) {
            live.notes.push(note);
        }
    }

    /// What an answer about this app must say besides its own, once.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.instance.live().notes)
    }

    /// What one who waits for it should know.
    pub fn why_silent(&self) -> Option<String> {
        (doing(self.instance.process) == Doing::Stopped).then(|| {
            "the process is stopped, by a debugger or a signal, and goes on with the call when it is let go".to_owned()
        })
    }

    /// A connection: the open one, or a new one.
    async fn link(&self) -> Result<Arc<Link>, Error> {
        let mut slot = self.instance.link.lock().await;
        if let Some(link) = slot.as_ref().filter(|link| !link.is_over()) {
            if link.is_full() {
                return Err(Error::Full { target: self.name() });
            }
            return Ok(link.clone());
        }
        let mut opened = self.patiently(ANSWER_TIMEOUT, Link::open(&self.entry, self.name())).await?;
        if let (Err(Error::NotServed { .. }), Some(last)) = (&opened, slot.as_ref()) {
            // It hung up a moment ago, and its process may be about to end.
            let _whatever_it_was = tokio::time::timeout(ANSWER_TIMEOUT, last.ended()).await;
            opened = self.patiently(ANSWER_TIMEOUT, Link::open(&self.entry, self.name())).await?;
        }
        let link = opened?;
        *slot = Some(link.clone());
        pylair_os::event_loop::spawn(watch(self.instance.clone(), link.clone()));
        Ok(link)
    }

    /// Waits for an app, but not for long when its process is stopped.
    async fn patiently<T>(&self, limit: Duration, answer: impl Future<Output = T>) -> Result<T, Error> {
        tokio::pin!(answer);
        let first = STOPPED_TIMEOUT.min(limit);
        if let Ok(answer) = tokio::time::timeout(first, &mut answer).await {
            return Ok(answer);
        }
        let silent = |stopped: bool| match pylair_os::process_access::open_files(self.entry.pid) {
            // A caller more is a descriptor more.
            Some((open, limit)) if open >= limit && !stopped => {
                Error::NoDescriptors { target: self.name(), pid: self.entry.pid, limit }
            }
            _ => Error::NotAnswering { target: self.name(), stopped },
        };
        if doing(self.instance.process) == Doing::Stopped {
            return Err(silent(true));
        }
        let rest = limit.saturating_sub(first);
        let answered = tokio::time::timeout(rest, answer).await;
        answered.map_err(|_| silent(doing(self.instance.process) == Doing::Stopped))
    }

    /// Sends a request over a connection that is known to be there. One that was not sent is sent over another. What has not begun
    /// within the limit never will.
    async fn request(
        &self,
        op: Op,
        client: Option<&str>,
        blob: &[u8],
        limit: Option<Duration>,
    ) -> Result<(Arc<Link>, link::Answers), Error> {
        let link = self.link().await?;
        let whose = self.whose(client, limit);
        if let Some(answers) = self.patiently(ANSWER_TIMEOUT, link.request(op.clone(), whose, blob)).await? {
            return Ok((link, answers));
        }
        let link = self.link().await?;
        let answers = self.patiently(ANSWER_TIMEOUT, link.request(op, whose, blob)).await?;
        answers.map(|answers| (link, answers)).ok_or_else(|| Error::Lost { target: self.name(), why: why(&End::Left) })
    }

    /// Asks something that runs as no job, and waits for the answer.
    async fn ask(
        &self,
        caller: Option<&Caller>,
        op: Op,
        blob: &[u8],
        limit: Duration,
    ) -> Result<(Reply, Vec<u8>), Error> {
        let client = caller.map(scratch_of);
        let (_, mut answers) = self.request(op, client.as_deref(), blob, Some(limit)).await?;
        let answered = async {
            loop {
                match answers.next().await {
                    Ok((reply, blob)) if reply.ev == pylair_probe::wire::Event::Done => return Ok((reply, blob)),
                    // Output of code that was run to look has nowhere to go.
                    Ok(_) => {}
                    Err(end) => return Err(self.error_of(end)),
                }
            }
        };
        let (reply, blob) = self.patiently(limit + LATE_GRACE, answered).await??;
        event_loop::carry(blob.len()).await;
        match reply.refused {
            Some(message) => Err(Error::Refused(Refusal { message, kind: reply.kind, hint: reply.hint })),
            None => Ok((reply, blob)),
        }
    }

    fn error_of(&self, end: End) -> Error {
        match end {
            End::Died(how) => Error::Died { target: self.name(), how },
            end => Error::Lost { target: self.name(), why: why(&end) },
        }
    }

    /// Asks for what is answered as JSON.
    pub async fn ask_json<T: DeserializeOwned>(
        &self,
        caller: Option<&Caller>,
        op: Op,
        blob: &[u8],
        limit: Duration,
    ) -> Result<T, Error> {
        let (_, answer) = self.ask(caller, op, blob, limit).await?;
        serde_json::from_slice(&answer)
            .map_err(|error| Error::Unreadable { target: self.name(), why: error.to_string() })
    }

    /// Looks something up, which takes no time worth speaking of.
    pub async fn look<T: DeserializeOwned>(&self, caller: &Caller, op: Op, blob: &[u8]) -> Result<T, Error> {
        self.ask_json(Some(caller), op, blob, ANSWER_TIMEOUT).await
    }

    /// A picture of the app, or of what `code` makes, with what kind it is and notes.
    pub async fn screenshot(
        &self,
        caller: &Caller,
        code: Option<&str>,
        limit: Duration,
    ) -> Result<(String, Vec<u8>, Vec<String>), Error> {
        let blob = code.unwrap_or_default().as_bytes();
        let (reply, picture) = self.ask(Some(caller), Op::Screenshot, blob, limit).await?;
        Ok((reply.mime.unwrap_or_else(|| "image/png".to_owned()), picture, reply.notes))
    }

    /// Ends the process of a frozen failure. The reason is remembered.
    pub async fn end(&self, reason: &str) -> Result<(), Error> {
        self.apps.end(&self.entry, reason).await.map_err(|source| Error::Connect { target: self.name(), source })
    }

    /// Takes a probe that came in from outside out again.
    pub async fn detach(&self, caller: &Caller) -> Result<(), Error> {
        if !self.entry.is_attached() {
            return Err(Error::NotAttached { target: self.name(), how: self.entry.how.clone() });
        }
        if self.entry.is_held_read_only() && caller.door != Door::Cli {
            return Err(Error::HeldReadOnly { target: self.name(), pid: self.entry.pid });
        }
        self.ask(None, Op::Detach, &[], ANSWER_TIMEOUT).await?;
        // It has answered and now takes away what there is of it. Whoever asks next shall not find half of it.
        *self.instance.link.lock().await = None;
        let gone = async {
            while tokio::fs::try_exists(&self.entry.endpoint).await.unwrap_or_default() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let _slow = tokio::time::timeout(STOPPED_TIMEOUT, gone).await;
        registry::forget(&self.apps.directory, &self.entry).await;
        Ok(())
    }
}

/// Why a connection ended though the process goes on.
fn why(end: &End) -> String {
    match end {
        End::Garbage(why) => format!("its probe sent something that is not a frame ({why})"),
        _ => "its probe was stopped or detached".to_owned(),
    }
}

/// Notes the end of a process that a link was open to.
async fn watch(instance: Arc<Instance>, link: Arc<Link>) {
    // The slot must not keep the link from closing when nobody uses it.
    let end = link.ended().await;
    drop(link);
    if let End::Died(how) = end {
        instance.live().gone = Some(Gone { at: Instant::now(), how });
    }
}
