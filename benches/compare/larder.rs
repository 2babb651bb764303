//! larder, the release binary: on a store of its own, in front of the registry.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tempfile::TempDir;

use crate::process::Running;
use crate::support::larder::HOST;
use crate::support::process::command;
use crate::tls::Certificate;
use crate::upstream::Upstream;

/// Whether each request is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Log {
    On,
    Off,
}

/// Its folder, with a configuration: what is left where it does not run.
pub(crate) struct Home {
    folder: TempDir,
    log: Log,
}

/// A running larder.
pub(crate) struct Larder {
    pub(crate) home: Home,
    running: Running,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// From its start to the line that says that it listens.
    pub(crate) started_in: Duration,
}

impl Home {
    pub(crate) fn new(upstream: &Upstream, tls: Option<&Certificate>, log: Log) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("compare-larder-").tempdir()?;
        let tls = tls.map_or(String::new(), |tls| {
            format!("tls = {{ certificate = {:?}, key = {:?} }}\n", tls.certificate_file, tls.key_file)
        });
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n{tls}[admin]\nlisten = \"127.0.0.1:0\"\n\
             [store]\npath = {:?}\nscrub = \"never\"\n[[upstream]]\nhost = \"{HOST}\"\nurl = \"http://{}/\"\n\
             fresh = {{ versions = \"1h\", discovery = \"1h\", download = \"24h\" }}\n",
            folder.path().join("store"),
            upstream.address(),
        );
        fs::write(folder.path().join("mirror.toml"), text)?;
        Ok(Self { folder, log })
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// Starts it, and waits until it listens.
    pub(crate) fn start(self) -> anyhow::Result<Larder> {
        let config = self.folder.path().join("mirror.toml");
        let mut command = command(self.folder.path(), &["serve", "--json", "--config"]);
        let level = if self.log == Log::On { "info" } else { "warn" };
        command.arg(config).env("LARDER_LOG", level).stderr(File::create(self.log_file())?).stdout(Stdio::piped());
        let began = Instant::now();
        let mut running = Running::start(&mut command).context("larder does not start")?;
        let out = running.child().stdout.take().context("its output is piped")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        let started_in = began.elapsed();
        let told = || fs::read_to_string(self.log_file()).unwrap_or_default();
        let said: serde_json::Value = serde_json::from_str(&line).with_context(told)?;
        let address = |key: &str| anyhow::Ok(said[key].as_str().unwrap_or_default().parse::<SocketAddr>()?);
        let (address, admin) = (address("listen")?, address("admin")?);
        Ok(Larder { home: self, running, address, admin, started_in })
    }
}

impl Larder {
    pub(crate) fn start(upstream: &Upstream, tls: Option<&Certificate>, log: Log) -> anyhow::Result<Self> {
        Home::new(upstream, tls, log)?.start()
    }

    pub(crate) fn processes(&self) -> Vec<u32> {
        self.running.ids()
    }

    /// A clean stop; what it leaves can be started again.
    pub(crate) fn stop(self) -> Home {
        let Self { home, mut running, .. } = self;
        running.end();
        home
    }
}

/// The path at larder of a path of the registry's protocol.
pub(crate) fn under(path: &str) -> String {
    format!("/registry/{HOST}{path}")
}

/// The path of a `VERSION.json` of the network mirror.
pub(crate) fn mirror_version(name: &str, version: &str) -> String {
    format!("/mirror/{HOST}/acme/{name}/{version}.json")
}
