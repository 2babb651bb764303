//! Checks whether the clients of this machine use this larder: reads their configuration as they do (PROTOCOL,
//! sections 1.1 to 1.3), and requests the URLs in it as they would.

mod connection_attempts;
mod environment;
mod files;
mod installation;
mod proxies;
mod services;

use tokio::time::timeout;

use self::files::ClientFiles;
use super::listener::base;
use super::running::{LarderState, RunningLarder};
use super::{Check, PROBE_TIMEOUT};
use crate::address::Hostname;
use crate::config::Config;
use crate::http::admin_client;
use crate::http::client_roots::ClientRoots;
use crate::protocol::client_config::{ClientRoute, default_text};
use crate::requirements::cli_config::{ClientProgram, Environment};

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
    let reading = tokio::task::spawn_blocking(move || files::read_all(&environment_copy));
    let Some(all_client_files) = timeout(PROBE_TIMEOUT, reading).await.ok().and_then(Result::ok) else {
        return vec![Check::fail(FILES, "the home folder does not respond")];
    };
    let name_clients = all_client_files.len() > 1;
    let mut checks = Vec::new();
    for client_files in &all_client_files {
        let mut checks_of_files = checks_of_clients.check_files(client_files).await;
        if name_clients {
            checks_of_files
                .iter_mut()
                .for_each(|check| check.found = format!("{}: {}", client_files.clients(), check.found));
        }
        checks.extend(checks_of_files);
    }
    checks
}

impl ClientChecks<'_> {
    /// Checks the files of one set of clients, and the registries in them.
    async fn check_files(&self, client_files: &ClientFiles) -> Vec<Check> {
        let mut checks = client_files.checks();
        if client_files.no_files() {
            let lines = self.lines_to_paste().await;
            let searched = client_files.searched_paths();
            checks.push(
                Check::warn(
                    FILES,
                    format!("no CLI configuration ({searched}): clients ask every registry directly, not larder"),
                )
                .advise(match self.running.state {
                    LarderState::NeverSetUp => {
                        "write these lines there, with your larder's own URL instead of this machine's:"
                    }
                    LarderState::Up | LarderState::Down => {
                        "write these lines there, on every machine whose clients should use larder:"
                    }
                })
                .paste(lines),
            );
            return checks;
        }
        for host in self.hosts(client_files) {
            checks.extend(self.check_host(client_files, &host).await);
        }
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
            LarderState::Up | LarderState::Down => {
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
        checks.into_iter().map(|check| if check.of.is_none() { check.of(host) } else { check }).collect()
    }

    /// Checks a registry without a `host` block: the client asks the registry directly, except under a take-over.
    async fn check_unconfigured(&self, host: &Hostname) -> Check {
        let upstream = self.config.upstreams.iter().find(|upstream| upstream.host == *host);
        let may_lead_here = upstream.is_some_and(|upstream| !upstream.addresses.is_empty());
        if may_lead_here && self.running.is_offline {
            return Check::ok(OVERRIDE, "no host block; its name is not checked: larder is offline");
        }
        if may_lead_here && self.host_name_leads_to_larder(host).await {
            return Check::ok(OVERRIDE, "its name leads to larder");
        }
        Check::warn(OVERRIDE, "no host block: the client asks this registry directly, not larder")
            .advise("to use larder, add the block that `larder client-config` prints")
    }

    /// The client configuration that a user should write.
    async fn lines_to_paste(&self) -> String {
        let answer = admin_client::get(self.config.admin.listen, "/admin/v1/client-config", None);
        if self.running.is_up()
            && let Ok(Ok(lines)) = timeout(PROBE_TIMEOUT, answer).await
        {
            return String::from_utf8_lossy(&lines).into_owned();
        }
        let hosts: Vec<&Hostname> = self.config.upstreams.iter().map(|upstream| &upstream.host).collect();
        default_text(&hosts, &self.base(), ClientRoute::HostOverride).await.unwrap_or_default()
    }

    /// Base URL of this larder as clients see it, without a final slash.
    fn base(&self) -> String {
        base(self.config).map(|url| url.as_str().trim_end_matches('/').to_owned()).unwrap_or_default()
    }
}

/// Registry of an address without a host, for the clients that read these files.
fn default_host(client_files: &ClientFiles, host: &Hostname) -> &'static str {
    let default_host_of = |client: &ClientProgram| client.default_host();
    let explicit = client_files.clients.iter().map(default_host_of).find(|default| *default == host.as_str());
    explicit.unwrap_or_else(|| client_files.clients.first().map_or("", default_host_of))
}
