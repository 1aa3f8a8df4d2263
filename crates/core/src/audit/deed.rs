//! What a call says of itself in the record: for every tool, which of its arguments are written down and how. The one place that
//! decides it; the doors pass it the arguments of a call, `tools` is held against the table of tools by a test.
//!
//! Values that a caller may not want kept (contents, values of variables, of the environment) are told by their size and hash, or
//! by their names.

use serde_json::{Map, Value, json};

use pylair_text::{
    hash::{hex, sha256},
    mask::{self, MARK, Reading},
    plain::one_line,
};

/// Of a text, and of all items of a list.
const MAX_TEXT_CHARS: usize = 300;
const MAX_ITEMS: usize = 32;
/// Of everything that is said of one call: a line stays shorter than what reads it takes.
const MAX_BYTES: usize = 8 << 10;

/// What becomes of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// As it is, but for what is masked and too long.
    Told,
    /// As the arguments of a command: what follows `--password` is masked.
    Argv,
    /// Of an object its keys.
    Names,
    /// Bytes and hash: of contents that can be held against a file.
    Digest,
    /// Bytes alone: the hash of a short value is soon guessed.
    Size,
    /// It is in `target` or in `code` of the line.
    InTheLine,
    /// It says how the caller wants to be answered, or is an idle remark.
    Unsaid,
}

use How::{Argv, Digest, InTheLine, Names, Size, Told, Unsaid};

/// A tool that is recorded, with its arguments.
type Row = (&'static str, &'static [(&'static str, How)]);

const TARGET: (&str, How) = ("target", InTheLine);

const TOOLS: &[Row] = &[
    (
        "execute",
        &[
            ("code", InTheLine),
            TARGET,
            ("wait_s", Unsaid),
            ("timeout_s", Told),
            ("on_timeout", Told),
            ("max_chars", Unsaid),
            ("output", Unsaid),
        ],
    ),
    ("run_file", &[("path", Told), ("args", Argv), TARGET, ("wait_s", Unsaid), ("timeout_s", Told)]),
    ("get_job", &[("job", Told), ("cancel", Told), ("wait_s", Unsaid), ("max_chars", Unsaid), ("output", Unsaid)]),
    ("interrupt", &[TARGET, ("job", Told)]),
    (
        "open_session",
        &[
            ("name", Told),
            ("python", Told),
            ("cwd", Told),
            ("env", Names),
            ("startup", InTheLine),
            ("preload", Told),
            ("launcher", Argv),
            ("sandbox", Told),
            ("description", Unsaid),
            ("keep", Told),
            ("restore", Told),
        ],
    ),
    ("restart_session", &[TARGET, ("mode", Told), ("keep_variables", Told)]),
    ("close_session", &[TARGET, ("forget", Told)]),
    ("undo", &[TARGET, ("to", Told)]),
    ("branch_session", &[TARGET, ("name", Told), ("at", Told)]),
    ("save_session", &[TARGET]),
    ("install_packages", &[("packages", Told), TARGET]),
    ("attach", &[("pid", InTheLine), ("app_id", Told), ("readonly", Told)]),
    ("set_variable", &[("path", Told), ("value", Size), ("expression", InTheLine), TARGET]),
    ("call", &[("path", Told), ("args", InTheLine), ("kwargs", InTheLine), TARGET]),
    ("screenshot", &[TARGET, ("code", InTheLine)]),
    ("read_file", &[("path", Told), TARGET, ("offset", Told), ("max_bytes", Unsaid), ("base64", Unsaid)]),
    ("write_file", &[("path", Told), ("content", Digest), TARGET, ("base64", Unsaid)]),
    ("delete_file", &[("path", Told), TARGET]),
    ("upload", &[("files", Told)]),
    ("download", &[("path", Told), TARGET]),
    ("run_tests", &[("args", Argv), ("cwd", Told), ("python", Told), TARGET, ("sandbox", Told), ("wait_s", Unsaid)]),
    ("debug_failure", &[("id", Told), ("rule", Told), ("analysis", Digest), ("status", Told)]),
    (
        "record_failure",
        &[
            ("test_name", Told),
            ("error_message", Size),
            ("file_path", Told),
            ("line_number", Told),
            ("traceback", Size),
            ("locals", Size),
            ("project", Told),
        ],
    ),
    ("stop", &[]),
];

/// Whether calls of this tool are recorded.
pub fn is_recorded(tool: &str) -> bool {
    TOOLS.iter().any(|(name, _)| *name == tool)
}

/// What to write down of a call with these arguments. What the table does not know is told by its name and size.
pub fn details(tool: &str, arguments: &Map<String, Value>) -> Map<String, Value> {
    let known = TOOLS.iter().find(|(name, _)| *name == tool).map_or(&[][..], |(_, arguments)| *arguments);
    let mut details = Map::new();
    for (name, value) in arguments {
        let how = known.iter().find(|(argument, _)| argument == name).map_or(Size, |(_, how)| *how);
        if !value.is_null()
            && let Some(said) = said(name, value, how)
        {
            details.insert(name.clone(), said);
        }
    }
    bounded(details)
}

fn said(name: &str, value: &Value, how: How) -> Option<Value> {
    Some(match (how, value) {
        (InTheLine | Unsaid, _) => return None,
        (Names, Value::Object(fields)) => {
            fields.keys().take(MAX_ITEMS).map(|name| Value::from(one_line(name, MAX_TEXT_CHARS))).collect()
        }
        (Argv, Value::Array(items)) => {
            let words: Vec<_> = items.iter().map(|item| item.as_str().unwrap_or_default()).collect();
            mask::argv(&words)
                .into_iter()
                .take(MAX_ITEMS)
                .map(|word| Value::from(one_line(&word, MAX_TEXT_CHARS)))
                .collect()
        }
        (Told, value) => plain(name, value),
        (how, value) => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let hash = (how == Digest).then(|| hex(&sha256(text.as_bytes())));
            hash.map_or_else(|| json!({"bytes": text.len()}), |hash| json!({"bytes": text.len(), "sha256": hash}))
        }
    })
}

/// Everything in it that is text, masked and cut.
fn plain(name: &str, value: &Value) -> Value {
    match value {
        Value::String(text) => Value::from(if mask::value(name, text) == MARK {
            MARK.to_owned()
        } else {
            one_line(&mask::masked(text, Reading::Text).unwrap_or_else(|| text.clone()), MAX_TEXT_CHARS)
        }),
        Value::Array(items) => items.iter().take(MAX_ITEMS).map(|item| plain(name, item)).collect(),
        Value::Object(fields) => {
            let said =
                fields.iter().take(MAX_ITEMS).map(|(name, value)| (one_line(name, MAX_TEXT_CHARS), plain(name, value)));
            Value::Object(said.collect())
        }
        other => other.clone(),
    }
}

/// The arguments of a tool that are recorded; none for a tool whose calls are not.
pub fn recorded(tool: &str) -> Option<impl Iterator<Item = &'static str>> {
    let (_, arguments) = TOOLS.iter().find(|(name, _)| *name == tool)?;
    Some(arguments.iter().map(|(name, _)| *name))
}

fn bounded(details: Map<String, Value>) -> Map<String, Value> {
    if serde_json::to_string(&details).is_ok_and(|text| text.len() <= MAX_BYTES) {
        return details;
    }
    let text = Value::Object(details).to_string();
    let cut = one_line(&text, MAX_TEXT_CHARS);
    Map::from_iter([("cut".to_owned(), json!(cut)), ("sha256".to_owned(), json!(hex(&sha256(text.as_bytes()))))])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tool: &str, arguments: Value) -> Value {
        let Value::Object(arguments) = arguments else { panic!("an object") };
        Value::Object(details(tool, &arguments))
    }

    #[test]
    fn what_was_done_is_told_and_what_is_secret_is_not() {
        assert_eq!(
            of(
                "run_file",
                json!({"path": "a.py", "args": ["--password", "hunter2", "--token=abc", "-v", "x"], "wait_s": 1})
            ),
            json!({"path": "a.py", "args": ["--password", MARK, format!("--token={MARK}"), "-v", "x"]})
        );
        assert_eq!(
            of("open_session", json!({"name": "s", "env": {"API_KEY": "k", "HOME": "/"}, "startup": "x"})),
            json!({"name": "s", "env": ["API_KEY", "HOME"]})
        );
        assert_eq!(
            of("install_packages", json!({"packages": ["numpy", "x @ https://me:hunter2@host/x.whl"], "target": "s"})),
            json!({"packages": ["numpy", format!("x @ https://me:{MARK}@host/x.whl")]})
        );
        let written = of("write_file", json!({"path": ".env", "content": "PASSWORD=hunter2"}));
        assert_eq!((&written["path"], &written["content"]["bytes"]), (&json!(".env"), &json!(16)));
        let set = of("set_variable", json!({"path": "x", "value": "hunter2"}));
        assert_eq!(set, json!({"path": "x", "value": {"bytes": 7}}));
        assert!(!format!("{written}{set}").contains("hunter2"), "{written} {set}");
        let unknown = of("execute", json!({"later": "hunter2"}));
        assert_eq!(unknown["later"]["bytes"], 7);
    }

    #[test]
    fn a_line_stays_short_whatever_is_asked() {
        let long = "é".repeat(100_000);
        let packages: Vec<_> = (0..1000).map(|_| long.clone()).collect();
        for arguments in
            [json!({ "packages": packages }), json!({ "packages": long }), json!({"packages": [[[[packages]]]]})]
        {
            let said = of("install_packages", arguments).to_string();
            assert!(said.len() <= MAX_BYTES, "{}", said.len());
        }
    }
}
