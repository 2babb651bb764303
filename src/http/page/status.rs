//! The status page of the admin listener: what an operator wants to see at a glance, and what needs a decision. Each list
//! is bounded, and says how many entries it leaves out.

use std::path::Path;

use askama::Template;
use bytesize::ByteSize;
use http::{Response, StatusCode};

use super::alarm::AlarmView;
use super::chart::TrafficView;
use super::{Body, Frame, Moment, grouped, page};
use crate::address::{Hostname, PackageRef};
use crate::clock::Timestamp;
use crate::jobs::job_report::{JobState, JobSummary};
use crate::jobs::{LastRun, RecurringState, Traffic, TrafficCount, TrafficHistory};
use crate::mirror::{
    Alarm, LastBundle, MissingRequest, NotableArchives, Status, StoreFailure, StoreState, StoredArchiveNames,
    UpstreamState,
};
use crate::protocol::admin::verdict::{self, Level, Part, VerdictLine};
use crate::protocol::admin::{RecentFailure, RecentRefusal, SinceStart, StatusReport};
use crate::wording::{escape_invisible, format_seconds, format_timestamp, percent, plural, shell_word};

const SCRIPT: &str = include_str!("../../../templates/status.js");

/// The most entries shown of a list.
const MAX_ALARMS: usize = 50;
const MAX_LISTED: usize = 20;
/// The most addresses shown of one job.
const MAX_ORDERED: usize = 3;
/// The most names shown of one archive.
const MAX_NAMES: usize = 1;
/// The most characters shown of a foreign text.
const MAX_CHARS: usize = 600;

/// The data of the page.
#[derive(Debug)]
pub(in crate::http) struct StatusData {
    pub(in crate::http) report: StatusReport,
    pub(in crate::http) jobs: Vec<JobOnPage>,
    /// The traffic of the last day; `None` without a running larder.
    pub(in crate::http) traffic: Option<TrafficOfDay>,
    pub(in crate::http) archives: Result<NotableArchives, String>,
    pub(in crate::http) default_host: Hostname,
    /// The URL of the main listener.
    pub(in crate::http) base: String,
    pub(in crate::http) now: Timestamp,
}

/// A job, and the items that failed.
#[derive(Debug)]
pub(in crate::http) struct JobOnPage {
    pub(in crate::http) summary: JobSummary,
    /// The first failures.
    pub(in crate::http) failures: Vec<(PackageRef, String)>,
}

/// The traffic of the last hour and day, in short spans for a chart and longer ones for a table.
#[derive(Debug)]
pub(in crate::http) struct TrafficOfDay {
    minutes: Vec<(Timestamp, Traffic)>,
    five_minutes: Vec<(Timestamp, Traffic)>,
    quarters: Vec<(Timestamp, Traffic)>,
    hours: Vec<(Timestamp, Traffic)>,
}

impl TrafficOfDay {
    pub(in crate::http) fn of(history: &TrafficHistory) -> Self {
        Self {
            minutes: history.spans(60, 1),
            five_minutes: history.spans(12, 5),
            quarters: history.spans(96, 15),
            hours: history.spans(24, 60),
        }
    }

    fn views(&self, now: Timestamp) -> Vec<TrafficView> {
        let hour = ("last-hour", "Last hour", "1 h ago");
        let day = ("last-day", "Last day", "24 h ago");
        vec![
            TrafficView::new(hour, "a minute", &self.minutes, &self.five_minutes, now),
            TrafficView::new(day, "15 min", &self.quarters, &self.hours, now),
        ]
    }

    fn of_last_hour(&self) -> Traffic {
        sum(&self.minutes)
    }

    fn of_last_day(&self) -> Traffic {
        sum(&self.quarters)
    }
}

fn sum(spans: &[(Timestamp, Traffic)]) -> Traffic {
    spans.iter().fold(Traffic::default(), |total, (_, traffic)| total.plus(traffic))
}

#[derive(Template)]
#[template(path = "status.html")]
struct StatusPage<'a> {
    frame: Frame,
    mirror: &'a Status,
    running: Option<String>,
    now: Moment,
    verdict: Verdict,
    tiles: Vec<Tile>,
    alarms: Listed<AlarmView>,
    token_file: String,
    /// Empty without traffic in the last day.
    traffic: Vec<TrafficView>,
    jobs: Vec<JobView>,
    warm_ups: Listed<WarmUpView>,
    upstreams: Listed<UpstreamView>,
    failures: Listed<FailureView>,
    refusals: Listed<RefusalView>,
    missing: Listed<MissingView>,
    archives: Result<Content, &'a str>,
    store: Vec<Fact>,
}

/// The first entries of a list.
struct Listed<T> {
    shown: Vec<T>,
    /// The number of all entries.
    all: usize,
}

impl<T> Listed<T> {
    fn first<'a, S>(limit: usize, entries: &'a [S], view: impl FnMut(&'a S) -> T) -> Self {
        Self { shown: entries.iter().take(limit).map(view).collect(), all: entries.len() }
    }

    fn more(&self) -> usize {
        self.all - self.shown.len()
    }

    fn count(&self) -> String {
        grouped(self.all as u64)
    }
}

/// Archives that stand out.
struct Content {
    largest: Vec<ArchiveView>,
    oldest: Vec<ArchiveView>,
}

/// The first thing that a person reads.
struct Verdict {
    class: &'static str,
    title: String,
    lines: Vec<LinkedLine>,
}

struct LinkedLine {
    text: String,
    /// Link to more; empty without one.
    link: String,
    link_text: &'static str,
}

struct Tile {
    name: &'static str,
    value: String,
    lines: Vec<String>,
    /// Used part of the limit, in percent.
    meter: Option<u64>,
}

struct Fact {
    name: &'static str,
    value: String,
}

struct JobView {
    id: String,
    ordered: String,
    more_ordered: usize,
    pin: bool,
    is_running: bool,
    state: &'static str,
    class: &'static str,
    done: u64,
    all: u64,
    counts: String,
    errors: Vec<String>,
    more_errors: usize,
    started: Moment,
}

struct WarmUpView {
    targets: String,
    every: String,
    state: &'static str,
    class: &'static str,
    last: String,
    next: String,
}

/// Failed requests for one URL.
struct FailureView {
    what: String,
    is_over: bool,
    status: u16,
    cause: String,
    remedy: String,
    /// The count, and the client that failed last.
    whom: String,
    last: Moment,
    command: String,
}

impl FailureView {
    fn of(failure: &RecentFailure, now: Timestamp) -> Self {
        let RecentFailure { path, subject, status, cause, remedy, client, times, last, is_over, .. } = failure;
        Self {
            what: shown(subject.as_deref().unwrap_or(path)),
            is_over: *is_over,
            status: *status,
            cause: shown(cause),
            remedy: shown(remedy.as_deref().unwrap_or_default()),
            whom: format!("{} in all, the last for {client}", plural(*times, "request")),
            last: Moment::ago(*last, now),
            // Whole: a shortened command would be another one.
            command: format!("larder explain {}", shell_word(path)),
        }
    }
}

/// Refused requests of a client.
struct RefusalView {
    what: String,
    whom: String,
    reason: String,
    status: u16,
    times: String,
    last: Moment,
}

impl RefusalView {
    fn of(refusal: &RecentRefusal, default_host: &Hostname, now: Timestamp) -> Self {
        let RecentRefusal { subject, reason, status, times, last, .. } = refusal;
        Self {
            what: subject.as_deref().map_or("any request".to_owned(), |what| shown(without_host(what, default_host))),
            whom: shown(&refusal.whom()),
            reason: shown(reason),
            status: *status,
            times: plural(*times, "request"),
            last: Moment::ago(*last, now),
        }
    }
}

/// Requests for a package that is not stored.
struct MissingView {
    what: String,
    /// The count, and the client that asked last.
    whom: String,
    last: Moment,
}

impl MissingView {
    fn of(request: &MissingRequest, default_host: &Hostname, now: Timestamp) -> Self {
        let MissingRequest { package, times, last, client } = request;
        Self {
            what: shown(&package.without(default_host).to_string()),
            whom: format!("{}, the last for {}", plural(*times, "request"), client.as_deref().unwrap_or("a job")),
            last: Moment::ago(*last, now),
        }
    }
}

struct UpstreamView {
    host: String,
    state: &'static str,
    class: &'static str,
    left_alone: Vec<String>,
    requests: String,
    failed: String,
    received: String,
}

struct ArchiveView {
    name: String,
    more_names: usize,
    size: String,
    last_use: Moment,
}

/// Renders the page.
pub(in crate::http) fn status(data: &StatusData) -> Response<Body> {
    let StatusData { report, jobs, traffic, archives, default_host, base, now } = data;
    let StatusReport { mirror, since_start, warm_ups, .. } = report;
    let (host, now) = (default_host, *now);
    // Refusals first, and the newest first of each.
    let mut alarms: Vec<&Alarm> = mirror.alarms.iter().collect();
    alarms.sort_by_key(|alarm| (!alarm.kind.refuses(), std::cmp::Reverse(alarm.since)));
    let archive_views =
        |archives: &[StoredArchiveNames]| archives.iter().map(|archive| ArchiveView::of(archive, host, now)).collect();
    let upstreams = since_start.as_ref().map_or(&[][..], |since| &since.upstreams);
    let failures = since_start.as_ref().map_or(&[][..], |since| &since.failures);
    let refusals = since_start.as_ref().map_or(&[][..], |since| &since.refusals);
    let traffic_of_day = traffic.as_ref().filter(|traffic| !traffic.of_last_day().is_empty());
    let template = StatusPage {
        frame: Frame::of_admin(SCRIPT),
        mirror,
        running: since_start.as_ref().map(|since| format_seconds(since.seconds)),
        now: Moment::ago(now, now),
        verdict: Verdict::of(report, base),
        tiles: tiles(report, traffic.as_ref()),
        alarms: Listed::first(MAX_ALARMS, &alarms, |alarm| AlarmView::of(alarm, host, mirror.offline, now)),
        token_file: token_file(&mirror.store),
        traffic: traffic_of_day.map(|traffic| traffic.views(now)).unwrap_or_default(),
        jobs: jobs.iter().map(|job| JobView::of(job, host, now)).collect(),
        warm_ups: Listed::first(MAX_LISTED, warm_ups, |warm_up| WarmUpView::of(warm_up, now)),
        upstreams: Listed::first(MAX_LISTED, upstreams, UpstreamView::of),
        failures: Listed::first(MAX_LISTED, failures, |failure| FailureView::of(failure, now)),
        refusals: Listed::first(MAX_LISTED, refusals, |refusal| RefusalView::of(refusal, host, now)),
        missing: Listed::first(MAX_LISTED, &mirror.missing, |request| MissingView::of(request, host, now)),
        archives: match archives {
            Ok(NotableArchives { largest, oldest }) => {
                Ok(Content { largest: archive_views(largest), oldest: archive_views(oldest) })
            }
            Err(trouble) => Err(trouble),
        },
        store: store_facts(mirror),
    };
    page(StatusCode::OK, template.frame, &template)
}

/// Makes a foreign text fit to be shown: every character visible, and not too many of them.
pub(super) fn shown(text: &str) -> String {
    let visible = escape_invisible(text);
    match visible.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &visible[..end]),
        None => visible,
    }
}

/// An address without its host, if that is the default one.
pub(super) fn without_host<'a>(address: &'a str, default_host: &Hostname) -> &'a str {
    address.strip_prefix(default_host.as_str()).and_then(|path| path.strip_prefix('/')).unwrap_or(address)
}

/// The file of the admin token, beside the store's own folder.
pub(super) fn token_file(store: &str) -> String {
    let store = Path::new(store);
    store.parent().unwrap_or(store).join("admin-token").display().to_string()
}

impl Verdict {
    /// `base` is the URL of the main listener.
    fn of(report: &StatusReport, base: &str) -> Self {
        let verdict = verdict::Verdict::of(report);
        let line = |VerdictLine { text, part }: VerdictLine| {
            let (link, link_text) = match part {
                Part::Store => ("#store", "Why, and what to do"),
                Part::Alarms => ("#alarms", "Look at it"),
                Part::Upstreams => ("#upstreams", "Which"),
                Part::Failures => ("#failures", "Which, and why"),
                Part::Missing => ("#missing", "Which"),
                Part::Clients => (base, "Point a client at it"),
                Part::None => ("", ""),
            };
            LinkedLine { text, link: link.to_owned(), link_text }
        };
        let class = match verdict.level {
            Level::Good => "good",
            Level::Warn => "warn",
            Level::Bad => "bad",
        };
        Self { class, title: verdict.title, lines: verdict.lines.into_iter().map(line).collect() }
    }
}

fn tiles(report: &StatusReport, traffic: Option<&TrafficOfDay>) -> Vec<Tile> {
    let StatusReport { mirror, since_start, .. } = report;
    let stored = mirror.archive_bytes.saturating_add(mirror.document_bytes);
    let used = percent(stored, mirror.max_size_bytes);
    let stored_line = format!("{} and {}", plural(mirror.archives, "archive"), plural(mirror.documents, "document"));
    let limit = used.map(|percent| format!("{percent} % of {}", ByteSize(mirror.max_size_bytes)));
    let mut tiles = vec![Tile {
        name: "Stored",
        value: ByteSize(stored).to_string(),
        lines: [Some(stored_line), limit].into_iter().flatten().collect(),
        meter: used,
    }];
    let (Some(traffic), Some(since)) = (traffic, since_start) else { return tiles };
    let (hour, day) = (traffic.of_last_hour(), traffic.of_last_day());
    let SinceStart { saved_bytes, waiting_requests, fills_under_way, .. } = since;
    tiles.push(Tile {
        name: "Saved in the last day",
        value: ByteSize(day.get(TrafficCount::SavedBytes)).to_string(),
        lines: vec!["of upstream traffic".to_owned(), format!("{} since the start", ByteSize(*saved_bytes))],
        meter: None,
    });
    let ratio =
        |traffic: &Traffic| traffic.hit_percent().map_or_else(|| "–".to_owned(), |percent| format!("{percent} %"));
    tiles.push(Tile {
        name: "Hit ratio of the last day",
        value: ratio(&day),
        lines: vec!["of answers needed no upstream".to_owned(), format!("{} in the last hour", ratio(&hour))],
        meter: None,
    });
    tiles.push(Tile {
        name: "Downloads under way",
        value: grouped(u64::try_from(*fills_under_way).unwrap_or_default()),
        lines: vec![match waiting_requests {
            0 => "no request waits for an upstream".to_owned(),
            1 => "1 request waits for an upstream".to_owned(),
            many => format!("{} requests wait for an upstream", grouped(*many)),
        }],
        meter: None,
    });
    tiles
}

impl JobView {
    fn of(job: &JobOnPage, default_host: &Hostname, now: Timestamp) -> Self {
        let JobOnPage { summary, failures } = job;
        let JobSummary { id, state, started, ordered, pin, resolving, items, .. } = summary;
        let (text, class) = match state {
            JobState::Running => ("running", "warn"),
            JobState::Done => ("done", "good"),
            JobState::Failed => ("failed", "bad"),
            JobState::Cancelled => ("cancelled", ""),
        };
        let done = items.already_stored + items.fetched + items.failed + items.cancelled;
        let mut counts = match state {
            JobState::Running if *resolving => format!("{done} of {} or more", grouped(items.all)),
            JobState::Running => format!("{done} of {}", grouped(items.all)),
            _ => format!("{} of {} stored", grouped(items.already_stored + items.fetched), grouped(items.all)),
        };
        for (number, name) in [(items.fetched, "fetched"), (items.failed, "failed"), (items.cancelled, "cancelled")] {
            if number > 0 {
                counts.push_str(&format!(", {} {name}", grouped(number)));
            }
        }
        let names = ordered.iter().take(MAX_ORDERED).map(|name| shown(without_host(name, default_host)));
        let names = names.collect::<Vec<_>>().join(", ");
        let error = |(package, reason): &(PackageRef, String)| {
            format!("{}: {}", shown(&package.without(default_host).to_string()), shown(reason))
        };
        Self {
            id: id.clone(),
            ordered: names,
            more_ordered: ordered.len().saturating_sub(MAX_ORDERED),
            pin: *pin,
            is_running: *state == JobState::Running,
            state: text,
            class,
            done,
            all: items.all.max(1),
            counts,
            errors: failures.iter().map(error).collect(),
            more_errors: usize::try_from(items.failed).unwrap_or(usize::MAX).saturating_sub(failures.len()),
            started: Moment::ago(*started, now),
        }
    }
}

impl WarmUpView {
    fn of(warm_up: &RecurringState, now: Timestamp) -> Self {
        let RecurringState { targets, every_seconds, running, running_on, last, next } = warm_up;
        let names = targets.iter().take(MAX_ORDERED).map(|target| shown(target)).collect::<Vec<_>>().join(", ");
        let more = targets.len().saturating_sub(MAX_ORDERED);
        let (state, class, text) = match last {
            None => ("not run yet", "", String::new()),
            Some(last) => last_run(last, now),
        };
        let (state, class, text) = match (running, running_on) {
            (Some(_), _) => ("running", "warn", text),
            (None, Some(url)) => ("running", "warn", format!("on {}", shown(url))),
            (None, None) => (state, class, text),
        };
        Self {
            targets: if more > 0 { format!("{names} and {more} more") } else { names },
            every: format_seconds(*every_seconds),
            state,
            class,
            last: text,
            next: match next {
                Some(next) if *next > now => format!("in {}", format_seconds(next.since(now).as_secs())),
                Some(_) => "now".to_owned(),
                None => "–".to_owned(),
            },
        }
    }
}

fn last_run(last: &LastRun, now: Timestamp) -> (&'static str, &'static str, String) {
    let LastRun { ended, state, items, error, failures, .. } = last;
    let ago = Moment::ago(*ended, now).ago;
    let again = if *failures > 1 { format!(", {failures} times in a row") } else { String::new() };
    match (state, error) {
        (_, Some(reason)) => ("did not begin", "bad", format!("{ago}{again}: {}", shown(reason))),
        (JobState::Failed, None) => {
            ("failed", "bad", format!("{ago}{again}: {} of {} archives", items.failed, items.all))
        }
        (JobState::Cancelled, None) => ("cancelled", "", ago),
        (JobState::Done | JobState::Running, None) => (
            "done",
            "good",
            format!("{ago}: {} archives, {} of them new", items.already_stored + items.fetched, items.fetched),
        ),
    }
}

impl UpstreamView {
    fn of(upstream: &UpstreamState) -> Self {
        let UpstreamState { host, requests, failed, bytes, left_alone, .. } = upstream;
        let (state, class) = match (left_alone.is_empty(), requests) {
            (false, _) => ("left alone", "bad"),
            (true, 0) => ("not asked yet", ""),
            (true, _) => ("answers", "good"),
        };
        let origins = left_alone.iter().take(MAX_LISTED).map(|backoff| {
            format!("{} failed, and is asked again in {}", shown(&backoff.origin), format_seconds(backoff.seconds))
        });
        Self {
            host: host.clone(),
            state,
            class,
            left_alone: origins.collect(),
            requests: grouped(*requests),
            failed: grouped(*failed),
            received: ByteSize(*bytes).to_string(),
        }
    }
}

impl ArchiveView {
    fn of(archive: &StoredArchiveNames, default_host: &Hostname, now: Timestamp) -> Self {
        let StoredArchiveNames { packages, size_bytes, last_use } = archive;
        let name = match packages.first() {
            Some(package) => shown(&package.without(default_host).to_string()),
            None => "an archive that no package needs any more".to_owned(),
        };
        Self {
            name,
            more_names: packages.len().saturating_sub(MAX_NAMES),
            size: ByteSize(*size_bytes).to_string(),
            last_use: Moment::ago(*last_use, now),
        }
    }
}

fn store_facts(mirror: &Status) -> Vec<Fact> {
    let state = match mirror.store_state {
        StoreState::Ready => "ready",
        StoreState::NotKeeping => "the last archive or document could not be stored",
        StoreState::ReadOnly => "read-only",
        StoreState::Gone => "removed, replaced, or not readable",
    };
    let counted = |number: u64, bytes: u64| format!("{} ({})", grouped(number), ByteSize(bytes));
    let mut facts = vec![Fact { name: "State", value: state.to_owned() }];
    if let Some(StoreFailure { why, to_do }) = &mirror.trouble {
        facts.push(Fact { name: "Why", value: shown(why) });
        facts.push(Fact { name: "What to do", value: shown(to_do) });
    }
    facts.extend([
        Fact { name: "Folder", value: mirror.store.clone() },
        Fact { name: "Archives", value: counted(mirror.archives, mirror.archive_bytes) },
    ]);
    if mirror.owed.count > 0 {
        let owed = counted(mirror.owed.count, mirror.owed.bytes);
        facts.push(Fact { name: "Owed to the bucket", value: format!("{owed}: served from here, and sent later") });
    }
    facts.extend([
        Fact { name: "Documents", value: counted(mirror.documents, mirror.document_bytes) },
        Fact { name: "First-seen records", value: counted(mirror.first_seen_records, mirror.first_seen_bytes) },
        Fact { name: "Limit", value: ByteSize(mirror.max_size_bytes).to_string() },
        Fact {
            name: "Free on the disk",
            value: mirror.free_bytes.map_or_else(|| "unknown".to_owned(), |free| ByteSize(free).to_string()),
        },
    ]);
    if let Some(LastBundle { created, applied, .. }) = mirror.last_bundle {
        let value = format!("made {}, applied {}", format_timestamp(created), format_timestamp(applied));
        facts.push(Fact { name: "Last bundle", value });
    }
    if !mirror.imported.is_empty() {
        let value = format!(
            "{} without signatures: only this mirror's operator vouches for them",
            plural(mirror.imported.len() as u64, "archive")
        );
        facts.push(Fact { name: "Imported", value });
    }
    facts
}
