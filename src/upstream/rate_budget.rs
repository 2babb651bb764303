//! Rate limits of one upstream, for revalidations and for jobs: a burst and a rate. Pure: the caller passes the time.

use crate::clock::{CLOCK_SLACK, Timestamp};

/// A rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Burst size.
    pub burst: u32,
    /// Requests per second after the burst.
    pub per_second: u32,
}

/// Token bucket of one upstream.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenBucket {
    left: u32,
    updated: Timestamp,
}

impl TokenBucket {
    pub(super) fn full(rate: Rate, now: Timestamp) -> Self {
        Self { left: rate.burst, updated: now }
    }

    /// Takes `requests` tokens. Takes none and returns false if too few are left.
    pub(super) fn spend(&mut self, requests: u32, rate: Rate, now: Timestamp) -> bool {
        if now > self.updated {
            let seconds = u32::try_from(now.since(self.updated).as_secs()).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(seconds.saturating_mul(rate.per_second)).min(rate.burst);
            self.updated = now;
        } else if self.updated > now.after(CLOCK_SLACK) {
            // The clock was set back. Otherwise no token would be added until it catches up.
            self.updated = now;
        }
        match self.left.checked_sub(requests) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { burst: 5, per_second: 2 };

    #[test]
    fn a_burst_then_a_rate() {
        let mut budget = TokenBucket::full(RATE, Timestamp(1000));
        for (now, requests, may) in [
            (1000, 3, true),
            (1000, 3, false),
            (1000, 2, true),
            (1000, 1, false),
            (999, 1, false),
            (1001, 2, true),
            (1001, 1, false),
            (9000, 6, false),
            (9000, 5, true),
            (1000, 1, false),
            (1001, 2, true),
            (1001, 1, false),
        ] {
            assert_eq!(budget.spend(requests, RATE, Timestamp(now)), may, "{requests} at {now}");
        }
    }
}
