//! Which project is meant: the one that is named, or the one that the caller is in. The doors ask `Failures::choose`, so that all of them
//! assume the same and say so.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use super::{explain::Refused, git, record::Project};

/// What asks for all projects.
pub const ALL: &str = "all";
/// Projects that an error names.
const MAX_NAMED: usize = 10;

/// A project as the store has it.
#[derive(Debug, Clone)]
pub(crate) struct StoredProject {
    pub(crate) id: i64,
    pub(crate) key: String,
    pub(crate) project: Project,
}

/// The projects that a question is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Chosen {
    /// None for all of them.
    #[serde(skip)]
    pub(crate) ids: Option<Vec<i64>>,
    /// The project that this is about, or `all`.
    pub project: String,
    /// That it was assumed, and how to ask for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_note: Option<String>,
}

impl Chosen {
    pub fn all() -> Self {
        Self { ids: None, project: ALL.to_owned(), project_note: None }
    }
}

/// Where a caller is.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallerLocation {
    directory: PathBuf,
    /// The top of the repository that it is in, with the address of that.
    top: Option<PathBuf>,
    remote: Option<String>,
}

impl CallerLocation {
    /// Blocks.
    pub(crate) fn of(directory: &Path) -> Self {
        let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        let (top, remote) = git::repository(&directory).map_or((None, None), |(top, remote)| (Some(top), remote));
        Self { directory, top, remote }
    }

    /// The project of somebody who is there and has recorded nothing yet.
    fn project(&self) -> Project {
        let root = self.top.as_ref().unwrap_or(&self.directory);
        let name = root.file_name().unwrap_or(root.as_os_str()).to_string_lossy().into_owned();
        Project { root: root.display().to_string(), name, remote: self.remote.clone() }
    }

    /// The projects of whoever is there: of this repository, around this directory, or else all below it.
    fn own<'k>(&self, known: &'k [StoredProject]) -> Vec<&'k StoredProject> {
        let around = |known: &&StoredProject| {
            let root = Path::new(&known.project.root);
            // What is above a repository is another project.
            let is_inside = self.top.as_ref().is_none_or(|top| root.starts_with(top));
            root.is_absolute() && self.directory.starts_with(root) && is_inside
        };
        let nearest = known.iter().filter(around).map(|known| known.project.root.len()).max();
        let is_own = |known: &&StoredProject| {
            let is_nearest = around(known) && Some(known.project.root.len()) == nearest;
            is_nearest || self.remote.is_some() && known.project.remote == self.remote
        };
        let own: Vec<&StoredProject> = known.iter().filter(is_own).collect();
        if !own.is_empty() {
            return own;
        }
        known.iter().filter(|known| Path::new(&known.project.root).starts_with(&self.directory)).collect()
    }
}

/// The projects that are named or, where nothing is, the caller's own; all where nobody knows where the caller is.
pub(crate) fn choose(
    known: &[StoredProject],
    wish: Option<&str>,
    place: Option<&CallerLocation>,
) -> Result<Chosen, Refused> {
    match (wish.map(str::trim).filter(|wish| !wish.is_empty()), place) {
        (Some(ALL), _) | (None, None) => Ok(Chosen::all()),
        (Some(wish), _) => {
            let is_meant = |known: &&StoredProject| {
                let Project { name, root, .. } = &known.project;
                [name.as_str(), root.as_str(), known.key.as_str()].contains(&wish)
                    || root.trim_end_matches('/') == wish.trim_end_matches('/') && !root.is_empty()
            };
            let ids: Vec<i64> = known.iter().filter(is_meant).map(|known| known.id).collect();
            if ids.is_empty() {
                let known = known.iter().rev().take(MAX_NAMED).map(|known| named(&known.project)).collect();
                return Err(Refused::Missing { what: "project", id: pylair_text::plain::one_line(wish, 200), known });
            }
            Ok(Chosen { ids: Some(ids), project: wish.to_owned(), project_note: None })
        }
        (None, Some(place)) => {
            let own = place.own(known);
            let directory = place.directory.display();
            let project = match own.as_slice() {
                [] => directory.to_string(),
                [one] => named(&one.project),
                [first, rest @ ..] if rest.iter().all(|other| other.project.root == first.project.root) => {
                    named(&first.project)
                }
                several => format!("{} projects below {directory}", several.len()),
            };
            let how = match (own.len(), known.len()) {
                (own, all) if own == all => None,
                (0, _) => Some(format!("no test run below {directory} is recorded")),
                _ => Some(format!("only of {project}, because you are in {directory}")),
            };
            let project_note = how.map(|how| format!("{how}; project \"{ALL}\" means all"));
            Ok(Chosen { ids: Some(own.iter().map(|known| known.id).collect()), project, project_note })
        }
    }
}

/// The project that somebody records into by hand.
pub(crate) fn to_record(
    known: &[StoredProject],
    wish: Option<&str>,
    place: Option<&CallerLocation>,
) -> Option<Project> {
    let wish = wish.map(str::trim).filter(|wish| !wish.is_empty());
    if let Some(wish) = wish {
        let found = known.iter().find(|known| {
            [known.project.name.as_str(), known.project.root.as_str(), known.key.as_str()].contains(&wish)
        });
        let new = || Project { root: wish.to_owned(), name: wish.to_owned(), remote: None };
        return Some(found.map_or_else(new, |known| known.project.clone()));
    }
    let place = place?;
    match place.own(known).as_slice() {
        [one] => Some(one.project.clone()),
        _ => Some(place.project()),
    }
}

fn named(project: &Project) -> String {
    if project.root.is_empty() || project.root == project.name {
        project.name.clone()
    } else {
        format!("{} ({})", project.name, project.root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Vec<StoredProject> {
        let remote = "https://git.example/shop.git";
        [
            (1, "/work/shop", "shop", Some(remote)),
            (2, "/work/shop/plugins/mail", "mail", None),
            (3, "/work/api", "api", None),
            (4, "/", "everything", None),
            (5, "", "by hand", None),
            (6, "/work/shop", "shop", None),
        ]
        .into_iter()
        .map(|(id, root, name, remote)| StoredProject {
            id,
            key: remote.unwrap_or(root).to_owned(),
            project: Project { root: root.into(), name: name.into(), remote: remote.map(str::to_owned) },
        })
        .collect()
    }

    fn place(directory: &str, top: Option<&str>, remote: Option<&str>) -> CallerLocation {
        CallerLocation { directory: directory.into(), top: top.map(Into::into), remote: remote.map(str::to_owned) }
    }

    #[test]
    fn the_project_is_the_one_the_caller_is_in() {
        let check = |place: &CallerLocation, ids: &[i64], said: &str| {
            let chosen = choose(&known(), None, Some(place)).unwrap();
            assert_eq!(chosen.ids.as_deref(), Some(ids), "{place:?}");
            let note = chosen.project_note.unwrap_or_default();
            assert!(note.contains(said) && note.ends_with("; project \"all\" means all"), "{note}");
        };
        let shop = Some("/work/shop");
        check(
            &place("/work/shop/src", shop, None),
            &[1, 6],
            "only of shop (/work/shop), because you are in /work/shop/src",
        );
        check(&place("/work/shop/plugins/mail/x", shop, None), &[2], "only of mail");
        // A second work tree of the same repository.
        check(&place("/tmp/tree", Some("/tmp/tree"), Some("https://git.example/shop.git")), &[1], "only of shop");
        // A repository without a run is not the project that happens to be around it.
        check(&place("/work/new", Some("/work/new"), None), &[], "no test run below /work/new is recorded");
        check(&place("/srv/x", None, None), &[4], "only of everything (/)");
        let without_root: Vec<StoredProject> = known().into_iter().filter(|known| known.id != 4).collect();
        let chosen = choose(&without_root, None, Some(&place("/work", None, None))).unwrap();
        assert_eq!((chosen.ids, chosen.project.as_str()), (Some(vec![1, 2, 3, 6]), "4 projects below /work"));
        assert_eq!(choose(&known(), None, None).unwrap(), Chosen::all(), "nobody knows where a visitor is");
        let own = choose(&known()[..1], None, Some(&place("/work/shop", shop, None))).unwrap();
        assert_eq!(own.project_note, None, "there is no other");
    }

    #[test]
    fn a_project_is_found_by_name_root_and_remote() {
        let ids = |wish: &str| choose(&known(), Some(wish), Some(&CallerLocation::default())).unwrap().ids;
        assert_eq!(ids("all"), None);
        assert_eq!(ids("shop"), Some(vec![1, 6]));
        assert_eq!(ids("/work/api/"), Some(vec![3]));
        assert_eq!(ids("https://git.example/shop.git"), Some(vec![1]));
        let refused = choose(&known(), Some("shpo"), None).unwrap_err();
        assert_eq!((refused.kind(), refused.message().as_str()), ("unknown_project", "there is no project `shpo`"));
        assert!(refused.hint().contains("api (/work/api)"), "{}", refused.hint());
    }

    #[test]
    fn what_is_recorded_by_hand_belongs_to_a_project() {
        let root = |wish: Option<&str>, place: Option<&CallerLocation>| {
            to_record(&known(), wish, place).map(|project| project.root)
        };
        assert_eq!(root(None, Some(&place("/work/api/x", None, None))).as_deref(), Some("/work/api"));
        assert_eq!(root(None, Some(&place("/work/new/x", Some("/work/new"), None))).as_deref(), Some("/work/new"));
        assert_eq!(root(Some("api"), None).as_deref(), Some("/work/api"));
        assert_eq!(root(Some("other"), None).as_deref(), Some("other"));
        assert_eq!(root(None, None), None);
    }
}
