//! Looking into sessions: `inspect`, `read_source` and `complete_code` through the core, between cells and in the middle of one.

use pylair_core::session::Error;
use pylair_probe::wire::{Inspect, Op};
use serde_json::Value;

use crate::support::{TestSession, on_each_python, on_newest_python};

pub fn inspect(path: Option<&str>) -> Op {
    Op::Inspect(Inspect {
        path: path.map(str::to_owned),
        depth: 1,
        max_items: 20,
        max_chars: 2000,
        full: false,
        offset: 0,
        run: false,
    })
}

pub async fn look(session: &TestSession, op: Op) -> Value {
    session.session.look(op, Vec::new()).await.expect("it can be looked at")
}

async fn refused(session: &TestSession, op: Op) -> Error {
    session.session.look::<Value>(op, Vec::new()).await.expect_err("it is refused")
}

#[test]
fn variables_and_values_are_shown_without_running_code() {
    on_each_python(async |core| {
        let session = core.session().await;
        session
            .value(
                "class Account:\n    'Money.'\n    def __init__(self): self.sum = 3\n    @property\n    def risky(self):\n        \
                 global ran\n        ran = True\n        return 1\nran = False\na = Account()\nrows = [{'k': n} for n in range(100)]",
            )
            .await;
        let variables = look(&session, inspect(None)).await;
        let names: Vec<_> =
            variables["variables"].as_array().expect("a list").iter().map(|v| v["name"].clone()).collect();
        assert_eq!(names, ["ran", "a", "rows", "Account"]);
        let account = look(&session, inspect(Some("a"))).await;
        assert_eq!(account["properties"], serde_json::json!(["risky"]));
        assert_eq!(account["attributes"][0]["name"], "sum");
        let rows = look(&session, inspect(Some("rows"))).await;
        assert_eq!((rows["length"].as_u64(), rows["more"].as_bool()), (Some(100), Some(true)));
        assert_eq!(look(&session, inspect(Some("rows[-1]['k']"))).await["preview"], "99");
        assert_eq!(session.value("ran").await, "False");
    });
}

#[test]
fn a_wrong_path_is_one_clear_error() {
    on_newest_python(async |core| {
        let session = core.session().await;
        session.value("table = {'a': 1}").await;
        let error = refused(&session, inspect(Some("tabel"))).await;
        assert_eq!(error.kind(), "no_such_name");
        assert!(error.hint().contains("table"), "{}", error.hint());
        assert_eq!(refused(&session, inspect(Some("table['b']"))).await.kind(), "no_such_item");
        assert_eq!(refused(&session, inspect(Some("print(1)"))).await.kind(), "bad_path");
        assert_eq!(session.value("table").await, "{'a': 1}");
    });
}

#[test]
fn a_repr_that_hangs_or_kills_costs_nothing() {
    on_each_python(async |core| {
        let session = core.session().await;
        session
            .value(
                "import os, time\nclass Hangs:\n    def __repr__(self): time.sleep(1000)\nclass Kills:\n    \
                 def __repr__(self): os._exit(3)\nclass Changes:\n    def __repr__(self):\n        x.append(1)\n        return 'changed'\n\
                 x = []\nhangs, kills, changes = Hangs(), Kills(), Changes()",
            )
            .await;
        let pid = session.pid();
        for path in ["hangs", "kills"] {
            assert!(look(&session, inspect(Some(path))).await["preview_error"].is_string(), "{path}");
        }
        assert_eq!(look(&session, inspect(Some("changes"))).await["preview"], "changed");
        assert_eq!(session.value("x").await, "[]");
        assert_eq!(session.pid(), pid);
    });
}

#[test]
fn a_running_cell_is_looked_into_and_goes_on() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("total = 0\ngo_on = True").await;
        let job = session
            .start("import time\nprint('running', flush=True)\nwhile go_on:\n    total += 1\n    time.sleep(0.001)")
            .await;
        job.capture.readable(pylair_output::Cursor::default()).await;
        let first: u64 =
            look(&session, inspect(Some("total"))).await["preview"].as_str().expect("text").parse().expect("a number");
        let variables = look(&session, inspect(None)).await;
        assert!(variables["total"].as_u64() >= Some(2), "{variables}");
        loop {
            let now: u64 = look(&session, inspect(Some("total"))).await["preview"]
                .as_str()
                .expect("text")
                .parse()
                .expect("a number");
            if now > first {
                break;
            }
        }
        let busy =
            session.session.ask(Op::Complete { cursor: 1 }, b"t".to_vec(), std::time::Duration::from_secs(5)).await;
        assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
        session.session.interrupt(Some(&job.id)).await.expect("it stops");
    });
}

#[test]
fn code_in_c_is_said_to_be_out_of_reach() {
    on_newest_python(async |core| {
        let session = core.session().await;
        let job = session.start("print('in C', flush=True)\nsum(range(10**15))").await;
        job.capture.readable(pylair_output::Cursor::default()).await;
        // It may not have come to the long call yet.
        let refused = loop {
            if let Err(error) = session.session.look::<Value>(inspect(None), Vec::new()).await {
                break error;
            }
        };
        assert_eq!(refused.kind(), "not_now");
        session.session.interrupt(Some(&job.id)).await.expect("it stops");
    });
}

#[test]
fn source_of_what_cells_defined_is_found() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("def f(a):\n    return a + 1").await;
        session.value("class Shape:\n    def area(self):\n        return 0").await;
        let source = look(&session, Op::Source { path: "f".to_owned() }).await;
        assert_eq!(source["source"].as_str().map(str::trim_end), Some("def f(a):\n    return a + 1"));
        let source = look(&session, Op::Source { path: "Shape".to_owned() }).await;
        assert!(source["source"].as_str().is_some_and(|text| text.starts_with("class Shape:")), "{source}");
        assert_eq!(refused(&session, Op::Source { path: "len".to_owned() }).await.kind(), "no_source");
    });
}

#[test]
fn completion_knows_the_live_session() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("table = {'alpha': 1, 'beta': 2}\ndef draw(colour=None, width=1): pass\nword = 'text'").await;
        for (code, wanted) in [
            ("tab", "table"),
            ("table['al", "alpha"),
            ("draw(col", "colour="),
            ("word.upp", "upper"),
            ("import js", "json"),
            ("prin", "print"),
        ] {
            let cursor = code.chars().count();
            let answer = session
                .session
                .look::<Value>(Op::Complete { cursor }, code.as_bytes().to_vec())
                .await
                .expect("an answer");
            let found = answer["matches"]
                .as_array()
                .expect("a list")
                .iter()
                .any(|m| m["text"].as_str().is_some_and(|t| t.contains(wanted)));
            assert!(found, "{code}: {answer}");
        }
    });
}
