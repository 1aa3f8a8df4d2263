//! A virtual environment as its files describe it. Nothing in it is run: whoever made it may have put anything there.

use std::path::{Path, PathBuf};

use super::Interpreter;
use pylair_os::regular;

const MAX_BYTES: u64 = 64 << 10;

/// What `pyvenv.cfg` says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Venv {
    pub prefix: PathBuf,
    /// Where that led when its file was read.
    real: PathBuf,
    /// The directory of the interpreter it was made with.
    pub home: PathBuf,
    /// As written; virtualenv, venv and uv call it differently.
    version: Option<String>,
    sees_system: bool,
}

impl Venv {
    /// The environment that an interpreter of this name takes itself for. Blocks.
    pub fn of(python: &Path) -> Option<Self> {
        let directory = python.parent()?;
        Self::read(directory).or_else(|| Self::read(directory.parent()?))
    }

    fn read(prefix: &Path) -> Option<Self> {
        let real = prefix.canonicalize().ok()?;
        let text = regular::read(&real.join("pyvenv.cfg"), MAX_BYTES).ok()?;
        Self::parse(prefix.to_owned(), real, &text)
    }

    fn parse(prefix: PathBuf, real: PathBuf, text: &str) -> Option<Self> {
        let value = |wanted: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            lines.find(|(key, _)| key.trim().eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim().to_owned())
        };
        let home = PathBuf::from(value("home")?);
        let version = value("version").or_else(|| value("version_info"));
        let sees_system = value("include-system-site-packages").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        home.is_absolute().then_some(Self { prefix, real, home, version, sees_system })
    }

    /// Where the interpreter that it was made with may be, the likeliest first.
    pub fn bases(&self) -> Vec<PathBuf> {
        let minor = self.version.as_deref().and_then(minor);
        let named = minor.map(|minor| format!("python{minor}"));
        named.into_iter().chain(["python3".to_owned(), "python".to_owned()]).map(|name| self.home.join(name)).collect()
    }

    /// Whether a path that is written below the prefix is there: a link in it could lead to anybody's files, and what an interpreter
    /// needs is shown to its sessions.
    pub fn has(&self, path: &Path) -> bool {
        path.canonicalize().is_ok_and(|path| path.starts_with(&self.real))
    }

    /// What an interpreter of this name would say of itself, if it is what it was made to be. None if its packages are for another version.
    pub fn interpreter(&self, python: &Path, base: &Interpreter) -> Option<Interpreter> {
        let is_other = |version: &str| minor(version).is_some_and(|minor| Some(minor) != self::minor(&base.version));
        if base.is_venv() || base.implementation != "cpython" || self.version.as_deref().is_some_and(is_other) {
            return None;
        }
        let library = base.library_name()?;
        let own = ["lib", "lib64"].map(|lib| self.prefix.join(lib).join(&library).join("site-packages"));
        let mut site_packages: Vec<_> = own.into_iter().filter(|path| self.has(path)).collect();
        // On most systems `lib64` is a link to `lib`.
        site_packages.truncate(if self.prefix.join("lib64").is_symlink() { 1 } else { 2 });
        if self.sees_system {
            site_packages.extend(base.site_packages.iter().cloned());
        }
        let of_base = base.directories().into_iter().filter_map(|path| path.canonicalize().ok());
        let within = std::iter::once(self.real.clone()).chain(of_base).collect();
        Some(Interpreter {
            within,
            executable: python.to_owned(),
            version: base.version.clone(),
            implementation: base.implementation.clone(),
            prefix: self.prefix.clone(),
            base_prefix: base.base_prefix.clone(),
            base_executable: base.executable.clone(),
            exec_prefix: self.prefix.clone(),
            base_exec_prefix: base.base_exec_prefix.clone(),
            site_packages,
        })
    }
}

/// `3.12` of `3.12.4` and of `3.12.4.final.0`.
fn minor(version: &str) -> Option<String> {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next()?, parts.next()?);
    [major, minor].iter().all(|part| part.parse::<u32>().is_ok()).then(|| format!("{major}.{minor}"))
}

impl Interpreter {
    /// What its directory in `lib` is called: `python3.12`, or `python3.13t` for a build without the GIL.
    fn library_name(&self) -> Option<String> {
        let plain = format!("python{}", minor(&self.version)?);
        let names = self.site_packages.iter().filter_map(|path| path.parent()?.file_name()?.to_str());
        let is_it = |name: &&str| name.strip_prefix(&*plain).is_some_and(|rest| rest.is_empty() || rest == "t");
        Some(names.into_iter().find(is_it).map_or(plain.clone(), str::to_owned))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn base(version: &str, library: &str) -> Interpreter {
        let prefix = PathBuf::from("/opt/python");
        Interpreter {
            executable: "/opt/python/bin/python3".into(),
            version: version.into(),
            implementation: "cpython".into(),
            prefix: prefix.clone(),
            base_prefix: prefix.clone(),
            base_executable: "/opt/python/bin/python3".into(),
            exec_prefix: prefix.clone(),
            base_exec_prefix: prefix.clone(),
            site_packages: vec![prefix.join("lib").join(library).join("site-packages")],
            within: Vec::new(),
        }
    }

    #[test]
    fn an_environment_is_told_from_its_files() {
        let prefix = std::env::temp_dir().canonicalize().unwrap().join(format!("pylair-venv-{}", std::process::id()));
        let own = prefix.join("lib/python3.13t/site-packages");
        std::fs::create_dir_all(&own).unwrap();
        symlink("lib", prefix.join("lib64")).unwrap();
        let python = prefix.join("bin/python");
        let text = "home = /opt/python/bin\ninclude-system-site-packages = true\nversion_info = 3.13.1.final.0\n";
        std::fs::write(prefix.join("pyvenv.cfg"), text).unwrap();
        let venv = Venv::of(&python).unwrap();
        assert_eq!(venv.bases()[0], Path::new("/opt/python/bin/python3.13"));
        let found = venv.interpreter(&python, &base("3.13.1", "python3.13t")).unwrap();
        assert!(found.is_venv() && found.executable == python && found.version == "3.13.1");
        let systems = PathBuf::from("/opt/python/lib/python3.13t/site-packages");
        assert_eq!(found.site_packages, [own.clone(), systems.clone()]);
        assert_eq!(venv.interpreter(&python, &base("3.12.1", "python3.12")), None, "made for another version");
        let pypy = Interpreter { implementation: "pypy".into(), ..base("3.13.1", "pypy3.13") };
        assert_eq!(venv.interpreter(&python, &pypy), None);
        // What a project has its environment point to is not shown to anybody.
        std::fs::remove_dir(&own).unwrap();
        symlink("/etc", &own).unwrap();
        assert_eq!(venv.interpreter(&python, &base("3.13.1", "python3.13t")).unwrap().site_packages, [systems]);
        std::fs::remove_dir_all(&prefix).unwrap();
        for text in ["home = bin\n", "version = 3.13\n"] {
            assert_eq!(Venv::parse("/p".into(), "/p".into(), text), None);
        }
    }
}
