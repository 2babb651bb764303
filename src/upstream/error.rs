//! Errors of upstream requests. Each names the request, the origin and the failure, for operators.

use std::time::Duration;

use super::egress_policy::EgressRefusal;
use crate::explanation::Explanation;
use crate::wording::escape_invisible;

/// A failed upstream request.
///
/// The text shows no other part of the URL than its origin, because the rest may contain secrets.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", self.explain())]
pub struct UpstreamError {
    /// The label of the request: "the version list of HOST/NS/TYPE".
    pub subject: String,
    /// The origin of the last request: `https://registry.example`.
    pub origin: String,
    /// The failure.
    pub fault: Fault,
}

/// Kinds of upstream failures.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// 404 or 410.
    #[error("says that it does not exist ({0})")]
    Absent(u16),
    /// 401, 403, 407 or 451. The status is about larder's credential or upstream's policy, never about the client's
    /// credential.
    #[error("refused larder's request ({0})")]
    Denied(u16),
    /// Any other 4xx, with the errors that upstream gave.
    #[error("rejected the request ({status}){}", quoted_text(.errors))]
    Rejected {
        /// The status.
        status: u16,
        /// The `errors` of the JSON body, if there are any.
        errors: Vec<String>,
    },
    /// 429 or 5xx.
    #[error("answered {status}{}{}", quoted_text(.errors), retry_after_text(.retry_after))]
    Trouble {
        /// The status.
        status: u16,
        /// The `errors` of the JSON body, if there are any.
        errors: Vec<String>,
        /// The time of the Retry-After header.
        retry_after: Option<Duration>,
    },
    /// 508: a request loop.
    #[error("answered 508: a request loop")]
    Looped,
    /// No connection, or a broken one.
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    /// The name does not resolve.
    #[error("cannot be reached: {0}")]
    HostNotFound(String),
    /// TLS failed, or the server's certificate or ssh host key is not trusted.
    #[error("cannot be trusted: {0}")]
    Untrusted(String),
    /// A time limit was reached.
    #[error("was too slow: {0}")]
    Slow(String),
    /// The answer violates the protocol.
    #[error("sent something unusable: {}", sanitized(.0))]
    Unusable(String),
    /// The answer exceeds a size limit.
    #[error("sent more than {0} bytes")]
    TooLarge(u64),
    /// A limit of larder itself was reached, such as memory or concurrent requests, before or during the request.
    #[error("was not asked: {0}")]
    LocalLimit(String),
    /// The egress policy refused the request.
    #[error("may not be asked: {0}")]
    Refused(EgressRefusal),
}

impl UpstreamError {
    /// The error for an answer that cannot be used.
    pub fn unusable(subject: impl Into<String>, origin: impl ToString, reason: impl Into<String>) -> Self {
        Self { subject: subject.into(), origin: origin.to_string(), fault: Fault::Unusable(reason.into()) }
    }

    /// The text for people: subject, reason and remedy.
    pub fn explain(&self) -> Explanation {
        let origin = &self.origin;
        let reason = match &self.fault {
            Fault::Unreachable(reason) | Fault::HostNotFound(reason) | Fault::Untrusted(reason) => {
                format!("{origin}: {reason}")
            }
            fault => format!("{origin} {fault}"),
        };
        Explanation { remedy: self.fault.remedy(), ..Explanation::of(reason).about(&self.subject) }
    }
}

impl Fault {
    fn remedy(&self) -> Option<String> {
        let text = match self {
            Self::Absent(_) | Self::Rejected { .. } => return None,
            Self::TooLarge(_) => "larder takes no more: tell the operator of that registry",
            Self::Unusable(_) => "see that its url leads to a registry, or tell its operator",
            Self::Refused(refusal) => return refusal.remedy(),
            Self::Denied(_) => "check the credential that larder has for it",
            Self::Looped => "an [[upstream]] points back at larder: check its url",
            Self::Unreachable(_) | Self::HostNotFound(_) | Self::Untrusted(_) => {
                "`larder doctor` on larder's machine says more"
            }
            Self::Trouble { .. } | Self::Slow(_) | Self::LocalLimit(_) => "ask again in a moment",
        };
        Some(text.to_owned())
    }

    /// The fault for a status other than success.
    pub(super) fn of_status(status: u16, retry_after: Option<Duration>, errors: Vec<String>) -> Self {
        match status {
            404 | 410 => Self::Absent(status),
            401 | 403 | 407 | 451 => Self::Denied(status),
            508 => Self::Looped,
            429 | 500.. => Self::Trouble { status, errors, retry_after },
            400..500 => Self::Rejected { status, errors },
            _ => Self::Unusable(format!("status {status}")),
        }
    }

    /// Returns true if a retry may succeed soon.
    pub fn is_temporary(&self) -> bool {
        let is_connection_failure = matches!(self, Self::Unreachable(_) | Self::HostNotFound(_) | Self::Untrusted(_));
        is_connection_failure || matches!(self, Self::Trouble { status: 500 | 502 | 503 | 504, .. })
    }

    /// Returns true if the upstream sent a Retry-After.
    pub fn has_retry_after(&self) -> bool {
        matches!(self, Self::Trouble { retry_after: Some(_), .. })
    }

    /// Returns true if the file's URL may have expired: registries sign the URLs in their documents.
    pub fn may_be_an_expired_url(&self) -> bool {
        matches!(self, Self::Absent(_) | Self::Denied(401 | 403) | Self::Rejected { status: 400, .. })
    }
}

fn quoted_text(errors: &[String]) -> String {
    if errors.is_empty() { String::new() } else { format!(": {}", errors.join("; ")) }
}

fn retry_after_text(retry_after: &Option<Duration>) -> String {
    retry_after.map_or_else(String::new, |time| format!(" and asks to be left alone for {} s", time.as_secs()))
}

/// Makes upstream text safe to show: one line, no control characters, and nothing that may be a URL's userinfo or
/// query, which may be secrets.
pub fn sanitized(text: &str) -> String {
    const MAX_CHARS: usize = 300;
    let sanitized_word = |word: &str| {
        let without_query = word.split(['?', '#']).next().unwrap_or_default();
        // Anything that may be userinfo is treated as a secret.
        let may_have_userinfo = without_query.contains('@') || without_query.matches("://").count() > 1;
        if may_have_userinfo { "(a URL)".to_owned() } else { without_query.to_owned() }
    };
    let printable: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let printable = escape_invisible(&printable);
    let words: Vec<String> = printable.split_whitespace().map(sanitized_word).collect();
    words.join(" ").chars().take(MAX_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Upstream text is shown without userinfo, without the query of a URL and without line breaks (promise 8).
    #[test]
    fn upstream_text_is_shown_in_one_line_without_secrets() {
        for (text, expected) in [
            ("no such search", "no such search"),
            ("a\nFAKE LOG LINE\u{1b}[31m", "a FAKE LOG LINE [31m"),
            ("safe\u{202e}zip.exe", "safe\\u{202e}zip.exe"),
            ("see https://u:s3cret@x.example/p?token=s3cret", "see (a URL)"),
            ("see https://x.example/p?token=s3cret", "see https://x.example/p"),
            ("url=https://x.example/?s3cret", "url=https://x.example/"),
            ("failed:https://u:s3cret@h/p", "(a URL)"),
            ("https://a/,https://u:s3cret@b/", "(a URL)"),
            ("/v1/x?token=s3cret", "/v1/x"),
            ("u:s3cret@h/?t=s3cret", "(a URL)"),
        ] {
            assert_eq!(sanitized(text), expected);
        }
    }

    proptest! {
        #[test]
        fn sanitized_text_has_no_line_break(text in "\\PC{0,60}(://)?\\PC{0,60}[\n\r\t]?") {
            prop_assert!(!sanitized(&text).chars().any(char::is_control));
        }
    }
}
