//! Requests of the commands to the admin service: of the running larder on this machine, over its admin listener, or of
//! the command's own process, without a socket.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::admin::{Admin, SERVER};
use super::body::{Body, pipe};

/// Deadline of requests that wait for no upstream.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Deadline of requests that wait for upstreams.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(3600);
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// Size limit of an answer that lists the whole store.
const MAX_LARGE_ANSWER_BYTES: usize = 64 << 20;
/// Size limit of a line of an answer: the receipt of a bundle is one line, with a text for each entry.
const MAX_LINE_BYTES: usize = 64 << 20;
/// The longest pause within a downloaded answer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Bytes in flight in each direction within this process.
const IN_PROCESS_BYTES: usize = 256 << 10;

/// Failures of a request to the admin listener.
#[derive(Debug, thiserror::Error)]
pub enum AdminClientError {
    /// Connection refused.
    #[error("no larder listens on {0}")]
    NotRunning(SocketAddr),
    /// The store is in use, and nothing listens at the admin address.
    #[error(
        "{store} is in use by another process, and no larder listens on {address}: name the admin listener of the larder \
         that uses the store (--admin-listen, or its --config), or wait for the command that uses the store",
        store = .store.display()
    )]
    StoreInUse {
        /// The folder of the store.
        store: PathBuf,
        /// The address tried.
        address: SocketAddr,
    },
    /// Another program answers at the address.
    #[error("something else answers on {address}, and not larder ({status})")]
    NotLarder {
        /// The address tried.
        address: SocketAddr,
        /// The status of its answer.
        status: StatusCode,
    },
    /// The connection failed, or the answer was invalid, incomplete or late.
    #[error("{}{reason}", in_front(.address, |address| format!("the request to the admin listener on {address} failed: ")))]
    Failed {
        /// The address tried; `None` within this process.
        address: Option<SocketAddr>,
        /// The failure.
        reason: String,
    },
    /// Larder refused the request.
    #[error("{}{message}", in_front(.address, |address| format!("the larder on {address} answered: ")))]
    Refused {
        /// The address tried; `None` within this process.
        address: Option<SocketAddr>,
        /// Larder's error text.
        message: String,
    },
    /// The answer does not parse.
    #[error("the running larder is of another version")]
    OtherVersion(#[from] serde_json::Error),
    /// Larder requires the admin token, and this user may not read the token file.
    #[error(
        "the larder on {address} requires its admin token, and this user may not read that ({reason}): run the command as larder's user (sudo -u larder larder ...)"
    )]
    TokenUnreadable {
        /// The address tried.
        address: SocketAddr,
        /// The file and the system's error.
        reason: String,
    },
    /// A local file could not be read or written.
    #[error("{0}")]
    LocalIo(io::Error),
}

/// The beginning of an error text that names the running larder.
fn in_front(address: &Option<SocketAddr>, text: impl Fn(&SocketAddr) -> String) -> String {
    address.as_ref().map(text).unwrap_or_default()
}

/// The body of a request.
enum RequestBody {
    Empty,
    Json(Bytes),
    Stream { content_type: &'static str, stream: Body },
}

/// The admin token for requests to a running larder.
#[derive(Debug)]
pub enum AdminToken {
    /// There is none; a larder on loopback answers reads without it.
    Absent,
    /// The token.
    Known(String),
    /// This user may not read it: the file, and the system's error.
    Unreadable(String),
}

/// An admin service to send requests to.
#[derive(Debug)]
pub struct AdminClient {
    server: Server,
    /// A connection without a request yet.
    connected: Mutex<Option<TcpStream>>,
}

#[derive(Debug)]
enum Server {
    Running { address: SocketAddr, token: AdminToken },
    InProcess(Arc<Admin>),
}

impl AdminClient {
    /// A client of the admin listener at `address`.
    pub fn new(address: SocketAddr, token: AdminToken) -> Self {
        Self { server: Server::Running { address, token }, connected: Mutex::default() }
    }

    /// A client of a service within this process. Its requests have no time limits.
    pub fn in_process(admin: Arc<Admin>) -> Self {
        Self { server: Server::InProcess(admin), connected: Mutex::default() }
    }

    /// Returns true for a client of a service within this process.
    pub fn is_in_process(&self) -> bool {
        matches!(self.server, Server::InProcess(_))
    }

    /// Opens the connection of the first request.
    ///
    /// # Errors
    /// [`AdminClientError::NotRunning`] if nothing listens there.
    pub async fn connect(&self) -> Result<(), AdminClientError> {
        if let Server::Running { address, .. } = self.server {
            let stream = self.within(REQUEST_TIMEOUT, connect(address)).await?;
            *self.connected.lock() = Some(stream);
        }
        Ok(())
    }

    /// Gets `path`.
    pub async fn get(&self, path: &str) -> Result<Bytes, AdminClientError> {
        self.request(Method::GET, path, RequestBody::Empty, REQUEST_TIMEOUT, MAX_ANSWER_BYTES).await
    }

    /// Gets an answer that lists the whole store, with larger limits of size and time.
    pub async fn get_large_answer(&self, path: &str) -> Result<Bytes, AdminClientError> {
        self.request(Method::GET, path, RequestBody::Empty, COMMAND_TIMEOUT, MAX_LARGE_ANSWER_BYTES).await
    }

    /// Sends DELETE to `path`.
    pub async fn delete(&self, path: &str) -> Result<Bytes, AdminClientError> {
        self.request(Method::DELETE, path, RequestBody::Empty, REQUEST_TIMEOUT, MAX_ANSWER_BYTES).await
    }

    /// Posts a command in JSON.
    pub async fn post(&self, path: &str, request: &impl Serialize) -> Result<Bytes, AdminClientError> {
        let body = RequestBody::Json(self.to_json(request)?);
        self.request(Method::POST, path, body, COMMAND_TIMEOUT, MAX_ANSWER_BYTES).await
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        body: RequestBody,
        limit: Duration,
        max_bytes: usize,
    ) -> Result<Bytes, AdminClientError> {
        let answer = async { self.read_body(self.exchange(method, path, body).await?, max_bytes).await };
        self.within(limit, answer).await
    }

    /// Posts a command that reports its progress; calls `on_step` with each step.
    ///
    /// # Errors
    /// [`AdminClientError::OtherVersion`] after the last step if one did not parse.
    pub async fn post_steps<S: DeserializeOwned>(
        &self,
        path: &str,
        on_step: impl FnMut(S),
    ) -> Result<(), AdminClientError> {
        let request = self.exchange(Method::POST, path, RequestBody::Json(Bytes::from_static(b"{}")));
        let response = self.within(REQUEST_TIMEOUT, request).await?;
        self.read_steps(response.into_body(), on_step).await
    }

    /// Uploads everything that `source` yields. Calls `on_step` with each step of the answer, even during the upload.
    ///
    /// # Errors
    /// [`AdminClientError::LocalIo`] if `source` fails: the server then sees a broken request.
    pub async fn upload<S: DeserializeOwned>(
        &self,
        path: &str,
        content_type: &'static str,
        mut source: impl Read + Send + 'static,
        on_step: impl FnMut(S),
    ) -> Result<(), AdminClientError> {
        let (sender, receiver) = pipe();
        let reader_task = spawn_blocking(move || {
            let mut writer = sender.writer();
            match io::copy(&mut source, &mut writer) {
                Ok(_) => writer.end(Ok(())),
                // The server has stopped reading.
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {}
                Err(e) => {
                    writer.end(Err(io::Error::from(e.kind())));
                    return Err(AdminClientError::LocalIo(e));
                }
            }
            Ok(())
        });
        let body = RequestBody::Stream { content_type, stream: Body::stream(receiver.stream(), None) };
        let result = match self.exchange(Method::POST, path, body).await {
            Ok(response) => self.read_steps(response.into_body(), on_step).await,
            Err(error) => Err(error),
        };
        match result {
            // A failed source is the cause of the missing answer.
            Err(failed @ AdminClientError::Failed { .. }) => {
                Err(reader_task.await.ok().and_then(Result::err).unwrap_or(failed))
            }
            result => result,
        }
    }

    /// Posts JSON and writes the answer to `output` as it arrives.
    ///
    /// # Errors
    /// [`AdminClientError::Failed`] if the answer broke off: `output` is incomplete then. [`AdminClientError::LocalIo`]
    /// if `output` fails.
    pub async fn download(
        &self,
        path: &str,
        request: &impl Serialize,
        mut output: impl Write + Send + 'static,
    ) -> Result<(), AdminClientError> {
        let request = self.exchange(Method::POST, path, RequestBody::Json(self.to_json(request)?));
        let mut body = self.within(COMMAND_TIMEOUT, request).await?.into_body();
        let (sender, mut receiver) = pipe();
        let writer_task = spawn_blocking(move || io::copy(&mut receiver, &mut output).and_then(|_| output.flush()));
        let late = "nothing more of the answer came within";
        let received = sender.send_body(&mut body, self.limit(IDLE_TIMEOUT), "the answer", late).await;
        let written = writer_task.await.unwrap_or_else(|e| Err(io::Error::other(e)));
        received.map_err(|reason| self.failed(reason))?;
        written.map_err(AdminClientError::LocalIo)
    }

    fn to_json(&self, request: &impl Serialize) -> Result<Bytes, AdminClientError> {
        serde_json::to_vec(request).map(Bytes::from).map_err(|e| self.failed(e))
    }

    /// Calls `on_step` with each line of a body.
    async fn read_steps<S: DeserializeOwned>(
        &self,
        mut body: Incoming,
        mut on_step: impl FnMut(S),
    ) -> Result<(), AdminClientError> {
        let (mut unread, mut unparsed) = (BytesMut::new(), None);
        let mut read_line = |line: &[u8]| match serde_json::from_slice(line) {
            Ok(step) => on_step(step),
            Err(error) => unparsed = Some(error),
        };
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| self.failed(format!("the answer broke off: {e}")))?;
            let Ok(piece) = frame.into_data() else { continue };
            // The bytes received before this piece contain no line end.
            let mut searched = unread.len();
            unread.extend_from_slice(&piece);
            while let Some(end) = unread.iter().skip(searched).position(|byte| *byte == b'\n') {
                read_line(&unread.split_to(searched + end + 1));
                searched = 0;
            }
            if unread.len() > MAX_LINE_BYTES {
                let reason = format!("a line of the answer is larger than {} MiB", MAX_LINE_BYTES >> 20);
                return Err(self.failed(reason));
            }
        }
        if !unread.is_empty() {
            read_line(&unread);
        }
        unparsed.map_or(Ok(()), |error| Err(error.into()))
    }

    fn address(&self) -> Option<SocketAddr> {
        match &self.server {
            Server::Running { address, .. } => Some(*address),
            Server::InProcess(_) => None,
        }
    }

    fn failed(&self, reason: impl ToString) -> AdminClientError {
        AdminClientError::Failed { address: self.address(), reason: reason.to_string() }
    }

    /// The time limit for a running larder; none within this process.
    fn limit(&self, limit: Duration) -> Duration {
        if self.is_in_process() { Duration::MAX } else { limit }
    }

    async fn within<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = Result<T, AdminClientError>>,
    ) -> Result<T, AdminClientError> {
        let answer = timeout(self.limit(limit), request).await;
        answer.unwrap_or_else(|_| Err(self.failed(format!("no answer within {} s", limit.as_secs()))))
    }

    /// Sends a request over a connection of its own.
    ///
    /// # Errors
    /// The server is not larder, or answers with an error status.
    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: RequestBody,
    ) -> Result<Response<Incoming>, AdminClientError> {
        match &self.server {
            Server::Running { address, .. } => {
                let connected = self.connected.lock().take();
                let stream = match connected {
                    Some(stream) => stream,
                    None => connect(*address).await?,
                };
                self.exchange_over(stream, method, path, body).await
            }
            Server::InProcess(admin) => {
                let (stream, served) = tokio::io::duplex(IN_PROCESS_BYTES);
                let admin = Arc::clone(admin);
                let service = service_fn(move |request| {
                    let admin = Arc::clone(&admin);
                    async move { Ok::<_, Infallible>(admin.handle(request).await) }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(served), service),
                );
                self.exchange_over(stream, method, path, body).await
            }
        }
    }

    async fn exchange_over(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        method: Method,
        path: &str,
        body: RequestBody,
    ) -> Result<Response<Incoming>, AdminClientError> {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.failed(e))?;
        tokio::spawn(connection);
        let host = self.address().map_or_else(|| "localhost".to_owned(), |address| address.to_string());
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, host);
        let (content_type, body) = match body {
            RequestBody::Empty => (None, Body::empty()),
            RequestBody::Json(body) => (Some("application/json"), Body::full(body)),
            RequestBody::Stream { content_type, stream } => (Some(content_type), stream),
        };
        if let Some(content_type) = content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        if let Server::Running { token: AdminToken::Known(token), .. } = &self.server {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(body).map_err(|e| self.failed(e))?;
        let response = sender.send_request(request).await.map_err(|e| self.failed(e))?;
        let status = response.status();
        match &self.server {
            Server::Running { address, .. } if response.headers().get(header::SERVER) != Some(&SERVER) => {
                Err(AdminClientError::NotLarder { address: *address, status })
            }
            _ if status.is_success() => Ok(response),
            _ => Err(self.refusal(status, &self.read_body(response, MAX_ANSWER_BYTES).await?)),
        }
    }

    /// The error for an answer with an error status.
    fn refusal(&self, status: StatusCode, body: &[u8]) -> AdminClientError {
        #[derive(Deserialize)]
        struct Errors {
            errors: Vec<String>,
        }
        match (serde_json::from_slice::<Errors>(body), &self.server) {
            (Ok(_), Server::Running { address, token: AdminToken::Unreadable(reason) }) => {
                AdminClientError::TokenUnreadable { address: *address, reason: reason.clone() }
            }
            (Ok(Errors { errors }), _) => {
                AdminClientError::Refused { address: self.address(), message: errors.join("; ") }
            }
            (Err(_), _) => self.failed(format!("{status}: {}", String::from_utf8_lossy(body))),
        }
    }

    async fn read_body(&self, response: Response<Incoming>, max_bytes: usize) -> Result<Bytes, AdminClientError> {
        let body = Limited::new(response.into_body(), max_bytes).collect().await;
        body.map(|body| body.to_bytes()).map_err(|e| self.failed(e))
    }
}

async fn connect(address: SocketAddr) -> Result<TcpStream, AdminClientError> {
    TcpStream::connect(address).await.map_err(|e| match e.kind() {
        io::ErrorKind::ConnectionRefused => AdminClientError::NotRunning(address),
        _ => AdminClientError::Failed { address: Some(address), reason: e.to_string() },
    })
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use tokio::net::TcpListener;

    use super::*;

    /// An admin listener that answers every request with these pieces.
    async fn listener(pieces: &'static [&'static str]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = service_fn(move |_| async move {
            let frame = |piece: &&'static str| Ok(Frame::data(Bytes::from_static(piece.as_bytes())));
            let frames: Vec<io::Result<Frame<Bytes>>> = pieces.iter().map(frame).collect();
            let body = StreamBody::new(futures_util::stream::iter(frames));
            Response::builder().header(header::SERVER, SERVER).body(body)
        });
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await
        });
        address
    }

    #[tokio::test]
    async fn every_line_of_an_answer_is_reported_even_a_last_one_without_line_end() {
        for (pieces, expected) in
            [(&["1\n2\n"][..], &[1, 2][..]), (&["1", "2\n3", "\n"], &[12, 3]), (&["1\n", "2"], &[1, 2]), (&[], &[])]
        {
            let mut steps: Vec<u8> = Vec::new();
            let client = AdminClient::new(listener(pieces).await, AdminToken::Absent);
            client.post_steps("/", |step| steps.push(step)).await.unwrap();
            assert_eq!(steps, expected);
        }
        let client = AdminClient::new(listener(&["x\n1\n"]).await, AdminToken::Absent);
        let mut steps: Vec<u8> = Vec::new();
        let result = client.post_steps("/", |step| steps.push(step)).await;
        assert!(matches!(result, Err(AdminClientError::OtherVersion(_))) && steps == [1]);
    }
}
