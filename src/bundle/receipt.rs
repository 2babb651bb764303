//! The progress events and the receipt of applying a bundle.

use serde::{Deserialize, Serialize};

use super::SignatureStatus;
use crate::address::{PackageRef, Platform, WaitingVersion};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::policy::Approval;

/// A progress event of applying a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum ApplyEvent {
    /// The bundle is accepted and would fit.
    Begun {
        /// The number of entries.
        entries: u64,
        /// The bytes of all files together.
        bytes: u64,
    },
    /// More bytes were read.
    Read {
        /// The number of file bytes read so far.
        bytes: u64,
    },
    /// One entry is finished.
    Entry(EntryOutcome),
    /// Applying ended, and the receipt is final.
    Done {
        /// The receipt.
        receipt: Receipt,
    },
}

/// The outcome of one entry of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EntryOutcome {
    /// The package or document.
    #[serde(flatten)]
    pub package: PackageRef,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: ApplyOutcome,
}

/// The outcome of applying one entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum ApplyOutcome {
    /// The entry was imported.
    Applied {
        /// A note for the operator.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// The entry, or a newer one, was stored already.
    Held,
    /// The entry was refused.
    Refused {
        /// The reason.
        why: String,
        /// The version to name with `--accept`, if the operator's word is all that it lacks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        accept: Option<String>,
    },
    /// Reading stopped before the entry.
    NotReached,
}

/// The outcome of a whole bundle, also written to a file in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Receipt {
    /// The SHA-256 of the manifest.
    pub manifest: Digest,
    /// The version of larder that made the bundle.
    pub larder: String,
    /// The creation time of the bundle.
    pub created: Timestamp,
    /// The key that the signature names, if any.
    pub signed_by: Option<String>,
    /// True if that key is trusted here and the signature was verified.
    pub trusted: bool,
    /// The time when applying finished.
    pub applied: Timestamp,
    /// True if nothing was refused, the bundle was read to its end, and the receipt was written.
    pub ok: bool,
    /// The reason why reading stopped early or the receipt could not be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// The outcome of each entry.
    pub entries: Vec<EntryOutcome>,
    /// The sealed platforms of the larder that applied it (`[network] sealed_platforms`); absent where any will do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sealed_platforms: Vec<Platform>,
    /// The versions of the bundle's providers that clients do not get yet, because they wait for sealed platforms.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingVersion>,
    /// The approvals of the sender that count here since this bundle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approval>,
    /// The path of the receipt in the store; `None` if it could not be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
}

impl Receipt {
    /// The key that a signature names, and whether it is trusted.
    pub(crate) fn signer(signature_status: &SignatureStatus) -> (Option<String>, bool) {
        match signature_status {
            SignatureStatus::SignedBy(key) => (Some(key.to_string()), true),
            SignatureStatus::UntrustedKey(key) => (Some(key.to_string()), false),
            SignatureStatus::Unsigned => (None, false),
        }
    }

    /// The age of the bundle in seconds when applying finished.
    pub fn age_seconds(&self) -> u64 {
        self.applied.since(self.created).as_secs()
    }

    /// The number of entries by outcome: applied, already stored, refused, not reached.
    pub fn counts(&self) -> [u64; 4] {
        let mut counts = [0; 4];
        for entry in &self.entries {
            let index = match entry.outcome {
                ApplyOutcome::Applied { .. } => 0,
                ApplyOutcome::Held => 1,
                ApplyOutcome::Refused { .. } => 2,
                ApplyOutcome::NotReached => 3,
            };
            counts[index] += 1;
        }
        counts
    }
}
