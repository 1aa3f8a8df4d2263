//! `multipart/form-data`, read as it comes. Called by `files` for uploads.
//!
//! Ours, because the usual crate holds a part's header in memory however long it is.

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};

const MAX_HEADER_BYTES: usize = 16 << 10;
const MAX_TEXT_BYTES: usize = 8 << 10;
/// As RFC 2046 has it.
const MAX_BOUNDARY_BYTES: usize = 70;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum Error {
    #[error("its boundary is missing or too long")]
    Boundary,
    #[error("the header of a part is over the limit of {MAX_HEADER_BYTES} bytes or not UTF-8")]
    Header,
    #[error("a field is over the limit of {MAX_TEXT_BYTES} bytes or not UTF-8")]
    Text,
    #[error("a boundary is followed by something other than a part")]
    Boundaries,
    #[error("it ends in the middle")]
    CutShort,
    #[error("it broke off: {0}")]
    Broken(String),
}

pub(super) struct Form<S> {
    chunks: S,
    buffer: BytesMut,
    /// With the line break before it, which belongs to it and not to the data.
    boundary: Vec<u8>,
    place: FormPosition,
}

/// What the header of a part says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub field: String,
    /// None for a field that is no file.
    pub file: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FormPosition {
    /// Before the first boundary, or in the data of a part.
    Data,
    AfterBoundary,
    End,
}

impl<S, E> Form<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    pub fn new(content_type: &str, chunks: S) -> Result<Self, Error> {
        let boundary = parameter(content_type, "boundary").filter(|boundary| !boundary.is_empty());
        let boundary = boundary.filter(|boundary| boundary.len() <= MAX_BOUNDARY_BYTES).ok_or(Error::Boundary)?;
        // As if there had been a line before the first one.
        let (buffer, boundary) = (BytesMut::from("\r\n"), format!("\r\n--{boundary}").into_bytes());
        Ok(Self { chunks, buffer, boundary, place: FormPosition::Data })
    }

    /// Goes to the next part. What was left of the part before is skipped.
    pub async fn next_part(&mut self) -> Result<Option<Part>, Error> {
        while self.next_chunk().await?.is_some() {}
        if self.place == FormPosition::End {
            return Ok(None);
        }
        while self.buffer.len() < 2 {
            self.fill().await?;
        }
        if self.buffer.starts_with(b"--") {
            self.place = FormPosition::End;
            return Ok(None);
        }
        let end = loop {
            // A part without any header has its empty line at once.
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end;
            }
            if self.buffer.len() > MAX_HEADER_BYTES {
                return Err(Error::Header);
            }
            self.fill().await?;
        };
        let header = self.buffer.split_to(end + 4);
        let header = std::str::from_utf8(&header).map_err(|_| Error::Header)?;
        let (padding, lines) = header.split_once("\r\n").unwrap_or_default();
        if header.len() > MAX_HEADER_BYTES || !padding.trim_matches([' ', '\t']).is_empty() {
            return Err(if padding.trim().is_empty() { Error::Header } else { Error::Boundaries });
        }
        self.place = FormPosition::Data;
        let disposition = lines.split("\r\n").filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
            name.trim()
                .eq_ignore_ascii_case("content-disposition")
                .then(|| Part { field: parameter(value, "name").unwrap_or_default(), file: file_name(value) })
        });
        Ok(Some(disposition.unwrap_or_default()))
    }

    /// The rest of the part as a text, such as somebody may have typed into a field.
    pub async fn text(&mut self) -> Result<String, Error> {
        let mut text = Vec::new();
        while let Some(chunk) = self.next_chunk().await? {
            text.extend_from_slice(&chunk);
            if text.len() > MAX_TEXT_BYTES {
                return Err(Error::Text);
            }
        }
        String::from_utf8(text).map_err(|_| Error::Text)
    }

    /// More of the part's data; none at its end.
    pub async fn next_chunk(&mut self) -> Result<Option<Bytes>, Error> {
        while self.place == FormPosition::Data {
            if let Some(at) = find(&self.buffer, &self.boundary) {
                let data = self.buffer.split_to(at).freeze();
                drop(self.buffer.split_to(self.boundary.len()));
                self.place = FormPosition::AfterBoundary;
                return Ok(Some(data).filter(|data| !data.is_empty()));
            }
            // The last bytes may be the beginning of the boundary.
            let sure = self.buffer.len().saturating_sub(self.boundary.len() - 1);
            if sure > 0 {
                return Ok(Some(self.buffer.split_to(sure).freeze()));
            }
            self.fill().await?;
        }
        Ok(None)
    }

    async fn fill(&mut self) -> Result<(), Error> {
        match self.chunks.next().await {
            Some(Ok(chunk)) => {
                self.buffer.extend_from_slice(&chunk);
                Ok(())
            }
            Some(Err(error)) => Err(Error::Broken(error.to_string())),
            None => Err(Error::CutShort),
        }
    }
}

/// All that is looked for begins with a line break.
fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        from += text.get(from..)?.iter().position(|byte| *byte == b'\r')?;
        if text[from..].starts_with(wanted) {
            return Some(from);
        }
        from += 1;
    }
}

/// The name of the file in a `Content-Disposition`.
fn file_name(disposition: &str) -> Option<String> {
    let extended = parameter(disposition, "filename*").and_then(|value| {
        let encoded = value.get(..7).filter(|charset| charset.eq_ignore_ascii_case("utf-8''")).map(|_| &value[7..])?;
        percent_encoding::percent_decode_str(encoded).decode_utf8().ok().map(std::borrow::Cow::into_owned)
    });
    // Browsers write these three in place of what would end the name.
    let plain = || {
        let name = parameter(disposition, "filename")?;
        Some(name.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n"))
    };
    extended.or_else(plain)
}

/// A parameter of a header, such as `filename` in `form-data; name="a"; filename="b"`.
fn parameter(header: &str, wanted: &str) -> Option<String> {
    let (_, mut rest) = header.split_once(';')?;
    loop {
        let (name, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let (value, next) = if let Some(quoted) = after.strip_prefix('"') {
            unquote(quoted)?
        } else {
            let end = after.find(';').unwrap_or(after.len());
            (after[..end].trim_end().to_owned(), &after[end..])
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = next.split_once(';')?.1;
    }
}

/// What is before the closing quote, and what is after it. Only a quote is escaped: a backslash is part of some names.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' if chars.peek().is_some_and(|(_, next)| *next == '"') => {
                value.push('"');
                chars.next();
            }
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "multipart/form-data; charset=utf-8; boundary=\"XX\"";

    /// The parts of a body that comes in chunks of this size.
    fn parts(body: &[u8], size: usize) -> Result<Vec<(Part, Vec<u8>)>, Error> {
        let chunks = body.chunks(size).map(|chunk| Ok::<_, String>(Bytes::copy_from_slice(chunk)));
        let mut form = Form::new(TYPE, futures::stream::iter(chunks))?;
        futures::executor::block_on(async {
            let mut parts = Vec::new();
            while let Some(part) = form.next_part().await? {
                let mut data = Vec::new();
                while let Some(chunk) = form.next_chunk().await? {
                    data.extend_from_slice(&chunk);
                }
                parts.push((part, data));
            }
            Ok(parts)
        })
    }

    #[test]
    fn parts_are_the_same_however_they_come() {
        let body = b"preamble\r\n--XX\r\nContent-Disposition: form-data; name=\"a\"; filename=\"one; two.txt\"\r\n\
            Content-Type: text/plain\r\n\r\nfirst\r\n--X\r\n-- not a boundary\r\n--XX  \r\n\
            content-disposition: form-data; name=b\r\n\r\n\r\n--XX\r\n\r\n\
            nothing said\r\n--XX\r\nContent-Disposition: form-data; filename=\"x\"; filename*=utf-8''%C3%A9.txt\r\n\r\n\
            \xff\0\r\n--XX--\r\nepilogue";
        let part = |field: &str, file: Option<&str>| Part { field: field.to_owned(), file: file.map(str::to_owned) };
        let expected = vec![
            (part("a", Some("one; two.txt")), b"first\r\n--X\r\n-- not a boundary".to_vec()),
            (part("b", None), Vec::new()),
            (part("", None), b"nothing said".to_vec()),
            (part("", Some("é.txt")), b"\xff\0".to_vec()),
        ];
        for size in 1..body.len() {
            assert_eq!(parts(body, size), Ok(expected.clone()), "in chunks of {size}");
        }
    }

    #[test]
    fn what_is_no_form_is_refused() {
        assert_eq!(parts(b"", 10), Err(Error::CutShort));
        assert_eq!(parts(b"--XX\r\nContent-Disposition: form-data", 10), Err(Error::CutShort));
        assert_eq!(parts(b"--XX\r\n\r\ndata without an end", 10), Err(Error::CutShort));
        assert_eq!(parts(b"--XXYY\r\n\r\ndata\r\n--XX--", 10), Err(Error::Boundaries));
        let long = [b"--XX\r\n".to_vec(), vec![b'a'; 2 * MAX_HEADER_BYTES]].concat();
        assert_eq!(parts(&long, 1000), Err(Error::Header));
        let empty = || futures::stream::iter(Vec::<Result<Bytes, String>>::new());
        assert_eq!(Form::new("multipart/form-data", empty()).err(), Some(Error::Boundary));
        assert_eq!(Form::new("multipart/form-data; boundary=", empty()).err(), Some(Error::Boundary));
    }

    #[test]
    fn names_are_read_as_browsers_and_programs_write_them() {
        let check = |text, expected: &str| assert_eq!(file_name(text).as_deref(), Some(expected), "{text}");
        check("form-data; name=\"f\"; filename=\"a%22b.txt\"", "a\"b.txt");
        check("form-data; filename=plain.txt; name=f", "plain.txt");
        check("form-data; filename=\"C:\\dir\\a.txt\"", "C:\\dir\\a.txt");
        check("form-data; filename=\"a\\\"b\"", "a\"b");
        assert_eq!(file_name("form-data; name=\"filename=x\""), None);
    }
}
