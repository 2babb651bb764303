//! The first thing that a person reads of a status: a verdict and its reasons, the same on the page and in the command.

use std::collections::BTreeMap;

use bytesize::ByteSize;

use super::{RecentFailure, StatusReport};
use crate::mirror::{OwedAmount, Status, StoreState, UpstreamState};
use crate::store::{FleetAlarm, FleetAlarmKind};
use crate::wording::plural;

/// The time for which a failed request counts.
const RECENT_SECONDS: u64 = 60 * 60;

/// The verdict about a larder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The worst of the lines.
    pub level: Level,
    /// The verdict in a few words.
    pub title: String,
    /// The reasons.
    pub lines: Vec<VerdictLine>,
}

/// The need for a person, the greatest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Not at all.
    Good,
    /// Something needs a look.
    Warn,
    /// Something is refused or broken until a person acts.
    Bad,
}

/// A reason for a verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerdictLine {
    /// The reason.
    pub text: String,
    /// The part of the status that has more.
    pub part: Part,
}

/// The parts of a status that a verdict refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The store and its trouble.
    Store,
    /// The alarms.
    Alarms,
    /// The upstreams.
    Upstreams,
    /// The failed requests.
    Failures,
    /// The packages requested while offline.
    Missing,
    /// The URL for clients.
    Clients,
    /// Nothing.
    None,
}

impl Verdict {
    /// Judges a status.
    pub fn of(report: &StatusReport) -> Self {
        let StatusReport { mirror, since_start, .. } = report;
        let (mut lines, mut level) = (Vec::new(), Level::Good);
        let mut add = |of_line: Level, text: String, part: Part| {
            level = level.max(of_line);
            lines.push(VerdictLine { text, part });
        };
        let lost = since_start.as_ref().map_or(0, |since| since.lost_audit_lines);
        if lost > 0 {
            let text = format!(
                "{} of the audit trail {} lost since the start; the log has the cause.",
                plural(lost, "line"),
                if lost == 1 { "is" } else { "are" }
            );
            add(Level::Warn, text, Part::None);
        }
        if let Some(text) = store_line(mirror.store_state) {
            add(Level::Bad, text.to_owned(), Part::Store);
        }
        let refused = mirror.alarms.iter().filter(|alarm| alarm.kind.refuses()).count() as u64;
        let others = mirror.alarms.len() as u64 - refused;
        if refused > 0 {
            let text = format!("The new files of {} are refused until you decide.", plural(refused, "version"));
            add(Level::Bad, text, Part::Alarms);
        }
        if others > 0 {
            let text = format!("Registries changed what is served: {}.", plural(others, "alarm"));
            add(Level::Warn, text, Part::Alarms);
        }
        if mirror.owed.count > 0 {
            let OwedAmount { count, bytes, refusal } = &mirror.owed;
            let said = refusal.as_ref().map(|said| format!(": {said}")).unwrap_or_default();
            let text = format!(
                "The bucket of the fleet does not take {} ({}), which this replica serves, and sends later{said}.",
                plural(*count, "archive"),
                ByteSize(*bytes)
            );
            add(Level::Warn, text, Part::Store);
        }
        for (kind, found) in by_kind(&mirror.fleet_alarms) {
            add(Level::Warn, fleet_line(kind, &found), Part::None);
        }
        let failures: &[RecentFailure] = since_start.as_ref().map_or(&[], |since| &since.failures);
        let now = since_start.as_ref().map_or(0, |since| since.started.0.saturating_add(since.seconds));
        let is_recent = |failure: &&RecentFailure| failure.last.0.saturating_add(RECENT_SECONDS) > now;
        let lasting: Vec<&RecentFailure> =
            failures.iter().filter(|failure| !failure.is_over).filter(is_recent).collect();
        if !lasting.is_empty() {
            let times = lasting.iter().fold(0, |times: u64, failure| times.saturating_add(failure.times));
            let text = format!(
                "{} of clients failed, the last within the hour, for {} that larder has not answered since.",
                plural(times, "request"),
                plural(lasting.len() as u64, "URL")
            );
            add(Level::Warn, text, Part::Failures);
        }
        let left_alone = |upstream: &&UpstreamState| !upstream.left_alone.is_empty();
        let down = since_start.iter().flat_map(|since| &since.upstreams).filter(left_alone).count() as u64;
        if down > 0 {
            let verb = if down == 1 { "does" } else { "do" };
            let text =
                format!("{} {verb} not answer as it should. What is stored is served.", plural(down, "upstream"));
            add(Level::Warn, text, Part::Upstreams);
        }
        if !mirror.missing.is_empty() {
            let number = mirror.missing.len() as u64;
            let (asked, stored) = if number == 1 { ("was", "is") } else { ("were", "are") };
            let text =
                format!("{} {asked} asked for while offline and {stored} not stored.", plural(number, "package"));
            add(Level::Warn, text, Part::Missing);
        }
        if lines.is_empty() {
            lines.push(good_line(mirror));
        }
        Self { level, title: title(mirror, level, refused), lines }
    }
}

fn store_line(state: StoreState) -> Option<&'static str> {
    match state {
        StoreState::Ready => None,
        StoreState::NotKeeping => Some("The last archive or document could not be stored. What is stored is served."),
        StoreState::ReadOnly => Some("The store's disk is read-only. What is stored is served, and nothing is added."),
        StoreState::Gone => {
            Some("The store was removed, replaced, or cannot be read. Nothing of it is served until it is back.")
        }
    }
}

fn by_kind(alarms: &[FleetAlarm]) -> BTreeMap<FleetAlarmKind, Vec<&FleetAlarm>> {
    let mut kinds: BTreeMap<FleetAlarmKind, Vec<&FleetAlarm>> = BTreeMap::new();
    alarms.iter().for_each(|alarm| kinds.entry(alarm.kind).or_default().push(alarm));
    kinds
}

/// The line of the alarms of one kind, the last of them in words.
fn fleet_line(kind: FleetAlarmKind, found: &[&FleetAlarm]) -> String {
    let Some(FleetAlarm { detail, since, to_do, .. }) = found.last() else { return String::new() };
    let since = since.date_time();
    let happened = match (kind, found.len()) {
        (FleetAlarmKind::Behind, _) => format!("This replica is behind since {since}"),
        (FleetAlarmKind::DatabaseForgot, _) => {
            format!("The database may have forgotten what was first seen, at {since}")
        }
        (FleetAlarmKind::SettingsDiffer, _) => format!("Replicas have other settings, since {since}"),
        (FleetAlarmKind::BucketContradicts, 1) => {
            format!("An object of the bucket is not what was sent to it, at {since}")
        }
        (FleetAlarmKind::BucketContradicts, objects) => {
            format!("{objects} objects of the bucket are not what was sent to it, the last at {since}")
        }
    };
    format!("{happened}: {detail}. To do: {to_do}.")
}

fn is_unused(mirror: &Status) -> bool {
    mirror.archives == 0 && mirror.documents == 0
}

fn good_line(mirror: &Status) -> VerdictLine {
    let (text, part) = match (mirror.offline, is_unused(mirror)) {
        (true, _) => ("larder is offline: it serves what is stored, and asks nobody.", Part::None),
        (false, true) => ("Nothing is stored yet. What clients install through larder is stored here.", Part::Clients),
        (false, false) => (
            "The store can be written, every upstream that was asked has answered, no request failed, and nothing waits for you.",
            Part::None,
        ),
    };
    VerdictLine { text: text.to_owned(), part }
}

fn title(mirror: &Status, level: Level, refused: u64) -> String {
    match (level, refused) {
        (Level::Bad, 1) if mirror.store_state == StoreState::Ready => "A version waits for your decision".to_owned(),
        (Level::Bad, 2..) if mirror.store_state == StoreState::Ready => {
            format!("{refused} versions wait for your decision")
        }
        (Level::Bad, _) => "The store needs you".to_owned(),
        (Level::Warn, _) => "It works, and something needs a look".to_owned(),
        (Level::Good, _) if is_unused(mirror) => "Ready".to_owned(),
        (Level::Good, _) => "All is well".to_owned(),
    }
}
