//! The Range header (RFC 9110 14.1.2), as far as it is answered: one range of bytes.

/// What a Range header asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// Everything; also where the header is none that we understand, or asks for several ranges.
    Whole,
    /// From the first number up to, but without, the second.
    Part(u64, u64),
    /// Nothing that is there.
    Beyond,
}

/// Reads a Range header for a file of `size` bytes.
pub(super) fn asked_range(header: &str, size: u64) -> Asked {
    let Some(range) = header.trim().strip_prefix("bytes=") else { return Asked::Whole };
    let Some((first, last)) = range.split_once('-') else { return Asked::Whole };
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    let (first, last) = (first.trim(), last.trim());
    match (number(first), number(last)) {
        (None, Some(suffix)) if first.is_empty() => match suffix.min(size) {
            0 => Asked::Beyond,
            suffix => Asked::Part(size - suffix, size),
        },
        (Some(first), _) if last.is_empty() => {
            if first < size {
                Asked::Part(first, size)
            } else {
                Asked::Beyond
            }
        }
        (Some(first), Some(last)) if first <= last => {
            if first < size {
                Asked::Part(first, last.saturating_add(1).min(size))
            } else {
                Asked::Beyond
            }
        }
        _ => Asked::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_rfc_says() {
        for (header, asked) in [
            ("bytes=0-4", Asked::Part(0, 5)),
            ("bytes=5-", Asked::Part(5, 10)),
            ("bytes=-3", Asked::Part(7, 10)),
            ("bytes=-30", Asked::Part(0, 10)),
            ("bytes=9-100", Asked::Part(9, 10)),
            ("bytes=10-", Asked::Beyond),
            ("bytes=10-20", Asked::Beyond),
            ("bytes=-0", Asked::Beyond),
            ("bytes=5-4", Asked::Whole),
            ("bytes=0-1,3-4", Asked::Whole),
            ("bytes=+1-2", Asked::Whole),
            ("items=0-1", Asked::Whole),
            ("bytes=", Asked::Whole),
            ("bytes=-", Asked::Whole),
            ("bytes=0-18446744073709551615", Asked::Part(0, 10)),
            ("bytes=99999999999999999999-", Asked::Whole),
        ] {
            assert_eq!(asked_range(header, 10), asked, "{header}");
        }
        assert_eq!(asked_range("bytes=0-", 0), Asked::Beyond);
    }
}
