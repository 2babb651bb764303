//! Serves version lists: upstream's versions, and dropped ones that are still stored. Records when each version was
//! first listed.

use crate::mirror::Documents;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::address::{Platform, ProviderAddress, Version, Versions};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::documents::discovery::DiscoveryTrust;
use crate::mirror::documents::document_fetch::DocumentRequest;
use crate::mirror::freshness::Age;
use crate::mirror::library::stored_document::{DocumentFlight, StoredDocument};
use crate::mirror::single_flight::SharedResult;
use crate::mirror::{Answer, FetchReason, RequestContext, default_if_gone};
use crate::store::Key;
use crate::upstream::Upstream;
use crate::upstream::discovery::Service;
use crate::upstream::error::Fault;
use crate::upstream::providers::{ListedVersion, VersionList, versions_url};
use crate::upstream::request::Fetched;

impl Documents {
    /// Returns the version list of a provider.
    pub async fn provider_versions(
        self: &Arc<Self>,
        address: &ProviderAddress,
        call: &RequestContext,
    ) -> Result<Answer<Arc<StoredDocument>>, Error> {
        let wanted = version_list_request(address, call)?;
        let (stored, rule) = self.stored_or_not_found(&wanted, call).await?;
        let seen = stored.as_ref().map(|stored| stored.age);
        let fly =
            |fetch_reason, call: &RequestContext| self.fly_for_versions(&wanted, address, seen, fetch_reason, call);
        let pulled = self.serve_or_fetch(&wanted.subject, &address.host, call, &rule, stored, fly).await;
        pulled.inspect_err(|error| self.library.record_if_offline(error, call, || address.into()))
    }

    /// Fetches a version list even if the stored one is fresh, unless another flight has done so since the caller read
    /// `seen`.
    pub(in crate::mirror) async fn ask_versions_again(
        self: &Arc<Self>,
        address: &ProviderAddress,
        seen: Option<Age>,
        call: &RequestContext,
    ) -> DocumentFlight {
        self.fly_for_versions(&version_list_request(address, call)?, address, seen, FetchReason::Fetch, call).await
    }

    fn fly_for_versions(
        self: &Arc<Self>,
        wanted: &DocumentRequest,
        address: &ProviderAddress,
        seen: Option<Age>,
        fetch_reason: FetchReason,
        call: &RequestContext,
    ) -> SharedResult<DocumentFlight> {
        let (provider, address) = (wanted.clone(), address.clone());
        self.join_document_flight(wanted, seen, fetch_reason, call, |documents, before, call| async move {
            documents.fetch_versions(&provider, &address, before, &call).await
        })
    }

    async fn fetch_versions(
        self: &Arc<Self>,
        wanted: &DocumentRequest,
        address: &ProviderAddress,
        before: Option<Arc<StoredDocument>>,
        call: &RequestContext,
    ) -> DocumentFlight {
        let (subject, upstream) = (&wanted.subject, &*wanted.upstream);
        let unusable = |reason: String| wanted.unusable(reason);
        let (base, credential_scope) = self
            .resolve_service(Service::Providers, upstream, DiscoveryTrust::for_what_is_held(before.as_ref()), call)
            .await?;
        let url = versions_url(&base, address).map_err(|e| unusable(e.to_string()))?;
        let fetched = self
            .fetch_from(
                subject,
                &url,
                upstream,
                &credential_scope,
                before.as_deref(),
                self.runtime.limits.document_bytes,
                call,
            )
            .await;
        let stored_document = match (fetched, before) {
            (Ok(Fetched::Unchanged), Some(before)) => {
                let of_upstream = Arc::new(StoredDocument { dropped: Bytes::new(), ..(*before).clone() });
                let list = of_upstream.versions().await.map_err(&unusable)?;
                let dropped = self.dropped_but_stored(upstream, address, &list, Some(&before), call.now).await?;
                StoredDocument { dropped, ..before.confirmed(call.now, false) }
            }
            (Ok(Fetched::Unchanged), None) => return Err(unusable("304 to an unconditional request".into()).into()),
            (Ok(Fetched::New(document)), before) => {
                let mut stored_document = StoredDocument::of(document, url, call.now);
                let list = Arc::new(stored_document.clone()).versions().await;
                let list = list.map_err(|reason| unusable(format!("its version list: {reason}")))?;
                stored_document.dropped =
                    self.dropped_but_stored(upstream, address, &list, before.as_ref(), call.now).await?;
                self.record_new_versions(address, &list, call).await?;
                stored_document
            }
            (Err(error), before) if matches!(error.fault, Fault::Absent(_)) => {
                if !before.as_ref().is_some_and(|before| before.metadata.gone) {
                    // For the alarms only: the stored list still names them all.
                    let none = VersionList { versions: Vec::new(), other_members: Default::default() };
                    self.dropped_but_stored(upstream, address, &none, before.as_ref(), call.now).await?;
                }
                self.keep_gone_copy(wanted, before, &error, call).await?
            }
            (Err(error), _) => return Err(error.into()),
        };
        let landed = self.library.store_document(wanted.key.clone(), stored_document).await;
        self.library.bump_revision(address);
        landed
    }

    /// The entries of stored versions that upstream has dropped: as upstream wrote them, or rebuilt where that text is
    /// lost.
    pub(in crate::mirror) async fn dropped_but_stored(
        self: &Arc<Self>,
        upstream: &Upstream,
        address: &ProviderAddress,
        list: &VersionList,
        before: Option<&Arc<StoredDocument>>,
        now: Timestamp,
    ) -> Result<Bytes, Error> {
        if !upstream.settings.keep_gone {
            self.library.update_dropped_alarms(address, Vec::new(), now).await?;
            return Ok(Bytes::new());
        }
        let provider = address.clone();
        let named = self
            .library
            .on_disk(move |library| default_if_gone(library.store.records.packages_with_names(&provider)))
            .await?;
        let mut stored: BTreeMap<Version, Vec<Platform>> = BTreeMap::new();
        let mut imported = HashSet::new();
        for package in named.into_iter().filter(|package| list.get(&package.version).is_none()) {
            if self.library.was_imported(&package).await? {
                imported.insert(package.version.clone());
            }
            stored.entry(package.version).or_default().push(package.platform);
        }
        let earlier = match before {
            Some(before) => before.versions().await.ok(),
            None => None,
        };
        // Versions that a bundle's list did not name were not dropped by upstream.
        let said_before = before.filter(|before| !before.metadata.carried);
        let dropped_before = said_before.map(|before| before.dropped_versions()).unwrap_or_default();
        let dropped_before: HashSet<Version> = dropped_before.into_iter().map(|listed| listed.version).collect();
        let dropped: Vec<Version> = stored.keys().filter(|version| !imported.contains(version)).cloned().collect();
        self.library.update_dropped_alarms(address, dropped, now).await?;
        let mut entries = Vec::new();
        for (version, platforms) in stored {
            // A version imported without signatures need never have been listed upstream.
            if !dropped_before.contains(&version) && !imported.contains(&version) {
                tracing::warn!(provider = %address, %version, "upstream has dropped a stored version; it stays listed (keep_gone)");
            }
            let as_written = earlier.as_ref().and_then(|list| list.get(&version)).map(|entry| entry.raw.clone());
            entries.extend(as_written.or_else(|| entry_of(&version, platforms.iter())));
        }
        Ok(serde_json::to_vec(&entries).map(Bytes::from).unwrap_or_default())
    }

    /// Records when versions were first listed, and forgets cached 404s about them.
    async fn record_new_versions(
        self: &Arc<Self>,
        address: &ProviderAddress,
        list: &VersionList,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let versions: Vec<Version> = list.versions.iter().map(|listed| listed.version.clone()).collect();
        let (provider, now) = (address.clone(), call.now);
        let noted =
            self.library.on_disk(move |library| library.histories.record_listed(&provider, &versions, now)).await;
        if let Err(error) = noted {
            tracing::error!(provider = %address, %error, "could not record when versions were first listed");
        }
        call.config.not_found.remove_if(|key| match key {
            Key::ProofSet(package) => package.provider == *address && list.get(&package.version).is_some(),
            _ => false,
        });
        Ok(())
    }
}

fn version_list_request(address: &ProviderAddress, call: &RequestContext) -> Result<DocumentRequest, Error> {
    let upstream = Arc::clone(call.upstream(&address.host)?);
    let rule = upstream.rule(|fresh| fresh.versions);
    let (subject, key) = (format!("the version list of {address}"), Key::ProviderVersions(address.clone()));
    Ok(DocumentRequest { subject, key, upstream, service: Service::Providers, rule })
}

/// Builds the entry of a version in a list, as a registry would write it.
pub(in crate::mirror) fn entry_of<'a>(
    version: &Version,
    platforms: impl Iterator<Item = &'a Platform>,
) -> Option<Box<RawValue>> {
    let platforms: Vec<_> =
        platforms.map(|Platform { os, arch }| serde_json::json!({"os": os, "arch": arch})).collect();
    to_raw_value(&serde_json::json!({"version": version, "platforms": platforms})).ok()
}

impl StoredDocument {
    /// Removes these versions, which upstream has dropped, from the list.
    pub(in crate::mirror) fn without_dropped(&self, versions: &Versions) -> Self {
        #[derive(Deserialize)]
        struct OfflineEntry {
            version: String,
        }
        let is_meant = |raw: &RawValue| {
            let entry = serde_json::from_str::<OfflineEntry>(raw.get()).ok();
            entry.and_then(|entry| Version::parse_lenient(&entry.version).ok()).is_some_and(|it| versions.include(&it))
        };
        let left: Vec<Box<RawValue>> = self.dropped().into_iter().filter(|raw| !is_meant(raw)).collect();
        Self { dropped: serde_json::to_vec(&left).map(Bytes::from).unwrap_or_default(), ..self.clone() }
    }

    /// The versions that upstream has dropped from it.
    pub(in crate::mirror) fn dropped_versions(&self) -> Vec<ListedVersion> {
        let mut list = VersionList { versions: Vec::new(), other_members: Default::default() };
        list.add_missing(self.dropped());
        list.versions
    }
}
