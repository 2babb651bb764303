//! Reason phrases: the one text of an HTTP/1.1 error that Terraform and OpenTofu print in full, `502 larder: cause;
//! remedy` (PROTOCOL 10). HTTP/2 has none.

use hyper::ext::ReasonPhrase;

use crate::error::{Explanation, public_text};

/// Length limit in bytes. A longer phrase would bury the rest of the client's output.
const LONGEST: usize = 200;
const BEGIN: &str = "larder: ";
const CUT: &str = "...";

/// Returns the phrase of an error in printable ASCII. Cuts the cause if the phrase is too long, so that the remedy
/// stays.
pub(super) fn of(reason: &Explanation) -> Option<ReasonPhrase> {
    ReasonPhrase::try_from(text(reason).into_bytes()).ok()
}

fn text(reason: &Explanation) -> String {
    // `https://` is the usual scheme and carries no information.
    let cause = printable(&reason.cause).replace("https://", "");
    let remedy = reason.remedy.as_deref().map(|remedy| format!("; {}", printable(remedy))).unwrap_or_default();
    let width = LONGEST - BEGIN.len();
    // A remedy that leaves no space for the cause is dropped.
    let remedy = if remedy.len() <= width / 2 || cause.len() + remedy.len() <= width { remedy } else { String::new() };
    format!("{BEGIN}{}{remedy}", cut(cause, width - remedy.len()))
}

fn printable(text: &str) -> String {
    let text = public_text(text);
    let letter = |letter: char| match letter {
        '\u{2026}' => CUT.to_owned(),
        letter if letter.is_ascii_graphic() => letter.to_string(),
        letter if letter.is_whitespace() || letter.is_control() => " ".to_owned(),
        _ => "?".to_owned(),
    };
    let letters: String = text.chars().map(letter).collect();
    letters.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn cut(mut text: String, width: usize) -> String {
    if text.len() > width {
        text.truncate(width - CUT.len());
        text.push_str(CUT);
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
    fn a_phrase_tells_the_cause_and_the_remedy_and_leaves_the_subject_to_the_client() {
        let reason = explanation("https://registry.example: name not found", "check larder's DNS")
            .about("the list of acme/null");
        assert_eq!(text(&reason), "larder: registry.example: name not found; check larder's DNS");
        let long = explanation(&"c".repeat(300), "run `larder accept hashicorp/null@1.0.0`");
        assert!(text(&long).ends_with("ccc...; run `larder accept hashicorp/null@1.0.0`"));
        assert_eq!(text(&long).len(), LONGEST);
        assert_eq!(text(&explanation("cause", &"r".repeat(300))), "larder: cause");
        assert_eq!(text(&explanation("a\r\nb\t\u{2026}\u{e9}\0", "")), "larder: a b ...?");
    }

    const SECRET: &str = "S3CRET";
    const PLACE: &str = "/srv/of-this-machine/v1";

    /// A foreign text: a secret in a URL, and terminal control characters.
    fn foreign() -> impl Strategy<Value = String> {
        let url = prop_oneof![
            Just("https://user:S3CRET@h.example/p"),
            Just("https://h.example/p?token=S3CRET&x=1"),
            Just("git::ssh://S3CRET@h.example/r?ref=v1"),
        ];
        ("(\\PC|[\\n\\r\\t\u{1b}\u{9b}\u{7f}]){0,30}", url, "[\\n\u{1b}]?( \\PC{0,30})?")
            .prop_map(|(before, url, behind)| format!("{before} {url}{behind}"))
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
        let errors = || prop::collection::vec(foreign(), 0..3);
        prop_oneof![
            (400u16..500).prop_map(Fault::Absent),
            (400u16..500).prop_map(Fault::Denied),
            (400u16..500, errors()).prop_map(|(status, errors)| Fault::Rejected { status, errors }),
            (500u16..600, errors()).prop_map(|(status, errors)| Fault::Trouble { status, errors, retry_after: None }),
            Just(Fault::Looped),
            foreign().prop_map(Fault::Unreachable),
            foreign().prop_map(Fault::NoSuchName),
            foreign().prop_map(Fault::Untrusted),
            foreign().prop_map(Fault::Slow),
            foreign().prop_map(Fault::Unusable),
            any::<u64>().prop_map(Fault::TooLarge),
            foreign().prop_map(Fault::LocalLimit),
            refusal().prop_map(Fault::Refused),
        ]
    }

    fn store_error() -> impl Strategy<Value = StoreError> {
        let path = || PathBuf::from(format!("{PLACE}/staging/x"));
        let kinds = prop_oneof![
            Just(io::ErrorKind::StorageFull),
            Just(io::ErrorKind::PermissionDenied),
            Just(io::ErrorKind::Other),
        ];
        prop_oneof![
            kinds.prop_map(move |kind| {
                let source = Arc::new(io::Error::new(kind, format!("{PLACE}/staging/x refused it")));
                StoreError::Io { doing: "write", path: path(), source }
            }),
            Just(StoreError::Locked(path())),
            Just(StoreError::Newer { path: path(), found: 9 }),
            Just(StoreError::Gone),
            Just(StoreError::Index(format!("{PLACE}/index is damaged"))),
            any::<[u64; 3]>().prop_map(|[needed, limit, stays]| StoreError::NoRoom { needed, limit, stays }),
        ]
    }

    /// Every error that an answer may contain.
    fn failure() -> impl Strategy<Value = RequestFailure> {
        let host = || Hostname::parse("h.example").unwrap();
        let upstream = (foreign(), fault()).prop_map(|(subject, fault)| UpstreamError {
            subject,
            origin: "https://r.example".to_owned(),
            fault,
        });
        let mirror = prop_oneof![
            Just(Error::UnknownHost(host())),
            foreign().prop_map(Error::NotFound),
            upstream.prop_map(Error::from),
            [foreign(), foreign()].prop_map(|[subject, verdict]| Error::Unverified { subject, verdict }),
            [foreign(), foreign()].prop_map(|[subject, verdict]| {
                let command = "`larder accept h.example/acme/null@1.2.0`".to_owned();
                Error::Unaccepted { subject, verdict, command }
            }),
            foreign().prop_map(Error::Slow),
            foreign().prop_map(Error::Offline),
            foreign().prop_map(Error::Sealed),
            [foreign(), foreign()].prop_map(|[subject, reason]| Error::Busy { subject, reason }),
            foreign().prop_map(|subject| Error::Unattended { subject, running: 16 }),
            foreign().prop_map(Error::Spared),
            foreign().prop_map(|subject| Error::HeldBack { subject, until: Timestamp(0) }),
            foreign().prop_map(Error::NotKept),
            [foreign(), foreign()].prop_map(|[subject, reason]| Error::Unreadable { subject, reason }),
            Just(Error::Looped),
            store_error().prop_map(Error::Store),
            foreign().prop_map(Error::Interrupted),
        ];
        let no_route = prop_oneof![
            foreign().prop_map(RouteError::Malformed),
            foreign().prop_map(RouteError::Unknown),
            Just(RouteError::UnknownHost(host())),
            foreign().prop_map(|reason| RouteError::Misdirected {
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
        fn no_phrase_no_body_and_no_log_line_has_a_secret_a_control_character_or_a_private_path(failure in failure()) {
            let phrase = text(&failure.explain());
            let body = body_of(response::failure(&failure, Api::Registry));
            let line = response::log_text(&failure);
            for shown in [&phrase, &body, &line] {
                prop_assert!(!shown.contains(SECRET) && !shown.contains(char::is_control), "{shown:?}");
            }
            prop_assert!(!phrase.contains(PLACE) && !body.contains(PLACE), "{phrase:?} {body:?}");
            prop_assert!(phrase.len() <= LONGEST && phrase.is_ascii());
        }
    }

    proptest! {
        /// DESIGN, promise 15: nothing breaks the status line, or makes it long.
        #[test]
        fn any_error_makes_a_phrase_of_printable_ascii(cause in "(?s).{0,300}", remedy in "(?s).{0,300}") {
            let text = text(&explanation(&cause, &remedy));
            prop_assert!(text.len() <= LONGEST && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()));
            prop_assert!(of(&explanation(&cause, &remedy)).is_some());
        }
    }
}
