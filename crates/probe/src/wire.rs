//! Frames of the wire: bytes to typed messages and back. The only code that knows frame bytes; docs/wire.md is the contract.
//!
//! Called by `workers::link`. Pure: no I/O, so that the golden frames in `tests/wire/` and a fuzzer can drive it.

use bytes::{Buf, BytesMut};
use serde::{Deserialize, Serialize};

pub const WIRE_VERSION: u32 = 1;
pub const MAX_HEADER_BYTES: usize = 1 << 20;
pub const MAX_BLOB_BYTES: usize = 64 << 20;

/// What a worker sent that is no frame. It ends the link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("a header of {0} bytes is over the limit of {MAX_HEADER_BYTES}")]
    HeaderTooLong(usize),
    #[error("a blob of {0} bytes is over the limit of {MAX_BLOB_BYTES}")]
    BlobTooLong(usize),
    #[error("the header is not valid: {0}")]
    Header(String),
}

/// A header that says how long the blob behind it is.
pub trait Header: Serialize + for<'de> Deserialize<'de> {
    fn blob(&self) -> usize;
    fn set_blob(&mut self, length: usize);
}

/// A request to a probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub ch: u32,
    pub id: u64,
    #[serde(flatten)]
    pub op: Op,
    /// To an app: whose names count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// To a frozen failure: in which frame, from 1, the innermost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame: Option<usize>,
    /// To an app: when it is too late to begin, in seconds of `CLOCK_MONOTONIC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin_by: Option<f64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub blob: usize,
}

impl Header for Request {
    fn blob(&self) -> usize {
        self.blob
    }

    fn set_blob(&mut self, length: usize) {
        self.blob = length;
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    Start(Start),
    Execute {
        cell: u64,
        /// What the source was made around; the probe refuses the cell if it is more than a path.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
    },
    /// The source is in the blob where the worker cannot read the file.
    RunFile {
        cell: u64,
        file: String,
        /// As the caller wrote it, for `sys.argv[0]`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        args: Vec<String>,
    },
    Inspect(Inspect),
    Source {
        path: String,
    },
    /// The code is in the blob.
    Complete {
        cursor: usize,
    },
    /// The code is in the blob.
    Imports,
    Site {
        directory: String,
        bin: String,
    },
    Save {
        verify_s: f64,
        max_bytes: u64,
    },
    Restore,
    Ping,
    Checkpoint {
        checkpoint: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_rss_mb: Option<u64>,
    },
    Clear,
    /// What an app logged.
    Logs(Logs),
    /// Of an app. The blob is code to render alone, if there is any.
    Screenshot,
    Stacks {
        locals: bool,
    },
    /// Of a frozen failure: whether claims are so. The blob is a list of questions.
    Check,
    Status,
    /// The request with this id is to get a `KeyboardInterrupt`.
    Interrupt {
        call: u64,
    },
    Detach,
}

/// Which records of an app's log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Logs {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_id: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_id: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logger: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<f64>,
}

/// What to look at and how much of it to tell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Inspect {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    pub depth: u32,
    pub max_items: usize,
    pub max_chars: usize,
    pub full: bool,
    pub offset: usize,
    /// Run properties and `__repr__`s of the user's classes, in an app.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub run: bool,
}

/// One form of a rich value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub mime: String,
    pub bytes: usize,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inline: bool,
}

/// A file that a cell made, relative to its working directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeFile {
    pub path: String,
    pub bytes: u64,
}

/// What turns a freshly forked worker into this session's interpreter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    pub cwd: String,
    pub env: std::collections::BTreeMap<String, String>,
    pub executable: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    pub site: bool,
    pub python_path: Vec<String>,
    /// Modules that are imported before anything else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preload: Vec<String>,
}

/// What a probe sends: one flat header, because flattened enums make serde parse twice and this is the hot path.
/// Which fields are there depends on `ev` and, for `done`, on the request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reply {
    pub ch: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub id: u64,
    pub ev: Event,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub implementation: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pub stream: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<MadeFile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<CellOutcome>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exited: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_chars: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Raised>,
    pub new: Vec<String>,
    pub changed: Vec<String>,
    pub removed: Vec<String>,
    pub names_cut: bool,
    pub duration_us: u64,
    pub cpu_us: u64,
    pub notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub made: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub fork_us: u64,
    /// Of a screenshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mime: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pub blob: usize,
}

impl Reply {
    /// About how many bytes it has, without its blob.
    pub fn weight(&self) -> usize {
        let error = self.error.as_ref().map_or(0, |error| error.message.len() + error.traceback.len());
        self.result.as_ref().map_or(0, String::len) + error
    }
}

impl Header for Reply {
    fn blob(&self) -> usize {
        self.blob
    }

    fn set_blob(&mut self, length: usize) {
        self.blob = length;
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// No event at all: the header of a frame that is none of ours.
    #[default]
    #[serde(skip)]
    None,
    Hello,
    Output,
    Display,
    Done,
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CellOutcome {
    Ok,
    Raised,
    Interrupted,
}

/// A Python exception, as data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Raised {
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
    pub traceback: String,
    pub line: Option<u64>,
}

/// Appends a frame to `out`.
pub fn encode<H: Header>(mut header: H, blob: &[u8], out: &mut Vec<u8>) {
    header.set_blob(blob.len());
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    // Headers are our own structs with string keys, and a Vec cannot refuse bytes.
    serde_json::to_writer(&mut *out, &header).expect("headers serialise");
    let length = u32::try_from(out.len() - start - 4).expect("headers are small");
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    out.extend_from_slice(blob);
}

/// Bytes that were read and not taken as frames yet.
#[derive(Debug, Default)]
pub struct Inbox {
    pub bytes: BytesMut,
    /// No frame is whole before there are this many. Without it, whoever sends a long header and then its blob byte by byte would
    /// have us parse the header for each.
    needed: usize,
}

impl Inbox {
    /// How much there is to be read for the next frame, if that can be taken already.
    pub fn weight(&self) -> usize {
        if self.bytes.len() < self.needed { 0 } else { self.bytes.len() }
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.needed = 0;
    }

    /// Says that no frame can be taken before there are so many bytes, and makes room for them.
    fn wait_for<T>(&mut self, length: usize) -> Option<T> {
        self.needed = length;
        self.bytes.reserve(length.saturating_sub(self.bytes.len()));
        None
    }
}

impl From<&[u8]> for Inbox {
    fn from(bytes: &[u8]) -> Self {
        Self { bytes: bytes.into(), needed: 0 }
    }
}

/// Takes one whole frame off the front; `None` when more bytes are needed.
pub fn decode<H: Header>(inbox: &mut Inbox) -> Result<Option<(H, Vec<u8>)>, Error> {
    if inbox.bytes.len() < inbox.needed.max(4) {
        return Ok(None);
    }
    let prefix = inbox.bytes.first_chunk::<4>().expect("there are four");
    let length = u32::from_be_bytes(*prefix) as usize;
    if length > MAX_HEADER_BYTES {
        return Err(Error::HeaderTooLong(length));
    }
    let Some(header) = inbox.bytes.get(4..4 + length) else { return Ok(inbox.wait_for(4 + length)) };
    // serde would take an array for a struct.
    if header.first() != Some(&b'{') {
        return Err(Error::Header("it is not an object".to_owned()));
    }
    let header: H = serde_json::from_slice(header).map_err(|error| Error::Header(error.to_string()))?;
    let blob = header.blob();
    if blob > MAX_BLOB_BYTES {
        return Err(Error::BlobTooLong(blob));
    }
    if inbox.bytes.len() < 4 + length + blob {
        return Ok(inbox.wait_for(4 + length + blob));
    }
    inbox.needed = 0;
    inbox.bytes.advance(4 + length);
    Ok(Some((header, inbox.bytes.split_to(blob).to_vec())))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base64::{Engine, prelude::BASE64_STANDARD};

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn golden_frames_decode_and_encode() {
        let mut seen = 0;
        for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/wire")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            seen += 1;
            let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let frame = hex(golden["frame_hex"].as_str().unwrap());
            let mut inbox = Inbox::from(&frame[..]);
            let name = path.file_stem().unwrap().to_str().unwrap();
            if name.starts_with("invalid") {
                let decoded = decode::<Reply>(&mut inbox);
                assert!(!matches!(decoded, Ok(Some(_))), "{name} was taken for a frame");
                continue;
            }
            let blob = BASE64_STANDARD.decode(golden["blob_base64"].as_str().unwrap_or_default()).unwrap();
            let is_request = golden["header"]["op"].is_string();
            let mut again = Vec::new();
            let decoded_blob = if is_request {
                let (request, decoded_blob) = decode::<Request>(&mut inbox).unwrap().unwrap();
                encode(request, &decoded_blob, &mut again);
                decoded_blob
            } else {
                let (reply, decoded_blob) = decode::<Reply>(&mut inbox).unwrap().unwrap();
                encode(reply, &decoded_blob, &mut again);
                decoded_blob
            };
            assert_eq!(decoded_blob, blob, "{name}");
            assert!(inbox.bytes.is_empty(), "{name}");
            // The typed header must say everything the golden one says; defaults it adds are no difference.
            let length = u32::from_be_bytes(*again.first_chunk().unwrap()) as usize;
            let ours: serde_json::Value = serde_json::from_slice(&again[4..4 + length]).unwrap();
            for (key, value) in golden["header"].as_object().unwrap() {
                if value.is_null() || key == "ok" {
                    continue;
                }
                assert_eq!(&ours[key], value, "{name}: {key}");
            }
            if is_request {
                assert_eq!(again, frame, "{name} is not encoded to the same bytes");
            }
        }
        assert!(seen >= 5, "the golden frames are missing");
    }

    #[test]
    fn a_frame_cut_anywhere_waits_for_more() {
        let mut whole = Vec::new();
        encode(
            Request {
                ch: 1,
                id: 2,
                op: Op::Execute { cell: 3, path: None },
                client: None,
                frame: None,
                begin_by: None,
                blob: 0,
            },
            b"x = 1",
            &mut whole,
        );
        for cut in 0..whole.len() {
            let mut inbox = Inbox::from(&whole[..cut]);
            assert_eq!(decode::<Request>(&mut inbox), Ok(None), "cut at {cut}");
            assert_eq!(inbox.bytes.len(), cut);
            inbox.bytes.extend_from_slice(&whole[cut..]);
            assert!(decode::<Request>(&mut inbox).unwrap().is_some(), "cut at {cut}");
        }
    }

    #[test]
    fn a_long_header_is_not_parsed_for_every_byte_of_its_blob() {
        let names = vec!["a name".to_owned(); 100_000];
        let mut whole = Vec::new();
        encode(Reply { ev: Event::Done, new: names, ..Reply::default() }, &[0; 10_000], &mut whole);
        let (most, drops) = whole.split_at(whole.len() - 10_000);
        let mut inbox = Inbox::from(most);
        let began = std::time::Instant::now();
        for byte in &drops[..9_999] {
            assert_eq!(decode::<Reply>(&mut inbox), Ok(None));
            inbox.bytes.extend_from_slice(&[*byte]);
        }
        // Parsing it ten thousand times takes minutes.
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    }

    #[test]
    fn garbage_is_refused() {
        let check = |bytes: &[u8]| decode::<Reply>(&mut Inbox::from(bytes)).unwrap_err();
        assert!(matches!(check(b"GARBAGE GARBAGE"), Error::HeaderTooLong(_)));
        assert!(matches!(check(b"\0\0\0\x02[]"), Error::Header(_)));
        assert!(matches!(check(b"\0\0\0\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), Error::Header(_)));
        assert!(matches!(check(b"\0\0\0\x1b{\"ch\":1,\"blob\":99999999999}"), Error::BlobTooLong(_)));
    }
}
