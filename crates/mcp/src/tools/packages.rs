//! Installing packages.

use std::time::{Duration, Instant};

use rmcp::model::{CallToolResult, ProgressNotificationParam, ProgressToken};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::{ToolError, parse};
use crate::{render, server::Call};
use pylair_core::daemon::targets::Purpose;

/// A client hears from a silent installer this often.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// Lines that wait for a client to take them; it misses those it is too slow for.
const MAX_WAITING_LINES: usize = 64;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InstallArgs {
    /// Names as an index knows them, with versions where they matter: `pandas>=2,<3`
    packages: Vec<String>,
    /// Session name or handle; your default session if left out
    target: Option<String>,
}

pub async fn install(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: InstallArgs = parse(&call)?;
    let session = call.session(args.target.as_deref(), Purpose::Run).await?;
    let _reserved = call.reserve(&session, true).await?;
    let (lines, heard) = mpsc::channel(MAX_WAITING_LINES);
    let install = session.install(&args.packages, &lines, call.caller.settings.install_timeout);
    let installed = tokio::select! {
        biased;
        installed = install => installed?,
        // Dropping the install ends the installer and all it has started.
        () = call.cancelled() => return Err(ToolError {
            kind: "cancelled",
            message: "the install was stopped because the request was cancelled".to_owned(),
            hint: "what was installed until then is still there".to_owned(),
        }),
        () = report_progress(&call, heard) => unreachable!("progress is reported until the install has ended"),
    };
    let text = installed.text();
    Ok(render::data(&installed, Some(text)))
}

/// Passes the installer's lines on as progress until the future is dropped.
async fn report_progress(call: &Call<'_>, mut lines: mpsc::Receiver<String>) {
    let Some(token) = call.progress_token() else { return std::future::pending().await };
    let started = Instant::now();
    let progress = |token: &ProgressToken, message: String| {
        ProgressNotificationParam::new(token.clone(), started.elapsed().as_secs_f64()).with_message(message)
    };
    loop {
        let message = match tokio::time::timeout(PROGRESS_EVERY, lines.recv()).await {
            Ok(Some(line)) => line,
            Ok(None) => return std::future::pending().await,
            Err(_) => format!("installing for {} s", started.elapsed().as_secs()),
        };
        call.notify_progress(progress(&token, message)).await;
    }
}
