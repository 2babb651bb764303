//! `larder doctor`: checks the configuration, the running larder, its store, disk, clock and upstreams, and whether the
//! clients of this machine use it. Changes nothing, and limits every wait.

mod client;
#[cfg(feature = "fleet")]
mod fleet;
mod issuers;
mod listener;
mod machine;
mod upstreams;

use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt, StreamExt};
use serde::Serialize;

pub(crate) use self::listener::is_own_listener;
use self::machine::{AnnouncedTimes, LarderState, RunningLarder};
use self::upstreams::UpstreamCheck;
use crate::app::{self, running_larder};
use crate::clock::{Clock, Timestamp};
use crate::config::{self, Config, ConfigReading, Diagnostic, Problems};
use crate::http::probe_client::ClientRoots;
use crate::store::Store;
use crate::upstream::issuers::Issuers;
use crate::upstream::limits::UpstreamLimits;
use crate::upstream::{Traffic, Upstreams};

/// The longest wait for one answer of a server or a disk.
const PROBE_TIMEOUT: Duration = Duration::from_secs(6);

/// Runs all checks. Calls `report` with each check in order, as soon as it is available.
pub async fn examine(reading: ConfigReading, mut report: impl FnMut(Check)) {
    let ConfigReading { config, warnings, problems } = reading;
    if let Some(problems) = problems {
        return examine_despite(&problems, &config, report).await;
    }
    let configuration_checks = of_configuration(&config, &warnings, app::start_problems(&config));
    let can_start = configuration_checks.iter().all(|check| check.verdict != CheckResult::Fail);
    configuration_checks.into_iter().for_each(&mut report);
    if let Some(fleet) = &config.fleet {
        check_fleet(fleet, &config.network).await.into_iter().for_each(&mut report);
    }
    let folder = config.store.path.clone();
    let Some(store) = in_time(move || Store::examine(&folder)).await else {
        report(
            Check::fail("store", format!("{} does not respond", config.store.path.display()))
                .advise("check the disk of the store: reads from it hang"),
        );
        return;
    };
    let (running, checks) = machine::check_running(&config, &store).await;
    checks.into_iter().for_each(&mut report);
    if running.state != LarderState::NeverSetUp {
        machine::check_disk(&config, &store, running.used_bytes).await.into_iter().for_each(&mut report);
    }

    let environment = config::environment();
    let [file, folders] = ["SSL_CERT_FILE", "SSL_CERT_DIR"].map(|name| environment.get(name).cloned());
    let Some(client_roots) = in_time(move || ClientRoots::of_clients(file.as_deref(), folders.as_deref())).await else {
        report(
            Check::fail("client.trust", "the certificate authorities of the clients could not be read in time")
                .advise("check the disk of SSL_CERT_FILE, SSL_CERT_DIR and /etc/ssl: reads from it hang"),
        );
        return;
    };
    let (now, times) = (Clock::system().now(), AnnouncedTimes::default());
    let mut groups: FuturesOrdered<BoxFuture<'_, Vec<Check>>> = [
        listener::check_listener(&config, &running, &client_roots, &times).boxed(),
        check_upstreams(&config, &running, can_start, now, &times).boxed(),
        client::check_client(&config, &running, &environment, &client_roots).boxed(),
    ]
    .into_iter()
    .collect();
    while let Some(checks) = groups.next().await {
        checks.into_iter().for_each(&mut report);
    }
    drop(groups);
    report(machine::check_clock(Clock::system().now(), &times.into_inner()));
}

/// The checks that are possible where the configuration does not load. A larder that runs with it goes on with what it read
/// before, so it is asked.
async fn examine_despite(problems: &Problems, config: &Config, mut report: impl FnMut(Check)) {
    let found = tokio::time::timeout(PROBE_TIMEOUT, running_larder::find_despite_problems(config)).await;
    let mut checks: Vec<Check> =
        problems.diagnostics().iter().map(|problem| Check::fail(CONFIG, problem.to_string())).collect();
    let (running, advice) = match found {
        Ok(Ok(Some((_, config)))) => (Some(config), DESPITE_PROBLEMS.to_owned()),
        Ok(Ok(None)) | Err(_) => (None, WITHOUT_CONFIGURATION.to_owned()),
        Ok(Err(not_reached)) => (None, format!("{WITHOUT_CONFIGURATION}; no running larder was asked: {not_reached}")),
    };
    if running.is_some() {
        checks.iter_mut().for_each(|check| check.verdict = CheckResult::Warn);
    }
    if let Some(last) = checks.last_mut() {
        last.advice.push(advice);
    }
    checks.into_iter().for_each(&mut report);
    let Some(config) = running else { return };
    let folder = config.store.path.clone();
    if let Some(store) = in_time(move || Store::examine(&folder)).await {
        let (_, checks) = machine::check_running(&config, &store).await;
        checks.into_iter().for_each(report);
    }
}

#[cfg(feature = "fleet")]
async fn check_fleet(fleet: &config::Fleet, network: &config::Network) -> Vec<Check> {
    fleet::check(fleet, network, Clock::system().now()).await
}

#[cfg(not(feature = "fleet"))]
async fn check_fleet(_: &config::Fleet, _: &config::Network) -> Vec<Check> {
    let finding = "not checked: this larder was built without the feature fleet";
    vec![Check::warn("fleet.database", finding).advise("build it with cargo build --features fleet")]
}

/// The result of work that reads from a disk; `None` where the disk does not respond in time.
async fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::time::timeout(PROBE_TIMEOUT, tokio::task::spawn_blocking(work)).await.ok()?.ok()
}

/// Checks all upstreams, and the issuers of clients' tokens, at once.
async fn check_upstreams(
    config: &Config,
    running: &RunningLarder,
    can_start: bool,
    now: Timestamp,
    times: &AnnouncedTimes,
) -> Vec<Check> {
    if running.state == LarderState::NeverSetUp {
        return vec![Check::passed("upstreams", "not checked: no larder is set up here")];
    }
    if running.is_offline {
        return vec![Check::passed("upstreams", "not checked: larder is offline")];
    }
    if !can_start {
        // The outbound connector needs the files that failed to load.
        return Vec::new();
    }
    let outbound = match app::outbound(config, Traffic::default(), UpstreamLimits::default()) {
        Ok(outbound) => outbound,
        Err(error) => return vec![Check::fail("upstreams", error.to_string())],
    };
    let upstreams = Upstreams::new(&config.upstreams, &config.credentials, &config.network.allow_private);
    let issuers = match Issuers::new(config, &outbound) {
        Ok(issuers) => issuers,
        Err(error) => return vec![Check::fail(issuers::KEYS, error.to_string())],
    };
    let outbound = &outbound;
    let checks = upstreams.hosts().into_iter().filter_map(|host| upstreams.get(host)).map(|upstream| async move {
        let host = &upstream.settings.host;
        let checks = UpstreamCheck { upstream, outbound, host, now }.run(&config.store.path, times).await;
        checks.into_iter().map(|check| check.about(host)).collect::<Vec<_>>()
    });
    let keys = issuers.all().map(|issuer| issuers::check_keys(issuer, now, times));
    let (mut checks, keys) = tokio::join!(join_all(checks), join_all(keys));
    checks.push(keys);
    checks.concat()
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckResult {
    /// The subject works.
    Ok,
    /// The subject works or may work, but needs attention.
    Warn,
    /// The subject does not work.
    Fail,
}

/// One line of the doctor's report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Identifier of the subject or of the fault; stable across versions.
    pub id: &'static str,
    /// Result of the check.
    pub verdict: CheckResult,
    /// The upstream or client that the check is about, where there are several.
    #[serde(rename = "of", skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The finding.
    #[serde(rename = "found")]
    pub finding: String,
    /// The steps to take, one per entry.
    #[serde(rename = "to_do", skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<String>,
    /// Lines for a configuration file, to paste verbatim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paste: Option<String>,
}

impl Check {
    fn new(id: &'static str, verdict: CheckResult, finding: impl Into<String>) -> Self {
        Self { id, verdict, subject: None, finding: finding.into(), advice: Vec::new(), paste: None }
    }

    fn passed(id: &'static str, finding: impl Into<String>) -> Self {
        Self::new(id, CheckResult::Ok, finding)
    }

    fn warn(id: &'static str, finding: impl Into<String>) -> Self {
        Self::new(id, CheckResult::Warn, finding)
    }

    fn fail(id: &'static str, finding: impl Into<String>) -> Self {
        Self::new(id, CheckResult::Fail, finding)
    }

    /// Sets the upstream or client that the check is about.
    fn about(mut self, subject: impl ToString) -> Self {
        self.subject = Some(subject.to_string());
        self
    }

    /// Adds a step to the advice.
    fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice.push(advice.into());
        self
    }

    /// Limits the result to a warning, because the client's request may take another way than the doctor's. Appends
    /// `reason`.
    fn at_most_warn(mut self, reason: &str) -> Self {
        self.verdict = self.verdict.min(CheckResult::Warn);
        self.finding.push_str(reason);
        self
    }

    /// Sets the lines to paste.
    fn paste(mut self, lines: impl Into<String>) -> Self {
        self.paste = Some(lines.into());
        self
    }
}

/// Identifier of checks of `mirror.toml`.
const CONFIG: &str = "config";

const WITHOUT_CONFIGURATION: &str = "fix the configuration; other checks are possible only once it loads";

const DESPITE_PROBLEMS: &str = "the larder that runs goes on with what it read before; fix the configuration before its next \
     restart or reload, or run the doctor as larder's user and with its environment; most checks are possible only once it \
     loads here";

/// Checks for a configuration that loads: its warnings, and the problems that would prevent a start.
fn of_configuration(config: &Config, warnings: &[Diagnostic], problems: Vec<String>) -> Vec<Check> {
    let warnings = warnings.iter().map(|warning| Check::warn(CONFIG, warning.to_string()));
    let advice = "fix this problem; larder does not start otherwise";
    let problems = problems.into_iter().map(|problem| Check::fail(CONFIG, problem).advise(advice));
    let mut checks: Vec<Check> = problems.chain(warnings).collect();
    if checks.is_empty() {
        let file = config.source.as_ref().map(|file| file.display().to_string());
        checks.push(Check::passed(CONFIG, file.unwrap_or_else(|| "no file found: the defaults".to_owned())));
    }
    checks
}
