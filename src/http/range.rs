//! The Range header (RFC 9110 14.1.2): one byte range is supported.

/// A parsed Range header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestedRange {
    /// The whole file; also for an invalid header, or one with several ranges.
    Whole,
    /// The bytes from the first offset up to, but not including, the second.
    Part(u64, u64),
    /// Beyond the end of the file.
    Beyond,
}

/// Reads a Range header for a file of `size` bytes.
pub(super) fn requested_range(header: &str, size: u64) -> RequestedRange {
    let Some(range) = header.trim().strip_prefix("bytes=") else { return RequestedRange::Whole };
    let Some((first, last)) = range.split_once('-') else { return RequestedRange::Whole };
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    let (first, last) = (first.trim(), last.trim());
    match (number(first), number(last)) {
        (None, Some(suffix)) if first.is_empty() => match suffix.min(size) {
            0 => RequestedRange::Beyond,
            suffix => RequestedRange::Part(size - suffix, size),
        },
        (Some(first), _) if last.is_empty() => {
            if first < size {
                RequestedRange::Part(first, size)
            } else {
                RequestedRange::Beyond
            }
        }
        (Some(first), Some(last)) if first <= last => {
            if first < size {
                RequestedRange::Part(first, last.saturating_add(1).min(size))
            } else {
                RequestedRange::Beyond
            }
        }
        _ => RequestedRange::Whole,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_are_parsed_as_in_rfc_9110() {
        for (header, range) in [
            ("bytes=0-4", RequestedRange::Part(0, 5)),
            ("bytes=5-", RequestedRange::Part(5, 10)),
            ("bytes=-3", RequestedRange::Part(7, 10)),
            ("bytes=-30", RequestedRange::Part(0, 10)),
            ("bytes=9-100", RequestedRange::Part(9, 10)),
            ("bytes=10-", RequestedRange::Beyond),
            ("bytes=10-20", RequestedRange::Beyond),
            ("bytes=-0", RequestedRange::Beyond),
            ("bytes=5-4", RequestedRange::Whole),
            ("bytes=0-1,3-4", RequestedRange::Whole),
            ("bytes=+1-2", RequestedRange::Whole),
            ("items=0-1", RequestedRange::Whole),
            ("bytes=", RequestedRange::Whole),
            ("bytes=-", RequestedRange::Whole),
            ("bytes=0-18446744073709551615", RequestedRange::Part(0, 10)),
            ("bytes=99999999999999999999-", RequestedRange::Whole),
        ] {
            assert_eq!(requested_range(header, 10), range, "{header}");
        }
        assert_eq!(requested_range("bytes=0-", 0), RequestedRange::Beyond);
    }

    proptest! {
        #[test]
        fn a_part_is_never_empty_and_lies_within_the_file(
            header in "[ -~]{0,20}|bytes=[ +]?[0-9]{0,20}-[ -]?[0-9]{0,20}",
            size in prop_oneof![0..30_u64, any::<u64>()],
        ) {
            if let RequestedRange::Part(start, end) = requested_range(&header, size) {
                prop_assert!(start < end && end <= size, "{start} {end}");
            }
        }

        #[test]
        fn every_part_of_a_file_can_be_requested(first in 0..100_u64, last in 0..100_u64, size in 0..100_u64) {
            let range = match (first <= last, first < size) {
                (false, _) => RequestedRange::Whole,
                (true, false) => RequestedRange::Beyond,
                (true, true) => RequestedRange::Part(first, size.min(last + 1)),
            };
            prop_assert_eq!(requested_range(&format!("bytes={first}-{last}"), size), range);
        }
    }
}
