//! The larder that does the work of a command: the running one over its admin listener, else the same admin service
//! within this process. A command sends the same requests to either and prints the same answers.

use anyhow::{Context, bail};
use bytes::Bytes;
use secrecy::ExposeSecret;
use serde::de::DeserializeOwned;

use super::block_on;
use crate::app::{self, loopback_if_unspecified};
use crate::config::Config;
use crate::http::admin_client::{AdminClient, AdminClientError, AdminToken};
use crate::store::Store;

/// The running larder; `None` where none runs. Where the store's lock is free, another program may listen on the
/// address, so nothing is sent. The larder that has the lock names its address in the lock file; one of an older version
/// is expected at the configured address.
pub(super) async fn running_larder(config: &Config) -> Result<Option<AdminClient>, AdminClientError> {
    let store = &config.store.path;
    if Store::is_free(store) {
        return Ok(None);
    }
    let noted = Store::listeners(store).map(|listeners| loopback_if_unspecified(listeners.admin));
    let address = noted.unwrap_or(config.admin.listen);
    let configured = config.admin.token.as_ref().map(|token| token.expose_secret().to_owned());
    let token = match configured.or_else(|| Store::read_admin_token(store)) {
        Some(token) => AdminToken::Known(token),
        None => Store::admin_token_denial(store)
            .map_or(AdminToken::Absent, |reason| AdminToken::Unreadable(reason.to_string())),
    };
    let client = AdminClient::new(address, token);
    match client.connect().await {
        Ok(()) => Ok(Some(client)),
        Err(AdminClientError::NotRunning(_)) if Store::exists(store).unwrap_or(false) => {
            Err(AdminClientError::StoreInUse { store: store.clone(), address })
        }
        Err(AdminClientError::NotRunning(_)) => Ok(None),
        Err(error) => Err(error),
    }
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
