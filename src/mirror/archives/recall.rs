//! Brings an archive to this machine from where all replicas keep it. That place is trusted no more than an upstream: the bytes are
//! staged, hashed, and their tail is withheld until they are verified (promise 3). Where it fails, upstream is asked.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use tokio::sync::watch;

use crate::address::Artifact;
use crate::clock::Timestamp;
use crate::digest::{Digest, FastHash};
use crate::error::Error;
use crate::mirror::archives::Archive;
use crate::mirror::archives::archive_request::{DownloadAttempts, DownloadSource, DownloadState};
use crate::mirror::archives::download::Download;
use crate::mirror::archives::fill::FillGauge;
use crate::mirror::archives::verified_open::VerifiedReader;
use crate::mirror::counters::{DamageFinding, ObjectKind};
use crate::mirror::effects::Effects;
use crate::mirror::library::StoredArchive;
use crate::mirror::library::fill_progress::FillProgress;
use crate::mirror::{Library, RequestContext, SMALL_ARCHIVE_BYTES, Urgency};
use crate::store::FileBytes;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::request::{IncomingFile, Validators};
use crate::verify::Verified;

/// The recalls at a time. Others wait for their turn.
pub(super) const MAX_RECALLS: usize = 32;
/// The time for which an archive that could not be had is not asked for again: upstream is, at once.
const NOT_RECALLED: Duration = Duration::from_secs(30);

impl VerifiedReader {
    /// An archive that is not on this machine, from where all replicas keep it. `None` where nobody does, or it cannot be had: the
    /// reason is in the log, and the caller asks upstream.
    pub(super) async fn recalled(
        self: &Arc<Self>,
        artifact: &Artifact,
        listed: &StoredArchive,
        call: &RequestContext,
    ) -> Result<Option<Archive>, Error> {
        let digest = listed.digest;
        if self.not_recalled.get(&digest, call.now).is_some() {
            return Ok(None);
        }
        let find = move |library: &Library| library.shared_archives().map_or(Ok(None), |all| all.object(&digest));
        let object = match self.library.on_disk(find).await {
            Ok(Some(object)) => object,
            Ok(None) => return Ok(None),
            Err(error) => {
                tracing::warn!(package = %artifact, %error, "nobody says whether the bucket has an archive; upstream is asked");
                return Ok(None);
            }
        };
        let mut progress = self.join_recall(artifact, listed, object, call.present());
        loop {
            let state = progress.borrow_and_update().clone();
            match state {
                FillProgress::Waiting => {}
                FillProgress::Streaming { length, .. } => {
                    let is_large = length.is_some_and(|length| length > SMALL_ARCHIVE_BYTES);
                    if is_large && call.urgency == Urgency::Request {
                        return Ok(Some(Archive::Arriving { progress, length }));
                    }
                }
                FillProgress::Committed { bytes, .. } => {
                    let is_open = bytes.is_some() && call.urgency == Urgency::Request;
                    let length = Some(listed.size_bytes);
                    return Ok(match self.open_here(listed, call.effects()).await? {
                        Ok(archive) => Some(archive),
                        // Already evicted again, but the file of the download is still open.
                        Err(DamageFinding::Missing) => is_open.then_some(Archive::Arriving { progress, length }),
                        Err(DamageFinding::Damaged) => None,
                    });
                }
                FillProgress::Verified { content: bytes } if call.urgency == Urgency::Request => {
                    return Ok(Some(Archive::InMemory { bytes, digest, stored: Some(listed.first_stored()) }));
                }
                FillProgress::NotStored { size_bytes, .. } if call.urgency == Urgency::Request => {
                    return Ok(Some(Archive::Arriving { progress, length: Some(size_bytes) }));
                }
                FillProgress::Verified { .. } => {}
                FillProgress::NotStored { .. } | FillProgress::NoSpace(_) | FillProgress::Failed(_) => return Ok(None),
            }
            if progress.changed().await.is_err() {
                return Err(Error::Interrupted(format!("the archive of {artifact}")));
            }
        }
    }

    /// Joins the recall of an archive, or starts one.
    fn join_recall(
        self: &Arc<Self>,
        artifact: &Artifact,
        listed: &StoredArchive,
        object: String,
        now: Timestamp,
    ) -> watch::Receiver<FillProgress> {
        let joined = self.recall_flights.try_join(listed.digest, || Ok::<(), std::convert::Infallible>(()), |guard| {
            let (sender, progress) = watch::channel(FillProgress::Waiting);
            let (library, artifact, listed) = (Arc::clone(&self.library), artifact.clone(), listed.clone());
            let reader = Arc::clone(self);
            let run = || {
                self.runtime.tasks.spawn(async move {
                    let permit = reader.recall_permits.acquire().await;
                    let counted = FillGauge::new(&library.runtime.counters.fills);
                    let state = reader.recall(&artifact, &listed, object, &sender, now).await;
                    drop((permit, counted));
                    let state = state.unwrap_or_else(|error| {
                        tracing::error!(package = %artifact, digest = %listed.digest, %error, "an archive could not be had from the bucket; upstream is asked");
                        reader.not_recalled.insert(Effects::Real, listed.digest, (), NOT_RECALLED, now);
                        FillProgress::Failed(error)
                    });
                    drop(guard);
                    sender.send_replace(state);
                });
            };
            (progress, run)
        });
        let Ok(joined) = joined;
        joined
    }
}

impl VerifiedReader {
    async fn recall(
        self: &Arc<Self>,
        artifact: &Artifact,
        listed: &StoredArchive,
        object: String,
        progress: &watch::Sender<FillProgress>,
        now: Timestamp,
    ) -> Result<FillProgress, Error> {
        let (library, digest) = (&self.library, listed.digest);
        // An earlier recall may have ended after its caller looked for the file.
        if self.open_here(listed, Effects::Real).await?.is_ok() {
            return Ok(FillProgress::Committed { bytes: None, archive: Box::new(listed.clone()) });
        }
        // Bytes of another object are not resumed.
        let stage_name = format!("{digest}~{}", FastHash::of(object.as_bytes()));
        let mut source = BucketSource::new(library, artifact, listed, object);
        let mut reservation = library.reservation();
        let download = Download {
            library,
            source: &mut source,
            stage_name: &stage_name,
            reservation: &mut reservation,
            expected_bytes: listed.size_bytes,
            is_verified_by_digest: true,
            intake: None,
            progress: Some(progress),
            listed_fill: None,
        };
        let staged = download.run().await?;
        let ((actual, fast), bytes, size_bytes) = (staged.hashes(), staged.bytes(), staged.written());
        if actual != digest {
            library.discard_staged(staged).await?;
            let reason = format!("its bytes have SHA-256 {actual}");
            return Err(match source.first_byte {
                Some(0) => source.contradiction(&reason),
                // The bytes of an earlier process may be the wrong ones.
                _ => source.failed(Fault::Unusable(format!("{}, where {reason}", source.object))),
            }
            .into());
        }
        let verified = Verified::by_digest(staged, actual, digest)
            .map_err(|_| Error::Interrupted(format!("the archive of {artifact}")))?;
        match self.content_in_memory(&bytes, digest, (size_bytes, fast)).await {
            Ok(Some(content)) => drop(progress.send_replace(FillProgress::Verified { content })),
            Ok(None) => {}
            Err(error) => {
                library.discard_staged(verified.into_inner()).await?;
                return Err(error);
            }
        }
        let listed = listed.clone();
        let kept = library.on_disk(move |library| {
            let kept = library.keep_copy(verified, now);
            drop(reservation);
            library.enforce_size_limit();
            match kept {
                Ok(()) => Ok(FillProgress::Committed { bytes: Some(bytes), archive: Box::new(listed) }),
                // A disk that failed to write may have lost earlier data, so the bytes are hashed once more.
                Err(error) if bytes.fast_hash()? == fast => {
                    library.count_not_stored(ObjectKind::Archive, &error);
                    Ok(FillProgress::NotStored { bytes, size_bytes, error })
                }
                Err(error) => Err(error),
            }
        });
        kept.await
    }

    /// The content of a small archive, of this size and hash, that was verified as it arrived; `None` for a large one, or where there is
    /// no memory for it.
    ///
    /// # Errors
    /// The disk does not give back what was written to it.
    async fn content_in_memory(
        &self,
        staged: &FileBytes,
        digest: Digest,
        (size_bytes, fast): (u64, FastHash),
    ) -> Result<Option<Bytes>, Error> {
        if size_bytes > SMALL_ARCHIVE_BYTES {
            return Ok(None);
        }
        let Some(grant) = self.small.reserve(size_bytes) else { return Ok(None) };
        let staged = staged.clone();
        let content = self.library.on_disk(move |_| staged.read_back(size_bytes, fast)).await?;
        Ok(Some(self.small.share(digest, content, grant)))
    }
}

/// The object of an archive, and the state of its download.
struct BucketSource<'a> {
    library: &'a Arc<Library>,
    listed: &'a StoredArchive,
    object: String,
    /// The byte from which on it was asked for first.
    first_byte: Option<u64>,
    download: DownloadState,
}

impl<'a> BucketSource<'a> {
    fn new(library: &'a Arc<Library>, artifact: &Artifact, listed: &'a StoredArchive, object: String) -> Self {
        let attempts = DownloadAttempts::new(library.runtime.limits.stall);
        let download = DownloadState { subject: format!("the archive of {artifact}"), attempts };
        Self { library, listed, object, first_byte: None, download }
    }

    fn failed(&self, fault: Fault) -> UpstreamError {
        let place = self.library.shared_archives().map(|shared| shared.place());
        UpstreamError { subject: self.download.subject.clone(), origin: place.unwrap_or_default(), fault }
    }

    /// The error of an object that is not the archive: the next upload takes its place.
    fn contradiction(&self, reason: &str) -> UpstreamError {
        if let Some(shared) = self.library.shared_archives() {
            let found = format!("{}: {reason}, and not {}", self.download.subject, self.listed.digest);
            shared.contradicts(self.listed.digest, &self.object, &found);
        }
        self.failed(Fault::Unusable(format!("{}, where {reason}, and not {}", self.object, self.listed.digest)))
    }
}

impl DownloadSource for BucketSource<'_> {
    fn state(&mut self) -> &mut DownloadState {
        &mut self.download
    }

    async fn send(&mut self, from: u64, _: &Validators) -> Result<IncomingFile, Error> {
        let Some(shared) = self.library.shared_archives() else {
            return Err(Error::Interrupted(self.download.subject.clone()));
        };
        self.first_byte.get_or_insert(from);
        let arriving = shared.fetch(self.listed.digest, &self.object, from).await?;
        if arriving.length != self.listed.size_bytes {
            return Err(self.contradiction(&format!("its length is {}", arriving.length)).into());
        }
        let bytes = arriving.bytes.map_err(|error| Fault::Unreachable(error.to_string())).boxed();
        let (subject, place) = (self.download.subject.clone(), shared.place());
        Ok(IncomingFile::of_stream(subject, place, (from, arriving.length), bytes))
    }
}
