//! Reading: text in pages that end between characters, small images whole, everything else as bytes with a word on what it is.

use std::{fs::File, os::unix::fs::FileExt};

use rustix::fs::{FileType, OFlags};

use super::{
    Error, Workspace,
    beneath::{Beneath, type_name},
    shown,
};

pub const DEFAULT_PAGE_BYTES: usize = 64 << 10;
pub const MAX_PAGE_BYTES: usize = 1 << 20;
/// The longest character; a page that could not hold one would never go on.
const MIN_PAGE_BYTES: usize = 4;
/// Larger ones are refused by clients, or cost more than they tell.
const MAX_IMAGE_BYTES: u64 = 700 << 10;
/// What is looked at to tell text from bytes.
const HEAD_BYTES: usize = 8 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub path: String,
    /// Of the whole file.
    pub bytes: u64,
    /// What the file is, for people to read.
    pub kind: &'static str,
    pub content: Content,
    /// Where this page begins.
    pub offset: u64,
    /// Where the next one does; none at the end.
    pub next_offset: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    Text(String),
    /// The whole file.
    Image {
        mime: &'static str,
        bytes: Vec<u8>,
    },
    Bytes(Vec<u8>),
}

/// A regular file and its size.
pub(super) fn open(workspace: &Workspace, path: &str) -> Result<(File, u64), Error> {
    let below = workspace.below(path)?;
    let beneath = Beneath::open(workspace)?;
    let refused = |errno| workspace.refused("read", path, errno);
    let check = |mode| match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Error::IsADirectory { path: shown(path) }),
        _ => Err(Error::Special { path: shown(path), kind: type_name(mode) }),
    };
    // Looked at first, because opening a device or a FIFO does something to whoever is at its other end.
    check(beneath.stat(&below).map_err(refused)?.st_mode)?;
    let file = beneath.find(&below, OFlags::RDONLY).map_err(refused)?;
    let stat = rustix::fs::fstat(&file).map_err(refused)?;
    check(stat.st_mode)?;
    Ok((file.into(), u64::try_from(stat.st_size).unwrap_or(0)))
}

pub(super) fn read(workspace: &Workspace, path: &str, offset: u64, max_bytes: usize) -> Result<Page, Error> {
    let (file, bytes) = open(workspace, path)?;
    if offset > bytes {
        return Err(Error::PastTheEnd { path: shown(path), offset, bytes });
    }
    let failed = |source| Error::Io { what: "read", path: shown(path), source };
    let head = read_at(&file, 0, HEAD_BYTES).map_err(failed)?;
    let shown = workspace.below(path)?.to_string_lossy().into_owned();
    if let Some(mime) = image_type(&head)
        && offset == 0
        && bytes <= MAX_IMAGE_BYTES
    {
        let whole = read_at(&file, 0, usize::try_from(MAX_IMAGE_BYTES).unwrap_or(usize::MAX) + 1).map_err(failed)?;
        if is_whole_image(&whole) {
            let content = Content::Image { mime, bytes: whole };
            return Ok(Page { path: shown, bytes, kind: kind_of(&head), content, offset, next_offset: None });
        }
    }
    let max_bytes = max_bytes.clamp(MIN_PAGE_BYTES, MAX_PAGE_BYTES);
    let page = read_at(&file, offset, max_bytes).map_err(failed)?;
    let end = offset + page.len() as u64;
    // Files of the kernel have no size until they are read.
    let bytes = bytes.max(end);
    let is_text = text_in(&head, (head.len() as u64) < bytes).is_some_and(|_| !head.contains(&0));
    let (offset, content, taken_to) = match text_in(&page, end < bytes).filter(|_| is_text) {
        Some((skipped, text)) => {
            let start = offset + skipped as u64;
            (start, Content::Text(text.to_owned()), start + text.len() as u64)
        }
        None => (offset, Content::Bytes(page), end),
    };
    let kind = if is_text { "text" } else { kind_of(&head) };
    let next_offset = (taken_to < bytes).then_some(taken_to);
    Ok(Page { path: shown, bytes, kind, content, offset, next_offset })
}

/// The text of a page, and how many bytes before it belong to a character of the page before. None when it is no UTF-8.
fn text_in(page: &[u8], goes_on: bool) -> Option<(usize, &str)> {
    let skipped = page.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
    let rest = page.get(skipped..)?;
    match std::str::from_utf8(rest) {
        Ok(text) => Some((skipped, text)),
        // Only the end of the page is in the middle of a character.
        Err(error) if error.error_len().is_none() && goes_on => {
            std::str::from_utf8(&rest[..error.valid_up_to()]).ok().map(|text| (skipped, text))
        }
        Err(_) => None,
    }
}

fn read_at(file: &File, offset: u64, limit: usize) -> std::io::Result<Vec<u8>> {
    let mut buffer = vec![0; limit];
    let mut filled = 0;
    while filled < limit {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(filled);
    Ok(buffer)
}

/// What a client can show.
fn image_type(head: &[u8]) -> Option<&'static str> {
    match kind_of(head) {
        "PNG image" => Some("image/png"),
        "JPEG image" => Some("image/jpeg"),
        _ => None,
    }
}

/// A cut image makes some clients fail as a whole.
fn is_whole_image(bytes: &[u8]) -> bool {
    match image_type(bytes) {
        Some("image/png") => bytes.get(12..16) == Some(b"IHDR") && bytes.ends_with(b"IEND\xaeB`\x82"),
        Some(_) => bytes.trim_ascii_end().ends_with(&[0xff, 0xd9]),
        None => false,
    }
}

/// What the first bytes say.
fn kind_of(head: &[u8]) -> &'static str {
    const KINDS: &[(usize, &[u8], &str)] = &[
        (0, b"\x89PNG\r\n\x1a\n", "PNG image"),
        (0, b"\xff\xd8\xff", "JPEG image"),
        (0, b"GIF8", "GIF image"),
        (8, b"WEBP", "WebP image"),
        (0, b"BM", "BMP image"),
        (0, b"%PDF-", "PDF document"),
        (0, b"PK\x03\x04", "ZIP archive, or a document in one"),
        (0, b"\x1f\x8b", "gzip data"),
        (0, b"BZh", "bzip2 data"),
        (0, b"\xfd7zXZ\0", "xz data"),
        (0, b"\x28\xb5\x2f\xfd", "zstd data"),
        (257, b"ustar", "tar archive"),
        (0, b"SQLite format 3\0", "SQLite database"),
        (0, b"\x7fELF", "ELF program"),
        (0, b"PAR1", "Parquet file"),
        (0, b"ARROW1", "Arrow file"),
        (0, b"\x93NUMPY", "NumPy array"),
        (0, b"\x89HDF", "HDF5 file"),
    ];
    let is = |(at, magic, _): &&(usize, &[u8], &str)| head.get(*at..at + magic.len()) == Some(*magic);
    match KINDS.iter().find(is) {
        Some((_, _, kind)) => kind,
        None if is_utf16(head) => "UTF-16 text",
        None => "binary data, or text that is not UTF-8",
    }
}

/// Two bytes that look like a mark say little: what follows has to be text as well, and enough of it.
fn is_utf16(head: &[u8]) -> bool {
    const MIN_CHARACTERS: usize = 4;
    let unit: fn([u8; 2]) -> u16 = match head {
        [0xff, 0xfe, ..] => u16::from_le_bytes,
        [0xfe, 0xff, ..] => u16::from_be_bytes,
        _ => return false,
    };
    // The head of a long file may end in the middle of a pair.
    let is_whole = head.len() < HEAD_BYTES;
    let (pairs, rest) = head[2..].as_chunks::<2>();
    let units: Vec<u16> = pairs.iter().map(|pair| unit(*pair)).collect();
    let (last, count) = (units.len().saturating_sub(1), units.len());
    let is_text = char::decode_utf16(units).enumerate().all(|(at, decoded)| match decoded {
        Ok(c) => !c.is_control() || matches!(c, '\t' | '\n' | '\r'),
        Err(_) => !is_whole && at == last,
    });
    count >= MIN_CHARACTERS && is_text && (rest.is_empty() || !is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_cut_between_characters() {
        let text = "aé€😀".as_bytes();
        let check = |page: &[u8], goes_on, expected: Option<(usize, &str)>| {
            assert_eq!(text_in(page, goes_on), expected, "{page:?}");
        };
        check(text, false, Some((0, "aé€😀")));
        check(&text[..2], true, Some((0, "a")));
        check(&text[2..], true, Some((1, "€😀")));
        check(&text[..8], true, Some((0, "aé€")));
        check(&text[..8], false, None);
        check(b"ab\xffcd", true, None);
        check(b"", false, Some((0, "")));
    }

    #[test]
    fn kinds_are_told_by_their_first_bytes() {
        assert_eq!(kind_of(b"\x89PNG\r\n\x1a\nrest"), "PNG image");
        assert_eq!(kind_of(b"RIFF....WEBP"), "WebP image");
        assert_eq!(kind_of(b"\0\0"), "binary data, or text that is not UTF-8");
        let utf16 = |text: &str| [0xfeff].into_iter().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect();
        let (text, long): (Vec<u8>, Vec<u8>) = (utf16("hé 😀\n"), utf16(&"x😀".repeat(HEAD_BYTES)));
        assert_eq!((kind_of(&text), kind_of(&long[..HEAD_BYTES])), ("UTF-16 text", "UTF-16 text"));
        for bytes in [&b"\xff\xfe\0\x01\x02\x03"[..], b"\xff\xfe\0\0\x41\0\0\0\x42\0\0\0", &text[..text.len() - 1]] {
            assert_eq!(kind_of(bytes), "binary data, or text that is not UTF-8", "{bytes:?}");
        }
        assert!(!is_whole_image(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR and then cut"));
        assert!(is_whole_image(b"\xff\xd8\xff\xe0 and so on \xff\xd9\n"));
    }
}
