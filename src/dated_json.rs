//! JSON for people and scripts: answers of the admin API and output with `--json`. Each member with a [`Timestamp`], in
//! seconds since 1970, is followed by the same time in RFC 3339: `started_time` follows `started`.
//!
//! Records on disk, and files that another larder reads, are written by serde_json alone and have no such members.

use std::cell::Cell;
use std::fmt::Display;
use std::io;

use serde::ser::{self, Serialize, Serializer};

use crate::clock::Timestamp;

/// Ending of the member that has the time in RFC 3339.
const SUFFIX: &str = "_time";

/// Writes a value as compact JSON. The value has no [`serde_json::value::RawValue`].
///
/// # Errors
/// The value has no JSON form.
pub(crate) fn to_vec(value: &(impl Serialize + ?Sized)) -> serde_json::Result<Vec<u8>> {
    let mut json = Vec::new();
    to_writer(&mut json, value)?;
    Ok(json)
}

/// Writes a value as [`to_vec`] does.
///
/// # Errors
/// The value has no JSON form, or the writer fails.
pub(crate) fn to_writer(writer: impl io::Write, value: &(impl Serialize + ?Sized)) -> serde_json::Result<()> {
    Dated { value, place: Position::NotAMember }.serialize(&mut serde_json::Serializer::new(writer))
}

/// The place of a value, which decides whether a number is the time of a member.
#[derive(Debug, Clone, Copy)]
enum Position<'a> {
    /// Not the value of a member.
    NotAMember,
    /// The value of a member. A time is put into the cell.
    Member(&'a Cell<Option<Timestamp>>),
    /// The number inside a [`Timestamp`] that is the value of a member.
    TimeOfMember(&'a Cell<Option<Timestamp>>),
}

/// A value whose times are written twice.
struct Dated<'a, T: ?Sized> {
    value: &'a T,
    place: Position<'a>,
}

impl<'a, T: ?Sized> Dated<'a, T> {
    /// An element of a list, a key, or the content of a variant.
    fn element(value: &'a T) -> Self {
        Self { value, place: Position::NotAMember }
    }
}

impl<T: Serialize + ?Sized> Serialize for Dated<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(DatedSerializer { inner: serializer, place: self.place })
    }
}

struct DatedSerializer<'a, S> {
    inner: S,
    place: Position<'a>,
}

/// Passes scalars on unchanged.
macro_rules! scalars {
    ($($method:ident: $type:ty),*) => {
        $(fn $method(self, value: $type) -> Result<S::Ok, S::Error> {
            self.inner.$method(value)
        })*
    };
}

impl<S: Serializer> Serializer for DatedSerializer<'_, S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Elements<S::SerializeSeq>;
    type SerializeTuple = Elements<S::SerializeTuple>;
    type SerializeTupleStruct = Elements<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Elements<S::SerializeTupleVariant>;
    type SerializeMap = Members<S::SerializeMap>;
    // The added members have names that are made here, which only a map takes.
    type SerializeStruct = Members<S::SerializeMap>;
    type SerializeStructVariant = Elements<S::SerializeStructVariant>;

    scalars! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_i128: i128, serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u128: u128,
        serialize_f32: f32, serialize_f64: f64, serialize_char: char, serialize_str: &str, serialize_bytes: &[u8],
        serialize_unit_struct: &'static str
    }

    fn serialize_u64(self, value: u64) -> Result<S::Ok, S::Error> {
        if let Position::TimeOfMember(time) = self.place {
            time.set(Some(Timestamp(value)));
        }
        self.inner.serialize_u64(value)
    }

    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.inner.serialize_none()
    }

    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.serialize_some(&Dated { value, place: self.place })
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Result<S::Ok, S::Error> {
        let place = match self.place {
            Position::Member(time) if name == Timestamp::SERDE_NAME => Position::TimeOfMember(time),
            place => place,
        };
        self.inner.serialize_newtype_struct(name, &Dated { value, place })
    }

    fn serialize_unit_variant(self, name: &'static str, index: u32, variant: &'static str) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit_variant(name, index, variant)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.inner.serialize_newtype_variant(name, index, variant, &Dated::element(value))
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        self.inner.serialize_seq(length).map(Elements)
    }

    fn serialize_tuple(self, length: usize) -> Result<Self::SerializeTuple, S::Error> {
        self.inner.serialize_tuple(length).map(Elements)
    }

    fn serialize_tuple_struct(self, name: &'static str, length: usize) -> Result<Self::SerializeTupleStruct, S::Error> {
        self.inner.serialize_tuple_struct(name, length).map(Elements)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        self.inner.serialize_tuple_variant(name, index, variant, length).map(Elements)
    }

    fn serialize_map(self, _length: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        self.inner.serialize_map(None).map(Members)
    }

    fn serialize_struct(self, _name: &'static str, _length: usize) -> Result<Self::SerializeStruct, S::Error> {
        self.inner.serialize_map(None).map(Members)
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        self.inner.serialize_struct_variant(name, index, variant, length).map(Elements)
    }

    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.collect_str(value)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// The elements of a list, a tuple or a variant.
struct Elements<S>(S);

/// The members of an object.
struct Members<S>(S);

impl<S: ser::SerializeMap> Members<S> {
    fn add<K: Serialize + ?Sized, V: Serialize + ?Sized>(&mut self, key: &K, value: &V) -> Result<(), S::Error> {
        let time = Cell::new(None);
        self.0.serialize_entry(key, &Dated { value, place: Position::Member(&time) })?;
        let Some(time) = time.get() else { return Ok(()) };
        let name = serde_json::to_value(key).map_err(ser::Error::custom)?;
        let name = name.as_str().ok_or_else(|| ser::Error::custom("the name of a member is a text"))?;
        self.0.serialize_entry(&format!("{name}{SUFFIX}"), &time.date_time())
    }
}

impl<S: ser::SerializeMap> ser::SerializeMap for Members<S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), S::Error> {
        self.0.serialize_key(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.0.serialize_value(&Dated::element(value))
    }

    fn serialize_entry<K: Serialize + ?Sized, V: Serialize + ?Sized>(
        &mut self,
        key: &K,
        value: &V,
    ) -> Result<(), S::Error> {
        self.add(key, value)
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        self.0.end()
    }
}

impl<S: ser::SerializeMap> ser::SerializeStruct for Members<S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), S::Error> {
        self.add(key, value)
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        self.0.end()
    }
}

/// Passes the elements of one kind of list or variant on.
macro_rules! elements {
    ($($kind:ident: $method:ident($($key:ident: $type:ty)?)),*) => {
        $(impl<S: ser::$kind> ser::$kind for Elements<S> {
            type Ok = S::Ok;
            type Error = S::Error;

            fn $method<T: Serialize + ?Sized>(&mut self, $($key: $type,)? value: &T) -> Result<(), S::Error> {
                self.0.$method($($key,)? &Dated::element(value))
            }

            fn end(self) -> Result<S::Ok, S::Error> {
                self.0.end()
            }
        })*
    };
}

elements! {
    SerializeSeq: serialize_element(), SerializeTuple: serialize_element(), SerializeTupleStruct: serialize_field(),
    SerializeTupleVariant: serialize_field(), SerializeStructVariant: serialize_field(key: &'static str)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Serialize;

    use super::*;

    #[derive(Serialize)]
    #[serde(tag = "step", rename_all = "snake_case")]
    enum Step {
        Begun(Run),
        Ended { at: Option<Timestamp>, count: u64 },
    }

    #[derive(Serialize)]
    struct Run {
        started: Timestamp,
        ended: Option<Timestamp>,
        #[serde(flatten)]
        last: Last,
        runs: Vec<BTreeMap<&'static str, Last>>,
    }

    #[derive(Serialize)]
    struct Last {
        seen: Timestamp,
        words: (u8, &'static str),
    }

    const NOON: Timestamp = Timestamp(1_785_585_600);

    fn text(value: &impl Serialize) -> String {
        String::from_utf8(to_vec(value).unwrap()).unwrap()
    }

    #[test]
    fn each_time_of_a_member_is_followed_by_its_rfc_3339_form() {
        let last = || Last { seen: Timestamp(0), words: (1, "é\"") };
        let run = Run { started: NOON, ended: None, last: last(), runs: vec![BTreeMap::from([("one", last())])] };
        let seen = r#""seen":0,"seen_time":"1970-01-01T00:00:00Z","words":[1,"é\""]"#;
        let expected = format!(
            r#"{{"step":"begun","started":1785585600,"started_time":"2026-08-01T12:00:00Z","ended":null,{seen},"runs":[{{"one":{{{seen}}}}}]}}"#
        );
        assert_eq!(text(&Step::Begun(run)), expected);
        let ended = Step::Ended { at: Some(NOON), count: 7 };
        assert_eq!(text(&ended), r#"{"step":"ended","at":1785585600,"at_time":"2026-08-01T12:00:00Z","count":7}"#);
    }

    /// Lists of times have no members to add to, and numbers that are no times have none.
    #[test]
    fn everything_else_is_the_json_of_serde_json() {
        let values = (vec![Some(NOON), None], 7u64, -7i64, 0.5f64, 'x', "\u{7}", (), [true, false], Some(Some(1u8)));
        assert_eq!(text(&values), serde_json::to_string(&values).unwrap());
    }
}
