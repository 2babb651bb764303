//! Judges one entry of a bundle by the rules for responses from upstream. It is then committed in the usual order, each
//! step synced: first-seen record, archive, proof set or location, name.

use crate::mirror::Library;
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::address::{Artifact, PackageSelector};
use crate::bundle::{BundleEntry, FileRole, SignatureStatus};
use crate::clock::Timestamp;
use crate::mirror::modules::BundledModule;
use crate::mirror::transfer::bundle::documents::{BundledDocumentUpdate, document_from_bundle};
use crate::mirror::transfer::bundle::sets::BundledSet;
use crate::store::StoreError;

#[derive(Debug, Default)]
pub(in crate::mirror) struct SmallFiles(pub(in crate::mirror) HashMap<FileRole, Bytes>);

impl SmallFiles {
    pub(in crate::mirror) fn get(&self, role: FileRole) -> Result<Bytes, String> {
        self.0.get(&role).cloned().ok_or_else(|| format!("its {role} is missing"))
    }

    pub(in crate::mirror) fn get_or_empty(&self, role: FileRole) -> Bytes {
        self.0.get(&role).cloned().unwrap_or_default()
    }
}

/// The criteria for judging an entry, besides its files.
#[derive(Clone, Copy)]
pub(in crate::mirror) struct EntryCriteria<'a> {
    /// Packages that an operator accepts whatever was seen before.
    pub(in crate::mirror) accept: &'a [PackageSelector],
    pub(in crate::mirror) signature_status: &'a SignatureStatus,
    pub(in crate::mirror) now: Timestamp,
}

impl EntryCriteria<'_> {
    pub(in crate::mirror) fn is_accepted(&self, library: &Library, artifact: &Artifact) -> bool {
        self.accept.iter().any(|selector| match (selector, artifact) {
            (PackageSelector::Provider(selection), Artifact::Provider(package)) => {
                selection.of == package.provider && selection.versions.include(&package.version)
            }
            (PackageSelector::Module(selection), Artifact::Module(key)) => {
                library.runtime.config().key_of(&selection.of) == key.module && selection.versions.include(&key.version)
            }
            _ => false,
        })
    }
}

pub(in crate::mirror) enum EntryVerdict {
    /// It, or a newer one, is stored already.
    AlreadyStored,
    /// A valid document that may replace the stored one.
    Document(Box<BundledDocumentUpdate>),
    /// A verified proof set. Its archive follows.
    Provider(Box<BundledSet>),
    /// A valid location. Its archive follows.
    Module(Box<BundledModule>),
}

/// The refusal text for a store failure.
pub(in crate::mirror) fn store_failed(error: StoreError) -> String {
    format!("the store failed: {error}; {}", error.remedy())
}

impl EntryVerdict {
    /// Judges one entry by its small files.
    ///
    /// # Errors
    /// The reason that it is refused.
    pub(in crate::mirror) fn check_entry(
        library: &Arc<Library>,
        entry: &BundleEntry,
        small: &SmallFiles,
        judging: &EntryCriteria<'_>,
    ) -> Result<Self, String> {
        match entry {
            BundleEntry::Discovery { document, .. }
            | BundleEntry::ProviderVersions { document, .. }
            | BundleEntry::ModuleVersions { document, .. } => {
                let carried = BundledDocumentUpdate::check_entry(library, entry, document, small, judging.now)?;
                Ok(carried.map_or(Self::AlreadyStored, |carried| Self::Document(Box::new(carried))))
            }
            BundleEntry::Provider(entry) => {
                let carried = BundledSet::check_entry(library, entry, small, judging)?;
                Ok(carried.map_or(Self::AlreadyStored, |carried| Self::Provider(Box::new(carried))))
            }
            BundleEntry::Module(entry) => {
                let location =
                    document_from_bundle(&entry.said, small.get(FileRole::Location)?, Bytes::new(), judging.now);
                let carried = BundledModule::check_entry(library, entry, location, judging)?;
                Ok(carried.map_or(Self::AlreadyStored, |carried| Self::Module(Box::new(carried))))
            }
        }
    }
}
