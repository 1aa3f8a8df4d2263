//! The files of the audit record: written by the daemon's one writer, read by `pylair audit`.
//!
//! `audit.jsonl` is the newest; `audit.jsonl.1` and so on are full ones. Each line is written with one call, so that a daemon that is
//! killed leaves whole lines; one that a full disk cut short is closed with a line break and stays in the chain as it is.

use std::{
    fs::{self, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::Line;
use crate::settings::AuditSettings;
use pylair_text::hash::{hex, sha256};

/// More than any setting keeps.
const MAX_FILES: u32 = 1000;
/// Longer than any line of ours.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// A line in its place.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    pub seq: u64,
    #[serde(flatten)]
    pub line: Line,
    /// SHA-256 of the line before, without its line break; empty for the very first.
    pub prev: String,
}

/// Where the chain is: the number and the hash of its newest line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub seq: u64,
    pub hash: String,
}

/// The file that is written.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    settings: AuditSettings,
    open: fs::File,
    bytes: u64,
    head: Head,
    /// The last line was cut short and is not closed yet.
    is_torn: bool,
    _lock: fs::File,
}

impl File {
    pub fn open(path: PathBuf, settings: AuditSettings) -> io::Result<Self> {
        let lock_path = path.with_extension("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(lock_path)?;
        let path = match lock.try_lock() {
            Ok(()) => path,
            // A standalone server beside a daemon: two writers would tear one chain.
            Err(_) => path.with_file_name(format!("audit-{}.jsonl", std::process::id())),
        };
        let mut file = open_to_append(&path)?;
        let mut bytes = file.metadata()?.len();
        let mut is_torn = bytes > 0 && !ends_a_line(&path, bytes)?;
        // A disk may be full; then it is closed when there is room.
        if is_torn && file.write_all(b"\n").is_ok() {
            bytes += 1;
            is_torn = false;
        }
        let newest = if bytes > 0 { Some(path.clone()) } else { files(&path).into_iter().rev().nth(1) };
        let head = newest.map(|newest| last_head(&newest)).transpose()?.unwrap_or_default();
        Ok(Self { path, settings, open: file, bytes, head, is_torn, _lock: lock })
    }

    pub fn head(&self) -> Head {
        self.head.clone()
    }

    pub fn append(&mut self, line: &Line) -> io::Result<()> {
        if self.is_torn {
            self.open.write_all(b"\n")?;
            self.bytes += 1;
            self.is_torn = false;
        }
        if self.bytes >= self.settings.max_bytes {
            self.rotate()?;
        }
        let entry = Entry { seq: self.head.seq.saturating_add(1), line: line.clone(), prev: self.head.hash.clone() };
        let mut text = serde_json::to_vec(&entry)?;
        let hash = hash_of(&text);
        text.push(b'\n');
        match self.open.write(&text) {
            Ok(count) if count == text.len() => {}
            Ok(count) => {
                // Cut short: what is there stays, is closed when there is room again, and the chain goes on from it.
                self.head.hash = hash_of(&text[..count]);
                self.bytes += count as u64;
                self.is_torn = true;
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            Err(error) => return Err(error),
        }
        self.bytes += text.len() as u64;
        self.head = Head { seq: entry.seq, hash };
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        for number in (1..self.settings.files).rev() {
            if numbered(&self.path, number).exists() {
                fs::rename(numbered(&self.path, number), numbered(&self.path, number + 1))?;
            }
        }
        fs::rename(&self.path, numbered(&self.path, 1))?;
        self.open = open_to_append(&self.path)?;
        self.bytes = 0;
        Ok(())
    }
}

fn open_to_append(path: &Path) -> io::Result<fs::File> {
    OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)
}

fn ends_a_line(path: &Path, bytes: u64) -> io::Result<bool> {
    let mut file = fs::File::open(path)?;
    file.seek(SeekFrom::Start(bytes - 1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// The newest line of a file, and the number to go on with.
fn last_head(path: &Path) -> io::Result<Head> {
    let mut file = fs::File::open(path)?;
    let bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(bytes.saturating_sub(4 * MAX_LINE_BYTES)))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    let lines: Vec<&[u8]> = tail.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    let seq =
        lines.iter().rev().find_map(|line| serde_json::from_slice::<Entry>(line).ok()).map_or(0, |entry| entry.seq);
    Ok(Head { seq, hash: lines.last().map(|line| hash_of(line)).unwrap_or_default() })
}

fn hash_of(line: &[u8]) -> String {
    hex(&sha256(line))
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(format!(".{number}"));
    name.into()
}

/// The files there are, oldest first, the one that is written last.
pub fn files(path: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        (1..=MAX_FILES).map(|number| numbered(path, number)).take_while(|file| file.exists()).collect();
    files.reverse();
    if path.exists() {
        files.push(path.to_owned());
    }
    files
}

/// Reads every line of a file, each bounded.
pub fn read(path: &Path, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut reader = BufReader::new(fs::File::open(path)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        take(line.strip_suffix(b"\n").unwrap_or(&line));
    }
}

/// What is wrong with the record.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub lines: u64,
    /// The first line that is there; more than 1 when older files were removed.
    pub first_seq: Option<u64>,
    pub last_seq: u64,
    /// Lines that the daemon says it lost.
    pub dropped: u64,
    /// Lines that a full disk or a crash cut short.
    pub torn: u64,
    pub faults: Vec<String>,
}

const MAX_FAULTS: usize = 20;

/// Follows the chain from its first line to its last, and to `head` if a daemon says where that is.
pub fn verify(path: &Path, head: Option<&Head>) -> io::Result<Verdict> {
    let mut verdict = Verdict::default();
    let mut before: Option<String> = None;
    let fault = |verdict: &mut Verdict, text: String| {
        if verdict.faults.len() < MAX_FAULTS {
            verdict.faults.push(text);
        }
    };
    for file in files(path) {
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let mut number = 0_u64;
        read(&file, |line| {
            number += 1;
            verdict.lines += 1;
            match serde_json::from_slice::<Entry>(line) {
                Ok(entry) => {
                    match &before {
                        Some(before) if *before != entry.prev => {
                            fault(
                                &mut verdict,
                                format!("{name} line {number}: the line before it is not the one that was there"),
                            );
                        }
                        None if entry.seq == 1 && !entry.prev.is_empty() => {
                            fault(
                                &mut verdict,
                                format!("{name} line {number}: something was there before the first line"),
                            );
                        }
                        _ => {}
                    }
                    if verdict.first_seq.is_some() && Some(entry.seq) != verdict.last_seq.checked_add(1) {
                        let text =
                            format!("{name} line {number}: its number is {}, after {}", entry.seq, verdict.last_seq);
                        fault(&mut verdict, text);
                    }
                    verdict.first_seq.get_or_insert(entry.seq);
                    verdict.last_seq = entry.seq;
                    verdict.dropped = verdict.dropped.saturating_add(entry.line.dropped.unwrap_or(0));
                }
                // One that was changed shows in the line after it.
                Err(_) => verdict.torn += 1,
            }
            before = Some(hash_of(line));
        })?;
    }
    if let Some(head) = head
        && before.as_deref().unwrap_or_default() != head.hash
    {
        let text =
            format!("the newest line is not line {} that the daemon wrote: the end was changed or cut off", head.seq);
        fault(&mut verdict, text);
    }
    Ok(verdict)
}
