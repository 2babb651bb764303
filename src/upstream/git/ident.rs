//! The attribute `ident`: `$Id$` becomes `$Id: ` and the name of the file's own bytes, as git's checkout writes it.

use gix_hash::ObjectId;

/// Writes it wherever `bytes`, whose name is `id`, ask for it; `None` where they do not.
pub(super) fn expanded(bytes: &[u8], id: &ObjectId) -> Option<Vec<u8>> {
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

/// How long the keyword is that begins behind a dollar sign, if one does: `Id$`, or one that was written before, unless it
/// spans lines or has the look of another system's.
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
    // One space may be at the beginning, and one at the end.
    let inner = value.get(1..).unwrap_or_default();
    let space = inner.iter().position(|byte| *byte == b' ');
    if space.is_some_and(|at| at + 1 < inner.len()) {
        return None;
    }
    Some(b"Id:".len() + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What git 2.47 makes of the same bytes is compared in `tests`; this is the rule in short.
    #[test]
    fn only_what_git_takes_for_a_keyword_is_written_anew() {
        let id = ObjectId::from_hex(&[b'a'; 40]).unwrap();
        let now = format!("$Id: {id} $");
        for (before, after) in [
            ("$Id$", Some(now.clone())),
            ("x $Id: old $ y", Some(format!("x {now} y"))),
            ("$Id:$", Some(now.clone())),
            ("$Id: a b $", None),
            ("$Id: two\nlines $", None),
            ("$Id", None),
            ("$Idx$", None),
            ("$$Id$", Some(format!("${now}"))),
            ("nothing", None),
        ] {
            assert_eq!(expanded(before.as_bytes(), &id), after.map(String::into_bytes), "{before}");
        }
    }
}
