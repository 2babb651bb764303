//! Identifies the server at a URL that should be the base of a larder service, and checks that clients reach the main
//! listener at its announced URL. A probe uses a name that no provider can have. Larder refuses the name (400) where it
//! serves the service, returns 404 where it does not, and asks no upstream in either case.

use http::StatusCode;
use secrecy::SecretString;
use serde::Deserialize;
use url::Url;

use super::machine::{AnnouncedTimes, RunningLarder};
use super::{Check, PROBE_TIMEOUT};
use crate::address::Hostname;
use crate::app;
use crate::clock::Timestamp;
use crate::config::{Config, is_loopback};
use crate::error::Error;
use crate::http::client_tokens::COUNTS_NOT_FROM;
use crate::http::clients::NOT_AMONG_CLIENTS;
use crate::http::probe_client::ClientRoots;
use crate::http::probe_client::{BadCertificate, ProbeAnswer, ProbeError, probe};
use crate::http::response;
use crate::protocol::route::{PROBE, providers_base};
use crate::upstream::request::server_time;

const LISTENER: &str = "listener";
const CERTIFICATE: &str = "listener.certificate";
const LINKS: &str = "listener.links";

/// Base URL of a larder with this configuration, ending in a slash.
pub(super) fn base(config: &Config) -> Option<Url> {
    Url::parse(&format!("{}/", app::base_url_of(config, config.server.listen))).ok()
}

/// True for a URL of this configuration's main listener, also through another name for loopback.
pub(crate) fn is_own_listener(url: &Url, config: &Config) -> bool {
    let (listening, Some(base)) = (config.server.listen, base(config)) else { return false };
    if url.origin() == base.origin() {
        return url.path().starts_with(base.path());
    }
    let is_reached = url.domain().is_some() || listening.ip().is_loopback() || listening.ip().is_unspecified();
    is_loopback(url) && is_reached && url.port_or_known_default() == Some(listening.port())
}

/// Requests the base URL as a client would.
pub(super) async fn check_listener(
    config: &Config,
    running: &RunningLarder,
    client_roots: &ClientRoots,
    times: &AnnouncedTimes,
) -> Vec<Check> {
    let (true, Some(base), Some(upstream)) = (running.is_up(), base(config), config.upstreams.first()) else {
        return Vec::new();
    };
    let host = &upstream.host;
    let Ok(url) = base.join(providers_base(host).trim_start_matches('/')) else { return Vec::new() };
    let shown = base.as_str().trim_end_matches('/');
    match identify_server(&url, ProbedService::Providers, host, client_roots, None).await {
        Ok(identified) => {
            // The Date header of this machine is not an independent time source.
            times.record(shown, identified.date.filter(|_| config.server.public_url.is_some()));
            checks_of_answer(&identified, &base, shown).into_iter().chain(links(config)).collect()
        }
        Err(error) => checks_of_failure(&error, shown, config),
    }
}

/// The checks of the server that answered.
fn checks_of_answer(identified: &Identified, base: &Url, shown: &str) -> Vec<Check> {
    let listener = match &identified.kind {
        ServerKind::Larder => Check::passed(LISTENER, format!("larder answers at {shown}")),
        ServerKind::LarderNeedsToken(_) => {
            Check::passed(LISTENER, format!("larder answers at {shown}, and asks its clients for a token"))
        }
        ServerKind::LarderWithoutService => {
            Check::fail(LISTENER, format!("larder answers at {shown}, but has no registry below it"))
                .advise("set [server] public_url to exactly the URL that the proxy in front of larder forwards")
        }
        ServerKind::LarderWithoutHost(_) => {
            Check::fail(LISTENER, format!("the larder at {shown} has another configuration"))
                .advise("restart it with this configuration, or point public_url to this larder")
        }
        ServerKind::LarderRefusing(message) => Check::warn(LISTENER, format!("larder answers at {shown}: {message}"))
            .advise("clients on this machine need its address in [server] clients"),
        ServerKind::OtherServer(status) => {
            Check::fail(LISTENER, format!("something else answers at {shown} ({status})"))
                .advise("set [server] public_url to larder's URL, or let the server there forward every path to larder")
        }
    };
    let mut checks = vec![listener];
    if base.scheme() == "https" {
        checks.push(match identified.ends_soon {
            Some(day) => Check::warn(CERTIFICATE, format!("the certificate of {shown} expires soon ({})", day.day()))
                .advise("renew the certificate; larder loads a new one without a restart"),
            None => {
                let finding = format!("the certificate of {shown} is trusted here, and valid for two weeks or more");
                Check::passed(CERTIFICATE, finding)
            }
        });
    }
    checks
}

/// Reports path-absolute URLs in responses, which some tools cannot resolve. With TLS in larder or `public_url`, URLs
/// are absolute.
fn links(config: &Config) -> Option<Check> {
    let server = &config.server;
    if server.public_url.is_some() || server.tls.is_some() {
        return None;
    }
    let proxies = match server.trusted_proxies.is_empty() {
        true => "",
        false => " (except to proxies that send X-Forwarded-Host and X-Forwarded-Proto)",
    };
    Some(Check::passed(
        LINKS,
        format!(
            "URLs in responses have no host{proxies}: Terraform and OpenTofu resolve them; Checkov, Trivy, Renovate and \
             others need [server] public_url"
        ),
    ))
}

/// The checks of a probe that failed.
fn checks_of_failure(error: &ProbeError, shown: &str, config: &Config) -> Vec<Check> {
    let finding = format!("{shown}: {error}");
    match error {
        ProbeError::Certificate(bad) => {
            let ok = Check::passed(LISTENER, format!("a server answers at {shown} over TLS"));
            vec![ok, Check::fail(CERTIFICATE, finding).advise(certificate_advice(bad))]
        }
        _ => vec![Check::fail(LISTENER, finding).advise(match config.server.public_url.is_some() {
            true => "set [server] public_url to the URL that clients use, or make that URL lead to this larder",
            false => "restart larder, so that it loads this configuration",
        })],
    }
}

/// Advice about a certificate that clients reject.
pub(super) fn certificate_advice(bad: &BadCertificate) -> &'static str {
    match bad {
        BadCertificate::Untrusted => {
            "make clients trust its authority: add it to this machine's trust store (update-ca-certificates), or name its \
             PEM file in SSL_CERT_FILE; a missing intermediate certificate in [server] tls looks the same"
        }
        BadCertificate::OtherName(_) => {
            "reach larder by a name in its certificate ([server] public_url, and the clients' configuration), or get a \
             certificate for this name"
        }
        BadCertificate::Expired(_) => {
            "renew the certificate (larder loads a new one without a restart), or set this machine's clock"
        }
        BadCertificate::NotYet(_) => "set this machine's clock, or wait",
        BadCertificate::Other(_) => "get another certificate",
    }
}

/// The server that answered a probe.
#[derive(Debug)]
pub(super) struct Identified {
    pub(super) kind: ServerKind,
    /// The end of the validity of the server's certificate, if that is soon.
    pub(super) ends_soon: Option<Timestamp>,
    /// The time in the Date header of the answer.
    pub(super) date: Option<Timestamp>,
}

/// The larder service expected at a URL.
#[derive(Debug, Clone, Copy)]
pub(super) enum ProbedService {
    /// The registry service `providers.v1`.
    Providers,
    /// The registry service `modules.v1`.
    Modules,
    /// The network mirror.
    Mirror,
}

impl ProbedService {
    /// The path of a probe below the base of the service.
    fn probe_path(self, host: &Hostname) -> String {
        match self {
            Self::Providers => format!("{PROBE}/{PROBE}/versions"),
            Self::Modules => format!("{PROBE}/{PROBE}/{PROBE}/versions"),
            Self::Mirror => format!("{host}/{PROBE}/{PROBE}/index.json"),
        }
    }
}

/// The kind of server that answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ServerKind {
    /// A larder that serves the expected service at this URL.
    Larder,
    /// A larder that does not serve that service at this URL.
    LarderWithoutService,
    /// A larder that does not mirror this registry.
    LarderWithoutHost(Hostname),
    /// A larder that refuses this machine, with its message.
    LarderRefusing(String),
    /// A larder that asks for a token, or does not know the one that it was sent.
    LarderNeedsToken(String),
    /// Another program, with this status.
    OtherServer(StatusCode),
}

/// Requests a URL below the base of a service, which ends in a slash, and identifies the server.
pub(super) async fn identify_server(
    base: &Url,
    service: ProbedService,
    host: &Hostname,
    client_roots: &ClientRoots,
    token: Option<&SecretString>,
) -> Result<Identified, ProbeError> {
    let mut url = base.clone();
    url.set_path(&format!("{}{}", base.path(), service.probe_path(host)));
    let answer = probe(&url, client_roots, PROBE_TIMEOUT, token).await?;
    Ok(Identified { kind: classify(&answer, host), ends_soon: answer.ends_soon, date: server_time(&answer.headers) })
}

fn classify(answer: &ProbeAnswer, host: &Hostname) -> ServerKind {
    let cache_status = answer.headers.get_all("cache-status").into_iter().filter_map(|value| value.to_str().ok());
    let mut caches =
        cache_status.flat_map(|value| value.split(',')).map(|member| member.split(';').next().unwrap_or_default());
    if !caches.any(|name| name.trim().trim_matches('"') == response::NAME) {
        return ServerKind::OtherServer(answer.status);
    }
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<String>,
    }
    let errors = serde_json::from_slice::<Errors>(&answer.body).map(|body| body.errors).unwrap_or_default();
    match answer.status {
        _ if errors.iter().any(|error| error.contains(NOT_AMONG_CLIENTS) || error.contains(COUNTS_NOT_FROM)) => {
            ServerKind::LarderRefusing(errors.join("; "))
        }
        StatusCode::UNAUTHORIZED => ServerKind::LarderNeedsToken(errors.join("; ")),
        _ if errors.contains(&Error::UnknownHost(host.clone()).to_string()) => {
            ServerKind::LarderWithoutHost(host.clone())
        }
        StatusCode::NOT_FOUND => ServerKind::LarderWithoutService,
        _ => ServerKind::Larder,
    }
}
