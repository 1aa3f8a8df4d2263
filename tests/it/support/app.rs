//! Apps to visit: programs that start a probe of their own, say `ready`, and end when their standard input does.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use rustix::process::Signal;

use super::{Home, Watched, newest_python, process};

/// The package that programs import, as it is in this repository.
fn probe() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/probe"))
}

/// A program that runs. Dropping it ends it.
#[derive(Debug)]
pub struct AppProcess {
    child: Child,
    pub pid: i32,
}

impl AppProcess {
    /// Starts a program under the newest Python and waits until it serves. `setup` comes before `pylair.start`, whose arguments are `start`.
    pub fn start(home: &Home, setup: &str, start: &str) -> Self {
        Self::plain(home, &format!("import pylair\n{setup}\npylair.start({start})"))
    }

    /// The same without a probe, unless the code starts one.
    pub fn plain(home: &Home, code: &str) -> Self {
        let program = format!("import sys\n{code}\nprint('ready', flush=True)\nsys.stdin.read()\n");
        let path = home.work().join("program.py");
        fs::write(&path, program).expect("the home is writable");
        let mut command = Command::new(newest_python());
        command.arg(&path).env_clear().envs(&home.env).env("PYTHONPATH", probe()).current_dir(home.work());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python starts");
        let mut first = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        stdout.read_line(&mut first).expect("it says something");
        assert_eq!(first, "ready\n");
        // What it prints later goes nowhere, but must not stop it.
        std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        let pid = child.id().cast_signed();
        Self { child, pid }
    }

    pub fn signal(&self, signal: Signal) {
        process::kill(self.pid, signal);
    }

    /// Waits for its end, which somebody else brings about.
    pub fn wait(&mut self) {
        Watched::new(self.pid).assert_ends();
        self.child.wait().expect("it can be waited for");
    }
}

impl Drop for AppProcess {
    fn drop(&mut self) {
        // It may be stopped, or gone.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}
