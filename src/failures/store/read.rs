//! Questions about what is kept. Reads never wait for the writer.

use std::collections::HashMap;

use futures::TryStreamExt;
use jiff::Timestamp;
use tokio::task::JoinHandle;

use super::{
    Store, by_word, count, small,
    sql::{Row, Value, places, values},
    time, word,
};
use crate::failures::{
    analysis::Period,
    environment::Packages,
    error::Error,
    fingerprint::Place,
    project::Known,
    record::{CodeHash, Outcome, Phase, Project, Source, Status},
    status::changes,
    view::{
        Counts, Day, Duration, Failure, Filter, Group, Investigation, Occurrence, Onset, OnsetRun, Outcomes, Page,
        Proof, Run, RunCode, RunDetail, StatusChange, Summary, TestOutcome,
    },
};

const DAY: i64 = 86_400_000_000;
/// Of one failure, what is told of it at most.
const MAX_SEEN: i64 = 20;
const MAX_HISTORY: i64 = 50;
/// Of one page.
const MAX_PAGE: usize = 1000;

const SUMMARY: &str = "SELECT f.name, f.status, f.verified, g.name, p.name, t.nodeid, t.file, t.line, f.phase, f.kind, f.message, \
    f.pattern, f.fingerprint, f.file, f.line, f.function, f.first_seen, f.last_seen, r.run, f.occurrences, COALESCE(i.n, 0), f.note, f.id \
    FROM failures f JOIN groups g ON g.id = f.group_id JOIN projects p ON p.id = f.project_id JOIN tests t ON t.id = f.test_id \
    LEFT JOIN runs r ON r.id = f.last_run \
    LEFT JOIN (SELECT failure_id, COUNT(*) AS n FROM investigations GROUP BY failure_id) i ON i.failure_id = f.id";

const RUN: &str = "SELECT r.run, p.name, p.root, p.remote, r.source, r.began, r.ended, r.exit_code, r.seconds, r.not_run, r.note, r.host, \
    r.who, r.python, r.pytest, r.platform, r.ci, r.workers, r.code, r.code_how, r.commit_id, r.branch, r.dirty, r.changed, r.passed, \
    r.failed, r.error, r.skipped, r.xfailed, r.xpassed, r.rerun, r.id, r.detail, r.environment FROM runs r JOIN projects p ON p.id = r.project_id";

/// Rows that analysis reads at once.
const LIGHT_ROWS: usize = 2000;

/// A failure as it is counted, in the order of `scan_light`.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Light {
    pub(crate) id: String,
    pub(crate) test: String,
    pub(crate) status: Status,
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) message: String,
    pub(crate) pattern: String,
    pub(crate) phase: Phase,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
    pub(crate) function: Option<String>,
    pub(crate) test_file: Option<String>,
    pub(crate) first_seen: i64,
    pub(crate) last_seen: i64,
    pub(crate) occurrences: u64,
}

/// What is only told of one run.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Detail {
    argv: Vec<String>,
    cwd: Option<String>,
    /// Of runs that were recorded before environments had a table.
    packages: Packages,
}

/// What a filter asks for, as conditions.
struct Conditions {
    sql: String,
    bound: Vec<Value>,
}

impl Conditions {
    fn of(filter: &Filter) -> Self {
        let mut conditions = Self { sql: " WHERE 1 = 1".into(), bound: Vec::new() };
        if let Some(status) = filter.status {
            conditions.and("f.status = $", word(status));
        }
        if let Some(group) = &filter.group {
            let group = group.to_ascii_lowercase();
            conditions.and("f.group_id = (SELECT COALESCE(merged_into, id) FROM groups WHERE name = $)", group);
        }
        if let Some(projects) = filter.of.as_ref().and_then(|of| of.ids.as_deref()) {
            conditions.sql.push_str(&of_projects("f", projects));
        }
        if let Some(test) = &filter.test {
            let escaped = test.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
            conditions.and("t.nodeid LIKE $ ESCAPE '\\'", format!("%{escaped}%"));
        }
        if let Some(since) = filter.since {
            conditions.and("f.last_seen >= $", since.as_microsecond());
        }
        if let Some(until) = filter.until {
            conditions.and("f.last_seen < $", until.as_microsecond());
        }
        if filter.without_resolved {
            conditions.and("f.status <> $", word(Status::Resolved));
        }
        conditions
    }

    /// Adds a condition with one value, whose place is `$`.
    fn and(&mut self, condition: &str, value: impl Into<Value>) {
        self.bound.push(value.into());
        let condition = condition.replace('$', &format!("${}", self.bound.len()));
        self.sql = format!("{} AND {condition}", self.sql);
    }
}

impl Store {
    /// Failures, last seen first.
    pub(crate) async fn list(
        &self,
        filter: &Filter,
        limit: usize,
        after: Option<&str>,
    ) -> Result<Page<Summary>, Error> {
        let mut conditions = Conditions::of(filter);
        let total = format!("SELECT COUNT(*) FROM failures f JOIN tests t ON t.id = f.test_id{}", conditions.sql);
        let total = self.one_count(total, conditions.bound.clone()).await?;
        if let Some(after) = after {
            let (seen, id) = cursor(after)?;
            conditions.bound.extend(values![seen, id]);
            let last = conditions.bound.len();
            let condition = format!(" AND (f.last_seen < ${0} OR f.last_seen = ${0} AND f.id < ${1})", last - 1, last);
            conditions.sql.push_str(&condition);
        }
        let limit = limit.clamp(1, MAX_PAGE);
        let sql = format!("{SUMMARY}{} ORDER BY f.last_seen DESC, f.id DESC LIMIT {}", conditions.sql, limit + 1);
        let rows = self.db.fetch(sql, conditions.bound).await.map_err(self.reading())?;
        Ok(page(rows, limit, total, |row| {
            let summary = summary(row);
            let next = format!("{}-{}", summary.last_seen.as_microsecond(), row.int());
            (summary, next)
        }))
    }

    /// All failures that a filter asks for, in no order: what analysis counts.
    pub(crate) async fn scan(&self, filter: &Filter) -> Result<Vec<Summary>, Error> {
        let conditions = Conditions::of(filter);
        let sql = format!("{SUMMARY}{}", conditions.sql);
        let rows = self.db.stream(sql, conditions.bound).map_ok(|mut row| summary(&mut row));
        rows.try_collect().await.map_err(self.reading())
    }

    /// All failures as analysis needs them. Many rows come as one text: a row of its own is handed from thread to thread, and taking its
    /// values apart takes longer than the query.
    pub(crate) async fn scan_light(&self, projects: Option<&[i64]>) -> Result<Vec<Light>, Error> {
        let (list, array) = self.db.json_functions();
        let wanted = projects.map(|projects| of_projects("f", projects)).unwrap_or_default();
        let sql = format!(
            "SELECT MAX(id), CAST({list}({array}(name, nodeid, status, grouped, kind, message, pattern, phase, file, line, function, \
             test_file, first_seen, last_seen, occurrences)) AS TEXT) FROM \
             (SELECT f.id, f.name, t.nodeid, f.status, g.name AS grouped, f.kind, f.message, f.pattern, f.phase, f.file, f.line, \
             f.function, t.file AS test_file, f.first_seen, f.last_seen, f.occurrences \
             FROM failures f JOIN tests t ON t.id = f.test_id JOIN groups g ON g.id = f.group_id \
             WHERE f.id > $1{wanted} ORDER BY f.id LIMIT {LIGHT_ROWS}) page"
        );
        let mut all: Vec<Light> = Vec::new();
        let mut after = Some(0);
        // A page is taken apart while the next is read.
        let mut parsing: Option<JoinHandle<serde_json::Result<Vec<Light>>>> = None;
        while let Some(last) = after {
            let row = self.db.fetch_one(sql.as_str(), values![last]).await.map_err(self.reading())?;
            if let Some(parsing) = parsing.take() {
                let some = parsing.await.map_err(|_| Error::Closed)?.map_err(|why| sqlx::Error::Decode(why.into()));
                all.extend(some.map_err(self.reading())?);
            }
            // Of no rows there is no last one.
            after = row.and_then(|mut row| {
                let last = row.maybe_int()?;
                let text = row.text();
                parsing = Some(tokio::task::spawn_blocking(move || serde_json::from_str(&text)));
                Some(last)
            });
        }
        Ok(all)
    }

    /// Of failures for which the first and the last time are not everything. What was before the runs that are kept is counted to the first day.
    pub(crate) async fn occurrence_days(&self) -> Result<HashMap<String, Vec<(i32, u32)>>, Error> {
        let sql = format!(
            "SELECT f.name, f.occurrences, f.first_seen / {DAY}, o.at / {DAY}, COUNT(*) FROM failures f \
             JOIN outcomes o ON o.test_id = f.test_id AND o.failure_id = f.id \
             WHERE f.occurrences > 2 AND f.last_seen / {DAY} > f.first_seen / {DAY} \
             GROUP BY f.name, f.occurrences, f.first_seen, o.at / {DAY}"
        );
        let number = |value: i64| i32::try_from(value).unwrap_or_default();
        let mut left: HashMap<String, (i32, u32)> = HashMap::new();
        let mut days: HashMap<String, Vec<(i32, u32)>> = HashMap::new();
        for mut row in self.db.fetch(sql, Vec::new()).await.map_err(self.reading())? {
            let (name, all, first, day, seen) =
                (row.text(), small(row.int()), number(row.int()), number(row.int()), small(row.int()));
            let (_, unseen) = left.entry(name.clone()).or_insert((first, all));
            *unseen = unseen.saturating_sub(seen);
            days.entry(name).or_default().push((day, seen));
        }
        for (name, (first, unseen)) in left.into_iter().filter(|(_, (_, unseen))| *unseen > 0) {
            days.entry(name).or_default().push((first, unseen));
        }
        Ok(days)
    }

    /// How often failures occurred in a period, and in the one before.
    pub(crate) async fn occurrences_in(&self, period: &Period) -> Result<HashMap<String, (u64, u64)>, Error> {
        let micros = [period.from, period.until, period.previous_from, period.previous_until];
        let micros = micros.map(|at| Value::from(at.as_microsecond()));
        let sql = "SELECT f.name, CAST(SUM(CASE WHEN o.at >= $1 AND o.at <= $2 THEN 1 ELSE 0 END) AS BIGINT), \
            CAST(SUM(CASE WHEN o.at >= $3 AND o.at < $4 THEN 1 ELSE 0 END) AS BIGINT) FROM outcomes o \
            JOIN failures f ON f.id = o.failure_id WHERE o.failure_id IS NOT NULL AND o.at >= $3 GROUP BY f.name";
        let rows = self.db.fetch(sql, micros.to_vec()).await.map_err(self.reading())?;
        Ok(rows.into_iter().map(|mut row| (row.text(), (count(row.int()), count(row.int())))).collect())
    }

    /// All projects, the oldest first.
    pub(crate) async fn projects(&self) -> Result<Vec<Known>, Error> {
        let sql = "SELECT id, key, name, root, remote FROM projects ORDER BY id";
        let rows = self.db.fetch(sql, Vec::new()).await.map_err(self.reading())?;
        Ok(rows
            .into_iter()
            .map(|mut row| Known {
                id: row.int(),
                key: row.text(),
                project: Project { name: row.text(), root: row.text(), remote: row.maybe_text() },
            })
            .collect())
    }

    pub(crate) async fn get(&self, id: &str) -> Result<Failure, Error> {
        let failed = self.reading();
        let sql = format!("{SUMMARY} WHERE f.name = $1");
        let row = self.db.fetch_one(sql, values![id.to_ascii_lowercase()]).await.map_err(&failed)?;
        let mut row = row.ok_or_else(|| Error::Unknown { what: "failure", id: id.to_owned() })?;
        let summary = summary(&mut row);
        let number = row.int();
        let sql = "SELECT g.reason FROM failures f JOIN groups g ON g.id = f.group_id WHERE f.id = $1";
        let reason = self.db.fetch_one(sql, values![number]).await.map_err(&failed)?;
        let sql = format!(
            "SELECT o.occurrence, r.run, o.at, o.attempt, o.subtest, r.code, r.commit_id, o.test, o.evidence FROM occurrences o \
             LEFT JOIN runs r ON r.id = o.run_id WHERE o.failure_id = $1 ORDER BY o.at DESC, o.id DESC LIMIT {MAX_SEEN}"
        );
        let seen = self.db.fetch(sql, values![number]).await.map_err(&failed)?;
        let sql = "SELECT at, old, new, reason, run FROM changes WHERE failure_id = $1 ORDER BY at";
        let changes = self.db.fetch(sql, values![number]).await.map_err(&failed)?;
        let changes: Vec<StatusChange> = changes.into_iter().map(status_change).collect();
        let proof = self.proof(&summary, changes.last()).await?;
        let history = self
            .outcomes_of("o.test_id = (SELECT test_id FROM failures WHERE id = $1)", values![number], MAX_HISTORY)
            .await?;
        Ok(Failure {
            summary,
            why_grouped: reason.map_or_else(String::new, |mut row| row.text()),
            seen: seen.into_iter().map(occurrence).collect(),
            changes,
            proof,
            investigations_made: self.investigations(number).await?,
            history,
        })
    }

    /// The run that shows that a failure is resolved: the one of its newest change. It may have been forgotten since.
    async fn proof(&self, summary: &Summary, newest: Option<&StatusChange>) -> Result<Option<Proof>, Error> {
        let newest = newest.filter(|_| summary.status == Status::Resolved && summary.verified);
        let Some((change, run)) = newest.and_then(|change| Some((change, change.run.clone()?))) else {
            return Ok(None);
        };
        let sql = "SELECT commit_id, python FROM runs WHERE run = $1";
        let row = self.db.fetch_one(sql, values![run.as_str()]).await.map_err(self.reading())?;
        let (commit, python) = row.map_or((None, None), |mut row| (row.maybe_text(), row.maybe_text()));
        Ok(Some(Proof { run, at: change.at, reason: change.reason.clone(), commit, python }))
    }

    /// The failure that the reporter's own id of an occurrence is of.
    pub(crate) async fn by_occurrence(&self, occurrence: &str) -> Result<Option<String>, Error> {
        let sql = "SELECT f.name FROM occurrences o JOIN failures f ON f.id = o.failure_id WHERE o.occurrence = $1";
        let row = self.db.fetch_one(sql, values![occurrence]).await.map_err(self.reading())?;
        Ok(row.map(|mut row| row.text()))
    }

    /// The groups that occurrences are in, by the reporters' own ids of these.
    pub(crate) async fn groups_of(&self, occurrences: &[String]) -> Result<HashMap<String, String>, Error> {
        let mut found = HashMap::new();
        for chunk in occurrences.chunks(200) {
            let sql = format!(
                "SELECT o.occurrence, g.name FROM occurrences o JOIN failures f ON f.id = o.failure_id \
                 JOIN groups g ON g.id = f.group_id WHERE o.occurrence IN ({})",
                places(0, chunk.len())
            );
            let rows = self.db.fetch(sql, chunk.iter().map(Value::from).collect()).await.map_err(self.reading())?;
            found.extend(rows.into_iter().map(|mut row| (row.text(), row.text())));
        }
        Ok(found)
    }

    pub(super) async fn investigations(&self, failure: i64) -> Result<Vec<Investigation>, Error> {
        let sql = "SELECT rule, analysis, author, at FROM investigations WHERE failure_id = $1 ORDER BY at, id";
        let rows = self.db.fetch(sql, values![failure]).await.map_err(self.reading())?;
        Ok(rows
            .into_iter()
            .map(|mut row| Investigation {
                rule: row.maybe_int().and_then(|rule| u8::try_from(rule).ok()),
                analysis: row.text(),
                author: row.text(),
                at: time(row.int()),
            })
            .collect())
    }

    async fn outcomes_of(&self, condition: &str, bound: Vec<Value>, limit: i64) -> Result<Vec<TestOutcome>, Error> {
        let sql = format!(
            "SELECT r.run, o.at, o.outcome, o.phase, o.attempt, o.seconds, r.code, r.commit_id, r.dirty, r.python, r.environment, \
             o.ran_before, f.name FROM outcomes o \
             JOIN runs r ON r.id = o.run_id LEFT JOIN failures f ON f.id = o.failure_id WHERE {condition} ORDER BY o.at DESC LIMIT {limit}"
        );
        let rows = self.db.fetch(sql, bound).await.map_err(self.reading())?;
        Ok(rows
            .into_iter()
            .map(|mut row| TestOutcome {
                run: row.text(),
                at: time(row.int()),
                outcome: by_word(&row.text(), Outcome::Skipped),
                phase: by_word(&row.text(), Phase::Call),
                attempt: small(row.int()),
                seconds: row.real(),
                code: row.maybe_text(),
                commit: row.maybe_text(),
                dirty: row.int() != 0,
                python: row.maybe_text(),
                environment: row.maybe_text(),
                ran_before: row.maybe_int().map(small),
                failure: row.maybe_text(),
            })
            .collect())
    }

    /// What became of a test, newest first.
    pub(crate) async fn history(
        &self,
        project: Option<&str>,
        nodeid: &str,
        limit: usize,
    ) -> Result<Vec<TestOutcome>, Error> {
        let limit = i64::try_from(limit.clamp(1, MAX_PAGE)).unwrap_or(MAX_HISTORY);
        match project {
            Some(project) => {
                let condition = "o.test_id IN (SELECT t.id FROM tests t JOIN projects p ON p.id = t.project_id \
                    WHERE t.nodeid = $1 AND $2 IN (p.name, p.root, p.key))";
                self.outcomes_of(condition, values![nodeid, project], limit).await
            }
            None => {
                self.outcomes_of("o.test_id IN (SELECT id FROM tests WHERE nodeid = $1)", values![nodeid], limit).await
            }
        }
    }

    /// Between which runs this failure began: the last good one before it was last seen, and the first bad one since.
    pub(crate) async fn onset(&self, id: &str) -> Result<Onset, Error> {
        let sql = "SELECT id, test_id, last_seen FROM failures WHERE name = $1";
        let row = self.db.fetch_one(sql, values![id.to_ascii_lowercase()]).await.map_err(self.reading())?;
        let mut row = row.ok_or_else(|| Error::Unknown { what: "failure", id: id.to_owned() })?;
        let (failure, test, last) = (row.int(), row.int(), row.int());
        let columns = "SELECT r.run, o.at, r.code, r.commit_id, r.branch, r.dirty, r.changed FROM outcomes o JOIN runs r ON r.id = o.run_id";
        // A test of which a part failed did not pass.
        let sql = format!(
            "{columns} WHERE o.test_id = $1 AND o.outcome = 'passed' AND o.at < $2 AND NOT EXISTS (SELECT 1 FROM outcomes x \
             WHERE x.run_id = o.run_id AND x.test_id = o.test_id AND x.outcome IN ('failed', 'error')) ORDER BY o.at DESC LIMIT 1"
        );
        let good = self.db.fetch_one(sql, values![test, last]).await.map_err(self.reading())?;
        let last_good = good.map(onset_run);
        let since = last_good.as_ref().map_or(i64::MIN, |run| run.at.as_microsecond());
        let sql = format!("{columns} WHERE o.test_id = $1 AND o.failure_id = $2 AND o.at > $3 ORDER BY o.at LIMIT 1");
        let bad = self.db.fetch_one(sql, values![test, failure, since]).await.map_err(self.reading())?;
        let first_bad = bad.map(onset_run);
        let environment = match (&last_good, &first_bad) {
            (Some(good), Some(bad)) => {
                let (good, bad) = (self.packages(&good.run).await?, self.packages(&bad.run).await?);
                good.zip(bad).map(|(good, bad)| changes(&good, &bad)).filter(|changes| !changes.is_empty())
            }
            _ => None,
        };
        Ok(Onset { last_good, first_bad, environment })
    }

    /// What was installed where a run was made, if that is known.
    async fn packages(&self, run: &str) -> Result<Option<Packages>, Error> {
        let sql = "SELECT e.packages FROM runs r JOIN environments e ON e.hash = r.environment WHERE r.run = $1";
        let row = self.db.fetch_one(sql, values![run]).await.map_err(self.reading())?;
        Ok(row.and_then(|mut row| serde_json::from_str(&row.text()).ok()))
    }

    /// Runs, newest first.
    pub(crate) async fn runs(
        &self,
        projects: Option<&[i64]>,
        limit: usize,
        after: Option<&str>,
    ) -> Result<Page<Run>, Error> {
        let wanted = projects.map(|projects| of_projects("r", projects)).unwrap_or_default();
        let mut sql = format!(" WHERE 1 = 1{wanted}");
        let mut bound = Vec::new();
        let total = format!("SELECT COUNT(*) FROM runs r JOIN projects p ON p.id = r.project_id{sql}");
        let total = self.one_count(total, bound.clone()).await?;
        if let Some(after) = after {
            let (began, id) = cursor(after)?;
            bound.extend(values![began, id]);
            let last = bound.len();
            sql = format!("{sql} AND (r.began < ${0} OR r.began = ${0} AND r.id < ${1})", last - 1, last);
        }
        let limit = limit.clamp(1, MAX_PAGE);
        let sql = format!("{RUN}{sql} ORDER BY r.began DESC, r.id DESC LIMIT {}", limit + 1);
        let rows = self.db.fetch(sql, bound).await.map_err(self.reading())?;
        Ok(page(rows, limit, total, |row| {
            let run = run(row);
            let next = format!("{}-{}", run.began.as_microsecond(), row.int());
            (run, next)
        }))
    }

    pub(crate) async fn run(&self, id: &str) -> Result<RunDetail, Error> {
        let row = self.db.fetch_one(format!("{RUN} WHERE r.run = $1"), values![id]).await.map_err(self.reading())?;
        let mut row = row.ok_or_else(|| Error::Unknown { what: "run", id: id.to_owned() })?;
        let run = run(&mut row);
        let number = row.int();
        let mut detail: Detail = serde_json::from_str(&row.text()).unwrap_or_default();
        if let Some(environment) = row.maybe_text() {
            let sql = "SELECT packages FROM environments WHERE hash = $1";
            let kept = self.db.fetch_one(sql, values![environment]).await.map_err(self.reading())?;
            detail.packages = kept.and_then(|mut row| serde_json::from_str(&row.text()).ok()).unwrap_or_default();
        }
        let summaries = async |condition: &str, bound: Vec<Value>| -> Result<Vec<Summary>, Error> {
            let sql = format!("{SUMMARY} WHERE {condition} ORDER BY f.id LIMIT {MAX_PAGE}");
            let rows = self.db.fetch(sql, bound).await.map_err(self.reading())?;
            Ok(rows.into_iter().map(|mut row| summary(&mut row)).collect())
        };
        let failures =
            summaries("f.id IN (SELECT failure_id FROM outcomes WHERE run_id = $1)", values![number]).await?;
        let sql = "SELECT f.name FROM outcomes o JOIN failures f ON f.id = o.failure_id WHERE o.run_id = $1 GROUP BY f.name \
            HAVING MAX(CASE WHEN o.outcome = 'rerun' THEN 0 ELSE 1 END) = 0";
        let rerun = self.db.fetch(sql, values![number]).await.map_err(self.reading())?;
        let mut more_failures = 0;
        if failures.len() == MAX_PAGE {
            let sql = "SELECT COUNT(DISTINCT failure_id) FROM outcomes WHERE run_id = $1 AND failure_id IS NOT NULL";
            more_failures = self.one_count(sql.into(), values![number]).await?.saturating_sub(failures.len() as u64);
        }
        let resolved = "f.id IN (SELECT failure_id FROM changes WHERE run = $1 AND new = 'resolved')";
        Ok(RunDetail {
            run,
            argv: detail.argv,
            cwd: detail.cwd,
            packages: detail.packages,
            failures,
            more_failures,
            rerun: rerun.into_iter().map(|mut row| row.text()).collect(),
            resolved: summaries(resolved, values![id]).await?,
            not_resolved: summaries("f.note_run = $1 AND f.status <> 'resolved'", values![id]).await?,
        })
    }

    /// Groups with failures that a filter asks for, last seen first.
    pub(crate) async fn groups(&self, filter: &Filter, limit: usize) -> Result<Vec<Group>, Error> {
        let conditions = Conditions::of(filter);
        let sql = format!(
            "SELECT g.id, g.name, p.name, g.reason, g.by_hand, COUNT(*), CAST(SUM(f.occurrences) AS BIGINT), \
             CAST(SUM(CASE WHEN f.status <> 'resolved' THEN 1 ELSE 0 END) AS BIGINT), MIN(f.first_seen), MAX(f.last_seen) \
             FROM failures f JOIN groups g ON g.id = f.group_id JOIN projects p ON p.id = f.project_id JOIN tests t ON t.id = f.test_id{} \
             GROUP BY g.id, g.name, p.name, g.reason, g.by_hand ORDER BY MAX(f.last_seen) DESC, g.id DESC LIMIT {}",
            conditions.sql,
            limit.clamp(1, MAX_PAGE)
        );
        let rows = self.db.fetch(sql, conditions.bound).await.map_err(self.reading())?;
        let mut numbers = Vec::with_capacity(rows.len());
        let mut groups: Vec<Group> = rows
            .into_iter()
            .map(|mut row| {
                numbers.push(row.int());
                Group {
                    id: row.text(),
                    project: row.text(),
                    reason: row.text(),
                    by_hand: row.int() != 0,
                    failures: count(row.int()),
                    occurrences: count(row.int()),
                    open: count(row.int()),
                    first_seen: time(row.int()),
                    last_seen: time(row.int()),
                    kind: String::new(),
                    message: String::new(),
                }
            })
            .collect();
        for chunk in numbers.chunks(200) {
            let sql = format!(
                "SELECT group_id, kind, message FROM (SELECT group_id, kind, message, \
                 ROW_NUMBER() OVER (PARTITION BY group_id ORDER BY last_seen DESC) AS n FROM failures WHERE group_id IN ({})) z WHERE n = 1",
                places(0, chunk.len())
            );
            let bound = chunk.iter().map(|number| Value::from(*number)).collect();
            for mut row in self.db.fetch(sql, bound).await.map_err(self.reading())? {
                let number = row.int();
                if let Some(at) = numbers.iter().position(|known| *known == number) {
                    groups[at].kind = row.text();
                    groups[at].message = row.text();
                }
            }
        }
        Ok(groups)
    }

    /// The name of a group as it is now: one that was merged is the other.
    pub(crate) async fn group(&self, id: &str) -> Result<String, Error> {
        let sql =
            "SELECT g.name FROM groups g WHERE g.id = (SELECT COALESCE(merged_into, id) FROM groups WHERE name = $1)";
        let row = self.db.fetch_one(sql, values![id.to_ascii_lowercase()]).await.map_err(self.reading())?;
        row.map(|mut row| row.text()).ok_or_else(|| Error::Unknown { what: "group", id: id.to_owned() })
    }

    pub(crate) async fn counts(&self) -> Result<Counts, Error> {
        let mut counts = Counts::default();
        let sql = "SELECT status, COUNT(*) FROM failures GROUP BY status";
        for mut row in self.db.fetch(sql, Vec::new()).await.map_err(self.reading())? {
            let status = by_word(&row.text(), Status::New);
            let number = count(row.int());
            counts.total += number;
            *match status {
                Status::New => &mut counts.new,
                Status::InProgress => &mut counts.in_progress,
                Status::Resolved => &mut counts.resolved,
                Status::Flaky => &mut counts.flaky,
                Status::Reopened => &mut counts.reopened,
            } += number;
        }
        counts.groups = self.one_count("SELECT COUNT(DISTINCT group_id) FROM failures".into(), Vec::new()).await?;
        counts.runs = self.one_count("SELECT COUNT(*) FROM runs".into(), Vec::new()).await?;
        counts.tests = self.one_count("SELECT COUNT(*) FROM tests".into(), Vec::new()).await?;
        Ok(counts)
    }

    async fn one_count(&self, sql: String, bound: Vec<Value>) -> Result<u64, Error> {
        let row = self.db.fetch_one(sql, bound).await.map_err(self.reading())?;
        Ok(row.map_or(0, |mut row| count(row.int())))
    }

    /// Days on which something ran since then, oldest first.
    pub(crate) async fn days(&self, since: Timestamp) -> Result<Vec<Day>, Error> {
        let mut days: std::collections::BTreeMap<i64, Day> = std::collections::BTreeMap::new();
        let day = |number: i64| Day {
            day: Timestamp::from_microsecond(number * DAY).unwrap_or_default().to_zoned(jiff::tz::TimeZone::UTC).date(),
            runs: 0,
            passed: 0,
            failed: 0,
            first_seen: 0,
        };
        let sql = format!(
            "SELECT began / {DAY}, COUNT(*), CAST(SUM(passed) AS BIGINT), CAST(SUM(failed + error) AS BIGINT) FROM runs \
             WHERE began >= $1 GROUP BY began / {DAY}"
        );
        for mut row in self.db.fetch(sql, values![since.as_microsecond()]).await.map_err(self.reading())? {
            let number = row.int();
            let entry = days.entry(number).or_insert_with(|| day(number));
            (entry.runs, entry.passed, entry.failed) = (count(row.int()), count(row.int()), count(row.int()));
        }
        let sql = format!(
            "SELECT first_seen / {DAY}, COUNT(*) FROM failures WHERE first_seen >= $1 GROUP BY first_seen / {DAY}"
        );
        for mut row in self.db.fetch(sql, values![since.as_microsecond()]).await.map_err(self.reading())? {
            let number = row.int();
            days.entry(number).or_insert_with(|| day(number)).first_seen = count(row.int());
        }
        Ok(days.into_values().collect())
    }

    /// The tests that take longest.
    pub(crate) async fn durations(
        &self,
        project: Option<&str>,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<Duration>, Error> {
        let mut bound = values![since.as_microsecond()];
        let mut condition = "";
        if let Some(project) = project {
            bound.push(Value::from(project));
            condition = " AND t.project_id IN (SELECT id FROM projects WHERE $2 IN (name, root, key))";
        }
        let sql = format!(
            "SELECT t.nodeid, COUNT(*), AVG(o.seconds), MAX(o.seconds) FROM outcomes o JOIN tests t ON t.id = o.test_id \
             WHERE o.at >= $1 AND o.outcome <> 'skipped'{condition} GROUP BY t.id, t.nodeid ORDER BY AVG(o.seconds) DESC LIMIT {}",
            limit.clamp(1, MAX_PAGE)
        );
        let rows = self.db.fetch(sql, bound).await.map_err(self.reading())?;
        Ok(rows
            .into_iter()
            .map(|mut row| Duration {
                test: row.text(),
                runs: count(row.int()),
                mean_s: row.real(),
                longest_s: row.real(),
            })
            .collect())
    }
}

/// The condition that rows are of projects.
fn of_projects(table: &str, projects: &[i64]) -> String {
    let listed: Vec<String> = projects.iter().map(ToString::to_string).collect();
    // Of none there are none, and an empty list is not SQL.
    if listed.is_empty() {
        " AND 1 = 0".to_owned()
    } else {
        format!(" AND {table}.project_id IN ({})", listed.join(", "))
    }
}

/// Rows up to the limit; the one beyond it says that there are more.
fn page<T>(rows: Vec<Row>, limit: usize, total: u64, read: impl Fn(&mut Row) -> (T, String)) -> Page<T> {
    let more = rows.len() > limit;
    let mut items = Vec::with_capacity(rows.len().min(limit));
    let mut next = None;
    for mut row in rows.into_iter().take(limit) {
        let (item, cursor) = read(&mut row);
        items.push(item);
        next = Some(cursor);
    }
    Page { items, total, next: next.filter(|_| more) }
}

fn cursor(text: &str) -> Result<(i64, i64), Error> {
    let parts = text.rsplit_once('-').and_then(|(time, id)| Some((time.parse().ok()?, id.parse().ok()?)));
    parts.ok_or_else(|| Error::Invalid { what: "`after`", why: format!("`{text}` is not the `next` of a page") })
}

fn summary(row: &mut Row) -> Summary {
    Summary {
        id: row.text(),
        status: by_word(&row.text(), Status::New),
        verified: row.int() != 0,
        group: row.text(),
        project: row.text(),
        test: row.text(),
        test_file: row.maybe_text(),
        test_line: row.maybe_int().map(small),
        phase: by_word(&row.text(), Phase::Call),
        kind: row.text(),
        message: row.text(),
        pattern: row.text(),
        fingerprint: row.text(),
        place: place(row),
        first_seen: time(row.int()),
        last_seen: time(row.int()),
        last_run: row.text(),
        occurrences: count(row.int()),
        investigations: count(row.int()),
        note: row.maybe_text(),
    }
}

fn status_change(mut row: Row) -> StatusChange {
    StatusChange {
        at: time(row.int()),
        from: row.maybe_text().map(|status| by_word(&status, Status::New)),
        to: by_word(&row.text(), Status::New),
        reason: row.text(),
        run: row.maybe_text(),
    }
}

fn place(row: &mut Row) -> Option<Place> {
    let (file, line, function) = (row.maybe_text(), row.maybe_int(), row.maybe_text());
    Some(Place { file: file?, line: line.map_or(0, small), function: function.unwrap_or_default() })
}

fn occurrence(mut row: Row) -> Occurrence {
    Occurrence {
        occurrence: row.text(),
        run: row.text(),
        at: time(row.int()),
        attempt: small(row.int()),
        subtest: row.maybe_text().filter(|subtest| !subtest.is_empty()),
        code: row.maybe_text(),
        commit: row.maybe_text(),
        test: serde_json::from_str(&row.text()).unwrap_or_default(),
        evidence: row.maybe_text().and_then(|evidence| serde_json::from_str(&evidence).ok()),
    }
}

fn onset_run(mut row: Row) -> OnsetRun {
    OnsetRun {
        run: row.text(),
        at: time(row.int()),
        code: row.maybe_text(),
        commit: row.maybe_text(),
        branch: row.maybe_text(),
        dirty: row.int() != 0,
        changed: serde_json::from_str(&row.text()).unwrap_or_default(),
    }
}

fn run(row: &mut Row) -> Run {
    Run {
        run: row.text(),
        project: Project { name: row.text(), root: row.text(), remote: row.maybe_text() },
        source: by_word(&row.text(), Source::Plugin),
        began: time(row.int()),
        ended: row.maybe_int().map(time),
        exit_code: row.maybe_int().and_then(|code| i32::try_from(code).ok()),
        seconds: row.maybe_real(),
        not_run: small(row.int()),
        note: row.maybe_text(),
        host: row.maybe_text(),
        user: row.maybe_text(),
        python: row.maybe_text(),
        pytest: row.maybe_text(),
        platform: row.maybe_text(),
        ci: row.int() != 0,
        workers: row.maybe_int().map(small),
        code: run_code(row),
        counts: Outcomes {
            passed: count(row.int()),
            failed: count(row.int()),
            error: count(row.int()),
            skipped: count(row.int()),
            xfailed: count(row.int()),
            xpassed: count(row.int()),
            rerun: count(row.int()),
        },
    }
}

fn run_code(row: &mut Row) -> Option<RunCode> {
    let hash = row.maybe_text();
    let code = RunCode {
        hash: hash.clone().unwrap_or_default(),
        how: by_word(&row.text(), CodeHash::Files),
        commit: row.maybe_text(),
        branch: row.maybe_text(),
        dirty: row.int() != 0,
        changed: serde_json::from_str(&row.text()).unwrap_or_default(),
    };
    hash.map(|_| code)
}
