//! The version lists of providers and modules as documents: upstream's versions, and dropped ones that are still stored.
//! A version that the list does not name is not fetched. With a registry that answers for any version, a client could
//! otherwise fill the store, and the first-seen records, which are never removed.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::{RawValue, to_raw_value};
use url::{ParseError, Url};

use crate::address::{Address, Hostname, Platform, Version};
use crate::clock::Timestamp;
use crate::config::FreshnessLifetimes;
use crate::error::Error;
use crate::mirror::documents::{DocumentFetch, DocumentKind, Documents};
use crate::mirror::freshness::Confirmation;
use crate::mirror::library::catalog::{Names, UnlistedVersion};
use crate::mirror::library::default_if_store_unavailable;
use crate::mirror::library::stored_document::{DocumentFlightResult, StoredDocument};
use crate::mirror::{Library, RequestContext, RuntimeConfig};
use crate::store::Key;
use crate::upstream::discovery::Service;
use crate::upstream::error::UpstreamError;
use crate::upstream::providers::VersionList;
use crate::upstream::request::Document;
use crate::upstream::{modules, providers};

/// The most versions of a list that one line of the log names.
const MAX_LOGGED_VERSIONS: usize = 10;
/// The most characters of such a version in the log.
const MAX_LOGGED_CHARS: usize = 96;

impl DocumentKind for Address {
    fn label(&self) -> String {
        format!("the version list of {self}")
    }

    fn host(&self) -> &Hostname {
        Self::host(self)
    }

    fn key(&self, config: &RuntimeConfig) -> Key {
        Key::version_list(config.canonical(self))
    }

    fn service(&self) -> Option<Service> {
        Some(self.into())
    }

    fn lifetime(lifetimes: &FreshnessLifetimes) -> Duration {
        lifetimes.versions
    }

    fn record_missing(&self, library: &Arc<Library>, error: &Error, call: &RequestContext) {
        library.record_if_offline(error, call, || (&call.config.canonical(self)).into());
    }

    fn url(&self, base: &Url, _: &DocumentFetch<'_>) -> Result<Url, ParseError> {
        match self {
            Self::Provider(provider) => providers::versions_url(base, provider),
            Self::Module(module) => modules::versions_url(base, module),
        }
    }

    async fn check_answer(
        &self,
        fetch: &DocumentFetch<'_>,
        answer: Document,
        url: Url,
    ) -> Result<StoredDocument, Error> {
        let document = Arc::new(StoredDocument::of(answer, url, fetch.call.now));
        let list = document.versions(self.into()).await;
        let list = list.map_err(|reason| fetch.unusable(format!("its version list: {reason}")))?;
        fetch.log_unreadable_versions(self, &list).await;
        let dropped = fetch.dropped_but_stored(self, &list).await?;
        let address = fetch.call.config.canonical(self);
        fetch
            .call
            .config
            .not_found
            .remove_if(|key| key.is_document_of(&address, |version| list.get(version).is_some()));
        Ok(StoredDocument { dropped, ..Arc::unwrap_or_clone(document) })
    }

    async fn confirm_copy(&self, fetch: &DocumentFetch<'_>, before: StoredDocument) -> Result<StoredDocument, Error> {
        let confirmed = Arc::new(StoredDocument { dropped: Bytes::new(), ..before });
        let list = confirmed.versions(self.into()).await.map_err(|reason| fetch.unusable(reason))?;
        let dropped = fetch.dropped_but_stored(self, &list).await?;
        Ok(StoredDocument { dropped, ..Arc::unwrap_or_clone(confirmed) })
    }

    async fn store_answer(&self, fetch: &DocumentFetch<'_>, document: StoredDocument) -> DocumentFlightResult {
        let stored = fetch.store(document).await?;
        if let Self::Provider(provider) = self {
            let before = fetch.before.as_deref();
            fetch.documents.look_for_late_versions(provider, &stored.value, before, fetch.call);
        }
        Ok(stored)
    }

    async fn handle_not_found(&self, fetch: &DocumentFetch<'_>, error: UpstreamError) -> Result<StoredDocument, Error> {
        if !fetch.before.as_ref().is_some_and(|before| before.metadata.gone) {
            // For the alarms only: the stored list still names them all.
            fetch.dropped_but_stored(self, &VersionList::empty(self.into())).await?;
        }
        fetch.keep_gone_copy(&error).await
    }
}

impl DocumentFetch<'_> {
    /// Logs the versions that larder cannot read, unless the list before had the same.
    async fn log_unreadable_versions(&self, address: &Address, list: &VersionList) {
        let spellings = |list: &VersionList| -> Vec<String> {
            list.unreadable.iter().map(|entry| entry.upstream_spelling.clone()).collect()
        };
        let before = match &self.before {
            Some(before) if !list.unreadable.is_empty() => before.versions(list.service).await.ok(),
            _ => None,
        };
        let unreadable = spellings(list);
        if unreadable.is_empty() || before.is_some_and(|before| spellings(&before) == unreadable) {
            return;
        }
        let (shown, count) = (unreadable.iter().take(MAX_LOGGED_VERSIONS), unreadable.len());
        let shown: Vec<String> = shown.map(|version| version.chars().take(MAX_LOGGED_CHARS).collect()).collect();
        let effect = match list.service {
            Service::Providers => "clients do not get them",
            Service::Modules => "clients warn about them",
        };
        tracing::warn!(of = %address, count, versions = shown.join(", "), "larder cannot read versions of a list; {effect}");
    }

    /// The entries of stored versions that upstream has dropped: as upstream wrote them, or rebuilt where that text is
    /// lost.
    async fn dropped_but_stored(&self, address: &Address, list: &VersionList) -> Result<Bytes, Error> {
        let Self { documents, request, call, before, .. } = self;
        let (library, address) = (&documents.library, call.config.canonical(address));
        if !request.upstream.settings.keep_gone {
            library.update_dropped_alarms(address, Vec::new(), call.now).await?;
            return Ok(Bytes::new());
        }
        let (owned_address, listed) =
            (address.clone(), list.versions.iter().map(|listed| listed.version.clone()).collect());
        let find = move |library: &Library| {
            let names = Names::Stored(&library.catalog);
            default_if_store_unavailable(library.stored_besides(names, &owned_address, &listed))
        };
        let stored = library.on_disk(find).await?;
        let earlier = match before {
            Some(before) => before.versions(list.service).await.ok(),
            None => None,
        };
        // Versions that a bundle's list did not name were not dropped by upstream.
        let upstream_list_before = before.as_ref().filter(|before| !before.metadata.from_bundle);
        let dropped_before =
            upstream_list_before.map(|before| before.dropped_versions(list.service)).unwrap_or_default();
        let dropped_before: HashSet<Version> = dropped_before.into_iter().map(|listed| listed.version).collect();
        let dropped = stored.iter().filter(|(_, stored)| !stored.is_imported).map(|(version, _)| version.clone());
        library.update_dropped_alarms(address.clone(), dropped.collect(), call.now).await?;
        let mut entries = Vec::new();
        for (version, UnlistedVersion { platforms, is_imported }) in stored {
            // A version imported without signatures need never have been listed upstream.
            if !dropped_before.contains(&version) && !is_imported {
                tracing::warn!(of = %address, %version, "upstream has dropped a stored version; it stays listed (keep_gone)");
            }
            let as_written = earlier.as_ref().and_then(|list| list.get(&version)).map(|entry| entry.raw.clone());
            entries.extend(as_written.or_else(|| entry_of(list.service, &version, &platforms)));
        }
        Ok(serde_json::to_vec(&entries).map(Bytes::from).unwrap_or_default())
    }
}

impl Library {
    /// Reads the stored version list of an address in its canonical spelling. `None` if there is none, or if it cannot
    /// be parsed: callers then use what is stored, as without a list.
    pub async fn stored_version_list(self: &Arc<Self>, address: &Address) -> Result<Option<VersionList>, Error> {
        let Some(stored) = self.stored_document(&Key::version_list(address)).await? else { return Ok(None) };
        let list = stored.value.versions(address.into()).await;
        let log = |reason: &String| tracing::error!(of = %address, reason, "a cached version list cannot be read");
        Ok(list.inspect_err(log).ok())
    }
}

/// Builds the entry of a version in a list, as a registry would write it. Those of modules have no platforms.
pub fn entry_of(service: Service, version: &Version, platforms: &BTreeSet<Platform>) -> Option<Box<RawValue>> {
    let mut entry = serde_json::json!({ "version": version });
    if service == Service::Providers {
        entry["platforms"] =
            platforms.iter().map(|Platform { os, arch }| serde_json::json!({"os": os, "arch": arch})).collect();
    }
    to_raw_value(&entry).ok()
}

/// The state of one version in upstream's version list.
#[derive(Debug)]
pub enum ListingState {
    /// Listed, with this spelling.
    Listed(String),
    /// Not listed.
    Unlisted {
        /// The time of upstream's last confirmation of the list, also of one that came without a new copy.
        list_checked: Timestamp,
        /// The confirmation that the stored copy of the list has.
        copy_confirmed: Confirmation,
    },
    /// Upstream has no list, or an invalid one (`None`), or it could not be fetched (the error).
    Unknown(Option<Error>),
}

impl ListingState {
    /// Reads the state of a version from a list, with upstream's last confirmation of it, or from its error.
    async fn of(list: Result<(Arc<StoredDocument>, Timestamp), Error>, address: &Address, version: &Version) -> Self {
        match list {
            Ok((list, list_checked)) => match list.versions(address.into()).await {
                Ok(versions) => match versions.get(version) {
                    Some(listed) => Self::Listed(listed.upstream_spelling.clone()),
                    None => Self::Unlisted { list_checked, copy_confirmed: list.confirmation() },
                },
                Err(_) => Self::Unknown(None),
            },
            Err(Error::NotFound(_)) => Self::Unknown(None),
            Err(error) => Self::Unknown(Some(error)),
        }
    }

    /// The version as upstream spells it.
    pub fn upstream_spelling(&self) -> Option<&str> {
        match self {
            Self::Listed(spelling) => Some(spelling),
            Self::Unlisted { .. } | Self::Unknown(_) => None,
        }
    }
}

impl Documents {
    /// Looks a version up in the list of its provider or module.
    pub async fn listing_state(
        self: &Arc<Self>,
        address: &Address,
        version: &Version,
        call: &RequestContext,
    ) -> ListingState {
        let list = Box::pin(self.get(address, call)).await;
        ListingState::of(list.map(|answer| (answer.value, answer.checked)), address, version).await
    }

    /// Refuses a version that upstream does not list, for an object at `key` that is not stored. A list older than the
    /// lifetime of a 404 is revalidated first, because the version may just have been published. A version whose state is
    /// unknown passes.
    ///
    /// # Errors
    /// [`Error::NotFound`], which is cached for the lifetime of a 404.
    pub async fn must_be_listed(
        self: &Arc<Self>,
        address: &Address,
        version: &Version,
        key: &Key,
        call: &RequestContext,
    ) -> Result<ListingState, Error> {
        let not_found_lifetime = call.upstream(address.host())?.not_found_lifetime();
        let mut listed = self.listing_state(address, version, call).await;
        if let ListingState::Unlisted { list_checked, copy_confirmed } = listed
            && list_checked.after(not_found_lifetime) < call.now
        {
            let list = self.fetch_now(address, Some(copy_confirmed), call).await;
            listed = ListingState::of(list.map(|list| (list.value, list.confirmed.checked)), address, version).await;
        }
        if !matches!(listed, ListingState::Unlisted { .. }) {
            return Ok(listed);
        }
        let reason = format!("the version list of {address} does not name {version}");
        Err(call.remember_absence(key.clone(), reason, not_found_lifetime))
    }
}
