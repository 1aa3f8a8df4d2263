//! Profiles, rules on top of them, and how both are settled: what a caller asked for, within what the settings allow.

use std::{fmt, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{
    Settings,
    paths::{self, Protected},
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("unknown profile `{name}`: there are `open`, `workspace` and `sealed`")]
    UnknownProfile { name: String },
    #[error("`sandbox` is neither the name of a profile nor an object with rules")]
    NotAWish,
    #[error("there is no rule `{name}`")]
    UnknownRule { name: String },
    #[error("`{name}` has to be {expected}")]
    BadRule { name: String, expected: &'static str },
    #[error("a session with the profile `open` has no rules: it may do whatever its user may")]
    OpenWithRules,
    #[error("a `sealed` session has no network; `workspace` takes `allow_net`")]
    SealedNetwork,
    #[error("`{name}` is {wanted}, over the limit of {limit}")]
    OverLimit { name: &'static str, wanted: u64, limit: u64 },
    #[error("`{name}` is {wanted}, but a session needs at least {least}")]
    TooLittle { name: &'static str, wanted: u64, least: u64 },
    #[error("`{name}` is {wanted}, more than any machine has; the maximum is {most}")]
    TooMuch { name: &'static str, wanted: u64, most: u64 },
    #[error(
        "`{name}` has {count} entries of {bytes} bytes together: at most {MAX_ENTRIES}, of {MAX_ENTRIES_BYTES} bytes"
    )]
    TooMany { name: &'static str, count: usize, bytes: usize },
    #[error("`{name}` is not a limit, and only limits have a `max`")]
    NoLimit { name: &'static str },
    #[error("`{entry}` in `allow_net` is not a `host:port`")]
    BadDestination { entry: String },
    #[error("`{entry}` in `allow_net` is pylair's own door")]
    OwnDoor { entry: String },
    #[error("{name} `{wanted}` needs the right `admin`, or to be in the settings' own `{name}`")]
    NotGranted { name: &'static str, wanted: String },
    #[error("{name} `{wanted}` is not in the settings' own `{name}`, and `floor` allows nothing else")]
    NotInSettings { name: &'static str, wanted: String },
    #[error("the settings confine every session to the profile `{}` at least, and `{}` confines less", floor.name(), wanted.name())]
    BelowFloor { wanted: Profile, floor: Profile },
    #[error("`floor` is true, but `profile` is not set to `workspace` or `sealed`")]
    NoFloor,
    #[error("`{name}` in `env` is never passed on")]
    SecretVariable { name: String },
    #[error(transparent)]
    Path(#[from] paths::Error),
}

/// How much one list of rules may have: a sandbox is asked for in one message.
const MAX_ENTRIES: usize = 256;
const MAX_ENTRIES_BYTES: usize = 32 << 10;

/// What to do about a floor.
pub const FLOOR_HINT: &str =
    "ask for no more than that; `floor` in `[sandbox]` of the user's own settings decides this for every caller";

impl Error {
    /// The way out.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::UnknownProfile { .. }
            | Self::NotAWish
            | Self::UnknownRule { .. }
            | Self::BadRule { .. }
            | Self::OpenWithRules => {
                "`sandbox` is `open`, `workspace`, `sealed`, or an object: {profile, allow_read, allow_write, allow_net, env, memory_mb, \
                 cpu_s, processes, open_files, file_size_mb, tmp_mb, disk_mb, wall_s}"
            }
            Self::SealedNetwork => "open the session with the profile `workspace`",
            Self::OverLimit { .. } => "ask for less, or raise it in `[sandbox.max]` of the settings",
            Self::TooLittle { .. } => "ask for more",
            Self::TooMuch { .. } | Self::TooMany { .. } => "ask for less",
            Self::BadDestination { .. } => "write each as a name or address and a port, such as `pypi.org:443`",
            Self::OwnDoor { .. } | Self::SecretVariable { .. } | Self::NoLimit { .. } => "leave it out",
            Self::NotGranted { .. } => "use a token with more rights, or have the settings allow it",
            Self::NotInSettings { .. } | Self::BelowFloor { .. } => FLOOR_HINT,
            Self::NoFloor => "set `profile` in `[sandbox]`, or leave out `floor`",
            Self::Path(_) => "give existing files or directories, as few and as deep as will do",
        }
    }
}

/// In the order of how much they confine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// With all the rights of the daemon's user.
    Open,
    /// No files but the system's, the interpreter's and its workspace, no network but what is allowed.
    Workspace,
    /// The same without any network, with tight limits.
    Sealed,
}

impl Profile {
    const ALL: [Self; 3] = [Self::Open, Self::Workspace, Self::Sealed];

    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Workspace => "workspace",
            Self::Sealed => "sealed",
        }
    }

    pub fn is_confined(self) -> bool {
        self != Self::Open
    }

    fn limits(self) -> Limits {
        let sealed = Limits {
            memory_mb: 2048,
            processes: 128,
            open_files: 512,
            file_size_mb: 64,
            tmp_mb: 64,
            disk_mb: 256,
            cpu_s: None,
            wall_s: None,
        };
        match self {
            Self::Sealed => sealed,
            Self::Workspace | Self::Open => Limits {
                memory_mb: 4096,
                processes: 256,
                open_files: 1024,
                file_size_mb: 1024,
                tmp_mb: 256,
                disk_mb: 2048,
                ..sealed
            },
        }
    }
}

impl FromStr for Profile {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|profile| profile.name() == name);
        found.ok_or_else(|| Error::UnknownProfile { name: name.to_owned() })
    }
}

/// What somebody wants of a sandbox: the name of a profile, or rules. As it is written, and kept with a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, try_from = "serde_json::Value")]
pub enum Wish {
    Profile(String),
    Rules(Box<Rules>),
}

impl TryFrom<serde_json::Value> for Wish {
    type Error = Error;

    fn try_from(value: serde_json::Value) -> Result<Self, Error> {
        match value {
            serde_json::Value::String(name) => Ok(Self::Profile(name)),
            serde_json::Value::Object(rules) => Ok(Self::Rules(Box::new(Rules::read(rules)?))),
            _ => Err(Error::NotAWish),
        }
    }
}

impl Wish {
    pub fn from_json(value: serde_json::Value) -> Result<Self, Error> {
        value.try_into()
    }

    pub fn profile(&self) -> &str {
        match self {
            Self::Profile(name) => name,
            Self::Rules(rules) => rules.profile.as_deref().unwrap_or(Profile::Workspace.name()),
        }
    }

    pub fn into_rules(self) -> Rules {
        match self {
            Self::Profile(name) => Rules { profile: Some(name), ..Rules::default() },
            Self::Rules(rules) => *rules,
        }
    }
}

impl From<&str> for Wish {
    fn from(profile: &str) -> Self {
        Self::Profile(profile.to_owned())
    }
}

/// Rules on top of a profile. What is absent is the profile's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rules {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_read: Vec<PathBuf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_write: Vec<PathBuf>,
    /// `host:port` each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_net: Vec<String>,
    /// Names of variables of the caller's that are passed on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_size_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tmp_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_s: Option<u64>,
}

/// One limit: its name, the least that a session can live with, the most that means anything, and where it is among the rules.
pub(super) struct Limit {
    pub name: &'static str,
    least: u64,
    most: u64,
    pub of: fn(&Rules) -> Option<u64>,
}

/// A petabyte: more is no limit, and could not be counted in bytes.
const MOST_MB: u64 = 1 << 30;
/// A hundred years.
const MOST_S: u64 = 100 * 366 * 86400;

pub(super) const LIMITS: [Limit; 8] = [
    Limit { name: "memory_mb", least: 64, most: MOST_MB, of: |rules| rules.memory_mb },
    Limit { name: "cpu_s", least: 1, most: MOST_S, of: |rules| rules.cpu_s },
    // The kernel has no more pids, and lets nobody have more files.
    Limit { name: "processes", least: 4, most: 1 << 22, of: |rules| rules.processes },
    Limit { name: "open_files", least: 64, most: 1 << 20, of: |rules| rules.open_files },
    Limit { name: "file_size_mb", least: 1, most: MOST_MB, of: |rules| rules.file_size_mb },
    Limit { name: "tmp_mb", least: 1, most: MOST_MB, of: |rules| rules.tmp_mb },
    Limit { name: "disk_mb", least: 1, most: MOST_MB, of: |rules| rules.disk_mb },
    Limit { name: "wall_s", least: 1, most: MOST_S, of: |rules| rules.wall_s },
];

impl Limit {
    /// Whether a session could live with this much.
    pub fn check(&self, wanted: u64) -> Result<(), Error> {
        let &Self { name, least, most, .. } = self;
        if wanted < least {
            return Err(Error::TooLittle { name, wanted, least });
        }
        if wanted > most {
            return Err(Error::TooMuch { name, wanted, most });
        }
        Ok(())
    }
}

impl Rules {
    /// From an object. What is wrong is said by its name.
    pub fn read(object: serde_json::Map<String, serde_json::Value>) -> Result<Self, Error> {
        for (name, value) in &object {
            let expected = match name.as_str() {
                "profile" => "the name of a profile",
                "allow_read" | "allow_write" => "a list of paths",
                "allow_net" => "a list of `host:port`",
                "env" => "a list of names of variables",
                name if LIMITS.iter().any(|limit| limit.name == name) => "a whole number from 1 up",
                _ => return Err(Error::UnknownRule { name: name.clone() }),
            };
            let alone: serde_json::Map<_, _> = [(name.clone(), value.clone())].into_iter().collect();
            serde_json::from_value::<Self>(alone.into())
                .map_err(|_| Error::BadRule { name: name.clone(), expected })?;
        }
        serde_json::from_value(object.into()).map_err(|_| Error::NotAWish)
    }

    fn check_lengths(&self) -> Result<(), Error> {
        let paths = |paths: &[PathBuf]| (paths.len(), paths.iter().map(|path| path.as_os_str().len()).sum());
        let words = |words: &[String]| (words.len(), words.iter().map(String::len).sum());
        let lists = [
            ("allow_read", paths(&self.allow_read)),
            ("allow_write", paths(&self.allow_write)),
            ("allow_net", words(&self.allow_net)),
            ("env", words(&self.env)),
        ];
        for (name, (count, bytes)) in lists {
            if count > MAX_ENTRIES || bytes > MAX_ENTRIES_BYTES {
                return Err(Error::TooMany { name, count, bytes });
            }
        }
        Ok(())
    }

    fn has_only_a_profile(&self) -> bool {
        *self == Self { profile: self.profile.clone(), ..Self::default() }
    }
}

/// What a session's processes may use, each or all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of all processes together.
    pub memory_mb: u64,
    pub processes: u64,
    pub open_files: u64,
    pub file_size_mb: u64,
    pub tmp_mb: u64,
    /// Of the workspace, when it is the session's own directory.
    pub disk_mb: u64,
    /// Of all processes together.
    pub cpu_s: Option<u64>,
    /// The life of the session.
    pub wall_s: Option<u64>,
}

impl Limits {
    /// What one process may have mapped: more than it may use, because much of what is mapped is never touched.
    pub fn address_space_bytes(&self) -> u64 {
        (self.memory_mb + self.memory_mb.clamp(512, 2048)) << 20
    }
}

/// Somewhere a session may connect to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    /// In lower case, an address without brackets.
    pub host: String,
    pub port: u16,
}

impl FromStr for Destination {
    type Err = Error;

    fn from_str(entry: &str) -> Result<Self, Error> {
        let bad = || Error::BadDestination { entry: entry.to_owned() };
        let (host, port) = entry.trim().rsplit_once(':').ok_or_else(bad)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?;
        Self::new(host, port).ok_or_else(bad)
    }
}

impl Destination {
    /// None when `host` is neither a name nor an address.
    pub fn new(host: &str, port: u16) -> Option<Self> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if let Some(bare) = bare {
            let address: std::net::Ipv6Addr = bare.parse().ok()?;
            return Some(Self { host: address.to_string(), port });
        }
        if let Ok(address) = host.parse::<std::net::IpAddr>() {
            return Some(Self { host: address.to_string(), port });
        }
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let is_label = |label: &str| {
            !label.is_empty()
                && label.len() < 64
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        };
        (host.len() < 254 && host.split('.').all(is_label)).then_some(Self { host, port })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Who asks for a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Asker {
    /// May give a session what the settings do not.
    pub is_admin: bool,
    /// The profile that its own settings have.
    pub chosen: Option<Profile>,
    /// What callers like this one get where no settings say otherwise.
    pub default: Profile,
}

/// What a session may do, with nothing left open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    pub profile: Profile,
    pub allow_read: Vec<PathBuf>,
    pub allow_write: Vec<PathBuf>,
    pub allow_net: Vec<Destination>,
    pub env: Vec<String>,
    pub limits: Limits,
    /// How it would be asked for again.
    pub wish: Wish,
}

impl Terms {
    /// Settles what was asked for. Looks at the paths, so it blocks for a moment.
    pub fn settle(wish: Option<Wish>, asker: Asker, settings: &Settings, protected: &Protected) -> Result<Self, Error> {
        let Some(floor) = settings.floor() else { return Self::settle_without_floor(wish, asker, settings, protected) };
        // Nobody has more rights there than the settings give to all.
        let asker = Asker { is_admin: false, ..asker };
        let terms = Self::settle_without_floor(wish, asker, settings, protected).map_err(|error| match error {
            Error::NotGranted { name, wanted } => Error::NotInSettings { name, wanted },
            error => error,
        })?;
        if terms.profile < floor {
            return Err(Error::BelowFloor { wanted: terms.profile, floor });
        }
        Ok(terms)
    }

    fn settle_without_floor(
        wish: Option<Wish>,
        asker: Asker,
        settings: &Settings,
        protected: &Protected,
    ) -> Result<Self, Error> {
        // Rules without a profile are about a sandbox, so there has to be one, also where they are empty.
        let are_rules = matches!(wish, Some(Wish::Rules(_)));
        let asked = wish.map(Wish::into_rules).unwrap_or_default();
        let of_settings = || settings.defaults.profile.as_ref().map(|name| name.parse()).transpose();
        let default = match asker.chosen {
            Some(chosen) => chosen,
            None => of_settings()?.unwrap_or(asker.default),
        };
        let profile = match &asked.profile {
            Some(name) => name.parse()?,
            None if are_rules && default == Profile::Open => Profile::Workspace,
            None => default,
        };
        if profile == Profile::Open {
            let wish = Wish::Profile(profile.name().to_owned());
            return if asked.has_only_a_profile() { Ok(Self::open(wish)) } else { Err(Error::OpenWithRules) };
        }
        asked.check_lengths()?;
        let limits = settle_limits(profile, &asked, asker, settings)?;
        let granted = &settings.defaults;
        let mut kept = Rules { profile: Some(profile.name().to_owned()), ..asked };
        kept.allow_read = settle_paths("allow_read", &kept.allow_read, &granted.allow_read, asker, protected, false)?;
        kept.allow_write =
            settle_paths("allow_write", &kept.allow_write, &granted.allow_write, asker, protected, true)?;
        let granted_net =
            granted.allow_net.iter().map(|entry| entry.parse()).collect::<Result<Vec<Destination>, _>>()?;
        let mut allow_net: Vec<Destination> = Vec::new();
        for entry in &kept.allow_net {
            let destination: Destination = entry.parse()?;
            if protected.is_own_door(&destination) {
                return Err(Error::OwnDoor { entry: entry.clone() });
            }
            if !asker.is_admin && !granted_net.contains(&destination) {
                return Err(Error::NotGranted { name: "allow_net", wanted: entry.clone() });
            }
            allow_net.push(destination);
        }
        if profile == Profile::Sealed {
            if !allow_net.is_empty() {
                return Err(Error::SealedNetwork);
            }
        } else {
            allow_net.extend(granted_net);
            allow_net.dedup();
        }
        if let Some(name) = kept.env.iter().find(|name| is_secret_variable(name)) {
            return Err(Error::SecretVariable { name: name.clone() });
        }
        // The settings' own count each time the session is opened, and are not kept with it.
        let mut allow_read = kept.allow_read.clone();
        allow_read.extend(settled_by_settings(&granted.allow_read, protected, false));
        let mut allow_write = kept.allow_write.clone();
        allow_write.extend(settled_by_settings(&granted.allow_write, protected, true));
        let mut env = kept.env.clone();
        env.extend(granted.env.iter().filter(|name| !is_secret_variable(name)).cloned());
        let wish = if kept.has_only_a_profile() {
            Wish::Profile(profile.name().to_owned())
        } else {
            Wish::Rules(Box::new(kept))
        };
        Ok(Self { profile, allow_read, allow_write, allow_net, env, limits, wish })
    }

    fn open(wish: Wish) -> Self {
        Self {
            profile: Profile::Open,
            allow_read: Vec::new(),
            allow_write: Vec::new(),
            allow_net: Vec::new(),
            env: Vec::new(),
            limits: Profile::Open.limits(),
            wish,
        }
    }
}

fn settle_limits(profile: Profile, asked: &Rules, asker: Asker, settings: &Settings) -> Result<Limits, Error> {
    let own = profile.limits();
    let own = Rules {
        memory_mb: Some(own.memory_mb),
        processes: Some(own.processes),
        open_files: Some(own.open_files),
        file_size_mb: Some(own.file_size_mb),
        tmp_mb: Some(own.tmp_mb),
        disk_mb: Some(own.disk_mb),
        ..Rules::default()
    };
    let mut settled = [None; LIMITS.len()];
    for (slot, bound) in settled.iter_mut().zip(LIMITS) {
        let Limit { name, of, .. } = bound;
        let max = of(&settings.max);
        let default = of(&settings.defaults).or(of(&own));
        let Some(wanted) = of(asked) else {
            *slot = match (default, max) {
                (Some(default), Some(max)) => Some(default.min(max)),
                (default, max) => default.or(max),
            };
            continue;
        };
        // Without rights a caller may take less than others have, and more only where the settings say how much.
        let limit = if asker.is_admin { max } else { max.or(default) };
        if let Some(limit) = limit.filter(|limit| wanted > *limit) {
            return Err(Error::OverLimit { name, wanted, limit });
        }
        bound.check(wanted)?;
        *slot = Some(wanted);
    }
    let [memory, cpu_s, processes, open_files, file_size, tmp, disk, wall_s] = settled;
    let own = profile.limits();
    Ok(Limits {
        memory_mb: memory.unwrap_or(own.memory_mb),
        processes: processes.unwrap_or(own.processes),
        open_files: open_files.unwrap_or(own.open_files),
        file_size_mb: file_size.unwrap_or(own.file_size_mb),
        tmp_mb: tmp.unwrap_or(own.tmp_mb),
        disk_mb: disk.unwrap_or(own.disk_mb),
        cpu_s,
        wall_s,
    })
}

fn settle_paths(
    name: &'static str,
    asked: &[PathBuf],
    granted: &[PathBuf],
    asker: Asker,
    protected: &Protected,
    writable: bool,
) -> Result<Vec<PathBuf>, Error> {
    let mut settled = Vec::new();
    for path in asked {
        let real = protected.check(path, writable)?;
        let is_granted =
            || granted.iter().filter_map(|path| path.canonicalize().ok()).any(|path| real.starts_with(path));
        if !asker.is_admin && !is_granted() {
            return Err(Error::NotGranted { name, wanted: path.display().to_string() });
        }
        settled.push(real);
    }
    Ok(settled)
}

/// Those of the settings that are there and may be given.
fn settled_by_settings<'a>(
    paths: &'a [PathBuf],
    protected: &'a Protected,
    writable: bool,
) -> impl Iterator<Item = PathBuf> + 'a {
    paths.iter().filter_map(move |path| {
        protected
            .check(path, writable)
            .inspect_err(|error| tracing::warn!(%error, "a path in the settings of the sandbox is left out"))
            .ok()
    })
}

/// What tells pylair where its doors are, and whatever else is its own.
pub(super) fn is_secret_variable(name: &str) -> bool {
    name.to_ascii_uppercase().starts_with("PYLAIR_")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ADMIN: Asker = Asker { is_admin: true, chosen: None, default: Profile::Workspace };
    const RUN: Asker = Asker { is_admin: false, chosen: None, default: Profile::Workspace };

    fn settle(wish: serde_json::Value, asker: Asker, settings: &Settings) -> Result<Terms, Error> {
        let wish = if wish.is_null() { None } else { Some(Wish::from_json(wish)?) };
        Terms::settle(wish, asker, settings, &Protected::default())
    }

    #[track_caller]
    fn refused(wish: serde_json::Value, asker: Asker, words: &str) {
        let error = settle(wish, asker, &Settings::default()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn a_wish_is_a_name_or_rules() {
        let none = Settings::default();
        assert_eq!(settle(json!("sealed"), RUN, &none).unwrap().profile, Profile::Sealed);
        assert_eq!(settle(json!(null), RUN, &none).unwrap().profile, Profile::Workspace);
        let at_home = Asker { is_admin: true, chosen: None, default: Profile::Open };
        assert_eq!(settle(json!(null), at_home, &none).unwrap().profile, Profile::Open);
        for rules in [json!({}), json!({"allow_net": []}), json!({"memory_mb": 100})] {
            assert_eq!(settle(rules, at_home, &none).unwrap().profile, Profile::Workspace);
        }
        let terms = settle(json!({"memory_mb": 100, "allow_net": ["PyPI.org.:443"]}), ADMIN, &none).unwrap();
        assert_eq!((terms.profile, terms.limits.memory_mb), (Profile::Workspace, 100));
        assert_eq!(terms.allow_net, [Destination { host: "pypi.org".into(), port: 443 }]);
        // What is kept of it means the same again.
        let kept: Wish = serde_json::from_value(serde_json::to_value(&terms.wish).unwrap()).unwrap();
        let list = serde_json::from_value::<Wish>(json!(["sealed"])).unwrap_err().to_string();
        assert!(list.contains("neither the name"), "{list}");
        assert_eq!(Terms::settle(Some(kept), ADMIN, &none, &Protected::default()).unwrap(), terms);
    }

    #[test]
    fn what_cannot_be_is_refused_in_words() {
        refused(json!("closed"), ADMIN, "`open`, `workspace` and `sealed`");
        refused(json!({"memory": 5}), ADMIN, "there is no rule `memory`");
        refused(json!({"memory_mb": "5"}), ADMIN, "`memory_mb` has to be a whole number");
        refused(json!({"memory_mb": -1}), ADMIN, "`memory_mb` has to be a whole number");
        refused(json!({"memory_mb": u64::MAX}), ADMIN, "more than any machine has");
        refused(json!({"allow_read": vec!["/usr/lib"; 257]}), ADMIN, "`allow_read` has 257 entries");
        refused(json!({"allow_net": ["a".repeat(40_000)]}), ADMIN, "`allow_net` has 1 entries of 40000 bytes");
        refused(json!({"allow_read": "/usr"}), ADMIN, "`allow_read` has to be a list of paths");
        refused(json!(["sealed"]), ADMIN, "neither the name of a profile nor an object");
        refused(json!(7), ADMIN, "neither the name of a profile nor an object");
        refused(json!({"profile": "open", "memory_mb": 500}), ADMIN, "has no rules");
        refused(json!({"profile": "sealed", "allow_net": ["a:1"]}), ADMIN, "no network");
        refused(json!({"memory_mb": 1}), ADMIN, "at least 64");
        refused(json!({"allow_net": ["pypi.org"]}), ADMIN, "not a `host:port`");
        refused(json!({"allow_net": ["*.org:443"]}), ADMIN, "not a `host:port`");
        refused(json!({"allow_read": ["/"]}), ADMIN, "`/`");
        refused(json!({"allow_read": ["/no/such"]}), ADMIN, "/no/such");
        refused(json!({"env": ["PYLAIR_TOKEN"]}), ADMIN, "never passed");
    }

    #[test]
    fn without_rights_the_settings_are_the_limit() {
        refused(json!({"memory_mb": 99_999}), RUN, "over the limit of 4096");
        refused(json!({"allow_net": ["pypi.org:443"]}), RUN, "needs the right `admin`");
        refused(json!({"allow_read": ["/usr/lib"]}), RUN, "needs the right `admin`");
        let settings: Settings = toml::from_str(
            "allow_net = ['pypi.org:443']\nallow_read = ['/usr']\ncpu_s = 60\n[max]\nmemory_mb = 9000\nwall_s = 100",
        )
        .unwrap();
        let wish = json!({"memory_mb": 8000, "allow_net": ["pypi.org:443"], "allow_read": ["/usr/lib"]});
        let terms = settle(wish, RUN, &settings).unwrap();
        assert_eq!((terms.limits.memory_mb, terms.limits.cpu_s, terms.limits.wall_s), (8000, Some(60), Some(100)));
        // More than that is for nobody.
        assert!(settle(json!({"memory_mb": 9001}), ADMIN, &settings).is_err());
    }

    #[test]
    fn nobody_is_less_confined_than_the_floor() {
        let settings: Settings =
            toml::from_str("profile = 'workspace'\nfloor = true\nallow_read = ['/usr']\nmemory_mb = 1000").unwrap();
        let profile = |wish: serde_json::Value, asker| settle(wish, asker, &settings).map(|terms| terms.profile);
        for asker in [ADMIN, RUN] {
            let unasked = Terms::settle(None, asker, &settings, &Protected::default()).unwrap();
            assert_eq!((unasked.profile, unasked.limits.memory_mb), (Profile::Workspace, 1000));
            assert_eq!(profile(json!("sealed"), asker).unwrap(), Profile::Sealed);
            let less = json!({"allow_read": ["/usr/lib"], "memory_mb": 500});
            assert_eq!(profile(less, asker).unwrap(), Profile::Workspace);
            for (wish, words) in [
                (json!("open"), "to the profile `workspace` at least, and `open` confines less"),
                (json!({"allow_read": ["/etc"]}), "`floor` allows nothing else"),
                (json!({"allow_write": ["/tmp"]}), "`floor` allows nothing else"),
                (json!({"allow_net": ["pypi.org:443"]}), "`floor` allows nothing else"),
                (json!({"memory_mb": 2000}), "over the limit of 1000"),
            ] {
                let error = profile(wish.clone(), asker).unwrap_err().to_string();
                assert!(error.contains(words), "{wish}: {error}");
            }
        }
    }

    #[test]
    fn destinations_are_names_or_addresses() {
        let shown = |entry: &str| entry.parse::<Destination>().map(|destination| destination.to_string()).ok();
        assert_eq!(shown("[::1]:80").as_deref(), Some("[::1]:80"));
        assert_eq!(shown("127.0.0.1:8000").as_deref(), Some("127.0.0.1:8000"));
        for bad in ["", "host", "host:", "host:0", "host:70000", "ho st:1", "a/b:1", "http://a:1", ".:1", "[a]:1"] {
            assert_eq!(shown(bad), None, "{bad}");
        }
    }
}
