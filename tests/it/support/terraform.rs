//! The real client: finds the `terraform` binary and runs it with a time limit, in a folder and with a home and a CLI
//! configuration of its own. The client gets nothing of this machine's configuration but PATH.

#![expect(clippy::disallowed_methods, reason = "the client's folders are no store, and its environment is made here")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use super::programs::{find, skip};

const TIME_LIMIT: Duration = Duration::from_secs(120);

/// An installed client.
#[derive(Clone, Debug)]
pub(crate) struct Terraform {
    binary: PathBuf,
}

impl Terraform {
    /// `terraform` on PATH. A missing binary is printed; with `LARDER_REQUIRE_CLIENT=1` it is a panic.
    pub(crate) fn find() -> Option<Self> {
        Self::find_named("terraform")
    }

    /// The client of this name on PATH (such as `tofu`), or the client at this path.
    pub(crate) fn find_named(name: &str) -> Option<Self> {
        find(name).map(|binary| Self { binary })
    }

    /// `terraform` of at least this version (major, minor). Prints a note and returns `None` for an older one.
    pub(crate) fn find_since(major: u64, minor: u64) -> Option<Self> {
        let client = Self::find()?;
        let output = Command::new(&client.binary).args(["version", "-json"]).env("CHECKPOINT_DISABLE", "1").output();
        let version = output.expect("the client starts").stdout;
        let version: serde_json::Value = serde_json::from_slice(&version).expect("its version as JSON");
        let version = version["terraform_version"].as_str().expect("a version").to_owned();
        let mut numbers = version.split('.').map(|number| number.parse::<u64>().unwrap_or_default());
        if (numbers.next(), numbers.next()) < (Some(major), Some(minor)) {
            skip(&format!("terraform is {version}, and {major}.{minor} is needed"));
            return None;
        }
        Some(client)
    }

    /// A new, empty folder to run this client in.
    pub(crate) fn workspace(&self) -> Workspace {
        Workspace::new(self)
    }
}

/// The result of a client run.
#[derive(Debug)]
pub(crate) struct ClientOutput {
    /// The exit status.
    pub(crate) status: ExitStatus,
    /// Standard output and standard error, as a terminal would show them.
    pub(crate) text: String,
}

impl ClientOutput {
    /// The text on one line, without the frame that the client draws around messages.
    pub(crate) fn one_line(&self) -> String {
        self.text.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
    }

    /// Panics with the client's output unless the client succeeded.
    pub(crate) fn expect_success(self) -> Self {
        assert!(self.status.success(), "the client failed ({}):\n{}", self.status, self.text);
        self
    }

    /// Panics with the client's output unless the client failed.
    pub(crate) fn expect_failure(self) -> Self {
        assert!(!self.status.success(), "the client succeeded:\n{}", self.text);
        self
    }
}

/// A folder with a configuration, removed when dropped.
pub(crate) struct Workspace {
    binary: PathBuf,
    root: TempDir,
    requirements: Vec<(String, String)>,
    environment: Vec<(String, String)>,
}

impl Workspace {
    /// A folder without configuration files.
    pub(crate) fn new(client: &Terraform) -> Self {
        let root = tempfile::Builder::new().prefix("larder-client-").tempdir().expect("a temporary folder");
        let workspace = Self { binary: client.binary.clone(), root, requirements: Vec::new(), environment: Vec::new() };
        for folder in ["home", "tmp", "work"] {
            fs::create_dir(workspace.root.path().join(folder)).expect("a folder in a temporary folder");
        }
        workspace.cli_config("");
        workspace
    }

    /// The folder in which the client runs.
    pub(crate) fn path(&self) -> PathBuf {
        self.root.path().join("work")
    }

    /// Requires one more provider, by source address and constraint, in `main.tf`.
    pub(crate) fn require(&mut self, source: &str, constraint: &str) -> &mut Self {
        self.requirements.push((source.to_owned(), constraint.to_owned()));
        let lines = self.requirements.iter().enumerate().map(|(number, (source, constraint))| {
            format!("    p{number} = {{ source = \"{source}\", version = \"{constraint}\" }}\n")
        });
        let text = format!("terraform {{\n  required_providers {{\n{}  }}\n}}\n", lines.collect::<String>());
        self.file("main.tf", &text)
    }

    /// Writes a file of the configuration.
    pub(crate) fn file(&mut self, name: &str, text: &str) -> &mut Self {
        fs::write(self.path().join(name), text).expect("a file in a temporary folder");
        self
    }

    /// Writes the CLI configuration; replaces the previous one.
    pub(crate) fn cli_config(&self, text: &str) -> &Self {
        fs::write(self.root.path().join("cli.tfrc"), text).expect("a file in a temporary folder");
        self
    }

    /// Makes the client trust this certificate authority and no other.
    pub(crate) fn trust(&mut self, ca_pem: &str) -> &mut Self {
        let file = self.root.path().join("ca.pem");
        fs::write(&file, ca_pem).expect("a file in a temporary folder");
        self.env("SSL_CERT_FILE", &file.to_string_lossy())
    }

    /// Sets a variable in the client's environment.
    pub(crate) fn env(&mut self, name: &str, value: &str) -> &mut Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs `init` as automation does.
    pub(crate) async fn init(&self) -> ClientOutput {
        self.run(&["init", "-no-color", "-input=false"]).await
    }

    /// Runs the client to its end; after two minutes, or when this future is dropped, it is killed.
    pub(crate) async fn run(&self, arguments: &[&str]) -> ClientOutput {
        self.run_binary(&self.binary, arguments).await
    }

    /// Runs another client here, as [`Self::run`] does.
    pub(crate) async fn run_with(&self, client: &Terraform, arguments: &[&str]) -> ClientOutput {
        self.run_binary(&client.binary, arguments).await
    }

    async fn run_binary(&self, binary: &Path, arguments: &[&str]) -> ClientOutput {
        let log = self.root.path().join("output.txt");
        let child = self.command(binary, arguments, &log).spawn().expect("the client starts");
        let mut running = Running::of(child.id());
        let mut child = child;
        let exit = tokio::task::spawn_blocking(move || child.wait());
        let exit = tokio::time::timeout(TIME_LIMIT, exit).await;
        let text = String::from_utf8_lossy(&fs::read(&log).expect("the client's output")).into_owned();
        let Ok(exit) = exit else {
            panic!("{arguments:?} took more than {TIME_LIMIT:?} and was killed:\n{text}");
        };
        running.group = None;
        let status = exit.expect("waiting does not panic").expect("the client can be waited for");
        ClientOutput { status, text }
    }

    /// The lock file; empty if there is none.
    pub(crate) fn lock_file(&self) -> String {
        fs::read_to_string(self.path().join(".terraform.lock.hcl")).unwrap_or_default()
    }

    /// Removes installed packages and the lock file.
    pub(crate) fn remove_lock_and_installed(&self) {
        self.remove_installed();
        // Either may be absent.
        let _ = fs::remove_file(self.path().join(".terraform.lock.hcl"));
    }

    /// Removes installed packages and keeps the lock file.
    pub(crate) fn remove_installed(&self) {
        let _ = fs::remove_dir_all(self.path().join(".terraform"));
    }

    fn command(&self, binary: &Path, arguments: &[&str], log: &Path) -> Command {
        use std::os::unix::process::CommandExt;

        let log = File::create(log).expect("a file in a temporary folder");
        let root = self.root.path();
        let mut command = Command::new(binary);
        command
            .args(arguments)
            .current_dir(self.path())
            // The client inherits nothing of the environment: no proxy, no token, no plugin cache.
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", root.join("home"))
            .env("TMPDIR", root.join("tmp"))
            .env("CHECKPOINT_DISABLE", "1")
            .env("TF_IN_AUTOMATION", "1")
            .env("TF_CLI_CONFIG_FILE", root.join("cli.tfrc"))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("another handle of an open file"))
            .stderr(log)
            .process_group(0);
        command
    }
}

/// The process group of a running client, killed when dropped unless the client has ended.
struct Running {
    group: Option<Pid>,
}

impl Running {
    fn of(process: u32) -> Self {
        Self { group: i32::try_from(process).ok().and_then(Pid::from_raw) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // The group may have ended by itself.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// A `host` block that sends everything for `host` to these two service URLs.
pub(crate) fn host_override(host: &str, providers_url: &str, modules_url: &str) -> String {
    format!(
        "host \"{host}\" {{\n  services = {{\n    \"providers.v1\" = \"{providers_url}\"\n    \
         \"modules.v1\" = \"{modules_url}\"\n  }}\n}}\n"
    )
}

/// A `provider_installation` block that installs from this network mirror only.
pub(crate) fn network_mirror(url: &str) -> String {
    format!("provider_installation {{\n  network_mirror {{\n    url = \"{url}\"\n  }}\n}}\n")
}
