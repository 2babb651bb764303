//! How much may be under way upstream at one time (promise 11).

use std::time::Duration;

use super::budget::Rate;
use super::permits::Bound;

/// How much may be under way at one time.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Requests for documents and the files of proof sets.
    pub documents: Bound,
    /// Requests for archives, each for as long as its bytes arrive.
    pub archives: Bound,
    /// The bodies of documents in memory, in KiB.
    pub bodies_kib: u32,
    /// Requests to one upstream about what is held, and for jobs.
    pub budget: Rate,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            documents: Bound { each: 64, all: 256, wait: Duration::from_secs(3) },
            // Clients wait longer for an archive than for a document, and one makes way when it has arrived.
            archives: Bound { each: 64, all: 256, wait: Duration::from_secs(20) },
            bodies_kib: 256 * 1024,
            budget: Rate { burst: 500, per_second: 20 },
        }
    }
}
