//! Purges documents, proof sets, names and archives for an operator. First-seen records stay, so that a republished
//! version is still noticed.

use crate::mirror::{Library, Operations};
use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::address::{Package, PackageRef, PackageSelector, ProviderAddress, Selection, Versions};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::RequestContext;
use crate::mirror::library::UnrecordedSet;
use crate::mirror::library::proof_set::UsableProofSet;
use crate::mirror::library::stored_document::StoredDocument;
use crate::store::{Durability, Key, StoreError};

/// The result of a purge.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurgeResult {
    /// The selection.
    #[serde(flatten)]
    pub package: PackageRef,
    /// The number of archives removed.
    pub archives: u64,
    /// Their bytes.
    pub archive_bytes: u64,
    /// The number of archives that lost this name but stay, because another package names them too.
    pub shared: u64,
    /// The number of documents and proof sets removed.
    pub documents: u64,
    /// Their bytes.
    pub document_bytes: u64,
    /// Packages that were left alone because they are pinned.
    pub pinned: Vec<String>,
    /// Proof sets that could not be read. An archive that only they list may still be stored.
    #[serde(default)]
    pub unreadable: Vec<String>,
    /// Packages whose proof sets were left alone, because nothing else records what they prove; with the cause.
    #[serde(default)]
    pub left: Vec<String>,
    /// True if everything ever verified is still recorded. Always true, or nothing is removed: so a republished version
    /// is still noticed.
    pub seen_is_kept: bool,
}

impl PurgeResult {
    /// Returns true if the whole selection was removed.
    pub fn is_all(&self) -> bool {
        self.pinned.is_empty() && self.unreadable.is_empty() && self.left.is_empty()
    }
}

impl Operations {
    /// Purges a selection, except first-seen records and pinned packages. Its host need not be an upstream any more.
    /// Downloads in progress are not stopped, and their results are stored.
    ///
    /// # Errors
    /// The disk failed. Nothing was removed if a name cannot be read, or if first-seen records cannot be completed.
    pub async fn purge(
        self: &Arc<Self>,
        selector: &PackageSelector,
        call: &RequestContext,
    ) -> Result<PurgeResult, Error> {
        let (selector, now) = (selector.clone(), call.now);
        // One task that is never cut short: the client may disconnect, and the result must be logged.
        self.library
            .on_complete_index(move |library| {
                let mut purged =
                    PurgeResult { package: (&selector).into(), seen_is_kept: true, ..PurgeResult::default() };
                let ended = match &selector {
                    PackageSelector::Provider(selection) => {
                        let ended = library.purge_from_disk(selection, &mut purged, now).and_then(|()| {
                            let left = library.store.records.packages_with_names(&selection.of)?;
                            let left = left.into_iter().map(|package| package.version).collect();
                            library.resolve_purged(&selection.of, &selection.versions, &left);
                            Ok(())
                        });
                        library.runtime.forget_not_found(selection);
                        library.bump_revision(&selection.of);
                        ended
                    }
                    PackageSelector::Module(selection) => library.purge_module(selection, &mut purged, now),
                };
                let ended = ended.and_then(|()| library.purge_pages(&selector, &mut purged));
                let PurgeResult { archives, documents, .. } = purged;
                match &ended {
                    Ok(()) => tracing::warn!(%selector, archives, documents, "purged by the operator"),
                    Err(error) => tracing::error!(%selector, archives, documents, %error, "a purge ended early"),
                }
                ended.map(|()| purged)
            })
            .await
    }
}

impl Library {
    fn purge_from_disk(
        &self,
        selection: &Selection<ProviderAddress>,
        purged: &mut PurgeResult,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let provider = &selection.of;
        // The lock keeps out new pins: a package that is not pinned here stays so until it is removed.
        let _nothing_is_pinned = self.evictor.block_evictions();
        // Everything verified must be recorded before anything is removed.
        let mut spared = BTreeSet::new();
        for UnrecordedSet { package, error } in self.histories.record_stored(provider)? {
            if selection.versions.include(&package.version) {
                let left = "its proof set is the only record of its digests, and cannot be read";
                purged.left.push(format!("{package}: {left}: {error}"));
                spared.insert(package);
            }
        }
        let pinned = self.purge_archives(selection, &spared, purged)?;
        purged.pinned = pinned.iter().map(ToString::to_string).collect();
        spared.extend(pinned);
        for package in self.store.records.packages_with_sets(provider)? {
            if !selection.versions.include(&package.version) || spared.contains(&package) {
                continue;
            }
            // A download may have landed since. Its archive keeps the set that proves it.
            if self.catalog.name(&package)?.archives.is_empty() {
                self.purge_document(&Key::ProofSet(package), purged)?;
            }
        }
        let list = Key::ProviderVersions(provider.clone());
        match &selection.versions {
            Versions::All if spared.is_empty() => self.purge_document(&list, purged),
            versions if spared.is_empty() => self.unlist_dropped(&list, versions, now),
            _ => Ok(()),
        }
    }

    /// Removes the selected names, and the archives that no other name lists. Returns the pinned packages.
    fn purge_archives(
        &self,
        selection: &Selection<ProviderAddress>,
        spared: &BTreeSet<Package>,
        purged: &mut PurgeResult,
    ) -> Result<BTreeSet<Package>, StoreError> {
        let index = &self.store.index;
        index.needs_to_be_whole()?;
        if let Some(unreadable) = index.unreadable_name() {
            // It may list any archive, so none could be removed, and no name may be removed either.
            return Err(unreadable);
        }
        // No archive is stored or removed meanwhile.
        let _locks = self.catalog.lock_all_digests();
        let records = &self.store.records;
        let mut packages: BTreeSet<Package> = records.packages_with_names(&selection.of)?.into_iter().collect();
        packages.extend(records.packages_with_sets(&selection.of)?);
        packages.retain(|package| selection.versions.include(&package.version) && !spared.contains(package));
        let mut digests = BTreeSet::new();
        let mut pinned = BTreeSet::new();
        for package in &packages {
            let name = self.catalog.name(package)?;
            if name.pinned {
                pinned.insert(package.clone());
                continue;
            }
            digests.extend(name.archives.iter().map(|archive| archive.digest));
            // After a crash, an archive that a set lists may be stored without a name.
            match self.read_set(package) {
                Ok(Some(UsableProofSet { stored_set, .. })) => {
                    let predecessor = stored_set.predecessor.as_ref().map(|(set, _)| set);
                    digests.extend(predecessor.into_iter().chain([&stored_set.current]).map(|set| set.document.shasum));
                }
                Ok(None) => {}
                Err(StoreError::Gone) => return Err(StoreError::Gone),
                Err(reason) => purged.unreadable.push(format!("the proof set of {package}: {reason}")),
            }
            self.catalog.change_name(package, |name| name.archives.clear())?;
        }
        for digest in digests {
            let Some(blob) = self.store.blobs.get(&digest)? else { continue };
            if !index.names_of(&digest)?.is_empty() {
                purged.shared += 1;
                continue;
            }
            self.store.blobs.remove(&digest, Durability::Synced)?;
            index.archive_gone(&digest);
            self.catalog.checked.lock().remove(&digest);
            purged.archives += 1;
            purged.archive_bytes += blob.size_bytes();
        }
        Ok(pinned)
    }

    /// Removes versions from a list that upstream has dropped: they were only listed because they were stored. The rest
    /// of the list stays.
    pub(in crate::mirror) fn unlist_dropped(
        &self,
        list: &Key,
        versions: &Versions,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let _lock = self.catalog.record_lock(list).lock();
        let Some(document) = self.store.records.get(list)?.and_then(StoredDocument::read) else { return Ok(()) };
        if document.dropped().is_empty() {
            return Ok(());
        }
        let record = document.without_dropped(versions).write();
        let size_bytes = self.store.records.put(list, &record, Durability::Lazy)?;
        self.store.index.document_stored(list, size_bytes, now);
        Ok(())
    }

    pub(in crate::mirror) fn purge_document(&self, key: &Key, purged: &mut PurgeResult) -> Result<(), StoreError> {
        let size_bytes = self.store.index.document_bytes(key)?;
        self.remove_document(key, Durability::Synced)?;
        if size_bytes > 0 {
            purged.documents += 1;
            purged.document_bytes += size_bytes;
        }
        Ok(())
    }
}
