//! Reloads the configuration of a running larder, atomically. Options that need a restart keep their values. Work in
//! flight finishes with its old settings.

use std::fmt;
use std::sync::Arc;

use tokio::task;

use super::{RunningApp, start_problems};
use crate::config::Config;
use crate::mirror::RequiredPlatforms;
use crate::upstream::Upstreams;

/// Result of a reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reloaded {
    /// Options that have changed and need a restart.
    pub take_a_restart: Vec<&'static str>,
}

/// A rejected reload, with every problem. The old configuration stays in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReloaded(pub Vec<String>);

impl fmt::Display for NotReloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => write!(f, "1 problem")?,
            count => write!(f, "{count} problems")?,
        }
        self.0.iter().try_for_each(|problem| write!(f, "\n{problem}"))
    }
}

impl std::error::Error for NotReloaded {}

impl RunningApp {
    /// Applies another configuration, completely or not at all.
    ///
    /// # Errors
    /// Returns [`NotReloaded`] with every problem.
    pub async fn reload(&self, config: Config) -> Result<Reloaded, NotReloaded> {
        let mut in_force = self.config.lock().await;
        let named = config.server.tls.clone();
        let (config, take_a_restart) = keep_restart_options(config, &in_force).await?;
        // Everything that can fail comes first, so that a reload is never partial.
        let failed = |error: &dyn fmt::Display| NotReloaded(vec![error.to_string()]);
        let renewal = match (&self.tls, named) {
            (Some(tls), Some(files)) => {
                let tls = Arc::clone(tls);
                let reading = task::spawn_blocking(move || tls.renewal(&files.certificate, &files.key));
                Some(reading.await.map_err(|e| failed(&e))?.map_err(|e| failed(&format!("server.tls: {e}")))?)
            }
            _ => None,
        };
        let before = self.parts.mirror.config();
        let outbound = before.outbound.reconfigured(&config.network, &config.upstreams);
        let upstreams = Upstreams::new(&config.upstreams, &config.credentials, &config.network.allow_private);
        let outbound = outbound.map_err(|e| failed(&e))?;
        let sealed_for = RequiredPlatforms::from(config.network.sealed_platforms.as_slice());
        let terms = before.reloaded(upstreams, outbound, config.store.max_size, sealed_for);
        let terms = Arc::new(terms);
        let front = self
            .parts
            .build_handlers(&config, Arc::clone(&terms), Some(&*self.front.load()))
            .map_err(|e| failed(&e))?;

        if let (Some(tls), Some(renewal)) = (&self.tls, renewal) {
            tls.use_pair(renewal);
        }
        self.parts.mirror.activate(terms);
        self.front.store(Arc::new(front));
        self.parts.recurring.renew(&config);
        *in_force = config;
        if let Err(error) = self.parts.mirror.make_room().await {
            tracing::error!(%error, "eviction after the reload failed");
        }
        Ok(Reloaded { take_a_restart })
    }
}

/// The configuration that can come into force: options that need a restart keep their old values. Also returns the
/// names of those that changed.
async fn keep_restart_options(mut config: Config, before: &Config) -> Result<(Config, Vec<&'static str>), NotReloaded> {
    let file = config.clone();
    let check = task::spawn_blocking(move || start_problems(&file));
    let mut problems = check.await.unwrap_or_else(|error| vec![error.to_string()]);
    let mut take_a_restart = Vec::new();
    let mut keep = |option, is_changed| {
        if is_changed {
            take_a_restart.push(option);
        }
    };
    keep("server.listen", config.server.listen != before.server.listen);
    keep("server.tls", config.server.tls.is_some() != before.server.tls.is_some());
    keep("server.http2", config.server.http2 != before.server.http2);
    keep("admin.listen", config.admin.listen != before.admin.listen);
    keep("store.path", config.store.path != before.store.path);
    keep("store.scrub", config.store.scrub != before.store.scrub);
    config.server.listen = before.server.listen;
    config.server.http2 = before.server.http2;
    config.admin.listen = before.admin.listen;
    config.store.path.clone_from(&before.store.path);
    config.store.scrub = before.store.scrub;
    if config.server.tls.is_some() != before.server.tls.is_some() {
        config.server.tls.clone_from(&before.server.tls);
    }
    // DESIGN, promise 8 applies to the open listener; the file's new address only takes effect after a restart.
    problems.extend(config.refusal().filter(|refusal| !problems.contains(refusal)));
    if problems.is_empty() { Ok((config, take_a_restart)) } else { Err(NotReloaded(problems)) }
}
