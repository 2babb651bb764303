//! Archives carried in and out: bundles and provider trees.

pub(in crate::mirror) mod bundle;
pub(in crate::mirror) mod permits;
pub(in crate::mirror) mod tree;

use crate::mirror::transfer::permits::MAX_TRANSFERS;
use crate::mirror::{Documents, Library, ProofSets, Runtime, VerifiedReader};
use std::sync::Arc;

use tokio::sync::Semaphore;

/// Imports and exports bundles and provider trees.
#[derive(Debug)]
pub struct Transfers {
    pub(in crate::mirror) runtime: Arc<Runtime>,
    pub(in crate::mirror) library: Arc<Library>,
    pub(in crate::mirror) documents: Arc<Documents>,
    pub(in crate::mirror) proof_sets: Arc<ProofSets>,
    pub(in crate::mirror) reader: Arc<VerifiedReader>,
    permits: Arc<Semaphore>,
    tree_import_lock: Arc<tokio::sync::Mutex<()>>,
    /// Serializes bundle imports.
    bundle_import_lock: tokio::sync::Mutex<()>,
}

impl Transfers {
    pub(in crate::mirror) fn new(proof_sets: Arc<ProofSets>, reader: Arc<VerifiedReader>) -> Arc<Self> {
        Arc::new(Self {
            runtime: Arc::clone(&proof_sets.runtime),
            library: Arc::clone(&proof_sets.library),
            documents: Arc::clone(&proof_sets.documents),
            proof_sets,
            reader,
            permits: Arc::new(Semaphore::new(MAX_TRANSFERS)),
            tree_import_lock: Arc::default(),
            bundle_import_lock: tokio::sync::Mutex::default(),
        })
    }
}
