//! Offline answers for pages that are not stored: the modules and providers with versions that can be installed from
//! the store.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::{timeout, timeout_at};

use crate::address::{Address, Version};
use crate::error::Error;
use crate::mirror::documents::DocumentKind;
use crate::mirror::effects::Effects;
use crate::mirror::library::access::Access;
use crate::mirror::library::default_if_store_unavailable;
use crate::mirror::library::stored_document::StoredDocument;
use crate::mirror::request_context::too_many_waiting;
use crate::mirror::{Answer, Connectivity, Library, Offline, Outcome, RequestContext, RuntimeConfig};
use crate::store::StoreError;
use crate::upstream::pages::{PagePath, PageQuery, PageRef};

/// The default and the largest number of entries on a page.
const ENTRIES: u32 = 15;
const MAX_ENTRIES: u32 = 100;

/// A page, by its source.
#[derive(Debug, Clone)]
pub enum PageSource {
    /// Upstream's page, fetched or stored.
    Upstream(Arc<StoredDocument>),
    /// A list or a search result, built from the store because larder is offline.
    List(StoredList),
    /// The details of one module or provider, built from the store because larder is offline.
    Details(StoredEntry),
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

/// A stored module or provider.
#[derive(Debug, Clone)]
pub struct StoredEntry {
    /// The module or provider.
    pub address: Address,
    /// The version to show: the requested one, or the latest.
    pub version: Version,
    /// All versions that can be installed from the store, in order.
    pub versions: Vec<Version>,
}

/// Returns true if the page lists the module or provider.
fn is_on_page(address: &Address, page: &PageRef) -> bool {
    let is = |name: &str, wanted: &str| name.eq_ignore_ascii_case(wanted);
    let (namespace, name, provider) = match address {
        Address::Module(module) => (module.namespace.as_str(), module.name.as_str(), module.system.as_str()),
        Address::Provider(provider) => (provider.namespace.as_str(), provider.type_.as_str(), provider.type_.as_str()),
    };
    let is_below = match &page.path {
        PagePath::Modules(Some(wanted)) => is(namespace, wanted.as_str()),
        PagePath::Providers(Some(wanted)) => is(namespace, wanted.as_str()),
        PagePath::ModuleSystems(wanted, wanted_name) => {
            is(namespace, wanted.as_str()) && is(name, wanted_name.as_str())
        }
        _ => true,
    };
    let PageQuery { namespace: wanted_namespace, provider: wanted_provider, search, is_verified_only, .. } =
        &page.query;
    let names = address.path().to_ascii_lowercase();
    let is_found = |search: &str| search.to_lowercase().split_whitespace().all(|word| names.contains(word));
    // The store does not record which modules their registry has verified, so such a page is empty.
    is_below
        && !is_verified_only
        && wanted_namespace.as_ref().is_none_or(|wanted| is(namespace, wanted.as_str()))
        && wanted_provider.as_ref().is_none_or(|wanted| is(provider, wanted.as_str()))
        && search.as_deref().is_none_or(is_found)
}

/// The latest of some versions; a pre-release only if there is no release.
pub fn latest<'a>(versions: impl IntoIterator<Item = &'a Version>) -> Option<&'a Version> {
    versions.into_iter().max_by_key(|version| (!version.is_pre_release(), *version))
}

impl Offline {
    /// Returns a page of the registry HTTP API. Offline, one that is not stored is built from the stored packages.
    pub async fn page(self: &Arc<Self>, page: &PageRef, call: &RequestContext) -> Result<Answer<PageSource>, Error> {
        call.upstream(&page.host)?;
        if self.runtime.connectivity() == Connectivity::Offline
            && self.library.stored_document(&page.key(&call.config)).await?.is_none()
            && let Some(value) = self.build_page(page, call).await?
        {
            return Ok(Answer::of_store(value, call.now, call));
        }
        let answer = self.documents.get(page, call).await?;
        let is_stored = matches!(answer.outcome, Outcome::Hit | Outcome::Stale | Outcome::Gone);
        if is_stored && call.effects() == Effects::Real {
            let (key, now) = (page.key(&call.config), call.now);
            let record_use = move |library: &Library| {
                library.document_used(&key, now);
                Ok(())
            };
            self.library.on_disk(record_use).await?;
        }
        Ok(answer.map(PageSource::Upstream))
    }

    /// Builds a page from the store; `None` where nothing is stored of its subject. Requests for the same page share
    /// one scan.
    ///
    /// # Errors
    /// The disk failed, or the store is gone: it may hold the page. [`Error::Busy`] where too many requests wait,
    /// [`Error::Slow`] where other scans take too long.
    async fn build_page(self: &Arc<Self>, page: &PageRef, call: &RequestContext) -> Result<Option<PageSource>, Error> {
        let subject = page.label();
        let _place = self.runtime.take_waiting_place(&subject, call)?;
        let if_task_dies = Err(Error::Interrupted(subject.clone()));
        let key = (page.clone(), call.config.generation, call.limits().clone());
        let scan_result =
            self.stored_pages.join_or_spawn(Effects::Real, &self.runtime.tasks, key, if_task_dies, || {
                let (offline, page, config) = (Arc::clone(self), page.clone(), Arc::clone(&call.config));
                let access = call.access();
                async move {
                    // By then the client has its answer: abandoned scans must not pile up in the queue.
                    let waiting = Arc::clone(&offline.page_scan).acquire_owned();
                    let Ok(permit) = timeout(offline.runtime.limits.answer_within, waiting).await else {
                        return Err(too_many_waiting(&page.label()));
                    };
                    let scan = offline.library.on_disk(move |library| {
                        // Held until the disk has answered, even if the caller has gone.
                        let _permit = permit;
                        library.scan_for_page(&page, &config, &access)
                    });
                    scan.await
                }
            });
        timeout_at(call.deadline, scan_result).await.unwrap_or(Err(Error::Slow(subject)))
    }

    /// The versions on a details page while offline: those that can be installed from the store. `None` for other
    /// pages.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn versions_for_page(
        self: &Arc<Self>,
        page: &PageRef,
        call: &RequestContext,
    ) -> Result<Option<Vec<Version>>, Error> {
        let Some((address, _)) = page.details_of() else { return Ok(None) };
        let (config, access) = (Arc::clone(&call.config), call.access());
        self.library.on_disk(move |library| library.stored_versions(&address, &config, &access)).await.map(Some)
    }
}

impl Library {
    fn scan_for_page(
        &self,
        page: &PageRef,
        config: &RuntimeConfig,
        access: &Access,
    ) -> Result<Option<PageSource>, StoreError> {
        let Some((address, wanted)) = page.details_of() else {
            let service = match page.path {
                PagePath::Search if page.query.search.is_none() => return Ok(None),
                PagePath::Providers(_) => "providers",
                _ => "modules",
            };
            let stored = self.addresses_of(&page.host, service)?;
            return self.stored_page(page, stored, config, access).map(|list| Some(PageSource::List(list)));
        };
        let Some(entry) = self.stored_entry(address, config, access)? else { return Ok(None) };
        let version = wanted.unwrap_or(entry.version);
        let is_known = entry.versions.contains(&version);
        Ok(is_known.then_some(PageSource::Details(StoredEntry { version, ..entry })))
    }

    fn stored_page(
        &self,
        page: &PageRef,
        stored: BTreeSet<Address>,
        config: &RuntimeConfig,
        access: &Access,
    ) -> Result<StoredList, StoreError> {
        let mut found = Vec::new();
        for address in stored.into_iter().filter(|address| is_on_page(address, page)) {
            // Versions are only read for the entries on the page.
            let canonical = config.canonical(&address);
            let is_permitted = access.permit_any(&address).is_ok();
            if is_permitted && !default_if_store_unavailable(self.named(&canonical))?.is_empty() {
                found.push(address);
            }
        }
        let offset = page.query.offset.unwrap_or_default();
        let limit = page.query.limit.unwrap_or(ENTRIES).clamp(1, MAX_ENTRIES);
        let total = found.len();
        let mut entries = Vec::new();
        for address in found.into_iter().skip(offset as usize).take(limit as usize) {
            entries.extend(self.stored_entry(address, config, access)?);
        }
        Ok(StoredList { entries, total, offset, limit })
    }

    /// The entry for a module or a provider; `None` without a version to install.
    fn stored_entry(
        &self,
        address: Address,
        config: &RuntimeConfig,
        access: &Access,
    ) -> Result<Option<StoredEntry>, StoreError> {
        let versions = self.stored_versions(&address, config, access)?;
        let latest = latest(&versions).cloned();
        Ok(latest.map(|version| StoredEntry { address, version, versions }))
    }

    /// All versions that can be installed from the store, and that the policies allow, in order.
    fn stored_versions(
        &self,
        address: &Address,
        config: &RuntimeConfig,
        access: &Access,
    ) -> Result<Vec<Version>, StoreError> {
        let address = config.canonical(address);
        let stored = self.read_stored_versions(&address, config)?;
        let of_address = self.read_access(&address, access, config)?;
        let shown = config.required_platforms.shown(&address, &stored).map(|(version, _)| version);
        Ok(shown.filter(|version| of_address.allows(version)).cloned().collect())
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
