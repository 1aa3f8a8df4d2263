//! What an installer for a confined session sees of the environment it installs into: all of it, and nothing to write but directories of
//! packages and their data. Programs that come with packages go to a directory of the session's own, which stands in for the
//! environment's `bin` and has its interpreters mounted on top: a package that brings a `python` replaces nobody's.
//!
//! Called by `packages` before and after an installer has run. The environment may be a hostile project's, so no link in it is followed.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
    process::{Gid, Uid},
};

use pylair_files::remove_tree;
use pylair_keeper::nursery::View as Mounted;
use pylair_python::is_python_name;

/// Where the programs of packages go, in the session's directory for packages.
pub(super) const SCRIPTS: &str = "scripts";
/// What installers remember between two installs, in the same place.
pub(super) const CACHE: &str = ".cache";
/// Where packages put more than modules and programs.
const DATA: [&str; 4] = ["etc", "include", "man", "share"];
/// uv has it locked while it installs.
const LOCK: &str = ".lock";

/// One environment, prepared for one install. What was made for it and is not needed goes when this does.
#[derive(Debug)]
pub struct View {
    prefix: PathBuf,
    scripts: PathBuf,
    writable: Vec<PathBuf>,
    interpreters: Vec<PathBuf>,
    made: Vec<PathBuf>,
}

impl View {
    /// `own` is the session's directory for packages, which belongs to `owner` outside, and `site_packages` what may hold packages. An error
    /// where no directory of the environment's own does, or where the environment is not `within` where it was when it was looked at. Blocks.
    pub fn prepare(
        (own, owner): (&Path, Option<u32>),
        prefix: &Path,
        site_packages: &[PathBuf],
        within: &[PathBuf],
    ) -> io::Result<Self> {
        let prefix = prefix.canonicalize()?;
        if !within.is_empty() && !within.iter().map(|path| &**path).chain([own]).any(|place| prefix.starts_with(place))
        {
            let message = format!("the environment is in `{}` now, where it was not before", prefix.display());
            return Err(io::Error::other(message));
        }
        let mut writable: Vec<PathBuf> = Vec::new();
        for directory in site_packages {
            let Ok(real) = directory.canonicalize() else { continue };
            if real.starts_with(&prefix) && real != prefix && !writable.contains(&real) {
                writable.push(real);
            }
        }
        if writable.is_empty() {
            let message = format!("`{}` has no directory of its own for packages", prefix.display());
            return Err(io::Error::other(message));
        }
        for name in [SCRIPTS, CACHE] {
            own_directory(own, name, owner)?;
        }
        writable.push(own.join(CACHE));
        let scripts = own.join(SCRIPTS);
        remove_interpreters(&scripts)?;
        let interpreters = interpreters(&prefix.join("bin"));
        let mut view = Self { prefix, scripts, writable, interpreters, made: Vec::new() };
        view.add_data(owner)?;
        Ok(view)
    }

    /// Data of packages, where the environment has or may have it. What is there and is something else is left alone.
    fn add_data(&mut self, owner: Option<u32>) -> io::Result<()> {
        let prefix = open_directory(&self.prefix)?;
        for name in DATA {
            let made = make_directory(&prefix, name);
            self.add(&prefix, name, FileType::Directory, made, owner);
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&prefix, LOCK, flags, Mode::from_raw_mode(0o644)).map(drop);
        self.add(&prefix, LOCK, FileType::RegularFile, made, owner);
        Ok(())
    }

    fn add(&mut self, prefix: &OwnedFd, name: &str, kind: FileType, made: Result<(), Errno>, owner: Option<u32>) {
        let path = self.prefix.join(name);
        let found = rustix::fs::statat(prefix, name, AtFlags::SYMLINK_NOFOLLOW);
        if !found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == kind) {
            return;
        }
        if made.is_ok() {
            // In the session's own environment all of it is the session's. Elsewhere a mount says so.
            if let Some(owner) = owner.filter(|owner| owns(prefix, *owner)) {
                let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
                let _kept = rustix::fs::chownat(prefix, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
            }
            self.made.push(path.clone());
        }
        self.writable.push(path);
    }

    /// The interpreter to install with: by the environment's real name, because only that is seen as prepared here.
    pub fn python(&self, named: &Path) -> PathBuf {
        self.prefix.join("bin").join(named.file_name().unwrap_or(named.as_os_str()))
    }

    pub fn writable(&self) -> &[PathBuf] {
        &self.writable
    }

    /// Seen on top of what stands in for their directory.
    pub fn read_only(&self) -> impl Iterator<Item = PathBuf> {
        std::iter::once(self.prefix.clone()).chain(self.interpreters.iter().cloned())
    }

    pub fn mounted(&self) -> Mounted {
        Mounted { directory: self.scripts.clone(), seen_as: self.prefix.join("bin") }
    }

    /// Takes away what is left in the place of interpreters: what they were mounted on, or what the installer put there. Blocks.
    pub fn settle(&self) -> io::Result<()> {
        remove_interpreters(&self.scripts)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        for path in &self.made {
            // What packages put there stays: a directory that is not empty cannot be removed so.
            let _used = if path.ends_with(LOCK) { fs::remove_file(path) } else { fs::remove_dir(path) };
        }
    }
}

fn names(directory: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

fn interpreters(bin: &Path) -> Vec<PathBuf> {
    names(bin).filter(|name| is_python_name(name)).map(|name| bin.join(name)).collect()
}

fn remove_interpreters(scripts: &Path) -> io::Result<()> {
    names(scripts).filter(|name| is_python_name(name)).try_for_each(|name| remove_tree(&scripts.join(name)))
}

/// Readable to everybody, whatever our own umask is: the session may be somebody else.
fn make_directory(above: impl AsFd, name: &str) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(0o755);
    rustix::fs::mkdirat(&above, name, mode)?;
    rustix::fs::chmodat(&above, name, mode, AtFlags::empty())
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

fn owns(directory: impl AsFd, owner: u32) -> bool {
    rustix::fs::fstat(directory).is_ok_and(|found| found.st_uid == owner)
}

/// A directory in the session's own, which may be somebody else's: what is there under its name is not believed to be one.
fn own_directory(own: &Path, name: &str, owner: Option<u32>) -> io::Result<()> {
    let above = File::open(own)?;
    match make_directory(&above, name) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(&above, name, flags, Mode::empty())?;
    if let Some(owner) = owner {
        rustix::fs::fchown(&made, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))?;
    }
    Ok(())
}
