//! `larder run` as a user without larder has it: a home of their own, a folder with a configuration, a fake registry.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::larder::{Folder, HOST};
use super::ports::free_port;
use super::process::{CommandOutput, command_of, run};
use super::programs::find;
use super::upstream::FakeUpstream;

/// The arguments of `terraform init` in automation.
pub(crate) const INIT: [&str; 4] = ["terraform", "init", "-no-color", "-input=false"];

/// A user's home and working folder. Their names have spaces.
pub(crate) struct RunSetup {
    root: Folder,
}

impl RunSetup {
    /// A user whose larder mirrors `upstream` as registry.terraform.io.
    pub(crate) fn new(upstream: &FakeUpstream) -> Self {
        Self::with_config(&format!("[[upstream]]\nhost = \"{HOST}\"\nurl = \"{}/\"\n", upstream.origin()))
    }

    /// A user with these lines in their mirror.toml.
    pub(crate) fn with_config(lines: &str) -> Self {
        let setup = Self { root: Folder::new() };
        for folder in ["home", "tmp", "work"] {
            std::fs::create_dir_all(setup.path(folder)).unwrap();
        }
        // Nothing of this machine may answer on the usual ports.
        let listeners = format!(
            "[server]\nlisten = \"127.0.0.1:{}\"\n[admin]\nlisten = \"127.0.0.1:{}\"\n",
            free_port(),
            free_port()
        );
        setup.write("home/config/larder/mirror.toml", &format!("{listeners}{lines}"));
        setup
    }

    /// `None` where the real client is missing.
    pub(crate) fn with_terraform(upstream: &FakeUpstream) -> Option<Self> {
        find("terraform").map(|_| Self::new(upstream))
    }

    /// A path in one of the folders `home`, `tmp` and `work`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let folders =
            "a user's folders, with a path that is longer than that of a Unix socket can be: it has 107 bytes at most";
        self.root.path().join(folders).join(name)
    }

    /// The folder of the store.
    pub(crate) fn store(&self) -> PathBuf {
        self.path("home/cache/larder")
    }

    /// Writes a file, and its folder.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Reads a file.
    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Writes a configuration that requires these providers, and removes what an earlier `init` left.
    pub(crate) fn require(&self, providers: &[&str]) -> &Self {
        let lines = providers
            .iter()
            .enumerate()
            .map(|(number, source)| format!("    p{number} = {{ source = \"{source}\" }}\n"));
        let text = format!("terraform {{\n  required_providers {{\n{}  }}\n}}\n", lines.collect::<String>());
        self.write("work/main.tf", &text);
        let _ = std::fs::remove_dir_all(self.path("work/.terraform"));
        let _ = std::fs::remove_file(self.path("work/.terraform.lock.hcl"));
        self
    }

    /// `larder run OPTIONS -- CLIENT`, in a session without a terminal. The tests themselves may run in the background, where a
    /// shell ignores signals; `run` would pass that on.
    pub(crate) fn command(&self, options: &[&str], client: &[&str]) -> Command {
        let larder = ["--default-signal", "setsid", env!("CARGO_BIN_EXE_larder"), "run"];
        self.command_of("env", &[&larder[..], options, &["--"], client].concat())
    }

    /// The client alone, without larder.
    pub(crate) fn plain_command(&self, client: &[&str]) -> Command {
        self.command_of(client[0], &client[1..])
    }

    /// Another command of larder.
    pub(crate) fn larder_command(&self, arguments: &[&str]) -> Command {
        self.command_of(env!("CARGO_BIN_EXE_larder"), arguments)
    }

    /// `larder run -- CLIENT` in a new terminal, with what is written to its standard input as the keys. The path of larder
    /// and the client must be words that a shell does not read in another way.
    pub(crate) fn terminal_command(&self, client: &str) -> Command {
        let larder = format!("exec {} run -- {client}", env!("CARGO_BIN_EXE_larder"));
        self.command_of(
            "env",
            &["--default-signal", "script", "--quiet", "--return", "--command", &larder, "/dev/null"],
        )
    }

    fn command_of(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = command_of(Path::new(program), &self.path("home"), arguments);
        self.adjust(&mut command);
        command
    }

    /// Removes this machine's own configuration of clients from the environment of a command.
    pub(crate) fn adjust(&self, command: &mut Command) {
        command.current_dir(self.path("work")).env("TMPDIR", self.path("tmp")).env("CHECKPOINT_DISABLE", "1");
        for name in ["TF_CLI_CONFIG_FILE", "TERRAFORM_CONFIG", "TF_PLUGIN_CACHE_DIR", "TF_LOG", "TF_DATA_DIR"] {
            command.env_remove(name);
        }
    }

    /// Runs the client to its end, and asserts that nothing is left.
    pub(crate) async fn run(&self, options: &[&str], client: &[&str]) -> CommandOutput {
        let output = run(self.command(options, client)).await;
        self.assert_nothing_left();
        output
    }

    /// Runs `terraform init`, which must succeed; returns all that a terminal shows.
    pub(crate) async fn init(&self, options: &[&str]) -> String {
        let output = self.run(options, &INIT).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        output.err
    }

    /// Runs a shell script as the client; returns its standard output, which must be all that larder leaves there.
    pub(crate) async fn script(&self, script: &str) -> CommandOutput {
        self.run(&[], &["sh", "-c", script]).await
    }

    /// Asserts that neither a temporary file nor a process of a run is left.
    pub(crate) fn assert_nothing_left(&self) {
        let left: Vec<PathBuf> =
            std::fs::read_dir(self.path("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        assert_eq!(self.processes(), Vec::<String>::new(), "processes left behind");
    }

    /// The command lines of the processes of runs.
    pub(crate) fn processes(&self) -> Vec<String> {
        processes_with(&self.path("tmp"))
    }

    /// The hashes in the lock file: `h1:`, `zh:`.
    pub(crate) fn locked_hashes(&self) -> (usize, usize) {
        let lock = self.read("work/.terraform.lock.hcl");
        (lock.matches("\"h1:").count(), lock.matches("\"zh:").count())
    }
}

/// The command lines of processes that have this folder as TMPDIR.
fn processes_with(folder: &Path) -> Vec<String> {
    let marker = format!("TMPDIR={}", folder.display());
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let ours = processes.filter(|process| {
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == marker.as_bytes())
    });
    ours.map(|process| {
        String::from_utf8_lossy(&std::fs::read(process.join("cmdline")).unwrap_or_default()).replace('\0', " ")
    })
    .collect()
}
