//! `pylair test`: pytest with the plugin. Its output, colours and exit code are pytest's own, and so are the signals that are sent to us: we only
//! wait, to tell what failed where pytest could not, because a test ended its process.

use std::{
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
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
use crate::{
    cli::failures::TestArgs,
    config::Flags,
    plain::{one_line, shown},
    probe::{
        directory::{Directory, PYTEST_SCRIPT},
        exit::describe_exit,
    },
    python::Interpreters,
};

/// Signals that are passed on. What a terminal sends goes to pytest as well without us.
const PASSED_ON: [i32; 6] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
/// As many as the plugin shows.
const MAX_LINES: usize = 200;
const MAX_NAME_CHARS: usize = 500;

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
    if let Err(failure) = Client::start(surroundings) {
        // The tests run all the same; what they report is taken in by the next daemon.
        complain(&failure);
    }
    let run = format!("{}{}", crate::session::new_handle(), crate::session::new_handle());
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
    let running = now.and_then(|now| now.test());
    let _told = end_a_run_that_did_not(&run, status, running, began.elapsed().as_secs_f64(), surroundings);
    end_like(status)
}

/// Memory in which the plugin says which test runs, ended by a NUL.
struct Now(OwnedFd);

impl Now {
    const BYTES: usize = 4096;

    fn new() -> io::Result<Self> {
        // Not closed by an exec: it is for the only program that is started here.
        let shared = rustix::fs::memfd_create(c"pylair-test", MemfdFlags::empty())?;
        rustix::fs::ftruncate(&shared, Self::BYTES as u64)?;
        Ok(Self(shared))
    }

    fn test(&self) -> Option<String> {
        let mut bytes = [0; Self::BYTES];
        let count = rustix::io::pread(&self.0, &mut bytes, 0).ok()?;
        let name = bytes[..count].split(|byte| *byte == 0).next()?;
        (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
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

/// Ends a run whose process ended in the middle of it, and says its closing lines.
fn end_a_run_that_did_not(
    run: &str,
    status: ExitStatus,
    running: Option<String>,
    seconds: f64,
    surroundings: &Surroundings,
) -> Result<(), Failure> {
    // The plugin has given up on the daemon, and has told what there is to tell.
    if surroundings.places.spool().join(format!("{run}.jsonl")).exists() {
        return Ok(());
    }
    let Some(mut client) = Client::connect(surroundings)? else { return Ok(()) };
    let told: Value = client.get(&format!("/api/runs/{run}"))?;
    if !told["ended"].is_null() {
        return Ok(());
    }
    let how = match describe_exit(status.into_raw()) {
        (_, Some(signal)) => format!("by {signal}"),
        (code, None) => format!("with exit code {}", code.unwrap_or_default()),
    };
    let at = Timestamp::now();
    let path = format!("/api/runs/{run}/records");
    let mut records = Vec::new();
    // Some signals come from whoever wants the run to end.
    let by_somebody = status.signal().is_some_and(|signal| PASSED_ON.contains(&signal));
    if let Some(nodeid) = running.filter(|_| !by_somebody) {
        let message = format!("the process of pytest was ended {how} while this test ran");
        records.push(json!({
            "ev": "test", "run": run, "nodeid": nodeid, "outcome": "failed", "phase": "call", "at": at,
            "file": nodeid.split("::").next(), "failure": {"exception": {"type": "Died", "message": message}},
        }));
    }
    records.push(json!({
        "ev": "end", "run": run, "at": at, "exit_code": status.code().or(status.signal().map(|signal| 128 + signal)),
        "seconds": seconds, "note": format!("pytest was ended {how} in the middle of a test"),
    }));
    let lines: Vec<String> = records.iter().map(Value::to_string).collect();
    let _taken: Value = client.post_bytes(&path, lines.join("\n").into())?;
    let told: Value = client.get(&format!("/api/runs/{run}"))?;
    let failures = told["failures"].as_array().cloned().unwrap_or_default();
    let mut lines = vec![String::new()];
    for failure in failures.iter().take(MAX_LINES) {
        let text = |key: &str| one_line(failure[key].as_str().unwrap_or_default(), MAX_NAME_CHARS);
        let (id, times) = (text("id"), failure["occurrences"].as_u64().unwrap_or_default());
        let seen = if times > 1 { format!(", seen {times} times") } else { String::new() };
        let status = text("status").replace('_', " ");
        lines.push(format!(
            "pylair: {id} {}  {}  ({status}{seen}; pylair failures show {id})",
            text("test"),
            text("type")
        ));
    }
    if failures.len() > MAX_LINES {
        lines.push(format!(
            "pylair: and {} more; pylair failures list --limit {}",
            failures.len() - MAX_LINES,
            failures.len()
        ));
    }
    lines.push(format!("pylair: pytest was ended {how} before it had told what came of the tests"));
    super::say(&lines.join("\n"))
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
    let found =
        runtime.block_on(Interpreters::default().resolve(wanted, config.python.as_deref(), &cwd, &surroundings.env));
    found.map(|interpreter| interpreter.executable).map_err(|error| Failure::new(super::chain(&error), error.hint()))
}
