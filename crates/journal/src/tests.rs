//! The journal through its public API, on real files: order, bounds, followers, and files gone wrong.

use std::{
    fs,
    io::{BufRead, BufReader, Seek, SeekFrom, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::{Stream, StreamExt};
use sqlx::{
    Connection, Executor,
    sqlite::{SqliteConnectOptions, SqliteConnection},
};

use super::{Error, Event, EventKind, Journal, Limits, MAX_PENDING_EVENTS, MAX_TEXT_BYTES, MAX_UNSAVED_EVENTS, Opened};
use pylair_os::clock::Clock;
use pylair_output as output;

const PATIENCE: Duration = Duration::from_mins(1);

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("pylair-journal-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        // Of an earlier process with the same id.
        _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> PathBuf {
        self.0.join("journal.db")
    }

    async fn open(&self) -> Journal {
        self.open_with(Limits::default()).await
    }

    /// Other tests of this program fork, and until such a child is gone it holds the lock of a journal that was just closed.
    async fn open_with(&self, limits: Limits) -> Journal {
        loop {
            match Journal::open_with(self.path(), limits.clone(), clock()).await {
                Err(Error::InUse { .. }) => tokio::task::yield_now().await,
                opened => {
                    let opened = opened.unwrap();
                    assert_eq!(opened.damaged, None);
                    return opened.journal;
                }
            }
        }
    }

    /// A connection beside the journal's.
    async fn connect(&self) -> SqliteConnection {
        SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(self.path())).await.unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn clock() -> Arc<Clock> {
    Arc::new(Clock::trusted())
}

fn name(text: &str) -> Arc<str> {
    Arc::from(text)
}

fn made(cell: u64) -> EventKind {
    EventKind::CheckpointMade { cell, took_us: 0 }
}

fn printed(text: &str) -> EventKind {
    EventKind::Output { cell: Some(1), stream: output::Stream::Stdout, text: text.to_owned() }
}

fn seqs(events: &[Arc<Event>]) -> Vec<u64> {
    events.iter().map(|event| event.seq).collect()
}

async fn everything(journal: &Journal) -> Vec<Arc<Event>> {
    journal.after(None, None, 0, 1_000_000).await.unwrap()
}

async fn next(follower: &mut (impl Stream<Item = Result<Arc<Event>, Error>> + Unpin)) -> Option<Arc<Event>> {
    tokio::time::timeout(PATIENCE, follower.next()).await.expect("no event").map(Result::unwrap)
}

#[tokio::test]
async fn numbers_and_events_survive_a_restart() {
    let scratch = Scratch::new();
    let journal = scratch.open().await;
    let (owner, target) = (name("uid:1"), name("session:main"));
    for cell in 1..=200 {
        journal.record(&owner, &target, made(cell));
    }
    let before = everything(&journal).await;
    journal.shutdown().await.unwrap();
    assert_eq!(fs::metadata(scratch.path()).unwrap().permissions().mode() & 0o777, 0o600);

    let journal = scratch.open().await;
    assert_eq!(everything(&journal).await, before);
    assert_eq!(seqs(&before), (1..=200).collect::<Vec<_>>());
    journal.record(&owner, &target, made(201));
    assert_eq!(journal.last_seq(), 201);
    journal.shutdown().await.unwrap();
}

#[tokio::test]
async fn history_goes_back_page_by_page_saved_or_not() {
    let scratch = Scratch::new();
    let journal = scratch.open().await;
    let owner = name("uid:1");
    let targets = [name("session:a"), name("session:b")];
    let record = |cells: std::ops::RangeInclusive<u64>| {
        for cell in cells {
            journal.record(&owner, &targets[usize::try_from(cell % 2).unwrap()], made(cell));
        }
    };
    record(1..=10);
    journal.flush().await.unwrap();
    record(11..=20);
    let history = async |before, limit| seqs(&journal.history("uid:1", "session:a", before, limit).await.unwrap());
    assert_eq!(history(None, 3).await, [16, 18, 20]);
    assert_eq!(history(Some(16), 4).await, [8, 10, 12, 14]);
    assert_eq!(history(Some(8), 100).await, [2, 4, 6]);
    assert_eq!(history(Some(2), 100).await, [0; 0]);
    assert_eq!(history(None, 0).await, [0; 0]);
    assert_eq!(seqs(&journal.history("uid:2", "session:a", None, 9).await.unwrap()), [0; 0]);

    let after = async |owner, target, seq, limit| seqs(&journal.after(owner, target, seq, limit).await.unwrap());
    assert_eq!(after(None, None, 8, 4).await, [9, 10, 11, 12]);
    assert_eq!(after(Some("uid:1"), None, 18, 9).await, [19, 20]);
    assert_eq!(after(None, Some("session:b"), 6, 4).await, [7, 9, 11, 13]);
    assert_eq!(after(Some("uid:1"), Some("session:a"), 7, 2).await, [8, 10]);
    assert_eq!(after(Some("uid:2"), None, 0, 9).await, [0; 0]);
    journal.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_miss_nothing_and_get_nothing_twice() {
    const WRITERS: u64 = 3;
    const EACH: u64 = 4000;
    let scratch = Scratch::new();
    let journal = scratch.open().await;
    let owner = name("uid:1");
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (journal, owner, target) = (journal.clone(), owner.clone(), name(&format!("session:{writer}")));
            std::thread::spawn(move || {
                for cell in 0..EACH {
                    journal.record(&owner, &target, made(cell));
                    if cell % 100 == 0 {
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let mut followers = Vec::new();
    for round in 0..6 {
        let target = (round % 2 == 1).then_some("session:1");
        let after = journal.last_seq() / 2;
        let mut follower = Box::pin(journal.follow(Some("uid:1"), target, after));
        followers.push(pylair_os::event_loop::spawn(async move {
            let mut seen = Vec::new();
            while let Some(event) = next(&mut follower).await {
                seen.push(event.seq);
                if event.kind == made(u64::MAX) {
                    break;
                }
            }
            (target, after, seen)
        }));
        tokio::task::yield_now().await;
    }
    for writer in writers {
        writer.join().unwrap();
    }
    journal.record(&owner, &name("session:1"), made(u64::MAX));
    let all = everything(&journal).await;
    assert_eq!(seqs(&all), (1..=WRITERS * EACH + 1).collect::<Vec<_>>());
    for follower in followers {
        let (target, after, seen) = follower.await.unwrap();
        let expect: Vec<u64> = all
            .iter()
            .filter(|event| event.seq > after && target.is_none_or(|target| *event.target == *target))
            .map(|event| event.seq)
            .collect();
        assert!(seen == expect, "{target:?} after {after}: {} of {}", seen.len(), expect.len());
    }
    journal.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_follower_that_falls_behind_catches_up_from_the_store() {
    let scratch = Scratch::new();
    let journal = scratch.open().await;
    let (owner, target) = (name("uid:1"), name("session:main"));
    let mut follower = Box::pin(journal.follow(None, None, 0));
    journal.record(&owner, &target, made(1));
    assert_eq!(next(&mut follower).await.unwrap().seq, 1);
    for cell in 2..=3000 {
        journal.record(&owner, &target, made(cell));
    }
    journal.flush().await.unwrap();
    for seq in 2..=3000 {
        assert_eq!(next(&mut follower).await.unwrap().seq, seq);
    }
    journal.record(&owner, &target, made(3001));
    assert_eq!(next(&mut follower).await.unwrap().seq, 3001);
    journal.shutdown().await.unwrap();
    assert_eq!(next(&mut follower).await, None);
}

#[tokio::test]
async fn a_follower_behind_what_is_kept_is_told_of_the_gap() {
    let scratch = Scratch::new();
    let limits = Limits { max_events: 100, ..Limits::default() };
    let journal = Journal::open_with(scratch.path(), limits, clock()).await.unwrap().journal;
    let (owner, target) = (name("uid:1"), name("session:main"));
    let mut follower = Box::pin(journal.follow(Some("uid:1"), None, 0));
    journal.record(&owner, &target, made(1));
    assert_eq!(next(&mut follower).await.unwrap().seq, 1);
    // More than the writer takes before it looks at the limits.
    for cell in 2..=12_000 {
        journal.record(&owner, &target, made(cell));
    }
    journal.flush().await.unwrap();
    let gap = next(&mut follower).await.unwrap();
    let EventKind::Gap { dropped } = gap.kind else { panic!("{gap:?}") };
    assert_eq!((gap.seq, dropped), (11_900, 11_899));
    assert_eq!(next(&mut follower).await.unwrap().seq, 11_901);
    journal.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_disk_costs_output_first_and_says_so() {
    async fn check(text: &str, kept: usize) {
        let scratch = Scratch::new();
        let journal = scratch.open().await;
        let (owner, target, other) = (name("uid:1"), name("session:main"), name("session:other"));
        // Holds the file as a stuck process would.
        let mut stall = scratch.connect().await;
        stall.execute("BEGIN IMMEDIATE").await.unwrap();
        let surplus = 1000;
        for _ in 0..kept + surplus {
            journal.record(&owner, &target, printed(text));
        }
        journal.record(&owner, &other, printed(text));
        for cell in 0..10 {
            journal.record(&owner, &target, made(cell));
        }
        assert_eq!(journal.history("uid:1", "session:main", None, 3).await.unwrap().len(), 3);
        stall.execute("ROLLBACK").await.unwrap();
        journal.flush().await.unwrap();
        journal.flush().await.unwrap();

        let events = everything(&journal).await;
        let outputs = events.iter().filter(|event| matches!(event.kind, EventKind::Output { .. })).count();
        assert_eq!(outputs, kept);
        let kept_cells = events.iter().filter(|event| matches!(event.kind, EventKind::CheckpointMade { .. })).count();
        assert_eq!(kept_cells, 10);
        let gaps: Vec<_> = events
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::Gap { dropped } => Some((&*event.target, dropped)),
                _ => None,
            })
            .collect();
        assert_eq!(gaps.len(), 2);
        assert!(gaps.contains(&("session:main", surplus as u64)) && gaps.contains(&("session:other", 1)));
        assert!(events.is_sorted_by_key(|event| event.seq));
        journal.shutdown().await.unwrap();
    }
    check("x", usize::try_from(MAX_PENDING_EVENTS / 2).unwrap()).await;
    check(&"x".repeat(MAX_TEXT_BYTES), 32 * 1024 * 1024 / (MAX_TEXT_BYTES + super::EVENT_BYTES)).await;
}

#[tokio::test]
async fn a_damaged_file_is_moved_aside() {
    async fn check(content: &[u8]) {
        let scratch = Scratch::new();
        fs::write(scratch.path(), content).unwrap();
        let Opened { journal, damaged, .. } = Journal::open(scratch.path(), clock()).await.unwrap();
        let aside = damaged.expect("moved aside");
        assert!(aside.file_name().unwrap().to_str().unwrap().starts_with("journal.db.damaged-"));
        assert_eq!(fs::read(aside).unwrap(), content);
        journal.record(&name("uid:1"), &name("daemon"), made(1));
        journal.shutdown().await.unwrap();
        assert_eq!(everything(&scratch.open().await).await.len(), 1);
    }
    check(b"this is not a database, whatever its name says").await;
    check(&[0; 10_000]).await;
    check(&[b"SQLite format 3\0".as_slice(), &[0xA5; 8192]].concat()).await;
}

#[tokio::test]
async fn damage_found_while_running_is_dealt_with_at_the_next_start() {
    let scratch = Scratch::new();
    let journal = scratch.open().await;
    let (owner, target) = (name("uid:1"), name("session:main"));
    for _ in 0..1000 {
        journal.record(&owner, &target, printed(&"x".repeat(1000)));
    }
    journal.shutdown().await.unwrap();
    let mut file = fs::OpenOptions::new().write(true).open(scratch.path()).unwrap();
    let length = file.seek(SeekFrom::End(0)).unwrap();
    file.seek(SeekFrom::Start(length / 4 / 4096 * 4096)).unwrap();
    file.write_all(&vec![0xA5; usize::try_from(length / 2).unwrap()]).unwrap();

    // Opening does not read the pages that are broken.
    let journal = scratch.open().await;
    assert!(journal.after(None, None, 0, 10_000).await.is_err());
    drop(journal.shutdown().await);
    let opened = Journal::open(scratch.path(), clock()).await.unwrap();
    assert!(opened.damaged.is_some());
    opened.journal.shutdown().await.unwrap();
    scratch.open().await;
}

#[tokio::test]
async fn the_journal_of_a_newer_version_is_left_alone() {
    let scratch = Scratch::new();
    scratch.open().await.shutdown().await.unwrap();
    let mut connection = scratch.connect().await;
    let newer = "INSERT INTO _sqlx_migrations VALUES (7, 'later', CURRENT_TIMESTAMP, TRUE, x'00', 0)";
    connection.execute(newer).await.unwrap();
    connection.close().await.unwrap();
    let error = Journal::open(scratch.path(), clock()).await.unwrap_err();
    assert!(matches!(error, Error::Newer { version: 7, known: 3, .. }), "{error:?}");
    assert!(error.to_string().contains("newer pylair"));
    assert!(error.hint().is_some());
}

#[tokio::test]
async fn one_journal_has_one_writer() {
    let scratch = Scratch::new();
    let journal = scratch.open().await;
    let error = Journal::open(scratch.path(), clock()).await.unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error:?}");
    journal.shutdown().await.unwrap();
    scratch.open().await.shutdown().await.unwrap();
}

#[tokio::test]
async fn old_events_make_room() {
    async fn check(limits: Limits, expect: std::ops::RangeInclusive<usize>) {
        let scratch = Scratch::new();
        let journal = scratch.open().await;
        let (owner, target) = (name("uid:1"), name("session:main"));
        for _ in 0..3000 {
            journal.record(&owner, &target, printed(&"x".repeat(1000)));
        }
        journal.shutdown().await.unwrap();
        let journal = scratch.open_with(limits).await;
        journal.flush().await.unwrap();
        let left = everything(&journal).await;
        assert!(expect.contains(&left.len()), "{} not in {expect:?}", left.len());
        assert_eq!(left.last().unwrap().seq, 3000);
        journal.record(&owner, &target, made(1));
        assert_eq!(journal.last_seq(), 3001);
        journal.shutdown().await.unwrap();
    }
    check(Limits::default(), 3000..=3000).await;
    check(Limits { max_events: 100, ..Limits::default() }, 100..=100).await;
    check(Limits { max_events: 2500, ..Limits::default() }, 2500..=2500).await;
    // The newest stays, because numbers continue from it.
    check(Limits { max_age: Duration::ZERO, ..Limits::default() }, 1..=1).await;
    check(Limits { max_bytes: 2_500_000, ..Limits::default() }, 1000..=2000).await;
}

#[tokio::test]
async fn one_owners_history_makes_room_for_itself_and_is_told() {
    let scratch = Scratch::new();
    let limits = Limits { max_bytes: 2_000_000, ..Limits::default() };
    let journal = Journal::open_with(scratch.path(), limits.clone(), clock()).await.unwrap().journal;
    let (busy, quiet, target) = (name("busy"), name("quiet"), name("session:main"));
    for cell in 0..100 {
        journal.record(&quiet, &target, made(cell));
    }
    let on_disk = || -> u64 {
        let length =
            |suffix| std::fs::metadata(format!("{}{suffix}", scratch.path().display())).map_or(0, |file| file.len());
        ["", "-wal"].map(length).iter().sum()
    };
    for _ in 0..40 {
        for _ in 0..10 {
            journal.record(&busy, &target, printed(&"x".repeat(20_000)));
        }
        journal.flush().await.unwrap();
        assert!(on_disk() <= 2_000_000, "{}", on_disk());
    }
    assert_eq!(journal.history("quiet", "session:main", None, 200).await.unwrap().len(), 100);
    assert_eq!(journal.trimmed("quiet"), None);
    let trimmed = journal.trimmed("busy").expect("most of it is gone");
    assert!(trimmed.events > 300 && trimmed.why.contains("may take"), "{trimmed:?}");
    let [events, _] = journal.usage("busy");
    assert_eq!((events.yours + events.removed, events.all), (400, Some(events.yours + 100)));
    journal.shutdown().await.unwrap();
    // The next daemon counts on from there.
    let journal = Journal::open_with(scratch.path(), limits, clock()).await.unwrap().journal;
    assert_eq!((journal.trimmed("busy"), &journal.usage("busy")[0]), (Some(trimmed), &events));
    journal.shutdown().await.unwrap();
}

#[tokio::test]
async fn what_is_counted_is_what_an_older_version_left() {
    let scratch = Scratch::new();
    let journal = scratch.open().await;
    for _ in 0..5 {
        journal.record(&name("uid:1"), &name("session:main"), printed("é"));
    }
    journal.shutdown().await.unwrap();
    let mut connection = scratch.connect().await;
    let counted = "SELECT bytes FROM usage";
    let bytes: i64 = sqlx::query_scalar(counted).fetch_one(&mut connection).await.unwrap();
    connection.execute("DROP TABLE usage").await.unwrap();
    connection.execute("DELETE FROM _sqlx_migrations WHERE version = 2").await.unwrap();
    connection.close().await.unwrap();
    scratch.open().await.shutdown().await.unwrap();
    let mut connection = scratch.connect().await;
    assert_eq!(sqlx::query_scalar::<_, i64>(counted).fetch_one(&mut connection).await.unwrap(), bytes);
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_the_disk_leaves_room_for_others() {
    let scratch = Scratch::new();
    let journal = scratch.open().await;
    let (busy, quiet, target) = (name("busy"), name("quiet"), name("session:main"));
    let mut stall = scratch.connect().await;
    stall.execute("BEGIN IMMEDIATE").await.unwrap();
    for _ in 0..2000 {
        journal.record(&busy, &target, printed(&"x".repeat(MAX_TEXT_BYTES)));
    }
    for _ in 0..100 {
        journal.record(&quiet, &target, printed(&"x".repeat(1000)));
    }
    assert_eq!(journal.history("quiet", "session:main", None, 200).await.unwrap().len(), 100);
    stall.execute("ROLLBACK").await.unwrap();
    journal.flush().await.unwrap();
    assert_eq!(journal.history("quiet", "session:main", None, 200).await.unwrap().len(), 100);
    journal.shutdown().await.unwrap();
}

#[tokio::test]
async fn nothing_is_recorded_after_shutdown() {
    let scratch = Scratch::new();
    let Opened { journal, writer, .. } = Journal::open(scratch.path(), clock()).await.unwrap();
    journal.shutdown().await.unwrap();
    writer.await.unwrap();
    journal.record(&name("uid:1"), &name("session:main"), made(1));
    assert_eq!(journal.last_seq(), 0);
    assert!(matches!(journal.flush().await, Err(Error::Closed)));
    assert!(matches!(journal.shutdown().await, Err(Error::Closed)));
    assert!(Box::pin(journal.follow(None, None, 0)).next().await.is_none());
}

#[tokio::test]
async fn events_are_saved_when_every_handle_is_dropped() {
    let scratch = Scratch::new();
    let Opened { journal, writer, .. } = Journal::open(scratch.path(), clock()).await.unwrap();
    journal.record(&name("uid:1"), &name("session:main"), made(1));
    drop(journal);
    writer.await.unwrap();
    assert_eq!(everything(&scratch.open().await).await.len(), 1);
}

#[test]
fn long_texts_are_cut_and_say_so() {
    fn check(mut kind: EventKind, expect: impl Fn(&EventKind) -> bool) {
        kind.clip();
        assert!(kind.heap_bytes() <= MAX_TEXT_BYTES + 100, "{} bytes", kind.heap_bytes());
        assert!(expect(&kind));
    }
    let started = |code: &str| EventKind::CellStarted {
        cell: 1,
        job: "j".to_owned(),
        code: code.to_owned(),
        code_cut: false,
        client: "test".to_owned(),
    };
    check(started("x"), |kind| matches!(kind, EventKind::CellStarted { code_cut: false, .. }));
    check(started(&"é".repeat(40_000)), |kind| matches!(kind, EventKind::CellStarted { code_cut: true, .. }));
    let says_so = |kind: &EventKind| matches!(kind, EventKind::Output { text, .. } if text.ends_with("bytes cut from this event]"));
    check(printed(&"é".repeat(40_000)), says_so);
    check(printed("short"), |kind| !says_so(kind));
}

/// Masking makes a text shorter, so that what is cut off before it has to be counted.
#[test]
fn what_is_cut_off_unread_is_told_and_a_secret_across_the_cut_is_none() {
    let secret = format!("password = '{}'", "s3cret ".repeat(MAX_TEXT_BYTES));
    let mut kind = printed(&secret);
    kind.clip();
    let EventKind::Output { text, .. } = &kind else { panic!() };
    let cut = secret.len() - 2 * MAX_TEXT_BYTES;
    assert_eq!(*text, format!("password = '***masked***… [{cut} bytes cut from this event]"));
    let mut kind = EventKind::CellStarted {
        cell: 1,
        job: "j".to_owned(),
        code: secret,
        code_cut: false,
        client: "test".to_owned(),
    };
    kind.clip();
    assert!(matches!(&kind, EventKind::CellStarted { code_cut: true, code, .. } if code == "password = '***masked***"));
}

#[test]
fn an_event_is_one_flat_json_object() {
    let event = Event {
        seq: 7,
        at: "2026-01-02T03:04:05.678901Z".parse().unwrap(),
        owner: name("uid:1"),
        target: name("session:main"),
        kind: printed("hi\n"),
    };
    let json = r#"{"seq":7,"at":"2026-01-02T03:04:05.678901Z","owner":"uid:1","target":"session:main","kind":"output","cell":1,"stream":"stdout","text":"hi\n"}"#;
    assert_eq!(serde_json::to_string(&event).unwrap(), json);
    assert_eq!(serde_json::from_str::<Event>(json).unwrap(), event);
    assert_eq!(event.kind.name(), "output");
}

/// Only does something in the process that the next test starts and kills.
#[tokio::test]
async fn child_that_is_killed() {
    let Some(path) = std::env::var_os("PYLAIR_TEST_JOURNAL") else { return };
    let journal = Journal::open(Path::new(&path), clock()).await.unwrap().journal;
    let (owner, target) = (name("uid:1"), name("session:main"));
    for cell in 1.. {
        journal.record(&owner, &target, made(cell));
        if cell % 1000 == 0 {
            // Nobody asks for a flush: the writer comes by itself.
            while journal.shared.lock().unsaved().next().is_some() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let mut stderr = std::io::stderr();
            writeln!(stderr, "saved {cell}").unwrap();
        }
    }
}

#[tokio::test]
async fn a_killed_process_loses_only_what_was_not_saved_yet() {
    let scratch = Scratch::new();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::child_that_is_killed", "--nocapture"])
        .env("PYLAIR_TEST_JOURNAL", scratch.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let saved: u64 = lines
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("saved ")?.parse().ok())
        .nth(2)
        .expect("the child saves events");
    child.kill().unwrap();
    child.wait().unwrap();

    let journal = scratch.open().await;
    let events = everything(&journal).await;
    assert!(events.len() as u64 >= saved);
    assert_eq!(seqs(&events), (1..=events.len() as u64).collect::<Vec<_>>());
    // Numbers that the child may have given out are not used again.
    assert_eq!(journal.last_seq(), events.len() as u64 + MAX_UNSAVED_EVENTS);
    journal.shutdown().await.unwrap();
}
