//! Lists the stored packages, a page at a time.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::address::{Address, AddressFilter, Artifact, PackageRef, WaitingVersion};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::library::{NameRecord, StoredArchive};
use crate::mirror::{Library, Operations};
use crate::store::{IndexedArchive, NameCursor, StoreError};
use crate::verify::ProofBasis;

/// A page of the stored packages, in the order of registry, kind, address and version as text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StoredPage {
    /// The packages.
    pub packages: Vec<StoredPackage>,
    /// The versions of these packages that larder does not list while offline, because they wait for sealed platforms.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingVersion>,
    /// The `after` of the next page; `None` if this is the last one.
    pub next: Option<String>,
}

/// A package of which an archive is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StoredPackage {
    /// Its address and version, and the platform of a provider.
    #[serde(flatten)]
    pub package: PackageRef,
    /// True if it is exempt from eviction.
    pub pinned: bool,
    /// Its stored archives, the one that was stored last first. A republished version has several.
    pub archives: Vec<PackageArchive>,
}

/// A stored archive of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PackageArchive {
    /// Its SHA-256.
    pub sha256: Digest,
    /// Its file name.
    pub filename: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The proof.
    #[serde(flatten)]
    pub verified: VerifiedBy,
    /// Findings that did not prevent the proof, such as an expired key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The origin that it was fetched from.
    pub origin: String,
    /// The time when it was stored.
    pub stored: Timestamp,
    /// The time of the last request for it.
    pub last_use: Timestamp,
    /// The time when all its bytes were last compared with the digest.
    pub last_verified: Timestamp,
}

/// The proof of an archive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "verified", rename_all = "kebab-case")]
pub enum VerifiedBy {
    /// A key that the registry lists signed its SHA256SUMS.
    Signature {
        /// The fingerprint of the primary key, as upper-case hex.
        key: String,
    },
    /// Its SHA256SUMS: the registry lists no key.
    NoKeys,
    /// Its SHA256SUMS: `verification = "checksum"`.
    Checksum,
    /// The operator vouches for it: it was imported without a signature.
    Imported,
    /// larder packed it from the tree that was seen first.
    Tree {
        /// The digest of the tree.
        tree: Digest,
        /// The git commit, if the source is git.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        commit: Option<String>,
    },
}

impl From<&ProofBasis> for VerifiedBy {
    fn from(basis: &ProofBasis) -> Self {
        match basis {
            ProofBasis::Signature { fingerprint } => Self::Signature { key: fingerprint.clone() },
            ProofBasis::NoKeys => Self::NoKeys,
            ProofBasis::Checksum => Self::Checksum,
            ProofBasis::Imported => Self::Imported,
            ProofBasis::Tree(packed) => Self::Tree { tree: packed.tree_digest, commit: packed.commit.clone() },
        }
    }
}

impl StoredPackage {
    /// The size of its stored archives, in bytes.
    pub fn bytes(&self) -> u64 {
        self.archives.iter().map(|archive| archive.bytes).sum()
    }
}

impl Operations {
    /// Returns the stored packages that the filter includes, from the first one after `after`. A page ends before it
    /// would have more than `max_archives` archives, and has at least one package if there is one. Waits until the index
    /// is complete.
    ///
    /// # Errors
    /// The store failed.
    pub async fn list(
        &self,
        filter: AddressFilter,
        after: Option<NameCursor>,
        max_archives: usize,
    ) -> Result<StoredPage, Error> {
        self.library.refresh_all().await?;
        self.library.on_complete_index(move |library| page(library, &filter, after.as_ref(), max_archives)).await
    }
}

fn page(
    library: &Library,
    filter: &AddressFilter,
    after: Option<&NameCursor>,
    max_archives: usize,
) -> Result<StoredPage, StoreError> {
    let (mut names, mut archives, mut is_last) = (Vec::new(), 0, true);
    library.each_name_of(filter, after, |artifact, name| {
        let listed = name.archives.len();
        if listed == 0 {
            return ControlFlow::Continue(());
        }
        if !names.is_empty() && archives + listed > max_archives {
            is_last = false;
            return ControlFlow::Break(());
        }
        archives += listed;
        names.push(artifact);
        ControlFlow::Continue(())
    })?;
    let next = names.last().filter(|_| !is_last).map(|last| NameCursor::of(last).as_str().to_owned());
    let mut packages = Vec::with_capacity(names.len());
    for (artifact, name) in names.iter().zip(library.catalog.name_records(&names)?) {
        packages.extend(library.package_of(artifact, name)?);
    }
    let addresses: BTreeSet<Address> = names.iter().map(Address::from).collect();
    let config = library.runtime.config();
    let mut waiting = Vec::new();
    for address in &addresses {
        waiting.extend(library.read_waiting_versions(address, &config)?);
    }
    Ok(StoredPage { packages, waiting, next })
}

impl Library {
    /// Reads what is stored of a package; `None` if no archive of it is stored any more.
    pub fn stored_package(&self, artifact: &Artifact) -> Result<Option<StoredPackage>, StoreError> {
        self.package_of(artifact, self.catalog.name_record(artifact)?)
    }

    fn package_of(&self, artifact: &Artifact, name: NameRecord) -> Result<Option<StoredPackage>, StoreError> {
        let mut archives = Vec::with_capacity(name.archives.len());
        for archive in name.archives.into_iter().rev() {
            // The index knows the files that are here. A name may list one that was lost, unless all replicas have it.
            let indexed = match self.file_use(&archive.digest)? {
                None if self.shared_archives().is_some() => Some(IndexedArchive {
                    digest: archive.digest,
                    size_bytes: archive.size_bytes,
                    last_use: archive.stored_at,
                    last_verified: archive.stored_at,
                }),
                indexed => indexed,
            };
            if let Some(indexed) = indexed {
                let StoredArchive { digest, filename, size_bytes, proof, origin, stored_at, .. } = archive;
                archives.push(PackageArchive {
                    sha256: digest,
                    filename: filename.as_str().to_owned(),
                    bytes: size_bytes,
                    verified: VerifiedBy::from(&proof.how),
                    warnings: proof.warnings,
                    origin,
                    stored: stored_at,
                    last_use: indexed.last_use,
                    last_verified: indexed.last_verified,
                });
            }
        }
        let package = PackageRef::from(artifact);
        Ok((!archives.is_empty()).then_some(StoredPackage { package, pinned: name.pinned, archives }))
    }
}
