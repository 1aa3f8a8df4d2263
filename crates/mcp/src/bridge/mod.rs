//! How a bridge hands its stdio to the daemon, and what survives when the daemon dies.
//!
//! The bridge passes three descriptors: its stdin, its stdout and a slate. The daemon then speaks to the client directly and notes on
//! the slate what the bridge must know if it has to take over: which requests are unanswered, how the client introduced itself,
//! what was read and not dealt with, and whether a line was cut in the middle. `commands::mcp` is the bridge's side, `stdio` the daemon's.

pub mod inbox;
pub mod slate;

use std::{
    collections::BTreeMap,
    io::{self, Read, Seek, Write},
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use pylair_core::{daemon::VERSION, settings::Introduction};

/// Who a bridge is. Travels in a memory file, because an environment can be larger than a datagram.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    pub version: String,
    pub cwd: Option<PathBuf>,
    pub env: BTreeMap<String, String>,
    /// Its settings, flags included; none of a bridge of another version.
    pub introduction: Option<Introduction>,
    /// Set when an earlier daemon died under this bridge.
    pub resumed: Option<Resumed>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Resumed {
    /// Parameters of the client's `initialize`; none for a client that does not introduce itself.
    pub initialize: Option<serde_json::Value>,
    /// The beginning of a line died with the daemon.
    pub mid_line: bool,
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
        Self::read(&bytes)
    }

    /// Of a bridge of another version only that is understood.
    fn read(bytes: &[u8]) -> io::Result<Self> {
        #[derive(Deserialize)]
        struct Versioned {
            version: String,
        }
        serde_json::from_slice(bytes).or_else(|error| match serde_json::from_slice(bytes) {
            Ok(Versioned { version }) if version != VERSION => {
                Ok(Self { version, cwd: None, env: BTreeMap::new(), introduction: None, resumed: None })
            }
            _ => Err(error.into()),
        })
    }
}

/// The request id of a whole message; none for notifications, for answers, and for what is no message.
pub fn id_of_line(line: &str) -> Option<String> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let id = message.get("id").filter(|id| id.is_number() || id.is_string())?;
    message.get("method").map(|_| id.to_string())
}

/// The request id in the beginning of a message whose rest was lost, if it stands there.
pub fn id_in_partial_line(line: &str) -> Option<String> {
    let rest = line.split_once("\"id\":")?.1.trim_start();
    let end = match rest.strip_prefix('"') {
        Some(text) => text.find('"')? + 2,
        None => rest.find([',', '}'])?,
    };
    let id = rest[..end].trim();
    serde_json::from_str::<serde_json::Value>(id)
        .ok()
        .filter(|id| id.is_number() || id.is_string())
        .map(|_| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_of_another_version_is_known_by_that_alone() {
        let hello = Hello::read(br#"{"version": "0.0.1", "flags": {}}"#).unwrap();
        assert_eq!((hello.version.as_str(), hello.introduction.is_none()), ("0.0.1", true));
        let own = format!(r#"{{"version": "{VERSION}", "flags": {{}}}}"#);
        assert!(Hello::read(own.as_bytes()).is_err());
    }

    #[test]
    fn the_id_of_a_cut_request_is_found_where_it_stands() {
        let check = |line, expected: Option<&str>| assert_eq!(id_in_partial_line(line).as_deref(), expected, "{line}");
        check(r#"{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"#, Some("17"));
        check(r#"{"jsonrpc": "2.0", "id": "a-b", "meth"#, Some("\"a-b\""));
        check(r#"{"jsonrpc":"2.0","id":1"#, None);
        check(r#"{"jsonrpc":"2.0","method":"tools/call"#, None);
        check(r#"{"jsonrpc":"2.0","id":null,"method":"#, None);
    }
}
