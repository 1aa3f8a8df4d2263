//! Groups as they are kept. A new failure gets the group of its fingerprint; then the failures of its run are clustered, and each cluster
//! is given to the group that knows it, or to one of its own. What people pinned stays.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{
    sql::{Row, Tx, Value, places, tuples, values},
    write::now,
};
use crate::{
    fingerprint::{without_parameters, words},
    grouping::{Apart, Cluster, Member, cluster, known_as, reason},
};

/// A run is clustered at every report while it has so few failures, and at its end up to so many. Beyond, fingerprints alone decide.
const FEW: i64 = 40;
const MANY: i64 = 5000;
const ROWS: usize = 200;
/// A run of so many tests is large: what is common in it is no chance.
const LARGE: usize = 100;
/// At most one in so many of its tests fails.
const MOSTLY_PASSING: usize = 4;
/// A word that stands for what fails is in the names of so many failing tests.
const TOPIC: usize = 3;
/// How far back it is looked which tests failed together.
const PAST_RUNS: i64 = 30;
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
    let mut name = pylair_os::random::letters(LETTERS);
    if named == Named::Group {
        name.replace_range(..1, "g");
    }
    name
}

/// Groups for new failures until their run is clustered.
#[derive(Default)]
pub(super) struct Provisional {
    /// By project and fingerprint.
    groups: HashMap<(i64, String), i64>,
    /// What was said by hand, by test and fingerprint.
    pinned: HashMap<(i64, String), i64>,
}

impl Provisional {
    pub(super) fn of(&self, project: i64, test: i64, print: &str) -> i64 {
        let pinned = self.pinned.get(&(test, print.to_owned()));
        *pinned.unwrap_or_else(|| &self.groups[&(project, print.to_owned())])
    }
}

/// The group of each fingerprint, made where it has none: what is pinned, else where it was last.
pub(super) async fn provisional<'a>(
    tx: &mut Tx,
    prints: impl Iterator<Item = (i64, i64, &'a str)>,
) -> sqlx::Result<Provisional> {
    let mut wanted: BTreeMap<i64, BTreeMap<&str, i64>> = BTreeMap::new();
    for (project, run, print) in prints {
        wanted.entry(project).or_default().insert(print, run);
    }
    let mut provisional = Provisional::default();
    let found = &mut provisional.groups;
    for (project, prints) in wanted {
        let all: Vec<(&str, i64)> = prints.into_iter().collect();
        for chunk in all.chunks(ROWS) {
            let list = places(1, chunk.len());
            let bound = || {
                let prints = chunk.iter().map(|(print, _)| Value::from(*print));
                std::iter::once(Value::from(project)).chain(prints).collect::<Vec<_>>()
            };
            // One row per fingerprint, however many failures have it. Where a failure was put by hand says little of others like it.
            let of_print = "FROM failures f WHERE f.project_id = $1 AND f.fingerprint = v.column1";
            let newest = "ORDER BY f.last_seen DESC LIMIT 1";
            let rows = chunk.iter().enumerate().map(|(number, _)| format!("(${})", number + 2)).collect::<Vec<_>>();
            let sql = format!(
                "SELECT v.column1 AS fingerprint, COALESCE((SELECT f.group_id {of_print} AND NOT EXISTS (SELECT 1 FROM pinned p \
                 WHERE p.test_id = f.test_id AND p.fingerprint = f.fingerprint) {newest}), (SELECT f.group_id {of_print} {newest})) AS group_id \
                 FROM (VALUES {}) AS v",
                rows.join(", ")
            );
            for row in tx.fetch(sql, bound()).await? {
                if let Some(group) = row.maybe_int("group_id")? {
                    found.insert((project, row.text("fingerprint")?), group);
                }
            }
            let sql = format!(
                "SELECT test_id, fingerprint, group_id FROM pinned WHERE project_id = $1 AND fingerprint IN ({list})"
            );
            for row in tx.fetch(sql, bound()).await? {
                provisional.pinned.insert((row.int("test_id")?, row.text("fingerprint")?), row.int("group_id")?);
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
                bound.extend(values![&name, project, "no other failure was grouped with it", *run, now()]);
                names.insert(name, *print);
            }
            let sql = format!(
                "INSERT INTO groups (name, project_id, reason, run_id, made) VALUES {} RETURNING id, name",
                tuples(new.len(), 5)
            );
            let mut prints = Vec::new();
            for row in tx.fetch(sql, bound).await? {
                let id = row.int("id")?;
                let print = names[&row.text("name")?];
                prints.extend(values![id, print]);
                found.insert((project, print.to_owned()), id);
            }
            let sql = format!("INSERT INTO group_prints (group_id, fingerprint) VALUES {}", tuples(new.len(), 2));
            tx.execute(sql, prints).await?;
        }
    }
    Ok(provisional)
}

/// A failure of a run.
struct Failing {
    id: i64,
    group: i64,
    test_id: i64,
    test: String,
    member: Member,
}

/// From fingerprint, pattern and traits.
fn member(row: &Row) -> sqlx::Result<Member> {
    let traits = serde_json::from_str(&row.text("traits")?).unwrap_or_default();
    Ok(Member { fingerprint: row.text("fingerprint")?, pattern: row.text("pattern")?, traits, ..Member::default() })
}

/// Clusters the failures of a run and gives each cluster its group.
pub(super) async fn regroup(tx: &mut Tx, project: i64, run: i64, ended: bool) -> sqlx::Result<()> {
    let counted =
        tx.fetch_one("SELECT failed + error + rerun AS failures FROM runs WHERE id = $1", values![run]).await?;
    let count = counted.map_or(Ok(0), |row| row.int("failures"))?;
    if count == 0 || count > if ended { MANY } else { FEW } {
        return Ok(());
    }
    let rows = tx
        .fetch(
            "SELECT f.id, f.group_id, f.fingerprint, f.pattern, f.traits, f.test_id, t.nodeid FROM failures f JOIN tests t ON t.id = f.test_id WHERE f.id IN \
             (SELECT failure_id FROM occurrences WHERE run_id = $1) \
             AND NOT EXISTS (SELECT 1 FROM pinned p WHERE p.test_id = f.test_id AND p.fingerprint = f.fingerprint) ORDER BY f.id",
            values![run],
        )
        .await?;
    let mut failing: Vec<Failing> = rows
        .iter()
        .map(|row| {
            Ok(Failing {
                id: row.int("id")?,
                group: row.int("group_id")?,
                test_id: row.int("test_id")?,
                test: row.text("nodeid")?,
                member: member(row)?,
            })
        })
        .collect::<sqlx::Result<_>>()?;
    let groups = candidates(tx, project, &failing).await?;
    let shown = again(tx, project, run, &mut failing, &groups).await?;
    let apart = apart(tx, run, &shown).await?;
    if ended {
        pasts(tx, run, &mut failing).await?;
    }
    let members: Vec<Member> = failing.iter().map(|failing| failing.member.clone()).collect();
    let mut left: BTreeSet<i64> = BTreeSet::new();
    let mut touched: BTreeSet<i64> = BTreeSet::new();
    for cluster in cluster(&members, &apart) {
        touched.insert(settle(tx, project, run, &failing, &cluster, &groups, &mut left).await?);
    }
    touched.extend(&left);
    let now: HashMap<i64, &Member> = failing.iter().map(|failing| (failing.id, &failing.member)).collect();
    retell(tx, touched, &now).await?;
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
        for row in tx.fetch(sql, bound).await? {
            let id = row.int("id")?;
            ids.insert(id);
            candidates.made_by.insert(id, row.int("run_id")?);
        }
    }
    let ids: Vec<i64> = ids.into_iter().collect();
    for chunk in ids.chunks(ROWS) {
        let sql =
            format!("SELECT group_id, fingerprint FROM group_prints WHERE group_id IN ({})", places(0, chunk.len()));
        for row in tx.fetch(sql, chunk.iter().map(|id| Value::from(*id)).collect()).await? {
            candidates.known.entry(row.int("group_id")?).or_default().insert(row.text("fingerprint")?);
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
        for row in tx.fetch(sql, bound).await? {
            could.entry(row.int("group_id")?).or_default().insert(row.text("fingerprint")?);
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
            "SELECT f.group_id, o.run_id, CAST(MAX(CASE WHEN o.failure_id = f.id THEN 1 ELSE 0 END) AS BIGINT) AS failed FROM failures f \
             JOIN outcomes o ON o.test_id = f.test_id AND {RAN} WHERE o.run_id <> $1 AND f.group_id IN ({}) GROUP BY f.group_id, o.run_id",
            places(1, chunk.len())
        );
        let bound = std::iter::once(&run).chain(chunk).map(|id| Value::from(*id)).collect();
        for row in tx.fetch(sql, bound).await? {
            seen.entry(row.int("group_id")?).or_default().insert(row.int("run_id")?, row.flag("failed")?);
        }
    }
    Ok(Apart::of(&seen))
}

/// Says of failing tests how they did before, and which words in their names stand for what fails, where the run is large enough for that
/// to be no chance: most of it passes, and the words are of several tests of which most fail. A test counts once, whatever its parameters.
async fn pasts(tx: &mut Tx, run: i64, failing: &mut [Failing]) -> sqlx::Result<()> {
    let sql = format!(
        "SELECT t.nodeid, CAST(MAX(CASE WHEN o.failure_id IS NULL THEN 0 ELSE 1 END) AS BIGINT) AS failed FROM outcomes o \
         JOIN tests t ON t.id = o.test_id WHERE o.run_id = $1 AND {RAN} GROUP BY t.nodeid"
    );
    let mut tests: HashMap<String, bool> = HashMap::new();
    for row in tx.fetch(sql, values![run]).await? {
        let (nodeid, failed) = (row.text("nodeid")?, row.flag("failed")?);
        *tests.entry(without_parameters(&nodeid).to_owned()).or_default() |= failed;
    }
    let broken = tests.values().filter(|failed| **failed).count();
    if tests.len() < LARGE || broken * MOSTLY_PASSING > tests.len() {
        return Ok(());
    }
    let pasts = past_runs(tx, run, failing).await?;
    let mut counts: HashMap<String, (usize, usize)> = HashMap::new();
    for (test, failed) in &tests {
        for word in words(test) {
            let (failing, all) = counts.entry(word).or_default();
            *failing += usize::from(*failed);
            *all += 1;
        }
    }
    for Failing { test, test_id, member, .. } in failing {
        let most_fail =
            |word: &String| counts.get(word).is_some_and(|(failing, all)| *failing >= TOPIC && failing * 2 > *all);
        member.topics = words(without_parameters(test)).into_iter().filter(most_fail).collect();
        member.past = pasts.get(test_id).filter(|past| past.contains('p')).cloned();
    }
    Ok(())
}

/// How the tests did in the project's last runs: `f` failed, `p` passed, `-` was not run, the newest first.
async fn past_runs(tx: &mut Tx, run: i64, failing: &[Failing]) -> sqlx::Result<HashMap<i64, String>> {
    let sql = "SELECT r.id FROM runs r JOIN runs now ON now.id = $1 WHERE r.project_id = now.project_id AND r.id <> now.id \
        AND r.began <= now.began ORDER BY r.began DESC, r.id DESC LIMIT $2";
    let rows = tx.fetch(sql, values![run, PAST_RUNS]).await?;
    let runs: Vec<i64> = rows.iter().map(|row| row.int("id")).collect::<sqlx::Result<_>>()?;
    let tests: Vec<i64> = failing.iter().map(|failing| failing.test_id).collect::<BTreeSet<_>>().into_iter().collect();
    let mut pasts: HashMap<i64, Vec<u8>> = tests.iter().map(|test| (*test, vec![b'-'; runs.len()])).collect();
    if runs.is_empty() {
        return Ok(HashMap::new());
    }
    for chunk in tests.chunks(ROWS) {
        let sql = format!(
            "SELECT o.test_id, o.run_id, CAST(MAX(CASE WHEN o.failure_id IS NULL THEN 0 ELSE 1 END) AS BIGINT) AS failed FROM outcomes o \
             WHERE {RAN} AND o.run_id IN ({}) AND o.test_id IN ({}) GROUP BY o.test_id, o.run_id",
            places(0, runs.len()),
            places(runs.len(), chunk.len())
        );
        let bound = runs.iter().chain(chunk).map(|id| Value::from(*id)).collect();
        for row in tx.fetch(sql, bound).await? {
            let (test, of, failed) = (row.int("test_id")?, row.int("run_id")?, row.flag("failed")?);
            if let (Some(past), Some(at)) = (pasts.get_mut(&test), runs.iter().position(|known| *known == of)) {
                past[at] = if failed { b'f' } else { b'p' };
            }
        }
    }
    Ok(pasts.into_iter().map(|(test, past)| (test, String::from_utf8(past).unwrap_or_default())).collect())
}

async fn settle(
    tx: &mut Tx,
    project: i64,
    run: i64,
    failing: &[Failing],
    cluster: &Cluster,
    groups: &Candidates,
    left: &mut BTreeSet<i64>,
) -> sqlx::Result<i64> {
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
        row.ok_or(sqlx::Error::RowNotFound)?.int("id")?
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
    Ok(group)
}

/// Says of groups why their failures are together, all of them: a reason is to be true of those that did not fail this time too. `now` is
/// what the run shows that is being clustered.
pub(super) async fn retell(tx: &mut Tx, groups: BTreeSet<i64>, now: &HashMap<i64, &Member>) -> sqlx::Result<()> {
    let ids: Vec<i64> = groups.into_iter().collect();
    for chunk in ids.chunks(ROWS) {
        let bound = || chunk.iter().map(|id| Value::from(*id)).collect::<Vec<_>>();
        let list = places(0, chunk.len());
        let sql = format!(
            "SELECT group_id, id, fingerprint, pattern, traits FROM failures WHERE group_id IN ({list}) ORDER BY id LIMIT {MANY}"
        );
        let mut members: BTreeMap<i64, Vec<(i64, Member)>> = BTreeMap::new();
        for row in tx.fetch(sql, bound()).await? {
            members.entry(row.int("group_id")?).or_default().push((row.int("id")?, member(&row)?));
        }
        let sql = format!("SELECT id, reason FROM groups WHERE by_hand = 0 AND id IN ({list})");
        for row in tx.fetch(sql, bound()).await? {
            let (group, told) = (row.int("id")?, row.text("reason")?);
            let Some(members) = members.get(&group) else { continue };
            let all: Vec<&Member> = members.iter().map(|(id, member)| now.get(id).copied().unwrap_or(member)).collect();
            let reason = reason(&all);
            if reason != told {
                tx.execute("UPDATE groups SET reason = $2 WHERE id = $1", values![group, reason]).await?;
            }
        }
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
