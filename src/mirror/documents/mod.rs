//! Documents: JSON that larder fetched from upstreams and that ages. One flow serves, fetches and confirms them all. A
//! kind of document says what upstream is asked, and what becomes of its answer.

pub mod access;
pub mod dates;
pub mod discovery;
pub mod issuer_keys;
pub mod late_versions;
pub mod module_location;
pub mod pages;
pub mod revalidate;
pub mod second_opinion;
pub mod version_lists;

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use tokio::sync::Semaphore;
use url::{ParseError, Url};

use crate::address::Hostname;
use crate::clock::Timestamp;
use crate::config::FreshnessLifetimes;
use crate::error::Error;
use crate::mirror::documents::discovery::DiscoveryTrust;
use crate::mirror::documents::version_lists::ListingState;
use crate::mirror::freshness::{Confirmation, Confirmed, FreshnessDecision, FreshnessRule, decide};
use crate::mirror::library::stored_document::{DocumentFlightResult, StoredDocument};
use crate::mirror::request_context::{ConfigAndProxyPath, DocumentRequest, FetchReason};
use crate::mirror::single_flight::{SharedResult, SingleFlights};
use crate::mirror::{Answer, Connectivity, Library, Limits, RequestContext, Runtime, RuntimeConfig};
use crate::store::{Durability, Key};
use crate::upstream::discovery::Service;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::{Outbound, origin};
use crate::upstream::request::{AcceptedCoding, Document, Fetched};
use crate::upstream::{CredentialScope, Upstream};

/// The number of retries of a fetch when nothing is stored.
pub const RETRIES: usize = 2;

/// Fetches, revalidates and serves documents: discovery, version lists, module locations and API pages.
#[derive(Debug)]
pub struct Documents {
    pub(in crate::mirror) runtime: Arc<Runtime>,
    pub(in crate::mirror) library: Arc<Library>,
    /// A flight is shared by requests with the same configuration and route.
    flights: SingleFlights<(Key, FetchReason, ConfigAndProxyPath), SharedResult<DocumentFlightResult>>,
    /// The last failure to fetch the dates of versions, by their key.
    failed_dates: Cache<Key, Timestamp>,
    /// The searches for late versions in progress.
    late_searches: Arc<Semaphore>,
}

/// A kind of document. Its implementor is the name of one document: a host names a discovery document, an address a
/// version list, a module version its location, a page reference a page. Names are in the client's spelling, which is
/// also sent to upstream.
pub trait DocumentKind: Clone + Send + Sync + 'static {
    /// The document, for messages.
    fn label(&self) -> String;

    /// The upstream that has it.
    fn host(&self) -> &Hostname;

    /// Its settings: those of a registry, for all kinds but one.
    fn upstream<'a>(&'a self, call: &'a RequestContext) -> Result<&'a Arc<Upstream>, Error> {
        call.upstream(self.host())
    }

    /// The connector to it.
    fn outbound<'a>(&'a self, call: &'a RequestContext) -> &'a Outbound {
        &call.config.outbound
    }

    /// Its place in the store, under the canonical spelling.
    fn key(&self, config: &RuntimeConfig) -> Key;

    /// The service that has it; `None` for discovery, which names the services.
    fn service(&self) -> Option<Service>;

    /// The time for which it is fresh.
    fn lifetime(lifetimes: &FreshnessLifetimes) -> Duration;

    /// The rule by which this document ages now.
    fn rule(&self, rule: FreshnessRule) -> FreshnessRule {
        rule
    }

    /// The most bytes of its body.
    fn max_bytes(limits: &Limits) -> u64 {
        limits.document_bytes
    }

    /// Returns false for a stored copy that must not lead to a request: online it counts as not stored.
    fn is_usable(&self, _stored: &StoredDocument, _upstream: &Upstream) -> bool {
        true
    }

    /// Records that a client was refused because larder is offline.
    fn record_missing(&self, library: &Arc<Library>, error: &Error, call: &RequestContext) {
        library.record_text_if_offline(error, call);
    }

    /// Looks the version up in upstream's list, for a kind that is fetched for listed versions only.
    fn listing(&self, _fetch: &DocumentFetch<'_>) -> impl Future<Output = Result<Option<ListingState>, Error>> + Send {
        async { Ok(None) }
    }

    /// The URL to ask. `base` is that of its service, for discovery that of the upstream.
    fn url(&self, base: &Url, fetch: &DocumentFetch<'_>) -> Result<Url, ParseError>;

    /// Checks a new answer, and makes the document of it.
    fn check_answer(
        &self,
        fetch: &DocumentFetch<'_>,
        answer: Document,
        url: Url,
    ) -> impl Future<Output = Result<StoredDocument, Error>> + Send;

    /// Handles a 304: `before` is the stored copy, confirmed now.
    fn confirm_copy(
        &self,
        _fetch: &DocumentFetch<'_>,
        before: StoredDocument,
    ) -> impl Future<Output = Result<StoredDocument, Error>> + Send {
        async { Ok(before) }
    }

    /// Handles a 404.
    fn handle_not_found(
        &self,
        fetch: &DocumentFetch<'_>,
        error: UpstreamError,
    ) -> impl Future<Output = Result<StoredDocument, Error>> + Send {
        async move { fetch.keep_gone_copy(&error).await }
    }

    /// Stores the document that one of the three functions above made of upstream's answer.
    fn store_answer(
        &self,
        fetch: &DocumentFetch<'_>,
        document: StoredDocument,
    ) -> impl Future<Output = DocumentFlightResult> + Send {
        fetch.store(document)
    }
}

impl DocumentRequest {
    pub fn of<K: DocumentKind>(kind: &K, call: &RequestContext) -> Result<Self, Error> {
        let upstream = Arc::clone(kind.upstream(call)?);
        let rule = kind.rule(upstream.freshness_rule(K::lifetime));
        Ok(Self { subject: kind.label(), key: kind.key(&call.config), upstream, rule })
    }
}

/// One fetch of a document, inside its flight.
#[derive(Debug)]
pub struct DocumentFetch<'a> {
    pub documents: &'a Arc<Documents>,
    pub request: &'a DocumentRequest,
    pub call: &'a RequestContext,
    /// The stored copy to build on, if any.
    pub before: Option<Arc<StoredDocument>>,
    /// The state of its version in upstream's list, for a kind that looks it up.
    pub listed: Option<ListingState>,
}

impl DocumentFetch<'_> {
    /// The error for an answer that cannot be used.
    pub fn unusable(&self, reason: impl Into<String>) -> UpstreamError {
        let DocumentRequest { subject, upstream, .. } = self.request;
        UpstreamError::unusable(subject, origin(&upstream.settings.url), reason)
    }

    /// Handles an upstream 404: returns the stored copy as deleted upstream (`keep_gone`), or removes it.
    ///
    /// # Errors
    /// [`Error::NotFound`] where no copy is kept. It is cached for a while.
    pub async fn keep_gone_copy(&self, error: &UpstreamError) -> Result<StoredDocument, Error> {
        let Self { documents, request, call, .. } = self;
        match &self.before {
            Some(before) if request.upstream.settings.keep_gone => {
                if !before.metadata.gone {
                    let subject = &request.subject;
                    tracing::warn!(subject, %error, "upstream has deleted it; the stored copy stays (keep_gone)");
                }
                Ok(before.confirmed_at(call.now, true))
            }
            before => {
                let lifetime = request.rule.not_found_lifetime();
                let absence = call.remember_absence(request.key.clone(), error.to_string(), lifetime);
                if before.is_some() && documents.runtime.is_current_config(call) {
                    let key = request.key.clone();
                    documents.library.on_disk(move |library| library.remove_document(&key, Durability::Synced)).await?;
                }
                Err(absence)
            }
        }
    }

    /// The result of asking upstream, if it answers as it last did.
    fn replay(&self) -> DocumentFlightResult {
        let Self { documents, request, call, before, .. } = self;
        let DocumentRequest { subject, key, rule, .. } = request;
        let patience = if before.is_some() { rule.patience } else { documents.runtime.limits.answer_within };
        call.config.last_answers.replay(key, subject, patience, call.now)?;
        let before = before.as_ref().ok_or_else(|| Error::WouldAsk(subject.clone()))?;
        Ok(before.confirmed_at(call.now, before.metadata.gone).into())
    }

    pub async fn store(&self, document: StoredDocument) -> DocumentFlightResult {
        self.documents.library.store_document(self.request.key.clone(), document).await
    }
}

/// The most failures to fetch dates in memory.
const MAX_FAILED_DATES: u64 = 4096;

impl Documents {
    pub(in crate::mirror) fn new(runtime: Arc<Runtime>, library: Arc<Library>) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            library,
            flights: SingleFlights::default(),
            failed_dates: Cache::new(MAX_FAILED_DATES),
            late_searches: Arc::new(Semaphore::new(late_versions::MAX_SEARCHES)),
        })
    }

    /// Returns a document: the stored copy while it is fresh or upstream does not answer, else what upstream answers.
    pub async fn get<K: DocumentKind>(
        self: &Arc<Self>,
        kind: &K,
        call: &RequestContext,
    ) -> Result<Answer<Arc<StoredDocument>>, Error> {
        let mut request = DocumentRequest::of(kind, call)?;
        let stored = loop {
            let stored = self.usable_copy(kind, &request, call).await?;
            // A rule that the first answer changed meanwhile is not that of this copy.
            let rule = kind.rule(request.upstream.freshness_rule(K::lifetime));
            if std::mem::replace(&mut request.rule, rule) == rule {
                break stored;
            }
        };
        let rule = match (kind.service(), stored.as_ref().filter(|stored| !stored.confirmed.gone)) {
            (Some(service), Some(stored)) => {
                let url = &stored.value.metadata.asked;
                self.rule_if_service_moved(service, url, &request.upstream, request.rule).await?
            }
            _ => request.rule,
        };
        let seen = stored.as_ref().map(|stored| stored.confirmed);
        let start_flight =
            |fetch_reason, call: &RequestContext| self.join_flight(kind, &request, seen, fetch_reason, call);
        let served = DocumentRequest { rule, ..request.clone() };
        let answer = self.serve_or_fetch(&served, call, stored, start_flight).await;
        answer.inspect_err(|error| kind.record_missing(&self.library, error, call))
    }

    /// Fetches a document even if the stored copy is fresh, unless another flight has done so since the caller read
    /// `seen`.
    pub async fn fetch_now<K: DocumentKind>(
        self: &Arc<Self>,
        kind: &K,
        seen: Option<Confirmation>,
        call: &RequestContext,
    ) -> DocumentFlightResult {
        self.join_flight(kind, &DocumentRequest::of(kind, call)?, seen, FetchReason::NotStored, call).await
    }

    /// Reads the stored copy, of any replica.
    ///
    /// # Errors
    /// [`Error::NotFound`] where nothing is stored and a 404 is cached.
    async fn usable_copy<K: DocumentKind>(
        self: &Arc<Self>,
        kind: &K,
        request: &DocumentRequest,
        call: &RequestContext,
    ) -> Result<Option<Confirmed<Arc<StoredDocument>>>, Error> {
        let is_offline = self.runtime.connectivity() == Connectivity::Offline;
        let (kind, upstream) = (kind.clone(), Arc::clone(&request.upstream));
        let is_usable = move |stored: &StoredDocument| is_offline || kind.is_usable(stored, &upstream);
        let stored = self.library.find_document(&request.key, is_usable).await?;
        if stored.is_none() {
            call.refuse_if_absent(&request.key)?;
        }
        Ok(stored)
    }

    /// Joins or starts the flight for a document. `seen` is the confirmation of the copy that the caller read.
    fn join_flight<K: DocumentKind>(
        self: &Arc<Self>,
        kind: &K,
        request: &DocumentRequest,
        seen: Option<Confirmation>,
        fetch_reason: FetchReason,
        call: &RequestContext,
    ) -> SharedResult<DocumentFlightResult> {
        let flight = (request.key.clone(), fetch_reason, call.config_and_proxy_path());
        let if_task_dies = Err(Error::Interrupted(request.subject.clone()));
        let work = || {
            let (documents, call) = (Arc::clone(self), self.runtime.flight_context(call));
            let (kind, rule) = (kind.clone(), request.rule);
            async move {
                // Another flight may have got the first answer since, which changed the rule.
                let request = DocumentRequest::of(&kind, &call)?;
                // A copy that was too old by the rule of the caller may be fresh by this one.
                let seen = seen.filter(|_| request.rule == rule);
                let fetch = documents.fetch(&kind, &request, seen, fetch_reason, &call);
                match kind.service() {
                    Some(_) => documents.runtime.with_deadline(&request, &call, fetch).await,
                    // One request, which has a deadline of its own.
                    None => fetch.await,
                }
            }
        };
        self.flights.join_or_spawn(call.effects(), &self.runtime.tasks, flight, if_task_dies, work)
    }

    async fn fetch<K: DocumentKind>(
        self: &Arc<Self>,
        kind: &K,
        request: &DocumentRequest,
        seen: Option<Confirmation>,
        fetch_reason: FetchReason,
        call: &RequestContext,
    ) -> DocumentFlightResult {
        let DocumentRequest { upstream, rule, .. } = request;
        // Another flight, or another replica, may have stored a newer copy since the caller read the store.
        self.library.refresh(request.key.group()).await?;
        let stored = self.usable_copy(kind, request, call).await?;
        // Larder may have gone offline since the caller read the store.
        let stored = stored.filter(|stored| kind.is_usable(&stored.value, upstream));
        if let Some(stored) = stored.as_ref().filter(|stored| seen != Some(stored.confirmed))
            && decide(stored.confirmed, rule, self.runtime.connectivity(), call.now) == FreshnessDecision::Serve
        {
            return Ok(stored.clone());
        }
        if stored.is_some() {
            // A document that is not stored is always fetched.
            self.runtime.spend_revalidation_budget(request, fetch_reason, 1, call)?;
        }
        let before = stored.map(|stored| stored.value);
        let mut fetch = DocumentFetch { documents: self, request, call, before, listed: None };
        let (base, credentials) = match kind.service() {
            Some(service) => {
                let trust =
                    if fetch.before.is_some() { DiscoveryTrust::ConfirmedOnly } else { DiscoveryTrust::AnyStored };
                self.resolve_service(service, upstream, trust, call).await?
            }
            None => (upstream.settings.url.clone(), upstream.credential_scope.clone()),
        };
        fetch.listed = kind.listing(&fetch).await?;
        let url = kind.url(&base, &fetch).map_err(|e| fetch.unusable(e.to_string()))?;
        let ask = Box::pin(self.ask(kind, &fetch, url, &credentials));
        call.ask(&request.key, rule.patience, ask, || fetch.replay()).await
    }

    /// Asks upstream, and stores the document that its answer leads to.
    async fn ask<K: DocumentKind>(
        self: &Arc<Self>,
        kind: &K,
        fetch: &DocumentFetch<'_>,
        url: Url,
        credentials: &CredentialScope,
    ) -> DocumentFlightResult {
        let DocumentFetch { request, call, .. } = fetch;
        let retries = if fetch.before.is_some() { 0 } else { RETRIES };
        let ask = call.upstream_request(&request.subject, &url, kind.host(), credentials, retries);
        let validators = fetch.before.as_ref().filter(|before| before.metadata.asked == url);
        let validators = validators.map(|before| &before.metadata.validators);
        let answer = kind
            .outbound(call)
            .document(AcceptedCoding::Any, ask, validators, K::max_bytes(&self.runtime.limits))
            .await;
        let document = match (answer, &fetch.before) {
            (Ok(Fetched::New(answer)), _) => kind.check_answer(fetch, answer, url).await?,
            (Ok(Fetched::Unchanged), Some(before)) => {
                kind.confirm_copy(fetch, before.confirmed_at(call.now, false)).await?
            }
            (Ok(Fetched::Unchanged), None) => return Err(fetch.unusable("304 to an unconditional request").into()),
            (Err(error), _) if matches!(error.fault, Fault::Absent(_)) => kind.handle_not_found(fetch, error).await?,
            (Err(error), _) => return Err(error.into()),
        };
        kind.store_answer(fetch, document).await
    }
}
