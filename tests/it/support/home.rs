//! A home of its own for each test, with the program in it. Dropping it stops the daemon and looks for what was left behind.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use pylair_core::{caller::Scope, settings::Places};
use pylair_web::token::{self, Wanted};
use rustix::process::Signal;

use super::{
    Client, PATIENCE, Server,
    process::{self, Watched},
    python,
};

/// Names that begin like this belong to a template's own environment, so all Python processes of a test carry it.
const MARKER: &str = "PYTHON_PYLAIR_TEST_HOME";

/// The file in which a daemon writes down what kept the thread that serves all others too long.
const SLOW_POLLS: &str = "PYLAIR_SLOW_POLLS";

#[derive(Debug)]
pub struct Home {
    pub path: PathBuf,
    /// The built binary under a name of this home's own, by which its processes are known.
    pub program: PathBuf,
    pub env: BTreeMap<String, String>,
    abandoned: bool,
}

/// How a command ended and what it said.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Home {
    pub fn new() -> Self {
        Self::with_python(&python::newest_python())
    }

    pub fn with_python(python: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // No name is the beginning of another: processes are found by it.
        let name = format!("it-{}-{}-home", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // A test that is run again as somebody else needs a place of theirs.
        let base = std::env::var("PYLAIR_TEST_HOMES").unwrap_or_else(|_| env!("CARGO_TARGET_TMPDIR").to_owned());
        let path = Path::new(&base).join(name);
        // A run with the same pid may have been killed.
        let _absent = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("work")).expect("the target directory is writable");
        let program = path.join("pylair");
        let built = std::env::var("PYLAIR_TEST_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_pylair").to_owned());
        fs::hard_link(&built, &program)
            .or_else(|_| fs::copy(&built, &program).map(drop))
            .expect("the program can be put there");
        let text = |path: &Path| path.to_str().expect("our paths are UTF-8").to_owned();
        let env = [
            ("HOME", text(&path.join("work"))),
            ("LANG", "C.UTF-8".to_owned()),
            ("PATH", "/usr/local/bin:/usr/bin:/bin".to_owned()),
            ("PYLAIR_HOME", text(&path)),
            ("PYLAIR_PYTHON", text(python)),
            (SLOW_POLLS, text(&path.join("slow-polls"))),
            (MARKER, text(&path)),
        ];
        let env = env.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Self { path, program, env, abandoned: false }
    }

    /// The variable that all processes of this home carry.
    pub fn marker(&self) -> (&str, &str) {
        (MARKER, &self.env[MARKER])
    }

    /// A setting of the daemon, by its environment variable.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.env.insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn places(&self) -> Places {
        Places::resolve(&self.env, rustix::process::getuid().as_raw())
    }

    /// Where commands and sessions start.
    pub fn work(&self) -> PathBuf {
        self.path.join("work")
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env_clear().envs(&self.env).current_dir(self.work()).stdin(Stdio::null());
        command
    }

    /// A token whose time is over, which no command makes.
    pub fn expired_token(&self, name: &str, scope: Scope) -> String {
        let wanted = Wanted { name, owner: name, scopes: &[scope], lasts: Some(Duration::ZERO) };
        token::add(&self.places(), &wanted).expect("it can be written")
    }

    /// Runs a command to its end.
    pub fn run(&self, args: &[&str]) -> Finished {
        self.run_with_input(args, b"")
    }

    /// The same in another directory.
    pub fn run_in(&self, directory: &Path, args: &[&str]) -> Finished {
        let mut command = self.command(args);
        command.current_dir(directory);
        finish(command, b"")
    }

    pub fn run_with_input(&self, args: &[&str], input: &[u8]) -> Finished {
        finish(self.command(args), input)
    }

    /// A client with a bridge, not introduced yet.
    pub fn client(&self) -> Client {
        Client::start(self.command(&["mcp"]))
    }

    /// A client that has introduced itself.
    pub fn initialized_client(&self) -> Client {
        let mut client = self.client();
        client.initialize();
        client
    }

    /// The command, started by a process of its own: another client than the one that this test is.
    pub fn command_of_another(&self, args: &[&str], variables: &[(&str, &str)]) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "\"$0\" \"$@\"; exit $?"]).arg(&self.program).args(args);
        command.env_clear().envs(&self.env).envs(variables.iter().copied());
        command.current_dir(self.work()).stdin(Stdio::null());
        command
    }

    /// Another client that has introduced itself, with settings of its own.
    pub fn another_client(&self, variables: &[(&str, &str)]) -> Client {
        let mut client = Client::start(self.command_of_another(&["mcp"], variables));
        client.initialize();
        client
    }

    /// Runs a command with settings of its own to its end.
    pub fn run_with(&self, variables: &[(&str, &str)], args: &[&str]) -> Finished {
        let mut command = self.command(args);
        command.envs(variables.iter().copied());
        finish(command, b"")
    }

    /// A daemon in the foreground with its HTTP door open.
    pub fn serve(&self) -> Server {
        Server::start(self.command(&["serve", "--port", "0"]), &self.places())
    }

    /// The daemon that answers here.
    pub fn daemon_pid(&self) -> i32 {
        let told = self.run(&["doctor", "--json", "--quick"]);
        let findings: serde_json::Value = serde_json::from_str(&told.stdout).expect("doctor --json prints JSON");
        i32::try_from(findings["daemon"]["pid"].as_i64().expect("a daemon runs")).expect("a pid is small")
    }

    /// Waits until the journal on disk has this text, which it has a moment after it happened.
    pub fn wait_until_written(&self, text: &str) {
        let journal = self.places().journal();
        let log = journal.with_extension("db-wal");
        let until = Instant::now() + PATIENCE;
        let has = |path: &Path| {
            let bytes = fs::read(path).unwrap_or_default();
            bytes.windows(text.len()).any(|window| window == text.as_bytes())
        };
        while !has(&journal) && !has(&log) {
            assert!(Instant::now() < until, "{text} is not in the journal");
            std::thread::yield_now();
        }
    }

    /// Everything that runs in this home now.
    pub fn processes(&self) -> Vec<Watched> {
        process::belonging_to(&self.path)
    }

    /// Cleans up without looking: the test has failed already.
    pub fn abandon(&mut self) {
        self.abandoned = true;
    }

    fn assert_nothing_is_left(&self) {
        for process in self.processes() {
            process.assert_ends();
        }
        let left = self.processes();
        assert!(left.is_empty(), "processes were left behind: {left:?}");
    }

    /// Whatever the test did, nobody had to wait for somebody else's work.
    fn assert_nobody_was_held_up(&self) {
        let slow = self.env.get(SLOW_POLLS).and_then(|file| fs::read_to_string(file).ok());
        assert!(slow.is_none(), "others had to wait for this:\n{}", slow.unwrap_or_default());
    }

    fn remove(&self) {
        let runtime = self.places().runtime;
        if !runtime.starts_with(&self.path) {
            let _absent = fs::remove_dir_all(runtime);
        }
        let _absent = fs::remove_dir_all(&self.path);
    }
}

/// Runs a command to its end.
pub fn finish(mut command: Command, input: &[u8]) -> Finished {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    // A command that does not read its input closes it.
    let _unread = stdin.write_all(input);
    drop(stdin);
    let watched = Watched::new(child.id().cast_signed());
    let output = std::thread::spawn(move || child.wait_with_output());
    watched.assert_ends();
    let output = output.join().expect("waiting does not panic").expect("it can be waited for");
    Finished {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.abandoned || std::thread::panicking() {
            for process in self.processes() {
                if process.is_alive() {
                    process::kill(process.pid, Signal::KILL);
                }
            }
            self.remove();
            return;
        }
        if self.places().socket().exists() {
            let stopped = self.run(&["stop"]);
            assert!(stopped.status.success(), "the daemon could not be stopped: {stopped:?}");
        }
        self.assert_nothing_is_left();
        self.assert_nobody_was_held_up();
        self.remove();
    }
}
