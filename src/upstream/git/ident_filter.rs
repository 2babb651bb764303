//! The attribute `ident`: expands `$Id$` to `$Id: BLOB_ID $`, as git's checkout does. Git has two algorithms that
//! differ in odd cases. Most files are streamed, without ever going back; files that must be read whole first
//! (`text=auto`, another encoding) are searched.

use gix_hash::ObjectId;

/// The algorithm of the expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdentMode {
    /// Streamed, byte by byte.
    PieceByPiece,
    /// Searched as a whole.
    Whole,
}

/// Expands the keywords in `bytes`, the blob `id`. `None` if there are none.
pub(super) fn expanded(bytes: &[u8], id: &ObjectId, mode: IdentMode) -> Option<Vec<u8>> {
    match mode {
        IdentMode::Whole => expanded_by_search(bytes, id),
        IdentMode::PieceByPiece => expanded_by_streaming(bytes, id),
    }
}

const BEGINNING: &[u8] = b"$Id";

/// Copies bytes up to the next keyword. A byte that rules out a keyword is copied with it, even if it is the dollar
/// sign of the next one.
fn expanded_by_streaming(bytes: &[u8], id: &ObjectId) -> Option<Vec<u8>> {
    let mut written = Vec::new();
    let mut rest = bytes;
    let mut has_any = false;
    while !rest.is_empty() {
        let same = rest.iter().zip(BEGINNING).take_while(|(one, other)| one == other).count();
        let beginning = rest.strip_prefix(BEGINNING);
        let (passed, is_keyword) = match beginning {
            Some([b'$', ..]) => (BEGINNING.len() + 1, true),
            Some([b':', value @ ..]) => match value.iter().position(|byte| matches!(byte, b'$' | b'\n')) {
                Some(end) => (BEGINNING.len() + 1 + end + 1, value[end] == b'$' && !is_foreign(&value[..end])),
                None => (rest.len(), false),
            },
            // Git takes a NUL here for one more byte of the beginning.
            Some([0, _, ..]) => (BEGINNING.len() + 2, false),
            _ => ((same + 1).min(rest.len()), false),
        };
        if is_keyword {
            written.extend_from_slice(format!("$Id: {id} $").as_bytes());
            has_any = true;
        } else {
            written.extend_from_slice(&rest[..passed]);
        }
        rest = &rest[passed..];
    }
    has_any.then_some(written)
}

/// Returns true for the value of another version control system, which contains blanks.
fn is_foreign(value: &[u8]) -> bool {
    let Some(value) = value.strip_prefix(b" ") else { return false };
    let looked_at = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    (0..looked_at).any(|index| matches!(value[index], b' ' | b'\t' | b'\r') && index + 1 < value.len())
}

fn expanded_by_search(bytes: &[u8], id: &ObjectId) -> Option<Vec<u8>> {
    let mut written = Vec::new();
    let mut rest = bytes;
    let mut has_any = false;
    while let Some(dollar) = rest.iter().position(|byte| *byte == b'$') {
        let (before, after) = rest.split_at(dollar + 1);
        written.extend_from_slice(before);
        rest = after;
        let Some(keyword) = keyword(rest) else { continue };
        rest = &rest[keyword..];
        written.extend_from_slice(format!("Id: {id} $").as_bytes());
        has_any = true;
    }
    written.extend_from_slice(rest);
    has_any.then_some(written)
}

/// Length of the keyword after a dollar sign, if there is one: `Id$`, or an expanded one that does not span lines or
/// look like another system's.
fn keyword(after: &[u8]) -> Option<usize> {
    let value = match after.strip_prefix(b"Id")? {
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

    /// The rule in short. `tests` compares the results with git 2.47.
    #[test]
    fn only_keywords_of_git_are_expanded() {
        let id = ObjectId::from_hex(&[b'a'; 40]).unwrap();
        let now = format!("$Id: {id} $");
        for (before, whole, passing) in [
            ("$Id$", Some(now.clone()), Some(now.clone())),
            ("x $Id: old $ y", Some(format!("x {now} y")), Some(format!("x {now} y"))),
            ("$Id:$", Some(now.clone()), Some(now.clone())),
            ("$Id: a b $", None, None),
            ("$Id:a b $", None, Some(now.clone())),
            ("$Id: two\nlines $", None, None),
            ("$Id", None, None),
            ("$Idx$", None, None),
            ("$$Id$", Some(format!("${now}")), None),
            ("$Id: a b $Id$", Some(format!("$Id: a b {now}")), None),
            ("nothing", None, None),
        ] {
            let expand = |mode| expanded(before.as_bytes(), &id, mode).map(|bytes| String::from_utf8(bytes).unwrap());
            assert_eq!(expand(IdentMode::Whole), whole, "{before}");
            assert_eq!(expand(IdentMode::PieceByPiece), passing, "{before}");
        }
    }

    proptest! {
        #[test]
        fn nothing_but_keywords_is_changed(bytes in "[$Id: x\n\0]{0,30}") {
            let id = ObjectId::from_hex(&[b'a'; 40]).unwrap();
            for mode in [IdentMode::Whole, IdentMode::PieceByPiece] {
                if let Some(now) = expanded(bytes.as_bytes(), &id, mode) {
                    let now = String::from_utf8(now).unwrap();
                    let keyword = format!("$Id: {id} $");
                    prop_assert!(now.contains(&keyword));
                    // Expanding the result again changes nothing.
                    let again = expanded(now.as_bytes(), &id, mode).unwrap();
                    prop_assert_eq!(again, now.into_bytes());
                }
            }
        }
    }
}
