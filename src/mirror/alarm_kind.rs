//! The kinds of alarm.

use serde::{Deserialize, Serialize};

/// The kinds of finding about a version or its provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AlarmKind {
    /// A provider version changed, and its signer may not vouch for that. The change is not served.
    WaitsForAccept,
    /// A provider version changed, and its signer may vouch for that. The new version is served.
    Republished,
    /// A module version resolves to another tree than at first. It is not served.
    Moved,
    /// A key signs for a provider for the first time. Its sets are served.
    NewKey,
    /// A provider that was signed is unsigned now. New sets are not served.
    SignatureLost,
    /// Upstream's list dropped a stored version. It stays listed.
    Dropped,
    /// A first-seen record is damaged and cannot be rebuilt. Upstream's version is not served.
    DamagedRecord,
    /// A package was imported without signatures, and upstream has other bytes. Upstream's are served.
    ImportedDiffers,
}

impl AlarmKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::WaitsForAccept,
        Self::Republished,
        Self::Moved,
        Self::NewKey,
        Self::SignatureLost,
        Self::Dropped,
        Self::DamagedRecord,
        Self::ImportedDiffers,
    ];

    /// The name of the kind in JSON, as `waits-for-accept`.
    pub fn name(self) -> &'static str {
        match self {
            Self::WaitsForAccept => "waits-for-accept",
            Self::Republished => "republished",
            Self::Moved => "moved",
            Self::NewKey => "new-key",
            Self::SignatureLost => "signature-lost",
            Self::Dropped => "dropped",
            Self::DamagedRecord => "damaged-record",
            Self::ImportedDiffers => "imported-differs",
        }
    }

    /// True if something is refused until `accept`.
    pub fn refuses(self) -> bool {
        matches!(self, Self::WaitsForAccept | Self::Moved | Self::SignatureLost | Self::DamagedRecord)
    }

    /// True for a finding about the provider as a whole, whatever version it was found with.
    pub fn concerns_provider(self) -> bool {
        matches!(self, Self::NewKey | Self::SignatureLost)
    }
}
