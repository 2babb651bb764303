//! HCL and JSON in one model: blocks with labels, attributes with values, and their locations. JSON is parsed one level
//! at a time, so that deep nesting is harmless.

use std::borrow::Cow;
use std::sync::Arc;

use hcl_edit::expr::{Expression, ObjectKey, TraversalOperator};
use hcl_edit::{Span, structure};
use serde_json::value::RawValue;

use super::super::hcl::{self, BadHcl, LineIndex};
use super::SourceLine;
use super::expression::{Constant, ExpressionText, Scope, names_in};
use crate::json_members::Members;

/// A parsed file.
pub(super) struct Parsed<'a> {
    source: SourceFile<'a>,
    content: Content<'a>,
}

enum Content<'a> {
    Hcl(Box<structure::Body>),
    Json(&'a RawValue),
}

/// The name of a file, and its text as it was parsed.
pub(super) struct SourceFile<'a> {
    name: Arc<str>,
    text: Cow<'a, str>,
    lines: LineIndex,
}

/// The body of a block or file.
#[derive(Clone, Copy)]
pub(super) enum BlockBody<'a> {
    Hcl(&'a structure::Body, &'a SourceFile<'a>),
    Json(Json<'a>),
}

/// A block.
pub(super) struct Block<'a> {
    pub(super) labels: Vec<String>,
    pub(super) body: BlockBody<'a>,
    pub(super) location: SourceLine,
}

/// An attribute, or a member of an object.
pub(super) struct Attribute<'a> {
    pub(super) value: Value<'a>,
    pub(super) location: SourceLine,
}

/// A value.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Hcl(&'a Expression, &'a SourceFile<'a>),
    Json(Json<'a>),
}

impl<'a> Parsed<'a> {
    /// Parses a file; its name selects the syntax.
    pub(super) fn read(name: &str, text: &'a str) -> Result<Self, BadHcl> {
        let is_json = name.ends_with(".json");
        let not_json = |error: serde_json::Error| BadHcl::Syntax {
            line: error.line().max(1),
            column: error.column(),
            reason: "the file is not JSON from here on".to_owned(),
        };
        let (content, text) = match is_json {
            true if text.len() > hcl::MAX_FILE_BYTES => return Err(BadHcl::TooLarge(text.len())),
            true => (Content::Json(serde_json::from_str(text).map_err(not_json)?), Cow::Borrowed(text)),
            false => {
                let (body, text) = hcl::parse(text.as_bytes())?;
                (Content::Hcl(Box::new(body)), text)
            }
        };
        let lines = LineIndex::of(text.as_bytes());
        Ok(Self { source: SourceFile { name: name.into(), text, lines }, content })
    }

    pub(super) fn body(&self) -> BlockBody<'_> {
        match &self.content {
            Content::Hcl(body) => BlockBody::Hcl(body, &self.source),
            Content::Json(raw) => BlockBody::Json(Json { source: &self.source, raw }),
        }
    }
}

impl SourceFile<'_> {
    /// The location of a parsed item.
    fn location_of(&self, item: &impl Span) -> SourceLine {
        self.location(item.span().map_or(0, |span| span.start))
    }

    fn location(&self, offset: usize) -> SourceLine {
        SourceLine { file: Arc::clone(&self.name), line: self.lines.number(offset) }
    }
}

impl<'a> BlockBody<'a> {
    /// The blocks of a type with at least this many labels, in order.
    pub(super) fn blocks(self, block_type: &str, min_labels: usize) -> Vec<Block<'a>> {
        match self {
            Self::Hcl(body, source) => {
                let blocks = body.blocks().filter(|block| block.has_ident(block_type));
                let block = |block: &'a structure::Block| Block {
                    labels: block.labels.iter().map(|label| label.as_str().to_owned()).collect(),
                    body: Self::Hcl(&block.body, source),
                    location: source.location_of(block),
                };
                blocks.filter(|block| block.labels.len() >= min_labels).map(block).collect()
            }
            Self::Json(json) => {
                let matching = json.members().into_iter().filter(|(name, _)| name == block_type);
                matching.flat_map(|(_, value)| value.blocks(Vec::new(), min_labels)).collect()
            }
        }
    }

    /// The attribute with this name.
    pub(super) fn attribute(self, name: &str) -> Option<Attribute<'a>> {
        self.attributes().into_iter().find(|(attribute_name, _)| attribute_name == name).map(|(_, attribute)| attribute)
    }

    /// All attributes.
    pub(super) fn attributes(self) -> Vec<(String, Attribute<'a>)> {
        match self {
            Self::Hcl(body, source) => {
                let attribute = |attribute: &'a structure::Attribute| {
                    let value = Value::Hcl(&attribute.value, source);
                    (attribute.key.as_str().to_owned(), Attribute { value, location: source.location_of(attribute) })
                };
                body.attributes().map(attribute).collect()
            }
            Self::Json(json) => json.attributes(),
        }
    }
}

impl<'a> Value<'a> {
    /// The value of an expression without variables and locals.
    pub(super) fn constant(self) -> Constant {
        match self {
            Self::Hcl(expression, _) => Scope::empty().expression(expression).unwrap_or_else(Constant::Unknown),
            // In JSON, text is not a template here.
            Self::Json(json) => json.text().map_or_else(|| self.text().constant(), Constant::Text),
        }
    }

    /// The expression, for a value that clients evaluate.
    pub(super) fn text(self) -> ExpressionText {
        match self {
            Self::Hcl(expression, source) => {
                // The source and not the parser's printed form, which escapes some nested templates differently.
                let text = expression.span().and_then(|span| source.text.get(span)).unwrap_or_default();
                // Parentheses allow white space and comments around an expression that is parsed alone.
                ExpressionText::Hcl(format!("({text}\n)"))
            }
            Self::Json(json) => ExpressionText::Json(json.raw.get().to_owned()),
        }
    }

    /// The names of a reference such as `aws.west`, up to the first index; empty for anything else.
    pub(super) fn reference(self) -> Vec<String> {
        match self {
            Self::Hcl(Expression::Variable(name), _) => vec![name.as_str().to_owned()],
            Self::Hcl(Expression::Traversal(traversal), _) => {
                let root = traversal.expr.as_variable().map(|name| name.as_str());
                let attributes = traversal.operators.iter().map_while(|operator| match operator.value() {
                    TraversalOperator::GetAttr(name) => Some(name.as_str()),
                    _ => None,
                });
                root.into_iter().chain(attributes).map(str::to_owned).collect()
            }
            // A reference as a string: the syntax before Terraform 0.12, which clients still accept.
            Self::Hcl(Expression::Parenthesis(inner), source) => Self::Hcl(inner.inner(), source).reference(),
            Self::Hcl(expression, _) => expression.as_str().map(names_in).unwrap_or_default(),
            Self::Json(json) => json.text().map(|text| names_in(&text)).unwrap_or_default(),
        }
    }

    /// The members of an object; the last of several with one name counts.
    pub(super) fn members(self) -> Option<Vec<(String, Attribute<'a>)>> {
        match self {
            Self::Hcl(Expression::Parenthesis(inner), source) => Self::Hcl(inner.inner(), source).members(),
            Self::Hcl(Expression::Object(object), source) => {
                let member = |(key, value): (&'a ObjectKey, &'a hcl_edit::expr::ObjectValue)| {
                    let Ok(Constant::Text(name)) = Scope::empty().key(key) else { return None };
                    let expression = value.expr();
                    let value = Self::Hcl(expression, source);
                    Some((name, Attribute { value, location: source.location_of(expression) }))
                };
                Some(object.iter().filter_map(member).collect())
            }
            Self::Hcl(..) => None,
            Self::Json(json) => json.is_object().then(|| json.attributes()),
        }
    }
}

/// A value with its position in a file.
#[derive(Clone, Copy)]
pub(super) struct Json<'a> {
    source: &'a SourceFile<'a>,
    raw: &'a RawValue,
}

impl<'a> Json<'a> {
    /// The location of the value's first character.
    fn location(&self) -> SourceLine {
        // The value borrows from the file, so the difference of the pointers is its offset.
        self.source.location(self.raw.get().as_ptr().addr().saturating_sub(self.source.text.as_ptr().addr()))
    }

    /// The members of an object, or of each object in a list, in order.
    fn members(self) -> Vec<(String, Self)> {
        let of_object = |object: Self| {
            let members = serde_json::from_str::<Members<&'a RawValue>>(object.raw.get())
                .map(|members| members.0)
                .unwrap_or_default();
            members.into_iter().map(move |(name, raw)| (name, Self { raw, ..object }))
        };
        self.items().into_iter().flat_map(of_object).collect()
    }

    /// The members of an object without comments.
    fn attributes(self) -> Vec<(String, Attribute<'a>)> {
        let members = self.members().into_iter().filter(|(name, _)| name != "//");
        members.map(|(name, json)| (name, Attribute { value: Value::Json(json), location: json.location() })).collect()
    }

    /// The blocks that the value represents: `missing_labels` levels of objects whose member names are labels, then the
    /// bodies.
    fn blocks(self, labels: Vec<String>, missing_labels: usize) -> Vec<Block<'a>> {
        if missing_labels > 0 {
            let blocks = self.members().into_iter().flat_map(|(label, value)| {
                value.blocks(labels.iter().cloned().chain([label]).collect(), missing_labels - 1)
            });
            return blocks.collect();
        }
        let bodies = self.items().into_iter().filter(Self::is_object);
        bodies
            .map(|body| Block { labels: labels.clone(), body: BlockBody::Json(body), location: body.location() })
            .collect()
    }

    /// The items of a list; any other value is one item.
    fn items(self) -> Vec<Self> {
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

    /// The text of a string, a number or a boolean; `None` for any other value.
    fn text(&self) -> Option<String> {
        let raw = self.raw.get();
        match raw.as_bytes().first() {
            Some(b'"') => serde_json::from_str(raw).ok(),
            Some(b'{' | b'[' | b'n') | None => None,
            Some(_) => Some(raw.to_owned()),
        }
    }
}
