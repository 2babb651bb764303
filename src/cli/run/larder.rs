//! The larder of a run: the one that has the store, else one within this process, on free ports of the loopback address.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::temp_folder::TempFolder;
use crate::app::{App, Lifetime, StartError, StartSettings};
use crate::cli::CommonOptions;
use crate::cli::admin_service::{parse, running_larder};
use crate::config::{Config, Server};
use crate::http::admin_client::{AdminClient, AdminClientError, AdminToken};
use crate::protocol::admin::{CLIENT_CONFIG, RUNS, STATUS};
use crate::protocol::run::{RunId, RunReport};
use crate::store::{Store, StoreError};

/// The longest wait for a larder that has the store and does not listen yet, or not any more.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two looks at the store's lock.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The larder of a run.
#[derive(Debug)]
pub(super) struct LarderOfRun {
    id: RunId,
    admin: AdminClient,
    own: Option<OwnLarder>,
    note: Option<String>,
}

/// A larder within this process.
#[derive(Debug)]
struct OwnLarder {
    stop: CancellationToken,
    serving: JoinHandle<Result<(), StoreError>>,
    temporary_store: Option<TempFolder>,
}

/// The part of a status that a run needs.
#[derive(Debug, Deserialize)]
struct StatusOfRunning {
    offline: bool,
}

impl LarderOfRun {
    /// Finds the larder that has the store, or starts one.
    ///
    /// # Errors
    /// The store is taken by a command, or a larder does not start.
    pub(super) async fn find_or_start(config: &Config, common: &CommonOptions, offline: bool) -> anyhow::Result<Self> {
        let id = RunId::random().context("the system returned no random bytes")?;
        let own_config = config_of_run(config, offline);
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match find(config, common).await {
                Ok(Some((admin, status))) => {
                    if offline && !status.offline {
                        bail!(
                            "a larder with network access has the store {}, and --offline does not change that: stop it, or leave \
                             out --offline",
                            config.store.path.display()
                        );
                    }
                    return Ok(Self { id, admin, own: None, note: None });
                }
                Ok(None) => {}
                // Another run has just begun, or ends.
                Err(
                    AdminClientError::StoreInUse { .. }
                    | AdminClientError::NotRunning(_)
                    | AdminClientError::Failed { .. },
                ) if Instant::now() < deadline => {
                    sleep(LOCK_PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            match App::start(&own_config, settings()).await {
                Ok(app) => return Ok(Self::own(id, app, None)),
                Err(StartError::Store(StoreError::Locked(_))) if Instant::now() < deadline => sleep(LOCK_PAUSE).await,
                Err(StartError::Store(error)) if error.is_unwritable() && !own_config.network.offline => {
                    return Self::with_temporary_store(id, own_config, &error).await;
                }
                Err(error) => return Err(anyhow::Error::from(error).context("larder did not start")),
            }
        }
    }

    fn own(id: RunId, app: App, temporary_store: Option<TempFolder>) -> Self {
        let admin = AdminClient::new(app.admin_address(), AdminToken::Absent);
        let stop = CancellationToken::new();
        let serving = tokio::spawn(app.serve(stop.clone()));
        Self { id, admin, own: Some(OwnLarder { stop, serving, temporary_store }), note: None }
    }

    /// Starts a larder whose store lasts as long as the run: for a home that cannot be written, such as in a container.
    async fn with_temporary_store(id: RunId, mut config: Config, refused: &StoreError) -> anyhow::Result<Self> {
        let folder = TempFolder::new()?;
        let note = format!("{refused}; this run has a temporary store, so nothing stays for the next one");
        config.store.path = folder.path().join("store");
        let app = App::start(&config, settings()).await.context("larder did not start")?;
        Ok(Self { note: Some(note), ..Self::own(id, app, Some(folder)) })
    }

    /// A line about this larder that the user needs.
    pub(super) fn note(&self) -> Option<&String> {
        self.note.as_ref()
    }

    /// The `host` blocks for the client. They have the id of this run in their URLs, where the larder knows runs.
    pub(super) async fn host_blocks(&self) -> anyhow::Result<String> {
        let answer = match self.admin.get(&format!("{RUNS}/{}/client-config", self.id)).await {
            // A larder of an older version.
            Err(AdminClientError::Refused { .. }) => self.admin.get(CLIENT_CONFIG).await,
            answer => answer,
        };
        Ok(String::from_utf8_lossy(&answer?).into_owned())
    }

    /// What the client of this run was sent; `None` where larder did not count it.
    pub(super) async fn report(&self) -> Option<RunReport> {
        let answer = self.admin.get(&format!("{RUNS}/{}", self.id)).await;
        let report = answer.and_then(|answer| parse(&answer));
        report.inspect_err(|error| tracing::debug!(%error, "the run was not counted")).ok()
    }

    /// Ends the larder of this process. Clients of other runs may finish their downloads.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        let Some(OwnLarder { stop, serving, temporary_store }) = self.own else { return Ok(()) };
        stop.cancel();
        serving.await.context("larder ended unexpectedly")?.context("the store would not close")?;
        if let Some(folder) = temporary_store {
            folder.remove();
        }
        Ok(())
    }
}

/// The running larder and its status. Without a configuration, only a larder that has the user's own store is one of theirs:
/// another user of this machine may listen on the usual port.
async fn find(
    config: &Config,
    common: &CommonOptions,
) -> Result<Option<(AdminClient, StatusOfRunning)>, AdminClientError> {
    let store = &config.store.path;
    let is_named = config.source.is_some() || common.admin_listen.is_some();
    if !is_named && !Store::exists(store).unwrap_or(false) {
        return Ok(None);
    }
    let Some(admin) = running_larder(config).await? else { return Ok(None) };
    match admin.get(STATUS).await {
        Ok(status) => Ok(Some((admin, parse(&status)?))),
        Err(AdminClientError::NotLarder { .. }) if Store::listeners(store).is_none() => Ok(None),
        Err(error) => Err(error),
    }
}

fn settings() -> StartSettings {
    StartSettings { lifetime: Lifetime::OneRun, ..StartSettings::default() }
}

/// The configuration of a larder that serves one machine for one run: both listeners on free ports of the loopback address,
/// and no work of its own.
fn config_of_run(config: &Config, offline: bool) -> Config {
    let mut own = config.clone();
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    own.server = Server {
        listen: any_port,
        public_url: None,
        tls: None,
        http2: false,
        default_upstream: config.server.default_upstream.clone(),
        clients: None,
        open: false,
        trusted_proxies: Vec::new(),
    };
    own.admin.listen = any_port;
    own.store.scrub = None;
    own.warm.clear();
    own.network.offline |= offline;
    own
}
