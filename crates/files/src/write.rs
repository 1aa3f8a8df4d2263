//! Writing and deleting. A file is written beside its place, synced, and moved there; its directory is synced after that, so what
//! was acknowledged survives a power cut and nobody ever sees half of it.

use std::{fs::File, io::Write, os::fd::OwnedFd};

use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid},
    io::Errno,
};
use serde::Serialize;

use super::{
    Error, Workspace,
    beneath::{Beneath, DirectoryEntry, give, type_name},
    shown,
};
use pylair_os::inherited;

/// How temporary names begin and end; listings leave them out.
pub(super) const TEMPORARY: (&str, &str) = (".pylair-", ".tmp");

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Written {
    pub path: String,
    pub bytes: u64,
    /// False when there was one of that name before.
    pub created: bool,
}

/// What was deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Deleted {
    pub path: String,
    /// file, symlink, directory, or what else it was
    pub deleted: &'static str,
}

/// A file on its way: under a hidden name until `commit`, gone when dropped before.
#[derive(Debug)]
pub struct Staged {
    workspace: Workspace,
    path: String,
    file: File,
    place: DirectoryEntry,
    temporary: String,
    existing: Option<Existing>,
    /// Directories that were made for it.
    made: Vec<DirectoryEntry>,
    bytes: u64,
    limit: u64,
    committed: bool,
}

/// What of the file before is kept.
#[derive(Debug, Clone, Copy)]
struct Existing {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl Staged {
    /// Blocks, like all of this.
    pub fn begin(workspace: &Workspace, path: &str, limit: u64) -> Result<Self, Error> {
        let below = workspace.below(path)?;
        let is_directory = || Error::IsADirectory { path: shown(path) };
        if path.ends_with('/') {
            return Err(is_directory());
        }
        let beneath = Beneath::open(workspace)?;
        let refused = |errno| workspace.refused("write", path, errno);
        let mut made = Vec::new();
        let placed = beneath.place_to_write(&below, &mut made).map_err(refused).and_then(|place| {
            let place = place.ok_or_else(is_directory)?;
            let existing = match place.stat() {
                Err(Errno::NOENT) => None,
                Err(errno) => return Err(refused(errno)),
                Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => return Err(is_directory()),
                    FileType::RegularFile => {
                        Some(Existing { mode: stat.st_mode & 0o777, uid: stat.st_uid, gid: stat.st_gid })
                    }
                    _ => return Err(Error::Special { path: shown(path), kind: type_name(stat.st_mode) }),
                },
            };
            let temporary = temporary_name();
            // Nobody who may not read the file before may read the new one, not even for a moment.
            let mode = if existing.is_some() { 0o600 } else { 0o666 };
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&place.parent, &*temporary, flags, Mode::from_raw_mode(mode));
            Ok((place, existing, temporary, file.map_err(refused)?))
        });
        match placed {
            Ok((place, existing, temporary, file)) => Ok(Self {
                workspace: workspace.clone(),
                path: below.to_string_lossy().into_owned(),
                file: file.into(),
                place,
                temporary,
                existing,
                made,
                bytes: 0,
                limit,
                committed: false,
            }),
            Err(error) => {
                remove_made(&made);
                Err(error)
            }
        }
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.bytes += bytes.len() as u64;
        if self.bytes > self.limit {
            return Err(Error::TooLarge { path: shown(&self.path), limit: self.limit });
        }
        self.file.write_all(bytes).map_err(|error| self.failed(&error))
    }

    /// Puts the file in its place. When this returns it is on disk.
    pub fn commit(mut self) -> Result<Written, Error> {
        self.put_in_place().map_err(|errno| self.workspace.refused("write", &self.path, errno))?;
        self.committed = true;
        Ok(Written { path: self.path.clone(), bytes: self.bytes, created: self.existing.is_none() })
    }

    fn put_in_place(&self) -> Result<(), Errno> {
        let file: OwnedFd = self.file.try_clone().map_err(|error| errno_of(&error))?.into();
        match self.existing {
            Some(existing) => {
                let stat = rustix::fs::fstat(&file)?;
                if (stat.st_uid, stat.st_gid) != (existing.uid, existing.gid) {
                    // Only root can; to others the file becomes their own, as it does in every editor.
                    let owner = (Some(Uid::from_raw(existing.uid)), Some(Gid::from_raw(existing.gid)));
                    let _not_root = rustix::fs::fchown(&file, owner.0, owner.1);
                }
                rustix::fs::fchmod(&file, Mode::from_raw_mode(existing.mode))?;
            }
            None => inherited::apply_mode(&file, 0o666).and_then(|()| give(&file, self.workspace.owner_of_new()))?,
        }
        rustix::fs::fsync(&file)?;
        let DirectoryEntry { parent, name } = &self.place;
        rustix::fs::renameat(parent, &*self.temporary, parent, name)?;
        rustix::fs::fsync(parent)
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        self.workspace.refused("write", &self.path, errno_of(error))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        // The session may have removed it itself.
        let _gone = rustix::fs::unlinkat(&self.place.parent, &*self.temporary, AtFlags::empty());
        remove_made(&self.made);
    }
}

/// Takes back directories that were made for nothing. Those that somebody has used meanwhile stay.
fn remove_made(made: &[DirectoryEntry]) {
    for place in made.iter().rev() {
        let _in_use = rustix::fs::unlinkat(&place.parent, &place.name, AtFlags::REMOVEDIR);
    }
}

pub(super) fn delete(workspace: &Workspace, path: &str) -> Result<Deleted, Error> {
    let below = workspace.below(path)?;
    let beneath = Beneath::open(workspace)?;
    let refused = |errno| workspace.refused("delete", path, errno);
    let place = beneath.place(&below).map_err(refused)?.ok_or_else(|| Error::BadPath {
        path: shown(path),
        why: "the workspace itself, and what is above a path, cannot be deleted",
    })?;
    let mode = place.stat().map_err(refused)?.st_mode;
    let flags =
        if FileType::from_raw_mode(mode) == FileType::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    rustix::fs::unlinkat(&place.parent, &place.name, flags).map_err(|errno| match errno {
        Errno::NOTEMPTY | Errno::EXIST => Error::NotEmpty { path: shown(path) },
        other => refused(other),
    })?;
    rustix::fs::fsync(&place.parent).map_err(refused)?;
    Ok(Deleted { path: below.to_string_lossy().into_owned(), deleted: type_name(mode) })
}

fn temporary_name() -> String {
    let (begin, end) = TEMPORARY;
    format!("{begin}{}{end}", pylair_os::random::digits(8))
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
