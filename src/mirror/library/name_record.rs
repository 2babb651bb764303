//! The name record: the archives stored for a package, with their hashes and proof.

use serde::{Deserialize, Serialize};

use crate::address::FileName;
use crate::clock::Timestamp;
use crate::digest::{Digest, DigestPrefix, FastHash};
use crate::mirror::library::proof_set::ProofSet;
use crate::store::{IndexedName, ListedArchive, StoreError};
use crate::upstream::outbound::origin;
use crate::verify::{PackedTree, Proof, ProofBasis};

/// An archive listed in a name: it was verified, and its bytes are or were stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredArchive {
    /// The SHA-256, which is also its `zh:` hash.
    pub digest: Digest,
    /// The BLAKE3 hash that reads are checked against.
    pub fast: FastHash,
    /// The file name.
    pub filename: FileName,
    /// The size in bytes.
    pub size_bytes: u64,
    /// Both `h1:` hashes, once computed.
    #[serde(default)]
    pub hashes: PackageHashState,
    /// The proof of its set.
    pub proof: Proof,
    /// The packer of the zip.
    #[serde(default, skip_serializing_if = "ZipOrigin::is_the_publishers")]
    pub zip: ZipOrigin,
    /// The origin it was fetched from.
    pub origin: String,
    /// The time it was last stored.
    pub kept: Timestamp,
    /// The time these bytes were first stored under this name, if earlier than `kept`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_kept: Option<Timestamp>,
}

impl StoredArchive {
    /// The time these bytes were first stored under this name, for Last-Modified. It restarts when they were evicted
    /// and fetched again.
    pub fn first_stored(&self) -> Timestamp {
        self.first_kept.unwrap_or(self.kept)
    }

    /// The entry for an archive that larder packed from a module tree.
    ///
    /// # Errors
    /// None: the file name is a constant.
    pub(in crate::mirror) fn of_tree(
        tree: PackedTree,
        digest: Digest,
        fast: FastHash,
        size_bytes: u64,
        origin: String,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            digest,
            fast,
            filename: FileName::parse(MODULE_FILE_NAME).map_err(|e| StoreError::Index(e.to_string()))?,
            size_bytes,
            hashes: PackageHashState::NotYet,
            proof: Proof { how: ProofBasis::Tree(tree), warnings: Vec::new() },
            zip: ZipOrigin::Published,
            origin,
            kept: now,
            first_kept: None,
        })
    }

    /// The entry for the archive that a verified set names.
    pub(in crate::mirror) fn of_set(set: &ProofSet, fast: FastHash, size_bytes: u64, now: Timestamp) -> Self {
        Self {
            digest: set.document.shasum,
            fast,
            filename: set.document.filename.clone(),
            size_bytes,
            hashes: PackageHashState::NotYet,
            proof: set.proof().clone(),
            zip: ZipOrigin::Published,
            origin: origin(&set.document.archive_url),
            kept: now,
            first_kept: None,
        }
    }
}

const MODULE_FILE_NAME: &str = "module.tar.gz";

/// The packer of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZipOrigin {
    /// The publisher. Always this value for modules.
    #[default]
    Published,
    /// larder, for a provider that was imported unpacked: its `h1:` is the publisher's, its `zh:` is not.
    PackedAnew,
}

impl ZipOrigin {
    fn is_the_publishers(&self) -> bool {
        *self == Self::Published
    }
}

/// The state of an archive's package hashes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PackageHashState {
    /// Not computed yet.
    #[default]
    NotYet,
    /// Both flavours (PROTOCOL 5.3).
    Known {
        /// The hash that clients compute from the zip.
        zip: String,
        /// The hash that clients compute from the unpacked tree.
        directory: String,
    },
    /// Not computable: no client could read the zip.
    Impossible {
        /// The reason.
        why: String,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::mirror) struct NameRecord {
    /// The archives, oldest first. The last one was stored last.
    pub(in crate::mirror) archives: Vec<StoredArchive>,
    /// True if it is exempt from eviction.
    #[serde(default)]
    pub(in crate::mirror) pinned: bool,
}

impl NameRecord {
    /// Adds an archive as the last one stored. The same bytes are listed once.
    pub(in crate::mirror) fn put(&mut self, mut archive: StoredArchive) {
        if let Some(before) =
            self.get(&archive.digest).map(StoredArchive::first_stored).filter(|first| *first < archive.kept)
        {
            archive.first_kept = Some(before);
        }
        self.archives.retain(|before| before.digest != archive.digest);
        self.archives.push(archive);
    }

    pub(in crate::mirror) fn get(&self, digest: &Digest) -> Option<&StoredArchive> {
        self.archives.iter().find(|archive| archive.digest == *digest)
    }

    /// True if any archive was imported without signatures.
    pub(in crate::mirror) fn is_imported(&self) -> bool {
        self.archives.iter().any(|archive| archive.proof.how == ProofBasis::Imported)
    }

    /// The index entry of the name.
    pub(in crate::mirror) fn indexed(&self) -> IndexedName {
        let listed = |archive: &StoredArchive| ListedArchive {
            digest: archive.digest,
            lacks_hashes: archive.hashes == PackageHashState::NotYet,
        };
        let archives = self.archives.iter().map(listed).collect();
        IndexedName { pinned: self.pinned, imported: self.is_imported(), archives }
    }

    pub(in crate::mirror) fn find(&self, prefix: &DigestPrefix) -> Option<&StoredArchive> {
        self.archives.iter().find(|archive| prefix.matches(&archive.digest))
    }
}
