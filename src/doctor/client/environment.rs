//! Other settings that affect a client's requests: proxies, tokens, timeout, plugin cache, certificate authorities
//! (PROTOCOL, sections 1.3 and 1.4).

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use url::{Host, Url};

use super::{Check, ClientChecks, ClientFiles};
use crate::address::Hostname;
use crate::requirements::cli_config::Environment;
use crate::requirements::cli_config::{InstallationSource, ServiceValue};

/// The shortest client timeout that is long enough: larder answers within 8 s, and clients wait 10 s by default.
const MIN_TIMEOUT_SECONDS: u64 = 10;

const PLAINTEXT_TOKEN_ADVICE: &str = "give larder a certificate ([server] tls) and write https; or remove the token: larder \
     forwards none, it has its own credentials";

impl ClientChecks<'_> {
    /// Checks these settings; reports only notable ones.
    pub(super) fn check_environment(&self, client_files: &ClientFiles) -> Vec<Check> {
        let checks = [
            self.proxy(client_files),
            self.credentials(client_files),
            self.registry_timeout(),
            self.cache(client_files),
            self.authorities(),
        ];
        checks.into_iter().flatten().collect()
    }

    /// URLs that the client uses for the configured registries, where they are absolute.
    fn destinations(&self, client_files: &ClientFiles) -> Vec<(Hostname, Url)> {
        let mut destinations = Vec::new();
        for host in self.hosts(client_files) {
            let services = client_files.config.hosts.get(&host);
            if let Some(ServiceValue::Url(text)) = services.and_then(|services| services.get("providers.v1"))
                && let Ok(url) = Url::parse(text)
            {
                destinations.push((host.clone(), url));
            }
            for method in client_files.config.installation.iter().flatten() {
                if let InstallationSource::NetworkMirror { url } = &method.source
                    && let Ok(url) = Url::parse(url)
                {
                    destinations.push((host.clone(), url));
                }
            }
        }
        destinations
    }

    fn proxy(&self, client_files: &ClientFiles) -> Option<Check> {
        let destinations = self.destinations(client_files);
        let proxied = destinations.iter().find_map(|(_, url)| Some((url, proxied_by(url, self.environment)?)));
        let (url, variable) = proxied?;
        let name = url.host_str().unwrap_or_default();
        Some(
            Check::warn(
                "client.proxy",
                format!("the client connects to {name} through the proxy of {variable}; the doctor connected directly"),
            )
            .advise(format!("add {name} to NO_PROXY, unless only the proxy reaches it")),
        )
    }

    fn credentials(&self, client_files: &ClientFiles) -> Option<Check> {
        let has_token = |host: &Hostname| {
            let variable = format!("TF_TOKEN_{}", host.as_str().replace('-', "__").replace(['.', ':'], "_"));
            client_files.config.credentials.contains(host)
                || self.environment.keys().any(|name| name.eq_ignore_ascii_case(&variable))
        };
        let is_plaintext = |url: &Url| url.scheme() == "http" && !is_loopback(url);
        let destinations = self.destinations(client_files);
        let (host, url) = destinations.iter().find(|(host, url)| is_plaintext(url) && has_token(host))?;
        let origin = url.origin().ascii_serialization();
        Some(
            Check::warn(
                "client.credentials",
                format!("the client has a token for {host}, and sends it to {origin} without TLS"),
            )
            .of(host)
            .advise(PLAINTEXT_TOKEN_ADVICE),
        )
    }

    fn registry_timeout(&self) -> Option<Check> {
        const VARIABLE: &str = "TF_REGISTRY_CLIENT_TIMEOUT";
        let seconds: u64 = self.environment.get(VARIABLE)?.parse().ok()?;
        (1..MIN_TIMEOUT_SECONDS).contains(&seconds).then(|| {
            Check::warn(
                "client.timeout",
                format!(
                    "{VARIABLE}={seconds}: the client waits no longer than {seconds} s, and larder answers within 8 s"
                ),
            )
            .advise(format!("unset the variable, or set it to {MIN_TIMEOUT_SECONDS} or more"))
        })
    }

    fn cache(&self, client_files: &ClientFiles) -> Option<Check> {
        const CACHE: &str = "client.cache";
        let home = self.environment.get("HOME").map(String::as_str).unwrap_or_default();
        let expand = |text: &String| text.replace("${HOME}", home).replace("$HOME", home);
        let set = self.environment.get("TF_PLUGIN_CACHE_DIR").filter(|folder| !folder.is_empty()).cloned();
        let folder = set.or_else(|| client_files.config.plugin_cache_dir.as_ref().map(expand))?;
        let is_known = !folder.contains('$') && Path::new(&folder).is_absolute();
        if is_known && !Path::new(&folder).is_dir() {
            return Some(
                Check::warn(CACHE, format!("the plugin cache {folder} is not a folder: the client prints an error"))
                    .advise(format!("mkdir -p {folder}, or remove the setting")),
            );
        }
        Some(Check::ok(CACHE, format!("a plugin cache is used: locked providers in {folder} are not requested again")))
    }

    fn authorities(&self) -> Option<Check> {
        let file = self.client_roots.unreadable.as_ref()?;
        Some(
            Check::warn(
                "client.trust",
                format!("SSL_CERT_FILE names {}, which has no readable certificates", file.display()),
            )
            .advise("name a PEM file that the client may read, or unset the variable"),
        )
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

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
