//! Which failures belong together, and why. One fault shows in many tests and in several ways, so the failures of one run are clustered by
//! what they share; a cluster that was seen before finds its group again by its fingerprints. Pure; `ingest` keeps what comes out.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::fingerprint::Traits;

/// So much of a cluster has to be known of a group for it to be that group again.
const KNOWN_SHARE: f64 = 0.5;
/// Members that share something are compared with so many others of them until one is found that they may be with.
const MOST_TRIED: usize = 50;
/// Two clusters of so many failures each are not put together because some of them call the same function on the way.
const STANDS_ALONE: usize = 10;
/// A function that raises in more ways than this, for as many callers, is one that reports what others found.
const FEW_WAYS: usize = 3;
/// A function of which more others than this fail that it calls is one that everything goes through.
const FEW_BELOW: usize = 2;
const MOST_TOLD: usize = 3;

/// One failing of a run.
#[derive(Debug, Clone, Default)]
pub struct Member {
    pub fingerprint: String,
    pub traits: Traits,
    /// Type and message with placeholders.
    pub pattern: String,
    /// The group of an earlier run that shows again in this one, and had this failing in it.
    pub seen_in: Option<i64>,
    /// Words of its test's name of which most tests of the run fail that have them in theirs.
    pub topics: Vec<String>,
    /// In which of the last runs its test failed and passed, if it ever passed and the run is large enough for this to say something: what
    /// broke together in a large suite is probably one fault, and then the little that is shared will do.
    pub past: Option<String>,
}

/// Groups of earlier runs of which one failed in a run where the other's tests did not: two faults, whatever they have in common.
#[derive(Debug, Clone, Default)]
pub struct Apart(BTreeSet<(i64, i64)>);

impl Apart {
    /// From the runs that each group's tests were in, and whether any of these failed as the group does.
    pub fn of(seen: &BTreeMap<i64, BTreeMap<i64, bool>>) -> Self {
        let mut apart = BTreeSet::new();
        for (one, runs) in seen {
            for (other, of_other) in seen.range(one + 1..) {
                if runs.iter().any(|(run, failed)| of_other.get(run).is_some_and(|also| also != failed)) {
                    apart.insert((*one, *other));
                }
            }
        }
        Self(apart)
    }

    fn any(&self, some: &BTreeSet<i64>, others: &BTreeSet<i64>) -> bool {
        some.iter().any(|one| others.iter().any(|other| self.0.contains(&(*one.min(other), *one.max(other)))))
    }
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
enum CommonTrait<'a> {
    Fingerprint(&'a str),
    Symbol(&'a str),
    Seen(&'a str),
    /// A function, and how it was come to or what it raised there.
    Site(&'a str, &'a str),
    Passes(&'a str),
    Called(&'a str),
    // What follows joins only what has the same past.
    Topic(&'a str, &'a str),
    Near(&'a str, &'a str),
    Suite(&'a str, &'a str),
    File(&'a str, &'a str),
    Before(i64),
}

impl CommonTrait<'_> {
    /// As it is told of several.
    fn told(&self) -> String {
        match self {
            Self::Fingerprint(_) => "fail with the same error in the same place".into(),
            Self::Symbol(symbol) => format!("are about the same {symbol}"),
            Self::Seen(seen) => format!("met `{seen}`"),
            Self::Site(function, _) => format!("fail in `{function}`"),
            Self::Passes(function) => format!("pass through `{function}`"),
            Self::Called(name) => format!("check what `{name}` gives"),
            Self::Topic(word, _) => format!("have `{word}` in their names and began to fail together"),
            Self::Near(name, _) => format!("call `{name}` before they fail and began to fail together"),
            Self::Suite(suite, _) | Self::File(suite, _) => {
                format!("are tests of {suite} and began to fail together")
            }
            Self::Before(_) => "failed together before".into(),
        }
    }
}

/// Clusters the failures of one run: what was together before, then what shares something, the strongest first. What is known to be apart
/// stays apart.
pub fn cluster(members: &[Member], apart: &Apart) -> Vec<Cluster> {
    let mut sets = Sets::new(members);
    let mut links: BTreeMap<CommonTrait<'_>, Vec<usize>> = BTreeMap::new();
    let meetings = Meetings::of(members);
    for (index, member) in members.iter().enumerate() {
        for shared in shared_by(member, &meetings) {
            links.entry(shared).or_default().push(index);
        }
    }
    let (before, others): (Vec<_>, Vec<_>) =
        links.iter().partition(|(shared, _)| matches!(shared, CommonTrait::Before(_)));
    for (shared, indices) in before.into_iter().chain(others) {
        let most = match shared {
            CommonTrait::Suite(..) | CommonTrait::File(..) => continue,
            CommonTrait::Near(..) => STANDS_ALONE,
            _ => usize::MAX,
        };
        // Each with the first it may be with: those that are apart have their own.
        for (number, index) in indices.iter().enumerate().skip(1) {
            let _joined = indices[..number].iter().take(MOST_TRIED).any(|first| sets.join(*first, *index, apart, most));
        }
    }
    adopt(&mut sets, members, apart, |traits| &traits.suite);
    adopt(&mut sets, members, apart, |traits| file(&traits.suite));
    let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for index in 0..members.len() {
        found.entry(sets.root(index)).or_default().push(index);
    }
    let told = |indices: &[usize]| reason(&indices.iter().map(|index| &members[*index]).collect::<Vec<_>>());
    found.into_values().map(|indices| Cluster { reason: told(&indices), members: indices }).collect()
}

/// A failure that shares nothing with others goes to those of its suite that have the same past, if these are one cluster or none.
fn adopt(sets: &mut Sets, members: &[Member], apart: &Apart, suite: impl Fn(&Traits) -> &str) {
    type Clusters = BTreeSet<usize>;
    type Alone = Vec<usize>;
    let mut by_suite: BTreeMap<(&str, &str), (Clusters, Alone)> = BTreeMap::new();
    for (index, member) in members.iter().enumerate() {
        let Some(past) = &member.past else { continue };
        let root = sets.root(index);
        let (clusters, alone) = by_suite.entry((suite(&member.traits), past)).or_default();
        if sets.sizes[root] > 1 {
            clusters.insert(root);
        } else if member.traits.path.is_empty() {
            alone.push(index);
        }
    }
    for (clusters, alone) in by_suite.into_values() {
        let to = match clusters.len() {
            0 => alone.first().copied(),
            1 => clusters.first().copied(),
            _ => None,
        };
        for index in alone {
            let _joined = to.is_some_and(|to| sets.join(to, index, apart, usize::MAX));
        }
    }
}

fn file(suite: &str) -> &str {
    suite.split("::").next().unwrap_or_default()
}

/// Functions where failures meet.
struct Meetings<'a> {
    /// Where failures end, and in which other functions those end that it called.
    below: HashMap<&'a str, BTreeSet<&'a str>>,
    /// Functions that raise for many callers in many ways: one of them says nothing of another.
    reporters: HashSet<&'a str>,
}

impl<'a> Meetings<'a> {
    fn of(members: &'a [Member]) -> Self {
        let mut raised: HashMap<&str, (BTreeSet<&str>, BTreeSet<&str>)> = HashMap::new();
        for member in members {
            for site in &member.traits.sites {
                let (callers, patterns) = raised.entry(site).or_default();
                callers.insert(caller(&member.traits, site));
                patterns.insert(&member.pattern);
            }
        }
        let mut below: HashMap<&str, BTreeSet<&str>> = raised.keys().map(|site| (*site, BTreeSet::new())).collect();
        for member in members {
            for site in &member.traits.sites {
                if let Some(ends) = below.get_mut(caller(&member.traits, site)) {
                    ends.insert(site);
                }
            }
        }
        let many =
            |(callers, patterns): &(BTreeSet<&str>, BTreeSet<&str>)| callers.len().min(patterns.len()) > FEW_WAYS;
        let reporters = raised.iter().filter(|(_, ways)| many(ways)).map(|(site, _)| *site).collect();
        Self { below, reporters }
    }

    /// Whether a failure that ends in what this function called may be its: not if it calls all kinds of things that fail.
    fn joins(&self, function: &str) -> bool {
        self.below.get(function).is_some_and(|ends| (1..=FEW_BELOW).contains(&ends.len()))
    }
}

/// The function of tested code that called another one; empty if a test did.
fn caller<'a>(traits: &'a Traits, function: &str) -> &'a str {
    let at = traits.path.iter().position(|known| known == function);
    at.and_then(|at| traits.path.get(at + 1)).map_or("", String::as_str)
}

fn shared_by<'a>(member: &'a Member, meetings: &Meetings<'_>) -> BTreeSet<CommonTrait<'a>> {
    let traits = &member.traits;
    let mut shared = BTreeSet::from([CommonTrait::Fingerprint(&member.fingerprint)]);
    shared.extend(traits.symbols.iter().map(|symbol| CommonTrait::Symbol(symbol)));
    shared.extend(traits.seen.iter().map(|seen| CommonTrait::Seen(seen)));
    for (number, site) in traits.sites.iter().enumerate() {
        let caller = caller(traits, site);
        shared.insert(CommonTrait::Site(site, caller));
        if !meetings.reporters.contains(site.as_str()) {
            shared.insert(CommonTrait::Site(site, traits.raised.get(number).unwrap_or(&traits.kind)));
        }
        shared.extend([site.as_str(), caller].into_iter().filter(|f| meetings.joins(f)).map(CommonTrait::Passes));
    }
    if traits.path.is_empty() {
        // The trace does not reach tested code, which gave a wrong value instead of raising.
        shared
            .extend(traits.calls.iter().filter(|name| !is_misfit(traits, name)).map(|name| CommonTrait::Called(name)));
    }
    if let Some(past) = &member.past {
        shared.extend(member.topics.iter().map(|word| CommonTrait::Topic(word, past)));
        if traits.path.is_empty() {
            shared.extend(traits.near.iter().map(|name| CommonTrait::Near(name, past)));
            shared.insert(CommonTrait::Suite(&traits.suite, past));
            shared.insert(CommonTrait::File(file(&traits.suite), past));
        }
    }
    shared.extend(member.seen_in.map(CommonTrait::Before));
    shared
}

/// Whether a test called a function wrongly: then it does not show what the function gives.
fn is_misfit(traits: &Traits, name: &str) -> bool {
    let called = traits.symbols.iter().filter_map(|symbol| symbol.strip_prefix("call "));
    called.map(|called| called.rsplit('.').next().unwrap_or(called)).any(|called| called == name)
}

/// What most of them share, and of that what tells most; then what more of the others do.
pub(crate) fn reason(members: &[&Member]) -> String {
    if members.len() < 2 {
        return "no other failure was grouped with it".into();
    }
    let owned: Vec<Member> = members.iter().map(|member| (*member).clone()).collect();
    let meetings = Meetings::of(&owned);
    let mut facts: BTreeMap<CommonTrait<'_>, BTreeSet<usize>> = BTreeMap::new();
    for (index, member) in members.iter().enumerate() {
        for shared in shared_by(member, &meetings) {
            // Where is told, and not how it was come to.
            let shared =
                if let CommonTrait::Site(function, _) = shared { CommonTrait::Site(function, "") } else { shared };
            facts.entry(shared).or_default().insert(index);
        }
    }
    facts.retain(|_, having| having.len() > 1);
    let mut left: BTreeSet<usize> = (0..members.len()).collect();
    let mut told: Vec<String> = Vec::new();
    while told.len() < MOST_TOLD {
        let covers = |having: &BTreeSet<usize>| having.intersection(&left).count();
        let best = facts.iter().rev().max_by_key(|(_, having)| covers(having)).filter(|(_, having)| covers(having) > 0);
        let Some((shared, having)) = best else { break };
        let count = match (having.len(), told.is_empty()) {
            (2, true) if members.len() == 2 => "both".to_owned(),
            (count, true) if count == members.len() => format!("all {count}"),
            (count, true) => format!("{count} of {}", members.len()),
            (count, false) => count.to_string(),
        };
        told.push(format!("{count} {}", shared.told()));
        left.retain(|index| !having.contains(index));
    }
    if !left.is_empty() {
        told.push(match (told.is_empty(), left.len()) {
            (true, _) => "they failed together in earlier runs".to_owned(),
            (false, 1) => "1 failed together with some of these".to_owned(),
            (false, count) => format!("{count} failed together with some of these"),
        });
    }
    told.join("; ")
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

/// Disjoint sets of indices, each with the groups that its members were seen in.
struct Sets {
    parents: Vec<usize>,
    sizes: Vec<usize>,
    seen_in: Vec<BTreeSet<i64>>,
}

impl Sets {
    fn new(members: &[Member]) -> Self {
        let seen_in = members.iter().map(|member| member.seen_in.into_iter().collect()).collect();
        Self { parents: (0..members.len()).collect(), sizes: vec![1; members.len()], seen_in }
    }

    fn root(&mut self, mut index: usize) -> usize {
        while self.parents[index] != index {
            self.parents[index] = self.parents[self.parents[index]];
            index = self.parents[index];
        }
        index
    }

    /// Whether they are in one set now. Not if both sets have `most` members.
    fn join(&mut self, first: usize, second: usize, apart: &Apart, most: usize) -> bool {
        let (first, second) = (self.root(first), self.root(second));
        if first == second {
            return true;
        }
        let large = self.sizes[first].min(self.sizes[second]) >= most;
        if large || apart.any(&self.seen_in[first], &self.seen_in[second]) {
            return false;
        }
        let (kept, gone) = (first.min(second), first.max(second));
        self.parents[gone] = kept;
        self.sizes[kept] += self.sizes[gone];
        let seen = std::mem::take(&mut self.seen_in[gone]);
        self.seen_in[kept].extend(seen);
        true
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
        Member { fingerprint: fingerprint.into(), traits, ..Member::default() }
    }

    /// A test that compared what these calls gave.
    fn compared(fingerprint: &str, calls: &str, suite: &str) -> Member {
        let traits = Traits { calls: words(calls), suite: suite.to_owned(), ..Traits::default() };
        Member { fingerprint: fingerprint.into(), traits, ..Member::default() }
    }

    fn check(members: &[Member], expect: &[&[usize]]) -> Vec<Cluster> {
        check_apart(members, &Apart::default(), expect)
    }

    fn check_apart(members: &[Member], apart: &Apart, expect: &[&[usize]]) -> Vec<Cluster> {
        let clusters = cluster(members, apart);
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
        assert_eq!(clusters[0].reason, "both fail in `price:total`");
        assert_eq!(clusters[1].reason, "no other failure was grouped with it");
    }

    #[test]
    fn a_trace_that_passes_where_another_ends_belongs_to_it() {
        let members = [raised("1", "price:total"), raised("2", "json:dump price:total")];
        let clusters = check(&members, &[&[0, 1]]);
        assert_eq!(clusters[0].reason, "both pass through `price:total`");
    }

    #[test]
    fn one_missing_name_is_one_fault_wherever_it_is_missed() {
        let mut members = [raised("1", "a:f"), raised("2", "b:g"), raised("3", "c:h")];
        for member in &mut members[..2] {
            member.traits.symbols = vec!["attribute prise".into()];
        }
        let clusters = check(&members, &[&[0, 1], &[2]]);
        assert_eq!(clusters[0].reason, "both are about the same attribute prise");
    }

    #[test]
    fn wrong_values_are_together_by_what_was_called() {
        let members =
            [compared("1", "chunked", "A"), compared("2", "chunked list", "B"), compared("3", "windowed", "C")];
        let clusters = check(&members, &[&[0, 1], &[2]]);
        assert_eq!(clusters[0].reason, "both check what `chunked` gives");
    }

    #[test]
    fn a_wrong_call_says_nothing_of_what_the_function_gives() {
        let mut members = [compared("1", "divide", "A"), compared("2", "divide", "B"), compared("3", "divide", "C")];
        for member in &mut members[..2] {
            member.traits.symbols = vec!["call divide".into()];
        }
        let clusters = check(&members, &[&[0, 1], &[2]]);
        assert_eq!(clusters[0].reason, "both are about the same call divide");
    }

    /// As they are in a large suite, when all of them broke at once.
    fn broke_together(members: &mut [Member]) {
        for member in members {
            member.past = Some("p".into());
        }
    }

    #[test]
    fn what_shares_nothing_goes_to_its_suite_if_that_fails_in_one_way() {
        let mut members =
            vec![compared("1", "", "t.py::A"), compared("2", "", "t.py::A"), compared("3", "", "u.py::B")];
        check(&members, &[&[0], &[1], &[2]]);
        broke_together(&mut members);
        let clusters = check(&members, &[&[0, 1], &[2]]);
        assert_eq!(clusters[0].reason, "both are tests of t.py::A and began to fail together");
        members.extend([compared("4", "window", "t.py::A"), compared("5", "window", "t.py::A")]);
        broke_together(&mut members);
        check(&members, &[&[0, 1, 3, 4], &[2]]);
        members.extend([compared("6", "chunked", "t.py::A"), compared("7", "chunked", "t.py::A")]);
        broke_together(&mut members);
        check(&members, &[&[0], &[1], &[2], &[3, 4], &[5, 6]]);
        members[0].past = Some("f".into());
        check(&members[..2], &[&[0], &[1]]);
    }

    #[test]
    fn names_of_tests_join_only_what_broke_together() {
        let mut members = [raised("1", "a:f"), raised("2", "b:g"), raised("3", "c:h")];
        for member in &mut members[1..] {
            member.topics = vec!["default_map".into()];
        }
        check(&members, &[&[0], &[1], &[2]]);
        broke_together(&mut members);
        let clusters = check(&members, &[&[0], &[1, 2]]);
        assert_eq!(clusters[1].reason, "both have `default_map` in their names and began to fail together");
    }

    #[test]
    fn what_everything_goes_through_joins_nothing() {
        let mut members: Vec<Member> =
            ["a:f", "b:g", "c:h"].iter().map(|f| raised(f, &format!("{f} app:main"))).collect();
        members.push(raised("main", "app:main"));
        check(&members, &[&[0], &[1], &[2], &[3]]);
        // One that raises what others found.
        let members: Vec<Member> = (0..5)
            .map(|number| {
                let mut member = raised(&number.to_string(), &format!("app:fail app:f{number}"));
                member.pattern = format!("ValueError: reason {number}");
                member
            })
            .collect();
        check(&members, &[&[0], &[1], &[2], &[3], &[4]]);
    }

    #[test]
    fn in_one_function_other_errors_of_other_callers_are_others() {
        let mut members = [raised("1", "a:f b:g"), raised("2", "a:f c:h"), raised("3", "a:f c:h")];
        members[0].traits.kind = "KeyError".into();
        members[2].traits.kind = "TypeError".into();
        check(&members, &[&[0], &[1, 2]]);
    }

    #[test]
    fn what_is_called_on_the_way_joins_a_few_and_not_two_large_clusters() {
        let many = |first: usize, count: usize, calls: &str| {
            let made = (first..first + count).map(|number| {
                let mut member = compared(&number.to_string(), calls, &format!("{calls}.py"));
                member.traits.near = vec!["echo".into()];
                member
            });
            let mut made = made.collect::<Vec<_>>();
            broke_together(&mut made);
            made
        };
        assert_eq!(cluster(&[many(0, 10, "window"), many(10, 9, "chunked")].concat(), &Apart::default()).len(), 1);
        assert_eq!(cluster(&[many(0, 10, "window"), many(10, 10, "chunked")].concat(), &Apart::default()).len(), 2);
    }

    #[test]
    fn what_failed_without_the_other_is_apart_whatever_it_shares() {
        let mut members = [raised("1", "a:f"), raised("2", "b:g"), raised("3", "a:f"), raised("4", "a:f")];
        (members[0].seen_in, members[1].seen_in, members[2].seen_in) = (Some(1), Some(1), Some(2));
        let runs = |list: &[(i64, bool)]| list.iter().copied().collect::<BTreeMap<_, _>>();
        let together = BTreeMap::from([(1, runs(&[(7, true)])), (2, runs(&[(7, true), (8, true)]))]);
        check_apart(&members, &Apart::of(&together), &[&[0, 1, 2, 3]]);
        let alone = BTreeMap::from([(1, runs(&[(7, true)])), (2, runs(&[(7, false), (8, true)]))]);
        let clusters = check_apart(&members, &Apart::of(&alone), &[&[0, 1, 3], &[2]]);
        assert_eq!(clusters[0].reason, "2 of 3 fail in `a:f`; 2 failed together before");
        let clusters = check_apart(&members[..2], &Apart::default(), &[&[0, 1]]);
        assert_eq!(clusters[0].reason, "both failed together before");
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
