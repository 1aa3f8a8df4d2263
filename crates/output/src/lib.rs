//! What cells print. A [`Capture`] takes one cell's bytes from the pipes and gives readable text: live for
//! streaming doors, as an [`Excerpt`] for a model, in pages from disk. [`Outputs`] is the directory of what
//! was too long for memory. Sessions push, doors read; nothing here knows Python or a protocol.

mod capture;
mod directory;
mod excerpt;
mod parts;
mod patterns;
mod room;
mod tape;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use capture::{Capture, Cursor, Finished, Read};
pub use directory::{Info, Limits, Outputs, Page};
pub use excerpt::{Excerpt, Text};
pub use patterns::Pattern;

/// Which of a program's two streams a text was written to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    #[default]
    Stdout,
    Stderr,
}

/// What to read: both streams as they came, or one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    Merged,
    Only(Stream),
}

impl Which {
    fn takes(self, stream: Stream) -> bool {
        match self {
            Which::Merged => true,
            Which::Only(only) => only == stream,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{id}` is not the id of an output")]
    BadId { id: String },
    #[error("there is no output `{id}`")]
    Unknown { id: String },
    #[error("the output `{id}` is no longer kept: {why}")]
    Removed { id: String, why: String },
    #[error(
        "there is no room for it: of the {} MB for outputs each owner leaves as much free as its running cells take",
        bound >> 20
    )]
    NoRoom { bound: u64 },
    #[error("the output `{id}` is still being written")]
    Taken { id: String },
    #[error("`{}` is not an output file of this version", path.display())]
    BadFile { path: PathBuf },
    #[error("cannot {action} `{}`", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// The way out, where there is one.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Error::BadId { .. } => Some("ids are lower-case letters, digits and dashes"),
            Error::Unknown { .. } => {
                Some("a short output is only in its reply, and old outputs are removed to make room")
            }
            Error::Removed { .. } => Some("get_history shows the beginning of what was printed"),
            _ => None,
        }
    }
}
