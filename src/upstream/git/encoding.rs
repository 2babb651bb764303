//! Implements the attribute `working-tree-encoding`: converts UTF-8 to the named encoding like git's checkout. Text that the
//! encoding cannot represent stays unchanged, as in git.

use gix_filter::worktree::{encode_to_worktree, encoding};

/// The result of a conversion.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Encoded {
    Unchanged,
    /// The converted bytes.
    Converted(Vec<u8>),
    /// Larder does not support the encoding; git may.
    Unsupported,
}

/// Converts `bytes` from UTF-8 to the encoding `name`.
pub(super) fn encode(bytes: &[u8], name: &[u8]) -> Encoded {
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    if bytes.is_empty() || name.is_empty() || matches!(name.as_str(), "utf-8" | "utf8") {
        return Encoded::Unchanged;
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return Encoded::Unchanged };
    let utf16 = |to_bytes: fn(u16) -> [u8; 2], has_bom: bool| {
        let units = has_bom.then_some(0xFEFF).into_iter().chain(text.encode_utf16());
        Encoded::Converted(units.flat_map(to_bytes).collect())
    };
    let utf32 = |to_bytes: fn(u32) -> [u8; 4], has_bom: bool| {
        let units = has_bom.then_some(0xFEFF).into_iter().chain(text.chars().map(u32::from));
        Encoded::Converted(units.flat_map(to_bytes).collect())
    };
    let single_bytes = |max: u32| {
        let bytes: Option<Vec<u8>> =
            text.chars().map(|c| u8::try_from(u32::from(c)).ok().filter(|byte| u32::from(*byte) <= max)).collect();
        bytes.map_or(Encoded::Unchanged, Encoded::Converted)
    };
    let name = name.strip_prefix("utf").map_or(name.clone(), |rest| format!("utf-{}", rest.trim_start_matches('-')));
    match name.as_str() {
        "utf-16" | "utf-16le-bom" => utf16(u16::to_le_bytes, true),
        "utf-16be-bom" => utf16(u16::to_be_bytes, true),
        "utf-16le" => utf16(u16::to_le_bytes, false),
        "utf-16be" => utf16(u16::to_be_bytes, false),
        "utf-32" | "utf-32le-bom" => utf32(u32::to_le_bytes, true),
        "utf-32be-bom" => utf32(u32::to_be_bytes, true),
        "utf-32le" => utf32(u32::to_le_bytes, false),
        "utf-32be" => utf32(u32::to_be_bytes, false),
        "us-ascii" | "ascii" => single_bytes(0x7F),
        // `encoding::for_label` would take this name for windows-1252, as browsers do.
        "iso-8859-1" | "iso8859-1" | "iso_8859-1" | "latin1" | "latin-1" => single_bytes(0xFF),
        label => {
            let Ok(encoding) = encoding::for_label(label) else { return Encoded::Unsupported };
            let mut converted = Vec::new();
            match encode_to_worktree(bytes, encoding, &mut converted) {
                Ok(()) => Encoded::Converted(converted),
                Err(_) => Encoded::Unchanged,
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
        assert_eq!(encode("aé".as_bytes(), b"UTF-16LE"), Encoded::Converted(b"a\0\xE9\0".to_vec()));
        assert_eq!(encode("a".as_bytes(), b"UTF-16"), Encoded::Converted(b"\xFF\xFEa\0".to_vec()));
        assert_eq!(encode("é".as_bytes(), b"latin-1"), Encoded::Converted(vec![0xE9]));
        assert_eq!(encode("€".as_bytes(), b"ISO-8859-1"), Encoded::Unchanged);
        assert_eq!(encode("€".as_bytes(), b"windows-1252"), Encoded::Converted(vec![0x80]));
        assert_eq!(encode(&[0xFF], b"UTF-16"), Encoded::Unchanged);
        assert_eq!(encode(b"x", b"no-such"), Encoded::Unsupported);
        assert_eq!(encode(b"x", b"utf8"), Encoded::Unchanged);
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_encoding_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), name in "(utf-?(8|16|32)(le|be)?(-bom)?|\\PC{0,12})") {
            let _ = encode(&bytes, name.as_bytes());
        }
    }
}
