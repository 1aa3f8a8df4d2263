//! The daemon in the background, and how it is stopped.

use std::{
    borrow::Cow,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    process::ExitCode,
    sync::Mutex,
};

use tracing_subscriber::EnvFilter;

use super::{Exit, Failure, Surroundings, client::Client, say};
use crate::{
    config::{self, Flags},
    lifecycle::{self, Run, say_ready},
};
use pylair_core::caller::Door;
use pylair_mcp::tools::Selection;
use pylair_os::inherited::Descriptors;
use pylair_text::{
    mask::{self, Reading},
    plain::{shown, with_causes},
};
use pylair_web::api::Stopped;

const MAX_LOG_BYTES: u64 = 4 << 20;
const OLD_LOGS: u32 = 3;
const MAX_LINE_BYTES: usize = 16 << 10;
/// What is logged if nobody says otherwise. The protocol's own library repeats whole messages in its warnings.
pub const LOGGED: &str = "warn,rmcp=error,pylair=info";
/// How long threads that wait for a file or a disk may keep a daemon that has closed everything else.
pub const THREADS_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3);

/// `pylair __daemon`: leaves its parent, says on stdout whether it is ready, serves until nobody needs it.
pub fn daemon() -> ExitCode {
    // SAFETY: we are the first thing in the program, with one thread. The parent leaves at once, so that whoever started us
    // can reap it and the daemon is nobody's child: clients kill the process trees they started.
    match unsafe { libc::fork() } {
        0 => {}
        pid if pid < 0 => return ExitCode::from(Exit::Failed as u8),
        _ => return ExitCode::SUCCESS,
    }
    // SAFETY: a system call without arguments.
    unsafe { libc::setsid() };
    let served = Descriptors::hide().map_err(|error| format!("open descriptors cannot be listed: {error}"));
    let served = served.and_then(|descriptors| {
        descriptors.close();
        serve()
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            say_ready(&message);
            ExitCode::from(Exit::Failed as u8)
        }
    }
}

fn serve() -> Result<(), String> {
    let surroundings = Surroundings::find().map_err(|failure| failure.message)?;
    surroundings.places.create().map_err(|error| with_causes(&error))?;
    let log = RotatingLog::open(surroundings.places.log()).map_err(|error| format!("cannot open the log: {error}"))?;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| LOGGED.into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(Mutex::new(log))
        // Otherwise it is told on stderr what could not be written to the log, and a stderr that fails as well is a panic.
        .log_internal_errors(false)
        .init();
    let (config, http) = config::resolve(&Flags::default(), &surroundings.env, None, &surroundings.places)
        .map_err(|error| with_causes(&error))?;
    let selection = Selection::parse(None, false, Door::Http)?;
    let run = Run { config, http, places: surroundings.places, selection, foreground: false };
    let runtime = runtime().map_err(|error| error.to_string())?;
    let served = runtime.block_on(async {
        let opened = lifecycle::open(run, &surroundings.program).await.map_err(|error| with_causes(&error))?;
        say_ready("ready");
        // Whoever started us waits for the end of this pipe; from now on our stdout is nobody's.
        let null = File::options().write(true).open("/dev/null").map_err(|error| error.to_string())?;
        rustix::stdio::dup2_stdout(null).map_err(|error| error.to_string())?;
        opened.run().await.map_err(|error| error.to_string())
    });
    runtime.shutdown_timeout(THREADS_TIMEOUT);
    served
}

/// One thread does all the waiting: a request passes through half a dozen tasks, and waking another thread for each costs more than
/// the work they do. Files are read and SQLite runs on threads of their own.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("pylair").enable_all().build()
}

/// `pylair stop`.
pub fn stop(surroundings: &Surroundings) -> Result<Exit, Failure> {
    let Some(mut client) = Client::connect(surroundings)? else {
        say("no daemon is running")?;
        return Ok(Exit::Ok);
    };
    let Stopped { status, unsaved } = client.post("/api/stop", &serde_json::json!({}))?;
    wait_until_gone(surroundings, status.pid)?;
    say(&format!("stopped the daemon (pid {}) and {} sessions", status.pid, status.sessions))?;
    for unsaved in unsaved {
        say(&format!("not saved: {}: {}", shown(&unsaved.what), shown(&unsaved.why)))?;
    }
    Ok(Exit::Ok)
}

/// The daemon holds its lock until nothing is left of its sessions.
fn wait_until_gone(surroundings: &Surroundings, pid: u32) -> Result<(), Failure> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let Some(pid) = pid else { return Ok(()) };
    let Ok(pidfd) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else { return Ok(()) };
    let mut poll = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 };
    match rustix::event::poll(&mut poll, Some(&limit)) {
        Ok(0) => Err(Failure::new(
            format!("the daemon (pid {}) does not end", pid.as_raw_nonzero()),
            format!("see {}", surroundings.places.log().display()),
        )),
        _ => Ok(()),
    }
}

/// A line of a log without the secrets in it, and not longer than anybody reads.
pub fn masked_line(bytes: &[u8]) -> Cow<'_, [u8]> {
    let Ok(line) = std::str::from_utf8(bytes) else { return Cow::Borrowed(bytes) };
    let cut = line.floor_char_boundary(MAX_LINE_BYTES);
    let line = if cut < line.len() { Cow::Owned(format!("{}…\n", &line[..cut])) } else { Cow::Borrowed(line) };
    match (mask::masked(&line, Reading::Text), line) {
        (Some(masked), _) => Cow::Owned(masked.into_bytes()),
        (None, Cow::Owned(line)) => Cow::Owned(line.into_bytes()),
        (None, Cow::Borrowed(line)) => Cow::Borrowed(line.as_bytes()),
    }
}

/// A log file that starts anew when it is full, keeping a few old ones.
struct RotatingLog {
    path: PathBuf,
    file: File,
    written: u64,
}

impl RotatingLog {
    fn open(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path)?;
        let written = file.metadata()?.len();
        Ok(Self { path, file, written })
    }

    fn old(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    fn rotate(&mut self) -> io::Result<()> {
        for number in (1..OLD_LOGS).rev() {
            if self.old(number).exists() {
                fs::rename(self.old(number), self.old(number + 1))?;
            }
        }
        fs::rename(&self.path, self.old(1))?;
        *self = Self::open(self.path.clone())?;
        Ok(())
    }
}

impl Write for RotatingLog {
    /// Comes with whole lines.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = masked_line(bytes);
        if self.written + line.len() as u64 > MAX_LOG_BYTES {
            self.rotate()?;
        }
        self.written += line.len() as u64;
        self.file.write_all(&line)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_starts_anew_and_old_ones_are_bounded() {
        let dir = std::env::temp_dir().join(format!("pylair-log-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut log = RotatingLog::open(dir.join("daemon.log")).unwrap();
        log.write_all(&vec![b'x'; 2 * MAX_LINE_BYTES]).unwrap();
        assert!(log.written < MAX_LINE_BYTES as u64 + 10, "a line that nobody reads is cut");
        let line = vec![b' '; MAX_LINE_BYTES];
        for _ in 0..5 * MAX_LOG_BYTES / MAX_LINE_BYTES as u64 {
            log.write_all(&line).unwrap();
        }
        let mut names: Vec<_> =
            fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(names, ["daemon.log", "daemon.log.1", "daemon.log.2", "daemon.log.3"]);
    }
}
