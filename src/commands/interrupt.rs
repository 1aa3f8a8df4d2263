//! `pylair interrupt`: stops what runs in a target, from another shell than the one that started it.

use super::{Exit, Failure, Surroundings, client::Client, say, words::with_commands};
use crate::cli::InterruptArgs;
use pylair_text::plain::shown;
use pylair_web::api::{Origin, TargetBody};

pub fn interrupt(args: &InterruptArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let from = Origin { cwd: surroundings.cwd.clone(), env: Some(surroundings.env.clone()), client: None };
    let body =
        TargetBody { target: args.target.clone().filter(|target| !target.is_empty()), job: None, forget: false, from };
    let told: serde_json::Value = Client::start(surroundings)?.post("/api/interrupt", &body)?;
    for note in told["notes"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str) {
        say(&shown(&with_commands(note)))?;
    }
    let Some(job) = told["job"].as_str() else { return Ok(Exit::Ok) };
    if let Some(outcome) = told["outcome"].as_str() {
        say(&format!("{}: {}", shown(job), outcome.replace('_', " ")))?;
        return Ok(Exit::Ok);
    }
    Ok(Exit::Raised)
}
