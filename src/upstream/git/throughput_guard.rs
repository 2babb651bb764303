//! The minimum throughput of git transfers, and limits on the time and the data before a pack.

use std::time::Duration;

use parking_lot::Mutex;

use crate::upstream::error::Fault;
use crate::upstream::limits::GitLimits;

/// The minimum speed, as for archives. A slower transfer would delay others.
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
    /// Bytes since the last check, and the time spent waiting for them.
    received: u64,
    waited: Duration,
    /// Time spent waiting for the next pack. Servers need time to prepare one.
    waited_for_pack: Duration,
}

#[derive(Debug, Clone, Copy)]
enum TransferStage {
    /// Greetings and refs before the pack, which are in memory; with their size so far.
    Talk(u64),
    Pack,
}

impl Default for TransferStage {
    fn default() -> Self {
        Self::Talk(0)
    }
}

impl ThroughputGuard {
    pub(super) fn new(limits: GitLimits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    /// Starts another conversation, or another answer within one.
    pub(super) fn expect_talk(&self) {
        self.state.lock().stage = TransferStage::Talk(0);
    }

    /// Marks the start of a pack.
    pub(super) fn expect_pack(&self) {
        *self.state.lock() = State { stage: TransferStage::Pack, ..State::default() };
    }

    /// Records bytes received after a wait.
    ///
    /// # Errors
    /// [`Fault::TooLarge`] for too much data before the pack, [`Fault::Slow`] for a slow transfer.
    pub(super) fn record(&self, bytes: usize, waited: Duration) -> Result<(), Fault> {
        let mut state = self.state.lock();
        if let TransferStage::Talk(talked) = &mut state.stage {
            *talked += bytes as u64;
            if *talked > self.limits.bytes_before_pack {
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
        let (came, waited) = (std::mem::take(&mut state.received), std::mem::take(&mut state.waited));
        if came as f64 >= MIN_BYTES_PER_SECOND * waited.as_secs_f64() {
            return Ok(());
        }
        Err(Fault::Slow(format!("less than 1 KiB/s over {} s", waited.as_secs())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace() -> ThroughputGuard {
        ThroughputGuard::new(GitLimits { bytes_before_pack: 100_000, ..GitLimits::default() })
    }

    const WAITED: Duration = Duration::from_secs(29);

    #[test]
    fn a_pack_that_drips_is_given_up_and_one_that_comes_is_not() {
        let pace = pace();
        pace.expect_pack();
        assert_eq!(pace.record(1, WAITED), Ok(()));
        assert!(matches!(pace.record(1, WAITED), Err(Fault::Slow(_))));
        for _ in 0..100 {
            assert_eq!(pace.record(30 << 10, WAITED), Ok(()));
        }
    }

    #[test]
    fn the_time_to_prepare_a_pack_is_limited_whatever_else_arrives() {
        for bytes in [5, 2000] {
            let pace = pace();
            for _ in 0..3 {
                let waits = (1..).find(|_| pace.record(bytes, Duration::from_secs(5)).is_err()).unwrap();
                assert_eq!(waits * 5, 125, "s; it has 120");
                pace.expect_talk();
                assert!(pace.record(bytes, Duration::from_secs(5)).is_err(), "another answer gives it no more time");
                // Another pack does.
                pace.expect_pack();
                pace.expect_talk();
            }
        }
    }

    #[test]
    fn data_before_a_pack_is_bounded_and_the_pack_is_not() {
        let pace = pace();
        assert_eq!(pace.record(60_000, Duration::ZERO), Ok(()));
        assert_eq!(pace.record(60_000, Duration::ZERO), Err(Fault::TooLarge(100_000)));
        pace.expect_pack();
        assert_eq!(pace.record(1 << 30, Duration::ZERO), Ok(()));
        pace.expect_talk();
        assert_eq!(pace.record(60_000, Duration::ZERO), Ok(()));
    }
}
