//! Exports archives from the store into a bundle, with their proof sets and the documents that lead to them.

use crate::mirror::{Library, Transfers};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use url::Url;

use crate::address::{Artifact, ModulePackage, Package};
use crate::bundle::{
    BundleEntry, BundleWriter, BundledArchive, BundledDocument, BundledFile, FetchOrigin, FileRole, Inventory,
    Manifest, ModuleEntry, ProviderEntry, SigningKey,
};
use crate::clock::Timestamp;
use crate::digest::{Digest, DigestPrefix};
use crate::error::Error;
use crate::mirror::library::proof_set::{ProofSet, StoredProofSet};
use crate::mirror::library::stored_document::StoredDocument;
use crate::mirror::proof_sets;
use crate::store::{Key, Scratch, StoreError};
use crate::verify::ProofBasis;

/// Reasons that a bundle could not be gathered.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// Some packages cannot be exported.
    #[error("{}", .0.join("; "))]
    Missing(Vec<String>),
    /// The disk failed.
    #[error(transparent)]
    Mirror(#[from] Error),
}

impl From<StoreError> for GatherError {
    fn from(error: StoreError) -> Self {
        Self::Mirror(error.into())
    }
}

/// The contents of a bundle: its manifest, and its small files as of the moment of gathering.
#[derive(Debug)]
pub struct GatheredBundle {
    /// The manifest.
    pub manifest: Manifest,
    /// The requested packages that cannot be exported, each with the reason.
    pub missing: Vec<String>,
    small: GatheredFiles,
}

/// Small files by digest, concatenated in an unnamed file. A copy, because a list may be replaced and a set evicted
/// before the bundle is written.
#[derive(Debug)]
struct GatheredFiles {
    offsets: HashMap<Digest, (u64, u64)>,
    file: fs::File,
    written: u64,
    _scratch: Scratch,
}

impl GatheredFiles {
    fn put(&mut self, bytes: &[u8]) -> io::Result<BundledFile> {
        let (sha256, size) = (Digest::of(bytes), bytes.len() as u64);
        if let std::collections::hash_map::Entry::Vacant(place) = self.offsets.entry(sha256) {
            self.file.write_all_at(bytes, self.written)?;
            place.insert((self.written, size));
            self.written += size;
        }
        Ok(BundledFile { sha256, bytes: size })
    }

    fn get(&self, digest: &Digest) -> io::Result<Vec<u8>> {
        let missing = || io::Error::other(format!("the file {digest} was not gathered"));
        let (offset, size) = *self.offsets.get(digest).ok_or_else(missing)?;
        let mut bytes = vec![0; usize::try_from(size).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

/// The contents of the other store, which a delta may leave out.
struct DeltaBase<'a> {
    inventory: Option<&'a Inventory>,
    archives: HashSet<DigestPrefix>,
}

impl DeltaBase<'_> {
    fn has(&self, artifact: &Artifact, archive: Digest, proof: Digest) -> bool {
        self.inventory.is_some_and(|inventory| inventory.has(artifact, archive, proof))
    }

    fn bundled_archive(&self, sha256: Digest, bytes: u64) -> BundledArchive {
        BundledArchive { sha256, bytes, left_out: self.archives.contains(&sha256.prefix()) }
    }
}

impl Transfers {
    /// Gathers everything that `init` needs for these archives. Packages and archives in the inventory are left out.
    /// The order is sorted, so the same store gives the same manifest.
    ///
    /// # Errors
    /// [`GatherError::Missing`] if a package cannot be exported, unless `may_be_partial`.
    pub fn gather(
        &self,
        wanted: impl IntoIterator<Item = (Artifact, Digest)>,
        since: Option<&Inventory>,
        may_be_partial: bool,
        created: Timestamp,
    ) -> Result<GatheredBundle, GatherError> {
        let scratch = self.library.store.blobs.scratch()?;
        let mut small = GatheredFiles { offsets: HashMap::new(), file: scratch.file()?, written: 0, _scratch: scratch };
        let archives = since.map(Inventory::archives).unwrap_or_default();
        let known = DeltaBase { inventory: since, archives };
        let (mut entries, mut missing, mut keys) = (Vec::new(), Vec::new(), BTreeSet::new());
        // A module is stored under its canonical spelling.
        let key_of = |artifact| {
            if let Artifact::Module(package) = &artifact { self.runtime.artifact_of(package) } else { artifact }
        };
        let wanted: BTreeMap<Artifact, Digest> =
            wanted.into_iter().map(|(artifact, digest)| (key_of(artifact), digest)).collect();
        for (artifact, digest) in &wanted {
            let entry = match artifact {
                Artifact::Provider(package) => self.provider_entry(package, *digest, &known, &mut small),
                Artifact::Module(package) => self.module_entry(package, *digest, &known, &mut small),
            };
            match entry {
                Ok(None) => {}
                Ok(Some(entry)) => {
                    keys.insert(Key::Discovery(artifact.host().clone()));
                    keys.insert(match artifact {
                        Artifact::Provider(package) => Key::ProviderVersions(package.provider.clone()),
                        Artifact::Module(package) => Key::ModuleVersions(package.module.clone()),
                    });
                    entries.push(entry);
                }
                Err(GatherError::Missing(reason)) => missing.extend(reason),
                Err(failed) => return Err(failed),
            }
        }
        let mut all = Vec::new();
        for key in keys {
            match self.document_entry(&key, &mut small) {
                Ok(entry) => all.extend(entry),
                Err(GatherError::Missing(reason)) => missing.extend(reason),
                Err(failed) => return Err(failed),
            }
        }
        all.append(&mut entries);
        if !missing.is_empty() && !may_be_partial {
            return Err(GatherError::Missing(missing));
        }
        Ok(GatheredBundle { manifest: Manifest::new(created, since.map(Inventory::digest), all), missing, small })
    }

    /// Writes the gathered contents as a bundle.
    ///
    /// # Errors
    /// Those of the writer, and of an archive that was evicted meanwhile or whose bytes are damaged.
    pub fn write_bundle<W: Write>(&self, gathered: &GatheredBundle, key: Option<&SigningKey>, out: W) -> io::Result<W> {
        let GatheredBundle { manifest, small, .. } = gathered;
        let mut writer = BundleWriter::begin(out, manifest, key)?;
        for (number, file) in manifest.files() {
            let entry_name =
                || manifest.entries.get(number).map(|entry| entry.package_ref().to_string()).unwrap_or_default();
            if file.role != FileRole::Archive {
                writer.file(&file, small.get(&file.file.sha256)?.as_slice())?;
                continue;
            }
            let evicted = || {
                io::Error::other(format!(
                    "the archive of {} was evicted while the bundle was written; raise [store] max_size, or pin it",
                    entry_name()
                ))
            };
            let blob =
                self.library.store.blobs.open(&file.file.sha256).map_err(io::Error::other)?.ok_or_else(evicted)?;
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
        let mut inventory = Inventory::new(now);
        for named in self.library.store.records.all_named()? {
            match &named {
                Artifact::Provider(package) => {
                    let Some(stored) = self.library.read_set(package)? else { continue };
                    let sets = [Some(&stored.stored_set.current), stored.fallback.as_ref()];
                    let name = self.library.catalog.name(package)?;
                    let listed_set = sets.into_iter().flatten().find(|set| name.get(&set.document.shasum).is_some());
                    let Some(set) = listed_set.filter(|set| self.library.is_blob_stored(&set.document.shasum)) else {
                        continue;
                    };
                    inventory.add(&named, set.document.shasum, proof_of(set));
                }
                Artifact::Module(package) => {
                    let Some(carried) = self.library.exportable_module(package, None)? else { continue };
                    let record = self.library.store.records.get(&Key::ModuleLocation(package.clone()))?;
                    let Some(location) = record.and_then(StoredDocument::read) else { continue };
                    inventory.add(&named, carried.archive.digest, Digest::of(&location.body));
                }
            }
        }
        Ok(inventory)
    }
}

impl Library {
    fn is_blob_stored(&self, digest: &Digest) -> bool {
        self.store.blobs.is_stored(digest).unwrap_or(false)
    }
}

impl Transfers {
    fn provider_entry(
        &self,
        package: &Package,
        digest: Digest,
        known: &DeltaBase<'_>,
        small: &mut GatheredFiles,
    ) -> Result<Option<BundleEntry>, GatherError> {
        let stored = self.library.read_set(package)?;
        let stored_set = stored.as_ref().map(|stored_set| &*stored_set.stored_set);
        let Some((set, stored_set)) = stored_set.and_then(|stored_set| Some((set_of(stored_set, digest)?, stored_set)))
        else {
            return Err(not_held(&proof_sets::describe_set(package)));
        };
        if set.proof().how == ProofBasis::Imported {
            let reason = "was imported without signatures, so no other mirror can verify it; run `larder import` there";
            return Err(GatherError::Missing(vec![format!("{package} {reason}")]));
        }
        let Some(blob) = self.library.store.blobs.open(&digest)? else {
            return Err(not_held(&format!("the archive of {package}")));
        };
        if known.has(&Artifact::from(package), digest, proof_of(set)) {
            return Ok(None);
        }
        let Package { provider, version, platform } = package.clone();
        let signature = if set.signature.is_empty() { None } else { Some(small.put(&set.signature).map_err(spool)?) };
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
                checked: stored_set.age.checked.max(metadata.fetched),
                gone: stored_set.age.gone,
            },
            document: small.put(&set.body).map_err(spool)?,
            sums: small.put(&set.sums).map_err(spool)?,
            signature,
            archive: known.bundled_archive(digest, blob.size_bytes()),
        }))))
    }

    fn module_entry(
        &self,
        package: &ModulePackage,
        digest: Digest,
        known: &DeltaBase<'_>,
        small: &mut GatheredFiles,
    ) -> Result<Option<BundleEntry>, GatherError> {
        let not_kept = |subject: &str| not_held(&format!("{subject} of {package}"));
        let carried = self.library.exportable_module(package, Some(digest))?.ok_or_else(|| not_kept("the archive"))?;
        let record = self.library.store.records.get(&Key::ModuleLocation(package.clone()))?;
        let document = record.and_then(StoredDocument::read).ok_or_else(|| not_kept("the location"))?;
        if known.has(&Artifact::from(package), digest, Digest::of(&document.body)) {
            return Ok(None);
        }
        let ModulePackage { module, version } = package.clone();
        Ok(Some(BundleEntry::Module(Box::new(ModuleEntry {
            module,
            version,
            commit: carried.packed.commit,
            tree: carried.packed.tree,
            packer: carried.packed.packer,
            subdir: carried.packed.subdir,
            source: carried.packed.source,
            origin: carried.archive.origin,
            first_seen: carried.first_seen,
            said: fetch_origin(&document),
            location: small.put(&document.body).map_err(spool)?,
            archive: known.bundled_archive(digest, carried.size_bytes),
        }))))
    }

    fn document_entry(&self, key: &Key, small: &mut GatheredFiles) -> Result<Option<BundleEntry>, GatherError> {
        let subject = match key {
            Key::Discovery(host) => format!("the discovery document of {host}"),
            Key::ProviderVersions(provider) => format!("the version list of {provider}"),
            Key::ModuleVersions(module) => format!("the version list of {module}"),
            _ => return Ok(None),
        };
        let stored_document =
            self.library.store.records.get(key)?.and_then(StoredDocument::read).ok_or_else(|| not_held(&subject))?;
        let dropped = if stored_document.dropped.is_empty() {
            None
        } else {
            Some(small.put(&stored_document.dropped).map_err(spool)?)
        };
        let document = BundledDocument {
            said: fetch_origin(&stored_document),
            document: small.put(&stored_document.body).map_err(spool)?,
            dropped,
        };
        Ok(match key.clone() {
            Key::Discovery(host) => Some(BundleEntry::Discovery { host, document }),
            Key::ProviderVersions(provider) => Some(BundleEntry::ProviderVersions { provider, document }),
            Key::ModuleVersions(module) => Some(BundleEntry::ModuleVersions { module, document }),
            _ => None,
        })
    }
}

fn not_held(subject: &str) -> GatherError {
    GatherError::Missing(vec![format!("{subject} is not stored")])
}

/// The current or previous set that names this archive.
fn set_of(stored_set: &StoredProofSet, digest: Digest) -> Option<&ProofSet> {
    let predecessor = stored_set.predecessor.as_ref().map(|(set, _)| &**set);
    [Some(&*stored_set.current), predecessor].into_iter().flatten().find(|set| set.document.shasum == digest)
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

fn spool(e: io::Error) -> Error {
    let place = std::path::PathBuf::from("staging");
    Error::Store(StoreError::Io { doing: "gather a bundle in", path: place, source: std::sync::Arc::new(e) })
}
