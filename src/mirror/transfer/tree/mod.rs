//! Import and export of `terraform providers mirror` trees. Imported archives need proof like any download. Without
//! proof they are refused, or stored as vouched for by the operator only.

pub(super) mod export;
mod import;
mod judge;
mod local_sets;

use serde::{Deserialize, Serialize};

use crate::address::PackageRef;

/// The treatment of archives without proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnsignedPolicy {
    /// They are refused.
    Refused,
    /// The operator vouches for them.
    Allowed,
}

/// A progress report of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum ImportStep {
    /// A file of the tree was judged.
    File(ImportedFile),
    /// The whole tree was read, and everything stored is synced.
    Done(ImportCounts),
    /// The import stopped early. Files reported before remain stored.
    Stopped {
        /// The reason.
        error: String,
    },
}

/// A file of a tree, with its verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ImportedFile {
    /// The path in the tree.
    pub file: String,
    /// The package, if the file belongs to one.
    #[serde(flatten)]
    pub package: Option<PackageRef>,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The verdict.
    #[serde(flatten)]
    pub judged: FileVerdict,
    /// Notes for the operator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The verdict on a file of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum FileVerdict {
    /// Proven, and stored now.
    Proven {
        /// The source of the proof.
        by: ProvenBy,
    },
    /// Unproven, and stored because the operator vouches for it.
    Unsigned,
    /// An unpacked package that the operator vouches for, repacked by larder. It has no signature, and its `zh:` was
    /// never published, so only a network mirror can serve it, by its `h1:`.
    PackedAnew,
    /// Stored already.
    Held,
    /// Refused.
    Refused {
        /// The reason.
        why: String,
    },
}

/// The source of the proof set that an archive was compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProvenBy {
    /// A stored set.
    HeldSet,
    /// Upstream's set, fetched without the archive.
    Upstream,
    /// A set beside the archive in the tree.
    Tree,
}

/// The number of files per verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ImportCounts {
    /// Proven, and stored now.
    pub proven: u64,
    /// Stored because the operator vouches for them.
    pub unsigned: u64,
    /// Stored because the operator vouches for them, and repacked by larder.
    #[serde(default)]
    pub packed_anew: u64,
    /// Stored already.
    pub held: u64,
    /// Refused.
    pub refused: u64,
}

impl ImportCounts {
    /// Counts one file.
    pub fn count(&mut self, verdict: &FileVerdict) {
        *match verdict {
            FileVerdict::Proven { .. } => &mut self.proven,
            FileVerdict::Unsigned => &mut self.unsigned,
            FileVerdict::PackedAnew => &mut self.packed_anew,
            FileVerdict::Held => &mut self.held,
            FileVerdict::Refused { .. } => &mut self.refused,
        } += 1;
    }
}
