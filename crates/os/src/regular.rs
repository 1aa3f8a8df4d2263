//! Files that others made, read without being held up: a FIFO, a terminal or a device in the place of a file is no file. And files
//! that are written under another name until they are whole. Blocking; called on a thread for that.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

use crate::process::Stat;

/// Opens a regular file for reading.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    only_regular(rustix::fs::open(path, flags, Mode::empty())?)
}

/// The same, for a name that may not be a symlink.
pub fn open_not_followed(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    only_regular(rustix::fs::open(path, flags, Mode::empty())?)
}

/// The same, for a path that was looked at and has no symlinks in it: if there is one now, somebody put it there.
pub fn open_plain(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    only_regular(rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

fn only_regular(file: OwnedFd) -> io::Result<File> {
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file.into())
}

/// The beginning of a regular file, as text.
pub fn read(path: &Path, limit: u64) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.take(limit).read_to_string(&mut text)?;
    Ok(text)
}

/// The extension of files that are not whole yet.
const UNFINISHED: &str = "new";

/// The name under which `path` is written until it is whole: one of its own, because two may be written at once.
pub fn unfinished_beside(path: &Path) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    path.with_extension(format!("{}-{number}.{UNFINISHED}", std::process::id()))
}

/// Writes a file with `write` under another name, which goes whatever happens.
pub fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let unfinished = unfinished_beside(path);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    write(&mut file).and_then(|()| fs::rename(&unfinished, path)).inspect_err(|_| {
        let _unfinished = fs::remove_file(&unfinished);
    })
}

/// Removes what processes that are gone, such as daemons that were killed, had begun to write in a directory. Called before this
/// process writes there: what has its pid is of one that had it before.
pub fn remove_unfinished(directory: &Path) {
    let is_gone = |pid: u32| pid == std::process::id() || !is_running(pid);
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if writer_of(&path).is_some_and(is_gone) {
            let _gone = fs::remove_file(&path);
        }
    }
}

/// Whether a process has not ended: nobody may have waited for it yet.
fn is_running(pid: u32) -> bool {
    Stat::read(pid).is_some_and(|stat| !stat.has_ended())
}

/// Which process writes a file, if it is not whole yet.
fn writer_of(path: &Path) -> Option<u32> {
    let rest = path.file_name()?.to_str()?.strip_suffix(UNFINISHED)?.strip_suffix('.')?;
    let writer = rest.rsplit('.').next()?;
    writer.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_is_refused_and_not_waited_for() {
        let path = std::env::temp_dir().join(format!("pylair-fifo-{}", std::process::id()));
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let opened = open(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn what_a_dead_process_had_begun_is_removed_and_nothing_else() {
        let directory = std::env::temp_dir().join(format!("pylair-unfinished-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let before = unfinished_beside(&directory.join("clock.json"));
        // No pid is that large.
        let parent = format!("clock.{}-7.new", std::os::unix::process::parent_id());
        let names = ["clock.4194305-0.new", "a-b.4194305.new", "whole.json", "brand.new", &parent];
        let paths: Vec<_> = names.iter().map(|name| directory.join(name)).chain([before]).collect();
        for path in &paths {
            fs::write(path, "").unwrap();
        }
        remove_unfinished(&directory);
        let left: Vec<_> = paths.iter().map(|path| path.exists()).collect();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(left, [false, false, true, true, true, false]);
    }

    #[test]
    fn a_file_that_cannot_be_written_whole_is_as_it_was() {
        let directory = std::env::temp_dir().join(format!("pylair-replace-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("file");
        replace(&path, |file| io::Write::write_all(file, b"old")).unwrap();
        replace(&path, |_| Err(io::ErrorKind::StorageFull.into())).unwrap_err();
        let found = (fs::read(&path).unwrap(), fs::read_dir(&directory).unwrap().count());
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(found, (b"old".to_vec(), 1));
    }
}
