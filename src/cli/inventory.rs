//! `larder inventory`: prints a list of everything stored, small enough to carry out, for `larder bundle create
//! --since`.

use anyhow::Context;

use super::command::require_store;
use super::{CommonOptions, ask_running, print_line, runtime};
use crate::app::{self, StartSettings};
use crate::http::admin_client::{self, AdminClientError};
use crate::protocol::admin::bundle::INVENTORY;

/// Prints the inventory, always as JSON on one line.
pub(super) fn run(common: &CommonOptions) -> anyhow::Result<()> {
    let (config, _) = common.load()?;
    let inventory = runtime()?.block_on(async {
        let response =
            ask_running(&config, async |address, token| admin_client::get_large(address, INVENTORY, token).await).await;
        match response {
            Ok(body) => anyhow::Ok(body.to_vec()),
            Err(AdminClientError::NotRunning(_)) => {
                require_store(&config)?;
                let settings = StartSettings::default();
                let (mirror, _, _) = app::mirror(&config, &settings)?;
                let inventory = mirror.transfers.inventory(settings.clock.now())?.write();
                mirror.library.close().await?;
                Ok(inventory)
            }
            Err(error) => Err(error.into()),
        }
    })?;
    print_line(std::str::from_utf8(&inventory).context("the running larder is of another version")?.trim_end());
    Ok(())
}
