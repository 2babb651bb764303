//! A proof set: a download document with its SHA256SUMS and signature, verified together and stored as one file with
//! its predecessor (promise 2).

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::address::{Address, FileName, Package, Platform};
use crate::clock::Timestamp;
use crate::digest::{Digest, DigestPrefix, FastHash};
use crate::mirror::Library;
use crate::mirror::freshness::Confirmation;
use crate::mirror::freshness::Revalidatable;
use crate::mirror::library::alarms::NewAlarm;
use crate::mirror::library::default_if_store_unavailable;
use crate::mirror::library::file_refs::ProofFile;
use crate::mirror::library::record_format as parts;
use crate::mirror::library::{Catalog, NameRecord, StoredArchive};
use crate::store::{Durability, IndexEntry, Key, ReadOutcome, RecordStep, StoreError};
use crate::upstream::backoff::Origin;
use crate::upstream::outbound::origin;
use crate::upstream::providers::DownloadDocument;
use crate::upstream::request::Validators;
use crate::verify::{Checksums, Proof, ProofBasis, VerificationPolicy, digests_to_lock, platform_of};

const PREDECESSOR_LIFETIME_SECONDS: u64 = 24 * 3600;

/// A download document, its SHA256SUMS and its signature, verified together.
#[derive(Debug, Clone)]
pub struct ProofSet {
    pub(in crate::mirror) metadata: ProofSetMetadata,
    pub(in crate::mirror) body: Bytes,
    /// SHA256SUMS, byte for byte.
    pub sums: Bytes,
    /// The signature, byte for byte; empty where the upstream has none and needs none.
    pub signature: Bytes,
    /// The parsed download document.
    pub document: DownloadDocument,
    sums_digest: Digest,
    signature_digest: Digest,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProofSetMetadata {
    pub asked: Url,
    pub url: Url,
    /// The origins contacted for all three, redirects included.
    #[serde(default)]
    pub origins: Vec<Origin>,
    pub validators: Validators,
    pub sums_validators: Validators,
    pub signature_validators: Validators,
    pub fetched: Timestamp,
    pub proof: Proof,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProofSetFile {
    Archive,
    Proof(ProofFile),
}

impl ProofSet {
    pub(in crate::mirror) fn new(
        metadata: ProofSetMetadata,
        body: Bytes,
        sums: Bytes,
        signature: Bytes,
        package: &Package,
    ) -> Result<Self, String> {
        let document = DownloadDocument::parse(&body, &metadata.url, &package.platform)?;
        let (sums_digest, signature_digest) = (Digest::of(&sums), Digest::of(&signature));
        Ok(Self { metadata, body, sums, signature, document, sums_digest, signature_digest })
    }

    /// The SHA-256 of SHA256SUMS.
    pub fn sums_digest(&self) -> Digest {
        self.sums_digest
    }

    /// The SHA-256 of the signature.
    pub fn signature_digest(&self) -> Digest {
        self.signature_digest
    }

    /// The parsed checksums, which were verified before the set was stored.
    pub fn checksums(&self) -> Option<Checksums> {
        Checksums::parse(&self.sums).ok()
    }

    /// The lines of SHA256SUMS.
    pub fn sums_lines(&self) -> Vec<(String, Digest)> {
        self.checksums().iter().flat_map(Checksums::iter).map(|(name, digest)| (name.to_owned(), digest)).collect()
    }

    /// The digests of its SHA256SUMS that a lock file may have: all that a client takes, if a key signed them.
    pub fn signed_digests(&self) -> Vec<Digest> {
        match self.metadata.proof.how {
            ProofBasis::Signature { .. } => digests_to_lock(&self.sums),
            ProofBasis::NoKeys | ProofBasis::Checksum | ProofBasis::Imported | ProofBasis::Tree(_) => Vec::new(),
        }
    }

    /// The `zh:` hashes that an `init` by the registry protocol adds to a lock file: those of SHA256SUMS.
    pub fn hashes_of_init(&self) -> Vec<String> {
        let own = self.document.shasum;
        digests_to_lock(&self.sums).into_iter().chain([own]).map(|digest| digest.zh()).collect()
    }

    /// The archives of all platforms that SHA256SUMS names in the conventional way: platform, file and digest. `versions` are
    /// all spellings of the version.
    pub fn conventional_archives(&self, type_: &str, versions: &[&str]) -> Vec<(Platform, FileName, Digest)> {
        let archive = |(name, digest): (&str, Digest)| {
            let (os, arch) = platform_of(name, type_, versions)?;
            Some((Platform::new(os, arch).ok()?, FileName::parse(name).ok()?, digest))
        };
        self.checksums().iter().flat_map(Checksums::iter).filter_map(archive).collect()
    }

    /// Returns true if it was imported without signatures, on the operator's word.
    pub fn was_imported(&self) -> bool {
        self.metadata.proof.how == ProofBasis::Imported
    }

    /// The time when it was fetched and verified.
    pub fn fetched(&self) -> Timestamp {
        self.metadata.fetched
    }

    pub(in crate::mirror) fn proof(&self) -> &Proof {
        &self.metadata.proof
    }

    pub(in crate::mirror) fn file(&self, prefix: &DigestPrefix) -> Option<ProofSetFile> {
        if prefix.matches(&self.document.shasum) {
            Some(ProofSetFile::Archive)
        } else if prefix.matches(&self.sums_digest) {
            Some(ProofSetFile::Proof(ProofFile::Sums))
        } else if prefix.matches(&self.signature_digest) && !self.signature.is_empty() {
            Some(ProofSetFile::Proof(ProofFile::Signature))
        } else {
            None
        }
    }

    /// The entry for its archive, in the name of its package.
    pub fn named_archive(&self, fast: FastHash, size_bytes: u64, stored_at: Timestamp) -> StoredArchive {
        let (document, proof) = (&self.document, self.proof().clone());
        let origin = origin(&document.archive_url);
        StoredArchive::new((document.shasum, fast), document.filename.clone(), size_bytes, proof, origin, stored_at)
    }

    /// True if it is the other one, byte for byte.
    pub fn is_same(&self, other: &Self) -> bool {
        self.has_same_files(other) && self.body == other.body
    }

    pub(in crate::mirror) fn has_same_files(&self, other: &Self) -> bool {
        self.document.shasum == other.document.shasum
            && self.sums_digest == other.sums_digest
            && self.signature_digest == other.signature_digest
    }
}

impl Revalidatable for Arc<StoredProofSet> {
    fn origins(&self) -> Vec<Origin> {
        let ProofSet { metadata, document, .. } = &*self.current;
        let urls = [Some(&metadata.asked), Some(&document.sums_url), document.signature_url.as_ref()];
        let mut origins = metadata.origins.clone();
        origins.extend(urls.into_iter().flatten().map(Origin::of));
        origins.sort();
        origins.dedup();
        origins
    }
}

/// A stored set with its predecessor.
#[derive(Debug, Clone)]
pub struct StoredProofSet {
    /// The set to serve.
    pub current: Arc<ProofSet>,
    /// The set before it, and the time of its replacement.
    pub predecessor: Option<(Arc<ProofSet>, Timestamp)>,
    pub confirmed: Confirmation,
}

#[derive(Serialize, Deserialize)]
struct ProofSetRecord {
    checked: Timestamp,
    gone: bool,
    current: ProofSetMetadata,
    predecessor: Option<(ProofSetMetadata, Timestamp)>,
}

/// A stored set, and its predecessor where that must be served instead.
#[derive(Debug, Clone)]
pub struct UsableProofSet {
    pub stored_set: Arc<StoredProofSet>,
    /// The predecessor, if its archive is stored and the current one's is not.
    pub fallback: Option<Arc<ProofSet>>,
}

impl UsableProofSet {
    /// Drops the sets that do not meet the policy; `None` if the current one does not.
    pub fn meeting_policy(self, policy: VerificationPolicy) -> Option<Self> {
        let is_met = |set: &Arc<ProofSet>| policy.is_met_by(&set.metadata.proof.how);
        if !is_met(&self.stored_set.current) {
            return None;
        }
        let fallback = self.fallback.filter(is_met);
        let document = match &self.stored_set.predecessor {
            Some((predecessor, _)) if !is_met(predecessor) => {
                Arc::new(StoredProofSet { predecessor: None, ..(*self.stored_set).clone() })
            }
            Some(_) | None => self.stored_set,
        };
        Some(Self { stored_set: document, fallback })
    }

    /// The set to serve while upstream cannot be asked.
    pub fn offline_set(&self) -> &Arc<ProofSet> {
        self.fallback.as_ref().unwrap_or(&self.stored_set.current)
    }

    /// Finds the set with the file that a digest names. The predecessor's digests are served for a day, and longer
    /// while only its archive is stored.
    pub fn find(&self, prefix: &DigestPrefix, now: Timestamp) -> Option<(Arc<ProofSet>, ProofSetFile)> {
        let lately = |replaced: Timestamp| now.since(replaced).as_secs() < PREDECESSOR_LIFETIME_SECONDS;
        let predecessor = self.stored_set.predecessor.as_ref().filter(|(_, replaced)| lately(*replaced));
        let sets = [Some(&self.stored_set.current), predecessor.map(|(set, _)| set), self.fallback.as_ref()];
        sets.into_iter().flatten().find_map(|set| Some((Arc::clone(set), set.file(prefix)?)))
    }

    /// Finds the set whose SHA256SUMS or signature has this digest.
    pub fn with_proof_file(&self, file: ProofFile, prefix: &DigestPrefix, now: Timestamp) -> Option<Arc<ProofSet>> {
        self.find(prefix, now).filter(|(_, found)| *found == ProofSetFile::Proof(file)).map(|(set, _)| set)
    }
}

impl StoredProofSet {
    pub fn read(record: Vec<u8>, package: &Package) -> Option<Self> {
        let (metadata, parts) = parts::read::<ProofSetRecord>(record)?;
        let mut parts = parts.into_iter();
        let mut set = |metadata| ProofSet::new(metadata, parts.next()?, parts.next()?, parts.next()?, package).ok();
        let current = Arc::new(set(metadata.current)?);
        let predecessor = match metadata.predecessor {
            Some((before, replaced)) => Some((Arc::new(set(before)?), replaced)),
            None => None,
        };
        if parts.next().is_some() {
            return None;
        }
        Some(Self { current, predecessor, confirmed: Confirmation { checked: metadata.checked, gone: metadata.gone } })
    }

    pub fn write(&self) -> Vec<u8> {
        let predecessor = self.predecessor.as_ref();
        let record = ProofSetRecord {
            checked: self.confirmed.checked,
            gone: self.confirmed.gone,
            current: self.current.metadata.clone(),
            predecessor: predecessor.map(|(set, replaced)| (set.metadata.clone(), *replaced)),
        };
        let parts: Vec<&[u8]> =
            self.sets().flat_map(|set| [&set.body[..], &set.sums[..], &set.signature[..]]).collect();
        parts::write(&record, &parts)
    }

    /// The current set, then its predecessor.
    pub fn sets(&self) -> impl DoubleEndedIterator<Item = &Arc<ProofSet>> {
        [&self.current].into_iter().chain(self.predecessor.as_ref().map(|(set, _)| set))
    }
}

impl Library {
    /// Reads the stored set, however it was verified.
    pub fn read_set(&self, package: &Package) -> Result<Option<UsableProofSet>, StoreError> {
        let parse = |record| StoredProofSet::read(record, package);
        let read = self.store.records.read_as(&Key::ProofSet(package.clone()), parse)?;
        let Some(stored_set) = read.intact() else { return Ok(None) };
        let fallback = self.only_predecessor_is_at_hand(&stored_set)?;
        Ok(Some(UsableProofSet { stored_set: Arc::new(stored_set), fallback }))
    }

    /// Replaces the stored sets of a package by what `decide` makes of them, in one step; `None` leaves them. The time
    /// is that of their last use. Returns the other result of `decide`, and the result of the write: a set that could not
    /// be stored is still of use.
    ///
    /// # Errors
    /// `decide` failed.
    pub fn change_set<T>(
        &self,
        package: &Package,
        durability: Durability,
        mut decide: impl FnMut(
            &mut SetStep<'_>,
            Result<Option<StoredProofSet>, StoreError>,
        ) -> Result<(T, Option<(StoredProofSet, Timestamp)>), StoreError>,
    ) -> Result<(T, Result<(), StoreError>), StoreError> {
        let key = Key::ProofSet(package.clone());
        // Looked up before the step, which reads records only.
        let local = self.local_sets(package)?;
        self.change_with_alarms(&Address::from(&package.provider), &key, |step, alarms| {
            let stored = step.read_as(&key, |record| StoredProofSet::read(record, package)).map(ReadOutcome::intact);
            let (decided, set) = decide(&mut SetStep { step: &*step, package, alarms, local: &local }, stored)?;
            if let Some((set, last_use)) = set {
                step.put(&key, set.write(), durability, IndexEntry::Document(last_use));
            }
            Ok(decided)
        })
    }

    fn local_sets(&self, package: &Package) -> Result<LocalSets, StoreError> {
        let Some(UsableProofSet { stored_set, fallback }) = default_if_store_unavailable(self.read_set(package))?
        else {
            return Ok(LocalSets::default());
        };
        let current = stored_set.current.document.shasum;
        let current = (fallback.is_none() && self.is_at_hand(&current)?).then_some(current);
        Ok(LocalSets { current, fallback: fallback.map(|set| set.document.shasum) })
    }

    fn only_predecessor_is_at_hand(&self, stored_set: &StoredProofSet) -> Result<Option<Arc<ProofSet>>, StoreError> {
        let Some((predecessor, _)) = stored_set.predecessor.as_ref() else { return Ok(None) };
        let is_at_hand = |set: &ProofSet| self.is_at_hand(&set.document.shasum);
        Ok((!is_at_hand(&stored_set.current)? && is_at_hand(predecessor)?).then(|| Arc::clone(predecessor)))
    }
}

/// One replacement of the stored sets of a package.
pub struct SetStep<'a> {
    step: &'a RecordStep<'a>,
    package: &'a Package,
    /// The alarms to raise with it.
    pub alarms: &'a mut Vec<NewAlarm>,
    /// The sets whose archives are on this machine.
    pub local: &'a LocalSets,
}

/// The stored sets whose archives were on this machine before a step.
#[derive(Debug, Default)]
pub struct LocalSets {
    /// The archive of the current set, if it is here.
    pub current: Option<Digest>,
    /// The archive of the predecessor, if that one alone is here.
    pub fallback: Option<Digest>,
}

impl SetStep<'_> {
    /// The name of the package.
    pub fn name_record(&self) -> Result<NameRecord, StoreError> {
        Catalog::name_record_in(self.step, self.package)
    }

    /// The predecessor of a set that replaces the stored ones: the set before it, unless larder has the archive of an older
    /// one only (promise 2). A set without signatures never becomes a predecessor.
    pub fn predecessor_of(
        &self,
        set: &ProofSet,
        stored: Option<StoredProofSet>,
        now: Timestamp,
    ) -> Result<Option<(Arc<ProofSet>, Timestamp)>, StoreError> {
        let Some(StoredProofSet { current, predecessor, .. }) = stored else { return Ok(None) };
        if current.was_imported() {
            return Ok(None);
        }
        if set.has_same_files(&current) {
            return Ok(predecessor);
        }
        let name = self.name_record()?;
        let is_stored = |set: &ProofSet| name.get(&set.document.shasum).is_some();
        let has_older_only = predecessor.as_ref().is_some_and(|(older, _)| {
            self.local.fallback == Some(older.document.shasum) || (!is_stored(&current) && is_stored(older))
        });
        Ok(if has_older_only { predecessor } else { Some((current, now)) })
    }
}

/// The detail of an `imported-differs` alarm.
pub fn imported_differs(imported: Digest, verified: Digest) -> String {
    format!("imported without signatures with SHA-256 {imported}; the verified one, {verified}, is served")
}
