//! The larder under test: a process that is killed and restarted on one store, its log, its memory and its descriptors.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::ledger::{BrokenPromise, Ledger};
use crate::support::process::command;

/// The limit of a start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval of memory samples.
const MEMORY_SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// One process of larder, as clients see it. Each restart has the next number.
#[derive(Clone, Debug, Default)]
pub(crate) struct LarderProcess {
    pub(crate) number: u32,
    /// The URL of the main listener.
    pub(crate) base: String,
    /// The URL of the admin listener.
    pub(crate) admin: String,
    is_running: bool,
}

/// The resources that the process has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResourceUsage {
    /// Largest resident memory, mapped files included.
    pub(crate) max_resident_kib: u64,
    pub(crate) max_anonymous_kib: u64,
    pub(crate) memory_samples: u64,
    pub(crate) max_descriptors: usize,
    pub(crate) descriptors: usize,
    pub(crate) log_errors: usize,
}

/// The processes of larder, one after the other on one store.
pub(crate) struct LarderProcesses {
    home: PathBuf,
    config: PathBuf,
    child: Mutex<Option<Child>>,
    process: watch::Sender<LarderProcess>,
    usage: Mutex<ResourceUsage>,
    ledger: Arc<Ledger>,
}

impl LarderProcesses {
    pub(crate) fn new(home: &Path, config: &str, ledger: &Arc<Ledger>) -> anyhow::Result<Self> {
        let file = home.join("mirror.toml");
        fs::write(&file, config)?;
        Ok(Self {
            home: home.to_owned(),
            config: file,
            child: Mutex::new(None),
            process: watch::Sender::new(LarderProcess::default()),
            usage: Mutex::default(),
            ledger: Arc::clone(ledger),
        })
    }

    /// Starts larder, and waits until it listens.
    pub(crate) async fn start(&self) -> anyhow::Result<()> {
        let number = self.process.borrow().number + 1;
        let log = File::create(self.log_file(number))?;
        let mut command = command(&self.home, &["serve", "--json", "--config"]);
        let mut child =
            command.arg(&self.config).env("LARDER_LOG", "warn").stdout(Stdio::piped()).stderr(log).spawn()?;
        let out = child.stdout.take().context("its output is piped")?;
        *self.child.lock() = Some(child);
        let line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(out).read_line(&mut line).map(|_| line)
        });
        let line = tokio::time::timeout(START_TIMEOUT, line).await.context("larder does not listen in time")???;
        let Ok(report) = serde_json::from_str::<serde_json::Value>(&line) else {
            bail!("larder did not start: {}", fs::read_to_string(self.log_file(number)).unwrap_or_default());
        };
        let text = |key: &str| report[key].as_str().unwrap_or_default().to_owned();
        let admin = format!("http://{}", text("admin"));
        self.process.send_replace(LarderProcess { number, base: text("base"), admin, is_running: true });
        Ok(())
    }

    /// The running process; waits until there is one.
    pub(crate) async fn wait_until_running(&self) -> LarderProcess {
        let mut process = self.process.subscribe();
        // The sender lives in `self`.
        process.wait_for(|process| process.is_running).await.map(|process| process.clone()).unwrap_or_default()
    }

    /// True while this process has not been killed by the test.
    pub(crate) fn is_running(&self, process: &LarderProcess) -> bool {
        let current = self.process.borrow();
        current.is_running && current.number == process.number
    }

    /// The number of processes so far.
    pub(crate) fn number(&self) -> u32 {
        self.process.borrow().number
    }

    /// Kills larder with SIGKILL.
    pub(crate) fn kill(&self) {
        self.sample_resources();
        self.process.send_modify(|process| process.is_running = false);
        if let Some(mut child) = self.child.lock().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.read_log();
    }

    /// Stops larder with SIGTERM; returns the exit code.
    pub(crate) async fn terminate(&self) -> Option<i32> {
        self.sample_resources();
        self.process.send_modify(|process| process.is_running = false);
        let mut child = self.child.lock().take()?;
        let process = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        let ended = tokio::task::spawn_blocking(move || {
            for _ in 0..600 {
                if let Ok(Some(status)) = child.try_wait() {
                    return status.code();
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            let _ = child.kill();
            let _ = child.wait();
            None
        });
        let code = ended.await.ok().flatten();
        self.read_log();
        code
    }

    /// Samples the resources of the process, and checks that it runs.
    pub(crate) fn sample_resources(&self) {
        let mut child = self.child.lock();
        let Some(child) = child.as_mut() else { return };
        if let Ok(Some(status)) = child.try_wait() {
            let process = self.process.borrow().clone();
            if process.is_running {
                self.ledger.record_broken(BrokenPromise::ProcessEnded, format!("process {}: {status}", process.number));
            }
            return;
        }
        let process = PathBuf::from(format!("/proc/{}", child.id()));
        let max_resident_kib = memory_kib(&process, "VmHWM:");
        let descriptors = fs::read_dir(process.join("fd")).map_or(0, Iterator::count);
        let mut usage = self.usage.lock();
        usage.max_resident_kib = usage.max_resident_kib.max(max_resident_kib);
        usage.max_descriptors = usage.max_descriptors.max(descriptors);
        usage.descriptors = descriptors;
    }

    /// Samples the anonymous memory, and compares each sample with the limit. Runs until it is cancelled.
    pub(crate) async fn watch_memory(&self, max_kib: u64) {
        let mut ticks = tokio::time::interval(MEMORY_SAMPLE_INTERVAL);
        loop {
            ticks.tick().await;
            let Some(id) = self.child.lock().as_ref().map(Child::id) else { continue };
            let kib = memory_kib(Path::new(&format!("/proc/{id}")), "RssAnon:");
            let process = self.process.borrow().number;
            let mut usage = self.usage.lock();
            usage.max_anonymous_kib = usage.max_anonymous_kib.max(kib);
            usage.memory_samples += 1;
            if kib > max_kib {
                self.ledger.record_broken(
                    BrokenPromise::MemoryLimitExceeded,
                    format!("{} MiB in process {process}", kib >> 10),
                );
            }
        }
    }

    pub(crate) fn usage(&self) -> ResourceUsage {
        *self.usage.lock()
    }

    fn log_file(&self, number: u32) -> PathBuf {
        self.home.join(format!("larder-{number}.log"))
    }

    fn read_log(&self) {
        let number = self.process.borrow().number;
        let text = fs::read(self.log_file(number)).unwrap_or_default();
        for line in String::from_utf8_lossy(&text).lines() {
            if line.contains("panicked at") {
                self.ledger.record_broken(BrokenPromise::Panicked, format!("process {number}: {line}"));
            }
            if line.contains("ERROR") {
                self.usage.lock().log_errors += 1;
            }
        }
    }
}

/// A figure of a process's memory; 0 once it is gone.
fn memory_kib(process: &Path, field: &str) -> u64 {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let figure = status.lines().find_map(|line| line.strip_prefix(field));
    figure.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

impl Drop for LarderProcesses {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.lock().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
