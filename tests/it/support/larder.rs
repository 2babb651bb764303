//! A larder in this process: real sockets on port 0, and a real store in a temporary folder.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder::app::{App, NotReloaded, Reloaded, RunningApp, StartError, StartSettings};
use larder::clock::Clock;
use larder::config::Config;
use larder::http::listener::Limits;
use larder::http::watchdog::LivenessError;
use larder::store::StoreError;
use larder::upstream::limits::UpstreamLimits;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::http::{Answer, Received, client, get, receive, send};
use super::reports::CommandReport;
use super::tls::TestCa;
use super::upstream::FakeUpstream;

/// The registry that the tests' upstream stands for, unless a test says otherwise.
pub(crate) const HOST: &str = "registry.terraform.io";

/// A process that another test starts shares every open file of this one until it executes its program, so a released
/// lock may stay taken for a moment.
pub(crate) const LOCK_LINGERS: Duration = Duration::from_secs(20);

/// A store folder; two larders in turn may use the same.
#[derive(Debug, Clone)]
pub(crate) struct Folder(Arc<TempDir>);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(Arc::new(tempfile::tempdir().unwrap()))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The files below `v1/SUBFOLDER`, sorted.
    pub(crate) fn files(&self, subfolder: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.path().join("v1").join(subfolder)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { found.push(path) }
            }
        }
        found.sort();
        found
    }

    /// Partial downloads.
    pub(crate) fn staged(&self) -> Vec<PathBuf> {
        // A record that is being written is not a download.
        let is_record = |path: &Path| path.file_name().unwrap().to_string_lossy().starts_with("record-");
        self.files("staging").into_iter().filter(|path| !is_record(path)).collect()
    }

    /// The stored proof sets.
    pub(crate) fn sets(&self) -> Vec<PathBuf> {
        self.files("documents").into_iter().filter(|path| path.extension().is_some_and(|ext| ext == "set")).collect()
    }

    /// The archives that are visible.
    pub(crate) fn blobs(&self) -> Vec<PathBuf> {
        self.files("blobs")
    }
}

/// The settings of a larder.
pub(crate) struct Builder {
    folder: Folder,
    server: String,
    network: String,
    allow_private: Vec<String>,
    store: String,
    upstreams: String,
    tls: Option<(String, String)>,
    settings: StartSettings,
}

/// A running larder. Dropping it stops it at once, like a power cut of its sockets.
pub(crate) struct Larder {
    pub(crate) folder: Folder,
    pub(crate) clock: Clock,
    base: String,
    address: SocketAddr,
    admin: SocketAddr,
    client_config: String,
    running: Arc<RunningApp>,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Larder {
    /// One that mirrors `upstream` as registry.terraform.io.
    pub(crate) fn mirroring(upstream: &FakeUpstream) -> Builder {
        let larder = Self::builder().upstream(HOST, &format!("{}/", upstream.origin()), "");
        // Files at another origin than the registry's: of the public internet, or named here.
        let releases = upstream.releases_origin();
        if releases.starts_with("http:") && releases != upstream.origin() {
            return larder.allow_private(&releases);
        }
        larder
    }

    /// One without upstreams yet.
    pub(crate) fn builder() -> Builder {
        let text = String::new;
        Builder {
            folder: Folder::new(),
            server: text(),
            network: text(),
            allow_private: Vec::new(),
            store: text(),
            upstreams: text(),
            tls: None,
            settings: StartSettings::default(),
        }
    }

    /// `http://127.0.0.1:PORT`, or https.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Where the main listener is.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:PORT` of the admin listener.
    pub(crate) fn admin(&self) -> String {
        format!("http://{}", self.admin)
    }

    /// The CLI configuration it prints.
    pub(crate) fn client_config(&self) -> &str {
        &self.client_config
    }

    /// The base of a registry's providers.v1.
    pub(crate) fn providers_url(&self, host: &str) -> String {
        format!("{}/registry/{host}/v1/providers/", self.base)
    }

    /// Requests a path. Larder's answers never carry Retry-After: clients obey it without a limit.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        let answer = get(&format!("{}{path}", self.base)).await;
        assert!(answer.headers.get("retry-after").is_none(), "{path}: {:?}", answer.headers);
        answer
    }

    /// Asks for a path with headers.
    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let request = client().get(format!("{}{path}", self.base));
        send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await.unwrap()
    }

    /// Asks for a path, and keeps what arrives of a body that breaks off.
    pub(crate) async fn receive(&self, path: &str) -> Received {
        receive(client().get(format!("{}{path}", self.base))).await
    }

    /// Asks for the headers of a path.
    pub(crate) async fn head(&self, path: &str) -> Answer {
        send(client().head(format!("{}{path}", self.base))).await.unwrap()
    }

    /// The version list of acme/NAME.
    pub(crate) async fn versions(&self, name: &str) -> Answer {
        self.get(&format!("/registry/{HOST}/v1/providers/acme/{name}/versions")).await
    }

    /// The download document of acme/NAME for linux_amd64.
    pub(crate) async fn document(&self, name: &str, version: &str) -> Answer {
        self.document_for(name, version, "linux_amd64").await
    }

    /// The download document of acme/NAME for a platform.
    pub(crate) async fn document_for(&self, name: &str, version: &str, platform: &str) -> Answer {
        let (os, arch) = platform.split_once('_').unwrap();
        self.get(&format!("/registry/{HOST}/v1/providers/acme/{name}/{version}/download/{os}/{arch}")).await
    }

    /// The path of the archive that the download document of acme/NAME names.
    pub(crate) async fn archive_path(&self, name: &str, version: &str) -> String {
        self.document(name, version).await.expect(200).json()["download_url"].as_str().unwrap().to_owned()
    }

    /// The token of the admin listener.
    pub(crate) fn token(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("admin-token")).unwrap()
    }

    /// Sends an address to a command of the admin listener; returns its answer.
    pub(crate) async fn tell(&self, command: &str, subject: &str) -> CommandReport {
        let body = serde_json::json!({ "what": [subject] }).to_string();
        let request = client().post(format!("{}/admin/v1/{command}", self.admin())).bearer_auth(self.token());
        let answer = send(request.header("content-type", "application/json").body(body)).await.unwrap();
        CommandReport::parse(answer.expect(200).json())
    }

    /// The alarms of the status: kind, address, version, and the whole.
    pub(crate) async fn alarms(&self) -> Vec<(String, String, String, serde_json::Value)> {
        let status = get(&format!("{}/admin/v1/status", self.admin())).await.expect(200).json();
        let alarms = status["alarms"].as_array().unwrap().clone();
        let word = |alarm: &serde_json::Value, name: &str| alarm[name].as_str().unwrap().to_owned();
        let select =
            |alarm: serde_json::Value| (word(&alarm, "kind"), word(&alarm, "address"), word(&alarm, "version"), alarm);
        alarms.into_iter().map(select).collect()
    }

    /// A figure of the metrics: the sum of all its labelled values.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = get(&format!("{}/metrics", self.admin())).await.expect(200).text();
        let lines = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// The result of larder's own liveness check, as reported to its service manager.
    pub(crate) async fn answers(&self) -> Result<(), LivenessError> {
        self.running.check_liveness().await
    }

    /// Takes over the configuration that another builder describes, as SIGHUP does.
    pub(crate) async fn reload(&self, builder: Builder) -> Result<Reloaded, NotReloaded> {
        self.reload_to(builder.on(&self.folder).config()).await
    }

    /// Takes over this configuration.
    pub(crate) async fn reload_to(&self, config: Config) -> Result<Reloaded, NotReloaded> {
        self.running.reload(config).await
    }

    /// Stops as SIGTERM does, and waits until the store is closed.
    pub(crate) async fn stop(mut self) -> Folder {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            task.await.unwrap();
        }
        self.folder.clone()
    }
}

impl Drop for Larder {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

impl Builder {
    /// Adds an `[[upstream]]`; `more` are further lines of its section.
    pub(crate) fn upstream(mut self, host: &str, url: &str, more: &str) -> Self {
        writeln!(self.upstreams, "[[upstream]]\nhost = \"{host}\"\nurl = \"{url}\"\n{more}").unwrap();
        self
    }

    /// Adds lines to the last `[[upstream]]`.
    pub(crate) fn with(mut self, line: &str) -> Self {
        writeln!(self.upstreams, "{line}").unwrap();
        self
    }

    /// Sets every freshness lifetime to zero: each request revalidates.
    pub(crate) fn nothing_stays_fresh(self) -> Self {
        self.with(
            "fresh = { versions = \"0s\", discovery = \"0s\", download = \"0s\", api = \"0s\", not_found = \"0s\" }",
        )
    }

    /// Adds a line to `[server]`.
    pub(crate) fn server(mut self, line: &str) -> Self {
        writeln!(self.server, "{line}").unwrap();
        self
    }

    /// Adds a line to `[network]`.
    pub(crate) fn network(mut self, line: &str) -> Self {
        writeln!(self.network, "{line}").unwrap();
        self
    }

    /// Lets documents and redirects lead to this network, name or plain origin.
    pub(crate) fn allow_private(mut self, entry: &str) -> Self {
        self.allow_private.push(entry.to_owned());
        self
    }

    /// Adds a line to `[store]`.
    pub(crate) fn store(mut self, line: &str) -> Self {
        writeln!(self.store, "{line}").unwrap();
        self
    }

    /// Uses a store that was there before.
    pub(crate) fn on(mut self, folder: &Folder) -> Self {
        self.folder = folder.clone();
        self
    }

    /// Serves over TLS with a certificate of a test CA for these names.
    pub(crate) fn tls(mut self, ca: &TestCa, names: &[&str]) -> Self {
        self.tls = Some(ca.issue(names));
        self
    }

    /// Trusts a test CA for outbound connections.
    pub(crate) fn trusting(self, ca: &TestCa) -> Self {
        let path = self.folder.path().join("upstream-ca.pem");
        std::fs::write(&path, ca.pem()).unwrap();
        let line = format!("ca_file = \"{}\"", path.display());
        self.network(&line)
    }

    /// Goes by this clock.
    pub(crate) fn clock(mut self, clock: &Clock) -> Self {
        self.settings.clock = clock.clone();
        self
    }

    /// Gives up a silent archive after this long.
    pub(crate) fn stall(mut self, stall: Duration) -> Self {
        self.settings.limits.stall = stall;
        self
    }

    /// Answers every document within this.
    pub(crate) fn answer_within(mut self, limit: Duration) -> Self {
        self.settings.limits.answer_within = limit;
        self
    }

    /// Gives up an upstream that has not answered after this long.
    pub(crate) fn give_up_after(mut self, limit: Duration) -> Self {
        self.settings.upstream_limits.give_up_after = limit;
        self
    }

    /// Takes no document larger than this.
    pub(crate) fn document_bytes(mut self, limit: u64) -> Self {
        self.settings.limits.document_bytes = limit;
        self
    }

    /// Takes no archive larger than this.
    pub(crate) fn archive_bytes(mut self, limit: u64) -> Self {
        self.settings.limits.archive_bytes = limit;
        self
    }

    /// Waits this long for the head of a client's request.
    pub(crate) fn head_within(mut self, limit: Duration) -> Self {
        self.settings.connections.header_time = limit;
        self
    }

    /// Lets a client's connection do nothing for this long.
    pub(crate) fn idle(mut self, limit: Duration) -> Self {
        self.settings.connections.idle = limit;
        self
    }

    /// Waits this long for requests in flight at a stop.
    pub(crate) fn drain(mut self, limit: Duration) -> Self {
        self.settings.connections.drain = limit;
        self
    }

    /// Lets a task wait this long for a blocking thread before larder does not answer itself.
    pub(crate) fn pool_within(mut self, limit: Duration) -> Self {
        self.settings.pool_within = limit;
        self
    }

    /// Allows clients this much.
    pub(crate) fn connections(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.settings.connections);
        self
    }

    /// Sets limits for upstream requests.
    pub(crate) fn bounds(mut self, change: impl FnOnce(&mut UpstreamLimits)) -> Self {
        change(&mut self.settings.upstream_limits);
        self
    }

    /// Keeps this many bytes of pages of the registry HTTP API.
    pub(crate) fn page_bytes(mut self, limit: u64) -> Self {
        self.settings.limits.page_bytes = limit;
        self
    }

    /// Lets this many requests wait for upstreams.
    pub(crate) fn waiting(mut self, most: usize) -> Self {
        self.settings.limits.waiting = most;
        self
    }

    /// The configuration as a file would have it. Port 0 unless a `listen` was given.
    pub(crate) fn config_text(&self) -> String {
        let tls = self.tls.as_ref().map_or(String::new(), |(certificate, key)| {
            let (certificate_path, key_path) =
                (self.folder.path().join("cert.pem"), self.folder.path().join("key.pem"));
            std::fs::write(&certificate_path, certificate).unwrap();
            std::fs::write(&key_path, key).unwrap();
            format!("tls = {{ certificate = \"{}\", key = \"{}\" }}", certificate_path.display(), key_path.display())
        });
        let listen = if self.server.contains("listen") { "" } else { "listen = \"127.0.0.1:0\"" };
        format!(
            "[server]\n{listen}\n{tls}\n{}\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\npath = \"{}\"\n{}\n[network]\nallow_private = {:?}\n{}\n{}",
            self.server,
            self.folder.path().display(),
            self.store,
            self.allow_private,
            self.network,
            self.patient_upstreams()
        )
    }

    /// The `[[upstream]]` sections, each with the greatest `patience` unless a test set one: on a busy machine a test
    /// must not get the cached copy in place of the answer it asked for.
    fn patient_upstreams(&self) -> String {
        let patient = |section: &str| match section {
            "" => String::new(),
            given if given.contains("patience") => format!("[[upstream]]{given}"),
            silent => format!("[[upstream]]\npatience = \"8s\"{silent}"),
        };
        self.upstreams.split("[[upstream]]").map(patient).collect()
    }

    /// The configuration, checked.
    pub(crate) fn config(&self) -> Config {
        let text = self.config_text();
        let parsed = Config::parse(&text, Path::new("test.toml"), &|name| std::env::var(name).ok());
        parsed.unwrap_or_else(|problems| panic!("{problems}\n{text}")).0
    }

    /// Starts it.
    pub(crate) async fn start(self) -> Larder {
        self.try_start().await.unwrap_or_else(|e| panic!("{e}"))
    }

    /// Starts it, or says why not.
    pub(crate) async fn try_start(self) -> Result<Larder, StartError> {
        let config = self.config();
        let clock = self.settings.clock.clone();
        let deadline = Instant::now() + LOCK_LINGERS;
        let app = loop {
            match App::start(&config, self.settings.clone()).await {
                Err(StartError::Store(StoreError::Locked(_))) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                started => break started?,
            }
        };
        let stop = CancellationToken::new();
        let base = app.base().to_owned();
        let (address, admin) = (app.address(), app.admin_address());
        let client_config =
            app.client_config(larder::protocol::client_config::ClientRoute::HostOverride).await.unwrap();
        let running = app.running();
        let stopping = stop.clone();
        let task = Some(tokio::spawn(async move { app.serve(stopping).await.unwrap() }));
        Ok(Larder { folder: self.folder, clock, base, address, admin, client_config, running, stop, task })
    }
}
