//! The server side of the wire: requests in, responses out. Sockets are `listener.rs`, statuses
//! `respond.rs`; what is answered is for `protocol`.

mod admin;
mod admin_body;
pub mod admin_client;
mod body;
pub mod clients;
mod idle;
pub mod listener;
mod range;
pub mod respond;
pub mod tls;
pub mod trust;
pub mod visit;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::{self, HeaderMap};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

pub use self::admin::Admin;
pub use self::body::Body;

use self::clients::Clients;
use self::listener::Peer;
use crate::cdn_loop::CdnLoop;
use crate::clock::Clock;
use crate::error::Error;
use crate::mirror::Outcome;
use crate::protocol::route::Route;
use crate::protocol::{self, Failure, Protocols};

/// Counters of what was answered.
#[derive(Debug, Clone, Default)]
pub struct Requests {
    ended: Family<Ended, Counter>,
    sent_bytes: Counter<u64, AtomicU64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    route: &'static str,
    outcome: &'static str,
}

const ROUTES: [&str; 7] = ["discovery", "versions", "download", "mirror-index", "mirror-version", "archive", "none"];
const OUTCOMES: [&str; 10] =
    ["hit", "miss", "passed", "revalidated", "stale", "gone", "absent", "refused", "error", "none"];

impl Requests {
    /// Registers the counters under their names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("larder_requests", "Requests answered, by route and outcome", self.ended.clone());
        registry.register("larder_sent_bytes", "Body bytes sent to clients", self.sent_bytes.clone());
    }

    /// Body bytes sent since the start.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.get()
    }

    /// Requests since the start, by outcome; those that never happened are left out.
    pub fn by_outcome(&self) -> std::collections::BTreeMap<String, u64> {
        // Only a look: asking for a label set that never happened must not make it.
        let ended = |route, outcome| self.ended.get(&Ended { route, outcome }).map_or(0, |count| count.get());
        let of = |outcome| ROUTES.iter().map(|route| ended(*route, outcome)).sum();
        OUTCOMES.iter().map(|outcome| ((*outcome).to_owned(), of(*outcome))).filter(|(_, count)| *count > 0).collect()
    }
}

/// The main listener's side of the protocols.
#[derive(Debug)]
pub struct Main {
    protocols: Arc<Protocols>,
    requests: Requests,
    clients: Clients,
    clock: Clock,
    number: AtomicU64,
}

impl Main {
    /// Joins the parts.
    pub fn new(protocols: Arc<Protocols>, requests: Requests, clients: Clients, clock: Clock) -> Arc<Self> {
        Arc::new(Self { protocols, requests, clients, clock, number: AtomicU64::new(1) })
    }

    /// The clock it goes by.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Answers a request, and writes one line about it when its body has gone out.
    pub async fn handle(self: Arc<Self>, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        let began = Instant::now();
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let head = request.method() == Method::HEAD;
        let (response, route, outcome) = self.answer(&request, number, peer).await;
        let status = response.status();
        let line = Line {
            number,
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            peer,
            status,
            route,
            outcome,
            began,
        };
        let response = if head { without_body(response) } else { response };
        let requests = self.requests.clone();
        response.map(|body| {
            body.when_done(move |bytes, broke_off| {
                let outcome = if broke_off { "error" } else { outcome };
                let line = Line { outcome, ..line };
                requests.ended.get_or_create(&Ended { route, outcome }).inc();
                requests.sent_bytes.inc_by(bytes);
                line.write(bytes);
            })
        })
    }

    async fn answer(
        &self,
        request: &Request<Incoming>,
        number: u64,
        peer: Peer,
    ) -> (Response<Body>, &'static str, &'static str) {
        let asked = protocol::Request {
            path: request.uri().path(),
            host: host_of(request),
            via: via(request.headers()),
            now: self.clock.now(),
            takes_unknown_length: request.version() > Version::HTTP_10,
        };
        let route = self.protocols.route(&asked);
        // Before anything else is said, or an outsider could learn what is mirrored; probes are for all.
        if !matches!(route, Ok(Route::Health | Route::Ready))
            && let Err(refusal) = self.clients.admit(peer.address.ip(), request.headers())
        {
            return (respond::errors(StatusCode::FORBIDDEN, vec![refusal.to_string()]), "none", "refused");
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response =
                respond::errors(StatusCode::METHOD_NOT_ALLOWED, vec!["only GET and HEAD are answered here".into()]);
            response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
            return (response, "none", "refused");
        }
        let route = match route {
            Ok(route) => route,
            Err(no_route) => {
                let failure = Failure::from(no_route);
                tracing::debug!(request = number, error = %failure, "no route");
                return (respond::failure(&failure), "none", outcome_of(&failure));
            }
        };
        match self.protocols.answer(&route, &asked).await {
            Ok(reply) => {
                let outcome = reply.outcome.map_or("none", word_for);
                (respond::reply(reply, &route, request), route.kind(), outcome)
            }
            Err(failure) => {
                tell(number, &failure);
                (respond::failure(&failure), route.kind(), outcome_of(&failure))
            }
        }
    }
}

/// The name the client believes to talk to: HTTP/2 sends it as the authority.
fn host_of(request: &Request<Incoming>) -> Option<&str> {
    let header = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    request.uri().authority().map(http::uri::Authority::as_str).or(header)
}

fn via(headers: &HeaderMap) -> CdnLoop {
    CdnLoop::received(headers.get_all("cdn-loop").into_iter().filter_map(|value| value.to_str().ok()))
}

/// HEAD: the headers of the GET with its true length, and no body (PROTOCOL 2.5).
fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    if let Some(length) = http_body::Body::size_hint(&body).exact()
        && parts.status != StatusCode::NOT_MODIFIED
    {
        parts.headers.insert(header::CONTENT_LENGTH, length.into());
    }
    Response::from_parts(parts, Body::empty())
}

fn word_for(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Hit => "hit",
        Outcome::Miss => "miss",
        Outcome::Passed => "passed",
        Outcome::Revalidated => "revalidated",
        Outcome::Stale => "stale",
        Outcome::Gone => "gone",
    }
}

fn outcome_of(failure: &Failure) -> &'static str {
    match respond::failure_status(failure) {
        StatusCode::NOT_FOUND => "absent",
        StatusCode::BAD_REQUEST | StatusCode::LOOP_DETECTED => "refused",
        _ => "error",
    }
}

/// A failure is told where it is answered; that something does not exist is no news.
fn tell(number: u64, failure: &Failure) {
    match failure {
        Failure::NoRoute(_) | Failure::Mirror(Error::NotFound(_) | Error::UnknownHost(_)) => {
            tracing::debug!(request = number, error = %failure, "not found");
        }
        Failure::Mirror(Error::Unverified { .. } | Error::Store(_)) => {
            tracing::error!(request = number, error = %failure, "could not be answered");
        }
        Failure::Mirror(_) => tracing::warn!(request = number, error = %failure, "could not be answered"),
    }
}

struct Line {
    number: u64,
    method: Method,
    path: String,
    peer: Peer,
    status: StatusCode,
    route: &'static str,
    outcome: &'static str,
    began: Instant,
}

impl Line {
    fn write(self, bytes: u64) {
        let Self { number, method, path, peer, status, route, outcome, began } = self;
        let took: Duration = began.elapsed();
        tracing::info!(
            target: "larder::request",
            request = number,
            client = %peer.address.ip(),
            status = status.as_u16(),
            route,
            outcome,
            bytes,
            ms = took.as_millis() as u64,
            "{method} {path}",
        );
    }
}
