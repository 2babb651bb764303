//! The files of a bundle: each by its digest, and what it is to the thing that it comes with.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

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
