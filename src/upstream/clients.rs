//! Builds the HTTP clients, with their trusted certificates, name resolution and proxies.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderValue};
use reqwest::{Client, ClientBuilder, redirect};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use rustls_platform_verifier::Verifier;

use super::egress_policy::{EgressPolicy, HttpClientKind, PublicResolver};
use super::request::AcceptedCoding;
use crate::config;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The clients for each [`HttpClientKind`]. Their connections are separate, so that a connection to a configured host is
/// never used for another.
#[derive(Debug, Clone)]
pub(super) struct Clients {
    unrestricted: ClientPair,
    public: ClientPair,
    resolver: Arc<PublicResolver>,
}

/// One client for each [`AcceptedCoding`].
#[derive(Debug, Clone)]
struct ClientPair {
    documents: Client,
    files: Client,
}

impl ClientPair {
    fn new(tls: &ClientConfig, builder: impl Fn() -> ClientBuilder) -> Result<Self, reqwest::Error> {
        let identity = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"))]);
        let builder_for = |protocols: &[&str]| {
            let mut tls = tls.clone();
            tls.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
            // Each client has its own sessions, so that a TLS session is resumed only by the client that began it.
            tls.resumption = Resumption::default();
            builder().tls_backend_preconfigured(tls)
        };
        Ok(Self {
            documents: builder_for(&["h2", "http/1.1"]).build()?,
            // HTTP/1.1 has one connection for each file. Over HTTP/2 all files would share one, and a slow reader would
            // delay all.
            files: builder_for(&["http/1.1"]).http1_only().no_gzip().default_headers(identity).build()?,
        })
    }
}

impl Clients {
    /// Builds the clients, with the proxies of the environment. `authorities` are trusted beside those of the settings.
    pub(super) fn new(
        network: &config::Network,
        mut authorities: Vec<CertificateDer<'static>>,
        upstreams: &[config::Upstream],
        egress_policy: &EgressPolicy,
    ) -> Result<Self, ConnectorError> {
        if let Some(path) = &network.ca_file {
            authorities.extend(read_authorities("[network] ca_file", path)?);
        }
        let tls = tls_config(authorities)?;
        let client = || {
            #[expect(
                clippy::disallowed_methods,
                reason = "the outbound connector is the only place that makes clients"
            )]
            let builder = Client::builder();
            builder
                .user_agent(concat!("larder/", env!("CARGO_PKG_VERSION")))
                .redirect(redirect::Policy::none())
                .referer(false)
                .connect_timeout(CONNECT_TIMEOUT)
                .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        };
        let taken_over = upstreams.iter().filter(|upstream| !upstream.addresses.is_empty());
        let taken_over = taken_over.filter_map(|upstream| Some((upstream.url.host_str()?, &upstream.addresses)));
        let taken_over: HashMap<String, Vec<SocketAddr>> =
            taken_over.map(|(name, addresses)| (name.to_owned(), addresses.clone())).collect();
        let resolver = Arc::new(PublicResolver::new(egress_policy, taken_over.clone()));
        let with_taken_over_addresses = |builder: ClientBuilder| {
            taken_over.iter().fold(builder, |builder, (name, addresses)| builder.resolve_to_addrs(name, addresses))
        };
        Ok(Self {
            unrestricted: ClientPair::new(&tls, || with_taken_over_addresses(client()))?,
            // This client connects directly, or through a proxy that takes addresses. So it resolves and checks names
            // itself. Requests through any other proxy use the unrestricted client.
            public: ClientPair::new(&tls, || client().dns_resolver(Arc::clone(&resolver)))?,
            resolver,
        })
    }

    /// Resolves a configured name, for protocols other than HTTP that need an address.
    pub(super) async fn addresses_of(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
        let addresses = self.resolver.all_addresses(name).await?;
        Ok(addresses.into_iter().map(|address| address.ip()).collect())
    }

    pub(super) fn client(&self, kind: HttpClientKind, coding: AcceptedCoding) -> &Client {
        let pair = match kind {
            HttpClientKind::Unrestricted => &self.unrestricted,
            HttpClientKind::Public => &self.public,
        };
        match coding {
            AcceptedCoding::Any => &pair.documents,
            AcceptedCoding::Identity => &pair.files,
        }
    }
}

/// The connector could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ConnectorError {
    /// A file of authorities is not a list of certificates.
    #[error("{option} {path} is not a PEM file of certificates: {reason}", path = .path.display())]
    Authorities {
        /// The option that names the file.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// The failure.
        reason: String,
    },
    /// TLS could not be set up: the system's certificates could not be read.
    #[error("no TLS client could be set up: {0}")]
    Tls(#[from] rustls::Error),
    /// An HTTP client could not be set up.
    #[error("no HTTP client could be set up: {0}")]
    Client(#[from] reqwest::Error),
}

/// Makes the TLS configuration, which trusts the system's root certificates and `authorities`. All clients share it, so
/// that the system's certificates are read once.
fn tls_config(authorities: Vec<CertificateDer<'static>>) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Verifier::new_with_extra_roots(authorities, Arc::clone(&provider))?;
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
}

#[expect(clippy::disallowed_methods, reason = "the outbound connector reads its own certificates")]
/// Reads a file of certificates that an option names.
pub(crate) fn read_authorities(
    option: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, ConnectorError> {
    let failed = |reason: String| ConnectorError::Authorities { option, path: path.to_owned(), reason };
    let pem = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
    let certificates =
        CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>().map_err(|e| failed(e.to_string()))?;
    let mut checked = RootCertStore::empty();
    certificates.iter().try_for_each(|authority| checked.add(authority.clone())).map_err(|e| failed(e.to_string()))?;
    if certificates.is_empty() { Err(failed("the file has no certificate".into())) } else { Ok(certificates) }
}
