//! The metrics of the mirror. Every label value is a constant of ours, or the host of a configured upstream.

use derive_more::Display;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use serde::{Deserialize, Serialize};

use crate::address::Hostname;
use crate::mirror::alarm_kind::AlarmKind;
use crate::upstream::Traffic;
use crate::verify;

/// The label for a verified set that contradicts an earlier one.
pub const REPUBLISHED: &str = "republished";

/// The label for an unsigned set of a provider that was signed before.
pub const SIGNATURE_LOST: &str = "signature-lost";

/// The label for a set that cannot be compared with its first-seen record, because that is damaged.
pub const SEEN_DAMAGED: &str = "seen-damaged";

/// The label for a module tree that cannot be packed into an archive.
pub const REFUSED_TREE: &str = "tree";

/// The counters of the mirror and of the layers below it.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    /// Requests to and bytes from upstreams; all copies share one total.
    pub traffic: Traffic,
    /// Archive downloads in progress.
    pub fills: Gauge,
    /// Archives that were passed through to a client without being stored.
    pub passed_through: Counter,
    /// Locations of modules that larder cannot fetch and that clients were sent to.
    pub elsewhere: Counter,
    not_stored: Family<[Label; 1], Counter>,
    unverified: Family<[OwnedLabel; 2], Counter>,
    alarms: Family<[Label; 1], Counter>,
    evicted: Family<[OwnedLabel; 2], Counter>,
    evicted_bytes: Family<[OwnedLabel; 2], Counter>,
    /// Stored archives that were compared with their digests.
    pub rehashed: Counter,
    damaged: Family<[OwnedLabel; 1], Counter>,
}

/// The name and the value of a label.
type Label = (&'static str, &'static str);
type OwnedLabel = (&'static str, String);

/// The two kinds of stored objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    /// Never ages.
    Archive,
    /// Ages. Proof sets are included.
    Document,
}

impl ObjectKind {
    const ALL: [Self; 2] = [Self::Archive, Self::Document];

    pub fn word(self) -> &'static str {
        match self {
            Self::Archive => "archive",
            Self::Document => "document",
        }
    }
}

#[derive(Debug, Display, Clone, Copy, PartialEq, Eq)]
#[display(rename_all = "kebab-case")]
pub enum EvictionReason {
    SizeLimit,
    DiskFull,
}

impl Counters {
    /// Registers the counters under their names. Those without a host label are visible from the start, at zero.
    pub fn register(&self, registry: &mut Registry) {
        self.traffic.register(registry);
        registry.register("larder_fills_under_way", "Archive downloads in flight", self.fills.clone());
        let help = "Archives passed through without being stored, because the disk refused them";
        registry.register("larder_passed_through", help, self.passed_through.clone());
        let help = "Locations of modules at sources that larder cannot fetch: the client was sent there";
        registry.register("larder_modules_elsewhere", help, self.elsewhere.clone());
        let help = "What the store would not take, by kind";
        registry.register("larder_not_kept", help, self.not_stored.clone());
        let help = "Failed verifications, by upstream and kind";
        registry.register("larder_verification_failures", help, self.unverified.clone());
        let help = "What a person must resolve, by kind: each is in the status until then";
        registry.register("larder_alarms", help, self.alarms.clone());
        registry.register("larder_evictions", "What was evicted, by kind and reason", self.evicted.clone());
        let help = "What was evicted, by kind and reason";
        registry.register_with_unit("larder_evicted", help, Unit::Bytes, self.evicted_bytes.clone());
        let help = "Archives read again and compared with their digests, by the scrub and by verify";
        registry.register("larder_archives_checked", help, self.rehashed.clone());
        let help = "Held archives that were not what their digests say, however that came out";
        registry.register("larder_archives_damaged", help, self.damaged.clone());
        for kind in ObjectKind::ALL {
            self.not_stored.get_or_create_owned(&[("kind", kind.word())]);
        }
        for kind in AlarmKind::ALL {
            self.alarms.get_or_create_owned(&[("kind", kind.name())]);
        }
        for found in [DamageFinding::Damaged, DamageFinding::Missing] {
            self.damaged.get_or_create_owned(&[("found", found.to_string())]);
        }
        let reasons = [EvictionReason::SizeLimit, EvictionReason::DiskFull];
        for (kind, reason) in ObjectKind::ALL.into_iter().flat_map(|kind| reasons.map(|reason| (kind, reason))) {
            let labels = evicted_labels(kind, reason);
            self.evicted.get_or_create_owned(&labels);
            self.evicted_bytes.get_or_create_owned(&labels);
        }
    }

    /// Makes the counters of an upstream visible at zero, before any failure.
    pub fn register_host(&self, host: &Hostname) {
        let own_kinds = [REPUBLISHED, SIGNATURE_LOST, REFUSED_TREE, SEEN_DAMAGED];
        for kind in verify::VerificationError::METRIC_LABELS.into_iter().chain(own_kinds) {
            self.unverified.get_or_create_owned(&unverified_labels(host, kind));
        }
    }

    /// Counts an object that the store could not take.
    pub fn count_not_stored(&self, kind: ObjectKind) {
        self.not_stored.get_or_create(&[("kind", kind.word())]).inc();
    }

    /// Counts an object that failed verification.
    pub fn count_unverified(&self, host: &Hostname, kind: &'static str) {
        self.unverified.get_or_create(&unverified_labels(host, kind)).inc();
    }

    pub(super) fn alarm(&self, kind: AlarmKind) {
        self.alarms.get_or_create(&[("kind", kind.name())]).inc();
    }

    pub(super) fn evicted(&self, kind: ObjectKind, reason: EvictionReason, bytes: u64) {
        let labels = evicted_labels(kind, reason);
        self.evicted.get_or_create(&labels).inc();
        self.evicted_bytes.get_or_create(&labels).inc_by(bytes);
    }

    /// Counts a stored archive that did not match its digest, or was missing.
    pub fn damaged(&self, found: DamageFinding) {
        self.damaged.get_or_create(&[("found", found.to_string())]).inc();
    }
}

fn evicted_labels(kind: ObjectKind, reason: EvictionReason) -> [OwnedLabel; 2] {
    [("kind", kind.word().to_owned()), ("reason", reason.to_string())]
}

fn unverified_labels(host: &Hostname, kind: &'static str) -> [OwnedLabel; 2] {
    [("host", host.to_string()), ("kind", kind.to_owned())]
}

/// The kind of damage to an archive.
#[derive(Debug, Display, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[display(rename_all = "snake_case")]
pub enum DamageFinding {
    /// Its bytes are wrong. They were quarantined.
    Damaged,
    /// A name listed it, but it was not stored.
    Missing,
}
