//! Larder's URLs in answers: the origin at which a client sees larder, and the prefix of all paths. An origin is a text
//! such as `https://mirror.example:8443`, without a slash at its end.

use std::net::Ipv6Addr;

use url::Url;

use crate::cdn_loop::CdnLoop;

/// The longest `HOST:PORT` of an origin, in bytes: a domain name has at most 253 (RFC 1035), a port five digits.
pub const MAX_AUTHORITY: usize = 253 + ":65535".len();

/// Builds an origin from a scheme and the value of a `Host` or `X-Forwarded-Host` header. One origin has one spelling:
/// lower case, without the default port of its scheme. `None` unless the scheme is http or https, and the host a name or
/// an IP address with an optional port.
pub fn parse_origin(scheme: &str, authority: &str) -> Option<String> {
    let schemes = [("https", ":443"), ("http", ":80")];
    let (scheme, default_port) = schemes.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(scheme))?;
    let authority = authority.strip_suffix(default_port).unwrap_or(authority);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if authority.is_empty() || authority.len() > MAX_AUTHORITY || !authority.bytes().all(is_plain) {
        return None;
    }
    let (name, port) = match authority.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (authority, None),
    };
    let is_host = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !name.is_empty() && !name.ends_with('.') && !name.contains([':', '[', ']']),
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port != 0);
    (is_host && port.is_none_or(is_port)).then(|| format!("{scheme}://{}", authority.to_ascii_lowercase()))
}

/// The parts of `public_url`, at which larder is mounted.
#[derive(Debug, Clone, Default)]
pub struct Mount {
    public_origin: Option<String>,
    prefix: String,
    /// The URL of the listener on its own machine.
    local_url: String,
}

impl Mount {
    /// Splits `public_url`. Without one, larder is at the root of every host.
    pub fn new(public_url: Option<&Url>) -> Self {
        public_url.map_or_else(Self::default, |url| Self {
            public_origin: Some(format!("{}://{}", url.scheme(), url.authority())),
            prefix: url.path().trim_end_matches('/').to_owned(),
            local_url: String::new(),
        })
    }

    /// The same mount of a listener with this URL, without a final slash: what people are told where nothing better is
    /// known.
    #[must_use]
    pub fn listening_at(self, local_url: String) -> Self {
        Self { local_url, ..self }
    }

    /// Returns the URL for people to paste, without a final slash, from the base of the URLs in the answer.
    pub fn url_to_paste(&self, base: &str) -> String {
        if base.is_empty() { self.local_url.clone() } else { self.url(base, "") }
    }

    /// Returns true if `public_url` says where clients find larder.
    pub fn is_configured(&self) -> bool {
        self.public_origin.is_some()
    }

    /// Returns the base of the URLs in the answer to a request that came through the proxies of `cdn_loop` and sees
    /// larder at `origin`: the origin that every URL begins with, or an empty text. With an empty base the URLs are
    /// paths, which Terraform and OpenTofu resolve against the URL that they asked. Every other tool needs an origin. A
    /// larder in front of this one resolves paths, too, and must not be redirected to our public name.
    pub fn base<'a>(&'a self, cdn_loop: &CdnLoop, origin: Option<&'a str>) -> &'a str {
        if cdn_loop.names_a_larder() {
            return "";
        }
        self.public_origin.as_deref().or(origin).unwrap_or_default()
    }

    /// Returns the URL of one of our paths, as written in an answer with this base.
    pub fn url(&self, base: &str, path: &str) -> String {
        [base, &self.prefix, path].concat()
    }

    /// Returns the path below the mount. Requests have the prefix, unless a proxy removed it.
    pub fn without_prefix<'a>(&self, path: &'a str) -> &'a str {
        match path.strip_prefix(&self.prefix) {
            Some(below) if below.starts_with('/') => below,
            _ => path,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn url(scheme: &str, authority: &str) -> Option<String> {
        Some(Mount::default().url(&parse_origin(scheme, authority)?, "/x"))
    }

    #[test]
    fn every_origin_has_one_spelling_and_invalid_ones_are_refused() {
        for (scheme, authority, expected) in [
            ("https", "mirror.example", Some("https://mirror.example/x")),
            ("https", "Mirror.Example:443", Some("https://mirror.example/x")),
            ("https", "mirror.example:80", Some("https://mirror.example:80/x")),
            ("http", "mirror.example:80", Some("http://mirror.example/x")),
            ("http", "10.0.0.1:8080", Some("http://10.0.0.1:8080/x")),
            ("HTTP", "mirror.example", Some("http://mirror.example/x")),
            ("ftp", "mirror.example", None),
            ("https", "[::1]:8443", Some("https://[::1]:8443/x")),
            ("https", "[::1]", Some("https://[::1]/x")),
            ("https", "", None),
            ("https", ":443", None),
            ("https", "mirror.example.", None),
            ("https", "a:0", None),
            ("https", "a:65536", None),
            ("https", "a:", None),
            ("https", "user@mirror.example", None),
            ("https", "mirror.example/x", None),
            ("https", "mirror.example\"", None),
            ("https", "::1", None),
            ("https", "[::1", None),
            ("https", "a:b:1", None),
        ] {
            assert_eq!(url(scheme, authority).as_deref(), expected, "{authority}");
        }
        assert_eq!(url("https", &"a".repeat(260)), None);
    }

    proptest! {
        /// No Host header can change the path of a written URL, or add a user or query.
        #[test]
        fn a_url_with_a_parsed_origin_has_no_other_path_user_or_query(authority in "\\PC{0,30}|[a-zA-Z0-9.:\\[\\]@/?#_-]{0,20}") {
            if let Some(written) = url("https", &authority) {
                // The WHATWG URL standard refuses a name such as `1.2.3.4.5`, and so do clients.
                if let Ok(parsed) = Url::parse(&written) {
                    prop_assert!(parsed.path() == "/x" && parsed.username().is_empty() && parsed.query().is_none());
                }
            }
        }
    }
}
