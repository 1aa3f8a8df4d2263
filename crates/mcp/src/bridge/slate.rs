//! The slate: a memory file that the daemon writes and the bridge reads after the daemon's death.
//!
//! Fixed slots, each a length and that many bytes, written with `pwrite`. A slot costs half a microsecond, so a request can
//! afford two. A crash in the middle of a slot leaves a slot that does not parse, which the bridge skips. Behind the slots is the
//! inbox.

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::fs::FileExt},
    sync::Mutex,
};

use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Deserialize, Serialize};

use super::{
    id_in_partial_line, id_of_line,
    inbox::{self, Inbox},
};

const SLOT_BYTES: u64 = 512;
const SLOTS: u64 = 64;
const STATE_AT: u64 = SLOTS * SLOT_BYTES;
const STATE_BYTES: u64 = 1024;
const INITIALIZE_AT: u64 = STATE_AT + STATE_BYTES;
const MAX_INITIALIZE_BYTES: u64 = 64 << 10;
/// A multiple of every page's size, because it is mapped.
const INBOX_AT: u64 = 128 << 10;
const _: () = assert!(INITIALIZE_AT + MAX_INITIALIZE_BYTES <= INBOX_AT, "the inbox would overlap what is before it");

/// An empty memory file of the right size, which nobody can make smaller.
pub fn create() -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("pylair-slate", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, INBOX_AT + inbox::BYTES)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(file)
}

/// The daemon's side.
#[derive(Debug)]
pub struct Slate {
    file: File,
    /// Slot of each unanswered request, by its id as JSON text. Requests past the slots are not noted.
    slots: Mutex<Vec<Option<String>>>,
    state: Mutex<State>,
}

/// What the bridge finds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SlateContents {
    /// Ids of unanswered requests, as JSON text.
    pub unanswered: Vec<String>,
    pub initialize: Option<serde_json::Value>,
    /// The daemon died while it wrote a line to the client.
    pub was_writing: bool,
    /// The daemon died with the beginning of a line from the client in its hands: the rest is still to come.
    pub mid_line: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    writing: bool,
    partial: Option<String>,
}

impl Slate {
    pub fn new(file: OwnedFd) -> Self {
        Self {
            file: file.into(),
            slots: Mutex::new(vec![None; usize::try_from(SLOTS).unwrap_or_default()]),
            state: Mutex::default(),
        }
    }

    /// Where lines are read to, so that they are found when they were read and nothing else.
    pub fn inbox(slate: Option<&Self>) -> io::Result<Inbox> {
        Inbox::new(slate.map(|slate| (&slate.file, INBOX_AT)))
    }

    /// A request came in.
    pub fn begin(&self, id: &str) {
        let mut slots = self.slots.lock().expect("no panic while locked");
        if let Some(free) = slots.iter().position(Option::is_none) {
            self.write(free as u64 * SLOT_BYTES, SLOT_BYTES, id.as_bytes());
            slots[free] = Some(id.to_owned());
        }
    }

    /// It was answered, or nobody waits for the answer any more.
    pub fn end(&self, id: &str) {
        let mut slots = self.slots.lock().expect("no panic while locked");
        if let Some(used) = slots.iter().position(|slot| slot.as_deref() == Some(id)) {
            self.write(used as u64 * SLOT_BYTES, SLOT_BYTES, b"");
            slots[used] = None;
        }
    }

    pub fn initialize(&self, params: &[u8]) {
        self.write(INITIALIZE_AT, MAX_INITIALIZE_BYTES, params);
    }

    /// A line is half written. Called only around lines too long for one system call.
    pub fn writing(&self, writing: bool) {
        self.update(|state| state.writing = writing);
    }

    /// A line is half read: its beginning.
    pub fn reading(&self, partial: Option<&[u8]>) {
        let head = partial.map(|bytes| String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned());
        self.update(|state| state.partial = head);
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().expect("no panic while locked");
        change(&mut state);
        self.write(STATE_AT, STATE_BYTES, &serde_json::to_vec(&*state).unwrap_or_default());
    }

    fn write(&self, at: u64, room: u64, bytes: &[u8]) {
        let Ok(length) = u32::try_from(bytes.len()) else { return };
        if u64::from(length) + 4 > room {
            return;
        }
        let mut slot = Vec::with_capacity(bytes.len() + 4);
        slot.extend_from_slice(&length.to_le_bytes());
        slot.extend_from_slice(bytes);
        if let Err(error) = self.file.write_all_at(&slot, at) {
            tracing::debug!(%error, "the slate could not be written");
        }
    }
}

/// Reads a slate whose daemon is gone, and wipes it for the next one.
pub fn read_and_wipe(file: &File) -> io::Result<SlateContents> {
    let slot = |at: u64, room: u64| -> Option<Vec<u8>> {
        let mut length = [0; 4];
        file.read_exact_at(&mut length, at).ok()?;
        let length = u64::from(u32::from_le_bytes(length));
        if length == 0 || length + 4 > room {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        file.read_exact_at(&mut bytes, at + 4).ok()?;
        Some(bytes)
    };
    let mut unanswered: Vec<_> = (0..SLOTS)
        .filter_map(|number| String::from_utf8(slot(number * SLOT_BYTES, SLOT_BYTES)?).ok())
        .filter(|id| serde_json::from_str::<serde_json::Value>(id).is_ok())
        .collect();
    let initialize = slot(INITIALIZE_AT, MAX_INITIALIZE_BYTES).and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let state: State =
        slot(STATE_AT, STATE_BYTES).and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    for number in 0..SLOTS {
        file.write_all_at(&[0; 4], number * SLOT_BYTES)?;
    }
    file.write_all_at(&[0; 4], STATE_AT)?;
    let unread = String::from_utf8_lossy(&inbox::read_and_wipe(file, INBOX_AT)?).into_owned();
    let (lost, mid_line) = undealt(state.partial, &unread);
    for id in lost {
        // It may have been noted just before.
        if !unanswered.contains(&id) {
            unanswered.push(id);
        }
    }
    Ok(SlateContents { unanswered, initialize, was_writing: state.writing, mid_line })
}

/// The requests in what was read and not dealt with, and whether it ends in the middle of a line. `partial` is the beginning of the
/// first line if that was noted.
fn undealt(partial: Option<String>, unread: &str) -> (Vec<String>, bool) {
    let mid_line = if unread.is_empty() { partial.is_some() } else { !unread.ends_with('\n') };
    let mut ids = Vec::new();
    let mut lines = unread.split('\n');
    if let Some(partial) = partial {
        ids.extend(id_in_partial_line(&format!("{partial}{}", lines.next().unwrap_or_default())));
    }
    // One whose end is still to come is no whole message.
    ids.extend(lines.filter_map(|line| id_of_line(line).or_else(|| id_in_partial_line(line))));
    (ids, mid_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slate() -> (Slate, File) {
        let file = create().unwrap();
        let copy = File::from(file.try_clone().unwrap());
        (Slate::new(file), copy)
    }

    #[test]
    fn only_unanswered_requests_are_found() {
        let (slate, file) = slate();
        slate.begin("1");
        slate.begin("\"two\"");
        slate.begin("3");
        slate.end("1");
        slate.initialize(br#"{"protocolVersion":"2025-11-25"}"#);
        slate.writing(true);
        slate.reading(Some(br#"{"jsonrpc":"2.0","id":9,"#));
        let found = read_and_wipe(&file).unwrap();
        assert_eq!(found.unanswered, ["\"two\"", "3", "9"]);
        assert_eq!(found.initialize.unwrap()["protocolVersion"], "2025-11-25");
        assert!(found.was_writing && found.mid_line);
        let again = read_and_wipe(&file).unwrap();
        assert_eq!(again.unanswered, [""; 0]);
        assert!(again.initialize.is_some() && !again.was_writing && !again.mid_line);
    }

    #[test]
    fn what_was_read_and_not_dealt_with_is_found() {
        let (slate, file) = slate();
        let mut inbox = Slate::inbox(Some(&slate)).unwrap();
        let mut read = |text: &str| {
            inbox.room()[..text.len()].copy_from_slice(text.as_bytes());
            inbox.take(text.len());
            inbox.leave(text.len());
        };
        let first = "{\"id\":1,\"method\":\"a\"}\n";
        let rest =
            "{\"method\":\"b\",\"params\":{\"id\":7},\"id\":\"two\"}\n{\"method\":\"n\"}\nno json\n{\"id\":3,\"met";
        read(&format!("{first}{rest}"));
        inbox.leave(rest.len());
        let found = read_and_wipe(&file).unwrap();
        assert_eq!(found.unanswered, ["\"two\"", "3"]);
        assert!(found.mid_line);
        assert_eq!(read_and_wipe(&file).unwrap(), SlateContents::default());
    }

    #[test]
    fn a_line_in_two_pieces_is_known_by_its_beginning_until_it_was_dealt_with() {
        let (slate, file) = slate();
        let mut inbox = Slate::inbox(Some(&slate)).unwrap();
        slate.reading(Some(b"{\"id\":4,\"method\":\"a\",\"params\":{\"x\":\""));
        let rest = b"y\"}}\n";
        inbox.room()[..rest.len()].copy_from_slice(rest);
        let found = read_and_wipe(&file).unwrap();
        assert_eq!((found.unanswered, found.mid_line), (vec!["4".to_owned()], false));

        slate.begin("5");
        slate.reading(Some(b"{\"id\":5,"));
        assert_eq!(read_and_wipe(&file).unwrap().unanswered, ["5"], "it is answered once");
    }

    #[test]
    fn memory_that_can_be_taken_away_is_not_shared() {
        let file = File::from(rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(INBOX_AT + inbox::BYTES).unwrap();
        let slate = Slate::new(file.try_clone().unwrap().into());
        let mut inbox = Slate::inbox(Some(&slate)).unwrap();
        file.set_len(0).unwrap();
        inbox.room()[0] = b'x';
    }

    #[test]
    fn more_requests_than_slots_and_ids_too_long_are_left_out() {
        let (slate, file) = slate();
        for id in 0..100 {
            slate.begin(&id.to_string());
        }
        assert_eq!(read_and_wipe(&file).unwrap().unanswered.len(), 64);
        slate.end("5");
        slate.begin(&format!("\"{}\"", "x".repeat(600)));
        assert_eq!(read_and_wipe(&file).unwrap().unanswered, [""; 0]);
    }
}
