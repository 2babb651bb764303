//! The database and the bucket of a fleet, and the configuration of its replicas.

use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};

use super::bucket::{self, ACCESS_KEY, TestBucket};
use super::larder::{Folder, Larder};
use super::postgres::{OWNER, RUN_ROLE, TestDatabase};
use super::process::{CommandOutput, Process, command, run};
use super::upstream::FakeUpstream;

/// The number of replicas of all tests.
static REPLICAS: AtomicU16 = AtomicU16::new(0);

/// The database and the bucket of a fleet.
pub(crate) struct FleetSetup {
    pub(crate) database: TestDatabase,
    pub(crate) bucket: TestBucket,
}

impl FleetSetup {
    /// Nothing is made yet.
    pub(crate) fn empty() -> Option<Self> {
        Some(Self { database: TestDatabase::empty()?, bucket: TestBucket::start() })
    }

    /// A fleet without replicas, on a server that a test may harm; with a small disk of its own, where that is possible and asked for.
    pub(crate) async fn on_its_own_server(with_disk: bool) -> Option<Self> {
        let setup = Self { database: TestDatabase::empty_on_its_own_server(with_disk)?, bucket: TestBucket::start() };
        setup.create().await.expect(0);
        Some(setup)
    }

    /// A fleet without replicas.
    pub(crate) async fn created() -> Option<Self> {
        let setup = Self::empty()?;
        setup.create().await.expect(0);
        Some(setup)
    }

    /// Runs `larder fleet create`.
    pub(crate) async fn create(&self) -> CommandOutput {
        let home = Folder::new();
        self.command_of_owner(home.path(), "create").await
    }

    /// A command of the role that owns the schema.
    pub(crate) async fn command_of_owner(&self, home: &Path, name: &str) -> CommandOutput {
        let network = format!("[network]\nca_file = {:?}\n", self.bucket.ca_file());
        let file = home.join("mirror.toml");
        std::fs::write(&file, format!("{network}{}", self.lines(home, OWNER))).unwrap();
        run(command(home, &["fleet", name, "--serve-as", RUN_ROLE, "--config", file.to_str().unwrap()])).await
    }

    /// The lines of a replica in this folder.
    pub(crate) fn lines(&self, home: &Path, role: &str) -> String {
        let write = |name: &str, text: &str| std::fs::write(home.join(name), text).unwrap();
        write("database-url", &self.database.url(role));
        write("fleet-secret", "0123456789abcdef0123456789abcdef");
        write("access-key", ACCESS_KEY);
        write("bucket-secret", bucket::SECRET);
        let (ca, endpoint) = (self.database.ca(), self.bucket.endpoint());
        // Each replica has a URL of its own; nobody connects to it yet.
        let port = 20_000 + REPLICAS.fetch_add(1, Ordering::Relaxed) % 10_000;
        format!(
            "[fleet]\ndatabase = {{ file = \"database-url\" }}\ndatabase_ca = {ca:?}\nbucket = \"s3://larder/mirror\"\n\
             endpoint = \"{endpoint}\"\nbucket_key = {{ access_key = {{ file = \"access-key\" }}, secret = {{ file = \"bucket-secret\" }} }}\n\
             secret = [{{ file = \"fleet-secret\" }}]\nlisten = \"127.0.0.1:0\"\nadvertise = \"http://127.0.0.1:{port}/\"\n"
        )
    }

    /// The configuration of a replica in this folder.
    pub(crate) fn config(&self, upstream: &FakeUpstream, folder: &Folder) -> String {
        let network = format!("ca_file = {:?}", self.bucket.ca_file());
        let builder = Larder::mirroring(upstream).store_at(folder).allow_private("127.0.0.1").network(&network);
        format!("{}\n{}", builder.config_text(), self.lines(folder.path(), RUN_ROLE))
    }

    /// Starts a replica in this folder.
    pub(crate) fn start(&self, upstream: &FakeUpstream, folder: &Folder) -> Process {
        Process::serve(&self.config(upstream, folder), folder.path()).unwrap_or_else(|output| panic!("{output:?}"))
    }

    /// The error of a replica that does not start.
    pub(crate) fn refused(&self, upstream: &FakeUpstream, folder: &Folder) -> CommandOutput {
        let started = Process::serve(&self.config(upstream, folder), folder.path());
        started.err().expect("the replica started")
    }
}
