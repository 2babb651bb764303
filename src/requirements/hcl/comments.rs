//! Reads the bytes of HCL files as the clients' scanner does: a byte order mark is skipped, comments may have any bytes, and a
//! heredoc may be empty.

use std::borrow::Cow;

use super::BadHcl;
use super::scanner::{Lexeme, Scanner};

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The text of an HCL file. What clients skip and the parser does not becomes spaces, so that offsets stay: a byte order mark,
/// and in comments bytes that are not UTF-8 and carriage returns (observed with Terraform 1.11.4).
///
/// # Errors
/// [`BadHcl::NotUtf8`]: there are such bytes outside of comments.
pub(in crate::requirements) fn text_of(file: &[u8]) -> Result<Cow<'_, str>, BadHcl> {
    let has_mark = file.starts_with(BYTE_ORDER_MARK);
    let has_lone_return = || file.windows(2).any(|pair| pair[0] == b'\r' && pair[1] != b'\n');
    if !has_mark
        && !has_lone_return()
        && let Ok(text) = std::str::from_utf8(file)
    {
        return Ok(Cow::Borrowed(text));
    }
    let mut bytes = file.to_vec();
    if has_mark {
        bytes[..BYTE_ORDER_MARK.len()].fill(b' ');
    }
    blank_comments(&mut bytes);
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| BadHcl::NotUtf8)
}

/// Blanks the bytes in comments that the parser does not take. Comments in templates count, too; what looks like one in a text
/// does not.
fn blank_comments(bytes: &mut [u8]) {
    let mut scanner = Scanner::default();
    let mut at = 0;
    while at < bytes.len() {
        let (lexeme, length) = scanner.next(&bytes[at..]);
        if lexeme == Lexeme::Comment {
            blank(&mut bytes[at..at + length]);
        }
        at += length;
    }
}

/// The text with `""` for each heredoc without a line; offsets and lines stay. The parser looks for the end of such a heredoc
/// further on first, so that it may find that of another one, and reads everything in between twice.
pub(super) fn without_empty_heredocs(text: Cow<'_, str>) -> Cow<'_, str> {
    let mut empty = Vec::new();
    let mut scanner = Scanner::default();
    let (mut at, mut start) = (0, None);
    while at < text.len() {
        let (lexeme, length) = scanner.next(&text.as_bytes()[at..]);
        match (lexeme, start) {
            (Lexeme::HeredocStart, _) => start = Some(at),
            (Lexeme::Text, Some(_)) if text.as_bytes()[at] == b'\r' => {}
            (Lexeme::HeredocEnd, Some(start)) => empty.push(start..at + length),
            _ => start = None,
        }
        at += length;
    }
    if empty.is_empty() {
        return text;
    }
    let mut text = text.into_owned();
    for range in empty {
        let blanked = text[range.clone()].bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { byte } else { b' ' });
        let blanked: String = blanked.map(char::from).collect();
        text.replace_range(range.clone(), &blanked);
        text.replace_range(range.start..range.start + 2, "\"\"");
    }
    Cow::Owned(text)
}

/// Replaces carriage returns and what is not UTF-8 by spaces.
fn blank(comment: &mut [u8]) {
    let mut blanked = Vec::with_capacity(comment.len());
    for chunk in comment.utf8_chunks() {
        blanked.extend(chunk.valid().bytes().map(|byte| if byte == b'\r' { b' ' } else { byte }));
        blanked.extend(chunk.invalid().iter().map(|_| b' '));
    }
    comment.copy_from_slice(&blanked);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::requirements::hcl::parse;

    /// Observed with Terraform 1.11.4.
    #[test]
    fn clients_skip_a_mark_and_any_bytes_in_comments() {
        for file in [
            &b"\xef\xbb\xbflocals { b = 1 }\n"[..],
            b"# caf\xe9 \r lone\nlocals {\n  a = 1 # x\xff\n}\n",
            b"/* \xfe \r\n \r */\nlocals { a = \"x\" } // \r \xe9\n",
            b"locals { b = \"${1 /* \xe9 */}\" }\n",
            b"locals { b = \"# ${\"}\"} \\\" # \" } # \xe9\n",
            b"locals {\n  b = <<-EOT\n  # ${upper(\"}\")}\n  EOT\n} // \xe9\n",
            b"# only a comment \xe9",
        ] {
            let text = text_of(file).unwrap_or_else(|bad| panic!("{bad}: {}", String::from_utf8_lossy(file)));
            assert_eq!(text.len(), file.len());
            parse(file).unwrap_or_else(|bad| panic!("{bad}: {text}"));
        }
    }

    /// Observed with Terraform 1.11.4.
    #[test]
    fn clients_refuse_such_bytes_elsewhere() {
        for file in [
            &b"locals { b = \"\xe9\" }\n"[..],
            b"locals { b = 1 \r }\n",
            b"locals {\n  b = <<EOT\n# \xe9\nEOT\n}\n",
            b"locals { b = \"# \xe9\" }\n",
            b"locals { b = \"$${ # \xe9\" }\n",
            b"locals { \xe9 = 1 }\n",
        ] {
            assert!(parse(file).is_err(), "{}", String::from_utf8_lossy(file));
        }
    }

    proptest! {
        #[test]
        fn a_comment_of_any_bytes_changes_nothing(
            comment in prop::collection::vec(any::<u8>().prop_filter("in one line", |byte| *byte != b'\n'), 0..40),
        ) {
            let with_comment = [&b"locals {\n  a = \"x\" # "[..], &comment, b"\n  b = 2\n}\n"].concat();
            let (body, _) = parse(&with_comment).unwrap();
            let locals = body.blocks().next().unwrap();
            prop_assert_eq!(locals.body.attributes().map(|attribute| attribute.key.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        }

        #[test]
        fn any_bytes_are_read_or_refused(file in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(&b"#/*\"${}<-E\n\r\\"[..])], 0..80)) {
            if let Ok(text) = text_of(&file) {
                prop_assert_eq!(text.len(), file.len());
            }
        }
    }
}
