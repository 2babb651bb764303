//! Identifies the server at a URL that should be the base of a larder service. The request uses a name that no provider
//! can have. Larder refuses the name (400) where it serves the service, returns 404 where it does not, and asks no
//! upstream in either case.

use http::StatusCode;
use serde::Deserialize;
use url::Url;

use super::WITHIN;
use crate::address::Hostname;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::http::client_roots::ClientRoots;
use crate::http::clients::NOT_AMONG_CLIENTS;
use crate::http::probe_client::{ProbeAnswer, ProbeError, probe};
use crate::http::response;
use crate::protocol::route::PROBE;
use crate::upstream::retry_after::server_time;

/// Result of a request to a server.
#[derive(Debug)]
pub(super) struct Identified {
    pub(super) kind: ServerKind,
    /// End of its certificate's validity, if that is soon.
    pub(super) ends_soon: Option<Timestamp>,
    /// The time in its Date header.
    pub(super) date: Option<Timestamp>,
}

/// The larder service expected at a URL.
#[derive(Debug, Clone, Copy)]
pub(super) enum ProbedService {
    /// The registry service `providers.v1`.
    Providers,
    /// The registry service `modules.v1`.
    Modules,
    Mirror,
}

impl ProbedService {
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
    /// A larder that serves the service there.
    Larder,
    /// A larder that does not serve it there.
    LarderWithoutService,
    /// A larder that does not mirror this host.
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
    trust: &ClientRoots,
) -> Result<Identified, ProbeError> {
    let mut url = base.clone();
    url.set_path(&format!("{}{}", base.path(), service.probe_path(host)));
    let visited = probe(&url, trust, WITHIN).await?;
    Ok(Identified { kind: classify(&visited, host), ends_soon: visited.ends_soon, date: server_time(&visited.headers) })
}

fn classify(visited: &ProbeAnswer, host: &Hostname) -> ServerKind {
    let says = visited.headers.get_all("cache-status").into_iter().filter_map(|value| value.to_str().ok());
    let mut caches = says.flat_map(|value| value.split(',')).map(|member| member.split(';').next().unwrap_or_default());
    if !caches.any(|name| name.trim().trim_matches('"') == response::NAME) {
        return ServerKind::OtherServer(visited.status);
    }
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<String>,
    }
    let errors = serde_json::from_slice::<Errors>(&visited.body).map(|body| body.errors).unwrap_or_default();
    match visited.status {
        _ if errors.iter().any(|errors| errors.contains(NOT_AMONG_CLIENTS)) => {
            ServerKind::LarderRefusing(errors.join("; "))
        }
        _ if errors.contains(&Error::UnknownHost(host.clone()).to_string()) => {
            ServerKind::LarderWithoutHost(host.clone())
        }
        StatusCode::NOT_FOUND => ServerKind::LarderWithoutService,
        _ => ServerKind::Larder,
    }
}
