//! A session as a Jupyter notebook, nbformat 4.5. It runs in Jupyter as it ran here: cells that raised carry the tag
//! with which Jupyter goes on after them.

use std::fmt::Write;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

use super::{
    Cell, Entry, Happening, Piece,
    export::{Part, Transcript},
    record::{INSTALLED, RESTORED},
};
use pylair_output::Stream;

type Load<'a> = &'a mut dyn FnMut(&str) -> Option<Vec<u8>>;

pub(super) fn notebook(transcript: &Transcript, load: Load<'_>) -> String {
    let mut cells = vec![markdown("about", &about(transcript))];
    if let Some(startup) = transcript.opened.as_ref().and_then(|opened| opened.startup.as_deref()) {
        cells.push(code("startup", startup, &json!({"tags": ["startup"]}), None, &[]));
    }
    for (index, entry) in transcript.entries.iter().enumerate() {
        match entry {
            Entry::Cell(cell) => cells.push(notebook_cell(cell, index, load)),
            Entry::Happening(happening) => {
                cells.extend(remark(happening).map(|text| markdown(&format!("event-{index}"), &text)));
            }
        }
    }
    let version = transcript.opened.as_ref().map_or("3", |opened| opened.python.as_str());
    let notebook = json!({
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {
                "codemirror_mode": {"name": "ipython", "version": 3},
                "file_extension": ".py",
                "mimetype": "text/x-python",
                "name": "python",
                "nbconvert_exporter": "python",
                "pygments_lexer": "ipython3",
                "version": version,
            },
            "pylair": {"session": transcript.name, "handle": transcript.handle},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    });
    let mut text = serde_json::to_string_pretty(&notebook).unwrap_or_default();
    text.push('\n');
    text
}

fn about(transcript: &Transcript) -> String {
    let mut text = format!("Session `{}` of pylair, exported {}", transcript.name, transcript.exported);
    if let Some(opened) = &transcript.opened {
        let _infallible = write!(text, "; Python {} in `{}`", opened.python, opened.cwd);
    }
    text.push('.');
    for note in &transcript.notes {
        let _infallible = write!(text, "\n\nNote: {note}.");
    }
    text
}

/// What a reader of the file must know of; the rest is only of interest while it happens.
pub(super) fn remark(happening: &Happening) -> Option<String> {
    Some(match happening.event {
        RESTORED => "The session was opened here with variables from a save, which are not in this file.".to_owned(),
        "restarted" => "The session was restarted here: all variables were gone.".to_owned(),
        "cleared" => "The session was cleared here: all variables were gone.".to_owned(),
        "rolled_back" => format!(
            "The session was set back here to where it was after cell {}; what was undone is left out.",
            happening.cell.unwrap_or_default()
        ),
        INSTALLED => format!("installed: {}", happening.text),
        "gap" => "Some of what happened here was not kept.".to_owned(),
        _ => return None,
    })
}

fn notebook_cell(cell: &Cell, index: usize, load: Load<'_>) -> Value {
    // A session that was opened again may count its cells anew, so the number alone is no id.
    let id = format!("cell-{}-{index}", cell.cell);
    if cell.part() == Part::Shown {
        let fence = fence(&cell.code);
        let text = format!(
            "Cell {} {}. It is not run again:\n\n{fence}python\n{}\n{fence}",
            cell.cell,
            cell.remark(),
            cell.code
        );
        return markdown(&id, &text);
    }
    let mut metadata = Map::new();
    if cell.part() == Part::Raises {
        metadata.insert("tags".to_owned(), json!(["raises-exception"]));
    }
    metadata.insert(
        "pylair".to_owned(),
        json!({"client": cell.client, "started": cell.started.to_string(), "duration_ms": cell.duration_ms}),
    );
    let mut outputs: Vec<Value> = Vec::new();
    let mut last_value = None;
    for piece in &cell.pieces {
        match piece {
            Piece::Printed(stream, text) => {
                let name = if *stream == Stream::Stdout { "stdout" } else { "stderr" };
                outputs.push(json!({"output_type": "stream", "name": name, "text": lines(text)}));
            }
            Piece::Shown { mime, .. } if !is_mime(mime) => {}
            Piece::Shown { value, mime, resource } => {
                // Forms of one value are one output, of which the reader shows the best it can.
                if last_value.replace(*value) != Some(*value) {
                    outputs.push(json!({"output_type": "display_data", "data": {}, "metadata": {}}));
                }
                let data = outputs.last_mut().and_then(|output| output["data"].as_object_mut());
                let (mime, shown) = shown(mime, resource, load);
                data.map(|data| data.insert(mime, shown));
            }
        }
    }
    if cell.bytes_missing > 0 {
        let text = format!("[{} bytes of output are not in this file]\n", cell.bytes_missing);
        outputs.push(json!({"output_type": "stream", "name": "stderr", "text": [text]}));
    }
    if let Some(result) = &cell.result {
        outputs.push(json!({
            "output_type": "execute_result",
            "execution_count": cell.cell,
            "data": {"text/plain": lines(result)},
            "metadata": {},
        }));
    }
    if let Some((kind, message)) = cell.error_parts() {
        let traceback: Vec<_> = cell.traceback.as_deref().unwrap_or_default().lines().collect();
        outputs.push(json!({"output_type": "error", "ename": kind, "evalue": message, "traceback": traceback}));
    }
    code(&id, cell.source(), &Value::Object(metadata), Some(cell.cell), &outputs)
}

/// Whether it is a type and a subtype. Programs name these as they like, and readers of notebooks trust them.
fn is_mime(mime: &str) -> bool {
    let is_token = |token: &str| {
        !token.is_empty() && token.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c))
    };
    mime.split_once('/').is_some_and(|(kind, rest)| is_token(kind) && is_token(rest))
}

/// A rich value in its form, or what there was when its bytes are gone.
fn shown(mime: &str, resource: &str, load: Load<'_>) -> (String, Value) {
    let value = load(resource).and_then(|bytes| {
        if mime == "application/json" || mime.ends_with("+json") {
            return serde_json::from_slice(&bytes).ok();
        }
        if mime.starts_with("text/") || mime == "image/svg+xml" || mime == "application/javascript" {
            return String::from_utf8(bytes).ok().map(|text| json!(lines(&text)));
        }
        Some(json!(BASE64_STANDARD.encode(bytes)))
    });
    match value {
        Some(value) => (mime.to_owned(), value),
        None => ("text/plain".to_owned(), json!([format!("[{mime}, not kept: {resource}]")])),
    }
}

fn code(id: &str, source: &str, metadata: &Value, count: Option<u64>, outputs: &[Value]) -> Value {
    json!({
        "cell_type": "code",
        "id": id,
        "execution_count": count,
        "metadata": metadata,
        "outputs": outputs,
        "source": lines(source),
    })
}

fn markdown(id: &str, text: &str) -> Value {
    json!({"cell_type": "markdown", "id": id, "metadata": {}, "source": lines(text)})
}

/// Lines with their ends, which is how notebooks keep text readable in diffs.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

/// A fence that the text does not hold.
fn fence(text: &str) -> String {
    let mut fence = "```".to_owned();
    while text.contains(&fence) {
        fence.push('`');
    }
    fence
}

#[cfg(test)]
mod tests {
    use super::{super::record::tests::sample, *};

    #[test]
    fn every_kind_of_output_has_its_place() {
        let mut load = |resource: &str| resource.ends_with("/1").then(|| b"png".to_vec());
        let text = notebook(&sample(), &mut load);
        let notebook: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&notebook["nbformat"], &notebook["nbformat_minor"]), (&json!(4), &json!(5)));
        let cells = notebook["cells"].as_array().unwrap();
        let ids: std::collections::HashSet<_> = cells.iter().map(|cell| cell["id"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), cells.len(), "ids are unique");
        let kinds: Vec<_> = cells.iter().map(|cell| cell["cell_type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["markdown", "code", "code", "code", "markdown", "code", "markdown"]);
        assert_eq!(cells[1]["source"], json!(["import math"]), "the startup code comes first");
        let outputs = |at: usize| cells[at]["outputs"].as_array().unwrap();
        assert_eq!(outputs(2)[0], json!({"output_type": "stream", "name": "stdout", "text": ["a\n", "b"]}));
        assert_eq!(outputs(2)[1]["data"], json!({"image/png": "cG5n"}));
        assert_eq!(outputs(2)[2]["data"], json!({"text/plain": ["[text/html, not kept: pylair://display/abc-1/2]"]}));
        assert_eq!(outputs(2)[3]["data"], json!({"text/plain": ["42"]}));
        assert_eq!(cells[2]["execution_count"], 1);
        assert_eq!(cells[3]["metadata"]["tags"], json!(["raises-exception"]));
        assert_eq!(outputs(3)[0]["ename"], "ValueError");
        assert_eq!(outputs(3)[0]["evalue"], "bad: <b>");
        assert!(cells[6]["source"][0].as_str().unwrap().starts_with("Cell 4 was interrupted"), "{}", cells[6]);
    }

    #[test]
    fn only_types_are_keys() {
        let is = ["image/png", "application/vnd.x+json"];
        let is_not = ["text/html\"><script>", "weird", "", "text/", "text/html; charset=utf-8", "a/b/c"];
        assert!(is.into_iter().all(is_mime) && !is_not.into_iter().any(is_mime));
    }

    #[test]
    fn a_fence_is_longer_than_any_in_the_text() {
        assert_eq!(fence("a ``` b ````"), "`````");
    }
}
