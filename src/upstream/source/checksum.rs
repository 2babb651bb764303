//! Parses and computes `?checksum=`: the expected checksum of an archive (go-getter).

use std::fmt;
use std::io::{self, Read, Write};

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA512};
use md5::{Digest as _, Md5};
use url::Url;

/// The expected checksum of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpectedChecksum {
    /// A literal checksum.
    Is(Checksum),
    /// A checksum in the list at this URL: see [`Checksum::in_list`].
    Listed(Url),
}

impl ExpectedChecksum {
    /// Parses the value of the parameter.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        match text.split_once(':') {
            None => Checksum::of_length(text).map(Self::Is),
            Some(("file", list)) => {
                let url = Url::parse(list).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
                let url = url.filter(|url| url.username().is_empty() && url.password().is_none());
                url.map(Self::Listed).ok_or("has a list of checksums that cannot be fetched")
            }
            Some((kind, hex)) => Checksum::parse(kind, hex).map(Self::Is),
        }
    }
}

/// The hash function of a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChecksumKind {
    /// MD5. Like SHA-1, it detects damage but no attacker. Larder checks it because the source address asks for it.
    Md5,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

/// A checksum with its hash function.
#[derive(Clone, PartialEq, Eq)]
pub struct Checksum {
    kind: ChecksumKind,
    value: Vec<u8>,
}

/// The name of each kind, and its length in bytes.
const KINDS: [(ChecksumKind, &str, usize); 4] = [
    (ChecksumKind::Md5, "md5", 16),
    (ChecksumKind::Sha1, "sha1", 20),
    (ChecksumKind::Sha256, "sha256", 32),
    (ChecksumKind::Sha512, "sha512", 64),
];

impl Checksum {
    /// Computes a checksum.
    ///
    /// # Errors
    /// An error of the reader.
    pub fn of(kind: ChecksumKind, reader: &mut dyn Read) -> io::Result<Self> {
        let algorithm = match kind {
            ChecksumKind::Md5 => {
                let mut md5 = Md5::new();
                io::copy(reader, &mut md5)?;
                return Ok(Self { kind, value: md5.finalize().to_vec() });
            }
            ChecksumKind::Sha1 => &SHA1_FOR_LEGACY_USE_ONLY,
            ChecksumKind::Sha256 => &SHA256,
            ChecksumKind::Sha512 => &SHA512,
        };
        let mut writer = ShaWriter(Context::new(algorithm));
        io::copy(reader, &mut writer)?;
        Ok(Self { kind, value: writer.0.finish().as_ref().to_vec() })
    }

    /// The hash function.
    pub fn kind(&self) -> ChecksumKind {
        self.kind
    }

    /// Finds the checksum of `archive` in the checksum list from `url`, in GNU's or BSD's form. A line with a bare
    /// checksum matches any archive.
    pub fn in_list(list: &[u8], url: &Url, archive: &Url) -> Option<Self> {
        let file = archive.path().rsplit('/').next().unwrap_or_default();
        let folder = url.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        let relative = archive.path().strip_prefix(folder).map_or(file, |path| path.trim_start_matches('/'));
        let names_archive = |name: &str| {
            let name = name.strip_prefix(['*', '?']).unwrap_or(name);
            let name = name.strip_prefix("./").unwrap_or(name);
            name == file || name == relative
        };
        let text = String::from_utf8_lossy(list);
        text.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().take(5).collect();
            match words.as_slice() {
                [kind, name, _, hex] => {
                    let name = name.strip_prefix('(').and_then(|name| name.strip_suffix(')'))?;
                    Self::parse(kind, hex).ok().filter(|_| names_archive(name))
                }
                [hex, name] => Self::of_length(hex).ok().filter(|_| names_archive(name)),
                [hex, ..] => Self::of_length(hex).ok(),
                [] => None,
            }
        })
    }

    fn parse(kind: &str, text: &str) -> Result<Self, &'static str> {
        let known = KINDS.iter().find(|(_, name, _)| kind.eq_ignore_ascii_case(name));
        let (kind, ..) = known.ok_or("has a checksum of an unknown kind")?;
        match Self::of_length(text) {
            Ok(checksum) if checksum.kind == *kind => Ok(checksum),
            _ => Err("has a checksum that is not of its length, or not in hex"),
        }
    }

    fn of_length(text: &str) -> Result<Self, &'static str> {
        let value = hex::decode(text).map_err(|_| "has a checksum that is not in hex")?;
        let known = KINDS.iter().find(|(.., length)| *length == value.len());
        let (kind, ..) = known.ok_or("has a checksum of no known length")?;
        Ok(Self { kind: *kind, value })
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = KINDS.iter().find(|(kind, ..)| *kind == self.kind).map_or("", |(_, name, _)| name);
        write!(f, "{kind}:{}", hex::encode(&self.value))
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

struct ShaWriter(Context);

impl Write for ShaWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(text: &str) -> Checksum {
        match ExpectedChecksum::parse(text).unwrap() {
            ExpectedChecksum::Is(checksum) => checksum,
            ExpectedChecksum::Listed(url) => panic!("{url}"),
        }
    }

    #[test]
    fn checksums_match_known_values() {
        for (kind, text) in [
            (ChecksumKind::Md5, "md5:900150983cd24fb0d6963f7d28e17f72"),
            (ChecksumKind::Sha1, "SHA1:A9993E364706816ABA3E25717850C26C9CD0D89D"),
            (ChecksumKind::Sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                ChecksumKind::Sha512,
                "sha512:ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
            ),
        ] {
            assert_eq!(Checksum::of(kind, &mut &b"abc"[..]).unwrap(), checksum(text));
            assert_ne!(Checksum::of(kind, &mut &b"abd"[..]).unwrap(), checksum(text));
        }
    }

    #[test]
    fn an_unusable_checksum_is_refused() {
        for bad in [
            "",
            "sha256:",
            "sha256:00",
            "xyz",
            "crc32:00000000",
            "sha1:900150983cd24fb0d6963f7d28e17f72",
            "file:/x",
            "file:https://u@h/x",
            "file:s3::https://h/x",
        ] {
            assert!(ExpectedChecksum::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_checksum_list_is_read_in_both_forms_for_the_right_file() {
        let list = Url::parse("https://h.example/releases/SUMS").unwrap();
        let archive = Url::parse("https://h.example/releases/1/m.zip").unwrap();
        let expected = checksum("900150983cd24fb0d6963f7d28e17f72");
        for (text, matches) in [
            ("d41d8cd98f00b204e9800998ecf8427e  other.zip\n900150983cd24fb0d6963f7d28e17f72 *m.zip\n", true),
            ("900150983cd24fb0d6963f7d28e17f72  ./1/m.zip", true),
            ("MD5 (m.zip) = 900150983cd24fb0d6963f7d28e17f72\n", true),
            ("900150983cd24fb0d6963f7d28e17f72\n", true),
            ("900150983cd24fb0d6963f7d28e17f72  2/m.zip", false),
            ("SHA1 (m.zip) = 900150983cd24fb0d6963f7d28e17f72\n", false),
            ("", false),
        ] {
            assert_eq!(
                Checksum::in_list(text.as_bytes(), &list, &archive) == Some(expected.clone()),
                matches,
                "{text}"
            );
        }
    }
}
