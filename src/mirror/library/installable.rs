//! Finds the versions that can be installed from the store, by reading the files.

use crate::mirror::Library;
use std::collections::{BTreeMap, BTreeSet};

use crate::address::{ModuleAddress, Package, Platform, ProviderAddress, Version};
use crate::mirror::default_if_gone;
use crate::store::StoreError;
use crate::verify::VerificationPolicy;

/// The versions of a provider with a stored set and archive, and their platforms.
pub(in crate::mirror) type StoredVersions = BTreeMap<Version, BTreeSet<Platform>>;

impl Library {
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
