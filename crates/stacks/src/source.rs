//! The line a thread is at, as its file says now. Only of innermost frames, and only where it costs little.

use std::{
    collections::HashMap,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::Path,
};

use super::{Frame, Stacks, memory::open_in_root, plain};

const MAX_FILES: usize = 40;
const MAX_FILE_BYTES: u64 = 1024 * 1024;
const MAX_LINE_CHARS: usize = 120;

/// Adds their lines to the innermost frames of all threads and tasks.
pub fn add_lines(stacks: &mut Stacks) {
    let mut files: HashMap<String, Option<String>> = HashMap::new();
    let pid = stacks.pid;
    let threads = stacks.threads.iter_mut().map(|thread| &mut thread.frames);
    let tasks = stacks.tasks.iter_mut().map(|task| &mut task.frames);
    for frame in threads.chain(tasks).filter_map(|frames| frames.first_mut()) {
        if files.len() < MAX_FILES || files.contains_key(&frame.file) {
            let text = files.entry(frame.file.clone()).or_insert_with(|| read(pid, &frame.file).ok());
            frame.source = text.as_deref().and_then(|text| line_of(text, frame));
        }
    }
}

fn line_of(text: &str, frame: &Frame) -> Option<String> {
    let line = text.lines().nth((frame.line as usize).checked_sub(1)?)?.trim();
    (!line.is_empty()).then(|| plain(line, MAX_LINE_CHARS))
}

/// The process names the file, so it is one that it could read itself: public, or of its own user.
fn read(pid: i32, path: &str) -> io::Result<String> {
    if Path::new(path).extension() != Some("py".as_ref()) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // Before 3.9 a script is known by the path it was started with.
    let path = std::fs::read_link(format!("/proc/{pid}/cwd"))?.join(path);
    let file = open_in_root(pid, &path)?;
    let about = file.metadata()?;
    let owner = std::fs::metadata(format!("/proc/{pid}"))?.uid();
    if about.len() > MAX_FILE_BYTES || (about.mode() & 0o004 == 0 && about.uid() != owner) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_line_that_is_there_is_told() {
        let at = |line| line_of("import os\n\n  x = 1  \n", &Frame { line, ..Frame::default() });
        assert_eq!(at(1).as_deref(), Some("import os"));
        assert_eq!(at(3).as_deref(), Some("x = 1"));
        assert_eq!((at(0), at(2), at(9)), (None, None, None));
    }

    #[test]
    fn a_path_that_a_process_makes_up_is_not_opened() {
        let us = std::process::id().cast_signed();
        assert!(read(us, "/etc/hostname").is_err() && read(us, "/no/such/file.py").is_err());
    }
}
