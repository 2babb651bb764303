//! The larder that does the work of a command: the running one, else the same admin service
//! within this process. A command sends the same requests to either and prints the same answers.

use anyhow::{Context, bail};
use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::block_on;
use crate::app;
use crate::app::running_larder::{self, NotReached};
use crate::config::Config;
use crate::http::admin_client::{AdminClient, AdminClientError};
use crate::store::Store;

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
pub(super) fn ask<T: DeserializeOwned>(
    config: &Config,
    request: impl AsyncFnOnce(&AdminClient) -> Result<Bytes, AdminClientError>,
) -> anyhow::Result<T> {
    let answer = with_larder(config, StoreNeed::Existing, async |larder| Ok(request(larder).await?));
    Ok(parse(&block_on(answer)?)?)
}

/// Parses an answer.
pub(super) fn parse<T: DeserializeOwned>(answer: &[u8]) -> Result<T, AdminClientError> {
    Ok(serde_json::from_slice(answer)?)
}
