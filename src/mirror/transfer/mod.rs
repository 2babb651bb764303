//! Archives carried in and out: bundles and provider trees.

pub(in crate::mirror) mod bundle;
pub(in crate::mirror) mod tree;

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Error;
use crate::mirror::{Documents, Library, ProofSets, Runtime, VerifiedReader};

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

/// The most exports and bundles created at a time. Each may occupy a thread for as long as its client takes.
pub(in crate::mirror) const MAX_TRANSFERS: usize = 4;

/// A permit for one export or bundle, released on drop.
#[derive(Debug)]
pub struct TransferPermit(#[expect(dead_code, reason = "held only for its Drop")] OwnedSemaphorePermit);

impl Transfers {
    /// Takes a permit for an export or a bundle.
    ///
    /// # Errors
    /// [`Error::Busy`] where none is free.
    pub fn transfer(&self) -> Result<TransferPermit, Error> {
        let reason = || format!("{MAX_TRANSFERS} exports and bundles are being made, as many as may be at one time");
        let busy = || Error::Busy { subject: "the transfer".to_owned(), reason: reason() };
        Arc::clone(&self.permits).try_acquire_owned().map(TransferPermit).map_err(|_| busy())
    }
}
