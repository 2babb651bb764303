//! Credential scope of an upstream: which origins get which credential, and which origins may be private because the
//! configuration names them. All other origins get no credential and must be public.

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::ExposeSecret;
use url::{Host, Origin, Url};

use crate::address::Hostname;
use crate::config::{self, Access, Credential, CredentialKind, PrivateDestination, SshFiles};

/// The credentials that may be sent for one upstream, and the origins that its configuration permits (promises 7 and
/// 8).
#[derive(Debug, Clone, Default)]
pub struct CredentialScope {
    /// The upstream's own credential, for its `url`, the services that its own discovery document names, and
    /// `credentials_for`.
    own: Option<ScopedCredential>,
    /// Credentials of the `[[credential]]` sections that list this upstream.
    others: Vec<ScopedCredential>,
    /// The ssh keys of those sections.
    ssh: Vec<(Hostname, SshFiles)>,
    /// Origins that may be private: the upstream's own host and `url`, its services there, and each `[[credential]]` host.
    permitted: Vec<Origin>,
    /// The upstream's own host, and the host of its `url`.
    own_hosts: Vec<String>,
    services_may_be_plain_http: bool,
    allow_private: Arc<[PrivateDestination]>,
}

#[derive(Debug, Clone)]
struct ScopedCredential {
    credential: Arc<CredentialKind>,
    origins: Vec<Origin>,
}

impl CredentialScope {
    /// The scope of an upstream before its discovery is fetched.
    pub fn of(upstream: &config::Upstream, credentials: &[Credential], allow_private: &[PrivateDestination]) -> Self {
        let own = upstream.credential.clone().map(|credential| {
            let mut origins = vec![upstream.url.origin()];
            origins.extend(upstream.credentials_for.iter().flat_map(origins_of));
            ScopedCredential { credential: Arc::new(credential), origins }
        });
        let permitted: Vec<Origin> = https_origin(&upstream.host).into_iter().chain([upstream.url.origin()]).collect();
        let mut scope = Self {
            own,
            own_hosts: permitted.iter().filter_map(host_of).collect(),
            permitted,
            services_may_be_plain_http: upstream.url.scheme() == "http",
            allow_private: allow_private.into(),
            ..Self::default()
        };
        let applicable = credentials.iter().filter(|credential| credential.upstreams.contains(&upstream.host));
        for Credential { host, access, .. } in applicable {
            scope.permitted.extend(https_origin(host));
            match access {
                Access::Http(kind) => {
                    let credential = Arc::new(kind.clone());
                    scope.others.push(ScopedCredential { credential, origins: origins_of(host) });
                }
                Access::Ssh(files) => scope.ssh.push((host.clone(), files.clone())),
            }
        }
        scope
    }

    /// Adds the origin of a service that the upstream's own discovery names.
    pub fn with_service(self, service: &Url) -> Self {
        let mut scope = self.with_permitted_service(service);
        if let Some(own) = &mut scope.own {
            own.origins.push(service.origin());
        }
        scope
    }

    /// Adds a service that another origin named after a redirect. The service may be private like the upstream's own
    /// services, and gets no credential.
    pub fn with_permitted_service(mut self, service: &Url) -> Self {
        let origin = service.origin();
        let is_own = host_of(&origin).is_some_and(|host| self.own_hosts.contains(&host));
        if is_own && (service.scheme() == "https" || self.services_may_be_plain_http) {
            self.permitted.push(origin);
        }
        self
    }

    /// Returns true for origins that the configuration names or covers, which may be private.
    pub(super) fn permits(&self, origin: &Origin) -> bool {
        self.permitted.contains(origin)
    }

    /// The key for an ssh server, and the host keys to trust. A `[[credential]]` without a port is for ports 22 and
    /// 443, because forges accept ssh on both.
    pub(super) fn ssh_key_for(&self, host: &str, port: u16) -> Option<&SshFiles> {
        let matches = |section: &Hostname| {
            section.name() == host
                && section.port().map_or(matches!(port, 22 | 443), |section_port| section_port == port)
        };
        self.ssh.iter().find(|(section, _)| matches(section)).map(|(_, files)| files)
    }

    /// Returns upstream's text, or a placeholder if the text quotes a credential.
    pub(super) fn text_without_credentials<'a>(&self, text: &'a str) -> &'a str {
        let base64 = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let is_quoted = |secret: &str| {
            let encoded = utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string();
            [secret, &encoded, &base64(secret)].iter().any(|encoding| text.contains(*encoding))
        };
        let quotes_credential = self.own.iter().chain(&self.others).any(|scoped| match &*scoped.credential {
            CredentialKind::Bearer(secret) | CredentialKind::Header { value: secret, .. } => {
                is_quoted(secret.expose_secret())
            }
            CredentialKind::Basic { user, password } => {
                let password = password.expose_secret();
                is_quoted(password) || text.contains(&base64(&format!("{user}:{password}")))
            }
        });
        if quotes_credential { "(not shown: it quotes the credential of larder)" } else { text }
    }

    /// The header to send to `url`, if a credential is for its origin. The upstream's own credential wins.
    pub(super) fn header_for(&self, url: &Url) -> Option<(HeaderName, HeaderValue)> {
        let origin = url.origin();
        let scoped = self.own.iter().chain(&self.others).find(|scoped| scoped.origins.contains(&origin))?;
        if !self.may_send_secret_to(url) {
            return None;
        }
        let (name, value) = match &*scoped.credential {
            CredentialKind::Bearer(token) => (AUTHORIZATION, format!("Bearer {}", token.expose_secret())),
            CredentialKind::Basic { user, password } => {
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

    /// Returns true if a secret may be sent to `url`: over https, or over plain http to loopback and to
    /// destinations that `allow_private` covers.
    fn may_send_secret_to(&self, url: &Url) -> bool {
        if url.scheme() == "https" {
            return true;
        }
        let address: Option<IpAddr> = match url.host() {
            Some(Host::Ipv4(address)) => Some(address.into()),
            Some(Host::Ipv6(address)) => Some(address.into()),
            Some(Host::Domain(_)) | None => None,
        };
        if url.host() == Some(Host::Domain("localhost")) || address.is_some_and(|address| address.is_loopback()) {
            return true;
        }
        self.allow_private.iter().any(|destination| match destination {
            PrivateDestination::Network(network) => address.is_some_and(|address| network.contains(&address)),
            PrivateDestination::Name(name) => url.host_str() == Some(name.as_str()),
            PrivateDestination::PlainHttp { host, port } => {
                url.host_str() == Some(host.as_str()) && url.port_or_known_default() == Some(*port)
            }
        })
    }
}

fn https_origin(host: &Hostname) -> Option<Origin> {
    Url::parse(&format!("https://{host}/")).ok().map(|url| url.origin())
}

/// The origins that get the credential for a host. Whether plain http is allowed is checked when the credential is sent.
fn origins_of(host: &Hostname) -> Vec<Origin> {
    let plain_http = Url::parse(&format!("http://{host}/")).ok().map(|url| url.origin());
    https_origin(host).into_iter().chain(plain_http).collect()
}

fn host_of(origin: &Origin) -> Option<String> {
    match origin {
        Origin::Tuple(_, host, _) => Some(host.to_string()),
        Origin::Opaque(_) => None,
    }
}
