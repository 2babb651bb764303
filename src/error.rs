//! The errors of the mirror, and their texts. No HTTP here: `http/respond.rs` turns them into statuses and phrases.

use std::fmt;
use std::sync::Arc;

use crate::address::Hostname;
use crate::clock::Timestamp;
use crate::store::StoreError;
use crate::upstream::error::{Fault, UpstreamError};

/// The parts of an error text, in the order in which every text has them: `subject: cause; remedy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The thing that was asked for. Clients print it themselves, so a reason phrase leaves it out.
    pub subject: Option<String>,
    /// What happened, at which upstream.
    pub cause: String,
    /// What the reader can do.
    pub remedy: Option<String>,
}

impl Explanation {
    /// A cause alone.
    pub fn of(cause: impl Into<String>) -> Self {
        Self { subject: None, cause: cause.into(), remedy: None }
    }

    /// The same cause, about this subject.
    #[must_use]
    pub fn about(self, subject: impl Into<String>) -> Self {
        Self { subject: Some(subject.into()), ..self }
    }

    /// The same cause, with what the reader can do.
    #[must_use]
    pub fn remedied_by(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(subject) = &self.subject {
            write!(f, "{subject}: ")?;
        }
        f.write_str(&self.cause)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

/// The remedy for whatever passes by itself.
const AGAIN: &str = "ask again in a moment";

/// A request that could not be answered. Cheap to clone, because all who wait for one fill share its error.
#[derive(Debug, Clone)]
pub enum Error {
    /// The host is no configured upstream.
    UnknownHost(Hostname),
    /// Upstream says that it does not exist, or said so a moment ago.
    NotFound(String),
    /// Upstream did not answer as it should.
    Upstream(Arc<UpstreamError>),
    /// The bytes that upstream sent fail verification.
    Unverified {
        /// The file that was asked for.
        asked: String,
        /// The check that failed.
        verdict: String,
    },
    /// A change of something verified before, which waits for `larder accept`.
    Unaccepted {
        /// The file that was asked for.
        asked: String,
        /// The change.
        verdict: String,
        /// The command that accepts it.
        command: String,
    },
    /// Upstream takes longer than the client would wait; the fill goes on.
    Slow(String),
    /// Offline, and not stored.
    Offline(String),
    /// Offline, and only upstream could tell.
    Sealed(String),
    /// A bound of our own is reached.
    Busy {
        /// The thing that was asked for.
        what: String,
        /// The bound.
        why: String,
    },
    /// Too many fills run that this client started and that nobody waits for.
    Unattended {
        /// The archive that was asked for.
        what: String,
        /// The number of those fills.
        running: usize,
    },
    /// A cached copy is not revalidated just now, to spare the upstream.
    Spared(String),
    /// It is fetched for a job, and its upstream has asked to be left alone until then.
    HeldBack {
        /// The thing that was asked for.
        what: String,
        /// Until when.
        until: Timestamp,
    },
    /// Downloaded for a job, and not stored.
    NotKept(String),
    /// Stored and verified, and not of the form that it should have.
    Unreadable {
        /// The stored thing.
        what: String,
        /// The flaw.
        why: String,
    },
    /// The request has been here before.
    Looped,
    /// The disk failed.
    Store(StoreError),
    /// A task of ours ended before it was done.
    Interrupted(String),
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // For the log, which may name the paths of this machine.
            Self::Store(error) => write!(f, "the store failed: {error}; {}", error.to_do()),
            error => error.explain().fmt(f),
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Error {
    /// The text for people, in its parts. Bodies and reason phrases are made of it, and log lines but for a failed store.
    /// Holds no secret and no path of this machine.
    pub fn explain(&self) -> Explanation {
        let of = |cause: &str| Explanation::of(cause);
        match self {
            Self::UnknownHost(host) => Explanation::of(format!("{host} is not an upstream of this mirror"))
                .remedied_by("its operator can add it as an [[upstream]]"),
            Self::NotFound(why) => of(why),
            Self::Upstream(error) => error.explain(),
            Self::Unverified { asked, verdict } => of(verdict).about(asked).remedied_by("not stored, not served"),
            Self::Unaccepted { asked, verdict, command } => {
                of(verdict).about(asked).remedied_by(format!("if that is right: {command}"))
            }
            Self::Slow(what) => of("upstream is too slow; larder goes on fetching").about(what).remedied_by(AGAIN),
            Self::Offline(what) => of("this mirror is offline and has not stored it")
                .about(what)
                .remedied_by("`larder missing` lists all that was asked for and is not stored"),
            Self::Sealed(what) => of("this mirror is offline, so no upstream is asked").about(what),
            Self::Busy { what, why } => of(why).about(what).remedied_by(AGAIN),
            Self::Unattended { what, running } => Explanation::of(format!(
                "{running} downloads that were started for this client address and that nobody waits for are still running"
            ))
            .about(what)
            .remedied_by("ask again when they have ended"),
            Self::Spared(what) => {
                of("its upstream has been asked often enough for now").about(what).remedied_by(AGAIN)
            }
            Self::HeldBack { what, .. } => {
                of("its upstream has asked to be left alone for a while (Retry-After)").about(what)
            }
            Self::NotKept(what) => of("it was downloaded and is not stored: the store was full, or the disk refused it")
                .about(what)
                .remedied_by("make room on the disk, or raise [store] max_size"),
            Self::Unreadable { what, why } => Explanation::of(format!("cannot be read: {why}")).about(what),
            Self::Looped => of("the request has been through this larder already, or through more than four")
                .remedied_by("an [[upstream]] points back at larder: check its url"),
            Self::Store(error) => Explanation::of(format!("larder's store failed: {}", error.in_short()))
                .remedied_by(format!("its operator can {}", error.to_do())),
            Self::Interrupted(what) => of("the work on it was interrupted").about(what).remedied_by(AGAIN),
        }
    }
}

impl From<UpstreamError> for Error {
    fn from(error: UpstreamError) -> Self {
        match error.fault {
            Fault::Crowded(why) => Self::Busy { what: error.asked, why },
            _ => Self::Upstream(Arc::new(error)),
        }
    }
}

/// What an error means to whoever asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// There is no such thing.
    NotFound,
    /// The host is no upstream here.
    NotAnUpstream,
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
            Self::UnknownHost(_) => Kind::NotAnUpstream,
            Self::NotFound(_) => Kind::NotFound,
            Self::Unverified { .. } | Self::Unaccepted { .. } | Self::Unreadable { .. } => Kind::BadUpstream,
            Self::Slow(_) => Kind::Slow,
            Self::Offline(_)
            | Self::Sealed(_)
            | Self::Busy { .. }
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
