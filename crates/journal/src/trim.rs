//! Keeping the journal within its bounds: how much of it is whose, and what goes first. The writer calls it; nobody else deletes.

use std::{
    collections::HashMap,
    sync::{Arc, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use sqlx::{Row, sqlite::SqliteRow};

use super::{
    Error, Limits,
    connect::beside,
    store::{Store, from_sql, to_sql},
};
use pylair_os::budget::{Shares, Use};

/// What an event takes in the file besides its body.
pub(super) const ROW_BYTES: u64 = 128;
/// Rows per DELETE, so that trimming never keeps new events waiting for long.
const ROWS_PER_DELETE: u64 = 1000;
/// The same where rows are deleted for their size, which may be large.
const LARGE_ROWS_PER_DELETE: u64 = 100;

/// Whose the events are. Kept in memory as in the file, where it is changed together with the events.
#[derive(Debug, Default)]
pub(super) struct Usage {
    events: Shares,
    bytes: Shares,
    trimmed: HashMap<Arc<str>, Trimmed>,
}

/// What of an owner's history was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trimmed {
    pub events: u64,
    /// The highest sequence number among them.
    pub seq: u64,
    /// Why the newest of them went.
    pub why: String,
}

/// Events that were deleted.
#[derive(Debug)]
struct Deleted {
    owner: Arc<str>,
    seq: u64,
    bytes: u64,
}

/// What goes next.
#[derive(Debug, PartialEq, Eq)]
struct Surplus {
    owner: Arc<str>,
    rows: u64,
    why: String,
}

impl Usage {
    pub(super) fn add(&mut self, owner: &Arc<str>, events: u64, bytes: u64) {
        self.events.add(owner, events);
        self.bytes.add(owner, bytes);
    }

    pub(super) fn trimmed(&self, owner: &str) -> Option<&Trimmed> {
        self.trimmed.get(owner)
    }

    /// The highest sequence number that was removed of anybody's.
    pub(super) fn trimmed_of_all(&self) -> u64 {
        self.trimmed.values().map(|trimmed| trimmed.seq).max().unwrap_or(0)
    }

    fn surplus(&self, used_bytes: u64, limits: &Limits) -> Option<Surplus> {
        let (shares, rows, why) = if self.events.total() > limits.max_events {
            let rows = (self.events.total() - limits.max_events).min(ROWS_PER_DELETE);
            (&self.events, rows, limits.events_bound())
        } else if used_bytes > limits.full_bytes() {
            (&self.bytes, LARGE_ROWS_PER_DELETE, limits.bytes_bound())
        } else {
            return None;
        };
        let owner = shares.largest(|_| true)?;
        // Not more than what it has more than the next one: that one's turn comes then.
        let second = shares.largest(|other| *other != *owner).map_or(0, |other| shares.of(&other));
        let average = (shares.of(&owner) / self.events.of(&owner).max(1)).max(1);
        let rows = rows.min((shares.of(&owner) - second) / average).max(1);
        Some(Surplus { owner, rows, why })
    }

    fn remove(&mut self, deleted: &[Deleted], why: &str) {
        for deleted in deleted {
            self.events.remove(&deleted.owner, 1);
            self.bytes.remove(&deleted.owner, deleted.bytes);
            let trimmed = self.trimmed.entry(deleted.owner.clone()).or_default();
            trimmed.events += 1;
            trimmed.seq = trimmed.seq.max(deleted.seq);
            why.clone_into(&mut trimmed.why);
        }
    }
}

impl Limits {
    /// What the pages of the file may hold before the oldest events go: the rest is for what comes until then, and for the
    /// write-ahead log.
    fn full_bytes(&self) -> u64 {
        self.max_bytes / 4 * 3
    }

    /// Bytes of new events after which the limits are looked at.
    pub(super) fn trim_after_bytes(&self) -> u64 {
        self.max_bytes / 32
    }

    /// How long the write-ahead log may get before it is folded into the file.
    fn log_bytes(&self) -> u64 {
        self.max_bytes / 16
    }

    fn events_bound(&self) -> String {
        format!("histories of all owners together keep {} events", self.max_events)
    }

    fn bytes_bound(&self) -> String {
        format!("histories of all owners together may take {} MB", self.max_bytes >> 20)
    }

    fn age_bound(&self) -> String {
        format!("histories are kept for {} days", self.max_age.as_secs() / 86_400)
    }
}

impl Store {
    pub(super) fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what earlier daemons counted.
    pub(super) async fn load_usage(&self) -> Result<(), Error> {
        let rows = sqlx::query("SELECT owner, events, bytes, trimmed, trimmed_seq, trimmed_for FROM usage")
            .fetch_all(&self.writer())
            .await
            .map_err(|source| self.failed("read", source))?;
        let mut usage = self.usage();
        for row in &rows {
            let read = |row: &SqliteRow| -> Result<(Arc<str>, u64, u64, Trimmed), sqlx::Error> {
                let number = |at: usize| row.try_get(at).map(from_sql);
                let trimmed = Trimmed { events: number(3)?, seq: number(4)?, why: row.try_get(5)? };
                Ok((row.try_get::<&str, _>(0)?.into(), number(1)?, number(2)?, trimmed))
            };
            let (owner, events, bytes, trimmed) = read(row).map_err(|source| self.failed("read", source))?;
            usage.add(&owner, events, bytes);
            if trimmed.events > 0 {
                usage.trimmed.insert(owner, trimmed);
            }
        }
        Ok(())
    }

    /// Deletes what is older than `oldest`, then what is over the limits: of whoever has most the oldest first.
    pub(super) async fn trim(&self, limits: &Limits, oldest: Option<Timestamp>) -> Result<(), Error> {
        if !self.is_ready() {
            return Ok(());
        }
        let trimming = async {
            while let Some(oldest) = oldest {
                // Times are nearly in the order of sequence numbers, so only the oldest rows are looked at and no index by
                // time is needed. The newest row stays: numbers continue from it.
                let delete = sqlx::query(
                    "DELETE FROM events WHERE seq IN (\
                       SELECT seq FROM (SELECT seq, at FROM events ORDER BY seq LIMIT ?1) WHERE at < ?2) \
                     AND seq < (SELECT max(seq) FROM events) \
                     RETURNING owner, seq, length(CAST(body AS BLOB))",
                )
                .bind(to_sql(ROWS_PER_DELETE))
                .bind(oldest.as_microsecond());
                if !self.delete(delete, &limits.age_bound()).await? {
                    break;
                }
            }
            loop {
                let used = self.used_bytes().await?;
                let Some(surplus) = self.usage().surplus(used, limits) else { break };
                // `+owner` has SQLite go through the oldest rows instead of sorting all of this owner's.
                let delete = sqlx::query(
                    "DELETE FROM events WHERE seq IN (\
                       SELECT seq FROM events WHERE +owner = ?1 ORDER BY seq LIMIT ?2) \
                     AND seq < (SELECT max(seq) FROM events) \
                     RETURNING owner, seq, length(CAST(body AS BLOB))",
                )
                .bind(surplus.owner.to_string())
                .bind(to_sql(surplus.rows));
                if !self.delete(delete, &surplus.why).await? {
                    break;
                }
            }
            self.shrink(limits).await
        };
        trimming.await.map_err(|source| self.failed("trim", source))
    }

    /// Whether anything was deleted.
    async fn delete(
        &self,
        delete: sqlx::query::Query<'_, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>,
        why: &str,
    ) -> Result<bool, sqlx::Error> {
        let mut transaction = pylair_sqlite::begin(&self.writer()).await?;
        let rows = delete.fetch_all(&mut *transaction).await?;
        let deleted: Vec<Deleted> = rows
            .iter()
            .map(|row| {
                let owner: &str = row.try_get(0)?;
                let (seq, bytes) = (from_sql(row.try_get(1)?), from_sql(row.try_get(2)?) + ROW_BYTES);
                Ok(Deleted { owner: owner.into(), seq, bytes })
            })
            .collect::<Result<_, sqlx::Error>>()?;
        let mut owners: HashMap<&str, (u64, u64, u64)> = HashMap::new();
        for deleted in &deleted {
            let (events, bytes, seq) = owners.entry(&deleted.owner).or_default();
            (*events, *bytes, *seq) = (*events + 1, *bytes + deleted.bytes, (*seq).max(deleted.seq));
        }
        for (owner, (events, bytes, seq)) in owners {
            sqlx::query(
                "UPDATE usage SET events = max(events - ?2, 0), bytes = max(bytes - ?3, 0), trimmed = trimmed + ?2, \
                 trimmed_seq = max(trimmed_seq, ?4), trimmed_for = ?5 WHERE owner = ?1",
            )
            .bind(owner.to_owned())
            .bind(to_sql(events))
            .bind(to_sql(bytes))
            .bind(to_sql(seq))
            .bind(why.to_owned())
            .execute(&mut *transaction)
            .await?;
        }
        transaction.commit().await?;
        self.usage().remove(&deleted, why);
        Ok(!deleted.is_empty())
    }

    /// What the file holds, without pages that are free to be used again.
    async fn used_bytes(&self) -> Result<u64, sqlx::Error> {
        let [pages, free, size] = self.pages().await?;
        Ok((pages - free) * size)
    }

    async fn pages(&self) -> Result<[u64; 3], sqlx::Error> {
        let mut numbers = [0; 3];
        for (number, pragma) in
            numbers.iter_mut().zip(["PRAGMA page_count", "PRAGMA freelist_count", "PRAGMA page_size"])
        {
            *number = from_sql(sqlx::query_scalar(pragma).fetch_one(&self.writer()).await?);
        }
        Ok(numbers)
    }

    /// Gives free pages back where the file is longer than it may be.
    async fn shrink(&self, limits: &Limits) -> Result<(), sqlx::Error> {
        let [pages, free, size] = self.pages().await?;
        let surplus = (pages * size).saturating_sub(limits.full_bytes()) / size;
        if surplus.min(free) == 0 {
            return Ok(());
        }
        let mode: i64 = sqlx::query_scalar("PRAGMA auto_vacuum").fetch_one(&self.writer()).await?;
        if mode == 0 && pages * size > limits.max_bytes {
            // A file of an earlier version, which cannot give back single pages.
            sqlx::query("VACUUM").execute(&self.writer()).await?;
        } else if mode != 0 {
            sqlx::query("PRAGMA incremental_vacuum").execute(&self.writer()).await?;
        }
        Ok(())
    }

    /// Folds the write-ahead log into the file where it has become long. Readers are short, so it is waited for them.
    pub(super) async fn fold_log(&self, limits: &Limits) -> Result<(), Error> {
        if length(&beside(&self.path, "-wal")) <= limits.log_bytes() {
            return Ok(());
        }
        let folded = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&self.writer()).await;
        folded.map(drop).map_err(|source| self.failed("fold the log of", source))
    }

    pub(super) fn uses(&self, owner: &str, limits: &Limits) -> [Use; 2] {
        let usage = self.usage();
        let removed = usage.trimmed(owner).map_or(0, |trimmed| trimmed.events);
        let on_disk: u64 = ["", "-wal", "-shm"].iter().map(|suffix| length(&beside(&self.path, suffix))).sum();
        [
            Use {
                what: "history, events".to_owned(),
                yours: usage.events.of(owner),
                all: Some(usage.events.total()),
                bound: limits.max_events,
                removed,
            },
            Use {
                what: "history on disk, MB".to_owned(),
                yours: usage.bytes.of(owner) >> 20,
                all: Some(on_disk >> 20),
                bound: limits.max_bytes >> 20,
                removed,
            },
        ]
    }
}

fn length(path: &std::path::Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(of: &[(&str, u64, u64)]) -> Usage {
        let mut usage = Usage::default();
        for (owner, events, bytes) in of {
            usage.add(&Arc::from(*owner), *events, *bytes);
        }
        usage
    }

    #[test]
    fn the_surplus_is_taken_from_whoever_has_most() {
        let limits = Limits { max_events: 1000, max_bytes: 1 << 30, ..Limits::default() };
        let check = |of: &[(&str, u64, u64)], used: u64| {
            usage(of).surplus(used, &limits).map(|surplus| (surplus.owner.to_string(), surplus.rows))
        };
        assert_eq!(check(&[("a", 500, 0), ("b", 500, 0)], 0), None);
        assert_eq!(check(&[("a", 100, 0), ("b", 5000, 0)], 0), Some(("b".to_owned(), 1000)));
        assert_eq!(check(&[("a", 100, 0), ("b", 950, 0)], 0), Some(("b".to_owned(), 50)));
        // As far as the next one's part.
        assert_eq!(check(&[("a", 600, 0), ("b", 610, 0)], 0), Some(("b".to_owned(), 10)));
        assert_eq!(check(&[("a", 600, 0), ("b", 600, 0)], 0), Some(("b".to_owned(), 1)));
        // By bytes: one with few large events has more than one with many small ones.
        assert_eq!(check(&[("a", 10, 9000), ("b", 900, 1000)], 1 << 30), Some(("a".to_owned(), 8)));
    }
}
