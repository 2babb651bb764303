//! The egress policy (promise 7). The origins that the configuration names for an upstream may have any address, in requests
//! for that upstream. All other origins must be https and public. Every hop is checked, against the addresses that its
//! connection uses.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use futures_util::FutureExt;
use hyper_util::client::proxy::matcher::Matcher;
use ipnet::{Ipv4Net, Ipv6Net};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

use super::CredentialScope;
use crate::config::PrivateDestination;
use crate::labels::labelled_enum;

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
            .chain(SpecialPurpose::ALL.map(SpecialPurpose::label))
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
            Self::Address { class, .. } => class.label(),
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
    allowed: Arc<[PrivateDestination]>,
    proxies: Matcher,
}

impl EgressPolicy {
    /// Builds the policy from `allow_private` and from the proxies of the environment.
    pub(super) fn new(allowed: &[PrivateDestination]) -> Self {
        Self { allowed: allowed.into(), proxies: Matcher::from_system() }
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
        if credential_scope.permits(&url.origin()) {
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

labelled_enum! {
    /// Class of a special-purpose address. Metrics and messages use the same word.
    pub SpecialPurpose {
        /// "This host": `0.0.0.0/8`, `::`.
        Unspecified "unspecified",
        /// Loopback: this machine.
        Loopback "loopback",
        /// Private networks, including the shared address space of carriers.
        Private "private",
        /// The local link only; cloud metadata services are here.
        LinkLocal "link-local",
        /// Multicast groups.
        Multicast "multicast",
        /// Reserved for documentation, benchmarks and protocols, or unassigned.
        Reserved "reserved",
    }
}

impl fmt::Display for SpecialPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let article = if *self == Self::Unspecified { "an" } else { "a" };
        write!(f, "{article} {} address", self.label())
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length)
}

const fn v6(a: u16, b: u16, c: u16, length: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), length)
}

const SPECIAL_V4: [(Ipv4Net, SpecialPurpose); 16] = [
    (v4(0, 0, 0, 0, 8), SpecialPurpose::Unspecified),
    (v4(10, 0, 0, 0, 8), SpecialPurpose::Private),
    (v4(100, 64, 0, 0, 10), SpecialPurpose::Private),
    (v4(127, 0, 0, 0, 8), SpecialPurpose::Loopback),
    (v4(169, 254, 0, 0, 16), SpecialPurpose::LinkLocal),
    (v4(172, 16, 0, 0, 12), SpecialPurpose::Private),
    (v4(192, 0, 0, 0, 24), SpecialPurpose::Reserved),
    (v4(192, 0, 2, 0, 24), SpecialPurpose::Reserved),
    (v4(192, 88, 99, 0, 24), SpecialPurpose::Reserved),
    (v4(192, 168, 0, 0, 16), SpecialPurpose::Private),
    (v4(198, 18, 0, 0, 15), SpecialPurpose::Reserved),
    (v4(198, 51, 100, 0, 24), SpecialPurpose::Reserved),
    (v4(203, 0, 113, 0, 24), SpecialPurpose::Reserved),
    (v4(224, 0, 0, 0, 4), SpecialPurpose::Multicast),
    (v4(240, 0, 0, 0, 4), SpecialPurpose::Reserved),
    (v4(255, 255, 255, 255, 32), SpecialPurpose::Reserved),
];

/// All public IPv6 addresses are in this range.
const GLOBAL_UNICAST: Ipv6Net = v6(0x2000, 0, 0, 3);

const SPECIAL_V6: [(Ipv6Net, SpecialPurpose); 8] = [
    (Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 128), SpecialPurpose::Unspecified),
    (Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128), SpecialPurpose::Loopback),
    (v6(0xfc00, 0, 0, 7), SpecialPurpose::Private),
    (v6(0xfec0, 0, 0, 10), SpecialPurpose::Private),
    // RFC 8215: each network decides which IPv4 addresses these translate to.
    (v6(0x64, 0xff9b, 1, 48), SpecialPurpose::Private),
    (v6(0xfe80, 0, 0, 10), SpecialPurpose::LinkLocal),
    (v6(0xff00, 0, 0, 8), SpecialPurpose::Multicast),
    // Protocol assignments, including Teredo, which embeds IPv4 addresses.
    (v6(0x2001, 0, 0, 23), SpecialPurpose::Reserved),
];

const DOCUMENTATION_V6: [Ipv6Net; 2] = [v6(0x2001, 0xdb8, 0, 32), v6(0x3fff, 0, 0, 20)];

/// The class of an address; `None` for a public one.
pub fn class_of(address: IpAddr) -> Option<SpecialPurpose> {
    let address = match address {
        IpAddr::V4(address) => {
            return SPECIAL_V4.iter().find(|(network, _)| network.contains(&address)).map(|(_, class)| *class);
        }
        IpAddr::V6(address) => address,
    };
    if let Some((_, class)) = SPECIAL_V6.iter().find(|(network, _)| network.contains(&address)) {
        return Some(*class);
    }
    if let Some(inner) = embedded_v4(address) {
        return class_of(inner.into());
    }
    let is_public = GLOBAL_UNICAST.contains(&address) && !DOCUMENTATION_V6.iter().any(|net| net.contains(&address));
    (!is_public).then_some(SpecialPurpose::Reserved)
}

/// The IPv4 address embedded in an IPv6 address: mapped, translated (NAT64, RFC 6052) or tunnelled (6to4).
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let joined = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match (a, b, c, d, e, f) {
        (0, 0, 0, 0, 0, 0xffff | 0) | (0, 0, 0, 0, 0xffff, 0) | (0x64, 0xff9b, 0, 0, 0, 0) => Some(joined(g, h)),
        (0x2002, ..) => Some(joined(b, c)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sockets(addresses: &[&str]) -> Vec<SocketAddr> {
        addresses.iter().map(|address| SocketAddr::new(address.parse().unwrap(), 0)).collect()
    }

    /// A name that resolves to a private address at connect time is refused. Of mixed addresses, only the public ones
    /// are connected to (promise 7).
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
        let egress_policy = EgressPolicy::new(&[]);
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

    /// Covers literal, mapped, translated and tunnelled forms of every class (promise 7).
    #[test]
    fn every_special_purpose_address_has_its_class() {
        for (address, class) in [
            ("0.0.0.0", SpecialPurpose::Unspecified),
            ("0.1.2.3", SpecialPurpose::Unspecified),
            ("::", SpecialPurpose::Unspecified),
            ("127.0.0.1", SpecialPurpose::Loopback),
            ("127.255.255.254", SpecialPurpose::Loopback),
            ("::1", SpecialPurpose::Loopback),
            ("::ffff:127.0.0.1", SpecialPurpose::Loopback),
            ("::127.0.0.1", SpecialPurpose::Loopback),
            ("::ffff:0:127.0.0.1", SpecialPurpose::Loopback),
            ("64:ff9b::127.0.0.1", SpecialPurpose::Loopback),
            ("2002:7f00:1::", SpecialPurpose::Loopback),
            ("10.0.0.1", SpecialPurpose::Private),
            ("172.16.0.1", SpecialPurpose::Private),
            ("172.31.255.255", SpecialPurpose::Private),
            ("192.168.1.1", SpecialPurpose::Private),
            ("100.64.0.1", SpecialPurpose::Private),
            ("::ffff:10.0.0.1", SpecialPurpose::Private),
            ("64:ff9b::192.168.0.1", SpecialPurpose::Private),
            ("64:ff9b:1::8.8.8.8", SpecialPurpose::Private),
            ("2002:a00:1::1", SpecialPurpose::Private),
            ("fd00::1", SpecialPurpose::Private),
            ("fc00::1", SpecialPurpose::Private),
            ("fec0::1", SpecialPurpose::Private),
            ("169.254.169.254", SpecialPurpose::LinkLocal),
            ("::ffff:169.254.169.254", SpecialPurpose::LinkLocal),
            ("64:ff9b::a9fe:a9fe", SpecialPurpose::LinkLocal),
            ("fe80::1", SpecialPurpose::LinkLocal),
            ("febf::1", SpecialPurpose::LinkLocal),
            ("224.0.0.1", SpecialPurpose::Multicast),
            ("239.255.255.255", SpecialPurpose::Multicast),
            ("ff02::1", SpecialPurpose::Multicast),
            ("192.0.0.1", SpecialPurpose::Reserved),
            ("192.0.2.1", SpecialPurpose::Reserved),
            ("198.18.0.1", SpecialPurpose::Reserved),
            ("198.51.100.1", SpecialPurpose::Reserved),
            ("203.0.113.1", SpecialPurpose::Reserved),
            ("240.0.0.1", SpecialPurpose::Reserved),
            ("255.255.255.255", SpecialPurpose::Reserved),
            ("2001:db8::1", SpecialPurpose::Reserved),
            ("3fff::1", SpecialPurpose::Reserved),
            ("2001::1", SpecialPurpose::Reserved),
            ("100::1", SpecialPurpose::Reserved),
            ("5f00::1", SpecialPurpose::Reserved),
            ("4000::1", SpecialPurpose::Reserved),
        ] {
            assert_eq!(class_of(address.parse().unwrap()), Some(class), "{address}");
        }
    }

    #[test]
    fn public_addresses_have_no_class_in_any_written_form() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "140.82.121.4",
            "2606:4700:4700::1111",
            "2a00:1450:4001:80e::200e",
            "::ffff:140.82.121.4",
            "64:ff9b::140.82.121.4",
            "2002:8c52:7904::1",
        ] {
            assert_eq!(class_of(address.parse().unwrap()), None, "{address}");
        }
    }

    proptest! {
        #[test]
        fn an_embedding_form_is_classified_as_its_embedded_address(bits: u32) {
            let inner = Ipv4Addr::from(bits);
            let [high, low] = [(bits >> 16) as u16, bits as u16];
            for form in [
                inner.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                prop_assert_eq!(class_of(form.into()), class_of(inner.into()), "{}", form);
            }
        }
    }
}
