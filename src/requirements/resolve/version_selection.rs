//! Picks the newest matching version that is available; otherwise the newest that exists upstream.

use super::super::{Registries, UnlistedVersions};
use super::registry_queries::RegistryQueries;
use crate::address::{ModuleAddress, Platform, ProviderAddress, Version};

/// A chosen version.
pub(super) struct ChosenVersion {
    pub(super) version: Version,
    /// Further platforms for which the version must be stored before clients see it.
    pub(super) extra_platforms: Vec<Platform>,
}

/// Chooses a version of a provider.
///
/// # Errors
/// The reason why none matches.
pub(super) async fn choose_provider_version(
    queries: &RegistryQueries<'_, impl Registries>,
    provider: &ProviderAddress,
    choose: impl Fn(&[Version]) -> Result<Version, String>,
) -> Result<ChosenVersion, String> {
    let listed = queries.provider_versions(provider).await?;
    match choose(&listed) {
        Ok(version) => Ok(ChosenVersion { version, extra_platforms: Vec::new() }),
        Err(reason) => choose_unlisted(queries.unlisted_provider_versions(provider).await?, reason, choose),
    }
}

/// Chooses a version of a module.
///
/// # Errors
/// The reason why none matches.
pub(super) async fn choose_module_version(
    queries: &RegistryQueries<'_, impl Registries>,
    module: &ModuleAddress,
    choose: impl Fn(&[Version]) -> Result<Version, String>,
) -> Result<Version, String> {
    let listed = queries.module_versions(module).await?;
    match choose(&listed) {
        Ok(version) => Ok(version),
        Err(reason) => choose_unlisted(queries.unlisted_module_versions(module).await?, reason, choose)
            .map(|chosen| chosen.version),
    }
}

fn choose_unlisted(
    unlisted: Option<UnlistedVersions>,
    reason: String,
    choose: impl Fn(&[Version]) -> Result<Version, String>,
) -> Result<ChosenVersion, String> {
    match unlisted {
        Some(UnlistedVersions { versions, platforms }) => {
            choose(&versions).map(|version| ChosenVersion { version, extra_platforms: platforms })
        }
        None => Err(reason),
    }
}
