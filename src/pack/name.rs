//! Names of entries, as archives have them, into paths.

use super::{TreeError, TreePath};

/// The path that the clients unpack a name to: they clean it. What leads upwards, and what is absolute, is refused.
pub(super) fn path_of(name: &[u8]) -> Result<TreePath, TreeError> {
    if name.starts_with(b"/") {
        return Err(refused(name, "its name is absolute"));
    }
    let names: Vec<&[u8]> = name.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    if names.contains(&&b".."[..]) {
        return Err(refused(name, "its name leads upwards"));
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

/// What a file system that knows no case takes a path for.
pub(super) fn folded(path: &TreePath) -> Vec<u8> {
    match std::str::from_utf8(path.as_bytes()) {
        Ok(text) => text.to_lowercase().into_bytes(),
        Err(_) => path.as_bytes().to_ascii_lowercase(),
    }
}
