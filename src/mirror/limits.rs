//! How long is waited for what, and how much is taken.

use std::time::Duration;

/// How long we wait for what.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Every document is answered within this.
    pub answer_within: Duration,
    /// An archive that brings no byte for this long, or less than 1 KiB/s over it, is given up.
    pub stall: Duration,
    /// The largest document, in bytes.
    pub document_bytes: u64,
    /// The largest archive, in bytes.
    pub archive_bytes: u64,
    /// How many bytes of the store pages of the registry HTTP API may have.
    pub page_bytes: u64,
    /// How many requests may wait for upstreams at one time.
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
