//! What a sealed mirror can say of pages that it does not hold: the modules and providers of which versions can be
//! installed from what is stored.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::time::{timeout, timeout_at};

use super::super::pull::nobody_may_wait;
use super::super::{Mirror, RequestContext, unless_gone};
use crate::address::{ModuleAddress, ProviderAddress, Version};
use crate::error::Error;
use crate::store::StoreError;
use crate::upstream::page_query::PageQuery;
use crate::upstream::pages::{PagePath, PageRef};

/// How many entries a page has where its query does not say, and how many it may have.
const ENTRIES: u32 = 15;
const MOST_ENTRIES: u32 = 100;

/// Each page walks all that is stored of its registry and reads what it shows of it: one after the other is enough.
static TURN: Semaphore = Semaphore::const_new(1);

/// A page made of what is stored.
#[derive(Debug, Clone)]
pub enum FromStore {
    /// A list, or what was found.
    List(StoredList),
    /// One module or provider.
    Details(StoredDetails),
}

/// A part of what is stored of a registry.
#[derive(Debug, Clone)]
pub struct StoredList {
    /// What is on this page.
    pub entries: Vec<StoredEntry>,
    /// How many entries there are on all pages.
    pub total: usize,
    /// How many come before this page.
    pub offset: u32,
    /// How many a page has.
    pub limit: u32,
}

/// What a list shows of a module or a provider.
#[derive(Debug, Clone)]
pub struct StoredEntry {
    /// Which.
    pub of: StoredThing,
    /// The version that is meant: the one that was asked for, or the latest.
    pub version: Version,
}

/// What is known of a module or a provider.
#[derive(Debug, Clone)]
pub struct StoredDetails {
    /// Which.
    pub entry: StoredEntry,
    /// Those that can be installed from what is held, in order.
    pub versions: Vec<Version>,
}

/// A module or a provider.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoredThing {
    /// A module.
    Module(ModuleAddress),
    /// A provider.
    Provider(ProviderAddress),
}

impl StoredThing {
    /// Its names without its registry.
    pub fn names(&self) -> String {
        match self {
            Self::Module(ModuleAddress { namespace, name, system, .. }) => format!("{namespace}/{name}/{system}"),
            Self::Provider(ProviderAddress { namespace, type_, .. }) => format!("{namespace}/{type_}"),
        }
    }

    /// Whether a page that lists it lists this.
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
        let PageQuery { namespace: of, provider: for_, search, is_verified_only, .. } = &page.query;
        let names = self.names().to_ascii_lowercase();
        let is_found = |search: &str| search.to_lowercase().split_whitespace().all(|word| names.contains(word));
        // Which modules their registry has verified is nothing that is stored: it is said of none.
        is_below
            && !is_verified_only
            && of.as_ref().is_none_or(|of| is(namespace, of.as_str()))
            && for_.as_ref().is_none_or(|for_| is(provider, for_.as_str()))
            && search.as_deref().is_none_or(is_found)
    }
}

/// The latest of some versions: a pre-release only where there is nothing else.
pub(in crate::mirror) fn latest(versions: &[Version]) -> Option<&Version> {
    versions.iter().filter(|version| !version.is_pre_release()).max().or_else(|| versions.iter().max())
}

impl Mirror {
    /// The page from what is stored; none of what nothing is stored of. All who ask for one page share one look.
    ///
    /// # Errors
    /// Where the disk fails, or the store is gone: it may well be held there. [`Error::Busy`] where as many wait as
    /// may, [`Error::Slow`] where others take too long.
    pub(super) async fn page_from_store(
        self: &Arc<Self>,
        page: &PageRef,
        call: &RequestContext,
    ) -> Result<Option<FromStore>, Error> {
        let what = page.what();
        let _place = self.place(call).ok_or_else(|| nobody_may_wait(&what))?;
        let lost = Err(Error::Interrupted(what.clone()));
        let look = self.stored_pages.share(&self.tasks, page.clone(), lost, || {
            let (mirror, page) = (Arc::clone(self), page.clone());
            async move {
                // Whoever asked waits no longer: a queue of looks that nobody waits for must not grow.
                match timeout(mirror.limits.answer_within, TURN.acquire()).await {
                    Ok(turn) => mirror.look_into_store(page, turn).await,
                    Err(_) => Err(nobody_may_wait(&page.what())),
                }
            }
        });
        timeout_at(call.deadline, look).await.unwrap_or(Err(Error::Slow(what)))
    }

    /// Holds its turn until the disk has answered, also where nobody waits for that any more.
    async fn look_into_store<T: Send + 'static>(
        self: &Arc<Self>,
        page: PageRef,
        turn: T,
    ) -> Result<Option<FromStore>, Error> {
        self.on_disk(move |mirror| {
            let _turn = turn;
            let Some((of, wanted)) = details_on(&page) else {
                return match page.path {
                    PagePath::Search if page.query.search.is_none() => Ok(None),
                    PagePath::Providers | PagePath::ProvidersOf(_) => {
                        let providers = mirror.store.records.providers_of(&page.host)?;
                        mirror.stored_list(&page, providers.into_iter().map(StoredThing::Provider)).map(Some)
                    }
                    _ => {
                        let modules = mirror.store.records.modules_of(&page.host)?;
                        mirror.stored_list(&page, modules.into_iter().map(StoredThing::Module)).map(Some)
                    }
                };
            };
            let details = mirror.stored_details(of)?;
            Ok(details.and_then(|details| {
                let StoredEntry { of, version } = details.entry;
                let version = wanted.unwrap_or(version);
                let is_known = details.versions.contains(&version);
                is_known.then_some(FromStore::Details(StoredDetails { entry: StoredEntry { of, version }, ..details }))
            }))
        })
        .await
    }

    fn stored_list(&self, page: &PageRef, stored: impl Iterator<Item = StoredThing>) -> Result<FromStore, StoreError> {
        let mut found = Vec::new();
        for thing in stored.filter(|thing| thing.is_on(page)) {
            if self.has_names(&thing)? {
                found.push(thing);
            }
        }
        let offset = page.query.offset.unwrap_or_default();
        let limit = page.query.limit.unwrap_or(ENTRIES).clamp(1, MOST_ENTRIES);
        let total = found.len();
        let mut entries = Vec::new();
        for thing in found.into_iter().skip(offset as usize).take(limit as usize) {
            entries.extend(self.stored_entry(thing)?);
        }
        Ok(FromStore::List(StoredList { entries, total, offset, limit }))
    }

    /// What a list shows of a module or a provider, if there is a version of it.
    fn stored_entry(&self, of: StoredThing) -> Result<Option<StoredEntry>, StoreError> {
        let versions = self.stored_versions(&of)?;
        Ok(latest(&versions).cloned().map(|version| StoredEntry { of, version }))
    }

    /// What is stored of a module or a provider, if there is a version of it.
    fn stored_details(&self, of: StoredThing) -> Result<Option<StoredDetails>, StoreError> {
        let versions = self.stored_versions(&of)?;
        let latest = latest(&versions).cloned();
        Ok(latest.map(|version| StoredDetails { entry: StoredEntry { of, version }, versions }))
    }

    /// Whether archives of it have names: the rest is only looked at for what is shown.
    fn has_names(&self, of: &StoredThing) -> Result<bool, StoreError> {
        let records = &self.store.records;
        Ok(match of {
            StoredThing::Module(module) => {
                let module = self.terms.load().key_of(module);
                !unless_gone(records.module_packages_with_names(&module))?.is_empty()
            }
            StoredThing::Provider(provider) => !unless_gone(records.packages_with_names(provider))?.is_empty(),
        })
    }

    /// All versions that can be installed from what is held, in order.
    fn stored_versions(&self, of: &StoredThing) -> Result<Vec<Version>, StoreError> {
        let terms = self.terms.load_full();
        match of {
            StoredThing::Module(module) => {
                Ok(self.read_stored_module_versions(&terms.key_of(module))?.into_iter().collect())
            }
            StoredThing::Provider(provider) => {
                let Some(upstream) = terms.upstreams.get(&provider.host) else { return Ok(Vec::new()) };
                let held = self.read_stored_versions(provider, upstream.settings.verification)?;
                Ok(terms.sealed_for.shown(&held).map(|(version, _)| version.clone()).collect())
            }
        }
    }

    /// The versions that a details page names while sealed: of its module or provider, those that can be installed from
    /// what is held. None for a page that is no such.
    ///
    /// # Errors
    /// Where the disk fails.
    pub async fn versions_for_page(self: &Arc<Self>, page: &PageRef) -> Result<Option<Vec<Version>>, Error> {
        let Some((of, _)) = details_on(page) else { return Ok(None) };
        self.on_disk(move |mirror| mirror.stored_versions(&of)).await.map(Some)
    }
}

/// What a page tells the details of, and of which version of it where it says one.
fn details_on(page: &PageRef) -> Option<(StoredThing, Option<Version>)> {
    let host = &page.host;
    let module =
        |namespace, name, system| StoredThing::Module(ModuleAddress { host: host.clone(), namespace, name, system });
    let provider = |namespace, type_| StoredThing::Provider(ProviderAddress { host: host.clone(), namespace, type_ });
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
    fn the_latest_is_a_release_where_there_is_one() {
        let versions = |texts: &[&str]| texts.iter().map(|text| Version::parse(text).unwrap()).collect::<Vec<_>>();
        for (of, newest) in [
            (&["1.9.0", "1.10.0", "2.0.0-rc.1"][..], Some("1.10.0")),
            (&["2.0.0-rc.1", "2.0.0-beta"], Some("2.0.0-rc.1")),
            (&[], None),
        ] {
            assert_eq!(latest(&versions(of)).map(Version::as_str), newest);
        }
    }
}
