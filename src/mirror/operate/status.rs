//! The status report of a mirror, and its gauges, read when they are scraped.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use serde::{Deserialize, Serialize};

use crate::address::{Hostname, PackageRef};
use crate::clock::{Clock, Timestamp};
use crate::digest::Digest;
use crate::mirror::counters::ObjectKind;
use crate::mirror::library::owed::OwedAmount;
use crate::mirror::{
    Alarm, AlarmKind, Connectivity, Library, MissingRequest, Operations, Runtime, StoreFailure, StoreState, Usage,
};
use crate::policy::Approval;
use crate::store::{DiskSpace, FleetAlarm, FleetAlarmKind, Totals};
use crate::upstream::UpstreamTraffic;
use crate::upstream::backoff::Origin;

/// The status of a mirror.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Status {
    /// The version of larder.
    pub version: String,
    /// The store folder.
    pub store: String,
    /// The state of the store.
    pub store_state: StoreState,
    /// The cause why the last archive, or else the last document, could not be stored; `None` if both were.
    pub trouble: Option<StoreFailure>,
    /// The size limit, in bytes.
    pub max_size_bytes: u64,
    /// The free bytes of its disk, where known.
    pub free_bytes: Option<u64>,
    /// The size of its index on disk, in bytes.
    pub index_bytes: u64,
    /// The number of stored archives.
    pub archives: u64,
    /// Their size, in bytes.
    pub archive_bytes: u64,
    /// The number of stored documents and proof sets.
    pub documents: u64,
    /// Their size, in bytes.
    pub document_bytes: u64,
    /// Archives that are on this machine, and that the bucket of the fleet does not take. They are sent later.
    #[serde(default)]
    pub owed: OwedAmount,
    /// The number of first-seen records. They are never evicted.
    #[serde(default)]
    pub first_seen_records: u64,
    /// Their size, in bytes.
    #[serde(default)]
    pub first_seen_bytes: u64,
    /// Packages that were imported without signatures and that nothing else verifies; at most a thousand.
    #[serde(default)]
    pub imported: Vec<PackageRef>,
    /// The bundle that was imported last, if any.
    #[serde(default)]
    pub last_bundle: Option<LastBundle>,
    /// The use of the store since it was made.
    #[serde(default)]
    pub usage: Usage,
    /// True while larder is offline: no outbound traffic.
    pub offline: bool,
    /// The configured upstreams.
    pub upstreams: Vec<String>,
    /// The objects requested while offline and not stored, also before the start: at most a thousand packages, and a
    /// hundred others since the start.
    pub missing: Vec<MissingRequest>,
    /// The unresolved alarms; at most a thousand of each kind about each address.
    pub alarms: Vec<Alarm>,
    /// The alarms of the fleet: those of the last day, and those that last. None for a larder that runs alone.
    #[serde(default)]
    pub fleet_alarms: Vec<FleetAlarm>,
    /// The approvals that count now; at most a thousand.
    #[serde(default)]
    pub approvals: Vec<Approval>,
}

/// A bundle that was imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LastBundle {
    /// The SHA-256 of its manifest.
    pub manifest: Digest,
    /// The time of its creation.
    pub created: Timestamp,
    /// The time when its import was complete.
    pub applied: Timestamp,
}

/// The state of an upstream: totals since the start, and present backoff.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UpstreamState {
    /// Its host.
    pub host: String,
    /// Requests sent.
    pub requests: u64,
    /// Requests without an answer, or with 429 or 5xx.
    pub failed: u64,
    /// Body bytes received.
    pub bytes: u64,
    /// Requests that larder refused to send.
    pub refused: u64,
    /// The origins in backoff.
    pub left_alone: Vec<OriginBackoff>,
}

/// An origin in backoff after failures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OriginBackoff {
    /// `https://HOST`
    pub origin: String,
    /// The remaining time, in seconds.
    pub seconds: u64,
}

impl OriginBackoff {
    /// The backoff of an origin that ends at this time.
    pub(super) fn until(end: Timestamp, origin: &Origin, now: Timestamp) -> Self {
        Self { origin: origin.to_string(), seconds: end.since(now).as_secs() }
    }
}

impl Runtime {
    /// The configured upstreams' hosts, sorted.
    pub fn upstream_hosts(&self) -> Vec<Hostname> {
        self.config.load().upstreams.hosts().into_iter().cloned().collect()
    }

    /// Body bytes received since the start, also from upstreams that are no longer configured.
    pub fn upstream_bytes(&self) -> u64 {
        self.counters.traffic.all_bytes()
    }

    /// The number of downloads in progress.
    pub fn fills_under_way(&self) -> i64 {
        self.counters.fills.get()
    }

    /// The state of each upstream.
    pub fn upstream_states(&self, now: Timestamp) -> Vec<UpstreamState> {
        let left_alone = self.config.load().outbound.backoff.open_breakers(now);
        let state = |host: Hostname| {
            let UpstreamTraffic { requests, failed, bytes, refused } = self.counters.traffic.of(&host);
            let of_it = left_alone.iter().filter(|(upstream, ..)| *upstream == host);
            let mut left_alone: Vec<_> =
                of_it.map(|(_, origin, until)| OriginBackoff::until(*until, origin, now)).collect();
            left_alone.sort_by(|one, other| one.origin.cmp(&other.origin));
            UpstreamState { host: host.to_string(), requests, failed, bytes, refused, left_alone }
        };
        self.upstream_hosts().into_iter().map(state).collect()
    }
}

fn last_bundle(library: &Library) -> Option<LastBundle> {
    let receipt = library.last_receipt().unwrap_or_else(|error| {
        tracing::warn!(%error, "the receipt of the last bundle cannot be read");
        None
    });
    serde_json::from_slice(&receipt?).ok()
}

impl Operations {
    /// The status report. Reads the disk.
    pub fn status(&self, now: Timestamp) -> Status {
        let Totals { archives, archive_bytes, documents, document_bytes, first_seen, first_seen_bytes, .. } =
            self.library.totals();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            store: self.library.folder().display().to_string(),
            store_state: self.library.store_state(),
            trouble: self.library.last_store_failure(),
            max_size_bytes: self.library.refresh_size_limit(),
            free_bytes: self.library.disk_space().ok().map(|space| space.free_bytes),
            index_bytes: self.library.index_bytes(),
            archives,
            archive_bytes,
            documents,
            document_bytes,
            owed: self.library.owed_totals(),
            first_seen_records: first_seen,
            first_seen_bytes,
            imported: self.library.catalog.imported(),
            last_bundle: last_bundle(&self.library),
            usage: self.library.usage(),
            offline: self.runtime.connectivity() == Connectivity::Offline,
            upstreams: self.runtime.upstream_hosts().iter().map(ToString::to_string).collect(),
            missing: self.library.missing_in_words(),
            alarms: self.with_held_successors(self.library.alarms(), now),
            fleet_alarms: self.library.fleet_alarms(now),
            approvals: self.library.approvals_in_force(now).unwrap_or_else(|error| {
                tracing::warn!(%error, "the approvals cannot be read");
                Vec::new()
            }),
        }
    }
}

/// A collector of the mirror's gauges. Reads the disk, so it belongs on a blocking thread.
#[derive(Debug)]
pub struct MirrorGauges {
    /// The service that answers `status`.
    pub operations: Arc<Operations>,
    /// The clock.
    pub clock: Clock,
}

impl Collector for MirrorGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self { operations, clock } = self;
        let (library, runtime) = (&operations.library, &operations.runtime);
        let Totals { archives, archive_bytes, documents, document_bytes, .. } = library.totals();
        let owed = library.owed_totals();
        let kind = |kind: ObjectKind, value| (Some(("kind", kind.word())), value);
        let by_kind =
            |archives, documents| vec![kind(ObjectKind::Archive, archives), kind(ObjectKind::Document, documents)];
        let one = |value: u64| vec![(None, value)];
        let now = library.store_state();
        let states = StoreState::ALL.map(|state| (Some(("state", state.word())), u64::from(state == now)));
        let upstreams = runtime.upstream_states(clock.now());
        let left_alone = upstreams.iter().map(|of| (Some(("host", of.host.as_str())), of.left_alone.len() as u64));
        let is_offline = runtime.connectivity() == Connectivity::Offline;
        let missing = library.missing_in_words().len() as u64;
        let alarms = library.alarms();
        let waiting_for_accept = alarms.iter().filter(|alarm| alarm.kind.refuses()).count() as u64;
        let unresolved = AlarmKind::ALL
            .map(|kind| (Some(("kind", kind.name())), alarms.iter().filter(|alarm| alarm.kind == kind).count() as u64));
        let fleet_alarms = library.fleet_alarms(clock.now());
        let of_fleet = FleetAlarmKind::ALL.map(|kind| {
            (Some(("kind", kind.name())), fleet_alarms.iter().filter(|alarm| alarm.kind == kind).count() as u64)
        });
        let unattended = operations.archives.started_fills.unattended() as u64;
        let mut gauges = vec![
            ("larder_store_objects", "What is stored, by kind", None, by_kind(archives, documents)),
            ("larder_store", "What is stored, by kind", Some(Unit::Bytes), by_kind(archive_bytes, document_bytes)),
            ("larder_store_limit", "What may be stored", Some(Unit::Bytes), one(library.refresh_size_limit())),
            ("larder_owed_archives", "Archives that the bucket of the fleet does not take", None, one(owed.count)),
            ("larder_owed", "Archives that the bucket of the fleet does not take", Some(Unit::Bytes), one(owed.bytes)),
            ("larder_index", "The index of the store on disk", Some(Unit::Bytes), one(library.index_bytes())),
            ("larder_store_state", "How the store is: 1 for the one state it is in", None, states.to_vec()),
            ("larder_offline", "Whether nothing may go out", None, one(is_offline.into())),
            ("larder_breaker_open", BREAKER_HELP, None, left_alone.collect()),
            ("larder_missing", "Requested while offline and not stored, at most 1100", None, one(missing)),
            ("larder_index_whole", INDEX_HELP, None, one(library.index_is_complete().into())),
            ("larder_waiting_for_accept", ACCEPT_HELP, None, one(waiting_for_accept)),
            ("larder_alarms_unresolved", "What a person must resolve, by kind", None, unresolved.to_vec()),
            ("larder_fleet_alarms", "What a person should know of the fleet, by kind", None, of_fleet.to_vec()),
            ("larder_fills_unattended", UNATTENDED_HELP, None, one(unattended)),
            ("larder_waiting_requests", "Requests that wait for an upstream", None, one(runtime.waiting_requests())),
        ];
        if let Ok(DiskSpace { free_bytes, .. }) = library.disk_space() {
            gauges.push(("larder_store_free", "Free space on the store's disk", Some(Unit::Bytes), one(free_bytes)));
        }
        for (name, help, unit, values) in gauges {
            // Registered metrics get this full stop from the library.
            let help = format!("{help}.");
            encode_gauge(encoder.encode_descriptor(name, &help, unit.as_ref(), MetricType::Gauge)?, values)?;
        }
        let (name, help) = (
            "larder_database_questions",
            "Questions to the database of the fleet, but those by which it hears of others.",
        );
        let questions = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(library.database_questions()).encode(questions)
    }
}

const BREAKER_HELP: &str = "Origins that are left alone after failures, by the upstream that led there";
const INDEX_HELP: &str = "Whether the index knows all files; nothing is evicted before that";
const ACCEPT_HELP: &str = "Versions published again that wait for accept";
const UNATTENDED_HELP: &str = "Archive downloads in flight that clients started and no client waits for";

fn encode_gauge(mut encoder: MetricEncoder<'_>, values: Vec<(Option<(&str, &str)>, u64)>) -> fmt::Result {
    for (label, value) in values {
        match label {
            None => return ConstGauge::new(value).encode(encoder),
            Some(label) => ConstGauge::new(value).encode(encoder.encode_family(&[label])?)?,
        }
    }
    Ok(())
}
