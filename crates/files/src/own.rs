//! Directories that belong to one session each: made when a confined session is opened, removed when it is closed for good.

use std::{
    fs::{self, DirBuilder},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid},
    io::Errno,
};

use super::{UPLOADS, Workspace};
use pylair_os::clock::Clock;

/// What a session finds in its directory: where code, results and what was sent to it are kept apart.
const DRAWERS: &[&str] = &["scripts", "outputs", UPLOADS];
/// How long files stay whose session was lost with its daemon.
const LOST_AGE: Duration = Duration::from_hours(7 * 24);

/// Where the directories are.
#[derive(Debug, Clone)]
pub struct Workspaces {
    path: PathBuf,
}

impl Workspaces {
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory that the session `handle` sees as `seen_as`, and what holds it. Under root it belongs to the user `owner`, who the
    /// session is outside of its namespaces. One that was kept for a session that comes back is found again with its owner. Blocks.
    pub fn make(&self, handle: &str, seen_as: &Path, owner: Option<u32>) -> io::Result<(Workspace, OwnDirectory)> {
        let path = self.path.join(handle);
        let workspace = |owner| Workspace { path: path.clone(), seen_as: seen_as.to_owned(), owner };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let uid = fs::symlink_metadata(&path)?.uid();
                return Ok((workspace(owner.map(|_| uid)), self.find(handle)));
            }
            made => made?,
        }
        let own = OwnDirectory { path: Some(path.clone()), kept: AtomicBool::new(false) };
        for directory in DRAWERS.iter().map(|name| path.join(name)).chain([path.clone()]) {
            if directory != path {
                DirBuilder::new().mode(0o700).create(&directory)?;
            }
            if let Some(owner) = owner {
                rustix::fs::chown(&directory, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))?;
            }
        }
        // What is acknowledged in it later has to be found again.
        for directory in [&path, &self.path] {
            fs::File::open(directory)?.sync_all()?;
        }
        Ok((workspace(owner), own))
    }

    /// The directory that was kept for this session, if it was. It stays until it is said otherwise.
    pub fn find(&self, handle: &str) -> OwnDirectory {
        OwnDirectory { path: Some(self.path.join(handle)), kept: AtomicBool::new(true) }
    }

    /// Begins to remove what an earlier daemon left behind and nobody can want: of sessions that are not known, the empty ones and
    /// those nobody has come for in a week. Called before there are sessions. Blocks.
    pub fn left_behind(&self, clock: &Clock, is_known: impl Fn(&str) -> bool) -> io::Result<Left> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Left::default()),
            entries => entries?,
        };
        let mut left = Left::default();
        let oldest = clock.oldest(LOST_AGE);
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            let is_known = entry.file_name().to_str().is_some_and(&is_known);
            if !is_known && (is_unused(&path).unwrap_or(true) || is_older(&path, oldest)) {
                drop(OwnDirectory { path: Some(path), kept: AtomicBool::new(false) });
            } else {
                left.owners.push(entry.metadata()?.uid());
            }
        }
        Ok(left)
    }
}

/// What of an earlier daemon stays.
#[derive(Debug, Default)]
pub struct Left {
    pub owners: Vec<u32>,
}

fn is_unused(path: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let is_drawer = DRAWERS.iter().any(|name| entry.file_name() == *name) && entry.file_type()?.is_dir();
        if !is_drawer || fs::read_dir(entry.path())?.next().is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_older(path: &Path, oldest: SystemTime) -> bool {
    let touched = |path: &Path| fs::symlink_metadata(path).and_then(|metadata| metadata.modified()).ok();
    let newest = DRAWERS.iter().filter_map(|name| touched(&path.join(name))).chain(touched(path)).max();
    newest.is_some_and(|newest| newest < oldest)
}

/// Holds a session's directory: it is removed when this goes, unless it is kept.
#[derive(Debug)]
pub struct OwnDirectory {
    /// None when it is removed already.
    path: Option<PathBuf>,
    kept: AtomicBool,
}

impl OwnDirectory {
    /// Whether the directory stays for a session that comes back.
    pub fn keep(&self, keep: bool) {
        self.kept.store(keep, Ordering::Release);
    }

    /// Removes it, unless it is kept, and waits for that.
    pub async fn remove(mut self) {
        if let Some(path) = self.unwanted() {
            // A panic there has been told.
            let _panicked = tokio::task::spawn_blocking(move || remove_or_warn(&path)).await;
        }
    }

    fn unwanted(&mut self) -> Option<PathBuf> {
        self.path.take_if(|_| !self.kept.load(Ordering::Acquire))
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        let Some(path) = self.unwanted() else { return };
        match tokio::runtime::Handle::try_current() {
            // Nobody waits for it: opening failed, or was given up.
            Ok(runtime) => drop(runtime.spawn_blocking(move || remove_or_warn(&path))),
            Err(_) => remove_or_warn(&path),
        }
    }
}

fn remove_or_warn(path: &Path) {
    if let Err(error) = remove_tree(path) {
        tracing::warn!(%error, path = %path.display(), "a session's directory could not be removed");
    }
}

/// Removes a directory and all that is in it, however deep: what is in a subdirectory is moved up before that is removed, so that
/// there is neither a long path nor a descriptor for each level. Symlinks are not followed.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    let mut moved = 0_u64;
    let top = open(rustix::fs::CWD, path.as_os_str())?;
    loop {
        let names = names_in(&top)?;
        if names.is_empty() {
            return fs::remove_dir(path);
        }
        for name in names {
            if is_unlinked(&top, &name)? {
                continue;
            }
            empty(&open(top.as_fd(), &*name)?, &top, &mut moved)?;
            rustix::fs::unlinkat(&top, &*name, AtFlags::REMOVEDIR)?;
        }
    }
}

/// Removes the files in a directory and moves the directories in it to `top`, under numbers.
fn empty(directory: &OwnedFd, top: &OwnedFd, moved: &mut u64) -> Result<(), Errno> {
    loop {
        let names = names_in(directory)?;
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            if is_unlinked(directory, &name)? {
                continue;
            }
            // Moving a directory takes the right to write it.
            drop(open(directory.as_fd(), &*name)?);
            loop {
                *moved += 1;
                match rustix::fs::renameat(directory, &*name, top, moved.to_string()) {
                    Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
                    other => break other?,
                }
            }
        }
    }
}

/// A directory, with its owner's rights restored, which the session may have taken away.
fn open(parent: BorrowedFd<'_>, name: impl rustix::path::Arg + Copy) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
            rustix::fs::openat(parent, name, flags, Mode::empty())
        }
        Ok(directory) => {
            rustix::fs::fchmod(&directory, Mode::RWXU)?;
            Ok(directory)
        }
        other => other,
    }
}

/// Removes what is no directory; false when it is one.
fn is_unlinked(directory: &OwnedFd, name: &[u8]) -> Result<bool, Errno> {
    let mode = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode;
    if FileType::from_raw_mode(mode) == FileType::Directory {
        return Ok(false);
    }
    rustix::fs::unlinkat(directory, name, AtFlags::empty()).map(|()| true)
}

/// Some of the names in a directory; none when it is empty.
fn names_in(directory: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    const AT_ONCE: usize = 10_000;
    let mut names = Vec::new();
    let mut entries = Dir::read_from(directory)?;
    while let Some(entry) = entries.read() {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
        if names.len() == AT_ONCE {
            break;
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("pylair-own-{name}-{}", std::process::id()));
        let _absent = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn a_directory_is_removed_however_deep_wide_and_locked() {
        let base = scratch("remove");
        let outside = base.join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "kept").unwrap();
        let (workspace, own) = Workspaces::new(base.join("all")).make("abc", Path::new("/w"), None).unwrap();
        symlink(&outside, workspace.path.join("link")).unwrap();
        let wide = workspace.path.join("wide");
        fs::create_dir(&wide).unwrap();
        for number in 0..20_100 {
            fs::write(wide.join(number.to_string()), "").unwrap();
        }
        // Names like those that are used to move directories up.
        fs::create_dir_all(workspace.path.join("1/1/2")).unwrap();
        fs::write(workspace.path.join("2"), "").unwrap();
        fs::create_dir_all(workspace.path.join("locked/in")).unwrap();
        fs::set_permissions(workspace.path.join("locked"), fs::Permissions::from_mode(0o000)).unwrap();
        let mut deep = open(rustix::fs::CWD, workspace.path.as_os_str()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&deep, "d", Mode::RWXU).unwrap();
            deep = open(deep.as_fd(), "d").unwrap();
        }
        drop(deep);
        drop(own);
        assert!(!workspace.path.exists());
        assert_eq!(fs::read_to_string(outside.join("kept")).unwrap(), "kept");
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn what_a_lost_session_was_given_outlives_its_daemon() {
        let base = scratch("sweep");
        let workspaces = Workspaces::new(base.clone());
        let make = |handle: &str| {
            let (workspace, own) = workspaces.make(handle, Path::new("/w"), None).unwrap();
            own.keep(true);
            workspace.path
        };
        let (unused, used, known) = (make("unused"), make("used"), make("known"));
        fs::write(used.join("outputs/result"), "42").unwrap();
        let sweep = || workspaces.left_behind(&Clock::trusted(), |handle| handle == "known").unwrap();
        assert_eq!(sweep().owners.len(), 2);
        assert!(!unused.exists() && used.join("outputs/result").exists() && known.exists());
        let long_ago = SystemTime::now() - 2 * LOST_AGE;
        for directory in ["", "scripts", "outputs", "uploads"] {
            fs::File::open(used.join(directory)).unwrap().set_modified(long_ago).unwrap();
        }
        sweep();
        assert!(!used.exists() && known.exists());
        // Found again, it is not removed when the session does not come to life; when it is closed for good, it is.
        let (_, own) = workspaces.make("known", Path::new("/w"), None).unwrap();
        drop(own);
        assert!(known.exists());
        workspaces.find("known").keep(false);
        assert!(!known.exists());
        fs::remove_dir_all(base).unwrap();
    }
}
