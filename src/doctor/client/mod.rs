//! Checks whether the clients of this machine use this larder: reads their configuration as they do (service discovery,
//! `host` blocks, CLI configuration), and requests the URLs in it as they would. Also checks other settings that affect
//! a client's requests: proxies, tokens, timeout, plugin cache, certificate authorities (CLI configuration, credentials
//! of clients).

mod sources;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use tokio::time::timeout;
use url::{Host, Url};

use self::sources::url_of;
use super::listener::{ProbedService, ServerKind, base, identify_server};
use super::machine::{LarderState, RunningLarder};
use super::{Check, PROBE_TIMEOUT, in_time};
use crate::address::Hostname;
use crate::config::{Config, is_loopback, text};
use crate::http::probe_client::ClientRoots;
use crate::protocol::admin::CLIENT_CONFIG;
use crate::protocol::client_config::{ClientConfig, ClientRoute, credentials_block};
use crate::protocol::route::MIRROR_BASE;
use crate::requirements::cli_config::{
    CliConfig, ClientToken, Environment, InstallationSource, SearchPaths, token_variable,
};
use crate::requirements::{ClientKind, hcl};

const FILES: &str = "client.files";
const OVERRIDE: &str = "client.override";

/// Inputs of all checks of a client.
struct ClientChecks<'a> {
    config: &'a Config,
    running: &'a RunningLarder,
    environment: &'a Environment,
    client_roots: &'a ClientRoots,
}

/// Checks every client of this machine. Clients with identical files are checked once.
pub(super) async fn check_client(
    config: &Config,
    running: &RunningLarder,
    environment: &Environment,
    client_roots: &ClientRoots,
) -> Vec<Check> {
    let checks_of_clients = ClientChecks { config, running, environment, client_roots };
    let environment_copy = environment.clone();
    let Some(all_client_files) = in_time(move || read_all(&environment_copy)).await else {
        return vec![Check::fail(FILES, "the home folder does not respond")];
    };
    let name_clients = all_client_files.len() > 1;
    let mut checks = Vec::new();
    for client_files in &all_client_files {
        let mut checks_of_files = checks_of_clients.check_files(client_files).await;
        if name_clients {
            let clients = client_files.clients();
            checks_of_files.iter_mut().for_each(|check| check.finding = format!("{clients}: {}", check.finding));
        }
        checks.extend(checks_of_files);
    }
    checks
}

impl ClientChecks<'_> {
    /// Checks the files of one set of clients, and the registries in them.
    async fn check_files(&self, client_files: &ClientFiles) -> Vec<Check> {
        if client_files.no_files() {
            let searched = client_files.searched_paths();
            let advice = match self.running.state {
                LarderState::RunsAlone => {
                    let finding = format!("none ({searched}): `larder run` gives its client one");
                    return vec![Check::passed(FILES, finding)];
                }
                LarderState::NeverSetUp => {
                    "write these lines there, with your larder's own URL instead of this machine's:"
                }
                LarderState::Up | LarderState::Down => {
                    "write these lines there, on every machine whose clients should use larder:"
                }
            };
            let finding = format!("no CLI configuration ({searched}): clients ask every registry directly, not larder");
            let lines = self.lines_to_paste().await;
            return vec![Check::warn(FILES, finding).advise(advice).paste(lines)];
        }
        let mut checks = client_files.checks(self.running.state);
        for host in self.hosts(client_files) {
            checks.extend(self.check_host(client_files, &host).await);
        }
        checks.extend(self.check_tokens(client_files).await);
        checks.extend(self.check_environment(client_files));
        checks
    }

    /// The registries to check: the configured upstreams, or the clients' default registries where no larder is set up.
    /// A registry whose `host` block leads to any larder is added.
    fn hosts(&self, client_files: &ClientFiles) -> Vec<Hostname> {
        let mut hosts: Vec<Hostname> = match self.running.state {
            LarderState::NeverSetUp => {
                client_files.clients.iter().filter_map(|client| Hostname::parse(client.default_host()).ok()).collect()
            }
            LarderState::Up | LarderState::Down | LarderState::RunsAlone => {
                self.config.upstreams.iter().map(|upstream| upstream.host.clone()).collect()
            }
        };
        for (host, services) in &client_files.config.hosts {
            if !hosts.contains(host) && self.seems_meant_for_larder(services, host) {
                hosts.push(host.clone());
            }
        }
        hosts
    }

    /// Checks that the client uses larder for the providers and modules of one registry.
    async fn check_host(&self, client_files: &ClientFiles, host: &Hostname) -> Vec<Check> {
        let services_of_host = client_files.config.hosts.get(host);
        let sources = self.provider_sources(client_files, host).await;
        let mut checks = match services_of_host {
            Some(services) => self.check_services(services, host, &sources).await,
            None => Vec::new(),
        };
        checks.extend(self.check_installation(host, services_of_host.is_some(), &sources));
        if checks.is_empty() && services_of_host.is_none() {
            checks.push(self.check_unconfigured(host).await);
        }
        checks.into_iter().map(|check| if check.subject.is_none() { check.about(host) } else { check }).collect()
    }

    /// Checks a registry without a `host` block: the client asks the registry directly, except under a take-over.
    async fn check_unconfigured(&self, host: &Hostname) -> Check {
        let upstream = self.config.upstreams.iter().find(|upstream| upstream.host == *host);
        let may_lead_here = upstream.is_some_and(|upstream| !upstream.addresses.is_empty());
        if may_lead_here && self.running.is_offline {
            return Check::passed(OVERRIDE, "no host block; its name is not checked: larder is offline");
        }
        if may_lead_here && self.host_name_leads_to_larder(host).await {
            return Check::passed(OVERRIDE, "its name leads to larder");
        }
        if self.running.state == LarderState::RunsAlone {
            return Check::passed(OVERRIDE, "no host block: `larder run` gives its client one");
        }
        Check::warn(OVERRIDE, "no host block: the client asks this registry directly, not larder")
            .advise("to use larder, add the block that `larder client-config` prints")
    }

    /// The client configuration that a user should write.
    async fn lines_to_paste(&self) -> String {
        if let Some(larder) = &self.running.larder
            && let Ok(Ok(lines)) = timeout(PROBE_TIMEOUT, larder.get_text(CLIENT_CONFIG)).await
        {
            return ClientConfig::read(&lines).lines;
        }
        let hosts: Vec<&Hostname> = self.config.upstreams.iter().map(|upstream| &upstream.host).collect();
        ClientConfig::for_hosts(&hosts, &self.base(), ClientRoute::HostOverride).await.unwrap_or_default().lines
    }

    /// Base URL of this larder as clients see it, without a final slash.
    fn base(&self) -> String {
        base(self.config).map(|url| url.as_str().trim_end_matches('/').to_owned()).unwrap_or_default()
    }
}

/// Registry of an address without a host, for the clients that read these files.
fn default_host(client_files: &ClientFiles, host: &Hostname) -> &'static str {
    let default_host_of = |client: &ClientKind| client.default_host();
    let explicit = client_files.clients.iter().map(default_host_of).find(|default| *default == host.as_str());
    explicit.unwrap_or_else(|| client_files.clients.first().map_or("", default_host_of))
}

/// Configuration files of one client, or of both where they are identical.
#[derive(Debug, Default)]
struct ClientFiles {
    clients: Vec<ClientKind>,
    search_paths: Vec<SearchPaths>,
    files: Vec<PathBuf>,
    problems: Vec<String>,
    config: CliConfig,
}

/// Reads the files of every client on the `PATH`, or of both where neither is installed.
fn read_all(environment: &Environment) -> Vec<ClientFiles> {
    let mut all_client_files: Vec<ClientFiles> = Vec::new();
    for client in ClientKind::installed(environment) {
        let client_files = read_files(client, environment);
        match all_client_files
            .iter_mut()
            .find(|existing| existing.files == client_files.files && existing.problems == client_files.problems)
        {
            Some(existing) => {
                existing.clients.push(client);
                existing.search_paths.extend(client_files.search_paths);
            }
            None => all_client_files.push(client_files),
        }
    }
    all_client_files
}

fn read_files(client: ClientKind, environment: &Environment) -> ClientFiles {
    let search_paths = SearchPaths::of(client, environment, &|path: &Path| path.exists());
    let mut client_files =
        ClientFiles { clients: vec![client], search_paths: vec![search_paths.clone()], ..ClientFiles::default() };
    for file in search_paths.files() {
        let named_by = search_paths.named_by.filter(|_| search_paths.file.as_ref() == Some(&file));
        client_files.add(file, named_by);
    }
    client_files
}

impl ClientFiles {
    /// Reads a file; `named_by` is the environment variable that names it.
    fn add(&mut self, file: PathBuf, named_by: Option<&str>) {
        let shown = file.display().to_string();
        match text(&file, hcl::MAX_FILE_BYTES as u64) {
            Ok(text) => {
                match CliConfig::read(text.as_bytes()) {
                    Ok(config) => self.config = std::mem::take(&mut self.config).merge(config),
                    Err(bad) => self.problems.push(format!("{shown} does not parse: {bad}")),
                }
                self.files.push(file);
            }
            Err(unreadable) if unreadable.is_absent() => {
                let named = named_by.map(|variable| format!("{variable} names {shown}, which does not exist"));
                self.problems.extend(named);
            }
            Err(unreadable) => self.problems.push(format!("{shown} cannot be read: {unreadable}")),
        }
    }

    /// The names of the clients, for people.
    fn clients(&self) -> String {
        let clients: Vec<&str> = self.clients.iter().map(|client| client.program()).collect();
        clients.join(" and ")
    }

    /// True where no configuration file exists.
    fn no_files(&self) -> bool {
        self.files.is_empty() && self.problems.is_empty()
    }

    /// The configuration files that were searched for, for people.
    fn searched_paths(&self) -> String {
        let files = self.search_paths.iter().filter_map(|search_paths| search_paths.file.as_ref());
        let mut searched: Vec<String> = files.map(|file| file.display().to_string()).collect();
        searched.dedup();
        if searched.is_empty() { "HOME is not set".to_owned() } else { format!("no {}", searched.join(", no ")) }
    }

    /// Checks the files themselves.
    fn checks(&self, state: LarderState) -> Vec<Check> {
        let problem = |problem: &String| match state {
            LarderState::RunsAlone => Check::warn(FILES, problem)
                .advise("`larder run` gives its client a configuration without it; fix the file"),
            LarderState::Up | LarderState::Down | LarderState::NeverSetUp => Check::fail(FILES, problem)
                .advise("the client prints an error, continues without it, and asks registries directly; fix the file"),
        };
        let problems = self.problems.iter().map(problem);
        let complaint = |message: &String| {
            Check::fail(FILES, message).advise("the client prints an error and continues; fix the file")
        };
        let mut checks: Vec<Check> = problems.chain(self.config.complaints.iter().map(complaint)).collect();
        if checks.is_empty() && !self.files.is_empty() {
            let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
            checks.push(Check::passed(FILES, files.join(", ")));
        }
        checks
    }
}

/// The shortest client timeout that is long enough: larder answers within 8 s, and clients wait 10 s by default.
const MIN_TIMEOUT_SECONDS: u64 = 10;

const TOKEN: &str = "client.token";

const PLAINTEXT_TOKEN_ADVICE: &str = "give larder a certificate ([server] tls) and write https; or remove the token: larder \
     forwards none, it has its own credentials";

impl ClientChecks<'_> {
    /// Checks these settings; reports only notable ones.
    fn check_environment(&self, client_files: &ClientFiles) -> Vec<Check> {
        let destinations = self.destinations(client_files);
        let checks = [
            self.proxy(&destinations),
            self.credentials(client_files, &destinations),
            self.registry_timeout(),
            self.cache(client_files),
            self.authorities(),
        ];
        checks.into_iter().flatten().collect()
    }

    /// URLs that the client uses for the configured registries.
    fn destinations(&self, client_files: &ClientFiles) -> Vec<(Hostname, Url)> {
        let methods = client_files.config.installation.iter().flatten();
        let mirrors = methods.filter_map(|method| match &method.source {
            InstallationSource::NetworkMirror { url } => Some(url),
            InstallationSource::Direct | InstallationSource::Other(_) => None,
        });
        let mirrors: Vec<&String> = mirrors.collect();
        let mut destinations = Vec::new();
        for host in self.hosts(client_files) {
            let services = client_files.config.hosts.get(&host);
            let providers = services.and_then(|services| url_of(services, "providers.v1", &host));
            let mirrors = mirrors.iter().filter_map(|text| Url::parse(text).ok());
            let urls = providers.into_iter().chain(mirrors);
            destinations.extend(urls.map(|url| (host.clone(), url)));
        }
        destinations
    }

    fn proxy(&self, destinations: &[(Hostname, Url)]) -> Option<Check> {
        let proxied = destinations.iter().find_map(|(_, url)| Some((url, proxied_by(url, self.environment)?)));
        let (url, variable) = proxied?;
        let name = url.host_str().unwrap_or_default();
        let finding =
            format!("the client connects to {name} through the proxy of {variable}; the doctor connected directly");
        let advice = format!("add {name} to NO_PROXY, unless only the proxy reaches it");
        Some(Check::warn("client.proxy", finding).advise(advice))
    }

    fn credentials(&self, client_files: &ClientFiles, destinations: &[(Hostname, Url)]) -> Option<Check> {
        let has_token = |host: &Hostname| self.token_of(client_files, host).is_some();
        let is_plaintext = |url: &Url| url.scheme() == "http" && !is_loopback(url);
        let (host, url) = destinations.iter().find(|(host, url)| is_plaintext(url) && has_token(host))?;
        let origin = url.origin().ascii_serialization();
        let finding = format!("the client has a token for {host}, and sends it to {origin} without TLS");
        Some(Check::warn("client.credentials", finding).about(host).advise(PLAINTEXT_TOKEN_ADVICE))
    }

    /// The token that the client sends as its credential for a host.
    fn token_of(&self, client_files: &ClientFiles, host: &Hostname) -> Option<ClientToken> {
        let variable = token_variable(host.as_str());
        let of_environment = self.environment.iter().find(|(name, _)| name.eq_ignore_ascii_case(&variable));
        let of_environment = of_environment.map(|(_, token)| ClientToken::from(token.as_str()));
        of_environment.or_else(|| client_files.config.tokens.get(host).cloned())
    }

    /// Checks that the larder behind each URL knows the client's token, where it asks for one.
    async fn check_tokens(&self, client_files: &ClientFiles) -> Vec<Check> {
        let mut checks: Vec<Check> = Vec::new();
        for (registry, url) in self.destinations(client_files) {
            let is_mirror = url.path().ends_with(MIRROR_BASE);
            let (service, of_token) = match (is_mirror, url.host_str(), url.port()) {
                (false, ..) => (ProbedService::Providers, Some(registry.clone())),
                (true, Some(name), Some(port)) => {
                    (ProbedService::Mirror, Hostname::parse(&format!("{name}:{port}")).ok())
                }
                (true, name, _) => (ProbedService::Mirror, name.and_then(|name| Hostname::parse(name).ok())),
            };
            let Some(host) = of_token.filter(|_| !self.is_off_limits(&url) && url.path().ends_with('/')) else {
                continue;
            };
            let kind = async |token: Option<&ClientToken>| {
                let token = token.map(ClientToken::secret);
                let identified = identify_server(&url, service, &registry, self.client_roots, token).await;
                identified.map(|identified| identified.kind).ok()
            };
            // The token is sent to nobody but a larder that asks for one.
            let Some(ServerKind::LarderNeedsToken(_)) = kind(None).await else { continue };
            let shown = url.origin().ascii_serialization();
            let check = match self.token_of(client_files, &host) {
                None => {
                    let finding = format!("larder at {shown} asks for a token, and the client has none for {host}");
                    let advice = "ask its operator for one (larder token new), and write these lines into the CLI configuration:";
                    Check::fail(TOKEN, finding).advise(advice).paste(credentials_block(host.as_str(), "TOKEN"))
                }
                Some(token) => match kind(Some(&token)).await {
                    Some(ServerKind::Larder) => {
                        Check::passed(TOKEN, format!("larder at {shown} knows the client's token for {host}"))
                    }
                    Some(ServerKind::LarderNeedsToken(message)) => {
                        let finding = format!("larder at {shown} refuses the client's token for {host}: {message}");
                        Check::fail(TOKEN, finding).advise("it may have been replaced; ask its operator for a new one")
                    }
                    Some(ServerKind::LarderRefusing(message)) => {
                        let finding =
                            format!("larder at {shown} refuses the client with its token for {host}: {message}");
                        Check::fail(TOKEN, finding).advise("ask its operator to add the network of this machine")
                    }
                    Some(ServerKind::LarderWithoutHost(missing)) => {
                        let finding =
                            format!("larder at {shown} knows the client's token, and does not mirror {missing}");
                        Check::fail(TOKEN, finding)
                            .advise("remove that host block, or have its operator add the registry")
                    }
                    Some(ServerKind::LarderWithoutService) => {
                        let finding = format!(
                            "larder at {shown} knows the client's token, and has no registry at {}",
                            url.path()
                        );
                        Check::fail(TOKEN, finding).advise("write the URL as `larder client-config` prints it")
                    }
                    Some(ServerKind::OtherServer(_)) | None => continue,
                },
            };
            // One larder may mirror several registries.
            if !checks.iter().any(|known| known.finding == check.finding) {
                checks.push(check);
            }
        }
        checks
    }

    fn registry_timeout(&self) -> Option<Check> {
        const VARIABLE: &str = "TF_REGISTRY_CLIENT_TIMEOUT";
        let seconds: u64 = self.environment.get(VARIABLE)?.parse().ok()?;
        let finding =
            format!("{VARIABLE}={seconds}: the client waits no longer than {seconds} s, and larder answers within 8 s");
        let advice = format!("unset the variable, or set it to {MIN_TIMEOUT_SECONDS} or more");
        let is_short = (1..MIN_TIMEOUT_SECONDS).contains(&seconds);
        is_short.then(|| Check::warn("client.timeout", finding).advise(advice))
    }

    fn cache(&self, client_files: &ClientFiles) -> Option<Check> {
        const CACHE: &str = "client.cache";
        let home = self.environment.get("HOME").map(String::as_str).unwrap_or_default();
        let expand = |text: &String| text.replace("${HOME}", home).replace("$HOME", home);
        let set = self.environment.get("TF_PLUGIN_CACHE_DIR").filter(|folder| !folder.is_empty()).cloned();
        let folder = set.or_else(|| client_files.config.plugin_cache_dir.as_ref().map(expand))?;
        let is_known = !folder.contains('$') && Path::new(&folder).is_absolute();
        if is_known && !Path::new(&folder).is_dir() {
            let finding = format!("the plugin cache {folder} is not a folder: the client prints an error");
            return Some(Check::warn(CACHE, finding).advise(format!("mkdir -p {folder}, or remove the setting")));
        }
        Some(Check::passed(
            CACHE,
            format!("a plugin cache is used: locked providers in {folder} are not requested again"),
        ))
    }

    fn authorities(&self) -> Option<Check> {
        let file = self.client_roots.unreadable.as_ref()?.display();
        let finding = format!("SSL_CERT_FILE names {file}, which has no readable certificates");
        let advice = "name a PEM file that the client may read, or unset the variable";
        Some(Check::warn("client.trust", finding).advise(advice))
    }
}

/// The variable whose proxy a request to `url` uses.
fn proxied_by(url: &Url, environment: &Environment) -> Option<&'static str> {
    let names = match url.scheme() {
        "https" => ["HTTPS_PROXY", "https_proxy"],
        "http" => ["HTTP_PROXY", "http_proxy"],
        _ => return None,
    };
    let value_of = |name: &str| environment.get(name).filter(|value| !value.is_empty());
    let variable = names.into_iter().find(|name| value_of(name).is_some())?;
    let (host, port) = (url.host()?, url.port_or_known_default()?);
    let no_proxy = value_of("NO_PROXY").or_else(|| value_of("no_proxy")).map(String::as_str).unwrap_or_default();
    let is_exempt = |entry: &str| entry_matches(&entry.trim().to_ascii_lowercase(), &host, port);
    // Go sends no request to this machine through a proxy.
    (!is_loopback(url) && !no_proxy.split(',').any(is_exempt)).then_some(variable)
}

/// Returns true if an entry of NO_PROXY matches a host and port.
fn entry_matches(entry: &str, host: &Host<&str>, port: u16) -> bool {
    if entry.is_empty() || entry == "*" {
        return entry == "*";
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
