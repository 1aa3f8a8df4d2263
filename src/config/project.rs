//! Settings files: how they are read, and what a project's `pylair.toml` may say.
//!
//! A project is often somebody else's. Its file may make pylair show less and wait for less time; where pylair listens, what
//! it runs, what it opens and where it keeps things is said by the user's own file alone.

use std::{
    fs::File as OpenFile,
    io::{self, Read},
    path::Path,
};

use serde::Deserialize;

use super::{Error, File, seconds};
use pylair_os::regular;

/// Maximum size of a settings file.
const MAX_BYTES: u64 = 64 << 10;

/// The settings that count in a project's file, each only where it is lower than what counts without it.
const HARMLESS: [&str; 4] = ["timeout_s", "wait_s", "max_chars", "max_output_mb"];

pub(super) const TIMEOUT_S: f64 = 900.0;
pub(super) const WAIT_S: f64 = 45.0;
pub(super) const MAX_CHARS: usize = 25_000;
pub(super) const MAX_OUTPUT_MB: u64 = 256;

/// The user's own file, which may be a symlink to wherever settings are kept.
pub(super) fn read_own(path: &Path) -> Result<Option<File>, Error> {
    let Some(table) = read(path, regular::open)? else { return Ok(None) };
    deserialize(path, table).map(Some)
}

/// A project's file: `users` is the user's own, which it cannot exceed, and `users_path` where that one is or would be.
pub(super) fn read_projects(path: &Path, users: Option<&File>, users_path: &Path) -> Result<Option<File>, Error> {
    let Some(table) = read(path, regular::open_not_followed)? else { return Ok(None) };
    let refused = table.keys().find(|key| !HARMLESS.contains(&key.as_str()));
    if let Some(key) = refused {
        return Err(Error::NotAProjects {
            path: path.to_owned(),
            key: key.clone(),
            own: users_path.to_owned(),
            harmless: listed(),
        });
    }
    let file = deserialize(path, table)?;
    // Here rather than where settings are resolved: what is wrong in a project's file keeps no bridge from starting.
    for (key, value) in [("timeout_s", file.timeout_s), ("wait_s", file.wait_s)] {
        if let Some(value) = value.filter(|value| seconds(*value).is_none()) {
            let message = format!("`{key}` is {value}, and has to be seconds from 0 up");
            return Err(Error::Parse { path: path.to_owned(), message });
        }
    }
    Ok(Some(lowered(&file, users)))
}

fn listed() -> String {
    let names: Vec<_> = HARMLESS.iter().map(|key| format!("`{key}`")).collect();
    names.join(", ")
}

/// The project's values that are lower than the user's own or, without one, the default.
fn lowered(project: &File, users: Option<&File>) -> File {
    let usual = File::default();
    let users = users.unwrap_or(&usual);
    // No time limit is written as 0.
    let limit = match users.timeout_s.unwrap_or(TIMEOUT_S) {
        0.0 => f64::INFINITY,
        seconds => seconds,
    };
    File {
        timeout_s: project.timeout_s.filter(|seconds| *seconds != 0.0 && *seconds < limit),
        wait_s: project.wait_s.filter(|seconds| *seconds < users.wait_s.unwrap_or(WAIT_S)),
        max_chars: project.max_chars.filter(|count| *count < users.max_chars.unwrap_or(MAX_CHARS)),
        max_output_mb: project.max_output_mb.filter(|size| *size < users.max_output_mb.unwrap_or(MAX_OUTPUT_MB)),
        ..File::default()
    }
}

fn deserialize(path: &Path, table: toml::Table) -> Result<File, Error> {
    File::deserialize(table)
        .map_err(|error| Error::Parse { path: path.to_owned(), message: error.message().to_owned() })
}

/// Reads a regular file of bounded size without waiting for anybody: a FIFO has no writer, a device no end.
fn read(path: &Path, open: fn(&Path) -> io::Result<OpenFile>) -> Result<Option<toml::Table>, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let file = match open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) if is_other_kind(&error) => return Err(Error::NotRegular { path: path.to_owned() }),
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(Error::TooLong { path: path.to_owned(), limit: MAX_BYTES >> 10 });
    }
    text.parse()
        .map(Some)
        .map_err(|error: toml::de::Error| Error::Parse { path: path.to_owned(), message: error.message().to_owned() })
}

/// A symlink where none is followed, a socket, or what `regular` refuses.
fn is_other_kind(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO)) || error.kind() == io::ErrorKind::InvalidInput
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

    use rustix::fs::{FileType, Mode};

    use super::*;
    use crate::config::{Flags, resolve};
    use pylair_core::settings::{Config, Places};

    /// A project beside the user's own settings.
    struct Project {
        dir: PathBuf,
        places: Places,
    }

    impl Project {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("pylair-project-{name}-{}", std::process::id()));
            let env = BTreeMap::from([("PYLAIR_HOME".to_owned(), dir.join("home").display().to_string())]);
            let places = Places::resolve(&env, 1);
            fs::create_dir_all(&places.config).unwrap();
            Self { dir, places }
        }

        fn file(&self) -> PathBuf {
            self.dir.join("pylair.toml")
        }

        fn resolve(&self) -> Result<Config, Error> {
            Ok(resolve(&Flags::default(), &BTreeMap::new(), Some(&self.dir), &self.places)?.0)
        }

        fn with(&self, text: &str) -> Result<Config, Error> {
            fs::write(self.file(), text).unwrap();
            self.resolve()
        }
    }

    impl Drop for Project {
        fn drop(&mut self) {
            let _gone = fs::remove_dir_all(&self.dir);
        }
    }

    #[test]
    fn a_project_may_only_lower_what_is_harmless() {
        let project = Project::new("lower");
        let config = project.with("timeout_s = 60\nwait_s = 100\nmax_chars = 500\nmax_output_mb = 1000\n").unwrap();
        assert_eq!(
            (config.caller.timeout, config.caller.wait),
            (Some(Duration::from_mins(1)), Duration::from_secs(45))
        );
        assert_eq!((config.caller.max_chars, config.caller.max_output_bytes), (500, 256 << 20));
        assert_eq!(project.with("timeout_s = 0").unwrap().caller.timeout, Some(Duration::from_mins(15)));
        fs::write(project.places.settings_file(), "timeout_s = 0\nwait_s = 200\nmax_chars = 300\n").unwrap();
        let config = project.with("timeout_s = 5000\nwait_s = 100\nmax_chars = 500\n").unwrap();
        assert_eq!(
            (config.caller.timeout, config.caller.wait),
            (Some(Duration::from_secs(5000)), Duration::from_secs(100))
        );
        assert_eq!(config.caller.max_chars, 300);
    }

    #[test]
    fn everything_else_is_refused_and_the_users_own_file_is_named() {
        let project = Project::new("refused");
        let own = project.places.settings_file().display().to_string();
        // All settings that there are, so that a new one is refused until somebody thinks about it.
        let all = project.resolve().unwrap().settings;
        assert!(all.len() > 30, "{all:?}");
        let keys = all.iter().map(|setting| setting.key.as_str()).filter(|key| !HARMLESS.contains(key));
        for key in keys.chain(["sandbox", "sandbox_best_effort", "no_such_setting"]) {
            // A key with a dot is one of a table.
            let key = key.split('.').next().unwrap_or_default();
            let said = project.with(&format!("max_chars = 500\n{key} = 1\n")).unwrap_err().to_string();
            assert!(said.contains(&format!("sets `{key}`")) && said.contains(&own), "{said}");
        }
        let said = project.with("[sandbox]\nallow_read = ['/etc']").unwrap_err().to_string();
        assert!(said.contains("sets `sandbox`"), "{said}");
    }

    #[test]
    fn a_wrong_value_is_the_projects_own_error() {
        let project = Project::new("values");
        for line in ["wait_s = -1", "timeout_s = -inf", "wait_s = nan", "timeout_s = 1e300"] {
            let error = project.with(line).unwrap_err();
            assert!(error.is_of_project(Some(&project.dir)), "{error}");
        }
    }

    #[test]
    fn a_file_without_an_end_or_a_writer_is_not_read() {
        let project = Project::new("endless");
        let said = || project.resolve().unwrap_err().to_string();
        for (target, expected) in [("/dev/zero", "not a regular file"), ("home", "not a regular file")] {
            std::os::unix::fs::symlink(target, project.file()).unwrap();
            assert!(said().contains(expected), "{}", said());
            fs::remove_file(project.file()).unwrap();
        }
        rustix::fs::mknodat(rustix::fs::CWD, project.file(), FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(said().contains("not a regular file"), "{}", said());
        fs::remove_file(project.file()).unwrap();
        let long = fs::File::create(project.file()).unwrap();
        long.set_len(1 << 40).unwrap();
        assert!(said().contains("longer than 64 KB"), "{}", said());
        fs::remove_file(project.file()).unwrap();
        // The user's own file may be a link, not a device.
        fs::write(project.dir.join("dotfile"), "max_chars = 700").unwrap();
        std::os::unix::fs::symlink(project.dir.join("dotfile"), project.places.settings_file()).unwrap();
        assert_eq!(project.resolve().unwrap().caller.max_chars, 700);
        fs::remove_file(project.places.settings_file()).unwrap();
        std::os::unix::fs::symlink("/dev/zero", project.places.settings_file()).unwrap();
        assert!(said().contains("not a regular file"), "{}", said());
    }
}
