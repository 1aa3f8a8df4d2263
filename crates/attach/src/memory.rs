//! The memory of another process.

use std::{fs::File, io, os::unix::fs::FileExt};

use super::elf::Memory;

/// Opened once: what is behind it stays the same process also when its pid is given away.
#[derive(Debug)]
pub struct ProcessMemory(File);

impl ProcessMemory {
    /// Needs the right to trace the process.
    pub fn open(pid: i32) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        Ok(Self(file))
    }

    /// Also into memory that its process may only read, as a debugger does, while we trace it.
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, address)
    }

    pub fn read_word(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Where these bytes are first in a range.
    pub fn find(&self, range: std::ops::Range<u64>, wanted: &[u8]) -> Option<u64> {
        const CHUNK: u64 = 64 << 10;
        let overlap = wanted.len() as u64 - 1;
        let mut at = range.start;
        while at < range.end {
            let length = (CHUNK + overlap).min(range.end - at);
            let mut bytes = vec![0; usize::try_from(length).ok()?];
            self.read(at, &mut bytes).ok()?;
            if let Some(found) = bytes.windows(wanted.len()).position(|window| window == wanted) {
                return Some(at + found as u64);
            }
            at += CHUNK;
        }
        None
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buffer, address)
    }
}
