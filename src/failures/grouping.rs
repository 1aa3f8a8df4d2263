//! Which failures belong together, and why. One fault shows in many tests and in several ways, so the failures of one run are clustered by
//! what they share; a cluster that was seen before finds its group again by its fingerprints. Pure; `ingest` keeps what comes out.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{fingerprint::Traits, view::Summary};

/// So much of a cluster has to be known of a group for it to be that group again.
const KNOWN_SHARE: f64 = 0.5;

/// What failures are grouped by when they are analysed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GroupBy {
    ErrorType,
    FilePath,
    Pattern,
    /// The store's own groups.
    #[default]
    Fingerprint,
}

impl GroupBy {
    /// What failures of one group have in common.
    pub fn key(self, failure: &Summary) -> &str {
        match self {
            Self::ErrorType => &failure.kind,
            Self::FilePath => {
                failure.test_file.as_deref().unwrap_or_else(|| failure.test.split("::").next().unwrap_or_default())
            }
            Self::Pattern => &failure.pattern,
            Self::Fingerprint => &failure.group,
        }
    }
}

/// One failing of a run.
#[derive(Debug, Clone)]
pub struct Member {
    pub fingerprint: String,
    pub traits: Traits,
}

/// Failures of a run that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Indices of the members.
    pub members: Vec<usize>,
    pub reason: String,
}

/// Something that failures share. The order is how much it tells.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Shared<'a> {
    Fingerprint(&'a str),
    Symbol(&'a str),
    Seen(&'a str),
    Site(&'a str),
    Passes(&'a str),
    Called(&'a str),
    Suite(&'a str),
}

impl Shared<'_> {
    fn told(&self) -> String {
        match self {
            Self::Fingerprint(_) => "fail with the same error in the same place".into(),
            Self::Symbol(symbol) => format!("are about the same {symbol}"),
            Self::Seen(seen) => format!("met `{seen}`"),
            Self::Site(function) => format!("fail in `{function}`"),
            Self::Passes(function) => format!("pass through `{function}`"),
            Self::Called(name) => format!("check what `{name}` gives"),
            Self::Suite(suite) => format!("are tests of {suite}"),
        }
    }
}

/// Clusters the failures of one run.
pub fn cluster(members: &[Member]) -> Vec<Cluster> {
    let mut sets = Sets::new(members.len());
    let mut links: BTreeMap<Shared<'_>, Vec<usize>> = BTreeMap::new();
    let sites: HashSet<&str> = members.iter().flat_map(|member| &member.traits.sites).map(String::as_str).collect();
    for (index, member) in members.iter().enumerate() {
        for shared in shared_by(member, &sites) {
            links.entry(shared).or_default().push(index);
        }
    }
    for (shared, indices) in &links {
        if matches!(shared, Shared::Passes(_)) && !indices.iter().any(|index| is_site(&members[*index], shared)) {
            continue;
        }
        for index in &indices[1..] {
            sets.join(indices[0], *index);
        }
    }
    let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for index in 0..members.len() {
        found.entry(sets.root(index)).or_default().push(index);
    }
    found.into_values().map(|indices| Cluster { reason: reason(&links, &indices), members: indices }).collect()
}

fn is_site(member: &Member, shared: &Shared<'_>) -> bool {
    matches!(shared, Shared::Passes(function) if member.traits.sites.iter().any(|site| site == function))
}

fn shared_by<'a>(member: &'a Member, sites: &HashSet<&str>) -> BTreeSet<Shared<'a>> {
    let traits = &member.traits;
    let mut shared = BTreeSet::from([Shared::Fingerprint(&member.fingerprint)]);
    shared.extend(traits.symbols.iter().map(|symbol| Shared::Symbol(symbol)));
    shared.extend(traits.seen.iter().map(|seen| Shared::Seen(seen)));
    shared.extend(traits.sites.iter().map(|site| Shared::Site(site)));
    shared.extend(traits.path.iter().filter(|function| sites.contains(function.as_str())).map(|f| Shared::Passes(f)));
    if traits.path.is_empty() {
        // The trace does not reach tested code, which gave a wrong value instead of raising.
        shared.extend(traits.calls.iter().map(|name| Shared::Called(name)));
        if traits.calls.is_empty() {
            shared.extend(traits.near.iter().map(|name| Shared::Called(name)));
        }
        shared.insert(Shared::Suite(&traits.suite));
    }
    shared
}

/// What most of them share, and of that what tells most.
fn reason(links: &BTreeMap<Shared<'_>, Vec<usize>>, members: &[usize]) -> String {
    let [first, .., last] = members else { return "it is the only one of its kind".into() };
    debug_assert!(first < last, "members are in order");
    let mut best: Option<(usize, &Shared<'_>)> = None;
    for (shared, indices) in links {
        let count = indices.iter().filter(|index| members.binary_search(index).is_ok()).count();
        if count > best.map_or(1, |(most, _)| most) {
            best = Some((count, shared));
        }
    }
    match best {
        Some((count, shared)) if count == members.len() => format!("all {count} {}", shared.told()),
        Some((count, shared)) => {
            format!("{count} of {} {}, and the others are linked to these", members.len(), shared.told())
        }
        None => "each shares something with another one".into(),
    }
}

/// The group that a cluster is, of those that know some of its fingerprints: the one that knows most, if that is enough, and of several
/// the one that most of the cluster is in now (`now_in`), then the one that is most alike.
pub(crate) fn known_as(
    cluster: &HashSet<&str>,
    groups: &HashMap<i64, HashSet<String>>,
    now_in: &BTreeMap<i64, usize>,
) -> Option<i64> {
    #[expect(clippy::cast_precision_loss, reason = "counts of failures")]
    let share = |count: usize, of: usize| count as f64 / of.max(1) as f64;
    let mut known: Vec<(usize, usize, f64, i64)> = groups
        .iter()
        .map(|(group, known)| {
            let both = cluster.iter().filter(|print| known.contains(**print)).count();
            let alike = share(both, cluster.len() + known.len() - both);
            (both, now_in.get(group).copied().unwrap_or(0), alike, *group)
        })
        .filter(|(both, ..)| *both > 0 && share(*both, cluster.len()) >= KNOWN_SHARE)
        .collect();
    known.sort_by(|a, b| (b.0, b.1).cmp(&(a.0, a.1)).then(b.2.total_cmp(&a.2)).then(a.3.cmp(&b.3)));
    known.first().map(|(.., group)| *group)
}

/// Disjoint sets of indices.
struct Sets(Vec<usize>);

impl Sets {
    fn new(count: usize) -> Self {
        Self((0..count).collect())
    }

    fn root(&mut self, mut index: usize) -> usize {
        while self.0[index] != index {
            self.0[index] = self.0[self.0[index]];
            index = self.0[index];
        }
        index
    }

    fn join(&mut self, first: usize, second: usize) {
        let (first, second) = (self.root(first), self.root(second));
        self.0[first.max(second)] = first.min(second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// A failure whose trace passed through these functions, innermost first.
    fn raised(fingerprint: &str, path: &str) -> Member {
        let path = words(path);
        let traits = Traits { sites: path[..1].to_vec(), path, suite: fingerprint.to_owned(), ..Traits::default() };
        Member { fingerprint: fingerprint.into(), traits }
    }

    /// A test that compared what these calls gave.
    fn compared(fingerprint: &str, calls: &str, suite: &str) -> Member {
        let traits = Traits { calls: words(calls), suite: suite.to_owned(), ..Traits::default() };
        Member { fingerprint: fingerprint.into(), traits }
    }

    fn check(members: &[Member], expect: &[&[usize]]) -> Vec<Cluster> {
        let clusters = cluster(members);
        let found: Vec<&[usize]> = clusters.iter().map(|cluster| cluster.members.as_slice()).collect();
        assert_eq!(found, expect, "{clusters:#?}");
        clusters
    }

    #[test]
    fn failures_in_one_function_are_together_and_others_are_not() {
        let members = [
            raised("1", "price:total cart:sum"),
            raised("2", "price:total order:pay"),
            raised("3", "tax:rate order:pay"),
        ];
        let clusters = check(&members, &[&[0, 1], &[2]]);
        assert_eq!(clusters[0].reason, "all 2 fail in `price:total`");
        assert_eq!(clusters[1].reason, "it is the only one of its kind");
    }

    #[test]
    fn a_trace_that_passes_where_another_ends_belongs_to_it() {
        let members = [raised("1", "price:total"), raised("2", "json:dump price:total")];
        let clusters = check(&members, &[&[0, 1]]);
        assert_eq!(clusters[0].reason, "all 2 pass through `price:total`");
    }

    #[test]
    fn one_missing_name_is_one_fault_wherever_it_is_missed() {
        let mut members = [raised("1", "a:f"), raised("2", "b:g"), raised("3", "c:h")];
        for member in &mut members[..2] {
            member.traits.symbols = vec!["attribute prise".into()];
        }
        let clusters = check(&members, &[&[0, 1], &[2]]);
        assert_eq!(clusters[0].reason, "all 2 are about the same attribute prise");
    }

    #[test]
    fn wrong_values_are_together_by_what_was_called() {
        let members =
            [compared("1", "chunked", "A"), compared("2", "chunked list", "B"), compared("3", "windowed", "C")];
        let clusters = check(&members, &[&[0, 1], &[2]]);
        assert_eq!(clusters[0].reason, "all 2 check what `chunked` gives");
    }

    #[test]
    fn a_cluster_is_the_group_that_knows_half_of_it() {
        let groups =
            HashMap::from([(1, HashSet::from(["a".to_owned(), "b".to_owned()])), (2, HashSet::from(["c".to_owned()]))]);
        let check = |prints: &[&str], expect| {
            assert_eq!(known_as(&prints.iter().copied().collect(), &groups, &BTreeMap::new()), expect, "{prints:?}");
        };
        check(&["a", "b", "x"], Some(1));
        check(&["a", "x"], Some(1));
        check(&["a", "x", "y"], None);
        check(&["c"], Some(2));
        check(&[], None);
        let both = ["a", "c"].into_iter().collect();
        assert_eq!(known_as(&both, &groups, &BTreeMap::from([(2, 1)])), Some(2), "of two the one it is in now");
    }
}
