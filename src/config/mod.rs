//! The configuration: turns `mirror.toml` into checked types and reports all problems together. Environment variables
//! and files that it names are read only here. Each part of larder receives only its own section.

mod client;
mod credential;
mod fleet;
mod os;
mod policy;
mod read;
mod section;
#[cfg(test)]
mod tests;
mod upstream;
mod values;
mod warm;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use derive_more::Display;
use ipnet::IpNet;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::address::{Hostname, Platform, TERRAFORM_REGISTRY};
use crate::bundle::BundleKeys;
use crate::policy::Policy;
use crate::store::SizeLimit;

pub use bytesize::ByteSize;
pub use client::{ClaimPattern, Client, IssuerSettings, KeySource, Oidc, parse_name as parse_client_name};
pub use credential::{Access, Credential, CredentialKind, SshFiles};
pub use fleet::{Bucket, BucketKey, BucketService, Fleet, urls_of_hosts};
pub(crate) use os::{environment, text};
pub use section::{Diagnostic, Problems};
pub use upstream::{Dates, FirstList, FreshnessLifetimes, Upstream, VerificationPolicy};
pub(crate) use values::{is_loopback, listening};
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
    /// The rules about the versions that may be used.
    pub policy: Arc<Policy>,
    /// The clients that authenticate. With any, the routes of registries need a token.
    pub clients: Vec<Client>,
    /// Signing key and trusted keys of bundles.
    pub bundle: BundleKeys,
    /// The place of the audit trail; `None` without one.
    pub audit: Option<AuditTarget>,
    /// The platforms that lock files are for, where a command names none; empty for this machine's.
    pub lock_platforms: Vec<Platform>,
    /// Recurring warm-ups.
    pub warm: Vec<RecurringWarmUp>,
    /// The fleet of this larder; `None` for a larder with a store of its own.
    pub fleet: Option<Fleet>,
}

/// The place of the audit trail.
#[derive(Debug, Clone, PartialEq, Eq, Display)]
pub enum AuditTarget {
    /// A file.
    #[display("{}", _0.display())]
    File(PathBuf),
    /// systemd's journal.
    #[display("journal")]
    Journal,
}

/// A configuration file as far as it can be read, for a command that asks a running larder: that goes on with what it read.
#[derive(Debug, Clone)]
pub struct ConfigReading {
    /// The settings. Those with problems have their defaults.
    pub config: Config,
    /// The warnings.
    pub warnings: Vec<Diagnostic>,
    /// The problems; `None` for a valid configuration.
    pub problems: Option<Problems>,
}

impl ConfigReading {
    /// Reads the file that [`Config::load`] loads.
    pub fn of(path: Option<&Path>) -> Self {
        let env = &os::variable;
        let named = path.map(Path::to_owned).or_else(|| os::named_file(env));
        let locations = named.clone().map_or_else(|| os::default_locations(env), |path| vec![path]);
        for path in locations {
            match os::text(&path, MAX_FILE_BYTES) {
                Ok(text) => return Self::of_text(&text, &path, env),
                Err(cause) if cause.is_absent() && named.is_none() => {}
                Err(cause) => {
                    let problems = Some(Problems::unreadable(&path, &cause));
                    let config = Config { source: Some(path), ..Config::default() };
                    return Self { config, warnings: Vec::new(), problems };
                }
            }
        }
        Self { config: Config::default(), warnings: Vec::new(), problems: None }
    }

    fn of_text(text: &str, file: &Path, env: &dyn Fn(&str) -> Option<String>) -> Self {
        let (config, reader) = read::read(text, file, env);
        let problems = (!reader.problems.is_empty()).then(|| Problems::new(reader.problems));
        Self { config, warnings: reader.warnings, problems }
    }

    /// The configuration with its warnings.
    ///
    /// # Errors
    /// All problems of the file.
    pub fn valid(self) -> Result<(Config, Vec<Diagnostic>), Problems> {
        self.problems.map_or(Ok((self.config, self.warnings)), Err)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::defaults(&os::variable)
    }
}

impl Config {
    /// Loads the named file, else the first existing one of `$LARDER_CONFIG`, `$XDG_CONFIG_HOME/larder/mirror.toml` and
    /// `/etc/larder/mirror.toml`, else the defaults. A file that is named here or in `$LARDER_CONFIG` must exist. The
    /// working directory is never searched: a cloned repository must not choose where credentials go.
    ///
    /// # Errors
    /// All problems of the file.
    pub fn load(path: Option<&Path>) -> Result<(Self, Vec<Diagnostic>), Problems> {
        ConfigReading::of(path).valid()
    }

    /// Parses the text of one configuration file, and reads the secrets that it names. Problems name `file`, and
    /// relative paths start from its folder. `env` returns environment variables.
    pub fn parse(
        text: &str,
        file: &Path,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(Self, Vec<Diagnostic>), Problems> {
        ConfigReading::of_text(text, file, env).valid()
    }

    /// Returns the reason not to start, and the lines to add. A larder with a credential that other machines can reach
    /// starts only if the configuration says which clients are allowed (promise 8).
    pub fn refusal(&self) -> Option<String> {
        if let Some(refusal) = self.refusal_of_plain_tokens() {
            return Some(refusal);
        }
        if self.server.clients.is_some() || self.server.open || !self.clients.is_empty() {
            return None;
        }
        let credential_holders = self.credential_holders();
        let reachable = self.server.reachable_from_elsewhere();
        if credential_holders.is_empty() || reachable.is_empty() {
            return None;
        }
        Some(format!(
            "larder has credentials ({}) and is reachable from other machines ({}), so every client could use those \
             credentials; list the allowed clients in [server], for example clients = [\"10.0.0.0/8\"], give them tokens \
             ([[client]]), or set open = true to allow every client",
            credential_holders.join(", "),
            reachable.join(", "),
        ))
    }

    /// Tokens that cross a network in plain text are everybody's.
    fn refusal_of_plain_tokens(&self) -> Option<String> {
        let Server { listen, tls, trusted_proxies, public_url, .. } = &self.server;
        if self.clients.is_empty() {
            return None;
        }
        let remedy = "set [server] tls, or let a proxy end TLS and list it in [server] trusted_proxies";
        if let Some(url) = public_url.as_ref().filter(|url| url.scheme() == "http" && !values::is_loopback(url)) {
            return Some(format!(
                "[[client]] has tokens, and [server] public_url is {url}, where everybody on the way could read them; {remedy}, and \
                 write https"
            ));
        }
        let is_plain = tls.is_none() && trusted_proxies.is_empty() && !listen.ip().to_canonical().is_loopback();
        is_plain.then(|| {
            format!(
                "[[client]] has tokens, and larder listens at {listen} without TLS: everybody on the way could read them; {remedy}"
            )
        })
    }

    /// The absolute path of the file that this was read from; `None` for built-in defaults.
    pub fn file(&self) -> Option<PathBuf> {
        self.source.as_ref().map(|file| std::path::absolute(file).unwrap_or_else(|_| file.clone()))
    }

    /// The registry of an address without a host.
    pub fn default_host(&self) -> Hostname {
        let terraform_registry =
            || Hostname::parse(TERRAFORM_REGISTRY).expect("a public registry's name is a host name");
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

    /// The configuration of an empty file.
    fn defaults(env: &dyn Fn(&str) -> Option<String>) -> Self {
        let (config, _) = read::read("", Path::new(""), env);
        Self { source: None, ..config }
    }
}

/// `[server]`: the main listener.
#[derive(Debug, Clone)]
pub struct Server {
    /// Address of the main listener.
    pub listen: SocketAddr,
    /// Base URL for clients, for a path prefix or another host name: http or https, ending in a slash, without
    /// userinfo, query or fragment.
    pub public_url: Option<Url>,
    /// Certificate and key, where larder itself ends TLS.
    pub tls: Option<TlsFiles>,
    /// The upstream served under larder's own host name; always one of the upstreams.
    pub default_upstream: Option<Hostname>,
    /// Networks of the allowed clients, never empty; `None` allows all.
    pub clients: Option<Vec<IpNet>>,
    /// Explicit permission to serve upstreams with credentials to every client.
    pub open: bool,
    /// Proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<IpNet>,
}

impl Server {
    /// The settings that make the main listener reachable from other machines.
    pub fn reachable_from_elsewhere(&self) -> Vec<&'static str> {
        let is_off_loopback = !self.listen.ip().to_canonical().is_loopback();
        [
            (is_off_loopback, "server.listen is not on loopback"),
            (self.public_url.is_some(), "server.public_url is set"),
            (!self.trusted_proxies.is_empty(), "server.trusted_proxies is set"),
        ]
        .into_iter()
        .filter_map(|(is_true, reason)| is_true.then_some(reason))
        .collect()
    }
}

/// Two PEM files, reloaded when they change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// `[admin]`: the admin listener.
#[derive(Debug, Clone)]
pub struct Admin {
    /// Address of the admin listener.
    pub listen: SocketAddr,
    /// Bearer token; `None` generates one at the first start.
    pub token: Option<SecretString>,
    /// The admin listener that the command line of a command names. Then no other larder and no store will do.
    pub asked: Option<SocketAddr>,
}

/// `[store]`: location and limits of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// Folder of the store.
    pub path: PathBuf,
    /// The origin of the path.
    pub named_by: StoreNaming,
    /// Limit of archives and documents together.
    pub max_size: SizeLimit,
    /// The most bytes of one file of a module.
    pub max_module_file: ByteSize,
    /// Memory budget for rendered responses and small archives.
    pub memory: ByteSize,
    /// Interval of the scrub, which checks every archive against its digest; `None` disables it.
    pub scrub: Option<Duration>,
}

/// The origin of the path of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StoreNaming {
    /// The configuration, or the default.
    #[default]
    Configuration,
    /// `--store`.
    CommandLine,
}

/// `[network]`: outbound connections.
#[derive(Debug, Clone, Default)]
pub struct Network {
    /// No outbound traffic at all.
    pub offline: bool,
    /// Platforms for which a provider version must be stored to be listed while larder is offline; if empty, one is
    /// enough.
    pub sealed_platforms: Vec<Platform>,
    /// Certificate authorities in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// Private destinations that documents and redirects may lead to.
    pub allow_private: Vec<PrivateDestination>,
}

/// One entry of `network.allow_private`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrivateDestination {
    /// Every address in a network; a single address is a network of one.
    Network(IpNet),
    /// A host name in lower-case ASCII, over https; its addresses are not restricted.
    Name(String),
    /// An origin that may be requested without TLS.
    PlainHttp {
        /// Host as a parsed URL prints it: lower-case ASCII, IPv6 in brackets.
        host: String,
        /// The port.
        port: u16,
    },
}
