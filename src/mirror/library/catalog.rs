//! The name records of packages: each lists the stored archives of one package and its pin. Also the locks of archives,
//! and the generations that rendered answers depend on.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use crate::address::{
    Address, AddressFilter, Artifact, FileName, Hostname, ModuleAddress, PackageRef, Platform, ProviderAddress, Version,
};
use crate::clock::Timestamp;
use crate::digest::{Digest, DigestPrefix, FastHash};
use crate::mirror::Library;
use crate::mirror::library::is_default;
use crate::mirror::library::owed::OwedArchives;
use crate::mirror::library::pins::{PinChange, PinOutcome, PinResult};
use crate::store::{
    Durability, FileVersion, GroupRef, IndexEntry, IndexedName, Key, ListedArchive, NameCursor, RecordAction,
    RecordStep, Store, StoreError, Striped, to_json,
};
use crate::verify::{PackageHashes, PackedTree, Proof, ProofBasis};

const MAX_IMPORTED_LISTED: usize = 1000;

/// The name records of stored packages.
#[derive(Debug)]
pub struct Catalog {
    pub(super) store: Arc<Store>,
    /// The archives of this machine that have receipts instead of names.
    pub(in crate::mirror) owed: OwedArchives,
    digest_locks: Striped<Mutex<()>>,
    /// Counters that grow when the file of an archive comes or goes. Addresses may share one, which only renders answers
    /// more often than needed.
    presence: Striped<AtomicU64>,
    /// Of each archive the file that was compared with its digest since the start. A request may have opened another one before that.
    pub checked_files: Mutex<HashMap<Digest, FileVersion>>,
}

impl Catalog {
    /// The names in a store.
    ///
    /// # Errors
    /// The receipts of this machine cannot be read.
    pub fn open(store: Arc<Store>) -> Result<Self, StoreError> {
        Ok(Self {
            owed: OwedArchives::load(Arc::clone(&store))?,
            store,
            digest_locks: Striped::default(),
            presence: Striped::default(),
            checked_files: Mutex::default(),
        })
    }

    /// The lock for storing or removing an archive.
    pub fn digest_lock(&self, digest: &Digest) -> &Mutex<()> {
        self.digest_locks.of(digest)
    }

    /// Reads the name record of a package, with what this machine owes to it. Returns an empty one if it is absent, or damaged and
    /// thus quarantined.
    pub fn name_record(&self, artifact: impl Into<Artifact>) -> Result<NameRecord, StoreError> {
        let artifact = artifact.into();
        let owed = self.owed.of_name(&artifact);
        let mut name = match self.store.records.read_as(&Key::Name(artifact.clone()), NameRecord::parse) {
            // Nobody is needed for an archive that is here.
            Err(StoreError::Unreachable(_)) if !owed.is_empty() => NameRecord::default(),
            read => read?.intact().unwrap_or_default(),
        };
        self.owed.add_to(&artifact, &mut name, owed)?;
        Ok(name)
    }

    /// The name records of many packages, in their order: as [`Self::name_record`].
    pub fn name_records(&self, artifacts: &[Artifact]) -> Result<Vec<NameRecord>, StoreError> {
        let records = self.store.records.name_records(artifacts)?;
        let name = |(artifact, record): (&Artifact, Option<Vec<u8>>)| {
            let mut name = record.and_then(NameRecord::parse).unwrap_or_default();
            self.owed.add_to(artifact, &mut name, self.owed.of_name(artifact))?;
            Ok(name)
        };
        artifacts.iter().zip(records).map(name).collect()
    }

    /// Reads a name record within a step, as all replicas have it.
    pub(super) fn name_record_in(
        step: &RecordStep<'_>,
        artifact: impl Into<Artifact>,
    ) -> Result<NameRecord, StoreError> {
        Ok(step.read_as(&Key::Name(artifact.into()), NameRecord::parse)?.intact().unwrap_or_default())
    }

    /// Reads a name record, changes it, and writes it back synced, in one step. An empty one is removed.
    pub fn change_name_record(
        &self,
        artifact: impl Into<Artifact>,
        mut change: impl FnMut(&mut NameRecord),
    ) -> Result<(), StoreError> {
        let artifact = artifact.into();
        let key = Key::Name(artifact.clone());
        self.store.records.change(&key, |step| {
            let before = Self::name_record_in(step, artifact.clone())?;
            let mut name_record = before.clone();
            change(&mut name_record);
            let action = if name_record == before {
                // The record stays, but its index entry is written again: if the record was damaged, the index may
                // still contain that of the lost one.
                RecordAction::Keep
            } else if name_record.archives.is_empty() && !name_record.pinned {
                // Not synced: a power cut may bring the record back, which is harmless, because its archive is stored
                // or can be fetched again.
                RecordAction::Remove(Durability::Lazy)
            } else {
                RecordAction::Put(to_json(&name_record), Durability::Synced)
            };
            step.change(&key, action, IndexEntry::Name(name_record.indexed()));
            Ok(())
        })
    }

    /// Packages imported without signatures and not verified since, at most [`MAX_IMPORTED_LISTED`].
    pub fn imported(&self) -> Vec<PackageRef> {
        let imported = self.store.records.imported_names(MAX_IMPORTED_LISTED).unwrap_or_else(|error| {
            tracing::warn!(%error, "unsigned imports cannot be listed");
            Vec::new()
        });
        let mut imported: Vec<PackageRef> = imported.iter().map(PackageRef::from).collect();
        imported.sort();
        imported
    }
}

impl Library {
    /// The generation of what is shown of a provider: of its records, and of its files on this machine. What was made of an
    /// earlier generation is made anew.
    pub fn generation(&self, address: &ProviderAddress) -> u64 {
        self.generation_of(GroupRef::Provider(address))
    }

    /// The generation of what is shown of a module, regardless of the spelling of its name.
    pub fn generation_of_module(&self, address: &ModuleAddress) -> u64 {
        self.generation_of(GroupRef::Module(&address.folded()))
    }

    /// The generation of the pages of a registry.
    pub fn generation_of_pages(&self, host: &Hostname) -> u64 {
        self.generation_of(GroupRef::Registry(host))
    }

    /// The generation of a provider or module.
    pub fn generation_of_address(&self, address: &Address) -> u64 {
        match address {
            Address::Provider(provider) => self.generation(provider),
            Address::Module(module) => self.generation_of_module(module),
        }
    }

    fn generation_of(&self, group: GroupRef<'_>) -> u64 {
        // Both only grow, so every change makes another sum.
        let presence = self.catalog.presence.of(&group).load(Ordering::Acquire);
        self.store.records.generation_now(group).0.wrapping_add(presence)
    }

    /// Changes what a name says of one of its archives, if it has that; also where this machine owes it.
    pub(in crate::mirror) fn change_archive(
        &self,
        artifact: impl Into<Artifact>,
        digest: &Digest,
        mut change: impl FnMut(&mut StoredArchive),
    ) -> Result<(), StoreError> {
        let artifact = artifact.into();
        if self.catalog.owed.change(digest, &artifact, &mut change)? {
            self.show_anew(&artifact);
        }
        self.catalog.change_name_record(artifact, |name| {
            if let Some(archive) = name.archives.iter_mut().find(|archive| archive.digest == *digest) {
                change(archive);
            }
        })
    }

    /// Takes all archives off a name, those that this machine owes to it, too.
    pub(in crate::mirror) fn clear_name(&self, artifact: impl Into<Artifact>) -> Result<(), StoreError> {
        let artifact = artifact.into();
        self.catalog.change_name_record(&artifact, |name| name.archives.clear())?;
        self.catalog.owed.forget_name(&artifact)
    }

    /// Makes anew what is shown of a package.
    pub(super) fn show_anew(&self, artifact: &Artifact) {
        let group = Key::Name(artifact.clone()).group();
        self.catalog.presence.of(&group.as_ref()).fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that the file of an archive came to this machine or went from it: offline, lists show what is here. What was made of a name is
    /// made of its record on this machine, so nobody else is asked.
    pub(super) fn presence_changed(&self, digest: &Digest) {
        let named = self.store.records.of_machine().names_of(digest);
        match named.map(|names| with_owed(names, self.catalog.owed.names_of(digest))) {
            Ok(names) => names.iter().for_each(|artifact| self.show_anew(artifact)),
            Err(error) => {
                tracing::error!(%digest, %error, "the names of an archive cannot be read; answers about it may be late")
            }
        }
    }

    /// The packages of an address with a name. A pinned one may list no archive. Blocks.
    pub fn named(&self, address: &Address) -> Result<Vec<Artifact>, StoreError> {
        Ok(with_owed(self.store.records.named(address)?, self.catalog.owed.named(address)))
    }

    /// The versions of an address that this larder has and a list does not name. Blocks.
    pub fn stored_besides(
        &self,
        names: Names<'_>,
        address: &Address,
        listed: &HashSet<Version>,
    ) -> Result<BTreeMap<Version, UnlistedVersion>, StoreError> {
        let mut unlisted: BTreeMap<Version, UnlistedVersion> = BTreeMap::new();
        for artifact in self.named(address)? {
            if listed.contains(artifact.version()) {
                continue;
            }
            let name = names.record(&artifact)?;
            if name.archives.is_empty() {
                continue;
            }
            let version = unlisted.entry(artifact.version().clone()).or_default();
            version.is_imported |= name.is_imported();
            if let Artifact::Provider(package) = artifact {
                version.platforms.insert(package.platform);
            }
        }
        Ok(unlisted)
    }

    /// The packages of all addresses with a name. Blocks.
    pub fn all_named(&self) -> Result<Vec<Artifact>, StoreError> {
        self.store.records.all_named()
    }

    /// The addresses of a registry with a version list or a name. `service` is `providers` or `modules`. Blocks.
    pub fn addresses_of(&self, host: &Hostname, service: &str) -> Result<BTreeSet<Address>, StoreError> {
        self.store.records.addresses_of(host, service)
    }

    /// The names that list an archive, in the index, and those to which this machine owes it. Blocks.
    pub fn names_of(&self, digest: &Digest) -> Result<Vec<Artifact>, StoreError> {
        Ok(with_owed(self.store.records.names_of(digest)?, self.catalog.owed.names_of(digest)))
    }

    /// The values that `choose` returns for names, in the index. Blocks.
    pub fn names<T>(&self, choose: impl FnMut(Artifact, IndexedName) -> Option<T>) -> Result<Vec<T>, StoreError> {
        self.store.records.names(choose)
    }

    /// Visits the names that a filter includes, in the order of their cursors: those after `after`, until `visit` breaks.
    /// Blocks.
    pub fn each_name_of(
        &self,
        filter: &AddressFilter,
        after: Option<&NameCursor>,
        mut visit: impl FnMut(Artifact, IndexedName) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.store.records.each_name_of(filter, after, &mut visit)
    }

    /// Locks all archives, so that none is stored or removed while names are removed.
    ///
    /// # Errors
    /// The index is incomplete, or a name cannot be read: it may list any archive, so none could be removed.
    pub fn lock_for_removal(&self) -> Result<Vec<MutexGuard<'_, ()>>, StoreError> {
        self.store.local.index.require_complete()?;
        match self.store.records.unreadable_name() {
            Some(unreadable) => Err(unreadable),
            None => Ok(self.catalog.digest_locks.stripes.iter().map(|lock| lock.lock()).collect()),
        }
    }

    pub(in crate::mirror) fn pin_each(
        &self,
        packages: &[Artifact],
        pin: PinChange,
    ) -> Result<Vec<PinResult>, StoreError> {
        let _nothing_is_evicted = self.evictor.block_evictions();
        let mut pinned = Vec::with_capacity(packages.len());
        for package in packages {
            let mut outcome = PinOutcome::NotStored;
            self.catalog.change_name_record(package, |name_record| {
                outcome = PinOutcome::NotStored;
                // A pin can be lifted even if no archive is left.
                if !name_record.archives.is_empty() || (name_record.pinned && pin == PinChange::Lift) {
                    let before = std::mem::replace(&mut name_record.pinned, pin == PinChange::Set);
                    outcome = match pin {
                        _ if before == name_record.pinned => PinOutcome::AsBefore,
                        PinChange::Set => PinOutcome::Pinned,
                        PinChange::Lift => PinOutcome::Unpinned,
                    };
                }
            })?;
            if matches!(outcome, PinOutcome::Pinned | PinOutcome::Unpinned) {
                tracing::info!(%package, ?outcome, "the operator changed a pin");
            }
            pinned.push(PinResult { package: package.into(), outcome });
        }
        Ok(pinned)
    }

    /// True if this larder has an archive of a package: its name lists it. Its bytes may be missing, as
    /// [`Library::is_at_hand`] says. Blocks.
    pub fn is_stored(&self, artifact: impl Into<Artifact>, digest: &Digest) -> Result<bool, StoreError> {
        Ok(self.catalog.name_record(artifact)?.get(digest).is_some())
    }
}

/// Names, and those to which archives are owed, each once.
fn with_owed(mut names: Vec<Artifact>, owed: Vec<Artifact>) -> Vec<Artifact> {
    if !owed.is_empty() {
        names.extend(owed);
        names.sort();
        names.dedup();
    }
    names
}

/// A way to read names.
#[derive(Debug, Clone, Copy)]
pub enum Names<'a> {
    /// Within a step, which writes nothing but its own changes.
    InStep(&'a RecordStep<'a>),
    /// Outside of steps.
    Stored(&'a Catalog),
}

impl Names<'_> {
    fn record(self, artifact: &Artifact) -> Result<NameRecord, StoreError> {
        match self {
            Self::InStep(step) => Catalog::name_record_in(step, artifact.clone()),
            Self::Stored(catalog) => catalog.name_record(artifact),
        }
    }
}

/// A version that this larder has and a list does not name.
#[derive(Debug, Default)]
pub struct UnlistedVersion {
    /// The platforms of a provider's archives.
    pub platforms: BTreeSet<Platform>,
    /// True if an archive was imported without signatures.
    pub is_imported: bool,
}

/// An archive listed in a name record: it was verified, and this larder has it.
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
    #[serde(default, skip_serializing_if = "is_default")]
    pub zip: ZipOrigin,
    /// The origin it was fetched from.
    pub origin: String,
    /// The time it was last stored.
    #[serde(rename = "kept")]
    pub stored_at: Timestamp,
    /// The time these bytes were first stored under this name, if earlier than `stored_at`.
    #[serde(rename = "first_kept", default, skip_serializing_if = "Option::is_none")]
    pub first_stored_at: Option<Timestamp>,
}

impl StoredArchive {
    /// The time these bytes were first stored under this name, for Last-Modified. It restarts when they were evicted
    /// and fetched again.
    pub fn first_stored(&self) -> Timestamp {
        self.first_stored_at.unwrap_or(self.stored_at)
    }

    /// The entry for an archive that larder packed from a module tree.
    ///
    /// # Errors
    /// None: the file name is a constant.
    pub fn of_tree(
        tree: PackedTree,
        digest: Digest,
        fast: FastHash,
        size_bytes: u64,
        origin: String,
        stored_at: Timestamp,
    ) -> Result<Self, StoreError> {
        let filename = FileName::parse(MODULE_FILE_NAME).map_err(|e| StoreError::Index(e.to_string()))?;
        let proof = Proof { how: ProofBasis::Tree(tree), warnings: Vec::new() };
        Ok(Self::new((digest, fast), filename, size_bytes, proof, origin, stored_at))
    }

    pub(super) fn new(
        (digest, fast): (Digest, FastHash),
        filename: FileName,
        size_bytes: u64,
        proof: Proof,
        origin: String,
        stored_at: Timestamp,
    ) -> Self {
        Self {
            digest,
            fast,
            filename,
            size_bytes,
            hashes: PackageHashState::NotYet,
            proof,
            zip: ZipOrigin::Published,
            origin,
            stored_at,
            first_stored_at: None,
        }
    }
}

const MODULE_FILE_NAME: &str = "module.tar.gz";

/// The packer of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZipOrigin {
    /// The publisher. Module archives, which larder packs, also have this value: it is of use for providers only.
    #[default]
    Published,
    /// larder, for a provider that was imported unpacked: its `h1:` is the publisher's, its `zh:` is not.
    PackedAnew,
}

/// The state of an archive's package hashes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PackageHashState {
    /// Not computed yet.
    #[default]
    NotYet,
    /// Both `h1:` hashes of the package.
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

impl From<PackageHashes> for PackageHashState {
    fn from(PackageHashes { zip, directory }: PackageHashes) -> Self {
        Self::Known { zip, directory }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRecord {
    /// The archives, oldest first. The last one was stored last.
    pub archives: Vec<StoredArchive>,
    /// True if it is exempt from eviction.
    #[serde(default)]
    pub pinned: bool,
}

impl NameRecord {
    /// Parses a record. One that cannot be parsed is lost: the proof set and the bytes survive, and the next request finds
    /// them, but a pin is recorded nowhere else.
    pub(super) fn parse(record: Vec<u8>) -> Option<Self> {
        let parsed = serde_json::from_slice(&record);
        parsed.inspect_err(|error| tracing::error!(%error, "a name record cannot be parsed; if its package was pinned, pin it again")).ok()
    }

    /// Adds an archive as the last one stored. The same bytes are listed once.
    pub fn put(&mut self, mut archive: StoredArchive) {
        if let Some(before) =
            self.get(&archive.digest).map(StoredArchive::first_stored).filter(|first| *first < archive.stored_at)
        {
            archive.first_stored_at = Some(before);
        }
        self.archives.retain(|before| before.digest != archive.digest);
        self.archives.push(archive);
    }

    /// Adds an archive that was stored at its time, which may be long ago. The same bytes are listed once.
    pub fn put_by_age(&mut self, archive: StoredArchive) {
        if self.get(&archive.digest).is_none() {
            let later = self.archives.iter().position(|listed| listed.stored_at > archive.stored_at);
            self.archives.insert(later.unwrap_or(self.archives.len()), archive);
        }
    }

    pub fn get(&self, digest: &Digest) -> Option<&StoredArchive> {
        self.archives.iter().find(|archive| archive.digest == *digest)
    }

    /// True if larder packed an archive from an unpacked import. No published archive has its digest.
    pub fn is_repacked(&self, digest: &Digest) -> bool {
        self.get(digest).is_some_and(|archive| archive.zip == ZipOrigin::PackedAnew)
    }

    /// True if any archive was imported without signatures.
    pub fn is_imported(&self) -> bool {
        self.archives.iter().any(|archive| archive.proof.how == ProofBasis::Imported)
    }

    /// The index entry of the name record.
    pub fn indexed(&self) -> IndexedName {
        let listed = |archive: &StoredArchive| ListedArchive {
            digest: archive.digest,
            lacks_hashes: archive.hashes == PackageHashState::NotYet,
        };
        let archives = self.archives.iter().map(listed).collect();
        IndexedName { pinned: self.pinned, imported: self.is_imported(), archives }
    }

    pub fn find(&self, prefix: &DigestPrefix) -> Option<&StoredArchive> {
        self.archives.iter().find(|archive| prefix.matches(&archive.digest))
    }
}
