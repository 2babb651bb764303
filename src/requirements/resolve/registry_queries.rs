//! Registry queries of one order, a few at a time. Version lists and modules are asked for once; unlisted versions, each time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};

use super::super::configuration::{self, FolderRole, Inputs, Module};
use super::super::request::ClientKind;
use super::super::{ModuleFiles, Registries, UnlistedVersions};
use crate::address::{ModuleAddress, ModulePackage, ProviderAddress, Version};

/// Open queries at a time.
const MAX_CONCURRENT_QUERIES: usize = 16;
/// The maximum number of version lists in one order.
const MAX_LISTS: usize = 8192;
/// Registry modules in one order.
const MAX_MODULES: usize = 1024;
/// The limit of the modules' files, in bytes.
const MAX_BYTES: usize = 64 << 20;

/// The maximum number of calls in one order, over all roots.
const MAX_CALLS: usize = 1 << 18;
/// Version comparisons in one order.
const MAX_COMPARED: usize = 1 << 27;

/// An answer, or the reason why there is none.
pub(super) type Answer<T> = Result<Arc<T>, String>;
/// Answers by subject, each computed once.
pub(super) type Answers<K, T> = Mutex<HashMap<K, Arc<OnceCell<Answer<T>>>>>;

/// The registries, with the answers for one order.
pub(super) struct RegistryQueries<'a, R> {
    registries: &'a R,
    permits: Semaphore,
    provider_versions: Answers<ProviderAddress, Vec<Version>>,
    module_versions: Answers<ModuleAddress, Vec<Version>>,
    module_files: Answers<ModulePackage, ModuleFiles>,
    modules: Answers<(ModulePackage, String, ClientKind, Arc<Inputs>), Module>,
    /// Lists queried.
    lists_queried: AtomicUsize,
    /// Modules queried, and their bytes.
    modules_queried: AtomicUsize,
    module_bytes: AtomicUsize,
    /// Calls followed, and comparisons made.
    calls_followed: AtomicUsize,
    comparisons: AtomicUsize,
}

impl<'a, R: Registries> RegistryQueries<'a, R> {
    pub(super) fn new(registries: &'a R) -> Self {
        Self {
            registries,
            permits: Semaphore::new(MAX_CONCURRENT_QUERIES),
            provider_versions: Answers::default(),
            module_versions: Answers::default(),
            module_files: Answers::default(),
            modules: Answers::default(),
            lists_queried: AtomicUsize::new(0),
            modules_queried: AtomicUsize::new(0),
            module_bytes: AtomicUsize::new(0),
            calls_followed: AtomicUsize::new(0),
            comparisons: AtomicUsize::new(0),
        }
    }

    /// The versions of a provider that clients see.
    pub(super) async fn provider_versions(&self, address: &ProviderAddress) -> Answer<Vec<Version>> {
        let ask = async || {
            self.one_more_list()?;
            self.registries.provider_versions(address).await.map_err(|reason| reason.to_string())
        };
        self.once(&self.provider_versions, address, ask).await
    }

    /// The versions of a module that clients see.
    pub(super) async fn module_versions(&self, address: &ModuleAddress) -> Answer<Vec<Version>> {
        let ask = async || {
            self.one_more_list()?;
            self.registries.module_versions(address).await.map_err(|reason| reason.to_string())
        };
        self.once(&self.module_versions, address, ask).await
    }

    /// Versions of a provider that clients do not see. Read from the cache, and only if no visible version matches.
    pub(super) async fn unlisted_provider_versions(
        &self,
        address: &ProviderAddress,
    ) -> Result<Option<UnlistedVersions>, String> {
        // An error means that the semaphore is closed; nothing closes it.
        let _turn = self.permits.acquire().await;
        self.registries.unlisted_provider_versions(address).await.map_err(|reason| reason.to_string())
    }

    /// Versions of a module that clients do not see.
    pub(super) async fn unlisted_module_versions(
        &self,
        address: &ModuleAddress,
    ) -> Result<Option<UnlistedVersions>, String> {
        let _turn = self.permits.acquire().await;
        self.registries.unlisted_module_versions(address).await.map_err(|reason| reason.to_string())
    }

    /// The files of a module.
    pub(super) async fn module_files(&self, package: &ModulePackage) -> Answer<ModuleFiles> {
        let ask = async || {
            if self.modules_queried.fetch_add(1, Ordering::Relaxed) >= MAX_MODULES {
                return Err(format!("more than {MAX_MODULES} modules are called in all: name fewer folders"));
            }
            let files = self.registries.module_files(package).await.map_err(|reason| reason.to_string())?;
            let bytes = files.files.size_bytes();
            if self.module_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > MAX_BYTES {
                return Err(format!(
                    "the modules that are called have more than {} MiB of configuration: name fewer folders",
                    MAX_BYTES >> 20
                ));
            }
            Ok(files)
        };
        self.once(&self.module_files, package, ask).await
    }

    /// Parses a folder of a module with these values.
    pub(super) async fn module(
        &self,
        package: &ModulePackage,
        folder: &str,
        client: ClientKind,
        inputs: &Arc<Inputs>,
    ) -> Answer<Module> {
        let cell = cell(&self.modules, &(package.clone(), folder.to_owned(), client, Arc::clone(inputs)));
        let read = async || {
            let files = self.module_files(package).await?;
            // Parsing a long file takes a moment: other tasks run in between.
            tokio::task::yield_now().await;
            let within = format!("{package}//");
            Ok(Arc::new(configuration::read(&files.files, folder, FolderRole::Called, client, &within, inputs)))
        };
        cell.get_or_init(read).await.clone()
    }

    /// Checks the limit of calls.
    pub(super) fn may_follow(&self, calls: usize) -> Result<(), String> {
        match self.calls_followed.fetch_add(calls, Ordering::Relaxed).saturating_add(calls) <= MAX_CALLS {
            true => Ok(()),
            false => {
                Err(format!("more than {MAX_CALLS} calls of modules are to be followed in all: name fewer folders"))
            }
        }
    }

    /// Checks the limit of comparisons.
    pub(super) fn may_compare(&self, conditions: usize) -> Result<(), String> {
        match self.comparisons.fetch_add(conditions, Ordering::Relaxed).saturating_add(conditions) <= MAX_COMPARED {
            true => Ok(()),
            false => Err("there are too many constraints and versions to compare: name fewer folders".to_owned()),
        }
    }

    fn one_more_list(&self) -> Result<(), String> {
        match self.lists_queried.fetch_add(1, Ordering::Relaxed) {
            MAX_LISTS.. => {
                Err(format!("more than {MAX_LISTS} providers and modules are named in all: name fewer folders"))
            }
            _ => Ok(()),
        }
    }

    async fn once<K: Hash + Eq + Clone, T>(
        &self,
        answers: &Answers<K, T>,
        key: &K,
        ask: impl AsyncFnOnce() -> Result<T, String>,
    ) -> Answer<T> {
        let cell = cell(answers, key);
        let ask = async || {
            // An error means that the semaphore is closed; nothing closes it.
            let _turn = self.permits.acquire().await;
            ask().await.map(Arc::new)
        };
        cell.get_or_init(ask).await.clone()
    }
}

/// The cell of one answer.
pub(super) fn cell<K: Hash + Eq + Clone, T>(answers: &Answers<K, T>, key: &K) -> Arc<OnceCell<Answer<T>>> {
    let mut answers = answers.lock();
    match answers.get(key) {
        Some(cell) => Arc::clone(cell),
        None => Arc::clone(answers.entry(key.clone()).or_default()),
    }
}
