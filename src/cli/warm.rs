//! `larder warm`: starts a job and shows its progress: bars on a terminal, a line for each finished archive, totals and a
//! summary.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use anyhow::bail;
use bytesize::ByteSize;
use clap::Args;
use indicatif::ProgressBar;
use tokio::time::Instant;

use super::admin_service::{StoreNeed, config_to_ask, with_larder};
use super::order::OrderArgs;
use super::terminal::{
    TerminalLines, TextPage, bar_line_width, escape_for_terminal, format_seconds, plural, width_of_stdout,
};
use super::{
    CommonOptions, Interrupted, StopSignals, block_on, catch_file_size_signal, print_error, print_json, print_line,
};
use crate::address::Hostname;
use crate::config::Config;
use crate::http::admin_client::{AdminClient, AdminClientError};
use crate::jobs::job_report::{ItemCounts, ItemState, Job, JobItem, JobState};
use crate::protocol::admin::order::OrderRequest;
use crate::protocol::admin::{JOBS, WARM};

/// Interval between two requests for the job's state.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Added to the interval for each item, because every report lists all items.
const POLL_INTERVAL_PER_ITEM: Duration = Duration::from_micros(200);

#[derive(Debug, Args)]
pub(super) struct Warm {
    #[command(flatten)]
    order: OrderArgs,
    /// Exempt the fetched packages from eviction
    #[arg(long)]
    pin: bool,
}

impl Warm {
    /// Runs the job; returns true if everything is stored now.
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<bool> {
        let config = config_to_ask(common)?;
        let mut order = self.order.options.to_order(&self.order.names, &config.default_host(), &[])?;
        order.pin |= self.pin;
        let output = if common.json { WarmOutput::Json } else { WarmOutput::Lines };
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
        let job = tokio::select! {
            started = larder.post(WARM, order) => larder.parse(&started?)?,
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
            answer => Ok(self.larder.parse(&answer?)?),
        }
    }

    /// Shows the progress until the job ends; returns the finished job.
    async fn watch(mut self, output: WarmOutput, interrupts: &mut StopSignals) -> anyhow::Result<Job> {
        let mut display = WarmDisplay::new(output, self.host.clone());
        let mut is_stopped = false;
        loop {
            display.show(&self.job);
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
    lines: TerminalLines,
    prints_lines: bool,
    reported: HashSet<usize>,
    speeds: Speeds,
}

/// The speeds of the archives that arrive. Bytes that were there before, as of a download that is resumed, are no speed.
#[derive(Default)]
struct Speeds {
    /// Of each archive, the bytes at first sight, and a bar that measures and is not shown.
    of_items: HashMap<usize, (u64, ProgressBar)>,
    total: Option<ProgressBar>,
}

impl Speeds {
    /// Looks at a job. The first bytes of an archive that is seen count from the next look on.
    fn look(&mut self, job: &Job) {
        let mut arrived = 0u64;
        let arriving =
            |item: &JobItem| item.bytes > 0 && matches!(item.state, ItemState::Fetching | ItemState::Fetched);
        for (number, item) in job.items.iter().enumerate().filter(|(_, item)| arriving(item)) {
            let (first, bar) = self.of_items.entry(number).or_insert_with(|| (item.bytes, ProgressBar::hidden()));
            let bytes = item.bytes.saturating_sub(*first);
            bar.set_position(bytes);
            arrived = arrived.saturating_add(bytes);
        }
        self.total.get_or_insert_with(ProgressBar::hidden).set_position(arrived);
    }

    /// The speed of an archive, in bytes per second.
    fn of(&self, number: usize) -> u64 {
        self.of_items.get(&number).map_or(0, |(_, bar)| bar.per_sec() as u64)
    }

    /// The speed of all archives together, in bytes per second.
    fn total(&self) -> u64 {
        self.total.as_ref().map_or(0, |bar| bar.per_sec() as u64)
    }
}

impl WarmDisplay {
    fn new(output: WarmOutput, host: Hostname) -> Self {
        Self {
            host,
            lines: TerminalLines::of_messages(),
            prints_lines: output == WarmOutput::Lines,
            reported: HashSet::new(),
            speeds: Speeds::default(),
        }
    }

    fn show(&mut self, job: &Job) {
        let finished =
            newly_finished_lines(job, &self.host, &mut self.reported, width_of_stdout()).filter(|_| self.prints_lines);
        finished.iter().for_each(|lines| print_line(lines));
        if self.lines.bar.is_hidden() {
            return;
        }
        if job.state.has_ended() {
            // Nothing arrives any more, also of an archive that a cancelled job did not finish.
            return self.lines.bar.set_message("");
        }
        self.speeds.look(job);
        let (total, width) = (JobProgress::of(job), bar_line_width());
        let mut lines = bars(job, &self.host, |number| self.speeds.of(number), width);
        lines.push(total.line(self.speeds.total(), width));
        self.lines.bar.set_message(lines.join("\n"));
    }
}

/// Maximum number of progress bars shown at once.
const MAX_BARS: usize = 8;
/// Shortest bar; names are shortened to keep it.
const MIN_BAR_WIDTH: usize = 6;
const MAX_BAR_WIDTH: usize = 40;
/// Columns for the longest size text, `700.0 KiB of 2.0 GiB`.
const BYTES_WIDTH: usize = 20;
/// Columns for the longest speed text, `1023.9 MiB/s`.
const SPEED_WIDTH: usize = 12;
const STATE_WIDTH: usize = 9;

/// Renders one bar for each archive in flight, at most [`MAX_BARS`]. `speed` is in bytes per second.
fn bars(job: &Job, host: &Hostname, speed: impl Fn(usize) -> u64, width: usize) -> Vec<String> {
    let is_in_flight = |item: &JobItem| matches!(item.state, ItemState::Resolving | ItemState::Fetching);
    let items = job.items.iter().enumerate().filter(|(_, item)| is_in_flight(item)).take(MAX_BARS);
    let named: Vec<_> = items.map(|(number, item)| (number, item, full_name(item, host))).collect();
    // Names get their width first, and the bar takes the rest.
    let available = width.saturating_sub(BYTES_WIDTH + SPEED_WIDTH + 8);
    let longest_name = named.iter().map(|(.., name)| name.chars().count()).max().unwrap_or(0);
    let name_width = longest_name.min(available.saturating_sub(MIN_BAR_WIDTH));
    let bar_width = (available - name_width).min(MAX_BAR_WIDTH);
    let line = |(number, item, name): (usize, &JobItem, String)| {
        let (share, bytes) = match (&item.state, item.size_bytes) {
            (ItemState::Resolving, _) => (None, "resolving".to_owned()),
            (_, Some(size)) => (Some((item.bytes, size)), bytes_of_size(item.bytes, size)),
            (_, None) if item.bytes == 0 => (None, "fetching".to_owned()),
            (_, None) => (None, ByteSize(item.bytes).to_string()),
        };
        let speed = match speed(number) {
            0 => String::new(),
            speed => format!("{}/s", ByteSize(speed)),
        };
        let (name, bar) = (shorten_start(&name, name_width), bar(share, bar_width));
        truncate(format!("  {name:name_width$}  {bar}  {bytes:>BYTES_WIDTH$}  {speed:>SPEED_WIDTH$}"), width)
    };
    named.into_iter().map(line).collect()
}

/// Renders `[====>    ]` in `width` columns; empty for an unknown share.
fn bar(share: Option<(u64, u64)>, width: usize) -> String {
    let inside = width.saturating_sub(2);
    let filled = share
        .map_or(0, |(done, total)| (u128::from(done.min(total)) * inside as u128 / u128::from(total.max(1))) as usize);
    let head = if filled > 0 && filled < inside { ">" } else { "" };
    let done = "=".repeat(filled.saturating_sub(head.len()));
    format!("[{:inside$}]", format!("{done}{head}"))
}

/// Renders `1.2 of 3.4 MiB`.
fn bytes_of_size(bytes: u64, size: u64) -> String {
    let (arrived, total) = (ByteSize(bytes).to_string(), ByteSize(size).to_string());
    match (arrived.rsplit_once(' '), total.rsplit_once(' ')) {
        (Some((number, unit)), Some((_, total_unit))) if unit == total_unit => format!("{number} of {total}"),
        _ => format!("{arrived} of {total}"),
    }
}

fn full_name(item: &JobItem, host: &Hostname) -> String {
    escape_for_terminal(&item.package.without(host).to_string())
}

/// Drops the beginning of a long name: its end is more specific.
fn shorten_start(name: &str, width: usize) -> String {
    match name.chars().count() {
        length if length > width => "…".chars().chain(name.chars().skip(length + 1 - width)).take(width).collect(),
        _ => name.to_owned(),
    }
}

fn truncate(line: String, width: usize) -> String {
    line.chars().take(width).collect::<String>().trim_end().to_owned()
}

/// Progress of the whole job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct JobProgress {
    /// Archives that are finished, and archives in total.
    ended: (usize, usize),
    /// Bytes fetched, and bytes to fetch as far as sizes are available.
    bytes: (u64, Option<u64>),
    /// True while some sizes are unavailable; each of those counts as the average of the others.
    is_estimate: bool,
    /// True while the job still resolves its requirements, so more archives may follow.
    is_growing: bool,
}

impl JobProgress {
    fn of(job: &Job) -> Self {
        let all = job.items.len();
        let ended = job.items.iter().filter(|item| item.state.has_ended()).count();
        let to_fetch = || job.items.iter().filter(|item| !needs_no_fetch(&item.state));
        let sizes: Vec<u64> = to_fetch().filter_map(|item| item.size_bytes).collect();
        let known = sizes.iter().fold(0u64, |sum, size| sum.saturating_add(*size));
        let unknown = (to_fetch().count() - sizes.len()) as u64;
        let average = known.checked_div(sizes.len() as u64);
        let size = average.map(|average| known.saturating_add(average.saturating_mul(unknown)));
        let fetched = to_fetch().fold(0u64, |sum, item| sum.saturating_add(item.bytes));
        let is_growing = job.resolving;
        Self { ended: (ended, all), bytes: (fetched, size), is_estimate: unknown > 0 || is_growing, is_growing }
    }

    /// Renders the last line: bar, counts, speed and time left.
    fn line(&self, speed: u64, width: usize) -> String {
        let Self { ended: (ended, all), bytes: (fetched, size), is_estimate, is_growing } = *self;
        let sign = if is_estimate { "~" } else { "" };
        let bytes = size.filter(|size| *size > 0).map_or_else(
            || ByteSize(fetched).to_string(),
            |size| format!("{} of {sign}{}", ByteSize(fetched), ByteSize(size)),
        );
        let speed_text = if speed > 0 { format!("  {}/s", ByteSize(speed)) } else { String::new() };
        let seconds_left = size.and_then(|size| size.saturating_sub(fetched).checked_div(speed));
        let time_left = seconds_left
            .filter(|_| ended < all && !is_growing)
            .map_or_else(String::new, |left| format!("  {sign}{} left", format_seconds(left)));
        let so_far = if is_growing { " so far" } else { "" };
        let text = format!("{ended}/{}{so_far}  {bytes}{speed_text}{time_left}", plural(all as u64, "archive"));
        let available = width.saturating_sub(text.chars().count() + 4).min(MAX_BAR_WIDTH);
        let share = size.map_or((ended as u64, all as u64), |size| (fetched, size));
        let bar = if available < 6 { String::new() } else { format!("{}  ", bar(Some(share), available)) };
        truncate(format!("  {bar}{text}"), width)
    }
}

/// True for an archive that needs no fetch, or whose fetch failed or was cancelled.
fn needs_no_fetch(state: &ItemState) -> bool {
    matches!(state, ItemState::AlreadyStored | ItemState::Failed { .. } | ItemState::Cancelled)
}

/// Renders the archives that finished since the last call. Adds their positions to `reported`.
fn newly_finished_lines(
    job: &Job,
    host: &Hostname,
    reported: &mut HashSet<usize>,
    width: Option<usize>,
) -> Option<String> {
    let mut page = TextPage::of_width(width);
    let reported_before = reported.len();
    for (number, item) in job.items.iter().enumerate().filter(|(_, item)| item.state.has_ended()) {
        if reported.insert(number) {
            add_finished_item(&mut page, item, host);
        }
    }
    (reported.len() > reported_before).then(|| page.text())
}

fn add_finished_item(page: &mut TextPage, item: &JobItem, host: &Hostname) {
    let size = item.size_bytes.map(|size| format!("  {}", ByteSize(size))).unwrap_or_default();
    let (state_text, size, note) = match &item.state {
        ItemState::AlreadyStored => ("stored", size, item.unconfirmed.as_ref()),
        ItemState::Fetched => ("fetched", size, item.unconfirmed.as_ref()),
        ItemState::Cancelled => ("cancelled", String::new(), None),
        ItemState::Failed { error } => ("FAILED", String::new(), Some(error)),
        ItemState::Waiting | ItemState::Resolving | ItemState::Fetching => return,
    };
    page.outcome(&format!("{state_text:STATE_WIDTH$} "), &format!("{}{size}", full_name(item, host)), note);
}

/// Renders the final counts of a job.
fn summary(job: &Job, took: Duration) -> String {
    let ItemCounts { all, already_stored, fetched, failed, cancelled } =
        ItemCounts::of(job.items.iter().map(|item| &item.state));
    let fetched_items = job.items.iter().filter(|item| matches!(item.state, ItemState::Fetched));
    let bytes: u64 = fetched_items.filter_map(|item| item.size_bytes).fold(0, u64::saturating_add);
    let counts =
        [(already_stored, "already stored"), (fetched, "fetched"), (failed, "failed"), (cancelled, "cancelled")];
    let text: Vec<String> = counts
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, label)| format!("{number} {label}"))
        .collect();
    let all = plural(all, "archive");
    let text = if text.is_empty() { all } else { format!("{all}: {}", text.join(", ")) };
    let fetched =
        if bytes > 0 { format!("; {} in {}", ByteSize(bytes), format_seconds(took.as_secs())) } else { String::new() };
    let pinned = job.pin && job.state == JobState::Done;
    format!("{text}{fetched}{}", if pinned { "; pinned" } else { "" })
}

/// Renders the notes of a job about documents that upstream did not confirm, such as a stale version list.
fn notes(job: &Job, width: Option<usize>) -> Option<String> {
    let mut page = TextPage::of_width(width);
    job.unconfirmed.iter().for_each(|reason| page.push_with_prefix("note: ", &escape_for_terminal(reason)));
    (!job.unconfirmed.is_empty()).then(|| page.text())
}

/// Renders the message for a cancelled job.
fn stopped_message(job: &Job) -> String {
    let stored = job.items.iter().filter(|item| item.state.was_stored()).count();
    format!(
        "stopped: {}; the same command continues",
        if stored == 1 { "1 archive is stored".to_owned() } else { format!("{stored} archives are stored") }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::PackageRef;
    use crate::clock::Timestamp;

    fn item(subject: &str, state: ItemState, bytes: u64, size_bytes: Option<u64>) -> JobItem {
        JobItem {
            package: PackageRef { platform: Some("linux_amd64".to_owned()), ..PackageRef::requested(subject) },
            state,
            bytes,
            size_bytes,
            unconfirmed: None,
        }
    }

    fn job(items: Vec<JobItem>) -> Job {
        let state = JobState::Running;
        let (started, ended, ordered, platforms) = (Timestamp(0), None, vec![], vec!["linux_amd64".to_owned()]);
        Job {
            id: "1".to_owned(),
            state,
            started,
            ended,
            ordered,
            platforms,
            pin: false,
            resolving: false,
            unconfirmed: vec![],
            items,
        }
    }

    const AWS: &str = "registry.terraform.io/hashicorp/aws@5.31.0";
    const LONG: &str =
        "registry.corp.example:8443/a-namespace-that-is-long/a-provider-with-a-very-long-name@12.34.56-rc.1";
    const MIB: u64 = 1 << 20;

    fn host() -> Hostname {
        Hostname::parse("registry.terraform.io").unwrap()
    }

    fn busy_job() -> Job {
        let failed = ItemState::Failed { error: "the archive of x: https://x.example answered 500".to_owned() };
        job(vec![
            item(AWS, ItemState::Fetching, 45 * MIB, Some(120 * MIB)),
            item(LONG, ItemState::Fetching, 700 * 1024, Some(2048 * MIB)),
            item("registry.terraform.io/acme/null", ItemState::Resolving, 0, None),
            item("registry.terraform.io/acme/a@1.0.0", ItemState::Fetching, MIB, None),
            item("registry.terraform.io/acme/b@1.0.0", ItemState::Waiting, 0, None),
            item("registry.terraform.io/acme/c@1.0.0", ItemState::AlreadyStored, 0, Some(MIB)),
            item("registry.terraform.io/acme/d@1.0.0", failed, 0, Some(MIB)),
            item("registry.terraform.io/acme/e@1.0.0", ItemState::Fetched, 5 * MIB, Some(5 * MIB)),
        ])
    }

    #[test]
    fn bytes_that_were_there_before_are_no_speed() {
        let (mut speeds, mut job) = (Speeds::default(), busy_job());
        let arrived = |speeds: &Speeds| speeds.total.as_ref().unwrap().position();
        speeds.look(&job);
        assert_eq!(arrived(&speeds), 0, "a resumed download begins with what it has");
        (job.items[0].bytes, job.items[1].bytes) = (46 * MIB, 701 * 1024);
        speeds.look(&job);
        assert_eq!(arrived(&speeds), MIB + 1024);
        // A cancelled archive arrives no more.
        job.items[0].state = ItemState::Cancelled;
        speeds.look(&job);
        assert_eq!(arrived(&speeds), 1024);
    }

    #[test]
    fn bars_fit_the_terminal_and_show_name_size_and_speed() {
        for width in [30, 60, 80, 120, 160, 200] {
            let lines = bars(&busy_job(), &host(), |_| 12 * MIB + 1, width);
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}: {lines:#?}");
            assert_eq!(lines.len(), 4);
            let total = JobProgress::of(&busy_job()).line(24 * MIB, width);
            assert!(total.chars().count() <= width, "{width}: {total}");
        }
        let bars_of = |width| {
            bars(
                &busy_job(),
                &host(),
                |number| if busy_job().items[number].bytes > 0 { 12 * MIB + 1 } else { 0 },
                width,
            )
        };
        assert_eq!(
            bars_of(80),
            [
                "  hashicorp/aws 5.31.0 (linux_amd64)  [>   ]     45.0 of 120.0 MiB    12.0 MiB/s",
                "  …-name 12.34.56-rc.1 (linux_amd64)  [    ]  700.0 KiB of 2.0 GiB    12.0 MiB/s",
                "  acme/null (linux_amd64)             [    ]             resolving",
                "  acme/a 1.0.0 (linux_amd64)          [    ]               1.0 MiB    12.0 MiB/s",
            ]
        );
        assert!(bars_of(180)[0].starts_with("  hashicorp/aws 5.31.0 (linux_amd64) "), "{:#?}", bars_of(180));
    }

    #[test]
    fn the_total_estimates_unknown_sizes() {
        let total = JobProgress::of(&busy_job());
        // Three sizes are given; the three others count as their average.
        let known_sizes = (120 + 2048 + 5) * MIB;
        let fetched = (45 + 1 + 5) * MIB + 700 * 1024;
        assert_eq!(
            total,
            JobProgress {
                ended: (3, 8),
                bytes: (fetched, Some(known_sizes + known_sizes / 3 * 3)),
                is_estimate: true,
                is_growing: false
            }
        );
        let line = total.line(10 * MIB, 160);
        assert!(line.ends_with("3/8 archives  51.7 MiB of ~4.2 GiB  10.0 MiB/s  ~7 min left"), "{line}");
        let done =
            job(vec![item(AWS, ItemState::Fetched, MIB, Some(MIB)), item("a", ItemState::AlreadyStored, 0, None)]);
        assert_eq!(
            JobProgress::of(&done).line(MIB, 80),
            "  [===============================]  2/2 archives  1.0 MiB of 1.0 MiB  1.0 MiB/s"
        );
        assert_eq!(
            JobProgress::of(&job(vec![])).line(0, 80).trim(),
            "[                                      ]  0/0 archives  0 B"
        );
    }

    #[test]
    fn the_total_of_a_resolving_job_is_marked_so_far() {
        let mut job = busy_job();
        (job.resolving, job.unconfirmed) = (true, vec!["the version list of a/b\u{1b}[2J".to_owned()]);
        let line = JobProgress::of(&job).line(10 * MIB, 120);
        assert!(line.contains("3/8 archives so far  51.7 MiB of ~4.2 GiB") && !line.contains("left"), "{line}");
        assert_eq!(notes(&job, None), Some("note: the version list of a/b\\u{1b}[2J".to_owned()));
        let mut module = item("r.example/acme/net/test@1.0.0", ItemState::Fetching, 0, None);
        module.package.platform = None;
        job.items = vec![module];
        let bars = bars(&job, &host(), |_| 0, 80);
        assert!(bars[0].starts_with("  r.example/acme/net/test 1.0.0  [") && bars[0].ends_with("fetching"), "{bars:?}");
    }

    #[test]
    fn a_finished_archive_is_printed_once_with_its_text_escaped() {
        let mut job = busy_job();
        job.items[6].state = ItemState::Failed { error: "sent \u{1b}[2J".to_owned() };
        let mut reported = HashSet::new();
        let expected = [
            "stored    acme/c 1.0.0 (linux_amd64)  1.0 MiB",
            "FAILED    acme/d 1.0.0 (linux_amd64)",
            "          sent \\u{1b}[2J",
            "fetched   acme/e 1.0.0 (linux_amd64)  5.0 MiB",
        ];
        assert_eq!(newly_finished_lines(&job, &host(), &mut reported, None), Some(expected.join("\n")));
        assert_eq!(newly_finished_lines(&job, &host(), &mut reported, None), None);
        job.items[1].state = ItemState::Cancelled;
        let shown = newly_finished_lines(&job, &host(), &mut reported, Some(80)).unwrap();
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[0].starts_with("cancelled registry.corp") && lines[1].starts_with("          "), "{lines:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:?}");
        let text = summary(&job, Duration::from_secs(61));
        assert_eq!(text, "8 archives: 1 already stored, 1 fetched, 1 failed, 1 cancelled; 5.0 MiB in 1 min");
        assert!(stopped_message(&job).starts_with("stopped: 2 archives are stored"));
    }
}
