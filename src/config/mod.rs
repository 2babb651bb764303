//! The configuration: turns `mirror.toml` into checked types and reports all problems together. Environment variables
//! and files that it names are read only here. Each part of larder receives only its own section.

use std::path::{Path, PathBuf};

use crate::address::Hostname;
use crate::bundle::BundleKeys;

mod credential;
mod outside;
mod problem;
mod read;
mod reading;
mod section;
mod sections;
#[cfg(test)]
mod tests;
mod upstream;
mod values;
mod warm;

pub(crate) use outside::{Unreadable, environment, text};

pub use bytesize::ByteSize;
pub use credential::{Access, Credential, CredentialKind, SshFiles};
pub use problem::{Problems, Remark, Warning};
pub use sections::{Admin, Network, PrivateDestination, Server, Store, TlsFiles};
pub use upstream::{FreshnessLifetimes, Upstream};
pub(crate) use values::listening;
pub use warm::{RecurringWarmTarget, RecurringWarmUp};

/// Size limit of a `mirror.toml`.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The checked contents of `mirror.toml`, with defaults for absent options.
#[derive(Debug, Clone)]
pub struct Config {
    /// File that this was read from; `None` for built-in defaults.
    pub source: Option<PathBuf>,
    /// The main listener.
    pub server: Server,
    /// The admin listener.
    pub admin: Admin,
    /// Location and limits of the store.
    pub store: Store,
    /// Outbound connections.
    pub network: Network,
    /// The mirrored registries: at least one, each host once.
    pub upstreams: Vec<Upstream>,
    /// Credentials for hosts that are not registries.
    pub credentials: Vec<Credential>,
    /// Signing key and trusted keys of bundles.
    pub bundle: BundleKeys,
    /// Recurring warm-ups.
    pub warm: Vec<RecurringWarmUp>,
}

impl Default for Config {
    fn default() -> Self {
        Self::defaults(&outside::variable)
    }
}

impl Config {
    /// Loads the named file, else the first existing one of `$LARDER_CONFIG`, `$XDG_CONFIG_HOME/larder/mirror.toml` and
    /// `/etc/larder/mirror.toml`, else the defaults. A file that is named here or in `$LARDER_CONFIG` must exist. The
    /// working directory is never searched: a cloned repository must not choose where credentials go.
    pub fn load(path: Option<&Path>) -> Result<(Self, Vec<Warning>), Problems> {
        let env = &outside::variable;
        if let Some(path) = path {
            let text = outside::text(path, MAX_FILE_BYTES).map_err(|cause| Problems::unreadable(path, &cause))?;
            return Self::parse(&text, path, env);
        }
        if let Some(path) = outside::named_file(env) {
            return Self::load(Some(&path));
        }
        for path in outside::default_locations(env) {
            match outside::text(&path, MAX_FILE_BYTES) {
                Ok(text) => return Self::parse(&text, &path, env),
                Err(cause) if cause.is_absent() => {}
                Err(cause) => return Err(Problems::unreadable(&path, &cause)),
            }
        }
        Ok((Self::default(), Vec::new()))
    }

    /// Parses the text of one configuration file, and reads the secrets that it names. Problems name `file`, and
    /// relative paths start from its folder. `env` returns environment variables.
    pub fn parse(
        text: &str,
        file: &Path,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(Self, Vec<Warning>), Problems> {
        let outcome = read::read(text, file, env);
        if outcome.problems.is_empty() {
            Ok((outcome.config, outcome.warnings))
        } else {
            Err(Problems::new(outcome.problems))
        }
    }

    /// Returns the reason not to start, and the lines to add. A larder with a credential that other machines can reach
    /// starts only if the configuration says which clients are allowed (DESIGN, promise 8).
    pub fn refusal(&self) -> Option<String> {
        if self.server.clients.is_some() || self.server.open {
            return None;
        }
        let credential_holders = self.credential_holders();
        let reachable = self.server.reachable_from_elsewhere();
        if credential_holders.is_empty() || reachable.is_empty() {
            return None;
        }
        Some(format!(
            "larder has credentials ({}) and is reachable from other machines ({}), so every client could use those \
             credentials; list the allowed clients in [server], for example clients = [\"10.0.0.0/8\"], or set open = \
             true to allow every client",
            credential_holders.join(", "),
            reachable.join(", "),
        ))
    }

    /// The registry of an address without a host.
    pub fn default_host(&self) -> Hostname {
        let terraform_registry =
            || Hostname::parse(upstream::TERRAFORM_HOST).expect("a public registry's name is a host name");
        self.server.default_upstream.clone().unwrap_or_else(terraform_registry)
    }

    fn credential_holders(&self) -> Vec<String> {
        let upstreams = self
            .upstreams
            .iter()
            .filter(|upstream| upstream.credential.is_some())
            .map(|upstream| format!("[[upstream]] {}", upstream.host));
        let other_hosts = self.credentials.iter().map(|credential| format!("[[credential]] {}", credential.host));
        upstreams.chain(other_hosts).collect()
    }

    fn defaults(env: &dyn Fn(&str) -> Option<String>) -> Self {
        Self {
            source: None,
            server: Server::default(),
            admin: Admin::default(),
            store: Store::in_folder(outside::store_folder(env)),
            network: Network::default(),
            upstreams: Upstream::public_registries(),
            credentials: Vec::new(),
            bundle: BundleKeys::default(),
            warm: Vec::new(),
        }
    }
}
