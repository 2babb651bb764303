//! Serves discovery documents, and resolves the base URLs of services from them.

use std::sync::Arc;
use std::time::Duration;

use url::{ParseError, Url};

use crate::address::Hostname;
use crate::clock::Timestamp;
use crate::config::FreshnessLifetimes;
use crate::error::Error;
use crate::mirror::documents::{DocumentFetch, DocumentKind};
use crate::mirror::freshness::{FreshnessRule, Revalidatable};
use crate::mirror::library::stored_document::{DocumentFlightResult, DocumentMetadata, StoredDocument};
use crate::mirror::{Connectivity, Documents, Library, Limits, Outcome, RequestContext, RuntimeConfig};
use crate::store::{DocumentKey, Key, StoreError};
use crate::upstream::backoff::Origin;
use crate::upstream::discovery::{self, Discovery, Service};
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::origin;
use crate::upstream::providers::RawObject;
use crate::upstream::request::Document;
use crate::upstream::{CredentialScope, Upstream};

/// The discovery document that a fetch may follow. This is about freshness, not about signatures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscoveryTrust {
    /// Only one that upstream has confirmed. Otherwise the stored copy is served stale, instead of asking a former
    /// location.
    ConfirmedOnly,
    /// Any stored one: the requested object is not stored, so its fetch is always tried.
    AnyStored,
}

impl StoredDocument {
    /// Returns true if no redirect led to another origin, so that the document is the upstream's own (promise 8).
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
    pub fn with_services_of(self, before: &Self) -> Self {
        let (names, before) = (self.services(), before.discovery_for_clients());
        let mut dropped = RawObject::new();
        for service in Service::ALL.into_iter().filter(|service| !names.contains(service)) {
            let entry = before.as_ref().ok().filter(|before| before.base(service).is_some());
            let entry = entry.and_then(|before| before.entries.get(service.key()));
            dropped.extend(entry.map(|entry| (service.key().to_owned(), entry.clone())));
        }
        dropped.extend(self.dropped_services());
        if dropped.is_empty() { self } else { self.with_dropped(&dropped) }
    }
}

impl DocumentKind for Hostname {
    fn label(&self) -> String {
        format!("the discovery document of {self}")
    }

    fn host(&self) -> &Hostname {
        self
    }

    fn key(&self, _: &RuntimeConfig) -> Key {
        Key::discovery(self)
    }

    fn service(&self) -> Option<Service> {
        None
    }

    fn lifetime(lifetimes: &FreshnessLifetimes) -> Duration {
        lifetimes.discovery
    }

    fn max_bytes(_: &Limits) -> u64 {
        discovery::MAX_DOCUMENT_BYTES
    }

    /// A document of another `url` is ignored: its services would get this upstream's credential.
    fn is_usable(&self, stored: &StoredDocument, upstream: &Upstream) -> bool {
        discovery_url(&upstream.settings.url).is_ok_and(|url| stored.metadata.asked == url)
    }

    fn url(&self, base: &Url, _: &DocumentFetch<'_>) -> Result<Url, ParseError> {
        discovery_url(base)
    }

    async fn check_answer(
        &self,
        fetch: &DocumentFetch<'_>,
        answer: Document,
        url: Url,
    ) -> Result<StoredDocument, Error> {
        if !Discovery::accepts(answer.content_type.as_deref()) {
            let sent = answer.content_type.unwrap_or_else(|| "no media type".into());
            let reason = format!("its discovery document must be application/json, and is {sent}");
            return Err(fetch.unusable(reason).into());
        }
        Discovery::parse(&answer.body, answer.url.clone()).map_err(|reason| fetch.unusable(reason))?;
        let settings = &fetch.request.upstream.settings;
        if settings.credential.is_some() && !answer.is_from_asked_origin() {
            let (host, origin) = (self, origin(&answer.url));
            tracing::warn!(%host, origin, "a redirect to another origin led to the discovery document of this upstream: the services that it names are asked without the upstream's credential; to show it to them all the same, add their hosts to credentials_for, or set url to where the document is");
        }
        let document = StoredDocument::of(answer, url, fetch.call.now);
        Ok(match fetch.before.as_ref().filter(|_| settings.keep_gone) {
            Some(before) => document.with_services_of(before),
            None => document,
        })
    }

    /// A registry without discovery is not a registry. This must never look like a missing provider.
    async fn handle_not_found(&self, fetch: &DocumentFetch<'_>, error: UpstreamError) -> Result<StoredDocument, Error> {
        Err(match error.fault {
            Fault::Absent(status) => {
                fetch.unusable(format!("it has no discovery document ({status}): it is not a registry")).into()
            }
            _ => error.into(),
        })
    }

    /// A document that names only the other service is valid. One that names neither is not a registry's.
    async fn store_answer(&self, fetch: &DocumentFetch<'_>, document: StoredDocument) -> DocumentFlightResult {
        if !document.services().is_empty() {
            return fetch.store(document).await;
        }
        if fetch.before.as_ref().is_some_and(|before| !before.services().is_empty()) {
            return Err(fetch.unusable("its discovery document names no service any more that larder asks for").into());
        }
        // Returned, but fetched again by the next request, like anything that is not stored.
        Ok(document.confirmed_at(Timestamp(0), false).into())
    }
}

fn discovery_url(base: &Url) -> Result<Url, ParseError> {
    base.join(".well-known/terraform.json")
}

impl Documents {
    /// Reads the stored discovery document of an upstream.
    pub async fn stored_discovery(self: &Arc<Self>, host: &Hostname) -> Result<Option<Arc<StoredDocument>>, Error> {
        Ok(self.library.stored_document(&Key::discovery(host)).await?.map(|stored| stored.value))
    }

    /// The freshness rule for something fetched from a service at `url`: stale at any age if the stored discovery
    /// document now names another location. An outdated discovery document is replaced by the next request for it.
    pub async fn rule_if_service_moved(
        self: &Arc<Self>,
        service: Service,
        url: &Url,
        upstream: &Upstream,
        rule: FreshnessRule,
    ) -> Result<FreshnessRule, Error> {
        let Some(discovery) = self.stored_discovery(&upstream.settings.host).await? else { return Ok(rule) };
        let is_current = upstream.settings.host.is_usable(&discovery, upstream);
        let base = discovery.discovery().ok().and_then(|discovery| discovery.base(service));
        // The list of all is at the base URL itself, without its slash.
        let path = format!("{}/", url.path());
        let is_below = |base: Url| {
            let base = base.join(".");
            base.is_ok_and(|base| base.origin() == url.origin() && path.starts_with(base.path()))
        };
        Ok(if is_current && base.is_none_or(is_below) { rule } else { rule.at_new_location() })
    }
}

impl Library {
    /// Returns true if the stored discovery document was fetched from this upstream's `url`, and `coming` was not. That
    /// one would replace it, and would not be used while online.
    pub fn keeps_own_discovery(&self, key: &Key, coming: &StoredDocument) -> Result<bool, StoreError> {
        let config = self.runtime.config();
        let Key::Document(DocumentKey::Discovery(host)) = key else { return Ok(false) };
        let upstream = config.upstreams.get(host);
        let is_of_it = |document: &StoredDocument| upstream.is_some_and(|upstream| host.is_usable(document, upstream));
        let stored = self.read_document(key)?;
        Ok(self.runtime.connectivity() == Connectivity::Online
            && stored.as_ref().is_some_and(is_of_it)
            && !is_of_it(coming))
    }
}

impl Documents {
    /// Returns the credential scope for files that a service of an upstream names. The service is looked up again,
    /// because it may have moved since it named them.
    pub async fn credentials_for(
        self: &Arc<Self>,
        service: Service,
        host: &Hostname,
        call: &RequestContext,
    ) -> CredentialScope {
        let Some(upstream) = call.config.upstreams.get(host) else { return CredentialScope::default() };
        let call = self.runtime.flight_context(call);
        let resolved = self.resolve_service(service, upstream, DiscoveryTrust::AnyStored, &call).await;
        resolved.map_or_else(|_| upstream.credential_scope.clone(), |(_, credential_scope)| credential_scope)
    }

    /// Returns the base URL of a service of an upstream, and the credential scope for it.
    pub async fn resolve_service(
        self: &Arc<Self>,
        service: Service,
        upstream: &Upstream,
        trust: DiscoveryTrust,
        call: &RequestContext,
    ) -> Result<(Url, CredentialScope), Error> {
        let host = &upstream.settings.host;
        let unusable = |reason: &str| {
            let subject = format!("{} of {host}", service.key());
            UpstreamError::unusable(subject, origin(&upstream.settings.url), format!("its discovery document {reason}"))
        };
        let answer = Box::pin(self.get(host, call)).await?;
        if trust == DiscoveryTrust::ConfirmedOnly && answer.outcome == Outcome::Stale {
            return Err(unusable("could not be confirmed").into());
        }
        let base_in =
            |document: &StoredDocument| document.discovery().ok().and_then(|discovery| discovery.base(service));
        let mut document = answer.value;
        if base_in(&document).is_none() && answer.outcome == Outcome::Hit {
            // The lack of a service is not cached, even where the document is stored for its other service: fetch it
            // again.
            document = Box::pin(self.fetch_now(host, Some(document.confirmation()), call)).await?.value;
        }
        let base = base_in(&document).ok_or_else(|| unusable(&format!("names no usable {}", service.key())))?;
        let credential_scope = upstream.credential_scope.clone();
        let credential_scope = match &document.metadata {
            // A bundle named this origin, not the upstream, so it gets no credential.
            DocumentMetadata { from_bundle: true, .. } => credential_scope,
            // Read offline, and of another `url`: its services are not those of this upstream.
            _ if !host.is_usable(&document, upstream) => credential_scope,
            _ if document.is_from_asked_origin() => credential_scope.with_service(&base),
            _ => credential_scope.with_permitted_service(&base),
        };
        Ok((base, credential_scope))
    }
}
