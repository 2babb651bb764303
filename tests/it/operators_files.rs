//! The files of `deploy/`: the dashboard and the alert rules name metrics that larder has, and each alert tells a person
//! what to do. `tests/long/run promtool` asks every query of a real Prometheus.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::support::http::get;
use crate::support::larder::Larder;
use crate::support::openmetrics::parse;
use crate::support::upstream::FakeUpstream;

const DASHBOARD: &str = "deploy/grafana/larder.json";
const RULES: &str = "deploy/prometheus/larder.rules.yml";
const RULES_TEST: &str = "deploy/prometheus/larder.rules.test.yml";

fn file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The names of metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("larder_")).map(str::to_owned).collect()
}

#[tokio::test]
async fn dashboard_and_alerts_name_only_metrics_that_exist() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    larder.versions("absent").await.expect(404);
    let exposition = parse(&get(&format!("{}/metrics", larder.admin())).await.expect(200).text());
    let exposed: BTreeSet<String> =
        exposition.samples.keys().map(|series| series.split('{').next().unwrap().to_owned()).collect();
    for path in [DASHBOARD, RULES, RULES_TEST] {
        let named = metrics_in(&file(path));
        assert!(named.len() > 15, "{path}: {named:?}");
        let unknown: Vec<_> = named.difference(&exposed).collect();
        assert!(unknown.is_empty(), "{path} names {unknown:?}, which /metrics does not have");
    }
}

/// The beginning of every link: the folder that the first rule names.
const RUNBOOKS: &str = "runbook_url: '{{ with query \"larder:docs\" }}{{ . | first | label \"url\" }}{{ end }}";

/// A person at night reads the summary, then the description, then the page: each must be there.
#[test]
fn each_alert_has_a_severity_a_text_and_a_section_of_its_own() {
    let (rules, tests, page) = (file(RULES), file(RULES_TEST), file("docs/alerts.md"));
    let mut names = BTreeSet::new();
    for alert in rules.split("- alert: ").skip(1) {
        let name = alert.lines().next().unwrap();
        let severities =
            ["page", "ticket"].map(|severity| alert.contains(&format!("labels: {{ severity: {severity} }}")));
        assert_eq!(severities.iter().filter(|has| **has).count(), 1, "{name}: one severity");
        let summary = alert.lines().find_map(|line| line.trim().strip_prefix("summary: ")).unwrap();
        assert!(summary.contains("larder") && summary.contains("$labels.instance"), "{name}: which larder? {summary}");
        assert!(alert.contains("description: >-"), "{name}: what to do");
        assert!(
            alert.contains(&format!("{RUNBOOKS}/alerts.md#{}'\n", name.to_lowercase())),
            "{name}: a link to its section"
        );
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "{name}: test it in {RULES_TEST}");
        assert!(names.insert(name.to_owned()), "{name} twice");
    }
    let sections: BTreeSet<String> =
        page.lines().filter_map(|line| line.strip_prefix("### ")).map(str::to_owned).collect();
    assert_eq!(names, sections, "each alert has a section in docs/alerts.md, and each section an alert");
}

#[test]
fn each_panel_of_the_dashboard_has_a_place_of_its_own_and_asks_the_chosen_data_source() {
    let dashboard: Value = serde_json::from_str(&file(DASHBOARD)).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is taken");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(x + w <= 24, "{title} is too wide");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(cells.insert(cell), "{title} covers another panel");
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            assert!(target["expr"].as_str().unwrap().contains("instance=~\"$instance\""), "{title}: of which replica?");
        }
    }
    assert!(panels.len() > 30);
}
