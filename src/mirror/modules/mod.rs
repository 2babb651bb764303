//! Modules: their version lists, where each version is, and archives that larder packs itself, because registries
//! answer with addresses of git repositories that no cache could keep (DESIGN 6).

mod accept;
mod archive;
mod carried;
mod download;
mod fetch;
mod fill;
mod held;
mod location;
mod look;
mod purge;
mod seen;
mod versions;
mod warm;

pub(super) use self::carried::CarriedModule;
pub(super) use self::download::StageNames;
pub(super) use self::fetch::UNPACKING;
pub(super) use self::seen::SeenRecord;
pub(super) use self::versions::entry_of_module;

use self::seen::Recalled;
use super::{AlarmKind, Mirror, RuntimeConfig};
use crate::address::{Artifact, ModuleAddress, ModulePackage};
use crate::clock::Timestamp;
use crate::digest::{Digest, DigestPrefix};
use crate::store::StoreError;

/// An archive of a module, as our URLs name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModuleArchiveRef {
    /// The version of the module.
    pub package: ModulePackage,
    /// The first digits of its SHA-256; none as long as it is not known.
    pub digest: Option<DigestPrefix>,
}

/// Where a client gets a version of a module.
#[expect(clippy::large_enum_variant, reason = "it is looked at where it arrives, and kept nowhere")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModuleLocation {
    /// Here.
    Here {
        /// The archive.
        archive: ModuleArchiveRef,
        /// Its SHA-256, which the client enforces; none as long as it is not known.
        checksum: Option<Digest>,
        /// Where in it the module is, `/` between names; none where it is the root.
        subdir: Option<String>,
    },
    /// Elsewhere: a source that larder cannot fetch, as upstream wrote it.
    Elsewhere(String),
}

/// The detail of the alarm where a first-seen record is damaged.
const DAMAGED: &str = "its first-seen record is damaged, and no stored archive tells which tree it was";

/// The alarms of a module that `accept` resolves.
pub(super) const RESOLVED: &[AlarmKind] = &[AlarmKind::Moved, AlarmKind::DamagedRecord];

/// Sees to it that what a version was at first sight is put down, where anything tells that. Says whether anything does;
/// otherwise it waits for `accept`.
pub(super) fn seen_again(mirror: &Mirror, package: &ModulePackage, now: Timestamp) -> Result<bool, StoreError> {
    let is_lost = seen::known(mirror, package)? == Recalled::Lost;
    if is_lost {
        mirror.alarm(AlarmKind::DamagedRecord, &package.module, &package.version, DAMAGED, now);
    }
    Ok(!is_lost)
}

/// Sees to it that what a version was at first sight is put down, before its archive goes, which may be all that tells.
///
/// # Errors
/// It could not be: then the archive must stay.
pub(super) fn note_before_it_goes(mirror: &Mirror, package: &ModulePackage) -> Result<(), StoreError> {
    seen::known(mirror, package).map(drop)
}

impl RuntimeConfig {
    /// Every spelling under which something of a module may be stored: `fold_case` may have been another.
    pub(super) fn keys_of(&self, address: &ModuleAddress) -> Vec<ModuleAddress> {
        let mut keys = vec![self.key_of(address)];
        for other in [address.clone(), address.folded()] {
            if !keys.contains(&other) {
                keys.push(other);
            }
        }
        keys
    }

    /// The one spelling of a module that is its key.
    pub(super) fn key_of(&self, address: &ModuleAddress) -> ModuleAddress {
        let folds = self.upstreams.get(&address.host).is_some_and(|upstream| upstream.settings.fold_case);
        if folds { address.folded() } else { address.clone() }
    }

    /// The same of one of its versions.
    pub(super) fn key_of_package(&self, package: &ModulePackage) -> ModulePackage {
        ModulePackage { module: self.key_of(&package.module), version: package.version.clone() }
    }
}

impl Mirror {
    /// What an archive of a version is kept as, however its module is spelled.
    pub fn artifact_of(&self, package: &ModulePackage) -> Artifact {
        Artifact::Module(self.terms().key_of_package(package))
    }
}
