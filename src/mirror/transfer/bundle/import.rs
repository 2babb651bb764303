//! Imports a bundle. It is refused as a whole before anything changes, or applied entry by entry, each verified first
//! and then reported. Memory use is limited to the manifest and the small files of one entry.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::address::{Artifact, Hostname, PackageSelector, WaitingVersion};
use crate::bundle::{
    AddressNotes, ApplyEvent, ApplyOutcome, BadBundle, BundleEntry, BundleReader, BundleTrust, EntryFile, EntryOutcome,
    FileRole, Manifest, NotesPolicy, Receipt, SignatureStatus,
};
use crate::clock::{Clock, Timestamp};
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::transfer::bundle::archives::ArrivedArchive;
use crate::mirror::transfer::bundle::entry::{AcceptedEntry, EntryCriteria, EntryRefusal, SmallFiles, store_failed};
use crate::mirror::transfer::{EVENT_QUEUE, Spool, TransferStage};
use crate::mirror::{Connectivity, Library, Transfers};
use crate::policy::{Approval, ApprovalEntry};
use crate::store::StoreError;
use crate::wording::plural;

/// Number of bytes between two progress reports.
const PROGRESS_BYTES: u64 = 8 << 20;
/// Maximum length of a reported refusal, in characters.
const MAX_REFUSAL_CHARS: usize = 600;
/// Maximum disk overhead per file: the rest of its last block, its name and its record.
const FILE_OVERHEAD_BYTES: u64 = 8 << 10;

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
    /// The treatment of the sender's notes.
    pub notes: NotesPolicy,
}

impl Transfers {
    /// Applies a bundle while reading it, and reports each step. The returned handle yields the result, even if the receiver
    /// is dropped. A shutdown waits for it. Everything applied is synced before the receipt is reported. To continue an
    /// interrupted bundle, apply it again: stored entries are skipped.
    ///
    /// # Errors
    /// [`ApplyError`]: nothing was changed. Later refusals are in the receipt.
    pub fn spawn_apply(
        self: &Arc<Self>,
        bundle: impl Read + Send + 'static,
        options: ApplyOptions,
        clock: Clock,
    ) -> (mpsc::Receiver<ApplyEvent>, JoinHandle<Result<Receipt, ApplyError>>) {
        let (events, receiver) = mpsc::channel(EVENT_QUEUE);
        (receiver, self.runtime.tasks.spawn_to_end(Arc::clone(self).apply(bundle, options, clock, events)))
    }

    async fn apply(
        self: Arc<Self>,
        bundle: impl Read + Send + 'static,
        options: ApplyOptions,
        clock: Clock,
        events: mpsc::Sender<ApplyEvent>,
    ) -> Result<Receipt, ApplyError> {
        let import_lock = Arc::clone(&self.bundle_import_lock).try_lock_owned().map_err(|_| ApplyError::Busy)?;
        let interrupted = |_| Error::Interrupted("applying the bundle".to_owned());
        let library = Arc::clone(&self.library);
        let opening = self.runtime.tasks.spawn_blocking(move || {
            library.require_store()?;
            let opened = BundleReader::open(bundle, &options.trust)?;
            let created = opened.manifest.created;
            match options.max_age.filter(|max_age| clock.now().since(created) > *max_age) {
                Some(max_age) => Err(ApplyError::TooOld { created, max_age }),
                None => Ok((opened, options, clock)),
            }
        });
        let (opened, options, clock) = opening.await.map_err(interrupted)??;
        self.library.until_index_is_complete().await?;
        let (library, reporter) = (Arc::clone(&self.library), events.clone());
        let applying = self.runtime.tasks.spawn_blocking(move || {
            let eviction_hold = library.hold_entries(&opened.manifest);
            let receipt = library.apply_bundle(opened, &options, &clock, &reporter)?;
            Ok::<_, ApplyError>((receipt, eviction_hold))
        });
        let (receipt, eviction_hold) = applying.await.map_err(interrupted)??;
        // A pass that was requested during the import would otherwise evict its least recently used archives.
        self.library.wait_for_eviction().await;
        drop(eviction_hold);
        // Released before the end is reported: a script that reads it may apply its next bundle at once.
        drop(import_lock);
        // The receiver may be gone.
        let _ = events.send(ApplyEvent::Done { receipt: receipt.clone() }).await;
        let library = Arc::clone(&self.library);
        self.runtime.tasks.spawn(async move {
            if let Err(error) = library.complete_hashes().await {
                tracing::error!(%error, "the h1 hashes of a bundle's archives could not be computed");
            }
        });
        Ok(receipt)
    }
}

impl Library {
    fn apply_bundle<R: Read>(
        &self,
        opened: BundleReader<R>,
        options: &ApplyOptions,
        clock: &Clock,
        events: &mpsc::Sender<ApplyEvent>,
    ) -> Result<Receipt, ApplyError> {
        let manifest = Arc::clone(&opened.manifest);
        self.check_capacity(&manifest)?;
        let bytes = manifest.files().fold(0, |sum, (_, file)| file.file.bytes.saturating_add(sum));
        report(events, ApplyEvent::Begun { entries: manifest.entries.len() as u64, bytes });
        let (digest, signature_status) = (opened.digest, opened.signature_status.clone());
        tracing::info!(manifest = %digest, entries = manifest.entries.len(), bytes, ?signature_status, "a bundle is applied");
        let shared = SharedFiles::new(self, &manifest)?;
        let mut application =
            BundleApplication { library: self, options, clock, shared, opened, events, read_bytes: 0 };
        let (entries, mut ended) = application.apply_entries(&manifest);
        // The cached list may be newer than the bundle, and may not name what the bundle brought.
        let addresses = self.addresses_of_packages(&manifest);
        let listed = addresses.iter().try_for_each(|address| self.list_stored_versions(address, None, clock.now()));
        if let Err(error) = listed {
            let reason = || format!("not all imported entries could be listed: {error}; {}", error.remedy());
            ended.get_or_insert_with(reason);
        }
        let notes = match (&signature_status, options.notes) {
            (SignatureStatus::SignedBy(_), NotesPolicy::Take) => self.take_notes(&manifest, clock.now()),
            _ => Ok(TakenNotes::default()),
        };
        let TakenNotes { approvals, problem } = notes.unwrap_or_else(|error| {
            let problem = format!("not all notes of the sender could be stored: {error}; {}", error.remedy());
            TakenNotes { approvals: Vec::new(), problem: Some(problem) }
        });
        if let Some(problem) = problem {
            ended.get_or_insert(problem);
        }
        let config = self.runtime.config();
        let waiting: Result<Vec<_>, _> =
            addresses.iter().map(|address| self.read_waiting_versions(address, &config)).collect();
        let waiting = waiting.unwrap_or_else(|error| {
            let reason = || format!("the applied packages cannot be read back: {error}; {}", error.remedy());
            ended.get_or_insert_with(reason);
            Vec::new()
        });
        let versions = manifest.entries.iter().filter_map(|entry| match entry {
            BundleEntry::Provider(entry) => Some((&entry.provider, &entry.version)),
            _ => None,
        });
        let brought: BTreeSet<_> = versions.collect();
        let is_brought = |waiting: &WaitingVersion| brought.contains(&(&waiting.provider, &waiting.version));
        let (signed_by, trusted) = Receipt::signer(&signature_status);
        let mut receipt = Receipt {
            manifest: digest,
            larder: manifest.larder.clone(),
            created: manifest.created,
            signed_by,
            trusted,
            applied: clock.now(),
            ok: false,
            ended,
            entries,
            sealed_platforms: config.required_platforms.platforms().cloned().collect(),
            waiting: waiting.into_iter().flatten().filter(is_brought).collect(),
            approvals,
            kept: None,
        };
        let [applied, already, refused, not_reached] = receipt.counts();
        receipt.ok = receipt.ended.is_none() && refused + not_reached == 0;
        tracing::info!(manifest = %digest, applied, already, refused, not_reached, ok = receipt.ok, "a bundle was applied");
        let written = serde_json::to_vec(&receipt).map_err(|e| StoreError::Index(e.to_string()));
        match written.and_then(|written| self.write_receipt(receipt.applied, &digest, &written)) {
            Ok(path) => receipt.kept = Some(path.display().to_string()),
            Err(error) => {
                tracing::error!(%error, to_do = error.remedy(), "the receipt of a bundle could not be written");
                receipt.ok = false;
                receipt.ended.get_or_insert_with(|| format!("the receipt could not be written: {error}"));
            }
        }
        Ok(receipt)
    }
}

/// The notes of a sender that were taken.
#[derive(Debug, Default)]
struct TakenNotes {
    /// The approvals that count here since now.
    approvals: Vec<Approval>,
    /// Why some do not count.
    problem: Option<String>,
}

impl Library {
    /// Takes over the notes of a sender that is trusted: the moments from which ages count, and decisions about versions.
    fn take_notes(&self, manifest: &Manifest, now: Timestamp) -> Result<TakenNotes, StoreError> {
        let config = self.runtime.config();
        let mut notes = TakenNotes::default();
        for AddressNotes { address, since, approvals: decisions } in &manifest.notes {
            if config.upstreams.get(address.host()).is_none() {
                continue;
            }
            let address = config.canonical(address);
            if !since.is_empty() {
                self.record_told_times(&address, since, now)?;
            }
            if decisions.is_empty() {
                continue;
            }
            let received = |decision: &ApprovalEntry| ApprovalEntry { received: Some(now), ..decision.clone() };
            let added = self.add_approvals(&address, &decisions.iter().map(received).collect::<Vec<_>>())?;
            let is_new = |approval: &Approval| added.new.iter().any(|entry| entry.version == approval.version);
            notes.approvals.extend(self.approvals_of(&address, now)?.into_iter().filter(is_new));
            if added.left_out > 0 {
                notes.problem.get_or_insert(format!(
                    "{} about {address} do not count here: the record of its approvals is full or damaged",
                    plural(added.left_out as u64, "decision of the sender")
                ));
            }
        }
        Ok(notes)
    }
}

/// Reports a step. The bundle is applied even if the receiver is gone.
fn report(events: &mpsc::Sender<ApplyEvent>, event: ApplyEvent) {
    let _ = events.blocking_send(event);
}

struct BundleApplication<'a, R> {
    library: &'a Library,
    options: &'a ApplyOptions,
    clock: &'a Clock,
    shared: SharedFiles,
    opened: BundleReader<R>,
    events: &'a mpsc::Sender<ApplyEvent>,
    /// Bytes read so far.
    read_bytes: u64,
}

impl<R: Read> BundleApplication<'_, R> {
    /// Applies the entries in order. Returns their outcomes, and the reason if it stopped early.
    fn apply_entries(&mut self, manifest: &Manifest) -> (Vec<EntryOutcome>, Option<String>) {
        let mut included = manifest.files().peekable();
        let (mut all, mut ended) = (Vec::new(), None);
        for (number, entry) in manifest.entries.iter().enumerate() {
            let package = entry.package_ref();
            if ended.is_some() {
                all.push(EntryOutcome { package, outcome: ApplyOutcome::NotReached });
                continue;
            }
            let mut files = HashSet::new();
            while let Some((_, file)) = included.next_if(|(index, _)| *index == number) {
                files.insert(file.role);
            }
            let applied = self.apply_entry(entry, &files).unwrap_or_else(|UnreadableRest(reason)| {
                ended = Some(format!("{package}: {reason}"));
                Err(reason.into())
            });
            let outcome = applied.unwrap_or_else(|EntryRefusal { why, accept }| {
                let why: String = why.chars().take(MAX_REFUSAL_CHARS).collect();
                tracing::error!(%package, reason = why, "an entry of a bundle was refused");
                ApplyOutcome::Refused { why, accept }
            });
            let entry_outcome = EntryOutcome { package, outcome };
            report(self.events, ApplyEvent::Entry(entry_outcome.clone()));
            all.push(entry_outcome);
        }
        let ended = ended.or_else(|| self.opened.end().err().map(|bad| bad.to_string()));
        (all, ended)
    }

    /// Applies one entry. `included` are the roles of its files in the bundle, which follow next and are always read to
    /// their end. The inner error is the reason that the entry is refused.
    ///
    /// # Errors
    /// Nothing after this entry can be read.
    fn apply_entry(
        &mut self,
        entry: &BundleEntry,
        included: &HashSet<FileRole>,
    ) -> Result<Result<ApplyOutcome, EntryRefusal>, UnreadableRest> {
        let mut small_files = SmallFiles::default();
        let mut flaw: Option<String> = None;
        for file in entry.files().into_iter().filter(|file| file.role != FileRole::Archive) {
            let bytes = if included.contains(&file.role) {
                let mut bytes = Vec::new();
                let actual = self.read(&file, |chunk| bytes.extend_from_slice(chunk));
                let digest_check = file.check_digest(actual.map_err(|stop| stop.with_earlier_flaw(flaw.as_ref()))?);
                let is_sound = flaw.is_none();
                digest_check
                    .and_then(|()| if is_sound { self.shared.store_if_shared(&file, &bytes) } else { Ok(()) })
                    .map(|()| bytes)
            } else {
                self.shared.get(&file)
            };
            match bytes {
                Ok(bytes) => drop(small_files.0.insert(file.role, bytes.into())),
                Err(reason) => drop(flaw.get_or_insert(reason)),
            }
        }
        let now = self.clock.now();
        let signature_status = &self.opened.signature_status;
        let criteria = EntryCriteria { accept: &self.options.accept, signature_status, now };
        let accepted = match flaw {
            Some(reason) => Err(reason),
            None => AcceptedEntry::check(self.library, entry, &small_files, &criteria),
        };
        let archive = match entry.files().into_iter().find(|file| file.role == FileRole::Archive) {
            None => Ok(None),
            Some(archive) if included.contains(&FileRole::Archive) => self.read_archive(&archive, accepted.as_ref())?,
            Some(archive) if matches!(accepted, Ok(Some(_))) => self.stored_archive(&archive).map(Some),
            Some(_) => Ok(None),
        };
        Ok(match (accepted, archive) {
            (Err(reason), Ok(_)) | (_, Err(reason)) => Err(reason.into()),
            (Ok(None), Ok(_)) => Ok(ApplyOutcome::Held),
            (Ok(Some(entry)), Ok(archive)) => entry.commit(self.library, archive, now),
        })
    }

    /// Reads an archive. Stages it if its entry is accepted; otherwise its bytes are discarded.
    fn read_archive(
        &mut self,
        archive: &EntryFile,
        accepted: Result<&Option<AcceptedEntry>, &String>,
    ) -> Result<Result<Option<ArrivedArchive>, String>, UnreadableRest> {
        let EntryFile { file, .. } = archive;
        let mut stage = match accepted {
            Ok(Some(_)) => {
                let name = format!("carried~{}", file.sha256);
                let stage = TransferStage::create_stage(self.library, &name, file.bytes)
                    .or_else(|full| TransferStage::create_after(self.library, &name, file.bytes, full));
                stage.map(Some).map_err(store_failed)
            }
            Ok(None) | Err(_) => Ok(None),
        };
        let actual = self.read(archive, |chunk| {
            if let Ok(Some(staged)) = &mut stage
                && let Err(error) = staged.append(chunk)
            {
                stage = Err(store_failed(error));
            }
        });
        let actual = actual.map_err(|stop| stop.with_earlier_flaw(accepted.err().or(stage.as_ref().err())))?;
        let staged = archive.check_digest(actual).and(stage);
        Ok(staged.map(|stage| stage.map(|stage| ArrivedArchive::staged(stage, file.sha256))))
    }

    /// Opens the archive of an entry that is not in the bundle.
    fn stored_archive(&self, archive: &EntryFile) -> Result<ArrivedArchive, String> {
        ArrivedArchive::stored(self.library, archive.file.sha256, || match archive.left_out {
            true => format!(
                "its {} ({}) is not stored, and was left out: the bundle is a delta for an inventory of another store",
                archive.role,
                archive.name()
            ),
            false => self.shared.refusal(archive),
        })
    }

    /// Reads the next file of the bundle, and returns the digest of its bytes.
    fn read(&mut self, file: &EntryFile, mut on_chunk: impl FnMut(&[u8])) -> Result<Digest, UnreadableRest> {
        let Self { opened, events, read_bytes, .. } = self;
        let actual = opened.file(file, |chunk| {
            on_chunk(chunk);
            let before = *read_bytes;
            *read_bytes = read_bytes.saturating_add(chunk.len() as u64);
            if *read_bytes / PROGRESS_BYTES > before / PROGRESS_BYTES {
                report(events, ApplyEvent::Read { bytes: *read_bytes });
            }
        });
        actual.map_err(|bad| UnreadableRest(format!("its {} ({}) could not be read: {bad}", file.role, file.name())))
    }
}

/// The reason that the rest of the bundle cannot be read, with the file it broke at.
struct UnreadableRest(String);

impl UnreadableRest {
    /// Prepends a flaw that was found earlier in the entry.
    fn with_earlier_flaw(self, flaw: Option<&String>) -> Self {
        match flaw {
            Some(flaw) => Self(format!("{flaw}; {}", self.0)),
            None => self,
        }
    }
}

/// Small files that several entries of a bundle share, such as the SHA256SUMS of a version. The bundle contains them
/// once, with the first entry, so they are spooled for the others.
struct SharedFiles {
    /// The digests of shared files, each with the name of the first entry that has it.
    first_entries: HashMap<Digest, String>,
    spool: Spool,
}

impl SharedFiles {
    fn new(library: &Library, manifest: &Manifest) -> Result<Self, StoreError> {
        let mut first: HashMap<Digest, &BundleEntry> = HashMap::new();
        let mut first_entries = HashMap::new();
        for entry in &manifest.entries {
            for EntryFile { file, .. } in entry.files() {
                if let Some(first) = first.get(&file.sha256) {
                    first_entries.entry(file.sha256).or_insert_with(|| first.package_ref().to_string());
                } else {
                    first.insert(file.sha256, entry);
                }
            }
        }
        Ok(Self { first_entries, spool: Spool::new(library)? })
    }

    fn store_if_shared(&mut self, file: &EntryFile, bytes: &[u8]) -> Result<(), String> {
        if !self.first_entries.contains_key(&file.file.sha256) {
            return Ok(());
        }
        let stored = self.spool.put(file.file.sha256, bytes);
        stored.map_err(|e| format!("its {} could not be stored for later entries: {e}", file.role))
    }

    /// The refusal text for a file whose first entry was refused.
    fn refusal(&self, file: &EntryFile) -> String {
        let EntryFile { role, .. } = file;
        match self.first_entries.get(&file.file.sha256) {
            Some(first) => format!("its {role} ({}) came with {first}, and was refused there", file.name()),
            None => format!("its {role} ({}) is not in the bundle", file.name()),
        }
    }

    fn get(&self, file: &EntryFile) -> Result<Vec<u8>, String> {
        let read = self.spool.get(&file.file.sha256);
        read.map_err(|e| format!("its {} cannot be read again: {e}", file.role))?.ok_or_else(|| self.refusal(file))
    }
}

impl Library {
    /// Refuses a bundle that does not fit or contains unknown registries.
    ///
    /// # Errors
    /// [`ApplyError`]. Nothing was changed.
    fn check_capacity(&self, manifest: &Manifest) -> Result<(), ApplyError> {
        let config = self.runtime.config();
        let hosts: BTreeSet<&Hostname> = manifest.entries.iter().map(BundleEntry::host).collect();
        let foreign: Vec<&str> =
            hosts.into_iter().filter(|host| config.upstreams.get(host).is_none()).map(Hostname::as_str).collect();
        if !foreign.is_empty() {
            return Err(ApplyError::UnknownHosts(foreign.join(", ")));
        }
        let no_room = |needed, available, reason| Err(ApplyError::NoRoom { needed, available, reason });
        let (mut seen, mut needed, mut on_disk) = (HashSet::new(), 0u64, 0u64);
        for entry in &manifest.entries {
            let is_refused =
                |(artifact, _): (Artifact, _)| config.denies(&(&artifact).into(), Some(artifact.version()));
            if entry.package_archive().is_some_and(is_refused) || self.needs_no_space(entry)? {
                continue;
            }
            for EntryFile { role, file, left_out } in entry.files() {
                let largest = self.runtime.limits.archive_bytes;
                if role == FileRole::Archive && file.bytes > largest {
                    return no_room(file.bytes, largest, "an archive exceeds the size limit");
                }
                let is_stored = role == FileRole::Archive && self.is_at_hand(&file.sha256)?;
                if !left_out && !is_stored && seen.insert(file.sha256) {
                    needed = needed.saturating_add(file.bytes);
                    on_disk = on_disk.saturating_add(file.bytes).saturating_add(FILE_OVERHEAD_BYTES);
                }
            }
        }
        let (unevictable, evictable, reason) = match self.runtime.connectivity() {
            Connectivity::Offline => {
                (self.used_bytes(), 0, "[store] max_size is reached, and offline nothing is evicted")
            }
            Connectivity::Online => {
                let exempt = self.exempt_bytes()?;
                let reason = "pinned packages and stored ones of the bundle use up the rest of [store] max_size";
                (exempt, self.totals().archive_bytes.saturating_sub(exempt), reason)
            }
        };
        let space = self.disk_space()?.free_bytes.saturating_add(evictable);
        if on_disk > space {
            return no_room(on_disk, space, "the disk of the store is full");
        }
        // Checked after the disk: the limit may be a share of it, so freeing disk space can satisfy both.
        let space = self.refresh_size_limit().saturating_sub(unevictable);
        if needed > space { no_room(needed, space, reason) } else { Ok(()) }
    }

    /// True if an entry needs no space, because it is stored or replaces a stored document.
    fn needs_no_space(&self, entry: &BundleEntry) -> Result<bool, ApplyError> {
        match entry.package_archive() {
            Some((artifact, archive)) => Ok(self.is_stored_here(self.runtime.canonical(artifact), archive.sha256)?),
            None => Ok(self.has_record(&self.entry_key(entry))?),
        }
    }
}
