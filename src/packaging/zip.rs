//! Unpacks zips by their central directory, as go-getter does.

use std::cell::Cell;
use std::collections::HashSet;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use ::zip::read::{ZipArchive, ZipFile};
use ::zip::{ExtraField, System};

use super::name::{clean_path, refused};
use super::{Tree, TreeError};

/// The most bytes read for the central directory, regardless of the number of entries it claims.
const MAX_DIRECTORY_BYTES: u64 = 32 << 20;
/// The most bytes read of a link target. It exceeds the longest allowed target, so that a longer one is refused.
const MAX_TARGET_READ_BYTES: u64 = 8192;
/// The mask for the file type in a Unix mode.
const FILE_TYPE_MASK: u32 = 0o170_000;

/// Unpacks a zip. Declared sizes are not trusted.
pub(super) fn unpack<R: Read + Seek>(mut from: R, tree: &mut Tree) -> Result<(), TreeError> {
    let archive_bytes = from.seek(SeekFrom::End(0)).map_err(|e| unreadable(&e))?;
    let budget = Cell::new(MAX_DIRECTORY_BYTES);
    let mut archive = ZipArchive::new(Metered { inner: from, budget: &budget }).map_err(|e| unreadable(&e))?;
    if archive.is_empty() {
        return Err(TreeError::Unreadable("it contains no file".to_owned()));
    }
    if archive.len() > tree.limits().entries {
        return Err(TreeError::TooLarge(format!("{} files, folders and links", tree.limits().entries)));
    }
    if archive.has_duplicate_names() {
        let start = archive.central_directory_start();
        let duplicate = first_duplicate_name(archive.into_inner(), start).unwrap_or_default();
        return Err(refused(&duplicate, "two of its entries have this name"));
    }
    budget.set(u64::MAX);

    let directory = archive.metadata();
    let mut packed_bytes = 0_u64;
    for index in 0..archive.len() {
        let name = || directory.entry(index).map(|entry| entry.name_raw().to_vec()).unwrap_or_default();
        let entry = archive.by_index(index).map_err(|e| refused(&name(), format!("it cannot be unpacked: {e}")))?;
        // Regular entries share no bytes. This limits the work even for entries that unpack to nothing.
        packed_bytes = packed_bytes.saturating_add(entry.compressed_size());
        if packed_bytes > archive_bytes {
            return Err(refused(&name(), "it shares its bytes with other entries"));
        }
        add(entry, tree)?;
    }
    Ok(())
}

/// Finds the first duplicate name in the central directory. The zip crate reports only that there is one.
fn first_duplicate_name<R: Read + Seek>(mut from: R, start: u64) -> Option<Vec<u8>> {
    from.seek(SeekFrom::Start(start)).ok()?;
    let mut from = BufReader::new(from);
    let mut names = HashSet::new();
    loop {
        // A header of 46 bytes contains the lengths of the name, the extra field and the comment, which follow
        // (APPNOTE, section 4.3.12).
        let mut header = [0; 46];
        from.read_exact(&mut header).ok()?;
        if !header.starts_with(b"PK\x01\x02") {
            return None;
        }
        let length_at = |offset: usize| usize::from(u16::from_le_bytes([header[offset], header[offset + 1]]));
        let mut name = vec![0; length_at(28)];
        from.read_exact(&mut name).ok()?;
        let skipped_bytes = (length_at(30) + length_at(32)) as u64;
        io::copy(&mut (&mut from).take(skipped_bytes), &mut io::sink()).ok()?;
        if !names.insert(name.clone()) {
            return Some(name);
        }
    }
}

/// Adds an entry of the zip to the tree.
fn add<R: Read>(mut entry: ZipFile<'_, R>, tree: &mut Tree) -> Result<(), TreeError> {
    let name = entry.name_raw().to_vec();
    // Go ignores this field, but the zip crate takes the name from it.
    if entry.extra_data_fields().any(|field| matches!(field, ExtraField::UnicodePath(_))) {
        return Err(refused(&name, "it has two names"));
    }
    let path = clean_path(&name)?;
    let stored_mode = unix_mode(&entry);
    let mode = stored_mode.map_or(0o644, |mode| mode & 0o777);
    match stored_mode.map(|mode| mode & FILE_TYPE_MASK) {
        _ if name.ends_with(b"/") || path.is_root() => {
            if entry.size() > 0 {
                return Err(refused(&name, "it is a folder, but has content"));
            }
            tree.add_folder(&path)
        }
        Some(0o040_000) => tree.add_folder(&path),
        Some(0o120_000) => {
            let mut target = Vec::new();
            let read = (&mut entry).take(MAX_TARGET_READ_BYTES).read_to_end(&mut target);
            read.map_err(|e| refused(&name, format!("it cannot be unpacked: {e}")))?;
            tree.add_symlink(&path, &target)
        }
        None | Some(0 | 0o100_000) => {
            let size = entry.size();
            if tree.add_file(&path, mode, &mut entry)? != size {
                return Err(refused(&name, "its size is not the declared one"));
            }
            Ok(())
        }
        Some(_) => Err(refused(&name, "it is a device, or a pipe")),
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

/// A reader with a byte budget, because the central directory of a hostile zip can be as large as the zip.
struct Metered<'b, R> {
    inner: R,
    budget: &'b Cell<u64>,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        let remaining_bytes = self.budget.get().checked_sub(length as u64);
        self.budget.set(remaining_bytes.ok_or_else(|| io::Error::other("its directory is too large"))?);
        Ok(length)
    }
}

impl<R: Seek> Seek for Metered<'_, R> {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.inner.seek(position)
    }
}
