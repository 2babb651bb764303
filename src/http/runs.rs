//! Counts what each `larder run` was sent. Counting costs nothing for other requests.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::failures::MAX_PATH_BYTES;
use super::requests::{RequestOutcome, Source};
use crate::clock::Clock;
use crate::error::Error;
use crate::explanation::safe_text;
use crate::mirror::{Library, PackageAmounts};
use crate::protocol::RequestFailure;
use crate::protocol::route::{Route, RouteSubject};
use crate::protocol::run::{FileKind, FileSource, RunId, RunReport, SentFile};
use crate::wording::shell_word;

/// Runs whose counts are kept; a further one replaces the oldest that has no request in flight.
const MAX_RUNS: usize = 64;
/// Different files that are counted for one run.
const MAX_FILES: usize = 4096;
/// The longest wait for answers that the run's client has already left.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The counts of the latest runs, shared by all copies.
#[derive(Debug, Clone)]
pub struct Runs(Arc<RunsState>);

#[derive(Debug)]
struct RunsState {
    /// The runs of larder's own user: their clients need no token. The latest ones.
    of_own_user: Mutex<VecDeque<RunId>>,
    latest: Mutex<IndexMap<RunId, Arc<RunCounts>>>,
    /// The packages that are not in the store's totals yet, without those of the latest runs.
    unsaved: Mutex<PackageAmounts>,
    /// Weak: the counts outlive the store of a larder that another run continues.
    library: Weak<Library>,
    clock: Clock,
}

/// The counts of one run.
#[derive(Debug, Default)]
struct RunCounts {
    state: Mutex<RunState>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct RunState {
    in_flight: u64,
    report: RunReport,
    /// The part of the report that was taken for the totals.
    taken: PackageAmounts,
    /// True if that is all of it.
    is_taken: bool,
}

impl RunState {
    /// Takes what was sent since the last time.
    fn take(&mut self) -> PackageAmounts {
        if std::mem::replace(&mut self.is_taken, true) {
            return PackageAmounts::default();
        }
        let sent = self.report.summary().packages.amounts();
        sent.since(std::mem::replace(&mut self.taken, sent))
    }
}

/// The content of an answer: its registry and its kind.
#[derive(Debug)]
pub(super) struct RunContent {
    path: String,
    registry: String,
    kind: FileKind,
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
        let kind = match route {
            Route::ProviderFile(_) => FileKind::Provider,
            Route::ModuleDownload(package) => FileKind::ModuleLocation(package.to_string()),
            Route::ModuleArchive(target) => FileKind::Module(target.package.to_string()),
            _ => FileKind::Document,
        };
        Some(Self { path: route.path(), registry: host.to_string(), kind })
    }
}

impl Runs {
    /// No run yet. Their packages are added to the totals of this library.
    pub fn new(library: &Arc<Library>, clock: Clock) -> Self {
        let library = Arc::downgrade(library);
        Self(Arc::new(RunsState {
            of_own_user: Mutex::default(),
            latest: Mutex::default(),
            unsaved: Mutex::default(),
            library,
            clock,
        }))
    }

    /// Notes a run of larder's own user, who may do everything: its client needs no token.
    pub(super) fn trust(&self, id: RunId) {
        let mut trusted = self.0.of_own_user.lock();
        trusted.retain(|known| *known != id);
        trusted.truncate(MAX_RUNS - 1);
        trusted.push_front(id);
    }

    /// Notes that a run has ended: its URLs, which its client may have logged, count no longer.
    pub(super) fn distrust(&self, id: RunId) {
        self.0.of_own_user.lock().retain(|known| *known != id);
    }

    /// Returns true for a run of larder's own user that has not ended.
    pub(super) fn is_trusted(&self, id: RunId) -> bool {
        self.0.of_own_user.lock().contains(&id)
    }

    /// Begins a request of a run.
    pub(super) fn begin(&self, id: RunId) -> RunRequest {
        let counts = {
            let mut runs = self.0.latest.lock();
            let counts = Arc::clone(runs.entry(id).or_default());
            counts.state.lock().in_flight += 1;
            if runs.len() > MAX_RUNS {
                // A run with requests in flight has not ended. Their number has a limit, too. Ids that somebody made up go before
                // the runs of larder's own user, whose command asks for its counts.
                let of_own_user = self.0.of_own_user.lock();
                let is_idle =
                    |other: &Arc<RunCounts>| !Arc::ptr_eq(other, &counts) && other.state.lock().in_flight == 0;
                let made_up = runs.iter().position(|(id, other)| is_idle(other) && !of_own_user.contains(id));
                let oldest = made_up.or_else(|| runs.values().position(is_idle));
                drop(of_own_user);
                if let Some((_, oldest)) = oldest.and_then(|index| runs.shift_remove_index(index)) {
                    self.take_from(&oldest);
                }
            }
            counts
        };
        RunRequest { counts, content: None }
    }

    /// Waits until no run has a request in flight.
    pub async fn idle(&self) {
        loop {
            let all: Vec<Arc<RunCounts>> = self.0.latest.lock().values().map(Arc::clone).collect();
            let Some(busy) = all.iter().find(|counts| counts.state.lock().in_flight > 0) else { return };
            busy.settled().await;
        }
    }

    /// The files of a run, once its answers have ended. None for a run without requests. Saves the totals, too.
    pub async fn report(&self, id: RunId) -> RunReport {
        let Some(counts) = self.0.latest.lock().get(&id).map(Arc::clone) else { return RunReport::default() };
        // A client may have read the last byte of an answer before larder notices.
        let _ = timeout(SETTLE_TIMEOUT, counts.settled()).await;
        // Boxed: the compiler takes minutes over the nested futures.
        Box::pin(self.save_totals()).await;
        let state = counts.state.lock();
        state.report.clone()
    }

    /// Adds the packages that runs were sent since the last time to the totals in the store.
    pub async fn save_totals(&self) {
        let Some(library) = self.0.library.upgrade() else { return };
        self.0.latest.lock().values().for_each(|counts| self.take_from(counts));
        let new = std::mem::take(&mut *self.0.unsaved.lock());
        if new == PackageAmounts::default() {
            return;
        }
        if let Err(error) = library.add_to_runs(new, self.0.clock.now()).await {
            tracing::debug!(%error, "the packages of runs are added to their totals later");
            let mut unsaved = self.0.unsaved.lock();
            *unsaved = unsaved.plus(new);
        }
    }

    fn take_from(&self, counts: &RunCounts) {
        let new = counts.state.lock().take();
        let mut unsaved = self.0.unsaved.lock();
        *unsaved = unsaved.plus(new);
    }
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

    /// Notes why the request failed. A 404 is an answer, and no failure.
    pub(super) fn failed_with(&mut self, path: &str, failure: &RequestFailure) {
        let RequestFailure::Mirror(error) = failure else { return };
        if !matches!(error, Error::NotFound(_) | Error::UnknownHost(_)) {
            let reason = safe_text(&error.explain().to_string());
            self.add_failure(path, reason);
        }
    }

    /// Notes that the body broke off.
    pub(super) fn broke_off(&mut self, path: &str) {
        let command = format!("larder explain {}", shell_word(path));
        self.add_failure(path, format!("a body broke off before its end; `{command}` says why"));
    }

    fn add_failure(&self, path: &str, reason: String) {
        if path.len() <= MAX_PATH_BYTES {
            self.counts.state.lock().report.add_failure(path.to_owned(), reason);
        }
    }

    /// Counts the request: its outcome, and the body bytes that were sent.
    pub(super) fn end(&mut self, outcome: RequestOutcome, bytes: u64) {
        let state = &mut *self.counts.state.lock();
        let report = &mut state.report;
        let source = match (outcome, outcome.body_source()) {
            (RequestOutcome::Revalidated, _) => FileSource::Confirmed,
            (_, Source::Upstream) => FileSource::Fetched,
            (_, Source::Store) => FileSource::Store,
            (RequestOutcome::Error, Source::Larder) => {
                report.failed += 1;
                return;
            }
            (_, Source::Larder) => return,
        };
        let Some(RunContent { path, registry, kind }) = self.content.take() else { return };
        if report.files.len() < MAX_FILES || report.files.contains_key(&path) {
            let stale = outcome == RequestOutcome::Stale;
            report.add(path, SentFile { registry, kind, source, stale, bytes });
            state.is_taken = false;
        }
    }
}

impl Drop for RunRequest {
    fn drop(&mut self) {
        self.counts.state.lock().in_flight -= 1;
        self.counts.ended.notify_waiters();
    }
}
