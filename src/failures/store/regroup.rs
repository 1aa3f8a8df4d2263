//! Groups as they are kept. A new failure gets the group of its fingerprint; then the failures of its run are clustered, and each cluster
//! is given to the group that knows it, or to one of its own. What people pinned stays.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{
    sql::{Tx, Value, places, tuples, values},
    write::now,
};
use crate::failures::{
    fingerprint::{Traits, without_parameters, words},
    grouping::{Apart, Cluster, Member, cluster, known_as},
};

/// A run is clustered at every report while it has so few failures, and at its end up to so many. Beyond, fingerprints alone decide.
const FEW: i64 = 40;
const MANY: i64 = 5000;
const ROWS: usize = 200;
/// Of outcomes `o`: the test was run, and not skipped.
const RAN: &str = "o.outcome IN ('passed', 'failed', 'error', 'rerun', 'xpassed')";

/// What a name is of. It can be told from it: groups begin with `g`, failures do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    Failure,
    Group,
}

/// A short random name: 8 letters and digits without those that look alike.
pub(super) fn new_name(named: Named) -> String {
    const LETTERS: &[u8; 32] = b"0123456789abcdefhjkmnpqrstuvwxyz";
    let mut random = [0_u8; 8];
    getrandom::fill(&mut random).expect("the kernel gives random bytes");
    let mut name: String = random.iter().map(|byte| char::from(LETTERS[usize::from(byte % 32)])).collect();
    if named == Named::Group {
        name.replace_range(..1, "g");
    }
    name
}

/// The group of each fingerprint, made where it has none: what is pinned, else where it was last.
pub(super) async fn provisional<'a>(
    tx: &mut Tx,
    prints: impl Iterator<Item = (i64, i64, &'a str)>,
) -> sqlx::Result<HashMap<(i64, String), i64>> {
    let mut wanted: BTreeMap<i64, BTreeMap<&str, i64>> = BTreeMap::new();
    for (project, run, print) in prints {
        wanted.entry(project).or_default().insert(print, run);
    }
    let mut found: HashMap<(i64, String), i64> = HashMap::new();
    for (project, prints) in wanted {
        let all: Vec<(&str, i64)> = prints.into_iter().collect();
        for chunk in all.chunks(ROWS) {
            let list = places(1, chunk.len());
            let bound = || {
                let prints = chunk.iter().map(|(print, _)| Value::from(*print));
                std::iter::once(Value::from(project)).chain(prints).collect::<Vec<_>>()
            };
            // One row per fingerprint, however many failures have it.
            let rows = chunk.iter().enumerate().map(|(number, _)| format!("(${})", number + 2)).collect::<Vec<_>>();
            let sql = format!(
                "SELECT v.column1, (SELECT f.group_id FROM failures f WHERE f.project_id = $1 AND f.fingerprint = v.column1 \
                 ORDER BY f.last_seen DESC LIMIT 1) FROM (VALUES {}) AS v",
                rows.join(", ")
            );
            for mut row in tx.fetch(sql, bound()).await? {
                let print = row.text();
                if let Some(group) = row.maybe_int() {
                    found.insert((project, print), group);
                }
            }
            let sql =
                format!("SELECT fingerprint, group_id FROM pins WHERE project_id = $1 AND fingerprint IN ({list})");
            for mut row in tx.fetch(sql, bound()).await? {
                found.insert((project, row.text()), row.int());
            }
            let new: Vec<_> =
                chunk.iter().filter(|(print, _)| !found.contains_key(&(project, (*print).to_owned()))).collect();
            if new.is_empty() {
                continue;
            }
            let mut names = HashMap::new();
            let mut bound = Vec::new();
            for (print, run) in &new {
                let name = new_name(Named::Group);
                bound.extend(values![&name, project, "it is the only one of its kind", *run, now()]);
                names.insert(name, *print);
            }
            let sql = format!(
                "INSERT INTO groups (name, project_id, reason, run_id, made) VALUES {} RETURNING id, name",
                tuples(new.len(), 5)
            );
            let mut prints = Vec::new();
            for mut row in tx.fetch(sql, bound).await? {
                let id = row.int();
                let print = names[&row.text()];
                prints.extend(values![id, print]);
                found.insert((project, print.to_owned()), id);
            }
            let sql = format!("INSERT INTO group_prints (group_id, fingerprint) VALUES {}", tuples(new.len(), 2));
            tx.execute(sql, prints).await?;
        }
    }
    Ok(found)
}

/// A failure of a run.
struct Failing {
    id: i64,
    group: i64,
    test: String,
    member: Member,
}

/// Clusters the failures of a run and gives each cluster its group.
pub(super) async fn regroup(tx: &mut Tx, project: i64, run: i64, ended: bool) -> sqlx::Result<()> {
    let counted = tx.fetch_one("SELECT failed + error + rerun FROM runs WHERE id = $1", values![run]).await?;
    let count = counted.map_or(0, |mut row| row.int());
    if count == 0 || count > if ended { MANY } else { FEW } {
        return Ok(());
    }
    let rows = tx
        .fetch(
            "SELECT f.id, f.group_id, f.fingerprint, f.traits, t.nodeid FROM failures f JOIN tests t ON t.id = f.test_id WHERE f.id IN \
             (SELECT failure_id FROM occurrences WHERE run_id = $1) \
             AND NOT EXISTS (SELECT 1 FROM pins p WHERE p.project_id = f.project_id AND p.fingerprint = f.fingerprint) ORDER BY f.id",
            values![run],
        )
        .await?;
    let mut failing: Vec<Failing> = rows
        .into_iter()
        .map(|mut row| {
            let (id, group, fingerprint) = (row.int(), row.int(), row.text());
            let traits: Traits = serde_json::from_str(&row.text()).unwrap_or_default();
            Failing { id, group, test: row.text(), member: Member { fingerprint, traits, ..Member::default() } }
        })
        .collect();
    let groups = candidates(tx, project, &failing).await?;
    let shown = again(tx, project, run, &mut failing, &groups).await?;
    let apart = apart(tx, run, &shown).await?;
    if ended {
        topics(tx, run, &mut failing).await?;
    }
    let members: Vec<Member> = failing.iter().map(|failing| failing.member.clone()).collect();
    let mut left: BTreeSet<i64> = BTreeSet::new();
    for cluster in cluster(&members, &apart) {
        settle(tx, project, run, &failing, &cluster, &groups, &mut left).await?;
    }
    // What this run put apart and then together again.
    for group in left {
        tx.execute(
            "DELETE FROM group_prints WHERE group_id IN (SELECT id FROM groups WHERE id = $1 AND run_id = $2) \
             AND NOT EXISTS (SELECT 1 FROM failures WHERE group_id = $1)",
            values![group, run],
        )
        .await?;
        tx.execute(
            "DELETE FROM groups WHERE id = $1 AND run_id = $2 AND by_hand = 0 \
             AND NOT EXISTS (SELECT 1 FROM failures WHERE group_id = $1) \
             AND NOT EXISTS (SELECT 1 FROM groups other WHERE other.merged_into = $1)",
            values![group, run],
        )
        .await?;
    }
    Ok(())
}

/// Groups that know some of the fingerprints: what they know, and which run made them.
struct Candidates {
    known: HashMap<i64, HashSet<String>>,
    made_by: HashMap<i64, i64>,
}

async fn candidates(tx: &mut Tx, project: i64, failing: &[Failing]) -> sqlx::Result<Candidates> {
    let prints: Vec<&str> = prints(failing).into_iter().collect();
    let mut candidates = Candidates { known: HashMap::new(), made_by: HashMap::new() };
    let mut ids = BTreeSet::new();
    for chunk in prints.chunks(ROWS) {
        let sql = format!(
            "SELECT DISTINCT g.id, g.run_id FROM group_prints p JOIN groups g ON g.id = p.group_id \
             WHERE g.project_id = $1 AND g.merged_into IS NULL AND p.fingerprint IN ({})",
            places(1, chunk.len())
        );
        let bound =
            std::iter::once(Value::from(project)).chain(chunk.iter().map(|print| Value::from(*print))).collect();
        for mut row in tx.fetch(sql, bound).await? {
            let id = row.int();
            ids.insert(id);
            candidates.made_by.insert(id, row.int());
        }
    }
    let ids: Vec<i64> = ids.into_iter().collect();
    for chunk in ids.chunks(ROWS) {
        let sql =
            format!("SELECT group_id, fingerprint FROM group_prints WHERE group_id IN ({})", places(0, chunk.len()));
        for mut row in tx.fetch(sql, chunk.iter().map(|id| Value::from(*id)).collect()).await? {
            candidates.known.entry(row.int()).or_default().insert(row.text());
        }
    }
    Ok(candidates)
}

fn prints(failing: &[Failing]) -> BTreeSet<&str> {
    failing.iter().map(|failing| failing.member.fingerprint.as_str()).collect()
}

/// Finds the groups of earlier runs that show again in this one, by most of what they showed in tests that were run, and says so of the
/// failures that are theirs. A test that fails as it did once, while the rest of that group passes, may fail for another reason.
async fn again(
    tx: &mut Tx,
    project: i64,
    run: i64,
    failing: &mut [Failing],
    groups: &Candidates,
) -> sqlx::Result<Vec<i64>> {
    let earlier: Vec<i64> = groups.known.keys().copied().filter(|group| groups.made_by[group] != run).collect();
    let mut could: HashMap<i64, HashSet<String>> = HashMap::new();
    for chunk in earlier.chunks(ROWS) {
        let sql = format!(
            "SELECT DISTINCT p.group_id, p.fingerprint FROM group_prints p \
             JOIN failures f ON f.project_id = $1 AND f.fingerprint = p.fingerprint \
             JOIN outcomes o ON o.run_id = $2 AND o.test_id = f.test_id AND {RAN} WHERE p.group_id IN ({})",
            places(2, chunk.len())
        );
        let bound = [project, run].iter().chain(chunk).map(|id| Value::from(*id)).collect();
        for mut row in tx.fetch(sql, bound).await? {
            could.entry(row.int()).or_default().insert(row.text());
        }
    }
    let here = prints(failing);
    let mut shown: Vec<(usize, i64)> = could
        .iter()
        .map(|(group, could)| (could.iter().filter(|print| here.contains(print.as_str())).count(), could.len(), *group))
        .filter(|(shown, could, _)| *shown > 0 && shown * 2 >= *could)
        .map(|(shown, _, group)| (shown, group))
        .collect();
    shown.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    for Failing { group, member, .. } in failing {
        let mut knowing =
            shown.iter().map(|(_, group)| *group).filter(|group| groups.known[group].contains(&member.fingerprint));
        member.seen_in = if knowing.clone().any(|known| known == *group) { Some(*group) } else { knowing.next() };
    }
    Ok(shown.into_iter().map(|(_, group)| group).collect())
}

/// Which of these groups are known to be apart, from other runs.
async fn apart(tx: &mut Tx, run: i64, groups: &[i64]) -> sqlx::Result<Apart> {
    if groups.len() < 2 {
        return Ok(Apart::default());
    }
    let mut seen: BTreeMap<i64, BTreeMap<i64, bool>> = BTreeMap::new();
    for chunk in groups.chunks(ROWS) {
        let sql = format!(
            "SELECT f.group_id, o.run_id, MAX(CASE WHEN o.failure_id = f.id THEN 1 ELSE 0 END) FROM failures f \
             JOIN outcomes o ON o.test_id = f.test_id AND {RAN} WHERE o.run_id <> $1 AND f.group_id IN ({}) GROUP BY f.group_id, o.run_id",
            places(1, chunk.len())
        );
        let bound = std::iter::once(&run).chain(chunk).map(|id| Value::from(*id)).collect();
        for mut row in tx.fetch(sql, bound).await? {
            let (group, run) = (row.int(), row.int());
            seen.entry(group).or_default().insert(run, row.int() != 0);
        }
    }
    Ok(Apart::of(&seen))
}

/// Finds the words in the names of failing tests of which most tests fail that have them. A test counts once, whatever its parameters.
async fn topics(tx: &mut Tx, run: i64, failing: &mut [Failing]) -> sqlx::Result<()> {
    let sql = format!(
        "SELECT t.nodeid, MAX(CASE WHEN o.failure_id IS NULL THEN 0 ELSE 1 END) FROM outcomes o \
         JOIN tests t ON t.id = o.test_id WHERE o.run_id = $1 AND {RAN} GROUP BY t.nodeid"
    );
    let mut tests: HashMap<String, bool> = HashMap::new();
    for mut row in tx.fetch(sql, values![run]).await? {
        let (nodeid, failed) = (row.text(), row.int() != 0);
        *tests.entry(without_parameters(&nodeid).to_owned()).or_default() |= failed;
    }
    let mut counts: HashMap<String, (usize, usize)> = HashMap::new();
    for (test, failed) in &tests {
        for word in words(test) {
            let (failing, all) = counts.entry(word).or_default();
            *failing += usize::from(*failed);
            *all += 1;
        }
    }
    for Failing { test, member, .. } in failing {
        let most_fail =
            |word: &String| counts.get(word).is_some_and(|(failing, all)| *failing > 1 && failing * 2 > *all);
        member.topics = words(without_parameters(test)).into_iter().filter(most_fail).collect();
    }
    Ok(())
}

async fn settle(
    tx: &mut Tx,
    project: i64,
    run: i64,
    failing: &[Failing],
    cluster: &Cluster,
    groups: &Candidates,
    left: &mut BTreeSet<i64>,
) -> sqlx::Result<()> {
    let members: Vec<&Failing> = cluster.members.iter().map(|index| &failing[*index]).collect();
    let prints: HashSet<&str> = members.iter().map(|failing| failing.member.fingerprint.as_str()).collect();
    let mut now_in: BTreeMap<i64, usize> = BTreeMap::new();
    for failing in &members {
        *now_in.entry(failing.group).or_default() += 1;
    }
    // What shows again is what it was; of several that are not apart, the one that most are of.
    let mut again: BTreeMap<i64, usize> = BTreeMap::new();
    for group in members.iter().filter_map(|failing| failing.member.seen_in) {
        *again.entry(group).or_default() += 1;
    }
    let again = again.into_iter().max_by_key(|(group, count)| (*count, std::cmp::Reverse(*group)));
    let known = again.map_or_else(|| known_as(&prints, &groups.known, &now_in), |(group, _)| Some(group));
    // Else one that this run made for some of them, and that nobody has seen anything else in.
    let own = || {
        let of_this_run = |group: &&i64| groups.made_by.get(*group) == Some(&run);
        let is_within = |group: &&i64| groups.known[*group].iter().all(|print| prints.contains(print.as_str()));
        now_in.keys().filter(of_this_run).filter(is_within).min().copied()
    };
    let group = if let Some(group) = known.or_else(own) {
        group
    } else {
        let row = tx
            .fetch_one(
                "INSERT INTO groups (name, project_id, reason, run_id, made) VALUES ($1, $2, $3, $4, $5) RETURNING id",
                values![new_name(Named::Group), project, &cluster.reason, run, now()],
            )
            .await?;
        row.ok_or(sqlx::Error::RowNotFound)?.int()
    };
    let moved: Vec<i64> = members.iter().filter(|failing| failing.group != group).map(|failing| failing.id).collect();
    left.extend(members.iter().map(|failing| failing.group).filter(|from| *from != group));
    for chunk in moved.chunks(ROWS) {
        let sql = format!("UPDATE failures SET group_id = $1 WHERE id IN ({})", places(1, chunk.len()));
        let bound = std::iter::once(Value::from(group)).chain(chunk.iter().map(|id| Value::from(*id))).collect();
        tx.execute(sql, bound).await?;
    }
    let nothing = HashSet::new();
    let before = groups.known.get(&group).unwrap_or(&nothing);
    let unknown: Vec<&str> = prints.iter().copied().filter(|print| !before.contains(*print)).collect();
    for chunk in unknown.chunks(ROWS) {
        let sql = format!(
            "INSERT INTO group_prints (group_id, fingerprint) VALUES {} ON CONFLICT DO NOTHING",
            tuples(chunk.len(), 2)
        );
        tx.execute(sql, chunk.iter().flat_map(|print| values![group, *print]).collect()).await?;
    }
    if members.len() > 1 {
        tx.execute("UPDATE groups SET reason = $2 WHERE id = $1 AND by_hand = 0", values![group, &cluster.reason])
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_tell_what_they_are_of() {
        for _ in 0..500 {
            let (failure, group) = (new_name(Named::Failure), new_name(Named::Group));
            assert_eq!((failure.len(), group.len()), (8, 8));
            assert!(!failure.starts_with('g') && group.starts_with('g'));
        }
        assert_ne!(new_name(Named::Failure), new_name(Named::Failure));
    }
}
