//! Who has a home on this machine: whose no sandbox is given, and which is our own.

use std::path::PathBuf;

use pylair_core::settings::User;

/// Of everybody for root: of people, since services have theirs anywhere.
pub(super) fn protected_homes() -> Vec<PathBuf> {
    homes(|owner, uid| owner == uid || uid == 0 && owner >= FIRST_OF_PEOPLE)
}

const FIRST_OF_PEOPLE: u32 = 1000;

/// Of the user we run as, whatever the environment says: a directory that is called so for a while is not meant.
pub(super) fn own_homes() -> Vec<PathBuf> {
    homes(|owner, uid| owner == uid)
}

/// Homes by who they belong to and who we are.
fn homes(counts: impl Fn(u32, u32) -> bool) -> Vec<PathBuf> {
    let uid = rustix::process::getuid().as_raw();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let home = |line: &str| {
        let fields: Vec<_> = line.split(':').collect();
        let owner: u32 = fields.get(2)?.parse().ok()?;
        counts(owner, uid).then(|| fields.get(5).map(PathBuf::from))?
    };
    passwd.lines().filter_map(home).collect()
}

/// Home directory and name of the user we run as, from the user database and not from whoever started us.
pub(super) fn own_user() -> User {
    let uid = rustix::process::getuid().as_raw();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.get(2).and_then(|field| field.parse().ok()) == Some(uid))
        .and_then(|fields| Some(User { home: (*fields.get(5)?).to_owned(), name: (*fields.first()?).to_owned() }))
        .unwrap_or_else(|| User { home: "/".to_owned(), name: uid.to_string() })
}
