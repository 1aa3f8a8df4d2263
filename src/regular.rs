//! Files that others made, read without being held up: a FIFO, a terminal or a device in the place of a file is no file. Blocking;
//! called on a thread for that.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    path::Path,
};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

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
}
