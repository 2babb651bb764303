//! HCL and JSON as one tree: what a block, an object and a list of either say alike.

use hcl_edit::expr::{Expression, Object, ObjectKey};
use hcl_edit::structure::{Body, Structure};
use hcl_edit::template::Element;
use serde_json::Value;

use super::super::hcl::{self, BadHcl};

/// A value. Of members, one name may stand more than once, as blocks do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    Text(String),
    List(Vec<Node>),
    Members(Vec<(String, Node)>),
    Other,
}

impl Node {
    /// Reads a file as the clients do: JSON where its first character is a brace.
    pub(super) fn read(file: &[u8]) -> Result<Self, BadHcl> {
        if file.trim_ascii_start().first() != Some(&b'{') {
            return Ok(Self::of_body(&hcl::parse(file)?));
        }
        if file.len() > hcl::LARGEST {
            return Err(BadHcl::TooLarge(file.len()));
        }
        let value: Value = serde_json::from_slice(file).map_err(|error| BadHcl::Syntax {
            line: error.line(),
            column: error.column(),
            why: "it begins with a brace, and is no JSON".to_owned(),
        })?;
        Ok(Self::of_json(value))
    }

    /// A text, if it is one.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::List(_) | Self::Members(_) | Self::Other => None,
        }
    }

    /// The parts of a list; anything else is one.
    pub(super) fn each(&self) -> impl Iterator<Item = &Self> {
        match self {
            Self::List(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        }
        .iter()
    }

    /// Every member, of each part of a list.
    pub(super) fn members(&self) -> impl Iterator<Item = (&str, &Self)> {
        let members = self.each().flat_map(|part| match part {
            Self::Members(members) => members.as_slice(),
            Self::Text(_) | Self::List(_) | Self::Other => &[],
        });
        members.map(|(name, value)| (name.as_str(), value))
    }

    /// Everything that stands under a name.
    pub(super) fn all<'a>(&'a self, wanted: &'a str) -> impl Iterator<Item = &'a Self> {
        self.members().filter(move |(name, _)| *name == wanted).flat_map(|(_, value)| value.each())
    }

    /// Everything that stands under a name and a label, with the label.
    pub(super) fn named<'a>(&'a self, wanted: &'a str) -> impl Iterator<Item = (&'a str, &'a Self)> {
        self.all(wanted).flat_map(Self::members)
    }

    fn of_json(value: Value) -> Self {
        match value {
            Value::String(text) => Self::Text(text),
            Value::Array(parts) => Self::List(parts.into_iter().map(Self::of_json).collect()),
            Value::Object(members) => {
                Self::Members(members.into_iter().map(|(name, value)| (name, Self::of_json(value))).collect())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => Self::Other,
        }
    }

    fn of_body(body: &Body) -> Self {
        let member = |structure: &Structure| match structure {
            Structure::Attribute(attribute) => (attribute.key.as_str().to_owned(), Self::of(&attribute.value)),
            Structure::Block(block) => {
                let labels = block.labels.iter().rev();
                let inner = labels.fold(Self::of_body(&block.body), |inner, label| {
                    Self::Members(vec![(label.as_str().to_owned(), inner)])
                });
                (block.ident.as_str().to_owned(), inner)
            }
        };
        Self::Members(body.iter().map(member).collect())
    }

    fn of(expression: &Expression) -> Self {
        match expression {
            Expression::String(text) => Self::Text(text.as_str().to_owned()),
            Expression::Array(parts) => Self::List(parts.iter().map(Self::of).collect()),
            Expression::Object(object) => Self::of_object(object),
            // Nothing is put in place of a variable by these clients: it stays as it is written.
            Expression::StringTemplate(template) => {
                let part = |element: &Element| match element {
                    Element::Literal(text) => text.as_str().to_owned(),
                    Element::Interpolation(inner) => format!("${{{}}}", inner.expr.to_string().trim()),
                    Element::Directive(_) => "%{…}".to_owned(),
                };
                Self::Text(template.iter().map(part).collect())
            }
            _ => Self::Other,
        }
    }

    fn of_object(object: &Object) -> Self {
        let name = |key: &ObjectKey| match key {
            ObjectKey::Ident(name) => Some(name.as_str().to_owned()),
            ObjectKey::Expression(key) => key.as_str().map(str::to_owned),
        };
        let members = object.iter().filter_map(|(key, value)| Some((name(key)?, Self::of(value.expr()))));
        Self::Members(members.collect())
    }
}
