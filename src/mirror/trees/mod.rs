//! Trees of `terraform providers mirror` into the store and out of it. What comes in is held against a proof like any
//! download; what nothing proves stays out, or is kept as what it is: vouched for by the operator alone.

mod arriving;
mod beside;
mod export;
mod import;
mod imported;
mod judging;
mod packing;
mod proof;
mod unpacked;

use serde::{Deserialize, Serialize};

use crate::address::PackageRef;

pub use self::export::{Export, NotExported};
pub(super) use self::imported::imported_differs;

/// Whether archives that nothing proves are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsigned {
    /// They are refused.
    Refused,
    /// The operator vouches for them.
    Taken,
}

/// What an import tells while it goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum ImportStep {
    /// A file of the tree was judged.
    File(ImportedFile),
    /// The whole tree was gone through, and what was taken in is on the disk.
    Done(ImportCounts),
    /// It ended before that. What was told of stays as it was told.
    Stopped {
        /// Why.
        error: String,
    },
}

/// A file of a tree, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedFile {
    /// Its path in the tree.
    pub file: String,
    /// The package; nothing where it is none.
    #[serde(flatten)]
    pub package: Option<PackageRef>,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// What came of it.
    #[serde(flatten)]
    pub judged: FileVerdict,
    /// What the operator should know besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What came of a file of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum FileVerdict {
    /// It is proven, and held from now on.
    Proven {
        /// By what.
        by: ProvenBy,
    },
    /// Nothing proves it; it is held because the operator vouches for it.
    Unsigned,
    /// The same of a package that lay there unpacked: larder made an archive of it, which only a network mirror can serve,
    /// by its `h1:`. It has no signature, and no `zh:` that anybody else knows.
    PackedAnew,
    /// It was held already.
    Held,
    /// It stays out.
    Refused {
        /// Why.
        why: String,
    },
}

/// Whose proof set an archive was held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProvenBy {
    /// One that was held.
    HeldSet,
    /// One that upstream gave for it: of it, only the documents were fetched.
    Upstream,
    /// One that lies beside it in the tree.
    Tree,
}

/// How many files came to what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportCounts {
    /// Proven, and held from now on.
    pub proven: u64,
    /// Held because the operator vouches for them.
    pub unsigned: u64,
    /// Held because the operator vouches for them, and packed by larder.
    #[serde(default)]
    pub packed_anew: u64,
    /// Held already.
    pub held: u64,
    /// They stay out.
    pub refused: u64,
}

impl ImportCounts {
    /// Counts one more.
    pub fn count(&mut self, judged: &FileVerdict) {
        *match judged {
            FileVerdict::Proven { .. } => &mut self.proven,
            FileVerdict::Unsigned => &mut self.unsigned,
            FileVerdict::PackedAnew => &mut self.packed_anew,
            FileVerdict::Held => &mut self.held,
            FileVerdict::Refused { .. } => &mut self.refused,
        } += 1;
    }
}
