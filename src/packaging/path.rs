//! Paths inside a tree. The type cannot express a path that leads out of it. Names of archive entries become paths here.

use std::borrow::Borrow;
use std::fmt;

use unicode_normalization::UnicodeNormalization;

use super::TreeError;

const MAX_PATH_BYTES: usize = 4096;
/// The limit of file systems for one name, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// A path relative to the root of a tree: names joined by `/`. The empty path is the root. A path consists of bytes,
/// because git and archives define no encoding.
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

    /// Parses a path relative to the root. Refuses empty names, `.`, `..` and NUL.
    ///
    /// # Errors
    /// [`BadTreePath`] with the reason; also for a path that leads out of the tree.
    pub fn parse(given: &[u8]) -> Result<Self, BadTreePath> {
        if given.is_empty() {
            return Ok(Self::root());
        }
        if given.len() > MAX_PATH_BYTES {
            return Err(BadTreePath("its path is longer than 4096 bytes"));
        }
        for name in given.split(|byte| *byte == b'/') {
            match name {
                b"" => return Err(BadTreePath("its path is absolute, or has an empty name in it")),
                b"." | b".." => return Err(BadTreePath("its path has a . or .. in it")),
                name if name.contains(&0) => return Err(BadTreePath("its path has a NUL in it")),
                name if name.len() > MAX_NAME_BYTES => {
                    return Err(BadTreePath("its path has a name of more than 255 bytes"));
                }
                _ => {}
            }
        }
        Ok(Self(given.to_vec()))
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
    pub fn parent(&self) -> Option<Self> {
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
    /// Prints the path with invalid UTF-8 and control characters replaced, so that it cannot control a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.0);
        let shown: String =
            text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
        f.write_str(if shown.is_empty() { "." } else { &shown })
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
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
    let text = String::from_utf8_lossy(name);
    let shown: String =
        text.chars().take(256).map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    TreeError::refused(shown, reason)
}

/// The key under which a file system compares paths if it ignores case and Unicode normalisation.
pub(super) fn case_insensitive_key(path: &TreePath) -> Vec<u8> {
    match std::str::from_utf8(path.as_bytes()) {
        Ok(text) => text.nfc().collect::<String>().to_lowercase().nfc().collect::<String>().into_bytes(),
        Err(_) => path.as_bytes().to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn malformed_paths_and_paths_out_of_the_tree_are_refused() {
        for bad in
            ["/etc/passwd", "../x", "a/../b", "a//b", "a/", "./a", "a/.", "a\0b", &"a".repeat(256), &"a/".repeat(3000)]
        {
            assert!(TreePath::parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
        let path = |text: &str| TreePath::parse(text.as_bytes()).unwrap();
        assert_eq!(path("a/b/c").parent(), Some(path("a/b")));
        assert_eq!(path("a").parent(), Some(TreePath::root()));
        assert_eq!(TreePath::root().parent(), None);
        assert_eq!(path("a/b/c").below(&path("a")), Some(path("b/c")));
        assert_eq!(path("ab").below(&path("a")), None);
        assert_eq!(path("a").join(&path("b/c")), Ok(path("a/b/c")));
        assert_eq!(path("").names().count(), 0);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_or_a_path_inside_the_tree(given in prop::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), Just(b'a'), any::<u8>()], 0..40)) {
            if let Ok(path) = TreePath::parse(&given) {
                prop_assert_eq!(path.as_bytes(), &given[..]);
                prop_assert!(path.names().all(|name| name != b".." && name != b"." && !name.contains(&b'/')));
                prop_assert!(!path.to_string().chars().any(char::is_control));
                if let Some(parent) = path.parent() {
                    prop_assert!(path.below(&parent).is_some_and(|name| name.names().count() == 1));
                }
            }
        }
    }
}
