//! The keys that are in force where a bundle is made or applied. A running larder has those of its last reload, which
//! the file may have outrun.

use anyhow::{Context, bail};

use super::super::ask_running;
use crate::bundle::{BundleKeyIds, KeyId};
use crate::config::Config;
use crate::http::admin_client::{self, NoAnswer};
use crate::protocol::admin::Report;

const RELOAD: &str = "reload it first (systemctl reload larder, or kill -HUP)";

/// The keys of the running larder; where none runs, those of the configuration.
async fn in_force(config: &Config) -> anyhow::Result<BundleKeyIds> {
    let asked = ask_running(config, async |at, token| admin_client::get(at, "/admin/v1/status", token).await);
    match asked.await {
        Ok(status) => {
            let report: Report = serde_json::from_slice(&status).context("the running larder is of another version")?;
            Ok(report.bundle_keys)
        }
        Err(NoAnswer::NotRunning(_)) => Ok(config.bundle.ids()),
        Err(error) => Err(error.into()),
    }
}

/// Says what is wrong where a bundle would be signed by no key, or by another than the configuration names.
pub(super) async fn must_sign(config: &Config) -> anyhow::Result<()> {
    match (in_force(config).await?.signing, config.bundle.ids().signing) {
        (Some(key), Some(named)) if key != named => {
            bail!("the running larder signs with key {key}, and [bundle] signing_key is key {named} now: {RELOAD}")
        }
        (Some(_), _) => Ok(()),
        (None, Some(named)) => {
            bail!("the running larder has not read [bundle] signing_key (key {named}) yet: {RELOAD}")
        }
        (None, None) => bail!(
            "there is no key to sign the bundle with: make one (larder bundle keygen bundle.key) and name it in [bundle] \
             signing_key; or write a bundle that nobody signs (--unsigned)"
        ),
    }
}

/// Says so where the configuration trusts the key of a bundle, and the running larder has not read that.
pub(super) async fn must_be_read(config: &Config, key: &KeyId) -> anyhow::Result<()> {
    if config.bundle.ids().trusted.contains(key) && !in_force(config).await?.trusted.contains(key) {
        bail!("[bundle] trusted_keys names key {key}, and the running larder has not read that yet: {RELOAD}");
    }
    Ok(())
}
