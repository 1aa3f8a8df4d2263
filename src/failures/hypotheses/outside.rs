//! What comes from outside of the code or does not fit its types: files, connections, encodings, time zones, and values that cannot be worked with.

use super::{
    Confidence, Hypothesis, Scene,
    reading::{At, brief, expressions, pattern, unquote},
};

pub(crate) fn hypotheses(scene: &Scene) -> Vec<Hypothesis> {
    let Some(at) = scene.own() else { return Vec::new() };
    let kind = scene.exception.kind.as_str();
    let found = match kind {
        "FileNotFoundError" | "NotADirectoryError" | "IsADirectoryError" | "PermissionError" | "FileExistsError" => {
            file(scene, at)
        }
        "UnicodeDecodeError" | "UnicodeEncodeError" => encoding(scene, at),
        _ if is_connection(kind, &scene.exception.message) => Some(connection(scene, at)),
        _ if is_timeout(kind) => Some(timeout(scene, at)),
        _ if scene.exception.message.contains("offset-naive and offset-aware") => Some(zone(at)),
        _ => None,
    };
    found.into_iter().collect()
}

/// Values of the names on the failing line, as facts.
fn values_on_line(at: At, most: usize) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for expression in expressions(&at.statement()) {
        if let Some(value) = at.value(&expression.text)
            && !found.iter().any(|(name, _)| *name == expression.text)
        {
            found.push((expression.text, brief(&value)));
        }
    }
    found.truncate(most);
    found
}

fn file(scene: &Scene, at: At) -> Option<Hypothesis> {
    let message = &scene.exception.message;
    let path = pattern!(r#": ('[^']*'|"[^"]*")(?: -> .*)?$"#).captures(message)?[1].to_owned();
    let path = unquote(&path).to_owned();
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
        });
    }
    if path.starts_with('/') {
        return Some(Hypothesis {
            text: format!("'{path}' does not exist when {place} opens it"),
            confidence: Confidence::High,
            because: "the path is absolute, so the working directory plays no part".to_owned(),
            evidence,
        });
    }
    let cwd = scene.around.cwd;
    evidence.extend(cwd.map(|cwd| super::Fact::told(format!("working directory of the run: {cwd}"))));
    let beside = at.frame.file.rsplit_once('/').map(|(directory, _)| format!("{directory}/{path}"));
    let elsewhere = beside.filter(|beside| scene.file(beside).is_some());
    let text = match (&elsewhere, cwd) {
        (Some(there), _) => {
            format!(
                "'{path}' is looked for in the working directory{}, but it is at {there}, beside the code that opens it ({place})",
                cwd.map(|cwd| format!(" {cwd}")).unwrap_or_default()
            )
        }
        (None, Some(cwd)) => {
            format!("there is no '{path}' below the working directory {cwd}, where {place} looks for it")
        }
        (None, None) => {
            format!("there is no '{path}' below the working directory of the run, where {place} looks for it")
        }
    };
    Some(Hypothesis {
        text,
        confidence: if elsewhere.is_some() || cwd.is_some() { Confidence::High } else { Confidence::Medium },
        because: "the path is relative, so it depends on where pytest was started".to_owned(),
        evidence,
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
    let character =
        parts.get(4).map(|character| format!("the character '{}' ", character.as_str())).unwrap_or_default();
    let unnamed = !pattern!(r"encoding\s*=|\.(?:de|en)code\(\s*['\x22]").is_match(&at.statement());
    let default =
        if unnamed { "; the line names no encoding, so the default of the machine that runs it is taken" } else { "" };
    let text = if decoding {
        let guess = match parts.get(3).map(|byte| byte.as_str()) {
            Some("ff" | "fe") => " (the beginning of UTF-16 is such a byte)",
            Some("8b" | "89") => " (compressed or binary files begin so)",
            Some(byte) if byte >= "a0" && codec.starts_with("utf") => " (in Latin-1 it would be a letter)",
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
    })
}

fn is_connection(kind: &str, message: &str) -> bool {
    let last = kind.rsplit('.').next().unwrap_or(kind);
    last.starts_with("Connection")
        || matches!(
            last,
            "gaierror" | "ConnectError" | "NewConnectionError" | "MaxRetryError" | "URLError" | "BrokenPipeError"
        )
        || message.contains("Connection refused")
        || message.contains("Name or service not known")
}

fn is_timeout(kind: &str) -> bool {
    kind.contains("Timeout") || kind == "CancelledError"
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
                "the test really connects to {address} ({}), and {what}: a service that has to be started first, or a call that should be replaced",
                where_from.place()
            )
        }
        None => format!("the test really connects to something at {}, and {what}", at.place()),
    };
    evidence.push(super::Fact::told(brief(message)));
    Hypothesis {
        text,
        confidence: Confidence::Medium,
        because: "the message is the network's; the address is from the values of the frames".to_owned(),
        evidence,
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
    let waiting = scene.frames().find(|at| {
        pattern!(r"\b(?:wait|join|get|recv|read|acquire|sleep|connect|result|select|poll)\(").is_match(&at.statement())
    });
    let mut evidence = vec![at.fact(format!("`{}`", brief(&at.statement())))];
    let mut text = format!("{} gave up waiting at {}", at.frame.function, at.place());
    if let Some(waiting) = waiting.filter(|waiting| waiting.index != at.index) {
        evidence.push(waiting.fact(format!("`{}`", brief(&waiting.statement()))));
        text = format!("{text}, inside `{}` ({})", brief(&waiting.statement()), waiting.place());
    }
    if let Some((where_from, local)) = limit {
        evidence.push(where_from.fact(format!("{} = {}", local.name, brief(&local.value))));
        text = format!("{text}; the limit is `{}` = {}", local.name, brief(&local.value));
    }
    if let Some(parts) = pattern!(r"(\d+(?:\.\d+)?)\s*(s|sec|seconds|ms|milliseconds)\b").captures(message) {
        text = format!("{text}; the message says {} {}", &parts[1], &parts[2]);
    }
    Hypothesis {
        text,
        confidence: Confidence::Low,
        because: "that it took too long is known; what it waited for has to be looked at".to_owned(),
        evidence,
    }
}

fn zone(at: At) -> Hypothesis {
    let mut evidence = vec![at.fact(format!("`{}`", brief(&at.statement())))];
    let mut naive = None;
    for (name, value) in values_on_line(at, 6) {
        if value.contains("datetime") || value.contains("tzinfo") {
            if !value.contains("tzinfo") && !value.contains("+00:00") {
                naive = Some(name.clone());
            }
            evidence.push(at.fact(format!("{name} = {value}")));
        }
    }
    let written =
        pattern!(r"datetime\.(?:now\(\)|utcnow\(\)|datetime\([^()]*\)|strptime\([^()]*\))|datetime\([\d, ]+\)")
            .find(&at.statement())
            .map(|found| found.as_str().to_owned());
    let which = naive
        .map(|name| format!("; `{name}` has none"))
        .or_else(|| written.filter(|text| !text.contains("tz")).map(|text| format!("; `{text}` makes one without")))
        .unwrap_or_default();
    Hypothesis {
        text: format!("a time with a time zone is compared with one that has none at {}{which}", at.place()),
        confidence: Confidence::High,
        because: "the message says so".to_owned(),
        evidence,
    }
}

/// Values that an operation cannot take, and anything else that names on the failing line can explain.
pub(crate) fn values(scene: &Scene) -> Vec<Hypothesis> {
    let Some(at) = scene.own() else { return Vec::new() };
    let values = values_on_line(at, 4);
    let kind = scene.exception.kind.as_str();
    let message = brief(&scene.exception.message);
    let raised = at.statement().starts_with("raise");
    let mut evidence = vec![at.fact(format!("`{}`", brief(&at.statement())))];
    evidence.extend(values.iter().map(|(name, value)| at.fact(format!("{name} = {value}"))));
    if kind == "ZeroDivisionError" {
        let divisor = pattern!(r"(?:/|%|//)\s*([\w.]+(?:\([^()]*\))?)")
            .captures(&at.statement())
            .map(|parts| parts[1].to_owned());
        let divisor =
            divisor.map_or_else(|| "the divisor was zero".to_owned(), |divisor| format!("`{divisor}` was zero"));
        let with = told(&values);
        return vec![Hypothesis {
            text: format!("{divisor} at {}{with}", at.place()),
            confidence: Confidence::High,
            because: "the operation names it".to_owned(),
            evidence,
        }];
    }
    if values.is_empty() && !raised {
        return Vec::new();
    }
    if raised {
        let condition = guard(at);
        if let Some((line, condition)) = condition {
            evidence.push(at.fact_at(line, format!("`{}`", brief(&condition))));
            let named: Vec<String> = expressions(&condition)
                .into_iter()
                .filter_map(|found| at.value(&found.text).map(|value| format!("{} = {}", found.text, brief(&value))))
                .take(4)
                .collect();
            let with = if named.is_empty() { String::new() } else { format!(", with {}", named.join(", ")) };
            evidence.extend(named.iter().map(|value| at.fact(value.clone())));
            return vec![Hypothesis {
                text: format!(
                    "{} raises {kind} itself because `{}` held at {}:{line}{with}",
                    at.frame.function,
                    brief(&condition),
                    at.frame.file
                ),
                confidence: Confidence::Medium,
                because: "the raise stands below that condition".to_owned(),
                evidence,
            }];
        }
        return Vec::new();
    }
    vec![Hypothesis {
        text: format!(
            "`{}` at {} cannot work with its values{} ({kind}: {message})",
            brief(&at.statement()),
            at.place(),
            told(&values)
        ),
        confidence: Confidence::Low,
        because: "these are the recorded values on the failing line".to_owned(),
        evidence,
    }]
}

fn told(values: &[(String, String)]) -> String {
    if values.is_empty() {
        return String::new();
    }
    format!(", with {}", values.iter().map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join(", "))
}

/// The condition that a `raise` stands below.
fn guard(at: At) -> Option<(u32, String)> {
    let source = at.frame.source.as_ref()?;
    let index = at.frame.line.checked_sub(source.first)? as usize;
    let deep = super::reading::indent(source.lines.get(index)?);
    (0..index).rev().find_map(|above| {
        let line = &source.lines[above];
        let shallower = super::reading::indent(line) < deep && !line.trim().is_empty();
        let condition = pattern!(r"^\s*(?:if|elif)\s+(.+?):\s*(?:#.*)?$").captures(line);
        shallower
            .then_some(())
            .and(condition)
            .map(|parts| (source.first + u32::try_from(above).unwrap_or(0), parts[1].to_owned()))
    })
}
