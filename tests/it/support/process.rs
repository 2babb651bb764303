//! The real binary as a separate process, for signals and `kill -9`.

use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use tokio::time::Instant;

use super::http::{Answer, client, get, send};
use super::larder::{Builder, HOST, LOCK_TIMEOUT};
use super::programs::skip;
use super::{TEST_TIMEOUT, eventually, until};

/// The output of a process, read continuously.
#[derive(Debug, Clone, Default)]
pub(crate) struct CapturedOutput {
    text: Arc<Mutex<String>>,
    is_complete: Arc<AtomicBool>,
}

impl CapturedOutput {
    /// Reads the stream in a thread, until the stream ends.
    fn capture(mut source: impl Read + Send + 'static) -> (Self, JoinHandle<()>) {
        let output = Self::default();
        let shared = output.clone();
        let reading = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = source.read(&mut buffer) {
                shared.text.lock().push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
            shared.is_complete.store(true, Ordering::Release);
        });
        (output, reading)
    }

    /// The output so far.
    pub(crate) fn text(&self) -> String {
        self.text.lock().clone()
    }

    /// The whole output; waits until the process has ended.
    async fn complete(&self) -> String {
        eventually("the end of the output", async || self.is_complete.load(Ordering::Acquire).then_some(())).await;
        self.text()
    }

    /// The first line that contains this text; waits for it, as long as the process may still write it.
    pub(crate) async fn line_with(&self, part: &str) -> String {
        let line = async || {
            let is_complete = self.is_complete.load(Ordering::Acquire);
            let text = self.text();
            let complete_lines = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
            let line = complete_lines.lines().find(|line| line.contains(part)).map(str::to_owned);
            assert!(line.is_some() || !is_complete, "no line with {part:?} in the whole output: {text}");
            line
        };
        eventually(&format!("a line with {part:?}"), line).await
    }

    /// Waits until this text occurs once more than it does now.
    pub(crate) async fn wait_for_another(&self, part: &str) {
        let count = || self.text().matches(part).count();
        let previous = count();
        eventually(&format!("another {part:?}"), async || (count() > previous).then_some(())).await;
    }
}

/// The output and the exit status of a finished command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CommandOutput {
    /// Panics with the output unless the command ended with this exit code.
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

/// The program of `examples/demo.rs`, which `cargo test` builds. `None` after a build of one test alone.
pub(crate) fn demo() -> Option<PathBuf> {
    let demo = Path::new(env!("CARGO_BIN_EXE_larder")).with_file_name("examples").join("demo");
    if !demo.is_file() {
        skip("examples/demo is not built (cargo build --example demo)");
        return None;
    }
    Some(demo)
}

/// The larder binary without this machine's configuration: `home` is its home, cache and configuration folder.
pub(crate) fn command(home: &Path, arguments: &[&str]) -> Command {
    command_of(Path::new(env!("CARGO_BIN_EXE_larder")), home, arguments)
}

/// [`command`] for another binary.
pub(crate) fn command_of(binary: &Path, home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary);
    command
        .args(arguments)
        .env("HOME", home)
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("XDG_CACHE_HOME", home.join("cache"))
        .env_remove("STATE_DIRECTORY")
        .env_remove("LARDER_LOG")
        .env_remove("LARDER_LOG_FORMAT")
        .env_remove("LARDER_CONFIG")
        .env_remove("JOURNAL_STREAM")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for proxy in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
        command.env_remove(proxy).env_remove(proxy.to_uppercase());
    }
    command
}

/// Starts a program that was just copied. A process that another test starts at that moment has the copy open for writing
/// until it executes its own program.
fn unless_busy<T>(mut start: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match start() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy && Instant::now() < deadline => {
                std::thread::yield_now();
            }
            started => return started,
        }
    }
}

/// Runs a command to its end.
pub(crate) async fn run(mut command: Command) -> CommandOutput {
    let subject = format!("{command:?}");
    let output = tokio::task::spawn_blocking(move || unless_busy(|| command.output()).unwrap());
    let Ok(output) = tokio::time::timeout(TEST_TIMEOUT, output).await else {
        panic!("the command does not end: {subject}")
    };
    let output = output.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    CommandOutput { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A process that is killed when this is dropped.
pub(crate) struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl KillOnDrop {
    /// Sends the process a signal.
    pub(crate) fn send(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Stops the process; waits until none of its threads runs.
    pub(crate) async fn stop(&self) {
        self.send(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.0.id());
        let is_stopped = |task: std::fs::DirEntry| {
            let status = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            status.rsplit(") ").next().is_some_and(|state| state.starts_with('T'))
        };
        until("the process has stopped", async || {
            std::fs::read_dir(&tasks).unwrap().all(|task| is_stopped(task.unwrap()))
        })
        .await;
    }

    /// The process id.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id().try_into().unwrap()).unwrap()
    }

    /// Writes to the standard input of the process, which is a pipe.
    pub(crate) fn type_keys(&mut self, keys: &[u8]) {
        self.0.stdin.as_mut().unwrap().write_all(keys).unwrap();
    }

    /// Closes the standard input of the process, if it is a pipe.
    pub(crate) fn close_input(&mut self) {
        drop(self.0.stdin.take());
    }

    /// Waits until the process ends by itself; returns its exit code.
    pub(crate) async fn wait_for_exit(&mut self) -> Option<i32> {
        eventually("the process ends", async || self.0.try_wait().unwrap()).await.code()
    }
}

/// Starts a command that keeps running; returns the process, its standard output and its standard error.
pub(crate) fn spawn_captured(mut command: Command) -> (KillOnDrop, CapturedOutput, CapturedOutput) {
    let mut child = command.spawn().unwrap();
    let (out, _) = CapturedOutput::capture(child.stdout.take().unwrap());
    let (err, _) = CapturedOutput::capture(child.stderr.take().unwrap());
    (KillOnDrop(child), out, err)
}

/// The errors in a JSON report, in the form in which commands without `--json` write them to standard error.
pub(crate) fn errors_in(report: &serde_json::Value) -> String {
    let errors = report["errors"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str);
    errors.map(|error| format!("larder: {error}\n")).collect()
}

/// A running `larder serve`. Killed when dropped.
pub(crate) struct Process {
    child: Child,
    announcement: serde_json::Value,
    log: CapturedOutput,
}

impl Process {
    /// Starts the binary with the configuration that a builder describes, and waits until it listens.
    pub(crate) fn start(builder: &Builder, folder: &Path) -> Self {
        Self::try_start(builder, folder).unwrap_or_else(|error| panic!("larder did not start: {error}"))
    }

    /// Starts larder; the error is what larder wrote to standard error if it ended instead.
    pub(crate) fn try_start(builder: &Builder, folder: &Path) -> Result<Self, String> {
        Self::serve(&builder.config_text(), folder).map_err(|output| output.err)
    }

    /// Starts larder with this configuration; the error is its output if it ended before it listened.
    pub(crate) fn serve(config: &str, folder: &Path) -> Result<Self, CommandOutput> {
        Self::serve_with(config, folder, |_| {})
    }

    /// Starts larder with this configuration, after `adjust` has changed the command.
    pub(crate) fn serve_with(
        config: &str,
        folder: &Path,
        adjust: impl FnOnce(&mut Command),
    ) -> Result<Self, CommandOutput> {
        let file = folder.join("mirror.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = command(folder, &["serve", "--json"]);
        command.arg("--config").arg(&file);
        adjust(&mut command);
        Self::spawn(command)
    }

    /// Starts larder by a shell that runs a preparation first; larder gets the process id of the shell.
    pub(crate) fn serve_after(preparation: &str, builder: &Builder, folder: &Path) -> Result<Self, CommandOutput> {
        let file = folder.join("mirror.toml");
        std::fs::write(&file, builder.config_text()).unwrap();
        let larder = command(folder, &["serve", "--json", "--config"]);
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(format!("{preparation} && exec \"$@\"")).arg("sh").arg(larder.get_program());
        shell.args(larder.get_args()).arg(&file);
        for (name, value) in larder.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::spawn(shell)
    }

    /// Starts a `larder serve` command; tries again while an old process still holds the lock of the store.
    pub(crate) fn spawn(mut command: Command) -> Result<Self, CommandOutput> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match Self::spawn_once(&mut command) {
                Err(output) if output.err.contains("in use by another larder") && Instant::now() < deadline => {}
                started => return started,
            }
        }
    }

    /// The output of a second larder with this configuration, which ends because the first one runs.
    pub(crate) fn start_second(config: &str, folder: &Path) -> CommandOutput {
        let file = folder.join("second.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = command(folder, &["serve", "--json", "--config"]);
        command.arg(&file);
        Self::spawn_once(&mut command).err().expect("two larders run on one store")
    }

    fn spawn_once(command: &mut Command) -> Result<Self, CommandOutput> {
        let mut child = unless_busy(|| command.spawn()).unwrap();
        let (log, reading) = CapturedOutput::capture(child.stderr.take().unwrap());
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let report = serde_json::from_str::<serde_json::Value>(&line).unwrap_or_default();
        if report.get("base").is_none() {
            let code = child.wait().unwrap().code();
            reading.join().unwrap();
            return Err(CommandOutput { code, err: format!("{}{}", errors_in(&report), log.text()), out: line });
        }
        Ok(Self { child, announcement: report, log })
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The JSON line that larder printed when it began to listen.
    pub(crate) fn announcement(&self) -> &serde_json::Value {
        &self.announcement
    }

    /// The base URL for clients.
    pub(crate) fn base(&self) -> &str {
        self.announcement["base"].as_str().unwrap()
    }

    /// `http://ADDRESS` of the admin listener.
    pub(crate) fn admin(&self) -> String {
        format!("http://{}", self.announcement["admin"].as_str().unwrap())
    }

    /// The standard error of larder.
    pub(crate) fn log(&self) -> &CapturedOutput {
        &self.log
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        get(&format!("{}{path}", self.base())).await
    }

    pub(crate) async fn try_get(&self, path: &str) -> Result<Answer, reqwest::Error> {
        send(client().get(format!("{}{path}", self.base()))).await
    }

    /// The download document of acme/NAME 1.2.0 for linux_amd64.
    pub(crate) async fn document(&self, name: &str) -> Answer {
        self.get(&format!("/registry/{HOST}/v1/providers/acme/{name}/1.2.0/download/linux/amd64")).await
    }

    /// The path of the archive that the download document of acme/NAME 1.2.0 names.
    pub(crate) async fn archive_path(&self, name: &str) -> String {
        self.document(name).await.expect(200).json()["download_url"].as_str().unwrap().to_owned()
    }

    /// Resident memory in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Peak resident memory in bytes.
    pub(crate) fn peak_resident_bytes(&self) -> u64 {
        self.memory("VmHWM:")
    }

    /// Anonymous memory in bytes.
    pub(crate) fn anonymous_bytes(&self) -> u64 {
        self.memory("RssAnon:")
    }

    fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
    }

    /// The first value of a metric; 0 if it is absent.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = get(&format!("{}/metrics", self.admin())).await.expect(200).text();
        let line = text.lines().find(|line| line.split(['{', ' ']).next() == Some(name));
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    /// Limits the size of larder's files: writes beyond it fail as on a full disk. Needs no root and no disk of its own.
    /// `None` lifts the limit.
    pub(crate) fn limit_file_size(&self, bytes: Option<u64>) {
        prlimit(Some(self.pid()), Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
    }

    /// SIGKILL; waits until the process is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM; waits and returns the exit code.
    pub(crate) async fn terminate(mut self) -> Option<i32> {
        self.send_sigterm();
        self.wait_for_exit().await
    }

    /// SIGTERM; asserts exit code 0, and that running downloads ended in the time that they get. Larder logs a line if
    /// they did not.
    pub(crate) async fn terminate_promptly(self) {
        let log = self.log.clone();
        assert_eq!(self.terminate().await, Some(0));
        let log = log.complete().await;
        assert!(!log.contains("did not end in time"), "{log}");
    }

    /// SIGTERM, without waiting.
    pub(crate) fn send_sigterm(&self) {
        self.send(Signal::TERM);
    }

    /// SIGHUP: larder reads its configuration again.
    pub(crate) fn send_sighup(&self) {
        self.send(Signal::HUP);
    }

    fn send(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Limits larder's open file descriptors (files and sockets); `None` restores 1024.
    pub(crate) fn limit_open_files(&self, max_descriptors: Option<u64>) {
        prlimit(
            Some(self.pid()),
            Resource::Nofile,
            Rlimit { current: max_descriptors.or(Some(1024)), maximum: Some(1024) },
        )
        .unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap()).unwrap()
    }

    /// Waits until larder ends; returns its exit code.
    pub(crate) async fn wait_for_exit(&mut self) -> Option<i32> {
        eventually("the process ends", async || self.child.try_wait().unwrap()).await.code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
