//! Renders a warm-up job as lines of text: progress bars, totals and a summary. Uses no terminal and no clock.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use bytesize::ByteSize;

use super::super::progress::{MAX_BAR_WIDTH, bar};
use super::super::text::{TextPage, escape_for_terminal, format_seconds, plural};
use crate::address::{Hostname, PackageRef};
use crate::jobs::job_report::{ItemState, Job, JobItem, JobState};

/// Length of the window over which a speed is measured.
const SPEED_WINDOW: Duration = Duration::from_secs(5);
/// Maximum number of progress bars shown at once.
const MAX_BARS: usize = 8;
/// Shortest bar; names are shortened to keep it.
const MIN_BAR_WIDTH: usize = 6;
/// Columns for the longest size text, `700.0 KiB of 2.0 GiB`.
const BYTES_WIDTH: usize = 20;
/// Columns for the longest speed text, `1023.9 MiB/s`.
const SPEED_WIDTH: usize = 12;
const STATE_WIDTH: usize = 9;

/// Measures a transfer rate from samples of (time, total bytes).
#[derive(Debug, Default)]
pub(super) struct TransferRate(VecDeque<(Duration, u64)>);

impl TransferRate {
    pub(super) fn observe(&mut self, elapsed: Duration, bytes: u64) {
        // A smaller total means that the transfer started over. Before the first byte there is no rate.
        if bytes == 0 || self.0.back().is_some_and(|(_, previous)| *previous > bytes) {
            self.0.clear();
        }
        self.0.push_back((elapsed, bytes));
        while self.0.len() > 2 && self.0.get(1).is_some_and(|(then, _)| elapsed.saturating_sub(*then) >= SPEED_WINDOW) {
            self.0.pop_front();
        }
    }

    /// Bytes per second; `None` until at least 0.1 s has been measured.
    pub(super) fn per_second(&self) -> Option<u64> {
        let ((first_time, first_bytes), (last_time, last_bytes)) = (self.0.front()?, self.0.back()?);
        let seconds = last_time.saturating_sub(*first_time).as_secs_f64();
        (seconds >= 0.1).then(|| (last_bytes.saturating_sub(*first_bytes) as f64 / seconds) as u64)
    }
}

/// Identifies an archive within a job.
pub(super) type ItemKey = PackageRef;

pub(super) fn item_key(item: &JobItem) -> ItemKey {
    item.package.clone()
}

/// Renders one bar for each archive in flight, at most [`MAX_BARS`].
pub(super) fn bars(job: &Job, host: &Hostname, speed: impl Fn(&ItemKey) -> Option<u64>, width: usize) -> Vec<String> {
    let is_in_flight = |item: &&JobItem| matches!(item.state, ItemState::Resolving | ItemState::Fetching);
    let items: Vec<&JobItem> = job.items.iter().filter(is_in_flight).take(MAX_BARS).collect();
    let available = width.saturating_sub(BYTES_WIDTH + SPEED_WIDTH + 6);
    // Names get their width first: in full, else without hosts, else without their beginnings. The bar takes the rest.
    let longest = |names: &[String]| names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let max_name_width = available.saturating_sub(MIN_BAR_WIDTH + 2);
    let full_names: Vec<String> = items.iter().map(|item| full_name(item, host)).collect();
    let (names, name_width) = match longest(&full_names) {
        width if width <= max_name_width => (full_names, width),
        _ => {
            let short: Vec<String> = full_names.into_iter().map(name_without_host).collect();
            let width = longest(&short).min(max_name_width);
            (short, width)
        }
    };
    let bar_width = available.saturating_sub(name_width + 2).min(MAX_BAR_WIDTH);
    let line = |item: &JobItem, name: String| {
        let speed = speed(&item_key(item)).map_or_else(String::new, |speed| format!("{}/s", ByteSize(speed)));
        let (share, bytes) = match (&item.state, item.size_bytes) {
            (ItemState::Resolving, _) => (None, "resolving".to_owned()),
            (_, Some(size)) => (Some((item.bytes, size)), bytes_of_size(item.bytes, size)),
            (_, None) if item.bytes == 0 => (None, "fetching".to_owned()),
            (_, None) => (None, ByteSize(item.bytes).to_string()),
        };
        let speed = if share.is_some() || item.bytes > 0 { speed } else { String::new() };
        let name = shorten_start(name, name_width);
        let bar = bar(share, bar_width);
        truncate(format!("  {name:name_width$}  {bar}  {bytes:>BYTES_WIDTH$}  {speed:>SPEED_WIDTH$}"), width)
    };
    items.iter().zip(names).map(|(item, name)| line(item, name)).collect()
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

fn name_without_host(name: String) -> String {
    let has_host = |first: &str| first.contains(['.', ':']);
    let without_host = name.split_once('/').filter(|(first, _)| has_host(first)).map(|(_, address)| address);
    without_host.map(str::to_owned).unwrap_or(name)
}

/// Drops the beginning of a long name: its end is more specific.
fn shorten_start(name: String, width: usize) -> String {
    let length = name.chars().count();
    if length <= width {
        return name;
    }
    let end: String = name.chars().skip(length.saturating_sub(width.saturating_sub(1))).collect();
    truncate(format!("…{end}"), width)
}

fn truncate(line: String, width: usize) -> String {
    line.chars().take(width).collect::<String>().trim_end().to_owned()
}

/// Progress of the whole job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JobProgress {
    /// Archives that are finished, and archives in total.
    pub(super) ended: (usize, usize),
    /// Bytes fetched, and bytes to fetch as far as sizes are available.
    pub(super) bytes: (u64, Option<u64>),
    /// True while some sizes are unavailable; each of those counts as the average of the others.
    pub(super) is_estimate: bool,
    /// True while the job still resolves its requirements, so more archives may follow.
    pub(super) is_growing: bool,
}

impl JobProgress {
    pub(super) fn of(job: &Job) -> Self {
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
    pub(super) fn line(&self, speed: Option<u64>, width: usize) -> String {
        let Self { ended: (ended, all), bytes: (fetched, size), is_estimate, is_growing } = *self;
        let sign = if is_estimate { "~" } else { "" };
        let bytes = size.filter(|size| *size > 0).map_or_else(
            || ByteSize(fetched).to_string(),
            |size| format!("{} of {sign}{}", ByteSize(fetched), ByteSize(size)),
        );
        let speed_text = speed.map_or_else(String::new, |speed| format!("  {}/s", ByteSize(speed)));
        let seconds_left = size.zip(speed).and_then(|(size, speed)| size.saturating_sub(fetched).checked_div(speed));
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
    matches!(state, ItemState::Held | ItemState::Failed { .. } | ItemState::Cancelled)
}

/// Renders the archives that finished since the last call. Adds their positions to `reported`.
pub(super) fn newly_finished_lines(
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
    let unconfirmed = item.unconfirmed.as_deref().map(escape_for_terminal);
    let (state_text, size, reason) = match &item.state {
        ItemState::Held => ("stored", size, unconfirmed),
        ItemState::Fetched => ("fetched", size, unconfirmed),
        ItemState::Cancelled => ("cancelled", String::new(), None),
        ItemState::Failed { error } => ("FAILED", String::new(), Some(escape_for_terminal(error))),
        ItemState::Waiting | ItemState::Resolving | ItemState::Fetching => return,
    };
    page.push_with_prefix(&format!("{state_text:STATE_WIDTH$} "), &format!("{}{size}", full_name(item, host)));
    if let Some(reason) = reason {
        page.push_with_prefix(&format!("{:STATE_WIDTH$} ", ""), &reason);
    }
}

/// Renders the final counts of a job.
pub(super) fn summary(job: &Job, took: Duration) -> String {
    let count = |is: fn(&ItemState) -> bool| job.items.iter().filter(|item| is(&item.state)).count();
    let fetched = count(|state| matches!(state, ItemState::Fetched));
    let fetched_items = job.items.iter().filter(|item| matches!(item.state, ItemState::Fetched));
    let bytes: u64 = fetched_items.filter_map(|item| item.size_bytes).fold(0, u64::saturating_add);
    let counts = [
        (count(|state| matches!(state, ItemState::Held)), "already stored"),
        (fetched, "fetched"),
        (count(|state| matches!(state, ItemState::Failed { .. })), "failed"),
        (count(|state| matches!(state, ItemState::Cancelled)), "cancelled"),
    ];
    let text: Vec<String> = counts
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, label)| format!("{number} {label}"))
        .collect();
    let all = plural(job.items.len() as u64, "archive");
    let text = if text.is_empty() { all } else { format!("{all}: {}", text.join(", ")) };
    let fetched =
        if bytes > 0 { format!("; {} in {}", ByteSize(bytes), format_seconds(took.as_secs())) } else { String::new() };
    let pinned = job.pin && job.state == JobState::Done;
    format!("{text}{fetched}{}", if pinned { "; pinned" } else { "" })
}

/// Renders the unconfirmed statements of a job, such as a stale version list, as notes.
pub(super) fn notes(job: &Job, width: Option<usize>) -> Option<String> {
    let mut page = TextPage::of_width(width);
    job.unconfirmed.iter().for_each(|reason| page.push_with_prefix("note: ", &escape_for_terminal(reason)));
    (!job.unconfirmed.is_empty()).then(|| page.text())
}

/// Renders the message for a cancelled job.
pub(super) fn stopped_message(job: &Job) -> String {
    let stored = job.items.iter().filter(|item| matches!(item.state, ItemState::Held | ItemState::Fetched)).count();
    format!(
        "stopped: {}; the same command continues",
        if stored == 1 { "1 archive is stored".to_owned() } else { format!("{stored} archives are stored") }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let (started, ended, subject, platforms) = (Timestamp(0), None, vec![], vec!["linux_amd64".to_owned()]);
        Job {
            id: "1".to_owned(),
            state,
            started,
            ended,
            what: subject,
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
            item("registry.terraform.io/acme/c@1.0.0", ItemState::Held, 0, Some(MIB)),
            item("registry.terraform.io/acme/d@1.0.0", failed, 0, Some(MIB)),
            item("registry.terraform.io/acme/e@1.0.0", ItemState::Fetched, 5 * MIB, Some(5 * MIB)),
        ])
    }

    #[test]
    fn bars_fit_the_terminal_and_show_name_size_and_speed() {
        for width in [30, 60, 80, 120, 160, 200] {
            let lines = bars(&busy_job(), &host(), |_| Some(12 * MIB + 1), width);
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}: {lines:#?}");
            assert_eq!(lines.len(), 4);
            let total = JobProgress::of(&busy_job()).line(Some(24 * MIB), width);
            assert!(total.chars().count() <= width, "{width}: {total}");
        }
        let bars_of = |width| bars(&busy_job(), &host(), |_| Some(12 * MIB + 1), width);
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
        let line = total.line(Some(10 * MIB), 160);
        assert!(line.ends_with("3/8 archives  51.7 MiB of ~4.2 GiB  10.0 MiB/s  ~7 min left"), "{line}");
        let done = job(vec![item(AWS, ItemState::Fetched, MIB, Some(MIB)), item("a", ItemState::Held, 0, None)]);
        assert_eq!(
            JobProgress::of(&done).line(Some(MIB), 80),
            "  [===============================]  2/2 archives  1.0 MiB of 1.0 MiB  1.0 MiB/s"
        );
        assert_eq!(
            JobProgress::of(&job(vec![])).line(None, 80).trim(),
            "[                                      ]  0/0 archives  0 B"
        );
    }

    #[test]
    fn the_total_of_a_resolving_job_is_marked_so_far() {
        let mut job = busy_job();
        (job.resolving, job.unconfirmed) = (true, vec!["the version list of a/b\u{1b}[2J".to_owned()]);
        let line = JobProgress::of(&job).line(Some(10 * MIB), 120);
        assert!(line.contains("3/8 archives so far  51.7 MiB of ~4.2 GiB") && !line.contains("left"), "{line}");
        assert_eq!(notes(&job, None), Some("note: the version list of a/b\\u{1b}[2J".to_owned()));
        let mut module = item("r.example/acme/net/test@1.0.0", ItemState::Fetching, 0, None);
        module.package.platform = None;
        job.items = vec![module];
        let bars = bars(&job, &host(), |_| None, 80);
        assert!(bars[0].starts_with("  r.example/acme/net/test 1.0.0  [") && bars[0].ends_with("fetching"), "{bars:?}");
    }

    #[test]
    fn the_speed_covers_the_last_five_seconds() {
        let mut speed = TransferRate::default();
        let elapsed = |tenths: u64| Duration::from_millis(tenths * 100);
        speed.observe(elapsed(0), 0);
        assert_eq!(speed.per_second(), None);
        (1..=100).for_each(|tenth| speed.observe(elapsed(tenth), tenth * 100));
        assert_eq!(speed.per_second(), Some(1000));
        (101..=200).for_each(|tenth| speed.observe(elapsed(tenth), 10_000));
        assert_eq!(speed.per_second(), Some(0), "nothing arrived for ten seconds");
        speed.observe(elapsed(201), 50);
        assert_eq!(speed.per_second(), None, "the transfer started over");
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
