//! The errors of the mirror, and the one mapping to HTTP statuses. `http/response.rs` makes responses of them.

use std::fmt;
use std::sync::Arc;

use http::StatusCode;

use crate::address::{Hostname, Package, Version, WaitingVersion};
use crate::clock::Timestamp;
use crate::explanation::{Explanation, safe_text};
use crate::policy::Refusal;
use crate::store::StoreError;
use crate::upstream::error::{Fault, UpstreamError};

/// The remedy for a temporary failure.
const RETRY_LATER: &str = "ask again in a moment";

/// A failed request. Cheap to clone, because all clients of one fill share its error.
#[derive(Debug, Clone)]
pub enum Error {
    /// The host is not a configured upstream.
    UnknownHost(Hostname),
    /// Upstream reports, now or a moment ago, that the requested item does not exist.
    NotFound(String),
    /// Upstream did not answer as it should.
    Upstream(Arc<UpstreamError>),
    /// The bytes that upstream sent fail verification.
    Unverified {
        /// The requested file.
        subject: String,
        /// The failed check, as text.
        verdict: String,
        /// A stored version that clients could use instead.
        instead: Option<Box<Version>>,
    },
    /// A module is beyond one of larder's own limits.
    BeyondLimit {
        /// The requested package.
        subject: String,
        /// The amount, and the limit that it exceeds, as text.
        cause: String,
        /// The remedy for the operator.
        remedy: &'static str,
    },
    /// A rule of the operator does not allow it.
    Refused {
        /// The provider or module, with its version where one was requested.
        subject: String,
        /// The rule and its reason.
        refusal: Refusal,
    },
    /// An item that was verified before has changed; the change waits for `larder accept`.
    Unaccepted {
        /// The requested file.
        subject: String,
        /// The change, as text.
        verdict: String,
        /// The command that accepts it.
        command: String,
        /// A stored version that clients could use instead.
        instead: Option<Box<Version>>,
    },
    /// Upstream takes longer than the client waits; the fill continues.
    Slow(String),
    /// Larder is offline, and the item is not stored.
    Offline(String),
    /// Larder is offline, and lists no version of the provider: this one, the newest that is stored, waits for platforms.
    WaitsForPlatforms(Box<WaitingVersion>),
    /// Larder is offline, and only upstream could answer.
    Sealed(String),
    /// One of larder's limits was reached.
    Busy {
        /// The requested item.
        subject: String,
        /// The limit.
        reason: String,
    },
    /// This client has started too many downloads that still run although no client waits for them.
    TooManyUnattendedFills {
        /// The requested archive.
        subject: String,
        /// The number of those downloads.
        running: usize,
    },
    /// A cached copy is not revalidated now, to spare the upstream.
    RevalidationSkipped(String),
    /// A job may not fetch from this upstream yet, because the upstream asked for a pause.
    HeldBack {
        /// The requested item.
        subject: String,
        /// The end of the pause.
        until: Timestamp,
    },
    /// The item was downloaded for a job but could not be stored.
    NotStored(String),
    /// The item is stored, but malformed.
    Unreadable {
        /// The stored item.
        subject: String,
        /// The flaw.
        reason: String,
    },
    /// A request loop.
    Looped,
    /// The disk failed.
    Store(StoreError),
    /// One of larder's tasks ended early, or panicked.
    Interrupted(String),
    /// Only a dry run has this error: larder would ask upstream now, and no earlier answer is known.
    WouldAsk(String),
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // `Display` is for the log, which may contain paths of this machine.
            Self::Store(error) => f.write_str(&safe_text(&format!("the store failed: {error}; {}", error.remedy()))),
            error => error.explain().fmt(f),
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<UpstreamError> for Error {
    fn from(error: UpstreamError) -> Self {
        match error.fault {
            Fault::LocalLimit(reason) => Self::Busy { subject: error.subject, reason },
            _ => Self::Upstream(Arc::new(error)),
        }
    }
}

impl Error {
    /// The error of a cached version list that cannot be parsed, or not written for clients.
    pub(crate) fn unreadable_list(address: &impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self::Unreadable { subject: format!("the cached version list of {address}"), reason: reason.to_string() }
    }

    /// The error of a cached download document that cannot be written for clients or for a provider tree.
    pub(crate) fn unreadable_download_document(package: &Package, reason: impl fmt::Display) -> Self {
        Self::Unreadable { subject: format!("the cached download document of {package}"), reason: reason.to_string() }
    }

    /// The text for people, in its parts. Bodies and reason phrases use it, and log lines except for a failed store.
    /// The text contains no secret and no path of this machine.
    pub fn explain(&self) -> Explanation {
        match self {
            Self::UnknownHost(host) => Explanation::of(format!("{host} is not an upstream of this mirror"))
                .remedied_by("its operator can add it as an [[upstream]]"),
            Self::NotFound(reason) => Explanation::of(reason),
            Self::Upstream(error) => error.explain(),
            Self::Unverified { subject, verdict, instead } => {
                let remedy = match instead {
                    Some(version) => {
                        format!("use {version}, which is stored, until its registry mends it")
                    }
                    None => "not stored, not served; its publisher or registry must mend it".to_owned(),
                };
                Explanation::of(verdict).about(subject).remedied_by(remedy)
            }
            Self::BeyondLimit { subject, cause, remedy } => Explanation::of(cause).about(subject).remedied_by(*remedy),
            Self::Refused { subject, refusal: Refusal { cause, remedy, .. } } => {
                let explanation = Explanation::of(cause).about(subject);
                remedy.map_or(explanation.clone(), |remedy| explanation.remedied_by(remedy))
            }
            Self::Unaccepted { subject, verdict, command, instead } => {
                let remedy = match instead {
                    Some(version) => format!("use {version}, or {command}"),
                    None => format!("if that is right: {command}"),
                };
                Explanation::of(verdict).about(subject).remedied_by(remedy)
            }
            Self::Slow(subject) => Explanation::of("upstream is too slow; larder continues to fetch")
                .about(subject)
                .remedied_by(RETRY_LATER),
            Self::Offline(subject) => Explanation::of("this mirror is offline and has not stored it")
                .about(subject)
                .remedied_by("`larder missing` on larder's machine lists what to bring"),
            Self::WaitsForPlatforms(waiting) => Explanation::of(format!("{waiting} ([network] sealed_platforms)"))
                .about(format!("{} {}", waiting.provider, waiting.version))
                .remedied_by("`larder missing` on larder's machine lists what to bring"),
            Self::Sealed(subject) => Explanation::of("this mirror is offline, so no upstream is asked").about(subject),
            Self::Busy { subject, reason } => Explanation::of(reason).about(subject).remedied_by(RETRY_LATER),
            Self::TooManyUnattendedFills { subject, running } => Explanation::of(format!(
                "{running} downloads that this client address started and no client waits for are still running"
            ))
            .about(subject)
            .remedied_by("ask again when they have ended"),
            Self::RevalidationSkipped(subject) => Explanation::of("its upstream has been asked often enough for now")
                .about(subject)
                .remedied_by(RETRY_LATER),
            Self::HeldBack { subject, .. } => {
                Explanation::of("its upstream asks for a pause (Retry-After)").about(subject)
            }
            Self::NotStored(subject) => {
                Explanation::of("it was downloaded and is not stored: the store was full, or the disk refused it")
                    .about(subject)
                    .remedied_by("free space on the disk, or raise [store] max_size")
            }
            Self::Unreadable { subject, reason } => Explanation::of(format!("cannot be read: {reason}"))
                .about(subject)
                .remedied_by("`larder purge` on larder's machine deletes it, so that it is fetched again"),
            Self::Looped => {
                Explanation::of("the request has been through this larder already, or through more than four")
                    .remedied_by("an [[upstream]] points back at larder: check its url")
            }
            Self::Store(error) => Explanation::of(format!("larder's store failed: {}", error.without_paths()))
                .remedied_by(format!("its operator can {}", error.remedy())),
            Self::Interrupted(subject) => {
                Explanation::of("the work on it was interrupted").about(subject).remedied_by(RETRY_LATER)
            }
            Self::WouldAsk(subject) => {
                Explanation::of("not stored; larder asks upstream when a client asks").about(subject)
            }
        }
    }

    /// True if the egress policy does not permit an address that upstream led to.
    pub fn is_refused_address(&self) -> bool {
        matches!(self, Self::Upstream(error) if matches!(error.fault, Fault::Refused(_)))
    }

    /// True if only the operator's word is missing (promise 14).
    pub fn waits_for_accept(&self) -> bool {
        matches!(self, Self::Unaccepted { .. })
    }

    /// The status of the response. `http/response.rs` adapts it to the client protocol.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::UnknownHost(_) | Self::NotFound(_) => StatusCode::NOT_FOUND,
            // On the admin API. `http/response.rs` has the statuses that clients show.
            Self::Refused { .. } => StatusCode::FORBIDDEN,
            // Never 401 or 403: clients would blame their own token.
            Self::Unverified { .. } | Self::BeyondLimit { .. } | Self::Unaccepted { .. } | Self::Unreadable { .. } => {
                StatusCode::BAD_GATEWAY
            }
            Self::Slow(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Offline(_)
            | Self::WaitsForPlatforms(_)
            | Self::Sealed(_)
            | Self::Busy { .. }
            | Self::TooManyUnattendedFills { .. }
            | Self::RevalidationSkipped(_)
            | Self::HeldBack { .. }
            | Self::NotStored(_)
            | Self::Interrupted(_)
            | Self::WouldAsk(_)
            | Self::Store(
                StoreError::NoRoom { .. }
                | StoreError::Unavailable
                | StoreError::Busy(_)
                | StoreError::Unreachable(_)
                | StoreError::Bucket { .. },
            ) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Looped => StatusCode::LOOP_DETECTED,
            Self::Store(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Upstream(error) => match &error.fault {
                Fault::Absent(_) => StatusCode::NOT_FOUND,
                Fault::Rejected { status, .. } => StatusCode::from_u16(*status).unwrap_or(StatusCode::BAD_GATEWAY),
                Fault::Trouble { status: 429 | 503, .. } | Fault::LocalLimit(_) => StatusCode::SERVICE_UNAVAILABLE,
                Fault::Looped => StatusCode::LOOP_DETECTED,
                Fault::Slow(_) => StatusCode::GATEWAY_TIMEOUT,
                Fault::Denied(_)
                | Fault::Trouble { .. }
                | Fault::Unreachable(_)
                | Fault::HostNotFound(_)
                | Fault::Untrusted(_)
                | Fault::Unusable(_)
                | Fault::TooLarge(_)
                | Fault::Refused(_) => StatusCode::BAD_GATEWAY,
            },
        }
    }
}
