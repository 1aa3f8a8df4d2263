//! None where a value was expected: which expression was None, and outward through the frames where it came from.

use super::{
    At, Confidence, Fact, Hypothesis, Scene,
    reading::{
        Expression, argument_for, arguments, assigned, brief, expressions, keys_of, parameters, pattern, short_name,
    },
};

/// Frames that a None is followed through.
const MAX_STEPS: usize = 6;

/// What was None, in which frame.
pub(crate) struct Nothing<'a> {
    pub at: At<'a>,
    pub expression: String,
    /// Whether the recorded values show it.
    pub seen: bool,
}

pub(crate) fn hypotheses(scene: &Scene) -> Vec<Hypothesis> {
    let Some(nothing) = nothing(scene) else { return Vec::new() };
    let at = nothing.at;
    let mut evidence = vec![at.fact(if nothing.seen {
        format!("{} = None", nothing.expression)
    } else {
        format!("`{}`", brief(&at.statement()))
    })];
    let mut text = format!("`{}` was None in {} ({})", nothing.expression, short_name(&at.frame.function), at.place());
    let origin = origin(scene, at, &nothing.expression, &mut evidence, 0);
    if let Some(origin) = &origin {
        text = format!("{text}: {origin}");
    }
    let (confidence, because) = match (nothing.seen, origin.is_some()) {
        (true, true) => (Confidence::High, "the recorded value is None, and the source shows where it comes from"),
        (true, false) => (Confidence::High, "the recorded value is None"),
        (false, true) => {
            (Confidence::Medium, "the message says None, and this is the expression on the line that can give it")
        }
        (false, false) => {
            (Confidence::Medium, "the message says None, and the line has this expression where it was needed")
        }
    };
    vec![Hypothesis { text, confidence, because: because.to_owned(), evidence }]
}

pub(crate) fn nothing<'a>(scene: &Scene<'a>) -> Option<Nothing<'a>> {
    let message = &scene.exception.message;
    if !message.contains("NoneType") || !matches!(scene.exception.kind.as_str(), "AttributeError" | "TypeError") {
        return None;
    }
    let at = scene.own()?;
    let line = at.statement();
    let all = expressions(&line);
    let is_none = |expression: &Expression| at.value(&expression.text).is_some_and(|value| value == "None");
    let seen = |expression: &Expression| Nothing { at, expression: expression.text.clone(), seen: true };
    let told = |expression: &Expression| Nothing { at, expression: expression.text.clone(), seen: false };
    let after = |expression: &Expression| line[expression.at.end..].trim_start();
    if let Some(parts) = pattern!(r"'NoneType' object has no attribute '(\w+)'").captures(message) {
        let attribute = format!(".{}", &parts[1]);
        let mut receivers = all.iter().filter(|expression| {
            after(expression)
                .strip_prefix(&attribute)
                .is_some_and(|rest| !rest.starts_with(|c: char| c == '_' || c.is_alphanumeric()))
        });
        let receivers: Vec<&Expression> = receivers.by_ref().collect();
        return receivers
            .iter()
            .find(|expression| is_none(expression))
            .map(|expression| seen(expression))
            .or_else(|| (receivers.len() == 1).then(|| told(receivers[0])));
    }
    let needed = if message.contains("not subscriptable") || message.contains("does not support item") {
        Some("[")
    } else if message.contains("not callable") {
        Some("(")
    } else {
        None
    };
    let fits = |expression: &&Expression| needed.is_none_or(|mark| after(expression).starts_with(mark));
    if let Some(found) = all.iter().filter(fits).find(|expression| is_none(expression)) {
        return Some(seen(found));
    }
    // A call whose result was used: the longest form of each, and only if there is no choice.
    let calls: Vec<&Expression> = all
        .iter()
        .filter(fits)
        .filter(|expression| {
            expression.text.ends_with(')')
                && !all.iter().any(|other| {
                    other.at.start == expression.at.start && other.at.end > expression.at.end && needed.is_none()
                })
        })
        .filter(|expression| {
            !all.iter().any(|other| other.at.start < expression.at.start && other.at.end >= expression.at.end)
        })
        .filter(|expression| {
            !matches!(
                expression.text.split('(').next(),
                Some("len" | "int" | "str" | "float" | "sum" | "list" | "sorted" | "range")
            )
        })
        .collect();
    match calls[..] {
        [only] => Some(told(only)),
        _ => None,
    }
}

/// Where an expression's None came from, in words; what was looked at goes into the evidence.
fn origin(scene: &Scene, at: At, expression: &str, evidence: &mut Vec<Fact>, steps: usize) -> Option<String> {
    if steps > MAX_STEPS {
        return None;
    }
    if let Some(from) = from_call(scene, at, expression, evidence) {
        return Some(from);
    }
    if let Some((owner, field)) = expression.rsplit_once('.') {
        let value = at.value(owner)?;
        evidence.push(at.fact(format!("{owner} = {}", brief(&value))));
        let root = owner.split('.').next().unwrap_or(owner);
        let from =
            whence(scene, at, root, Whole::Value, evidence, steps).map(|from| format!("; {from}")).unwrap_or_default();
        return Some(format!("the attribute `{field}` of {} holds None{from}", brief(&value)));
    }
    whence(scene, at, expression, Whole::Nothing, evidence, steps)
}

/// Whether it is the name itself that is None, or something in its value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whole {
    Nothing,
    Value,
}

/// Where a name got its value: an assignment before, or an argument from the frame outside.
fn whence(scene: &Scene, at: At, name: &str, whole: Whole, evidence: &mut Vec<Fact>, steps: usize) -> Option<String> {
    if steps > MAX_STEPS {
        return None;
    }
    let (first, lines) = scene.function_lines(at);
    if let Some((line, value)) = assigned(first, &lines, at.frame.line, name) {
        evidence.push(at.fact_at(line, format!("{name} = {}", brief(&value))));
        if value == "None" {
            return Some(format!(
                "`{name}` is set to None at {}:{line} and to nothing else before the failure",
                at.frame.file
            ));
        }
        let call = if whole == Whole::Nothing { from_call(scene, at, &value, evidence) } else { None };
        let deeper = call.map(|from| format!(", and {from}")).unwrap_or_default();
        return Some(format!("`{name}` comes from `{}` at {}:{line}{deeper}", brief(&value), at.frame.file));
    }
    let declared = lines
        .iter()
        .position(|line| line.trim_start().starts_with("def ") || line.trim_start().starts_with("async def "))?;
    let head: String = lines[declared..].iter().take(20).map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    let parameters = parameters(&head);
    let parameter = parameters.iter().find(|parameter| parameter.name == name)?;
    let outer = scene.frame(at.index + 1).filter(|outer| outer.frame.in_app)?;
    let given = arguments(&outer.statement(), short_name(&at.frame.function))?;
    // `self` is not written at the call.
    let passed: &[_] = if matches!(parameters.first().map(|first| first.name.as_str()), Some("self" | "cls")) {
        &parameters[1..]
    } else {
        &parameters
    };
    let Some(argument) = argument_for(&given, passed, name) else {
        let default = parameter.default.as_deref()?;
        evidence.push(outer.fact(format!("`{}`", brief(&outer.statement()))));
        return Some(format!(
            "the call at {} does not pass `{name}`, which keeps its default {default}",
            outer.place()
        ));
    };
    evidence.push(outer.fact(format!("`{}`", brief(&outer.statement()))));
    if argument == "None" {
        return Some(format!("{} passes None for `{name}`", outer.place()));
    }
    let from = match whole {
        Whole::Nothing => origin(scene, outer, &argument, evidence, steps + 1),
        Whole::Value => {
            whence(scene, outer, argument.split('.').next().unwrap_or(&argument), whole, evidence, steps + 1)
        }
    };
    let deeper = from.map(|from| format!(": {from}")).unwrap_or_default();
    Some(format!("{} passes `{}` for `{name}`{deeper}", outer.place(), brief(&argument)))
}

/// What the source says about a call that gave None.
fn from_call(scene: &Scene, at: At, expression: &str, evidence: &mut Vec<Fact>) -> Option<String> {
    let open = expression.find('(').filter(|_| expression.ends_with(')'))?;
    // Of a chain of calls it is the last that gave the value.
    let whole = expressions(expression).into_iter().rfind(|found| found.text == expression)?;
    let beginnings = expressions(expression);
    let function = beginnings.iter().rfind(|found| found.at.start == whole.at.start && found.at.end < whole.at.end)?;
    let function = function.text.as_str();
    let last = short_name(function);
    if last == "get" && function.contains('.') {
        let owner = function.rsplit_once('.').map_or("", |(owner, _)| owner);
        let key = arguments(expression, "get")?.into_iter().next()?;
        let shown = at.value(&key).map_or_else(|| key.clone(), |value| format!("{key} = {}", brief(&value)));
        let there = at.value(owner).and_then(|value| keys_of(&value));
        let keys = there.map(|keys| format!("; its keys are {}", brief(&keys.join(", ")))).unwrap_or_default();
        evidence.push(at.fact(shown.clone()));
        return Some(format!("`{owner}` has no entry for {shown}, so `get` gave None{keys}"));
    }
    if matches!(function, "re.match" | "re.search" | "re.fullmatch")
        || (matches!(last, "match" | "search" | "fullmatch"))
    {
        let given = arguments(expression, last)?;
        let subject = given.last()?;
        let value = at.value(subject).unwrap_or_else(|| subject.clone());
        evidence.push(at.fact(format!("{subject} = {}", brief(&value))));
        return Some(format!("the pattern of `{}` did not match {}", brief(&expression[..open]), brief(&value)));
    }
    if matches!(function, "os.getenv" | "os.environ.get" | "environ.get") {
        return Some(format!("the environment variable {} is not set", arguments(expression, last)?.first()?));
    }
    let definition = scene.definition(at, function)?;
    let why = definition.gives_none()?;
    let given = arguments(expression, last).unwrap_or_default();
    let values: Vec<String> =
        given.iter().filter_map(|name| at.value(name).map(|value| format!("{name} = {}", brief(&value)))).collect();
    let with = if values.is_empty() { String::new() } else { format!(" with {}", values.join(", ")) };
    evidence.push(definition.fact(definition.head()));
    Some(format!("`{function}`{with} gave None: {why} ({})", definition.place()))
}

/// The call that made an expression's None, and the frame it stands in, followed outward through arguments.
pub(crate) fn maker<'a>(scene: &Scene<'a>, at: At<'a>, expression: &str) -> Option<(At<'a>, String)> {
    let mut at = at;
    let mut expression = expression.to_owned();
    for _ in 0..MAX_STEPS {
        if expression.ends_with(')') {
            return Some((at, expression));
        }
        let root = expression.split(['.', '[']).next().unwrap_or(&expression).to_owned();
        let (first, lines) = scene.function_lines(at);
        if let Some((_, value)) = assigned(first, &lines, at.frame.line, &root) {
            return value.ends_with(')').then_some((at, value));
        }
        let head = lines.iter().find(|line| line.trim_start().starts_with("def "))?;
        let declared = parameters(head);
        let passed: &[_] = match declared.first() {
            Some(first) if matches!(first.name.as_str(), "self" | "cls") => &declared[1..],
            _ => &declared,
        };
        let outer = scene.frame(at.index + 1).filter(|outer| outer.frame.in_app)?;
        let given = arguments(&outer.statement(), short_name(&at.frame.function))?;
        let argument = argument_for(&given, passed, &root)?;
        // The attribute of an object is made where the object is.
        expression = argument;
        at = outer;
    }
    None
}
