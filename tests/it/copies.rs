//! Copies in which code runs without becoming the session: whatever is tried in them, the original and its data are as they were. What a
//! program can have open is tried one by one in `probe/tests/test_copies.py`; here it is the built binary, databases and sandboxes.

use std::{
    fs,
    path::Path,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    look::{inspect, look},
    sealed::open_sealed,
    support::{Client, Home, PATIENCE, POSTGRES, Watched, on_newest_python, pytest_python, skip},
};

const WHY: &str = "this is a frozen copy of the failed test";
const WHY_THROWN: &str = "this is a copy of the session that is thrown away";

/// A run of pytest that waits in the teardown of a failed test until it may go on, and a client that questions the copy.
struct Waiting {
    home: Home,
    client: Client,
    run: Child,
    target: String,
}

impl Waiting {
    /// The test fails after `begin`; when it may go on it does `go_on`, with the same names.
    fn start(test: &str, begin: &str, go_on: &str) -> Option<Self> {
        let Some(python) = pytest_python() else {
            skip(test, "PYLAIR_TEST_PYTEST is not set, and the newest Python has no pytest");
            return None;
        };
        let home = Home::with_python(&python);
        let indented = |text: &str| text.lines().flat_map(|line| ["    ", line, "\n"]).collect::<String>();
        let source = format!(
            "import os, time\nimport pytest\n@pytest.fixture\ndef world():\n{}    yield dict(locals())\n    \
             until = time.monotonic() + {}\n    while not os.path.exists('go'):\n        \
             assert time.monotonic() < until\n        time.sleep(0.01)\n{}\n\
             def test_it(world):\n    globals().update(world)\n    assert not world\n",
            indented(begin),
            PATIENCE.as_secs(),
            indented(go_on),
        );
        fs::write(home.work().join("test_it.py"), source).expect("the home is writable");
        let mut client = Client::start(home.command(&["mcp", "--tools", "all"]));
        client.initialize();
        // A daemon that is there from the beginning lets failures be frozen.
        client.call("list_targets", &json!({}));
        let mut command = home.command(&["test", "-q", "-p", "no:cacheprovider", "--tb=short"]);
        let run = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let until = Instant::now() + PATIENCE;
        let target = loop {
            let listed = client.data("list_targets", &json!({"kind": "failure"}));
            if let Some(target) = listed["failures"][0]["target"].as_str() {
                break target.to_owned();
            }
            assert!(Instant::now() < until, "no copy is made: {listed}");
            std::thread::sleep(Duration::from_millis(20));
        };
        Some(Self { home, client, run, target })
    }

    fn execute(&mut self, code: &str) -> Value {
        self.client.data("execute", &json!({"code": code, "target": self.target, "output": "json"}))
    }

    #[track_caller]
    fn answers(&mut self, code: &str, expected: &str) {
        let report = self.execute(code);
        assert_eq!(report["result"], expected, "{code}: {report}");
    }

    #[track_caller]
    fn refuses(&mut self, code: &str) {
        let report = self.execute(code);
        assert_eq!(report["outcome"], "raised", "{code}: {report}");
        assert!(report["notes"].to_string().contains(WHY), "{code}: {report}");
    }

    /// Lets the original go on, which must work.
    fn finish(self) -> Home {
        fs::write(self.home.work().join("go"), "").expect("the home is writable");
        let ended = self.run.wait_with_output().expect("it ends");
        let told = String::from_utf8_lossy(&ended.stdout);
        assert!(told.contains("1 failed") && !told.contains("error"), "{told}");
        drop(self.client);
        self.home
    }
}

/// Everything in a directory with its contents, but for the index of a log, in which readers leave marks, and what pytest writes.
fn contents(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found: Vec<_> = fs::read_dir(directory)
        .expect("it is there")
        .flatten()
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
        .filter(|(name, path)| path.is_file() && !name.ends_with("-shm"))
        .map(|(name, path)| (name, fs::read(path).expect("it can be read")))
        .collect();
    found.sort();
    found
}

#[test]
fn a_database_is_as_it_was_whatever_is_tried_in_a_frozen_failure() {
    let begin = "import sqlite3\ncon = sqlite3.connect('dev.db', isolation_level=None)\n\
                 con.execute('create table item(a)')\ncon.execute('insert into item values(7)')\n\
                 wal = sqlite3.connect('wal.db', isolation_level=None, timeout=0.2)\nwal.execute('pragma journal_mode=wal')\n\
                 wal.execute('create table item(a)')\nwal.execute('insert into item values(8)')";
    let go_on = "con.execute('insert into item values(9)')\nwal.execute('insert into item values(9)')\n\
                 assert con.execute('select count(*) from item').fetchone() == (2,)\n\
                 assert wal.execute('select count(*) from item').fetchone() == (2,)";
    let test = "a_database_is_as_it_was_whatever_is_tried_in_a_frozen_failure";
    let Some(mut waiting) = Waiting::start(test, begin, go_on) else { return };
    let work = waiting.home.work();
    let before = contents(&work);
    waiting.answers(
        "con.execute('select a from item').fetchall(), wal.execute('select a from item').fetchall()",
        "([(7,)], [(8,)])",
    );
    for connection in ["con", "wal", "sqlite3.connect('dev.db')"] {
        for sql in ["create table zz(a)", "insert into item values(1)", "drop table item", "vacuum"] {
            waiting.refuses(&format!("{connection}.executescript('{sql}')"));
            assert_eq!(contents(&work), before, "{connection}: {sql}");
        }
    }
    waiting.answers("con.execute('begin'); con.execute('select a from item').fetchone()", "(7,)");
    waiting.answers("import tempfile; open(tempfile.mkdtemp() + '/mine', 'w').write('mine')", "4");
    assert_eq!(contents(&work), before);
    let home = waiting.finish();
    let copies = home.places().runtime.join("failures");
    let left = || fs::read_dir(&copies).expect("it is there").count();
    assert_ne!(left(), 0, "the copy is there");
    assert!(home.run(&["stop"]).status.success());
    assert_eq!(left(), 0, "nothing is left of it, nor of its temporary files");
}

/// Enough of PostgreSQL's protocol for one connection that needs no password.
const CLIENT: &str = "import socket, struct
class Connection:
    def __init__(self, path, database):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        words = b'user\\0pylair\\0database\\0' + database.encode() + b'\\0\\0'
        self.socket.sendall(struct.pack('!ii', len(words) + 8, 196608) + words)
        self.answer()
    def query(self, sql):
        words = sql.encode() + b'\\0'
        self.socket.sendall(b'Q' + struct.pack('!i', len(words) + 4) + words)
        return self.answer()
    def read(self, count):
        data = b''
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part: raise OSError(32, 'server closed the connection')
            data += part
        return data
    def answer(self):
        rows = []
        while True:
            kind, length = struct.unpack('!ci', self.read(5))
            body = self.read(length - 4)
            if kind == b'E': raise RuntimeError(body)
            if kind == b'D': rows.append(body[6:].decode())
            if kind == b'Z': return rows
";

#[test]
fn a_frozen_failure_has_no_connection_to_postgresql_and_makes_none() {
    let test = "a_frozen_failure_has_no_connection_to_postgresql_and_makes_none";
    let cluster = match &*POSTGRES {
        Ok(cluster) => cluster,
        Err(reason) => return skip(test, reason),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it can be made");
    let address = runtime.block_on(cluster.database());
    let (database, directory) = address
        .strip_prefix("postgres://pylair@localhost/")
        .and_then(|rest| rest.split_once("?host="))
        .expect("the form of addresses here");
    let begin = format!(
        "{CLIENT}path = '{directory}/.s.PGSQL.5432'\ndatabase = '{database}'\nconnection = Connection(path, database)\n\
         connection.query('create table item(a int)')\nconnection.query('begin')\n\
         connection.query('insert into item values(7)')"
    );
    let go_on = "connection.query('insert into item values(8)')\nconnection.query('commit')\n\
                 assert Connection(path, database).query('select a from item order by a') == ['7', '8']";
    let Some(mut waiting) = Waiting::start(test, &begin, go_on) else { return };
    for code in [
        "connection.query('select a from item')",
        "connection.query('commit')",
        "connection.query('rollback')",
        "Connection(path, database).query('drop table item')",
    ] {
        waiting.refuses(code);
    }
    waiting.answers("connection.socket.close() or 1", "1");
    waiting.finish();
}

#[test]
fn programs_that_a_frozen_failure_started_end_with_it() {
    let test = "programs_that_a_frozen_failure_started_end_with_it";
    let Some(mut waiting) = Waiting::start(test, "import subprocess", "") else { return };
    let mut started = |options: &str| {
        let code = format!("subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL{options}).pid");
        let report = waiting.execute(&code);
        let pid = report["result"].as_str().and_then(|pid| pid.parse().ok());
        Watched::new(pid.unwrap_or_else(|| panic!("{report}")))
    };
    let programs = [started(""), started(", start_new_session=True"), started(", preexec_fn=os.setpgrp")];
    assert!(programs.iter().all(Watched::is_alive), "a call leaves them running");
    let target = waiting.target.clone();
    waiting.client.call("close_session", &json!({"target": target}));
    for program in &programs {
        program.assert_ends();
    }
    waiting.finish();
}

#[test]
fn a_sandboxed_session_has_the_same_walls_around_its_throw_aways() {
    on_newest_python(async |core| {
        let test = "a_sandboxed_session_has_the_same_walls_around_its_throw_aways";
        let Some(session) = open_sealed(core, test).await else { return };
        session
            .value(
                "import os, sqlite3, tempfile\ncon = sqlite3.connect('/workspace/dev.db', isolation_level=None)\n\
                 con.execute('create table item(a)'); con.execute('insert into item values(7)')\n\
                 class Reads:\n    def __repr__(self): return str(con.execute('select a from item').fetchall())\n\
                 class Writes:\n    def __repr__(self): return str(con.execute('drop table item'))\n\
                 class Kept:\n    def __repr__(self): return str(open(tempfile.mkdtemp() + '/x', 'w').write('kept'))\n\
                 reads, writes, kept = Reads(), Writes(), Kept()\n\
                 before = os.listdir('/tmp')",
            )
            .await;
        for (name, preview, error) in
            [("reads", "[(7,)]", None), ("writes", "<Writes object>", Some(WHY_THROWN)), ("kept", "4", None)]
        {
            let found = look(&session, inspect(Some(name))).await;
            assert_eq!(found["preview"], preview, "{found}");
            let told = found["preview_error"].as_str().unwrap_or_default();
            assert!(error.map_or(told.is_empty(), |error| told.contains(error)), "{found}");
        }
        // The interpreter itself may be below `/tmp`.
        let left = session.value("con.execute('select a from item').fetchall(), os.listdir('/tmp') == before").await;
        assert_eq!(left, "([(7,)], True)", "its temporary files are gone with it");
    });
}
