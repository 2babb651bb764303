//! HCL as users write it, within bounds: what it says is for those who know the file.

use hcl_edit::structure::Body;

/// The largest file that is read, in bytes. What clients write is a few kilobytes.
pub const LARGEST: usize = 1 << 20;

/// Why a text is no HCL that is read here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadHcl {
    /// It is larger than [`LARGEST`].
    #[error("it has {0} bytes; at most 1 MiB is read")]
    TooLarge(usize),
    /// It is no UTF-8.
    #[error("it is no UTF-8 text")]
    NoText,
    /// It does not parse.
    #[error("line {line}, column {column}: {why}")]
    Syntax {
        /// Where, counted from 1.
        line: usize,
        /// Where in the line, counted from 1.
        column: usize,
        /// What the parser says.
        why: String,
    },
}

/// Where the lines of a file end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lines(Vec<usize>);

impl Lines {
    pub(super) fn of(file: &[u8]) -> Self {
        Self(file.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect())
    }

    /// The number of the line that a byte is in, from 1 on.
    pub(super) fn number(&self, at: usize) -> usize {
        1 + self.0.partition_point(|end| *end < at)
    }
}

impl BadHcl {
    /// The line it is about; the first where it is about all of them.
    pub(super) fn line(&self) -> usize {
        match self {
            Self::Syntax { line, .. } => *line,
            Self::TooLarge(_) | Self::NoText => 1,
        }
    }
}

/// Parses a file. The parser refuses what is nested deeper than 64 levels.
///
/// # Errors
/// [`BadHcl`], with the place where it is known.
pub fn parse(file: &[u8]) -> Result<Body, BadHcl> {
    if file.len() > LARGEST {
        return Err(BadHcl::TooLarge(file.len()));
    }
    let text = std::str::from_utf8(file).map_err(|_| BadHcl::NoText)?;
    hcl_edit::parser::parse_body(text).map_err(|error| {
        let place = error.location();
        BadHcl::Syntax { line: place.line(), column: place.column(), why: error.message().to_owned() }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_does_not_parse_is_said_with_its_place() {
        assert!(parse(b"provider \"a/b/c\" {\n  version = \"1.0.0\"\n}\n").is_ok());
        let error = parse(b"provider \"a/b/c\" {\n  version = = 1\n}\n").unwrap_err();
        assert!(matches!(error, BadHcl::Syntax { line: 2, .. }), "{error}");
        assert_eq!(parse(&[0xff]).unwrap_err(), BadHcl::NoText);
        assert_eq!(parse(&vec![b' '; LARGEST + 1]).unwrap_err(), BadHcl::TooLarge(LARGEST + 1));
    }

    /// A stack that overflows ends the process.
    #[test]
    fn what_is_nested_without_end_is_refused() {
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
