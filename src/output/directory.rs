//! The directory of output files: makes them for captures, reads them in pages, also those of an earlier
//! daemon, and removes the oldest. Doors call it with an output's id; a live capture answers for itself.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    ops::ControlFlow,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, SystemTime},
};

use super::{
    Error, Stream, Which,
    capture::Capture,
    tape::{HEADER_BYTES, Header, Kept, Totals, View},
};

const SUFFIX: &str = "out";
const MAX_ID_BYTES: usize = 64;
/// Files are counted after this many finished, or this many bytes of them.
const SWEEP_AFTER_FILES: u64 = 16;
const SWEEP_AFTER_BYTES: u64 = 64 * 1024 * 1024;

/// How much is kept. Checked now and then, so a little more may be there.
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
    unswept_files: AtomicU64,
    unswept_bytes: AtomicU64,
}

impl Outputs {
    /// Uses the directory at `path`, making it with mode 0700 where there is none.
    pub fn open(path: impl Into<PathBuf>, limits: Limits) -> Result<Self, Error> {
        let path = path.into();
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed("create", &path))?;
        Ok(Self {
            directory: Arc::new(Directory {
                path,
                limits,
                live: Mutex::default(),
                unswept_files: AtomicU64::new(0),
                unswept_bytes: AtomicU64::new(0),
            }),
        })
    }

    /// Begins the output `id`: 1 to 64 lower-case letters, digits and dashes. An old file of that id is
    /// replaced once there is something to write. Makes no system call.
    pub fn capture(&self, id: &str) -> Result<Arc<Capture>, Error> {
        check_id(id)?;
        let capture = Arc::new(Capture::new(id.to_owned(), Arc::clone(&self.directory)));
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
        read.map_err(failed("read", &self.directory.file(id)))?;
        Ok(Page { parts, next, info: info(id, &view, &header) })
    }

    pub fn info(&self, id: &str) -> Result<Info, Error> {
        let (view, header) = self.view(id)?;
        Ok(info(id, &view, &header))
    }

    pub(super) fn path(&self) -> &Path {
        &self.directory.path
    }

    /// Something of this size was written.
    pub(super) fn finished(&self, bytes: u64) {
        self.directory.finished(bytes);
    }

    /// Removes files over the limits, oldest first, but none of a live capture. Returns how many. Captures
    /// do it now and then as they finish; the daemon does it once at its start.
    pub fn sweep(&self) -> Result<usize, Error> {
        self.directory.sweep()
    }

    fn view(&self, id: &str) -> Result<(View, Header), Error> {
        check_id(id)?;
        // Upgraded apart from the lookup: dropping the last reference takes the same lock.
        let live = self.directory.live().get(id).and_then(Weak::upgrade);
        match live {
            Some(capture) => Ok(capture.view()),
            None => self.directory.view(id),
        }
    }
}

impl Directory {
    pub(super) fn max_output_bytes(&self) -> u64 {
        self.limits.max_output_bytes
    }

    /// A new file with its header, for the bytes of the output.
    pub(super) fn create(&self, id: &str) -> Result<(File, PathBuf), Error> {
        let path = self.file(id);
        let open = || OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = open().or_else(|error| {
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Err(error);
            }
            // Of an earlier daemon that used the same id.
            fs::remove_file(&path)?;
            open()
        });
        let file = file.map_err(failed("create", &path))?;
        let header = Header::new(false, Totals::default(), 0);
        header.write(&file).map_err(failed("write", &path))?;
        Ok((file, path))
    }

    /// A capture has finished its file.
    pub(super) fn finished(&self, bytes: u64) {
        let files = self.unswept_files.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes = self.unswept_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if (files >= SWEEP_AFTER_FILES || bytes >= SWEEP_AFTER_BYTES)
            && let Err(error) = self.sweep()
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "old outputs are not removed");
        }
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

    /// Safe for a checked id: no separator and no dot can be in it.
    fn file(&self, id: &str) -> PathBuf {
        self.path.join(id).with_extension(SUFFIX)
    }

    fn view(&self, id: &str) -> Result<(View, Header), Error> {
        let path = self.file(id);
        let file = match open_existing(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::Unknown { id: id.to_owned() });
            }
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

    fn sweep(&self) -> Result<usize, Error> {
        self.unswept_files.store(0, Ordering::Relaxed);
        self.unswept_bytes.store(0, Ordering::Relaxed);
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed("list", &self.path))? {
            let path = entry.map_err(failed("list", &self.path))?.path();
            if ![SUFFIX, super::parts::SUFFIX].map(OsStr::new).iter().any(|suffix| path.extension() == Some(*suffix)) {
                continue;
            }
            // Somebody else may have removed it meanwhile.
            let Ok(metadata) = path.symlink_metadata() else {
                continue;
            };
            let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            files.push((modified, metadata.len(), path));
        }
        files.sort_unstable();
        let mut count = files.len();
        let mut total: u64 = files.iter().map(|(_, length, _)| length).sum();
        let mut removed = 0;
        for (modified, length, path) in files {
            let old = modified.elapsed().is_ok_and(|age| age > self.limits.max_age);
            if count <= self.limits.max_files && total <= self.limits.max_total_bytes && !old {
                break;
            }
            if self.is_live(&path) {
                continue;
            }
            fs::remove_file(&path).map_err(failed("remove", &path))?;
            count -= 1;
            total -= length;
            removed += 1;
        }
        Ok(removed)
    }

    fn is_live(&self, path: &Path) -> bool {
        let id = path.file_stem().and_then(OsStr::to_str);
        id.is_some_and(|id| self.live().contains_key(id))
    }
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
