//! Serves discovery documents, and resolves the base URLs of services from them.

use crate::mirror::{Documents, Library};
use std::sync::Arc;

use bytes::Bytes;
use url::Url;

use crate::address::Hostname;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::documents::document_fetch::FlightStart;
use crate::mirror::documents::revalidate::{Aged, Revalidatable};
use crate::mirror::freshness::{Age, FreshnessRule};
use crate::mirror::library::stored_document::{DocumentFlight, DocumentMetadata, StoredDocument};
use crate::mirror::single_flight::SharedResult;
use crate::mirror::{Answer, FetchReason, Outcome, RequestContext};
use crate::store::{Key, StoreError};
use crate::upstream::backoff::Origin;
use crate::upstream::discovery::{self, Discovery, Service};
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::{Connectivity, origin};
use crate::upstream::providers::RawObject;
use crate::upstream::request::Fetched;
use crate::upstream::{CredentialScope, Upstream};

/// The discovery document that a fetch may rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::mirror) enum DiscoveryTrust {
    /// Only one that upstream has confirmed. Otherwise the stored copy is served stale, instead of asking a former
    /// location.
    InConfirmed,
    /// Any stored one: the requested object is not stored, so its fetch is always tried.
    InAny,
}

impl DiscoveryTrust {
    pub(in crate::mirror) fn for_what_is_held<T>(stored: Option<&T>) -> Self {
        if stored.is_some() { Self::InConfirmed } else { Self::InAny }
    }
}

impl StoredDocument {
    /// Returns true if no redirect led to another origin, so that the document is the upstream's own (DESIGN, promise
    /// 8).
    fn is_from_asked_origin(self: &Arc<Self>) -> bool {
        self.origins().iter().all(|origin| *origin == Origin::of(&self.metadata.url))
    }

    /// The services known to larder that the document names.
    fn services(&self) -> Vec<Service> {
        let discovery = self.discovery().ok();
        let names = |service: &Service| discovery.as_ref().is_some_and(|named| named.base(*service).is_some());
        Service::ALL.into_iter().filter(names).collect()
    }

    /// Parses the document, and adds the services that upstream has dropped from it. Their stored data is still served,
    /// so clients must find them.
    pub fn discovery_for_clients(&self) -> Result<Discovery, String> {
        let mut discovery = self.discovery()?;
        for (name, entry) in self.dropped_services() {
            discovery.entries.insert(name, entry);
        }
        Ok(discovery)
    }

    fn dropped_services(&self) -> RawObject {
        serde_json::from_slice(&self.dropped).unwrap_or_default()
    }

    /// Adds the services that `before` names or carries on and this document does not name.
    pub(in crate::mirror) fn with_services_of(self, before: &Self) -> Self {
        let mut dropped: RawObject = serde_json::from_slice(&before.dropped_in(&self)).unwrap_or_default();
        dropped.extend(self.dropped_services());
        if dropped.is_empty() {
            return self;
        }
        Self { dropped: serde_json::to_vec(&dropped).unwrap_or_default().into(), ..self }
    }

    /// The entries of services that this document names or carries on and `now` does not name.
    fn dropped_in(&self, now: &Self) -> Bytes {
        let names = now.services();
        let before = self.discovery_for_clients();
        let mut dropped = RawObject::new();
        for service in Service::ALL.into_iter().filter(|service| !names.contains(service)) {
            let entry = before.as_ref().ok().filter(|before| before.base(service).is_some());
            let entry = entry.and_then(|before| before.entries.get(service.key()));
            dropped.extend(entry.map(|entry| (service.key().to_owned(), entry.clone())));
        }
        if dropped.is_empty() { Bytes::new() } else { serde_json::to_vec(&dropped).unwrap_or_default().into() }
    }
}

impl Documents {
    /// Returns the discovery document of an upstream.
    pub async fn discovery(
        self: &Arc<Self>,
        host: &Hostname,
        call: &RequestContext,
    ) -> Result<Answer<Arc<StoredDocument>>, Error> {
        let upstream = Arc::clone(call.upstream(host)?);
        let rule = upstream.rule(|fresh| fresh.discovery);
        let url = discovery_url(&upstream)?;
        let stored = self.library.stored_document(&Key::Discovery(host.clone())).await?;
        let stored = stored.filter(|stored| {
            self.runtime.connectivity() == Connectivity::Offline || stored.value.metadata.asked == url
        });
        let seen = stored.as_ref().map(|stored| stored.age);
        let fly =
            |fetch_reason, call: &RequestContext| self.join_discovery_flight(upstream, url, seen, fetch_reason, call);
        let pulled = self.serve_or_fetch(&discovery_label(host), host, call, &rule, stored, fly).await;
        pulled.inspect_err(|error| self.library.record_text_if_offline(error, call))
    }

    /// Fetches the discovery document of an upstream again, even if the stored one is fresh.
    pub(in crate::mirror) async fn refresh_discovery(
        self: &Arc<Self>,
        host: &Hostname,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let upstream = Arc::clone(call.upstream(host)?);
        let url = discovery_url(&upstream)?;
        let seen = self.library.stored_document(&Key::Discovery(host.clone())).await?.map(|document| document.age);
        self.join_discovery_flight(upstream, url, seen, FetchReason::Fetch, call).await.map(drop)
    }

    /// Joins or starts the fetch of a discovery document. `seen` is the age of the copy that the caller read.
    fn join_discovery_flight(
        self: &Arc<Self>,
        upstream: Arc<Upstream>,
        url: Url,
        seen: Option<Age>,
        fetch_reason: FetchReason,
        call: &RequestContext,
    ) -> SharedResult<DocumentFlight> {
        let host = upstream.settings.host.clone();
        let (subject, key) = (discovery_label(&host), Key::Discovery(host.clone()));
        let rule = upstream.rule(|fresh| fresh.discovery);
        let group = (key.clone(), fetch_reason, call.flight_group());
        self.flights.join_or_spawn(&self.runtime.tasks, group, Err(Error::Interrupted(subject.clone())), || {
            let (documents, call) = (Arc::clone(self), self.runtime.flight_context(call));
            async move {
                // Ignore a document of another `url`: its services would get this upstream's credential.
                let is_of_this = |document: &StoredDocument| document.metadata.asked == url;
                match documents.reread_store(&key, seen, &rule, &call).await? {
                    FlightStart::AlreadyFetched(fetched) if is_of_this(&fetched.value) => Ok(fetched),
                    FlightStart::BuildOn(Some(before)) if is_of_this(&before) => {
                        documents.runtime.charge_revalidation(&subject, &host, fetch_reason, 1, &call)?;
                        documents.fetch_discovery(&subject, &upstream, Some(before), &call).await
                    }
                    FlightStart::AlreadyFetched(_) | FlightStart::BuildOn(_) => {
                        documents.fetch_discovery(&subject, &upstream, None, &call).await
                    }
                }
            }
        })
    }

    /// Reads the stored discovery document of an upstream.
    pub async fn held_discovery(self: &Arc<Self>, host: &Hostname) -> Result<Option<Arc<StoredDocument>>, Error> {
        Ok(self.library.stored_document(&Key::Discovery(host.clone())).await?.map(|stored| stored.value))
    }

    /// The freshness rule for something fetched from a service at `url`: stale at any age if the stored discovery
    /// document now names another location. An outdated discovery document is replaced by the next request for it.
    pub(in crate::mirror) async fn rule_for_location(
        self: &Arc<Self>,
        service: Service,
        url: &Url,
        upstream: &Upstream,
        rule: FreshnessRule,
    ) -> Result<FreshnessRule, Error> {
        let Some(discovery) = self.held_discovery(&upstream.settings.host).await? else { return Ok(rule) };
        let of_now = discovery.metadata.asked == discovery_url(upstream)?;
        let base = discovery.discovery().ok().and_then(|discovery| discovery.base(service));
        // The list of all is at the base URL itself, without its slash.
        let path = format!("{}/", url.path());
        let is_below = |base: Url| {
            let base = base.join(".");
            base.is_ok_and(|base| base.origin() == url.origin() && path.starts_with(base.path()))
        };
        Ok(if of_now && base.is_none_or(is_below) { rule } else { rule.at_new_location() })
    }
}

impl Library {
    /// Returns true if the stored discovery document was fetched from this upstream's `url`, and `coming` was not. That
    /// one would replace it, and would not be used while online.
    pub(in crate::mirror) fn keeps_own_discovery(
        &self,
        key: &Key,
        coming: &StoredDocument,
    ) -> Result<bool, StoreError> {
        let terms = self.runtime.config();
        let Key::Discovery(host) = key else { return Ok(false) };
        let url = terms.upstreams.get(host).and_then(|upstream| discovery_url(upstream).ok());
        let stored = self.store.records.get(key)?.and_then(StoredDocument::read);
        let is_of_it = |document: &StoredDocument| url.as_ref() == Some(&document.metadata.asked);
        Ok(self.runtime.connectivity() == Connectivity::Online
            && stored.as_ref().is_some_and(is_of_it)
            && !is_of_it(coming))
    }
}

impl Documents {
    /// Returns the base URL of a service of an upstream, and the credential scope for it.
    pub(in crate::mirror) async fn resolve_service(
        self: &Arc<Self>,
        service: Service,
        upstream: &Upstream,
        trust: DiscoveryTrust,
        call: &RequestContext,
    ) -> Result<(Url, CredentialScope), Error> {
        let host = &upstream.settings.host;
        let unusable = |reason: &str| UpstreamError {
            subject: format!("{} of {host}", service.key()),
            origin: origin(&upstream.settings.url),
            fault: Fault::Unusable(format!("its discovery document {reason}")),
        };
        let answer = Box::pin(self.discovery(host, call)).await?;
        if trust == DiscoveryTrust::InConfirmed && answer.outcome == Outcome::Stale {
            return Err(unusable("could not be confirmed").into());
        }
        let base_in =
            |document: &StoredDocument| document.discovery().ok().and_then(|discovery| discovery.base(service));
        let mut base = base_in(&answer.value);
        let mut named_by = Arc::clone(&answer.value);
        if base.is_none() && answer.outcome == Outcome::Hit {
            // The lack of a service is not cached, even where the document is stored for its other service: fetch it
            // again.
            let (url, seen) = (discovery_url(upstream)?, Some(answer.value.age()));
            let again = call.upstream(host).map(Arc::clone)?;
            let fetched = Box::pin(self.join_discovery_flight(again, url, seen, FetchReason::Fetch, call)).await?;
            base = base_in(&fetched.value);
            named_by = fetched.value;
        }
        let base = base.ok_or_else(|| unusable(&format!("names no usable {}", service.key())))?;
        let credential_scope = upstream.credential_scope.clone();
        let credential_scope = match &named_by.metadata {
            // A bundle named this origin, not the upstream, so it gets no credential.
            DocumentMetadata { carried: true, .. } => credential_scope,
            _ if named_by.is_from_asked_origin() => credential_scope.with_service(&base),
            _ => credential_scope.with_permitted_service(&base),
        };
        Ok((base, credential_scope))
    }

    async fn fetch_discovery(
        self: &Arc<Self>,
        subject: &str,
        upstream: &Upstream,
        before: Option<Arc<StoredDocument>>,
        call: &RequestContext,
    ) -> DocumentFlight {
        let settings = &upstream.settings;
        let unusable = |reason: String| UpstreamError {
            subject: subject.to_owned(),
            origin: origin(&settings.url),
            fault: Fault::Unusable(reason),
        };
        let url = discovery_url(upstream)?;
        let fetched = self
            .fetch_from(
                subject,
                &url,
                upstream,
                &upstream.credential_scope,
                before.as_deref(),
                discovery::MAX_DOCUMENT_BYTES,
                call,
            )
            .await;
        let had_services = before.as_ref().is_some_and(|before| !before.services().is_empty());
        let stored_document = match (fetched, before) {
            (Ok(Fetched::Unchanged), Some(before)) => before.confirmed(call.now, false),
            (Ok(Fetched::Unchanged), None) => return Err(unusable("304 to an unconditional request".into()).into()),
            (Ok(Fetched::New(document)), before) => {
                if !Discovery::accepts(document.content_type.as_deref()) {
                    let sent = document.content_type.unwrap_or_else(|| "no media type".into());
                    return Err(
                        unusable(format!("its discovery document must be application/json, and is {sent}")).into()
                    );
                }
                Discovery::parse(&document.body, document.url.clone()).map_err(unusable)?;
                if settings.credential.is_some() && !document.is_from_asked_origin() {
                    let (host, origin) = (&settings.host, origin(&document.url));
                    tracing::warn!(%host, origin, "a redirect to another origin led to the discovery document of this upstream: the services that it names are asked without the upstream's credential; to show it to them all the same, add their hosts to credentials_for, or set url to where the document is");
                }
                let url = StoredDocument::of(document, url, call.now);
                let dropped = before.filter(|_| settings.keep_gone).map(|before| before.dropped_in(&url));
                StoredDocument { dropped: dropped.unwrap_or_default(), ..url }
            }
            // A registry without discovery is not a registry. This must never look like a missing provider.
            (Err(UpstreamError { fault: Fault::Absent(status), .. }), _) => {
                return Err(unusable(format!("it has no discovery document ({status}): it is not a registry")).into());
            }
            (Err(error), _) => return Err(error.into()),
        };
        let names = stored_document.services();
        // A document that names only the other service is valid. One that names neither is not a registry's.
        if names.is_empty() && had_services {
            return Err(unusable("its discovery document names no service any more that larder asks for".into()).into());
        }
        if names.is_empty() {
            // Returned, but fetched again by the next request, like anything that is not stored.
            let stored_document = stored_document.confirmed(Timestamp(0), false);
            return Ok(Aged { age: stored_document.age(), value: Arc::new(stored_document) });
        }
        self.library.store_document(Key::Discovery(settings.host.clone()), stored_document).await
    }
}

fn discovery_url(upstream: &Upstream) -> Result<Url, Error> {
    let settings = &upstream.settings;
    settings.url.join(".well-known/terraform.json").map_err(|e| {
        let (subject, origin) = (discovery_label(&settings.host), origin(&settings.url));
        UpstreamError { subject, origin, fault: Fault::Unusable(e.to_string()) }.into()
    })
}

fn discovery_label(host: &Hostname) -> String {
    format!("the discovery document of {host}")
}
