//! The HTTP server. `listener` accepts connections, `response` turns replies and failures into HTTP. Answers come from
//! `protocol`.

mod admin;
mod audit;

pub mod admin_client;
pub mod admin_tls;
mod body;
pub mod client_tokens;
pub mod clients;
pub mod connection_slots;
pub mod connection_threads;
mod failures;
mod idle;
pub mod listener;
pub mod local_socket;
mod page;
mod per_core;
pub mod probe_client;
mod refusals;
mod request_log;
mod requests;
pub mod response;
mod runs;
pub mod tls;
pub mod watchdog;

use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use tokio::time::Instant;

pub use self::admin::{Admin, AdminCaller, AdminProcess, RunAccess, ServingLarder};
pub use self::audit::AuditLine;
pub use self::body::Body;
pub use self::request_log::REQUEST_LOG;
pub use self::requests::{RequestMetrics, RequestTraffic};
pub use self::runs::Runs;

use self::audit::{Decision, Who};
use self::client_tokens::{ClientTokens, NotAuthenticated};
use self::clients::{Clients, RequestClient, origin, origin_of_browser};
use self::listener::Peer;
use self::request_log::RequestLog;
use self::requests::{Content, Refusal, RequestOutcome};
use self::runs::RunContent;
use crate::audit::AuditTrail;
use crate::cdn_loop::CdnLoop;
use crate::clock::Clock;
use crate::error::Error;
use crate::protocol::admin::RefusalKind;
use crate::protocol::rights::{Rights, without_url_token};
use crate::protocol::route::{Api, Route, RouteError, RouteKind, is_probe};
use crate::protocol::run::RunId;
use crate::protocol::{self, Protocols, RequestFailure, VariesBy};
use crate::store::{Standing, StoreError};

/// The challenge of a request without the token of a client (RFC 6750).
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"larder\"");

/// RFC 8586.
const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");

/// The main listener: access, routes, metrics and the access log.
#[derive(Debug)]
pub struct MainListener {
    protocols: Arc<Protocols>,
    requests: RequestMetrics,
    /// The clients that are answered.
    pub clients: Clients,
    /// Those that authenticate.
    tokens: Arc<ClientTokens>,
    runs: Runs,
    clock: Clock,
    audit: Option<Arc<AuditTrail<AuditLine>>>,
}

impl MainListener {
    /// Creates the main listener's handler for one configuration.
    pub fn new(
        protocols: Arc<Protocols>,
        requests: RequestMetrics,
        clients: Clients,
        tokens: Arc<ClientTokens>,
        runs: Runs,
        clock: Clock,
        audit: Option<Arc<AuditTrail<AuditLine>>>,
    ) -> Arc<Self> {
        Arc::new(Self { protocols, requests, clients, tokens, runs, clock, audit })
    }

    /// Waits until the audit trail is written, for a few seconds at most.
    pub async fn flush_audit(&self) {
        if let Some(audit) = &self.audit {
            audit.flush().await;
        }
    }

    /// Answers a request, and writes its line of the access log when the body has been sent.
    #[expect(clippy::manual_async_fn, reason = "the arguments of an `async fn` take their memory twice")]
    pub fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Arc<Peer>,
    ) -> impl Future<Output = Response<Body>> + Send {
        async move {
            let start = Instant::now();
            let request_number = self.requests.next_number();
            let is_head = request.method() == Method::HEAD;
            let client = self.clients.client(peer.address.ip(), request.headers());
            let mut log = Box::new(RequestLog {
                requests: self.requests.clone(),
                request_number,
                method: request.method().clone(),
                path: request.uri().path().into(),
                client: client.address,
                start,
                route: RouteKind::NoRoute,
                run: None,
                is_quiet: false,
                is_beyond_limit: false,
                answer: None,
                sent: (0, false),
                now: self.clock.now(),
                decision: Decision::default(),
                audit: self.audit.clone(),
            });
            let (response, outcome) = self.answer(&request, &peer, &client, &mut log).await;
            log.answer = Some((response.status(), outcome));
            let response = if is_head { without_body(response) } else { response };
            response.map(|body| body.logged_in(log))
        }
    }

    async fn answer(
        &self,
        request: &Request<Incoming>,
        peer: &Peer,
        client: &RequestClient,
        log: &mut RequestLog,
    ) -> (Response<Body>, RequestOutcome) {
        let (request_number, start) = (log.request_number, log.start);
        let host = match host_of(request) {
            Ok(host) => host,
            Err(bad_host) => return self.refuse(Refusal::Malformed, StatusCode::BAD_REQUEST, bad_host.to_string()),
        };
        let cdn_loop = request.headers().get_all(CDN_LOOP).into_iter();
        let (run, path) = RunId::split(request.uri().path());
        let mut parsed_request = protocol::Request {
            path,
            run,
            view: None,
            url_token: None,
            rights: Rights::All,
            query: request.uri().query(),
            host,
            cdn_loop: CdnLoop::received(cdn_loop.filter_map(|value| value.to_str().ok())),
            client: client.address.into(),
            origin: None,
            now: log.now,
            takes_unknown_length: request.version() > Version::HTTP_10,
        };
        let (target, api) = self.protocols.target(&mut parsed_request);
        // The page is for those who ask for one by name.
        let target = target.and_then(|target| match &*target.route {
            Route::Home if !page::accepts_html(request.headers()) => Err(RouteError::nothing_at(path)),
            _ => Ok(target),
        });
        let route = target.as_ref().ok().map(|target| &*target.route);
        log.decision.view = parsed_request.view;
        if log.audit.is_some() {
            log.decision.route = target.as_ref().ok().map(|target| Arc::clone(&target.route));
            log.decision.note_url(parsed_request.url_token);
        }
        // The client is checked before the route, or an outsider could learn which registries are mirrored. Probes are
        // open to all.
        if !matches!(route, Some(Route::Health | Route::Ready))
            && let Err(refusal) = self.clients.admit(client, run)
        {
            log.note_stranger(Some(RefusalKind::Network), &refusal.to_string());
            return self.refuse(Refusal::Client, response::refusal_status(api), refusal.to_string());
        }
        match self.rights(route, &parsed_request, request.headers(), client, peer).await {
            Ok(who) => {
                parsed_request.rights = who.rights();
                log.decision.who = who;
            }
            Err(refusal) => return self.refuse_unauthenticated(&refusal, api, client, log),
        }
        let is_open = matches!(route, Some(Route::Health | Route::Ready | Route::Home));
        log.run = run.filter(|_| !is_open).map(|run| self.runs.begin(run));
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let reason = "only GET and HEAD are answered here".to_owned();
            log.decision.note_refusal(None, &reason);
            let (mut response, end) = self.refuse(Refusal::Method, StatusCode::METHOD_NOT_ALLOWED, reason);
            response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
            return (response, end);
        }
        let target = match target {
            Ok(target) => target,
            Err(no_route) => {
                let failure = RequestFailure::from(no_route);
                log.decision.note_failure(&failure);
                tracing::debug!(request = request_number, error = %response::log_text(&failure), "no route");
                let end = if is_probe(parsed_request.path) {
                    RequestOutcome::NoOutcome
                } else {
                    self.record_failure(&failure, api)
                };
                return (response::failure(&failure, api), end);
            }
        };
        let route = &*target.route;
        log.route = route.kind();
        if route.has_links() {
            let is_trusted_proxy = self.clients.is_trusted_proxy(peer.address.ip());
            let is_upstream = |host: &str| self.protocols.is_upstream(host);
            let (tls, headers) = (peer.tls.as_deref(), request.headers());
            parsed_request.origin = origin(is_trusted_proxy, tls, headers, host, is_upstream);
            if *route == Route::Home && parsed_request.origin.is_none() {
                parsed_request.origin = origin_of_browser(tls, headers, host, is_upstream);
            }
        }
        let standing = self.protocols.standing();
        let answer = match standing {
            Standing::TooFar(silence) if !is_open => Err(RequestFailure::from(too_far_behind(silence))),
            _ => self.protocols.answer(&target, &parsed_request).await,
        };
        match answer {
            Ok(reply) => {
                log.decision.note_reply(&reply);
                let (outcome, age) = (reply.outcome.map_or(RequestOutcome::NoOutcome, RequestOutcome::from), reply.age);
                let content = if age.is_some() { Content::Document } else { Content::Archive };
                let mut response = response::reply(reply, route, request, &peer.memory);
                let may_know_origin = peer.tls.is_some() || !self.clients.trusted_proxies.is_empty();
                let varies_by = match &parsed_request.rights {
                    Rights::All => self.protocols.varies_by(route, &parsed_request, may_know_origin),
                    Rights::Of(_) => VariesBy::Client,
                };
                response::set_vary(response.headers_mut(), varies_by);
                if standing != Standing::Current {
                    response::note_behind(response.headers_mut());
                }
                if let Some(age) = age {
                    self.requests.record_document_age(route.kind(), age);
                }
                if outcome == RequestOutcome::Hit {
                    self.requests.record_hit(content, start.elapsed());
                }
                if let Some(run) = &mut log.run {
                    run.answered_with(RunContent::of(route));
                }
                // A path with a query is one of many pages.
                if parsed_request.query.is_none() {
                    self.requests.failures().note_answered(|| without_url_token(path));
                }
                (response, outcome)
            }
            Err(failure) => self.failed(&failure, api, &parsed_request, client, log),
        }
    }

    /// Answers a request that failed.
    fn failed(
        &self,
        failure: &RequestFailure,
        api: Api,
        request: &protocol::Request<'_>,
        client: &RequestClient,
        log: &mut RequestLog,
    ) -> (Response<Body>, RequestOutcome) {
        let (status, path) = (response::failure_status(failure, api), without_url_token(request.path));
        log.decision.note_failure(failure);
        if !log.is_quiet {
            log_failure(log.request_number, failure);
            if request.query.is_none() {
                self.requests.failures().record(&path, failure, status, client.address, request.now);
            }
        }
        if let Some(run) = &mut log.run {
            run.failed_with(&path, failure);
        }
        (response::failure(failure, api), self.record_failure(failure, api))
    }

    /// The client of a request, with its rights. The probes and the page for browsers are open to all.
    ///
    /// # Errors
    /// It is not that of a client.
    async fn rights(
        &self,
        route: Option<&Route>,
        request: &protocol::Request<'_>,
        headers: &HeaderMap,
        client: &RequestClient,
        peer: &Peer,
    ) -> Result<Who, NotAuthenticated> {
        let is_open = self.tokens.is_empty() || matches!(route, Some(Route::Health | Route::Ready | Route::Home));
        let is_local = self.clients.is_on_this_machine(peer.address.ip(), headers);
        // A larder of a run answers its runs alone. The id of a run is in the URLs of its client, which may have logged them.
        let is_trusted_run =
            request.run.is_some_and(|run| self.clients.runs.is_some() || (is_local && self.runs.is_trusted(run)));
        if is_open || is_trusted_run {
            return Ok(if is_trusted_run { Who::OwnRun } else { Who::Anybody });
        }
        let of_url = route.and_then(|route| self.protocols.rights_of_url(route, request));
        let bad_url = match of_url {
            Some(Ok(class)) => return Ok(Who::OfClass(class)),
            Some(Err(bad_url)) => Some(NotAuthenticated::from(bad_url)),
            None => None,
        };
        // Boxed, as where no client authenticates every request would reserve its memory.
        match Box::pin(self.tokens.identity_of(headers, client, request.now)).await {
            Ok(identity)
                if peer.tls.is_none() && !is_local && !self.clients.came_over_tls(peer.address.ip(), headers) =>
            {
                Err(NotAuthenticated::PlainText(identity))
            }
            Ok(identity) => Ok(Who::Client(identity)),
            // The URL is what such a client has.
            Err(NotAuthenticated::NoToken) => Err(bad_url.unwrap_or(NotAuthenticated::NoToken)),
            Err(refusal) => Err(refusal),
        }
    }

    /// Answers a request that is not that of a client. Clients print a text of their own for 401, which is about credentials.
    fn refuse_unauthenticated(
        &self,
        refusal: &NotAuthenticated,
        api: Api,
        client: &RequestClient,
        log: &mut RequestLog,
    ) -> (Response<Body>, RequestOutcome) {
        if let NotAuthenticated::NoKeys(_, cause) = refusal {
            // larder's own failure, which the log tells where it is noted.
            log.note_stranger(None, &refusal.to_string());
            return (response::errors(cause.status(), vec![refusal.to_string()]), RequestOutcome::Error);
        }
        let of_network = match refusal {
            NotAuthenticated::WrongNetwork(identity, _) | NotAuthenticated::PlainText(identity) => Some(identity),
            _ => None,
        };
        let kind = if of_network.is_some() { RefusalKind::Network } else { RefusalKind::Token };
        log.note_stranger(Some(kind), &refusal.to_string());
        if let Some(identity) = of_network {
            log.decision.who = Who::Client(identity.clone());
            return self.refuse(Refusal::Client, response::refusal_status(api), refusal.to_string());
        }
        if matches!(refusal, NotAuthenticated::WrongToken | NotAuthenticated::Jwt(..) | NotAuthenticated::Claims(..)) {
            log.is_quiet = self.requests.wrong_tokens().exceeds(client.address);
        }
        // Clients print a sentence of their own for a 401: the reason is for the operator.
        if matches!(refusal, NotAuthenticated::Jwt(..) | NotAuthenticated::Claims(..)) && !log.is_quiet {
            tracing::warn!(client = %client.address, "{refusal}");
        }
        let (mut response, outcome) = self.refuse(Refusal::Token, StatusCode::UNAUTHORIZED, refusal.to_string());
        response.headers_mut().insert(header::WWW_AUTHENTICATE, CHALLENGE);
        (response, outcome)
    }

    fn refuse(&self, refusal: Refusal, status: StatusCode, reason: String) -> (Response<Body>, RequestOutcome) {
        self.requests.record_refusal(refusal);
        (response::errors(status, vec![reason]), RequestOutcome::Refused)
    }

    /// Returns the outcome of a failed request. Counts the refusal if one of larder's rules refused the request.
    fn record_failure(&self, failure: &RequestFailure, api: Api) -> RequestOutcome {
        if let Some(refusal) = Refusal::of(failure) {
            self.requests.record_refusal(refusal);
        }
        match response::failure_status(failure, api) {
            // Whatever status its protocol shows.
            _ if matches!(failure, RequestFailure::Mirror(Error::Refused { .. })) => RequestOutcome::Refused,
            StatusCode::NOT_FOUND => RequestOutcome::Absent,
            StatusCode::BAD_REQUEST | StatusCode::MISDIRECTED_REQUEST | StatusCode::LOOP_DETECTED => {
                RequestOutcome::Refused
            }
            _ => RequestOutcome::Error,
        }
    }
}

/// A request that does not name exactly one host: 400, because a proxy in front may have used another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum BadHost {
    /// RFC 9112 3.2.
    #[error("the request has no Host: every request but one of HTTP/1.0 must name one")]
    Missing,
    /// RFC 9112 3.2.
    #[error("the request has more than one Host: it must name exactly one")]
    Several,
}

/// The host that the client addressed: that of a whole URL in the request line, else the Host header.
///
/// # Errors
/// [`BadHost`] if the request names none or two.
fn host_of<B>(request: &Request<B>) -> Result<Option<&str>, BadHost> {
    let mut headers = request.headers().get_all(header::HOST).iter();
    let (header, second_header) = (headers.next(), headers.next());
    if second_header.is_some() {
        return Err(BadHost::Several);
    }
    let header = header.map(|host| host.to_str().ok());
    let authority = request.uri().authority().map(http::uri::Authority::as_str);
    if request.version() == Version::HTTP_11 && header.is_none() {
        return Err(BadHost::Missing);
    }
    Ok(authority.or(header.flatten()))
}

/// The failure of every request while this replica is further behind the others than `serve_behind` allows.
fn too_far_behind(silence: Duration) -> Error {
    let silence = humantime::format_duration(Duration::from_secs(silence.as_secs()));
    StoreError::Unreachable(format!("the database has not answered for {silence}, longer than serve_behind allows"))
        .into()
}

/// HEAD: the headers of the GET with its true length, and no body (retries of clients).
fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    if let Some(length) = http_body::Body::size_hint(&body).exact()
        && !matches!(parts.status, StatusCode::NOT_MODIFIED | StatusCode::NO_CONTENT)
    {
        parts.headers.insert(header::CONTENT_LENGTH, length.into());
    }
    Response::from_parts(parts, Body::empty())
}

/// Logs a failure; "not found" at debug level only.
fn log_failure(request_number: u64, failure: &RequestFailure) {
    match failure {
        RequestFailure::NoRoute(_) | RequestFailure::Mirror(Error::NotFound(_) | Error::UnknownHost(_)) => {
            tracing::debug!(request = request_number, error = %response::log_text(failure), "not found");
        }
        RequestFailure::Mirror(Error::Unverified { .. } | Error::Unaccepted { .. } | Error::Store(_)) => {
            tracing::error!(request = request_number, error = %response::log_text(failure), "could not be answered");
        }
        RequestFailure::Mirror(_) => {
            tracing::warn!(request = request_number, error = %response::log_text(failure), "could not be answered")
        }
    }
}
