//! The context of one request, and the answer to it.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::terms::Generation;
use super::unattended::ClientAddress;
use super::{Mirror, RuntimeConfig};
use crate::address::Hostname;
use crate::cdn_loop::CdnLoop;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::upstream::Upstream;
use crate::upstream::ask::RequestPriority;
use crate::upstream::backoff::RevalidationPermit;

/// The context of one request: its time, its client, its limits and its configuration.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// The time of arrival.
    pub now: Timestamp,
    /// The proxies that the request passed through (CDN-Loop).
    pub via: CdnLoop,
    /// The time of arrival on the monotonic clock. Patience counts from here, over all waits.
    pub began: Instant,
    /// The deadline for answering a document.
    pub deadline: Instant,
    /// True if the client accepts a body of unknown length (not before HTTP/1.1).
    pub takes_unknown_length: bool,
    /// The party that waits for the answer.
    pub asker: RequestPriority,
    /// The client; `None` for a job.
    pub client: Option<ClientAddress>,
    pub(super) terms: Arc<RuntimeConfig>,
    pub(super) part: CallerKind,
    pub(super) leave: RevalidationPermit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallerKind {
    /// A client's request. It counts towards the limit of waiting requests.
    Request,
    /// A single flight that others may join.
    Flight,
    /// A step of a job. It waits until its flight ends, because no client waits.
    Step,
    /// A step of a plan. Like a job's step, but where an upstream asked for a delay it accepts the stored copy.
    Look,
}

/// The urgency of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// A job has time: where an upstream asked for a delay, the step is tried later.
    None,
    /// A plan reports the present state: where an upstream asked for a delay, it uses the stored copy.
    ToTell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum FetchReason {
    /// Nothing is stored: the fetch is always tried.
    Fetch,
    /// A copy is stored: the revalidation stays within the upstream's rate budget.
    Revalidate,
}

/// The part of a flight's key that separates requests of another configuration or from another route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Company {
    generation: Generation,
    came: CameBy,
}

/// The presence of named proxies (CDN-Loop) in a request. An upstream may answer 508 because of them, and a request
/// without them must not share that answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum CameBy {
    Straight,
    ThroughProxies,
}

/// The cache outcome of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Stored and fresh.
    Hit,
    /// Fetched for this request.
    Miss,
    /// Being fetched for this request. The answer only names the URL it will have.
    Coming,
    /// Fetched for this request alone and not stored, because the disk cannot take it.
    Passed,
    /// Stored, and confirmed or replaced by upstream for this request.
    Revalidated,
    /// Stored and stale, and upstream could not be asked.
    Stale,
    /// Stored, and deleted upstream.
    Gone,
}

impl Outcome {
    /// The outcome to report where the same answer is served again.
    pub(crate) fn again(self) -> Self {
        match self {
            Self::Hit | Self::Miss | Self::Coming | Self::Passed | Self::Revalidated => Self::Hit,
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
    pub(super) fn map<U>(self, other: impl FnOnce(T) -> U) -> Answer<U> {
        let Self { value, outcome, fresh_until, checked } = self;
        Answer { value: other(value), outcome, fresh_until, checked }
    }
}

impl RequestContext {
    pub(super) fn is_a_step(&self) -> bool {
        matches!(self.part, CallerKind::Step | CallerKind::Look)
    }

    pub(super) fn only_looks(&self) -> bool {
        self.part == CallerKind::Look
    }

    pub(super) fn came(&self) -> CameBy {
        if self.via.is_empty() { CameBy::Straight } else { CameBy::ThroughProxies }
    }

    pub(super) fn company(&self) -> Company {
        Company { generation: self.terms.generation, came: self.came() }
    }

    pub(super) fn upstream(&self, host: &Hostname) -> Result<&Arc<Upstream>, Error> {
        self.terms.upstream(host)
    }
}

/// A place among the waiting requests, released on drop.
#[derive(Debug)]
pub(super) struct WaitingPlace(#[expect(dead_code, reason = "held, and never looked at")] Option<OwnedSemaphorePermit>);

impl Mirror {
    /// A context for work of an operator or of the schedule. Clients take precedence over it.
    pub fn job(&self, now: Timestamp) -> RequestContext {
        RequestContext { asker: RequestPriority::Job, ..self.call(now, self.terms(), CdnLoop::default(), None, true) }
    }

    /// A context for one step of a job, which prefers upstream's answer to the stored copy.
    pub(super) fn step(&self, now: Timestamp) -> RequestContext {
        RequestContext { part: CallerKind::Step, ..self.job(now) }
    }

    /// A context for one step of this urgency.
    pub(super) fn step_in(&self, haste: Urgency, now: Timestamp) -> RequestContext {
        let part = match haste {
            Urgency::None => CallerKind::Step,
            Urgency::ToTell => CallerKind::Look,
        };
        RequestContext { part, ..self.job(now) }
    }

    /// A context for a request that arrives now, under the configuration that admitted it.
    pub fn call(
        &self,
        now: Timestamp,
        terms: Arc<RuntimeConfig>,
        via: CdnLoop,
        client: Option<ClientAddress>,
        takes_unknown_length: bool,
    ) -> RequestContext {
        let began = Instant::now();
        let deadline = began + self.limits.answer_within;
        let (asker, part, leave) = (RequestPriority::Client, CallerKind::Request, RevalidationPermit::default());
        RequestContext { now, via, began, deadline, takes_unknown_length, asker, client, terms, part, leave }
    }

    /// A context for a flight: no client waits for it directly, and it ends by its own deadline.
    pub(super) fn inner(&self, call: &RequestContext) -> RequestContext {
        let began = Instant::now();
        let now = call.now.after(began.saturating_duration_since(call.began));
        RequestContext {
            now,
            began,
            deadline: began + call.terms.outbound.give_up_after(),
            part: CallerKind::Flight,
            ..call.clone()
        }
    }

    /// The number of requests that wait for upstreams.
    pub(super) fn waiting(&self) -> usize {
        self.limits.waiting.saturating_sub(self.places.available_permits())
    }

    /// Takes a place among the waiting requests; `None` where all are taken. Flights and jobs need none.
    pub(super) fn place(&self, call: &RequestContext) -> Option<WaitingPlace> {
        match call.part {
            CallerKind::Flight | CallerKind::Step | CallerKind::Look => Some(WaitingPlace(None)),
            CallerKind::Request => {
                Arc::clone(&self.places).try_acquire_owned().ok().map(|taken| WaitingPlace(Some(taken)))
            }
        }
    }
}
