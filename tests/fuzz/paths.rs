//! Targets as callers write them, and paths of files: whatever is asked for, nothing outside of the workspace is reached. What the
//! kernel has opened says where that is, while somebody else keeps swapping a directory for a way out.

use std::{
    fs,
    os::{fd::AsRawFd, unix::fs::symlink},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pylair_core::target::Reference;
use pylair_files::{ListOptions, Workspace};
use rustix::fs::{CWD, RenameFlags};
use tokio::runtime::Runtime;

use crate::{Target, mutate::Random};

const SECRET: &str = "what is outside";

pub struct Paths {
    base: PathBuf,
    workspace: Workspace,
    runtime: Runtime,
    is_over: Arc<AtomicBool>,
    /// Held while the tree is planted, and for each swap.
    swapping: Arc<Mutex<()>>,
}

const WORDS: &[&str] = &[
    "/",
    "//",
    "..",
    "../",
    "/..",
    ".",
    "./",
    "a",
    "b",
    "file",
    "dir",
    "dir/",
    "deep/er/file",
    "link",
    "absolute",
    "up",
    "loop",
    "out",
    "chain",
    "race",
    "race/secret",
    "outside",
    "outside/secret",
    "secret",
    "magic",
    "/proc/self/root",
    "/proc/self/fd/3",
    "/workspace",
    "/workspace/../",
    "@ROOT@",
    "@BASE@/outside/secret",
    "session:",
    "app:",
    "@",
    "#",
    "pid:",
    "failure:",
    "4711",
    "-1",
    ":",
    " ",
    "\u{0}",
    "\n",
    "\u{ad}",
    "é",
    "\u{ff0e}\u{ff0e}",
    "%2e%2e",
    "~",
    "*",
    "new/file",
    "new",
];

impl Paths {
    pub fn new() -> Self {
        let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-paths-{}", std::process::id()));
        let base = base
            .parent()
            .and_then(|parent| parent.canonicalize().ok())
            .expect("it exists")
            .join(base.file_name().unwrap());
        let root = base.join("root");
        let workspace = Workspace { path: root, seen_as: "/workspace".into(), owner: None };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
        let is_over = Arc::new(AtomicBool::new(false));
        let swapping = Arc::default();
        let paths = Self { base, workspace, runtime, is_over, swapping };
        paths.plant();
        let (inside, out, stop) = (paths.root().join("race"), paths.root().join("swapped"), paths.is_over.clone());
        let swapping = paths.swapping.clone();
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let held = swapping.lock().unwrap_or_else(PoisonError::into_inner);
                // An input may have deleted one of them.
                let _absent = rustix::fs::renameat_with(CWD, &inside, CWD, &out, RenameFlags::EXCHANGE);
                drop(held);
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        paths
    }

    fn root(&self) -> &Path {
        &self.workspace.path
    }

    /// The tree as it is before each input that may have changed it.
    fn plant(&self) {
        let _held = self.swapping.lock().unwrap_or_else(PoisonError::into_inner);
        let (root, outside) = (self.root(), self.base.join("outside"));
        let _absent = fs::remove_dir_all(root);
        for directory in [root.join("dir/deep/er"), root.join("a/b"), root.join("race"), outside.clone()] {
            fs::create_dir_all(directory).expect("the target directory is writable");
        }
        for file in [root.join("file"), root.join("dir/file"), root.join("dir/deep/er/file"), root.join("race/secret")]
        {
            fs::write(file, "inside").expect("the directory is there");
        }
        fs::write(outside.join("secret"), SECRET).expect("the directory is there");
        let absolute = root.join("file");
        let links = [
            ("link", Path::new("dir/file")),
            ("up", Path::new("..")),
            ("out", Path::new("../outside")),
            ("a/chain", Path::new("../out/secret")),
            ("a/fine", Path::new("../dir/deep")),
            ("absolute", &absolute),
            ("loop", Path::new("loop")),
            ("magic", Path::new("/proc/self/root")),
            ("dangling", Path::new("a/not-there")),
            ("swapped", Path::new("../outside")),
        ];
        for (name, target) in links {
            symlink(target, root.join(name)).expect("the name is free");
        }
    }

    fn read(&self, path: &str) -> Result<String, String> {
        let found = self.runtime.block_on(self.workspace.download(path));
        let download = match found {
            Ok(download) => download,
            Err(error) => return Ok(error.kind().to_owned()),
        };
        let real =
            fs::read_link(format!("/proc/self/fd/{}", download.file.as_raw_fd())).map_err(|error| error.to_string())?;
        // A name that was swapped after the file was opened still is the file inside.
        if !real.starts_with(self.root()) {
            return Err(format!("`{path}` was opened at {}", real.display()));
        }
        let is_racing = real.starts_with(self.root().join("race")) || real.starts_with(self.root().join("swapped"));
        let plain = self.root().join(path.trim_start_matches("/workspace"));
        if !is_racing
            && !Path::new(path).is_absolute()
            && fs::canonicalize(&plain).is_ok_and(|kernels| kernels != real && kernels.starts_with(&self.base))
        {
            return Err(format!("`{path}` was opened at {}, and is somewhere else", real.display()));
        }
        let page = self.runtime.block_on(self.workspace.read(path, 0, 100));
        if format!("{page:?}").contains(SECRET) {
            return Err(format!("`{path}` was read: {page:?}"));
        }
        Ok("read".to_owned())
    }

    fn list(&self, path: &str) -> Result<String, String> {
        let listed = self.runtime.block_on(self.workspace.list(path, ListOptions::default()));
        let text = serde_json::to_string(&listed.as_ref().ok()).map_err(|error| error.to_string())?;
        // Only the way out has a name like this below it, and `race` has one of its own.
        if text.contains("outside/secret") {
            return Err(format!("`{path}` was listed: {text}"));
        }
        Ok(listed.map_or_else(|error| error.kind().to_owned(), |_| "listed".to_owned()))
    }

    fn change(&self, path: &str, deletes: bool) -> Result<String, String> {
        let told = if deletes {
            self.runtime.block_on(self.workspace.delete(path)).map(|_| "deleted")
        } else {
            self.runtime.block_on(self.workspace.write(path, b"written".to_vec())).map(|_| "written")
        };
        let outside = self.base.join("outside");
        let left: Vec<_> = fs::read_dir(&outside)
            .map_err(|error| error.to_string())?
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        let above: Vec<_> = fs::read_dir(&self.base)
            .map_err(|error| error.to_string())?
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        let secret = fs::read_to_string(outside.join("secret")).unwrap_or_default();
        if left != ["secret"] || above.len() != 2 || secret != SECRET {
            return Err(format!("`{path}` changed what is outside: {left:?}, {above:?}, {secret:?} ({told:?})"));
        }
        if told.is_ok() || self.root().join("new").exists() {
            self.plant();
        }
        Ok(told.map_or_else(|error| error.kind().to_owned(), ToOwned::to_owned))
    }
}

impl Drop for Paths {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _absent = fs::remove_dir_all(&self.base);
    }
}

impl Target for Paths {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let references = ["main", "session:main", "app:web@4711", "pid:4711", "failure:k3n7#2"];
        let paths = [
            "file",
            "dir/file",
            "link",
            "a/fine/er/file",
            "a/../dir/./deep//er/file",
            "out/secret",
            "up/outside/secret",
            "a/chain",
            "/workspace/dir/file",
            "@ROOT@/file",
            "absolute",
            "magic/etc/hostname",
            "race/secret",
            "new/file",
            "dangling",
            "loop/x",
        ];
        references.into_iter().chain(paths).map(|text| text.as_bytes().to_vec()).collect()
    }

    fn words(&self) -> &'static [&'static str] {
        WORDS
    }

    /// Another part somewhere in the path.
    fn mutate(&self, input: &[u8], random: &mut Random) -> Option<Vec<u8>> {
        let text = std::str::from_utf8(input).ok()?;
        let mut parts: Vec<&str> = text.split('/').collect();
        let at = random.below(parts.len());
        match random.below(4) {
            0 => drop(parts.remove(at)),
            1 => parts[at] = random.pick(WORDS),
            2 => parts.extend(std::iter::repeat_n(random.pick(WORDS), 1 << random.below(9))),
            _ => parts.insert(at, random.pick(WORDS)),
        }
        Some(parts.join("/").into_bytes())
    }

    fn run(&mut self, input: &[u8]) -> Result<String, String> {
        let Ok(text) = std::str::from_utf8(input) else { return Ok("not UTF-8".to_owned()) };
        let target = match text.parse::<Reference>() {
            Ok(reference) if reference.to_string().parse().as_ref() == Ok(&reference) => "target",
            Ok(reference) => return Err(format!("`{text}` is {reference:?}, which is written `{reference}`")),
            Err(error) if error.hint().is_empty() => return Err(format!("no hint for `{text}`")),
            Err(_) => "no target",
        };
        let path = text
            .replace("@ROOT@", &self.root().display().to_string())
            .replace("@BASE@", &self.base.display().to_string());
        let mut random = Random::of(input);
        // What is changed is on disk afterwards, which takes its time.
        let told = match random.below(16) {
            0 => self.change(&path, false)?,
            1 => self.change(&path, true)?,
            2 | 3 => self.list(&path)?,
            _ => self.read(&path)?,
        };
        Ok(format!("{target} {told}"))
    }
}
