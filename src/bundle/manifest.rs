//! What is in a bundle: one line for each thing, so that a person can read it; written in one way alone, with a digest
//! of itself, so that a byte that was altered is found where nobody has signed it, too.

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

pub use self::file::{Archive, File, FileRef, Role};
pub use self::reading::{BadManifest, LARGEST_MANIFEST};

/// The format that this larder writes, and the newest that it reads.
const FORMAT: u32 = 1;

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

impl Manifest {
    /// The manifest of these things, by this version of larder.
    pub fn new(created: Timestamp, since: Option<Digest>, entries: Vec<Entry>) -> Self {
        let (larder, digest) = (env!("CARGO_PKG_VERSION").to_owned(), Digest::of(b""));
        let mut manifest = Self { format: FORMAT, larder, created, since, entries, digest };
        manifest.digest = manifest.own_digest();
        manifest
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

impl Entry {
    /// The package or the document that it is.
    pub fn package_ref(&self) -> PackageRef {
        match self {
            Self::Discovery { host, .. } => PackageRef::discovery(host),
            Self::ProviderVersions { provider, .. } => PackageRef::version_list(provider),
            Self::ModuleVersions { module, .. } => PackageRef::version_list(module),
            Self::Provider(entry) => (&entry.package()).into(),
            Self::Module(entry) => (&entry.package()).into(),
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
