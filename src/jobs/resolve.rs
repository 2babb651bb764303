//! Resolves requirements for jobs: answers the registry queries of `requirements::resolve` from the mirror, with the
//! version lists that larder serves, and the files of modules, which are fetched and stored if necessary. Says whether
//! what is missing can still become available.
//!
//! A warm-up fetches each called module at once, so that its module blocks can be read, and adds it as an item. The
//! other items follow when all requirements are known.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::{Cursor, Read};

use flate2::read::GzDecoder;
use futures_util::future::{join, join_all};
use parking_lot::Mutex;

use super::job_limits::StepRunner;
use super::job_report::{ItemState, JobItem};
use super::running_job::{shortened, waiting_item};
use super::warm::{MAX_ITEMS, WarmUpRun};
use crate::address::{Address, Artifact, ModulePackage, Package, PackageRef, ProviderAddress, Version};
use crate::error::Error;
use crate::mirror::{self, Archive, ModuleArchiveRef, WarmedDocument};
use crate::requirements::{
    self, Files, ModuleFiles, Order, Registries, RequiredArchive, ResolvedRequirements, UnavailableItem,
    UpstreamVersions,
};
use crate::upstream::error::Fault;

const MAX_PLACES: usize = 3;

/// The packages of one provider: the index of each item, the package, and the hashes that its lock files list.
type ProviderItems = Vec<(usize, Package, Vec<Vec<String>>)>;

impl WarmUpRun<'_> {
    /// Resolves configurations, and warms their requirements.
    pub(super) async fn warm_configurations(&self, order: &Order) {
        let registries = MirrorRegistries { warm_up: Some(self), ..MirrorRegistries::new(&self.steps) };
        let resolved = requirements::resolve(order, &registries).await;
        let ResolveFindings { unconfirmed, modules, .. } = registries.findings();
        self.job.mark_resolved(unconfirmed.into_iter().collect());
        let (providers, unfetched_modules) = self.add_items(resolved, &modules);
        let providers = providers.into_iter().map(|(provider, packages)| async move {
            let items: Vec<usize> = packages.iter().map(|(item, ..)| *item).collect();
            if let Err(error) = self.versions(&items, &Address::Provider(provider)).await {
                return items.iter().for_each(|item| self.mark_failed(*item, &error));
            }
            let warmed = packages
                .iter()
                .map(|(item, package, locked_hashes)| self.warm_package(*item, package.clone(), locked_hashes));
            join_all(warmed.collect::<Vec<_>>()).await;
        });
        let unfetched_modules = unfetched_modules.into_iter().map(|(item, package)| async move {
            if let Err(error) = self.warm_module(item, &package).await {
                self.mark_failed(item, &error);
            }
        });
        join(join_all(providers.collect::<Vec<_>>()), join_all(unfetched_modules.collect::<Vec<_>>())).await;
    }

    /// Adds an item for each new requirement.
    fn add_items(
        &self,
        ResolvedRequirements { archives, unavailable, .. }: ResolvedRequirements,
        fetched_modules: &BTreeMap<ModulePackage, FetchedModule>,
    ) -> (BTreeMap<ProviderAddress, ProviderItems>, Vec<(usize, ModulePackage)>) {
        let (mut providers, mut modules) = (BTreeMap::<_, ProviderItems>::new(), Vec::new());
        let remaining_items = MAX_ITEMS.saturating_sub(self.job.len());
        if count_new_items(&archives, &unavailable, fetched_modules) > remaining_items {
            let error = format!(
                "the configurations need more than {MAX_ITEMS} archives, the limit of one job: name fewer folders"
            );
            self.job.add(failed_item("the configurations", &error), None);
            return (providers, modules);
        }
        for UnavailableItem { subject, reason, required_by } in unavailable {
            let error = error_with_places(&reason, &required_by);
            // The error of a fetched module is already that of its item. Here the places that require the module are
            // added.
            match module_with_error(&reason, fetched_modules) {
                Some(module) => self.job.mark_failed(module.item, &error),
                None => drop(self.job.add(failed_item(&subject, &error), None)),
            }
        }
        for required in archives {
            match required.artifact {
                Artifact::Provider(package) => {
                    let item = self.add(&Artifact::from(&package));
                    providers.entry(package.provider.clone()).or_default().push((item, package, required.hashes));
                }
                Artifact::Module(package) => {
                    if !fetched_modules.contains_key(&package) {
                        modules.push((self.add(&Artifact::from(&package)), package));
                    }
                }
            }
        }
        (providers, modules)
    }

    fn add(&self, artifact: &Artifact) -> usize {
        self.job.add(waiting_item(artifact.into()), Some(artifact.clone()))
    }

    /// Warms a module as an item of the job, unless it is one already.
    async fn warm_called_module(
        &self,
        package: &ModulePackage,
        registries: &MirrorRegistries<'_>,
    ) -> Result<(), Error> {
        let item = {
            let mut findings = registries.findings.lock();
            if findings.modules.contains_key(package) || self.job.len() >= MAX_ITEMS {
                return Ok(());
            }
            let item = self.add(&Artifact::from(package));
            findings.modules.insert(package.clone(), FetchedModule { item, failed: None });
            item
        };
        // `init` always reads the version list, even for an exact version.
        let warmed = match registries.versions(&(&package.module).into()).await {
            Ok(_) => self.warm_module(item, package).await,
            Err(error) => Err(error),
        };
        warmed.inspect_err(|error| {
            self.mark_failed(item, error);
            if let Some(module) = registries.findings.lock().modules.get_mut(package) {
                module.failed = Some(error.to_string());
            }
        })
    }
}

/// A module that was fetched so that its module blocks can be read.
struct FetchedModule {
    item: usize,
    failed: Option<String>,
}

/// A mirror's answers for one job or plan.
pub(super) struct MirrorRegistries<'a> {
    steps: &'a StepRunner<'a>,
    /// The warm-up that fetches modules as its items; `None` for a plan.
    warm_up: Option<&'a WarmUpRun<'a>>,
    findings: Mutex<ResolveFindings>,
}

/// Findings of a resolution besides the resolved versions.
#[derive(Default)]
pub(super) struct ResolveFindings {
    /// Availability of unresolved providers and modules, by printed name.
    pub(super) availability: BTreeMap<String, ItemAvailability>,
    /// Notes for people about stored documents that upstream did not confirm.
    pub(super) unconfirmed: BTreeSet<String>,
    /// The modules that became items of the warm-up.
    modules: BTreeMap<ModulePackage, FetchedModule>,
}

impl<'a> MirrorRegistries<'a> {
    pub(super) fn new(steps: &'a StepRunner<'a>) -> Self {
        Self { steps, warm_up: None, findings: Mutex::default() }
    }

    pub(super) fn findings(self) -> ResolveFindings {
        self.findings.into_inner()
    }

    fn record_answer<T>(
        &self,
        address: &impl Display,
        classify: fn(&Error) -> ItemAvailability,
        answer: Result<WarmedDocument<T>, Error>,
    ) -> Result<T, Error> {
        let mut findings = self.findings.lock();
        if let Err(error) = &answer {
            findings.availability.insert(address.to_string(), classify(error));
        }
        let WarmedDocument { value, unconfirmed } = answer?;
        findings.unconfirmed.extend(unconfirmed);
        Ok(value)
    }
}

impl Registries for MirrorRegistries<'_> {
    type Error = Error;

    async fn versions(&self, address: &Address) -> Result<Vec<Version>, Error> {
        // No item shows the start of this step or its delays.
        let answer = self.steps.versions(address, || {}, || {}).await;
        self.record_answer(address, ItemAvailability::after_document_error, answer)
    }

    async fn upstream_versions(&self, address: &Address) -> Result<Option<UpstreamVersions>, Error> {
        let upstream = self.steps.mirror.offline.upstream_versions(address, &self.steps.context()).await;
        let answer = upstream.map(|value| WarmedDocument { value, unconfirmed: None });
        let upstream = self.record_answer(address, ItemAvailability::after_document_error, answer)?;
        Ok(upstream.map(|mirror::UpstreamVersions { permitted, hidden, platforms }| UpstreamVersions {
            permitted,
            hidden,
            platforms,
        }))
    }

    async fn late_version(&self, address: &Address, version: &Version) -> Option<String> {
        let late = self.steps.mirror.documents.late_version(address, version, &self.steps.context()).await;
        late.map(|late| late.to_string())
    }

    async fn module_files(&self, package: &ModulePackage) -> Result<ModuleFiles, Error> {
        if let Some(warm_up) = self.warm_up {
            warm_up.warm_called_module(package, self).await?;
        }
        let mirror = self.steps.mirror;
        let fetch = || async { mirror.operations.warm_module(package, &self.steps.context()).await };
        let answer = self.steps.run_step(fetch, || {}).await;
        let (_, stored) = self.record_answer(package, ItemAvailability::after_error, answer)?;
        let subdir = stored.proof.how.tree().and_then(|tree| tree.subdir.clone()).unwrap_or_default();
        let archive_ref = ModuleArchiveRef { package: package.clone(), digest: Some(stored.digest.prefix()) };
        let context = self.steps.context();
        let files = match mirror.modules.module_archive(&archive_ref, &context).await?.value {
            Archive::InMemory { bytes, .. } => files_of(package, Cursor::new(bytes)).await?,
            Archive::OnDisk { blob, .. } => files_of(package, blob.reader()).await?,
            Archive::Arriving { .. } | Archive::PassedThrough { .. } => {
                return Err(mirror.library.not_stored_error(&format!("the archive of {package}")).await);
            }
        };
        Ok(ModuleFiles { files, subdir })
    }
}

/// The files of a packed module that a client reads.
async fn files_of(package: &ModulePackage, archive: impl Read + Send + 'static) -> Result<Files, Error> {
    let reading = tokio::task::spawn_blocking(move || Files::from_tar(GzDecoder::new(archive))).await;
    let read = reading.map_err(|_| Error::Interrupted(format!("reading the archive of {package}")))?;
    read.map_err(|bad| Error::Unreadable { subject: format!("the archive of {package}"), reason: bad.to_string() })
}

/// Availability of an item that is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemAvailability {
    /// This mirror is offline; a bundle can bring the item.
    NeedsBundle,
    /// This mirror is offline, and has the item for some of the sealed platforms; a bundle can bring the others.
    WaitsForPlatforms,
    /// Upstream gave no answer.
    Unknown,
    /// The item cannot be had from upstream: it does not exist, is refused, or is unusable.
    Unavailable,
}

impl ItemAvailability {
    /// Availability after a failed document fetch: an unusable answer counts as an upstream failure.
    pub(super) fn after_document_error(error: &Error) -> Self {
        match error {
            Error::Upstream(error) if matches!(error.fault, Fault::Unusable(_)) => Self::Unknown,
            error => Self::after_error(error),
        }
    }

    /// Availability of a module after a failure: an unusable source or archive is final.
    pub(super) fn after_error(error: &Error) -> Self {
        let is_temporary = match error {
            Error::Offline(_) => return Self::NeedsBundle,
            Error::WaitsForPlatforms(_) => return Self::WaitsForPlatforms,
            Error::Upstream(error) => matches!(
                error.fault,
                Fault::Trouble { .. }
                    | Fault::Unreachable(_)
                    | Fault::HostNotFound(_)
                    | Fault::Untrusted(_)
                    | Fault::Slow(_)
                    | Fault::LocalLimit(_)
            ),
            Error::HeldBack { .. }
            | Error::RevalidationSkipped(_)
            | Error::Busy { .. }
            | Error::TooManyUnattendedFills { .. }
            | Error::Slow(_)
            | Error::Interrupted(_) => true,
            _ => false,
        };
        if is_temporary { Self::Unknown } else { Self::Unavailable }
    }
}

fn failed_item(subject: &str, error: &str) -> JobItem {
    let error = shortened(error);
    tracing::warn!(subject, error, "the item could not be warmed");
    JobItem { state: ItemState::Failed { error }, ..waiting_item(PackageRef::requested(subject)) }
}

/// Prefixes an error with the places that require the item.
fn error_with_places(reason: &str, required_by: &[String]) -> String {
    let places = required_by.iter().take(MAX_PLACES).map(String::as_str).collect::<Vec<_>>().join(", ");
    let hidden = required_by.len().saturating_sub(MAX_PLACES);
    match (required_by.len(), hidden) {
        (0, _) => reason.to_owned(),
        (_, 0) => format!("{places}: {reason}"),
        (_, hidden) => format!("{places} and {hidden} more: {reason}"),
    }
}

/// The fetched module whose own error caused this one.
fn module_with_error<'a>(
    reason: &str,
    fetched_modules: &'a BTreeMap<ModulePackage, FetchedModule>,
) -> Option<&'a FetchedModule> {
    fetched_modules.values().find(|module| module.failed.as_ref().is_some_and(|error| reason.contains(error)))
}

/// The number of items still to be added.
fn count_new_items(
    archives: &[RequiredArchive],
    unavailable: &[UnavailableItem],
    fetched_modules: &BTreeMap<ModulePackage, FetchedModule>,
) -> usize {
    let is_new = |artifact: &Artifact| match artifact {
        Artifact::Provider(_) => true,
        Artifact::Module(package) => !fetched_modules.contains_key(package),
    };
    let new_archives = archives.iter().filter(|archive| is_new(&archive.artifact)).count();
    new_archives.saturating_add(
        unavailable.iter().filter(|item| module_with_error(&item.reason, fetched_modules).is_none()).count(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Hostname, ModuleAddress, ModuleName, System};

    fn module(name: &str) -> ModulePackage {
        let host = Hostname::parse("registry.example").unwrap();
        let [namespace, name] = ["acme", name].map(|name| ModuleName::parse(name).unwrap());
        let module = ModuleAddress { host, namespace, name, system: System::parse("aws").unwrap() };
        ModulePackage { module, version: Version::parse("1.0.0").unwrap() }
    }

    #[test]
    fn a_module_that_is_an_item_already_is_not_counted_again() {
        let fetched_modules = BTreeMap::from([
            (module("vpc"), FetchedModule { item: 0, failed: None }),
            (module("gone"), FetchedModule { item: 1, failed: Some("it is gone".to_owned()) }),
        ]);
        let archives = ["vpc", "other"].map(|name| RequiredArchive {
            artifact: Artifact::from(&module(name)),
            required_by: Vec::new(),
            hashes: Vec::new(),
        });
        let unavailable = ["acme/gone: it is gone", "something else"].map(|reason| UnavailableItem {
            subject: "something".to_owned(),
            reason: reason.to_owned(),
            required_by: Vec::new(),
        });
        assert_eq!(count_new_items(&archives, &unavailable, &fetched_modules), 2);
    }
}
