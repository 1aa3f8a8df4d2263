//! What the tests stand on: a home of their own for each test, the built binary, one MCP client over stdio, one over HTTP, and
//! the core without doors.

mod app;
mod client;
mod core;
mod home;
mod http;
mod postgres;
mod process;
mod python;
pub mod terminal;

use std::time::Duration;

pub use app::AppProcess;
pub use client::{Client, read_messages, text_of};
pub use core::{Core, TestSession, on_each_python, on_newest_python, report, with_settings};
pub use home::{Finished, Home, finish};
pub use http::{Request, Response, Server};
pub use postgres::POSTGRES;
pub use process::{Watched, kill, parent_of};
pub use python::{newest_python, pytest_python, python2, pythons};
pub use terminal::Terminal;

/// How long anything may take. Nothing waits for time to pass; this only bounds a test that fails.
pub const PATIENCE: Duration = Duration::from_mins(3);

/// Says that a test did not run, and why.
pub fn skip(name: &str, reason: &str) {
    println!("skipped: {name}: {reason}");
}

/// Why no sandbox can be made on this machine, if none can: tried by somebody else's means, because what pylair itself says of it is
/// what is tested.
pub fn why_no_namespaces() -> Option<String> {
    static TRIED: std::sync::LazyLock<Option<String>> = std::sync::LazyLock::new(|| {
        let all =
            ["--user", "--map-root-user", "--pid", "--fork", "--mount", "--mount-proc", "--net", "--ipc", "--uts"];
        let tried = std::process::Command::new("unshare").args(all).arg("true").output();
        match tried {
            Ok(tried) if tried.status.success() => None,
            Ok(tried) => Some(format!("no namespaces here: {}", String::from_utf8_lossy(&tried.stderr).trim())),
            // Where it cannot be tried it has to work.
            Err(_) => None,
        }
    });
    TRIED.clone()
}

/// One line of Python that announces itself and then waits for a byte that never comes.
pub const WAIT_FOREVER: &str = "print('waiting', flush=True)\nimport time\nwhile True: time.sleep(0.01)";
