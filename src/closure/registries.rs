//! What finding out asks of registries. It is a mirror that answers; here nobody knows of one.

use std::fmt::Display;

use super::Files;
use crate::address::{ModuleAddress, ModulePackage, Platform, ProviderAddress, Version};

/// Whoever knows versions, and what modules hold.
pub trait Registries: Sync {
    /// Why something cannot be had.
    type Error: Display + Send;

    /// The versions that a client would be told of a provider.
    fn provider_versions(&self, of: &ProviderAddress)
    -> impl Future<Output = Result<Vec<Version>, Self::Error>> + Send;

    /// The versions that a client would be told of a module.
    fn module_versions(&self, of: &ModuleAddress) -> impl Future<Output = Result<Vec<Version>, Self::Error>> + Send;

    /// What a provider has beyond the versions that clients are told of; none where they are told of all.
    fn provider_beyond(&self, _: &ProviderAddress) -> impl Future<Output = Result<Option<Beyond>, Self::Error>> + Send {
        async { Ok(None) }
    }

    /// The same of a module.
    fn module_beyond(&self, _: &ModuleAddress) -> impl Future<Output = Result<Option<Beyond>, Self::Error>> + Send {
        async { Ok(None) }
    }

    /// The files of one version that a client reads.
    fn module_files(&self, of: &ModulePackage) -> impl Future<Output = Result<ModuleFiles, Self::Error>> + Send;
}

/// What clients would be told of, were it brought here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Beyond {
    /// All versions, those that clients are told of among them.
    pub versions: Vec<Version>,
    /// For which platforms a version must be there before clients are told of it.
    pub platforms: Vec<Platform>,
}

/// What a client finds in the archive of a module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModuleFiles {
    /// All of its files that a client reads, wherever in it they are.
    pub files: Files,
    /// The folder in it that is the module, as the registry names it; `""` is the top.
    pub subdir: String,
}
