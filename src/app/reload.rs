//! Reloads the configuration of a running larder, atomically. Options that need a restart keep their values. Work in
//! flight finishes with its old settings.

use std::fmt;
use std::sync::Arc;

use tokio::task;

use super::{RunningApp, SettingsOfOthers, replica, start_problems};
use crate::config::Config;
use crate::http::tls::Renewal;
use crate::upstream::Upstreams;
use crate::upstream::issuers::Issuers;

/// Result of a reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reloaded {
    /// Options that have changed and need a restart.
    pub need_restart: Vec<&'static str>,
}

/// A rejected reload, with every problem. The old configuration stays in force.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} problem{}\n{}", .0.len(), if .0.len() == 1 { "" } else { "s" }, .0.join("\n"))]
pub struct NotReloaded(pub Vec<String>);

impl RunningApp {
    /// Applies another configuration, completely or not at all.
    ///
    /// # Errors
    /// Returns [`NotReloaded`] with every problem.
    pub async fn reload(&self, config: Config) -> Result<Reloaded, NotReloaded> {
        let mut current = self.config.lock().await;
        let others = self.others.lock().clone();
        self.apply(config, &mut current, others, Some(&self.keys)).await
    }

    /// Applies the configuration in force again, beside replicas with these settings.
    ///
    /// # Errors
    /// Returns [`NotReloaded`] with every problem. What was known of them before counts.
    pub(super) async fn reload_beside(&self, others: SettingsOfOthers) -> Result<Reloaded, NotReloaded> {
        let mut current = self.config.lock().await;
        let config = current.clone();
        // Its keys are in use.
        self.apply(config, &mut current, others, None).await
    }

    async fn apply(
        &self,
        config: Config,
        current: &mut Config,
        others: SettingsOfOthers,
        keys: Option<&replica::Keys>,
    ) -> Result<Reloaded, NotReloaded> {
        let new_tls_files = config.server.tls.clone();
        let (config, need_restart) = keep_restart_options(config, current).await?;
        // The steps that can fail come first, so that a reload is never partial.
        let failed = |error: &dyn fmt::Display| NotReloaded(vec![error.to_string()]);
        let renewal = match (&self.tls, new_tls_files) {
            (Some(_), Some(files)) => {
                let renewal = task::spawn_blocking(move || Renewal::read(&files.certificate, &files.key));
                Some(renewal.await.map_err(|e| failed(&e))?.map_err(|e| failed(&format!("server.tls: {e}")))?)
            }
            _ => None,
        };
        let previous = self.parts.mirror.runtime.config();
        let effective = replica::effective(&config, &others);
        let outbound = previous.outbound.reconfigured(&effective.network, &effective.upstreams);
        let upstreams = Upstreams::new(&effective.upstreams, &effective.credentials, &effective.network.allow_private);
        let outbound = outbound.map_err(|e| failed(&e))?;
        let issuers = Issuers::new(&effective, &outbound).map_err(|e| failed(&e))?;
        let runtime_config = Arc::new(previous.reloaded(upstreams, outbound, issuers, &effective));
        let audit = self.parts.open_audit(&effective).await.map_err(|e| failed(&e))?;
        let handlers =
            self.parts.build_handlers(&effective, Arc::clone(&runtime_config), audit).map_err(|e| failed(&e))?;

        keys.map_or(Ok(()), |keys| keys.renew(&config)).map_err(|e| failed(&e))?;
        if let (Some(tls), Some(renewal)) = (&self.tls, renewal) {
            tls.use_pair(renewal);
        }
        self.parts.mirror.runtime.activate(runtime_config);
        self.handlers.store(Arc::new(handlers));
        self.parts.recurring.reload(&config);
        *self.others.lock() = others;
        if let Some(fleet) = self.parts.mirror.library.fleet() {
            fleet.announce_settings(replica::settings_text(&config));
        }
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
    keep_previous("server.listen", &mut config.server.listen, &previous.server.listen, &mut need_restart);
    if config.server.tls.is_some() != previous.server.tls.is_some() {
        keep_previous("server.tls", &mut config.server.tls, &previous.server.tls, &mut need_restart);
    }
    keep_previous("admin.listen", &mut config.admin.listen, &previous.admin.listen, &mut need_restart);
    keep_previous("store.path", &mut config.store.path, &previous.store.path, &mut need_restart);
    keep_previous("store.scrub", &mut config.store.scrub, &previous.store.scrub, &mut need_restart);
    let is_as_before = match (&config.fleet, &previous.fleet) {
        (Some(fleet), Some(previous)) => fleet.differs_in_secrets_only(previous),
        (None, None) => true,
        _ => false,
    };
    if !is_as_before {
        need_restart.push("fleet");
        config.fleet.clone_from(&previous.fleet);
    }
    // The check of allowed clients (promise 8) applies to the open listener. A new address in the file takes effect
    // only after a restart.
    problems.extend(config.refusal().filter(|refusal| !problems.contains(refusal)));
    if problems.is_empty() { Ok((config, need_restart)) } else { Err(NotReloaded(problems)) }
}

/// Gives an option its previous value, and adds its name to `changed` if the value was another one.
fn keep_previous<T: PartialEq + Clone>(
    option: &'static str,
    value: &mut T,
    previous: &T,
    changed: &mut Vec<&'static str>,
) {
    if value != previous {
        changed.push(option);
        value.clone_from(previous);
    }
}
