//! The admin listener's side: probes for all, the rest for who may ask.

use std::sync::Arc;

use bytes::Bytes;
use http::header;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;

use super::admin_body::ToWarm;
use super::body::Body;
use super::listener::Peer;
use super::{Requests, admin_body, host_of, requests, respond};
use crate::address::Hostname;
use crate::clock::{Clock, Timestamp};
use crate::jobs::{JobId, Jobs, NotStarted, WarmUp};
use crate::mirror::{Call, Mirror, Pin};
use crate::protocol::admin::command::{self, Told};
use crate::protocol::admin::warm::{self, ToldToPin, ToldToWarm};
use crate::protocol::admin::{Access, AdminRoute, Command, Credentials, Nature, Refusal, Report, SinceStart};
use crate::protocol::client_config;

const NDJSON: header::HeaderValue = header::HeaderValue::from_static("application/x-ndjson");

/// What the admin listener answers from.
#[derive(Debug)]
pub struct Admin {
    /// The mirror.
    pub mirror: Arc<Mirror>,
    /// The jobs.
    pub jobs: Arc<Jobs>,
    /// Who may ask.
    pub access: Access,
    /// Everything that is counted.
    pub registry: Arc<Registry>,
    /// When it began.
    pub started: Timestamp,
    /// Requests, for the status.
    pub requests: Requests,
    /// How clients reach the main listener.
    pub base: String,
    /// The clock it goes by.
    pub clock: Clock,
    /// The registry of an address that names none.
    pub default_host: Hostname,
}

impl Admin {
    /// Answers a request.
    pub async fn handle(self: Arc<Self>, request: Request<Incoming>, _peer: Peer) -> Response<Body> {
        let Some(route) = AdminRoute::parse(request.uri().path(), request.uri().query()) else {
            self.requests.refused(requests::Refusal::AdminPath);
            return respond::errors(
                StatusCode::NOT_FOUND,
                vec![format!("there is nothing at {}", request.uri().path())],
            );
        };
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let admitted = match route {
            AdminRoute::Health | AdminRoute::Ready => Ok(()),
            _ if reads => self.access.may_read(shown(&request)),
            _ => self.access.may_change(shown(&request)),
        };
        if let Err(refusal) = admitted {
            self.requests.refused(match refusal {
                Refusal::FromAPage => requests::Refusal::AdminPage,
                Refusal::ForeignHost => requests::Refusal::AdminHost,
                Refusal::NoToken => requests::Refusal::AdminToken,
            });
            let code = if refusal == Refusal::NoToken { StatusCode::UNAUTHORIZED } else { StatusCode::FORBIDDEN };
            return respond::errors(code, vec![refusal.to_string()]);
        }
        match (route.nature(), request.method()) {
            (Nature::Reads | Nature::ReadsAndEnds, &Method::GET | &Method::HEAD) => self.tell(route).await,
            (Nature::Changes, &Method::POST) if route == AdminRoute::Warm => self.warm(request).await,
            (Nature::Changes, &Method::POST) => self.change(route, request).await,
            (Nature::ReadsAndEnds, &Method::DELETE) => self.end(route),
            (nature, _) => {
                self.requests.refused(requests::Refusal::Method);
                wrong_method(nature)
            }
        }
    }

    async fn tell(self: &Arc<Self>, route: AdminRoute) -> Response<Body> {
        match route {
            AdminRoute::Health => respond::word(StatusCode::OK, "ok"),
            AdminRoute::Ready => match self.mirror.ready().await {
                Ok(()) => respond::word(StatusCode::OK, "ready"),
                Err(not_ready) => respond::word(StatusCode::SERVICE_UNAVAILABLE, not_ready.words()),
            },
            // Both ask the disk.
            AdminRoute::Metrics => self.looking(Self::metrics).await,
            AdminRoute::Status => self.looking(|admin| respond::json(StatusCode::OK, &admin.status())).await,
            AdminRoute::ClientConfig(way) => match client_config::text(&self.mirror, &self.base, way).await {
                Ok(text) => respond::word(StatusCode::OK, text),
                Err(error) => respond::errors(StatusCode::INTERNAL_SERVER_ERROR, vec![error.to_string()]),
            },
            AdminRoute::Jobs => respond::json(StatusCode::OK, &serde_json::json!({ "jobs": self.jobs.all() })),
            AdminRoute::Job(id) => match self.jobs.report(id) {
                Some(job) => respond::json(StatusCode::OK, &job),
                None => respond::errors(StatusCode::NOT_FOUND, vec![warm::no_job(id)]),
            },
            AdminRoute::Command(_) | AdminRoute::Verify | AdminRoute::Warm => wrong_method(route.nature()),
        }
    }

    async fn change(&self, route: AdminRoute, request: Request<Incoming>) -> Response<Body> {
        let body = match admin_body::json_of(request).await {
            Ok(body) => body,
            Err(not_taken) => return respond::errors(not_taken.status, vec![not_taken.why]),
        };
        match route {
            AdminRoute::Command(command) => self.command(command, &body).await,
            AdminRoute::Verify => self.verify(&body),
            _ => wrong_method(route.nature()),
        }
    }

    fn end(&self, route: AdminRoute) -> Response<Body> {
        let AdminRoute::Job(id) = route else { return wrong_method(route.nature()) };
        match self.jobs.cancel(id) {
            Some(job) => respond::json(StatusCode::OK, &job),
            None => respond::errors(StatusCode::NOT_FOUND, vec![warm::no_job(id)]),
        }
    }

    async fn warm(&self, request: Request<Incoming>) -> Response<Body> {
        let query = request.uri().query().map(str::to_owned);
        let warm_up = match admin_body::to_warm_of(request).await {
            Ok(ToWarm::Json(_)) if query.is_some() => Err(vec!["the body says it all: there is no query".to_owned()]),
            Ok(ToWarm::Json(body)) => {
                ToldToWarm::read(&body).map_err(|why| vec![why]).and_then(|told| told.warm_up(&self.default_host))
            }
            Ok(ToWarm::LockFile(file)) => read_lock_file(file, query).await,
            Err(not_taken) => return respond::errors(not_taken.status, vec![not_taken.why]),
        };
        match warm_up.map(|warm_up| self.jobs.start(warm_up)) {
            Ok(Ok((id, job))) => {
                let mut response = respond::json(StatusCode::ACCEPTED, &job);
                // Hex digits are always a header's value.
                if let Ok(place) = header::HeaderValue::try_from(format!("{}/{id}", warm::JOBS)) {
                    response.headers_mut().insert(header::LOCATION, place);
                }
                response
            }
            Ok(Err(not_started)) => {
                let code = match not_started {
                    NotStarted::TooMany | NotStarted::Stopping => StatusCode::SERVICE_UNAVAILABLE,
                    NotStarted::Random => StatusCode::INTERNAL_SERVER_ERROR,
                };
                respond::errors(code, vec![not_started.to_string()])
            }
            Err(problems) => respond::errors(StatusCode::BAD_REQUEST, problems),
        }
    }

    /// What a job is about is pinned whole.
    async fn pin_job(&self, id: JobId, pin: Pin) -> Response<Body> {
        match self.jobs.to_pin(id, pin) {
            Some(items) => respond::json(StatusCode::OK, &command::pin_job(&self.mirror, items, pin).await),
            None => respond::errors(StatusCode::NOT_FOUND, vec![warm::no_job(id)]),
        }
    }

    async fn command(&self, command: Command, body: &[u8]) -> Response<Body> {
        let told = match command {
            Command::Refresh | Command::Purge | Command::Accept => Told::read(body),
            Command::Pin | Command::Unpin => match ToldToPin::read(body) {
                Ok(ToldToPin::Job(id)) => {
                    let pin = if command == Command::Pin { Pin::Set } else { Pin::Lift };
                    return self.pin_job(id, pin).await;
                }
                Ok(ToldToPin::Addresses(told)) => Ok(told),
                Err(why) => Err(why),
            },
        };
        let addresses = match told.map_err(|why| vec![why]).and_then(|told| told.addresses(&self.default_host)) {
            Ok(addresses) => addresses,
            Err(problems) => return respond::errors(StatusCode::BAD_REQUEST, problems),
        };
        let call = || self.call();
        match command {
            Command::Refresh => respond::json(StatusCode::OK, &command::refresh(&self.mirror, &addresses, call).await),
            Command::Purge => respond::json(StatusCode::OK, &command::purge(&self.mirror, &addresses, call).await),
            Command::Accept => respond::json(StatusCode::OK, &command::accept(&self.mirror, &addresses, call).await),
            Command::Pin => respond::json(StatusCode::OK, &command::pin(&self.mirror, &addresses, call).await),
            Command::Unpin => respond::json(StatusCode::OK, &command::unpin(&self.mirror, &addresses, call).await),
        }
    }

    /// Goes on as long as somebody reads the answer.
    fn verify(&self, body: &[u8]) -> Response<Body> {
        if let Err(why) = command::read_nothing(body) {
            return respond::errors(StatusCode::BAD_REQUEST, vec![why]);
        }
        match self.mirror.verify(&self.call()) {
            Ok(steps) => {
                let mut response = Response::new(Body::stream(admin_body::lines(steps), None));
                response.headers_mut().insert(header::CONTENT_TYPE, NDJSON);
                response
            }
            Err(error) => respond::failure(&error.into()),
        }
    }

    fn call(&self) -> Call {
        self.mirror.job(self.clock.now())
    }

    /// Looks at what may block.
    async fn looking(self: &Arc<Self>, look: impl FnOnce(&Self) -> Response<Body> + Send + 'static) -> Response<Body> {
        let admin = Arc::clone(self);
        match tokio::task::spawn_blocking(move || look(&admin)).await {
            Ok(response) => response,
            Err(_) => respond::errors(StatusCode::INTERNAL_SERVER_ERROR, vec!["it ended unexpectedly".into()]),
        }
    }

    fn metrics(&self) -> Response<Body> {
        let mut text = String::new();
        if prometheus_client::encoding::text::encode(&mut text, &self.registry).is_err() {
            return respond::errors(StatusCode::INTERNAL_SERVER_ERROR, vec!["the metrics cannot be written".into()]);
        }
        let mut response = respond::word(StatusCode::OK, text);
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
        response
    }

    fn status(&self) -> Report {
        let now = self.clock.now();
        let (sent_bytes, saved_bytes) = self.requests.sent_bytes();
        let since_start = SinceStart {
            started: self.started,
            seconds: now.since(self.started).as_secs(),
            requests: self.requests.by_outcome(),
            refused: self.requests.by_refusal(),
            waiting_requests: self.mirror.waiting_requests(),
            sent_bytes,
            saved_bytes,
            upstream_bytes: self.mirror.upstream_bytes(),
            fills_under_way: self.mirror.fills_under_way(),
            upstreams: self.mirror.upstream_states(now),
        };
        Report { mirror: self.mirror.status(), since_start: Some(since_start) }
    }
}

/// Reads a lock file where that holds nobody up, one at a time: to read one that was made for it takes a while.
async fn read_lock_file(file: Bytes, query: Option<String>) -> Result<WarmUp, Vec<String>> {
    static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);
    let turn = ONE_AT_A_TIME.acquire().await;
    let reading = tokio::task::spawn_blocking(move || {
        // It is over when the reading is, and not when nobody waits for that any more.
        let _turn = turn;
        warm::of_lock_file(&file, query.as_deref())
    });
    reading.await.unwrap_or_else(|_| Err(vec!["reading the lock file ended unexpectedly".to_owned()]))
}

fn wrong_method(nature: Nature) -> Response<Body> {
    let (said, allowed) = match nature {
        Nature::Reads => ("only GET and HEAD are answered here", "GET, HEAD"),
        Nature::Changes => ("only POST is answered here", "POST"),
        Nature::ReadsAndEnds => ("only GET, HEAD and DELETE are answered here", "GET, HEAD, DELETE"),
    };
    let mut response = respond::errors(StatusCode::METHOD_NOT_ALLOWED, vec![said.into()]);
    response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static(allowed));
    response
}

fn shown(request: &Request<Incoming>) -> Credentials<'_> {
    let text = |name| request.headers().get(name).map(|value: &header::HeaderValue| value.to_str().unwrap_or("?"));
    Credentials { origin: text(header::ORIGIN), host: host_of(request), authorization: text(header::AUTHORIZATION) }
}
