use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{
    file::{files, read, verify},
    *,
};

fn home(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("pylair-audit-{name}-{}", std::process::id()));
    let _absent = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir.join("audit.jsonl")
}

fn line(reason: &str) -> Line {
    Line { reason: Some(reason.to_owned()), ..Line::new(What::Denied) }
}

fn reasons(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for file in files(path) {
        read(&file, |line| {
            let entry: file::Entry = serde_json::from_slice(line).unwrap();
            found.push(entry.line.reason.unwrap_or_default());
        })
        .unwrap();
    }
    found
}

#[test]
fn lines_are_chained_also_across_restarts() {
    let path = home("chain");
    for part in ["a", "b"] {
        let audit = Audit::open(path.clone(), AuditSettings::default()).unwrap();
        audit.record(line(part));
        audit.record(line("c"));
        let head = audit.head().unwrap();
        assert_eq!(verify(&path, Some(&head)).unwrap().faults, Vec::<String>::new());
    }
    let verdict = verify(&path, None).unwrap();
    assert_eq!((verdict.lines, verdict.first_seq, verdict.last_seq), (4, Some(1), 4));
    assert_eq!(reasons(&path), ["a", "c", "b", "c"]);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn a_line_that_was_changed_removed_or_cut_off_shows() {
    let path = home("tamper");
    let audit = Audit::open(path.clone(), AuditSettings::default()).unwrap();
    for reason in ["one", "two", "three"] {
        audit.record(line(reason));
    }
    let head = audit.head().unwrap();
    drop(audit);
    let text = fs::read_to_string(&path).unwrap();
    let faults = |text: &str, head| {
        fs::write(&path, text).unwrap();
        verify(&path, head).unwrap().faults
    };
    assert!(faults(&text, Some(&head)).is_empty());
    assert_eq!(faults(&text.replace("two", "TWO"), None).len(), 1);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(faults(&format!("{}\n{}\n", lines[0], lines[2]), None).len(), 2);
    assert!(faults(&format!("{}\n{}\n", lines[0], lines[1]), None).is_empty());
    assert_eq!(faults(&format!("{}\n{}\n", lines[0], lines[1]), Some(&head)).len(), 1);
}

#[test]
fn a_torn_line_is_closed_and_said_and_the_chain_goes_on() {
    let path = home("torn");
    let audit = Audit::open(path.clone(), AuditSettings::default()).unwrap();
    audit.record(line("whole"));
    drop(audit);
    let mut text = fs::read(&path).unwrap();
    text.extend_from_slice(b"{\"seq\":2,\"at\":\"20");
    fs::write(&path, text).unwrap();
    let audit = Audit::open(path.clone(), AuditSettings::default()).unwrap();
    audit.record(line("after"));
    let head = audit.head().unwrap();
    let verdict = verify(&path, Some(&head)).unwrap();
    assert_eq!((verdict.torn, verdict.faults.len(), verdict.lines), (1, 0, 3), "{verdict:?}");
}

#[test]
fn full_files_are_put_aside_and_so_many_are_kept() {
    let path = home("rotate");
    let audit = Audit::open(path.clone(), AuditSettings { max_bytes: 2000, files: 3 }).unwrap();
    for number in 0..60 {
        audit.record(line(&format!("{number} {}", "x".repeat(200))));
        audit.head();
    }
    let verdict = verify(&path, audit.head().as_ref()).unwrap();
    assert_eq!(files(&path).len(), 4);
    assert!(verdict.faults.is_empty() && verdict.first_seq > Some(1) && verdict.last_seq == 60, "{verdict:?}");
}

#[test]
fn code_is_hashed_as_it_is_and_shown_masked_and_cut() {
    let mut line = Line { code: Some(format!("API_KEY = 'abc'\n{}", "x".repeat(1000))), ..Line::new(What::Called) };
    let hash = hex(&sha256(line.code.as_ref().unwrap().as_bytes()));
    line.finish();
    let shown = line.code.unwrap();
    assert_eq!(line.code_sha256.unwrap(), hash);
    assert!(
        shown.starts_with("API_KEY = '***masked***'\nxxx") && shown.chars().count() == MAX_EXCERPT_CHARS + 1,
        "{shown}"
    );
}

#[test]
fn what_does_not_fit_is_counted() {
    let shared = Arc::new(AuditQueue::default());
    let audit = Audit { shared: shared.clone(), calls: AtomicU64::new(0), writer: Mutex::new(None) };
    for _ in 0..MAX_QUEUED + 5 {
        audit.record(line("x"));
    }
    let queue = shared.lock();
    assert_eq!((queue.lines.len(), queue.dropped), (MAX_QUEUED, 5));
    drop(queue);
}

#[test]
fn many_who_write_at_once_lose_nothing_when_files_are_put_aside() {
    let path = home("many");
    let audit = Audit::open(path.clone(), AuditSettings { max_bytes: 5000, files: 1000 }).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let audit = &audit;
            scope.spawn(move || {
                for number in 0..200 {
                    audit.record(line(&format!("{writer}/{number}")));
                }
            });
        }
    });
    let verdict = verify(&path, audit.head().as_ref()).unwrap();
    assert!(verdict.faults.is_empty() && verdict.torn == 0 && files(&path).len() > 20, "{verdict:?}");
    let mut found = reasons(&path);
    for writer in 0..8 {
        let mine: Vec<_> = found.iter().filter(|reason| reason.starts_with(&format!("{writer}/"))).collect();
        assert_eq!(
            mine,
            (0..200).map(|number| format!("{writer}/{number}")).collect::<Vec<_>>().iter().collect::<Vec<_>>()
        );
    }
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 1600);
}

#[test]
fn numbers_that_cannot_be_are_told_and_gone_on_from() {
    let path = home("numbers");
    let audit = Audit::open(path.clone(), AuditSettings::default()).unwrap();
    audit.record(line("one"));
    drop(audit);
    let last = format!("\"seq\":{},\"dropped\":{}", u64::MAX, u64::MAX);
    let text = fs::read_to_string(&path).unwrap().replace("\"seq\":1", &last);
    fs::write(&path, format!("{text}{text}")).unwrap();
    let audit = Audit::open(path.clone(), AuditSettings::default()).unwrap();
    audit.record(line("two"));
    drop(audit);
    assert!(!verify(&path, None).unwrap().faults.is_empty());
    assert_eq!(reasons(&path), ["one", "one", "two"]);
}
