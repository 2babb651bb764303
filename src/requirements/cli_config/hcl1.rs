//! HCL 1, the syntax of the clients' CLI configuration, and JSON, as one tree of blocks, objects and lists. HCL 1
//! differs from HCL 2: a colon is not `=`, names may contain
//! dots; commas and line breaks are optional, and values are not expressions.

use std::iter::Peekable;
use std::str::CharIndices;

use serde_json::Value;

use super::super::hcl::{self, BadHcl};

/// The nesting limit: above any real file, and far below a stack overflow.
const MAX_DEPTH: usize = 32;

/// Reads a whole file.
///
/// # Errors
/// [`BadHcl`], with the position.
pub(super) fn read(file: &[u8]) -> Result<Node, BadHcl> {
    if file.len() > hcl::MAX_FILE_BYTES {
        return Err(BadHcl::TooLarge(file.len()));
    }
    let text = std::str::from_utf8(file).map_err(|_| BadHcl::NotUtf8)?;
    let mut reader = Reader { text, rest: text.char_indices().peekable(), token_start: 0 };
    reader.body(None, 0).map_err(|reason| reader.error_here(reason))
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Name(String),
    Text(String),
    /// A number, or true or false.
    Scalar,
    /// A punctuation mark: one of `= { } [ ] ,`.
    Mark(char),
}

struct Reader<'a> {
    text: &'a str,
    /// The characters that are not read yet, with their byte offsets.
    rest: Peekable<CharIndices<'a>>,
    /// The byte offset of the last token.
    token_start: usize,
}

type ParseResult<T> = Result<T, &'static str>;

impl Reader<'_> {
    fn error_here(&self, reason: &'static str) -> BadHcl {
        let preceding = self.text.get(..self.token_start).unwrap_or_default();
        let line = preceding.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = preceding.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        BadHcl::Syntax { line, column, reason: reason.to_owned() }
    }

    /// Parses members up to `end`, or to the end of the file.
    fn body(&mut self, end: Option<char>, depth: usize) -> ParseResult<Node> {
        if depth > MAX_DEPTH {
            return Err("the file is nested too deeply here");
        }
        let mut members = Vec::new();
        let mut comma_allowed = false;
        loop {
            let name = match (self.next_token()?, end) {
                (None, None) => return Ok(Node::Members(members)),
                (None, Some(_)) => return Err("the file ends inside a block or string"),
                (Some(Token::Mark(mark)), Some(end)) if mark == end => return Ok(Node::Members(members)),
                (Some(Token::Mark(',')), _) if comma_allowed => {
                    comma_allowed = false;
                    continue;
                }
                (Some(Token::Name(name) | Token::Text(name)), _) => name,
                (Some(_), _) => return Err("expected a name"),
            };
            members.push((name, self.after_name(depth)?));
            comma_allowed = true;
        }
    }

    /// Parses the part after a name: labels and a block, or a value.
    fn after_name(&mut self, depth: usize) -> ParseResult<Node> {
        let mut labels = Vec::new();
        loop {
            match self.next_token()? {
                Some(Token::Name(label) | Token::Text(label)) => labels.push(label),
                Some(Token::Mark('{')) => {
                    let body = self.body(Some('}'), depth + 1)?;
                    return Ok(Node::labelled(&labels, body));
                }
                Some(Token::Mark('=')) if labels.is_empty() => {
                    let token = self.next_token()?;
                    return self.value(token, depth);
                }
                Some(_) => return Err("expected = or { after a name"),
                None => return Err("the file ends after a name"),
            }
        }
    }

    fn value(&mut self, first: Option<Token>, depth: usize) -> ParseResult<Node> {
        match first {
            Some(Token::Text(text)) => Ok(Node::Text(text)),
            Some(Token::Scalar) => Ok(Node::Other),
            Some(Token::Mark('{')) => self.body(Some('}'), depth + 1),
            Some(Token::Mark('[')) if depth < MAX_DEPTH => self.list(depth + 1),
            Some(Token::Mark('[')) => Err("the file is nested too deeply here"),
            Some(Token::Name(_) | Token::Mark(_)) => Err("expected a value: a text in quotes, a number, a list"),
            None => Err("the file ends before a value"),
        }
    }

    fn list(&mut self, depth: usize) -> ParseResult<Node> {
        let mut items = Vec::new();
        let mut value_allowed = true;
        loop {
            match self.next_token()? {
                Some(Token::Mark(']')) => return Ok(Node::List(items)),
                Some(Token::Mark(',')) => value_allowed = true,
                Some(_) if !value_allowed => return Err("expected a comma in the list"),
                token => {
                    items.push(self.value(token, depth)?);
                    value_allowed = false;
                }
            }
        }
    }

    fn next_token(&mut self) -> ParseResult<Option<Token>> {
        self.skip_to_token()?;
        let Some((offset, first)) = self.rest.next() else {
            self.token_start = self.text.len();
            return Ok(None);
        };
        self.token_start = offset;
        Ok(Some(match first {
            '=' | '{' | '}' | '[' | ']' | ',' => Token::Mark(first),
            '"' => Token::Text(self.quoted_text()?),
            '<' => Token::Text(self.heredoc()?),
            _ if first.is_alphabetic() || first == '_' => {
                let name = self.read_while(offset, |next| next.is_alphanumeric() || matches!(next, '_' | '-' | '.'));
                if matches!(name, "true" | "false") { Token::Scalar } else { Token::Name(name.to_owned()) }
            }
            _ if first.is_ascii_digit() || (matches!(first, '-' | '.') && self.is_before_a_digit()) => {
                self.read_while(offset, |next| next.is_ascii_alphanumeric() || matches!(next, '.' | '+' | '-'));
                Token::Scalar
            }
            _ => return Err("this character has no meaning here"),
        }))
    }

    fn is_before_a_digit(&mut self) -> bool {
        self.rest.peek().is_some_and(|(_, next)| next.is_ascii_digit())
    }

    fn skip_to_token(&mut self) -> ParseResult<()> {
        loop {
            let Some((offset, next)) = self.rest.peek().copied() else { return Ok(()) };
            let remaining = self.text.get(offset..).unwrap_or_default();
            if matches!(next, ' ' | '\t' | '\n' | '\r') {
                self.rest.next();
            } else if next == '#' || remaining.starts_with("//") {
                self.read_while(offset, |next| next != '\n');
            } else if remaining.starts_with("/*") {
                self.token_start = offset;
                let end = remaining.get(2..).and_then(|comment| comment.find("*/")).ok_or("unterminated comment")? + 4;
                self.skip_to(offset + end);
            } else {
                return Ok(());
            }
        }
    }

    /// Consumes characters while they are `accepted`; returns the text from byte `from` to the end of them.
    fn read_while(&mut self, from: usize, accepted: impl Fn(char) -> bool) -> &str {
        while self.rest.next_if(|(_, next)| accepted(*next)).is_some() {}
        let end = self.rest.peek().map_or(self.text.len(), |(offset, _)| *offset);
        self.text.get(from..end).unwrap_or_default()
    }

    /// Skips the characters before byte `end`.
    fn skip_to(&mut self, end: usize) {
        while self.rest.next_if(|(offset, _)| *offset < end).is_some() {}
    }

    /// Parses the rest of a quoted string. `${…}` is kept verbatim.
    fn quoted_text(&mut self) -> ParseResult<String> {
        let mut text = String::new();
        let mut brace_depth = 0usize;
        while let Some((_, next)) = self.rest.next() {
            match next {
                '"' if brace_depth == 0 => return Ok(text),
                '\n' if brace_depth == 0 => break,
                '\\' if brace_depth == 0 => {
                    text.push(self.escaped()?);
                    continue;
                }
                '$' if brace_depth == 0 && self.rest.next_if(|(_, next)| *next == '{').is_some() => {
                    brace_depth = 1;
                    text.push_str("${");
                    continue;
                }
                '{' if brace_depth > 0 => brace_depth += 1,
                '}' if brace_depth > 0 => brace_depth -= 1,
                _ => {}
            }
            text.push(next);
        }
        Err("unterminated string")
    }

    fn escaped(&mut self) -> ParseResult<char> {
        const UNKNOWN_ESCAPE: &str = "unknown escape";
        let Some((offset, escape)) = self.rest.next() else { return Err("unterminated string") };
        let (start, digits, base) = match escape {
            'a' => return Ok('\u{7}'),
            'b' => return Ok('\u{8}'),
            'f' => return Ok('\u{c}'),
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'v' => return Ok('\u{b}'),
            '\\' | '"' => return Ok(escape),
            '0'..='7' => (offset, 3, 8),
            'x' => (offset + 1, 2, 16),
            'u' => (offset + 1, 4, 16),
            'U' => (offset + 1, 8, 16),
            _ => return Err(UNKNOWN_ESCAPE),
        };
        // `from_str_radix` alone would accept a sign.
        let text = self.text.get(start..start + digits).filter(|text| text.chars().all(|c| c.is_digit(base)));
        let number = text.and_then(|text| u32::from_str_radix(text, base).ok());
        self.skip_to(start + digits);
        number.and_then(char::from_u32).ok_or(UNKNOWN_ESCAPE)
    }

    /// Parses the rest of `<<NAME`, with the lines up to NAME.
    fn heredoc(&mut self) -> ParseResult<String> {
        const NO_NAME: &str = "expected a name after <<";
        self.rest.next_if(|(_, next)| *next == '<').ok_or(NO_NAME)?;
        let is_indented = self.rest.next_if(|(_, next)| *next == '-').is_some();
        let from = self.rest.peek().map_or(self.text.len(), |(offset, _)| *offset);
        let name = self.read_while(from, |next| next != '\n').trim_end_matches('\r').to_owned();
        if name.is_empty() || !name.chars().all(char::is_alphanumeric) {
            return Err(NO_NAME);
        }
        self.rest.next();
        let mut text = String::new();
        while let Some((offset, _)) = self.rest.peek().copied() {
            let line = self.read_while(offset, |next| next != '\n').trim_end_matches('\r').to_owned();
            let trimmed = if is_indented { line.trim_start() } else { &line };
            if trimmed == name {
                return Ok(text);
            }
            text.push_str(trimmed);
            text.push('\n');
            self.rest.next();
        }
        Err("unterminated string")
    }
}

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
            return read(file);
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
    fn labelled(labels: &[String], body: Self) -> Self {
        if labels.len() > MAX_LABELS {
            return Self::Other;
        }
        let under_label = |inner, label: &String| Self::Members(vec![(label.clone(), inner)]);
        labels.iter().rev().fold(body, under_label)
    }
}
