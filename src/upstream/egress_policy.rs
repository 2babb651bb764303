//! The egress policy (DESIGN, promise 7). Configured origins may have any address. All other origins must be https and
//! public. Every hop is checked, against the addresses that its connection uses.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures_util::FutureExt;
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Origin, Url};

use super::CredentialScope;
use super::special_purpose_ips::{SpecialPurpose, class_of};
use crate::config::{self, PrivateDestination};

/// A request that the egress policy refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressRefusal {
    /// Offline: no outbound traffic at all.
    #[error("larder is offline")]
    Offline,
    /// Neither http nor https.
    #[error("only http and https are asked")]
    Scheme,
    /// A URL with a user or a password.
    #[error("a URL must hold no user and no password")]
    Userinfo,
    /// Plain http to an origin that the configuration does not name.
    #[error("only upstreams that the configuration names may be asked without TLS")]
    PlainHttp {
        /// The host as written in the URL.
        host: String,
        /// The port.
        port: u16,
    },
    /// An ssh server without a configured key.
    #[error("no key for this ssh server is configured")]
    NoSshKey {
        /// The server, as `host` of a `[[credential]]` spells it.
        host: String,
        /// The upstream that the request is for.
        upstream: String,
    },
    /// A name of a private network. A proxy would resolve the name, so larder cannot check its addresses.
    #[error("{host} is a name of private networks")]
    PrivateName {
        /// The name, as `allow_private` spells it.
        host: String,
    },
    /// An address outside the public internet.
    #[error("{}", refusal_text(.host, .address, .class))]
    Address {
        /// The host, as `allow_private` spells it: a name, or an address without brackets.
        host: String,
        /// The resolved address.
        address: IpAddr,
        /// Class of the address.
        class: SpecialPurpose,
    },
}

fn refusal_text(host: &str, address: &IpAddr, class: &SpecialPurpose) -> String {
    if host == address.to_string() { format!("it is {class}") } else { format!("{host} leads to {address}, {class}") }
}

impl EgressRefusal {
    /// The metrics labels of all refusals.
    pub(super) fn all_labels() -> impl Iterator<Item = &'static str> {
        ["offline", "scheme", "userinfo", "plain-http", "no-ssh-key", "private-name"]
            .into_iter()
            .chain(SpecialPurpose::ALL.map(SpecialPurpose::metrics_label))
    }

    /// The line of configuration that allows the request, if there is one.
    pub fn remedy(&self) -> Option<String> {
        let allow = |entry: &str| Some(format!("to allow it, add \"{entry}\" to allow_private in [network]"));
        match self {
            Self::Offline | Self::Scheme | Self::Userinfo => None,
            Self::PlainHttp { host, port } => allow(&format!("http://{host}:{port}")),
            Self::PrivateName { host } | Self::Address { host, .. } => allow(host),
            Self::NoSshKey { host, upstream } => Some(format!(
                "add [[credential]] with host = \"{host}\", upstreams = [\"{upstream}\"] and ssh = {{ key = \"…\", known_hosts = \"…\" }}"
            )),
        }
    }

    /// The metrics label.
    pub fn metrics_label(&self) -> &'static str {
        match self {
            Self::Offline => "offline",
            Self::Scheme => "scheme",
            Self::Userinfo => "userinfo",
            Self::PlainHttp { .. } => "plain-http",
            Self::NoSshKey { .. } => "no-ssh-key",
            Self::PrivateName { .. } => "private-name",
            Self::Address { class, .. } => class.metrics_label(),
        }
    }
}

/// The HTTP client to use for a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HttpClientKind {
    /// The client for any address: the policy has accepted the URL as it is.
    Unrestricted,
    /// The client for public addresses and those that `allow_private` covers.
    Public,
}

#[derive(Debug)]
pub(super) struct EgressPolicy {
    configured_origins: Vec<Origin>,
    allowed: Arc<[PrivateDestination]>,
    proxies: Matcher,
}

impl EgressPolicy {
    /// Builds the policy from the configuration and from the proxies of the environment.
    pub(super) fn new(upstreams: &[config::Upstream], allowed: &[PrivateDestination]) -> Self {
        let host_urls = upstreams.iter().filter_map(|upstream| Url::parse(&format!("https://{}/", upstream.host)).ok());
        let configured_urls = host_urls.chain(upstreams.iter().map(|upstream| upstream.url.clone()));
        Self {
            configured_origins: configured_urls.map(|url| url.origin()).collect(),
            allowed: allowed.into(),
            proxies: Matcher::from_system(),
        }
    }

    /// Checks a URL against the policy. `credential_scope` is the scope of the upstream that the request is for.
    ///
    /// # Errors
    /// [`EgressRefusal`] for a forbidden URL. Resolved addresses are checked later, by [`PublicResolver`].
    pub(super) fn check(&self, url: &Url, credential_scope: &CredentialScope) -> Result<HttpClientKind, EgressRefusal> {
        let (Some(host), Some(port), "http" | "https") = (url.host(), url.port_or_known_default(), url.scheme()) else {
            return Err(EgressRefusal::Scheme);
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(EgressRefusal::Userinfo);
        }
        let origin = url.origin();
        if self.configured_origins.contains(&origin) || credential_scope.permits(&origin) {
            return Ok(HttpClientKind::Unrestricted);
        }
        if url.scheme() == "http" {
            let host = host.to_string();
            let entry = PrivateDestination::PlainHttp { host: host.clone(), port };
            return if self.allowed.contains(&entry) {
                Ok(HttpClientKind::Unrestricted)
            } else {
                Err(EgressRefusal::PlainHttp { host, port })
            };
        }
        let address: IpAddr = match host {
            Host::Ipv4(address) => address.into(),
            Host::Ipv6(address) => address.into(),
            Host::Domain(name) => return self.check_host_name(name.trim_end_matches('.'), url),
        };
        check_address(&self.allowed, &address.to_string(), address).map(|()| HttpClientKind::Unrestricted)
    }

    fn check_host_name(&self, name: &str, url: &Url) -> Result<HttpClientKind, EgressRefusal> {
        if self.allowed.contains(&PrivateDestination::Name(name.to_owned())) {
            return Ok(HttpClientKind::Unrestricted);
        }
        match self.is_resolved_by_proxy(url) {
            false => Ok(HttpClientKind::Public),
            // The proxy resolves the name, so larder can check only the name itself.
            true if is_private_name(name) => Err(EgressRefusal::PrivateName { host: name.to_owned() }),
            true => Ok(HttpClientKind::Unrestricted),
        }
    }

    /// The proxy for a request to `url`, from the environment.
    pub(super) fn proxy_for(&self, url: &Url) -> Option<http::Uri> {
        let proxy = url.as_str().parse().ok().and_then(|uri| self.proxies.intercept(&uri));
        proxy.map(|proxy| proxy.uri().clone())
    }

    /// Returns true if a proxy resolves the name of `url`. `socks4` and `socks5` proxies receive addresses instead.
    fn is_resolved_by_proxy(&self, url: &Url) -> bool {
        self.proxy_for(url).is_some_and(|proxy| !matches!(proxy.scheme_str(), Some("socks4" | "socks5")))
    }
}

/// Returns true for names outside the public internet: this machine's own (RFC 6761), names reserved for private
/// networks (`internal`; `local`, RFC 6762), and single labels, which resolvers complete with their own domain.
fn is_private_name(name: &str) -> bool {
    name.rsplit_once('.').is_none_or(|(_, top)| ["localhost", "internal", "local"].contains(&top))
}

/// Checks one resolved or literal address.
fn check_address(allowed: &[PrivateDestination], host: &str, address: IpAddr) -> Result<(), EgressRefusal> {
    let Some(class) = class_of(address) else { return Ok(()) };
    let covers = |entry: &PrivateDestination| match entry {
        PrivateDestination::Network(network) => network.contains(&address) || network.contains(&address.to_canonical()),
        PrivateDestination::Name(_) | PrivateDestination::PlainHttp { .. } => false,
    };
    if allowed.iter().any(covers) {
        return Ok(());
    }
    Err(EgressRefusal::Address { host: host.to_owned(), address, class })
}

/// Resolves names and drops addresses that may not be connected to. The connection uses exactly this result, so a
/// name that resolves elsewhere the next time is checked again.
#[derive(Debug, Clone)]
pub(super) struct PublicResolver {
    taken_over: Arc<HashMap<String, Vec<SocketAddr>>>,
    allowed: Arc<[PrivateDestination]>,
}

impl PublicResolver {
    /// The resolver of one configuration. `taken_over` has the configured addresses of upstreams whose names lead to
    /// larder itself in this machine's resolver.
    pub(super) fn new(egress_policy: &EgressPolicy, taken_over: HashMap<String, Vec<SocketAddr>>) -> Self {
        Self { taken_over: Arc::new(taken_over), allowed: Arc::clone(&egress_policy.allowed) }
    }

    /// All addresses of a configured name. None of them is dropped.
    pub(super) async fn all_addresses(&self, name: &str) -> std::io::Result<Vec<SocketAddr>> {
        match self.taken_over.get(name) {
            Some(addresses) => Ok(addresses.clone()),
            None => Ok(tokio::net::lookup_host((name, 0)).await?.collect()),
        }
    }
}

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.clone();
        async move {
            let addresses = resolver.all_addresses(name.as_str()).await?;
            let addresses = allowed_addresses(&resolver.allowed, name.as_str(), addresses)?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        }
        .boxed()
    }
}

/// Drops addresses that may not be connected to.
///
/// # Errors
/// The refusal of one address, if all were dropped.
fn allowed_addresses(
    allowed: &[PrivateDestination],
    name: &str,
    addresses: Vec<SocketAddr>,
) -> Result<Vec<SocketAddr>, EgressRefusal> {
    let mut refused = None;
    let mut accepted = Vec::with_capacity(addresses.len());
    for address in addresses {
        match check_address(allowed, name, address.ip()) {
            Ok(()) => accepted.push(address),
            Err(refusal) => refused = Some(refusal),
        }
    }
    match refused {
        Some(refusal) if accepted.is_empty() => Err(refusal),
        _ => Ok(accepted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(addresses: &[&str]) -> Vec<SocketAddr> {
        addresses.iter().map(|address| SocketAddr::new(address.parse().unwrap(), 0)).collect()
    }

    /// A name that resolves to a private address at connect time is refused. Of mixed addresses, only the public ones are
    /// connected to (DESIGN, promise 7).
    #[test]
    fn a_name_is_checked_by_its_current_addresses() {
        let allowed = [PrivateDestination::Network("10.9.0.0/16".parse().unwrap())];
        let resolve = |addresses| allowed_addresses(&allowed, "files.example", sockets(addresses));
        assert_eq!(resolve(&["1.1.1.1"]).unwrap(), sockets(&["1.1.1.1"]));
        let refused = resolve(&["127.0.0.1"]).unwrap_err();
        assert_eq!(refused.metrics_label(), "loopback");
        assert!(refused.to_string().contains("files.example leads to 127.0.0.1, a loopback address"), "{refused}");
        assert_eq!(resolve(&["10.0.0.1", "2606:4700::1111", "fe80::1"]).unwrap(), sockets(&["2606:4700::1111"]));
        assert_eq!(resolve(&["10.9.1.2", "::ffff:10.9.1.2"]).unwrap(), sockets(&["10.9.1.2", "::ffff:10.9.1.2"]));
        assert_eq!(resolve(&["10.8.1.2", "169.254.169.254"]).unwrap_err().metrics_label(), "link-local");
        assert_eq!(resolve(&[]).unwrap(), []);
    }

    #[tokio::test]
    async fn a_taken_over_name_is_checked_by_its_configured_addresses() {
        let egress_policy = EgressPolicy::new(&[], &[]);
        let taken = |name: &str, addresses: &[&str]| (name.to_owned(), sockets(addresses));
        let taken = HashMap::from([taken("a.example", &["1.1.1.1", "10.0.0.1"]), taken("b.example", &["10.0.0.1"])]);
        let resolver = PublicResolver::new(&egress_policy, taken);
        let found: Vec<_> = resolver.resolve("a.example".parse().unwrap()).await.unwrap().collect();
        assert_eq!(found, sockets(&["1.1.1.1"]));
        for name in ["b.example", "localhost"] {
            let Err(refused) = resolver.resolve(name.parse().unwrap()).await else { panic!("{name} was resolved") };
            assert!(refused.downcast_ref::<EgressRefusal>().is_some(), "{refused}");
        }
    }
}
