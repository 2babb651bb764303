//! Modules: their version lists, where each version is, and archives that larder packs itself, because registries
//! answer with addresses of git repositories that no cache could keep (DESIGN 6).

mod archive;
mod fill;
mod location;
mod seen;
mod versions;

pub(super) use self::seen::SeenModule;

use super::Terms;
use crate::address::{ModuleAddress, ModulePackage};
use crate::digest::{Digest, DigestPrefix};

/// An archive of a module, as our URLs name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModuleArchiveRef {
    /// The version of the module.
    pub package: ModulePackage,
    /// The first digits of its SHA-256; none as long as it is not known.
    pub digest: Option<DigestPrefix>,
}

/// Where a client gets a version of a module.
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

impl Terms {
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
