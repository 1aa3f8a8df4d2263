//! Tools that look into a target and change nothing.

use std::fmt::Write;

use rmcp::model::CallToolResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ToolError, parse};
use crate::{render, server::Call};
use pylair_core::{
    caller::Scope,
    daemon::targets::{Purpose, Target},
};
use pylair_probe::wire::{Inspect, Op};

const DEPTH: u32 = 1;
const MAX_ITEMS: usize = 20;
const MAX_CHARS: usize = 2000;
/// A page of a value that was asked for in full.
const FULL_CHARS: usize = 20_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InspectArgs {
    /// Such as `df.columns` or `rows[0]["name"]`; the variables if left out
    path: Option<String>,
    target: Option<String>,
    /// How deep to go into containers and objects (default 1)
    depth: Option<u32>,
    /// Of each container (default 20)
    max_items: Option<usize>,
    /// The whole value as text, in pages
    full: Option<bool>,
    /// Where the page begins: `next_offset` of the last one
    offset: Option<usize>,
    /// In an app, also run properties and `__repr__`s of its own classes
    run: Option<bool>,
}

/// What is at a path, or the variables. What does not apply is left out.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Inspection {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(flatten)]
    node: Node,
    #[serde(skip_serializing_if = "Option::is_none")]
    signature: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    doc: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bases: Vec<String>,
    /// Properties, whose getters were not run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    properties: Vec<String>,
    /// A page of the whole value.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_chars: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    value_cut: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    variables: Vec<Node>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
}

/// One value.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Node {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// A text, or an index.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    key: serde_json::Value,
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    kind_of: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preview: Option<String>,
    /// Why the preview is not all that `repr` would say.
    #[serde(skip_serializing_if = "Option::is_none")]
    preview_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    length: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shape: Option<Vec<serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cycle: bool,
    /// The same again for what is inside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<serde_json::Value>")]
    items: Vec<Node>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<serde_json::Value>")]
    attributes: Vec<Node>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_items: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_attributes: Option<u64>,
    /// Not a value but a gap: the number of items left out between the first and the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    gap: Option<u64>,
}

pub async fn inspect(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: InspectArgs = parse(&call)?;
    let run = args.run.unwrap_or_default();
    if run && (call.is_readonly() || !call.caller.may(Scope::Run)) {
        return Err(bad_argument("run", "it runs code, and this client may only look"));
    }
    let target = call.target(args.target.as_deref(), Purpose::Look).await?;
    if run && matches!(target, Target::Session(_)) {
        return Err(bad_argument(
            "run",
            "it is for apps; previews of a session's values are made in a throw-away copy",
        ));
    }
    let full = args.full.unwrap_or_default() || args.offset.is_some();
    let request = Inspect {
        path: args.path,
        depth: args.depth.unwrap_or(DEPTH),
        max_items: args.max_items.unwrap_or(MAX_ITEMS),
        max_chars: if full { FULL_CHARS } else { MAX_CHARS },
        full,
        offset: args.offset.unwrap_or(0),
        run,
    };
    let inspection: Inspection = target.look(&call.caller, Op::Inspect(request), Vec::new()).await?;
    let text = inspection.text();
    Ok(render::data(&inspection, Some(text)))
}

fn bad_argument(name: &str, why: &str) -> ToolError {
    let (message, hint) = (format!("`{name}` cannot be used here: {why}"), format!("leave out `{name}`"));
    ToolError { kind: "bad_argument", message, hint }
}

impl Inspection {
    fn text(&self) -> String {
        let mut text = String::new();
        if self.path.is_none() {
            if self.variables.is_empty() {
                return "no variables".to_owned();
            }
            for variable in &self.variables {
                variable.write(&mut text, 0);
            }
            if self.more {
                let _infallible =
                    write!(text, "[{} variables in all; max_items shows more]", self.total.unwrap_or_default());
            }
            return text;
        }
        let _infallible = writeln!(text, "{}: {}", self.path.as_deref().unwrap_or_default(), self.node.facts());
        for (label, value) in [("signature", &self.signature), ("doc", &self.doc)] {
            if let Some(value) = value {
                let _infallible = writeln!(text, "{label}: {value}");
            }
        }
        if let Some(file) = &self.file {
            let _infallible = writeln!(text, "defined in {file} line {}", self.line.unwrap_or_default());
        }
        for (label, names) in [("bases", &self.bases), ("properties (not run)", &self.properties)] {
            if !names.is_empty() {
                let _infallible = writeln!(text, "{label}: {}", names.join(", "));
            }
        }
        if let Some(value) = &self.value {
            text.push_str(value);
            if let Some(next) = self.next_offset {
                let total = self.total_chars.map(|total| format!(", {total} characters in all")).unwrap_or_default();
                let _infallible = write!(text, "\n[more: offset={next}{total}]");
            } else if self.value_cut {
                text.push_str("\n[what comes after was cut]");
            }
            if let Some(error) = &self.node.preview_error {
                let _infallible = write!(text, "\n[this is not all that repr would say: {error}]");
            }
            return text;
        }
        self.node.write_preview(&mut text);
        self.node.write_inside(&mut text, 0);
        if self.more {
            text.push_str("[more: max_items, depth, or a longer path]");
        }
        text
    }
}

impl Node {
    fn facts(&self) -> String {
        let mut facts = self.kind_of.clone();
        if let Some(length) = self.length {
            let _infallible = write!(facts, ", length {length}");
        }
        if let Some(shape) = &self.shape {
            let shape: Vec<_> = shape.iter().map(ToString::to_string).collect();
            let _infallible = write!(facts, ", shape ({})", shape.join(", "));
        }
        if let Some(dtype) = &self.dtype {
            let _infallible = write!(facts, ", dtype {dtype}");
        }
        if let Some(bytes) = self.bytes {
            let _infallible = write!(facts, ", {bytes} bytes");
        }
        if self.cycle {
            facts.push_str(", one of those around it");
        }
        facts
    }

    fn write_preview(&self, text: &mut String) {
        if let Some(preview) = &self.preview {
            let _infallible = writeln!(text, "{preview}");
        }
        if let Some(error) = &self.preview_error {
            let _infallible = writeln!(text, "[no full preview: {error}]");
        }
    }

    fn write(&self, text: &mut String, depth: usize) {
        if let Some(gap) = self.gap {
            let _infallible = writeln!(text, "{:indent$}… {gap} more", "", indent = depth * 2);
            return;
        }
        let label = match (&self.name, &self.key) {
            (Some(name), _) => format!(".{name}"),
            (None, serde_json::Value::String(key)) => format!("[{key}]"),
            (None, serde_json::Value::Null) => "-".to_owned(),
            (None, key) => format!("[{key}]"),
        };
        let label = if depth == 0 { label.trim_start_matches('.') } else { &label };
        let preview = self.preview.as_deref().unwrap_or("…").replace('\n', " ");
        let _infallible = writeln!(text, "{:indent$}{label}: {} = {preview}", "", self.facts(), indent = depth * 2);
        if let Some(error) = &self.preview_error {
            let _infallible = writeln!(text, "{:indent$}[no full preview: {error}]", "", indent = depth * 2 + 2);
        }
        self.write_inside(text, depth);
    }

    fn write_inside(&self, text: &mut String, depth: usize) {
        for inside in self.items.iter().chain(&self.attributes) {
            inside.write(text, depth + 1);
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceArgs {
    /// A function, class, method or module
    path: String,
    target: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Source {
    path: String,
    file: Option<String>,
    line: Option<u64>,
    #[serde(rename = "source")]
    text: String,
    /// There is more of it than can be shown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_chars: Option<u64>,
}

pub async fn read_source(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: SourceArgs = parse(&call)?;
    let target = call.target(args.target.as_deref(), Purpose::Look).await?;
    let source: Source = target.look(&call.caller, Op::Source { path: args.path }, Vec::new()).await?;
    let place = source.file.as_deref().unwrap_or("?");
    let text = format!("# {place} line {}\n{}", source.line.unwrap_or_default(), source.text);
    Ok(render::data(&source, Some(text)))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompleteArgs {
    code: String,
    /// Where, in characters; the end if left out
    cursor: Option<usize>,
    target: Option<String>,
}

/// What could come at the cursor, in place of the characters from `start` to `end`.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Completion {
    pub start: usize,
    pub end: usize,
    pub matches: Vec<Match>,
    /// There are more than are listed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Match {
    pub text: String,
    pub kind: String,
}

pub async fn complete(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: CompleteArgs = parse(&call)?;
    let target = call.target(args.target.as_deref(), Purpose::Look).await?;
    let _reserved = match &target {
        Target::Session(session) => call.reserve(session, false).await?,
        _ => None,
    };
    let cursor = args.cursor.unwrap_or_else(|| args.code.chars().count());
    let completion: Completion = target.look(&call.caller, Op::Complete { cursor }, args.code.into_bytes()).await?;
    let text: Vec<_> = completion.matches.iter().map(|found| found.text.clone()).collect();
    Ok(render::data(&completion, Some(text.join("\n"))))
}
