//! The texts of errors: subject, cause and remedy, without secrets.

use std::fmt;

/// The parts of an error text, in the order in which every text has them: `subject: cause; remedy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The requested item. A reason phrase leaves the subject out, because clients print it themselves.
    pub subject: Option<String>,
    /// The failure, with its upstream.
    pub cause: String,
    /// The remedy.
    pub remedy: Option<String>,
}

impl Explanation {
    /// An explanation with a cause alone.
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
            write!(f, "{}: ", safe_text(subject))?;
        }
        f.write_str(&safe_text(&self.cause))?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "; {}", safe_text(remedy)))
    }
}

/// Makes a text safe to show (promise 8): one line, no control characters, and no userinfo or query of a URL.
pub fn safe_text(text: &str) -> String {
    let printable: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut shown = String::with_capacity(printable.len());
    let mut remaining = printable.as_str();
    while let Some((before_scheme_end, after)) = remaining.split_once("://") {
        let (url, after_url) = split_url(before_scheme_end, after);
        shown.extend([before_scheme_end, "://", &without_secrets(url)]);
        remaining = after_url;
    }
    shown + remaining
}

/// Splits `after`, the text after a `://`, at the end of its URL. `before_scheme_end` is the text before the `://`. A
/// secret may contain brackets and quotes, so a bracket or quote ends a URL only if one also precedes the URL.
fn split_url<'a>(before_scheme_end: &str, after: &'a str) -> (&'a str, &'a str) {
    let is_scheme_char = |c: char| c.is_ascii_alphanumeric() || "+-.:".contains(c);
    let closing = match before_scheme_end.trim_end_matches(is_scheme_char).chars().next_back() {
        Some('(') => Some(')'),
        Some(quote @ ('\'' | '`')) => Some(quote),
        _ => None,
    };
    let ends_url = |c: char| c.is_whitespace() || "\"<>".contains(c) || Some(c) == closing;
    let end = after.find(ends_url).unwrap_or(after.len());
    // A second URL that follows directly is separate, except in a query.
    let (url, _) = after.split_at(end);
    let end = match (url.find("://"), url.find(['?', '#'])) {
        (Some(second_url), None) => second_url,
        (Some(second_url), Some(query)) if second_url < query => second_url,
        _ => end,
    };
    after.split_at(end)
}

/// Removes userinfo, query and fragment from the text of a URL after its `://`.
fn without_secrets(url: &str) -> String {
    let (authority_and_path, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    let (authority, path) =
        authority_and_path.split_at(authority_and_path.find('/').unwrap_or(authority_and_path.len()));
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let may_be_a_password = authority.rsplit_once(':').is_some_and(|(_, port)| !is_port(port) && !port.ends_with(']'));
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{host}{path}"),
        // A password may contain an unencoded slash, question mark or hash.
        None if query.contains('@') || (path.contains('@') && may_be_a_password) => "...".to_owned(),
        None => authority_and_path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The secret parts of a URL are removed, and the rest of the text stays (promise 8).
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
            assert_eq!(safe_text(text), shown);
        }
    }

    proptest! {
        #[test]
        fn secrets_in_a_url_are_removed_whatever_surrounds_it(
            before in "[^@?#/]{0,20}", user in "[a-z]{0,5}", secret in "[a-z()'`/#&]{0,6}", host in "[a-z]{1,9}", after in "(\\PC|\\n){0,20}",
        ) {
            let text = format!("{before} https://{user}:S3CRET{secret}S3CRET@{host}/p?t=S3CRET{secret}S3CRET {after}");
            let shown = safe_text(&text);
            prop_assert!(!shown.contains("S3CRET") && !shown.contains(char::is_control), "{}", shown);
        }
    }
}
