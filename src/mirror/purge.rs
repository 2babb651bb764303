//! What an operator wants forgotten: documents, sets, names and archives. Not what was seen: a version that is
//! published anew is noticed all the same.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::documents::KeptDocument;
use super::proof_set::HeldSet;
use super::{Call, Mirror};
use crate::address::{Package, Version, Versions, What};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::store::{Durability, Key, StoreError};

/// What was forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purged {
    /// Of what.
    pub what: String,
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
    /// Whether what was ever proven is remembered all the same. It always is: so a version that is published anew is
    /// still noticed.
    pub seen_is_kept: bool,
}

impl Mirror {
    /// Forgets what an operator means, all but what was seen of it and what is pinned. Of a registry that is no
    /// upstream any more, too. Downloads under way are not stopped: what they bring is kept anew.
    pub async fn purge(self: &Arc<Self>, what: &What, call: &Call) -> Result<Purged, Error> {
        let (of, now) = (what.clone(), call.now);
        let purged = self.on_disk(move |mirror| mirror.purge_from_disk(&of, now)).await?;
        self.forget_absences(what);
        self.changed(&what.provider);
        tracing::warn!(%what, archives = purged.archives, documents = purged.documents, "purged by the operator");
        Ok(purged)
    }

    fn purge_from_disk(&self, what: &What, now: Timestamp) -> Result<Purged, StoreError> {
        let mut purged = Purged { what: what.to_string(), seen_is_kept: true, ..Purged::default() };
        let pinned = self.purge_archives(what, &mut purged)?;
        let of = &what.provider;
        for package in self.store.records.packages_with_sets(of)? {
            if what.versions.include(&package.version) && !pinned.contains(&package) {
                self.purge_document(&Key::ProofSet(package), &mut purged)?;
            }
        }
        let list = Key::ProviderVersions(of.clone());
        match &what.versions {
            Versions::All if pinned.is_empty() => self.purge_document(&list, &mut purged)?,
            Versions::Exactly(version) if pinned.is_empty() => self.unlist_dropped(&list, version, now)?,
            Versions::All | Versions::Exactly(_) => {}
        }
        purged.pinned = pinned.iter().map(ToString::to_string).collect();
        Ok(purged)
    }

    /// Removes the names that are meant, and the archives that no other name lists. Says which are pinned.
    fn purge_archives(&self, what: &What, purged: &mut Purged) -> Result<BTreeSet<Package>, StoreError> {
        // Under the locks of all digests nothing is taken in or removed: so one look at the names is enough.
        let _locks: Vec<_> = self.digest_locks.iter().map(|lock| lock.lock()).collect();
        let names = self.names_by_digest()?;
        let records = &self.store.records;
        let mut packages: BTreeSet<Package> = records.packages_with_names(&what.provider)?.into_iter().collect();
        packages.extend(records.packages_with_sets(&what.provider)?);
        packages.retain(|package| what.versions.include(&package.version));
        let mut digests = BTreeSet::new();
        let mut pinned = BTreeSet::new();
        for package in &packages {
            let name = self.name(package)?;
            if name.pinned {
                pinned.insert(package.clone());
                continue;
            }
            digests.extend(name.archives.iter().map(|held| held.digest));
            // What a set lists may be held without a name, from before a crash.
            if let Some(HeldSet { kept, .. }) = self.read_set(package)? {
                let predecessor = kept.predecessor.as_ref().map(|(set, _)| set);
                digests.extend(predecessor.into_iter().chain([&kept.current]).map(|set| set.document.shasum));
            }
            self.change_name(package, |name| name.archives.clear())?;
        }
        let is_meant = |package: &Package| packages.contains(package) && !pinned.contains(package);
        for digest in digests {
            let Some(blob) = self.store.blobs.get(&digest)? else { continue };
            if !names.all_readable || names.of(&digest).iter().any(|named| !is_meant(&named.package)) {
                purged.shared += 1;
                continue;
            }
            self.store.blobs.remove(&digest)?;
            self.store.index.archive_gone(&digest);
            self.checked.lock().remove(&digest);
            purged.archives += 1;
            purged.archive_bytes += blob.size_bytes();
        }
        Ok(pinned)
    }

    /// The list stays. What upstream has dropped was only in it because it was held.
    fn unlist_dropped(&self, list: &Key, version: &Version, now: Timestamp) -> Result<(), StoreError> {
        match self.store.records.get(list)?.and_then(KeptDocument::read) {
            Some(kept) if !kept.dropped().is_empty() => {
                self.write_document(list, &kept.without_dropped(version).write(), now, Durability::Lazy)
            }
            _ => Ok(()),
        }
    }

    fn purge_document(&self, key: &Key, purged: &mut Purged) -> Result<(), StoreError> {
        let size_bytes = self.store.index.document_bytes(key)?;
        self.remove_document(key)?;
        if size_bytes > 0 {
            purged.documents += 1;
            purged.document_bytes += size_bytes;
        }
        Ok(())
    }
}
