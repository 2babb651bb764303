//! The Content-Range of a partial answer (RFC 9110, section 14.4).

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
