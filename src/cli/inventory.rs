//! `larder inventory`: prints a list of everything stored, small enough to carry out, for `larder bundle create
//! --since`.

use anyhow::Context;

use super::command::must_have_a_store;
use super::{Common, ask_running, runtime, say};
use crate::app::{self, Settings};
use crate::http::admin_client::{self, NoAnswer};
use crate::protocol::admin::bundle::INVENTORY;

/// Prints the inventory, always as JSON on one line.
pub(super) fn run(common: &Common) -> anyhow::Result<()> {
    let (config, _) = common.load()?;
    let inventory = runtime()?.block_on(async {
        let asked = ask_running(&config, async |at, token| admin_client::get_large(at, INVENTORY, token).await).await;
        match asked {
            Ok(answer) => anyhow::Ok(answer.to_vec()),
            Err(NoAnswer::NotRunning(_)) => {
                must_have_a_store(&config)?;
                let settings = Settings::default();
                let (mirror, _, _) = app::mirror(&config, &settings)?;
                let inventory = mirror.inventory(settings.clock.now())?.write();
                mirror.close().await?;
                Ok(inventory)
            }
            Err(error) => Err(error.into()),
        }
    })?;
    say(std::str::from_utf8(&inventory).context("the running larder is of another version")?.trim_end());
    Ok(())
}
