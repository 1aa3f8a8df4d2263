//! `pylair attach`: a probe in a process that was never prepared. Needs no daemon: this process attaches, and daemons find the app in the
//! registry.

use super::{Exit, Failure, Surroundings, say};
use crate::cli::AttachArgs;
use pylair_attach::{self as attach, Attached, Options, Way, registry::By};
use pylair_text::plain::shown;

impl From<attach::Error> for Failure {
    fn from(error: attach::Error) -> Self {
        Self::new(error.message(), error.hint())
    }
}

pub fn attach(args: &AttachArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    surroundings.places.create()?;
    let runtime = surroundings.places.runtime.clone();
    if args.detach {
        let entry = attach::detach(args.pid, &runtime)?;
        let line = if args.json.json {
            serde_json::json!({"detached": entry}).to_string()
        } else {
            format!("detached from {} (pid {})", shown(&entry.app_id), args.pid)
        };
        say(&line)?;
        return Ok(Exit::Ok);
    }
    let options = Options { runtime, app_id: args.app_id.clone(), readonly: args.readonly, by: By::CommandLine };
    let attached = attach::attach(args.pid, &options)?;
    let line = if args.json.json { serde_json::json!(attached).to_string() } else { sentence(args.pid, &attached) };
    say(&line)?;
    Ok(Exit::Ok)
}

fn sentence(pid: i32, attached: &Attached) -> String {
    let app = format!("app:{}", shown(&attached.entry.app_id));
    let readonly = if attached.entry.readonly { ", read-only" } else { "" };
    if attached.way == Way::Already {
        return format!(
            "a probe is in process {pid} already: {app} (Python {}{readonly})",
            shown(&attached.entry.python)
        );
    }
    format!(
        "attached to process {pid}: {app} (Python {}{readonly}); took {:.0} ms, a thread was held for {:.1} ms",
        shown(&attached.entry.python),
        attached.took_ms,
        attached.pause_ms
    )
}
