//! What people and AI agents do with failures: record analyses, say what a failure is, put groups apart and together.

use std::collections::HashMap;

use super::{
    Store, by_word,
    regroup::{Named, new_name, retell},
    sql::{Tx, Value, places, values},
    word,
    write::{judge_tests, now, passed_in},
};
use crate::{error::Error, record::Status};

const MAX_ANALYSIS_BYTES: usize = 64 * 1024;
const MAX_AUTHOR_BYTES: usize = 200;
pub(crate) const RULES: std::ops::RangeInclusive<u8> = 1..=9;

/// A failure as changes need it.
struct FailureRow {
    id: i64,
    test: i64,
    project: i64,
    group: i64,
    fingerprint: String,
    nodeid: String,
    note: Option<String>,
}

impl Store {
    /// Records an analysis under a rule.
    pub(crate) async fn analyse(
        &self,
        id: &str,
        rule: Option<u8>,
        analysis: &str,
        author: &str,
    ) -> Result<Status, Error> {
        if let Some(rule) = rule.filter(|rule| !RULES.contains(rule)) {
            return Err(Error::Invalid { what: "the rule", why: format!("there are rules 1 to 9, and no {rule}") });
        }
        let analysis = analysis.trim();
        if analysis.is_empty() || analysis.len() > MAX_ANALYSIS_BYTES {
            let why = if analysis.is_empty() {
                "it is empty".to_owned()
            } else {
                format!("it has more than {MAX_ANALYSIS_BYTES} bytes")
            };
            return Err(Error::Invalid { what: "the analysis", why });
        }
        let mut tx = self.changing().await?;
        let found = self.found(&mut tx, id).await?;
        let done = async {
            tx.execute(
                "INSERT INTO investigations (failure_id, rule, analysis, author, at) VALUES ($1, $2, $3, $4, $5)",
                values![found.id, rule.map(i64::from), analysis, short(author), now()],
            )
            .await?;
            judged(tx, &found).await
        };
        done.await.map_err(|source| self.failed("change", source))
    }

    /// Says what a failure is. That it is resolved has to be shown by a passing run, unless it is forced.
    pub(crate) async fn mark(&self, id: &str, status: Status, author: &str, force: bool) -> Result<Status, Error> {
        if status == Status::New {
            let why = "a failure is new until something happens to it; say `reopened`".to_owned();
            return Err(Error::Invalid { what: "the status", why });
        }
        let mut tx = self.changing().await?;
        let found = self.found(&mut tx, id).await?;
        let passed = passed_in(&mut tx, found.id, found.test).await.map_err(self.reading())?.is_some();
        if status == Status::Resolved && !passed && !force {
            let why = found.note.unwrap_or_else(|| format!("`{}` has not passed since it was last seen", found.nodeid));
            return Err(Error::NotShown { id: id.to_owned(), test: found.nodeid, why });
        }
        let done = async {
            tx.execute(
                "INSERT INTO marks (failure_id, status, verified, author, at) VALUES ($1, $2, $3, $4, $5)",
                values![found.id, word(status), passed && status == Status::Resolved, short(author), now()],
            )
            .await?;
            judged(tx, &found).await
        };
        done.await.map_err(|source| self.failed("change", source))
    }

    /// Puts failures into a group of their own, where they stay whatever they are seen with. Its id.
    pub(crate) async fn split(&self, ids: &[String], author: &str) -> Result<String, Error> {
        if ids.is_empty() {
            return Err(Error::Invalid { what: "the list of failures", why: "none is named".into() });
        }
        let mut tx = self.changing().await?;
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            found.push(self.found(&mut tx, id).await?);
        }
        if found.iter().any(|failure| failure.project != found[0].project) {
            return Err(Error::Invalid { what: "the list of failures", why: "they are of different projects".into() });
        }
        let name = new_name(Named::Group);
        let done = async {
            let whose = if found.len() == 1 {
                "it was put into a group of its own"
            } else {
                "they were put into a group of their own"
            };
            let reason = format!("{whose} by hand, by {}", short(author));
            let row = tx.fetch_one("SELECT last_run FROM failures WHERE id = $1", values![found[0].id]).await?;
            let run = row.map_or(Ok(0), |row| row.int("last_run"))?;
            let row = tx
                .fetch_one(
                    "INSERT INTO groups (name, project_id, reason, by_hand, run_id, made) VALUES ($1, $2, $3, 1, $4, $5) RETURNING id",
                    values![&name, found[0].project, reason, run, now()],
                )
                .await?;
            let group = row.ok_or(sqlx::Error::RowNotFound)?.int("id")?;
            for failure in &found {
                tx.execute(
                    "INSERT INTO pinned (test_id, fingerprint, project_id, group_id) VALUES ($1, $2, $3, $4) \
                     ON CONFLICT (test_id, fingerprint) DO UPDATE SET group_id = excluded.group_id",
                    values![failure.test, &failure.fingerprint, failure.project, group],
                )
                .await?;
                tx.execute("UPDATE failures SET group_id = $2 WHERE id = $1", values![failure.id, group]).await?;
                // Its old group is not to find it again, unless others there fail in the same way.
                tx.execute(
                    "DELETE FROM group_prints WHERE group_id = $1 AND fingerprint = $2 AND NOT EXISTS \
                     (SELECT 1 FROM failures WHERE group_id = $1 AND fingerprint = $2)",
                    values![failure.group, &failure.fingerprint],
                )
                .await?;
            }
            let left: std::collections::BTreeSet<i64> = found.iter().map(|failure| failure.group).collect();
            retell(&mut tx, left, &HashMap::new()).await?;
            tx.commit().await
        };
        done.await.map_err(|source| self.failed("change", source))?;
        Ok(name)
    }

    /// Makes one group part of another, for good: what would be given to it is given to the other.
    pub(crate) async fn merge(&self, into: &str, from: &str, author: &str) -> Result<(), Error> {
        let mut tx = self.changing().await?;
        let into = self.found_group(&mut tx, into).await?;
        let from = self.found_group(&mut tx, from).await?;
        if into.0 == from.0 {
            return Err(Error::Invalid { what: "this pair of groups", why: "they are one group".into() });
        }
        if into.1 != from.1 {
            return Err(Error::Invalid { what: "this pair of groups", why: "they are of different projects".into() });
        }
        let (into, from) = (into.0, from.0);
        let done = async {
            let reason = format!("groups were put together here by hand, by {}", short(author));
            tx.execute("UPDATE groups SET by_hand = 1, reason = $2 WHERE id = $1", values![into, reason]).await?;
            tx.execute("UPDATE groups SET merged_into = $1 WHERE id = $2 OR merged_into = $2", values![into, from])
                .await?;
            tx.execute("UPDATE failures SET group_id = $1 WHERE group_id = $2", values![into, from]).await?;
            tx.execute("UPDATE pinned SET group_id = $1 WHERE group_id = $2", values![into, from]).await?;
            tx.execute(
                "INSERT INTO group_prints (group_id, fingerprint) SELECT CAST($1 AS BIGINT), fingerprint FROM group_prints WHERE group_id = $2 \
                 ON CONFLICT DO NOTHING",
                values![into, from],
            )
            .await?;
            // Both were clusters of their own, and would be again: each failure is said to belong here.
            tx.execute(
                "INSERT INTO pinned (test_id, fingerprint, project_id, group_id) \
                 SELECT test_id, fingerprint, project_id, group_id FROM failures WHERE group_id = $1 \
                 ON CONFLICT (test_id, fingerprint) DO NOTHING",
                values![into],
            )
            .await?;
            tx.execute("DELETE FROM group_prints WHERE group_id = $1", values![from]).await?;
            tx.commit().await
        };
        done.await.map_err(|source| self.failed("change", source))
    }

    async fn changing(&self) -> Result<Tx, Error> {
        self.db.begin().await.map_err(|source| self.failed("change", source))
    }

    async fn found(&self, tx: &mut Tx, id: &str) -> Result<FailureRow, Error> {
        let sql = "SELECT f.id, f.test_id, f.project_id, f.group_id, f.fingerprint, t.nodeid, f.note \
            FROM failures f JOIN tests t ON t.id = f.test_id WHERE f.name = $1";
        let row = tx.fetch_one(sql, values![id.to_ascii_lowercase()]).await.map_err(self.reading())?;
        let row = row.ok_or_else(|| Error::Unknown { what: "failure", id: id.to_owned() })?;
        let found = || {
            Ok(FailureRow {
                id: row.int("id")?,
                test: row.int("test_id")?,
                project: row.int("project_id")?,
                group: row.int("group_id")?,
                fingerprint: row.text("fingerprint")?,
                nodeid: row.text("nodeid")?,
                note: row.maybe_text("note")?,
            })
        };
        found().map_err(self.reading())
    }

    /// Number and project of a group.
    async fn found_group(&self, tx: &mut Tx, id: &str) -> Result<(i64, i64), Error> {
        let sql = "SELECT COALESCE(merged_into, id) AS id, project_id FROM groups WHERE name = $1";
        let row = tx.fetch_one(sql, values![id.to_ascii_lowercase()]).await.map_err(self.reading())?;
        let row = row.ok_or_else(|| Error::Unknown { what: "group", id: id.to_owned() })?;
        let found = || Ok((row.int("id")?, row.int("project_id")?));
        found().map_err(self.reading())
    }
}

/// Tells the status again, commits, and says what it is.
async fn judged(mut tx: Tx, found: &FailureRow) -> sqlx::Result<Status> {
    judge_tests(&mut tx, &[found.test]).await?;
    let row = tx.fetch_one("SELECT status FROM failures WHERE id = $1", values![found.id]).await?;
    tx.commit().await?;
    row.map_or(Ok(Status::New), |row| Ok(by_word(&row.text("status")?, Status::New)))
}

fn short(author: &str) -> String {
    let author = author.trim();
    let author = &author[..author.floor_char_boundary(MAX_AUTHOR_BYTES)];
    if author.is_empty() { "somebody".to_owned() } else { author.to_owned() }
}

/// Deletes failures with everything that is about them.
pub(super) async fn forget(tx: &mut Tx, ids: &[i64]) -> sqlx::Result<()> {
    let list = places(0, ids.len());
    let bound = || ids.iter().map(|id| Value::from(*id)).collect::<Vec<_>>();
    for table in ["occurrences", "investigations", "marks", "changes"] {
        tx.execute(format!("DELETE FROM {table} WHERE failure_id IN ({list})"), bound()).await?;
    }
    tx.execute(format!("UPDATE outcomes SET failure_id = NULL WHERE failure_id IN ({list})"), bound()).await?;
    tx.execute(format!("DELETE FROM failures WHERE id IN ({list})"), bound()).await?;
    Ok(())
}
