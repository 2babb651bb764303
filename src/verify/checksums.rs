//! Parses SHA256SUMS as the clients do, and finds the platform in a conventional archive name. `signature` checks the
//! signature of SHA256SUMS.

use indexmap::IndexMap;

use crate::digest::Digest;

/// The size limit of SHA256SUMS, in bytes.
pub const MAX_BYTES: usize = 4 << 20;

/// The most lines that a SHA256SUMS may have.
pub const MAX_LINES: usize = 10_000;

/// The digests in SHA256SUMS by file name, in the order of the lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checksums {
    by_name: IndexMap<String, Digest>,
}

/// Why SHA256SUMS cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadChecksums {
    /// Larger than [`MAX_BYTES`].
    #[error("SHA256SUMS has {actual} bytes; at most {MAX_BYTES} are read")]
    TooLarge {
        /// Its size in bytes.
        actual: usize,
    },
    /// More lines than [`MAX_LINES`].
    #[error("SHA256SUMS has more than {MAX_LINES} lines")]
    TooManyLines,
}

impl Checksums {
    /// Parses SHA256SUMS. Clients look for the first line with the name that they need, and read no other, so the first line
    /// of a name counts, and bytes that are not UTF-8 are in names that nobody asks for (observed with Terraform 1.11.4).
    pub fn parse(bytes: &[u8]) -> Result<Self, BadChecksums> {
        if bytes.len() > MAX_BYTES {
            return Err(BadChecksums::TooLarge { actual: bytes.len() });
        }
        let text = String::from_utf8_lossy(bytes);
        let mut by_name: IndexMap<String, Option<Digest>> = IndexMap::new();
        for (index, line) in text.trim_end_matches(['\r', '\n']).split('\n').enumerate() {
            if index >= MAX_LINES {
                return Err(BadChecksums::TooManyLines);
            }
            // Terraform compares the second field of a line, so the `*` of binary mode is a part of the name.
            let mut fields = line.split_whitespace();
            let (Some(hex), Some(name)) = (fields.next(), fields.next()) else { continue };
            by_name.entry(name.to_owned()).or_insert_with(|| Digest::parse(hex).ok());
        }
        let with_digest = |(name, digest): (String, Option<Digest>)| Some((name, digest?));
        Ok(Self { by_name: by_name.into_iter().filter_map(with_digest).collect() })
    }

    /// The digest listed for exactly this name.
    pub fn get(&self, name: &str) -> Option<Digest> {
        self.by_name.get(name).copied()
    }

    /// All names with their digests, in the order of the lines.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Digest)> {
        self.by_name.iter().map(|(name, digest)| (name.as_str(), *digest))
    }
}

/// The digests that a client takes from a signed SHA256SUMS into a lock file: that of every line, whatever the line names. With
/// one line that has no SHA-256 and name, it takes none (`package_authentication.go`, `AcceptableHashes`).
pub fn digests_to_lock(sums: &[u8]) -> Vec<Digest> {
    let text = String::from_utf8_lossy(sums);
    let digest = |line: &str| {
        let mut fields = line.split_whitespace();
        let (hex, _name) = (fields.next()?, fields.next()?);
        Digest::parse(hex).ok()
    };
    text.lines().filter(|line| !line.trim().is_empty()).map(digest).collect::<Option<_>>().unwrap_or_default()
}

/// Returns the operating system and the architecture in the name `terraform-provider-TYPE_VERSION_OS_ARCH.zip`, which a folder
/// may precede.
/// `version_spellings` are all ways to write the one version that the name may contain, such as `1.2.0` and `1.2`.
pub fn platform_of<'a>(name: &'a str, type_: &str, version_spellings: &[&str]) -> Option<(&'a str, &'a str)> {
    let file = name.rsplit('/').next().unwrap_or(name);
    let version_and_platform = file.strip_prefix("terraform-provider-")?.strip_prefix(type_)?.strip_prefix('_')?;
    let version_and_platform = version_and_platform.strip_suffix(".zip")?;
    version_spellings.iter().find_map(|version| {
        let (os, arch) = version_and_platform.strip_prefix(version)?.strip_prefix('_')?.split_once('_')?;
        (is_os_or_arch(os) && is_os_or_arch(arch)).then_some((os, arch))
    })
}

/// True for a text that can be an operating system or an architecture.
fn is_os_or_arch(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_parsed_as_the_clients_do() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let upper = b.to_string().to_uppercase();
        let text =
            format!("{a}  one.zip\r\n\nnot a checksum\nlonely\n{upper} *two.zip\n{b}\tthree.zip trailing words\n");
        let sums = Checksums::parse(text.as_bytes()).unwrap();
        assert_eq!(sums.iter().collect::<Vec<_>>(), [("one.zip", a), ("*two.zip", b), ("three.zip", b)]);
        assert_eq!(sums.get("two.zip"), None);
        assert_eq!(sums.get("ONE.zip"), None);
    }

    #[test]
    fn a_lock_file_gets_the_digest_of_every_line_or_of_none() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let upper = b.to_string().to_uppercase();
        let good = format!("{a}  one.zip\n{upper} one.zip\n\n{b}\tmanifest.json more\n");
        assert_eq!(digests_to_lock(good.as_bytes()), [a, b, b]);
        for bad in ["lonely\n", "not-a-digest  two.zip\n"] {
            assert_eq!(digests_to_lock(format!("{good}{bad}").as_bytes()), [], "{bad:?}");
        }
    }

    #[test]
    fn the_first_line_of_a_name_counts() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let text = format!("{a}  x\n{b}  x\n{b}  y\nnothing  z\n{a}  z\n");
        let sums = Checksums::parse(text.as_bytes()).unwrap();
        assert_eq!(sums.iter().collect::<Vec<_>>(), [("x", a), ("y", b)]);
    }

    #[test]
    fn sums_that_are_too_long_are_refused_and_bytes_that_are_not_utf8_are_not() {
        let lines = |count: usize| "x\n".repeat(count).into_bytes();
        assert!(Checksums::parse(&lines(MAX_LINES)).is_ok());
        assert_eq!(Checksums::parse(&lines(MAX_LINES + 1)), Err(BadChecksums::TooManyLines));
        let (a, mut text) = (Digest::of(b"a"), b"caf\xe9 \xff\n".to_vec());
        text.extend(format!("{a}  x\n").into_bytes());
        assert_eq!(Checksums::parse(&text).unwrap().get("x"), Some(a));
        assert!(matches!(Checksums::parse(&vec![b' '; MAX_BYTES + 1]), Err(BadChecksums::TooLarge { .. })));
        assert_eq!(Checksums::parse(b""), Ok(Checksums::default()));
    }

    #[test]
    fn the_platform_is_found_in_conventional_names_only() {
        let platform = |name| platform_of(name, "aws", &["5.0.0", "v5.0.0"]);
        assert_eq!(platform("terraform-provider-aws_5.0.0_linux_amd64.zip"), Some(("linux", "amd64")));
        assert_eq!(platform("terraform-provider-aws_v5.0.0_windows_386.zip"), Some(("windows", "386")));
        for name in [
            "terraform-provider-aws_5.0.0_manifest.json",
            "terraform-provider-aws_5.0.1_linux_amd64.zip",
            "terraform-provider-awscc_5.0.0_linux_amd64.zip",
            "terraform-provider-aws_5.0.0_linux_amd64_v2.zip",
            "terraform-provider-aws_5.0.0_Linux_amd64.zip",
            "terraform-provider-aws_5.0.0_linux_.zip",
            "*terraform-provider-aws_5.0.0_linux_amd64.zip",
        ] {
            assert_eq!(platform(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Checksums::parse(&bytes);
        }

        #[test]
        fn reparsing_the_normalized_list_gives_the_same_result(
            lines in prop::collection::vec(("[0-9a-f]", "[*!-~é]{1,12}", "  |\t| ", "\r?\n|\n\n| more\n"), 0..12),
        ) {
            let line = |(digit, name, gap, end): (String, String, String, String)| format!("{}{gap}{name}{end}", digit.repeat(64));
            let text: String = lines.into_iter().map(line).collect();
            if let Ok(sums) = Checksums::parse(text.as_bytes()) {
                let normalized: String = sums.iter().map(|(name, digest)| format!("{digest}  {name}\n")).collect();
                prop_assert_eq!(Checksums::parse(normalized.as_bytes()), Ok(sums));
            }
        }

        #[test]
        fn arbitrary_names_never_panic(name in ".{0,60}", version in ".{0,6}") {
            let _ = platform_of(&name, "aws", &[&version]);
        }
    }
}
