//! The facts about a request from its connection and trusted proxies: its client, who must be among `[server] clients`
//! (promise 8), and the origin at which the client sees larder.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{self, HeaderMap, HeaderName};
use ipnet::IpNet;

use super::connection_slots::PeerClass;
use super::tls::Tls;
use crate::protocol::route::parse_origin;
use crate::protocol::run::{RunId, RunIds};

/// Access rules of one listener.
#[derive(Debug, Clone, Default)]
pub struct Clients {
    /// Allowed networks; `None` allows all.
    pub allowed: Option<Vec<IpNet>>,
    /// The runs that a larder of `larder run` answers; `None` for one that answers all clients.
    pub runs: Option<RunIds>,
    /// Networks whose `X-Forwarded-For`, `X-Forwarded-Host` and `X-Forwarded-Proto` headers are trusted.
    pub trusted_proxies: Vec<IpNet>,
}

/// The client of a request: the right-most address that is not a trusted proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestClient {
    /// The client's address, or the trusted proxy's if the proxy names no client.
    pub address: IpAddr,
    /// An entry of X-Forwarded-For that is not an address, sent by the trusted proxy at `address`.
    invalid_entry: Option<String>,
}

/// Text by which the doctor recognises a refusal of its address.
pub const NOT_AMONG_CLIENTS: &str = "is not among the clients of this mirror";

/// A client that is not among the allowed ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAClient {
    /// Its address is not allowed.
    #[error("{0} {NOT_AMONG_CLIENTS}: its operator can add it to [server] clients")]
    Address(String),
    /// The URL has no id of a run that shares the store.
    #[error(
        "this larder belongs to a `larder run` and answers its client only; start yours with `larder run -- COMMAND`"
    )]
    NoRun,
}

impl RequestClient {
    /// Returns true if its address is known, and within one of these networks.
    pub(super) fn is_within(&self, networks: &[IpNet]) -> bool {
        self.invalid_entry.is_none() && any_contains(networks, self.address)
    }

    /// The client in a refusal.
    pub(super) fn shown(&self) -> String {
        match &self.invalid_entry {
            Some(entry) => format!("{entry:?} in X-Forwarded-For"),
            None => self.address.to_string(),
        }
    }
}

impl Clients {
    /// Checks that this client, of this run, is allowed.
    ///
    /// # Errors
    /// [`NotAClient`] if the client is not allowed, or its address cannot be determined.
    pub fn admit(&self, client: &RequestClient, run: Option<RunId>) -> Result<(), NotAClient> {
        if let Some(ids) = &self.runs
            && !run.is_some_and(|run| ids.recognise(run))
        {
            return Err(NotAClient::NoRun);
        }
        match &self.allowed {
            Some(allowed) if !client.is_within(allowed) => Err(NotAClient::Address(client.shown())),
            _ => Ok(()),
        }
    }

    /// The class of a peer by its address, before its first byte.
    pub fn peer_class(&self, peer: IpAddr) -> PeerClass {
        let peer = peer.to_canonical();
        if self.is_trusted_proxy(peer) {
            return PeerClass::Proxy;
        }
        match &self.allowed {
            Some(allowed) if !any_contains(allowed, peer) => PeerClass::Outsider,
            _ => PeerClass::Client,
        }
    }

    /// Returns true if the `X-Forwarded-…` headers of `peer` are trusted.
    pub fn is_trusted_proxy(&self, peer: IpAddr) -> bool {
        any_contains(&self.trusted_proxies, peer.to_canonical())
    }

    /// Returns true for a request of a process of this machine that no proxy sent on.
    pub fn is_on_this_machine(&self, peer: IpAddr, headers: &HeaderMap) -> bool {
        peer.to_canonical().is_loopback() && !is_proxied(headers)
    }

    /// Returns true if a trusted proxy sent a request on that came to it over TLS. One that says nothing about it is believed: its
    /// operator lists it as the one that ends TLS.
    pub fn came_over_tls(&self, peer: IpAddr, headers: &HeaderMap) -> bool {
        let schemes = headers.get_all(X_FORWARDED_PROTO).into_iter();
        let mut schemes = schemes.flat_map(|value| value.to_str().unwrap_or("?").split(','));
        self.is_trusted_proxy(peer) && schemes.all(|scheme| scheme.trim().eq_ignore_ascii_case("https"))
    }

    /// Determines the client of a request from `peer` with these headers.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> RequestClient {
        let mut client = RequestClient { address: peer.to_canonical(), invalid_entry: None };
        if !self.is_trusted_proxy(peer) {
            return client;
        }
        let values: Vec<&str> =
            headers.get_all("x-forwarded-for").into_iter().map(|value| value.to_str().unwrap_or("?")).collect();
        let mut forwarded: Vec<&str> = values.iter().flat_map(|value| value.split(',')).map(str::trim).collect();
        while any_contains(&self.trusted_proxies, client.address) {
            let Some(next) = forwarded.pop() else { break };
            match next.parse::<IpAddr>() {
                Ok(next) => client.address = next.to_canonical(),
                Err(_) => return RequestClient { invalid_entry: Some(next.to_owned()), ..client },
            }
        }
        client
    }
}

fn any_contains(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Returns the origin at which the client sees larder, if known. `is_trusted_proxy` tells that the other end of
/// the connection is one of `trusted_proxies`; `tls` is larder's own, on a connection with TLS. `host` is the Host header.
/// `is_upstream` returns true
/// for an upstream's name under which larder answers (take-over).
pub(super) fn origin(
    is_trusted_proxy: bool,
    tls: Option<&Tls>,
    headers: &HeaderMap,
    host: Option<&str>,
    is_upstream: impl Fn(&str) -> bool,
) -> Option<Arc<str>> {
    if is_proxied(headers) {
        return if is_trusted_proxy { forwarded(headers).map(Arc::from) } else { None };
    }
    let (tls, host) = (tls?, host?);
    let of_upstream = || is_upstream(host).then(|| parse_origin("https", host)).flatten().map(Arc::from);
    tls.certified_origin(host).or_else(of_upstream)
}

/// Returns the origin in the address bar of a browser that asked over plain HTTP, for a person who pastes it: a guess, where
/// `origin` knows none. `None` on take-over, because such a client needs no URL.
pub(super) fn origin_of_browser(
    tls: Option<&Tls>,
    headers: &HeaderMap,
    host: Option<&str>,
    is_upstream: impl Fn(&str) -> bool,
) -> Option<Arc<str>> {
    let host = host.filter(|host| tls.is_none() && !is_proxied(headers) && !is_upstream(host))?;
    parse_origin("http", host).map(Arc::from)
}

/// Returns true if a proxy announces itself between larder and the client: then Host may be the proxy's name for
/// larder.
fn is_proxied(headers: &HeaderMap) -> bool {
    headers
        .keys()
        .any(|name| name == header::FORWARDED || name == header::VIA || name.as_str().starts_with("x-forwarded-"))
}

fn forwarded(headers: &HeaderMap) -> Option<String> {
    parse_origin(single_value(headers, &X_FORWARDED_PROTO)?, single_value(headers, &X_FORWARDED_HOST)?)
}

/// Returns the single value of a header. `None` if a chain of proxies appended different values: it is unknown which
/// one the client saw.
fn single_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).into_iter().flat_map(|value| value.to_str().unwrap_or("?").split(','));
    let first = values.next()?.trim();
    values.all(|value| value.trim().eq_ignore_ascii_case(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::route::Mount;

    /// Promise 8: the client is the right-most address in X-Forwarded-For that is not a trusted proxy.
    #[test]
    fn only_a_trusted_proxy_can_name_another_client() {
        let nets = |nets: &[&str]| nets.iter().map(|net| net.parse().unwrap()).collect::<Vec<IpNet>>();
        let clients = Clients {
            allowed: Some(nets(&["10.1.0.0/16", "::1/128"])),
            runs: None,
            trusted_proxies: nets(&["10.9.0.5/32", "10.9.0.6/32"]),
        };
        for (peer, forwarded, admitted) in [
            ("10.1.2.3", None, true),
            ("::ffff:10.1.2.3", None, true),
            ("::1", None, true),
            ("10.2.0.1", None, false),
            ("10.2.0.1", Some("10.1.2.3"), false),
            ("10.9.0.5", Some("10.1.2.3"), true),
            ("10.9.0.5", Some("10.1.2.3, 10.2.0.1"), false),
            ("10.9.0.5", Some("192.0.2.1, 10.1.2.3, 10.9.0.6"), true),
            ("10.9.0.5", Some("nonsense"), false),
            ("10.9.0.5", None, false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(forwarded) = forwarded {
                headers.insert("x-forwarded-for", forwarded.parse().unwrap());
            }
            let client = clients.client(peer.parse().unwrap(), &headers);
            assert_eq!(clients.admit(&client, None).is_ok(), admitted, "{peer} {forwarded:?}");
            let open = Clients { allowed: None, ..clients.clone() };
            assert!(open.admit(&open.client(peer.parse().unwrap(), &headers), None).is_ok());
        }
        for (peer, peer_class) in [
            ("10.1.2.3", PeerClass::Client),
            ("::ffff:10.1.2.3", PeerClass::Client),
            ("10.9.0.5", PeerClass::Proxy),
            ("::ffff:10.9.0.6", PeerClass::Proxy),
            ("10.2.0.1", PeerClass::Outsider),
            ("::2", PeerClass::Outsider),
        ] {
            assert_eq!(clients.peer_class(peer.parse().unwrap()), peer_class, "{peer}");
        }
        assert_eq!(Clients::default().peer_class("192.0.2.1".parse().unwrap()), PeerClass::Client);
    }

    proptest! {
        /// Promise 8: a client cannot change its address by writing into X-Forwarded-For.
        #[test]
        fn forged_forwarded_addresses_are_ignored(
            forged in prop::collection::vec("[ -~]{0,20}|((10\\.1\\.2\\.3|10\\.9\\.0\\.5|::1)[, ]*){1,3}", 0..3),
            proxy_header in prop::sample::select(vec![("10.1.2.3", true), ("192.0.2.1", false), ("x", false), ("::1, 10.9.0.5", true)]),
        ) {
            let clients = Clients {
                allowed: Some(vec!["10.1.0.0/16".parse().unwrap(), "::1/128".parse().unwrap()]),
                runs: None,
                trusted_proxies: vec!["10.9.0.5/32".parse().unwrap()],
            };
            let mut headers = HeaderMap::new();
            for value in forged.iter().map(String::as_str).chain([proxy_header.0]) {
                headers.append("x-forwarded-for", value.parse().unwrap());
            }
            let admitted = |peer: &str| clients.admit(&clients.client(peer.parse().unwrap(), &headers), None).is_ok();
            prop_assert_eq!(admitted("10.9.0.5"), proxy_header.1);
            prop_assert!(admitted("10.1.2.3") && !admitted("192.0.2.1"));
        }
    }

    fn headers(given: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(*name, http::HeaderValue::from_static(value));
        }
        headers
    }

    /// Only a trusted proxy that names both scheme and host sets the origin.
    #[test]
    fn only_a_trusted_proxy_can_set_the_origin() {
        let forwarded = [("x-forwarded-host", "mirror.example"), ("x-forwarded-proto", "https")];
        for (given, expected) in [
            (&forwarded[..], Some("https://mirror.example/x")),
            (
                &[forwarded[0], forwarded[1], ("x-forwarded-for", "10.0.0.1"), ("via", "1.1 a")],
                Some("https://mirror.example/x"),
            ),
            (
                &[("x-forwarded-host", "m.example:8443, M.example:8443"), ("x-forwarded-proto", "HTTPS, https")],
                Some("https://m.example:8443/x"),
            ),
            (&[("x-forwarded-host", "m.example:8080"), ("x-forwarded-proto", "http")], Some("http://m.example:8080/x")),
            (&[("x-forwarded-host", "a.example, b.example"), forwarded[1]], None),
            (&[forwarded[0], ("x-forwarded-host", "b.example"), forwarded[1]], None),
            (&[forwarded[0], ("x-forwarded-proto", "https, http")], None),
            (&[forwarded[0], ("x-forwarded-proto", "ftp")], None),
            (&[("x-forwarded-host", "user@m.example"), forwarded[1]], None),
            (&[("x-forwarded-host", "m.example/x"), forwarded[1]], None),
            (&[forwarded[0]], None),
            (&[forwarded[1]], None),
            (&[("x-forwarded-for", "10.0.0.1")], None),
            (&[("forwarded", "host=m.example;proto=https")], None),
            (&[], None),
        ] {
            let headers = headers(given);
            let origin_url = |is_trusted_proxy| {
                let origin = origin(is_trusted_proxy, None, &headers, Some("registry.example"), |_| true)?;
                Some(Mount::default().url(&origin, "/x"))
            };
            assert_eq!(origin_url(true).as_deref(), expected, "{given:?}");
            assert_eq!(origin_url(false), None, "{given:?}");
        }
    }
}
