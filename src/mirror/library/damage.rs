//! Damage: records that cannot be read, and archives whose files are wrong or missing on this machine.

use std::sync::Arc;

use crate::address::Artifact;
use crate::digest::{Digest, FastHash};
use crate::mirror::Library;
use crate::mirror::counters::DamageFinding;
use crate::mirror::library::module_history::read_first_seen;
use crate::mirror::library::{NameRecord, StoredArchive};
use crate::store::{Blob, Key, ReadOutcome, StoreError};

/// Returns the value, or `None` where the data on disk is damaged for good.
pub fn unless_damaged<T>(read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.is_damage() => {
            tracing::error!(%error, "a stored archive cannot be read");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl Library {
    /// The keys of all records. Blocks.
    pub fn all_records(&self) -> Result<Vec<Key>, StoreError> {
        self.store.records.all()
    }

    /// True if a record is damaged. It is quarantined then, unless its existence matters. Blocks.
    pub fn is_record_damaged(&self, key: &Key) -> Result<bool, StoreError> {
        Ok(matches!(self.store.records.read_as(key, Some)?, ReadOutcome::Damaged))
    }

    /// Records that the file of an archive is missing or damaged; a damaged one is set aside. The archive stays on its
    /// names: they say what this larder has, and the next request fetches the file again. Does nothing if it was repaired
    /// meanwhile. Blocks.
    pub fn give_up_file(&self, digest: &Digest, fast: FastHash, found: DamageFinding) -> Result<(), StoreError> {
        let _lock = self.catalog.digest_lock(digest).lock();
        match (found, self.store.local.archives.open(digest)?) {
            (DamageFinding::Missing, Some(_)) => return Ok(()),
            (DamageFinding::Damaged, Some(blob)) if unless_damaged(blob.fast_hash())? == Some(fast) => return Ok(()),
            (DamageFinding::Damaged, Some(_)) => self.store.local.archives.quarantine(digest)?,
            (_, None) => {}
        }
        // Each request for it finds it missing; only the first one finds something new.
        if found == DamageFinding::Damaged || self.file_use(digest)?.is_some() {
            self.forget_file(digest);
            self.runtime.counters.damaged(found);
            tracing::warn!(%digest, found = found.to_string(), "the file of a stored archive cannot be used; it is fetched again");
        }
        Ok(())
    }

    /// Sets a damaged archive aside, because a caller has another copy. Does nothing if it was replaced since it was
    /// opened. Blocks.
    pub fn set_aside(&self, digest: &Digest, opened: &Blob) -> Result<(), StoreError> {
        let _lock = self.catalog.digest_lock(digest).lock();
        if self.store.local.archives.quarantine_unless_replaced(digest, opened)? {
            self.forget_file(digest);
            self.runtime.counters.damaged(DamageFinding::Damaged);
        }
        Ok(())
    }

    /// Sets a wrong archive aside, or finds it missing. Returns the packages that have it; `None` where it was replaced or
    /// removed since it was opened.
    pub fn packages_without_file(
        &self,
        digest: Digest,
        opened: Option<&Blob>,
    ) -> Result<Option<Vec<(Artifact, StoredArchive)>>, StoreError> {
        self.store.local.index.require_complete()?;
        let _lock = self.catalog.digest_lock(&digest).lock();
        match opened {
            Some(opened) if !self.store.local.archives.quarantine_unless_replaced(&digest, opened)? => return Ok(None),
            None if self.is_at_hand(&digest)? => return Ok(None),
            Some(_) | None => {}
        }
        let mut packages = Vec::new();
        for artifact in self.names_of(&digest)? {
            let archive = self.catalog.name_record(&artifact)?.get(&digest).cloned();
            packages.extend(archive.map(|archive| (artifact, archive)));
        }
        self.forget_file(&digest);
        Ok((opened.is_some() || !packages.is_empty()).then_some(packages))
    }

    /// True if this machine has the file of an archive that a package got after this one: clients are sent that one. Blocks.
    pub fn is_superseded(&self, artifact: &Artifact, digest: &Digest) -> Result<bool, StoreError> {
        let name = self.catalog.name_record(artifact)?;
        for later in name.archives.iter().rev().take_while(|archive| archive.digest != *digest) {
            if self.is_at_hand(&later.digest)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes an archive off a name for this reason, unless its file is on this machine: nothing can bring it back, or nobody
    /// needs it.
    pub async fn drop_lost(self: &Arc<Self>, artifact: impl Into<Artifact>, digest: Digest, reason: &'static str) {
        let artifact = artifact.into();
        let package = artifact.clone();
        let drop_lost = move |library: &Self| {
            let _lock = library.catalog.digest_lock(&digest).lock();
            // The verdict of one replica takes nothing from all of them.
            if library.shared_archives().is_some() {
                return Ok(());
            }
            if library.is_at_hand(&digest)? || !library.is_stored(&artifact, &digest)? {
                return Ok(());
            }
            if let Artifact::Module(package) = &artifact {
                // Rebuilds a lost record from the name, which may be the last evidence.
                read_first_seen(library, package)?;
            }
            let take_off = |name: &mut NameRecord| name.archives.retain(|archive| archive.digest != digest);
            library.catalog.change_name_record(&artifact, take_off)?;
            tracing::error!(package = %artifact, %digest, reason, "an archive is lost: its file is not there");
            Ok(())
        };
        if let Err(error) = self.on_disk(drop_lost).await {
            tracing::error!(%package, %digest, %error, "a lost archive could not be taken off its name");
        }
    }
}

/// The reason for dropping an archive that upstream has deleted.
pub const DELETED_UPSTREAM: &str = "upstream has deleted it";
/// The reason for dropping an archive that another one has replaced.
pub const SUPERSEDED: &str = "a later archive of the package is stored";
