//! Stacks as people and models read them: threads with their frames, tasks as a tree of who waits for whom.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use super::{Frame, INNERMOST_FRAMES, Stacks, Task, Thread};

/// Of the whole text, unless the caller says otherwise.
pub const MAX_CHARS: usize = 25_000;

/// How much of everything is shown. The first that fits is taken.
#[derive(Debug, Clone, Copy)]
struct Detail {
    frames: usize,
    locals: usize,
    value_chars: usize,
}

const DETAILS: &[Detail] = &[
    Detail { frames: usize::MAX, locals: usize::MAX, value_chars: usize::MAX },
    Detail { frames: usize::MAX, locals: 12, value_chars: 80 },
    Detail { frames: 40, locals: 8, value_chars: 60 },
    Detail { frames: 20, locals: 5, value_chars: 40 },
    Detail { frames: 12, locals: 3, value_chars: 40 },
    Detail { frames: 8, locals: 0, value_chars: 0 },
    Detail { frames: 4, locals: 0, value_chars: 0 },
    Detail { frames: 2, locals: 0, value_chars: 0 },
];

impl Stacks {
    /// Readable text of at most so many characters, which says what it leaves out.
    pub fn text(&self, max_chars: usize) -> String {
        let mut text = String::new();
        for (index, detail) in DETAILS.iter().enumerate() {
            text = self.written(*detail);
            if index > 0 {
                let _infallible = writeln!(
                    text,
                    "Note: shortened to fit; of each stack {} frames with {} variables are shown at most.",
                    if detail.frames == usize::MAX { "all".to_owned() } else { detail.frames.to_string() },
                    detail.locals
                );
            }
            if text.chars().count() <= max_chars {
                return text;
            }
        }
        // Even so there is too much: whole lines until it is full.
        let end = text.char_indices().nth(max_chars.saturating_sub(100)).map_or(text.len(), |(at, _)| at);
        let end = text[..end].rfind('\n').map_or(0, |at| at + 1);
        let left_out = text[end..].lines().count();
        text.truncate(end);
        let _infallible = writeln!(text, "Note: {left_out} more lines are left out.");
        text
    }

    fn written(&self, detail: Detail) -> String {
        let mut text = format!("Python {}, process {}\n", self.python, self.pid);
        for (index, thread) in self.threads.iter().enumerate() {
            thread.write(&mut text, index + 1, detail);
        }
        if !self.tasks.is_empty() {
            let _infallible = writeln!(text, "\nasyncio: {} tasks, each above those it waits for", self.tasks.len());
            Tree::new(&self.tasks, detail).write(&mut text);
        }
        for note in self.tasks_note.iter().chain(&self.notes) {
            let _infallible = writeln!(text, "Note: {note}.");
        }
        text
    }
}

impl Thread {
    fn write(&self, text: &mut String, number: usize, detail: Detail) {
        let mut facts = Vec::new();
        if self.holds_gil {
            facts.push("holds the GIL".to_owned());
        }
        match self.idle {
            Some(true) => facts.push("waiting".to_owned()),
            Some(false) => facts.push("running".to_owned()),
            None => {}
        }
        facts.extend(self.current.then(|| "answers this".to_owned()));
        facts.extend(self.os_id.map(|id| format!("tid {id}")));
        let name = self.name.as_deref().map(|name| format!(" \"{name}\"")).unwrap_or_default();
        let _infallible = writeln!(text, "\nthread {number}{name} ({})", facts.join(", "));
        write_frames(text, &self.frames, self.cut, "  ", detail);
        if self.frames.is_empty() {
            text.push_str("  in no Python code\n");
        }
        if self.incomplete {
            text.push_str("  it changed while it was read: frames may be missing\n");
        }
    }
}

fn write_frames(text: &mut String, frames: &[Frame], cut: usize, indent: &str, detail: Detail) {
    // The innermost say where it is, the outermost how it began.
    let outermost = detail.frames / 4;
    let (from, to) = if frames.len() > detail.frames {
        (detail.frames - outermost, frames.len() - outermost)
    } else {
        (INNERMOST_FRAMES, INNERMOST_FRAMES)
    };
    let left_out = cut + to.min(frames.len()).saturating_sub(from);
    for (index, frame) in frames.iter().enumerate() {
        if index == from && left_out > 0 {
            let _infallible = writeln!(text, "{indent}… {left_out} more frames …");
        }
        if (from..to).contains(&index) {
            continue;
        }
        let _infallible = write!(text, "{indent}{}:{} in {}", frame.file, frame.line, frame.function);
        let mut separator = "   ";
        for local in frame.locals.iter().take(detail.locals) {
            let value: String = local.value.chars().take(detail.value_chars).collect();
            let more = if value.len() < local.value.len() { "…" } else { "" };
            let _infallible = write!(text, "{separator}{} = {value}{more}", local.name);
            separator = ", ";
        }
        let left_out = frame.locals.len().saturating_sub(detail.locals) + frame.more_locals;
        if detail.locals > 0 && left_out > 0 {
            let _infallible = write!(text, ", … {left_out} more");
        }
        text.push('\n');
        if let Some(source) = &frame.source {
            let _infallible = writeln!(text, "{indent}    {source}");
        }
    }
}

/// Tasks below those that wait for them.
struct Tree<'a> {
    tasks: BTreeMap<u64, &'a Task>,
    order: Vec<u64>,
    detail: Detail,
}

impl<'a> Tree<'a> {
    /// Deeper than this it goes on to the right without end.
    const MAX_DEPTH: usize = 12;

    fn new(tasks: &'a [Task], detail: Detail) -> Self {
        let order = tasks.iter().map(|task| task.id).collect();
        Self { tasks: tasks.iter().map(|task| (task.id, task)).collect(), order, detail }
    }

    fn write(&self, text: &mut String) {
        let mut written = BTreeSet::new();
        let nobody_waits = |id: &&u64| self.tasks[id].awaited_by.iter().all(|waiter| !self.tasks.contains_key(waiter));
        for id in self.order.iter().filter(nobody_waits) {
            self.write_task(text, *id, &mut Vec::new(), &mut written);
        }
        // What is left waits in circles.
        for id in &self.order {
            if !written.contains(id) {
                self.write_task(text, *id, &mut Vec::new(), &mut written);
            }
        }
    }

    fn write_task(&self, text: &mut String, id: u64, above: &mut Vec<u64>, written: &mut BTreeSet<u64>) {
        let task = self.tasks[&id];
        let indent = "  ".repeat(above.len());
        let _infallible = write!(text, "{indent}- {} ({}) {}", task.name, task.state, task.coroutine);
        if above.contains(&id) {
            text.push_str("   CYCLE: it waits for itself\n");
            return;
        }
        if !written.insert(id) {
            text.push_str("   (shown above)\n");
            return;
        }
        text.push('\n');
        write_frames(text, &task.frames, task.cut, &format!("{indent}    "), self.detail);
        let below: Vec<_> = task.awaits.iter().filter(|below| self.tasks.contains_key(below)).collect();
        if above.len() == Self::MAX_DEPTH && !below.is_empty() {
            let _infallible = writeln!(text, "{indent}    waits for {} more tasks", below.len());
            written.extend(below);
            return;
        }
        above.push(id);
        for below in below {
            self.write_task(text, *below, above, written);
        }
        above.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Local;

    fn frame(function: &str, locals: &[(&str, &str)]) -> Frame {
        let local = |(name, value): &(&str, &str)| Local { name: (*name).to_owned(), value: (*value).to_owned() };
        Frame {
            function: function.to_owned(),
            file: "/app.py".to_owned(),
            line: 3,
            source: None,
            locals: locals.iter().map(local).collect(),
            more_locals: 0,
        }
    }

    fn task(id: u64, awaits: &[u64], awaited_by: &[u64]) -> Task {
        Task {
            id,
            name: format!("Task-{id}"),
            state: "waiting".to_owned(),
            coroutine: "work".to_owned(),
            awaits: awaits.to_vec(),
            awaited_by: awaited_by.to_vec(),
            ..Task::default()
        }
    }

    #[test]
    fn a_thread_is_told_with_its_frames_and_variables() {
        let thread = Thread {
            name: Some("MainThread".to_owned()),
            holds_gil: true,
            idle: Some(false),
            os_id: Some(7),
            frames: vec![frame("f", &[("x", "3"), ("name", "'a'")]), frame("<module>", &[])],
            ..Thread::default()
        };
        let stacks = Stacks { pid: 7, python: "3.13.0".to_owned(), threads: vec![thread], ..Stacks::default() };
        assert_eq!(
            stacks.text(MAX_CHARS),
            "Python 3.13.0, process 7\n\nthread 1 \"MainThread\" (holds the GIL, running, tid 7)\n  \
             /app.py:3 in f   x = 3, name = 'a'\n  /app.py:3 in <module>\n"
        );
    }

    #[test]
    fn tasks_are_a_tree_and_circles_are_marked() {
        let tasks = vec![
            task(1, &[2, 3], &[]),
            task(2, &[3], &[1]),
            task(3, &[], &[1, 2]),
            task(8, &[9], &[9]),
            task(9, &[8], &[8]),
        ];
        let stacks = Stacks { tasks, ..Stacks::default() };
        let text = stacks.text(MAX_CHARS);
        let tree: Vec<_> = text.lines().skip_while(|line| !line.starts_with("- ")).collect();
        assert_eq!(
            tree,
            [
                "- Task-1 (waiting) work",
                "  - Task-2 (waiting) work",
                "    - Task-3 (waiting) work",
                "  - Task-3 (waiting) work   (shown above)",
                "- Task-8 (waiting) work",
                "  - Task-9 (waiting) work",
                "    - Task-8 (waiting) work   CYCLE: it waits for itself",
            ]
        );
    }

    #[test]
    fn too_much_is_shortened_and_said_so() {
        let value = "v".repeat(150);
        let frames: Vec<_> = (0..100).map(|n| frame(&format!("f{n}"), &[("a", &value), ("b", &value)])).collect();
        let thread = Thread { frames, cut: 5, ..Thread::default() };
        let few = Stacks { threads: vec![thread.clone()], ..Stacks::default() };
        let text = few.text(12_000);
        assert!(text.chars().count() <= 12_000, "{}", text.len());
        assert!(text.contains("in f0 ") && text.contains("in f99") && text.contains("shortened to fit"), "{text}");
        assert!(text.contains("… 65 more frames …"), "{text}");
        let many = Stacks { threads: vec![thread; 200], ..Stacks::default() };
        let text = many.text(5_000);
        assert!(text.chars().count() <= 5_000 && text.contains("more lines are left out"), "{}", text.len());
    }
}
