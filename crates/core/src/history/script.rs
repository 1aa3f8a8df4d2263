//! A session as a Python script in the percent format, which editors show as cells and plain `python` runs to its end.

use std::fmt::Write;

use super::{
    Cell, Entry,
    export::{Part, Transcript, source},
    notebook::remark,
};
use pylair_python::lexer;

/// Runs source as a session does: awaiting at the top level, names in the module, one event loop for all cells, imports
/// from `__future__` for all cells that follow. It lives in `builtins`, where no cell comes across it.
const RUN_CELL: &str = r#"
def __pylair_cell__():
    import __future__, ast, asyncio, builtins, linecache, sys, traceback

    namespace, stderr, loop = globals(), sys.stderr, None
    futures = 0
    for feature in __future__.all_feature_names:
        futures |= getattr(__future__, feature).compiler_flag

    def compiled(tree, name, mode):
        code = compile(tree, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | run_cell.flags)
        run_cell.flags |= code.co_flags & futures
        return code

    def run(code):
        nonlocal loop
        if not code.co_flags & 0x80:  # not a coroutine
            return eval(code, namespace)
        if loop is None or loop.is_closed():
            loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(eval(code, namespace))

    def run_cell(number, source, raises=False, value=False):
        """Runs a cell that is more than a part of a file: one that awaits, that raised, or whose value is used as `_`."""
        name, source = "<cell %d>" % number, source[1:]
        linecache.cache[name] = len(source), None, [line + "\n" for line in source.split("\n")], name
        try:
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST | run_cell.flags
            tree = compile(source, name, "exec", flags)
            last = tree.body.pop() if value and isinstance(tree.body[-1], ast.Expr) else None
            code = compiled(tree, name, "exec")
            last = last and compiled(ast.Expression(last.value), name, "eval")
            run(code)
            if last is not None:
                result = run(last)
                if result is not None:
                    builtins._ = result
        except BaseException as error:
            if isinstance(error, SystemExit) and (error.code is None or error.code == 0):
                return
            if not raises:
                raise
            try:
                traceback.print_exc(file=stderr)
            except BaseException:
                print("the cell raised", type(error), file=stderr)

    run_cell.flags = 0
    builtins.__pylair_cell__ = run_cell


__pylair_cell__()
del __pylair_cell__
"#;

/// What a session has and plain Python has not.
const DISPLAY: &str = r#"
def display(*values, **options):
    for value in values:
        print(value if type(value) is str else repr(value))


__import__("builtins").display = display
del display
"#;

pub(super) fn script(transcript: &Transcript) -> String {
    let startup = transcript.opened.as_ref().and_then(|opened| opened.startup.as_deref()).map(source);
    let codes = || startup.into_iter().chain(cells(transcript).map(Cell::source));
    let mut body = Body {
        values: codes().any(|code| lexer::mentions(code, "_")),
        may_hoist: !transcript.entries.iter().any(is_fresh_start),
        ..Body::default()
    };
    if let Some(startup) = startup {
        body.text.push_str("\n# %% startup\n");
        // One that raised anything else would not have let the session begin.
        let may_exit = ["exit", "quit", "SystemExit"].iter().any(|name| lexer::mentions(startup, name));
        body.push_source(&Source { number: 0, text: startup, raises: may_exit, value: false });
    }
    for entry in &transcript.entries {
        match entry {
            Entry::Cell(cell) => body.push_cell(cell),
            Entry::Happening(happening) => {
                if let Some(text) = remark(happening) {
                    body.text.push_str("\n# %% [markdown]\n");
                    push_comment(&mut body.text, &text);
                }
                if is_fresh_start(entry) && body.futures && !startup.is_some_and(has_futures) {
                    body.futures = false;
                    body.text.push_str("__pylair_cell__.flags = 0\n");
                }
            }
        }
    }
    // The first line that names an encoding counts, and a path or a cell may look as if it did.
    let mut script = "# -*- coding: utf-8 -*-\n".to_owned();
    let mut about = format!("Session {} of pylair, exported {}", transcript.name, transcript.exported);
    if let Some(opened) = &transcript.opened {
        let cwd = opened.cwd.replace(char::is_control, "?");
        let _infallible = write!(about, "; Python {} in {cwd}", opened.python);
    }
    push_comment(&mut script, &format!("{about}."));
    script.push_str("# What was undone is left out. Runs with plain python; `# %%` begins a cell.\n");
    for note in &transcript.notes {
        push_comment(&mut script, &format!("Note: {note}."));
    }
    for future in &body.hoisted {
        script.push_str(future);
        script.push('\n');
    }
    if body.text.contains("\n__pylair_cell__(") {
        script.push_str(RUN_CELL);
    }
    if codes().any(|code| lexer::mentions(code, "display")) {
        script.push_str(DISPLAY);
    }
    script.push_str(&body.text);
    script
}

fn cells(transcript: &Transcript) -> impl Iterator<Item = &Cell> {
    let cells = transcript.entries.iter().filter_map(|entry| match entry {
        Entry::Cell(cell) => Some(&**cell),
        Entry::Happening(_) => None,
    });
    cells.filter(|cell| cell.part() != Part::Shown)
}

/// Whether the session began anew here, without what `from __future__ import` had changed.
fn is_fresh_start(entry: &Entry) -> bool {
    matches!(entry, Entry::Happening(happening) if matches!(happening.event, "restarted" | "cleared"))
}

/// Says yes when in doubt.
fn has_futures(source: &str) -> bool {
    source.contains("__future__")
}

/// Code that is to run.
struct Source<'a> {
    number: u64,
    text: &'a str,
    raises: bool,
    /// The session had its value as `_` afterwards.
    value: bool,
}

/// The script after its prelude.
#[derive(Default)]
struct Body {
    text: String,
    /// Some cell uses `_`.
    values: bool,
    /// An import from `__future__` that the session begins with may stand at the top of the file.
    may_hoist: bool,
    hoisted: Vec<String>,
    /// From here on code is compiled differently than the rest of the file.
    futures: bool,
}

impl Body {
    fn push_cell(&mut self, cell: &Cell) {
        let remark = cell.remark();
        let _infallible = writeln!(self.text, "\n# %% cell {}", cell.cell);
        if !remark.is_empty() {
            push_comment(&mut self.text, &format!("Cell {} {remark}", cell.cell));
        }
        let raises = match cell.part() {
            Part::Runs => false,
            Part::Raises => true,
            Part::Shown => {
                push_comment(&mut self.text, cell.code.trim_end());
                return;
            }
        };
        let value = self.values && cell.result.is_some();
        self.push_source(&Source { number: cell.cell, text: cell.source(), raises, value });
    }

    /// Code as it is where that can be, else as a string for the function that runs cells.
    fn push_source(&mut self, source: &Source<'_>) {
        let is_plain = !source.raises
            && !source.value
            && !self.futures
            && !has_unprintable(source.text)
            && !lexer::is_only_a_cell(source.text);
        if is_plain {
            let hoisted = self.hoist(source.text);
            let text = hoisted.as_deref().unwrap_or(source.text);
            if hoisted.is_some() || !has_futures(text) {
                self.may_hoist = false;
                self.text.push_str(text);
                if !text.ends_with('\n') {
                    self.text.push('\n');
                }
                return;
            }
        }
        self.may_hoist = false;
        self.futures |= has_futures(source.text) && !self.is_hoisted(source.text);
        let _infallible = write!(self.text, "__pylair_cell__({}, {}", source.number, literal(source.text));
        self.text.push_str(if source.raises { ", raises=True" } else { "" });
        self.text.push_str(if source.value { ", value=True)\n" } else { ")\n" });
    }

    /// Takes the imports from `__future__` out of the first code of all, for the top of the file, where alone a file may
    /// have them. Returns what is left of the code.
    fn hoist(&mut self, source: &str) -> Option<String> {
        let futures = lexer::leading_futures(source);
        if !self.may_hoist || futures.is_empty() || source.matches("__future__").count() != futures.len() {
            return None;
        }
        let mut text = source.to_owned();
        for at in futures.into_iter().rev() {
            let import = &source[at.clone()];
            self.hoisted.insert(0, import.to_owned());
            // The lines stay, for the numbers in tracebacks.
            let lines = import.matches('\n').count();
            text.replace_range(at, &format!("pass{}", "\n".repeat(lines)));
        }
        Some(text)
    }

    /// Whether all that the source imports from `__future__` holds for the whole file.
    fn is_hoisted(&self, source: &str) -> bool {
        let futures = lexer::leading_futures(source);
        source.matches("__future__").count() == futures.len()
            && futures.into_iter().all(|at| self.hoisted.iter().any(|hoisted| *hoisted == source[at.clone()]))
    }
}

/// Whether there are characters that a file cannot hold or that the lexer and Python may read differently.
fn has_unprintable(source: &str) -> bool {
    let mut chars = source.chars().peekable();
    while let Some(c) = chars.next() {
        let is_line_end = c == '\r' && chars.peek() == Some(&'\n');
        if c.is_control() && !matches!(c, '\n' | '\t') && !is_line_end {
            return true;
        }
    }
    false
}

/// Source as a Python string that begins with a line end: as it is where that can be, else escaped.
fn literal(source: &str) -> String {
    let source = source.trim_end_matches('\n');
    // In a file a carriage return is a line end, in a string it may be meant.
    let is_plain = !source.contains('\r') && !has_unprintable(source);
    let quotes = ["'''", "\"\"\""].into_iter().find(|quotes| is_plain && !source.contains(*quotes));
    match quotes {
        Some(quotes) => format!("r{quotes}\n{source}\n{quotes}"),
        None => serde_json::to_string(&format!("\n{source}\n")).unwrap_or_default(),
    }
}

fn push_comment(body: &mut String, text: &str) {
    // Python ends a line at each of these.
    for line in text.split(['\n', '\r', '\u{c}']) {
        let line = line.replace(|c: char| c.is_control() && c != '\t', "?");
        let _infallible = writeln!(body, "{}", format!("# {line}").trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::{super::record::tests::sample, *};

    #[test]
    fn cells_that_cannot_run_as_they_are_are_wrapped_or_shown() {
        let script = script(&sample());
        let body = script.split_once("del __pylair_cell__\n").expect("one cell raised").1;
        assert_eq!(
            body,
            "\n# %% startup\nimport math\n\
             \n# %% cell 1\nprint('a')\n\
             \n# %% cell 2\n# Cell 2 raised ValueError: bad: <b>\n__pylair_cell__(2, r'''\nx = 1\nraise ValueError('bad: <b>')\n''', raises=True)\n\
             \n# %% [markdown]\n# The session was restarted here: all variables were gone.\n\
             \n# %% cell 3\n__pylair_cell__(3, r'''\nawait f()\n''')\n\
             \n# %% cell 4\n# Cell 4 was interrupted; what it had done until then cannot be repeated\n# while True: pass\n"
        );
    }

    #[test]
    fn only_the_first_code_has_its_imports_from_the_future_at_the_top() {
        let push = |body: &mut Body, text| body.push_source(&Source { number: 1, text, raises: false, value: false });
        let code = "from __future__ import annotations\nx: Y = 1";
        let mut body = Body { may_hoist: true, ..Body::default() };
        push(&mut body, code);
        push(&mut body, code);
        push(&mut body, "x");
        assert_eq!(body.hoisted, ["from __future__ import annotations"]);
        assert_eq!(body.text, format!("pass\nx: Y = 1\n__pylair_cell__(1, r'''\n{code}\n''')\nx\n"));
        let mut body = Body { may_hoist: true, ..Body::default() };
        for text in ["x", code, "y"] {
            push(&mut body, text);
        }
        assert!(body.hoisted.is_empty());
        let wrapped = |code: &str| format!("__pylair_cell__(1, r'''\n{code}\n''')\n");
        assert_eq!(body.text, format!("x\n{}{}", wrapped(code), wrapped("y")));
    }

    #[test]
    fn any_source_can_be_a_literal() {
        assert_eq!(literal("x = '\\n'"), "r'''\nx = '\\n'\n'''");
        assert_eq!(literal("x = '''a'''"), "r\"\"\"\nx = '''a'''\n\"\"\"");
        assert_eq!(literal("x = '\0'"), r#""\nx = '\u0000'\n""#);
        assert_eq!(literal("'''a''' \"\"\"b\"\"\"\\"), r#""\n'''a''' \"\"\"b\"\"\"\\\n""#);
    }
}
