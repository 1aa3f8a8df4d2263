//! Questions about what is kept. Reads never wait for the writer.

use std::collections::HashMap;

use futures::TryStreamExt;
use jiff::Timestamp;
use tokio::task::JoinHandle;

use super::{
    Store, by_word, count, small,
    sql::{Row, Value, places, values},
    time, word,
    write::verdict,
};
use crate::{
    analysis::Period,
    environment::Packages,
    error::Error,
    fingerprint::SourceLocation,
    project::StoredProject,
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

const SUMMARY: &str = "SELECT f.name, f.status, f.verified, g.name AS group_name, p.name AS project, t.nodeid, t.file AS test_file, t.line AS test_line, f.phase, f.kind, f.message, \
    f.pattern, f.fingerprint, f.file, f.line, f.function, f.first_seen, f.last_seen, r.run, f.occurrences, COALESCE(i.n, 0) AS investigations, f.note, f.id \
    FROM failures f JOIN groups g ON g.id = f.group_id JOIN projects p ON p.id = f.project_id JOIN tests t ON t.id = f.test_id \
    LEFT JOIN runs r ON r.id = f.last_run \
    LEFT JOIN (SELECT failure_id, COUNT(*) AS n FROM investigations GROUP BY failure_id) i ON i.failure_id = f.id";

const RUN: &str = "SELECT r.run, p.name AS project, p.root, p.remote, r.source, r.began, r.ended, r.exit_code, r.seconds, r.not_run, r.note, r.host, \
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
        let total = format!("SELECT COUNT(*) AS n FROM failures f JOIN tests t ON t.id = f.test_id{}", conditions.sql);
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
        let rows = self
            .rows(sql, conditions.bound, |row| {
                let summary = summary(row)?;
                let next = format!("{}-{}", summary.last_seen.as_microsecond(), row.int("id")?);
                Ok((summary, next))
            })
            .await?;
        Ok(page(rows, limit, total))
    }

    /// All failures that a filter asks for, in no order: what analysis counts.
    pub(crate) async fn scan(&self, filter: &Filter) -> Result<Vec<Summary>, Error> {
        let conditions = Conditions::of(filter);
        let sql = format!("{SUMMARY}{}", conditions.sql);
        let rows = self.db.stream(sql, conditions.bound).and_then(|row| async move { summary(&row) });
        rows.try_collect().await.map_err(self.reading())
    }

    /// All failures as analysis needs them. Many rows come as one text: a row of its own is handed from thread to thread, and taking its
    /// values apart takes longer than the query.
    pub(crate) async fn scan_light(&self, projects: Option<&[i64]>) -> Result<Vec<Light>, Error> {
        let (list, array) = self.db.json_functions();
        let wanted = projects.map(|projects| of_projects("f", projects)).unwrap_or_default();
        let sql = format!(
            "SELECT MAX(id) AS last, CAST({list}({array}(name, nodeid, status, grouped, kind, message, pattern, phase, file, line, function, \
             test_file, first_seen, last_seen, occurrences)) AS TEXT) AS failures FROM \
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
            // Of no rows there is no last one.
            let read = |row: &Row| row.maybe_int("last")?.map(|last| Ok((last, row.text("failures")?))).transpose();
            let page = self.row(sql.as_str(), values![last], read).await?.flatten();
            if let Some(parsing) = parsing.take() {
                let some = parsing.await.map_err(|_| Error::Closed)?.map_err(|why| sqlx::Error::Decode(why.into()));
                all.extend(some.map_err(self.reading())?);
            }
            after = page.map(|(last, text)| {
                parsing = Some(tokio::task::spawn_blocking(move || serde_json::from_str(&text)));
                last
            });
        }
        Ok(all)
    }

    /// Of failures for which the first and the last time are not everything. What was before the runs that are kept is counted to the first day.
    pub(crate) async fn occurrence_days(&self) -> Result<HashMap<String, Vec<(i32, u32)>>, Error> {
        let sql = format!(
            "SELECT f.name, f.occurrences, f.first_seen / {DAY} AS first, o.at / {DAY} AS day, COUNT(*) AS seen FROM failures f \
             JOIN outcomes o ON o.test_id = f.test_id AND o.failure_id = f.id \
             WHERE f.occurrences > 2 AND f.last_seen / {DAY} > f.first_seen / {DAY} \
             GROUP BY f.name, f.occurrences, f.first_seen, o.at / {DAY}"
        );
        let number = |value: i64| i32::try_from(value).unwrap_or_default();
        let mut left: HashMap<String, (i32, u32)> = HashMap::new();
        let mut days: HashMap<String, Vec<(i32, u32)>> = HashMap::new();
        let read = |row: &Row| {
            let (first, day) = (number(row.int("first")?), number(row.int("day")?));
            Ok((row.text("name")?, small(row.int("occurrences")?), first, day, small(row.int("seen")?)))
        };
        for (name, all, first, day, seen) in self.rows(sql, Vec::new(), read).await? {
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
        let sql = "SELECT f.name, CAST(SUM(CASE WHEN o.at >= $1 AND o.at <= $2 THEN 1 ELSE 0 END) AS BIGINT) AS recent, \
            CAST(SUM(CASE WHEN o.at >= $3 AND o.at < $4 THEN 1 ELSE 0 END) AS BIGINT) AS previous FROM outcomes o \
            JOIN failures f ON f.id = o.failure_id WHERE o.failure_id IS NOT NULL AND o.at >= $3 GROUP BY f.name";
        let read = |row: &Row| Ok((row.text("name")?, (count(row.int("recent")?), count(row.int("previous")?))));
        Ok(self.rows(sql, micros.to_vec(), read).await?.into_iter().collect())
    }

    /// All projects, the oldest first.
    pub(crate) async fn projects(&self) -> Result<Vec<StoredProject>, Error> {
        let sql = "SELECT id, key, name, root, remote FROM projects ORDER BY id";
        let read = |row: &Row| {
            let project =
                Project { name: row.text("name")?, root: row.text("root")?, remote: row.maybe_text("remote")? };
            Ok(StoredProject { id: row.int("id")?, key: row.text("key")?, project })
        };
        self.rows(sql, Vec::new(), read).await
    }

    pub(crate) async fn get(&self, id: &str) -> Result<Failure, Error> {
        let sql = format!("{SUMMARY} WHERE f.name = $1");
        let read = |row: &Row| Ok((summary(row)?, row.int("id")?));
        let row = self.row(sql, values![id.to_ascii_lowercase()], read).await?;
        let (summary, number) = row.ok_or_else(|| Error::Unknown { what: "failure", id: id.to_owned() })?;
        let sql = "SELECT g.reason FROM failures f JOIN groups g ON g.id = f.group_id WHERE f.id = $1";
        let reason = self.row(sql, values![number], |row| row.text("reason")).await?;
        let sql = format!(
            "SELECT o.occurrence, r.run, o.at, o.attempt, o.subtest, r.code, r.commit_id, o.test, o.evidence FROM occurrences o \
             LEFT JOIN runs r ON r.id = o.run_id WHERE o.failure_id = $1 ORDER BY o.at DESC, o.id DESC LIMIT {MAX_SEEN}"
        );
        let seen = self.rows(sql, values![number], occurrence).await?;
        let sql = "SELECT at, old, new, reason, run FROM changes WHERE failure_id = $1 ORDER BY at";
        let changes = self.rows(sql, values![number], status_change).await?;
        let proof = self.proof(&summary, changes.last()).await?;
        let history = self
            .outcomes_of("o.test_id = (SELECT test_id FROM failures WHERE id = $1)", values![number], MAX_HISTORY)
            .await?;
        Ok(Failure {
            summary,
            why_grouped: reason.unwrap_or_default(),
            seen,
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
        let read = |row: &Row| Ok((row.maybe_text("commit_id")?, row.maybe_text("python")?));
        let (commit, python) = self.row(sql, values![run.as_str()], read).await?.unwrap_or_default();
        Ok(Some(Proof { run, at: change.at, reason: change.reason.clone(), commit, python }))
    }

    /// The failure that the reporter's own id of an occurrence is of.
    pub(crate) async fn by_occurrence(&self, occurrence: &str) -> Result<Option<String>, Error> {
        let sql = "SELECT f.name FROM occurrences o JOIN failures f ON f.id = o.failure_id WHERE o.occurrence = $1";
        self.row(sql, values![occurrence], |row| row.text("name")).await
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
            let read = |row: &Row| Ok((row.text("occurrence")?, row.text("name")?));
            found.extend(self.rows(sql, chunk.iter().map(Value::from).collect(), read).await?);
        }
        Ok(found)
    }

    pub(super) async fn investigations(&self, failure: i64) -> Result<Vec<Investigation>, Error> {
        let sql = "SELECT rule, analysis, author, at FROM investigations WHERE failure_id = $1 ORDER BY at, id";
        let read = |row: &Row| {
            Ok(Investigation {
                rule: row.maybe_int("rule")?.and_then(|rule| u8::try_from(rule).ok()),
                analysis: row.text("analysis")?,
                author: row.text("author")?,
                at: time(row.int("at")?),
            })
        };
        self.rows(sql, values![failure], read).await
    }

    async fn outcomes_of(&self, condition: &str, bound: Vec<Value>, limit: i64) -> Result<Vec<TestOutcome>, Error> {
        let sql = format!(
            "SELECT r.run, o.at, o.outcome, o.phase, o.attempt, o.seconds, r.code, r.commit_id, r.dirty, r.python, r.environment, \
             o.ran_before, f.name AS failure FROM outcomes o \
             JOIN runs r ON r.id = o.run_id LEFT JOIN failures f ON f.id = o.failure_id WHERE {condition} ORDER BY o.at DESC LIMIT {limit}"
        );
        let read = |row: &Row| {
            Ok(TestOutcome {
                run: row.text("run")?,
                at: time(row.int("at")?),
                outcome: by_word(&row.text("outcome")?, Outcome::Skipped),
                phase: by_word(&row.text("phase")?, Phase::Call),
                attempt: small(row.int("attempt")?),
                seconds: row.real("seconds")?,
                code: row.maybe_text("code")?,
                commit: row.maybe_text("commit_id")?,
                dirty: row.flag("dirty")?,
                python: row.maybe_text("python")?,
                environment: row.maybe_text("environment")?,
                ran_before: row.maybe_int("ran_before")?.map(small),
                failure: row.maybe_text("failure")?,
            })
        };
        self.rows(sql, bound, read).await
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

    /// Between which runs this failure began: the last good one whose passing shows something, and the first of the newest failures in a
    /// row.
    pub(crate) async fn onset(&self, id: &str) -> Result<Onset, Error> {
        let sql = "SELECT id, test_id FROM failures WHERE name = $1";
        let mut tx = self.db.begin_reading().await.map_err(self.reading())?;
        let row = tx.fetch_one(sql, values![id.to_ascii_lowercase()]).await.map_err(self.reading())?;
        let row = row.ok_or_else(|| Error::Unknown { what: "failure", id: id.to_owned() })?;
        let failure = row.int("id").map_err(self.reading())?;
        let test = row.int("test_id").map_err(self.reading())?;
        let verdict = verdict(&mut tx, failure, test).await.map_err(self.reading())?;
        let (last_good, first_bad) = verdict.map(|verdict| verdict.began).unwrap_or_default();
        let mut found = async |run: Option<String>| {
            let Some(run) = run else { return Ok(None) };
            let sql = "SELECT r.run, o.at, r.code, r.commit_id, r.branch, r.dirty, r.changed FROM outcomes o \
                JOIN runs r ON r.id = o.run_id WHERE o.test_id = $1 AND r.run = $2 ORDER BY o.at LIMIT 1";
            let row = tx.fetch_one(sql, values![test, run]).await.map_err(self.reading())?;
            row.as_ref().map(onset_run).transpose().map_err(self.reading())
        };
        let (last_good, first_bad) = (found(last_good).await?, found(first_bad).await?);
        drop(tx);
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
        let packages = self.row(sql, values![run], |row| row.text("packages")).await?;
        Ok(packages.and_then(|packages| serde_json::from_str(&packages).ok()))
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
        let total = format!("SELECT COUNT(*) AS n FROM runs r JOIN projects p ON p.id = r.project_id{sql}");
        let total = self.one_count(total, bound.clone()).await?;
        if let Some(after) = after {
            let (began, id) = cursor(after)?;
            bound.extend(values![began, id]);
            let last = bound.len();
            sql = format!("{sql} AND (r.began < ${0} OR r.began = ${0} AND r.id < ${1})", last - 1, last);
        }
        let limit = limit.clamp(1, MAX_PAGE);
        let sql = format!("{RUN}{sql} ORDER BY r.began DESC, r.id DESC LIMIT {}", limit + 1);
        let read = |row: &Row| {
            let run = run(row)?;
            let next = format!("{}-{}", run.began.as_microsecond(), row.int("id")?);
            Ok((run, next))
        };
        Ok(page(self.rows(sql, bound, read).await?, limit, total))
    }

    pub(crate) async fn run(&self, id: &str) -> Result<RunDetail, Error> {
        let read = |row: &Row| Ok((run(row)?, row.int("id")?, row.text("detail")?, row.maybe_text("environment")?));
        let row = self.row(format!("{RUN} WHERE r.run = $1"), values![id], read).await?;
        let (run, number, detail, environment) =
            row.ok_or_else(|| Error::Unknown { what: "run", id: id.to_owned() })?;
        let mut detail: Detail = serde_json::from_str(&detail).unwrap_or_default();
        if let Some(environment) = environment {
            let sql = "SELECT packages FROM environments WHERE hash = $1";
            let kept = self.row(sql, values![environment], |row| row.text("packages")).await?;
            detail.packages = kept.and_then(|packages| serde_json::from_str(&packages).ok()).unwrap_or_default();
        }
        let summaries = async |condition: &str, bound: Vec<Value>| -> Result<Vec<Summary>, Error> {
            let sql = format!("{SUMMARY} WHERE {condition} ORDER BY f.id LIMIT {MAX_PAGE}");
            self.rows(sql, bound, summary).await
        };
        let failures =
            summaries("f.id IN (SELECT failure_id FROM outcomes WHERE run_id = $1)", values![number]).await?;
        let sql = "SELECT f.name FROM outcomes o JOIN failures f ON f.id = o.failure_id WHERE o.run_id = $1 GROUP BY f.name \
            HAVING MAX(CASE WHEN o.outcome = 'rerun' THEN 0 ELSE 1 END) = 0";
        let rerun = self.rows(sql, values![number], |row| row.text("name")).await?;
        let mut more_failures = 0;
        if failures.len() == MAX_PAGE {
            let sql =
                "SELECT COUNT(DISTINCT failure_id) AS n FROM outcomes WHERE run_id = $1 AND failure_id IS NOT NULL";
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
            rerun,
            resolved: summaries(resolved, values![id]).await?,
            not_resolved: summaries("f.note_run = $1 AND f.status <> 'resolved'", values![id]).await?,
        })
    }

    /// Groups with failures that a filter asks for, last seen first.
    pub(crate) async fn groups(&self, filter: &Filter, limit: usize) -> Result<Vec<Group>, Error> {
        let conditions = Conditions::of(filter);
        let sql = format!(
            "SELECT g.id, g.name, p.name AS project, g.reason, g.by_hand, COUNT(*) AS failures, CAST(SUM(f.occurrences) AS BIGINT) AS occurrences, \
             CAST(SUM(CASE WHEN f.status <> 'resolved' THEN 1 ELSE 0 END) AS BIGINT) AS open, MIN(f.first_seen) AS first_seen, \
             MAX(f.last_seen) AS last_seen \
             FROM failures f JOIN groups g ON g.id = f.group_id JOIN projects p ON p.id = f.project_id JOIN tests t ON t.id = f.test_id{} \
             GROUP BY g.id, g.name, p.name, g.reason, g.by_hand ORDER BY MAX(f.last_seen) DESC, g.id DESC LIMIT {}",
            conditions.sql,
            limit.clamp(1, MAX_PAGE)
        );
        let read = |row: &Row| {
            let group = Group {
                id: row.text("name")?,
                project: row.text("project")?,
                reason: row.text("reason")?,
                by_hand: row.flag("by_hand")?,
                failures: count(row.int("failures")?),
                occurrences: count(row.int("occurrences")?),
                open: count(row.int("open")?),
                first_seen: time(row.int("first_seen")?),
                last_seen: time(row.int("last_seen")?),
                kind: String::new(),
                message: String::new(),
            };
            Ok((row.int("id")?, group))
        };
        let (numbers, mut groups): (Vec<i64>, Vec<Group>) =
            self.rows(sql, conditions.bound, read).await?.into_iter().unzip();
        for chunk in numbers.chunks(200) {
            let sql = format!(
                "SELECT group_id, kind, message FROM (SELECT group_id, kind, message, \
                 ROW_NUMBER() OVER (PARTITION BY group_id ORDER BY last_seen DESC) AS n FROM failures WHERE group_id IN ({})) z WHERE n = 1",
                places(0, chunk.len())
            );
            let bound = chunk.iter().map(|number| Value::from(*number)).collect();
            let read = |row: &Row| Ok((row.int("group_id")?, row.text("kind")?, row.text("message")?));
            for (number, kind, message) in self.rows(sql, bound, read).await? {
                if let Some(at) = numbers.iter().position(|known| *known == number) {
                    (groups[at].kind, groups[at].message) = (kind, message);
                }
            }
        }
        Ok(groups)
    }

    /// The name of a group as it is now: one that was merged is the other.
    pub(crate) async fn group(&self, id: &str) -> Result<String, Error> {
        let sql =
            "SELECT g.name FROM groups g WHERE g.id = (SELECT COALESCE(merged_into, id) FROM groups WHERE name = $1)";
        let name = self.row(sql, values![id.to_ascii_lowercase()], |row| row.text("name")).await?;
        name.ok_or_else(|| Error::Unknown { what: "group", id: id.to_owned() })
    }

    pub(crate) async fn counts(&self) -> Result<Counts, Error> {
        let mut counts = Counts::default();
        let sql = "SELECT status, COUNT(*) AS n FROM failures GROUP BY status";
        let read = |row: &Row| Ok((by_word(&row.text("status")?, Status::New), count(row.int("n")?)));
        for (status, number) in self.rows(sql, Vec::new(), read).await? {
            counts.total += number;
            *match status {
                Status::New => &mut counts.new,
                Status::InProgress => &mut counts.in_progress,
                Status::Resolved => &mut counts.resolved,
                Status::Flaky => &mut counts.flaky,
                Status::Reopened => &mut counts.reopened,
            } += number;
        }
        counts.groups = self.one_count("SELECT COUNT(DISTINCT group_id) AS n FROM failures".into(), Vec::new()).await?;
        counts.runs = self.one_count("SELECT COUNT(*) AS n FROM runs".into(), Vec::new()).await?;
        counts.tests = self.one_count("SELECT COUNT(*) AS n FROM tests".into(), Vec::new()).await?;
        Ok(counts)
    }

    /// The number in the column `n` of the only row.
    async fn one_count(&self, sql: String, bound: Vec<Value>) -> Result<u64, Error> {
        Ok(self.row(sql, bound, |row| row.int("n")).await?.map_or(0, count))
    }

    async fn rows<T>(
        &self,
        sql: impl Into<String>,
        bound: Vec<Value>,
        read: impl Fn(&Row) -> sqlx::Result<T>,
    ) -> Result<Vec<T>, Error> {
        let rows = self.db.fetch(sql, bound).await.map_err(self.reading())?;
        rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(self.reading())
    }

    /// The first row.
    async fn row<T>(
        &self,
        sql: impl Into<String>,
        bound: Vec<Value>,
        read: impl Fn(&Row) -> sqlx::Result<T>,
    ) -> Result<Option<T>, Error> {
        let row = self.db.fetch_one(sql, bound).await.map_err(self.reading())?;
        row.as_ref().map(read).transpose().map_err(self.reading())
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
            "SELECT began / {DAY} AS day, COUNT(*) AS n, CAST(SUM(passed) AS BIGINT) AS passed, CAST(SUM(failed + error) AS BIGINT) AS failed FROM runs \
             WHERE began >= $1 GROUP BY began / {DAY}"
        );
        let read = |row: &Row| {
            let counts = (count(row.int("n")?), count(row.int("passed")?), count(row.int("failed")?));
            Ok((row.int("day")?, counts))
        };
        for (number, counts) in self.rows(sql, values![since.as_microsecond()], read).await? {
            let entry = days.entry(number).or_insert_with(|| day(number));
            (entry.runs, entry.passed, entry.failed) = counts;
        }
        let sql = format!(
            "SELECT first_seen / {DAY} AS day, COUNT(*) AS n FROM failures WHERE first_seen >= $1 GROUP BY first_seen / {DAY}"
        );
        let read = |row: &Row| Ok((row.int("day")?, count(row.int("n")?)));
        for (number, seen) in self.rows(sql, values![since.as_microsecond()], read).await? {
            days.entry(number).or_insert_with(|| day(number)).first_seen = seen;
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
            "SELECT t.nodeid, COUNT(*) AS runs, AVG(o.seconds) AS mean, MAX(o.seconds) AS longest FROM outcomes o JOIN tests t ON t.id = o.test_id \
             WHERE o.at >= $1 AND o.outcome <> 'skipped'{condition} GROUP BY t.id, t.nodeid ORDER BY AVG(o.seconds) DESC LIMIT {}",
            limit.clamp(1, MAX_PAGE)
        );
        let read = |row: &Row| {
            Ok(Duration {
                test: row.text("nodeid")?,
                runs: count(row.int("runs")?),
                mean_s: row.real("mean")?,
                longest_s: row.real("longest")?,
            })
        };
        self.rows(sql, bound, read).await
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

/// Rows up to the limit, each with its cursor; the one beyond the limit says that there are more.
fn page<T>(mut rows: Vec<(T, String)>, limit: usize, total: u64) -> Page<T> {
    let more = rows.len() > limit;
    rows.truncate(limit);
    let (items, cursors): (Vec<T>, Vec<String>) = rows.into_iter().unzip();
    Page { items, total, next: cursors.into_iter().next_back().filter(|_| more) }
}

fn cursor(text: &str) -> Result<(i64, i64), Error> {
    let parts = text.rsplit_once('-').and_then(|(time, id)| Some((time.parse().ok()?, id.parse().ok()?)));
    parts.ok_or_else(|| Error::Invalid { what: "`after`", why: format!("`{text}` is not the `next` of a page") })
}

fn summary(row: &Row) -> sqlx::Result<Summary> {
    Ok(Summary {
        id: row.text("name")?,
        status: by_word(&row.text("status")?, Status::New),
        verified: row.flag("verified")?,
        group: row.text("group_name")?,
        project: row.text("project")?,
        test: row.text("nodeid")?,
        test_file: row.maybe_text("test_file")?,
        test_line: row.maybe_int("test_line")?.map(small),
        phase: by_word(&row.text("phase")?, Phase::Call),
        kind: row.text("kind")?,
        message: row.text("message")?,
        pattern: row.text("pattern")?,
        fingerprint: row.text("fingerprint")?,
        place: place(row)?,
        first_seen: time(row.int("first_seen")?),
        last_seen: time(row.int("last_seen")?),
        // The run may have been forgotten.
        last_run: row.maybe_text("run")?.unwrap_or_default(),
        occurrences: count(row.int("occurrences")?),
        investigations: count(row.int("investigations")?),
        note: row.maybe_text("note")?,
    })
}

fn status_change(row: &Row) -> sqlx::Result<StatusChange> {
    Ok(StatusChange {
        at: time(row.int("at")?),
        from: row.maybe_text("old")?.map(|status| by_word(&status, Status::New)),
        to: by_word(&row.text("new")?, Status::New),
        reason: row.text("reason")?,
        run: row.maybe_text("run")?,
    })
}

fn place(row: &Row) -> sqlx::Result<Option<SourceLocation>> {
    let (line, function) = (row.maybe_int("line")?, row.maybe_text("function")?);
    let place = |file| SourceLocation { file, line: line.map_or(0, small), function: function.unwrap_or_default() };
    Ok(row.maybe_text("file")?.map(place))
}

fn occurrence(row: &Row) -> sqlx::Result<Occurrence> {
    Ok(Occurrence {
        occurrence: row.text("occurrence")?,
        // The run may have been forgotten.
        run: row.maybe_text("run")?.unwrap_or_default(),
        at: time(row.int("at")?),
        attempt: small(row.int("attempt")?),
        subtest: row.maybe_text("subtest")?.filter(|subtest| !subtest.is_empty()),
        code: row.maybe_text("code")?,
        commit: row.maybe_text("commit_id")?,
        test: serde_json::from_str(&row.text("test")?).unwrap_or_default(),
        evidence: row.maybe_text("evidence")?.and_then(|evidence| serde_json::from_str(&evidence).ok()),
    })
}

fn onset_run(row: &Row) -> sqlx::Result<OnsetRun> {
    Ok(OnsetRun {
        run: row.text("run")?,
        at: time(row.int("at")?),
        code: row.maybe_text("code")?,
        commit: row.maybe_text("commit_id")?,
        branch: row.maybe_text("branch")?,
        dirty: row.flag("dirty")?,
        changed: serde_json::from_str(&row.text("changed")?).unwrap_or_default(),
    })
}

fn run(row: &Row) -> sqlx::Result<Run> {
    Ok(Run {
        run: row.text("run")?,
        project: Project { name: row.text("project")?, root: row.text("root")?, remote: row.maybe_text("remote")? },
        source: by_word(&row.text("source")?, Source::Plugin),
        began: time(row.int("began")?),
        ended: row.maybe_int("ended")?.map(time),
        exit_code: row.maybe_int("exit_code")?.and_then(|code| i32::try_from(code).ok()),
        seconds: row.maybe_real("seconds")?,
        not_run: small(row.int("not_run")?),
        note: row.maybe_text("note")?,
        host: row.maybe_text("host")?,
        user: row.maybe_text("who")?,
        python: row.maybe_text("python")?,
        pytest: row.maybe_text("pytest")?,
        platform: row.maybe_text("platform")?,
        ci: row.flag("ci")?,
        workers: row.maybe_int("workers")?.map(small),
        code: run_code(row)?,
        counts: Outcomes {
            passed: count(row.int("passed")?),
            failed: count(row.int("failed")?),
            error: count(row.int("error")?),
            skipped: count(row.int("skipped")?),
            xfailed: count(row.int("xfailed")?),
            xpassed: count(row.int("xpassed")?),
            rerun: count(row.int("rerun")?),
        },
    })
}

fn run_code(row: &Row) -> sqlx::Result<Option<RunCode>> {
    let Some(hash) = row.maybe_text("code")? else { return Ok(None) };
    Ok(Some(RunCode {
        hash,
        how: by_word(&row.maybe_text("code_how")?.unwrap_or_default(), CodeHash::Files),
        commit: row.maybe_text("commit_id")?,
        branch: row.maybe_text("branch")?,
        dirty: row.flag("dirty")?,
        changed: serde_json::from_str(&row.text("changed")?).unwrap_or_default(),
    }))
}
