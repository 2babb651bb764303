//! Decides which alarms an event resolves (DESIGN 3). No other code does.

use std::collections::{BTreeMap, BTreeSet};

use crate::address::{Package, Platform, Version, Versions};
use crate::mirror::library::alarms::AlarmKind;
use crate::mirror::library::first_seen::AcceptScope;

/// The identity of an alarm within its address. A new alarm replaces only one with the same subject.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::mirror) struct AlarmSubject {
    pub(in crate::mirror) kind: AlarmKind,
    pub(in crate::mirror) version: Version,
    pub(in crate::mirror) part: AlarmPart,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::mirror) enum AlarmPart {
    Whole,
    /// The proof set of this platform.
    Platform(Platform),
    /// The key with this fingerprint.
    Key(String),
}

impl AlarmSubject {
    /// True for an alarm that `accept` of a provider may resolve.
    pub(in crate::mirror) fn is_resolved_by_accept(&self) -> bool {
        match self.kind {
            AlarmKind::WaitsForAccept
            | AlarmKind::Republished
            | AlarmKind::NewKey
            | AlarmKind::SignatureLost
            | AlarmKind::DamagedRecord
            | AlarmKind::ImportedDiffers => true,
            AlarmKind::Moved | AlarmKind::Dropped => false,
        }
    }
}

/// The findings of an `accept` for one version.
#[derive(Debug, Default)]
pub(in crate::mirror) struct AcceptedFinding {
    /// The platforms whose sets were accepted, each with the fingerprint of its signer.
    pub(in crate::mirror) accepted: BTreeMap<Platform, Option<String>>,
    /// The platforms that upstream has deleted.
    pub(in crate::mirror) gone: BTreeSet<Platform>,
    /// The platforms that could not be fetched.
    pub(in crate::mirror) failed: BTreeSet<Platform>,
    pub(in crate::mirror) is_unlisted: bool,
}

impl AcceptedFinding {
    pub(in crate::mirror) fn one(platform: Platform, signer: Option<String>) -> Self {
        Self { accepted: [(platform, signer)].into(), ..Self::default() }
    }

    /// True if upstream has deleted the version.
    pub(in crate::mirror) fn is_withdrawn(&self) -> bool {
        self.accepted.is_empty() && self.failed.is_empty() && (self.is_unlisted || !self.gone.is_empty())
    }

    fn is_signed_by(&self, key: &str) -> bool {
        self.accepted.values().flatten().any(|signer| signer == key)
    }
}

/// An event that may resolve alarms of an address.
#[derive(Debug)]
pub(in crate::mirror) enum AlarmEvent<'a> {
    /// A verified set was admitted.
    Admitted { package: &'a Package, is_signed: bool },
    /// An operator accepted the current state of upstream.
    Accepted { scope: AcceptScope, findings: &'a BTreeMap<Version, AcceptedFinding> },
    /// Findings of these kinds are no longer true for a version.
    Ended { kinds: &'a [AlarmKind], version: &'a Version },
    /// A version list was read. `dropped` are all stored versions that it does not name.
    ListRead { dropped: &'a [Version] },
    /// An operator purged these versions. `left` are those of which an archive remains.
    Purged { versions: &'a Versions, left: &'a BTreeSet<Version>, is_configured: bool },
}

impl AlarmEvent<'_> {
    pub(in crate::mirror) fn resolves(&self, subject: &AlarmSubject) -> bool {
        let AlarmSubject { kind, version, part } = subject;
        match self {
            Self::Admitted { package, is_signed } => match kind {
                // The set of another platform says nothing about the one that was refused.
                AlarmKind::WaitsForAccept | AlarmKind::DamagedRecord => {
                    *version == package.version
                        && match part {
                            AlarmPart::Platform(platform) => *platform == package.platform,
                            AlarmPart::Whole | AlarmPart::Key(_) => true,
                        }
                }
                AlarmKind::SignatureLost => *is_signed && *version == package.version,
                _ => false,
            },
            Self::Accepted { scope, findings } => {
                subject.is_resolved_by_accept() && accepted(subject, *scope, findings)
            }
            Self::Ended { kinds, version: ended_version } => kinds.contains(kind) && version == *ended_version,
            Self::ListRead { dropped } => *kind == AlarmKind::Dropped && !dropped.contains(version),
            Self::Purged { versions, left, is_configured } => {
                // A removed upstream is never asked again, so only a purge can resolve its alarms.
                versions.include(version) && !left.contains(version) && (*kind == AlarmKind::Dropped || !is_configured)
            }
        }
    }
}

fn accepted(subject: &AlarmSubject, scope: AcceptScope, found: &BTreeMap<Version, AcceptedFinding>) -> bool {
    let AlarmSubject { kind, version, part } = subject;
    let here = found.get(version);
    if here.is_some_and(AcceptedFinding::is_withdrawn) {
        return true;
    }
    let mut accepted = match scope {
        AcceptScope::Provider if kind.concerns_provider() => found.values().collect::<Vec<_>>(),
        _ => here.into_iter().collect(),
    }
    .into_iter();
    match part {
        AlarmPart::Platform(platform) => {
            accepted.any(|found| found.accepted.contains_key(platform) || found.gone.contains(platform))
        }
        AlarmPart::Key(key) => accepted.any(|found| found.is_signed_by(key)),
        AlarmPart::Whole => accepted.any(|found| !found.accepted.is_empty()),
    }
}
