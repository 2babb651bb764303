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
}
