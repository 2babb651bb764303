//! Converts the names of archive entries into paths.

use unicode_normalization::UnicodeNormalization;

use super::{TreeError, TreePath};

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
