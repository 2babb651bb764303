//! Exports archives from the store into a bundle, with their proof sets and the documents that lead to them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use url::Url;

use crate::address::{Address, Artifact, ModulePackage, Package, Version};
use crate::bundle::{
    AddressNotes, BundleEntry, BundleWriter, BundledArchive, BundledDocument, BundledFile, FetchOrigin, FileRole,
    Inventory, Manifest, ModuleEntry, ProviderEntry, SigningKey,
};
use crate::clock::Timestamp;
use crate::digest::{Digest, DigestPrefix};
use crate::error::Error;
use crate::mirror::library::proof_set::ProofSet;
use crate::mirror::library::stored_document::StoredDocument;
use crate::mirror::library::{StoredArchive, module_history};
use crate::mirror::transfer::{Spool, set_of};
use crate::mirror::{Library, RuntimeConfig, Transfers, proof_sets};
use crate::policy::ApprovalEntry;
use crate::store::{DocumentKey, Key, StoreError};
use crate::verify::{PackedTree, ProofBasis};

/// Reasons that a bundle could not be gathered.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// Some packages cannot be exported.
    #[error("{}", .0.join("; "))]
    Missing(Vec<String>),
    /// The disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The contents of a bundle: its manifest, and its small files as of the moment of gathering.
#[derive(Debug)]
pub struct GatheredBundle {
    /// The manifest.
    pub manifest: Manifest,
    /// The requested packages that cannot be exported, each with the reason.
    pub missing: Vec<String>,
    small_files: Spool,
}

/// The signature that a bundle gets after it is gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlannedSignature {
    /// A key signs it.
    Signed,
    /// Nobody vouches for its notes, so it has none.
    Unsigned,
}

/// The contents of the other store, which a delta may leave out.
struct DeltaBase<'a> {
    inventory: &'a Inventory,
    archives: HashSet<DigestPrefix>,
}

impl DeltaBase<'_> {
    fn bundled_archive(&self, sha256: Digest, bytes: u64) -> BundledArchive {
        BundledArchive { sha256, bytes, left_out: self.archives.contains(&sha256.prefix()) }
    }
}

impl Transfers {
    /// Gathers everything that `init` needs for these archives. Packages and archives in the inventory are left out.
    /// The order is sorted, so the same store gives the same manifest. `created` is the time in it; the policies are asked for
    /// `now`. A bundle that will be signed has notes about the versions.
    ///
    /// # Errors
    /// [`GatherError::Missing`] if a package cannot be exported, unless `may_be_partial`.
    pub fn gather(
        &self,
        requested: impl IntoIterator<Item = (Artifact, Digest)>,
        since: Option<&Inventory>,
        may_be_partial: bool,
        created: Timestamp,
        now: Timestamp,
        signature: PlannedSignature,
    ) -> Result<GatheredBundle, GatherError> {
        let mut small_files = Spool::new(&self.library)?;
        let empty = Inventory::new(created);
        let inventory = since.unwrap_or(&empty);
        let base = DeltaBase { inventory, archives: inventory.archives() };
        let (mut packages, mut documents, mut missing, mut keys) =
            (Vec::new(), Vec::new(), Vec::new(), BTreeSet::new());
        let mut unless_missing = |gathered| match gathered {
            Err(GatherError::Missing(reasons)) => {
                missing.extend(reasons);
                Ok(None)
            }
            gathered => gathered,
        };
        let requested: BTreeMap<Artifact, Digest> =
            requested.into_iter().map(|(artifact, digest)| (self.runtime.canonical(artifact), digest)).collect();
        let config = self.runtime.config();
        let access = config.access(now);
        for (artifact, digest) in &requested {
            let of_address = self.library.read_access(&artifact.into(), &access, &config)?;
            let entry = unless_missing(match (of_address.permit(artifact.version()), artifact) {
                (Err(refused), _) => Err(GatherError::Missing(vec![refused.to_string()])),
                (Ok(()), Artifact::Provider(package)) => self.provider_entry(package, *digest, &base, &mut small_files),
                (Ok(()), Artifact::Module(package)) => self.module_entry(package, *digest, &base, &mut small_files),
            })?;
            if let Some(entry) = entry {
                keys.extend([Key::discovery(artifact.host()), Key::version_list(artifact)]);
                packages.push(entry);
            }
        }
        for key in keys {
            documents.extend(unless_missing(self.document_entry(&key, &mut small_files))?);
        }
        if !missing.is_empty() && !may_be_partial {
            return Err(GatherError::Missing(missing));
        }
        documents.append(&mut packages);
        let notes = match signature {
            PlannedSignature::Signed => self.library.notes_about(requested.keys(), &config, now)?,
            PlannedSignature::Unsigned => Vec::new(),
        };
        let manifest = Manifest::new(created, since.map(Inventory::digest), documents, notes);
        Ok(GatheredBundle { manifest, missing, small_files })
    }

    /// Writes the gathered contents as a bundle.
    ///
    /// # Errors
    /// Those of the writer, and of an archive that was evicted meanwhile or whose bytes are damaged.
    pub fn write_bundle<W: Write>(&self, gathered: &GatheredBundle, key: Option<&SigningKey>, out: W) -> io::Result<W> {
        let GatheredBundle { manifest, small_files, .. } = gathered;
        let mut writer = BundleWriter::begin(out, manifest, key)?;
        for (number, file) in manifest.files() {
            let entry_name =
                || manifest.entries.get(number).map(|entry| entry.package_ref().to_string()).unwrap_or_default();
            if file.role != FileRole::Archive {
                let missing = || io::Error::other(format!("the file {} was not gathered", file.file.sha256));
                writer.file(&file, small_files.get(&file.file.sha256)?.ok_or_else(missing)?.as_slice())?;
                continue;
            }
            let evicted = || {
                io::Error::other(format!(
                    "the archive of {} was evicted while the bundle was written; raise [store] max_size, or pin it",
                    entry_name()
                ))
            };
            let blob = self.library.open_file(&file.file.sha256).map_err(io::Error::other)?.ok_or_else(evicted)?;
            let with_archive = |e: io::Error| io::Error::new(e.kind(), format!("the archive of {}: {e}", entry_name()));
            writer.file(&file, blob.reader().take(blob.size_bytes())).map_err(with_archive)?;
        }
        writer.end()
    }

    /// The inventory of all stored packages that can be installed.
    ///
    /// # Errors
    /// The disk failed.
    pub fn inventory(&self, now: Timestamp) -> Result<Inventory, Error> {
        let mut inventory = Inventory::new(now).sealed_for(self.runtime.sealed_platforms());
        for named in self.library.all_named()? {
            match &named {
                Artifact::Provider(package) => {
                    let Some(stored) = self.library.read_set(package)? else { continue };
                    let sets = [Some(&stored.stored_set.current), stored.fallback.as_ref()];
                    let name = self.library.catalog.name_record(package)?;
                    let listed_set = sets.into_iter().flatten().find(|set| name.get(&set.document.shasum).is_some());
                    let is_blob_stored =
                        |set: &&Arc<ProofSet>| self.library.is_at_hand(&set.document.shasum).unwrap_or(false);
                    let Some(set) = listed_set.filter(is_blob_stored) else { continue };
                    inventory.add(&named, set.document.shasum, proof_of(set));
                }
                Artifact::Module(package) => {
                    let Some(module) = self.library.exportable_module(package, None)? else { continue };
                    let Some(location) = self.library.read_document(&Key::location(package))? else { continue };
                    inventory.add(&named, module.archive.digest, Digest::of(&location.body));
                }
            }
        }
        Ok(inventory)
    }
}

impl Library {
    /// The notes about the versions of these packages: from when their ages count, and what persons decided about all versions
    /// of their addresses.
    fn notes_about<'a>(
        &self,
        packages: impl Iterator<Item = &'a Artifact>,
        config: &RuntimeConfig,
        now: Timestamp,
    ) -> Result<Vec<AddressNotes>, StoreError> {
        let mut versions = BTreeMap::<Address, BTreeSet<&Version>>::new();
        for package in packages {
            versions.entry(package.into()).or_default().insert(package.version());
        }
        let mut notes = Vec::new();
        for (address, versions) in versions {
            let ages = self.read_ages(&address, config, now)?;
            let since = |version: &Version| Some((version.clone(), ages.proven_since(version, now)?));
            let since: BTreeMap<_, _> = versions.into_iter().filter_map(since).collect();
            let of_sender = |entry: &ApprovalEntry| ApprovalEntry { received: None, ..entry.clone() };
            let approvals: Vec<_> = self.read_approvals(&address)?.entries().iter().map(of_sender).collect();
            if !since.is_empty() || !approvals.is_empty() {
                notes.push(AddressNotes { address, since, approvals });
            }
        }
        Ok(notes)
    }
}

/// A stored version that can be exported.
struct StoredModule {
    archive: StoredArchive,
    packed: PackedTree,
    size_bytes: u64,
    first_seen: Timestamp,
}

impl Library {
    /// The stored archive of a version for export: the one with this digest, or the current one. Its tree must be the
    /// first-seen one.
    fn exportable_module(
        &self,
        package: &ModulePackage,
        digest: Option<Digest>,
    ) -> Result<Option<StoredModule>, StoreError> {
        let seen = module_history::read_first_seen(self, package)?.intact();
        for archive in self.catalog.name_record(package)?.archives.into_iter().rev() {
            let Some(packed) = archive.proof.how.tree().cloned() else { continue };
            let is_requested = digest.is_none_or(|digest| digest == archive.digest);
            let is_first_seen_tree = seen.as_ref().is_none_or(|seen| seen.tree.packed.is_same_module(&packed));
            if !is_requested || !is_first_seen_tree {
                continue;
            }
            if let Some(blob) = self.open_file(&archive.digest)? {
                let first_seen = seen.as_ref().map_or(archive.stored_at, |seen| seen.first_seen);
                return Ok(Some(StoredModule { archive, packed, size_bytes: blob.size_bytes(), first_seen }));
            }
        }
        Ok(None)
    }
}

impl Transfers {
    fn provider_entry(
        &self,
        package: &Package,
        digest: Digest,
        base: &DeltaBase<'_>,
        small_files: &mut Spool,
    ) -> Result<Option<BundleEntry>, GatherError> {
        let no_set = || not_stored(&proof_sets::describe_set(package));
        let stored_set = self.library.read_set(package)?.ok_or_else(no_set)?.stored_set;
        let set = set_of(&stored_set, digest).ok_or_else(no_set)?;
        if set.proof().how == ProofBasis::Imported {
            let reason = "was imported without signatures, so no other mirror can verify it; run `larder import` there";
            return Err(GatherError::Missing(vec![format!("{package} {reason}")]));
        }
        let no_archive = || not_stored(&format!("the archive of {package}"));
        let blob = self.library.open_file(&digest)?.ok_or_else(no_archive)?;
        if base.inventory.has(&Artifact::from(package), digest, proof_of(set)) {
            return Ok(None);
        }
        let Package { provider, version, platform } = package.clone();
        let signature = if set.signature.is_empty() { None } else { Some(put(small_files, &set.signature)?) };
        let metadata = &set.metadata;
        Ok(Some(BundleEntry::Provider(Box::new(ProviderEntry {
            provider,
            version,
            platform,
            signed_by: set.proof().how.fingerprint().map(str::to_owned),
            said: FetchOrigin {
                asked: without_query(&metadata.asked),
                url: without_query(&metadata.url),
                fetched: metadata.fetched,
                checked: stored_set.confirmed.checked.max(metadata.fetched),
                gone: stored_set.confirmed.gone,
            },
            document: put(small_files, &set.body)?,
            sums: put(small_files, &set.sums)?,
            signature,
            archive: base.bundled_archive(digest, blob.size_bytes()),
        }))))
    }

    fn module_entry(
        &self,
        package: &ModulePackage,
        digest: Digest,
        base: &DeltaBase<'_>,
        small_files: &mut Spool,
    ) -> Result<Option<BundleEntry>, GatherError> {
        let part_not_stored = |part: &str| not_stored(&format!("{part} of {package}"));
        let stored =
            self.library.exportable_module(package, Some(digest))?.ok_or_else(|| part_not_stored("the archive"))?;
        let document = self.library.read_document(&Key::location(package))?;
        let document = document.ok_or_else(|| part_not_stored("the location"))?;
        if base.inventory.has(&Artifact::from(package), digest, Digest::of(&document.body)) {
            return Ok(None);
        }
        let ModulePackage { module, version } = package.clone();
        Ok(Some(BundleEntry::Module(Box::new(ModuleEntry {
            module,
            version,
            commit: stored.packed.commit,
            tree: stored.packed.tree_digest,
            packer: stored.packed.packer,
            subdir: stored.packed.subdir,
            source: stored.packed.source,
            origin: stored.archive.origin,
            first_seen: stored.first_seen,
            said: fetch_origin(&document),
            location: put(small_files, &document.body)?,
            archive: base.bundled_archive(digest, stored.size_bytes),
        }))))
    }

    fn document_entry(&self, key: &Key, small_files: &mut Spool) -> Result<Option<BundleEntry>, GatherError> {
        let mut bundled = || -> Result<BundledDocument, GatherError> {
            let stored = self.library.read_document(key)?;
            let stored = stored.ok_or_else(|| not_stored(&key.to_string()))?;
            let dropped = if stored.dropped.is_empty() { None } else { Some(put(small_files, &stored.dropped)?) };
            Ok(BundledDocument { said: fetch_origin(&stored), document: put(small_files, &stored.body)?, dropped })
        };
        Ok(Some(match key.clone() {
            Key::Document(DocumentKey::Discovery(host)) => BundleEntry::Discovery { document: bundled()?, host },
            Key::Document(DocumentKey::Versions(Address::Provider(provider))) => {
                BundleEntry::ProviderVersions { document: bundled()?, provider }
            }
            Key::Document(DocumentKey::Versions(Address::Module(module))) => {
                BundleEntry::ModuleVersions { document: bundled()?, module }
            }
            _ => return Ok(None),
        }))
    }
}

fn not_stored(subject: &str) -> GatherError {
    GatherError::Missing(vec![format!("{subject} is not stored")])
}

/// The identity of a proof set: the SHA-256 over the digests of its three files.
fn proof_of(set: &ProofSet) -> Digest {
    let digests = [Digest::of(&set.body), set.sums_digest(), set.signature_digest()];
    Digest::of(&digests.map(|digest| *digest.as_bytes()).concat())
}

fn fetch_origin(document: &StoredDocument) -> FetchOrigin {
    let metadata = &document.metadata;
    let (requested, url) = (without_query(&metadata.asked), without_query(&metadata.url));
    FetchOrigin { asked: requested, url, fetched: metadata.fetched, checked: metadata.checked, gone: metadata.gone }
}

/// Removes the query and fragment of a URL, which may hold secrets.
fn without_query(url: &Url) -> Url {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    url
}

/// Adds a small file to the bundle. A copy is kept, because a list may be replaced and a set evicted before the bundle is
/// written.
fn put(small_files: &mut Spool, bytes: &[u8]) -> Result<BundledFile, StoreError> {
    let sha256 = Digest::of(bytes);
    small_files.put(sha256, bytes).map_err(|e| {
        let (path, source) = (PathBuf::from("staging"), Arc::new(e));
        StoreError::Io { doing: "gather a bundle in", path, source }
    })?;
    Ok(BundledFile { sha256, bytes: bytes.len() as u64 })
}
