//! The commands of an operator, and the steps of jobs.

pub mod accept;
pub mod approve;
pub mod explain;
pub mod list;
pub mod notable;
pub mod policy;
pub mod purge;
pub mod refresh;
pub mod rehash;
pub mod status;
pub mod warm;

use std::sync::Arc;

use crate::address::{Artifact, PackageSelector};
use crate::error::Error;
use crate::mirror::library::pins::{PinChange, PinOutcome, PinResult};
use crate::mirror::{Archives, Documents, Library, Modules, Offline, ProofSets, Runtime};

/// The commands of an operator, and the steps of jobs.
#[derive(Debug)]
pub struct Operations {
    pub(in crate::mirror) runtime: Arc<Runtime>,
    pub(in crate::mirror) library: Arc<Library>,
    pub(in crate::mirror) documents: Arc<Documents>,
    pub(in crate::mirror) proof_sets: Arc<ProofSets>,
    pub(in crate::mirror) archives: Arc<Archives>,
    pub(in crate::mirror) modules: Arc<Modules>,
    pub(in crate::mirror) offline: Arc<Offline>,
    verify_lock: Arc<tokio::sync::Mutex<()>>,
    /// Held while the held versions are listed.
    held_lock: tokio::sync::Mutex<()>,
}

impl Operations {
    pub(in crate::mirror) fn new(archives: Arc<Archives>, modules: Arc<Modules>, offline: Arc<Offline>) -> Arc<Self> {
        Arc::new(Self {
            runtime: Arc::clone(&archives.runtime),
            library: Arc::clone(&archives.library),
            documents: Arc::clone(&modules.documents),
            proof_sets: Arc::clone(&archives.proof_sets),
            archives,
            modules,
            offline,
            verify_lock: Arc::default(),
            held_lock: tokio::sync::Mutex::default(),
        })
    }

    /// Pins or unpins the stored packages of a selection.
    ///
    /// # Errors
    /// The disk failed. Some packages may have been changed.
    pub async fn pin(self: &Arc<Self>, selector: &PackageSelector, pin: PinChange) -> Result<Vec<PinResult>, Error> {
        self.library.refresh((&selector.address()).into()).await?;
        let owned_selector = selector.clone();
        let pinning = self.library.on_disk(move |library| {
            let mut selected = Vec::new();
            for address in library.runtime.config().spellings(&owned_selector.address()) {
                selected.extend(library.named(&address)?);
            }
            selected.retain(|artifact| owned_selector.versions().include(artifact.version()));
            selected.sort();
            library.pin_each(&selected, pin)
        });
        let mut pinned = pinning.await?;
        if pinned.iter().any(PinResult::succeeded) {
            // The name record of a package may outlive its archive.
            pinned.retain(PinResult::succeeded);
        } else {
            pinned = vec![PinResult { package: selector.into(), outcome: PinOutcome::NotStored }];
        }
        Ok(pinned)
    }

    /// Pins or unpins these packages.
    ///
    /// # Errors
    /// The disk failed. Some packages may have been changed.
    pub async fn pin_artifacts(&self, packages: Vec<Artifact>, pin: PinChange) -> Result<Vec<PinResult>, Error> {
        self.library.on_disk(move |library| library.pin_each(&packages, pin)).await
    }
}
