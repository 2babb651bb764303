//! Offline answers for pages that are not stored: the modules and providers with versions that can be installed from
//! the store.

use crate::mirror::Offline;
use crate::mirror::library::stored_document::StoredDocument;
use crate::mirror::offline::STORED_ANSWER_LIFETIME;
use crate::mirror::{Answer, Connectivity, Library, Outcome};
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::time::{timeout, timeout_at};

use crate::address::{ModuleAddress, ProviderAddress, Version};
use crate::error::Error;
use crate::mirror::documents::revalidate::too_many_waiting;
use crate::mirror::{RequestContext, default_if_gone};
use crate::store::StoreError;
use crate::upstream::pages::{PagePath, PageQuery, PageRef};

/// The default and the largest number of entries on a page.
const ENTRIES: u32 = 15;
const MAX_ENTRIES: u32 = 100;

/// Each page scans everything stored of its registry, so one is built at a time.
static PAGE_SCAN: Semaphore = Semaphore::const_new(1);

/// The source of a page.
#[derive(Debug, Clone)]
pub enum PageSource {
    /// Upstream's page, fetched or stored.
    Upstream(Arc<StoredDocument>),
    /// Built from the stored packages, because larder is offline.
    Built(Box<PageFromStore>),
}

/// A page built from the store.
#[derive(Debug, Clone)]
pub enum PageFromStore {
    /// A list or a search result.
    List(StoredList),
    /// The details of one module or provider.
    Details(StoredDetails),
}

/// One page of the stored modules or providers of a registry.
#[derive(Debug, Clone)]
pub struct StoredList {
    /// The entries on this page.
    pub entries: Vec<StoredEntry>,
    /// The number of entries on all pages.
    pub total: usize,
    /// The number of entries before this page.
    pub offset: u32,
    /// The most entries on a page.
    pub limit: u32,
}

/// A module or a provider in a list.
#[derive(Debug, Clone)]
pub struct StoredEntry {
    /// The module or provider.
    pub subject: StoredSubject,
    /// The version to show: the requested one, or the latest.
    pub version: Version,
}

/// The details of a module or a provider.
#[derive(Debug, Clone)]
pub struct StoredDetails {
    /// The module or provider.
    pub entry: StoredEntry,
    /// All versions that can be installed from the store, in order.
    pub versions: Vec<Version>,
}

/// A module or a provider.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoredSubject {
    /// A module.
    Module(ModuleAddress),
    /// A provider.
    Provider(ProviderAddress),
}

impl StoredSubject {
    /// Its path within its registry: `NAMESPACE/NAME/SYSTEM` or `NAMESPACE/TYPE`.
    pub fn path(&self) -> String {
        match self {
            Self::Module(ModuleAddress { namespace, name, system, .. }) => format!("{namespace}/{name}/{system}"),
            Self::Provider(ProviderAddress { namespace, type_, .. }) => format!("{namespace}/{type_}"),
        }
    }

    /// Returns true if the page lists it.
    fn is_on(&self, page: &PageRef) -> bool {
        let is = |name: &str, wanted: &str| name.eq_ignore_ascii_case(wanted);
        let (namespace, rest, provider) = match self {
            Self::Module(module) => (module.namespace.as_str(), module.name.as_str(), module.system.as_str()),
            Self::Provider(provider) => (provider.namespace.as_str(), provider.type_.as_str(), provider.type_.as_str()),
        };
        let is_below = match &page.path {
            PagePath::ModulesOf(wanted) => is(namespace, wanted.as_str()),
            PagePath::ProvidersOf(wanted) => is(namespace, wanted.as_str()),
            PagePath::ModuleSystems(wanted, name) => is(namespace, wanted.as_str()) && is(rest, name.as_str()),
            _ => true,
        };
        let PageQuery { namespace: wanted_namespace, provider: for_, search, is_verified_only, .. } = &page.query;
        let names = self.path().to_ascii_lowercase();
        let is_found = |search: &str| search.to_lowercase().split_whitespace().all(|word| names.contains(word));
        // The store does not record which modules their registry has verified, so such a page is empty.
        is_below
            && !is_verified_only
            && wanted_namespace.as_ref().is_none_or(|subject_of_page| is(namespace, subject_of_page.as_str()))
            && for_.as_ref().is_none_or(|for_| is(provider, for_.as_str()))
            && search.as_deref().is_none_or(is_found)
    }
}

/// The latest of some versions; a pre-release only if there is no release.
pub(in crate::mirror) fn latest(versions: &[Version]) -> Option<&Version> {
    versions.iter().filter(|version| !version.is_pre_release()).max().or_else(|| versions.iter().max())
}

impl Offline {
    /// Returns a page of the registry HTTP API. Offline, one that is not stored is built from the stored packages.
    pub async fn page(self: &Arc<Self>, page: &PageRef, call: &RequestContext) -> Result<Answer<PageSource>, Error> {
        call.upstream(&page.host)?;
        if self.runtime.connectivity() == Connectivity::Offline
            && self.library.stored_document(&call.config.key_of_page(page)).await?.is_none()
            && let Some(found) = self.build_page(page, call).await?
        {
            let (value, checked) = (PageSource::Built(Box::new(found)), call.now);
            let fresh_until = call.now.after(STORED_ANSWER_LIFETIME);
            return Ok(Answer { value, outcome: Outcome::Stale, fresh_until, checked });
        }
        Ok(self.documents.page(page, call).await?.map(PageSource::Upstream))
    }

    /// Builds a page from the store; `None` where nothing is stored of its subject. Requests for the same page share
    /// one scan.
    ///
    /// # Errors
    /// The disk failed, or the store is gone: it may hold the page. [`Error::Busy`] where too many requests wait,
    /// [`Error::Slow`] where other scans take too long.
    pub(in crate::mirror) async fn build_page(
        self: &Arc<Self>,
        page: &PageRef,
        call: &RequestContext,
    ) -> Result<Option<PageFromStore>, Error> {
        let subject = page.label();
        let _place = self.runtime.try_wait(call).ok_or_else(|| too_many_waiting(&subject))?;
        let lost = Err(Error::Interrupted(subject.clone()));
        let look = self.stored_pages.join_or_spawn(&self.runtime.tasks, page.clone(), lost, || {
            let (offline, page) = (Arc::clone(self), page.clone());
            async move {
                // By then the client has its answer: abandoned scans must not pile up in the queue.
                match timeout(offline.runtime.limits.answer_within, PAGE_SCAN.acquire()).await {
                    Ok(turn) => offline.scan_store(page, turn).await,
                    Err(_) => Err(too_many_waiting(&page.label())),
                }
            }
        });
        timeout_at(call.deadline, look).await.unwrap_or(Err(Error::Slow(subject)))
    }

    /// Keeps its turn until the disk has answered, even if the caller has gone.
    async fn scan_store<T: Send + 'static>(
        self: &Arc<Self>,
        page: PageRef,
        turn: T,
    ) -> Result<Option<PageFromStore>, Error> {
        self.library
            .on_disk(move |library| {
                let _turn = turn;
                let Some((address, wanted)) = details_on(&page) else {
                    return match page.path {
                        PagePath::Search if page.query.search.is_none() => Ok(None),
                        PagePath::Providers | PagePath::ProvidersOf(_) => {
                            let providers = library.store.records.providers_of(&page.host)?;
                            library.stored_list(&page, providers.into_iter().map(StoredSubject::Provider)).map(Some)
                        }
                        _ => {
                            let modules = library.store.records.modules_of(&page.host)?;
                            library.stored_list(&page, modules.into_iter().map(StoredSubject::Module)).map(Some)
                        }
                    };
                };
                let details = library.stored_details(address)?;
                Ok(details.and_then(|details| {
                    let StoredEntry { subject, version } = details.entry;
                    let version = wanted.unwrap_or(version);
                    let is_known = details.versions.contains(&version);
                    is_known.then_some(PageFromStore::Details(StoredDetails {
                        entry: StoredEntry { subject, version },
                        ..details
                    }))
                }))
            })
            .await
    }

    /// The versions on a details page while offline: those that can be installed from the store. `None` for other
    /// pages.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn versions_for_page(self: &Arc<Self>, page: &PageRef) -> Result<Option<Vec<Version>>, Error> {
        let Some((address, _)) = details_on(page) else { return Ok(None) };
        self.library.on_disk(move |library| library.stored_versions(&address)).await.map(Some)
    }
}

impl Library {
    fn stored_list(
        &self,
        page: &PageRef,
        stored: impl Iterator<Item = StoredSubject>,
    ) -> Result<PageFromStore, StoreError> {
        let mut found = Vec::new();
        for thing in stored.filter(|thing| thing.is_on(page)) {
            if self.has_names(&thing)? {
                found.push(thing);
            }
        }
        let offset = page.query.offset.unwrap_or_default();
        let limit = page.query.limit.unwrap_or(ENTRIES).clamp(1, MAX_ENTRIES);
        let total = found.len();
        let mut entries = Vec::new();
        for thing in found.into_iter().skip(offset as usize).take(limit as usize) {
            entries.extend(self.stored_entry(thing)?);
        }
        Ok(PageFromStore::List(StoredList { entries, total, offset, limit }))
    }

    /// The entry for a module or a provider; `None` without a version to install.
    fn stored_entry(&self, address: StoredSubject) -> Result<Option<StoredEntry>, StoreError> {
        let versions = self.stored_versions(&address)?;
        Ok(latest(&versions).cloned().map(|version| StoredEntry { subject: address, version }))
    }

    /// The details of a module or a provider; `None` without a version to install.
    fn stored_details(&self, address: StoredSubject) -> Result<Option<StoredDetails>, StoreError> {
        let versions = self.stored_versions(&address)?;
        let latest = latest(&versions).cloned();
        Ok(latest.map(|version| StoredDetails { entry: StoredEntry { subject: address, version }, versions }))
    }

    /// Returns true if it has named archives. Versions are only read for the entries on the page.
    fn has_names(&self, address: &StoredSubject) -> Result<bool, StoreError> {
        let records = &self.store.records;
        Ok(match address {
            StoredSubject::Module(module) => {
                let module = self.runtime.config.load().key_of(module);
                !default_if_gone(records.module_packages_with_names(&module))?.is_empty()
            }
            StoredSubject::Provider(provider) => !default_if_gone(records.packages_with_names(provider))?.is_empty(),
        })
    }

    /// All versions that can be installed from the store, in order.
    fn stored_versions(&self, address: &StoredSubject) -> Result<Vec<Version>, StoreError> {
        let terms = self.runtime.config.load_full();
        match address {
            StoredSubject::Module(module) => {
                Ok(self.read_stored_module_versions(&terms.key_of(module))?.into_iter().collect())
            }
            StoredSubject::Provider(provider) => {
                let Some(upstream) = terms.upstreams.get(&provider.host) else { return Ok(Vec::new()) };
                let stored = self.read_stored_versions(provider, upstream.settings.verification)?;
                Ok(terms.required_platforms.shown(&stored).map(|(version, _)| version.clone()).collect())
            }
        }
    }
}

/// The subject of a details page, and its version where the path has one.
fn details_on(page: &PageRef) -> Option<(StoredSubject, Option<Version>)> {
    let host = &page.host;
    let module =
        |namespace, name, system| StoredSubject::Module(ModuleAddress { host: host.clone(), namespace, name, system });
    let provider = |namespace, type_| StoredSubject::Provider(ProviderAddress { host: host.clone(), namespace, type_ });
    match page.path.clone() {
        PagePath::Module(namespace, name, system) => Some((module(namespace, name, system), None)),
        PagePath::ModuleVersion(namespace, name, system, version) => {
            Some((module(namespace, name, system), version.version()))
        }
        PagePath::Provider(namespace, type_) => Some((provider(namespace, type_), None)),
        PagePath::ProviderVersion(namespace, type_, version) => Some((provider(namespace, type_), version.version())),
        PagePath::Modules
        | PagePath::Search
        | PagePath::ModulesOf(_)
        | PagePath::ModuleSystems(..)
        | PagePath::Providers
        | PagePath::ProvidersOf(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_version_prefers_releases() {
        let versions = |texts: &[&str]| texts.iter().map(|text| Version::parse(text).unwrap()).collect::<Vec<_>>();
        for (list, newest) in [
            (&["1.9.0", "1.10.0", "2.0.0-rc.1"][..], Some("1.10.0")),
            (&["2.0.0-rc.1", "2.0.0-beta"], Some("2.0.0-rc.1")),
            (&[], None),
        ] {
            assert_eq!(latest(&versions(list)).map(Version::as_str), newest);
        }
    }
}
