//! Keeps stored versions listed when a bundle brings a new version list, as for versions that upstream has dropped
//! (`keep_gone`).

use crate::mirror::Library;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;

use crate::address::{Address, Artifact, Platform, Version};
use crate::bundle::{BundleEntry, Manifest};
use crate::mirror::documents::version_lists::entry_of;
use crate::mirror::library::stored_document::StoredDocument;
use crate::store::{Durability, Key, StoreError};
use crate::upstream::discovery::Service;

type ListEntries = BTreeMap<Version, Box<RawValue>>;

impl Library {
    /// Merges a bundle's document with the stored one that it replaces: versions with stored archives, and services,
    /// stay listed.
    pub(in crate::mirror) fn merge_stored_entries(
        &self,
        key: &Key,
        stored: Option<&StoredDocument>,
        coming: StoredDocument,
    ) -> Result<StoredDocument, StoreError> {
        let keeps_gone = |host| {
            let terms = self.runtime.config();
            terms.upstreams.get(host).is_some_and(|upstream| upstream.settings.keep_gone)
        };
        let dropped = match key {
            Key::Discovery(host) if keeps_gone(host) => {
                return Ok(match stored {
                    Some(stored) => coming.with_services_of(stored),
                    None => coming,
                });
            }
            Key::ProviderVersions(provider) if keeps_gone(&provider.host) => {
                self.unlisted_entries(&provider.into(), stored, &coming)?
            }
            Key::ModuleVersions(module) if keeps_gone(&module.host) => {
                self.unlisted_entries(&module.into(), stored, &coming)?
            }
            _ => None,
        };
        Ok(match dropped {
            Some(dropped) => coming.with_dropped(&dropped.into_values().collect::<Vec<_>>()),
            None => coming,
        })
    }

    /// The entries to add to upstream's list; `None` if it names every stored version.
    fn unlisted_entries(
        &self,
        address: &Address,
        stored: Option<&StoredDocument>,
        coming: &StoredDocument,
    ) -> Result<Option<ListEntries>, StoreError> {
        let service = Service::from(address);
        let Ok(list) = coming.as_versions(service) else { return Ok(None) };
        let mut unlisted: BTreeMap<Version, BTreeSet<Platform>> = BTreeMap::new();
        for artifact in self.named_artifacts(address)? {
            if list.get(artifact.version()).is_none() {
                let platforms = unlisted.entry(artifact.version().clone()).or_default();
                if let Artifact::Provider(package) = artifact {
                    platforms.insert(package.platform);
                }
            }
        }
        if unlisted.is_empty() {
            return Ok(None);
        }
        let before = stored.and_then(|stored| stored.as_versions(service).ok());
        let as_written = |version: &Version| Some(before.as_ref()?.get(version)?.raw.clone());
        let entries = unlisted.iter().filter_map(|(version, platforms)| {
            let entry = as_written(version).or_else(|| entry_of(service, version, platforms.iter()))?;
            Some((version.clone(), entry))
        });
        let dropped = coming.dropped_versions(service).into_iter().map(|listed| (listed.version, listed.raw));
        Ok(Some(dropped.chain(entries).collect()))
    }

    /// Lists versions that a bundle brought and the cached list does not name. The list may be newer than the bundle.
    ///
    /// # Errors
    /// The disk failed. Some versions may be listed then.
    pub(in crate::mirror) fn list_imported_entries(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let lists: BTreeSet<Key> = manifest
            .entries
            .iter()
            .filter_map(|entry| match entry {
                BundleEntry::Provider(entry) => Some(Key::ProviderVersions(entry.provider.clone())),
                BundleEntry::Module(entry) => Some(Key::ModuleVersions(self.runtime.config().key_of(&entry.module))),
                BundleEntry::Discovery { .. }
                | BundleEntry::ProviderVersions { .. }
                | BundleEntry::ModuleVersions { .. } => None,
            })
            .collect();
        for key in lists {
            let _lock = self.catalog.record_lock(&key).lock();
            let Some(stored) = self.store.records.get(&key)?.and_then(StoredDocument::read) else { continue };
            let listing = self.merge_stored_entries(&key, Some(&stored), stored.clone())?;
            if listing.has_same_content(&stored) {
                continue;
            }
            let size_bytes = self.store.records.put(&key, &listing.write(), Durability::Synced)?;
            self.store.index.document_stored(&key, size_bytes, listing.metadata.checked);
            match &key {
                Key::ProviderVersions(address) => self.bump_revision(address),
                Key::ModuleVersions(address) => self.bump_module_revision(address),
                _ => {}
            }
        }
        Ok(())
    }
}
