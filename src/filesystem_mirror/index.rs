//! The index files of a provider tree: the two documents of the network mirror protocol.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{MirrorFileKind, MirrorPath};
use crate::address::{Platform, ProviderAddress, Version};
use crate::digest::Digest;

/// The size limit of an index file, in bytes.
pub const MAX_INDEX_BYTES: usize = 4 << 20;

/// `index.json`: the versions of a provider.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderIndex {
    /// The versions; the protocol defines no content for them.
    pub versions: BTreeMap<String, EmptyObject>,
}

/// The empty object that `index.json` has for a version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmptyObject {}

/// `VERSION.json`: the archives of a version, by platform.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionIndex {
    /// The archives by `OS_ARCH`.
    pub archives: BTreeMap<String, MirrorArchive>,
}

/// One archive in `VERSION.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorArchive {
    /// The URL of the archive, relative to the index file.
    pub url: String,
    /// The accepted hashes. One of them must match for a client; without any, a client accepts every archive.
    #[serde(default)]
    pub hashes: Vec<String>,
}

/// The hashes of an archive that a mirror lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveHashes {
    /// The SHA-256 of the archive.
    pub digest: Digest,
    /// The `h1:` hash that a client computes from the zip (lock file hashes); `None` if it cannot be computed.
    pub h1: Option<String>,
}

impl VersionIndex {
    /// Parses an index file from an untrusted source.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > MAX_INDEX_BYTES {
            return Err(format!("it has more than {} MiB", MAX_INDEX_BYTES >> 20));
        }
        serde_json::from_slice(bytes).map_err(|e| e.to_string())
    }

    /// Adds an archive in the same folder, by its file name.
    pub fn add(&mut self, name: &str, platform: &Platform, hashes: &ArchiveHashes) {
        let ArchiveHashes { digest, h1 } = hashes;
        let hashes = [digest.zh()].into_iter().chain(h1.clone()).collect();
        self.archives.insert(platform.to_string(), MirrorArchive { url: name.to_owned(), hashes });
    }

    /// The SHA-256 (`zh:`) that this index lists for an archive.
    pub fn digest_of(&self, platform: &Platform) -> Option<Digest> {
        let listed = self.archives.get(&platform.to_string())?;
        listed.hashes.iter().find_map(|hash| Digest::parse(hash.strip_prefix("zh:")?).ok())
    }

    /// True if the index lists this `h1:` hash for an archive, or no `h1:` hash at all. A listed `zh:` is ignored,
    /// because another zip may contain the same package.
    pub fn accepts_h1(&self, platform: &Platform, h1: &str) -> bool {
        let Some(listed) = self.archives.get(&platform.to_string()) else { return true };
        let mut h1_hashes = listed.hashes.iter().filter(|hash| hash.starts_with("h1:")).peekable();
        h1_hashes.peek().is_none() || h1_hashes.any(|hash| hash == h1)
    }

    /// True if a client that uses this index would accept an archive with these hashes. Also true if the index does not
    /// list the archive, or lists neither a `zh:` nor an `h1:` hash for it.
    pub fn accepts(&self, platform: &Platform, hashes: &ArchiveHashes) -> bool {
        let Some(listed) = self.archives.get(&platform.to_string()) else { return true };
        let is_known = |hash: &&String| hash.starts_with("zh:") || hash.starts_with("h1:");
        let mut known_hashes = listed.hashes.iter().filter(is_known).peekable();
        let zh = hashes.digest.zh();
        known_hashes.peek().is_none() || known_hashes.any(|hash| *hash == zh || hashes.h1.as_ref() == Some(hash))
    }
}

/// The index files of a provider: one for each version, then `index.json`, which lists them. They are indented JSON, as
/// the clients write it.
pub fn index_files(
    provider: &ProviderAddress,
    versions: &BTreeMap<Version, VersionIndex>,
) -> Vec<(MirrorPath, Vec<u8>)> {
    let path_of = |kind| MirrorPath { provider: provider.clone(), kind };
    let names = versions.keys().map(|version| (version.to_string(), EmptyObject {})).collect();
    let index = to_pretty_json(&ProviderIndex { versions: names });
    let version_indexes = versions
        .iter()
        .map(|(version, index)| (path_of(MirrorFileKind::VersionIndex(version.clone())), to_pretty_json(index)));
    version_indexes.chain([(path_of(MirrorFileKind::Index), index)]).collect()
}

fn to_pretty_json(index: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(index).expect("names and hashes always serialise");
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::address::{Hostname, Name};

    #[test]
    fn an_index_accepts_only_the_archives_it_lists() {
        let platform = Platform::parse("linux_amd64").unwrap();
        let version = Version::parse("1.2.0").unwrap();
        let hashes = ArchiveHashes { digest: Digest::of(b"zip"), h1: Some("h1:abc".to_owned()) };
        let mut index = VersionIndex::default();
        index.add("terraform-provider-null_1.2.0_linux_amd64.zip", &platform, &hashes);
        let text = String::from_utf8(to_pretty_json(&index)).unwrap();
        assert!(text.contains("\"url\": \"terraform-provider-null_1.2.0_linux_amd64.zip\""), "{text}");
        let parsed = VersionIndex::parse(text.as_bytes()).unwrap();
        assert_eq!(parsed.digest_of(&platform), Some(hashes.digest));
        assert!(parsed.accepts(&platform, &hashes));
        // One matching hash suffices for a client.
        assert!(parsed.accepts(&platform, &ArchiveHashes { digest: Digest::of(b"other"), ..hashes.clone() }));
        assert!(
            !parsed.accepts(&platform, &ArchiveHashes { digest: Digest::of(b"other"), h1: Some("h1:x".to_owned()) })
        );
        assert!(VersionIndex::default().accepts(&platform, &hashes));
        assert!(parsed.accepts_h1(&platform, "h1:abc") && !parsed.accepts_h1(&platform, "h1:x"));
        let (host, [namespace, type_]) =
            (Hostname::parse("r.example").unwrap(), ["acme", "null"].map(|name| Name::parse(name).unwrap()));
        let files = index_files(&ProviderAddress { host, namespace, type_ }, &BTreeMap::from([(version, index)]));
        let (paths, contents): (Vec<_>, Vec<_>) = files.into_iter().unzip();
        let paths: Vec<_> = paths.iter().map(MirrorPath::to_string).collect();
        assert_eq!(paths, ["r.example/acme/null/1.2.0.json", "r.example/acme/null/index.json"]);
        assert_eq!(contents[1], b"{\n  \"versions\": {\n    \"1.2.0\": {}\n  }\n}\n");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "\\{\"archives\":\\PC{0,60}") {
            let _ = VersionIndex::parse(&bytes);
            let _ = VersionIndex::parse(text.as_bytes());
        }
    }
}
