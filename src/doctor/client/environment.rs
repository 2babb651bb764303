//! Other settings that affect a client's requests: proxies, tokens, timeout, plugin cache, certificate authorities
//! (PROTOCOL, sections 1.3 and 1.4).

use std::path::Path;

use url::{Host, Url};

use super::files::ClientFiles;
use super::proxies::proxied_by;
use super::{Check, ClientChecks};
use crate::address::Hostname;
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
