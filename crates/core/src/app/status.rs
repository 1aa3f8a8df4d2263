//! Apps as `list_targets`, `get_status` and `pylair apps` show them. One that does not answer at once is busy or stopped, and shown as that.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{App, Apps, Doing, doing};
use crate::caller::Caller;
use pylair_probe::wire::Op;
use pylair_text::plain::one_line;

/// How long a list waits for each of its apps.
const STATUS_TIMEOUT: Duration = Duration::from_millis(300);
const MAX_ARGV: usize = 32;
const MAX_WORD_CHARS: usize = 200;
/// As many as a probe of ours says.
const MAX_REGISTERED: usize = 1000;
const MAX_RUNNING: usize = 64;

/// What an app is doing, as far as it can be told from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// No call is running.
    Idle,
    /// A call is running, or the interpreter had no time to answer.
    Busy,
    /// The process is stopped, by a debugger or a signal.
    NotAnswering,
    /// The process is there, and its probe is not.
    NotServed,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::NotAnswering => "not answering (stopped in a debugger?)",
            Self::NotServed => "not served",
        }
    }
}

/// A call that is running in an app, whoever asked for it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct RunningCall {
    pub call: u64,
    pub op: String,
    pub seconds: f64,
    pub client: Option<String>,
    /// False while it waits for the app's main thread or event loop.
    #[serde(default = "yes")]
    pub begun: bool,
    /// If this daemon asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

/// A probe that does not say has begun with all that it runs.
fn yes() -> bool {
    true
}

/// What a probe says of itself.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Said {
    clients: u64,
    commands: u64,
    last_command_at: Option<f64>,
    pub(super) running: Vec<RunningCall>,
    registered: Vec<String>,
}

/// An app as it is shown.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Status {
    pub kind: String,
    pub id: String,
    pub pid: i32,
    /// What to pass as `target`.
    pub target: String,
    pub state: State,
    pub readonly: bool,
    pub python: String,
    /// How the probe came in: start, wrap, attach or fork.
    pub how: String,
    /// The app it was started or forked by.
    pub parent: Option<String>,
    pub started_at: String,
    pub cwd: String,
    pub argv: Vec<String>,
    /// Where it listens besides, if a port was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<String>,
    /// Names that the app registered; none when it does not answer.
    pub registered: Vec<String>,
    pub running: Vec<RunningCall>,
    pub clients: Option<u64>,
    pub commands: Option<u64>,
    pub last_command_at: Option<String>,
    /// Calls that this daemon has made.
    pub calls: u64,
}

impl Status {
    /// In one line, for a model or a person.
    pub fn line(&self) -> String {
        let mut line = format!("{}: {}", self.target, self.state.as_str());
        if self.readonly {
            line.push_str(", read-only");
        }
        if !self.python.is_empty() {
            line.push_str(", Python ");
            line.push_str(&self.python);
        }
        if let Some(parent) = &self.parent {
            line.push_str(", below ");
            line.push_str(parent);
        }
        line.push_str(", in ");
        line.push_str(&self.cwd);
        if !self.registered.is_empty() {
            line.push_str(", registered: ");
            line.push_str(&self.registered.join(" "));
        }
        line
    }
}

impl Apps {
    /// All apps as they are now, asked at the same time.
    pub async fn statuses(self: &std::sync::Arc<Self>, caller: &Caller) -> Vec<Status> {
        let apps = self.list(caller).await;
        futures::future::join_all(apps.iter().map(App::status)).await
    }
}

impl App {
    pub async fn status(&self) -> Status {
        let asked = self.ask_json::<Said>(None, Op::Status, &[], STATUS_TIMEOUT);
        let said = tokio::time::timeout(STATUS_TIMEOUT, asked).await;
        let (state, said) = match said {
            Ok(Ok(said)) if said.running.is_empty() => (State::Idle, Some(said)),
            Ok(Ok(said)) => (State::Busy, Some(said)),
            Ok(Err(super::Error::NotServed { .. })) => (State::NotServed, None),
            _ if doing(self.instance.process) == Doing::Stopped => (State::NotAnswering, None),
            _ => (State::Busy, None),
        };
        let (clients, commands) = (said.as_ref().map(|said| said.clients), said.as_ref().map(|said| said.commands));
        let mut said = said.unwrap_or_default();
        said.running.truncate(MAX_RUNNING);
        self.name_own(&mut said.running);
        let (entry, word) = (&self.entry, |text: &String| one_line(text, MAX_WORD_CHARS));
        Status {
            kind: if entry.is_frozen() { "failure" } else { "app" }.to_owned(),
            id: word(&entry.app_id),
            pid: entry.pid,
            target: self.name(),
            state,
            readonly: entry.readonly,
            python: word(&entry.python),
            how: word(&entry.how),
            parent: entry.parent.as_ref().map(word),
            started_at: time(entry.started_at).unwrap_or_default(),
            cwd: word(&entry.cwd),
            argv: entry.argv.iter().take(MAX_ARGV).map(word).collect(),
            tcp: entry.tcp.as_ref().map(word),
            registered: said.registered.iter().take(MAX_REGISTERED).map(word).collect(),
            running: said.running,
            clients,
            commands,
            calls: self.instance.live().calls,
            last_command_at: said.last_command_at.filter(|at| *at > 0.0).and_then(time),
        }
    }
}

impl App {
    /// Calls that this daemon asked for have the numbers it gave them.
    fn name_own(&self, calls: &mut [RunningCall]) {
        let live = self.instance.live();
        for call in calls {
            call.op = one_line(&call.op, MAX_WORD_CHARS);
            call.client = call.client.as_ref().map(|client| one_line(client, MAX_WORD_CHARS));
            if let Some(running) = live.running.iter().find(|running| running.request == call.call) {
                call.call = running.job.cell;
                call.job = Some(running.job.id.clone());
            }
        }
    }
}

/// A time as Python tells it.
pub(crate) fn time(seconds: f64) -> Option<String> {
    let duration = jiff::SignedDuration::try_from_secs_f64(seconds).ok()?;
    jiff::Timestamp::from_duration(duration).ok().map(|time| time.to_string())
}
