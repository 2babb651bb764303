//! HCL 1 and JSON as one tree of blocks, objects and lists.

use serde_json::Value;

use super::super::hcl::{self, BadHcl};
use super::hcl1;

/// The maximum number of labels of a known block.
const MAX_LABELS: usize = 2;

/// A value. A member name may repeat, as blocks do.
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
            return hcl1::read(file);
        }
        if file.len() > hcl::MAX_FILE_BYTES {
            return Err(BadHcl::TooLarge(file.len()));
        }
        let value: Value = serde_json::from_slice(file).map_err(|error| BadHcl::Syntax {
            line: error.line(),
            column: error.column(),
            reason: "the file begins with a brace, but is not JSON".to_owned(),
        })?;
        Ok(Self::of_json(value))
    }

    /// The text, if the value is a text.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::List(_) | Self::Members(_) | Self::Other => None,
        }
    }

    /// The items of a list; any other value is one item.
    pub(super) fn items(&self) -> impl Iterator<Item = &Self> {
        match self {
            Self::List(items) => items.as_slice(),
            single => std::slice::from_ref(single),
        }
        .iter()
    }

    /// Every member of each item.
    pub(super) fn members(&self) -> impl Iterator<Item = (&str, &Self)> {
        let members = self.items().flat_map(|item| match item {
            Self::Members(members) => members.as_slice(),
            Self::Text(_) | Self::List(_) | Self::Other => &[],
        });
        members.map(|(name, value)| (name.as_str(), value))
    }

    /// The items of every member with this name.
    pub(super) fn all<'a>(&'a self, member: &'a str) -> impl Iterator<Item = &'a Self> {
        self.members().filter(move |(name, _)| *name == member).flat_map(|(_, value)| value.items())
    }

    /// Every labelled block with this name, with its label.
    pub(super) fn labelled_blocks<'a>(&'a self, block_type: &'a str) -> impl Iterator<Item = (&'a str, &'a Self)> {
        self.all(block_type).flat_map(Self::members)
    }

    fn of_json(value: Value) -> Self {
        match value {
            Value::String(text) => Self::Text(text),
            Value::Array(items) => Self::List(items.into_iter().map(Self::of_json).collect()),
            Value::Object(members) => {
                Self::Members(members.into_iter().map(|(name, value)| (name, Self::of_json(value))).collect())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => Self::Other,
        }
    }

    /// A block as nested members: each label is a member name. A block with too many labels is unknown.
    pub(super) fn labelled(labels: &[String], body: Self) -> Self {
        if labels.len() > MAX_LABELS {
            return Self::Other;
        }
        let under_label = |inner, label: &String| Self::Members(vec![(label.clone(), inner)]);
        labels.iter().rev().fold(body, under_label)
    }
}
