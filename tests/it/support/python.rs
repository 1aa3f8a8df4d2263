//! The interpreters the tests run on: `PYLAIR_TEST_PYTHONS`, paths with colons between them, oldest first; else `python3`.

use std::{path::PathBuf, process::Command, sync::LazyLock};

static PYTHONS: LazyLock<Vec<PathBuf>> = LazyLock::new(|| {
    let named = std::env::var("PYLAIR_TEST_PYTHONS").unwrap_or_default();
    let named: Vec<PathBuf> = named.split(':').filter(|path| !path.is_empty()).map(PathBuf::from).collect();
    if named.is_empty() { vec![executable_of("python3")] } else { named }
});

/// What is really started by this name: a shim would start other files tomorrow.
fn executable_of(name: &str) -> PathBuf {
    let output = Command::new(name).args(["-c", "import sys; print(sys.executable)"]).output();
    let output = output.expect("a python3 is on PATH, or PYLAIR_TEST_PYTHONS names one");
    assert!(output.status.success(), "{name} does not start: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("paths are UTF-8 here").trim().into()
}

pub fn pythons() -> &'static [PathBuf] {
    &PYTHONS
}

pub fn newest_python() -> PathBuf {
    PYTHONS.last().expect("there is one").clone()
}

/// One that has pytest: `PYLAIR_TEST_PYTEST`, else the newest if it has.
pub fn pytest_python() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("PYLAIR_TEST_PYTEST") {
        return Some(named.into());
    }
    let python = newest_python();
    let output = Command::new(&python).args(["-c", "import pytest"]).output();
    output.is_ok_and(|output| output.status.success()).then_some(python)
}

/// A Python 2, if this machine has one.
pub fn python2() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let on_path = std::env::split_paths(&path).map(|directory| directory.join("python2.7"));
    let installed = std::env::home_dir().into_iter().map(|home| home.join(".pyenv/versions/2.7.18/bin/python2.7"));
    installed.chain(on_path).find(|candidate| {
        let output = Command::new(candidate).args(["-c", "import sys; print(sys.version_info[0])"]).output();
        output.is_ok_and(|output| output.stdout == b"2\n")
    })
}
