//! A bucket that speaks the protocol of S3, over TLS and in memory, with faults by name. It checks what a bucket checks: the key,
//! the digest of the body, the checksum, the parts of an upload.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use larder::config::{Config, Fleet, Network};
use larder::digest::Digest;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::support::tls::TestCa;

const BUCKET: &str = "larder";
/// The account of Google that may use it.
pub(crate) const SERVICE_ACCOUNT: &str = "larder@test.iam";
/// The place in it that larder uses.
pub(crate) const PLACE: &str = "s3://larder/mirror";
pub(crate) const ACCESS_KEY: &str = "test-access-key";
pub(crate) const SECRET: &str = "test-secret-of-the-bucket";

/// The pieces in which a limited answer is sent, each second.
const PIECES_A_SECOND: usize = 200;

/// A request to the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    Put,
    Begin,
    Part,
    Complete,
    Abort,
    Get,
    Delete,
}

/// A way in which the bucket fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BucketFault {
    SlowDown,
    Conflict,
    Denied,
    Full,
    Gone,
    Skewed,
    /// It does what it is asked for, and its answer is lost.
    LostAnswer,
    /// It says that it has the bytes, and has not.
    LostPart,
    /// The bytes end early.
    Truncated,
    /// The bytes stop, and the connection stays.
    Stalled,
    /// The bytes are others.
    Swapped,
    /// It fails after it has answered with success.
    FailsLate,
    /// The bytes come at most at this rate, each second.
    Limited(u32),
    /// No answer, ever.
    Hang,
}

/// The number of times that a fault happens.
#[derive(Debug)]
enum Planned {
    Once(BucketFault),
    Always(BucketFault),
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Bytes>,
    uploads: BTreeMap<String, (String, BTreeMap<u32, Bytes>)>,
    begun: u64,
    faults: BTreeMap<Verb, VecDeque<Planned>>,
    requests: Vec<(Verb, String)>,
    held: BTreeMap<Verb, Arc<Semaphore>>,
    /// The access key that counts; `None` for [`ACCESS_KEY`].
    access_key: Option<&'static str>,
}

/// The bucket. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct TestBucket {
    state: Arc<Mutex<State>>,
    origin: String,
    ca: tempfile::TempDir,
    runtime: Option<tokio::runtime::Runtime>,
}

type Reply = Response<BoxBody<Bytes, io::Error>>;

impl TestBucket {
    /// An empty bucket. It has a thread of its own, so that tests may block.
    pub(crate) fn start() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let authority = TestCa::new();
        let ca = tempfile::tempdir().expect("a folder");
        std::fs::write(ca.path().join("ca.pem"), authority.pem()).expect("a file");
        let tls = TlsAcceptor::from(authority.server_config(&["127.0.0.1"], false));
        let state = Arc::<Mutex<State>>::default();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("an option every socket has");
        let origin = format!("https://{}", listener.local_addr().expect("an address"));
        let answering = Arc::clone(&state);
        runtime.spawn(async move {
            accept(TcpListener::from_std(listener).expect("a listener"), tls, answering).await;
        });
        Self { state, origin, ca, runtime: Some(runtime) }
    }

    /// The URL of the object store.
    pub(crate) fn endpoint(&self) -> &str {
        &self.origin
    }

    /// The file of the authority of its certificate.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.ca.path().join("ca.pem")
    }

    /// The settings of a larder that uses it.
    pub(crate) fn settings(&self) -> (Fleet, Network) {
        settings_of(&self.origin, PLACE, Some((ACCESS_KEY, SECRET)), Some(&self.ca_file()))
    }

    /// Takes this access key from now on, and no other.
    pub(crate) fn take_key(&self, access_key: &'static str) {
        self.state.lock().unwrap().access_key = Some(access_key);
    }

    /// Makes each request of a kind fail, until [`Self::heal`].
    pub(crate) fn fail(&self, verb: Verb, fault: BucketFault) {
        self.plan(verb, Planned::Always(fault));
    }

    /// Makes the next request of a kind fail.
    pub(crate) fn fail_once(&self, verb: Verb, fault: BucketFault) {
        self.plan(verb, Planned::Once(fault));
    }

    /// Makes every request fail, until [`Self::heal`].
    pub(crate) fn fail_all(&self, fault: BucketFault) {
        for verb in [Verb::Put, Verb::Begin, Verb::Part, Verb::Complete, Verb::Abort, Verb::Get, Verb::Delete] {
            self.fail(verb, fault);
        }
    }

    fn plan(&self, verb: Verb, planned: Planned) {
        self.state.lock().unwrap().faults.entry(verb).or_default().push_back(planned);
    }

    /// Ends all faults.
    pub(crate) fn heal(&self) {
        self.state.lock().unwrap().faults.clear();
    }

    /// Holds requests of a kind until permits are added.
    pub(crate) fn hold(&self, verb: Verb) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        self.state.lock().unwrap().held.insert(verb, Arc::clone(&gate));
        gate
    }

    /// Ends a hold; what waits goes on.
    pub(crate) fn release(&self, verb: Verb) {
        if let Some(gate) = self.state.lock().unwrap().held.remove(&verb) {
            gate.add_permits(1000);
        }
    }

    /// The names of all objects.
    pub(crate) fn objects(&self) -> Vec<String> {
        self.state.lock().unwrap().objects.keys().cloned().collect()
    }

    /// The bytes of an object.
    pub(crate) fn object(&self, name: &str) -> Option<Bytes> {
        self.state.lock().unwrap().objects.get(name).cloned()
    }

    /// Puts other bytes in the place of every object.
    pub(crate) fn replace_all(&self, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap();
        state.objects.values_mut().for_each(|object| *object = Bytes::copy_from_slice(bytes));
    }

    /// Removes every object, as a rule of the bucket may.
    pub(crate) fn lose_all(&self) {
        self.state.lock().unwrap().objects.clear();
    }

    /// The number of uploads that were begun, and neither completed nor given up.
    pub(crate) fn unfinished(&self) -> usize {
        self.state.lock().unwrap().uploads.len()
    }

    /// The number of requests of a kind.
    pub(crate) fn count(&self, verb: Verb) -> usize {
        self.state.lock().unwrap().requests.iter().filter(|(asked, _)| *asked == verb).count()
    }
}

impl Drop for TestBucket {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The settings of a larder with the bucket of this URL. Without a key, the environment has one.
pub(crate) fn settings_of(
    endpoint: &str,
    bucket: &str,
    key: Option<(&str, &str)>,
    ca_file: Option<&PathBuf>,
) -> (Fleet, Network) {
    let bucket_key = r#"bucket_key = { access_key = { env = "TEST_ACCESS_KEY" }, secret = { env = "TEST_SECRET" } }"#;
    let (bucket_key, (access_key, secret)) = (key.map_or("", |_| bucket_key), key.unwrap_or_default());
    let ca_file = ca_file.map(|file| format!("ca_file = {file:?}")).unwrap_or_default();
    let text = format!(
        r#"
        [network]
        {ca_file}
        [fleet]
        database = {{ env = "TEST_DATABASE" }}
        bucket = "{bucket}"
        endpoint = "{endpoint}"
        {bucket_key}
        secret = [{{ env = "TEST_FLEET_SECRET" }}]
        listen = "127.0.0.1:8082"
        advertise = "http://127.0.0.1:8082/"
        "#
    );
    let value = |name: &str| {
        let value = match name {
            "TEST_DATABASE" => "postgresql://larder@127.0.0.1/larder",
            "TEST_ACCESS_KEY" => access_key,
            "TEST_SECRET" => secret,
            "TEST_FLEET_SECRET" => "a secret of the fleet that is long enough",
            _ => return None,
        };
        Some(value.to_owned())
    };
    let (config, _) = Config::parse(&text, Path::new("test.toml"), &value).expect("a configuration");
    (config.fleet.expect("[fleet]"), config.network)
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, state: Arc<Mutex<State>>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        drop(stream.set_nodelay(true));
        let (tls, state) = (tls.clone(), Arc::clone(&state));
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let service = service_fn(move |request| answer(request, Arc::clone(&state)));
            // Faults break connections on purpose.
            drop(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

/// An error ends the connection without an answer.
async fn answer(request: Request<Incoming>, state: Arc<Mutex<State>>) -> Result<Reply, io::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let path = percent_encoding::percent_decode_str(parts.uri.path()).decode_utf8_lossy().into_owned();
    let query = parts.uri.query().unwrap_or_default();
    let pairs: BTreeMap<String, String> = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    let verb = match (&parts.method, pairs.contains_key("uploadId")) {
        (&Method::PUT, true) => Verb::Part,
        (&Method::PUT, false) => Verb::Put,
        (&Method::POST, true) => Verb::Complete,
        (&Method::POST, false) => Verb::Begin,
        (&Method::DELETE, true) => Verb::Abort,
        (&Method::DELETE, false) => Verb::Delete,
        _ => Verb::Get,
    };
    let Some(key) = path.strip_prefix(&format!("/{BUCKET}/")).map(str::to_owned) else {
        return Ok(refusal(404, "NoSuchBucket"));
    };
    let (fault, gate) = {
        let mut state = state.lock().unwrap();
        state.requests.push((verb, key.clone()));
        (planned(&mut state, verb), state.held.get(&verb).cloned())
    };
    if let Some(gate) = gate {
        gate.acquire().await.expect("the gate is not closed").forget();
    }
    match fault {
        Some(BucketFault::SlowDown) => return Ok(refusal(503, "SlowDown")),
        Some(BucketFault::Conflict) => return Ok(refusal(409, "OperationAborted")),
        Some(BucketFault::Denied) => return Ok(refusal(403, "AccessDenied")),
        Some(BucketFault::Full) => return Ok(refusal(403, "QuotaExceeded")),
        Some(BucketFault::Gone) => return Ok(refusal(404, "NoSuchBucket")),
        Some(BucketFault::Skewed) => return Ok(refusal(403, "RequestTimeTooSkewed")),
        Some(BucketFault::FailsLate) => return Ok(xml("<Error><Code>InternalError</Code></Error>")),
        Some(BucketFault::Hang) => std::future::pending::<()>().await,
        _ => {}
    }
    let access_key = state.lock().unwrap().access_key.unwrap_or(ACCESS_KEY);
    if let Err(refused) = check(&parts.headers, access_key, &body) {
        return Ok(*refused);
    }
    let reply = perform(verb, &key, &pairs, &parts.headers, body, fault, &mut state.lock().unwrap());
    if fault == Some(BucketFault::LostAnswer) {
        return Err(io::Error::other("the answer is lost"));
    }
    Ok(reply)
}

fn planned(state: &mut State, verb: Verb) -> Option<BucketFault> {
    let plan = state.faults.get_mut(&verb)?;
    match plan.front()? {
        Planned::Always(fault) => Some(*fault),
        Planned::Once(fault) => {
            let fault = *fault;
            plan.pop_front();
            Some(fault)
        }
    }
}

/// Checks the key, the signed digest of the body, and its checksum.
fn check(headers: &HeaderMap, access_key: &str, body: &Bytes) -> Result<(), Box<Reply>> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if let Some(token) = text("authorization").strip_prefix("Bearer ") {
        // Google's clients sign a token of their own, and no bytes.
        let claims = token.split('.').nth(1).and_then(|claims| URL_SAFE_NO_PAD.decode(claims).ok());
        let claims: Option<serde_json::Value> = claims.and_then(|claims| serde_json::from_slice(&claims).ok());
        let is_known = claims.is_some_and(|claims| claims["iss"] == SERVICE_ACCOUNT);
        return if is_known { Ok(()) } else { Err(Box::new(refusal(401, "InvalidToken"))) };
    }
    if !text("authorization").contains(&format!("Credential={access_key}/")) {
        return Err(Box::new(refusal(403, "InvalidAccessKeyId")));
    }
    if text("x-amz-content-sha256") != Digest::of(body).to_string() {
        return Err(Box::new(refusal(400, "XAmzContentSHA256Mismatch")));
    }
    let checksum = text("x-amz-checksum-sha256");
    if !checksum.is_empty() && checksum != STANDARD.encode(Digest::of(body).as_bytes()) {
        return Err(Box::new(refusal(400, "BadDigest")));
    }
    Ok(())
}

fn perform(
    verb: Verb,
    key: &str,
    pairs: &BTreeMap<String, String>,
    headers: &HeaderMap,
    body: Bytes,
    fault: Option<BucketFault>,
    state: &mut State,
) -> Reply {
    let upload = pairs.get("uploadId").cloned().unwrap_or_default();
    let tagged = |body: &Bytes| {
        let etag = format!("\"{}\"", Digest::of(body).prefix());
        Response::builder().header("etag", etag).body(full("")).expect("a response")
    };
    match verb {
        Verb::Put => {
            let reply = tagged(&body);
            state.objects.insert(key.to_owned(), body);
            reply
        }
        Verb::Begin => {
            state.begun += 1;
            let id = format!("upload-{}", state.begun);
            state.uploads.insert(id.clone(), (key.to_owned(), BTreeMap::new()));
            xml(&format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"))
        }
        Verb::Part => {
            let Some((_, parts)) = state.uploads.get_mut(&upload) else { return refusal(404, "NoSuchUpload") };
            let reply = tagged(&body);
            if fault != Some(BucketFault::LostPart) {
                parts.insert(pairs["partNumber"].parse().expect("a number"), body);
            }
            reply
        }
        Verb::Complete => {
            let Some((key, parts)) = state.uploads.get(&upload).cloned() else { return refusal(404, "NoSuchUpload") };
            let listed = String::from_utf8_lossy(&body).matches("<PartNumber>").count();
            if listed != parts.len() {
                return refusal(400, "InvalidPart");
            }
            let whole: Vec<u8> = parts.values().flat_map(|part| part.to_vec()).collect();
            state.objects.insert(key, whole.into());
            state.uploads.remove(&upload);
            xml("<CompleteMultipartUploadResult><ETag>\"whole\"</ETag></CompleteMultipartUploadResult>")
        }
        Verb::Abort => {
            state.uploads.remove(&upload);
            status(204)
        }
        Verb::Delete => {
            state.objects.remove(key);
            status(204)
        }
        Verb::Get => match state.objects.get(key) {
            Some(object) => sent(object, headers, fault),
            None => refusal(404, "NoSuchKey"),
        },
    }
}

/// An object, or a part of it, as the request asks.
fn sent(object: &Bytes, headers: &HeaderMap, fault: Option<BucketFault>) -> Reply {
    let range = headers.get("range").and_then(|range| range.to_str().ok());
    let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let (size, start) = (object.len(), from.unwrap_or(0));
    if start > 0 && start >= size {
        return refusal(416, "InvalidRange");
    }
    let mut bytes = object.slice(start..);
    if fault == Some(BucketFault::Swapped) {
        bytes = bytes.iter().map(|byte| !byte).collect::<Vec<_>>().into();
    }
    let length = bytes.len();
    let reply =
        Response::builder().header("etag", "\"object\"").header("last-modified", "Mon, 02 Nov 2026 00:00:00 GMT");
    let mut reply = reply.header("content-length", length);
    if from.is_some() {
        reply = reply.status(206).header("content-range", format!("bytes {start}-{}/{size}", size - 1));
    }
    let body = if matches!(fault, Some(BucketFault::Truncated | BucketFault::Stalled)) {
        let half = Ok(Frame::data(bytes.slice(..length / 2)));
        let broken = stream::once(async move {
            if fault == Some(BucketFault::Stalled) {
                std::future::pending::<()>().await;
            }
            Err(io::Error::other("the connection breaks"))
        });
        http_body_util::BodyExt::boxed(StreamBody::new(stream::iter([half]).chain(broken)))
    } else if let Some(BucketFault::Limited(rate)) = fault {
        let pieces = bytes.chunks((rate as usize / PIECES_A_SECOND).max(1)).map(Bytes::copy_from_slice);
        let pieces: Vec<Bytes> = pieces.collect();
        let began = Instant::now();
        let sent = stream::iter(pieces.into_iter().enumerate()).then(move |(number, piece)| async move {
            let due = Duration::from_secs(number as u64) / PIECES_A_SECOND as u32;
            tokio::time::sleep_until((began + due).into()).await;
            Ok(Frame::data(piece))
        });
        http_body_util::BodyExt::boxed(StreamBody::new(sent))
    } else {
        full(bytes)
    };
    reply.body(body).expect("a response")
}

fn full(bytes: impl Into<Bytes>) -> BoxBody<Bytes, io::Error> {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed()
}

fn xml(text: &str) -> Reply {
    let text = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{text}");
    Response::builder().header("content-type", "application/xml").body(full(text)).expect("a response")
}

fn status(code: u16) -> Reply {
    Response::builder().status(code).body(full("")).expect("a response")
}

fn refusal(code: u16, name: &str) -> Reply {
    let mut reply = xml(&format!("<Error><Code>{name}</Code><Message>a test bucket says {name}</Message></Error>"));
    *reply.status_mut() = StatusCode::from_u16(code).expect("a status");
    reply
}
