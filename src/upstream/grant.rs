//! Which origins an upstream's credential may be sent to. Everything else never sees it.

use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use secrecy::ExposeSecret;
use url::{Host, Origin, Url};

use crate::config::{self, CredentialKind, Private};

/// A credential, and the origins it is for: the upstream's `url`, the services its discovery names,
/// and the hosts in its `credentials_for` (promise 8).
#[derive(Debug, Clone, Default)]
pub struct Grant {
    credential: Option<Arc<CredentialKind>>,
    origins: Vec<Origin>,
    plain_http: Vec<Private>,
}

impl Grant {
    /// What an upstream's configuration grants before its discovery is known.
    pub fn of(upstream: &config::Upstream, allow_private: &[Private]) -> Self {
        let mut origins = vec![upstream.url.origin()];
        let hosts = upstream.credentials_for.iter();
        origins.extend(hosts.filter_map(|host| Url::parse(&format!("https://{host}/")).ok()).map(|url| url.origin()));
        Self { credential: upstream.credential.clone().map(Arc::new), origins, plain_http: allow_private.to_vec() }
    }

    /// The same, with the origin of a service that the upstream's discovery names.
    pub fn and(mut self, service: &Url) -> Self {
        self.origins.push(service.origin());
        self
    }

    /// The header to send to `url`, if the credential is for it.
    pub(super) fn header_for(&self, url: &Url) -> Option<(HeaderName, HeaderValue)> {
        let credential = self.credential.as_deref()?;
        if !self.origins.contains(&url.origin()) || !self.is_safe_on_the_wire(url) {
            return None;
        }
        let (name, value) = match credential {
            CredentialKind::Bearer(token) => (AUTHORIZATION, format!("Bearer {}", token.expose_secret())),
            CredentialKind::Basic { user, password } => {
                use base64::Engine;
                let pair = format!("{user}:{}", password.expose_secret());
                let pair = base64::engine::general_purpose::STANDARD.encode(pair);
                (AUTHORIZATION, format!("Basic {pair}"))
            }
            CredentialKind::Header { name, value } => {
                (HeaderName::try_from(name.as_str()).ok()?, value.expose_secret().to_owned())
            }
        };
        let mut value = HeaderValue::try_from(value).ok()?;
        value.set_sensitive(true);
        Some((name, value))
    }

    /// Over plain http a secret goes to loopback only, or to what `allow_private` covers.
    fn is_safe_on_the_wire(&self, url: &Url) -> bool {
        if url.scheme() == "https" {
            return true;
        }
        let address = match url.host() {
            Some(Host::Ipv4(address)) => Some(address.into()),
            Some(Host::Ipv6(address)) => Some(address.into()),
            Some(Host::Domain("localhost")) => return true,
            Some(Host::Domain(_)) | None => None,
        };
        if address.is_some_and(|address: std::net::IpAddr| address.is_loopback()) {
            return true;
        }
        self.plain_http.iter().any(|private| match private {
            Private::Network(network) => address.is_some_and(|address| network.contains(&address)),
            Private::Name(name) => url.host_str() == Some(name.as_str()),
            Private::PlainHttp { host, port } => {
                url.host_str() == Some(host.as_str()) && url.port_or_known_default() == Some(*port)
            }
        })
    }
}
