//! The commands of an operator.

pub(in crate::mirror) mod accept;
pub(in crate::mirror) mod gauges;
pub(in crate::mirror) mod pin;
pub(in crate::mirror) mod purge;
pub(in crate::mirror) mod refresh;
pub(in crate::mirror) mod rehash;
pub(in crate::mirror) mod scrub;
pub(in crate::mirror) mod status;
pub(in crate::mirror) mod warm;

use crate::mirror::{Archives, Documents, Library, Modules, Offline, ProofSets, Runtime};
use std::sync::Arc;

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
        })
    }
}
