//! Small records by key: replaced by rename, each with its checksum, never torn.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::disk::{self, Quarantine};
use super::store_lock::StoreLock;
use super::{FORMAT, Key, StoreError};
use crate::address::{
    Address, Artifact, Hostname, ModuleAddress, ModuleName, ModulePackage, Package, Platform, ProviderAddress, Version,
};
use crate::clock::Timestamp;

/// The folders of records.
const KINDS: [&str; 5] = ["names", "documents", "seen", "alarms", "jobs"];

/// Durability of a write: synced before `put` returns, or left to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// May be lost in a power cut; upstream has it too.
    Lazy,
    /// The file and its folder entry are synced first.
    Synced,
}

impl Durability {
    /// Makes the removal of a file durable.
    pub(super) fn of_removal(self, path: &Path) -> Result<(), StoreError> {
        let must_sync = self == Self::Synced && path.parent().is_some_and(disk::is_folder);
        if must_sync { disk::sync_folder_of(path) } else { Ok(()) }
    }
}

/// The first line of every record's file, in JSON; the record follows.
#[derive(Serialize, Deserialize)]
struct RecordHeader {
    format: u32,
    blake3: String,
    bytes: usize,
}

/// Result of reading a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded<R = Vec<u8>> {
    /// The record, complete and with a matching checksum.
    Whole(R),
    /// There is no record.
    Absent,
    /// The checksum did not match. The record was quarantined, unless its existence matters
    /// (`Key::matters_when_damaged`).
    Damaged,
}

impl<R> Recorded<R> {
    /// The record, if it was readable.
    pub fn whole(self) -> Option<R> {
        if let Self::Whole(record) = self { Some(record) } else { None }
    }
}

/// The records below a store's root.
#[derive(Debug)]
pub struct Records {
    root: PathBuf,
    staging: PathBuf,
    quarantine: Quarantine,
    lock: StoreLock,
}

impl Records {
    pub(super) fn open(
        root: &Path,
        staging: &Path,
        quarantine: Quarantine,
        lock: StoreLock,
    ) -> Result<Self, StoreError> {
        let is_new = !disk::is_folder(&root.join(KINDS[0]));
        for kind in KINDS {
            let made = disk::create_folder(&root.join(kind));
            // A store of an older larder lacks some folders, and its disk may be mounted read-only: then reading still works.
            if is_new {
                made?;
            }
        }
        Ok(Self { root: root.to_owned(), staging: staging.to_owned(), quarantine, lock })
    }

    /// Reads a record. A damaged one is quarantined, logged, and treated as absent.
    pub fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        match self.read(key)? {
            Recorded::Whole(record) => Ok(Some(record)),
            Recorded::Absent | Recorded::Damaged => Ok(None),
        }
    }

    /// Reads a record; distinguishes a damaged record from an absent one.
    pub fn read(&self, key: &Key) -> Result<Recorded, StoreError> {
        let path = self.root.join(key.path());
        let mut file = match self.lock.if_ours(disk::read(&path)) {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(Recorded::Absent),
            Err(unreadable) if unreadable.is_damage() => {
                tracing::error!(error = %unreadable, "a record cannot be read");
                if !key.matters_when_damaged() {
                    self.quarantine(key)?;
                }
                return Ok(Recorded::Damaged);
            }
            Err(failed) => return Err(failed),
        };
        match header_kind(&file) {
            HeaderKind::Whole { start } => Ok(Recorded::Whole(file.split_off(start))),
            HeaderKind::Newer(found) => Err(StoreError::Newer { path, found }),
            HeaderKind::Damaged => {
                if !key.matters_when_damaged() {
                    self.quarantine(key)?;
                }
                Ok(Recorded::Damaged)
            }
        }
    }

    /// Replaces a record by rename. Returns the size of its file in bytes.
    pub fn put(&self, key: &Key, record: &[u8], durability: Durability) -> Result<u64, StoreError> {
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let path = self.root.join(key.path());
        let temp_path = self.staging.join(format!("record-{}", WRITTEN.fetch_add(1, Ordering::Relaxed)));
        let blake3 = blake3::hash(record).to_hex().to_string();
        let header = RecordHeader { format: FORMAT, blake3, bytes: record.len() };
        let header = serde_json::to_vec(&header).expect("numbers and hex always serialise");
        let synced = durability == Durability::Synced;
        self.lock.check()?;
        disk::recreate_folder(&self.staging)?;
        let written = disk::write_new(&temp_path, &[&header, b"\n", record], synced)
            .and_then(|()| disk::create_parent(&path, &self.root))
            .and_then(|()| disk::rename(&temp_path, &path));
        if let Err(failed) = written {
            // The error of the write is reported, not one of the cleanup.
            let _ = disk::remove(&temp_path);
            return Err(failed);
        }
        if synced {
            disk::sync_folder_of(&path)?;
        }
        Ok((header.len() + 1 + record.len()) as u64)
    }

    /// Syncs a record that was written lazily. Returns true if it exists.
    pub fn sync(&self, key: &Key) -> Result<bool, StoreError> {
        let path = self.root.join(key.path());
        let Some(file) = self.lock.if_ours(disk::open(&path))? else { return Ok(false) };
        file.sync_all().map_err(|e| StoreError::io("sync", &path, e))?;
        disk::sync_folder_of(&path)?;
        Ok(true)
    }

    /// Removes a record.
    pub fn remove(&self, key: &Key, durability: Durability) -> Result<(), StoreError> {
        self.lock.check()?;
        let path = self.root.join(key.path());
        disk::remove(&path)?;
        durability.of_removal(&path)
    }

    /// Quarantines an unreadable record, and logs it.
    pub fn quarantine(&self, key: &Key) -> Result<(), StoreError> {
        self.lock.check()?;
        let path = self.root.join(key.path());
        let quarantined = self.quarantine.add(&path)?;
        tracing::error!(record = %path.display(), aside = %quarantined.display(), "a damaged record was quarantined");
        Ok(())
    }

    /// The platforms of a version with proof sets.
    pub fn platforms_with_sets(
        &self,
        provider: &ProviderAddress,
        version: &Version,
    ) -> Result<Vec<Platform>, StoreError> {
        let files = self.listed(|| disk::names_in(&self.root.join(Key::sets_of(provider, version))))?;
        Ok(files.iter().filter_map(|file| Platform::parse(file.strip_suffix(".set")?).ok()).collect())
    }

    /// The packages of a provider with proof sets.
    pub fn packages_with_sets(&self, provider: &ProviderAddress) -> Result<Vec<Package>, StoreError> {
        self.chosen_below(&Key::documents_of(provider), |key| {
            if let Key::ProofSet(package) = key { Some(package) } else { None }
        })
    }

    /// The packages of a provider with a name record: those with a stored archive.
    pub fn packages_with_names(&self, provider: &ProviderAddress) -> Result<Vec<Package>, StoreError> {
        self.chosen_below(&Key::names_of(provider), |key| {
            if let Key::Name(Artifact::Provider(package)) = key { Some(package) } else { None }
        })
    }

    /// The versions of a module with a name record: those with a stored archive.
    pub fn module_packages_with_names(&self, module: &ModuleAddress) -> Result<Vec<ModulePackage>, StoreError> {
        self.chosen_below(&Key::names_of_module(module), |key| {
            if let Key::Name(Artifact::Module(package)) = key { Some(package) } else { None }
        })
    }

    /// The versions of a module with a location record.
    pub fn module_packages_with_locations(&self, module: &ModuleAddress) -> Result<Vec<ModulePackage>, StoreError> {
        self.chosen_below(&Key::documents_of_module(module), |key| {
            if let Key::ModuleLocation(package) = key { Some(package) } else { None }
        })
    }

    /// The versions of a module with first-seen records.
    pub fn module_packages_seen(&self, module: &ModuleAddress) -> Result<Vec<ModulePackage>, StoreError> {
        self.chosen_below(&Key::first_seen_of_module(module), |key| {
            if let Key::SeenModule(package) = key { Some(package) } else { None }
        })
    }

    /// The versions of a provider with first-seen records.
    pub fn versions_first_seen(&self, provider: &ProviderAddress) -> Result<Vec<Version>, StoreError> {
        self.chosen_below(&Key::first_seen_of(provider), |key| {
            if let Key::FirstSeen(_, version) = key { Some(version) } else { None }
        })
    }

    /// Count and bytes of first-seen records. Reads all their names.
    pub fn first_seen_totals(&self) -> Result<(u64, u64), StoreError> {
        let files = self.listed(|| disk::files_below(&self.root.join("seen")))?;
        let sizes = files.into_iter().filter_map(|(path, size_bytes, _)| {
            let key = Key::from_path(path.strip_prefix(&self.root).ok()?)?;
            matches!(key, Key::FirstSeen(..) | Key::SeenModule(_) | Key::Seen(_)).then_some(size_bytes)
        });
        Ok(sizes.fold((0, 0), |(number, bytes), size_bytes| (number + 1, bytes + size_bytes)))
    }

    /// The addresses with alarm records.
    pub fn addresses_with_alarms(&self) -> Result<Vec<Address>, StoreError> {
        self.chosen_below(Path::new("alarms"), |key| if let Key::Alarms(address) = key { Some(address) } else { None })
    }

    /// The modules of a registry with a version list or a name record.
    pub fn modules_of(&self, host: &Hostname) -> Result<BTreeSet<ModuleAddress>, StoreError> {
        let module = |key| match key {
            Key::ModuleVersions(module) => Some(module),
            Key::Name(Artifact::Module(package)) => Some(package.module),
            _ => None,
        };
        Ok(self.documents_and_names(host, "modules")?.into_iter().filter_map(module).collect())
    }

    /// The providers of a registry with a version list or a name record.
    pub fn providers_of(&self, host: &Hostname) -> Result<BTreeSet<ProviderAddress>, StoreError> {
        let provider = |key| match key {
            Key::ProviderVersions(provider) => Some(provider),
            Key::Name(Artifact::Provider(package)) => Some(package.provider),
            _ => None,
        };
        Ok(self.documents_and_names(host, "providers")?.into_iter().filter_map(provider).collect())
    }

    fn documents_and_names(&self, host: &Hostname, service: &str) -> Result<Vec<Key>, StoreError> {
        let below = |kind: &str| self.keys_below(&Path::new(kind).join(host.as_str()).join(service));
        Ok([below("documents")?, below("names")?].concat())
    }

    /// The other spellings of a module with a first-seen record of this version: those equal in lower case.
    pub fn spellings_seen(&self, package: &ModulePackage) -> Result<Vec<ModulePackage>, StoreError> {
        let (wanted, host_folder) = (package.folded(), Key::first_seen_of_modules(&package.module.host));
        let names = |folder: &Path| self.listed(|| disk::names_in(&self.root.join(folder)));
        let mut found = Vec::new();
        for namespace in names(&host_folder)? {
            if !namespace.eq_ignore_ascii_case(wanted.module.namespace.as_str()) {
                continue;
            }
            for name in names(&host_folder.join(&namespace))? {
                let parsed = ModuleName::parse(&namespace).ok().zip(ModuleName::parse(&name).ok());
                let Some((namespace, name)) = parsed else { continue };
                let module = ModuleAddress { namespace, name, ..package.module.clone() };
                let spelling = ModulePackage { module, version: package.version.clone() };
                if spelling != *package && spelling.folded() == wanted {
                    found.push(spelling);
                }
            }
        }
        Ok(found)
    }

    /// The recorded pages of a registry.
    pub fn pages_of(&self, host: &Hostname) -> Result<Vec<Key>, StoreError> {
        self.keys_below(&Key::pages_of(host))
    }

    /// Every artifact with a name record.
    pub fn all_named(&self) -> Result<Vec<Artifact>, StoreError> {
        self.chosen_below(Path::new("names"), |key| if let Key::Name(named) = key { Some(named) } else { None })
    }

    /// The ids of the recorded jobs.
    pub fn jobs(&self) -> Result<Vec<[u8; 8]>, StoreError> {
        self.chosen_below(Path::new("jobs"), |key| if let Key::Job(number) = key { Some(number) } else { None })
    }

    /// The keys of all records.
    pub fn all(&self) -> Result<Vec<Key>, StoreError> {
        let mut keys = Vec::new();
        for kind in KINDS {
            keys.extend(self.keys_below(Path::new(kind))?);
        }
        if self.listed(|| disk::file_exists(&self.root.join(Key::Missing.path())))? {
            keys.push(Key::Missing);
        }
        Ok(keys)
    }

    /// What `choose` takes from the keys of the records below a folder.
    fn chosen_below<T>(&self, folder: &Path, choose: impl Fn(Key) -> Option<T>) -> Result<Vec<T>, StoreError> {
        Ok(self.keys_below(folder)?.into_iter().filter_map(choose).collect())
    }

    /// Runs a listing, and fails unless the store is still the locked one. A caller may delete what a list does not contain, so a partial list must be
    /// an error.
    fn listed<T>(&self, list: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.lock.check()?;
        self.lock.if_ours(list())
    }

    fn keys_below(&self, folder: &Path) -> Result<Vec<Key>, StoreError> {
        let files = self.listed(|| disk::files_below(&self.root.join(folder)))?;
        Ok(files.iter().filter_map(|(path, _, _)| Key::from_path(path.strip_prefix(&self.root).ok()?)).collect())
    }

    /// Every document and proof set.
    pub fn all_documents(&self) -> Result<Vec<Key>, StoreError> {
        self.keys_below(Path::new("documents"))
    }

    /// A record's file size in bytes and modification time; `None` if it does not exist.
    pub fn file_of(&self, key: &Key) -> Result<Option<(u64, Timestamp)>, StoreError> {
        self.listed(|| disk::file_metadata(&self.root.join(key.path())))
    }
}

/// The state of a record's file, by its header.
enum HeaderKind {
    /// Complete; the record begins at byte `start`.
    Whole {
        start: usize,
    },
    /// Written in this newer format.
    Newer(u32),
    Damaged,
}

fn header_kind(file: &[u8]) -> HeaderKind {
    let Some(end) = file.iter().take(1024).position(|byte| *byte == b'\n') else { return HeaderKind::Damaged };
    let (line, record) = (&file[..end], &file[end + 1..]);
    // A header of a newer format may have other members, but always has `format`.
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    if let Ok(Format { format }) = serde_json::from_slice(line)
        && format > FORMAT
    {
        return HeaderKind::Newer(format);
    }
    match serde_json::from_slice::<RecordHeader>(line) {
        Ok(header) if header.bytes == record.len() && header.blake3 == *blake3::hash(record).to_hex() => {
            HeaderKind::Whole { start: end + 1 }
        }
        _ => HeaderKind::Damaged,
    }
}
