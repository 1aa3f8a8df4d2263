//! Listing: a walk by descriptors that follows no symlink, bounded in depth, in entries and in what it looks at.

use std::{
    fmt::Write,
    io::Read,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Component, Path},
};

use jiff::Timestamp;
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};
use serde::Serialize;

use super::{
    Error, Workspace,
    beneath::{Beneath, type_name},
    ignore::{MAX_FILE_BYTES, Rules},
    one_line,
};

pub const DEFAULT_DEPTH: usize = 3;
/// Each level holds a descriptor.
const MAX_DEPTH: usize = 32;
const MAX_ENTRIES: usize = 2000;
/// Names that are read before we give up, also of what is not listed.
const MAX_NAMES: usize = 100_000;

#[derive(Debug, Clone, Copy)]
pub struct ListOptions {
    /// How many levels to go down; 1 lists the directory only.
    pub depth: usize,
}

impl Default for ListOptions {
    fn default() -> Self {
        Self { depth: DEFAULT_DEPTH }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Entry {
    /// Relative to the workspace
    pub path: String,
    /// file, directory, symlink, FIFO, socket or device
    #[serde(rename = "type")]
    pub kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    pub modified: String,
    /// Where a symlink leads
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(skip)]
    depth: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Listing {
    pub path: String,
    /// Parents before children, in the order of their names.
    pub entries: Vec<Entry>,
    /// How many files and directories ignore rules left out.
    pub ignored: usize,
    pub notes: Vec<String>,
}

pub(super) fn list(workspace: &Workspace, path: &str, options: ListOptions) -> Result<Listing, Error> {
    let below = workspace.below(path)?;
    let beneath = Beneath::open(workspace)?;
    let refused = |errno| workspace.refused("list", path, errno);
    // Of the workspace down to what is listed; `..` would need asking the kernel where it leads.
    let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    let names: Vec<Vec<u8>> = below.components().map(|part| part.as_os_str().as_bytes().to_vec()).collect();
    let mut walk = Walk::new(options.depth.clamp(1, MAX_DEPTH));
    let stat = beneath.stat(&below).map_err(refused)?;
    let listed = |walk: Walk| Listing {
        path: below.to_string_lossy().into_owned(),
        notes: walk.notes(),
        entries: walk.entries,
        ignored: walk.ignored,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        walk.add(&names, &stat, None, 0);
        return Ok(listed(walk));
    }
    if is_plain {
        walk.enter_above(&beneath, &below, &names);
    }
    let directory = || beneath.directory(&below).map_err(refused);
    walk.directory(&directory()?, &names, 0).map_err(refused)?;
    if walk.entries.is_empty() && walk.ignored > 0 && !names.is_empty() {
        // Whoever names a directory wants to see what is in it.
        walk = Walk { everything: true, ..Walk::new(walk.depth) };
        walk.directory(&directory()?, &names, 0).map_err(refused)?;
    }
    Ok(listed(walk))
}

struct Walk {
    depth: usize,
    rules: Rules,
    /// What was asked for lies in what rules leave out, so they do not count.
    everything: bool,
    entries: Vec<Entry>,
    ignored: usize,
    names: usize,
    is_cut: bool,
    is_deeper: bool,
    unreadable: usize,
    not_utf8: usize,
}

impl Walk {
    fn new(depth: usize) -> Self {
        Self {
            depth,
            rules: Rules::default(),
            everything: false,
            entries: Vec::new(),
            ignored: 0,
            names: 0,
            is_cut: false,
            is_deeper: false,
            unreadable: 0,
            not_utf8: 0,
        }
    }

    /// Reads the rules on the way to what is listed, and finds out whether they leave that out as a whole.
    fn enter_above(&mut self, beneath: &Beneath, path: &Path, names: &[Vec<u8>]) {
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        for (depth, above) in above.into_iter().enumerate() {
            if let Ok(directory) = beneath.directory(above) {
                self.read_rules(&directory, depth);
            }
            self.everything |= self.rules.ignores(&names[..=depth], true);
        }
    }

    fn read_rules(&mut self, directory: &OwnedFd, depth: usize) {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(directory, ".gitignore", flags, Mode::empty()) else { return };
        let is_file =
            rustix::fs::fstat(&file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        let mut text = Vec::new();
        let limit = MAX_FILE_BYTES as u64;
        if is_file && std::fs::File::from(file).take(limit).read_to_end(&mut text).is_ok() {
            self.rules.push(depth, &text);
        }
    }

    fn directory(&mut self, directory: &OwnedFd, path: &[Vec<u8>], level: usize) -> Result<(), Errno> {
        self.read_rules(directory, path.len());
        let mut names = Vec::new();
        let mut entries = Dir::read_from(directory)?;
        while let Some(entry) = entries.read() {
            let name = entry?.file_name().to_bytes().to_vec();
            if name == b"." || name == b".." {
                continue;
            }
            if self.names == MAX_NAMES {
                self.is_cut = true;
                break;
            }
            self.names += 1;
            names.push(name);
        }
        names.sort_unstable();
        let mut path = path.to_vec();
        for name in names {
            if self.entries.len() == MAX_ENTRIES {
                self.is_cut = true;
                break;
            }
            // It may be gone by now.
            let Ok(stat) = rustix::fs::statat(directory, &*name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            path.push(name);
            if !self.everything && self.rules.ignores(&path, is_directory) {
                self.ignored += 1;
            } else {
                let name = path.last().expect("just pushed");
                let target = (FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
                    .then(|| rustix::fs::readlinkat(directory, &**name, Vec::new()).ok())
                    .flatten();
                let target = target.map(|target| target.to_string_lossy().into_owned());
                self.add(&path, &stat, target, level);
                if is_directory && level + 1 < self.depth {
                    self.below(directory, &path, level);
                } else {
                    self.is_deeper |= is_directory && self.depth > 1;
                }
            }
            path.pop();
        }
        self.rules.pop_to(path.len());
        Ok(())
    }

    fn below(&mut self, parent: &OwnedFd, path: &[Vec<u8>], level: usize) {
        let name = path.last().expect("it has a name");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(parent, &**name, flags, Mode::empty());
        if opened.and_then(|directory| self.directory(&directory, path, level + 1)).is_err() {
            self.unreadable += 1;
        }
    }

    fn add(&mut self, path: &[Vec<u8>], stat: &Stat, target: Option<String>, depth: usize) {
        let path = path.join(&b'/');
        self.not_utf8 += usize::from(std::str::from_utf8(&path).is_err());
        let kind = type_name(stat.st_mode);
        let modified = Timestamp::from_second(stat.st_mtime);
        self.entries.push(Entry {
            path: String::from_utf8_lossy(&path).into_owned(),
            kind,
            bytes: (kind == "file").then(|| u64::try_from(stat.st_size).unwrap_or(0)),
            modified: modified.unwrap_or_default().to_string(),
            target,
            depth,
        });
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.is_cut {
            notes.push(format!(
                "only {} entries are listed, there are more; list a directory below, or go less deep",
                self.entries.len()
            ));
        }
        if self.is_deeper {
            notes.push(format!("directories at depth {} were not entered", self.depth));
        }
        if self.ignored > 0 {
            notes.push(format!(
                "{} were left out by ignore rules (.gitignore, caches, environments); list their path to see them",
                self.ignored
            ));
        }
        if self.unreadable > 0 {
            notes.push(format!("{} directories could not be read", self.unreadable));
        }
        if self.not_utf8 > 0 {
            notes.push(format!(
                "{} names are not UTF-8 and shown with replacement characters; use code to reach them",
                self.not_utf8
            ));
        }
        notes
    }
}

impl Listing {
    /// One line for each, indented below its directory.
    pub fn tree(&self) -> String {
        let mut text = format!("{}/\n", if self.path.is_empty() { "." } else { &self.path });
        for entry in &self.entries {
            let name = entry.path.rsplit_once('/').map_or(&*entry.path, |(_, name)| name);
            let _infallible = write!(text, "{:1$}{2}", "", 2 * (entry.depth + 1), one_line(name));
            text.push_str(&entry.facts());
            text.push('\n');
        }
        text + &self.notes_text()
    }

    /// One line for each, with its whole path and when it was changed.
    pub fn lines(&self) -> String {
        let mut text = String::new();
        for entry in &self.entries {
            let _infallible = writeln!(text, "{}{}  {}", one_line(&entry.path), entry.facts(), entry.modified);
        }
        if self.entries.is_empty() {
            text.push_str("(nothing)\n");
        }
        text + &self.notes_text()
    }

    fn notes_text(&self) -> String {
        self.notes.iter().fold(String::new(), |text, note| text + "Note: " + note + ".\n")
    }
}

impl Entry {
    fn facts(&self) -> String {
        match (self.kind, self.bytes, &self.target) {
            ("directory", ..) => "/".to_owned(),
            (_, Some(bytes), _) => format!("  {bytes}"),
            (_, _, Some(target)) => format!(" -> {}", one_line(target)),
            (kind, ..) => format!("  ({kind})"),
        }
    }
}
