//! The real binary as a process of its own, for what only a process can suffer: signals and `kill -9`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::http::{Answer, client, get, send};
use super::larder::Builder;

/// A running `larder serve`. Killed when dropped.
pub(crate) struct Process {
    child: Child,
    base: String,
    admin: String,
}

impl Process {
    /// Starts the binary with the configuration that a builder describes, and waits until it listens.
    pub(crate) fn start(builder: &Builder, folder: &Path) -> Self {
        Self::try_start(builder, folder).unwrap_or_else(|said| panic!("larder did not start: {said}"))
    }

    /// The same; what it said where it ended instead.
    pub(crate) fn try_start(builder: &Builder, folder: &Path) -> Result<Self, String> {
        let file = folder.join("mirror.toml");
        std::fs::write(&file, builder.config_text()).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_larder"))
            .args(["serve", "--json", "--config"])
            .arg(&file)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Ok(said) = serde_json::from_str::<serde_json::Value>(&line) else {
            let output = child.wait_with_output().unwrap();
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        };
        // Nobody reads its log; a full pipe must not stop it.
        let mut log = child.stderr.take().unwrap();
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let text = |name: &str| said[name].as_str().unwrap().to_owned();
        Ok(Self { child, base: text("base"), admin: format!("http://{}", text("admin")) })
    }

    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    pub(crate) fn admin(&self) -> &str {
        &self.admin
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        get(&format!("{}{path}", self.base)).await
    }

    pub(crate) async fn try_get(&self, path: &str) -> Result<Answer, reqwest::Error> {
        send(client().get(format!("{}{path}", self.base))).await
    }

    /// `kill -9`, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and the exit code it ends with.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        self.signal();
        self.child.wait().unwrap().code()
    }

    /// SIGTERM alone.
    pub(crate) fn signal(&self) {
        let status = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
