//! What became of a bundle: told thing by thing while it is applied, and written down at its end.

use serde::{Deserialize, Serialize};

use super::Standing;
use crate::address::PackageRef;
use crate::clock::Timestamp;
use crate::digest::Digest;

/// What applying a bundle tells while it goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// It begins: the bundle is trusted, and all of it would fit.
    Begun {
        /// How many things are in it.
        entries: u64,
        /// How many bytes its files have.
        bytes: u64,
    },
    /// So many bytes of its files are read.
    Read {
        /// In all.
        bytes: u64,
    },
    /// One thing came to its end.
    Entry(Told),
    /// All of it has, and the receipt is written.
    Done {
        /// What became of it.
        receipt: Receipt,
    },
}

/// What became of one thing in a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The package or the document.
    #[serde(flatten)]
    pub package: PackageRef,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It is held now, and was not before.
    Applied {
        /// What an operator should know of that, where there is anything.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// It was held already, or something newer is.
    Held,
    /// It is not taken.
    Refused {
        /// Why.
        why: String,
    },
    /// The bundle ended before it.
    NotReached,
}

/// What became of a bundle. Written into the store as well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The SHA-256 of its manifest.
    pub manifest: Digest,
    /// Which version of larder made it.
    pub larder: String,
    /// When it was made, in seconds since 1970.
    pub created: Timestamp,
    /// Who vouches for it.
    pub signed_by: Option<String>,
    /// Whether that is a key that is trusted here.
    pub trusted: bool,
    /// When it had been applied, in seconds since 1970.
    pub applied: Timestamp,
    /// Whether nothing was refused, and all of it was read.
    pub ok: bool,
    /// Why it was read no further, where it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// What became of each thing in it.
    pub entries: Vec<Told>,
    /// Where in the store this is; none where it could not be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
}

impl Receipt {
    /// Who vouches, and whether he is trusted.
    pub(crate) fn of_standing(standing: &Standing) -> (Option<String>, bool) {
        match standing {
            Standing::SignedBy(key) => (Some(key.to_string()), true),
            Standing::ByAStranger(key) => (Some(key.to_string()), false),
            Standing::Unsigned => (None, false),
        }
    }

    /// How old it was when it had been applied, in seconds.
    pub fn age_seconds(&self) -> u64 {
        self.applied.since(self.created).as_secs()
    }

    /// How many things came to which end: applied, held already, refused, not reached.
    pub fn counts(&self) -> [u64; 4] {
        let mut counts = [0; 4];
        for told in &self.entries {
            let at = match told.outcome {
                Outcome::Applied { .. } => 0,
                Outcome::Held => 1,
                Outcome::Refused { .. } => 2,
                Outcome::NotReached => 3,
            };
            counts[at] += 1;
        }
        counts
    }
}
