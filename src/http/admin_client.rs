//! Requests of the commands to the admin service: of the running larder on this machine, over its admin listener, or of
//! the command's own process, without a socket.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::either::Either;
use tokio_util::io::StreamReader;

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
/// The beginning of the error text for such a pause.
const LATE: &str = "nothing more of the answer came within";
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

/// The content type and the body of a request.
type RequestBody = Option<(&'static str, Body)>;

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
    server: AdminServer,
    /// A connection without a request yet.
    connected: Mutex<Option<TcpStream>>,
    /// The longest pause between two steps of a command.
    step_timeout: Duration,
}

#[derive(Debug)]
enum AdminServer {
    Running { address: SocketAddr, token: AdminToken },
    InProcess(Arc<Admin>),
}

impl AdminClient {
    /// A client of the admin listener at `address`.
    pub fn new(address: SocketAddr, token: AdminToken) -> Self {
        Self::of(AdminServer::Running { address, token }, COMMAND_TIMEOUT)
    }

    /// A client of a service within this process. Its requests have no time limits.
    pub fn in_process(admin: Arc<Admin>) -> Self {
        Self::of(AdminServer::InProcess(admin), Duration::MAX)
    }

    fn of(server: AdminServer, step_timeout: Duration) -> Self {
        Self { server, connected: Mutex::default(), step_timeout }
    }

    /// Returns true for a client of a service within this process.
    pub fn is_in_process(&self) -> bool {
        matches!(self.server, AdminServer::InProcess(_))
    }

    /// Opens the connection of the first request.
    ///
    /// # Errors
    /// [`AdminClientError::NotRunning`] if nothing listens there.
    pub async fn connect(&self) -> Result<(), AdminClientError> {
        if let AdminServer::Running { address, .. } = self.server {
            let stream = self.within(REQUEST_TIMEOUT, connect(address)).await?;
            *self.connected.lock() = Some(stream);
        }
        Ok(())
    }

    /// Gets `path`.
    pub async fn get(&self, path: &str) -> Result<Bytes, AdminClientError> {
        self.request(Method::GET, path, None, REQUEST_TIMEOUT, MAX_ANSWER_BYTES).await
    }

    /// Gets an answer that lists the whole store, with larger limits of size and time.
    pub async fn get_large_answer(&self, path: &str) -> Result<Bytes, AdminClientError> {
        self.request(Method::GET, path, None, COMMAND_TIMEOUT, MAX_LARGE_ANSWER_BYTES).await
    }

    /// Sends DELETE to `path`.
    pub async fn delete(&self, path: &str) -> Result<Bytes, AdminClientError> {
        self.request(Method::DELETE, path, None, REQUEST_TIMEOUT, MAX_ANSWER_BYTES).await
    }

    /// Posts a command in JSON.
    pub async fn post(&self, path: &str, request: &impl Serialize) -> Result<Bytes, AdminClientError> {
        self.request(Method::POST, path, self.to_json(request)?, COMMAND_TIMEOUT, MAX_ANSWER_BYTES).await
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
        let request = self.exchange(Method::POST, path, self.to_json(&json!({}))?);
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
        let body = Some((content_type, Body::stream(receiver.stream(), None)));
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
        let request = self.exchange(Method::POST, path, self.to_json(request)?);
        let mut body = self.within(COMMAND_TIMEOUT, request).await?.into_body();
        let (sender, mut receiver) = pipe();
        let writer_task = spawn_blocking(move || io::copy(&mut receiver, &mut output).and_then(|_| output.flush()));
        let received = sender.send_body(&mut body, self.limit(IDLE_TIMEOUT), "the answer", LATE).await;
        let written = writer_task.await.unwrap_or_else(|e| Err(io::Error::other(e)));
        received.map_err(|reason| self.failed(reason))?;
        written.map_err(AdminClientError::LocalIo)
    }

    fn to_json(&self, request: &impl Serialize) -> Result<RequestBody, AdminClientError> {
        let body = serde_json::to_vec(request).map_err(|e| self.failed(e))?;
        Ok(Some(("application/json", Body::full(body.into()))))
    }

    /// Calls `on_step` with each line of a body.
    async fn read_steps<S: DeserializeOwned>(
        &self,
        body: Incoming,
        mut on_step: impl FnMut(S),
    ) -> Result<(), AdminClientError> {
        let body = StreamReader::new(body.into_data_stream().map_err(io::Error::other));
        let mut lines = FramedRead::new(body, LinesCodec::new_with_max_length(MAX_LINE_BYTES));
        let mut result = Ok(());
        loop {
            let reason = match timeout(self.step_timeout, lines.next()).await {
                Ok(None) => return result,
                Ok(Some(Ok(line))) => {
                    match serde_json::from_str(&line) {
                        Ok(step) => on_step(step),
                        Err(error) => result = Err(error.into()),
                    }
                    continue;
                }
                Ok(Some(Err(LinesCodecError::MaxLineLengthExceeded))) => {
                    format!("a line of the answer is larger than {} MiB", MAX_LINE_BYTES >> 20)
                }
                Ok(Some(Err(LinesCodecError::Io(e)))) => format!("the answer broke off: {e}"),
                Err(_) => format!("{LATE} {} s", self.step_timeout.as_secs()),
            };
            return Err(self.failed(reason));
        }
    }

    fn address(&self) -> Option<SocketAddr> {
        match &self.server {
            AdminServer::Running { address, .. } => Some(*address),
            AdminServer::InProcess(_) => None,
        }
    }

    /// The failure of a request to this server.
    pub fn failed(&self, reason: impl ToString) -> AdminClientError {
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
        let stream = match &self.server {
            AdminServer::Running { address, .. } => {
                let connected = self.connected.lock().take();
                Either::Left(match connected {
                    Some(stream) => stream,
                    None => connect(*address).await?,
                })
            }
            AdminServer::InProcess(admin) => {
                let (stream, served) = tokio::io::duplex(IN_PROCESS_BYTES);
                let admin = Arc::clone(admin);
                let service = service_fn(move |request| Arc::clone(&admin).handle(request).map(Ok::<_, Infallible>));
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(served), service),
                );
                Either::Right(stream)
            }
        };
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.failed(e))?;
        tokio::spawn(connection);
        let host = self.address().map_or_else(|| "localhost".to_owned(), |address| address.to_string());
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, host);
        if let AdminServer::Running { token: AdminToken::Known(token), .. } = &self.server {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some((content_type, _)) = &body {
            request = request.header(header::CONTENT_TYPE, *content_type);
        }
        let body = body.map_or_else(Body::empty, |(_, body)| body);
        let request = request.body(body).map_err(|e| self.failed(e))?;
        let response = sender.send_request(request).await.map_err(|e| self.failed(e))?;
        let status = response.status();
        match &self.server {
            AdminServer::Running { address, .. } if response.headers().get(header::SERVER) != Some(&SERVER) => {
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
            (Ok(_), AdminServer::Running { address, token: AdminToken::Unreadable(reason) }) => {
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
    use std::task::Poll;

    use futures_util::stream;
    use tokio::net::TcpListener;

    use super::*;

    /// An admin listener that answers every request with these pieces. With `is_stuck` the answer has no end.
    async fn listener(pieces: &'static [&'static str], is_stuck: bool) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = service_fn(move |_| async move {
            let pieces = stream::iter(pieces).map(|piece| Ok(Bytes::from_static(piece.as_bytes())));
            let end = stream::poll_fn(move |_| if is_stuck { Poll::Pending } else { Poll::Ready(None) });
            Response::builder().header(header::SERVER, SERVER).body(Body::stream(pieces.chain(end), None))
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
            let client = AdminClient::new(listener(pieces, false).await, AdminToken::Absent);
            client.post_steps("/", |step| steps.push(step)).await.unwrap();
            assert_eq!(steps, expected);
        }
        let client = AdminClient::new(listener(&["x\n1\n"], false).await, AdminToken::Absent);
        let mut steps: Vec<u8> = Vec::new();
        let result = client.post_steps("/", |step| steps.push(step)).await;
        assert!(matches!(result, Err(AdminClientError::OtherVersion(_))) && steps == [1]);
    }

    #[tokio::test]
    async fn a_command_without_a_next_step_ends_after_the_step_timeout() {
        let mut client = AdminClient::new(listener(&["1\n", "2"], true).await, AdminToken::Absent);
        client.step_timeout = Duration::from_millis(50);
        let mut steps: Vec<u8> = Vec::new();
        let error = client.post_steps("/", |step| steps.push(step)).await.unwrap_err();
        assert!(error.to_string().contains("nothing more of the answer came within"), "{error}");
        assert_eq!(steps, [1]);
    }
}
