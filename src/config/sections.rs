//! Types and defaults of the sections that occur once in `mirror.toml`.

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
    /// Address of the main listener.
    pub listen: SocketAddr,
    /// Base URL for clients, for a path prefix or another host name: http or https, ending in a slash, without
    /// userinfo, query or fragment.
    pub public_url: Option<Url>,
    /// Certificate and key, where larder itself ends TLS.
    pub tls: Option<TlsFiles>,
    /// Offer HTTP/2, which has no reason phrases.
    pub http2: bool,
    /// The upstream served under larder's own host name; always one of the upstreams.
    pub default_upstream: Option<Hostname>,
    /// Networks of the allowed clients, never empty; `None` allows all.
    pub clients: Option<Vec<IpNet>>,
    /// Explicit permission to serve upstreams with credentials to every client.
    pub open: bool,
    /// Proxies whose `X-Forwarded-For` is trusted.
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
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8081)), token: None }
    }
}

/// `[store]`: location and limits of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// Folder of the store.
    pub path: PathBuf,
    /// Limit of archives and documents together.
    pub max_size: SizeLimit,
    /// Memory budget for rendered responses and small archives.
    pub memory: ByteSize,
    /// Interval of the scrub, which checks every archive against its digest; `None` disables it.
    pub scrub: Option<Duration>,
}

impl Store {
    /// Defaults for a store in this folder.
    pub fn in_folder(path: PathBuf) -> Self {
        Self {
            path,
            max_size: SizeLimit::ShareOfDisk,
            memory: ByteSize::mib(64),
            // Disks lose bits over months, and reading a full store takes only hours.
            scrub: Some(Duration::from_secs(30 * 24 * 3600)),
        }
    }
}

/// `[network]`: outbound connections.
#[derive(Debug, Clone, Default)]
pub struct Network {
    /// No outbound traffic at all.
    pub offline: bool,
    /// Platforms that a version needs to be listed offline; empty means any stored platform.
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
