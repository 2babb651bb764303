//! A scripted admin listener that records its requests. Command tests use it in place of a larder.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use larder::http::admin_tls::server_config;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// The admin token, which the listener proves to know.
pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A recorded request.
#[derive(Debug, Clone)]
pub(crate) struct AdminRequest {
    pub(crate) method: Method,
    /// The path with its query.
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

/// One job: a report for each poll, the last one repeated.
#[derive(Debug, Clone)]
pub(crate) struct JobScript {
    reports: Vec<Value>,
    when_cancelled: Option<Value>,
    is_cancelled: bool,
    polls: usize,
}

impl JobScript {
    /// The first report answers the request that starts the job; each poll gets the next one.
    pub(crate) fn of(reports: Vec<Value>) -> Self {
        Self { reports, when_cancelled: None, is_cancelled: false, polls: 0 }
    }

    /// The report after a cancellation.
    pub(crate) fn when_cancelled(mut self, report: Value) -> Self {
        self.when_cancelled = Some(report);
        self
    }
}

#[derive(Default)]
struct State {
    requests: Vec<AdminRequest>,
    pending: Vec<JobScript>,
    started: Vec<JobScript>,
    refusal: Option<(u16, String)>,
}

/// A listener on a port of 127.0.0.1. Stops when dropped.
pub(crate) struct FakeAdmin {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    serving: JoinHandle<()>,
}

impl FakeAdmin {
    /// Runs one script for each request that starts a job, in this order.
    pub(crate) async fn start(scripts: Vec<JobScript>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { pending: scripts, ..State::default() }));
        let shared = Arc::clone(&state);
        let acceptor = TlsAcceptor::from(server_config(&TOKEN.to_owned().into()).unwrap());
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                let answer = service_fn(move |request| {
                    let state = Arc::clone(&state);
                    async move { Ok::<_, Infallible>(answer(&state, request).await) }
                });
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let _ =
                        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
                });
            }
        });
        Self { address, state, serving }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Refuses further requests to start a job once all scripts are used.
    pub(crate) fn refuse(&self, status: u16, reason: &str) {
        self.state.lock().refusal = Some((status, reason.to_owned()));
    }

    pub(crate) fn requests(&self) -> Vec<AdminRequest> {
        self.state.lock().requests.clone()
    }

    /// The number of requests with this method.
    pub(crate) fn count(&self, method: &Method) -> usize {
        self.state.lock().requests.iter().filter(|request| request.method == method).count()
    }
}

impl Drop for FakeAdmin {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(state: &Mutex<State>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let path = head.uri.path_and_query().unwrap().to_string();
    let mut state = state.lock();
    let body = String::from_utf8_lossy(&body).into_owned();
    state.requests.push(AdminRequest { method: head.method.clone(), path: path.clone(), headers: head.headers, body });
    let id = path.strip_prefix("/admin/v1/jobs/").and_then(|id| id.parse::<usize>().ok());
    match (head.method, id) {
        (Method::POST, None) if !state.pending.is_empty() => {
            let script = state.pending.remove(0);
            let first = script.reports[0].clone();
            state.started.push(script);
            json_response(StatusCode::ACCEPTED, &first)
        }
        (Method::POST, None) => {
            let (status, reason) = state.refusal.clone().expect("a request to start a job, and no script for it");
            json_response(StatusCode::from_u16(status).unwrap(), &json!({ "errors": [reason] }))
        }
        (Method::GET, Some(id)) if id < state.started.len() => {
            let script = &mut state.started[id];
            script.polls += 1;
            let index = script.polls.min(script.reports.len() - 1);
            let report = script.when_cancelled.as_ref().filter(|_| script.is_cancelled);
            json_response(StatusCode::OK, report.unwrap_or(&script.reports[index]))
        }
        (Method::DELETE, Some(id)) if id < state.started.len() => {
            let script = &mut state.started[id];
            script.is_cancelled = true;
            let report = script.when_cancelled.as_ref().expect("a script with a report for the cancelled job");
            json_response(StatusCode::OK, report)
        }
        (method, _) => json_response(StatusCode::NOT_FOUND, &json!({ "errors": [format!("no {method} {path}")] })),
    }
}

fn json_response(status: StatusCode, value: &Value) -> Response<Full<Bytes>> {
    let response =
        Response::builder().status(status).header("server", "larder").header("content-type", "application/json");
    response.body(Full::new(value.to_string().into())).unwrap()
}
