//! Judges one entry of a bundle by the rules for responses from upstream. It is then committed in the usual order, each
//! step synced: first-seen record, archive, proof set or location, name. A document replaces the stored one unless that
//! is newer, and stored versions stay listed, as for versions that upstream has dropped (`keep_gone`).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::address::{Address, Artifact, Hostname, PackageSelector, Version};
use crate::bundle::{ApplyOutcome, BundleEntry, BundledDocument, FetchOrigin, FileRole, Manifest, SignatureStatus};
use crate::clock::Timestamp;
use crate::mirror::Library;
use crate::mirror::documents::version_lists::entry_of;
use crate::mirror::library::catalog::Names;
use crate::mirror::library::document_store::VersionTimes;
use crate::mirror::library::stored_document::{DocumentMetadata, StoredDocument};
use crate::mirror::transfer::bundle::archives::{ArrivedArchive, BundledModule, BundledSet};
use crate::store::{DocumentKey, Durability, Key, StoreError};
use crate::upstream::discovery::Service;
use crate::upstream::limits::MemoryGrant;

/// The small files of an entry.
#[derive(Debug, Default)]
pub(super) struct SmallFiles(pub(super) HashMap<FileRole, Bytes>);

impl SmallFiles {
    pub(super) fn get(&self, role: FileRole) -> Result<Bytes, String> {
        self.0.get(&role).cloned().ok_or_else(|| format!("its {role} is missing"))
    }

    pub(super) fn get_or_empty(&self, role: FileRole) -> Bytes {
        self.0.get(&role).cloned().unwrap_or_default()
    }
}

/// The criteria for judging an entry, besides its files.
#[derive(Clone, Copy)]
pub(super) struct EntryCriteria<'a> {
    /// Packages that an operator accepts whatever was seen before.
    pub(super) accept: &'a [PackageSelector],
    pub(super) signature_status: &'a SignatureStatus,
    pub(super) now: Timestamp,
}

impl EntryCriteria<'_> {
    pub(super) fn is_accepted(&self, library: &Library, artifact: &Artifact) -> bool {
        self.accept.iter().any(|selector| {
            library.runtime.config().canonical(&selector.address()) == artifact.into()
                && selector.versions().include(artifact.version())
        })
    }
}

/// An entry that is accepted by its small files, and neither it nor a newer one is stored.
pub(super) enum AcceptedEntry {
    /// A valid document that may replace the stored one.
    Document(Box<BundledDocumentUpdate>),
    /// A verified proof set. Its archive follows.
    Provider(Box<BundledSet>),
    /// A valid location. Its archive follows.
    Module(Box<BundledModule>),
}

/// The refusal text for a store failure.
pub(super) fn store_failed(error: StoreError) -> String {
    format!("the store failed: {error}; {}", error.remedy())
}

impl AcceptedEntry {
    /// Judges one entry by its small files. `None` if it, or a newer one, is stored already.
    ///
    /// # Errors
    /// The reason that it is refused.
    pub(super) fn check(
        library: &Library,
        entry: &BundleEntry,
        small_files: &SmallFiles,
        criteria: &EntryCriteria<'_>,
    ) -> Result<Option<Self>, String> {
        if let Some((artifact, _)) = entry.package_archive() {
            let (config, address) =
                (library.runtime.config(), Address::from(&library.runtime.canonical(artifact.clone())));
            let access = library.read_access(&address, &config.access(criteria.now), &config).map_err(store_failed)?;
            access.permit_to_store(artifact.version()).map_err(|refused| refused.to_string())?;
        }
        match entry {
            BundleEntry::Discovery { document, .. }
            | BundleEntry::ProviderVersions { document, .. }
            | BundleEntry::ModuleVersions { document, .. } => {
                BundledDocumentUpdate::check(library, entry, document, small_files, criteria.now)
            }
            BundleEntry::Provider(entry) => BundledSet::check(library, entry, small_files, criteria),
            BundleEntry::Module(entry) => BundledModule::check(library, entry, small_files, criteria),
        }
    }

    /// Commits the entry, with its archive if it has one.
    ///
    /// # Errors
    /// The reason that it is refused.
    pub(super) fn commit(
        self,
        library: &Library,
        archive: Option<ArrivedArchive>,
        now: Timestamp,
    ) -> Result<ApplyOutcome, EntryRefusal> {
        match (self, archive) {
            (Self::Document(document), _) => Ok(document.commit(library, now)?),
            (Self::Provider(set), Some(archive)) => set.commit(library, archive, now),
            (Self::Module(module), Some(archive)) => module.commit(library, archive, now),
            (Self::Provider(_) | Self::Module(_), None) => Err("its manifest names no archive".to_owned().into()),
        }
    }
}

/// A refused entry.
#[derive(Debug)]
pub(super) struct EntryRefusal {
    pub(super) why: String,
    /// The version that `--accept` may name, if the operator's word is all that it lacks.
    pub(super) accept: Option<String>,
}

impl From<String> for EntryRefusal {
    fn from(why: String) -> Self {
        Self { why, accept: None }
    }
}

/// A document of a bundle that may replace the stored one.
pub(super) struct BundledDocumentUpdate {
    key: Key,
    incoming: StoredDocument,
}

impl BundledDocumentUpdate {
    /// Parses the document of an entry. `None` if it, or a newer one, is stored already.
    ///
    /// # Errors
    /// The reason that it is refused.
    pub(super) fn check(
        library: &Library,
        entry: &BundleEntry,
        document: &BundledDocument,
        small_files: &SmallFiles,
        now: Timestamp,
    ) -> Result<Option<AcceptedEntry>, String> {
        let (body, dropped) = (small_files.get(FileRole::Document)?, small_files.get_or_empty(FileRole::Dropped));
        if !dropped.is_empty() && serde_json::from_slice::<serde::de::IgnoredAny>(&dropped).is_err() {
            return Err("its list of dropped versions is not JSON".to_owned());
        }
        let (key, incoming) = (library.entry_key(entry), document_from_bundle(&document.said, body, dropped, now));
        let parsed = match listed_address(&key) {
            Some(address) => incoming.as_versions(Service::from(address)).map(drop),
            None => incoming.discovery_for_clients().map(drop),
        };
        parsed.map_err(|reason| format!("its document cannot be read: {reason}"))?;
        let is_stored = library.has_document_or_newer(&key, &incoming, now).map_err(store_failed)?
            || library.keeps_own_discovery(&key, &incoming).map_err(store_failed)?;
        Ok((!is_stored).then(|| AcceptedEntry::Document(Box::new(Self { key, incoming }))))
    }

    /// Replaces the stored document, unless a newer one was stored since.
    pub(super) fn commit(self, library: &Library, now: Timestamp) -> Result<ApplyOutcome, String> {
        let Self { key, incoming } = self;
        let merge = |names: Names<'_>, stored: Option<&StoredDocument>, incoming| {
            library.merge_stored_entries(names, &key, stored, incoming)
        };
        let kept = library.replace_document(&key, incoming, now, Durability::Synced, merge).map_err(store_failed)?;
        if kept.is_some() {
            return Ok(ApplyOutcome::Held);
        }
        let config = library.runtime.config();
        match listed_address(&key) {
            Some(address) => config.not_found.remove_if(|absent| absent.is_document_of(address, |_| true)),
            None => config.not_found.remove(&key),
        }
        library.enforce_size_limit();
        Ok(ApplyOutcome::Applied { note: None })
    }
}

/// Builds the stored form of a document from its manifest entry.
pub(super) fn document_from_bundle(
    fetch_origin: &FetchOrigin,
    body: Bytes,
    dropped: Bytes,
    now: Timestamp,
) -> StoredDocument {
    let metadata = DocumentMetadata {
        // A time in the future is clamped, because the other machine's clock may be ahead.
        checked: fetch_origin.checked.min(now),
        gone: fetch_origin.gone,
        from_bundle: true,
        ..DocumentMetadata::new(fetch_origin.asked.clone(), fetch_origin.url.clone(), fetch_origin.fetched.min(now))
    };
    StoredDocument { metadata, body, dropped, _room: MemoryGrant::default() }
}

/// The address whose versions a document lists; `None` for another document.
fn listed_address(key: &Key) -> Option<&Address> {
    match key {
        Key::Document(DocumentKey::Versions(address)) => Some(address),
        _ => None,
    }
}

impl Library {
    /// Merges a bundle's document with the stored one that it replaces: versions with stored archives, and services,
    /// stay listed.
    pub(super) fn merge_stored_entries(
        &self,
        names: Names<'_>,
        key: &Key,
        stored: Option<&StoredDocument>,
        incoming: StoredDocument,
    ) -> Result<StoredDocument, StoreError> {
        let config = self.runtime.config();
        let keeps_gone =
            |host: &Hostname| config.upstreams.get(host).is_some_and(|upstream| upstream.settings.keep_gone);
        if let (Key::Document(DocumentKey::Discovery(host)), Some(stored)) = (key, stored)
            && keeps_gone(host)
        {
            return Ok(incoming.with_services_of(stored));
        }
        let Some(address) = listed_address(key).filter(|address| keeps_gone(address.host())) else {
            return Ok(incoming);
        };
        let service = Service::from(address);
        let Ok(list) = incoming.as_versions(service) else { return Ok(incoming) };
        let listed = list.versions.iter().map(|listed| listed.version.clone()).collect();
        let unlisted = self.stored_besides(names, address, &listed)?;
        if unlisted.is_empty() {
            return Ok(incoming);
        }
        let before = stored.and_then(|stored| stored.as_versions(service).ok());
        let as_written = |version: &Version| Some(before.as_ref()?.get(version)?.raw.clone());
        let entries = unlisted.iter().filter_map(|(version, stored)| {
            let entry = as_written(version).or_else(|| entry_of(service, version, &stored.platforms))?;
            Some((version.clone(), entry))
        });
        let dropped = incoming.dropped_versions(service).into_iter().map(|listed| (listed.version, listed.raw));
        let entries: BTreeMap<Version, Box<RawValue>> = dropped.chain(entries).collect();
        Ok(incoming.with_dropped(&entries.into_values().collect::<Vec<_>>()))
    }

    /// The providers and modules of which a bundle has packages, in the canonical spelling.
    pub(super) fn addresses_of_packages(&self, manifest: &Manifest) -> BTreeSet<Address> {
        let archives = manifest.entries.iter().filter_map(BundleEntry::package_archive);
        archives.map(|(artifact, _)| Address::from(&self.runtime.canonical(artifact))).collect()
    }

    /// Lists stored versions that the cached list does not name. `absent` stands in for a list that is not stored.
    ///
    /// # Errors
    /// The disk failed.
    pub(in crate::mirror::transfer) fn list_stored_versions(
        &self,
        address: &Address,
        absent: Option<&StoredDocument>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let key = Key::version_list(address);
        let list = |names: Names<'_>, stored: Option<&StoredDocument>| {
            let Some(before) = stored.or(absent) else { return Ok(None) };
            let listing = self.merge_stored_entries(names, &key, Some(before), before.clone())?;
            Ok((!listing.has_same_content(before)).then_some((listing, now)))
        };
        self.change_document(&key, Durability::Synced, VersionTimes::Known, list)
    }

    /// True if this document or a newer one is stored.
    pub(super) fn has_document_or_newer(
        &self,
        key: &Key,
        incoming: &StoredDocument,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let Some(stored) = self.read_document(key)? else { return Ok(false) };
        if stored.confirmation().is_confirmed_after(incoming.confirmation(), now) {
            return Ok(true);
        }
        let names = Names::Stored(&self.catalog);
        let merged = self.merge_stored_entries(names, key, Some(&stored), incoming.clone())?;
        Ok(stored.has_same_content(&merged) && stored.confirmation() == merged.confirmation())
    }
}
