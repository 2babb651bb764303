//! Resolves addresses and lock files.

use futures_util::future::join_all;

use super::super::Registries;
use super::super::lock_file::LockedProvider;
use super::registry_queries::RegistryQueries;
use super::resolution_result::ResolutionResult;
use super::version_selection::{self, ChosenVersion};
use crate::address::{
    Artifact, ModulePackage, Package, PackageSelector, Platform, ProviderAddress, Selection, Version, Versions,
};

/// Resolves an address to its own archive; the modules that it calls are not resolved.
pub(super) async fn resolve_address(
    queries: &RegistryQueries<'_, impl Registries>,
    selector: &PackageSelector,
    platforms: &[Platform],
    result: &mut ResolutionResult,
) {
    let required_by = selector.to_string();
    let chosen = match selector {
        PackageSelector::Provider(selection) => {
            let choose = |listed: &[Version]| choose_cloned(listed, |listed| selection.choose(listed));
            version_selection::choose_provider_version(queries, &selection.of, choose).await.map(|chosen| {
                require_provider(result, &selection.of, &chosen, platforms, &[], [required_by.clone()]);
            })
        }
        PackageSelector::Module(selection) => {
            let choose = |listed: &[Version]| choose_cloned(listed, |listed| selection.choose(listed));
            version_selection::choose_module_version(queries, &selection.of, choose).await.map(|version| {
                let package = ModulePackage { module: selection.of.clone(), version };
                result.require(Artifact::Module(package), &[], [required_by.clone()]);
            })
        }
    };
    if let Err(reason) = chosen {
        result.add_unavailable(&required_by, reason, [required_by.clone()]);
    }
}

/// Resolves a lock file.
pub(super) async fn resolve_lock_file(
    queries: &RegistryQueries<'_, impl Registries>,
    name: &str,
    locked: &[LockedProvider],
    platforms: &[Platform],
    result: &mut ResolutionResult,
) {
    let resolved = locked.iter().map(|locked| async move {
        let selection = Selection { of: locked.provider.clone(), versions: Versions::Exactly(locked.version.clone()) };
        let choose = |listed: &[Version]| choose_cloned(listed, |listed| selection.choose(listed));
        let chosen = version_selection::choose_provider_version(queries, &locked.provider, choose).await;
        (locked, selection, chosen)
    });
    for (LockedProvider { provider, hashes, .. }, selection, chosen) in join_all(resolved.collect::<Vec<_>>()).await {
        match chosen {
            Ok(chosen) => require_provider(result, provider, &chosen, platforms, hashes, [name.to_owned()]),
            Err(reason) => result.add_unavailable(selection.to_string(), reason, [name.to_owned()]),
        }
    }
}

/// Requires a version of a provider for each platform.
pub(super) fn require_provider(
    result: &mut ResolutionResult,
    provider: &ProviderAddress,
    ChosenVersion { version, extra_platforms }: &ChosenVersion,
    platforms: &[Platform],
    hashes: &[String],
    required_by: impl IntoIterator<Item = String> + Clone,
) {
    for platform in platforms.iter().chain(extra_platforms) {
        let package = Package { provider: provider.clone(), version: version.clone(), platform: platform.clone() };
        result.require(Artifact::Provider(package), hashes, required_by.clone());
    }
}

/// Applies a choice among references to a list of versions.
fn choose_cloned(
    listed: &[Version],
    choose: impl for<'a> FnOnce(&[&'a Version]) -> Result<&'a Version, String>,
) -> Result<Version, String> {
    choose(&listed.iter().collect::<Vec<_>>()).cloned()
}
