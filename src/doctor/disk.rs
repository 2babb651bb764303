//! Checks the store and its disk.

use bytesize::ByteSize;

use super::{Check, PROBE_TIMEOUT};
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
}
