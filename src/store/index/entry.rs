//! Entries of the index, and their keys.

use super::super::Key;
use crate::clock::Timestamp;
use crate::digest::Digest;

pub(super) const ARCHIVE: u8 = b'a';
pub(super) const DOCUMENT: u8 = b'd';
pub(super) const PAGE: u8 = b'p';
/// Pages and locations count in whole disk blocks; otherwise many small ones would exceed the limit.
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
    pub last_check: Timestamp,
}

impl IndexedArchive {
    pub(super) fn new(digest: Digest, entry: &EvictableEntry) -> Self {
        Self { digest, size_bytes: entry.size_bytes, last_use: entry.last_use, last_check: entry.last_check }
    }
}

/// An entry that can be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EvictableEntry {
    pub(super) last_use: Timestamp,
    /// Bytes counted against the limit.
    pub(super) size_bytes: u64,
    /// For an archive: last comparison of all bytes with the digest.
    pub(super) last_check: Timestamp,
}

impl EvictableEntry {
    /// The entry for a file that was found on disk, merged with the previous entry.
    pub(super) fn found(previous: Option<Self>, size_bytes: u64, last_use: Timestamp, last_check: Timestamp) -> Self {
        let found = Self { last_use, size_bytes, last_check };
        previous.map_or(found.clone(), |previous| Self {
            last_use: previous.last_use.max(last_use),
            size_bytes,
            last_check: previous.last_check.max(last_check),
        })
    }

    pub(super) fn encode(&self) -> [u8; 24] {
        let mut value = [0; 24];
        value[..8].copy_from_slice(&self.last_use.0.to_be_bytes());
        value[8..16].copy_from_slice(&self.size_bytes.to_be_bytes());
        value[16..].copy_from_slice(&self.last_check.0.to_be_bytes());
        value
    }

    pub(super) fn decode(value: &[u8]) -> Option<Self> {
        let number = |bytes: &[u8]| Some(u64::from_be_bytes(bytes.try_into().ok()?));
        let (last_use, rest) = value.split_at_checked(8)?;
        // Entries of older larders have no time of the last check: they count as never checked.
        let (size_bytes, last_check) = if rest.len() == 8 { (rest, &[0; 8][..]) } else { rest.split_at_checked(8)? };
        Some(Self {
            last_use: Timestamp(number(last_use)?),
            size_bytes: number(size_bytes)?,
            last_check: Timestamp(number(last_check)?),
        })
    }
}

pub(super) fn archive_key(digest: &Digest) -> Vec<u8> {
    [&[ARCHIVE], digest.to_string().as_bytes()].concat()
}

pub(super) fn document_key(key: &Key) -> Vec<u8> {
    let kind = if matches!(key, Key::Page(..)) { PAGE } else { DOCUMENT };
    [&[kind], key.path().as_os_str().as_encoded_bytes()].concat()
}

/// Bytes that a document counts against the limit.
pub(super) fn counted_bytes(key: &Key, size_bytes: u64) -> u64 {
    match key {
        Key::Page(..) | Key::ModuleLocation(_) | Key::ModuleVersions(_) => {
            size_bytes.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(size_bytes)
        }
        _ => size_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A newer binary reads older files (DESIGN, section 5).
    #[test]
    fn an_entry_without_a_check_time_decodes_as_never_checked() {
        let entry = EvictableEntry { last_use: Timestamp(7), size_bytes: 9, last_check: Timestamp(8) };
        assert_eq!(EvictableEntry::decode(&entry.encode()), Some(entry.clone()));
        assert_eq!(
            EvictableEntry::decode(&entry.encode()[..16]),
            Some(EvictableEntry { last_check: Timestamp(0), ..entry.clone() })
        );
        for length in [0, 7, 8, 15, 17, 23] {
            assert_eq!(EvictableEntry::decode(&entry.encode()[..length]), None, "{length}");
        }
    }
}
