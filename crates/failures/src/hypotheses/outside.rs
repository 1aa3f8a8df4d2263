//! What comes from outside of the code or does not fit its types: files, connections, encodings, time zones, and values that cannot be worked with.

use super::{
    Claim, Confidence, Fact, Hypothesis, Scene,
    reading::{
        At, arguments, brief, expressions, indent, is_cut, pattern, short_name, split_top, unquote, written_between,
    },
};

/// Maximum number of functions that call each other without an end.
const MAX_CYCLE: usize = 8;
/// Length of a statement that is shown whole.
const SHORT_STATEMENT: usize = 100;

pub(crate) fn hypotheses(scene: &Scene) -> Vec<Hypothesis> {
    let Some(at) = scene.own() else { return Vec::new() };
    let kind = scene.exception.kind.as_str();
    let found = match kind {
        "FileNotFoundError" | "NotADirectoryError" | "IsADirectoryError" | "PermissionError" | "FileExistsError" => {
            file(scene, at)
        }
        "UnicodeDecodeError" | "UnicodeEncodeError" => encoding(scene, at),
        _ if is_raised_by_hand(scene) => None,
        _ if is_connection(scene, kind, &scene.exception.message) => Some(connection(scene, at)),
        _ if is_timeout(kind, &scene.exception.message) => Some(timeout(scene, at)),
        _ if scene.exception.message.contains("offset-naive and offset-aware") => Some(zone(at)),
        _ => None,
    };
    found.into_iter().collect()
}

/// Whether the project's own code, or a mock, raised it itself.
fn is_raised_by_hand(scene: &Scene) -> bool {
    scene.raised_here().is_some_and(|at| at.statement().starts_with("raise"))
        || scene.frame(0).is_some_and(|at| at.frame.file.ends_with("mock.py"))
}

/// A process that died while the test ran: where it was.
pub(crate) fn died(scene: &Scene) -> Vec<Hypothesis> {
    if !matches!(scene.exception.kind.as_str(), "Died" | "Crashed") {
        return Vec::new();
    }
    let Some(at) = scene.own() else { return Vec::new() };
    let fatal = scene.evidence.text.lines().find(|line| line.starts_with("Fatal Python error"));
    let mut evidence = vec![at.fact(format!("in {}", at.frame.function))];
    let mut text = match fatal {
        Some(_) => format!("the interpreter crashed in {} at {}", at.frame.function, at.place()),
        None => format!("the process was ended while {} was at {}", at.frame.function, at.place()),
    };
    if let Some(inner) = scene.frame(0).filter(|inner| inner.index != at.index) {
        evidence.push(inner.fact(format!("in {}", inner.frame.function)));
        text = format!("{text}, inside {} ({})", inner.frame.function, inner.place());
    }
    evidence.extend(fatal.map(Fact::told));
    let claims = vec![Claim::Said(format!("line {} in ", at.frame.line))];
    vec![Hypothesis {
        text: fatal.map_or(text.clone(), |fatal| format!("{text}: {fatal}")),
        confidence: Confidence::High,
        because: "it is the innermost frame of the project in the stack that was left behind".to_owned(),
        evidence,
        claims,
    }]
}

/// Source that the compiler refused.
pub(crate) fn syntax(scene: &Scene) -> Vec<Hypothesis> {
    let Some(syntax) = &scene.exception.syntax else { return Vec::new() };
    let message = brief(&scene.exception.message);
    let version = scene.around.python.map(|version| format!(" {version}")).unwrap_or_default();
    let is_old = pattern!(r"^print\s+[^(\s=]|^except\s+[\w.]+\s*,\s*\w+\s*:|^exec\s+[^(\s=]|^raise\s+[\w.]+\s*,|\bur['\x22]|<>|\b\d+L\b|\b0\d+\b")
        .is_match(&syntax.text);
    let old = if is_old { "; the line is written for Python 2" } else { "" };
    let line = if syntax.text.is_empty() { String::new() } else { format!(", `{}`", brief(&syntax.text)) };
    let place = Fact {
        frame: None,
        file: Some(syntax.file.clone()),
        line: Some(syntax.line),
        what: format!("`{}`", brief(&syntax.text)),
    };
    let mut evidence = vec![place];
    evidence.extend(scene.own().map(|at| at.fact(format!("`{}`", brief(&at.statement())))));
    vec![Hypothesis {
        text: format!("{}:{}{line}, is not valid Python{version}: {message}{old}", syntax.file, syntax.line),
        confidence: Confidence::High,
        because: "the compiler stopped there".to_owned(),
        evidence,
        claims: vec![Claim::Said(scene.exception.message.clone())],
    }]
}

/// Values of the names on the failing line, as facts.
fn values_on_line(at: At, most: usize) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for expression in expressions(&at.statement()) {
        if let Some(value) = at.value(&expression.text).filter(|_| !matches!(expression.text.as_str(), "self" | "cls"))
            && !found.iter().any(|(name, _)| *name == expression.text)
        {
            found.push((expression.text, brief(&value)));
        }
    }
    found.truncate(most);
    found
}

/// The path that the operating system was asked for and refused. Programs raise these exceptions too, about something else than a path.
pub(crate) fn refused_path(message: &str) -> Option<String> {
    let parts = pattern!(
        r#"^\[Errno \d+\] (?:No such file or directory|Not a directory|Is a directory|Permission denied|Operation not permitted|File exists|Read-only file system): ('[^']*'|"[^"]*")(?: -> .*)?$"#
    )
    .captures(message)?;
    Some(unquote(&parts[1]).to_owned())
}

/// What the name is of that a program could not be started with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Started {
    Program,
    /// Of the directory that it was to run in.
    Directory,
    Unknown,
}

/// Whether a program was to be started that is looked for on the PATH.
pub(crate) fn is_program(scene: &Scene, path: &str) -> bool {
    started(scene, path) == Some(Started::Program)
}

fn started(scene: &Scene, path: &str) -> Option<Started> {
    let raised = scene.frame(0).and_then(|at| at.frame.module.as_deref());
    if raised != Some("subprocess") || path.contains('/') {
        return None;
    }
    let at = scene.own()?;
    let statement = at.statement();
    let Some(cwd) = pattern!(r"\bcwd\s*=\s*([^,)]+)").captures(&statement).map(|parts| parts[1].trim().to_owned())
    else {
        return Some(Started::Program);
    };
    // `PosixPath('there')` is one too.
    let is_path = |value: &str| unquote(value.trim_end_matches(')').rsplit('(').next().unwrap_or(value)) == path;
    let is_literal = cwd.starts_with(['\'', '"']);
    Some(match at.value(&cwd).or_else(|| is_literal.then(|| cwd.clone())) {
        Some(value) if is_path(&value) => Started::Directory,
        Some(_) => Started::Program,
        None if statement.replacen(&cwd, "", 1).contains(path) => Started::Program,
        None => Started::Unknown,
    })
}

fn file(scene: &Scene, at: At) -> Option<Hypothesis> {
    let message = &scene.exception.message;
    let path = refused_path(message)?;
    let mut evidence = vec![at.fact(format!("`{}`", brief(&at.statement()))), at.fact(format!("path = '{path}'"))];
    let place = at.place();
    if scene.exception.kind != "FileNotFoundError" {
        let what =
            message.split(']').nth(1).and_then(|rest| rest.split(':').next()).unwrap_or("").trim().to_lowercase();
        return Some(Hypothesis {
            text: format!("'{path}' cannot be used as {place} does: {what}"),
            confidence: Confidence::High,
            because: "the operating system says so of this path".to_owned(),
            evidence,
            claims: vec![Claim::Said(path)],
        });
    }
    let started = started(scene, &path);
    if started == Some(Started::Unknown) {
        return None;
    }
    if started == Some(Started::Program) {
        return Some(Hypothesis {
            text: format!(
                "{place} starts the program '{path}', which is not on the PATH of the run (or its working directory is not there)"
            ),
            confidence: Confidence::Medium,
            because: "subprocess raised it, for a name without a directory".to_owned(),
            evidence,
            claims: vec![Claim::Said(path)],
        });
    }
    let absent = Claim::Path { path: path.clone(), there: false };
    if path.starts_with('/') {
        return Some(Hypothesis {
            text: format!("'{path}' was not there when {place} used it"),
            confidence: Confidence::High,
            because: "the path is absolute, so the working directory plays no part".to_owned(),
            evidence,
            claims: vec![Claim::Said(path), absent],
        });
    }
    // Where the test was when it failed; where pytest was started says little, a test may go elsewhere.
    let cwd = scene.evidence.cwd.as_deref();
    evidence.extend(cwd.map(|cwd| Fact::told(format!("working directory when it failed: {cwd}"))));
    let beside = at.frame.file.rsplit_once('/').map(|(directory, _)| format!("{directory}/{path}"));
    let elsewhere = beside.filter(|beside| {
        scene.file(beside).is_some()
            || scene.root().is_some_and(|root| (scene.around.exists)(&format!("{root}/{beside}")) == Some(true))
    });
    let text = match (&elsewhere, cwd) {
        (Some(there), _) => {
            format!(
                "'{path}' is looked for in the working directory{}, but it is at {there}, beside the code that opens it ({place})",
                cwd.map(|cwd| format!(" {cwd}")).unwrap_or_default()
            )
        }
        (None, Some(cwd)) => {
            format!("there was no '{path}' below the working directory {cwd}, where {place} looks for it")
        }
        (None, None) => {
            format!("there was no '{path}' below the working directory of the test, where {place} looks for it")
        }
    };
    Some(Hypothesis {
        text,
        confidence: if cwd.is_some() { Confidence::High } else { Confidence::Medium },
        because: "the path is relative, so it depends on the working directory".to_owned(),
        evidence,
        claims: vec![Claim::Said(path), absent],
    })
}

fn encoding(scene: &Scene, at: At) -> Option<Hypothesis> {
    let parts = pattern!(r"^'([\w-]+)' codec can't (decode byte 0x([0-9a-f]{2})|decode bytes|encode characters?(?: '([^']+)')?) in position ([\d-]+)")
        .captures(&scene.exception.message)?;
    let codec = &parts[1];
    let decoding = parts[2].starts_with("decode");
    let mut evidence = vec![at.fact(format!("`{}`", brief(&at.statement())))];
    for (name, value) in values_on_line(at, 3) {
        evidence.push(at.fact(format!("{name} = {value}")));
    }
    let byte = parts.get(3).map(|byte| format!("byte 0x{} ", byte.as_str())).unwrap_or_default();
    let character = parts
        .get(4)
        .map_or_else(|| "the characters ".to_owned(), |character| format!("the character '{}' ", character.as_str()));
    let unnamed = names_no_encoding(at);
    let default =
        if unnamed { "; the line names no encoding, so the default of the machine that runs it is taken" } else { "" };
    let text = if decoding {
        let guess = match parts.get(3).map(|byte| byte.as_str()) {
            Some("ff" | "fe") if &parts[5] == "0" => " (the beginning of UTF-16 is such a byte)",
            Some("8b") if &parts[5] == "1" => " (compressed files begin so)",
            Some("89") if &parts[5] == "0" => " (binary files, such as PNG, begin so)",
            Some(byte) if codec.starts_with("utf") => in_latin1(byte),
            _ => "",
        };
        format!("the bytes read at {} are not {codec}: {byte}at position {}{guess}{default}", at.place(), &parts[5])
    } else {
        format!("{codec} has no way to write {character}at position {}, at {}{default}", &parts[5], at.place())
    };
    Some(Hypothesis {
        text,
        confidence: Confidence::High,
        because: "the message names codec and position".to_owned(),
        evidence,
        claims: vec![Claim::Said(scene.exception.message.clone())],
    })
}

/// What a byte is in Latin-1.
fn in_latin1(byte: &str) -> &'static str {
    match u8::from_str_radix(byte, 16) {
        Ok(0xd7 | 0xf7) => " (in Latin-1 it would be a sign)",
        Ok(0xaa | 0xb5 | 0xba | 0xc0..) => " (in Latin-1 it would be a letter)",
        Ok(0xa1..=0xac | 0xae..) => " (in Latin-1 it would be a sign)",
        _ => "",
    }
}

/// Whether a line opens a file as text and names no encoding, as far as the call itself shows. Other things that are called `open`, as
/// that of codecs and gzip, have rules of their own.
fn names_no_encoding(at: At) -> bool {
    let statement = at.statement();
    if pattern!(r"\bencoding\b|\.(?:en|de)code\(").is_match(&statement) {
        return false;
    }
    let Some(parts) = pattern!(r"([\w.]*?)\.?\b(open|read_text|write_text)\(").captures(&statement) else {
        return false;
    };
    let (owner, function) = (&parts[1], &parts[2]);
    // What is hung on a call is not known.
    if owner.is_empty() && parts[0].starts_with('.') && function == "open" {
        return false;
    }
    let Some(given) = arguments(&statement, function) else { return false };
    let is_file = matches!(owner, "" | "io") || at.local(owner).is_some_and(|local| local.kind.starts_with("pathlib"));
    // Where the encoding stands if it is passed by its position.
    let position = match function {
        "open" if !is_file => return false,
        "open" if matches!(owner, "" | "io") => 3,
        "open" => 2,
        "read_text" => 0,
        _ => 1,
    };
    let is_binary = |given: &String| pattern!(r"^(?:mode\s*=\s*)?['\x22]\w*b[\w+]*['\x22]$").is_match(given);
    let by_position = given.iter().filter(|given| split_top(given, "=").is_none()).count();
    by_position <= position && !given.iter().any(|given| given.starts_with('*') || is_binary(given))
}

/// Pipes to other processes break too: for those the frames or values have to show a socket.
fn is_connection(scene: &Scene, kind: &str, message: &str) -> bool {
    let last = kind.rsplit('.').next().unwrap_or(kind);
    let modules = || scene.frames().filter_map(|at| at.frame.module.as_deref());
    if modules().next().is_some_and(|module| module.starts_with("multiprocessing")) {
        return false;
    }
    if last == "BrokenPipeError" {
        let is_net = |module: &str| {
            let top = module.split('.').next().unwrap_or(module);
            matches!(
                top,
                "socket" | "ssl" | "http" | "urllib" | "urllib3" | "requests" | "httpx" | "httpcore" | "aiohttp"
            )
        };
        let is_socket = |kind: &str| kind.starts_with("socket.") || kind.starts_with("ssl.");
        return modules().any(is_net)
            || scene.frame(0).is_some_and(|at| at.frame.locals.iter().any(|local| is_socket(&local.kind)));
    }
    matches!(last, "ConnectionError" | "ConnectionRefusedError" | "ConnectionResetError" | "ConnectionAbortedError")
        || matches!(last, "gaierror" | "ConnectError" | "NewConnectionError" | "MaxRetryError" | "URLError")
        || message.contains("Connection refused")
        || message.contains("Name or service not known")
}

/// pytest-timeout fails a test with pytest's own exception.
fn is_timeout(kind: &str, message: &str) -> bool {
    kind.contains("Timeout") || (kind == "Failed" && message.starts_with("Timeout "))
}

fn connection(scene: &Scene, at: At) -> Hypothesis {
    let message = &scene.exception.message;
    // Addresses among the values, or on the lines themselves.
    let address = |text: &str| {
        pattern!(r"(?:https?|postgres(?:ql)?|redis|amqp|mongodb)://[^\s'\x22)]+|\('[\w.-]+', \d{1,5}\)|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{2,5})?|localhost:\d+")
            .find(text)
            .map(|found| found.as_str().to_owned())
    };
    let found = scene.frames().filter(|at| at.frame.in_app).take(6).find_map(|at| {
        let in_values = values_on_line(at, 8)
            .into_iter()
            .find_map(|(name, value)| address(&value).map(|found| (at, found, Some(name))));
        in_values.or_else(|| address(&at.statement().replace('"', "'")).map(|found| (at, found, None)))
    });
    let refused = message.contains("refused") || scene.exception.kind == "ConnectionRefusedError";
    let unknown = message.contains("Name or service not known")
        || message.contains("name resolution")
        || scene.exception.kind.ends_with("gaierror");
    let what = if refused {
        "nothing listens there"
    } else if unknown {
        "its name cannot be resolved"
    } else {
        "the connection failed"
    };
    let mut evidence = vec![at.fact(format!("`{}`", brief(&at.statement())))];
    let text = match found {
        Some((where_from, address, name)) => {
            let address = without_password(&address);
            evidence.push(
                where_from.fact(format!("{}{address}", name.map(|name| format!("{name} = ")).unwrap_or_default())),
            );
            format!(
                "the test connects to {address} ({}), and {what}: a service that has to be started first, or a call that should be replaced",
                where_from.place()
            )
        }
        None => format!("`{}` at {} uses the network, and {what}", brief(&at.statement()), at.place()),
    };
    evidence.push(super::Fact::told(brief(message)));
    Hypothesis {
        text,
        confidence: Confidence::Medium,
        because: "the message is the network's; the address is from the values of the frames".to_owned(),
        evidence,
        claims: Vec::new(),
    }
}

fn without_password(address: &str) -> String {
    pattern!(r"://[^/@\s]+@").replace(address, "://***@").into_owned()
}

fn timeout(scene: &Scene, at: At) -> Hypothesis {
    let message = &scene.exception.message;
    let limit = scene.frames().filter(|at| at.frame.in_app).take(6).find_map(|at| {
        at.frame
            .locals
            .iter()
            .find(|local| local.name.contains("timeout") || local.name.contains("deadline"))
            .map(|local| (at, local))
    });
    // Seen from outside of the clock that ended it.
    let waiting = scene.frames().find(|at| {
        !at.frame.file.contains("pytest_timeout")
            && pattern!(r"\b(?:wait|join|get|recv|read|acquire|sleep|connect|result|select|poll|accept)\(")
                .is_match(&at.statement())
    });
    let mut evidence = vec![at.fact(format!("`{}`", brief(&at.statement())))];
    let mut text = format!("{} was at {} when its time was over", at.frame.function, at.place());
    if !at.statement().is_empty() {
        text = format!("{text}, `{}`", brief(&at.statement()));
    }
    if let Some(waiting) = waiting.filter(|waiting| waiting.index < at.index) {
        evidence.push(waiting.fact(format!("`{}`", brief(&waiting.statement()))));
        text = format!("{text}, inside `{}` ({})", brief(&waiting.statement()), waiting.place());
    }
    if let Some((where_from, local)) = limit {
        evidence.push(where_from.fact(format!("{} = {}", local.name, brief(&local.value))));
        text = format!("{text}; `{}` is {}", local.name, brief(&local.value));
    }
    evidence.push(Fact::told(brief(message)));
    Hypothesis {
        text,
        confidence: Confidence::Low,
        because: "where it was then is known; whether it waited there or went round in circles has to be looked at"
            .to_owned(),
        evidence,
        claims: Vec::new(),
    }
}

fn zone(at: At) -> Hypothesis {
    let mut evidence = vec![at.fact(format!("`{}`", brief(&at.statement())))];
    let mut naive: Vec<String> = Vec::new();
    // Of a long line what failed in it.
    let failing = at.failing().map_or_else(|| at.statement(), ToOwned::to_owned);
    for (name, value) in values_on_line(at, 6) {
        if value.starts_with("datetime.datetime(") || value.starts_with("datetime.time(") {
            let is_there = expressions(&failing).iter().any(|found| found.text == name);
            if !value.contains("tzinfo") && !is_cut(&value) && is_there {
                naive.push(name.clone());
            }
            evidence.push(at.fact(format!("{name} = {value}")));
        }
    }
    let written = pattern!(
        r"\bdatetime\.(?:now\(\)|utcnow\(\)|datetime\([\d, ]+\)|strptime\([^()%]*(?:%[^zZ()][^()%]*)*\))|\bdatetime\([\d, ]+\)"
    )
    .find(&failing)
    .map(|found| found.as_str().to_owned());
    let which = match (&naive[..], written) {
        ([name], _) => format!("; `{name}` has none"),
        ([], Some(text)) => format!("; `{text}` makes one without"),
        _ => String::new(),
    };
    Hypothesis {
        text: format!("a time with a time zone is used together with one that has none at {}{which}", at.place()),
        confidence: Confidence::High,
        because: "the message says so".to_owned(),
        evidence,
        claims: vec![Claim::Said("offset-naive and offset-aware".to_owned())],
    }
}

/// A function that calls itself, or functions that call each other, until the stack is full.
fn recursion(scene: &Scene) -> Option<Hypothesis> {
    if scene.exception.kind != "RecursionError" {
        return None;
    }
    let frames: Vec<At> = scene.frames().take(2 * MAX_CYCLE).collect();
    let same = |a: &At, b: &At| {
        (&a.frame.file, a.frame.line, &a.frame.function) == (&b.frame.file, b.frame.line, &b.frame.function)
    };
    let length =
        (1..=frames.len() / 2).find(|length| (0..*length).all(|at| same(&frames[at], &frames[at + length])))?;
    let cycle: Vec<&At> = frames[..length].iter().rev().filter(|at| at.frame.in_app).collect();
    let steps: Vec<String> =
        cycle.iter().map(|at| format!("{} at {}", short_name(&at.frame.function), at.place())).collect();
    let evidence = cycle.iter().map(|at| at.fact(format!("`{}`", brief(&at.statement())))).collect();
    let text = match &steps[..] {
        [] => return None,
        [only] => format!("{only} leads back to itself again and again, until the stack is full"),
        _ => format!("these call each other again and again, until the stack is full: {}", steps.join(", ")),
    };
    Some(Hypothesis {
        text,
        confidence: Confidence::High,
        because: "the innermost frames repeat".to_owned(),
        evidence,
        claims: vec![Claim::Said(scene.exception.message.clone())],
    })
}

/// A warning that was raised as an exception, by `warnings` or by the interpreter itself.
pub(crate) fn warning(scene: &Scene) -> Vec<Hypothesis> {
    let kind = scene.exception.kind.as_str();
    let raised = scene.frame(0).map(|at| at.statement()).unwrap_or_default();
    if !kind.ends_with("Warning") || raised.starts_with("raise") {
        return Vec::new();
    }
    let message = scene.exception.message.lines().next().unwrap_or_default().trim();
    let at = scene.own();
    let mut evidence: Vec<Fact> = at.iter().map(|at| at.fact(format!("`{}`", brief(&at.statement())))).collect();
    evidence.push(Fact::told(brief(message)));
    let by =
        at.map(|at| format!(", and `{}` at {} leads to it", brief(&at.statement()), at.place())).unwrap_or_default();
    vec![Hypothesis {
        text: format!(
            "a {kind} is an error in this run (`-W error` or pytest's `filterwarnings`){by}{}",
            said(&brief(message))
        ),
        confidence: Confidence::Medium,
        because: "a warning is raised as an exception only where a filter makes it one".to_owned(),
        evidence,
        claims: vec![Claim::Said(message.to_owned())],
    }]
}

/// What is left to say of any exception: why the project's own code raised it, or which of its lines led there and with which values.
pub(crate) fn values(scene: &Scene) -> Vec<Hypothesis> {
    let Some(at) = scene.own() else { return Vec::new() };
    let values = values_on_line(at, 4);
    let kind = scene.exception.kind.as_str();
    let message = brief(&scene.exception.message);
    let mut evidence = vec![at.fact(format!("`{}`", brief(&at.statement())))];
    evidence.extend(values.iter().map(|(name, value)| at.fact(format!("{name} = {value}"))));
    if let Some(recursion) = recursion(scene) {
        return vec![recursion];
    }
    if let Some(divided) = divided(scene) {
        return vec![divided];
    }
    if scene.raised_here().is_some_and(|at| at.statement().starts_with("raise")) {
        return raised(scene, at, evidence).into_iter().collect();
    }
    // Of a short statement all is shown, of a long one what failed in it.
    let statement = at.statement();
    let what = at.failing().filter(|_| statement.len() > SHORT_STATEMENT).map_or(statement, ToOwned::to_owned);
    if what.is_empty() {
        return Vec::new();
    }
    let by = scene.library().map(|library| format!(" in {library}")).unwrap_or_default();
    vec![Hypothesis {
        text: format!("`{}` at {} raised {kind}{by}{}{}", brief(&what), at.place(), said(&message), told(&values)),
        confidence: Confidence::Low,
        because: if values.is_empty() {
            "it is the line of the project from which the exception came"
        } else {
            "it is the line of the project from which the exception came, with the recorded values on it"
        }
        .to_owned(),
        evidence,
        claims: Vec::new(),
    }]
}

/// What the failing line divides by.
pub(crate) fn divisor<'a>(scene: &Scene<'a>) -> Option<(At<'a>, String)> {
    if scene.exception.kind != "ZeroDivisionError" {
        return None;
    }
    let at = scene.raised_here()?;
    let failing = at.failing().map_or_else(|| at.statement(), ToOwned::to_owned);
    let (_, divisor) = ["//", "/", "%"].iter().find_map(|operator| split_top(&failing, operator))?;
    let divisor = divisor.trim().trim_start_matches('=').trim().to_owned();
    let is_plain = expressions(&divisor).iter().any(|found| found.at == (0..divisor.len()));
    is_plain.then_some((at, divisor))
}

/// What was divided by zero.
fn divided(scene: &Scene) -> Option<Hypothesis> {
    let (at, divisor) = divisor(scene)?;
    let value = at.value(&divisor);
    let is_zero = |value: &String| value.parse::<f64>().is_ok_and(|value| value == 0.0);
    if value.as_ref().is_some_and(|value| !is_zero(value)) {
        return None;
    }
    let values = values_on_line(at, 4);
    let mut evidence = vec![at.fact(format!("`{}`", brief(&at.statement())))];
    evidence.extend(values.iter().map(|(name, value)| at.fact(format!("{name} = {value}"))));
    let claims = value.map(|value| Claim::Value { frame: at.into(), expression: divisor.clone(), value });
    Some(Hypothesis {
        text: format!("`{divisor}` was zero at {}{}", at.place(), told(&values)),
        confidence: Confidence::High,
        because: "it is what the line divides by".to_owned(),
        evidence,
        claims: claims.into_iter().collect(),
    })
}

/// Which condition led to a `raise` of the project's own.
fn raised(scene: &Scene, at: At, mut evidence: Vec<Fact>) -> Option<Hypothesis> {
    let kind = scene.exception.kind.as_str();
    let Some(Guard { line, condition, held, is_elif }) = guard(at) else {
        // What it was raised from says more.
        return scene.evidence.chain.is_empty().then(|| Hypothesis {
            text: format!(
                "{} raises {kind} itself at {}: {}",
                at.frame.function,
                at.place(),
                brief(&scene.exception.message)
            ),
            confidence: Confidence::Low,
            because: "the raise is the line that failed; what led to it is not on the recorded lines".to_owned(),
            evidence,
            claims: Vec::new(),
        });
    };
    evidence.push(at.fact_at(line, format!("`{}`", brief(&condition))));
    let mut named: Vec<String> = Vec::new();
    for found in expressions(&condition).iter().filter(|found| is_still(at, line, &found.text)) {
        let told = at.value(&found.text).map(|value| format!("{} = {}", found.text, brief(&value)));
        named.extend(told.filter(|told| !named.contains(told) && named.len() < 4));
    }
    let with = if named.is_empty() { String::new() } else { format!(", with {}", named.join(", ")) };
    evidence.extend(named.iter().map(|value| at.fact(value.clone())));
    let mut claims = Vec::new();
    if held
        && let Some(expression) = condition.strip_suffix(" is None")
        && is_still(at, line, expression.trim())
    {
        claims.push(Claim::Nothing { frame: at.into(), expression: expression.trim().to_owned() });
    }
    let held = match (held, is_elif) {
        (true, false) => "held",
        (true, true) => "held, and no condition before it,",
        (false, false) => "did not hold",
        (false, true) => "did not hold, nor any condition before it,",
    };
    Some(Hypothesis {
        text: format!(
            "{} raises {kind} itself because `{}` {held} at {}:{line}{with}: {}",
            at.frame.function,
            brief(&condition),
            at.frame.file,
            brief(&scene.exception.message)
        ),
        confidence: Confidence::Medium,
        because: "the raise stands below that condition".to_owned(),
        evidence,
        claims,
    })
}

/// Whether a value is what it was on a line before: nothing in between gives the name another one, nor works with what can be changed.
fn is_still(at: At, line: u32, expression: &str) -> bool {
    let Some(source) = &at.frame.source else { return false };
    let name = expression.split(['.', '[', '(']).next().unwrap_or(expression);
    if !written_between(source.first, &source.lines, line + 1, at.frame.line, name).is_empty() {
        return false;
    }
    let is_fixed = |kind: &str| matches!(kind, "int" | "float" | "str" | "bytes" | "bool" | "NoneType" | "complex");
    if expression == name && at.local(name).is_some_and(|local| is_fixed(&local.kind)) {
        return true;
    }
    let between = (source.first..).zip(&source.lines).filter(|(number, _)| (line + 1..at.frame.line).contains(number));
    !between.into_iter().any(|(_, line)| expressions(line).iter().any(|found| found.text == name))
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

fn told(values: &[(String, String)]) -> String {
    if values.is_empty() {
        return String::new();
    }
    format!(", with {}", values.iter().map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join(", "))
}

/// The condition that a `raise` stands below.
struct Guard {
    line: u32,
    condition: String,
    /// Whether it held where the `raise` ran.
    held: bool,
    /// Whether others were tried before it.
    is_elif: bool,
}

fn guard(at: At) -> Option<Guard> {
    let source = at.frame.source.as_ref()?;
    let index = at.frame.statement.map_or(at.frame.line, |(first, _)| first).checked_sub(source.first)? as usize;
    let mut deep = indent(source.lines.get(index)?);
    let mut is_else = false;
    for above in (0..index).rev() {
        let line = &source.lines[above];
        let here = indent(line);
        if line.trim().is_empty() || line.trim_start().starts_with('#') || here > deep || (here == deep && !is_else) {
            continue;
        }
        let condition = pattern!(r"^\s*(if|elif)\s+(.+?):\s*(?:#.*)?$").captures(line);
        let number = source.first + u32::try_from(above).unwrap_or(0);
        match condition {
            Some(parts) if !is_else || here == deep => {
                let is_elif = &parts[1] == "elif";
                return Some(Guard { line: number, condition: parts[2].to_owned(), held: !is_else, is_elif });
            }
            // The `else` is that of a loop or a `try`.
            _ if is_else => return None,
            _ => {}
        }
        let head = line.trim_start();
        if head.starts_with("else") {
            is_else = true;
        } else if head.starts_with("def ") || head.starts_with("async def ") || head.starts_with("class ") {
            return None;
        } else if !["for ", "while ", "with ", "try", "async "].iter().any(|word| head.starts_with(word)) {
            // An `except`, or a condition over several lines.
            return None;
        }
        deep = here;
    }
    None
}
