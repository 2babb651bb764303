//! JSON with positions. One level is parsed at a time, so that deep nesting is harmless.

use std::fmt;

use serde::Deserializer;
use serde::de::{Deserialize, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::super::hcl::{self, BadHcl, LineIndex};

/// A value with its position in a file.
#[derive(Clone, Copy)]
pub(super) struct Json<'a> {
    file: &'a str,
    lines: &'a LineIndex,
    raw: &'a RawValue,
}

impl<'a> Json<'a> {
    pub(super) fn read(file: &'a str, lines: &'a LineIndex) -> Result<Self, BadHcl> {
        let raw = check(file)?;
        Ok(Self { file, lines, raw })
    }

    /// The line of the value's first character.
    pub(super) fn line(&self) -> usize {
        // The value borrows from the file, so the difference of the pointers is its offset.
        let offset = self.raw.get().as_ptr().addr().saturating_sub(self.file.as_ptr().addr());
        self.lines.number(offset)
    }

    /// The members of an object, or of each object in a list, in order.
    pub(super) fn members(self) -> Vec<(String, Self)> {
        let of_object = |object: Self| {
            let members = serde_json::from_str::<Members<'a>>(object.raw.get()).unwrap_or_default().0;
            members.into_iter().map(move |(name, raw)| (name, Self { raw, ..object }))
        };
        self.items().into_iter().flat_map(of_object).collect()
    }

    /// The items of a list; any other value is one item.
    pub(super) fn items(self) -> Vec<Self> {
        match self.raw.get().starts_with('[') {
            true => {
                let items: Vec<&'a RawValue> = serde_json::from_str(self.raw.get()).unwrap_or_default();
                items.into_iter().map(|raw| Self { raw, ..self }).collect()
            }
            false => vec![self],
        }
    }

    pub(super) fn is_object(&self) -> bool {
        self.raw.get().starts_with('{')
    }

    pub(super) fn is_null(&self) -> bool {
        self.raw.get() == "null"
    }

    pub(super) fn is_text(&self) -> bool {
        self.raw.get().starts_with('"')
    }

    /// The text of a string, a number or a boolean; `None` for any other value.
    pub(super) fn text(&self) -> Option<String> {
        let raw = self.raw.get();
        match raw.as_bytes().first() {
            Some(b'"') => serde_json::from_str(raw).ok(),
            Some(b'{' | b'[' | b'n') | None => None,
            Some(_) => Some(raw.to_owned()),
        }
    }
}

/// Checks that a file is JSON.
pub(super) fn check(file: &str) -> Result<&RawValue, BadHcl> {
    if file.len() > hcl::MAX_FILE_BYTES {
        return Err(BadHcl::TooLarge(file.len()));
    }
    serde_json::from_str(file).map_err(|error| BadHcl::Syntax {
        line: error.line().max(1),
        column: error.column(),
        reason: "the file is not JSON from here on".to_owned(),
    })
}

/// The members of an object; a name may repeat.
#[derive(Default)]
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(MembersVisitor)
    }
}
