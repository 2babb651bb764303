//! What an operator wants forgotten: documents, sets, names and archives. Not what was seen: a version that is
//! published anew is noticed all the same.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::documents::KeptDocument;
use super::library::UnrecordedSet;
use super::proof_set::HeldSet;
use super::{Mirror, RequestContext};
use crate::address::{Package, PackageRef, PackageSelector, ProviderAddress, Selection, Versions};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::store::{Durability, Key, StoreError};

/// What was forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purged {
    /// Of what.
    #[serde(flatten)]
    pub package: PackageRef,
    /// How many archives were removed.
    pub archives: u64,
    /// Their bytes.
    pub archive_bytes: u64,
    /// How many archives lost their name here and stay, because another package names them too.
    pub shared: u64,
    /// How many documents and proof sets were removed.
    pub documents: u64,
    /// Their bytes.
    pub document_bytes: u64,
    /// Packages that were left alone, because they are pinned.
    pub pinned: Vec<String>,
    /// Proof sets that could not be read: an archive that only they list may still be held.
    #[serde(default)]
    pub unreadable: Vec<String>,
    /// Packages whose proof sets were left alone, because nothing else tells what they prove; and why.
    #[serde(default)]
    pub left: Vec<String>,
    /// Whether what was ever proven is remembered all the same. It always is, or nothing is removed: so a version
    /// that is published anew is still noticed.
    pub seen_is_kept: bool,
}

impl Purged {
    /// Whether all that was meant is gone.
    pub fn is_all(&self) -> bool {
        self.pinned.is_empty() && self.unreadable.is_empty() && self.left.is_empty()
    }
}

impl Mirror {
    /// Forgets what an operator means, all but what was seen of it and what is pinned. Of a registry that is no
    /// upstream any more, too. Downloads under way are not stopped: what they bring is kept anew.
    ///
    /// # Errors
    /// Where the disk fails. Nothing was removed if a name cannot be read, or what was proven not be put down.
    pub async fn purge(self: &Arc<Self>, what: &PackageSelector, call: &RequestContext) -> Result<Purged, Error> {
        let (what, now) = (what.clone(), call.now);
        // All of it where it is not cut short: who asked may leave, and what is gone must be told.
        self.on_whole_index(move |mirror| {
            let mut purged = Purged { package: (&what).into(), seen_is_kept: true, ..Purged::default() };
            let ended = match &what {
                PackageSelector::Provider(meant) => {
                    let ended = mirror.purge_from_disk(meant, &mut purged, now).and_then(|()| {
                        let left = mirror.store.records.packages_with_names(&meant.of)?;
                        let left = left.into_iter().map(|package| package.version).collect();
                        mirror.resolve_purged(&meant.of, &meant.versions, &left);
                        Ok(())
                    });
                    mirror.forget_absences(meant);
                    mirror.changed(&meant.of);
                    ended
                }
                PackageSelector::Module(meant) => mirror.purge_module(meant, &mut purged, now),
            };
            let ended = ended.and_then(|()| mirror.purge_pages(&what, &mut purged));
            let Purged { archives, documents, .. } = purged;
            match &ended {
                Ok(()) => tracing::warn!(%what, archives, documents, "purged by the operator"),
                Err(error) => tracing::error!(%what, archives, documents, %error, "a purge ended early"),
            }
            ended.map(|()| purged)
        })
        .await
    }

    fn purge_from_disk(
        &self,
        what: &Selection<ProviderAddress>,
        purged: &mut Purged,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let of = &what.of;
        // Nothing is pinned meanwhile: what looks unpinned here is so until it is gone.
        let _nothing_is_pinned = self.evictor.block_evictions();
        // Before anything goes: what was proven must be put down, or it all stays.
        let mut spared = BTreeSet::new();
        for UnrecordedSet { package, why } in self.histories.record_stored(of)? {
            if what.versions.include(&package.version) {
                let left = "its proof set alone tells what was proven, and cannot be read";
                purged.left.push(format!("{package}: {left}: {why}"));
                spared.insert(package);
            }
        }
        let pinned = self.purge_archives(what, &spared, purged)?;
        purged.pinned = pinned.iter().map(ToString::to_string).collect();
        spared.extend(pinned);
        for package in self.store.records.packages_with_sets(of)? {
            if !what.versions.include(&package.version) || spared.contains(&package) {
                continue;
            }
            // A download may have landed since: what it brought is kept anew, and with it what proves it.
            if self.catalog.name(&package)?.archives.is_empty() {
                self.purge_document(&Key::ProofSet(package), purged)?;
            }
        }
        let list = Key::ProviderVersions(of.clone());
        match &what.versions {
            Versions::All if spared.is_empty() => self.purge_document(&list, purged),
            versions if spared.is_empty() => self.unlist_dropped(&list, versions, now),
            _ => Ok(()),
        }
    }

    /// Removes the names that are meant, and the archives that no other name lists. Says which are pinned.
    fn purge_archives(
        &self,
        what: &Selection<ProviderAddress>,
        spared: &BTreeSet<Package>,
        purged: &mut Purged,
    ) -> Result<BTreeSet<Package>, StoreError> {
        let index = &self.store.index;
        index.needs_to_be_whole()?;
        if let Some(unreadable) = index.unreadable_name() {
            // It may list any archive, so none could be removed: and then no name may go.
            return Err(unreadable);
        }
        // Nothing is taken in or removed meanwhile.
        let _locks = self.catalog.lock_all_digests();
        let records = &self.store.records;
        let mut packages: BTreeSet<Package> = records.packages_with_names(&what.of)?.into_iter().collect();
        packages.extend(records.packages_with_sets(&what.of)?);
        packages.retain(|package| what.versions.include(&package.version) && !spared.contains(package));
        let mut digests = BTreeSet::new();
        let mut pinned = BTreeSet::new();
        for package in &packages {
            let name = self.catalog.name(package)?;
            if name.pinned {
                pinned.insert(package.clone());
                continue;
            }
            digests.extend(name.archives.iter().map(|held| held.digest));
            // What a set lists may be held without a name, from before a crash.
            match self.read_set(package) {
                Ok(Some(HeldSet { kept, .. })) => {
                    let predecessor = kept.predecessor.as_ref().map(|(set, _)| set);
                    digests.extend(predecessor.into_iter().chain([&kept.current]).map(|set| set.document.shasum));
                }
                Ok(None) => {}
                Err(StoreError::Gone) => return Err(StoreError::Gone),
                Err(why) => purged.unreadable.push(format!("the proof set of {package}: {why}")),
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
            self.checked.lock().remove(&digest);
            purged.archives += 1;
            purged.archive_bytes += blob.size_bytes();
        }
        Ok(pinned)
    }

    /// The list stays. What upstream has dropped was only in it because it was held.
    pub(super) fn unlist_dropped(&self, list: &Key, versions: &Versions, now: Timestamp) -> Result<(), StoreError> {
        let _lock = self.catalog.record_lock(list).lock();
        let Some(kept) = self.store.records.get(list)?.and_then(KeptDocument::read) else { return Ok(()) };
        if kept.dropped().is_empty() {
            return Ok(());
        }
        let record = kept.without_dropped(versions).write();
        let size_bytes = self.store.records.put(list, &record, Durability::Lazy)?;
        self.store.index.document_kept(list, size_bytes, now);
        Ok(())
    }

    pub(super) fn purge_document(&self, key: &Key, purged: &mut Purged) -> Result<(), StoreError> {
        let size_bytes = self.store.index.document_bytes(key)?;
        self.remove_document(key, Durability::Synced)?;
        if size_bytes > 0 {
            purged.documents += 1;
            purged.document_bytes += size_bytes;
        }
        Ok(())
    }
}
