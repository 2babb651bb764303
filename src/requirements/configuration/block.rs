//! HCL and JSON in one model: blocks with labels, attributes with values, and their lines. JSON is parsed one level at a
//! time, so that deep nesting is harmless.

use std::fmt;

use hcl_edit::expr::{Expression, ObjectKey};
use hcl_edit::{Span, structure};
use serde::Deserializer;
use serde::de::{Deserialize, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::super::hcl::{self, BadHcl, LineIndex};
use super::expression::{self, Constant, Formula};

/// The maximum depth of JSON values that are evaluated.
const MAX_JSON_DEPTH: usize = 16;

/// A parsed file.
pub(super) enum Parsed<'a> {
    Hcl { body: Box<structure::Body>, lines: LineIndex },
    Json { text: &'a str, lines: LineIndex },
}

/// The body of a block or file.
#[derive(Clone, Copy)]
pub(super) enum BlockBody<'a> {
    Hcl {
        body: &'a structure::Body,
        lines: &'a LineIndex,
    },
    Json(Json<'a>),
    /// Not a configuration file.
    Nothing,
}

/// A block.
pub(super) struct Block<'a> {
    pub(super) labels: Vec<String>,
    pub(super) body: BlockBody<'a>,
    pub(super) line: usize,
}

/// An attribute, or a member of an object.
pub(super) struct Attribute<'a> {
    pub(super) value: Value<'a>,
    pub(super) line: usize,
}

/// A value.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Hcl { expression: &'a Expression, lines: &'a LineIndex, line: usize },
    Json(Json<'a>),
}

impl<'a> Parsed<'a> {
    /// Parses a file; its name selects the syntax.
    pub(super) fn read(name: &str, text: &'a str) -> Result<Self, BadHcl> {
        let lines = LineIndex::of(text.as_bytes());
        if name.ends_with(".json") {
            check(text)?;
            return Ok(Self::Json { text, lines });
        }
        // Clients skip the byte order mark of an editor, except in JSON.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = LineIndex::of(text.as_bytes());
        Ok(Self::Hcl { body: Box::new(hcl::parse(text.as_bytes())?), lines })
    }

    pub(super) fn body(&self) -> BlockBody<'_> {
        match self {
            Self::Hcl { body, lines } => BlockBody::Hcl { body, lines },
            Self::Json { text, lines } => Json::read(text, lines).map_or(BlockBody::Nothing, BlockBody::Json),
        }
    }
}

impl<'a> BlockBody<'a> {
    /// The blocks of a type with at least this many labels, in order.
    pub(super) fn blocks(self, block_type: &str, min_labels: usize) -> Vec<Block<'a>> {
        match self {
            Self::Hcl { body, lines } => {
                let matching =
                    body.blocks().filter(|block| block.has_ident(block_type) && block.labels.len() >= min_labels);
                matching
                    .map(|block| Block {
                        labels: block.labels.iter().map(|label| label.as_str().to_owned()).collect(),
                        body: BlockBody::Hcl { body: &block.body, lines },
                        line: lines.number(block.span().map_or(0, |span| span.start)),
                    })
                    .collect()
            }
            Self::Json(json) => {
                let matching = json.members().into_iter().filter(|(name, _)| name == block_type);
                matching.flat_map(|(_, value)| unwrap_labels(value, Vec::new(), min_labels)).collect()
            }
            Self::Nothing => Vec::new(),
        }
    }

    /// The attribute with this name.
    pub(super) fn attribute(self, name: &str) -> Option<Attribute<'a>> {
        self.attributes().into_iter().find(|(attribute_name, _)| attribute_name == name).map(|(_, attribute)| attribute)
    }

    /// All attributes.
    pub(super) fn attributes(self) -> Vec<(String, Attribute<'a>)> {
        match self {
            Self::Hcl { body, lines } => body
                .attributes()
                .map(|attribute| {
                    let line = lines.number(attribute.span().map_or(0, |span| span.start));
                    let value = Value::Hcl { expression: &attribute.value, lines, line };
                    (attribute.key.as_str().to_owned(), Attribute { value, line })
                })
                .collect(),
            Self::Json(json) => members(json),
            Self::Nothing => Vec::new(),
        }
    }
}

impl<'a> Value<'a> {
    /// The value of an expression without variables and locals.
    pub(super) fn constant(self) -> Constant {
        match self {
            Self::Hcl { expression, .. } => Formula::of(expression).constant(),
            Self::Json(json) if json.is_null() => Constant::Null,
            // In JSON, text is not a template here.
            Self::Json(json) => json.text().map_or_else(|| of_json(json, MAX_JSON_DEPTH).constant(), Constant::Text),
        }
    }

    /// The expression, for a value that clients evaluate.
    pub(super) fn formula(self) -> Formula {
        match self {
            Self::Hcl { expression, .. } => Formula::of(expression),
            Self::Json(json) => of_json(json, MAX_JSON_DEPTH),
        }
    }

    /// The value where clients accept a string only: no number, no null.
    pub(super) fn as_plain_text(self) -> Constant {
        let is_not_text = match self {
            Self::Hcl { expression, .. } => expression::is_non_text_literal(expression),
            Self::Json(json) => !json.is_text(),
        };
        if is_not_text { Constant::unknown("a value that is not a string") } else { self.constant() }
    }

    /// The names of a reference; empty for anything else.
    pub(super) fn reference(self) -> Vec<String> {
        match self {
            Self::Hcl { expression, .. } => expression::reference(expression),
            Self::Json(json) => json.text().map(|text| expression::reference_in(&text)).unwrap_or_default(),
        }
    }

    /// The members of an object; the last of several with one name counts.
    pub(super) fn members(self) -> Option<Vec<(String, Attribute<'a>)>> {
        match self {
            Self::Hcl { expression: Expression::Parenthesis(inner), lines, line } => {
                Self::Hcl { expression: inner.inner(), lines, line }.members()
            }
            Self::Hcl { expression: Expression::Object(object), lines, line } => {
                let member = |(key, value): (&'a ObjectKey, &'a hcl_edit::expr::ObjectValue)| {
                    let name = match key {
                        ObjectKey::Ident(name) => name.as_str().to_owned(),
                        ObjectKey::Expression(key) => match hcl::strip_duplicate_mark(key) {
                            Expression::Variable(name) => name.as_str().to_owned(),
                            other => match Formula::of(other).constant() {
                                Constant::Text(name) => name,
                                _ => return None,
                            },
                        },
                    };
                    let line = value.expr().span().map_or(line, |span| lines.number(span.start));
                    Some((name, Attribute { value: Self::Hcl { expression: value.expr(), lines, line }, line }))
                };
                Some(object.iter().filter_map(member).collect())
            }
            Self::Hcl { .. } => None,
            Self::Json(json) => json.is_object().then(|| members(json)),
        }
    }
}

fn of_json(json: Json<'_>, remaining_depth: usize) -> Formula {
    if remaining_depth == 0 {
        return Formula::Value(Constant::unknown("a value that is nested too deeply"));
    }
    if json.is_null() {
        Formula::Value(Constant::Null)
    } else if json.is_object() {
        let member = |(name, value)| (Formula::of_json_text(name), of_json(value, remaining_depth - 1));
        Formula::Object(json.members().into_iter().map(member).collect())
    } else if let Some(text) = json.text() {
        Formula::of_json_text(text)
    } else {
        Formula::List(json.items().into_iter().map(|item| of_json(item, remaining_depth - 1)).collect())
    }
}

/// The members of an object without comments.
fn members(json: Json<'_>) -> Vec<(String, Attribute<'_>)> {
    let members = json.members().into_iter().filter(|(name, _)| name != "//");
    members.map(|(name, value)| (name, Attribute { value: Value::Json(value), line: value.line() })).collect()
}

/// The blocks that a JSON value represents: `missing_labels` levels of objects whose member names are labels, then the
/// bodies.
fn unwrap_labels(value: Json<'_>, labels: Vec<String>, missing_labels: usize) -> Vec<Block<'_>> {
    if missing_labels > 0 {
        let blocks = value.members().into_iter().flat_map(|(label, value)| {
            let labels = labels.iter().cloned().chain([label]).collect();
            unwrap_labels(value, labels, missing_labels - 1)
        });
        return blocks.collect();
    }
    let bodies = value.items().into_iter().filter(Json::is_object);
    bodies.map(|body| Block { labels: labels.clone(), body: BlockBody::Json(body), line: body.line() }).collect()
}

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

    fn is_object(&self) -> bool {
        self.raw.get().starts_with('{')
    }

    fn is_null(&self) -> bool {
        self.raw.get() == "null"
    }

    fn is_text(&self) -> bool {
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
