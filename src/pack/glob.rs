//! Patterns in a `//subdir`, with the syntax of Go's `filepath.Glob`. They match the top folder that forges add to
//! their archives, which has an unpredictable name.

use super::{Tree, TreeEntry, TreeError, TreePath};

/// Finds the one folder of a tree that matches a pattern like `*`.
///
/// # Errors
/// [`TreeError::Refused`] where no folder or several match.
pub fn find_folder(tree: &Tree, pattern: &str) -> Result<TreePath, TreeError> {
    let patterns: Vec<&[u8]> = pattern.split('/').map(str::as_bytes).collect();
    let is_meant = |path: &TreePath| {
        path.names().count() == patterns.len()
            && path.names().zip(&patterns).all(|(name, pattern)| matches_pattern(pattern, name))
    };
    let folders = tree.entries().filter(|(_, entry)| matches!(entry, TreeEntry::Folder)).map(|(path, _)| path);
    let mut selected = folders.filter(|path| is_meant(path));
    match (selected.next(), selected.next()) {
        (Some(folder), None) => Ok(folder.clone()),
        (None, _) => Err(TreeError::refused(pattern, "no folder matches it")),
        (Some(one), Some(other)) => {
            Err(TreeError::refused(pattern, format!("several folders match it: {one}, {other}")))
        }
    }
}

/// True if a name matches a pattern. A malformed pattern matches nothing.
fn matches_pattern(pattern: &[u8], name: &[u8]) -> bool {
    let (mut rest, mut left) = (pattern, name);
    // The point to resume from, one byte later, if the text after the last star does not match.
    let mut last_star: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', after @ ..] = rest {
            last_star = Some((after, left));
            rest = after;
            continue;
        }
        match (one(rest, left), rest.is_empty(), left.is_empty()) {
            (_, true, true) => return true,
            (Some((pattern, name)), ..) => (rest, left) = (pattern, name),
            _ => match last_star {
                Some((pattern, [_, name @ ..])) => {
                    last_star = Some((pattern, name));
                    (rest, left) = (pattern, name);
                }
                _ => return false,
            },
        }
    }
}

/// Matches the next element of the pattern with the next byte of the name, and returns the rest of both.
fn one<'p, 'n>(pattern: &'p [u8], name: &'n [u8]) -> Option<(&'p [u8], &'n [u8])> {
    let (first, after) = name.split_first()?;
    match pattern {
        [b'?', rest @ ..] => Some((rest, after)),
        [b'[', rest @ ..] => {
            let (rest, takes) = match rest {
                [b'^', rest @ ..] => (rest, false),
                rest => (rest, true),
            };
            let end = 1 + rest.iter().skip(1).position(|byte| *byte == b']')?;
            let (class, rest) = rest.split_at(end);
            (in_class(class, *first) == takes).then_some((rest.get(1..)?, after))
        }
        [b'\\', byte, rest @ ..] | [byte, rest @ ..] if byte == first => Some((rest, after)),
        _ => None,
    }
}

fn in_class(class: &[u8], byte: u8) -> bool {
    match class {
        [low, b'-', high, rest @ ..] => (*low..=*high).contains(&byte) || in_class(rest, byte),
        [one, rest @ ..] => *one == byte || in_class(rest, byte),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pack::TreeLimits;

    #[test]
    fn names_fit_patterns_as_go_has_them() {
        for (pattern, name, does) in [
            ("*", "org-repo-0123abc", true),
            ("*", "", true),
            ("org-*", "org-repo", true),
            ("org-*", "other", false),
            ("*-*-c", "a-b-b-c", true),
            ("a*b*c", "abcb", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[", "[", false),
            (r"\*", "*", true),
            (r"\*", "a", false),
            ("plain", "plain", true),
            ("plain", "plainer", false),
        ] {
            assert_eq!(matches_pattern(pattern.as_bytes(), name.as_bytes()), does, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_means_one_folder() {
        let mut tree = Tree::new(tempfile::tempfile().unwrap(), TreeLimits::default());
        let path = |text: &str| TreePath::parse(text.as_bytes()).unwrap();
        tree.add_file(&path("repo-1/modules/x/main.tf"), 0o644, &mut &b""[..]).unwrap();
        tree.add_file(&path("README"), 0o644, &mut &b""[..]).unwrap();
        assert_eq!(find_folder(&tree, "*").unwrap(), path("repo-1"));
        assert_eq!(find_folder(&tree, "*/modules/*").unwrap(), path("repo-1/modules/x"));
        assert!(find_folder(&tree, "R*").is_err());
        tree.add_folder(&path("repo-2")).unwrap();
        assert!(find_folder(&tree, "*").unwrap_err().to_string().contains("repo-1, repo-2"));
    }

    proptest! {
        #[test]
        fn no_pattern_or_name_panics(pattern in "[*?\\[\\]\\\\^a-c-]{0,12}", name in "[a-c*\\]]{0,12}") {
            let _ = matches_pattern(pattern.as_bytes(), name.as_bytes());
        }
    }
}
