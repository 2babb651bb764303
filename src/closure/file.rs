//! A user's file, read within bounds.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::hcl::LARGEST;

/// Reads a file of at most [`LARGEST`] bytes.
///
/// # Errors
/// What the system says, and where it is larger or no file.
#[expect(clippy::disallowed_methods, reason = "a user's own files are no part of the store")]
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    // A pipe would never end, and a device may not either.
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > LARGEST {
        return Err(io::Error::other(format!("it has more than {} KiB", LARGEST >> 10)));
    }
    Ok(bytes)
}
