//! Picks the newest matching version that is available; otherwise the newest that exists upstream.

use super::super::{Beyond, Registries};
use super::asking::Asking;
use crate::address::{ModuleAddress, Platform, ProviderAddress, Version};

/// A chosen version.
pub(super) struct Chosen {
    pub(super) version: Version,
    /// Platforms for which it must also be stored before clients see it.
    pub(super) besides: Vec<Platform>,
}

/// A version of a provider.
///
/// # Errors
/// Why there is none, in words.
pub(super) async fn of_provider(
    asking: &Asking<'_, impl Registries>,
    provider: &ProviderAddress,
    choose: impl Fn(&[Version]) -> Result<Version, String>,
) -> Result<Chosen, String> {
    let listed = asking.provider_versions(provider).await?;
    match choose(&listed) {
        Ok(version) => Ok(Chosen { version, besides: Vec::new() }),
        Err(why) => beyond(asking.provider_beyond(provider).await?, why, choose),
    }
}

/// Chooses a version of a module.
///
/// # Errors
/// As for a provider.
pub(super) async fn of_module(
    asking: &Asking<'_, impl Registries>,
    module: &ModuleAddress,
    choose: impl Fn(&[Version]) -> Result<Version, String>,
) -> Result<Version, String> {
    let listed = asking.module_versions(module).await?;
    match choose(&listed) {
        Ok(version) => Ok(version),
        Err(why) => beyond(asking.module_beyond(module).await?, why, choose).map(|chosen| chosen.version),
    }
}

fn beyond(
    beyond: Option<Beyond>,
    why: String,
    choose: impl Fn(&[Version]) -> Result<Version, String>,
) -> Result<Chosen, String> {
    match beyond {
        Some(Beyond { versions, platforms }) => choose(&versions).map(|version| Chosen { version, besides: platforms }),
        None => Err(why),
    }
}
