//! What finding out asks of registries. It is a mirror that answers; here nobody knows of one.

use std::fmt::Display;

use super::Files;
use crate::address::{ModuleAddress, ModulePackage, ProviderAddress, Version};

/// Whoever knows versions, and what modules hold.
pub trait Registries: Sync {
    /// Why something cannot be had.
    type Error: Display + Send;

    /// The versions that a client would be told of a provider.
    fn provider_versions(&self, of: &ProviderAddress)
    -> impl Future<Output = Result<Vec<Version>, Self::Error>> + Send;

    /// The versions that a client would be told of a module.
    fn module_versions(&self, of: &ModuleAddress) -> impl Future<Output = Result<Vec<Version>, Self::Error>> + Send;

    /// The files of one version that a client reads.
    fn module_files(&self, of: &ModulePackage) -> impl Future<Output = Result<ModuleFiles, Self::Error>> + Send;
}

/// What a client finds in the archive of a module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModuleFiles {
    /// All of its files that a client reads, wherever in it they are.
    pub files: Files,
    /// The folder in it that is the module, as the registry names it; `""` is the top.
    pub subdir: String,
}
