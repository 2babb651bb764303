//! The archives of a fleet, which the bucket keeps: what it has, where, and how they come back. How they get there is in `upload.rs`.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::bucket::{Bucket, BucketError, ObjectName};
use super::records::DatabaseRecords;
use super::trouble::Trouble;
use super::upload::BucketIntake;
use crate::digest::Digest;
use crate::store::{Archives, ArrivingBytes, FleetAlarmKind, FleetEvents, Index, Intake, SharedArchives, StoreError};
use crate::upstream::buckets::{BucketFault, BucketTrouble};

/// The attempts at one request.
const MAX_ATTEMPTS: u32 = 3;
/// The pause after the first attempt; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The time for the first byte of an archive. Upstream may be faster.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which a bucket that did not answer is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(5);

/// The archives in the bucket, for one replica.
#[derive(Debug)]
pub struct BucketArchives {
    known: Arc<KnownObjects>,
    /// The threads that speak with the bucket. `None` only while it is dropped.
    runtime: Option<Runtime>,
}

/// The bucket, and what this replica knows of its objects.
pub(super) struct KnownObjects {
    pub(super) bucket: Bucket,
    pub(super) shared: Arc<DatabaseRecords>,
    /// The notes of this machine: the objects that it has met.
    index: Arc<Index>,
    health: Mutex<Health>,
    /// The events that a person should know.
    events: Arc<FleetEvents>,
    /// Cancelled when larder stops: nobody waits for the bucket then.
    pub(super) stopping: CancellationToken,
}

/// The state of the bucket.
struct Health {
    answered: Instant,
    trouble: Trouble<BucketError>,
}

impl fmt::Debug for KnownObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownObjects").field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

impl BucketArchives {
    /// The archives in a bucket, of which `shared` is the database and `index` the notes of this machine. `events` gets what a person
    /// should know.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn new(
        bucket: Bucket,
        shared: Arc<DatabaseRecords>,
        index: Arc<Index>,
        events: Arc<FleetEvents>,
    ) -> std::io::Result<Self> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).thread_name("larder-bucket").enable_all().build()?;
        let health = Mutex::new(Health { answered: Instant::now(), trouble: Trouble::new(LEFT_ALONE) });
        let known =
            Arc::new(KnownObjects { bucket, shared, index, health, events, stopping: CancellationToken::new() });
        Ok(Self { known, runtime: Some(runtime) })
    }

    fn runtime(&self) -> Result<&Runtime, StoreError> {
        self.runtime.as_ref().ok_or(StoreError::Stopping)
    }
}

impl KnownObjects {
    /// True for an object that was found to have other bytes than its archive.
    fn is_wrong(&self, digest: &Digest, object: &str) -> bool {
        self.wrong_object(digest).is_some_and(|wrong| wrong.to_string() == object)
    }

    /// The object that was found to have other bytes than an archive.
    pub(super) fn wrong_object(&self, digest: &Digest) -> Option<ObjectName> {
        // The schema of another larder may have other names.
        self.index.wrong_object_of(digest).ok().flatten().and_then(|object| object.parse().ok())
    }

    /// Notes that an object is not its archive.
    fn contradicts(&self, digest: Digest, object: ObjectName, found: &str) {
        self.events.note(FleetAlarmKind::BucketContradicts, format!("{} in {}: {found}", object, self.bucket.place()));
        self.index.note_wrong_object(&digest, Some(&object.to_string()));
    }

    /// Notes the object of an archive, which is right.
    pub(super) fn note(&self, digest: &Digest, object: &ObjectName) {
        if self.wrong_object(digest).is_some() {
            self.index.note_wrong_object(digest, None);
        }
        self.index.note_object(digest, Some(&object.to_string()));
    }

    /// The object of an archive by the database, unless it was found to have other bytes. Blocks.
    pub(super) fn object_now(&self, digest: &Digest) -> Result<Option<ObjectName>, StoreError> {
        let known = self.shared.object_of(digest)?;
        self.index.note_object(digest, known.as_ref().map(ToString::to_string).as_deref());
        Ok(known.filter(|known| Some(known) != self.wrong_object(digest).as_ref()))
    }

    /// Makes a request, unless the bucket did not answer a moment ago.
    pub(super) async fn watched<T>(
        &self,
        work: impl Future<Output = Result<T, BucketError>>,
    ) -> Result<T, BucketError> {
        self.health.lock().trouble.admit(Instant::now())?;
        let began = Instant::now();
        let done = work.await;
        let mut health = self.health.lock();
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

    async fn fetch(&self, digest: Digest, object: ObjectName, from: u64) -> Result<ArrivingBytes, StoreError> {
        let get = async {
            let got = timeout(FIRST_BYTE_TIMEOUT, patiently(|| self.bucket.get(&object, from))).await;
            let silent = || self.bucket.failed(&format!("send {object}"), BucketFault::silent(FIRST_BYTE_TIMEOUT));
            got.unwrap_or_else(|_| Err(silent()))
        };
        match self.watched(get).await {
            Ok(arriving) => {
                Ok(ArrivingBytes { length: arriving.length, bytes: arriving.bytes.map_err(StoreError::from).boxed() })
            }
            Err(error) => {
                if error.fault.trouble == BucketTrouble::NoObject {
                    self.contradicts(digest, object, "it is not there");
                }
                Err(error.into())
            }
        }
    }
}

impl Archives for BucketArchives {
    fn intake(&self, digest: Digest) -> Arc<dyn Intake> {
        let threads = self.runtime.as_ref().map(|runtime| runtime.handle().clone());
        Arc::new(BucketIntake::new(Arc::clone(&self.known), threads, digest))
    }

    fn stop(&self) {
        self.known.stopping.cancel();
    }

    fn shared(&self) -> Option<&dyn SharedArchives> {
        Some(self)
    }

    fn sweep(&self) -> Result<(), StoreError> {
        let KnownObjects { bucket, shared, .. } = &*self.known;
        let runtime = self.runtime()?;
        shared.doom_unnamed()?;
        let mut failed = None;
        for object in shared.due_objects()? {
            let removed = runtime.block_on(self.known.watched(bucket.delete(&object))).map_err(StoreError::from);
            // One that stays, because a rule of the bucket holds it, delays no other.
            if let Err(error) = removed.and_then(|()| shared.is_gone(&object)) {
                tracing::warn!(%error, "an object that no archive needs stays in the bucket");
                shared.postpone(&object)?;
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl SharedArchives for BucketArchives {
    fn place(&self) -> String {
        self.known.bucket.place()
    }

    fn object(&self, digest: &Digest) -> Result<Option<String>, StoreError> {
        let known = &self.known;
        match known.index.object_of(digest)?.filter(|noted| !known.is_wrong(digest, noted)) {
            Some(noted) => Ok(Some(noted)),
            None => self.object_now(digest),
        }
    }

    fn object_now(&self, digest: &Digest) -> Result<Option<String>, StoreError> {
        Ok(self.known.object_now(digest)?.map(|object| object.to_string()))
    }

    fn is_noted(&self, digest: &Digest) -> Result<bool, StoreError> {
        let known = &self.known;
        Ok(known.index.object_of(digest)?.is_some_and(|noted| !known.is_wrong(digest, &noted)))
    }

    fn fetch(&self, digest: Digest, object: &str, from: u64) -> BoxFuture<'static, Result<ArrivingBytes, StoreError>> {
        let (known, object) = (Arc::clone(&self.known), object.parse::<ObjectName>());
        async move {
            let object = object.map_err(|bad| StoreError::Unreachable(bad.to_string()))?;
            known.fetch(digest, object, from).await
        }
        .boxed()
    }

    fn contradicts(&self, digest: Digest, object: &str, found: &str) {
        if let Ok(object) = object.parse() {
            self.known.contradicts(digest, object, found);
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

/// Makes a request, and repeats it a few times where the bucket asks for that, or no connection was made.
pub(super) async fn patiently<T, F: Future<Output = Result<T, BucketError>>>(
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
