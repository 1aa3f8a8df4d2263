//! `pylair apps`: the processes that can be visited.

use super::{Exit, Failure, Surroundings, client::Client, say, table};
use crate::cli::JsonArgs;
use pylair_text::plain::shown;

pub fn apps(args: &JsonArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let answer: serde_json::Value = Client::start(surroundings)?.get("/api/apps")?;
    if args.json {
        say(&answer.to_string())?;
        return Ok(Exit::Ok);
    }
    let apps = answer["apps"].as_array().cloned().unwrap_or_default();
    if apps.is_empty() {
        say("no app is running; `pylair wrap -- CMD` starts one, `pylair attach PID` makes one of a running Python")?;
        return Ok(Exit::Ok);
    }
    let header = ["ID", "PID", "STATE", "PYTHON", "HOW", "BELOW", "DIRECTORY", "COMMAND"].map(str::to_owned).to_vec();
    let mut rows = vec![header];
    for app in &apps {
        let text = |key: &str| match &app[key] {
            serde_json::Value::String(text) if !text.is_empty() => shown(text),
            serde_json::Value::Number(number) => number.to_string(),
            _ => "-".to_owned(),
        };
        let mut state = match &*text("state") {
            "not_answering" => "not answering (stopped in a debugger?)".to_owned(),
            state => state.replace('_', " "),
        };
        if app["readonly"] == true {
            state.push_str(", read-only");
        }
        let words = app["argv"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str);
        let command = shown(&words.collect::<Vec<_>>().join(" ")).chars().take(80).collect();
        rows.push(vec![
            text("id"),
            text("pid"),
            state,
            text("python"),
            text("how"),
            text("parent"),
            text("cwd"),
            command,
        ]);
    }
    table(&rows)?;
    Ok(Exit::Ok)
}
