//! Paths below a directory, resolved by the kernel: `openat2` with `RESOLVE_BENEATH`, relative to a descriptor of the workspace
//! that is opened once per operation. Nothing here looks a path up in any other way.

use std::{
    ffi::{OsStr, OsString},
    os::{fd::OwnedFd, unix::ffi::OsStringExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid},
    io::Errno,
};

use super::{Error, Workspace};
use pylair_os::inherited;

/// How often a path is looked up again when somebody renames its directories meanwhile.
const ATTEMPTS: u32 = 64;
/// As many as the kernel follows.
const MAX_SYMLINKS: usize = 40;

pub(super) struct Beneath {
    root: OwnedFd,
    owner: Option<(u32, u32)>,
}

/// A name in a directory, which need not exist.
#[derive(Debug)]
pub(super) struct DirectoryEntry {
    pub parent: OwnedFd,
    pub name: OsString,
}

impl Beneath {
    pub fn open(workspace: &Workspace) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&workspace.path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT | Errno::NOTDIR => Error::Gone(workspace.seen_as.clone()),
            other => workspace.refused("open", &workspace.seen_as.to_string_lossy(), other),
        })?;
        // A directory that was removed can still be opened as somebody's working directory, but nothing can be made in it.
        match rustix::fs::fstat(&root) {
            Ok(stat) if stat.st_nlink > 0 => Ok(Self { root, owner: workspace.owner_of_new() }),
            _ => Err(Error::Gone(workspace.seen_as.clone())),
        }
    }

    /// Opens what is at the path. Never blocks on what it opens, and never makes a terminal ours.
    pub fn find(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let mut flags = flags | OFlags::CLOEXEC;
        if !flags.contains(OFlags::PATH) {
            flags |= OFlags::NONBLOCK | OFlags::NOCTTY;
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..ATTEMPTS {
            match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve) {
                // A rename somewhere on the system while `..` was looked up: the kernel could not be sure.
                Err(Errno::AGAIN | Errno::INTR) => {}
                found => return found,
            }
        }
        Err(Errno::AGAIN)
    }

    pub fn directory(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.find(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// What is at the path, following symlinks, without opening it for anything.
    pub fn stat(&self, path: &Path) -> Result<Stat, Errno> {
        rustix::fs::fstat(self.find(path, OFlags::PATH)?)
    }

    /// The last name of a path and its directory, which has to exist. None for the workspace itself and for paths that end in `..`.
    pub fn place(&self, path: &Path) -> Result<Option<DirectoryEntry>, Errno> {
        let Some(name) = path.file_name() else { return Ok(None) };
        let parent = self.directory(path.parent().unwrap_or(Path::new("")))?;
        Ok(Some(DirectoryEntry { parent, name: name.to_owned() }))
    }

    /// The same for a file to be written: missing directories are made and told in `made`, a symlink at the end is followed.
    pub fn place_to_write(&self, path: &Path, made: &mut Vec<DirectoryEntry>) -> Result<Option<DirectoryEntry>, Errno> {
        let mut path = path.to_owned();
        for _ in 0..MAX_SYMLINKS {
            let Some(name) = path.file_name().map(OsStr::to_owned) else { return Ok(None) };
            let above = path.parent().unwrap_or(Path::new("")).to_owned();
            let parent = self.make_directory(&above, made)?;
            match rustix::fs::readlinkat(&parent, &name, Vec::new()) {
                Ok(target) => {
                    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                    if target.is_absolute() {
                        return Err(Errno::XDEV);
                    }
                    path = above.join(target);
                }
                // Not a symlink, or nothing.
                Err(Errno::INVAL | Errno::NOENT) => return Ok(Some(DirectoryEntry { parent, name })),
                Err(error) => return Err(error),
            }
        }
        Err(Errno::LOOP)
    }

    /// A directory, made with those above it where they are missing. Each that is made is on disk when this returns.
    fn make_directory(&self, path: &Path, made: &mut Vec<DirectoryEntry>) -> Result<OwnedFd, Errno> {
        match self.directory(path) {
            Err(Errno::NOENT) => {}
            found => return found,
        }
        let mut above: Vec<&Path> = path.ancestors().filter(|above| !above.as_os_str().is_empty()).collect();
        above.reverse();
        for path in above {
            match self.find(path, OFlags::PATH | OFlags::DIRECTORY) {
                Err(Errno::NOENT) => {}
                found => {
                    found?;
                    continue;
                }
            }
            let Some(place) = self.place(path)? else { return Err(Errno::NOENT) };
            match rustix::fs::mkdirat(&place.parent, &place.name, Mode::from_raw_mode(0o777)) {
                Ok(()) => {
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let directory = rustix::fs::openat(&place.parent, &place.name, flags, Mode::empty());
                    let given = directory.and_then(|directory| {
                        inherited::apply_mode(&directory, 0o777)?;
                        give(&directory, self.owner)
                    });
                    let synced = given.and_then(|()| rustix::fs::fsync(&place.parent));
                    made.push(place);
                    synced?;
                }
                // Somebody was faster, or a symlink that leads nowhere is in the way, which the next lookup tells.
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        self.directory(path)
    }
}

impl DirectoryEntry {
    /// What is there itself, be it a symlink.
    pub fn stat(&self) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// Lets the session be the owner of what the daemon made for it.
pub(super) fn give(file: &OwnedFd, owner: Option<(u32, u32)>) -> Result<(), Errno> {
    match owner {
        Some((user, group)) => rustix::fs::fchown(file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group))),
        None => Ok(()),
    }
}

/// What a thing that is no regular file is called.
pub(super) fn type_name(mode: u32) -> &'static str {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "FIFO",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        FileType::Unknown => "special file",
    }
}
