//! Serves provider archives, SHA256SUMS and signatures: from the store, or from a fill in progress.

pub(in crate::mirror) mod archive_request;
pub(in crate::mirror) mod download;
pub(in crate::mirror) mod fill;
pub(in crate::mirror) mod pass_through;
pub(in crate::mirror) mod unattended;
pub(in crate::mirror) mod verified_open;

use crate::mirror::archives::pass_through::MAX_PASS_THROUGHS;
use crate::mirror::archives::unattended::FillsByClient;
use crate::mirror::request_context::ProxyPath;
use crate::mirror::runtime::TtlCache;
use crate::mirror::single_flight::SingleFlights;
use crate::mirror::{Library, ProofSets, Runtime, VerifiedReader};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::timeout_at;

use crate::address::{FileName, Package, Platform, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::digest::{Digest, DigestPrefix};
use crate::error::Error;
use crate::mirror::archives::archive_request::ArchiveRequest;
use crate::mirror::archives::download::{FillProgress, TailStream};
use crate::mirror::archives::fill::Fill;
use crate::mirror::archives::pass_through::PassThrough;
use crate::mirror::archives::verified_open::OpenOutcome;
use crate::mirror::freshness::Confirmation;
use crate::mirror::library::proof_set::{ProofSet, ProofSetFile, StoredProofSet, UsableProofSet};
use crate::mirror::proof_sets::describe_set;
use crate::mirror::{Answer, FetchReason, Outcome, RequestContext, SMALL_ARCHIVE_BYTES, Urgency};
use crate::store::{Blob, Key};
use crate::upstream::outbound::Connectivity;

/// A provider archive, as one of our URLs names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ArchiveRef {
    /// The package.
    pub package: Package,
    /// The first 16 hex digits of the file's own SHA-256, so that a client never mixes two proof sets.
    pub digest: DigestPrefix,
    /// The file's name.
    pub filename: FileName,
}

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
        /// The body; its last bytes are withheld until the archive is verified and committed.
        follow: TailStream,
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

/// The lifetime of an answer from a checked copy, before the archive is opened and checked again. A change of the
/// provider's revision ends it earlier.
const CHECKED_COPY_LIFETIME: Duration = Duration::from_secs(60);

/// The most platforms of a version for which upstream is asked for SHA256SUMS or a signature. Nearly every provider has
/// one SHA256SUMS for all platforms.
const MAX_PLATFORMS_ASKED: usize = 4;

/// The SHA256SUMS of a version or its signature, as one of our URLs names it. The URL has no platform, because clients
/// such as Renovate count one list of hashes for each URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProofFileRef {
    /// The provider.
    pub provider: ProviderAddress,
    /// The version.
    pub version: Version,
    /// The first 16 hex digits of the file's own SHA-256.
    pub digest: DigestPrefix,
    /// Selects one of the two files.
    pub file: ProofFile,
}

/// A file of a proof set beside the download document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProofFile {
    /// SHA256SUMS.
    Sums,
    /// Its signature.
    Signature,
}

impl ProofFile {
    /// The file's name in our URLs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sums => "SHA256SUMS",
            Self::Signature => "SHA256SUMS.sig",
        }
    }

    /// Parses a name from one of our URLs.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Sums, Self::Signature].into_iter().find(|file| file.name() == name)
    }
}

/// The URLs of the files that one proof set names, as references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProofSetRefs {
    /// The archive.
    pub archive: ArchiveRef,
    /// SHA256SUMS.
    pub sums: ProofFileRef,
    /// The signature.
    pub signature: ProofFileRef,
}

impl ProofSet {
    /// Builds the references for this set.
    pub fn refs(&self, package: &Package) -> ProofSetRefs {
        let Package { provider, version, .. } = package;
        let proof = |digest: Digest, file| ProofFileRef {
            provider: provider.clone(),
            version: version.clone(),
            digest: digest.prefix(),
            file,
        };
        let filename = self.document.filename.clone();
        ProofSetRefs {
            archive: ArchiveRef { package: package.clone(), digest: self.document.shasum.prefix(), filename },
            sums: proof(self.sums_digest(), ProofFile::Sums),
            signature: proof(self.signature_digest(), ProofFile::Signature),
        }
    }

    fn proof_file(&self, file: ProofFile) -> Archive {
        let (bytes, digest) = match file {
            ProofFile::Sums => (&self.sums, self.sums_digest()),
            ProofFile::Signature => (&self.signature, self.signature_digest()),
        };
        Archive::InMemory { bytes: bytes.clone(), digest, stored: None }
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
    pub(in crate::mirror) started_fills: FillsByClient,
    learned_lengths: TtlCache<(Package, Digest), u64>,
    pass_through_permits: Arc<Semaphore>,
}

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
        let policy = call.upstream(&package.provider.host)?.settings.verification;
        if let Some(archive) =
            self.library.stored_archive_of_url(wanted).await?.filter(|archive| policy.is_met_by(&archive.proof.how))
            && let OpenOutcome::Checked(archive) = self.reader.open_stored(package, &archive, call).await?
        {
            let fresh_until = call.now.after(CHECKED_COPY_LIFETIME);
            return Ok(Answer { fresh_until, ..Answer::of_now(archive, Outcome::Hit, call) });
        }
        let stored = self.proof_sets.usable_set(package, call).await?;
        if let Some(stored) = &stored
            && let Some((set, file)) = stored.find(&wanted.digest, call.now)
        {
            return self.archive_from_set(wanted, stored, &set, file, call).await;
        }
        let requested = RequestedFile { package, digest: &wanted.digest, name: wanted.filename.as_str() };
        let stored =
            self.refetch_set_listing(requested, stored.map(|stored| stored.stored_set.confirmed), call).await?;
        match stored.find(&wanted.digest, call.now) {
            Some((set, file)) => self.archive_from_set(wanted, &stored, &set, file, call).await,
            None => Err(requested.not_found_error()),
        }
    }

    /// Returns SHA256SUMS or a signature from any stored proof set of the version, current or previous, that contains
    /// the digest. Where none does, asks upstream again for the sets that may contain it.
    ///
    /// # Errors
    /// [`Error::NotFound`] where no set contains the digest, even after asking upstream.
    pub async fn proof_file(&self, wanted: &ProofFileRef, call: &RequestContext) -> Result<Answer<Archive>, Error> {
        let ProofFileRef { provider, version, digest, file } = wanted;
        let stored = self.library.platforms_with_sets(provider, version).await?;
        let package = |platform| Package { provider: provider.clone(), version: version.clone(), platform };
        for platform in &stored {
            let usable = self.proof_sets.usable_set(&package(platform.clone()), call).await?;
            if let Some(set) = usable.and_then(|usable| usable.with_proof_file(*file, digest, call.now)) {
                let fresh_until = call.now.after(CHECKED_COPY_LIFETIME);
                return Ok(Answer { fresh_until, ..Answer::of_now(set.proof_file(*file), Outcome::Hit, call) });
            }
        }
        let mut last_error = None;
        for platform in self.likely_platforms(provider, version, stored).await? {
            let package = package(platform);
            let requested = RequestedFile { package: &package, digest, name: file.name() };
            let seen = self.proof_sets.usable_set(&package, call).await?.map(|usable| usable.stored_set.confirmed);
            match self.refetch_set_listing(requested, seen, call).await {
                Ok(usable) => match usable.with_proof_file(*file, digest, call.now) {
                    Some(set) => return Ok(Answer::of_now(set.proof_file(*file), Outcome::Miss, call)),
                    None => last_error = last_error.or(Some(requested.not_found_error())),
                },
                // A file absent for one platform may exist for another. After any other failure its absence is
                // unproven.
                Err(Error::NotFound(reason)) => last_error = last_error.or(Some(Error::NotFound(reason))),
                Err(error) => return Err(error),
            }
        }
        let subject = format!("{} of {provider} {version}", file.name());
        Err(last_error.unwrap_or_else(|| Error::NotFound(format!("{subject}: no platform of that version is known"))))
    }

    /// Returns the platforms to ask upstream about when no stored set contains a file: those with a set first, then
    /// those in the cached version list, the common ones before the others.
    async fn likely_platforms(
        &self,
        provider: &ProviderAddress,
        version: &Version,
        stored: Vec<Platform>,
    ) -> Result<Vec<Platform>, Error> {
        let mut likely = stored;
        let list = self.library.stored_version_list(&provider.into()).await?;
        let listed = list.as_ref().and_then(|list| list.get(version)).map(|listed| &listed.platforms[..]);
        let names_none = listed.is_none_or(<[_]>::is_empty);
        likely.extend(Platform::common().filter(|common| names_none || listed.is_some_and(|all| all.contains(common))));
        likely.extend(listed.unwrap_or_default().iter().cloned());
        let mut seen = HashSet::new();
        likely.retain(|platform| seen.insert(platform.clone()));
        likely.truncate(MAX_PLATFORMS_ASKED);
        Ok(likely)
    }

    /// Fetches the proof set again, for a URL whose digest no stored set lists. Where the new set does not list it
    /// either, upstream is not asked again for a while.
    async fn refetch_set_listing(
        &self,
        wanted: RequestedFile<'_>,
        seen: Option<Confirmation>,
        call: &RequestContext,
    ) -> Result<UsableProofSet, Error> {
        let package = wanted.package;
        if call.config.refetched_sets.get(package, call.now).is_some() {
            return Err(wanted.not_found_error());
        }
        if self.runtime.connectivity() == Connectivity::Offline {
            return Err(self.library.missing_error(package, format!("{} of {package}", wanted.name), call).await);
        }
        let subject = describe_set(package);
        let _place = self.runtime.take_waiting_place(&subject, call)?;
        call.refuse_if_absent(&Key::ProofSet(package.clone()))?;
        let flight = self.proof_sets.join_set_flight(package, seen, FetchReason::NotStored, call);
        let fetched = timeout_at(call.deadline, flight).await.map_err(|_| Error::Slow(subject))??;
        let stored = UsableProofSet { stored_set: fetched.value, fallback: None };
        if stored.find(wanted.digest, call.now).is_none() && !call.is_dry_run() {
            let rule = call.upstream(&package.provider.host)?.freshness_rule(|fresh| fresh.download);
            call.config.refetched_sets.insert(package.clone(), (), call.now.after(rule.not_found_lifetime()), call.now);
        }
        Ok(stored)
    }

    async fn archive_from_set(
        self: &Arc<Self>,
        wanted: &ArchiveRef,
        stored: &UsableProofSet,
        set: &Arc<ProofSet>,
        file: ProofSetFile,
        call: &RequestContext,
    ) -> Result<Answer<Archive>, Error> {
        let name = wanted.filename.as_str();
        let proof = |file: ProofFile| Answer::of_now(set.proof_file(file), Outcome::Hit, call);
        match file {
            ProofSetFile::Archive if set.document.filename == wanted.filename => {
                self.archive_from_fill(&wanted.package, &stored.stored_set, set, call).await
            }
            // URLs of earlier releases named the platform in these paths too.
            ProofSetFile::Proof(file) if file.name() == name => Ok(proof(file)),
            ProofSetFile::Archive | ProofSetFile::Proof(_) => {
                Err(RequestedFile { package: &wanted.package, digest: &wanted.digest, name }.not_found_error())
            }
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
        // A fill may have finished since the first check: do not start another.
        if let Some(archive) = self.library.stored_archive(package, digest).await?
            && let OpenOutcome::Checked(archive) = self.reader.open_stored(package, &archive, call).await?
        {
            return Ok(Answer::of_now(archive, Outcome::Hit, call));
        }
        if self.runtime.connectivity() == Connectivity::Offline && !self.library.has_archive(digest).await? {
            return Err(self.library.missing_error(package, subject, call).await);
        }
        if call.is_dry_run() {
            let key = Key::Name(package.into());
            call.config.last_answers.replay(&key, &subject, Duration::MAX, call.now)?;
            return Err(Error::WouldAsk(subject));
        }
        let _place = self.runtime.take_waiting_place(&subject, call)?;
        let progress = self.join_fill(package, stored_set, set, call)?;
        let (value, outcome) = self.wait_for_fill(package, set, progress, call).await?;
        Ok(Answer::of_now(value, outcome, call))
    }

    /// Joins the fill of an archive, or starts one.
    ///
    /// # Errors
    /// [`Error::TooManyUnattendedFills`] where this client has already started too many fills that nothing waits for.
    pub(in crate::mirror) fn join_fill(
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
    /// the disk cannot take it, a client gets it all the same, and a job an error.
    async fn wait_for_fill(
        self: &Arc<Self>,
        package: &Package,
        set: &Arc<ProofSet>,
        mut progress: watch::Receiver<FillProgress>,
        call: &RequestContext,
    ) -> Result<(Archive, Outcome), Error> {
        let arriving = |progress, length| Archive::Arriving { follow: TailStream::new(progress, length), length };
        loop {
            let state = progress.borrow_and_update().clone();
            match state {
                FillProgress::Waiting => {}
                FillProgress::Streaming { written, length, .. } => {
                    let may_begin = match length {
                        Some(length) => length > SMALL_ARCHIVE_BYTES,
                        None => written > SMALL_ARCHIVE_BYTES && call.takes_unknown_length,
                    };
                    if may_begin {
                        return Ok((arriving(progress, length), Outcome::Miss));
                    }
                }
                FillProgress::Committed { archive, bytes } => {
                    let length = Some(archive.size_bytes);
                    return match (self.reader.open_stored(package, &archive, call).await?, bytes) {
                        (OpenOutcome::Checked(archive), _) => Ok((archive, Outcome::Miss)),
                        // Already evicted again, but the file of the download is still open.
                        (OpenOutcome::Missing, Some(_)) => Ok((arriving(progress, length), Outcome::Miss)),
                        (OpenOutcome::Missing | OpenOutcome::Damaged, _) => {
                            Err(Error::Interrupted(format!("the archive of {package}")))
                        }
                    };
                }
                FillProgress::NotStored { error: reason, .. } | FillProgress::NoSpace(reason)
                    if call.urgency != Urgency::Request =>
                {
                    return Err(reason.into());
                }
                FillProgress::NotStored { size_bytes, .. } => {
                    self.runtime.counters.passed_through.inc();
                    return Ok((arriving(progress, Some(size_bytes)), Outcome::PassedThrough));
                }
                FillProgress::NoSpace(reason) => {
                    return Ok((self.pass_through(package, set, reason, call).await?, Outcome::PassedThrough));
                }
                FillProgress::Failed(error) => return Err(error),
            }
            if progress.changed().await.is_err() {
                return Err(Error::Interrupted(format!("the archive of {package}")));
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct RequestedFile<'a> {
    package: &'a Package,
    digest: &'a DigestPrefix,
    name: &'a str,
}

impl RequestedFile<'_> {
    fn not_found_error(&self) -> Error {
        let Self { package, digest, name } = self;
        Error::NotFound(format!(
            "{package} has no file {name} whose SHA-256 begins with {digest}: ask its download document again"
        ))
    }
}
