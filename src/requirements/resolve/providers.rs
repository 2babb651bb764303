//! Chooses one version of each provider for all modules of a root.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use futures_util::future::join_all;

use super::super::configuration::ProviderRequirement;
use super::super::lock_file::{self, LockedProvider};
use super::super::request::ClientKind;
use super::super::{Files, Registries};
use super::addresses::want_provider;
use super::registry_queries::RegistryQueries;
use super::resolution_result::ResolutionResult;
use super::root_modules::{LOCK_FILE, Root};
use super::version_selection;
use crate::address::{Constraint, Hostname, Platform, ProviderAddress, Version};

/// The maximum number of locations named for conflicting constraints.
const MAX_PLACES: usize = 32;
/// The most providers of one root.
const MAX_PROVIDERS: usize = 4096;
/// The registries and the namespace whose providers both clients share.
const PREDECESSOR: (&str, &str) = ("registry.terraform.io", "hashicorp");
const SUCCESSOR: &str = "registry.opentofu.org";

/// Chooses each required provider: the locked version if there is one, else the newest.
pub(super) async fn choose(
    queries: &RegistryQueries<'_, impl Registries>,
    files: &Files,
    root: &Root,
    needs: &[ProviderRequirement],
    platforms: &[Platform],
    found: &mut ResolutionResult,
) {
    let mut by_provider: BTreeMap<&ProviderAddress, Vec<&ProviderRequirement>> = BTreeMap::new();
    for need in needs {
        by_provider.entry(&need.provider).or_default().push(need);
    }
    let locked = locked(files, root, found);
    if by_provider.len() > MAX_PROVIDERS {
        let reason =
            format!("{} providers are required, and at most {MAX_PROVIDERS} can be resolved", by_provider.len());
        let name = if root.folder.is_empty() { "the configuration" } else { &root.folder };
        found.add_unavailable(name, reason, []);
    }
    let by_provider: BTreeMap<_, _> = by_provider.into_iter().take(MAX_PROVIDERS).collect();
    let lists = by_provider.keys().map(|provider| queries.provider_versions(provider));
    // Starts all queries at once; the sequential loop below then finds them answered.
    join_all(lists.collect::<Vec<_>>()).await;
    for (provider, needs) in by_provider {
        let locked = locked.get(provider);
        let required_by: BTreeSet<String> = needs.iter().map(|need| need.location.to_string()).collect();
        // Without repetitions: most modules have the same constraint.
        let constraints: HashSet<&Constraint> = needs.iter().filter_map(|need| need.versions.as_ref()).collect();
        let constraint = Constraint::all(constraints);
        let choose = |listed: &[Version]| {
            queries.may_compare(listed.len().saturating_mul(constraint.number_of_conditions()))?;
            version_of(listed, &constraint, &needs, locked)
        };
        let chosen = version_selection::of_provider(queries, provider, choose).await;
        tokio::task::yield_now().await;
        match chosen {
            Ok(chosen) => {
                let hashes = locked.map(|locked| locked.hashes.as_slice()).unwrap_or_default();
                want_provider(found, provider, &chosen, platforms, hashes, required_by);
            }
            Err(reason) => found.add_unavailable(provider.to_string(), reason, required_by),
        }
    }
}

fn version_of(
    listed: &[Version],
    constraint: &Constraint,
    needs: &[&ProviderRequirement],
    locked: Option<&LockedProvider>,
) -> Result<Version, String> {
    let Some(LockedProvider { version, .. }) = locked else {
        let newest = listed.iter().filter(|version| constraint.allows(version)).max();
        return newest.cloned().ok_or_else(|| match constraints_text(needs).as_str() {
            "" => format!("none of the {} versions that are listed is a release", listed.len()),
            texts => format!("none of the {} versions that are listed is all of: {texts}", listed.len()),
        });
    };
    if !constraint.allows(version) {
        return Err(format!(
            "the lock file has {version}, which is not all of: {}. Run `terraform init -upgrade` (or `tofu init -upgrade`) to lock another",
            constraints_text(needs)
        ));
    }
    if !listed.contains(version) {
        return Err(format!(
            "the lock file has {version}, which is none of the {} versions that are listed: clients refuse to go on until it is, or until another is locked with `init -upgrade`",
            listed.len()
        ));
    }
    Ok(version.clone())
}

/// Each constraint with its place.
fn constraints_text(needs: &[&ProviderRequirement]) -> String {
    let texts =
        |need: &&ProviderRequirement| need.versions.as_ref().map(|versions| format!("{versions} ({})", need.location));
    let texts: BTreeSet<String> = needs.iter().filter_map(texts).collect();
    let more = texts.len().saturating_sub(MAX_PLACES);
    let mut texts: Vec<String> = texts.into_iter().take(MAX_PLACES).collect();
    if more > 0 {
        texts.push(format!("and {more} more"));
    }
    texts.join("; ")
}

/// The locked providers of a root.
fn locked(files: &Files, root: &Root, found: &mut ResolutionResult) -> BTreeMap<ProviderAddress, LockedProvider> {
    let path = if root.folder.is_empty() { LOCK_FILE.to_owned() } else { format!("{}/{LOCK_FILE}", root.folder) };
    let text = match files.get(&path) {
        None => return BTreeMap::new(),
        Some(Ok(text)) => text,
        Some(Err(reason)) => {
            found.add_unavailable(&path, format!("{reason}: larder does not read it"), [path.clone()]);
            return BTreeMap::new();
        }
    };
    let locked = match lock_file::parse(text.as_bytes()) {
        Ok(locked) => locked,
        Err(bad) => {
            bad.problems().into_iter().for_each(|problem| found.add_unavailable(&path, problem, [path.clone()]));
            return BTreeMap::new();
        }
    };
    let mut by_provider: BTreeMap<ProviderAddress, LockedProvider> =
        locked.into_iter().map(|one| (one.provider.clone(), one)).collect();
    if root.client == ClientKind::Opentofu {
        // OpenTofu uses the versions that Terraform locked, but not the hashes: its archives differ.
        let taken_over: Vec<LockedProvider> = by_provider.values().filter_map(taken_over).collect();
        for one in taken_over {
            by_provider.entry(one.provider.clone()).or_insert(one);
        }
    }
    by_provider
}

fn taken_over(locked: &LockedProvider) -> Option<LockedProvider> {
    let is = (locked.provider.host.as_str(), locked.provider.namespace.as_str());
    if is != PREDECESSOR {
        return None;
    }
    let provider = ProviderAddress { host: Hostname::parse(SUCCESSOR).ok()?, ..locked.provider.clone() };
    Some(LockedProvider { provider, hashes: Vec::new(), ..locked.clone() })
}
