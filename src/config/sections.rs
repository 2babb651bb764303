//! The sections of `mirror.toml` that occur once, as types, with their defaults. How they are read is left to `read`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use ipnet::IpNet;
use secrecy::SecretString;
use url::Url;

use crate::address::{Hostname, Platform};
use crate::store::SizeLimit;

/// `[server]`: the main listener.
#[derive(Debug, Clone)]
pub struct Server {
    /// Where it listens.
    pub listen: SocketAddr,
    /// What clients reach it by, when that is a path prefix or another name: http or https, ending in a slash, without
    /// userinfo, query or fragment.
    pub public_url: Option<Url>,
    /// The certificate and key, when larder itself speaks TLS.
    pub tls: Option<TlsFiles>,
    /// True where clients may speak HTTP/2, which has no reason phrases.
    pub http2: bool,
    /// The upstream that larder's own host name stands for; always one of the upstreams.
    pub default_upstream: Option<Hostname>,
    /// Who may ask; everybody when absent, never empty.
    pub clients: Option<Vec<IpNet>>,
    /// Credentialed upstreams are served to everybody, knowingly.
    pub open: bool,
    /// Whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            public_url: None,
            tls: None,
            http2: false,
            default_upstream: None,
            clients: None,
            open: false,
            trusted_proxies: Vec::new(),
        }
    }
}

impl Server {
    /// The settings that let others than this machine reach the main listener; empty when none does.
    pub fn reachable_from_elsewhere(&self) -> Vec<&'static str> {
        let off_loopback = !self.listen.ip().to_canonical().is_loopback();
        [
            (off_loopback, "server.listen is not on loopback"),
            (self.public_url.is_some(), "server.public_url is set"),
            (!self.trusted_proxies.is_empty(), "server.trusted_proxies is set"),
        ]
        .into_iter()
        .filter_map(|(holds, reason)| holds.then_some(reason))
        .collect()
    }
}

/// Two PEM files, read again when they change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and its chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// `[admin]`: the admin listener.
#[derive(Debug, Clone)]
pub struct Admin {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The bearer token; when absent, one is made at the first start.
    pub token: Option<SecretString>,
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8081)), token: None }
    }
}

/// `[store]`: what is kept, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// The folder of the store.
    pub path: PathBuf,
    /// How much archives and documents may take together.
    pub max_size: SizeLimit,
    /// How much rendered answers and small archives may take in memory.
    pub memory: ByteSize,
    /// How often every archive is read and held against its digest; never when absent.
    pub scrub: Option<Duration>,
}

impl Store {
    /// The defaults, in this folder.
    pub fn in_folder(path: PathBuf) -> Self {
        Self {
            path,
            max_size: SizeLimit::ShareOfDisk,
            memory: ByteSize::mib(64),
            // Disks lose bits over months; a full store is read within hours.
            scrub: Some(Duration::from_secs(30 * 24 * 3600)),
        }
    }
}

/// `[network]`: everything that goes out.
#[derive(Debug, Clone, Default)]
pub struct Network {
    /// Nothing is asked of anybody.
    pub offline: bool,
    /// Offline, list versions held for all of these; for any platform when empty.
    pub sealed_platforms: Vec<Platform>,
    /// Certificates added to the system's trust.
    pub ca_file: Option<PathBuf>,
    /// Private places that documents and redirects may lead to.
    pub allow_private: Vec<Private>,
}

/// One entry of `network.allow_private`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Private {
    /// Every address in a network; a single address is a network of one.
    Network(IpNet),
    /// A host name, in lower-case ASCII, whatever it resolves to; over https.
    Name(String),
    /// An origin that may be asked without TLS.
    PlainHttp {
        /// The host as a parsed URL prints it: lower-case ASCII, an IPv6 address in brackets.
        host: String,
        /// The port.
        port: u16,
    },
}
