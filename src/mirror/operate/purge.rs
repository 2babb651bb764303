//! Purges documents, proof sets, names and archives for an operator. First-seen records stay, so that a republished
//! version is still noticed; so do the times at which versions were listed, where one of them was verified.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use url::Url;

use crate::address::{Address, Artifact, Package, PackageRef, PackageSelector, Version, Versions};
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::library::catalog::Names;
use crate::mirror::library::document_store::VersionTimes;
use crate::mirror::library::files::FileRemoval;
use crate::mirror::library::module_history::read_first_seen;
use crate::mirror::library::proof_set::UsableProofSet;
use crate::mirror::library::stored_document::StoredDocument;
use crate::mirror::{Library, Operations};
use crate::store::{Durability, Key, StoreError};

/// The result of a purge.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PurgeResult {
    /// The selection.
    #[serde(flatten)]
    pub package: PackageRef,
    /// The number of archives removed.
    pub archives: u64,
    /// Their bytes.
    pub archive_bytes: u64,
    /// The number of archives that lost this name but stay, because another package names them too.
    pub shared: u64,
    /// The number of documents and proof sets removed.
    pub documents: u64,
    /// Their bytes.
    pub document_bytes: u64,
    /// Packages that were left alone because they are pinned.
    pub pinned: Vec<String>,
    /// Proof sets that could not be read. An archive that only they list may still be stored.
    #[serde(default)]
    pub unreadable: Vec<String>,
    /// Packages whose proof sets were left alone, because nothing else records what they prove; with the cause.
    #[serde(default)]
    pub left: Vec<String>,
    /// True if everything ever verified is still recorded. Always true, or nothing is removed: so a republished version
    /// is still noticed.
    pub seen_is_kept: bool,
}

impl PurgeResult {
    /// Returns true if nothing of the selection was left.
    pub fn removed_everything(&self) -> bool {
        self.pinned.is_empty() && self.unreadable.is_empty() && self.left.is_empty()
    }
}

impl Operations {
    /// Purges a selection, except first-seen records and pinned packages. Its host need not be an upstream any more.
    /// Downloads in progress are not stopped, and their results are stored.
    ///
    /// # Errors
    /// The disk failed. Nothing was removed if a name cannot be read, or if first-seen records cannot be completed.
    pub async fn purge(&self, selector: &PackageSelector) -> Result<PurgeResult, Error> {
        self.library.refresh((&selector.address()).into()).await?;
        let selector = selector.clone();
        // One task that is never cut short: the client may disconnect, and the result must be logged.
        let work = self.library.on_complete_index(move |library| {
            let purged = PurgeResult { package: (&selector).into(), seen_is_kept: true, ..PurgeResult::default() };
            let mut purge = Purge { library, purged };
            let ended = purge.selection(&selector);
            let PurgeResult { archives, documents, .. } = purge.purged;
            match &ended {
                Ok(()) => tracing::warn!(%selector, archives, documents, "purged by the operator"),
                Err(error) => tracing::error!(%selector, archives, documents, %error, "a purge ended early"),
            }
            ended.map(|()| purge.purged)
        });
        work.await
    }
}

struct Purge<'a> {
    library: &'a Library,
    purged: PurgeResult,
}

impl Purge<'_> {
    fn selection(&mut self, selector: &PackageSelector) -> Result<(), StoreError> {
        let library = self.library;
        {
            // The lock keeps out new pins: a package that is not pinned here stays so until it is removed.
            let _no_new_pins = library.evictor.block_evictions();
            for address in library.runtime.config().spellings(&selector.address()) {
                self.address(&address, selector.versions())?;
            }
        }
        self.pages(selector)
    }

    fn address(&mut self, address: &Address, versions: &Versions) -> Result<(), StoreError> {
        let library = self.library;
        let ended = self.versions(address, versions).and_then(|()| {
            let left = library.named(address)?.iter().map(|artifact| artifact.version().clone()).collect();
            library.resolve_alarms_of_purged(address.clone(), versions, &left);
            Ok(())
        });
        library.runtime.forget_absences(address, versions);
        // Last: what was just purged may have been unpacked meanwhile.
        ended.and(library.remove_trees(address, versions))
    }

    fn versions(&mut self, address: &Address, versions: &Versions) -> Result<(), StoreError> {
        let library = self.library;
        let mut spared = self.unrecorded(address, versions)?;
        let pinned = self.archives(address, versions, &spared)?;
        self.purged.pinned.extend(pinned.iter().map(ToString::to_string));
        spared.extend(pinned);
        for (artifact, document) in library.package_documents(address)? {
            let is_selected = versions.include(artifact.version()) && !spared.contains(&artifact);
            // A download may have been committed since. Its archive keeps the set that proves it.
            if is_selected && library.catalog.name_record(&artifact)?.archives.is_empty() {
                self.purge_document(&document)?;
            }
        }
        match versions {
            Versions::All if spared.is_empty() => {
                let documents = library.address_documents(address)?;
                documents.iter().try_for_each(|document| self.purge_document(document))
            }
            versions if spared.is_empty() => self.unlist_dropped(&Key::version_list(address), versions),
            _ => Ok(()),
        }
    }

    /// Records everything verified before anything is removed. Returns the packages that must stay, because nothing
    /// else records what they prove.
    fn unrecorded(&mut self, address: &Address, versions: &Versions) -> Result<BTreeSet<Artifact>, StoreError> {
        let mut spared = BTreeSet::new();
        match address {
            Address::Provider(provider) => {
                for (package, error) in self.library.histories.record_stored(provider)? {
                    if versions.include(&package.version) {
                        let reason = "its proof set is the only record of its digests, and cannot be read";
                        self.purged.left.push(format!("{package}: {reason}: {error}"));
                        spared.insert(Artifact::Provider(package));
                    }
                }
            }
            Address::Module(_) => {
                for artifact in self.library.named(address)? {
                    if let Artifact::Module(package) = artifact
                        && versions.include(&package.version)
                    {
                        // Rebuilds a lost record from the archive while that is stored.
                        read_first_seen(self.library, &package)?;
                    }
                }
            }
        }
        Ok(spared)
    }

    /// Removes the selected names, and the archives that no other name lists. Returns the pinned packages.
    fn archives(
        &mut self,
        address: &Address,
        versions: &Versions,
        spared: &BTreeSet<Artifact>,
    ) -> Result<BTreeSet<Artifact>, StoreError> {
        let library = self.library;
        let _locks = library.lock_for_removal()?;
        let mut selected: BTreeSet<Artifact> = library.named(address)?.into_iter().collect();
        if let Address::Provider(_) = address {
            selected.extend(library.package_documents(address)?.into_iter().map(|(artifact, _)| artifact));
        }
        selected.retain(|artifact| versions.include(artifact.version()) && !spared.contains(artifact));
        let (mut pinned, mut digests) = (BTreeSet::new(), BTreeSet::new());
        for artifact in selected {
            let name = library.catalog.name_record(&artifact)?;
            if name.pinned {
                pinned.insert(artifact);
                continue;
            }
            digests.extend(name.archives.iter().map(|archive| archive.digest));
            if let Artifact::Provider(package) = &artifact {
                digests.extend(self.digests_of_set(package)?);
            }
            library.clear_name(&artifact)?;
        }
        for digest in digests {
            match library.remove_file(&digest)? {
                FileRemoval::Absent => {}
                FileRemoval::Named => self.purged.shared += 1,
                FileRemoval::Removed { bytes } => {
                    self.purged.archives += 1;
                    self.purged.archive_bytes += bytes;
                }
            }
        }
        Ok(pinned)
    }

    /// The archives that a stored set lists: after a crash, one may be stored without a name.
    fn digests_of_set(&mut self, package: &Package) -> Result<Vec<Digest>, StoreError> {
        match self.library.read_set(package) {
            Ok(Some(UsableProofSet { stored_set, .. })) => {
                Ok(stored_set.sets().map(|set| set.document.shasum).collect())
            }
            Ok(None) => Ok(Vec::new()),
            Err(StoreError::Unavailable) => Err(StoreError::Unavailable),
            Err(reason) => {
                self.purged.unreadable.push(format!("the proof set of {package}: {reason}"));
                Ok(Vec::new())
            }
        }
    }

    /// Purges the details pages of the selected versions, and that of the latest one. Lists name others too, and stay
    /// until they are revalidated.
    fn pages(&mut self, selector: &PackageSelector) -> Result<(), StoreError> {
        for page in self.library.pages_of(selector.host())? {
            // A page's key is a digest, so only its URL shows its subject.
            let document = self.library.read_document(&page)?;
            if document.is_some_and(|document| has_details_of(selector, &document.metadata.asked)) {
                self.purge_document(&page)?;
            }
        }
        Ok(())
    }

    fn purge_document(&mut self, key: &Key) -> Result<(), StoreError> {
        let size_bytes = self.library.document_bytes(key)?;
        self.library.remove_document(key, Durability::Synced)?;
        if size_bytes > 0 {
            self.purged.documents += 1;
            self.purged.document_bytes += size_bytes;
        }
        Ok(())
    }

    /// Removes versions from a list that upstream has dropped: they were only listed because they were stored. The rest
    /// of the list stays.
    fn unlist_dropped(&self, list: &Key, versions: &Versions) -> Result<(), StoreError> {
        let unlist = |_: Names<'_>, stored: Option<&StoredDocument>| {
            let stored = stored.filter(|document| !document.dropped().is_empty());
            Ok(stored.map(|document| {
                let listed = document.metadata.checked.max(document.metadata.fetched);
                (document.clone().without_dropped(versions), listed)
            }))
        };
        self.library.change_document(list, Durability::Lazy, VersionTimes::Known, unlist)
    }
}

/// Returns true if the URL has details of the selection, ignoring case. A module whose name differs only in case loses
/// a page at most.
fn has_details_of(selector: &PackageSelector, url: &Url) -> bool {
    let (address, versions) = (selector.address().path(), selector.versions());
    let names: Vec<&str> = address.split('/').collect();
    let path: Vec<&str> = url.path_segments().into_iter().flatten().collect();
    let ends_in_them = |path: &[&str]| {
        let is_it = |(part, name): (&&str, &&str)| part.eq_ignore_ascii_case(name);
        path.len() >= names.len() && path[path.len() - names.len()..].iter().zip(&names).all(is_it)
    };
    let of_a_version = |(last, before): (&&str, &[&str])| {
        Version::parse_of_module(last).is_ok_and(|version| versions.include(&version)) && ends_in_them(before)
    };
    url.query().is_none() && (ends_in_them(&path) || path.split_last().is_some_and(of_a_version))
}
