//! The state of a tree import, and its reports.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self};
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::mpsc::Sender;

use crate::address::{Package, PackageRef, ProviderAddress, Version};
use crate::digest::Digest;
use crate::mirror::transfer::tree::repack::PackageRepack;
use crate::mirror::transfer::tree::sidecar_files::SidecarFiles;
use crate::mirror::transfer::tree::staging::WaitingArchives;
use crate::mirror::transfer::tree::{FileVerdict, ImportCounts, ImportStep, ImportedFile, UnsignedPolicy};
use crate::mirror::{RequestContext, Transfers};
use crate::store::StoreError;

/// Reasons to stop before the end of the tree.
pub(in crate::mirror) enum ImportAbort {
    /// The tar is truncated or invalid.
    Tar(io::Error),
    /// The store failed while this file was processed. The file is not to blame.
    Store { file: String, error: StoreError },
    /// The receiver was dropped.
    ReceiverGone,
}

impl From<io::Error> for ImportAbort {
    fn from(error: io::Error) -> Self {
        Self::Tar(error)
    }
}

impl ImportAbort {
    /// Attributes a store failure to the file that was processed.
    pub(in crate::mirror) fn store_failed_at(file: &str) -> impl Fn(StoreError) -> Self {
        |error| Self::Store { file: file.to_owned(), error }
    }

    pub(in crate::mirror) fn into_step(self) -> ImportStep {
        let error = match self {
            Self::Tar(error) => format!("the tree could not be read: {error}"),
            Self::Store { file, error } => {
                tracing::error!(file, %error, to_do = error.remedy(), "an import stopped because the store failed");
                format!("{file}: the store failed: {error}; {}", error.remedy())
            }
            Self::ReceiverGone => "the client has disconnected".to_owned(),
        };
        ImportStep::Stopped { error }
    }
}

pub(in crate::mirror) struct TreeImport {
    pub(in crate::mirror) transfers: Arc<Transfers>,
    pub(in crate::mirror) runtime: Handle,
    pub(in crate::mirror) call: RequestContext,
    pub(in crate::mirror) unsigned: UnsignedPolicy,
    pub(in crate::mirror) steps: Sender<ImportStep>,
    pub(in crate::mirror) sidecars: SidecarFiles,
    /// Staged archives whose proof may follow later in the tar.
    pub(in crate::mirror) waiting: WaitingArchives,
    /// The unpacked package that is being read.
    pub(in crate::mirror) repack: Option<PackageRepack>,
    /// Every package that lies unpacked in the tree.
    pub(in crate::mirror) packed: HashSet<Package>,
    /// The digests proven so far, by package.
    pub(in crate::mirror) proven: HashMap<Package, Digest>,
    /// Packages with several different files in the tree, none of them proven.
    pub(in crate::mirror) disputed: HashSet<Package>,
    pub(in crate::mirror) affected_providers: BTreeSet<ProviderAddress>,
    /// Versions with unproven archives that the operator vouches for.
    pub(in crate::mirror) vouched_for: BTreeSet<(ProviderAddress, Version)>,
    pub(in crate::mirror) counts: ImportCounts,
}

impl TreeImport {
    pub(in crate::mirror) fn refused(
        &mut self,
        file: String,
        package: Option<&Package>,
        size_bytes: u64,
        reason: String,
    ) -> Result<(), ImportAbort> {
        self.report(file, package, size_bytes, FileVerdict::Refused { why: reason }, Vec::new())
    }

    pub(in crate::mirror) fn report(
        &mut self,
        file: String,
        package: Option<&Package>,
        size_bytes: u64,
        verdict: FileVerdict,
        notes: Vec<String>,
    ) -> Result<(), ImportAbort> {
        if let FileVerdict::Refused { why: reason } = &verdict {
            tracing::warn!(file, reason, "a file of a tree was refused");
        }
        self.counts.count(&verdict);
        let package = package.map(PackageRef::from);
        let step = ImportStep::File(ImportedFile { file, package, size_bytes, judged: verdict, notes });
        self.steps.blocking_send(step).map_err(|_| ImportAbort::ReceiverGone)
    }
}
