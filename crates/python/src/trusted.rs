//! Which interpreters may be run outside of a sandbox for a session that is to be in one: those of the system, those that version managers
//! keep, and the one that the user's own settings name. Everything else may be a project's.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const WRITABLE_BY_ALL: u32 = 0o002;

#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// Directories that hold interpreters and nothing of a project's.
    roots: Vec<PathBuf>,
    /// The interpreter of the user's own settings.
    configured: Option<PathBuf>,
    /// Programs there find out by themselves which interpreter is meant, and are run for that alone.
    shims: Vec<PathBuf>,
}

impl Trust {
    /// Directories that are not there are left out.
    pub fn new(roots: &[PathBuf], shims: &[PathBuf], configured: Option<&str>) -> Self {
        let real = |paths: &[PathBuf]| paths.iter().filter_map(|path| path.canonicalize().ok()).collect();
        let configured = configured.map(Path::new).filter(|path| path.is_absolute() && path.is_file());
        Self {
            roots: real(roots),
            configured: configured.and_then(|path| path.canonicalize().ok()),
            shims: real(shims),
        }
    }

    /// Whether the program may be run by this name: nobody but the user and root can have put it there. `given` is what the session may
    /// write.
    pub fn allows(&self, program: &Path, given: &[PathBuf]) -> bool {
        let Some((directory, real)) = places(program) else { return false };
        if given.iter().any(|given| real.starts_with(given) || directory.starts_with(given)) {
            return false;
        }
        let is_known = |path: &Path| self.roots.iter().any(|root| path.starts_with(root));
        let is_configured =
            self.configured.as_ref() == Some(&real) && (real.parent() == Some(&*directory) || is_known(&directory));
        (is_configured || is_known(&real) && is_known(&directory)) && is_ours(&real) && is_ours(&directory)
    }

    pub fn is_shim(&self, program: &Path) -> bool {
        places(program)
            .is_some_and(|(directory, real)| self.shims.contains(&directory) && is_ours(&directory) && is_ours(&real))
    }

    /// What of a `PATH` a shim may look through: it runs what it finds there. By names that lead nowhere else tomorrow.
    pub fn path(&self, path: &str) -> OsString {
        let of_system = ["/usr/bin", "/bin"].iter().map(PathBuf::from);
        let given = std::env::split_paths(path).filter_map(|directory| directory.canonicalize().ok());
        let is_trusted = |directory: &PathBuf| {
            let mut known = self.roots.iter().chain(&self.shims);
            known.any(|root| directory.starts_with(root)) && is_ours(directory)
        };
        // A name with a colon in it is none on a PATH.
        std::env::join_paths(given.filter(is_trusted).chain(of_system)).unwrap_or_else(|_| "/usr/bin:/bin".into())
    }
}

/// Where the name lies and where it leads, both without symlinks.
fn places(program: &Path) -> Option<(PathBuf, PathBuf)> {
    Some((program.parent()?.canonicalize().ok()?, program.canonicalize().ok()?))
}

fn is_ours(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::metadata(path).is_ok_and(|found| [0, own].contains(&found.uid()) && found.mode() & WRITABLE_BY_ALL == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn an_interpreter_is_trusted_by_where_it_is() {
        let base = std::env::temp_dir().canonicalize().unwrap().join(format!("pylair-trust-{}", std::process::id()));
        let program = |path: &str| {
            let path = base.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        };
        let (kept, projects, own) =
            (program("store/3.12/bin/python"), program("project/bin/python"), program("own/python"));
        let shim = program("shims/python");
        let trust = Trust::new(&[base.join("store"), base.join("nowhere")], &[base.join("shims")], own.to_str());
        assert!(trust.allows(&kept, &[]) && trust.allows(&own, &[]));
        assert!(!trust.allows(&projects, &[]) && !trust.allows(&base.join("store/absent"), &[]));
        assert!(trust.is_shim(&shim) && !trust.is_shim(&kept) && !trust.allows(&shim, &[]));
        let directories = ["store/3.12/bin", "project/bin", "shims"].map(|name| base.join(name));
        let [stored, projects_own, shims] = directories.each_ref().map(|path| path.to_str().unwrap());
        assert_eq!(
            trust.path(&format!("{projects_own}:{stored}:relative:{shims}:/absent")).to_str().unwrap(),
            format!("{stored}:{shims}:/usr/bin:/bin")
        );
        // What it is called decides which environment it takes itself for.
        let link = base.join("project/bin/python3");
        symlink(&kept, &link).unwrap();
        symlink(&projects, base.join("store/3.12/bin/python3")).unwrap();
        assert!(!trust.allows(&link, &[]) && !trust.allows(&base.join("store/3.12/bin/python3"), &[]));
        // A session that may write it may have written it.
        assert!(!trust.allows(&kept, &[base.join("store/3.12")]) && !trust.allows(&own, &[base.join("own")]));
        fs::set_permissions(&kept, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(!trust.allows(&kept, &[]), "anybody can have written it");
        fs::remove_dir_all(base).unwrap();
    }
}
