//! JSON values as Python source, for cells that pylair writes itself: `call` and `set_variable`.

use std::fmt::Write;

use serde_json::Value;

/// A Python expression whose value this is.
pub fn value(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => string(text),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(self::value).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let entries: Vec<_> =
                entries.iter().map(|(key, item)| format!("{}: {}", string(key), self::value(item))).collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

/// A string literal on one line.
pub fn string(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for c in text.chars() {
        match c {
            '"' => literal.push_str("\\\""),
            '\\' => literal.push_str("\\\\"),
            '\n' => literal.push_str("\\n"),
            '\r' => literal.push_str("\\r"),
            '\t' => literal.push_str("\\t"),
            // Characters that end a line or are not seen.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                let _infallible = write!(literal, "\\u{:04x}", u32::from(c));
            }
            c => literal.push(c),
        }
    }
    literal.push('"');
    literal
}

/// A call of what is at `path`. Names of keyword arguments that are none would be code; they are refused.
pub fn call(path: &str, args: &[Value], kwargs: &serde_json::Map<String, Value>) -> Result<String, String> {
    let mut all: Vec<String> = args.iter().map(value).collect();
    for (name, argument) in kwargs {
        if !is_name(name) {
            return Err(format!("`{name}` is not the name of an argument"));
        }
        all.push(format!("{name}={}", value(argument)));
    }
    Ok(format!("{path}({})", all.join(", ")))
}

pub fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_') && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_becomes_python() {
        let sample = json!({"a": [1, -2.5, null, true, false], "b\"\n": "x\u{2028}\\"});
        assert_eq!(value(&sample), r#"{"a": [1, -2.5, None, True, False], "b\"\n": "x\u2028\\"}"#);
    }

    #[test]
    fn a_call_takes_only_names_for_keywords() {
        let kwargs = json!({"key": "v"}).as_object().cloned().unwrap();
        assert_eq!(call("a.b", &[json!(1)], &kwargs).unwrap(), r#"a.b(1, key="v")"#);
        let kwargs = json!({"x=1); boom(": 1}).as_object().cloned().unwrap();
        assert!(call("a.b", &[], &kwargs).is_err());
    }
}
