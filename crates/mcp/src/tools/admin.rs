//! Tools about pylair itself.

use std::fmt::Write;

use rmcp::model::CallToolResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ToolError, parse};
use crate::{render, server::Call};
use pylair_core::{
    app,
    daemon::{
        DaemonStatus,
        targets::{self, Purpose, Target},
    },
    session,
};
use pylair_sandbox::truth::How;
use pylair_text::plain::counted;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusArgs {
    /// A session or an app; pylair itself if left out
    target: Option<String>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    daemon: Option<DaemonStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<session::Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    app: Option<app::Status>,
    /// What your calls without a target mean; absent if you have no session yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    default_target: Option<String>,
}

pub async fn get_status(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: StatusArgs = parse(&call)?;
    let Some(named) = args.target else {
        let daemon = Some(call.daemon.status_for(&call.caller));
        let default_target = call.daemon.default_target(&call.caller);
        let status = Status { daemon, default_target, ..Status::default() };
        let text = status_text(&status);
        return Ok(render::data(&status, Some(text)));
    };
    let name = named.strip_prefix("session:").unwrap_or(&named);
    let stopped = call.daemon.sessions.list_stopped(&call.caller);
    let stopped = stopped.into_iter().find(|status| status.name == name || status.handle == name);
    let of_session = |status: session::Status| {
        let status = call.daemon.sessions.marked(&call.caller, status);
        Status { session: Some(status), ..Status::default() }
    };
    let status = match (call.target(Some(&named), Purpose::AsItIs).await, stopped) {
        (Ok(Target::App(app)), None) => Status { app: Some(app.status().await), ..Status::default() },
        (Ok(Target::Session(session)), _) => of_session(session.full_status().await),
        (Ok(Target::Tests(_)), None) => return Err(targets::Error::TestsOnly { what: "get_status" }.into()),
        (_, Some(stopped)) => of_session(stopped),
        (Err(error), None) => return Err(error.into()),
    };
    let text = status_text(&status);
    Ok(render::data(&status, Some(text)))
}

/// A status as a model reads it.
fn status_text(status: &Status) -> String {
    let Status { daemon, session, app, default_target } = status;
    let mut text = String::new();
    if let Some(daemon) = daemon {
        write_daemon(&mut text, daemon);
    }
    if let Some(session) = session {
        write_session(&mut text, session);
    }
    if let Some(app) = app {
        write_app(&mut text, app);
    }
    if daemon.is_some() {
        let _infallible = match default_target {
            Some(target) => writeln!(text, "Your calls without a target go to {target}."),
            None => writeln!(text, "You have no session yet; execute opens one."),
        };
    }
    text.trim_end().to_owned()
}

fn write_daemon(text: &mut String, daemon: &DaemonStatus) {
    let DaemonStatus { version, pid, uptime_s, sessions, max_sessions, machine, .. } = daemon;
    let _infallible = writeln!(
        text,
        "pylair {version}, process {pid}, running for {uptime_s} s: {sessions} of at most {} open, {}, {}.",
        counted(*max_sessions, "session"),
        counted(daemon.bridges, "bridge"),
        counted(daemon.templates, "template")
    );
    for (what, place) in
        [("HTTP", daemon.http.as_deref().unwrap_or("closed")), ("Data", &daemon.data), ("Log", &daemon.log)]
    {
        if !place.is_empty() {
            let _infallible = writeln!(text, "{what}: {place}");
        }
    }
    let mut parts = vec![counted(machine.cpus, "processor")];
    parts.extend(machine.load.map(|load| format!("load {load:.1}")));
    if let (Some(free), Some(all)) = (machine.memory_available_mb, machine.memory_mb) {
        parts.push(format!("{free} of {all} MB of memory available"));
    }
    parts.extend(machine.disk_available_mb.map(|free| format!("{free} MB of disk available")));
    let _infallible = writeln!(text, "Machine: {}", parts.join(", "));
    for budget in &daemon.budgets {
        let all = budget.all.map(|all| format!(", {all} by all owners")).unwrap_or_default();
        let _infallible =
            write!(text, "Budget {}: {} used by you{all}, limit {}", budget.what, budget.yours, budget.bound);
        if budget.removed > 0 {
            let _infallible = write!(text, "; {} removed to make room", budget.removed);
        }
        text.push('\n');
    }
    if let Some(trouble) = &daemon.audit_trouble {
        let _infallible = writeln!(text, "Note: audit record: {trouble}.");
    }
}

fn write_session(text: &mut String, session: &session::Status) {
    let _infallible = writeln!(text, "{}", session.line());
    if let Some(job) = &session.job {
        let _infallible = writeln!(text, "{} job: {job}", if session.busy { "Running" } else { "Newest" });
    }
    if session.waiting > 0 {
        let _infallible = writeln!(text, "Waiting: {}", counted(session.waiting, "call"));
    }
    let mut parts = vec![
        format!("opened {}", session.opened_at),
        format!("last used {}", session.last_used_at),
        format!("up for {:.0} s", session.uptime_s),
        counted(session.executions, "execution"),
    ];
    parts.extend(session.mean_ms.map(|mean| format!("{mean:.1} ms on average")));
    parts.extend(session.pid.map(|pid| format!("worker process {pid}")));
    parts.extend(session.cpu_s.map(|cpu| format!("{cpu:.1} s of processor time")));
    parts.extend(session.threads.map(|threads| counted(threads, "thread")));
    parts.extend(session.responsiveness_ms.map(|took| format!("answers within {took:.1} ms")));
    parts.extend(session.keep.then(|| "kept when the daemon ends".to_owned()));
    let _infallible = writeln!(text, "Session: {}", parts.join(", "));
    let cells: Vec<_> = session.checkpoints.iter().map(u64::to_string).collect();
    if !cells.is_empty() {
        let _infallible = writeln!(text, "Checkpoints after cells: {}", cells.join(", "));
    }
    if let Some(skipped) = &session.checkpoint_skipped {
        let _infallible = writeln!(text, "Note: no newer checkpoint: {skipped}.");
    }
    for rule in &session.enforced {
        let how = match rule.how {
            How::Kernel => "enforced by the kernel",
            How::Watched => "watched",
            How::No => "not enforced",
        };
        let _infallible = writeln!(text, "Sandbox, {}: {how} ({})", rule.what, rule.detail);
    }
}

fn write_app(text: &mut String, app: &app::Status) {
    let _infallible = writeln!(text, "{}", app.line());
    let _infallible = writeln!(
        text,
        "Process {}, started {}, probe by {}, {} from here: {}",
        app.pid,
        app.started_at,
        app.how,
        counted(app.calls, "call"),
        app.argv.join(" ")
    );
    for call in &app.running {
        let state = if call.begun { "running" } else { "waiting" };
        let job = call.job.as_ref().map(|job| format!(", job {job}")).unwrap_or_default();
        let _infallible = writeln!(text, "Call {} ({}): {state} for {:.1} s{job}", call.call, call.op, call.seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_prose() {
        let session = session::Status {
            name: "lab".into(),
            handle: "k3n7".into(),
            cell: 1,
            sandbox: "open".into(),
            cwd: "/srv".into(),
            job: Some("k3n7-1".into()),
            executions: 1,
            checkpoints: vec![0, 1],
            ..session::Status::default()
        };
        let text = status_text(&Status { session: Some(session), ..Status::default() });
        assert!(text.starts_with("lab (k3n7): idle, 1 cell, open, in /srv\nNewest job: k3n7-1\n"), "{text}");
        assert!(text.contains("1 execution") && text.ends_with("Checkpoints after cells: 0, 1"), "{text}");
    }
}
