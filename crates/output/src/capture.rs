//! One cell's output while it is printed: bytes in, text out, bounded memory. What does not fit in memory
//! goes to a file in the outputs directory; what does not fit there is counted and gone, except for its end.

use std::{
    ops::ControlFlow,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::{
    Error, Stream, Which,
    directory::{Directory, file_name, open_existing},
    excerpt::{self, Excerpt},
    tape::{self, Header, Kept, MARKER_EVERY, Totals, View, to_usize},
};
use pylair_os::event_loop::apart;

/// Text is written to the file in blocks of at least this; shorter output makes no file.
const BLOCK_BYTES: u64 = 64 * 1024;
/// What stays in memory for excerpts and for readers that are a little behind.
const RECENT_BYTES: usize = 64 * 1024;
/// Memory is trimmed to `RECENT_BYTES` when it holds this much.
const TRIM_AT_BYTES: usize = 192 * 1024;
/// `TRIM_AT_BYTES` and the largest piece that can come on top of it.
const BUFFER_BYTES: usize = TRIM_AT_BYTES + 64 * 1024 + 64;
/// Escaped text is passed on in pieces of about this.
const DECODE_BYTES: usize = 16 * 1024;
/// What is taken under one lock.
const PUSH_BYTES: usize = 256 * 1024;
/// What one `read_from` gives at most.
const READ_BYTES: u64 = 64 * 1024;

/// Made by [`super::Outputs::capture`], one per cell. Methods may be called from any thread.
#[derive(Debug)]
pub struct Capture {
    id: String,
    /// The directory of its owner.
    owner: Arc<str>,
    directory: Arc<Directory>,
    /// Maximum number of bytes that are kept.
    max_bytes: u64,
    /// A std mutex: held while a chunk is copied and, every 64 KiB, for one write into the page cache.
    /// Readers copy what they need and do their work outside.
    inner: Mutex<Inner>,
    changed: Notify,
}

/// Where a streaming reader is. The default is the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    position: u64,
    stream: Stream,
}

/// What [`Capture::read_from`] found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Read {
    pub parts: Vec<(Stream, String)>,
    /// For the next call.
    pub cursor: Cursor,
    /// Bytes that came before `parts` and are nowhere any more: the output is over its limit and the
    /// reader was too slow.
    pub skipped_bytes: u64,
}

/// What is known of an output when its cell has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// None for output that fits in memory.
    pub path: Option<PathBuf>,
    pub total_bytes: u64,
    pub total_chars: u64,
    pub total_lines: u64,
    /// The end of the text is not in the file: it was over the limit, or the disk refused it.
    pub truncated: bool,
    /// Why the file could not be written.
    pub spool_error: Option<String>,
}

#[derive(Debug, Default)]
struct Inner {
    stdout_rest: Rest,
    stderr_rest: Rest,
    totals: Totals,
    recent: Vec<u8>,
    recent_start: u64,
    recent_stream: Stream,
    kept: Kept,
    kept_len: u64,
    /// Nothing more goes to `kept`.
    full: bool,
    path: Option<PathBuf>,
    /// `kept` is at `path` but not held open: a finished output may be around for long.
    closed: bool,
    spool_error: Option<String>,
    /// The stream of the last text, and where its marker is.
    current: Stream,
    last_marker: u64,
    finished: bool,
}

/// The first bytes of a character whose last ones have not come yet.
#[derive(Debug, Default)]
struct Rest {
    bytes: [u8; 3],
    length: usize,
}

impl Rest {
    fn set(&mut self, bytes: &[u8]) {
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        self.length = bytes.len();
    }
}

/// Whether these bytes are the beginning of a character and nothing else.
fn is_cut(bytes: &[u8]) -> bool {
    !bytes.is_ascii()
        && std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

impl Capture {
    pub(super) fn new(id: String, owner: Arc<str>, directory: Arc<Directory>, max_bytes: u64) -> Self {
        Self { id, owner, directory, max_bytes, inner: Mutex::default(), changed: Notify::new() }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// Appends bytes as they were read from the stream's pipe, cut anywhere. Bytes that are not UTF-8
    /// become `\xNN`. Ignored after [`Self::finish`].
    pub fn push(&self, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        // In pieces, so that nobody waits for the lock while a large one is taken.
        for piece in bytes.chunks(PUSH_BYTES) {
            let mut inner = self.lock();
            if inner.finished {
                return;
            }
            inner.push(self, stream, piece);
        }
        self.changed.notify_waiters();
    }

    /// How much was printed so far.
    pub fn bytes(&self) -> usize {
        to_usize(self.lock().end())
    }

    /// The text after `cursor`, at most about 64 KiB of it; empty when there is none yet.
    pub fn read_from(&self, cursor: Cursor) -> Read {
        let view = {
            let inner = self.lock();
            if cursor.position >= inner.recent_start {
                let from = to_usize(cursor.position - inner.recent_start);
                let fresh = inner.recent.get(from..).unwrap_or_default();
                let fresh = &fresh[..tape::floor_boundary(fresh, to_usize(READ_BYTES))];
                return read(fresh, cursor);
            }
            inner.view(RecentBytes::Leave)
        };
        // Behind what memory holds. An unreadable file is as good as none.
        let kept = view.read_at(cursor.position, READ_BYTES).unwrap_or_default();
        if kept.is_empty() {
            let cursor_after = Cursor { position: view.recent_start, stream: view.recent_stream };
            let mut found = self.read_from(cursor_after);
            found.skipped_bytes += view.recent_start - cursor.position;
            return found;
        }
        read(tape::whole_characters(&kept), cursor)
    }

    /// Returns when there is text after `cursor`, or the output is finished.
    pub async fn readable(&self, cursor: Cursor) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before looking, so that nothing is missed between the look and the wait.
            changed.as_mut().enable();
            {
                let inner = self.lock();
                if inner.finished || inner.end() > cursor.position {
                    return;
                }
            }
            changed.await;
        }
    }

    /// Head and tail within `max_chars` characters, for a model. `whole` says where the whole output can
    /// be read, for the line that stands for what was left out; when something is, the whole is on disk
    /// afterwards. Reads up to 1 MiB of the file, and more only where one stream is rare in the other.
    pub fn snapshot(&self, max_chars: usize, whole: Option<&str>) -> Excerpt {
        let (view, totals) = {
            let mut inner = self.lock();
            let chars = inner.totals.of(Which::Merged).chars;
            if whole.is_some() && chars > max_chars as u64 {
                inner.keep(self);
            }
            (inner.view(RecentBytes::Copy), inner.totals)
        };
        apart(to_usize(view.end()), || excerpt::excerpt(view, &totals, max_chars, whole))
    }

    /// The cell has ended: what is left in memory goes to the file, where there is one.
    pub fn finish(&self) -> Finished {
        let finished = {
            let mut inner = self.lock();
            if !inner.finished {
                inner.finish(self);
            }
            let merged = inner.totals.of(Which::Merged);
            Finished {
                path: inner.path.clone(),
                total_bytes: merged.bytes,
                total_chars: merged.chars,
                total_lines: merged.lines(),
                truncated: inner.overflowed(),
                spool_error: inner.spool_error.clone(),
            }
        };
        self.changed.notify_waiters();
        finished
    }

    pub(super) fn view(&self) -> (View, Header) {
        let inner = self.lock();
        let header = Header::new(inner.finished, inner.totals, inner.end());
        (inner.view(RecentBytes::Copy), header)
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.lock().recent.capacity()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // Whoever let go of a running cell's output still leaves a complete file.
        self.finish();
        self.directory.forget(&self.id);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecentBytes {
    Copy,
    Leave,
}

impl Inner {
    fn end(&self) -> u64 {
        self.recent_start + self.recent.len() as u64
    }

    fn overflowed(&self) -> bool {
        self.full && self.kept_len < self.end()
    }

    fn rest(&mut self, stream: Stream) -> &mut Rest {
        match stream {
            Stream::Stdout => &mut self.stdout_rest,
            Stream::Stderr => &mut self.stderr_rest,
        }
    }

    fn push(&mut self, capture: &Capture, stream: Stream, mut bytes: &[u8]) {
        let rest = std::mem::take(self.rest(stream));
        if rest.length > 0 {
            // Byte by byte until the character that was cut is whole or turns out to be none.
            let mut joined = [0; 4];
            let mut length = rest.length;
            joined[..length].copy_from_slice(&rest.bytes[..length]);
            loop {
                let Some((&next, after)) = bytes.split_first() else {
                    return self.rest(stream).set(&joined[..length]);
                };
                joined[length] = next;
                let is_cut = is_cut(&joined[..=length]);
                if is_cut || std::str::from_utf8(&joined[..=length]).is_ok() {
                    length += 1;
                    bytes = after;
                }
                if !is_cut {
                    break;
                }
            }
            self.decode(capture, stream, &joined[..length]);
        }
        // A cut character is set apart first, so that the rest is validated once.
        let cut = (1..=bytes.len().min(3)).find(|&count| is_cut(&bytes[bytes.len() - count..]));
        let (bytes, rest) = bytes.split_at(bytes.len() - cut.unwrap_or(0));
        self.rest(stream).set(rest);
        match std::str::from_utf8(bytes) {
            Ok(text) => self.append(capture, stream, text),
            Err(_) => self.decode(capture, stream, bytes),
        }
    }

    /// Bytes that are not UTF-8 are written as Python's `backslashreplace` does.
    fn decode(&mut self, capture: &Capture, stream: Stream, bytes: &[u8]) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = String::new();
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            for byte in chunk.invalid() {
                text.push_str("\\x");
                text.push(char::from(HEX[usize::from(byte >> 4)]));
                text.push(char::from(HEX[usize::from(byte & 15)]));
            }
            if text.len() >= DECODE_BYTES {
                self.append(capture, stream, &text);
                text.clear();
            }
        }
        self.append(capture, stream, &text);
    }

    fn append(&mut self, capture: &Capture, stream: Stream, mut text: &str) {
        if text.is_empty() {
            return;
        }
        self.totals.add(stream, text);
        while !text.is_empty() {
            if stream != self.current || self.end() - self.last_marker >= MARKER_EVERY {
                self.last_marker = self.end();
                self.current = stream;
                self.reserve(1);
                self.recent.push(tape::marker(stream));
            }
            let room = MARKER_EVERY - (self.end() - self.last_marker);
            // At least one character, whatever its width.
            let length = text.floor_char_boundary(to_usize(room.max(4)));
            let (piece, after) = text.split_at(length);
            self.reserve(piece.len());
            self.recent.extend_from_slice(piece.as_bytes());
            text = after;
            if self.end() - self.kept_len >= BLOCK_BYTES && !self.full {
                self.keep(capture);
            }
            if self.recent.len() >= TRIM_AT_BYTES {
                self.trim();
            }
        }
    }

    /// Grows to the whole buffer at once when doubling would go past it.
    fn reserve(&mut self, bytes: usize) {
        let needed = self.recent.len() + bytes;
        if needed > self.recent.capacity() && needed > RECENT_BYTES {
            self.recent.reserve_exact(BUFFER_BYTES - self.recent.len());
        }
    }

    /// Writes what is only in memory to the file, making that first.
    fn keep(&mut self, capture: &Capture) {
        if self.full || self.closed {
            return;
        }
        if matches!(self.kept, Kept::Nothing) {
            match capture.directory.create(&capture.owner, &capture.id) {
                Ok((file, path)) => {
                    self.kept = Kept::File(Arc::new(file));
                    self.path = Some(path);
                }
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        id = capture.id,
                        "output is not written to disk"
                    );
                    self.spool_error = Some(match &error {
                        Error::Io { source, .. } => format!("{error}: {source}"),
                        _ => error.to_string(),
                    });
                    let head = tape::floor_boundary(&self.recent, RECENT_BYTES);
                    self.kept = Kept::Memory(Arc::from(&self.recent[..head]));
                    self.kept_len = head as u64;
                    self.full = true;
                    return;
                }
            }
        }
        let Kept::File(file) = &self.kept else { return };
        let from = to_usize(self.kept_len - self.recent_start);
        let room = capture.max_bytes.saturating_sub(self.kept_len);
        let mut block = &self.recent[from..];
        if block.len() as u64 > room {
            let room = to_usize(room);
            block = &block[..tape::floor_boundary(block, room)];
            self.full = true;
        }
        let written =
            capture.directory.grow(&file_name(&capture.id), block.len() as u64).map_err(|full| full.to_string());
        let written = written.and_then(|()| {
            file.write_all_at(block, tape::HEADER_BYTES + self.kept_len).map_err(|error| error.to_string())
        });
        match written {
            Ok(()) => self.kept_len += block.len() as u64,
            Err(error) => {
                tracing::warn!(%error, id = capture.id, "output is no longer written to disk");
                self.spool_error = Some(error);
                self.full = true;
            }
        }
        if self.finished {
            self.close(capture);
        }
    }

    /// Completes the file: its header gets the totals.
    fn close(&mut self, capture: &Capture) {
        let Kept::File(file) = &self.kept else { return };
        let header = Header::new(true, self.totals, self.end());
        // A write that failed may have left a part of a block behind.
        let closed = file.set_len(tape::HEADER_BYTES + self.kept_len).and_then(|()| header.write(file));
        if let Err(error) = closed {
            tracing::warn!(%error, id = capture.id, "output is not complete on disk");
            self.spool_error = Some(error.to_string());
        }
        self.kept = Kept::Nothing;
        self.closed = true;
        capture.directory.finish(&file_name(&capture.id));
        if self.recent.len() > RECENT_BYTES {
            self.trim();
        }
        self.recent.shrink_to_fit();
    }

    /// Forgets the oldest text in memory; it is in the file, or over the limit.
    fn trim(&mut self) {
        let start = tape::ceil_boundary(&self.recent, self.recent.len() - RECENT_BYTES);
        if let Some(stream) = tape::last_stream(&self.recent[..start]) {
            self.recent_stream = stream;
        }
        self.recent.copy_within(start.., 0);
        self.recent.truncate(self.recent.len() - start);
        self.recent_start += start as u64;
    }

    fn finish(&mut self, capture: &Capture) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let rest = std::mem::take(self.rest(stream));
            self.decode(capture, stream, &rest.bytes[..rest.length]);
        }
        self.finished = true;
        if let Kept::File(_) = self.kept {
            self.keep(capture);
            self.close(capture);
        }
    }

    fn view(&self, recent: RecentBytes) -> View {
        let kept = match &self.path {
            Some(path) if self.closed => open_existing(path).map_or(Kept::Nothing, |file| Kept::File(Arc::new(file))),
            _ => self.kept.clone(),
        };
        View {
            // Removed by the sweep, or by somebody else.
            kept_len: if matches!(kept, Kept::Nothing) { 0 } else { self.kept_len },
            kept,
            recent: match recent {
                RecentBytes::Copy => self.recent.clone(),
                RecentBytes::Leave => Vec::new(),
            },
            recent_start: self.recent_start,
            recent_stream: self.recent_stream,
            overflowed: self.overflowed(),
        }
    }
}

/// The parts of `bytes`, which begin at the cursor.
fn read(bytes: &[u8], cursor: Cursor) -> Read {
    let mut stream = cursor.stream;
    let mut parts: Vec<(Stream, String)> = Vec::new();
    // Never breaks.
    _ = tape::pieces(bytes, Which::Merged, &mut stream, |stream, text, _| {
        match parts.last_mut() {
            Some((last, part)) if *last == stream => part.push_str(text),
            _ => parts.push((stream, text.to_owned())),
        }
        ControlFlow::Continue(())
    });
    Read { parts, cursor: Cursor { position: cursor.position + bytes.len() as u64, stream }, skipped_bytes: 0 }
}
