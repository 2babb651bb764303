//! The larder of a run: the one that has the store, else one within this process, on free ports of the loopback address. Two
//! runs share the larder of the first. When the first ends, another continues it, on the same sockets.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::handover::{Continuation, Following, FollowingEnd};
use super::own_larder::OwnLarder;
use super::temp_folder::TempFolder;
use crate::app::running_larder::{self, NotReached, RunningLarder};
use crate::app::{StartError, base_url_of};
use crate::config::{Config, Server};
use crate::http::admin_client::{AdminClient, AdminClientError};
use crate::place::Place;
use crate::protocol::admin::{RUNS, STATUS};
use crate::protocol::linked_providers::{LinkAnswer, LinkRequest};
use crate::protocol::run::{RUN_NETWORK, RunId, RunIds, RunReport};
use crate::store::{OwnerNote, Store, StoreError, StoreUse};

/// The longest wait for a larder that has the store and does not listen yet, or not any more, and for a run that continues the
/// larder of one that has just ended.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two looks at the store's lock.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The error of a system without random bytes for an id.
const NO_RANDOM: &str = "the system returned no random bytes";

/// The larder of a run.
#[derive(Debug)]
pub(super) struct LarderOfRun {
    id: RunId,
    admin: AdminClient,
    source: LarderSource,
    /// A line about this larder that the user needs.
    pub(super) note: Option<String>,
    /// True if its store ends with this run.
    has_temporary_store: bool,
}

/// The process that a run's larder is in.
#[derive(Debug)]
enum LarderSource {
    /// This one.
    Own(OwnLarder),
    /// That of another run, which this run continues.
    Followed { leave: CancellationToken, following: JoinHandle<Followed> },
    /// Another one, which outlasts this run.
    Service,
}

/// The result of following other runs.
#[derive(Debug, Default)]
struct Followed {
    /// The files that the larders of other runs sent this run.
    sent: RunReport,
    /// The larder, if this run continues it.
    own: Option<OwnLarder>,
}

/// The part of a status that a run needs.
#[derive(Debug, Deserialize)]
struct StatusOfRunning {
    offline: bool,
}

/// A larder that has the store.
#[derive(Debug)]
struct FoundLarder {
    admin: AdminClient,
    is_offline: bool,
    /// The Unix socket at which another run hands its larder on; `None` if the larder outlasts this run.
    handover: Option<PathBuf>,
}

impl LarderOfRun {
    /// Finds the larder that has the store, or starts one. `folder` belongs to this run.
    ///
    /// # Errors
    /// The store is taken by a command, or a larder does not start.
    pub(super) async fn find_or_start(
        config: &Config,
        offline: bool,
        folder: &Arc<TempFolder>,
    ) -> anyhow::Result<Self> {
        let ids = RunIds::new().context(NO_RANDOM)?;
        let own_config = config_of_run(config, offline);
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match find(config).await {
                Ok(Some(FoundLarder { admin, is_offline, handover })) => {
                    if offline && !is_offline {
                        bail!(
                            "a larder with network access has the store {}, and --offline does not change that: stop it, or leave \
                             out --offline",
                            config.store.path.display()
                        );
                    }
                    let note = (is_offline && !own_config.network.offline).then(|| {
                        "the larder that has the store is offline: only what is stored can be installed".to_owned()
                    });
                    let Some(handover) = handover else {
                        let id = RunId::random().context(NO_RANDOM)?;
                        return Ok(Self { id, admin, source: LarderSource::Service, note, has_temporary_store: false });
                    };
                    if let Ok((following, continuation)) = Following::connect(&handover, issue).await {
                        let id = following.id;
                        let leave = CancellationToken::new();
                        let mut config = own_config;
                        // The run that continues an offline larder stays offline, for the runs that asked for that.
                        config.network.offline |= is_offline;
                        let follower = Follower { id, config, folder: Arc::clone(folder), continuation };
                        let following = tokio::spawn(follower.follow(following, leave.clone()));
                        return Ok(Self {
                            id,
                            admin,
                            source: LarderSource::Followed { leave, following },
                            note,
                            has_temporary_store: false,
                        });
                    }
                    // The other run ends.
                    if Instant::now() > deadline {
                        bail!(
                            "the larder of another run, which has the store, does not answer: wait for that run, or end it"
                        );
                    }
                }
                Ok(None) if Instant::now() < deadline && is_being_continued(&config.store.path).await => {
                    tracing::debug!("another run is about to continue the larder of one that has ended");
                }
                Ok(None) => match OwnLarder::start(&own_config, folder, &ids, None).await {
                    Ok((larder, admin)) => return Self::own(&ids, larder, admin),
                    Err(StartError::Store(StoreError::Locked(_))) if Instant::now() < deadline => {}
                    Err(StartError::Store(error)) if error.is_unwritable() && !own_config.network.offline => {
                        return Self::with_temporary_store(own_config, folder, &ids, &error).await;
                    }
                    Err(error) => return Err(anyhow::Error::from(error).context("larder did not start")),
                },
                // Another run has just begun, or ends.
                Err(error) if error.may_pass() && Instant::now() < deadline => {}
                Err(error) => return Err(error.into()),
            }
            sleep(LOCK_PAUSE).await;
        }
    }

    fn own(ids: &RunIds, larder: OwnLarder, admin: AdminClient) -> anyhow::Result<Self> {
        let id = issue(ids)?;
        Ok(Self { id, admin, source: LarderSource::Own(larder), note: None, has_temporary_store: false })
    }

    /// Starts a larder whose store lasts as long as the run: for a home that cannot be written, such as in a container.
    async fn with_temporary_store(
        mut config: Config,
        folder: &TempFolder,
        ids: &RunIds,
        refused: &StoreError,
    ) -> anyhow::Result<Self> {
        let note = format!("{refused}; this run has a temporary store, so nothing stays for the next one");
        config.store.path = folder.file("store");
        let (larder, admin) = OwnLarder::start(&config, folder, ids, None).await.context("larder did not start")?;
        Ok(Self { note: Some(note), has_temporary_store: true, ..Self::own(ids, larder, admin)? })
    }

    /// The `host` blocks for the client. They have the id of this run in their URLs, unless larder ends TLS.
    pub(super) async fn host_blocks(&self) -> anyhow::Result<String> {
        let network = Place::here().network_id();
        Ok(self.get_text(&format!("{RUNS}/{}/client-config?{RUN_NETWORK}={network}", self.id)).await?)
    }

    /// The unpacked providers that the client may link. None where the larder cannot say: then the client goes without links.
    pub(super) async fn linked_providers(&self, request: &LinkRequest) -> LinkAnswer {
        if self.has_temporary_store {
            return LinkAnswer::default();
        }
        let answer = self.admin.post(&format!("{RUNS}/{}/providers", self.id), request).await;
        answer.unwrap_or_else(|error| {
            tracing::debug!(%error, "the client goes without links");
            LinkAnswer::default()
        })
    }

    /// Asks the larder. Where another run ends meanwhile, the larder after it answers.
    async fn get_text(&self, path: &str) -> Result<String, AdminClientError> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match self.admin.get_text(path).await {
                Err(AdminClientError::Failed { .. } | AdminClientError::NotRunning(_))
                    if matches!(self.source, LarderSource::Followed { .. }) && Instant::now() < deadline =>
                {
                    sleep(LOCK_PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// Leaves the larder of this run; returns the files that its client was sent, where larder counts them, and the larder to
    /// close.
    pub(super) async fn leave(self) -> (Option<RunReport>, Option<OwnLarder>) {
        match self.source {
            LarderSource::Own(larder) => (Some(larder.runs.report(self.id).await), Some(larder)),
            LarderSource::Service => {
                let answer = self.admin.get(&format!("{RUNS}/{}", self.id)).await;
                (answer.inspect_err(|error| tracing::debug!(%error, "the run was not counted")).ok(), None)
            }
            LarderSource::Followed { leave, following } => {
                leave.cancel();
                let Followed { sent, own } = following.await.unwrap_or_default();
                let report = match &own {
                    Some(own) => sent.and(own.runs.report(self.id).await),
                    None => sent,
                };
                (Some(report), own)
            }
        }
    }
}

/// A run that uses the larder of another.
#[derive(Debug)]
struct Follower {
    id: RunId,
    config: Config,
    folder: Arc<TempFolder>,
    continuation: Continuation,
}

impl Follower {
    /// Follows the larder from run to run until `leave`, or until this run has it.
    async fn follow(self, mut following: Following, leave: CancellationToken) -> Followed {
        let mut sent = RunReport::default();
        loop {
            let (end, files) = following.until_end(&leave).await;
            sent = sent.and(files);
            if end == FollowingEnd::Left {
                return Followed { sent, own: None };
            }
            match self.continue_or_follow().await {
                Ok(Next::Own(own)) => return Followed { sent, own: Some(own) },
                Ok(Next::Other(other)) => following = other,
                Err(error) => {
                    let reason = format!("{error:#}");
                    tracing::error!(
                        reason,
                        "another run ended, and its larder cannot be continued: the client will fail"
                    );
                    return Followed { sent, own: None };
                }
            }
        }
    }

    /// Continues the larder of a run that has ended. Of several runs, one has the store, and the others follow it.
    async fn continue_or_follow(&self) -> anyhow::Result<Next> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            let Continuation { sockets, ids } = &self.continuation;
            match OwnLarder::start(&self.config, &self.folder, ids, Some(sockets.duplicate()?)).await {
                Ok((own, _)) => return Ok(Next::Own(own)),
                Err(StartError::Store(StoreError::Locked(_))) if Instant::now() < deadline => {}
                Err(error) => return Err(error.into()),
            }
            if let StoreUse::Noted(note) = Store::use_of(&self.config.store.path)
                && let Some(handover) = note.listeners().and_then(|noted| noted.handover.clone())
                && let Ok((other, continuation)) = Following::connect(&handover, |_| Ok(self.id)).await
            {
                if continuation.sockets.main.local_addr()? != sockets.main.local_addr()? {
                    bail!("another larder has taken the store, on other ports");
                }
                return Ok(Next::Other(other));
            }
            sleep(LOCK_PAUSE).await;
        }
    }
}

/// The larder after the run that had it.
#[derive(Debug)]
enum Next {
    /// In this process.
    Own(OwnLarder),
    /// In that of a third run.
    Other(Following),
}

/// The id of this run among those that share a larder.
fn issue(ids: &RunIds) -> io::Result<RunId> {
    ids.issue().map_err(|_| io::Error::other(NO_RANDOM))
}

/// True in the moment between the end of a run and the start of the one that continues its larder: the store is free, and
/// its listening sockets are still open. A larder on other ports would leave the clients of that run without an answer.
async fn is_being_continued(store: &Path) -> bool {
    let last = Store::last_owner(store).filter(|note| note.place.is_same_network(&Place::here()));
    match last.as_ref().and_then(OwnerNote::listeners).filter(|noted| noted.handover.is_some()) {
        Some(noted) => TcpStream::connect(noted.main).await.is_ok(),
        None => false,
    }
}

/// The running larder and its status.
async fn find(config: &Config) -> Result<Option<FoundLarder>, NotReached> {
    let Some(RunningLarder { admin, note }) = running_larder::find(config).await? else { return Ok(None) };
    let is_offline = admin.get::<StatusOfRunning>(STATUS).await?.offline;
    let noted = note.as_ref().and_then(OwnerNote::listeners);
    if let Some(note) = &note
        && !matches!(Store::use_of(&config.store.path), StoreUse::Noted(now) if now == *note)
    {
        return Err(admin.failed("the store has another larder since").into());
    }
    let handover = noted.and_then(|noted| noted.handover.clone());
    if let (Some(_), Some(note)) = (&handover, &note)
        && !note.place.is_same_network(&Place::here())
    {
        return Err(NotReached::Elsewhere { store: config.store.path.clone(), host: note.place.host.clone() });
    }
    Ok(Some(FoundLarder { admin, is_offline, handover }))
}

/// The configuration of a larder that serves one machine for one run: both listeners on free ports of the loopback address,
/// and no work of its own.
fn config_of_run(config: &Config, offline: bool) -> Config {
    let mut own = config.clone();
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    own.server = Server {
        listen: any_port,
        // `client-config` prints URLs of `larder serve`: this larder answers its runs only, at other URLs.
        public_url: Url::parse(&base_url_of(config, config.server.listen)).ok(),
        tls: None,
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
