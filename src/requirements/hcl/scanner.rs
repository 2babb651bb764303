//! Splits HCL into comments, texts and code, without a parser: whatever follows an error is split, too.

/// A piece of an HCL file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lexeme {
    /// A comment, without its line end.
    Comment,
    /// A part of a text, a quote or the mark of a heredoc included.
    Text,
    /// `${` or `%{` in a text. The brace that closes none ends the template.
    TemplateStart,
    /// A byte of anything else, in templates too.
    Code(u8),
}

/// The syntax that the scanner is in.
enum Syntax {
    /// Outside of texts. In a template the brace that closes none ends it.
    Code { open_braces: usize },
    /// Between quotes.
    Quoted,
    /// In a text that this line ends.
    Heredoc { end: Vec<u8> },
}

impl Default for Syntax {
    fn default() -> Self {
        Self::Code { open_braces: 0 }
    }
}

#[derive(Default)]
pub(super) struct Scanner {
    syntax: Syntax,
    outer: Vec<Syntax>,
}

impl Scanner {
    /// The lexeme that `rest` begins with, and its length in bytes: at least 1, but for no bytes.
    pub(super) fn next(&mut self, rest: &[u8]) -> (Lexeme, usize) {
        match (&mut self.syntax, rest) {
            (_, []) => (Lexeme::Text, 0),
            (Syntax::Code { .. }, [b'#', ..] | [b'/', b'/', ..] | [b'/', b'*', ..]) => {
                (Lexeme::Comment, comment_length(rest))
            }
            (Syntax::Code { .. }, [b'"', ..]) => {
                self.enter(Syntax::Quoted);
                (Lexeme::Text, 1)
            }
            (Syntax::Code { .. }, [b'<', b'<', after @ ..]) => {
                let line = first_line(after);
                let end = line.strip_prefix(b"-").unwrap_or(line).trim_ascii();
                if !end.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_') {
                    return (Lexeme::Code(b'<'), 1);
                }
                self.enter(Syntax::Heredoc { end: end.to_vec() });
                (Lexeme::Text, 2 + line.len())
            }
            (Syntax::Code { open_braces }, [byte, ..]) => {
                match (byte, open_braces.checked_sub(1)) {
                    (b'{', _) => *open_braces += 1,
                    (b'}', Some(fewer)) => *open_braces = fewer,
                    (b'}', None) => self.leave(),
                    _ => {}
                }
                (Lexeme::Code(*byte), 1)
            }
            (Syntax::Heredoc { end }, [b'\n', after @ ..]) => {
                let line = first_line(after);
                if line.trim_ascii() != end.as_slice() {
                    return (Lexeme::Text, 1);
                }
                self.leave();
                (Lexeme::Text, 1 + line.len())
            }
            // A backslash before a quote, and the doubled sign that starts no template.
            (Syntax::Quoted, [b'\\', _, ..]) | (_, [b'$', b'$', ..] | [b'%', b'%', ..]) => (Lexeme::Text, 2),
            (Syntax::Quoted, [b'"', ..]) => {
                self.leave();
                (Lexeme::Text, 1)
            }
            (_, [b'$' | b'%', b'{', ..]) => {
                self.enter(Syntax::default());
                (Lexeme::TemplateStart, 2)
            }
            (Syntax::Quoted | Syntax::Heredoc { .. }, _) => (Lexeme::Text, 1),
        }
    }

    fn enter(&mut self, inner: Syntax) {
        self.outer.push(std::mem::replace(&mut self.syntax, inner));
    }

    fn leave(&mut self) {
        self.syntax = self.outer.pop().unwrap_or_default();
    }
}

fn first_line(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == b'\n').next().unwrap_or_default()
}

/// The length of the comment that the bytes begin with, without its line end.
fn comment_length(bytes: &[u8]) -> usize {
    match bytes.strip_prefix(b"/*") {
        Some(after) => after.windows(2).position(|pair| pair == b"*/").map_or(bytes.len(), |end| 2 + end + 2),
        None => bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len()),
    }
}
