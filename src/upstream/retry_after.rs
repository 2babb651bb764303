//! Retry-After: for how long a server asks to be left alone (RFC 9110 10.2.3).

use std::time::Duration;

use http::header::{self, HeaderMap};

use crate::clock::Timestamp;

/// The time an answer says it is where it came from.
pub(super) fn date(headers: &HeaderMap) -> Option<Timestamp> {
    let text = headers.get(header::DATE).and_then(|value| value.to_str().ok())?;
    httpdate::parse_http_date(text.trim()).ok().map(Timestamp::of)
}

/// What an answer that came at `now` asks for; seconds, or a date, which counts from the server's own Date.
pub(super) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let asked = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::trim)?;
    if !asked.is_empty() && asked.bytes().all(|byte| byte.is_ascii_digit()) {
        // Too many digits for a number are a long time all the same; whoever obeys has a bound.
        return Some(Duration::from_secs(asked.parse().unwrap_or(u64::MAX)));
    }
    let until = httpdate::parse_http_date(asked).ok().map(Timestamp::of)?;
    Some(until.since(date(headers).unwrap_or(now)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Timestamp = Timestamp(784_111_777);

    fn asked(value: &str, date: Option<&str>) -> Option<u64> {
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
        for (value, said, expected) in [
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
            assert_eq!(asked(value, said), expected, "{value:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), NOW), None);
    }

    proptest! {
        #[test]
        fn nothing_in_these_headers_panics(value in "[ -~]{0,40}", date in "[ -~]{0,40}") {
            let _ = asked(&value, Some(&date));
        }
    }
}
