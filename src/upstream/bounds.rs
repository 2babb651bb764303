//! How much may be under way upstream at one time (promise 11).

use std::time::Duration;

use super::budget::Rate;
use super::permits::Bound;
use super::room::MemoryBound;

/// How much may be under way at one time.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Requests for documents and the files of proof sets.
    pub documents: Bound,
    /// Requests for archives, each for as long as its bytes arrive.
    pub archives: Bound,
    /// The bodies of documents in memory.
    pub bodies: MemoryBound,
    /// Requests to one upstream about what is held.
    pub budget: Rate,
    /// Requests to one upstream for what jobs fetch. Few of them are under way at one time, and a `Retry-After` holds
    /// them all back: this only bounds how many there are in all.
    pub jobs: Rate,
    /// How long an upstream has for an answer: for a document until it is whole, with its redirects and what is tried
    /// again, for anything else until it begins. Then it is given up.
    pub give_up_after: Duration,
    /// Git jobs, each from its first request to the last file of its tree.
    pub git_jobs: Bound,
    /// Jobs that only ask which commit a name has.
    pub git_looks: Bound,
    /// What one of them may take.
    pub git: GitLimits,
}

/// What one git job may take.
#[derive(Debug, Clone, Copy)]
pub struct GitLimits {
    /// How long it may be silent once it has begun to answer.
    pub idle: Duration,
    /// How long it may take in all, once it has its turn.
    pub total: Duration,
    /// How long one may take in all that only asks for names.
    pub look: Duration,
    /// How long the first byte of a pack may be waited for, whatever else comes meanwhile: names, and lines about how far
    /// it is, are not what was asked for.
    pub preparing: Duration,
    /// How much may be said in one conversation before there is a pack: names, most of all, which are in memory.
    pub talk_bytes: u64,
    /// How many names a repository may have.
    pub names: usize,
    /// How much may be received for it.
    pub received_bytes: u64,
    /// How many objects one pack may have: what is known of each is in memory.
    pub objects: u32,
    /// How large one object of it may be: it is in memory as a whole.
    pub object_bytes: usize,
    /// How much the objects may come to that are made one out of the other: they may be in memory all at one time.
    pub chain_bytes: u64,
    /// How long git's code may go on once it was told to stop; then nobody waits for it any more.
    pub ending: Duration,
    /// How deep submodules may be in submodules.
    pub submodule_depth: usize,
    /// How many submodules it may have in all.
    pub submodules: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            documents: Bound { each: 64, all: 256, wait: Duration::from_secs(3), queue: 4096 },
            // Clients wait longer for an archive than for a document, and one makes way when it has arrived.
            archives: Bound { each: 64, all: 256, wait: Duration::from_secs(20), queue: 4096 },
            // One upstream never has all of it; half is eight documents of the largest size.
            bodies: MemoryBound { each_kib: 128 * 1024, all_kib: 256 * 1024 },
            budget: Rate { burst: 500, per_second: 20 },
            jobs: Rate { burst: 10_000, per_second: 50 },
            give_up_after: Duration::from_secs(15),
            // Their turn comes after that of others, each of which may take a while; one upstream never has all of them.
            git_jobs: Bound { each: 2, all: 4, wait: Duration::from_secs(300), queue: 256 },
            git_looks: Bound { each: 2, all: 4, wait: Duration::from_secs(15), queue: 64 },
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
