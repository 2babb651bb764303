//! Pins: packages that are never evicted.

use serde::{Deserialize, Serialize};

use crate::address::PackageRef;

/// The requested change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinChange {
    /// Exempt from eviction and purge.
    Set,
    /// No longer exempt.
    Lift,
}

/// The result of pinning or unpinning one package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PinResult {
    /// The package; the selection as given, where it names nothing stored.
    #[serde(flatten)]
    pub package: PackageRef,
    /// The outcome.
    pub outcome: PinOutcome,
}

/// The outcome of pinning or unpinning one package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PinOutcome {
    /// It is now pinned.
    Pinned,
    /// It is no longer pinned.
    Unpinned,
    /// It was already so.
    AsBefore,
    /// It will be pinned when its job has fetched it.
    WhenItComes,
    /// No archive of it is stored. There is nothing to pin, and the request is not remembered.
    #[serde(rename = "not_held")]
    NotStored,
}

impl PinChange {
    /// The outcome for a package that is still being fetched.
    pub fn pending_outcome(self) -> PinOutcome {
        match self {
            Self::Set => PinOutcome::WhenItComes,
            Self::Lift => PinOutcome::Unpinned,
        }
    }
}

impl PinResult {
    /// Returns true if the change was made or was not needed.
    pub fn succeeded(&self) -> bool {
        self.outcome != PinOutcome::NotStored
    }
}
