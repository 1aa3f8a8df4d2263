//! Rich values that cells showed, kept beside what they printed: one file each, its MIME type in the first line.

use std::{
    fs::OpenOptions,
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
};

use super::{
    Error, Outputs,
    directory::{check_id, directory_of, failed, open_existing},
};

pub(super) const SUFFIX: &str = "part";
const MAX_MIME_BYTES: usize = 200;
const MAX_PART_BYTES: u64 = 64 << 20;

impl Outputs {
    /// Keeps a value under the id of its output. Writes to disk.
    pub fn keep_part(&self, owner: &str, id: &str, index: usize, mime: &str, bytes: &[u8]) -> Result<(), Error> {
        let name = part_name(id, index)?;
        let directory = self.directory();
        let path = directory.begin(&directory_of(owner), &name)?;
        let mime: String = mime.chars().filter(|c| !c.is_control()).take(MAX_MIME_BYTES).collect();
        let write = || {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
            file.write_all(mime.as_bytes())?;
            file.write_all(b"\n")?;
            file.write_all(bytes)
        };
        let written = directory
            .grow(&name, (mime.len() + 1 + bytes.len()) as u64)
            .and_then(|()| write().map_err(failed("write", &path)));
        match &written {
            Ok(()) => directory.finish(&name),
            Err(_) => directory.discard(&name, &path),
        }
        written
    }

    /// A value's MIME type and bytes. Reads from disk.
    pub fn read_part(&self, id: &str, index: usize) -> Result<(String, Vec<u8>), Error> {
        let name = part_name(id, index)?;
        let absent = || self.directory().absent(&name, format!("{id}/{index}"));
        let path = self.directory().find(&name).ok_or_else(absent)?;
        let file = match open_existing(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(absent()),
            file => file.map_err(failed("open", &path))?,
        };
        let mut bytes = Vec::new();
        file.take(MAX_PART_BYTES).read_to_end(&mut bytes).map_err(failed("read", &path))?;
        let Some(end) = bytes.iter().take(MAX_MIME_BYTES * 4).position(|byte| *byte == b'\n') else {
            return Err(Error::BadFile { path });
        };
        let mime = String::from_utf8_lossy(&bytes[..end]).into_owned();
        bytes.drain(..=end);
        Ok((mime, bytes))
    }
}

fn part_name(id: &str, index: usize) -> Result<String, Error> {
    check_id(id)?;
    Ok(format!("{id}.{index}.{SUFFIX}"))
}
