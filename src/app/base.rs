//! Where a larder is reached.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::config::Config;

/// How clients reach a larder of this configuration: a URL without a slash at its end.
pub fn base(config: &Config, bound: SocketAddr) -> String {
    if let Some(url) = &config.server.public_url {
        return url.as_str().trim_end_matches('/').to_owned();
    }
    let scheme = if config.server.tls.is_some() { "https" } else { "http" };
    let at = from_this_machine(bound);
    format!("{scheme}://{}", SocketAddr::new(at.ip(), at.port()))
}

/// Nobody can connect to "all addresses"; from this machine, loopback is one of them.
pub(super) fn from_this_machine(mut bound: SocketAddr) -> SocketAddr {
    match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => bound.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        IpAddr::V6(ip) if ip.is_unspecified() => bound.set_ip(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    bound
}
