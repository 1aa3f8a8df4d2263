//! Files in other encodings than UTF-8, made UTF-8 as they are read: what a byte order mark or an XML declaration says. Called by `import::read`.

use std::io::{self, Read};

use super::Error;
use crate::hypotheses::reading::pattern;
use pylair_text::plain::one_line;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Utf8,
    Utf16 {
        big: bool,
    },
    /// With what Windows has in the place of control characters, which nobody means.
    Latin1,
}

/// What a file is written in, by its beginning.
pub(super) fn of(beginning: &[u8]) -> Result<Encoding, Error> {
    match beginning {
        [0xff, 0xfe, ..] | [b'<' | b'{', 0, ..] => return Ok(Encoding::Utf16 { big: false }),
        [0xfe, 0xff, ..] | [0, b'<' | b'{', ..] => return Ok(Encoding::Utf16 { big: true }),
        _ => {}
    }
    let end = beginning.windows(2).position(|two| two == b"?>").unwrap_or(0);
    let declaration = String::from_utf8_lossy(&beginning[..end]);
    let declared = pattern!(r#"^\s*(?:\u{feff})?<\?xml[^>]*\sencoding\s*=\s*["']([^"']*)["']"#).captures(&declaration);
    let Some(name) = declared.map(|parts| parts[1].to_ascii_lowercase().replace('_', "-")) else {
        return Ok(Encoding::Utf8);
    };
    match name.as_str() {
        "utf-8" | "utf8" | "us-ascii" | "ascii" => Ok(Encoding::Utf8),
        "iso-8859-1" | "latin-1" | "latin1" | "l1" | "windows-1252" | "cp1252" => Ok(Encoding::Latin1),
        other => Err(Error::Broken {
            line: 1,
            what: format!("the encoding `{}` is not known; UTF-8, UTF-16 and ISO-8859-1 are", one_line(other, 40)),
        }),
    }
}

/// A reader of what is UTF-8 then. What is no text in the encoding becomes U+FFFD.
pub(super) struct Decoded<R> {
    reader: R,
    encoding: Encoding,
    /// Bytes that wait for the rest of their character.
    left: Vec<u8>,
    ready: Vec<u8>,
    given: usize,
    at_end: bool,
}

impl<R: Read> Decoded<R> {
    pub(super) fn new(reader: R, encoding: Encoding) -> Self {
        Self { reader, encoding, left: Vec::new(), ready: Vec::new(), given: 0, at_end: false }
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut chunk = [0; 8192];
        let count = self.reader.read(&mut chunk)?;
        self.at_end = count == 0;
        self.left.extend_from_slice(&chunk[..count]);
        let mut text = String::new();
        match self.encoding {
            Encoding::Utf8 => {
                self.ready = std::mem::take(&mut self.left);
                self.given = 0;
                return Ok(());
            }
            Encoding::Latin1 => text.extend(self.left.drain(..).map(western)),
            Encoding::Utf16 { big } => {
                let unit = |two: &[u8]| {
                    let two = [two[0], two[1]];
                    if big { u16::from_be_bytes(two) } else { u16::from_le_bytes(two) }
                };
                let mut units: Vec<u16> = self.left.chunks_exact(2).map(unit).collect();
                // Half a pair waits for the other half.
                if !self.at_end && units.last().is_some_and(|last| (0xd800..0xdc00).contains(last)) {
                    units.pop();
                }
                self.left.drain(..units.len() * 2);
                text.extend(char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)));
            }
        }
        self.ready = text.into_bytes();
        self.given = 0;
        Ok(())
    }
}

impl<R: Read> Read for Decoded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.given == self.ready.len() && !self.at_end {
            self.fill()?;
        }
        let count = into.len().min(self.ready.len() - self.given);
        into[..count].copy_from_slice(&self.ready[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

fn western(byte: u8) -> char {
    const FROM_80: [char; 32] = [
        '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}', '‘',
        '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
    ];
    match byte {
        0x80..=0x9f => FROM_80[usize::from(byte - 0x80)],
        _ => char::from(byte),
    }
}
