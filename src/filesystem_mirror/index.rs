//! What the index files of a tree say: the two documents of the network mirror protocol (PROTOCOL 3.2).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::address::{Platform, Version};
use crate::digest::Digest;

/// The largest index file that is read, in bytes.
pub const LARGEST: usize = 4 << 20;

/// `index.json`: the versions of a provider.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// Each version; what is said of it is nothing.
    pub versions: BTreeMap<String, Nothing>,
}

/// What `index.json` says of a version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nothing {}

/// `VERSION.json`: the archives of a version, by platform.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionIndex {
    /// By `OS_ARCH`.
    pub archives: BTreeMap<String, Listed>,
}

/// One archive of a version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Where it is, from the index file.
    pub url: String,
    /// One of which a client wants it to have; none where it takes any.
    #[serde(default)]
    pub hashes: Vec<String>,
}

/// The hashes of an archive, as a mirror lists them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hashes {
    /// Its SHA-256.
    pub digest: Digest,
    /// Its `h1:` as a client computes it of the zip (PROTOCOL 5.3); none where it is no zip that has one.
    pub h1: Option<String>,
}

impl Index {
    /// One that lists these.
    pub fn of<'a>(versions: impl IntoIterator<Item = &'a Version>) -> Self {
        Self { versions: versions.into_iter().map(|version| (version.to_string(), Nothing {})).collect() }
    }
}

impl VersionIndex {
    /// Reads one that somebody wrote.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > LARGEST {
            return Err(format!("it has more than {} MiB", LARGEST >> 20));
        }
        serde_json::from_slice(bytes).map_err(|e| e.to_string())
    }

    /// Adds an archive that lies beside it under this name.
    pub fn add(&mut self, name: &str, platform: &Platform, hashes: &Hashes) {
        let Hashes { digest, h1 } = hashes;
        let hashes = [digest.zh()].into_iter().chain(h1.clone()).collect();
        self.archives.insert(platform.to_string(), Listed { url: name.to_owned(), hashes });
    }

    /// The SHA-256 that it gives an archive, where it gives one.
    pub fn digest_of(&self, platform: &Platform) -> Option<Digest> {
        let listed = self.archives.get(&platform.to_string())?;
        listed.hashes.iter().find_map(|hash| Digest::parse(hash.strip_prefix("zh:")?).ok())
    }

    /// Whether it says nothing against a package with this `h1:`, of whatever zip: the `zh:` that it lists are of one zip
    /// alone.
    pub fn takes_h1(&self, platform: &Platform, h1: &str) -> bool {
        let Some(listed) = self.archives.get(&platform.to_string()) else { return true };
        let mut known = listed.hashes.iter().filter(|hash| hash.starts_with("h1:")).peekable();
        known.peek().is_none() || known.any(|hash| hash == h1)
    }

    /// Whether a client that goes by it would take an archive with these hashes. What it does not list, and what it
    /// lists without a hash that larder knows, it says nothing of.
    pub fn takes(&self, platform: &Platform, hashes: &Hashes) -> bool {
        let Some(listed) = self.archives.get(&platform.to_string()) else { return true };
        let known = |hash: &&String| hash.starts_with("zh:") || hash.starts_with("h1:");
        let mut known = listed.hashes.iter().filter(known).peekable();
        let zh = hashes.digest.zh();
        known.peek().is_none() || known.any(|hash| *hash == zh || hashes.h1.as_ref() == Some(hash))
    }
}

/// An index file as it is written: for people, too, as the clients write it.
///
/// # Errors
/// None that such a value could cause.
pub fn written(index: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(index)?;
    bytes.push(b'\n');
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_index_lists_what_lies_beside_it_and_takes_only_that() {
        let platform = Platform::parse("linux_amd64").unwrap();
        let version = Version::parse("1.2.0").unwrap();
        let hashes = Hashes { digest: Digest::of(b"zip"), h1: Some("h1:abc".to_owned()) };
        let mut index = VersionIndex::default();
        index.add("terraform-provider-null_1.2.0_linux_amd64.zip", &platform, &hashes);
        let text = String::from_utf8(written(&index).unwrap()).unwrap();
        assert!(text.contains("\"url\": \"terraform-provider-null_1.2.0_linux_amd64.zip\""), "{text}");
        let read = VersionIndex::parse(text.as_bytes()).unwrap();
        assert_eq!(read.digest_of(&platform), Some(hashes.digest));
        assert!(read.takes(&platform, &hashes));
        // Any one of them is enough for a client.
        assert!(read.takes(&platform, &Hashes { digest: Digest::of(b"other"), ..hashes.clone() }));
        assert!(!read.takes(&platform, &Hashes { digest: Digest::of(b"other"), h1: Some("h1:x".to_owned()) }));
        assert!(VersionIndex::default().takes(&platform, &hashes));
        assert!(read.takes_h1(&platform, "h1:abc") && !read.takes_h1(&platform, "h1:x"));
        assert_eq!(written(&Index::of([&version])).unwrap(), b"{\n  \"versions\": {\n    \"1.2.0\": {}\n  }\n}\n");
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "\\{\"archives\":\\PC{0,60}") {
            let _ = VersionIndex::parse(&bytes);
            let _ = VersionIndex::parse(text.as_bytes());
        }
    }
}
