//! A load balancer that sends each request to the next server, as long as it answers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The load balancer. It ends when it is dropped.
pub(crate) struct Turns {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

struct Shared {
    servers: Vec<String>,
    next: AtomicUsize,
    answered: Vec<AtomicUsize>,
}

impl Turns {
    /// A load balancer for servers at these base URLs.
    pub(crate) async fn between(servers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answered = servers.iter().map(|_| AtomicUsize::new(0)).collect();
        let shared = Arc::new(Shared { servers, next: AtomicUsize::new(0), answered });
        let serving = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Self { address, shared, serving }
    }

    /// The base URL for clients.
    pub(crate) fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The number of answers of each server.
    pub(crate) fn answered(&self) -> Vec<usize> {
        self.shared.answered.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(move |request| pass_on(request, Arc::clone(&shared)));
            drop(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

async fn pass_on(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let first = shared.next.fetch_add(1, Ordering::Relaxed);
    for number in (first..).take(shared.servers.len()) {
        let number = number % shared.servers.len();
        let url = format!("{}{}", shared.servers[number], parts.uri);
        let asked = super::http::client().request(parts.method.clone(), url).headers(parts.headers.clone());
        let Ok(answer) = asked.body(body.clone()).send().await else { continue };
        let (status, headers) = (answer.status(), answer.headers().clone());
        let Ok(bytes) = answer.bytes().await else { continue };
        shared.answered[number].fetch_add(1, Ordering::Relaxed);
        let mut response = Response::new(Full::new(bytes));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response.headers_mut().remove("transfer-encoding");
        return Ok(response);
    }
    let mut response = Response::new(Full::new(Bytes::from_static(b"no server answers")));
    *response.status_mut() = http::StatusCode::BAD_GATEWAY;
    Ok(response)
}
