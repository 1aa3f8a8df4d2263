//! JSON in which no object says one thing twice: what is judged by the one and done by the other is not judged. `api` asks it for bodies
//! of callers whose arguments decide what they may.

use std::{collections::HashSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

/// Any JSON without a key that comes twice in one object.
pub struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Walk)
    }
}

struct Walk;

impl<'de> Visitor<'de> for Walk {
    type Value = Unique;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_str<E>(self, _: &str) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_unit<E>(self) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Unique, A::Error> {
        while items.next_element::<Unique>()?.is_some() {}
        Ok(Unique)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Unique, A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = fields.next_key::<String>()? {
            fields.next_value::<Unique>()?;
            if let Some(key) = seen.replace(key) {
                return Err(A::Error::custom(format_args!("duplicate field `{}`", key.escape_debug())));
            }
        }
        Ok(Unique)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_twice() {
        let is_unique = |text: &str| serde_json::from_str::<Unique>(text).is_ok();
        assert!(is_unique(r#"{"a": [1, -1, 1.5, null, true, "x", {"a": {}}], "b": {"a": 1}}"#));
        for twice in [r#"{"a": 1, "a": 1}"#, r#"{"x": [{"a": {"b": 1, "c": 2, "b": 3}}]}"#, r#"{"a": 1, "\u0061": 2}"#]
        {
            assert!(!is_unique(twice), "{twice}");
        }
        assert!(!is_unique(&"[".repeat(200_000)), "nor so deep that reading it hurts");
    }
}
