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
        Around, At, Claim, Confidence, Scene, calls, comparing, names, none, outside, pytest,
        reading::{
            brief, define, expressions, files_of_module, indent, keys_of, short_name, similar, split_top, top_level,
            unquote,
        },
    },
    record::{Evidence, Frozen},
};
use diff::Edits;
pub(crate) use imports::import_of;
use pylair_python::lexer::{Kind, tokens};

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
    /// What has to be so for it to be of use.
    #[serde(skip)]
    pub claims: Vec<Claim>,
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

/// The best first: those that nothing which was recorded speaks against. None when the evidence has neither a line nor a value to go on with.
pub fn next_steps(evidence: &Evidence, around: &Around) -> Vec<NextStep> {
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
    let found = steps.iter().filter_map(|step| step(&scene));
    found.filter(|step| !step.claims.iter().any(|claim| claim.recorded(&scene) == Some(false))).collect()
}

fn with_diff(text: String, diff: Option<String>, confidence: Confidence) -> NextStep {
    NextStep { text, diff, evaluate: None, confidence, claims: Vec::new() }
}

/// Code that lists what something has: private names too, which may be the ones that are meant, and names such as `__name__` where one is.
fn names_in(owner: &str, wanted: &str) -> String {
    const DUNDER: &[&str] = &["all", "class", "dict", "doc", "file", "module", "name", "path", "qualname", "version"];
    if wanted.starts_with('_') || DUNDER.contains(&wanted) {
        return format!("dir({owner})");
    }
    format!("[name for name in dir({owner}) if not name.startswith('__')]")
}

/// First words of the names of functions that change something, take something away or wait.
const EFFECTS: &[&str] = &[
    "acquire",
    "add",
    "append",
    "clear",
    "close",
    "commit",
    "connect",
    "create",
    "delete",
    "discard",
    "drop",
    "execute",
    "exit",
    "extend",
    "flush",
    "input",
    "insert",
    "kill",
    "move",
    "next",
    "pop",
    "popitem",
    "popleft",
    "post",
    "push",
    "put",
    "read",
    "readline",
    "readlines",
    "receive",
    "recv",
    "register",
    "release",
    "remove",
    "rename",
    "reset",
    "reverse",
    "rollback",
    "run",
    "save",
    "seek",
    "send",
    "sendall",
    "setdefault",
    "shuffle",
    "sleep",
    "sort",
    "start",
    "stop",
    "store",
    "submit",
    "terminate",
    "throw",
    "truncate",
    "unlink",
    "update",
    "wait",
    "write",
    "writelines",
];

/// Whether code changes what it looks at: a second `q.pop()` gives something else than the first one did.
fn has_effects(at: At, code: &str) -> bool {
    let words: Vec<_> = tokens(code).into_iter().filter(|token| token.kind != Kind::Space).collect();
    let text = |index: usize| words.get(index).map_or("", |token| &code[token.at.clone()]);
    let is_plain = words.iter().all(|token| token.kind == Kind::Name || &code[token.at.clone()] == ".");
    // What is gone through once is empty afterwards.
    let is_once = |name: &str| {
        let kind = at.local(name).map_or("", |local| local.kind.as_str());
        let is_iterator = kind.ends_with("iterator") || kind.ends_with("generator") || kind.starts_with("_io.");
        is_iterator || matches!(kind, "map" | "filter" | "zip" | "enumerate" | "reversed" | "_csv.reader")
    };
    words.iter().enumerate().any(|(index, word)| match (word.kind, text(index)) {
        (Kind::Keyword, "await" | "yield") => true,
        (Kind::Operator, ":") => text(index + 1) == "=",
        (Kind::Name, name) if text(index + 1) == "(" => {
            let verb = name.trim_matches('_').split('_').next().unwrap_or(name);
            let is_setter = verb == "set" && name != "set";
            // `df.add(1)` and `add(1, 2)` are sums as often as not, but a name alone cannot tell.
            is_setter || (EFFECTS.contains(&verb) && !(verb == "add" && text(index.wrapping_sub(1)) != "."))
        }
        (Kind::Name, name) => !is_plain && (index == 0 || text(index - 1) != ".") && is_once(name),
        _ => false,
    })
}

/// A step that evaluates something, which the frame has to know all names of.
fn to_evaluate(scene: &Scene, at: At, text: String, code: &str, confidence: Confidence) -> Option<NextStep> {
    if has_effects(at, code) {
        return None;
    }
    let evaluate = evaluate(scene, at, code)?;
    let claims = vec![Claim::Runs { frame: at.into(), code: code.to_owned() }];
    Some(NextStep { text, diff: None, evaluate: Some(evaluate), confidence, claims })
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
        let own = missing.own();
        let or = if own.is_empty() {
            String::new()
        } else {
            format!(", or ask for one of those there are: {}", brief(&own.join(", ")))
        };
        let text = format!(
            "define a fixture `{name}` in this test's module or in a conftest.py at or above its directory{or}"
        );
        return Some(with_diff(text, None, Confidence::Medium));
    };
    let diff = missing.file.as_ref().and_then(|file| {
        let text = scene.file(file)?;
        let function = scene.around.nodeid.rsplit("::").next()?.split('[').next()?;
        // The part before is the file when the test has no class.
        let class = scene.around.nodeid.rsplit("::").nth(1).filter(|class| !class.contains(['/', '.']));
        let defined = define(&text, file, function, class)?;
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
        if wrong.owner.is_empty() {
            return None;
        }
        let code = format!("import {0}; {1}", wrong.owner, names_in(&wrong.owner, &wrong.wanted));
        let text = format!("patch the name where it is looked up: see what `{}` really has", wrong.owner);
        return to_evaluate(scene, at, text, &code, Confidence::Medium);
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
    let at = scene.raised_here()?;
    let wanted = names::missing_name(&scene.exception.message)?;
    if let Some(near) = names::near_name(scene, at, wanted) {
        let diff = edit_line(scene, at, |line| Some(replace_names(line, wanted, &near)));
        let claims = vec![Claim::Name { frame: at.into(), name: near.clone(), there: true }];
        let step = with_diff(format!("`{wanted}` at {} is probably `{near}`", at.place()), diff, Confidence::Medium);
        return Some(NextStep { claims, ..step });
    }
    let statement = import_of(wanted)?;
    // A module cannot be called, and its import would not help.
    let line = at.statement();
    let called = expressions(&line).iter().any(|found| found.text == wanted && line[found.at.end..].starts_with('('));
    if called && statement.starts_with("import ") {
        return None;
    }
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
        if let Some((file, _)) = scene.unused_source_of(module) {
            return Some(with_diff(import_this(module, &file), None, Confidence::Medium));
        }
        let there = names::module_names(scene, module);
        let Some(near) = names::near_import(scene, module, wanted, &there) else {
            let statement = import_of(wanted).filter(|statement| !statement.contains(&format!("from {module} ")))?;
            let version = scene.version_of(module).filter(|version| version.starts_with("Python "))?;
            let text = format!("use `{statement}` at {}: `{module}` of {version} has no `{wanted}`", at.place());
            return Some(with_diff(text, None, Confidence::Medium));
        };
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
        let claims = vec![Claim::InModule { module: module.to_owned(), name: near.clone(), there: true }];
        let step =
            with_diff(format!("import `{near}` from `{module}` instead of `{wanted}`"), diff, Confidence::Medium);
        return Some(NextStep { claims, ..step });
    }
    let parts = super::hypotheses::reading::pattern!(r"No module named '([\w.]+)'").captures(message)?;
    let module = &parts[1];
    if message.contains("is not a package") {
        return None;
    }
    if let Some((package, last)) = module.rsplit_once('.') {
        if let Some(near) = names::near_module(scene, package, module) {
            let diff = edit_line(scene, at, |line| {
                (line.matches(module).count() == 1).then(|| line.replacen(module, &near, 1))
            });
            return Some(with_diff(format!("import `{near}` instead of `{module}`"), diff, Confidence::Medium));
        }
        if let Some((file, _)) = scene.unused_source_of(package) {
            return Some(with_diff(import_this(package, &file), None, Confidence::Medium));
        }
        let version = scene.version_of(package).map(|version| format!(" of {version}")).unwrap_or_default();
        let text = format!("find out what became of `{last}`: the package `{package}`{version} has no such module");
        return Some(with_diff(text, None, Confidence::Low));
    }
    let own = files_of_module(module).into_iter().find(|file| scene.file(file).is_some());
    let beside = at.frame.file.rsplit_once('/').map(|(directory, _)| (directory, format!("{directory}/{module}.py")));
    if let Some((directory, _)) = beside.filter(|(_, file)| own.is_none() && scene.file(file).is_some()) {
        let text = format!(
            "put {directory} on sys.path (pytest's `pythonpath` setting), or import `{module}` as a part of its package"
        );
        return Some(with_diff(text, None, Confidence::Medium));
    }
    let without = names::installed_without(scene, module);
    let text = if let Some(installed) = without.filter(|_| own.is_none() && !names::is_removed(scene, module)) {
        let name = installed.split(' ').next().unwrap_or_default();
        format!(
            "install a version of {name} that has `{module}`, or replace it at {}: {installed} does not have it",
            at.place()
        )
    } else if let Some(file) = own {
        let directory = if file.starts_with("src/") { "src" } else { "." };
        format!(
            "install the project for the interpreter that runs the tests (`pip install -e .`), or set pytest's `pythonpath = {directory}`"
        )
    } else if names::is_removed(scene, module) {
        format!("replace `{module}` at {}, or run the tests with an older Python", at.place())
    } else {
        let package = pylair_python::modules::package_of(module);
        match package {
            Some(package) => format!("install {package} for the interpreter that runs the tests"),
            None => format!(
                "install what `{module}` comes in for the interpreter that runs the tests, or put its directory on sys.path (pytest's `pythonpath` setting)"
            ),
        }
    };
    Some(with_diff(text, None, Confidence::Medium))
}

/// The project has a module, and another one of that name was imported.
fn import_this(module: &str, file: &str) -> String {
    let directory = if file.starts_with("src/") { "src" } else { "." };
    format!(
        "decide which `{module}` is to be tested: `pip install -e .` or pytest's `pythonpath = {directory}` makes it {file}"
    )
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
    let called =
        at.failing().and_then(top_level).filter(|(_, rest)| rest.starts_with('(')).map(|(owner, _)| owner.to_owned());
    let function = called.or_else(|| {
        expressions(&at.statement()).into_iter().map(|found| found.text).find(|text| short_name(text) == short)
    });
    let text = match head {
        Some(head) => {
            format!("bring the call at {} and {head} together: change the one that is out of date", at.place())
        }
        None => format!("compare the call at {} with the function's signature", at.place()),
    };
    let code = function.map(|function| format!("import inspect; inspect.signature({function})"));
    let step = code.and_then(|code| to_evaluate(scene, at, text.clone(), &code, Confidence::Medium));
    let runs = |step: &NextStep| step.claims.iter().all(|claim| claim.recorded(scene) != Some(false));
    step.filter(runs).or_else(|| Some(with_diff(text, None, Confidence::Medium)))
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
    let made = made.filter(|(made_at, call)| !has_effects(*made_at, call));
    let (where_made, code) = made.unwrap_or((at, nothing.expression.clone()));
    let text = if code == nothing.expression {
        format!("`{}` is None in frame {}: see what is beside it", nothing.expression, at.index + 1)
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
        None if code == nothing.expression && !code.contains(['(', '[']) => "locals()".to_owned(),
        _ => code,
    };
    to_evaluate(scene, where_made, text, &code, Confidence::Medium)
}

fn wrong_attribute(scene: &Scene) -> Option<NextStep> {
    if scene.exception.kind != "AttributeError" {
        return None;
    }
    let at = scene.own()?;
    let missing = names::missing_attribute(scene)?;
    let names::MissingAttribute { owner, wanted, .. } = &missing;
    if missing.there.contains(wanted) {
        return None;
    }
    if let Some(file) =
        missing.module.as_deref().and_then(|module| scene.unused_source_of(module)).map(|(file, _)| file)
    {
        return Some(with_diff(
            import_this(missing.module.as_deref().unwrap_or_default(), &file),
            None,
            Confidence::Medium,
        ));
    }
    if let Some(assigned) = names::assigned_in(scene, &missing) {
        if !assigned.is_nose {
            return None;
        }
        let diff = scene.file(&assigned.file).and_then(|text| {
            let mut edits = Edits::of(&assigned.file, &text);
            let index = assigned.method_line as usize - 1;
            let line = edits.lines().get(index)?.clone();
            edits.replace(index, replace_names(&line, &assigned.method, "setup_method"));
            edits.diff()
        });
        let text =
            format!("rename `{}` at {}:{} to `setup_method`", assigned.method, assigned.file, assigned.method_line);
        return Some(with_diff(text, diff, Confidence::High));
    }
    if let Some(near) = missing.near() {
        let diff = edit_line(scene, at, |line| {
            let changed = line.replacen(&format!(".{wanted}"), &format!(".{near}"), 1);
            (line.matches(&format!(".{wanted}")).count() == 1).then_some(changed)
        });
        return Some(with_diff(
            format!("use `{near}` instead of `{wanted}` at {}", at.place()),
            diff,
            if missing.recorded { Confidence::High } else { Confidence::Medium },
        ));
    }
    let receiver = match (&missing.receiver, &missing.module) {
        (Some(receiver), _) => receiver.clone(),
        (None, Some(module)) => {
            let line = at.statement();
            let name = short_name(module);
            expressions(&line)
                .into_iter()
                .map(|found| found.text)
                .find(|text| text == module || short_name(text) == name)?
        }
        (None, None) => return None,
    };
    let code = names_in(&receiver, wanted);
    to_evaluate(scene, at, format!("see what {owner} has instead of `{wanted}`"), &code, Confidence::Medium)
}

fn wrong_key(scene: &Scene) -> Option<NextStep> {
    if scene.exception.kind != "KeyError" {
        return None;
    }
    let at = scene.raised_here()?;
    let key = unquote(&scene.exception.message).to_owned();
    let container = names::container(at, &at.statement())?;
    let keys = at.value(&container).and_then(|value| keys_of(&value)).unwrap_or_default();
    if let [near, ..] = similar(&key, keys.iter().map(|there| unquote(there)))[..] {
        let diff = edit_line(scene, at, |line| {
            let quoted =
                ['"', '\''].into_iter().find(|quote| line.matches(&format!("{quote}{key}{quote}")).count() == 1)?;
            Some(line.replacen(&format!("{quoted}{key}{quoted}"), &format!("{quoted}{near}{quoted}"), 1))
        });
        return Some(with_diff(format!("`{container}` has '{near}', not '{key}'"), diff, Confidence::Medium));
    }
    let text = format!("see which keys `{container}` has at {}", at.place());
    to_evaluate(scene, at, text, &format!("list({container})"), Confidence::Medium)
}

/// A file that is not there: what is there instead, seen from where the code looks.
fn missing_file(scene: &Scene) -> Option<NextStep> {
    if scene.exception.kind != "FileNotFoundError" {
        return None;
    }
    let at = scene.own()?;
    let path = outside::refused_path(&scene.exception.message)?;
    if outside::is_program(scene, &path) {
        let code = format!("import os, shutil; (shutil.which({path:?}), os.environ.get(\"PATH\"))");
        return to_evaluate(
            scene,
            at,
            format!("see whether the program '{path}' is on the PATH of the run"),
            &code,
            Confidence::Medium,
        );
    }
    let directory =
        path.rsplit_once('/').map_or(".", |(directory, _)| if directory.is_empty() { "/" } else { directory });
    let code = format!("import os; (os.getcwd(), os.path.exists({directory:?}) and os.listdir({directory:?}))");
    let text = format!("see where {} looks for '{path}' and what is there", at.place());
    to_evaluate(scene, at, text, &code, Confidence::Medium)
}

/// What to look at in the failing frame: the side of a comparison that is computed, what the failing expression hangs on, else a value on the line.
fn look(scene: &Scene) -> Option<NextStep> {
    if matches!(scene.exception.kind.as_str(), "NameError" | "UnboundLocalError" | "RecursionError") {
        return None;
    }
    let at = scene.own()?;
    let line = at.statement();
    let condition = comparing::condition(&line);
    let side = condition.as_deref().and_then(|condition| {
        let (left, right) = split_top(condition, "==")?;
        Some(if expressions(&left).is_empty() { right } else { left })
    });
    let failing = at.failing().filter(|_| scene.raised_here().is_some());
    // What a name of the module is says little.
    let is_value = |code: &String| at.value(code).is_some() || code.contains(['.', '[', '(']);
    let hangs_on = || {
        // Of a call that failed, the arguments say more than the function.
        let failing = failing.and_then(top_level).filter(|(_, rest)| !rest.starts_with('('));
        failing.map(|(owner, _)| owner.to_owned()).filter(is_value)
    };
    let values: Vec<String> = expressions(&line)
        .into_iter()
        .map(|found| found.text)
        .filter(|text| at.value(text).is_some() && !matches!(text.as_str(), "self" | "cls"))
        .collect();
    // The message may say of which type the value is that does not fit.
    let kind = super::hypotheses::reading::pattern!(r"'([\w.]+)' object|instances of '(\w+)'|type '(\w+)'")
        .captures(&scene.exception.message)
        .and_then(|parts| parts.iter().skip(1).flatten().next().map(|kind| short_name(kind.as_str()).to_owned()));
    let is_of_kind = |text: &&String| {
        at.local(text).is_some_and(|local| kind.as_deref().is_some_and(|kind| short_name(&local.kind) == kind))
    };
    let of_kind = values.iter().find(is_of_kind).cloned();
    let divisor = outside::divisor(scene).map(|(_, divisor)| divisor);
    let candidates = [divisor, side, condition.clone(), hangs_on(), of_kind, values.first().cloned()];
    let codes = candidates.into_iter().flatten().map(|code| code.trim().to_owned());
    // What raised the exception raises it again, and the copy has streams of its own.
    let is_useful = |code: &String| {
        let raises = scene.exception.kind != "AssertionError" && failing.is_some_and(|failing| code.contains(failing));
        let is_stream = ["sys.stdin", "sys.stdout", "sys.stderr"].iter().any(|stream| code.contains(stream));
        !expressions(code).is_empty() && !raises && !is_stream
    };
    codes.filter(is_useful).find_map(|code| {
        let text = format!("look at `{}` in frame {} ({})", brief(&code), at.index + 1, at.place());
        let step = to_evaluate(scene, at, text, &code, Confidence::Low)?;
        step.claims.iter().all(|claim| claim.recorded(scene) != Some(false)).then_some(step)
    })
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
