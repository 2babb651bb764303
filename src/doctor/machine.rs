//! Checks this machine: whether a larder runs with this configuration, and whether the commands can reach it; the store
//! with its disk; and the clock, because certificates and signatures depend on it.

use std::net::SocketAddr;
use std::time::Duration;

use bytesize::ByteSize;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::{Check, CheckResult, PROBE_TIMEOUT, in_time};
use crate::app;
use crate::app::open_files;
use crate::app::running_larder::{self, NotReached};
use crate::clock::{Clock, Timestamp};
use crate::config::Config;
use crate::http::admin_client::{AdminClient, AdminClientError};
use crate::mirror::{PackageAmounts, RunTotals, Served, Usage};
use crate::place::Place;
use crate::protocol::admin::{STATUS, StatusReport};
use crate::store::{DiskSpace, OwnerNote, Store, StoreError, StoreFindings, StoreUse, TokenFile};
use crate::wording::plural;

const RUNNING: &str = "running";
const TOKEN: &str = "token";
const LOCKED_BY_ANOTHER: &str = "a larder with another [admin] listen uses this store, or a command does; give the doctor the \
     --config of the running larder";

const OTHER_SERVER: &str = "stop the program that listens there (ss -ltnp), or give larder another [admin] listen";

const HANGS_OR_OTHER: &str = "another program has this port, or larder hangs; check which one listens there (ss -ltnp)";

const OTHER_VERSION_ADVICE: &str = "restart it, so that both have the same version";

const NOT_SET_UP_ADVICE: &str = "to try one, run a client through it (larder run -- terraform init); to serve clients, start it \
     (larder serve); if one runs, give the doctor its --config or --store; a machine with clients only needs none";

const START_ADVICE: &str = "start it: larder serve, or systemctl start larder";

/// State of the larder of this configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum LarderState {
    /// Running.
    Up,
    /// Not running.
    #[default]
    Down,
    /// Not needed: `larder run` alone uses the store, and starts one for each run.
    RunsAlone,
    /// Never set up: there is neither a configuration nor a store. This may be a machine with clients only.
    NeverSetUp,
}

/// Facts about the larder of this configuration.
#[derive(Debug, Default)]
pub(super) struct RunningLarder {
    pub(super) state: LarderState,
    /// This larder is offline, by its configuration or by `serve --offline`.
    pub(super) is_offline: bool,
    /// The size of this larder's archives and documents, in bytes.
    pub(super) used_bytes: Option<u64>,
    /// The way to it.
    pub(super) larder: Option<AdminClient>,
}

impl RunningLarder {
    pub(super) fn is_up(&self) -> bool {
        self.state == LarderState::Up
    }
}

/// Checks the running larder and the admin token.
pub(super) async fn check_running(config: &Config, examined: &StoreFindings) -> (RunningLarder, Vec<Check>) {
    if config.source.is_none() && matches!(examined.exists, Ok(false)) {
        return never_set_up(config.admin.listen).await;
    }
    let folder = config.store.path.clone();
    // Another user's store is not readable, as intended.
    let usage = in_time(move || Usage::of_store_in(&folder)).await.and_then(Result::ok).unwrap_or(Usage::UNKNOWN);
    let (mut running, check) = check_larder(config, &usage).await;
    running.is_offline |= config.network.offline;
    let token_check = check_token(config, examined, running.is_up()).await;
    let open_files_check = check_open_files(config).filter(|_| running.is_up());
    (running, [check, token_check].into_iter().chain(open_files_check).collect())
}

/// Without a configuration and a store, the only finding is that no larder is set up.
async fn never_set_up(address: SocketAddr) -> (RunningLarder, Vec<Check>) {
    let other_server = match ask_unproven(address).await {
        Err(AdminClientError::NotRunning(_)) => String::new(),
        _ => format!("; something listens on {address}, perhaps a larder with another store"),
    };
    let finding =
        format!("no larder is set up on this machine: no mirror.toml was found, and there is no store{other_server}");
    let running = RunningLarder { state: LarderState::NeverSetUp, ..RunningLarder::default() };
    (running, vec![Check::warn(RUNNING, finding).advise(NOT_SET_UP_ADVICE)])
}

/// Finds the running larder as every command does.
async fn check_larder(config: &Config, usage: &Usage) -> (RunningLarder, Check) {
    let check = match in_probe_time(running_larder::find(config)).await {
        Some(Ok(Some(found))) => return check_answering(config, found, usage).await,
        Some(Ok(None)) if usage.is_by_runs_alone() => {
            let running = RunningLarder { state: LarderState::RunsAlone, ..RunningLarder::default() };
            return (running, Check::passed(RUNNING, runs_text(usage)));
        }
        Some(Ok(None)) => match usage.served_before_runs() {
            Some(served) => forgotten_service(served),
            None => not_running(config).await,
        },
        // Only larder's own user has its token, as intended.
        Some(Err(error @ NotReached::NoToken { .. })) => Check::warn(RUNNING, error.to_string()),
        // Its text names the remedy.
        Some(Err(error @ NotReached::Elsewhere { .. })) => Check::fail(RUNNING, error.to_string()),
        Some(Err(error @ NotReached::InUse { .. })) => {
            Check::fail(RUNNING, error.to_string()).advise(LOCKED_BY_ANOTHER)
        }
        Some(Err(NotReached::Client(error))) => Check::fail(RUNNING, error.to_string()).advise(advice_about(&error)),
        None => {
            let finding = format!("the larder that has the store did not answer within {} s", PROBE_TIMEOUT.as_secs());
            Check::fail(RUNNING, finding).advise("larder hangs, or its machine is overloaded; see its log")
        }
    };
    (RunningLarder::default(), check)
}

/// The advice about a listener that did not answer as larder does.
const fn advice_about(error: &AdminClientError) -> &'static str {
    match error {
        AdminClientError::NotLarder { .. } | AdminClientError::NotProven { .. } => OTHER_SERVER,
        _ => HANGS_OR_OTHER,
    }
}

/// The finding and the advice where no larder has the store. What listens at larder's address is not asked for more than a
/// sign of life: it may be anything.
async fn not_running(config: &Config) -> Check {
    let address = config.admin.listen;
    let store = config.store.path.display();
    let (finding, advice) = match ask_unproven(address).await {
        Err(AdminClientError::NotRunning(_)) => (format!("no larder runs: nothing listens on {address}"), START_ADVICE),
        Err(error) => (error.to_string(), advice_about(&error)),
        Ok(_) => (
            format!("something answers on {address} as larder does, but the store in {store} is not in use"),
            "another larder listens there: give the doctor its --config, or this one another port",
        ),
    };
    Check::fail(RUNNING, finding).advise(advice)
}

/// The finding where only runs have used the store for a while.
fn forgotten_service(served: Timestamp) -> Check {
    let served = served.day();
    let finding =
        format!("no larder serves: the last one began on {served}, and `larder run` has used the store since");
    Check::warn(RUNNING, finding).advise(START_ADVICE)
}

/// The finding for a store that runs alone use.
fn runs_text(usage: &Usage) -> String {
    let totals = usage.runs.map(|RunTotals { first, packages: PackageAmounts { store, upstream }, .. }| {
        let (stored, fetched) = (plural(store.count, "package"), plural(upstream.count, "package"));
        let [stored_bytes, fetched_bytes] = [store.bytes, upstream.bytes].map(ByteSize);
        format!(": since {} they got {stored} ({stored_bytes}) from the store, and {fetched} ({fetched_bytes}) from upstream", first.day())
    });
    format!(
        "none needed: `larder run` alone has used this store, and starts one for its runs{}",
        totals.unwrap_or_default()
    )
}

/// Checks the larder that was found.
async fn check_answering(
    config: &Config,
    found: running_larder::RunningLarder,
    usage: &Usage,
) -> (RunningLarder, Check) {
    let larder = found.admin;
    let own_version = env!("CARGO_PKG_VERSION");
    let place = larder.server().map(|server| format!("at {server}")).unwrap_or_default();
    let ready = in_probe_time(larder.get_text("/readyz")).await;
    let status = in_probe_time(larder.get::<StatusReport>(STATUS)).await;
    let mut running = RunningLarder { state: LarderState::Up, larder: Some(larder), ..RunningLarder::default() };
    match ready {
        Some(Ok(_)) => {}
        Some(Err(error)) => {
            let check = Check::fail(RUNNING, format!("larder runs, but is not ready: {error}"));
            return (running, check.advise("restore the store folder, or restart larder; see its log"));
        }
        None => {
            let check = Check::fail(RUNNING, format!("larder did not answer within {} s", PROBE_TIMEOUT.as_secs()));
            return (running, check.advise("larder hangs, or its machine is overloaded; see its log"));
        }
    }
    let report = match status {
        Some(Ok(report)) => report.mirror,
        Some(Err(error @ AdminClientError::OtherVersion { .. })) => {
            return (running, Check::warn(RUNNING, error.to_string()).advise(OTHER_VERSION_ADVICE));
        }
        Some(Err(error)) => return (running, Check::fail(RUNNING, error.to_string())),
        None => {
            let finding = format!("larder made no status within {} s", PROBE_TIMEOUT.as_secs());
            return (running, Check::warn(RUNNING, finding));
        }
    };
    running.is_offline = report.offline;
    running.used_bytes = Some(report.archive_bytes.saturating_add(report.document_bytes));
    if report.version != own_version {
        let finding = format!("larder {} runs, but this command is {own_version}", report.version);
        return (running, Check::warn(RUNNING, finding).advise(OTHER_VERSION_ADVICE));
    }
    let listeners = found.note.as_ref().and_then(OwnerNote::listeners);
    if listeners.is_some_and(|listeners| listeners.handover.is_some()) {
        if usage.served == Served::Never {
            running.state = LarderState::RunsAlone;
            return (running, Check::passed(RUNNING, runs_text(usage)));
        }
        if let Some(served) = usage.served_before_runs() {
            return (RunningLarder::default(), forgotten_service(served));
        }
        running.state = LarderState::Down;
        let check = Check::fail(RUNNING, "no larder serves: `larder run` has the store at the moment");
        return (running, check.advise(format!("when the run has ended, {START_ADVICE}")));
    }
    let configured = config.admin.listen;
    if let Some(listeners) = listeners.filter(|listeners| configured.port() != 0 && listeners.admin != configured) {
        let finding =
            format!("larder runs with its admin listener on {}, and [admin] listen is {configured}", listeners.admin);
        return (running, Check::warn(RUNNING, finding).advise("restart larder, so that it loads this configuration"));
    }
    let offline = if report.offline { ", offline" } else { "" };
    (running, Check::passed(RUNNING, format!("larder {own_version}, ready{offline}; it answers {place}")))
}

/// Checks the limit of open files of the running larder; nothing where the system does not tell.
fn check_open_files(config: &Config) -> Option<Check> {
    const OPEN_FILES: &str = "open-files";
    let StoreUse::Noted(note) = Store::use_of(&config.store.path) else { return None };
    note.listeners().filter(|_| note.place.is_same_machine(&Place::here()))?;
    let limit = open_files::limit_of(note.process)?;
    Some(match open_files::shortage_at(limit) {
        Some(shortage) => Check::warn(OPEN_FILES, shortage).advise("restart larder with the higher limit"),
        None => Check::passed(OPEN_FILES, format!("the limit of open files is {limit}")),
    })
}

/// Checks that the admin token exists, is private, and is the one of the running larder.
async fn check_token(config: &Config, examined: &StoreFindings, is_up: bool) -> Check {
    let file = Store::token_file(&config.store.path);
    let file = file.display();
    let (token_source, token) = match (&config.admin.token, &examined.token) {
        (Some(configured), _) => ("[admin] token".to_owned(), configured),
        (None, TokenFile::Absent) if !is_up => {
            return Check::passed(TOKEN, format!("{file} is created at the first start"));
        }
        (None, TokenFile::Absent) => {
            return Check::fail(TOKEN, format!("missing: {file} does not exist"))
                .advise("restart larder; it creates a new one");
        }
        (None, TokenFile::Empty) => {
            return Check::fail(TOKEN, format!("{file} has no token"))
                .advise("remove the file and restart larder; it creates a new one");
        }
        (None, TokenFile::Unreadable(error)) => {
            // Another user's commands may not read the token, as intended.
            return Check::new(TOKEN, verdict_of(error), error.to_string())
                .advise("run the commands as larder's user (sudo -u larder larder …)");
        }
        (None, TokenFile::Good { mode, .. }) if mode & 0o077 != 0 => {
            return Check::fail(TOKEN, format!("{file} can be read by others (mode {mode:04o})"))
                .advise(format!("chmod 600 {file}; if the token may have leaked, remove the file and restart larder"));
        }
        (None, TokenFile::Good { token, .. }) => (file.to_string(), token),
    };
    let listener = match Store::use_of(&config.store.path) {
        StoreUse::Noted(note) if note.place.is_same_network(&Place::here()) => {
            note.listeners().map(|listeners| app::loopback_if_unspecified(listeners.admin))
        }
        _ => None,
    };
    let Some(listener) = listener.filter(|_| is_up) else { return Check::passed(TOKEN, token_source) };
    // The handshake needs the token of the running larder, and tells nobody the one that this command has.
    match in_probe_time(AdminClient::at_listener(listener, token.clone()).connect()).await {
        Some(Ok(())) => Check::passed(TOKEN, format!("{token_source}, and the running larder has the same")),
        Some(Err(AdminClientError::NotProven { .. })) => {
            Check::fail(TOKEN, format!("the running larder has another token than {token_source}"))
                .advise("the running larder was started with another token; restart larder")
        }
        Some(Err(error)) => Check::fail(TOKEN, error.to_string()),
        None => Check::fail(TOKEN, format!("no answer on {listener} within {} s", PROBE_TIMEOUT.as_secs())),
    }
}

/// Asks for a sign of life.
async fn ask_unproven(address: SocketAddr) -> Result<String, AdminClientError> {
    let client = AdminClient::unproven(address);
    let reason = || format!("no answer within {} s", PROBE_TIMEOUT.as_secs());
    in_probe_time(client.get_text("/healthz")).await.unwrap_or_else(|| Err(client.failed(reason())))
}

/// The answer of a server; `None` where there is none in time.
async fn in_probe_time<T>(answer: impl Future<Output = T>) -> Option<T> {
    timeout(PROBE_TIMEOUT, answer).await.ok()
}

/// Free bytes below which the next provider may not fit.
const NEARLY_FULL_BYTES: u64 = 256 << 20;
/// Free bytes that documents, the index and logs need besides archives.
const MIN_FREE_BYTES: u64 = 32 << 20;
/// Free inodes below which the store soon fails.
const MIN_FREE_FILES: u64 = 1000;
const NEARLY_FULL_EFFECT: &str = "larder evicts the least recently used archives first; archives that still do not fit are \
     passed through without being stored";

/// Checks the store and its disk. `used_bytes` is the size of archives and documents, if a running larder reported it.
pub(super) async fn check_disk(config: &Config, examined: &StoreFindings, used_bytes: Option<u64>) -> Vec<Check> {
    let mut checks = vec![check_store(config, examined)];
    match &examined.disk_space {
        Ok(space) => {
            let folder = config.store.path.clone();
            let used_bytes = match used_bytes {
                Some(used_bytes) => Some(used_bytes),
                None => in_time(move || Store::measure(&folder)).await.and_then(Result::ok),
            };
            let limit = config.store.max_size.bytes(used_bytes.unwrap_or_default(), space.free_bytes);
            checks.push(check_space(space, limit, used_bytes));
        }
        Err(error) => checks.push(Check::fail("disk", error.to_string()).advise(error.remedy())),
    }
    checks
}

/// A warning where access is denied: only the store's own user has it.
fn verdict_of(error: &StoreError) -> CheckResult {
    if error.is_denied() { CheckResult::Warn } else { CheckResult::Fail }
}

fn check_store(config: &Config, examined: &StoreFindings) -> Check {
    const STORE: &str = "store";
    let path = config.store.path.display();
    match (&examined.exists, &examined.format, &examined.writable) {
        // Another user's store is not readable, as intended.
        (Err(error), _, _) => Check::new(STORE, verdict_of(error), format!("inaccessible: {error}"))
            .advise("run the doctor as larder's user (sudo -u larder larder doctor)"),
        (_, Err(error), _) => Check::fail(STORE, error.to_string()),
        (_, _, Err(error)) => {
            let check = Check::fail(STORE, format!("not writable: {error}")).advise(error.remedy());
            match examined.foreign_owner {
                Some(owner) => check.advise(format!("it belongs to user {owner}: run the doctor as that user")),
                None => check,
            }
        }
        (Ok(false), Ok(()), Ok(())) => {
            Check::passed(STORE, format!("none in {path} yet; it is created at the first start"))
        }
        (Ok(true), Ok(()), Ok(())) => match examined.foreign_owner {
            Some(owner) => Check::warn(STORE, format!("{path} can be written, and belongs to user {owner}"))
                .advise("only larder's own user can check its access; run the doctor as that user"),
            None => Check::passed(STORE, format!("{path} can be written")),
        },
    }
}

/// Checks the free disk space for a store that may grow to `max_size`.
fn check_space(space: &DiskSpace, max_store_bytes: u64, used_bytes: Option<u64>) -> Check {
    const DISK: &str = "disk";
    let DiskSpace { free_bytes, total_bytes, free_files, is_read_only: _ } = *space;
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let finding =
        format!("{} free of {}; the store may grow to {}", size(free_bytes), size(total_bytes), size(max_store_bytes));
    if let Some(files) = free_files.filter(|files| *files < MIN_FREE_FILES) {
        return Check::fail(DISK, format!("the disk has room for only {files} more files (inodes)"))
            .advise("remove small files from the disk of the store, or give it a file system with more inodes");
    }
    let used_bytes = used_bytes.unwrap_or_default();
    let (growth, fits) = (max_store_bytes.saturating_sub(used_bytes), size(used_bytes.saturating_add(free_bytes)));
    let lower_limit = format!("free disk space, or lower [store] max_size to what the disk can hold: {fits}");
    if free_bytes < MIN_FREE_BYTES || (free_bytes < NEARLY_FULL_BYTES && free_bytes < growth) {
        return Check::fail(DISK, format!("nearly full: {finding}")).advise(NEARLY_FULL_EFFECT).advise(lower_limit);
    }
    if free_bytes < growth {
        return Check::warn(DISK, format!("the store may grow beyond its disk: {finding}"))
            .advise("the disk would be full before larder evicts by size")
            .advise(lower_limit);
    }
    Check::passed(DISK, finding)
}

/// From this difference on, the clock is reported.
const MIN_WARN_DIFFERENCE: Duration = Duration::from_secs(5 * 60);
/// From this difference on, valid certificates may look invalid.
const MIN_FAIL_DIFFERENCE: Duration = Duration::from_secs(12 * 3600);

/// The times that other servers announced.
#[derive(Debug, Default)]
pub(super) struct AnnouncedTimes(Mutex<Vec<TimeSource>>);

impl AnnouncedTimes {
    /// Records the time in the Date header of a response that has just arrived.
    pub(super) fn record(&self, source: impl ToString, time: Option<Timestamp>) {
        let local_time = Clock::system().now();
        self.0.lock().extend(time.map(|time| TimeSource { source: source.to_string(), time, local_time }));
    }

    pub(super) fn into_inner(self) -> Vec<TimeSource> {
        self.0.into_inner()
    }
}

/// The time according to another server.
#[derive(Debug, Clone)]
pub(super) struct TimeSource {
    /// Name of the server.
    source: String,
    /// The time in the server's Date header.
    time: Timestamp,
    /// Local time when the response arrived.
    local_time: Timestamp,
}

/// Compares the clock with the nearest of the announced times: a single server may have a wrong clock.
pub(super) fn check_clock(now: Timestamp, sources: &[TimeSource]) -> Check {
    let Some(nearest) = sources.iter().min_by_key(|source| source.difference()) else {
        let here = now.date_time();
        let finding = format!("not checked: no upstream sent a Date header to compare with; here it is {here} (UTC)");
        return Check::passed("clock", finding);
    };
    let (difference, source) = (nearest.difference(), &nearest.source);
    if difference <= MIN_WARN_DIFFERENCE {
        return Check::passed("clock", format!("within {} s of {source}", difference.as_secs().max(1)));
    }
    let direction = if nearest.local_time > nearest.time { "ahead of" } else { "behind" };
    let rounded = Duration::from_secs(difference.as_secs() / 60 * 60);
    let finding = format!("this machine is {} {direction} {source}", humantime::format_duration(rounded));
    let advice = "set the clock (timedatectl set-ntp true); certificates and signatures depend on it";
    let verdict = if difference < MIN_FAIL_DIFFERENCE { CheckResult::Warn } else { CheckResult::Fail };
    Check::new("clock", verdict, finding).advise(advice)
}

impl TimeSource {
    /// The difference between the server's time and the local time.
    fn difference(&self) -> Duration {
        self.time.since(self.local_time).max(self.local_time.since(self.time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_checked_against_the_growth_that_the_store_may_still_have() {
        const GIB: u64 = 1 << 30;
        for (free, max_size, used, files, verdict) in [
            (100 * GIB, 50 * GIB, Some(0), None, CheckResult::Ok),
            (10 * GIB, 50 * GIB, Some(0), None, CheckResult::Warn),
            (10 * GIB, 50 * GIB, Some(45 * GIB), None, CheckResult::Ok),
            (100 << 20, 50 * GIB, Some(GIB), None, CheckResult::Fail),
            // The store is at its size limit, so it evicts before the disk is full.
            (100 << 20, 50 * GIB, Some(50 * GIB), None, CheckResult::Ok),
            (1 << 20, 50 * GIB, Some(50 * GIB), None, CheckResult::Fail),
            (100 * GIB, 50 * GIB, None, Some(10), CheckResult::Fail),
            (100 * GIB, 50 * GIB, None, Some(1_000_000), CheckResult::Ok),
        ] {
            let space = DiskSpace { free_bytes: free, total_bytes: 200 * GIB, free_files: files, is_read_only: false };
            let check = check_space(&space, max_size, used);
            assert_eq!(check.verdict, verdict, "{free} {used:?} {files:?}: {check:?}");
            assert_eq!(check.advice.is_empty(), verdict == CheckResult::Ok);
        }
    }

    #[test]
    fn minutes_are_a_warning_and_a_day_is_a_failure_in_either_direction() {
        let local_time = Timestamp(1_800_000_000);
        let source = |seconds: i64| {
            let time = Timestamp(local_time.0.saturating_add_signed(seconds));
            TimeSource { source: "registry.example".to_owned(), time, local_time }
        };
        for (seconds, verdict, message) in [
            (0, CheckResult::Ok, "within 1 s"),
            (-290, CheckResult::Ok, "within 290 s"),
            (600, CheckResult::Warn, "10m behind registry.example"),
            (-7200, CheckResult::Warn, "2h ahead of registry.example"),
            (86_400, CheckResult::Fail, "1day behind registry.example"),
            (-86_400, CheckResult::Fail, "1day ahead of registry.example"),
        ] {
            let check = check_clock(local_time, &[source(seconds)]);
            assert_eq!(check.verdict, verdict, "{seconds}: {check:?}");
            assert!(check.finding.contains(message), "{seconds}: {check:?}");
        }
        assert_eq!(
            check_clock(local_time, &[source(-86_400), source(3)]).verdict,
            CheckResult::Ok,
            "one of two upstreams has a wrong clock"
        );
        assert_eq!(check_clock(local_time, &[]).verdict, CheckResult::Ok);
    }
}
