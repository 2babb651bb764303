//! How long ago the shared records of a fleet last answered a replica.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The silence after which a replica is behind: it may serve what others have changed.
const BEHIND_AFTER: Duration = Duration::from_secs(5);

/// The last answer of the shared records.
#[derive(Debug)]
pub struct Contact {
    began: Instant,
    /// The silence before the beginning, as far as an earlier process has noted it.
    silence_before: Duration,
    /// Milliseconds from the beginning to the last answer; 0 before the first one.
    heard: AtomicU64,
    /// The silence after which nothing is served (`serve_behind`); `None` for no limit.
    serve_behind: Option<Duration>,
}

/// The standing of a replica: its answers may be behind those of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// By a moment.
    Current,
    /// By more: others may have changed what is served.
    Behind,
    /// By more than `serve_behind` allows: nothing is served after this silence.
    TooFar(Duration),
}

impl Contact {
    /// The contact of a replica that begins now, after a silence: a restart makes nothing newer. `serve_behind` is the silence after
    /// which it serves nothing.
    pub fn new(silence_before: Duration, serve_behind: Option<Duration>) -> Self {
        Self { began: Instant::now(), silence_before, heard: AtomicU64::new(0), serve_behind }
    }

    /// Notes an answer to a question that was asked at this time.
    pub fn heard(&self, asked: Instant) {
        let millis = asked.saturating_duration_since(self.began).as_millis();
        self.heard.fetch_max(u64::try_from(millis).unwrap_or(u64::MAX).max(1), Ordering::AcqRel);
    }

    /// The silence after which nothing is served.
    pub fn serve_behind(&self) -> Option<Duration> {
        self.serve_behind
    }

    /// The time since the last answer.
    pub fn silence(&self) -> Duration {
        match self.heard.load(Ordering::Acquire) {
            0 => self.silence_before.saturating_add(self.began.elapsed()),
            heard => self.began.elapsed().saturating_sub(Duration::from_millis(heard)),
        }
    }

    /// The standing of this replica now.
    pub fn standing(&self) -> Standing {
        match self.silence() {
            silence if self.serve_behind.is_some_and(|limit| silence >= limit) => Standing::TooFar(silence),
            silence if silence >= BEHIND_AFTER || self.heard.load(Ordering::Acquire) == 0 => Standing::Behind,
            _ => Standing::Current,
        }
    }
}
