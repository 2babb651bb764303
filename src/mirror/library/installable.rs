//! Finds the versions that can be installed from the store, by reading the files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::address::{ModuleAddress, Package, Platform, ProviderAddress, Version};
use crate::error::Error;
use crate::mirror::{Mirror, RequestContext, default_if_gone};
use crate::store::StoreError;
use crate::verify::VerificationPolicy;

/// The versions of a provider with a stored set and archive, and their platforms.
pub(in crate::mirror) type StoredVersions = BTreeMap<Version, BTreeSet<Platform>>;

impl Mirror {
    /// The stored versions of a provider. Concurrent callers share one lookup.
    pub(in crate::mirror) async fn stored_provider_versions(
        self: &Arc<Self>,
        address: &ProviderAddress,
        call: &RequestContext,
    ) -> Result<Arc<StoredVersions>, Error> {
        let policy = call.upstream(&address.host)?.settings.verification;
        let lost = Err(Error::Interrupted(format!("the stored versions of {address}")));
        let key = (address.clone(), self.revision(address), call.config.generation);
        let look = self.sealed.providers.join_or_spawn(&self.tasks, key, lost, || {
            let (mirror, owned_address) = (Arc::clone(self), address.clone());
            async move {
                mirror.on_disk(move |mirror| mirror.read_stored_versions(&owned_address, policy).map(Arc::new)).await
            }
        });
        look.await
    }

    /// The stored versions of a module. `key` is the canonical spelling.
    pub(in crate::mirror) async fn stored_module_versions(
        self: &Arc<Self>,
        key: &ModuleAddress,
    ) -> Result<Arc<BTreeSet<Version>>, Error> {
        let lost = Err(Error::Interrupted(format!("the stored versions of {key}")));
        let look =
            self.sealed.modules.join_or_spawn(&self.tasks, (key.clone(), self.revision_of_module(key)), lost, || {
                let (mirror, owned_key) = (Arc::clone(self), key.clone());
                async move {
                    mirror.on_disk(move |mirror| mirror.read_stored_module_versions(&owned_key).map(Arc::new)).await
                }
            });
        look.await
    }

    pub(in crate::mirror) fn read_stored_versions(
        &self,
        address: &ProviderAddress,
        policy: VerificationPolicy,
    ) -> Result<StoredVersions, StoreError> {
        let mut stored = StoredVersions::new();
        for package in default_if_gone(self.store.records.packages_with_sets(address))? {
            if skip_unreadable(&package, self.holds_package(&package, policy))? {
                stored.entry(package.version).or_default().insert(package.platform);
            }
        }
        Ok(stored)
    }

    pub(in crate::mirror) fn read_stored_module_versions(
        &self,
        key: &ModuleAddress,
    ) -> Result<BTreeSet<Version>, StoreError> {
        let mut stored = BTreeSet::new();
        for package in default_if_gone(self.store.records.module_packages_with_names(key))? {
            if skip_unreadable(&package, self.current_module_archive(&package).map(|archive| archive.is_some()))? {
                stored.insert(package.version);
            }
        }
        Ok(stored)
    }

    /// True if the package can be installed: its set and that set's archive are stored.
    pub(in crate::mirror) fn holds_package(
        &self,
        package: &Package,
        policy: VerificationPolicy,
    ) -> Result<bool, StoreError> {
        let Some(stored) = self.read_set(package)?.and_then(|stored| stored.meeting_policy(policy)) else {
            return Ok(false);
        };
        self.store.blobs.is_stored(&stored.offline_set().document.shasum)
    }
}

/// One unreadable package hides no other. A missing store hides all.
fn skip_unreadable(subject: &impl std::fmt::Display, looked: Result<bool, StoreError>) -> Result<bool, StoreError> {
    match looked {
        Err(StoreError::Gone) => Err(StoreError::Gone),
        Err(error) => {
            tracing::error!(%subject, %error, "its stored records cannot be read; it is not listed while offline");
            Ok(false)
        }
        looked => looked,
    }
}
