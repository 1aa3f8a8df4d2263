//! What may be asked to be installed: names with versions, as PEP 508 writes them. Nothing that an installer could take for an option, a
//! path or an address.

use std::borrow::Cow;

use super::marker;

/// At most so many at once.
pub const MAX_REQUIREMENTS: usize = 50;
const MAX_CHARS: usize = 300;
const OPERATORS: [&str; 8] = ["===", "==", "~=", "!=", "<=", ">=", "<", ">"];
/// pip takes a name that ends like this for a file, if there is one.
const ARCHIVES: [&str; 13] =
    [".whl", ".zip", ".egg", ".tar", ".gz", ".tgz", ".bz2", ".tbz", ".xz", ".txz", ".lz", ".tlz", ".lzma"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// As one argument of an installer.
    pub text: String,
    /// As indexes compare names.
    pub name: String,
}

/// What is wrong with a requirement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` cannot be installed: {reason}")]
pub struct Bad {
    pub text: String,
    pub reason: Cow<'static, str>,
}

impl Requirement {
    pub fn parse(text: &str) -> Result<Self, Bad> {
        let shown: String = text.chars().take(80).collect();
        let bad = |reason: &'static str| Bad { text: shown.clone(), reason: reason.into() };
        let text = text.trim();
        if text.is_empty() {
            return Err(bad("it is empty"));
        }
        if text.chars().count() > MAX_CHARS {
            return Err(bad("it is longer than 300 characters"));
        }
        if text.starts_with('-') {
            return Err(bad("options are not passed on, only names and versions"));
        }
        if text.chars().any(char::is_control) {
            return Err(bad("it contains a control character"));
        }
        let (wanted, marker) = match text.split_once(';') {
            Some((wanted, marker)) => (wanted.trim_end(), Some(marker.trim())),
            None => (text, None),
        };
        if wanted.contains('@') || wanted.contains("://") {
            return Err(bad("addresses are not installed from, only names that an index knows"));
        }
        if wanted.contains(['/', '\\']) || wanted.starts_with(['.', '~']) {
            return Err(bad("paths are not installed from, only names that an index knows"));
        }
        if ARCHIVES.iter().any(|ending| wanted.to_ascii_lowercase().ends_with(ending)) {
            return Err(bad("files are not installed from, only names that an index knows"));
        }
        let end = wanted.find(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c))).unwrap_or(wanted.len());
        let (name, rest) = wanted.split_at(end);
        if !name.starts_with(|c: char| c.is_ascii_alphanumeric())
            || !name.ends_with(|c: char| c.is_ascii_alphanumeric())
        {
            return Err(bad("a name has letters and digits, with `-`, `_` or `.` between them"));
        }
        if ARCHIVES.iter().any(|ending| name.to_ascii_lowercase().ends_with(ending)) {
            return Err(bad("files are not installed from, only names that an index knows"));
        }
        let rest = after_extras(rest.trim_start()).ok_or_else(|| bad("its extras are not `[name,name]`"))?;
        if !are_versions(rest.trim()) {
            return Err(bad("behind the name there may be versions such as `>=1.2,<2`"));
        }
        if let Some(marker) = marker {
            marker::check(marker).map_err(|fault| Bad {
                text: shown.clone(),
                reason: format!(
                    "behind the `;` there may be a marker such as `python_version < \"3.12\"`, but {fault}"
                )
                .into(),
            })?;
        }
        Ok(Self { text: text.to_owned(), name: normalized(name) })
    }

    /// All of them, or what is wrong with the first that cannot be.
    pub fn parse_all(texts: &[String]) -> Result<Vec<Self>, Bad> {
        if texts.is_empty() {
            return Err(Bad { text: String::new(), reason: "no package was named".into() });
        }
        if texts.len() > MAX_REQUIREMENTS {
            let text = format!("{} packages", texts.len());
            return Err(Bad { text, reason: "at most 50 are installed at once".into() });
        }
        texts.iter().map(|text| Self::parse(text)).collect()
    }
}

/// A name as PEP 503 compares it.
pub fn normalized(name: &str) -> String {
    let mut normal = String::with_capacity(name.len());
    for c in name.chars() {
        if !"-_.".contains(c) {
            normal.push(c.to_ascii_lowercase());
        } else if !normal.ends_with('-') {
            normal.push('-');
        }
    }
    normal
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

fn after_extras(rest: &str) -> Option<&str> {
    let Some(inside) = rest.strip_prefix('[') else { return Some(rest) };
    let (extras, rest) = inside.split_once(']')?;
    let good = extras.trim().is_empty() || extras.split(',').all(|extra| is_identifier(extra.trim()));
    good.then_some(rest)
}

fn are_versions(text: &str) -> bool {
    if text.is_empty() {
        return true;
    }
    let text = match text.strip_prefix('(') {
        Some(inside) => match inside.strip_suffix(')') {
            Some(inside) => inside,
            None => return false,
        },
        None => text,
    };
    text.split(',').all(|part| {
        let part = part.trim();
        let version = OPERATORS.iter().find_map(|operator| part.strip_prefix(operator));
        version.is_some_and(|version| {
            let version = version.trim_start();
            version.starts_with(|c: char| c.is_ascii_alphanumeric())
                && version.chars().all(|c| c.is_ascii_alphanumeric() || "._-+*!".contains(c))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_versions_extras_and_markers_are_taken() {
        for (text, name) in [
            ("numpy", "numpy"),
            (" Zope.Interface ", "zope-interface"),
            ("A", "a"),
            ("requests[socks, use-chardet] >=2.8.1, ==2.8.*", "requests"),
            ("ruamel__yaml (~=0.18)", "ruamel-yaml"),
            ("torch===2.4.0+cpu", "torch"),
            ("x!=1!2.0rc1", "x"),
            ("tomli>=1.1.0 ; python_version < \"3.11\" and (os_name == 'posix')", "tomli"),
            ("backports.zoneinfo", "backports-zoneinfo"),
        ] {
            let parsed = Requirement::parse(text).unwrap_or_else(|bad| panic!("{bad}"));
            assert_eq!((parsed.name.as_str(), parsed.text.as_str()), (name, text.trim()));
        }
    }

    #[test]
    fn options_paths_addresses_and_nonsense_are_refused() {
        for (text, reason) in [
            ("--index-url=http://x", "options"),
            ("-rrequirements.txt", "options"),
            ("  -e .", "options"),
            (".", "paths"),
            ("./numpy", "paths"),
            ("~/numpy", "paths"),
            ("wheels/numpy", "paths"),
            ("numpy @ https://example.org/numpy.whl", "addresses"),
            ("git+https://example.org/x", "addresses"),
            ("numpy@1.2", "addresses"),
            ("numpy-2.0-py3-none-any.whl", "files"),
            ("evil.zip", "files"),
            ("evil.tar.gz[extra]", "files"),
            ("evil==1.0.tar.gz", "files"),
            ("", "empty"),
            ("numpy -e .", "behind the name"),
            ("numpy --pre", "behind the name"),
            ("numpy pandas", "behind the name"),
            ("numpy==", "behind the name"),
            ("numpy=1.2", "behind the name"),
            ("numpy==--pre", "behind the name"),
            ("numpy>=1,", "behind the name"),
            ("numpy(>=1", "behind the name"),
            ("numpy[", "extras"),
            ("numpy[-x]", "extras"),
            ("numpy; --pre", "marker"),
            ("numpy; os_name == 'a", "marker"),
            ("numpy; os_name == `id`", "marker"),
            ("numpy; rm", "there is no variable `rm`"),
            ("numpy;", "marker"),
            ("numpy\n--pre", "control"),
            ("numpy\0", "control"),
            ("_numpy", "letters and digits"),
            ("numpy-", "letters and digits"),
            ("nümpy", "letters and digits|behind the name"),
            ("$(id)", "letters and digits"),
        ] {
            let bad = Requirement::parse(text).expect_err(text);
            assert!(reason.split('|').any(|reason| bad.reason.contains(reason)), "{text}: {bad}");
        }
        assert!(Requirement::parse(&"x".repeat(301)).is_err());
        assert!(Requirement::parse_all(&vec!["x".to_owned(); 51]).is_err());
        assert!(Requirement::parse_all(&[]).is_err());
    }
}
