//! Last use and sizes: what eviction needs fast. Made again from the files whenever it lies.

mod entry;
mod folder;

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

pub use self::entry::IndexedArchive;
use self::entry::{ARCHIVE, DOCUMENT, Entry, PAGE, archive_key, counted, document_key};
use self::folder::{refuse_if_locked, set_aside};
use super::entries::Entries;
use super::{Blobs, FORMAT, Key, Records, StoreError};
use crate::clock::Timestamp;
use crate::digest::Digest;

const CLEAN: &[u8] = b"!clean";
/// What is stored, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// How many archives.
    pub archives: u64,
    /// Their bytes.
    pub archive_bytes: u64,
    /// How many documents and proof sets, pages too.
    pub documents: u64,
    /// Their bytes.
    pub document_bytes: u64,
    /// Of these, the bytes of pages of the registry HTTP API.
    pub page_bytes: u64,
}

impl Totals {
    /// All bytes that count against the size limit.
    pub fn bytes(&self) -> u64 {
        self.archive_bytes.saturating_add(self.document_bytes)
    }
}

/// The index over a store's files. What it is told it notes as well as it can: a note that fails costs no
/// request, and the index is made again at the next start.
#[derive(Debug)]
pub struct Index {
    folder: PathBuf,
    entries: RwLock<Entries>,
    totals: Mutex<Totals>,
    broken: AtomicBool,
    /// One on the disk that this one stands in for; it lies as soon as anything changes.
    left_behind: Mutex<Option<PathBuf>>,
}

impl Index {
    /// Opens the index; sets aside one that will not open, and rebuilds it from the files then, or
    /// when the last process did not close it.
    pub(super) fn open(folder: &Path, now: Timestamp, blobs: &Blobs, records: &Records) -> Result<Self, StoreError> {
        refuse_if_locked(folder)?;
        // sled may panic on damage instead of saying so.
        let panicked = |_| Err(StoreError::Index("it panicked".to_owned()));
        let guarded = || {
            let opened = catch_unwind(AssertUnwindSafe(|| Self::over(folder))).unwrap_or_else(panicked)?;
            // One that turns out to be damaged is not closed: that may wait for ever for a thread of its that died.
            let index = ManuallyDrop::new(opened);
            let usable = catch_unwind(AssertUnwindSafe(|| index.make_usable(blobs, records)));
            usable.unwrap_or_else(|_| Err(StoreError::Index("it panicked".to_owned())))?;
            Ok(ManuallyDrop::into_inner(index))
        };
        let usable = match guarded() {
            Err(StoreError::Index(why)) => set_aside(folder, now).and_then(|aside| {
                tracing::error!(%why, aside = %aside.display(), "the index is damaged; it was set aside and is rebuilt");
                guarded()
            }),
            usable => usable,
        };
        match usable {
            // That the disk cannot be written says nothing against what is held.
            Err(error @ StoreError::Io { .. }) => {
                tracing::error!(%error, to_do = error.to_do(), "the index cannot be written; it is made in memory");
                let index = Self::of(folder, Entries::in_memory());
                index.rebuild(blobs, records)?;
                *index.left_behind.lock() = Some(folder.to_owned());
                index.leave_behind();
                Ok(index)
            }
            usable => usable,
        }
    }

    /// Moves the one on the disk that this one stands in for out of the way: the next start must not trust it.
    fn leave_behind(&self) {
        let mut folder = self.left_behind.lock();
        // Where it cannot be moved nothing else can be changed either; so it is tried again with each change.
        if folder.as_ref().is_some_and(|folder| set_aside(folder, Timestamp(0)).is_ok()) {
            *folder = None;
        }
    }

    fn of(folder: &Path, entries: Entries) -> Self {
        Self {
            folder: folder.to_owned(),
            entries: RwLock::new(entries),
            totals: Mutex::default(),
            broken: AtomicBool::new(false),
            left_behind: Mutex::default(),
        }
    }

    /// Trusts what the last process closed in order, and makes anything else again.
    fn make_usable(&self, blobs: &Blobs, records: &Records) -> Result<(), StoreError> {
        let mark = self.entries.read().remove(CLEAN)?;
        let clean = mark.is_some_and(|format| format == FORMAT.to_be_bytes());
        if !clean || self.count().is_err() {
            self.rebuild(blobs, records)?;
        }
        self.entries.read().flush()
    }

    fn over(folder: &Path) -> Result<Self, StoreError> {
        Ok(Self::of(folder, Entries::on_disk(folder)?))
    }

    fn count(&self) -> Result<(), StoreError> {
        let mut totals = Totals::default();
        for (key, value) in self.entries.read().below(&[])? {
            let Some(entry) = Entry::decode(&value) else {
                return Err(StoreError::Index("an entry of it is no entry".into()));
            };
            match key.first() {
                Some(&ARCHIVE) => {
                    totals.archives += 1;
                    totals.archive_bytes = totals.archive_bytes.saturating_add(entry.size_bytes);
                }
                Some(kind @ (&DOCUMENT | &PAGE)) => {
                    totals.documents += 1;
                    totals.document_bytes = totals.document_bytes.saturating_add(entry.size_bytes);
                    if *kind == PAGE {
                        totals.page_bytes = totals.page_bytes.saturating_add(entry.size_bytes);
                    }
                }
                _ => return Err(StoreError::Index("a key of it is no key".into())),
            }
        }
        *self.totals.lock() = totals;
        Ok(())
    }

    /// Makes the index again from the files. Last uses and checks that it still knows are kept.
    fn rebuild(&self, blobs: &Blobs, records: &Records) -> Result<(), StoreError> {
        let mut found: Vec<(Vec<u8>, Entry)> = Vec::new();
        // What was written was hashed then.
        for (digest, size_bytes, written) in blobs.all()? {
            found.push((archive_key(&digest), Entry { last_use: written, size_bytes, last_check: written }));
        }
        for (key, size_bytes, written) in records.documents()? {
            let size_bytes = counted(&key, size_bytes);
            found.push((document_key(&key), Entry { last_use: written, size_bytes, last_check: Timestamp(0) }));
        }
        for (key, entry) in &mut found {
            if let Ok(Some(value)) = self.entries.read().get(key)
                && let Some(old) = Entry::decode(&value)
            {
                entry.last_use = old.last_use.max(entry.last_use);
                entry.last_check = old.last_check.max(entry.last_check);
            }
        }
        self.entries.read().clear()?;
        for (key, entry) in &found {
            self.entries.read().insert(key, &entry.encode())?;
        }
        if !found.is_empty() {
            tracing::info!(entries = found.len(), "the index was rebuilt from the files");
        }
        self.count()
    }

    /// What is stored, in numbers.
    pub fn totals(&self) -> Totals {
        *self.totals.lock()
    }

    /// What it takes up on the disk, in bytes.
    pub fn disk_bytes(&self) -> u64 {
        self.entries.read().disk_bytes()
    }

    /// Notes an archive that was kept, which was held against its digest for that.
    pub fn archive_kept(&self, digest: &Digest, size_bytes: u64, now: Timestamp) {
        self.note(&archive_key(digest), |_| Some(Entry { last_use: now, size_bytes, last_check: now }));
    }

    /// Notes that all of an archive was held against its digest, if it is still there.
    pub fn archive_checked(&self, digest: &Digest, now: Timestamp) {
        self.note(&archive_key(digest), |before| before.map(|before| Entry { last_check: now, ..before }));
    }

    /// Notes that an archive was used, if it is still there.
    pub fn archive_used(&self, digest: &Digest, now: Timestamp) {
        self.note(&archive_key(digest), |before| before.map(|before| Entry { last_use: now, ..before }));
    }

    /// Notes an archive that is gone.
    pub fn archive_gone(&self, digest: &Digest) {
        self.note(&archive_key(digest), |_| None);
    }

    /// Notes a document that was kept.
    pub fn document_kept(&self, key: &Key, size_bytes: u64, now: Timestamp) {
        let size_bytes = counted(key, size_bytes);
        self.note(&document_key(key), |_| Some(Entry { last_use: now, size_bytes, last_check: Timestamp(0) }));
    }

    /// Notes that a document was used, if it is still there.
    pub fn document_used(&self, key: &Key, now: Timestamp) {
        self.note(&document_key(key), |before| before.map(|before| Entry { last_use: now, ..before }));
    }

    /// Notes a document that is gone.
    pub fn document_gone(&self, key: &Key) {
        self.note(&document_key(key), |_| None);
    }

    /// Changes one entry and the totals together.
    fn note(&self, key: &[u8], change: impl FnOnce(Option<Entry>) -> Option<Entry>) {
        self.leave_behind();
        let mut totals = self.totals.lock();
        let before = match self.entries.read().get(key) {
            Ok(before) => before.as_deref().and_then(Entry::decode),
            Err(error) => return self.is_broken(&error),
        };
        let after = change(before.clone());
        if let Err(error) = self.write(key, after.as_ref())
            && let Err(error) = self.go_on_in_memory(&error).and_then(|()| self.write(key, after.as_ref()))
        {
            return self.is_broken(&error);
        }
        let totals = &mut *totals;
        if key.first() == Some(&PAGE) {
            let bytes = |entry: &Option<Entry>| entry.as_ref().map_or(0, |entry| entry.size_bytes);
            totals.page_bytes = totals.page_bytes.saturating_sub(bytes(&before)).saturating_add(bytes(&after));
        }
        let (number, bytes) = match key.first() {
            Some(&ARCHIVE) => (&mut totals.archives, &mut totals.archive_bytes),
            _ => (&mut totals.documents, &mut totals.document_bytes),
        };
        if let Some(before) = before {
            *number = number.saturating_sub(1);
            *bytes = bytes.saturating_sub(before.size_bytes);
        }
        if let Some(after) = after {
            *number += 1;
            *bytes = bytes.saturating_add(after.size_bytes);
        }
    }

    fn write(&self, key: &[u8], entry: Option<&Entry>) -> Result<(), StoreError> {
        let entries = self.entries.read();
        match entry {
            Some(entry) => entries.insert(key, &entry.encode()),
            None => entries.remove(key).map(drop),
        }
    }

    /// Once the disk has refused one write of it, sled writes nothing until the next start, and what eviction goes
    /// by would stand still: so all that it knows is taken over.
    fn go_on_in_memory(&self, why: &StoreError) -> Result<(), StoreError> {
        tracing::error!(error = %why, to_do = why.to_do(), "the index cannot be written any more; it goes on in memory, and is rebuilt at the next start");
        let in_memory = Entries::in_memory();
        for (key, value) in self.entries.read().below(&[])? {
            in_memory.insert(&key, &value)?;
        }
        *self.entries.write() = in_memory;
        *self.left_behind.lock() = Some(self.folder.clone());
        self.leave_behind();
        Ok(())
    }

    fn is_broken(&self, error: &StoreError) {
        tracing::error!(%error, "the index could not be written; it is rebuilt at the next start");
        self.broken.store(true, Ordering::Relaxed);
    }

    /// Every archive, least recently used first.
    pub fn archives_by_age(&self) -> Result<Vec<IndexedArchive>, StoreError> {
        self.archives_by(|entry| entry.last_use)
    }

    /// Every archive, the one first whose last check is longest ago.
    pub fn archives_by_check(&self) -> Result<Vec<IndexedArchive>, StoreError> {
        self.archives_by(|entry| entry.last_check)
    }

    fn archives_by(&self, time: impl Fn(&Entry) -> Timestamp) -> Result<Vec<IndexedArchive>, StoreError> {
        let mut found = self.by_age(ARCHIVE)?;
        found.sort_by_key(|(_, entry)| time(entry));
        let digest = |key: &[u8]| std::str::from_utf8(key).ok().and_then(|hex| Digest::parse(hex).ok());
        Ok(found.iter().filter_map(|(key, entry)| Some(IndexedArchive::new(digest(key)?, entry))).collect())
    }

    /// What is noted of one archive.
    pub fn archive(&self, digest: &Digest) -> Result<Option<IndexedArchive>, StoreError> {
        let value = self.entries.read().get(&archive_key(digest))?;
        Ok(value.as_deref().and_then(Entry::decode).map(|entry| IndexedArchive::new(*digest, &entry)))
    }

    /// How many bytes a document has; nothing where there is none.
    pub fn document_bytes(&self, key: &Key) -> Result<u64, StoreError> {
        let value = self.entries.read().get(&document_key(key))?;
        Ok(value.as_deref().and_then(Entry::decode).map_or(0, |entry| entry.size_bytes))
    }

    /// Every document but the pages, least recently used first, with its size.
    pub fn documents_by_age(&self) -> Result<Vec<(Key, u64)>, StoreError> {
        self.documents_of(DOCUMENT)
    }

    /// Every page of the registry HTTP API, least recently used first, with its size.
    pub fn pages_by_age(&self) -> Result<Vec<(Key, u64)>, StoreError> {
        self.documents_of(PAGE)
    }

    fn documents_of(&self, kind: u8) -> Result<Vec<(Key, u64)>, StoreError> {
        let mut found = self.by_age(kind)?;
        found.sort_by_key(|(_, entry)| entry.last_use);
        let key = |key: &[u8]| std::str::from_utf8(key).ok().and_then(|path| Key::from_path(Path::new(path)));
        Ok(found.iter().filter_map(|(path, entry)| Some((key(path)?, entry.size_bytes))).collect())
    }

    fn by_age(&self, kind: u8) -> Result<Vec<(Vec<u8>, Entry)>, StoreError> {
        let mut found = Vec::new();
        for (key, value) in self.entries.read().below(&[kind])? {
            found.extend(Entry::decode(&value).map(|entry| (key[1..].to_vec(), entry)));
        }
        Ok(found)
    }

    pub(super) fn close(&self) -> Result<(), StoreError> {
        if self.broken.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.entries.read().insert(CLEAN, &FORMAT.to_be_bytes())?;
        self.entries.read().flush()
    }
}
