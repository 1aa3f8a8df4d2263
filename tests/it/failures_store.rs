//! What runs report is kept, in SQLite and in a real PostgreSQL alike: counted once, grouped, judged, and never lost once it was
//! acknowledged, whoever is killed.

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use pylair_failures::{
    ByHand, Database, Error, Failures, Limits, Spooled,
    environment::changes,
    record::{Frozen, Record, Status, Taken},
    view::Filter,
};
use pylair_os::clock::Clock;
use serde_json::{Value, json};

use super::support;

fn clock() -> Arc<Clock> {
    Arc::new(Clock::trusted())
}

fn directory() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("failures-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _absent = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("the target directory is writable");
    path
}

fn open(database: Database) -> Failures {
    Failures::new(database, Limits::default(), directory().join("spool"), clock())
}

/// Runs a test on both databases.
fn on_each_database<T: Future<Output = ()>>(name: &str, test: impl Fn(Database) -> T) {
    runtime().block_on(async {
        println!("{name} on SQLite");
        let path = directory();
        test(Database::Sqlite(path.join("failures.db"))).await;
        std::fs::remove_dir_all(path).expect("nothing else is in it");
        match &*support::POSTGRES {
            Ok(cluster) => {
                println!("{name} on PostgreSQL");
                test(Database::Postgres(cluster.database().await)).await;
            }
            Err(why) => support::skip(name, why),
        }
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("there are threads")
}

fn record(value: Value) -> Record {
    serde_json::from_value(value).expect("it is a record")
}

/// So many seconds after some day.
fn at(second: i64) -> String {
    (Timestamp::now() - SignedDuration::from_hours(1) + SignedDuration::from_secs(second)).to_string()
}

fn begin(run: &str, second: i64) -> Record {
    record(
        json!({"ev": "run", "run": run, "at": at(second), "project": {"root": "/shop", "name": "shop"}, "argv": ["-q"], "python": "3.13.0"}),
    )
}

fn code(run: &str, hash: &str) -> Record {
    record(
        json!({"ev": "code", "run": run, "hash": hash, "how": "git", "commit": format!("commit-{hash}"), "changed": ["shop/price.py"]}),
    )
}

fn passed(run: &str, nodeid: &str, second: i64) -> Record {
    record(
        json!({"ev": "test", "run": run, "nodeid": nodeid, "outcome": "passed", "phase": "call", "at": at(second), "seconds": {"call": 0.5}}),
    )
}

fn failed(run: &str, nodeid: &str, second: i64, function: &str, message: &str) -> Record {
    let frames = json!([
        {"file": "shop/price.py", "line": 7, "function": function, "module": "shop.price", "in_app": true,
         "locals": [{"name": "amount", "type": "NoneType", "value": "None"}]},
        {"file": "tests/test_shop.py", "line": 3, "function": "test", "module": "test_shop", "in_app": true},
    ]);
    record(json!({
        "ev": "test", "run": run, "nodeid": nodeid, "outcome": "failed", "phase": "call", "at": at(second), "file": "tests/test_shop.py",
        "line": 2, "params": {"n": "1"}, "seconds": {"call": 0.25},
        "failure": {"occurrence": format!("{run}/{nodeid}"), "exception": {"type": "ValueError", "message": message}, "frames": frames,
            "text": "Traceback …", "frozen": {"why_not": "no daemon"}},
    }))
}

fn ended(run: &str, second: i64) -> Record {
    record(json!({"ev": "end", "run": run, "at": at(second), "exit_code": 1, "seconds": 2.5, "not_run": 3}))
}

const TEST: &str = "tests/test_shop.py::test_total";

/// The one failure of an answer.
fn only(taken: &Taken) -> (String, String) {
    let known = taken.failures.values().next().expect("there is one");
    (known.id.clone(), known.group.clone())
}

#[test]
fn what_a_run_reports_is_kept_and_counted_once() {
    on_each_database("kept", |database| async move {
        let failures = open(database.clone());
        let batch = vec![
            begin("r1", 0),
            code("r1", "a"),
            passed("r1", "tests/test_shop.py::test_ok", 1),
            failed("r1", TEST, 2, "total", "bad price 3"),
            ended("r1", 3),
        ];
        let taken = failures.ingest(batch.clone()).await.unwrap();
        let (id, group) = only(&taken);
        assert_eq!((taken.taken, id.len(), group.starts_with('g')), (5, 8, true));
        let again = failures.ingest(batch).await.unwrap();
        assert_eq!(again, taken, "what is sent again is known");
        failures.close().await;

        let failures = open(database);
        let failure = failures.get(&id.to_uppercase()).await.unwrap();
        assert_eq!((failure.summary.occurrences, failure.summary.status), (1, Status::New));
        assert_eq!(failure.summary.pattern, "ValueError: bad price <n>");
        assert_eq!(failure.summary.place.unwrap().function, "total");
        assert_eq!((failure.seen.len(), failure.seen[0].commit.as_deref()), (1, Some("commit-a")));
        let evidence = failure.seen[0].evidence.as_ref().unwrap();
        assert_eq!(evidence.frames[0].locals[0].value, "None");
        assert_eq!(evidence.frozen, Some(Frozen::WhyNot("no daemon".into())));
        assert_eq!(failure.seen[0].test.params["n"], "1");
        assert_eq!(failures.by_occurrence(&format!("r1/{TEST}")).await.unwrap().as_deref(), Some(id.as_str()));
        let run = failures.run("r1").await.unwrap();
        assert_eq!((run.run.counts.passed, run.run.counts.failed, run.run.not_run), (1, 1, 3));
        assert_eq!((run.failures.len(), run.argv), (1, vec!["-q".to_owned()]));
        let counts = failures.counts().await.unwrap();
        assert_eq!((counts.total, counts.new, counts.groups, counts.runs, counts.tests), (1, 1, 1, 1, 2));
        let days = failures.days(Timestamp::now() - SignedDuration::from_hours(48)).await.unwrap();
        assert_eq!(
            (days.iter().map(|day| day.failed).sum::<u64>(), days.iter().map(|day| day.first_seen).sum::<u64>()),
            (1, 1)
        );
        let longest = failures.durations(Some("shop"), Timestamp::UNIX_EPOCH, 5).await.unwrap();
        assert_eq!((longest[0].test.as_str(), longest[0].longest_s > 0.4), ("tests/test_shop.py::test_ok", true));
        failures.close().await;
    });
}

#[test]
fn status_moves_and_resolved_has_to_be_shown() {
    on_each_database("status", |database| async move {
        let failures = open(database);
        let run = async |name: &str, hash: &str, second: i64, fails: bool| {
            let report =
                if fails { failed(name, TEST, second, "total", "bad price") } else { passed(name, TEST, second) };
            failures.ingest(vec![begin(name, second), code(name, hash), report, ended(name, second)]).await.unwrap()
        };
        run("r0", "zero", 0, false).await;
        let (id, _) = only(&run("r1", "one", 10, true).await);
        let status = async || failures.get(&id).await.unwrap().summary.status;
        assert_eq!(failures.analyse(&id, Some(3), "amount is None", "ann").await.unwrap(), Status::InProgress);

        let refused = failures.set_status(&id, Status::Resolved, "ann", false).await.unwrap_err();
        assert!(
            matches!(refused, Error::NotShown { .. }) && refused.hint().contains(TEST),
            "{refused}: {}",
            refused.hint()
        );
        assert!(matches!(failures.set_status(&id, Status::New, "ann", true).await, Err(Error::Invalid { .. })));
        assert_eq!(status().await, Status::InProgress);

        run("r2", "two", 3600, false).await;
        assert_eq!(status().await, Status::Resolved, "it passed on changed code");
        assert_eq!(failures.set_status(&id, Status::Resolved, "ann", false).await.unwrap(), Status::Resolved);
        let onset = failures.onset(&id).await.unwrap();
        let name = |run: Option<pylair_failures::view::OnsetRun>| run.map(|run| run.run);
        assert_eq!((name(onset.last_good).as_deref(), name(onset.first_bad).as_deref()), (Some("r0"), Some("r1")));

        run("r3", "three", 3600, true).await;
        assert_eq!(status().await, Status::Reopened);
        run("r4", "three", 3600, false).await;
        assert_eq!(status().await, Status::Flaky, "it passes and fails on the same code");
        assert_eq!(failures.set_status(&id, Status::Resolved, "a person", true).await.unwrap(), Status::Resolved);
        let failure = failures.get(&id).await.unwrap();
        let told: Vec<Status> = failure.changes.iter().map(|change| change.to).collect();
        assert_eq!(told.len(), 6, "{:#?}", failure.changes);
        assert!(failure.changes.iter().all(|change| !change.reason.is_empty()));
        assert_eq!(failure.history.len(), 5);
        let investigation = &failure.investigations_made[0];
        assert_eq!((investigation.rule, investigation.author.as_str()), (Some(3), "ann"));
        failures.close().await;
    });
}

#[test]
fn a_person_may_force_it_and_it_is_unverified() {
    on_each_database("forced", |database| async move {
        let failures = open(database);
        let by_hand = ByHand { test: "test_it".into(), message: "KeyError: 'x'".into(), ..ByHand::default() };
        let id = failures.record(by_hand.clone(), "ann", (None, None)).await.unwrap();
        let again = failures.record(by_hand, "ann", (None, None)).await.unwrap();
        assert_eq!(id, again, "what is told twice is one failure");
        assert_eq!(failures.get(&id).await.unwrap().summary.occurrences, 2);
        assert!(matches!(failures.record(ByHand::default(), "ann", (None, None)).await, Err(Error::Invalid { .. })));
        failures.set_status(&id, Status::Resolved, "ann", true).await.unwrap();
        let failure = failures.get(&id).await.unwrap();
        assert_eq!((failure.summary.status, failure.summary.verified), (Status::Resolved, false));
        assert_eq!((failure.summary.kind.as_str(), failure.summary.message.as_str()), ("KeyError", "'x'"));
        assert!(failure.changes[1].reason.contains("without a passing run"), "{:#?}", failure.changes);
        failures.close().await;
    });
}

#[test]
fn failures_of_one_function_are_a_group_and_what_people_say_of_groups_stays() {
    on_each_database("groups", |database| async move {
        let failures = open(database);
        let run = async |name: &str, second: i64| {
            let records = vec![
                begin(name, second),
                failed(name, "tests/test_shop.py::test_a", second, "total", "bad price"),
                failed(name, "tests/test_shop.py::test_b", second, "total", "no price at all"),
                failed(name, "tests/test_shop.py::test_c", second, "tax", "unknown country"),
                ended(name, second),
            ];
            let taken = failures.ingest(records).await.unwrap();
            ["a", "b", "c"].map(|test| taken.failures[&format!("{name}/tests/test_shop.py::test_{test}")].clone())
        };
        let [a, b, c] = run("r1", 0).await;
        assert_eq!(a.group, b.group);
        assert_ne!(a.group, c.group);
        let why = failures.get(&a.id).await.unwrap().why_grouped;
        assert!(why.contains("shop.price:total"), "{why}");
        assert_eq!(run("r2", 10).await.map(|known| known.group), [&a, &b, &c].map(|known| known.group.clone()));

        let own = failures.split(std::slice::from_ref(&b.id), "ann").await.unwrap();
        let [a2, b2, _] = run("r3", 20).await;
        assert_eq!((&a2.group, &b2.group), (&a.group, &own), "it stays apart");
        failures.merge(&own, &c.group, "ann").await.unwrap();
        let [_, b3, c3] = run("r4", 30).await;
        assert_eq!((&b3.group, &c3.group), (&own, &own), "they stay together");
        assert_eq!(failures.group(&c.group).await.unwrap(), own, "the old name is another for it");
        let groups = failures.groups(&Filter::default(), 10).await.unwrap();
        assert_eq!(groups.len(), 2);
        assert!(
            groups
                .iter()
                .any(|group| group.id == own && group.by_hand && group.failures == 2 && group.occurrences == 8)
        );
        failures.close().await;
    });
}

#[test]
fn one_of_those_that_fail_alike_can_be_put_apart() {
    on_each_database("split", |database| async move {
        let failures = open(database);
        let run =
            async |name: &str, second: i64| {
                let mut records = vec![begin(name, second)];
                records.extend(["a", "b", "c"].map(|test| {
                    failed(name, &format!("tests/test_shop.py::test_{test}"), second, "total", "bad price")
                }));
                records.push(ended(name, second));
                let taken = failures.ingest(records).await.unwrap();
                ["a", "b", "c"].map(|test| taken.failures[&format!("{name}/tests/test_shop.py::test_{test}")].clone())
            };
        let [a, b, c] = run("r1", 0).await;
        assert_eq!((&a.group, &b.group), (&c.group, &c.group), "they have one fingerprint");
        let own = failures.split(std::slice::from_ref(&b.id), "ann").await.unwrap();
        let why = async |id: &str| failures.get(id).await.unwrap().why_grouped;
        assert_eq!(why(&b.id).await, "it was put into a group of its own by hand, by ann");
        assert_eq!(why(&a.id).await, "both fail with the same error in the same place");
        let later = run("r2", 10).await.map(|known| known.group);
        assert_eq!(later, [a.group.clone(), own.clone(), a.group.clone()], "it is remembered");
        failures.merge(&a.group, &own, "ann").await.unwrap();
        assert_eq!(run("r3", 20).await.map(|known| known.group), [&a, &a, &a].map(|known| known.group.clone()));
        assert_eq!(why(&b.id).await, "groups were put together here by hand, by ann");
        let error = failures.merge(&a.group, &own, "ann").await.unwrap_err();
        assert_eq!(error.to_string(), "this pair of groups is not valid: they are one group");
        failures.close().await;
    });
}

#[test]
fn what_is_recorded_by_hand_is_read_and_known_again() {
    on_each_database("by hand", |database| async move {
        let failures = open(database);
        let traceback = "Traceback (most recent call last):\n  File \"/shop/shop/price.py\", line 7, in total\n    return a['x']\nKeyError: 'x'\n";
        let by_hand = ByHand { test: "test_it".into(), traceback: traceback.into(), ..ByHand::default() };
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(failures.record(by_hand.clone(), "ann", (None, None)).await.unwrap());
        }
        ids.dedup();
        assert_eq!(ids.len(), 1);
        let failure = failures.get(&ids[0]).await.unwrap();
        assert_eq!((failure.summary.kind.as_str(), failure.summary.message.as_str()), ("KeyError", "'x'"));
        assert_eq!((failure.summary.occurrences, failure.summary.place.unwrap().line), (3, 7));
        assert_eq!(failures.groups(&Filter::default(), 10).await.unwrap().len(), 1);
        failures.close().await;
    });
}

#[test]
fn lists_have_pages_and_filters() {
    on_each_database("pages", |database| async move {
        let failures = open(database);
        let mut records = vec![begin("r1", 0)];
        records.extend(
            (0..25).map(|n| failed("r1", &format!("tests/test_shop.py::test_{n}"), n, &format!("f{n}"), "bad")),
        );
        failures.ingest(records).await.unwrap();
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = failures.list(&Filter::default(), 10, after.as_deref()).await.unwrap();
            assert_eq!(page.total, 25);
            seen.extend(page.items.into_iter().map(|failure| failure.test));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let expect: Vec<String> = (0..25).rev().map(|n| format!("tests/test_shop.py::test_{n}")).collect();
        assert_eq!(seen, expect, "last seen first, each once");
        let filter = Filter {
            test: Some("test_1".into()),
            status: Some(Status::New),
            of: Some(failures.choose(Some("shop"), None).await.unwrap()),
            ..Filter::default()
        };
        assert_eq!(failures.list(&filter, 100, None).await.unwrap().items.len(), 11);
        let filter = Filter { test: Some("test%1".into()), ..Filter::default() };
        assert_eq!(
            failures.list(&filter, 100, None).await.unwrap().items.len(),
            0,
            "no pattern but a part of the name"
        );
        assert_eq!(failures.scan(&Filter { without_resolved: true, ..Filter::default() }).await.unwrap().len(), 25);
        assert!(matches!(failures.list(&Filter::default(), 10, Some("x")).await, Err(Error::Invalid { .. })));
        let filter = Filter { group: Some("gnothing".into()), ..Filter::default() };
        assert!(matches!(failures.list(&filter, 10, None).await, Err(Error::Unknown { what: "group", .. })));
        failures.close().await;
    });
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    on_each_database("bad input", |database| async move {
        let failures = open(database);
        let unknown = failures.ingest(vec![passed("nobody", TEST, 0)]).await.unwrap_err();
        assert!(unknown.message().contains("`nobody`"), "{unknown}");
        assert!(matches!(failures.ingest_lines("r1", b"{}".to_vec()).await, Err(Error::Line { number: 1, .. })));
        for id in ["", "00000000", "'; DROP TABLE failures; --", &"x".repeat(10_000)] {
            assert!(matches!(failures.get(id).await, Err(Error::Unknown { .. })));
            assert!(matches!(failures.set_status(id, Status::Resolved, "x", true).await, Err(Error::Unknown { .. })));
        }
        let nul =
            failed("r1", "tests/test_\u{0}.py::t", 1, "to\u{0}tal", &format!("bad \u{0} {}", "x".repeat(1 << 20)));
        let taken = failures.ingest(vec![begin("r1", 0), nul]).await.unwrap();
        let (id, _) = only(&taken);
        for (rule, analysis) in [(Some(0), "a"), (Some(10), "a"), (None, " "), (Some(1), &*"a".repeat(100_000))] {
            assert!(matches!(failures.analyse(&id, rule, analysis, "x").await, Err(Error::Invalid { .. })));
        }
        let failure = failures.get(&id).await.unwrap();
        assert_eq!(failure.summary.status, Status::New);
        assert!(failure.seen[0].evidence.as_ref().unwrap().cut.contains(&"message".to_owned()));
        assert_eq!(failures.counts().await.unwrap().total, 1);
        failures.close().await;
    });
}

#[test]
fn what_is_over_the_limits_is_forgotten() {
    on_each_database("limits", |database| async move {
        let limits = Limits { max_failures: 5, max_age: Duration::from_hours(24 * 365), ..Limits::default() };
        let failures = Failures::new(database, limits, directory(), clock());
        let mut records = vec![begin("r1", 0)];
        records.extend((0..8).map(|n| failed("r1", &format!("test_{n}"), n, "f", "bad")));
        failures.ingest(records).await.unwrap();
        for n in 0..15 {
            let run = format!("again{n}");
            failures.ingest(vec![begin(&run, 20 + n), failed(&run, "test_7", 20 + n, "f", "bad")]).await.unwrap();
        }
        failures.trim().await.unwrap();
        let left = failures.list(&Filter::default(), 100, None).await.unwrap();
        assert_eq!(left.items.len(), 5);
        assert_eq!((left.items[0].test.as_str(), left.items[0].occurrences), ("test_7", 16));
        let newest = failures.get(&left.items[0].id).await.unwrap();
        let full = newest.seen.iter().filter(|seen| seen.evidence.is_some()).count();
        assert_eq!((newest.seen.len(), full), (16, 10), "the newest keep their evidence");
        failures.close().await;
    });
}

/// Not a test: a process that writes until it is killed, and says what was acknowledged.
#[test]
#[ignore = "started by the test below"]
fn a_writer_among_many() {
    let Ok(address) = std::env::var("PYLAIR_TEST_STORE") else { return };
    let name = std::env::var("PYLAIR_TEST_WRITER").expect("it has a name");
    let database =
        if address.starts_with("postgres") { Database::Postgres(address) } else { Database::Sqlite(address.into()) };
    let failures = open(database);
    runtime().block_on(async {
        while let Err(error) = failures.ingest(vec![begin(&name, 0)]).await {
            assert!(error.is_temporary(), "{}", error.message());
        }
        for n in 0.. {
            // Some tests are everybody's.
            let reports = vec![
                failed(&name, &format!("tests/test_shop.py::test_{name}_{n}"), n, "total", "bad"),
                failed(&name, &format!("tests/test_shop.py::test_{n}"), n, "total", "bad"),
            ];
            let taken = loop {
                match failures.ingest(reports.clone()).await {
                    Ok(taken) => break taken,
                    // On a crowded machine the others may hold the file for longer than anybody waits.
                    Err(error) => assert!(error.is_temporary(), "{}", error.message()),
                }
            };
            for occurrence in taken.failures.keys() {
                println!("\nkept {occurrence}");
            }
        }
    });
}

#[test]
fn many_processes_write_and_nothing_acknowledged_is_lost_when_they_are_killed() {
    const WRITERS: usize = 4;
    const EACH: usize = 30;
    on_each_database("many writers", |database| async move {
        let address = match &database {
            Database::Sqlite(path) => path.display().to_string(),
            Database::Postgres(address) => address.clone(),
        };
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let mut child = Command::new(std::env::current_exe().expect("it is a file"))
                    .args(["--exact", "failures_store::a_writer_among_many", "--ignored", "--nocapture"])
                    .env("PYLAIR_TEST_STORE", &address)
                    .env("PYLAIR_TEST_WRITER", format!("writer{number}"))
                    .stdout(Stdio::piped())
                    .spawn()
                    .expect("it starts");
                std::thread::spawn(move || {
                    let mut kept = Vec::new();
                    let mut lines = BufReader::new(child.stdout.take().expect("it is piped"));
                    let mut line = String::new();
                    while kept.len() < EACH && lines.read_line(&mut line).expect("it is text") > 0 {
                        kept.extend(line.trim().strip_prefix("kept ").map(str::to_owned));
                        line.clear();
                    }
                    // In the middle of whatever it does.
                    child.kill().expect("it runs");
                    let mut rest = String::new();
                    lines.read_to_string(&mut rest).expect("it is text");
                    kept.extend(rest.lines().filter_map(|line| line.strip_prefix("kept ")).map(str::to_owned));
                    child.wait().expect("it was started here");
                    kept
                })
            })
            .collect();
        let kept: Vec<String> = writers.into_iter().flat_map(|writer| writer.join().expect("it reads")).collect();
        assert!(kept.len() >= WRITERS * EACH, "{}", kept.len());
        let failures = open(database);
        for occurrence in &kept {
            assert!(failures.by_occurrence(occurrence).await.unwrap().is_some(), "{occurrence} was acknowledged");
        }
        // Whole transactions, or nothing of them: each failure has been seen as often as it is counted.
        for failure in failures.scan(&Filter::default()).await.unwrap() {
            let seen = failures.get(&failure.id).await.unwrap().seen.len() as u64;
            assert_eq!(seen, failure.occurrences, "{}", failure.test);
        }
        failures.close().await;
    });
}

#[test]
fn many_callers_of_one_process_share_transactions() {
    on_each_database("callers", |database| async move {
        let failures = std::sync::Arc::new(open(database));
        failures.ingest(vec![begin("r1", 0)]).await.unwrap();
        let mut calls = tokio::task::JoinSet::new();
        for n in 0..60 {
            let failures = std::sync::Arc::clone(&failures);
            calls.spawn(async move {
                let wrong = n % 20 == 7;
                let run = if wrong { "missing" } else { "r1" };
                (wrong, failures.ingest(vec![failed(run, &format!("test_{n}"), n, "total", "bad")]).await)
            });
        }
        while let Some(done) = calls.join_next().await {
            let (wrong, taken) = done.unwrap();
            assert_eq!(taken.is_err(), wrong, "a wrong batch is refused, and only that: {taken:?}");
        }
        assert_eq!(failures.counts().await.unwrap().total, 57);
        failures.close().await;
    });
}

#[test]
fn what_was_spooled_is_taken_in_and_the_file_goes_away() {
    on_each_database("spool", |database| async move {
        let spool = directory();
        let failures = Failures::new(database, Limits::default(), spool.clone(), clock());
        assert_eq!(failures.take_spool().await.unwrap(), Spooled::default());
        let lines = |records: &[Record]| {
            let lines: Vec<String> = records.iter().map(|record| serde_json::to_string(record).unwrap()).collect();
            lines.join("\n") + "\n"
        };
        let whole = lines(&[begin("r1", 0), failed("r1", TEST, 1, "total", "bad"), passed("r1", "test_b", 2)]);
        std::fs::write(spool.join("r1.jsonl"), format!("{whole}{{\"ev\":\"test\",\"run\":\"r1\",\"nod")).unwrap();
        std::fs::write(spool.join("r2.jsonl"), lines(&[passed("never-began", TEST, 0), begin("r2", 5)]) + "nonsense\n")
            .unwrap();
        std::fs::write(spool.join("notes.txt"), "not ours").unwrap();
        assert_eq!(failures.take_spool().await.unwrap(), Spooled { files: 2, records: 4, rejected: 2 });
        let mut left: Vec<_> = std::fs::read_dir(&spool).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["notes.txt", "r2.rejected"]);
        assert!(std::fs::read_to_string(spool.join("r2.rejected")).unwrap().contains("never-began"));
        assert_eq!(failures.run("r1").await.unwrap().run.counts.failed, 1);
        failures.close().await;
    });
}

#[test]
fn a_damaged_file_is_moved_aside_and_a_newer_one_refused() {
    runtime().block_on(async {
        let place = directory();
        let path = place.join("failures.db");
        std::fs::write(&path, "this is no database, and long enough to be looked at".repeat(100)).unwrap();
        let failures = open(Database::Sqlite(path.clone()));
        failures.ingest(vec![begin("r1", 0)]).await.unwrap();
        failures.close().await;
        let aside = std::fs::read_dir(&place)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("failures.db.damaged-"));
        assert_eq!(aside.count(), 1, "nothing is thrown away");

        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        let newer = "INSERT INTO _sqlx_migrations VALUES (99, 'later', CURRENT_TIMESTAMP, TRUE, x'00', 0)";
        sqlx::query(newer).execute(&pool).await.unwrap();
        pool.close().await;
        let refused = open(Database::Sqlite(path)).counts().await.unwrap_err();
        assert!(matches!(refused, Error::Newer { version: 99, .. }), "{refused:?}");
        std::fs::remove_dir_all(place).unwrap();
    });
}

#[test]
fn an_older_database_is_brought_up_to_date_and_half_a_migration_is_refused() {
    on_each_database("an older database", |database| async move {
        // As it was before anything was kept in it.
        let made = "CREATE TABLE _sqlx_migrations (version BIGINT PRIMARY KEY, description TEXT NOT NULL, \
            installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, success BOOLEAN NOT NULL, \
            checksum {bytes} NOT NULL, execution_time BIGINT NOT NULL)";
        let half = "UPDATE _sqlx_migrations SET success = FALSE";
        let run = async |sql: String| match &database {
            Database::Sqlite(path) => {
                let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path).create_if_missing(true);
                let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
                sqlx::query(sqlx::AssertSqlSafe(sql.replace("{bytes}", "BLOB"))).execute(&pool).await.unwrap();
                pool.close().await;
            }
            Database::Postgres(address) => {
                let pool = sqlx::PgPool::connect(address).await.unwrap();
                sqlx::query(sqlx::AssertSqlSafe(sql.replace("{bytes}", "BYTEA"))).execute(&pool).await.unwrap();
                pool.close().await;
            }
        };
        run(made.to_owned()).await;
        let failures = open(database.clone());
        failures.ingest(vec![begin("r1", 0), failed("r1", TEST, 1, "total", "bad")]).await.unwrap();
        failures.close().await;
        let again = open(database.clone());
        assert_eq!(again.counts().await.unwrap().total, 1);
        again.close().await;
        run(half.to_owned()).await;
        let refused = open(database.clone()).counts().await.unwrap_err();
        assert!(matches!(refused, Error::Migrate { .. }), "{refused:?}");
        assert!(refused.hint().contains("another store"), "{}", refused.hint());
    });
}

#[test]
fn a_locked_file_is_said_to_be_and_can_be_read() {
    runtime().block_on(async {
        let place = directory();
        let path = place.join("failures.db");
        let failures = open(Database::Sqlite(path.clone()));
        failures.ingest(vec![begin("r1", 0), failed("r1", TEST, 1, "total", "bad")]).await.unwrap();
        let pool =
            sqlx::SqlitePool::connect_with(sqlx::sqlite::SqliteConnectOptions::new().filename(&path)).await.unwrap();
        let held = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let refused = failures.ingest(vec![failed("r1", "test_b", 2, "total", "bad")]).await.unwrap_err();
        assert_eq!((refused.kind(), refused.is_temporary()), ("store_locked", true), "{}", refused.message());
        assert_eq!(failures.counts().await.unwrap().total, 1, "what is there can be read");
        held.rollback().await.unwrap();
        pool.close().await;
        failures.ingest(vec![failed("r1", "test_b", 2, "total", "bad")]).await.unwrap();
        assert_eq!(failures.counts().await.unwrap().total, 2);
        failures.close().await;
        std::fs::remove_dir_all(place).unwrap();
    });
}

#[test]
fn a_database_that_is_away_is_said_to_be_and_comes_back() {
    runtime().block_on(async {
        let away = open(Database::Postgres("postgres://ann:s3cret@127.0.0.1:1/none".into()));
        let error = away.counts().await.unwrap_err();
        assert_eq!((error.kind(), error.is_temporary()), ("store_unavailable", true));
        assert!(!error.message().contains("s3cret") && error.message().contains("127.0.0.1:1"), "{}", error.message());
        let wrong = open(Database::Postgres("postgres://:nonsense:".into())).counts().await.unwrap_err();
        assert!(matches!(wrong, Error::Invalid { .. }), "{wrong:?}");

        let Ok(cluster) = &*support::POSTGRES else { return };
        let address = cluster.database().await;
        let failures = open(Database::Postgres(address.clone()));
        failures.ingest(vec![begin("r1", 0)]).await.unwrap();
        let pool = sqlx::PgPool::connect(&address).await.unwrap();
        // Every connection to this database but our own is lost, as when the server was restarted. Others' are other tests'.
        let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                   WHERE datname = current_database() AND pid <> pg_backend_pid()";
        let count: i64 = sqlx::query_scalar(cut).fetch_one(&pool).await.unwrap();
        assert!(count > 0, "somebody was connected");
        failures.ingest(vec![failed("r1", TEST, 1, "total", "bad")]).await.unwrap();
        assert_eq!(failures.counts().await.unwrap().total, 1);
        failures.close().await;
    });
}

/// Not a test: writes until its disk is full, and then looks whether what was acknowledged is there.
#[test]
#[ignore = "started by the test below"]
fn a_writer_on_a_small_disk() {
    let Ok(place) = std::env::var("PYLAIR_TEST_SMALL_DISK") else { return };
    runtime().block_on(async {
        let failures = open(Database::Sqlite(Path::new(&place).join("failures.db")));
        failures.ingest(vec![begin("r1", 0)]).await.unwrap();
        let ballast = Path::new(&place).join("ballast");
        std::fs::write(&ballast, vec![0; 1 << 20]).unwrap();
        let mut kept = 0;
        let refused = loop {
            let message = format!("bad {}", "x".repeat(50_000));
            match failures.ingest(vec![failed("r1", &format!("test_{kept}"), 1, "total", &message)]).await {
                Ok(_) => kept += 1,
                Err(error) => break error,
            }
            assert!(kept < 10_000, "the disk is small");
        };
        assert_eq!(refused.kind(), "store_full", "{}", refused.message());
        assert_eq!(failures.counts().await.unwrap().total, kept);
        assert_eq!(failures.list(&Filter::default(), 10, None).await.unwrap().total, kept);
        assert_eq!(failures.scan(&Filter::default()).await.unwrap().len() as u64, kept, "analysis goes on");
        std::fs::remove_file(ballast).unwrap();
        failures.ingest(vec![failed("r1", "test_later", 1, "total", "bad")]).await.expect("there is room again");
        assert_eq!(failures.counts().await.unwrap().total, kept + 1);
        println!("\nfull after {kept}");
        let _flushed = std::io::stdout().flush();
    });
}

#[test]
fn a_full_disk_is_said_to_be_and_what_is_there_can_be_read() {
    let place = directory();
    let script = "mount -t tmpfs -o size=4m none \"$1\" || exit 77; shift; exec \"$@\"";
    let done = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(&place)
        .arg(std::env::current_exe().expect("it is a file"))
        .args(["--exact", "failures_store::a_writer_on_a_small_disk", "--ignored", "--nocapture"])
        .env("PYLAIR_TEST_SMALL_DISK", &place)
        .output();
    match done {
        Ok(done) if done.status.success() => assert!(String::from_utf8_lossy(&done.stdout).contains("full after")),
        Ok(done) if done.status.code() == Some(101) => {
            panic!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
        }
        _ => support::skip("a full disk", "a small disk cannot be mounted"),
    }
    std::fs::remove_dir_all(place).expect("nothing is mounted here");
}

#[test]
fn a_run_keeps_the_packages_it_was_made_with() {
    on_each_database("packages", |database| async move {
        let failures = open(database);
        let packages = |version: &str| json!({"pytest": "8.3.4", "simplejson": version});
        for (run, version) in [("one", "3.19.1"), ("two", "3.19.3"), ("three", "3.19.3")] {
            let mut began = serde_json::to_value(begin(run, 1)).unwrap();
            began["packages"] = packages(version);
            failures.ingest(vec![record(began)]).await.unwrap();
        }
        let kept = async |run: &str| failures.run(run).await.unwrap().packages;
        let (one, two) = (kept("one").await, kept("two").await);
        assert_eq!(serde_json::to_value(&one).unwrap(), packages("3.19.1"));
        assert_eq!(two, kept("three").await);
        let changed: Vec<String> = changes(&one, &two).iter().map(ToString::to_string).collect();
        assert_eq!(changed, ["simplejson 3.19.1 → 3.19.3"]);
    });
}

/// A `run` record with packages of its own, on an interpreter of its own.
fn begin_with(run: &str, second: i64, more: &Value) -> Record {
    let mut began = serde_json::to_value(begin(run, second)).expect("it is JSON");
    let fields = more.as_object().expect("an object").iter();
    began.as_object_mut().expect("an object").extend(fields.map(|(name, value)| (name.clone(), value.clone())));
    record(began)
}

#[test]
fn a_changed_environment_is_named_and_not_flaky() {
    on_each_database("bump", |database| async move {
        let failures = open(database);
        let with = |version: &str| json!({"packages": {"pytest": "8.3.4", "simplejson": version}});
        let began = async |run: &str, second, more: &Value, report: Record| {
            let batch = vec![begin_with(run, second, more), code(run, "same"), report, ended(run, second)];
            failures.ingest(batch).await.unwrap()
        };
        began("good", 0, &with("3.19.1"), passed("good", TEST, 0)).await;
        let taken = began("bad", 10, &with("3.19.3"), failed("bad", TEST, 10, "total", "bad price")).await;
        let (id, _) = only(&taken);
        let failure = failures.get(&id).await.unwrap();
        assert_eq!(failure.summary.status, Status::New, "{:?}", failure.changes);
        let bump = "environment changed: simplejson 3.19.1 → 3.19.3";
        assert_eq!(failure.changes[0].reason, format!("first seen in run bad; {bump}"));
        let onset = failures.onset(&id).await.unwrap();
        assert_eq!(onset.environment.as_deref(), Some("simplejson 3.19.1 → 3.19.3"));

        began("mended", 20, &with("3.19.4"), passed("mended", TEST, 20)).await;
        let failure = failures.get(&id).await.unwrap();
        assert_eq!(failure.summary.status, Status::Resolved, "{:?}", failure.changes);
        let proof = failure.proof.expect("a run shows it");
        let why = "passed in run mended on the same code; environment changed: simplejson 3.19.3 → 3.19.4";
        assert_eq!((proof.run.as_str(), proof.reason.as_str()), ("mended", why));
        assert_eq!(proof.commit.as_deref(), Some("commit-same"));
        let run = failures.run("mended").await.unwrap();
        assert_eq!(run.resolved.iter().map(|failure| failure.id.as_str()).collect::<Vec<_>>(), [id.as_str()]);
        assert!(run.not_resolved.is_empty() && failures.run("good").await.unwrap().resolved.is_empty());
        failures.close().await;
    });
}

#[test]
fn passes_that_show_nothing_resolve_nothing() {
    on_each_database("nothing", |database| async move {
        let failures = open(database);
        let other = "tests/test_shop.py::test_first";
        let began = vec![
            begin_with("bad", 0, &json!({"implementation": "cpython", "platform": "linux 6.1 x86_64"})),
            code("bad", "one"),
            passed("bad", other, 1),
            failed("bad", TEST, 2, "total", "bad price"),
        ];
        let (id, _) = only(&failures.ingest(began).await.unwrap());
        let mut second = 10;
        let mut check = async |more: Value, reports: &[&str], hash: &str, notes: &str, expected: Status, said: &str| {
            second += 10;
            let run = format!("r{second}");
            let mut all = json!({"implementation": "cpython", "platform": "linux 6.1 x86_64"});
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let mut changed = serde_json::to_value(code(&run, hash)).unwrap();
            changed["other"] = notes.into();
            let mut batch = vec![begin_with(&run, second, &all), record(changed)];
            batch.extend((0..).zip(reports).map(|(index, test)| passed(&run, test, second + index)));
            failures.ingest(batch).await.unwrap();
            let failure = failures.get(&id).await.unwrap();
            assert_eq!(failure.summary.status, expected, "{run}: {:?}", failure.changes);
            let note = failure.summary.note.unwrap_or_default();
            assert!(note.contains(said) && note.is_empty() == said.is_empty(), "{run}: {note:?} is not {said:?}");
            let told = failures.run(&run).await.unwrap();
            let ids = |failures: &[pylair_failures::view::Summary]| {
                failures.iter().map(|failure| failure.id.clone()).collect::<Vec<_>>()
            };
            let shows = expected == Status::Resolved;
            assert_eq!((ids(&told.resolved).contains(&id), ids(&told.not_resolved).contains(&id)), (shows, !shows));
        };
        let open = Status::New;
        check(json!({"python": "3.8.18"}), &[other, TEST], "two", "", open, "on CPython 3.8 on linux").await;
        check(json!({"implementation": "pypy"}), &[other, TEST], "two", "", open, "on PyPy 3.13 on linux").await;
        check(json!({"platform": "darwin 24"}), &[other, TEST], "two", "", open, "on CPython 3.13 on darwin").await;
        check(json!({}), &[TEST], "two", "", open, "by itself, which shows nothing: it failed after 1 other test")
            .await;
        check(json!({}), &[TEST], "one", "", open, "by itself").await;
        check(json!({}), &[other, TEST], "one", "note", open, "files that are not code").await;
        let refused = failures.set_status(&id, Status::Resolved, "ann", false).await.unwrap_err();
        assert!(refused.to_string().contains("files that are not code"), "{refused}");
        check(json!({}), &[other, TEST], "two", "", Status::Resolved, "").await;
        failures.close().await;
    });
}

#[test]
fn trends_count_the_period_that_is_named() {
    use pylair_failures::{
        analysis::{Direction, Question, TimeRange},
        explain::Reading,
        project::Chosen,
    };
    on_each_database("trends", |database| async move {
        let failures = open(database);
        // Yesterday at noon: what is much older is forgotten.
        let noon = Timestamp::now().as_second().div_euclid(86_400) * 86_400 - 43_200;
        let now = Timestamp::from_second(noon).unwrap();
        let hours = |hours: i64| (now - SignedDuration::from_hours(hours)).to_string();
        // Three today; two yesterday before noon and one after; five in the week before.
        let ages = [1, 2, 3, 25, 30, 23, 200, 210, 220, 230, 240];
        for (number, age) in ages.into_iter().enumerate() {
            let run = format!("r{number}");
            let mut began = serde_json::to_value(begin(&run, 0)).unwrap();
            began["at"] = hours(age).into();
            let mut report = serde_json::to_value(failed(&run, TEST, 0, "total", "bad price")).unwrap();
            report["at"] = hours(age).into();
            failures.ingest(vec![record(began), record(report)]).await.unwrap();
        }
        let trend = async |time_range| {
            let question = Question { time_range, ..Question::new(now) };
            let report = failures.analysis(&question, Chosen::all(), Reading::Nothing).await.unwrap();
            let trend = report.groups[0].trend;
            (trend.recent, trend.previous, trend.direction, report.total_occurrences)
        };
        assert_eq!(trend(TimeRange::Today).await, (3, 2, Direction::Steady, 3));
        assert_eq!(trend(TimeRange::Week).await, (6, 5, Direction::Steady, 6));
        assert_eq!(trend(TimeRange::All).await, (6, 5, Direction::Steady, 11));
        failures.close().await;
    });
}
