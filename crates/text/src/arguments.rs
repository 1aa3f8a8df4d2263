//! What is wrong with arguments, told by the schema that describes them: a parser would speak of its own types. Asked by `mcp/tools` for
//! tools and by `web/failures` for bodies and queries.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value};

use crate::plain::one_line;

/// In the schema of a property, another name that it may come under.
pub const ALSO: &str = "x-also";

/// All that is known of what a type takes.
pub fn schema<T: JsonSchema>() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().for_deserialize().with(|settings| settings.inline_subschemas = true);
    match settings.into_generator().into_root_schema_for::<T>().to_value() {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

/// The first thing that is wrong with what was given, as far as the schema tells. Nothing and null are the same.
pub fn wrong(schema: &Map<String, Value>, given: &Map<String, Value>) -> Option<String> {
    unknown(schema, given).or_else(|| twice(schema, given)).or_else(|| missing(schema, given)).or_else(|| {
        let mut known = given.iter().filter(|(_, value)| !value.is_null());
        known.find_map(|(name, value)| property(schema, name).and_then(|schema| misfit(name, schema, value)))
    })
}

/// A name that is none of the schema's.
pub fn unknown(schema: &Map<String, Value>, given: &Map<String, Value>) -> Option<String> {
    let name = given.keys().find(|name| property(schema, name).is_none())?;
    Some(format!("`{}` is not known here", one_line(name, 60)))
}

/// A number that is too small or too large, where all else is right.
pub fn beyond(schema: &Map<String, Value>, given: &Map<String, Value>) -> Option<String> {
    given.iter().find_map(|(name, value)| {
        let schema = property(schema, name)?;
        value.as_f64().and_then(|number| out_of_range(name, schema, number))
    })
}

/// Something that is said under both of its names.
fn twice(schema: &Map<String, Value>, given: &Map<String, Value>) -> Option<String> {
    properties(schema).find_map(|(name, property)| {
        let also = property[ALSO].as_str()?;
        let both = given.contains_key(name) && given.contains_key(also);
        both.then(|| format!("`{name}` and `{also}` are the same: give one of them"))
    })
}

/// All names with what each has to be, for hints.
pub fn takes(schema: &Map<String, Value>) -> String {
    let required = required(schema);
    let names = properties(schema).map(|(name, property)| {
        let kinds = kinds(property);
        let kind = if kinds.is_empty() { "one of its choices".to_owned() } else { kinds.join(" or ") };
        if required.contains(&name.as_str()) {
            format!("{name} ({kind}, required)")
        } else {
            format!("{name} ({kind})")
        }
    });
    let names: Vec<_> = names.collect();
    if names.is_empty() { "no arguments".to_owned() } else { names.join(", ") }
}

fn missing(schema: &Map<String, Value>, given: &Map<String, Value>) -> Option<String> {
    let is_given = |name: &str| given.get(name).is_some_and(|value| !value.is_null());
    required(schema).into_iter().find_map(|name| {
        let also = property(schema, name).and_then(|property| property[ALSO].as_str());
        match also {
            _ if is_given(name) || also.is_some_and(is_given) => None,
            Some(also) => Some(format!("`{name}` is missing (it may be called `{also}`)")),
            None => Some(format!("`{name}` is missing")),
        }
    })
}

fn properties(schema: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

fn required(schema: &Map<String, Value>) -> Vec<&str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// What is said of a name, be it the first or the other one.
pub fn property<'s>(schema: &'s Map<String, Value>, name: &str) -> Option<&'s Value> {
    properties(schema).find(|(known, property)| *known == name || property[ALSO] == name).map(|(_, property)| property)
}

/// The types of a property in the schema's own words, without null.
pub fn kinds(schema: &Value) -> Vec<&str> {
    let own = match &schema["type"] {
        Value::String(kind) => vec![kind.as_str()],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => alternatives(schema).flat_map(kinds).collect(),
    };
    let mut told: Vec<&str> = Vec::new();
    for kind in own.into_iter().filter(|kind| *kind != "null") {
        if !told.contains(&kind) {
            told.push(kind);
        }
    }
    told
}

fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    ["anyOf", "oneOf"].into_iter().flat_map(|key| schema[key].as_array().into_iter().flatten())
}

/// The words that a text may be, if they are told.
fn choices(schema: &Value) -> Vec<&str> {
    let own = schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
    own.chain(schema["const"].as_str()).chain(alternatives(schema).flat_map(choices)).collect()
}

fn misfit(name: &str, schema: &Value, value: &Value) -> Option<String> {
    let kinds = kinds(schema);
    let fits = |kind: &&str| match *kind {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    };
    if !kinds.is_empty() && !kinds.iter().any(fits) {
        let wanted: Vec<_> = kinds.iter().map(|kind| in_words(kind)).collect();
        return Some(format!("`{name}` has to be {}, not {}", wanted.join(" or "), shown(value)));
    }
    match value {
        Value::String(text) => {
            let choices = choices(schema);
            if !choices.is_empty() && !choices.contains(&text.as_str()) {
                return Some(format!("`{name}` has to be one of {}, not {}", choices.join(", "), shown(value)));
            }
            (text.is_empty() && schema["minLength"].as_u64() > Some(0)).then(|| format!("`{name}` is empty"))
        }
        Value::Number(number) => {
            let number = number.as_f64()?;
            let is_open = schema["minimum"].is_null() && kinds.contains(&"integer");
            let negative = (is_open && number < 0.0).then(|| format!("`{name}` has to be 0 or more, not {number}"));
            let is_large = schema["maximum"].is_null() && kinds.contains(&"integer") && number > f64::from(u32::MAX);
            let large = is_large.then(|| format!("`{name}` is too large"));
            out_of_range(name, schema, number).or(negative).or(large)
        }
        Value::Array(items) => {
            let of = &schema["items"];
            items.iter().enumerate().find_map(|(at, item)| misfit(&format!("{name}[{at}]"), of, item))
        }
        _ => None,
    }
}

fn out_of_range(name: &str, schema: &Value, number: f64) -> Option<String> {
    let (least, most) = (schema["minimum"].as_f64(), schema["maximum"].as_f64());
    let is_wrong = least.is_some_and(|least| number < least) || most.is_some_and(|most| number > most);
    let range = match (least, most) {
        (Some(least), Some(most)) => format!("from {least} to {most}"),
        (Some(least), None) => format!("{least} or more"),
        (None, Some(most)) => format!("{most} or less"),
        (None, None) => String::new(),
    };
    is_wrong.then(|| format!("`{name}` has to be {range}, not {number}"))
}

fn in_words(kind: &str) -> &'static str {
    match kind {
        "string" => "a text",
        "integer" => "a whole number",
        "number" => "a number",
        "boolean" => "true or false",
        "array" => "a list",
        _ => "an object",
    }
}

/// What was given, briefly.
pub fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("`{}`", one_line(text, 60)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_wrong_is_told_without_the_words_of_types() {
        let schema = json!({"required": ["id"], "properties": {
            "id": {"type": "string", "minLength": 1, "x-also": "failure_id"},
            "limit": {"type": ["integer", "null"], "minimum": 1, "maximum": 200},
            "line": {"type": "integer"},
            "rule": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "status": {"type": "string", "enum": ["new", "flaky"]},
            "args": {"type": "array", "items": {"type": "string"}},
        }});
        let schema = schema.as_object().unwrap();
        let told = |given: Value| wrong(schema, given.as_object().unwrap()).unwrap_or_default();
        assert_eq!(told(json!({})), "`id` is missing (it may be called `failure_id`)");
        assert_eq!(told(json!({"id": null})), "`id` is missing (it may be called `failure_id`)");
        assert_eq!(told(json!({"failure_id": "x"})), "");
        assert_eq!(told(json!({"failure_id": "x", "id": "y"})), "`id` and `failure_id` are the same: give one of them");
        assert_eq!(told(json!({"id": ""})), "`id` is empty");
        assert_eq!(told(json!({"id": "x", "mesage": 1})), "`mesage` is not known here");
        assert_eq!(told(json!({"id": "x", "limit": 0})), "`limit` has to be from 1 to 200, not 0");
        assert_eq!(told(json!({"id": "x", "limit": null})), "");
        assert_eq!(told(json!({"id": "x", "limit": "many"})), "`limit` has to be a whole number, not `many`");
        assert_eq!(told(json!({"id": "x", "line": 5_000_000_000_u64})), "`line` is too large");
        assert_eq!(told(json!({"id": "x", "line": -1})), "`line` has to be 0 or more, not -1");
        assert_eq!(told(json!({"id": "x", "rule": [1]})), "`rule` has to be a whole number or a text, not a list");
        assert_eq!(told(json!({"id": "x", "status": "odd"})), "`status` has to be one of new, flaky, not `odd`");
        assert_eq!(told(json!({"id": "x", "args": ["a", 3]})), "`args[1]` has to be a text, not 3");
        let given = json!({"id": "x", "limit": 201});
        assert_eq!(beyond(schema, given.as_object().unwrap()).unwrap(), "`limit` has to be from 1 to 200, not 201");
    }
}
