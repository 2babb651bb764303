//! The reader of untrusted zips, within limits, and the writer of zips. Which names and kinds of entries are accepted is
//! left to the reader's users.
//!
//! Trees are written as provider packages are: only files, sorted by path, without times or owners. Equal trees give equal
//! zips for one version of the encoder (zlib-rs, which `Cargo.lock` pins).

use std::collections::HashMap;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

use ::zip::read::{ZipArchive, ZipFile};
use ::zip::result::ZipError;
use ::zip::write::{SimpleFileOptions, ZipWriter};
use ::zip::{CompressionMethod, DateTime, ExtraField, System};

use super::chunks::FixedChunkWriter;
use super::meter::Meter;
use super::pack::CHUNK_BYTES;
use super::{Tree, TreeEntry, TreeError};

/// Limits of a zip that is read.
#[derive(Debug, Clone, Copy)]
pub struct ZipLimits {
    /// The most bytes read for the central directory, regardless of the number of entries it claims.
    pub directory_bytes: u64,
    /// The most entries.
    pub entries: usize,
    /// The treatment of several entries with one name.
    pub duplicate_names: DuplicateNames,
}

/// The treatment of several entries with one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DuplicateNames {
    /// They are an error: readers differ in the one they take.
    Refused,
    /// The last one counts, as for a reader that writes each in turn. It takes the place of the first. A folder and a file with
    /// one name are an error.
    LastCounts,
}

/// Why a zip is refused. Names are those of the entries, as raw bytes.
#[derive(Debug)]
pub enum BadZip {
    /// It is damaged, no zip, or its directory is too large.
    Unreadable(ZipError),
    /// Too many entries.
    TooManyEntries {
        /// The number of entries.
        actual: usize,
        /// The most entries.
        limit: usize,
    },
    /// Two entries have this name.
    DuplicateName(Vec<u8>),
    /// The entry shares its bytes with others.
    SharedBytes(Vec<u8>),
    /// The entry has a second name in an extra field, even if it is the same.
    SecondName(Vec<u8>),
    /// The entry is encrypted, damaged or of an unsupported kind.
    Entry {
        /// The name of the entry.
        name: Vec<u8>,
        /// The reason.
        source: ZipError,
    },
}

/// A reader of untrusted zips. Declared sizes are not trusted.
pub struct ZipReader<R> {
    archive: ZipArchive<Meter<R>>,
}

impl<R: Read + Seek> ZipReader<R> {
    /// Reads the central directory and checks the entries against it and against each other.
    ///
    /// # Errors
    /// [`BadZip`].
    pub fn open(mut input: R, limits: ZipLimits) -> Result<Self, BadZip> {
        let archive_bytes = input.seek(SeekFrom::End(0)).map_err(|e| BadZip::Unreadable(e.into()))?;
        check_zip64_claims(&mut input, archive_bytes, limits)?;
        // The central directory of a hostile zip can be as large as the zip.
        let meter = Meter::new(input, limits.directory_bytes, "its directory is too large");
        let remaining_bytes = meter.remaining_bytes();
        let mut archive = ZipArchive::new(meter).map_err(BadZip::Unreadable)?;
        if archive.len() > limits.entries {
            return Err(BadZip::TooManyEntries { actual: archive.len(), limit: limits.entries });
        }
        if archive.has_duplicate_names() {
            let (start, name_count) = (archive.central_directory_start(), archive.len());
            remaining_bytes.set(limits.directory_bytes);
            let mut input = archive.into_inner();
            if let Err(name) = check_duplicates(&mut input, start, name_count, limits.duplicate_names) {
                return Err(BadZip::DuplicateName(name));
            }
            remaining_bytes.set(limits.directory_bytes);
            archive = ZipArchive::new(input).map_err(BadZip::Unreadable)?;
        }
        remaining_bytes.set(u64::MAX);
        // Regular entries share no bytes. This limits the work even for entries that unpack to nothing.
        let directory = archive.metadata();
        let mut packed_bytes = 0_u64;
        for entry in (0..archive.len()).filter_map(|index| directory.entry(index).ok()) {
            packed_bytes = packed_bytes.saturating_add(entry.compressed_size());
            if packed_bytes > archive_bytes {
                return Err(BadZip::SharedBytes(entry.name_raw().to_vec()));
            }
        }
        Ok(Self { archive })
    }

    /// True if several entries have one name.
    pub fn has_duplicate_names(&self) -> bool {
        self.archive.has_duplicate_names()
    }

    /// True if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.archive.is_empty()
    }

    /// The sizes that the entries claim, in bytes.
    pub fn claimed_bytes(&self) -> u64 {
        let directory = self.archive.metadata();
        let entries = (0..self.archive.len()).filter_map(|index| directory.entry(index).ok());
        entries.map(|entry| entry.size()).fold(0, u64::saturating_add)
    }

    /// Passes the raw name of each entry and the entry to `on_entry`.
    ///
    /// # Errors
    /// [`BadZip`] for an entry that cannot be read; also errors of `on_entry`.
    pub fn for_each_entry<E: From<BadZip>>(
        mut self,
        mut on_entry: impl FnMut(Vec<u8>, ZipFile<'_, Meter<R>>) -> Result<(), E>,
    ) -> Result<(), E> {
        let directory = self.archive.metadata();
        for index in 0..self.archive.len() {
            let name = directory.entry(index).map(|entry| entry.name_raw().to_vec()).unwrap_or_default();
            let entry = match self.archive.by_index(index) {
                Ok(entry) => entry,
                Err(source) => return Err(BadZip::Entry { name, source }.into()),
            };
            // Go ignores this field, but the zip crate takes the name from it.
            if entry.extra_data_fields().any(|field| matches!(field, ExtraField::UnicodePath(_))) {
                return Err(BadZip::SecondName(name).into());
            }
            on_entry(name, entry)?;
        }
        Ok(())
    }
}

/// The most bytes after the locator of a zip64: the end record and its comment.
const MAX_END_BYTES: u64 = 22 + u16::MAX as u64;
/// The size of the zip64 end record, without the extensible data that no known program writes.
const ZIP64_RECORD_BYTES: usize = 56;
/// The size of the locator, which follows the zip64 end record.
const ZIP64_LOCATOR_BYTES: usize = 20;

/// Refuses a zip64 that claims too many entries. The zip crate reserves memory for that many before it reads the first
/// one, and a failure to reserve memory ends the process (APPNOTE, sections 4.3.14 to 4.3.16).
fn check_zip64_claims<R: Read + Seek>(input: &mut R, archive_bytes: u64, limits: ZipLimits) -> Result<(), BadZip> {
    let tail_bytes = MAX_END_BYTES + (ZIP64_RECORD_BYTES + ZIP64_LOCATOR_BYTES) as u64;
    let tail_start = archive_bytes.saturating_sub(tail_bytes);
    let mut tail = Vec::new();
    let read = input.seek(SeekFrom::Start(tail_start)).and_then(|_| input.take(tail_bytes).read_to_end(&mut tail));
    read.map_err(|e| BadZip::Unreadable(e.into()))?;
    // A comment may contain the signature of the end record, so each of them counts.
    for (offset, record_to_end) in tail.windows(ZIP64_RECORD_BYTES + ZIP64_LOCATOR_BYTES + 4).enumerate() {
        let (record, locator) = record_to_end.split_at(ZIP64_RECORD_BYTES);
        if !locator.starts_with(b"PK\x06\x07") || !locator.ends_with(b"PK\x05\x06") {
            continue;
        }
        let number_at =
            |bytes: &[u8], offset: usize| bytes.get(offset..)?.first_chunk().map(|n| u64::from_le_bytes(*n));
        // A record anywhere else could be another one than the zip crate finds.
        if !record.starts_with(b"PK\x06\x06") || number_at(locator, 8) != Some(tail_start + offset as u64) {
            return Err(BadZip::Unreadable(ZipError::InvalidArchive(
                "its zip64 end record is not where it should be".into(),
            )));
        }
        let claimed = number_at(record, 32).and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
        if claimed > limits.entries {
            return Err(BadZip::TooManyEntries { actual: claimed, limit: limits.entries });
        }
    }
    Ok(())
}

/// The file type of a folder, which is in the highest bits of a Unix mode.
const FOLDER_TYPE: u8 = 0o4;

/// True if the system that made an entry has Unix modes (APPNOTE, section 4.4.2).
fn has_modes(system: u8) -> bool {
    matches!(system, 3 | 19)
}

/// Checks the names in the central directory, of which the zip crate has `name_count`. It reports only that there is a
/// duplicate.
///
/// # Errors
/// A name that is a duplicate and an error; empty where the crate sees other names than the headers have.
fn check_duplicates(
    mut input: impl Read + Seek,
    start: u64,
    name_count: usize,
    duplicate_names: DuplicateNames,
) -> Result<(), Vec<u8>> {
    let unreadable = |_: io::Error| Vec::new();
    input.seek(SeekFrom::Start(start)).map_err(unreadable)?;
    let mut input = BufReader::new(input);
    let mut is_folder_by_name = HashMap::new();
    loop {
        // A header of 46 bytes contains the lengths of the name, the extra field and the comment, which follow
        // (APPNOTE, section 4.3.12).
        let mut header = [0; 46];
        input.read_exact(&mut header[..4]).map_err(unreadable)?;
        if !header.starts_with(b"PK\x01\x02") {
            break;
        }
        input.read_exact(&mut header[4..]).map_err(unreadable)?;
        let length_at = |offset: usize| usize::from(u16::from_le_bytes([header[offset], header[offset + 1]]));
        let mut name = vec![0; length_at(28)];
        input.read_exact(&mut name).map_err(unreadable)?;
        let skipped_bytes = (length_at(30) + length_at(32)) as u64;
        io::copy(&mut (&mut input).take(skipped_bytes), &mut io::sink()).map_err(unreadable)?;
        let is_folder = name.ends_with(b"/") || (has_modes(header[5]) && header[41] >> 4 == FOLDER_TYPE);
        let previous = is_folder_by_name.insert(name.clone(), is_folder);
        if previous.is_some_and(|previous| duplicate_names == DuplicateNames::Refused || previous != is_folder) {
            return Err(name);
        }
    }
    // An extra field may give an entry another name, to the crate alone.
    let sees_these_names = is_folder_by_name.len() == name_count && duplicate_names == DuplicateNames::LastCounts;
    if sees_these_names { Ok(()) } else { Err(Vec::new()) }
}

const COMPRESSION_LEVEL: i64 = 6;
/// The largest file without zip64 fields. The margin below 4 GiB is for bytes that the encoder may add.
const MAX_ZIP32_BYTES: u64 = u32::MAX as u64 - (64 << 20);

/// Writes a tree as a zip. A file has mode 0755 if its owner may execute it, otherwise 0644. Folders have no entry, so
/// empty folders are left out.
///
/// # Errors
/// [`TreeError::Refused`] for a link or a name that is not UTF-8; [`TreeError::Spool`] if reading or writing fails.
pub fn pack_zip(tree: &Tree, out: impl Write) -> Result<(), TreeError> {
    let mut zip = ZipWriter::new_stream(out);
    for (path, entry) in tree.entries() {
        let file = match entry {
            TreeEntry::File(file) => file,
            TreeEntry::Folder => continue,
            TreeEntry::Link(_) => return Err(TreeError::refused(path, "it is a link")),
        };
        let name = std::str::from_utf8(path.as_bytes());
        let name = name.map_err(|_| TreeError::refused(path, "its name is not UTF-8"))?;
        let options = SimpleFileOptions::DEFAULT
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(COMPRESSION_LEVEL))
            .last_modified_time(DateTime::DEFAULT)
            .system(System::Unix)
            .unix_permissions(if file.mode & 0o100 == 0 { 0o644 } else { 0o755 })
            .large_file(file.size_bytes > MAX_ZIP32_BYTES);
        zip.start_file(name, options).map_err(|e| TreeError::spool(e.into()))?;
        let mut chunks = FixedChunkWriter::new(&mut zip, CHUNK_BYTES);
        io::copy(&mut tree.contents(file), &mut chunks).and_then(|_| chunks.flush()).map_err(TreeError::spool)?;
    }
    let mut out = zip.finish().map_err(|e| TreeError::spool(e.into()))?.into_inner();
    out.flush().map_err(TreeError::spool)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::super::{TreeLimits, TreePath};
    use super::*;
    use crate::digest::Digest;
    use crate::verify::{PackageLimits, package_hashes};

    fn tree(files: &[(&str, u32, &[u8])]) -> Tree {
        let mut tree = Tree::new(tempfile::tempfile().unwrap(), TreeLimits::default());
        for (path, mode, bytes) in files {
            tree.add_file(&TreePath::parse(path.as_bytes()).unwrap(), *mode, &mut &bytes[..]).unwrap();
        }
        tree
    }

    fn zip(tree: &Tree) -> Vec<u8> {
        let mut zip = Vec::new();
        pack_zip(tree, &mut zip).unwrap();
        zip
    }

    #[test]
    fn equal_trees_give_equal_zips_and_only_the_executable_bit_of_modes_counts() {
        let large = vec![7; 300_000];
        let (binary, license) = (("terraform-provider-null", 0o755, &large[..]), ("docs/LICENSE", 0o644, &b"x"[..]));
        let first = zip(&tree(&[binary, license]));
        let second = zip(&tree(&[(license.0, 0o600, license.2), (binary.0, 0o700, binary.2)]));
        assert!(first == second);
        assert_ne!(Digest::of(&first), Digest::of(&zip(&tree(&[(binary.0, 0o644, binary.2), license]))));
        let hashes = package_hashes(Cursor::new(&first), PackageLimits::default()).unwrap();
        assert_eq!(hashes.zip, hashes.directory);
        let mut archive = ::zip::ZipArchive::new(Cursor::new(first)).unwrap();
        assert_eq!(archive.by_name("terraform-provider-null").unwrap().unix_mode(), Some(0o100_755));
        assert_eq!(archive.by_name("docs/LICENSE").unwrap().unix_mode(), Some(0o100_644));
    }

    #[test]
    fn a_tree_with_a_link_is_refused() {
        let mut tree = tree(&[("a", 0o644, b"x")]);
        tree.add_symlink(&TreePath::parse(b"b").unwrap(), b"a").unwrap();
        assert!(matches!(pack_zip(&tree, Vec::new()), Err(TreeError::Refused { .. })));
    }

    /// A central directory header.
    fn directory_header(name: &[u8], extra: &[u8]) -> Vec<u8> {
        let mut header = [0; 46];
        header[..4].copy_from_slice(b"PK\x01\x02");
        header[28..30].copy_from_slice(&(name.len() as u16).to_le_bytes());
        header[30..32].copy_from_slice(&(extra.len() as u16).to_le_bytes());
        [&header, name, extra].concat()
    }

    /// An input that counts the bytes read. It begins with `zeros` zero bytes that take no memory.
    struct CountingInput {
        zeros: u64,
        tail: Cursor<Vec<u8>>,
        position: u64,
        read_bytes: u64,
    }

    impl CountingInput {
        fn new(zeros: u64, tail: Vec<u8>) -> Self {
            Self { zeros, tail: Cursor::new(tail), position: 0, read_bytes: 0 }
        }
    }

    impl Read for CountingInput {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let read = match self.position.checked_sub(self.zeros) {
                Some(offset) => {
                    self.tail.set_position(offset);
                    self.tail.read(buffer)?
                }
                None => io::repeat(0).take(self.zeros - self.position).read(buffer)?,
            };
            self.position += read as u64;
            self.read_bytes += read as u64;
            Ok(read)
        }
    }

    impl Seek for CountingInput {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            let end = self.zeros + self.tail.get_ref().len() as u64;
            self.position = match to {
                SeekFrom::Start(position) => position,
                SeekFrom::End(offset) => end.saturating_add_signed(offset),
                SeekFrom::Current(offset) => self.position.saturating_add_signed(offset),
            };
            Ok(self.position)
        }
    }

    const LIMITS: ZipLimits =
        ZipLimits { directory_bytes: 1 << 20, entries: 100, duplicate_names: DuplicateNames::Refused };

    /// The headers after the two claimed entries would be names in memory, however many there are.
    #[test]
    fn the_search_for_a_duplicate_name_reads_no_more_than_the_directory_may_have() {
        let entry = |name: &[u8]| {
            let mut crc = flate2::Crc::new();
            crc.update(name);
            let unicode_path = [&[1], &crc.sum().to_le_bytes()[..], b"same"].concat();
            let field = [&0x7075_u16.to_le_bytes()[..], &(unicode_path.len() as u16).to_le_bytes(), &unicode_path];
            directory_header(name, &field.concat())
        };
        let more = (0..300_000_u32).flat_map(|n| directory_header(&n.to_le_bytes(), b""));
        let mut zip: Vec<u8> = b"local".iter().copied().chain(entry(b"a")).chain(entry(b"b")).chain(more).collect();
        let directory_bytes = zip.len() as u32 - 5;
        zip.extend(b"PK\x05\x06\0\0\0\0\x02\0\x02\0");
        zip.extend([&directory_bytes.to_le_bytes()[..], &5_u32.to_le_bytes(), b"\0\0"].concat());
        let mut input = CountingInput::new(0, zip);
        assert!(matches!(ZipReader::open(&mut input, LIMITS), Err(BadZip::DuplicateName(_))));
        assert!(input.read_bytes < 3 << 20, "{}", input.read_bytes);
    }

    /// The zip crate reserves memory for all entries that a zip64 claims, before it reads the first one.
    #[test]
    fn a_zip64_that_claims_too_many_entries_is_refused_before_memory_is_reserved() {
        let zip64 = |zeros: u64, entries: u64, record_offset: u64| {
            let record = [&b"PK\x06\x06"[..], &44_u64.to_le_bytes(), &[45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
            let counts = [entries, entries, u64::MAX / 2, zeros / 2].map(u64::to_le_bytes).concat();
            let locator = [&b"PK\x06\x07\0\0\0\0"[..], &record_offset.to_le_bytes(), &1_u32.to_le_bytes()].concat();
            let end = [&b"PK\x05\x06\0\0\0\0"[..], &[0xff; 12], b"\0\0"].concat();
            ZipReader::open(CountingInput::new(zeros, [record, counts, locator, end].concat()), LIMITS).err()
        };
        let refused = zip64(1 << 45, 1 << 38, 1 << 45);
        assert!(matches!(refused, Some(BadZip::TooManyEntries { actual: 0x40_0000_0000, limit: 100 })), "{refused:?}");
        for record_offset in [0, 1 << 44, (1 << 45) + 1, u64::MAX] {
            assert!(matches!(zip64(1 << 45, 1 << 38, record_offset), Some(BadZip::Unreadable(_))));
        }
        assert!(matches!(zip64(1 << 20, 1, 1 << 20), Some(BadZip::Unreadable(_))));
    }
}
