//! One request on its way: what the rest of the way needs to know of it, and what comes back.

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
use crate::upstream::ask::Asker;
use crate::upstream::restraint::RevalidationPermit;

/// What the rest of a request's way needs to know of it.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// When it came.
    pub now: Timestamp,
    /// Through which proxies it came.
    pub via: CdnLoop,
    /// When that was on the clock that waits go by: patience counts from here, over all that is waited for.
    pub began: Instant,
    /// By when a document must be answered.
    pub deadline: Instant,
    /// Whether the client can take a body whose length is not known (not so before HTTP/1.1).
    pub takes_unknown_length: bool,
    /// Who waits for the answer.
    pub asker: Asker,
    /// The client that asks; none for a job.
    pub client: Option<ClientAddress>,
    pub(super) terms: Arc<RuntimeConfig>,
    pub(super) part: CallerKind,
    pub(super) leave: RevalidationPermit,
}

/// What a call is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallerKind {
    /// A request: one of those that wait.
    Request,
    /// A flight that others wait for.
    Flight,
    /// A step of a job: it waits for as long as the flight that it joins, because nobody waits for it.
    Step,
    /// A step of a plan: the same, but what an upstream that asked for time said before is good enough for it.
    Look,
}

/// Whether somebody waits to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// A job has time: where upstream asked to be left alone, it is asked later.
    None,
    /// A plan is to tell what is so now: where upstream asked to be left alone, by what is held.
    ToTell,
}

/// What a flight is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum FetchReason {
    /// Something that is not held: it is always tried.
    Fetch,
    /// Something that is held: it is asked about within the upstream's budget.
    Revalidate,
}

/// Who shares a flight, and how it ends: calls on the same terms that came alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Company {
    generation: Generation,
    came: CameBy,
}

/// Whether a request came through proxies that named themselves (CDN-Loop). An upstream may answer 508 to what such a
/// list says, and nobody shares that who sent none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum CameBy {
    Straight,
    ThroughProxies,
}

/// How an answer came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// From what is held, and fresh.
    Hit,
    /// Fetched for this request.
    Miss,
    /// Fetched for this request, and not here yet: only where it will be is told.
    Coming,
    /// Fetched for this request alone, and not kept: the disk would not take it.
    Passed,
    /// Held, and confirmed or replaced by upstream for this request.
    Revalidated,
    /// Held, past its time, and upstream could not say otherwise.
    Stale,
    /// Held, and upstream has deleted it.
    Gone,
}

impl Outcome {
    /// How an answer that came about so came about where it is given out again.
    pub(crate) fn again(self) -> Self {
        match self {
            Self::Hit | Self::Miss | Self::Coming | Self::Passed | Self::Revalidated => Self::Hit,
            Self::Stale | Self::Gone => self,
        }
    }
}

/// A value, how it came about, and until when it may be given out again unasked.
#[derive(Debug, Clone)]
pub struct Answer<T> {
    /// The value.
    pub value: T,
    /// How it came about.
    pub outcome: Outcome,
    /// Until when it is fresh; already past for what is stale.
    pub fresh_until: Timestamp,
    /// When upstream last confirmed it. Archives never age: of them, now.
    pub checked: Timestamp,
}

impl<T> Answer<T> {
    /// The same about another value.
    pub(super) fn map<U>(self, other: impl FnOnce(T) -> U) -> Answer<U> {
        let Self { value, outcome, fresh_until, checked } = self;
        Answer { value: other(value), outcome, fresh_until, checked }
    }
}

impl RequestContext {
    /// Whether it is a step of a job or of a plan.
    pub(super) fn is_a_step(&self) -> bool {
        matches!(self.part, CallerKind::Step | CallerKind::Look)
    }

    /// Whether it is to tell what is so, and nothing else.
    pub(super) fn only_looks(&self) -> bool {
        self.part == CallerKind::Look
    }

    /// Whether it came through proxies that named themselves.
    pub(super) fn came(&self) -> CameBy {
        if self.via.names_nobody() { CameBy::Straight } else { CameBy::ThroughProxies }
    }

    /// Who may share the flights of this call.
    pub(super) fn company(&self) -> Company {
        Company { generation: self.terms.generation, came: self.came() }
    }

    /// The upstream that `host` names, on the terms of this call.
    pub(super) fn upstream(&self, host: &Hostname) -> Result<&Arc<Upstream>, Error> {
        self.terms.upstream(host)
    }
}

/// A place among those that wait, for as long as this lives.
#[derive(Debug)]
pub(super) struct WaitingPlace(#[expect(dead_code, reason = "held, and never looked at")] Option<OwnedSemaphorePermit>);

impl Mirror {
    /// A call that nobody waits for at a client's side: what an operator or the schedule asks for. Clients go first.
    pub fn job(&self, now: Timestamp) -> RequestContext {
        RequestContext { asker: Asker::Job, ..self.call(now, self.terms(), CdnLoop::default(), None, true) }
    }

    /// A call for one step of a job, which would rather know what upstream has than what is held.
    pub(super) fn step(&self, now: Timestamp) -> RequestContext {
        RequestContext { part: CallerKind::Step, ..self.job(now) }
    }

    /// The same for somebody who has this much time.
    pub(super) fn step_in(&self, haste: Urgency, now: Timestamp) -> RequestContext {
        let part = match haste {
            Urgency::None => CallerKind::Step,
            Urgency::ToTell => CallerKind::Look,
        };
        RequestContext { part, ..self.job(now) }
    }

    /// A call that comes now, on the terms of the configuration that let it in.
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
        let (asker, part, leave) = (Asker::Client, CallerKind::Request, RevalidationPermit::default());
        RequestContext { now, via, began, deadline, takes_unknown_length, asker, client, terms, part, leave }
    }

    /// A call that a flight makes for itself: nobody waits for it, and it ends by its own limits.
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

    /// How many requests wait for upstreams now.
    pub(super) fn waiting(&self) -> usize {
        self.limits.waiting.saturating_sub(self.places.available_permits())
    }

    /// A place among those that wait for upstreams; a flight needs none, and neither does a job.
    pub(super) fn place(&self, call: &RequestContext) -> Option<WaitingPlace> {
        match call.part {
            CallerKind::Flight | CallerKind::Step | CallerKind::Look => Some(WaitingPlace(None)),
            CallerKind::Request => {
                Arc::clone(&self.places).try_acquire_owned().ok().map(|taken| WaitingPlace(Some(taken)))
            }
        }
    }
}
