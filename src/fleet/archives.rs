//! The archives of a fleet, which the bucket keeps: an upload has its row in the database before its first byte, and its archive has a
//! name only when the upload is complete.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::bucket::{Bucket, BucketError, ObjectName, PART_BYTES};
use super::objects::Kept;
use super::records::DatabaseRecords;
use super::trouble::Trouble;
use crate::digest::Digest;
use crate::store::{Archives, ArrivingBytes, FileBytes, Index, SharedArchives, Staged, StoreError};
use crate::upstream::buckets::{BucketFault, BucketTrouble};
use crate::verify::Verified;

/// The parts of one upload that are in memory at a time.
const MAX_PARTS_AT_ONCE: usize = 4;
/// The attempts at one request.
const MAX_ATTEMPTS: u32 = 3;
/// The pause after the first attempt; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The time for the first byte of an archive. Upstream may be faster.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which a bucket that did not answer is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(5);
/// The uploads of one archive that may each last too long.
const MAX_UPLOADS: usize = 2;

/// The archives in the bucket, for one replica.
pub struct BucketArchives {
    bucket: Bucket,
    shared: Arc<DatabaseRecords>,
    /// The notes of this machine: the objects that it has met.
    index: Arc<Index>,
    /// Archives for which the bucket has sent other bytes, with the object that has them.
    wrong: Arc<Mutex<HashMap<Digest, ObjectName>>>,
    health: Arc<Mutex<Health>>,
    /// The threads that speak with the bucket. `None` only while it is dropped.
    runtime: Option<Runtime>,
}

/// The state of the bucket.
struct Health {
    answered: Instant,
    trouble: Trouble<BucketError>,
}

impl fmt::Debug for BucketArchives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketArchives").field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

impl BucketArchives {
    /// The archives in a bucket, of which `shared` is the database and `index` the notes of this machine.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn new(bucket: Bucket, shared: Arc<DatabaseRecords>, index: Arc<Index>) -> std::io::Result<Self> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).thread_name("larder-bucket").enable_all().build()?;
        let health = Health { answered: Instant::now(), trouble: Trouble::new(LEFT_ALONE) };
        let health = Arc::new(Mutex::new(health));
        Ok(Self { bucket, shared, index, wrong: Arc::default(), health, runtime: Some(runtime) })
    }

    /// Runs work that speaks with the bucket, and waits for it. Callers may block.
    fn run<T>(&self, work: impl Future<Output = Result<T, BucketError>>) -> Result<T, StoreError> {
        let Some(runtime) = &self.runtime else { return Err(StoreError::Unreachable("larder stops".to_owned())) };
        Ok(runtime.block_on(watched(&self.health, work))?)
    }

    /// True for an object that was found to have other bytes than its archive.
    fn is_wrong(&self, digest: &Digest, object: &str) -> bool {
        self.wrong.lock().get(digest).is_some_and(|wrong| wrong.to_string() == object)
    }

    /// Sends an archive to the bucket, under a name of its own.
    fn upload(&self, object: &ObjectName, staged: &Verified<Staged>) -> Result<(), StoreError> {
        let (bytes, size_bytes) = (staged.value().bytes(), staged.value().written());
        self.run(async {
            if size_bytes <= PART_BYTES {
                let whole = bytes.part(0, size_bytes).await;
                let whole = whole.map_err(|error| self.bucket.unreadable(object, &error))?;
                return patiently(|| self.bucket.put(object, whole.clone(), staged)).await;
            }
            self.upload_parts(object, &bytes, size_bytes, staged).await
        })
    }

    async fn upload_parts(
        &self,
        object: &ObjectName,
        bytes: &FileBytes,
        size_bytes: u64,
        proof: &Verified<Staged>,
    ) -> Result<(), BucketError> {
        let partial = patiently(|| self.bucket.begin(object)).await?;
        let sent = (0..size_bytes.div_ceil(PART_BYTES)).map(|number| {
            let (from, partial) = (number * PART_BYTES, &partial);
            async move {
                let part = bytes.part(from, PART_BYTES.min(size_bytes - from)).await;
                let part = part.map_err(|error| self.bucket.unreadable(object, &error))?;
                let number = usize::try_from(number).unwrap_or(usize::MAX);
                patiently(|| self.bucket.put_part(partial, number, part.clone())).await
            }
        });
        let sent = stream::iter(sent).buffered(MAX_PARTS_AT_ONCE).try_collect::<Vec<_>>().await;
        let completed = match sent {
            Ok(parts) => patiently(|| self.bucket.complete(&partial, &parts, proof)).await,
            Err(error) => Err(error),
        };
        match completed {
            Ok(()) => Ok(()),
            // The next request would wait as long, and so would a client.
            Err(error) if error.fault.trouble == BucketTrouble::Silent => Err(error),
            // The answer to an attempt may be lost, and the next one finds no upload.
            Err(_) if self.bucket.length(object).await.is_ok_and(|length| length == size_bytes) => Ok(()),
            Err(error) => {
                if let Err(error) = self.bucket.abort(&partial).await {
                    tracing::warn!(%error, "the parts of an upload stay until a rule of the bucket removes them");
                }
                Err(error)
            }
        }
    }
}

impl Archives for BucketArchives {
    fn secure(&self, staged: &Verified<Staged>) -> Result<(), StoreError> {
        let (digest, size_bytes) = (staged.digest(), staged.value().written());
        let known = self.shared.object_of(&digest)?;
        let wrong = self.wrong.lock().get(&digest).cloned();
        if let Some(known) = known.filter(|known| Some(known) != wrong.as_ref()) {
            self.index.note_object(&digest, Some(&known.to_string()));
            return Ok(());
        }
        for _ in 0..MAX_UPLOADS {
            let object = ObjectName::new(&digest)
                .map_err(|_| StoreError::Unreachable("the system returns no random bytes".to_owned()))?;
            self.shared.doom(&object)?;
            // An upload that fails goes after a day: without an answer, it may still take effect.
            self.upload(&object, staged)?;
            match self.shared.keep(&object, &digest, size_bytes, wrong.as_ref())? {
                Kept::As(object) => {
                    self.wrong.lock().remove(&digest);
                    self.index.note_object(&digest, Some(&object.to_string()));
                    return Ok(());
                }
                Kept::TooLate => {}
                Kept::Sealed => return Err(StoreError::Unreachable("the fleet is sealed".to_owned())),
            }
        }
        let said = format!("{}: an upload lasts longer than a day", self.bucket.place());
        Err(StoreError::Bucket {
            trouble: BucketTrouble::Slow.label(),
            said,
            remedy: "look at the network between larder and the object store",
        })
    }

    fn shared(&self) -> Option<&dyn SharedArchives> {
        Some(self)
    }

    fn sweep(&self) -> Result<(), StoreError> {
        self.shared.doom_unnamed()?;
        let mut failed = None;
        for object in self.shared.due_objects()? {
            // One that stays, because a rule of the bucket holds it, delays no other.
            if let Err(error) = self.run(self.bucket.delete(&object)).and_then(|()| self.shared.is_gone(&object)) {
                tracing::warn!(%error, "an object that no archive needs stays in the bucket");
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl SharedArchives for BucketArchives {
    fn place(&self) -> String {
        self.bucket.place()
    }

    fn object(&self, digest: &Digest) -> Result<Option<String>, StoreError> {
        match self.index.object_of(digest)?.filter(|noted| !self.is_wrong(digest, noted)) {
            Some(noted) => Ok(Some(noted)),
            None => self.object_now(digest),
        }
    }

    fn object_now(&self, digest: &Digest) -> Result<Option<String>, StoreError> {
        let known = self.shared.object_of(digest)?.map(|object| object.to_string());
        self.index.note_object(digest, known.as_deref());
        Ok(known.filter(|known| !self.is_wrong(digest, known)))
    }

    fn is_noted(&self, digest: &Digest) -> Result<bool, StoreError> {
        Ok(self.index.object_of(digest)?.is_some_and(|noted| !self.is_wrong(digest, &noted)))
    }

    fn fetch(&self, digest: Digest, object: &str, from: u64) -> BoxFuture<'static, Result<ArrivingBytes, StoreError>> {
        let (bucket, object, wrong) = (self.bucket.clone(), object.parse::<ObjectName>(), Arc::clone(&self.wrong));
        let health = Arc::clone(&self.health);
        async move {
            let object = object.map_err(|bad| StoreError::Unreachable(bad.to_string()))?;
            let get = async {
                let got = timeout(FIRST_BYTE_TIMEOUT, patiently(|| bucket.get(&object, from))).await;
                let silent = || bucket.failed(&format!("send {object}"), BucketFault::silent(FIRST_BYTE_TIMEOUT));
                got.unwrap_or_else(|_| Err(silent()))
            };
            let arriving = match watched(&health, get).await {
                Err(error) => {
                    if error.fault.trouble == BucketTrouble::NoObject {
                        wrong.lock().insert(digest, object);
                    }
                    return Err(error.into());
                }
                Ok(arriving) => arriving,
            };
            Ok(ArrivingBytes { length: arriving.length, bytes: arriving.bytes.map_err(StoreError::from).boxed() })
        }
        .boxed()
    }

    fn contradicts(&self, digest: Digest, object: &str) {
        if let Ok(object) = object.parse() {
            self.wrong.lock().insert(digest, object);
        }
    }
}

impl Drop for BucketArchives {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waits for nothing: a store may be closed from a thread that must not block.
            runtime.shutdown_background();
        }
    }
}

/// Makes a request, unless the bucket did not answer a moment ago.
async fn watched<T>(
    health: &Mutex<Health>,
    work: impl Future<Output = Result<T, BucketError>>,
) -> Result<T, BucketError> {
    health.lock().trouble.admit(Instant::now())?;
    let began = Instant::now();
    let done = work.await;
    let mut health = health.lock();
    match &done {
        // One request may be slow for its own sake, while others are answered.
        Err(error) if error.is_without_answer() && health.answered > began => {}
        Err(error) if error.is_without_answer() => {
            if health.trouble.note(error.clone(), Instant::now()) {
                tracing::error!(%error, to_do = error.remedy(), "the bucket does not answer; what is here is served meanwhile");
            }
        }
        _ => {
            health.answered = Instant::now();
            if health.trouble.end() {
                tracing::info!("the bucket answers again");
            }
        }
    }
    drop(health);
    done
}

/// Makes a request, and repeats it a few times where the bucket asks for that, or no answer came.
async fn patiently<T, F: Future<Output = Result<T, BucketError>>>(
    mut attempt: impl FnMut() -> F,
) -> Result<T, BucketError> {
    let mut pause = FIRST_PAUSE;
    for _ in 1..MAX_ATTEMPTS {
        match attempt().await {
            Err(error) if error.may_pass() => tokio::time::sleep(pause).await,
            ended => return ended,
        }
        pause *= 2;
    }
    attempt().await
}

impl From<BucketError> for StoreError {
    fn from(error: BucketError) -> Self {
        Self::Bucket { trouble: error.fault.trouble.label(), said: error.to_string(), remedy: error.remedy() }
    }
}
