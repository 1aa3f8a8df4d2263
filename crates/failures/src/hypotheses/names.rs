//! Something that was looked up and is not there: a key, an index, an attribute, a name, a module.

use super::{
    Claim, Confidence, Fact, Hypothesis, Scene,
    reading::{
        At, balanced, brief, class_body, expressions, fields_of, files_of_module, indent, is_cut, is_installed,
        keys_of, length_of, names_of_module, pattern, short_name, similar, top_level, unquote,
    },
};
use crate::record::Owner;

/// Names of an owner that are listed: more of them say less.
const MOST_LISTED: usize = 20;

/// Classes that are looked through for an assignment.
const MAX_BASES: usize = 5;

/// Modules that the standard library had, and the first Python without them.
const REMOVED: &[(&str, (u32, u32))] = &[
    ("aifc", (3, 13)),
    ("asynchat", (3, 12)),
    ("asyncore", (3, 12)),
    ("binhex", (3, 11)),
    ("cgi", (3, 13)),
    ("cgitb", (3, 13)),
    ("chunk", (3, 13)),
    ("crypt", (3, 13)),
    ("distutils", (3, 12)),
    ("formatter", (3, 10)),
    ("imghdr", (3, 13)),
    ("imp", (3, 12)),
    ("lib2to3", (3, 13)),
    ("mailcap", (3, 13)),
    ("msilib", (3, 13)),
    ("nis", (3, 13)),
    ("nntplib", (3, 13)),
    ("parser", (3, 10)),
    ("pipes", (3, 13)),
    ("smtpd", (3, 12)),
    ("sndhdr", (3, 13)),
    ("spwd", (3, 13)),
    ("sunau", (3, 13)),
    ("symbol", (3, 10)),
    ("telnetlib", (3, 13)),
    ("uu", (3, 13)),
    ("xdrlib", (3, 13)),
];

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

/// What was subscripted on the failing line: the interpreter's word, else the only thing that is.
pub(crate) fn container(at: At, line: &str) -> Option<String> {
    if let Some(failing) = at.failing() {
        let (owner, rest) = top_level(failing)?;
        let popped = owner.strip_suffix(".pop").filter(|_| rest.starts_with('('));
        return rest.starts_with('[').then(|| owner.to_owned()).or(popped.map(ToOwned::to_owned));
    }
    let all: Vec<String> = expressions(line)
        .into_iter()
        .filter(|found| line[found.at.end..].starts_with('[') || line[found.at.end..].starts_with(".pop("))
        .map(|found| found.text)
        .collect();
    let [only] = &all[..] else { return None };
    Some(only.clone())
}

fn key(scene: &Scene) -> Option<Hypothesis> {
    let key = scene.exception.message.trim();
    // What a library looks up is not on the line that calls it.
    let at = scene.raised_here()?;
    let line = at.statement();
    if line.starts_with("raise") {
        return None;
    }
    let container = container(at, &line);
    if let Some(container) = &container
        && let Some(value) = at.value(container)
        && let Some(keys) = keys_of(&value).filter(|keys| !keys.iter().any(|there| there == key))
    {
        let near = similar(unquote(key), keys.iter().map(|there| unquote(there))).first().map(ToString::to_string);
        let has = if is_cut(&value) { "its keys begin with" } else { "its keys are" };
        let text = match &near {
            Some(near) => {
                format!("`{container}` has no key {key} at {}; it has '{near}', which may be meant", at.place())
            }
            None if keys.is_empty() => format!("`{container}` has no key {key} at {}: it is empty", at.place()),
            None => format!("`{container}` has no key {key} at {}; {has} {}", at.place(), listed(&keys)),
        };
        let evidence =
            vec![at.fact(format!("`{}`", brief(&line))), at.fact(format!("keys of {container}: {}", listed(&keys)))];
        let because = "the container's recorded keys do not have it".to_owned();
        let claims = vec![Claim::Value { frame: at.into(), expression: container.clone(), value }];
        return Some(Hypothesis { text, confidence: Confidence::High, because, evidence, claims });
    }
    // The key is a name whose value is the missing one, or stands there itself.
    let via = at
        .frame
        .locals
        .iter()
        .find(|local| local.value == key && asks_by(&line, &local.name))
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
    let what = container.map(|container| format!("`{container}` has ")).unwrap_or_default();
    Some(Hypothesis {
        text: format!(
            "{what}no entry for the key {key}{} at {}, `{}`{hint}",
            via.unwrap_or_default(),
            at.place(),
            brief(&line)
        ),
        confidence: if hint.is_empty() { Confidence::Low } else { Confidence::Medium },
        because: "the container itself is not among the recorded values".to_owned(),
        evidence,
        claims: Vec::new(),
    })
}

/// Whether a line looks something up by a name: another one may have the same value.
fn asks_by(line: &str, name: &str) -> bool {
    line.contains(&format!("[{name}]")) || line.contains(&format!(".pop({name})"))
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
    let at = scene.raised_here()?;
    let line = at.statement();
    let container = container(at, &line)?;
    let written = at.failing().unwrap_or(&line);
    let open = written.find(&format!("{container}["))? + container.len();
    let inside = written[open + 1..open + balanced(&written[open..])? - 1].trim();
    let value = at.value(&container).filter(|value| value.starts_with(['[', '(']))?;
    let length = length_of(&value)?;
    let asked = at.value(inside).unwrap_or_else(|| inside.to_owned());
    let signed = |length: usize| i64::try_from(length).unwrap_or(i64::MAX);
    if asked.parse::<i64>().is_ok_and(|asked| (-signed(length)..signed(length)).contains(&asked)) {
        // What is recorded has the item: it was changed since, or another one is meant.
        return None;
    }
    let off_by_one = inside.replace(' ', "") == format!("len({container})");
    let why = if length == 0 {
        "it is empty".to_owned()
    } else if off_by_one {
        format!("the last index is {}, one below its length", length - 1)
    } else {
        format!("its indexes go from 0 to {}", length - 1)
    };
    let asked = if asked == inside { asked } else { format!("{inside} = {asked}") };
    Some(Hypothesis {
        text: format!("`{container}[{inside}]` at {} asks for more than there is: {why}", at.place()),
        confidence: Confidence::High,
        because: "the recorded value shows its length".to_owned(),
        evidence: vec![
            at.fact(format!("{container} = {} ({length} items)", brief(&value))),
            at.fact(format!("asked for: {asked}")),
        ],
        claims: vec![Claim::Value { frame: at.into(), expression: container, value }],
    })
}

/// An attribute that was asked for and is not there.
pub(crate) struct MissingAttribute {
    /// In words: `user`, a User,
    pub owner: String,
    /// As it is written on the line, if it is known.
    pub receiver: Option<String>,
    pub wanted: String,
    /// What is there instead.
    pub there: Vec<String>,
    /// Whether it was asked of a module that is not the project's.
    is_foreign: bool,
    /// Whether what is there was recorded in the test's process, and is all there is.
    pub recorded: bool,
    pub module: Option<String>,
    class: Option<String>,
}

impl MissingAttribute {
    pub fn near(&self) -> Option<String> {
        let near = similar(&self.wanted, self.there.iter().map(String::as_str));
        near.into_iter().find(|name| !self.is_foreign || is_typo(&self.wanted, name)).map(ToString::to_string)
    }

    fn claim(&self, at: At, name: &str, there: bool) -> Option<Claim> {
        let name = name.to_owned();
        match (&self.module, &self.receiver) {
            (Some(module), _) => Some(Claim::InModule { module: module.clone(), name, there }),
            (None, Some(receiver)) => {
                Some(Claim::Attribute { frame: at.into(), expression: receiver.clone(), name, there })
            }
            (None, None) => None,
        }
    }
}

pub(crate) fn missing_attribute(scene: &Scene) -> Option<MissingAttribute> {
    let message = &scene.exception.message;
    let parts = pattern!(
        r"(?:'([\w.]+)' object|(?:partially initialized )?module '([\w.]+)'|type object '([\w.]+)') has no attribute '(\w+)'"
    )
    .captures(message)?;
    let wanted = parts[4].to_owned();
    let at = scene.own()?;
    let lookup = scene.exception.lookup.as_ref().filter(|lookup| lookup.name == wanted && lookup.more == 0);
    if let Some(module) = parts.get(2).map(|module| module.as_str()) {
        let recorded = lookup.filter(|lookup| lookup.owner == Owner::Module && lookup.of == module);
        let there = match recorded {
            Some(lookup) => lookup.names.clone(),
            None => module_names(scene, module),
        };
        return Some(MissingAttribute {
            owner: described(scene, module),
            receiver: None,
            wanted,
            there,
            is_foreign: scene.version_of(module).is_some(),
            recorded: recorded.is_some(),
            module: Some(module.to_owned()),
            class: None,
        });
    }
    let class = parts.get(1).or(parts.get(3))?.as_str().to_owned();
    let receiver = receiver_of(scene, &wanted);
    let is_instance = parts.get(1).is_some();
    let owner = match &receiver {
        Some(receiver) if is_instance => format!("`{receiver}`, a {class},"),
        _ if is_instance => format!("the {class}"),
        _ => format!("the class {class}"),
    };
    let mut found = MissingAttribute {
        owner,
        receiver,
        wanted,
        there: Vec::new(),
        is_foreign: false,
        recorded: false,
        module: None,
        class: Some(class.clone()),
    };
    if let Some(lookup) = lookup.filter(|lookup| matches!(lookup.owner, Owner::Instance | Owner::Class)) {
        found.there.clone_from(&lookup.names);
        found.recorded = true;
        found.class = Some(lookup.of.clone());
        return Some(found);
    }
    // Nobody recorded what it has: its own text, and what its class defines.
    let value = found.receiver.as_ref().and_then(|receiver| at.value(receiver));
    found.there = value.map(|value| fields_of(&value)).unwrap_or_default();
    for frame in scene.frames().filter(|at| at.frame.in_app) {
        if let Some(text) = scene.file(&frame.frame.file) {
            found.there.extend(methods_of_class(&text, short_name(&class)));
        }
    }
    let module = found.receiver.as_ref().and_then(|receiver| at.local(receiver));
    if let Some((_, text)) =
        module.and_then(|local| local.kind.rsplit_once('.')).and_then(|(module, _)| scene.source_of(module))
    {
        found.there.extend(methods_of_class(&text, short_name(&class)));
    }
    found.there.sort();
    found.there.dedup();
    Some(found)
}

/// What the attribute was asked of, as it is written in the frame that raised.
fn receiver_of(scene: &Scene, wanted: &str) -> Option<String> {
    let at = scene.raised_here()?;
    if let Some(failing) = at.failing() {
        let (owner, rest) = top_level(failing)?;
        // Of a method that is called the whole call is what failed.
        let owner = if rest.starts_with('(') { top_level(owner)?.0 } else { owner };
        return failing[owner.len()..].trim_start_matches('.').starts_with(wanted).then(|| owner.to_owned());
    }
    let line = at.statement();
    let suffix = format!(".{wanted}");
    let ends = |rest: &str| !rest.starts_with(|c: char| c == '_' || c.is_alphanumeric());
    let found = expressions(&line)
        .into_iter()
        .filter(|found| line[found.at.end..].strip_prefix(suffix.as_str()).is_some_and(ends));
    let mut texts: Vec<String> = found.map(|found| found.text).collect();
    texts.dedup();
    if texts.len() == 1 { texts.pop() } else { None }
}

/// Methods and class attributes that a class's own source defines. What methods assign to `self` is there only if they ran.
fn methods_of_class(text: &str, class: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let Some((begin, end)) = class_body(&lines, class) else { return Vec::new() };
    let Some(deep) = lines[begin..end].iter().find(|line| !line.trim().is_empty()).map(|line| indent(line)) else {
        return Vec::new();
    };
    let mut names: Vec<String> = lines[begin..end]
        .iter()
        .filter(|line| indent(line) == deep)
        .filter_map(|line| {
            let parts = pattern!(r"^\s+(?:async\s+)?def\s+(\w+)|^\s+(\w+)\s*(?::[^=]+)?=[^=]").captures(line)?;
            parts.get(1).or(parts.get(2)).map(|name| name.as_str().to_owned())
        })
        .collect();
    names.retain(|name| !name.starts_with("__"));
    names
}

/// Where a class assigns an attribute to `self`, if only one method does.
pub(crate) struct Assigned {
    pub method: String,
    pub file: String,
    /// Of the assignment, and of the method.
    pub line: u32,
    pub method_line: u32,
    /// Whether pytest is not to be expected to call the method.
    pub is_nose: bool,
}

pub(crate) fn assigned_in(scene: &Scene, missing: &MissingAttribute) -> Option<Assigned> {
    let (module, class) = missing
        .class
        .as_deref()?
        .rsplit_once('.')
        .map_or((None, missing.class.as_deref()?), |(module, class)| (Some(module), class));
    let (file, text) = if let Some(module) = module {
        scene.source_of(module)?
    } else {
        let at = scene.own()?;
        (at.frame.file.clone(), scene.file(&at.frame.file)?)
    };
    let lines: Vec<&str> = text.lines().collect();
    let mut classes = vec![class.to_owned()];
    let mut found: Option<(String, usize, usize)> = None;
    let mut is_unittest = false;
    let mut seen = 0;
    // With the classes of the same file that it is made from.
    while let Some(class) = classes.get(seen).cloned().filter(|_| seen < MAX_BASES) {
        seen += 1;
        let Some((begin, end)) = class_body(&lines, &class) else { continue };
        let head = lines[begin - 1];
        is_unittest |= head.contains("TestCase");
        let bases =
            head.split_once('(').map_or("", |(_, rest)| rest).split([',', ')']).map(|base| base.trim().to_owned());
        classes.extend(bases.filter(|base| !base.is_empty() && !classes.contains(base)).collect::<Vec<_>>());
        let mut method = None;
        for (index, line) in lines.iter().enumerate().take(end).skip(begin) {
            if let Some(parts) = pattern!(r"^\s+(?:async\s+)?def\s+(\w+)").captures(line) {
                method = Some((parts[1].to_owned(), index));
            }
            let assigns =
                line.trim_start().strip_prefix("self.").and_then(|rest| rest.strip_prefix(missing.wanted.as_str()));
            let assigns =
                assigns.map(str::trim_start).is_some_and(|rest| rest.starts_with('=') && !rest.starts_with("=="));
            if assigns {
                let (method, at) = method.clone()?;
                if found.as_ref().is_some_and(|(other, ..)| *other != method) || method == "__init__" {
                    return None;
                }
                found = found.or(Some((method, at, index)));
            }
        }
    }
    let (method, at, index) = found?;
    if scene.frames().any(|at| short_name(&at.frame.function) == method) {
        return None;
    }
    let number = |index: usize| u32::try_from(index + 1).unwrap_or(u32::MAX);
    let is_nose = matches!(method.as_str(), "setup" | "setUp")
        && !is_unittest
        && scene.around.packages.is_some_and(calls_no_nose);
    Some(Assigned { method, file, line: number(index), method_line: number(at), is_nose })
}

/// A module in words, with the version it came in and where from if that is not the project.
fn described(scene: &Scene, module: &str) -> String {
    match scene.version_of(module) {
        Some(version) if version.starts_with("Python ") => format!("`{module}` of {version}"),
        Some(version) => format!("`{module}` ({version})"),
        None => format!("`{module}`"),
    }
}

/// Where an imported module is, as evidence.
fn imported_from(scene: &Scene, module: &str) -> Option<Fact> {
    let file = scene.evidence.modules.get(module)?.file.as_ref()?;
    Some(Fact::told(format!("{module} was imported from {file}")))
}

/// That the project has another file for a module, which has the name that is missing.
fn has_another(scene: &Scene, module: &str, wanted: &str) -> Option<(String, Fact)> {
    let imported = scene.evidence.modules.get(module)?.file.as_deref()?;
    let (file, text) = scene.unused_source_of(module)?;
    if !names_of_module(&text).iter().any(|name| name == wanted) {
        return None;
    }
    let installed = if is_installed(imported) { "the installed copy" } else { imported };
    let said = format!("; {file} of this project has it, but {installed} was imported instead");
    Some((
        said,
        Fact { frame: None, file: Some(file), line: None, what: format!("has `{wanted}`, and was not imported") },
    ))
}

pub(crate) fn module_names(scene: &Scene, module: &str) -> Vec<String> {
    let lookup = scene.exception.lookup.as_ref();
    if let Some(lookup) = lookup.filter(|lookup| lookup.owner == Owner::Module && lookup.of == module) {
        return lookup.names.clone();
    }
    scene.source_of(module).map(|(_, text)| names_of_module(&text)).unwrap_or_default()
}

/// Whether a name of a library is another one mistyped. What the library had once, and code uses that is older, often has its successors
/// and kin around it: `asyncio.coroutine` is neither `coroutines` nor `iscoroutine`.
fn is_typo(wanted: &str, name: &str) -> bool {
    !wanted.contains(name) && !name.contains(wanted)
}

/// What may have been meant by a name that cannot be imported from a module.
pub(crate) fn near_import(scene: &Scene, module: &str, wanted: &str, there: &[String]) -> Option<String> {
    let is_foreign = scene.version_of(module).is_some();
    let near = similar(wanted, there.iter().map(String::as_str));
    near.into_iter().find(|name| !is_foreign || is_typo(wanted, name)).map(ToString::to_string)
}

fn attribute(scene: &Scene) -> Option<Hypothesis> {
    let at = scene.own()?;
    let missing = missing_attribute(scene)?;
    let MissingAttribute { owner, wanted, .. } = &missing;
    let place = match scene.library() {
        Some(library) => format!("{} (asked for in {library})", at.place()),
        None => at.place(),
    };
    let mut evidence = vec![at.fact(format!("`{}`", brief(&at.statement())))];
    evidence.extend(missing.module.as_ref().and_then(|module| imported_from(scene, module)));
    if scene.exception.message.contains("partially initialized") || scene.exception.message.contains("circular import")
    {
        return Some(Hypothesis {
            text: format!(
                "{owner} was not yet fully imported when {place} asked for `{wanted}`: modules that import each other"
            ),
            confidence: Confidence::High,
            because: "the message says that the module is only partially initialized".to_owned(),
            evidence,
            claims: vec![Claim::Said("initialized".to_owned())],
        });
    }
    if missing.recorded && missing.there.contains(wanted) {
        // A property, a slot or `__getattr__` that raised it.
        return Some(Hypothesis {
            text: format!("{owner} does define `{wanted}`: reading it at {place} is what raised the AttributeError"),
            confidence: Confidence::Medium,
            because: "the name was recorded among its attributes".to_owned(),
            evidence,
            claims: missing.claim(at, wanted, true).into_iter().collect(),
        });
    }
    let mut claims: Vec<Claim> = missing.claim(at, wanted, false).into_iter().collect();
    if !missing.recorded && missing.there.contains(wanted) {
        return Some(Hypothesis {
            text: format!("{owner} has no attribute `{wanted}` at {place}"),
            confidence: Confidence::Low,
            because: "the message says so; what it has instead was not recorded".to_owned(),
            evidence,
            claims,
        });
    }
    if let Some(Assigned { method, file, line, is_nose, .. }) = assigned_in(scene, &missing) {
        let why = if is_nose {
            format!(
                "; pytest 8 and later do not call a method `{method}` of a class that is not a unittest.TestCase: `setup_method` is the name"
            )
        } else {
            String::new()
        };
        let what = format!("`self.{wanted}` is assigned in {method}");
        evidence.push(Fact { frame: None, file: Some(file.clone()), line: Some(line), what });
        return Some(Hypothesis {
            text: format!(
                "{owner} has no attribute `{wanted}` at {place}: only `{method}` assigns it ({file}:{line}), and that has not run{why}"
            ),
            confidence: Confidence::High,
            because: "the attributes of the object were recorded without it, and its class assigns it nowhere else"
                .to_owned(),
            evidence,
            claims,
        });
    }
    let public: Vec<String> = missing.there.iter().filter(|name| !name.starts_with('_')).cloned().collect();
    if !public.is_empty() && public.len() <= MOST_LISTED {
        evidence.push(Fact::told(format!("{owner} has: {}", listed(&public))));
    }
    let another = missing.module.as_deref().and_then(|module| has_another(scene, module, wanted));
    let (text, confidence, because) = match missing.near() {
        _ if another.is_some() => {
            let (said, fact) = another.unwrap_or_else(|| (String::new(), Fact::told("")));
            evidence.push(fact);
            (
                format!("{owner} has no attribute `{wanted}` at {place}{said}"),
                Confidence::High,
                "the names of the imported module were recorded".to_owned(),
            )
        }
        Some(near) => {
            claims.extend(missing.claim(at, &near, true));
            (
                format!("{owner} has no attribute `{wanted}` at {place}; it has `{near}`, which may be meant"),
                Confidence::High,
                "the name that is there differs by little".to_owned(),
            )
        }
        None if public.is_empty() || public.len() > MOST_LISTED => (
            format!("{owner} has no attribute `{wanted}` at {place}"),
            if missing.recorded { Confidence::Medium } else { Confidence::Low },
            if missing.recorded {
                "its attributes were recorded without it".to_owned()
            } else {
                "the message says so; what it has instead was not recorded".to_owned()
            },
        ),
        None => (
            format!("{owner} has no attribute `{wanted}` at {place}; it has {}", listed(&public)),
            Confidence::Medium,
            "what it has was recorded".to_owned(),
        ),
    };
    Some(Hypothesis { text, confidence, because, evidence, claims })
}

/// Whether the pytest that ran knows no nose-style methods.
fn calls_no_nose(packages: &crate::environment::Packages) -> bool {
    let major = packages.get("pytest").and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    major.is_some_and(|major| major >= 8)
}

fn name(scene: &Scene) -> Option<Hypothesis> {
    // A name that a library does not know is not a matter of the line that called it.
    let at = scene.raised_here()?;
    let message = &scene.exception.message;
    let wanted = missing_name(message)?;
    let fact = at.fact(format!("`{}`", brief(&at.statement())));
    if message.contains("local variable") {
        let (first, lines) = scene.function_lines(at);
        let later = super::reading::assigned(first, &lines, u32::MAX, wanted);
        let where_assigned = later.map(|(line, value)| (line, format!("{wanted} = {}", brief(&value))));
        let mut evidence = vec![fact];
        evidence.extend(where_assigned.iter().map(|(line, what)| at.fact_at(*line, what.clone())));
        let assigned =
            where_assigned.map(|(line, _)| format!("; the assignment at {}:{line} had not been made", at.frame.file));
        return Some(Hypothesis {
            text: format!(
                "`{wanted}` is read at {} before anything was assigned to it{}",
                at.place(),
                assigned.unwrap_or_default()
            ),
            confidence: Confidence::High,
            because: "the message says so, and it is not among the recorded locals".to_owned(),
            evidence,
            claims: vec![Claim::Said(format!("'{wanted}'"))],
        });
    }
    let near = near_name(scene, at, wanted);
    let is_module = at.statement().contains(&format!("{wanted}."));
    let mut claims = vec![Claim::Name { frame: at.into(), name: wanted.to_owned(), there: false }];
    let (text, confidence, because) = if let Some(near) = near {
        let value = at.local(&near).map(|local| format!(" = {}", brief(&local.value))).unwrap_or_default();
        claims.push(Claim::Name { frame: at.into(), name: near.clone(), there: true });
        (
            format!("`{wanted}` at {} is not defined; `{near}`{value} is, which may be meant", at.place()),
            Confidence::High,
            "the two names differ by little".to_owned(),
        )
    } else if scene.unchanged(at).is_some_and(|text| names_module(&text, wanted)) {
        (
            format!("`{wanted}` is not defined where {} uses it", at.place()),
            Confidence::Medium,
            "the message says so; an import in the file names a module that is called so".to_owned(),
        )
    } else if scene.unchanged(at).is_some_and(|text| imports(&text, wanted)) {
        (
            format!("`{wanted}` is not defined where {} uses it; {} imports it elsewhere", at.place(), at.frame.file),
            Confidence::Medium,
            "the message says so, and an import of that name stands in the file".to_owned(),
        )
    } else if is_module || crate::next_step::import_of(wanted).is_some() {
        (
            format!("`{wanted}` is used at {} and never imported in {}", at.place(), at.frame.file),
            if scene.unchanged(at).is_some() { Confidence::High } else { Confidence::Medium },
            "it is used as a module or is a well-known name, and nothing of that name is defined".to_owned(),
        )
    } else {
        (
            format!("nothing called `{wanted}` is defined where {} uses it", at.place()),
            Confidence::Medium,
            "the message says so".to_owned(),
        )
    };
    Some(Hypothesis { text, confidence, because, evidence: vec![fact], claims })
}

/// Whether a file imports something from a module of this name, which may make the name as well.
fn names_module(text: &str, name: &str) -> bool {
    let from = |line: &str| pattern!(r"^\s*from\s+([\w.]+)\s+import\s").captures(line).map(|parts| parts[1].to_owned());
    text.lines().filter_map(from).any(|module| module.starts_with('.') && module.rsplit('.').next() == Some(name))
}

/// Whether a file has an import that makes a name, wherever it stands.
fn imports(text: &str, name: &str) -> bool {
    let made = |line: &str| {
        let (is_from, names) = match pattern!(r"^\s*(?:from\s+[\w.]+\s+)?import\s+(.+)$").captures(line) {
            Some(parts) => (line.trim_start().starts_with("from "), parts[1].trim_matches(['(', ')', ' ']).to_owned()),
            None => return false,
        };
        names.split(',').any(|item| {
            let mut words = item.split_whitespace();
            let imported = words.next().unwrap_or_default();
            let called = words.nth(1).unwrap_or(imported);
            called == name || (!is_from && called.split('.').next() == Some(name))
        })
    };
    text.lines().any(made)
}

pub(crate) fn missing_name(message: &str) -> Option<&str> {
    pattern!(r"^(?:free variable|cannot access (?:local|free) variable|name|local variable) '(\w+)'")
        .captures(message)
        .and_then(|parts| parts.get(1))
        .map(|name| name.as_str())
}

/// A name of the frame or of its module that is nearly the one that is missing.
pub(crate) fn near_name(scene: &Scene, at: At, wanted: &str) -> Option<String> {
    let recorded = scene.exception.lookup.as_ref().filter(|lookup| lookup.owner == Owner::Frame && at.index == 0);
    let mut names: Vec<String> = at.frame.locals.iter().map(|local| local.name.clone()).collect();
    if let Some(lookup) = recorded {
        names.extend(lookup.names.iter().cloned());
    } else if let Some(text) = scene.unchanged(at) {
        names.extend(names_of_module(&text));
    }
    let near = similar(wanted, names.iter().map(String::as_str)).first().map(ToString::to_string)?;
    // What everybody imports is missing an import, unless a name of the frame itself is that near.
    let is_known = crate::next_step::import_of(wanted).is_some();
    (!is_known || at.local(&near).is_some()).then_some(near)
}

fn import(scene: &Scene) -> Option<Hypothesis> {
    let at = scene.own()?;
    let message = &scene.exception.message;
    let mut evidence = vec![at.fact(format!("`{}`", brief(&at.statement())))];
    if let Some(parts) =
        pattern!(r"cannot import name '(\w+)' from (?:partially initialized module )?'([\w.]+)'").captures(message)
    {
        let (wanted, module) = (&parts[1], &parts[2]);
        evidence.extend(imported_from(scene, module));
        if message.contains("partially initialized") {
            return Some(Hypothesis {
                text: format!(
                    "`{module}` and a module it imports import each other: `{wanted}` is not there yet when {} asks for it",
                    at.place()
                ),
                confidence: Confidence::High,
                because: "the message says that the module is only partially initialized".to_owned(),
                evidence,
                claims: vec![Claim::Said("partially initialized".to_owned())],
            });
        }
        return Some(import_name(scene, at, wanted, module, evidence));
    }
    let parts = pattern!(r"No module named '([\w.]+)'").captures(message)?;
    let module = &parts[1];
    let place = at.place();
    let claims = vec![Claim::Said(format!("'{module}'"))];
    if let Some(parts) = pattern!(r"'([\w.]+)' is not a package").captures(message) {
        let file = scene.evidence.modules.get(&parts[1]).and_then(|module| module.file.as_deref());
        evidence.extend(imported_from(scene, &parts[1]));
        return Some(Hypothesis {
            text: format!(
                "`{}` is a module and no package, so {place} cannot import `{module}`{}",
                &parts[1],
                file.map(|file| format!("; the one that was imported is {file}")).unwrap_or_default()
            ),
            confidence: Confidence::High,
            because: "the message says so".to_owned(),
            evidence,
            claims,
        });
    }
    let (text, confidence, because) = match module.rsplit_once('.') {
        Some((package, last)) => {
            evidence.extend(imported_from(scene, package));
            if let Some(near) = near_module(scene, package, module) {
                (
                    format!("there is no module `{module}`, which {place} imports; there is `{near}`"),
                    Confidence::High,
                    "the module's file is there, and the names differ by little".to_owned(),
                )
            } else {
                let other = files_of_module(module).into_iter().find(|file| scene.file(file).is_some());
                let other = other.filter(|_| scene.evidence.modules.contains_key(package));
                let hint = match &other {
                    Some(file) => {
                        format!("; {file} of this project is that module, but the package was imported from elsewhere")
                    }
                    None => String::new(),
                };
                (
                    format!(
                        "the package {} has no module `{last}`, which {place} imports{hint}",
                        described(scene, package)
                    ),
                    if other.is_some() { Confidence::High } else { Confidence::Medium },
                    "the message names the submodule, so the package itself was found".to_owned(),
                )
            }
        }
        None => not_installed(scene, module, &place, &mut evidence),
    };
    Some(Hypothesis { text, confidence, because, evidence, claims })
}

fn import_name(scene: &Scene, at: At, wanted: &str, module: &str, mut evidence: Vec<Fact>) -> Hypothesis {
    let there = module_names(scene, module);
    let mut claims = vec![Claim::InModule { module: module.to_owned(), name: wanted.to_owned(), there: false }];
    let recorded = claims[0].recorded(scene).is_some();
    let (owner, place) = (described(scene, module), at.place());
    if !there.is_empty() && there.len() <= MOST_LISTED && !there.iter().any(|name| name == wanted) {
        evidence.push(Fact::told(format!("{module} has: {}", listed(&there))));
    }
    if let Some((said, fact)) = has_another(scene, module, wanted) {
        evidence.push(fact);
        let text = format!("{owner} has no `{wanted}`, which {place} imports{said}");
        let because = "the names of the imported module were recorded".to_owned();
        return Hypothesis { text, confidence: Confidence::High, because, evidence, claims };
    }
    if let Some(near) = near_import(scene, module, wanted, &there) {
        claims.push(Claim::InModule { module: module.to_owned(), name: near.clone(), there: true });
        return Hypothesis {
            text: format!("{owner} has no `{wanted}`, which {place} imports; it has `{near}`"),
            confidence: Confidence::High,
            because: "the name that is there differs by little".to_owned(),
            evidence,
            claims,
        };
    }
    let moved = crate::next_step::import_of(wanted).filter(|statement| !statement.contains(&format!("from {module} ")));
    let moved =
        moved.filter(|_| owner.contains(" of Python ")).map(|statement| format!("; `{statement}` is where it is now"));
    let sure = recorded || (!there.is_empty() && !there.iter().any(|name| name == wanted));
    Hypothesis {
        text: format!("{owner} has no `{wanted}`, which {place} imports{}", moved.unwrap_or_default()),
        confidence: if sure { Confidence::High } else { Confidence::Medium },
        because: if recorded {
            "the names of the imported module were recorded, and it is not among them"
        } else if sure {
            "its source defines nothing of that name"
        } else {
            "the message says so"
        }
        .to_owned(),
        evidence,
        claims,
    }
}

/// The first Python without a module that the standard library had, if the run's is not older.
fn removed_in(scene: &Scene, module: &str) -> Option<(u32, u32)> {
    let mut parts = scene.around.python?.split('.').map(|part| part.parse::<u32>().ok());
    let ran = (parts.next()??, parts.next()??);
    REMOVED.iter().find(|(name, since)| *name == module && ran >= *since).map(|(_, since)| *since)
}

pub(crate) fn is_removed(scene: &Scene, module: &str) -> bool {
    removed_in(scene, module).is_some()
}

/// The package that a module comes in, with its version, if it is installed all the same.
pub(crate) fn installed_without(scene: &Scene, module: &str) -> Option<String> {
    let package = pylair_python::modules::package_of(module);
    let name = package.map_or_else(|| module.replace('_', "-").to_lowercase(), ToOwned::to_owned);
    scene.around.packages?.get(&name).map(|version| format!("{name} {version}"))
}

/// Why a top-level module was not found.
fn not_installed(scene: &Scene, module: &str, place: &str, evidence: &mut Vec<Fact>) -> (String, Confidence, String) {
    if let Some(since) = removed_in(scene, module) {
        return (
            format!(
                "the standard library of Python {} has no `{module}` any more, which {place} imports: it was removed in {}.{}",
                scene.around.python.unwrap_or_default(),
                since.0,
                since.1
            ),
            Confidence::High,
            "the run's version of Python is recorded".to_owned(),
        );
    }
    if let Some(file) = files_of_module(module).into_iter().find(|file| scene.file(file).is_some()) {
        evidence.push(Fact { frame: None, file: Some(file.clone()), line: None, what: format!("is `{module}`") });
        let directory = if file.starts_with("src/") { "src" } else { "the project's root" };
        return (
            format!(
                "`{module}` is this project's own ({file}), but it is not installed and {directory} is not on sys.path, where {place} looks for it"
            ),
            Confidence::High,
            "the file is there, and the import did not find it".to_owned(),
        );
    }
    let at = scene.own();
    let beside =
        at.and_then(|at| at.frame.file.rsplit_once('/')).map(|(directory, _)| format!("{directory}/{module}.py"));
    if let Some(file) = beside.filter(|file| scene.file(file).is_some()) {
        evidence.push(Fact { frame: None, file: Some(file.clone()), line: None, what: format!("is `{module}`") });
        return (
            format!("`{module}` is {file}, beside {place}, which imports it, but that directory is not on sys.path"),
            Confidence::High,
            "the file is there, and the import did not find it".to_owned(),
        );
    }
    let package = pylair_python::modules::package_of(module);
    let known = scene.around.packages.filter(|packages| !packages.is_empty());
    if let Some(installed) = installed_without(scene, module) {
        return (
            format!("{installed} is installed, and has no module `{module}`, which {place} imports"),
            Confidence::Medium,
            "the packages of the run are recorded".to_owned(),
        );
    }
    let comes =
        package.filter(|package| *package != module).map(|package| format!(" (it comes in the package {package})"));
    (
        format!(
            "`{module}`{} is not installed in the interpreter that ran the test; {place} imports it",
            comes.unwrap_or_default()
        ),
        if known.is_some() { Confidence::High } else { Confidence::Medium },
        if known.is_some() {
            "it is not among the packages of the run"
        } else {
            "the message names a top-level module"
        }
        .to_owned(),
    )
}

/// A module of a package whose name is nearly the one that is missing: what the package's directory has, else what the failing file imports.
pub(crate) fn near_module(scene: &Scene, package: &str, module: &str) -> Option<String> {
    let lookup = scene.exception.lookup.as_ref();
    if let Some(lookup) = lookup.filter(|lookup| lookup.owner == Owner::Package && lookup.of == package) {
        let near = similar(short_name(module), lookup.names.iter().map(String::as_str));
        return near.first().map(|near| format!("{package}.{near}"));
    }
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
