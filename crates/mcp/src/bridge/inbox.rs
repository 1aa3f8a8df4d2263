//! The inbox: where the daemon reads a client's lines to, in memory that the bridge shares.
//!
//! What was read is gone from the client's pipe, so a daemon that dies between reading a request and noting it on the slate would
//! leave a client waiting for ever. The kernel puts the bytes into the shared memory by the same call that takes them from the pipe;
//! the bridge finds them there, and how far they were dealt with.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    fs::SealFlags,
    mm::{MapFlags, ProtFlags},
};

/// As much as is read at once.
pub const ROOM: usize = 64 << 10;
/// In front of the bytes: how many of them were dealt with. A page, because what follows is read into directly.
const HEAD: usize = 4096;
pub(super) const BYTES: u64 = (HEAD + ROOM) as u64;

/// The daemon's side.
#[derive(Debug)]
pub struct Inbox {
    memory: NonNull<u8>,
    /// How many bytes the last read gave.
    taken: usize,
}

// SAFETY: the memory belongs to this value alone; the other process that sees it reads it when this one is gone.
unsafe impl Send for Inbox {}
// SAFETY: nothing is written through a shared reference but the atomic counter.
unsafe impl Sync for Inbox {}

impl Inbox {
    /// In a slate, at a multiple of a page; or in memory of its own where there is no bridge, or none whose memory is safe to use.
    pub(super) fn new(slate: Option<(&File, u64)>) -> io::Result<Self> {
        let size = HEAD + ROOM;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // A file that its owner could make shorter would end whoever has it mapped.
        let safe = slate.filter(|(file, at)| {
            let sealed = rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
            sealed && file.metadata().is_ok_and(|metadata| metadata.len() >= at + BYTES)
        });
        // SAFETY: a mapping of our own choosing of place, which nothing else refers to.
        let memory = unsafe {
            match safe {
                Some((file, at)) => rustix::mm::mmap(std::ptr::null_mut(), size, access, MapFlags::SHARED, file, at)?,
                None => rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, access, MapFlags::PRIVATE)?,
            }
        };
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory, taken: 0 })
    }

    /// Where the next bytes go. All that came before was dealt with, or is noted elsewhere.
    pub fn room(&mut self) -> &mut [u8] {
        let taken = std::mem::take(&mut self.taken);
        let bytes = self.bytes_mut();
        // So that what comes next can be told from it, also by somebody who does not know how much that is.
        bytes[..taken].fill(0);
        self.dealt_with().store(0, Ordering::Release);
        self.bytes_mut()
    }

    /// What a read of so many bytes gave.
    pub fn take(&mut self, count: usize) -> &[u8] {
        self.taken = count;
        &self.bytes_mut()[..count]
    }

    /// All but the last so many bytes were dealt with.
    pub fn leave(&self, rest: usize) {
        self.dealt_with().store(self.taken.saturating_sub(rest) as u64, Ordering::Release);
    }

    fn dealt_with(&self) -> &AtomicU64 {
        // SAFETY: aligned as a page is, mapped as long as we live, and used as nothing else.
        unsafe { self.memory.cast().as_ref() }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped as long as we live, of this size, and borrowed as we are.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().add(HEAD), ROOM) }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        // SAFETY: mapped with this size by `new`, and referred to by nobody any more.
        let _unmapped = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), HEAD + ROOM) };
    }
}

/// The bytes that a daemon that is gone had read and not dealt with; and wipes them for the next one.
pub(super) fn read_and_wipe(file: &File, at: u64) -> io::Result<Vec<u8>> {
    let mut all = vec![0; HEAD + ROOM];
    file.read_exact_at(&mut all, at)?;
    file.write_all_at(&vec![0; HEAD + ROOM], at)?;
    let (head, bytes) = all.split_at(HEAD);
    let dealt_with = head.first_chunk().map_or(0, |count| u64::from_ne_bytes(*count));
    let dealt_with = usize::try_from(dealt_with).unwrap_or(ROOM).min(ROOM);
    // How much there is may not have been written down any more; no message ends with a zero.
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    Ok(bytes.get(dealt_with..end).unwrap_or_default().to_vec())
}
