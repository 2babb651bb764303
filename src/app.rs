//! Builds the parts of larder and connects them. Defines the order of start and stop.

pub mod open_files;
mod reload;
mod replica;
pub mod running_larder;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

pub use self::reload::{NotReloaded, Reloaded};
use crate::audit::{AuditError, AuditTrail};
use crate::cdn_loop::OwnEntry;
use crate::clock::{Clock, Timestamp};
use crate::config::{AuditTarget, Config};
use crate::error::Error;
use crate::http::AuditLine;
use crate::http::admin_client::AdminClient;
use crate::http::admin_tls;
use crate::http::client_tokens::ClientTokens;
use crate::http::clients::Clients;
use crate::http::connection_slots::{ConnectionSlots, PeerClass};
use crate::http::connection_threads::ConnectionThreads;
use crate::http::listener::{self, Listener, Transport, serve};
use crate::http::local_socket;
use crate::http::tls::{Tls, TlsError};
use crate::http::watchdog::{self, BlockingPoolCheck, ListenerTarget, LivenessError};
use crate::http::{
    Admin, AdminCaller, AdminProcess, MainListener, RequestMetrics, RequestTraffic, RunAccess, Runs, ServingLarder,
};
use crate::jobs::{self, Jobs, Recurring, TrafficHistory};
use crate::mirror::{Counters, Limits, Mirror, MirrorGauges, Outcome, RuntimeConfig};
use crate::protocol::Protocols;
use crate::protocol::admin::{Access, ReadAccess};
use crate::protocol::client_config::{ClientConfig, ClientRoute};
use crate::protocol::rights::ArchiveUrls;
use crate::protocol::route::{Mount, RouteContext};
use crate::protocol::run::RunIds;
use crate::store::{ListenerNote, Local, SizeLimit, Store, StoreError};
use crate::supervisor::{Supervisor, Task};
use crate::upstream::clients::ConnectorError;
use crate::upstream::issuers::Issuers;
use crate::upstream::limits::UpstreamLimits;
use crate::upstream::outbound::Outbound;
use crate::upstream::{Traffic, Upstreams};

/// A larder with an open store and bound sockets, ready to serve.
#[derive(Debug)]
pub struct App {
    running: Arc<RunningApp>,
    main: TcpListener,
    admin: TcpListener,
    /// Where the commands of this machine are answered; `None` where the store's folder has no socket.
    socket: Option<UnixListener>,
    main_limits: listener::Limits,
    admin_limits: listener::Limits,
    base: String,
    scrub: Option<Duration>,
}

/// The listening sockets of a larder. The kernel accepts connections for as long as any process has them.
#[derive(Debug)]
pub struct Sockets {
    /// The main listener.
    pub main: std::net::TcpListener,
    /// The admin listener.
    pub admin: std::net::TcpListener,
}

impl Sockets {
    /// Returns further handles of the same sockets.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub fn duplicate(&self) -> io::Result<Self> {
        Ok(Self { main: self.main.try_clone()?, admin: self.admin.try_clone()? })
    }
}

/// Handle to a serving larder, for a service manager and for reloads of the configuration.
#[derive(Debug)]
pub struct RunningApp {
    parts: SharedParts,
    handlers: ArcSwap<Handlers>,
    keys: replica::Keys,
    tls: Option<Arc<Tls>>,
    main_slots: ConnectionSlots,
    admin_slots: ConnectionSlots,
    threads: ConnectionThreads,
    pool: BlockingPoolCheck,
    /// As it was given: the stricter verification of other replicas is not in it.
    config: tokio::sync::Mutex<Config>,
    /// The settings of the other replicas, as they were last known.
    others: parking_lot::Mutex<SettingsOfOthers>,
}

/// The settings of other replicas, each with its URL; none for a larder that runs alone.
pub type SettingsOfOthers = Vec<(String, String)>;

/// The parts that a reload keeps.
#[derive(Debug)]
struct SharedParts {
    mirror: Arc<Mirror>,
    jobs: Arc<Jobs>,
    recurring: Arc<Recurring>,
    traffic: Arc<TrafficHistory>,
    store: Arc<Store>,
    /// The generated admin token. Cached at its first read, because the store's folder may be replaced later.
    made_token: OnceLock<SecretString>,
    /// The key of signed archive URLs, cached in the same way.
    archive_url_key: OnceLock<SecretString>,
    started: Timestamp,
    requests: RequestMetrics,
    runs: Runs,
    /// For the larder of a `larder run`: its runs alone may use it.
    run_ids: Option<RunIds>,
    supervisor: Supervisor,
    registry: Arc<Registry>,
    clock: Clock,
    main_address: SocketAddr,
    admin_address: SocketAddr,
}

/// The request handlers of both listeners for one configuration. A request keeps the handlers it started with.
#[derive(Debug)]
struct Handlers {
    main: Arc<MainListener>,
    admin: Arc<Admin>,
    /// Proves to commands that this larder knows the admin token.
    admin_tls: Arc<rustls::ServerConfig>,
}

impl App {
    /// Opens the store and binds the sockets. The store comes first, so that a second larder on the same store stops
    /// before it changes anything.
    ///
    /// # Errors
    /// Returns a [`StartError`] that says what to change.
    pub async fn start(config: &Config, settings: StartSettings) -> Result<Self, StartError> {
        Self::start_on(config, settings, None).await
    }

    /// [`Self::start`] on the sockets of a larder that has ended, where there are any: clients that have connected meanwhile
    /// are answered.
    ///
    /// # Errors
    /// Returns a [`StartError`] that says what to change.
    pub async fn start_on(
        config: &Config,
        settings: StartSettings,
        sockets: Option<Sockets>,
    ) -> Result<Self, StartError> {
        if let Some(refusal) = config.refusal() {
            return Err(StartError::Refused(refusal));
        }
        let mut settings = settings;
        if let Some(limit) = open_files::limit() {
            open_files::share_out(&mut settings, limit);
            if settings.one_run.is_some() {
                // All clients of runs are on this machine.
                settings.connections.each_address = settings.connections.connections;
            } else if let Some(shortage) = open_files::shortage_at(limit) {
                tracing::warn!("{shortage}");
            }
        }
        let OpenMirror { mirror, store, keys, metrics, others } = open_mirror(config, &settings)?;
        if settings.one_run.is_none() {
            // Before anything else can fail: the doctor misses a service that was wanted and does not run. A store that cannot
            // be written is served, too.
            let recorded = mirror.library.record_service(settings.clock.now());
            let _ = recorded.inspect_err(|error| tracing::debug!(%error, "the start is not recorded"));
        }
        let tls = match &config.server.tls {
            Some(files) => Some(Arc::new(Tls::load(&files.certificate, &files.key)?)),
            None => None,
        };
        let (main, admin) = sockets.map(|sockets| (sockets.main, sockets.admin)).unzip();
        let (main, main_address) = bind("[server]", config.server.listen, main).await?;
        let (admin, admin_address) = bind("[admin]", config.admin.listen, admin).await?;
        let (handover, run_ids) = settings.one_run.map(|run| (run.handover, run.ids)).unzip();
        let handover = handover.flatten();
        let started = settings.clock.now();
        let jobs = Jobs::of_store(Arc::clone(&mirror), settings.clock.clone(), Arc::clone(&store)).await;
        let parts = SharedParts {
            recurring: Recurring::new(Arc::clone(&jobs), Arc::clone(&store), config, metrics.supervisor.clone()).await,
            traffic: {
                let (requests, runtime) = (metrics.requests.clone(), Arc::clone(&mirror.runtime));
                let source = Box::new(RequestTraffic { requests, runtime });
                TrafficHistory::of_store(Arc::clone(&store), settings.clock.clone(), source).await
            },
            supervisor: metrics.supervisor.clone(),
            requests: metrics.requests.clone(),
            runs: Runs::new(&mirror.library, settings.clock.clone()),
            run_ids,
            registry: metrics.registry(Arc::clone(&mirror), &jobs, started, settings.clock.clone()),
            jobs,
            started,
            mirror,
            store,
            made_token: OnceLock::new(),
            archive_url_key: OnceLock::new(),
            clock: settings.clock,
            main_address,
            admin_address,
        };
        let audit = parts.open_audit(config).await?;
        let handlers = ArcSwap::from_pointee(parts.build_handlers(config, parts.mirror.runtime.config(), audit)?);
        let current_config = tokio::sync::Mutex::new(config.clone());
        let admin_limits = open_files::of_admin(&settings.connections);
        let new_slots = |limits| ConnectionSlots::new(limits, parts.requests.clone());
        let (main_slots, admin_slots) = (new_slots(&settings.connections), new_slots(&admin_limits));
        let pool = BlockingPoolCheck::new(settings.pool_within);
        let others = parking_lot::Mutex::new(others);
        let threads = ConnectionThreads::one_for_each_core().map_err(StartError::Threads)?;
        let running = RunningApp {
            parts,
            handlers,
            keys,
            tls,
            main_slots,
            admin_slots,
            threads,
            pool,
            config: current_config,
            others,
        };
        let main_limits = settings.connections.clone();
        let (scrub, base) = (config.store.scrub, base_url_of(config, main_address));
        let socket = listen_at_socket(&running.parts.store);
        running.parts.store.local.note_listeners(ListenerNote { main: main_address, admin: admin_address, handover });
        Ok(Self { running: Arc::new(running), main, admin, socket, main_limits, admin_limits, base, scrub })
    }

    /// Address of the main listener.
    pub fn address(&self) -> SocketAddr {
        self.running.parts.main_address
    }

    /// Address of the admin listener.
    pub fn admin_address(&self) -> SocketAddr {
        self.running.parts.admin_address
    }

    /// Base URL of the main listener as clients see it, without a final slash.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The admin service, for this process.
    pub fn admin(&self) -> AdminClient {
        AdminClient::in_process(Arc::clone(&self.running.handlers.load().admin))
    }

    /// The counts of runs.
    pub fn runs(&self) -> Runs {
        self.running.parts.runs.clone()
    }

    /// Returns further handles of both listening sockets, for a process that continues this larder.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub fn sockets(&self) -> io::Result<Sockets> {
        let duplicate = |socket: &TcpListener| socket.as_fd().try_clone_to_owned().map(std::net::TcpListener::from);
        Ok(Sockets { main: duplicate(&self.main)?, admin: duplicate(&self.admin)? })
    }

    /// Returns a handle for use while this larder serves.
    pub fn running(&self) -> Arc<RunningApp> {
        Arc::clone(&self.running)
    }

    /// Size limit of the store in bytes.
    pub async fn size_limit(&self) -> u64 {
        // The limit depends on the stored bytes, so the index must be complete. A start waits at most a second for
        // that.
        let _ =
            tokio::time::timeout(Duration::from_secs(1), self.running.parts.store.local.index.until_complete()).await;
        let library = Arc::clone(&self.running.parts.mirror.library);
        self.running.parts.mirror.runtime.spawn_blocking(move || library.refresh_size_limit()).await.unwrap_or_default()
    }

    /// The host overrides of the CLI configuration to paste, without the clients' tokens. Contacts no upstream.
    ///
    /// # Errors
    /// A stored discovery document could not be read.
    pub async fn client_config(&self) -> Result<ClientConfig, Error> {
        ClientConfig::of(&self.running.parts.mirror, &self.base, ClientRoute::HostOverride).await
    }

    /// Serves until `stop`, then lets running downloads finish, and closes the store.
    pub async fn serve(self, stop: CancellationToken) -> Result<(), StoreError> {
        let Self { running, main, admin, socket, main_limits, admin_limits, scrub, .. } = self;
        if running.parts.run_ids.is_none() {
            running.parts.jobs.resume_interrupted();
        }
        let mut background_tasks = running.spawn_background_tasks(scrub, &stop);
        let drain = admin_limits.drain;
        let main = Listener {
            socket: main,
            transport: running.tls.clone().map_or(Transport::Plain, Transport::Tls),
            limits: main_limits,
            slots: running.main_slots.clone(),
            threads: running.threads.clone(),
        };
        let main_peer_class = {
            let running = Arc::clone(&running);
            move |address| running.handlers.load().main.clients.peer_class(address)
        };
        let handle_main: listener::Handler = {
            let running = Arc::clone(&running);
            Arc::new(move |request, peer| Box::pin(Arc::clone(&running.handlers.load().main).handle(request, peer)))
        };
        let admin_tls = {
            let running = Arc::clone(&running);
            move || TlsAcceptor::from(Arc::clone(&running.handlers.load().admin_tls))
        };
        let admin = Listener {
            socket: admin,
            transport: Transport::PlainOrAdminTls(Arc::new(admin_tls)),
            limits: admin_limits,
            slots: running.admin_slots.clone(),
            threads: ConnectionThreads::of_this_runtime(),
        };
        let answer_admin = {
            let running = Arc::clone(&running);
            move |request, caller| Arc::clone(&running.handlers.load().admin).handle(request, caller)
        };
        let handle_admin: listener::Handler = {
            let answer = answer_admin.clone();
            Arc::new(move |request, _| Box::pin(answer(request, AdminCaller::Network)))
        };
        tokio::join!(
            serve(main, main_peer_class, handle_main, stop.clone()),
            serve(admin, |_| PeerClass::Client, handle_admin, stop.clone()),
            async {
                if let Some(socket) = socket {
                    let answer = move |request| answer_admin(request, AdminCaller::OwnUser).boxed();
                    local_socket::serve(socket, answer, drain, stop.clone()).await;
                    local_socket::remove(&Store::admin_socket(running.parts.store.local.folder()));
                }
            },
            // Jobs stop at once, not after the last client has disconnected.
            async {
                stop.cancelled().await;
                running.parts.jobs.stop().await;
            },
        );
        // Background tasks have references to the mirror, which keep the store locked.
        background_tasks.shutdown().await;
        running.parts.traffic.save().await;
        running.parts.runs.save_totals().await;
        running.handlers.load_full().main.flush_audit().await;
        running.parts.mirror.library.close().await
    }
}

impl RunningApp {
    /// Starts the long-running tasks under the supervisor.
    fn spawn_background_tasks(self: &Arc<Self>, scrub: Option<Duration>, stop: &CancellationToken) -> JoinSet<()> {
        let SharedParts { mirror, recurring, traffic, supervisor, clock, .. } = &self.parts;
        let mut tasks = JoinSet::new();
        let (task_mirror, task_clock) = (Arc::clone(mirror), clock.clone());
        supervisor.spawn(&mut tasks, Task::Housekeeping, move || {
            jobs::run_housekeeping(Arc::clone(&task_mirror), task_clock.clone())
        });
        let (task_mirror, task_clock) = (Arc::clone(mirror), clock.clone());
        supervisor.spawn(&mut tasks, Task::CompleteHashes, move || {
            jobs::complete_hashes(Arc::clone(&task_mirror), task_clock.clone())
        });
        let library = Arc::clone(&mirror.library);
        supervisor.spawn(&mut tasks, Task::Owed, move || Arc::clone(&library).send_what_is_owed());
        let running = Arc::downgrade(self);
        supervisor.spawn(&mut tasks, Task::FleetSettings, move || replica::talk_to_others(Weak::clone(&running)));
        let task_recurring = Arc::clone(recurring);
        supervisor.spawn(&mut tasks, Task::RecurringWarmUps, move || Arc::clone(&task_recurring).run());
        let task_traffic = Arc::clone(traffic);
        supervisor.spawn(&mut tasks, Task::Traffic, move || Arc::clone(&task_traffic).run());
        if let Some(every) = scrub {
            let (task_mirror, task_clock) = (Arc::clone(mirror), clock.clone());
            supervisor.spawn(&mut tasks, Task::Scrub, move || {
                jobs::scrub(Arc::clone(&task_mirror), task_clock.clone(), every)
            });
        }
        if let Some(tls) = self.tls.clone() {
            let stop = stop.clone();
            let start = move || Arc::clone(&tls).reload_when_changed(stop.clone());
            supervisor.spawn(&mut tasks, Task::TlsReload, start);
        }
        tasks
    }

    /// One-line summary: base URL, mirrored hosts, store.
    pub async fn summary_line(&self) -> String {
        let config = self.config.lock().await;
        let hosts: Vec<String> = config.upstreams.iter().map(|upstream| upstream.host.to_string()).collect();
        let hosts = match hosts.len() {
            ..=3 => hosts.join(", "),
            many => format!("{many} registries"),
        };
        let offline_note = if config.network.offline { ", offline" } else { "" };
        format!(
            "{} mirrors {hosts}{offline_note}; store {}",
            base_url_of(&config, self.parts.main_address),
            config.store.path.display()
        )
    }

    /// Lists the upstreams whose discovery document cannot be had fresh, and the issuers of tokens whose keys cannot be had, with
    /// the reasons. Fetches what is not stored, so that it is there when a client needs it.
    pub async fn unreachable_upstreams(&self) -> Vec<String> {
        let mirror = &self.parts.mirror;
        let checks = mirror.runtime.upstream_hosts().into_iter().map(|host| async move {
            let call = mirror.runtime.job_context(self.parts.clock.now());
            match mirror.documents.get(&host, &call).await {
                Ok(document) if document.outcome == Outcome::Stale => Some(format!("{host} does not answer correctly")),
                Ok(_) => None,
                Err(error) => Some(format!("{host}: {}", error.explain().cause)),
            }
        });
        let keyrings = mirror.documents.keyrings(&mirror.runtime.config());
        let issuers = keyrings.iter().map(|(issuer, keyring)| async move {
            let keys = keyring.keys(self.parts.clock.now()).await;
            keys.err().map(|error| format!("{issuer}: {}", error.explain().cause))
        });
        let (upstreams, issuers) = tokio::join!(join_all(checks), join_all(issuers));
        upstreams.into_iter().chain(issuers).flatten().collect()
    }

    /// Checks that both listeners answer over their own sockets and that the blocking pool has free threads.
    pub async fn check_liveness(&self) -> Result<(), LivenessError> {
        let (main, admin) =
            (loopback_if_unspecified(self.parts.main_address), loopback_if_unspecified(self.parts.admin_address));
        let peer_class = self.handlers.load().main.clients.peer_class(main.ip());
        let main_check = ListenerTarget { address: main, slots: &self.main_slots, peer_class };
        let admin_check = ListenerTarget { address: admin, slots: &self.admin_slots, peer_class: PeerClass::Client };
        watchdog::check_listeners(main_check, admin_check).await?;
        self.threads.respond().await;
        let store = Arc::clone(&self.parts.store);
        self.pool.check(move || store.local.try_disk().is_ok())
    }
}

impl SharedParts {
    /// Opens the audit trail of a configuration. What a run of one user fetches is nobody's decision.
    async fn open_audit(&self, config: &Config) -> Result<Option<Arc<AuditTrail<AuditLine>>>, StartError> {
        match config.audit.as_ref().filter(|_| self.run_ids.is_none()) {
            Some(target) => Ok(Some(AuditTrail::open(target, self.requests.audit().clone()).await?)),
            None => Ok(None),
        }
    }

    /// Builds the request handlers for a configuration. Counters and request numbers continue.
    fn build_handlers(
        &self,
        config: &Config,
        runtime_config: Arc<RuntimeConfig>,
        audit: Option<Arc<AuditTrail<AuditLine>>>,
    ) -> Result<Handlers, StartError> {
        // Rendered answers of an earlier configuration are dropped with their `Protocols`.
        let tokens = Arc::new(ClientTokens::new(&config.clients, self.mirror.documents.keyrings(&runtime_config)));
        let archive_urls = match tokens.is_empty() {
            true => None,
            false => Some(Arc::new(ArchiveUrls::new(&self.archive_url_keys(config)?, tokens.classes()))),
        };
        let mirror = Arc::clone(&self.mirror);
        let protocols = protocols_of(config, self.main_address, mirror, runtime_config, archive_urls);
        let reads = if self.run_ids.is_some() { ReadAccess::Token } else { ReadAccess::Open };
        let clients = Clients {
            allowed: config.server.clients.clone(),
            runs: self.run_ids.clone(),
            trusted_proxies: config.server.trusted_proxies.clone(),
        };
        let main = MainListener::new(
            Arc::clone(&protocols),
            self.requests.clone(),
            clients,
            tokens,
            self.runs.clone(),
            self.clock.clone(),
            audit,
        );
        let token = config.admin.token.clone().map_or_else(|| self.generated_token(config), Ok)?;
        let admin_tls = admin_tls::server_config(&token)?;
        let serving = ServingLarder {
            access: Access::new(token, self.admin_address.ip(), reads),
            recurring: Arc::clone(&self.recurring),
            started: self.started,
            traffic: Arc::clone(&self.traffic),
        };
        let process = match self.run_ids {
            None => AdminProcess::Service(serving),
            Some(_) => AdminProcess::Run(serving),
        };
        let admin = Arc::new(Admin {
            mirror: Arc::clone(&self.mirror),
            protocols,
            jobs: Arc::clone(&self.jobs),
            process,
            registry: Arc::clone(&self.registry),
            requests: self.requests.clone(),
            base: base_url_of(config, self.main_address),
            runs: Some(RunAccess {
                runs: self.runs.clone(),
                listener: config.server.tls.is_none().then(|| loopback_if_unspecified(self.main_address)),
            }),
            clock: self.clock.clone(),
            config_file: config.file(),
            store_named_by: config.store.named_by,
            default_host: config.default_host(),
            bundles: config.bundle.clone(),
            clients_authenticate: !config.clients.is_empty(),
        });
        Ok(Handlers { main, admin, admin_tls })
    }

    /// The keys of signed archive URLs: the first one signs. Each replica of a fleet takes what another one has signed.
    fn archive_url_keys(&self, config: &Config) -> Result<Vec<SecretString>, StoreError> {
        if let Some(fleet) = &config.fleet {
            return Ok(fleet.secrets.iter().map(|secret| replica::secret_for("archive URLs", secret)).collect());
        }
        if let Some(key) = self.archive_url_key.get() {
            return Ok(vec![key.clone()]);
        }
        let key = SecretString::from(self.store.local.archive_url_key()?);
        Ok(vec![self.archive_url_key.get_or_init(|| key).clone()])
    }

    fn generated_token(&self, config: &Config) -> Result<SecretString, StoreError> {
        if let Some(secret) = config.fleet.as_ref().and_then(|fleet| fleet.secrets.first()) {
            let token = replica::secret_for("the admin token", secret);
            self.store.local.set_admin_token(token.expose_secret())?;
            return Ok(token);
        }
        if let Some(token) = self.made_token.get() {
            return Ok(token.clone());
        }
        let token = SecretString::from(self.store.local.admin_token()?);
        Ok(self.made_token.get_or_init(|| token).clone())
    }
}

/// Opens the store and builds the admin service for one command: without listeners, access rules and background tasks,
/// and with jobs that do not resume later. Creates the store where there is none.
///
/// # Errors
/// Returns a [`StartError`] that says what to change.
pub async fn admin_of_command(config: &Config) -> Result<Arc<Admin>, StartError> {
    let settings = StartSettings { is_command: true, ..StartSettings::default() };
    let OpenMirror { mirror, store, metrics, .. } = open_mirror(config, &settings)?;
    let clock = settings.clock;
    let jobs = Jobs::new(Arc::clone(&mirror), clock.clone());
    Ok(Arc::new(Admin {
        process: AdminProcess::Command { warm_ups: Recurring::states_from_store(store, &clock, config).await },
        requests: metrics.requests.clone(),
        protocols: protocols_of(config, config.server.listen, Arc::clone(&mirror), mirror.runtime.config(), None),
        registry: metrics.registry(Arc::clone(&mirror), &jobs, clock.now(), clock.clone()),
        jobs,
        mirror,
        base: base_url_of(config, config.server.listen),
        runs: None,
        clock,
        config_file: config.file(),
        store_named_by: config.store.named_by,
        default_host: config.default_host(),
        bundles: config.bundle.clone(),
        clients_authenticate: !config.clients.is_empty(),
    }))
}

/// Opens the store of a larder that ran alone, in `folder`, and that of a replica, which is to take the first one over.
///
/// # Errors
/// There is no such store, or one of the two cannot be opened.
pub fn stores_to_adopt(config: &Config, folder: &Path) -> Result<[Arc<Mirror>; 2], StartError> {
    if !Store::is_used(folder)? {
        return Err(StartError::Refused(format!("{} is not the store of a larder", folder.display())));
    }
    let settings = StartSettings { is_command: true, ..StartSettings::default() };
    let mut alone = Config { fleet: None, ..config.clone() };
    alone.store.path = folder.to_owned();
    // Nothing of it may be evicted.
    alone.store.max_size = SizeLimit::Bytes(u64::MAX);
    let from = open_mirror(&alone, &StartSettings { limits: Limits::without_eviction(), ..settings.clone() })?;
    let into = open_mirror(config, &settings)?;
    Ok([from.mirror, into.mirror])
}

/// The client protocols of one configuration, for a main listener on `bound`.
fn protocols_of(
    config: &Config,
    bound: SocketAddr,
    mirror: Arc<Mirror>,
    runtime_config: Arc<RuntimeConfig>,
    archive_urls: Option<Arc<ArchiveUrls>>,
) -> Arc<Protocols> {
    let route_context = RouteContext {
        upstreams: config.upstreams.iter().map(|upstream| upstream.host.clone()).collect(),
        default_upstream: config.server.default_upstream.clone(),
    };
    let mount = Mount::new(config.server.public_url.as_ref()).listening_at(base_url_of(config, bound));
    Arc::new(Protocols::new(mirror, runtime_config, mount, route_context, archive_urls, config.store.memory.as_u64()))
}

/// Makes the socket for the commands of this machine. Without it they use the admin listener.
fn listen_at_socket(store: &Store) -> Option<UnixListener> {
    if store.local.is_shared() {
        return None;
    }
    let path = Store::admin_socket(store.local.folder());
    let listener = local_socket::listen(&path);
    let warn = |error: &io::Error| {
        tracing::warn!(path = %path.display(), %error, "the store has no socket for commands; they use the admin listener");
    };
    listener.inspect_err(warn).ok()
}

/// Connections that the kernel completes before they are accepted. Beyond them, a client that connects waits a second before
/// it tries again.
const BACKLOG: u32 = 4096;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // As for every server: a restart must not wait for connections of the last one.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Binds a socket, unless there is one already.
async fn bind(
    section: &'static str,
    address: SocketAddr,
    bound: Option<std::net::TcpListener>,
) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { section, address, source };
    let listener = match bound {
        Some(socket) => TcpListener::from_std(socket),
        None => listen(address),
    };
    let listener = listener.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// Base URL of a larder as clients see it, without a final slash.
pub fn base_url_of(config: &Config, bound: SocketAddr) -> String {
    if let Some(url) = &config.server.public_url {
        return url.as_str().trim_end_matches('/').to_owned();
    }
    let scheme = if config.server.tls.is_some() { "https" } else { "http" };
    let address = loopback_if_unspecified(bound);
    format!("{scheme}://{}", SocketAddr::new(address.ip(), address.port()))
}

/// Replaces the unspecified address, which cannot be connected to, by loopback.
pub fn loopback_if_unspecified(mut bound: SocketAddr) -> SocketAddr {
    if bound.ip().is_unspecified() {
        bound.set_ip(if bound.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    bound
}

/// Startup settings that are not in the configuration file.
#[derive(Debug, Clone)]
pub struct StartSettings {
    /// Source of the current time.
    pub clock: Clock,
    /// Timeouts and sizes of the mirror. The store's size limit comes from the configuration.
    pub limits: Limits,
    /// Limits on outgoing requests and git fetches.
    pub upstream_limits: UpstreamLimits,
    /// Limits on client connections of each listener.
    pub connections: listener::Limits,
    /// The longest wait for a thread of the blocking pool before the liveness check fails.
    pub pool_within: Duration,
    /// True for a command without listeners, which no other larder of a fleet needs to know.
    pub is_command: bool,
    /// Set where this larder is for one run. A service lasts until it is stopped, and continues interrupted jobs.
    pub one_run: Option<OneRun>,
    /// Opens the store in a folder, at this time.
    pub open_store: fn(&Path, Timestamp) -> Result<Store, StoreError>,
}

/// A larder that lasts as long as a client does. Jobs stay as they are, for the next service.
#[derive(Debug, Clone)]
pub struct OneRun {
    /// The Unix socket at which other runs get the listening sockets, to continue this larder.
    pub handover: Option<PathBuf>,
    /// The ids of the runs that it answers.
    pub ids: RunIds,
}

impl Default for StartSettings {
    fn default() -> Self {
        Self {
            clock: Clock::default(),
            limits: Limits::default(),
            upstream_limits: UpstreamLimits::default(),
            connections: listener::Limits::default(),
            pool_within: watchdog::POOL_TIMEOUT,
            is_command: false,
            one_run: None,
            open_store: Store::open,
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
    let outbound = outbound(config, Traffic::default(), UpstreamLimits::default());
    let issuers = outbound.and_then(|outbound| Ok(Issuers::new(config, &outbound)?));
    problems.extend(issuers.err().map(|error| error.to_string()));
    if let Some(AuditTarget::File(path)) = &config.audit
        && let Some(folder) = path.parent().filter(|folder| !folder.is_dir())
    {
        problems.push(format!("[audit] path: there is no folder {}", folder.display()));
    }
    problems
}

/// Builds larder's outbound connector.
///
/// # Errors
/// A file that it needs cannot be read.
pub fn outbound(config: &Config, traffic: Traffic, limits: UpstreamLimits) -> Result<Outbound, StartError> {
    let own = OwnEntry::random().map_err(|_| StartError::Random)?;
    Ok(Outbound::new(&config.network, &config.upstreams, own, traffic, limits)?)
}

/// A mirror whose store is open, without listeners or jobs.
#[derive(Debug)]
pub struct OpenMirror {
    /// The mirror.
    pub mirror: Arc<Mirror>,
    /// Its store.
    pub store: Arc<Store>,
    /// The keys of a replica.
    keys: replica::Keys,
    /// The counters of every part.
    metrics: MetricSources,
    /// The settings of the other replicas.
    others: SettingsOfOthers,
}

/// Opens the store and builds a mirror without listeners or jobs, for commands that run without a larder.
///
/// # Errors
/// Returns a [`StartError`] that says what to change.
pub fn open_mirror(config: &Config, settings: &StartSettings) -> Result<OpenMirror, StartError> {
    let (store, keys) = match &config.fleet {
        Some(fleet) => replica::open_store(config, fleet, settings)?,
        None => {
            // Its first records would be nothing to its fleet.
            if let Some(id) = Local::fleet_of(&config.store.path)? {
                let path = config.store.path.display();
                let reason = format!(
                    "{path} is the folder of a replica of the fleet {id}; name the fleet in [fleet], or another folder"
                );
                return Err(StartError::Refused(reason));
            }
            ((settings.open_store)(&config.store.path, settings.clock.now())?, replica::Keys::default())
        }
    };
    let store = Arc::new(store);
    // Before anything is stored by a laxer one.
    let others = store.records.fleet().and_then(|fleet| fleet.settings_of_others().ok()).unwrap_or_default();
    let config = &replica::effective(config, &others);
    let metrics = MetricSources::new();
    let upstreams = Upstreams::new(&config.upstreams, &config.credentials, &config.network.allow_private);
    let outbound = outbound(config, metrics.counters.traffic.clone(), settings.upstream_limits)?;
    let issuers = Issuers::new(config, &outbound)?;
    let runtime_config = RuntimeConfig::new(upstreams, outbound, issuers, config);
    let counters = metrics.counters.clone();
    let mirror = Mirror::new(Arc::clone(&store), runtime_config, settings.limits, counters, &metrics.supervisor)?;
    Ok(OpenMirror { mirror, store, keys, metrics, others })
}

/// The counters of every part, and their registry.
#[derive(Debug)]
struct MetricSources {
    requests: RequestMetrics,
    counters: Counters,
    supervisor: Supervisor,
    registry: Registry,
}

impl MetricSources {
    fn new() -> Self {
        let (mut registry, counters, supervisor) = (Registry::default(), Counters::default(), Supervisor::default());
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("larder_build", "Version of this larder", build);
        let requests = RequestMetrics::new(&mut registry);
        counters.register(&mut registry);
        supervisor.register(&mut registry);
        Self { requests, counters, supervisor, registry }
    }

    /// Adds what is computed when the metrics are read, and returns all metrics.
    fn registry(mut self, mirror: Arc<Mirror>, jobs: &Arc<Jobs>, started: Timestamp, clock: Clock) -> Arc<Registry> {
        let (help, start_time) = ("Start time of this larder, since 1970", ConstGauge::new(started.0));
        self.registry.register_with_unit("larder_start_time", help, Unit::Seconds, start_time);
        self.registry.register_collector(Box::new(MirrorGauges { operations: Arc::clone(&mirror.operations), clock }));
        jobs.register_metrics(&mut self.registry);
        Arc::new(self.registry)
    }
}

/// The reason why larder did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration would serve credentialed upstreams to unknown clients (promise 8).
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
    /// The threads of connections could not be started.
    #[error(
        "the threads that serve connections could not be started: {0}; raise the limits of processes and open files"
    )]
    Threads(#[source] std::io::Error),
    /// The audit trail could not be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The admin token makes no key.
    #[error("[admin] token: {0}")]
    AdminTls(#[from] rustls::Error),
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
