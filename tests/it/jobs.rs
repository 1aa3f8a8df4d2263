//! Two clocks: a cell that outlives the wait is a job, which anybody of the same owner can go on with.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Client, Home, text_of};

/// Prints, and goes on when somebody opens the pipe.
const WAITS_FOR_GO: &str = "import os\nos.path.exists('go') or os.mkfifo('go')\nprint('first', flush=True)\nopen('go').read()\nprint('second')\n'the value'";

fn begin(client: &mut Client) -> Value {
    client.data("execute", &json!({"code": WAITS_FOR_GO, "wait_s": 0, "output": "json"}))
}

#[test]
fn a_cell_that_outlives_the_wait_goes_on_as_a_job() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.execute("import os\nos.mkfifo('go')");
    let report = begin(&mut client);
    assert_eq!((&report["outcome"], &report["result"]), (&json!("running"), &Value::Null));
    let job = report["job"].as_str().expect("a job").to_owned();
    let text = text_of(&client.call("get_job", &json!({"job": job, "wait_s": 0.01})));
    assert!(text.contains(&format!("Still running as job {job}. Go on with get_job(job=\"{job}\")")), "{text}");
    fs::write(home.work().join("go"), "").expect("the cell reads");
    for _ in 0..2 {
        let report = client.data("get_job", &json!({"job": job, "output": "json"}));
        let shown = json!([report["outcome"], report["stdout"], report["result"]]);
        assert_eq!(shown, json!(["ok", "first\nsecond\n", "'the value'"]), "the answer stays");
    }
}

#[test]
fn a_second_caller_is_told_which_job_is_running() {
    let home = Home::new();
    let (mut one, mut other) = (home.initialized_client(), home.initialized_client());
    let report = begin(&mut one);
    let job = report["job"].as_str().expect("a job").to_owned();
    let failure = other.failure("execute", &json!({"code": "1"}));
    assert_eq!(failure["kind"], "busy");
    let told = failure.to_string();
    assert!(told.contains(&job) && told.contains("has been running cell 1"), "{told}");
    let stopped = other.data("get_job", &json!({"job": job, "cancel": true, "output": "json"}));
    assert_eq!(stopped["outcome"], "interrupted");
    assert_eq!(one.data("get_job", &json!({"job": job, "output": "json"}))["outcome"], "interrupted");
}

#[test]
fn an_unknown_job_is_an_error() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let failure = client.failure("get_job", &json!({"job": "nothing-1"}));
    assert_eq!((&failure["kind"], &failure["message"]), (&json!("unknown_job"), &json!("there is no job `nothing-1`")));
}
