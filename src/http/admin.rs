//! The admin listener's side: probes for all, the rest for who may ask.

use std::sync::Arc;

use http::header;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use prometheus_client::registry::Registry;

use super::body::Body;
use super::listener::Peer;
use super::{Requests, admin_body, host_of, respond};
use crate::address::Hostname;
use crate::clock::Clock;
use crate::mirror::{Call, Mirror};
use crate::protocol::admin::command::{self, Told};
use crate::protocol::admin::{Access, AdminRoute, Command, Credentials, Nature, Refusal, Report, SinceStart};
use crate::protocol::client_config;

const NDJSON: header::HeaderValue = header::HeaderValue::from_static("application/x-ndjson");

/// What the admin listener answers from.
#[derive(Debug)]
pub struct Admin {
    /// The mirror.
    pub mirror: Arc<Mirror>,
    /// Who may ask.
    pub access: Access,
    /// Everything that is counted.
    pub registry: Arc<Registry>,
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
            let code = if refusal == Refusal::NoToken { StatusCode::UNAUTHORIZED } else { StatusCode::FORBIDDEN };
            return respond::errors(code, vec![refusal.to_string()]);
        }
        match (route.nature(), request.method()) {
            (Nature::Reads, &Method::GET | &Method::HEAD) => self.tell(route).await,
            (Nature::Changes, &Method::POST) => self.change(route, request).await,
            (nature, _) => wrong_method(nature),
        }
    }

    async fn tell(&self, route: AdminRoute) -> Response<Body> {
        match route {
            AdminRoute::Health => respond::word(StatusCode::OK, "ok"),
            AdminRoute::Ready if self.mirror.is_ready() => respond::word(StatusCode::OK, "ready"),
            AdminRoute::Ready => respond::word(StatusCode::SERVICE_UNAVAILABLE, "the store is not there"),
            AdminRoute::Metrics => self.metrics(),
            AdminRoute::Status => respond::json(StatusCode::OK, &self.status()),
            AdminRoute::ClientConfig(way) => match client_config::text(&self.mirror, &self.base, way).await {
                Ok(text) => respond::word(StatusCode::OK, text),
                Err(error) => respond::errors(StatusCode::INTERNAL_SERVER_ERROR, vec![error.to_string()]),
            },
            AdminRoute::Command(_) | AdminRoute::Verify => wrong_method(route.nature()),
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

    async fn command(&self, command: Command, body: &[u8]) -> Response<Body> {
        let told = Told::read(body).map_err(|why| vec![why]);
        let addresses = match told.and_then(|told| told.addresses(&self.default_host)) {
            Ok(addresses) => addresses,
            Err(problems) => return respond::errors(StatusCode::BAD_REQUEST, problems),
        };
        let call = || self.call();
        match command {
            Command::Refresh => respond::json(StatusCode::OK, &command::refresh(&self.mirror, &addresses, call).await),
            Command::Purge => respond::json(StatusCode::OK, &command::purge(&self.mirror, &addresses, call).await),
            Command::Accept => respond::json(StatusCode::OK, &command::accept(&self.mirror, &addresses, call).await),
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
        let since_start = SinceStart {
            requests: self.requests.by_outcome(),
            sent_bytes: self.requests.sent_bytes(),
            upstream_bytes: self.mirror.upstream_bytes(),
            fills_under_way: self.mirror.fills_under_way(),
        };
        Report { mirror: self.mirror.status(), since_start: Some(since_start) }
    }
}

fn wrong_method(nature: Nature) -> Response<Body> {
    let (said, allowed) = match nature {
        Nature::Reads => ("only GET and HEAD are answered here", "GET, HEAD"),
        Nature::Changes => ("only POST is answered here", "POST"),
    };
    let mut response = respond::errors(StatusCode::METHOD_NOT_ALLOWED, vec![said.into()]);
    response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static(allowed));
    response
}

fn shown(request: &Request<Incoming>) -> Credentials<'_> {
    let text = |name| request.headers().get(name).map(|value: &header::HeaderValue| value.to_str().unwrap_or("?"));
    Credentials { origin: text(header::ORIGIN), host: host_of(request), authorization: text(header::AUTHORIZATION) }
}
