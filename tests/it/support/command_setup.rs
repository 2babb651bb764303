//! A configuration file with fixed ports, so that commands can find the larder, in a temporary home directory.

use std::path::PathBuf;

use serde_json::Value;

use super::larder::{Folder, HOST};
use super::ports::free_port;
use super::process::{CommandOutput, Process, command, run};
use super::upstream::FakeUpstream;

/// A configuration with fixed ports, and its home directory.
pub(crate) struct CommandSetup {
    pub(crate) home: Folder,
    /// The text of the configuration file.
    pub(crate) text: String,
    listen: u16,
}

impl CommandSetup {
    pub(crate) fn new(upstream: &FakeUpstream) -> Self {
        Self::with_admin(upstream, &format!("listen = \"127.0.0.1:{}\"", free_port()))
    }

    /// The setup with this port for the admin listener.
    pub(crate) fn with_admin_port(upstream: &FakeUpstream, port: u16) -> Self {
        Self::with_admin(upstream, &format!("listen = \"127.0.0.1:{port}\""))
    }

    /// The setup with these lines in `[admin]`.
    pub(crate) fn with_admin(upstream: &FakeUpstream, admin: &str) -> Self {
        let (home, listen) = (Folder::new(), free_port());
        let store = home.path().display();
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:{listen}\"\n[admin]\n{admin}\n[store]\npath = \"{store}\"\n\
             [[upstream]]\nhost = \"{HOST}\"\nurl = \"{}/\"\n",
            upstream.origin()
        );
        Self { home, text, listen }
    }

    /// Writes the configuration file; returns its path.
    pub(crate) fn file(&self) -> PathBuf {
        let file = self.home.path().join("mirror.toml");
        // A command that runs beside this one must not find an empty file.
        if std::fs::read_to_string(&file).ok().as_ref() != Some(&self.text) {
            std::fs::write(&file, &self.text).unwrap();
        }
        file
    }

    /// Starts larder with this configuration.
    pub(crate) fn serve(&self) -> Process {
        Process::serve(&self.text, self.home.path()).unwrap_or_else(|error| panic!("{error:?}"))
    }

    /// Runs `larder ARGUMENTS` with this configuration.
    pub(crate) async fn run(&self, arguments: &[&str]) -> CommandOutput {
        let file = self.file();
        let arguments = [arguments, &["--config", file.to_str().unwrap()]].concat();
        run(command(self.home.path(), &arguments)).await
    }

    /// Runs a command that must succeed; returns its standard output.
    pub(crate) async fn stdout_of(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        assert_eq!(output.code, Some(0), "{arguments:?}: {output:?}");
        output.out
    }

    /// Runs `larder accept` as a script does: first for the evidence, then with it. Returns what it prints at last.
    pub(crate) async fn accept(&self, address: &str) -> String {
        let shown = self.run(&["accept", address]).await;
        if shown.code == Some(0) {
            return shown.out;
        }
        assert_eq!(shown.code, Some(2), "{shown:?}");
        let evidence = shown.err.split("--evidence ").nth(1).unwrap().trim().to_owned();
        self.stdout_of(&["accept", address, "--evidence", &evidence]).await
    }

    /// The base URL for clients.
    pub(crate) fn base(&self) -> String {
        format!("http://127.0.0.1:{}", self.listen)
    }
}

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}
