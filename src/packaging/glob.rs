//! Patterns in the `//subdir` of a module source, with the syntax of Go's `filepath.Glob`. Forges put the files of an
//! archive into a top folder with an unpredictable name, which a pattern can match.

use super::{Tree, TreeEntry, TreeError, TreePath};

/// Finds the one folder of a tree that matches a pattern like `*`.
///
/// # Errors
/// [`TreeError::Refused`] if no folder or several folders match.
pub fn find_folder(tree: &Tree, pattern: &str) -> Result<TreePath, TreeError> {
    let patterns: Vec<&[u8]> = pattern.split('/').map(str::as_bytes).collect();
    let is_match = |path: &TreePath| {
        path.names().count() == patterns.len()
            && path.names().zip(&patterns).all(|(name, pattern)| matches_pattern(pattern, name))
    };
    let folders = tree.entries().filter(|(_, entry)| matches!(entry, TreeEntry::Folder)).map(|(path, _)| path);
    let mut matching = folders.filter(|path| is_match(path));
    match (matching.next(), matching.next()) {
        (Some(folder), None) => Ok(folder.clone()),
        (None, _) => Err(TreeError::refused(pattern, "no folder matches it")),
        (Some(first), Some(second)) => {
            Err(TreeError::refused(pattern, format!("several folders match it: {first}, {second}")))
        }
    }
}

/// True if a name matches a pattern. A malformed pattern matches nothing.
fn matches_pattern(pattern: &[u8], name: &[u8]) -> bool {
    let (mut remaining_pattern, mut remaining_name) = (pattern, name);
    // The pattern after the last star, and the name where the match of that pattern was tried. If it fails, matching
    // resumes one byte later.
    let mut last_star: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', after @ ..] = remaining_pattern {
            last_star = Some((after, remaining_name));
            remaining_pattern = after;
            continue;
        }
        let matched = match_element(remaining_pattern, remaining_name);
        match (matched, remaining_pattern.is_empty(), remaining_name.is_empty()) {
            (_, true, true) => return true,
            (Some((pattern, name)), ..) => (remaining_pattern, remaining_name) = (pattern, name),
            _ => match last_star {
                Some((pattern, [_, name @ ..])) => {
                    last_star = Some((pattern, name));
                    (remaining_pattern, remaining_name) = (pattern, name);
                }
                _ => return false,
            },
        }
    }
}

/// Matches the first element of the pattern with the first byte of the name, and returns what follows in both.
fn match_element<'p, 'n>(pattern: &'p [u8], name: &'n [u8]) -> Option<(&'p [u8], &'n [u8])> {
    let (byte, remaining_name) = name.split_first()?;
    match pattern {
        [b'?', after @ ..] => Some((after, remaining_name)),
        [b'[', after @ ..] => {
            let (class, is_negated) = match after {
                [b'^', class @ ..] => (class, true),
                class => (class, false),
            };
            let end = 1 + class.iter().skip(1).position(|byte| *byte == b']')?;
            let (class, after) = class.split_at(end);
            (in_class(class, *byte) != is_negated).then_some((after.get(1..)?, remaining_name))
        }
        [b'\\', expected, after @ ..] | [expected, after @ ..] if expected == byte => Some((after, remaining_name)),
        _ => None,
    }
}

/// True if a character class, without its brackets, contains a byte.
fn in_class(class: &[u8], byte: u8) -> bool {
    match class {
        [low, b'-', high, others @ ..] => (*low..=*high).contains(&byte) || in_class(others, byte),
        [member, others @ ..] => *member == byte || in_class(others, byte),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packaging::TreeLimits;

    #[test]
    fn names_match_patterns_as_in_go() {
        for (pattern, name, is_match) in [
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
            assert_eq!(matches_pattern(pattern.as_bytes(), name.as_bytes()), is_match, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_must_match_exactly_one_folder() {
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
        fn arbitrary_patterns_and_names_never_panic(pattern in "[*?\\[\\]\\\\^a-c-]{0,12}", name in "[a-c*\\]]{0,12}") {
            let _ = matches_pattern(pattern.as_bytes(), name.as_bytes());
        }
    }
}
