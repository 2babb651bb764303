//! `larder warm`: starts a job and shows its progress.

mod progress_bars;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use self::progress_bars::{
    ItemKey, JobProgress, TransferRate, bars, item_key, newly_finished_lines, notes, stopped_message, summary,
};
use super::larder::{StoreNeed, parse, with_larder};
use super::order::OrderArgs;
use super::progress::TerminalLines;
use super::text::{width_of_stderr, width_of_stdout};
use super::{CommonOptions, Interrupted, block_on, catch_file_size_signal, print_error, print_json, print_line};
use crate::address::Hostname;
use crate::config::Config;
use crate::http::admin_client::{AdminClient, AdminClientError};
use crate::jobs::job_report::{Job, JobState};
use crate::protocol::admin::order::OrderRequest;
use crate::protocol::admin::{JOBS, WARM};

/// Interval between two requests for the job's state.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Added to the interval for each item, because every report lists all items.
const POLL_INTERVAL_PER_ITEM: Duration = Duration::from_micros(200);

#[derive(Debug, Args)]
pub(super) struct Warm {
    #[command(flatten)]
    pub(super) common: CommonOptions,
    #[command(flatten)]
    order: OrderArgs,
    /// Exempt the fetched packages from eviction
    #[arg(long)]
    pin: bool,
}

impl Warm {
    /// Runs the job; returns true if everything is stored now.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let (config, _) = self.common.load()?;
        let mut order = self.order.to_order(&config.default_host())?;
        order.pin |= self.pin;
        let output = if self.common.json { WarmOutput::Json } else { WarmOutput::Lines };
        block_on(warm_and(&config, &order, output, async |_, job| Ok(job.state == JobState::Done)))
    }
}

/// Output of a warm-up besides the bars on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WarmOutput {
    /// One line per archive, and a summary.
    Lines,
    /// The job as JSON, after its end.
    Json,
    /// Nothing: the caller prints the result.
    Quiet,
}

/// Warms an order and shows its progress, then runs `then` with the larder that warmed it and the finished job.
pub(super) async fn warm_and<T>(
    config: &Config,
    order: &OrderRequest,
    output: WarmOutput,
    then: impl AsyncFnOnce(&AdminClient, &Job) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    // Signals are caught from here on, also between two awaits.
    let mut interrupts = StopSignals::catch()?;
    let _file_size_signal = catch_file_size_signal()?;
    with_larder(config, StoreNeed::Any, async |larder| {
        if larder.is_in_process() && output == WarmOutput::Lines {
            let store = config.store.path.display();
            print_error(&format!("no larder runs here, so this command itself fetches into the store {store}"));
        }
        let body = Bytes::from(serde_json::to_vec(order)?);
        let job = tokio::select! {
            started = larder.post(WARM, body) => parse(&started?)?,
            () = interrupts.next() => return Err(interrupted(larder)),
        };
        let watched = WatchedJob { larder, host: config.default_host(), job, began: Instant::now() };
        let job = watched.watch(output, &mut interrupts).await?;
        // The job is finished, so an interrupt now ends the command at once.
        tokio::select! {
            result = then(larder, &job) => result,
            () = interrupts.next() => Err(Interrupted::with_text("stopped")),
        }
    })
    .await
}

/// The error for an interrupt while a job runs.
fn interrupted(larder: &AdminClient) -> anyhow::Error {
    let text = match larder.is_in_process() {
        true => "stopped",
        false => "stopped watching; the running larder may continue the job",
    };
    Interrupted::with_text(text)
}

#[derive(Debug)]
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    fn catch() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("Ctrl-C cannot be caught")?,
            terminate: signal(SignalKind::terminate()).context("SIGTERM cannot be caught")?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// A job that this command watches.
#[derive(Debug)]
struct WatchedJob<'a> {
    larder: &'a AdminClient,
    host: Hostname,
    job: Job,
    began: Instant,
}

impl WatchedJob<'_> {
    fn path(&self) -> String {
        format!("{JOBS}/{}", self.job.id)
    }

    async fn report(&self) -> anyhow::Result<Job> {
        match self.larder.get(&self.path()).await {
            Err(AdminClientError::NotRunning(_)) => {
                bail!("larder has stopped; fetched archives stay, and the job continues when larder is back")
            }
            answer => Ok(parse(&answer?)?),
        }
    }

    /// Shows the progress until the job ends; returns the finished job.
    async fn watch(mut self, output: WarmOutput, interrupts: &mut StopSignals) -> anyhow::Result<Job> {
        let mut display = WarmDisplay::new(output, self.host.clone());
        let mut is_stopped = false;
        loop {
            display.show(&self.job, self.began.elapsed());
            if self.job.state.has_ended() {
                break;
            }
            let pause =
                POLL_INTERVAL + POLL_INTERVAL_PER_ITEM * u32::try_from(self.job.items.len()).unwrap_or(u32::MAX);
            tokio::select! {
                () = tokio::time::sleep(pause) => self.job = self.report().await?,
                () = interrupts.next() => {
                    if std::mem::replace(&mut is_stopped, true) {
                        return Err(interrupted(self.larder));
                    }
                    // The next report shows the cancelled state.
                    if let Err(error) = self.larder.delete(&self.path()).await {
                        print_error(&format!("job {} could not be stopped: {error}", self.job.id));
                    }
                }
            }
        }
        drop(display);
        match output {
            WarmOutput::Json => print_json(&self.job),
            WarmOutput::Lines => {
                notes(&self.job, width_of_stdout()).iter().for_each(|notes| print_line(notes));
                print_line(&summary(&self.job, self.began.elapsed()));
            }
            WarmOutput::Quiet => {}
        }
        if is_stopped {
            print_error(&stopped_message(&self.job));
            return Err(Interrupted(None).into());
        }
        Ok(self.job)
    }
}

/// Draws bars on a terminal, and prints a line for each archive that finished.
struct WarmDisplay {
    host: Hostname,
    bars: Option<TerminalLines>,
    prints_lines: bool,
    reported: HashSet<usize>,
    item_speeds: HashMap<ItemKey, TransferRate>,
    total_speed: TransferRate,
}

impl WarmDisplay {
    fn new(output: WarmOutput, host: Hostname) -> Self {
        let bars = width_of_stderr().map(|_| TerminalLines::on_stderr());
        Self {
            host,
            bars,
            prints_lines: output == WarmOutput::Lines,
            reported: HashSet::new(),
            item_speeds: HashMap::new(),
            total_speed: TransferRate::default(),
        }
    }

    fn show(&mut self, job: &Job, elapsed: Duration) {
        let finished =
            newly_finished_lines(job, &self.host, &mut self.reported, width_of_stdout()).filter(|_| self.prints_lines);
        finished.iter().for_each(|lines| print_line(lines));
        let Some(terminal_lines) = &self.bars else { return };
        let mut speeds = std::mem::take(&mut self.item_speeds);
        for item in job.items.iter().filter(|item| !item.state.has_ended()) {
            let mut speed = speeds.remove(&item_key(item)).unwrap_or_default();
            speed.observe(elapsed, item.bytes);
            self.item_speeds.insert(item_key(item), speed);
        }
        let total = JobProgress::of(job);
        self.total_speed.observe(elapsed, total.bytes.0);
        // The terminal may be resized meanwhile. Some terminals wrap in the last column.
        let width = width_of_stderr().unwrap_or(80).saturating_sub(1);
        let mut lines =
            bars(job, &self.host, |name| self.item_speeds.get(name).and_then(TransferRate::per_second), width);
        lines.push(total.line(self.total_speed.per_second(), width));
        terminal_lines.draw(&lines);
    }
}
