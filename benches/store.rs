//! How fast failures are taken in durably and read for analysis, and, with `groups DIRECTORY`, which groups the runs of seeded faults
//! end up in (benches/grouping). Prints JSON.

#![expect(clippy::print_stdout, reason = "its result")]

use std::{path::Path, sync::Arc, time::Instant};

use jiff::Timestamp;
use pylair_failures::{
    Database, Failures, Limits,
    explain::{Reading, question},
    project::Chosen,
    record::Record,
    view::Filter,
};
use pylair_os::clock::Clock;
use serde_json::{Value, json};

/// Reporters at the same time, each with batches of so many failures.
const REPORTERS: usize = 16;
const BATCH: usize = 8;
const SCANNED: usize = 100_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("there are threads");
    let result = runtime.block_on(async {
        match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["groups", directory] => groups(Path::new(directory)).await,
            ["store", address, failures] => store(address, failures.parse().expect("a number")).await,
            _ => panic!("usage: store groups DIRECTORY | store store ADDRESS FAILURES"),
        }
    });
    println!("{result}");
}

fn open(address: &str) -> Failures {
    let database = match address {
        address if address.starts_with("postgres") => Database::Postgres(address.to_owned()),
        path => Database::Sqlite(path.into()),
    };
    Failures::new(database, Limits::default(), "/nonexistent".into(), Arc::new(Clock::trusted()))
}

fn record(value: Value) -> Record {
    serde_json::from_value(value).expect("it is a record")
}

fn begin(run: &str, project: &str) -> Record {
    record(
        json!({"ev": "run", "run": run, "at": Timestamp::now().to_string(), "project": {"root": format!("/{project}"), "name": project}}),
    )
}

/// A failure of the size that the plugin reports: some frames with source and locals.
fn failed(run: &str, number: usize) -> Record {
    let frames: Vec<Value> = (0..6)
        .map(|depth| {
            let locals: Vec<Value> =
                (0..8).map(|n| json!({"name": format!("name{n}"), "type": "dict", "value": format!("{{'key': {number}, 'n': {n}}}")})).collect();
            json!({"file": format!("shop/module{depth}.py"), "line": 10 + depth, "function": format!("function{}", number % 50), "module": "shop",
                "in_app": true, "locals": locals, "source": {"first": 5, "lines": vec!["    value = compute(value, other)"; 11]}})
        })
        .collect();
    record(json!({
        "ev": "test", "run": run, "nodeid": format!("tests/test_{}.py::test_{number}", number % 97), "outcome": "failed", "phase": "call",
        "at": Timestamp::now().to_string(), "file": "tests/test_a.py", "line": 3, "seconds": {"call": 0.1},
        "failure": {"occurrence": format!("{run}-{number}"), "exception": {"type": "ValueError", "message": format!("bad price {number}")},
            "frames": frames, "text": "E   ValueError: bad price\n".repeat(20), "stdout": "some output\n".repeat(10)},
    }))
}

async fn store(address: &str, count: usize) -> Value {
    let failures = Arc::new(open(address));
    failures.check().await.expect("it opens");
    let per_reporter = count / REPORTERS;
    // As reporters send them: lines of JSON, the body of a request.
    let batches: Vec<(String, Vec<Vec<u8>>)> = (0..REPORTERS)
        .map(|reporter| {
            let run = format!("run{reporter}");
            let all: Vec<Record> = (0..per_reporter).map(|n| failed(&run, reporter * per_reporter + n)).collect();
            let bodies = all.chunks(BATCH).map(|chunk| {
                let lines = chunk.iter().map(|record| serde_json::to_string(record).expect("it is JSON"));
                lines.collect::<Vec<_>>().join("\n").into_bytes()
            });
            (run, bodies.collect())
        })
        .collect();
    for reporter in 0..REPORTERS {
        failures.ingest(vec![begin(&format!("run{reporter}"), "shop")]).await.expect("it is taken");
    }
    let (started, cpu) = (Instant::now(), cpu_s());
    let mut reporters = tokio::task::JoinSet::new();
    for (run, bodies) in batches {
        let failures = Arc::clone(&failures);
        reporters.spawn(async move {
            for body in bodies {
                failures.ingest_lines(&run, body).await.expect("it is taken");
            }
        });
    }
    while let Some(done) = reporters.join_next().await {
        done.expect("it reports");
    }
    let (taken_s, taken_cpu_s) = (started.elapsed().as_secs_f64(), cpu_s() - cpu);
    let mut kept = per_reporter * REPORTERS;
    failures.ingest(vec![begin("more", "shop")]).await.expect("it is taken");
    while kept < SCANNED {
        let some: Vec<Record> = (0..1000).map(|n| small("more", kept + n)).collect();
        failures.ingest(some).await.expect("it is taken");
        kept += 1000;
    }
    let question = question(None, None, true).expect("these are known");
    let mut analyses = Vec::new();
    for _ in 0..3 {
        let (started, cpu) = (Instant::now(), cpu_s());
        let report = failures.analysis(&question, Chosen::all(), Reading::Nothing).await.expect("it is analysed");
        assert!(report.total_failures >= SCANNED, "all of them");
        analyses.push((started.elapsed().as_secs_f64(), cpu_s() - cpu));
    }
    analyses.sort_by(|a, b| a.0.total_cmp(&b.0));
    failures.close().await;
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = (per_reporter * REPORTERS) as f64;
    json!({"failures_per_s": rate / taken_s, "failures_per_cpu_s": rate / taken_cpu_s, "analysis_of_100k_s": analyses[0].0,
        "analysis_of_100k_cpu_s": analyses[0].1})
}

/// Processor time of this process so far: on a machine that does other things too, that is what can be compared.
fn cpu_s() -> f64 {
    pylair_os::machine::used_by(std::process::id().cast_signed()).map_or(0.0, |used| used.cpu_s)
}

/// To have many: what is scanned does not depend on the evidence.
fn small(run: &str, number: usize) -> Record {
    record(json!({
        "ev": "test", "run": run, "nodeid": format!("tests/test_{}.py::test_{number}", number % 97), "outcome": "failed", "phase": "call",
        "at": Timestamp::now().to_string(), "file": "tests/test_a.py",
        "failure": {"exception": {"type": format!("Error{}", number % 30), "message": format!("bad price {number} in {}", number % 400)},
            "frames": [{"file": "shop/price.py", "line": 3, "function": format!("function{}", number % 200), "module": "shop", "in_app": true}]},
    }))
}

/// Takes runs in one after the other, and says after each in which groups its failures are: once all of them, so that a fault is seen alone
/// before it is seen beside another one, and once only those with two faults.
async fn groups(directory: &Path) -> Value {
    let all = grouped(directory, |_| true).await;
    let pairs_only = grouped(directory, |run| run["faults"].as_array().is_some_and(|faults| faults.len() != 1)).await;
    json!({"all": all, "pairs_only": pairs_only})
}

async fn grouped(directory: &Path, wanted: fn(&Value) -> bool) -> Value {
    let place = directory.join("groups.db");
    for suffix in ["", "-wal", "-shm"] {
        let _absent = std::fs::remove_file(format!("{}{suffix}", place.display()));
    }
    let failures = open(&place.display().to_string());
    let mut lists: Vec<_> = std::fs::read_dir(directory)
        .expect("it is there")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    lists.sort();
    let mut found = Vec::new();
    for list in lists {
        let runs: Vec<Value> =
            serde_json::from_slice(&std::fs::read(&list).expect("it is a file")).expect("it is JSON");
        for run in runs.iter().filter(|run| wanted(run)) {
            let name = run["run"].as_str().expect("it has a name");
            let lines = std::fs::read(directory.join(format!("{name}.jsonl"))).expect("it was written");
            failures.ingest_lines(name, lines).await.expect("it is taken");
            let detail = failures.run(name).await.expect("it is there");
            for failure in detail.failures {
                found.push(json!({
                    "run": name, "suite": run["suite"], "test": failure.test, "group": failure.group, "type": failure.kind,
                    "fingerprint": failure.fingerprint,
                    "place": failure.place.map(|place| format!("{}:{}", place.file, place.function)),
                }));
            }
        }
    }
    let groups = failures.groups(&Filter::default(), 1000).await.expect("they are read");
    failures.close().await;
    json!({"items": found, "groups": groups})
}
