//! The probe, as the daemon carries it: every module of `probe/pylair`, how it is started, and the frames that it speaks (`wire`).
//!
//! Knows no process and no descriptor: who starts a probe and who holds a link to it is above.

pub mod directory;
pub mod wire;

use std::{collections::BTreeMap, fmt::Write};

/// Every module of the probe that is sent over a launcher's stdin. A test compares this table with the directory.
const SOURCES: &[(&str, &str)] = &[
    ("", include_str!("../../../probe/pylair/__init__.py")),
    ("activate", include_str!("../../../probe/pylair/activate.py")),
    ("app", include_str!("../../../probe/pylair/app.py")),
    ("at_fork", include_str!("../../../probe/pylair/at_fork.py")),
    ("attached", include_str!("../../../probe/pylair/attached.py")),
    ("calls", include_str!("../../../probe/pylair/calls.py")),
    ("cell", include_str!("../../../probe/pylair/cell.py")),
    ("checking", include_str!("../../../probe/pylair/checking.py")),
    ("checkpoint", include_str!("../../../probe/pylair/checkpoint.py")),
    ("children", include_str!("../../../probe/pylair/children.py")),
    ("classes", include_str!("../../../probe/pylair/classes.py")),
    ("compare", include_str!("../../../probe/pylair/compare.py")),
    ("complete", include_str!("../../../probe/pylair/complete.py")),
    ("confine", include_str!("../../../probe/pylair/confine.py")),
    ("connection", include_str!("../../../probe/pylair/connection.py")),
    ("crashes", include_str!("../../../probe/pylair/crashes.py")),
    ("delivery", include_str!("../../../probe/pylair/delivery.py")),
    ("descriptors", include_str!("../../../probe/pylair/descriptors.py")),
    ("display", include_str!("../../../probe/pylair/display.py")),
    ("enforced", include_str!("../../../probe/pylair/enforced.py")),
    ("errors", include_str!("../../../probe/pylair/errors.py")),
    ("event_loop", include_str!("../../../probe/pylair/event_loop.py")),
    ("evidence", include_str!("../../../probe/pylair/evidence.py")),
    ("execute", include_str!("../../../probe/pylair/execute.py")),
    ("executing", include_str!("../../../probe/pylair/executing.py")),
    ("facts", include_str!("../../../probe/pylair/facts.py")),
    ("files", include_str!("../../../probe/pylair/files.py")),
    ("forking", include_str!("../../../probe/pylair/forking.py")),
    ("freezing", include_str!("../../../probe/pylair/freezing.py")),
    ("frozen", include_str!("../../../probe/pylair/frozen.py")),
    ("git_state", include_str!("../../../probe/pylair/git_state.py")),
    ("handlers", include_str!("../../../probe/pylair/handlers.py")),
    ("images", include_str!("../../../probe/pylair/images.py")),
    ("imported", include_str!("../../../probe/pylair/imported.py")),
    ("kernel", include_str!("../../../probe/pylair/kernel.py")),
    ("listening", include_str!("../../../probe/pylair/listening.py")),
    ("loader", include_str!("../../../probe/pylair/loader.py")),
    ("locks", include_str!("../../../probe/pylair/locks.py")),
    ("log_text", include_str!("../../../probe/pylair/log_text.py")),
    ("logs", include_str!("../../../probe/pylair/logs.py")),
    ("look", include_str!("../../../probe/pylair/look.py")),
    ("lookups", include_str!("../../../probe/pylair/lookups.py")),
    ("lost", include_str!("../../../probe/pylair/lost.py")),
    ("magics", include_str!("../../../probe/pylair/magics.py")),
    ("mappings", include_str!("../../../probe/pylair/mappings.py")),
    ("output", include_str!("../../../probe/pylair/output.py")),
    ("packages", include_str!("../../../probe/pylair/packages.py")),
    ("paths", include_str!("../../../probe/pylair/paths.py")),
    ("peek", include_str!("../../../probe/pylair/peek.py")),
    ("pickling", include_str!("../../../probe/pylair/pickling.py")),
    ("pictures", include_str!("../../../probe/pylair/pictures.py")),
    ("place", include_str!("../../../probe/pylair/place.py")),
    ("plain_threads", include_str!("../../../probe/pylair/plain_threads.py")),
    ("preview", include_str!("../../../probe/pylair/preview.py")),
    ("private_directory", include_str!("../../../probe/pylair/private_directory.py")),
    ("pytest_plugin", include_str!("../../../probe/pylair/pytest_plugin.py")),
    ("real", include_str!("../../../probe/pylair/real.py")),
    ("records", include_str!("../../../probe/pylair/records.py")),
    ("registry", include_str!("../../../probe/pylair/registry.py")),
    ("replaying", include_str!("../../../probe/pylair/replaying.py")),
    ("reporting", include_str!("../../../probe/pylair/reporting.py")),
    ("restoring", include_str!("../../../probe/pylair/restoring.py")),
    ("results", include_str!("../../../probe/pylair/results.py")),
    ("rich", include_str!("../../../probe/pylair/rich.py")),
    ("saving", include_str!("../../../probe/pylair/saving.py")),
    ("scratch", include_str!("../../../probe/pylair/scratch.py")),
    ("script", include_str!("../../../probe/pylair/script.py")),
    ("secluded", include_str!("../../../probe/pylair/secluded.py")),
    ("serving", include_str!("../../../probe/pylair/serving.py")),
    ("signature", include_str!("../../../probe/pylair/signature.py")),
    ("snapshot", include_str!("../../../probe/pylair/snapshot.py")),
    ("snapshot_file", include_str!("../../../probe/pylair/snapshot_file.py")),
    ("source", include_str!("../../../probe/pylair/source.py")),
    ("spool", include_str!("../../../probe/pylair/spool.py")),
    ("statements", include_str!("../../../probe/pylair/statements.py")),
    ("streams", include_str!("../../../probe/pylair/streams.py")),
    ("tables", include_str!("../../../probe/pylair/tables.py")),
    ("tasks", include_str!("../../../probe/pylair/tasks.py")),
    ("template", include_str!("../../../probe/pylair/template.py")),
    ("throwaway", include_str!("../../../probe/pylair/throwaway.py")),
    ("tracing", include_str!("../../../probe/pylair/tracing.py")),
    ("unwind", include_str!("../../../probe/pylair/unwind.py")),
    ("users_code", include_str!("../../../probe/pylair/users_code.py")),
    ("verify", include_str!("../../../probe/pylair/verify.py")),
    ("visiting", include_str!("../../../probe/pylair/visiting.py")),
    ("walls", include_str!("../../../probe/pylair/walls.py")),
    ("wire", include_str!("../../../probe/pylair/wire.py")),
    ("witnessing", include_str!("../../../probe/pylair/witnessing.py")),
    ("worker", include_str!("../../../probe/pylair/worker.py")),
    ("wrapped", include_str!("../../../probe/pylair/wrapped.py")),
];

/// The argument of `python -c` that starts a probe.
pub fn stage0() -> &'static str {
    last_line(include_str!("../../../probe/pylair/bootstrap/stage0.py"))
}

type Sources = BTreeMap<&'static str, &'static str>;

/// Modules, which of them to run, and with what: the JSON object that a bootstrap reads.
fn payload<C: serde::Serialize>(sources: &Sources, entry: &str, config: &C) -> Vec<u8> {
    #[derive(serde::Serialize)]
    struct Payload<'a, C> {
        sources: &'a Sources,
        entry: &'a str,
        config: &'a C,
    }
    serde_json::to_vec(&Payload { sources, entry, config }).expect("configs serialise")
}

/// The payload for a process that is visited, which waits while it is brought.
pub fn visiting_payload<C: serde::Serialize>(entry: &str, config: &C) -> Vec<u8> {
    payload(&needed_by(entry), entry, config)
}

/// A module with those that it imports, and those that they import, at their top or when they need them.
fn needed_by(entry: &str) -> Sources {
    let mut needed: Sources = SOURCES.iter().filter(|(name, _)| matches!(*name, "" | "loader")).copied().collect();
    let mut open = vec![entry.to_owned()];
    while let Some(name) = open.pop() {
        if let Some((name, text)) = SOURCES.iter().find(|(known, _)| *known == name)
            && needed.insert(name, text).is_none()
        {
            open.extend(imports(text));
        }
    }
    needed
}

/// The modules of the probe that a module of the probe imports. Names that are none are of no harm.
fn imports(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("from .") {
        let (module, rest) = text[at + "from .".len()..].split_once(" import ").unwrap_or_default();
        if !module.is_empty() {
            found.push(module.to_owned());
            continue;
        }
        let end = if rest.starts_with('(') { rest.find(')') } else { rest.find('\n') };
        let names = rest[..end.unwrap_or(rest.len())].split(|c: char| !(c.is_alphanumeric() || c == '_'));
        found.extend(names.filter(|name| !name.is_empty()).map(str::to_owned));
    }
    found
}

/// What to write to a launcher's stdin so that `entry` runs with `config`.
pub fn bootstrap<C: serde::Serialize>(entry: &str, config: &C) -> Vec<u8> {
    let payload = payload(&SOURCES.iter().copied().collect(), entry, config);
    let mut text = last_line(include_str!("../../../probe/pylair/bootstrap/stage1.py"))
        .replace("@SIZE@", &payload.len().to_string())
        .replace("@MARK@", "0");
    writeln!(text).expect("a String cannot refuse text");
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(&payload);
    bytes
}

/// `{"sources": {module: text}}`, which `sitecustomize` finds beside itself.
pub fn packed() -> Vec<u8> {
    serde_json::to_vec(&serde_json::json!({ "sources": needed_by("wrapped") })).expect("texts serialise")
}

/// The same for the pytest plugin, which finds it beside itself.
pub fn packed_for_tests() -> Vec<u8> {
    serde_json::to_vec(&serde_json::json!({ "sources": needed_by("pytest_plugin") })).expect("texts serialise")
}

/// `_pylair_pytest.py`: the script that runs pytest, and the plugin that it runs it with.
pub fn pytest_script() -> &'static str {
    include_str!("../../../probe/pylair/bootstrap/_pylair_pytest.py")
}

/// What Python runs at its start in a command that was wrapped.
pub fn sitecustomize() -> &'static str {
    include_str!("../../../probe/pylair/bootstrap/sitecustomize.py")
}

fn last_line(text: &'static str) -> &'static str {
    text.trim_end().rsplit('\n').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_holds_every_module_of_the_probe() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../probe/pylair");
        let mut files: Vec<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter_map(|name| Some(name.strip_suffix(".py")?.replace("__init__", "")))
            .collect();
        files.sort();
        let table: Vec<&str> = SOURCES.iter().map(|(name, _)| *name).collect();
        assert_eq!(files, table);
    }

    #[test]
    fn a_visited_process_gets_the_modules_it_needs_and_no_others() {
        for entry in ["attached", "wrapped"] {
            let needed = needed_by(entry);
            for name in ["", "loader", entry, "app", "serving", "calls", "executing", "look", "logs", "tasks", "wire"] {
                assert!(needed.contains_key(name), "{entry} needs {name}");
            }
            for name in ["worker", "template", "checkpoint", "saving", "confine"] {
                assert!(!needed.contains_key(name), "{entry} does not need {name}");
            }
        }
        let text =
            "from . import a, b\nfrom .c import d\n    from . import (\n        e,\n        f,\n    )\nimport g\n";
        assert_eq!(imports(text), ["a", "b", "c", "e", "f"]);
    }

    #[test]
    fn stage_one_is_a_single_line() {
        let bytes = bootstrap("template", &serde_json::json!({}));
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap();
        let size: usize = String::from_utf8_lossy(line)
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|digits| digits.parse().ok())
            .max()
            .unwrap();
        assert_eq!(bytes.len(), line.len() + 1 + size);
    }
}
