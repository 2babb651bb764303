//! The admin listener: probes for everyone, all other routes by the access rules.

mod bodies;
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
use crate::jobs::{
    JobId, JobStartError, JobSubscription, Jobs, PlanError, Recurring, RecurringState, RunningJob, WarmUp,
};
use crate::mirror::{AcceptOutcome, Mirror, PinChange, PinResult, PurgeResult, RequestContext};
use crate::protocol::admin::command::{self, OperationReport, OperationTarget, PinRequest, no_job};
use crate::protocol::admin::order::{self, OrderRequest};
use crate::protocol::admin::{
    Access, AdminAccessKind, AdminRefusal, AdminRoute, Credentials, JOBS, Operation, SinceStart, StatusReport,
};
use crate::protocol::route::Api;
use crate::protocol::{RequestFailure, client_config};
use crate::store::StoreError;

const SEC_FETCH_SITE: header::HeaderName = header::HeaderName::from_static("sec-fetch-site");
/// The `Server` header of the admin listener, by which the commands recognise larder.
pub(super) const SERVER: header::HeaderValue = header::HeaderValue::from_static("larder");

/// A response; an `Err` is one with an error status.
type Answer<T = Response<Body>> = Result<T, Box<Response<Body>>>;

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
        let mut response = self.answer(request).await.unwrap_or_else(|refused| *refused);
        response.headers_mut().insert(header::SERVER, SERVER);
        response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
        response.headers_mut().insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
        response
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        let Some(route) = AdminRoute::parse(request.uri().path(), request.uri().query()) else {
            self.requests.record_refusal(requests::Refusal::AdminPath);
            let reason = format!("there is nothing at {}", request.uri().path());
            return Err(errors(StatusCode::NOT_FOUND, vec![reason]));
        };
        let credentials = match host_of(&request) {
            Ok(host) => credentials_of(&request, host),
            Err(bad_host) => {
                self.requests.record_refusal(requests::Refusal::Malformed);
                bodies::discard(request);
                return Err(refused(vec![bad_host.to_string()]));
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
            return Err(errors(status, vec![refusal.to_string()]));
        }
        if !allows(route.access_kind(), request.method()) {
            self.requests.record_refusal(requests::Refusal::Method);
            return Err(wrong_method(route.access_kind()));
        }
        let method = request.method().clone();
        match route {
            AdminRoute::Health => Ok(response::plain_text(StatusCode::OK, "ok")),
            AdminRoute::Ready => Ok(match self.mirror.library.ready().await {
                Ok(()) => response::plain_text(StatusCode::OK, "ready"),
                Err(not_ready) => response::plain_text(StatusCode::SERVICE_UNAVAILABLE, not_ready.describe()),
            }),
            // The metrics and the status read the disk, which may block.
            AdminRoute::Metrics => self.on_blocking_thread(Self::metrics).await,
            AdminRoute::Status => self.on_blocking_thread(|admin| Ok(json(&admin.status()))).await,
            AdminRoute::ClientConfig(client_route) => {
                match client_config::text(&self.mirror, &self.base, client_route).await {
                    Ok(text) => Ok(response::plain_text(StatusCode::OK, text)),
                    Err(error) => Err(internal(&error.to_string())),
                }
            }
            AdminRoute::Missing if method == Method::DELETE => {
                self.mirror.library.forget_missing().await.map_err(|error| self.failure(error))?;
                Ok(json(&OrderRequest::default()))
            }
            AdminRoute::Missing => {
                let missing = self.mirror.library.missing().await.map_err(|error| self.failure(error))?;
                Ok(json(&order::order_of(&missing, &self.mirror.runtime.sealed_platforms())))
            }
            AdminRoute::Jobs => Ok(json(&serde_json::json!({ "jobs": self.jobs.all() }))),
            AdminRoute::Job(id) if method == Method::DELETE => Ok(json(&self.job(id)?.cancel().await)),
            AdminRoute::Job(id) => Ok(json(&self.job(id)?.report())),
            AdminRoute::JobEvents(id) => Ok(bodies::job_events(JobSubscription::of(self.job(id)?), &method)),
            AdminRoute::Inventory => self.inventory().await,
            AdminRoute::Command(command) => self.command(command, request).await,
            AdminRoute::Verify => self.verify(request).await,
            AdminRoute::Plan => self.plan(request).await,
            AdminRoute::Warm => self.warm(request).await,
            AdminRoute::Export => self.export(request).await,
            AdminRoute::Import => self.import(request).await,
            AdminRoute::Bundle => self.bundle(request).await,
            AdminRoute::ApplyBundle => self.apply(request).await,
        }
    }

    async fn warm(&self, request: Request<Incoming>) -> Answer {
        let ReceivedOrder { order, pin } = bodies::read_order(request, &self.mirror, &self.default_host).await?;
        let warm_up = WarmUp::of_order(order, pin).map_err(refused)?;
        match self.jobs.start(warm_up).await {
            Ok((id, job)) => {
                let mut response = response::json(StatusCode::ACCEPTED, &job);
                // A job id is hex digits, so the location is always a valid header value.
                if let Ok(location) = header::HeaderValue::try_from(format!("{}/{id}", JOBS)) {
                    response.headers_mut().insert(header::LOCATION, location);
                }
                Ok(response)
            }
            Err(not_started) => {
                let status = match not_started {
                    JobStartError::TooMany | JobStartError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
                    JobStartError::Random => StatusCode::INTERNAL_SERVER_ERROR,
                };
                Err(errors(status, vec![not_started.to_string()]))
            }
        }
    }

    async fn plan(&self, request: Request<Incoming>) -> Answer {
        let ReceivedOrder { order, .. } = bodies::read_order(request, &self.mirror, &self.default_host).await?;
        let plan = self.jobs.plan(&order).await.map_err(|error| {
            let status = match error {
                PlanError::Busy => StatusCode::SERVICE_UNAVAILABLE,
                PlanError::TooMany(_) => StatusCode::BAD_REQUEST,
            };
            errors(status, vec![error.to_string()])
        })?;
        Ok(json(&plan))
    }

    async fn command(&self, operation: Operation, request: Request<Incoming>) -> Answer {
        let body = bodies::read_json(request, bodies::MAX_COMMAND_BYTES).await?;
        let pin = if operation == Operation::Pin { PinChange::Set } else { PinChange::Lift };
        let target = match operation {
            Operation::Refresh | Operation::Purge | Operation::Accept => OperationTarget::read(&body),
            Operation::Pin | Operation::Unpin => match PinRequest::read(&body) {
                Ok(PinRequest::Job(id)) => {
                    let items = self.job(id)?.to_pin(pin).await;
                    return Ok(json(&command::pin_job(&self.mirror, items, pin).await));
                }
                Ok(PinRequest::Addresses(target)) => Ok(target),
                Err(reason) => Err(reason),
            },
        };
        let addresses = target.map_err(|reason| refused(vec![reason]))?;
        let addresses = addresses.addresses(&self.default_host).map_err(refused)?;
        let operations = &self.mirror.operations;
        match operation {
            Operation::Refresh => {
                let mut report = OperationReport::default();
                for selector in &addresses {
                    let refreshed = operations.refresh(selector, &self.call()).await;
                    report.add_result(refreshed, |refreshed| refreshed.news.succeeded());
                }
                Ok(json(&report))
            }
            Operation::Purge => {
                let mut report = OperationReport::default();
                for selector in &addresses {
                    let purged = operations.purge(selector, &self.call()).await;
                    report.add_result(purged.map(|purged| vec![purged]), PurgeResult::is_all);
                }
                Ok(json(&report))
            }
            Operation::Accept => {
                let mut report = OperationReport::default();
                for selector in &addresses {
                    let accepted = match operations.accept(selector, &self.call()).await {
                        Ok(accepted) if accepted.is_empty() => Err(format!(
                            "{selector}: no version of this address is stored; name a version to accept one that is not stored"
                        )),
                        accepted => accepted.map_err(|error| error.to_string()),
                    };
                    report.add_result(accepted, |accepted| !matches!(accepted.ruling, AcceptOutcome::Failed { .. }));
                }
                Ok(json(&report))
            }
            Operation::Pin | Operation::Unpin => {
                let mut report = OperationReport::default();
                for selector in &addresses {
                    report.add_result(operations.pin(selector, pin).await, PinResult::succeeded);
                }
                Ok(json(&report))
            }
        }
    }

    /// Re-hashes everything stored, for as long as the client reads the answer.
    async fn verify(&self, request: Request<Incoming>) -> Answer {
        let body = bodies::read_json(request, bodies::MAX_COMMAND_BYTES).await?;
        command::parse_empty_body(&body).map_err(|reason| refused(vec![reason]))?;
        let steps = self.mirror.operations.verify(&self.call()).map_err(|error| self.failure(error))?;
        Ok(response::of_type(Body::stream(bodies::lines(steps), None), NDJSON))
    }

    /// Responds to a failure. Only a command's own user sees paths of this machine.
    fn failure(&self, error: impl Into<Error>) -> Box<Response<Body>> {
        let failure = RequestFailure::from(error.into());
        match self.process {
            AdminProcess::Larder { .. } => Box::new(response::failure(&failure, Api::Other)),
            AdminProcess::Command { .. } => {
                errors(response::failure_status(&failure, Api::Other), vec![failure.to_string()])
            }
        }
    }

    /// The job with this ID; 404 where there is none.
    fn job(&self, id: JobId) -> Answer<Arc<RunningJob>> {
        self.jobs.find(id).ok_or_else(|| errors(StatusCode::NOT_FOUND, vec![no_job(id)]))
    }

    fn call(&self) -> RequestContext {
        self.mirror.runtime.job_context(self.clock.now())
    }

    /// Makes the response with `work`, on a blocking thread.
    async fn on_blocking_thread(self: &Arc<Self>, work: impl FnOnce(&Self) -> Answer + Send + 'static) -> Answer {
        let admin = Arc::clone(self);
        let answer = self.mirror.runtime.spawn_blocking(move || work(&admin)).await;
        answer.unwrap_or_else(|_| Err(internal("answering ended unexpectedly")))
    }

    fn metrics(&self) -> Answer {
        let mut text = String::new();
        if prometheus_client::encoding::text::encode(&mut text, &self.registry).is_err() {
            return Err(internal("the metrics cannot be written"));
        }
        let mut response = response::plain_text(StatusCode::OK, text);
        let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
        Ok(response)
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

fn json(value: &impl Serialize) -> Response<Body> {
    response::json(StatusCode::OK, value)
}

fn errors(status: StatusCode, errors: Vec<String>) -> Box<Response<Body>> {
    Box::new(response::errors(status, errors))
}

/// The response to an invalid request.
fn refused(problems: Vec<String>) -> Box<Response<Body>> {
    errors(StatusCode::BAD_REQUEST, problems)
}

fn internal(reason: &str) -> Box<Response<Body>> {
    errors(StatusCode::INTERNAL_SERVER_ERROR, vec![reason.to_owned()])
}

/// Returns true for a method of a route.
fn allows(access_kind: AdminAccessKind, method: &Method) -> bool {
    match access_kind {
        AdminAccessKind::Reads => matches!(*method, Method::GET | Method::HEAD),
        AdminAccessKind::Changes => *method == Method::POST,
        AdminAccessKind::ReadsAndEnds => matches!(*method, Method::GET | Method::HEAD | Method::DELETE),
    }
}

fn wrong_method(access_kind: AdminAccessKind) -> Box<Response<Body>> {
    let (message, allowed) = match access_kind {
        AdminAccessKind::Reads => ("only GET and HEAD are answered here", "GET, HEAD"),
        AdminAccessKind::Changes => ("only POST is answered here", "POST"),
        AdminAccessKind::ReadsAndEnds => ("only GET, HEAD and DELETE are answered here", "GET, HEAD, DELETE"),
    };
    let mut response = errors(StatusCode::METHOD_NOT_ALLOWED, vec![message.into()]);
    response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static(allowed));
    response
}

fn credentials_of<'a>(request: &'a Request<Incoming>, host: Option<&'a str>) -> Credentials<'a> {
    let header_text =
        |name| request.headers().get(name).map(|value: &header::HeaderValue| value.to_str().unwrap_or("?"));
    let site = request.headers().get(&SEC_FETCH_SITE).map(|site| site.to_str().unwrap_or("?"));
    Credentials { origin: header_text(header::ORIGIN), site, host, authorization: header_text(header::AUTHORIZATION) }
}
