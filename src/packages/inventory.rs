//! What is installed, read from the metadata that installers leave in directories of packages. Blocking; called on a thread for that.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use super::requirement::normalized;
use crate::regular;

const MAX_METADATA_BYTES: u64 = 64 << 10;
const MAX_RECORD_BYTES: u64 = 16 << 20;

/// One installed package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// As the package itself writes it.
    pub name: String,
    pub version: String,
    /// Its `.dist-info` or `.egg-info`.
    metadata: PathBuf,
}

/// Packages by their normalized names.
pub type Inventory = BTreeMap<String, Found>;

/// Everything in these directories; of two packages of one name the one in the earlier directory, as an import would find it.
pub fn take(directories: &[PathBuf]) -> Inventory {
    let mut inventory = Inventory::new();
    for directory in directories.iter().rev() {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        for found in entries.filter_map(|entry| read(&entry.path())) {
            inventory.insert(normalized(&found.name), found);
        }
    }
    inventory
}

fn read(path: &Path) -> Option<Found> {
    let file = match path.extension()?.to_str()? {
        "dist-info" => path.join("METADATA"),
        "egg-info" if path.is_dir() => path.join("PKG-INFO"),
        "egg-info" => path.to_owned(),
        _ => return None,
    };
    let (mut name, mut version) = (None, None);
    for line in BufReader::new(regular::open(&file).ok()?.take(MAX_METADATA_BYTES)).lines() {
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
    Some(Found { name: name?, version: version?, metadata: path.to_owned() })
}

/// What is new or of another version.
pub fn changes(before: &Inventory, after: &Inventory) -> Vec<Found> {
    let same = |name: &String, found: &Found| before.get(name).is_some_and(|old| old.version == found.version);
    after.iter().filter(|(name, found)| !same(name, found)).map(|(_, found)| found.clone()).collect()
}

/// The top-level modules a package consists of.
pub fn modules(found: &Found) -> BTreeSet<String> {
    let Ok(record) = regular::open(&found.metadata.join("RECORD")) else { return BTreeSet::new() };
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
