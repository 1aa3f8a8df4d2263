//! What of this machine no sandbox is given, told from where pylair keeps its things and who has a home.

use std::path::PathBuf;

use super::{InterpreterPlaces, Places};
use crate::sandbox::paths::Protected;

pub(super) fn protected(places: &Places, host: &str, port: u16, interpreters: &InterpreterPlaces) -> Protected {
    Protected {
        own: [&places.runtime, &places.state, &places.data, &places.config].into_iter().cloned().collect(),
        // Of everybody for root: of people, since services have theirs anywhere.
        homes: homes(|owner, uid| owner == uid || uid == 0 && owner >= FIRST_OF_PEOPLE),
        interpreters: interpreters.roots.iter().chain(&interpreters.shims).cloned().collect(),
        door: Some((host.to_owned(), port)),
    }
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
