//! Finds the versions that can be installed from the store, by reading the files.

use std::sync::Arc;

use crate::address::{
    Address, Artifact, ModulePackage, Package, Platform, ProviderAddress, Selection, Version, WaitingVersion,
};
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::library::default_if_store_unavailable;
use crate::mirror::library::file_refs::ArchiveRef;
use crate::mirror::library::module_history;
use crate::mirror::library::{NameRecord, StoredArchive};
use crate::mirror::required_platforms::StoredVersions;
use crate::mirror::{Connectivity, Library, RuntimeConfig};
use crate::store::{Key, ReadOutcome, StoreError};
use crate::verify::VerificationPolicy;

/// The most earlier versions that are looked at for one to use instead of a refused one.
const MAX_EARLIER: usize = 20;

impl Library {
    /// The versions of an address, in the canonical spelling, that can be installed from the store. Blocks.
    pub fn read_stored_versions(
        &self,
        address: &Address,
        config: &RuntimeConfig,
    ) -> Result<StoredVersions, StoreError> {
        let mut stored = StoredVersions::new();
        match address {
            Address::Provider(provider) => {
                let Some(upstream) = config.upstreams.get(&provider.host) else { return Ok(stored) };
                for package in default_if_store_unavailable(self.store.records.packages_with_sets(provider))? {
                    if skip_unreadable(&package, self.holds_package(&package, upstream.settings.verification))? {
                        stored.entry(package.version).or_default().insert(package.platform);
                    }
                }
            }
            Address::Module(_) => {
                for artifact in default_if_store_unavailable(self.named(address))? {
                    let Artifact::Module(package) = artifact else { continue };
                    let archive = self.current_module_archive(&package);
                    if skip_unreadable(&package, archive.map(|archive| archive.is_some()))? {
                        stored.entry(package.version).or_default();
                    }
                }
            }
        }
        Ok(stored)
    }

    /// The stored versions of an address, in the canonical spelling, that larder does not list because they wait for
    /// sealed platforms, the newest first. None online, where every version is listed. Blocks.
    pub fn read_waiting_versions(
        &self,
        address: &Address,
        config: &RuntimeConfig,
    ) -> Result<Vec<WaitingVersion>, StoreError> {
        if self.runtime.connectivity() == Connectivity::Online || config.required_platforms.platforms().next().is_none()
        {
            return Ok(Vec::new());
        }
        let stored = default_if_store_unavailable(self.read_stored_versions(address, config))?;
        Ok(self.waiting_among(address, &stored, config))
    }

    /// The versions among the stored ones of an address that larder does not list, as [`Self::read_waiting_versions`].
    pub fn waiting_among(
        &self,
        address: &Address,
        stored: &StoredVersions,
        config: &RuntimeConfig,
    ) -> Vec<WaitingVersion> {
        match self.runtime.connectivity() {
            Connectivity::Online => Vec::new(),
            Connectivity::Offline => config.required_platforms.waiting(address, stored).collect(),
        }
    }

    /// True if the package can be installed: its set and that set's archive are stored.
    pub fn holds_package(&self, package: &Package, policy: VerificationPolicy) -> Result<bool, StoreError> {
        let Some(stored) = self.read_set(package)?.and_then(|stored| stored.meeting_policy(policy)) else {
            return Ok(false);
        };
        self.is_at_hand(&stored.offline_set().document.shasum)
    }

    /// The newest release before a package's version that can be installed on its platform from the store, and that is
    /// `permitted`. Blocks.
    pub fn newest_stored_before(
        &self,
        package: &Package,
        policy: VerificationPolicy,
        permitted: impl Fn(&Version) -> bool,
    ) -> Result<Option<Version>, StoreError> {
        let Package { provider, version, platform } = package;
        let mut earlier: Vec<Package> = default_if_store_unavailable(self.store.records.packages_with_sets(provider))?;
        earlier.retain(|stored| {
            stored.platform == *platform && stored.version < *version && !stored.version.is_pre_release()
        });
        earlier.sort_by(|one, other| other.version.cmp(&one.version));
        for stored in earlier.into_iter().take(MAX_EARLIER).filter(|stored| permitted(&stored.version)) {
            if skip_unreadable(&stored, self.holds_package(&stored, policy))? {
                return Ok(Some(stored.version));
            }
        }
        Ok(None)
    }

    /// Looks up the stored archive that one of our URLs names.
    pub async fn stored_archive_of_url(self: &Arc<Self>, wanted: &ArchiveRef) -> Result<Option<StoredArchive>, Error> {
        let ArchiveRef { digest, filename, .. } = wanted.clone();
        let find = move |name: &NameRecord| name.find(&digest).filter(|archive| archive.filename == filename).cloned();
        self.archive_in_name(&wanted.package, find).await
    }

    /// Returns the catalog entry of a stored archive, as this machine knows it: for a request that has asked what others have written.
    pub async fn archive_here(
        self: &Arc<Self>,
        package: &Package,
        digest: Digest,
    ) -> Result<Option<StoredArchive>, Error> {
        let artifact = Artifact::from(package);
        let name = self.on_disk(|library| default_if_store_unavailable(library.catalog.name_record(artifact))).await?;
        Ok(name.get(&digest).cloned())
    }

    /// Finds an archive in the name of a package: none while the store is unavailable.
    pub async fn archive_in_name(
        self: &Arc<Self>,
        artifact: impl Into<Artifact>,
        find: impl Fn(&NameRecord) -> Option<StoredArchive> + Send + 'static,
    ) -> Result<Option<StoredArchive>, Error> {
        let artifact = artifact.into();
        let group = Key::Name(artifact.clone()).group();
        let look = move |library: &Self| {
            let name = default_if_store_unavailable(library.catalog.name_record(artifact.clone()))?;
            Ok(find(&name))
        };
        self.on_disk(move |library| library.find(&group, || look(library))).await
    }

    /// Returns the catalog entry of a stored archive.
    pub async fn stored_archive(
        self: &Arc<Self>,
        package: &Package,
        digest: Digest,
    ) -> Result<Option<StoredArchive>, Error> {
        self.archive_in_name(package, move |name| name.get(&digest).cloned()).await
    }

    /// Syncs the documents that a warmed package needs, so that they survive a power cut. They were written without a
    /// sync, unlike the archive and its name.
    ///
    /// # Errors
    /// [`Error::NotStored`] where one is not stored, so that an `init` would have to ask upstream; the refusal of the bucket where the
    /// archive is owed to it.
    pub async fn sync_warmed(self: &Arc<Self>, artifact: impl Into<Artifact>, digest: Digest) -> Result<(), Error> {
        let artifact = self.runtime.canonical(artifact.into());
        let records = required_records(&artifact, self.runtime.connectivity());
        let kept = artifact.clone();
        let synced = self.on_disk(move |library| {
            library.require_kept(&kept)?;
            for key in records {
                if !library.store.records.sync(&key)? {
                    return Ok(Some(key));
                }
            }
            Ok(None)
        });
        match synced.await? {
            Some(key) => Err(self.not_stored_error(&key.to_string()).await),
            None if self.is_installable(&artifact, digest).await? => Ok(()),
            None => Err(self.not_stored_error(&format!("the archive of {artifact}")).await),
        }
    }

    /// Returns true if a package can be installed from the store alone, with this archive.
    pub async fn is_installable(
        self: &Arc<Self>,
        artifact: impl Into<Artifact>,
        digest: Digest,
    ) -> Result<bool, Error> {
        let artifact = self.runtime.canonical(artifact.into());
        self.on_disk(move |library| {
            for key in required_records(&artifact, library.runtime.connectivity()) {
                if matches!(library.store.records.read(&key)?, ReadOutcome::Absent | ReadOutcome::Damaged) {
                    return Ok(false);
                }
            }
            let is_proven = match &artifact {
                Artifact::Provider(package) => {
                    let set = library.read_set(package)?;
                    let sets = set.iter().flat_map(|set| [Some(&set.stored_set.current), set.fallback.as_ref()]);
                    sets.flatten().any(|set| set.document.shasum == digest)
                }
                Artifact::Module(_) => true,
            };
            Ok(is_proven && library.is_stored(&artifact, &digest)? && library.is_at_hand(&digest)?)
        })
        .await
    }

    /// The error for an object that was stored before and is missing now.
    pub async fn not_stored_error(self: &Arc<Self>, subject: &str) -> Error {
        match self.on_disk(|library| library.store.local.check()).await {
            Err(gone @ Error::Store(StoreError::Unavailable)) => gone,
            Err(_) | Ok(()) => Error::NotStored(subject.to_owned()),
        }
    }

    /// The selected packages whose sets are stored.
    pub async fn packages_with_sets_in(
        self: &Arc<Self>,
        selection: &Selection<ProviderAddress>,
    ) -> Result<Vec<Package>, Error> {
        let selection = selection.clone();
        self.on_disk(move |library| {
            let mut packages = library.store.records.packages_with_sets(&selection.of)?;
            packages.retain(|package| selection.versions.include(&package.version));
            packages.sort();
            Ok(packages)
        })
        .await
    }

    /// The current archive of a version, if one with the first-seen tree is stored.
    pub async fn stored_module(self: &Arc<Self>, key: &ModulePackage) -> Result<Option<StoredArchive>, Error> {
        let key = key.clone();
        let group = Key::Name(Artifact::Module(key.clone())).group();
        self.on_disk(move |library| library.find(&group, || library.current_module_archive(&key))).await
    }

    /// As [`Self::stored_module`], if its file is on this machine.
    pub async fn stored_module_here(self: &Arc<Self>, key: &ModulePackage) -> Result<Option<StoredArchive>, Error> {
        match self.stored_module(key).await? {
            Some(archive) if self.file_is_here(archive.digest).await? => Ok(Some(archive)),
            Some(_) | None => Ok(None),
        }
    }

    /// Reads the current archive of a version. Blocks.
    pub fn current_module_archive(&self, key: &ModulePackage) -> Result<Option<StoredArchive>, StoreError> {
        let name = default_if_store_unavailable(self.catalog.name_record(key))?;
        if name.archives.is_empty() {
            return Ok(None);
        }
        // An unreadable record does not hide a stored archive.
        let seen = module_history::read_first_seen(self, key).ok().and_then(ReadOutcome::intact);
        for archive in name.archives.into_iter().rev() {
            let is_first_seen_tree = match (&seen, archive.proof.how.tree()) {
                (Some(seen), Some(packed)) => seen.tree.packed.is_same_module(packed),
                (None, _) | (_, None) => true,
            };
            if is_first_seen_tree && default_if_store_unavailable(self.is_at_hand(&archive.digest))? {
                return Ok(Some(archive));
            }
        }
        Ok(None)
    }

    /// The platforms of a version whose sets are stored.
    pub async fn platforms_with_sets(
        self: &Arc<Self>,
        provider: &ProviderAddress,
        version: &Version,
    ) -> Result<Vec<Platform>, Error> {
        let (provider, version) = (provider.clone(), version.clone());
        self.on_disk(move |library| {
            default_if_store_unavailable(library.store.records.platforms_with_sets(&provider, &version))
        })
        .await
    }

    /// True if larder packed the archive from an unpacked import. No published archive has its digest.
    pub fn is_repacked(&self, package: &Package, digest: Digest) -> Result<bool, StoreError> {
        Ok(self.catalog.name_record(package)?.is_repacked(&digest))
    }

    /// True if an archive of the package was imported without signatures.
    pub async fn was_imported(self: &Arc<Self>, package: &Package) -> Result<bool, Error> {
        let package = package.clone();
        let name =
            self.on_disk(move |library| default_if_store_unavailable(library.catalog.name_record(&package))).await?;
        Ok(name.is_imported())
    }

    /// Syncs the discovery document and the version list of a provider.
    pub async fn sync_provider_documents(self: &Arc<Self>, provider: &ProviderAddress) -> Result<(), Error> {
        let keys = [Key::discovery(&provider.host), Key::version_list(provider)];
        self.on_disk(move |library| keys.iter().try_for_each(|key| library.store.records.sync(key).map(drop))).await
    }
}

/// One unreadable package hides no other. A missing store hides all.
fn skip_unreadable(
    subject: &impl std::fmt::Display,
    is_installable: Result<bool, StoreError>,
) -> Result<bool, StoreError> {
    match is_installable {
        Err(StoreError::Unavailable) => Err(StoreError::Unavailable),
        Err(error) => {
            tracing::error!(%subject, %error, "its stored records cannot be read; it is not listed while offline");
            Ok(false)
        }
        is_installable => is_installable,
    }
}

/// The records that installing a package needs besides its archive and name. Offline, lists and locations are made from
/// the store and no discovery document is used.
pub(super) fn required_records(artifact: &Artifact, connectivity: Connectivity) -> Vec<Key> {
    let (proof, location) = match artifact {
        Artifact::Provider(package) => (Key::ProofSet(package.clone()), None),
        Artifact::Module(package) => (Key::ModuleFirstSeen(package.clone()), Some(Key::location(package))),
    };
    let mut records = vec![proof];
    if connectivity == Connectivity::Online {
        records.extend([Key::discovery(artifact.host()), Key::version_list(artifact)]);
        records.extend(location);
    }
    records
}
