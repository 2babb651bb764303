//! Enforces the minimum throughput of git transfers, and limits on the time and the data before a pack.

use std::time::Duration;

use parking_lot::Mutex;

use crate::upstream::error::Fault;
use crate::upstream::limits::GitLimits;

/// The minimum throughput, the same as for archives. Slower transfers would keep permits that others wait for.
const MIN_BYTES_PER_SECOND: f64 = 1024.0;

/// Waiting times and received bytes of one job.
#[derive(Debug)]
pub(super) struct ThroughputGuard {
    limits: GitLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    stage: TransferStage,
    /// Bytes since the last check.
    received: u64,
    /// Time spent waiting for those bytes.
    waited: Duration,
    /// Time spent waiting for the next pack. Servers need time to prepare one.
    waited_for_pack: Duration,
}

#[derive(Debug, Clone, Copy)]
enum TransferStage {
    /// Greetings, refs and progress messages before the pack, with their bytes so far. They are in memory.
    BeforePack(u64),
    Pack,
}

impl Default for TransferStage {
    fn default() -> Self {
        Self::BeforePack(0)
    }
}

impl ThroughputGuard {
    pub(super) fn new(limits: GitLimits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    /// Starts another conversation, or another answer within a conversation.
    pub(super) fn start_answer(&self) {
        self.state.lock().stage = TransferStage::BeforePack(0);
    }

    /// Marks the start of a pack.
    pub(super) fn start_pack(&self) {
        *self.state.lock() = State { stage: TransferStage::Pack, ..State::default() };
    }

    /// Records bytes received after a wait.
    ///
    /// # Errors
    /// [`Fault::TooLarge`] for too much data before the pack, [`Fault::Slow`] for a slow transfer.
    pub(super) fn record(&self, bytes: usize, waited: Duration) -> Result<(), Fault> {
        let mut state = self.state.lock();
        if let TransferStage::BeforePack(bytes_so_far) = &mut state.stage {
            *bytes_so_far += bytes as u64;
            if *bytes_so_far > self.limits.bytes_before_pack {
                return Err(Fault::TooLarge(self.limits.bytes_before_pack));
            }
            state.waited_for_pack += waited;
            return match self.limits.preparing {
                limit if state.waited_for_pack > limit => {
                    Err(Fault::Slow(format!("no byte of a pack within {} s", limit.as_secs())))
                }
                _ => Ok(()),
            };
        }
        state.received += bytes as u64;
        state.waited += waited;
        if state.waited < self.limits.idle {
            return Ok(());
        }
        let (received, waited) = (std::mem::take(&mut state.received), std::mem::take(&mut state.waited));
        if received as f64 >= MIN_BYTES_PER_SECOND * waited.as_secs_f64() {
            return Ok(());
        }
        Err(Fault::Slow(format!("less than 1 KiB/s over {} s", waited.as_secs())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> ThroughputGuard {
        ThroughputGuard::new(GitLimits { bytes_before_pack: 100_000, ..GitLimits::default() })
    }

    const WAITED: Duration = Duration::from_secs(29);

    #[test]
    fn a_slow_pack_is_given_up_and_a_fast_pack_is_not() {
        let guard = guard();
        guard.start_pack();
        assert_eq!(guard.record(1, WAITED), Ok(()));
        assert!(matches!(guard.record(1, WAITED), Err(Fault::Slow(_))));
        for _ in 0..100 {
            assert_eq!(guard.record(30 << 10, WAITED), Ok(()));
        }
    }

    #[test]
    fn the_time_to_prepare_a_pack_is_limited_whatever_arrives_before_the_pack() {
        for bytes in [5, 2000] {
            let guard = guard();
            for _ in 0..3 {
                let waits = (1..).find(|_| guard.record(bytes, Duration::from_secs(5)).is_err()).unwrap();
                assert_eq!(waits * 5, 125, "the first multiple of 5 s past the limit of 120 s");
                guard.start_answer();
                assert!(guard.record(bytes, Duration::from_secs(5)).is_err(), "another answer does not reset the time");
                // Another pack resets the time.
                guard.start_pack();
                guard.start_answer();
            }
        }
    }

    #[test]
    fn data_before_a_pack_is_bounded_and_the_pack_is_not() {
        let guard = guard();
        assert_eq!(guard.record(60_000, Duration::ZERO), Ok(()));
        assert_eq!(guard.record(60_000, Duration::ZERO), Err(Fault::TooLarge(100_000)));
        guard.start_pack();
        assert_eq!(guard.record(1 << 30, Duration::ZERO), Ok(()));
        guard.start_answer();
        assert_eq!(guard.record(60_000, Duration::ZERO), Ok(()));
    }
}
