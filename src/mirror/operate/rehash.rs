//! Re-hashes what is stored at a limited rate: `verify` all at once, and the scrub one archive after the other over
//! weeks. A wrong archive is quarantined and fetched again (promise 10).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use derive_more::Display;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::address::{Artifact, ModulePackage, Package, ProviderAddress};
use crate::clock::{CLOCK_SLACK, Timestamp};
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::archives::download::until_stored;
use crate::mirror::counters::DamageFinding;
use crate::mirror::library::StoredArchive;
use crate::mirror::library::damage::{DELETED_UPSTREAM, SUPERSEDED, unless_damaged};
use crate::mirror::library::module_history::restore_first_seen;
use crate::mirror::{AlarmKind, Archive, ArchiveRef, Archives, Library, Operations, RequestContext};
use crate::store::{Blob, Key};
use crate::upstream::outbound::Connectivity;

/// The pieces read and hashed in one blocking call: 1 MiB in all.
const PIECES_AT_ONCE: usize = 4;

/// A limit on the rate of reads, and the time at which it allows the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRate {
    bytes_per_second: u64,
    /// `None` before the first read.
    next_read: Option<Instant>,
}

impl ReadRate {
    pub const fn of(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, next_read: None }
    }

    /// Returns the time of the next read, after `bytes` were read from `began` on. Pauses are not made up for.
    fn next(&mut self, began: Instant, bytes: u64) -> Instant {
        let duration = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second.max(1) as f64);
        let next_read = self.next_read.map_or(began, |allowed| allowed.max(began)) + duration;
        self.next_read = Some(next_read);
        next_read
    }
}

/// An archive that does not match its digest, or is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DamagedArchive {
    /// The expected digest.
    pub digest: Digest,
    /// The packages that listed it.
    pub of: Vec<String>,
    /// The kind of damage.
    pub found: DamageFinding,
    /// The outcome of the repair.
    #[serde(flatten)]
    pub healed: RepairOutcome,
}

/// The damage and the repair, in one sentence.
impl fmt::Display for DamagedArchive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { digest, of: packages, found, healed } = self;
        let packages = if packages.is_empty() { "no package".to_owned() } else { packages.join(", ") };
        write!(f, "{found}: the archive of {packages} (SHA-256 {digest}); {healed}")
    }
}

/// The outcome of repairing an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Display)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "healed", rename_all = "snake_case")]
pub enum RepairOutcome {
    /// It was fetched again and verified.
    #[display("fetched again")]
    FetchedAgain,
    /// No name lists it, so it is not needed.
    #[display("no package needs this archive")]
    NobodyNeedsIt,
    /// Larder is offline. The archive is listed as missing.
    #[display("not fetched again, because larder is offline; `larder missing` lists the package")]
    Offline,
    /// It could not be fetched now. The next client request tries again.
    #[display("not fetched again yet: {error}")]
    NotNow {
        /// The cause.
        error: String,
    },
    /// A policy does not allow it, so it is not fetched.
    #[display("not fetched again: {error}")]
    Refused {
        /// The rule.
        error: String,
    },
    /// Upstream has it no more. It is taken off its names.
    #[display("lost, because upstream has it no more: {error}")]
    Lost {
        /// The answer of upstream.
        error: String,
    },
}

impl Operations {
    /// Re-hashes an archive at a limited rate, and repairs it if it is wrong. `None` if it matches its digest, or was
    /// removed meanwhile.
    pub async fn rehash(
        self: &Arc<Self>,
        digest: Digest,
        rate: &mut ReadRate,
        call: &RequestContext,
    ) -> Result<Option<DamagedArchive>, Error> {
        let opened = self.library.on_disk(move |library| library.open_file(&digest)).await?;
        if let Some(blob) = &opened
            && self.is_right(blob, digest, rate).await?
        {
            let now = call.present();
            let record = move |library: &Library| {
                library.file_checked(&digest, now);
                Ok(())
            };
            self.library.on_disk(record).await?;
            self.runtime.counters.rehashed.inc();
            return Ok(None);
        }
        let found = if opened.is_some() { DamageFinding::Damaged } else { DamageFinding::Missing };
        let give_up = move |library: &Library| library.packages_without_file(digest, opened.as_ref());
        let Some(names) = self.library.on_complete_index(give_up).await? else { return Ok(None) };
        self.runtime.counters.rehashed.inc();
        self.runtime.counters.damaged(found);
        let packages = names.iter().map(|(packages, _)| packages.to_string()).collect();
        // Use the present configuration: a reload may have replaced the one at the start of a long verification.
        let healed = self.fetch_again(names, &self.runtime.job_context(call.present())).await;
        let damaged = DamagedArchive { digest, of: packages, found, healed };
        tracing::error!("{damaged}");
        Ok(Some(damaged))
    }

    async fn is_right(self: &Arc<Self>, blob: &Blob, digest: Digest, rate: &mut ReadRate) -> Result<bool, Error> {
        let mut reading = blob.read_again();
        loop {
            let began = Instant::now();
            let read_some = move |_: &Library| {
                let mut read = 0;
                for _ in 0..PIECES_AT_ONCE {
                    match unless_damaged(reading.read_next())? {
                        None => return Ok(None),
                        Some(0) => break,
                        Some(piece) => read += piece,
                    }
                }
                Ok(Some((reading, read)))
            };
            let Some((returned, read)) = self.library.on_disk(read_some).await? else { return Ok(false) };
            if read == 0 {
                return Ok(returned.digest() == digest);
            }
            reading = returned;
            tokio::time::sleep_until(rate.next(began, read)).await;
        }
    }

    /// Fetches an archive again for every package that named it, as a job does.
    async fn fetch_again(&self, names: Vec<(Artifact, StoredArchive)>, call: &RequestContext) -> RepairOutcome {
        let mut healed = RepairOutcome::NobodyNeedsIt;
        for (artifact, archive) in names {
            let (call, owned_artifact) = (self.runtime.flight_context(call), artifact.clone());
            let fetched = match artifact {
                Artifact::Provider(package) => {
                    let wanted = ArchiveRef { package, digest: archive.digest.prefix(), filename: archive.filename };
                    self.archives.ensure_archive_stored(&wanted, &call).await
                }
                Artifact::Module(package) => self.modules.ensure_module_stored(&package, &call).await,
            };
            let outcome = self.outcome_of(fetched, &owned_artifact, archive.digest).await;
            let is_better = matches!(outcome, RepairOutcome::NobodyNeedsIt | RepairOutcome::FetchedAgain);
            if !is_better || matches!(healed, RepairOutcome::NobodyNeedsIt) {
                healed = outcome;
            }
        }
        healed
    }

    /// The outcome of fetching an archive again. One that nobody can get, or needs, any more is taken off its name.
    async fn outcome_of(&self, fetched: Result<(), Error>, artifact: &Artifact, digest: Digest) -> RepairOutcome {
        let owned_artifact = artifact.clone();
        let looking = self.library.on_disk(move |library| {
            Ok((library.is_at_hand(&digest)?, library.is_superseded(&owned_artifact, &digest)?))
        });
        match (looking.await, fetched) {
            (Ok((true, _)), Ok(())) => RepairOutcome::FetchedAgain,
            (Ok((false, true)), Ok(()) | Err(Error::NotFound(_) | Error::Offline(_))) => {
                self.library.drop_lost(artifact.clone(), digest, SUPERSEDED).await;
                RepairOutcome::NobodyNeedsIt
            }
            (Ok((false, false)), Err(error @ Error::NotFound(_)))
                if self.runtime.connectivity() == Connectivity::Online =>
            {
                self.library.drop_lost(artifact.clone(), digest, DELETED_UPSTREAM).await;
                RepairOutcome::Lost { error: error.to_string() }
            }
            (_, Err(error @ Error::Refused { .. })) => RepairOutcome::Refused { error: error.to_string() },
            (_, Err(_)) if self.runtime.connectivity() == Connectivity::Offline => RepairOutcome::Offline,
            (Err(error), Ok(())) | (_, Err(error)) => RepairOutcome::NotNow { error: error.to_string() },
            (Ok((false, _)), Ok(())) => {
                RepairOutcome::NotNow { error: "another archive of the package was fetched".to_owned() }
            }
        }
    }
}

impl Archives {
    /// Ensures that an archive is stored.
    ///
    /// # Errors
    /// The fetch failed, or the disk could not store it.
    pub async fn ensure_archive_stored(
        self: &Arc<Self>,
        wanted: &ArchiveRef,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let subject = format!("the archive of {}", wanted.package);
        // The context of a flight: an archive that cannot be stored is not passed through for it.
        if let Archive::Arriving { progress, .. } =
            self.archive(wanted, &self.runtime.flight_context(call)).await?.value
        {
            until_stored(progress, &subject, |_, _| {}).await?;
        }
        match self.library.stored_archive_of_url(wanted).await? {
            Some(archive) if self.library.file_is_at_hand(archive.digest).await? => Ok(()),
            Some(_) | None => Err(Error::Interrupted(subject)),
        }
    }
}

/// The read rate of `verify`: it leaves disk bandwidth for serving.
const VERIFY_READ_RATE: ReadRate = ReadRate::of(64 << 20);
/// The read rate of the scrub, which has weeks.
const SCRUB_READ_RATE: ReadRate = ReadRate::of(16 << 20);
/// Events buffered for a slow receiver.
const EVENT_BUFFER: usize = 16;

/// A progress event of `verify`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum VerifyEvent {
    /// The verification begins, with these totals.
    Begun {
        /// The number of names, documents and other records.
        records: u64,
        /// The number of archives.
        archives: u64,
        /// The bytes of the archives.
        bytes: u64,
    },
    /// A record does not match its checksum. It was quarantined, or is about to be replaced.
    WrongRecord {
        /// The record.
        record: String,
    },
    /// An archive does not match its digest.
    WrongArchive(DamagedArchive),
    /// Something could not be read, quarantined or rewritten. The disk may be failing.
    Unreadable {
        /// The object.
        what: String,
        /// The cause.
        error: String,
    },
    /// Archives that were imported without signatures. They can only be verified to be as they were imported.
    Imported {
        /// The number of archives.
        archives: u64,
    },
    /// Progress so far.
    Checked {
        /// Archives so far.
        archives: u64,
        /// The bytes of these archives.
        bytes: u64,
    },
    /// The verification is complete.
    Done {
        /// The number of records read.
        records: u64,
        /// The number of archives read.
        archives: u64,
        /// The bytes of these archives.
        bytes: u64,
        /// The number of objects that were wrong or could not be read.
        wrong: u64,
    },
    /// The verification ended early.
    Stopped {
        /// The cause.
        error: String,
    },
}

/// One run of `verify`.
struct VerifyRun {
    operations: Arc<Operations>,
    call: RequestContext,
    events: mpsc::Sender<VerifyEvent>,
    wrong: u64,
}

impl Operations {
    /// Re-hashes everything that is stored and reports each step. Ends when the receiver is dropped.
    ///
    /// # Errors
    /// [`Error::Busy`] while another verification is in progress.
    pub fn verify(self: &Arc<Self>, call: &RequestContext) -> Result<mpsc::Receiver<VerifyEvent>, Error> {
        let lock = Arc::clone(&self.verify_lock).try_lock_owned();
        let busy = |_| Error::Busy {
            subject: "the check".to_owned(),
            reason: "everything stored is being verified already".to_owned(),
        };
        let lock = lock.map_err(busy)?;
        let (sender, receiver) = mpsc::channel(EVENT_BUFFER);
        let run = VerifyRun {
            operations: Arc::clone(self),
            call: self.runtime.flight_context(call),
            events: sender.clone(),
            wrong: 0,
        };
        self.runtime.tasks.spawn(async move {
            let ended = tokio::select! {
                ended = run.run() => ended,
                () = sender.closed() => return,
            };
            let last = ended.unwrap_or_else(|error| VerifyEvent::Stopped { error: error.to_string() });
            // Release the lock before the last event: a script that reads it may start the next run at once.
            drop(lock);
            // The receiver may be gone.
            let _ = sender.send(last).await;
        });
        Ok(receiver)
    }

    /// Re-hashes every archive whose last check is at least `every` ago, and returns the time when the next is due.
    /// Runs offline too, so that damage is found while a repair is still easy.
    ///
    /// # Errors
    /// The last error. An archive that cannot be read does not stop the others from being checked.
    pub async fn scrub(self: &Arc<Self>, every: Duration, call: &RequestContext) -> Result<Timestamp, Error> {
        let archives = self.library.on_disk(Library::files_by_check).await?;
        let mut rate = SCRUB_READ_RATE;
        let mut failed = None;
        let mut next = None;
        for archive in archives {
            let (now, due) = (call.present(), archive.last_verified.after(every));
            // A check in the future was recorded by a wrong clock, so it does not count.
            let from_the_future = archive.last_verified > now.after(CLOCK_SLACK);
            if now < due && !from_the_future {
                next = Some(next.map_or(due, |next: Timestamp| next.min(due)));
                continue;
            }
            if let Err(error) = self.rehash(archive.digest, &mut rate, &self.runtime.flight_context(call)).await {
                tracing::error!(digest = %archive.digest, %error, "a stored archive could not be read again");
                failed = Some(error);
            }
        }
        match failed {
            Some(error) => Err(error),
            // Archives stored from now on are due later than this.
            None => Ok(next.unwrap_or_else(|| call.present().after(every))),
        }
    }
}

impl VerifyRun {
    /// Runs to the end and returns the last event.
    async fn run(mut self) -> Result<VerifyEvent, Error> {
        let library = Arc::clone(&self.operations.library);
        let list = |library: &Library| Ok((library.all_records()?, library.files()?));
        let (keys, files) = library.on_disk(list).await?;
        let mut archives: BTreeMap<Digest, u64> = files.into_iter().collect();
        let bytes = archives.values().sum();
        let records = keys.len() as u64;
        self.report(VerifyEvent::Begun { records, archives: archives.len() as u64, bytes }).await;
        self.records(keys).await;
        // Only after damaged names are quarantined is every archive that a name lists either stored or missing.
        let named = library.on_complete_index(|library| library.names(|_, name| Some(name.archives)));
        for named_archive in named.await?.iter().flatten() {
            archives.entry(named_archive.digest).or_default();
        }
        let (archives, bytes) = self.archives(archives).await;
        let imported = library.on_disk(|library| Ok(library.catalog.imported().len() as u64)).await?;
        if imported > 0 {
            self.report(VerifyEvent::Imported { archives: imported }).await;
        }
        Ok(VerifyEvent::Done { records, archives, bytes, wrong: self.wrong })
    }

    async fn records(&mut self, keys: Vec<Key>) {
        for key in keys {
            let owned_key = key.clone();
            let is_damaged = move |library: &Library| library.is_record_damaged(&owned_key);
            match self.operations.library.on_disk(is_damaged).await {
                Ok(false) => {}
                Ok(true) => {
                    self.report_damage(VerifyEvent::WrongRecord { record: key.to_string() }).await;
                    match key {
                        Key::Name(Artifact::Provider(package)) => self.rebuild_name(package).await,
                        Key::FirstSeenV0(ref provider)
                        | Key::FirstSeen(ref provider, _)
                        | Key::SigningKeyLog(ref provider) => {
                            self.rebuild_first_seen(key.clone(), provider).await;
                        }
                        // The next version list rewrites it, and an alarm is raised again by its cause.
                        Key::FirstListed(_) | Key::Alarms(_) => {}
                        // None of its approvals counts; a person approves again what is needed.
                        Key::Approvals(_) => {}
                        Key::ModuleFirstSeen(package) => self.rebuild_module_first_seen(package).await,
                        // The next request repacks it.
                        Key::Name(Artifact::Module(_)) => {}
                        // A running job rewrites its record. An ended job needs none: its archives are stored.
                        Key::Job(_) | Key::RecurringJobs => {}
                        // The archive is fetched again.
                        Key::Owed(_) => {}
                        // Only a chart has a gap.
                        Key::Traffic(_) => {}
                        // A service may have had the store.
                        // The next list writes it again.
                        Key::LatestTime => {}
                        Key::Usage => {
                            let recording = |library: &Library| library.record_service(Timestamp(0));
                            let _ = self.operations.library.on_disk(recording).await;
                        }
                        // The requests since the start of larder are in memory and are written again.
                        Key::Missing => self.operations.library.mark_missing_unsaved(),
                        Key::Document(_) | Key::ProofSet(_) => {}
                    }
                }
                Err(error) => self.report_unreadable(key.to_string(), error.to_string()).await,
            }
        }
    }

    /// Rebuilds a first-seen record from the stored proof sets, before any of them is evicted.
    async fn rebuild_first_seen(&mut self, key: Key, provider: &ProviderAddress) {
        let (record, now) = (key.to_string(), self.call.present());
        let restored = self.operations.library.on_disk(move |library| {
            let is_there = library.histories.restore(&key)?;
            if let (Key::FirstSeen(provider, version), false) = (&key, is_there) {
                let detail = "its first-seen record is damaged, and no stored proof set can rebuild it";
                library.raise_alarm(provider, AlarmKind::DamagedRecord.of(version), detail, now);
            }
            Ok(is_there)
        });
        let lost = format!(
            "no stored proof set can rebuild it, so upstream's version is refused until `larder accept {provider}` takes it"
        );
        let restored = restored.await;
        self.report_unless_restored(record, restored, lost).await;
    }

    /// Rebuilds the first-seen record of a module version from its name, before that is evicted.
    async fn rebuild_module_first_seen(&mut self, package: ModulePackage) {
        let record = format!("the first-seen record of {package}");
        let lost =
            format!("no stored archive can rebuild it, so none is served until `larder accept {package}` takes it");
        let now = self.call.present();
        let restored = self.operations.library.on_disk(move |library| restore_first_seen(library, &package, now)).await;
        self.report_unless_restored(record, restored, lost).await;
    }

    /// Reports a record that could not be rebuilt; `lost` explains that nothing is left to rebuild it from.
    async fn report_unless_restored(&mut self, record: String, restored: Result<bool, Error>, lost: String) {
        match restored {
            Ok(true) => {}
            Ok(false) => self.report_unreadable(record, lost).await,
            Err(error) => self.report_unreadable(record, error.to_string()).await,
        }
    }

    /// Rebuilds a damaged name if its proof set and its archive are still stored.
    async fn rebuild_name(&self, package: Package) {
        let call = self.operations.runtime.job_context(self.call.present());
        let Ok(Some(stored)) = self.operations.proof_sets.usable_set(&package, &call).await else { return };
        let set = &stored.stored_set.current;
        if !matches!(self.operations.library.file_is_at_hand(set.document.shasum).await, Ok(true)) {
            return;
        }
        let filename = set.document.filename.clone();
        let wanted = ArchiveRef { package, digest: set.document.shasum.prefix(), filename };
        if let Err(error) = self.operations.archives.ensure_archive_stored(&wanted, &call).await {
            tracing::warn!(package = %wanted.package, %error, "a damaged name was not written again; the next request does it");
        }
    }

    async fn archives(&mut self, archives: BTreeMap<Digest, u64>) -> (u64, u64) {
        let mut rate = VERIFY_READ_RATE;
        let (mut number, mut bytes) = (0, 0);
        for (digest, size_bytes) in archives {
            match self.operations.rehash(digest, &mut rate, &self.operations.runtime.flight_context(&self.call)).await {
                Ok(None) => {}
                Ok(Some(damaged)) => self.report_damage(VerifyEvent::WrongArchive(damaged)).await,
                Err(error) => self.report_unreadable(format!("the archive {digest}"), error.to_string()).await,
            }
            number += 1;
            bytes += size_bytes;
            self.report(VerifyEvent::Checked { archives: number, bytes }).await;
        }
        (number, bytes)
    }

    async fn report_unreadable(&mut self, object: String, error: String) {
        self.report_damage(VerifyEvent::Unreadable { what: object, error }).await;
    }

    async fn report_damage(&mut self, step: VerifyEvent) {
        self.wrong += 1;
        self.report(step).await;
    }

    async fn report(&self, step: VerifyEvent) {
        // Without a receiver, the run is dropped.
        let _ = self.events.send(step).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise 11: re-hashing everything leaves disk bandwidth to others.
    #[test]
    fn the_read_rate_is_limited_and_pauses_are_not_made_up_for() {
        let mut rate = ReadRate::of(1000);
        let began = Instant::now();
        let after = |milliseconds| began + Duration::from_millis(milliseconds);
        assert_eq!(rate.next(began, 500), after(500));
        assert_eq!(rate.next(after(100), 500), after(1000));
        assert_eq!(rate.next(after(9000), 250), after(9250));
        assert_eq!(rate.next(after(9250), 1000), after(10_250));
    }
}
