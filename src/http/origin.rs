//! The origin at which a client sees larder: from a trusted proxy's headers, or from larder's own TLS name. Without
//! one, URLs stay path-absolute.

use http::header::{self, HeaderMap, HeaderName};

use super::tls::Tls;
use crate::protocol::route::{Origin, Scheme};

const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Properties of the request's connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connection<'a> {
    /// The other end is one of `trusted_proxies`.
    pub(super) is_trusted_proxy: bool,
    /// Larder's TLS; `None` on a plain connection.
    pub(super) tls: Option<&'a Tls>,
}

/// Returns the origin at which the client sees larder, if known. `host` is the Host header. `is_upstream` returns true
/// for an upstream's name under which larder answers (take-over).
pub(super) fn origin<'a>(
    connection: Connection<'_>,
    headers: &'a HeaderMap,
    host: Option<&'a str>,
    is_upstream: impl Fn(&str) -> bool,
) -> Option<Origin<'a>> {
    if is_proxied(headers) {
        return if connection.is_trusted_proxy { forwarded(headers) } else { None };
    }
    let host = host?;
    let is_known = |tls: &Tls| tls.certifies(host) || is_upstream(host);
    connection.tls.filter(|tls| is_known(tls)).and_then(|_| Origin::parse(Scheme::Https, host))
}

/// Returns true if a proxy announces itself between larder and the client: then Host may be the proxy's name for
/// larder.
fn is_proxied(headers: &HeaderMap) -> bool {
    headers
        .keys()
        .any(|name| name == header::FORWARDED || name == header::VIA || name.as_str().starts_with("x-forwarded-"))
}

fn forwarded(headers: &HeaderMap) -> Option<Origin<'_>> {
    Origin::parse(Scheme::parse(single_value(headers, &X_FORWARDED_PROTO)?)?, single_value(headers, &X_FORWARDED_HOST)?)
}

/// Returns the single value of a header. `None` if a chain of proxies appended different values: it is unknown which
/// one the client saw.
fn single_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).into_iter().flat_map(|value| value.to_str().unwrap_or("?").split(','));
    let first = values.next()?.trim();
    values.all(|value| value.trim().eq_ignore_ascii_case(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::route::{Base, Mount};

    fn headers(given: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(*name, http::HeaderValue::from_static(value));
        }
        headers
    }

    /// DESIGN, section 3: only a trusted proxy that names both scheme and host sets the origin.
    #[test]
    fn only_a_trusted_proxy_can_set_the_origin() {
        let forwarded = [("x-forwarded-host", "mirror.example"), ("x-forwarded-proto", "https")];
        for (given, expected) in [
            (&forwarded[..], Some("https://mirror.example/x")),
            (
                &[forwarded[0], forwarded[1], ("x-forwarded-for", "10.0.0.1"), ("via", "1.1 a")],
                Some("https://mirror.example/x"),
            ),
            (
                &[("x-forwarded-host", "m.example:8443, M.example:8443"), ("x-forwarded-proto", "HTTPS, https")],
                Some("https://m.example:8443/x"),
            ),
            (&[("x-forwarded-host", "m.example:8080"), ("x-forwarded-proto", "http")], Some("http://m.example:8080/x")),
            (&[("x-forwarded-host", "a.example, b.example"), forwarded[1]], None),
            (&[forwarded[0], ("x-forwarded-host", "b.example"), forwarded[1]], None),
            (&[forwarded[0], ("x-forwarded-proto", "https, http")], None),
            (&[forwarded[0], ("x-forwarded-proto", "ftp")], None),
            (&[("x-forwarded-host", "user@m.example"), forwarded[1]], None),
            (&[("x-forwarded-host", "m.example/x"), forwarded[1]], None),
            (&[forwarded[0]], None),
            (&[forwarded[1]], None),
            (&[("x-forwarded-for", "10.0.0.1")], None),
            (&[("forwarded", "host=m.example;proto=https")], None),
            (&[], None),
        ] {
            let headers = headers(given);
            let origin_url = |is_trusted_proxy| {
                let connection = Connection { is_trusted_proxy, tls: None };
                let origin = origin(connection, &headers, Some("registry.example"), |_| true)?;
                Some(Mount::default().url(&Base::Absolute(origin), "/x"))
            };
            assert_eq!(origin_url(true).as_deref(), expected, "{given:?}");
            assert_eq!(origin_url(false), None, "{given:?}");
        }
    }
}
