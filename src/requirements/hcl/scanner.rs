//! Splits HCL into comments, texts and code, as the parser does (hcl-edit 0.10), but for what follows an error.

use hcl_edit::Ident;

/// A piece of an HCL file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lexeme {
    /// A comment, without its line end.
    Comment,
    /// A part of a text, or a quote.
    Text,
    /// `<<NAME`, without the line end.
    HeredocStart,
    /// The line end before the name that ends a heredoc, and that name.
    HeredocEnd,
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
    /// In a text that a line with this name ends.
    Heredoc { name: Vec<u8> },
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
                let name = name_at(after.strip_prefix(b"-").unwrap_or(after));
                let length = rest.len() - after.len() + usize::from(after.starts_with(b"-")) + name.len();
                if name.is_empty() || !matches!(&rest[length..], [b'\n', ..] | [b'\r', b'\n', ..]) {
                    return (Lexeme::Code(b'<'), 1);
                }
                self.enter(Syntax::Heredoc { name: name.to_vec() });
                (Lexeme::HeredocStart, length)
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
            (Syntax::Heredoc { name }, [b'\n', line @ ..]) => {
                let blanks = line.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
                let Some(after) = line[blanks..].strip_prefix(name.as_slice()).filter(|after| !continues_name(after))
                else {
                    return (Lexeme::Text, 1);
                };
                self.leave();
                (Lexeme::HeredocEnd, rest.len() - after.len())
            }
            // A backslash before a quote, and the doubled sign that starts no template.
            (Syntax::Quoted, [b'\\', _, ..]) => (Lexeme::Text, 2),
            (_, [b'$', b'$', b'{', ..] | [b'%', b'%', b'{', ..]) => (Lexeme::Text, 3),
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

/// The name that the bytes begin with; empty without one.
fn name_at(bytes: &[u8]) -> &[u8] {
    let mut end = 0;
    while let Some(next) = first_char(&bytes[end..]) {
        let is_part = if end == 0 { Ident::try_new(next.to_string()).is_ok() } else { is_in_name(next) };
        if !is_part {
            break;
        }
        end += next.len_utf8();
    }
    &bytes[..end]
}

fn continues_name(bytes: &[u8]) -> bool {
    first_char(bytes).is_some_and(is_in_name)
}

fn is_in_name(next: char) -> bool {
    next.is_ascii_alphanumeric() || (next != '\n' && Ident::try_new(format!("a{next}")).is_ok())
}

fn first_char(bytes: &[u8]) -> Option<char> {
    bytes.get(..bytes.len().min(4))?.utf8_chunks().next()?.valid().chars().next()
}

/// The length of the comment that the bytes begin with, without its line end.
fn comment_length(bytes: &[u8]) -> usize {
    match bytes.strip_prefix(b"/*") {
        Some(after) => after.windows(2).position(|pair| pair == b"*/").map_or(bytes.len(), |end| 2 + end + 2),
        None => bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len()),
    }
}
