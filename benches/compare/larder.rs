//! Larder, as the release binary: with its own store, in front of the registry.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use crate::Bench;
use crate::process::Running;
use crate::support::fleet_setup::FleetSetup;
use crate::support::larder::HOST;
use crate::support::postgres::RUN_ROLE;
use crate::support::process::command_of;
use crate::tls::Certificate;

/// Logging of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Log {
    On,
    Off,
}

/// A folder with a configuration and a store, which outlives the process.
pub(crate) struct Home {
    folder: TempDir,
    binary: PathBuf,
    log: Log,
}

/// A running larder.
pub(crate) struct Larder {
    pub(crate) home: Home,
    running: Running,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Home {
    pub(crate) fn new(bench: &Bench, tls: Option<&Certificate>, log: Log) -> anyhow::Result<Self> {
        Self::in_front_of(bench, &format!("http://{}/", bench.upstream.address()), tls, log)
    }

    /// A home whose larder mirrors this registry.
    pub(crate) fn in_front_of(
        bench: &Bench,
        registry: &str,
        tls: Option<&Certificate>,
        log: Log,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("compare-larder-").tempdir()?;
        let tls = tls.map_or(String::new(), |tls| {
            format!("tls = {{ certificate = {:?}, key = {:?} }}\n", tls.certificate_file, tls.key_file)
        });
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n{tls}[admin]\nlisten = \"127.0.0.1:0\"\n\
             [store]\npath = {:?}\nscrub = \"never\"\n[[upstream]]\nhost = \"{HOST}\"\nurl = \"{registry}\"\n\
             fresh = {{ versions = \"1h\", discovery = \"1h\", download = \"24h\" }}\n",
            folder.path().join("store"),
        );
        fs::write(folder.path().join("mirror.toml"), text)?;
        Ok(Self { folder, binary: bench.binary.clone(), log })
    }

    /// Writes a file next to the configuration; returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.folder.path().join(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    /// Sets how long version lists are fresh.
    pub(crate) fn versions_fresh_for(self, time: &str) -> anyhow::Result<Self> {
        let config = fs::read_to_string(self.folder.path().join("mirror.toml"))?;
        self.file("mirror.toml", &config.replace("versions = \"1h\"", &format!("versions = \"{time}\"")))?;
        Ok(self)
    }

    /// Adds sections.
    pub(crate) fn added(self, sections: &str) -> anyhow::Result<Self> {
        let config = fs::read_to_string(self.folder.path().join("mirror.toml"))?;
        self.file("mirror.toml", &format!("{config}{sections}"))?;
        Ok(self)
    }

    /// Adds a `[network]` section with these lines.
    pub(crate) fn network(self, lines: &str) -> anyhow::Result<Self> {
        self.added(&format!("[network]\n{lines}\n"))
    }

    /// Makes it a replica of a fleet.
    pub(crate) fn replica(self, setup: &FleetSetup) -> anyhow::Result<Self> {
        let lines = setup.lines(self.folder.path(), RUN_ROLE);
        self.network(&format!("allow_private = [\"127.0.0.1\"]\nca_file = {:?}", setup.bucket.ca_file()))?.added(&lines)
    }

    /// Replaces the options of `[store]` except the path.
    pub(crate) fn store(self, lines: &str) -> anyhow::Result<Self> {
        let config = fs::read_to_string(self.folder.path().join("mirror.toml"))?;
        let (begin, after_path) = config.split_once("scrub = ").context("it has a [store]")?;
        let (_, end) = after_path.split_once("[[upstream]]").context("it has an upstream")?;
        self.file("mirror.toml", &format!("{begin}scrub = \"never\"\n{lines}\n[[upstream]]{end}"))?;
        Ok(self)
    }

    /// The bearer token of the admin listener.
    pub(crate) fn token(&self) -> anyhow::Result<String> {
        Ok(fs::read_to_string(self.folder.path().join("store/admin-token"))?)
    }

    /// A command that asks the larder of this home.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command_of(&self.binary, self.folder.path(), arguments);
        command.arg("--config").arg(self.folder.path().join("mirror.toml"));
        command
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// The number of stored archives.
    pub(crate) fn archive_count(&self) -> usize {
        let mut files = 0;
        let mut folders = vec![self.folder.path().join("store/v1/blobs")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() { folders.push(path) } else { files += 1 }
            }
        }
        files
    }

    /// Starts larder, and waits until it listens.
    pub(crate) fn start(self) -> anyhow::Result<Larder> {
        self.start_under(None)
    }

    /// The same, under this valgrind, which writes its profiles into the folder.
    pub(crate) fn start_under(self, valgrind: Option<&Path>) -> anyhow::Result<Larder> {
        let config = self.folder.path().join("mirror.toml");
        let mut command = command_of(valgrind.unwrap_or(&self.binary), self.folder.path(), &[]);
        if valgrind.is_some() {
            command.args(["--tool=callgrind", "--instr-atstart=no"]).arg(&self.binary).current_dir(self.folder.path());
        }
        command.args(["serve", "--json", "--config"]);
        let level = if self.log == Log::On { "info" } else { "warn" };
        command.arg(config).env("LARDER_LOG", level).stderr(File::create(self.log_file())?).stdout(Stdio::piped());
        let mut running = Running::start(&mut command).context("larder does not start")?;
        let out = running.child().stdout.take().context("its output is piped")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        let log_text = || fs::read_to_string(self.log_file()).unwrap_or_default();
        let report: serde_json::Value = serde_json::from_str(&line).with_context(log_text)?;
        let [address, admin] = ["listen", "admin"].map(|key| report[key].as_str().unwrap_or_default().parse());
        Ok(Larder { home: self, running, address: address?, admin: admin? })
    }
}

impl Larder {
    pub(crate) fn start(bench: &Bench, tls: Option<&Certificate>, log: Log) -> anyhow::Result<Self> {
        Home::new(bench, tls, log)?.start()
    }

    pub(crate) fn processes(&self) -> Vec<u32> {
        self.running.ids()
    }

    /// Stops larder cleanly; its home can be started again.
    pub(crate) fn stop(self) -> anyhow::Result<Home> {
        let Self { home, mut running, .. } = self;
        let ended = running.end();
        ensure!(ended.is_some_and(|status| status.success()), "larder stopped with {ended:?}");
        Ok(home)
    }

    /// Kills larder with SIGKILL; its home can be started again.
    pub(crate) fn kill(self) -> Home {
        let Self { home, mut running, .. } = self;
        running.kill();
        home
    }
}

/// The path at larder for this path of the registry.
pub(crate) fn larder_path(path: &str) -> String {
    format!("/registry/{HOST}{path}")
}

/// The path of a `VERSION.json` of the network mirror.
pub(crate) fn mirror_version_path(name: &str, version: &str) -> String {
    format!("/mirror/{HOST}/acme/{name}/{version}.json")
}
