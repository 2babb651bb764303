//! Checks whether a larder runs with this configuration, and whether the commands can reach it.

use std::net::SocketAddr;

use bytes::Bytes;
use secrecy::{ExposeSecret, SecretString};
use tokio::time::timeout;

use super::{Check, PROBE_TIMEOUT};
use crate::config::Config;
use crate::http::admin_client::{AdminClient, AdminClientError, AdminToken};
use crate::protocol::admin::command::OperationTarget;
use crate::protocol::admin::{AdminRefusal, Operation, StatusReport};
use crate::store::{LockState, Store, StoreFindings, TokenFile};

const LOCKED_BY_ANOTHER: &str = "a larder with another [admin] listen uses this store, or a command does; give the doctor the \
     --config of the running larder";

const NOT_SET_UP_ADVICE: &str = "to run one here, start it (larder serve); if one runs, give the doctor its --config or --store; a \
     machine with clients only needs none";

/// State of the larder of this configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum LarderState {
    /// Running.
    Up,
    /// Not running.
    #[default]
    Down,
    /// Never set up: there is neither a configuration nor a store. This may be a machine with clients only.
    NeverSetUp,
}

/// Facts about the larder of this configuration.
#[derive(Debug, Default)]
pub(super) struct RunningLarder {
    pub(super) state: LarderState,
    /// This larder is offline, by its configuration or by `serve --offline`.
    pub(super) is_offline: bool,
    /// The size of this larder's archives and documents, in bytes.
    pub(super) used_bytes: Option<u64>,
}

impl RunningLarder {
    pub(super) fn is_up(&self) -> bool {
        self.state == LarderState::Up
    }
}

/// Checks the running larder and the admin token.
pub(super) async fn check_running(config: &Config, examined: &StoreFindings) -> (RunningLarder, Vec<Check>) {
    if config.source.is_none() && matches!(examined.exists, Ok(false)) {
        return never_set_up(config.admin.listen).await;
    }
    let (mut running, check) = check_larder(config, examined).await;
    running.is_offline |= config.network.offline;
    let token_check = check_token(config, examined, running.is_up()).await;
    (running, vec![check, token_check])
}

/// Without a configuration and a store, the only finding is that no larder is set up.
async fn never_set_up(address: SocketAddr) -> (RunningLarder, Vec<Check>) {
    let other_server = match get(address, "/healthz", None).await {
        Err(AdminClientError::NotRunning(_)) => String::new(),
        Ok(_) => format!("; a larder with another store answers on {address}"),
        Err(_) => format!("; something else answers on {address}"),
    };
    let found =
        format!("no larder is set up on this machine: no mirror.toml was found, and there is no store{other_server}");
    let running = RunningLarder { state: LarderState::NeverSetUp, ..RunningLarder::default() };
    (running, vec![Check::warn("running", found).advise(NOT_SET_UP_ADVICE)])
}

/// Checks whether a larder answers on the admin listener, and whether it uses this store.
async fn check_larder(config: &Config, examined: &StoreFindings) -> (RunningLarder, Check) {
    const RUNNING: &str = "running";
    let address = config.admin.listen;
    let store = config.store.path.display();
    let down = |check| (RunningLarder::default(), check);
    match (get(address, "/healthz", None).await, examined.lock) {
        (Err(AdminClientError::NotRunning(_)), LockState::Held) => down(
            Check::fail(RUNNING, format!("{store} is in use, but nothing listens on {address}"))
                .advise(LOCKED_BY_ANOTHER),
        ),
        (Err(AdminClientError::NotRunning(_)), _) => down(
            Check::fail(RUNNING, format!("no larder runs: nothing listens on {address}"))
                .advise("start it: larder serve, or systemctl start larder"),
        ),
        (Err(error @ AdminClientError::NotLarder { .. }), _) => down(
            Check::fail(RUNNING, error.to_string())
                .advise("stop the program that listens there (ss -ltnp), or give larder another [admin] listen"),
        ),
        (Err(error), _) => down(
            Check::fail(RUNNING, error.to_string())
                .advise("another program has this port, or larder hangs; check which one listens there (ss -ltnp)"),
        ),
        // The token is only for the larder that holds the lock of this store.
        (Ok(_), LockState::Free) => down(
            Check::fail(RUNNING, format!("a larder answers on {address}, but the store in {store} is not in use"))
                .advise("another larder listens there: give the doctor its --config, or this one another port"),
        ),
        (Ok(_), LockState::Held | LockState::Unseen) => check_answering(config, examined, address).await,
    }
}

/// Checks the larder that answers on the admin listener.
async fn check_answering(config: &Config, examined: &StoreFindings, address: SocketAddr) -> (RunningLarder, Check) {
    const RUNNING: &str = "running";
    let own_version = env!("CARGO_PKG_VERSION");
    let mut running = RunningLarder { state: LarderState::Up, ..RunningLarder::default() };
    if let Err(error) = get(address, "/readyz", None).await {
        let check = Check::fail(RUNNING, format!("larder runs, but is not ready: {error}"));
        return (running, check.advise("restore the store folder, or restart larder; see its log"));
    }
    let token = known_token(config, examined).filter(|_| examined.lock == LockState::Held);
    let status = get(address, "/admin/v1/status", token.as_ref().map(ExposeSecret::expose_secret)).await;
    let report = match status.map(|body| serde_json::from_slice::<StatusReport>(&body)) {
        Ok(Ok(report)) => report.mirror,
        Ok(Err(_)) => {
            let check = Check::warn(
                RUNNING,
                format!("the larder on {address} has another version than this command, {own_version}"),
            );
            return (running, check.advise("restart it, so that both have the same version"));
        }
        // The token check reports this.
        Err(_) => return (running, Check::ok(RUNNING, format!("ready; admin listener on {address}"))),
    };
    running.is_offline = report.offline;
    running.used_bytes = Some(report.archive_bytes.saturating_add(report.document_bytes));
    if report.version != own_version {
        let found = format!("larder {} runs, but this command is {own_version}", report.version);
        return (running, Check::warn(RUNNING, found).advise("restart it, so that both have the same version"));
    }
    let offline = if report.offline { ", offline" } else { "" };
    (running, Check::ok(RUNNING, format!("larder {own_version}, ready{offline}; admin listener on {address}")))
}

/// Checks that the admin token exists, is private, and is the one of the running larder.
async fn check_token(config: &Config, examined: &StoreFindings, is_up: bool) -> Check {
    const TOKEN: &str = "token";
    let file = Store::token_file(&config.store.path);
    let file = file.display();
    let token_source = if config.admin.token.is_some() {
        "[admin] token".to_owned()
    } else {
        match &examined.token {
            TokenFile::Absent if !is_up => {
                return Check::ok(TOKEN, format!("{file} is created at the first start"));
            }
            TokenFile::Absent => {
                return Check::fail(TOKEN, format!("missing: {file} does not exist"))
                    .advise("restart larder; it creates a new one");
            }
            TokenFile::Empty => {
                return Check::fail(TOKEN, format!("{file} has no token"))
                    .advise("remove the file and restart larder; it creates a new one");
            }
            TokenFile::Unreadable(error) => {
                // Another user's commands may not read the token, as intended.
                let check: fn(&'static str, String) -> Check =
                    if error.is_denied() { Check::warn } else { Check::fail };
                return check(TOKEN, error.to_string())
                    .advise("run the commands as larder's user (sudo -u larder larder …)");
            }
            TokenFile::Good { mode, .. } if mode & 0o077 != 0 => {
                return Check::fail(TOKEN, format!("{file} can be read by others (mode {mode:04o})")).advise(format!(
                    "chmod 600 {file}; if the token may have leaked, remove the file and restart larder"
                ));
            }
            TokenFile::Good { .. } => file.to_string(),
        }
    };
    let Some(token) = known_token(config, examined).filter(|_| is_up && examined.lock == LockState::Held) else {
        return Check::ok(TOKEN, token_source);
    };
    // An empty refresh changes nothing, but needs a valid token.
    let path = Operation::Refresh.path();
    let token = AdminToken::Known(token.expose_secret().to_owned());
    let client = AdminClient::new(config.admin.listen, token);
    match timeout(PROBE_TIMEOUT, client.post(&path, &OperationTarget { what: Vec::new() })).await {
        Ok(Err(AdminClientError::Refused { message, .. })) if message == AdminRefusal::NoToken.to_string() => {
            Check::fail(TOKEN, format!("the running larder rejects the token of {token_source}"))
                .advise("the running larder was started with another token; restart larder")
        }
        Ok(Ok(_) | Err(AdminClientError::Refused { .. })) => {
            Check::ok(TOKEN, format!("{token_source}, and the running larder accepts it"))
        }
        Ok(Err(error)) => Check::fail(TOKEN, error.to_string()),
        Err(_) => Check::fail(TOKEN, format!("the running larder did not answer within {} s", PROBE_TIMEOUT.as_secs())),
    }
}

/// The admin token of the configuration, or of the store.
fn known_token(config: &Config, examined: &StoreFindings) -> Option<SecretString> {
    match (&config.admin.token, &examined.token) {
        (Some(configured), _) => Some(configured.clone()),
        (None, TokenFile::Good { token, .. }) => Some(token.clone()),
        (None, _) => None,
    }
}

async fn get(address: SocketAddr, path: &str, token: Option<&str>) -> Result<Bytes, AdminClientError> {
    let token = token.map_or(AdminToken::Absent, |token| AdminToken::Known(token.to_owned()));
    match timeout(PROBE_TIMEOUT, AdminClient::new(address, token).get(path)).await {
        Ok(answer) => answer,
        Err(_) => {
            let reason = format!("no answer within {} s", PROBE_TIMEOUT.as_secs());
            Err(AdminClientError::Failed { address: Some(address), reason })
        }
    }
}
