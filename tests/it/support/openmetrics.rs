//! A strict reader of OpenMetrics: a violation of the format fails the test. It also enforces rules of this project:
//! every family has a HELP text, which is one sentence with a capital letter and a full stop; names have lower-case
//! letters and underscores only; no value is negative.

use std::collections::{BTreeMap, BTreeSet};

/// A name and its labels, sorted: `name{a="1",b="2"}`.
pub(crate) type Series = String;

/// The parsed text of one `/metrics` response.
#[derive(Debug, Clone, Default)]
pub(crate) struct Exposition {
    /// The families and their types.
    pub(crate) families: BTreeMap<String, String>,
    /// The samples and their values.
    pub(crate) samples: BTreeMap<Series, f64>,
    /// Every value of every label but `le`, by name of the label.
    pub(crate) labels: BTreeMap<String, BTreeSet<String>>,
}

impl Exposition {
    /// The value of a series; panics if it is absent.
    pub(crate) fn value(&self, series: &str) -> f64 {
        let value = self.samples.get(series);
        *value.unwrap_or_else(|| panic!("{series} is not in {:#?}", self.samples))
    }

    /// The counters whose value changed since `previous`, and the differences.
    pub(crate) fn grown_since(&self, previous: &Self) -> BTreeMap<Series, f64> {
        let grown = self.samples.iter().map(|(series, value)| {
            let previous_value = previous.samples.get(series).copied().unwrap_or_default();
            (series.clone(), value - previous_value)
        });
        grown.filter(|(series, increase)| series.contains("_total") && *increase != 0.0).collect()
    }
}

/// A family that is being read.
#[derive(Default)]
struct Family {
    name: String,
    kind: Option<String>,
    help: Option<String>,
    unit: Option<String>,
    samples: usize,
}

impl Family {
    /// True for a sample name of this family.
    fn matches_sample(&self, sample: &str) -> bool {
        let Some(suffix) = sample.strip_prefix(self.name.as_str()) else { return false };
        match self.kind.as_deref() {
            Some("counter") => suffix == "_total",
            Some("gauge") => suffix.is_empty(),
            Some("info") => suffix == "_info",
            Some("histogram") => ["_bucket", "_sum", "_count"].contains(&suffix),
            other => panic!("{}: the type {other:?}", self.name),
        }
    }
}

/// Parses an exposition; panics at any violation of the format or of the project's own rules.
pub(crate) fn parse(text: &str) -> Exposition {
    let body = text.strip_suffix("# EOF\n").expect("the last line is `# EOF`");
    let (mut exposition, mut family) = (Exposition::default(), Family::default());
    for line in body.lines() {
        assert!(!line.is_empty() && line == line.trim(), "an odd line: {line:?}");
        match line.strip_prefix("# ") {
            Some(metadata) => {
                let mut words = metadata.splitn(3, ' ');
                let (keyword, name, value) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
                if name != family.name {
                    finish(std::mem::take(&mut family), &mut exposition);
                    assert!(!exposition.families.contains_key(name), "{name} occurs twice");
                    family.name = name.to_owned();
                }
                assert_eq!(family.samples, 0, "{name}: {keyword} after its samples");
                let slot = match keyword {
                    "TYPE" => &mut family.kind,
                    "HELP" => &mut family.help,
                    "UNIT" => &mut family.unit,
                    other => panic!("# {other}"),
                };
                assert!(slot.replace(value.to_owned()).is_none(), "{name}: {keyword} occurs twice");
            }
            None => {
                assert!(!line.starts_with('#'), "{line}");
                let (name, labels, value) = parse_sample(line);
                assert!(family.matches_sample(&name), "{name} is listed under {}", family.name);
                family.samples += 1;
                let value: f64 = value.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
                assert!(value >= 0.0 && value.is_finite(), "{line}");
                for (label, value) in labels.iter().filter(|(label, _)| label != "le") {
                    exposition.labels.entry(label.clone()).or_default().insert(value.clone());
                }
                let previous = exposition.samples.insert(series(&name, &labels), value);
                assert!(previous.is_none(), "{line} occurs twice");
            }
        }
    }
    finish(family, &mut exposition);
    assert_cumulative_histograms(&exposition);
    exposition
}

/// Checks a family whose lines have all been read, and adds it to the exposition.
fn finish(family: Family, exposition: &mut Exposition) {
    if family.name.is_empty() {
        return;
    }
    let name = family.name;
    let help = family.help.unwrap_or_else(|| panic!("{name} has no HELP"));
    assert!(
        help.ends_with('.') && !help.ends_with("..") && help.chars().next().unwrap().is_uppercase(),
        "{name}: {help}"
    );
    if let Some(unit) = family.unit {
        assert!(name.ends_with(&format!("_{unit}")), "{name} has the unit {unit}");
    }
    assert!(!name.ends_with("_total"), "{name}");
    assert!(exposition.families.insert(name, family.kind.expect("a TYPE")).is_none());
}

/// Parses a line with a sample: its name, its labels (sorted) and its value.
fn parse_sample(line: &str) -> (String, Vec<(String, String)>, &str) {
    let end = line.find(['{', ' ']).unwrap();
    let name = line[..end].to_owned();
    assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
    let Some(rest) = line[end..].strip_prefix('{') else { return (name, Vec::new(), &line[end + 1..]) };
    // Label values of larder contain no quote, backslash, brace or comma, so commas only separate labels.
    let (labels, value) = rest.split_once("} ").unwrap();
    let pair = |pair: &str| {
        let (label, value) = pair.split_once('=').unwrap();
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap();
        assert!(!value.contains(['"', '\\', '{', '}']), "{line}");
        (label.to_owned(), value.to_owned())
    };
    let mut labels: Vec<(String, String)> = labels.split(',').map(pair).collect();
    labels.sort();
    assert!(labels.windows(2).all(|two| two[0].0 != two[1].0), "{line}");
    (name, labels, value)
}

/// The series with this name and these labels.
fn series(name: &str, labels: &[(String, String)]) -> Series {
    if labels.is_empty() {
        return name.to_owned();
    }
    let labels: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
    format!("{name}{{{}}}", labels.join(","))
}

/// Asserts that the buckets of each histogram are cumulative, and that the last one (`+Inf`) equals the count.
fn assert_cumulative_histograms(exposition: &Exposition) {
    for (name, _) in exposition.families.iter().filter(|(_, kind)| *kind == "histogram") {
        let counts = exposition.samples.iter().filter(|(series, _)| series.starts_with(&format!("{name}_count")));
        for (histogram, count) in counts {
            let labels = histogram.split_once('{').map_or("", |(_, labels)| labels.trim_end_matches('}'));
            let mut buckets: Vec<(f64, f64)> = Vec::new();
            for (series, value) in
                exposition.samples.iter().filter(|(series, _)| series.starts_with(&format!("{name}_bucket")))
            {
                let (_, labels_with_le) = series.split_once('{').unwrap();
                let pairs: Vec<&str> = labels_with_le.trim_end_matches('}').split(',').collect();
                let (le, others): (Vec<&str>, Vec<&str>) = pairs.into_iter().partition(|pair| pair.starts_with("le="));
                if others.join(",") == labels {
                    let le = le[0].trim_start_matches("le=").trim_matches('"');
                    buckets.push((if le == "+Inf" { f64::INFINITY } else { le.parse().unwrap() }, *value));
                }
            }
            buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
            assert!(buckets.windows(2).all(|two| two[0].1 <= two[1].1), "{name}: {buckets:?}");
            assert_eq!(buckets.last(), Some(&(f64::INFINITY, *count)), "{histogram}");
        }
    }
}
