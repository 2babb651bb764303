//! The real binary as a separate process, for signals and `kill -9`.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use tokio::time::Instant;

use super::http::{Answer, client, get, send};
use super::larder::{Builder, HOST, LOCK_LINGERS};
use super::{HANGS_AFTER, eventually};

/// The output of a process, read continuously.
#[derive(Debug, Clone, Default)]
pub(crate) struct Output {
    text: Arc<Mutex<String>>,
    is_whole: Arc<AtomicBool>,
}

impl Output {
    /// Reads in a thread that ends with the stream.
    fn of(mut from: impl Read + Send + 'static) -> (Self, JoinHandle<()>) {
        let output = Self::default();
        let shared = output.clone();
        let reading = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = from.read(&mut buffer) {
                shared.text.lock().push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
            shared.is_whole.store(true, Ordering::Release);
        });
        (output, reading)
    }

    /// Everything so far.
    pub(crate) fn text(&self) -> String {
        self.text.lock().clone()
    }

    /// Everything, once the process has ended.
    async fn whole(&self) -> String {
        eventually("the end of the output", async || self.is_whole.load(Ordering::Acquire).then_some(())).await;
        self.text()
    }

    /// The first line with this text in it, once it is there.
    pub(crate) async fn line_with(&self, part: &str) -> String {
        let line = async || {
            let text = self.text();
            let whole = &text[..text.rfind('\n')? + 1];
            whole.lines().find(|line| line.contains(part)).map(str::to_owned)
        };
        eventually(&format!("a line with {part:?}"), line).await
    }

    /// Waits until one more line with this text in it is there than now.
    pub(crate) async fn line_with_another(&self, part: &str) {
        let count = || self.text().matches(part).count();
        let before = count();
        eventually(&format!("another {part:?}"), async || (count() > before).then_some(())).await;
    }
}

/// The output and the exit status of a finished command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// The binary with nothing of this machine's configuration: `home` is its home, cache and configuration folder.
pub(crate) fn command(home: &Path, arguments: &[&str]) -> Command {
    command_of(Path::new(env!("CARGO_BIN_EXE_larder")), home, arguments)
}

/// A command of another binary.
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

/// Runs a command to its end.
pub(crate) async fn run(mut command: Command) -> CommandOutput {
    let subject = format!("{command:?}");
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    let Ok(output) = tokio::time::timeout(HANGS_AFTER, output).await else { panic!("it does not end: {subject}") };
    let output = output.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    CommandOutput { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A process that is killed when this is dropped.
pub(crate) struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Killed {
    /// Sends it a signal.
    pub(crate) fn send(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.0.id().try_into().unwrap()).unwrap(), signal).unwrap();
    }

    /// The exit code, once it has ended by itself.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        eventually("the process ends", async || self.0.try_wait().unwrap()).await.code()
    }
}

/// Starts a command that keeps running; returns its standard output and its standard error.
pub(crate) fn serving(mut command: Command) -> (Killed, Output, Output) {
    let mut child = command.spawn().unwrap();
    let (out, _) = Output::of(child.stdout.take().unwrap());
    let (err, _) = Output::of(child.stderr.take().unwrap());
    (Killed(child), out, err)
}

/// The errors of a command that prints JSON, as another one writes them to its standard error.
pub(crate) fn errors_in(report: &serde_json::Value) -> String {
    let errors = report["errors"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str);
    errors.map(|error| format!("larder: {error}\n")).collect()
}

/// A running `larder serve`. Killed when dropped.
pub(crate) struct Process {
    child: Child,
    said: serde_json::Value,
    log: Output,
}

impl Process {
    /// Starts the binary with the configuration that a builder describes, and waits until it listens.
    pub(crate) fn start(builder: &Builder, folder: &Path) -> Self {
        Self::try_start(builder, folder).unwrap_or_else(|error| panic!("larder did not start: {error}"))
    }

    /// Starts larder; the error is its output where it ended instead.
    pub(crate) fn try_start(builder: &Builder, folder: &Path) -> Result<Self, String> {
        Self::serve(&builder.config_text(), folder).map_err(|output| output.err)
    }

    /// Starts the binary with this configuration; the error is its output where it ended before it listened.
    pub(crate) fn serve(config: &str, folder: &Path) -> Result<Self, CommandOutput> {
        Self::serve_with(config, folder, |_| {})
    }

    /// Starts it with another environment.
    pub(crate) fn serve_with(
        config: &str,
        folder: &Path,
        also: impl FnOnce(&mut Command),
    ) -> Result<Self, CommandOutput> {
        let file = folder.join("mirror.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = command(folder, &["serve", "--json", "--config"]);
        also(&mut command);
        command.arg(&file);
        Self::spawn(command)
    }

    /// Starts it by a shell that runs a preparation first; the binary keeps the shell's process id.
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

    /// The command as it is; once more where the lock of a store lingers.
    pub(crate) fn spawn(mut command: Command) -> Result<Self, CommandOutput> {
        let deadline = Instant::now() + LOCK_LINGERS;
        loop {
            match Self::spawn_once(&mut command) {
                Err(output) if output.err.contains("in use by another larder") && Instant::now() < deadline => {}
                started => return started,
            }
        }
    }

    /// The output of a second larder with this configuration, which ends because the first one runs.
    pub(crate) fn second(config: &str, folder: &Path) -> CommandOutput {
        let file = folder.join("second.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = command(folder, &["serve", "--json", "--config"]);
        command.arg(&file);
        Self::spawn_once(&mut command).err().expect("two larders run on one store")
    }

    fn spawn_once(command: &mut Command) -> Result<Self, CommandOutput> {
        let mut child = command.spawn().unwrap();
        let (log, reading) = Output::of(child.stderr.take().unwrap());
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let report = serde_json::from_str::<serde_json::Value>(&line).unwrap_or_default();
        if report.get("base").is_none() {
            let code = child.wait().unwrap().code();
            reading.join().unwrap();
            return Err(CommandOutput { code, err: format!("{}{}", errors_in(&report), log.text()), out: line });
        }
        Ok(Self { child, said: report, log })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its announcement when it began to listen.
    pub(crate) fn said(&self) -> &serde_json::Value {
        &self.said
    }

    pub(crate) fn base(&self) -> &str {
        self.said["base"].as_str().unwrap()
    }

    /// `http://ADDRESS` of the admin listener.
    pub(crate) fn admin(&self) -> String {
        format!("http://{}", self.said["admin"].as_str().unwrap())
    }

    /// Its standard error.
    pub(crate) fn log(&self) -> &Output {
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

    /// The path of the archive that this document names.
    pub(crate) async fn archive_path(&self, name: &str) -> String {
        self.document(name).await.expect(200).json()["download_url"].as_str().unwrap().to_owned()
    }

    /// Resident memory in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Peak resident memory in bytes.
    pub(crate) fn most_resident_bytes(&self) -> u64 {
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

    /// A figure of the metrics; 0 where there is none.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = get(&format!("{}/metrics", self.admin())).await.expect(200).text();
        let line = text.lines().find(|line| line.split(['{', ' ']).next() == Some(name));
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    /// Limits the size of its files: a disk that is full for every file, on any machine and for any user. `None` lifts
    /// the limit.
    pub(crate) fn let_files_grow_to(&self, bytes: Option<u64>) {
        prlimit(Some(self.pid()), Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
    }

    /// `kill -9`, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and the exit code it ends with.
    pub(crate) async fn terminate(mut self) -> Option<i32> {
        self.signal();
        self.ended().await
    }

    /// SIGTERM, and a good end without waiting until the time for running downloads is over: that would be in the log.
    pub(crate) async fn terminate_at_once(self) {
        let log = self.log.clone();
        assert_eq!(self.terminate().await, Some(0));
        let log = log.whole().await;
        assert!(!log.contains("did not end in time"), "{log}");
    }

    /// SIGTERM alone.
    pub(crate) fn signal(&self) {
        self.send(Signal::TERM);
    }

    /// SIGHUP: the configuration is read again.
    pub(crate) fn hang_up(&self) {
        self.send(Signal::HUP);
    }

    fn send(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Lets it open no further file and no further socket. `None` ends that.
    pub(crate) fn let_open_files_be(&self, most: Option<u64>) {
        prlimit(Some(self.pid()), Resource::Nofile, Rlimit { current: most.or(Some(1024)), maximum: Some(1024) })
            .unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap()).unwrap()
    }

    /// The exit code, once it has ended.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        eventually("the process ends", async || self.child.try_wait().unwrap()).await.code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
