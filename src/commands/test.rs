//! `pylair test`: pytest with the plugin. Its output, colours and exit code are pytest's own, and so are the signals that are sent to us: we only
//! wait, to tell what failed where pytest could not, because a test ended its process.

use std::{
    ffi::CStr,
    fs::OpenOptions,
    io::{self, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    path::PathBuf,
    process::{Child, Command, ExitStatus},
    time::Instant,
};

use jiff::Timestamp;
use rustix::{
    fs::MemfdFlags,
    process::{Pid, Signal, WaitIdOptions},
};
use serde_json::{Value, json};

use super::{Exit, Failure, Surroundings, client::Client, complain};
use crate::{cli::failures::TestArgs, config::Flags};
use pylair_failures::{
    record::Taken,
    view::{Closing, ClosingGroup},
};
use pylair_os::exit::describe_exit;
use pylair_probe::directory::{Directory, PYTEST_SCRIPT};
use pylair_python::Interpreters;
use pylair_text::plain::{one_line, shown, times, with_causes};

/// Signals that are passed on. What a terminal sends goes to pytest as well without us.
const PASSED_ON: [i32; 6] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
/// As many as the plugin shows.
const MAX_LINES: usize = 200;
const MAX_SETTLED_LINES: usize = 20;
const MAX_NAME_CHARS: usize = 500;
/// Maximum size of what is sent at once, unless a single record is larger.
const MAX_BATCH_BYTES: usize = 1 << 20;
/// Of the stacks of a process that crashed.
const MAX_STACKS_BYTES: u64 = 64 << 10;

/// Returns only when pytest could not be started: it ends as pytest ended.
pub fn test(args: &TestArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    surroundings.places.create()?;
    let python = interpreter(args.python.as_deref(), surroundings)?;
    let runtime = &surroundings.places.runtime;
    let directory = Directory::for_tests(runtime).prepare().map_err(|error| {
        Failure::new(
            format!("cannot write the plugin to `{}`: {error}", runtime.display()),
            "set PYLAIR_HOME to a directory you can write to",
        )
    })?;
    // Asked for the notes about settings that come with any answer.
    let started = Client::start(surroundings).and_then(|mut client| client.get::<Value>("/api/settings"));
    if let Err(failure) = started {
        // The tests run all the same; what they report is taken in by the next daemon.
        complain(&failure);
    }
    let run = format!("{}{}", pylair_core::session::new_handle(), pylair_core::session::new_handle());
    let mut command = Command::new(&python);
    command.arg(directory.join(PYTEST_SCRIPT)).args(&args.args).env("PYLAIR_TEST_RUN", &run);
    if let Some(home) = surroundings.env.get("PYLAIR_HOME") {
        command.env("PYLAIR_HOME", home);
    }
    // What cannot be shared is not told.
    let now = Now::new().ok();
    if let Some(now) = &now {
        command.env("PYLAIR_TEST_NOW", now.0.as_raw_fd().to_string());
    }
    let stacks = shared(c"pylair-stacks", 0).ok();
    if let Some(stacks) = &stacks {
        command.env("PYLAIR_TEST_STACKS", stacks.as_raw_fd().to_string());
    }
    super::wrap::keep_signal_mask(&mut command);
    end_with_us(&mut command);
    let signals = block();
    let child = command.spawn().map_err(|error| {
        let named = shown(&python.to_string_lossy());
        Failure::new(format!("cannot run `{named}`: {error}"), "name another Python with --python")
    })?;
    let began = Instant::now();
    let status = wait(child, &signals)?;
    // Nothing that goes wrong here may change how the run ended.
    let mut noted = now.and_then(|now| now.read().ok()).unwrap_or_default();
    noted.stacks = stacks.and_then(|stacks| read_stacks(&stacks)).unwrap_or_default();
    if status.signal().is_some() && !noted.stacks.is_empty() {
        // faulthandler would have.
        let _closed = io::stderr().write_all(noted.stacks.as_bytes());
    }
    let told = end_a_run_that_did_not(&run, status, noted, began.elapsed().as_secs_f64(), surroundings);
    // A run that never began has left nothing, and nobody knows it.
    if let Err(failure) = told
        && spooled(surroundings, &run).exists()
    {
        complain(&failure);
    }
    end_like(status)
}

/// Memory in which the plugin says which test runs, ended by a NUL, and which have passed and are not recorded yet: how many bytes of names,
/// and names that end with a NUL each.
struct Now(OwnedFd);

/// What was there when pytest ended.
#[derive(Default)]
struct Noted {
    running: Option<String>,
    passed: Vec<String>,
    /// As faulthandler wrote them.
    stacks: String,
}

/// Memory that is not closed by an exec: it is for the only program that is started here.
fn shared(name: &CStr, bytes: u64) -> io::Result<OwnedFd> {
    let shared = rustix::fs::memfd_create(name, MemfdFlags::empty())?;
    rustix::fs::ftruncate(&shared, bytes)?;
    Ok(shared)
}

/// The end of the stacks: a child of a test may have crashed before.
fn read_stacks(memory: &OwnedFd) -> Option<String> {
    let size = u64::try_from(rustix::fs::fstat(memory).ok()?.st_size).ok()?;
    let from = size.saturating_sub(MAX_STACKS_BYTES);
    let mut bytes = vec![0; usize::try_from(size - from).ok()?];
    let count = rustix::io::pread(memory, &mut bytes, from).ok()?;
    let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
    Some(text.rfind("Fatal Python error").map_or(text.clone(), |at| text[at..].to_owned()))
}

impl Now {
    const NAME_BYTES: usize = 4096;
    const LOG: usize = Self::NAME_BYTES + 4;
    const BYTES: usize = Self::LOG + (256 << 10);

    fn new() -> io::Result<Self> {
        Ok(Self(shared(c"pylair-test", Self::BYTES as u64)?))
    }

    fn read(&self) -> io::Result<Noted> {
        let mut bytes = vec![0; Self::BYTES];
        let count = rustix::io::pread(&self.0, &mut bytes, 0)?;
        Ok(Noted::parse(&bytes[..count]))
    }
}

impl Noted {
    fn parse(bytes: &[u8]) -> Self {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let (name, rest) = bytes.split_at(Now::NAME_BYTES.min(bytes.len()));
        let running = name.split(|byte| *byte == 0).next().filter(|name| !name.is_empty()).map(text);
        let Some((used, names)) = rest.split_first_chunk() else { return Self { running, ..Self::default() } };
        let used = (u32::from_ne_bytes(*used) as usize).min(names.len());
        let names = names[..used].split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Self { running, passed: names.map(text).collect(), stacks: String::new() }
    }
}

/// Whoever kills us means pytest.
fn end_with_us(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: it only makes a system call.
    unsafe {
        command.pre_exec(|| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?));
    }
}

/// Blocks the signals that `wait` waits for.
fn block() -> libc::sigset_t {
    // SAFETY: all zeros is a valid set, and the calls only write to it and read from it.
    unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        for signal in PASSED_ON.into_iter().chain([libc::SIGCHLD]) {
            libc::sigaddset(&raw mut signals, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
        // Whoever started us may have ignored it, and then nobody would hear how pytest ended.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        signals
    }
}

fn wait(mut child: Child, signals: &libc::sigset_t) -> Result<ExitStatus, Failure> {
    let pid = Pid::from_child(&child);
    loop {
        // SAFETY: both are valid for the time of the call; all zeros is a valid siginfo.
        let (signal, code) = unsafe {
            let mut told: libc::siginfo_t = std::mem::zeroed();
            (libc::sigwaitinfo(signals, &raw mut told), told.si_code)
        };
        if PASSED_ON.contains(&signal) {
            if code != libc::SI_KERNEL
                && let Some(signal) = Signal::from_named_raw(signal)
            {
                let _gone = rustix::process::kill_process(pid, signal);
            }
            continue;
        }
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        if !matches!(rustix::process::waitid(rustix::process::WaitId::Pid(pid), how), Ok(None)) {
            return Ok(child.wait()?);
        }
    }
}

/// Where the plugin keeps what the daemon has not confirmed.
fn spooled(surroundings: &Surroundings, run: &str) -> PathBuf {
    surroundings.places.spool().join(format!("{run}.jsonl"))
}

/// Ends a run whose process ended in the middle of it, and says its closing lines.
fn end_a_run_that_did_not(
    run: &str,
    status: ExitStatus,
    noted: Noted,
    seconds: f64,
    surroundings: &Surroundings,
) -> Result<(), Failure> {
    let spool = spooled(surroundings, run);
    let kept = std::fs::read(&spool).unwrap_or_default();
    // The plugin reached the end of the run without a daemon, and has reported everything.
    if is_ended(&kept) {
        return Ok(());
    }
    let how = match describe_exit(status.into_raw()) {
        (_, Some(signal)) => format!("by {signal}"),
        (code, None) => format!("with exit code {}", code.unwrap_or_default()),
    };
    let ending = ending(run, status, noted, seconds, &how);
    let Some(mut client) = Client::connect(surroundings)? else {
        if !kept.is_empty() {
            // The next daemon takes it in.
            OpenOptions::new().append(true).open(&spool)?.write_all(&ending)?;
        }
        return Ok(());
    };
    let path = format!("/api/runs/{run}/records");
    for batch in batches(&kept) {
        let _taken: Value = client.post_bytes(&path, batch.into())?;
    }
    let told: Value = client.get(&format!("/api/runs/{run}"))?;
    if !told["ended"].is_null() {
        return Ok(());
    }
    let taken: Taken = client.post_bytes(&path, ending.into())?;
    let _absent = std::fs::remove_file(&spool);
    let mut lines = vec![String::new()];
    lines.extend(closing_lines(&taken.closing.unwrap_or_default()));
    lines.push(format!("pylair: pytest was ended {how} before it had told what came of the tests"));
    super::say(&lines.join("\n"))
}

/// What a run found and resolved, as the plugin says it.
fn closing_lines(closing: &Closing) -> Vec<String> {
    let name = |text: &str| one_line(text, MAX_NAME_CHARS);
    let named = |group: &ClosingGroup| format!("{} {}  {}", group.id, name(&group.test), name(&group.kind));
    let mut lines = Vec::new();
    for group in closing.failures.iter().take(MAX_LINES) {
        let ClosingGroup { id, occurrences, failures, .. } = group;
        let seen = if *occurrences > 1 { format!(", seen {}", times(*occurrences)) } else { String::new() };
        let many = if *failures > 1 {
            format!("; one of {failures} failures in group {}", group.group)
        } else {
            String::new()
        };
        let status = serde_json::to_value(group.status).unwrap_or_default();
        let status = status.as_str().unwrap_or_default().replace('_', " ");
        lines.push(format!("pylair: {}  ({status}{seen}{many}; pylair failures show {id})", named(group)));
    }
    let unnamed: u64 = closing.failures.iter().skip(MAX_LINES).map(|group| group.failures).sum();
    let more = unnamed + closing.more_failures;
    if more > 0 {
        lines.push(format!("pylair: and {more} more; pylair failures list --limit 1000"));
    }
    let settled = |group: &ClosingGroup| match group.failures {
        0 | 1 => named(group),
        count => format!("{count} failures in group {}, such as {}", group.group, named(group)),
    };
    for group in closing.resolved.iter().take(MAX_SETTLED_LINES) {
        lines.push(format!("pylair: this run resolved {}", settled(group)));
    }
    for group in closing.not_resolved.iter().take(MAX_SETTLED_LINES) {
        let note = name(group.note.as_deref().unwrap_or_default());
        lines.push(format!("pylair: this run did not resolve {}: {note}", settled(group)));
    }
    lines
}

/// The records that end such a run: of tests that passed just before, of the one that ended it, and of its end.
fn ending(run: &str, status: ExitStatus, noted: Noted, seconds: f64, how: &str) -> Vec<u8> {
    let at = Timestamp::now();
    let test = |nodeid: &str, outcome: &str| {
        json!({
            "ev": "test", "run": run, "nodeid": nodeid, "outcome": outcome, "phase": "call", "at": at,
            "file": nodeid.split("::").next(),
        })
    };
    let mut records: Vec<Value> = noted.passed.iter().map(|nodeid| test(nodeid, "passed")).collect();
    // Some signals come from whoever wants the run to end.
    let by_somebody = status.signal().is_some_and(|signal| PASSED_ON.contains(&signal));
    // Between two tests the last that began is still named.
    let running = noted.running.filter(|nodeid| !by_somebody && noted.passed.last() != Some(nodeid));
    if let Some(nodeid) = running {
        let message = format!("the process of pytest was ended {how} while this test ran");
        let mut record = test(&nodeid, "failed");
        record["failure"] = json!({"exception": {"type": "Died", "message": message}, "text": noted.stacks});
        records.push(record);
    }
    records.push(json!({
        "ev": "end", "run": run, "at": at, "exit_code": status.code().or(status.signal().map(|signal| 128 + signal)),
        "seconds": seconds, "note": format!("pytest was ended {how} in the middle of a test"),
    }));
    records.iter().flat_map(|record| [record.to_string(), "\n".to_owned()]).collect::<String>().into_bytes()
}

/// Whether the last record is that of a run's end.
fn is_ended(lines: &[u8]) -> bool {
    let last = whole_lines(lines).last().unwrap_or_default();
    serde_json::from_slice::<Value>(last).is_ok_and(|record| record["ev"] == "end")
}

/// Lines, many in one request. One that was cut off when the run was killed is none.
fn batches(lines: &[u8]) -> Vec<Vec<u8>> {
    let mut batches: Vec<Vec<u8>> = Vec::new();
    for line in whole_lines(lines) {
        match batches.last_mut() {
            Some(batch) if batch.len() + line.len() <= MAX_BATCH_BYTES => batch.extend_from_slice(line),
            _ => batches.push(line.to_vec()),
        }
    }
    batches
}

fn whole_lines(lines: &[u8]) -> impl Iterator<Item = &[u8]> {
    lines.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"))
}

/// Ends as pytest ended, by its signal too.
fn end_like(status: ExitStatus) -> ! {
    if let Some(signal) = status.signal() {
        // SAFETY: nothing but system calls on values of our own. No core of ours is wanted, whatever became of pytest's.
        unsafe {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            libc::signal(signal, libc::SIG_DFL);
            let mut signals: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut signals);
            libc::sigaddset(&raw mut signals, signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const signals, std::ptr::null_mut());
            libc::raise(signal);
        }
    }
    std::process::exit(status.code().unwrap_or(1))
}

fn interpreter(wanted: Option<&str>, surroundings: &Surroundings) -> Result<std::path::PathBuf, Failure> {
    let config = surroundings.config(&Flags::default())?;
    let cwd = surroundings
        .cwd
        .clone()
        .ok_or_else(|| Failure::new("the working directory is gone", "change to a directory that exists"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = runtime.block_on(Interpreters::default().resolve(
        wanted,
        config.caller.python.as_deref(),
        &cwd,
        &surroundings.env,
    ));
    found.map(|interpreter| interpreter.executable).map_err(|error| Failure::new(with_causes(&error), error.hint()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passed_is_read_as_far_as_it_was_noted() {
        let mut bytes = vec![0; Now::BYTES];
        assert!(Noted::parse(&bytes).running.is_none());
        bytes[..8].copy_from_slice(b"t.py::c\0");
        let names = b"t.py::a\0t.py::b\0t.py::half";
        bytes[Now::LOG..Now::LOG + names.len()].copy_from_slice(names);
        bytes[Now::NAME_BYTES] = 16;
        let noted = Noted::parse(&bytes);
        assert_eq!(
            (noted.running.as_deref(), noted.passed),
            (Some("t.py::c"), vec!["t.py::a".into(), "t.py::b".into()])
        );
        // A count that is out of range, and memory that an older plugin wrote, which has no count.
        bytes[Now::NAME_BYTES..Now::LOG].fill(255);
        assert_eq!(Noted::parse(&bytes).passed.len(), 3);
        assert!(Noted::parse(&bytes[..Now::NAME_BYTES]).passed.is_empty());
    }

    #[test]
    fn what_was_kept_is_sent_in_whole_lines_and_an_end_is_known() {
        let long = "x".repeat(MAX_BATCH_BYTES);
        let kept = format!("{{\"ev\":\"run\"}}\n\"{long}\"\n{{\"ev\":\"test\"}}\n{{\"ev\":\"en");
        let sizes: Vec<_> = batches(kept.as_bytes()).iter().map(Vec::len).collect();
        assert_eq!(sizes, [13, MAX_BATCH_BYTES + 3, 14], "the last line was cut off");
        assert!(!is_ended(kept.as_bytes()) && !is_ended(b""));
        assert!(is_ended(b"{\"ev\":\"run\"}\n{\"ev\":\"end\"}\n"));
    }
}
