//! A larder in this process: real sockets on port 0, and a real store in a temporary folder.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::memory_records::MemoryRecords;
use larder::app::{App, NotReloaded, Reloaded, RunningApp, StartError, StartSettings};
use larder::clock::{Clock, Timestamp};
use larder::config::Config;
use larder::http::listener::Limits;
use larder::http::watchdog::LivenessError;
use larder::store::{Store, StoreError};
use larder::upstream::limits::UpstreamLimits;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::http::{Answer, Received, client, get, receive, send};
use super::reports::CommandReport;
use super::store_kind;
use super::tls::TestCa;
use super::upstream::FakeUpstream;

/// The host name under which larder mirrors the fake upstream, unless a test uses another one.
pub(crate) const HOST: &str = "registry.terraform.io";

/// The time that a start waits for the lock of the store: a process that another test starts shares every open file of this
/// one until it executes its program, so a released lock may stay taken for a moment.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(20);

/// Opens the store in a folder, as soon as its lock is free: see [`LOCK_TIMEOUT`].
pub(crate) fn open_store(folder: &Path, now: Timestamp) -> Store {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match store_kind::open(folder, now) {
            Err(StoreError::Locked(_)) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            opened => return opened.unwrap(),
        }
    }
}

/// Waits until no process has the lock of a store that this process has closed: see [`LOCK_TIMEOUT`]. Another program tries the
/// lock, because a file that this process opens would be shared in the same way.
pub(crate) fn wait_until_unlocked(folder: &Path) {
    let (lock, deadline) = (folder.join("v1/lock"), Instant::now() + LOCK_TIMEOUT);
    let try_lock = || Command::new("flock").arg("-n").arg(&lock).arg("true").status();
    let is_taken = || lock.exists() && try_lock().is_ok_and(|status| !status.success());
    while Instant::now() < deadline && is_taken() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A store folder. One larder after another may use the same folder.
#[derive(Debug, Clone)]
pub(crate) struct Folder(Arc<TempDir>);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(Arc::new(tempfile::tempdir().unwrap()))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The first-seen records of packages and modules, without the times of lists.
    pub(crate) fn first_seen(&self) -> Vec<PathBuf> {
        self.files("seen").into_iter().filter(|path| !path.ends_with("listed.json")).collect()
    }

    /// The files below `v1/SUBFOLDER`, sorted.
    pub(crate) fn files(&self, subfolder: &str) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut folders = vec![self.path().join("v1").join(subfolder)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { files.push(path) }
            }
        }
        // Records in memory have the paths that their files would have.
        let records = store_kind::records_in_memory(self.path()).map(|records| records.paths()).unwrap_or_default();
        let below = records.into_iter().filter(|path| path.starts_with(subfolder));
        files.extend(below.map(|path| self.path().join("v1").join(path)));
        files.sort();
        files
    }

    /// The path that the file or record at `v1/BELOW` has, stored or not.
    pub(crate) fn at(&self, below: &str) -> PathBuf {
        self.path().join("v1").join(below)
    }

    /// The record at a path of [`Self::files`], without its checksum.
    pub(crate) fn record(&self, path: &Path) -> Option<String> {
        match self.in_memory(path) {
            Some((records, path)) => records.bytes(&path).map(|bytes| String::from_utf8(bytes).unwrap()),
            None => std::fs::read_to_string(path).ok(),
        }
    }

    /// The bytes of the file at a path of [`Self::files`], as it is or would be.
    pub(crate) fn bytes(&self, path: &Path) -> Vec<u8> {
        match self.in_memory(path).and_then(|(records, path)| records.bytes(&path)) {
            Some(record) => [&b"{\"blake3\":\"\"}\n"[..], &record].concat(),
            None => std::fs::read(path).unwrap(),
        }
    }

    /// Writes the record at a path of [`Self::files`], with these bytes of [`Self::bytes`].
    pub(crate) fn put_back(&self, path: &Path, bytes: &[u8]) {
        match self.in_memory(path) {
            Some((records, path)) => {
                let record = bytes.splitn(2, |byte| *byte == b'\n').nth(1).unwrap();
                records.put(&path, record.to_owned())
            }
            None => std::fs::write(path, bytes).unwrap(),
        }
    }

    /// Replaces the record at a path of [`Self::files`] by one of a newer larder; returns its bytes.
    pub(crate) fn replace_with_newer(&self, path: &Path) -> Vec<u8> {
        let original = self.bytes(path);
        match self.in_memory(path) {
            Some((records, path)) => records.make_newer(&path),
            None => std::fs::write(path, "{\"format\":99}\n{}").unwrap(),
        }
        original
    }

    /// The bytes of all these files, as they are or would be.
    pub(crate) fn size_of(&self, files: &[PathBuf]) -> u64 {
        files.iter().map(|file| self.bytes(file).len() as u64).sum()
    }

    /// Damages the record at a path of [`Self::files`].
    pub(crate) fn damage(&self, path: &Path) {
        match self.in_memory(path) {
            Some((records, path)) => records.damage(&path),
            None => std::fs::write(path, "no record").unwrap(),
        }
    }

    /// Removes everything below `v1/SUBFOLDER`, as [`Self::lose`] does.
    pub(crate) fn lose_all(&self, subfolder: &str) {
        self.files(subfolder).iter().for_each(|file| self.lose(file));
    }

    /// Removes the index: the next start makes it anew of the files.
    pub(crate) fn lose_index(&self) {
        std::fs::remove_dir_all(self.path().join("v1/index")).unwrap();
    }

    /// True once the hashes of every stored archive are recorded, which happens a moment after its fill.
    pub(crate) fn has_all_hashes(&self) -> bool {
        self.files("names").iter().all(|name| self.record(name).is_some_and(|record| record.contains("h1:")))
    }

    /// Removes the file or record at a path of [`Self::files`].
    pub(crate) fn lose(&self, path: &Path) {
        match self.in_memory(path) {
            Some((records, path)) if !path.starts_with("blobs") => records.lose(&path),
            _ => std::fs::remove_file(path).unwrap(),
        }
    }

    fn in_memory(&self, path: &Path) -> Option<(MemoryRecords, PathBuf)> {
        let below = path.strip_prefix(self.path().join("v1")).unwrap().to_owned();
        Some((store_kind::records_in_memory(self.path())?, below))
    }

    /// The files of partial downloads.
    pub(crate) fn partial_downloads(&self) -> Vec<PathBuf> {
        // Staging also holds index records that are being written.
        let is_record = |path: &Path| path.file_name().unwrap().to_string_lossy().starts_with("record-");
        self.files("staging").into_iter().filter(|path| !is_record(path)).collect()
    }

    /// The stored proof sets.
    pub(crate) fn proof_sets(&self) -> Vec<PathBuf> {
        self.files("documents").into_iter().filter(|path| path.extension().is_some_and(|ext| ext == "set")).collect()
    }

    /// The stored archives.
    pub(crate) fn blobs(&self) -> Vec<PathBuf> {
        self.files("blobs")
    }
}

/// The settings of a larder before it starts.
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

/// A running larder. Dropping the value closes all its sockets at once.
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
    /// A larder that mirrors `upstream` as registry.terraform.io.
    pub(crate) fn mirroring(upstream: &FakeUpstream) -> Builder {
        let larder = Self::builder().upstream(HOST, &format!("{}/", upstream.origin()), "");
        // Documents may only name files at private addresses that the configuration allows.
        let releases = upstream.releases_origin();
        if releases.starts_with("http:") && releases != upstream.origin() {
            return larder.allow_private(&releases);
        }
        larder
    }

    /// A larder without upstreams.
    pub(crate) fn builder() -> Builder {
        let empty = String::new;
        Builder {
            folder: Folder::new(),
            server: empty(),
            network: empty(),
            allow_private: Vec::new(),
            store: empty(),
            upstreams: empty(),
            tls: None,
            settings: StartSettings { open_store: store_kind::open, ..StartSettings::default() },
        }
    }

    /// `http://127.0.0.1:PORT`, or https.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// The address of the main listener.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:PORT` of the admin listener.
    pub(crate) fn admin(&self) -> String {
        format!("http://{}", self.admin)
    }

    /// The CLI configuration that larder prints for clients.
    pub(crate) fn client_config(&self) -> &str {
        &self.client_config
    }

    /// The base URL of a registry's `providers.v1` service.
    pub(crate) fn providers_url(&self, host: &str) -> String {
        format!("{}/registry/{host}/v1/providers/", self.base)
    }

    /// Requests a path. Asserts that the response has no Retry-After: clients obey it without a limit.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        let answer = get(&format!("{}{path}", self.base)).await;
        assert!(answer.headers.get("retry-after").is_none(), "{path}: {:?}", answer.headers);
        answer
    }

    /// Requests a path with headers.
    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let request = client().get(format!("{}{path}", self.base));
        send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await.unwrap()
    }

    /// Requests a path; returns the received part of a body that ends early.
    pub(crate) async fn receive(&self, path: &str) -> Received {
        receive(client().get(format!("{}{path}", self.base))).await
    }

    /// Sends a HEAD request.
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

    /// Runs a command of the admin API (`refresh`, `purge`, `pin` …) on one address; returns its report. A person who accepts
    /// looks at the evidence first.
    pub(crate) async fn run_command(&self, command: &str, subject: &str) -> CommandReport {
        let report = self.send_command(command, serde_json::json!({ "what": [subject] })).await;
        match report.undecided() {
            Some(evidence) => self.accept_seen(subject, evidence).await,
            None => report,
        }
    }

    /// Sends an `accept` of this evidence.
    pub(crate) async fn accept_seen(&self, subject: &str, evidence: &str) -> CommandReport {
        self.send_command("accept", serde_json::json!({ "what": [subject], "evidence": [evidence] })).await
    }

    /// Sends a command with this body.
    pub(crate) async fn send_command(&self, command: &str, body: serde_json::Value) -> CommandReport {
        let body = body.to_string();
        let request = client().post(format!("{}/admin/v1/{command}", self.admin())).bearer_auth(self.token());
        let answer = send(request.header("content-type", "application/json").body(body)).await.unwrap();
        CommandReport::parse(answer.expect(200).json())
    }

    /// The alarms of the fleet in the status: kind, and what was found.
    pub(crate) async fn fleet_alarms(&self) -> Vec<(String, String)> {
        let status = get(&format!("{}/admin/v1/status", self.admin())).await.expect(200).json();
        let alarms = status["fleet_alarms"].as_array().unwrap().clone();
        let field = |alarm: &serde_json::Value, name: &str| alarm[name].as_str().unwrap().to_owned();
        alarms.iter().map(|alarm| (field(alarm, "kind"), field(alarm, "detail"))).collect()
    }

    /// The alarms in the status: kind, address, version, and the whole alarm.
    pub(crate) async fn alarms(&self) -> Vec<(String, String, String, serde_json::Value)> {
        let status = get(&format!("{}/admin/v1/status", self.admin())).await.expect(200).json();
        let alarms = status["alarms"].as_array().unwrap().clone();
        let field = |alarm: &serde_json::Value, name: &str| alarm[name].as_str().unwrap().to_owned();
        let select = |alarm: serde_json::Value| {
            (field(&alarm, "kind"), field(&alarm, "address"), field(&alarm, "version"), alarm)
        };
        alarms.into_iter().map(select).collect()
    }

    /// The sum of all series of a metric.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = get(&format!("{}/metrics", self.admin())).await.expect(200).text();
        let lines = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// The result of larder's own liveness check, which it reports to its service manager.
    pub(crate) async fn check_liveness(&self) -> Result<(), LivenessError> {
        self.running.check_liveness().await
    }

    /// Reloads the configuration that a builder describes, as SIGHUP does.
    pub(crate) async fn reload(&self, builder: Builder) -> Result<Reloaded, NotReloaded> {
        self.reload_to(builder.store_at(&self.folder).config()).await
    }

    /// Reloads this configuration.
    pub(crate) async fn reload_to(&self, config: Config) -> Result<Reloaded, NotReloaded> {
        self.running.reload(config).await
    }

    /// Stops as SIGTERM does, and waits until the store is closed.
    pub(crate) async fn stop(mut self) -> Folder {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            task.await.unwrap();
        }
        let folder = self.folder.clone();
        // The lock is released with the last part of the larder.
        drop(self);
        wait_until_unlocked(folder.path());
        folder
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
    /// Adds an `[[upstream]]`; `lines` are further lines of its section.
    pub(crate) fn upstream(mut self, host: &str, url: &str, lines: &str) -> Self {
        writeln!(self.upstreams, "[[upstream]]\nhost = \"{host}\"\nurl = \"{url}\"\n{lines}").unwrap();
        self
    }

    /// Adds lines to the last `[[upstream]]`.
    pub(crate) fn upstream_lines(mut self, lines: &str) -> Self {
        writeln!(self.upstreams, "{lines}").unwrap();
        self
    }

    /// Adds other sections, such as `[[credential]]`, after the upstreams.
    pub(crate) fn config_lines(self, lines: &str) -> Self {
        self.upstream_lines(lines)
    }

    /// Sets every freshness lifetime to zero, so that each request revalidates.
    pub(crate) fn always_revalidate(self) -> Self {
        self.upstream_lines(
            "fresh = { versions = \"0s\", discovery = \"0s\", download = \"0s\", api = \"0s\", not_found = \"0s\" }",
        )
    }

    /// Adds this line to `[server]`.
    pub(crate) fn server(mut self, line: &str) -> Self {
        writeln!(self.server, "{line}").unwrap();
        self
    }

    /// Adds this line to `[network]`.
    pub(crate) fn network(mut self, line: &str) -> Self {
        writeln!(self.network, "{line}").unwrap();
        self
    }

    /// Allows documents and redirects to name this private network, host name or plain http origin.
    pub(crate) fn allow_private(mut self, entry: &str) -> Self {
        self.allow_private.push(entry.to_owned());
        self
    }

    /// Adds this line to `[store]`.
    pub(crate) fn store(mut self, line: &str) -> Self {
        writeln!(self.store, "{line}").unwrap();
        self
    }

    /// Uses an existing store folder.
    pub(crate) fn store_at(mut self, folder: &Folder) -> Self {
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

    /// Uses this clock.
    pub(crate) fn clock(mut self, clock: &Clock) -> Self {
        self.settings.clock = clock.clone();
        self
    }

    /// Sets the time without a byte after which larder gives up an archive download.
    pub(crate) fn stall_timeout(mut self, stall: Duration) -> Self {
        self.settings.limits.stall = stall;
        self
    }

    /// Sets the time limit of every document request.
    pub(crate) fn answer_within(mut self, limit: Duration) -> Self {
        self.settings.limits.answer_within = limit;
        self
    }

    /// Sets the time limit of every upstream request.
    pub(crate) fn upstream_timeout(mut self, limit: Duration) -> Self {
        self.settings.upstream_limits.give_up_after = limit;
        self
    }

    /// Sets the size limit of documents.
    pub(crate) fn document_bytes(mut self, limit: u64) -> Self {
        self.settings.limits.document_bytes = limit;
        self
    }

    /// Sets the size limit of archives.
    pub(crate) fn archive_bytes(mut self, limit: u64) -> Self {
        self.settings.limits.archive_bytes = limit;
        self
    }

    /// Sets the time limit for the head of a client's request.
    pub(crate) fn head_within(mut self, limit: Duration) -> Self {
        self.settings.connections.header_time = limit;
        self
    }

    /// Sets the idle timeout of client connections.
    pub(crate) fn idle(mut self, limit: Duration) -> Self {
        self.settings.connections.idle = limit;
        self
    }

    /// Sets how long a stopping larder waits for requests in flight.
    pub(crate) fn drain(mut self, limit: Duration) -> Self {
        self.settings.connections.drain = limit;
        self
    }

    /// Sets how long a task may wait for a blocking thread before the liveness check fails.
    pub(crate) fn pool_within(mut self, limit: Duration) -> Self {
        self.settings.pool_within = limit;
        self
    }

    /// Changes the limits of client connections.
    pub(crate) fn connections(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.settings.connections);
        self
    }

    /// Changes the limits of upstream requests.
    pub(crate) fn upstream_limits(mut self, change: impl FnOnce(&mut UpstreamLimits)) -> Self {
        change(&mut self.settings.upstream_limits);
        self
    }

    /// Sets how many bytes of API pages are cached.
    pub(crate) fn page_bytes(mut self, limit: u64) -> Self {
        self.settings.limits.page_bytes = limit;
        self
    }

    /// Sets how many requests may wait for upstreams.
    pub(crate) fn waiting(mut self, max_requests: usize) -> Self {
        self.settings.limits.waiting = max_requests;
        self
    }

    /// The text of the configuration file. Larder listens on port 0 unless a test set `listen`.
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
    /// must not get the cached copy in place of the upstream's response.
    fn patient_upstreams(&self) -> String {
        let patient = |section: &str| match section {
            "" => String::new(),
            section if section.contains("patience") => format!("[[upstream]]{section}"),
            section => format!("[[upstream]]\npatience = \"8s\"{section}"),
        };
        self.upstreams.split("[[upstream]]").map(patient).collect()
    }

    /// The parsed and checked configuration.
    pub(crate) fn config(&self) -> Config {
        let text = self.config_text();
        let parsed = Config::parse(&text, Path::new("test.toml"), &|name| std::env::var(name).ok());
        parsed.unwrap_or_else(|problems| panic!("{problems}\n{text}")).0
    }

    /// Starts larder; panics if it cannot.
    pub(crate) async fn start(self) -> Larder {
        self.try_start().await.unwrap_or_else(|e| panic!("{e}"))
    }

    /// Starts larder, or returns the reason why it cannot start.
    pub(crate) async fn try_start(self) -> Result<Larder, StartError> {
        let config = self.config();
        let clock = self.settings.clock.clone();
        let deadline = Instant::now() + LOCK_TIMEOUT;
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
        let client_config = app.client_config().await.unwrap().lines;
        let running = app.running();
        let stop_signal = stop.clone();
        let task = Some(tokio::spawn(async move { app.serve(stop_signal).await.unwrap() }));
        Ok(Larder { folder: self.folder, clock, base, address, admin, client_config, running, stop, task })
    }
}
