//! Chooses one version of each provider for all modules of a root.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use futures_util::future::join_all;

use super::super::configuration::ProviderRequirement;
use super::super::lock_file::{self, LockedProvider};
use super::super::request::ClientKind;
use super::super::{Files, Registries};
use super::addresses::require_provider;
use super::registry_queries::RegistryQueries;
use super::resolution_result::ResolutionResult;
use super::root_modules::{LOCK_FILE, Root};
use super::version_selection;
use crate::address::{Constraint, Hostname, Platform, ProviderAddress, Version};

/// The maximum number of constraints listed in one message.
const MAX_LISTED_CONSTRAINTS: usize = 32;
/// The most providers of one root.
const MAX_PROVIDERS: usize = 4096;
/// The registry and namespace of Terraform's default providers. OpenTofu uses their locked versions for the providers of
/// the same names in its own registry.
const TERRAFORM_DEFAULT: (&str, &str) = ("registry.terraform.io", "hashicorp");
const OPENTOFU_REGISTRY: &str = "registry.opentofu.org";

/// Chooses each required provider: the locked version if there is one, else the newest.
pub(super) async fn choose_versions(
    queries: &RegistryQueries<'_, impl Registries>,
    files: &Files,
    root: &Root,
    requirements: &[ProviderRequirement],
    platforms: &[Platform],
    result: &mut ResolutionResult,
) {
    let mut by_provider: BTreeMap<&ProviderAddress, Vec<&ProviderRequirement>> = BTreeMap::new();
    for requirement in requirements {
        by_provider.entry(&requirement.provider).or_default().push(requirement);
    }
    let locked = locked_providers(files, root, result);
    if by_provider.len() > MAX_PROVIDERS {
        let reason =
            format!("{} providers are required, and at most {MAX_PROVIDERS} can be resolved", by_provider.len());
        let name = if root.folder.is_empty() { "the configuration" } else { &root.folder };
        result.add_unavailable(name, reason, []);
    }
    let by_provider: BTreeMap<_, _> = by_provider.into_iter().take(MAX_PROVIDERS).collect();
    let lists = by_provider.keys().map(|provider| queries.provider_versions(provider));
    // All queries are sent at once; the loop below then finds their answers in the cache.
    join_all(lists.collect::<Vec<_>>()).await;
    for (provider, requirements) in by_provider {
        let locked = locked.get(provider);
        let required_by: BTreeSet<String> =
            requirements.iter().map(|requirement| requirement.location.to_string()).collect();
        // A set, because most modules have the same constraint.
        let constraints: HashSet<&Constraint> =
            requirements.iter().filter_map(|requirement| requirement.versions.as_ref()).collect();
        let constraint = Constraint::all(constraints);
        let choose = |listed: &[Version]| {
            queries.count_comparisons(listed.len().saturating_mul(constraint.number_of_conditions()))?;
            choose_version(listed, &constraint, &requirements, locked)
        };
        let chosen = version_selection::choose_provider_version(queries, provider, choose).await;
        tokio::task::yield_now().await;
        match chosen {
            Ok(chosen) => {
                let hashes = locked.map(|locked| locked.hashes.as_slice()).unwrap_or_default();
                require_provider(result, provider, &chosen, platforms, hashes, required_by);
            }
            Err(reason) => result.add_unavailable(provider.to_string(), reason, required_by),
        }
    }
}

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
            "" => format!("none of the {} versions that are listed is a release", listed.len()),
            texts => format!("none of the {} versions that are listed matches all of: {texts}", listed.len()),
        });
    };
    if !constraint.allows(version) {
        return Err(format!(
            "the lock file has {version}, which does not match all of: {}. Run `terraform init -upgrade` (or `tofu init -upgrade`) to lock another",
            constraints_text(requirements)
        ));
    }
    if !listed.contains(version) {
        return Err(format!(
            "the lock file has {version}, which is none of the {} versions that are listed: clients refuse that lock file until the version is listed, or another is locked with `init -upgrade`",
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
    let texts: BTreeSet<String> = requirements.iter().filter_map(texts).collect();
    let omitted = texts.len().saturating_sub(MAX_LISTED_CONSTRAINTS);
    let mut texts: Vec<String> = texts.into_iter().take(MAX_LISTED_CONSTRAINTS).collect();
    if omitted > 0 {
        texts.push(format!("and {omitted} more"));
    }
    texts.join("; ")
}

/// The locked providers of a root.
fn locked_providers(
    files: &Files,
    root: &Root,
    result: &mut ResolutionResult,
) -> BTreeMap<ProviderAddress, LockedProvider> {
    let path = if root.folder.is_empty() { LOCK_FILE.to_owned() } else { format!("{}/{LOCK_FILE}", root.folder) };
    let text = match files.get(&path) {
        None => return BTreeMap::new(),
        Some(Ok(text)) => text,
        Some(Err(reason)) => {
            result.add_unavailable(&path, format!("{reason}: larder does not read this file"), [path.clone()]);
            return BTreeMap::new();
        }
    };
    let locked = match lock_file::parse(text.as_bytes()) {
        Ok(locked) => locked,
        Err(bad) => {
            bad.problems().into_iter().for_each(|problem| result.add_unavailable(&path, problem, [path.clone()]));
            return BTreeMap::new();
        }
    };
    let mut by_provider: BTreeMap<ProviderAddress, LockedProvider> =
        locked.into_iter().map(|locked| (locked.provider.clone(), locked)).collect();
    if root.client == ClientKind::Opentofu {
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
    let provider = ProviderAddress { host: Hostname::parse(OPENTOFU_REGISTRY).ok()?, ..locked.provider.clone() };
    Some(LockedProvider { provider, hashes: Vec::new(), ..locked.clone() })
}
