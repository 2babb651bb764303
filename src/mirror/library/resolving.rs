//! The one place that decides which alarms an event resolves (DESIGN 3).

use std::collections::{BTreeMap, BTreeSet};

use super::alarms::AlarmKind;
use super::first_seen::AcceptedFor;
use crate::address::{Package, Platform, Version, Versions};

/// What an alarm is about. No alarm takes the place of one about something else.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::mirror) struct Subject {
    pub(in crate::mirror) kind: AlarmKind,
    pub(in crate::mirror) version: Version,
    pub(in crate::mirror) part: Part,
}

/// The part of a version that an alarm is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::mirror) enum Part {
    Whole,
    /// The set of this platform.
    Platform(Platform),
    /// The key of this fingerprint.
    Key(String),
}

impl Subject {
    /// True for an alarm that `accept` of a provider may resolve.
    pub(in crate::mirror) fn is_to_accept(&self) -> bool {
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

/// What an `accept` found of one version.
#[derive(Debug, Default)]
pub(in crate::mirror) struct Found {
    /// The platforms whose sets are accepted, each with the key that signed.
    pub(in crate::mirror) taken: BTreeMap<Platform, Option<String>>,
    /// The platforms that upstream has no more.
    pub(in crate::mirror) gone: BTreeSet<Platform>,
    /// The platforms of which nobody knows.
    pub(in crate::mirror) failed: BTreeSet<Platform>,
    /// True where upstream does not list the version.
    pub(in crate::mirror) is_unlisted: bool,
}

impl Found {
    /// A version of which the set of one platform is accepted.
    pub(in crate::mirror) fn one(platform: Platform, signer: Option<String>) -> Self {
        Self { taken: [(platform, signer)].into(), ..Self::default() }
    }

    /// True where upstream has nothing of the version any more.
    pub(in crate::mirror) fn is_withdrawn(&self) -> bool {
        self.taken.is_empty() && self.failed.is_empty() && (self.is_unlisted || !self.gone.is_empty())
    }

    fn is_signed_by(&self, key: &str) -> bool {
        self.taken.values().flatten().any(|signer| signer == key)
    }
}

/// Something that may resolve alarms of an address.
#[derive(Debug)]
pub(in crate::mirror) enum Event<'a> {
    /// A verified set was let in.
    Admitted { package: &'a Package, is_signed: bool },
    /// An operator accepted what upstream has.
    Accepted { of: AcceptedFor, found: &'a BTreeMap<Version, Found> },
    /// Findings of these kinds are true of a version no more.
    Ended { kinds: &'a [AlarmKind], version: &'a Version },
    /// Upstream has dropped these versions that are stored, and no others.
    Listed { dropped: &'a [Version] },
    /// An operator had these versions forgotten; of some an archive is left.
    Purged { versions: &'a Versions, left: &'a BTreeSet<Version>, is_configured: bool },
}

impl Event<'_> {
    /// True for the alarms that it resolves.
    pub(in crate::mirror) fn resolves(&self, subject: &Subject) -> bool {
        let Subject { kind, version, part } = subject;
        match self {
            Self::Admitted { package, is_signed } => match kind {
                // The set of another platform says nothing of the one that was refused.
                AlarmKind::WaitsForAccept | AlarmKind::DamagedRecord => {
                    *version == package.version
                        && match part {
                            Part::Platform(platform) => *platform == package.platform,
                            Part::Whole | Part::Key(_) => true,
                        }
                }
                AlarmKind::SignatureLost => *is_signed && *version == package.version,
                _ => false,
            },
            Self::Accepted { of, found } => subject.is_to_accept() && accepted(subject, *of, found),
            Self::Ended { kinds, version: of } => kinds.contains(kind) && version == *of,
            Self::Listed { dropped } => *kind == AlarmKind::Dropped && !dropped.contains(version),
            Self::Purged { versions, left, is_configured } => {
                // What is no upstream any more can be asked for nothing, so nothing else resolves them.
                versions.include(version) && !left.contains(version) && (*kind == AlarmKind::Dropped || !is_configured)
            }
        }
    }
}

fn accepted(subject: &Subject, of: AcceptedFor, found: &BTreeMap<Version, Found>) -> bool {
    let Subject { kind, version, part } = subject;
    let here = found.get(version);
    if here.is_some_and(Found::is_withdrawn) {
        return true;
    }
    let mut meant = match of {
        AcceptedFor::Provider if kind.is_of_the_provider() => found.values().collect::<Vec<_>>(),
        _ => here.into_iter().collect(),
    }
    .into_iter();
    match part {
        Part::Platform(platform) => {
            meant.any(|found| found.taken.contains_key(platform) || found.gone.contains(platform))
        }
        Part::Key(key) => meant.any(|found| found.is_signed_by(key)),
        Part::Whole => meant.any(|found| !found.taken.is_empty()),
    }
}
