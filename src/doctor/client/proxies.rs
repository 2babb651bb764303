//! Decides whether a client uses a proxy for a request, by the rules of Go's standard library, which both clients use.

use std::net::IpAddr;

use ipnet::IpNet;
use url::{Host, Url};

use crate::requirements::cli_config::Environment;

/// The variable whose proxy a request to `url` uses.
pub(super) fn proxied_by(url: &Url, environment: &Environment) -> Option<&'static str> {
    let names = match url.scheme() {
        "https" => ["HTTPS_PROXY", "https_proxy"],
        "http" => ["HTTP_PROXY", "http_proxy"],
        _ => return None,
    };
    let is_set = |name: &&str| environment.get(*name).is_some_and(|value| !value.is_empty());
    let variable = names.into_iter().find(is_set)?;
    let (host, port) = (url.host()?, url.port_or_known_default()?);
    let no_proxy =
        ["NO_PROXY", "no_proxy"].iter().find_map(|name| environment.get(*name).filter(|value| !value.is_empty()));
    let is_exempt = is_local(&host)
        || no_proxy.is_some_and(|list| {
            list.split(',').any(|entry| entry_matches(&entry.trim().to_ascii_lowercase(), &host, port))
        });
    (!is_exempt).then_some(variable)
}

/// True for hosts that never use a proxy.
fn is_local(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => *name == "localhost",
        Host::Ipv4(ip) => ip.is_loopback(),
        Host::Ipv6(ip) => ip.is_loopback(),
    }
}

/// Returns true if an entry of NO_PROXY matches a host and port.
fn entry_matches(entry: &str, host: &Host<&str>, port: u16) -> bool {
    if entry.is_empty() {
        return false;
    }
    if entry == "*" {
        return true;
    }
    let address: Option<IpAddr> = match host {
        Host::Domain(_) => None,
        Host::Ipv4(ip) => Some((*ip).into()),
        Host::Ipv6(ip) => Some((*ip).into()),
    };
    if let (Ok(network), Some(address)) = (entry.parse::<IpNet>(), address) {
        return network.contains(&address);
    }
    let without_brackets = |text: &str| text.trim_start_matches('[').trim_end_matches(']').to_owned();
    let (name, wanted_port) = match entry.rsplit_once(':') {
        // An IPv6 address without brackets has no port.
        Some((name, digits)) if !name.contains(':') || name.ends_with(']') => match digits.parse::<u16>() {
            Ok(port) => (without_brackets(name), Some(port)),
            Err(_) => (entry.to_owned(), None),
        },
        _ => (without_brackets(entry), None),
    };
    if wanted_port.is_some_and(|wanted| wanted != port) {
        return false;
    }
    match (host, name.parse::<IpAddr>(), address) {
        (_, Ok(named), Some(address)) => named == address,
        (Host::Domain(host), Err(_), _) => {
            let name = name.strip_prefix('*').unwrap_or(&name);
            match name.strip_prefix('.') {
                Some(parent) => host.ends_with(&format!(".{parent}")),
                None => *host == name || host.ends_with(&format!(".{name}")),
            }
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn proxies_are_chosen_as_go_does() {
        for (no_proxy, url, uses_proxy) in [
            ("", "https://mirror.corp/x/", true),
            ("", "http://mirror.corp/x/", false),
            ("", "https://127.0.0.1:8080/", false),
            ("", "https://localhost:8080/", false),
            ("", "https://[::1]:8080/", false),
            ("*", "https://mirror.corp/", false),
            ("other, mirror.corp", "https://mirror.corp/", false),
            ("CORP", "https://mirror.corp/", false),
            (".corp", "https://mirror.corp/", false),
            ("*.corp", "https://mirror.corp/", false),
            (".mirror.corp", "https://mirror.corp/", true),
            ("irror.corp", "https://mirror.corp/", true),
            ("mirror.corp:8443", "https://mirror.corp/", true),
            ("mirror.corp:8443", "https://mirror.corp:8443/", false),
            ("10.0.0.0/8", "https://10.1.2.3/", false),
            ("10.1.2.3:443", "https://10.1.2.3/", false),
            ("10.1.2.4", "https://10.1.2.3/", true),
            ("fd00::1", "https://[fd00::1]/", false),
            ("[fd00::1]:443", "https://[fd00::1]/", false),
        ] {
            let environment: Environment = [("HTTPS_PROXY", "http://proxy:3128"), ("no_proxy", no_proxy)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
            let proxy = proxied_by(&Url::parse(url).unwrap(), &environment);
            assert_eq!(proxy, uses_proxy.then_some("HTTPS_PROXY"), "{no_proxy} {url}");
        }
    }

    proptest! {
        #[test]
        fn any_no_proxy_list_is_parsed(
            no_proxy in "[a-z0-9.:*,/\\[\\] ]{0,40}",
            url in "https?://([a-z.]{1,12}|10\\.0\\.0\\.1|\\[fd00::2\\])(:[0-9]{1,4})?/",
        ) {
            let variables = [("HTTPS_PROXY", "x"), ("NO_PROXY", no_proxy.as_str())];
            let environment: Environment = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            if let Ok(url) = Url::parse(&url) {
                let _ = proxied_by(&url, &environment);
            }
        }
    }
}
