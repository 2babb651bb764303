//! Parses users' HCL within limits: HCL 2, and HCL 1, the syntax of the clients' CLI configuration. HCL 1 differs: a colon
//! is not `=`, names may contain dots, commas and line breaks are optional, and values are not expressions. The callers
//! know each file's meaning.

mod comments;
mod scanner;
mod work;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::str::Chars;

use hcl_edit::expr::{Expression, UnaryOperator};
use hcl_edit::structure::Body;
use serde_json::Value;

pub(super) use self::comments::text_of;
use self::comments::without_empty_heredocs;

/// The largest accepted file, in bytes. Files that clients write have a few kilobytes.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// The parser's message for a repeated key in an object.
const DUPLICATE_KEY_MESSAGE: &str = "redefined object key";
/// The maximum number of repeated keys in a file: each costs another pass of the parser.
const MAX_DUPLICATE_KEYS: usize = 256;
/// The maximum number of bytes parsed in all passes, those counted twice that the parser may read twice.
const MAX_PARSED_BYTES: u64 = 8 << 20;

/// Reasons why HCL is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadHcl {
    /// The file is larger than [`MAX_FILE_BYTES`]; its size in bytes.
    #[error("the file has {0} bytes; the maximum is 1 MiB")]
    TooLarge(usize),
    /// The file is not UTF-8.
    #[error("the file is not UTF-8 text")]
    NotUtf8,
    /// The file is not valid HCL.
    #[error("line {line}, column {column}: {reason}")]
    Syntax {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// The parser's message.
        reason: String,
    },
}

/// The byte offsets of a file's line ends, to find line numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LineIndex(Vec<usize>);

impl LineIndex {
    pub(super) fn of(file: &[u8]) -> Self {
        Self(file.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(offset, _)| offset).collect())
    }

    /// The line number of an offset, from 1.
    pub(super) fn number(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|end| *end < offset)
    }
}

impl BadHcl {
    fn at(text: &str, offset: usize, reason: &str) -> Self {
        let preceding = String::from_utf8_lossy(text.as_bytes().get(..offset).unwrap_or_default());
        let line = preceding.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = preceding.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Self::Syntax { line, column, reason: reason.to_owned() }
    }

    /// The line of the error; 1 for the whole file.
    pub(super) fn line(&self) -> usize {
        match self {
            Self::Syntax { line, .. } => *line,
            Self::TooLarge(_) | Self::NotUtf8 => 1,
        }
    }
}

/// Parses a file. The parser refuses nesting beyond 64 levels. A repeated key of an object, which clients accept, gets
/// a minus as prefix.
///
/// # Errors
/// [`BadHcl`], with the position where known.
pub fn parse(file: &[u8]) -> Result<(Body, Cow<'_, str>), BadHcl> {
    if file.len() > MAX_FILE_BYTES {
        return Err(BadHcl::TooLarge(file.len()));
    }
    let mut text = without_empty_heredocs(text_of(file)?);
    let mut budget = MAX_PARSED_BYTES;
    let (mut repeated_key, mut repeated_keys) = (None, 0);
    loop {
        if let Err(offset) = work::spend(&text, &mut budget) {
            let too_deep = || BadHcl::at(&text, offset, "too many operators and brackets are nested in each other");
            return Err(repeated_key.unwrap_or_else(too_deep));
        }
        let error = match hcl_edit::parser::parse_body(&text) {
            Ok(body) => return Ok((body, text)),
            Err(error) => error,
        };
        let (location, reason) = (error.location(), error.message().to_owned());
        let is_repeated = reason.contains(DUPLICATE_KEY_MESSAGE) && text.is_char_boundary(location.offset());
        let refused = BadHcl::Syntax { line: location.line(), column: location.column(), reason };
        if !is_repeated || repeated_keys == MAX_DUPLICATE_KEYS {
            return Err(refused);
        }
        (repeated_key, repeated_keys) = (Some(refused), repeated_keys + 1);
        // A key may be any expression, so a minus in front makes the key differ.
        text.to_mut().insert(location.offset(), '-');
    }
}

/// The key of a repeated member, without the minus that [`parse`] adds; any other key unchanged.
pub(super) fn without_minus(key: &Expression) -> &Expression {
    match key {
        Expression::UnaryOp(negated) if *negated.operator.value() == UnaryOperator::Neg => without_minus(&negated.expr),
        key => key,
    }
}

/// The nesting limit: above any real file, and far below a stack overflow.
const MAX_HCL1_DEPTH: usize = 32;

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Name(String),
    Text(String),
    /// A number, or true or false, as written.
    Scalar(String),
    /// One of `= { } [ ] ,`.
    Punctuation(char),
}

struct Hcl1Reader<'a> {
    text: &'a str,
    /// The text that is not read yet.
    rest: &'a str,
    /// The byte offset of the last token.
    token_start: usize,
}

type ParseResult<T> = Result<T, &'static str>;

impl<'a> Hcl1Reader<'a> {
    /// Parses members up to `end`, or to the end of the file.
    fn body(&mut self, end: Option<char>, depth: usize) -> ParseResult<Hcl1Node> {
        if depth > MAX_HCL1_DEPTH {
            return Err("the file is nested too deeply here");
        }
        let mut members = Vec::new();
        let mut comma_allowed = false;
        loop {
            let name = match (self.next_token()?, end) {
                (None, None) => return Ok(Hcl1Node::Members(members)),
                (None, Some(_)) => return Err("the file ends inside a block or string"),
                (Some(Token::Punctuation(closing)), Some(end)) if closing == end => {
                    return Ok(Hcl1Node::Members(members));
                }
                (Some(Token::Punctuation(',')), _) if comma_allowed => {
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
    fn after_name(&mut self, depth: usize) -> ParseResult<Hcl1Node> {
        let mut labels = Vec::new();
        loop {
            match self.next_token()? {
                Some(Token::Name(label) | Token::Text(label)) => labels.push(label),
                Some(Token::Punctuation('{')) => {
                    let body = self.body(Some('}'), depth + 1)?;
                    return Ok(Hcl1Node::labelled(&labels, body));
                }
                Some(Token::Punctuation('=')) if labels.is_empty() => {
                    let token = self.next_token()?;
                    return self.value(token, depth);
                }
                Some(_) => return Err("expected = or { after a name"),
                None => return Err("the file ends after a name"),
            }
        }
    }

    fn value(&mut self, first: Option<Token>, depth: usize) -> ParseResult<Hcl1Node> {
        match first {
            Some(Token::Text(text)) => Ok(Hcl1Node::Text(text)),
            Some(Token::Scalar(scalar)) => Ok(Hcl1Node::Scalar(scalar)),
            Some(Token::Punctuation('{')) => self.body(Some('}'), depth + 1),
            Some(Token::Punctuation('[')) if depth < MAX_HCL1_DEPTH => self.list(depth + 1),
            Some(Token::Punctuation('[')) => Err("the file is nested too deeply here"),
            Some(Token::Name(_) | Token::Punctuation(_)) => Err("expected a value: a text in quotes, a number, a list"),
            None => Err("the file ends before a value"),
        }
    }

    fn list(&mut self, depth: usize) -> ParseResult<Hcl1Node> {
        let mut items = Vec::new();
        let mut value_allowed = true;
        loop {
            match self.next_token()? {
                Some(Token::Punctuation(']')) => return Ok(Hcl1Node::List(items)),
                Some(Token::Punctuation(',')) => value_allowed = true,
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
        self.token_start = self.text.len() - self.rest.len();
        let unsigned = self.rest.strip_prefix(['-', '.']).unwrap_or(self.rest);
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        Ok(Some(match first {
            '=' | '{' | '}' | '[' | ']' | ',' => {
                self.rest = self.rest.split_at(1).1;
                Token::Punctuation(first)
            }
            '"' => Token::Text(self.quoted_text()?),
            '<' => Token::Text(self.heredoc()?),
            _ if first.is_alphabetic() || first == '_' => {
                match self.take_chars_while(|next| next.is_alphanumeric() || matches!(next, '_' | '-' | '.')) {
                    scalar @ ("true" | "false") => Token::Scalar(scalar.to_owned()),
                    name => Token::Name(name.to_owned()),
                }
            }
            _ if unsigned.starts_with(|next: char| next.is_ascii_digit()) => {
                let accepted = |next: char| next.is_ascii_alphanumeric() || matches!(next, '.' | '+' | '-');
                Token::Scalar(self.take_chars_while(accepted).to_owned())
            }
            _ => return Err("this character has no meaning here"),
        }))
    }

    fn skip_to_token(&mut self) -> ParseResult<()> {
        loop {
            self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
            if self.rest.starts_with('#') || self.rest.starts_with("//") {
                self.take_chars_while(|next| next != '\n');
            } else if let Some(comment) = self.rest.strip_prefix("/*") {
                self.token_start = self.text.len() - self.rest.len();
                (_, self.rest) = comment.split_once("*/").ok_or("unterminated comment")?;
            } else {
                return Ok(());
            }
        }
    }

    /// Consumes and returns the characters up to the first that is not `accepted`.
    fn take_chars_while(&mut self, accepted: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|next| !accepted(next)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    /// Parses a quoted string. `${…}` is kept verbatim.
    fn quoted_text(&mut self) -> ParseResult<String> {
        let (mut text, mut brace_depth) = (String::new(), 0usize);
        let mut chars = self.rest.chars();
        chars.next();
        while let Some(next) = chars.next() {
            match next {
                '"' if brace_depth == 0 => {
                    self.rest = chars.as_str();
                    return Ok(text);
                }
                '\n' if brace_depth == 0 => break,
                '\\' if brace_depth == 0 => {
                    text.push(escaped_char(&mut chars)?);
                    continue;
                }
                '$' if brace_depth == 0 && chars.as_str().starts_with('{') => {
                    chars.next();
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

    /// Parses `<<NAME`, with the lines up to NAME.
    fn heredoc(&mut self) -> ParseResult<String> {
        const NO_NAME: &str = "expected a name after <<";
        let start = self.rest.strip_prefix("<<").ok_or(NO_NAME)?;
        let unindented_start = start.strip_prefix('-');
        let (name, mut rest) = next_line(unindented_start.unwrap_or(start));
        if name.is_empty() || !name.chars().all(char::is_alphanumeric) {
            return Err(NO_NAME);
        }
        let mut text = String::new();
        while !rest.is_empty() {
            let (line, after) = next_line(rest);
            let line = if unindented_start.is_some() { line.trim_start() } else { line };
            if line == name {
                self.rest = after;
                return Ok(text);
            }
            text.extend([line, "\n"]);
            rest = after;
        }
        Err("unterminated string")
    }
}

/// The first line of a text, without its end, and the rest.
fn next_line(text: &str) -> (&str, &str) {
    let (line, rest) = text.split_once('\n').unwrap_or((text, ""));
    (line.trim_end_matches('\r'), rest)
}

/// Parses the part of an escape after its backslash.
fn escaped_char(chars: &mut Chars<'_>) -> ParseResult<char> {
    const UNKNOWN_ESCAPE: &str = "unknown escape";
    let escape = chars.next().ok_or("unterminated string")?;
    let (first_digit, further_digits, base) = match escape {
        'a' => return Ok('\u{7}'),
        'b' => return Ok('\u{8}'),
        'f' => return Ok('\u{c}'),
        'n' => return Ok('\n'),
        'r' => return Ok('\r'),
        't' => return Ok('\t'),
        'v' => return Ok('\u{b}'),
        '\\' | '"' => return Ok(escape),
        '0'..='7' => (Some(escape), 2, 8),
        'x' => (None, 2, 16),
        'u' => (None, 4, 16),
        'U' => (None, 8, 16),
        _ => return Err(UNKNOWN_ESCAPE),
    };
    let mut digits = first_digit.into_iter().chain(chars.take(further_digits));
    let number = digits.try_fold(0u32, |number, digit| number.checked_mul(base)?.checked_add(digit.to_digit(base)?));
    number.and_then(char::from_u32).ok_or(UNKNOWN_ESCAPE)
}

/// The maximum number of labels of a known block.
const MAX_LABELS: usize = 2;

/// A value of HCL 1 or JSON. A member name may repeat, as blocks do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hcl1Node {
    Text(String),
    /// A number, or true or false, as written.
    Scalar(String),
    List(Vec<Hcl1Node>),
    Members(Vec<(String, Hcl1Node)>),
    /// A null, or a block with too many labels.
    Other,
}

impl Hcl1Node {
    /// Reads a file as the clients do: JSON where its first character is a brace.
    ///
    /// # Errors
    /// [`BadHcl`], with the position.
    pub(super) fn read(file: &[u8]) -> Result<Self, BadHcl> {
        if file.len() > MAX_FILE_BYTES {
            return Err(BadHcl::TooLarge(file.len()));
        }
        if file.trim_ascii_start().first() != Some(&b'{') {
            let text = std::str::from_utf8(file).map_err(|_| BadHcl::NotUtf8)?;
            let mut reader = Hcl1Reader { text, rest: text, token_start: 0 };
            return reader.body(None, 0).map_err(|reason| BadHcl::at(text, reader.token_start, reason));
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
            Self::Scalar(_) | Self::List(_) | Self::Members(_) | Self::Other => None,
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
            Self::Text(_) | Self::Scalar(_) | Self::List(_) | Self::Other => &[],
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
            Value::Bool(_) | Value::Number(_) => Self::Scalar(value.to_string()),
            Value::Null => Self::Other,
        }
    }

    /// Writes the members in HCL 1, each object as a block: clients take no other form of `provider_installation`, and
    /// read a block and an object alike elsewhere. A null is left out.
    pub(super) fn to_hcl(&self) -> String {
        let mut text = String::new();
        self.write_members(0, &mut text);
        text
    }

    fn write_members(&self, depth: usize, text: &mut String) {
        let indent = "  ".repeat(depth);
        for (name, value) in self.members() {
            match value {
                Self::Members(_) => value.write_block(name, depth, text),
                Self::List(items) if items.iter().any(|item| matches!(item, Self::Members(_))) => {
                    items.iter().for_each(|item| item.write_block(name, depth, text));
                }
                value => {
                    if let Some(value) = value.to_value() {
                        text.extend([indent.as_str(), &quoted(name), " = ", &value, "\n"]);
                    }
                }
            }
        }
    }

    fn write_block(&self, name: &str, depth: usize, text: &mut String) {
        let indent = "  ".repeat(depth);
        text.extend([indent.as_str(), &quoted(name), " {\n"]);
        self.write_members(depth + 1, text);
        text.extend([indent.as_str(), "}\n"]);
    }

    /// The value of an argument; `None` for one that HCL 1 cannot express.
    fn to_value(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(quoted(text)),
            Self::Scalar(scalar) => Some(scalar.clone()),
            Self::List(items) => {
                let items: Vec<String> = items.iter().filter_map(Self::to_value).collect();
                Some(format!("[{}]", items.join(", ")))
            }
            Self::Members(_) | Self::Other => None,
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

/// Formats a string in HCL 1. HCL 1 does not treat `${…}` as text, and doubling the `$` is not an escape, so every unusual
/// character is written by its code point.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    let mut remaining = text.chars().peekable();
    while let Some(next) = remaining.next() {
        match next {
            '"' | '\\' => quoted.extend(['\\', next]),
            '$' if remaining.peek() == Some(&'{') => quoted.push_str("\\u0024"),
            ' '..='~' => quoted.push(next),
            // Writing to a String does not fail.
            other => drop(write!(quoted, "\\U{:08x}", u32::from(other))),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn syntax_errors_have_a_position() {
        assert!(parse(b"provider \"a/b/c\" {\n  version = \"1.0.0\"\n}\n").is_ok());
        let error = parse(b"provider \"a/b/c\" {\n  version = = 1\n}\n").unwrap_err();
        assert!(matches!(error, BadHcl::Syntax { line: 2, .. }), "{error}");
        assert_eq!(parse(&[0xff]).unwrap_err(), BadHcl::NotUtf8);
        assert_eq!(parse(&vec![b' '; MAX_FILE_BYTES + 1]).unwrap_err(), BadHcl::TooLarge(MAX_FILE_BYTES + 1));
    }

    /// Terraform 1.11.4 accepts each object; the last value of a repeated key counts.
    #[test]
    fn duplicate_object_keys_are_accepted() {
        for object in
            ["{ a = 1, a = 2, a = 3 }", "{\n \"a\" = 1\n a = 2\n}", "{ (a) = 1, (a) = 2 }", "{ \"é\" = 1, \"é\" = 2 }"]
        {
            let text = format!("x = {object}\n");
            let parsed = parse(text.as_bytes());
            assert!(parsed.is_ok(), "{object}: {parsed:?}");
        }
        let too_many = format!("x = {{ {} }}\n", "a = 1, ".repeat(1000));
        assert!(parse(too_many.as_bytes()).unwrap_err().to_string().contains(DUPLICATE_KEY_MESSAGE));
    }

    /// A stack overflow ends the process.
    #[test]
    fn deep_nesting_is_refused() {
        for opened in ["[", "{a=", "(", "!", "-", "a{", "\"${", "f(", "a?a:", "[for a in "] {
            assert!(parse(format!("a = {}", opened.repeat(20_000)).as_bytes()).is_err(), "{opened}");
            assert!(parse(opened.repeat(20_000).as_bytes()).is_err(), "{opened}");
        }
    }

    /// hcl-edit 0.10 reads the last operand of a chain twice where it has an error: a minute at twenty levels.
    #[test]
    fn what_keeps_the_parser_busy_is_refused() {
        const OPERANDS: &str = "n%u/{\nA = n\ns = ";
        let units = ["1+1+(", "a.b[!", "a-b-+1%{", "\"${a+b+", "x =\n1 +\n1 + {\n", "f(1 + 1 - ["];
        // Texts that end where the parser says, and not where another reader might.
        let after_texts =
            ["", "[<<E\nx\nE, ", "[<<é\n\"\né\n, ", "[\"$$${\", ", "[\"%%%{\", ", "[\"\\\\\", ", "[<<-E\r\n\tE\r\n, "];
        let after_texts = after_texts.map(|before| format!("{before}{}", OPERANDS.repeat(60)));
        for value in units.map(|unit| unit.repeat(60)).into_iter().chain(after_texts) {
            let BadHcl::Syntax { reason, .. } = parse(format!("a = {value}").as_bytes()).unwrap_err() else { panic!() };
            assert!(reason.contains("nested in each other"), "{value:.40}: {reason}");
        }
        for long in ["<", "<<", "<<a", "<<-a\n", "\"${", "/*", "\"$$", "é"] {
            let text = format!("a = {}", long.repeat((MAX_FILE_BYTES - 4) / long.len()));
            let _ = parse(text.as_bytes());
        }
    }

    #[test]
    fn what_people_write_does_not_keep_the_parser_busy() {
        let deep = |unit: &str, inner: &str, end: &str| format!("a = {}{inner}{}\n", unit.repeat(30), end.repeat(30));
        let line = "= b == c && d || !e ? \"${f + g + h}-${i[j[0]]}\" : [for k in l : k if k != m && k != n]";
        for text in [
            deep("{ my-long-name = ", "1", " }"),
            deep("{\n  a = b == c\n  d = e + f + g\n  \"x-y-z\" = ", "1", "\n}"),
            deep("[", "1 + 2 + 3", "]"),
            deep("f(a-b, ", "1", ")"),
            format!("a = <<EOT\n{}\nEOT\n", "{ \"a-b+c*d\": [".repeat(100)),
            format!("a = {}1{}\n", "(1 + 2 + ".repeat(10), ")".repeat(10)),
            format!("a = {}1{}\n", "a.b.c[".repeat(10), "]".repeat(10)),
            (0..2000).map(|number| format!("a{number} {line}\n")).collect(),
        ] {
            let parsed = parse(text.as_bytes());
            assert!(parsed.is_ok(), "{:?}: {:.100}", parsed.err(), text);
        }
    }

    /// Terraform 1.11.4 reads the same values.
    #[test]
    fn a_heredoc_may_be_empty() {
        let file = "a = <<E\nE\nb = <<E\nE\nc = \"$$${x\"\nd = [<<-E\r\n  E\r\n  , 2]\ne = 1\n";
        let (body, text) = parse(file.as_bytes()).unwrap();
        assert_eq!(text.len(), file.len());
        let values: Vec<String> =
            body.attributes().map(|attribute| attribute.value.to_string().trim().to_owned()).collect();
        let [a, b, c, d, e] = &values[..] else { panic!("{values:?}") };
        assert_eq!([a, b, c, e], ["\"\"", "\"\"", "\"$$${x\"", "1"]);
        assert!(d.starts_with("[\"\"") && d.ends_with(", 2]"), "{d}");
        let BadHcl::Syntax { line, .. } = parse(b"a = <<E\nE\nb = = 1\n").unwrap_err() else { panic!() };
        assert_eq!(line, 3);
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in "([a-z]{1,3}|[\"{}\\[\\]()=\n ?:!<$%.,-]){0,60}") {
            let _ = parse(text.as_bytes());
        }
    }
}
