//! Counts what each `larder run` was sent. Counting costs nothing for other requests.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::requests::{RequestOutcome, Source};
use crate::address::Hostname;
use crate::protocol::route::{Route, RouteSubject};
use crate::protocol::run::{RunId, RunReport, RunSources};

/// Runs whose counts are kept; a further one replaces the oldest.
const MAX_RUNS: usize = 64;
/// Different files that are counted for one run.
const MAX_FILES: usize = 4096;
/// The longest wait for answers that the run's client has already left.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The counts of the latest runs, shared by all copies.
#[derive(Debug, Clone, Default)]
pub struct Runs(Arc<Mutex<IndexMap<RunId, Arc<RunCounts>>>>);

/// The counts of one run.
#[derive(Debug, Default)]
struct RunCounts {
    state: Mutex<RunState>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct RunState {
    in_flight: u64,
    files: HashMap<String, SentFile>,
    /// Module versions that were fetched when their location was asked for: their archives are stored a moment later.
    fetched_modules: HashSet<String>,
    failed: u64,
}

/// A file that a run was sent, in one answer or more.
#[derive(Debug)]
struct SentFile {
    content: RunContent,
    source: Source,
    is_stale: bool,
    bytes: u64,
}

/// The content of an answer: its registry and its kind.
#[derive(Debug, Clone)]
pub(super) struct RunContent {
    path: String,
    host: Hostname,
    is_package: bool,
    /// The module version of a location or an archive.
    module: Option<String>,
}

impl RunContent {
    /// The content at a route; `None` for probes.
    pub(super) fn of(route: &Route) -> Option<Self> {
        let host = match (route, route.subject()) {
            (Route::Discovery(host), _) | (_, Some(RouteSubject::Pages(host))) => host,
            (_, Some(RouteSubject::Provider(address))) => &address.host,
            (_, Some(RouteSubject::Module(address))) => &address.host,
            (_, None) => return None,
        };
        let is_package = matches!(route, Route::ProviderFile(_) | Route::ModuleArchive(_));
        let module = match route {
            Route::ModuleDownload(package) => Some(package.to_string()),
            Route::ModuleArchive(target) => Some(target.package.to_string()),
            _ => None,
        };
        Some(Self { path: route.path(), host: host.clone(), is_package, module })
    }
}

impl Runs {
    /// Begins a request of a run.
    pub(super) fn begin(&self, id: RunId) -> RunRequest {
        let counts = {
            let mut runs = self.0.lock();
            let counts = Arc::clone(runs.entry(id).or_default());
            if runs.len() > MAX_RUNS {
                runs.shift_remove_index(0);
            }
            counts
        };
        counts.state.lock().in_flight += 1;
        RunRequest { counts, content: None }
    }

    /// The counts of a run, once its answers have ended. Zeros for a run without requests.
    pub async fn report(&self, id: RunId) -> RunReport {
        let Some(counts) = self.0.lock().get(&id).map(Arc::clone) else { return RunReport::default() };
        // A client may have read the last byte of an answer before larder notices.
        let _ = timeout(SETTLE_TIMEOUT, counts.settled()).await;
        let state = counts.state.lock();
        let mut report = RunReport { failed: state.failed, ..RunReport::default() };
        for file in state.files.values() {
            let RunContent { host, is_package, .. } = &file.content;
            let sources = if *is_package { &mut report.packages } else { &mut report.documents };
            count(sources, host, file);
            if file.is_stale {
                report.stale.insert(host.to_string());
            }
        }
        report
    }
}

fn count(sources: &mut RunSources, host: &Hostname, file: &SentFile) {
    let amount = match file.source {
        Source::Upstream => sources.upstream.entry(host.to_string()).or_default(),
        Source::Store | Source::Larder => &mut sources.store,
    };
    amount.count += 1;
    amount.bytes += file.bytes;
}

impl RunCounts {
    /// Waits until no request of the run is in flight.
    async fn settled(&self) {
        loop {
            let ended = self.ended.notified();
            if self.state.lock().in_flight == 0 {
                return;
            }
            ended.await;
        }
    }
}

/// A request of a run that has not ended.
#[derive(Debug)]
pub(super) struct RunRequest {
    counts: Arc<RunCounts>,
    content: Option<RunContent>,
}

impl RunRequest {
    /// Notes the content of the answer.
    pub(super) fn answered_with(&mut self, content: Option<RunContent>) {
        self.content = content;
    }

    /// Counts the request: its outcome, and the body bytes that were sent.
    pub(super) fn end(&mut self, outcome: RequestOutcome, bytes: u64) {
        let mut state = self.counts.state.lock();
        let source = outcome.body_source();
        if outcome == RequestOutcome::Error {
            state.failed += 1;
        }
        let Some(content) = self.content.take().filter(|_| source != Source::Larder) else { return };
        if state.files.len() >= MAX_FILES && !state.files.contains_key(&content.path) {
            return;
        }
        let source = match &content.module {
            Some(module) if content.is_package && state.fetched_modules.contains(module) => Source::Upstream,
            Some(module) if outcome == RequestOutcome::Miss => {
                state.fetched_modules.insert(module.clone());
                source
            }
            _ => source,
        };
        // The first answer decides: a file that was fetched for this run is stored when the run asks again.
        let file =
            state.files.entry(content.path.clone()).or_insert(SentFile { content, source, is_stale: false, bytes: 0 });
        file.is_stale |= outcome == RequestOutcome::Stale;
        file.bytes += bytes;
    }
}

impl Drop for RunRequest {
    fn drop(&mut self) {
        self.counts.state.lock().in_flight -= 1;
        self.counts.ended.notify_waiters();
    }
}
