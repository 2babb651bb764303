//! Fills one archive into the store: fetch, stage, resume, verify, commit. A fill outlives the client that started it,
//! and publishes its progress to all followers (promise 4). Each streams it from the start and at its own speed. The
//! last bytes are withheld until the archive is verified and committed (promise 3).

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, stream};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;

use crate::address::Package;
use crate::digest::{Digest, FastHash};
use crate::error::Error;
use crate::mirror::archives::archive_request::{ArchiveRequest, announced, length_mismatch};
use crate::mirror::archives::archive_request::{LengthAgreement, PartialDownload};
use crate::mirror::archives::download::{ConnectionCopy, TransferEnd};
use crate::mirror::archives::unattended::ListedFill;
use crate::mirror::counters::ObjectKind;
use crate::mirror::library::intake::ArchiveBytes;
use crate::mirror::library::proof_set::{ProofSet, StoredProofSet};
use crate::mirror::library::{Reservation, StoredArchive};
use crate::mirror::request_context::ProxyPath;
use crate::mirror::{Archives, RequestContext};
use crate::store::{FileBytes, READ_BUFFER_BYTES, ReadShare, Staged, StoreError};
use crate::upstream::error::Fault;
use crate::upstream::request::{IncomingFile, Validators};
use crate::verify::Verified;

/// Extra bytes to reserve next time, after an archive of unknown length did not fit.
const EXTRA_RESERVATION_BYTES: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::mirror) struct FillKey {
    pub(in crate::mirror) package: Package,
    pub(in crate::mirror) digest: Digest,
}

pub(in crate::mirror) struct Fill {
    archives: Arc<Archives>,
    request: ArchiveRequest,
    stored_set: Arc<StoredProofSet>,
    progress: watch::Sender<FillProgress>,
    /// The entry in the list of the client that started it.
    listed_fill: Option<ListedFill>,
}

impl Fill {
    pub(in crate::mirror) fn new(
        archives: Arc<Archives>,
        package: Package,
        stored_set: Arc<StoredProofSet>,
        set: Arc<ProofSet>,
        call: RequestContext,
        progress: watch::Sender<FillProgress>,
    ) -> Self {
        let request = ArchiveRequest::new(Arc::clone(&archives), package, set, call);
        Self { archives, request, stored_set, progress, listed_fill: None }
    }

    /// Attaches the entry in a client's list of started fills. The entry is removed when the fill ends.
    pub(in crate::mirror) fn with_listed_fill(self, started: Option<ListedFill>) -> Self {
        Self { listed_fill: started, ..self }
    }

    /// Runs the fill and publishes its result. Returns the digest of a stored archive whose `h1:` is still to be
    /// computed.
    ///
    /// The flight ends before the result is published: a later request finds the archive, or starts another fill.
    pub(in crate::mirror) async fn run<L>(mut self, landing: L) -> Option<Digest> {
        let counted = FillGauge::new(&self.archives.runtime.counters.fills);
        let ended = self.fill().await;
        drop(counted);
        drop(self.listed_fill.take());
        drop(landing);
        match ended {
            Ok(FillOutcome::Stored { bytes, archive }) => {
                self.archives.library.record_stored(ObjectKind::Archive);
                let digest = archive.digest;
                self.progress.send_replace(FillProgress::Committed { bytes, archive });
                Some(digest)
            }
            Ok(FillOutcome::NotStored { bytes, size_bytes, error: why }) => {
                self.log_not_stored(&why, "a verified archive could not be stored; waiting clients get it");
                self.progress.send_replace(FillProgress::NotStored { bytes, size_bytes, error: why });
                None
            }
            Err(Error::Store(reason)) => {
                self.log_not_stored(&reason, "an archive could not be stored; it is passed through");
                self.progress.send_replace(FillProgress::NoSpace(reason));
                None
            }
            Err(error) => {
                // Waiting requests report the error themselves.
                if self.progress.receiver_count() == 0 {
                    tracing::error!(package = %self.request.package, %error, "an archive without waiting clients could not be stored");
                }
                self.progress.send_replace(FillProgress::Failed(error));
                None
            }
        }
    }

    fn log_not_stored(&self, reason: &StoreError, subject: &str) {
        let (package, store) = (&self.request.package, self.archives.library.store.root().display());
        tracing::error!(%package, %store, error = %reason, to_do = reason.remedy(), "{subject}");
        self.archives.library.record_not_stored(ObjectKind::Archive, reason);
    }

    async fn fill(&mut self) -> Result<FillOutcome, Error> {
        let ArchiveRequest { package, set, call, .. } = &self.request;
        if let Some(adopted) = self.archives.library.adopt(package, &self.stored_set, set, call.now).await? {
            return Ok(adopted);
        }
        let mut reservation = self.archives.library.reservation();
        let staged = self.stage().await?;
        let staged = self.download(staged, &mut reservation).await?;
        self.verify_and_commit(staged, reservation).await
    }

    /// Downloads until everything is staged.
    async fn download(&mut self, mut staged: Staged, reservation: &mut Reservation) -> Result<Staged, Error> {
        let subject = self.request.subject.clone();
        while !is_complete(&staged) {
            let had = staged.written();
            let validators = validators(&staged);
            let incoming = tokio::select! {
                asked = self.request.send(had, &validators) => asked?,
                why = ListedFill::until_over_limit(self.listed_fill.as_ref(), &subject) => return Err(why),
            };
            let before = PartialDownload { bytes: had, length: staged.note().and_then(|note| note.length) };
            let length = match self.request.attempts.compare_length(before, announced(&incoming)) {
                LengthAgreement::Length(length) => length,
                LengthAgreement::StartOver => {
                    self.discard_staged(staged).await?;
                    staged = self.stage().await?;
                    if incoming.from > 0 {
                        continue;
                    }
                    incoming.length
                }
                LengthAgreement::Never { announced, now } => {
                    self.discard_staged(staged).await?;
                    return Err(length_mismatch(&incoming, announced, now));
                }
            };
            staged = self.reserve_space(reservation, staged, &incoming, length).await?;
            self.publish_progress(&staged, length);
            let (archives, attempts, progress) = (&self.archives, &mut self.request.attempts, &self.progress);
            let given_up = ListedFill::until_over_limit(self.listed_fill.as_ref(), &subject);
            let pump = ConnectionCopy {
                library: &archives.library,
                attempts,
                reservation: &mut *reservation,
                progress,
                given_up,
            };
            let (returned, ended) = pump.run(staged, incoming, length).await;
            staged = returned.ok_or_else(|| Error::Interrupted(self.request.subject.clone()))?;
            match ended {
                TransferEnd::Whole => break,
                TransferEnd::Differs(error) => {
                    self.discard_staged(staged).await?;
                    return Err(error);
                }
                TransferEnd::Failed(error) => {
                    if matches!(error, Error::Store(_)) {
                        self.handle_full_disk(staged, length).await;
                    }
                    return Err(error);
                }
                TransferEnd::Broken(error) => {
                    let offset = staged.written();
                    self.request.handle_break(error, offset.saturating_sub(had), offset).await?;
                }
            }
        }
        Ok(staged)
    }

    async fn stage(&self) -> Result<Staged, Error> {
        // A staging file belongs to one fill: packages never share one, even if they download the same bytes.
        let package = FastHash::of(self.request.package.to_string().as_bytes()).to_string();
        let came = match self.request.call.proxy_path() {
            ProxyPath::Direct => "",
            ProxyPath::ViaProxies => "~proxied",
        };
        let name = format!("{}~{}{came}", self.request.set.document.shasum, &package[..16]);
        self.archives.library.on_disk(move |library| library.store.blobs.stage(&name)).await
    }

    /// Reserves disk space for the whole length before any client gets a byte, and records the validators for a resume.
    async fn reserve_space(
        &self,
        reservation: &mut Reservation,
        staged: Staged,
        incoming: &IncomingFile,
        length: Option<u64>,
    ) -> Result<Staged, Error> {
        let limit = self.archives.runtime.limits.archive_bytes;
        if length.is_some_and(|length| length > limit) {
            return Err(incoming.upstream_error(Fault::TooLarge(limit)).into());
        }
        let bytes = length.or_else(|| self.learned_length()).unwrap_or(0).max(staged.written());
        let (staged, taken) =
            self.archives.library.reserve_staging_space(reservation, staged, incoming, length, bytes).await?;
        match taken {
            Ok(()) => Ok(staged),
            Err(reason) => {
                // Bytes of an earlier run can be resumed once there is space. An empty file is useless.
                if staged.written() == 0 {
                    self.try_to_discard_staged(staged).await;
                }
                Err(reason.into())
            }
        }
    }

    /// The size of an earlier download without an announced length.
    fn learned_length(&self) -> Option<u64> {
        let ArchiveRequest { package, set, call, .. } = &self.request;
        let key = FillKey { package: package.clone(), digest: set.document.shasum };
        self.archives.learned_lengths.get(&key, call.now)
    }

    /// Handles a disk that is full in mid-download: the partial file is worth less than the space it takes.
    async fn handle_full_disk(&self, staged: Staged, length: Option<u64>) {
        if length.is_none() {
            // The next fill then reserves more before a client gets a byte.
            self.archives.remember_length(&self.request, staged.written() + EXTRA_RESERVATION_BYTES);
        }
        self.try_to_discard_staged(staged).await;
    }

    async fn try_to_discard_staged(&self, staged: Staged) {
        if let Err(error) = self.discard_staged(staged).await {
            tracing::warn!(package = %self.request.package, %error, "the stage of an archive could not be removed");
        }
    }

    fn publish_progress(&mut self, staged: &Staged, length: Option<u64>) {
        self.request.attempts.announce(length);
        self.progress.send_replace(FillProgress::Streaming {
            bytes: staged.bytes(),
            written: staged.written(),
            length,
        });
    }

    async fn discard_staged(&self, staged: Staged) -> Result<(), Error> {
        self.archives.library.on_disk(move |_| staged.discard()).await
    }

    async fn verify_and_commit(&self, staged: Staged, reservation: Reservation) -> Result<FillOutcome, Error> {
        let expected = self.request.set.document.shasum;
        let (actual, fast) = staged.hashes();
        if actual != expected {
            // Discard before reporting the error, so that the next request starts afresh.
            self.discard_staged(staged).await?;
            return Err(self.request.wrong_digest_error(actual).await);
        }
        let (bytes, size_bytes) = (staged.bytes(), staged.written());
        let ArchiveRequest { package, set, call, subject, .. } = &self.request;
        let verified = Verified::by_digest(staged, actual, expected)
            .map_err(|verdict| Error::Unverified { subject: subject.clone(), verdict: verdict.to_string() })?;
        let (package, stored_set, set) = (package.clone(), Arc::clone(&self.stored_set), Arc::clone(set));
        let now = call.present();
        self.archives
            .library
            .on_disk(move |library| {
                let archive = StoredArchive::of_set(&set, fast, size_bytes, now);
                let record_proof = || library.sync_set(&package, &stored_set, now).map(|()| true);
                let bytes_staged = ArchiveBytes::Staged(Box::new(verified));
                let committed = library.commit(&package, archive.clone(), bytes_staged, record_proof);
                drop(reservation);
                // Without an announced length, nothing was evicted for it before.
                library.enforce_size_limit();
                match committed {
                    Ok(_) => Ok(FillOutcome::Stored { bytes: Some(bytes), archive: Box::new(archive) }),
                    // A disk that failed to write may have lost earlier data, so the bytes are hashed once more.
                    Err(reason) if bytes.fast_hash()? == fast => {
                        Ok(FillOutcome::NotStored { bytes, size_bytes, error: reason })
                    }
                    Err(reason) => Err(reason),
                }
            })
            .await
    }
}

pub(in crate::mirror) enum FillOutcome {
    /// Stored. `bytes` is the file that it was downloaded to, if it was downloaded now.
    Stored { bytes: Option<FileBytes>, archive: Box<StoredArchive> },
    /// Verified, but the disk could not store it.
    NotStored { bytes: FileBytes, size_bytes: u64, error: StoreError },
}

pub(in crate::mirror) fn is_complete(staged: &Staged) -> bool {
    staged.note().and_then(|note| note.length).is_some_and(|length| length > 0 && staged.written() == length)
}

/// The validators for resuming a staged download.
pub(in crate::mirror) fn validators(staged: &Staged) -> Validators {
    let note = staged.note().cloned().unwrap_or_default();
    Validators { etag: note.etag, last_modified: note.last_modified }
}

/// Counts a fill in progress until dropped.
pub(in crate::mirror) struct FillGauge(Gauge);

impl FillGauge {
    pub(in crate::mirror) fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for FillGauge {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The number of bytes withheld at the end of a download.
pub(in crate::mirror) const TAIL_BYTES: u64 = 64 * 1024;

/// The state of a fill.
#[derive(Debug, Clone)]
pub(in crate::mirror) enum FillProgress {
    /// Upstream has not answered yet.
    Waiting,
    Streaming {
        bytes: FileBytes,
        written: u64,
        length: Option<u64>,
    },
    /// Verified and stored.
    Committed {
        bytes: Option<FileBytes>,
        archive: Box<StoredArchive>,
    },
    /// Verified, but the disk could not store it. It is readable while its file is open.
    NotStored {
        bytes: FileBytes,
        size_bytes: u64,
        error: StoreError,
    },
    /// The disk cannot take it. Clients without any of its bytes get it passed through from upstream.
    NoSpace(StoreError),
    Failed(Error),
}

/// One client's position in a fill.
#[derive(Debug)]
pub struct TailStream {
    progress: watch::Receiver<FillProgress>,
    /// The length announced to the client, if any. A body of another length is an error.
    announced: Option<u64>,
}

impl TailStream {
    pub(in crate::mirror) fn new(progress: watch::Receiver<FillProgress>, announced: Option<u64>) -> Self {
        Self { progress, announced }
    }

    /// Waits until the archive is stored, without reading its bytes.
    ///
    /// # Errors
    /// The fill failed, or the disk could not store the archive.
    pub(in crate::mirror) async fn until_stored(mut self, subject: &str) -> Result<(), Error> {
        loop {
            match &*self.progress.borrow_and_update() {
                FillProgress::Waiting | FillProgress::Streaming { .. } => {}
                FillProgress::Committed { .. } => return Ok(()),
                FillProgress::NotStored { error: reason, .. } | FillProgress::NoSpace(reason) => {
                    return Err(reason.clone().into());
                }
                FillProgress::Failed(error) => return Err(error.clone()),
            }
            if self.progress.changed().await.is_err() {
                return Err(Error::Interrupted(subject.to_owned()));
            }
        }
    }

    /// Streams the bytes as they arrive, within the read budget `memory`. Ends in an error where the fill fails, so
    /// that the client does not take the body for complete.
    pub fn stream(self, memory: ReadShare) -> impl Stream<Item = io::Result<Bytes>> + Send {
        let announced = self.announced;
        stream::try_unfold((self.progress, 0, memory), move |(mut progress, offset, memory)| async move {
            loop {
                let state = progress.borrow_and_update().clone();
                let size_bytes = match &state {
                    FillProgress::Committed { archive, .. } => Some(archive.size_bytes),
                    FillProgress::NotStored { size_bytes, .. } => Some(*size_bytes),
                    FillProgress::Waiting
                    | FillProgress::Streaming { .. }
                    | FillProgress::NoSpace(_)
                    | FillProgress::Failed(_) => None,
                };
                if announced.is_some_and(|announced| size_bytes.is_some_and(|size_bytes| announced != size_bytes)) {
                    return Err(io::Error::other("upstream sent another length than it announced"));
                }
                if size_bytes == Some(offset) {
                    return Ok(None);
                }
                let (bytes, limit) = match state {
                    FillProgress::Waiting => (None, 0),
                    FillProgress::Streaming { bytes, written, .. } => {
                        let before_the_tail = announced.unwrap_or(written).saturating_sub(TAIL_BYTES);
                        (Some(bytes), written.min(before_the_tail))
                    }
                    FillProgress::Committed { bytes, archive } => (bytes, archive.size_bytes),
                    FillProgress::NotStored { bytes, size_bytes, .. } => (Some(bytes), size_bytes),
                    FillProgress::NoSpace(_) => {
                        return Err(io::Error::other("the disk would not take it; the next request gets it without"));
                    }
                    FillProgress::Failed(error) => return Err(io::Error::other(error.to_string())),
                };
                if let Some(bytes) = bytes.filter(|_| offset < limit) {
                    let most = usize::try_from(limit - offset).unwrap_or(READ_BUFFER_BYTES);
                    let piece = bytes.read_at(offset, most, &memory).await?;
                    if piece.is_empty() {
                        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
                    }
                    let next = offset + piece.len() as u64;
                    return Ok(Some((piece, (progress, next, memory))));
                }
                if progress.changed().await.is_err() {
                    return Err(io::Error::other("the fill was interrupted"));
                }
            }
        })
    }
}
