//! How a confined session is said to the nursery and to the template.
//!
//! Called by the daemon. The walls themselves are put up elsewhere: namespaces and the private root by the nursery, the rest by the
//! worker itself just before it runs anybody's code. What a session may do was settled in `sandbox`.

use super::Terms;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
pub use pylair_keeper::nursery::WORKSPACE;
use pylair_keeper::nursery::{INNER_ID, KeeperRequest, PROXY_PORT};
use pylair_keeper::outer_ids::{OUTER_IDS, gives_ids};
use pylair_keeper::seccomp::seccomp_program;
use pylair_keeper::{Network, private_root};
use pylair_python::Interpreter;
use pylair_text::hash;
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Daemons of root's on one machine have a part each: session ids of one are no business of another's.
const PARTS: u32 = 64;
const PART: u32 = (OUTER_IDS.end - OUTER_IDS.start) / PARTS;

/// Where a confined session works.
#[derive(Debug, Clone, Copy)]
pub struct SessionDirectory<'a> {
    /// As it is outside.
    pub directory: &'a Path,
    /// As the session sees it: [`WORKSPACE`] when the directory is its own, else the directory itself.
    pub seen_as: &'a Path,
    /// Where packages are installed for it, which it may read.
    pub packages: &'a Path,
    /// Who the session is outside: the owner of the directory. None when that is the daemon's own user.
    pub outer_id: Option<u32>,
}

static GIVEN: AtomicU32 = AtomicU32::new(0);
static OWN: OnceLock<OwnIds> = OnceLock::new();

/// The ids that this process gives to sessions.
#[derive(Debug)]
struct OwnIds {
    start: u32,
    /// Nobody else gives them while this is open.
    _lock: Option<File>,
}

impl OwnIds {
    /// The first part that nobody has, beginning with the one that the directory means: after a restart it is the same. Where locks
    /// cannot be kept, the directory alone decides.
    fn claim(locks: &Path, data: &Path) -> Self {
        let hash = u32::from(hash::sha256(data.as_os_str().as_bytes())[0]);
        let claimed = (0..PARTS).map(|next| (hash + next) % PARTS).find_map(|part| {
            let file = File::options().create(true).append(true).mode(0o600).open(locks.join(part.to_string())).ok()?;
            flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
            Some((part, file))
        });
        let (part, lock) = claimed.map_or((hash % PARTS, None), |(part, lock)| (part, Some(lock)));
        Self { start: OUTER_IDS.start + part * PART, _lock: lock }
    }
}

/// Takes the ids for the sessions of a daemon that keeps its data there. Once in a process, before there are sessions; only under root.
/// Blocks.
pub fn claim_outer_ids(data: &Path) {
    const LOCKS: &str = "/run/pylair-ids";
    if !gives_ids() {
        return;
    }
    OWN.get_or_init(|| {
        let made = std::fs::DirBuilder::new().mode(0o700).create(LOCKS);
        let ours = std::fs::symlink_metadata(LOCKS).is_ok_and(|found| found.is_dir() && found.uid() == 0);
        if !ours {
            tracing::warn!(
                ?made,
                "{LOCKS} cannot be used: sessions of two daemons of root's may be the same user outside"
            );
        }
        OwnIds::claim(if ours { Path::new(LOCKS) } else { Path::new("/nonexistent") }, data)
    });
}

fn own_start() -> u32 {
    OWN.get().map_or(OUTER_IDS.start, |own| own.start)
}

/// Says that an id is taken: by the directory of a session that may come back.
pub fn skip_outer_id(id: u32) {
    let start = own_start();
    if (start..start + PART).contains(&id) {
        GIVEN.fetch_max(id - start + 1, Ordering::Relaxed);
    }
}

/// An id for a session that shall be somebody else outside: only under root. No two sessions that are alive have the same, unless
/// there are very many.
pub fn new_outer_id() -> Option<u32> {
    let number = GIVEN.fetch_add(1, Ordering::Relaxed);
    gives_ids().then_some(own_start() + number % PART)
}

/// What the worker tries in vain before it runs anybody's code, so that it is known what holds. See `probe/pylair/enforced.py`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Trial {
    /// A file outside that everybody could read.
    pub canary: PathBuf,
    /// The daemon's.
    pub socket: PathBuf,
    pub pid: u32,
    /// When it started, in ticks since the machine did: inside, the same pid may be somebody else's.
    pub started: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confinement {
    pub network: Network,
    pub read_only: Vec<PathBuf>,
    /// See [`KeeperRequest::within`].
    pub within: Vec<PathBuf>,
    /// Somebody asked for these, so they have to be there.
    pub readable: Vec<PathBuf>,
    pub writable: Vec<PathBuf>,
    /// What the session sees as [`WORKSPACE`].
    pub workspace: Option<PathBuf>,
    pub outer_id: Option<u32>,
    /// For `/tmp` and `/dev/shm` together.
    pub tmp_mb: u32,
    pub cwd: PathBuf,
    /// By the names of Python's `resource` module. Each process has its own, but `RLIMIT_NPROC` counts the session's.
    pub limits: BTreeMap<&'static str, u64>,
    pub trial: Trial,
}

impl Confinement {
    /// How a session on these terms with this interpreter is confined, if it is.
    pub fn new(terms: &Terms, interpreter: &Interpreter, place: SessionDirectory<'_>, trial: Trial) -> Option<Self> {
        if !terms.profile.is_confined() {
            return None;
        }
        let mut limits = BTreeMap::from([
            ("RLIMIT_AS", terms.limits.address_space_bytes()),
            ("RLIMIT_CORE", 0),
            ("RLIMIT_FSIZE", terms.limits.file_size_mb << 20),
            ("RLIMIT_MEMLOCK", 64 << 10),
            ("RLIMIT_MSGQUEUE", 0),
            ("RLIMIT_NOFILE", terms.limits.open_files),
            ("RLIMIT_NPROC", terms.limits.processes),
            ("RLIMIT_SIGPENDING", terms.limits.processes * 4),
        ]);
        if let Some(cpu_s) = terms.limits.cpu_s {
            limits.insert("RLIMIT_CPU", cpu_s);
        }
        let mut read_only = interpreter.directories();
        read_only.push(place.packages.to_owned());
        let is_own = place.seen_as == Path::new(WORKSPACE);
        let mut writable = terms.allow_write.clone();
        if !is_own {
            writable.push(place.directory.to_owned());
        }
        // An environment may lie in a directory that was given. Whoever writes its interpreter or its packages is run by the next who uses it.
        let kept = parts_of_environments(interpreter);
        writable.retain(|path| !kept.iter().any(|part| path.starts_with(part)));
        read_only.extend(kept.into_iter().filter(|part| writable.iter().any(|path| part.starts_with(path))));
        let mut within = interpreter.within.clone();
        if !within.is_empty() {
            within.extend(place.packages.canonicalize().ok());
            within.extend(writable.iter().cloned());
        }
        Some(Self {
            network: if terms.allow_net.is_empty() { Network::None } else { Network::Proxy },
            read_only,
            within,
            readable: terms.allow_read.clone(),
            writable,
            workspace: is_own.then(|| place.directory.to_owned()),
            outer_id: place.outer_id,
            tmp_mb: u32::try_from(terms.limits.tmp_mb).unwrap_or(u32::MAX),
            cwd: place.seen_as.to_owned(),
            limits,
            trial,
        })
    }

    /// What to ask the nursery for.
    pub fn keeper_request(&self) -> KeeperRequest {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let number = ASKED.fetch_add(1, Ordering::Relaxed);
        KeeperRequest {
            id: number.into(),
            read_only: self.read_only.clone(),
            within: self.within.clone(),
            readable: self.readable.clone(),
            writable: self.writable.clone(),
            views: Vec::new(),
            workspace: self.workspace.clone(),
            tmp_mb: self.tmp_mb,
            network: self.network == Network::Host,
            proxy: self.network == Network::Proxy,
            uid: self.outer_id,
            program: None,
        }
    }

    /// Where a program starts that is run within these walls from the beginning, and the limits it has.
    pub fn program_limits(&self) -> (&Path, BTreeMap<String, u64>) {
        let mut limits: BTreeMap<_, _> = self.limits.iter().map(|(name, limit)| ((*name).to_owned(), *limit)).collect();
        // Whoever tries how much fits into /tmp needs a file that is larger, and lowers it then.
        if let Some(limit) = limits.get_mut("RLIMIT_FSIZE") {
            *limit = (*limit).max((u64::from(self.tmp_mb) + 1) << 20);
        }
        (&self.cwd, limits)
    }

    /// The `confine` object of a fork request. `has_ruleset` says whether one came with the keeper's `ready` and is passed on.
    pub fn confine_message(&self, has_ruleset: bool) -> Value {
        let id = gives_ids().then_some(INNER_ID);
        json!({
            "rlimits": self.limits,
            "uid": id,
            "gid": id,
            "cwd": self.cwd,
            "tmp_mb": self.tmp_mb,
            "seccomp": STANDARD.encode(seccomp_program(self.network)),
            "landlock": has_ruleset,
            "trial": self.trial,
        })
    }

    /// For a machine without namespaces: the walls that a process can put up around itself. The workspace is where it is, others' files are
    /// closed by Landlock alone, and there is neither a network nor a `/tmp`.
    #[must_use]
    pub fn bare(mut self) -> Self {
        self.network = Network::None;
        // It would count all processes of the user's.
        self.limits.remove("RLIMIT_NPROC");
        self.writable.extend(self.workspace.take());
        self
    }

    /// The `confine` object of a fork request for [`Self::bare`], and the Landlock ruleset that goes with it where there is one. Blocks.
    pub fn bare_message(&self) -> (Value, Option<OwnedFd>) {
        let is_shown =
            |path: &PathBuf| path.canonicalize().is_ok_and(|real| private_root::may_be_shown(&real, &self.within));
        let mut readable: Vec<_> = self.read_only.iter().filter(|path| is_shown(path)).cloned().collect();
        readable.extend_from_slice(&self.readable);
        let ruleset = private_root::landlock_ruleset(&readable, &self.writable, &[], false, None).unwrap_or_default();
        let mut message = self.confine_message(ruleset.is_some());
        message["bare"] = true.into();
        message["uid"] = Value::Null;
        message["gid"] = Value::Null;
        (message, ruleset)
    }

    /// What programs inside are told of the proxy, in the words they know.
    pub fn proxy_environment() -> impl Iterator<Item = (String, String)> {
        let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
        ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"]
            .into_iter()
            .flat_map(|name| [name.to_owned(), name.to_ascii_lowercase()])
            .map(move |name| (name, proxy.clone()))
    }
}

/// Whether every session sees this anyway, being the system's.
pub fn is_shown_to_all(path: &Path) -> bool {
    private_root::SYSTEM.iter().any(|system| path.starts_with(system))
}

/// What of an interpreter's directories is never a session's to write, though it may be given what is around it.
fn parts_of_environments(interpreter: &Interpreter) -> Vec<PathBuf> {
    let Interpreter { prefix, base_prefix, exec_prefix, base_exec_prefix, site_packages, .. } = interpreter;
    let prefixes = [prefix, base_prefix, exec_prefix, base_exec_prefix];
    let prefixes = prefixes.into_iter().filter(|path| path.is_absolute() && path.parent().is_some());
    let parts = prefixes.flat_map(|prefix| ["bin", "lib", "lib64", "pyvenv.cfg"].map(|part| prefix.join(part)));
    let mut parts: Vec<_> = parts.chain(site_packages.iter().cloned()).collect();
    // By the name that mounts know them by.
    parts.extend(parts.clone().iter().filter_map(|part| part.canonicalize().ok()));
    parts.sort();
    parts.dedup();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Profile, Settings, paths::Protected, rules::Asker};
    use pylair_keeper::nursery::Request;

    fn place() -> SessionDirectory<'static> {
        SessionDirectory {
            directory: Path::new("/data/workspaces/abc"),
            seen_as: Path::new(WORKSPACE),
            packages: Path::new("/data/venvs/x"),
            outer_id: new_outer_id(),
        }
    }

    fn interpreter() -> Interpreter {
        Interpreter {
            executable: "/home/me/.venv/bin/python".into(),
            version: "3.12.1".into(),
            implementation: "cpython".into(),
            prefix: "/home/me/.venv".into(),
            base_prefix: "/opt/python".into(),
            base_executable: "/opt/python/bin/python3".into(),
            exec_prefix: "/home/me/.venv".into(),
            base_exec_prefix: "/".into(),
            site_packages: vec!["/home/me/.venv/lib/python3.12/site-packages".into()],
            within: Vec::new(),
        }
    }

    fn terms(wish: Value) -> Terms {
        let asker = Asker { is_admin: true, chosen: None, default: Profile::Open };
        let wish = crate::Wish::from_json(wish).unwrap();
        Terms::settle(Some(wish), asker, &Settings::default(), &Protected::default()).unwrap()
    }

    #[test]
    fn a_confinement_is_said_as_the_wire_wants_it() {
        assert!(Confinement::new(&terms(json!("open")), &interpreter(), place(), Trial::default()).is_none());
        let trial =
            Trial { canary: "/data/canary".into(), socket: "/run/daemon.sock".into(), pid: 7, started: Some(9) };
        let sealed = Confinement::new(&terms(json!("sealed")), &interpreter(), place(), trial).unwrap();
        let mut request = serde_json::to_value(Request::Keeper(Box::new(sealed.keeper_request()))).unwrap();
        let mut fields = request.as_object_mut().unwrap().clone();
        assert!(fields.remove("id").unwrap().is_u64());
        let uid = fields.remove("uid").unwrap();
        assert_eq!(uid.as_u64().is_some_and(|uid| uid >= 0x7000_0000), gives_ids());
        let expected = json!({"op": "keeper", "readable": [], "writable": [], "workspace": "/data/workspaces/abc", "tmp_mb": 64,
            "network": false, "proxy": false, "read_only": [
            "/home/me/.venv", "/home/me/.venv/bin/python", "/home/me/.venv/lib/python3.12/site-packages",
            "/opt/python", "/opt/python/bin/python3", "/data/venvs/x"]});
        assert_eq!(Value::from(fields), expected);

        let message = sealed.confine_message(true);
        assert_eq!(message["uid"], if gives_ids() { json!(1000) } else { Value::Null });
        assert_eq!(message["landlock"], true);
        assert_eq!(message["cwd"], "/workspace");
        assert_eq!(message["rlimits"]["RLIMIT_NPROC"], 128);
        assert_eq!(
            message["trial"],
            json!({"canary": "/data/canary", "socket": "/run/daemon.sock", "pid": 7, "started": 9})
        );
    }

    #[test]
    fn two_daemons_do_not_give_the_same_ids() {
        let locks = std::env::temp_dir().join(format!("pylair-ids-{}", std::process::id()));
        std::fs::create_dir_all(&locks).unwrap();
        let first = OwnIds::claim(&locks, Path::new("/data"));
        // Even if both mean the same part.
        let second = OwnIds::claim(&locks, Path::new("/data"));
        assert!(first.start.abs_diff(second.start) >= PART && OUTER_IDS.contains(&(second.start + PART - 1)));
        let start = first.start;
        drop(first);
        assert_eq!(OwnIds::claim(&locks, Path::new("/data")).start, start, "it is the same again");
        std::fs::remove_dir_all(&locks).unwrap();
    }

    #[test]
    fn a_directory_of_the_callers_is_where_it_is() {
        let terms = terms(
            json!({"profile": "workspace", "allow_net": ["pypi.org:443"], "allow_read": ["/usr/lib"], "cpu_s": 9}),
        );
        let directory = Path::new("/home/me/project");
        let bound = SessionDirectory { directory, seen_as: directory, ..place() };
        let confinement = Confinement::new(&terms, &interpreter(), bound, Trial::default()).unwrap();
        assert_eq!((confinement.workspace, confinement.writable), (None, vec![directory.to_owned()]));
        assert_eq!((confinement.network, confinement.cwd), (Network::Proxy, directory.to_owned()));
        assert_eq!(confinement.limits["RLIMIT_CPU"], 9);
    }
}
