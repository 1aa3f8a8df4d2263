//! What a session's files take on disk. The kernel holds no limit for a directory, so files are counted. Called by `watch`.
//!
//! Few files are counted at every look. Many take long: they are counted apart and more seldom, so that counting takes a small part of
//! the time. Meanwhile the file system is asked how full it is. When that grew by more than the session had left, the session is
//! stopped until its files have been counted, however long that takes: nobody writes faster than is counted, nor moves files out of
//! the way of whoever counts them.

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    fmt, fs,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    rc::Rc,
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags},
    io::Errno,
};

use super::processes::{Pause, Process};
use pylair_os::machine;

/// Maximum number of files of a session.
const MAX_FILES: u64 = 500_000;
/// Maximum number of descriptors that are looked at for deleted files.
const MAX_DESCRIPTORS: usize = 50_000;
/// Maximum number of directories held open while what is below them is counted.
const MAX_HELD: usize = 100;
/// A file costs at least this much, also an empty one.
const LEAST_FILE_BYTES: u64 = 512;
/// The longest time to count within a look. What takes longer is counted apart.
const LONG_COUNT: Duration = Duration::from_millis(50);
/// Counting may take this part of the time.
const SHARE: u32 = 20;
/// Counting that sessions are stopped for may take this part of the time, for all sessions together.
const URGENT_SHARE: u32 = 4;
/// Time for a session whose processes were ended for its files to delete some.
const GRACE: Duration = Duration::from_secs(10);
/// The part of the limit that has to be deleted within that time, to have as much time again.
const DELETED_PART: u64 = 50;
/// The part of the limit that the file system may always grow by before a session is stopped to count its files.
const UNSURE_PART: u64 = 4;
/// The shortest time between two looks at a session that writes fast.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// What may come to a session's files within [`GRACE`] without its processes being ended again.
const MORE: u64 = 1 << 20;

/// What a session's files take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    Bytes(u64),
    TooManyFiles,
    TooDeep,
}

impl Size {
    fn bytes(self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::TooManyFiles | Self::TooDeep => u64::MAX,
        }
    }

    fn and(self, more: u64) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(bytes.saturating_add(more)),
            other => other,
        }
    }
}

/// Why a session's files are too much.
#[derive(Debug, Clone, Copy)]
pub struct Excess {
    size: Size,
    limit_mb: u64,
    /// How often that was so, and then more, without the files getting fewer.
    pub strikes: u32,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.size {
            Size::Bytes(bytes) => write!(f, "its files take {} MB, and may take {} MB", bytes >> 20, self.limit_mb),
            Size::TooManyFiles => write!(f, "it has more than {MAX_FILES} files, which is the limit"),
            Size::TooDeep => write!(f, "its directories are nested too deep to be counted"),
        }
    }
}

/// Counting apart, one session at a time: whose turn it is.
#[derive(Debug, Clone, Default)]
pub struct Turn(Arc<Mutex<TurnState>>);

#[derive(Debug, Default)]
struct TurnState {
    is_taken: bool,
    free_at: Option<Instant>,
}

impl Turn {
    fn take(&self) -> bool {
        let mut state = self.0.lock().expect("no panic while locked");
        let is_free = !state.is_taken && state.free_at.is_none_or(|at| at <= Instant::now());
        state.is_taken |= is_free;
        is_free
    }

    fn give_back(&self, took: Duration) {
        let mut state = self.0.lock().expect("no panic while locked");
        *state = TurnState { is_taken: false, free_at: Some(Instant::now() + took * (URGENT_SHARE - 1)) };
    }
}

/// What is to be done about a session's files now.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Wait,
    /// Counts them within this look.
    Count,
    /// Counts them apart.
    CountApart,
    /// The same, of a session that is stopped, when it is its turn.
    CountStopped,
}

/// A count that can be gone by.
#[derive(Debug, Clone, Copy)]
struct Counted {
    size: Size,
    /// How full the file system was before.
    used: u64,
    began: Instant,
    took: Duration,
}

/// A session's files as they are known.
#[derive(Debug, Default)]
pub(super) struct Disk {
    known: Option<Counted>,
    /// What they were when the session was last stopped for it, or first looked at, and how full the file system was at its emptiest
    /// since: whoever runs can move files out of the way of whoever counts them.
    sure: Option<(u64, u64)>,
    due: Option<Instant>,
    is_large: bool,
    /// Files that are being counted apart.
    apart: Option<Arc<OnceLock<Counted>>>,
    pause: Option<Pause>,
    /// The time within which the limit could be reached.
    reached_in: Option<Duration>,
    /// How much there was when its processes were last ended for it.
    struck_bytes: u64,
    strikes: u32,
    struck: Option<Instant>,
}

/// A session's files as they are looked at.
pub(super) struct Files<'a> {
    pub directory: &'a Path,
    pub limit_mb: u64,
    /// Its processes.
    pub mine: &'a [Process],
    /// Finds those that could write, as they are now.
    pub writers: &'a dyn Fn() -> Vec<Process>,
    pub turn: &'a Turn,
}

impl Disk {
    /// Whether all is known of a session in which nothing has run since `ran_at`.
    pub fn is_settled(&self, ran_at: Option<Instant>) -> bool {
        let is_counted = self.known.is_some_and(|known| ran_at.is_none_or(|ran_at| known.began > ran_at));
        is_counted && self.strikes == 0 && self.apart.is_none() && self.pause.is_none()
    }

    /// When the session should be looked at again for its files, if soon.
    pub fn look_again(&self) -> Option<Duration> {
        let waits = (self.apart.is_some() || self.pause.is_some()).then_some(SHORTEST_PAUSE);
        waits.or(self.reached_in.map(|left| (left / 2).max(SHORTEST_PAUSE)))
    }

    /// Counts files, or has them counted. Blocks for a moment.
    pub fn look(&mut self, files: &Files<'_>) -> Option<Excess> {
        let used = used_of(files.directory).unwrap_or(0);
        let limit = files.limit_mb << 20;
        let counted = match self.apart.as_ref().map(|apart| apart.get().copied()) {
            Some(None) => return None,
            Some(Some(counted)) => {
                self.apart = None;
                Some(counted)
            }
            None => self.begin(files, used, limit),
        };
        if let Some((_, emptiest)) = &mut self.sure {
            *emptiest = used.min(*emptiest);
        }
        let Some(counted) = counted else {
            self.foresee(limit, used, None);
            return None;
        };
        let deleted = size_of_deleted(files.directory, files.mine);
        let counted = Counted { size: counted.size.and(deleted), ..counted };
        self.foresee(limit, used, Some(counted));
        self.is_large = counted.took > LONG_COUNT;
        self.due = Some(Instant::now() + counted.took * SHARE);
        self.known = Some(counted);
        if self.pause.take().is_some() || self.sure.is_none() {
            self.sure = Some((counted.size.bytes(), counted.used));
        }
        self.judge(counted.size, files.limit_mb)
    }

    fn begin(&mut self, files: &Files<'_>, used: u64, limit: u64) -> Option<Counted> {
        let began = Instant::now();
        let enough = limit.max(self.struck_bytes).saturating_add(MORE);
        let step = self.step(began, used, limit);
        if step != Step::CountStopped {
            // It was stopped to be counted, and what filled the file system is gone again before its turn came.
            self.pause = None;
        }
        match step {
            Step::Wait => {}
            Step::Count => {
                if let Some(size) = size_of(files.directory, enough, Some(LONG_COUNT)) {
                    return Some(Counted { size, used, began, took: began.elapsed() });
                }
                self.is_large = true;
                self.due = None;
            }
            Step::CountApart => self.count_apart(files, used, enough),
            Step::CountStopped => {
                self.pause.get_or_insert_default().stop(files.writers);
                self.count_apart(files, used, enough);
            }
        }
        None
    }

    fn step(&self, now: Instant, used: u64, limit: u64) -> Step {
        let is_due = self.due.is_none_or(|due| due <= now);
        // Others write to the file system, too, so a part of the limit is not worth stopping anybody for.
        let is_suspicious = self.sure.is_some_and(|(bytes, emptiest)| {
            used.saturating_sub(emptiest) > limit.saturating_sub(bytes).max(limit / UNSURE_PART)
        });
        match (is_suspicious, self.is_large) {
            (true, _) => Step::CountStopped,
            (false, true) if is_due => Step::CountApart,
            (false, false) if is_due => Step::Count,
            (false, _) => Step::Wait,
        }
    }

    /// Counts on a thread of its own, if it is nobody else's turn.
    fn count_apart(&mut self, files: &Files<'_>, used: u64, enough: u64) {
        if !files.turn.take() {
            return;
        }
        let apart = Arc::new(OnceLock::new());
        self.apart = Some(apart.clone());
        let (directory, turn): (PathBuf, Turn) = (files.directory.to_owned(), files.turn.clone());
        let count = move || {
            let began = Instant::now();
            let size = size_of(&directory, enough, None).unwrap_or(Size::TooManyFiles);
            turn.give_back(began.elapsed());
            let _once = apart.set(Counted { size, used, began, took: began.elapsed() });
        };
        if let Err(error) = std::thread::Builder::new().name("pylair-count".to_owned()).spawn(count) {
            tracing::warn!(%error, "a session's files could not be counted");
            files.turn.give_back(Duration::ZERO);
            self.apart = None;
        }
    }

    /// Estimates when the limit could be reached, from how fast the files grew, or the file system if they were not counted.
    fn foresee(&mut self, limit: u64, used: u64, now: Option<Counted>) {
        let Some(before) = self.known else { return };
        let grown =
            now.map_or(used.saturating_sub(before.used), |now| now.size.bytes().saturating_sub(before.size.bytes()));
        let elapsed = now.map_or_else(|| before.began.elapsed(), |now| now.began - before.began);
        let left = limit.saturating_sub(before.size.bytes()).saturating_sub(grown);
        let millis = u128::from(left) * elapsed.as_millis() / u128::from(grown.max(1));
        self.reached_in = (grown > MORE).then(|| Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)));
    }

    fn judge(&mut self, size: Size, limit_mb: u64) -> Option<Excess> {
        let bytes = size.bytes();
        if bytes <= limit_mb << 20 {
            (self.struck_bytes, self.strikes, self.struck) = (0, 0, None);
            return None;
        }
        // Whoever was stopped for it may go on and delete files, but not write more.
        let is_more = bytes > self.struck_bytes.saturating_add(MORE);
        let is_less = bytes.saturating_add((limit_mb << 20) / DELETED_PART) <= self.struck_bytes;
        if self.struck.is_some() && is_less {
            (self.struck_bytes, self.struck) = (bytes, Some(Instant::now()));
            return None;
        }
        let grace = GRACE * machine::crowding();
        if !is_more && self.struck.is_some_and(|struck| struck.elapsed() < grace) {
            return None;
        }
        self.struck_bytes = bytes;
        self.struck = Some(Instant::now());
        self.strikes += 1;
        Some(Excess { size, limit_mb, strikes: self.strikes })
    }
}

/// How much of the file system that a directory is in is used, by whomever.
fn used_of(directory: &Path) -> Option<u64> {
    let system = rustix::fs::statvfs(directory).ok()?;
    Some(system.f_blocks.saturating_sub(system.f_bfree).saturating_mul(system.f_frsize))
}

/// What a directory holds, as far as it matters: not more than a little over `enough`; nothing if that takes longer than it may. Symlinks
/// are not followed, and no path is too long: each directory is opened from the one above it.
pub(super) fn size_of(directory: &Path, enough: u64, time: Option<Duration>) -> Option<Size> {
    let began = Instant::now();
    let (mut bytes, mut files) = (0_u64, 0_u64);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(top) = rustix::fs::open(directory, flags, Mode::empty()) else { return Some(Size::Bytes(0)) };
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
            if files > MAX_FILES {
                return Some(Size::TooManyFiles);
            }
            if files.is_multiple_of(FILES_BETWEEN_GLANCES) && time.is_some_and(|time| began.elapsed() > time) {
                return None;
            }
        }
        held.retain(|directory| directory.strong_count() > 0);
        held.push(Rc::downgrade(&opened));
        if held.len() > MAX_HELD {
            return Some(Size::TooDeep);
        }
        if bytes > enough {
            break;
        }
    }
    Some(Size::Bytes(bytes))
}

/// Number of files counted between two glances at the clock.
const FILES_BETWEEN_GLANCES: u64 = 256;

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
fn size_of_deleted(directory: &Path, processes: &[Process]) -> u64 {
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

    fn bytes_in(directory: &Path) -> u64 {
        size_of(directory, u64::MAX, None).unwrap().bytes()
    }

    #[test]
    fn whoever_waits_to_be_counted_goes_on_when_there_is_room_again() {
        let directory = std::env::temp_dir();
        let turn = Turn::default();
        assert!(turn.take(), "another is being counted");
        let files = Files { directory: &directory, limit_mb: 1, mine: &[], writers: &Vec::new, turn: &turn };
        let due = Some(Instant::now() + Duration::from_hours(1));
        let mut disk = Disk { sure: Some((0, 0)), due, ..Disk::default() };
        assert!(disk.look(&files).is_none() && disk.pause.is_some(), "the file system grew from nothing");
        disk.sure = Some((0, u64::MAX));
        assert!(disk.look(&files).is_none() && disk.pause.is_none());
    }

    #[test]
    fn files_are_counted_without_following_links() {
        let base = std::env::temp_dir().join(format!("pylair-watch-{}", std::process::id()));
        fs::create_dir_all(base.join("a/b")).unwrap();
        fs::write(base.join("a/b/big"), vec![1; 3 << 20]).unwrap();
        fs::write(base.join("a/empty"), "").unwrap();
        std::os::unix::fs::symlink("/usr", base.join("a/usr")).unwrap();
        let size = bytes_in(&base.join("a"));
        assert!((3 << 20..4 << 20).contains(&size), "{size}");
        let held = fs::File::open(base.join("a/b/big")).unwrap();
        fs::remove_file(base.join("a/b/big")).unwrap();
        let me = Processes::now().below(&[std::process::id().cast_signed()]);
        assert!(bytes_in(&base.join("a")) < 1 << 20 && size_of_deleted(&base, &me) >= 3 << 20);
        drop(held);
        // Who took its own rights away hides nothing.
        fs::create_dir_all(base.join("a/hidden")).unwrap();
        fs::write(base.join("a/hidden/big"), vec![1; 3 << 20]).unwrap();
        for mode in [0o000, 0o400, 0o100] {
            fs::set_permissions(base.join("a/hidden"), fs::Permissions::from_mode(mode)).unwrap();
            assert!(bytes_in(&base.join("a")) >= 3 << 20, "{mode:o}");
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
        assert!(bytes_in(&base.join("a")) >= 3 << 20);
        pylair_files::remove_tree(&base).unwrap();
    }

    fn counted(bytes: u64, used: u64) -> Counted {
        Counted { size: Size::Bytes(bytes), used, began: Instant::now(), took: Duration::ZERO }
    }

    #[test]
    fn a_session_is_stopped_when_the_file_system_grew_by_more_than_it_had_left() {
        let (limit, now) = (100 << 20, Instant::now());
        let later = Some(now + Duration::from_mins(1));
        let known = |bytes, is_large, due| Disk { sure: Some((bytes, 0)), is_large, due, ..Disk::default() };
        for (disk, used, step) in [
            (Disk::default(), 0, Step::Count),
            (known(0, false, None), 50 << 20, Step::Count),
            (known(0, false, later), 50 << 20, Step::Wait),
            (known(0, true, later), 50 << 20, Step::Wait),
            (known(0, true, None), 50 << 20, Step::CountApart),
            (known(60 << 20, true, later), 50 << 20, Step::CountStopped),
            (known(60 << 20, false, later), 50 << 20, Step::CountStopped),
            // It was told to delete files, and somebody else writes some.
            (known(110 << 20, true, later), 20 << 20, Step::Wait),
        ] {
            assert_eq!(disk.step(now, used, limit), step, "{disk:?} {used}");
        }
    }

    #[test]
    fn the_limit_is_foreseen() {
        let mut disk = Disk { known: Some(counted(0, 0)), ..Disk::default() };
        let began = disk.known.unwrap().began;
        let later = Counted { began: began + Duration::from_secs(1), ..counted(50 << 20, 0) };
        disk.foresee(100 << 20, 0, Some(later));
        assert_eq!(
            (disk.reached_in, disk.look_again()),
            (Some(Duration::from_secs(1)), Some(Duration::from_millis(500)))
        );
        disk.foresee(100 << 20, 0, Some(Counted { began: later.began, ..counted(0, 0) }));
        assert_eq!(disk.look_again(), None);
    }

    #[test]
    fn too_many_files_and_too_many_directories_are_too_much() {
        let base = std::env::temp_dir().join(format!("pylair-many-{}", std::process::id()));
        let mut at = base.clone();
        for _ in 0..=MAX_HELD {
            at.push("d");
            fs::create_dir_all(at.join("e")).unwrap();
        }
        assert_eq!(size_of(&base, u64::MAX, None), Some(Size::TooDeep));
        fs::remove_dir_all(base.join("d")).unwrap();
        for number in 0..2 * FILES_BETWEEN_GLANCES {
            fs::write(base.join(number.to_string()), "").unwrap();
        }
        assert_eq!(size_of(&base, u64::MAX, Some(Duration::ZERO)), None, "there was no time");
        let all = Size::Bytes(2 * FILES_BETWEEN_GLANCES * LEAST_FILE_BYTES);
        assert_eq!(size_of(&base, u64::MAX, Some(Duration::from_mins(1))), Some(all));
        pylair_files::remove_tree(&base).unwrap();
        let mut disk = Disk::default();
        let told = disk.judge(Size::TooManyFiles, 1).unwrap();
        assert_eq!((told.to_string().as_str(), told.strikes), ("it has more than 500000 files, which is the limit", 1));
        assert!(disk.judge(Size::TooManyFiles, 1).is_none(), "it has time to delete some");
        let long_ago = Instant::now().checked_sub(GRACE * 10);
        disk.struck = long_ago;
        assert!(disk.judge(Size::Bytes(3 << 20), 1).is_none(), "it does");
        assert!(disk.struck > long_ago && disk.judge(Size::Bytes(3 << 20), 1).is_none());
        disk.struck = long_ago;
        assert!(long_ago.is_none() || disk.judge(Size::Bytes(3 << 20), 1).is_some_and(|excess| excess.strikes == 2));
        assert!(disk.judge(Size::Bytes(0), 1).is_none() && disk.strikes == 0);
    }

    #[test]
    fn counting_apart_is_one_sessions_turn() {
        let turn = Turn::default();
        assert!(turn.take() && !turn.take());
        turn.give_back(Duration::from_mins(1));
        assert!(!turn.take(), "counting takes a part of the time");
        turn.give_back(Duration::ZERO);
        assert!(turn.take());
    }
}
