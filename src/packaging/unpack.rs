//! Unpacks untrusted archives into trees. Harmful entries, and entries that go-getter does not unpack, are refused with
//! an error that names the entry. Zips are unpacked by their central directory, as go-getter does. Extension headers of
//! tars are read here, with a limit, because the tar crate would load one of any length into memory.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};

use ::tar::{Archive, Entry, EntryType};
use ::zip::System;
use ::zip::read::ZipFile;

use super::compression::{bzip2, gzip};
use super::meter::Meter;
use super::path::{case_insensitive_key, clean_path, refused};
use super::xz::XzReader;
use super::zip::{BadZip, ZipLimits, ZipReader};
use super::{Tree, TreeError};

/// The archive formats that go-getter unpacks (PROTOCOL, section 4.4). Plain tar and zstd are not among them.
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

/// The suffixes without their dot, which are also the values of `?archive=`. Only Terraform knows `tbz2`.
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
        ArchiveFormat::Zip => unpack_zip(buffered, tree)?,
        ArchiveFormat::TarGz => unpack_tar(&mut limit_tar(gzip(buffered), tree), tree)?,
        ArchiveFormat::TarBz2 => unpack_tar(&mut limit_tar(bzip2(buffered), tree), tree)?,
        ArchiveFormat::TarXz => unpack_tar(&mut limit_tar(XzReader::new(buffered), tree), tree)?,
        // go-getter refuses these formats as well: the file that they contain has no name.
        ArchiveFormat::Gz | ArchiveFormat::Bz2 | ArchiveFormat::Xz => {
            return Err(TreeError::Unreadable("it is one compressed file, but a module is a folder".to_owned()));
        }
    }
    check_no_clash(tree)
}

/// Limits a tar to the bytes that a tree within its limits needs: the files, and a few blocks for each entry.
fn limit_tar<R: Read>(tar: R, tree: &Tree) -> Meter<R> {
    let entries = u64::try_from(tree.limits().entries).unwrap_or(u64::MAX);
    let max_bytes = tree.limits().bytes.saturating_add(entries.saturating_mul(4096)).saturating_add(1 << 20);
    Meter::new(tar, max_bytes, "it unpacks to more than the module limit")
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

/// The size limit of an extension header, in bytes.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;
const BLOCK: u64 = 512;

/// The values of extension headers for the next entry. Names from GNU headers take precedence over pax, as in Go.
#[derive(Default)]
struct ExtensionHeaders {
    pax: Pax,
    gnu_path: Option<Vec<u8>>,
    gnu_link: Option<Vec<u8>>,
}

/// The values of the latest pax header.
#[derive(Default)]
struct Pax {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    is_sparse: bool,
}

/// Unpacks a tar as go-getter does: `..` is refused, global headers are skipped, and a tar without a file is an error.
fn unpack_tar(from: &mut dyn Read, tree: &mut Tree) -> Result<(), TreeError> {
    let mut archive = Archive::new(&mut *from);
    let mut has_file = false;
    let mut headers = ExtensionHeaders::default();
    let mut remaining_entries = tree.limits().entries;
    for entry in archive.entries().map_err(|e| unreadable(&e))?.raw(true) {
        let mut entry = entry.map_err(|e| unreadable(&e))?;
        match entry.header().entry_type() {
            EntryType::XGlobalHeader => {}
            EntryType::XHeader => headers.pax = Pax::parse(&read_extension(&mut entry)?)?,
            EntryType::GNULongName => headers.gnu_path = until_nul(read_extension(&mut entry)?),
            EntryType::GNULongLink => headers.gnu_link = until_nul(read_extension(&mut entry)?),
            _ => {
                // Entries are counted here, because the tree does not count a folder that is repeated.
                remaining_entries = remaining_entries.checked_sub(1).ok_or_else(|| {
                    TreeError::TooLarge(format!("{} files, folders and links", tree.limits().entries))
                })?;
                has_file |= add_tar_entry(&mut entry, std::mem::take(&mut headers), tree)?;
            }
        }
    }
    // The end is two zero blocks, or the end of the stream. Go rejects other bytes after a single zero block.
    let mut block = Vec::new();
    from.take(BLOCK).read_to_end(&mut block).map_err(|e| unreadable(&e))?;
    if !matches!(block.len() as u64, 0 | BLOCK) || block.iter().any(|byte| *byte != 0) {
        return Err(TreeError::Unreadable("there is data after its end".to_owned()));
    }
    // The checksums of the compression are verified at the end of the stream.
    io::copy(from, &mut io::sink()).map_err(|e| unreadable(&e))?;
    if !has_file {
        return Err(TreeError::Unreadable("it contains no file".to_owned()));
    }
    Ok(())
}

/// Adds an entry. Returns false for a folder.
fn add_tar_entry<R: Read>(
    entry: &mut Entry<'_, R>,
    headers: ExtensionHeaders,
    tree: &mut Tree,
) -> Result<bool, TreeError> {
    let ExtensionHeaders { pax, gnu_path, gnu_link } = headers;
    let name = gnu_path.or(pax.path).unwrap_or_else(|| entry.header().path_bytes().into_owned());
    let refuse = |reason: &str| Err(refused(&name, reason));
    if pax.is_sparse {
        return refuse("it is a sparse file");
    }
    if pax.size.is_some_and(|size| size != entry.size()) {
        return refuse("it has two sizes");
    }
    let extension_link = gnu_link.or(pax.link);
    let target = || extension_link.clone().or_else(|| entry.header().link_name_bytes().map(|name| name.into_owned()));
    let path = clean_path(&name)?;
    let mode = entry.header().mode().map_err(|e| refused(&name, format!("its mode cannot be read: {e}")))?;
    match entry.header().entry_type() {
        EntryType::Directory => tree.add_folder(&path).map(|()| false),
        EntryType::Regular | EntryType::Continuous if name.ends_with(b"/") || path.is_root() => {
            if entry.size() > 0 {
                return refuse("it is a folder, but has content");
            }
            tree.add_folder(&path).map(|()| false)
        }
        EntryType::Regular | EntryType::Continuous => {
            let size = entry.size();
            // The tar crate takes the end of the archive for the end of the file.
            if tree.add_file(&path, mode, entry)? != size {
                return Err(TreeError::Unreadable(format!("it ends in the middle of {path}")));
            }
            Ok(true)
        }
        EntryType::Symlink => {
            let Some(target) = target() else { return refuse("it is a link without a target") };
            tree.add_symlink(&path, &target).map(|()| true)
        }
        EntryType::Link => {
            let Some(target) = target() else { return refuse("it is a link without a target") };
            let target = clean_path(&target).map_err(|_| refused(&name, "it is a hard link out of the archive"))?;
            tree.add_hard_link(&path, &target).map(|()| true)
        }
        EntryType::Char | EntryType::Block => refuse("it is a device"),
        EntryType::Fifo => refuse("it is a pipe"),
        EntryType::GNUSparse => refuse("it is a sparse file"),
        _ => refuse("its entry type is not supported"),
    }
}

impl Pax {
    /// Parses the records of a pax header, each `LENGTH KEY=VALUE\n`. The last record of a key counts. An empty value
    /// unsets the key.
    fn parse(records: &[u8]) -> Result<Self, TreeError> {
        let mut pax = Self::default();
        let malformed = || TreeError::Unreadable("one of its pax headers is malformed".to_owned());
        let mut remaining = records;
        while !remaining.is_empty() {
            let length_digits =
                remaining.iter().position(|byte| *byte == b' ').filter(|index| *index < 10).ok_or_else(malformed)?;
            let length: usize = remaining
                .get(..length_digits)
                .and_then(|text| std::str::from_utf8(text).ok()?.parse().ok())
                .ok_or_else(malformed)?;
            let record = remaining.get(length_digits + 1..length).ok_or_else(malformed)?;
            remaining = remaining.get(length..).ok_or_else(malformed)?;
            let record = record.strip_suffix(b"\n").ok_or_else(malformed)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(malformed)?;
            let (key, value) = (record.get(..equals).unwrap_or_default(), record.get(equals + 1..).unwrap_or_default());
            match key {
                b"path" => pax.path = Some(value.to_vec()).filter(|path| !path.is_empty()),
                b"linkpath" => pax.link = Some(value.to_vec()).filter(|link| !link.is_empty()),
                b"size" if value.is_empty() => pax.size = None,
                b"size" => {
                    let size = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    pax.size = Some(size.ok_or_else(malformed)?);
                }
                key => pax.is_sparse |= key.starts_with(b"GNU.sparse."),
            }
        }
        Ok(pax)
    }
}

/// Reads an extension header, up to its size limit.
fn read_extension<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>, TreeError> {
    if entry.size() > MAX_EXTENSION_BYTES {
        return Err(TreeError::TooLarge(format!("{MAX_EXTENSION_BYTES} bytes in one extension header")));
    }
    let mut bytes = Vec::new();
    entry.take(MAX_EXTENSION_BYTES).read_to_end(&mut bytes).map_err(|e| unreadable(&e))?;
    Ok(bytes)
}

/// A name up to its zero byte; `None` if it is empty.
fn until_nul(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    Some(bytes).filter(|bytes| !bytes.is_empty())
}

/// The most bytes read for the central directory, regardless of the number of entries it claims.
const MAX_DIRECTORY_BYTES: u64 = 32 << 20;
/// The most bytes read of a link target. It exceeds the longest allowed target, so that a longer one is refused.
const MAX_TARGET_READ_BYTES: u64 = 8192;
/// The mask for the file type in a Unix mode.
const FILE_TYPE_MASK: u32 = 0o170_000;

/// Unpacks a zip.
fn unpack_zip<R: Read + Seek>(from: R, tree: &mut Tree) -> Result<(), TreeError> {
    let limits = ZipLimits { directory_bytes: MAX_DIRECTORY_BYTES, entries: tree.limits().entries };
    let zip = ZipReader::open(from, limits)?;
    if zip.is_empty() {
        return Err(TreeError::Unreadable("it contains no file".to_owned()));
    }
    zip.for_each_entry(|name, entry| add_zip_entry(&name, entry, tree))
}

impl From<BadZip> for TreeError {
    fn from(bad: BadZip) -> Self {
        match bad {
            BadZip::Unreadable(error) => unreadable(&error),
            BadZip::TooManyEntries { limit, .. } => Self::TooLarge(format!("{limit} files, folders and links")),
            BadZip::DuplicateName(name) => refused(&name, "two of its entries have this name"),
            BadZip::SharedBytes(name) => refused(&name, "it shares its bytes with other entries"),
            BadZip::TwoNames(name) => refused(&name, "it has two names"),
            BadZip::Entry { name, source } => refused(&name, format!("it cannot be unpacked: {source}")),
        }
    }
}

/// Adds an entry of the zip to the tree.
fn add_zip_entry<R: Read>(name: &[u8], mut entry: ZipFile<'_, R>, tree: &mut Tree) -> Result<(), TreeError> {
    let path = clean_path(name)?;
    let stored_mode = unix_mode(&entry);
    let mode = stored_mode.map_or(0o644, |mode| mode & 0o777);
    match stored_mode.map(|mode| mode & FILE_TYPE_MASK) {
        _ if name.ends_with(b"/") || path.is_root() => {
            if entry.size() > 0 {
                return Err(refused(name, "it is a folder, but has content"));
            }
            tree.add_folder(&path)
        }
        Some(0o040_000) => tree.add_folder(&path),
        Some(0o120_000) => {
            let mut target = Vec::new();
            let read = (&mut entry).take(MAX_TARGET_READ_BYTES).read_to_end(&mut target);
            read.map_err(|e| refused(name, format!("it cannot be unpacked: {e}")))?;
            tree.add_symlink(&path, &target)
        }
        None | Some(0 | 0o100_000) => {
            let size = entry.size();
            if tree.add_file(&path, mode, &mut entry)? != size {
                return Err(refused(name, "its size is not the declared one"));
            }
            Ok(())
        }
        Some(_) => Err(refused(name, "it is a device, or a pipe")),
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
