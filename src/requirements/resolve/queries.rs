//! Version lists and modules, each queried or parsed once, a few at a time for one order.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};

use super::super::configuration::{self, Module, ModuleRole, NO_PACKAGE, Problem, SourceLine, VariableValues};
use super::super::{ClientKind, Configurations, ModuleFiles, Registries, UpstreamVersions};
use super::{Root, find_roots};
use crate::address::{Address, ModulePackage, Version};

/// The maximum number of queries in flight.
const MAX_CONCURRENT_QUERIES: usize = 16;
/// The maximum number of version lists in one order.
const MAX_VERSION_LISTS: usize = 8192;
/// The maximum number of registry modules in one order.
const MAX_MODULES: usize = 1024;
/// The maximum total size of the modules' files, in MiB.
const MAX_MODULE_MIB: usize = 64;
/// The maximum number of calls in one order, over all roots.
const MAX_CALLS: usize = 1 << 18;
/// The maximum number of version comparisons in one order.
const MAX_COMPARISONS: usize = 1 << 27;
/// The maximum number of folders that are parsed at a time.
const MAX_CONCURRENT_PARSES: usize = 2;
/// The error after a panic of the parser.
const PARSER_PANICKED: &str = "the parser failed: larder's log says why";

/// An answer, or the reason why there is none.
type Answer<T> = Result<Arc<T>, String>;

/// Answers by their query, each computed once and then reused.
struct AnswerCache<K, T>(Mutex<HashMap<K, Arc<OnceCell<Answer<T>>>>>);

impl<K: Hash + Eq + Clone, T> AnswerCache<K, T> {
    fn new() -> Self {
        Self(Mutex::default())
    }

    /// The answer of a query; callers with the same key share one query.
    async fn get_or_query(&self, key: &K, query: impl AsyncFnOnce() -> Result<T, String>) -> Answer<T> {
        let known = self.0.lock().get(key).cloned();
        let cell = known.unwrap_or_else(|| Arc::clone(self.0.lock().entry(key.clone()).or_default()));
        cell.get_or_init(async || query().await.map(Arc::new)).await.clone()
    }
}

/// Parses folders on blocking threads, a few at a time.
struct Parsers(Arc<Semaphore>);

impl Parsers {
    fn new() -> Self {
        Self(Arc::new(Semaphore::new(MAX_CONCURRENT_PARSES)))
    }

    async fn run(&self, parse: impl FnOnce() -> Module + Send + 'static) -> Result<Module, String> {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.0).acquire_owned().await;
        let parse = move || {
            // Parsing continues after its caller is cancelled, and holds the permit to its end.
            let _permit = permit;
            parse()
        };
        tokio::task::spawn_blocking(parse).await.map_err(|_| PARSER_PANICKED.to_owned())
    }
}

/// A limit over one order.
pub(super) struct OrderLimit {
    used: AtomicUsize,
    max: usize,
    /// The error beyond the limit.
    exceeded: String,
}

impl OrderLimit {
    fn new(max: usize, exceeded: impl Into<String>) -> Self {
        Self { used: AtomicUsize::new(0), max, exceeded: format!("{}: name fewer folders", exceeded.into()) }
    }

    /// Counts an amount against the limit.
    ///
    /// # Errors
    /// The limit is exceeded.
    pub(super) fn count(&self, amount: usize) -> Result<(), String> {
        match self.used.fetch_add(amount, Ordering::Relaxed).saturating_add(amount) <= self.max {
            true => Ok(()),
            false => Err(self.exceeded.clone()),
        }
    }
}

/// The registries, with their answers for one order.
pub(super) struct RegistryQueries<'a, R> {
    registries: &'a R,
    permits: Semaphore,
    versions: AnswerCache<Address, Vec<Version>>,
    module_files: AnswerCache<ModulePackage, ModuleFiles>,
    modules: AnswerCache<(ModulePackage, String, ClientKind, Arc<VariableValues>), Module>,
    parsers: Parsers,
    lists_queried: OrderLimit,
    modules_queried: OrderLimit,
    module_bytes: OrderLimit,
    /// The module calls followed.
    pub(super) calls: OrderLimit,
    /// The versions compared with a condition.
    pub(super) comparisons: OrderLimit,
}

impl<'a, R: Registries> RegistryQueries<'a, R> {
    pub(super) fn new(registries: &'a R) -> Self {
        let lists = format!("more than {MAX_VERSION_LISTS} providers and modules are named in total");
        let bytes = format!("the called modules have more than {MAX_MODULE_MIB} MiB of configuration");
        Self {
            registries,
            permits: Semaphore::new(MAX_CONCURRENT_QUERIES),
            versions: AnswerCache::new(),
            module_files: AnswerCache::new(),
            modules: AnswerCache::new(),
            parsers: Parsers::new(),
            lists_queried: OrderLimit::new(MAX_VERSION_LISTS, lists),
            modules_queried: OrderLimit::new(
                MAX_MODULES,
                format!("more than {MAX_MODULES} modules are called in total"),
            ),
            module_bytes: OrderLimit::new(MAX_MODULE_MIB << 20, bytes),
            calls: OrderLimit::new(MAX_CALLS, format!("more than {MAX_CALLS} module calls in total")),
            comparisons: OrderLimit::new(MAX_COMPARISONS, "there are too many constraints and versions to compare"),
        }
    }

    /// The versions of a provider or module that larder lists for clients.
    pub(super) async fn versions(&self, address: &Address) -> Answer<Vec<Version>> {
        let query = async || {
            // An error means that the semaphore is closed; nothing closes it.
            let _permit = self.permits.acquire().await;
            self.lists_queried.count(1)?;
            self.registries.versions(address).await.map_err(|reason| reason.to_string())
        };
        self.versions.get_or_query(address, query).await
    }

    /// Upstream's versions, also those that larder does not list, because they are not stored or a policy hides them. Used
    /// only if no listed version matches.
    pub(super) async fn upstream_versions(&self, address: &Address) -> Result<Option<UpstreamVersions>, String> {
        let _permit = self.permits.acquire().await;
        self.registries.upstream_versions(address).await.map_err(|reason| reason.to_string())
    }

    /// Why upstream's list does not name a version that upstream has, if that is so.
    pub(super) async fn late_version(&self, address: &Address, version: &Version) -> Option<String> {
        let _permit = self.permits.acquire().await;
        self.registries.late_version(address, version).await
    }

    /// The files of a module.
    pub(super) async fn module_files(&self, package: &ModulePackage) -> Answer<ModuleFiles> {
        let query = async || {
            let _permit = self.permits.acquire().await;
            self.modules_queried.count(1)?;
            let files = self.registries.module_files(package).await.map_err(|reason| reason.to_string())?;
            self.module_bytes.count(files.files.size_bytes())?;
            Ok(files)
        };
        self.module_files.get_or_query(package, query).await
    }

    /// Parses a folder of a module with these values.
    pub(super) async fn module(
        &self,
        package: &ModulePackage,
        folder: &str,
        client: ClientKind,
        values: &Arc<VariableValues>,
    ) -> Answer<Module> {
        let parse = async || {
            let files = self.module_files(package).await?;
            let (prefix, folder, values) = (format!("{package}//"), folder.to_owned(), Arc::clone(values));
            let parse = move || configuration::read(&files.files, &folder, ModuleRole::Child, client, &prefix, &values);
            self.parsers.run(parse).await
        };
        let key = (package.clone(), folder.to_owned(), client, Arc::clone(values));
        self.modules.get_or_query(&key, parse).await
    }
}

/// The folders that one order carries, with the modules parsed so far.
pub(super) struct LocalModules {
    pub(super) configurations: Arc<Configurations>,
    parsers: Parsers,
    modules: AnswerCache<(String, ModuleRole, ClientKind, Arc<VariableValues>), Module>,
}

impl LocalModules {
    pub(super) fn new(configurations: &Configurations) -> Self {
        let configurations = Arc::new(configurations.clone());
        Self { configurations, parsers: Parsers::new(), modules: AnswerCache::new() }
    }

    /// The root modules, and the problems of finding them.
    pub(super) async fn roots(&self) -> (Vec<Root>, Vec<String>) {
        let configurations = Arc::clone(&self.configurations);
        let search = tokio::task::spawn_blocking(move || find_roots(&configurations));
        search.await.unwrap_or_else(|_| (Vec::new(), vec![PARSER_PANICKED.to_owned()]))
    }

    /// The module in a folder, parsed with these values of its variables. A failure is a problem of that module.
    pub(super) async fn module(
        &self,
        folder: &str,
        role: ModuleRole,
        client: ClientKind,
        values: &Arc<VariableValues>,
    ) -> Arc<Module> {
        let key = (folder.to_owned(), role, client, Arc::clone(values));
        let parse = async || {
            let (configurations, (folder, role, client, values)) = (Arc::clone(&self.configurations), key.clone());
            let parse = move || configuration::read(&configurations.files, &folder, role, client, NO_PACKAGE, &values);
            self.parsers.run(parse).await
        };
        self.modules.get_or_query(&key, parse).await.unwrap_or_else(|reason| {
            let location = SourceLine { file: folder.into(), line: 1 };
            let problem = Problem { subject: folder.to_owned(), reason, location };
            Arc::new(Module { problems: vec![problem], ..Module::default() })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::FutureExt;

    use super::super::super::Files;
    use super::*;

    #[test]
    fn parsing_keeps_its_permit_after_its_caller_is_cancelled() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let mut files = Files::default();
            files.insert("main.tf", b"").unwrap();
            let local = LocalModules::new(&Configurations::new(files, Vec::new(), None).unwrap());
            // The only blocking thread is busy, so parsing is queued behind it.
            let (release, released) = mpsc::channel();
            let busy = tokio::task::spawn_blocking(move || released.recv());
            let values = Arc::default();
            let cancelled = local.module("", ModuleRole::Root, ClientKind::Terraform, &values).now_or_never();
            assert_eq!((cancelled, local.parsers.0.available_permits()), (None, MAX_CONCURRENT_PARSES - 1));
            release.send(()).unwrap();
            busy.await.unwrap().unwrap();
            let all = u32::try_from(MAX_CONCURRENT_PARSES).unwrap();
            assert!(local.parsers.0.acquire_many(all).await.is_ok());
        });
    }
}
