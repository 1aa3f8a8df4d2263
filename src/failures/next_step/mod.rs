//! What to do next about a failure: a change as a unified diff where the evidence leaves one reading, else the expression to evaluate in the
//! frozen failure, at the frame where the value went wrong.
//!
//! A diff is made only against a file whose lines are still those of the failure, and is offered, never applied.

mod diff;
mod imports;

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    hypotheses::{
        Around, At, Confidence, Scene, calls, names, none, pytest,
        reading::{brief, define, expressions, indent, keys_of, short_name, similar, split_top, unquote},
    },
    record::{Evidence, Frozen},
};
use crate::python::lexer::{Kind, tokens};
use diff::Edits;
pub(crate) use imports::import_of;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NextStep {
    pub text: String,
    /// A unified diff against the project's root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluate: Option<Evaluate>,
    /// How sure it is that this is the thing to do.
    pub confidence: Confidence,
}

/// Something to run in the frozen failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Evaluate {
    pub code: String,
    pub target: String,
    /// Why there is no frozen copy, if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_frozen: Option<String>,
}

impl Evaluate {
    /// As the tool is called.
    pub fn call(&self) -> String {
        let code = serde_json::to_string(&self.code).unwrap_or_default();
        format!("execute({code}, target=\"{}\")", self.target)
    }
}

/// None when the evidence has neither a line nor a value to go on with.
pub fn next_step(evidence: &Evidence, around: &Around) -> Option<NextStep> {
    let scene = Scene::new(evidence, around);
    let steps: [fn(&Scene) -> Option<NextStep>; 11] = [
        wrong_fixture,
        wrong_mock_path,
        bypassed_mock,
        missing_import,
        wrong_import,
        changed_signature,
        nothing,
        wrong_attribute,
        wrong_key,
        missing_file,
        look,
    ];
    steps.iter().find_map(|step| step(&scene))
}

fn with_diff(text: String, diff: Option<String>, confidence: Confidence) -> NextStep {
    NextStep { text, diff, evaluate: None, confidence }
}

fn evaluate(scene: &Scene, at: At, code: &str) -> Option<Evaluate> {
    let frame = at.number?;
    let not_frozen = match &scene.evidence.frozen {
        Some(Frozen::WhyNot(why)) => Some(why.clone()),
        _ => None,
    };
    Some(Evaluate { code: code.to_owned(), target: format!("failure:{}#{frame}", scene.around.id), not_frozen })
}

fn wrong_fixture(scene: &Scene) -> Option<NextStep> {
    let missing = pytest::missing_fixture(scene)?;
    let name = &missing.name;
    let Some(near) = missing.near() else {
        let text = format!(
            "define a fixture `{name}` in this test's module or in a conftest.py at or above its directory, or ask for one of those there are: {}",
            brief(&missing.available.join(", "))
        );
        return Some(with_diff(text, None, Confidence::Medium));
    };
    let diff = missing.file.as_ref().and_then(|file| {
        let text = scene.file(file)?;
        let function = scene.around.nodeid.rsplit("::").next()?.split('[').next()?;
        let defined = define(&text, file, function)?;
        // Where pytest says the test begins, a decorator may stand.
        let far = missing.line.is_some_and(|line| defined.line.abs_diff(line) > 20);
        let mut edits = Edits::of(file, &text);
        let begin = defined.line as usize - 1;
        let end = begin + 1 + defined.body.len();
        let taken = edits.lines()[begin..end.min(edits.lines().len())].iter().any(|line| has_name(line, &near));
        if far || taken {
            return None;
        }
        for index in begin..end.min(edits.lines().len()) {
            let line = edits.lines()[index].clone();
            edits.replace(index, replace_names(&line, name, &near));
        }
        edits.diff()
    });
    Some(with_diff(format!("ask for `{near}` instead of `{name}`"), diff, Confidence::High))
}

fn wrong_mock_path(scene: &Scene) -> Option<NextStep> {
    let wrong = pytest::wrong_path(scene)?;
    let at = scene.own()?;
    let Some(near) = wrong.near() else {
        let module = scene.file(&at.frame.file).is_some();
        let code = format!(
            "import {0}; [name for name in dir({0}) if not name.startswith('_')]",
            if wrong.owner.is_empty() { "sys" } else { &wrong.owner }
        );
        let text = format!("patch the name where it is looked up: see what `{}` really has", wrong.owner);
        return Some(NextStep {
            text,
            diff: None,
            evaluate: evaluate(scene, at, &code).filter(|_| module || !wrong.owner.is_empty()),
            confidence: Confidence::Medium,
        });
    };
    let old = if wrong.owner.is_empty() { wrong.wanted.clone() } else { format!("{}.{}", wrong.owner, wrong.wanted) };
    let new = if wrong.owner.is_empty() { near.clone() } else { format!("{}.{near}", wrong.owner) };
    let path = wrong.path.replacen(&old, &new, 1);
    let diff = edit_line(scene, at, |line| {
        let found = line.matches(&wrong.path).count();
        (found == 1).then(|| line.replacen(&wrong.path, &path, 1))
    });
    Some(with_diff(format!("patch `{path}` instead of `{}`", wrong.path), diff, Confidence::High))
}

/// The function is patched where it is defined, and was called where it is used.
fn bypassed_mock(scene: &Scene) -> Option<NextStep> {
    let pytest::Bypassed { path, better, at, line, .. } = pytest::bypassed(scene)?;
    let diff = scene.unchanged(at).and_then(|text| {
        let mut edits = Edits::of(&at.frame.file, &text);
        let index = line as usize - 1;
        let old = edits.lines().get(index)?.clone();
        (old.matches(&path).count() == 1).then(|| edits.replace(index, old.replacen(&path, &better, 1)))?;
        edits.diff()
    });
    Some(with_diff(format!("patch `{better}` instead of `{path}`: that is where it is used"), diff, Confidence::High))
}

fn missing_import(scene: &Scene) -> Option<NextStep> {
    if scene.exception.kind != "NameError" {
        return None;
    }
    let at = scene.own()?;
    let wanted = names::missing_name(&scene.exception.message)?;
    if let Some(near) = names::near_name(scene, at, wanted) {
        let diff = edit_line(scene, at, |line| Some(replace_names(line, wanted, &near)));
        return Some(with_diff(format!("`{wanted}` at {} is probably `{near}`", at.place()), diff, Confidence::High));
    }
    let statement = import_of(wanted)?;
    let diff = scene.unchanged(at).and_then(|text| {
        let mut edits = Edits::of(&at.frame.file, &text);
        let place = imports::place_for(edits.lines(), &statement);
        edits.insert(place, statement.clone());
        let next = edits.lines().get(place).map_or("", String::as_str);
        if !next.is_empty() && !next.starts_with("import ") && !next.starts_with("from ") {
            edits.insert(place, String::new());
            edits.insert(place, String::new());
        }
        edits.diff()
    });
    Some(with_diff(format!("add `{statement}` to {}", at.frame.file), diff, Confidence::High))
}

fn wrong_import(scene: &Scene) -> Option<NextStep> {
    let at = scene.own()?;
    let message = &scene.exception.message;
    if let Some(parts) =
        super::hypotheses::reading::pattern!(r"cannot import name '(\w+)' from '([\w.]+)'").captures(message)
    {
        let (wanted, module) = (&parts[1], &parts[2]);
        let there = names::module_names(scene, module);
        let near = (*similar(wanted, there.iter().map(String::as_str)).first()?).to_owned();
        let diff = scene.unchanged(at).and_then(|text| {
            let mut edits = Edits::of(&at.frame.file, &text);
            if edits.lines().iter().any(|line| has_name(line, &near)) {
                return edit_line(scene, at, |line| Some(replace_names(line, wanted, &near)));
            }
            for index in 0..edits.lines().len() {
                let line = edits.lines()[index].clone();
                edits.replace(index, replace_names(&line, wanted, &near));
            }
            edits.diff()
        });
        return Some(with_diff(
            format!("import `{near}` from `{module}` instead of `{wanted}`"),
            diff,
            Confidence::High,
        ));
    }
    let parts = super::hypotheses::reading::pattern!(r"No module named '([\w.]+)'").captures(message)?;
    let module = &parts[1];
    if let Some((package, _)) = module.rsplit_once('.')
        && let Some(near) = names::near_module(scene, package, module)
    {
        let diff =
            edit_line(scene, at, |line| (line.matches(module).count() == 1).then(|| line.replacen(module, &near, 1)));
        return Some(with_diff(format!("import `{near}` instead of `{module}`"), diff, Confidence::High));
    }
    let top = module.split('.').next().unwrap_or(module);
    let text = if module.contains('.') {
        format!("see which modules the package `{top}` has now; `{module}` is not one of them")
    } else {
        format!(
            "install what `{module}` comes in for the interpreter that runs the tests, or put its directory on sys.path (pytest's `pythonpath` setting)"
        )
    };
    Some(with_diff(text, None, Confidence::Medium))
}

fn changed_signature(scene: &Scene) -> Option<NextStep> {
    let misfit = calls::misfit(scene)?;
    let at = misfit.at;
    let short = short_name(&misfit.function).to_owned();
    let head = misfit.definition.as_ref().map(|definition| format!("`{}` ({})", definition.head(), definition.place()));
    if let (calls::Problem::Unexpected { name, .. }, Some((meant, confidence))) = (&misfit.problem, misfit.meant()) {
        let diff = scene.unchanged(at).and_then(|text| {
            let mut edits = Edits::of(&at.frame.file, &text);
            let begin = at.frame.line as usize - 1;
            // A call over several lines fails on its first one or on that of the argument.
            for index in begin..(begin + 6).min(edits.lines().len()) {
                let line = edits.lines()[index].clone();
                if let Some(changed) = replace_keyword(&line, name, &meant) {
                    edits.replace(index, changed);
                    return edits.diff();
                }
            }
            None
        });
        return Some(with_diff(format!("pass `{meant}` instead of `{name}` at {}", at.place()), diff, confidence));
    }
    if let Some(renamed) = misfit.by_name_only() {
        let names: Vec<String> = renamed.iter().map(|(_, name)| format!("`{name}`")).collect();
        let diff = scene.unchanged(at).and_then(|text| {
            let mut edits = Edits::of(&at.frame.file, &text);
            let index = at.frame.line as usize - 1;
            let line = edits.lines().get(index)?.clone();
            let call = line.find(&format!("{short}("))? + short.len();
            let (before, mut inside) = (line[..=call].to_owned(), line[call + 1..].to_owned());
            for (value, name) in &renamed {
                // Behind a comma or the bracket, and once: else nobody knows which one it is.
                let found: Vec<usize> = inside
                    .match_indices(value.as_str())
                    .map(|(at, _)| at)
                    .filter(|at| matches!(inside[..*at].trim_end().chars().last(), None | Some(',')))
                    .collect();
                let [only] = found[..] else { return None };
                inside.insert_str(only, &format!("{name}="));
            }
            edits.replace(index, before + &inside);
            edits.diff()
        });
        return Some(with_diff(
            format!("pass {} by name at {}: it is not taken by position", names.join(", "), at.place()),
            diff,
            Confidence::High,
        ));
    }
    let function = expressions(&at.statement())
        .into_iter()
        .map(|found| found.text)
        .find(|text| short_name(text) == short)
        .unwrap_or(short);
    let text = match head {
        Some(head) => {
            format!("bring the call at {} and {head} together: change the one that is out of date", at.place())
        }
        None => format!("compare the call at {} with the function's signature", at.place()),
    };
    let code = format!("import inspect; inspect.signature({function})");
    Some(NextStep { text, diff: None, evaluate: evaluate(scene, at, &code), confidence: Confidence::Medium })
}

fn nothing(scene: &Scene) -> Option<NextStep> {
    let nothing = none::nothing(scene)?;
    let at = nothing.at;
    let made = none::maker(scene, at, &nothing.expression);
    // A function that computes a value into a name and ends without returning it.
    if let Some(definition) =
        made.as_ref().and_then(|(made_at, call)| scene.definition(*made_at, call.split('(').next().unwrap_or(call)))
        && !definition
            .body
            .iter()
            .any(|line| line.contains("return") || line.contains("yield") || line.contains("raise"))
        && let Some(last) =
            definition.body.iter().rfind(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
        && definition.body.iter().filter(|line| !line.trim().is_empty()).map(|line| indent(line)).min()
            == Some(indent(last))
        && let Some((name, _)) = split_top(last, "=")
        && !name.trim().is_empty()
        && name.trim().chars().all(|c| c == '_' || c.is_alphanumeric())
    {
        let name = name.trim();
        let diff = scene.file(&definition.file).and_then(|text| {
            let mut edits = Edits::of(&definition.file, &text);
            let index = (definition.line as usize..edits.lines().len()).find(|index| edits.lines()[*index] == *last)?;
            edits.insert(index + 1, format!("{}return {name}", " ".repeat(indent(last))));
            edits.diff()
        });
        return Some(with_diff(
            format!("{} computes `{name}` and does not return it", definition.place()),
            diff,
            Confidence::High,
        ));
    }
    let (where_made, code) = made.unwrap_or((at, nothing.expression.clone()));
    let text = if code == nothing.expression {
        format!("`{}` is None in frame {}: look at what it hangs on", nothing.expression, at.index + 1)
    } else if nothing.expression.contains('.') {
        format!(
            "`{}` is None; what it belongs to comes from `{}` ({}): see what that gives",
            nothing.expression,
            brief(&code),
            where_made.place()
        )
    } else {
        format!(
            "`{}` is None because of `{}` ({}): see what that gives, and why",
            nothing.expression,
            brief(&code),
            where_made.place()
        )
    };
    let code = match code.rsplit_once('.') {
        // What a method gave, most likely `get`: the thing itself tells more than its attributes.
        Some((owner, called)) if code == nothing.expression && called.ends_with(')') => owner.to_owned(),
        Some((owner, _)) if code == nothing.expression => format!("vars({owner})"),
        _ => code,
    };
    Some(NextStep { text, diff: None, evaluate: evaluate(scene, where_made, &code), confidence: Confidence::Medium })
}

fn wrong_attribute(scene: &Scene) -> Option<NextStep> {
    if scene.exception.kind != "AttributeError" {
        return None;
    }
    let at = scene.own()?;
    let (owner, wanted, there) = names::missing_attribute(scene)?;
    if let [near, ..] = similar(&wanted, there.iter().map(String::as_str))[..] {
        let diff = edit_line(scene, at, |line| {
            let changed = line.replacen(&format!(".{wanted}"), &format!(".{near}"), 1);
            (line.matches(&format!(".{wanted}")).count() == 1).then_some(changed)
        });
        return Some(with_diff(
            format!("use `{near}` instead of `{wanted}` at {}", at.place()),
            diff,
            Confidence::High,
        ));
    }
    let line = at.statement();
    let receiver =
        expressions(&line).into_iter().find(|found| line[found.at.end..].starts_with(&format!(".{wanted}")))?;
    let code = format!("[name for name in dir({}) if not name.startswith('_')]", receiver.text);
    Some(NextStep {
        text: format!("see what {owner} has instead of `{wanted}`"),
        diff: None,
        evaluate: evaluate(scene, at, &code),
        confidence: Confidence::Medium,
    })
}

fn wrong_key(scene: &Scene) -> Option<NextStep> {
    if scene.exception.kind != "KeyError" {
        return None;
    }
    let at = scene.own()?;
    let key = unquote(&scene.exception.message).to_owned();
    let line = at.statement();
    let container = expressions(&line).into_iter().find(|found| line[found.at.end..].starts_with('['))?;
    let keys = at.value(&container.text).and_then(|value| keys_of(&value)).unwrap_or_default();
    if let [near, ..] = similar(&key, keys.iter().map(|there| unquote(there)))[..] {
        let diff = edit_line(scene, at, |line| {
            let quoted =
                ['"', '\''].into_iter().find(|quote| line.matches(&format!("{quote}{key}{quote}")).count() == 1)?;
            Some(line.replacen(&format!("{quoted}{key}{quoted}"), &format!("{quoted}{near}{quoted}"), 1))
        });
        return Some(with_diff(format!("`{}` has '{near}', not '{key}'", container.text), diff, Confidence::Medium));
    }
    let text = format!("see which keys `{}` has at {}", container.text, at.place());
    Some(NextStep {
        text,
        diff: None,
        evaluate: evaluate(scene, at, &format!("list({})", container.text)),
        confidence: Confidence::Medium,
    })
}

/// A file that is not there: what is there instead, seen from where the code looks.
fn missing_file(scene: &Scene) -> Option<NextStep> {
    if scene.exception.kind != "FileNotFoundError" {
        return None;
    }
    let at = scene.own()?;
    let path = super::hypotheses::reading::pattern!(r"'([^']+)'$").captures(&scene.exception.message)?[1].to_owned();
    let directory =
        path.rsplit_once('/').map_or(".", |(directory, _)| if directory.is_empty() { "/" } else { directory });
    let code = format!("import os; (os.getcwd(), os.path.exists({directory:?}) and os.listdir({directory:?}))");
    let text = format!("see where {} looks for '{path}' and what is there", at.place());
    Some(NextStep { text, diff: None, evaluate: Some(evaluate(scene, at, &code)?), confidence: Confidence::Medium })
}

/// What to look at in the failing frame: the side of a comparison that is computed, else what the line is made of.
fn look(scene: &Scene) -> Option<NextStep> {
    let at = scene.own()?;
    let line = at.statement();
    let condition = line
        .strip_prefix("assert ")
        .map(|rest| split_top(rest, ",").map_or(rest.to_owned(), |(condition, _)| condition));
    let side = condition.as_deref().and_then(|condition| {
        let (left, right) = split_top(condition, "==")?;
        Some(if expressions(&left).is_empty() { right } else { left })
    });
    let code =
        side.or(condition).filter(|code| !expressions(code).is_empty()).map(|side| side.trim().to_owned()).or_else(
            || {
                let all = expressions(&line);
                all.iter().rfind(|found| at.value(&found.text).is_some()).map(|found| found.text.clone())
            },
        )?;
    let text = format!("look at `{}` in frame {} ({})", brief(&code), at.index + 1, at.place());
    Some(NextStep { text, diff: None, evaluate: Some(evaluate(scene, at, &code)?), confidence: Confidence::Low })
}

/// The failing line, changed, as a diff; None if nothing changes.
fn edit_line(scene: &Scene, at: At, change: impl Fn(&str) -> Option<String>) -> Option<String> {
    let mut edits = match scene.unchanged(at) {
        Some(text) => Edits::of(&at.frame.file, &text),
        // The file cannot be read here, but its lines around the failure were recorded.
        None if scene.file(&at.frame.file).is_none() => {
            let source = at.frame.source.as_ref()?;
            Edits::of_lines(&at.frame.file, source.first, &source.lines)
        }
        None => return None,
    };
    let index = (at.frame.line as usize).checked_sub(edits.first())?;
    let line = edits.lines().get(index)?.clone();
    edits.replace(index, change(&line)?);
    edits.diff()
}

fn has_name(line: &str, name: &str) -> bool {
    tokens(line).iter().any(|token| token.kind == Kind::Name && &line[token.at.clone()] == name)
}

/// Replaces a name where it stands as one: not in strings, nor in other names, nor as an attribute.
fn replace_names(line: &str, old: &str, new: &str) -> String {
    let mut changed = String::with_capacity(line.len());
    let mut before = "";
    for token in tokens(line) {
        let text = &line[token.at.clone()];
        changed.push_str(if token.kind == Kind::Name && text == old && before != "." { new } else { text });
        before = text;
    }
    changed
}

/// `old=` in a call becomes `new=`.
fn replace_keyword(line: &str, old: &str, new: &str) -> Option<String> {
    let words = tokens(line);
    let found: Vec<_> = words
        .iter()
        .enumerate()
        .filter(|(index, token)| {
            token.kind == Kind::Name
                && &line[token.at.clone()] == old
                && words.get(index + 1).is_some_and(|next| &line[next.at.clone()] == "=")
                && !line[token.at.end..].starts_with("==")
        })
        .collect();
    let [(_, token)] = found[..] else { return None };
    Some(format!("{}{new}{}", &line[..token.at.start], &line[token.at.end..]))
}

#[cfg(test)]
mod tests;
