//! Checks whether the clients of this machine use this larder: reads their configuration as they do (PROTOCOL,
//! sections 1.1 to 1.3), and requests the URLs in it as they would.

mod connection_attempts;
mod environment;
mod sources;

use std::path::{Path, PathBuf};

use tokio::time::timeout;

use super::listener::base;
use super::running::{LarderState, RunningLarder};
use super::{Check, PROBE_TIMEOUT};
use crate::address::Hostname;
use crate::config::{Config, Unreadable, text};
use crate::http::admin_client::{AdminClient, AdminToken};
use crate::http::probe_client::ClientRoots;
use crate::protocol::client_config::{ClientRoute, default_text};
use crate::requirements::cli_config::CliConfig;
use crate::requirements::cli_config::{ClientProgram, Environment, SearchPaths};
use crate::requirements::hcl;

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
    let reading = tokio::task::spawn_blocking(move || read_all(&environment_copy));
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
        let client = AdminClient::new(self.config.admin.listen, AdminToken::Absent);
        if self.running.is_up()
            && let Ok(Ok(lines)) = timeout(PROBE_TIMEOUT, client.get("/admin/v1/client-config")).await
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

/// Configuration files of one client, or of both where they are identical.
#[derive(Debug)]
struct ClientFiles {
    clients: Vec<ClientProgram>,
    search_paths: Vec<SearchPaths>,
    files: Vec<PathBuf>,
    problems: Vec<String>,
    config: CliConfig,
}

/// Reads the files of every client on the `PATH`, or of both where neither is installed.
fn read_all(environment: &Environment) -> Vec<ClientFiles> {
    let folders: Vec<PathBuf> =
        environment.get("PATH").map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    let is_installed = |client: &ClientProgram| folders.iter().any(|folder| folder.join(client.program()).is_file());
    let mut clients: Vec<ClientProgram> = ClientProgram::ALL.into_iter().filter(is_installed).collect();
    if clients.is_empty() {
        clients = ClientProgram::ALL.to_vec();
    }
    let mut all_client_files: Vec<ClientFiles> = Vec::new();
    for client in clients {
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

fn read_files(client: ClientProgram, environment: &Environment) -> ClientFiles {
    let search_paths = SearchPaths::of(client, environment, &|path: &Path| path.exists());
    let mut client_files = ClientFiles {
        clients: vec![client],
        files: Vec::new(),
        problems: Vec::new(),
        config: CliConfig::default(),
        search_paths: vec![search_paths.clone()],
    };
    if let Some(file) = search_paths.file {
        client_files.add(file, search_paths.named_by);
    }
    let entries =
        search_paths.folder.as_deref().and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| SearchPaths::is_read(name)).collect();
    names.sort_unstable();
    for name in names {
        let folder = search_paths.folder.as_deref().unwrap_or(Path::new(""));
        client_files.add(folder.join(name), None);
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
                    Ok(config) => {
                        let earlier = std::mem::take(&mut self.config);
                        self.config = earlier.merge(config);
                    }
                    Err(bad) => self.problems.push(format!("{shown} does not parse: {bad}")),
                }
                self.files.push(file);
            }
            Err(unreadable) => match (named_by, unreadable) {
                (None, unreadable) if unreadable.is_absent() => {}
                (Some(variable), unreadable) if unreadable.is_absent() => {
                    self.problems.push(format!("{variable} names {shown}, which does not exist"));
                }
                (
                    _,
                    unreadable @ (Unreadable::Refused(_)
                    | Unreadable::Folder
                    | Unreadable::TooLarge(_)
                    | Unreadable::NotText(_)),
                ) => {
                    self.problems.push(format!("{shown} cannot be read: {unreadable}"));
                }
            },
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
    fn checks(&self) -> Vec<Check> {
        let advice = "the client prints an error, continues without it, and asks registries directly; fix the file";
        let problems = self.problems.iter().map(|problem| Check::fail(FILES, problem).advise(advice));
        let complaint = |message: &String| {
            Check::fail(FILES, message).advise("the client prints an error and continues; fix the file")
        };
        let mut checks: Vec<Check> = problems.chain(self.config.complaints.iter().map(complaint)).collect();
        if checks.is_empty() && !self.files.is_empty() {
            let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
            checks.push(Check::ok(FILES, files.join(", ")));
        }
        checks
    }
}
