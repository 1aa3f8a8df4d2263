//! None where a value was expected: which expression was None, and outward through the frames where it came from.

use super::{
    At, Claim, Confidence, Fact, Hypothesis, Scene,
    reading::{
        Expression, argument_for, arguments, assigned, brief, expressions, indent, is_cut, keys_of, parameters,
        pattern, short_name, split_top, surely_assigned, top_level, unquote, written_between,
    },
};

/// Maximum number of assignments that are named where it is not known which one gave the value.
const MAX_ASSIGNMENTS: usize = 3;
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
        (true, true) => {
            (Confidence::High, "the recorded value is None; the rest is read from the source and the recorded values")
        }
        (true, false) => (Confidence::High, "the recorded value is None"),
        (false, true) => {
            (Confidence::Medium, "the message says None, and this is the expression on the line that can give it")
        }
        (false, false) => {
            (Confidence::Medium, "the message says None, and the line has this expression where it was needed")
        }
    };
    let claims = vec![Claim::Nothing { frame: at.into(), expression: nothing.expression.clone() }];
    vec![Hypothesis { text, confidence, because: because.to_owned(), evidence, claims }]
}

pub(crate) fn nothing<'a>(scene: &Scene<'a>) -> Option<Nothing<'a>> {
    let message = &scene.exception.message;
    if !message.contains("NoneType") || !matches!(scene.exception.kind.as_str(), "AttributeError" | "TypeError") {
        return None;
    }
    // What a library says of an argument may be about another one, and this one may be meant to be None.
    let at = scene.raised_here()?;
    let line = at.statement();
    // A `raise` says what it likes; what failed in the making of its exception is another thing.
    if at.failing().unwrap_or(&line).starts_with("raise") {
        return None;
    }
    let candidates = match at.failing() {
        Some(failing) => operands(message, failing)?,
        None => on_line(message, &line)?,
    };
    let value = |expression: &String| at.value(expression);
    if let Some(shown) = candidates.iter().find(|expression| value(expression).is_some_and(|value| value == "None")) {
        return Some(Nothing { at, expression: shown.clone(), seen: true });
    }
    // Those whose values are recorded are something else.
    let unknown: Vec<&String> = candidates.iter().filter(|expression| value(expression).is_none()).collect();
    let [only] = unknown[..] else { return None };
    Some(Nothing { at, expression: only.clone(), seen: false })
}

/// What in the expression that failed can have been None, by the message.
fn operands(message: &str, failing: &str) -> Option<Vec<String>> {
    if let Some(parts) = pattern!(r"'NoneType' object has no attribute '(\w+)'").captures(message) {
        let (mut owner, mut rest) = top_level(failing)?;
        if rest.starts_with('(') {
            (owner, rest) = top_level(owner)?;
        }
        let is_attribute = rest.trim_start_matches('.').trim() == &parts[1];
        return is_attribute.then(|| vec![owner.to_owned()]);
    }
    if message.contains("not subscriptable") || message.contains("does not support item") {
        return top_level(failing).filter(|(_, rest)| rest.starts_with('[')).map(|(owner, _)| vec![owner.to_owned()]);
    }
    if message.contains("not callable") {
        return top_level(failing).filter(|(_, rest)| rest.starts_with('(')).map(|(owner, _)| vec![owner.to_owned()]);
    }
    let operator =
        pattern!(r"unsupported operand type\(s\) for ([^ :]+)|^'([^']+)' not supported between").captures(message);
    if let Some(operator) = operator {
        let operator = operator.get(1).or(operator.get(2))?.as_str();
        let (left, right) = split_top(failing, operator)?;
        // Of several operators in a row it is not known which one it was.
        let sides = [left.trim().to_owned(), right.trim().to_owned()];
        let is_plain = |side: &String| expressions(side).iter().any(|found| found.at == (0..side.len()));
        return Some(sides.into_iter().filter(is_plain).collect());
    }
    if message.contains("not iterable") || message.contains("non-iterable NoneType") {
        let inside = split_top(failing, "in").map(|(_, right)| right.trim().to_owned());
        let whole = inside.unwrap_or_else(|| failing.trim().to_owned());
        return expressions(&whole).iter().any(|found| found.at == (0..whole.len())).then(|| vec![whole]);
    }
    if let Some(parts) = pattern!(r"object of type 'NoneType' has no (len)\(\)").captures(message) {
        return arguments(failing, &parts[1]);
    }
    None
}

/// The same for a line of which nobody recorded what failed in it: where there is no choice.
fn on_line(message: &str, line: &str) -> Option<Vec<String>> {
    let all = expressions(line);
    let after = |expression: &Expression| line[expression.at.end..].trim_start();
    let texts = |found: Vec<&Expression>| found.into_iter().map(|expression| expression.text.clone()).collect();
    if let Some(parts) = pattern!(r"'NoneType' object has no attribute '(\w+)'").captures(message) {
        let attribute = format!(".{}", &parts[1]);
        let receivers = all.iter().filter(|expression| {
            after(expression)
                .strip_prefix(&attribute)
                .is_some_and(|rest| !rest.starts_with(|c: char| c == '_' || c.is_alphanumeric()))
        });
        return Some(texts(receivers.collect()));
    }
    let needed = if message.contains("not subscriptable") || message.contains("does not support item") {
        Some("[")
    } else if message.contains("not callable") {
        Some("(")
    } else {
        None
    };
    if let Some(needed) = needed {
        return Some(texts(all.iter().filter(|expression| after(expression).starts_with(needed)).collect()));
    }
    if !message.contains("unsupported operand") && !message.contains("not supported between") {
        return None;
    }
    // The longest form of each, outside of brackets: what stands in a call is passed on, and may be meant to be None.
    let outermost = all.iter().filter(|expression| {
        !all.iter().any(|other| {
            other.at != expression.at && other.at.start <= expression.at.start && other.at.end >= expression.at.end
        })
    });
    let operates = |expression: &&Expression| {
        let before = line[..expression.at.start].trim_end();
        let sign = |c: char| "+-*/%<>@&|^".contains(c);
        before.ends_with(sign) || after(expression).starts_with(sign)
    };
    Some(texts(outermost.filter(operates).collect()))
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
    if let Some((line, value)) = surely_assigned(first, &lines, at.frame.line, name) {
        evidence.push(at.fact_at(line, format!("{name} = {}", brief(&value))));
        if value == "None" {
            return Some(format!("`{name}` is set to None at {}:{line}", at.frame.file));
        }
        let call = if whole == Whole::Nothing { from_call(scene, at, &value, evidence) } else { None };
        let deeper = call.map(|from| format!(", and {from}")).unwrap_or_default();
        return Some(format!("`{name}` comes from `{}` at {}:{line}{deeper}", brief(&value), at.frame.file));
    }
    // Where it is not known which one it was, all are told.
    let mut all: Vec<(u32, String)> = Vec::new();
    while let Some((line, value)) = assigned(first, &lines, all.first().map_or(at.frame.line, |(line, _)| *line), name)
        && all.len() < MAX_ASSIGNMENTS
    {
        all.insert(0, (line, value));
    }
    if whole == Whole::Nothing && all.len() > 1 {
        let told = all.iter().map(|(line, value)| format!("{}:{line} (`{}`)", at.frame.file, brief(value)));
        let told = told.collect::<Vec<_>>().join(", ");
        evidence.extend(all.iter().map(|(line, value)| at.fact_at(*line, format!("{name} = {}", brief(value)))));
        return Some(format!("`{name}` is assigned before that line at {told}"));
    }
    if whole == Whole::Nothing
        && let [(line, value)] = &all[..]
        && fills_nothing(first, &lines, *line, at.frame.line, name)
    {
        evidence.push(at.fact_at(*line, format!("{name} = {}", brief(value))));
        let deeper = from_call(scene, at, value, evidence).map(|from| format!(", and {from}")).unwrap_or_default();
        return Some(format!("`{name}` comes from `{}` at {}:{line}{deeper}", brief(value), at.frame.file));
    }
    let declared = lines
        .iter()
        .position(|line| line.trim_start().starts_with("def ") || line.trim_start().starts_with("async def "))?;
    // What was passed need not be what it was in the end.
    let begin = first + u32::try_from(declared).unwrap_or(0) + 1;
    if !written_between(first, &lines, begin, at.frame.line, name).is_empty() {
        let [(line, value)] = all.get(..1).filter(|_| whole == Whole::Nothing && all.len() == 1)? else { return None };
        evidence.push(at.fact_at(*line, format!("{name} = {}", brief(value))));
        return Some(format!("`{name}` may be assigned at {}:{line} (`{}`)", at.frame.file, brief(value)));
    }
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

/// Whether an assignment stands below `if name is None:`, so that a None behind it came from there whichever way it was.
fn fills_nothing(first: u32, lines: &[String], line: u32, before: u32, name: &str) -> bool {
    let at = (line - first) as usize;
    let Some(above) = at.checked_sub(1) else { return false };
    let head = lines[above].trim();
    let deep = indent(&lines[above]);
    let after = lines.iter().take((before - first) as usize + 1).skip(at);
    (head == format!("if {name} is None:") || head == format!("if not {name}:"))
        && indent(&lines[at]) > deep
        && after.filter(|line| !line.trim().is_empty()).all(|line| indent(line) >= deep)
        && written_between(first, lines, line + 1, before, name).is_empty()
}

/// Types of what looks entries up by `get`, as they are recorded.
const DICTS: &[&str] =
    &["dict", "collections.OrderedDict", "collections.defaultdict", "collections.Counter", "mappingproxy"];

/// Why `get` of a recorded dict gave None: no entry, or one that is None.
fn from_get(at: At, owner: &str, given: &[String], evidence: &mut Vec<Fact>) -> Option<String> {
    let value = at.value(owner)?;
    let is_dict = at.local(owner).map_or(value.starts_with('{'), |local| DICTS.contains(&local.kind.as_str()));
    let key = given.first().filter(|key| is_dict && !key.starts_with('*'))?;
    // Another value in place of what is not there may be the None.
    if given.get(1).is_some_and(|default| default != "None") {
        return None;
    }
    let seen = at.value(key);
    let is_literal = key.starts_with(['\'', '"']) || key.parse::<i64>().is_ok();
    let asked = seen.clone().or_else(|| is_literal.then(|| key.clone()));
    let shown = seen.map_or_else(|| key.clone(), |value| format!("{key} = {}", brief(&value)));
    evidence.push(at.fact(shown.clone()));
    let keys = keys_of(&value).filter(|_| !is_cut(&value));
    let (Some(asked), Some(keys)) = (asked.filter(|asked| !is_cut(asked)), keys) else {
        return Some(format!("`{owner}` has no entry for {shown}, or one that is None"));
    };
    let same = |key: &String| {
        *key == asked
            || (key.starts_with(['\'', '"']) && asked.starts_with(['\'', '"']) && unquote(key) == unquote(&asked))
    };
    if let Some(key) = keys.iter().find(|key| same(key)) {
        // One that is something else was put there later.
        let is_none = value.contains(&format!("{key}: None,")) || value.contains(&format!("{key}: None}}"));
        return is_none.then(|| format!("the entry of `{owner}` for {shown} is None"));
    }
    let there =
        if keys.is_empty() { "it is empty".to_owned() } else { format!("its keys are {}", brief(&keys.join(", "))) };
    Some(format!("`{owner}` has no entry for {shown}, so `get` gave None; {there}"))
}

/// What a pattern was held against and did not match.
fn from_pattern(
    at: At,
    owner: &str,
    expression: &str,
    last: &str,
    open: usize,
    evidence: &mut Vec<Fact>,
) -> Option<String> {
    let given = arguments(expression, last)?;
    let named = given.iter().find_map(|given| {
        split_top(given, "=").filter(|(name, _)| name.trim() == "string").map(|(_, value)| value.trim().to_owned())
    });
    // A pattern that is compiled is given the text first, then from where to where it looks.
    let position = usize::from(owner == "re");
    let by_position = given.get(position).filter(|given| split_top(given, "=").is_none());
    if given.iter().any(|given| given.starts_with('*')) {
        return None;
    }
    let subject = named.or_else(|| by_position.cloned())?;
    let limits: Vec<&String> = if owner == "re" { Vec::new() } else { given.iter().skip(1).collect() };
    let value = at
        .value(&subject)
        .unwrap_or_else(|| if subject.starts_with(['\'', '"']) { subject.clone() } else { format!("`{subject}`") });
    evidence.push(at.fact(format!("{subject} = {}", brief(&value))));
    let part = match &limits[..] {
        [] => String::new(),
        [from] if split_top(from, "=").is_none() => {
            format!(" from position {} on", at.value(from).unwrap_or_else(|| format!("`{from}`")))
        }
        _ => " in the part that is looked at".to_owned(),
    };
    Some(format!("the pattern of `{}` did not match {}{part}", brief(&expression[..open]), brief(&value)))
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
    let owner = function.rsplit_once('.').map_or("", |(owner, _)| owner);
    if matches!(function, "os.getenv" | "os.environ.get" | "environ.get") {
        let given = arguments(expression, last)?;
        return (given.len() == 1).then(|| format!("the environment variable {} is not set", given[0]));
    }
    if last == "get"
        && !owner.is_empty()
        && let Some(found) = from_get(at, owner, &arguments(expression, "get")?, evidence)
    {
        return Some(found);
    }
    let is_pattern = owner == "re" || at.local(owner).is_some_and(|local| local.kind == "re.Pattern");
    if is_pattern && matches!(last, "match" | "search" | "fullmatch") {
        return from_pattern(at, owner, expression, last, open, evidence);
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
        if let Some((_, value)) = surely_assigned(first, &lines, at.frame.line, &root) {
            return value.ends_with(')').then_some((at, value));
        }
        let begin = lines.iter().position(|line| line.trim_start().starts_with("def "))?;
        let number = first + u32::try_from(begin).unwrap_or(0) + 1;
        // What was passed need not be what it was in the end.
        if !written_between(first, &lines, number, at.frame.line, &root).is_empty() {
            return None;
        }
        let declared = parameters(&lines[begin]);
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
