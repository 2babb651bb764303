//! Last use, sizes, and names by digest: eviction's fast lookups. Rebuilt from the files whenever it may be wrong.

mod backend;
mod copies;
mod entries;

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use self::backend::{IndexBackend, quarantine_index, refuse_if_locked};
pub use self::copies::{CopiedRecord, Moment, SeenLife};
use self::entries::{
    ARCHIVE, DOCUMENT, EvictableEntry, IMPORTED_NAME, PAGE, PINNED_NAME, SEEN, archive_key, artifact, counted_bytes,
    document_key, key_below_names, key_of_name, listed_key, listed_prefix, name_key, names_prefix, pages_prefix,
};
pub use self::entries::{IndexedArchive, IndexedName, ListedArchive, SizeLimit, Totals};
use super::key::NAMES;
use super::{Change, IndexEntry, Key, RecordAction, StoreError};
use crate::address::{Artifact, Hostname};
use crate::clock::Timestamp;
use crate::digest::Digest;

/// Marks an index that was closed cleanly.
const CLEAN: &[u8] = b"!clean";

/// A key and its new value; `None` removes it.
type EntryChange = (Vec<u8>, Option<Vec<u8>>);

/// State of the index relative to the files.
#[derive(Debug, Clone)]
enum IndexState {
    /// The index contains everything in the files.
    Complete,
    /// The index is being completed: it lacks some files, and lists some that were removed.
    Incomplete,
    /// The index could not be completed, for this reason.
    Failed(StoreError),
}

/// Entries that are counted at a time, so that no writer waits longer.
const ENTRIES_OF_A_STEP: usize = 1000;

/// The totals of all entries, and those of the entries that a count has passed so far.
#[derive(Debug, Default)]
struct Tally {
    totals: Totals,
    count: Option<Count>,
}

/// A count of all entries, in the order of their keys. A change behind it is added at once; it sees all others.
#[derive(Debug, Default)]
struct Count {
    last_key: Vec<u8>,
    totals: Totals,
}

impl Tally {
    /// Replaces an entry in the totals.
    fn replace(&mut self, key: &[u8], previous: Option<&EvictableEntry>, updated: Option<&EvictableEntry>) {
        let kind = key.first().copied().unwrap_or(DOCUMENT);
        let passed = self.count.as_mut().filter(|count| *key <= *count.last_key);
        for totals in [&mut self.totals].into_iter().chain(passed.map(|count| &mut count.totals)) {
            if let Some(previous) = previous {
                totals.subtract(kind, previous.size_bytes);
            }
            if let Some(updated) = updated {
                totals.add(kind, updated.size_bytes);
            }
        }
    }
}

/// The index over a store's files. Updates are best effort: a failed update costs no request, and the index is
/// completed at the next start.
#[derive(Debug)]
pub struct Index {
    folder: PathBuf,
    entries: RwLock<IndexBackend>,
    tally: Mutex<Tally>,
    /// Some change was not recorded: the next start rebuilds the index.
    broken: AtomicBool,
    /// True while there is an on-disk index that this in-memory one replaces; it is quarantined at the first change.
    is_on_disk_too: Mutex<bool>,
    state: watch::Sender<IndexState>,
    /// The names that could not be read, with the reason.
    unreadable: Mutex<BTreeMap<Artifact, StoreError>>,
}

impl Index {
    /// Opens the index; quarantines one that does not open. An index that was not closed cleanly is
    /// [behind](Self::is_complete) the files, and serves until it is complete.
    pub(super) fn open(folder: &Path, now: Timestamp) -> Result<Self, StoreError> {
        refuse_if_locked(folder)?;
        let open = || {
            let opened = guarded(|| Ok(Self::with_entries(folder, IndexBackend::on_disk(folder)?)))?;
            // A damaged index is not closed: closing may wait forever for a dead thread.
            let index = ManuallyDrop::new(opened);
            guarded(|| index.trust_clean_close())?;
            Ok(ManuallyDrop::into_inner(index))
        };
        let usable = match open() {
            Err(StoreError::Index(reason)) => quarantine_index(folder, now).and_then(|aside| {
                tracing::error!(%reason, aside = %aside.display(), "the index is damaged; it was quarantined and is rebuilt");
                open()
            }),
            usable => usable,
        };
        match usable {
            // A disk that cannot be written does not make stored archives unreadable.
            Err(error @ StoreError::Io { .. }) => {
                tracing::error!(%error, to_do = error.remedy(), "the index cannot be written; it is made in memory");
                let index = Self::with_entries(folder, IndexBackend::in_memory());
                index.replace_on_disk();
                Ok(index)
            }
            usable => usable,
        }
    }

    /// Quarantines the on-disk index that this one replaces: the next start must not trust it.
    fn quarantine_on_disk(&self) {
        let mut is_on_disk_too = self.is_on_disk_too.lock();
        // If it cannot be moved, nothing else can be changed either; the next change tries again.
        *is_on_disk_too = *is_on_disk_too && quarantine_index(&self.folder, Timestamp(0)).is_err();
    }

    /// Replaces the on-disk index by this one, which is in memory.
    fn replace_on_disk(&self) {
        *self.is_on_disk_too.lock() = true;
        self.quarantine_on_disk();
    }

    fn with_entries(folder: &Path, entries: IndexBackend) -> Self {
        Self {
            folder: folder.to_owned(),
            entries: RwLock::new(entries),
            tally: Mutex::default(),
            broken: AtomicBool::new(false),
            is_on_disk_too: Mutex::default(),
            state: watch::Sender::new(IndexState::Incomplete),
            unreadable: Mutex::default(),
        }
    }

    /// Trusts an index that was closed cleanly; any other is incomplete.
    fn trust_clean_close(&self) -> Result<(), StoreError> {
        let mark = self.entries.read().remove(CLEAN)?;
        // Those of any other are counted when it is completed.
        if let Some(totals) = mark.as_deref().and_then(Totals::in_mark) {
            self.tally.lock().totals = totals;
            self.state.send_replace(IndexState::Complete);
        }
        self.entries.read().flush()
    }

    /// Reads every entry, and counts the totals, unless larder stops first. An index that was not closed cleanly has none
    /// before.
    ///
    /// # Errors
    /// An entry cannot be read, or the totals were others.
    fn count(&self, is_stopping: &dyn Fn() -> bool) -> Result<(), StoreError> {
        self.tally.lock().count = Some(Count::default());
        loop {
            if is_stopping() {
                return Ok(());
            }
            let mut tally = self.tally.lock();
            let count = tally.count.get_or_insert_default();
            let (after, mut read, mut is_readable) = (std::mem::take(&mut count.last_key), 0, true);
            self.entries.read().each_after(&[], &after, |key, value| {
                if let [kind @ (ARCHIVE | DOCUMENT | PAGE | SEEN), ..] = key {
                    match EvictableEntry::decode(value) {
                        Some(entry) => count.totals.add(*kind, entry.size_bytes),
                        None => is_readable = false,
                    }
                }
                read += 1;
                if read < ENTRIES_OF_A_STEP {
                    return ControlFlow::Continue(());
                }
                count.last_key = key.to_vec();
                ControlFlow::Break(())
            })?;
            if !is_readable {
                return Err(StoreError::Index("an entry is unreadable".into()));
            }
            if read < ENTRIES_OF_A_STEP {
                let (counted, stored) = (count.totals, tally.totals);
                if self.is_complete() && stored != counted {
                    let reason = format!("the stored totals {stored:?} differ from the counted ones {counted:?}");
                    return Err(StoreError::Index(reason));
                }
                *tally = Tally { totals: counted, count: None };
                return Ok(());
            }
        }
    }

    /// Records that a name could not be read, unless it is indexed: it may list any archive. The next start reads it again.
    fn name_is_unreadable(&self, artifact: &Artifact, reason: &StoreError) {
        if !matches!(self.name(artifact), Ok(Some(_))) {
            self.broken.store(true, Ordering::Relaxed);
            self.unreadable.lock().insert(artifact.clone(), reason.clone());
        }
    }

    /// The error for incomplete names of an archive, while a name is unreadable.
    pub(super) fn unreadable_name(&self) -> Option<StoreError> {
        self.unreadable.lock().values().next().cloned()
    }

    /// Totals of the store.
    pub fn totals(&self) -> Totals {
        self.tally.lock().totals
    }

    /// Size on disk, in bytes.
    pub fn disk_bytes(&self) -> u64 {
        self.entries.read().disk_bytes()
    }

    /// Records an archive file that was found, by its metadata. The known last use and check are kept.
    pub fn archive_found(&self, digest: &Digest, size_bytes: u64, written: Timestamp) {
        // The file was hashed when it was written.
        self.update_entry(&archive_key(digest), |previous| {
            Some(EvictableEntry::found(previous, size_bytes, written, written))
        });
    }

    /// Records a change to a record; the caller holds the lock of its group.
    pub(super) fn record_changed(&self, change: &Change, size_bytes: u64) {
        let (key, document) = (&change.key, document_key(&change.key));
        let count_as = |last_use, size_bytes| {
            let entry = EvictableEntry { last_use, size_bytes, last_verified: Timestamp(0) };
            self.update_entry(&document, |_| Some(entry));
        };
        match (&change.entry, &change.action, key) {
            // The index counts them by itself, whatever writes them.
            (IndexEntry::Unindexed, RecordAction::Put(..), key) if key.is_first_seen() => {
                count_as(Timestamp(0), size_bytes);
            }
            (IndexEntry::Unindexed, RecordAction::Remove(_) | RecordAction::Quarantine, key) if key.is_first_seen() => {
                self.update_entry(&document, |_| None);
            }
            (IndexEntry::Name(name), _, Key::Name(artifact)) => self.name_changed(artifact, name),
            (IndexEntry::Unreadable(reason), _, Key::Name(artifact)) => self.name_is_unreadable(artifact, reason),
            (IndexEntry::Unindexed | IndexEntry::Name(_) | IndexEntry::Unreadable(_), ..) => {}
            (IndexEntry::Document(last_use), ..) => count_as(*last_use, counted_bytes(key, size_bytes)),
            (IndexEntry::Found(size_bytes, written), ..) => self.update_entry(&document, |previous| {
                Some(EvictableEntry::found(previous, counted_bytes(key, *size_bytes), *written, Timestamp(0)))
            }),
            (IndexEntry::Gone, ..) => self.update_entry(&document, |_| None),
        }
    }

    /// Records an archive that was stored and verified.
    pub fn archive_stored(&self, digest: &Digest, size_bytes: u64, now: Timestamp) {
        self.update_entry(&archive_key(digest), |_| {
            Some(EvictableEntry { last_use: now, size_bytes, last_verified: now })
        });
    }

    /// Records that a whole archive was compared with its digest, if it is still stored.
    pub fn archive_verified(&self, digest: &Digest, now: Timestamp) {
        self.update_existing(&archive_key(digest), |entry| entry.last_verified = now);
    }

    /// Records the use of a stored archive.
    pub fn archive_used(&self, digest: &Digest, now: Timestamp) {
        self.update_existing(&archive_key(digest), |entry| entry.last_use = now);
    }

    /// Removes an archive's entry.
    pub fn archive_gone(&self, digest: &Digest) {
        self.update_entry(&archive_key(digest), |_| None);
    }

    /// Records the use of a stored document.
    pub fn document_used(&self, key: &Key, now: Timestamp) {
        self.update_existing(&document_key(key), |entry| entry.last_use = now);
    }

    fn update_existing(&self, key: &[u8], change: impl FnOnce(&mut EvictableEntry)) {
        self.update_entry(key, |mut entry| {
            if let Some(entry) = &mut entry {
                change(entry);
            }
            entry
        });
    }

    /// Changes one entry and the totals together.
    fn update_entry(&self, key: &[u8], change: impl FnOnce(Option<EvictableEntry>) -> Option<EvictableEntry>) {
        self.quarantine_on_disk();
        let mut tally = self.tally.lock();
        let previous = match self.entry(key) {
            Ok(previous) => previous,
            Err(error) => return self.mark_broken(&error),
        };
        let updated = change(previous.clone());
        if updated == previous {
            return;
        }
        if self.write_or_continue(&[(key.to_vec(), updated.as_ref().map(|entry| entry.encode_entry()))]) {
            tally.replace(key, previous.as_ref(), updated.as_ref());
        }
    }

    /// Writes entries that are not part of the totals.
    fn put(&self, changes: &[EntryChange]) {
        self.quarantine_on_disk();
        // The lock blocks other writers while an index that continues in memory is copied.
        let _exclusive = self.tally.lock();
        self.write_or_continue(changes);
    }

    /// Returns true if the changes were written, to disk or to memory.
    fn write_or_continue(&self, changes: &[EntryChange]) -> bool {
        let written =
            self.write(changes).or_else(|error| self.continue_in_memory(&error).and_then(|()| self.write(changes)));
        written.inspect_err(|error| self.mark_broken(error)).is_ok()
    }

    fn write(&self, changes: &[EntryChange]) -> Result<(), StoreError> {
        let entries = self.entries.read();
        changes.iter().try_for_each(|(key, value)| match value {
            Some(value) => entries.insert(key, value),
            None => entries.remove(key).map(drop),
        })
    }

    /// Copies everything into an in-memory index: after one failed write, sled writes nothing until the next start, and
    /// eviction would use old data.
    fn continue_in_memory(&self, reason: &StoreError) -> Result<(), StoreError> {
        tracing::error!(error = %reason, to_do = reason.remedy(), "the index cannot be written; it continues in memory, and is rebuilt at the next start");
        let in_memory = IndexBackend::in_memory();
        let mut copied = Ok(());
        self.entries.read().each_with_prefix(&[], |key, value| {
            if copied.is_ok() {
                copied = in_memory.insert(key, value);
            }
        })?;
        copied?;
        *self.entries.write() = in_memory;
        self.replace_on_disk();
        Ok(())
    }

    /// Marks the index as incomplete after a file could not be checked; the next start checks again.
    pub fn is_incomplete(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    fn mark_broken(&self, error: &StoreError) {
        tracing::error!(%error, "the index could not be written; it is rebuilt at the next start");
        self.broken.store(true, Ordering::Relaxed);
    }

    /// Every archive, least recently used first.
    pub fn archives_by_age(&self) -> Result<Vec<IndexedArchive>, StoreError> {
        self.archives_by(|archive| archive.last_use)
    }

    /// Every archive, the one with the oldest check first.
    pub fn archives_by_verification(&self) -> Result<Vec<IndexedArchive>, StoreError> {
        self.archives_by(|archive| archive.last_verified)
    }

    fn archives_by(&self, time: impl Fn(&IndexedArchive) -> Timestamp) -> Result<Vec<IndexedArchive>, StoreError> {
        let mut archives = Vec::new();
        self.each_archive(|archive| archives.push(archive))?;
        archives.sort_by_key(time);
        Ok(archives)
    }

    /// Visits every archive, in no particular order.
    pub fn each_archive(&self, mut visit: impl FnMut(IndexedArchive)) -> Result<(), StoreError> {
        self.each_entry(ARCHIVE, |hex, entry| {
            if let Ok(digest) = Digest::parse(hex) {
                visit(IndexedArchive::new(digest, &entry));
            }
        })
    }

    /// The entry of one archive.
    pub fn archive(&self, digest: &Digest) -> Result<Option<IndexedArchive>, StoreError> {
        Ok(self.entry(&archive_key(digest))?.map(|entry| IndexedArchive::new(*digest, &entry)))
    }

    /// Size of a document in bytes; zero if there is none.
    pub fn document_bytes(&self, key: &Key) -> Result<u64, StoreError> {
        Ok(self.entry(&document_key(key))?.map_or(0, |entry| entry.size_bytes))
    }

    /// Every document except pages, least recently used first, with its size.
    pub fn documents_by_age(&self) -> Result<Vec<(Key, u64)>, StoreError> {
        self.documents_of(DOCUMENT)
    }

    /// Every page of the registry HTTP API, least recently used first, with its size.
    pub fn pages_by_age(&self) -> Result<Vec<(Key, u64)>, StoreError> {
        self.documents_of(PAGE)
    }

    /// The documents, pages and first-seen records with an entry: at most `limit`, after the key `after`, in an order of
    /// their own.
    pub fn counted_records(&self, after: Option<&Key>, limit: usize) -> Result<Vec<Key>, StoreError> {
        let (mut keys, after) = (Vec::new(), after.map(document_key).unwrap_or_default());
        for kind in [DOCUMENT, PAGE, SEEN] {
            self.entries.read().each_after(&[kind], &after, |key, _| {
                if keys.len() == limit {
                    return ControlFlow::Break(());
                }
                keys.extend(std::str::from_utf8(&key[1..]).ok().and_then(|path| Key::from_path(Path::new(path))));
                ControlFlow::Continue(())
            })?;
        }
        Ok(keys)
    }

    /// The number of pages of one registry.
    pub fn page_count(&self, host: &Hostname) -> Result<usize, StoreError> {
        let mut count = 0;
        self.entries.read().each_with_prefix(&pages_prefix(host), |_, _| count += 1)?;
        Ok(count)
    }

    fn documents_of(&self, kind: u8) -> Result<Vec<(Key, u64)>, StoreError> {
        let mut documents = Vec::new();
        self.each_entry(kind, |path, entry| {
            documents.extend(Key::from_path(Path::new(path)).map(|key| (entry.last_use, (key, entry.size_bytes))));
        })?;
        documents.sort_by_key(|(last_use, _)| *last_use);
        Ok(documents.into_iter().map(|(_, document)| document).collect())
    }

    fn each_entry(&self, kind: u8, mut visit: impl FnMut(&str, EvictableEntry)) -> Result<(), StoreError> {
        self.entries.read().each_with_prefix(&[kind], |key, value| {
            if let (Ok(key), Some(entry)) = (std::str::from_utf8(&key[1..]), EvictableEntry::decode(value)) {
                visit(key, entry);
            }
        })
    }

    fn entry(&self, key: &[u8]) -> Result<Option<EvictableEntry>, StoreError> {
        Ok(self.entries.read().get(key)?.as_deref().and_then(EvictableEntry::decode))
    }

    /// Marks a clean close, unless something was missed.
    pub(super) fn close(&self) -> Result<(), StoreError> {
        if self.broken.load(Ordering::Relaxed) || !self.is_complete() {
            return Ok(());
        }
        let mark = self.totals().mark();
        self.entries.read().insert(CLEAN, &mark)?;
        self.entries.read().flush()
    }

    /// Returns true if the index contains everything in the files.
    pub fn is_complete(&self) -> bool {
        self.require_complete().is_ok()
    }

    /// Checks that the index is complete, before any lock of the store is taken.
    ///
    /// # Errors
    /// The index is being completed, or cannot be.
    pub fn require_complete(&self) -> Result<(), StoreError> {
        match &*self.state.borrow() {
            IndexState::Complete => Ok(()),
            IndexState::Incomplete => {
                Err(StoreError::Index("the index is still being completed from the files".to_owned()))
            }
            IndexState::Failed(reason) => Err(reason.clone()),
        }
    }

    /// Waits until the index is complete: as long as it takes to read all names.
    ///
    /// # Errors
    /// The reason why it cannot be completed.
    pub async fn until_complete(&self) -> Result<(), StoreError> {
        let mut state = self.state.subscribe();
        // An error means that the sender was dropped; the index owns it.
        let _ = state.wait_for(|state| !matches!(state, IndexState::Incomplete)).await;
        self.require_complete()
    }

    /// Reports the end of the completion to all waiting tasks.
    pub fn completed(&self, result: Result<(), StoreError>) {
        self.state.send_replace(match result {
            Ok(()) => IndexState::Complete,
            Err(reason) => IndexState::Failed(reason),
        });
    }

    /// Starts to complete the index. The existing entries stay, unless one cannot be read: a damaged index may have lost
    /// any entry, so a new index starts in memory. Returns true if the caller must record every file. Ends early once
    /// `is_stopping`.
    pub fn begin_completion(&self, is_stopping: &dyn Fn() -> bool) -> bool {
        if let Err(reason) = guarded(|| self.count(is_stopping)) {
            self.start_over(&reason);
        }
        let was_complete = self.is_complete();
        if !was_complete {
            self.state.send_replace(IndexState::Incomplete);
        }
        !was_complete
    }

    /// Quarantines a damaged index, and continues with an empty one in memory.
    fn start_over(&self, reason: &StoreError) {
        tracing::error!(%reason, "the index is damaged; it is quarantined, and rebuilt from the files");
        // The state changes first: operations that need all names must not act on missing entries.
        self.state.send_replace(IndexState::Incomplete);
        let mut tally = self.tally.lock();
        let damaged = std::mem::replace(&mut *self.entries.write(), IndexBackend::in_memory());
        // The damaged index is not closed: closing may wait forever for a dead thread.
        std::mem::forget(damaged);
        *tally = Tally::default();
        self.replace_on_disk();
    }

    /// Records the archives that a name lists; the caller holds the lock of the name's record. An empty `name` removes the
    /// entry.
    fn name_changed(&self, artifact: &Artifact, name: &IndexedName) {
        self.unreadable.lock().remove(artifact);
        let previous = match self.name(artifact) {
            Ok(previous) => previous.unwrap_or_default(),
            Err(error) => return self.mark_broken(&error),
        };
        // The lists of an older index lack them.
        if previous == *name && !name.pinned && !name.imported {
            return;
        }
        let mut changes = Vec::new();
        for removed in previous.archives.iter().filter(|listed| !name.lists(&listed.digest)) {
            changes.push((listed_key(&removed.digest, artifact), None));
        }
        for added in name.archives.iter().filter(|listed| !previous.lists(&listed.digest)) {
            changes.push((listed_key(&added.digest, artifact), Some(Vec::new())));
        }
        changes.push((name_key(artifact), (!name.is_empty()).then(|| name.encode())));
        let lists = [(PINNED_NAME, previous.pinned, name.pinned), (IMPORTED_NAME, previous.imported, name.imported)];
        for (list, _, is_listed) in lists.into_iter().filter(|(_, was_listed, is_listed)| *was_listed || *is_listed) {
            changes.push((key_of_name(list, artifact), is_listed.then(Vec::new)));
        }
        self.put(&changes);
    }

    /// The pinned names. A fill at the size limit calls it.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(super) fn pinned_names(&self) -> Result<Vec<Artifact>, StoreError> {
        self.names_in_list(PINNED_NAME, usize::MAX)
    }

    /// The first of the names with an archive that was imported without signatures.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(super) fn imported_names(&self, limit: usize) -> Result<Vec<Artifact>, StoreError> {
        self.names_in_list(IMPORTED_NAME, limit)
    }

    fn names_in_list(&self, list: u8, limit: usize) -> Result<Vec<Artifact>, StoreError> {
        let mut names = Vec::new();
        self.entries.read().each_after(&[list], &[], |key, _| {
            names.extend(artifact(&key[1..]));
            if names.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(names)
    }

    /// The archives that a name lists; `None` if the index has no entry.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(super) fn name(&self, artifact: &Artifact) -> Result<Option<IndexedName>, StoreError> {
        let value = self.entries.read().get(&name_key(artifact))?;
        Ok(value.as_deref().and_then(IndexedName::decode))
    }

    /// The names that list an archive.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(super) fn names_of(&self, digest: &Digest) -> Result<Vec<Artifact>, StoreError> {
        let prefix = listed_prefix(digest);
        let mut found = Vec::new();
        self.entries.read().each_with_prefix(&prefix, |key, _| found.extend(artifact(&key[prefix.len()..])))?;
        Ok(found)
    }
}

/// A place in the order of all names: that of one name. A page of names begins after it. The order is that of their
/// paths, so all names of one registry, of one address and of one version are neighbours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameCursor(String);

impl NameCursor {
    /// The most bytes of a cursor: the path of the longest name has fewer.
    const MAX_BYTES: usize = 1024;

    /// The place of this name.
    pub fn of(artifact: &Artifact) -> Self {
        let path = Key::Name(artifact.clone()).path();
        let below_names = path.strip_prefix(NAMES).unwrap_or(&path);
        Self(below_names.to_string_lossy().into_owned())
    }

    /// Parses a cursor that an earlier page ended with. The name may have been removed since: the next one follows.
    /// `None` if the text is too long.
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() <= Self::MAX_BYTES).then(|| Self(text.to_owned()))
    }

    /// The path of a record at this place, as text.
    pub fn path(&self) -> String {
        format!("{NAMES}/{}", self.0)
    }

    /// The text that [`NameCursor::parse`] reads.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Index {
    /// Visits the names whose path begins with the components of `folder`, in the order of their cursors: those after
    /// `after`, until `visit` breaks.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(super) fn names_below(
        &self,
        folder: &Path,
        after: Option<&NameCursor>,
        visit: &mut dyn FnMut(Artifact, IndexedName) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let prefix = names_prefix(folder);
        let after = after.map_or_else(Vec::new, |after| key_below_names(&after.0));
        self.entries.read().each_after(&prefix, &after, |key, value| {
            match artifact(&key[1..]).zip(IndexedName::decode(value)) {
                Some((artifact, name)) => visit(artifact, name),
                None => ControlFlow::Continue(()),
            }
        })
    }
}

/// Runs work of sled, which may panic on damage instead of returning an error.
fn guarded<T>(work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let panicked = |_| Err(StoreError::Index("its library panicked".to_owned()));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
}
