//! Directories below the runtime one with what a Python of the user's reads from disk: the probe for commands that are wrapped, and for
//! pytest. Called by `pylair wrap`, `pylair test` and `run_tests`. Blocking.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use sha2::{Digest, Sha256};

/// What Python is told to run instead of `-m pytest`.
pub const PYTEST_SCRIPT: &str = "_pylair_pytest.py";
/// How long the directories of other versions stay for children of processes that were started with them.
const LEFT_AGE: Duration = Duration::from_hours(30 * 24);

/// Named after what is in it.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    files: [(&'static str, Vec<u8>); 2],
}

impl Directory {
    /// What comes in front of `PYTHONPATH` of a command that is wrapped.
    pub fn for_wrap(runtime: &Path) -> Self {
        let files = [("sitecustomize.py", super::sitecustomize().as_bytes().to_vec()), ("probe.json", super::packed())];
        Self::below(&runtime.join("wrap"), files)
    }

    /// The script [`PYTEST_SCRIPT`] with what it needs.
    pub fn for_tests(runtime: &Path) -> Self {
        let script = super::pytest_script().as_bytes().to_vec();
        Self::below(&runtime.join("test"), [(PYTEST_SCRIPT, script), ("probe.json", super::packed_for_tests())])
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What would be in it, for a place where this one cannot be read.
    pub fn into_files(self) -> [(&'static str, Vec<u8>); 2] {
        self.files
    }

    fn below(parent: &Path, files: [(&'static str, Vec<u8>); 2]) -> Self {
        let mut digest = Sha256::new();
        for (name, content) in &files {
            digest.update(name.as_bytes());
            digest.update(content.len().to_be_bytes());
            digest.update(content);
        }
        let digest = digest.finalize();
        let hash = u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes"));
        Self { path: parent.join(format!("{}-{hash:016x}", env!("CARGO_PKG_VERSION"))), files }
    }

    /// Makes it what its name says, whatever is there: Python runs this with all the user's rights.
    pub fn prepare(&self) -> io::Result<PathBuf> {
        let parent = self.path.parent().expect("it is below another");
        own(parent)?;
        own(&self.path)?;
        for (name, content) in &self.files {
            let file = self.path.join(name);
            if !holds(&file, content) {
                write_beside(&file, content)?;
            }
        }
        // It is in use: others leave it alone for the next while.
        let _untouched = File::open(&self.path).and_then(|directory| directory.set_modified(SystemTime::now()));
        remove_old(parent, &self.path);
        Ok(self.path.clone())
    }
}

/// Makes a directory that is ours alone, or sees to it that the one that is there is.
fn own(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() || metadata.uid() != rustix::process::getuid().as_raw() {
        return Err(io::Error::other(format!("`{}` is not a directory of yours", path.display())));
    }
    if metadata.mode() & 0o777 != 0o700 {
        fs::set_permissions(path, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Whether a file of ours has exactly this content and nobody else may write it.
fn holds(path: &Path, content: &[u8]) -> bool {
    let read = || {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
        let metadata = file.metadata()?;
        let ours = metadata.is_file()
            && metadata.uid() == rustix::process::getuid().as_raw()
            && metadata.mode() & 0o022 == 0
            && metadata.len() == content.len() as u64;
        let mut found = Vec::new();
        if ours {
            file.take(content.len() as u64 + 1).read_to_end(&mut found)?;
        }
        Ok::<_, io::Error>(ours && found == content)
    };
    read().unwrap_or(false)
}

/// Nobody ever sees half of it: several commands may be started at once.
fn write_beside(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(name);
    // A process with our pid may have been killed here.
    let _absent = fs::remove_file(&beside);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| file.write_all(content))
        .and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _gone = fs::remove_file(&beside);
    }
    written
}

/// Removes what other versions left long ago. A child that would still have used it starts without a probe.
fn remove_old(parent: &Path, current: &Path) {
    let is_old = |entry: &fs::DirEntry| {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > LEFT_AGE))
    };
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.path() != current && is_old(&entry) {
            // Another command may be removing it as well.
            let _gone = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("pylair-wrap-{name}-{}", std::process::id()));
            let _absent = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn what_was_tampered_with_is_written_again() {
        let scratch = Scratch::new("tampered");
        let directory = Directory::for_wrap(&scratch.0);
        let path = directory.prepare().unwrap();
        let custom = path.join("sitecustomize.py");
        let good = fs::read(&custom).unwrap();
        assert_eq!(good, super::super::sitecustomize().as_bytes());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);

        let mut same_size = good.clone();
        same_size[0] ^= 1;
        fs::write(&custom, same_size).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        directory.prepare().unwrap();
        assert_eq!(fs::read(&custom).unwrap(), good);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);

        fs::rename(&custom, scratch.0.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(scratch.0.join("elsewhere"), &custom).unwrap();
        directory.prepare().unwrap();
        assert!(fs::symlink_metadata(&custom).unwrap().is_file(), "a link is not followed but replaced");
        let left: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn a_link_in_the_place_of_the_directory_is_refused() {
        let scratch = Scratch::new("link");
        let elsewhere = scratch.0.join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        let directory = Directory::for_wrap(&scratch.0);
        fs::create_dir(scratch.0.join("wrap")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &directory.path).unwrap();
        let error = directory.prepare().unwrap_err().to_string();
        assert!(error.contains("is not a directory of yours"), "{error}");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }

    #[test]
    fn directories_of_other_versions_go_when_they_are_old() {
        let scratch = Scratch::new("old");
        let directory = Directory::for_wrap(&scratch.0);
        let path = directory.prepare().unwrap();
        let parent = path.parent().unwrap();
        for (name, age) in [("0.0.1-old", LEFT_AGE * 2), ("0.0.2-used", Duration::from_hours(1))] {
            fs::create_dir(parent.join(name)).unwrap();
            File::open(parent.join(name)).unwrap().set_modified(SystemTime::now() - age).unwrap();
        }
        directory.prepare().unwrap();
        assert!(path.exists() && parent.join("0.0.2-used").exists() && !parent.join("0.0.1-old").exists());
    }
}
