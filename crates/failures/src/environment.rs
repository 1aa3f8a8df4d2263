//! The packages that were installed where a run was made, and what differs between two runs. Kept by `store`, read by `status` and `explain`.

use std::{collections::BTreeMap, fmt};

use pylair_text::hash::{hex, sha256};

/// Versions of distributions, by their normalized names (`typing-extensions`).
pub type Packages = BTreeMap<String, String>;

/// One distribution that is not the same in two runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageChange {
    pub name: String,
    pub before: Option<String>,
    pub after: Option<String>,
}

impl fmt::Display for PackageChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => write!(f, "{} {before} → {after}", self.name),
            (None, Some(after)) => write!(f, "{} {after} installed", self.name),
            (Some(before), None) => write!(f, "{} {before} removed", self.name),
            (None, None) => f.write_str(&self.name),
        }
    }
}

/// Names a set of packages; None when the run did not say what was installed.
pub(crate) fn hash(packages: &Packages) -> Option<String> {
    if packages.is_empty() {
        return None;
    }
    let mut text = String::new();
    for (name, version) in packages {
        text.extend([name, "\0", version, "\0"]);
    }
    Some(hex(&sha256(text.as_bytes())[..16]))
}

/// What differs between two runs, by name.
pub fn changes(before: &Packages, after: &Packages) -> Vec<PackageChange> {
    let gone_or_changed = before.iter().filter(|(name, version)| after.get(*name) != Some(*version));
    let new = after.iter().filter(|(name, _)| !before.contains_key(*name));
    let mut names: Vec<&String> = gone_or_changed.chain(new).map(|(name, _)| name).collect();
    names.sort();
    let change = |name: &String| PackageChange {
        name: name.clone(),
        before: before.get(name).cloned(),
        after: after.get(name).cloned(),
    };
    names.into_iter().map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages(listed: &[(&str, &str)]) -> Packages {
        listed.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect()
    }

    #[test]
    fn what_differs_between_two_runs() {
        let before = packages(&[("attrs", "23.1"), ("simplejson", "3.19.1"), ("toml", "0.10")]);
        let after = packages(&[("attrs", "23.1"), ("iniconfig", "2.0"), ("simplejson", "3.19.3")]);
        let said: Vec<String> = changes(&before, &after).iter().map(ToString::to_string).collect();
        assert_eq!(said, ["iniconfig 2.0 installed", "simplejson 3.19.1 → 3.19.3", "toml 0.10 removed"]);
        assert!(changes(&before, &before).is_empty());
        assert_ne!(hash(&before), hash(&after));
        assert_eq!(hash(&before), hash(&before.clone()));
        assert_eq!(hash(&Packages::new()), None, "a run that says nothing has no known environment");
    }
}
