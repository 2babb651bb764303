//! Checks the store and its disk.

use bytesize::ByteSize;

use super::{Check, WITHIN};
use crate::config::Config;
use crate::store::{DiskSpace, Store, StoreError, StoreFindings};

/// With less free space, the next provider may not fit.
const NEARLY_FULL: u64 = 256 << 20;
/// Disk space for documents, the index and logs besides archives.
const LITTLE: u64 = 32 << 20;
const FEW_FILES: u64 = 1000;
const NEARLY_FULL_MEANS: &str = "larder evicts the least recently used archives first; archives that still do not fit are \
     passed through without being stored";

/// Checks the store and its disk. `used` is the size of archives and documents, if a running larder reported it.
pub(super) async fn check_disk(config: &Config, examined: &StoreFindings, used: Option<u64>) -> Vec<Check> {
    let mut checks = vec![store(config, examined)];
    match &examined.disk_space {
        Ok(space) => {
            let used = match used {
                Some(used) => Some(used),
                None => measured(config).await,
            };
            let limit = config.store.max_size.bytes(used.unwrap_or_default(), space.free_bytes);
            checks.push(disk(space, limit, used));
        }
        Err(error) => checks.push(Check::fail("disk", error.to_string()).advise(error.remedy())),
    }
    checks
}

async fn measured(config: &Config) -> Option<u64> {
    let folder = config.store.path.clone();
    let measuring = tokio::task::spawn_blocking(move || Store::measure(&folder));
    tokio::time::timeout(WITHIN, measuring).await.ok()?.ok()?.ok()
}

fn store(config: &Config, examined: &StoreFindings) -> Check {
    const STORE: &str = "store";
    let path = config.store.path.display();
    let failed = |error: &StoreError| {
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
        (_, _, Err(error)) => failed(error),
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

/// Judges the free disk space for a store that may grow to `max_size`.
fn disk(space: &DiskSpace, max_size: u64, used: Option<u64>) -> Check {
    const DISK: &str = "disk";
    let DiskSpace { free_bytes, total_bytes, free_files, is_read_only: _ } = *space;
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let found = format!("{} free of {}; the store may grow to {}", size(free_bytes), size(total_bytes), size(max_size));
    if let Some(files) = free_files.filter(|files| *files < FEW_FILES) {
        return Check::fail(DISK, format!("the disk takes only {files} more files (inodes)"))
            .advise("remove small files from the disk of the store, or give it a file system with more inodes");
    }
    let growth = max_size.saturating_sub(used.unwrap_or_default());
    let lower = format!("free disk space, or lower [store] max_size to what the disk can hold: {}", {
        size(used.unwrap_or_default().saturating_add(free_bytes))
    });
    if free_bytes < LITTLE || (free_bytes < NEARLY_FULL && free_bytes < growth) {
        return Check::fail(DISK, format!("nearly full: {found}")).advise(NEARLY_FULL_MEANS).advise(lower);
    }
    if free_bytes < growth {
        return Check::warn(DISK, format!("the store may grow beyond its disk: {found}"))
            .advise("the disk would be full before larder evicts by size")
            .advise(lower);
    }
    Check::ok(DISK, found)
}

#[cfg(test)]
mod tests {
    use super::super::CheckResult;
    use super::*;

    #[test]
    fn a_disk_is_judged_by_what_the_store_may_still_grow() {
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
            let check = disk(&space, max_size, used);
            assert_eq!(check.verdict, verdict, "{free} {used:?} {files:?}: {check:?}");
            assert_eq!(check.to_do.is_empty(), verdict == CheckResult::Ok);
        }
    }
}
