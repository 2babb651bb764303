//! Modules: version lists, locations, and the archives that larder packs. Public registries answer with git addresses,
//! which no cache can store (DESIGN 6).

pub(in crate::mirror) mod archive;
pub(in crate::mirror) mod fetch;
pub(in crate::mirror) mod fill;
pub(in crate::mirror) mod location;
pub(in crate::mirror) mod recheck;
pub(in crate::mirror) mod source_archive;
pub(in crate::mirror) mod source_download;

pub(in crate::mirror) use crate::mirror::documents::module_versions::entry_of_module;
pub(in crate::mirror) use crate::mirror::library::module_history::ModuleFirstSeenRecord;
pub(in crate::mirror) use crate::mirror::modules::fetch::UNPACK_LIMITS;
pub(in crate::mirror) use crate::mirror::modules::source_download::StageNames;
pub(in crate::mirror) use crate::mirror::transfer::bundle::modules::BundledModule;

use crate::address::{Artifact, ModuleAddress, ModulePackage};
use crate::clock::Timestamp;
use crate::digest::{Digest, DigestPrefix};
use crate::mirror::library::module_history::{self, FirstSeenLookup};
use crate::mirror::{AlarmKind, Mirror, RuntimeConfig};
use crate::store::StoreError;

/// A module archive, as larder's URLs name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModuleArchiveRef {
    /// The version of the module.
    pub package: ModulePackage,
    /// The first digits of its SHA-256; none while it is unknown.
    pub digest: Option<DigestPrefix>,
}

/// The download location of a module version.
#[expect(clippy::large_enum_variant, reason = "short-lived: it is handled where it arrives")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModuleLocation {
    /// An archive of this mirror.
    Local {
        /// The archive.
        archive: ModuleArchiveRef,
        /// Its SHA-256, which the client verifies; none while it is unknown.
        checksum: Option<Digest>,
        /// The module's folder in the archive, with `/` between names; none for the root.
        subdir: Option<String>,
    },
    /// A source that larder cannot fetch, as upstream wrote it.
    External(String),
}

const DAMAGED_RECORD_DETAIL: &str = "its first-seen record is damaged, and no stored archive can rebuild it";

/// The module alarms that `accept` resolves.
pub(in crate::mirror) const RESOLVED_BY_ACCEPT: &[AlarmKind] = &[AlarmKind::Moved, AlarmKind::DamagedRecord];

/// Restores the first-seen record of a version if anything stored allows it. Returns false, and raises an alarm, if it
/// stays lost until `accept`.
pub(in crate::mirror) fn restore_first_seen(
    mirror: &Mirror,
    package: &ModulePackage,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let is_lost = module_history::read_first_seen(mirror, package)? == FirstSeenLookup::Lost;
    if is_lost {
        mirror.raise_alarm(AlarmKind::DamagedRecord, &package.module, &package.version, DAMAGED_RECORD_DETAIL, now);
    }
    Ok(!is_lost)
}

/// Restores the first-seen record before an archive is removed, which may be the last evidence.
///
/// # Errors
/// The record could not be written. Then the archive must not be removed.
pub(in crate::mirror) fn record_module_before_removal(
    mirror: &Mirror,
    package: &ModulePackage,
) -> Result<(), StoreError> {
    module_history::read_first_seen(mirror, package).map(drop)
}

impl RuntimeConfig {
    /// Every spelling under which a module may be stored, since `fold_case` may have changed.
    pub(in crate::mirror) fn keys_of(&self, address: &ModuleAddress) -> Vec<ModuleAddress> {
        let mut keys = vec![self.key_of(address)];
        for other in [address.clone(), address.folded()] {
            if !keys.contains(&other) {
                keys.push(other);
            }
        }
        keys
    }

    /// The canonical spelling of a module, which is its store key.
    pub(in crate::mirror) fn key_of(&self, address: &ModuleAddress) -> ModuleAddress {
        let folds = self.upstreams.get(&address.host).is_some_and(|upstream| upstream.settings.fold_case);
        if folds { address.folded() } else { address.clone() }
    }

    /// The canonical spelling of a version's module.
    pub(in crate::mirror) fn key_of_package(&self, package: &ModulePackage) -> ModulePackage {
        ModulePackage { module: self.key_of(&package.module), version: package.version.clone() }
    }
}

impl Mirror {
    /// The store key of a version's archive, in the canonical spelling.
    pub fn artifact_of(&self, package: &ModulePackage) -> Artifact {
        Artifact::Module(self.config().key_of_package(package))
    }
}
