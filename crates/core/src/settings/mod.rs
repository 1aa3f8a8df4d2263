//! Settings as plain values: what `Daemon` and `Session` are opened with, and what counts for one caller. Where they come from is
//! settled by whoever starts the program.

mod callers;
mod places;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

pub use callers::{AppliesTo, CallerSettings, Introduction, SETTINGS, Unheeded};
pub use places::{Error as PlacesError, Places};

use pylair_failures::{Database, Git, Limits};
use pylair_sandbox::{self as sandbox, paths::Protected};

/// All settings: of one caller, and of the daemon.
#[derive(Debug, Clone)]
pub struct Config {
    pub caller: CallerSettings,
    /// Where the HTTP door is, or would be.
    pub host: String,
    pub port: u16,
    /// Where interpreters are that no project brought along.
    pub interpreters: InterpreterPlaces,
    /// Homes that no session is given.
    pub homes: Vec<PathBuf>,
    pub user: User,
    pub idle_exit: Option<Duration>,
    pub session_ttl: Duration,
    pub max_sessions: usize,
    /// Of one owner, unless it is the user the daemon runs as.
    pub max_sessions_per_owner: usize,
    pub audit: AuditSettings,
    pub failures: FailuresSettings,
    pub sandbox: sandbox::Settings,
    pub settings: Vec<Setting>,
}

impl Config {
    /// What no session may be given.
    pub fn protected(&self, places: &Places) -> Protected {
        places.protected((&self.host, self.port), &self.homes, &self.interpreters)
    }
}

/// The user we run as, by the user database.
#[derive(Debug, Clone)]
pub struct User {
    pub home: String,
    pub name: String,
}

/// Where a setting was found, first what counts most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Flag,
    Environment,
    ProjectFile,
    OwnFile,
    Default,
}

/// One resolved setting, for `pylair doctor`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setting {
    pub key: String,
    pub value: String,
    pub origin: String,
    pub source: Source,
}

/// How often a frozen copy of a worker is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checkpoints {
    Off,
    /// After cells, in the idle gap, or before the next cell where there is none; the newest few are kept.
    Auto,
    /// The same, so many are kept.
    Newest(usize),
}

impl Checkpoints {
    /// Each costs a process and, while nothing is written, a megabyte.
    const FEW: usize = 3;
    const MOST: usize = 20;

    /// How many a session keeps.
    pub fn ring(self) -> usize {
        match self {
            Self::Off => 0,
            Self::Auto => Self::FEW,
            Self::Newest(count) => count,
        }
    }
}

impl std::fmt::Display for Checkpoints {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off => formatter.write_str("off"),
            Self::Auto => formatter.write_str("auto"),
            Self::Newest(count) => count.fmt(formatter),
        }
    }
}

impl std::str::FromStr for Checkpoints {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" | "0" => Ok(Self::Off),
            _ => text.parse().ok().filter(|count| *count <= Self::MOST).map(Self::Newest).ok_or(()),
        }
    }
}

/// How much of the audit record is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditSettings {
    pub max_bytes: u64,
    /// Full files besides the one that is written.
    pub files: u32,
}

impl Default for AuditSettings {
    fn default() -> Self {
        Self { max_bytes: 8 << 20, files: 10 }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailuresSettings {
    /// None: SQLite among our own data.
    pub database: Option<Database>,
    pub limits: Limits,
    pub frozen: FrozenLimits,
    pub git: Git,
}

/// How many copies of failing tests are kept alive: the oldest go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrozenLimits {
    /// 0: none are made.
    pub copies: u32,
    pub megabytes: u64,
    pub age: Duration,
}

impl Default for FrozenLimits {
    fn default() -> Self {
        Self { copies: 10, megabytes: 2048, age: Duration::from_hours(1) }
    }
}

impl FailuresSettings {
    pub fn database(&self, places: &Places) -> Database {
        self.database.clone().unwrap_or_else(|| Database::Sqlite(places.failures()))
    }
}

/// Places of interpreters.
#[derive(Debug, Clone, Default)]
pub struct InterpreterPlaces {
    pub roots: Vec<PathBuf>,
    /// Programs that look for the interpreter that is meant.
    pub shims: Vec<PathBuf>,
    /// The same of every version manager, each with its name. Nothing there is trusted for that.
    pub named_shims: Vec<(&'static str, PathBuf)>,
}

impl InterpreterPlaces {
    /// The version manager whose shim this program is, if it is one. Looks at the disk.
    pub fn shim_of(&self, program: &Path) -> Option<&'static str> {
        let directory = program.parent()?.canonicalize().ok()?;
        let is_there = |(_, shims): &&(&'static str, PathBuf)| shims.canonicalize().is_ok_and(|real| real == directory);
        self.named_shims.iter().find(is_there).map(|(manager, _)| *manager)
    }
}

/// Seconds as people write them; `None` for what is no duration.
pub fn seconds(value: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(value).ok()
}
