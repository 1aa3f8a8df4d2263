//! What a session may do: the profiles, and how they are said to the nursery and to the template.
//!
//! Called by the daemon. The walls themselves are put up elsewhere: namespaces and the private root by the nursery, the rest by the
//! worker itself just before it runs anybody's code. The system call filter is made here, because Python has nothing to make it with.

pub use super::nursery::WORKSPACE;
use super::nursery::{INNER_ID, KeeperRequest, Request};
use crate::python::Interpreter;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Under root, each session is somebody else outside. These ids belong to nobody: systemd and the tools that hand out ranges to
/// containers stay below.
const OUTER_IDS: std::ops::Range<u32> = 0x7000_0000..0x7001_0000;

#[derive(Debug, thiserror::Error)]
#[error("unknown profile `{name}`: there are `open` and `sealed`")]
pub struct UnknownProfile {
    pub name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// With all the rights of the daemon's user.
    Open,
    /// No network, no files but the system's and the interpreter's, a small `/tmp` of its own.
    Sealed,
}

impl Profile {
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Sealed => "sealed",
        }
    }

    pub fn is_confined(self) -> bool {
        self != Self::Open
    }
}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        [Self::Open, Self::Sealed]
            .into_iter()
            .find(|profile| profile.name() == name)
            .ok_or_else(|| UnknownProfile { name: name.to_owned() })
    }
}

/// The directory of its own that a confined session works in, which it sees as [`WORKSPACE`].
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub directory: &'a Path,
    /// Where packages are installed for it, which it may read.
    pub packages: &'a Path,
    /// Who the session is outside: the owner of the directory. None when that is the daemon's own user.
    pub outer_id: Option<u32>,
}

static GIVEN: AtomicU32 = AtomicU32::new(0);

/// Says that an id is taken: by the directory of a session that may come back.
pub fn skip_outer_id(id: u32) {
    if OUTER_IDS.contains(&id) {
        GIVEN.fetch_max(id - OUTER_IDS.start + 1, Ordering::Relaxed);
    }
}

/// An id for a session that shall be somebody else outside: only under root. No two sessions that are alive have the same, unless
/// there are very many.
pub fn new_outer_id() -> Option<u32> {
    let number = GIVEN.fetch_add(1, Ordering::Relaxed);
    is_root().then_some(OUTER_IDS.start + number % (OUTER_IDS.end - OUTER_IDS.start))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    None,
    Host,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confinement {
    pub network: Network,
    pub read_only: Vec<PathBuf>,
    pub writable: Vec<PathBuf>,
    /// What the session sees as [`WORKSPACE`].
    pub workspace: PathBuf,
    pub outer_id: Option<u32>,
    /// For `/tmp` and `/dev/shm` together.
    pub tmp_mb: u32,
    pub cwd: PathBuf,
    /// By the names of Python's `resource` module. Each process has its own, but `RLIMIT_NPROC` counts the session's.
    pub limits: BTreeMap<&'static str, u64>,
}

impl Confinement {
    /// How a session of this profile with this interpreter is confined, if it is.
    pub fn new(profile: &Profile, interpreter: &Interpreter, place: Place<'_>) -> Option<Self> {
        if !profile.is_confined() {
            return None;
        }
        let limits = BTreeMap::from([
            ("RLIMIT_AS", 4 << 30),
            ("RLIMIT_CORE", 0),
            ("RLIMIT_FSIZE", 64 << 20),
            ("RLIMIT_NOFILE", 512),
            ("RLIMIT_NPROC", 128),
        ]);
        let mut read_only = directories(interpreter);
        read_only.push(place.packages.to_owned());
        Some(Self {
            network: Network::None,
            read_only,
            writable: Vec::new(),
            workspace: place.directory.to_owned(),
            outer_id: place.outer_id,
            tmp_mb: 64,
            cwd: WORKSPACE.into(),
            limits,
        })
    }

    /// What to ask the nursery for.
    pub fn keeper_request(&self) -> Request {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let number = ASKED.fetch_add(1, Ordering::Relaxed);
        Request::Keeper(KeeperRequest {
            id: number.into(),
            read_only: self.read_only.clone(),
            writable: self.writable.clone(),
            workspace: Some(self.workspace.clone()),
            tmp_mb: self.tmp_mb,
            network: self.network == Network::Host,
            uid: self.outer_id,
        })
    }

    /// The `confine` object of a fork request. `has_ruleset` says whether one came with the keeper's `ready` and is passed on.
    pub fn confine_message(&self, has_ruleset: bool) -> Value {
        let id = is_root().then_some(INNER_ID);
        json!({
            "rlimits": self.limits,
            "uid": id,
            "gid": id,
            "cwd": self.cwd,
            "seccomp": STANDARD.encode(seccomp_program(self.network)),
            "landlock": has_ruleset,
        })
    }
}

/// Everything of an interpreter that may lie outside the system's own directories.
fn directories(interpreter: &Interpreter) -> Vec<PathBuf> {
    let Interpreter {
        executable,
        base_executable,
        prefix,
        base_prefix,
        exec_prefix,
        base_exec_prefix,
        site_packages,
        ..
    } = interpreter;
    let mut paths: Vec<_> = [prefix, base_prefix, exec_prefix, base_exec_prefix, executable, base_executable]
        .into_iter()
        .chain(site_packages)
        // A prefix of `/` means the system's own directories, which are there anyway.
        .filter(|path| path.is_absolute() && path.parent().is_some())
        .cloned()
        .collect();
    paths.sort();
    paths.dedup();
    paths
}

/// The nursery is this process's child, so it is root's if this is.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// System calls that fail with EPERM: what could change the namespaces and mounts, reach into other processes, or is a large part of
/// the kernel's attack surface that Python code does not need.
const DENIED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    KEXEC_FILE_LOAD,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
];

/// Linux 6.15; libc does not know it yet. Such late numbers are the same everywhere.
const OPEN_TREE_ATTR: libc::c_long = 467;

/// Not in every libc the crate knows.
const KEXEC_FILE_LOAD: libc::c_long = if cfg!(target_arch = "x86_64") { 320 } else { 294 };

const NAMESPACE_FLAGS: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// The BPF program for `seccomp(SECCOMP_SET_MODE_FILTER)`, as the array of `sock_filter` that the kernel takes.
///
/// By hand rather than with seccompiler, which knows one error per program: programs fall back well only when each refusal has the
/// error of a kernel that lacks the feature.
pub fn seccomp_program(network: Network) -> Vec<u8> {
    let mut filter = Filter::default();
    filter.load(ARCHITECTURE_OFFSET);
    // Other architectures have other numbers for the calls below.
    filter.jump(libc::BPF_JEQ, AUDIT_ARCHITECTURE, 1, 0);
    filter.answer(libc::SECCOMP_RET_KILL_PROCESS);
    filter.load(NUMBER_OFFSET);
    if cfg!(target_arch = "x86_64") {
        filter.answer_if(libc::BPF_JGE, X32_CALLS, refusal(libc::ENOSYS));
    }
    // Its flags are in memory, where a filter cannot look. The C library then takes clone.
    filter.answer_if(libc::BPF_JEQ, call(libc::SYS_clone3), refusal(libc::ENOSYS));
    for &number in DENIED {
        filter.answer_if(libc::BPF_JEQ, call(number), refusal(libc::EPERM));
    }
    let families: &[libc::c_int] = match network {
        Network::None => &[libc::AF_UNIX],
        Network::Host => &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK],
    };
    for number in [libc::SYS_socket, libc::SYS_socketpair] {
        filter.on_argument(number, 0, libc::BPF_JEQ, families, libc::SECCOMP_RET_ALLOW, refusal(libc::EAFNOSUPPORT));
    }
    filter.on_argument(
        libc::SYS_clone,
        0,
        libc::BPF_JSET,
        &[NAMESPACE_FLAGS],
        refusal(libc::EPERM),
        libc::SECCOMP_RET_ALLOW,
    );
    filter.on_argument(libc::SYS_ioctl, 1, libc::BPF_JEQ, TYPING_IOCTLS, refusal(libc::EPERM), libc::SECCOMP_RET_ALLOW);
    filter.answer(libc::SECCOMP_RET_ALLOW);
    filter.0
}

/// TIOCSTI and TIOCLINUX. Both put characters into a terminal as if they were typed there: into that of whoever started the daemon, say.
const TYPING_IOCTLS: &[libc::c_int] = &[0x5412, 0x541c];

// From `struct seccomp_data`.
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const ARGUMENTS_OFFSET: u32 = 16;

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCHITECTURE: u32 = 0xc000_00b7;

/// From here on the numbers are those of the x32 variant, which are in no list.
const X32_CALLS: u32 = 0x4000_0000;

/// A classic BPF program in the making. The accumulator always holds the number of the call between two rules.
#[derive(Default)]
struct Filter(Vec<u8>);

impl Filter {
    fn load(&mut self, offset: u32) {
        self.push(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    }

    fn jump(&mut self, test: u32, value: u32, if_true: u8, if_false: u8) {
        self.push(libc::BPF_JMP | test | libc::BPF_K, if_true, if_false, value);
    }

    fn answer(&mut self, answer: u32) {
        self.push(libc::BPF_RET | libc::BPF_K, 0, 0, answer);
    }

    fn answer_if(&mut self, test: u32, value: u32, answer: u32) {
        self.jump(test, value, 0, 1);
        self.answer(answer);
    }

    /// For one call: `answer` if its argument passes the test with one of `values`, else `otherwise`. Only the lower half of the
    /// argument is looked at, which is all that the kernel does with an int.
    fn on_argument(
        &mut self,
        number: libc::c_long,
        argument: u32,
        test: u32,
        values: &[libc::c_int],
        answer: u32,
        otherwise: u32,
    ) {
        let rest = u8::try_from(2 + 2 * values.len()).expect("a rule with few values");
        self.jump(libc::BPF_JEQ, call(number), 0, rest);
        self.load(ARGUMENTS_OFFSET + 8 * argument);
        for value in values {
            self.answer_if(test, value.cast_unsigned(), answer);
        }
        self.answer(otherwise);
    }

    fn push(&mut self, code: u32, if_true: u8, if_false: u8, value: u32) {
        let code = u16::try_from(code).expect("codes have 16 bits");
        self.0.extend_from_slice(&code.to_ne_bytes());
        self.0.extend_from_slice(&[if_true, if_false]);
        self.0.extend_from_slice(&value.to_ne_bytes());
    }
}

fn call(number: libc::c_long) -> u32 {
    u32::try_from(number).expect("numbers of calls are small")
}

fn refusal(errno: libc::c_int) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `probe` behind the filter, in a child, and returns what it returned.
    fn behind_filter(network: Network, probe: impl FnOnce() -> i32) -> i32 {
        let program = seccomp_program(network);
        // SAFETY: the child is a single thread that never returns from here; the program outlives the call that copies it.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                let program = libc::sock_fprog {
                    len: u16::try_from(program.len() / 8).unwrap(),
                    filter: program.as_ptr().cast_mut().cast(),
                };
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                let loaded = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program);
                super::super::leave(if loaded == 0 { probe() } else { 255 });
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            assert!(libc::WIFEXITED(status), "ended by signal {}", libc::WTERMSIG(status));
            libc::WEXITSTATUS(status)
        }
    }

    /// The error of a call, or 0.
    fn errno(number: libc::c_long, arguments: [libc::c_long; 3]) -> i32 {
        let [a, b, c] = arguments;
        // SAFETY: the arguments are numbers, or pointers that the kernel refuses.
        match unsafe { libc::syscall(number, a, b, c, 0, 0) } {
            -1 => std::io::Error::last_os_error().raw_os_error().unwrap_or(254),
            _ => 0,
        }
    }

    #[track_caller]
    fn check(network: Network, number: libc::c_long, arguments: [libc::c_long; 3], expected: i32) {
        assert_eq!(behind_filter(network, || errno(number, arguments)), expected);
    }

    #[test]
    fn dangerous_calls_are_refused() {
        check(Network::None, libc::SYS_unshare, [0, 0, 0], libc::EPERM);
        check(Network::None, libc::SYS_ptrace, [0, 0, 0], libc::EPERM);
        check(Network::None, libc::SYS_bpf, [0, 0, 0], libc::EPERM);
        check(Network::Host, libc::SYS_io_uring_setup, [1, 0, 0], libc::EPERM);
        check(Network::None, libc::SYS_clone3, [0, 0, 0], libc::ENOSYS);
        check(Network::None, libc::SYS_clone, [NAMESPACE_FLAGS.into(), 0, 0], libc::EPERM);
        check(Network::None, libc::SYS_clone, [(libc::CLONE_NEWUSER | libc::SIGCHLD).into(), 0, 0], libc::EPERM);
        check(Network::None, libc::SYS_ioctl, [0, 0x5412, 0], libc::EPERM);
        check(Network::None, libc::SYS_ioctl, [0, 0x1_0000_5412, 0], libc::EPERM);
    }

    #[test]
    fn ordinary_calls_are_not() {
        check(Network::None, libc::SYS_getpid, [0, 0, 0], 0);
        check(Network::None, libc::SYS_ioctl, [-1, 0x5401, 0], libc::EBADF);
        let started = behind_filter(Network::None, || {
            let spawned = std::process::Command::new("/bin/true").status();
            let threaded = std::thread::spawn(|| ()).join();
            i32::from(spawned.is_err() || threaded.is_err())
        });
        assert_eq!(started, 0);
    }

    #[test]
    fn sockets_are_local_without_a_network() {
        let open = |family: i32| [family.into(), libc::SOCK_DGRAM.into(), 0];
        for number in [libc::SYS_socket, libc::SYS_socketpair] {
            check(Network::None, number, open(libc::AF_INET), libc::EAFNOSUPPORT);
            check(Network::None, number, open(libc::AF_INET6), libc::EAFNOSUPPORT);
            check(Network::Host, number, open(libc::AF_VSOCK), libc::EAFNOSUPPORT);
        }
        check(Network::None, libc::SYS_socket, open(libc::AF_UNIX), 0);
        check(Network::Host, libc::SYS_socket, open(libc::AF_INET), 0);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn x32_calls_do_not_exist() {
        check(Network::None, 0x4000_0000 + libc::SYS_getpid, [0, 0, 0], libc::ENOSYS);
    }

    #[test]
    fn profiles_have_names() {
        assert_eq!("sealed".parse::<Profile>().unwrap(), Profile::Sealed);
        let unknown = "workspace".parse::<Profile>().unwrap_err().to_string();
        assert!(unknown.contains("`workspace`") && unknown.contains("`open` and `sealed`"), "{unknown}");
        assert!(Confinement::new(&Profile::Open, &interpreter(), place()).is_none());
    }

    fn place() -> Place<'static> {
        Place {
            directory: Path::new("/data/workspaces/abc"),
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
        }
    }

    #[test]
    fn a_confinement_is_said_as_the_wire_wants_it() {
        let sealed = Confinement::new(&Profile::Sealed, &interpreter(), place()).unwrap();
        let mut request = serde_json::to_value(sealed.keeper_request()).unwrap();
        let mut fields = request.as_object_mut().unwrap().clone();
        assert!(fields.remove("id").unwrap().is_u64());
        let uid = fields.remove("uid").unwrap();
        assert_eq!(uid.as_u64().is_some_and(|uid| uid >= 0x7000_0000), is_root());
        let expected = json!({"op": "keeper", "writable": [], "workspace": "/data/workspaces/abc", "tmp_mb": 64, "network": false, "read_only": [
            "/home/me/.venv", "/home/me/.venv/bin/python", "/home/me/.venv/lib/python3.12/site-packages",
            "/opt/python", "/opt/python/bin/python3", "/data/venvs/x"]});
        assert_eq!(Value::from(fields), expected);

        let message = sealed.confine_message(true);
        assert_eq!(message["uid"], if is_root() { json!(1000) } else { Value::Null });
        assert_eq!(message["landlock"], true);
        assert_eq!(message["cwd"], "/workspace");
        assert_eq!(message["rlimits"]["RLIMIT_NPROC"], 128);
    }
}
