//! Keeps stored versions listed when a bundle brings a new version list, as for versions that upstream has dropped
//! (`keep_gone`).

use crate::mirror::Library;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::address::{ModuleAddress, Platform, ProviderAddress, Version};
use crate::bundle::{BundleEntry, Manifest};
use crate::mirror::documents::provider_versions::entry_of;
use crate::mirror::library::stored_document::StoredDocument;
use crate::mirror::modules::entry_of_module;
use crate::store::{Durability, IndexEntry, Key, StoreError};

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
            Key::ProviderVersions(address) if keeps_gone(&address.host) => {
                self.provider_entries(address, stored, &coming)?
            }
            Key::ModuleVersions(address) if keeps_gone(&address.host) => {
                self.module_entries(address, stored, &coming)?
            }
            _ => None,
        };
        Ok(match dropped {
            Some(dropped) => {
                let dropped: Vec<Box<RawValue>> = dropped.into_values().collect();
                StoredDocument { dropped: serde_json::to_vec(&dropped).map(Bytes::from).unwrap_or_default(), ..coming }
            }
            None => coming,
        })
    }

    /// The entries to add to upstream's list; `None` if it names every stored version.
    fn provider_entries(
        &self,
        address: &ProviderAddress,
        stored: Option<&StoredDocument>,
        coming: &StoredDocument,
    ) -> Result<Option<ListEntries>, StoreError> {
        let Ok(list) = coming.as_versions() else { return Ok(None) };
        let mut unlisted: BTreeMap<Version, BTreeSet<Platform>> = BTreeMap::new();
        for package in self.store.records.packages_with_names(address)? {
            if list.get(&package.version).is_none() {
                unlisted.entry(package.version).or_default().insert(package.platform);
            }
        }
        if unlisted.is_empty() {
            return Ok(None);
        }
        let before = stored.and_then(|stored| stored.as_versions().ok());
        let as_written = |version: &Version| Some(before.as_ref()?.get(version)?.raw.clone());
        let entries = unlisted.iter().filter_map(|(version, platforms)| {
            let entry = as_written(version).or_else(|| entry_of(version, platforms.iter()))?;
            Some((version.clone(), entry))
        });
        let dropped = coming.dropped_versions().into_iter().map(|listed| (listed.version, listed.raw));
        Ok(Some(dropped.chain(entries).collect()))
    }

    fn module_entries(
        &self,
        address: &ModuleAddress,
        stored: Option<&StoredDocument>,
        coming: &StoredDocument,
    ) -> Result<Option<ListEntries>, StoreError> {
        let Ok(list) = coming.as_module_versions() else { return Ok(None) };
        let named = self.store.records.module_packages_with_names(address)?.into_iter();
        let unlisted: BTreeSet<Version> =
            named.map(|package| package.version).filter(|version| list.get(version).is_none()).collect();
        if unlisted.is_empty() {
            return Ok(None);
        }
        let before = stored.and_then(|stored| stored.as_module_versions().ok());
        let as_written = |version: &Version| Some(before.as_ref()?.get(version)?.raw.clone());
        let entries = unlisted.iter().filter_map(|version| {
            let entry = as_written(version).or_else(|| entry_of_module(version))?;
            Some((version.clone(), entry))
        });
        let dropped = coming.dropped_module_versions().into_iter().map(|listed| (listed.version, listed.raw));
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
            let is_listed = self.store.records.change(&key, |step| {
                let Some(stored) = step.read(&key)?.whole().and_then(StoredDocument::read) else { return Ok(false) };
                let listing = self.merge_stored_entries(&key, Some(&stored), stored.clone())?;
                if listing.has_same_content(&stored) {
                    return Ok(false);
                }
                let entry = IndexEntry::Document(listing.metadata.checked);
                step.put(&key, listing.write(), Durability::Synced, entry);
                Ok(true)
            })?;
            if !is_listed {
                continue;
            }
            match &key {
                Key::ProviderVersions(address) => self.bump_revision(address),
                Key::ModuleVersions(address) => self.bump_revision(address),
                _ => {}
            }
        }
        Ok(())
    }
}
