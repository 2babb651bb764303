//! Imports a bundle. It is refused as a whole before anything changes, or applied entry by entry, each verified first
//! and then reported. Memory use is limited to the manifest and the small files of one entry.

use crate::mirror::{Library, Transfers};
use std::collections::HashSet;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::address::PackageSelector;
use crate::bundle::{
    ApplyEvent, ApplyOutcome, BadBundle, BundleEntry, BundleReader, BundleTrust, DigestCheck, EntryFile, EntryOutcome,
    FileRole, Manifest, Receipt,
};
use crate::clock::{Clock, Timestamp};
use crate::error::Error;
use crate::mirror::transfer::bundle::archives::IncomingArchive;
use crate::mirror::transfer::bundle::entry::{EntryCriteria, EntryVerdict, SmallFiles};
use crate::mirror::transfer::bundle::spool::SharedFiles;
use crate::store::StoreError;

/// Number of bytes between two progress reports.
const PROGRESS_BYTES: u64 = 8 << 20;
/// Maximum number of steps queued for the reader.
const APPLY_STEP_QUEUE: usize = 16;
/// Maximum length of a reported refusal, in characters.
const MAX_REFUSAL_CHARS: usize = 600;

/// Reasons that a bundle was refused as a whole.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Another bundle is being applied.
    #[error("another bundle is being applied; wait for its end")]
    Busy,
    /// It cannot be read, or no trusted key signed it.
    #[error(transparent)]
    Bundle(#[from] BadBundle),
    /// It contains registries that are no upstreams of this mirror.
    #[error(
        "the bundle is of {0}, which is not an upstream here; add it as an [[upstream]], and apply the bundle again"
    )]
    UnknownHosts(String),
    /// It does not fit.
    #[error("the bundle needs {needed} more bytes, but only {available} are available: {reason}")]
    NoRoom {
        /// Bytes that it needs.
        needed: u64,
        /// Bytes available.
        available: u64,
        /// The limit that is exceeded.
        reason: &'static str,
    },
    /// It is too old. An attacker may replay a bundle from before its packages were withdrawn.
    #[error(
        "the bundle was made {}, longer ago than [bundle] max_age ({}); make a new one, or raise max_age",
        .created.date_time(),
        humantime::format_duration(*.max_age)
    )]
    TooOld {
        /// The creation time in its manifest.
        created: Timestamp,
        /// The maximum age.
        max_age: Duration,
    },
    /// The disk failed.
    #[error("the store failed: {0}")]
    Store(#[from] StoreError),
    /// Another error of the mirror.
    #[error(transparent)]
    Mirror(#[from] Error),
}

/// Options for applying a bundle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApplyOptions {
    /// The keys whose bundles are accepted.
    pub trust: BundleTrust,
    /// Packages that the operator accepts although they were republished.
    pub accept: Vec<PackageSelector>,
    /// Maximum age by the manifest; none for no limit.
    pub max_age: Option<Duration>,
}

impl Transfers {
    /// Applies a bundle on a blocking thread and reports each step. The returned handle yields the result, even if the
    /// receiver is dropped. Closing the mirror waits for it.
    pub fn spawn_apply(
        self: &Arc<Self>,
        bundle: impl Read + Send + 'static,
        how: ApplyOptions,
        clock: Clock,
    ) -> (mpsc::Receiver<ApplyEvent>, JoinHandle<Result<Receipt, ApplyError>>) {
        let (sender, receiver) = mpsc::channel(APPLY_STEP_QUEUE);
        let transfers = Arc::clone(self);
        let applying = self.runtime.tasks.spawn_blocking(move || {
            transfers.apply(bundle, &how, &clock, &mut |step| {
                // The bundle is applied even if the receiver is gone.
                let _ = sender.blocking_send(step);
            })
        });
        (receiver, applying)
    }

    /// Applies a bundle while reading it. Blocks. Everything applied is synced before the receipt is reported. To
    /// continue an interrupted bundle, apply it again: stored entries are skipped.
    ///
    /// # Errors
    /// [`ApplyError`]: nothing was changed. Later refusals are in the receipt.
    pub fn apply(
        self: &Arc<Self>,
        bundle: impl Read,
        how: &ApplyOptions,
        clock: &Clock,
        report: &mut dyn FnMut(ApplyEvent),
    ) -> Result<Receipt, ApplyError> {
        let _alone = self.bundle_import_lock.try_lock().map_err(|_| ApplyError::Busy)?;
        self.library.store.check()?;
        let opened = BundleReader::open(bundle, &how.trust)?;
        let manifest = Arc::clone(&opened.manifest);
        if let Some(max_age) = how.max_age.filter(|max_age| clock.now().since(manifest.created) > *max_age) {
            return Err(ApplyError::TooOld { created: manifest.created, max_age });
        }
        // Blocking is fine here: this is the reader's thread, and only one bundle is applied at a time.
        Handle::current().block_on(self.library.store.index.until_complete())?;
        let _stays = self.library.hold_entries(&manifest);
        self.library.check_capacity(&manifest)?;
        let bytes = manifest.files().fold(0, |sum, (_, file)| file.file.bytes.saturating_add(sum));
        report(ApplyEvent::Begun { entries: manifest.entries.len() as u64, bytes });
        let (digest, signature_status) = (opened.digest, opened.signature_status.clone());
        tracing::info!(manifest = %digest, entries = manifest.entries.len(), bytes, ?signature_status, "a bundle is applied");
        let mut taking = BundleApplication {
            library: &self.library,
            options: how,
            clock,
            shared: SharedFiles::of(&self.library, &manifest)?,
            opened,
            read: ReadProgress::default(),
        };
        let (entries, mut ended) = taking.apply_entries(&manifest, report);
        if let Err(error) = self.library.list_imported_entries(&manifest) {
            let reason = || format!("not all imported entries could be listed: {error}; {}", error.remedy());
            ended.get_or_insert_with(reason);
        }
        let is_well = |entry: &EntryOutcome| matches!(entry.outcome, ApplyOutcome::Applied { .. } | ApplyOutcome::Held);
        let (signed_by, trusted) = Receipt::signer(&signature_status);
        let mut receipt = Receipt {
            manifest: digest,
            larder: manifest.larder.clone(),
            created: manifest.created,
            signed_by,
            trusted,
            applied: clock.now(),
            ok: ended.is_none() && entries.iter().all(is_well),
            ended,
            entries,
            kept: None,
        };
        let [applied, already, refused, not_reached] = receipt.counts();
        tracing::info!(manifest = %digest, applied, already, refused, not_reached, ok = receipt.ok, "a bundle was applied");
        let written = serde_json::to_vec(&receipt).map_err(|e| StoreError::Index(e.to_string()));
        match written.and_then(|written| self.library.store.write_receipt(receipt.applied, &digest, &written)) {
            Ok(path) => receipt.kept = Some(path.display().to_string()),
            Err(error) => {
                tracing::error!(%error, to_do = error.remedy(), "the receipt of a bundle could not be written");
                receipt.ok = false;
                receipt.ended.get_or_insert_with(|| format!("the receipt could not be written: {error}"));
            }
        }
        let transfers = Arc::clone(self);
        self.runtime.tasks.spawn(async move {
            if let Err(error) = transfers.library.complete_hashes().await {
                tracing::error!(%error, "the h1 hashes of a bundle's archives could not be computed");
            }
        });
        report(ApplyEvent::Done { receipt: receipt.clone() });
        Ok(receipt)
    }
}

/// Bytes read so far, and bytes reported so far.
#[derive(Debug, Default)]
struct ReadProgress {
    bytes: u64,
    reported: u64,
}

struct BundleApplication<'a, R> {
    library: &'a Arc<Library>,
    options: &'a ApplyOptions,
    clock: &'a Clock,
    shared: SharedFiles,
    opened: BundleReader<R>,
    read: ReadProgress,
}

impl<R: Read> BundleApplication<'_, R> {
    /// Applies the entries in order. Returns their outcomes, and the reason if it stopped early.
    fn apply_entries(
        &mut self,
        manifest: &Manifest,
        report: &mut dyn FnMut(ApplyEvent),
    ) -> (Vec<EntryOutcome>, Option<String>) {
        let mut carried = manifest.files().peekable();
        let (mut all, mut ended) = (Vec::new(), None);
        for (number, entry) in manifest.entries.iter().enumerate() {
            let package = entry.package_ref();
            if ended.is_some() {
                all.push(EntryOutcome { package, outcome: ApplyOutcome::NotReached });
                continue;
            }
            let mut files = HashSet::new();
            while let Some((_, file)) = carried.next_if(|(index, _)| *index == number) {
                files.insert(file.role);
            }
            let outcome = match self.apply_entry(entry, &files, report) {
                Ok(outcome) => outcome,
                Err(UnreadableRest(reason)) => {
                    ended = Some(format!("{package}: {reason}"));
                    ApplyOutcome::Refused { why: reason }
                }
            };
            if let ApplyOutcome::Refused { why: reason } = &outcome {
                tracing::error!(what = %package, reason, "an entry of a bundle was refused");
            }
            let entry_outcome = EntryOutcome { package, outcome };
            report(ApplyEvent::Entry(entry_outcome.clone()));
            all.push(entry_outcome);
        }
        if ended.is_none() {
            ended = self.finish();
        }
        (all, ended)
    }

    fn finish(&mut self) -> Option<String> {
        self.opened.end().err().map(|bad| bad.to_string())
    }

    /// Applies one entry. `carried` are the roles of its files in the bundle, which follow next and are always read to
    /// their end.
    ///
    /// # Errors
    /// Nothing after this entry can be read.
    fn apply_entry(
        &mut self,
        entry: &BundleEntry,
        carried: &HashSet<FileRole>,
        report: &mut dyn FnMut(ApplyEvent),
    ) -> Result<ApplyOutcome, UnreadableRest> {
        let mut small = SmallFiles::default();
        let mut flaw: Option<String> = None;
        let mut archive = None;
        for file in entry.files() {
            match file.role {
                FileRole::Archive => archive = Some(file),
                _ if carried.contains(&file.role) => {
                    let mut bytes = Vec::new();
                    let content = self.read(&file, report, |piece| bytes.extend_from_slice(piece));
                    let content = content.map_err(|broke| broke.after(flaw.as_ref()))?;
                    flaw = flaw.or_else(|| digest_mismatch(&file, content));
                    if content == DigestCheck::Matches {
                        flaw = flaw.or_else(|| self.shared.store_if_shared(&file, &bytes).err());
                        small.0.insert(file.role, bytes.into());
                    }
                }
                _ => match self.shared.get(&file) {
                    Ok(bytes) => drop(small.0.insert(file.role, bytes.into())),
                    Err(reason) => flaw = flaw.or(Some(reason)),
                },
            }
        }
        let now = self.clock.now();
        let update = match flaw {
            Some(reason) => Err(reason),
            None => {
                let judging = EntryCriteria {
                    accept: &self.options.accept,
                    signature_status: &self.opened.signature_status,
                    now,
                };
                EntryVerdict::check_entry(self.library, entry, &small, &judging)
            }
        };
        let Some(archive) = archive else {
            return Ok(outcome(update.and_then(|update| update.commit_without_archive(self.library, now))));
        };
        if !carried.contains(&FileRole::Archive) {
            let missing = || match archive.left_out {
                true => format!(
                    "its {} ({}) is not stored, and was left out: the bundle is a delta for an inventory of another store",
                    archive.role,
                    archive.name()
                ),
                false => self.shared.refusal(&archive),
            };
            let taken = update.and_then(|update| update.commit_with_stored_archive(self.library, missing, now));
            return Ok(outcome(taken));
        }
        let mut incoming = update.and_then(|update| update.into_incoming(self.library, &archive.file));
        let content = self.read(&archive, report, |piece| {
            // The bytes of a refused or stored archive are read and discarded.
            let Ok(IncomingArchive::Staged(staged)) = &mut incoming else { return };
            if let Err(reason) = staged.append(piece)
                && let Ok(IncomingArchive::Staged(staged)) = std::mem::replace(&mut incoming, Err(reason))
            {
                staged.discard();
            }
        });
        let content = content.map_err(|broke| broke.after(incoming.as_ref().err()));
        let is_right = content.as_ref().is_ok_and(|content| *content == DigestCheck::Matches);
        if !is_right
            && let Ok(IncomingArchive::Staged(staged)) =
                std::mem::replace(&mut incoming, Ok(IncomingArchive::AlreadyStored))
        {
            staged.discard();
        }
        if let Some(reason) = digest_mismatch(&archive, content?) {
            return Ok(outcome(Err(reason)));
        }
        Ok(outcome(incoming.and_then(|incoming| incoming.commit(self.library, now))))
    }

    fn read(
        &mut self,
        file: &EntryFile,
        report: &mut dyn FnMut(ApplyEvent),
        mut take: impl FnMut(&[u8]),
    ) -> Result<DigestCheck, UnreadableRest> {
        let read = &mut self.read;
        let content = self.opened.file(file, |piece| {
            take(piece);
            read.bytes = read.bytes.saturating_add(piece.len() as u64);
            if read.bytes - read.reported >= PROGRESS_BYTES {
                read.reported = read.bytes;
                report(ApplyEvent::Read { bytes: read.bytes });
            }
            Ok::<_, BadBundle>(())
        });
        content.map_err(|bad| UnreadableRest(format!("its {} ({}) could not be read: {bad}", file.role, file.name())))
    }
}

/// The reason that the rest of the bundle cannot be read, with the file it broke at.
struct UnreadableRest(String);

impl UnreadableRest {
    /// Prepends a flaw that was found earlier in the entry.
    fn after(self, flaw: Option<&String>) -> Self {
        match flaw {
            Some(flaw) => Self(format!("{flaw}; {}", self.0)),
            None => self,
        }
    }
}

/// The file's name is its digest, so a mismatch always means altered bytes.
fn digest_mismatch(file: &EntryFile, content: DigestCheck) -> Option<String> {
    match content {
        DigestCheck::Matches => None,
        DigestCheck::Differs { actual: now } => {
            Some(format!("its {} was altered: its SHA-256 is {now}, and should be {}", file.role, file.file.sha256))
        }
    }
}

fn outcome(taken: Result<ApplyOutcome, String>) -> ApplyOutcome {
    taken.unwrap_or_else(|reason| ApplyOutcome::Refused { why: reason.chars().take(MAX_REFUSAL_CHARS).collect() })
}
