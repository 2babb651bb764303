//! The manifest of a bundle: JSON with one line per entry, so that a person can read it. A manifest has one canonical
//! form and contains its own digest, so that an altered byte is found even without a signature.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use url::Url;

use super::tar;
use crate::address::{
    Artifact, Hostname, ModuleAddress, ModulePackage, Package, PackageRef, Platform, ProviderAddress, Version,
};
use crate::clock::Timestamp;
use crate::digest::Digest;

mod file;
mod reading;
mod text;
mod writing;

pub use self::file::{BundledArchive, BundledFile, EntryFile, FileRole};
pub use self::reading::{BadManifest, MAX_MANIFEST};

/// The manifest format that this larder writes, and the newest that it reads.
const FORMAT: u32 = 1;

/// The manifest of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: u32,
    /// The version of larder that made the bundle.
    pub larder: String,
    /// The creation time in epoch seconds.
    pub created: Timestamp,
    /// The SHA-256 of the inventory that this bundle is a delta to. Archives listed there may be left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Digest>,
    /// The entries in the order of their files.
    pub entries: Vec<BundleEntry>,
    /// The SHA-256 of the manifest with zeros in this field.
    digest: Digest,
}

/// One document or package. It is imported as a whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum BundleEntry {
    /// The discovery document of a registry.
    Discovery {
        /// The registry.
        host: Hostname,
        /// The document.
        #[serde(flatten)]
        document: BundledDocument,
    },
    /// The version list of a provider.
    ProviderVersions {
        /// The provider.
        #[serde(with = "text::provider")]
        provider: ProviderAddress,
        /// The document.
        #[serde(flatten)]
        document: BundledDocument,
    },
    /// The version list of a module.
    ModuleVersions {
        /// The module.
        #[serde(with = "text::module")]
        module: ModuleAddress,
        /// The document.
        #[serde(flatten)]
        document: BundledDocument,
    },
    /// A provider version for one platform: its proof set and its archive.
    Provider(Box<ProviderEntry>),
    /// A module version: its location and its archive.
    Module(Box<ModuleEntry>),
}

/// A document as upstream sent it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundledDocument {
    /// Where the document came from, and when.
    pub said: FetchOrigin,
    /// The document as upstream sent it.
    pub document: BundledFile,
    /// A JSON list of the entries that upstream has removed from this version list and that larder still lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<BundledFile>,
}

/// Where a document was fetched from, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FetchOrigin {
    /// The requested URL, without its query.
    pub asked: Url,
    /// The URL that the bytes came from after redirects, without its query.
    pub url: Url,
    /// The time of the fetch in epoch seconds.
    pub fetched: Timestamp,
    /// The time of the last revalidation in epoch seconds.
    pub checked: Timestamp,
    /// True if upstream has deleted the document since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
}

/// A provider version for one platform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderEntry {
    /// The provider.
    #[serde(with = "text::provider")]
    pub provider: ProviderAddress,
    /// The version.
    pub version: Version,
    /// The platform.
    pub platform: Platform,
    /// The fingerprint of the publisher's key that signed SHA256SUMS. Informational: the importer verifies the
    /// signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed_by: Option<String>,
    /// Where its download document came from, and when.
    pub said: FetchOrigin,
    /// Its download document.
    pub document: BundledFile,
    /// Its SHA256SUMS.
    pub sums: BundledFile,
    /// The signature of SHA256SUMS; `None` for an unsigned version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<BundledFile>,
    /// Its archive.
    pub archive: BundledArchive,
}

/// A module version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleEntry {
    /// The module.
    #[serde(with = "text::module")]
    pub module: ModuleAddress,
    /// The version.
    pub version: Version,
    /// The git commit; `None` where the source was not git.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The digest of its tree.
    pub tree: Digest,
    /// The version of the packer that made its archive.
    pub packer: u32,
    /// The module's folder in the archive; `None` for the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subdir: Option<String>,
    /// The SHA-256 of the location from which this tree was first fetched.
    pub source: Digest,
    /// The origin (scheme, host, port) that the module was fetched from.
    pub origin: String,
    /// The time of the version's first-seen record in epoch seconds.
    pub first_seen: Timestamp,
    /// Where its location came from, and when.
    pub said: FetchOrigin,
    /// Its location.
    pub location: BundledFile,
    /// Its archive.
    pub archive: BundledArchive,
}

impl Manifest {
    /// Creates a manifest of these entries, made by this version of larder.
    pub fn new(created: Timestamp, since: Option<Digest>, entries: Vec<BundleEntry>) -> Self {
        let (larder, digest) = (env!("CARGO_PKG_VERSION").to_owned(), Digest::of(b""));
        let mut manifest = Self { format: FORMAT, larder, created, since, entries, digest };
        manifest.digest = manifest.own_digest();
        manifest
    }

    /// The files in the tar, each once and in order, with the index of the first entry that lists it. Archives that
    /// were left out are not included.
    pub fn files(&self) -> impl Iterator<Item = (usize, EntryFile)> {
        let mut listed = HashSet::new();
        let files = self
            .entries
            .iter()
            .enumerate()
            .flat_map(|(index, entry)| entry.files().into_iter().map(move |file| (index, file)));
        files.filter(move |(_, file)| !file.left_out && listed.insert(file.file.sha256))
    }

    /// The size of the bundle in bytes, given the sizes of its manifest and signature in bytes.
    pub fn bundle_bytes(&self, manifest_bytes: usize, signature_bytes: Option<usize>) -> u64 {
        let head = [Some(manifest_bytes), signature_bytes].into_iter().flatten();
        let head = head.map(|bytes| tar::tar_bytes_of_file(bytes as u64));
        let files = self.files().map(|(_, file)| tar::tar_bytes_of_file(file.file.bytes));
        head.chain(files).fold(tar::END_BYTES, u64::saturating_add)
    }
}

impl BundleEntry {
    /// The package or document of this entry.
    pub fn package_ref(&self) -> PackageRef {
        match self {
            Self::Discovery { host, .. } => PackageRef::discovery(host),
            Self::ProviderVersions { provider, .. } => PackageRef::version_list(provider),
            Self::ModuleVersions { module, .. } => PackageRef::version_list(module),
            Self::Provider(entry) => (&entry.package()).into(),
            Self::Module(entry) => (&entry.package()).into(),
        }
    }

    /// The registry of this entry.
    pub fn host(&self) -> &Hostname {
        match self {
            Self::Discovery { host, .. } => host,
            Self::ProviderVersions { provider, .. } => &provider.host,
            Self::ModuleVersions { module, .. } => &module.host,
            Self::Provider(entry) => &entry.provider.host,
            Self::Module(entry) => &entry.module.host,
        }
    }

    /// The package whose archive this entry contains; `None` for a document.
    pub fn artifact(&self) -> Option<Artifact> {
        match self {
            Self::Provider(entry) => Some(Artifact::Provider(entry.package())),
            Self::Module(entry) => Some(Artifact::Module(entry.package())),
            Self::Discovery { .. } | Self::ProviderVersions { .. } | Self::ModuleVersions { .. } => None,
        }
    }

    /// The archive; `None` for a document.
    pub fn archive(&self) -> Option<BundledArchive> {
        match self {
            Self::Provider(entry) => Some(entry.archive),
            Self::Module(entry) => Some(entry.archive),
            Self::Discovery { .. } | Self::ProviderVersions { .. } | Self::ModuleVersions { .. } => None,
        }
    }

    /// The files in their order in the tar; the archive is last.
    pub fn files(&self) -> Vec<EntryFile> {
        let small_file = |role, file: BundledFile| EntryFile { role, file, left_out: false };
        let archive_file = |BundledArchive { sha256, bytes, left_out }: BundledArchive| {
            let file = BundledFile { sha256, bytes };
            EntryFile { role: FileRole::Archive, file, left_out }
        };
        match self {
            Self::Discovery { document, .. }
            | Self::ProviderVersions { document, .. }
            | Self::ModuleVersions { document, .. } => {
                let dropped = document.dropped.map(|dropped| small_file(FileRole::Dropped, dropped));
                [small_file(FileRole::Document, document.document)].into_iter().chain(dropped).collect()
            }
            Self::Provider(entry) => {
                let signature = entry.signature.map(|signature| small_file(FileRole::Signature, signature));
                let required = [small_file(FileRole::Document, entry.document), small_file(FileRole::Sums, entry.sums)];
                required.into_iter().chain(signature).chain([archive_file(entry.archive)]).collect()
            }
            Self::Module(entry) => vec![small_file(FileRole::Location, entry.location), archive_file(entry.archive)],
        }
    }
}

impl ProviderEntry {
    /// The package of this entry.
    pub fn package(&self) -> Package {
        Package { provider: self.provider.clone(), version: self.version.clone(), platform: self.platform.clone() }
    }
}

impl ModuleEntry {
    /// The module version of this entry.
    pub fn package(&self) -> ModulePackage {
        ModulePackage { module: self.module.clone(), version: self.version.clone() }
    }
}

#[cfg(test)]
#[path = "manifest/tests.rs"]
mod tests;
