//! Requests of the commands to the admin service: of a running larder, over its Unix socket or its admin listener, or of
//! the command's own process, without a socket. A listener proves first that it knows the admin token; nothing is sent
//! before.

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
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::DuplexStream;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::either::Either;
use tokio_util::io::StreamReader;

use super::admin::{Admin, AdminCaller, LARDER_VERSION, SERVER};
use super::body::{Body, pipe};
use super::{admin_tls, local_socket};

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
/// The version of this command.
const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Failures of a request to an admin service.
#[derive(Debug, thiserror::Error)]
pub enum AdminClientError {
    /// Nothing listens there.
    #[error("no larder listens on {0}")]
    NotRunning(AdminServer),
    /// The listener does not know the admin token.
    #[error(
        "{server} does not prove that it knows the admin token, so nothing was sent to it ({reason}): it is another program, or a \
         larder with another token or of another version; see what listens there (ss -ltnp)"
    )]
    NotProven {
        /// The listener.
        server: AdminServer,
        /// The failure of the handshake.
        reason: String,
    },
    /// Another program answers at the address.
    #[error("something else answers on {server}, and not larder ({status})")]
    NotLarder {
        /// The address tried.
        server: AdminServer,
        /// The status of its answer.
        status: StatusCode,
    },
    /// The connection failed, or the answer was invalid, incomplete or late.
    #[error("{}{reason}", in_front(.server, |server| format!("the request to {server} failed: ")))]
    Failed {
        /// The server; `None` within this process.
        server: Option<AdminServer>,
        /// The failure.
        reason: String,
    },
    /// Larder refused the request.
    #[error("{}{message}", in_front(.server, |server| format!("the larder at {server} answered: ")))]
    Refused {
        /// The server; `None` within this process.
        server: Option<AdminServer>,
        /// Larder's error text.
        message: String,
    },
    /// The answer is one of another version, which this command does not understand.
    #[error(
        "the larder{} is of {version}, and this command of version {OWN_VERSION} cannot read its answer: use the command of \
         that larder's version", in_front(.server, |server| format!(" at {server}"))
    )]
    OtherVersion {
        /// The server; `None` within this process.
        server: Option<AdminServer>,
        /// `version 0.2.0`; other words if that larder does not say it.
        version: String,
    },
    /// A local file could not be read or written.
    #[error("{0}")]
    LocalIo(io::Error),
}

/// The beginning of an error text that names the running larder.
fn in_front(server: &Option<AdminServer>, text: impl Fn(&AdminServer) -> String) -> String {
    server.as_ref().map(text).unwrap_or_default()
}

/// A running larder's admin service, as error texts name it.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum AdminServer {
    /// The Unix socket in its store.
    #[display("{}", _0.display())]
    Socket(PathBuf),
    /// Its admin listener.
    Listener(SocketAddr),
}

/// The content type and the body of a request.
type RequestBody = Option<(&'static str, Body)>;

/// The version of the larder that answers; `None` for an older one, which does not name it.
type AnswerVersion = Option<String>;

/// An answer, and the version of the larder that sent it.
type Answer = (AnswerVersion, Response<Incoming>);

/// An admin service to send requests to.
#[derive(Debug)]
pub struct AdminClient {
    way: Way,
    /// A connection without a request yet.
    connected: Mutex<Option<Connection>>,
    /// The longest pause between two steps of a command.
    step_timeout: Duration,
}

/// The way to an admin service.
#[derive(Debug)]
enum Way {
    /// Its Unix socket.
    Socket(PathBuf),
    /// Its admin listener, which proves that it knows the token before the token is sent.
    Listener { address: SocketAddr, token: SecretString },
    /// Whatever listens there. Nothing secret is sent, and what it answers is no more than a stranger's word.
    Unproven(SocketAddr),
    /// A service within this process.
    InProcess(Arc<Admin>),
}

/// A connection to an admin service.
type Connection = Either<UnixStream, Either<TcpStream, Either<TlsStream<TcpStream>, DuplexStream>>>;

impl AdminClient {
    /// A client of the larder that has the Unix socket at `path`.
    pub fn at_socket(path: PathBuf) -> Self {
        Self::of(Way::Socket(path), COMMAND_TIMEOUT)
    }

    /// A client of the admin listener at `address`, which must know the token.
    pub fn at_listener(address: SocketAddr, token: SecretString) -> Self {
        Self::of(Way::Listener { address, token }, COMMAND_TIMEOUT)
    }

    /// Asks whatever listens at `address`, without a proof: to tell whether something is alive there, and for nothing else.
    pub fn unproven(address: SocketAddr) -> Self {
        Self::of(Way::Unproven(address), COMMAND_TIMEOUT)
    }

    /// A client of a service within this process. Its requests have no time limits.
    pub fn in_process(admin: Arc<Admin>) -> Self {
        Self::of(Way::InProcess(admin), Duration::MAX)
    }

    fn of(way: Way, step_timeout: Duration) -> Self {
        Self { way, connected: Mutex::default(), step_timeout }
    }

    /// Returns true for a client of a service within this process.
    pub fn is_in_process(&self) -> bool {
        matches!(self.way, Way::InProcess(_))
    }

    /// Opens the connection of the first request, with the proof of the listener.
    ///
    /// # Errors
    /// [`AdminClientError::NotRunning`] if nothing listens there; [`AdminClientError::NotProven`] if something else does.
    pub async fn connect(&self) -> Result<(), AdminClientError> {
        if !self.is_in_process() {
            let connection = self.within(REQUEST_TIMEOUT, self.open()).await?;
            *self.connected.lock() = Some(connection);
        }
        Ok(())
    }

    /// Gets the JSON at `path`.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, AdminClientError> {
        self.request(Method::GET, path, None, REQUEST_TIMEOUT, MAX_ANSWER_BYTES).await
    }

    /// Gets JSON that lists the whole store, with larger limits of size and time.
    pub async fn get_large_answer<T: DeserializeOwned>(&self, path: &str) -> Result<T, AdminClientError> {
        self.request(Method::GET, path, None, COMMAND_TIMEOUT, MAX_LARGE_ANSWER_BYTES).await
    }

    /// Gets the text at `path`.
    pub async fn get_text(&self, path: &str) -> Result<String, AdminClientError> {
        let answer = async {
            let (_, response) = self.exchange(Method::GET, path, None).await?;
            self.read_body(response, MAX_ANSWER_BYTES).await
        };
        Ok(String::from_utf8_lossy(&self.within(REQUEST_TIMEOUT, answer).await?).into_owned())
    }

    /// Sends DELETE to `path`.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, AdminClientError> {
        self.request(Method::DELETE, path, None, REQUEST_TIMEOUT, MAX_ANSWER_BYTES).await
    }

    /// Posts a command in JSON.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, request: &impl Serialize) -> Result<T, AdminClientError> {
        self.request(Method::POST, path, self.to_json(request)?, COMMAND_TIMEOUT, MAX_ANSWER_BYTES).await
    }

    /// Posts a command in JSON whose answer may be large.
    pub async fn post_for_large_answer<T: DeserializeOwned>(
        &self,
        path: &str,
        request: &impl Serialize,
    ) -> Result<T, AdminClientError> {
        self.request(Method::POST, path, self.to_json(request)?, COMMAND_TIMEOUT, MAX_LARGE_ANSWER_BYTES).await
    }

    async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: RequestBody,
        limit: Duration,
        max_bytes: usize,
    ) -> Result<T, AdminClientError> {
        let answer = async {
            let (version, response) = self.exchange(method, path, body).await?;
            self.parse(&version, &self.read_body(response, max_bytes).await?)
        };
        self.within(limit, answer).await
    }

    /// Posts a command that reports its progress; calls `on_step` with each step.
    ///
    /// # Errors
    /// A step that cannot be read, after the last step.
    pub async fn post_steps<S: DeserializeOwned>(
        &self,
        path: &str,
        on_step: impl FnMut(S),
    ) -> Result<(), AdminClientError> {
        let request = self.exchange(Method::POST, path, self.to_json(&json!({}))?);
        let answer = self.within(REQUEST_TIMEOUT, request).await?;
        self.read_steps(answer, on_step).await
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
            Ok(answer) => self.read_steps(answer, on_step).await,
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
        let mut body = self.within(COMMAND_TIMEOUT, request).await?.1.into_body();
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

    /// Calls `on_step` with each line of an answer.
    async fn read_steps<S: DeserializeOwned>(
        &self,
        (version, response): Answer,
        mut on_step: impl FnMut(S),
    ) -> Result<(), AdminClientError> {
        let body = StreamReader::new(response.into_body().into_data_stream().map_err(io::Error::other));
        let mut lines = FramedRead::new(body, LinesCodec::new_with_max_length(MAX_LINE_BYTES));
        let mut result = Ok(());
        loop {
            let reason = match timeout(self.step_timeout, lines.next()).await {
                Ok(None) => return result,
                Ok(Some(Ok(line))) => {
                    match self.parse(&version, line.as_bytes()) {
                        Ok(step) => on_step(step),
                        Err(error) => result = Err(error),
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

    /// Parses an answer, or a line of it.
    ///
    /// # Errors
    /// [`AdminClientError::OtherVersion`] if the larder that answered has another version than this command, else
    /// [`AdminClientError::Failed`].
    fn parse<T: DeserializeOwned>(&self, version: &AnswerVersion, answer: &[u8]) -> Result<T, AdminClientError> {
        serde_json::from_slice(answer).map_err(|error| match version {
            Some(version) if version == OWN_VERSION => self.failed(format!("the answer cannot be read: {error}")),
            version => {
                let older = "an older version, which it does not name".to_owned();
                let version = version.as_ref().map_or(older, |version| format!("version {version}"));
                AdminClientError::OtherVersion { server: self.server(), version }
            }
        })
    }

    /// The running larder; `None` within this process.
    pub fn server(&self) -> Option<AdminServer> {
        match &self.way {
            Way::Socket(path) => Some(AdminServer::Socket(path.clone())),
            Way::Listener { address, .. } | Way::Unproven(address) => Some(AdminServer::Listener(*address)),
            Way::InProcess(_) => None,
        }
    }

    /// The failure of a request to this server.
    pub fn failed(&self, reason: impl ToString) -> AdminClientError {
        AdminClientError::Failed { server: self.server(), reason: reason.to_string() }
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
    async fn exchange(&self, method: Method, path: &str, body: RequestBody) -> Result<Answer, AdminClientError> {
        let connected = self.connected.lock().take();
        let stream = match connected {
            Some(stream) => stream,
            None => self.open().await?,
        };
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.failed(e))?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path);
        request = match &self.way {
            Way::Listener { address, token } => request
                .header(header::HOST, address.to_string())
                .header(header::AUTHORIZATION, format!("Bearer {}", token.expose_secret())),
            Way::Unproven(address) => request.header(header::HOST, address.to_string()),
            Way::Socket(_) | Way::InProcess(_) => request.header(header::HOST, "localhost"),
        };
        if let Some((content_type, _)) = &body {
            request = request.header(header::CONTENT_TYPE, *content_type);
        }
        let body = body.map_or_else(Body::empty, |(_, body)| body);
        let request = request.body(body).map_err(|e| self.failed(e))?;
        let response = sender.send_request(request).await.map_err(|e| self.failed(e))?;
        let status = response.status();
        let version = response.headers().get(LARDER_VERSION).and_then(|version| version.to_str().ok());
        let version = version.map(str::to_owned);
        match self.server() {
            Some(server) if response.headers().get(header::SERVER) != Some(&SERVER) => {
                Err(AdminClientError::NotLarder { server, status })
            }
            _ if status.is_success() => Ok((version, response)),
            _ => Err(self.refusal(status, &self.read_body(response, MAX_ANSWER_BYTES).await?)),
        }
    }

    /// Opens a connection. A listener has proven by its end that it knows the token.
    async fn open(&self) -> Result<Connection, AdminClientError> {
        let server = || self.server().ok_or_else(|| self.failed("there is no server"));
        match &self.way {
            Way::Socket(path) => match local_socket::connect(path).await {
                Ok(stream) => Ok(Either::Left(stream)),
                Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                    Err(AdminClientError::NotRunning(server()?))
                }
                Err(e) => Err(self.failed(e)),
            },
            Way::Unproven(address) => Ok(Either::Right(Either::Left(self.open_tcp(*address).await?))),
            Way::Listener { address, token } => {
                let connector = admin_tls::connector(token).map_err(|e| self.failed(e))?;
                let stream = self.open_tcp(*address).await?;
                match connector.connect(admin_tls::server_name(), stream).await {
                    Ok(stream) => Ok(Either::Right(Either::Right(Either::Left(stream)))),
                    // A larder that ends looks like that, too.
                    Err(e) if is_closed(&e) => Err(self.failed("it closed the connection before it proved itself")),
                    Err(e) => Err(AdminClientError::NotProven { server: server()?, reason: e.to_string() }),
                }
            }
            Way::InProcess(admin) => {
                let (stream, served) = tokio::io::duplex(IN_PROCESS_BYTES);
                let admin = Arc::clone(admin);
                let answer = move |request| Arc::clone(&admin).handle(request, AdminCaller::OwnUser);
                let service = service_fn(move |request| answer(request).map(Ok::<_, Infallible>));
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(served), service),
                );
                Ok(Either::Right(Either::Right(Either::Right(stream))))
            }
        }
    }

    async fn open_tcp(&self, address: SocketAddr) -> Result<TcpStream, AdminClientError> {
        TcpStream::connect(address).await.map_err(|e| match e.kind() {
            io::ErrorKind::ConnectionRefused => AdminClientError::NotRunning(AdminServer::Listener(address)),
            _ => self.failed(e),
        })
    }

    /// The error for an answer with an error status.
    fn refusal(&self, status: StatusCode, body: &[u8]) -> AdminClientError {
        #[derive(Deserialize)]
        struct Errors {
            errors: Vec<String>,
        }
        match serde_json::from_slice::<Errors>(body) {
            Ok(Errors { errors }) => AdminClientError::Refused { server: self.server(), message: errors.join("; ") },
            Err(_) => self.failed(format!("{status}: {}", String::from_utf8_lossy(body))),
        }
    }

    async fn read_body(&self, response: Response<Incoming>, max_bytes: usize) -> Result<Bytes, AdminClientError> {
        let body = Limited::new(response.into_body(), max_bytes).collect().await;
        body.map(|body| body.to_bytes()).map_err(|e| self.failed(e))
    }
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures_util::stream;
    use tokio::net::TcpListener;

    use super::*;

    /// An admin listener of this version that answers every request with these pieces. With `is_stuck` the answer has no end.
    async fn listener_of(version: &'static str, pieces: &'static [&'static str], is_stuck: bool) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = service_fn(move |_| async move {
            let pieces = stream::iter(pieces).map(|piece| Ok(Bytes::from_static(piece.as_bytes())));
            let end = stream::poll_fn(move |_| if is_stuck { Poll::Pending } else { Poll::Ready(None) });
            let response = Response::builder().header(header::SERVER, SERVER).header(LARDER_VERSION, version);
            response.body(Body::stream(pieces.chain(end), None))
        });
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await
        });
        address
    }

    async fn listener(pieces: &'static [&'static str], is_stuck: bool) -> SocketAddr {
        listener_of(OWN_VERSION, pieces, is_stuck).await
    }

    #[tokio::test]
    async fn every_line_of_an_answer_is_reported_even_a_last_one_without_line_end() {
        for (pieces, expected) in
            [(&["1\n2\n"][..], &[1, 2][..]), (&["1", "2\n3", "\n"], &[12, 3]), (&["1\n", "2"], &[1, 2]), (&[], &[])]
        {
            let mut steps: Vec<u8> = Vec::new();
            let client = AdminClient::unproven(listener(pieces, false).await);
            client.post_steps("/", |step| steps.push(step)).await.unwrap();
            assert_eq!(steps, expected);
        }
        for (version, part) in [
            (OWN_VERSION, "the answer cannot be read: "),
            ("9.8.7", "is of version 9.8.7, and this command of version "),
        ] {
            let client = AdminClient::unproven(listener_of(version, &["x\n1\n"], false).await);
            let mut steps: Vec<u8> = Vec::new();
            let error = client.post_steps("/", |step| steps.push(step)).await.unwrap_err();
            assert!(error.to_string().contains(part) && steps == [1], "{error}");
        }
    }

    #[tokio::test]
    async fn a_command_without_a_next_step_ends_after_the_step_timeout() {
        let mut client = AdminClient::unproven(listener(&["1\n", "2"], true).await);
        client.step_timeout = Duration::from_millis(50);
        let mut steps: Vec<u8> = Vec::new();
        let error = client.post_steps("/", |step| steps.push(step)).await.unwrap_err();
        assert!(error.to_string().contains("nothing more of the answer came within"), "{error}");
        assert_eq!(steps, [1]);
    }
}
