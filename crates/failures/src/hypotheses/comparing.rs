//! Assertions: the two sides as pytest shows them, what differs between them, and which names they are.

use std::fmt::Write as _;

use super::{
    Claim, Confidence, Hypothesis, Scene,
    reading::{At, balanced, brief, expressions, is_cut, pattern, split_arguments, split_top},
};

const OPERATORS: &[&str] = &["==", "!=", "<=", ">=", "is not", "not in", "is", "in", "<", ">"];

/// `assert left == right` with its values.
struct Compared<'a> {
    at: At<'a>,
    operator: &'static str,
    left: Side,
    right: Side,
}

struct Side {
    value: String,
    /// As it is written, if the line can be read.
    expression: Option<String>,
}

impl Side {
    fn named(&self) -> String {
        match &self.expression {
            Some(expression) if !expressions(expression).is_empty() => {
                format!("`{}` = {}", brief(expression), brief(&self.value))
            }
            _ => brief(&self.value),
        }
    }
}

pub(crate) fn hypotheses(scene: &Scene) -> Vec<Hypothesis> {
    if scene.exception.kind != "AssertionError" {
        return Vec::new();
    }
    match compared(scene) {
        Some(compared) => vec![judge(scene, &compared)],
        None => unittest(scene).or_else(|| truth(scene)).into_iter().collect(),
    }
}

/// `self.assertEqual(a, b)` and its kin: what unittest says of it.
fn unittest(scene: &Scene) -> Option<Hypothesis> {
    let at = scene.own()?;
    let raised = scene.frame(0).filter(|raised| raised.frame.module.as_deref() == Some("unittest.case"))?;
    let statement = at.statement();
    pattern!(r"^(?:with\s+|return\s+)?self\.assert\w+\(").is_match(&statement).then_some(())?;
    let mut values = Vec::new();
    let mut evidence = vec![at.fact(format!("`{}`", brief(&statement)))];
    for found in expressions(&statement) {
        if let Some(value) = at.value(&found.text)
            && found.text != "self"
            && values.len() < 3
        {
            let told = format!("{} = {}", found.text, brief(&value));
            if !values.contains(&told) {
                values.push(told);
            }
        }
    }
    evidence.extend(values.iter().map(|value| at.fact(value.clone())));
    evidence.push(raised.fact(brief(&scene.exception.message)));
    let with = if values.is_empty() { String::new() } else { format!(", with {}", values.join(", ")) };
    Some(Hypothesis {
        text: format!(
            "`{}` at {} does not hold: {}{with}",
            brief(&statement),
            at.place(),
            brief(&scene.exception.message)
        ),
        confidence: Confidence::Medium,
        because: "it is the assertion that failed, with what unittest says of it".to_owned(),
        evidence,
        claims: vec![Claim::Said(scene.exception.message.clone())],
    })
}

/// An exception that something on the line holds, such as the result of a command that was run for a test.
fn held(at: At, condition: &str) -> Option<(String, String)> {
    let mut roots: Vec<String> = expressions(condition).into_iter().map(|found| found.text).collect();
    roots.retain(|text| text.chars().all(|c| c == '_' || c.is_alphanumeric()));
    roots.into_iter().find_map(|root| {
        let field = format!("{root}.exception");
        at.value(&field).filter(|value| value != "None" && value.contains('(')).map(|value| (field, value))
    })
}

fn compared<'a>(scene: &Scene<'a>) -> Option<Compared<'a>> {
    let at = scene.own()?;
    // A message of the test's own stands before what pytest adds.
    let line = scene.exception.message.lines().find_map(|line| line.trim_start().strip_prefix("assert "));
    let Some(line) = line else { return unexplained(at) };
    let (operator, left, right, written_left, written_right) = if let Some(condition) = condition(&at.statement()) {
        let (operator, written_left, written_right) = sides(&condition)?;
        // The values of what is compared can have the operator in them: then it is not known which of them it is.
        let (left, right) = split_values(line, operator)?;
        (operator, left, right, Some(written_left), Some(written_right))
    } else {
        let (operator, ..) = sides(&without_reprs(line))?;
        let (left, right) = split_values(line, operator)?;
        (operator, left, right, None, None)
    };
    Some(Compared {
        at,
        operator,
        left: Side { value: left, expression: written_left },
        right: Side { value: right, expression: written_right },
    })
}

/// `assert left == right` in a module whose asserts pytest does not rewrite, with the recorded values of both sides.
fn unexplained(at: At) -> Option<Compared> {
    let (operator, left, right) = sides(&condition(&at.statement())?)?;
    let side = |written: String| {
        Some(Side { value: at.value(&written).filter(|value| !is_cut(value))?, expression: Some(written) })
    };
    (operator == "==").then_some(())?;
    Some(Compared { at, operator, left: side(left)?, right: side(right)? })
}

/// What a line asserts, without the message.
pub(crate) fn condition(statement: &str) -> Option<String> {
    let asserted = pattern!(r"^(?:def\s[^:]*:\s*)?assert\s+(.+)$").captures(statement)?.get(1)?.as_str();
    let mut condition = split_top(asserted, ",").map_or_else(|| asserted.to_owned(), |(condition, _)| condition);
    // Over several lines it stands in brackets.
    while let Some(inside) =
        condition.trim().strip_prefix('(').filter(|_| balanced(condition.trim()) == Some(condition.trim().len()))
    {
        condition = inside.trim_end().strip_suffix(')').unwrap_or(inside).trim().to_owned();
    }
    Some(condition)
}

/// `<shop.Cart object at 0x7f12>` is no comparison: reprs, with something else of the same length in their place.
fn without_reprs(line: &str) -> String {
    let mut text = line.to_owned();
    // The inner ones first.
    while let Some(found) = pattern!(r"<[A-Za-z_][^<>]*>").find(&text) {
        text.replace_range(found.range(), &"_".repeat(found.len()));
    }
    text
}

/// The two values that pytest shows around an operator, if there is but one such operator.
fn split_values(line: &str, operator: &str) -> Option<(String, String)> {
    let plain = without_reprs(line);
    let (left, right) = split_top(&plain, operator)?;
    let is_apart = left.ends_with(' ') && right.starts_with(' ');
    if !is_apart || split_top(&right, operator).is_some() {
        return None;
    }
    let (left, right) = (line.get(..left.len())?, line.get(line.len() - right.len()..)?);
    Some((left.trim().to_owned(), right.trim().to_owned()))
}

/// The first operator outside of brackets, and what is left and right of it. Nothing of what is made of several conditions.
fn sides(line: &str) -> Option<(&'static str, String, String)> {
    if line.starts_with("not ") || ["and", "or", "if"].iter().any(|word| split_top(line, word).is_some()) {
        return None;
    }
    OPERATORS
        .iter()
        .filter_map(|operator| {
            split_top(line, operator).map(|(left, right)| (*operator, left.trim().to_owned(), right.trim().to_owned()))
        })
        .min_by_key(|(operator, left, _)| (left.len(), usize::MAX - operator.len()))
        // Of `a < b < c` it is not known which of the two failed.
        .filter(|(_, _, right)| !OPERATORS.iter().any(|operator| split_top(right, operator).is_some()))
}

fn judge(scene: &Scene, compared: &Compared) -> Hypothesis {
    let at = compared.at;
    let (left, right) = (&compared.left, &compared.right);
    let mut evidence = vec![at.fact(format!("left: {}", left.named())), at.fact(format!("right: {}", right.named()))];
    evidence.extend(made_of(scene, at, left));
    let held = left.expression.as_deref().and_then(|written| held(at, written));
    evidence.extend(held.iter().map(|(field, value)| at.fact(format!("{field} = {value}"))));
    let held = held.map(|(field, value)| format!("; `{field}` is {}", brief(&value))).unwrap_or_default();
    let place = at.place();
    let high = |text: String, because: &str| (text, Confidence::High, because.to_owned());
    let (text, confidence, because) = if compared.operator == "==" {
        if let (Ok(a), Ok(b)) = (left.value.parse::<f64>(), right.value.parse::<f64>())
            && a.to_bits() != b.to_bits()
            && (left.value.contains('.') || right.value.contains('.'))
            && (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
        {
            high(
                format!(
                    "two floats that differ only by rounding ({} and {}) are compared with == at {place}; pytest.approx or math.isclose is for that",
                    left.value, right.value
                ),
                "the difference is below one part in a billion",
            )
        } else if let Some(order) = only_order(&left.value, &right.value) {
            let unordered = unordered_source(at, left).or_else(|| unordered_source(at, right));
            let source =
                unordered.as_ref().map(|source| format!("; `{source}` has an order of its own")).unwrap_or_default();
            (
                format!("both sides at {place} hold the same {order} items in another order{source}"),
                Confidence::High,
                "the items of the two recorded values are equal once they are sorted".to_owned(),
            )
        } else if let Some(difference) = zones(&left.value, &right.value) {
            high(format!("{difference} at {place}"), "both values are shown")
        } else if brief(&left.value) == brief(&right.value) {
            let name = |side: &Side, else_name: &str| {
                side.expression.as_ref().map_or_else(|| else_name.to_owned(), |written| format!("`{}`", brief(written)))
            };
            (
                format!(
                    "at {place} {} was expected to equal {}; their texts look the same as far as they are shown{held}",
                    name(left, "the left side"),
                    name(right, "the right side")
                ),
                Confidence::Low,
                "it is the comparison that failed; the recorded texts do not tell the two sides apart".to_owned(),
            )
        } else {
            let what = differing(scene, left, right);
            (
                format!("at {place} {} was expected to equal {}{what}{held}", left.named(), right.named()),
                Confidence::Medium,
                "both values are recorded; which of the two is right they do not say".to_owned(),
            )
        }
    } else {
        let negated = match compared.operator {
            "in" => "is not in",
            "not in" => "is in",
            "is" => "is not",
            "is not" => "is",
            "!=" => "equals",
            "<" => "is not below",
            ">" => "is not above",
            "<=" => "is not at most",
            _ => "is not at least",
        };
        (
            format!("at {place} {} {negated} {}", left.named(), right.named()),
            Confidence::Medium,
            "both values are recorded; which of the two is wrong they do not say".to_owned(),
        )
    };
    // Long values are cut in the middle, and then only what pytest itself says of them is known.
    let confidence =
        if is_cut(&left.value) || is_cut(&right.value) { confidence.max(Confidence::Medium) } else { confidence };
    let claim = |side: &Side| match &side.expression {
        Some(expression) if at.value(expression).as_deref() == Some(side.value.as_str()) => {
            Claim::Value { frame: at.into(), expression: expression.clone(), value: side.value.clone() }
        }
        _ => Claim::Said(side.value.clone()),
    };
    let claims = vec![claim(left), claim(right)];
    Hypothesis { text, confidence, because, evidence, claims }
}

/// What a side was computed from: the values of the names in it, and pytest's "where" lines.
fn made_of(scene: &Scene, at: At, side: &Side) -> Vec<super::Fact> {
    let mut facts = Vec::new();
    if let Some(expression) = &side.expression {
        for found in expressions(expression) {
            if let Some(value) = at.value(&found.text)
                && value != side.value
                && facts.len() < 3
            {
                facts.push(at.fact(format!("{} = {}", found.text, brief(&value))));
            }
        }
    }
    for parts in pattern!(r"(?m)^\s*\+\s+(?:where|and) +(.+)$").captures_iter(&scene.exception.message).take(3) {
        facts.push(at.fact(format!("where {}", brief(&parts[1]))));
    }
    facts
}

/// What pytest says of the difference, or what can be seen of it.
fn differing(scene: &Scene, left: &Side, right: &Side) -> String {
    let message = &scene.exception.message;
    if let Some(parts) = pattern!(r"(?m)^\s*At index (\d+) diff: (.+)$").captures(message) {
        return format!("; they differ first at index {}: {}", &parts[1], brief(&parts[2]));
    }
    let mut found = String::new();
    if let Some(parts) = pattern!(r"Differing items:\s*\n\s*(.+)").captures(message) {
        let _ = write!(found, "; differing: {}", brief(&parts[1]));
    }
    // Of lists.
    if let Some(parts) =
        pattern!(r"(?m)^\s*(Left|Right) contains (one more item|\d+ more items), ?(first extra item: .+)$|^\s*(Left|Right) contains one more item: (.+)$")
            .captures(message)
    {
        let (side, what) = match (parts.get(1), parts.get(4)) {
            (Some(side), _) => (side, format!("{}, {}", &parts[2], brief(&parts[3]))),
            (None, Some(side)) => (side, format!("one more item: {}", brief(&parts[5]))),
            (None, None) => return found,
        };
        let _ = write!(found, "; the {} side has {what}", side.as_str().to_lowercase());
    }
    // Of dicts and sets.
    for parts in pattern!(
        r"(?m)^\s*(?:(Left|Right) contains \d+ more items?|Extra items in the (left|right) set):\s*\n\s*(\S.*)$"
    )
    .captures_iter(message)
    .take(2)
    {
        let side = parts.get(1).or(parts.get(2)).map_or_else(String::new, |side| side.as_str().to_lowercase());
        let _ = write!(found, "; only the {side} side has {}", brief(&parts[3]));
    }
    if !found.is_empty() {
        return found;
    }
    if let (Some(a), Some(b)) = (characters(&left.value), characters(&right.value)) {
        let lower = |text: &[String]| text.concat().to_lowercase();
        let squeezed = |text: &[String]| {
            let is_blank = |c: &&String| matches!(c.as_str(), "\\n" | "\\t" | "\\r") || c.trim().is_empty();
            text.iter().filter(|c| !is_blank(c)).cloned().collect::<String>()
        };
        if a == b {
            return String::new();
        }
        if lower(&a) == lower(&b) {
            return "; they differ only in case".to_owned();
        }
        if squeezed(&a) == squeezed(&b) {
            return "; they differ only in blanks or line ends".to_owned();
        }
        let same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        let rest = |text: &[String]| match text[same..].iter().take(40).map(String::as_str).collect::<String>() {
            rest if rest.is_empty() => "its end".to_owned(),
            rest => format!("`{}`", brief(&rest)),
        };
        return format!("; the texts differ from character {same} on: {} and {}", rest(&a), rest(&b));
    }
    if let (Ok(a), Ok(b)) = (left.value.parse::<i128>(), right.value.parse::<i128>()) {
        return a.checked_sub(b).map(|difference| format!("; the difference is {difference}")).unwrap_or_default();
    }
    if let (Ok(a), Ok(b)) = (left.value.parse::<f64>(), right.value.parse::<f64>())
        && (a - b).is_finite()
        && a - b != 0.0
    {
        return format!("; the difference is {}", a - b);
    }
    String::new()
}

/// The characters of a string as its repr shows them, `\n` as one; None of what is no string or is cut.
fn characters(value: &str) -> Option<Vec<String>> {
    let quote = value.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let inside = value.strip_prefix(quote)?.strip_suffix(quote).filter(|_| !is_cut(value))?;
    let found = pattern!(r"(?s)\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U[0-9a-f]{8}|\\.|.").find_iter(inside);
    Some(
        found
            .map(|found| match found.as_str() {
                "\\'" => "'".to_owned(),
                "\\\"" => "\"".to_owned(),
                shown => shown.to_owned(),
            })
            .collect(),
    )
}

/// How many items two lists have, when only their order differs.
fn only_order(left: &str, right: &str) -> Option<usize> {
    let items = |text: &str| -> Option<Vec<String>> {
        (text.starts_with(['[', '(']) && balanced(text) == Some(text.len()) && !is_cut(text))
            .then(|| split_arguments(&text[1..text.len() - 1]))
    };
    let (mut a, mut b) = (items(left)?, items(right)?);
    // A list never equals a tuple.
    if left.chars().next() != right.chars().next() || a == b || a.len() != b.len() {
        return None;
    }
    a.sort();
    b.sort();
    (a == b).then_some(a.len())
}

/// A set or dict that a list was made of, or a call that promises no order.
fn unordered_source(at: At, side: &Side) -> Option<String> {
    let expression = side.expression.as_ref()?;
    let source = at.frame.source.as_ref()?;
    let assigned = super::reading::surely_assigned(source.first, &source.lines, at.frame.line, expression);
    let assigned = assigned.map(|(_, value)| value);
    let made = assigned.unwrap_or_else(|| expression.clone());
    pattern!(r"\bset\(|\{|\.keys\(|\.values\(|\.items\(|listdir\(|glob\(|iterdir\(|scandir\(|as_completed\(|\bvars\(")
        .is_match(&made)
        .then(|| brief(&made))
}

/// Two times of which only one has a zone.
fn zones(left: &str, right: &str) -> Option<String> {
    let is_time = |text: &str| text.starts_with("datetime.datetime(") && !is_cut(text);
    let has_zone = |text: &str| text.contains("tzinfo=");
    (is_time(left) && is_time(right) && has_zone(left) != has_zone(right)).then(|| {
        let (aware, naive) = if has_zone(left) { ("left", "right") } else { ("right", "left") };
        format!("the {aware} time has a time zone and the {naive} one has none, so they are never equal")
    })
}

/// `assert x`: what was not true.
fn truth(scene: &Scene) -> Option<Hypothesis> {
    let at = scene.own()?;
    let shown = scene.exception.message.lines().find_map(|line| line.trim_start().strip_prefix("assert "));
    let statement = at.statement();
    statement.strip_prefix("assert ")?;
    let condition = condition(&statement)?.trim().to_owned();
    let mut evidence = vec![at.fact(format!("`{}`", brief(&statement)))];
    let mut values: Vec<String> = Vec::new();
    for found in expressions(&condition) {
        if let Some(value) = at.value(&found.text)
            && values.len() < 4
        {
            let told = format!("{} = {}", found.text, brief(&value));
            if !values.contains(&told) {
                evidence.push(at.fact(told.clone()));
                values.push(told);
            }
        }
    }
    for parts in pattern!(r"(?m)^\s*\+\s+(?:where|and) +(.+)$").captures_iter(&scene.exception.message).take(3) {
        let told = brief(&parts[1]);
        evidence.push(at.fact(format!("where {told}")));
        // One that is cut may say something else: `X = f(…).attribute` is no value of `f(…)`.
        if told == parts[1].trim() {
            values.push(told);
        }
    }
    let shown = shown
        .map(|shown| format!(" (pytest shows `{}`)", brief(shown)))
        .filter(|_| shown != Some(condition.as_str()))
        .unwrap_or_default();
    let with = if values.is_empty() { String::new() } else { format!(", with {}", values.join(", ")) };
    Some(Hypothesis {
        text: format!("`{}` was not true at {}{shown}{with}", brief(&condition), at.place()),
        confidence: if values.is_empty() { Confidence::Low } else { Confidence::Medium },
        because: if values.is_empty() {
            "the statement is what failed"
        } else {
            "these are the recorded values of what it is made of"
        }
        .to_owned(),
        evidence,
        claims: Vec::new(),
    })
}
