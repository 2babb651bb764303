//! The context of one request, and the answer to it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use url::Url;

use crate::address::{Address, Hostname, Platform};
use crate::cdn_loop::CdnLoop;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::effects::Effects;
use crate::mirror::freshness::{FreshnessRule, STORED_ANSWER_LIFETIME};
use crate::mirror::last_answers::Failure;
use crate::mirror::runtime::ConfigGeneration;
use crate::mirror::{Connectivity, Runtime, RuntimeConfig};
use crate::policy::{ClientLimits, Policy};
use crate::store::Key;
use crate::upstream::backoff::{BudgetPurpose, Origin, RequestTime, RevalidationPermit};
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::request::{RequestPriority, UpstreamRequest};
use crate::upstream::{CredentialScope, Upstream};

/// The context of one request: its time, its client, its limits and its configuration.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// The time of arrival.
    pub now: Timestamp,
    /// The proxies that the request passed through (CDN-Loop).
    pub cdn_loop: CdnLoop,
    /// The time of arrival on the monotonic clock. Patience counts from here, over all waits.
    pub started: Instant,
    /// The deadline for answering a document.
    pub deadline: Instant,
    /// True if the client accepts a body of unknown length (not before HTTP/1.1).
    pub takes_unknown_length: bool,
    /// The party that waits for the answer.
    pub priority: RequestPriority,
    /// The client; `None` for a job.
    pub client: Option<ClientAddress>,
    /// The rules about the versions that may be used: those of the configuration, or those that a plan tries.
    pub(super) policy: Arc<Policy>,
    /// The limits of the client beside the rules.
    pub(super) limits: ClientLimits,
    pub(super) config: Arc<RuntimeConfig>,
    pub(super) urgency: Urgency,
    pub(super) revalidation_permit: RevalidationPermit,
}

/// The urgency of a request: who waits for its answer, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// A client's or an operator's request. It counts towards the limit of waiting requests.
    Request,
    /// A single flight that others may join.
    Flight,
    /// A step of a job. It waits until its flight ends, because no client waits. Where an upstream asked for a delay, it is
    /// tried later.
    Job,
    /// A step of a plan, which reports the present state. Like a job's step, but where an upstream asked for a delay it
    /// accepts the stored copy.
    Plan,
    /// A look at the answer that a client would get. Nothing is fetched, started, recorded or counted. Where a request
    /// would ask upstream, its last answer counts.
    DryRun,
}

/// The reason of a fetch. Fetches of different reasons never share a flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FetchReason {
    /// Nothing is stored, or an operator asks: the fetch is always tried.
    NotStored,
    /// A copy is stored: the revalidation stays within the upstream's rate budget.
    Revalidate,
    /// A URL in the stored copy has expired. A conditional request could confirm that very URL, so the whole is fetched.
    ExpiredUrl,
}

/// The part of a flight's key that separates requests of another configuration or through other proxies.
pub type ConfigAndProxyPath = (ConfigGeneration, ProxyPath);

/// The presence of named proxies (CDN-Loop) in a request. An upstream may answer 508 because of them, and a request
/// without them must not share that answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProxyPath {
    Direct,
    ViaProxies,
}

/// The cache outcome of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Stored and fresh.
    Hit,
    /// Fetched for this request.
    Miss,
    /// Being fetched for this request. The answer only names the URL it will have.
    Pending,
    /// Fetched for this request alone and not stored, because the disk cannot take it.
    PassedThrough,
    /// Stored, and confirmed or replaced by upstream for this request.
    Revalidated,
    /// Stored and stale, and upstream could not be asked.
    Stale,
    /// Stored, and deleted upstream.
    Gone,
}

impl Outcome {
    /// The outcome to report where the same answer is served again.
    pub(crate) fn when_reused(self) -> Self {
        match self {
            Self::Hit | Self::Miss | Self::Pending | Self::PassedThrough | Self::Revalidated => Self::Hit,
            Self::Stale | Self::Gone => self,
        }
    }
}

/// A value with its cache outcome and its freshness.
#[derive(Debug, Clone)]
pub struct Answer<T> {
    /// The value.
    pub value: T,
    /// The cache outcome.
    pub outcome: Outcome,
    /// The end of its freshness; in the past for a stale value.
    pub fresh_until: Timestamp,
    /// The time of upstream's last confirmation. For archives, which never age, the present.
    pub checked: Timestamp,
}

impl<T> Answer<T> {
    /// An answer of this moment, which is not reused.
    pub fn of_now(value: T, outcome: Outcome, call: &RequestContext) -> Self {
        Self { value, outcome, fresh_until: call.now, checked: call.now }
    }

    /// An answer computed from the store, because upstream cannot be asked. It stays fresh for a moment.
    pub fn of_store(value: T, checked: Timestamp, call: &RequestContext) -> Self {
        Self { value, outcome: Outcome::Stale, fresh_until: call.now.after(STORED_ANSWER_LIFETIME), checked }
    }

    /// Replaces the value.
    pub fn map<U>(self, other: impl FnOnce(T) -> U) -> Answer<U> {
        let Self { value, outcome, fresh_until, checked } = self;
        Answer { value: other(value), outcome, fresh_until, checked }
    }
}

impl RequestContext {
    pub(super) fn is_step(&self) -> bool {
        matches!(self.urgency, Urgency::Job | Urgency::Plan)
    }

    /// The context for a client with these limits.
    #[must_use]
    pub fn limited_to(self, limits: ClientLimits) -> Self {
        Self { limits, ..self }
    }

    /// The limits of the client.
    pub fn limits(&self) -> &ClientLimits {
        &self.limits
    }

    /// The canonical spelling of an address.
    pub fn canonical(&self, address: &Address) -> Address {
        self.config.canonical(address)
    }

    /// True for a step of a plan that tries other policies than those of this larder.
    pub fn tries_other_policies(&self) -> bool {
        !Arc::ptr_eq(&self.policy, &self.config.policy)
    }

    /// True for a request that looks at what is stored and changes no record of what clients requested.
    pub fn only_looks(&self) -> bool {
        matches!(self.urgency, Urgency::Plan | Urgency::DryRun)
    }

    /// The effects that this request may have.
    pub fn effects(&self) -> Effects {
        if self.urgency == Urgency::DryRun { Effects::None } else { Effects::Real }
    }

    /// The present: the time of arrival, and what has passed since.
    pub fn present(&self) -> Timestamp {
        self.now.after(self.started.elapsed())
    }

    pub(super) fn proxy_path(&self) -> ProxyPath {
        if self.cdn_loop.is_empty() { ProxyPath::Direct } else { ProxyPath::ViaProxies }
    }

    pub(super) fn config_and_proxy_path(&self) -> ConfigAndProxyPath {
        (self.config.generation, self.proxy_path())
    }

    /// Refuses a document that upstream did not have a moment ago.
    ///
    /// # Errors
    /// [`Error::NotFound`]
    pub fn refuse_if_absent(&self, key: &Key) -> Result<(), Error> {
        self.config.not_found.get(key, self.now).map_or(Ok(()), |reason| Err(Error::NotFound(reason)))
    }

    /// Remembers for a while that upstream does not have a document, and returns the error.
    pub fn remember_absence(&self, key: Key, reason: String, lifetime: Duration) -> Error {
        self.config.not_found.insert(self.effects(), key, reason.clone(), lifetime, self.now);
        Error::NotFound(reason)
    }

    /// Asks upstream about an object with `ask`, and records the answer. Without effects, `replay` answers.
    pub async fn ask<T>(
        &self,
        key: &Key,
        patience: Duration,
        // On the heap: passed by value, it would stand twice in the state of each caller.
        ask: Pin<Box<impl Future<Output = Result<T, Error>>>>,
        replay: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        match self.effects() {
            Effects::None => replay(),
            Effects::Real => {
                let answer = ask.await;
                self.record_answer(key, patience, &answer);
                answer
            }
        }
    }

    /// Records upstream's answer about an object, with the time that this request has taken. A good answer that came
    /// within `patience` needs no record.
    pub fn record_answer<T>(&self, key: &Key, patience: Duration, result: &Result<T, Error>) {
        let (answers, took, now) = (&self.config.last_answers, self.started.elapsed(), self.present());
        let failure = result.as_ref().err().map(|error| Failure { error: error.clone(), broke_off: false });
        self.effects().run(|| answers.record(key, failure, took, patience, now));
    }

    /// The platforms of the archives that are fetched to complete the hashes in an upstream's documents; none where nobody asks
    /// for that.
    pub fn complete_hashes(&self, host: &Hostname) -> &[Platform] {
        self.upstream(host).map(|upstream| upstream.settings.complete_hashes.as_slice()).unwrap_or_default()
    }

    pub(super) fn upstream(&self, host: &Hostname) -> Result<&Arc<Upstream>, Error> {
        self.config.upstream(host)
    }

    /// Permission to revalidate at these origins; `None` while the circuit breaker of one is open.
    pub fn permit_to_revalidate(&self, origins: &[Origin]) -> Option<RevalidationPermit> {
        let (backoff, permit) = (&self.config.outbound.backoff, &self.revalidation_permit);
        match self.effects() {
            Effects::None => backoff.may_revalidate(origins, permit, self.now).then(|| permit.clone()),
            Effects::Real => backoff.revalidation_permit(origins, permit, self.now),
        }
    }

    /// A request to an upstream on behalf of this one.
    pub fn upstream_request<'a>(
        &'a self,
        subject: &'a str,
        url: &'a Url,
        upstream: &'a Hostname,
        credentials: &'a CredentialScope,
        retries: usize,
    ) -> UpstreamRequest<'a> {
        let Self { cdn_loop, priority, .. } = self;
        let request_time = RequestTime::new(self.present());
        UpstreamRequest { subject, url, upstream, credentials, cdn_loop, retries, priority: *priority, request_time }
    }
}

/// The error for a request when too many others already wait.
pub fn too_many_waiting(subject: &str) -> Error {
    let reason = "the limit of requests that wait for upstreams is reached".to_owned();
    Error::Busy { subject: subject.to_owned(), reason }
}

impl Runtime {
    /// A context for work of an operator or of the schedule. Clients take precedence over it.
    pub fn job_context(&self, now: Timestamp) -> RequestContext {
        RequestContext {
            priority: RequestPriority::Job,
            ..self.request_context(now, self.config(), CdnLoop::default(), None, true)
        }
    }

    /// A context for work that a client of this user waits for, which asked for nothing itself.
    pub fn client_context(&self, now: Timestamp) -> RequestContext {
        self.request_context(now, self.config(), CdnLoop::default(), None, true)
    }

    /// A context for one step of a job or a plan, which prefers upstream's answer to the stored copy.
    pub fn step_context(&self, urgency: Urgency, now: Timestamp) -> RequestContext {
        RequestContext { urgency, ..self.job_context(now) }
    }

    /// A context for one step of a plan that tries other policies.
    pub fn trial_context(&self, policy: Arc<Policy>, now: Timestamp) -> RequestContext {
        RequestContext { policy, ..self.step_context(Urgency::Plan, now) }
    }

    /// A context for a look at the answer that a client would get now, under the configuration that would admit it.
    pub fn dry_run_context(&self, now: Timestamp, config: Arc<RuntimeConfig>) -> RequestContext {
        RequestContext { urgency: Urgency::DryRun, ..self.request_context(now, config, CdnLoop::default(), None, true) }
    }

    /// A context for a request that arrives now, under the configuration that admitted it.
    pub fn request_context(
        &self,
        now: Timestamp,
        config: Arc<RuntimeConfig>,
        cdn_loop: CdnLoop,
        client: Option<ClientAddress>,
        takes_unknown_length: bool,
    ) -> RequestContext {
        let started = Instant::now();
        RequestContext {
            now,
            cdn_loop,
            started,
            deadline: started + self.limits.answer_within,
            takes_unknown_length,
            priority: RequestPriority::Client,
            client,
            policy: Arc::clone(&config.policy),
            limits: ClientLimits::NONE,
            config,
            urgency: Urgency::Request,
            revalidation_permit: RevalidationPermit::default(),
        }
    }

    /// A context for a flight: no client waits for it directly, and it ends by its own deadline.
    pub fn flight_context(&self, call: &RequestContext) -> RequestContext {
        let started = Instant::now();
        RequestContext {
            now: call.present(),
            started,
            deadline: started + call.config.outbound.give_up_after(),
            urgency: if call.effects() == Effects::None { call.urgency } else { Urgency::Flight },
            ..call.clone()
        }
    }

    /// The number of requests that wait for upstreams.
    pub fn waiting_requests(&self) -> u64 {
        self.limits.waiting.saturating_sub(self.waiting_permits.available_permits()) as u64
    }

    /// Takes a place among the waiting requests, until it is dropped. Flights, jobs and dry runs need none.
    ///
    /// # Errors
    /// [`Error::Busy`] where all places are taken.
    pub fn take_waiting_place(
        &self,
        subject: &str,
        call: &RequestContext,
    ) -> Result<Option<OwnedSemaphorePermit>, Error> {
        match call.urgency {
            Urgency::Flight | Urgency::Job | Urgency::Plan | Urgency::DryRun => Ok(None),
            Urgency::Request => {
                let permit = Arc::clone(&self.waiting_permits).try_acquire_owned();
                permit.map(Some).map_err(|_| too_many_waiting(subject))
            }
        }
    }

    /// Charges a revalidation to the upstream's rate budget. A fetch of something that is not stored is free.
    pub fn spend_revalidation_budget(
        &self,
        request: &DocumentRequest,
        fetch_reason: FetchReason,
        requests: u32,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let (backoff, purpose) = (&call.config.outbound.backoff, BudgetPurpose::Revalidation);
        let host = &request.upstream.settings.host;
        let is_within = match (fetch_reason, call.effects()) {
            (FetchReason::NotStored | FetchReason::ExpiredUrl, _) => true,
            (FetchReason::Revalidate, Effects::None) => backoff.can_spend(host, purpose, requests, call.now),
            (FetchReason::Revalidate, Effects::Real) => backoff.spend(host, purpose, requests, call.now),
        };
        if is_within { Ok(()) } else { Err(Error::RevalidationSkipped(request.subject.clone())) }
    }

    /// Limits a flight of several requests to the deadline of one document.
    pub async fn with_deadline<T>(
        self: &Arc<Self>,
        request: &DocumentRequest,
        call: &RequestContext,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let limit = self.config().outbound.give_up_after();
        match tokio::time::timeout(limit, work).await {
            Ok(done) => done,
            Err(_) => {
                let late = Err(Error::from(UpstreamError {
                    subject: request.subject.clone(),
                    origin: request.upstream.settings.host.to_string(),
                    fault: Fault::Slow(format!("no whole answer within {} s", limit.as_secs())),
                }));
                call.record_answer(&request.key, request.rule.patience, &late);
                late
            }
        }
    }
}

/// A document that is wanted: its names, its upstream and its freshness rule.
#[derive(Debug, Clone)]
pub struct DocumentRequest {
    pub subject: String,
    pub key: Key,
    pub upstream: Arc<Upstream>,
    pub rule: FreshnessRule,
}

/// A document as an `init` would get it.
#[derive(Debug)]
pub struct WarmedDocument<T> {
    /// The document.
    pub value: T,
    /// A message for people if upstream could not be asked, with the time of the last confirmation. `None` if upstream
    /// has confirmed the document.
    pub unconfirmed: Option<String>,
}

/// A request of a job to an upstream, for messages and for the upstream's limits.
#[derive(Debug, Clone, Copy)]
pub struct JobRequest<'a> {
    pub runtime: &'a Runtime,
    pub subject: &'a str,
    pub host: &'a Hostname,
    /// The origins that it leads to, as far as they are known.
    pub origins: &'a [Origin],
    pub call: &'a RequestContext,
}

impl JobRequest<'_> {
    /// Checks that a job may fetch something that is not stored, at a cost of `requests`.
    ///
    /// # Errors
    /// [`Error::HeldBack`] where upstream asked for a delay, [`Error::RevalidationSkipped`] where its budget is spent.
    pub fn charge(self, requests: u32) -> Result<(), Error> {
        if requests == 0 || self.runtime.connectivity() == Connectivity::Offline {
            return Ok(());
        }
        let Self { subject, host, origins, call, .. } = self;
        if let Some(until) = call.config.outbound.backoff.retry_after_until(host, origins, call.now) {
            return Err(Error::HeldBack { subject: subject.to_owned(), until });
        }
        let has_room = call.config.outbound.backoff.spend(host, BudgetPurpose::Job, requests, call.now);
        if has_room { Ok(()) } else { Err(Error::RevalidationSkipped(subject.to_owned())) }
    }

    /// Returns the document of an answer, with a message if upstream did not confirm it.
    ///
    /// # Errors
    /// The error of the fetch. [`Error::HeldBack`] where upstream asked for a delay: the job tries again after it.
    pub fn document<T>(self, answer: Result<Answer<T>, Error>) -> Result<WarmedDocument<T>, Error> {
        let Self { subject, host, origins, call, .. } = self;
        let answer = answer.map_err(|error| self.or_retry_later(error))?;
        if answer.outcome != Outcome::Stale {
            return Ok(WarmedDocument { value: answer.value, unconfirmed: None });
        }
        if self.runtime.connectivity() == Connectivity::Online
            && call.urgency != Urgency::Plan
            && let Some(until) = call.config.outbound.backoff.retry_after_until(host, origins, call.now)
        {
            return Err(Error::HeldBack { subject: subject.to_owned(), until });
        }
        let since = match answer.checked {
            Timestamp(0) => String::new(),
            checked => format!(", and last confirmed it at {}", checked.date_time()),
        };
        let unconfirmed = format!("upstream could not be asked about {subject}{since}: there may be a newer one");
        Ok(WarmedDocument { value: answer.value, unconfirmed: Some(unconfirmed) })
    }

    /// Returns the error of a fetch, or the time to try again if upstream asked for a delay.
    pub fn or_retry_later(self, error: Error) -> Error {
        let Error::Upstream(failed) = &error else { return error };
        // A redirect may have led to an origin that is not in the list.
        let last = Url::parse(&failed.origin).ok().map(|url| Origin::of(&url));
        let origins: Vec<Origin> = self.origins.iter().cloned().chain(last).collect();
        match self.call.config.outbound.backoff.retry_after_until(self.host, &origins, self.call.now) {
            Some(until) => Error::HeldBack { subject: self.subject.to_owned(), until },
            None => error,
        }
    }
}

/// A client's address. Of IPv6 only the /64 network counts, because one client gets all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClientAddress(IpAddr);

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(network) => write!(f, "{network}/64"),
        }
    }
}

impl From<IpAddr> for ClientAddress {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            address @ IpAddr::V4(_) => address,
        })
    }
}
