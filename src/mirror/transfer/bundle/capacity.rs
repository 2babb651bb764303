//! Checks that a whole bundle fits before any of it is applied. Offline, nothing is evicted for it (DESIGN 5).

use std::collections::HashSet;

use crate::address::{Artifact, Package};
use crate::bundle::{BundleEntry, EntryFile, FileRole, Manifest};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::mirror::freshness::Age;
use crate::mirror::library::proof_set::ProofSet;
use crate::mirror::library::stored_document::StoredDocument;
use crate::mirror::transfer::bundle::import::ApplyError;
use crate::mirror::{Connectivity, Library, default_if_gone};
use crate::store::{Key, StoreError};

/// Maximum disk overhead per file: the rest of its last block, its name and its record.
const FILE_OVERHEAD_BYTES: u64 = 8 << 10;

impl Library {
    /// Refuses a bundle that does not fit or contains unknown registries.
    ///
    /// # Errors
    /// [`ApplyError`]. Nothing was changed.
    pub(in crate::mirror) fn check_capacity(&self, manifest: &Manifest) -> Result<(), ApplyError> {
        let terms = self.runtime.config();
        let foreign: Vec<String> = {
            let mut hosts: Vec<_> = manifest.entries.iter().map(BundleEntry::host).collect();
            hosts.sort();
            hosts.dedup();
            hosts.into_iter().filter(|host| terms.upstreams.get(host).is_none()).map(ToString::to_string).collect()
        };
        if !foreign.is_empty() {
            return Err(ApplyError::UnknownHosts(foreign.join(", ")));
        }
        let (mut seen, mut needed, mut on_disk) = (HashSet::new(), 0u64, 0u64);
        for entry in &manifest.entries {
            if self.needs_no_space(entry)? {
                continue;
            }
            for EntryFile { role, file, left_out } in entry.files() {
                let largest = self.runtime.limits.archive_bytes;
                if role == FileRole::Archive && file.bytes > largest {
                    return Err(ApplyError::NoRoom {
                        needed: file.bytes,
                        available: largest,
                        reason: "an archive exceeds the size limit",
                    });
                }
                let is_held = role == FileRole::Archive && self.store.blobs.is_stored(&file.sha256)?;
                if !left_out && !is_held && seen.insert(file.sha256) {
                    needed = needed.saturating_add(file.bytes);
                    on_disk = on_disk.saturating_add(file.bytes).saturating_add(FILE_OVERHEAD_BYTES);
                }
            }
        }
        let (stays, reason) = match self.runtime.connectivity() {
            Connectivity::Offline => (self.used_bytes(), "[store] max_size is reached, and offline nothing is evicted"),
            Connectivity::Online => (
                self.exempt_bytes()?,
                "pinned packages and stored ones of the bundle use up the rest of [store] max_size",
            ),
        };
        let evictable = match self.runtime.connectivity() {
            Connectivity::Offline => 0,
            Connectivity::Online => self.store.index.totals().archive_bytes.saturating_sub(stays),
        };
        let space = self.store.free_bytes()?.saturating_add(evictable);
        if on_disk > space {
            return Err(ApplyError::NoRoom {
                needed: on_disk,
                available: space,
                reason: "the disk of the store is full",
            });
        }
        // Checked after the disk: the limit may be a share of it, so freeing disk space can satisfy both.
        let space = self.refresh_size_limit().saturating_sub(stays);
        if needed > space {
            return Err(ApplyError::NoRoom { needed, available: space, reason });
        }
        Ok(())
    }

    /// True if an entry needs no space, because it is stored or replaces a stored document.
    fn needs_no_space(&self, entry: &BundleEntry) -> Result<bool, ApplyError> {
        let (artifact, archive) = match entry {
            BundleEntry::Discovery { .. }
            | BundleEntry::ProviderVersions { .. }
            | BundleEntry::ModuleVersions { .. } => {
                return Ok(self.store.records.get(&self.entry_key(entry))?.is_some());
            }
            BundleEntry::Provider(entry) => (Artifact::Provider(entry.package()), entry.archive),
            BundleEntry::Module(entry) => (self.runtime.artifact_of(&entry.package()), entry.archive),
        };
        Ok(self.catalog.name(artifact)?.get(&archive.sha256).is_some()
            && self.store.blobs.is_stored(&archive.sha256)?)
    }
}

impl Library {
    /// True if this set or a newer one is stored, with its archive.
    pub(in crate::mirror) fn has_set_or_newer(
        &self,
        package: &Package,
        set: &ProofSet,
        age: Age,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let Some(stored) = self.read_set(package)? else { return Ok(false) };
        let current = &stored.stored_set.current;
        let is_it = current.has_same_files(set) && current.body == set.body;
        Ok((is_it || stored.stored_set.age.is_confirmed_after(age, now))
            && self.is_stored_under(package, current.document.shasum)?)
    }

    /// True if an archive is stored under this name.
    fn is_stored_under(&self, package: &Package, digest: Digest) -> Result<bool, StoreError> {
        Ok(self.catalog.name(package)?.get(&digest).is_some() && default_if_gone(self.store.blobs.is_stored(&digest))?)
    }

    /// True if this document or a newer one is stored.
    pub(in crate::mirror) fn has_document_or_newer(
        &self,
        key: &Key,
        coming: &StoredDocument,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let Some(stored) = self.store.records.get(key)?.and_then(StoredDocument::read) else { return Ok(false) };
        if stored.age().is_confirmed_after(coming.age(), now) {
            return Ok(true);
        }
        let made = self.merge_stored_entries(key, Some(&stored), coming.clone())?;
        Ok(stored.has_same_content(&made) && stored.age() == made.age())
    }
}
