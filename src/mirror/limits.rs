//! Deadlines and size limits.

use std::time::Duration;

/// The deadlines and size limits of a mirror.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The deadline for answering a document.
    pub answer_within: Duration,
    /// The stall time: an archive without a byte for this long, or below 1 KiB/s over it, is given up.
    pub stall: Duration,
    /// The largest document, in bytes.
    pub document_bytes: u64,
    /// The largest archive, in bytes.
    pub archive_bytes: u64,
    /// The most bytes of registry API pages in the store.
    pub page_bytes: u64,
    /// The most requests that wait for upstreams at a time.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            answer_within: Duration::from_secs(8),
            stall: Duration::from_secs(30),
            document_bytes: 16 << 20,
            archive_bytes: 4 << 30,
            page_bytes: 256 << 20,
            waiting: 10_000,
        }
    }
}
