//! The only reader of the wall clock. Other code receives the time as a value.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::sync::watch;

/// The longest sleep before the clock is read again. Meanwhile the clock may be set, or the machine may be suspended.
const MAX_SLEEP: Duration = Duration::from_secs(3600);

/// The last second of the year 9999. Formatted years have four digits.
const LAST_SECOND: u64 = 253_402_300_799;

/// A clock set back by more than this invalidates earlier measurements.
pub(crate) const CLOCK_SLACK: Duration = Duration::from_secs(60);

/// A moment, in whole seconds since 1970-01-01 UTC. In records and files it is that number; in answers, which
/// `answer_json` writes, it is a text in RFC 3339. Both are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Serialize for Timestamp {
    /// A number of a size that only times have: `answer_json` writes it as text.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u128(self.0.into())
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TimestampVisitor)
    }
}

struct TimestampVisitor;

impl Visitor<'_> for TimestampVisitor {
    type Value = Timestamp;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("seconds since 1970, or a time such as 2026-08-01T12:00:00Z")
    }

    fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Timestamp, E> {
        Ok(Timestamp(seconds))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Timestamp, E> {
        let time = humantime::parse_rfc3339(text).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))?;
        Ok(Timestamp::of(time))
    }
}

impl Timestamp {
    /// The time in a file's metadata; times before 1970 count as 1970.
    pub fn of(time: SystemTime) -> Self {
        Self(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
    }

    /// The time since `earlier`; zero if `earlier` is in the future.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_secs(self.0.saturating_sub(earlier.0))
    }

    /// The beginning of a day of the form `2026-08-01` (UTC). `None` for any other text.
    pub fn of_day(text: &str) -> Option<Self> {
        let begin = Self::of(humantime::parse_rfc3339(&format!("{text}T00:00:00Z")).ok()?);
        (begin.day() == text).then_some(begin)
    }

    /// The last second of a day.
    pub fn end_of_day(self) -> Self {
        const DAY: u64 = 24 * 3600;
        Self((self.0 / DAY).saturating_mul(DAY).saturating_add(DAY - 1))
    }

    /// The date, as `2026-08-01`.
    pub fn day(self) -> String {
        self.date_time().chars().take(10).collect()
    }

    /// Date and time, as `2026-08-01T12:00:00Z`.
    pub fn date_time(self) -> String {
        humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(self.0.min(LAST_SECOND))).to_string()
    }

    /// Date and time in HTTP's form (RFC 9110, section 5.6.7).
    pub fn http_date(self) -> String {
        httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(self.0.min(LAST_SECOND)))
    }

    /// The time after `duration`, in whole seconds.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.as_secs()))
    }
}

/// The source of the current time.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    /// The fixed time of a test clock; `None` follows the machine.
    frozen_at: Option<Timestamp>,
    ahead_seconds: Arc<watch::Sender<u64>>,
}

impl Clock {
    /// The machine's own clock.
    pub fn system() -> Self {
        Self::default()
    }

    /// A clock that moves only when a test moves it, so that tests measure exact seconds on any machine.
    pub fn frozen() -> Self {
        Self { frozen_at: Some(Self::system().now()), ..Self::default() }
    }

    /// The current time.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    pub fn now(&self) -> Timestamp {
        let ahead = Duration::from_secs(*self.ahead_seconds.borrow());
        self.frozen_at.unwrap_or_else(|| Timestamp::of(SystemTime::now())).after(ahead)
    }

    /// Moves this clock ahead, so that documents age without waiting.
    pub fn advance(&self, by: Duration) {
        self.ahead_seconds.send_modify(|ahead| *ahead += by.as_secs());
    }

    /// Sets this clock back, as an operator may set the machine's.
    #[cfg(test)]
    pub(crate) fn set_back(&self, by: Duration) {
        self.ahead_seconds.send_modify(|ahead| *ahead -= by.as_secs());
    }

    /// Waits until this clock reaches `moment`.
    pub async fn sleep_until(&self, moment: Timestamp) {
        self.until_due(|_| moment).await;
    }

    /// Waits until the clock reaches the time that `due` returns for the current time. `due` is called again at each
    /// wake-up, at least once an hour, because a clock that was set back may give another due time.
    pub(crate) async fn until_due(&self, mut due: impl FnMut(Timestamp) -> Timestamp) {
        let mut clock_moves = self.ahead_seconds.subscribe();
        loop {
            let now = self.now();
            let remaining = due(now).since(now);
            if remaining.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(remaining.min(MAX_SLEEP)) => {}
                // `changed` cannot fail: the sender belongs to this clock.
                _ = clock_moves.changed() => {}
            }
        }
    }
}
