//! What a session's files take on disk. The kernel holds no limit for a directory, so files are counted. Called by `watch`.

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    fs,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
    rc::Rc,
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags},
    io::Errno,
};

use super::processes::Process;

/// How many files are counted at most; who has more is over any limit.
const MAX_FILES: u64 = 500_000;
/// And how many descriptors are looked at.
const MAX_DESCRIPTORS: usize = 50_000;
/// How many directories are held open while what is below them is counted; who has a tree like that is over any limit, too.
const MAX_HELD: usize = 500;
/// A file costs at least this much, also an empty one.
const LEAST_FILE_BYTES: u64 = 512;

/// What a directory holds, as far as it matters: not more than a little over `enough`. Symlinks are not followed, and no path is too long: each
/// directory is opened from the one above it.
pub(super) fn size_of(directory: &Path, enough: u64) -> u64 {
    let (mut bytes, mut files) = (0_u64, 0_u64);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(top) = rustix::fs::open(directory, flags, Mode::empty()) else { return 0 };
    let mut left: Vec<(Rc<OwnedFd>, CString)> = vec![(Rc::new(top), c".".to_owned())];
    let mut held: Vec<std::rc::Weak<OwnedFd>> = Vec::new();
    while let Some((parent, name)) = left.pop() {
        let Ok(opened) = open_to_count(&parent, &name, flags) else { continue };
        drop(parent);
        let Ok(entries) = Dir::read_from(&opened) else { continue };
        let opened = Rc::new(opened);
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(&*opened, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            bytes += (u64::try_from(stat.st_blocks).unwrap_or(0) * 512).max(LEAST_FILE_BYTES);
            files += 1;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                left.push((opened.clone(), name.to_owned()));
            }
        }
        held.retain(|directory| directory.strong_count() > 0);
        held.push(Rc::downgrade(&opened));
        if files > MAX_FILES || held.len() > MAX_HELD {
            return u64::MAX;
        }
        if bytes > enough {
            break;
        }
    }
    bytes
}

/// Opens a directory, also one that its owner, who is us outside, took its own rights to: they are given back, or files would be kept there
/// that nobody counts. Root needs no rights.
fn open_to_count(parent: &OwnedFd, name: &CStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let needed = Mode::RUSR | Mode::XUSR;
    let find = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(opened) if rustix::process::geteuid().is_root() => return Ok(opened),
        Ok(opened) if Mode::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode).contains(needed) => return Ok(opened),
        Ok(_) | Err(Errno::ACCESS) => {}
        Err(error) => return Err(error),
    }
    let found = rustix::fs::openat(parent, name, find, Mode::empty())?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
    // By the descriptor: what has the name now may be something else.
    rustix::fs::chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), mode | needed)?;
    rustix::fs::openat(&found, c".", flags, Mode::empty())
}

/// What is held open of a directory's files after they were deleted. A file that several hold counts once.
pub(super) fn size_of_deleted(directory: &Path, processes: &[Process]) -> u64 {
    let Ok(device) = fs::metadata(directory).map(|metadata| metadata.dev()) else { return 0 };
    let mut held: HashMap<u64, u64> = HashMap::new();
    let descriptors = processes
        .iter()
        .flat_map(|process| fs::read_dir(format!("/proc/{}/fd", process.pid)).into_iter().flatten().flatten());
    for descriptor in descriptors.take(MAX_DESCRIPTORS) {
        if let Ok(metadata) = fs::metadata(descriptor.path())
            && metadata.is_file()
            && metadata.nlink() == 0
            && metadata.dev() == device
        {
            held.insert(metadata.ino(), metadata.blocks() * 512);
        }
    }
    for process in processes {
        for (inode, bytes) in mapped_and_deleted(process, device) {
            held.entry(inode).or_insert(bytes);
        }
    }
    held.into_values().sum()
}

/// Files of a device that are deleted, and that a process still has mapped.
fn mapped_and_deleted(process: &Process, device: u64) -> Vec<(u64, u64)> {
    let device = format!("{:02x}:{:02x}", rustix::fs::major(device), rustix::fs::minor(device));
    let Ok(maps) = fs::read_to_string(format!("/proc/{}/maps", process.pid)) else { return Vec::new() };
    let mapped = maps.lines().filter(|line| line.ends_with(" (deleted)")).filter_map(|line| {
        let fields: Vec<&str> = line.splitn(6, ' ').collect();
        let [span, _, _, found, inode, _] = fields.as_slice() else { return None };
        let (from, to) = span.split_once('-')?;
        let length = u64::from_str_radix(to, 16).ok()?.checked_sub(u64::from_str_radix(from, 16).ok()?)?;
        let inode: u64 = inode.parse().ok().filter(|inode| *inode != 0 && *found == device)?;
        // Only root may ask the file itself; for others it is as large as what is mapped of it.
        let file = fs::metadata(format!("/proc/{}/map_files/{span}", process.pid));
        Some((inode, file.map_or(length, |file| file.blocks() * 512)))
    });
    mapped.collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::{super::processes::Processes, *};

    #[test]
    fn files_are_counted_without_following_links() {
        let base = std::env::temp_dir().join(format!("pylair-watch-{}", std::process::id()));
        fs::create_dir_all(base.join("a/b")).unwrap();
        fs::write(base.join("a/b/big"), vec![1; 3 << 20]).unwrap();
        fs::write(base.join("a/empty"), "").unwrap();
        std::os::unix::fs::symlink("/usr", base.join("a/usr")).unwrap();
        let size = size_of(&base.join("a"), u64::MAX);
        assert!((3 << 20..4 << 20).contains(&size), "{size}");
        let held = fs::File::open(base.join("a/b/big")).unwrap();
        fs::remove_file(base.join("a/b/big")).unwrap();
        let me = Processes::now().below(&[std::process::id().cast_signed()]);
        assert!(size_of(&base.join("a"), u64::MAX) < 1 << 20 && size_of_deleted(&base, &me) >= 3 << 20);
        drop(held);
        // Who took its own rights away hides nothing.
        fs::create_dir_all(base.join("a/hidden")).unwrap();
        fs::write(base.join("a/hidden/big"), vec![1; 3 << 20]).unwrap();
        for mode in [0o000, 0o400, 0o100] {
            fs::set_permissions(base.join("a/hidden"), fs::Permissions::from_mode(mode)).unwrap();
            assert!(size_of(&base.join("a"), u64::MAX) >= 3 << 20, "{mode:o}");
        }
        fs::set_permissions(base.join("a/hidden"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::remove_dir_all(base.join("a/hidden")).unwrap();
        // Deeper than a path can be.
        let mut at = fs::File::open(base.join("a")).unwrap();
        let name = "d".repeat(250);
        for _ in 0..20 {
            rustix::fs::mkdirat(&at, name.as_str(), Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, name.as_str(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
                .unwrap()
                .into();
        }
        let mut deep: fs::File =
            rustix::fs::openat(&at, "big", OFlags::CREATE | OFlags::RDWR, Mode::RUSR | Mode::WUSR).unwrap().into();
        std::io::Write::write_all(&mut deep, &vec![1; 3 << 20]).unwrap();
        assert!(size_of(&base.join("a"), u64::MAX) >= 3 << 20);
        crate::files::remove_tree(&base).unwrap();
    }
}
