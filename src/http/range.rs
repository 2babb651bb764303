//! The Range header (RFC 9110 14.1.2), as far as it is answered: one range of bytes.

/// What a Range header asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Everything; also where the header is none that we understand, or asks for several ranges.
    Whole,
    /// From the first number up to, but without, the second.
    Part(u64, u64),
    /// Nothing that is there.
    Beyond,
}

/// Reads a Range header for a file of `size` bytes.
pub(super) fn asked_range(header: &str, size: u64) -> Wanted {
    let Some(range) = header.trim().strip_prefix("bytes=") else { return Wanted::Whole };
    let Some((first, last)) = range.split_once('-') else { return Wanted::Whole };
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    let (first, last) = (first.trim(), last.trim());
    match (number(first), number(last)) {
        (None, Some(suffix)) if first.is_empty() => match suffix.min(size) {
            0 => Wanted::Beyond,
            suffix => Wanted::Part(size - suffix, size),
        },
        (Some(first), _) if last.is_empty() => {
            if first < size {
                Wanted::Part(first, size)
            } else {
                Wanted::Beyond
            }
        }
        (Some(first), Some(last)) if first <= last => {
            if first < size {
                Wanted::Part(first, last.saturating_add(1).min(size))
            } else {
                Wanted::Beyond
            }
        }
        _ => Wanted::Whole,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_are_read_as_the_rfc_says() {
        for (header, asked) in [
            ("bytes=0-4", Wanted::Part(0, 5)),
            ("bytes=5-", Wanted::Part(5, 10)),
            ("bytes=-3", Wanted::Part(7, 10)),
            ("bytes=-30", Wanted::Part(0, 10)),
            ("bytes=9-100", Wanted::Part(9, 10)),
            ("bytes=10-", Wanted::Beyond),
            ("bytes=10-20", Wanted::Beyond),
            ("bytes=-0", Wanted::Beyond),
            ("bytes=5-4", Wanted::Whole),
            ("bytes=0-1,3-4", Wanted::Whole),
            ("bytes=+1-2", Wanted::Whole),
            ("items=0-1", Wanted::Whole),
            ("bytes=", Wanted::Whole),
            ("bytes=-", Wanted::Whole),
            ("bytes=0-18446744073709551615", Wanted::Part(0, 10)),
            ("bytes=99999999999999999999-", Wanted::Whole),
        ] {
            assert_eq!(asked_range(header, 10), asked, "{header}");
        }
        assert_eq!(asked_range("bytes=0-", 0), Wanted::Beyond);
    }

    proptest! {
        #[test]
        fn a_part_is_never_empty_and_lies_within_the_file(
            header in "[ -~]{0,20}|bytes=[ +]?[0-9]{0,20}-[ -]?[0-9]{0,20}",
            size in prop_oneof![0..30_u64, any::<u64>()],
        ) {
            if let Wanted::Part(start, end) = asked_range(&header, size) {
                prop_assert!(start < end && end <= size, "{start} {end}");
            }
        }

        #[test]
        fn every_part_of_a_file_can_be_asked_for(first in 0..100_u64, last in 0..100_u64, size in 0..100_u64) {
            let asked = match (first <= last, first < size) {
                (false, _) => Wanted::Whole,
                (true, false) => Wanted::Beyond,
                (true, true) => Wanted::Part(first, size.min(last + 1)),
            };
            prop_assert_eq!(asked_range(&format!("bytes={first}-{last}"), size), asked);
        }
    }
}
