//! The base of every service: the settings in force, the limits, the tasks and the counters.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::address::Hostname;
use crate::cdn_loop::{CdnLoop, OwnEntry};
use crate::error::Error;
use crate::mirror::tasks::Tasks;
use crate::mirror::{Connectivity, Counters, RuntimeConfig};

/// The settings in force, the limits, the tasks and the counters of the cache core.
#[derive(Debug)]
pub struct Runtime {
    pub(in crate::mirror) config: ArcSwap<RuntimeConfig>,
    pub(in crate::mirror) limits: Limits,
    pub(in crate::mirror) tasks: Tasks,
    pub(in crate::mirror) counters: Counters,
    pub(in crate::mirror) waiting_permits: Arc<Semaphore>,
    own_loop_entry: OwnEntry,
}

impl Runtime {
    pub(in crate::mirror) fn new(config: RuntimeConfig, limits: Limits, counters: Counters) -> Self {
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
    pub fn refuse_loops(&self, via: &CdnLoop) -> Result<(), Error> {
        if via.is_a_loop(&self.own_loop_entry) { Err(Error::Looped) } else { Ok(()) }
    }

    /// The time for which a 404 of this upstream is cached.
    pub fn not_found_lifetime(&self, host: &Hostname) -> Duration {
        let terms = self.config.load();
        terms
            .upstreams
            .get(host)
            .map_or(Duration::ZERO, |upstream| upstream.rule(|fresh| fresh.download).not_found_lifetime())
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
    /// The most requests that wait for upstreams at a time.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            answer_within: Duration::from_secs(8),
            stall: Duration::from_secs(30),
            document_bytes: 16 << 20,
            archive_bytes: 4 << 30,
            page_bytes: 256 << 20,
            waiting: 10_000,
        }
    }
}
