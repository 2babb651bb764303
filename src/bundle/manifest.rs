//! What is in a bundle: one line for each thing, so that a person can read it; written in one way alone, with a digest
//! of itself, so that a byte that was altered is found where nobody has signed it, too.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use url::Url;

use super::tar;
use crate::address::{Artifact, Hostname, ModuleAddress, ModulePackage, Package, Platform, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::digest::Digest;

mod text;

/// The format that this larder writes, and the newest that it reads.
const FORMAT: u32 = 1;
/// The largest manifest, in bytes.
pub const LARGEST_MANIFEST: u64 = 64 << 20;
/// The most things in one bundle.
const MOST_ENTRIES: usize = 100_000;
/// The largest document of each kind, in bytes: what is taken from upstreams is no larger.
const LARGEST_DOCUMENT: u64 = 16 << 20;
const LARGEST_DOWNLOAD_DOCUMENT: u64 = 2 << 20;
const LARGEST_SUMS: u64 = 4 << 20;
const LARGEST_SIGNATURE: u64 = 64 << 10;
/// The largest location of a module, in bytes.
const LARGEST_LOCATION: u64 = 64 << 10;
/// The longest text that is no address, in bytes.
const LONGEST_TEXT: usize = 4096;

/// What is in a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: u32,
    /// Which version of larder made it.
    pub larder: String,
    /// When, in seconds since 1970.
    pub created: Timestamp,
    /// The SHA-256 of the inventory that it is a delta to: what that names may be left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Digest>,
    /// The things in it, in the order of their files.
    pub entries: Vec<Entry>,
    /// The SHA-256 of all this, with zeros in place of this.
    digest: Digest,
}

/// One thing: it becomes visible whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Entry {
    /// The discovery document of a registry.
    Discovery {
        /// Which.
        host: Hostname,
        /// What it is.
        #[serde(flatten)]
        document: Document,
    },
    /// The version list of a provider.
    ProviderVersions {
        /// Which.
        #[serde(with = "text::provider")]
        provider: ProviderAddress,
        /// What it is.
        #[serde(flatten)]
        document: Document,
    },
    /// The version list of a module.
    ModuleVersions {
        /// Which.
        #[serde(with = "text::module")]
        module: ModuleAddress,
        /// What it is.
        #[serde(flatten)]
        document: Document,
    },
    /// A version of a provider for one platform: its proof set and its archive.
    Provider(Box<ProviderEntry>),
    /// A version of a module: its location and its archive.
    Module(Box<ModuleEntry>),
}

/// A document as upstream sent it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Where it came from.
    pub said: Said,
    /// Its bytes.
    pub document: File,
    /// What upstream has dropped from it since and is still held, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<File>,
}

/// Where a document came from, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Said {
    /// Which URL was asked; without its query.
    pub asked: Url,
    /// Where the bytes came from, after redirects; without its query.
    pub url: Url,
    /// When, in seconds since 1970.
    pub fetched: Timestamp,
    /// When upstream last confirmed it.
    pub checked: Timestamp,
    /// Whether upstream has deleted it since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
}

/// A version of a provider for one platform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderEntry {
    /// Of which provider.
    #[serde(with = "text::provider")]
    pub provider: ProviderAddress,
    /// Which version.
    pub version: Version,
    /// For which platform.
    pub platform: Platform,
    /// The fingerprint of the publisher's key that signed its SHA256SUMS; whoever takes it in finds out for himself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed_by: Option<String>,
    /// Where its download document came from.
    pub said: Said,
    /// Its download document.
    pub document: File,
    /// Its SHA256SUMS.
    pub sums: File,
    /// Their signature, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<File>,
    /// Its archive.
    pub archive: Archive,
}

/// A version of a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleEntry {
    /// Of which module.
    #[serde(with = "text::module")]
    pub module: ModuleAddress,
    /// Which version.
    pub version: Version,
    /// Which commit it was, where it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The digest of its tree.
    pub tree: Digest,
    /// The packer that made its archive.
    pub packer: u32,
    /// Where in the archive the module is; none where it is the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subdir: Option<String>,
    /// The SHA-256 of the location that led there first.
    pub source: Digest,
    /// The origin that it was fetched from.
    pub origin: String,
    /// When the version was first seen, in seconds since 1970.
    pub first_seen: Timestamp,
    /// Where its location came from.
    pub said: Said,
    /// Its location.
    pub location: File,
    /// Its archive.
    pub archive: Archive,
}

/// A file in a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Its SHA-256, which is its name.
    pub sha256: Digest,
    /// Its size in bytes.
    pub bytes: u64,
}

/// An archive, which a delta may leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Archive {
    /// Its SHA-256, which is its name.
    pub sha256: Digest,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it is left out, because the inventory says that it is held where the bundle goes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_out: bool,
}

/// What a file is to its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The document itself.
    Document,
    /// What upstream has dropped from it.
    Dropped,
    /// SHA256SUMS.
    Sums,
    /// The signature of SHA256SUMS.
    Signature,
    /// The location of a module.
    Location,
    /// The archive.
    Archive,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Document => "document",
            Self::Dropped => "list of what was dropped",
            Self::Sums => "SHA256SUMS",
            Self::Signature => "signature",
            Self::Location => "location",
            Self::Archive => "archive",
        })
    }
}

/// A file of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRef {
    /// What it is to its entry.
    pub role: Role,
    /// Which file.
    pub file: File,
    /// Whether it is left out.
    pub left_out: bool,
}

impl FileRef {
    /// Its name in the tar.
    pub fn name(&self) -> String {
        format!("sha256/{}", self.file.sha256)
    }
}

/// Why a manifest is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadManifest {
    /// A newer larder wrote it.
    #[error("it has format {0}, and this larder reads {FORMAT}: apply it with the larder that made it, or a newer one")]
    Newer(u64),
    /// It is none.
    #[error("its manifest cannot be read: {0}")]
    Unreadable(String),
    /// It is not what larder wrote.
    #[error("its manifest is not as larder wrote it: a byte of it is another")]
    Altered,
    /// It says what cannot be.
    #[error("its manifest is refused: {0}")]
    Refused(String),
}

impl Manifest {
    /// The manifest of these things, by this version of larder.
    pub fn new(created: Timestamp, since: Option<Digest>, entries: Vec<Entry>) -> Self {
        let (larder, digest) = (env!("CARGO_PKG_VERSION").to_owned(), Digest::of(b""));
        let mut manifest = Self { format: FORMAT, larder, created, since, entries, digest };
        manifest.digest = manifest.own_digest();
        manifest
    }

    /// As it stands in a bundle: JSON, an entry a line.
    pub fn write(&self) -> Vec<u8> {
        self.written(&self.digest.to_string())
    }

    fn written(&self, digest: &str) -> Vec<u8> {
        let Self { format, created, larder, since, .. } = self;
        let larder = json(larder);
        let since = since.map_or_else(String::new, |since| format!(",\n \"since\":\"{since}\""));
        let head = format!("{{\"format\":{format},\n \"larder\":{larder},\n \"created\":{}{since},\n", created.0);
        let mut written = head.into_bytes();
        written.extend_from_slice(b" \"entries\":[");
        for (number, entry) in self.entries.iter().enumerate() {
            written.extend_from_slice(if number == 0 { b"\n  " } else { b",\n  " });
            written.extend_from_slice(json(entry).as_bytes());
        }
        written.extend_from_slice(format!("],\n \"digest\":\"{digest}\"}}\n").as_bytes());
        written
    }

    /// Reads what [`Manifest::write`] wrote, and nothing else.
    ///
    /// # Errors
    /// [`BadManifest`].
    pub fn read(bytes: &[u8]) -> Result<Self, BadManifest> {
        #[derive(Deserialize)]
        struct Format {
            format: u64,
        }
        let unreadable = |e: serde_json::Error| BadManifest::Unreadable(e.to_string());
        let Format { format } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if format > u64::from(FORMAT) {
            return Err(BadManifest::Newer(format));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        if manifest.digest != manifest.own_digest() || manifest.write() != bytes {
            return Err(BadManifest::Altered);
        }
        manifest.check()?;
        Ok(manifest)
    }

    fn own_digest(&self) -> Digest {
        Digest::of(&self.written(&"0".repeat(64)))
    }

    /// Whether it is one that would be read back.
    ///
    /// # Errors
    /// [`BadManifest::Refused`].
    pub(super) fn check(&self) -> Result<(), BadManifest> {
        let refused = |why: String| Err(BadManifest::Refused(why));
        if self.entries.len() > MOST_ENTRIES {
            return refused(format!("it names {} things, and may name {MOST_ENTRIES}", self.entries.len()));
        }
        if self.larder.len() > LONGEST_TEXT {
            return refused("the version of the larder that made it has no end".to_owned());
        }
        let (mut sizes, mut named) = (HashMap::new(), HashSet::new());
        let mut bytes: u64 = 0;
        for entry in &self.entries {
            let called = entry.called();
            if !named.insert(called.clone()) {
                return refused(format!("{called} is in it twice"));
            }
            entry.check().map_err(|why| BadManifest::Refused(format!("{called}: {why}")))?;
            for FileRef { role, file, .. } in entry.files() {
                if *sizes.entry(file.sha256).or_insert(file.bytes) != file.bytes {
                    return refused(format!("{called}: its {role} has two sizes"));
                }
                bytes = match bytes.checked_add(tar::bytes_of(file.bytes)) {
                    Some(bytes) => bytes,
                    None => return refused("it is larger than any disk".to_owned()),
                };
            }
        }
        Ok(())
    }

    /// Every file that is carried, each once, in the order of the tar; with the number of the entry that it comes with.
    pub fn files(&self) -> impl Iterator<Item = (usize, FileRef)> {
        let mut seen = HashSet::new();
        let all = self
            .entries
            .iter()
            .enumerate()
            .flat_map(|(number, entry)| entry.files().into_iter().map(move |file| (number, file)));
        all.filter(move |(_, file)| !file.left_out && seen.insert(file.file.sha256))
    }

    /// How many bytes its bundle has, given how many its manifest and its signature have.
    pub fn bundle_bytes(&self, manifest: usize, signature: Option<usize>) -> u64 {
        let own = [Some(manifest), signature].into_iter().flatten().map(|bytes| tar::bytes_of(bytes as u64));
        let files = self.files().map(|(_, file)| tar::bytes_of(file.file.bytes));
        own.chain(files).fold(tar::END_BYTES, u64::saturating_add)
    }
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("names and numbers always serialise")
}

impl Entry {
    /// What it is called, for people.
    pub fn called(&self) -> String {
        match self {
            Self::Discovery { host, .. } => format!("the discovery document of {host}"),
            Self::ProviderVersions { provider, .. } => format!("the version list of {provider}"),
            Self::ModuleVersions { module, .. } => format!("the version list of {module}"),
            Self::Provider(entry) => entry.package().to_string(),
            Self::Module(entry) => entry.package().to_string(),
        }
    }

    /// The registry it is of.
    pub fn host(&self) -> &Hostname {
        match self {
            Self::Discovery { host, .. } => host,
            Self::ProviderVersions { provider, .. } => &provider.host,
            Self::ModuleVersions { module, .. } => &module.host,
            Self::Provider(entry) => &entry.provider.host,
            Self::Module(entry) => &entry.module.host,
        }
    }

    /// What its archive is of, where it has one.
    pub fn artifact(&self) -> Option<Artifact> {
        match self {
            Self::Provider(entry) => Some(Artifact::Provider(entry.package())),
            Self::Module(entry) => Some(Artifact::Module(entry.package())),
            Self::Discovery { .. } | Self::ProviderVersions { .. } | Self::ModuleVersions { .. } => None,
        }
    }

    /// Its archive, where it has one.
    pub fn archive(&self) -> Option<Archive> {
        match self {
            Self::Provider(entry) => Some(entry.archive),
            Self::Module(entry) => Some(entry.archive),
            Self::Discovery { .. } | Self::ProviderVersions { .. } | Self::ModuleVersions { .. } => None,
        }
    }

    /// Its files, in the order of the tar: the archive comes last.
    pub fn files(&self) -> Vec<FileRef> {
        let small = |role, file: File| FileRef { role, file, left_out: false };
        let archive = |Archive { sha256, bytes, left_out }: Archive| {
            let file = File { sha256, bytes };
            FileRef { role: Role::Archive, file, left_out }
        };
        match self {
            Self::Discovery { document, .. }
            | Self::ProviderVersions { document, .. }
            | Self::ModuleVersions { document, .. } => {
                let dropped = document.dropped.map(|dropped| small(Role::Dropped, dropped));
                [small(Role::Document, document.document)].into_iter().chain(dropped).collect()
            }
            Self::Provider(entry) => {
                let signature = entry.signature.map(|signature| small(Role::Signature, signature));
                let first = [small(Role::Document, entry.document), small(Role::Sums, entry.sums)];
                first.into_iter().chain(signature).chain([archive(entry.archive)]).collect()
            }
            Self::Module(entry) => vec![small(Role::Location, entry.location), archive(entry.archive)],
        }
    }

    fn check(&self) -> Result<(), String> {
        let is_list = !matches!(self, Self::Provider(_));
        for FileRef { role, file, .. } in self.files() {
            let largest = match role {
                Role::Document if is_list => LARGEST_DOCUMENT,
                Role::Document => LARGEST_DOWNLOAD_DOCUMENT,
                Role::Dropped => LARGEST_DOCUMENT,
                Role::Sums => LARGEST_SUMS,
                Role::Signature => LARGEST_SIGNATURE,
                Role::Location => LARGEST_LOCATION,
                // How large one may be is for the store that takes it.
                Role::Archive => u64::MAX,
            };
            if file.bytes > largest {
                return Err(format!("its {role} has {} bytes, and may have {largest}", file.bytes));
            }
        }
        let (texts, said) = match self {
            Self::Provider(entry) => (vec![entry.signed_by.as_deref()], &entry.said),
            Self::Module(entry) => {
                (vec![entry.commit.as_deref(), entry.subdir.as_deref(), Some(&entry.origin)], &entry.said)
            }
            Self::Discovery { document, .. }
            | Self::ProviderVersions { document, .. }
            | Self::ModuleVersions { document, .. } => (vec![], &document.said),
        };
        let texts = texts.into_iter().flatten().chain([said.asked.as_str(), said.url.as_str()]);
        for text in texts {
            if text.len() > LONGEST_TEXT || text.contains(char::is_control) {
                return Err("what is said of it is longer than may be, or has characters that nothing has".to_owned());
            }
        }
        let is_plain = |url: &Url| matches!(url.scheme(), "http" | "https") && url.query().is_none();
        if !is_plain(&said.asked) || !is_plain(&said.url) {
            return Err("it came from what is no http(s) URL without a query".to_owned());
        }
        Ok(())
    }
}

impl ProviderEntry {
    /// What it is of.
    pub fn package(&self) -> Package {
        Package { provider: self.provider.clone(), version: self.version.clone(), platform: self.platform.clone() }
    }
}

impl ModuleEntry {
    /// What it is of.
    pub fn package(&self) -> ModulePackage {
        ModulePackage { module: self.module.clone(), version: self.version.clone() }
    }
}

#[cfg(test)]
#[path = "manifest/tests.rs"]
mod tests;
