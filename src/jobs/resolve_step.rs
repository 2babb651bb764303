//! Resolves the requirements of configurations inside a warm-up. Each module is fetched for its calls, so it becomes an
//! item at once; the other items follow when all requirements are known.

use std::collections::BTreeMap;

use futures_util::future::{join, join_all};
use parking_lot::Mutex;

use super::job_report::{ItemState, JobItem};
use super::job_state::{ItemSubject, shortened, waiting_item};
use super::registries::MirrorRegistries;
use super::warm::MAX_ITEMS;
use super::warming::WarmUpRun;
use crate::address::{Artifact, ModuleAddress, ModulePackage, Package, PackageRef, ProviderAddress, Version};
use crate::error::Error;
use crate::requirements::{
    self, ModuleFiles, Order, Registries, RequiredArchive, ResolvedRequirements, UnavailableItem, UnlistedVersions,
};

const MAX_PLACES: usize = 3;

/// The packages of one provider: the index of each item, and the accepted hashes.
type ProviderItems = Vec<(usize, Package, Vec<Vec<String>>)>;

impl WarmUpRun<'_> {
    /// Resolves configurations, and warms their requirements.
    pub(super) async fn warm_configurations(&self, order: &Order) {
        let registries = MirrorRegistries::new(self.mirror, self.clock, &self.retry_policy);
        let item_registries = ItemRegistries { run: self, registries: &registries, modules: Mutex::default() };
        let resolved = requirements::resolve(order, &item_registries).await;
        let modules = item_registries.modules.into_inner();
        self.job.mark_resolved(registries.findings().unconfirmed.into_iter().collect());
        let (providers, unfetched_modules) = self.add_items(resolved, &modules);
        let providers = providers
            .into_iter()
            .map(|(provider, packages)| async move { self.warm_packages(&provider, packages).await });
        let unfetched_modules = unfetched_modules.into_iter().map(|(item, package)| async move {
            if let Err(error) = self.warm_module_item(item, &package).await {
                self.mark_failed(item, &error);
            }
        });
        join(join_all(providers.collect::<Vec<_>>()), join_all(unfetched_modules.collect::<Vec<_>>())).await;
    }

    /// Adds an item for each new requirement.
    fn add_items(
        &self,
        ResolvedRequirements { archives, cannot }: ResolvedRequirements,
        fetched_modules: &BTreeMap<ModulePackage, FetchedModule>,
    ) -> (BTreeMap<ProviderAddress, ProviderItems>, Vec<(usize, ModulePackage)>) {
        let (mut providers, mut modules) = (BTreeMap::<_, ProviderItems>::new(), Vec::new());
        let remaining_items = MAX_ITEMS.saturating_sub(self.job.len());
        if count_new_items(&archives, &cannot, fetched_modules) > remaining_items {
            let error = format!(
                "the configurations need more than {MAX_ITEMS} archives, the limit of one job: name fewer folders"
            );
            self.job.add(vec![failed_item("the configurations".to_owned(), error)]);
            return (providers, modules);
        }
        for UnavailableItem { subject, reason, required_by } in cannot {
            let error = error_with_places(&reason, &required_by);
            // The item of the module has the error, but not the places that require the module.
            match module_with_error(&reason, fetched_modules) {
                Some(module) => self.job.mark_failed(module.item, &error),
                None => drop(self.job.add(vec![failed_item(subject, error)])),
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
        let item_subject = ItemSubject { of: Some(artifact.clone()), digest: None };
        self.job.add(vec![(waiting_item(artifact.into()), item_subject)]).start
    }
}

/// A module that was fetched for its calls.
struct FetchedModule {
    item: usize,
    failed: Option<String>,
}

/// Registry access that also maintains the job's items.
struct ItemRegistries<'a, 'b> {
    run: &'a WarmUpRun<'b>,
    registries: &'a MirrorRegistries<'a>,
    modules: Mutex<BTreeMap<ModulePackage, FetchedModule>>,
}

impl ItemRegistries<'_, '_> {
    /// Adds the item of a new module.
    fn add_module_item(&self, package: &ModulePackage) -> Option<usize> {
        let mut modules = self.modules.lock();
        if modules.contains_key(package) || self.run.job.len() >= MAX_ITEMS {
            return None;
        }
        let item = self.run.add(&Artifact::from(package));
        modules.insert(package.clone(), FetchedModule { item, failed: None });
        Some(item)
    }
}

impl Registries for ItemRegistries<'_, '_> {
    type Error = Error;

    async fn provider_versions(&self, address: &ProviderAddress) -> Result<Vec<Version>, Error> {
        self.registries.provider_versions(address).await
    }

    async fn module_versions(&self, address: &ModuleAddress) -> Result<Vec<Version>, Error> {
        self.registries.module_versions(address).await
    }

    async fn unlisted_provider_versions(&self, address: &ProviderAddress) -> Result<Option<UnlistedVersions>, Error> {
        self.registries.unlisted_provider_versions(address).await
    }

    async fn unlisted_module_versions(&self, address: &ModuleAddress) -> Result<Option<UnlistedVersions>, Error> {
        self.registries.unlisted_module_versions(address).await
    }

    async fn module_files(&self, package: &ModulePackage) -> Result<ModuleFiles, Error> {
        if let Some(item) = self.add_module_item(package) {
            // `init` always reads the version list, even for an exact version.
            let warmed = match self.registries.module_versions(&package.module).await {
                Ok(_) => self.run.warm_module_item(item, package).await,
                Err(error) => Err(error),
            };
            if let Err(error) = warmed {
                self.run.mark_failed(item, &error);
                if let Some(module) = self.modules.lock().get_mut(package) {
                    module.failed = Some(error.to_string());
                }
                return Err(error);
            }
        }
        self.registries.module_files(package).await
    }
}

fn failed_item(subject: String, error: String) -> (JobItem, ItemSubject) {
    let error = shortened(&error);
    tracing::warn!(subject, error, "the item could not be warmed");
    (
        JobItem { state: ItemState::Failed { error }, ..waiting_item(PackageRef::requested(&subject)) },
        ItemSubject::default(),
    )
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
    use crate::address::{Hostname, ModuleName, System};

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
