//! Reads headers of answers: the server's time (`Date` and `Age`), `Retry-After` and `Content-Range` (RFC 9110).

use std::time::Duration;

use http::header::{self, HeaderMap};

use crate::clock::Timestamp;

/// The largest `Age` that is accepted (RFC 9111, section 1.2.2).
const MAX_AGE_SECONDS: u64 = 1 << 31;

/// The time at the origin: its `Date`, plus the `Age` that a cache adds.
pub fn server_time(headers: &HeaderMap) -> Option<Timestamp> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let date = httpdate::parse_http_date(text(header::DATE)?).ok().map(Timestamp::of)?;
    let age = text(header::AGE).and_then(|age| age.parse().ok()).unwrap_or(0).min(MAX_AGE_SECONDS);
    Some(Timestamp(date.0.saturating_add(age)))
}

/// The Retry-After of an answer that was received at `now`. The header has seconds, or a date, which is compared with
/// the server's own time.
pub(super) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::trim)?;
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that overflows still means a long time; callers limit it.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let until = httpdate::parse_http_date(text).ok().map(Timestamp::of)?;
    Some(until.since(server_time(headers).unwrap_or(now)))
}

/// Parses `bytes 5-9/10` to (5, Some(10)). `None` for a value that contradicts itself (RFC 9110, section 14.4).
pub fn content_range(value: &str) -> Option<(u64, Option<u64>)> {
    // `parse` alone would accept a sign.
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last) = (number(start)?, number(last)?);
    let total = if total == "*" { None } else { Some(number(total)?) };
    (start <= last && total.is_none_or(|total| last < total)).then_some((start, total))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Timestamp = Timestamp(784_111_777);

    fn retry_after_seconds(value: &str, date: Option<&str>) -> Option<u64> {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, value.parse().unwrap());
        if let Some(date) = date {
            headers.insert(header::DATE, date.parse().unwrap());
        }
        retry_after(&headers, NOW).map(|time| time.as_secs())
    }

    #[test]
    fn seconds_and_dates_are_parsed_and_other_values_are_ignored() {
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
            assert_eq!(retry_after_seconds(value, server_date), expected, "{value:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), NOW), None);
    }

    /// A shared cache may answer with an old response, whose `Age` says how old.
    #[test]
    fn the_age_of_an_answer_is_added_to_its_date() {
        for (age, expected) in
            [("", 0), ("86400", 86_400), (" 5 ", 5), ("-5", 0), ("soon", 0), ("99999999999", 1 << 31)]
        {
            let mut headers = HeaderMap::new();
            headers.insert(header::DATE, "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
            headers.insert(header::AGE, age.parse().unwrap());
            assert_eq!(server_time(&headers), Some(Timestamp(NOW.0 + expected)), "{age:?}");
        }
    }

    proptest! {
        #[test]
        fn any_header_values_are_parsed_or_ignored(value in "[ -~]{0,40}", date in "[ -~]{0,40}") {
            let _ = retry_after_seconds(&value, Some(&date));
        }
    }

    /// A Content-Range that contradicts itself is invalid (RFC 9110, section 14.4).
    #[test]
    fn a_contradictory_content_range_is_invalid() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        for invalid in [
            "bytes 5-4/10",
            "bytes 5-9/2",
            "bytes 5-9/9",
            "bytes 5-9/x",
            "bytes 5-9/",
            "bytes 5-9",
            "bytes 5-/10",
            "bytes 5-x/10",
            "bytes +5-9/10",
            "bytes 5-9/+10",
            "bytes */10",
            "items 5-9/10",
        ] {
            assert_eq!(content_range(invalid), None, "{invalid}");
        }
    }

    proptest! {
        #[test]
        fn any_header_value_is_parsed_or_refused(value in "[ -~]{0,40}") {
            let _ = content_range(&value);
        }

        #[test]
        fn a_printed_content_range_parses_to_the_same_values(start in any::<u64>(), length in 1..u64::MAX, after_range in prop::option::of(any::<u64>())) {
            let last = start.saturating_add(length - 1);
            let total = after_range.map(|after_range| last.saturating_add(after_range)).filter(|total| *total > last);
            let printed = total.map_or("*".to_owned(), |total| total.to_string());
            prop_assert_eq!(content_range(&format!("bytes {start}-{last}/{printed}")), Some((start, total)));
        }
    }
}
