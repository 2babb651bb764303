//! The way of an archive into the bucket. The database dooms its object while upstream is asked, before the first byte is sent; the parts
//! of a large one are sent while it arrives, and nobody sees them until they are completed with the proof; one statement ends the doom and
//! gives the archive its object.

use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::archives::{KnownObjects, patiently};
use super::bucket::{BucketError, ObjectName, PART_BYTES, Part, PartialObject};
use super::objects::Kept;
use crate::digest::Digest;
use crate::store::{ArchiveFile, FileBytes, Intake, StoreError};
use crate::upstream::buckets::BucketTrouble;
use crate::verify::Verified;

/// The parts of one upload that are in memory at a time.
const MAX_PARTS_AT_ONCE: usize = 4;
/// The uploads of one archive that may each last too long.
const MAX_UPLOADS: usize = 2;

/// An archive on its way into the bucket.
pub(super) struct BucketIntake {
    known: Arc<KnownObjects>,
    /// The threads that speak with the bucket. `None` while larder stops.
    threads: Option<Handle>,
    digest: Digest,
    /// The object of the first upload, until that begins.
    object: Mutex<Option<AskedObject>>,
    upload: Mutex<Option<Upload>>,
}

/// An object for which the database is asked.
type AskedObject = JoinHandle<Result<NewObject, StoreError>>;

/// An upload in parts that follows a staged file. It gives itself up if the file does not become whole.
struct Upload {
    bytes: FileBytes,
    staged: watch::Sender<StagedBytes>,
    sending: JoinHandle<Result<Sent, StoreError>>,
}

/// The part of a file that is there.
#[derive(Debug, Clone, Copy, Default)]
struct StagedBytes {
    written: u64,
    is_whole: bool,
}

/// The object of an upload.
enum NewObject {
    /// None: the bucket has the archive.
    Known,
    /// This one, which is doomed until the archive gets it.
    Doomed(ObjectName),
}

/// The result of sending parts.
enum Sent {
    /// Nothing: the bucket has the archive.
    Known,
    /// All parts.
    Parts(ObjectName, PartialObject, Vec<Part>),
}

impl BucketIntake {
    pub(super) fn new(known: Arc<KnownObjects>, threads: Option<Handle>, digest: Digest) -> Self {
        let object = threads.as_ref().map(|threads| ask_for_object(threads, &known, digest));
        Self { known, threads, digest, object: Mutex::new(object), upload: Mutex::default() }
    }

    fn threads(&self) -> Result<&Handle, StoreError> {
        self.threads.as_ref().ok_or(StoreError::Stopping)
    }

    /// Waits for work with the bucket, unless larder stops. Blocks.
    fn wait_for<T, E: Into<StoreError>>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, StoreError> {
        let stopping = self.known.stopping.cancelled();
        self.threads()?.block_on(async {
            tokio::select! {
                done = work => done.map_err(Into::into),
                () = stopping => Err(StoreError::Stopping),
            }
        })
    }

    /// Begins to send the parts of a file.
    fn begin(&self, threads: &Handle, bytes: &FileBytes) -> Upload {
        let (staged, written) = watch::channel(StagedBytes::default());
        let asked = self.object.lock().take();
        let sending = send_parts(Arc::clone(&self.known), self.digest, asked, bytes.clone(), written);
        Upload { bytes: bytes.clone(), staged, sending: threads.spawn(sending) }
    }

    /// Sends a whole file that is no larger than one part. `None` if the bucket has the archive. Blocks.
    fn put(&self, whole: &Verified<dyn ArchiveFile>) -> Result<Option<ObjectName>, StoreError> {
        let asked = self.object.lock().take();
        let object = self.wait_for(object_for_upload(&self.known, self.digest, asked))?;
        let NewObject::Doomed(object) = object else { return Ok(None) };
        let (bytes, size_bytes, bucket) = (whole.value().bytes(), whole.value().size_bytes(), &self.known.bucket);
        let put = async {
            let read = bytes.part(0, size_bytes).await;
            let read = read.map_err(|error| bucket.unreadable(&object, &error))?;
            patiently(|| bucket.put(&object, read.clone(), whole)).await
        };
        self.wait_for(self.known.watched(put))?;
        Ok(Some(object))
    }

    /// Sends a file from its first byte on. `None` if the bucket has the archive. Blocks.
    fn send(&self, whole: &Verified<dyn ArchiveFile>) -> Result<Option<ObjectName>, StoreError> {
        if whole.value().size_bytes() <= PART_BYTES {
            return self.put(whole);
        }
        self.complete(self.begin(self.threads()?, &whole.value().bytes()), whole)
    }

    /// Ends an upload of parts with the proof. `None` if nothing was sent, because the bucket had the archive then. Blocks.
    fn complete(&self, upload: Upload, whole: &Verified<dyn ArchiveFile>) -> Result<Option<ObjectName>, StoreError> {
        let (size_bytes, known) = (whole.value().size_bytes(), &self.known);
        // The task may have ended by itself.
        let _ = upload.staged.send(StagedBytes { written: size_bytes, is_whole: true });
        // It ends early only with the threads.
        let sent = self.wait_for(async { upload.sending.await.map_err(|_| StoreError::Stopping) })??;
        let (object, partial, parts) = match sent {
            Sent::Known => return Ok(None),
            Sent::Parts(object, partial, parts) => (object, partial, parts),
        };
        let completed = async {
            let completed = patiently(|| known.bucket.complete(&partial, &parts, whole)).await;
            match completed {
                Ok(()) => Ok(()),
                // The next request would wait as long, and so would a client.
                Err(error) if error.fault.trouble == BucketTrouble::Silent => Err(error),
                // The answer to an attempt may be lost, and the next one finds no upload.
                Err(_) if known.bucket.length(&object).await.is_ok_and(|length| length == size_bytes) => Ok(()),
                Err(error) => {
                    give_up(known, &partial).await;
                    Err(error)
                }
            }
        };
        self.wait_for(known.watched(completed))?;
        Ok(Some(object))
    }

    /// Gives the archive its object; `None` if the upload lasted too long. Blocks.
    fn keep(&self, object: &ObjectName, size_bytes: u64) -> Result<Option<ObjectName>, StoreError> {
        let wrong = self.known.wrong_object(&self.digest);
        match self.known.shared.keep(object, &self.digest, size_bytes, wrong.as_ref())? {
            Kept::As(object) => Ok(Some(object)),
            Kept::TooLate => Ok(None),
            Kept::Sealed => Err(StoreError::Unreachable("the fleet is sealed".to_owned())),
        }
    }
}

impl Intake for BucketIntake {
    fn staged(&self, bytes: &FileBytes, written: u64) {
        if written < PART_BYTES {
            return;
        }
        let mut upload = self.upload.lock();
        // A download that starts over has another file: what was sent of the first one is worth nothing.
        upload.take_if(|upload| !upload.bytes.is_of_same_file(bytes));
        if let (None, Some(threads)) = (&*upload, &self.threads) {
            *upload = Some(self.begin(threads, bytes));
        }
        if let Some(upload) = &*upload {
            upload.staged.send_replace(StagedBytes { written, is_whole: false });
        }
    }

    fn secure(&self, whole: &Verified<dyn ArchiveFile>) -> Result<(), StoreError> {
        let (begun, size_bytes) = (self.upload.lock().take(), whole.value().size_bytes());
        // Only bytes of the verified file count.
        let mut begun = begun.filter(|upload| upload.bytes.is_of_same_file(&whole.value().bytes()));
        for _ in 0..MAX_UPLOADS {
            let early = begun.take().map(|upload| self.complete(upload, whole));
            let object = match early {
                Some(Ok(object)) => object,
                // Trouble while the archive arrived may have passed.
                Some(Err(_)) | None => self.send(whole)?,
            };
            let kept = match &object {
                Some(object) => self.keep(object, size_bytes)?,
                None => self.known.object_now(&self.digest)?,
            };
            if let Some(kept) = kept {
                self.known.note(&self.digest, &kept);
                return Ok(());
            }
            if let Some(late) = object {
                // A sweep may have ended its row before it came.
                self.known.shared.doom_late(&late)?;
            }
        }
        Err(StoreError::Bucket {
            trouble: BucketTrouble::Slow.label(),
            said: format!("{}: an upload lasts longer than a day", self.known.bucket.place()),
            remedy: "look at the network between larder and the object store",
        })
    }
}

impl Drop for BucketIntake {
    fn drop(&mut self) {
        // Nothing was sent: upstream had no such archive, or did not answer.
        if let (Some(asked), Some(threads)) = (self.object.lock().take(), &self.threads) {
            let known = Arc::clone(&self.known);
            threads.spawn(async move {
                if let Ok(Ok(NewObject::Doomed(object))) = asked.await {
                    let forgotten = tokio::task::spawn_blocking(move || known.shared.is_unsent(&object));
                    if let Ok(Err(error)) = forgotten.await {
                        tracing::debug!(%error, "an object that was never sent is looked for in a day");
                    }
                }
            });
        }
    }
}

/// Asks for a new object for an archive, which goes after a day if no archive gets it; or for the one that the archive has.
fn ask_for_object(threads: &Handle, known: &Arc<KnownObjects>, digest: Digest) -> AskedObject {
    let known = Arc::clone(known);
    // The database is asked by functions that block.
    threads.spawn_blocking(move || {
        let random = |_| StoreError::Unreachable("the system returns no random bytes".to_owned());
        let object = ObjectName::new(&digest).map_err(random)?;
        Ok(match known.shared.doom(&object, &digest, known.wrong_object(&digest).as_ref())? {
            Some(kept) => {
                known.note(&digest, &kept);
                NewObject::Known
            }
            None => NewObject::Doomed(object),
        })
    })
}

/// The object of an upload that begins: the one for which the database was asked, unless it did not answer then.
async fn object_for_upload(
    known: &Arc<KnownObjects>,
    digest: Digest,
    asked: Option<AskedObject>,
) -> Result<NewObject, StoreError> {
    if let Some(asked) = asked
        && let Ok(Ok(object)) = asked.await
    {
        return Ok(object);
    }
    ask_for_object(&Handle::current(), known, digest).await.map_err(|_| StoreError::Stopping)?
}

/// Sends the parts of a file as they become whole, and the last one when the file is.
///
/// # Errors
/// The bucket or the database refused, or the file does not become whole. Nothing of the upload is left then.
async fn send_parts(
    known: Arc<KnownObjects>,
    digest: Digest,
    asked: Option<AskedObject>,
    bytes: FileBytes,
    staged: watch::Receiver<StagedBytes>,
) -> Result<Sent, StoreError> {
    let object = object_for_upload(&known, digest, asked).await?;
    let NewObject::Doomed(object) = object else { return Ok(Sent::Known) };
    let partial = known.watched(patiently(|| known.bucket.begin(&object))).await?;
    let send = |(number, from, to): (usize, u64, u64)| {
        let (known, object, partial, bytes) = (&known, &object, &partial, &bytes);
        async move {
            let part = bytes.part(from, to - from).await;
            let part = part.map_err(|error| known.bucket.unreadable(object, &error))?;
            known.watched(patiently(|| known.bucket.put_part(partial, number, part.clone()))).await
        }
    };
    let parts = stream::unfold((0, staged), |(number, mut staged)| async move {
        let from = number as u64 * PART_BYTES;
        let is_there = |staged: &StagedBytes| staged.is_whole || staged.written >= from + PART_BYTES;
        let there = staged.wait_for(is_there).await.map(|staged| *staged);
        match there {
            // Nobody holds the intake any more, so nobody needs what is there.
            Ok(_) if staged.has_changed().is_err() => Some((Err(()), (number, staged))),
            Ok(StagedBytes { written, .. }) if written <= from => None,
            Ok(StagedBytes { written, .. }) => {
                Some((Ok((number, from, written.min(from + PART_BYTES))), (number + 1, staged)))
            }
            // Nobody holds the intake any more.
            Err(_) => Some((Err(()), (number, staged))),
        }
    });
    let sent = parts.map(|part| {
        let sending = part.map(&send);
        async { sending.map_err(|()| None)?.await.map_err(Some) }
    });
    let sent: Result<Vec<Part>, Option<BucketError>> = sent.buffered(MAX_PARTS_AT_ONCE).try_collect().await;
    match sent {
        Ok(parts) => Ok(Sent::Parts(object, partial, parts)),
        Err(error) => {
            give_up(&known, &partial).await;
            Err(error.map_or_else(|| StoreError::Unreachable("the archive did not arrive".to_owned()), Into::into))
        }
    }
}

/// Gives an upload up. Its object is doomed in any case.
async fn give_up(known: &KnownObjects, partial: &PartialObject) {
    if let Err(error) = known.watched(known.bucket.abort(partial)).await {
        tracing::warn!(%error, "the parts of an upload stay until a rule of the bucket removes them");
    }
}
