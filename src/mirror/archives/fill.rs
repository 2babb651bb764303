//! Fills one archive into the store: fetch, stage, resume, verify, commit. A fill outlives the client that started it,
//! and publishes its progress to all followers (promise 4). Each streams it from the start and at its own speed. The
//! last bytes are withheld until the archive is verified and committed (promise 3).

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;

use crate::digest::{Digest, FastHash};
use crate::error::Error;
use crate::mirror::SMALL_ARCHIVE_BYTES;
use crate::mirror::archives::archive_request::{ArchiveRequest, FileRequest};
use crate::mirror::archives::download::Download;
use crate::mirror::archives::unattended::ListedFill;
use crate::mirror::counters::ObjectKind;
use crate::mirror::last_answers::Failure;
use crate::mirror::library::Reservation;
use crate::mirror::library::fill_progress::FillProgress;
use crate::mirror::library::intake::ArchiveBytes;
use crate::mirror::library::proof_set::StoredProofSet;
use crate::mirror::request_context::ProxyPath;
use crate::store::{Intake, Key, Staged, StoreError};
use crate::verify::Verified;

/// Extra bytes to reserve next time, after an archive of unknown length did not fit.
const EXTRA_RESERVATION_BYTES: u64 = 1 << 20;

pub(super) struct Fill {
    pub(super) request: ArchiveRequest,
    pub(super) stored_set: Arc<StoredProofSet>,
    pub(super) progress: watch::Sender<FillProgress>,
    /// The entry in the list of the client that started it, removed when the fill ends.
    pub(super) listed_fill: Option<ListedFill>,
}

impl Fill {
    /// Runs the fill and publishes its result. Returns the digest of a stored archive whose `h1:` is still to be
    /// computed.
    ///
    /// The flight ends before the result is published: a later request finds the archive, or starts another fill.
    pub async fn run<L>(mut self, guard: L) -> Option<Digest> {
        let library = Arc::clone(&self.request.archives.library);
        let counted = FillGauge::new(&library.runtime.counters.fills);
        let ended = self.fill().await;
        self.record_answer(&ended);
        drop(counted);
        drop(self.listed_fill.take());
        drop(guard);
        let state = ended.unwrap_or_else(|error| match error {
            Error::Store(reason) => FillProgress::NoSpace(reason),
            error => FillProgress::Failed(error),
        });
        let mut stored = None;
        match &state {
            FillProgress::NotStored { error: reason, .. } => {
                self.log_not_stored(reason, "a verified archive could not be stored; waiting clients get it");
            }
            FillProgress::NoSpace(reason) => {
                self.log_not_stored(reason, "an archive could not be stored; it is passed through");
            }
            FillProgress::Committed { archive, .. } => {
                library.count_stored(ObjectKind::Archive);
                stored = Some(archive.digest);
            }
            // Waiting requests report the error themselves.
            FillProgress::Failed(error) if self.progress.receiver_count() == 0 => {
                tracing::error!(package = %self.request.package, %error, "an archive without waiting clients could not be stored");
            }
            FillProgress::Failed(_)
            | FillProgress::Waiting
            | FillProgress::Streaming { .. }
            | FillProgress::Verified { .. } => {}
        }
        self.progress.send_replace(state);
        stored
    }

    /// Records the end of the download for dry runs.
    fn record_answer(&self, ended: &Result<FillProgress, Error>) {
        let (package, call) = (&self.request.package, &self.request.file.call);
        let has_begun = match &*self.progress.borrow() {
            FillProgress::Streaming { written, length, .. } => length.unwrap_or(*written) > SMALL_ARCHIVE_BYTES,
            _ => false,
        };
        let (answers, name, now) = (&call.config.last_answers, Key::Name(package.into()), call.present());
        let failure = ended.as_ref().err().map(|error| Failure { error: error.clone(), broke_off: has_begun });
        // No late download needs a record: its archive is stored, and clients wait for an archive.
        answers.record(&name, failure, Duration::ZERO, Duration::MAX, now);
    }

    fn log_not_stored(&self, reason: &StoreError, subject: &str) {
        let (package, library) = (&self.request.package, &self.request.archives.library);
        let store = library.folder().display();
        tracing::error!(%package, %store, error = %reason, to_do = reason.remedy(), "{subject}");
        library.count_not_stored(ObjectKind::Archive, reason);
    }

    /// The caller has looked for the archive in what other replicas have written.
    async fn fill(&mut self) -> Result<FillProgress, Error> {
        let library = Arc::clone(&self.request.archives.library);
        let ArchiveRequest { package, set, file, .. } = &self.request;
        if let Some(adopted) = library.adopt(package, &self.stored_set, set, file.call.now).await? {
            return Ok(adopted);
        }
        let mut reservation = library.reservation();
        let (stage_name, learned_length) = (self.stage_name(), self.request.learned_length());
        let intake = library.intake(self.request.set.document.shasum);
        let download = Download {
            library: &library,
            source: &mut self.request,
            stage_name: &stage_name,
            reservation: &mut reservation,
            expected_bytes: learned_length.unwrap_or(0),
            is_verified_by_digest: true,
            intake: Some(&intake),
            progress: Some(&self.progress),
            listed_fill: self.listed_fill.as_ref(),
        };
        let staged = download.run().await.inspect_err(|error| {
            // The disk was full in mid-download: the next fill reserves more before a client gets a byte.
            if let (Error::Store(_), FillProgress::Streaming { written, length: None, .. }) =
                (error, &*self.progress.borrow())
            {
                self.request.remember_length(written + EXTRA_RESERVATION_BYTES);
            }
        })?;
        self.verify_and_commit(staged, intake, reservation).await
    }

    fn stage_name(&self) -> String {
        // A staging file belongs to one fill: packages never share one, even if they download the same bytes.
        let package = FastHash::of(self.request.package.to_string().as_bytes()).to_string();
        let route = match self.request.file.call.proxy_path() {
            ProxyPath::Direct => "",
            ProxyPath::ViaProxies => "~proxied",
        };
        format!("{}~{}{route}", self.request.set.document.shasum, &package[..16])
    }

    async fn verify_and_commit(
        &self,
        staged: Staged,
        intake: Arc<dyn Intake>,
        reservation: Reservation,
    ) -> Result<FillProgress, Error> {
        let (library, expected) = (&self.request.archives.library, self.request.set.document.shasum);
        let (actual, fast) = staged.hashes();
        if actual != expected {
            // Discard before reporting the error, so that the next request starts afresh.
            library.discard_staged(staged).await?;
            return Err(self.request.wrong_digest_error(actual).await);
        }
        let (bytes, size_bytes) = (staged.bytes(), staged.written());
        let ArchiveRequest { package, set, file: FileRequest { call, download, .. }, .. } = &self.request;
        let verified = Verified::by_digest(staged, actual, expected).map_err(|verdict| Error::Unverified {
            subject: download.subject.clone(),
            verdict: verdict.to_string(),
            instead: None,
        })?;
        let (package, stored_set, set) = (package.clone(), Arc::clone(&self.stored_set), Arc::clone(set));
        let now = call.present();
        library
            .on_disk(move |library| {
                let archive = set.named_archive(fast, size_bytes, now);
                let record_proof = || library.sync_set(&package, &stored_set, now).map(|()| true);
                let bytes_staged = ArchiveBytes::Arrived(Box::new(verified), intake);
                let committed = library.commit(&package, archive.clone(), bytes_staged, record_proof);
                drop(reservation);
                // Without an announced length, nothing was evicted for it before.
                library.enforce_size_limit();
                match committed {
                    Ok(_) => Ok(FillProgress::Committed { bytes: Some(bytes), archive: Box::new(archive) }),
                    // A disk that failed to write may have lost earlier data, so the bytes are hashed once more.
                    Err(reason) if bytes.fast_hash()? == fast => {
                        Ok(FillProgress::NotStored { bytes, size_bytes, error: reason })
                    }
                    Err(reason) => Err(reason),
                }
            })
            .await
    }
}

/// Counts a fill in progress until dropped.
pub struct FillGauge(Gauge);

impl FillGauge {
    pub fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for FillGauge {
    fn drop(&mut self) {
        self.0.dec();
    }
}
