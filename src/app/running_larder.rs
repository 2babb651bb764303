//! Finds the larder that a command talks to. It never takes another program for larder: the larder of the store answers at a
//! Unix socket in the store's private folder, and any other listener proves first that it knows the admin token.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use secrecy::SecretString;
use serde::Deserialize;

use super::loopback_if_unspecified;
use crate::address::Hostname;
use crate::config::{Config, StoreNaming};
use crate::http::admin_client::{AdminClient, AdminClientError};
use crate::place::Place;
use crate::protocol::admin::STATUS;
use crate::store::{OwnerNote, Store, StoreUse};

/// A running larder, with an open connection to it.
#[derive(Debug)]
pub struct RunningLarder {
    /// The way to it.
    pub admin: AdminClient,
    /// Its note in the lock file of the configured store; `None` for a larder that this user or machine knows by its address
    /// alone.
    pub note: Option<OwnerNote>,
}

/// The reason why a command reaches no larder, although there may be one.
#[derive(Debug, thiserror::Error)]
pub enum NotReached {
    /// The process that has the store answers no requests.
    #[error(
        "{} is in use by {process}, which answers no requests: wait for that command; if it is a larder that starts or ends, \
         try again; if it is one of another version, name its admin listener (--admin-listen ADDRESS:PORT)",
        store.display()
    )]
    InUse {
        /// The folder of the store.
        store: PathBuf,
        /// The process.
        process: String,
    },
    /// The larder that has the store runs on another machine.
    #[error(
        "{} is in use by a larder on another machine, {host}: run the command there, or name its admin listener \
         (--admin-listen ADDRESS:PORT)",
        store.display()
    )]
    Elsewhere {
        /// The folder of the store.
        store: PathBuf,
        /// The machine.
        host: String,
    },
    /// Without the admin token a command cannot tell larder from another program.
    #[error(
        "the admin listener on {address} was not asked: without the admin token this command cannot tell larder from another \
         program there, and {reason}; run the command as larder's user (sudo -u larder larder ...), or set [admin] token"
    )]
    NoToken {
        /// The listener.
        address: SocketAddr,
        /// Why there is no token.
        reason: String,
    },
    /// The larder does not answer, or another program listens at its address.
    #[error(transparent)]
    Client(#[from] AdminClientError),
}

impl NotReached {
    /// True where a later look may find another state: the process starts or ends.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::InUse { .. } | Self::Client(AdminClientError::NotRunning(_) | AdminClientError::Failed { .. })
        )
    }
}

/// The running larder of a configuration, or the one that the command line names; `None` where none runs.
///
/// # Errors
/// [`NotReached`]: a larder may run, and this command cannot ask it.
pub async fn find(config: &Config) -> Result<Option<RunningLarder>, NotReached> {
    let store = &config.store.path;
    let used = Store::use_of(store);
    if let StoreUse::Noted(note) = &used
        && let Some(listeners) = note.listeners()
        && config.admin.asked.is_none_or(|asked| is_listener(asked, listeners.admin))
    {
        return of_store(config, note, listeners.admin).await.map(Some);
    }
    if let Some(address) = config.admin.asked {
        return at_listener(config, address).await.map(Some);
    }
    let in_use = |process: String| Err(NotReached::InUse { store: store.clone(), process });
    match used {
        // Another program may have the configured address.
        StoreUse::Free if Store::exists(store).unwrap_or(true) => Ok(None),
        // There is no store here. It may be elsewhere, or its folder may be gone while its larder runs.
        StoreUse::Free | StoreUse::Unseen(_) => match at_listener(config, config.admin.listen).await {
            Err(NotReached::Client(AdminClientError::NotRunning(_))) => Ok(None),
            Err(NotReached::NoToken { .. }) if matches!(used, StoreUse::Free) => Ok(None),
            found => found.map(Some),
        },
        StoreUse::Noted(note) if !note.place.is_same_machine(&Place::here()) => {
            Err(NotReached::Elsewhere { store: store.clone(), host: note.place.host })
        }
        StoreUse::Noted(note) => in_use(format!("process {}", note.process)),
        StoreUse::Unnoted => in_use("another process".to_owned()),
    }
}

/// The running larder of a configuration whose file has problems. The settings that lead to it may be among those that cannot
/// be read, so it must say that its store is the one of this file, unless the command line names the larder or its store.
/// Returns the configuration that leads to this larder and to no other, for the command.
///
/// # Errors
/// [`NotReached`]: a larder may run, and this command cannot ask it.
pub async fn find_despite_problems(config: &Config) -> Result<Option<(RunningLarder, Config)>, NotReached> {
    #[derive(Deserialize)]
    struct ConfigInUse {
        config_file: Option<PathBuf>,
        store_named_by: StoreNaming,
        default_host: Option<Hostname>,
    }
    let Some(found) = find(config).await? else { return Ok(None) };
    let in_use: ConfigInUse = found.admin.get(STATUS).await?;
    let is_same = in_use.config_file.zip(config.file()).is_some_and(|(used, given)| is_same_file(&used, &given));
    let is_named = config.admin.asked.is_some() || config.store.named_by == StoreNaming::CommandLine;
    if !is_named && (!is_same || in_use.store_named_by != StoreNaming::Configuration) {
        return Ok(None);
    }
    let mut config = config.clone();
    let noted = found.note.as_ref().and_then(OwnerNote::listeners).map(|listeners| listeners.admin);
    config.admin.listen = config.admin.asked.or(noted).unwrap_or(config.admin.listen);
    config.admin.asked = Some(config.admin.listen);
    config.server.default_upstream = in_use.default_host;
    Ok(Some((found, config)))
}

/// True for two paths of one file.
fn is_same_file(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().ok().is_some_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

/// The larder that has the store, at its Unix socket. Where there is none, because the file system has no sockets or the larder
/// runs in another container, its admin listener may prove itself.
async fn of_store(config: &Config, note: &OwnerNote, listener: SocketAddr) -> Result<RunningLarder, NotReached> {
    let store = &config.store.path;
    let here = Place::here();
    if !note.place.is_same_machine(&here) {
        return Err(NotReached::Elsewhere { store: store.clone(), host: note.place.host.clone() });
    }
    let admin = AdminClient::at_socket(Store::admin_socket(store));
    let Err(error) = admin.connect().await else {
        return Ok(RunningLarder { admin, note: Some(note.clone()) });
    };
    tracing::debug!(%error, "the socket of the store was not reached");
    if !note.place.is_same_network(&here) {
        return Err(NotReached::Elsewhere { store: store.clone(), host: note.place.host.clone() });
    }
    match at_listener(config, loopback_if_unspecified(listener)).await {
        Ok(found) => Ok(RunningLarder { note: Some(note.clone()), ..found }),
        Err(NotReached::Client(AdminClientError::NotRunning(_))) => {
            Err(NotReached::InUse { store: store.clone(), process: format!("process {}", note.process) })
        }
        Err(error) => Err(error),
    }
}

/// The larder that listens at an address, once it has proven that it knows the token.
async fn at_listener(config: &Config, address: SocketAddr) -> Result<RunningLarder, NotReached> {
    let admin = AdminClient::at_listener(address, token(config, address)?);
    admin.connect().await?;
    Ok(RunningLarder { admin, note: None })
}

/// The admin token: the configured one, else the one that larder made in its store.
fn token(config: &Config, address: SocketAddr) -> Result<SecretString, NotReached> {
    let reason = match (&config.admin.token, Store::read_admin_token(&config.store.path)) {
        (Some(configured), _) => return Ok(configured.clone()),
        (None, Ok(Some(stored))) => return Ok(stored.into()),
        (None, Ok(None)) => format!("{} has none", Store::token_file(&config.store.path).display()),
        (None, Err(error)) => format!("this user may not read that ({error})"),
    };
    Err(NotReached::NoToken { address, reason })
}

/// True if an address that a person names is the one at which a larder says that it listens.
fn is_listener(named: SocketAddr, listener: SocketAddr) -> bool {
    named.port() == listener.port() && (named.ip() == listener.ip() || loopback_if_unspecified(listener) == named)
}
