//! The tokens of the HTTP door on disk, made and taken back by `pylair token`.
//!
//! `data/token` is the owner's own, in plain so that its owner can read it, with every right. `data/tokens.json` holds the others: who
//! they speak for, what they may do, and only a hash of each, since a token of 256 random bits needs no slower one. Both are of mode
//! 0600; a file that somebody else could have read or written is not believed. A running daemon sees changes by itself (`visitors`).

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    str::FromStr,
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use pylair_core::{
    caller::{Scope, own_owner},
    settings::Places,
};
use pylair_os::regular;
use pylair_text::hash::{hex, sha256};

/// What the owner's own token is called among the others.
pub const OWN: &str = "own";
/// So that a token of which only a hash is kept is known as one wherever it turns up.
pub const PREFIX: &str = "pylair_";
const MAX_FILE_BYTES: u64 = 1 << 20;
const MAX_TOKENS: usize = 500;
const MAX_NAME_CHARS: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot use `{path}`")]
    File { path: String, source: io::Error },
    #[error("the file `{path}` could have been read or written by somebody else")]
    NotPrivate { path: String },
    #[error("the file `{path}` is not a list of tokens: {message}")]
    Invalid { path: String, message: String },
    #[error("there is a token called `{0}` already")]
    Taken(String),
    #[error("there is no token called `{0}`")]
    Unknown(String),
    #[error("`{0}` cannot be the name of a token or an owner")]
    BadName(String),
    #[error("`{0}` is not a length of time")]
    BadTime(String),
    #[error("there are {MAX_TOKENS} tokens, which is the limit")]
    TooMany,
}

impl Error {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::File { .. } => "see the permissions of the data directory",
            Self::NotPrivate { .. } => "its tokens can no longer be trusted: remove the file and make new tokens",
            Self::Invalid { .. } => "repair the file, or remove it and make new tokens",
            Self::Taken(_) => "choose another name, or revoke that one first",
            Self::Unknown(_) => "`pylair token list` shows them; the owner's own is changed with `pylair token rotate`",
            Self::BadName(_) => "1 to 64 letters, digits, `-`, `_` or `.`, starting with a letter or digit",
            Self::BadTime(_) => "such as 90s, 30m, 12h or 30d",
            Self::TooMany => "revoke unused ones: `pylair token list` shows when each was last used",
        }
    }
}

/// A token as it is kept: everything but itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub name: String,
    pub owner: String,
    pub scopes: Vec<Scope>,
    /// Of the whole token, in hexadecimal.
    pub sha256: String,
    pub created: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
}

impl Kept {
    pub fn is_over(&self) -> bool {
        self.expires.is_some_and(|expires| expires <= Timestamp::now())
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct List {
    version: u32,
    tokens: Vec<Kept>,
}

const VERSION: u32 = 1;

/// The owner's own token, made if there is none. A file that others can read is not trusted and replaced.
pub fn load_or_create(path: &Path) -> Result<String, Error> {
    match load_own(path) {
        Ok(Some(token)) => Ok(token),
        Ok(None) | Err(Error::NotPrivate { .. }) => rotate(path),
        Err(error) => Err(error),
    }
}

/// The owner's own token as it is now.
pub fn load_own(path: &Path) -> Result<Option<String>, Error> {
    let Some(text) = read_private(path)? else { return Ok(None) };
    Ok(Some(text.trim().to_owned()).filter(|token| token.len() >= 32))
}

/// Puts a new token of the owner's own in place of the old one, which is of no use from then on.
pub fn rotate(path: &Path) -> Result<String, Error> {
    let token = random_digits()?;
    replace(path, format!("{token}\n").as_bytes())?;
    Ok(token)
}

/// All tokens but the owner's own.
pub fn load(path: &Path) -> Result<Vec<Kept>, Error> {
    let Some(text) = read_private(path)? else { return Ok(Vec::new()) };
    let invalid = |message: String| Error::Invalid { path: path.display().to_string(), message };
    let list: List = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    if list.version != VERSION {
        return Err(invalid(format!("its version is {}, this pylair knows {VERSION}", list.version)));
    }
    Ok(list.tokens)
}

/// What a new token is to be.
#[derive(Debug)]
pub struct Wanted<'a> {
    pub name: &'a str,
    pub owner: &'a str,
    pub scopes: &'a [Scope],
    pub lasts: Option<Duration>,
}

/// Makes a token. It is returned once and kept nowhere.
pub fn add(places: &Places, wanted: &Wanted) -> Result<String, Error> {
    for name in [wanted.name, wanted.owner] {
        if !is_name(name) {
            return Err(Error::BadName(name.to_owned()));
        }
    }
    let token = format!("{PREFIX}{}", random_digits()?);
    let now = Timestamp::now();
    let lasts = wanted.lasts.map(|lasts| now.checked_add(lasts).map_err(|_| Error::BadTime(format!("{lasts:?}"))));
    let kept = Kept {
        name: wanted.name.to_owned(),
        owner: wanted.owner.to_owned(),
        scopes: wanted.scopes.to_vec(),
        sha256: hex(&sha256(token.as_bytes())),
        created: now,
        expires: lasts.transpose()?,
    };
    change(places, |tokens| {
        if wanted.name == OWN || tokens.iter().any(|known| known.name == wanted.name) {
            return Err(Error::Taken(wanted.name.to_owned()));
        }
        if tokens.len() >= MAX_TOKENS {
            return Err(Error::TooMany);
        }
        tokens.push(kept);
        Ok(())
    })?;
    Ok(token)
}

/// Takes a token back.
pub fn revoke(places: &Places, name: &str) -> Result<(), Error> {
    change(places, |tokens| {
        let before = tokens.len();
        tokens.retain(|known| known.name != name);
        if tokens.len() == before { Err(Error::Unknown(name.to_owned())) } else { Ok(()) }
    })
}

/// One at a time: two commands must not lose each other's change.
fn change(places: &Places, change: impl FnOnce(&mut Vec<Kept>) -> Result<(), Error>) -> Result<(), Error> {
    let path = places.tokens();
    let lock_path = path.with_extension("lock");
    let failed = |source| Error::File { path: lock_path.display().to_string(), source };
    let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&lock_path);
    let lock = lock.map_err(failed)?;
    lock.lock().map_err(failed)?;
    let mut tokens = load(&path)?;
    change(&mut tokens)?;
    let text = serde_json::to_vec_pretty(&List { version: VERSION, tokens }).unwrap_or_default();
    replace(&path, &text)
}

/// A file that only its owner, who is us, can have read or written.
fn read_private(path: &Path) -> Result<Option<String>, Error> {
    let failed = |source| Error::File { path: path.display().to_string(), source };
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let is_ours = metadata.mode().trailing_zeros() >= 6 && metadata.uid() == rustix::process::getuid().as_raw();
    if !metadata.is_file() || !is_ours {
        return Err(Error::NotPrivate { path: path.display().to_string() });
    }
    regular::read(path, MAX_FILE_BYTES).map(Some).map_err(failed)
}

/// As a whole or not at all, and on disk.
fn replace(path: &Path, text: &[u8]) -> Result<(), Error> {
    let failed = |source| Error::File { path: path.display().to_string(), source };
    regular::replace(path, |file| file.write_all(text).and_then(|()| file.sync_all())).map_err(failed)?;
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all()).map_err(failed)
}

fn random_digits() -> Result<String, Error> {
    pylair_os::random::try_digits(32).map_err(|source| Error::File { path: "/dev/urandom".to_owned(), source })
}

/// The owner a person means: `me` is whoever runs the daemon.
pub fn owner_named(owner: &str) -> String {
    if owner == "me" { own_owner() } else { owner.to_owned() }
}

fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME_CHARS
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// A length of time as people write it: a number with `s`, `m`, `h` or `d`.
pub fn parse_time(text: &str) -> Result<Duration, Error> {
    let bad = || Error::BadTime(text.to_owned());
    let unit = text.chars().last().ok_or_else(bad)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return Err(bad()),
    };
    let number = u64::from_str(&text[..text.len() - unit.len_utf8()]).map_err(|_| bad())?;
    // A hundred years are enough, and fit a timestamp.
    let length = number.checked_mul(seconds).filter(|seconds| *seconds <= 100 * 366 * 24 * 3600).ok_or_else(bad)?;
    Ok(Duration::from_secs(length))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, os::unix::fs::PermissionsExt};

    use super::*;

    fn places(name: &str) -> Places {
        let dir = std::env::temp_dir().join(format!("pylair-tokens-{name}-{}", std::process::id()));
        let _absent = fs::remove_dir_all(&dir);
        let env = BTreeMap::from([("PYLAIR_HOME".to_owned(), dir.display().to_string())]);
        let places = Places::resolve(&env, 0);
        places.create().unwrap();
        places
    }

    #[test]
    fn a_token_stays_until_somebody_else_could_read_it() {
        let places = places("own");
        let path = places.token();
        let first = load_or_create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(load_or_create(&path).unwrap(), first);
        let rotated = rotate(&path).unwrap();
        assert_eq!(load_or_create(&path).unwrap(), rotated);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(load_own(&path), Err(Error::NotPrivate { .. })));
        let third = load_or_create(&path).unwrap();
        assert!(third != first && third != rotated && rotated != first);
        fs::remove_dir_all(places.data.parent().unwrap()).unwrap();
    }

    #[test]
    fn further_tokens_are_kept_as_hashes_and_taken_back_by_name() {
        let places = places("more");
        let wanted = |name| Wanted { name, owner: "alice", scopes: &[Scope::Run], lasts: None };
        let token = add(&places, &wanted("ci")).unwrap();
        let text = fs::read_to_string(places.tokens()).unwrap();
        assert!(!text.contains(&token) && !text.contains(token.strip_prefix(PREFIX).unwrap()), "{text}");
        assert_eq!(fs::metadata(places.tokens()).unwrap().mode() & 0o777, 0o600);
        assert_eq!(load(&places.tokens()).unwrap()[0].sha256, hex(&sha256(token.as_bytes())));
        assert!(matches!(add(&places, &wanted("ci")), Err(Error::Taken(_))));
        assert!(matches!(add(&places, &wanted(OWN)), Err(Error::Taken(_))));
        assert!(matches!(add(&places, &wanted("../x")), Err(Error::BadName(_))));
        assert!(matches!(revoke(&places, "other"), Err(Error::Unknown(_))));
        revoke(&places, "ci").unwrap();
        assert_eq!(load(&places.tokens()).unwrap(), []);
        fs::remove_dir_all(places.data.parent().unwrap()).unwrap();
    }

    #[test]
    fn times_are_a_number_and_a_unit() {
        assert_eq!(parse_time("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(parse_time("30d").unwrap(), Duration::from_hours(720));
        for bad in ["", "d", "30", "-1d", "1w", "99999999999999999999d", "999999999d", "1é"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
