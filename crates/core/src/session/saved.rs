//! What outlives a session's process: definitions of sessions that are to be kept, and variables that were saved.
//!
//! One directory each of small files, written atomically; called by `Sessions`. A saved session is `HANDLE.json`, its definition, and
//! `HANDLE.save` beside it if its variables were saved when the daemon left. Saves that somebody asked for are in a directory of
//! their own under the id the caller was told.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use crate::{caller::own_owner, settings::Checkpoints};
use pylair_os::regular;
use pylair_sandbox::Wish;

/// The newest saves of an owner that are kept, and how much they may take together; the newest stays in any case.
const MAX_SAVES: usize = 50;
const MAX_SAVED_BYTES: u64 = 4 << 30;
const SUFFIX: &str = "save";
/// Of variables that code in a sandbox had. Restoring runs what they say, so it is done in a sandbox only.
const CONFINED_SUFFIX: &str = "confined";
const MAX_DEFINITION_BYTES: u64 = 16 << 20;

/// A session as it is opened again: what its caller asked for, never the caller's own environment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Definition {
    pub handle: String,
    pub name: String,
    pub owner: String,
    pub python: Option<String>,
    pub cwd: PathBuf,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub startup: Option<String>,
    #[serde(default)]
    pub preload: Vec<String>,
    pub sandbox: Wish,
    /// It works in a directory of its caller's, `cwd`, though it is confined.
    #[serde(default)]
    pub is_bound: bool,
    pub description: Option<String>,
    /// It was opened by somebody who may do everything; what others were granted is granted as long as the settings say so.
    #[serde(default)]
    pub is_admins: bool,
    /// How many checkpoints it keeps, as whoever opened it has that set.
    #[serde(default = "usual_checkpoints")]
    pub checkpoints: Checkpoints,
    /// Somebody asked for it to be kept; otherwise it is only waiting for the daemon to come back.
    pub keep: bool,
    /// The newest cell, so that numbers go on.
    pub cell: u64,
    /// Whose default session it is, in words that only have to be equal.
    pub default_of: Option<String>,
    pub opened_at: String,
    pub last_used_at: String,
    /// What whoever uses it next must know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Of sessions that an older version wrote down.
fn usual_checkpoints() -> Checkpoints {
    Checkpoints::Auto
}

/// What was saved and what could not be.
#[derive(Debug, Clone, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct Saved {
    pub saved: Vec<SavedVariable>,
    pub not_saved: Vec<NotSaved>,
    pub bytes: u64,
    /// So many names were left out of the lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub more: Option<u64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct SavedVariable {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub bytes: u64,
    /// It was restored in a process that was thrown away, and was equal.
    pub verified: bool,
    /// What a person should know about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct NotSaved {
    pub name: String,
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    pub reason: String,
}

/// What came back.
#[derive(Debug, Clone, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct Restored {
    pub restored: Vec<String>,
    pub not_restored: Vec<NotSaved>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub more: Option<u64>,
}

impl Restored {
    /// For a session's next caller.
    pub fn notes(&self) -> Vec<String> {
        const NAMED: usize = 20;
        let listed = |names: Vec<String>| {
            let more = names.len().saturating_sub(NAMED);
            let mut text = names.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
            if more > 0 {
                text.push_str(" and more");
            }
            text
        };
        let mut notes = vec![match self.restored.len() {
            0 => "no variable was restored".to_owned(),
            1 => format!("1 variable was restored: {}", self.restored[0]),
            count => format!("{count} variables were restored: {}", listed(self.restored.clone())),
        }];
        if !self.not_restored.is_empty() {
            let lost = self.not_restored.iter().map(|lost| format!("{} ({})", lost.name, lost.reason)).collect();
            notes.push(format!("not restored: {}", listed(lost)));
        }
        notes
    }
}

/// The directories of definitions and saves.
#[derive(Debug)]
pub struct Store {
    sessions: PathBuf,
    saves: PathBuf,
}

impl Store {
    pub fn open(data: &Path) -> io::Result<Self> {
        let store = Self { sessions: data.join("sessions"), saves: data.join("saves") };
        for directory in [&store.sessions, &store.saves] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            regular::remove_unfinished(directory);
        }
        let of_others = fs::read_dir(&store.saves).into_iter().flatten().flatten();
        of_others.for_each(|entry| regular::remove_unfinished(&entry.path()));
        Ok(store)
    }

    pub fn put(&self, definition: &Definition) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(definition)?;
        replace(&self.definition(&definition.handle), &text)
    }

    /// Forgets a session and what was saved of it.
    pub fn forget(&self, handle: &str) {
        for path in [self.definition(handle), self.variables(handle)] {
            // It may never have been there.
            let _absent = fs::remove_file(path);
        }
    }

    /// All definitions; files that cannot be read are left alone and out. Those that nobody asked to keep go when they are older than `oldest`.
    pub fn load(&self, oldest: Option<SystemTime>) -> Vec<Definition> {
        let mut definitions = Vec::new();
        for entry in fs::read_dir(&self.sessions).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let read = regular::read(&path, MAX_DEFINITION_BYTES).ok();
            let read = read.and_then(|text| serde_json::from_str::<Definition>(&text).ok());
            let is_sound = |definition: &Definition| {
                is_id(&definition.handle)
                    && is_id(&definition.name)
                    && definition.cell < u64::MAX / 2
                    && path.file_stem().is_some_and(|stem| *stem == *definition.handle)
            };
            let Some(definition) = read.filter(is_sound) else {
                tracing::warn!(path = %path.display(), "a saved session could not be read");
                continue;
            };
            if !definition.keep
                && oldest.is_some_and(|oldest| modified(&path).is_some_and(|modified| modified < oldest))
            {
                self.forget(&definition.handle);
                continue;
            }
            definitions.push(definition);
        }
        definitions.sort_by(|a, b| a.opened_at.cmp(&b.opened_at));
        definitions
    }

    fn definition(&self, handle: &str) -> PathBuf {
        self.sessions.join(format!("{handle}.json"))
    }

    /// Where a session's variables are while the daemon is away.
    pub fn variables(&self, handle: &str) -> PathBuf {
        self.sessions.join(format!("{handle}.{SUFFIX}"))
    }

    /// The file of a save; `None` if the id is not one of ours. Blocks a moment for somebody's first save.
    pub fn save(&self, owner: &str, id: &str, is_confined: bool) -> Option<PathBuf> {
        let directory = self.saves_of(owner)?;
        let _already = fs::DirBuilder::new().mode(0o700).create(&directory);
        let suffix = if is_confined { CONFINED_SUFFIX } else { SUFFIX };
        is_id(id).then(|| directory.join(format!("{id}.{suffix}")))
    }

    /// The file of a save that is there, and whether it was made in a sandbox.
    pub fn find_save(&self, owner: &str, id: &str) -> Option<(PathBuf, bool)> {
        [true, false].into_iter().find_map(|is_confined| {
            let path = self.save(owner, id, is_confined)?;
            path.exists().then_some((path, is_confined))
        })
    }

    /// Saves are the owner's own, and those of others have a directory each.
    fn saves_of(&self, owner: &str) -> Option<PathBuf> {
        if owner == own_owner() {
            return Some(self.saves.clone());
        }
        is_id(owner).then(|| self.saves.join(format!("@{owner}")))
    }

    /// Ids of all saves of somebody, newest first.
    pub fn saves(&self, owner: &str) -> Vec<String> {
        let mut saves: Vec<_> = self
            .saves_of(owner)
            .and_then(|directory| fs::read_dir(directory).ok())
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let path = entry.path();
                let id = path.file_stem()?.to_str()?.to_owned();
                let has_suffix = path.extension().is_some_and(|found| found == SUFFIX || found == CONFINED_SUFFIX);
                let is_save = has_suffix && is_id(&id);
                is_save.then(|| (entry.metadata().and_then(|metadata| metadata.modified()).ok(), id))
            })
            .collect();
        saves.sort_by(|a, b| b.cmp(a));
        saves.into_iter().map(|(_, id)| id).collect()
    }

    /// Removes the oldest saves over the limit, never the one that was just made. Returns their ids.
    pub fn trim(&self, owner: &str, newest: &str) -> Vec<String> {
        let mut saves = self.saves(owner);
        // By its time it may be older than others: a clock may have gone back.
        saves.sort_by_key(|id| id != newest);
        let size = |id: &String| self.find_save(owner, id).and_then(|(path, _)| Some(path.metadata().ok()?.len()));
        let sizes = saves.iter().map(|id| size(id).unwrap_or(0)).scan(0_u64, |sum, size| {
            *sum += size;
            Some(*sum)
        });
        let fit = sizes.take_while(|sum| *sum <= MAX_SAVED_BYTES).count().max(1);
        let old = saves.split_off(saves.len().min(fit).min(MAX_SAVES));
        for id in &old {
            if let Some((path, _)) = self.find_save(owner, id) {
                let _gone = fs::remove_file(path);
            }
        }
        old
    }
}

/// A file that a worker writes to, under another name until it is whole.
#[derive(Debug)]
pub struct Pending {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
}

impl Pending {
    pub fn new(path: &Path) -> io::Result<Self> {
        let temporary = regular::unfinished_beside(path);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&temporary)?;
        Ok(Self { file, temporary, path: path.to_owned() })
    }

    pub fn descriptor(&self) -> io::Result<std::os::fd::OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// For reading what is written, from its beginning.
    pub fn reader(&self) -> io::Result<std::os::fd::OwnedFd> {
        Ok(File::open(&self.temporary)?.into())
    }

    /// On disk, also through a power cut.
    pub fn keep(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        sync_parent(&self.path)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Gone already if it was kept.
        let _kept = fs::remove_file(&self.temporary);
    }
}

fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    regular::replace(path, |file| file.write_all(text).and_then(|()| file.sync_all()))?;
    sync_parent(path)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// What may be a file's name here.
fn is_id(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 96
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_lead_elsewhere_are_no_saves() {
        let directory = std::env::temp_dir().join(format!("pylair-saved-{}", std::process::id()));
        let store = Store::open(&directory).unwrap();
        let own = own_owner();
        assert!(store.save(&own, "main-1", false).is_some());
        assert_eq!(store.save("alice", "main-1", false), Some(directory.join("saves/@alice/main-1.save")));
        assert_eq!(store.save("../alice", "main-1", false), None);
        for id in ["", "../x", "/etc/passwd", ".hidden", "a/b", "a\0b"] {
            assert_eq!(store.save(&own, id, false), None, "{id:?}");
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn what_was_not_restored_is_named_with_its_reason() {
        let lost = NotSaved { name: "f".into(), kind: String::new(), reason: "a generator".into() };
        let restored = Restored { restored: vec!["x".into(), "y".into()], not_restored: vec![lost], more: None };
        assert_eq!(restored.notes(), ["2 variables were restored: x, y", "not restored: f (a generator)"]);
    }
}
