//! Rebuilds the index from the files while larder serves: after a `kill -9`, after damage, and for the store of an
//! older larder. Each file is read under its lock, so a concurrent change is counted once.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{fmt, io};

use crate::address::{AddressFilter, Artifact};
use crate::digest::Digest;
use crate::mirror::Library;
use crate::mirror::library::NameRecord;
use crate::mirror::library::proof_set::StoredProofSet;
use crate::store::{
    IndexEntry, IndexedName, Key, ListedArchive, NameCursor, ReadOutcome, RecordAction, RecordStep, StoreError,
};

/// The records that are listed at a time.
const PAGE_RECORDS: usize = 4096;
const REBUILD_RETRY_DELAY: Duration = Duration::from_secs(10);

impl Library {
    /// Rebuilds the index, unless larder stops.
    ///
    /// # Errors
    /// The files or the index cannot be read.
    fn reconcile(&self) -> Result<(), StoreError> {
        let entries = self.reconcile_archives()? + self.reconcile_counted()? + self.reconcile_names()?;
        if entries > 0 {
            tracing::info!(entries, "the index was rebuilt from the files");
        }
        Ok(())
    }

    fn require_running(&self) -> Result<(), StoreError> {
        match self.runtime.tasks.is_stopping() {
            true => Err(StoreError::Index("larder stopped before the index was rebuilt".to_owned())),
            false => Ok(()),
        }
    }

    /// Compares the entries of archives with the files; returns the number of files.
    fn reconcile_archives(&self) -> Result<usize, StoreError> {
        let (index, archives) = (&self.store.local.index, &self.store.local.archives);
        let check = |digest: &Digest| {
            self.require_running()?;
            let _lock = self.catalog.digest_lock(digest).lock();
            match self.stat_or_log(digest, archives.stat(digest)) {
                Some(Some((size_bytes, written))) => index.archive_found(digest, size_bytes, written),
                Some(None) => index.archive_gone(digest),
                None => {}
            }
            Ok(())
        };
        let mut indexed = Vec::new();
        index.each_archive(|archive| indexed.push(archive.digest))?;
        indexed.iter().try_for_each(check)?;
        let (mut files, mut checked) = (0, Ok(()));
        archives.each(|digest, _| {
            files += 1;
            // What has an entry by now was checked above, or was just stored.
            checked = match index.archive(&digest) {
                Ok(Some(_)) => self.require_running(),
                _ => check(&digest),
            };
            if checked.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        checked.map(|()| files)
    }

    /// Compares the entries of documents and first-seen records with the records; returns the number of records.
    fn reconcile_counted(&self) -> Result<usize, StoreError> {
        let (index, records) = (&self.store.local.index, self.store.records.of_machine());
        let check = |key: Key| {
            self.require_running()?;
            records.change(&key, |step| {
                if let Some(found) = self.stat_or_log(&key.path().display(), records.stat(&key)) {
                    let found = found.map_or(IndexEntry::Gone, |(size, written)| IndexEntry::Found(size, written));
                    step.change(&key, RecordAction::Keep, found);
                }
                Ok(())
            })
        };
        by_page(|after| index.counted_records(after, PAGE_RECORDS), check)?;
        let mut counted = 0;
        for folder in ["documents", "seen"] {
            by_page(
                |after: Option<&(Key, u64)>| records.page(Path::new(folder), after.map(|(key, _)| key), PAGE_RECORDS),
                |(key, _)| {
                    if !key.is_counted() {
                        return Ok(());
                    }
                    counted += 1;
                    match index.document_bytes(&key) {
                        Ok(0) | Err(_) => check(key),
                        Ok(_) => self.require_running(),
                    }
                },
            )?;
        }
        Ok(counted)
    }

    /// Compares the entries of names with the records; returns the number of records.
    fn reconcile_names(&self) -> Result<usize, StoreError> {
        let records = self.store.records.of_machine();
        let indexed = |after: Option<&Artifact>| {
            let (mut page, after) = (Vec::new(), after.map(NameCursor::of));
            records.each_name_of(&AddressFilter::All, after.as_ref(), &mut |artifact, _| {
                page.push(artifact);
                if page.len() < PAGE_RECORDS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            Ok(page)
        };
        by_page(indexed, |artifact| {
            self.require_running()?;
            self.index_name(&artifact)
        })?;
        let mut names = 0;
        by_page(
            |after: Option<&(Key, u64)>| records.page(Path::new("names"), after.map(|(key, _)| key), PAGE_RECORDS),
            |(key, _)| {
                self.require_running()?;
                let Key::Name(artifact) = key else { return Ok(()) };
                names += 1;
                match records.name(&artifact) {
                    Ok(Some(_)) => Ok(()),
                    _ => self.index_name(&artifact),
                }
            },
        )?;
        Ok(names)
    }

    /// Indexes a name, or removes the entry of one that is gone. For an unreadable name, an existing entry stays. Without
    /// one, the archive of its proof set stands in. Failing that, the name is marked unreadable, because it may list any
    /// archive.
    fn index_name(&self, artifact: &Artifact) -> Result<(), StoreError> {
        let (records, key) = (self.store.records.of_machine(), Key::Name(artifact.clone()));
        let ((), written) = records.try_change(&key, |step| {
            let lost = match step.read_as(&key, NameRecord::parse) {
                Ok(ReadOutcome::Intact(name)) => {
                    step.change(&key, RecordAction::Keep, IndexEntry::Name(name.indexed()));
                    return Ok(());
                }
                Ok(ReadOutcome::Absent) => {
                    step.change(&key, RecordAction::Keep, IndexEntry::Name(IndexedName::default()));
                    return Ok(());
                }
                _ if matches!(records.name(artifact), Ok(Some(_))) => return Ok(()),
                Ok(ReadOutcome::Damaged) => named_by_set(step, artifact),
                Err(unreadable) => Err(unreadable),
            };
            let entry = match lost {
                Ok(Some(digest)) => {
                    tracing::warn!(package = %artifact, "a name record was lost; the archive that its proof set names is used");
                    let archives = vec![ListedArchive { digest, lacks_hashes: false }];
                    IndexEntry::Name(IndexedName { archives, ..IndexedName::default() })
                }
                Ok(None) => IndexEntry::Unreadable(self.lost_name_error(artifact)),
                Err(error) => {
                    tracing::error!(package = %artifact, %error, "a name record cannot be read; archives without a name are not evicted");
                    IndexEntry::Unreadable(error)
                }
            };
            step.change(&key, RecordAction::Keep, entry);
            Ok(())
        })?;
        // A damaged name that cannot be quarantined is as unreadable.
        written.or_else(|error| records.change_one(&key, &RecordAction::Keep, &IndexEntry::Unreadable(error)))
    }

    /// The size and time of a file. A file that cannot be read is left out, and the index is marked incomplete.
    fn stat_or_log<T>(&self, subject: &dyn fmt::Display, file: Result<T, StoreError>) -> Option<T> {
        let failed = file.inspect_err(|error| {
            tracing::error!(%subject, %error, to_do = error.remedy(), "a file of the store cannot be checked; it is not counted");
            self.store.local.index.is_incomplete();
        });
        failed.ok()
    }

    /// The error for a damaged name whose archive no proof set names.
    fn lost_name_error(&self, artifact: &Artifact) -> StoreError {
        let path = self.store.local.root().join(Key::Name(artifact.clone()).path());
        let reason = "it was damaged and quarantined; its archive is unknown";
        StoreError::Io { doing: "read", path, source: Arc::new(io::Error::other(reason)) }
    }

    /// Rebuilds the index. Retries until it succeeds or the mirror is dropped.
    pub async fn rebuild_index(library: Weak<Self>) {
        while let Some(library) = library.upgrade() {
            let owned_library = Arc::clone(&library);
            match library.runtime.tasks.spawn_blocking(move || owned_library.reconcile_index()).await {
                // Its limits may have been exceeded before it was whole.
                Ok(true) => {
                    library.evictor.request_pass();
                    return;
                }
                Ok(false) => {}
                Err(panicked) => {
                    let reason = "it panicked while it was made whole".to_owned();
                    library.store.local.index.completed(Err(StoreError::Index(reason)));
                    if let Ok(panic) = panicked.try_into_panic() {
                        std::panic::resume_unwind(panic);
                    }
                }
            }
            drop(library);
            tokio::time::sleep(REBUILD_RETRY_DELAY).await;
        }
    }

    /// Returns true if the index is whole now.
    fn reconcile_index(&self) -> bool {
        let index = &self.store.local.index;
        if !index.begin_completion(&|| self.runtime.tasks.is_stopping()) {
            self.refresh_size_limit();
            return true;
        }
        let ended = self.reconcile();
        if let Err(error) = &ended
            && !self.runtime.tasks.is_stopping()
        {
            tracing::error!(%error, to_do = error.remedy(), "the index could not be completed; it is tried again");
        }
        // Reported here and not in the async task, which a shutdown may cancel: others wait for it.
        index.completed(ended);
        self.refresh_size_limit();
        index.is_complete()
    }
}

/// Works on what a list has, a page at a time: `next_page` gives what comes after the last item of a page.
fn by_page<T>(
    next_page: impl Fn(Option<&T>) -> Result<Vec<T>, StoreError>,
    mut work: impl FnMut(T) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut page = next_page(None)?;
    while let Some(last) = page.last() {
        let next = next_page(Some(last))?;
        page.into_iter().try_for_each(&mut work)?;
        page = next;
    }
    Ok(())
}

/// The archive that the proof set of a package names: it stands in for a damaged name.
fn named_by_set(step: &RecordStep<'_>, artifact: &Artifact) -> Result<Option<Digest>, StoreError> {
    let Artifact::Provider(package) = artifact else { return Ok(None) };
    let parse = |record| StoredProofSet::read(record, package);
    let stored_set = step.read_as(&Key::ProofSet(package.clone()), parse)?.intact();
    Ok(stored_set.map(|stored_set| stored_set.current.document.shasum))
}
