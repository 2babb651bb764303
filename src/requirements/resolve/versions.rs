//! Chooses versions: for addresses and lock files, and one of each provider for all modules of a root. The newest
//! matching version that is available is chosen; otherwise the newest that exists upstream.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use futures_util::future::join_all;

use super::super::configuration::ProviderRequirement;
use super::super::files::{LOCK_FILE, child_path};
use super::super::lock_file::{self, LockedProvider};
use super::super::{
    ChosenProvider, ClientKind, Configurations, Files, LockedVersions, Registries, ResolvedRoot, UpstreamVersions,
};
use super::queries::RegistryQueries;
use super::{ResolutionResult, Root, shortened_list};
use crate::address::{
    Address, Artifact, Constraint, Hostname, ModulePackage, Package, PackageSelector, Platform, ProviderAddress,
    Selection, TERRAFORM_REGISTRY, Version, Versions,
};

/// The maximum number of constraints listed in one message.
const MAX_LISTED_CONSTRAINTS: usize = 32;
/// The most providers of one root.
const MAX_PROVIDERS: usize = 4096;
/// The registry and namespace of Terraform's default providers. OpenTofu uses their locked versions for the providers of
/// the same names in its own registry.
const TERRAFORM_DEFAULT: (&str, &str) = (TERRAFORM_REGISTRY, "hashicorp");

/// Chooses each required provider of a root: the locked version if there is one, else the newest. `result` has what was found
/// in the root's modules.
pub(super) async fn choose_versions(
    queries: &RegistryQueries<'_, impl Registries>,
    configurations: &Configurations,
    root: &Root,
    requirements: &[ProviderRequirement],
    platforms: &[Platform],
    mut result: ResolutionResult,
) -> ResolutionResult {
    let Configurations { files, locked_versions, .. } = configurations;
    let mut chosen_providers = Vec::new();
    let lock_file = lock_file_of(files, root, &mut result).map(|locked| as_read_by(root.client, locked));
    let mut by_provider: BTreeMap<Address, Vec<&ProviderRequirement>> = BTreeMap::new();
    for requirement in requirements {
        by_provider.entry((&requirement.provider).into()).or_default().push(requirement);
    }
    let empty = BTreeMap::new();
    let locked = lock_file.as_ref().unwrap_or(&empty);
    if by_provider.len() > MAX_PROVIDERS {
        let reason =
            format!("{} providers are required, and at most {MAX_PROVIDERS} can be resolved", by_provider.len());
        result.add_unavailable(root.name(), reason, []);
    }
    let by_provider: BTreeMap<_, _> = by_provider.into_iter().take(MAX_PROVIDERS).collect();
    // All queries are sent at once; the loop below then finds their answers in the cache.
    join_all(by_provider.keys().map(|address| queries.versions(address)).collect::<Vec<_>>()).await;
    for (address, requirements) in by_provider {
        let provider = &requirements[0].provider;
        let locked = locked.get(provider);
        let required_by: BTreeSet<String> =
            requirements.iter().map(|requirement| requirement.location.to_string()).collect();
        // A set, because most modules have the same constraint.
        let constraints: HashSet<&Constraint> =
            requirements.iter().filter_map(|requirement| requirement.versions.as_ref()).collect();
        let constraint = Constraint::all(constraints);
        let choose_matching = |listed: &[Version]| {
            queries.comparisons.count(listed.len().saturating_mul(constraint.number_of_conditions()))?;
            let kept = locked.filter(|_| *locked_versions == LockedVersions::Kept);
            choose_version(listed, &constraint, &requirements, kept)
        };
        let by_number = locked.filter(|_| *locked_versions == LockedVersions::Kept).map(|locked| &locked.version);
        let by_number = by_number.or_else(|| constraint.exact_version()).filter(|version| constraint.allows(version));
        let chosen = choose(queries, &address, by_number, choose_matching).await;
        tokio::task::yield_now().await;
        match chosen {
            Ok(chosen) => {
                let locked = locked.filter(|locked| locked.version == chosen.version);
                let hashes = locked.map(|locked| locked.hashes.as_slice()).unwrap_or_default();
                result.require_provider(provider, &chosen, platforms, hashes, required_by);
                let (provider, version) = (provider.clone(), chosen.version);
                chosen_providers.push(ChosenProvider { provider, version, constraint });
            }
            Err(reason) => {
                let constraints: BTreeSet<String> = requirements
                    .iter()
                    .filter_map(|requirement| requirement.versions.as_ref().map(ToString::to_string))
                    .collect();
                let subject = match constraints.is_empty() {
                    true => provider.to_string(),
                    false => format!("{provider}@{}", constraints.into_iter().collect::<Vec<_>>().join(", ")),
                };
                result.add_unavailable(subject, reason, required_by);
            }
        }
    }
    let Root { folder, client, .. } = root.clone();
    let locked = lock_file.map(|locked| locked.into_values().collect());
    let unavailable = result.unavailable_items();
    result.roots.push(ResolvedRoot { folder, client, locked, providers: chosen_providers, unavailable });
    result
}

/// The rule of clients for pre-releases (version constraints).
const PRE_RELEASES: &str = "clients take a pre-release only where a constraint names it exactly";

/// Chooses the locked version if there is one, else the newest that the constraint allows.
fn choose_version(
    listed: &[Version],
    constraint: &Constraint,
    requirements: &[&ProviderRequirement],
    locked: Option<&LockedProvider>,
) -> Result<Version, String> {
    let Some(LockedProvider { version, .. }) = locked else {
        let newest = listed.iter().filter(|version| constraint.allows(version)).max();
        return newest.cloned().ok_or_else(|| match constraints_text(requirements).as_str() {
            "" => format!("none of the {} versions that are listed is a release; {PRE_RELEASES}", listed.len()),
            texts => format!("none of the {} versions that are listed matches all of: {texts}", listed.len()),
        });
    };
    if !constraint.allows(version) {
        let texts = constraints_text(requirements);
        let mismatch = if texts.is_empty() { String::new() } else { format!(", which does not match all of: {texts}") };
        let rule = if version.is_pre_release() { format!("; {PRE_RELEASES}") } else { String::new() };
        return Err(format!(
            "the lock file has {version}{mismatch}{rule}. Run `larder lock --upgrade`, or the client's `init -upgrade`, to lock another"
        ));
    }
    if !listed.contains(version) {
        return Err(format!(
            "the lock file has {version}, which is none of the {} versions that are listed: clients refuse that lock file until the version is listed, or another is locked with `larder lock --upgrade`",
            listed.len()
        ));
    }
    Ok(version.clone())
}

/// Each constraint with its location.
fn constraints_text(requirements: &[&ProviderRequirement]) -> String {
    let texts = |requirement: &&ProviderRequirement| {
        requirement.versions.as_ref().map(|versions| format!("{versions} ({})", requirement.location))
    };
    shortened_list(requirements.iter().filter_map(texts).collect(), MAX_LISTED_CONSTRAINTS).join("; ")
}

/// The entries of a root's lock file; `None` without a readable one.
fn lock_file_of(files: &Files, root: &Root, result: &mut ResolutionResult) -> Option<Vec<LockedProvider>> {
    let path = child_path(&root.folder, LOCK_FILE);
    let locked = match files.get(&path) {
        None => return None,
        Some(Ok(text)) => lock_file::parse(text.as_bytes()).map_err(|bad| bad.problems()),
        Some(Err(reason)) => Err(vec![format!("{reason}: larder does not read this file")]),
    };
    let report = |problems: Vec<String>| {
        problems.into_iter().for_each(|problem| result.add_unavailable(&path, problem, [path.clone()]));
    };
    locked.map_err(report).ok()
}

/// The locked providers as a client reads them.
fn as_read_by(client: ClientKind, locked: Vec<LockedProvider>) -> BTreeMap<ProviderAddress, LockedProvider> {
    let mut by_provider: BTreeMap<ProviderAddress, LockedProvider> =
        locked.into_iter().map(|locked| (locked.provider.clone(), locked)).collect();
    if client == ClientKind::Opentofu {
        // OpenTofu uses the versions that Terraform locked, but not the hashes: its archives differ.
        let converted: Vec<LockedProvider> = by_provider.values().filter_map(for_opentofu).collect();
        for locked in converted {
            by_provider.entry(locked.provider.clone()).or_insert(locked);
        }
    }
    by_provider
}

/// The entry that OpenTofu reads from Terraform's entry for a default provider; `None` for any other provider.
fn for_opentofu(locked: &LockedProvider) -> Option<LockedProvider> {
    let registry_and_namespace = (locked.provider.host.as_str(), locked.provider.namespace.as_str());
    if registry_and_namespace != TERRAFORM_DEFAULT {
        return None;
    }
    let provider =
        ProviderAddress { host: Hostname::parse(ClientKind::Opentofu.default_host()).ok()?, ..locked.provider.clone() };
    Some(LockedProvider { provider, hashes: Vec::new(), ..locked.clone() })
}

/// A chosen version.
pub(super) struct ChosenVersion {
    pub(super) version: Version,
    /// Further platforms for which the version must be stored before clients see it.
    pub(super) extra_platforms: Vec<Platform>,
}

/// Chooses a version of a provider or module. `by_number` is the only one that may be chosen, where there is one.
///
/// # Errors
/// The reason why none matches.
pub(super) async fn choose(
    queries: &RegistryQueries<'_, impl Registries>,
    address: &Address,
    by_number: Option<&Version>,
    choose: impl Fn(&[Version]) -> Result<Version, String>,
) -> Result<ChosenVersion, String> {
    let listed = queries.versions(address).await;
    let reason = match listed.and_then(|listed| choose(&listed)) {
        Ok(version) => return Ok(ChosenVersion { version, extra_platforms: Vec::new() }),
        Err(reason) => match by_number {
            Some(version) => queries.late_version(address, version).await.unwrap_or(reason),
            None => reason,
        },
    };
    // While offline, a list may be refused or name no such version because nothing of it is stored. A policy may hide the
    // version, and says so when it is asked for.
    let UpstreamVersions { permitted, hidden, platforms: extra_platforms } =
        queries.upstream_versions(address).await.ok().flatten().ok_or_else(|| reason.clone())?;
    let reason = |of_permitted| if permitted.is_empty() { reason } else { of_permitted };
    let version = choose(&permitted).or_else(|bad| choose(&hidden).map_err(|_| reason(bad)))?;
    Ok(ChosenVersion { version, extra_platforms })
}

/// Resolves an address to its own archive; the modules that it calls are not resolved. `hashes` are those of a lock file.
pub(super) async fn resolve_address(
    queries: &RegistryQueries<'_, impl Registries>,
    selector: &PackageSelector,
    platforms: &[Platform],
    hashes: &[String],
    required_by: &str,
) -> ResolutionResult {
    let mut result = ResolutionResult::default();
    let choose_listed = |listed: &[Version]| selector.choose(&listed.iter().collect::<Vec<_>>()).cloned();
    let address = selector.address();
    let required_by = [required_by.to_owned()];
    let by_number = match selector.versions() {
        Versions::Exactly(version) => Some(version),
        _ => None,
    };
    match (choose(queries, &address, by_number, choose_listed).await, address) {
        (Ok(chosen), Address::Provider(provider)) => {
            result.require_provider(&provider, &chosen, platforms, hashes, required_by);
        }
        (Ok(ChosenVersion { version, .. }), Address::Module(module)) => {
            let artifact = Artifact::Module(ModulePackage { module, version });
            result.require(artifact, &[], required_by);
        }
        (Err(reason), _) => result.add_unavailable(selector.to_string(), reason, required_by),
    }
    result
}

/// Resolves a lock file.
pub(super) async fn resolve_lock_file(
    queries: &RegistryQueries<'_, impl Registries>,
    name: &str,
    locked: &[LockedProvider],
    platforms: &[Platform],
) -> ResolutionResult {
    let resolutions = locked.iter().map(|locked| async move {
        let selection = Selection { of: locked.provider.clone(), versions: Versions::Exactly(locked.version.clone()) };
        let selector = PackageSelector::Provider(selection);
        resolve_address(queries, &selector, platforms, &locked.hashes, name).await
    });
    join_all(resolutions.collect::<Vec<_>>()).await.into_iter().collect()
}

impl ResolutionResult {
    /// Requires a version of a provider for each platform.
    fn require_provider(
        &mut self,
        provider: &ProviderAddress,
        ChosenVersion { version, extra_platforms }: &ChosenVersion,
        platforms: &[Platform],
        hashes: &[String],
        required_by: impl IntoIterator<Item = String> + Clone,
    ) {
        for platform in platforms.iter().chain(extra_platforms) {
            let package = Package { provider: provider.clone(), version: version.clone(), platform: platform.clone() };
            self.require(Artifact::Provider(package), hashes, required_by.clone());
        }
    }
}
