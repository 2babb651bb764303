//! The admin listener: probes for everyone, all other routes by the access rules.

mod answering;
mod bodies;
mod operations;
mod page;
mod transfers;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderName, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use prometheus_client::registry::Registry;
use serde::Serialize;

use self::bodies::ReceivedOrder;
use super::body::Body;
use super::{RequestMetrics, Runs, host_of, requests, response};
use crate::address::Hostname;
use crate::bundle::BundleKeys;
use crate::clock::{Clock, Timestamp};
use crate::config::StoreNaming;
use crate::jobs::{
    JobId, JobList, JobStartError, JobSubscription, Jobs, PlanError, Recurring, RecurringState, TrafficHistory, WarmUp,
};
use crate::mirror::{HeldPage, Mirror, PinChange, PolicyVerdicts};
use crate::place::Place;
use crate::policy::ApprovalDecision;
use crate::protocol::Protocols;
use crate::protocol::admin::approval::ApprovalRequest;
use crate::protocol::admin::explain::ExplainRequest;
use crate::protocol::admin::list::ListRequest;
use crate::protocol::admin::operation::{self, AcceptRequest, OperationTarget, TargetAddresses};
use crate::protocol::admin::order::{self, OrderRequest};
use crate::protocol::admin::policy::PolicyReport;
use crate::protocol::admin::{
    self, Access, AccessHeaders, AdminRefusal, AdminRoute, INDEX, JOBS, Operation, ProcessKind, SinceStart,
    StatusReport,
};
use crate::protocol::client_config::{ClientConfig, ClientConfigRequest, ClientRoute, hosts_of_credentials};
use crate::protocol::linked_providers::{LinkRequest, linked_providers};
use crate::protocol::run::{RUN_NETWORK, RunId};
use crate::requirements::OrderEntry;
use crate::store::StoreError;

/// The `Server` header of the admin listener, by which the commands recognise larder.
pub(super) const SERVER: HeaderValue = HeaderValue::from_static("larder");
/// The header with the version of the larder that answers: a command of another one may not understand the answer.
pub(super) const LARDER_VERSION: HeaderName = HeaderName::from_static("larder-version");

/// A value, by default a response; or the error response to send instead.
type Answer<T = Response<Body>> = Result<T, Box<Response<Body>>>;

const NDJSON: &str = "application/x-ndjson";

/// The challenge of a refused read: a browser then asks for the token as a password (RFC 7617).
const READ_CHALLENGE: HeaderValue = HeaderValue::from_static(
    "Basic realm=\"larder: any user name, and the admin token as password\", charset=\"UTF-8\"",
);
/// The challenge of a refused change. It is not for browsers, which would send a password by themselves from then on.
const CHANGE_CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"larder\"");

/// State of the admin listener.
#[derive(Debug)]
pub struct Admin {
    /// The mirror.
    pub mirror: Arc<Mirror>,
    /// The protocols of the main listener, for explanations.
    pub protocols: Arc<Protocols>,
    /// The jobs.
    pub jobs: Arc<Jobs>,
    /// The process that this service is part of.
    pub process: AdminProcess,
    /// All metrics.
    pub registry: Arc<Registry>,
    /// The request counters, for the status.
    pub requests: RequestMetrics,
    /// The URL of the main listener for clients, without a final slash: where a service answers them, or would.
    pub base: String,
    /// The runs of this larder; `None` for a service within a command, which has no main listener.
    pub runs: Option<RunAccess>,
    /// The clock.
    pub clock: Clock,
    /// The file of the configuration; `None` for the defaults.
    pub config_file: Option<PathBuf>,
    /// The origin of the path of the store.
    pub store_named_by: StoreNaming,
    /// The registry for addresses that name no host.
    pub default_host: Hostname,
    /// The keys for signing and trusting bundles.
    pub bundles: BundleKeys,
    /// True if clients need a token.
    pub clients_authenticate: bool,
}

/// The counts of runs, and the way of their clients to the main listener.
#[derive(Debug)]
pub struct RunAccess {
    /// The counts.
    pub runs: Runs,
    /// The main listener on this machine, without the prefix of a run; `None` where it ends TLS, because its certificate
    /// names no loopback address: then clients use the same URL as all others, and are not counted.
    pub listener: Option<SocketAddr>,
}

/// The process that an admin service is part of.
#[derive(Debug)]
pub enum AdminProcess {
    /// `larder serve`: every client that larder admits is answered.
    Service(ServingLarder),
    /// `larder run`: its own clients are answered.
    Run(ServingLarder),
    /// One command without a larder. Only the command itself reaches the service.
    Command {
        /// The recorded recurring warm-ups.
        warm_ups: Vec<RecurringState>,
    },
}

/// A larder with listeners.
#[derive(Debug)]
pub struct ServingLarder {
    /// The access rules of the admin listener.
    pub access: Access,
    /// The recurring warm-ups.
    pub recurring: Arc<Recurring>,
    /// The start time.
    pub started: Timestamp,
    /// The traffic of the last day.
    pub traffic: Arc<TrafficHistory>,
}

/// The sender of a request to an admin service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminCaller {
    /// Anybody who reaches the admin listener: the access rules decide.
    Network,
    /// A process of larder's own user, over a Unix socket or in this process: it may do everything.
    OwnUser,
}

impl Admin {
    /// Stops the jobs and closes the store, for a command.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.jobs.stop().await;
        self.mirror.library.close().await
    }

    /// Answers a request. Browsers must not sniff the answer, and caches must not store it.
    pub async fn handle(self: Arc<Self>, request: Request<Incoming>, caller: AdminCaller) -> Response<Body> {
        let mut response = self.answer(request, caller).await.unwrap_or_else(|refused| *refused);
        response.headers_mut().insert(header::SERVER, SERVER);
        response.headers_mut().insert(LARDER_VERSION, HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
        response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>, caller: AdminCaller) -> Answer {
        let Some((route, row)) = AdminRoute::parse(request.uri().path()) else {
            self.requests.record_refusal(requests::Refusal::AdminPath);
            let reason = format!("there is nothing at {}: GET {INDEX} lists the paths", request.uri().path());
            return Err(errors(StatusCode::NOT_FOUND, vec![reason]));
        };
        if let (Some(serving), AdminCaller::Network) = (self.process.serving(), caller)
            && let Err(refusal) = self.check_access(&serving.access, route, &request)
        {
            bodies::discard(request);
            return Err(refusal);
        }
        let is_read = is_read(request.method());
        if !row.allows(request.method().as_str()) {
            self.requests.record_refusal(requests::Refusal::Method);
            return Err(wrong_method(&row.allowed()));
        }
        let method = request.method().clone();
        match route {
            AdminRoute::Health => Ok(response::plain_text(StatusCode::OK, "ok")),
            AdminRoute::Ready => Ok(match self.mirror.library.ready().await {
                Ok(()) => response::plain_text(StatusCode::OK, "ready"),
                Err(not_ready) => response::plain_text(StatusCode::SERVICE_UNAVAILABLE, not_ready.describe()),
            }),
            AdminRoute::Page if is_read => self.on_blocking_thread(|admin| Ok(admin.status_page())).await,
            AdminRoute::HeldPage if is_read => self.held_page(request.uri().query()).await,
            AdminRoute::Page | AdminRoute::HeldPage => self.submit_form(request).await,
            // The metrics and the status read the disk, which may block.
            AdminRoute::Metrics => self.on_blocking_thread(Self::metrics).await,
            AdminRoute::Status => self.on_blocking_thread(|admin| Ok(json(&admin.status()))).await,
            AdminRoute::List => self.list(request.uri().query()).await,
            AdminRoute::Explain => self.explain(request.uri().query()).await,
            AdminRoute::Policy => self.policy(request.uri().query()).await,
            AdminRoute::Held => Ok(json(&self.held(request.uri().query()).await?)),
            AdminRoute::Approval(decision) => self.decide(decision, request).await,
            AdminRoute::Index => Ok(response::of_type(Body::full(admin::index().into()), "application/json")),
            AdminRoute::OpenApi => {
                Ok(response::of_type(Body::full(Bytes::from_static(admin::DESCRIPTION.as_bytes())), "application/json"))
            }
            AdminRoute::ClientConfig => {
                let asked = ClientConfigRequest::parse(request.uri().query()).map_err(refused)?;
                match ClientConfig::of(&self.mirror, &asked.base(&self.base), asked.client_route).await {
                    Ok(config) if self.clients_authenticate => {
                        let registries = self.mirror.runtime.upstream_hosts();
                        let hosts = hosts_of_credentials(&registries, &self.base, asked.client_route);
                        Ok(response::plain_text(StatusCode::OK, config.with_credentials(&hosts).to_string()))
                    }
                    Ok(config) => Ok(response::plain_text(StatusCode::OK, config.to_string())),
                    Err(error) => Err(internal(&error.to_string())),
                }
            }
            AdminRoute::Run(id) => {
                let runs = &self.runs()?.runs;
                if caller == AdminCaller::OwnUser {
                    // A run asks for its report at its end.
                    runs.distrust(id);
                }
                Ok(json(&runs.report(id).await))
            }
            AdminRoute::RunClientConfig(id) => {
                if caller == AdminCaller::OwnUser {
                    self.runs()?.runs.trust(id);
                }
                self.run_client_config(id, request.uri().query()).await
            }
            AdminRoute::RunProviders(_) => self.run_providers(request).await,
            AdminRoute::Missing if method == Method::DELETE => {
                self.mirror.library.forget_missing().await.map_err(|error| self.failure(error))?;
                Ok(json(&OrderRequest::default()))
            }
            AdminRoute::Missing => {
                let missing = self.mirror.library.missing().await.map_err(|error| self.failure(error))?;
                Ok(json(&order::order_of(&missing, &self.mirror.runtime.sealed_platforms())))
            }
            AdminRoute::Jobs => Ok(json(&JobList { jobs: self.jobs.all() })),
            AdminRoute::Job(id) if method == Method::DELETE => Ok(json(&self.job(id)?.cancel().await)),
            AdminRoute::Job(id) => Ok(json(&self.job(id)?.report())),
            AdminRoute::JobEvents(id) => Ok(bodies::job_events(JobSubscription::of(self.job(id)?), &method)),
            AdminRoute::Inventory => self.inventory().await,
            AdminRoute::Operation(operation) => self.run_operation(operation, request).await,
            AdminRoute::Verify => self.verify(request).await,
            AdminRoute::Plan => self.plan(request).await,
            AdminRoute::Lock => self.lock(request).await,
            AdminRoute::Warm => self.warm(request).await,
            AdminRoute::Export => self.export(request).await,
            AdminRoute::Import => self.import(request).await,
            AdminRoute::Bundle => self.bundle(request).await,
            AdminRoute::ApplyBundle => self.apply(request).await,
        }
    }

    /// Applies the access rules to a request of the network.
    fn check_access(&self, access: &Access, route: AdminRoute, request: &Request<Incoming>) -> Answer<()> {
        let host = host_of(request).map_err(|bad_host| {
            self.requests.record_refusal(requests::Refusal::Malformed);
            refused(vec![bad_host.to_string()])
        })?;
        let (headers, is_read) = (access_headers(request, host), is_read(request.method()));
        let admitted = match route {
            AdminRoute::Health | AdminRoute::Ready => Ok(()),
            AdminRoute::Page | AdminRoute::HeldPage if is_read => access.may_open_page(headers),
            AdminRoute::Page | AdminRoute::HeldPage => access.may_send_form(headers),
            _ if is_read => access.may_read(headers),
            _ => access.may_change(headers),
        };
        admitted.map_err(|refusal| {
            self.requests.record_refusal(match refusal {
                AdminRefusal::WebPage => requests::Refusal::AdminPage,
                AdminRefusal::ForeignHost => requests::Refusal::AdminHost,
                AdminRefusal::NoToken => requests::Refusal::AdminToken,
            });
            if refusal != AdminRefusal::NoToken {
                return errors(StatusCode::FORBIDDEN, vec![refusal.to_string()]);
            }
            let mut response = errors(StatusCode::UNAUTHORIZED, vec![refusal.to_string()]);
            let challenge = if is_read { READ_CHALLENGE } else { CHANGE_CHALLENGE };
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
            response
        })
    }

    /// Lists a page of what is stored.
    async fn list(&self, query: Option<&str>) -> Answer {
        let ListRequest { filter, after, max_archives } =
            ListRequest::parse(query, &self.default_host).map_err(refused)?;
        let page = self.mirror.operations.list(filter, after, max_archives).await;
        Ok(json(&page.map_err(|error| self.failure(error))?))
    }

    /// A page of what rules hold back.
    async fn held(&self, query: Option<&str>) -> Answer<HeldPage> {
        let after = admin::approval::parse_held_query(query, &self.default_host).map_err(refused)?;
        self.mirror.operations.held(after, self.clock.now()).await.map_err(|error| self.failure(error))
    }

    /// Decides about versions that are held back.
    async fn decide(&self, decision: ApprovalDecision, request: Request<Incoming>) -> Answer {
        let body = bodies::read_json(request, bodies::MAX_COMMAND_BYTES).await?;
        let asked = ApprovalRequest::read(&body).map_err(|reason| refused(vec![reason]))?;
        let (versions, words) = asked.parsed(decision, &self.default_host, self.clock.now()).map_err(refused)?;
        Ok(json(&self.approve(decision, versions, &words).await))
    }

    /// The CLI configuration for the client of a run. The run says in its query which network it is in: the loopback addresses
    /// of another one lead to strangers.
    async fn run_client_config(&self, id: RunId, query: Option<&str>) -> Answer {
        let listener = self.runs()?.listener;
        let base = match listener {
            Some(listener) => format!("http://{listener}{}", id.base()),
            None => self.base.clone(),
        };
        let runs_elsewhere = network_of_query(query).is_some_and(|network| network != Place::here().network_id());
        if runs_elsewhere && is_loopback(&base) {
            let reason = format!(
                "the main listener of this larder is at {base}, which leads elsewhere on the machine (or in the container) \
                 of this run: set [server] public_url to a URL that leads here from there"
            );
            return Err(errors(StatusCode::CONFLICT, vec![reason]));
        }
        match ClientConfig::of(&self.mirror, &base, ClientRoute::HostOverride).await {
            Ok(config) => Ok(response::plain_text(StatusCode::OK, config.to_string())),
            Err(error) => Err(internal(&error.to_string())),
        }
    }

    /// The unpacked providers that the client of a run may link. Only of a larder on the machine of the run, whose user it is: it
    /// sends paths of this machine.
    async fn run_providers(&self, request: Request<Incoming>) -> Answer {
        self.runs()?;
        let body = bodies::read_json(request, bodies::MAX_LOCK_FILE_BYTES * 2).await?;
        let asked = LinkRequest::read(&body).map_err(|reason| refused(vec![reason]))?;
        let call = self.mirror.runtime.client_context(self.clock.now());
        let answer = linked_providers(&self.mirror, &asked, &call).await;
        Ok(json(&answer.map_err(|error| self.failure(error))?))
    }

    /// Explains what a client gets for an address or a URL.
    async fn explain(&self, query: Option<&str>) -> Answer {
        let request = ExplainRequest::parse(query, &self.default_host).map_err(refused)?;
        // Nobody could ask at a URL that nobody serves: then the steps have paths.
        let base = if let AdminProcess::Service(_) = self.process { &self.base } else { "" };
        let report = self.protocols.explain(&request, base, self.clock.now(), response::HTTP_ANSWERS).await;
        report.map(|report| json(&report)).map_err(|error| self.failure(error))
    }

    /// Judges the versions of an address by the policies.
    async fn policy(&self, query: Option<&str>) -> Answer {
        let selector = admin::policy::parse_query(query, &self.default_host).map_err(refused)?;
        let call = self.mirror.runtime.job_context(self.clock.now());
        let verdicts = self.mirror.operations.policy_verdicts(&selector, &call).await;
        let PolicyVerdicts { denied, versions, no_list } = verdicts.map_err(|error| self.failure(error))?;
        let (address, rules) = (selector.address().to_string(), call.access().rule_count());
        let no_list = no_list.map(|error| error.to_string());
        Ok(json(&PolicyReport { address, now: call.now, rules, denied, versions, no_list }))
    }

    async fn warm(&self, request: Request<Incoming>) -> Answer {
        let ReceivedOrder { order, pin, trial, .. } =
            bodies::read_order(request, &self.mirror, &self.default_host).await?;
        if trial.is_some() {
            return Err(refused(vec![
                "a warm-up obeys the policies of this larder; only a plan tries others".to_owned(),
            ]));
        }
        let warm_up = WarmUp::of_order(order, pin).map_err(refused)?;
        match self.jobs.start(warm_up).await {
            Ok((id, job)) => {
                let mut response = response::json(StatusCode::ACCEPTED, &job);
                // A job id is hex digits, so the location is always a valid header value.
                if let Ok(location) = HeaderValue::try_from(format!("{}/{id}", JOBS)) {
                    response.headers_mut().insert(header::LOCATION, location);
                }
                Ok(response)
            }
            Err(not_started) => {
                let status = match not_started {
                    JobStartError::TooMany | JobStartError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
                    JobStartError::NoRandomId => StatusCode::INTERNAL_SERVER_ERROR,
                };
                Err(errors(status, vec![not_started.to_string()]))
            }
        }
    }

    async fn plan(&self, request: Request<Incoming>) -> Answer {
        let ReceivedOrder { order, trial, lock_platforms, .. } =
            bodies::read_order(request, &self.mirror, &self.default_host).await?;
        let plan = self.jobs.plan(&order, trial.map(Arc::new), &lock_platforms).await.map_err(plan_refused)?;
        Ok(json(&plan))
    }

    async fn lock(&self, request: Request<Incoming>) -> Answer {
        let ReceivedOrder { order, trial, .. } = bodies::read_order(request, &self.mirror, &self.default_host).await?;
        let has_configurations = order.given.iter().any(|entry| matches!(entry, OrderEntry::Configurations(_)));
        if trial.is_some() || !has_configurations {
            let reason = match has_configurations {
                true => "a lock file obeys the policies of this larder; only a plan tries others",
                false => "the order has no configuration: \"files\" are the files of the folders in which `init` runs",
            };
            return Err(refused(vec![reason.to_owned()]));
        }
        let report = self.jobs.lock(&order).await.map_err(plan_refused)?;
        Ok(json(&report))
    }

    async fn run_operation(&self, operation: Operation, request: Request<Incoming>) -> Answer {
        let body = bodies::read_json(request, bodies::MAX_COMMAND_BYTES).await?;
        let pin = if operation == Operation::Pin { PinChange::Set } else { PinChange::Lift };
        let mut shown = Vec::new();
        let target = match operation {
            Operation::Refresh | Operation::Purge => TargetAddresses::read(&body).map(OperationTarget::Addresses),
            Operation::Accept => AcceptRequest::read(&body).map(|AcceptRequest { what, evidence }| {
                shown = evidence;
                OperationTarget::Addresses(TargetAddresses { what })
            }),
            Operation::Pin | Operation::Unpin => OperationTarget::read(&body),
        };
        let target = match target.map_err(|reason| refused(vec![reason]))? {
            OperationTarget::Addresses(target) => target,
            OperationTarget::Job(id) => {
                let items = self.job(id)?.to_pin(pin).await;
                let report = operation::pin_job(&self.mirror, items, pin).await;
                return Ok(json(&report.spread(self.mirror.library.spread().await)));
            }
        };
        let addresses = target.addresses(&self.default_host).map_err(refused)?;
        Ok(match operation {
            Operation::Refresh => json(&self.refresh(addresses).await),
            Operation::Purge => json(&self.purge(addresses).await),
            Operation::Accept => json(&self.accept(addresses, &shown).await),
            Operation::Pin | Operation::Unpin => json(&self.change_pin(addresses, pin).await),
        })
    }

    /// Re-hashes everything stored, for as long as the client reads the answer.
    async fn verify(&self, request: Request<Incoming>) -> Answer {
        let body = bodies::read_json(request, bodies::MAX_COMMAND_BYTES).await?;
        operation::parse_empty_body(&body).map_err(|reason| refused(vec![reason]))?;
        let steps = self.mirror.operations.verify(&self.job_context()).map_err(|error| self.failure(error))?;
        Ok(response::of_type(Body::stream(bodies::lines(steps), None), NDJSON))
    }

    /// The runs; 404 within a command.
    fn runs(&self) -> Answer<&RunAccess> {
        self.runs.as_ref().ok_or_else(|| errors(StatusCode::NOT_FOUND, vec!["no larder runs here".to_owned()]))
    }

    fn metrics(&self) -> Answer {
        let mut text = String::new();
        if prometheus_client::encoding::text::encode(&mut text, &self.registry).is_err() {
            return Err(internal("the metrics cannot be written"));
        }
        let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        Ok(response::of_type(Body::full(text.into()), content_type))
    }

    fn status(&self) -> StatusReport {
        let (mirror, bundle_keys) = (self.mirror.operations.status(self.clock.now()), self.bundles.ids());
        let (process, warm_ups) = match &self.process {
            AdminProcess::Service(serving) => (ProcessKind::Service, serving.recurring.states()),
            AdminProcess::Run(serving) => (ProcessKind::Run, serving.recurring.states()),
            AdminProcess::Command { warm_ups } => (ProcessKind::Command, warm_ups.clone()),
        };
        let since_start = self.process.serving().map(|serving| self.since(serving.started));
        let config_file = self.config_file.as_ref().map(|file| file.display().to_string());
        let default_host = Some(self.default_host.clone());
        let store_named_by = self.store_named_by;
        StatusReport { mirror, process, config_file, store_named_by, default_host, since_start, warm_ups, bundle_keys }
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
            failures: self.requests.failures().list(now),
            refusals: self.requests.refusals().list(now),
            lost_audit_lines: self.requests.audit().lost(),
        }
    }
}

/// The network in the query of a run: [`Place::network_id`].
fn network_of_query(query: Option<&str>) -> Option<&str> {
    query?.split('&').find_map(|pair| pair.strip_prefix(RUN_NETWORK)?.strip_prefix('='))
}

fn is_loopback(base: &str) -> bool {
    let uri = base.parse::<http::Uri>();
    let host = uri.as_ref().ok().and_then(http::Uri::host).unwrap_or_default().trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn unknown_job(id: JobId) -> Box<Response<Body>> {
    let reason = format!(
        "there is no job {id}: old jobs are dropped from the list; their packages stay stored, so send the same order again"
    );
    errors(StatusCode::NOT_FOUND, vec![reason])
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

fn json(value: &impl Serialize) -> Response<Body> {
    response::json(StatusCode::OK, value)
}

fn errors(status: StatusCode, errors: Vec<String>) -> Box<Response<Body>> {
    Box::new(response::errors(status, errors))
}

/// The response where no plan is made.
fn plan_refused(error: PlanError) -> Box<Response<Body>> {
    let status = match error {
        PlanError::Busy => StatusCode::SERVICE_UNAVAILABLE,
        PlanError::TooMany(_) => StatusCode::BAD_REQUEST,
    };
    errors(status, vec![error.to_string()])
}

/// The response to an invalid request.
fn refused(problems: Vec<String>) -> Box<Response<Body>> {
    errors(StatusCode::BAD_REQUEST, problems)
}

fn internal(reason: &str) -> Box<Response<Body>> {
    errors(StatusCode::INTERNAL_SERVER_ERROR, vec![reason.to_owned()])
}

fn wrong_method(methods: &str) -> Box<Response<Body>> {
    let mut response = errors(StatusCode::METHOD_NOT_ALLOWED, vec![format!("the methods of this path: {methods}")]);
    response.headers_mut().extend(HeaderValue::from_str(methods).map(|methods| (header::ALLOW, methods)));
    response
}

fn access_headers<'a>(request: &'a Request<Incoming>, host: Option<&'a str>) -> AccessHeaders<'a> {
    let header_text = |name| request.headers().get(name).map(|value| value.to_str().unwrap_or("?"));
    AccessHeaders {
        origin: header_text("origin"),
        site: header_text("sec-fetch-site"),
        destination: header_text("sec-fetch-dest"),
        host,
        authorization: header_text("authorization"),
    }
}
