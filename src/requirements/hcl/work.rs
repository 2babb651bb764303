//! Bounds the work of the parser. It goes back where the last operand of `a + b + {…}` has a syntax error, and where the last
//! index of `a.b[…]` has one, and reads the operand once more. Nested, each level doubles the work (hcl-edit 0.10): a file
//! of 500 bytes would keep it busy for years.

use super::scanner::{Lexeme, Scanner};

/// The code between two brackets.
#[derive(Debug, Clone, Copy)]
struct Level {
    /// The number of times that the parser may read it.
    times: u64,
    /// The operators of the expression so far, or more. A `=` ends what it assigns to.
    operators: u32,
    /// True where a line end ends an expression.
    has_lines: bool,
}

/// Subtracts from `budget` the bytes that the parser reads at most, each as often as it does.
///
/// # Errors
/// The offset at which the budget is spent.
pub(super) fn spend(text: &str, budget: &mut u64) -> Result<(), usize> {
    let bytes = text.as_bytes();
    let mut scanner = Scanner::default();
    let mut level = Level { times: 1, operators: 0, has_lines: true };
    let mut outer = Vec::new();
    let mut last = Last { byte: b'\n', part: Part::Blank, ends_line: false, assigns: false };
    let mut at = 0;
    while at < bytes.len() {
        let (lexeme, length) = scanner.next(&bytes[at..]);
        *budget = budget.checked_sub(level.times.saturating_mul(length as u64)).ok_or(at)?;
        at += length;
        let byte = match lexeme {
            Lexeme::Code(b'\n') => {
                last = Last { ends_line: true, part: Part::Blank, ..last };
                continue;
            }
            Lexeme::Code(byte) if byte.is_ascii_whitespace() => {
                last.part = Part::Blank;
                continue;
            }
            Lexeme::Comment => {
                last.part = Part::Blank;
                continue;
            }
            Lexeme::Code(byte) => byte,
            Lexeme::Text | Lexeme::HeredocStart | Lexeme::HeredocEnd => b'"',
            Lexeme::TemplateStart => b'{',
        };
        let part = last.next_part(byte);
        let continues_operator = part == Part::Operator && last.part == Part::Operator;
        let ends_expression = last.ends_line && level.has_lines && !is_operator(last.byte) && part != Part::Operator;
        if ends_expression || (last.assigns && !continues_operator) {
            level.operators = 0;
        }
        match byte {
            // `==` is one operator, and `a-b` a name.
            _ if continues_operator => {}
            _ if part == Part::Operator => level.operators += 1,
            b',' | b':' | b'?' => level.operators = 0,
            b'{' | b'(' | b'[' => {
                let is_index = byte == b'[' && ends_operand(last.byte);
                let doublings = u32::from(level.operators >= 2) + u32::from(is_index);
                let inner = Level {
                    times: level.times.saturating_mul(1 << doublings),
                    operators: 0,
                    has_lines: lexeme == Lexeme::Code(b'{'),
                };
                outer.push(std::mem::replace(&mut level, inner));
            }
            b'}' | b')' | b']' => level = outer.pop().unwrap_or(level),
            _ => {}
        }
        last = Last { byte, part, ends_line: false, assigns: byte == b'=' && !continues_operator };
    }
    Ok(())
}

/// The last byte of code that is not blank, and what stands before the next one.
#[derive(Debug, Clone, Copy)]
struct Last {
    byte: u8,
    part: Part,
    ends_line: bool,
    /// True for a `=` that is no part of a longer operator.
    assigns: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Name,
    Number,
    Operator,
    Other,
    /// Nothing: the next byte begins a part.
    Blank,
}

impl Last {
    /// The part that a byte belongs to. Names may have digits and hyphens.
    fn next_part(&self, byte: u8) -> Part {
        match (byte, self.part) {
            (b'-', Part::Name) => Part::Name,
            (b'0'..=b'9', part) if part != Part::Name => Part::Number,
            (byte, Part::Number) if byte.is_ascii_alphanumeric() => Part::Number,
            (byte, _) if byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii() => Part::Name,
            (byte, _) if is_operator(byte) => Part::Operator,
            _ => Part::Other,
        }
    }
}

fn is_operator(byte: u8) -> bool {
    b"+-*/%&|<>=!".contains(&byte)
}

fn ends_operand(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || !byte.is_ascii() || b"_-)]}\"*".contains(&byte)
}
