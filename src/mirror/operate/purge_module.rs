//! Operator commands for modules: purge and refresh.

use crate::mirror::{Library, Operations, Runtime};
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::address::{ModuleAddress, ModulePackage, PackageRef, Selection, Versions};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::RequestContext;
use crate::mirror::library::module_history::record_module_before_removal;
use crate::mirror::modules::recheck::RecheckMode;
use crate::mirror::operate::purge::PurgeResult;
use crate::mirror::operate::refresh::{RefreshOutcome, RefreshResult};
use crate::store::{Durability, Key, StoreError};

impl Library {
    /// Purges the selected archives, names and locations. First-seen records and pinned versions stay.
    pub(in crate::mirror) fn purge_module(
        &self,
        selection: &Selection<ModuleAddress>,
        purged: &mut PurgeResult,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        // Blocks pinning, so that a version that is unpinned here stays so until it is removed.
        let _nothing_is_pinned = self.evictor.block_evictions();
        for module in self.runtime.config().keys_of(&selection.of) {
            self.purge_spelling(&module, selection, purged, now)?;
        }
        Ok(())
    }

    fn purge_spelling(
        &self,
        module: &ModuleAddress,
        selection: &Selection<ModuleAddress>,
        purged: &mut PurgeResult,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let pinned = self.purge_module_archives(module, &selection.versions, purged)?;
        purged.pinned.extend(pinned.iter().map(ToString::to_string));
        for package in self.store.records.module_packages_with_locations(module)? {
            if selection.versions.include(&package.version) && !pinned.contains(&package) {
                self.purge_document(&Key::ModuleLocation(package), purged)?;
            }
        }
        let list = Key::ModuleVersions(module.clone());
        let ended = match &selection.versions {
            Versions::All if pinned.is_empty() => self.purge_document(&list, purged),
            versions if pinned.is_empty() => self.unlist_dropped(&list, versions, now),
            _ => Ok(()),
        };
        let left = pinned.into_iter().map(|package| package.version).collect();
        self.resolve_purged(module, &selection.versions, &left);
        self.runtime.forget_absences_of_module(module, &selection.versions);
        self.bump_module_revision(module);
        ended
    }

    fn purge_module_archives(
        &self,
        module: &ModuleAddress,
        versions: &Versions,
        purged: &mut PurgeResult,
    ) -> Result<BTreeSet<ModulePackage>, StoreError> {
        let index = &self.store.index;
        index.needs_to_be_whole()?;
        if let Some(unreadable) = index.unreadable_name() {
            // An unreadable name may list any archive, so nothing can be purged safely.
            return Err(unreadable);
        }
        // Blocks storing and removing archives.
        let _locks = self.catalog.lock_all_digests();
        let (mut pinned, mut digests) = (BTreeSet::new(), BTreeSet::new());
        let mut packages = self.store.records.module_packages_with_names(module)?;
        packages.retain(|package| versions.include(&package.version));
        for package in &packages {
            record_module_before_removal(self, package)?;
        }
        for package in packages {
            let name = self.catalog.name(&package)?;
            if name.pinned {
                pinned.insert(package);
                continue;
            }
            digests.extend(name.archives.iter().map(|archive| archive.digest));
            self.catalog.change_name(&package, |name| name.archives.clear())?;
        }
        for digest in digests {
            let Some(blob) = self.store.blobs.get(&digest)? else { continue };
            if !index.names_of(&digest)?.is_empty() {
                purged.shared += 1;
                continue;
            }
            self.store.blobs.remove(&digest, Durability::Synced)?;
            index.archive_gone(&digest);
            self.catalog.checked.lock().remove(&digest);
            purged.archives += 1;
            purged.archive_bytes += blob.size_bytes();
        }
        Ok(pinned)
    }
}

impl Operations {
    /// Refetches the version list and the cached locations, and checks that each stored version still resolves to the
    /// pinned tree.
    pub(in crate::mirror) async fn refresh_module(
        self: &Arc<Self>,
        selection: &Selection<ModuleAddress>,
        call: &RequestContext,
    ) -> Result<Vec<RefreshResult>, Error> {
        let _upstream = Arc::clone(call.upstream(&selection.of.host)?);
        let key = call.config.key_of(&selection.of);
        self.runtime.forget_absences_of_module(&key, &selection.versions);
        let failed = |error: Error| RefreshOutcome::Failed { error: error.to_string() };
        let mut refreshed = Vec::new();
        if let Err(error) = self.documents.refresh_discovery(&selection.of.host, call).await {
            let package = PackageRef::discovery(&selection.of.host);
            refreshed.push(RefreshResult { package, news: failed(error) });
        }
        let list = PackageRef::version_list(&selection.of);
        let before = self.library.stored_document(&Key::ModuleVersions(key.clone())).await?;
        let seen = before.as_ref().map(|stored| stored.age);
        let flight = self.documents.fetch_module_versions_now(&selection.of, seen, call).await;
        let news = RefreshOutcome::of(flight, |now| before.is_some_and(|before| before.value.has_same_content(now)));
        refreshed.push(RefreshResult { package: list, news });
        let (owned_key, versions) = (key.clone(), selection.versions.clone());
        let stored = self
            .library
            .on_disk(move |library| library.store.records.module_packages_with_locations(&owned_key))
            .await?;
        for key in stored.into_iter().filter(|package| versions.include(&package.version)) {
            let package = ModulePackage { module: selection.of.clone(), version: key.version.clone() };
            let news = self.refresh_location(&package, &key, call).await.unwrap_or_else(failed);
            refreshed.push(RefreshResult { package: (&key).into(), news });
        }
        Ok(refreshed)
    }

    async fn refresh_location(
        self: &Arc<Self>,
        package: &ModulePackage,
        key: &ModulePackage,
        call: &RequestContext,
    ) -> Result<RefreshOutcome, Error> {
        let before = self.library.stored_document(&Key::ModuleLocation(key.clone())).await?;
        let seen = before.as_ref().map(|stored| stored.age);
        let flight = self.documents.fetch_location_now(package, seen, call).await;
        if let Ok(fetched) = &flight
            && !fetched.age.gone
            && self.library.stored_module(key).await?.is_some()
        {
            let location = Arc::clone(&fetched.value).as_location(package)?;
            self.modules.recheck(package, key, &location, RecheckMode::Always, call).await?;
        }
        Ok(RefreshOutcome::of(flight, |now| before.is_some_and(|before| before.value.has_same_content(now))))
    }
}
