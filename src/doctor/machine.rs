//! Checks this machine: its clock, because certificates and signatures depend on it, and the store with its disk.

use std::time::Duration;

use bytesize::ByteSize;

use super::{Check, PROBE_TIMEOUT};
use crate::clock::Timestamp;
use crate::config::Config;
use crate::store::{DiskSpace, Store, StoreError, StoreFindings};

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
            let used_bytes = match used_bytes {
                Some(used_bytes) => Some(used_bytes),
                None => measure_used_bytes(config).await,
            };
            let limit = config.store.max_size.bytes(used_bytes.unwrap_or_default(), space.free_bytes);
            checks.push(check_space(space, limit, used_bytes));
        }
        Err(error) => checks.push(Check::fail("disk", error.to_string()).advise(error.remedy())),
    }
    checks
}

/// The size of the store's archives and documents; `None` if the disk does not respond in time.
async fn measure_used_bytes(config: &Config) -> Option<u64> {
    let folder = config.store.path.clone();
    let measuring = tokio::task::spawn_blocking(move || Store::measure(&folder));
    tokio::time::timeout(PROBE_TIMEOUT, measuring).await.ok()?.ok()?.ok()
}

fn check_store(config: &Config, examined: &StoreFindings) -> Check {
    const STORE: &str = "store";
    let path = config.store.path.display();
    let not_writable = |error: &StoreError| {
        let check = Check::fail(STORE, format!("not writable: {error}")).advise(error.remedy());
        match examined.foreign_owner {
            Some(owner) => check.advise(format!("it belongs to user {owner}: run the doctor as that user")),
            None => check,
        }
    };
    match (&examined.exists, &examined.format, &examined.writable) {
        (Err(error), _, _) => {
            // Another user's store is not readable, as intended.
            let check: fn(&'static str, String) -> Check = if error.is_denied() { Check::warn } else { Check::fail };
            check(STORE, format!("inaccessible: {error}"))
                .advise("run the doctor as larder's user (sudo -u larder larder doctor)")
        }
        (_, Err(error), _) => Check::fail(STORE, error.to_string()),
        (_, _, Err(error)) => not_writable(error),
        (Ok(false), Ok(()), Ok(())) => {
            Check::ok(STORE, format!("none in {path} yet; it is created at the first start"))
        }
        (Ok(true), Ok(()), Ok(())) => match examined.foreign_owner {
            Some(owner) => Check::warn(STORE, format!("{path} can be written, and belongs to user {owner}"))
                .advise("only larder's own user can check its access; run the doctor as that user"),
            None => Check::ok(STORE, format!("{path} can be written")),
        },
    }
}

/// Checks the free disk space for a store that may grow to `max_size`.
fn check_space(space: &DiskSpace, max_store_bytes: u64, used_bytes: Option<u64>) -> Check {
    const DISK: &str = "disk";
    let DiskSpace { free_bytes, total_bytes, free_files, is_read_only: _ } = *space;
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let found =
        format!("{} free of {}; the store may grow to {}", size(free_bytes), size(total_bytes), size(max_store_bytes));
    if let Some(files) = free_files.filter(|files| *files < MIN_FREE_FILES) {
        return Check::fail(DISK, format!("the disk has room for only {files} more files (inodes)"))
            .advise("remove small files from the disk of the store, or give it a file system with more inodes");
    }
    let growth = max_store_bytes.saturating_sub(used_bytes.unwrap_or_default());
    let lower_limit = format!("free disk space, or lower [store] max_size to what the disk can hold: {}", {
        size(used_bytes.unwrap_or_default().saturating_add(free_bytes))
    });
    if free_bytes < MIN_FREE_BYTES || (free_bytes < NEARLY_FULL_BYTES && free_bytes < growth) {
        return Check::fail(DISK, format!("nearly full: {found}")).advise(NEARLY_FULL_EFFECT).advise(lower_limit);
    }
    if free_bytes < growth {
        return Check::warn(DISK, format!("the store may grow beyond its disk: {found}"))
            .advise("the disk would be full before larder evicts by size")
            .advise(lower_limit);
    }
    Check::ok(DISK, found)
}

/// From this difference on, the clock is reported.
const MIN_WARN_DIFFERENCE: Duration = Duration::from_secs(5 * 60);
/// From this difference on, valid certificates may look invalid.
const MIN_FAIL_DIFFERENCE: Duration = Duration::from_secs(12 * 3600);

/// The time according to another server.
#[derive(Debug, Clone)]
pub(super) struct TimeSource {
    /// Name of the server.
    pub(super) source: String,
    /// The time in the server's Date header.
    pub(super) time: Timestamp,
    /// Local time when the response arrived.
    pub(super) local_time: Timestamp,
}

/// Compares the clock with the nearest of the announced times: a single server may have a wrong clock.
pub(super) fn check_clock(now: Timestamp, sources: &[TimeSource]) -> Check {
    let Some(nearest) = sources.iter().min_by_key(|source| source.difference()) else {
        return Check::ok(
            "clock",
            format!(
                "not checked: no upstream sent a Date header to compare with; here it is {} (UTC)",
                now.date_time()
            ),
        );
    };
    let (difference, source) = (nearest.difference(), &nearest.source);
    if difference <= MIN_WARN_DIFFERENCE {
        return Check::ok("clock", format!("within {} s of {source}", difference.as_secs().max(1)));
    }
    let direction = if nearest.local_time > nearest.time { "ahead of" } else { "behind" };
    let rounded = Duration::from_secs(difference.as_secs() / 60 * 60);
    let found = format!("this machine is {} {direction} {source}", humantime::format_duration(rounded));
    let to_do = "set the clock (timedatectl set-ntp true); certificates and signatures depend on it";
    let check =
        if difference < MIN_FAIL_DIFFERENCE { Check::warn("clock", found) } else { Check::fail("clock", found) };
    check.advise(to_do)
}

impl TimeSource {
    /// The difference between the server's time and the local time.
    fn difference(&self) -> Duration {
        self.time.since(self.local_time).max(self.local_time.since(self.time))
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckResult;
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
            assert_eq!(check.to_do.is_empty(), verdict == CheckResult::Ok);
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
            assert!(check.found.contains(message), "{seconds}: {check:?}");
        }
        assert_eq!(
            check_clock(local_time, &[source(-86_400), source(3)]).verdict,
            CheckResult::Ok,
            "one of two upstreams has a wrong clock"
        );
        assert_eq!(check_clock(local_time, &[]).verdict, CheckResult::Ok);
    }
}
