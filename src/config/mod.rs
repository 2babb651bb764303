//! The configuration: `mirror.toml` becomes checked types, and every problem in it is reported in one go.
//! The environment and the files that it names are read here and nowhere else; what the values then do is left to the
//! parts, each of which receives its own section.

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
pub use sections::{Admin, Network, Private, Server, Store, TlsFiles};
pub use upstream::{Fresh, Upstream};
pub(crate) use values::listening;
pub use warm::{Warm, WarmWhat};

/// A `mirror.toml` larger than this is not read.
const LIMIT_BYTES: u64 = 1024 * 1024;

/// Everything that `mirror.toml` says, checked, with the defaults where it says nothing.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file this was read from; none when the defaults stand.
    pub source: Option<PathBuf>,
    /// The main listener.
    pub server: Server,
    /// The admin listener.
    pub admin: Admin,
    /// What is kept, and where.
    pub store: Store,
    /// Everything that goes out.
    pub network: Network,
    /// The registries mirrored: at least one, no host twice.
    pub upstreams: Vec<Upstream>,
    /// Secrets for hosts that are no registries.
    pub credentials: Vec<Credential>,
    /// What bundles are signed with, and whose are taken.
    pub bundle: BundleKeys,
    /// What is warmed again and again.
    pub warm: Vec<Warm>,
}

impl Default for Config {
    /// What holds with no file at all.
    fn default() -> Self {
        Self::defaults(&outside::variable)
    }
}

impl Config {
    /// Read the file named, or else the first found of `$XDG_CONFIG_HOME/larder/mirror.toml` and `/etc/larder/mirror.toml`,
    /// or else take the defaults. The working directory is never searched: a cloned repository must not choose where
    /// credentials go.
    pub fn load(path: Option<&Path>) -> Result<(Self, Vec<Warning>), Problems> {
        let env = &outside::variable;
        if let Some(path) = path {
            let text = outside::text(path, LIMIT_BYTES).map_err(|cause| Problems::unreadable(path, &cause))?;
            return Self::parse(&text, path, env);
        }
        if let Some(path) = outside::named(env) {
            return Self::load(Some(&path));
        }
        for path in outside::places(env) {
            match outside::text(&path, LIMIT_BYTES) {
                Ok(text) => return Self::parse(&text, &path, env),
                Err(cause) if cause.is_absent() => {}
                Err(cause) => return Err(Problems::unreadable(&path, &cause)),
            }
        }
        Ok((Self::default(), Vec::new()))
    }

    /// Read the text of one configuration file. `file` is what problems name, and its folder is what relative paths start
    /// from; `env` answers for the environment. The secrets that the text names are read too.
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

    /// Promise 8: holding a credential and reachable from elsewhere, larder starts only when the configuration says who
    /// may ask. Gives the reason not to start, and what to add.
    pub fn refusal(&self) -> Option<String> {
        if self.server.clients.is_some() || self.server.open {
            return None;
        }
        let held = self.credential_holders();
        let reachable = self.server.reachable_from_elsewhere();
        if held.is_empty() || reachable.is_empty() {
            return None;
        }
        Some(format!(
            "larder holds credentials ({}) and can be reached from elsewhere ({}), so whoever reaches it would be served what \
             those credentials open; add to [server] who may ask, for example clients = [\"10.0.0.0/8\"], or open = true if \
             everybody may",
            held.join(", "),
            reachable.join(", "),
        ))
    }

    /// The registry of an address that names none.
    pub fn default_host(&self) -> Hostname {
        let usual = || Hostname::parse(upstream::TERRAFORM).expect("a public registry's name is a host name");
        self.server.default_upstream.clone().unwrap_or_else(usual)
    }

    fn credential_holders(&self) -> Vec<String> {
        let upstreams = self
            .upstreams
            .iter()
            .filter(|upstream| upstream.credential.is_some())
            .map(|upstream| format!("[[upstream]] {}", upstream.host));
        let others = self.credentials.iter().map(|credential| format!("[[credential]] {}", credential.host));
        upstreams.chain(others).collect()
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
