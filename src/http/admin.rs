//! The admin listener's side: probes for all, the rest for who may ask.

use std::sync::Arc;

use http::header;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use prometheus_client::registry::Registry;

use super::body::Body;
use super::listener::Peer;
use super::{Requests, host_of, respond};
use crate::mirror::Mirror;
use crate::protocol::admin::{Access, AdminRoute, Credentials, Refusal, Report, SinceStart};
use crate::protocol::client_config;

/// What the admin listener answers from.
#[derive(Debug)]
pub struct Admin {
    /// The mirror.
    pub mirror: Arc<Mirror>,
    /// Who may ask.
    pub access: Access,
    /// Everything that is counted.
    pub registry: Registry,
    /// Requests, for the status.
    pub requests: Requests,
    /// How clients reach the main listener.
    pub base: String,
}

impl Admin {
    /// Answers a request.
    pub async fn handle(self: Arc<Self>, request: Request<Incoming>, _peer: Peer) -> Response<Body> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return respond::errors(StatusCode::METHOD_NOT_ALLOWED, vec!["only GET and HEAD are answered here".into()]);
        }
        let Some(route) = AdminRoute::parse(request.uri().path(), request.uri().query()) else {
            return respond::errors(
                StatusCode::NOT_FOUND,
                vec![format!("there is nothing at {}", request.uri().path())],
            );
        };
        if !matches!(route, AdminRoute::Health | AdminRoute::Ready)
            && let Err(refusal) = self.access.may_read(shown(&request))
        {
            let code = if refusal == Refusal::NoToken { StatusCode::UNAUTHORIZED } else { StatusCode::FORBIDDEN };
            return respond::errors(code, vec![refusal.to_string()]);
        }
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
        let since_start = SinceStart {
            requests: self.requests.by_outcome(),
            sent_bytes: self.requests.sent_bytes(),
            upstream_bytes: self.mirror.upstream_bytes(),
            fills_under_way: self.mirror.fills_under_way(),
        };
        Report { mirror: self.mirror.status(), since_start: Some(since_start) }
    }
}

fn shown(request: &Request<Incoming>) -> Credentials<'_> {
    let text = |name| request.headers().get(name).map(|value: &header::HeaderValue| value.to_str().unwrap_or("?"));
    Credentials { origin: text(header::ORIGIN), host: host_of(request), authorization: text(header::AUTHORIZATION) }
}
