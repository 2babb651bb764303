//! Archives into trees, whatever they hold: what go-getter would not unpack, and what would do harm, is refused with
//! the entry's name.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek};

use super::members::{Bounded, bzip2, gzip};
use super::name::folded;
use super::xz::XzReader;
use super::{ArchiveFormat, Tree, TreeError, tar, zip};

/// Unpacks an archive into a tree: an empty one, whose limits bound what is unpacked. Links are kept as they are.
///
/// # Errors
/// [`TreeError::Refused`] for an entry that no module has, [`TreeError::TooLarge`] past the limits,
/// [`TreeError::Unreadable`] for what is no such archive or is damaged, [`TreeError::Spool`] where the disk fails.
pub fn unpack(format: ArchiveFormat, archive: &mut File, tree: &mut Tree) -> Result<(), TreeError> {
    archive.rewind().map_err(TreeError::spool)?;
    unpack_from(format, archive, tree)
}

/// The same from anything that can be read and sought.
///
/// # Errors
/// As for [`unpack()`].
pub fn unpack_from<R: Read + Seek>(format: ArchiveFormat, archive: R, tree: &mut Tree) -> Result<(), TreeError> {
    let buffered = BufReader::with_capacity(64 * 1024, archive);
    match format {
        ArchiveFormat::Zip => zip::unpack(buffered, tree)?,
        ArchiveFormat::TarGz => tar::unpack(&mut Bounded::for_tar(gzip(buffered), tree.limits()), tree)?,
        ArchiveFormat::TarBz2 => tar::unpack(&mut Bounded::for_tar(bzip2(buffered), tree.limits()), tree)?,
        ArchiveFormat::TarXz => tar::unpack(&mut Bounded::for_tar(XzReader::new(buffered), tree.limits()), tree)?,
        // As go-getter, which has no name to give it in a folder.
        ArchiveFormat::Gz | ArchiveFormat::Bz2 | ArchiveFormat::Xz => {
            return Err(TreeError::Unreadable("it is one compressed file, and a module is a folder".to_owned()));
        }
    }
    no_clash(tree)
}

/// Names that differ in case alone, or in how their letters are composed, are one on some clients' machines.
fn no_clash(tree: &Tree) -> Result<(), TreeError> {
    let mut seen = HashMap::new();
    for (path, _) in tree.entries() {
        if let Some(other) = seen.insert(folded(path), path) {
            return Err(TreeError::refused(
                path,
                format!("its name and that of {other} differ in case alone, or in how letters are composed"),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
