//! `larder doctor`: checks the configuration, the running larder, its store, disk, clock and upstreams, and whether the
//! clients of this machine use it. Changes nothing, and limits every wait.

mod check;
mod client;
mod clock;
mod disk;
mod identify_server;
mod listener;
mod running;
mod upstreams;

use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt, StreamExt};

pub use self::check::{Check, CheckResult};

use self::running::{LarderState, RunningLarder};
use crate::app::{self, StartError};
use crate::cdn_loop::OwnEntry;
use crate::clock::{Clock, Timestamp};
use crate::config::{self, Config, Problems, Warning};
use crate::http::client_roots::ClientRoots;
use crate::requirements::cli_config::search_paths::Environment;
use crate::store::{Store, StoreFindings};
use crate::upstream::limits::UpstreamLimits;
use crate::upstream::outbound::Outbound;
use crate::upstream::{Traffic, Upstreams};

/// Longest wait for one answer.
const WITHIN: Duration = Duration::from_secs(6);

/// Checks of one group, and the times announced by other servers.
#[derive(Debug, Default)]
struct Findings {
    checks: Vec<Check>,
    announced_times: Vec<clock::TimeSource>,
}

impl From<Vec<Check>> for Findings {
    fn from(checks: Vec<Check>) -> Self {
        Self { checks, announced_times: Vec::new() }
    }
}

/// Runs all checks. Calls `report` with each check in order, as soon as it is available.
pub async fn examine(loaded: Result<(Config, Vec<Warning>), Problems>, mut report: impl FnMut(Check)) {
    let (config, warnings) = match loaded {
        Ok(loaded) => loaded,
        Err(problems) => {
            return check::of_problems(problems.remarks()).into_iter().for_each(report);
        }
    };
    let of_configuration = check::of_configuration(&config, &warnings, app::start_problems(&config));
    let can_start = of_configuration.iter().all(|check| check.verdict != CheckResult::Fail);
    of_configuration.into_iter().for_each(&mut report);
    let Some(examined) = examine_store(&config).await else {
        report(
            Check::fail("store", format!("{} does not respond", config.store.path.display()))
                .advise("check the disk of the store: reads from it hang"),
        );
        return;
    };
    let (running, checks) = running::check_running(&config, &examined).await;
    checks.into_iter().for_each(&mut report);
    if running.state != LarderState::NeverSetUp {
        disk::check_disk(&config, &examined, running.used_bytes).await.into_iter().for_each(&mut report);
    }

    let environment = config::environment();
    let Some(trust) = trust(&environment).await else {
        report(
            Check::fail("client.trust", "the files of the authorities that clients trust do not respond")
                .advise("check the disk of SSL_CERT_FILE, SSL_CERT_DIR and /etc/ssl: reads from it hang"),
        );
        return;
    };
    let clock = Clock::system();
    let mut announced_times = Vec::new();
    let groups: FuturesOrdered<BoxFuture<'_, Findings>> = [
        listener::check_listener(&config, &running, &trust).boxed(),
        of_upstreams(&config, &running, can_start, clock.now()).boxed(),
        client::check_client(&config, &running, &environment, &trust).map(Findings::from).boxed(),
    ]
    .into_iter()
    .collect();
    let mut groups = groups;
    while let Some(findings) = groups.next().await {
        findings.checks.into_iter().for_each(&mut report);
        announced_times.extend(findings.announced_times);
    }
    report(clock::check_clock(clock.now(), &announced_times));
}

/// Examines the store on disk; `None` where the disk does not respond in time.
async fn examine_store(config: &Config) -> Option<StoreFindings> {
    let folder = config.store.path.clone();
    let task = tokio::task::spawn_blocking(move || Store::examine(&folder));
    tokio::time::timeout(WITHIN, task).await.ok()?.ok()
}

/// Reads the certificate authorities that clients trust; `None` where the disk does not respond in time.
async fn trust(environment: &Environment) -> Option<ClientRoots> {
    let [file, folders] = ["SSL_CERT_FILE", "SSL_CERT_DIR"].map(|name| environment.get(name).cloned());
    let reading = tokio::task::spawn_blocking(move || ClientRoots::of_clients(file.as_deref(), folders.as_deref()));
    tokio::time::timeout(WITHIN, reading).await.ok()?.ok()
}

async fn of_upstreams(config: &Config, running: &RunningLarder, can_start: bool, now: Timestamp) -> Findings {
    if running.state == LarderState::NeverSetUp {
        return vec![Check::ok("upstreams", "not checked: no larder is set up here")].into();
    }
    if running.is_offline {
        return vec![Check::ok("upstreams", "not checked: larder is offline")].into();
    }
    if !can_start {
        // The outbound connector needs the files that failed to load.
        return Findings::default();
    }
    let outbound = match outbound(config) {
        Ok(outbound) => outbound,
        Err(error) => return vec![Check::fail("upstreams", error.to_string())].into(),
    };
    let upstreams = Upstreams::new(&config.upstreams, &config.credentials, &config.network.allow_private);
    let checks = upstreams.hosts().into_iter().filter_map(|host| upstreams.get(host));
    let checks = checks.map(|upstream| upstreams::check_upstream(upstream, &outbound, &config.store.path, now));
    let mut all = Findings::default();
    for Findings { checks, announced_times } in futures_util::future::join_all(checks).await {
        all.checks.extend(checks);
        all.announced_times.extend(announced_times);
    }
    all
}

/// Builds larder's outbound connector, without a store.
fn outbound(config: &Config) -> Result<Outbound, StartError> {
    let own = OwnEntry::random().map_err(|_| StartError::Random)?;
    Ok(Outbound::new(&config.network, &config.upstreams, own, Traffic::default(), UpstreamLimits::default())?)
}
