//! What upstream truly published, every edition of it, so that whatever a client gets can be held against it.

use std::collections::BTreeMap;
use std::io::{Cursor, Read as _};
use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;
use tokio::sync::RwLock;

use crate::support::upstream::{FakeUpstream, Provider, sha256_hex};

/// One platform of one version of acme/NAME.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) platform: String,
}

/// A true archive.
#[derive(Clone)]
pub(crate) struct Zip {
    pub(crate) bytes: Bytes,
    pub(crate) sha256: String,
    pub(crate) h1: String,
}

/// A version as it was published once: what belongs together.
pub(crate) struct Edition {
    pub(crate) zips: BTreeMap<String, Zip>,
    pub(crate) sums: Vec<u8>,
    pub(crate) signature: Vec<u8>,
}

/// What is to be published.
pub(crate) struct Draft {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) size: usize,
    pub(crate) edition: u64,
}

/// The platforms of everything.
pub(crate) const PLATFORMS: [&str; 2] = ["linux_amd64", "darwin_arm64"];

/// By name and version.
type Editions = BTreeMap<(String, String), Vec<Arc<Edition>>>;

/// Every edition that was ever published.
#[derive(Default)]
pub(crate) struct Truth(RwLock<Editions>);

impl Truth {
    /// Publishes, and knows it before anybody who asks here can have seen it.
    pub(crate) async fn publish(&self, upstream: &FakeUpstream, draft: Draft) {
        let Draft { name, version, size, edition } = draft;
        let mut known = self.0.write().await;
        let edition = tokio::task::block_in_place(|| {
            let provider = Provider::new("acme", &name).version(&version).size(size).edition(edition);
            upstream.publish(PLATFORMS.into_iter().fold(provider, Provider::platform));
            let zip = |platform: &str| {
                let bytes = upstream.archive_bytes("acme", &name, &version, platform);
                Zip { sha256: sha256_hex(&bytes), h1: h1(&bytes), bytes: bytes.into() }
            };
            Edition {
                zips: PLATFORMS.iter().map(|platform| ((*platform).to_owned(), zip(platform))).collect(),
                sums: upstream.sums_bytes("acme", &name, &version),
                signature: upstream.signature_bytes("acme", &name, &version),
            }
        });
        known.entry((name, version)).or_default().push(Arc::new(edition));
    }

    /// Every edition of a version.
    pub(crate) async fn editions(&self, name: &str, version: &str) -> Vec<Arc<Edition>> {
        self.0.read().await.get(&(name.to_owned(), version.to_owned())).cloned().unwrap_or_default()
    }

    /// The true archive of a package whose SHA-256 begins so.
    pub(crate) async fn zip(&self, package: &Package, digest: &str) -> Option<Zip> {
        let editions = self.editions(&package.name, &package.version).await;
        let mut zips = editions.iter().filter_map(|edition| edition.zips.get(&package.platform));
        zips.find(|zip| zip.sha256.starts_with(digest)).cloned()
    }

    /// Whether such a version was ever published.
    pub(crate) async fn has(&self, name: &str, version: &str) -> bool {
        self.0.read().await.contains_key(&(name.to_owned(), version.to_owned()))
    }

    /// The SHA-256 of every archive.
    pub(crate) async fn digests(&self) -> std::collections::HashSet<String> {
        let known = self.0.read().await;
        known.values().flatten().flat_map(|edition| edition.zips.values()).map(|zip| zip.sha256.clone()).collect()
    }
}

/// The package hash as the clients compute it from a zip (Go's dirhash, `Hash1`).
fn h1(zip: &[u8]) -> String {
    let mut zip = zip::ZipArchive::new(Cursor::new(zip)).expect("a zip of our own");
    let mut lines = Vec::new();
    for number in 0..zip.len() {
        let mut file = zip.by_index(number).expect("a file of our own");
        let mut content = Vec::new();
        file.read_to_end(&mut content).expect("content of our own");
        let name = file.name().expect("a name of our own").into_owned();
        let line = format!("{}  {name}\n", sha256_hex(&content));
        lines.push((name, line));
    }
    lines.sort();
    let text: String = lines.into_iter().map(|(_, line)| line).collect();
    let digest = hex::decode(sha256_hex(text.as_bytes())).expect("our own digits");
    format!("h1:{}", base64::engine::general_purpose::STANDARD.encode(digest))
}
