//! One thing of a bundle: judged by what an upstream would have had to show, then taken in with its archive. The order is
//! that of any intake: what was seen, the archive, what proves it or leads to it, its name; each synced.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::super::documents::{self, KeptDocument};
use super::super::freshness::Age;
use super::super::modules::CarriedModule;
use super::super::proof_set::{About, KeptSet, ProofSet};
use super::super::seen::{self, History};
use super::super::{AlarmKind, Mirror, counters::REPUBLISHED, unless_gone};
use crate::address::{Package, Version, What};
use crate::bundle::{Document, Entry, File, ModuleEntry, Outcome, ProviderEntry, Role, Said, Standing};
use crate::clock::Timestamp;
use crate::digest::FastHash;
use crate::store::{Blob, Durability, Key, Staged, StagedNote, StoreError};
use crate::upstream::ask::Validators;
use crate::upstream::discovery::Discovery;
use crate::upstream::error::relayed;
use crate::upstream::modules::ModuleVersionList;
use crate::upstream::providers::{DownloadDocument, VersionList};
use crate::upstream::room::Room;
use crate::verify::{How, Verified, judge};

/// The small files of one thing, by what they are to it.
#[derive(Debug, Default)]
pub(super) struct SmallFiles(pub(super) HashMap<Role, Bytes>);

impl SmallFiles {
    fn get(&self, role: Role) -> Result<Bytes, String> {
        self.0.get(&role).cloned().ok_or_else(|| format!("its {role} is missing"))
    }

    fn get_or_empty(&self, role: Role) -> Bytes {
        self.0.get(&role).cloned().unwrap_or_default()
    }
}

/// What one thing was found to be.
pub(super) enum Judged {
    /// It is held already, or something newer is.
    Held,
    /// A document that may be put in place of the one that is held.
    Document(Box<CarriedDocument>),
    /// A proof set that proves; its archive is next.
    Provider(Box<CarriedSet>),
    /// A location that can be read; its archive is next.
    Module(Box<CarriedModule>),
}

/// A document of a bundle.
pub(super) struct CarriedDocument {
    key: Key,
    kept: KeptDocument,
    versions: Vec<Version>,
}

/// A proof set of a bundle.
pub(super) struct CarriedSet {
    package: Package,
    set: Arc<ProofSet>,
    age: Age,
    /// Whether an operator says that it is right, whatever was proven before.
    is_accepted: bool,
    /// Whether a key that the operator trusts signed the bundle.
    is_vouched_for: bool,
}

/// What is to have an archive.
pub(super) enum For {
    Provider(Box<CarriedSet>),
    Module(Box<CarriedModule>),
}

/// An archive that is read.
pub(super) enum Incoming {
    /// What it is for is held already.
    Held,
    /// Its bytes go into a stage.
    Staged(Box<Arriving>),
}

/// An archive that arrives.
pub(super) struct Arriving {
    of: For,
    staged: Staged,
    file: File,
}

/// Where the bytes of an archive are.
pub(in crate::mirror) enum Source {
    /// In a stage, and proven.
    Staged(Box<Verified<Staged>>),
    /// In the store, under its digest.
    Held(Blob),
}

fn store_failed(error: StoreError) -> String {
    format!("the store failed: {error}; {}", error.to_do())
}

impl Mirror {
    /// Judges one thing by its small files.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn judge_carried(
        &self,
        entry: &Entry,
        small: &SmallFiles,
        accept: &[What],
        standing: &Standing,
        now: Timestamp,
    ) -> Result<Judged, String> {
        match entry {
            Entry::Discovery { host, document } => {
                let kept = document_of(document, small, now)?;
                let services =
                    kept.discovery_for_clients().map_err(|why| format!("its document cannot be read: {why}"))?;
                drop::<Discovery>(services);
                self.judged_document(Key::Discovery(host.clone()), kept, Vec::new())
            }
            Entry::ProviderVersions { provider, document } => {
                let kept = document_of(document, small, now)?;
                let list: VersionList =
                    kept.as_versions().map_err(|why| format!("its document cannot be read: {why}"))?;
                let versions = list.versions.into_iter().map(|listed| listed.version).collect();
                self.judged_document(Key::ProviderVersions(provider.clone()), kept, versions)
            }
            Entry::ModuleVersions { module, document } => {
                let kept = document_of(document, small, now)?;
                let list = kept.as_module_versions().map_err(|why| format!("its document cannot be read: {why}"))?;
                drop::<ModuleVersionList>(list);
                self.judged_document(Key::ModuleVersions(self.terms().key_of(module)), kept, Vec::new())
            }
            Entry::Provider(entry) => self.judge_set(entry, small, accept, standing, now),
            Entry::Module(entry) => self.judge_module(entry, small, accept, now),
        }
    }

    fn judged_document(&self, key: Key, kept: KeptDocument, versions: Vec<Version>) -> Result<Judged, String> {
        if self.held_as_new(&key, &kept).map_err(store_failed)? {
            return Ok(Judged::Held);
        }
        Ok(Judged::Document(Box::new(CarriedDocument { key, kept, versions })))
    }

    fn judge_set(
        &self,
        entry: &ProviderEntry,
        small: &SmallFiles,
        accept: &[What],
        standing: &Standing,
        now: Timestamp,
    ) -> Result<Judged, String> {
        let (package, said) = (entry.package(), &entry.said);
        let terms = self.terms();
        let policy = terms.upstream(&package.provider.host).map_err(|e| e.to_string())?.settings.verification;
        let [body, sums] = [small.get(Role::Document)?, small.get(Role::Sums)?];
        let signature = small.get_or_empty(Role::Signature);
        let unreadable = |why: String| format!("its download document cannot be read: {why}");
        let document = DownloadDocument::parse(&body, &said.url, &package.platform).map_err(unreadable)?;
        if document.shasum != entry.archive.sha256 {
            let (named, carried) = (document.shasum, entry.archive.sha256);
            return Err(format!(
                "its download document names an archive with SHA-256 {named}, and the bundle has {carried}"
            ));
        }
        if !is_of(said, &package) {
            return Err(format!(
                "its download document came from {}, which is not where that of {package} is",
                said.asked
            ));
        }
        let filename = document.filename.as_str();
        let judged = judge(policy, &sums, &signature, &document.keys, filename, &document.shasum);
        let (proof, _) = judged.map_err(|verdict| {
            self.counters.unproven(&package.provider.host, verdict.word());
            format!("it does not prove: {}", relayed(&verdict.to_string()))
        })?;
        let signer = proof.how.fingerprint();
        if let (Some(told), Some(signer)) = (entry.signed_by.as_deref(), signer)
            && told != signer
        {
            return Err(format!("its manifest says that key {told} signed it, and key {signer} did"));
        }
        let fetched = said.fetched.min(now);
        let about = About {
            asked: said.asked.clone(),
            url: said.url.clone(),
            origins: Vec::new(),
            validators: Validators::default(),
            sums_validators: Validators::default(),
            signature_validators: Validators::default(),
            fetched,
            proof,
        };
        let set = ProofSet::new(about, body, sums, signature, &package).map_err(unreadable)?;
        if self.holds_as_new(&package, &set, said).map_err(store_failed)? {
            return Ok(Judged::Held);
        }
        let age = Age { checked: said.checked.min(now), gone: said.gone };
        let is_accepted = accept.iter().any(|what| match what {
            What::Provider(meant) => meant.of == package.provider && meant.versions.include(&package.version),
            What::Module(_) => false,
        });
        let is_vouched_for = matches!(standing, Standing::SignedBy(_));
        let set = Arc::new(set);
        Ok(Judged::Provider(Box::new(CarriedSet { package, set, age, is_accepted, is_vouched_for })))
    }

    fn judge_module(
        &self,
        entry: &ModuleEntry,
        small: &SmallFiles,
        accept: &[What],
        now: Timestamp,
    ) -> Result<Judged, String> {
        let location = kept_of(&entry.said, small.get(Role::Location)?, Bytes::new(), now);
        let carried = CarriedModule::judge(self, entry, location, accept, now)?;
        Ok(carried.map_or(Judged::Held, |carried| Judged::Module(Box::new(carried))))
    }
}

impl CarriedDocument {
    /// Puts it in place of the one that is held.
    pub(super) fn taken(self, mirror: &Mirror) -> Result<Outcome, String> {
        let Self { key, kept, versions } = self;
        let checked = kept.about.checked;
        if let Key::ProviderVersions(address) = &key {
            seen::note_versions(mirror, address, &versions, checked).map_err(store_failed)?;
        }
        mirror.write_document(&key, &kept.write(), checked, Durability::Synced).map_err(store_failed)?;
        let terms = mirror.terms();
        terms.absent.forget(|absent| {
            *absent == key
                || match (absent, &key) {
                    (Key::ProofSet(package), Key::ProviderVersions(address)) => package.provider == *address,
                    (Key::ModuleLocation(package), Key::ModuleVersions(address)) => package.module == *address,
                    _ => false,
                }
        });
        match &key {
            Key::ProviderVersions(address) => mirror.changed(address),
            Key::ModuleVersions(address) => mirror.module_changed(address),
            _ => {}
        }
        mirror.keep_to_the_limit();
        Ok(Outcome::Applied)
    }
}

impl Judged {
    /// Gets ready for the archive, which is next.
    pub(super) fn incoming(self, mirror: &Arc<Mirror>, file: &File) -> Result<Incoming, String> {
        let of = match self {
            Self::Held => return Ok(Incoming::Held),
            Self::Document(_) => return Err("it has an archive, and is a document".to_owned()),
            Self::Provider(set) => For::Provider(set),
            Self::Module(module) => For::Module(module),
        };
        let name = format!("carried~{}", file.sha256);
        let staged = || {
            // What an earlier run left of it is read anew in a moment.
            mirror.store.blobs.stage(&name)?.discard()?;
            let mut staged = mirror.store.blobs.stage(&name)?;
            let note = StagedNote { length: Some(file.bytes), ..StagedNote::default() };
            match staged.remember(note.clone(), file.bytes) {
                Err(full) if full.is_full() => {
                    mirror.make_room_on_disk(file.bytes, &full)?;
                    staged.remember(note, file.bytes)?;
                }
                remembered => remembered?,
            }
            Ok(staged)
        };
        let staged = staged().map_err(store_failed)?;
        Ok(Incoming::Staged(Box::new(Arriving { of, staged, file: *file })))
    }

    /// Takes in what has its archive in the store, under another name or since before a crash.
    pub(super) fn with_what_is_stored(self, mirror: &Mirror, now: Timestamp) -> Result<Outcome, String> {
        let (of, digest) = match self {
            Self::Held => return Ok(Outcome::Held),
            Self::Document(document) => return document.taken(mirror),
            Self::Provider(set) => {
                let digest = set.set.document.shasum;
                (For::Provider(set), digest)
            }
            Self::Module(module) => {
                let digest = module.digest();
                (For::Module(module), digest)
            }
        };
        let Some(blob) = mirror.store.blobs.get(&digest).map_err(store_failed)? else {
            return Err(format!(
                "its archive (SHA-256 {digest}) is not in the store, and did not come with it: it was refused with what it came with, or the bundle is a delta to an inventory of another store"
            ));
        };
        let (actual, fast) = blob.hashes().map_err(store_failed)?;
        if actual != digest {
            return Err(format!(
                "its archive is held, and damaged: its SHA-256 is {actual}, and should be {digest}; `larder verify` sets it aside"
            ));
        }
        let size_bytes = blob.size_bytes();
        of.taken(mirror, Source::Held(blob), fast, size_bytes, now)
    }
}

impl Arriving {
    /// Takes the next bytes.
    pub(super) fn append(&mut self, piece: &[u8]) -> Result<(), String> {
        self.staged.append(piece).map_err(store_failed)
    }

    /// Throws away what arrived.
    pub(super) fn discard(self) {
        if let Err(error) = self.staged.discard() {
            tracing::warn!(%error, "what was staged of a bundle could not be removed; it is swept in a day");
        }
    }
}

impl Incoming {
    /// Takes it in, now that all of it has arrived.
    pub(super) fn taken(self, mirror: &Mirror, now: Timestamp) -> Result<Outcome, String> {
        let Self::Staged(arriving) = self else { return Ok(Outcome::Held) };
        let Arriving { of, staged, file } = *arriving;
        let (actual, fast) = staged.hashes();
        let size_bytes = staged.written();
        let verified = Verified::by_digest(staged, actual, file.sha256).map_err(|verdict| verdict.to_string())?;
        of.taken(mirror, Source::Staged(Box::new(verified)), fast, size_bytes, now)
    }
}

impl For {
    fn taken(
        self,
        mirror: &Mirror,
        source: Source,
        fast: FastHash,
        size_bytes: u64,
        now: Timestamp,
    ) -> Result<Outcome, String> {
        match self {
            Self::Provider(set) => set.taken(mirror, source, fast, size_bytes, now),
            Self::Module(module) => module.taken(mirror, source, fast, size_bytes, now),
        }
    }
}

impl Source {
    /// Throws away what is staged, and tells why.
    pub(in crate::mirror) fn refused(self, why: String) -> String {
        if let Self::Staged(staged) = self
            && let Err(error) = staged.into_inner().discard()
        {
            tracing::warn!(%error, "what was staged of a bundle could not be removed; it is swept in a day");
        }
        why
    }
}

impl CarriedSet {
    fn taken(
        self,
        mirror: &Mirror,
        source: Source,
        fast: FastHash,
        size_bytes: u64,
        now: Timestamp,
    ) -> Result<Outcome, String> {
        if let Err(why) = self.admitted(mirror, now) {
            return Err(source.refused(why));
        }
        let Self { package, set, age, .. } = self;
        let digest = set.document.shasum;
        let committed = || {
            let _lock = mirror.digest_lock(&digest).lock();
            if let Source::Staged(verified) = source {
                mirror.store.blobs.publish(*verified)?;
                mirror.checked.lock().insert(digest);
                // Where it lies there without a name: what eviction does not know of, it cannot evict.
                mirror.store.index.archive_kept(&digest, size_bytes, now);
            }
            let kept = mirror.put_carried_set(&package, &set, age, now)?;
            mirror.name_it(&package, &kept, &set, fast, size_bytes, now)
        };
        committed().map_err(store_failed)?;
        mirror.terms().absent.forget(|key| *key == Key::ProofSet(package.clone()));
        mirror.changed(&package.provider);
        mirror.keep_to_the_limit();
        Ok(Outcome::Applied)
    }

    /// Holds it against what was proven before: the same verdicts as for what an upstream sends.
    fn admitted(&self, mirror: &Mirror, now: Timestamp) -> Result<(), String> {
        let Some(sums) = self.set.checksums() else { return Err("its SHA256SUMS cannot be read".to_owned()) };
        let fingerprint = self.set.proof().how.fingerprint();
        let Package { provider, version, .. } = &self.package;
        if self.is_accepted {
            let accepted = [(self.package.clone(), (*self.set).clone())];
            seen::accept(mirror, provider, &accepted, now).map_err(store_failed)?;
            mirror.settled(provider, version, AlarmKind::WaitsForAccept);
            return Ok(());
        }
        if !self.is_vouched_for && seen::is_stranger(mirror, provider, fingerprint).map_err(store_failed)? {
            mirror.alarm(provider, version, AlarmKind::WaitsForAccept, None, now);
            let signer = fingerprint.map_or_else(|| "nobody".to_owned(), |key| format!("key {key}"));
            return Err(format!(
                "{signer} signed it, which is none of the keys known for this provider, and no key that you trust signed the bundle; --accept {provider}@{version} believes it"
            ));
        }
        match seen::judge(mirror, &self.package, &sums, fingerprint, now).map_err(store_failed)? {
            History::Consistent => Ok(()),
            History::RepublishedByKnownKey { file } => {
                tracing::error!(package = %self.package, file, "ALARM: a bundle brings a version that was published anew, signed by a key known for the provider; the new set is served");
                mirror.alarm(provider, version, AlarmKind::Republished, Some(&relayed(&file)), now);
                Ok(())
            }
            History::RepublishedByStranger { file } => {
                let file = relayed(&file);
                mirror.counters.unproven(&provider.host, REPUBLISHED);
                mirror.alarm(provider, version, AlarmKind::WaitsForAccept, Some(&file), now);
                Err(format!(
                    "it was published anew: its SHA256SUMS give {file} another digest than was proven before, and no key known for this provider vouches for that; if its publisher did this, apply it with --accept {provider}@{version}"
                ))
            }
        }
    }
}

impl Mirror {
    /// Puts a set in place of the one that is held, which becomes its predecessor; synced.
    fn put_carried_set(
        &self,
        package: &Package,
        set: &Arc<ProofSet>,
        age: Age,
        now: Timestamp,
    ) -> Result<KeptSet, StoreError> {
        let key = Key::ProofSet(package.clone());
        let _lock = self.record_lock(&key).lock();
        let held = self.read_set(package)?.map(|held| Arc::unwrap_or_clone(held.kept));
        let predecessor = match held {
            None => None,
            // Nothing proves it, so nobody is led back to it.
            Some(held) if held.current.proof().how == How::Imported => {
                let file = held.current.document.filename.as_str();
                let before = held.current.document.shasum;
                if before != set.document.shasum && !self.is_packed_anew(package, before)? {
                    tracing::error!(%package, "ALARM: what was imported without signatures is not what a bundle proves; the bundle's is served from now on");
                    self.alarm(&package.provider, &package.version, AlarmKind::ImportedDiffers, Some(file), now);
                }
                None
            }
            Some(held) if set.names_the_same_files_as(&held.current) => held.predecessor,
            Some(held) if unless_gone(self.store.blobs.holds(&held.current.document.shasum))? => {
                Some((held.current, now))
            }
            Some(held) => held.predecessor,
        };
        let kept = KeptSet { predecessor, current: Arc::clone(set), age };
        let size_bytes = self.store.records.put(&key, &kept.write(), Durability::Synced)?;
        self.store.index.document_kept(&key, size_bytes, now);
        Ok(kept)
    }
}

fn document_of(document: &Document, small: &SmallFiles, now: Timestamp) -> Result<KeptDocument, String> {
    let kept = kept_of(&document.said, small.get(Role::Document)?, small.get_or_empty(Role::Dropped), now);
    if !kept.dropped.is_empty() && serde_json::from_slice::<serde::de::IgnoredAny>(&kept.dropped).is_err() {
        return Err("its list of what was dropped is no JSON".to_owned());
    }
    Ok(kept)
}

fn kept_of(said: &Said, body: Bytes, dropped: Bytes, now: Timestamp) -> KeptDocument {
    let about = documents::About {
        asked: said.asked.clone(),
        url: said.url.clone(),
        origins: Vec::new(),
        validators: Validators::default(),
        // Nothing is from a time that has not come.
        fetched: said.fetched.min(now),
        checked: said.checked.min(now),
        gone: said.gone,
        carried: true,
    };
    KeptDocument { about, body, dropped, _room: Room::default() }
}

/// Whether a URL is one that the download document of a package is asked for at (PROTOCOL 2.1).
fn is_of(said: &Said, package: &Package) -> bool {
    let Some(segments) = said.asked.path_segments() else { return false };
    let segments: Vec<&str> = segments.collect();
    let Some([namespace, type_, version, "download", os, arch]) = segments.last_chunk::<6>() else { return false };
    let Package { provider, version: wanted, platform } = package;
    // Its upstream may spell it in another way.
    let spelled = percent_encoding::percent_decode_str(version).decode_utf8_lossy();
    namespace.eq_ignore_ascii_case(provider.namespace.as_str())
        && type_.eq_ignore_ascii_case(provider.type_.as_str())
        && Version::parse_lenient(&spelled).is_ok_and(|version| version == *wanted)
        && (*os, *arch) == (platform.os.as_str(), platform.arch.as_str())
}
