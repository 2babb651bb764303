//! Sends one HTTP request as the clients would send it, and reports the cause of a failure. It trusts the same TLS
//! roots, found as Go's standard library does: both clients are written in Go (CLI configuration). For the doctor's
//! checks, never for fetches.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::header::{self, HeaderMap};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use url::Url;

use crate::clock::Timestamp;

const MAX_BODY_BYTES: usize = 64 << 10;
/// Limit of redirects, as in the clients.
const MAX_REDIRECTS: usize = 10;
/// Remaining validity below which the expiry of a certificate is reported.
const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 24 * 3600);

/// A server's answer.
#[derive(Debug)]
pub struct ProbeAnswer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The beginning of the body.
    pub body: Bytes,
    /// Expiry of the server's certificate, or of one in its chain, if within two weeks.
    pub ends_soon: Option<Timestamp>,
}

/// Failures of a probe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// The name has no address.
    #[error("the name {name} leads nowhere: {reason}")]
    HostNotFound {
        /// The name.
        name: String,
        /// The system's error.
        reason: String,
    },
    /// Connection refused or unreachable.
    #[error("nothing listens there: {0}")]
    Unreachable(String),
    /// The client would not trust the server's certificate.
    #[error(transparent)]
    Certificate(#[from] BadCertificate),
    /// The server does not speak TLS.
    #[error("the server there speaks no TLS: {0}")]
    NoTls(String),
    /// The server does not speak HTTP.
    #[error("the server there speaks no plain HTTP: {0}")]
    NoHttp(String),
    /// Timed out.
    #[error("no answer within {} s", .0.as_secs())]
    Slow(Duration),
    /// The URL is not http or https.
    #[error("the URL is not http or https")]
    NoUrl,
}

/// A problem with a certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCertificate {
    /// No authority that is trusted here has signed it.
    #[error("its certificate is not trusted here: no authority that this machine trusts has signed it")]
    Untrusted,
    /// The certificate is for other names.
    #[error("its certificate is for {}, and not for this name", .0.join(", "))]
    OtherName(Vec<String>),
    /// Expired.
    #[error("its certificate has expired{}", day(.0))]
    Expired(Option<Timestamp>),
    /// Not valid yet.
    #[error("its certificate is not valid yet{}", day(.0))]
    NotYet(Option<Timestamp>),
    /// Another problem.
    #[error("its certificate is invalid: {0}")]
    Other(String),
}

fn day(time: &Option<Timestamp>) -> String {
    time.map_or_else(String::new, |time| format!(" ({})", time.day()))
}

/// Requests `url` without a proxy and within a deadline. Follows redirects as the clients do; the token goes to the first host
/// alone.
///
/// # Errors
/// [`ProbeError`], with the cause.
pub async fn probe(
    url: &Url,
    roots: &ClientRoots,
    limit: Duration,
    token: Option<&SecretString>,
) -> Result<ProbeAnswer, ProbeError> {
    timeout(limit, probe_with_redirects(url, roots, token)).await.unwrap_or(Err(ProbeError::Slow(limit)))
}

async fn probe_with_redirects(
    url: &Url,
    roots: &ClientRoots,
    token: Option<&SecretString>,
) -> Result<ProbeAnswer, ProbeError> {
    let first = url.origin();
    let mut url = url.clone();
    let mut redirects = 0..MAX_REDIRECTS;
    loop {
        let answer = probe_once(&url, roots, token.filter(|_| url.origin() == first)).await?;
        let is_redirect = matches!(answer.status.as_u16(), 301 | 302 | 303 | 307 | 308);
        let location = answer.headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
        let next = location.filter(|_| is_redirect).and_then(|location| url.join(location).ok());
        match next.zip(redirects.next()) {
            Some((next, _)) => url = next,
            None => return Ok(answer),
        }
    }
}

async fn probe_once(url: &Url, roots: &ClientRoots, token: Option<&SecretString>) -> Result<ProbeAnswer, ProbeError> {
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else { return Err(ProbeError::NoUrl) };
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let resolved = tokio::net::lookup_host((name, port)).await;
    let no_such_name = |reason: String| ProbeError::HostNotFound { name: name.to_owned(), reason };
    let addresses: Vec<SocketAddr> = resolved.map_err(|e| no_such_name(e.to_string()))?.collect();
    if addresses.is_empty() {
        return Err(no_such_name("the name has no address".to_owned()));
    }
    let connected = first_connection(&addresses, TcpStream::connect::<SocketAddr>).await;
    let stream = connected.map_err(|e| ProbeError::Unreachable(e.to_string()))?;
    match url.scheme() {
        "http" => send_probe(stream, url, None, token).await,
        "https" => {
            let verifier = Verifier::new(roots)?;
            let ends_soon = Arc::clone(&verifier.ends_soon);
            let name = ServerName::try_from(name.to_owned()).map_err(|_| ProbeError::NoUrl)?;
            let connector = TlsConnector::from(Arc::new(config(verifier)?));
            let stream = connector.connect(name, stream).await.map_err(|e| handshake_error(&e))?;
            let ends_soon = *ends_soon.lock();
            send_probe(stream, url, ends_soon, token).await
        }
        _ => Err(ProbeError::NoUrl),
    }
}

async fn send_probe(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    url: &Url,
    ends_soon: Option<Timestamp>,
    token: Option<&SecretString>,
) -> Result<ProbeAnswer, ProbeError> {
    let failed = |e: hyper::Error| ProbeError::NoHttp(e.to_string());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let connection = tokio::spawn(connection);
    let authority = url.authority().rsplit('@').next().unwrap_or_default();
    let bearer = token.map(|token| {
        let mut value = header::HeaderValue::from_str(&format!("Bearer {}", token.expose_secret()))?;
        value.set_sensitive(true);
        Ok::<_, header::InvalidHeaderValue>(value)
    });
    let mut request = Request::get(url.path());
    if let Some(Ok(bearer)) = bearer {
        request = request.header(header::AUTHORIZATION, bearer);
    }
    let request = request
        .header(header::HOST, authority)
        .header(header::USER_AGENT, concat!("larder/", env!("CARGO_PKG_VERSION"), " (doctor)"))
        .body(Empty::<Bytes>::new())
        .map_err(|_| ProbeError::NoUrl)?;
    let (parts, body) = sender.send_request(request).await.map_err(failed)?.into_parts();
    // Status and headers are enough if the body is too long or breaks off.
    let body = Limited::new(body, MAX_BODY_BYTES).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    connection.abort();
    Ok(ProbeAnswer { status: parts.status, headers: parts.headers, body, ends_soon })
}

fn config(verifier: Verifier) -> Result<ClientConfig, ProbeError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| BadCertificate::Other(e.to_string()))?;
    let mut config = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn handshake_error(error: &std::io::Error) -> ProbeError {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match tls {
        Some(Error::InvalidCertificate(bad)) => bad_certificate(bad).into(),
        Some(tls) => ProbeError::NoTls(tls.to_string()),
        None => ProbeError::NoTls(error.to_string()),
    }
}

fn bad_certificate(bad: &CertificateError) -> BadCertificate {
    let timestamp_of = |time: &UnixTime| Some(Timestamp(time.as_secs()));
    match bad {
        CertificateError::UnknownIssuer => BadCertificate::Untrusted,
        CertificateError::Expired => BadCertificate::Expired(None),
        CertificateError::ExpiredContext { not_after, .. } => BadCertificate::Expired(timestamp_of(not_after)),
        CertificateError::NotValidYet => BadCertificate::NotYet(None),
        CertificateError::NotValidYetContext { not_before, .. } => BadCertificate::NotYet(timestamp_of(not_before)),
        CertificateError::NotValidForName => BadCertificate::OtherName(vec!["another name".to_owned()]),
        CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
            BadCertificate::OtherName(vec!["no name at all".to_owned()])
        }
        CertificateError::NotValidForNameContext { presented, .. } => {
            BadCertificate::OtherName(presented.iter().map(|name| presented_name(name)).collect())
        }
        other if is_authority_itself(other) => BadCertificate::Untrusted,
        other => BadCertificate::Other(other.to_string()),
    }
}

/// The library presents a name in its debug form: `DnsName("mirror.example")`.
fn presented_name(name: &str) -> String {
    let inner = name.strip_prefix("DnsName(\"").and_then(|name| name.strip_suffix("\")"));
    inner.unwrap_or(name).to_owned()
}

/// Recognises an authority's certificate where a server's is expected. The library keeps the type of this error private.
fn is_authority_itself(bad: &CertificateError) -> bool {
    matches!(bad, CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity"))
}

/// Verifies certificates as the clients do, and records an expiry within two weeks.
#[derive(Debug)]
struct Verifier {
    inner: Arc<WebPkiServerVerifier>,
    roots: ClientRoots,
    ends_soon: Arc<Mutex<Option<Timestamp>>>,
}

impl Verifier {
    fn new(roots: &ClientRoots) -> Result<Self, ProbeError> {
        if roots.roots.is_empty() {
            return Err(BadCertificate::Untrusted.into());
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots.roots), provider).build();
        let inner = inner.map_err(|e| BadCertificate::Other(e.to_string()))?;
        Ok(Self { inner, roots: roots.clone(), ends_soon: Arc::default() })
    }

    /// Returns true if the server's own certificate is one of the roots. The clients accept such a certificate even if it
    /// belongs to an authority.
    fn is_trusted_itself(&self, certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> Result<bool, Error> {
        let is_trusted = anchor_of(certificate).is_some_and(|own| self.roots.roots.roots.contains(&own));
        if is_trusted {
            let parsed = ParsedCertificate::try_from(certificate)?;
            rustls::client::verify_server_name(&parsed, name)?;
        }
        Ok(is_trusted)
    }
}

/// Converts a certificate to a trust anchor: its name and key.
fn anchor_of(certificate: &CertificateDer<'_>) -> Option<TrustAnchor<'static>> {
    let mut store = RootCertStore::empty();
    store.add(certificate.clone().into_owned()).ok()?;
    store.roots.pop()
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verify_at =
            |time| self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, time);
        let verified = match verify_at(now) {
            Err(Error::InvalidCertificate(bad))
                if is_authority_itself(&bad) && self.is_trusted_itself(end_entity, server_name)? =>
            {
                return Ok(ServerCertVerified::assertion());
            }
            verified => verified?,
        };
        let warning_time = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + EXPIRY_WARNING);
        if let Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) =
            verify_at(warning_time)
        {
            *self.ends_soon.lock() = Some(Timestamp(not_after.as_secs()));
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Time between the starts of two attempts.
const ATTEMPT_DELAY: Duration = Duration::from_millis(300);

/// Tries the addresses in order. Each next attempt starts when one fails, or after
/// [`ATTEMPT_DELAY`]. Returns the first connection, or the last error.
async fn first_connection<T, F: Future<Output = io::Result<T>>>(
    addresses: &[SocketAddr],
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T> {
    let mut untried = addresses.iter().copied();
    let mut attempts = FuturesUnordered::new();
    let mut last_error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    attempts.extend(untried.next().map(&connect));
    loop {
        tokio::select! {
            Some(connected) = attempts.next() => match connected {
                Ok(connected) => return Ok(connected),
                Err(error) => last_error = error,
            },
            () = sleep(ATTEMPT_DELAY), if untried.len() > 0 => {}
            else => return Err(last_error),
        }
        attempts.extend(untried.next().map(&connect));
    }
}

/// Go reads the first of these files that exists.
const FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Go reads all files in these folders.
const FOLDERS: [&str; 2] = ["/etc/ssl/certs", "/etc/pki/tls/certs"];
/// Size limit of a file of certificates. Larger files are skipped.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Limit of the files read from a folder. A usual one has some hundreds of roots, and a link to each.
const MAX_FILES: usize = 4096;

/// The authorities that a client trusts.
#[derive(Debug, Clone)]
pub struct ClientRoots {
    roots: Arc<RootCertStore>,
    /// The file named by `SSL_CERT_FILE`, if it could not be read.
    pub unreadable: Option<PathBuf>,
}

impl ClientRoots {
    /// Finds the roots of a client with this `SSL_CERT_FILE` and `SSL_CERT_DIR`. Each replaces only the default paths
    /// of its kind. Blocks.
    pub fn of_clients(file: Option<&str>, folders: Option<&str>) -> Self {
        let non_empty = |value: Option<&str>| value.filter(|value| !value.is_empty()).map(str::to_owned);
        let (file, folders) = (non_empty(file), non_empty(folders));
        let files = file.clone().map_or_else(|| FILES.map(PathBuf::from).to_vec(), |file| vec![PathBuf::from(file)]);
        let folders = folders.map_or_else(
            || FOLDERS.map(PathBuf::from).to_vec(),
            |folders| folders.split(':').map(PathBuf::from).collect(),
        );
        let bundle = files.iter().find_map(|file| read_certificates(file));
        let unreadable = file.filter(|_| bundle.is_none()).map(PathBuf::from);
        let mut certificates: Vec<CertificateDer<'static>> = bundle.unwrap_or_default();
        for folder in folders {
            let entries = std::fs::read_dir(folder).into_iter().flatten().take(MAX_FILES).flatten();
            certificates.extend(entries.filter_map(|entry| read_certificates(&entry.path())).flatten());
        }
        certificates.sort_unstable_by(|a, b| a.as_ref().cmp(b.as_ref()));
        certificates.dedup();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates);
        Self { roots: Arc::new(roots), unreadable }
    }
}

/// Reads the certificates in a file and skips everything else, as Go does. `None` if the file cannot be read.
#[expect(clippy::disallowed_methods, reason = "the trusted roots are read where they are used")]
fn read_certificates(file: &Path) -> Option<Vec<CertificateDer<'static>>> {
    let is_file = std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_FILE_BYTES);
    let pem = if is_file { std::fs::read(file).ok()? } else { return None };
    Some(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok).collect())
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn addresses(last_octets: &[u8]) -> Vec<SocketAddr> {
        last_octets.iter().map(|octet| SocketAddr::from(([127, 0, 0, *octet], 1))).collect()
    }

    /// 127.0.0.1 connects, 127.0.0.2 refuses, every other address never reacts.
    async fn connect(address: SocketAddr) -> io::Result<SocketAddr> {
        match address.to_string().as_str() {
            "127.0.0.1:1" => Ok(address),
            "127.0.0.2:1" => Err(io::ErrorKind::ConnectionRefused.into()),
            _ => pending().await,
        }
    }

    #[tokio::test]
    async fn a_silent_address_does_not_delay_the_others() {
        for order in [&[1][..], &[3, 1], &[2, 1], &[3, 2, 1], &[3, 3, 3, 1], &[1, 3]] {
            let connected = first_connection(&addresses(order), connect).await.map_err(|error| error.kind());
            assert_eq!(connected, Ok(addresses(&[1])[0]), "{order:?}");
        }
        let refused = first_connection(&addresses(&[2, 2]), connect).await.map_err(|error| error.kind());
        assert_eq!(refused, Err(io::ErrorKind::ConnectionRefused));
        assert!(first_connection(&[], connect).await.is_err());
    }
}
