//! promtool checks and tests the alert rules. Then Prometheus reads larder's metrics, and every query of the dashboard and
//! of the alerts is asked: it must parse, and name only metrics and labels that exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::live::Live;
use crate::support::programs::find;
use crate::support::{eventually, http};

/// Labels that Prometheus adds to each series, and that of the buckets of a histogram.
const ADDED_LABELS: [&str; 4] = ["job", "instance", "le", "__name__"];
/// The metric that Prometheus makes for each target.
const MADE_BY_PROMETHEUS: &str = "up";

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

pub(crate) async fn problems(live: &Live) -> Vec<String> {
    let mut problems = Vec::new();
    let folder = deploy().join("prometheus");
    for arguments in [["check", "rules", "larder.rules.yml"], ["test", "rules", "larder.rules.test.yml"]] {
        let status = Command::new("promtool").args(arguments).current_dir(&folder).status().await;
        if !status.is_ok_and(|status| status.success()) {
            problems.push(format!("promtool {} failed", arguments.join(" ")));
        }
    }
    let Some(program) = find("prometheus") else {
        problems.push("prometheus is not installed: run tests/long/run promtool".to_owned());
        return problems;
    };
    let server = Server::start(&program, live).await;
    let metrics: BTreeSet<String> = texts(&server.ask("label/__name__/values", &[]).await.unwrap()).collect();
    let queries = [dashboard_queries(), server.alert_queries().await].concat();
    println!("{} queries, {} metrics", queries.len(), metrics.len());
    for (place, query) in queries {
        if let Err(error) = server.ask("query", &[("query", &query)]).await {
            problems.push(format!("{place}: {error}: {query}"));
        }
        for selector in selectors(&query) {
            if !metrics.contains(&selector.metric) {
                problems.push(format!("{place}: no metric {}: {query}", selector.metric));
                continue;
            }
            let labels: BTreeSet<String> =
                texts(&server.ask("labels", &[("match[]", &selector.metric)]).await.unwrap()).collect();
            for label in selector.labels.iter().filter(|label| !labels.contains(*label)) {
                problems.push(format!("{place}: {} has no label {label}: {query}", selector.metric));
            }
        }
    }
    problems
}

/// A Prometheus that reads one larder. Ends when dropped.
struct Server {
    origin: String,
    _process: Child,
    _folder: tempfile::TempDir,
}

impl Server {
    async fn start(program: &Path, live: &Live) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yml");
        let target = live.larder.admin().trim_start_matches("http://").to_owned();
        let rules = deploy().join("prometheus/larder.rules.yml").display().to_string();
        let lines = configuration_of_the_page().replace("127.0.0.1:8081", &target).replace("larder.rules.yml", &rules);
        let text = format!("global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n{lines}");
        std::fs::write(&config, text).unwrap();
        let mut process = Command::new(program)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = loop {
            let line = log.next_line().await.unwrap().expect("Prometheus says where it listens");
            if let Some((_, address)) = line.split_once("msg=\"Listening on\" address=") {
                break address.trim().to_owned();
            }
        };
        // A full pipe would stop Prometheus.
        tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
        let server = Self { origin: format!("http://{address}"), _process: process, _folder: folder };
        server.wait_for_scrapes(2.0).await;
        live.make_traffic().await;
        let scrapes = server.scrapes().await;
        server.wait_for_scrapes(scrapes + 2.0).await;
        server
    }

    /// Asks the HTTP API; returns the data.
    async fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value, String> {
        let url = reqwest::Url::parse_with_params(&format!("{}/api/v1/{path}", self.origin), parameters).unwrap();
        let answer = http::send(http::client().get(url)).await.map_err(|error| error.to_string())?;
        // While it starts, Prometheus answers 503 with a text.
        let answer: Value = serde_json::from_slice(&answer.body).map_err(|_| answer.text())?;
        if answer["status"] == "success" { Ok(answer["data"].clone()) } else { Err(answer["error"].to_string()) }
    }

    /// How many times larder has been read.
    async fn scrapes(&self) -> f64 {
        let query = [("query", "count_over_time(up{job=\"larder\"}[1h])")];
        let data = self.ask("query", &query).await.unwrap_or_default();
        data["result"][0]["value"][1].as_str().and_then(|count| count.parse().ok()).unwrap_or(0.0)
    }

    async fn wait_for_scrapes(&self, count: f64) {
        let is_read = async || (self.scrapes().await >= count).then_some(());
        eventually("Prometheus reads the metrics", is_read).await;
    }

    /// The query of each alert, with its name. Prometheus has parsed the file.
    async fn alert_queries(&self) -> Vec<(String, String)> {
        let data = self.ask("rules", &[]).await.unwrap();
        let rules = data["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let rules: Vec<_> =
            rules.map(|rule| (format!("alert {}", text(&rule["name"])), text(&rule["query"]))).collect();
        assert!(!rules.is_empty(), "{data}");
        rules
    }
}

/// The lines that docs/metrics.md gives people to paste.
fn configuration_of_the_page() -> String {
    let page = std::fs::read_to_string(deploy().join("../docs/metrics.md")).unwrap();
    let (_, block) = page.split_once("```yaml\n").unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

fn texts(list: &Value) -> impl Iterator<Item = String> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned())
}

/// The query of each panel, variable and annotation, with its place. Grafana's variables have the values of a dashboard
/// of all replicas.
fn dashboard_queries() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(deploy().join("grafana/larder.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut queries = Vec::new();
    let mut add = |place: String, query: &Value| {
        let query = query.as_str().unwrap().replace("$__rate_interval", "5m").replace("$instance", ".*");
        assert!(!query.contains('$'), "{place}: an unknown variable: {query}");
        queries.push((place, query));
    };
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            add(format!("panel {}", panel["title"]), &target["expr"]);
        }
    }
    for annotation in dashboard["annotations"]["list"].as_array().unwrap() {
        add(format!("annotation {}", annotation["name"]), &annotation["expr"]);
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["query"]["query"].as_str() {
            let (metric, label) = query
                .strip_prefix("label_values(")
                .and_then(|query| query.strip_suffix(')')?.split_once(", "))
                .unwrap();
            add(format!("variable {}", variable["name"]), &format!("count by ({label}) ({metric})").into());
        }
    }
    assert!(queries.len() > 30, "{queries:?}");
    queries
}

/// A metric that a query names, and the labels that the query compares or groups by.
struct Selector {
    metric: String,
    labels: Vec<String>,
}

/// The metrics of a query: larder's have its prefix. A label in `by (…)` counts for each metric of the query that has no
/// other source for it, so only the braces are read.
fn selectors(query: &str) -> Vec<Selector> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut selectors = Vec::new();
    let mut rest = query;
    while let Some(start) = rest.find(is_name) {
        let word_end = rest[start..].find(|c| !is_name(c)).map_or(rest.len(), |length| start + length);
        let (word, after) = (&rest[start..word_end], &rest[word_end..]);
        rest = after;
        if !word.starts_with("larder_") && word != MADE_BY_PROMETHEUS {
            // The text of a label's value is no name.
            if after.starts_with(['=', '!']) {
                rest = after.splitn(3, '"').nth(2).unwrap_or_default();
            }
            continue;
        }
        let braces = after.strip_prefix('{').and_then(|after| after.split_once('}')).map_or("", |(braces, _)| braces);
        let labels = braces.split("\",").filter_map(|matcher| matcher.split(['=', '!']).next()).map(str::trim);
        let labels = labels.filter(|label| !label.is_empty() && !ADDED_LABELS.contains(label)).map(str::to_owned);
        selectors.push(Selector { metric: word.to_owned(), labels: labels.collect() });
    }
    selectors
}
