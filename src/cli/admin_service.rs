//! The larder that does the work of a command: the running one, else the same admin service
//! within this process. A command sends the same requests to either and prints the same answers.

use anyhow::{Context, bail};

use super::terminal::plural;
use super::{CommonOptions, block_on, print_error};
use crate::app;
use crate::app::running_larder::{self, NotReached};
use crate::config::{Config, ConfigReading, Problems};
use crate::http::admin_client::{AdminClient, AdminClientError};
use crate::store::Store;

/// The configuration for a command that asks the running larder and needs nothing else of it. Where its file has problems, a
/// larder that runs with that file is asked all the same, and a line on standard error says so.
///
/// # Errors
/// The file has problems, and no larder runs with it, or none that this command can ask.
pub(super) fn config_to_ask(common: &CommonOptions) -> anyhow::Result<Config> {
    let ConfigReading { config, problems, .. } = common.read();
    let Some(problems) = problems else { return Ok(config) };
    let found = block_on(async { Ok(running_larder::find_despite_problems(&config).await) })?;
    match found {
        Ok(Some((_, config))) => {
            print_error(&used_despite(&problems, &common.as_given()));
            Ok(config)
        }
        Ok(None) => Err(problems.into()),
        Err(not_reached) => {
            print_error(&format!("no running larder was asked: {not_reached}"));
            Err(problems.into())
        }
    }
}

/// The line about problems of the file with which a larder runs.
fn used_despite(problems: &Problems, options: &str) -> String {
    let (first, others) = (problems.diagnostics().first(), problems.diagnostics().len().saturating_sub(1) as u64);
    let first = first.map(ToString::to_string).unwrap_or_default();
    let others = if others > 0 { format!(", and {}", plural(others, "further problem")) } else { String::new() };
    format!(
        "{first}{others} (`larder check{options}`); the larder that runs is asked, and goes on with what it read before"
    )
}

/// The running larder; `None` where none runs.
pub(super) async fn running_larder(config: &Config) -> Result<Option<AdminClient>, NotReached> {
    Ok(running_larder::find(config).await?.map(|larder| larder.admin))
}

/// The store that a command needs if no larder runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreNeed {
    /// If no larder runs, the store must exist.
    Existing,
    /// Any store; it is created where there is none.
    Any,
}

/// Works with the running larder, else with a service within this process, which is closed afterwards.
pub(super) async fn with_larder<T>(
    config: &Config,
    need: StoreNeed,
    work: impl AsyncFnOnce(&AdminClient) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if let Some(larder) = running_larder(config).await? {
        return work(&larder).await;
    }
    if need == StoreNeed::Existing && !Store::exists(&config.store.path)? {
        let path = config.store.path.display();
        bail!("no larder runs here, and there is no store in {path} yet; `larder serve` creates it");
    }
    let admin = app::admin_of_command(config).await?;
    let result = work(&AdminClient::in_process(admin.clone())).await;
    let closed = admin.close().await.context("the store would not close");
    let value = result?;
    closed?;
    Ok(value)
}

/// Asks the running larder, else a service within this process, for a value. If no larder runs, the
/// store must exist.
pub(super) fn ask<T>(
    config: &Config,
    request: impl AsyncFnOnce(&AdminClient) -> Result<T, AdminClientError>,
) -> anyhow::Result<T> {
    block_on(with_larder(config, StoreNeed::Existing, async |larder| Ok(request(larder).await?)))
}
