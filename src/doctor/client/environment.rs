//! Other settings that affect a client's requests: proxies, tokens, timeout, plugin cache, certificate authorities
//! (PROTOCOL 1.3, 1.4).

use std::path::Path;

use url::{Host, Url};

use super::files::ClientFiles;
use super::proxies::proxied_by;
use super::{Check, ClientChecks};
use crate::address::Hostname;
use crate::requirements::cli_config::{InstallationSource, ServiceValue};

/// Larder answers a document within 8 s; clients wait 10 s by default.
const MIN_SECONDS: u64 = 10;

const NOT_IN_THE_CLEAR: &str = "give larder a certificate ([server] tls) and write https; or remove the token: larder \
     forwards none, it has its own credentials";

impl ClientChecks<'_> {
    /// Checks these settings; reports only notable ones.
    pub(super) fn check_environment(&self, reading: &ClientFiles) -> Vec<Check> {
        let checks = [
            self.proxy(reading),
            self.credentials(reading),
            self.registry_timeout(),
            self.cache(reading),
            self.authorities(),
        ];
        checks.into_iter().flatten().collect()
    }

    /// URLs that the client uses for the configured registries, where they are absolute.
    fn destinations(&self, reading: &ClientFiles) -> Vec<(Hostname, Url)> {
        let mut found = Vec::new();
        for host in self.hosts(reading) {
            let services = reading.config.hosts.get(&host);
            if let Some(ServiceValue::Url(text)) = services.and_then(|services| services.get("providers.v1"))
                && let Ok(url) = Url::parse(text)
            {
                found.push((host.clone(), url));
            }
            for method in reading.config.installation.iter().flatten() {
                if let InstallationSource::NetworkMirror { url } = &method.source
                    && let Ok(url) = Url::parse(url)
                {
                    found.push((host.clone(), url));
                }
            }
        }
        found
    }

    fn proxy(&self, reading: &ClientFiles) -> Option<Check> {
        let destinations = self.destinations(reading);
        let found = destinations.iter().find_map(|(_, url)| Some((url, proxied_by(url, self.environment)?)));
        let (url, variable) = found?;
        let name = url.host_str().unwrap_or_default();
        Some(
            Check::warn(
                "client.proxy",
                format!("the client connects to {name} through the proxy of {variable}; the doctor connected directly"),
            )
            .advise(format!("add {name} to NO_PROXY, unless only the proxy reaches it")),
        )
    }

    fn credentials(&self, reading: &ClientFiles) -> Option<Check> {
        let holds = |host: &Hostname| {
            let variable = format!("TF_TOKEN_{}", host.as_str().replace('-', "__").replace(['.', ':'], "_"));
            reading.config.credentials.contains(host)
                || self.environment.keys().any(|name| name.eq_ignore_ascii_case(&variable))
        };
        let in_the_clear = |url: &Url| url.scheme() == "http" && !is_loopback(url);
        let destinations = self.destinations(reading);
        let (host, url) = destinations.iter().find(|(host, url)| in_the_clear(url) && holds(host))?;
        let origin = url.origin().ascii_serialization();
        Some(
            Check::warn(
                "client.credentials",
                format!("the client has a token for {host}, and sends it to {origin} without TLS"),
            )
            .of(host)
            .advise(NOT_IN_THE_CLEAR),
        )
    }

    fn registry_timeout(&self) -> Option<Check> {
        const VARIABLE: &str = "TF_REGISTRY_CLIENT_TIMEOUT";
        let seconds: u64 = self.environment.get(VARIABLE)?.parse().ok()?;
        (1..MIN_SECONDS).contains(&seconds).then(|| {
            Check::warn(
                "client.timeout",
                format!(
                    "{VARIABLE}={seconds}: the client waits no longer than {seconds} s, and larder answers within 8 s"
                ),
            )
            .advise(format!("unset it, or set it to {MIN_SECONDS} or more"))
        })
    }

    fn cache(&self, reading: &ClientFiles) -> Option<Check> {
        const CACHE: &str = "client.cache";
        let home = self.environment.get("HOME").map(String::as_str).unwrap_or_default();
        let expand = |text: &String| text.replace("${HOME}", home).replace("$HOME", home);
        let set = self.environment.get("TF_PLUGIN_CACHE_DIR").filter(|folder| !folder.is_empty()).cloned();
        let folder = set.or_else(|| reading.config.plugin_cache_dir.as_ref().map(expand))?;
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
        let file = self.trust.unreadable.as_ref()?;
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
