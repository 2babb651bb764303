//! The files of a bundle, and their roles in the entries.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// A file in a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundledFile {
    /// The SHA-256 of the file, from which its name in the tar is made.
    pub sha256: Digest,
    /// The size in bytes.
    pub bytes: u64,
}

/// An archive, which a delta may leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundledArchive {
    /// The SHA-256 of the archive, from which its name in the tar is made.
    pub sha256: Digest,
    /// The size in bytes.
    pub bytes: u64,
    /// True if it was left out because the inventory lists it for the receiving store.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_out: bool,
}

/// The role of a file in its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileRole {
    /// The document itself.
    Document,
    /// The entries that upstream has dropped from the document.
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

/// A file of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryFile {
    /// The role of the file.
    pub role: FileRole,
    /// The file.
    pub file: BundledFile,
    /// True if it is not in the tar.
    pub left_out: bool,
}

impl EntryFile {
    /// The name in the tar.
    pub fn name(&self) -> String {
        format!("sha256/{}", self.file.sha256)
    }
}
