//! Tools on the files of a session's workspace.

use base64::{Engine, engine::general_purpose::STANDARD};
use rmcp::model::{CallToolResult, ContentBlock};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ToolError, parse};
use crate::{render, server::Call};
use pylair_core::{daemon::targets::Purpose, session};
use pylair_files::{
    Content, DEFAULT_DEPTH, DEFAULT_PAGE_BYTES, Entry, Error, ListOptions, MAX_PAGE_BYTES, Page, Written,
};
use pylair_os::event_loop;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListArgs {
    /// Directory, relative to the workspace
    path: Option<String>,
    /// Session name or handle; your default session if left out
    target: Option<String>,
    /// Also list what is below
    recursive: Option<bool>,
    /// Answer with an indented tree
    tree: Option<bool>,
    /// How deep to go (default 3)
    max_depth: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Listed {
    session: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Vec<Entry>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tree: Option<String>,
    ignored: usize,
    notes: Vec<String>,
}

pub async fn list(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: ListArgs = parse(&call)?;
    let session = call.session(args.target.as_deref(), Purpose::Look).await?;
    let is_tree = args.tree == Some(true);
    let is_deep = args.recursive.unwrap_or(is_tree || args.max_depth.is_some());
    let options = ListOptions { depth: if is_deep { args.max_depth.unwrap_or(DEFAULT_DEPTH) } else { 1 } };
    let listing = session.workspace().list(args.path.as_deref().unwrap_or_default(), options).await?;
    let text = if is_tree { listing.tree() } else { listing.lines() };
    let listed = Listed {
        session: session.info.name.to_string(),
        path: listing.path,
        entries: (!is_tree).then_some(listing.entries),
        tree: is_tree.then(|| text.clone()),
        ignored: listing.ignored,
        notes: listing.notes,
    };
    Ok(render::data(&listed, Some(text)))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadArgs {
    /// Relative to the workspace
    path: String,
    /// Session name or handle; your default session if left out
    target: Option<String>,
    /// Byte to start at
    offset: Option<u64>,
    /// Most bytes to return (default 65536, at most 1048576)
    max_bytes: Option<usize>,
}

/// Answers in blocks without structure: clients that find structure drop images and text.
pub async fn read(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: ReadArgs = parse(&call)?;
    if args.max_bytes == Some(0) {
        return Err(session::Error::BadArgument("max_bytes is 0, which would read nothing".to_owned()).into());
    }
    let session = call.session(args.target.as_deref(), Purpose::Look).await?;
    let max_bytes = args.max_bytes.unwrap_or(DEFAULT_PAGE_BYTES).min(MAX_PAGE_BYTES);
    let page = session.workspace().read(&args.path, args.offset.unwrap_or(0), max_bytes).await?;
    event_loop::carry(max_bytes).await;
    let facts = ContentBlock::text(facts(&page));
    let content = match page.content {
        Content::Text(text) => ContentBlock::text(text),
        Content::Image { mime, bytes } => ContentBlock::image(STANDARD.encode(bytes), mime),
        Content::Bytes(bytes) => ContentBlock::text(STANDARD.encode(bytes)),
    };
    Ok(CallToolResult::success(vec![content, facts]))
}

/// What the block before is, and how to go on.
fn facts(page: &Page) -> String {
    let form = match &page.content {
        Content::Text(_) if page.kind == "text" => String::new(),
        Content::Text(_) | Content::Image { .. } => format!(", {}", page.kind),
        Content::Bytes(_) => format!(", {}, as base64", page.kind),
    };
    let part = match (page.offset, page.next_offset) {
        (0, None) => String::new(),
        (offset, None) => format!(", from byte {offset} to the end"),
        (offset, Some(next)) => format!(", from byte {offset}; next_offset: {next}"),
    };
    format!("[{}: bytes: {}{form}{part}]", page.path, page.bytes)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteArgs {
    /// Relative to the workspace
    path: String,
    content: String,
    /// Session name or handle; your default session if left out
    target: Option<String>,
    /// The content is base64
    base64: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Wrote {
    session: String,
    #[serde(flatten)]
    written: Written,
}

pub async fn write(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: WriteArgs = parse(&call)?;
    let content = if args.base64 == Some(true) {
        STANDARD.decode(&args.content).map_err(|error| Error::NotBase64(error.to_string()))?
    } else {
        args.content.into_bytes()
    };
    let session = call.session(args.target.as_deref(), Purpose::Run).await?;
    let written = session.workspace().write(&args.path, content).await?;
    Ok(render::data(&Wrote { session: session.info.name.to_string(), written }, None))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteArgs {
    /// Relative to the workspace
    path: String,
    /// Session name or handle; your default session if left out
    target: Option<String>,
}

pub async fn delete(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: DeleteArgs = parse(&call)?;
    let session = call.session(args.target.as_deref(), Purpose::Look).await?.open_to(&call.caller)?;
    Ok(render::data(&session.workspace().delete(&args.path).await?, None))
}
