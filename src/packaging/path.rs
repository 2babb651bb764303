//! Paths inside a tree. The type cannot express a path that leads out of it, or one that controls a terminal. Names of archive
//! entries become paths here.
//!
//! Patterns in the `//subdir` of a module source have the syntax of Go's `filepath.Glob`. Forges put the files of an archive
//! into a top folder with an unpredictable name, which a pattern can match.

use std::borrow::{Borrow, Cow};
use std::fmt;

use super::{Tree, TreeEntry, TreeError};

const MAX_PATH_BYTES: usize = 4096;
/// The limit of file systems for one name, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// A path relative to the root of a tree: names joined by `/`. The empty path is the root. A path consists of bytes,
/// because git and archives define no encoding. Control characters are escaped: `Icon%0D` is the file of macOS whose name ends
/// in a carriage return.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TreePath(Vec<u8>);

/// The reason why bytes are not a path inside a tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadTreePath(&'static str);

impl TreePath {
    /// The root of the tree.
    pub fn root() -> Self {
        Self::default()
    }

    /// Parses a path relative to the root, and escapes its control characters. Refuses empty names, `.`, `..` and NUL.
    ///
    /// # Errors
    /// [`BadTreePath`] with the reason; also for a path that leads out of the tree.
    pub fn parse(given: &[u8]) -> Result<Self, BadTreePath> {
        if given.is_empty() {
            return Ok(Self::root());
        }
        let path = escape_controls(given);
        if path.len() > MAX_PATH_BYTES {
            return Err(BadTreePath("its path is longer than 4096 bytes"));
        }
        if given.contains(&0) {
            return Err(BadTreePath("its path has a NUL in it"));
        }
        for name in path.split(|byte| *byte == b'/') {
            match name {
                b"" => return Err(BadTreePath("its path is absolute, or has an empty name in it")),
                b"." | b".." => return Err(BadTreePath("its path has a . or .. in it")),
                name if name.len() > MAX_NAME_BYTES => {
                    return Err(BadTreePath("its path has a name of more than 255 bytes"));
                }
                _ => {}
            }
        }
        Ok(Self(path.into_owned()))
    }

    /// Appends a path.
    ///
    /// # Errors
    /// [`BadTreePath`] if the result is too long.
    pub fn join(&self, relative: &Self) -> Result<Self, BadTreePath> {
        match (self.0.as_slice(), relative.0.as_slice()) {
            ([], _) => Ok(relative.clone()),
            (_, []) => Ok(self.clone()),
            (folder, relative) => Self::parse(&[folder, b"/", relative].concat()),
        }
    }

    /// The folder that contains the path; `None` for the root.
    pub fn parent_folder(&self) -> Option<Self> {
        if self.0.is_empty() {
            return None;
        }
        let end = self.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        Some(Self(self.0[..end].to_vec()))
    }

    /// The names, outermost first; none for the root.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }

    /// The path relative to `folder`; `None` if the path is not in that folder.
    pub fn below(&self, folder: &Self) -> Option<Self> {
        if folder.0.is_empty() {
            return Some(self.clone());
        }
        match self.0.strip_prefix(folder.0.as_slice())? {
            [] => Some(Self::root()),
            [b'/', relative @ ..] => Some(Self(relative.to_vec())),
            _ => None,
        }
    }

    /// True for the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of the path.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for TreePath {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for TreePath {
    /// Prints the path with invalid UTF-8 replaced.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = String::from_utf8_lossy(&self.0);
        f.write_str(if shown.is_empty() { "." } else { &shown })
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// Escapes control characters byte by byte: `%1B`. Not by backslashes, as git prints them: those separate names on Windows.
pub(super) fn escape_controls(given: &[u8]) -> Cow<'_, [u8]> {
    let is_control = |text: &str| text.chars().any(char::is_control);
    if !given.utf8_chunks().any(|chunk| is_control(chunk.valid())) {
        return Cow::Borrowed(given);
    }
    let mut escaped = Vec::with_capacity(given.len());
    for chunk in given.utf8_chunks() {
        for character in chunk.valid().chars() {
            let mut buffer = [0; 4];
            let bytes = character.encode_utf8(&mut buffer).as_bytes();
            match character.is_control() {
                true => bytes.iter().for_each(|byte| escaped.extend(format!("%{byte:02X}").into_bytes())),
                false => escaped.extend(bytes),
            }
        }
        escaped.extend(chunk.invalid());
    }
    Cow::Owned(escaped)
}

/// Returns the path to which clients unpack a name, which they clean first. Names that are absolute or contain `..` are
/// refused, even if that is so only on Windows. Trees from git do not use this function: git has its own checkout
/// rules.
pub(super) fn clean_path(name: &[u8]) -> Result<TreePath, TreeError> {
    if name.starts_with(b"/") {
        return Err(refused(name, "its name is absolute"));
    }
    let names: Vec<&[u8]> = name.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    if names.contains(&&b".."[..]) {
        return Err(refused(name, "its name contains .."));
    }
    // On Windows, `\` separates names too.
    let windows_segments =
        || name.split(|byte| matches!(byte, b'/' | b'\\')).filter(|segment| !matches!(*segment, b"" | b"."));
    let has_drive = |segment: &[u8]| matches!(segment, [letter, b':', ..] if letter.is_ascii_alphabetic());
    if name.starts_with(b"\\") || windows_segments().next().is_some_and(has_drive) {
        return Err(refused(name, "its name is absolute on Windows"));
    }
    if windows_segments().any(|segment| segment == b"..") {
        return Err(refused(name, "its name contains .. on Windows"));
    }
    TreePath::parse(&names.join(&b'/')).map_err(|bad| TreeError::bad_path(name, &bad))
}

/// Refuses an entry by its raw name.
pub(super) fn refused(name: &[u8], reason: impl Into<String>) -> TreeError {
    TreeError::refused(printable(name), reason)
}

/// The beginning of a raw name, for a message.
pub fn printable(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).take(256).collect()
}

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
    fn malformed_paths_and_paths_out_of_the_tree_are_refused() {
        for bad in
            ["/etc/passwd", "../x", "a/../b", "a//b", "a/", "./a", "a/.", "a\0b", &"a".repeat(256), &"a/".repeat(3000)]
        {
            assert!(TreePath::parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
        let path = |text: &str| TreePath::parse(text.as_bytes()).unwrap();
        assert_eq!(path("a/b/c").parent_folder(), Some(path("a/b")));
        assert_eq!(path("a").parent_folder(), Some(TreePath::root()));
        assert_eq!(TreePath::root().parent_folder(), None);
        assert_eq!(path("a/b/c").below(&path("a")), Some(path("b/c")));
        assert_eq!(path("ab").below(&path("a")), None);
        assert_eq!(path("a").join(&path("b/c")), Ok(path("a/b/c")));
        assert_eq!(path("").names().count(), 0);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_or_a_path_inside_the_tree(given in prop::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), Just(b'a'), 0..32u8, any::<u8>()], 0..40)) {
            if let Ok(path) = TreePath::parse(&given) {
                prop_assert_eq!(path.as_bytes(), &*escape_controls(&given));
                prop_assert_eq!(TreePath::parse(path.as_bytes()), Ok(path.clone()));
                prop_assert!(given.iter().any(|byte| *byte < 0x20 || *byte >= 0x7f) || path.as_bytes() == given);
                prop_assert!(path.names().all(|name| name != b".." && name != b"." && !name.contains(&b'/')));
                prop_assert!(!path.to_string().chars().any(char::is_control));
                if let Some(parent) = path.parent_folder() {
                    prop_assert!(path.below(&parent).is_some_and(|name| name.names().count() == 1));
                }
            }
        }
    }

    #[test]
    fn control_characters_are_escaped_and_nothing_else_is() {
        for (given, expected) in [
            (&b"main.tf"[..], &b"main.tf"[..]),
            (b"Icon\r", b"Icon%0D"),
            (b"a\x1b[31m.tf", b"a%1B[31m.tf"),
            (b"\x7f/\n", b"%7F/%0A"),
            ("c1\u{9b}2J".as_bytes(), b"c1%C2%9B2J"),
            (b"caf\xe9\x9b\t", b"caf\xe9\x9b%09"),
            ("\u{202e}ü".as_bytes(), "\u{202e}ü".as_bytes()),
        ] {
            assert_eq!(TreePath::parse(given).unwrap().as_bytes(), expected);
        }
        assert!(TreePath::parse(&[b'\r'; 100]).is_err(), "the escaped name is too long");
    }

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
