//! The directory of output files, one below it for each owner: makes them for captures, reads them in pages, also those of an
//! earlier daemon, and removes the oldest. Doors call it with an output's id; a live capture answers for itself.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    ops::ControlFlow,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, SystemTime},
};

use super::{
    Error, Stream, Which,
    capture::Capture,
    room::{Full, Leaving, Room},
    tape::{HEADER_BYTES, Header, Kept, Totals, View},
};
use pylair_os::{budget::Use, clock::Clock};
use pylair_text::hash::{hex, sha256};

const SUFFIX: &str = "out";
const MAX_ID_BYTES: usize = 64;
/// The longest name of an owner that is also the name of its directory.
const MAX_OWNER_BYTES: usize = 64;

/// How much is kept, of all owners together.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Of one output's file; what comes after is counted and gone.
    pub max_output_bytes: u64,
    pub max_files: usize,
    pub max_total_bytes: u64,
    pub max_age: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_output_bytes: 64 * 1024 * 1024,
            max_files: 2000,
            max_total_bytes: 1024 * 1024 * 1024,
            max_age: Duration::from_hours(30 * 24),
        }
    }
}

/// A handle; clones share one directory.
#[derive(Debug, Clone)]
pub struct Outputs {
    directory: Arc<Directory>,
}

/// A part of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Neighbours are of different streams.
    pub parts: Vec<(Stream, String)>,
    /// Where the next page begins; none when there is no more text now.
    pub next: Option<u64>,
    pub info: Info,
}

/// What is known of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    pub id: String,
    /// False while its cell runs, and for ever when the daemon was killed meanwhile.
    pub finished: bool,
    pub total_bytes: u64,
    pub total_chars: u64,
    pub total_lines: u64,
    /// A part of it was over the limit and is gone.
    pub truncated: bool,
}

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    limits: Limits,
    /// A std mutex: held for a lookup.
    live: Mutex<HashMap<String, Weak<Capture>>>,
    /// A std mutex: held while files are counted and, where there is no room, until the oldest is removed.
    room: Mutex<Room>,
}

impl Outputs {
    /// Uses the directory at `path`, making it with mode 0700 where there is none, and counts what is in it.
    pub fn open(path: impl Into<PathBuf>, limits: Limits) -> Result<Self, Error> {
        let path = path.into();
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed("create", &path))?;
        let room = Room::scan(&path, is_output).map_err(failed("list", &path))?;
        let (live, room) = (Mutex::default(), Mutex::new(room));
        Ok(Self { directory: Arc::new(Directory { path, limits, live, room }) })
    }

    /// Begins the output `id`: 1 to 64 lower-case letters, digits and dashes. An old file of that id is
    /// replaced once there is something to write. Makes no system call.
    pub fn capture(&self, owner: &str, id: &str) -> Result<Arc<Capture>, Error> {
        self.capture_up_to(owner, id, self.directory.limits.max_output_bytes)
    }

    /// The same with a limit of its own on what is kept.
    pub fn capture_up_to(&self, owner: &str, id: &str, max_bytes: u64) -> Result<Arc<Capture>, Error> {
        check_id(id)?;
        let directory = Arc::clone(&self.directory);
        let capture = Arc::new(Capture::new(id.to_owned(), directory_of(owner), directory, max_bytes));
        let mut live = self.directory.live();
        if live.get(id).is_some_and(|capture| capture.strong_count() > 0) {
            return Err(Error::Taken { id: id.to_owned() });
        }
        live.insert(id.to_owned(), Arc::downgrade(&capture));
        Ok(capture)
    }

    /// Text from `offset` on, about `limit` bytes of it, of a running or an old output. Offsets are
    /// opaque: 0, or a page's `next`. Reads from disk.
    pub fn read(&self, id: &str, which: Which, offset: u64, limit: usize) -> Result<Page, Error> {
        let (view, header) = self.view(id)?;
        let mut parts: Vec<(Stream, String)> = Vec::new();
        let mut next = None;
        let mut room = limit.max(4);
        let read = view.forward(which, offset, |stream, text, end| {
            let length = text.floor_char_boundary(room);
            if length > 0 {
                room -= length;
                match parts.last_mut() {
                    Some((last, part)) if *last == stream => part.push_str(&text[..length]),
                    _ => parts.push((stream, text[..length].to_owned())),
                }
            }
            if length < text.len() {
                next = Some(end.saturating_sub((text.len() - length) as u64));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        read.map_err(failed("read", &self.directory.path.join(id)))?;
        Ok(Page { parts, next, info: info(id, &view, &header) })
    }

    pub fn info(&self, id: &str) -> Result<Info, Error> {
        let (view, header) = self.view(id)?;
        Ok(info(id, &view, &header))
    }

    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// How much of each bound is used, and how much of it by this owner.
    pub fn usage(&self, owner: &str) -> [Use; 2] {
        self.directory.room().usage(&directory_of(owner), &self.directory.limits)
    }

    /// Removes files over the limits, oldest first, but none that is being written. Returns how many.
    pub fn sweep(&self, clock: &Clock) -> usize {
        self.directory.sweep(clock.oldest(self.directory.limits.max_age))
    }

    fn view(&self, id: &str) -> Result<(View, Header), Error> {
        check_id(id)?;
        // Upgraded apart from the lookup: dropping the last reference takes the same lock.
        let live = self.directory.live().get(id).and_then(Weak::upgrade);
        match live {
            Some(capture) => {
                // What memory holds is only the end of it.
                let why = self.directory.room().why_removed(&file_name(id));
                why.map_or_else(|| Ok(capture.view()), |why| Err(Error::Removed { id: id.to_owned(), why }))
            }
            None => self.directory.view(id),
        }
    }
}

impl Directory {
    /// A new file with its header, for the bytes of the output.
    pub(super) fn create(&self, owner: &Arc<str>, id: &str) -> Result<(File, PathBuf), Error> {
        let name = file_name(id);
        let path = self.begin(owner, &name)?;
        let create = || {
            let open = || OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
            let file = open().or_else(|error| match error.kind() {
                // Of an earlier daemon that used the same id.
                io::ErrorKind::AlreadyExists => fs::remove_file(&path).and_then(|()| open()),
                _ => Err(error),
            })?;
            Header::new(false, Totals::default(), 0).write(&file)?;
            Ok(file)
        };
        match create() {
            Ok(file) => Ok((file, path)),
            Err(error) => {
                self.discard(&name, &path);
                Err(failed("create", &path)(error))
            }
        }
    }

    /// Makes room for a file and the directory it is to be in. Returns its path.
    pub(super) fn begin(&self, owner: &Arc<str>, name: &str) -> Result<PathBuf, Error> {
        self.make_room(|room, limits| room.begin(owner, name, limits))?;
        let directory = self.path.join(&**owner);
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                self.room().forget(name);
                Err(failed("create", &directory)(error))
            }
            _ => Ok(directory.join(name)),
        }
    }

    /// Makes room for more of a file that is being written.
    pub(super) fn grow(&self, name: &str, bytes: u64) -> Result<(), Error> {
        self.make_room(|room, limits| room.grow(name, bytes, limits))
    }

    /// Nothing more is written to a file.
    pub(super) fn finish(&self, name: &str) {
        self.room().finish(name);
    }

    /// Half a file is worse than none.
    pub(super) fn discard(&self, name: &str, path: &Path) {
        let _absent = fs::remove_file(path);
        self.room().forget(name);
    }

    fn make_room(&self, change: impl FnOnce(&mut Room, &Limits) -> Result<Vec<Leaving>, Full>) -> Result<(), Error> {
        let mut room = self.room();
        let leaving =
            change(&mut room, &self.limits).map_err(|Full| Error::NoRoom { bound: self.limits.max_total_bytes })?;
        self.remove(&leaving);
        Ok(())
    }

    fn remove(&self, leaving: &[Leaving]) {
        for leaving in leaving {
            let path = leaving.path(&self.path);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%error, path = %path.display(), "an old output cannot be removed");
                }
                _ => {}
            }
        }
    }

    /// Where a file is. One of another daemon that uses the same directory is looked for.
    pub(super) fn find(&self, name: &str) -> Option<PathBuf> {
        if let Some(owner) = self.room().owner_of(name) {
            return Some(self.path.join(&**owner).join(name));
        }
        let owners = fs::read_dir(&self.path).ok()?.flatten();
        owners.map(|owner| owner.path().join(name)).find(|path| path.symlink_metadata().is_ok())
    }

    /// What to say of an output whose file is not there.
    pub(super) fn absent(&self, name: &str, id: String) -> Error {
        match self.room().why_removed(name) {
            Some(why) => Error::Removed { id, why },
            None => Error::Unknown { id },
        }
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn forget(&self, id: &str) {
        let mut live = self.live();
        if live.get(id).is_some_and(|capture| capture.strong_count() == 0) {
            live.remove(id);
        }
    }

    fn live(&self) -> MutexGuard<'_, HashMap<String, Weak<Capture>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(&self, id: &str) -> Result<(View, Header), Error> {
        let name = file_name(id);
        let absent = || self.absent(&name, id.to_owned());
        let path = self.find(&name).ok_or_else(absent)?;
        let file = match open_existing(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(absent()),
            file => file.map_err(failed("open", &path))?,
        };
        let header = Header::read(&file).map_err(failed("read", &path))?;
        let Some(mut header) = header else {
            return Err(Error::BadFile { path });
        };
        let length = file.metadata().map_err(failed("read", &path))?.len();
        let kept_len = length.saturating_sub(HEADER_BYTES);
        let view = View { kept: Kept::File(Arc::new(file)), kept_len, recent_start: kept_len, ..View::default() };
        if !header.finished {
            // The daemon was killed before it could write the totals.
            let mut totals = Totals::default();
            let counted = view.forward(Which::Merged, 0, |stream, text, _| {
                totals.add(stream, text);
                ControlFlow::Continue(())
            });
            counted.map_err(failed("read", &path))?;
            header.totals = totals;
        }
        Ok((view, header))
    }

    fn sweep(&self, oldest: SystemTime) -> usize {
        let mut room = self.room();
        let mut leaving = room.make_room(&self.limits);
        for file in room.finished() {
            // Somebody else may have removed it meanwhile.
            let modified = file.path(&self.path).symlink_metadata().and_then(|metadata| metadata.modified());
            if modified.is_ok_and(|modified| modified < oldest) {
                let why = format!("outputs are kept for {} days", self.limits.max_age.as_secs() / 86_400);
                leaving.extend(room.remove(&file.name, why));
            }
        }
        self.remove(&leaving);
        leaving.len()
    }
}

/// The name of an output's file. Safe for a checked id: no separator and no dot can be in it.
pub(super) fn file_name(id: &str) -> String {
    format!("{id}.{SUFFIX}")
}

fn is_output(path: &Path) -> bool {
    [SUFFIX, super::parts::SUFFIX].map(OsStr::new).iter().any(|suffix| path.extension() == Some(*suffix))
}

/// The directory that an owner's files are in: its name, unless that is none for a directory.
pub(super) fn directory_of(owner: &str) -> Arc<str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if !owner.is_empty() && owner.len() <= MAX_OWNER_BYTES && owner.bytes().all(is_plain) {
        return owner.into();
    }
    hex(&sha256(owner.as_bytes())).into()
}

pub(super) fn open_existing(path: &Path) -> io::Result<File> {
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(no_follow).open(path)
}

pub(super) fn check_id(id: &str) -> Result<(), Error> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if id.is_empty() || id.len() > MAX_ID_BYTES || !id.bytes().all(allowed) {
        return Err(Error::BadId { id: id.to_owned() });
    }
    Ok(())
}

fn info(id: &str, view: &View, header: &Header) -> Info {
    let merged = header.totals.of(Which::Merged);
    Info {
        id: id.to_owned(),
        finished: header.finished,
        total_bytes: merged.bytes,
        total_chars: merged.chars,
        total_lines: merged.lines(),
        truncated: view.overflowed || view.end() < header.end,
    }
}

pub(super) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action, path, source }
}
