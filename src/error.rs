//! The errors of the mirror, and their texts. `http/response.rs` turns them into statuses and phrases.

use std::fmt;
use std::sync::Arc;

use crate::address::Hostname;
use crate::clock::Timestamp;
use crate::store::StoreError;
use crate::upstream::error::{Fault, UpstreamError};

/// The parts of an error text, in the order in which every text has them: `subject: cause; remedy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The requested item. Clients print it themselves, so a reason phrase leaves it out.
    pub subject: Option<String>,
    /// The failure, with its upstream.
    pub cause: String,
    /// The remedy.
    pub remedy: Option<String>,
}

impl Explanation {
    /// A cause alone.
    pub fn of(cause: impl Into<String>) -> Self {
        Self { subject: None, cause: cause.into(), remedy: None }
    }

    /// Returns the same cause with this subject.
    #[must_use]
    pub fn about(self, subject: impl Into<String>) -> Self {
        Self { subject: Some(subject.into()), ..self }
    }

    /// Returns the same cause with a remedy.
    #[must_use]
    pub fn remedied_by(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(subject) = &self.subject {
            write!(f, "{}: ", public_text(subject))?;
        }
        f.write_str(&public_text(&self.cause))?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "; {}", public_text(remedy)))
    }
}

/// Makes a text safe to show (DESIGN, promise 8): one line, no control characters, and no userinfo or query of a URL.
pub fn public_text(text: &str) -> String {
    let printable: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut shown = String::with_capacity(printable.len());
    let mut rest = printable.as_str();
    while let Some((before, after)) = rest.split_once("://") {
        let (url, behind) = url_at(before, after);
        shown.extend([before, "://", &without_secrets(url)]);
        rest = behind;
    }
    shown + rest
}

/// Splits off the part of `after` that belongs to the URL whose scheme ends `before`. A secret may contain brackets and
/// quotes: they end a URL only where one precedes it.
fn url_at<'a>(before: &str, after: &'a str) -> (&'a str, &'a str) {
    let scheme = |c: char| c.is_ascii_alphanumeric() || "+-.:".contains(c);
    let closing = match before.trim_end_matches(scheme).chars().next_back() {
        Some('(') => Some(')'),
        Some(quote @ ('\'' | '`')) => Some(quote),
        _ => None,
    };
    let ends = |c: char| c.is_whitespace() || "\"<>".contains(c) || Some(c) == closing;
    let end = after.find(ends).unwrap_or(after.len());
    // A URL directly after it is a separate one, except in a query.
    let (url, _) = after.split_at(end);
    let end = match (url.find("://"), url.find(['?', '#'])) {
        (Some(next), None) => next,
        (Some(next), Some(query)) if next < query => next,
        _ => end,
    };
    after.split_at(end)
}

/// The rest of a URL after its `://`.
fn without_secrets(url: &str) -> String {
    let (place, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    let (authority, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let may_be_a_password = authority.rsplit_once(':').is_some_and(|(_, port)| !is_port(port) && !port.ends_with(']'));
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{host}{path}"),
        // A password may contain an unencoded slash, question mark or hash.
        None if query.contains('@') || (path.contains('@') && may_be_a_password) => "...".to_owned(),
        None => place.to_owned(),
    }
}

/// The remedy for a temporary failure.
const AGAIN: &str = "ask again in a moment";

/// A failed request. Cheap to clone, because all clients of one fill share its error.
#[derive(Debug, Clone)]
pub enum Error {
    /// The host is not a configured upstream.
    UnknownHost(Hostname),
    /// Upstream reports that it does not exist, now or a moment ago.
    NotFound(String),
    /// Upstream did not answer as it should.
    Upstream(Arc<UpstreamError>),
    /// The bytes that upstream sent fail verification.
    Unverified {
        /// The requested file.
        subject: String,
        /// The check that failed.
        verdict: String,
    },
    /// A change of something verified before, which waits for `larder accept`.
    Unaccepted {
        /// The requested file.
        subject: String,
        /// The change.
        verdict: String,
        /// The command that accepts it.
        command: String,
    },
    /// Upstream takes longer than the client waits; the fill continues.
    Slow(String),
    /// Offline, and not stored.
    Offline(String),
    /// Offline, and only upstream has the answer.
    Sealed(String),
    /// One of larder's limits was reached.
    Busy {
        /// The requested item.
        subject: String,
        /// The limit.
        reason: String,
    },
    /// Too many running downloads that this client started and no client waits for.
    Unattended {
        /// The requested archive.
        subject: String,
        /// The number of those fills.
        running: usize,
    },
    /// A cached copy is not revalidated now, to spare the upstream.
    Spared(String),
    /// A job's fetch from an upstream that asked for a pause.
    HeldBack {
        /// The requested item.
        subject: String,
        /// The end of the pause.
        until: Timestamp,
    },
    /// Downloaded for a job, and not stored.
    NotKept(String),
    /// Stored and verified, and malformed.
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
    /// One of larder's tasks ended early.
    Interrupted(String),
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // For the log, which may contain paths of this machine.
            Self::Store(error) => f.write_str(&public_text(&format!("the store failed: {error}; {}", error.remedy()))),
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
    /// The text for people, in its parts: the source of bodies, reason phrases and, except for a failed store, log
    /// lines. Contains no secret and no path of this machine.
    pub fn explain(&self) -> Explanation {
        let explanation = |cause: &str| Explanation::of(cause);
        match self {
            Self::UnknownHost(host) => Explanation::of(format!("{host} is not an upstream of this mirror"))
                .remedied_by("its operator can add it as an [[upstream]]"),
            Self::NotFound(reason) => explanation(reason),
            Self::Upstream(error) => error.explain(),
            Self::Unverified { subject, verdict } => explanation(verdict)
                .about(subject)
                .remedied_by("not stored, not served; its publisher or registry must mend it"),
            Self::Unaccepted { subject, verdict, command } => {
                explanation(verdict).about(subject).remedied_by(format!("if that is right: {command}"))
            }
            Self::Slow(subject) => {
                explanation("upstream is too slow; larder continues to fetch").about(subject).remedied_by(AGAIN)
            }
            Self::Offline(subject) => explanation("this mirror is offline and has not stored it")
                .about(subject)
                .remedied_by("`larder missing` on larder's machine lists what to bring"),
            Self::Sealed(subject) => explanation("this mirror is offline, so no upstream is asked").about(subject),
            Self::Busy { subject, reason } => explanation(reason).about(subject).remedied_by(AGAIN),
            Self::Unattended { subject, running } => Explanation::of(format!(
                "{running} downloads that this client address started and no client waits for are still running"
            ))
            .about(subject)
            .remedied_by("ask again when they have ended"),
            Self::Spared(subject) => {
                explanation("its upstream has been asked often enough for now").about(subject).remedied_by(AGAIN)
            }
            Self::HeldBack { subject, .. } => explanation("its upstream asks for a pause (Retry-After)").about(subject),
            Self::NotKept(subject) => {
                explanation("it was downloaded and is not stored: the store was full, or the disk refused it")
                    .about(subject)
                    .remedied_by("free space on the disk, or raise [store] max_size")
            }
            Self::Unreadable { subject, reason } => Explanation::of(format!("cannot be read: {reason}")).about(subject),
            Self::Looped => explanation("the request has been through this larder already, or through more than four")
                .remedied_by("an [[upstream]] points back at larder: check its url"),
            Self::Store(error) => Explanation::of(format!("larder's store failed: {}", error.in_short()))
                .remedied_by(format!("its operator can {}", error.remedy())),
            Self::Interrupted(subject) => {
                explanation("the work on it was interrupted").about(subject).remedied_by(AGAIN)
            }
        }
    }
}

impl From<UpstreamError> for Error {
    fn from(error: UpstreamError) -> Self {
        match error.fault {
            Fault::Crowded(reason) => Self::Busy { subject: error.subject, reason },
            _ => Self::Upstream(Arc::new(error)),
        }
    }
}

/// Classes of errors, for choosing a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It does not exist.
    NotFound,
    /// The host is not an upstream here.
    NotAnUpstream,
    /// Upstream failed, refused larder, or sent data that does not verify.
    BadUpstream,
    /// Temporarily impossible.
    Busy,
    /// Upstream takes too long.
    Slow,
    /// Upstream rejected the client's request, with this status.
    Rejected(u16),
    /// A request loop.
    Looped,
    /// The disk failed.
    OurFault,
}

impl Error {
    /// The class of this error.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// DESIGN, promise 8: the secret parts of a URL are removed, the rest of the text stays.
    #[test]
    fn a_public_text_has_no_userinfo_no_query_and_no_second_line() {
        for (text, shown) in [
            ("https://u:s3cret@a.example/p?token=s3cret#x", "https://a.example/p"),
            ("see \"https://u:s3/cret@a.example/p?q\", or b", "see \"https://...\", or b"),
            ("https://u:pa#ss@h.example/x", "https://..."),
            ("https://h.example/x?a=(s3cret)&b='s3cret'", "https://h.example/x"),
            ("(see https://h.example/x), 'https://b.example/y'", "(see https://h.example/x), 'https://b.example/y'"),
            ("https://files.example/npm/@scope/mod@1.0/x", "https://files.example/npm/@scope/mod@1.0/x"),
            ("https://a.example/x,https://u:p@b.example/y", "https://a.example/x,https://b.example/y"),
            ("https://[::1]:8080/a@b", "https://[::1]:8080/a@b"),
            ("https://h.example/?next=https://x.example/&sig=s3cret", "https://h.example/"),
            ("ssh://git@a.example:22/x and https://b.example?s3cret", "ssh://a.example:22/x and https://b.example"),
            ("run `larder accept a.example/acme/null@1.2.0`", "run `larder accept a.example/acme/null@1.2.0`"),
            ("add \"http://10.1.2.3:80\" to allow_private", "add \"http://10.1.2.3:80\" to allow_private"),
            ("a\r\nb\u{1b}[31m\u{9b}", "a  b [31m "),
            ("://", "://"),
        ] {
            assert_eq!(public_text(text), shown);
        }
    }

    proptest! {
        #[test]
        fn whatever_surrounds_a_url_its_secrets_are_left_out(
            before in "[^@?#/]{0,20}", user in "[a-z]{0,5}", secret in "[a-z()'`/#&]{0,6}", host in "[a-z]{1,9}", behind in "(\\PC|\\n){0,20}",
        ) {
            let text = format!("{before} https://{user}:S3CRET{secret}S3CRET@{host}/p?t=S3CRET{secret}S3CRET {behind}");
            let shown = public_text(&text);
            prop_assert!(!shown.contains("S3CRET") && !shown.contains(char::is_control), "{}", shown);
        }
    }
}
