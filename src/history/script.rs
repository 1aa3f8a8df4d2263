//! A session as a Python script in the percent format, which editors show as cells and plain `python` runs to its end.

use std::fmt::Write;

use super::{
    Cell, Entry,
    export::{Part, Transcript, source},
    notebook::remark,
};
use crate::python::lexer;

/// Runs source as a session does: awaiting at the top level, names in the module, one event loop for all cells.
const RUN_CELL: &str = r#"import ast as _ast
import asyncio as _asyncio
import traceback as _traceback

_loop = None


def _run_cell(number, source, raises=False):
    """Runs a cell that awaits at its top level, or one that raised and may raise again."""
    global _loop
    try:
        code = compile(source[1:], "<cell %d>" % number, "exec", _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(code, globals())
        if code.co_flags & 0x80:  # a coroutine
            if _loop is None:
                _loop = _asyncio.new_event_loop()
                _asyncio.set_event_loop(_loop)
            _loop.run_until_complete(value)
    except KeyboardInterrupt:
        raise
    except BaseException:
        if not raises:
            raise
        _traceback.print_exc()
"#;

pub(super) fn script(transcript: &Transcript) -> String {
    let mut futures = Vec::new();
    let mut body = String::new();
    let mut needs_run_cell = false;
    if let Some(startup) = transcript.opened.as_ref().and_then(|opened| opened.startup.as_deref()) {
        body.push_str("\n# %% startup\n");
        needs_run_cell |= push_source(&mut body, 0, source(startup), false, &mut futures);
    }
    for entry in &transcript.entries {
        match entry {
            Entry::Cell(cell) => needs_run_cell |= push_cell(&mut body, cell, &mut futures),
            Entry::Happening(happening) => {
                if let Some(text) = remark(happening) {
                    body.push_str("\n# %% [markdown]\n");
                    push_comment(&mut body, &text);
                }
            }
        }
    }
    let mut script = format!("# Session {} of pylair, exported {}", transcript.name, transcript.exported);
    if let Some(opened) = &transcript.opened {
        let cwd = opened.cwd.replace(char::is_control, "?");
        let _infallible = write!(script, "; Python {} in {cwd}", opened.python);
    }
    script.push_str(".\n# What was undone is left out. Runs with plain python; `# %%` begins a cell.\n");
    for note in &transcript.notes {
        push_comment(&mut script, &format!("Note: {note}."));
    }
    for future in futures {
        script.push_str(&future);
        script.push('\n');
    }
    if needs_run_cell {
        script.push('\n');
        script.push_str(RUN_CELL);
    }
    script.push_str(&body);
    script
}

/// Returns whether it needs `_run_cell`.
fn push_cell(body: &mut String, cell: &Cell, futures: &mut Vec<String>) -> bool {
    let remark = cell.remark();
    let _infallible = writeln!(body, "\n# %% cell {}", cell.cell);
    if !remark.is_empty() {
        push_comment(body, &format!("Cell {} {remark}", cell.cell));
    }
    match cell.part() {
        Part::Runs => push_source(body, cell.cell, cell.source(), false, futures),
        Part::Raises => push_source(body, cell.cell, cell.source(), true, futures),
        Part::Shown => {
            push_comment(body, cell.code.trim_end());
            false
        }
    }
}

/// Code as it is where that can be, else as a string for `_run_cell`. Returns whether it needs that.
///
/// Imports from `__future__` go to the top, where alone a file may have them.
fn push_source(body: &mut String, number: u64, source: &str, raises: bool, futures: &mut Vec<String>) -> bool {
    let source = without_futures(source, futures);
    if raises || lexer::is_only_a_cell(&source) {
        let raises = if raises { ", raises=True" } else { "" };
        let _infallible = writeln!(body, "_run_cell({number}, {}{raises})", literal(&source));
        return true;
    }
    body.push_str(&source);
    if !source.ends_with('\n') {
        body.push('\n');
    }
    false
}

fn without_futures(source: &str, futures: &mut Vec<String>) -> String {
    let mut text = source.to_owned();
    for at in lexer::future_imports(source).into_iter().rev() {
        let import = &source[at.clone()];
        if !futures.iter().any(|known| known == import) {
            futures.push(import.to_owned());
        }
        // The lines stay, for the numbers in tracebacks; `pass` keeps a block from being empty.
        let lines = import.matches('\n').count();
        text.replace_range(at, &format!("pass{}", "\n".repeat(lines)));
    }
    text
}

/// Source as a Python string that begins with a line end: as it is where that can be, else escaped.
fn literal(source: &str) -> String {
    let source = source.trim_end_matches('\n');
    // In a file a carriage return is a line end, in a string it may be meant.
    let quotes = ["'''", "\"\"\""].into_iter().find(|quotes| !source.contains(*quotes) && !source.contains('\r'));
    match quotes {
        Some(quotes) => format!("r{quotes}\n{source}\n{quotes}"),
        None => serde_json::to_string(&format!("\n{source}\n")).unwrap_or_default(),
    }
}

fn push_comment(body: &mut String, text: &str) {
    // Python ends a line at each of these.
    for line in text.split(['\n', '\r', '\u{c}']) {
        let _infallible = writeln!(body, "{}", format!("# {line}").trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::{super::record::tests::sample, *};

    #[test]
    fn cells_that_cannot_run_as_they_are_are_wrapped_or_shown() {
        let script = script(&sample());
        let body = script.split_once("_traceback.print_exc()\n").expect("one cell raised").1;
        assert_eq!(
            body,
            "\n# %% startup\nimport math\n\
             \n# %% cell 1\nprint('a')\n\
             \n# %% cell 2\n# Cell 2 raised ValueError: bad: <b>\n_run_cell(2, r'''\nx = 1\nraise ValueError('bad: <b>')\n''', raises=True)\n\
             \n# %% [markdown]\n# The session was restarted here: all variables were gone.\n\
             \n# %% cell 3\n_run_cell(3, r'''\nawait f()\n''')\n\
             \n# %% cell 4\n# Cell 4 was interrupted; what it had done until then cannot be repeated\n# while True: pass\n"
        );
    }

    #[test]
    fn imports_from_the_future_go_to_the_top() {
        let mut futures = Vec::new();
        let mut body = String::new();
        push_source(&mut body, 1, "from __future__ import annotations\nx: Y = 1", false, &mut futures);
        assert_eq!(
            (body.as_str(), futures.as_slice()),
            ("pass\nx: Y = 1\n", &["from __future__ import annotations".to_owned()][..])
        );
    }

    #[test]
    fn any_source_can_be_a_literal() {
        assert_eq!(literal("x = '\\n'"), "r'''\nx = '\\n'\n'''");
        assert_eq!(literal("x = '''a'''"), "r\"\"\"\nx = '''a'''\n\"\"\"");
        assert_eq!(literal("'''a''' \"\"\"b\"\"\"\\"), r#""\n'''a''' \"\"\"b\"\"\"\\\n""#);
    }
}
