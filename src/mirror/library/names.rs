//! The record of a name: the archives that are stored for a package, and what was computed of each.

use serde::{Deserialize, Serialize};

use super::super::proof_set::ProofSet;
use crate::address::FileName;
use crate::clock::Timestamp;
use crate::digest::{Digest, DigestPrefix, FastHash};
use crate::store::{IndexedName, ListedArchive};
use crate::upstream::outbound::origin;
use crate::verify::{How, Proof};

/// An archive that a name lists: it was proven, and its bytes are (or were) held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldArchive {
    /// Its SHA-256, which is also its `zh:`.
    pub digest: Digest,
    /// What it is checked against when it is read.
    pub fast: FastHash,
    /// Its file name.
    pub filename: FileName,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Both `h1:`, once they are computed.
    #[serde(default)]
    pub hashes: PackageHashesKnown,
    /// How its set was proven.
    pub proof: Proof,
    /// Whose zip it is.
    #[serde(default, skip_serializing_if = "Zip::is_the_publishers")]
    pub zip: Zip,
    /// The origin it was fetched from.
    pub origin: String,
    /// When it was kept.
    pub kept: Timestamp,
    /// When these bytes were first kept under this name, where that was before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_kept: Option<Timestamp>,
}

impl HeldArchive {
    /// When these bytes were first stored under this name, for Last-Modified. Bytes that were evicted and fetched again
    /// count from then.
    pub fn first_stored(&self) -> Timestamp {
        self.first_kept.unwrap_or(self.kept)
    }

    /// The archive that a verified set names, as it is recorded when it is stored.
    pub(in crate::mirror) fn of_set(set: &ProofSet, fast: FastHash, size_bytes: u64, now: Timestamp) -> Self {
        Self {
            digest: set.document.shasum,
            fast,
            filename: set.document.filename.clone(),
            size_bytes,
            hashes: PackageHashesKnown::NotYet,
            proof: set.proof().clone(),
            zip: Zip::Published,
            origin: origin(&set.document.archive_url),
            kept: now,
            first_kept: None,
        }
    }
}

/// Who packed an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Zip {
    /// Its publisher, as far as anybody knows. Of modules it says nothing.
    #[default]
    Published,
    /// larder, of a provider that was imported unpacked: its `zh:` is nobody else's, and its `h1:` is the publisher's.
    PackedAnew,
}

impl Zip {
    fn is_the_publishers(&self) -> bool {
        *self == Self::Published
    }
}

/// What is known of an archive's package hashes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PackageHashesKnown {
    /// They were not computed yet.
    #[default]
    NotYet,
    /// Both flavours (PROTOCOL 5.3).
    Known {
        /// As clients compute it of the zip.
        zip: String,
        /// As clients compute it of the unpacked tree.
        directory: String,
    },
    /// They cannot be: it is no zip that a client could read.
    Impossible {
        /// Why.
        why: String,
    },
}

/// The record of a name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::mirror) struct NameRecord {
    /// The archive that was kept last, and those before it.
    pub(in crate::mirror) archives: Vec<HeldArchive>,
    /// Whether eviction leaves it alone.
    #[serde(default)]
    pub(in crate::mirror) pinned: bool,
}

impl NameRecord {
    /// Lists an archive as the last that was stored; the same bytes are listed once.
    pub(in crate::mirror) fn put(&mut self, mut held: HeldArchive) {
        if let Some(before) = self.get(&held.digest).map(HeldArchive::first_stored).filter(|first| *first < held.kept) {
            held.first_kept = Some(before);
        }
        self.archives.retain(|before| before.digest != held.digest);
        self.archives.push(held);
    }

    pub(in crate::mirror) fn get(&self, digest: &Digest) -> Option<&HeldArchive> {
        self.archives.iter().find(|held| held.digest == *digest)
    }

    /// Whether any of its archives was imported without signatures.
    pub(in crate::mirror) fn is_imported(&self) -> bool {
        self.archives.iter().any(|held| held.proof.how == How::Imported)
    }

    /// What the index is told of it.
    pub(super) fn indexed(&self) -> IndexedName {
        let listed = |held: &HeldArchive| ListedArchive {
            digest: held.digest,
            lacks_hashes: held.hashes == PackageHashesKnown::NotYet,
        };
        let archives = self.archives.iter().map(listed).collect();
        IndexedName { pinned: self.pinned, imported: self.is_imported(), archives }
    }

    pub(in crate::mirror) fn find(&self, prefix: &DigestPrefix) -> Option<&HeldArchive> {
        self.archives.iter().find(|held| prefix.matches(&held.digest))
    }
}
