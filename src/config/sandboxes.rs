//! What of this machine no sandbox is given, told from where pylair keeps its things and who has a home.

use std::path::PathBuf;

use super::Places;
use crate::sandbox::paths::Protected;

pub(super) fn protected(places: &Places, host: &str, port: u16) -> Protected {
    Protected {
        own: [&places.runtime, &places.state, &places.data, &places.config].into_iter().cloned().collect(),
        homes: homes(),
        door: Some((host.to_owned(), port)),
    }
}

/// Of the user we run as, and of everybody if that is root: of people, since services have theirs anywhere.
fn homes() -> Vec<PathBuf> {
    const FIRST_OF_PEOPLE: u32 = 1000;
    let uid = rustix::process::getuid().as_raw();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let home = |line: &str| {
        let fields: Vec<_> = line.split(':').collect();
        let owner: u32 = fields.get(2)?.parse().ok()?;
        let counts = owner == uid || uid == 0 && owner >= FIRST_OF_PEOPLE;
        counts.then(|| fields.get(5).map(PathBuf::from))?
    };
    passwd.lines().filter_map(home).collect()
}
