//! Charts of the traffic: stacked bars as SVG, with the same figures as text and as a table.

use bytesize::ByteSize;

use super::{Moment, grouped};
use crate::clock::Timestamp;
use crate::jobs::{Traffic, TrafficCount};
use crate::wording::percent;

/// The height of a chart, in its own units. Each bar has a width of ten.
const HEIGHT: f64 = 100.0;
const BAR_WIDTH: u64 = 10;

/// The traffic of a time, as charts, text and table.
pub(super) struct TrafficView {
    /// `Last hour`
    pub(super) name: &'static str,
    pub(super) id: &'static str,
    /// The beginning of the time, as `1 h ago`.
    pub(super) begin: &'static str,
    pub(super) summary: String,
    /// Empty if nothing happened.
    pub(super) charts: Vec<Chart>,
    pub(super) rows: Vec<Row>,
}

/// One chart.
pub(super) struct Chart {
    pub(super) title: &'static str,
    /// The content in words, for people who cannot see it.
    pub(super) description: String,
    pub(super) width: u64,
    /// The value at the upper edge.
    pub(super) top: String,
    pub(super) series: Vec<Series>,
    pub(super) bars: Vec<BarText>,
}

/// A part of each bar.
pub(super) struct Series {
    pub(super) name: &'static str,
    /// The class in the style sheet.
    pub(super) class: &'static str,
    /// The outlines of its parts of all bars.
    pub(super) path: String,
}

/// The text of one bar.
pub(super) struct BarText {
    pub(super) x: u64,
    pub(super) text: String,
}

/// A row of the table.
pub(super) struct Row {
    pub(super) start: Moment,
    pub(super) requests: String,
    pub(super) hit_percent: String,
    pub(super) sent: String,
    pub(super) saved: String,
    pub(super) received: String,
}

/// A kind of value that is summed up of several counts.
struct SeriesKind {
    name: &'static str,
    class: &'static str,
    value: fn(&Traffic) -> u64,
}

const REQUESTS: [SeriesKind; 4] = [
    SeriesKind {
        name: "from the store",
        class: "store",
        value: |traffic| traffic.get(TrafficCount::Hit).saturating_add(traffic.get(TrafficCount::Stale)),
    },
    SeriesKind {
        name: "upstream was asked",
        class: "upstream",
        value: |traffic| traffic.get(TrafficCount::Miss).saturating_add(traffic.get(TrafficCount::Revalidated)),
    },
    SeriesKind {
        name: "not found, or the client left",
        class: "other",
        value: |traffic| traffic.get(TrafficCount::Absent).saturating_add(traffic.get(TrafficCount::Left)),
    },
    SeriesKind {
        name: "refused or failed",
        class: "failed",
        value: |traffic| traffic.get(TrafficCount::Refused).saturating_add(traffic.get(TrafficCount::Failed)),
    },
];

const BYTES: [SeriesKind; 2] = [
    SeriesKind { name: "from the store", class: "store", value: |traffic| traffic.get(TrafficCount::SavedBytes) },
    SeriesKind {
        name: "fetched for the request",
        class: "upstream",
        value: |traffic| traffic.get(TrafficCount::SentBytes).saturating_sub(traffic.get(TrafficCount::SavedBytes)),
    },
];

impl TrafficView {
    /// The charts of `spans`, of which each lasts `span_name`, and the table of the fewer `rows`, both the oldest first.
    pub(super) fn new(
        (id, name, begin): (&'static str, &'static str, &'static str),
        span_name: &'static str,
        spans: &[(Timestamp, Traffic)],
        rows: &[(Timestamp, Traffic)],
        now: Timestamp,
    ) -> Self {
        let total = spans.iter().fold(Traffic::default(), |total, (_, traffic)| total.plus(traffic));
        let bytes = |number: u64| ByteSize(number).to_string();
        let charts = match total.is_empty() {
            true => Vec::new(),
            false => vec![
                Chart::new("Sent to clients", span_name, &BYTES, bytes, spans, now),
                Chart::new("Requests", span_name, &REQUESTS, grouped, spans, now),
            ],
        };
        let rows = if total.is_empty() { &[] } else { rows };
        Self {
            name,
            id,
            begin,
            summary: summary(&total),
            charts,
            rows: rows.iter().map(|row| Row::of(row, now)).collect(),
        }
    }
}

/// The figures of a time in a sentence.
fn summary(total: &Traffic) -> String {
    if total.is_empty() {
        return "No request came in this time.".to_owned();
    }
    let [sent, saved, received] =
        [TrafficCount::SentBytes, TrafficCount::SavedBytes, TrafficCount::UpstreamBytes].map(|count| total.get(count));
    let share = percent(saved, sent).map(|percent| format!(", {percent} % of it from the store")).unwrap_or_default();
    let requests = match total.requests() {
        1 => "1 request".to_owned(),
        many => format!("{} requests", grouped(many)),
    };
    format!("{requests}. {} sent to clients{share}. {} received from upstreams.", ByteSize(sent), ByteSize(received))
}

impl Chart {
    fn new(
        title: &'static str,
        span_name: &'static str,
        kinds: &[SeriesKind],
        text: impl Fn(u64) -> String,
        spans: &[(Timestamp, Traffic)],
        now: Timestamp,
    ) -> Self {
        let sum = |traffic: &Traffic| kinds.iter().map(|kind| (kind.value)(traffic)).fold(0, u64::saturating_add);
        let highest = spans.iter().map(|(_, traffic)| sum(traffic)).max().unwrap_or_default();
        let mut series: Vec<Series> =
            kinds.iter().map(|SeriesKind { name, class, .. }| Series { name, class, path: String::new() }).collect();
        for (index, (_, traffic)) in (0_u64..).zip(spans) {
            let mut below = 0;
            for (kind, series) in kinds.iter().zip(&mut series) {
                let value = (kind.value)(traffic);
                if value > 0 {
                    series.path.push_str(&bar(index * BAR_WIDTH, below, value, highest));
                }
                below = below.saturating_add(value);
            }
        }
        let parts = kinds.iter().map(|kind| {
            let value = spans.iter().map(|(_, traffic)| (kind.value)(traffic)).fold(0, u64::saturating_add);
            format!("{} {}", text(value), kind.name)
        });
        let parts = parts.collect::<Vec<_>>().join(", ");
        let bars = (0_u64..).zip(spans).map(|(index, (start, traffic))| {
            let values = kinds.iter().map(|kind| ((kind.value)(traffic), kind.name)).filter(|(value, _)| *value > 0);
            let values: Vec<String> = values.map(|(value, name)| format!("{} {name}", text(value))).collect();
            let values = if values.is_empty() { "nothing".to_owned() } else { values.join(", ") };
            BarText { x: index * BAR_WIDTH, text: format!("{}: {values}", Moment::ago(*start, now).clock) }
        });
        Self {
            title,
            description: format!("{title}: {parts}. At most {} in {span_name}.", text(highest)),
            width: spans.len() as u64 * BAR_WIDTH,
            top: format!("{} in {span_name}", text(highest)),
            series,
            bars: bars.collect(),
        }
    }
}

/// The outline of a part of a bar that begins above `below` of `highest`. Each part can be seen, however small it is.
fn bar(x: u64, below: u64, value: u64, highest: u64) -> String {
    let scale = HEIGHT / highest.max(1) as f64;
    let height = (value as f64 * scale).max(1.0);
    let bottom = HEIGHT - below as f64 * scale;
    let top = (bottom - height).max(0.0);
    format!("M{} {bottom:.1}V{top:.1}h{}V{bottom:.1}z", x + 1, BAR_WIDTH - 2)
}

impl Row {
    fn of((start, traffic): &(Timestamp, Traffic), now: Timestamp) -> Self {
        let bytes = |count| ByteSize(traffic.get(count)).to_string();
        Self {
            start: Moment::ago(*start, now),
            requests: grouped(traffic.requests()),
            hit_percent: traffic.hit_percent().map_or_else(|| "–".to_owned(), |percent| format!("{percent} %")),
            sent: bytes(TrafficCount::SentBytes),
            saved: bytes(TrafficCount::SavedBytes),
            received: bytes(TrafficCount::UpstreamBytes),
        }
    }
}
