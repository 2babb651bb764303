//! The archives of a version, with the sizes and hashes of those that are stored, and of those that were once.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::address::{Address, Package, Platform, ProviderAddress, Version};
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::Library;
use crate::mirror::library::default_if_store_unavailable;
use crate::mirror::library::first_seen::{DroppedArchive, VersionHistory};
use crate::mirror::library::proof_set::ProofSet;
use crate::mirror::library::{PackageHashState, StoredArchive, ZipOrigin};

/// The archives of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionArchives {
    /// Their digests.
    pub archives: BTreeMap<Platform, Digest>,
    /// True if every zip of SHA256SUMS is among them.
    pub is_complete: bool,
}

/// The size, hashes and packer of an archive that this larder has, or had once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownArchive {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its `h1:` hashes.
    pub hashes: PackageHashState,
    /// The packer of the zip.
    pub zip: ZipOrigin,
}

impl From<&StoredArchive> for KnownArchive {
    fn from(archive: &StoredArchive) -> Self {
        Self { size_bytes: archive.size_bytes, hashes: archive.hashes.clone(), zip: archive.zip }
    }
}

impl From<&DroppedArchive> for KnownArchive {
    fn from(archive: &DroppedArchive) -> Self {
        Self { size_bytes: archive.size_bytes, hashes: archive.hashes.clone(), zip: ZipOrigin::Published }
    }
}

impl Library {
    /// Returns the sizes and hashes of these archives of a version: of those that are stored, and of those that were once.
    /// Nothing is computed.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn known_archives(
        self: &Arc<Self>,
        provider: &ProviderAddress,
        version: &Version,
        wanted: BTreeMap<Platform, Digest>,
    ) -> Result<BTreeMap<Platform, KnownArchive>, Error> {
        let (provider, version) = (provider.clone(), version.clone());
        self.on_disk(move |library| {
            // Nothing is lost without it but hashes, which are computed anew.
            let unreadable = |error| {
                tracing::warn!(%provider, %version, %error, "the hashes of evicted archives cannot be read");
                VersionHistory::default()
            };
            let history =
                LazyCell::new(|| library.histories.of_version(&provider, &version).unwrap_or_else(unreadable));
            let mut known = BTreeMap::new();
            for (platform, digest) in wanted {
                let package = Package { provider: provider.clone(), version: version.clone(), platform };
                let name = default_if_store_unavailable(library.catalog.name_record(&package))?;
                let stored = name.get(&digest).map(KnownArchive::from);
                let archive = stored.or_else(|| history.dropped(&digest).map(KnownArchive::from));
                known.extend(archive.map(|archive| (package.platform, archive)));
            }
            Ok(known)
        })
        .await
    }

    /// The archives of a version: those that SHA256SUMS names in the conventional way, and the one of the document.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn archives_of_version(
        self: &Arc<Self>,
        package: &Package,
        set: &ProofSet,
    ) -> Result<VersionArchives, Error> {
        let Package { provider, version, platform } = package;
        let list = self.stored_version_list(&Address::from(provider)).await?;
        let listed = list.as_ref().and_then(|list| list.get(version));
        let spelling = listed.map_or(version.as_str(), |listed| listed.upstream_spelling.as_str());
        let named = set.conventional_archives(provider.type_.as_str(), &[version.as_str(), spelling]);
        let zips = set.sums_lines().iter().filter(|(name, _)| name.to_ascii_lowercase().ends_with(".zip")).count();
        let is_complete = zips > 0 && named.len() == zips;
        let named = named.into_iter().map(|(platform, _, digest)| (platform, digest));
        Ok(VersionArchives { archives: named.chain([(platform.clone(), set.document.shasum)]).collect(), is_complete })
    }
}
