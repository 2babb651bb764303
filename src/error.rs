//! What the mirror can fail with. No HTTP here: `http/respond.rs` turns these into statuses.

use std::sync::Arc;

use crate::address::Hostname;
use crate::clock::Timestamp;
use crate::store::StoreError;
use crate::upstream::error::{Fault, UpstreamError};

/// A request that could not be answered: what was asked, what was attempted, what came back, and
/// what the reader can do. Cheap to clone, because all who wait for one fill share its error.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The host is no configured upstream.
    #[error("{0} is not an upstream of this mirror: its operator can add it as an [[upstream]]")]
    UnknownHost(Hostname),
    /// Upstream says that it does not exist, or said so a moment ago.
    #[error("{0}")]
    NotFound(String),
    /// Upstream did not answer as it should.
    #[error(transparent)]
    Upstream(Arc<UpstreamError>),
    /// What upstream sent does not prove.
    #[error("{asked}: not kept and not served, because {verdict}")]
    Unverified {
        /// What was asked for.
        asked: String,
        /// What was wrong with it.
        verdict: String,
    },
    /// It takes upstream longer than the client would wait; the fill goes on.
    #[error("{0}: upstream is too slow; larder goes on fetching it, ask again in a moment")]
    Slow(String),
    /// Offline, and not held.
    #[error("{0}: not held, and this mirror is offline; `larder missing` lists all that was asked for and is not held")]
    Offline(String),
    /// Offline, and it is all about asking upstream.
    #[error("{0}: this mirror is offline, so no upstream is asked")]
    Sealed(String),
    /// A bound of our own is reached.
    #[error("{0}; ask again in a moment")]
    Busy(String),
    /// Too many fills run that this client started and that nobody waits for.
    #[error(
        "{what}: {running} downloads that were started for this client address and that nobody waits for are still running; ask again when they have ended"
    )]
    Unattended {
        /// What was to be fetched.
        what: String,
        /// How many they are.
        running: usize,
    },
    /// What is held is not asked about just now, to spare the upstream.
    #[error("{0}: its upstream has been asked often enough for now; ask again in a moment")]
    Spared(String),
    /// It is fetched for a job, and its upstream has asked to be left alone until then.
    #[error("{what}: its upstream has asked to be left alone for a while (Retry-After)")]
    HeldBack {
        /// What was to be fetched.
        what: String,
        /// Until when.
        until: Timestamp,
    },
    /// It was had for a job, and is not held.
    #[error(
        "{0} is not held, although it was had: the store had no room for it, or made room for something else ([store] max_size), or the disk would not take it"
    )]
    NotKept(String),
    /// It is held and proven, and is not what it should be.
    #[error("{what} cannot be read: {why}")]
    Unreadable {
        /// What.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The request has been here before.
    #[error(
        "the request has been through this larder already, or through more than four: an [[upstream]] leads in a ring"
    )]
    Looped,
    /// The disk failed.
    #[error("the store failed: {0}")]
    Store(#[from] StoreError),
    /// A task of ours ended before it was done.
    #[error("{0}: the work on it was interrupted; ask again")]
    Interrupted(String),
}

impl From<UpstreamError> for Error {
    fn from(error: UpstreamError) -> Self {
        match error.fault {
            Fault::Crowded(why) => Self::Busy(format!("{}: {why}", error.asked)),
            _ => Self::Upstream(Arc::new(error)),
        }
    }
}

/// What an error means to whoever asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// There is no such thing.
    NotFound,
    /// Upstream broke, refused larder, or sent what does not prove.
    BadUpstream,
    /// Not now.
    Busy,
    /// Upstream takes too long.
    Slow,
    /// Upstream rejected what the client asked, with this status.
    Rejected(u16),
    /// The request went in a ring.
    Looped,
    /// The disk failed.
    OurFault,
}

impl Error {
    /// What it means to whoever asked.
    pub fn kind(&self) -> Kind {
        match self {
            Self::UnknownHost(_) | Self::NotFound(_) => Kind::NotFound,
            Self::Unverified { .. } | Self::Unreadable { .. } => Kind::BadUpstream,
            Self::Slow(_) => Kind::Slow,
            Self::Offline(_)
            | Self::Sealed(_)
            | Self::Busy(_)
            | Self::Unattended { .. }
            | Self::Spared(_)
            | Self::HeldBack { .. }
            | Self::NotKept(_)
            | Self::Interrupted(_)
            | Self::Store(StoreError::NoRoom { .. } | StoreError::Gone) => Kind::Busy,
            Self::Looped => Kind::Looped,
            Self::Store(_) => Kind::OurFault,
            Self::Upstream(error) => match &error.fault {
                Fault::Absent(_) => Kind::NotFound,
                Fault::Rejected { status, .. } => Kind::Rejected(*status),
                Fault::Trouble { status: 429 | 503, .. } => Kind::Busy,
                Fault::Looped => Kind::Looped,
                Fault::Crowded(_) => Kind::Busy,
                Fault::Slow(_) => Kind::Slow,
                Fault::Denied(_)
                | Fault::Trouble { .. }
                | Fault::Unreachable(_)
                | Fault::NoSuchName(_)
                | Fault::Untrusted(_)
                | Fault::Unusable(_)
                | Fault::TooLarge(_)
                | Fault::Refused(_) => Kind::BadUpstream,
            },
        }
    }
}
