//! What a start needs before there are listeners: its settings, its errors, and the mirror with its metrics.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::cdn_loop::OwnEntry;
use crate::clock::{Clock, Timestamp};
use crate::config::Config;
use crate::http::tls::{Tls, TlsError};
use crate::http::{RequestMetrics, listener, watchdog};
use crate::mirror::{Counters, Limits, Mirror, MirrorGauges, RequiredPlatforms, RuntimeConfig};
use crate::store::{Store, StoreError};
use crate::supervisor::Supervisor;
use crate::upstream::clients::ConnectorError;
use crate::upstream::limits::UpstreamLimits;
use crate::upstream::outbound::Outbound;
use crate::upstream::{Traffic, Upstreams};

/// Startup settings that are not in the configuration file.
#[derive(Debug, Clone)]
pub struct StartSettings {
    /// Source of the current time.
    pub clock: Clock,
    /// Timeouts and sizes of the mirror. The store's size limit comes from the configuration.
    pub limits: Limits,
    /// Limits on outgoing requests and git jobs.
    pub upstream_limits: UpstreamLimits,
    /// Limits on client connections of each listener.
    pub connections: listener::Limits,
    /// The longest wait for a thread of the blocking pool before the liveness check fails.
    pub pool_within: Duration,
}

impl Default for StartSettings {
    fn default() -> Self {
        Self {
            clock: Clock::default(),
            limits: Limits::default(),
            upstream_limits: UpstreamLimits::default(),
            connections: listener::Limits::default(),
            pool_within: watchdog::POOL_TIMEOUT,
        }
    }
}

/// Lists the problems in the configured files that would prevent a start.
pub fn start_problems(config: &Config) -> Vec<String> {
    let mut problems: Vec<String> = config.refusal().into_iter().collect();
    if let Some(files) = &config.server.tls
        && let Err(error) = Tls::load(&files.certificate, &files.key)
    {
        problems.push(format!("server.tls: {error}"));
    }
    if let Ok(own) = OwnEntry::random()
        && let Err(error) =
            Outbound::new(&config.network, &config.upstreams, own, Traffic::default(), UpstreamLimits::default())
    {
        problems.push(error.to_string());
    }
    problems
}

/// Opens the store and builds a mirror without listeners or jobs, for commands that run without a larder.
pub fn mirror(
    config: &Config,
    settings: &StartSettings,
) -> Result<(Arc<Mirror>, Arc<Store>, MetricSources), StartError> {
    let store = Arc::new(Store::open(&config.store.path, settings.clock.now())?);
    let metrics = MetricSources::default();
    let upstreams = Upstreams::new(&config.upstreams, &config.credentials, &config.network.allow_private);
    let own = OwnEntry::random().map_err(|_| StartError::Random)?;
    let outbound =
        Outbound::new(&config.network, &config.upstreams, own, metrics.counters.traffic(), settings.upstream_limits)?;
    let required_platforms = RequiredPlatforms::from(config.network.sealed_platforms.as_slice());
    let runtime_config = RuntimeConfig::new(upstreams, outbound, config.store.max_size, required_platforms);
    let counters = metrics.counters.clone();
    let mirror = Mirror::new(Arc::clone(&store), runtime_config, settings.limits, counters, &metrics.supervisor)?;
    Ok((mirror, store, metrics))
}

/// The counters of every part, exported as Prometheus metrics.
#[derive(Debug, Default)]
pub struct MetricSources {
    pub(super) requests: RequestMetrics,
    counters: Counters,
    pub(super) supervisor: Supervisor,
}

impl MetricSources {
    pub(super) fn registry(&self, mirror: Arc<Mirror>, started: Timestamp, clock: Clock) -> Registry {
        let mut registry = Registry::default();
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("larder_build", "Version of this larder", build);
        let start_time = ConstGauge::new(started.0);
        registry.register_with_unit(
            "larder_start_time",
            "Start time of this larder, since 1970",
            Unit::Seconds,
            start_time,
        );
        self.requests.register(&mut registry);
        self.counters.register(&mut registry);
        self.supervisor.register(&mut registry);
        registry.register_collector(Box::new(MirrorGauges { mirror, clock }));
        registry
    }
}

/// The reason why larder did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration would serve credentialed upstreams to unknown clients (DESIGN, promise 8).
    #[error("{0}")]
    Refused(String),
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The outbound connector could not be built.
    #[error(transparent)]
    Outbound(#[from] ConnectorError),
    /// The certificate could not be loaded.
    #[error("[server] tls: {0}")]
    Tls(#[from] TlsError),
    /// A socket could not be bound.
    #[error("{section} listen = \"{address}\": {source}{}", advice(.source))]
    Listen {
        /// Section of the listener, such as `[server]`.
        section: &'static str,
        /// Configured address.
        address: SocketAddr,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The system returned no random bytes.
    #[error("the system returned no random bytes")]
    Random,
}

/// Advice for a socket that could not be bound.
fn advice(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; see what listens there (ss -ltnp), or choose other ports (larder serve --listen 127.0.0.1:9080 --admin-listen 127.0.0.1:9081)"
        }
        std::io::ErrorKind::PermissionDenied => "; choose a port from 1024 on, or allow larder's user to bind this one",
        std::io::ErrorKind::AddrNotAvailable => "; choose an address that this machine has",
        _ => "",
    }
}
