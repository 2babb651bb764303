//! The base URL of the main listener.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::config::Config;

/// Base URL of a larder as clients see it, without a final slash.
pub fn base_url_of(config: &Config, bound: SocketAddr) -> String {
    if let Some(url) = &config.server.public_url {
        return url.as_str().trim_end_matches('/').to_owned();
    }
    let scheme = if config.server.tls.is_some() { "https" } else { "http" };
    let address = loopback_if_unspecified(bound);
    format!("{scheme}://{}", SocketAddr::new(address.ip(), address.port()))
}

/// Replaces the unspecified address, which cannot be connected to, by loopback.
pub(super) fn loopback_if_unspecified(mut bound: SocketAddr) -> SocketAddr {
    match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => bound.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        IpAddr::V6(ip) if ip.is_unspecified() => bound.set_ip(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    bound
}
