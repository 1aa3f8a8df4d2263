//! Test runs and what failed in them: what pytest runs report, kept, grouped, explained and worked through to a verified fix.
//!
//! - `record` is what comes in, from the plugin (docs/wire.md, "Test runs"), from imports and by hand; `spool` takes in what was reported while
//!   no daemon was there
//! - `pattern`, `fingerprint`, `grouping` tell what is the same; `status` what became of it
//! - `ingest` makes it ready, `writer` has it written, many reports in one transaction; `store` keeps it in SQLite or PostgreSQL and answers with
//!   what is in `view`
//! - `hypotheses` and `next_step` explain one failure, `analysis` many, `explain` puts that together with what is kept and what `git` says; `rules` is how far an investigation is, `prompt` tells all of it to a model,
//!   `guide` tells how it is used; `import` reads what other reporters wrote; `watching` tells what changes
//!
//! [`Failures`] is what the doors call.

pub mod analysis;
pub mod environment;
mod error;
pub mod explain;
pub mod fingerprint;
mod git;
pub mod grouping;
pub mod guide;
pub mod hypotheses;
pub mod import;
mod ingest;
pub mod next_step;
pub mod pattern;
pub mod project;
pub mod prompt;
pub mod record;
pub mod rules;
mod spool;
pub mod status;
mod store;
pub mod view;
pub mod watching;
mod writer;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use jiff::Timestamp;
use tokio::sync::OnceCell;

pub use error::Error;
use explain::Copies;
pub use git::Git;
pub use ingest::parse;
pub use spool::Spooled;
pub use store::{Database, Limits, Trimmed};

use record::{Began, Evidence, Outcome, Phase, Project, Record, Source, Status, Taken, Tested};
use store::Store;
pub use store::without_password;
use view::{Counts, Day, Duration, Failure, Filter, Group, Onset, Page, Run, RunDetail, Summary, TestOutcome};
use watching::Change;
use writer::Writer;

use pylair_os::{clock::Clock, event_loop};
use pylair_text::mask;

/// Everything about test runs. The store is opened when it is first needed, and again with the next call where that failed: a database that
/// is away is no reason for the daemon not to start.
#[derive(Debug)]
pub struct Failures {
    database: Database,
    limits: Limits,
    spool: PathBuf,
    clock: Arc<Clock>,
    opened: OnceCell<Opened>,
    watchers: watching::Watchers,
    copies: OnceLock<Arc<dyn Copies>>,
    git: Git,
}

#[derive(Debug)]
struct Opened {
    store: Arc<Store>,
    writer: Writer,
}

/// A failure that somebody tells of, not a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ByHand {
    pub project: Option<Project>,
    pub test: String,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub message: String,
    pub traceback: String,
    /// Name and value.
    pub locals: Vec<(String, String)>,
}

impl Failures {
    /// `spool` is where runs leave what they could not report.
    pub fn new(database: Database, limits: Limits, spool: PathBuf, clock: Arc<Clock>) -> Self {
        Self {
            database,
            limits,
            spool,
            clock,
            opened: OnceCell::new(),
            watchers: watching::Watchers::default(),
            copies: OnceLock::new(),
            git: Git::default(),
        }
    }

    /// The same where programs are somewhere else than usual.
    #[must_use]
    pub fn with_git(self, git: Git) -> Self {
        Self { git, ..self }
    }

    /// From now on explanations are checked in living copies too.
    pub fn check_with(&self, copies: Arc<dyn Copies>) {
        let _first_one_stays = self.copies.set(copies);
    }

    /// Where it is kept, for `doctor`: without a password.
    pub fn place(&self) -> String {
        match &self.database {
            Database::Sqlite(path) => path.display().to_string(),
            Database::Postgres(address) => store::without_password(address),
        }
    }

    async fn opened(&self) -> Result<&Opened, Error> {
        let open = || async {
            let store = Arc::new(Store::open(&self.database).await?);
            let writer = Writer::start(Arc::clone(&store), self.limits.clone(), self.clock.clone());
            Ok(Opened { store, writer })
        };
        self.opened.get_or_try_init(open).await
    }

    /// Whoever reads it may be given any number of rows.
    async fn store(&self) -> Result<&Store, Error> {
        event_loop::carry(usize::MAX).await;
        Ok(&self.opened().await?.store)
    }

    /// Opens the store if it is not, to see whether it can be.
    pub async fn check(&self) -> Result<(), Error> {
        self.store().await.map(|_| ())
    }

    /// Takes records in. When it returns, all of them are on disk; when it fails, none are. Records that were taken before are known again.
    /// `freeze` of the answer is the caller's to fill in.
    pub async fn ingest(&self, records: Vec<Record>) -> Result<Taken, Error> {
        let runs = watching::runs_of(&records);
        // Fingerprints and masking of large evidence take milliseconds.
        let batch = tokio::task::spawn_blocking(|| ingest::prepare(records)).await.map_err(|_| Error::Closed)??;
        if batch.records == 0 {
            return Ok(Taken::default());
        }
        let taken = self.opened().await?.writer.write(batch).await?;
        self.watchers.taken(runs, &taken);
        Ok(taken)
    }

    /// Takes in the body of `POST /api/runs/RUN/records`.
    pub async fn ingest_lines(&self, run: &str, lines: Vec<u8>) -> Result<Taken, Error> {
        let run = run.to_owned();
        let records = tokio::task::spawn_blocking(move || parse(&run, &lines)).await.map_err(|_| Error::Closed)??;
        self.ingest(records).await
    }

    /// Records a failure by hand, as a run of its own, in the project that is named or that the directory is in; what is told twice is one
    /// failure that occurred twice. Its id.
    pub async fn record(
        &self,
        mut failure: ByHand,
        author: &str,
        (wish, cwd): (Option<&str>, Option<&Path>),
    ) -> Result<String, Error> {
        if failure.project.is_none() {
            let known = self.store().await?.projects().await?;
            failure.project = project::to_record(&known, wish, place(cwd).await.as_ref());
        }
        let taken = self.ingest(by_hand(failure, author)?).await?;
        let known = taken.failures.into_values().next();
        known.map(|known| known.id).ok_or(Error::Closed)
    }

    /// Failures, last seen first; `after` is the `next` of the page before.
    pub async fn list(&self, filter: &Filter, limit: usize, after: Option<&str>) -> Result<Page<Summary>, Error> {
        if let Some(group) = &filter.group {
            self.store().await?.group(group).await?;
        }
        self.store().await?.list(filter, limit, after).await
    }

    /// Every failure that a filter asks for, in no order.
    pub async fn scan(&self, filter: &Filter) -> Result<Vec<Summary>, Error> {
        self.store().await?.scan(filter).await
    }

    async fn scan_light(&self, projects: Option<&[i64]>) -> Result<Vec<store::Light>, Error> {
        self.store().await?.scan_light(projects).await
    }

    /// How often failures occurred in a period and in the one before, by id.
    async fn occurrences_in(&self, period: &analysis::Period) -> Result<HashMap<String, (u64, u64)>, Error> {
        self.store().await?.occurrences_in(period).await
    }

    /// The projects that are named or, where nothing is, those of whoever works in a directory.
    pub async fn choose(&self, wish: Option<&str>, cwd: Option<&Path>) -> Result<project::Chosen, explain::Refused> {
        project::choose(&self.store().await?.projects().await?, wish, place(cwd).await.as_ref())
    }

    /// On which days (since 1970, UTC) failures occurred how often, by id: those that occurred more than twice and on several days.
    async fn occurrence_days(&self) -> Result<HashMap<String, Vec<(i32, u32)>>, Error> {
        self.store().await?.occurrence_days().await
    }

    pub async fn get(&self, id: &str) -> Result<Failure, Error> {
        self.store().await?.get(id).await
    }

    /// The failure's id, by the reporter's own id of an occurrence.
    pub async fn by_occurrence(&self, occurrence: &str) -> Result<Option<String>, Error> {
        self.store().await?.by_occurrence(occurrence).await
    }

    /// The groups that occurrences are in, by the reporters' own ids of these. Those that are not recorded yet are not there.
    pub async fn groups_of(&self, occurrences: &[String]) -> Result<HashMap<String, String>, Error> {
        self.store().await?.groups_of(occurrences).await
    }

    /// Between which runs a failure began.
    pub async fn onset(&self, id: &str) -> Result<Onset, Error> {
        self.store().await?.onset(id).await
    }

    /// What became of a test, newest first. `project` is a name, root or remote.
    pub async fn history(&self, project: Option<&str>, nodeid: &str, limit: usize) -> Result<Vec<TestOutcome>, Error> {
        self.store().await?.history(project, nodeid, limit).await
    }

    /// Records an analysis under one of the nine rules, or under none. The status then.
    pub async fn analyse(&self, id: &str, rule: Option<u8>, analysis: &str, author: &str) -> Result<Status, Error> {
        let masked = mask::masked(analysis, mask::Reading::Text);
        let status = self.store().await?.analyse(id, rule, masked.as_deref().unwrap_or(analysis), author).await?;
        self.watchers.tell(Change::Failure { id: id.to_owned(), status });
        Ok(status)
    }

    /// Says what a failure is. That it is resolved is refused unless its test passed since; only a person may force it, and then it is unverified.
    pub async fn set_status(&self, id: &str, status: Status, author: &str, force: bool) -> Result<Status, Error> {
        let status = self.store().await?.mark(id, status, author, force).await?;
        self.watchers.tell(Change::Failure { id: id.to_owned(), status });
        Ok(status)
    }

    /// Puts failures into a group of their own, for good. The group's id.
    pub async fn split(&self, failures: &[String], author: &str) -> Result<String, Error> {
        let group = self.store().await?.split(failures, author).await?;
        self.watchers.tell(Change::Group { id: group.clone() });
        Ok(group)
    }

    /// Puts the failures of one group into another, for good.
    pub async fn merge(&self, into: &str, from: &str, author: &str) -> Result<(), Error> {
        self.store().await?.merge(into, from, author).await?;
        self.watchers.tell(Change::Group { id: into.to_owned() });
        Ok(())
    }

    /// Groups with failures that a filter asks for, last seen first.
    pub async fn groups(&self, filter: &Filter, limit: usize) -> Result<Vec<Group>, Error> {
        self.store().await?.groups(filter, limit).await
    }

    /// The id that a group has now: one that was merged is the other.
    pub async fn group(&self, id: &str) -> Result<String, Error> {
        self.store().await?.group(id).await
    }

    /// Runs, newest first.
    pub async fn runs(&self, of: &project::Chosen, limit: usize, after: Option<&str>) -> Result<Page<Run>, Error> {
        self.store().await?.runs(of.ids.as_deref(), limit, after).await
    }

    pub async fn run(&self, run: &str) -> Result<RunDetail, Error> {
        self.store().await?.run(run).await
    }

    pub async fn counts(&self) -> Result<Counts, Error> {
        self.store().await?.counts().await
    }

    /// Days since then on which something happened, oldest first.
    pub async fn days(&self, since: Timestamp) -> Result<Vec<Day>, Error> {
        self.store().await?.days(since).await
    }

    /// The tests that take longest.
    pub async fn durations(
        &self,
        project: Option<&str>,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<Duration>, Error> {
        self.store().await?.durations(project, since, limit).await
    }

    /// Forgets what is over the limits. The writer does it now and then by itself.
    pub async fn trim(&self) -> Result<Trimmed, Error> {
        self.store().await?.trim(&self.limits, &self.clock).await
    }

    /// Closes the database. Calls that follow fail.
    pub async fn close(&self) {
        if let Some(opened) = self.opened.get() {
            opened.store.close().await;
        }
    }
}

/// Where somebody is.
async fn place(cwd: Option<&Path>) -> Option<project::CallerLocation> {
    let cwd = cwd?.to_owned();
    tokio::task::spawn_blocking(move || project::CallerLocation::of(&cwd)).await.ok()
}

/// Records that make one failure.
fn by_hand(mut failure: ByHand, author: &str) -> Result<Vec<Record>, Error> {
    let test = failure.test.trim().to_owned();
    if test.is_empty() {
        return Err(Error::Invalid { what: "the failure", why: "it names no test".into() });
    }
    let run = format!("hand-{}", pylair_os::random::digits(12));
    let at = Timestamp::now();
    let project =
        failure.project.take().unwrap_or_else(|| Project { root: String::new(), name: "by hand".into(), remote: None });
    let began = Began { user: Some(author.to_owned()), ..Began::new(run.clone(), at, Source::Hand, project) };
    let mut evidence = evidence_of(&failure, &began.project.root);
    evidence.occurrence = format!("{run}-1");
    let tested = Tested {
        run: run.clone(),
        nodeid: test,
        outcome: Outcome::Failed,
        phase: Phase::Call,
        attempt: 1,
        subtest: None,
        at: Some(at),
        file: failure.file,
        line: failure.line,
        params: std::collections::BTreeMap::new(),
        markers: Vec::new(),
        seconds: record::Seconds::default(),
        reason: None,
        worker: None,
        failure: Some(Box::new(evidence)),
    };
    Ok(vec![Record::Run(Box::new(began)), Record::Test(Box::new(tested))])
}

/// What somebody tells, and what the traceback says that they have: its type, message and frames, unless they are told otherwise.
fn evidence_of(failure: &ByHand, root: &str) -> Evidence {
    let said = failure.message.trim();
    let told = import::traceback::ReportedException { message: said, kind: None };
    let mut evidence = import::traceback::evidence(&failure.traceback, told);
    let mut exception = import::traceback::of_message(told);
    if exception.kind.is_empty() {
        // No type is named, so that of the traceback is meant.
        evidence.exception.kind.clone_into(&mut exception.kind);
        exception.module.clone_from(&evidence.exception.module);
    }
    if exception.kind.is_empty() {
        let (kind, rest) = kind_of(said);
        (exception.kind, exception.message) = (kind.to_owned(), rest.to_owned());
    }
    if exception.message.is_empty() {
        evidence.exception.message.clone_into(&mut exception.message);
    }
    evidence.exception = exception;
    let prefix = format!("{}/", root.trim_end_matches('/'));
    let chained = evidence.chain.iter_mut().flat_map(|link| &mut link.frames);
    for frame in evidence.frames.iter_mut().chain(chained) {
        if !root.is_empty()
            && let Some(inside) = frame.file.strip_prefix(&prefix)
        {
            frame.file = inside.to_owned();
        }
    }
    let locals = failure.locals.iter().map(|(name, value)| record::Local {
        name: name.clone(),
        kind: String::new(),
        value: value.clone(),
    });
    let locals: Vec<record::Local> = locals.collect();
    match evidence.frames.iter_mut().find(|frame| frame.in_app) {
        Some(frame) => frame.locals.splice(..0, locals).for_each(drop),
        None if failure.file.is_some() || !locals.is_empty() => evidence.frames.push(record::Frame {
            file: failure.file.clone().unwrap_or_default(),
            line: failure.line.unwrap_or(0),
            in_app: true,
            locals,
            ..record::Frame::default()
        }),
        None => {}
    }
    evidence
}

/// The exception's type, where a message begins with something that can be one: a capital letter, no space, a colon.
fn kind_of(message: &str) -> (&str, &str) {
    if let Some((kind, rest)) = message.split_once(": ") {
        let name = kind.rsplit('.').next().unwrap_or(kind);
        let is_name =
            name.chars().all(|c| c.is_alphanumeric() || c == '_') && name.starts_with(|c: char| c.is_uppercase());
        if is_name && !kind.contains(char::is_whitespace) {
            return (name, rest.trim_start());
        }
    }
    ("Failed", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_traceback_says_is_read() {
        let check = |message: &str, traceback: &str, kind: &str, rest: &str| {
            let failure = ByHand { message: message.into(), traceback: traceback.into(), ..ByHand::default() };
            let evidence = evidence_of(&failure, "/shop");
            assert_eq!((evidence.exception.kind.as_str(), evidence.exception.message.as_str()), (kind, rest));
            evidence
        };
        check("ValueError: bad", "", "ValueError", "bad");
        check("shop.errors.NoPriceError: 3", "", "NoPriceError", "3");
        check("assert 1 == 2", "", "AssertionError", "assert 1 == 2");
        check("it went wrong: badly", "", "Failed", "it went wrong: badly");
        check("", "", "Failed", "");
        let python = "Traceback (most recent call last):\n  File \"/shop/price.py\", line 7, in total\n    return a['x']\n\
            KeyError: 'x'\n";
        let evidence = check("", python, "KeyError", "'x'");
        assert_eq!((evidence.frames[0].file.as_str(), evidence.frames[0].line), ("price.py", 7));
        check("a price is missing", python, "KeyError", "a price is missing");
        check("LookupError: no x", python, "LookupError", "no x");
        let pytest = "    def test_total():\n>       assert total() == 3\nE       assert 2 == 3\n\ntest_shop.py:3: AssertionError\n";
        assert_eq!(check("", pytest, "AssertionError", "assert 2 == 3").frames[0].function, "test_total");
        check("NoPrice: 3", "", "NoPrice", "3");
    }
}
