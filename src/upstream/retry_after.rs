//! The server's clock, and Retry-After (RFC 9110 10.2.3).

use std::time::Duration;

use http::header::{self, HeaderMap};

use crate::clock::Timestamp;

/// The largest `Age` that is accepted (RFC 9111 1.2.2).
const OLDEST: u64 = 1 << 31;

/// The time at the origin: its `Date`, plus the `Age` that a cache adds.
pub fn date(headers: &HeaderMap) -> Option<Timestamp> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let date = httpdate::parse_http_date(text(header::DATE)?).ok().map(Timestamp::of)?;
    let age = text(header::AGE).and_then(|age| age.parse().ok()).unwrap_or(0).min(OLDEST);
    Some(Timestamp(date.0.saturating_add(age)))
}

/// The Retry-After of an answer received at `now`: seconds, or a date relative to the server's own Date.
pub(super) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::trim)?;
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that overflows still means a long time; callers limit it.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let until = httpdate::parse_http_date(text).ok().map(Timestamp::of)?;
    Some(until.since(date(headers).unwrap_or(now)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Timestamp = Timestamp(784_111_777);

    fn seconds_asked(value: &str, date: Option<&str>) -> Option<u64> {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, value.parse().unwrap());
        if let Some(date) = date {
            headers.insert(header::DATE, date.parse().unwrap());
        }
        retry_after(&headers, NOW).map(|time| time.as_secs())
    }

    #[test]
    fn seconds_and_dates_are_read_and_nothing_else() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        for (value, server_date, expected) in [
            ("120", None, Some(120)),
            (" 0 ", None, Some(0)),
            ("99999999999999999999999", None, Some(u64::MAX)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", None, Some(60)),
            ("Sun, 06 Nov 1994 08:49:36 GMT", None, Some(0)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some("Sun, 06 Nov 1994 08:50:07 GMT"), Some(30)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some("soon"), Some(60)),
            (date, None, Some(0)),
            ("-1", None, None),
            ("1.5", None, None),
            ("soon", None, None),
            ("", None, None),
        ] {
            assert_eq!(seconds_asked(value, server_date), expected, "{value:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), NOW), None);
    }

    /// A shared cache may pass on an old answer.
    #[test]
    fn the_age_of_an_answer_counts_for_its_date() {
        for (age, expected) in
            [("", 0), ("86400", 86_400), (" 5 ", 5), ("-5", 0), ("soon", 0), ("99999999999", 1 << 31)]
        {
            let mut headers = HeaderMap::new();
            headers.insert(header::DATE, "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
            headers.insert(header::AGE, age.parse().unwrap());
            assert_eq!(date(&headers), Some(Timestamp(NOW.0 + expected)), "{age:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_in_these_headers_panics(value in "[ -~]{0,40}", date in "[ -~]{0,40}") {
            let _ = seconds_asked(&value, Some(&date));
        }
    }
}
