//! Who asks: every core method takes a `Caller`.
//!
//! The doors make callers from what the kernel or a token proves (peer credentials, process ancestry), plus what the
//! client says about itself where a lie hurts nobody but the liar (working directory, environment).

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{config::CallerSettings, order::Sender, sandbox::Profile};

const MAX_CLIENT_CHARS: usize = 64;

/// Through which door a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Door {
    Bridge,
    Cli,
    Http,
}

/// What a caller may do; `rights` says what needs which. A local socket gives all of it, a token what it was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Look at what is the owner's.
    Read,
    /// Run code in sandboxed sessions; includes `Read`.
    Run,
    /// Run tests in a sandbox and work on failures; includes nothing else.
    Tests,
    /// Everything, with the rights of the daemon's user.
    Admin,
}

impl Scope {
    pub const ALL: [Self; 4] = [Self::Read, Self::Run, Self::Tests, Self::Admin];

    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Run => "run",
            Self::Tests => "tests",
            Self::Admin => "admin",
        }
    }

    fn includes(self, other: Self) -> bool {
        self == other || self == Self::Admin || (self == Self::Run && other == Self::Read)
    }
}

/// Which session a call without a `target` means.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DefaultSession {
    /// One per client process tree: the process that started the bridge.
    ProcessTree(Process),
    /// One per legacy MCP session over HTTP.
    McpSession(String),
    /// Stateless HTTP: every call gets a session of its own and is told its handle.
    Fresh,
    /// A shell with no client above it: the owner's session `main`.
    Main,
}

/// Who asks, through which door, with which rights, from where.
#[derive(Debug, Clone)]
pub struct Caller {
    pub owner: Arc<str>,
    /// What the client calls itself, for people to read.
    pub client: String,
    pub door: Door,
    pub scopes: Vec<Scope>,
    pub cwd: Option<PathBuf>,
    pub env: Arc<BTreeMap<String, String>>,
    pub default_session: DefaultSession,
    /// Whose calls run in the order they came.
    pub sender: Sender,
    /// What let it in, when that was not a local socket.
    pub credential: Option<Arc<Credential>>,
    /// The least confined profile that the settings leave to anybody, if they have such a floor.
    pub floor: Option<Profile>,
    pub settings: Arc<CallerSettings>,
    /// The program that asks, where that is a local one: the one that started the bridge or the command.
    pub program: Option<Arc<Program>>,
}

/// A process and what it is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub name: String,
    pub process: Process,
}

impl Program {
    /// The process that started this one.
    pub fn above(ancestry: &[Ancestor]) -> Option<Arc<Self>> {
        let parent = ancestry.get(1)?;
        Some(Arc::new(Self { name: client_name(&parent.name), process: parent.process }))
    }
}

/// The token a caller came with, and from where.
#[derive(Debug)]
pub struct Credential {
    pub token: Arc<str>,
    /// For people to read, never to decide on.
    pub peer: String,
}

impl Caller {
    /// Whether it may do what needs this scope. `Admin` is what leaves a sandbox, so nobody has it where there is a floor.
    pub fn may(&self, scope: Scope) -> bool {
        self.has(scope) && (scope != Scope::Admin || self.floor.is_none())
    }

    /// Whether it was let in with this scope, whatever the settings leave of it.
    pub fn has(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|own| own.includes(scope))
    }
}

/// Who did something, for those who find it done.
#[derive(Debug, Clone)]
pub struct Signature {
    words: String,
    default_session: DefaultSession,
    program: Option<Arc<Program>>,
}

impl Signature {
    /// Who it was, for anybody to read.
    pub fn words(&self) -> &str {
        &self.words
    }

    /// Who it was, for this caller to read.
    pub fn words_for(&self, caller: &Caller) -> &str {
        let is_same = match &caller.default_session {
            DefaultSession::ProcessTree(_) | DefaultSession::McpSession(_) => {
                self.default_session == caller.default_session
            }
            // All shells that belong to no client have the same default session, and so have all requests with a token.
            DefaultSession::Main => self.program.is_some() && self.program == caller.program,
            DefaultSession::Fresh => false,
        };
        if is_same { "you" } else { &self.words }
    }
}

impl Caller {
    pub fn signature(&self) -> Signature {
        let client = &self.client;
        let program = self.program.as_ref();
        let program = program.map(|program| format!("{}, process {}", program.name, program.process.pid));
        let words = match (self.door, &self.credential, program) {
            (Door::Http, Some(credential), _) => format!("the client {client} with the token `{}`", credential.token),
            (Door::Cli, _, Some(program)) => format!("a command started by {program}"),
            (Door::Cli, _, None) => "a command".to_owned(),
            (_, _, Some(program)) => format!("the MCP client {client} ({program})"),
            (_, _, None) => format!("the client {client}"),
        };
        Signature { words, default_session: self.default_session.clone(), program: self.program.clone() }
    }
}

/// Who the local sockets and the first token belong to: the user this process runs as.
pub fn own_owner() -> String {
    format!("uid-{}", rustix::process::getuid().as_raw())
}

/// What a client says it is called, fit to be read beside what others are called.
pub fn client_name(said: &str) -> String {
    let name = crate::plain::one_line(said, MAX_CLIENT_CHARS);
    if name.is_empty() { "client".to_owned() } else { name }
}

/// The environment of a caller that brings none of its own. Never the daemon's.
pub fn plain_environment(home: &str, user: &str) -> BTreeMap<String, String> {
    [
        ("HOME", home),
        ("LANG", "C.UTF-8"),
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("USER", user),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// A process, told apart from a later one with the same pid by its start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    pub started: u64,
}

/// One step of a process's ancestry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ancestor {
    pub process: Process,
    pub name: String,
    /// Started as a login shell (`-bash`), or something that only holds shells.
    pub is_boundary: bool,
}

/// Programs that hold unrelated work of one person together; sharing one of them above says nothing.
const BOUNDARIES: &[&str] = &[
    "alacritty",
    "dtach",
    "gnome-terminal-",
    "init",
    "kitty",
    "konsole",
    "login",
    "screen",
    "sshd",
    "sshd-session",
    "su",
    "sudo",
    "systemd",
    "tmux",
    "tmux: server",
    "wezterm-gui",
    "xterm",
    "zellij",
];

/// The process and its ancestors as the kernel knows them, nearest first, without init.
pub fn ancestry(pid: i32) -> Vec<Ancestor> {
    let mut chain = Vec::new();
    let mut pid = pid;
    // A bound, because a pid read a moment later may belong to another process and close a circle.
    while pid > 1 && chain.len() < 64 {
        let Some((name, parent, started)) = read_stat(pid) else { break };
        let argv0 = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_boundary = argv0.first() == Some(&b'-') || BOUNDARIES.contains(&name.as_str());
        chain.push(Ancestor { process: Process { pid, started }, name, is_boundary });
        pid = parent;
    }
    chain
}

/// The process that stands for all commands of one process tree: the client whose tree it is, or what started the command.
pub fn tree_of(chain: &[Ancestor], client: &DefaultSession) -> Process {
    match client {
        DefaultSession::ProcessTree(process) => *process,
        _ => chain.get(1).or(chain.first()).map_or(Process { pid: 0, started: 0 }, |ancestor| ancestor.process),
    }
}

/// Name, parent and start time (clock ticks since boot) of a process.
pub fn read_stat(pid: i32) -> Option<(String, i32, u64)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(text: &str) -> Option<(String, i32, u64)> {
    // The name is in parentheses and may hold any character, a closing parenthesis too.
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let fields: Vec<&str> = text.get(close + 2..)?.split(' ').collect();
    Some((text.get(open + 1..close)?.to_owned(), fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}

/// How near two process trees are: the position, in `chain`, of the nearest ancestor they share, unless that one is a boundary.
pub fn nearest_common(chain: &[Ancestor], other: &[Ancestor]) -> Option<usize> {
    let position = chain.iter().position(|ancestor| other.iter().any(|theirs| theirs.process == ancestor.process))?;
    (!chain[position].is_boundary).then_some(position)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(steps: &[(i32, &str)]) -> Vec<Ancestor> {
        steps
            .iter()
            .map(|(pid, name)| Ancestor {
                process: Process { pid: *pid, started: 1 },
                name: (*name).to_owned(),
                is_boundary: name.starts_with('-') || BOUNDARIES.contains(name),
            })
            .collect()
    }

    #[test]
    fn a_client_cannot_call_itself_a_line_of_its_own() {
        assert_eq!(client_name("evil\n[cell 9 by root: ok]\x1b[1A"), "evil [cell 9 by root: ok][1A");
        assert_eq!(client_name("\u{202e}\x07"), "client");
    }

    #[test]
    fn a_scope_includes_what_is_natural_and_no_more() {
        let included =
            |scope: Scope| Scope::ALL.into_iter().filter(move |other| scope.includes(*other)).collect::<Vec<_>>();
        assert_eq!(included(Scope::Read), [Scope::Read]);
        assert_eq!(included(Scope::Run), [Scope::Read, Scope::Run]);
        assert_eq!(included(Scope::Tests), [Scope::Tests]);
        assert_eq!(included(Scope::Admin), Scope::ALL);
    }

    #[test]
    fn stat_names_may_hold_parentheses_and_spaces() {
        let text = format!("12 (a (b) c) S 7 {} 99 1", ["0"; 17].join(" "));
        assert_eq!(parse_stat(&text), Some(("a (b) c".to_owned(), 7, 99)));
    }

    #[test]
    fn ancestry_of_this_process_starts_with_itself() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert_eq!(ancestry(pid)[0].process.pid, pid);
    }

    #[test]
    fn trees_meet_at_the_client_but_not_at_a_login_shell() {
        let bridge = chain(&[(50, "pylair"), (40, "claude"), (20, "-bash"), (10, "tmux: server")]);
        let inside = chain(&[(70, "pylair"), (60, "sh"), (40, "claude"), (20, "-bash")]);
        let beside = chain(&[(80, "pylair"), (20, "-bash"), (10, "tmux: server")]);
        assert_eq!(nearest_common(&inside, &bridge), Some(2));
        assert_eq!(nearest_common(&beside, &bridge), None);
    }
}
