//! The registry of apps: one file per process in `RUNTIME/apps`, written by probes, read here. Blocking; called on a thread for that.
//!
//! An entry goes only when its process is gone or another one has its pid. Whether the app answers does not matter.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use pylair_os::foreign::{self, Doing, doing};
use pylair_os::{process::Process, regular};

const MAX_ENTRY_BYTES: u64 = 256 << 10;
/// A runtime directory with more is somebody's mistake.
const MAX_ENTRIES: usize = 2000;

/// One process that can be visited, as its probe wrote it down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub app_id: String,
    pub pid: i32,
    /// In clock ticks since boot.
    pub start: u64,
    pub endpoint: PathBuf,
    #[serde(default)]
    pub readonly: bool,
    /// In seconds since 1970.
    #[serde(default)]
    pub started_at: f64,
    #[serde(default)]
    pub how: String,
    /// Who attached, where somebody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<By>,
    #[serde(default)]
    pub parent: Option<String>,
    #[serde(default)]
    pub python: String,
    #[serde(default)]
    pub argv: Vec<String>,
    #[serde(default)]
    pub cwd: String,
    #[serde(default)]
    pub tcp: Option<String>,
    pub wire: u32,
    /// Of a frozen failure: the reporter's id of what happened.
    #[serde(default)]
    pub occurrence: Option<String>,
    #[serde(default)]
    pub run: Option<String>,
    #[serde(default)]
    pub nodeid: Option<String>,
    /// Innermost first.
    #[serde(default)]
    pub frames: Vec<FrameAt>,
}

/// The door that somebody attached through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    CommandLine,
    Mcp,
}

/// A frame of a frozen failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FrameAt {
    pub function: String,
    pub file: String,
    pub line: u32,
}

impl Entry {
    pub fn process(&self) -> Process {
        Process { pid: self.pid, started: self.start }
    }

    /// Whether somebody let only looks into it on the command line, which nobody else may change.
    pub fn is_held_read_only(&self) -> bool {
        self.readonly && self.by == Some(By::CommandLine)
    }

    /// Whether its probe was brought by an attach: to it, or to the process that forked it.
    pub fn is_attached(&self) -> bool {
        self.how == "attach" || (self.how == "fork" && self.by.is_some())
    }

    /// Whether it is the copy of a failure.
    pub fn is_frozen(&self) -> bool {
        self.how == "frozen"
    }
}

/// Why an app serves that nobody attached to.
pub fn why_served(how: &str) -> &'static str {
    match how {
        "wrap" => "it was started with `pylair wrap`",
        "fork" => "it was forked by an app that nobody attached to",
        _ => "the program serves itself with pylair.start()",
    }
}

/// All apps whose process is there, by id and age. What cannot be read is skipped, and said in the log.
pub fn read(directory: &Path) -> Vec<Entry> {
    let files = match list(directory) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            tracing::warn!(path = %directory.display(), %error, "the registry of apps cannot be read");
            return Vec::new();
        }
    };
    let mut entries: Vec<Entry> = files.iter().filter_map(|path| entry_at(path)).collect();
    entries.sort_by(|a, b| (&a.app_id, a.start, a.pid).cmp(&(&b.app_id, b.start, b.pid)));
    entries
}

/// The files of entries, in a directory that is nobody else's.
fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let metadata = fs::symlink_metadata(directory)?;
    if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "others could write there"));
    }
    let mut files = Vec::new();
    for file in fs::read_dir(directory)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
        if files.len() == MAX_ENTRIES {
            tracing::warn!(path = %directory.display(), "there are more apps than are listed");
            break;
        }
    }
    Ok(files)
}

fn entry_at(path: &Path) -> Option<Entry> {
    let named = named_process(path);
    let read = regular::read(path, MAX_ENTRY_BYTES)
        .map_err(|error| error.to_string())
        .and_then(|text| serde_json::from_str::<Entry>(&text).map_err(|error| error.to_string()));
    let entry = match (read, named) {
        (Ok(entry), Some(named)) if entry.process() == named => entry,
        // Removed while we looked: its process has left.
        (Err(_), _) if !path.exists() => return None,
        (read, named) => {
            if let Some(named) = named.filter(|named| doing(*named) == Doing::Ended) {
                remove(path, named);
                return None;
            }
            let why = read.err().unwrap_or_else(|| "it is about another process than its name".to_owned());
            tracing::warn!(path = %path.display(), why, "an app's entry in the registry is not valid");
            return None;
        }
    };
    if doing(entry.process()) == Doing::Ended {
        remove(path, entry.process());
        return None;
    }
    Some(entry)
}

/// `PID-START.json`.
fn named_process(path: &Path) -> Option<Process> {
    let (pid, started) = path.file_stem()?.to_str()?.split_once('-')?;
    Some(Process { pid: pid.parse().ok()?, started: started.parse().ok()? })
}

/// Takes out what a probe that has left could not: an app of another user's is listed by us.
pub async fn forget(directory: &Path, entry: &Entry) {
    let _absent = tokio::fs::remove_file(directory.join(format!("{}-{}.json", entry.pid, entry.start))).await;
}

/// Ends a process that is ours to end, such as a frozen failure, and takes its entry out.
pub fn end(directory: &Path, entry: &Entry) -> io::Result<()> {
    foreign::kill(entry.process())?;
    remove(&directory.join(format!("{}-{}.json", entry.pid, entry.start)), entry.process());
    Ok(())
}

fn remove(path: &Path, process: Process) {
    tracing::debug!(pid = process.pid, "an app is gone and is taken out of the registry");
    for file in [path.to_owned(), path.with_extension("sock"), path.with_extension("error")] {
        // Whoever else reads the registry may have been faster.
        let _absent = fs::remove_file(file);
    }
    // Where a frozen failure kept its temporary files.
    let _absent = fs::remove_dir_all(path.with_extension("tmp"));
}

#[cfg(test)]
mod tests {
    use pylair_os::process::Stat;

    use std::os::unix::fs::DirBuilderExt;

    use super::*;

    fn write(directory: &Path, pid: i32, start: u64, text: &str) {
        fs::write(directory.join(format!("{pid}-{start}.json")), text).unwrap();
        fs::write(directory.join(format!("{pid}-{start}.sock")), "").unwrap();
    }

    #[test]
    fn only_entries_whose_process_is_gone_are_removed() {
        let directory = std::env::temp_dir().join(format!("pylair-apps-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
        let pid = std::process::id().cast_signed();
        let start = Stat::read(pid).and_then(|stat| stat.started()).unwrap();
        let entry = |pid: i32, start: u64| {
            format!(r#"{{"app_id":"web","pid":{pid},"start":{start},"endpoint":"/x.sock","wire":1,"new_field":[1]}}"#)
        };
        write(&directory, pid, start, &entry(pid, start));
        // Another process has the pid now.
        write(&directory, pid, start - 1, &entry(pid, start - 1));
        // Pids do not reach this far.
        write(&directory, i32::MAX, 7, &entry(i32::MAX, 7));
        write(&directory, i32::MAX - 1, 7, "{");
        // The temporary files of one that was a frozen failure.
        fs::create_dir_all(directory.join(format!("{}-7.tmp/deep", i32::MAX))).unwrap();
        // Garbage about a process that is there is skipped and stays.
        let first = Stat::read(1).and_then(|stat| stat.started()).unwrap();
        write(&directory, 1, first, "{\"app_id\":");
        let found = read(&directory);
        let mut left: Vec<_> = fs::read_dir(&directory).unwrap().map(|file| file.unwrap().file_name()).collect();
        left.sort();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(found.iter().map(|entry| (entry.pid, entry.start)).collect::<Vec<_>>(), [(pid, start)]);
        assert_eq!(left.len(), 4, "{left:?}");
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_not_read() {
        let directory = std::env::temp_dir().join(format!("pylair-foreign-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let listed = list(&directory);
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(listed.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(read(&directory).is_empty());
    }
}
