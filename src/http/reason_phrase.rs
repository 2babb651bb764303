//! Reason phrases: the one text of an HTTP/1.1 error that Terraform and OpenTofu print in full, `502 larder: cause;
//! remedy` (PROTOCOL, section 10). HTTP/2 has none.

use hyper::ext::ReasonPhrase;

use crate::error::{Explanation, public_text};

/// Length limit in bytes. A longer phrase would bury the rest of the client's output.
const MAX_PHRASE_BYTES: usize = 200;
const PREFIX: &str = "larder: ";
const ELLIPSIS: &str = "...";

/// Returns the phrase of an error in printable ASCII. Cuts the cause if the phrase is too long, so that the remedy
/// stays.
pub(super) fn phrase(reason: &Explanation) -> Option<ReasonPhrase> {
    ReasonPhrase::try_from(text(reason).into_bytes()).ok()
}

fn text(reason: &Explanation) -> String {
    // `https://` is the usual scheme and carries no information.
    let cause = printable(&reason.cause).replace("https://", "");
    let remedy = reason.remedy.as_deref().map(|remedy| format!("; {}", printable(remedy))).unwrap_or_default();
    let width = MAX_PHRASE_BYTES - PREFIX.len();
    // A remedy that leaves no space for the cause is dropped.
    let remedy = if remedy.len() <= width / 2 || cause.len() + remedy.len() <= width { remedy } else { String::new() };
    format!("{PREFIX}{}{remedy}", truncate(cause, width - remedy.len()))
}

fn printable(text: &str) -> String {
    let text = public_text(text);
    let character = |character: char| match character {
        '\u{2026}' => ELLIPSIS.to_owned(),
        character if character.is_ascii_graphic() => character.to_string(),
        character if character.is_whitespace() || character.is_control() => " ".to_owned(),
        _ => "?".to_owned(),
    };
    let characters: String = text.chars().map(character).collect();
    characters.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn truncate(mut text: String, width: usize) -> String {
    if text.len() > width {
        text.truncate(width - ELLIPSIS.len());
        text.push_str(ELLIPSIS);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;
    use std::sync::Arc;

    use http_body_util::BodyExt as _;
    use proptest::prelude::*;

    use super::super::response;
    use super::*;
    use crate::address::Hostname;
    use crate::clock::Timestamp;
    use crate::error::Error;
    use crate::protocol::RequestFailure;
    use crate::protocol::route::{Api, RouteError};
    use crate::store::StoreError;
    use crate::upstream::egress_policy::EgressRefusal;
    use crate::upstream::error::{Fault, UpstreamError};

    fn explanation(cause: &str, remedy: &str) -> Explanation {
        let reason = Explanation::of(cause);
        if remedy.is_empty() { reason } else { reason.remedied_by(remedy) }
    }

    /// DESIGN, promise 15: cause first, remedy second, no subject.
    #[test]
    fn a_phrase_has_cause_and_remedy_but_no_subject() {
        let reason = explanation("https://registry.example: name not found", "check larder's DNS")
            .about("the list of acme/null");
        assert_eq!(text(&reason), "larder: registry.example: name not found; check larder's DNS");
        let long = explanation(&"c".repeat(300), "run `larder accept hashicorp/null@1.0.0`");
        assert!(text(&long).ends_with("ccc...; run `larder accept hashicorp/null@1.0.0`"));
        assert_eq!(text(&long).len(), MAX_PHRASE_BYTES);
        assert_eq!(text(&explanation("cause", &"r".repeat(300))), "larder: cause");
        assert_eq!(text(&explanation("a\r\nb\t\u{2026}\u{e9}\0", "")), "larder: a b ...?");
    }

    const SECRET: &str = "S3CRET";
    const PRIVATE_PATH: &str = "/srv/private-path/v1";

    /// A text from another server: it has a secret in a URL, and terminal control characters.
    fn foreign_text() -> impl Strategy<Value = String> {
        let url = prop_oneof![
            Just("https://user:S3CRET@h.example/p"),
            Just("https://h.example/p?token=S3CRET&x=1"),
            Just("git::ssh://S3CRET@h.example/r?ref=v1"),
        ];
        ("(\\PC|[\\n\\r\\t\u{1b}\u{9b}\u{7f}]){0,30}", url, "[\\n\u{1b}]?( \\PC{0,30})?")
            .prop_map(|(prefix, url, suffix)| format!("{prefix} {url}{suffix}"))
    }

    fn refusal() -> impl Strategy<Value = EgressRefusal> {
        prop_oneof![
            Just(EgressRefusal::Offline),
            Just(EgressRefusal::Scheme),
            Just(EgressRefusal::Userinfo),
            Just(EgressRefusal::PlainHttp { host: "h.example".to_owned(), port: 80 }),
            Just(EgressRefusal::NoSshKey { host: "h.example".to_owned(), upstream: "r.example".to_owned() }),
            Just(EgressRefusal::PrivateName { host: "h.lan".to_owned() }),
        ]
    }

    fn fault() -> impl Strategy<Value = Fault> {
        let errors = || prop::collection::vec(foreign_text(), 0..3);
        prop_oneof![
            (400u16..500).prop_map(Fault::Absent),
            (400u16..500).prop_map(Fault::Denied),
            (400u16..500, errors()).prop_map(|(status, errors)| Fault::Rejected { status, errors }),
            (500u16..600, errors()).prop_map(|(status, errors)| Fault::Trouble { status, errors, retry_after: None }),
            Just(Fault::Looped),
            foreign_text().prop_map(Fault::Unreachable),
            foreign_text().prop_map(Fault::NoSuchName),
            foreign_text().prop_map(Fault::Untrusted),
            foreign_text().prop_map(Fault::Slow),
            foreign_text().prop_map(Fault::Unusable),
            any::<u64>().prop_map(Fault::TooLarge),
            foreign_text().prop_map(Fault::LocalLimit),
            refusal().prop_map(Fault::Refused),
        ]
    }

    fn store_error() -> impl Strategy<Value = StoreError> {
        let path = || PathBuf::from(format!("{PRIVATE_PATH}/staging/x"));
        let kinds = prop_oneof![
            Just(io::ErrorKind::StorageFull),
            Just(io::ErrorKind::PermissionDenied),
            Just(io::ErrorKind::Other),
        ];
        prop_oneof![
            kinds.prop_map(move |kind| {
                let source = Arc::new(io::Error::new(kind, format!("{PRIVATE_PATH}/staging/x refused it")));
                StoreError::Io { doing: "write", path: path(), source }
            }),
            Just(StoreError::Locked(path())),
            Just(StoreError::Newer { path: path(), found: 9 }),
            Just(StoreError::Gone),
            Just(StoreError::Index(format!("{PRIVATE_PATH}/index is damaged"))),
            any::<[u64; 3]>().prop_map(|[needed, limit, unevictable]| StoreError::NoRoom {
                needed,
                limit,
                unevictable
            }),
        ]
    }

    /// Every error that an answer may contain.
    fn failure() -> impl Strategy<Value = RequestFailure> {
        let host = || Hostname::parse("h.example").unwrap();
        let upstream = (foreign_text(), fault()).prop_map(|(subject, fault)| UpstreamError {
            subject,
            origin: "https://r.example".to_owned(),
            fault,
        });
        let mirror = prop_oneof![
            Just(Error::UnknownHost(host())),
            foreign_text().prop_map(Error::NotFound),
            upstream.prop_map(Error::from),
            [foreign_text(), foreign_text()].prop_map(|[subject, verdict]| Error::Unverified { subject, verdict }),
            [foreign_text(), foreign_text()].prop_map(|[subject, verdict]| {
                let command = "`larder accept h.example/acme/null@1.2.0`".to_owned();
                Error::Unaccepted { subject, verdict, command }
            }),
            foreign_text().prop_map(Error::Slow),
            foreign_text().prop_map(Error::Offline),
            foreign_text().prop_map(Error::Sealed),
            [foreign_text(), foreign_text()].prop_map(|[subject, reason]| Error::Busy { subject, reason }),
            foreign_text().prop_map(|subject| Error::TooManyUnattendedFills { subject, running: 16 }),
            foreign_text().prop_map(Error::RevalidationSkipped),
            foreign_text().prop_map(|subject| Error::HeldBack { subject, until: Timestamp(0) }),
            foreign_text().prop_map(Error::NotStored),
            [foreign_text(), foreign_text()].prop_map(|[subject, reason]| Error::Unreadable { subject, reason }),
            Just(Error::Looped),
            store_error().prop_map(Error::Store),
            foreign_text().prop_map(Error::Interrupted),
        ];
        let no_route = prop_oneof![
            foreign_text().prop_map(RouteError::Malformed),
            foreign_text().prop_map(RouteError::Unknown),
            Just(RouteError::UnknownHost(host())),
            foreign_text().prop_map(|reason| RouteError::Misdirected {
                api: Api::Registry,
                explanation: Explanation::of(reason)
            }),
        ];
        prop_oneof![4 => mirror.prop_map(RequestFailure::from), 1 => no_route.prop_map(RequestFailure::from)]
    }

    fn body_of(response: http::Response<super::super::body::Body>) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let body = runtime.block_on(response.into_body().collect()).unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        body["errors"][0].as_str().unwrap().to_owned()
    }

    proptest! {
        /// DESIGN, promises 8 and 15, for any failure with any foreign text.
        #[test]
        fn phrases_bodies_and_log_lines_have_no_secrets_or_control_characters_and_clients_see_no_private_path(failure in failure()) {
            let phrase = text(&failure.explain());
            let body = body_of(response::failure(&failure, Api::Registry));
            let line = response::log_text(&failure);
            for text in [&phrase, &body, &line] {
                prop_assert!(!text.contains(SECRET) && !text.contains(char::is_control), "{text:?}");
            }
            prop_assert!(!phrase.contains(PRIVATE_PATH) && !body.contains(PRIVATE_PATH), "{phrase:?} {body:?}");
            prop_assert!(phrase.len() <= MAX_PHRASE_BYTES && phrase.is_ascii());
        }
    }

    proptest! {
        /// DESIGN, promise 15: no error text breaks the status line, or makes it long.
        #[test]
        fn every_phrase_is_short_printable_ascii(cause in "(?s).{0,300}", remedy in "(?s).{0,300}") {
            let text = text(&explanation(&cause, &remedy));
            prop_assert!(text.len() <= MAX_PHRASE_BYTES && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()));
            prop_assert!(phrase(&explanation(&cause, &remedy)).is_some());
        }
    }
}
