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
    pub need_restart: Vec<&'static str>,
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
        let mut current = self.config.lock().await;
        let new_tls_files = config.server.tls.clone();
        let (config, need_restart) = keep_restart_options(config, &current).await?;
        // The steps that can fail come first, so that a reload is never partial.
        let failed = |error: &dyn fmt::Display| NotReloaded(vec![error.to_string()]);
        let renewal = match (&self.tls, new_tls_files) {
            (Some(tls), Some(files)) => {
                let tls = Arc::clone(tls);
                let renewal = task::spawn_blocking(move || tls.renewal(&files.certificate, &files.key));
                Some(renewal.await.map_err(|e| failed(&e))?.map_err(|e| failed(&format!("server.tls: {e}")))?)
            }
            _ => None,
        };
        let previous = self.parts.mirror.runtime.config();
        let outbound = previous.outbound.reconfigured(&config.network, &config.upstreams);
        let upstreams = Upstreams::new(&config.upstreams, &config.credentials, &config.network.allow_private);
        let outbound = outbound.map_err(|e| failed(&e))?;
        let required_platforms = RequiredPlatforms::from(config.network.sealed_platforms.as_slice());
        let runtime_config = previous.reloaded(upstreams, outbound, config.store.max_size, required_platforms);
        let runtime_config = Arc::new(runtime_config);
        let handlers = self
            .parts
            .build_handlers(&config, Arc::clone(&runtime_config), Some(&*self.handlers.load()))
            .map_err(|e| failed(&e))?;

        if let (Some(tls), Some(renewal)) = (&self.tls, renewal) {
            tls.use_pair(renewal);
        }
        self.parts.mirror.runtime.activate(runtime_config);
        self.handlers.store(Arc::new(handlers));
        self.parts.recurring.reload(&config);
        *current = config;
        if let Err(error) = self.parts.mirror.library.make_room().await {
            tracing::error!(%error, "eviction after the reload failed");
        }
        Ok(Reloaded { need_restart })
    }
}

/// Checks a new configuration, and gives the options that need a restart their previous values. Also returns the names
/// of the options that changed and need a restart.
async fn keep_restart_options(
    mut config: Config,
    previous: &Config,
) -> Result<(Config, Vec<&'static str>), NotReloaded> {
    let config_to_check = config.clone();
    let problems = task::spawn_blocking(move || start_problems(&config_to_check));
    let mut problems = problems.await.unwrap_or_else(|error| vec![error.to_string()]);
    let mut need_restart = Vec::new();
    let mut note_if_changed = |option, is_changed| {
        if is_changed {
            need_restart.push(option);
        }
    };
    note_if_changed("server.listen", config.server.listen != previous.server.listen);
    note_if_changed("server.tls", config.server.tls.is_some() != previous.server.tls.is_some());
    note_if_changed("server.http2", config.server.http2 != previous.server.http2);
    note_if_changed("admin.listen", config.admin.listen != previous.admin.listen);
    note_if_changed("store.path", config.store.path != previous.store.path);
    note_if_changed("store.scrub", config.store.scrub != previous.store.scrub);
    config.server.listen = previous.server.listen;
    config.server.http2 = previous.server.http2;
    config.admin.listen = previous.admin.listen;
    config.store.path.clone_from(&previous.store.path);
    config.store.scrub = previous.store.scrub;
    if config.server.tls.is_some() != previous.server.tls.is_some() {
        config.server.tls.clone_from(&previous.server.tls);
    }
    // The check of allowed clients (promise 8) applies to the open listener. A new address in the file takes effect
    // only after a restart.
    problems.extend(config.refusal().filter(|refusal| !problems.contains(refusal)));
    if problems.is_empty() { Ok((config, need_restart)) } else { Err(NotReloaded(problems)) }
}
