//! The admin listener: probes for everyone, all other routes by the access rules.

mod bodies;
mod events;
mod transfers;

use std::sync::Arc;

use http::header;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use prometheus_client::registry::Registry;
use serde::Serialize;

use self::bodies::ReceivedOrder;
use super::body::Body;
use super::{RequestMetrics, host_of, requests, response};
use crate::address::Hostname;
use crate::bundle::BundleKeys;
use crate::clock::{Clock, Timestamp};
use crate::error::Error;
use crate::jobs::{self, JobId, JobStartError, Jobs, PlanError, Recurring, RecurringState, WarmUp};
use crate::mirror::{Mirror, PinChange, RequestContext};
use crate::protocol::admin::command::{self, OperationTarget};
use crate::protocol::admin::order::OrderRequest;
use crate::protocol::admin::warm::{self, PinRequest};
use crate::protocol::admin::{
    Access, AdminAccessKind, AdminRefusal, AdminRoute, Credentials, Operation, SinceStart, StatusReport, missing,
};
use crate::protocol::route::Api;
use crate::protocol::{RequestFailure, client_config};
use crate::store::StoreError;

const SEC_FETCH_SITE: header::HeaderName = header::HeaderName::from_static("sec-fetch-site");
/// The `Server` header of the admin listener, by which the commands recognise larder.
pub(super) const SERVER: header::HeaderValue = header::HeaderValue::from_static("larder");
const NDJSON: &str = "application/x-ndjson";

/// State of the admin listener.
#[derive(Debug)]
pub struct Admin {
    /// The mirror.
    pub mirror: Arc<Mirror>,
    /// The jobs.
    pub jobs: Arc<Jobs>,
    /// The process that this service is part of.
    pub process: AdminProcess,
    /// All metrics.
    pub registry: Arc<Registry>,
    /// The request counters, for the status.
    pub requests: RequestMetrics,
    /// The URL at which clients reach the main listener, for client configurations.
    pub base: String,
    /// The clock.
    pub clock: Clock,
    /// The registry for addresses that name no host.
    pub default_host: Hostname,
    /// The keys for signing and trusting bundles.
    pub bundles: BundleKeys,
}

/// The process that an admin service is part of.
#[derive(Debug)]
pub enum AdminProcess {
    /// A serving larder.
    Larder {
        /// The access rules of the admin listener.
        access: Access,
        /// The recurring warm-ups.
        recurring: Arc<Recurring>,
        /// The start time.
        started: Timestamp,
    },
    /// One command without a larder. Only the command itself reaches the service.
    Command {
        /// The recorded recurring warm-ups.
        warm_ups: Vec<RecurringState>,
    },
}

impl Admin {
    /// Stops the jobs and closes the store, for a command.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.jobs.stop().await;
        self.mirror.library.close().await
    }

    /// Answers a request. Browsers must not sniff the answer, and caches must not store it.
    pub async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let mut response = self.answer(request).await;
        response.headers_mut().insert(header::SERVER, SERVER);
        response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
        response.headers_mut().insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
        response
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let Some(route) = AdminRoute::parse(request.uri().path(), request.uri().query()) else {
            self.requests.record_refusal(requests::Refusal::AdminPath);
            return response::errors(
                StatusCode::NOT_FOUND,
                vec![format!("there is nothing at {}", request.uri().path())],
            );
        };
        let credentials = match host_of(&request) {
            Ok(host) => credentials_of(&request, host),
            Err(bad_host) => {
                self.requests.record_refusal(requests::Refusal::Malformed);
                bodies::discard(request);
                return response::errors(StatusCode::BAD_REQUEST, vec![bad_host.to_string()]);
            }
        };
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let admitted = match (&self.process, route) {
            (AdminProcess::Command { .. }, _) | (_, AdminRoute::Health | AdminRoute::Ready) => Ok(()),
            (AdminProcess::Larder { access, .. }, _) if is_read => access.may_read(credentials),
            (AdminProcess::Larder { access, .. }, _) => access.may_change(credentials),
        };
        if let Err(refusal) = admitted {
            self.requests.record_refusal(match refusal {
                AdminRefusal::WebPage => requests::Refusal::AdminPage,
                AdminRefusal::ForeignHost => requests::Refusal::AdminHost,
                AdminRefusal::NoToken => requests::Refusal::AdminToken,
            });
            bodies::discard(request);
            let status =
                if refusal == AdminRefusal::NoToken { StatusCode::UNAUTHORIZED } else { StatusCode::FORBIDDEN };
            return response::errors(status, vec![refusal.to_string()]);
        }
        match (route.access_kind(), request.method()) {
            (AdminAccessKind::Reads | AdminAccessKind::ReadsAndEnds, &Method::GET | &Method::HEAD) => {
                self.answer_read(route, request.method()).await
            }
            (AdminAccessKind::Changes, &Method::POST) if route == AdminRoute::Warm => self.warm(request).await,
            (AdminAccessKind::Changes, &Method::POST) if route == AdminRoute::Plan => self.plan(request).await,
            (AdminAccessKind::Changes, &Method::POST) if route == AdminRoute::Export => self.export(request).await,
            (AdminAccessKind::Changes, &Method::POST) if route == AdminRoute::Import => self.import(request),
            (AdminAccessKind::Changes, &Method::POST) if route == AdminRoute::Bundle => self.bundle(request).await,
            (AdminAccessKind::Changes, &Method::POST) if route == AdminRoute::ApplyBundle => self.apply(request).await,
            (AdminAccessKind::Changes, &Method::POST) => self.answer_post(route, request).await,
            (AdminAccessKind::ReadsAndEnds, &Method::DELETE) if route == AdminRoute::Missing => {
                self.forget_missing().await
            }
            (AdminAccessKind::ReadsAndEnds, &Method::DELETE) => self.answer_delete(route).await,
            (access_kind, _) => {
                self.requests.record_refusal(requests::Refusal::Method);
                wrong_method(access_kind)
            }
        }
    }

    async fn answer_read(self: &Arc<Self>, route: AdminRoute, method: &Method) -> Response<Body> {
        match route {
            AdminRoute::Health => response::plain_text(StatusCode::OK, "ok"),
            AdminRoute::Ready => match self.mirror.library.ready().await {
                Ok(()) => response::plain_text(StatusCode::OK, "ready"),
                Err(not_ready) => response::plain_text(StatusCode::SERVICE_UNAVAILABLE, not_ready.describe()),
            },
            // The metrics and the status read the disk, which may block.
            AdminRoute::Metrics => self.on_blocking_thread(Self::metrics).await,
            AdminRoute::Status => {
                self.on_blocking_thread(|admin| response::json(StatusCode::OK, &admin.status())).await
            }
            AdminRoute::ClientConfig(client_route) => {
                match client_config::text(&self.mirror, &self.base, client_route).await {
                    Ok(text) => response::plain_text(StatusCode::OK, text),
                    Err(error) => response::errors(StatusCode::INTERNAL_SERVER_ERROR, vec![error.to_string()]),
                }
            }
            AdminRoute::Missing => match self.mirror.library.missing().await {
                Ok(missing) => {
                    let order = missing::order_of(&missing, &self.mirror.runtime.sealed_platforms());
                    response::json(StatusCode::OK, &order)
                }
                Err(error) => self.failure(error),
            },
            AdminRoute::Jobs => response::json(StatusCode::OK, &serde_json::json!({ "jobs": self.jobs.all() })),
            AdminRoute::Job(id) => of_job(id, self.jobs.report(id)),
            AdminRoute::JobEvents(id) => match self.jobs.follow(id) {
                Some(subscription) => events::answer(subscription, method),
                None => of_job(id, None::<()>),
            },
            AdminRoute::Inventory => self.inventory().await,
            AdminRoute::Command(_)
            | AdminRoute::Verify
            | AdminRoute::Plan
            | AdminRoute::Warm
            | AdminRoute::Export
            | AdminRoute::Import
            | AdminRoute::Bundle
            | AdminRoute::ApplyBundle => wrong_method(route.access_kind()),
        }
    }

    async fn answer_post(&self, route: AdminRoute, request: Request<Incoming>) -> Response<Body> {
        let body = match bodies::read_json(request).await {
            Ok(body) => body,
            Err(refused) => return refused.into(),
        };
        match route {
            AdminRoute::Command(command) => self.command(command, &body).await,
            AdminRoute::Verify => self.verify(&body),
            _ => wrong_method(route.access_kind()),
        }
    }

    async fn forget_missing(&self) -> Response<Body> {
        match self.mirror.library.forget_missing().await {
            Ok(()) => response::json(StatusCode::OK, &OrderRequest::default()),
            Err(error) => self.failure(error),
        }
    }

    async fn answer_delete(&self, route: AdminRoute) -> Response<Body> {
        let AdminRoute::Job(id) = route else { return wrong_method(route.access_kind()) };
        of_job(id, self.jobs.cancel(id).await)
    }

    async fn warm(&self, request: Request<Incoming>) -> Response<Body> {
        let warm_up = match bodies::read_order(request, &self.mirror, &self.default_host).await {
            Ok(ReceivedOrder { order, pin }) => WarmUp::of_order(order, pin),
            Err(refused) => return refused,
        };
        let warm_up = match warm_up {
            Ok(warm_up) => warm_up,
            Err(problems) => return response::errors(StatusCode::BAD_REQUEST, problems),
        };
        match self.jobs.start(warm_up).await {
            Ok((id, job)) => {
                let mut response = response::json(StatusCode::ACCEPTED, &job);
                // A job id is hex digits, so the location is always a valid header value.
                if let Ok(location) = header::HeaderValue::try_from(format!("{}/{id}", warm::JOBS)) {
                    response.headers_mut().insert(header::LOCATION, location);
                }
                response
            }
            Err(not_started) => {
                let status = match not_started {
                    JobStartError::TooMany | JobStartError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
                    JobStartError::Random => StatusCode::INTERNAL_SERVER_ERROR,
                };
                response::errors(status, vec![not_started.to_string()])
            }
        }
    }

    async fn plan(&self, request: Request<Incoming>) -> Response<Body> {
        match bodies::read_order(request, &self.mirror, &self.default_host).await {
            Ok(ReceivedOrder { order, .. }) => match jobs::plan(&self.mirror, &self.clock, &order).await {
                Ok(plan) => response::json(StatusCode::OK, &plan),
                Err(busy @ PlanError::Busy) => {
                    response::errors(StatusCode::SERVICE_UNAVAILABLE, vec![busy.to_string()])
                }
                Err(too_many @ PlanError::TooMany(_)) => {
                    response::errors(StatusCode::BAD_REQUEST, vec![too_many.to_string()])
                }
            },
            Err(refused) => refused,
        }
    }

    /// Pins or unpins all packages of a job.
    async fn pin_job(&self, id: JobId, pin: PinChange) -> Response<Body> {
        let report = match self.jobs.to_pin(id, pin).await {
            Some(items) => Some(command::pin_job(&self.mirror, items, pin).await),
            None => None,
        };
        of_job(id, report)
    }

    async fn command(&self, command: Operation, body: &[u8]) -> Response<Body> {
        let request = match command {
            Operation::Refresh | Operation::Purge | Operation::Accept => OperationTarget::read(body),
            Operation::Pin | Operation::Unpin => match PinRequest::read(body) {
                Ok(PinRequest::Job(id)) => {
                    let pin = if command == Operation::Pin { PinChange::Set } else { PinChange::Lift };
                    return self.pin_job(id, pin).await;
                }
                Ok(PinRequest::Addresses(request)) => Ok(request),
                Err(reason) => Err(reason),
            },
        };
        let addresses =
            match request.map_err(|reason| vec![reason]).and_then(|request| request.addresses(&self.default_host)) {
                Ok(addresses) => addresses,
                Err(problems) => return response::errors(StatusCode::BAD_REQUEST, problems),
            };
        let call = || self.call();
        match command {
            Operation::Refresh => {
                response::json(StatusCode::OK, &command::refresh(&self.mirror, &addresses, call).await)
            }
            Operation::Purge => response::json(StatusCode::OK, &command::purge(&self.mirror, &addresses, call).await),
            Operation::Accept => response::json(StatusCode::OK, &command::accept(&self.mirror, &addresses, call).await),
            Operation::Pin => response::json(StatusCode::OK, &command::pin(&self.mirror, &addresses, call).await),
            Operation::Unpin => response::json(StatusCode::OK, &command::unpin(&self.mirror, &addresses, call).await),
        }
    }

    /// Re-hashes everything stored, for as long as the client reads the answer.
    fn verify(&self, body: &[u8]) -> Response<Body> {
        if let Err(reason) = command::parse_empty_body(body) {
            return response::errors(StatusCode::BAD_REQUEST, vec![reason]);
        }
        match self.mirror.operations.verify(&self.call()) {
            Ok(steps) => response::of_type(Body::stream(bodies::lines(steps), None), NDJSON),
            Err(error) => self.failure(error),
        }
    }

    /// Responds to a failure. Only a command's own user sees paths of this machine.
    fn failure(&self, error: impl Into<Error>) -> Response<Body> {
        let failure = RequestFailure::from(error.into());
        match self.process {
            AdminProcess::Larder { .. } => response::failure(&failure, Api::Other),
            AdminProcess::Command { .. } => {
                response::errors(response::failure_status(&failure, Api::Other), vec![failure.to_string()])
            }
        }
    }

    fn call(&self) -> RequestContext {
        self.mirror.runtime.job_context(self.clock.now())
    }

    /// Makes the response with `work`, on a blocking thread.
    async fn on_blocking_thread(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Response<Body> + Send + 'static,
    ) -> Response<Body> {
        let admin = Arc::clone(self);
        match self.mirror.runtime.spawn_blocking(move || work(&admin)).await {
            Ok(response) => response,
            Err(_) => response::errors(StatusCode::INTERNAL_SERVER_ERROR, vec!["answering ended unexpectedly".into()]),
        }
    }

    fn metrics(&self) -> Response<Body> {
        let mut text = String::new();
        if prometheus_client::encoding::text::encode(&mut text, &self.registry).is_err() {
            return response::errors(StatusCode::INTERNAL_SERVER_ERROR, vec!["the metrics cannot be written".into()]);
        }
        let mut response = response::plain_text(StatusCode::OK, text);
        let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
        response
    }

    fn status(&self) -> StatusReport {
        let (since_start, warm_ups) = match &self.process {
            AdminProcess::Larder { recurring, started, .. } => (Some(self.since(*started)), recurring.states()),
            AdminProcess::Command { warm_ups } => (None, warm_ups.clone()),
        };
        let (mirror, bundle_keys) = (self.mirror.operations.status(), self.bundles.ids());
        StatusReport { mirror, since_start, warm_ups, bundle_keys }
    }

    fn since(&self, started: Timestamp) -> SinceStart {
        let now = self.clock.now();
        let (sent_bytes, saved_bytes) = self.requests.sent_bytes();
        let runtime = &self.mirror.runtime;
        SinceStart {
            started,
            seconds: now.since(started).as_secs(),
            requests: self.requests.by_outcome(),
            refused: self.requests.by_refusal(),
            waiting_requests: runtime.waiting_requests(),
            sent_bytes,
            saved_bytes,
            upstream_bytes: runtime.upstream_bytes(),
            fills_under_way: runtime.fills_under_way(),
            upstreams: runtime.upstream_states(now),
        }
    }
}

/// The answer about a job; 404 where there is none.
fn of_job(id: JobId, answer: Option<impl Serialize>) -> Response<Body> {
    match answer {
        Some(answer) => response::json(StatusCode::OK, &answer),
        None => response::errors(StatusCode::NOT_FOUND, vec![warm::no_job(id)]),
    }
}

fn wrong_method(access_kind: AdminAccessKind) -> Response<Body> {
    let (message, allowed) = match access_kind {
        AdminAccessKind::Reads => ("only GET and HEAD are answered here", "GET, HEAD"),
        AdminAccessKind::Changes => ("only POST is answered here", "POST"),
        AdminAccessKind::ReadsAndEnds => ("only GET, HEAD and DELETE are answered here", "GET, HEAD, DELETE"),
    };
    let mut response = response::errors(StatusCode::METHOD_NOT_ALLOWED, vec![message.into()]);
    response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static(allowed));
    response
}

fn credentials_of<'a>(request: &'a Request<Incoming>, host: Option<&'a str>) -> Credentials<'a> {
    let header_text =
        |name| request.headers().get(name).map(|value: &header::HeaderValue| value.to_str().unwrap_or("?"));
    let site = request.headers().get(&SEC_FETCH_SITE).map(|site| site.to_str().unwrap_or("?"));
    Credentials { origin: header_text(header::ORIGIN), site, host, authorization: header_text(header::AUTHORIZATION) }
}
