//! Names of entries, as archives have them, into paths.

use unicode_normalization::UnicodeNormalization;

use super::{TreeError, TreePath};

/// The path that the clients unpack a name to: they clean it. What leads upwards, and what is absolute, is refused, also
/// where only Windows takes it for that. What comes from git is not held against this: its clients check it out by rules
/// of their own, and what they would refuse is found there.
pub(super) fn path_of(name: &[u8]) -> Result<TreePath, TreeError> {
    if name.starts_with(b"/") {
        return Err(refused(name, "its name is absolute"));
    }
    let names: Vec<&[u8]> = name.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    if names.contains(&&b".."[..]) {
        return Err(refused(name, "its name leads upwards"));
    }
    // What a `\` parts on Windows.
    let parts = || name.split(|byte| matches!(byte, b'/' | b'\\')).filter(|part| !matches!(*part, b"" | b"."));
    let has_drive = |part: &[u8]| matches!(part, [letter, b':', ..] if letter.is_ascii_alphabetic());
    if name.starts_with(b"\\") || parts().next().is_some_and(has_drive) {
        return Err(refused(name, "its name is absolute on Windows"));
    }
    if parts().any(|part| part == b"..") {
        return Err(refused(name, "its name leads upwards on Windows"));
    }
    TreePath::parse(&names.join(&b'/')).map_err(|bad| TreeError::bad_path(name, &bad))
}

/// An entry that is refused, by its name as the archive has it.
pub(super) fn refused(name: &[u8], why: impl Into<String>) -> TreeError {
    let text = String::from_utf8_lossy(name);
    let shown: String =
        text.chars().take(256).map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    TreeError::refused(shown, why)
}

/// What a file system takes a path for that knows no case, and composes letters.
pub(super) fn folded(path: &TreePath) -> Vec<u8> {
    match std::str::from_utf8(path.as_bytes()) {
        Ok(text) => text.nfc().collect::<String>().to_lowercase().nfc().collect::<String>().into_bytes(),
        Err(_) => path.as_bytes().to_ascii_lowercase(),
    }
}
