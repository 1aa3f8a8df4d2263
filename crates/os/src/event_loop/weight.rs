//! About how many bytes a value has as JSON, without reading its texts. Of what is large only that it is large is found out, so that
//! finding out takes no time worth speaking of.

use std::fmt::Display;

use serde::{
    Serialize,
    ser::{
        self, Error, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
        SerializeTupleStruct, SerializeTupleVariant,
    },
};

/// What a number, a bracket or a name weighs.
const SMALL: usize = 8;

/// The weight, or `usize::MAX` for what is more than `most`.
pub(super) fn weight(value: &impl Serialize, most: usize) -> usize {
    let mut scale = Scale { weight: 0, most };
    match value.serialize(&mut scale) {
        Ok(()) => scale.weight,
        Err(Enough) => usize::MAX,
    }
}

struct Scale {
    weight: usize,
    most: usize,
}

/// It is large, or cannot be told.
#[derive(Debug, thiserror::Error)]
#[error("it is large")]
struct Enough;

impl Error for Enough {
    fn custom<T: Display>(_: T) -> Self {
        Self
    }
}

type Weighed = Result<(), Enough>;

impl Scale {
    fn add(&mut self, bytes: usize) -> Weighed {
        self.weight = self.weight.saturating_add(bytes);
        if self.weight > self.most { Err(Enough) } else { Ok(()) }
    }
}

macro_rules! small {
    ($($name:ident: $kind:ty),*) => {
        $(fn $name(self, _: $kind) -> Weighed {
            self.add(SMALL)
        })*
    };
}

impl ser::Serializer for &mut Scale {
    type Ok = ();
    type Error = Enough;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    small!(serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_f32: f32,
        serialize_f64: f64, serialize_char: char, serialize_unit_struct: &'static str);

    fn serialize_str(self, text: &str) -> Weighed {
        self.add(SMALL + text.len())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Weighed {
        self.add(SMALL + bytes.len())
    }

    fn serialize_none(self) -> Weighed {
        self.add(SMALL)
    }

    fn serialize_unit(self) -> Weighed {
        self.add(SMALL)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Weighed {
        value.serialize(self)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Weighed {
        self.add(SMALL)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Weighed {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Weighed {
        self.add(SMALL)?;
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, Enough> {
        self.add(SMALL)?;
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, Enough> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, Enough> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_variant(self, _: &'static str, _: u32, _: &'static str, _: usize) -> Result<Self, Enough> {
        self.serialize_seq(None)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, Enough> {
        self.serialize_seq(None)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Enough> {
        self.serialize_seq(None)
    }

    fn serialize_struct_variant(self, _: &'static str, _: u32, _: &'static str, _: usize) -> Result<Self, Enough> {
        self.serialize_seq(None)
    }

    fn collect_str<T: Display + ?Sized>(self, _: &T) -> Weighed {
        // Times and the like, which are short.
        self.add(4 * SMALL)
    }
}

macro_rules! elements {
    ($($part:ident: $method:ident),*) => {
        $(impl $part for &mut Scale {
            type Ok = ();
            type Error = Enough;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Weighed {
                value.serialize(&mut **self)
            }

            fn end(self) -> Weighed {
                Ok(())
            }
        })*
    };
}

macro_rules! fields {
    ($($part:ident),*) => {
        $(impl $part for &mut Scale {
            type Ok = ();
            type Error = Enough;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Weighed {
                self.add(name.len())?;
                value.serialize(&mut **self)
            }

            fn end(self) -> Weighed {
                Ok(())
            }
        })*
    };
}

elements!(SerializeSeq: serialize_element, SerializeTuple: serialize_element, SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field);
fields!(SerializeStruct, SerializeStructVariant);

impl SerializeMap for &mut Scale {
    type Ok = ();
    type Error = Enough;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Weighed {
        key.serialize(&mut **self)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Weighed {
        value.serialize(&mut **self)
    }

    fn end(self) -> Weighed {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_loop::LARGE_BYTES;

    #[test]
    fn what_is_large_is_told_from_what_is_not() {
        let weight = |value: &serde_json::Value| weight(value, LARGE_BYTES);
        let value = |length: usize| serde_json::json!({"a": [1, 2.5, null, true], "b": "x".repeat(length)});
        assert!(weight(&value(100)) < 400);
        assert_eq!(weight(&value(LARGE_BYTES)), usize::MAX);
        assert_eq!(weight(&vec![0_u8; LARGE_BYTES].into()), usize::MAX);
        assert_eq!(weight(&serde_json::json!({ "k".repeat(LARGE_BYTES): 1 })), usize::MAX);
        assert_eq!(super::weight(&Some(("a", 'b', 1_u8)), usize::MAX), 4 * SMALL + 1);
        assert!(super::weight(&value(LARGE_BYTES), usize::MAX) > LARGE_BYTES);
    }
}
