//! How a bridge hands its stdio to the daemon, and what survives when the daemon dies.
//!
//! The bridge passes three descriptors: its stdin, its stdout and a slate. The daemon then speaks to the client directly and notes on
//! the slate what the bridge must know if it has to take over: which requests are unanswered, how the client introduced itself,
//! and whether a line was cut in the middle. `commands::mcp` is the bridge's side, `mcp::stdio` the daemon's.

pub mod slate;

use std::{
    collections::BTreeMap,
    io::{self, Read, Seek, Write},
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

/// Who a bridge is. Travels in a memory file, because an environment can be larger than a datagram.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    pub version: String,
    pub cwd: Option<PathBuf>,
    pub env: BTreeMap<String, String>,
    pub flags: Flags,
    /// Set when an earlier daemon died under this bridge.
    pub resumed: Option<Resumed>,
}

/// The flags of `pylair mcp` that the daemon has to know.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flags {
    pub tools: Option<String>,
    pub readonly: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Resumed {
    /// Parameters of the client's `initialize`; none for a client that does not introduce itself.
    pub initialize: Option<serde_json::Value>,
    /// What to tell with the next answer.
    pub note: String,
}

/// What the daemon says to a bridge.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The stdio was taken over.
    Taken,
    /// The client has gone; the bridge is no longer needed.
    Over,
    /// The daemon is leaving on purpose; the next one may take over.
    Leaving {
        reason: String,
    },
    Refused {
        message: String,
        hint: String,
    },
}

impl Hello {
    pub fn to_memory_file(&self) -> io::Result<OwnedFd> {
        let mut file = std::fs::File::from(rustix::fs::memfd_create("pylair-hello", rustix::fs::MemfdFlags::CLOEXEC)?);
        serde_json::to_writer(&mut file, self)?;
        file.flush()?;
        Ok(file.into())
    }

    /// Reads what a bridge wrote, at most 16 MiB of it.
    pub fn from_memory_file(descriptor: impl AsFd) -> io::Result<Self> {
        let mut file = std::fs::File::from(descriptor.as_fd().try_clone_to_owned()?);
        file.rewind()?;
        let mut bytes = Vec::new();
        file.take(16 << 20).read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes)?)
    }
}
