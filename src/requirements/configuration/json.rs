//! JSON with its places. Only one level is taken apart at a time, so that no depth of it is too much.

use std::fmt;

use serde::Deserializer;
use serde::de::{Deserialize, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::super::hcl::{self, BadHcl, LineIndex};

/// A value in a file.
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

    /// The line that it begins in.
    pub(super) fn line(&self) -> usize {
        // It is a part of the file, so its place is the distance.
        let offset = self.raw.get().as_ptr().addr().saturating_sub(self.file.as_ptr().addr());
        self.lines.number(offset)
    }

    /// The members of an object, and of each object in a list of them, in their order.
    pub(super) fn members(self) -> Vec<(String, Self)> {
        let of_object = |object: Self| {
            let members = serde_json::from_str::<Members<'a>>(object.raw.get()).unwrap_or_default().0;
            members.into_iter().map(move |(name, raw)| (name, Self { raw, ..object }))
        };
        self.items().into_iter().flat_map(of_object).collect()
    }

    /// The parts of a list; anything else is one.
    pub(super) fn items(self) -> Vec<Self> {
        match self.raw.get().starts_with('[') {
            true => {
                let parts: Vec<&'a RawValue> = serde_json::from_str(self.raw.get()).unwrap_or_default();
                parts.into_iter().map(|raw| Self { raw, ..self }).collect()
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

    /// A text, or what stands there for a number or a truth value.
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
    if file.len() > hcl::LARGEST {
        return Err(BadHcl::TooLarge(file.len()));
    }
    serde_json::from_str(file).map_err(|error| BadHcl::Syntax {
        line: error.line().max(1),
        column: error.column(),
        reason: "it is not JSON from here on".to_owned(),
    })
}

/// The members of an object as they stand there: one name may do so more than once.
#[derive(Default)]
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;

        impl<'de> Visitor<'de> for Each {
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

        deserializer.deserialize_map(Each)
    }
}
