//! Registry queries of one order, a few at a time. Version lists and modules are queried once; unlisted versions are
//! queried each time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};

use super::super::configuration::{self, Inputs, Module, ModuleRole};
use super::super::request::ClientKind;
use super::super::{ModuleFiles, Registries, UnlistedVersions};
use crate::address::{ModuleAddress, ModulePackage, ProviderAddress, Version};

/// The maximum number of queries in flight.
const MAX_CONCURRENT_QUERIES: usize = 16;
/// The maximum number of version lists in one order.
const MAX_VERSION_LISTS: usize = 8192;
/// The maximum number of registry modules in one order.
const MAX_MODULES: usize = 1024;
/// The maximum total size of the modules' files, in bytes.
const MAX_MODULE_BYTES: usize = 64 << 20;

/// The maximum number of calls in one order, over all roots.
const MAX_CALLS: usize = 1 << 18;
/// The maximum number of version comparisons in one order.
const MAX_COMPARISONS: usize = 1 << 27;

/// An answer, or the reason why there is none.
pub(super) type Answer<T> = Result<Arc<T>, String>;
/// Answers by their query, each computed once and then reused.
pub(super) type AnswerCache<K, T> = Mutex<HashMap<K, Arc<OnceCell<Answer<T>>>>>;

/// The registries, with the answers for one order.
pub(super) struct RegistryQueries<'a, R> {
    registries: &'a R,
    permits: Semaphore,
    provider_versions: AnswerCache<ProviderAddress, Vec<Version>>,
    module_versions: AnswerCache<ModuleAddress, Vec<Version>>,
    module_files: AnswerCache<ModulePackage, ModuleFiles>,
    modules: AnswerCache<(ModulePackage, String, ClientKind, Arc<Inputs>), Module>,
    /// The number of version lists queried.
    lists_queried: AtomicUsize,
    /// The number of modules queried, and the total size of their files.
    modules_queried: AtomicUsize,
    module_bytes: AtomicUsize,
    /// The number of module calls followed, and of versions compared with a condition.
    calls_followed: AtomicUsize,
    comparisons: AtomicUsize,
}

impl<'a, R: Registries> RegistryQueries<'a, R> {
    pub(super) fn new(registries: &'a R) -> Self {
        Self {
            registries,
            permits: Semaphore::new(MAX_CONCURRENT_QUERIES),
            provider_versions: AnswerCache::default(),
            module_versions: AnswerCache::default(),
            module_files: AnswerCache::default(),
            modules: AnswerCache::default(),
            lists_queried: AtomicUsize::new(0),
            modules_queried: AtomicUsize::new(0),
            module_bytes: AtomicUsize::new(0),
            calls_followed: AtomicUsize::new(0),
            comparisons: AtomicUsize::new(0),
        }
    }

    /// The versions of a provider that clients see.
    pub(super) async fn provider_versions(&self, address: &ProviderAddress) -> Answer<Vec<Version>> {
        let query = async || {
            self.count_version_list()?;
            self.registries.provider_versions(address).await.map_err(|reason| reason.to_string())
        };
        self.query_once(&self.provider_versions, address, query).await
    }

    /// The versions of a module that clients see.
    pub(super) async fn module_versions(&self, address: &ModuleAddress) -> Answer<Vec<Version>> {
        let query = async || {
            self.count_version_list()?;
            self.registries.module_versions(address).await.map_err(|reason| reason.to_string())
        };
        self.query_once(&self.module_versions, address, query).await
    }

    /// The versions of a provider that clients do not see; used only if no visible version matches.
    pub(super) async fn unlisted_provider_versions(
        &self,
        address: &ProviderAddress,
    ) -> Result<Option<UnlistedVersions>, String> {
        // An error means that the semaphore is closed; nothing closes it.
        let _permit = self.permits.acquire().await;
        self.registries.unlisted_provider_versions(address).await.map_err(|reason| reason.to_string())
    }

    /// Versions of a module that clients do not see.
    pub(super) async fn unlisted_module_versions(
        &self,
        address: &ModuleAddress,
    ) -> Result<Option<UnlistedVersions>, String> {
        let _permit = self.permits.acquire().await;
        self.registries.unlisted_module_versions(address).await.map_err(|reason| reason.to_string())
    }

    /// The files of a module.
    pub(super) async fn module_files(&self, package: &ModulePackage) -> Answer<ModuleFiles> {
        let query = async || {
            if self.modules_queried.fetch_add(1, Ordering::Relaxed) >= MAX_MODULES {
                return Err(format!("more than {MAX_MODULES} modules are called in total: name fewer folders"));
            }
            let files = self.registries.module_files(package).await.map_err(|reason| reason.to_string())?;
            let bytes = files.files.size_bytes();
            if self.module_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > MAX_MODULE_BYTES {
                return Err(format!(
                    "the called modules have more than {} MiB of configuration: name fewer folders",
                    MAX_MODULE_BYTES >> 20
                ));
            }
            Ok(files)
        };
        self.query_once(&self.module_files, package, query).await
    }

    /// Parses a folder of a module with these values.
    pub(super) async fn module(
        &self,
        package: &ModulePackage,
        folder: &str,
        client: ClientKind,
        inputs: &Arc<Inputs>,
    ) -> Answer<Module> {
        let cell = answer_cell(&self.modules, &(package.clone(), folder.to_owned(), client, Arc::clone(inputs)));
        let parse = async || {
            let files = self.module_files(package).await?;
            // Parsing a long file takes a moment: other tasks run in between.
            tokio::task::yield_now().await;
            let package_prefix = format!("{package}//");
            Ok(Arc::new(configuration::read(&files.files, folder, ModuleRole::Child, client, &package_prefix, inputs)))
        };
        cell.get_or_init(parse).await.clone()
    }

    /// Counts module calls against the limit of the order.
    ///
    /// # Errors
    /// The limit is exceeded.
    pub(super) fn count_calls(&self, calls: usize) -> Result<(), String> {
        match self.calls_followed.fetch_add(calls, Ordering::Relaxed).saturating_add(calls) <= MAX_CALLS {
            true => Ok(()),
            false => Err(format!("more than {MAX_CALLS} module calls in total: name fewer folders")),
        }
    }

    /// Counts version comparisons against the limit of the order.
    ///
    /// # Errors
    /// The limit is exceeded.
    pub(super) fn count_comparisons(&self, comparisons: usize) -> Result<(), String> {
        match self.comparisons.fetch_add(comparisons, Ordering::Relaxed).saturating_add(comparisons) <= MAX_COMPARISONS
        {
            true => Ok(()),
            false => Err("there are too many constraints and versions to compare: name fewer folders".to_owned()),
        }
    }

    fn count_version_list(&self) -> Result<(), String> {
        match self.lists_queried.fetch_add(1, Ordering::Relaxed) {
            MAX_VERSION_LISTS.. => Err(format!(
                "more than {MAX_VERSION_LISTS} providers and modules are named in total: name fewer folders"
            )),
            _ => Ok(()),
        }
    }

    /// Runs a query unless its answer is known; callers with the same key share one query.
    async fn query_once<K: Hash + Eq + Clone, T>(
        &self,
        answers: &AnswerCache<K, T>,
        key: &K,
        query: impl AsyncFnOnce() -> Result<T, String>,
    ) -> Answer<T> {
        let cell = answer_cell(answers, key);
        let limited_query = async || {
            // An error means that the semaphore is closed; nothing closes it.
            let _permit = self.permits.acquire().await;
            query().await.map(Arc::new)
        };
        cell.get_or_init(limited_query).await.clone()
    }
}

/// The cell that holds the answer for a key; empty until the answer is computed.
pub(super) fn answer_cell<K: Hash + Eq + Clone, T>(answers: &AnswerCache<K, T>, key: &K) -> Arc<OnceCell<Answer<T>>> {
    let mut answers = answers.lock();
    match answers.get(key) {
        Some(cell) => Arc::clone(cell),
        None => Arc::clone(answers.entry(key.clone()).or_default()),
    }
}
