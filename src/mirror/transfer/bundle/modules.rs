//! Module versions in bundles, exported and imported. On import the archive's tree is digested again and compared with
//! the first-seen record, as if it had been fetched.

use std::io::{self, Write};
use std::sync::Arc;

use crate::address::{Artifact, ModulePackage};
use crate::bundle::{ApplyOutcome, ModuleEntry};
use crate::clock::Timestamp;
use crate::digest::{Digest, Hasher};
use crate::mirror::documents::module_location::subdir_in_archive;
use crate::mirror::library::StoredArchive;
use crate::mirror::library::module_history::{self, PinnedTree, TreeComparison};
use crate::mirror::library::stored_document::StoredDocument;
use crate::mirror::transfer::bundle::{ArchiveBytesSource, EntryCriteria, StagedBundleArchive, store_failed};
use crate::mirror::{Library, default_if_gone};
use crate::packaging::{ArchiveFormat, PACKER, PackResult, Tree, TreeEntry, TreeLimits, TreePath, pack, unpack_from};
use crate::store::{Durability, Key, StoreError};
use crate::upstream::request::Validators;
use crate::verify::PackedTree;

/// A stored version that can be exported.
pub(in crate::mirror) struct StoredModule {
    pub(in crate::mirror) archive: StoredArchive,
    pub(in crate::mirror) packed: PackedTree,
    pub(in crate::mirror) size_bytes: u64,
    pub(in crate::mirror) first_seen: Timestamp,
}

/// A version of a bundle whose location was parsed. Its archive follows.
pub(in crate::mirror) struct BundledModule {
    pub(in crate::mirror) package: ModulePackage,
    /// The canonical spelling, under which it is stored.
    key: ModulePackage,
    location: StoredDocument,
    archive: Digest,
    origin: String,
    pinned_tree: PinnedTree,
    /// True if an operator accepts it whatever was seen before.
    is_accepted: bool,
}

impl Library {
    /// The stored archive of a version for export: the one with this digest, or the current one. Its tree must be the
    /// pinned one.
    pub(in crate::mirror) fn exportable_module(
        &self,
        package: &ModulePackage,
        digest: Option<Digest>,
    ) -> Result<Option<StoredModule>, StoreError> {
        let seen = module_history::read_first_seen(self, package)?.first_seen();
        for archive in self.catalog.name(package)?.archives.into_iter().rev() {
            let Some(packed) = archive.proof.how.tree().cloned() else { continue };
            let is_it = digest.is_none_or(|digest| digest == archive.digest);
            let is_pinned = seen.as_ref().is_none_or(|seen| seen.pinned.matches_archive(&packed));
            if !is_it || !is_pinned {
                continue;
            }
            if let Some(blob) = self.store.blobs.open(&archive.digest)? {
                let first_seen = seen.as_ref().map_or(archive.kept, |seen| seen.first_seen);
                return Ok(Some(StoredModule { archive, packed, size_bytes: blob.size_bytes(), first_seen }));
            }
        }
        Ok(None)
    }
}

impl BundledModule {
    /// Judges a version of a bundle by its location. `None` if it is stored already.
    ///
    /// # Errors
    /// The reason that it is refused.
    pub(in crate::mirror) fn check_entry(
        library: &Library,
        entry: &ModuleEntry,
        location: StoredDocument,
        judging: &EntryCriteria<'_>,
    ) -> Result<Option<Self>, String> {
        let (package, now) = (entry.package(), judging.now);
        let key = library.runtime.config().key_of_package(&package);
        let located = Arc::new(location.clone()).as_location(&package).map_err(|e| e.to_string())?;
        if let Some(subdir) = &entry.subdir {
            // Part of a location, which is sent as a header.
            let is_one = subdir.bytes().all(|byte| byte.is_ascii_graphic()) && !subdir.contains(['?', '#']);
            TreePath::parse(subdir.as_bytes())
                .ok()
                .filter(|path| is_one && !path.is_root())
                .ok_or("its subdir is not a path")?;
        }
        drop(subdir_in_archive(&package, located.located.subdir.as_ref()).map_err(|e| e.to_string())?);
        let is_held = || -> Result<bool, StoreError> {
            let is_there = default_if_gone(library.store.blobs.is_stored(&entry.archive.sha256))?
                && library.catalog.name(&key)?.get(&entry.archive.sha256).is_some();
            let is_located = library.has_document_or_newer(&Key::ModuleLocation(key.clone()), &location, now)?;
            let is_pinned = module_history::read_first_seen(library, &key)?
                .first_seen()
                .is_some_and(|seen| seen.pinned.tree == entry.tree);
            Ok(is_there && is_located && is_pinned)
        };
        if is_held().map_err(store_failed)? {
            return Ok(None);
        }
        let pinned_tree = PinnedTree {
            tree: entry.tree,
            commit: entry.commit.clone(),
            packer: entry.packer,
            source: entry.source,
            subdir: entry.subdir.clone(),
            validators: Validators::default(),
            at: entry.first_seen.min(now),
        };
        let (archive, origin) = (entry.archive.sha256, entry.origin.clone());
        let is_accepted = judging.is_accepted(library, &Artifact::Module(key.clone()));
        Ok(Some(Self { package, key, location, archive, origin, pinned_tree, is_accepted }))
    }

    pub(in crate::mirror) fn digest(&self) -> Digest {
        self.archive
    }

    /// Commits the version in this order: first-seen record, archive, location, name.
    ///
    /// # Errors
    /// The reason that it is refused.
    pub(in crate::mirror) fn commit(
        self,
        library: &Library,
        arrived: StagedBundleArchive,
        now: Timestamp,
    ) -> Result<ApplyOutcome, String> {
        if let Err(reason) = self.check_tree(library, &arrived.source) {
            return Err(arrived.discard_with(reason));
        }
        let StagedBundleArchive { fast, size_bytes, .. } = arrived;
        let Self { package, key, location, archive: digest, origin, pinned_tree: sighting, is_accepted } = self;
        let comparison = if is_accepted {
            module_history::accept(library, &key, &sighting).map(|_| TreeComparison::Consistent)
        } else {
            module_history::compare(library, &key, &sighting, None)
        };
        let is_right = match comparison {
            Ok(comparison) => {
                // Not `larder accept`: that would ask upstream, but the tree is in the bundle.
                let accepting = format!("`larder bundle apply` with `--accept {key}`");
                let seen = library.require_pinned_tree(&package, &key, &sighting, comparison, &accepting);
                seen.map_err(|e| e.to_string())
            }
            Err(reason) => Err(store_failed(reason)),
        };
        if let Err(reason) = is_right {
            return Err(arrived.discard_with(reason));
        }
        library.resolve_alarms(crate::mirror::modules::RESOLVED_BY_ACCEPT, &key.module, &key.version);
        let packed = StoredArchive::of_tree(sighting.packed(), digest, fast, size_bytes, origin, now);
        let record_proof = || {
            let location_key = Key::ModuleLocation(key.clone());
            library.replace_document(&location_key, location, now, Durability::Synced, |_, coming| Ok(coming))?;
            Ok(true)
        };
        let committed = packed.and_then(|archive| library.commit(&key, archive, arrived.source.into(), record_proof));
        committed.map_err(store_failed)?;
        library.runtime.config().not_found.remove_if(|absent| *absent == Key::ModuleLocation(key.clone()));
        library.enforce_size_limit();
        Ok(ApplyOutcome::Applied { note: None })
    }

    /// Checks that larder packed the archive from the tree that the manifest names.
    fn check_tree(&self, library: &Library, source: &ArchiveBytesSource) -> Result<(), String> {
        let scratch = library.store.blobs.scratch().map_err(store_failed)?;
        let mut tree = Tree::new(scratch.file().map_err(store_failed)?, TreeLimits::default());
        let unpacked = match source {
            ArchiveBytesSource::Staged(staged) => {
                staged.value().file().map_err(store_failed).map(|file| unpack_from(FORMAT, file, &mut tree))?
            }
            ArchiveBytesSource::Stored(blob) => unpack_from(FORMAT, blob.reader(), &mut tree),
        };
        unpacked.map_err(|e| format!("its archive is not a module: {e}"))?;
        let mut packed_anew = HashingWriter(Hasher::new());
        let packed = pack(&tree, &TreePath::root(), &mut packed_anew);
        let PackResult { tree: packed_tree, .. } = packed.map_err(|e| format!("its archive is not a module: {e}"))?;
        if packed_tree != self.pinned_tree.tree {
            return Err(format!("its tree has digest {packed_tree}, but its manifest names {}", self.pinned_tree.tree));
        }
        let (anew, _) = packed_anew.0.finish();
        // Clients use another tar reader than larder. Only the output of our packer reads the same in all of them.
        if self.pinned_tree.packer != PACKER || anew != self.archive {
            return Err("its archive was made by another packer, or has contents that larder never packs".to_owned());
        }
        let subdir = self.pinned_tree.subdir.as_deref().unwrap_or_default();
        let below = TreePath::parse(subdir.as_bytes()).map_err(|bad| bad.to_string())?;
        if !below.is_root() && tree.get(&below) != Some(&TreeEntry::Folder) {
            return Err(format!("its archive has no folder {subdir}"));
        }
        Ok(())
    }
}

const FORMAT: ArchiveFormat = ArchiveFormat::TarGz;

/// A writer that only hashes.
struct HashingWriter(Hasher);

impl Write for HashingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
