//! `pylair wrap`: runs a command whose Pythons are apps, without a change to their code.
//!
//! A directory below the runtime one holds a `sitecustomize` and the probe's sources; it goes in front of `PYTHONPATH`, and then
//! the command takes this process's place, so that its terminal, its signals and its exit code are its own.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Exit, Failure, Surroundings, complain};
use crate::{cli::WrapArgs, plain::shown, probe};

const SETTINGS: &str = "PYLAIR_WRAP";
const PYTHON_PATH: &str = "PYTHONPATH";
/// How long the directories of other versions stay for children of apps that were started with them.
const LEFT_AGE: Duration = Duration::from_hours(30 * 24);

/// What the probe in the command is told, as JSON in `PYLAIR_WRAP`.
#[derive(Debug, Serialize)]
struct Settings<'a> {
    runtime: &'a Path,
    app_id: Option<&'a str>,
    port: Option<u16>,
    readonly: bool,
    parent: Option<String>,
}

/// What a wrapped app above us told its children.
#[derive(Debug, Default, Deserialize)]
struct Above {
    parent: Option<String>,
}

/// Returns only when the command could not be started.
pub fn wrap(args: &WrapArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    surroundings.places.create()?;
    let runtime = &surroundings.places.runtime;
    let directory = Directory::below(runtime).prepare().map_err(|error| {
        Failure::new(
            format!("cannot write the probe to `{}`: {error}", runtime.display()),
            "set PYLAIR_HOME to a directory you can write to",
        )
    })?;
    if directory.as_os_str().as_bytes().contains(&b':') {
        return Err(Failure::new(
            format!("`{}` cannot be in PYTHONPATH: there is a colon in it", directory.display()),
            "set PYLAIR_HOME to a directory without one",
        ));
    }
    let above: Above =
        surroundings.env.get(SETTINGS).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let settings = Settings {
        runtime,
        app_id: args.app_id.as_deref(),
        port: args.port,
        readonly: args.readonly,
        parent: above.parent,
    };
    let settings = serde_json::to_string(&settings)
        .map_err(|error| Failure::new(format!("the settings of the app: {error}"), "use plain names"))?;
    let (program, arguments) = args.command.split_first().expect("clap asks for one");
    let mut command = Command::new(program);
    command.args(arguments);
    command.env(PYTHON_PATH, in_front(&directory, std::env::var_os(PYTHON_PATH).as_deref()));
    command.env(SETTINGS, settings);
    keep_signal_mask(&mut command);
    let error = command.exec();
    let named = shown(&program.to_string_lossy());
    let (exit, hint) = match error.kind() {
        io::ErrorKind::NotFound => (Exit::NotFound, "is it installed, and on the PATH?"),
        _ => (Exit::NotStarted, "is it a program, and may you run it?"),
    };
    complain(&Failure::new(format!("cannot run `{named}`: {error}"), hint));
    Ok(exit)
}

/// The standard library empties the mask of what it executes; the command shall have the one we were started with.
fn keep_signal_mask(command: &mut Command) {
    // SAFETY: all zeros is a valid set, and the calls only write to it and read from it.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut mask);
        command.pre_exec(move || {
            libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
            Ok(())
        });
    }
}

/// The search path with our directory once, at its beginning; the rest stays as it is written, relative and empty entries too.
fn in_front(directory: &Path, existing: Option<&OsStr>) -> OsString {
    let mut path = directory.as_os_str().to_owned();
    // An empty variable means none, whereas an empty entry means the working directory.
    for entry in
        existing.filter(|path| !path.is_empty()).into_iter().flat_map(|path| path.as_bytes().split(|b| *b == b':'))
    {
        if entry != directory.as_os_str().as_bytes() {
            path.push(":");
            path.push(OsStr::from_bytes(entry));
        }
    }
    path
}

/// The directory that is put in front, named after what is in it.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    files: [(&'static str, Vec<u8>); 2],
}

impl Directory {
    fn below(runtime: &Path) -> Self {
        let files = [("sitecustomize.py", probe::sitecustomize().as_bytes().to_vec()), ("probe.json", probe::packed())];
        let mut digest = Sha256::new();
        for (name, content) in &files {
            digest.update(name.as_bytes());
            digest.update(content.len().to_be_bytes());
            digest.update(content);
        }
        let digest = digest.finalize();
        let hash = u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes"));
        Self { path: runtime.join("wrap").join(format!("{}-{hash:016x}", env!("CARGO_PKG_VERSION"))), files }
    }

    /// Makes it what its name says, whatever is there: Python runs this with all the user's rights.
    fn prepare(&self) -> io::Result<PathBuf> {
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
    fn the_directory_comes_first_and_once_and_the_rest_stays() {
        let check = |existing: Option<&str>, expect: &str| {
            assert_eq!(in_front(Path::new("/w"), existing.map(OsStr::new)), expect, "{existing:?}");
        };
        check(None, "/w");
        check(Some(""), "/w");
        check(Some("lib:../other"), "/w:lib:../other");
        check(Some("lib:"), "/w:lib:");
        check(Some("/w:lib"), "/w:lib");
        check(Some("lib:/w"), "/w:lib");
    }

    #[test]
    fn what_was_tampered_with_is_written_again() {
        let scratch = Scratch::new("tampered");
        let directory = Directory::below(&scratch.0);
        let path = directory.prepare().unwrap();
        let custom = path.join("sitecustomize.py");
        let good = fs::read(&custom).unwrap();
        assert_eq!(good, probe::sitecustomize().as_bytes());
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
        let directory = Directory::below(&scratch.0);
        fs::create_dir(scratch.0.join("wrap")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &directory.path).unwrap();
        let error = directory.prepare().unwrap_err().to_string();
        assert!(error.contains("is not a directory of yours"), "{error}");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }

    #[test]
    fn directories_of_other_versions_go_when_they_are_old() {
        let scratch = Scratch::new("old");
        let directory = Directory::below(&scratch.0);
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
