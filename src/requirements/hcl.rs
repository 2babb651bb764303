//! Parses users' HCL within limits. The callers know each file's meaning.

use std::borrow::Cow;

use hcl_edit::expr::{Expression, UnaryOperator};
use hcl_edit::structure::Body;

/// The largest accepted file, in bytes. Files that clients write have a few kilobytes.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// The parser's message for a repeated key in an object.
const DUPLICATE_KEY_MESSAGE: &str = "redefined object key";
/// The maximum number of repeated keys in a file: each costs another pass of the parser.
const MAX_DUPLICATE_KEYS: usize = 256;
/// The maximum number of bytes parsed in all passes.
const MAX_PARSED_BYTES: usize = 8 << 20;

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
pub fn parse(file: &[u8]) -> Result<Body, BadHcl> {
    if file.len() > MAX_FILE_BYTES {
        return Err(BadHcl::TooLarge(file.len()));
    }
    let mut text = Cow::Borrowed(std::str::from_utf8(file).map_err(|_| BadHcl::NotUtf8)?);
    let mut remaining_passes = (MAX_PARSED_BYTES / file.len().max(1)).min(MAX_DUPLICATE_KEYS);
    loop {
        let error = match hcl_edit::parser::parse_body(&text) {
            Ok(body) => return Ok(body),
            Err(error) => error,
        };
        let (location, reason) = (error.location(), error.message());
        if remaining_passes == 0 || !reason.contains(DUPLICATE_KEY_MESSAGE) || !text.is_char_boundary(location.offset())
        {
            return Err(BadHcl::Syntax { line: location.line(), column: location.column(), reason: reason.to_owned() });
        }
        // A key may be any expression, so a minus in front makes the key differ.
        text.to_mut().insert(location.offset(), '-');
        remaining_passes -= 1;
    }
}

/// The key of a repeated member, without the mark that [`parse`] adds; any other key unchanged.
pub(super) fn strip_duplicate_mark(key: &Expression) -> &Expression {
    match key {
        Expression::UnaryOp(marked) if *marked.operator.value() == UnaryOperator::Neg => {
            strip_duplicate_mark(&marked.expr)
        }
        key => key,
    }
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
            let parsed = parse(format!("x = {object}\n").as_bytes());
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

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in "([a-z]{1,3}|[\"{}\\[\\]()=\n ?:!<$%.,-]){0,60}") {
            let _ = parse(text.as_bytes());
        }
    }
}
