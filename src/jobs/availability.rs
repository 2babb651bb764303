//! Classifies errors by availability.

use crate::error::Error;
use crate::upstream::error::Fault;

/// Availability of an item that is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemAvailability {
    /// This mirror is offline; the item can be brought in a bundle.
    ToBeBrought,
    /// Upstream gave no answer.
    Unknown,
    /// It cannot.
    Never,
}

impl ItemAvailability {
    /// Availability after a failed document fetch: an unusable answer counts as an upstream failure.
    pub(super) fn of_a_document(error: &Error) -> Self {
        match error {
            Error::Upstream(error) if matches!(error.fault, Fault::Unusable(_)) => Self::Unknown,
            error => Self::of(error),
        }
    }

    /// Availability of a module after a failure: an unusable source or archive is final.
    pub(super) fn of(error: &Error) -> Self {
        match error {
            Error::Offline(_) => Self::ToBeBrought,
            Error::HeldBack { .. }
            | Error::Spared(_)
            | Error::Busy { .. }
            | Error::Unattended { .. }
            | Error::Slow(_)
            | Error::Interrupted(_) => Self::Unknown,
            Error::Upstream(error) => match &error.fault {
                Fault::Trouble { .. }
                | Fault::Unreachable(_)
                | Fault::NoSuchName(_)
                | Fault::Untrusted(_)
                | Fault::Slow(_)
                | Fault::LocalLimit(_) => Self::Unknown,
                Fault::Absent(_)
                | Fault::Denied(_)
                | Fault::Rejected { .. }
                | Fault::Looped
                | Fault::Unusable(_)
                | Fault::TooLarge(_)
                | Fault::Refused(_) => Self::Never,
            },
            Error::UnknownHost(_)
            | Error::NotFound(_)
            | Error::Unverified { .. }
            | Error::Unaccepted { .. }
            | Error::Sealed(_)
            | Error::NotKept(_)
            | Error::Unreadable { .. }
            | Error::Looped
            | Error::Store(_) => Self::Never,
        }
    }
}
