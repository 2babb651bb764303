//! Concurrency limits and rate limits for upstream requests (promise 11).

use std::time::Duration;

use super::concurrency_limits::ConcurrencyLimit;
use super::memory_budget::DocumentMemoryLimits;
use super::rate_budget::Rate;

/// Limits for upstream requests.
#[derive(Debug, Clone, Copy)]
pub struct UpstreamLimits {
    /// Requests for documents and the files of proof sets.
    pub documents: ConcurrencyLimit,
    /// Requests for archives, each for as long as its bytes arrive.
    pub archives: ConcurrencyLimit,
    /// The bodies of documents in memory.
    pub bodies: DocumentMemoryLimits,
    /// Rate of revalidations for one upstream.
    pub budget: Rate,
    /// Rate of job requests for one upstream. Few run at a time, and `Retry-After` delays them all; this limits their
    /// total.
    pub jobs: Rate,
    /// Time limit: for a whole document, with redirects and retries; for anything else, until the first byte.
    pub give_up_after: Duration,
    /// Git jobs, each from its first request to the last file of its tree.
    pub git_jobs: ConcurrencyLimit,
    /// Jobs that only ask which commit a name has.
    pub git_looks: ConcurrencyLimit,
    /// Limits of one git job.
    pub git: GitLimits,
}

/// Limits of one git job.
#[derive(Debug, Clone, Copy)]
pub struct GitLimits {
    /// The longest silence during an answer.
    pub idle: Duration,
    /// Total time of a job, once it has a permit.
    pub total: Duration,
    /// Total time of a job that only asks for names.
    pub look: Duration,
    /// The wait for the first byte of a pack. Names and progress messages do not reset it.
    pub preparing: Duration,
    /// Bytes before the pack: mostly names, which are held in memory.
    pub talk_bytes: u64,
    /// Names in a repository.
    pub names: usize,
    /// Bytes received.
    pub received_bytes: u64,
    /// Objects in a pack: an entry for each is in memory.
    pub objects: u32,
    /// Size of one object, which is in memory whole.
    pub object_bytes: usize,
    /// Total size of a delta chain, which may be in memory at once.
    pub chain_bytes: u64,
    /// Time for git's code to stop after cancellation; then it is abandoned.
    pub ending: Duration,
    /// Depth of nested submodules.
    pub submodule_depth: usize,
    /// Number of submodules.
    pub submodules: usize,
}

impl Default for UpstreamLimits {
    fn default() -> Self {
        Self {
            documents: ConcurrencyLimit { each: 64, all: 256, wait: Duration::from_secs(3), queue: 4096 },
            // // Clients wait longer for an archive than for a document; a permit is free once it has arrived.
            archives: ConcurrencyLimit { each: 64, all: 256, wait: Duration::from_secs(20), queue: 4096 },
            // One upstream never has all of it; half is eight documents of the largest size.
            bodies: DocumentMemoryLimits { each_kib: 128 * 1024, all_kib: 256 * 1024 },
            budget: Rate { burst: 500, per_second: 20 },
            jobs: Rate { burst: 10_000, per_second: 50 },
            give_up_after: Duration::from_secs(15),
            // // A job waits for others that may be slow; one upstream never gets every permit.
            git_jobs: ConcurrencyLimit { each: 2, all: 4, wait: Duration::from_secs(300), queue: 256 },
            git_looks: ConcurrencyLimit { each: 2, all: 4, wait: Duration::from_secs(15), queue: 64 },
            git: GitLimits::default(),
        }
    }
}

impl Default for GitLimits {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(30),
            total: Duration::from_secs(30 * 60),
            look: Duration::from_secs(15),
            preparing: Duration::from_secs(120),
            talk_bytes: 32 << 20,
            names: 500_000,
            received_bytes: 2 << 30,
            objects: 1_000_000,
            object_bytes: 32 << 20,
            chain_bytes: 256 << 20,
            ending: Duration::from_secs(10),
            submodule_depth: 8,
            submodules: 64,
        }
    }
}
