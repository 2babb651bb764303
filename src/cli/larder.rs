//! The larder that does the work of a command: the running one over its admin listener, else a mirror within this process.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use secrecy::ExposeSecret;

use super::Interrupted;
use crate::address::Hostname;
use crate::app::{self, StartSettings};
use crate::config::Config;
use crate::http::admin_client::{self, AdminClientError};
use crate::jobs::job_report::Job;
use crate::jobs::{JobId, Jobs, WarmUp};
use crate::mirror::Mirror;
use crate::protocol::admin::order::OrderRequest;
use crate::protocol::admin::warm::{JOBS, WARM};
use crate::store::Store;

/// Sends a request with the admin token to the running larder. Where the store's lock is free, another program may
/// listen on the address, so nothing is sent.
pub(super) async fn ask_running<T>(
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

/// Fails where there is no store.
pub(super) fn require_store(config: &Config) -> anyhow::Result<()> {
    if Store::exists(&config.store.path)? {
        return Ok(());
    }
    let path = config.store.path.display();
    Err(anyhow!("no larder runs here, and there is no store in {path} yet; `larder serve` creates it"))
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
                parse_job(
                    &ask_running(config, async |_, _| admin_client::post(*address, WARM, token, body).await).await?,
                )
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
                parse_job(&response.map_err(|error| match error {
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

fn parse_job(body: &[u8]) -> anyhow::Result<Job> {
    serde_json::from_slice(body).context("the running larder is of another version")
}
