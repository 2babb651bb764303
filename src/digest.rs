//! Digest types: the SHA-256 of an archive, its prefix in URLs, and the fast hash for later reads. `verify` decides
//! what a digest proves.

use std::array;
use std::fmt;
use std::io::{self, Read, Write};

use aws_lc_rs::digest::{Context, SHA256};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An error: a text is not a digest of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} is {rule}, not {actual:?}")]
pub struct BadDigest {
    kind: &'static str,
    rule: &'static str,
    actual: String,
}

/// A SHA-256 digest. Written in lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of bytes in memory; for a stream use [`Hasher`].
    pub fn of(bytes: &[u8]) -> Self {
        let mut context = Context::new(&SHA256);
        context.update(bytes);
        Self::from_context(context)
    }

    /// Parses exactly 64 hex digits of either case, as in SHA256SUMS.
    pub fn parse(text: &str) -> Result<Self, BadDigest> {
        parse_hex(text).map(Self).ok_or_else(|| bad_digest("a SHA-256 digest", "64 hex digits", text))
    }

    /// The prefix that is used in an archive's URL.
    pub fn prefix(&self) -> DigestPrefix {
        DigestPrefix(array::from_fn(|index| self.0[index]))
    }

    /// The first 8 hex digits and an ellipsis, for texts that name several digests: `1a5c8312…`.
    pub fn in_brief(&self) -> String {
        let Self([first, second, third, fourth, ..]) = self;
        format!("{first:02x}{second:02x}{third:02x}{fourth:02x}\u{2026}")
    }

    /// The digest in the form of lock files and mirrors for a whole zip: `zh:HEX`.
    pub fn zh(&self) -> String {
        format!("zh:{self}")
    }

    /// The digest of these 32 bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digest's 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The digest of what a SHA-256 context was updated with.
    pub(crate) fn from_context(context: Context) -> Self {
        let digest = context.finish();
        Self(array::from_fn(|index| digest.as_ref()[index]))
    }
}

/// The first 16 hex digits of a [`Digest`]. Upper case is refused when a prefix is parsed, so that one archive has one
/// URL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DigestPrefix([u8; 8]);

impl DigestPrefix {
    /// Parses exactly 16 lower-case hex digits.
    pub fn parse(text: &str) -> Result<Self, BadDigest> {
        Some(text)
            .filter(|text| !text.bytes().any(|byte| byte.is_ascii_uppercase()))
            .and_then(parse_hex)
            .map(Self)
            .ok_or_else(|| bad_digest("a digest in a URL", "16 lower-case hex digits", text))
    }

    /// Returns true if the digest starts with this prefix.
    pub fn matches(&self, digest: &Digest) -> bool {
        digest.prefix() == *self
    }
}

/// The BLAKE3 hash of a stored file, recorded when the file was stored. It detects damage on larder's disk, much faster
/// than SHA-256 would. It proves nothing about where the bytes came from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FastHash([u8; 32]);

impl FastHash {
    /// The hash of bytes in memory; for a stream use [`Hasher`].
    pub fn of(bytes: &[u8]) -> Self {
        Self(blake3::hash(bytes).into())
    }

    /// Parses exactly 64 hex digits of either case.
    pub fn parse(text: &str) -> Result<Self, BadDigest> {
        parse_hex(text).map(Self).ok_or_else(|| bad_digest("a BLAKE3 hash", "64 hex digits", text))
    }
}

/// Hashes a stream with SHA-256 and BLAKE3. A clone continues from the same state.
#[derive(Clone)]
pub struct Hasher {
    sha256: Context,
    blake3: blake3::Hasher,
}

impl Hasher {
    /// An empty hasher.
    pub fn new() -> Self {
        Self { sha256: Context::new(&SHA256), blake3: blake3::Hasher::new() }
    }

    /// Adds the next bytes of the stream.
    pub fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        self.blake3.update(bytes);
    }

    /// Both hashes of all bytes.
    pub fn finish(self) -> (Digest, FastHash) {
        (Digest::from_context(self.sha256), FastHash(self.blake3.finalize().into()))
    }
}

impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Default for Hasher {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher").finish_non_exhaustive()
    }
}

/// A reader that hashes the bytes that are read from it.
#[derive(Debug)]
pub struct HashingReader<R> {
    inner: R,
    hasher: Hasher,
}

impl<R> HashingReader<R> {
    /// Creates a reader.
    pub fn new(inner: R) -> Self {
        Self { inner, hasher: Hasher::new() }
    }

    /// The reader below.
    pub fn inner(&self) -> &R {
        &self.inner
    }

    /// The SHA-256 of the bytes read.
    pub fn digest(self) -> Digest {
        self.hasher.finish().0
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}

/// Hashes a stream with BLAKE3 alone, for comparison with the recorded [`FastHash`].
#[derive(Default)]
pub struct FastHasher(blake3::Hasher);

impl FastHasher {
    /// An empty hasher.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next bytes of the stream.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all bytes.
    pub fn finish(self) -> FastHash {
        FastHash(self.0.finalize().into())
    }
}

/// Makes a hash type print, parse and serialise as hex.
macro_rules! serialise_as_hex {
    ($($hash:ident),*) => {$(
        impl fmt::Display for $hash {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&hex::encode(self.0))
            }
        }

        impl fmt::Debug for $hash {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $hash {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $hash {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
            }
        }
    )*};
}

serialise_as_hex!(Digest, DigestPrefix, FastHash);

fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    // `decode_to_slice` refuses every length but 2 × N.
    hex::decode_to_slice(text, &mut bytes).ok()?;
    Some(bytes)
}

fn bad_digest(kind: &'static str, rule: &'static str, text: &str) -> BadDigest {
    BadDigest { kind, rule, actual: text.chars().take(80).collect() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn known_inputs_have_their_known_digests() {
        assert_eq!(Digest::of(b"").to_string(), EMPTY);
        assert_eq!(FastHash::of(b"").to_string(), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
        assert_eq!(Digest::of(b"").zh(), format!("zh:{EMPTY}"));
        assert_eq!(format!("{:?}", Digest::of(b"").prefix()), "e3b0c44298fc1c14");
    }

    #[test]
    fn chunks_hash_like_the_whole_input_even_through_a_clone() {
        let mut hasher = Hasher::new();
        hasher.update(b"one, ");
        let mut clone = hasher.clone();
        hasher.update(b"two");
        clone.update(b"two");
        let whole = (Digest::of(b"one, two"), FastHash::of(b"one, two"));
        assert_eq!(hasher.finish(), whole);
        assert_eq!(clone.finish(), whole);
    }

    #[test]
    fn a_digest_is_parsed_in_either_case_and_printed_in_lower_case() {
        assert_eq!(Digest::parse(&EMPTY.to_uppercase()).unwrap().to_string(), EMPTY);
    }

    #[test]
    fn text_other_than_64_hex_digits_is_refused() {
        for text in ["", "e3b0", &EMPTY[1..], &format!("{EMPTY}0"), &format!(" {EMPTY}"), &EMPTY.replace('e', "g")] {
            assert!(Digest::parse(text).is_err(), "{text}");
        }
        assert_eq!(Digest::parse("xyz").unwrap_err().to_string(), "a SHA-256 digest is 64 hex digits, not \"xyz\"");
    }

    #[test]
    fn a_prefix_has_one_spelling_and_matches_its_digest() {
        let digest = Digest::of(b"");
        let prefix = DigestPrefix::parse("e3b0c44298fc1c14").unwrap();
        assert!(prefix.matches(&digest));
        assert!(!prefix.matches(&Digest::of(b"other")));
        for text in ["E3B0C44298FC1C14", "e3b0c44298fc1c1", "e3b0c44298fc1c149a", "e3b0c44298fc1c1g"] {
            assert!(DigestPrefix::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_digest_is_serialised_as_hex_text() {
        let json = serde_json::to_string(&Digest::of(b"")).unwrap();
        assert_eq!(json, format!("\"{EMPTY}\""));
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), Digest::of(b""));
        assert!(serde_json::from_str::<FastHash>("\"00\"").is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in ".{0,80}") {
            let _ = (Digest::parse(&text), DigestPrefix::parse(&text), FastHash::parse(&text));
        }

        #[test]
        fn a_printed_digest_parses_to_itself(bytes in any::<[u8; 32]>()) {
            let digest = Digest(bytes);
            prop_assert_eq!(Digest::parse(&digest.to_string()), Ok(digest));
            prop_assert_eq!(DigestPrefix::parse(&digest.prefix().to_string()), Ok(digest.prefix()));
        }
    }
}
