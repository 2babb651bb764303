//! Who does the fetching: the larder that runs, told over its admin listener; where none runs, one of this process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use bytes::Bytes;

use super::super::{admin_token, ask_running};
use crate::address::{Hostname, Platform};
use crate::app::{self, Settings};
use crate::config::Config;
use crate::http::admin_client::{self, NoAnswer};
use crate::jobs::report::Job;
use crate::jobs::{JobId, Jobs, WarmUp};
use crate::mirror::Mirror;
use crate::protocol::admin::warm::{JOBS, ToldToWarm, WARM};

/// What one job is told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Addresses with their constraints.
    Addresses(Vec<String>),
    /// What a lock file names.
    LockFile(PathBuf, Bytes),
}

/// What holds for every order.
#[derive(Debug)]
pub(super) struct ForAll {
    /// As `OS_ARCH`.
    pub(super) platforms: Vec<Platform>,
    /// Whether to pin what is warmed.
    pub(super) pin: bool,
}

/// A larder that takes orders.
#[derive(Debug)]
pub(super) enum Larder {
    /// The one that runs, or that would be asked if it ran.
    Running { at: SocketAddr, token: Option<String> },
    /// Our own, which ends with this process.
    Own { mirror: Arc<Mirror>, jobs: Arc<Jobs>, default_host: Hostname },
}

impl Larder {
    pub(super) fn running(config: &Config) -> Self {
        Self::Running { at: config.admin.listen, token: admin_token(config) }
    }

    /// Opens the store, and makes it where there is none: with warming a store may begin.
    pub(super) fn own(config: &Config) -> anyhow::Result<Self> {
        let settings = Settings::default();
        let (mirror, _, _) = app::mirror(config, &settings)?;
        let jobs = Jobs::new(Arc::clone(&mirror), settings.clock);
        Ok(Self::Own { mirror, jobs, default_host: config.default_host() })
    }

    /// Takes an order on. [`NoAnswer::NotRunning`] where there is no such larder.
    pub(super) async fn start(&self, config: &Config, order: &Order, for_all: &ForAll) -> anyhow::Result<Job> {
        let ForAll { platforms, pin } = for_all;
        match self {
            Self::Running { at, token } => {
                let asking = ask_running(config, async |_, _| tell(*at, token.as_deref(), order, for_all).await);
                job(&asking.await?)
            }
            Self::Own { jobs, default_host, .. } => {
                let warm_up = match order {
                    Order::Addresses(what) => {
                        let platforms = platforms.iter().map(ToString::to_string).collect();
                        ToldToWarm { what: what.clone(), platforms, pin: *pin }.warm_up(default_host)
                    }
                    Order::LockFile(_, bytes) => WarmUp::of_lock_file(bytes, platforms.clone(), *pin),
                };
                let (_, job) = jobs.start(warm_up.map_err(|problems| anyhow!(problems.join("; ")))?)?;
                Ok(job)
            }
        }
    }

    /// How far a job is.
    pub(super) async fn report(&self, id: &str) -> anyhow::Result<Job> {
        match self {
            Self::Running { at, token } => {
                let asked = admin_client::get(*at, &format!("{JOBS}/{id}"), token.as_deref()).await;
                job(&asked.map_err(|error| match error {
                    NoAnswer::NotRunning(_) => anyhow!(
                        "larder has stopped; what it fetched is kept, and the same command goes on with the rest"
                    ),
                    error => error.into(),
                })?)
            }
            Self::Own { jobs, .. } => {
                JobId::parse(id).and_then(|id| jobs.report(id)).ok_or_else(|| anyhow!("job {id} is forgotten"))
            }
        }
    }

    /// Tells a job to stop.
    pub(super) async fn cancel(&self, id: &str) -> anyhow::Result<()> {
        match self {
            Self::Running { at, token } => {
                admin_client::delete(*at, &format!("{JOBS}/{id}"), token.as_deref()).await?;
            }
            Self::Own { jobs, .. } => {
                JobId::parse(id).and_then(|id| jobs.cancel(id));
            }
        }
        Ok(())
    }

    /// What to say where nobody waits for its jobs any more.
    pub(super) fn stopped(&self) -> anyhow::Error {
        match self {
            Self::Running { .. } => anyhow!("stopped watching; the running larder may still be at it"),
            Self::Own { .. } => anyhow!("stopped"),
        }
    }

    /// Ends it, if it is ours.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        if let Self::Own { mirror, jobs, .. } = self {
            jobs.stop().await;
            mirror.close().await.context("the store would not close")?;
        }
        Ok(())
    }
}

async fn tell(at: SocketAddr, token: Option<&str>, order: &Order, for_all: &ForAll) -> Result<Bytes, NoAnswer> {
    let ForAll { platforms, pin } = for_all;
    let platforms: Vec<String> = platforms.iter().map(ToString::to_string).collect();
    match order {
        Order::Addresses(what) => {
            let told = serde_json::json!({ "what": what, "platforms": platforms, "pin": pin }).to_string();
            admin_client::post(at, WARM, token, told.into()).await
        }
        Order::LockFile(_, bytes) => {
            let mut query = url::form_urlencoded::Serializer::new(String::new());
            query.extend_pairs(platforms.iter().map(|platform| ("platform", platform)));
            if *pin {
                query.append_pair("pin", "true");
            }
            let query = query.finish();
            let path = if query.is_empty() { WARM.to_owned() } else { format!("{WARM}?{query}") };
            admin_client::post_text(at, &path, token, bytes.clone()).await
        }
    }
}

fn job(answer: &[u8]) -> anyhow::Result<Job> {
    serde_json::from_slice(answer).context("the running larder is of another version")
}
