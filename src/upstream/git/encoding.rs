//! The attribute `working-tree-encoding`: converts UTF-8 to the named encoding like git's checkout. Text that the
//! encoding cannot represent stays unchanged, as in git.

use gix_filter::worktree::{encode_to_worktree, encoding};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Encoded {
    Same,
    /// The converted bytes.
    Now(Vec<u8>),
    /// Larder does not support the encoding; git may.
    Unknown,
}

/// Converts `bytes` from UTF-8 to the encoding `name`.
pub(super) fn encoded(bytes: &[u8], name: &[u8]) -> Encoded {
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    if bytes.is_empty() || name.is_empty() || matches!(name.as_str(), "utf-8" | "utf8") {
        return Encoded::Same;
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return Encoded::Same };
    let in_16 = |write: fn(u16) -> [u8; 2], mark: bool| {
        let marked = mark.then_some(0xFEFF).into_iter().chain(text.encode_utf16());
        Encoded::Now(marked.flat_map(write).collect())
    };
    let in_32 = |write: fn(u32) -> [u8; 4], mark: bool| {
        let marked = mark.then_some(0xFEFF).into_iter().chain(text.chars().map(u32::from));
        Encoded::Now(marked.flat_map(write).collect())
    };
    let up_to = |last: u32| {
        let bytes: Option<Vec<u8>> =
            text.chars().map(|c| u8::try_from(u32::from(c)).ok().filter(|byte| u32::from(*byte) <= last)).collect();
        bytes.map_or(Encoded::Same, Encoded::Now)
    };
    let name = name.strip_prefix("utf").map_or(name.clone(), |rest| format!("utf-{}", rest.trim_start_matches('-')));
    match name.as_str() {
        "utf-16" | "utf-16le-bom" => in_16(u16::to_le_bytes, true),
        "utf-16be-bom" => in_16(u16::to_be_bytes, true),
        "utf-16le" => in_16(u16::to_le_bytes, false),
        "utf-16be" => in_16(u16::to_be_bytes, false),
        "utf-32" | "utf-32le-bom" => in_32(u32::to_le_bytes, true),
        "utf-32be-bom" => in_32(u32::to_be_bytes, true),
        "utf-32le" => in_32(u32::to_le_bytes, false),
        "utf-32be" => in_32(u32::to_be_bytes, false),
        "us-ascii" | "ascii" => up_to(0x7F),
        // The web's encoding of this name is a different one.
        "iso-8859-1" | "iso8859-1" | "iso_8859-1" | "latin1" | "latin-1" => up_to(0xFF),
        other => {
            let Ok(encoding) = encoding::for_label(other) else { return Encoded::Unknown };
            let mut written = Vec::new();
            match encode_to_worktree(bytes, encoding, &mut written) {
                Ok(()) => Encoded::Now(written),
                Err(_) => Encoded::Same,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn unencodable_text_stays_unchanged() {
        assert_eq!(encoded("aé".as_bytes(), b"UTF-16LE"), Encoded::Now(b"a\0\xE9\0".to_vec()));
        assert_eq!(encoded("a".as_bytes(), b"UTF-16"), Encoded::Now(b"\xFF\xFEa\0".to_vec()));
        assert_eq!(encoded("é".as_bytes(), b"latin-1"), Encoded::Now(vec![0xE9]));
        assert_eq!(encoded("€".as_bytes(), b"ISO-8859-1"), Encoded::Same);
        assert_eq!(encoded("€".as_bytes(), b"windows-1252"), Encoded::Now(vec![0x80]));
        assert_eq!(encoded(&[0xFF], b"UTF-16"), Encoded::Same);
        assert_eq!(encoded(b"x", b"no-such"), Encoded::Unknown);
        assert_eq!(encoded(b"x", b"utf8"), Encoded::Same);
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_encoding_are_something(bytes in prop::collection::vec(any::<u8>(), 0..60), name in "(utf-?(8|16|32)(le|be)?(-bom)?|\\PC{0,12})") {
            let _ = encoded(&bytes, name.as_bytes());
        }
    }
}
