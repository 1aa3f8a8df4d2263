//! Forgetting: what is older or more than the limits. A little at a time, so that nobody waits long for the writer.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    Limits, Store,
    change::forget,
    sql::{Db, Value, places, values},
};
use crate::error::Error;
use pylair_os::clock::Clock;

/// Of each failure, so many occurrences keep their evidence, and so many are kept at all.
const IN_FULL: i64 = 10;
const AT_ALL: i64 = 100;
/// Per transaction.
const FAILURES: usize = 500;
const RUNS: usize = 20;
/// How long a group without failures is kept.
const EMPTY_GROUP: Duration = Duration::from_hours(24);

/// What was forgotten.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trimmed {
    pub occurrences: u64,
    pub runs: u64,
    pub failures: u64,
}

impl Store {
    pub(crate) async fn trim(&self, limits: &Limits, clock: &Clock) -> Result<Trimmed, Error> {
        self.trim_all(limits, clock).await.map_err(|source| self.failed("trim", source))
    }

    async fn trim_all(&self, limits: &Limits, clock: &Clock) -> sqlx::Result<Trimmed> {
        let mut trimmed = Trimmed { occurrences: self.trim_occurrences().await?, ..Trimmed::default() };
        let before = |age| Timestamp::try_from(clock.oldest(age)).unwrap_or(Timestamp::MIN).as_microsecond();
        let oldest = before(limits.max_age);
        loop {
            let runs = self
                .ids("SELECT id FROM runs WHERE began < $1 ORDER BY began LIMIT $2", values![oldest, size(RUNS)])
                .await?;
            if runs.is_empty() {
                break;
            }
            self.forget_runs(&runs).await?;
            trimmed.runs += runs.len() as u64;
        }
        loop {
            let sql = "SELECT id FROM failures WHERE last_seen < $1 ORDER BY last_seen LIMIT $2";
            let old = self.ids(sql, values![oldest, size(FAILURES)]).await?;
            if !self.forget_failures(&old, &mut trimmed).await? {
                break;
            }
        }
        let count = self.number("SELECT COUNT(*) AS n FROM failures", "n").await?;
        let mut surplus = count - i64::try_from(limits.max_failures).unwrap_or(i64::MAX);
        while surplus > 0 {
            let some = surplus.min(size(FAILURES));
            let old = self.ids("SELECT id FROM failures ORDER BY last_seen, id LIMIT $1", values![some]).await?;
            self.forget_failures(&old, &mut trimmed).await?;
            surplus -= some;
        }
        while self.used_bytes().await? > limits.max_bytes {
            let old = self
                .ids("SELECT id FROM failures ORDER BY last_seen, id LIMIT $1", values![size(FAILURES / 5)])
                .await?;
            let more = self.forget_failures(&old, &mut trimmed).await?;
            let runs = self.ids("SELECT id FROM runs ORDER BY began LIMIT $1", values![size(RUNS)]).await?;
            // The newest run stays, it may still report.
            let runs = if more || runs.len() < RUNS { &[][..] } else { &runs[..] };
            self.forget_runs(runs).await?;
            trimmed.runs += runs.len() as u64;
            if !more && runs.is_empty() {
                break;
            }
        }
        self.forget_empty(before(EMPTY_GROUP).min(oldest.max(0))).await?;
        Ok(trimmed)
    }

    async fn trim_occurrences(&self) -> sqlx::Result<u64> {
        let ranked = |most: i64| {
            format!(
                "SELECT id FROM (SELECT o.id AS id, ROW_NUMBER() OVER (PARTITION BY o.failure_id ORDER BY o.at DESC, o.id DESC) AS n \
                 FROM occurrences o JOIN failures f ON f.id = o.failure_id WHERE f.occurrences > {most}) z WHERE n > {most}"
            )
        };
        let mut tx = self.db.begin().await?;
        let deleted =
            tx.execute(format!("DELETE FROM occurrences WHERE id IN ({})", ranked(AT_ALL)), Vec::new()).await?;
        let sql = format!(
            "UPDATE occurrences SET evidence = NULL WHERE evidence IS NOT NULL AND id IN ({})",
            ranked(IN_FULL)
        );
        tx.execute(sql, Vec::new()).await?;
        tx.commit().await?;
        Ok(deleted)
    }

    async fn forget_failures(&self, ids: &[i64], trimmed: &mut Trimmed) -> sqlx::Result<bool> {
        if ids.is_empty() {
            return Ok(false);
        }
        let mut tx = self.db.begin().await?;
        forget(&mut tx, ids).await?;
        tx.commit().await?;
        trimmed.failures += ids.len() as u64;
        Ok(true)
    }

    async fn forget_runs(&self, ids: &[i64]) -> sqlx::Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let list = places(0, ids.len());
        let bound = || ids.iter().map(|id| Value::from(*id)).collect::<Vec<_>>();
        let mut tx = self.db.begin().await?;
        tx.execute(format!("DELETE FROM outcomes WHERE run_id IN ({list})"), bound()).await?;
        tx.execute(format!("DELETE FROM runs WHERE id IN ({list})"), bound()).await?;
        tx.commit().await
    }

    /// Environments without runs, groups without failures, and tests that neither ran nor failed. Only those that are as old as what is forgotten: a fault that comes
    /// back finds its group.
    async fn forget_empty(&self, before: i64) -> sqlx::Result<()> {
        let empty = "SELECT g.id FROM groups g WHERE g.made < $1 AND g.by_hand = 0 AND g.merged_into IS NULL \
            AND NOT EXISTS (SELECT 1 FROM failures f WHERE f.group_id = g.id) AND NOT EXISTS (SELECT 1 FROM pinned p WHERE p.group_id = g.id) \
            AND NOT EXISTS (SELECT 1 FROM groups m WHERE m.merged_into = g.id)";
        let mut tx = self.db.begin().await?;
        tx.execute(format!("DELETE FROM group_prints WHERE group_id IN ({empty})"), values![before]).await?;
        tx.execute(format!("DELETE FROM groups WHERE id IN ({empty})"), values![before]).await?;
        let unused =
            "DELETE FROM environments WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.environment = environments.hash)";
        tx.execute(unused, Vec::new()).await?;
        tx.commit().await
    }

    async fn ids(&self, sql: &str, bound: Vec<Value>) -> sqlx::Result<Vec<i64>> {
        self.db.fetch(sql, bound).await?.iter().map(|row| row.int("id")).collect()
    }

    async fn number(&self, sql: &str, column: &str) -> sqlx::Result<i64> {
        self.db.fetch_one(sql, Vec::new()).await?.map_or(Ok(0), |row| row.int(column))
    }

    /// Of SQLite's file. PostgreSQL's space is for whoever runs it.
    async fn used_bytes(&self) -> sqlx::Result<u64> {
        if !matches!(self.db, Db::Lite { .. }) {
            return Ok(0);
        }
        let mut numbers = [0; 3];
        for (number, name) in numbers.iter_mut().zip(["page_count", "freelist_count", "page_size"]) {
            *number = self.number(&format!("PRAGMA {name}"), name).await?;
        }
        let [pages, free, size] = numbers;
        Ok(super::count((pages - free) * size))
    }
}

fn size(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}
