//! Checks this machine's clock, because certificates and signatures depend on it.

use std::time::Duration;

use super::Check;
use crate::clock::Timestamp;

/// From this difference on, the clock is reported.
const MIN_WARN_DIFFERENCE: Duration = Duration::from_secs(5 * 60);
/// From this difference on, valid certificates may look invalid.
const MIN_FAIL_DIFFERENCE: Duration = Duration::from_secs(12 * 3600);

/// The time according to another server.
#[derive(Debug, Clone)]
pub(super) struct TimeSource {
    /// Name of the server.
    pub(super) source: String,
    /// The time in the server's Date header.
    pub(super) time: Timestamp,
    /// Local time when the response arrived.
    pub(super) local_time: Timestamp,
}

/// Compares the clock with the nearest of the announced times: a single server may have a wrong clock.
pub(super) fn check_clock(now: Timestamp, sources: &[TimeSource]) -> Check {
    let Some(nearest) = sources.iter().min_by_key(|source| source.difference()) else {
        return Check::ok(
            "clock",
            format!(
                "not checked: no upstream sent a Date header to compare with; here it is {} (UTC)",
                now.date_time()
            ),
        );
    };
    let (difference, source) = (nearest.difference(), &nearest.source);
    if difference <= MIN_WARN_DIFFERENCE {
        return Check::ok("clock", format!("within {} s of {source}", difference.as_secs().max(1)));
    }
    let direction = if nearest.local_time > nearest.time { "ahead of" } else { "behind" };
    let rounded = Duration::from_secs(difference.as_secs() / 60 * 60);
    let found = format!("this machine is {} {direction} {source}", humantime::format_duration(rounded));
    let to_do = "set the clock (timedatectl set-ntp true); certificates and signatures depend on it";
    let check =
        if difference < MIN_FAIL_DIFFERENCE { Check::warn("clock", found) } else { Check::fail("clock", found) };
    check.advise(to_do)
}

impl TimeSource {
    /// The difference between the server's time and the local time.
    fn difference(&self) -> Duration {
        self.time.since(self.local_time).max(self.local_time.since(self.time))
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckResult;
    use super::*;

    #[test]
    fn minutes_are_a_warning_and_a_day_is_a_failure_in_either_direction() {
        let local_time = Timestamp(1_800_000_000);
        let source = |seconds: i64| {
            let time = Timestamp(local_time.0.saturating_add_signed(seconds));
            TimeSource { source: "registry.example".to_owned(), time, local_time }
        };
        for (seconds, verdict, message) in [
            (0, CheckResult::Ok, "within 1 s"),
            (-290, CheckResult::Ok, "within 290 s"),
            (600, CheckResult::Warn, "10m behind registry.example"),
            (-7200, CheckResult::Warn, "2h ahead of registry.example"),
            (86_400, CheckResult::Fail, "1day behind registry.example"),
            (-86_400, CheckResult::Fail, "1day ahead of registry.example"),
        ] {
            let check = check_clock(local_time, &[source(seconds)]);
            assert_eq!(check.verdict, verdict, "{seconds}: {check:?}");
            assert!(check.found.contains(message), "{seconds}: {check:?}");
        }
        assert_eq!(
            check_clock(local_time, &[source(-86_400), source(3)]).verdict,
            CheckResult::Ok,
            "one of two upstreams has a wrong clock"
        );
        assert_eq!(check_clock(local_time, &[]).verdict, CheckResult::Ok);
    }
}
