//! Groups as they are kept. A new failure gets the group of its fingerprint; then the failures of its run are clustered, and each cluster
//! is given to the group that knows it, or to one of its own. What people pinned stays.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{
    sql::{Tx, Value, places, tuples, values},
    write::now,
};
use crate::failures::{
    fingerprint::Traits,
    grouping::{Cluster, Member, cluster, known_as},
};

/// A run is clustered at every report while it has so few failures, and at its end up to so many. Beyond, fingerprints alone decide.
const FEW: i64 = 40;
const MANY: i64 = 5000;
const ROWS: usize = 200;

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
            let sql = format!(
                "SELECT fingerprint, group_id FROM failures WHERE project_id = $1 AND fingerprint IN ({list}) ORDER BY last_seen"
            );
            for mut row in tx.fetch(sql, bound()).await? {
                found.insert((project, row.text()), row.int());
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
            "SELECT f.id, f.group_id, f.fingerprint, f.traits FROM failures f WHERE f.id IN \
             (SELECT failure_id FROM occurrences WHERE run_id = $1) \
             AND NOT EXISTS (SELECT 1 FROM pins p WHERE p.project_id = f.project_id AND p.fingerprint = f.fingerprint) ORDER BY f.id",
            values![run],
        )
        .await?;
    let failing: Vec<Failing> = rows
        .into_iter()
        .map(|mut row| {
            let (id, group, fingerprint) = (row.int(), row.int(), row.text());
            let traits: Traits = serde_json::from_str(&row.text()).unwrap_or_default();
            Failing { id, group, member: Member { fingerprint, traits } }
        })
        .collect();
    let members: Vec<Member> = failing.iter().map(|failing| failing.member.clone()).collect();
    let clusters = cluster(&members);
    let groups = candidates(tx, project, &members).await?;
    let mut left: BTreeSet<i64> = BTreeSet::new();
    for cluster in clusters {
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

async fn candidates(tx: &mut Tx, project: i64, members: &[Member]) -> sqlx::Result<Candidates> {
    let prints: Vec<&str> =
        members.iter().map(|member| member.fingerprint.as_str()).collect::<BTreeSet<_>>().into_iter().collect();
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
    let known = known_as(&prints, &groups.known, &now_in);
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
