//! Fills one archive into the store: fetch, stage, resume, verify, commit. A fill outlives the client that started it,
//! and publishes its progress to all followers (Promise 4).

use std::sync::Arc;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;

use super::asking::{Asking, announced, contradiction};
use super::attempts::{Agreed, Before};
use super::call::CameBy;
use super::counters::Stored;
use super::download::{Pump, TransferEnd};
use super::follow::Progress;
use super::library::Reservation;
use super::library::StoredArchive;
use super::proof_set::{KeptSet, ProofSet};
use super::unattended::StartedFill;
use super::{Mirror, RequestContext};
use crate::address::Package;
use crate::digest::{Digest, FastHash};
use crate::error::Error;
use crate::store::{FileBytes, Staged, StagedNote, StoreError};
use crate::upstream::ask::{IncomingFile, Validators};
use crate::upstream::error::Fault;
use crate::verify::Verified;

/// Extra bytes to reserve next time, after an archive of unknown length did not fit.
const MORE_THAN_THERE_WAS: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct FillKey {
    pub(super) package: Package,
    pub(super) digest: Digest,
}

pub(super) struct Fill {
    mirror: Arc<Mirror>,
    asking: Asking,
    kept: Arc<KeptSet>,
    progress: watch::Sender<Progress>,
    /// The entry in the list of the client that started it.
    started: Option<StartedFill>,
}

impl Fill {
    pub(super) fn new(
        mirror: Arc<Mirror>,
        package: Package,
        kept: Arc<KeptSet>,
        set: Arc<ProofSet>,
        call: RequestContext,
        progress: watch::Sender<Progress>,
    ) -> Self {
        let asking = Asking::new(Arc::clone(&mirror), package, set, call);
        Self { mirror, asking, kept, progress, started: None }
    }

    /// Attaches the entry in a client's list of started fills. The entry is removed when the fill ends.
    pub(super) fn listed(self, started: Option<StartedFill>) -> Self {
        Self { started, ..self }
    }

    /// Runs the fill and publishes its result. Returns the digest of a stored archive whose `h1:` is still to be
    /// computed.
    ///
    /// The flight ends before the result is published: a later request finds the archive, or starts another fill.
    pub(super) async fn run<L>(mut self, landing: L) -> Option<Digest> {
        let counted = FillGauge::new(&self.mirror.counters.fills);
        let ended = self.fill().await;
        drop(counted);
        drop(self.started.take());
        drop(landing);
        match ended {
            Ok(Filled::Held { bytes, held }) => {
                self.mirror.was_kept(Stored::Archive);
                let digest = held.digest;
                self.progress.send_replace(Progress::Committed { bytes, held });
                Some(digest)
            }
            Ok(Filled::Unkept { bytes, size_bytes, why }) => {
                self.could_not_be_kept(&why, "an archive is proven and could not be kept; those who wait get it");
                self.progress.send_replace(Progress::Unkept { bytes, size_bytes, why });
                None
            }
            Err(Error::Store(why)) => {
                self.could_not_be_kept(&why, "an archive could not be kept; it is passed through");
                self.progress.send_replace(Progress::NoPlace(why));
                None
            }
            Err(error) => {
                // Waiting requests report the error themselves.
                if self.progress.receiver_count() == 0 {
                    tracing::error!(package = %self.asking.package, %error, "an archive that nobody waits for could not be stored");
                }
                self.progress.send_replace(Progress::Failed(error));
                None
            }
        }
    }

    fn could_not_be_kept(&self, why: &StoreError, what: &str) {
        let (package, store) = (&self.asking.package, self.mirror.store.root().display());
        tracing::error!(%package, %store, error = %why, to_do = why.remedy(), "{what}");
        self.mirror.was_not_kept(Stored::Archive, why);
    }

    async fn fill(&mut self) -> Result<Filled, Error> {
        let Asking { package, set, call, .. } = &self.asking;
        if let Some(adopted) = self.mirror.adopt(package, &self.kept, set, call.now).await? {
            return Ok(adopted);
        }
        let mut room = self.mirror.reservation();
        let staged = self.stage().await?;
        let staged = self.download(staged, &mut room).await?;
        self.prove_and_commit(staged, room).await
    }

    /// Downloads until everything is staged.
    async fn download(&mut self, mut staged: Staged, room: &mut Reservation) -> Result<Staged, Error> {
        let what = self.asking.what.clone();
        while !is_complete(&staged) {
            let had = staged.written();
            let validators = validators(&staged);
            let incoming = tokio::select! {
                asked = self.asking.ask(had, &validators) => asked?,
                why = StartedFill::one_too_many(self.started.as_ref(), &what) => return Err(why),
            };
            let before = Before { bytes: had, length: staged.note().and_then(|note| note.length) };
            let length = match self.asking.attempts.agreed(before, announced(&incoming)) {
                Agreed::Length(length) => length,
                Agreed::StartOver => {
                    self.discard(staged).await?;
                    staged = self.stage().await?;
                    if incoming.from > 0 {
                        continue;
                    }
                    incoming.length
                }
                Agreed::Never { told, now } => {
                    self.discard(staged).await?;
                    return Err(contradiction(&incoming, told, now));
                }
            };
            staged = self.take_room(room, staged, &incoming, length).await?;
            self.tell(&staged, length);
            let (mirror, attempts, progress) = (&self.mirror, &mut self.asking.attempts, &self.progress);
            let given_up = StartedFill::one_too_many(self.started.as_ref(), &what);
            let pump = Pump { mirror, attempts, room: &mut *room, progress, given_up };
            let (returned, ended) = pump.run(staged, incoming, length).await;
            staged = returned.ok_or_else(|| Error::Interrupted(self.asking.what.clone()))?;
            match ended {
                TransferEnd::Whole => break,
                TransferEnd::Differs(error) => {
                    self.discard(staged).await?;
                    return Err(error);
                }
                TransferEnd::Failed(error) => {
                    if matches!(error, Error::Store(_)) {
                        self.found_no_place(staged, length).await;
                    }
                    return Err(error);
                }
                TransferEnd::Broken(error) => {
                    let at = staged.written();
                    self.asking.broke(error, at.saturating_sub(had), at).await?;
                }
            }
        }
        Ok(staged)
    }

    async fn stage(&self) -> Result<Staged, Error> {
        // A staging file belongs to one fill: packages never share one, even if they download the same bytes.
        let package = FastHash::of(self.asking.package.to_string().as_bytes()).to_string();
        let came = match self.asking.call.came() {
            CameBy::Straight => "",
            CameBy::ThroughProxies => "~proxied",
        };
        let name = format!("{}~{}{came}", self.asking.set.document.shasum, &package[..16]);
        self.mirror.on_disk(move |mirror| mirror.store.blobs.stage(&name)).await
    }

    /// Reserves disk space for the whole length before any client gets a byte, and records the validators for a resume.
    async fn take_room(
        &self,
        room: &mut Reservation,
        staged: Staged,
        incoming: &IncomingFile,
        length: Option<u64>,
    ) -> Result<Staged, Error> {
        let limit = self.mirror.limits.archive_bytes;
        if length.is_some_and(|length| length > limit) {
            return Err(incoming.failed(Fault::TooLarge(limit)).into());
        }
        let bytes = length.or_else(|| self.length_of_before()).unwrap_or(0).max(staged.written());
        let (staged, taken) = self.mirror.take_room(room, staged, incoming, length, bytes).await?;
        match taken {
            Ok(()) => Ok(staged),
            Err(why) => {
                // Bytes of an earlier run can be resumed once there is space. An empty file is useless.
                if staged.written() == 0 {
                    self.try_to_discard(staged).await;
                }
                Err(why.into())
            }
        }
    }

    /// The size of an earlier download without an announced length.
    fn length_of_before(&self) -> Option<u64> {
        let Asking { package, set, call, .. } = &self.asking;
        let key = FillKey { package: package.clone(), digest: set.document.shasum };
        self.mirror.lengths.get(&key, call.now)
    }

    /// Handles a disk that is full in mid-download: the partial file is worth less than the space it takes.
    async fn found_no_place(&self, staged: Staged, length: Option<u64>) {
        if length.is_none() {
            // The next fill then reserves more before a client gets a byte.
            self.mirror.remember_length(&self.asking, staged.written() + MORE_THAN_THERE_WAS);
        }
        self.try_to_discard(staged).await;
    }

    async fn try_to_discard(&self, staged: Staged) {
        if let Err(error) = self.discard(staged).await {
            tracing::warn!(package = %self.asking.package, %error, "what is staged of an archive could not be removed");
        }
    }

    fn tell(&mut self, staged: &Staged, length: Option<u64>) {
        self.asking.attempts.tell(length);
        self.progress.send_replace(Progress::Streaming { bytes: staged.bytes(), written: staged.written(), length });
    }

    async fn discard(&self, staged: Staged) -> Result<(), Error> {
        self.mirror.on_disk(move |_| staged.discard()).await
    }

    async fn prove_and_commit(&self, staged: Staged, room: Reservation) -> Result<Filled, Error> {
        let expected = self.asking.set.document.shasum;
        let (actual, fast) = staged.hashes();
        if actual != expected {
            // Discard before reporting the error, so that the next request starts afresh.
            self.discard(staged).await?;
            return Err(self.asking.wrong(actual).await);
        }
        let (bytes, size_bytes) = (staged.bytes(), staged.written());
        let Asking { package, set, call, what, .. } = &self.asking;
        let verified = Verified::by_digest(staged, actual, expected)
            .map_err(|verdict| Error::Unverified { asked: what.clone(), verdict: verdict.to_string() })?;
        let (package, kept, set) = (package.clone(), Arc::clone(&self.kept), Arc::clone(set));
        let now = self.mirror.inner(call).now;
        self.mirror
            .on_disk(move |mirror| {
                let held = StoredArchive::of_set(&set, fast, size_bytes, now);
                let held = mirror.commit(&package, &kept, held, verified);
                drop(room);
                // Without an announced length, nothing was evicted for it before.
                mirror.keep_to_the_limit();
                match held {
                    Ok(held) => Ok(Filled::Held { bytes: Some(bytes), held: Box::new(held) }),
                    // A disk that failed to write may have lost earlier data, so the bytes are hashed once more.
                    Err(why) if bytes.fast_hash()? == fast => Ok(Filled::Unkept { bytes, size_bytes, why }),
                    Err(why) => Err(why),
                }
            })
            .await
    }
}

impl Mirror {
    /// Reserves `bytes` in total and records the validators for a resume. The inner result reports a lack of space.
    pub(super) async fn take_room(
        self: &Arc<Self>,
        room: &mut Reservation,
        mut staged: Staged,
        incoming: &IncomingFile,
        length: Option<u64>,
        bytes: u64,
    ) -> Result<(Staged, Result<(), StoreError>), Error> {
        match self.reserve(room, bytes).await {
            Ok(()) => {}
            Err(Error::Store(no_room)) => return Ok((staged, Err(no_room))),
            Err(error) => return Err(error),
        }
        let Validators { etag, last_modified } = incoming.validators.clone();
        let note = StagedNote { etag, last_modified, length };
        self.on_disk(move |mirror| {
            let taken = match staged.remember(note.clone(), bytes) {
                Err(full) if full.is_full() => {
                    let missing = bytes.saturating_sub(staged.written());
                    mirror.make_room_on_disk(missing, &full).and_then(|()| staged.remember(note, bytes))
                }
                remembered => remembered,
            };
            Ok((staged, taken))
        })
        .await
    }
}

pub(super) enum Filled {
    /// Stored. `bytes` is the file that it was downloaded to, if it was downloaded now.
    Held { bytes: Option<FileBytes>, held: Box<StoredArchive> },
    /// Verified, but the disk could not store it.
    Unkept { bytes: FileBytes, size_bytes: u64, why: StoreError },
}

pub(super) fn is_complete(staged: &Staged) -> bool {
    staged.note().and_then(|note| note.length).is_some_and(|length| length > 0 && staged.written() == length)
}

/// The validators for resuming a staged download.
pub(super) fn validators(staged: &Staged) -> Validators {
    let note = staged.note().cloned().unwrap_or_default();
    Validators { etag: note.etag, last_modified: note.last_modified }
}

/// Counts a fill in progress until dropped.
pub(super) struct FillGauge(Gauge);

impl FillGauge {
    pub(super) fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for FillGauge {
    fn drop(&mut self) {
        self.0.dec();
    }
}
