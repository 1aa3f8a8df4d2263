//! The bytes of an output, in memory and on disk alike: UTF-8 text of both streams in the order it came,
//! with a byte that UTF-8 never contains where the stream changes. Positions count these bytes.
//! A marker also stands at least every [`MARKER_EVERY`] bytes, so the stream at any position is found by
//! looking back a little, and no index is needed. A file has a header of fixed length before that.

use std::{borrow::Cow, fs::File, io, ops::ControlFlow, os::unix::fs::FileExt, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{Stream, Which};

pub(super) const MARKER_EVERY: u64 = 64 * 1024;
/// A character may straddle the distance.
const MARKER_WITHIN: u64 = MARKER_EVERY + 8;
/// How much is read at once.
const WINDOW: u64 = 64 * 1024;

/// How much is looked at together in the search for markers.
const SCAN_BYTES: usize = 64;
const FIRST_MARKER: u8 = 0xFE;

const FORMAT: u32 = 1;
pub(super) const HEADER_BYTES: u64 = HEADER.len() as u64;
const HEADER: [u8; 512] = [b' '; 512];

pub(super) fn marker(stream: Stream) -> u8 {
    match stream {
        Stream::Stdout => 0xFE,
        Stream::Stderr => 0xFF,
    }
}

fn marked(byte: u8) -> Option<Stream> {
    match byte {
        0xFE => Some(Stream::Stdout),
        0xFF => Some(Stream::Stderr),
        _ => None,
    }
}

/// The stream after these bytes, where they say.
pub(super) fn last_stream(bytes: &[u8]) -> Option<Stream> {
    let (_, blocks) = bytes.as_rchunks::<SCAN_BYTES>();
    let clean = blocks.iter().rev().take_while(|block| !has_marker(block)).count();
    let bytes = &bytes[..bytes.len() - clean * SCAN_BYTES];
    bytes.iter().rev().find_map(|&byte| marked(byte))
}

/// The index of the first marker, or the length.
fn next_marker(bytes: &[u8]) -> usize {
    let (blocks, _) = bytes.as_chunks::<SCAN_BYTES>();
    let clean = SCAN_BYTES * blocks.iter().take_while(|block| !has_marker(block)).count();
    let found = bytes[clean..].iter().position(|&byte| byte >= FIRST_MARKER);
    found.map_or(bytes.len(), |index| clean + index)
}

/// Looks at all bytes, which is fast in wide instructions, where a search for the first is not.
fn has_marker(block: &[u8; SCAN_BYTES]) -> bool {
    block.iter().fold(0, |max, &byte| byte.max(max)) >= FIRST_MARKER
}

/// The first position at or after `index` where a character or a marker begins.
pub(super) fn ceil_boundary(bytes: &[u8], mut index: usize) -> usize {
    while index < bytes.len() && is_continuation(bytes[index]) {
        index += 1;
    }
    index
}

/// The last position at or before `index` where a character or a marker begins or the bytes end.
pub(super) fn floor_boundary(bytes: &[u8], index: usize) -> usize {
    let mut index = index.min(bytes.len());
    while index > 0 && index < bytes.len() && is_continuation(bytes[index]) {
        index -= 1;
    }
    index
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

/// Cuts off a character whose last bytes are not there.
pub(super) fn whole_characters(bytes: &[u8]) -> &[u8] {
    let tail = bytes.len().saturating_sub(3);
    let Some(start) = bytes[tail..].iter().rposition(|&b| !is_continuation(b)) else {
        return bytes;
    };
    let start = tail + start;
    let width = match bytes[start] {
        0xC0..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF7 => 4,
        _ => 1,
    };
    if bytes.len() - start < width { &bytes[..start] } else { bytes }
}

/// How much one stream has printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tally {
    pub(super) bytes: u64,
    pub(super) chars: u64,
    pub(super) newlines: u64,
    /// The text does not end with a line end.
    pub(super) open_line: bool,
}

impl Tally {
    pub(super) fn add(&mut self, text: &str) {
        self.bytes += text.len() as u64;
        self.chars += if text.is_ascii() { text.len() as u64 } else { text.chars().count() as u64 };
        self.newlines += count_newlines(text);
        self.open_line = !text.ends_with('\n');
    }

    pub(super) fn lines(&self) -> u64 {
        self.newlines + u64::from(self.open_line)
    }
}

pub(super) fn count_newlines(text: &str) -> u64 {
    // Blocks small enough for a byte to count in, which the compiler turns into wide instructions.
    let (blocks, rest) = text.as_bytes().as_chunks::<192>();
    let count = |bytes: &[u8]| u64::from(bytes.iter().map(|&byte| u8::from(byte == b'\n')).sum::<u8>());
    blocks.iter().map(|block| count(block)).sum::<u64>() + count(rest)
}

/// The totals of both streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Totals {
    pub(super) stdout: Tally,
    pub(super) stderr: Tally,
    /// Of the merged text.
    pub(super) open_line: bool,
}

impl Totals {
    pub(super) fn add(&mut self, stream: Stream, text: &str) {
        let tally = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        tally.add(text);
        self.open_line = tally.open_line;
    }

    pub(super) fn of(&self, which: Which) -> Tally {
        match which {
            Which::Only(Stream::Stdout) => self.stdout,
            Which::Only(Stream::Stderr) => self.stderr,
            Which::Merged => Tally {
                bytes: self.stdout.bytes + self.stderr.bytes,
                chars: self.stdout.chars + self.stderr.chars,
                newlines: self.stdout.newlines + self.stderr.newlines,
                open_line: self.open_line,
            },
        }
    }
}

/// Stands at the head of a file, as a line of JSON filled up with spaces.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Header {
    format: u32,
    /// False while the cell runs, and for ever when the daemon was killed meanwhile.
    pub(super) finished: bool,
    pub(super) totals: Totals,
    /// Where the tape ends, stored or not.
    pub(super) end: u64,
}

impl Header {
    pub(super) fn new(finished: bool, totals: Totals, end: u64) -> Self {
        Self { format: FORMAT, finished, totals, end }
    }

    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.resize(HEADER.len() - 1, b' ');
        bytes.push(b'\n');
        file.write_all_at(&bytes, 0)
    }

    /// None when this is no output file, or one of another version.
    pub(super) fn read(file: &File) -> io::Result<Option<Self>> {
        let mut bytes = HEADER;
        match file.read_exact_at(&mut bytes, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            result => result?,
        }
        let header = serde_json::from_slice(&bytes).ok();
        Ok(header.filter(|header: &Header| header.format == FORMAT))
    }
}

/// Where the beginning of a tape is.
#[derive(Debug, Clone, Default)]
pub(super) enum Kept {
    #[default]
    Nothing,
    File(Arc<File>),
    /// Where no file could be made.
    Memory(Arc<[u8]>),
}

/// A tape as it was at one moment. What it refers to never changes, so it is read without a lock.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) kept: Kept,
    pub(super) kept_len: u64,
    /// The newest bytes, from `recent_start` to the end. What lies between `kept_len` and `recent_start`
    /// was over the limit and is gone.
    pub(super) recent: Vec<u8>,
    pub(super) recent_start: u64,
    /// The stream at `recent_start`.
    pub(super) recent_stream: Stream,
    /// What comes after `kept_len` will never be kept.
    pub(super) overflowed: bool,
}

impl View {
    pub(super) fn end(&self) -> u64 {
        self.kept_len.max(self.recent_start + self.recent.len() as u64)
    }

    pub(super) fn forget_kept(&mut self) {
        self.kept = Kept::Nothing;
        self.kept_len = 0;
    }

    /// Whether every byte is still there.
    pub(super) fn is_whole(&self) -> bool {
        self.kept_len >= self.recent_start
    }

    /// Bytes from `position` on, at most `max`, empty at the end and in the hole.
    pub(super) fn read_at(&self, position: u64, max: u64) -> io::Result<Cow<'_, [u8]>> {
        if position >= self.recent_start {
            let from = self.recent.len().min(to_usize(position - self.recent_start));
            let recent = &self.recent[from..];
            return Ok(Cow::Borrowed(&recent[..recent.len().min(to_usize(max))]));
        }
        let length = to_usize(self.kept_len.saturating_sub(position).min(max));
        match &self.kept {
            Kept::Nothing => Ok(Cow::Borrowed(&[])),
            Kept::Memory(bytes) => {
                let from = to_usize(position).min(bytes.len());
                let bytes = &bytes[from..];
                Ok(Cow::Borrowed(&bytes[..bytes.len().min(length)]))
            }
            Kept::File(file) => {
                let mut bytes = vec![0; length];
                let mut filled = 0;
                while filled < length {
                    let at = HEADER_BYTES + position + filled as u64;
                    match file.read_at(&mut bytes[filled..], at)? {
                        0 => break,
                        count => filled += count,
                    }
                }
                bytes.truncate(filled);
                Ok(Cow::Owned(bytes))
            }
        }
    }

    /// The stream that a text at `position` belongs to.
    pub(super) fn stream_at(&self, position: u64) -> io::Result<Stream> {
        if position >= self.recent_start {
            let before = self.recent.len().min(to_usize(position - self.recent_start));
            return Ok(last_stream(&self.recent[..before]).unwrap_or(self.recent_stream));
        }
        let from = position.saturating_sub(MARKER_WITHIN);
        let before = self.read_at(from, position - from)?;
        Ok(last_stream(&before).unwrap_or_default())
    }

    /// Gives every piece of text from `position` on, with the position after it. Stops where `each` breaks.
    /// A hole is jumped over.
    pub(super) fn forward(
        &self,
        which: Which,
        mut position: u64,
        mut each: impl FnMut(Stream, &str, u64) -> ControlFlow<()>,
    ) -> io::Result<()> {
        let mut stream = self.stream_at(position)?;
        loop {
            let window = self.read_at(position, WINDOW)?;
            let start = ceil_boundary(&window, 0);
            let window = whole_characters(&window[start..]);
            position += start as u64;
            if window.is_empty() {
                if position >= self.recent_start {
                    return Ok(());
                }
                position = self.recent_start;
                stream = self.recent_stream;
                continue;
            }
            let flow =
                pieces(window, which, &mut stream, |stream, text, index| each(stream, text, position + index as u64));
            if flow.is_break() {
                return Ok(());
            }
            position += window.len() as u64;
        }
    }

    /// Gives every piece of text from the end back to the beginning.
    pub(super) fn backward(
        &self,
        which: Which,
        mut each: impl FnMut(Stream, &str) -> ControlFlow<()>,
    ) -> io::Result<()> {
        let mut high = self.end();
        let beginning = if self.is_whole() { 0 } else { self.recent_start };
        while high > beginning {
            let region = if high > self.recent_start { self.recent_start } else { 0 };
            let low = high.saturating_sub(WINDOW).max(region);
            let window = self.read_at(low, high - low)?;
            let start = ceil_boundary(&window, 0);
            let window = &window[start..];
            let mut stream = self.stream_at(low + start as u64)?;
            let mut found = Vec::new();
            // Never breaks: the pieces are needed in the other order.
            _ = pieces(window, which, &mut stream, |stream, text, _| {
                found.push((stream, text.to_owned()));
                ControlFlow::Continue(())
            });
            for (stream, text) in found.iter().rev() {
                if each(*stream, text).is_break() {
                    return Ok(());
                }
            }
            high = low + start as u64;
            if window.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Splits at the markers, updating `stream`. `each` gets the index after the piece as well.
pub(super) fn pieces(
    bytes: &[u8],
    which: Which,
    stream: &mut Stream,
    mut each: impl FnMut(Stream, &str, usize) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut start = 0;
    while start < bytes.len() {
        if let Some(next) = marked(bytes[start]) {
            *stream = next;
            start += 1;
            continue;
        }
        let end = start + next_marker(&bytes[start..]);
        if which.takes(*stream) {
            // Ours is always valid; a file somebody edited may not be.
            each(*stream, &String::from_utf8_lossy(&bytes[start..end]), end)?;
        }
        start = end;
    }
    ControlFlow::Continue(())
}

pub(super) fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
