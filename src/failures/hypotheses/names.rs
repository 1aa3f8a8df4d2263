//! Something that was looked up and is not there: a key, an index, an attribute, a name, a module.

use super::{
    Confidence, Fact, Hypothesis, Scene,
    reading::{
        At, brief, expressions, fields_of, files_of_module, keys_of, length_of, names_of_module, pattern, short_name,
        similar, unquote,
    },
};

pub(crate) fn hypotheses(scene: &Scene) -> Vec<Hypothesis> {
    let found = match scene.exception.kind.as_str() {
        "KeyError" => key(scene),
        "IndexError" => index(scene),
        "AttributeError" => attribute(scene),
        "NameError" | "UnboundLocalError" => name(scene),
        "ImportError" | "ModuleNotFoundError" => import(scene),
        _ => None,
    };
    found.into_iter().collect()
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { brief(&names.join(", ")) }
}

fn key(scene: &Scene) -> Option<Hypothesis> {
    let key = scene.exception.message.trim();
    let at = scene.own()?;
    let line = at.statement();
    // Containers that are subscripted on the line, whose values are known, and do not have the key.
    for expression in expressions(&line) {
        if !line[expression.at.end..].starts_with('[') && !line[expression.at.end..].starts_with(".pop(") {
            continue;
        }
        let Some(value) = at.value(&expression.text) else { continue };
        let Some(keys) = keys_of(&value) else { continue };
        if keys.iter().any(|there| there == key) {
            continue;
        }
        let near = similar(unquote(key), keys.iter().map(|there| unquote(there))).first().map(ToString::to_string);
        let text = match &near {
            Some(near) => {
                format!("`{}` has no key {key} at {}; it has '{near}', which may be meant", expression.text, at.place())
            }
            None => format!("`{}` has no key {key} at {}; its keys are {}", expression.text, at.place(), listed(&keys)),
        };
        let evidence = vec![
            at.fact(format!("`{}`", brief(&line))),
            at.fact(format!("keys of {}: {}", expression.text, listed(&keys))),
        ];
        let because = "the container's recorded keys do not have it".to_owned();
        return Some(Hypothesis { text, confidence: Confidence::High, because, evidence });
    }
    // The key is a name whose value is the missing one, or stands there itself.
    let via = at
        .frame
        .locals
        .iter()
        .find(|local| local.value == key)
        .map(|local| format!(" (the value of `{}`)", local.name));
    let source = near_key(scene, at, key);
    let mut evidence = vec![at.fact(format!("`{}`", brief(&line)))];
    let hint = match source {
        Some((near, line, written)) => {
            evidence.push(at.fact_at(line, format!("`{}`", brief(&written))));
            format!("; '{near}', at {}:{line}, is nearly the same", at.frame.file)
        }
        None => String::new(),
    };
    Some(Hypothesis {
        text: format!(
            "no entry for the key {key}{} at {}, `{}`{hint}",
            via.unwrap_or_default(),
            at.place(),
            brief(&line)
        ),
        confidence: if hint.is_empty() { Confidence::Low } else { Confidence::Medium },
        because: "the container itself is not among the recorded values".to_owned(),
        evidence,
    })
}

/// A string in the frame's file that is nearly the key that is missing.
fn near_key(scene: &Scene, at: At, key: &str) -> Option<(String, u32, String)> {
    let wanted = unquote(key);
    let text = scene.unchanged(at)?;
    let mut best: Option<(String, u32, String)> = None;
    for (number, line) in (1..).zip(text.lines().take(5000)) {
        if number == at.frame.line {
            continue;
        }
        let strings: Vec<&str> = pattern!(r#"'([^'\\]{1,60})'|"([^"\\]{1,60})""#)
            .captures_iter(line)
            .filter_map(|parts| parts.get(1).or(parts.get(2)).map(|inside| inside.as_str()))
            .collect();
        if strings.contains(&wanted) {
            return None;
        }
        if best.is_none()
            && let Some(near) = similar(wanted, strings).first()
        {
            best = Some(((*near).to_owned(), number, line.trim().to_owned()));
        }
    }
    best
}

fn index(scene: &Scene) -> Option<Hypothesis> {
    let at = scene.own()?;
    let line = at.statement();
    for expression in expressions(&line) {
        let Some(rest) = line[expression.at.end..].strip_prefix('[') else { continue };
        let Some(value) = at.value(&expression.text) else { continue };
        let length = length_of(&value)?;
        let inside = &rest[..rest.find(']').unwrap_or(rest.len())];
        let asked = at.value(inside).map_or_else(|| inside.to_owned(), |value| format!("{inside} = {value}"));
        let off_by_one = inside.replace(' ', "") == format!("len({})", expression.text);
        let why = if length == 0 {
            "it is empty".to_owned()
        } else if off_by_one {
            format!("the last index is {}, one below its length", length - 1)
        } else {
            format!("its indexes go from 0 to {}", length - 1)
        };
        return Some(Hypothesis {
            text: format!("`{}[{inside}]` at {} asks for more than there is: {why}", expression.text, at.place()),
            confidence: Confidence::High,
            because: "the recorded value shows its length".to_owned(),
            evidence: vec![
                at.fact(format!("{} = {} ({length} items)", expression.text, brief(&value))),
                at.fact(format!("asked for: {asked}")),
            ],
        });
    }
    None
}

/// `'User' object has no attribute 'nmae'`: what it was asked of, and what is there instead.
pub(crate) fn missing_attribute(scene: &Scene) -> Option<(String, String, Vec<String>)> {
    let message = &scene.exception.message;
    let parts = pattern!(r"(?:'([\w.]+)' object|module '([\w.]+)'|type object '([\w.]+)') has no attribute '(\w+)'")
        .captures(message)?;
    let wanted = parts[4].to_owned();
    let at = scene.own()?;
    if let Some(module) = parts.get(2) {
        let there = module_names(scene, module.as_str());
        return Some((format!("module `{}`", module.as_str()), wanted, there));
    }
    let class = parts.get(1).or(parts.get(3))?.as_str().to_owned();
    let line = at.statement();
    let receiver =
        expressions(&line).into_iter().find(|found| line[found.at.end..].starts_with(&format!(".{wanted}")))?;
    let mut there = at.value(&receiver.text).map(|value| fields_of(&value)).unwrap_or_default();
    // Methods and attributes in the class's own source.
    for frame in scene.frames().filter(|at| at.frame.in_app) {
        if let Some(text) = scene.file(&frame.frame.file) {
            there.extend(members_of_class(&text, short_name(&class)));
        }
    }
    if let Some(module) =
        at.local(&receiver.text).and_then(|local| local.kind.rsplit_once('.').map(|(module, _)| module))
    {
        for path in files_of_module(module) {
            if let Some(text) = scene.file(&path) {
                there.extend(members_of_class(&text, short_name(&class)));
            }
        }
    }
    there.sort();
    there.dedup();
    Some((format!("`{}`, a {class},", receiver.text), wanted, there))
}

fn members_of_class(text: &str, class: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let begins = |line: &str| {
        line.strip_prefix("class ")
            .and_then(|rest| rest.strip_prefix(class))
            .is_some_and(|rest| rest.starts_with(['(', ':']))
    };
    let Some(begin) = lines.iter().position(|line| begins(line.trim_start())) else { return Vec::new() };
    let deep = super::reading::indent(lines[begin]);
    let mut names = Vec::new();
    for line in
        lines[begin + 1..].iter().take_while(|line| line.trim().is_empty() || super::reading::indent(line) > deep)
    {
        if let Some(parts) = pattern!(r"^\s+(?:async\s+)?def\s+(\w+)|self\.(\w+)\s*(?::[^=]+)?=[^=]").captures(line) {
            names.extend(parts.get(1).or(parts.get(2)).map(|name| name.as_str().to_owned()));
        }
    }
    names.retain(|name| !name.starts_with("__"));
    names
}

pub(crate) fn module_names(scene: &Scene, module: &str) -> Vec<String> {
    files_of_module(module)
        .iter()
        .find_map(|path| scene.file(path))
        .map(|text| names_of_module(&text))
        .unwrap_or_default()
}

fn attribute(scene: &Scene) -> Option<Hypothesis> {
    let at = scene.own()?;
    let (owner, wanted, there) = missing_attribute(scene)?;
    let near = similar(&wanted, there.iter().map(String::as_str)).first().map(ToString::to_string);
    let mut evidence = vec![at.fact(format!("`{}`", brief(&at.statement())))];
    if !there.is_empty() {
        evidence.push(Fact::told(format!("{owner} has: {}", listed(&there))));
    }
    let (text, confidence, because) = match near {
        Some(near) => (
            format!("{owner} has no attribute `{wanted}` at {}; it has `{near}`, which may be meant", at.place()),
            Confidence::High,
            "the name that is there differs by little".to_owned(),
        ),
        None if there.is_empty() => (
            format!("{owner} has no attribute `{wanted}` at {}", at.place()),
            Confidence::Low,
            "the message says so; what it has instead was not recorded".to_owned(),
        ),
        None => (
            format!("{owner} has no attribute `{wanted}` at {}; it has {}", at.place(), listed(&there)),
            Confidence::Medium,
            "what it has was recorded, and nothing there is like it".to_owned(),
        ),
    };
    Some(Hypothesis { text, confidence, because, evidence })
}

fn name(scene: &Scene) -> Option<Hypothesis> {
    let at = scene.own()?;
    let message = &scene.exception.message;
    let wanted = missing_name(message)?;
    let fact = at.fact(format!("`{}`", brief(&at.statement())));
    if message.contains("local variable") {
        let (first, lines) = scene.function_lines(at);
        let later = super::reading::assigned(first, &lines, u32::MAX, wanted);
        let where_assigned = later.map(|(line, value)| (line, format!("{wanted} = {}", brief(&value))));
        let mut evidence = vec![fact];
        evidence.extend(where_assigned.iter().map(|(line, what)| at.fact_at(*line, what.clone())));
        let assigned = where_assigned
            .map(|(line, _)| format!("; it is assigned at {}:{line}, which was not reached before", at.frame.file));
        return Some(Hypothesis {
            text: format!(
                "`{wanted}` is read at {} before anything was assigned to it{}",
                at.place(),
                assigned.unwrap_or_default()
            ),
            confidence: Confidence::High,
            because: "the message says so, and it is not among the recorded locals".to_owned(),
            evidence,
        });
    }
    let near = near_name(scene, at, wanted);
    let is_module = at.statement().contains(&format!("{wanted}."));
    let (text, confidence, because) = if let Some(near) = near {
        let value = at.local(&near).map(|local| format!(" = {}", brief(&local.value))).unwrap_or_default();
        (
            format!("`{wanted}` at {} is not defined; `{near}`{value} is, which may be meant", at.place()),
            Confidence::High,
            "the two names differ by little".to_owned(),
        )
    } else if is_module || crate::failures::next_step::import_of(wanted).is_some() {
        (
            format!("`{wanted}` is used at {} and never imported in {}", at.place(), at.frame.file),
            if scene.unchanged(at).is_some() { Confidence::High } else { Confidence::Medium },
            "it is used as a module or is a well-known name, and nothing of that name is defined".to_owned(),
        )
    } else {
        (
            format!("nothing called `{wanted}` is defined where {} uses it", at.place()),
            Confidence::Medium,
            "the message says so, and no name like it was recorded".to_owned(),
        )
    };
    Some(Hypothesis { text, confidence, because, evidence: vec![fact] })
}

pub(crate) fn missing_name(message: &str) -> Option<&str> {
    pattern!(r"^(?:free variable|cannot access (?:local|free) variable|name|local variable) '(\w+)'")
        .captures(message)
        .and_then(|parts| parts.get(1))
        .map(|name| name.as_str())
}

/// A name of the frame or of its module that is nearly the one that is missing.
pub(crate) fn near_name(scene: &Scene, at: At, wanted: &str) -> Option<String> {
    let mut names: Vec<String> = at.frame.locals.iter().map(|local| local.name.clone()).collect();
    if let Some(text) = scene.unchanged(at) {
        names.extend(names_of_module(&text));
    }
    similar(wanted, names.iter().map(String::as_str)).first().map(ToString::to_string)
}

fn import(scene: &Scene) -> Option<Hypothesis> {
    let at = scene.own()?;
    let message = &scene.exception.message;
    let fact = at.fact(format!("`{}`", brief(&at.statement())));
    if let Some(parts) =
        pattern!(r"cannot import name '(\w+)' from (?:partially initialized module )?'([\w.]+)'").captures(message)
    {
        let (wanted, module) = (&parts[1], &parts[2]);
        if message.contains("partially initialized") {
            return Some(Hypothesis {
                text: format!(
                    "`{module}` and a module it imports import each other: `{wanted}` is not there yet when {} asks for it",
                    at.place()
                ),
                confidence: Confidence::High,
                because: "the message says that the module is only partially initialized".to_owned(),
                evidence: vec![fact],
            });
        }
        let there = module_names(scene, module);
        let near = similar(wanted, there.iter().map(String::as_str)).first().map(ToString::to_string);
        let mut evidence = vec![fact];
        if !there.is_empty() {
            evidence.push(Fact::told(format!("{module} has: {}", listed(&there))));
        }
        return Some(match near {
            Some(near) => Hypothesis {
                text: format!("`{module}` has no `{wanted}`, which {} imports; it has `{near}`", at.place()),
                confidence: Confidence::High,
                because: "the name that is there differs by little".to_owned(),
                evidence,
            },
            None => Hypothesis {
                text: format!("`{module}` has no `{wanted}` (any more), which {} imports", at.place()),
                confidence: if there.is_empty() { Confidence::Medium } else { Confidence::High },
                because: if there.is_empty() {
                    "the message says so"
                } else {
                    "its source defines nothing of that name"
                }
                .to_owned(),
                evidence,
            },
        });
    }
    let parts = pattern!(r"No module named '([\w.]+)'").captures(message)?;
    let module = &parts[1];
    let package = module.rsplit_once('.').map(|(package, _)| package);
    let sibling = package.and_then(|package| near_module(scene, package, module));
    let (text, confidence, because) = match (package, sibling) {
        (_, Some(near)) => (
            format!("there is no module `{module}`, which {} imports; there is `{near}`", at.place()),
            Confidence::High,
            "the module's file is there, and the names differ by little".to_owned(),
        ),
        (Some(package), None) => (
            format!(
                "the package `{package}` has no module `{}`, which {} imports: renamed, moved, or not in this checkout",
                short_name(module),
                at.place()
            ),
            Confidence::Medium,
            "the message names the submodule, so the package itself was found".to_owned(),
        ),
        (None, None) => (
            format!(
                "`{module}` is not installed in the interpreter that ran the test, or its directory is not on sys.path ({} imports it)",
                at.place()
            ),
            Confidence::Medium,
            "the message names a top-level module".to_owned(),
        ),
    };
    Some(Hypothesis { text, confidence, because, evidence: vec![fact] })
}

/// A module that is imported elsewhere in the failing file and whose name is nearly the one that is missing.
pub(crate) fn near_module(scene: &Scene, package: &str, module: &str) -> Option<String> {
    let at = scene.own()?;
    let text = scene.file(&at.frame.file)?;
    let mut known: Vec<String> =
        pattern!(r"(?m)^\s*(?:from|import)\s+([\w.]+)").captures_iter(&text).map(|parts| parts[1].to_owned()).collect();
    for parts in pattern!(r"(?m)^\s*from\s+([\w.]+)\s+import\s+([^\n(#]+)").captures_iter(&text) {
        known.extend(
            parts[2]
                .split(',')
                .filter_map(|item| item.split_whitespace().next())
                .map(|name| format!("{}.{name}", &parts[1])),
        );
    }
    known.retain(|other| other.starts_with(package) && other != module);
    known.retain(|other| files_of_module(other).iter().any(|path| scene.file(path).is_some()));
    similar(module, known.iter().map(String::as_str)).first().map(ToString::to_string)
}
