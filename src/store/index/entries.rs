//! Entries of the index with their keys, their totals, and the limit of the totals.

use std::path::Path;

use super::super::key::NAMES;
use super::super::{FORMAT, Key};
use crate::address::{Artifact, Hostname};
use crate::clock::Timestamp;
use crate::digest::Digest;

pub(super) const ARCHIVE: u8 = b'a';
pub(super) const DOCUMENT: u8 = b'd';
pub(super) const PAGE: u8 = b'p';
/// First-seen records: counted, and never evicted.
pub(super) const SEEN: u8 = b's';
/// The size of a disk block.
const BLOCK_BYTES: u64 = 4096;

/// Index entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexedArchive {
    /// The archive.
    pub digest: Digest,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Last use or time of storing.
    pub last_use: Timestamp,
    /// Last comparison of all bytes with the digest.
    pub last_verified: Timestamp,
}

impl IndexedArchive {
    pub(super) fn new(digest: Digest, entry: &EvictableEntry) -> Self {
        Self { digest, size_bytes: entry.size_bytes, last_use: entry.last_use, last_verified: entry.last_verified }
    }
}

/// An entry that can be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EvictableEntry {
    pub(super) last_use: Timestamp,
    /// Bytes counted against the limit.
    pub(super) size_bytes: u64,
    /// For an archive: last comparison of all bytes with the digest.
    pub(super) last_verified: Timestamp,
}

impl EvictableEntry {
    /// The entry for a file that was found on disk, merged with the previous entry.
    pub(super) fn found(
        previous: Option<Self>,
        size_bytes: u64,
        last_use: Timestamp,
        last_verified: Timestamp,
    ) -> Self {
        let found = Self { last_use, size_bytes, last_verified };
        previous.map_or(found.clone(), |previous| Self {
            last_use: previous.last_use.max(last_use),
            size_bytes,
            last_verified: previous.last_verified.max(last_verified),
        })
    }

    pub(super) fn encode_entry(&self) -> Vec<u8> {
        encode_numbers(&[self.last_use.0, self.size_bytes, self.last_verified.0])
    }

    pub(super) fn decode(value: &[u8]) -> Option<Self> {
        // Entries of older larders have no time of the last check: they count as never checked.
        let (last_use, size_bytes, last_verified) = match *decode_numbers(value)? {
            [last_use, size_bytes] => (last_use, size_bytes, 0),
            [last_use, size_bytes, last_verified] => (last_use, size_bytes, last_verified),
            _ => return None,
        };
        Some(Self { last_use: Timestamp(last_use), size_bytes, last_verified: Timestamp(last_verified) })
    }
}

pub(super) fn encode_numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

pub(super) fn decode_numbers(bytes: &[u8]) -> Option<Vec<u64>> {
    let (numbers, []) = bytes.as_chunks() else { return None };
    Some(numbers.iter().copied().map(u64::from_be_bytes).collect())
}

pub(super) fn archive_key(digest: &Digest) -> Vec<u8> {
    [&[ARCHIVE], digest.to_string().as_bytes()].concat()
}

pub(super) fn document_key(key: &Key) -> Vec<u8> {
    let kind = match key {
        key if key.is_page() => PAGE,
        key if key.is_first_seen() => SEEN,
        _ => DOCUMENT,
    };
    [&[kind], key.path().as_os_str().as_encoded_bytes()].concat()
}

/// The prefix of the pages of one registry.
pub(super) fn pages_prefix(host: &Hostname) -> Vec<u8> {
    // The last component is empty: the path ends with a slash, so that no longer name has the prefix.
    let folder = Key::pages_of(host).join("");
    [&[PAGE], folder.as_os_str().as_encoded_bytes()].concat()
}

/// Bytes that a document counts against the limit.
pub(super) fn counted_bytes(key: &Key, size_bytes: u64) -> u64 {
    let blocks = if key.counts_disk_blocks() { size_bytes.checked_next_multiple_of(BLOCK_BYTES) } else { None };
    blocks.unwrap_or(size_bytes)
}

/// The version of the index. Version 1, of older larders, has no names; version 2 has no times of version lists; version 3
/// has no first-seen records.
const INDEX_VERSION: u32 = 5;

/// The beginning of the mark of a clean close.
fn mark_version() -> Vec<u8> {
    [FORMAT.to_be_bytes(), INDEX_VERSION.to_be_bytes()].concat()
}

/// Totals of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of archives.
    pub archives: u64,
    /// The size of all archives, in bytes.
    pub archive_bytes: u64,
    /// The number of documents, proof sets and pages.
    pub documents: u64,
    /// The size of all documents, proof sets and pages, in bytes.
    pub document_bytes: u64,
    /// The part of `document_bytes` of pages of the registry HTTP API.
    pub page_bytes: u64,
    /// The number of first-seen records, which count against no limit.
    pub first_seen: u64,
    /// The size of all first-seen records, in bytes.
    pub first_seen_bytes: u64,
}

impl Totals {
    pub(super) fn add(&mut self, kind: u8, size_bytes: u64) {
        self.change(kind, |number| number.saturating_add(1), |bytes| bytes.saturating_add(size_bytes));
    }

    pub(super) fn subtract(&mut self, kind: u8, size_bytes: u64) {
        self.change(kind, |number| number.saturating_sub(1), |bytes| bytes.saturating_sub(size_bytes));
    }

    fn change(&mut self, kind: u8, number: impl Fn(u64) -> u64, bytes: impl Fn(u64) -> u64) {
        if kind == PAGE {
            self.page_bytes = bytes(self.page_bytes);
        }
        let (numbers, sizes) = match kind {
            ARCHIVE => (&mut self.archives, &mut self.archive_bytes),
            SEEN => (&mut self.first_seen, &mut self.first_seen_bytes),
            _ => (&mut self.documents, &mut self.document_bytes),
        };
        (*numbers, *sizes) = (number(*numbers), bytes(*sizes));
    }

    /// The mark of a clean close: the format, the index version, and these totals.
    pub(super) fn mark(self) -> Vec<u8> {
        let Self { archives, archive_bytes, documents, document_bytes, page_bytes, first_seen, first_seen_bytes } =
            self;
        let totals = [archives, archive_bytes, documents, document_bytes, page_bytes, first_seen, first_seen_bytes];
        [&mark_version()[..], &encode_numbers(&totals)].concat()
    }

    /// The totals in a mark; `None` for the mark of another format or index version.
    pub(super) fn in_mark(mark: &[u8]) -> Option<Self> {
        let totals = decode_numbers(mark.strip_prefix(&mark_version()[..])?)?;
        let [archives, archive_bytes, documents, document_bytes, page_bytes, first_seen, first_seen_bytes] =
            totals.try_into().ok()?;
        Some(Self { archives, archive_bytes, documents, document_bytes, page_bytes, first_seen, first_seen_bytes })
    }

    /// All bytes that count against the size limit.
    pub fn bytes(&self) -> u64 {
        self.archive_bytes.saturating_add(self.document_bytes)
    }
}

/// The limit for archives and documents together: `[store] max_size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeLimit {
    /// A configured number of bytes.
    Bytes(u64),
    /// Four fifths of the disk space available to the store, at most 200 GiB: the default. Bytes already stored count
    /// as available, so that other users of the disk do not cause evictions at each start.
    ShareOfDisk,
}

impl SizeLimit {
    /// The largest default limit, in bytes.
    pub const MAX_SHARE: u64 = 200 << 30;

    /// The limit in bytes, for a disk with this much stored by larder and this much free.
    pub fn bytes(self, stored_bytes: u64, free_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::ShareOfDisk => Self::MAX_SHARE.min(stored_bytes.max(stored_bytes.saturating_add(free_bytes) / 5 * 4)),
        }
    }
}

const NAME: u8 = b'n';
/// The pinned names and the imported ones once more, so that they are found among all.
pub(super) const PINNED_NAME: u8 = b'P';
pub(super) const IMPORTED_NAME: u8 = b'I';
const LISTED: u8 = b'l';
const DIGEST_BYTES: usize = 32;
const PINNED: u8 = 1;
const IMPORTED: u8 = 2;

/// The archives of a name, according to the index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexedName {
    /// Exempt from eviction.
    pub pinned: bool,
    /// One of its archives was imported without signatures.
    pub imported: bool,
    /// The archives, each once.
    pub archives: Vec<ListedArchive>,
}

/// An archive that a name lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedArchive {
    /// Its SHA-256.
    pub digest: Digest,
    /// Its `h1:` hashes are not computed yet.
    pub lacks_hashes: bool,
}

impl IndexedName {
    /// Returns true if the name lists no archive and is not pinned: then no record exists.
    pub fn is_empty(&self) -> bool {
        self.archives.is_empty() && !self.pinned
    }

    /// True if it lists this archive.
    pub fn lists(&self, digest: &Digest) -> bool {
        self.archives.iter().any(|listed| listed.digest == *digest)
    }

    /// The bytes that [`IndexedName::decode`] reads.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = vec![if self.pinned { PINNED } else { 0 } | if self.imported { IMPORTED } else { 0 }];
        for listed in &self.archives {
            value.extend_from_slice(listed.digest.as_bytes());
            value.push(listed.lacks_hashes.into());
        }
        value
    }

    /// Reads the bytes of a name's entry; `None` for others.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let (flags, listed) = value.split_first()?;
        let mut name = Self { pinned: flags & PINNED > 0, imported: flags & IMPORTED > 0, archives: Vec::new() };
        let mut pieces = listed.chunks_exact(DIGEST_BYTES + 1);
        for piece in &mut pieces {
            let (digest, lacks_hashes) = piece.split_at_checked(DIGEST_BYTES)?;
            let digest = Digest::from_bytes(digest.try_into().ok()?);
            name.archives.push(ListedArchive { digest, lacks_hashes: *lacks_hashes != [0] });
        }
        (flags & !(PINNED | IMPORTED) == 0 && pieces.remainder().is_empty()).then_some(name)
    }
}

pub(super) fn name_key(artifact: &Artifact) -> Vec<u8> {
    key_of_name(NAME, artifact)
}

/// The key of a name in a list of names.
pub(super) fn key_of_name(list: u8, artifact: &Artifact) -> Vec<u8> {
    [&[list], Key::Name(artifact.clone()).path().as_os_str().as_encoded_bytes()].concat()
}

/// The beginning of the keys of the names below a folder.
pub(super) fn names_prefix(folder: &Path) -> Vec<u8> {
    [&[NAME], folder.as_os_str().as_encoded_bytes(), b"/"].concat()
}

/// The key of a name by its path below the folder of all names.
pub(super) fn key_below_names(path: &str) -> Vec<u8> {
    [&[NAME], NAMES.as_bytes(), b"/", path.as_bytes()].concat()
}

pub(super) fn listed_prefix(digest: &Digest) -> Vec<u8> {
    [&[LISTED], &digest.as_bytes()[..]].concat()
}

pub(super) fn listed_key(digest: &Digest, artifact: &Artifact) -> Vec<u8> {
    [&listed_prefix(digest), Key::Name(artifact.clone()).path().as_os_str().as_encoded_bytes()].concat()
}

pub(super) fn artifact(path: &[u8]) -> Option<Artifact> {
    match Key::from_path(Path::new(std::str::from_utf8(path).ok()?))? {
        Key::Name(artifact) => Some(artifact),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A newer binary reads older files.
    #[test]
    fn an_entry_without_a_check_time_decodes_as_never_checked() {
        let entry = EvictableEntry { last_use: Timestamp(7), size_bytes: 9, last_verified: Timestamp(8) };
        assert_eq!(EvictableEntry::decode(&entry.encode_entry()), Some(entry.clone()));
        assert_eq!(
            EvictableEntry::decode(&entry.encode_entry()[..16]),
            Some(EvictableEntry { last_verified: Timestamp(0), ..entry.clone() })
        );
        for length in [0, 7, 8, 15, 17, 23] {
            assert_eq!(EvictableEntry::decode(&entry.encode_entry()[..length]), None, "{length}");
        }
    }

    /// An index that an older larder closed cleanly has no names, so it is incomplete (promise 9).
    #[test]
    fn only_a_mark_of_the_current_index_version_is_trusted() {
        let totals = Totals {
            archives: 1,
            archive_bytes: 2,
            documents: 3,
            document_bytes: 4,
            page_bytes: 5,
            first_seen: 6,
            first_seen_bytes: 7,
        };
        let mark = totals.mark();
        assert_eq!(Totals::in_mark(&mark), Some(totals));
        let (of_older, of_newer) = (FORMAT.to_be_bytes().to_vec(), [&FORMAT.to_be_bytes()[..], &[9; 60]].concat());
        for other in [Vec::new(), of_older, of_newer, mark[..mark.len() - 1].to_vec(), [&mark[..], &[0]].concat()] {
            assert_eq!(Totals::in_mark(&other), None, "{other:?}");
        }
    }

    /// The default limit of a new store fits its disk (promise 9).
    #[test]
    fn the_default_limit_fits_the_disk_and_does_not_shrink_as_it_fills() {
        const GIB: u64 = 1 << 30;
        let share = SizeLimit::ShareOfDisk;
        assert_eq!((share.bytes(0, 50 * GIB), share.bytes(40 * GIB, 10 * GIB)), (40 * GIB, 40 * GIB));
        assert_eq!(share.bytes(40 * GIB, 0), 40 * GIB);
        assert_eq!((share.bytes(0, 4_000 * GIB), share.bytes(u64::MAX, 1)), (200 * GIB, 200 * GIB));
        assert_eq!((SizeLimit::Bytes(7).bytes(0, 0), share.bytes(0, 0)), (7, 0));
    }

    proptest! {
        /// An entry round-trips, and nothing else parses as one.
        #[test]
        fn an_encoded_name_decodes_to_itself(pinned: bool, imported: bool, archives: Vec<([u8; 32], bool)>, other: Vec<u8>) {
            let listed = |(digest, lacks_hashes)| ListedArchive { digest: Digest::from_bytes(digest), lacks_hashes };
            let name = IndexedName { pinned, imported, archives: archives.into_iter().map(listed).collect() };
            let encoded = name.encode();
            prop_assert_eq!(IndexedName::decode(&encoded), Some(name));
            prop_assert_eq!(IndexedName::decode(&encoded[..encoded.len() - 1]), None);
            if let Some(read) = IndexedName::decode(&other) {
                prop_assert_eq!(read.archives.len(), (other.len() - 1) / 33);
            }
        }
    }
}
