//! Base URLs: the origin at which clients see larder, and larder's URLs for it.

use std::borrow::Cow;

use url::Url;

use crate::cdn_loop::CdnLoop;

/// Scheme, host and port of a server, without a slash at the end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin<'a> {
    scheme: Scheme,
    authority: Cow<'a, str>,
}

/// The scheme of an [`Origin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Without TLS.
    Http,
    /// With TLS.
    Https,
}

impl Scheme {
    /// Parses `http` or `https`, in any case.
    pub fn parse(text: &str) -> Option<Self> {
        if text.eq_ignore_ascii_case("https") {
            Some(Self::Https)
        } else if text.eq_ignore_ascii_case("http") {
            Some(Self::Http)
        } else {
            None
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Http => "http://",
            Self::Https => "https://",
        }
    }

    fn default_port(self) -> &'static str {
        match self {
            Self::Http => ":80",
            Self::Https => ":443",
        }
    }
}

/// The longest `HOST:PORT` of an origin, in bytes: a domain name has at most 253 (RFC 1035), a port five digits.
const MAX_AUTHORITY: usize = 253 + ":65535".len();

impl<'a> Origin<'a> {
    /// Parses the value of a `Host` or `X-Forwarded-Host` header. One origin has one spelling: lower case, without the
    /// default port of its scheme. `None` unless it is a host name or IP address with an optional port.
    pub fn parse(scheme: Scheme, authority: &'a str) -> Option<Self> {
        let authority = authority.strip_suffix(scheme.default_port()).unwrap_or(authority);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
        if authority.is_empty() || authority.len() > MAX_AUTHORITY || !authority.bytes().all(is_plain) {
            return None;
        }
        let (name, port) = match authority.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
            _ => (authority, None),
        };
        let ipv6 = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let is_host = match ipv6 {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !name.is_empty() && !name.ends_with('.') && !name.contains([':', '[', ']']),
        };
        let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port != 0);
        if !is_host || !port.is_none_or(is_port) {
            return None;
        }
        let authority = match authority.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => Cow::Owned(authority.to_ascii_lowercase()),
            false => Cow::Borrowed(authority),
        };
        Some(Self { scheme, authority })
    }

    fn of_url(url: &'a Url) -> Self {
        let scheme = if url.scheme() == "http" { Scheme::Http } else { Scheme::Https };
        Self { scheme, authority: Cow::Borrowed(url.authority()) }
    }

    /// Copies the borrowed text.
    pub fn into_static(self) -> Origin<'static> {
        Origin { scheme: self.scheme, authority: Cow::Owned(self.authority.into_owned()) }
    }
}

/// The prefix of larder's paths in an answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Base<'a> {
    /// No origin: Terraform and OpenTofu resolve `/archive/…` against the URL that they asked.
    PathAbsolute,
    /// The origin at which the client sees larder, which every other tool needs.
    Absolute(Origin<'a>),
}

impl Base<'_> {
    /// Copies the borrowed text.
    pub fn into_static(self) -> Base<'static> {
        match self {
            Self::PathAbsolute => Base::PathAbsolute,
            Self::Absolute(origin) => Base::Absolute(origin.into_static()),
        }
    }
}

/// The parts of `public_url`, at which larder is mounted.
#[derive(Debug, Clone, Default)]
pub struct Mount {
    public: Option<Origin<'static>>,
    prefix: String,
}

impl Mount {
    /// Splits `public_url`. Without one, larder is at the root of every host.
    pub fn new(public_url: Option<&Url>) -> Self {
        public_url.map_or_else(Self::default, |url| Self {
            public: Some(Origin::of_url(url).into_static()),
            prefix: url.path().trim_end_matches('/').to_owned(),
        })
    }

    /// Returns the base of the URLs in the answer to a request that came through `via` and sees larder at `origin`. A
    /// larder in front of this one resolves paths against the URL that it asked, and must not be redirected to our public
    /// name.
    pub fn base<'a>(&'a self, via: &CdnLoop, origin: Option<Origin<'a>>) -> Base<'a> {
        if via.names_a_larder() {
            return Base::PathAbsolute;
        }
        let public = self.public.as_ref().map(|Origin { scheme, authority }| Origin {
            scheme: *scheme,
            authority: Cow::Borrowed(authority.as_ref()),
        });
        public.or(origin).map_or(Base::PathAbsolute, Base::Absolute)
    }

    /// Returns the URL of one of our paths, as written in an answer.
    pub fn url(&self, base: &Base<'_>, path: &str) -> String {
        let (scheme, authority) = match base {
            Base::PathAbsolute => ("", ""),
            Base::Absolute(Origin { scheme, authority }) => (scheme.prefix(), authority.as_ref()),
        };
        [scheme, authority, &self.prefix, path].concat()
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

    fn url(scheme: Scheme, authority: &str) -> Option<String> {
        let origin = Origin::parse(scheme, authority)?;
        Some(Mount::default().url(&Base::Absolute(origin), "/x"))
    }

    #[test]
    fn every_origin_has_one_spelling_and_invalid_ones_are_refused() {
        for (scheme, authority, expected) in [
            (Scheme::Https, "mirror.example", Some("https://mirror.example/x")),
            (Scheme::Https, "Mirror.Example:443", Some("https://mirror.example/x")),
            (Scheme::Https, "mirror.example:80", Some("https://mirror.example:80/x")),
            (Scheme::Http, "mirror.example:80", Some("http://mirror.example/x")),
            (Scheme::Http, "10.0.0.1:8080", Some("http://10.0.0.1:8080/x")),
            (Scheme::Https, "[::1]:8443", Some("https://[::1]:8443/x")),
            (Scheme::Https, "[::1]", Some("https://[::1]/x")),
            (Scheme::Https, "", None),
            (Scheme::Https, ":443", None),
            (Scheme::Https, "mirror.example.", None),
            (Scheme::Https, "a:0", None),
            (Scheme::Https, "a:65536", None),
            (Scheme::Https, "a:", None),
            (Scheme::Https, "user@mirror.example", None),
            (Scheme::Https, "mirror.example/x", None),
            (Scheme::Https, "mirror.example\"", None),
            (Scheme::Https, "::1", None),
            (Scheme::Https, "[::1", None),
            (Scheme::Https, "a:b:1", None),
        ] {
            assert_eq!(url(scheme, authority).as_deref(), expected, "{authority}");
        }
        assert_eq!(url(Scheme::Https, &"a".repeat(260)), None);
    }

    proptest! {
        /// No Host header can change the path of a written URL, or add a user or query.
        #[test]
        fn a_url_with_a_parsed_origin_has_no_other_path_user_or_query(authority in "\\PC{0,30}|[a-zA-Z0-9.:\\[\\]@/?#_-]{0,20}") {
            if let Some(written) = url(Scheme::Https, &authority) {
                // The WHATWG URL standard refuses a name such as `1.2.3.4.5`, and so do clients.
                if let Ok(parsed) = Url::parse(&written) {
                    prop_assert!(parsed.path() == "/x" && parsed.username().is_empty() && parsed.query().is_none());
                }
            }
        }
    }
}
