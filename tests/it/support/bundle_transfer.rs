//! Two larders with a gap between them: one that has upstreams and makes bundles, one that is offline and applies them.

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
use larder::bundle::{ApplyEvent, BundleTrust, Receipt, SigningKey};
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
use super::reports::called;
use super::upstream::FakeUpstream;

/// The key that bundles are signed with, as both sides have it in their configurations.
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

    /// A larder that signs with it.
    pub(crate) fn signs(&self, larder: Builder) -> Builder {
        larder.with(&format!("[bundle]\nsigning_key = {{ file = {:?} }}", self.file.path()))
    }

    /// A larder that trusts it.
    pub(crate) fn is_trusted_by(&self, larder: Builder) -> Builder {
        larder.with(&format!("[bundle]\ntrusted_keys = [\"{}\"]", self.key.public()))
    }

    /// An offline larder of the usual registry that trusts this key. No upstream runs.
    pub(crate) fn sealed(&self) -> Builder {
        self.is_trusted_by(sealed())
    }

    pub(crate) fn trust(&self) -> ApplyOptions {
        ApplyOptions {
            trust: BundleTrust { keys: vec![self.key.public()], allow_unsigned: false },
            accept: Vec::new(),
            max_age: None,
        }
    }

    /// The same, as with `--unsigned`.
    pub(crate) fn trust_or_unsigned(&self) -> ApplyOptions {
        let mut options = self.trust();
        options.trust.allow_unsigned = true;
        options
    }
}

/// An offline larder of the usual registry.
pub(crate) fn sealed() -> Builder {
    Larder::builder().upstream(HOST, "http://127.0.0.1:9/", "").network("offline = true")
}

/// Warms these, and gives the id of the job once it is done.
pub(crate) async fn warmed(larder: &Larder, subject: &[&str], platforms: &[&str]) -> String {
    let order = json!({ "what": subject, "platforms": platforms }).to_string();
    let request = client().post(format!("{}/admin/v1/warm", larder.admin())).bearer_auth(larder.token());
    let job = send(request.header("content-type", "application/json").body(order)).await.unwrap().expect(202).json();
    let id = job["id"].as_str().unwrap().to_owned();
    let place = format!("{}/admin/v1/jobs/{id}", larder.admin());
    let ended = eventually("the job ends", async || {
        let job = super::http::get(&place).await.expect(200).json();
        (job["state"] != "running").then_some(job)
    });
    let ended = ended.await;
    assert_eq!(ended["state"], "done", "{ended:#}");
    id
}

/// The bundle of a job's packages.
pub(crate) async fn bundle_of(larder: &Larder, job: &str, since: Option<Value>) -> Vec<u8> {
    bundle_made_at(larder, job, since, 1_795_293_761).await
}

/// The same, created at this time.
pub(crate) async fn bundle_made_at(larder: &Larder, job: &str, since: Option<Value>, created: u64) -> Vec<u8> {
    let body = json!({ "job": job, "since": since, "created": created }).to_string();
    let request = client().post(format!("{}/admin/v1/bundle", larder.admin())).bearer_auth(larder.token());
    let answer = send(request.header("content-type", "application/json").body(body)).await.unwrap().expect(200);
    assert_eq!(answer.headers["content-type"], "application/x-tar");
    answer.body
}

/// A running larder's answer to a bundle.
pub(crate) async fn given(larder: &Larder, bundle: Vec<u8>) -> Answer {
    let request = client().post(format!("{}/admin/v1/bundle/apply", larder.admin())).bearer_auth(larder.token());
    send(request.header("content-type", "application/x-tar").body(bundle)).await.unwrap()
}

/// An upload of a bundle to a running larder, piece by piece.
pub(crate) struct Giving {
    sent: mpsc::Sender<Result<Vec<u8>, io::Error>>,
    answer: JoinHandle<Result<Answer, reqwest::Error>>,
}

impl Giving {
    /// Nothing is sent yet.
    pub(crate) fn to(running: &Process, folder: &Folder) -> Self {
        let token = std::fs::read_to_string(folder.path().join("admin-token")).unwrap();
        let (sent, body) = mpsc::channel(1);
        let stream = stream::unfold(body, |mut body: mpsc::Receiver<io::Result<Vec<u8>>>| async {
            let piece = body.recv().await?;
            Some((piece.map(|piece| Frame::data(Bytes::from(piece))), body))
        });
        let request = client().post(format!("{}/admin/v1/bundle/apply", running.admin())).bearer_auth(token);
        let request =
            request.header("content-type", "application/x-tar").body(reqwest::Body::wrap(StreamBody::new(stream)));
        Self { sent, answer: tokio::spawn(send(request)) }
    }

    /// Sends some of it.
    pub(crate) async fn more(&self, bytes: &[u8]) {
        self.sent.send(Ok(bytes.to_vec())).await.unwrap();
    }

    /// Ends the body.
    pub(crate) async fn ends(self) -> Answer {
        drop(self.sent);
        self.answer.await.unwrap().unwrap()
    }

    /// Closes the connection.
    pub(crate) async fn breaks_off(self) {
        drop(self.sent);
        let _ = self.answer.await;
    }
}

/// The receipt in a running larder's answer.
pub(crate) fn receipt_in(answer: &Answer) -> Receipt {
    match serde_json::from_str(answer.text().lines().last().unwrap()).unwrap() {
        ApplyEvent::Done { receipt } => receipt,
        step => panic!("{step:?}"),
    }
}

/// The receipt of a bundle that a running larder takes.
pub(crate) async fn applied_by(larder: &Larder, bundle: Vec<u8>) -> Receipt {
    receipt_in(&given(larder, bundle).await.expect(200))
}

/// Warms these and gives a bundle of them.
pub(crate) async fn bundle(upstream: &FakeUpstream, key: &BundleKey, subject: &[&str], platforms: &[&str]) -> Vec<u8> {
    let larder = key.signs(Larder::mirroring(upstream)).start().await;
    let job = warmed(&larder, subject, platforms).await;
    bundle_of(&larder, &job, None).await
}

/// A store of a sealed larder that does not run.
pub(crate) struct Sealed {
    pub(crate) folder: Folder,
    pub(crate) mirror: Arc<Mirror>,
}

impl Sealed {
    pub(crate) fn open(builder: Builder, folder: &Folder) -> Self {
        let config = builder.on(folder).config();
        let (mirror, _, _) = app::mirror(&config, &StartSettings::default()).unwrap();
        Self { folder: folder.clone(), mirror }
    }

    /// A new one.
    pub(crate) fn new(builder: Builder) -> Self {
        Self::open(builder, &Folder::new())
    }

    /// Applies these bytes.
    pub(crate) async fn apply(&self, bundle: Vec<u8>, how: &ApplyOptions) -> Result<Receipt, ApplyError> {
        self.apply_from(Cursor::new(bundle), how).await
    }

    /// The same from a reader.
    pub(crate) async fn apply_from(
        &self,
        bundle: impl Read + Send + 'static,
        how: &ApplyOptions,
    ) -> Result<Receipt, ApplyError> {
        self.apply_telling(bundle, how, |_| {}).await
    }

    /// The same, with each event.
    pub(crate) async fn apply_telling(
        &self,
        bundle: impl Read + Send + 'static,
        how: &ApplyOptions,
        mut tell: impl FnMut(ApplyEvent) + Send + 'static,
    ) -> Result<Receipt, ApplyError> {
        let (mirror, how, clock) = (Arc::clone(&self.mirror), how.clone(), Clock::system());
        // Across the gap it is later.
        clock.advance(Duration::from_secs(3600));
        let applying = tokio::task::spawn_blocking(move || mirror.apply(bundle, &how, &clock, &mut tell));
        let applied = applying.await.unwrap();
        // Hashes are computed in the background; stores can be compared when they are done.
        self.mirror.complete_hashes().await.unwrap();
        applied
    }

    pub(crate) async fn close(self) -> Folder {
        self.mirror.close().await.unwrap();
        self.folder
    }
}

/// The contents of a closed store, once its background hashes are done.
pub(crate) async fn settled_contents(builder: Builder, folder: &Folder) -> BTreeMap<String, Vec<u8>> {
    let there = Sealed::open(builder, folder);
    there.mirror.complete_hashes().await.unwrap();
    contents(&there.close().await)
}

/// The servable content of a store: each file below its folder, with its bytes. Timestamps are left out.
pub(crate) fn contents(folder: &Folder) -> BTreeMap<String, Vec<u8>> {
    let root = folder.path().join("v1");
    let files = ["blobs", "names", "documents", "seen"].into_iter().flat_map(|kind| folder.files(kind));
    files.map(|path| (name_below(&root, &path), without_times(std::fs::read(&path).unwrap()))).collect()
}

fn name_below(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap().display().to_string()
}

/// A record without its checksum, and without the times in it: seconds since 1970, which have ten digits.
fn without_times(file: Vec<u8>) -> Vec<u8> {
    let text = String::from_utf8_lossy(&file).into_owned();
    let Some((_, record)) = text.split_once('\n').filter(|(frame, _)| frame.contains("\"blake3\"")) else {
        return file;
    };
    let (head, rest) = record.split_once('\n').unwrap_or((record, ""));
    let is_time = |part: &&str| part.len() >= 10 && part.as_bytes()[..10].iter().all(u8::is_ascii_digit);
    let parts = head.split(':').map(|part| if is_time(&part) { &part[10..] } else { part });
    format!("{}\n{rest}", parts.collect::<Vec<_>>().join(":")).into_bytes()
}

/// The outcome of each entry: its name, and one word.
pub(crate) fn outcomes(receipt: &Receipt) -> Vec<(String, String)> {
    let word = |value: Value| value["outcome"].as_str().unwrap().to_owned();
    receipt
        .entries
        .iter()
        .map(|entry| (entry.package.to_string(), word(serde_json::to_value(entry).unwrap())))
        .collect()
}

/// The only refusal of a receipt: subject and reason.
pub(crate) fn refusal(receipt: &Receipt) -> (String, String) {
    let report = serde_json::to_value(receipt).unwrap();
    let refused: Vec<&Value> =
        report["entries"].as_array().unwrap().iter().filter(|entry| entry["outcome"] == "refused").collect();
    let [refused] = refused[..] else { panic!("{report:#}") };
    (called(refused), refused["why"].as_str().unwrap().to_owned())
}
