//! Limits for upstream requests and git fetches (DESIGN, promise 11).

use std::time::Duration;

use super::backoff::Rate;
use super::concurrency_limits::ConcurrencyLimit;
use super::memory_budget::DocumentMemoryLimits;

/// Limits for upstream requests.
#[derive(Debug, Clone, Copy)]
pub struct UpstreamLimits {
    /// Requests for documents and the files of proof sets.
    pub documents: ConcurrencyLimit,
    /// Requests for archives. Each runs until the last byte has arrived.
    pub archives: ConcurrencyLimit,
    /// Memory of document bodies.
    pub document_memory: DocumentMemoryLimits,
    /// Rate of revalidations for one upstream.
    pub revalidation_rate: Rate,
    /// Rate of job requests for one upstream. Few run at a time, and `Retry-After` delays them; this rate limits their
    /// total.
    pub job_rate: Rate,
    /// Time limit for a whole document, with redirects and retries. For other requests, the time limit until the first
    /// byte.
    pub give_up_after: Duration,
    /// Git fetches. Each runs from its first request to the last file of its tree.
    pub git_fetches: ConcurrencyLimit,
    /// Git fetches that only resolve a name to a commit.
    pub git_resolves: ConcurrencyLimit,
    /// Limits of one git fetch.
    pub git: GitLimits,
}

/// Limits of one git fetch.
#[derive(Debug, Clone, Copy)]
pub struct GitLimits {
    /// The longest silence during an answer.
    pub idle: Duration,
    /// Total time of a fetch, from the time that it has a permit.
    pub total: Duration,
    /// Total time of a fetch that only resolves a name.
    pub resolve_time: Duration,
    /// The longest wait for the first byte of a pack. Refs and progress messages do not reset it.
    pub preparing: Duration,
    /// Bytes before the pack. These are mostly refs, which are in memory.
    pub bytes_before_pack: u64,
    /// Number of refs in a repository.
    pub names: usize,
    /// Bytes received.
    pub received_bytes: u64,
    /// Objects in a pack. Each has an entry in memory.
    pub objects: u32,
    /// Size of one object. Whole objects are in memory.
    pub object_bytes: usize,
    /// Total size of a delta chain, which may be in memory at once.
    pub chain_bytes: u64,
    /// Time for git's code to stop after cancellation. After that time its thread is abandoned.
    pub stop_time: Duration,
    /// Depth of nested submodules.
    pub submodule_depth: usize,
    /// Number of submodules.
    pub submodules: usize,
}

impl Default for UpstreamLimits {
    fn default() -> Self {
        Self {
            documents: ConcurrencyLimit { per_upstream: 64, all: 256, wait: Duration::from_secs(3), queue: 4096 },
            // Clients wait longer for an archive than for a document, and a permit is free as soon as its archive has
            // arrived.
            archives: ConcurrencyLimit { per_upstream: 64, all: 256, wait: Duration::from_secs(20), queue: 4096 },
            // One upstream gets half of the budget at most: eight documents of the largest size.
            document_memory: DocumentMemoryLimits { each_kib: 128 * 1024, all_kib: 256 * 1024 },
            revalidation_rate: Rate { burst: 500, per_second: 20 },
            job_rate: Rate { burst: 10_000, per_second: 50 },
            give_up_after: Duration::from_secs(15),
            // A fetch may wait for slow fetches before it. One upstream never gets every permit.
            git_fetches: ConcurrencyLimit { per_upstream: 2, all: 4, wait: Duration::from_secs(300), queue: 256 },
            git_resolves: ConcurrencyLimit { per_upstream: 2, all: 4, wait: Duration::from_secs(15), queue: 64 },
            git: GitLimits::default(),
        }
    }
}

impl Default for GitLimits {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(30),
            total: Duration::from_secs(30 * 60),
            resolve_time: Duration::from_secs(15),
            preparing: Duration::from_secs(120),
            bytes_before_pack: 32 << 20,
            names: 500_000,
            received_bytes: 2 << 30,
            objects: 1_000_000,
            object_bytes: 32 << 20,
            chain_bytes: 256 << 20,
            stop_time: Duration::from_secs(10),
            submodule_depth: 8,
            submodules: 64,
        }
    }
}
