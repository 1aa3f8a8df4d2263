//! Files of a session's workspace: its working directory under `open`, a directory of its own when it is confined.
//!
//! The doors call the methods of [`Workspace`]; the work is done on blocking threads. Every path is resolved by the kernel
//! beneath a descriptor of the workspace (`beneath`), so neither `..`, symlinks nor somebody who swaps them meanwhile leads out.
//! Hard links are not paths: one to a file outside can be read like a copy of it, but only somebody who may write that file, on
//! the same mount, can make one (a confined session has no other mount to link from), and writing replaces the name, never the
//! file behind it.

mod beneath;
mod ignore;
mod list;
mod own;
mod page;
mod write;

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
    sync::LazyLock,
};

use rustix::io::Errno;

use pylair_os::turns::Turns;

pub use list::{DEFAULT_DEPTH, Entry, ListOptions, Listing};
pub use own::{OwnDirectory, Workspaces, remove_tree};
pub use page::{Content, DEFAULT_PAGE_BYTES, MAX_PAGE_BYTES, Page};
pub use write::{Deleted, Staged, Written};

/// The most that `write_file` takes.
pub const MAX_WRITE_BYTES: u64 = 32 << 20;
/// The most that one upload takes, all its files together.
pub const MAX_UPLOAD_BYTES: u64 = 256 << 20;
/// Where uploads go that name no path.
pub const UPLOADS: &str = "uploads";
/// What the kernel takes.
const MAX_PATH_BYTES: usize = 4096;
/// How many files of one workspace are worked on at once: a slow disk of one session's must not take the threads of all.
const MAX_AT_ONCE: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{path}` is not a path of a file: {why}")]
    BadPath { path: String, why: &'static str },
    #[error("`{path}` leads out of the session's workspace `{}`", workspace.display())]
    LeadsOut { path: String, workspace: PathBuf },
    #[error("`{path}` goes through too many symlinks, or through one of the kernel's own")]
    Loop { path: String },
    #[error("there is no `{path}` in the session's workspace `{}`", workspace.display())]
    NotFound { path: String, workspace: PathBuf },
    #[error("a part of `{path}` is not a directory")]
    NotADirectory { path: String },
    #[error("`{path}` is a directory")]
    IsADirectory { path: String },
    #[error("`{path}` is a {kind}, not a file")]
    Special { path: String, kind: &'static str },
    #[error("the directory `{path}` is not empty")]
    NotEmpty { path: String },
    #[error("`{path}` has more than the limit of {limit} bytes")]
    TooLarge { path: String, limit: u64 },
    #[error("offset {offset} is past the end of `{path}`, which has {bytes} bytes")]
    PastTheEnd { path: String, offset: u64, bytes: u64 },
    #[error("the content is not base64: {0}")]
    NotBase64(String),
    #[error("there is no space left for `{path}`")]
    NoSpace { path: String, source: io::Error },
    #[error("the workspace `{}` is gone", .0.display())]
    Gone(PathBuf),
    #[error("this kernel cannot confine paths to a directory (openat2, Linux 5.6)")]
    Unsupported,
    #[error("cannot {what} `{path}`")]
    Io { what: &'static str, path: String, source: io::Error },
}

impl Error {
    /// The message with its cause.
    pub fn message(&self) -> String {
        pylair_text::plain::with_causes(self)
    }

    /// A word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::BadPath { .. } | Self::NotBase64(_) | Self::PastTheEnd { .. } => "bad_argument",
            Self::LeadsOut { .. } | Self::Loop { .. } => "outside_workspace",
            Self::NotFound { .. } => "not_found",
            Self::NotADirectory { .. } => "not_a_directory",
            Self::IsADirectory { .. } => "is_a_directory",
            Self::Special { .. } => "special_file",
            Self::NotEmpty { .. } => "not_empty",
            Self::TooLarge { .. } => "too_large",
            Self::NoSpace { .. } => "no_space",
            Self::Gone(_) => "workspace_gone",
            Self::Unsupported => "unsupported",
            Self::Io { .. } => "file_error",
        }
    }

    /// The way out.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::BadPath { .. } => "pass a path relative to the workspace, such as data/input.csv",
            Self::LeadsOut { .. } => {
                "paths are relative to the workspace; symlinks may only lead to places in it and have to be relative"
            }
            Self::Loop { .. } => "use the real path",
            Self::NotFound { .. } => "list_files shows what is there",
            Self::NotADirectory { .. } => "list_files shows which part is a file",
            Self::IsADirectory { .. } => "list_files lists it; files are named below it",
            Self::Special { .. } => "only regular files are read and written here; use code for others",
            Self::NotEmpty { .. } => "delete what is in it first, or use shutil.rmtree in the session",
            Self::TooLarge { .. } => {
                "read_file reads in pages, GET /files/download and POST /files/upload move larger files"
            }
            Self::PastTheEnd { .. } => "offsets are in bytes; go on with the next_offset of the page before",
            Self::NotBase64(_) => "encode the bytes as standard base64 with padding, or leave out base64 for text",
            Self::NoSpace { .. } => "nothing was changed; free some space first",
            Self::Gone(_) => "the session's working directory was removed; open another session",
            Self::Unsupported => "read and write files with code in the session",
            Self::Io { .. } => "see the permissions of the file and its directory",
        }
    }
}

/// Where a session's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    /// As the daemon reaches it.
    pub path: PathBuf,
    /// As the session sees it.
    pub seen_as: PathBuf,
    /// Whom files made here belong to, when that is not the daemon's own user.
    pub owner: Option<u32>,
}

/// A file to send: its size may only be read this far.
#[derive(Debug)]
pub struct Download {
    pub file: File,
    pub name: String,
    pub bytes: u64,
}

impl Workspace {
    /// The working directory of a session that is not confined.
    pub fn open(cwd: &Path) -> Self {
        Self { path: cwd.to_owned(), seen_as: cwd.to_owned(), owner: None }
    }

    pub async fn list(&self, path: &str, options: ListOptions) -> Result<Listing, Error> {
        self.on_thread(path, "list", move |workspace, path| list::list(workspace, path, options)).await
    }

    /// A page of a file, or an image as a whole.
    pub async fn read(&self, path: &str, offset: u64, max_bytes: usize) -> Result<Page, Error> {
        self.on_thread(path, "read", move |workspace, path| page::read(workspace, path, offset, max_bytes)).await
    }

    /// Replaces a file, or makes it with the directories it needs. When this returns it is on disk.
    pub async fn write(&self, path: &str, content: Vec<u8>) -> Result<Written, Error> {
        self.on_thread(path, "write", move |workspace, path| {
            let mut staged = Staged::begin(workspace, path, MAX_WRITE_BYTES)?;
            staged.write(&content)?;
            staged.commit()
        })
        .await
    }

    /// Deletes a file, a symlink or an empty directory.
    pub async fn delete(&self, path: &str) -> Result<Deleted, Error> {
        self.on_thread(path, "delete", write::delete).await
    }

    pub async fn download(&self, path: &str) -> Result<Download, Error> {
        self.on_thread(path, "read", |workspace, path| {
            let (file, bytes) = page::open(workspace, path)?;
            let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok(Download { file, name, bytes })
        })
        .await
    }

    /// SHA-256 of a file as it is now, for the audit record. Outside of the workspace only where nothing is confined.
    pub async fn digest(&self, path: &str, is_confined: bool) -> Result<[u8; 32], Error> {
        self.on_thread(path, "read", move |workspace, path| {
            let failed = |source| Error::Io { what: "read", path: shown(path), source };
            let file = if is_confined {
                page::open(workspace, path)?.0
            } else {
                pylair_os::regular::open(&workspace.seen_as.join(path)).map_err(failed)?
            };
            let bytes = file.metadata().map_err(failed)?.len();
            if bytes > MAX_WRITE_BYTES {
                return Err(Error::TooLarge { path: shown(path), limit: MAX_WRITE_BYTES });
            }
            pylair_text::hash::sha256_of(file.take(MAX_WRITE_BYTES)).map_err(failed)
        })
        .await
    }

    async fn on_thread<T: Send + 'static>(
        &self,
        path: &str,
        what: &'static str,
        work: impl FnOnce(&Self, &str) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        static AT_WORK: LazyLock<Turns<PathBuf>> = LazyLock::new(|| Turns::new(MAX_AT_ONCE));
        let (workspace, path) = (self.clone(), path.to_owned());
        let failed = path.clone();
        let turn = AT_WORK.take(&workspace.path).await;
        tokio::task::spawn_blocking(move || {
            // Until the work is over, also when nobody waits for it any more.
            let _turn = turn;
            work(&workspace, &path)
        })
        .await
        .unwrap_or_else(|error| Err(Error::Io { what, path: failed, source: io::Error::other(error) }))
    }

    /// Whom files that are made here are given to, user and group. A directory that was bound is seen with its owner, and its group, as the
    /// session's own.
    fn owner_of_new(&self) -> Option<(u32, u32)> {
        let owner = self.owner?;
        let bound = || std::fs::metadata(&self.path).map(|metadata| (metadata.uid(), metadata.gid())).ok();
        if self.path == self.seen_as { bound() } else { Some((owner, owner)) }
    }

    /// The path below the workspace that a caller means. Absolute ones count as the session sees them, or as the daemon does.
    fn below(&self, path: &str) -> Result<PathBuf, Error> {
        let bad = |why| Error::BadPath { path: shown(path), why };
        if path.contains('\0') {
            return Err(bad("it has a NUL byte"));
        }
        if path.len() > MAX_PATH_BYTES {
            return Err(bad("it is too long"));
        }
        let mut below = Path::new(path);
        if below.is_absolute() {
            below = [&self.seen_as, &self.path]
                .into_iter()
                .find_map(|root| below.strip_prefix(root).ok())
                .ok_or_else(|| self.leads_out(path))?;
        }
        Ok(below.components().filter(|part| *part != Component::CurDir).collect())
    }

    fn leads_out(&self, path: &str) -> Error {
        Error::LeadsOut { path: shown(path), workspace: self.seen_as.clone() }
    }

    /// What the kernel's refusal means.
    fn refused(&self, what: &'static str, path: &str, errno: Errno) -> Error {
        let shown = || shown(path);
        match errno {
            Errno::XDEV => self.leads_out(path),
            Errno::LOOP => Error::Loop { path: shown() },
            Errno::NOENT => Error::NotFound { path: shown(), workspace: self.seen_as.clone() },
            Errno::NOTDIR => Error::NotADirectory { path: shown() },
            Errno::ISDIR => Error::IsADirectory { path: shown() },
            Errno::NXIO | Errno::NODEV => Error::Special { path: shown(), kind: "special file" },
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Error::NoSpace { path: shown(), source: errno.into() },
            Errno::NAMETOOLONG => Error::BadPath { path: shown(), why: "it is too long" },
            Errno::NOSYS => Error::Unsupported,
            other => Error::Io { what, path: shown(), source: other.into() },
        }
    }
}

/// A path in a message: short enough, and on one line.
fn shown(path: &str) -> String {
    const SHOWN_CHARS: usize = 200;
    let mut text: String = one_line(path).chars().take(SHOWN_CHARS + 1).collect();
    if text.chars().count() > SHOWN_CHARS {
        text.pop();
        text.push('…');
    }
    text
}

/// Control characters in a name could pretend to be more lines of ours.
fn one_line(name: &str) -> String {
    name.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_count_only_below_the_workspace() {
        let workspace = Workspace { path: "/data/abc".into(), seen_as: "/workspace".into(), owner: None };
        let below = |path: &str| workspace.below(path).map(|path| path.display().to_string()).map_err(|e| e.kind());
        assert_eq!(below("/workspace/a/b"), Ok("a/b".to_owned()));
        assert_eq!(below("/data/abc/./a//b/"), Ok("a/b".to_owned()));
        assert_eq!(below("./a/../b"), Ok("a/../b".to_owned()));
        assert_eq!(below(""), Ok(String::new()));
        assert_eq!(below("/workspaces"), Err("outside_workspace"));
        assert_eq!(below("/etc/passwd"), Err("outside_workspace"));
        assert_eq!(below("a\0b"), Err("bad_argument"));
        assert_eq!(below(&"a".repeat(5000)), Err("bad_argument"));
    }

    #[test]
    fn messages_hold_any_name() {
        assert_eq!(shown("a\nb"), "a\\nb");
        assert_eq!(shown(&"x".repeat(300)).chars().count(), 201);
    }
}
