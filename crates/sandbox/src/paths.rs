//! Which paths a session may be given: not those that would give it everything else too.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    Destination,
    addresses::{self, Inward},
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{}` is not an absolute path", path.display())]
    Relative { path: PathBuf },
    #[error("`{}` cannot be given to a session: {source}", path.display())]
    Missing { path: PathBuf, source: io::Error },
    #[error("`{}` cannot be given to a session: {why}", path.display())]
    Dangerous { path: PathBuf, why: &'static str },
    #[error("`{}` is neither a file nor a directory", path.display())]
    Special { path: PathBuf },
}

/// Nothing in them is for a session, and nothing above them.
const KERNELS: &[&str] = &["/dev", "/proc", "/run", "/sys", "/var/run"];

/// Whoever writes here is the administrator.
const SYSTEM: &[&str] = &[
    "/bin",
    "/boot",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix",
    "/opt",
    "/sbin",
    "/usr",
    "/var/lib",
    "/var/spool",
];

/// Where homes usually are, also those that no file of ours knows of.
const HOMES: &[&str] = &["/home", "/root"];

/// What of this machine is no session's business.
#[derive(Debug, Clone, Default)]
pub struct Protected {
    /// The daemon's own directories.
    pub own: Vec<PathBuf>,
    /// Those of the daemon's user, and of others where that is root: writing there is being that user, later.
    pub homes: Vec<PathBuf>,
    /// Where interpreters are that are run outside of a sandbox: whoever writes there chooses what is run.
    pub interpreters: Vec<PathBuf>,
    /// Where the daemon listens.
    pub door: Option<(String, u16)>,
}

impl Protected {
    /// The path without symlinks, if a session may be given it.
    pub fn check(&self, path: &Path, writable: bool) -> Result<PathBuf, Error> {
        if !path.is_absolute() {
            return Err(Error::Relative { path: path.to_owned() });
        }
        let real = path.canonicalize().map_err(|source| Error::Missing { path: path.to_owned(), source })?;
        let refuse = |why| Err(Error::Dangerous { path: path.to_owned(), why });
        if real.parent().is_none() {
            return refuse("it is everything");
        }
        let meets = |other: &Path| real.starts_with(other) || other.starts_with(&real);
        if KERNELS.iter().any(|other| meets(Path::new(other))) {
            return refuse("it leads to devices, processes or the sockets of services");
        }
        let own = self.own.iter().map(|own| own.canonicalize().unwrap_or_else(|_| own.clone()));
        if own.into_iter().any(|own| meets(&own)) {
            return refuse("pylair's own files are there, or below it");
        }
        let metadata = real.symlink_metadata().map_err(|source| Error::Missing { path: path.to_owned(), source })?;
        if !metadata.is_dir() && !metadata.is_file() {
            return Err(Error::Special { path: path.to_owned() });
        }
        if !writable {
            return Ok(real);
        }
        if SYSTEM.iter().any(|system| meets(Path::new(system))) {
            return refuse("whoever writes there is the administrator");
        }
        let interpreters = self.interpreters.iter().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone()));
        if interpreters.into_iter().any(|interpreters| meets(&interpreters)) {
            return refuse("interpreters are kept there that pylair runs outside of sandboxes");
        }
        let homes =
            self.homes.iter().filter_map(|home| home.canonicalize().ok()).filter(|home| home.parent().is_some());
        if HOMES.iter().any(|homes| Path::new(homes).starts_with(&real))
            || homes.into_iter().any(|home| home.starts_with(&real))
        {
            return refuse("whoever writes in a home directory becomes its user; give a directory below it");
        }
        Ok(real)
    }

    pub fn is_own_door(&self, destination: &Destination) -> bool {
        // Where the kernel does not list them, every address may be one of this machine's.
        let is_of_this_machine =
            |address| addresses::own().map_or(true, |own| addresses::inward(address, &own) == Some(Inward::Machine));
        let is_here = destination.host == "localhost" || destination.host.parse().is_ok_and(is_of_this_machine);
        self.door.as_ref().is_some_and(|(host, port)| {
            destination.port == *port && (is_here || destination.host == host.to_ascii_lowercase())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_everything_is_not_given() {
        let base = std::env::temp_dir().canonicalize().unwrap().join(format!("pylair-paths-{}", std::process::id()));
        std::fs::create_dir_all(base.join("home/project")).unwrap();
        std::fs::create_dir_all(base.join("data/workspaces")).unwrap();
        std::fs::create_dir_all(base.join("other")).unwrap();
        std::os::unix::fs::symlink(base.join("data"), base.join("home/innocent")).unwrap();
        let protected = Protected {
            own: vec![base.join("data")],
            homes: vec![base.join("home"), base.join("other")],
            interpreters: vec![base.join("home/.pyenv/versions")],
            door: Some(("127.0.0.1".into(), 7420)),
        };
        let project = base.join("home/project");
        assert_eq!(protected.check(&project, true).unwrap(), project);
        assert!(protected.check(&base.join("home"), false).is_ok());
        for (path, writable) in [
            ("/", false),
            ("/proc/self", false),
            ("/run", false),
            ("relative", false),
            ("/dev/null", false),
            ("/usr/lib", true),
            ("/var", true),
            ("/etc", true),
            ("/home", true),
            ("/root", true),
        ] {
            assert!(protected.check(Path::new(path), writable).is_err(), "{path}");
        }
        assert!(protected.check(&base, false).is_err(), "above our own");
        for below in ["data", "data/workspaces", "home/innocent", "home/innocent/workspaces"] {
            assert!(protected.check(&base.join(below), false).is_err(), "{below}");
        }
        assert!(protected.check(&base.join("home"), true).is_err(), "a home");
        for below in ["home/.pyenv", "home/.pyenv/versions/3.12/bin"] {
            std::fs::create_dir_all(base.join(below)).unwrap();
            assert!(protected.check(&base.join(below), true).is_err(), "{below}");
            assert!(protected.check(&base.join(below), false).is_ok(), "{below}");
        }
        assert!(protected.check(&base.join("other"), true).is_err(), "somebody else's home");
        std::fs::remove_dir_all(base).unwrap();
        for (entry, own) in [
            ("localhost:7420", true),
            ("[::1]:7420", true),
            ("[::ffff:127.0.0.1]:7420", true),
            ("127.0.0.2:7420", true),
            ("0.0.0.0:7420", true),
            ("[64:ff9b::7f00:1]:7420", true),
            ("localhost:80", false),
        ] {
            assert_eq!(protected.is_own_door(&entry.parse().unwrap()), own, "{entry}");
        }
    }
}
