//! Bundle transfers: a larder with upstreams creates bundles, and an offline larder applies them.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use larder::app::{self, StartSettings};
use larder::bundle::{ApplyEvent, BundleTrust, NotesPolicy, Receipt, SigningKey};
use larder::clock::Clock;
use larder::mirror::{ApplyError, ApplyOptions, Mirror};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::eventually;
use super::http::{Answer, client, send};
use super::larder::{Builder, Folder, HOST, Larder};
use super::process::Process;
use super::reports::display_name;
use super::store_kind;
use super::upstream::FakeUpstream;

/// The key that signs bundles, as the configurations of both larders name it.
pub(crate) struct BundleKey {
    pub(crate) key: SigningKey,
    file: tempfile::NamedTempFile,
}

impl BundleKey {
    pub(crate) fn new() -> Self {
        let (key, file) = (SigningKey::generate().unwrap(), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(file.path(), key.text().expose_secret()).unwrap();
        Self { key, file }
    }

    /// Adds this key to a larder as its signing key.
    pub(crate) fn with_signing_key(&self, larder: Builder) -> Builder {
        larder.upstream_lines(&format!("[bundle]\nsigning_key = {{ file = {:?} }}", self.file.path()))
    }

    /// Adds this key to a larder as a trusted key.
    pub(crate) fn with_trusted_key(&self, larder: Builder) -> Builder {
        larder.upstream_lines(&format!("[bundle]\ntrusted_keys = [\"{}\"]", self.key.public()))
    }

    /// An offline larder for `HOST` that trusts this key. No upstream runs.
    pub(crate) fn sealed(&self) -> Builder {
        self.with_trusted_key(sealed())
    }

    /// Options for applying a bundle: only this key is trusted.
    pub(crate) fn trust(&self) -> ApplyOptions {
        ApplyOptions {
            trust: BundleTrust { keys: vec![self.key.public()], allow_unsigned: false },
            accept: Vec::new(),
            max_age: None,
            notes: NotesPolicy::Take,
        }
    }

    /// Options for applying a bundle as with `--unsigned`: unsigned bundles are accepted too.
    pub(crate) fn trust_or_unsigned(&self) -> ApplyOptions {
        let mut options = self.trust();
        options.trust.allow_unsigned = true;
        options
    }
}

/// The creation time of bundles (seconds since 1970), always the same so that equal packages make equal bundles.
const BUNDLE_CREATED: u64 = 1_795_293_761;

/// An offline larder for `HOST`.
pub(crate) fn sealed() -> Builder {
    Larder::builder().upstream(HOST, "http://127.0.0.1:9/", "").network("offline = true")
}

/// Runs a warm-up that succeeds; returns the id of the job.
pub(crate) async fn warm_up(larder: &Larder, addresses: &[&str], platforms: &[&str]) -> String {
    let job = ended_warm_up(larder, addresses, platforms).await;
    assert_eq!(job["state"], "done", "{job:#}");
    job["id"].as_str().unwrap().to_owned()
}

/// Runs a warm-up to its end; returns the job.
pub(crate) async fn ended_warm_up(larder: &Larder, addresses: &[&str], platforms: &[&str]) -> Value {
    let body = json!({ "what": addresses, "platforms": platforms }).to_string();
    let request = client().post(format!("{}/admin/v1/warm", larder.admin())).bearer_auth(larder.token());
    let job = send(request.header("content-type", "application/json").body(body)).await.unwrap().expect(202).json();
    let job_url = format!("{}/admin/v1/jobs/{}", larder.admin(), job["id"].as_str().unwrap());
    let finished = eventually("the job ends", async || {
        let job = super::http::get(&job_url).await.expect(200).json();
        (job["state"] != "running").then_some(job)
    });
    finished.await
}

/// The bundle of the packages of a job. `since` is an inventory: the bundle is then a delta to it.
pub(crate) async fn bundle_of(larder: &Larder, job: &str, since: Option<Value>) -> Vec<u8> {
    bundle_made_at(larder, job, since, BUNDLE_CREATED).await
}

/// The bundle of a job's packages, with this creation time (seconds since 1970).
pub(crate) async fn bundle_made_at(larder: &Larder, job: &str, since: Option<Value>, created: u64) -> Vec<u8> {
    let body = json!({ "job": job, "since": since, "created": created }).to_string();
    let request = client().post(format!("{}/admin/v1/bundle", larder.admin())).bearer_auth(larder.token());
    let answer = send(request.header("content-type", "application/json").body(body)).await.unwrap().expect(200);
    assert_eq!(answer.headers["content-type"], "application/x-tar");
    answer.body
}

/// Uploads a bundle to a running larder; returns the response.
pub(crate) async fn apply_bundle(larder: &Larder, bundle: Vec<u8>) -> Answer {
    let request = client().post(format!("{}/admin/v1/bundle/apply", larder.admin())).bearer_auth(larder.token());
    send(request.header("content-type", "application/x-tar").body(bundle)).await.unwrap()
}

/// An upload of a bundle to a running larder, piece by piece.
pub(crate) struct BundleUpload {
    body: mpsc::Sender<Result<Vec<u8>, io::Error>>,
    response: JoinHandle<Result<Answer, reqwest::Error>>,
}

impl BundleUpload {
    /// Starts the request without any bytes of the bundle.
    pub(crate) fn start(running: &Process, folder: &Folder) -> Self {
        let token = std::fs::read_to_string(folder.path().join("admin-token")).unwrap();
        let (body, pieces) = mpsc::channel(1);
        let stream = stream::unfold(pieces, |mut pieces: mpsc::Receiver<io::Result<Vec<u8>>>| async {
            let piece = pieces.recv().await?;
            Some((piece.map(|piece| Frame::data(Bytes::from(piece))), pieces))
        });
        let request = client().post(format!("{}/admin/v1/bundle/apply", running.admin())).bearer_auth(token);
        let request =
            request.header("content-type", "application/x-tar").body(reqwest::Body::wrap(StreamBody::new(stream)));
        Self { body, response: tokio::spawn(send(request)) }
    }

    /// Sends the next bytes of the bundle.
    pub(crate) async fn send_piece(&self, bytes: &[u8]) {
        self.body.send(Ok(bytes.to_vec())).await.unwrap();
    }

    /// Ends the body; returns the response.
    pub(crate) async fn finish(self) -> Answer {
        drop(self.body);
        self.response.await.unwrap().unwrap()
    }

    /// Ends the body and ignores the response.
    pub(crate) async fn disconnect(self) {
        drop(self.body);
        let _ = self.response.await;
    }
}

/// The receipt at the end of a response to a bundle.
pub(crate) fn receipt_in(answer: &Answer) -> Receipt {
    match serde_json::from_str(answer.text().lines().last().unwrap()).unwrap() {
        ApplyEvent::Done { receipt } => receipt,
        event => panic!("{event:?}"),
    }
}

/// Uploads a bundle to a running larder, which must accept it; returns the receipt.
pub(crate) async fn applied_receipt(larder: &Larder, bundle: Vec<u8>) -> Receipt {
    receipt_in(&apply_bundle(larder, bundle).await.expect(200))
}

/// Warms a new larder up and returns a bundle of the packages.
pub(crate) async fn bundle(
    upstream: &FakeUpstream,
    key: &BundleKey,
    addresses: &[&str],
    platforms: &[&str],
) -> Vec<u8> {
    let larder = key.with_signing_key(Larder::mirroring(upstream)).start().await;
    let job = warm_up(&larder, addresses, platforms).await;
    bundle_of(&larder, &job, None).await
}

/// The store of a sealed larder without a running server.
pub(crate) struct SealedStore {
    pub(crate) folder: Folder,
    pub(crate) mirror: Arc<Mirror>,
}

impl SealedStore {
    pub(crate) fn open(builder: Builder, folder: &Folder) -> Self {
        let config = builder.store_at(folder).config();
        let settings = StartSettings { open_store: store_kind::open, ..StartSettings::default() };
        Self { folder: folder.clone(), mirror: app::open_mirror(&config, &settings).unwrap().mirror }
    }

    /// A new, empty store.
    pub(crate) fn new(builder: Builder) -> Self {
        Self::open(builder, &Folder::new())
    }

    /// Applies a bundle.
    pub(crate) async fn apply(&self, bundle: Vec<u8>, options: &ApplyOptions) -> Result<Receipt, ApplyError> {
        self.apply_from(Cursor::new(bundle), options).await
    }

    /// Applies a bundle from a reader.
    pub(crate) async fn apply_from(
        &self,
        bundle: impl Read + Send + 'static,
        options: &ApplyOptions,
    ) -> Result<Receipt, ApplyError> {
        self.apply_with_events(bundle, options, |_| {}).await
    }

    /// Applies a bundle from a reader; passes each event to `on_event`.
    pub(crate) async fn apply_with_events(
        &self,
        bundle: impl Read + Send + 'static,
        options: &ApplyOptions,
        mut on_event: impl FnMut(ApplyEvent),
    ) -> Result<Receipt, ApplyError> {
        let (mirror, options, clock) = (Arc::clone(&self.mirror), options.clone(), Clock::system());
        // A bundle arrives some time after it was created.
        clock.advance(Duration::from_secs(3600));
        let (mut events, applying) = mirror.transfers.spawn_apply(bundle, options, clock);
        while let Some(event) = events.recv().await {
            on_event(event);
        }
        let result = applying.await.unwrap();
        // Hashes are computed in the background; stores can be compared when they are done.
        self.mirror.library.complete_hashes().await.unwrap();
        result
    }

    pub(crate) async fn close(self) -> Folder {
        self.mirror.library.close().await.unwrap();
        self.folder
    }
}

/// The contents of a closed store, once its background hashes are done.
pub(crate) async fn settled_contents(builder: Builder, folder: &Folder) -> BTreeMap<String, Vec<u8>> {
    let store = SealedStore::open(builder, folder);
    store.mirror.library.complete_hashes().await.unwrap();
    contents(&store.close().await)
}

/// The files of a store that larder serves from, by path, with timestamps removed.
pub(crate) fn contents(folder: &Folder) -> BTreeMap<String, Vec<u8>> {
    let root = folder.path().join("v1");
    let files = ["blobs", "names", "documents", "seen"].into_iter().flat_map(|kind| folder.files(kind));
    files.map(|path| (name_below(&root, &path), without_timestamps(folder.bytes(&path)))).collect()
}

fn name_below(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap().display().to_string()
}

/// A record without its checksum and without timestamps (seconds since 1970, ten digits).
fn without_timestamps(file: Vec<u8>) -> Vec<u8> {
    let text = String::from_utf8_lossy(&file).into_owned();
    let Some((_, record)) = text.split_once('\n').filter(|(checksum_line, _)| checksum_line.contains("\"blake3\""))
    else {
        return file;
    };
    let (head, body) = record.split_once('\n').unwrap_or((record, ""));
    let begins_with_time = |field: &&str| field.len() >= 10 && field.as_bytes()[..10].iter().all(u8::is_ascii_digit);
    let fields = head.split(':').map(|field| if begins_with_time(&field) { &field[10..] } else { field });
    format!("{}\n{body}", fields.collect::<Vec<_>>().join(":")).into_bytes()
}

/// The name and the outcome of each entry of a receipt.
pub(crate) fn outcomes(receipt: &Receipt) -> Vec<(String, String)> {
    let outcome = |value: Value| value["outcome"].as_str().unwrap().to_owned();
    receipt
        .entries
        .iter()
        .map(|entry| (entry.package.to_string(), outcome(serde_json::to_value(entry).unwrap())))
        .collect()
}

/// The only refused entry of a receipt: its name and the reason.
pub(crate) fn refusal(receipt: &Receipt) -> (String, String) {
    let report = serde_json::to_value(receipt).unwrap();
    let refused: Vec<&Value> =
        report["entries"].as_array().unwrap().iter().filter(|entry| entry["outcome"] == "refused").collect();
    let [refused] = refused[..] else { panic!("{report:#}") };
    (display_name(refused), refused["why"].as_str().unwrap().to_owned())
}
