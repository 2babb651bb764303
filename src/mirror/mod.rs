//! The heart: decides hit, stale, fill or refuse. Knows no wire format of the client's side, no HTTP.
//!
//! A request comes with the time it is; documents age, archives do not. Work that goes upstream runs in
//! a flight of its own, so whoever asked may leave without ending it for others.

mod accept;
mod archives;
mod asking;
mod attempts;
mod check;

mod commit;
mod discovery;
mod documents;
mod download;
mod eviction;
mod fill;
mod follow;
mod freshness;
mod names;
mod opened;
mod parts;
mod passing;
mod proof_set;
mod proving;
mod pull;
mod purge;
pub mod record;
mod refresh;
mod remembered;
mod seen;
mod sets;
mod single_flight;
mod tasks;
mod verify;
mod versions;

use std::collections::{BTreeSet, HashSet};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

pub use self::accept::{Accepted, ChangedFile, Ruling};
pub use self::archives::{Archive, ArchiveRef};
pub use self::check::{Found, Healed, Wrong};
pub use self::documents::KeptDocument;
pub use self::names::{HeldArchive, PackageHashesKnown};
pub use self::passing::Passing;
pub use self::proof_set::ProofSet;
pub use self::purge::Purged;
pub use self::refresh::{News, Refreshed};
pub use self::verify::Step;

use self::documents::DocumentFlight;
use self::fill::FillKey;
use self::follow::Progress;
use self::passing::MOST_PASSING;
use self::remembered::Remembered;
use self::sets::{Anew, SetFlight};
use self::single_flight::{Awaited, Flights};
use self::tasks::Tasks;
use crate::address::{Hostname, Package, ProviderAddress};
use crate::cdn_loop::CdnLoop;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::store::{Key, Store, StoreError, Totals};
use crate::upstream::ask::Asker;
pub use crate::upstream::outbound::Link;
use crate::upstream::outbound::Outbound;
use crate::upstream::restraint::Leave;
use crate::upstream::{Traffic, Upstream, Upstreams};

/// Archives up to this many bytes are proven whole before the status line, and checked on every read.
pub const SMALL_ARCHIVE_BYTES: u64 = 1 << 20;

/// How many missing things are listed.
const MOST_MISSING: usize = 1000;

/// What the rest of a request's way needs to know of it.
#[derive(Debug, Clone)]
pub struct Call {
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
    part: Part,
    leave: Leave,
}

/// What a call is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A request: one of those that wait.
    Request,
    /// A flight that others wait for.
    Flight,
}

/// What a flight is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Errand {
    /// Something that is not held: it is always tried.
    Fetch,
    /// Something that is held: it is asked about within the upstream's budget.
    Revalidate,
}

/// How an answer came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// From what is held, and fresh.
    Hit,
    /// Fetched for this request.
    Miss,
    /// Fetched for this request alone, and not kept: the disk would not take it.
    Passed,
    /// Held, and confirmed or replaced by upstream for this request.
    Revalidated,
    /// Held, past its time, and upstream could not say otherwise.
    Stale,
    /// Held, and upstream has deleted it.
    Gone,
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
}

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

/// What the mirror counts, or tells of what is counted below it.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    /// Requests to and bytes from upstreams.
    pub traffic: Traffic,
    /// Archive downloads under way.
    pub fills: Gauge,
    /// Archives that were given to a client without being kept.
    pub passed_through: Counter,
}

/// How long we wait for what.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Every document is answered within this.
    pub answer_within: Duration,
    /// An upstream that has not answered a document within this is given up.
    pub give_up_after: Duration,
    /// An archive that brings no byte for this long, or less than 1 KiB/s over it, is given up.
    pub stall: Duration,
    /// The largest document, in bytes.
    pub document_bytes: u64,
    /// The largest archive, in bytes.
    pub archive_bytes: u64,
    /// What may be stored, in bytes.
    pub store_bytes: u64,
    /// How many requests may wait for upstreams at one time.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            answer_within: Duration::from_secs(8),
            give_up_after: Duration::from_secs(15),
            stall: Duration::from_secs(30),
            document_bytes: 16 << 20,
            archive_bytes: 4 << 30,
            store_bytes: u64::MAX,
            waiting: 10_000,
        }
    }
}

/// A place among those that wait, for as long as this lives.
#[derive(Debug)]
struct Place(#[expect(dead_code, reason = "held, and never looked at")] Option<OwnedSemaphorePermit>);

/// The single door to everything that is mirrored.
#[derive(Debug)]
pub struct Mirror {
    store: Arc<Store>,
    upstreams: Upstreams,
    outbound: Outbound,
    limits: Limits,
    tasks: Tasks,
    documents: Flights<(Key, Errand), Awaited<DocumentFlight>>,
    sets: Flights<(Package, Anew), Awaited<SetFlight>>,
    fills: Flights<FillKey, watch::Receiver<Progress>>,
    checks: Flights<Digest, Awaited<Result<bool, Error>>>,
    absent: Remembered<Key, String>,
    asked_anew: Remembered<Package, ()>,
    used_lately: Remembered<Digest, ()>,
    checked: Mutex<HashSet<Digest>>,
    record_locks: [Mutex<()>; 64],
    digest_locks: [Mutex<()>; 64],
    evicting: Mutex<()>,
    verifying: Arc<tokio::sync::Mutex<()>>,
    reserved: Arc<AtomicU64>,
    missing: Mutex<BTreeSet<String>>,
    places: Arc<Semaphore>,
    passing: Arc<Semaphore>,
    lengths: Remembered<FillKey, u64>,
    revisions: [AtomicU64; 256],
    hasher: std::hash::RandomState,
    counters: Counters,
}

impl Mirror {
    /// Joins the parts.
    pub fn new(
        store: Arc<Store>,
        upstreams: Upstreams,
        outbound: Outbound,
        limits: Limits,
        counters: Counters,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            upstreams,
            outbound,
            limits,
            tasks: Tasks::default(),
            documents: Flights::default(),
            sets: Flights::default(),
            fills: Flights::default(),
            checks: Flights::default(),
            absent: Remembered::default(),
            asked_anew: Remembered::default(),
            used_lately: Remembered::default(),
            checked: Mutex::default(),
            record_locks: std::array::from_fn(|_| Mutex::default()),
            digest_locks: std::array::from_fn(|_| Mutex::default()),
            evicting: Mutex::default(),
            verifying: Arc::default(),
            reserved: Arc::default(),
            missing: Mutex::default(),
            places: Arc::new(Semaphore::new(limits.waiting)),
            passing: Arc::new(Semaphore::new(MOST_PASSING)),
            lengths: Remembered::default(),
            revisions: std::array::from_fn(|_| AtomicU64::new(0)),
            hasher: std::hash::RandomState::new(),
            counters,
        })
    }

    /// A call that comes now.
    pub fn call(&self, now: Timestamp, via: CdnLoop, takes_unknown_length: bool) -> Call {
        let began = Instant::now();
        let deadline = began + self.limits.answer_within;
        let (asker, part, leave) = (Asker::Client, Part::Request, Leave::default());
        Call { now, via, began, deadline, takes_unknown_length, asker, part, leave }
    }

    /// Whether a request has been through this larder already.
    ///
    /// # Errors
    /// [`Error::Looped`], before any flight could be joined.
    pub fn refuse_loops(&self, via: &CdnLoop) -> Result<(), Error> {
        if via.is_a_loop(self.outbound.own_entry()) { Err(Error::Looped) } else { Ok(()) }
    }

    /// Whether what is asked for can be kept and read.
    pub fn is_ready(&self) -> bool {
        self.store.check().is_ok()
    }

    /// The configured upstreams' hosts, sorted.
    pub fn hosts(&self) -> Vec<&Hostname> {
        self.upstreams.hosts()
    }

    /// Body bytes received from all upstreams since the start.
    pub fn upstream_bytes(&self) -> u64 {
        self.counters.traffic.bytes(&self.hosts())
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
            max_size_bytes: self.limits.store_bytes,
            archives,
            archive_bytes,
            documents,
            document_bytes,
            offline: self.link() == Link::Offline,
            upstreams: self.hosts().into_iter().map(ToString::to_string).collect(),
            missing: self.missing.lock().iter().cloned().collect(),
        }
    }

    /// Counts up with every change of what is known about a provider: whoever rendered an answer
    /// before must render it again.
    pub fn revision(&self, address: &ProviderAddress) -> u64 {
        self.revision_of(address).load(Ordering::Acquire)
    }

    fn changed(&self, address: &ProviderAddress) {
        self.revision_of(address).fetch_add(1, Ordering::AcqRel);
    }

    fn revision_of(&self, address: &ProviderAddress) -> &AtomicU64 {
        // The modulus keeps the index inside; two providers that share a counter only render once more.
        &self.revisions[self.hasher.hash_one(address) as usize % self.revisions.len()]
    }

    /// The lock under which a record is read, changed and put.
    fn record_lock(&self, key: &Key) -> &Mutex<()> {
        &self.record_locks[self.hasher.hash_one(key) as usize % self.record_locks.len()]
    }

    /// The lock under which an archive is taken in or removed. Taken before any record's.
    fn digest_lock(&self, digest: &Digest) -> &Mutex<()> {
        &self.digest_locks[self.hasher.hash_one(digest) as usize % self.digest_locks.len()]
    }

    fn upstream(&self, host: &Hostname) -> Result<&Arc<Upstream>, Error> {
        self.upstreams.get(host).ok_or_else(|| Error::UnknownHost(host.clone()))
    }

    /// Runs file work where it may block.
    async fn on_disk<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        let mirror = Arc::clone(self);
        match self.tasks.spawn_blocking(move || work(&mirror)).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(Error::Interrupted("the store".into())),
        }
    }

    /// Lists what would have been fetched, were this mirror not offline (promise 12).
    fn missing(&self, what: String) -> Error {
        if let Err(gone) = self.store.check() {
            // It may well be held there.
            return gone.into();
        }
        let mut missing = self.missing.lock();
        if missing.len() < MOST_MISSING {
            missing.insert(what.clone());
        }
        Error::Offline(what)
    }

    /// A call that a flight makes for itself: nobody waits for it, and it ends by its own limits.
    fn inner(&self, call: &Call) -> Call {
        let began = Instant::now();
        let now = call.now.after(began.saturating_duration_since(call.began));
        Call { now, began, deadline: began + self.limits.give_up_after, part: Part::Flight, ..call.clone() }
    }

    /// A place among those that wait for upstreams; a flight needs none.
    fn place(&self, call: &Call) -> Option<Place> {
        match call.part {
            Part::Flight => Some(Place(None)),
            Part::Request => Arc::clone(&self.places).try_acquire_owned().ok().map(|taken| Place(Some(taken))),
        }
    }

    /// Whether an archive is held.
    pub async fn holds(self: &Arc<Self>, digest: Digest) -> Result<bool, Error> {
        self.on_disk(move |mirror| unless_gone(mirror.store.blobs.holds(&digest))).await
    }

    /// For how long a 404 of this upstream is believed.
    pub fn absence_is_believed(&self, host: &Hostname) -> Duration {
        self.upstreams.get(host).map_or(Duration::ZERO, |upstream| upstream.rule(|fresh| fresh.download).believed())
    }

    /// Whether anything may go out.
    pub fn link(&self) -> Link {
        self.outbound.link()
    }

    /// Removes leftovers whose time is over.
    pub async fn sweep(self: &Arc<Self>, now: Timestamp) -> Result<(), Error> {
        self.on_disk(move |mirror| mirror.store.sweep(now)).await
    }

    /// Stops the work under way, which is resumed after the next start, and closes the store.
    pub async fn close(&self) -> Result<(), StoreError> {
        if !self.tasks.stop().await {
            // The index may miss what is still being committed: without the mark, it is rebuilt.
            tracing::warn!("some work did not stop in time; the index is rebuilt at the next start");
            return Ok(());
        }
        self.store.close()
    }
}

/// What was read; nothing where the store is gone, which holds nothing for anybody then.
fn unless_gone<T: Default>(read: Result<T, StoreError>) -> Result<T, StoreError> {
    match read {
        Err(StoreError::Gone) => Ok(T::default()),
        read => read,
    }
}
