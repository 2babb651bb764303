//! Every edition that upstream published, and its right to replace the one before (promise 14), so that every answer
//! can be compared with it.

use std::collections::{BTreeMap, HashSet};
use std::io::{Cursor, Read as _};
use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;
use tokio::sync::RwLock;

use crate::support::upstream::{FakeUpstream, Provider, SigningKey, sha256_hex};

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

/// The files of one publication of a version.
pub(crate) struct Edition {
    pub(crate) zips: BTreeMap<String, Zip>,
    pub(crate) sums: Vec<u8>,
    pub(crate) signature: Vec<u8>,
    /// Fingerprint of the signing key; `None` where the registry lists no key.
    key: Option<String>,
    right: ChangeRight,
}

/// The right of an edition to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeRight {
    /// The first of its version, the same bytes as a rightful one, or signed by a key that may change the version.
    Rightful,
    /// Republished after the version was served, under a key that may not change it or without a signature.
    Foreign,
}

/// The party that signs an edition.
#[derive(Clone)]
pub(crate) enum Signer {
    Key(SigningKey),
    /// The registry lists no key.
    Nobody,
}

impl Signer {
    /// The key that the providers have from the start.
    pub(crate) fn usual() -> Self {
        Self::Key(SigningKey::shared())
    }

    fn fingerprint(&self) -> Option<String> {
        match self {
            Self::Key(key) => Some(key.fingerprint()),
            Self::Nobody => None,
        }
    }
}

impl PartialEq for Signer {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint() == other.fingerprint()
    }
}

/// A version to publish.
#[derive(Clone)]
pub(crate) struct Draft {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) size: usize,
    pub(crate) edition: u64,
    pub(crate) signer: Signer,
    /// True if the archives are named `….ZIP`, other than in the first-seen record.
    pub(crate) is_renamed: bool,
}

impl Draft {
    /// The first edition, by the usual key.
    pub(crate) fn new(name: &str, version: &str, size: usize) -> Self {
        let (name, version) = (name.to_owned(), version.to_owned());
        Self { name, version, size, edition: 1, signer: Signer::usual(), is_renamed: false }
    }

    /// Sets the edition; each edition has other bytes.
    pub(crate) fn edition(self, edition: u64) -> Self {
        Self { edition, ..self }
    }

    /// Sets the signer.
    pub(crate) fn signed_by(self, signer: Signer) -> Self {
        Self { signer, ..self }
    }

    /// Sets whether the files have other names.
    pub(crate) fn renamed(self, is_renamed: bool) -> Self {
        Self { is_renamed, ..self }
    }

    fn provider(&self) -> Provider {
        let provider = Provider::new("acme", &self.name).version(&self.version).size(self.size).edition(self.edition);
        let provider = match &self.signer {
            Signer::Key(key) => provider.signed_by(key),
            Signer::Nobody => provider.without_keys(),
        };
        let provider = match self.is_renamed {
            true => provider.filename(&format!("terraform-provider-{}_{}_{{platform}}.ZIP", self.name, self.version)),
            false => provider,
        };
        PLATFORMS.into_iter().fold(provider, Provider::platform)
    }
}

/// Platforms of every package.
pub(crate) const PLATFORMS: [&str; 2] = ["linux_amd64", "darwin_arm64"];

/// The history of one version. Times are positions in the order of publications and observations.
#[derive(Default)]
struct VersionHistory {
    published: u64,
    /// The first time that a client got it: larder had verified it then.
    seen: Option<u64>,
    editions: Vec<Arc<Edition>>,
}

/// The history of one key of one provider.
#[derive(Default)]
struct KeyHistory {
    /// The first publication that this key signed.
    signed: u64,
    /// The first time that a client got a version that only this key signed.
    seen: Option<u64>,
}

/// All publications and observations.
#[derive(Default)]
struct Timeline {
    now: u64,
    /// By name and version.
    versions: BTreeMap<(String, String), VersionHistory>,
    /// By name and fingerprint.
    keys: BTreeMap<(String, String), KeyHistory>,
}

impl Timeline {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// The right of a signer to change a version; `None` where clients have not seen enough to decide.
    fn change_right(&self, name: &str, version: &str, signer: Option<&str>) -> Option<ChangeRight> {
        let Some(history) = self.versions.get(&(name.to_owned(), version.to_owned())) else {
            return Some(ChangeRight::Rightful);
        };
        let Some(key) = signer else { return history.seen.map(|_| ChangeRight::Foreign) };
        let is_first_signer = history.editions.first().is_some_and(|first| first.key.as_deref() == Some(key));
        let key_history = self.keys.get(&(name.to_owned(), key.to_owned()));
        let was_known = key_history.is_some_and(|key| key.seen.is_some_and(|seen| seen < history.published));
        let is_first_key = key_history.is_some_and(|key| {
            self.keys.iter().all(|((provider, _), other)| provider != name || key.signed <= other.signed)
        });
        if is_first_signer || (is_first_key && was_known) {
            return Some(ChangeRight::Rightful);
        }
        let seen = history.seen?;
        // A key that was admitted beside others vouches for what it signed first, whenever the version was verified.
        (!is_first_key || key_history.is_none_or(|key| seen < key.signed)).then_some(ChangeRight::Foreign)
    }
}

/// Every edition that was ever published.
#[derive(Default)]
pub(crate) struct Truth(RwLock<Timeline>);

impl Truth {
    /// Records an edition, then publishes it. Publishes nothing and returns `None` where the right to change is
    /// undecidable.
    pub(crate) async fn publish(&self, upstream: &FakeUpstream, draft: Draft) -> Option<ChangeRight> {
        let mut timeline = self.0.write().await;
        let (name, version) = (draft.name.as_str(), draft.version.as_str());
        let key = draft.signer.fingerprint();
        let right_of_signer = timeline.change_right(name, version, key.as_deref())?;
        let (zips, sums, signature) = tokio::task::block_in_place(|| {
            upstream.publish(draft.provider());
            let zip = |platform: &str| {
                let bytes = upstream.archive_bytes("acme", name, version, platform);
                Zip { sha256: sha256_hex(&bytes), h1: h1(&bytes), bytes: bytes.into() }
            };
            let zips: BTreeMap<_, _> =
                PLATFORMS.iter().map(|platform| ((*platform).to_owned(), zip(platform))).collect();
            (zips, upstream.sums_bytes("acme", name, version), upstream.signature_bytes("acme", name, version))
        });
        let now = timeline.tick();
        if let Some(key) = &key {
            timeline.keys.entry((name.to_owned(), key.clone())).or_insert(KeyHistory { signed: now, seen: None });
        }
        let history = timeline.versions.entry((name.to_owned(), version.to_owned())).or_default();
        if history.editions.is_empty() {
            history.published = now;
        }
        // Any key may sign the same bytes; losing a signature is a change.
        let is_rightful = |edition: &Arc<Edition>| edition.is_rightful() && edition.sums == sums;
        let right = match key.is_some() && history.editions.iter().any(is_rightful) {
            true => ChangeRight::Rightful,
            false => right_of_signer,
        };
        history.editions.push(Arc::new(Edition { zips, sums, signature, key, right }));
        Some(right)
    }

    /// Records that a client got a rightful edition of a version, by the digest of one of its archives.
    pub(crate) async fn record_seen(&self, package: &Package, sha256: &str) {
        let mut timeline = self.0.write().await;
        let now = timeline.tick();
        let Some(history) = timeline.versions.get_mut(&(package.name.clone(), package.version.clone())) else { return };
        let matching = history.editions.iter().filter(|edition| edition.zips.values().any(|zip| zip.sha256 == sha256));
        let mut keys: Vec<Option<String>> = matching.map(|edition| edition.key.clone()).collect();
        keys.dedup();
        history.seen.get_or_insert(now);
        if let [Some(key)] = keys.as_slice()
            && let Some(key) = timeline.keys.get_mut(&(package.name.clone(), key.clone()))
        {
            key.seen.get_or_insert(now);
        }
    }

    /// True if a client got the version.
    pub(crate) async fn is_seen(&self, name: &str, version: &str) -> bool {
        let timeline = self.0.read().await;
        timeline.versions.get(&(name.to_owned(), version.to_owned())).is_some_and(|history| history.seen.is_some())
    }

    /// The right of this signer to change a version; `None` where it is undecidable.
    pub(crate) async fn change_right(&self, name: &str, version: &str, signer: &Signer) -> Option<ChangeRight> {
        self.0.read().await.change_right(name, version, signer.fingerprint().as_deref())
    }

    /// Every edition of a version that may be served.
    pub(crate) async fn rightful_editions(&self, name: &str, version: &str) -> Vec<Arc<Edition>> {
        let timeline = self.0.read().await;
        let history = timeline.versions.get(&(name.to_owned(), version.to_owned()));
        history
            .into_iter()
            .flat_map(|history| &history.editions)
            .filter(|edition| edition.is_rightful())
            .cloned()
            .collect()
    }

    /// The true archive of a package whose SHA-256 begins with `digest`.
    pub(crate) async fn zip(&self, package: &Package, digest: &str) -> Option<Zip> {
        let editions = self.rightful_editions(&package.name, &package.version).await;
        let mut zips = editions.iter().filter_map(|edition| edition.zips.get(&package.platform));
        zips.find(|zip| zip.sha256.starts_with(digest)).cloned()
    }

    /// True if the version was ever published.
    pub(crate) async fn was_published(&self, name: &str, version: &str) -> bool {
        self.0.read().await.versions.contains_key(&(name.to_owned(), version.to_owned()))
    }

    /// The SHA-256 of every archive that may be served.
    pub(crate) async fn rightful_digests(&self) -> HashSet<String> {
        let timeline = self.0.read().await;
        let editions =
            timeline.versions.values().flat_map(|history| &history.editions).filter(|edition| edition.is_rightful());
        editions.flat_map(|edition| edition.zips.values()).map(|zip| zip.sha256.clone()).collect()
    }
}

impl Edition {
    fn is_rightful(&self) -> bool {
        self.right == ChangeRight::Rightful
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
