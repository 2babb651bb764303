//! The connections to the database of a fleet. Callers block, for a bounded time: at most 128 wait, a step takes at most 1.5
//! seconds, and while the database does not answer, all but one caller each second are told so at once.

use std::fmt;
use std::path::Path;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use deadpool_postgres::{
    ClientWrapper, Connect, Hook, HookError, Manager, ManagerConfig, Metrics, Object, Pool, PoolError, RecyclingMethod,
    Runtime as PoolRuntime, Timeouts,
};
use futures_util::future::{BoxFuture, select_ok};
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config};
use url::form_urlencoded;

use super::tls::DatabaseTls;
use super::trouble::Trouble;
use crate::config;
use crate::store::StoreError;
use crate::upstream::clients::ConnectorError;

/// The most connections of a replica.
pub const MAX_CONNECTIONS: usize = 8;
/// The most callers that wait for the database; the next one is told that it is busy.
const MAX_WAITING: usize = 128;
/// The longest time to connect, TLS and the password included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time for a step: a connection, its statements, their answers.
const STEP_TIMEOUT: Duration = Duration::from_millis(1500);
/// The time after which an idle connection is probed, so that one that leads nowhere ends.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// The time for which a database that did not answer is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(1);

/// A step at the database that did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DatabaseError {
    /// Too many callers wait already.
    #[error("{MAX_WAITING} requests wait for the database")]
    Busy,
    /// No connection was made.
    #[error("{0}")]
    Unreachable(String),
    /// No answer came in time. A write may have happened.
    #[error("the database gave no answer within {} ms", .0.as_millis())]
    Slow(Duration),
    /// The connection broke. A write may have happened.
    #[error("the connection to the database broke: {0}")]
    Broken(String),
    /// The database refused the statement.
    #[error("the database refused: {message} (SQLSTATE {})", .state.code())]
    Refused {
        /// The reason, as a code.
        state: SqlState,
        /// The reason in words.
        message: String,
    },
}

impl DatabaseError {
    /// True if the same step may succeed at once, judged again: others were faster, or the connection broke.
    pub fn may_be_repeated(&self) -> bool {
        match self {
            Self::Broken(_) => true,
            // A standby became the primary, or the other way round: the next connection is to the primary.
            Self::Refused { state, .. } => [
                SqlState::T_R_SERIALIZATION_FAILURE,
                SqlState::T_R_DEADLOCK_DETECTED,
                SqlState::READ_ONLY_SQL_TRANSACTION,
            ]
            .contains(state),
            Self::Busy | Self::Unreachable(_) | Self::Slow(_) => false,
        }
    }
}

impl From<DatabaseError> for StoreError {
    fn from(error: DatabaseError) -> Self {
        // Clients see the text of the store's error. The server's own words may name roles, hosts and tables.
        let text = match &error {
            DatabaseError::Refused { state, .. } if *state == SqlState::UNDEFINED_FUNCTION => {
                "the database lacks a migration: run larder fleet migrate --serve-as ROLE, as its owner".to_owned()
            }
            DatabaseError::Refused { state, .. } => format!("the database refused (SQLSTATE {})", state.code()),
            DatabaseError::Unreachable(_) => "no connection to the database".to_owned(),
            DatabaseError::Broken(_) => "the connection to the database broke".to_owned(),
            DatabaseError::Busy | DatabaseError::Slow(_) => error.to_string(),
        };
        Self::Unreachable(text)
    }
}

/// The connections that a step may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// Those of all steps.
    Shared,
    /// The one that is kept for the feed, also while the database is left alone: the feed asks each second anyway, and its first
    /// answer ends the trouble.
    Apart,
}

/// The connections of one replica to the database.
pub struct Database {
    pool: Pool,
    /// One connection more, for the feed: no crowd delays it.
    apart: Pool,
    /// The thread that drives the connections. `None` only while it is dropped.
    runtime: Option<Runtime>,
    /// The hosts to which connections are made, with the password.
    hosts: Hosts,
    waiting: Semaphore,
    health: Mutex<Health>,
    /// The questions since the start, without those of the feed.
    questions: AtomicU64,
}

/// The state of the database: answering, or in trouble.
#[derive(Debug)]
struct Health {
    answered: Instant,
    trouble: Trouble<DatabaseError>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The settings of the pool have the password.
        f.debug_struct("Database").field("pool", &self.pool.status()).finish_non_exhaustive()
    }
}

/// The database cannot be used as it is configured.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The URL cannot be read. The message has no part of it.
    #[error("the URL of the database cannot be used: {0}")]
    Url(String),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] ConnectorError),
    /// The system refused a thread.
    #[error("no thread for the database: {0}")]
    Thread(#[from] std::io::Error),
    /// The settings of the connections contradict each other.
    #[error("the connections to the database cannot be set up: {0}")]
    Pool(String),
}

impl Database {
    /// Prepares connections to the database at `url`, as `psql` would take it. Connects to nothing yet. `authorities` is a
    /// file of those that may sign its certificate; `None` for those of the system.
    ///
    /// # Errors
    /// The settings cannot be used.
    pub fn new(url: &str, authorities: Option<&Path>) -> Result<Self, SettingsError> {
        let hosts = Arc::new(ArcSwap::from_pointee(HostSettings { configs: hosts_of(url)?, began: Instant::now() }));
        let primary = Primary { hosts: Arc::clone(&hosts), tls: DatabaseTls::trusting(authorities)? };
        let (pool, apart) = (pool_of(primary.clone(), MAX_CONNECTIONS - 1)?, pool_of(primary, 1)?);
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).thread_name("larder-database").enable_all().build()?;
        let health = Health { answered: Instant::now(), trouble: Trouble::new(LEFT_ALONE) };
        let (waiting, questions) = (Semaphore::new(MAX_WAITING), AtomicU64::default());
        Ok(Self { pool, apart, runtime: Some(runtime), hosts, waiting, health: Mutex::new(health), questions })
    }

    /// Connects by another URL from now on. What is under way ends on the connection that it has.
    pub fn use_hosts(&self, configs: Vec<Config>) {
        self.hosts.store(Arc::new(HostSettings { configs, began: Instant::now() }));
        // Those in use go when they come back.
        for pool in [&self.pool, &self.apart] {
            pool.retain(|_, _| false);
        }
    }

    /// Begins to connect for the feed, whose first question then finds a connection.
    pub fn connect_ahead(&self) {
        if let Some(runtime) = &self.runtime {
            let apart = self.apart.clone();
            // The question tells why there is none.
            runtime.spawn(async move { drop(apart.get().await) });
        }
    }

    /// Runs `step` on a connection, and waits for its result: at most 1.5 seconds, after which the connection is closed.
    ///
    /// # Errors
    /// The database did not answer, or refused.
    pub fn run<T: Send + 'static>(
        &self,
        step: impl for<'a> FnOnce(&'a Client) -> BoxFuture<'a, Result<T, tokio_postgres::Error>> + Send + 'static,
    ) -> Result<T, DatabaseError> {
        self.run_within(STEP_TIMEOUT, step)
    }

    /// Runs `step` like [`Database::run`], for at most `limit`: work of an operator may take longer.
    ///
    /// # Errors
    /// The database did not answer, or refused.
    pub fn run_within<T: Send + 'static>(
        &self,
        limit: Duration,
        step: impl for<'a> FnOnce(&'a Client) -> BoxFuture<'a, Result<T, tokio_postgres::Error>> + Send + 'static,
    ) -> Result<T, DatabaseError> {
        let _place = self.waiting.try_acquire().map_err(|_| DatabaseError::Busy)?;
        self.admit()?;
        self.questions.fetch_add(1, Ordering::Relaxed);
        self.run_in(&self.pool, limit, step)
    }

    /// The questions since the start, without those by which this replica hears of others.
    pub fn questions(&self) -> u64 {
        self.questions.load(Ordering::Relaxed)
    }

    /// Lets a caller through, unless the database did not answer a moment ago.
    ///
    /// # Errors
    /// The reason why it did not.
    pub fn admit(&self) -> Result<(), DatabaseError> {
        self.health.lock().trouble.admit(Instant::now())
    }

    /// Runs `step` like [`Database::run`], on one of the lines.
    ///
    /// # Errors
    /// The database did not answer, or refused.
    pub fn run_on<T: Send + 'static>(
        &self,
        line: Line,
        step: impl for<'a> FnOnce(&'a Client) -> BoxFuture<'a, Result<T, tokio_postgres::Error>> + Send + 'static,
    ) -> Result<T, DatabaseError> {
        match line {
            Line::Shared => self.run(step),
            Line::Apart => self.run_in(&self.apart, STEP_TIMEOUT, step),
        }
    }

    fn run_in<T: Send + 'static>(
        &self,
        pool: &Pool,
        limit: Duration,
        step: impl for<'a> FnOnce(&'a Client) -> BoxFuture<'a, Result<T, tokio_postgres::Error>> + Send + 'static,
    ) -> Result<T, DatabaseError> {
        let Some(runtime) = &self.runtime else { return Err(DatabaseError::Busy) };
        let (pool, (sender, receiver)) = (pool.clone(), mpsc::sync_channel(1));
        runtime.spawn(async move {
            // The caller waits no longer than this.
            let _ = sender.send(run_on(&pool, limit, step).await);
        });
        let done = receiver.recv_timeout(limit + STEP_TIMEOUT).unwrap_or(Err(DatabaseError::Slow(limit)));
        let is_in_trouble = self.health.lock().record(done.as_ref().err(), Instant::now());
        if is_in_trouble || matches!(done, Err(DatabaseError::Broken(_))) {
            // The idle ones may lead nowhere, too, and each would cost another step its time.
            for pool in [&self.pool, &self.apart] {
                pool.retain(|_, _| false);
            }
        }
        done
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waits for nothing: a store may be closed from a thread that must not block.
            runtime.shutdown_background();
        }
    }
}

/// The hosts of a database.
type Hosts = Arc<ArcSwap<HostSettings>>;

/// The settings of the hosts.
#[derive(Debug)]
struct HostSettings {
    configs: Vec<Config>,
    /// The time from which they count. Older connections were made by others: their role may have no rights any more.
    began: Instant,
}

/// The settings of the hosts in a URL.
///
/// # Errors
/// It cannot be used.
pub fn hosts_of(url: &str) -> Result<Vec<Config>, SettingsError> {
    let urls = config::urls_of_hosts(url).map_err(|bad| SettingsError::Url(bad.to_owned()))?;
    urls.iter().map(|url| config_of(url)).collect()
}

/// The hosts of a database, of which the primary takes the connections. All are asked at once: one that leads nowhere, such as
/// the former primary, costs no time.
#[derive(Clone)]
struct Primary {
    hosts: Hosts,
    tls: DatabaseTls,
}

fn pool_of(primary: Primary, connections: usize) -> Result<Pool, SettingsError> {
    let hosts = Arc::clone(&primary.hosts);
    let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_connect(Config::new(), primary, manager);
    let is_of_now = Hook::sync_fn(move |_: &mut ClientWrapper, metrics: &Metrics| {
        if metrics.created < hosts.load().began { Err(HookError::message("made by an older URL")) } else { Ok(()) }
    });
    let timeouts = Timeouts { wait: Some(STEP_TIMEOUT), create: Some(CONNECT_TIMEOUT), recycle: Some(CONNECT_TIMEOUT) };
    let pool = Pool::builder(manager).max_size(connections).timeouts(timeouts).pre_recycle(is_of_now);
    let pool = pool.runtime(PoolRuntime::Tokio1).build();
    pool.map_err(|e| SettingsError::Pool(e.to_string()))
}

impl Connect for Primary {
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        // There is at least one host: a URL without a comma names one.
        let (hosts, tls) = (self.hosts.load_full(), self.tls.clone());
        Box::pin(async move {
            let attempts = hosts.configs.iter().map(|config| Box::pin(config.connect(tls.clone())));
            let ((client, connection), _) = select_ok(attempts.collect::<Vec<_>>()).await?;
            // Its end is seen by the client.
            Ok((client, tokio::spawn(async move { drop(connection.await) })))
        })
    }
}

async fn run_on<T>(
    pool: &Pool,
    limit: Duration,
    step: impl for<'a> FnOnce(&'a Client) -> BoxFuture<'a, Result<T, tokio_postgres::Error>>,
) -> Result<T, DatabaseError> {
    let end = tokio::time::Instant::now() + limit;
    let connection = match tokio::time::timeout_at(end, pool.get()).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(PoolError::Backend(error))) => return Err(not_connected(&error)),
        Ok(Err(PoolError::Timeout(deadpool_postgres::TimeoutType::Create))) => {
            let reason = format!("no connection within {} ms", CONNECT_TIMEOUT.as_millis());
            return Err(DatabaseError::Unreachable(reason));
        }
        Ok(Err(_)) | Err(_) => return Err(DatabaseError::Slow(limit)),
    };
    match tokio::time::timeout_at(end, step(&connection)).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => {
            let error = failure(&error);
            if matches!(&error, DatabaseError::Refused { state, .. } if *state == SqlState::READ_ONLY_SQL_TRANSACTION) {
                // It leads to a standby.
                drop(Object::take(connection));
            }
            Err(error)
        }
        Err(_) => {
            // Its answer may still come, and must not be taken for that of the next step.
            drop(Object::take(connection));
            Err(DatabaseError::Slow(limit))
        }
    }
}

/// A connection that was not made: the reason of the server, or of the system.
fn not_connected(error: &tokio_postgres::Error) -> DatabaseError {
    match error.as_db_error() {
        Some(refused) => {
            DatabaseError::Unreachable(format!("{} (SQLSTATE {})", refused.message(), refused.code().code()))
        }
        None => DatabaseError::Unreachable(with_causes(error)),
    }
}

fn failure(error: &tokio_postgres::Error) -> DatabaseError {
    match error.as_db_error() {
        // The server ends the connection: it stops, or an operator stopped the session.
        Some(ended) if ended.code().code().starts_with("57P") => DatabaseError::Broken(ended.message().to_owned()),
        Some(refused) => {
            DatabaseError::Refused { state: refused.code().clone(), message: refused.message().to_owned() }
        }
        None => DatabaseError::Broken(with_causes(error)),
    }
}

/// An error and its causes, in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.contains(&next_text) {
            text = format!("{text}: {next_text}");
        }
        cause = next.source();
    }
    text
}

impl Health {
    /// Records the end of a step; returns true while the database does not answer. The log says when that begins and ends.
    fn record(&mut self, failed: Option<&DatabaseError>, now: Instant) -> bool {
        match failed {
            None | Some(DatabaseError::Refused { .. }) => {
                self.answered = now;
                if self.trouble.end() {
                    tracing::info!("the database answers again");
                }
                if let Some(error) = failed {
                    tracing::warn!(%error, "a statement was refused");
                }
            }
            // A step may be slow for its own sake, while others are answered: but not if all answers came in its first half.
            Some(DatabaseError::Slow(_)) if now.duration_since(self.answered) < STEP_TIMEOUT / 2 => {}
            Some(error @ (DatabaseError::Unreachable(_) | DatabaseError::Slow(_))) => {
                if self.trouble.note(error.clone(), now) {
                    tracing::error!(%error, "the database does not answer; what is here is served meanwhile");
                }
            }
            Some(DatabaseError::Busy | DatabaseError::Broken(_)) => {}
        }
        self.trouble.is_here()
    }
}

/// The settings in a URL of `psql` with one host. `sslmode` may ask for less than larder does: it counts on a Unix socket only.
fn config_of(url: &str) -> Result<Config, SettingsError> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let is_ours = |name: &str| matches!(name, "sslmode" | "sslrootcert" | "channel_binding");
    let rest = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| !is_ours(name));
    let rest = form_urlencoded::Serializer::new(String::new()).extend_pairs(rest).finish().replace('+', "%20");
    // The error of the library may quote the URL, and so the password.
    let form = || SettingsError::Url("its form is postgresql://USER:PASSWORD@HOST:PORT/NAME".to_owned());
    let mut config = Config::from_str(&format!("{base}?{rest}")).map_err(|_| form())?;
    let hosts = config.get_hosts();
    let is_local = !hosts.is_empty() && hosts.iter().all(|host| matches!(host, Host::Unix(_)));
    if !config.get_hostaddrs().is_empty() && (hosts.is_empty() || is_local) {
        let text = "hostaddr names no host whose certificate could be verified; name it with host";
        return Err(SettingsError::Url(text.to_owned()));
    }
    config.ssl_mode(if is_local { SslMode::Disable } else { SslMode::Require });
    // The name of the host may have a second address.
    config.connect_timeout(CONNECT_TIMEOUT / 2).tcp_user_timeout(STEP_TIMEOUT * 2).application_name("larder");
    config.keepalives_idle(KEEPALIVE).keepalives_interval(KEEPALIVE).keepalives_retries(1);
    // A standby takes no writes, and may lag behind what was written.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_as_psql_reads_it_and_always_verified() {
        let url = "postgresql://larder_run:p%40ss@db-1:5433/larder?sslmode=verify-full&sslrootcert=/ca.pem";
        let config = config_of(url).unwrap();
        assert_eq!(config.get_hosts(), [Host::Tcp("db-1".into())]);
        assert_eq!((config.get_ports(), config.get_password()), (&[5433][..], Some(&b"p@ss"[..])));
        assert_eq!(
            (config.get_ssl_mode(), config.get_target_session_attrs()),
            (SslMode::Require, TargetSessionAttrs::ReadWrite)
        );
        for weaker in ["disable", "prefer", "allow", "require"] {
            assert_eq!(
                config_of(&format!("postgres://a@b/c?sslmode={weaker}")).unwrap().get_ssl_mode(),
                SslMode::Require
            );
        }
        let socket = config_of("postgresql:///larder?host=/run/postgresql&user=larder_run").unwrap();
        assert_eq!(
            (socket.get_hosts(), socket.get_ssl_mode()),
            (&[Host::Unix("/run/postgresql".into())][..], SslMode::Disable)
        );
        for bad in [
            "postgresql://larder_run:s3cret@db:port/larder",
            "postgresql://a:s3cret@b/c?no_such_option=s3cret",
            "postgresql://a:12?s3cret@b/c",
            "postgresql://a:s3cret@/c?hostaddr=10.0.0.5",
            "postgresql:///c?host=/run/postgresql&hostaddr=10.0.0.5",
        ] {
            let error = config_of(bad).unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_database_that_does_not_answer_is_tried_once_a_second() {
        let start = Instant::now();
        let at = |milliseconds: u64| start + Duration::from_millis(milliseconds);
        let mut health = Health { answered: start, trouble: Trouble::new(LEFT_ALONE) };
        let unreachable = DatabaseError::Unreachable("connection refused".into());
        health.record(Some(&unreachable), at(0));
        assert!(matches!(health.trouble.admit(at(999)), Err(DatabaseError::Unreachable(_))));
        assert!(
            health.trouble.admit(at(1000)).is_ok() && health.trouble.admit(at(1000)).is_err(),
            "two probes at once"
        );
        health.record(None, at(1001));
        assert!(health.trouble.admit(at(1002)).is_ok() && health.trouble.admit(at(1002)).is_ok());
        // Slow for its own sake, while others are answered.
        health.record(Some(&DatabaseError::Slow(STEP_TIMEOUT)), at(1750));
        assert!(health.trouble.admit(at(1750)).is_ok());
        health.record(Some(&DatabaseError::Slow(STEP_TIMEOUT)), at(1752));
        assert!(matches!(health.trouble.admit(at(1753)), Err(DatabaseError::Slow(_))));
    }
}
