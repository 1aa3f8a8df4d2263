//! What is put into the process: one mapping with our code, the statement and the payload it reads.

use super::ptrace::{Error, Held};
use crate::{
    process::Process,
    statement::{Config, Source, fill_in, statement},
};

const PAGE: u64 = 4096;
/// Our code is at the beginning, in two pieces of at most this length.
pub const PIECE: u64 = 256;
/// Longest statement: the paths in it are bounded by the kernel.
const STATEMENT_BYTES: u64 = 32 << 10;

/// Prepared before the process is stopped; only the address is filled in while it waits.
#[derive(Debug)]
pub struct Parcel {
    statement: Vec<u8>,
    payload: Vec<u8>,
}

/// A parcel that was put into a process.
#[derive(Debug, Clone, Copy)]
pub struct Placed {
    pub address: u64,
    pub length: u64,
}

impl Placed {
    /// Room for code only.
    pub fn empty(held: &mut Held<'_>) -> Result<Self, Error> {
        Ok(Self { address: held.map(PAGE)?, length: PAGE })
    }

    pub fn statement(self) -> u64 {
        self.address + 2 * PIECE
    }

    /// The place of a piece of code.
    pub fn piece(self, index: u64) -> u64 {
        self.address + index * PIECE
    }
}

impl Parcel {
    pub fn new(process: &Process, config: &Config, payload: Vec<u8>) -> Self {
        let mut statement = statement(process, config, &Source::memory(payload.len())).into_bytes();
        // The rest of the memory is zero, and so is the end of the text; one that does not fit is no statement at all.
        if statement.len() as u64 >= STATEMENT_BYTES {
            statement.clear();
        }
        Self { statement, payload }
    }

    pub fn put(&mut self, held: &mut Held<'_>) -> Result<Placed, Error> {
        let payload_at = 2 * PIECE + STATEMENT_BYTES;
        let length = (payload_at + self.payload.len() as u64).next_multiple_of(PAGE);
        let address = held.map(length)?;
        let placed = Placed { address, length };
        fill_in(&mut self.statement, address + payload_at);
        held.write(placed.statement(), &self.statement)?;
        held.write(address + payload_at, &self.payload)?;
        Ok(placed)
    }
}
