//! The registry queries of resolving. `jobs` implements them over a mirror.

use std::fmt::Display;

use super::Files;
use crate::address::{ModuleAddress, ModulePackage, Platform, ProviderAddress, Version};

/// Access to versions and module files.
pub trait Registries: Sync {
    /// The reason why an item is unavailable.
    type Error: Display + Send;

    /// The versions of a provider that clients see.
    fn provider_versions(
        &self,
        address: &ProviderAddress,
    ) -> impl Future<Output = Result<Vec<Version>, Self::Error>> + Send;

    /// The versions of a module that clients see.
    fn module_versions(
        &self,
        address: &ModuleAddress,
    ) -> impl Future<Output = Result<Vec<Version>, Self::Error>> + Send;

    /// Versions of a provider that exist but that clients do not see; `None` if they see all.
    fn unlisted_provider_versions(
        &self,
        _: &ProviderAddress,
    ) -> impl Future<Output = Result<Option<UnlistedVersions>, Self::Error>> + Send {
        async { Ok(None) }
    }

    /// Versions of a module that exist but that clients do not see; `None` if they see all.
    fn unlisted_module_versions(
        &self,
        _: &ModuleAddress,
    ) -> impl Future<Output = Result<Option<UnlistedVersions>, Self::Error>> + Send {
        async { Ok(None) }
    }

    /// The files of one module version that a client reads.
    fn module_files(&self, package: &ModulePackage) -> impl Future<Output = Result<ModuleFiles, Self::Error>> + Send;
}

/// Versions that clients would see if they were stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnlistedVersions {
    /// All versions, including those that clients see.
    pub versions: Vec<Version>,
    /// Platforms for which a version must be stored before clients see it.
    pub platforms: Vec<Platform>,
}

/// The files in a module's archive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModuleFiles {
    /// All files of the module that a client reads.
    pub files: Files,
    /// The module's folder in the archive, as the registry names it; `""` is the top.
    pub subdir: String,
}
