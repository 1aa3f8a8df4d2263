//! Apps as targets: real programs that serve, visited through MCP, the command line and HTTP.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    AppProcess, Client, Home, PATIENCE, Terminal,
    terminal::{CTRL_D, TAB},
    text_of,
};

const SHOP: &str = "
import threading
class Order:
    def __init__(self, number): self.number = number
    @property
    def total(self):
        ran.append(self.number)
        return 7
class Shop:
    def __init__(self): self.orders = [Order(1), Order(2)]
    def count(self, more=0): return len(self.orders) + more
ran = []
shop = Shop()
gate = threading.Event()
pylair.register('shop', shop)
pylair.register('gate', gate)
pylair.register('ran', ran)
";

fn shop(home: &Home) -> AppProcess {
    AppProcess::start(home, SHOP, "app_id='shop'")
}

#[track_caller]
fn execute(client: &mut Client, target: &str, code: &str) -> Value {
    client.data("execute", &json!({"code": code, "target": target, "output": "json"}))
}

fn notes(report: &Value) -> String {
    report["notes"].to_string()
}

#[test]
fn an_app_is_run_in_changed_and_looked_into() {
    let home = Home::new();
    let app = shop(&home);
    let mut client = home.initialized_client();
    let name = format!("app:shop@{}", app.pid);
    let report = execute(
        &mut client,
        "app:shop",
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\nx = shop.count()\nx",
    );
    assert_eq!((&report["outcome"], &report["result"]), (&json!("ok"), &json!("2")), "{report}");
    assert_eq!((&report["stdout"], &report["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!((&report["session"], &report["cell"]), (&json!(name), &json!(1)));
    assert_eq!(execute(&mut client, "shop", "x + 1")["result"], "3", "a name that is no session's is an app's");
    let text = text_of(&client.call("execute", &json!({"code": "1 / 0", "target": name})));
    assert!(text.contains("ZeroDivisionError") && text.contains("raised"), "{text}");
    let called = client.call("call", &json!({"path": "shop.count", "kwargs": {"more": 40}, "target": "app:shop"}));
    assert!(text_of(&called).contains("42"), "{called}");
    client.call("set_variable", &json!({"path": "shop.orders[0].number", "value": 99, "target": "app:shop"}));
    let order = client.data("inspect", &json!({"path": "shop.orders[0]", "target": format!("pid:{}", app.pid)}));
    assert_eq!(order["attributes"][0]["preview"], "99", "{order}");
    assert_eq!(order["properties"], json!(["total"]));
    assert_eq!(execute(&mut client, "app:shop", "ran")["result"], "[]", "looking has run nothing");
    client.data("inspect", &json!({"path": "shop.orders[0]", "target": "app:shop", "run": true}));
    assert_eq!(execute(&mut client, "app:shop", "ran")["result"], "[99]");
    let names = client.data("inspect", &json!({"target": "app:shop"})).to_string();
    assert!(names.contains("\"shop\"") && names.contains("\"x\""), "{names}");
    let source = client.data("read_source", &json!({"path": "shop.count", "target": "app:shop"}));
    assert!(source["source"].as_str().is_some_and(|text| text.contains("len(self.orders)")), "{source}");
}

#[test]
fn apps_are_listed_and_told_apart() {
    let home = Home::new();
    let (one, two) = (shop(&home), shop(&home));
    let mut client = home.initialized_client();
    let listed = client.data("list_targets", &json!({"kind": "app"}));
    assert!(listed.get("sessions").is_none());
    let pids: Vec<_> = listed["apps"].as_array().expect("a list").iter().map(|app| app["pid"].as_i64()).collect();
    assert_eq!(pids, [Some(i64::from(one.pid)), Some(i64::from(two.pid))]);
    let app = &listed["apps"][0];
    assert_eq!(
        (&app["kind"], &app["id"], &app["state"], &app["readonly"]),
        (&json!("app"), &json!("shop"), &json!("idle"), &json!(false))
    );
    assert_eq!((&app["how"], &app["parent"]), (&json!("start"), &Value::Null));
    assert!(app["registered"].to_string().contains("\"shop\""), "{app}");
    let failure = client.failure("execute", &json!({"code": "1", "target": "shop"}));
    assert_eq!(failure["kind"], "ambiguous_app");
    let message = failure["message"].as_str().expect("text");
    assert!(message.contains(&format!("app:shop@{}", one.pid)) && message.contains(&two.pid.to_string()), "{message}");
    assert!(failure["hint"].as_str().is_some_and(|hint| hint.contains("app:shop@")), "{failure}");
    let target = format!("app:shop@{}", two.pid);
    assert_eq!(execute(&mut client, &target, "import os; os.getpid()")["result"], two.pid.to_string());
    let failure = client.failure("execute", &json!({"code": "1", "target": "app:web"}));
    assert_eq!(failure["kind"], "unknown_app");
    assert!(failure["hint"].as_str().is_some_and(|hint| hint.contains(&target)), "{failure}");
    let failure = client.failure("inspect", &json!({"target": "pid:1"}));
    assert_eq!(failure["kind"], "not_an_app");
    assert!(failure["hint"].as_str().is_some_and(|hint| hint.contains("attach(pid=1)")), "{failure}");
    let failure = client.failure("execute", &json!({"code": "1", "target": "sesion:main"}));
    assert_eq!(failure["kind"], "bad_argument");
}

#[test]
fn what_only_a_session_can_do_is_said_so() {
    let home = Home::new();
    let _app = shop(&home);
    let mut client = Client::start(home.command(&["mcp", "--tools", "all"]));
    client.initialize();
    for (tool, arguments) in [
        ("undo", json!({"target": "app:shop"})),
        ("branch_session", json!({"target": "shop"})),
        ("restart_session", json!({"target": "app:shop"})),
        ("save_session", json!({"target": "app:shop"})),
        ("install_packages", json!({"target": "app:shop", "packages": ["six"]})),
        ("get_history", json!({"target": "shop"})),
        ("export_session", json!({"target": "app:shop", "format": "py"})),
        ("list_files", json!({"target": "app:shop"})),
        ("read_file", json!({"target": "app:shop", "path": "x"})),
        ("write_file", json!({"target": "app:shop", "path": "x", "content": ""})),
        ("run_file", json!({"target": "app:shop", "path": "x.py"})),
    ] {
        let failure = client.failure(tool, &arguments);
        assert_eq!(failure["kind"], "sessions_only", "{tool}: {failure}");
        assert!(failure["message"].as_str().is_some_and(|message| message.starts_with(tool)), "{failure}");
    }
    assert_eq!(client.failure("close_session", &json!({"target": "app:shop"}))["kind"], "not_attached");
    let rollback = json!({"code": "1", "target": "app:shop", "on_timeout": "rollback"});
    assert_eq!(client.failure("execute", &rollback)["kind"], "bad_argument");
    assert_eq!(client.failure("read_logs", &json!({"target": "main"}))["kind"], "unknown_session");
    client.execute("1");
    let listed = client.data("list_targets", &json!({"kind": "session"}));
    let session = listed["sessions"][0]["name"].clone();
    assert_eq!(client.failure("read_logs", &json!({"target": session}))["kind"], "apps_only");
}

#[test]
fn a_call_that_outlives_its_time_goes_on_and_is_named() {
    let home = Home::new();
    let _app = shop(&home);
    let mut client = home.initialized_client();
    let wait = "print('waiting', flush=True)\ngate.wait()\nshop.late = 1";
    let report =
        client.data("execute", &json!({"code": wait, "target": "app:shop", "timeout_s": 0.2, "output": "json"}));
    assert_eq!(report["outcome"], "timed_out", "{report}");
    assert!(notes(&report).contains("still running in the app as call 1"), "{report}");
    let status = client.data("get_status", &json!({"target": "app:shop"}));
    assert_eq!(
        (&status["app"]["state"], &status["app"]["running"][0]["call"]),
        (&json!("busy"), &json!(1)),
        "{status}"
    );
    let running = client.data(
        "execute",
        &json!({"code": "gate.wait()\nprint('on')\n'done'", "target": "app:shop", "wait_s": 0, "output": "json"}),
    );
    assert_eq!(running["outcome"], "running", "{running}");
    let mut said = notes(&execute(&mut client, "app:shop", "gate.set()"));
    let ended = client.data("get_job", &json!({"job": running["job"], "output": "json"}));
    assert_eq!(
        (&ended["outcome"], &ended["stdout"], &ended["result"]),
        (&json!("ok"), &json!("on\n"), &json!("'done'"))
    );
    // It ends on a thread of its own, so it may take a moment.
    said.push_str(&notes(&ended));
    let deadline = std::time::Instant::now() + PATIENCE;
    while !said.contains("call 1, which had run out of its time, has ended") {
        assert!(std::time::Instant::now() < deadline, "{said}");
        said.push_str(&notes(&execute(&mut client, "app:shop", "1")));
    }
    assert_eq!(execute(&mut client, "app:shop", "shop.late")["result"], "1");
}

#[test]
fn a_process_that_dies_is_told_once_and_with_what_came_after() {
    let home = Home::new();
    let mut app = shop(&home);
    let mut client = home.initialized_client();
    let report = execute(&mut client, "app:shop", "print('last words', flush=True)\nimport os\nos._exit(3)");
    assert_eq!((&report["outcome"], &report["stdout"]), (&json!("died"), &json!("last words\n")), "{report}");
    let message = report["error"]["message"].as_str().expect("text");
    assert!(message.contains(&format!("process {}", app.pid)) && message.contains("exited with code 3"), "{message}");
    assert!(notes(&report).contains("no process of the app `shop` is running now"), "{report}");
    app.wait();

    let mut app = shop(&home);
    execute(
        &mut client,
        "app:shop",
        "import os, threading\nthreading.Thread(target=lambda: (gate.wait(), os._exit(7))).start()",
    );
    execute(&mut client, "app:shop", "threading.Timer(0.2, gate.set).start()");
    app.wait();
    let failure = client.failure("inspect", &json!({"target": "app:shop"}));
    let message = failure["message"].as_str().expect("text");
    assert!(message.contains("s after call 2") && message.contains("exited with code 7"), "{message}");
    let next = shop(&home);
    let report = execute(&mut client, "app:shop", "1");
    let expected = format!("`shop` is now process {}", next.pid);
    assert!(notes(&report).contains(&expected) && notes(&report).contains("after call 2"), "{report}");
    assert!(!notes(&execute(&mut client, "app:shop", "1")).contains("is now process"));
    assert_eq!(client.data("list_targets", &json!({"kind": "app"}))["apps"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_probe_that_leaves_is_no_death() {
    let home = Home::new();
    let app = shop(&home);
    let mut client = home.initialized_client();
    let failure = client
        .failure("execute", &json!({"code": "import pylair, time\npylair.stop()\ngate.wait()", "target": "app:shop"}));
    assert_eq!(failure["kind"], "connection_lost", "{failure}");
    assert!(failure["message"].as_str().is_some_and(|message| message.contains("its process goes on")), "{failure}");
    assert_eq!(client.failure("execute", &json!({"code": "1", "target": "app:shop"}))["kind"], "unknown_app");
    assert!(crate::support::Watched::new(app.pid).is_alive());
}

#[test]
fn a_readonly_app_is_only_looked_at() {
    let home = Home::new();
    let _app = AppProcess::start(&home, SHOP, "app_id='shop', readonly=True");
    let mut client = home.initialized_client();
    assert_eq!(client.data("list_targets", &json!({}))["apps"][0]["readonly"], true);
    assert_eq!(client.failure("execute", &json!({"code": "1", "target": "app:shop"}))["kind"], "readonly");
    let run = json!({"path": "shop", "target": "app:shop", "run": true});
    assert_eq!(client.failure("inspect", &run)["kind"], "readonly");
    assert_eq!(client.data("inspect", &json!({"path": "shop.orders", "target": "app:shop"}))["length"], 2);
    let mut looking = Client::start(home.command(&["mcp", "--readonly"]));
    looking.initialize();
    assert_eq!(looking.data("inspect", &json!({"path": "shop.orders", "target": "app:shop"}))["length"], 2);
    assert_eq!(looking.failure("inspect", &run)["kind"], "bad_argument");
}

#[test]
fn logs_are_read_in_pages_and_waited_for() {
    let home = Home::new();
    let setup = format!(
        "{SHOP}\nimport logging\nlog = logging.getLogger('shop.db')\nlog.setLevel('INFO')\npylair.register('log', log)"
    );
    let _app = AppProcess::start(&home, &setup, "app_id='shop'");
    let mut client = home.initialized_client();
    execute(&mut client, "app:shop", "for n in range(5): log.info('number %d', n)");
    let page = client.data("read_logs", &json!({"target": "app:shop", "limit": 2, "logger": "shop"}));
    let messages = |page: &Value| -> Vec<String> {
        let entries = page["entries"].as_array().expect("a list").iter();
        entries.map(|entry| entry["message"].as_str().expect("text").to_owned()).collect()
    };
    assert_eq!(messages(&page), ["number 3", "number 4"]);
    assert_eq!(page["has_older"], true);
    let after = json!({"target": "app:shop", "after_id": page["last_id"], "wait_s": 30, "logger": "shop"});
    let waiting = client.begin("read_logs", &after);
    execute(&mut client, "app:shop", "log.warning('late')");
    let followed = client.answer(waiting);
    assert_eq!(messages(&followed["result"]["structuredContent"]), ["late"], "{followed}");
    let text = text_of(&followed["result"]);
    assert!(text.contains("WARNING shop.db: late"), "{text}");
}

#[test]
fn a_picture_is_shown_or_said_to_be_missing() {
    // The smallest PNG there is: one pixel.
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let home = Home::new();
    let setup = format!("import base64\npylair.set_screenshot_fn(lambda: base64.b64decode('{png}'))");
    let _app = AppProcess::start(&home, &setup, "app_id='seen'");
    let _other = AppProcess::start(&home, "", "app_id='unseen'");
    let mut client = home.initialized_client();
    let shot = client.call("screenshot", &json!({"target": "app:seen"}));
    let image = &shot["content"][0];
    assert_eq!(
        (&image["type"], &image["mimeType"], &image["data"]),
        (&json!("image"), &json!("image/png"), &json!(png)),
        "{shot}"
    );
    assert_eq!(client.failure("screenshot", &json!({"target": "app:unseen"}))["kind"], "no_screenshot");
    // Whoever only looks is shown it too, and runs nothing for it.
    let mut looking = Client::start(home.command(&["mcp", "--readonly"]));
    looking.initialize();
    let shot = looking.call("screenshot", &json!({"target": "app:seen"}));
    assert_eq!(shot["content"][0]["data"], png, "{shot}");
    let refused = looking.failure("screenshot", &json!({"target": "app:seen", "code": "1"}));
    assert_eq!(refused["kind"], "readonly", "{refused}");
}

#[test]
fn whoever_only_looks_follows_a_job_and_does_not_stop_it() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let running = client.data("execute", &json!({"code": crate::support::WAIT_FOREVER, "wait_s": 0, "output": "json"}));
    let mut looking = Client::start(home.command(&["mcp", "--readonly"]));
    looking.initialize();
    let job = &running["job"];
    let seen = looking.data("get_job", &json!({"job": job, "wait_s": 0, "output": "json"}));
    assert_eq!(seen["outcome"], "running", "{seen}");
    assert_eq!(looking.failure("get_job", &json!({"job": job, "cancel": true}))["kind"], "readonly");
    let taken_back = looking.begin("get_job", &json!({"job": job, "wait_s": 600}));
    looking.notify("notifications/cancelled", &json!({"requestId": taken_back}));
    assert_eq!(looking.data("get_job", &json!({"job": job, "wait_s": 0, "output": "json"}))["outcome"], "running");
    client.data("interrupt", &json!({"target": running["session"]}));
}

#[test]
fn an_interrupt_stops_a_call_and_nothing_else() {
    let home = Home::new();
    let _app = shop(&home);
    let mut client = home.initialized_client();
    let loops = "print('looping', flush=True)\nwhile True: pass";
    let job = client.data("execute", &json!({"code": loops, "target": "app:shop", "wait_s": 0.2, "output": "json"}));
    assert_eq!(job["outcome"], "running", "{job}");
    let stopped = client.data("interrupt", &json!({"target": "app:shop"}));
    assert_eq!((&stopped["outcome"], &stopped["job"]), (&json!("interrupted"), &job["job"]), "{stopped}");
    assert_eq!(client.data("get_job", &json!({"job": job["job"], "output": "json"}))["outcome"], "interrupted");
    let job = client.data("execute", &json!({"code": loops, "target": "app:shop", "wait_s": 0.2, "output": "json"}));
    let stopped = client.data("get_job", &json!({"job": job["job"], "cancel": true, "output": "json"}));
    assert_eq!(stopped["outcome"], "interrupted", "{stopped}");
    assert_eq!(client.data("interrupt", &json!({"target": "app:shop"}))["job"], Value::Null);
    assert_eq!(execute(&mut client, "app:shop", "shop.count()")["result"], "2");
}

#[test]
fn a_stopped_process_is_shown_as_not_answering_and_is_not_dropped() {
    let home = Home::new();
    let app = shop(&home);
    let mut client = home.initialized_client();
    app.signal(Signal::STOP);
    let listed = client.data("list_targets", &json!({}));
    assert_eq!(listed["apps"][0]["state"], "not_answering", "{listed}");
    let failure = client.failure("execute", &json!({"code": "shop.ran = 1", "target": "app:shop"}));
    assert_eq!(failure["kind"], "not_answering");
    assert!(failure["message"].as_str().is_some_and(|message| message.contains("stopped")), "{failure}");
    let shown = home.run(&["apps"]).stdout;
    assert!(shown.contains("shop") && shown.contains("not answering (stopped in a debugger?)"), "{shown}");
    app.signal(Signal::CONT);
    assert_eq!(execute(&mut client, "app:shop", "hasattr(shop, 'ran')")["result"], "False", "nothing was sent");
    // With a connection that was open before, what was sent is done once it goes on.
    app.signal(Signal::STOP);
    let job =
        client.data("execute", &json!({"code": "shop.ran = 1", "target": "app:shop", "wait_s": 0.2, "output": "json"}));
    assert_eq!(job["outcome"], "running");
    assert!(notes(&job).contains("stopped"), "{job}");
    app.signal(Signal::CONT);
    assert_eq!(client.data("get_job", &json!({"job": job["job"], "output": "json"}))["outcome"], "ok");
}

#[test]
fn many_calls_at_once_each_get_their_own_answer() {
    let home = Home::new();
    let _app = shop(&home);
    let mut client = home.initialized_client();
    let call = |number: usize| json!({"code": format!("print({number})\n{number} * 2"), "target": "app:shop", "output": "json"});
    let ids: Vec<_> = (0..64).map(|number| client.begin("execute", &call(number))).collect();
    let mut done = 0;
    for (number, id) in ids.into_iter().enumerate() {
        let answer = client.answer(id);
        let report = &answer["result"]["structuredContent"];
        if answer["result"]["isError"] == true {
            assert_eq!(report["kind"], "busy", "{answer}");
            continue;
        }
        done += 1;
        assert_eq!(report["result"], (number * 2).to_string(), "{report}");
        assert_eq!(report["stdout"], format!("{number}\n"), "{report}");
    }
    assert!(done >= 16, "only {done} of 64 were run");
}

#[test]
fn the_command_line_and_http_reach_apps_too() {
    let home = Home::new().set("TERM", "xterm").set("NO_COLOR", "1");
    let app = shop(&home);
    let ran = home.run(&["exec", "-t", "app:shop", "print('hi'); shop.count()"]);
    assert_eq!(ran.stdout, "hi\n2\n", "{ran:?}");
    let raised = home.run(&["exec", "-t", &format!("app:shop@{}", app.pid), "1 / 0"]);
    assert_eq!(raised.status.code(), Some(1));
    assert!(raised.stderr.contains("ZeroDivisionError"), "{raised:?}");
    let unknown = home.run(&["exec", "-t", "app:web", "1"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(unknown.stderr.contains("there is no app `web`") && unknown.stderr.contains("app:shop@"), "{unknown:?}");
    let listed: Value = serde_json::from_str(&home.run(&["apps", "--json"]).stdout).expect("JSON");
    assert_eq!(listed["apps"][0]["pid"], app.pid);
    let mut terminal = Terminal::start(home.command(&["repl", "-t", "app:shop"]));
    let greeting = terminal.read_until("]: ");
    assert!(greeting.contains(&format!("App app:shop@{}", app.pid)), "{greeting}");
    terminal.enter("found = shop.count(40)");
    terminal.read_until("]: ");
    terminal.press("fou");
    terminal.press(TAB);
    terminal.read_until("found");
    terminal.enter("");
    let shown = terminal.read_until("In [");
    assert!(shown.contains("42"), "{shown}");
    terminal.press(CTRL_D);
    assert!(terminal.wait().success());
    assert!(home.run(&["stop"]).status.success());
    let server = home.serve();
    let response = server.request("GET", "/api/apps", "").send();
    assert_eq!(response.status, 200, "{response:?}");
    assert!(response.body.contains(&format!("\"target\":\"app:shop@{}\"", app.pid)), "{response:?}");
    let response = server.request("POST", "/api/execute", r#"{"code":"shop.count()","target":"app:shop"}"#).send();
    assert!(response.body.contains("\"result\":\"2\""), "{response:?}");
    assert_eq!(server.request("POST", "/api/execute", r#"{"code":"1","target":"app:web"}"#).send().status, 404);
}

#[test]
fn stacks_of_an_app_come_with_its_tasks() {
    let home = Home::new();
    let setup = "
import asyncio, threading
async def baking(): await asyncio.sleep(1000)
async def oven():
    task = asyncio.create_task(baking(), name='bread')
    started.set()
    await task
started = threading.Event()
threading.Thread(target=lambda: asyncio.run(oven()), name='kitchen', daemon=True).start()
started.wait()
";
    let app = AppProcess::start(&home, setup, "app_id='bakery'");
    let mut client = home.initialized_client();
    let stacks = client.data("dump_stacks", &json!({"target": "app:bakery"}));
    assert_eq!(stacks["pid"], app.pid, "{stacks}");
    assert!(stacks["threads"].to_string().contains("program.py"), "{stacks}");
    let tasks = stacks["tasks"].as_array().expect("a list");
    assert!(tasks.iter().any(|task| task["name"] == "bread"), "{stacks}");
    let same = client.data("dump_stacks", &json!({"target": format!("pid:{}", app.pid)}));
    assert_eq!(same["pid"], app.pid);
}

#[test]
fn closing_an_app_that_was_attached_to_takes_the_probe_out() {
    let home = Home::new();
    let app = AppProcess::plain(&home, "stock = 5");
    let mut client = home.initialized_client();
    let attached = client.call("attach", &json!({"pid": app.pid}));
    if attached["isError"] == true {
        return crate::support::skip("closing_an_app_that_was_attached_to", &text_of(&attached));
    }
    let target = format!("pid:{}", app.pid);
    assert_eq!(execute(&mut client, &target, "main.stock")["result"], "5");
    let closed = client.data("close_session", &json!({"target": target}));
    assert!(closed["closed"].as_str().is_some_and(|name| name.ends_with(&format!("@{}", app.pid))), "{closed}");
    assert_eq!(client.failure("execute", &json!({"code": "1", "target": target}))["kind"], "not_an_app");
    assert!(crate::support::Watched::new(app.pid).is_alive());
}
