//! The Content-Range of a partial answer (RFC 9110 14.4).

/// Parses `bytes 5-9/10` to (5, Some(10)). `None` for a value that contradicts itself (RFC 9110 14.4).
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

    /// RFC 9110 14.4: a Content-Range that contradicts itself is invalid.
    #[test]
    fn a_contradictory_content_range_is_invalid() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        for cannot_be in [
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
            assert_eq!(content_range(cannot_be), None, "{cannot_be}");
        }
    }

    proptest! {
        #[test]
        fn nothing_in_its_place_panics(range in "[ -~]{0,40}") {
            let _ = content_range(&range);
        }

        #[test]
        fn a_content_range_is_read_as_it_was_printed(start in any::<u64>(), length in 1..u64::MAX, rest in prop::option::of(any::<u64>())) {
            let last = start.saturating_add(length - 1);
            let total = rest.map(|rest| last.saturating_add(rest)).filter(|total| *total > last);
            let printed = total.map_or("*".to_owned(), |total| total.to_string());
            prop_assert_eq!(content_range(&format!("bytes {start}-{last}/{printed}")), Some((start, total)));
        }
    }
}
