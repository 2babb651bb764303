//! Unpacks untrusted archives into trees. Harmful entries, and entries that go-getter does not unpack, are refused with
//! an error that names the entry.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek};

use super::members::{OutputLimit, bzip2, gzip};
use super::name::case_insensitive_key;
use super::xz::XzReader;
use super::{ArchiveFormat, Tree, TreeError, tar, zip};

/// Unpacks an archive into an empty tree, within the tree's limits. Links are not followed.
///
/// # Errors
/// [`TreeError::Refused`] for an entry that a module cannot have, [`TreeError::TooLarge`] past the limits,
/// [`TreeError::Unreadable`] for a damaged archive or another format, [`TreeError::Spool`] if the disk fails.
pub fn unpack(format: ArchiveFormat, archive: &mut File, tree: &mut Tree) -> Result<(), TreeError> {
    archive.rewind().map_err(TreeError::spool)?;
    unpack_from(format, archive, tree)
}

/// Implements [`unpack()`] for any reader that can seek.
///
/// # Errors
/// Those of [`unpack()`].
pub fn unpack_from<R: Read + Seek>(format: ArchiveFormat, archive: R, tree: &mut Tree) -> Result<(), TreeError> {
    let buffered = BufReader::with_capacity(64 * 1024, archive);
    match format {
        ArchiveFormat::Zip => zip::unpack(buffered, tree)?,
        ArchiveFormat::TarGz => tar::unpack(&mut OutputLimit::for_tar(gzip(buffered), tree.limits()), tree)?,
        ArchiveFormat::TarBz2 => tar::unpack(&mut OutputLimit::for_tar(bzip2(buffered), tree.limits()), tree)?,
        ArchiveFormat::TarXz => tar::unpack(&mut OutputLimit::for_tar(XzReader::new(buffered), tree.limits()), tree)?,
        // go-getter refuses these formats as well: the file that they contain has no name.
        ArchiveFormat::Gz | ArchiveFormat::Bz2 | ArchiveFormat::Xz => {
            return Err(TreeError::Unreadable("it is one compressed file, but a module is a folder".to_owned()));
        }
    }
    check_no_clash(tree)
}

/// Refuses names that differ only in case or Unicode composition, because some clients' file systems take them for one.
fn check_no_clash(tree: &Tree) -> Result<(), TreeError> {
    let mut paths_by_key = HashMap::new();
    for (path, _) in tree.entries() {
        if let Some(other) = paths_by_key.insert(case_insensitive_key(path), path) {
            return Err(TreeError::refused(
                path,
                format!("its name differs from {other} only in case or Unicode composition"),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
