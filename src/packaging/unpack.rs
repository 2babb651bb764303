//! Unpacks untrusted archives into trees: to what go-getter, with which clients unpack them, leaves on a case-sensitive disk.
//! What could leave the module's folder, and entries that go-getter fails on, are refused with an error that names the
//! entry. Zips are unpacked by their central directory, as go-getter does.

use std::io::{self, BufReader, Read, Seek};

use ::tar::EntryType;
use ::zip::System;
use ::zip::read::ZipFile;

use super::compression::{XzReader, bzip2, gzip};
use super::meter::Meter;
use super::path::{clean_path, refused};
use super::tar::{BLOCK, BadTar, TarLimits, TarMember, TarReader};
use super::zip::{BadZip, DuplicateNames, ZipLimits, ZipReader};
use super::{Tree, TreeEntry, TreeError, TreePath};

/// The archive formats that go-getter unpacks. Plain tar and zstd are not among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ArchiveFormat {
    /// A zip.
    Zip,
    /// A tar under gzip.
    TarGz,
    /// A tar under bzip2.
    TarBz2,
    /// A tar under xz.
    TarXz,
    /// One file under gzip.
    Gz,
    /// One file under bzip2.
    Bz2,
    /// One file under xz.
    Xz,
}

/// The suffixes without their dot, which are also the values of `?archive=`. Older versions of Terraform, and OpenTofu,
/// do not know `tbz2`.
const SUFFIXES: [(&str, ArchiveFormat); 11] = [
    ("zip", ArchiveFormat::Zip),
    ("tar.gz", ArchiveFormat::TarGz),
    ("tgz", ArchiveFormat::TarGz),
    ("tar.bz2", ArchiveFormat::TarBz2),
    ("tar.tbz2", ArchiveFormat::TarBz2),
    ("tbz2", ArchiveFormat::TarBz2),
    ("tar.xz", ArchiveFormat::TarXz),
    ("txz", ArchiveFormat::TarXz),
    ("bz2", ArchiveFormat::Bz2),
    ("gz", ArchiveFormat::Gz),
    ("xz", ArchiveFormat::Xz),
];

impl ArchiveFormat {
    /// The format for a value of `?archive=`.
    pub fn named(name: &str) -> Option<Self> {
        SUFFIXES.iter().find(|(suffix, _)| *suffix == name).map(|(_, format)| *format)
    }

    /// The format for the suffix of a path. The longest matching suffix counts.
    pub fn of_path(path: &[u8]) -> Option<Self> {
        let ends_with = |suffix: &str| path.strip_suffix(suffix.as_bytes()).is_some_and(|stem| stem.ends_with(b"."));
        let matching = SUFFIXES.iter().filter(|(suffix, _)| ends_with(suffix));
        matching.max_by_key(|(suffix, _)| suffix.len()).map(|(_, format)| *format)
    }
}

/// Unpacks an archive into an empty tree, within the tree's limits. The tree has folders and files only.
///
/// # Errors
/// [`TreeError::Refused`] for an entry that a module cannot have, [`TreeError::TooLarge`] past the limits,
/// [`TreeError::Unreadable`] for a damaged archive or another format, [`TreeError::Spool`] if the disk fails.
pub fn unpack(format: ArchiveFormat, mut archive: impl Read + Seek, tree: &mut Tree) -> Result<(), TreeError> {
    archive.rewind().map_err(TreeError::spool)?;
    let buffered = BufReader::with_capacity(64 * 1024, archive);
    match format {
        ArchiveFormat::Zip => unpack_zip(buffered, tree),
        ArchiveFormat::TarGz => unpack_tar(gzip(buffered), tree),
        ArchiveFormat::TarBz2 => unpack_tar(bzip2(buffered), tree),
        ArchiveFormat::TarXz => unpack_tar(XzReader::new(buffered).map_err(|e| unreadable(&e))?, tree),
        // go-getter refuses these formats as well: the file that they contain has no name.
        ArchiveFormat::Gz | ArchiveFormat::Bz2 | ArchiveFormat::Xz => {
            Err(TreeError::Unreadable("it is one compressed file, but a module is a folder".to_owned()))
        }
    }
}

/// The size limit of an extension header, in bytes.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;

/// Unpacks a tar as go-getter does: `..` is refused, global headers are skipped, and a tar without a file is an error.
fn unpack_tar(input: impl Read, tree: &mut Tree) -> Result<(), TreeError> {
    // The bytes that a tree within its limits needs: the files, and a few blocks for each entry.
    let entries = u64::try_from(tree.limits().entries).unwrap_or(u64::MAX);
    let max_bytes = tree.limits().bytes.saturating_add(entries.saturating_mul(4096)).saturating_add(1 << 20);
    let input: &mut dyn Read = &mut Meter::new(input, max_bytes, "it unpacks to more than the module limit");
    // Entries are counted by the reader, because the tree does not count a folder that is repeated.
    let limits = TarLimits { entries: tree.limits().entries, extension_bytes: MAX_EXTENSION_BYTES };
    let mut tar = TarReader::new(input, limits);
    let mut has_file = false;
    while let Some(member) = tar.next_member()? {
        has_file |= add_tar_member(&member, &mut tar, tree)?;
    }
    // The reader stops after the first zero block, or at the end of the stream. Then only a second zero block or nothing
    // may follow: Go rejects other bytes there.
    let input = tar.into_input();
    let mut block = Vec::new();
    input.take(BLOCK as u64).read_to_end(&mut block).map_err(|e| unreadable(&e))?;
    if !matches!(block.len(), 0 | BLOCK) || block.iter().any(|byte| *byte != 0) {
        return Err(TreeError::Unreadable("there is data after its end".to_owned()));
    }
    // The checksums of the compression are verified at the end of the stream.
    io::copy(input, &mut io::sink()).map_err(|e| unreadable(&e))?;
    if !has_file {
        return Err(TreeError::Unreadable("it contains no file".to_owned()));
    }
    Ok(())
}

/// Adds an entry of the tar to the tree. Returns false for a folder. Whatever is no folder is a regular file to go-getter,
/// the last one of a name: a link, a device and a pipe have no content, an entry of an unknown type has its own.
fn add_tar_member(member: &TarMember, contents: &mut dyn Read, tree: &mut Tree) -> Result<bool, TreeError> {
    let name = &member.name;
    let refuse = |reason: &str| Err(refused(name, reason));
    if member.is_sparse {
        return refuse("it is a sparse file");
    }
    let path = clean_path(name)?;
    let mode = member.header.mode().map_err(|e| refused(name, format!("its mode cannot be read: {e}")))?;
    match member.kind() {
        EntryType::Directory => tree.add_folder(&path).map(|()| false),
        // Go takes the type from the mode, too.
        _ if mode & FILE_TYPE_MASK == 0o040_000 => tree.add_folder(&path).map(|()| false),
        EntryType::Regular | EntryType::Continuous if name.ends_with(b"/") || path.is_root() => {
            if member.size_bytes > 0 {
                return refuse("it is a folder, but has content");
            }
            tree.add_folder(&path).map(|()| false)
        }
        _ => {
            tree.check_file_size(&path, member.size_bytes)?;
            tree.put_file(&path, mode, contents).map(|_| true)
        }
    }
}

impl From<BadTar> for TreeError {
    fn from(bad: BadTar) -> Self {
        match bad {
            BadTar::TooManyEntries(limit) => Self::TooLarge(format!("{limit} files, folders and links")),
            BadTar::LongExtension(limit) => Self::TooLarge(format!("{limit} bytes in one extension header")),
            BadTar::DifferentSizes(name) => refused(&name, "its headers give two different sizes"),
            BadTar::MalformedPax | BadTar::Unreadable(_) => unreadable(&bad),
        }
    }
}

/// The most bytes read for the central directory, regardless of the number of entries it claims.
const MAX_DIRECTORY_BYTES: u64 = 32 << 20;
/// The mask for the file type in a Unix mode.
const FILE_TYPE_MASK: u32 = 0o170_000;

/// Unpacks a zip.
fn unpack_zip<R: Read + Seek>(input: R, tree: &mut Tree) -> Result<(), TreeError> {
    let limits = ZipLimits {
        directory_bytes: MAX_DIRECTORY_BYTES,
        entries: tree.limits().entries,
        duplicate_names: DuplicateNames::LastCounts,
    };
    let zip = ZipReader::open(input, limits)?;
    if zip.is_empty() {
        return Err(TreeError::Unreadable("it contains no file".to_owned()));
    }
    let has_duplicate_names = zip.has_duplicate_names();
    zip.for_each_entry(|name, entry| {
        let path = clean_path(&name)?;
        // The reader has the last of the entries with one name at the place of the first. Other spellings of the name may
        // stand between them.
        if has_duplicate_names && matches!(tree.get(&path), Some(TreeEntry::File(_))) {
            return Err(refused(&name, "several of its entries have this name, in several spellings"));
        }
        add_zip_entry(&name, &path, entry, tree)
    })
}

impl From<BadZip> for TreeError {
    fn from(bad: BadZip) -> Self {
        match bad {
            BadZip::Unreadable(error) => unreadable(&error),
            BadZip::TooManyEntries { limit, .. } => Self::TooLarge(format!("{limit} files, folders and links")),
            BadZip::DuplicateName(name) => refused(&name, "two of its entries have this name"),
            BadZip::SharedBytes(name) => refused(&name, "it shares its bytes with other entries"),
            BadZip::SecondName(name) => refused(&name, "it has a second name in an extra field"),
            BadZip::Entry { name, source } => refused(&name, format!("it cannot be unpacked: {source}")),
        }
    }
}

/// Adds an entry of the zip to the tree. Whatever is no folder is a regular file to go-getter: that of a link has the link's
/// target as its content.
fn add_zip_entry<R: Read>(
    name: &[u8],
    path: &TreePath,
    mut entry: ZipFile<'_, R>,
    tree: &mut Tree,
) -> Result<(), TreeError> {
    let stored_mode = unix_mode(&entry);
    let mode = stored_mode.map_or(0o644, |mode| mode & 0o777);
    match stored_mode.map(|mode| mode & FILE_TYPE_MASK) {
        _ if name.ends_with(b"/") || path.is_root() => {
            if entry.size() > 0 {
                return Err(refused(name, "it is a folder, but has content"));
            }
            tree.add_folder(path)
        }
        Some(0o040_000) => tree.add_folder(path),
        _ => {
            let size = entry.size();
            tree.check_file_size(path, size)?;
            if tree.put_file(path, mode, &mut entry)? != size {
                return Err(refused(name, "its size is not the declared one"));
            }
            Ok(())
        }
    }
}

/// The Unix mode; `None` if it is 0 or the zip was made on a system without modes.
fn unix_mode<R: Read>(entry: &ZipFile<'_, R>) -> Option<u32> {
    let has_modes = matches!(entry.system(), System::Unix | System::OsDarwin);
    Some(entry.external_attributes() >> 16).filter(|mode| has_modes && *mode != 0)
}

fn unreadable(error: &dyn std::error::Error) -> TreeError {
    TreeError::Unreadable(error.to_string())
}

#[cfg(test)]
mod tests;
