//! What is on disk, whose it is, and what goes first when there is no room. Pure but for the scan: the directory removes the files that
//! are named here.

use std::{
    collections::{HashMap, VecDeque},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use super::directory::Limits;
use pylair_os::budget::{Shares, Use};

/// What a file costs besides its bytes: it takes whole blocks, and has an inode.
const FILE_BYTES: u64 = 4096;
/// How many names of removed files are remembered for each owner.
const REMEMBERED: usize = 1000;

/// The files below the directory.
#[derive(Debug, Default)]
pub(super) struct Room {
    entries: HashMap<String, Entry>,
    bytes: Shares,
    files: Shares,
    /// Bytes of files that are still written.
    unfinished: Shares,
    /// Names of finished files, oldest first.
    finished: HashMap<Arc<str>, VecDeque<String>>,
    removed: HashMap<Arc<str>, Removed>,
}

#[derive(Debug)]
struct Entry {
    /// The directory of its owner.
    owner: Arc<str>,
    bytes: u64,
    is_finished: bool,
}

#[derive(Debug, Default)]
struct Removed {
    count: u64,
    /// The newest of them and why they went, oldest first.
    names: VecDeque<(String, String)>,
}

/// Other outputs that are being written take all the room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

/// A file that is to be removed from the disk.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Leaving {
    pub(super) owner: Arc<str>,
    pub(super) name: String,
}

impl Leaving {
    pub(super) fn path(&self, directory: &Path) -> PathBuf {
        directory.join(&*self.owner).join(&self.name)
    }
}

impl Room {
    /// What earlier daemons left below `directory`.
    pub(super) fn scan(directory: &Path, is_ours: impl Fn(&Path) -> bool) -> io::Result<Self> {
        let mut found: Vec<(SystemTime, Arc<str>, String, u64)> = Vec::new();
        for owner in fs::read_dir(directory)?.flatten() {
            let Ok(owner_name) = owner.file_name().into_string() else { continue };
            if !owner.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let owner_name: Arc<str> = owner_name.into();
            for entry in fs::read_dir(owner.path()).into_iter().flatten().flatten() {
                // Somebody else may have removed it meanwhile.
                let (Ok(metadata), Ok(name)) = (entry.metadata(), entry.file_name().into_string()) else { continue };
                if metadata.is_file() && is_ours(&entry.path()) {
                    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    found.push((modified, owner_name.clone(), name, metadata.len()));
                }
            }
        }
        found.sort_unstable();
        let mut room = Self::default();
        for (_, owner, name, bytes) in found {
            room.insert(&owner, &name, bytes);
            room.finish(&name);
        }
        Ok(room)
    }

    /// Whose file this is.
    pub(super) fn owner_of(&self, name: &str) -> Option<&Arc<str>> {
        self.entries.get(name).map(|entry| &entry.owner)
    }

    /// A file is to be written. Returns what has to go for it.
    pub(super) fn begin(&mut self, owner: &Arc<str>, name: &str, limits: &Limits) -> Result<Vec<Leaving>, Full> {
        if !self.unfinished.leaves_room(owner, FILE_BYTES, limits.max_total_bytes) {
            return Err(Full);
        }
        let replaced = self.forget(name).map(|owner| Leaving { owner, name: name.to_owned() });
        self.insert(owner, name, 0);
        Ok(replaced.into_iter().chain(self.make_room(limits)).collect())
    }

    /// A file that is being written gets longer. Returns what has to go for it.
    pub(super) fn grow(&mut self, name: &str, bytes: u64, limits: &Limits) -> Result<Vec<Leaving>, Full> {
        let entry = self.entries.get_mut(name).ok_or(Full)?;
        if !self.unfinished.leaves_room(&entry.owner, bytes, limits.max_total_bytes) {
            return Err(Full);
        }
        entry.bytes += bytes;
        self.bytes.add(&entry.owner, bytes);
        self.unfinished.add(&entry.owner, bytes);
        Ok(self.make_room(limits))
    }

    /// Nothing more is written to a file: it may be removed from now on.
    pub(super) fn finish(&mut self, name: &str) {
        let Some(entry) = self.entries.get_mut(name).filter(|entry| !entry.is_finished) else { return };
        entry.is_finished = true;
        self.unfinished.remove(&entry.owner, entry.bytes);
        self.finished.entry(entry.owner.clone()).or_default().push_back(name.to_owned());
    }

    /// A file is gone. Returns whose it was.
    pub(super) fn forget(&mut self, name: &str) -> Option<Arc<str>> {
        let entry = self.entries.remove(name)?;
        self.bytes.remove(&entry.owner, entry.bytes);
        self.files.remove(&entry.owner, 1);
        if !entry.is_finished {
            self.unfinished.remove(&entry.owner, entry.bytes);
        } else if let Some(names) = self.finished.get_mut(&entry.owner) {
            names.retain(|known| known != name);
        }
        Some(entry.owner)
    }

    /// Whoever has most loses the oldest of its finished files, as long as there is too much.
    pub(super) fn make_room(&mut self, limits: &Limits) -> Vec<Leaving> {
        let mut leaving = Vec::new();
        loop {
            let is_removable = |owner: &str| self.finished.get(owner).is_some_and(|names| !names.is_empty());
            let (owner, why) = if self.bytes.total() > limits.max_total_bytes {
                let why = format!("outputs of all owners together may take {} MB", limits.max_total_bytes >> 20);
                (self.bytes.largest(is_removable), why)
            } else if self.files.total() > limits.max_files as u64 {
                let why = format!("{} files of outputs are kept of all owners together", limits.max_files);
                (self.files.largest(is_removable), why)
            } else {
                return leaving;
            };
            let Some(owner) = owner else { return leaving };
            let oldest = self.finished.get_mut(&owner).and_then(VecDeque::pop_front);
            leaving.extend(oldest.and_then(|name| self.remove(&name, format!("it made room for newer ones: {why}"))));
        }
    }

    /// Removes a finished file, for a reason that is remembered.
    pub(super) fn remove(&mut self, name: &str, why: String) -> Option<Leaving> {
        let owner = self.forget(name)?;
        let removed = self.removed.entry(owner.clone()).or_default();
        removed.count += 1;
        removed.names.push_back((name.to_owned(), why));
        if removed.names.len() > REMEMBERED {
            removed.names.pop_front();
        }
        Some(Leaving { owner, name: name.to_owned() })
    }

    /// Why a file that was there is not there any more.
    pub(super) fn why_removed(&self, name: &str) -> Option<String> {
        let mut all = self.removed.values().flat_map(|removed| removed.names.iter().rev());
        all.find(|(known, _)| known == name).map(|(_, why)| why.clone())
    }

    /// Finished files with their owners, each owner's oldest first.
    pub(super) fn finished(&self) -> Vec<Leaving> {
        let of = |(owner, names): (&Arc<str>, &VecDeque<String>)| {
            names.iter().map(|name| Leaving { owner: owner.clone(), name: name.clone() }).collect::<Vec<_>>()
        };
        self.finished.iter().flat_map(of).collect()
    }

    pub(super) fn usage(&self, owner: &str, limits: &Limits) -> [Use; 2] {
        let removed = self.removed.get(owner).map_or(0, |removed| removed.count);
        let of = |what: &str, shares: &Shares, unit: u64, bound: u64| Use {
            what: what.to_owned(),
            yours: shares.of(owner) / unit,
            all: Some(shares.total() / unit),
            bound: bound / unit,
            removed,
        };
        [
            of("outputs on disk, MB", &self.bytes, 1 << 20, limits.max_total_bytes),
            of("outputs on disk, files", &self.files, 1, limits.max_files as u64),
        ]
    }

    fn insert(&mut self, owner: &Arc<str>, name: &str, bytes: u64) {
        let bytes = bytes + FILE_BYTES;
        self.bytes.add(owner, bytes);
        self.files.add(owner, 1);
        self.unfinished.add(owner, bytes);
        self.entries.insert(name.to_owned(), Entry { owner: owner.clone(), bytes, is_finished: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn limits() -> Limits {
        Limits { max_total_bytes: 100 * MB, max_files: 10, ..Limits::default() }
    }

    fn write(room: &mut Room, owner: &str, name: &str, bytes: u64) -> Result<Vec<String>, Full> {
        let mut leaving = room.begin(&Arc::from(owner), name, &limits())?;
        leaving.extend(room.grow(name, bytes, &limits())?);
        room.finish(name);
        Ok(leaving.into_iter().map(|leaving| leaving.name).collect())
    }

    #[test]
    fn whoever_writes_most_loses_its_own_oldest() {
        let mut room = Room::default();
        assert_eq!(write(&mut room, "quiet", "q1", 20 * MB), Ok(vec![]));
        let mut lost = Vec::new();
        for number in 0..20 {
            lost.extend(write(&mut room, "busy", &format!("b{number:02}"), 15 * MB).unwrap());
            assert!(room.bytes.total() <= 100 * MB);
        }
        let expected: Vec<_> = (0..15).map(|number| format!("b{number:02}")).collect();
        assert_eq!(lost, expected);
        assert!(room.owner_of("q1").is_some());
        assert!(room.why_removed("b00").is_some_and(|why| why.contains("100 MB")));
        assert_eq!(room.why_removed("q1"), None);
        let [megabytes, files] = room.usage("busy", &limits());
        assert_eq!((megabytes.yours, megabytes.all, megabytes.bound, megabytes.removed), (75, Some(95), 100, 15));
        assert_eq!((files.yours, files.all, files.bound), (5, Some(6), 10));
    }

    #[test]
    fn many_small_files_count_as_files() {
        let mut room = Room::default();
        write(&mut room, "quiet", "q1", 1).unwrap();
        for number in 0..30 {
            write(&mut room, "busy", &format!("b{number}"), 1).unwrap();
        }
        assert_eq!((room.files.total(), room.files.of("quiet")), (10, 1));
        assert!(room.why_removed("b0").is_some_and(|why| why.contains("10 files")));
    }

    #[test]
    fn files_that_are_being_written_leave_room_for_others() {
        let mut room = Room::default();
        let limits = limits();
        let mut grow_all = |owner: &str| {
            let name = format!("{owner}1");
            room.begin(&Arc::from(owner), &name, &limits).unwrap();
            while room.grow(&name, MB, &limits).is_ok() {}
            room.unfinished.of(owner) / MB
        };
        assert_eq!((grow_all("one"), grow_all("two"), grow_all("three")), (49, 25, 12));
        assert!(room.unfinished.total() < limits.max_total_bytes);
        assert_eq!(write(&mut room, "four", "f1", 5 * MB), Ok(vec![]));
    }

    #[test]
    fn a_file_that_is_written_again_replaces_the_old_one() {
        let mut room = Room::default();
        write(&mut room, "one", "same", 5 * MB).unwrap();
        assert_eq!(write(&mut room, "two", "same", MB), Ok(vec!["same".to_owned()]));
        assert_eq!((room.bytes.of("one"), room.files.total()), (0, 1));
        assert_eq!(room.why_removed("same"), None);
    }
}
