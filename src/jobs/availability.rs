//! Says from an error whether an item can still become available: from a bundle, later, or not at all.

use crate::error::Error;
use crate::upstream::error::Fault;

/// Availability of an item that is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemAvailability {
    /// This mirror is offline; a bundle can bring the item.
    NeedsBundle,
    /// Upstream gave no answer.
    Unknown,
    /// The item cannot be had from upstream: it does not exist, is refused, or is unusable.
    Unavailable,
}

impl ItemAvailability {
    /// Availability after a failed document fetch: an unusable answer counts as an upstream failure.
    pub(super) fn after_document_error(error: &Error) -> Self {
        match error {
            Error::Upstream(error) if matches!(error.fault, Fault::Unusable(_)) => Self::Unknown,
            error => Self::after_error(error),
        }
    }

    /// Availability of a module after a failure: an unusable source or archive is final.
    pub(super) fn after_error(error: &Error) -> Self {
        match error {
            Error::Offline(_) => Self::NeedsBundle,
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
                | Fault::Refused(_) => Self::Unavailable,
            },
            Error::UnknownHost(_)
            | Error::NotFound(_)
            | Error::Unverified { .. }
            | Error::Unaccepted { .. }
            | Error::Sealed(_)
            | Error::NotKept(_)
            | Error::Unreadable { .. }
            | Error::Looped
            | Error::Store(_) => Self::Unavailable,
        }
    }
}
