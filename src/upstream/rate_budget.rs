//! Token buckets for the rate limits of upstreams. This module reads no clock: the caller passes the time.

use crate::clock::{CLOCK_SLACK, Timestamp};

/// A rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Burst size.
    pub burst: u32,
    /// Requests per second after the burst.
    pub per_second: u32,
}

/// Token bucket of one upstream and purpose.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenBucket {
    tokens: u32,
    updated: Timestamp,
}

impl TokenBucket {
    /// A bucket with a full burst.
    pub(super) fn full(rate: Rate, now: Timestamp) -> Self {
        Self { tokens: rate.burst, updated: now }
    }

    /// Takes a token for each request. Takes none and returns false if the bucket has too few.
    pub(super) fn spend(&mut self, requests: u32, rate: Rate, now: Timestamp) -> bool {
        if now > self.updated {
            let seconds = u32::try_from(now.since(self.updated).as_secs()).unwrap_or(u32::MAX);
            self.tokens = self.tokens.saturating_add(seconds.saturating_mul(rate.per_second)).min(rate.burst);
            self.updated = now;
        } else if self.updated > now.after(CLOCK_SLACK) {
            // The clock was set back. With the old time, no token would be added until the clock catches up.
            self.updated = now;
        }
        match self.tokens.checked_sub(requests) {
            Some(remaining) => {
                self.tokens = remaining;
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
    fn a_bucket_allows_a_burst_and_then_a_rate() {
        let mut bucket = TokenBucket::full(RATE, Timestamp(1000));
        for (now, requests, is_allowed) in [
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
            assert_eq!(bucket.spend(requests, RATE, Timestamp(now)), is_allowed, "{requests} at {now}");
        }
    }
}
