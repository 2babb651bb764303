//! Identifies the server at a URL that should be the base of a larder service. The request uses a name that no provider
//! can have. Larder refuses the name (400) where it serves the service, returns 404 where it does not, and asks no
//! upstream in either case.

use http::StatusCode;
use serde::Deserialize;
use url::Url;

use super::PROBE_TIMEOUT;
use crate::address::Hostname;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::http::client_roots::ClientRoots;
use crate::http::clients::NOT_AMONG_CLIENTS;
use crate::http::probe_client::{ProbeAnswer, ProbeError, probe};
use crate::http::response;
use crate::protocol::route::PROBE;
use crate::upstream::response_headers::server_time;

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
    /// Another program, with this status.
    OtherServer(StatusCode),
}

/// Requests a URL below the base of a service, which ends in a slash, and identifies the server.
pub(super) async fn identify_server(
    base: &Url,
    service: ProbedService,
    host: &Hostname,
    client_roots: &ClientRoots,
) -> Result<Identified, ProbeError> {
    let mut url = base.clone();
    url.set_path(&format!("{}{}", base.path(), service.probe_path(host)));
    let answer = probe(&url, client_roots, PROBE_TIMEOUT).await?;
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
        _ if errors.iter().any(|error| error.contains(NOT_AMONG_CLIENTS)) => {
            ServerKind::LarderRefusing(errors.join("; "))
        }
        _ if errors.contains(&Error::UnknownHost(host.clone()).to_string()) => {
            ServerKind::LarderWithoutHost(host.clone())
        }
        StatusCode::NOT_FOUND => ServerKind::LarderWithoutService,
        _ => ServerKind::Larder,
    }
}
