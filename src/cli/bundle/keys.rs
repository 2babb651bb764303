//! The bundle keys in force. A running larder uses those of its last reload, and the file may have changed since.

use anyhow::{Context, bail};

use super::super::ask_running;
use crate::bundle::{BundleKeyIds, KeyId};
use crate::config::Config;
use crate::http::admin_client::{self, AdminClientError};
use crate::protocol::admin::StatusReport;

const RELOAD: &str = "reload it first (systemctl reload larder, or kill -HUP)";

/// The keys of the running larder, else those of the configuration.
async fn active_keys(config: &Config) -> anyhow::Result<BundleKeyIds> {
    let response =
        ask_running(config, async |address, token| admin_client::get(address, "/admin/v1/status", token).await);
    match response.await {
        Ok(status) => {
            let report: StatusReport =
                serde_json::from_slice(&status).context("the running larder is of another version")?;
            Ok(report.bundle_keys)
        }
        Err(AdminClientError::NotRunning(_)) => Ok(config.bundle.ids()),
        Err(error) => Err(error.into()),
    }
}

/// Fails where a bundle would be unsigned, or signed by another key than the configured one.
pub(super) async fn require_signing_key(config: &Config) -> anyhow::Result<()> {
    match (active_keys(config).await?.signing, config.bundle.ids().signing) {
        (Some(key), Some(named)) if key != named => {
            bail!("the running larder signs with key {key}, but [bundle] signing_key is now key {named}; {RELOAD}")
        }
        (Some(_), _) => Ok(()),
        (None, Some(named)) => {
            bail!("the running larder has not read [bundle] signing_key (key {named}) yet; {RELOAD}")
        }
        (None, None) => bail!(
            "there is no key to sign the bundle with; create one (larder bundle keygen bundle.key) and name it in [bundle] \
             signing_key; or write an unsigned bundle (--unsigned)"
        ),
    }
}

/// Fails where the configuration trusts a bundle's key, but the running larder has not loaded that.
pub(super) async fn require_loaded(config: &Config, key: &KeyId) -> anyhow::Result<()> {
    if config.bundle.ids().trusted.contains(key) && !active_keys(config).await?.trusted.contains(key) {
        bail!("[bundle] trusted_keys names key {key}, but the running larder has not read that yet; {RELOAD}");
    }
    Ok(())
}
