//! What a mirror tells of itself.

use serde::{Deserialize, Serialize};

use super::{Alarm, Link, Mirror, Trouble};
use crate::address::{Hostname, PackageRef};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::store::Totals;
use crate::upstream::OfUpstream;

/// What a mirror has, and what it stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The version of larder.
    pub version: String,
    /// The store folder.
    pub store: String,
    /// How the store is.
    pub store_state: StoreState,
    /// Why it would not take the last archive, or else document, that it was given; none where it took both.
    pub trouble: Option<Trouble>,
    /// The size limit, in bytes.
    pub max_size_bytes: u64,
    /// What its disk still takes, in bytes; none where that cannot be told.
    pub free_bytes: Option<u64>,
    /// The size of its index on disk, in bytes.
    pub index_bytes: u64,
    /// How many archives are stored.
    pub archives: u64,
    /// Their size, in bytes.
    pub archive_bytes: u64,
    /// How many documents and proof sets are stored.
    pub documents: u64,
    /// Their size, in bytes.
    pub document_bytes: u64,
    /// How many first-seen records there are. They are never evicted.
    #[serde(default)]
    pub first_seen_records: u64,
    /// Their size, in bytes.
    #[serde(default)]
    pub first_seen_bytes: u64,
    /// What was imported without signatures, and nothing else vouches for; at most a thousand packages.
    #[serde(default)]
    pub imported: Vec<PackageRef>,
    /// The bundle that was applied last; none where none was.
    #[serde(default)]
    pub last_bundle: Option<LastBundle>,
    /// Whether nothing may go out.
    pub offline: bool,
    /// The configured upstreams.
    pub upstreams: Vec<String>,
    /// What was asked for while offline and is not held, also before the start: at most a thousand things, and since
    /// the start a hundred that are no artifacts.
    pub missing: Vec<PackageRef>,
    /// What an operator should look at, since the start; at most a thousand things of each kind.
    pub alarms: Vec<Alarm>,
}

/// A bundle that was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastBundle {
    /// The SHA-256 of its manifest.
    pub manifest: Digest,
    /// When it was made, in seconds since 1970.
    pub created: Timestamp,
    /// When it had been applied, in seconds since 1970.
    pub applied: Timestamp,
}

/// How a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreState {
    /// It is there, and takes what it is given.
    Ready,
    /// It is there, and would not take the last archive or the last document that it was given.
    NotKeeping,
    /// Its disk is mounted for reading alone.
    ReadOnly,
    /// It was removed or replaced, or its folder cannot be looked at.
    Gone,
}

impl StoreState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ready, Self::NotKeeping, Self::ReadOnly, Self::Gone];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::NotKeeping => "not-keeping",
            Self::ReadOnly => "read-only",
            Self::Gone => "gone",
        }
    }
}

/// An upstream since the start, and now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamState {
    /// Its host.
    pub host: String,
    /// Requests sent.
    pub requests: u64,
    /// Those that brought no answer, or 429 or 5xx.
    pub failed: u64,
    /// Body bytes received.
    pub bytes: u64,
    /// Requests that larder refused to make.
    pub refused: u64,
    /// The origins that are left alone now.
    pub left_alone: Vec<LeftAlone>,
}

/// An origin that is left alone after failures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftAlone {
    /// `https://HOST`
    pub origin: String,
    /// For how much longer, in seconds.
    pub seconds: u64,
}

impl Mirror {
    /// The configured upstreams' hosts, sorted.
    pub fn hosts(&self) -> Vec<Hostname> {
        self.terms.load().upstreams.hosts().into_iter().cloned().collect()
    }

    /// Body bytes received since the start, also from upstreams that are not configured any more.
    pub fn upstream_bytes(&self) -> u64 {
        self.counters.traffic.all_bytes()
    }

    /// Downloads under way.
    pub fn fills_under_way(&self) -> i64 {
        self.counters.fills.get()
    }

    /// Requests that wait for an upstream.
    pub fn waiting_requests(&self) -> u64 {
        self.waiting() as u64
    }

    /// How the store is. Asks the disk.
    pub fn store_state(&self) -> StoreState {
        if self.store.check().is_err() {
            return StoreState::Gone;
        }
        match self.store.room() {
            Ok(room) if room.is_read_only => StoreState::ReadOnly,
            _ if self.trouble().is_some() => StoreState::NotKeeping,
            _ => StoreState::Ready,
        }
    }

    /// Each upstream, since the start and now.
    pub fn upstream_states(&self, now: Timestamp) -> Vec<UpstreamState> {
        let left_alone = self.terms.load().outbound.left_alone(now);
        let state = |host: Hostname| {
            let OfUpstream { requests, failed, bytes, refused } = self.counters.traffic.of(&host);
            let of_it = left_alone.iter().filter(|(upstream, ..)| *upstream == host);
            let mut left_alone: Vec<LeftAlone> = of_it
                .map(|(_, origin, until)| LeftAlone { origin: origin.to_string(), seconds: until.since(now).as_secs() })
                .collect();
            left_alone.sort_by(|one, other| one.origin.cmp(&other.origin));
            UpstreamState { host: host.to_string(), requests, failed, bytes, refused, left_alone }
        };
        self.hosts().into_iter().map(state).collect()
    }

    fn last_bundle(&self) -> Option<LastBundle> {
        let receipt = self.store.last_receipt().unwrap_or_else(|error| {
            tracing::warn!(%error, "the receipt of the last bundle cannot be read");
            None
        });
        serde_json::from_slice(&receipt?).ok()
    }

    /// What there is to say of the store and its upstreams. Asks the disk.
    pub fn status(&self) -> Status {
        let Totals { archives, archive_bytes, documents, document_bytes, page_bytes: _ } = self.store.index.totals();
        let first_seen = self.store.records.first_seen_totals().unwrap_or_else(|error| {
            tracing::warn!(%error, "the first-seen records cannot be counted");
            (0, 0)
        });
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            store: self.store.root().display().to_string(),
            store_state: self.store_state(),
            trouble: self.trouble(),
            max_size_bytes: self.store_bytes_now(),
            free_bytes: self.store.free_bytes().ok(),
            index_bytes: self.store.index.disk_bytes(),
            archives,
            archive_bytes,
            documents,
            document_bytes,
            first_seen_records: first_seen.0,
            first_seen_bytes: first_seen.1,
            imported: self.catalog.imported(),
            last_bundle: self.last_bundle(),
            offline: self.link() == Link::Offline,
            upstreams: self.hosts().iter().map(ToString::to_string).collect(),
            missing: self.missing_in_words(),
            alarms: self.alarms(),
        }
    }
}
