//! Fetches the version lists of modules. Dropped versions that are still stored stay listed.

use crate::mirror::Documents;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::{RawValue, to_raw_value};

use crate::address::{ModuleAddress, Version};
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
use crate::upstream::modules::{ListedModuleVersion, ModuleVersionList, versions_url};
use crate::upstream::request::Fetched;

impl Documents {
    /// The version list of a module. `address` is in the client's spelling, which is also sent to upstream.
    pub async fn module_versions(
        self: &Arc<Self>,
        address: &ModuleAddress,
        call: &RequestContext,
    ) -> Result<Answer<Arc<StoredDocument>>, Error> {
        let wanted = list_request(address, call)?;
        let (stored, rule) = self.stored_or_not_found(&wanted, call).await?;
        let seen = stored.as_ref().map(|stored| stored.age);
        let fly = |fetch_reason, call: &RequestContext| {
            self.join_module_versions_fetch(&wanted, address, seen, fetch_reason, call)
        };
        let pulled = self.serve_or_fetch(&wanted.subject, &address.host, call, &rule, stored, fly).await;
        pulled
            .inspect_err(|error| self.library.record_if_offline(error, call, || (&call.config.key_of(address)).into()))
    }

    /// Fetches a version list even if the cached copy is fresh, unless it changed since `seen`.
    pub(in crate::mirror) async fn fetch_module_versions_now(
        self: &Arc<Self>,
        address: &ModuleAddress,
        seen: Option<Age>,
        call: &RequestContext,
    ) -> DocumentFlight {
        self.join_module_versions_fetch(&list_request(address, call)?, address, seen, FetchReason::Fetch, call).await
    }

    fn join_module_versions_fetch(
        self: &Arc<Self>,
        wanted: &DocumentRequest,
        address: &ModuleAddress,
        seen: Option<Age>,
        fetch_reason: FetchReason,
        call: &RequestContext,
    ) -> SharedResult<DocumentFlight> {
        let (request, address) = (wanted.clone(), address.clone());
        self.join_document_flight(wanted, seen, fetch_reason, call, |documents, before, call| async move {
            documents.fetch_module_versions(&request, &address, before, &call).await
        })
    }

    async fn fetch_module_versions(
        self: &Arc<Self>,
        wanted: &DocumentRequest,
        address: &ModuleAddress,
        before: Option<Arc<StoredDocument>>,
        call: &RequestContext,
    ) -> DocumentFlight {
        let (subject, upstream) = (&wanted.subject, &*wanted.upstream);
        let unusable = |reason: String| wanted.unusable(reason);
        let trust = DiscoveryTrust::for_what_is_held(before.as_ref());
        let (base, credential_scope) = self.resolve_service(Service::Modules, upstream, trust, call).await?;
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
        let module = call.config.key_of(address);
        let stored_document = match (fetched, before) {
            (Ok(Fetched::Unchanged), Some(before)) => {
                let of_upstream = Arc::new(StoredDocument { dropped: Bytes::new(), ..(*before).clone() });
                let list = of_upstream.module_versions().await.map_err(&unusable)?;
                let dropped = self.dropped_module_entries(upstream, &module, &list, Some(&before), call).await?;
                StoredDocument { dropped, ..before.confirmed(call.now, false) }
            }
            (Ok(Fetched::Unchanged), None) => return Err(unusable("304 to an unconditional request".into()).into()),
            (Ok(Fetched::New(document)), before) => {
                let mut stored_document = StoredDocument::of(document, url, call.now);
                let list = Arc::new(stored_document.clone()).module_versions().await;
                let list = list.map_err(|reason| unusable(format!("its version list: {reason}")))?;
                stored_document.dropped =
                    self.dropped_module_entries(upstream, &module, &list, before.as_ref(), call).await?;
                call.config.not_found.remove_if(|key| match key {
                    Key::ModuleLocation(package) => package.module == module && list.get(&package.version).is_some(),
                    _ => false,
                });
                stored_document
            }
            (Err(error), before) if matches!(error.fault, Fault::Absent(_)) => {
                if !before.as_ref().is_some_and(|before| before.metadata.gone) {
                    // Only for the alarms: the cached list already names every version.
                    let none = ModuleVersionList {
                        versions: Vec::new(),
                        module_members: Default::default(),
                        other_members: Default::default(),
                    };
                    self.dropped_module_entries(upstream, &module, &none, before.as_ref(), call).await?;
                }
                self.keep_gone_copy(wanted, before, &error, call).await?
            }
            (Err(error), _) => return Err(error.into()),
        };
        let stored = self.library.store_document(wanted.key.clone(), stored_document).await;
        self.library.bump_revision(&module);
        stored
    }

    /// The entries of stored versions that upstream has dropped: as upstream wrote them, or a new entry if that is
    /// lost.
    async fn dropped_module_entries(
        self: &Arc<Self>,
        upstream: &Upstream,
        module: &ModuleAddress,
        list: &ModuleVersionList,
        before: Option<&Arc<StoredDocument>>,
        call: &RequestContext,
    ) -> Result<Bytes, Error> {
        if !upstream.settings.keep_gone {
            self.library.update_dropped_alarms(module, Vec::new(), call.now).await?;
            return Ok(Bytes::new());
        }
        let address = module.clone();
        let named = self
            .library
            .on_disk(move |library| default_if_gone(library.store.records.module_packages_with_names(&address)));
        let stored: BTreeSet<Version> = named.await?.into_iter().map(|package| package.version).collect();
        let earlier = match before {
            Some(before) => before.module_versions().await.ok(),
            None => None,
        };
        // A bundle's list is not upstream's word that a version was dropped.
        let said_before = before.filter(|before| !before.metadata.carried);
        let dropped_before = said_before.map(|before| before.dropped_module_versions()).unwrap_or_default();
        let dropped_before: HashSet<Version> = dropped_before.into_iter().map(|listed| listed.version).collect();
        let dropped = stored.iter().filter(|version| list.get(version).is_none()).cloned().collect();
        self.library.update_dropped_alarms(module, dropped, call.now).await?;
        let mut entries = Vec::new();
        for version in stored.into_iter().filter(|version| list.get(version).is_none()) {
            if !dropped_before.contains(&version) {
                tracing::warn!(%module, %version, "upstream has dropped a stored version; it stays listed (keep_gone)");
            }
            let as_written = earlier.as_ref().and_then(|list| list.get(&version)).map(|listed| listed.raw.clone());
            entries.extend(as_written.or_else(|| entry_of_module(&version)));
        }
        Ok(serde_json::to_vec::<Vec<Box<RawValue>>>(&entries).map(Bytes::from).unwrap_or_default())
    }
}

/// The list request of a module: asked in the caller's spelling, cached under the canonical one.
fn list_request(address: &ModuleAddress, call: &RequestContext) -> Result<DocumentRequest, Error> {
    let upstream = Arc::clone(call.upstream(&address.host)?);
    let rule = upstream.rule(|fresh| fresh.versions);
    let (subject, key) = (format!("the version list of {address}"), Key::ModuleVersions(call.config.key_of(address)));
    Ok(DocumentRequest { subject, key, upstream, service: Service::Modules, rule })
}

/// A minimal list entry for a version.
pub(in crate::mirror) fn entry_of_module(version: &Version) -> Option<Box<RawValue>> {
    to_raw_value(&serde_json::json!({ "version": version })).ok()
}

impl StoredDocument {
    /// Parses the document as a module's version list, with the stored versions that upstream has dropped.
    pub async fn module_versions(self: &Arc<Self>) -> Result<ModuleVersionList, String> {
        self.parse_as(Self::as_module_versions).await
    }

    pub(in crate::mirror) fn as_module_versions(&self) -> Result<ModuleVersionList, String> {
        let mut list = ModuleVersionList::parse(&self.body)?;
        list.add_missing(self.dropped());
        Ok(list)
    }

    /// The versions that upstream has dropped from the list.
    pub(in crate::mirror) fn dropped_module_versions(&self) -> Vec<ListedModuleVersion> {
        let mut list = ModuleVersionList {
            versions: Vec::new(),
            module_members: Default::default(),
            other_members: Default::default(),
        };
        list.add_missing(self.dropped());
        list.versions
    }
}
