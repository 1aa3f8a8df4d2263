//! Takes in what runs report: any number of batches in one transaction, several rows per statement. What was taken before is known by the
//! primary key of its outcome and counted once.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::Path,
    sync::Arc,
};

use jiff::Timestamp;

use super::{
    Store, by_word, count,
    sql::{Tx, Value, places, tuples, values},
    word,
};
use crate::{
    environment::{self, Packages},
    error::Error,
    ingest::{Batch, Report},
    record::{Began, Outcome, Phase, Source, Status, StoredFailure},
    status::{Event, Tested, Verdict, What, judge, passed_in_run},
};

/// Rows per statement: a round trip costs more than a row.
const ROWS: usize = 100;
/// Outcomes of a test that its failures are judged by.
const HISTORY: i64 = 200;

/// What became of a transaction.
pub(crate) enum Trial<T> {
    Done(T),
    /// Somebody's records are wrong.
    Refused(Error),
}

/// When a test had which outcome, of which failure, in which run of which code.
type Seen = (i64, Outcome, Option<i64>, String, Tested);

/// A run while its records are written.
#[derive(Debug, Clone, Copy)]
struct RunRow {
    id: i64,
    project: i64,
    source: Source,
    /// Reports of tests that ran, before the batches at hand.
    reported: i64,
}

/// A new failing: which report, of which run and test.
struct New<'a> {
    report: &'a Report,
    run: RunRow,
    test: i64,
}

impl Store {
    /// Writes the batches and commits. What comes back is by occurrence, and on disk.
    pub(crate) async fn write(&self, batches: &[&Batch]) -> sqlx::Result<Trial<BTreeMap<String, StoredFailure>>> {
        let mut tx = self.db.begin().await?;
        match write(&mut tx, batches).await? {
            Trial::Done(known) => {
                tx.commit().await?;
                Ok(Trial::Done(known))
            }
            Trial::Refused(why) => Ok(Trial::Refused(why)),
        }
    }
}

async fn write(tx: &mut Tx, batches: &[&Batch]) -> sqlx::Result<Trial<BTreeMap<String, StoredFailure>>> {
    for began in batches.iter().flat_map(|batch| &batch.began) {
        begin(tx, began).await?;
    }
    let runs = match runs(tx, batches).await? {
        Ok(runs) => runs,
        Err(refused) => return Ok(Trial::Refused(refused)),
    };
    // What is known of a whole run changes what its tests mean.
    let mut whole: BTreeSet<i64> = BTreeSet::new();
    for code in batches.iter().flat_map(|batch| &batch.code) {
        let run = runs[code.run.as_str()];
        whole.insert(run.id);
        tx.execute(
            "UPDATE runs SET code = $2, code_how = $3, commit_id = $4, branch = $5, dirty = $6, changed = $7, committed = $8, other = $9 \
             WHERE id = $1",
            values![
                run.id,
                &code.hash,
                word(code.how),
                code.commit.as_deref(),
                code.branch.as_deref(),
                code.dirty,
                serde_json::to_string(&code.changed).unwrap_or_default(),
                code.committed.map(Timestamp::as_microsecond),
                code.other.as_deref(),
            ],
        )
        .await?;
    }
    let reports: Vec<&Report> = batches.iter().flat_map(|batch| &batch.reports).collect();
    let tests = tests(tx, &reports, &runs).await?;
    let new = outcomes(tx, &reports, &runs, &tests).await?;
    let mut touched = failures(tx, &new).await?;
    let mut ended = BTreeSet::new();
    for end in batches.iter().flat_map(|batch| &batch.ended) {
        let run = runs[end.run.as_str()];
        ended.insert(run.id);
        tx.execute(
            "UPDATE runs SET ended = $2, exit_code = $3, seconds = $4, not_run = $5, note = $6 WHERE id = $1",
            values![
                run.id,
                end.at.as_microsecond(),
                end.exit_code,
                if end.seconds.is_finite() { end.seconds } else { 0.0 },
                end.not_run,
                end.note.as_deref()
            ],
        )
        .await?;
    }
    for run in whole {
        let rows = tx
            .fetch(
                "SELECT DISTINCT f.test_id FROM failures f JOIN outcomes o ON o.test_id = f.test_id WHERE o.run_id = $1",
                values![run],
            )
            .await?;
        for row in rows {
            touched.insert(row.int("test_id")?);
        }
    }
    let passed: BTreeSet<i64> = reports
        .iter()
        .filter(|report| report.outcome == Outcome::Passed)
        .filter_map(|report| tests.get(&(runs[report.run.as_str()].project, report.nodeid.as_str())).copied())
        .collect();
    touched.extend(with_failures(tx, passed).await?);
    judge_tests(tx, &touched.into_iter().collect::<Vec<_>>()).await?;

    let mut failing: BTreeMap<i64, RunRow> = BTreeMap::new();
    failing.extend(new.iter().filter(|new| new.report.failing.is_some()).map(|new| (new.run.id, new.run)));
    for end in &ended {
        failing.extend(runs.values().filter(|run| run.id == *end).map(|run| (run.id, *run)));
    }
    for run in failing.into_values().filter(|run| run.source != Source::Hand) {
        super::regroup::regroup(tx, run.project, run.id, ended.contains(&run.id)).await?;
    }
    let occurrences =
        reports.iter().filter_map(|report| report.failing.as_ref()).map(|failing| failing.occurrence.as_str());
    Ok(Trial::Done(known(tx, &occurrences.collect::<Vec<_>>()).await?))
}

async fn begin(tx: &mut Tx, began: &Began) -> sqlx::Result<()> {
    let project = &began.project;
    let key = project.remote.as_deref().unwrap_or(&project.root);
    let row = tx
        .fetch_one(
            "INSERT INTO projects (key, name, root, remote) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (key) DO UPDATE SET name = excluded.name RETURNING id",
            values![key, &project.name, &project.root, project.remote.as_deref()],
        )
        .await?;
    let id = row.ok_or(sqlx::Error::RowNotFound)?.int("id")?;
    let detail = serde_json::json!({
        "argv": began.argv,
        "cwd": began.cwd,
        "pid": began.pid,
        "implementation": began.implementation,
    });
    let environment = environment::hash(&began.packages);
    if let Some(hash) = &environment {
        tx.execute(
            "INSERT INTO environments (hash, packages) VALUES ($1, $2) ON CONFLICT (hash) DO NOTHING",
            values![hash, serde_json::to_string(&began.packages).unwrap_or_default()],
        )
        .await?;
    }
    tx.execute(
        "INSERT INTO runs (run, project_id, source, began, host, who, python, pytest, platform, ci, workers, detail, environment, \
         implementation) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) ON CONFLICT (run) DO NOTHING",
        values![
            &began.run,
            id,
            word(began.source),
            began.at.as_microsecond(),
            began.host.as_deref(),
            began.user.as_deref(),
            began.python.as_deref(),
            began.pytest.as_deref(),
            began.platform.as_deref(),
            began.ci,
            began.workers,
            detail.to_string(),
            environment,
            began.implementation.as_deref(),
        ],
    )
    .await?;
    Ok(())
}

/// The runs that the batches are about, by the reporters' ids.
async fn runs<'a>(tx: &mut Tx, batches: &[&'a Batch]) -> sqlx::Result<Result<HashMap<&'a str, RunRow>, Error>> {
    let mut names: BTreeSet<&'a str> = BTreeSet::new();
    for batch in batches {
        names.extend(batch.began.iter().map(|began| began.run.as_str()));
        names.extend(batch.code.iter().map(|code| code.run.as_str()));
        names.extend(batch.reports.iter().map(|report| report.run.as_str()));
        names.extend(batch.ended.iter().map(|ended| ended.run.as_str()));
    }
    let names: Vec<&str> = names.into_iter().collect();
    let mut found: HashMap<&str, RunRow> = HashMap::new();
    for chunk in names.chunks(ROWS) {
        let sql = format!(
            "SELECT run, id, project_id, source, passed + failed + error + xfailed + xpassed + rerun AS reported FROM runs WHERE run IN ({})",
            places(0, chunk.len())
        );
        let rows = tx.fetch(sql, chunk.iter().map(|name| Value::from(*name)).collect()).await?;
        for row in rows {
            let name = row.text("run")?;
            let source = by_word(&row.text("source")?, Source::Plugin);
            let (id, project, reported) = (row.int("id")?, row.int("project_id")?, row.int("reported")?);
            let run = RunRow { id, project, source, reported };
            if let Some(name) = chunk.iter().find(|known| **known == name) {
                found.insert(name, run);
            }
        }
    }
    match names.iter().find(|name| !found.contains_key(*name)) {
        Some(name) => Ok(Err(Error::UnknownRun { run: (*name).to_owned() })),
        None => Ok(Ok(found)),
    }
}

/// The tests that are reported on, made where they are new. In one order, so that two writers never wait for each other.
async fn tests<'a>(
    tx: &mut Tx,
    reports: &[&'a Report],
    runs: &HashMap<&str, RunRow>,
) -> sqlx::Result<HashMap<(i64, &'a str), i64>> {
    let wanted: BTreeMap<(i64, &'a str), &'a Report> =
        reports.iter().map(|report| ((runs[report.run.as_str()].project, report.nodeid.as_str()), *report)).collect();
    let mut found: HashMap<(i64, &'a str), i64> = HashMap::with_capacity(wanted.len());
    let names: HashMap<&str, &'a str> = wanted.keys().map(|(_, nodeid)| (*nodeid, *nodeid)).collect();
    let all: Vec<_> = wanted.into_iter().collect();
    // A statement is about one project, because its index begins with that.
    let by_project = all.chunk_by(|((one, _), _), ((other, _), _)| one == other);
    for chunk in by_project.flat_map(|of_project| of_project.chunks(ROWS)) {
        let list = places(1, chunk.len());
        let sql = format!(
            "SELECT id, project_id, nodeid, file, line FROM tests WHERE project_id = $1 AND nodeid IN ({list})"
        );
        let nodeids = chunk.iter().map(|((_, nodeid), _)| Value::from(*nodeid));
        let rows = tx.fetch(sql, std::iter::once(Value::from(chunk[0].0.0)).chain(nodeids).collect()).await?;
        let mut moved: Vec<(i64, &Report)> = Vec::new();
        for row in rows {
            let (id, project, nodeid) = (row.int("id")?, row.int("project_id")?, row.text("nodeid")?);
            let (file, line) = (row.maybe_text("file")?, row.maybe_int("line")?);
            let key = (project, names[nodeid.as_str()]);
            found.insert(key, id);
            let report = chunk.iter().find(|(wanted, _)| *wanted == key).map(|(_, report)| *report);
            if let Some(report) = report
                && (report.file.is_some() && report.file != file
                    || report.line.is_some() && report.line.map(i64::from) != line)
            {
                moved.push((id, report));
            }
        }
        for (id, report) in moved {
            tx.execute(
                "UPDATE tests SET file = $2, line = $3 WHERE id = $1",
                values![id, report.file.as_deref(), report.line],
            )
            .await?;
        }
        let new: Vec<_> = chunk.iter().filter(|(key, _)| !found.contains_key(key)).collect();
        if new.is_empty() {
            continue;
        }
        let sql = format!(
            "INSERT INTO tests (project_id, nodeid, file, line) VALUES {} \
             ON CONFLICT (project_id, nodeid) DO UPDATE SET line = excluded.line RETURNING id, project_id, nodeid",
            tuples(new.len(), 4)
        );
        let mut bound = Vec::with_capacity(new.len() * 4);
        for ((project, nodeid), report) in new {
            bound.extend(values![*project, *nodeid, report.file.as_deref(), report.line]);
        }
        for row in tx.fetch(sql, bound).await? {
            let (id, project, nodeid) = (row.int("id")?, row.int("project_id")?, row.text("nodeid")?);
            found.insert((project, names[nodeid.as_str()]), id);
        }
    }
    Ok(found)
}

/// Writes the outcomes and counts those that were not there.
async fn outcomes<'a>(
    tx: &mut Tx,
    reports: &[&'a Report],
    runs: &HashMap<&str, RunRow>,
    tests: &HashMap<(i64, &str), i64>,
) -> sqlx::Result<Vec<New<'a>>> {
    type Key = (i64, i64, u32, String, String);
    let mut wanted: BTreeMap<Key, New<'a>> = BTreeMap::new();
    for report in reports {
        let run = runs[report.run.as_str()];
        let test = tests[&(run.project, report.nodeid.as_str())];
        let key = (run.id, test, report.attempt, word(report.phase), report.subtest.clone());
        wanted.entry(key).or_insert(New { report, run, test });
    }
    let before = ran_before(&wanted.values().collect::<Vec<_>>());
    let mut new = Vec::with_capacity(wanted.len());
    let mut counted: BTreeMap<(i64, String), i64> = BTreeMap::new();
    let mut left: Vec<(Key, New<'a>)> = wanted.into_iter().collect();
    while !left.is_empty() {
        let rest = left.split_off(ROWS.min(left.len()));
        let mut chunk: HashMap<Key, New<'a>> = std::mem::replace(&mut left, rest).into_iter().collect();
        let sql = format!(
            "INSERT INTO outcomes (run_id, test_id, attempt, phase, subtest, outcome, at, seconds, ran_before) VALUES {} \
             ON CONFLICT DO NOTHING RETURNING run_id, test_id, attempt, phase, subtest",
            tuples(chunk.len(), 9)
        );
        let mut bound = Vec::with_capacity(chunk.len() * 9);
        for ((run, test, attempt, phase, subtest), row) in &chunk {
            let report = row.report;
            bound.extend(values![
                *run,
                *test,
                *attempt,
                phase,
                subtest,
                word(report.outcome),
                report.at.as_microsecond(),
                report.seconds,
                before.get(&(*run, *test)).copied(),
            ]);
        }
        for row in tx.fetch(sql, bound).await? {
            let (run, test, attempt) = (row.int("run_id")?, row.int("test_id")?, super::small(row.int("attempt")?));
            let key = (run, test, attempt, row.text("phase")?, row.text("subtest")?);
            if let Some(row) = chunk.remove(&key) {
                *counted.entry((row.run.id, word(row.report.outcome))).or_default() += 1;
                new.push(row);
            }
        }
    }
    for ((run, outcome), count) in counted {
        // The column is called as the outcome is.
        tx.execute(format!("UPDATE runs SET {outcome} = {outcome} + $2 WHERE id = $1"), values![run, count]).await?;
    }
    Ok(new)
}

/// How many tests had run before each test of a run, where its reports say in which order they ran.
fn ran_before(new: &[&New<'_>]) -> HashMap<(i64, i64), i64> {
    let mut ordered: Vec<_> = new.iter().filter(|new| new.run.source == Source::Plugin).collect();
    ordered.sort_by_key(|new| new.report.at);
    let mut before: HashMap<(i64, i64), i64> = HashMap::with_capacity(ordered.len());
    let mut ran: HashMap<i64, i64> = HashMap::new();
    for New { report, run, test } in ordered {
        // What was reported of the test itself, when it was tried before, is not another test.
        let own = i64::from((report.attempt > 1 || report.phase == Phase::Teardown) && run.reported > 0);
        let counted = ran.entry(run.id).or_insert(run.reported);
        let is_new = !before.contains_key(&(run.id, *test));
        // Nothing has run when files are collected; what was reported until then are other files.
        let ran_before = if report.phase == Phase::Collect { 0 } else { *counted - own };
        before.entry((run.id, *test)).or_insert(ran_before);
        let has_run = report.outcome != Outcome::Skipped && report.phase != Phase::Collect;
        *counted += i64::from(is_new && has_run);
    }
    before
}

/// Counts new failings to their failures, which are made where there are none, and keeps what was seen. The tests that are touched.
async fn failures(tx: &mut Tx, new: &[New<'_>]) -> sqlx::Result<BTreeSet<i64>> {
    let mut by_print: BTreeMap<(i64, &str), Vec<&New<'_>>> = BTreeMap::new();
    for row in new {
        if let Some(failing) = &row.report.failing {
            by_print.entry((row.test, failing.print.fingerprint.as_str())).or_default().push(row);
        }
    }
    let groups = super::regroup::provisional(
        tx,
        by_print.iter().map(|((_, print), rows)| (rows[0].run.project, rows[0].run.id, *print)),
    )
    .await?;
    let all: Vec<_> = by_print.iter().collect();
    let mut ids: HashMap<(i64, String), i64> = HashMap::new();
    for chunk in all.chunks(ROWS / 2) {
        let sql = format!(
            "INSERT INTO failures (name, project_id, test_id, fingerprint, group_id, status, kind, message, pattern, phase, file, line, \
             function, traits, first_seen, last_seen, first_run, last_run, occurrences) VALUES {} \
             ON CONFLICT (test_id, fingerprint) DO UPDATE SET \
             occurrences = failures.occurrences + excluded.occurrences, \
             message = CASE WHEN excluded.last_seen >= failures.last_seen THEN excluded.message ELSE failures.message END, \
             file = CASE WHEN excluded.last_seen >= failures.last_seen THEN excluded.file ELSE failures.file END, \
             line = CASE WHEN excluded.last_seen >= failures.last_seen THEN excluded.line ELSE failures.line END, \
             function = CASE WHEN excluded.last_seen >= failures.last_seen THEN excluded.function ELSE failures.function END, \
             phase = CASE WHEN excluded.last_seen >= failures.last_seen THEN excluded.phase ELSE failures.phase END, \
             traits = CASE WHEN excluded.last_seen >= failures.last_seen THEN excluded.traits ELSE failures.traits END, \
             last_run = CASE WHEN excluded.last_seen >= failures.last_seen THEN excluded.last_run ELSE failures.last_run END, \
             first_run = CASE WHEN excluded.first_seen < failures.first_seen THEN excluded.first_run ELSE failures.first_run END, \
             first_seen = CASE WHEN excluded.first_seen < failures.first_seen THEN excluded.first_seen ELSE failures.first_seen END, \
             last_seen = CASE WHEN excluded.last_seen > failures.last_seen THEN excluded.last_seen ELSE failures.last_seen END \
             RETURNING id, test_id, fingerprint",
            tuples(chunk.len(), 19)
        );
        let mut bound = Vec::with_capacity(chunk.len() * 19);
        for ((test, print), rows) in chunk {
            let first = rows.iter().min_by_key(|row| row.report.at).expect("one made the entry");
            let last = rows.iter().max_by_key(|row| row.report.at).expect("one made the entry");
            let failing = last.report.failing.as_ref().expect("only failing ones are here");
            let place = failing.print.place.as_ref();
            bound.extend(values![
                super::regroup::new_name(super::regroup::Named::Failure),
                last.run.project,
                *test,
                *print,
                groups.of(last.run.project, *test, print),
                word(Status::New),
                &failing.print.kind,
                &failing.print.message,
                &failing.print.pattern,
                word(last.report.phase),
                place.map(|place| place.file.as_str()),
                place.map(|place| place.line),
                place.map(|place| place.function.as_str()),
                &failing.traits,
                first.report.at.as_microsecond(),
                last.report.at.as_microsecond(),
                first.run.id,
                last.run.id,
                i64::try_from(rows.len()).unwrap_or(i64::MAX),
            ]);
        }
        for row in tx.fetch(sql, bound).await? {
            ids.insert((row.int("test_id")?, row.text("fingerprint")?), row.int("id")?);
        }
    }
    let failing: Vec<(&New<'_>, i64)> = by_print
        .iter()
        .flat_map(|((test, print), rows)| {
            let id = ids[&(*test, (*print).to_owned())];
            rows.iter().map(move |row| (*row, id))
        })
        .collect();
    for chunk in failing.chunks(ROWS) {
        link(tx, chunk).await?;
        keep(tx, chunk).await?;
    }
    Ok(by_print.keys().map(|(test, _)| *test).collect())
}

/// Says of outcomes which failures they are.
async fn link(tx: &mut Tx, failing: &[(&New<'_>, i64)]) -> sqlx::Result<()> {
    let sql = format!(
        "UPDATE outcomes SET failure_id = v.column6 FROM (VALUES {}) AS v \
         WHERE outcomes.run_id = v.column1 AND outcomes.test_id = v.column2 AND outcomes.attempt = v.column3 \
         AND outcomes.phase = v.column4 AND outcomes.subtest = v.column5",
        tuples(failing.len(), 6)
    );
    let mut bound = Vec::with_capacity(failing.len() * 6);
    for (row, failure) in failing {
        let report = row.report;
        bound.extend(values![row.run.id, row.test, report.attempt, word(report.phase), &report.subtest, *failure]);
    }
    tx.execute(sql, bound).await?;
    Ok(())
}

async fn keep(tx: &mut Tx, failing: &[(&New<'_>, i64)]) -> sqlx::Result<()> {
    let sql = format!(
        "INSERT INTO occurrences (failure_id, run_id, occurrence, at, attempt, subtest, test, evidence) VALUES {}",
        tuples(failing.len(), 8)
    );
    let mut bound = Vec::with_capacity(failing.len() * 8);
    for (row, failure) in failing {
        let failing = row.report.failing.as_ref().expect("only failing ones are here");
        bound.extend(values![
            *failure,
            row.run.id,
            &failing.occurrence,
            row.report.at.as_microsecond(),
            row.report.attempt,
            &row.report.subtest,
            &failing.test,
            &failing.evidence,
        ]);
    }
    tx.execute(sql, bound).await?;
    Ok(())
}

/// Those of the tests that ever failed.
async fn with_failures(tx: &mut Tx, tests: BTreeSet<i64>) -> sqlx::Result<BTreeSet<i64>> {
    let tests: Vec<i64> = tests.into_iter().collect();
    let mut found = BTreeSet::new();
    for chunk in tests.chunks(ROWS) {
        let sql = format!("SELECT DISTINCT test_id FROM failures WHERE test_id IN ({})", places(0, chunk.len()));
        let rows = tx.fetch(sql, chunk.iter().map(|test| Value::from(*test)).collect()).await?;
        for row in rows {
            found.insert(row.int("test_id")?);
        }
    }
    Ok(found)
}

/// A failure while it is judged.
struct Judged {
    status: Status,
    verified: bool,
    note: Option<String>,
    events: Vec<Event>,
    changes: Vec<StatusChange>,
}

/// When a status changed, from what to what, why, and which run shows it.
type StatusChange = (i64, Option<String>, String, String, Option<String>);
/// A change of a failure.
type FailureChange = (i64, StatusChange);

/// Tells the status of all failures of these tests again.
pub(super) async fn judge_tests(tx: &mut Tx, tests: &[i64]) -> sqlx::Result<()> {
    for chunk in tests.chunks(ROWS) {
        judge_some(tx, chunk).await?;
    }
    Ok(())
}

async fn judge_some(tx: &mut Tx, tests: &[i64]) -> sqlx::Result<()> {
    let (failures, begins) = heard(tx, tests).await?;
    let mut told: Vec<FailureChange> = Vec::new();
    for (id, (test, judged)) in failures {
        decide(tx, id, judged, begins.get(&test).copied(), &mut told).await?;
    }
    for chunk in told.chunks(ROWS) {
        let sql =
            format!("INSERT INTO changes (failure_id, at, old, new, reason, run) VALUES {}", tuples(chunk.len(), 6));
        let mut bound = Vec::with_capacity(chunk.len() * 6);
        for (id, (at, old, new, reason, run)) in chunk {
            bound.extend(values![*id, *at, old.as_deref(), new, reason, run.as_deref()]);
        }
        tx.execute(sql, bound).await?;
    }
    Ok(())
}

/// The newest run in which the test of a failure passed since, in a way that shows something.
pub(super) async fn passed_in(tx: &mut Tx, failure: i64, test: i64) -> sqlx::Result<Option<String>> {
    Ok(verdict(tx, failure, test).await?.and_then(|verdict| verdict.passed_in))
}

/// What became of a failure, told again.
pub(super) async fn verdict(tx: &mut Tx, failure: i64, test: i64) -> sqlx::Result<Option<Verdict>> {
    let (mut failures, begins) = heard(tx, &[test]).await?;
    let Some((_, judged)) = failures.remove(&failure) else { return Ok(None) };
    let begin = begins.get(&test).copied().unwrap_or(i64::MIN);
    let before: Vec<_> = judged.changes.into_iter().filter(|(at, ..)| *at < begin).collect();
    Ok(Some(judge(start_of(&before), &judged.events)))
}

/// The status that changes lead to.
fn start_of(changes: &[StatusChange]) -> Option<(Status, bool)> {
    changes.last().map(|(_, _, status, ..)| (by_word(status, Status::New), true))
}

/// Failures by their numbers, each with its test, and when the history of a test begins where it is not all of it.
type Heard = (HashMap<i64, (i64, Judged)>, HashMap<i64, i64>);

/// Everything that happened to the failures of these tests.
async fn heard(tx: &mut Tx, tests: &[i64]) -> sqlx::Result<Heard> {
    let bound = || tests.iter().map(|test| Value::from(*test)).collect::<Vec<_>>();
    let list = places(0, tests.len());
    let mut failures: HashMap<i64, (i64, Judged)> = HashMap::new();
    let sql = format!("SELECT id, test_id, status, verified, note FROM failures WHERE test_id IN ({list})");
    for row in tx.fetch(sql, bound()).await? {
        let status = by_word(&row.text("status")?, Status::New);
        let (verified, note) = (row.flag("verified")?, row.maybe_text("note")?);
        let (id, test) = (row.int("id")?, row.int("test_id")?);
        failures.insert(id, (test, Judged { status, verified, note, events: Vec::new(), changes: Vec::new() }));
    }
    if failures.is_empty() {
        return Ok((failures, HashMap::new()));
    }
    let ids: Vec<i64> = failures.keys().copied().collect();
    for chunk in ids.chunks(ROWS) {
        said(tx, chunk, &mut failures).await?;
    }
    let mut begins: HashMap<i64, i64> = HashMap::new();
    let mut seen: HashMap<i64, Vec<Seen>> = HashMap::new();
    let mut found: Vec<(i64, Option<String>, Seen)> = Vec::new();
    let mut environments: BTreeSet<String> = BTreeSet::new();
    let sql = format!(
        "SELECT o.test_id, o.at, o.outcome, o.failure_id, r.run, r.code, r.other, r.committed, r.implementation, r.python, r.platform, \
         o.ran_before, r.environment, o.n, t.nodeid FROM \
         (SELECT test_id, at, outcome, failure_id, run_id, ran_before, ROW_NUMBER() OVER (PARTITION BY test_id ORDER BY at DESC) AS n \
          FROM outcomes WHERE test_id IN ({list})) o JOIN runs r ON r.id = o.run_id JOIN tests t ON t.id = o.test_id WHERE o.n <= {HISTORY} ORDER BY o.at"
    );
    for row in tx.fetch(sql, bound()).await? {
        let (test, at) = (row.int("test_id")?, row.int("at")?);
        let outcome = by_word(&row.text("outcome")?, Outcome::Skipped);
        let (failure, run) = (row.maybe_int("failure_id")?, row.text("run")?);
        let (implementation, version) = (row.maybe_text("implementation")?, row.maybe_text("python")?);
        let platform = row.maybe_text("platform")?;
        let mut code = Tested {
            code: row.maybe_text("code")?,
            other: row.maybe_text("other")?,
            committed: row.maybe_int("committed")?,
            python: interpreter(implementation.as_deref(), version.as_deref(), platform.as_deref()),
            before: row.maybe_int("ran_before")?.and_then(|before| u32::try_from(before).ok()),
            packages: None,
        };
        let environment = row.maybe_text("environment")?;
        if row.int("n")? == HISTORY {
            begins.insert(test, at);
        }
        // The code of a test in a document, as doctest finds it, is not Python's alone.
        let nodeid = row.text("nodeid")?;
        let is_python =
            nodeid.split("::").next().is_some_and(|file| Path::new(file).extension() == Some("py".as_ref()));
        if !is_python && let (Some(hash), Some(other)) = (&mut code.code, code.other.take()) {
            hash.push_str(&other);
        }
        environments.extend(environment.clone());
        found.push((test, environment, (at, outcome, failure, run, code)));
    }
    let environments = installed(tx, &environments.into_iter().collect::<Vec<_>>()).await?;
    for (test, environment, mut outcome) in found {
        outcome.4.packages = environment.and_then(|hash| environments.get(&hash).cloned());
        seen.entry(test).or_default().push(outcome);
    }
    for (test, Judged { events, .. }) in failures.values_mut() {
        // What came before was judged when it came.
        let begin = begins.get(test).copied().unwrap_or(i64::MIN);
        events.retain(|event| event.at.as_microsecond() >= begin);
    }
    for (test, outcomes) in &seen {
        let mut by_run: HashMap<&str, Vec<Outcome>> = HashMap::new();
        for (_, outcome, _, run, _) in outcomes {
            by_run.entry(run).or_default().push(*outcome);
        }
        for (at, outcome, failure, run, code) in outcomes {
            let at = super::time(*at);
            let (run_name, code) = (run.clone(), code.clone());
            if let Some((_, judged)) = failure.and_then(|failure| failures.get_mut(&failure)) {
                judged.events.push(Event { at, what: What::Failed { run: run_name, code } });
            } else if *outcome == Outcome::Passed && passed_in_run(&by_run[run.as_str()]) {
                for (_, judged) in failures.values_mut().filter(|(of, _)| of == test) {
                    let what = What::Passed { run: run_name.clone(), code: code.clone() };
                    judged.events.push(Event { at, what });
                }
            }
        }
    }
    Ok((failures, begins))
}

/// The packages of environments, by their hashes.
async fn installed(tx: &mut Tx, hashes: &[String]) -> sqlx::Result<HashMap<String, Arc<Packages>>> {
    let mut found = HashMap::new();
    for chunk in hashes.chunks(ROWS) {
        let sql = format!("SELECT hash, packages FROM environments WHERE hash IN ({})", places(0, chunk.len()));
        for row in tx.fetch(sql, chunk.iter().map(Value::from).collect()).await? {
            let (hash, packages) = (row.text("hash")?, row.text("packages")?);
            found.insert(hash, Arc::new(serde_json::from_str(&packages).unwrap_or_default()));
        }
    }
    Ok(found)
}

/// `CPython 3.13 on linux`, if the version is known. `platform` begins with the system's name.
fn interpreter(implementation: Option<&str>, version: Option<&str>, platform: Option<&str>) -> Option<String> {
    let version = version?;
    let minor = version.match_indices('.').nth(1).map_or(version, |(end, _)| &version[..end]);
    let name = match implementation {
        None | Some("cpython") => "CPython",
        Some("pypy") => "PyPy",
        Some(other) => other,
    };
    let system = platform.and_then(|platform| platform.split(' ').next()).filter(|system| !system.is_empty());
    Some(format!("{name} {minor}{}", system.map(|system| format!(" on {system}")).unwrap_or_default()))
}

/// What people recorded and said of failures, and what became of these so far.
async fn said(tx: &mut Tx, ids: &[i64], failures: &mut HashMap<i64, (i64, Judged)>) -> sqlx::Result<()> {
    let bound = || ids.iter().map(|id| Value::from(*id)).collect::<Vec<_>>();
    let list = places(0, ids.len());
    let sql = format!("SELECT failure_id, at, rule, author FROM investigations WHERE failure_id IN ({list})");
    for row in tx.fetch(sql, bound()).await? {
        let (id, at) = (row.int("failure_id")?, super::time(row.int("at")?));
        let rule = row.maybe_int("rule")?.and_then(|rule| u8::try_from(rule).ok());
        let what = What::Analysed { rule, author: row.text("author")? };
        failures.get_mut(&id).expect("asked for").1.events.push(Event { at, what });
    }
    let sql = format!("SELECT failure_id, at, status, verified, author FROM marks WHERE failure_id IN ({list})");
    for row in tx.fetch(sql, bound()).await? {
        let (id, at) = (row.int("failure_id")?, super::time(row.int("at")?));
        let (status, verified) = (by_word(&row.text("status")?, Status::New), row.flag("verified")?);
        let what = What::Marked { status, verified, author: row.text("author")? };
        failures.get_mut(&id).expect("asked for").1.events.push(Event { at, what });
    }
    let sql =
        format!("SELECT failure_id, at, old, new, reason, run FROM changes WHERE failure_id IN ({list}) ORDER BY at");
    for row in tx.fetch(sql, bound()).await? {
        let id = row.int("failure_id")?;
        let (old, new) = (row.maybe_text("old")?, row.text("new")?);
        let change = (row.int("at")?, old, new, row.text("reason")?, row.maybe_text("run")?);
        failures.get_mut(&id).expect("asked for").1.changes.push(change);
    }
    Ok(())
}

/// Writes what changed about a failure; what is to be told of its changes is left to the caller, in `told`. `begin` is where the history
/// begins that it is judged by, if that is not all.
async fn decide(
    tx: &mut Tx,
    id: i64,
    judged: Judged,
    begin: Option<i64>,
    told: &mut Vec<FailureChange>,
) -> sqlx::Result<()> {
    let begin = begin.unwrap_or(i64::MIN);
    let (before, known): (Vec<_>, Vec<_>) = judged.changes.into_iter().partition(|(at, ..)| *at < begin);
    let verdict = judge(start_of(&before), &judged.events);
    let mut last = begin;
    let changes: Vec<StatusChange> = verdict
        .changes
        .into_iter()
        .map(|change| {
            // Two changes of one report have one time, and are told one after the other.
            last = last.saturating_add(1).max(change.at.as_microsecond());
            (last, change.from.map(word), word(change.to), change.reason, change.run)
        })
        .collect();
    if changes != known {
        if !known.is_empty() {
            tx.execute("DELETE FROM changes WHERE failure_id = $1 AND at >= $2", values![id, begin]).await?;
        }
        told.extend(changes.into_iter().map(|change| (id, change)));
    }
    let (note, run) = verdict.note.map(|note| (note.text, note.run)).unzip();
    if (verdict.status, verdict.verified, &note) != (judged.status, judged.verified, &judged.note) {
        tx.execute(
            "UPDATE failures SET status = $2, verified = $3, note = $4, note_run = $5 WHERE id = $1",
            values![id, word(verdict.status), verdict.verified, note, run],
        )
        .await?;
    }
    Ok(())
}

/// What is known of occurrences now.
async fn known(tx: &mut Tx, occurrences: &[&str]) -> sqlx::Result<BTreeMap<String, StoredFailure>> {
    let wanted: Vec<&str> = occurrences.iter().copied().collect::<HashSet<_>>().into_iter().collect();
    let mut known = BTreeMap::new();
    for chunk in wanted.chunks(ROWS) {
        let sql = format!(
            "SELECT o.occurrence, f.name, g.name AS group_name, f.status, f.occurrences FROM occurrences o \
             JOIN failures f ON f.id = o.failure_id JOIN groups g ON g.id = f.group_id WHERE o.occurrence IN ({})",
            places(0, chunk.len())
        );
        for row in tx.fetch(sql, chunk.iter().map(|name| Value::from(*name)).collect()).await? {
            let (id, group, occurrences) = (row.text("name")?, row.text("group_name")?, count(row.int("occurrences")?));
            let status = by_word(&row.text("status")?, Status::New);
            known.insert(row.text("occurrence")?, StoredFailure { id, group, status, occurrences });
        }
    }
    Ok(known)
}

/// Now, in the unit that is kept.
pub(super) fn now() -> i64 {
    Timestamp::now().as_microsecond()
}
