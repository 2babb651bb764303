//! The base of every service: the settings in force, the limits, the tasks and the counters. The reloadable settings
//! (upstreams, size limit) are swapped atomically. A request keeps the settings that it began with, and so does the work
//! that it starts.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::address::{Address, Artifact, Hostname, ModuleAddress, ModulePackage, Package, ProviderAddress, Versions};
use crate::cdn_loop::{CdnLoop, OwnEntry};
use crate::clock::{CLOCK_SLACK, Timestamp};
use crate::config::Config;
use crate::error::Error;
use crate::mirror::effects::Effects;
use crate::mirror::last_answers::LastAnswers;
use crate::mirror::required_platforms::RequiredPlatforms;
use crate::mirror::tasks::Tasks;
use crate::mirror::{Connectivity, Counters, RequestContext};
use crate::policy::Policy;
use crate::store::{Key, SizeLimit};
use crate::upstream::issuers::Issuers;
use crate::upstream::outbound::Outbound;
use crate::upstream::{Upstream, Upstreams};

/// Archives up to this size are verified before the status line, and checked on every read.
pub const SMALL_ARCHIVE_BYTES: u64 = 1 << 20;

/// The settings in force, the limits, the tasks and the counters of the cache core.
#[derive(Debug)]
pub struct Runtime {
    pub(super) config: ArcSwap<RuntimeConfig>,
    pub(super) limits: Limits,
    pub(super) tasks: Tasks,
    pub(super) counters: Counters,
    pub(super) waiting_permits: Arc<Semaphore>,
    own_loop_entry: OwnEntry,
}

impl Runtime {
    pub(super) fn new(config: RuntimeConfig, limits: Limits, counters: Counters) -> Self {
        config.upstreams.hosts().into_iter().for_each(|host| counters.register_host(host));
        Self {
            own_loop_entry: config.outbound.own_entry().clone(),
            config: ArcSwap::from_pointee(config),
            limits,
            tasks: Tasks::default(),
            counters,
            waiting_permits: Arc::new(Semaphore::new(limits.waiting)),
        }
    }

    /// Refuses a request that has already passed through this larder.
    ///
    /// # Errors
    /// [`Error::Looped`], before the request joins any flight.
    pub fn refuse_loops(&self, cdn_loop: &CdnLoop) -> Result<(), Error> {
        if cdn_loop.is_a_loop(&self.own_loop_entry) { Err(Error::Looped) } else { Ok(()) }
    }

    /// The time for which a 404 of this upstream is cached.
    pub fn not_found_lifetime(&self, host: &Hostname) -> Duration {
        self.config.load().upstreams.get(host).map_or(Duration::ZERO, |upstream| upstream.not_found_lifetime())
    }

    /// The state of the outbound link: online or offline.
    pub fn connectivity(&self) -> Connectivity {
        self.config.load().outbound.connectivity()
    }

    /// Runs an operator's work until it ends or the mirror closes, even if its client has gone.
    pub fn spawn_until_closed(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.tasks.spawn(work));
    }

    /// Runs an operator's file work on a blocking thread. A shutdown waits for it.
    pub fn spawn_blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        self.tasks.spawn_blocking(work)
    }
}

/// The deadlines and size limits of a mirror.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The deadline for answering a document.
    pub answer_within: Duration,
    /// The stall time: an archive without a byte for this long, or below 1 KiB/s over it, is given up.
    pub stall: Duration,
    /// The largest document, in bytes.
    pub document_bytes: u64,
    /// The largest archive, in bytes.
    pub archive_bytes: u64,
    /// The most bytes of registry API pages in the store.
    pub page_bytes: u64,
    /// The most registry API pages of one upstream in the store.
    pub pages: usize,
    /// The most requests that wait for upstreams at a time.
    pub waiting: usize,
}

impl Limits {
    /// The limits of a store of which nothing is removed.
    pub fn without_eviction() -> Self {
        Self { page_bytes: u64::MAX, pages: usize::MAX, ..Self::default() }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            answer_within: Duration::from_secs(8),
            stall: Duration::from_secs(30),
            document_bytes: 16 << 20,
            archive_bytes: 4 << 30,
            page_bytes: 256 << 20,
            pages: 256,
            waiting: 10_000,
        }
    }
}

/// The reloadable settings, and the caches that are only valid under them.
#[derive(Debug)]
pub struct RuntimeConfig {
    /// The mirrored registries.
    pub upstreams: Upstreams,
    /// The connector to them.
    pub outbound: Outbound,
    /// The issuers of tokens that are asked for their keys.
    pub issuers: Issuers,
    /// The size limit of the store.
    pub size_limit: SizeLimit,
    /// The most bytes of one file of a module.
    pub max_module_file_bytes: u64,
    /// The rules about the versions that may be used.
    pub policy: Arc<Policy>,
    /// The platforms that must be stored for a version to be listed while offline.
    pub required_platforms: RequiredPlatforms,
    pub(super) generation: ConfigGeneration,
    /// Cached 404s of upstreams. They end with a reload, because another URL or another credential may have the object.
    pub not_found: TtlCache<Key, String>,
    /// The packages whose sets were revalidated in vain, for the lifetime of a 404.
    pub refetched_sets: TtlCache<Package, ()>,
    /// The modules whose locations were revalidated in vain, for the lifetime of a 404.
    pub refetched_locations: TtlCache<ModulePackage, ()>,
    /// The subdirectory of a module in the archive that a page led to, while that archive is being fetched.
    pub pending_subdirs: TtlCache<ModulePackage, Option<String>>,
    /// The modules whose trees were rechecked a moment ago.
    pub recently_rechecked: TtlCache<ModulePackage, ()>,
    /// The packages that proved not to be late a while ago.
    pub not_late: TtlCache<Package, ()>,
    /// The providers whose lists were looked at for late versions a while ago.
    pub searched_late: TtlCache<ProviderAddress, ()>,
    /// The issuers that were asked a moment ago for keys that a token names, each with the failure.
    pub asked_issuers: TtlCache<String, Option<Error>>,
    /// Upstream's last failures and late answers, for dry runs. They end with a reload, as cached 404s do.
    pub last_answers: LastAnswers,
}

/// The number of a configuration, part of every flight's key. A request that joined a flight of another configuration
/// would follow another upstream's document, and send it the credential meant for this one (promise 8).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ConfigGeneration(u64);

impl RuntimeConfig {
    /// The settings at the start.
    pub fn new(upstreams: Upstreams, outbound: Outbound, issuers: Issuers, config: &Config) -> Self {
        Self {
            upstreams,
            outbound,
            issuers,
            size_limit: config.store.max_size,
            max_module_file_bytes: config.store.max_module_file.as_u64(),
            policy: Arc::clone(&config.policy),
            required_platforms: RequiredPlatforms::from(config.network.sealed_platforms.as_slice()),
            generation: ConfigGeneration(0),
            not_found: TtlCache::default(),
            refetched_sets: TtlCache::default(),
            refetched_locations: TtlCache::default(),
            pending_subdirs: TtlCache::default(),
            recently_rechecked: TtlCache::default(),
            not_late: TtlCache::default(),
            searched_late: TtlCache::default(),
            asked_issuers: TtlCache::default(),
            last_answers: LastAnswers::default(),
        }
    }

    /// The settings of a reload, not active yet.
    pub fn reloaded(&self, upstreams: Upstreams, outbound: Outbound, issuers: Issuers, config: &Config) -> Self {
        let generation = ConfigGeneration(self.generation.0 + 1);
        Self { generation, ..Self::new(upstreams, outbound, issuers, config) }
    }

    pub(super) fn upstream(&self, host: &Hostname) -> Result<&Arc<Upstream>, Error> {
        self.upstreams.get(host).ok_or_else(|| Error::UnknownHost(host.clone()))
    }

    /// Every spelling under which an address may be stored, since `fold_case` of a module may have changed.
    pub fn spellings(&self, address: &Address) -> BTreeSet<Address> {
        let mut spellings = BTreeSet::from([address.clone(), self.canonical(address)]);
        if let Address::Module(module) = address {
            spellings.insert(Address::Module(module.folded()));
        }
        spellings
    }

    /// The canonical spelling of a module, which is its store key.
    pub fn key_of(&self, address: &ModuleAddress) -> ModuleAddress {
        let folds = self.upstreams.get(&address.host).is_some_and(|upstream| upstream.settings.fold_case);
        if folds { address.folded() } else { address.clone() }
    }

    /// The canonical spelling of an address.
    pub fn canonical(&self, address: &Address) -> Address {
        match address {
            Address::Module(module) => Address::Module(self.key_of(module)),
            Address::Provider(_) => address.clone(),
        }
    }

    /// The canonical spelling of a version's module.
    pub fn key_of_package(&self, package: &ModulePackage) -> ModulePackage {
        ModulePackage { module: self.key_of(&package.module), version: package.version.clone() }
    }
}

impl Runtime {
    /// The active settings.
    pub fn config(&self) -> Arc<RuntimeConfig> {
        self.config.load_full()
    }

    /// Activates settings for new requests.
    pub fn activate(&self, config: Arc<RuntimeConfig>) {
        config.upstreams.hosts().into_iter().for_each(|host| self.counters.register_host(host));
        config.outbound.apply_connectivity();
        self.config.store(config);
    }

    /// Returns true if a request's settings are still active. An answer under former ones removes nothing from the
    /// store.
    pub fn is_current_config(&self, call: &RequestContext) -> bool {
        self.config.load().generation == call.config.generation
    }

    /// The store key of a version's archive, in the canonical spelling.
    pub fn artifact_of(&self, package: &ModulePackage) -> Artifact {
        Artifact::Module(self.config().key_of_package(package))
    }

    /// The package under its canonical spelling, which is its store key.
    pub fn canonical(&self, artifact: Artifact) -> Artifact {
        match artifact {
            Artifact::Module(package) => self.artifact_of(&package),
            Artifact::Provider(_) => artifact,
        }
    }

    pub(super) fn must_be_online(&self, subject: &str) -> Result<(), Error> {
        match self.connectivity() {
            crate::mirror::Connectivity::Online => Ok(()),
            crate::mirror::Connectivity::Offline => Err(Error::Sealed(subject.to_owned())),
        }
    }

    /// Forgets cached 404s and recent checks of the selected versions. `address` is the canonical spelling.
    pub fn forget_absences(&self, address: &Address, versions: &Versions) {
        let config = self.config();
        config.not_found.remove_if(|key| key.is_document_of(address, |version| versions.include(version)));
        config.last_answers.forget_absences(address, versions);
        match address {
            Address::Provider(provider) => {
                let is_meant = |package: &Package| package.provider == *provider && versions.include(&package.version);
                config.refetched_sets.remove_if(is_meant);
            }
            Address::Module(module) => {
                let is_meant =
                    |package: &ModulePackage| package.module == *module && versions.include(&package.version);
                config.refetched_locations.remove_if(is_meant);
                config.recently_rechecked.remove_if(is_meant);
            }
        }
    }
}

const MAX_TTL_ENTRIES: usize = 10_000;

/// A map whose values expire.
#[derive(Debug)]
pub struct TtlCache<K, V>(Mutex<HashMap<K, TtlEntry<V>>>);

#[derive(Debug)]
struct TtlEntry<V> {
    since: Timestamp,
    until: Timestamp,
    value: V,
}

impl<V> TtlEntry<V> {
    /// A value stored while the clock was ahead is ignored after it was set back.
    fn holds(&self, now: Timestamp) -> bool {
        self.since <= now.after(CLOCK_SLACK) && now < self.until
    }
}

impl<K, V> Default for TtlCache<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq + Clone, V: Clone> TtlCache<K, V> {
    pub fn get(&self, key: &K, now: Timestamp) -> Option<V> {
        let map = self.0.lock();
        map.get(key).filter(|entry| entry.holds(now)).map(|entry| entry.value.clone())
    }

    /// Stores a value for `lifetime`. A full map takes no more, and the result is false: a client that requests ten
    /// thousand absent objects has them asked for upstream.
    pub fn insert(&self, effects: Effects, key: K, value: V, lifetime: Duration, now: Timestamp) -> bool {
        if effects == Effects::None {
            return true;
        }
        let mut map = self.0.lock();
        if map.len() >= MAX_TTL_ENTRIES && !map.contains_key(&key) {
            map.retain(|_, entry| entry.holds(now));
        }
        let has_room = map.len() < MAX_TTL_ENTRIES || map.contains_key(&key);
        if has_room {
            map.insert(key, TtlEntry { since: now, until: now.after(lifetime), value });
        }
        has_room
    }

    pub fn remove(&self, key: &K) {
        self.0.lock().remove(key);
    }

    /// The keys that are selected, of expired values too.
    pub fn keys_if(&self, is_selected: impl Fn(&K, &V) -> bool) -> Vec<K> {
        let map = self.0.lock();
        map.iter().filter(|(key, entry)| is_selected(key, &entry.value)).map(|(key, _)| key.clone()).collect()
    }

    pub fn remove_if(&self, is_selected: impl Fn(&K) -> bool) {
        self.0.lock().retain(|key, _| !is_selected(key));
    }
}
