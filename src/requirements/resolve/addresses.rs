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

/// Resolves an address: its own archive, without calls.
pub(super) async fn of_address(
    queries: &RegistryQueries<'_, impl Registries>,
    selector: &PackageSelector,
    platforms: &[Platform],
    found: &mut ResolutionResult,
) {
    let required_by = selector.to_string();
    let chosen = match selector {
        PackageSelector::Provider(selection) => {
            let choose = |listed: &[Version]| chosen(listed, |listed| selection.choose(listed));
            version_selection::of_provider(queries, &selection.of, choose).await.map(|chosen| {
                want_provider(found, &selection.of, &chosen, platforms, &[], [required_by.clone()]);
            })
        }
        PackageSelector::Module(selection) => {
            let choose = |listed: &[Version]| chosen(listed, |listed| selection.choose(listed));
            version_selection::of_module(queries, &selection.of, choose).await.map(|version| {
                let package = ModulePackage { module: selection.of.clone(), version };
                found.require(Artifact::Module(package), &[], [required_by.clone()]);
            })
        }
    };
    if let Err(reason) = chosen {
        found.add_unavailable(&required_by, reason, [required_by.clone()]);
    }
}

/// Resolves a lock file.
pub(super) async fn of_lock_file(
    queries: &RegistryQueries<'_, impl Registries>,
    name: &str,
    locked: &[LockedProvider],
    platforms: &[Platform],
    found: &mut ResolutionResult,
) {
    let each = locked.iter().map(|one| async move {
        let selection = Selection { of: one.provider.clone(), versions: Versions::Exactly(one.version.clone()) };
        let choose = |listed: &[Version]| chosen(listed, |listed| selection.choose(listed));
        let chosen = version_selection::of_provider(queries, &one.provider, choose).await;
        (one, selection, chosen)
    });
    for (LockedProvider { provider, hashes, .. }, selection, chosen) in join_all(each.collect::<Vec<_>>()).await {
        match chosen {
            Ok(chosen) => want_provider(found, provider, &chosen, platforms, hashes, [name.to_owned()]),
            Err(reason) => found.add_unavailable(selection.to_string(), reason, [name.to_owned()]),
        }
    }
}

/// Requires a version of a provider for each platform.
pub(super) fn want_provider(
    found: &mut ResolutionResult,
    provider: &ProviderAddress,
    ChosenVersion { version, besides }: &ChosenVersion,
    platforms: &[Platform],
    hashes: &[String],
    required_by: impl IntoIterator<Item = String> + Clone,
) {
    for platform in platforms.iter().chain(besides) {
        let package = Package { provider: provider.clone(), version: version.clone(), platform: platform.clone() };
        found.require(Artifact::Provider(package), hashes, required_by.clone());
    }
}

fn chosen(
    listed: &[Version],
    choose: impl for<'a> FnOnce(&[&'a Version]) -> Result<&'a Version, String>,
) -> Result<Version, String> {
    choose(&listed.iter().collect::<Vec<_>>()).cloned()
}
