//! Counters that grow with every change to the stored data of a provider, a module, or the pages of a registry. An
//! answer rendered at an older revision must be rendered again.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::address::{Address, Artifact, Hostname, ModuleAddress, ProviderAddress};
use crate::mirror::Library;

/// The counters. Several addresses share one, which only causes an extra rendering.
#[derive(Debug)]
pub(in crate::mirror) struct Revisions {
    counters: [AtomicU64; 256],
    hasher: RandomState,
}

impl Default for Revisions {
    fn default() -> Self {
        Self { counters: std::array::from_fn(|_| AtomicU64::new(0)), hasher: RandomState::new() }
    }
}

impl Revisions {
    fn of(&self, address: &impl Hash) -> &AtomicU64 {
        // The modulus keeps the index in bounds.
        &self.counters[self.hasher.hash_one(address) as usize % self.counters.len()]
    }
}

impl Library {
    /// A counter that grows with every change to a provider's data. An answer rendered at an older revision must be
    /// rendered again.
    pub fn revision(&self, address: &ProviderAddress) -> u64 {
        self.revision_of(address).load(Ordering::Acquire)
    }

    /// The revision counter of a module, regardless of the spelling of its name.
    pub fn revision_of_module(&self, address: &ModuleAddress) -> u64 {
        self.revision_of(&address.folded()).load(Ordering::Acquire)
    }

    pub(in crate::mirror) fn revision_of_address(&self, address: &Address) -> u64 {
        match address {
            Address::Provider(provider) => self.revision(provider),
            Address::Module(module) => self.revision_of_module(module),
        }
    }

    pub(in crate::mirror) fn bump_revision(&self, address: &ProviderAddress) {
        self.revision_of(address).fetch_add(1, Ordering::AcqRel);
    }

    pub(in crate::mirror) fn bump_module_revision(&self, address: &ModuleAddress) {
        self.revision_of(&address.folded()).fetch_add(1, Ordering::AcqRel);
    }

    /// A counter that grows with each purge of a registry's pages. Fetched pages do not change it.
    pub fn revision_of_pages(&self, host: &Hostname) -> u64 {
        self.revision_of(host).load(Ordering::Acquire)
    }

    pub(in crate::mirror) fn bump_pages_revision(&self, host: &Hostname) {
        self.revision_of(host).fetch_add(1, Ordering::AcqRel);
    }

    pub(in crate::mirror) fn bump_artifact_revision(&self, artifact: &Artifact) {
        match artifact {
            Artifact::Provider(package) => self.bump_revision(&package.provider),
            Artifact::Module(package) => self.bump_module_revision(&package.module),
        }
    }

    pub(in crate::mirror) fn revision_of(&self, address: &impl Hash) -> &AtomicU64 {
        self.catalog.revisions.of(address)
    }

    pub(in crate::mirror) fn bump_address_revision(&self, address: &Address) {
        match address {
            Address::Provider(provider) => self.bump_revision(provider),
            Address::Module(module) => self.bump_module_revision(module),
        }
    }
}
