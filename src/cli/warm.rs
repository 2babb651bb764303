//! `larder warm`: starts a job and shows its progress: bars on a terminal, a line for each finished archive, totals and a
//! summary.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use anyhow::bail;
use bytesize::ByteSize;
use clap::Args;
use indicatif::ProgressBar;
use serde::de::IgnoredAny;
use tokio::time::Instant;

use super::admin_service::{StoreNeed, config_to_ask, with_larder};
use super::order::OrderArgs;
use super::terminal::{
    TerminalBar, TextPage, bar_line_width, escape_for_terminal, format_seconds, format_speed, has_bars, plural,
    width_of_stdout,
};
use super::{
    CaughtSignals, CommonOptions, Interrupted, block_on, catch_file_size_signal, print_error, print_json, print_line,
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
    let mut interrupts = CaughtSignals::catch_stop()?;
    let _file_size_signal = catch_file_size_signal()?;
    with_larder(config, StoreNeed::Any, async |larder| {
        if output == WarmOutput::Lines {
            say_where_it_fetches(larder, config);
        }
        let job = warm_with(larder, config, order, output, &mut interrupts).await?;
        // The job is finished, so an interrupt now ends the command at once.
        tokio::select! {
            result = then(larder, &job) => result,
            _ = interrupts.next() => Err(Interrupted::with_text("stopped")),
        }
    })
    .await
}

/// Says into which store this command fetches, where no larder runs.
pub(super) fn say_where_it_fetches(larder: &AdminClient, config: &Config) {
    if larder.is_in_process() {
        let store = config.store.path.display();
        print_error(&format!("no larder runs here, so this command itself fetches into the store {store}"));
    }
}

/// Warms an order with this larder and shows its progress; returns the finished job.
pub(super) async fn warm_with(
    larder: &AdminClient,
    config: &Config,
    order: &OrderRequest,
    output: WarmOutput,
    interrupts: &mut CaughtSignals,
) -> anyhow::Result<Job> {
    let job = tokio::select! {
        started = larder.post(WARM, order) => started?,
        _ = interrupts.next() => return Err(interrupted(larder)),
    };
    let watched = WatchedJob { larder, host: config.default_host(), job, began: Instant::now() };
    watched.watch(output, interrupts).await
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
            answer => Ok(answer?),
        }
    }

    /// Shows the progress until the job ends; returns the finished job.
    async fn watch(mut self, output: WarmOutput, interrupts: &mut CaughtSignals) -> anyhow::Result<Job> {
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
                _ = interrupts.next() => {
                    if std::mem::replace(&mut is_stopped, true) {
                        return Err(interrupted(self.larder));
                    }
                    // The next report shows the cancelled state.
                    if let Err(error) = self.larder.delete::<IgnoredAny>(&self.path()).await {
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

/// The last line: the share of all bytes, and a text.
const TOTAL_LINE: &str = "  [{wide_bar}]  {msg}";
/// The line of an archive that arrives: its name, the share of its bytes, a text about them, and its speed.
const ARCHIVE_LINE: &str = "  {prefix}  [{wide_bar}]  {msg:>21}  {speed:>12}";
/// The columns of that line without the name, with the shortest bar.
const ARCHIVE_WIDTH: usize = 2 + 2 + 6 + 2 + 21 + 2 + 12;
/// Fewer columns leave no room for a name: then only the last line is drawn.
const MIN_NAME_WIDTH: usize = 24;
/// Maximum number of archives with a line.
const MAX_LINES: usize = 8;
const STATE_WIDTH: usize = 9;

/// Draws bars on a terminal, and prints a line for each archive that finished.
struct WarmDisplay {
    host: Hostname,
    prints_lines: bool,
    reported: HashSet<usize>,
    archives: BTreeMap<usize, TerminalBar>,
    total: TerminalBar,
    /// Counts the bytes that arrive, and is not shown. Those that were there before, as of a download that is resumed, are no
    /// speed.
    arrived: ProgressBar,
    /// The bytes of each archive at first sight.
    first: HashMap<usize, u64>,
}

impl WarmDisplay {
    fn new(output: WarmOutput, host: Hostname) -> Self {
        Self {
            host,
            prints_lines: output == WarmOutput::Lines,
            reported: HashSet::new(),
            archives: BTreeMap::new(),
            total: TerminalBar::of_template(TOTAL_LINE, Some(0)),
            arrived: ProgressBar::hidden(),
            first: HashMap::new(),
        }
    }

    fn show(&mut self, job: &Job) {
        let finished =
            newly_finished_lines(job, &self.host, &mut self.reported, width_of_stdout()).filter(|_| self.prints_lines);
        finished.iter().for_each(|lines| print_line(lines));
        // Once a job has ended nothing arrives any more, also of an archive that a cancelled one did not finish.
        if has_bars() && !job.state.has_ended() {
            self.draw(job, bar_line_width());
        }
    }

    fn draw(&mut self, job: &Job, width: usize) {
        let most = if width < ARCHIVE_WIDTH + MIN_NAME_WIDTH { 0 } else { MAX_LINES };
        let is_in_flight = |item: &JobItem| matches!(item.state, ItemState::Resolving | ItemState::Fetching);
        let in_flight = job.items.iter().enumerate().filter(|(_, item)| is_in_flight(item)).take(most);
        let shown: Vec<_> = in_flight.map(|(number, item)| (number, item, full_name(item, &self.host))).collect();
        let longest_name = shown.iter().map(|(.., name)| name.chars().count()).max().unwrap_or_default();
        let name_width = longest_name.min(width.saturating_sub(ARCHIVE_WIDTH));
        self.archives.retain(|number, _| shown.iter().any(|(shown, ..)| shown == number));
        for (number, item, name) in shown {
            let line = self.archives.entry(number).or_insert_with(|| self.total.above(ARCHIVE_LINE, item.size_bytes));
            let (name, amount) = (format!("{:name_width$}", shorten_start(&name, name_width)), amount(item));
            if line.0.prefix() != name {
                line.0.set_prefix(name);
            }
            if line.0.message() != amount {
                line.0.set_message(amount);
            }
            if let Some(size) = item.size_bytes.filter(|size| line.0.length() != Some(*size)) {
                line.0.set_length(size);
            }
            let begins = line.0.position() == 0;
            line.0.set_position(item.bytes);
            if begins && item.bytes > 0 {
                // The bytes at first sight may have been there before, as of a download that is resumed: they are no speed.
                line.0.tick();
                line.0.reset_eta();
            }
        }
        let arrived = self.arrived(job);
        self.arrived.set_position(arrived);
        let total = JobProgress::of(job);
        let (share, whole) = total.share();
        let text = total.text(self.arrived.per_sec() as u64);
        self.total.0.set_message(text.chars().take(width.saturating_sub(6)).collect::<String>());
        self.total.0.set_length(whole);
        self.total.0.set_position(share);
    }

    /// The bytes that have arrived since the first sight of their archives.
    fn arrived(&mut self, job: &Job) -> u64 {
        let arriving =
            |item: &JobItem| item.bytes > 0 && matches!(item.state, ItemState::Fetching | ItemState::Fetched);
        let items = job.items.iter().enumerate().filter(|(_, item)| arriving(item));
        let arrived = items.map(|(number, item)| {
            let first = *self.first.entry(number).or_insert(item.bytes);
            item.bytes.saturating_sub(first)
        });
        arrived.fold(0, u64::saturating_add)
    }
}

/// The bytes of an archive for people: `1.2 of 3.4 MiB`.
fn amount(item: &JobItem) -> String {
    match (&item.state, item.size_bytes) {
        (ItemState::Resolving, _) => "resolving".to_owned(),
        (_, Some(size)) => {
            let (arrived, whole) = (ByteSize(item.bytes).to_string(), ByteSize(size).to_string());
            match (arrived.rsplit_once(' '), whole.rsplit_once(' ')) {
                (Some((number, unit)), Some((_, whole_unit))) if unit == whole_unit => format!("{number} of {whole}"),
                _ => format!("{arrived} of {whole}"),
            }
        }
        (_, None) if item.bytes == 0 => "fetching".to_owned(),
        (_, None) => ByteSize(item.bytes).to_string(),
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

    /// The bytes that are there, and all of them; the archives, where no size is available.
    fn share(&self) -> (u64, u64) {
        let Self { ended: (ended, all), bytes: (fetched, size), .. } = *self;
        size.map_or((ended as u64, all as u64), |size| (fetched, size))
    }

    /// Renders the counts, the speed and the time left.
    fn text(&self, speed: u64) -> String {
        let Self { ended: (ended, all), bytes: (fetched, size), is_estimate, is_growing } = *self;
        let sign = if is_estimate { "~" } else { "" };
        let bytes = size.filter(|size| *size > 0).map_or_else(
            || ByteSize(fetched).to_string(),
            |size| format!("{} of {sign}{}", ByteSize(fetched), ByteSize(size)),
        );
        let seconds_left = size.and_then(|size| size.saturating_sub(fetched).checked_div(speed));
        let time_left = seconds_left
            .filter(|_| ended < all && !is_growing)
            .map_or_else(String::new, |left| format!("{sign}{} left", format_seconds(left)));
        let so_far = if is_growing { " so far" } else { "" };
        let parts =
            [format!("{ended}/{}{so_far}", plural(all as u64, "archive")), bytes, format_speed(speed), time_left];
        parts.iter().filter(|part| !part.is_empty()).map(String::as_str).collect::<Vec<_>>().join("  ")
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

    fn display() -> WarmDisplay {
        WarmDisplay::new(WarmOutput::Lines, host())
    }

    #[test]
    fn bytes_that_were_there_before_are_no_speed() {
        let (mut display, mut job) = (display(), busy_job());
        assert_eq!(display.arrived(&job), 0, "a resumed download begins with what it has");
        (job.items[0].bytes, job.items[1].bytes) = (46 * MIB, 701 * 1024);
        assert_eq!(display.arrived(&job), MIB + 1024);
        // A cancelled archive arrives no more.
        job.items[0].state = ItemState::Cancelled;
        assert_eq!(display.arrived(&job), 1024);
        // The line of an archive begins with its first bytes.
        display.draw(&job, 120);
        assert_eq!(display.archives[&1].0.per_sec() as u64, 0);
    }

    #[test]
    fn each_archive_in_flight_has_a_line_with_its_name_and_its_bytes() {
        let (mut display, mut job) = (display(), busy_job());
        let lines = |display: &WarmDisplay| -> Vec<(String, String, u64)> {
            let line = |line: &TerminalBar| (line.0.prefix(), line.0.message(), line.0.position());
            display.archives.values().map(line).collect()
        };
        display.draw(&job, 79);
        let expected = [
            ("…hicorp/aws 5.31.0 (linux_amd64)", "45.0 of 120.0 MiB", 45 * MIB),
            ("…ame 12.34.56-rc.1 (linux_amd64)", "700.0 KiB of 2.0 GiB", 700 * 1024),
            ("acme/null (linux_amd64)         ", "resolving", 0),
            ("acme/a 1.0.0 (linux_amd64)      ", "1.0 MiB", MIB),
        ];
        assert_eq!(lines(&display), expected.map(|(name, bytes, at)| (name.to_owned(), bytes.to_owned(), at)));
        assert_eq!(display.archives[&0].0.length(), Some(120 * MIB));
        // Names leave room for the rest of the line.
        for width in ARCHIVE_WIDTH + MIN_NAME_WIDTH..160 {
            display.draw(&job, width);
            let longest = lines(&display).iter().map(|(name, bytes, _)| (name.chars().count(), bytes.len())).max();
            assert!(longest.is_some_and(|(name, bytes)| name + ARCHIVE_WIDTH <= width && bytes <= 21), "{width}");
        }
        job.items[0].state = ItemState::Fetched;
        display.draw(&job, 120);
        assert_eq!(display.archives.keys().collect::<Vec<_>>(), [&1, &2, &3]);
        display.draw(&job, 50);
        assert!(display.archives.is_empty(), "a narrow terminal has the total only");
        display.draw(&job, 30);
        assert!(display.total.0.message().chars().count() <= 24, "{}", display.total.0.message());
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
        assert_eq!(total.text(10 * MIB), "3/8 archives  51.7 MiB of ~4.2 GiB  10.0 MiB/s  ~7 min left");
        let done =
            job(vec![item(AWS, ItemState::Fetched, MIB, Some(MIB)), item("a", ItemState::AlreadyStored, 0, None)]);
        let done = JobProgress::of(&done);
        assert_eq!(
            (done.text(MIB).as_str(), done.share()),
            ("2/2 archives  1.0 MiB of 1.0 MiB  1.0 MiB/s", (MIB, MIB))
        );
        let empty = JobProgress::of(&job(vec![]));
        assert_eq!((empty.text(0).as_str(), empty.share()), ("0/0 archives  0 B", (0, 0)));
    }

    #[test]
    fn the_total_of_a_resolving_job_is_marked_so_far() {
        let mut job = busy_job();
        (job.resolving, job.unconfirmed) = (true, vec!["the version list of a/b\u{1b}[2J".to_owned()]);
        let line = JobProgress::of(&job).text(10 * MIB);
        assert!(line.contains("3/8 archives so far  51.7 MiB of ~4.2 GiB") && !line.contains("left"), "{line}");
        assert_eq!(notes(&job, None), Some("note: the version list of a/b\\u{1b}[2J".to_owned()));
        let mut module = item("r.example/acme/net/test@1.0.0", ItemState::Fetching, 0, None);
        module.package.platform = None;
        job.items = vec![module];
        assert_eq!(
            (full_name(&job.items[0], &host()).as_str(), amount(&job.items[0]).as_str()),
            ("r.example/acme/net/test 1.0.0", "fetching")
        );
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
