//! Serves provider archives, SHA256SUMS and signatures: from the store, or from a fill in progress.

pub mod archive_request;
pub mod download;
pub mod fill;
pub mod pass_through;
mod recall;
pub mod unattended;
pub mod unpacked;
pub mod verified_open;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};

use crate::address::Package;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::archives::archive_request::ArchiveRequest;
use crate::mirror::archives::fill::Fill;
use crate::mirror::archives::pass_through::{MAX_PASS_THROUGHS, PassThrough};
use crate::mirror::archives::unattended::FillsByClient;
use crate::mirror::counters::DamageFinding;
use crate::mirror::effects::Effects;
use crate::mirror::freshness::CHECKED_COPY_LIFETIME;
use crate::mirror::library::file_refs::{ArchiveRef, ProofFileBytes};
use crate::mirror::library::fill_progress::FillProgress;
use crate::mirror::library::proof_set::{ProofSet, ProofSetFile, StoredProofSet};
use crate::mirror::proof_sets::files::RequestedFile;
use crate::mirror::request_context::ProxyPath;
use crate::mirror::runtime::TtlCache;
use crate::mirror::single_flight::SingleFlights;
use crate::mirror::{
    Answer, Library, Outcome, ProofSets, RequestContext, Runtime, SMALL_ARCHIVE_BYTES, Urgency, VerifiedReader,
};
use crate::store::{Blob, Key};
use crate::upstream::outbound::Connectivity;

/// A file to send.
#[derive(Debug)]
pub enum Archive {
    /// Verified, whole in memory.
    InMemory {
        /// The bytes.
        bytes: Bytes,
        /// Their SHA-256.
        digest: Digest,
        /// Time of first storage. `None` for a file of a proof set.
        stored: Option<Timestamp>,
    },
    /// Verified, read from disk while it is sent.
    OnDisk {
        /// The open file.
        blob: Blob,
        /// Its SHA-256.
        digest: Digest,
        /// Time of first storage.
        stored: Timestamp,
    },
    /// Arriving from upstream and not verified yet. Must not look complete before it is.
    Arriving {
        /// The fill. Its last bytes are withheld until the archive is verified and committed.
        progress: watch::Receiver<FillProgress>,
        /// The length, where upstream announced one.
        length: Option<u64>,
    },
    /// Passed through for one client, because the archive cannot be stored.
    PassedThrough {
        /// The body; its last bytes are withheld until the archive is verified.
        passing: Box<PassThrough>,
        /// The length, where upstream announced one.
        length: Option<u64>,
    },
}

impl From<ProofFileBytes> for Archive {
    fn from(ProofFileBytes { bytes, digest }: ProofFileBytes) -> Self {
        Self::InMemory { bytes, digest, stored: None }
    }
}

/// Serves archives of providers, and fills them.
#[derive(Debug)]
pub struct Archives {
    pub(in crate::mirror) runtime: Arc<Runtime>,
    pub(in crate::mirror) library: Arc<Library>,
    pub(in crate::mirror) proof_sets: Arc<ProofSets>,
    /// Opens stored archives.
    pub reader: Arc<VerifiedReader>,
    fill_flights: SingleFlights<(Package, Digest, ProxyPath), watch::Receiver<FillProgress>>,
    /// The fills in progress that clients started, of modules too.
    pub started_fills: FillsByClient,
    learned_lengths: TtlCache<(Package, Digest), u64>,
    pass_through_permits: Arc<Semaphore>,
}

/// The fills that one request waits for, where the archive is evicted again before it comes to open it: in a store that is too
/// small, others need the space.
const MAX_FILLS_OF_A_REQUEST: usize = 3;

impl Archives {
    pub(in crate::mirror) fn new(
        proof_sets: Arc<ProofSets>,
        reader: Arc<VerifiedReader>,
        started_fills: FillsByClient,
    ) -> Arc<Self> {
        Arc::new(Self {
            runtime: Arc::clone(&proof_sets.runtime),
            library: Arc::clone(&proof_sets.library),
            proof_sets,
            reader,
            fill_flights: SingleFlights::default(),
            started_fills,
            learned_lengths: TtlCache::default(),
            pass_through_permits: Arc::new(Semaphore::new(MAX_PASS_THROUGHS)),
        })
    }

    /// Returns the archive that one of our URLs names: from the store, or from a fill that it joins or starts.
    ///
    /// # Errors
    /// [`Error::NotFound`] where no stored proof set or name lists the digest, even after asking upstream again.
    pub async fn archive(
        self: &Arc<Self>,
        wanted: &ArchiveRef,
        call: &RequestContext,
    ) -> Result<Answer<Archive>, Error> {
        let package = &wanted.package;
        self.proof_sets.documents.permit(&package.provider, &package.version, call).await?;
        let policy = call.upstream(&package.provider.host)?.settings.verification;
        if let Some(archive) = self.library.stored_archive_of_url(wanted).await? {
            if policy.is_met_by(&archive.proof.how)
                && let Ok(archive) = self.reader.open_stored(package, &archive, call).await?
            {
                let fresh_until = call.now.after(CHECKED_COPY_LIFETIME);
                return Ok(Answer { fresh_until, ..Answer::of_now(archive, Outcome::Hit, call) });
            }
            // It was found without a question to the others, and upstream may be asked now.
            self.library.refresh(Key::Name(package.into()).group()).await?;
        }
        let requested = RequestedFile { package, digest: &wanted.digest, name: wanted.filename.as_str() };
        let stored = match self.proof_sets.usable_set(package, call).await? {
            Some(stored) if stored.find(&wanted.digest, call.now).is_some() => stored,
            stored => {
                let seen = stored.map(|stored| stored.stored_set.confirmed);
                self.proof_sets.refetch_set_listing(requested, seen, call).await?
            }
        };
        match stored.find(&wanted.digest, call.now) {
            Some((set, ProofSetFile::Archive)) if set.document.filename == wanted.filename => {
                self.archive_from_fill(package, &stored.stored_set, &set, call).await
            }
            // URLs of earlier releases named the platform in these paths too.
            Some((set, ProofSetFile::Proof(file))) if file.name() == requested.name => {
                Ok(Answer::of_now(set.proof_file(file).into(), Outcome::Hit, call))
            }
            Some((_, ProofSetFile::Archive | ProofSetFile::Proof(_))) | None => Err(requested.not_found_error()),
        }
    }

    /// Joins or starts the fill of an archive that is not stored.
    async fn archive_from_fill(
        self: &Arc<Self>,
        package: &Package,
        stored_set: &Arc<StoredProofSet>,
        set: &Arc<ProofSet>,
        call: &RequestContext,
    ) -> Result<Answer<Archive>, Error> {
        let (digest, subject) = (set.document.shasum, format!("the archive of {package}"));
        // A fill of this machine may have finished since the first check: do not start another.
        if let Some(archive) = self.library.archive_here(package, digest).await?
            && let Ok(archive) = self.reader.open_stored(package, &archive, call).await?
        {
            return Ok(Answer::of_now(archive, Outcome::Hit, call));
        }
        if self.runtime.connectivity() == Connectivity::Offline && !self.library.file_is_at_hand(digest).await? {
            return Err(self.library.missing_error(package, subject, call).await);
        }
        if call.effects() == Effects::None {
            let key = Key::Name(package.into());
            call.config.last_answers.replay(&key, &subject, Duration::MAX, call.now)?;
            return Err(Error::WouldAsk(subject));
        }
        let _place = self.runtime.take_waiting_place(&subject, call)?;
        for _ in 0..MAX_FILLS_OF_A_REQUEST {
            let progress = self.join_fill(package, stored_set, set, call)?;
            if let Some((value, outcome)) = self.wait_for_fill(package, set, progress, call).await? {
                return Ok(Answer::of_now(value, outcome, call));
            }
        }
        Err(Error::Interrupted(subject))
    }

    /// Joins the fill of an archive, or starts one.
    ///
    /// # Errors
    /// [`Error::TooManyUnattendedFills`] where this client has already started too many fills that nothing waits for.
    pub fn join_fill(
        self: &Arc<Self>,
        package: &Package,
        stored_set: &Arc<StoredProofSet>,
        set: &Arc<ProofSet>,
        call: &RequestContext,
    ) -> Result<watch::Receiver<FillProgress>, Error> {
        let key = (package.clone(), set.document.shasum, call.proxy_path());
        let may_start = || self.started_fills.may_start(call.client, || format!("the archive of {package}"));
        self.fill_flights.try_join(key, may_start, |guard| {
            let (sender, progress) = watch::channel(FillProgress::Waiting);
            let (archives, package, set) = (Arc::clone(self), package.clone(), Arc::clone(set));
            let (stored_set, flight_call) = (Arc::clone(stored_set), self.runtime.flight_context(call));
            let run = || {
                let listed_fill = self.started_fills.started(call.client, sender.clone());
                self.runtime.tasks.spawn(async move {
                    let library = Arc::clone(&archives.library);
                    let request = ArchiveRequest::new(archives, package.clone(), set, flight_call);
                    let fill = Fill { request, stored_set, progress: sender, listed_fill };
                    if let Some(digest) = fill.run(guard).await {
                        library.complete_hashes_of(package, digest).await;
                    }
                });
            };
            (progress, run)
        })
    }

    /// Waits until a response can begin: the archive is verified and committed, or large and streaming (promise 3). Where
    /// the disk cannot take it, a client gets it all the same, and a job an error. `None` if it was evicted again before this
    /// request came to open it.
    async fn wait_for_fill(
        self: &Arc<Self>,
        package: &Package,
        set: &Arc<ProofSet>,
        mut progress: watch::Receiver<FillProgress>,
        call: &RequestContext,
    ) -> Result<Option<(Archive, Outcome)>, Error> {
        loop {
            let state = progress.borrow_and_update().clone();
            match state {
                // Only an archive from where all replicas keep it is verified before it is stored.
                FillProgress::Waiting | FillProgress::Verified { .. } => {}
                FillProgress::Streaming { written, length, .. } => {
                    let is_large = length.unwrap_or(written) > SMALL_ARCHIVE_BYTES;
                    if is_large && (length.is_some() || call.takes_unknown_length) {
                        return Ok(Some((Archive::Arriving { progress, length }, Outcome::Miss)));
                    }
                }
                FillProgress::Committed { archive, bytes } => {
                    let length = Some(archive.size_bytes);
                    return match (self.reader.open_stored(package, &archive, call).await?, bytes) {
                        (Ok(archive), _) => Ok(Some((archive, Outcome::Miss))),
                        // Already evicted again, but the file of the download is still open.
                        (Err(DamageFinding::Missing), Some(_)) => {
                            Ok(Some((Archive::Arriving { progress, length }, Outcome::Miss)))
                        }
                        (Err(DamageFinding::Missing | DamageFinding::Damaged), _) => Ok(None),
                    };
                }
                FillProgress::NotStored { error: reason, .. } | FillProgress::NoSpace(reason)
                    if call.urgency != Urgency::Request =>
                {
                    return Err(reason.into());
                }
                FillProgress::NotStored { size_bytes, .. } => {
                    self.runtime.counters.passed_through.inc();
                    let length = Some(size_bytes);
                    return Ok(Some((Archive::Arriving { progress, length }, Outcome::PassedThrough)));
                }
                FillProgress::NoSpace(reason) => {
                    return Ok(Some((self.pass_through(package, set, reason, call).await?, Outcome::PassedThrough)));
                }
                FillProgress::Failed(error) => return Err(error),
            }
            if progress.changed().await.is_err() {
                return Err(Error::Interrupted(format!("the archive of {package}")));
            }
        }
    }
}
