//! What a mirror tells of itself.

use serde::{Deserialize, Serialize};

use super::{Link, Mirror};
use crate::address::Hostname;
use crate::store::Totals;

/// What a mirror has, and what it stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The version of larder.
    pub version: String,
    /// The store folder.
    pub store: String,
    /// The size limit, in bytes.
    pub max_size_bytes: u64,
    /// How many archives are stored.
    pub archives: u64,
    /// Their size, in bytes.
    pub archive_bytes: u64,
    /// How many documents and proof sets are stored.
    pub documents: u64,
    /// Their size, in bytes.
    pub document_bytes: u64,
    /// Whether nothing may go out.
    pub offline: bool,
    /// The configured upstreams.
    pub upstreams: Vec<String>,
    /// What was asked for while offline and is not held, since the start; at most a thousand things.
    pub missing: Vec<String>,
}

impl Mirror {
    /// The configured upstreams' hosts, sorted.
    pub fn hosts(&self) -> Vec<Hostname> {
        self.terms.load().upstreams.hosts().into_iter().cloned().collect()
    }

    /// Body bytes received from all upstreams since the start.
    pub fn upstream_bytes(&self) -> u64 {
        self.counters.traffic.bytes(&self.hosts().iter().collect::<Vec<_>>())
    }

    /// Downloads under way.
    pub fn fills_under_way(&self) -> i64 {
        self.counters.fills.get()
    }

    /// What there is to say of the store and its upstreams.
    pub fn status(&self) -> Status {
        let Totals { archives, archive_bytes, documents, document_bytes } = self.store.index.totals();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            store: self.store.root().display().to_string(),
            max_size_bytes: self.store_bytes(),
            archives,
            archive_bytes,
            documents,
            document_bytes,
            offline: self.link() == Link::Offline,
            upstreams: self.hosts().iter().map(ToString::to_string).collect(),
            missing: self.missing.lock().iter().cloned().collect(),
        }
    }
}
