//! Exempts the contents of a bundle from eviction while it is applied.

use crate::mirror::Library;
use std::collections::HashSet;

use parking_lot::Mutex;

use crate::bundle::{BundleEntry, Manifest};
use crate::digest::Digest;
use crate::store::Key;

/// The contents of the bundle that is being applied; empty if there is none.
#[derive(Debug, Default)]
pub(in crate::mirror) struct EvictionHolds(Mutex<HeldNames>);

#[derive(Debug, Default)]
struct HeldNames {
    archives: HashSet<Digest>,
    documents: HashSet<Key>,
}

/// Ends the exemption on drop.
pub(in crate::mirror) struct EvictionHoldGuard<'a>(&'a EvictionHolds);

impl Drop for EvictionHoldGuard<'_> {
    fn drop(&mut self) {
        *self.0.0.lock() = HeldNames::default();
    }
}

impl EvictionHolds {
    pub(in crate::mirror) fn archives(&self) -> HashSet<Digest> {
        self.0.lock().archives.clone()
    }

    pub(in crate::mirror) fn has_archive(&self, digest: &Digest) -> bool {
        self.0.lock().archives.contains(digest)
    }

    pub(in crate::mirror) fn has_document(&self, key: &Key) -> bool {
        self.0.lock().documents.contains(key)
    }
}

impl Library {
    /// Exempts the contents of a bundle from eviction until the guard is dropped.
    pub(in crate::mirror) fn hold_entries(&self, manifest: &Manifest) -> EvictionHoldGuard<'_> {
        let named = HeldNames {
            archives: manifest.entries.iter().filter_map(BundleEntry::archive).map(|archive| archive.sha256).collect(),
            documents: manifest.entries.iter().map(|entry| self.entry_key(entry)).collect(),
        };
        let _nothing_is_evicted = self.evictor.block_evictions();
        *self.evictor.holds.0.lock() = named;
        EvictionHoldGuard(&self.evictor.holds)
    }

    /// The store key of the document, proof set or location of an entry.
    pub(in crate::mirror) fn entry_key(&self, entry: &BundleEntry) -> Key {
        match entry {
            BundleEntry::Discovery { host, .. } => Key::Discovery(host.clone()),
            BundleEntry::ProviderVersions { provider, .. } => Key::ProviderVersions(provider.clone()),
            BundleEntry::ModuleVersions { module, .. } => Key::ModuleVersions(self.runtime.config().key_of(module)),
            BundleEntry::Provider(entry) => Key::ProofSet(entry.package()),
            BundleEntry::Module(entry) => Key::ModuleLocation(self.runtime.config().key_of_package(&entry.package())),
        }
    }
}
