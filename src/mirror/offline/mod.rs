//! Offline mode (promise 12): lists name only versions that can be installed from the store, and requests for anything
//! else are recorded as missing.
//!
//! Clients choose a version by the list alone, whatever platforms it names (provider registry protocol, provider
//! network mirror protocol, module registry protocol). So the list must name nothing else for a constraint to select a
//! stored version. Stored documents stay unchanged: back online, the full list is served again.

pub mod stored_pages;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::address::{Address, ModuleAddress, ModulePackage, Platform, ProviderAddress, Version, WaitingVersion};
use crate::error::Error;
use crate::mirror::documents::version_lists::entry_of;
use crate::mirror::documents::{DocumentKind, Documents};
use crate::mirror::effects::Effects;
use crate::mirror::library::missing::MissingPackage;
use crate::mirror::library::stored_document::StoredDocument;
use crate::mirror::offline::stored_pages::{PageSource, latest};
use crate::mirror::required_platforms::{RequiredPlatforms, StoredVersions};
use crate::mirror::runtime::ConfigGeneration;
use crate::mirror::single_flight::{SharedResult, SingleFlights};
use crate::mirror::{AddressAccess, Answer, ClientList, Connectivity, Library, Outcome, RequestContext, Runtime};
use crate::policy::ClientLimits;
use crate::upstream::discovery::Service;
use crate::upstream::pages::PageRef;
use crate::upstream::providers::VersionList;

type SharedLookup<T> = SharedResult<Result<T, Error>>;

/// The answers to clients while larder is offline.
#[derive(Debug)]
pub struct Offline {
    pub(in crate::mirror) runtime: Arc<Runtime>,
    pub(in crate::mirror) library: Arc<Library>,
    pub(in crate::mirror) documents: Arc<Documents>,
    /// Lookups of stored versions in progress. The key contains the generation, so a request after a change starts a new
    /// lookup.
    lookups: SingleFlights<(Address, u64, ConfigGeneration), SharedLookup<Arc<StoredVersions>>>,
    stored_pages: SingleFlights<(PageRef, ConfigGeneration, ClientLimits), SharedLookup<Option<PageSource>>>,
    /// Each page scans everything stored of its registry, so one is built at a time.
    page_scan: Arc<Semaphore>,
}

impl Offline {
    pub(in crate::mirror) fn new(documents: Arc<Documents>) -> Arc<Self> {
        Arc::new(Self {
            runtime: Arc::clone(&documents.runtime),
            library: Arc::clone(&documents.library),
            documents,
            lookups: SingleFlights::default(),
            stored_pages: SingleFlights::default(),
            page_scan: Arc::new(Semaphore::new(1)),
        })
    }

    /// The version list of a provider or a module for clients. Offline: the versions that can be installed from the
    /// store, even if the cached list does not name them; of a provider for any platform, or for all of
    /// `sealed_platforms`. Always without the versions that the policies do not allow.
    ///
    /// # Errors
    /// [`Error::Refused`] if the policies leave none. [`Error::Offline`] if the list would be empty: clients take that for "no such provider" (provider registry
    /// protocol). [`Error::WaitsForPlatforms`] if only `sealed_platforms` keep it empty.
    pub async fn client_versions(
        self: &Arc<Self>,
        address: &Address,
        call: &RequestContext,
    ) -> Result<Answer<ClientList>, Error> {
        call.access().permit_any(address)?;
        let service = Service::from(address);
        if self.runtime.connectivity() == Connectivity::Online {
            let document = self.documents.get(address, call).await?;
            let list = document.value.versions(service).await;
            let list = list.map_err(|reason| Error::unreadable_list(address, reason))?;
            let list = self.documents.access_to(address, call).await?.permitted(list)?;
            return Ok(document.map(|_| list));
        }
        let canonical = call.config.canonical(address);
        let platforms = &call.config.required_platforms;
        let mut looks = 0;
        let (stored, upstream, access) = loop {
            let seen = self.library.generation_of_address(&canonical);
            let stored = self.stored_versions(&canonical, call).await?;
            let upstream = self.library.stored_version_list(&canonical).await?;
            let access = self.documents.access_to(address, call).await?;
            if platforms.shown(&canonical, &stored).any(|(version, _)| access.allows(version)) {
                break (stored, upstream, access);
            }
            looks += 1;
            self.library.refresh((&canonical).into()).await?;
            // Other addresses may share a generation, so that one look more is enough.
            if looks > 1 || self.library.generation_of_address(&canonical) == seen {
                return Err(self.empty_list_error(address, &stored, upstream.as_ref(), &access, call).await);
            }
        };
        let shown: BTreeMap<&Version, &BTreeSet<Platform>> = platforms.shown(&canonical, &stored).collect();
        let document = self.stored_list(address, call).await?;
        let mut list = upstream.unwrap_or_else(|| VersionList::empty(service));
        list.versions.retain(|listed| shown.contains_key(&listed.version));
        list.unreadable.clear();
        // Entries already listed stay as upstream wrote them.
        list.add_new_versions(
            shown.iter().filter_map(|(version, stored)| entry_of(service, version, stored)).collect(),
        );
        let list = access.permitted(list)?;
        Ok(stored_answer(document, list, call))
    }

    /// The error of a list without any version for clients: one waits for platforms, all that upstream lists or larder stores
    /// are hidden by policies, or the permitted ones are missing.
    async fn empty_list_error(
        &self,
        address: &Address,
        stored: &StoredVersions,
        upstream: Option<&VersionList>,
        access: &AddressAccess,
        call: &RequestContext,
    ) -> Error {
        let (canonical, platforms) = (&call.config.canonical(address), &call.config.required_platforms);
        // Clients choose a pre-release only where they are told its version.
        let rank = |waiting: &WaitingVersion| (!waiting.version.is_pre_release(), waiting.version.clone());
        let waiting = platforms.waiting(canonical, stored).filter(|waiting| access.allows(&waiting.version));
        if let Some(newest) = waiting.max_by_key(rank) {
            self.library.record_waiting(&newest, call);
            return Error::WaitsForPlatforms(Box::new(newest));
        }
        let listed = upstream.into_iter().flat_map(|list| &list.versions).map(|listed| &listed.version);
        let known: BTreeSet<&Version> = listed.chain(stored.keys()).collect();
        match access.refusal_of_all(known) {
            Some(refused) => refused,
            None => self.library.missing_error(canonical, describe_empty_list(address, platforms), call).await,
        }
    }

    /// The stored versions of a provider that larder does not list while offline, because they wait for sealed
    /// platforms; the newest first.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn waiting_versions(
        &self,
        address: &Address,
        call: &RequestContext,
    ) -> Result<Vec<WaitingVersion>, Error> {
        let (canonical, config) = (call.config.canonical(address), Arc::clone(&call.config));
        self.library.on_disk(move |library| library.read_waiting_versions(&canonical, &config)).await
    }

    /// The stored version list, which is not revalidated while offline.
    async fn stored_list(
        &self,
        address: &Address,
        call: &RequestContext,
    ) -> Result<Option<Answer<Arc<StoredDocument>>>, Error> {
        match self.library.stored_document(&address.key(&call.config)).await? {
            Some(_) => self.documents.get(address, call).await.map(Some),
            None => Ok(None),
        }
    }

    /// The versions in the cached upstream list of a provider or a module. `None` if larder lists them all for clients.
    ///
    /// # Errors
    /// [`Error::Offline`] if no upstream list is cached.
    pub async fn upstream_versions(
        self: &Arc<Self>,
        address: &Address,
        call: &RequestContext,
    ) -> Result<Option<UpstreamVersions>, Error> {
        let connectivity = self.runtime.connectivity();
        call.access().permit_any(address)?;
        let Some(list) = self.library.stored_version_list(&call.config.canonical(address)).await? else {
            return match connectivity {
                Connectivity::Online => Ok(None),
                Connectivity::Offline => Err(self.library.offline_error(address.label()).await),
            };
        };
        let access = self.documents.access_to(address, call).await?;
        let versions = list.versions.into_iter().map(|listed| listed.version);
        let (permitted, hidden): (Vec<Version>, Vec<Version>) = versions.partition(|version| access.allows(version));
        Ok(match (connectivity, address) {
            (Connectivity::Online, _) if hidden.is_empty() => None,
            // Online, larder lists the permitted ones.
            (Connectivity::Online, _) => {
                Some(UpstreamVersions { permitted: Vec::new(), hidden, platforms: Vec::new() })
            }
            (Connectivity::Offline, Address::Provider(_)) => {
                Some(UpstreamVersions { permitted, hidden, platforms: self.runtime.sealed_platforms() })
            }
            (Connectivity::Offline, Address::Module(_)) => {
                Some(UpstreamVersions { permitted, hidden, platforms: Vec::new() })
            }
        })
    }

    /// The platforms that a version is stored for, online or offline. A version without any is recorded as missing.
    ///
    /// # Errors
    /// [`Error::Offline`] if neither a list nor any version of the provider is stored.
    pub async fn stored_platforms(
        self: &Arc<Self>,
        provider: &ProviderAddress,
        version: &Version,
        call: &RequestContext,
    ) -> Result<Answer<BTreeSet<Platform>>, Error> {
        let address = Address::from(provider);
        let seen = self.library.generation(provider);
        let mut stored = self.stored_versions(&address, call).await?;
        if !stored.contains_key(version) {
            self.library.refresh((&address).into()).await?;
            if self.library.generation(provider) != seen {
                stored = self.stored_versions(&address, call).await?;
            }
        }
        let document = self.stored_list(&address, call).await?;
        if document.is_none() && stored.is_empty() {
            return Err(self.library.missing_error(&address, address.label(), call).await);
        }
        let platforms = stored.get(version).cloned().unwrap_or_default();
        if platforms.is_empty() {
            let (of, version) = (provider.clone(), Some(version.clone()));
            self.library.record_missing(MissingPackage::Provider { of, version, platform: None }, call);
        }
        Ok(stored_answer(document, platforms, call))
    }

    /// The versions of an address, in the canonical spelling, that can be installed from the store. Concurrent callers
    /// share one lookup.
    async fn stored_versions(&self, address: &Address, call: &RequestContext) -> Result<Arc<StoredVersions>, Error> {
        call.upstream(address.host())?;
        let if_task_dies = Err(Error::Interrupted(format!("the stored versions of {address}")));
        let key = (address.clone(), self.library.generation_of_address(address), call.config.generation);
        let lookup = self.lookups.join_or_spawn(Effects::Real, &self.runtime.tasks, key, if_task_dies, || {
            let (library, address, config) = (Arc::clone(&self.library), address.clone(), Arc::clone(&call.config));
            async move {
                library.on_disk(move |library| library.read_stored_versions(&address, &config).map(Arc::new)).await
            }
        });
        lookup.await
    }

    /// The latest version that a module's list names. A pre-release only if there is no release.
    pub async fn latest_of_module(
        self: &Arc<Self>,
        module: &ModuleAddress,
        call: &RequestContext,
    ) -> Result<Answer<ModulePackage>, Error> {
        let list = self.client_versions(&module.into(), call).await?;
        let versions = list.value.list.versions.iter().map(|listed| &listed.version);
        let none = || Error::NotFound(format!("the version list of {module} names no version"));
        let version = latest(versions).cloned().ok_or_else(none)?;
        Ok(list.map(|_| ModulePackage { module: module.clone(), version }))
    }
}

/// The versions that upstream lists, of which larder lists fewer for clients: it is offline, or a policy hides some.
#[derive(Debug, Clone)]
pub struct UpstreamVersions {
    /// The versions that the policies allow, and that are not listed.
    pub permitted: Vec<Version>,
    /// The versions that the policies hide.
    pub hidden: Vec<Version>,
    /// The platforms that must be stored before larder lists a version of a provider.
    pub platforms: Vec<Platform>,
}

/// Wraps a value computed from the store. It stays fresh for a moment, since upstream cannot be asked again while
/// offline.
fn stored_answer<T>(document: Option<Answer<Arc<StoredDocument>>>, value: T, call: &RequestContext) -> Answer<T> {
    let of_store = Answer::of_store(value, call.now, call);
    match document {
        Some(Answer { outcome, fresh_until, checked, .. }) => {
            let until = if outcome == Outcome::Hit { fresh_until } else { of_store.fresh_until };
            Answer { outcome, fresh_until: until.min(of_store.fresh_until), checked, ..of_store }
        }
        None => of_store,
    }
}

/// Describes an empty list for error messages.
fn describe_empty_list(address: &Address, required: &RequiredPlatforms) -> String {
    let required = required.platforms().filter(|_| matches!(address, Address::Provider(_)));
    let named: Vec<String> = required.map(ToString::to_string).collect();
    match named.as_slice() {
        [] => format!("any version of {address}"),
        [one] => format!("any version of {address} for {one}"),
        all => format!("any version of {address} for all of {}", all.join(", ")),
    }
}
