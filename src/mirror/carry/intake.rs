//! One thing of a bundle, judged by what an upstream would have had to show. The order in which it is taken in then is
//! that of any intake: what was seen, the archive, what proves it or leads to it, its name; each synced.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::super::Mirror;
use super::super::modules::CarriedModule;
use super::documents::{CarriedDocument, kept_of};
use super::sets::CarriedSet;
use crate::address::{Artifact, PackageSelector};
use crate::bundle::{BundleEntry, FileRole, SignatureStatus};
use crate::clock::Timestamp;
use crate::store::StoreError;

/// The small files of one thing, by what they are to it.
#[derive(Debug, Default)]
pub(super) struct SmallFiles(pub(super) HashMap<FileRole, Bytes>);

impl SmallFiles {
    pub(super) fn get(&self, role: FileRole) -> Result<Bytes, String> {
        self.0.get(&role).cloned().ok_or_else(|| format!("its {role} is missing"))
    }

    pub(super) fn get_or_empty(&self, role: FileRole) -> Bytes {
        self.0.get(&role).cloned().unwrap_or_default()
    }
}

/// What a thing is judged by, beside its files.
#[derive(Clone, Copy)]
pub(in crate::mirror) struct Judging<'a> {
    /// What an operator says is right, whatever was seen before.
    pub(super) accept: &'a [PackageSelector],
    /// Who vouches for the bundle.
    pub(super) standing: &'a SignatureStatus,
    pub(in crate::mirror) now: Timestamp,
}

impl Judging<'_> {
    /// Whether an operator says that this is right.
    pub(in crate::mirror) fn is_accepted(&self, mirror: &Mirror, of: &Artifact) -> bool {
        self.accept.iter().any(|what| match (what, of) {
            (PackageSelector::Provider(meant), Artifact::Provider(package)) => {
                meant.of == package.provider && meant.versions.include(&package.version)
            }
            (PackageSelector::Module(meant), Artifact::Module(key)) => {
                mirror.terms().key_of(&meant.of) == key.module && meant.versions.include(&key.version)
            }
            _ => false,
        })
    }
}

/// What one thing was found to be.
pub(super) enum EntryVerdict {
    /// It is held already, or something newer is.
    Held,
    /// A document that may be put in place of the one that is held.
    Document(Box<CarriedDocument>),
    /// A proof set that proves; its archive is next.
    Provider(Box<CarriedSet>),
    /// A location that can be read; its archive is next.
    Module(Box<CarriedModule>),
}

/// That the disk failed, for whoever applies.
pub(in crate::mirror) fn store_failed(error: StoreError) -> String {
    format!("the store failed: {error}; {}", error.to_do())
}

impl EntryVerdict {
    /// Judges one thing by its small files.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn of(
        mirror: &Arc<Mirror>,
        entry: &BundleEntry,
        small: &SmallFiles,
        judging: &Judging<'_>,
    ) -> Result<Self, String> {
        match entry {
            BundleEntry::Discovery { document, .. }
            | BundleEntry::ProviderVersions { document, .. }
            | BundleEntry::ModuleVersions { document, .. } => {
                let carried = CarriedDocument::judge(mirror, entry, document, small, judging.now)?;
                Ok(carried.map_or(Self::Held, |carried| Self::Document(Box::new(carried))))
            }
            BundleEntry::Provider(entry) => {
                let carried = CarriedSet::judge(mirror, entry, small, judging)?;
                Ok(carried.map_or(Self::Held, |carried| Self::Provider(Box::new(carried))))
            }
            BundleEntry::Module(entry) => {
                let location = kept_of(&entry.said, small.get(FileRole::Location)?, Bytes::new(), judging.now);
                let carried = CarriedModule::judge(mirror, entry, location, judging)?;
                Ok(carried.map_or(Self::Held, |carried| Self::Module(Box::new(carried))))
            }
        }
    }
}
