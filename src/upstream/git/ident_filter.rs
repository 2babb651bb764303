//! Implements the attribute `ident`: expands `$Id$` to `$Id: BLOB_ID $`, as git's checkout does. Git has two algorithms
//! that differ in odd cases. Most files are streamed, without ever going back. Files that git reads whole for another
//! reason (`text=auto`, another encoding) are searched.

use gix_hash::ObjectId;

/// The algorithm of the expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdentMode {
    /// The file is streamed, byte by byte.
    Streaming,
    /// The whole file is searched.
    Search,
}

/// Expands the keywords in `bytes`, the blob `id`. `None` if there are none.
pub(super) fn expand(bytes: &[u8], id: &ObjectId, mode: IdentMode) -> Option<Vec<u8>> {
    match mode {
        IdentMode::Search => expand_by_search(bytes, id),
        IdentMode::Streaming => expand_by_streaming(bytes, id),
    }
}

const KEYWORD_START: &[u8] = b"$Id";

/// Copies bytes up to the next keyword. A byte that rules out a keyword is copied with it, even if it is the dollar
/// sign of the next one.
fn expand_by_streaming(bytes: &[u8], id: &ObjectId) -> Option<Vec<u8>> {
    let mut written = Vec::new();
    let mut rest = bytes;
    let mut has_any = false;
    while !rest.is_empty() {
        let matching = rest.iter().zip(KEYWORD_START).take_while(|(byte, expected)| byte == expected).count();
        let after_start = rest.strip_prefix(KEYWORD_START);
        let (length, is_keyword) = match after_start {
            Some([b'$', ..]) => (KEYWORD_START.len() + 1, true),
            Some([b':', value @ ..]) => match value.iter().position(|byte| matches!(byte, b'$' | b'\n')) {
                Some(end) => (KEYWORD_START.len() + 1 + end + 1, value[end] == b'$' && !is_other_system(&value[..end])),
                None => (rest.len(), false),
            },
            // Git treats a NUL at this point as one more byte of the start of the keyword.
            Some([0, _, ..]) => (KEYWORD_START.len() + 2, false),
            _ => ((matching + 1).min(rest.len()), false),
        };
        if is_keyword {
            written.extend_from_slice(format!("$Id: {id} $").as_bytes());
            has_any = true;
        } else {
            written.extend_from_slice(&rest[..length]);
        }
        rest = &rest[length..];
    }
    has_any.then_some(written)
}

/// Returns true for a value that contains blanks, which another version control system has written.
fn is_other_system(value: &[u8]) -> bool {
    let Some(value) = value.strip_prefix(b" ") else { return false };
    let checked = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    (0..checked).any(|index| matches!(value[index], b' ' | b'\t' | b'\r') && index + 1 < value.len())
}

fn expand_by_search(bytes: &[u8], id: &ObjectId) -> Option<Vec<u8>> {
    let mut written = Vec::new();
    let mut rest = bytes;
    let mut has_any = false;
    while let Some(dollar) = rest.iter().position(|byte| *byte == b'$') {
        let (through_dollar, after_dollar) = rest.split_at(dollar + 1);
        written.extend_from_slice(through_dollar);
        rest = after_dollar;
        let Some(length) = keyword_length(rest) else { continue };
        rest = &rest[length..];
        written.extend_from_slice(format!("Id: {id} $").as_bytes());
        has_any = true;
    }
    written.extend_from_slice(rest);
    has_any.then_some(written)
}

/// Length of the keyword after a dollar sign, if there is a keyword: `Id$`, or an expanded keyword that does not span
/// lines or look like the keyword of another system.
fn keyword_length(after_dollar: &[u8]) -> Option<usize> {
    let value = match after_dollar.strip_prefix(b"Id")? {
        [b'$', ..] => return Some(3),
        [b':', value @ ..] => value,
        _ => return None,
    };
    let end = value.iter().position(|byte| *byte == b'$')?;
    let value = &value[..end];
    if value.contains(&b'\n') {
        return None;
    }
    // A value may begin with one space and end with one.
    let inner = value.get(1..).unwrap_or_default();
    let space = inner.iter().position(|byte| *byte == b' ');
    if space.is_some_and(|index| index + 1 < inner.len()) {
        return None;
    }
    Some(b"Id:".len() + end + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A few cases. `tests::checkouts` compares many more with git 2.47.
    #[test]
    fn only_keywords_of_git_are_expanded() {
        let id = ObjectId::from_hex(&[b'a'; 40]).unwrap();
        let expanded = format!("$Id: {id} $");
        for (text, by_search, by_streaming) in [
            ("$Id$", Some(expanded.clone()), Some(expanded.clone())),
            ("x $Id: old $ y", Some(format!("x {expanded} y")), Some(format!("x {expanded} y"))),
            ("$Id:$", Some(expanded.clone()), Some(expanded.clone())),
            ("$Id: a b $", None, None),
            ("$Id:a b $", None, Some(expanded.clone())),
            ("$Id: two\nlines $", None, None),
            ("$Id", None, None),
            ("$Idx$", None, None),
            ("$$Id$", Some(format!("${expanded}")), None),
            ("$Id: a b $Id$", Some(format!("$Id: a b {expanded}")), None),
            ("nothing", None, None),
        ] {
            let expand_text = |mode| expand(text.as_bytes(), &id, mode).map(|bytes| String::from_utf8(bytes).unwrap());
            assert_eq!(expand_text(IdentMode::Search), by_search, "{text}");
            assert_eq!(expand_text(IdentMode::Streaming), by_streaming, "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_but_keywords_is_changed(bytes in "[$Id: x\n\0]{0,30}") {
            let id = ObjectId::from_hex(&[b'a'; 40]).unwrap();
            for mode in [IdentMode::Search, IdentMode::Streaming] {
                if let Some(expanded) = expand(bytes.as_bytes(), &id, mode) {
                    let expanded = String::from_utf8(expanded).unwrap();
                    let keyword = format!("$Id: {id} $");
                    prop_assert!(expanded.contains(&keyword));
                    // Expanding the result again changes nothing.
                    let again = expand(expanded.as_bytes(), &id, mode).unwrap();
                    prop_assert_eq!(again, expanded.into_bytes());
                }
            }
        }
    }
}
