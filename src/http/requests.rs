//! Request metrics: outcomes, bytes, hit times, document ages, refusals. All label values are fixed texts, and every
//! series exists from the start. Recording a request costs a few additions.

use std::array;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use super::client_tokens::Strangers;
use super::failures::RecentFailures;
use super::per_core::{DurationHistogram, PerCore, SumUnit};
use super::refusals::RecentRefusals;
use crate::audit::AuditCounters;
use crate::error::Error;
use crate::jobs::{Traffic, TrafficCount, TrafficSource};
use crate::labels::labelled_enum;
use crate::mirror::{Outcome, Runtime};
use crate::protocol::RequestFailure;
use crate::protocol::route::{RouteError, RouteKind};

/// Bucket bounds of hit times: from a few microseconds to a noticeable delay.
const HIT_MICROS: [u64; 12] = [10, 25, 50, 100, 250, 500, 1_000, 5_000, 25_000, 100_000, 500_000, 2_500_000];
/// Bucket bounds of document ages: a minute, five, an hour, four, a day, two, a week, thirty days.
const AGE_SECONDS: [u64; 8] = [60, 300, 3_600, 14_400, 86_400, 172_800, 604_800, 2_592_000];

labelled_enum! {
    /// Outcome of a request.
    pub(super) RequestOutcome {
        /// Served fresh from the cache.
        Hit "hit",
        /// Fetched for this request.
        Miss "miss",
        /// Passed through without being stored.
        Passed "passed",
        /// Cached, and confirmed or replaced for this request.
        Revalidated "revalidated",
        /// Cached and stale.
        Stale "stale",
        /// Cached, and deleted upstream.
        Gone "gone",
        /// Does not exist.
        Absent "absent",
        /// Refused by a rule of larder's.
        Refused "refused",
        /// The request failed, or the body broke off.
        Error "error",
        /// The client disconnected before the answer.
        Left "left",
        /// A probe.
        NoOutcome "none",
    }
}

labelled_enum! {
    /// Reasons for refusing a request.
    pub(super) Refusal {
        /// The client is not among `clients`.
        Client "client",
        /// The token of a client is missing or wrong, or the proof in the URL of an archive.
        Token "token",
        /// Neither GET nor HEAD; on the admin listener, not the method of the path.
        Method "method",
        /// The path is invalid, or the Host is missing or ambiguous.
        Malformed "malformed",
        /// Unknown path, or a host that is not configured.
        NoRoute "no-route",
        /// CDN-Loop names this larder, or too many others.
        Loop "loop",
        /// One of larder's limits was reached.
        Busy "busy",
        /// Offline, and not stored.
        Offline "offline",
        /// On the admin listener: unknown path.
        AdminPath "admin-path",
        /// On the admin listener: sent by a web page.
        AdminPage "admin-page",
        /// On the admin listener: a foreign Host.
        AdminHost "admin-host",
        /// On the admin listener: the token is missing or wrong.
        AdminToken "admin-token",
    }
}

labelled_enum! {
    /// Reasons for closing a connection without an answer, or for not accepting it yet.
    pub(super) ConnectionRefusal {
        /// Its address has reached its limit.
        Address "address",
        /// All slots were taken for too long.
        Full "full",
        /// The addresses outside `clients` have reached their common limit.
        Outsiders "not-clients",
        /// Its address is outside `clients`, and sent no request in time.
        SlowOutsider "not-client-slow",
        /// The process has no file descriptor left. The connection waits.
        OpenFiles "open-files",
    }
}

labelled_enum! {
    /// Source of body bytes.
    pub(super) Source {
        /// The store, without asking upstream: the traffic saved.
        Store "store",
        /// Fetched or confirmed by upstream for this request.
        Upstream "upstream",
        /// Larder's own text.
        Larder "larder",
    }
}

labelled_enum! {
    /// Kind of content of a hit.
    pub(super) Content {
        /// A document.
        Document "document",
        /// An archive, its checksums or their signature.
        Archive "archive",
    }
}

impl From<Outcome> for RequestOutcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Hit => Self::Hit,
            Outcome::Miss | Outcome::Pending => Self::Miss,
            Outcome::PassedThrough => Self::Passed,
            Outcome::Revalidated => Self::Revalidated,
            Outcome::Stale => Self::Stale,
            Outcome::Gone => Self::Gone,
        }
    }
}

impl RequestOutcome {
    /// The source of the body for this outcome.
    pub(super) fn body_source(self) -> Source {
        match self {
            Self::Hit | Self::Stale | Self::Gone => Source::Store,
            Self::Miss | Self::Passed | Self::Revalidated => Source::Upstream,
            Self::Absent | Self::Refused | Self::Error | Self::Left | Self::NoOutcome => Source::Larder,
        }
    }
}

impl Refusal {
    /// The reason for a failure, if it is one of larder's rules.
    pub(super) fn of(failure: &RequestFailure) -> Option<Self> {
        Some(match failure {
            RequestFailure::NoRoute(RouteError::Malformed(_)) => Self::Malformed,
            RequestFailure::NoRoute(_) | RequestFailure::Mirror(Error::UnknownHost(_)) => Self::NoRoute,
            RequestFailure::Mirror(Error::Looped) => Self::Loop,
            RequestFailure::Mirror(Error::Busy { .. } | Error::TooManyUnattendedFills { .. }) => Self::Busy,
            RequestFailure::Mirror(Error::Offline(_) | Error::WaitsForPlatforms(_) | Error::Sealed(_)) => Self::Offline,
            RequestFailure::Mirror(_) => return None,
        })
    }
}

/// Names and values of labels.
type Labels<const N: usize> = [(&'static str, &'static str); N];
type RequestCounter = Counter<u64, PerCore>;
type Counters = Family<Labels<1>, RequestCounter>;
type HitTimes = DurationHistogram<{ HIT_MICROS.len() }>;
type Ages = DurationHistogram<{ AGE_SECONDS.len() }>;
type Histograms<M> = Family<Labels<1>, M, fn() -> M>;

/// Request counters, shared by all copies.
#[derive(Debug, Clone)]
pub struct RequestMetrics(Arc<RequestCounters>);

/// The metrics. Each series has a fixed index, so that recording needs no lookup.
#[derive(Debug)]
struct RequestCounters {
    /// Requests to the main listener so far.
    started: PerCore,
    ended: [[RequestCounter; RequestOutcome::ALL.len()]; RouteKind::ALL.len()],
    sent: [RequestCounter; Source::ALL.len()],
    refused: [RequestCounter; Refusal::ALL.len()],
    refused_connections: [RequestCounter; ConnectionRefusal::ALL.len()],
    hit: [HitTimes; Content::ALL.len()],
    ages: [Ages; RouteKind::DOCUMENTS],
    failures: RecentFailures,
    refusals: RecentRefusals,
    wrong_tokens: Strangers,
    refused_strangers: Strangers,
    audit: AuditCounters,
}

/// Metrics that are not exposed.
impl Default for RequestMetrics {
    fn default() -> Self {
        Self::new(&mut Registry::default())
    }
}

impl RequestMetrics {
    /// Creates the metrics and registers them.
    pub fn new(registry: &mut Registry) -> Self {
        let ended = Family::<Labels<2>, RequestCounter>::default();
        registry.register("larder_requests", "Requests answered, by route and outcome", ended.clone());
        let ended = |route_index: usize, outcome_index: usize| {
            let (route, outcome) = (RouteKind::ALL[route_index].label(), RequestOutcome::ALL[outcome_index].label());
            ended.get_or_create_owned(&[("route", route), ("outcome", outcome)])
        };
        let [sent, refused, refused_connections] = <[Counters; 3]>::default();
        let help = "Body bytes sent to clients, by source; `store` is upstream traffic saved";
        registry.register_with_unit("larder_sent", help, Unit::Bytes, sent.clone());
        registry.register("larder_refusals", "Requests refused, by reason", refused.clone());
        let help = "Connections closed without a response, or not accepted yet, by limit";
        registry.register("larder_connections_refused", help, refused_connections.clone());
        let hit: Histograms<HitTimes> =
            Family::new_with_constructor(|| HitTimes::new(HIT_MICROS.map(Duration::from_micros), SumUnit::Nanoseconds));
        let help = "Time from request headers to response headers, for fresh cache hits";
        registry.register_with_unit("larder_hit", help, Unit::Seconds, hit.clone());
        let ages: Histograms<Ages> =
            Family::new_with_constructor(|| Ages::new(AGE_SECONDS.map(Duration::from_secs), SumUnit::Seconds));
        let help = "Age of served documents since upstream last confirmed them";
        registry.register_with_unit("larder_document_age", help, Unit::Seconds, ages.clone());
        let audit = AuditCounters::default();
        audit.register(registry);
        let counter = |family: &Counters, name, label| family.get_or_create_owned(&[(name, label)]);
        Self(Arc::new(RequestCounters {
            started: PerCore::default(),
            ended: array::from_fn(|route_index| array::from_fn(|outcome_index| ended(route_index, outcome_index))),
            sent: Source::ALL.map(|source| counter(&sent, "source", source.label())),
            refused: Refusal::ALL.map(|reason| counter(&refused, "reason", reason.label())),
            refused_connections: ConnectionRefusal::ALL
                .map(|reason| counter(&refused_connections, "reason", reason.label())),
            hit: Content::ALL.map(|content| hit.get_or_create_owned(&[("content", content.label())])),
            ages: array::from_fn(|index| ages.get_or_create_owned(&[("route", RouteKind::ALL[index].label())])),
            failures: RecentFailures::default(),
            refusals: RecentRefusals::default(),
            wrong_tokens: Strangers::with_wrong_tokens(),
            refused_strangers: Strangers::refused(),
            audit,
        }))
    }

    /// The failures of the last day, for people.
    pub(super) fn failures(&self) -> &RecentFailures {
        &self.0.failures
    }

    /// The refusals of the last day, for people.
    pub(super) fn refusals(&self) -> &RecentRefusals {
        &self.0.refusals
    }

    /// The lines of the audit trail.
    pub fn audit(&self) -> &AuditCounters {
        &self.0.audit
    }

    /// The wrong tokens of the last minute.
    pub(super) fn wrong_tokens(&self) -> &Strangers {
        &self.0.wrong_tokens
    }

    /// The requests of the last minute that were refused before their client was known.
    pub(super) fn refused_strangers(&self) -> &Strangers {
        &self.0.refused_strangers
    }

    /// Returns the number of the next request, for the log. Numbers are unique; those of one connection grow.
    pub(super) fn next_number(&self) -> u64 {
        self.0.started.next_unique()
    }

    /// Counts a finished request and its sent body bytes.
    pub(super) fn record_end(&self, route: RouteKind, outcome: RequestOutcome, source: Source, bytes: u64) {
        let RequestCounters { ended, sent, .. } = &*self.0;
        ended[route as usize][outcome as usize].inc();
        sent[source as usize].inc_by(bytes);
    }

    /// Records the time of a hit.
    pub(super) fn record_hit(&self, content: Content, elapsed: Duration) {
        self.0.hit[content as usize].observe(elapsed);
    }

    /// Records the age of a served document.
    pub(super) fn record_document_age(&self, kind: RouteKind, age: Duration) {
        if let Some(ages) = self.0.ages.get(kind as usize) {
            ages.observe(age);
        }
    }

    /// Counts a refused request.
    pub(super) fn record_refusal(&self, reason: Refusal) {
        self.0.refused[reason as usize].inc();
    }

    /// Counts a connection closed without an answer.
    pub(super) fn record_connection_refusal(&self, reason: ConnectionRefusal) {
        self.0.refused_connections[reason as usize].inc();
    }

    /// Returns the body bytes sent since the start: in total, and from the store.
    pub fn sent_bytes(&self) -> (u64, u64) {
        let sent = self.0.sent.each_ref().map(RequestCounter::get);
        (sent.iter().sum(), sent[Source::Store as usize])
    }

    /// Returns the requests since the start by outcome, without probes and zero counts.
    pub fn by_outcome(&self) -> BTreeMap<String, u64> {
        let outcomes = RequestOutcome::ALL.into_iter().filter(|outcome| *outcome != RequestOutcome::NoOutcome);
        without_zeros(outcomes.map(|outcome| (outcome.label(), self.ended(outcome))))
    }

    /// Returns the requests since the start with this outcome.
    fn ended(&self, outcome: RequestOutcome) -> u64 {
        self.0.ended.iter().map(|counts| counts[outcome as usize].get()).sum()
    }

    /// Returns the refused requests since the start by reason, without zero counts.
    pub fn by_refusal(&self) -> BTreeMap<String, u64> {
        without_zeros(Refusal::ALL.into_iter().map(|reason| (reason.label(), self.0.refused[reason as usize].get())))
    }
}

/// The traffic of the main listener.
#[derive(Debug)]
pub struct RequestTraffic {
    /// The requests of clients.
    pub requests: RequestMetrics,
    /// The traffic with upstreams.
    pub runtime: Arc<Runtime>,
}

impl TrafficSource for RequestTraffic {
    fn totals(&self) -> Traffic {
        let counted = RequestOutcome::ALL.into_iter().filter_map(|outcome| {
            let count = match outcome {
                RequestOutcome::Hit => TrafficCount::Hit,
                RequestOutcome::Miss | RequestOutcome::Passed => TrafficCount::Miss,
                RequestOutcome::Revalidated => TrafficCount::Revalidated,
                RequestOutcome::Stale | RequestOutcome::Gone => TrafficCount::Stale,
                RequestOutcome::Absent => TrafficCount::Absent,
                RequestOutcome::Refused => TrafficCount::Refused,
                RequestOutcome::Error => TrafficCount::Failed,
                RequestOutcome::Left => TrafficCount::Left,
                RequestOutcome::NoOutcome => return None,
            };
            Some((count, self.requests.ended(outcome)))
        });
        let requests = counted.fold(Traffic::default(), |traffic, (count, number)| traffic.with(count, number));
        let (sent_bytes, saved_bytes) = self.requests.sent_bytes();
        requests
            .with(TrafficCount::SentBytes, sent_bytes)
            .with(TrafficCount::SavedBytes, saved_bytes)
            .with(TrafficCount::UpstreamBytes, self.runtime.upstream_bytes())
    }
}

fn without_zeros(counts: impl Iterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    counts.filter(|(_, count)| *count > 0).map(|(label, count)| (label.to_owned(), count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_kind_is_at_its_index() {
        assert!(RouteKind::ALL.into_iter().enumerate().all(|(index, kind)| kind as usize == index));
    }
}
