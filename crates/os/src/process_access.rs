//! Why another process cannot be looked into or attached to, with the exact way out. Called by `stacks` and by whatever attaches.
//!
//! The kernel answers `EPERM` or `ESRCH` and nothing else; what it meant is found in `/proc`. Gathering is separate from judging.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use pylair_text::plain::one_line;

const CAP_SYS_PTRACE: u32 = 19;
/// The overflow user: what the owner of a process looks like whose user has no name in our namespace.
const NOBODY: u32 = 65534;
const MAX_NAME_CHARS: usize = 60;

/// A process that cannot be reached, in words: a kind for programs, a message, and the way out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Access {
    pub kind: &'static str,
    pub message: String,
    pub hint: String,
}

impl Access {
    fn new(kind: &'static str, message: String, hint: impl Into<String>) -> Self {
        Self { kind, message, hint: hint.into() }
    }
}

/// What `/proc` says about a process and about us.
#[derive(Debug, Clone, Default)]
struct Facts {
    pid: i32,
    /// None when there is no such process.
    status: Option<Status>,
    our_uid: u32,
    /// We may trace processes of others, in our own user namespace.
    may_trace: bool,
    same_user_namespace: bool,
    /// Its files in `/proc` belong to its user, which they do not once it was made undumpable.
    dumpable: bool,
    yama: Option<u32>,
    our_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Status {
    name: String,
    state: char,
    /// The process, where the id is one of its threads.
    leader: i32,
    tracer: i32,
    uid: u32,
    has_memory: bool,
}

/// Fails when no look can succeed, whatever the permissions: no such process, one that has ended, a thread, the kernel's own.
pub fn check(pid: i32) -> Result<(), Access> {
    if !Path::new("/proc/self").exists() {
        let message = "/proc is not mounted here, and other processes are seen through it only".to_owned();
        return Err(Access::new("no_proc", message, "mount it: `mount -t proc proc /proc`"));
    }
    unreachable_one(&gather(pid)).map_or(Ok(()), Err)
}

/// What an error of the kernel about this process means.
pub fn explain(pid: i32, error: &io::Error) -> Access {
    judge(&gather(pid), error)
}

/// The process is there, and runs something else.
pub fn not_python(pid: i32) -> Access {
    let name = program_name(pid);
    Access::new(
        "not_python",
        format!("process {pid} runs {name}, which is not Python"),
        "pass the pid of a Python process: `pgrep -a python` lists them",
    )
}

/// How many files a process has open and may have; none when it is gone or not ours to look at.
pub fn open_files(pid: i32) -> Option<(u64, u64)> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let limit = line.split_whitespace().next()?.parse().ok()?;
    let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    Some((u64::try_from(open).ok()?, limit))
}

/// What a process runs, for messages.
pub fn program_name(pid: i32) -> String {
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok();
    let name = program.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let name = name.or_else(|| read_status(pid).map(|status| status.name)).unwrap_or_else(|| "nothing".to_owned());
    format!("`{}`", one_line(&name, MAX_NAME_CHARS))
}

fn gather(pid: i32) -> Facts {
    let status = read_status(pid);
    let of = |what: &str| PathBuf::from(format!("/proc/{pid}/{what}"));
    let namespace = |path: &Path| fs::read_link(path).ok();
    let ours = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = field(&ours, "CapEff").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    let theirs = namespace(&of("ns/user"));
    let program = std::env::current_exe().ok();
    Facts {
        pid,
        our_uid: rustix::process::geteuid().as_raw(),
        may_trace: capabilities >> CAP_SYS_PTRACE & 1 == 1,
        // One that cannot be read is judged by the rest.
        same_user_namespace: theirs.is_none() || theirs == namespace(Path::new("/proc/self/ns/user")),
        dumpable: status
            .as_ref()
            .is_none_or(|status| fs::metadata(of("stat")).map_or(true, |metadata| metadata.uid() == status.uid)),
        yama: fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok().and_then(|text| text.trim().parse().ok()),
        our_name: program.map_or_else(|| "pylair".to_owned(), |path| path.display().to_string()),
        status,
    }
}

fn read_status(pid: i32) -> Option<Status> {
    parse_status(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/status")).ok()?))
}

fn field<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

fn parse_status(text: &str) -> Option<Status> {
    Some(Status {
        name: field(text, "Name")?.to_owned(),
        state: field(text, "State")?.chars().next()?,
        leader: field(text, "Tgid")?.parse().ok()?,
        tracer: field(text, "TracerPid").and_then(|pid| pid.parse().ok()).unwrap_or(0),
        uid: field(text, "Uid")?.split_whitespace().next()?.parse().ok()?,
        has_memory: field(text, "VmSize").is_some(),
    })
}

fn unreachable_one(facts: &Facts) -> Option<Access> {
    let pid = facts.pid;
    let Some(status) = &facts.status else {
        let hint = "it has ended, or the number is wrong: `pgrep -a python` lists Python processes";
        return Some(Access::new("no_process", format!("there is no process {pid}"), hint));
    };
    let name = one_line(&status.name, MAX_NAME_CHARS);
    if matches!(status.state, 'Z' | 'X') {
        let message = format!("process {pid} (`{name}`) has ended and only waits for its parent to notice");
        return Some(Access::new("zombie", message, "nothing of it is left to look at"));
    }
    if status.leader != pid {
        let leader = status.leader;
        let message = format!("{pid} is a thread of process {leader}");
        return Some(Access::new("not_a_process", message, format!("pass the process: {leader}")));
    }
    if !status.has_memory {
        let message = format!("process {pid} (`{name}`) is the kernel's own");
        return Some(Access::new("kernel_thread", message, "pass the pid of a Python process"));
    }
    None
}

fn judge(facts: &Facts, error: &io::Error) -> Access {
    if let Some(access) = unreachable_one(facts) {
        return access;
    }
    let pid = facts.pid;
    // It is there, or it would have been judged above.
    let status = facts.status.clone().unwrap_or_default();
    let refused = matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES));
    if !refused {
        let (kind, hint) = match error.raw_os_error() {
            Some(libc::ESRCH | libc::ENOENT) => ("no_process", "it ended just now"),
            _ => ("unreachable", "try again; if it stays so, `pylair doctor` may say more"),
        };
        return Access::new(kind, format!("process {pid} cannot be reached: {error}"), hint);
    }
    if status.tracer != 0 {
        let tracer = status.tracer;
        let message = format!("process {pid} is held by a debugger, process {tracer} ({})", program_name(tracer));
        return Access::new("being_debugged", message, "end that debugger, or look with it");
    }
    let as_root = format!("sudo {} …", facts.our_name);
    if !facts.may_trace && status.uid != facts.our_uid {
        let owner = if status.uid == NOBODY { "a user unknown here".to_owned() } else { user_name(status.uid) };
        let message = format!("process {pid} belongs to {owner}, and you are {}", user_name(facts.our_uid));
        return Access::new("other_user", message, format!("run it as that user, or as root: `{as_root}`"));
    }
    if !facts.same_user_namespace {
        let message = format!("process {pid} is in a container of its own, which refuses to be looked into from here");
        let hint = "run pylair inside the container, or outside as root of the machine";
        return Access::new("other_namespace", message, hint);
    }
    match facts.yama {
        Some(3) => {
            let message = format!("this machine forbids looking into any process (ptrace_scope is 3), so also {pid}");
            return Access::new("forbidden", message, "kernel.yama.ptrace_scope can only be lowered by a reboot");
        }
        Some(scope @ 1..) if !facts.may_trace => {
            let message = format!(
                "this machine lets a process look only into its own children (ptrace_scope is {scope}), and process {pid} is not one"
            );
            let allow = if scope == 1 {
                "; or `sudo sysctl kernel.yama.ptrace_scope=0` until the next boot; or start the app with `pylair wrap`, which needs no such right"
            } else {
                "; or start the app with `pylair wrap`, which needs no such right"
            };
            return Access::new("yama", message, format!("`{as_root}`{allow}"));
        }
        _ => {}
    }
    if !facts.dumpable && !facts.may_trace {
        let message = format!("process {pid} has changed its user or closed itself against being looked into");
        return Access::new("not_dumpable", message, format!("`{as_root}`"));
    }
    let message = format!("the kernel refuses to let process {pid} be looked into: {error}");
    let hint = if facts.may_trace {
        "in a container, start it with the capability SYS_PTRACE (`--cap-add=SYS_PTRACE`)".to_owned()
    } else {
        format!("`{as_root}`; in a container, start it with `--cap-add=SYS_PTRACE`")
    };
    Access::new("not_permitted", message, hint)
}

/// By the user database.
pub fn user_name(uid: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| one_line(name, MAX_NAME_CHARS))
    });
    name.unwrap_or_else(|| format!("user {uid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app() -> Facts {
        let status =
            Status { name: "python3".into(), state: 'S', leader: 4711, tracer: 0, uid: 4_000_001, has_memory: true };
        Facts {
            pid: 4711,
            status: Some(status),
            our_uid: 4_000_001,
            may_trace: false,
            same_user_namespace: true,
            dumpable: true,
            yama: None,
            our_name: "/bin/pylair".into(),
        }
    }

    fn judged(change: impl FnOnce(&mut Facts)) -> Access {
        let mut facts = app();
        change(&mut facts);
        judge(&facts, &io::Error::from_raw_os_error(libc::EPERM))
    }

    fn status(facts: &mut Facts) -> &mut Status {
        facts.status.as_mut().expect("it has one")
    }

    #[test]
    fn each_reason_has_a_kind_and_a_way_out() {
        let kind = |change: fn(&mut Facts)| judged(change).kind;
        assert_eq!(kind(|facts| facts.status = None), "no_process");
        assert_eq!(kind(|facts| status(facts).state = 'Z'), "zombie");
        assert_eq!(kind(|facts| status(facts).leader = 4700), "not_a_process");
        assert_eq!(kind(|facts| status(facts).has_memory = false), "kernel_thread");
        assert_eq!(kind(|facts| status(facts).tracer = 1), "being_debugged");
        assert_eq!(kind(|facts| status(facts).uid = 4_000_002), "other_user");
        assert_eq!(kind(|facts| facts.same_user_namespace = false), "other_namespace");
        assert_eq!(kind(|facts| facts.yama = Some(1)), "yama");
        assert_eq!(kind(|facts| facts.yama = Some(3)), "forbidden");
        assert_eq!(kind(|facts| facts.dumpable = false), "not_dumpable");
        assert_eq!(kind(|_| {}), "not_permitted");
    }

    #[test]
    fn the_remedy_is_one_that_helps() {
        let other = judged(|facts| status(facts).uid = 4_000_002);
        assert_eq!(other.message, "process 4711 belongs to user 4000002, and you are user 4000001");
        assert_eq!(other.hint, "run it as that user, or as root: `sudo /bin/pylair …`");
        // Root is refused for other reasons than the owner.
        assert_eq!(
            judged(|facts| {
                status(facts).uid = 4_000_002;
                facts.may_trace = true;
                facts.yama = Some(1);
            })
            .kind,
            "not_permitted"
        );
        assert!(judged(|facts| facts.yama = Some(1)).hint.contains("sysctl kernel.yama.ptrace_scope=0"));
        assert!(!judged(|facts| facts.yama = Some(2)).hint.contains("sysctl"));
    }

    #[test]
    fn the_process_file_is_read_whatever_the_name() {
        let text = "Name:\ta (b)\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t7\nPid:\t8\nTracerPid:\t3\nUid:\t5\t6\t6\t6\nVmSize:\t 1 kB\n";
        let read = parse_status(text).expect("it is complete");
        let wanted = Status { name: "a (b)".into(), state: 'S', leader: 7, tracer: 3, uid: 5, has_memory: true };
        assert_eq!(read, wanted);
        assert_eq!(parse_status("Name:\tx\n"), None);
    }

    #[test]
    fn a_living_process_passes_the_check_and_a_dead_one_does_not() {
        assert_eq!(check(std::process::id().cast_signed()), Ok(()));
        assert_eq!(check(i32::MAX).unwrap_err().kind, "no_process");
        assert!(explain(i32::MAX, &io::Error::from_raw_os_error(libc::ESRCH)).message.contains("no process"));
    }
}
