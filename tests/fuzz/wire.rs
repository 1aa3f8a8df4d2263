//! Frames: what a worker or an app sends, and what it is sent.

use std::{fmt::Debug, fs, path::Path};

use pylair_probe::wire::{Error, Header, Inbox, MAX_BLOB_BYTES, MAX_HEADER_BYTES, Reply, Request, decode, encode};

use crate::{
    Target,
    mutate::{self, Random},
};

pub struct Frames;

const WORDS: &[&str] = &[
    "ch", "id", "op", "ev", "blob", "done", "hello", "output", "display", "execute", "start", "inspect", "ok",
    "raised", "error", "new", "parts", "files", "outcome", "NaN", "1e999", "\\ud800", "\\u0000", "null", "{", "}", "[",
    "]", "\"", ":", ",", "\u{feff}", "-",
];

impl Target for Frames {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire");
        let mut paths: Vec<_> =
            fs::read_dir(golden).expect("there are golden frames").map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let frame = |path| -> Vec<u8> {
            let golden: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            let hex = golden["frame_hex"].as_str().unwrap();
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
        };
        paths.into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "json")).map(frame).collect()
    }

    fn words(&self) -> &'static [&'static str] {
        WORDS
    }

    /// Changes the header and puts a right length before it.
    fn mutate(&self, input: &[u8], random: &mut Random) -> Option<Vec<u8>> {
        let length = u32::from_be_bytes(*input.first_chunk()?) as usize;
        let header = input.get(4..4 + length)?;
        let header = if random.one_in(4) {
            mutate::bytes(header, &[header.to_vec()], WORDS, random)
        } else {
            mutate::json(header, WORDS, random)?
        };
        let mut frame = u32::try_from(header.len()).ok()?.to_be_bytes().to_vec();
        frame.extend_from_slice(&header);
        frame.extend_from_slice(&input[4 + length..]);
        Some(frame)
    }

    fn run(&mut self, input: &[u8]) -> Result<String, String> {
        let reply = both_ways::<Reply>(input)?;
        let request = both_ways::<Request>(input)?;
        Ok(format!("{reply} {request}"))
    }
}

/// The frames in these bytes, and what is wrong with the rest.
type Read<H> = (Vec<(H, Vec<u8>)>, Option<Error>, Vec<u8>);

fn both_ways<H: Header + PartialEq + Debug + Clone>(input: &[u8]) -> Result<String, String> {
    let whole = read::<H>(std::iter::once(input))?;
    let mut random = Random::of(input);
    let mut rest = input;
    let pieces = std::iter::from_fn(|| {
        let size = random.size(12).min(rest.len());
        let piece;
        (piece, rest) = rest.split_at(size);
        (!piece.is_empty()).then_some(piece)
    });
    let in_pieces = read::<H>(pieces)?;
    if whole != in_pieces {
        return Err(format!("read differently in pieces: {whole:?} and {in_pieces:?}"));
    }
    // A reply may be of no kind at all, which nobody writes.
    for (header, blob) in whole.0.iter().filter(|(header, _)| serde_json::to_vec(header).is_ok()) {
        let mut again = Vec::new();
        encode(header.clone(), blob, &mut again);
        let mut inbox = Inbox::from(&again[..]);
        match decode::<H>(&mut inbox) {
            Ok(Some((_, same))) if same == *blob && inbox.bytes.is_empty() => {}
            other => return Err(format!("{header:?} does not survive: {other:?}")),
        }
    }
    let error: String = whole
        .1
        .iter()
        .flat_map(|error| error.to_string().chars().collect::<Vec<_>>())
        .filter(|c| c.is_alphabetic())
        .collect();
    let first: String = whole.0.iter().map(|(header, _)| kind(header)).take(3).collect();
    Ok(format!("{first}{error}"))
}

/// The first word of what is said about a header, and which fields it has.
fn kind<H: Header>(header: &H) -> String {
    let value = serde_json::to_value(header).unwrap_or_default();
    let fields = value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let mut kind: String = fields.flat_map(|(key, _)| [key, " "]).collect();
    kind.push_str(value["op"].as_str().or(value["ev"].as_str()).unwrap_or_default());
    kind
}

fn read<'a, H: Header>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Read<H>, String> {
    let mut inbox = Inbox::default();
    let mut frames = Vec::new();
    let mut bytes = 0;
    for piece in pieces {
        inbox.bytes.extend_from_slice(piece);
        bytes += piece.len();
        loop {
            let before = inbox.bytes.len();
            match decode::<H>(&mut inbox) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) if inbox.bytes.len() == before => break,
                Ok(None) => return Err("bytes were taken and no frame given".to_owned()),
                Err(error) => return Ok((frames, Some(error), Vec::new())),
            }
            if inbox.bytes.len() >= before {
                return Err("a frame was given and no bytes taken".to_owned());
            }
        }
        let most = 2 * (4 + MAX_HEADER_BYTES + MAX_BLOB_BYTES + bytes);
        if inbox.bytes.capacity() > most {
            return Err(format!("{} bytes are set aside for {bytes}", inbox.bytes.capacity()));
        }
    }
    Ok((frames, None, inbox.bytes.to_vec()))
}
