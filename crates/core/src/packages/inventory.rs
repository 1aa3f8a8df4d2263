//! What is installed, read from the metadata that installers leave in directories of packages. Blocking; called on a thread for that.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use pylair_os::regular;
use pylair_python::requirement::normalized;

const MAX_METADATA_BYTES: u64 = 64 << 10;
/// Of one directory. What builds packages may have filled it.
const MAX_PACKAGES: usize = 5000;
const MAX_WORD_CHARS: usize = 200;
const MAX_RECORD_BYTES: u64 = 16 << 20;

/// One installed package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledPackage {
    /// As the package itself writes it.
    pub name: String,
    pub version: String,
    /// Its `.dist-info` or `.egg-info`.
    metadata: PathBuf,
}

/// Packages by their normalized names.
pub type Inventory = BTreeMap<String, InstalledPackage>;

/// Everything in these directories; of two packages of one name the one in the earlier directory, as an import would find it.
pub fn take(directories: &[PathBuf]) -> Inventory {
    let mut inventory = Inventory::new();
    for directory in directories.iter().rev() {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        for found in entries.filter_map(|entry| read(&entry.path())).take(MAX_PACKAGES) {
            inventory.insert(normalized(&found.name), found);
        }
    }
    inventory
}

fn read(path: &Path) -> Option<InstalledPackage> {
    let file = match path.extension()?.to_str()? {
        "dist-info" => path.join("METADATA"),
        "egg-info" if path.is_dir() => path.join("PKG-INFO"),
        "egg-info" => path.to_owned(),
        _ => return None,
    };
    let (mut name, mut version) = (None, None);
    for line in BufReader::new(open_metadata(&file)?.take(MAX_METADATA_BYTES)).lines() {
        let line = line.ok()?;
        if let Some(value) = line.strip_prefix("Name:") {
            name = Some(value.trim().to_owned());
        } else if let Some(value) = line.strip_prefix("Version:") {
            version = Some(value.trim().to_owned());
        }
        // The headers end with an empty line; what follows is prose.
        if line.is_empty() || (name.is_some() && version.is_some()) {
            break;
        }
    }
    let (name, version) = (name.filter(|name| is_word(name))?, version.filter(|version| is_word(version))?);
    Some(InstalledPackage { name, version, metadata: path.to_owned() })
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= MAX_WORD_CHARS && !text.contains(char::is_control)
}

/// A file of metadata. Some installers put links to their cache there; a link to anything else was made by a package, which has
/// no say in what is read outside of its sandbox.
fn open_metadata(path: &Path) -> Option<File> {
    let real = path.canonicalize().ok()?;
    let own = path.components().rev().take(2);
    if !real.components().rev().take(2).eq(own) {
        return None;
    }
    regular::open_plain(&real).ok()
}

/// What is new or of another version.
pub fn changes(before: &Inventory, after: &Inventory) -> Vec<InstalledPackage> {
    let same =
        |name: &String, found: &InstalledPackage| before.get(name).is_some_and(|old| old.version == found.version);
    after.iter().filter(|(name, found)| !same(name, found)).map(|(_, found)| found.clone()).collect()
}

/// The top-level modules a package consists of.
pub fn modules(found: &InstalledPackage) -> BTreeSet<String> {
    let Some(record) = open_metadata(&found.metadata.join("RECORD")) else { return BTreeSet::new() };
    let lines = BufReader::new(record.take(MAX_RECORD_BYTES)).lines().map_while(Result::ok);
    lines.filter_map(|line| module_of(&line)).collect()
}

/// The module that a file in a RECORD belongs to.
fn module_of(line: &str) -> Option<String> {
    let path = line.trim_start_matches('"').split(',').next()?;
    let module = match path.split_once('/') {
        Some((top, _)) => top,
        None => path.strip_suffix(".py").or_else(|| path.strip_suffix(".so")?.split('.').next())?,
    };
    let is_name = !module.is_empty() && module.chars().all(|c| c.is_alphanumeric() || c == '_');
    (is_name && module != "__pycache__").then(|| module.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_package_points_to_elsewhere_is_not_read() {
        let base = std::env::temp_dir().join(format!("pylair-inventory-{}", std::process::id()));
        let (site, cache) = (base.join("site"), base.join("cache/cached.dist-info"));
        let package = |name: &str| {
            let metadata = site.join(format!("{name}.dist-info"));
            fs::create_dir_all(&metadata).unwrap();
            metadata.join("METADATA")
        };
        fs::create_dir_all(&cache).unwrap();
        fs::write(base.join("secret"), "Name: secret\nVersion: 1\n").unwrap();
        fs::write(cache.join("METADATA"), "Name: cached\nVersion: 1\n").unwrap();
        fs::write(package("plain"), "Name: plain\nVersion: 2\n").unwrap();
        fs::write(package("long"), format!("Name: {}\nVersion: 1\n", "n".repeat(300))).unwrap();
        fs::write(package("bell"), "Name: be\u{7}ll\nVersion: 1\n").unwrap();
        std::os::unix::fs::symlink(base.join("secret"), package("leak")).unwrap();
        std::os::unix::fs::symlink(cache.join("METADATA"), package("cached")).unwrap();
        let names: Vec<_> = take(&[site]).into_keys().collect();
        fs::remove_dir_all(base).unwrap();
        assert_eq!(names, ["cached", "plain"]);
    }

    #[test]
    fn files_of_a_record_lead_to_modules() {
        for (line, module) in [
            ("numpy/core/x.py,sha256=a,1", Some("numpy")),
            ("six.py,sha256=a,1", Some("six")),
            ("_cffi.cpython-312-x86_64-linux-gnu.so,sha256=a,1", Some("_cffi")),
            ("numpy-2.0.dist-info/RECORD,,", None),
            ("../../../bin/f2py,sha256=a,1", None),
            ("__pycache__/six.cpython-312.pyc,,", None),
            ("distutils-precedence.pth,sha256=a,1", None),
        ] {
            assert_eq!(module_of(line).as_deref(), module, "{line}");
        }
    }
}
