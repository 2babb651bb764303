//! The files of a bundle, and their roles in the entries.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// The digest and size of a file in a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundledFile {
    /// The SHA-256 of the file. It is also the file's name in the tar: `sha256/HEX`.
    pub sha256: Digest,
    /// The size in bytes.
    pub bytes: u64,
}

/// The digest and size of an archive. A delta may leave the archive itself out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundledArchive {
    /// The SHA-256 of the archive. It is also the archive's name in the tar: `sha256/HEX`.
    pub sha256: Digest,
    /// The size in bytes.
    pub bytes: u64,
    /// True if the archive is not in the tar, because the inventory says that the receiving store already has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_out: bool,
}

/// The role of a file in its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileRole {
    /// A JSON document as upstream sent it: a discovery document, a version list or a download document.
    Document,
    /// A JSON list of the entries that upstream has removed from the version list and that larder still lists.
    Dropped,
    /// SHA256SUMS.
    Sums,
    /// The signature of SHA256SUMS.
    Signature,
    /// The location of a module version: the source address that the registry gave for it.
    Location,
    /// The archive of a provider or a module.
    Archive,
}

impl fmt::Display for FileRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Document => "document",
            Self::Dropped => "list of dropped versions",
            Self::Sums => "SHA256SUMS",
            Self::Signature => "signature",
            Self::Location => "location",
            Self::Archive => "archive",
        })
    }
}

/// A file of a bundle entry, and its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryFile {
    /// The role of the file.
    pub role: FileRole,
    /// The digest and size of the file.
    pub file: BundledFile,
    /// True if the file is not in the tar.
    pub left_out: bool,
}

impl EntryFile {
    /// The name of the file in the tar.
    pub fn name(&self) -> String {
        format!("sha256/{}", self.file.sha256)
    }
}
