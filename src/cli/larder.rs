//! The larder that does the work of a command: the running one over its admin listener, else a mirror within this process.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use secrecy::ExposeSecret;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Interrupted;
use crate::address::{Artifact, Hostname};
use crate::app::{self, StartSettings};
use crate::clock::Clock;
use crate::config::Config;
use crate::digest::Digest;
use crate::http::admin_client::{self, AdminClientError};
use crate::jobs::job_report::Job;
use crate::jobs::{JobId, Jobs, WarmUp};
use crate::mirror::{Mirror, RequestContext};
use crate::protocol::admin::order::OrderRequest;
use crate::protocol::admin::warm::{JOBS, WARM};
use crate::store::Store;

/// The error of an answer that does not parse.
pub(super) const OTHER_VERSION: &str = "the running larder is of another version";

/// Sends a request with the admin token to the running larder. Where the store's lock is free, another program may
/// listen on the address, so nothing is sent.
async fn ask_running<T>(
    config: &Config,
    send: impl AsyncFnOnce(SocketAddr, Option<&str>) -> Result<T, AdminClientError>,
) -> Result<T, AdminClientError> {
    let address = config.admin.listen;
    if Store::is_free(&config.store.path) {
        return Err(AdminClientError::NotRunning(address));
    }
    let token = admin_token(config);
    let response = send(address, token.as_deref()).await;
    if matches!(response, Err(AdminClientError::NotRunning(_))) && Store::exists(&config.store.path).unwrap_or(false) {
        return Err(AdminClientError::StoreInUse { store: config.store.path.clone(), address });
    }
    match Store::admin_token_is_private(&config.store.path) {
        Some(reason) if token.is_none() && matches!(response, Err(AdminClientError::Refused { .. })) => {
            Err(AdminClientError::TokenUnreadable { address, reason: reason.to_string() })
        }
        _ => response,
    }
}

/// Admin token of the running larder: the configured one, else the generated one.
fn admin_token(config: &Config) -> Option<String> {
    let configured = config.admin.token.as_ref().map(|token| token.expose_secret().to_owned());
    configured.or_else(|| Store::read_admin_token(&config.store.path))
}

/// Asks the running larder; `None` where none runs.
pub(super) async fn ask_if_running<T>(
    config: &Config,
    send: impl AsyncFnOnce(SocketAddr, Option<&str>) -> Result<T, AdminClientError>,
) -> Result<Option<T>, AdminClientError> {
    match ask_running(config, send).await {
        Ok(answer) => Ok(Some(answer)),
        Err(AdminClientError::NotRunning(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Has the running larder do work that it reports step by step; calls `on_step` with each. False where none runs.
pub(super) async fn watch_if_running<S: DeserializeOwned>(
    config: &Config,
    mut on_step: impl FnMut(S),
    send: impl AsyncFnOnce(SocketAddr, Option<&str>, &mut dyn FnMut(&[u8])) -> Result<(), AdminClientError>,
) -> anyhow::Result<bool> {
    let mut parse_error = None;
    let mut read_line = |line: &[u8]| match parse(line) {
        Ok(step) => on_step(step),
        Err(error) => parse_error = Some(error),
    };
    let answer = ask_if_running(config, async |address, token| send(address, token, &mut read_line).await).await?;
    parse_error.map_or(Ok(answer.is_some()), Err)
}

/// Parses what the running larder answered.
pub(super) fn parse<T: DeserializeOwned>(answer: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(answer).context(OTHER_VERSION)
}

/// A mirror within this process, for a command whose larder does not run.
pub(super) struct LocalLarder {
    pub(super) mirror: Arc<Mirror>,
    pub(super) store: Arc<Store>,
    pub(super) clock: Clock,
}

impl LocalLarder {
    pub(super) fn call(&self) -> RequestContext {
        self.mirror.runtime.job_context(self.clock.now())
    }
}

/// Works on the store without a running larder. Fails where there is no store.
pub(super) async fn on_store<T>(
    config: &Config,
    work: impl AsyncFnOnce(&LocalLarder) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if !Store::exists(&config.store.path)? {
        let path = config.store.path.display();
        return Err(anyhow!("no larder runs here, and there is no store in {path} yet; `larder serve` creates it"));
    }
    on_new_store(config, work).await
}

/// Works on the store without a running larder. Creates the store where there is none.
pub(super) async fn on_new_store<T>(
    config: &Config,
    work: impl AsyncFnOnce(&LocalLarder) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let settings = StartSettings::default();
    let (mirror, store, _) = app::mirror(config, &settings)?;
    let larder = LocalLarder { mirror, store, clock: settings.clock };
    let result = work(&larder).await;
    let closed = larder.mirror.library.close().await.context("the store would not close");
    let value = result?;
    closed?;
    Ok(value)
}

/// A larder that runs jobs.
#[derive(Debug)]
pub(super) enum JobRunner {
    /// The running larder, if it answers.
    Running { address: SocketAddr, token: Option<String> },
    /// A mirror within this process; [`Self::close`] closes it.
    InProcess { mirror: Arc<Mirror>, jobs: Arc<Jobs>, default_host: Hostname },
}

impl JobRunner {
    pub(super) fn running(config: &Config) -> Self {
        Self::Running { address: config.admin.listen, token: admin_token(config) }
    }

    /// Opens the store; creates it where there is none.
    pub(super) fn in_process(config: &Config) -> anyhow::Result<Self> {
        let settings = StartSettings::default();
        let (mirror, _, _) = app::mirror(config, &settings)?;
        let jobs = Jobs::new(Arc::clone(&mirror), settings.clock);
        Ok(Self::InProcess { mirror, jobs, default_host: config.default_host() })
    }

    /// Starts a job. [`AdminClientError::NotRunning`] where no larder runs.
    pub(super) async fn start(&self, config: &Config, request: &OrderRequest) -> anyhow::Result<Job> {
        match self {
            Self::Running { address, token } => {
                let body = Bytes::from(serde_json::to_vec(request)?);
                let token = token.as_deref();
                parse(&ask_running(config, async |_, _| admin_client::post(*address, WARM, token, body).await).await?)
            }
            Self::InProcess { jobs, default_host, .. } => {
                let warm_up = request.order(default_host).and_then(|order| WarmUp::of_order(order, request.pin));
                let (_, job) = jobs.start(warm_up.map_err(|problems| anyhow!(problems.join("; ")))?).await?;
                Ok(job)
            }
        }
    }

    /// Reads the state of a job.
    pub(super) async fn report(&self, id: &str) -> anyhow::Result<Job> {
        match self {
            Self::Running { address, token } => {
                let response = admin_client::get(*address, &format!("{JOBS}/{id}"), token.as_deref()).await;
                parse(&response.map_err(|error| match error {
                    AdminClientError::NotRunning(_) => {
                        anyhow!("larder has stopped; fetched archives stay, and the job continues when larder is back")
                    }
                    error => error.into(),
                })?)
            }
            Self::InProcess { jobs, .. } => {
                JobId::parse(id).and_then(|id| jobs.report(id)).ok_or_else(|| anyhow!("job {id} no longer exists"))
            }
        }
    }

    pub(super) async fn cancel(&self, id: &str) -> anyhow::Result<()> {
        match self {
            Self::Running { address, token } => {
                admin_client::delete(*address, &format!("{JOBS}/{id}"), token.as_deref()).await?;
            }
            Self::InProcess { jobs, .. } => {
                if let Some(id) = JobId::parse(id) {
                    jobs.cancel(id).await;
                }
            }
        }
        Ok(())
    }

    /// Downloads from the running larder into `output`; within this process, `work` writes there.
    pub(super) async fn write<W: Write + Send + 'static>(
        &self,
        path: &str,
        request: &impl Serialize,
        output: W,
        work: impl AsyncFnOnce(&Arc<Mirror>, Vec<(Artifact, Digest)>, W) -> anyhow::Result<()>,
        job: &str,
    ) -> anyhow::Result<()> {
        match self {
            Self::Running { address, token } => {
                let body = Bytes::from(serde_json::to_vec(request)?);
                // After a failure of `output`, the receiving side has the cause.
                Ok(admin_client::download(*address, path, token.as_deref(), body, output).await.map(drop)?)
            }
            Self::InProcess { mirror, jobs, .. } => {
                let stored = JobId::parse(job).and_then(|id| jobs.stored_archives(id));
                work(mirror, stored.context("the job no longer exists")?, output).await
            }
        }
    }

    /// The error for an interrupt while a job runs.
    pub(super) fn interrupted_error(&self) -> anyhow::Error {
        match self {
            Self::Running { .. } => Interrupted::with_text("stopped watching; the running larder may continue the job"),
            Self::InProcess { .. } => Interrupted::with_text("stopped"),
        }
    }

    /// Closes a mirror within this process.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        if let Self::InProcess { mirror, jobs, .. } = self {
            jobs.stop().await;
            mirror.library.close().await.context("the store would not close")?;
        }
        Ok(())
    }
}
