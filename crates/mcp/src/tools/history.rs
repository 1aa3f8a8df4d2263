//! Tools on what happened in sessions.

use rmcp::model::CallToolResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ToolError, parse};
use crate::{render, server::Call};
use pylair_core::history::{self, Format};
use pylair_text::plain::counted;

/// The longest file that is in the answer itself.
const MAX_TEXT_BYTES: usize = 100_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HistoryArgs {
    /// Session name or handle; yours if left out
    target: Option<String>,
    /// Cells to show, at most 100 (default 20)
    limit: Option<usize>,
    /// Show cells before this one: `next_before` of the last answer
    before: Option<u64>,
}

pub async fn get_history(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: HistoryArgs = parse(&call)?;
    let daemon = call.daemon;
    daemon.refuse_app(&call.caller, args.target.as_deref(), call.tool).await?;
    let subject = history::find(&daemon.sessions, &daemon.journal, &call.caller, args.target.as_deref()).await?;
    call.about_handle(&subject.handle);
    let limit = args.limit.unwrap_or(history::DEFAULT_LIMIT);
    let page = history::page(&daemon.journal, &subject, limit, args.before, call.caller.settings.max_chars).await?;
    Ok(render::data(&page, Some(history::page_text(&page))))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportArgs {
    target: Option<String>,
    format: Format,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Exported {
    format: Format,
    cells: usize,
    /// Cells left out because they were undone.
    rolled_back: usize,
    bytes: usize,
    /// Where the file can be read.
    resource: String,
    notes: Vec<String>,
    /// The file itself, unless it is longer than 100,000 bytes.
    text: Option<String>,
}

pub async fn export_session(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: ExportArgs = parse(&call)?;
    let daemon = call.daemon;
    daemon.refuse_app(&call.caller, args.target.as_deref(), call.tool).await?;
    let subject = history::find(&daemon.sessions, &daemon.journal, &call.caller, args.target.as_deref()).await?;
    call.about_handle(&subject.handle);
    let export = history::export(&daemon.journal, &daemon.sessions.parts.outputs, &subject, args.format).await?;
    let bytes = export.text.len();
    let summary = format!("[{}, {}: {}]", counted(export.cells, "cell"), counted(bytes, "byte"), export.resource);
    let text = (bytes <= MAX_TEXT_BYTES).then_some(export.text);
    let shown = text.as_ref().map_or_else(|| summary.clone(), |text| format!("{text}{summary}"));
    let exported = Exported {
        format: export.format,
        cells: export.cells,
        rolled_back: export.rolled_back,
        bytes,
        resource: export.resource,
        notes: export.notes,
        text,
    };
    Ok(render::data(&exported, Some(shown)))
}
