//! The packages of a bundle: proof sets of providers and locations of modules, each with its archive. A set is verified
//! and compared with the first-seen record; a module's tree is digested again, as if it had been fetched.

use std::sync::Arc;

use bytes::Bytes;

use crate::address::{Artifact, ModulePackage, Package, Version};
use crate::bundle::{ApplyOutcome, FetchOrigin, FileRole, ModuleEntry, ProviderEntry, SignatureStatus};
use crate::clock::Timestamp;
use crate::digest::{Digest, FastHash, Hasher};
use crate::mirror::Library;
use crate::mirror::alarm_kind::AlarmKind;
use crate::mirror::documents::module_location::subdir_in_archive;
use crate::mirror::freshness::Confirmation;
use crate::mirror::library::alarms::{AlarmFinding, NewAlarm};
use crate::mirror::library::default_if_store_unavailable;
use crate::mirror::library::intake::ArchiveBytes;
use crate::mirror::library::module_history::{self, ComparisonPurpose, ModuleTree, TreeComparison};
use crate::mirror::library::proof_set::{ProofSet, StoredProofSet, imported_differs};
use crate::mirror::library::provider_history::Admission;
use crate::mirror::library::stored_document::StoredDocument;
use crate::mirror::library::{
    AcceptScope, AcceptedFinding, AlarmEvent, AlarmPart, AlarmSubject, Observation, Signer, StoredArchive, observation,
};
use crate::mirror::transfer::bundle::entry::{
    AcceptedEntry, EntryCriteria, EntryRefusal, SmallFiles, document_from_bundle, store_failed,
};
use crate::mirror::transfer::{TransferStage, set_of_files};
use crate::packaging::{ArchiveFormat, PACKER, PackResult, Tree, TreeEntry, TreeLimits, TreePath, pack, unpack};
use crate::store::{Blob, Durability, Key, StoreError};
use crate::upstream::error::sanitized;
use crate::upstream::providers::DownloadDocument;
use crate::upstream::request::Validators;
use crate::verify::{PackedTree, verify_proof_set};

/// The archive of an entry, which has the digest that the manifest names.
pub(super) struct ArrivedArchive {
    source: ArchiveSource,
    digest: Digest,
    fast: FastHash,
    size_bytes: u64,
}

enum ArchiveSource {
    Staged(Box<TransferStage>),
    /// In the store, under another name or since before a crash.
    Stored(Blob),
}

impl ArrivedArchive {
    /// Takes a staged archive. It is compared with the digest when it is committed.
    pub(super) fn staged(stage: TransferStage, digest: Digest) -> Self {
        let ((_, fast), size_bytes) = (stage.hashes(), stage.written());
        Self { source: ArchiveSource::Staged(Box::new(stage)), digest, fast, size_bytes }
    }

    /// Opens and verifies an archive of the store. `missing` explains an absent one.
    pub(super) fn stored(library: &Library, digest: Digest, missing: impl FnOnce() -> String) -> Result<Self, String> {
        let blob = library.open_file(&digest).map_err(store_failed)?.ok_or_else(missing)?;
        let (actual, fast) = blob.hashes().map_err(store_failed)?;
        if actual != digest {
            return Err(format!(
                "its stored archive is damaged: its SHA-256 is {actual}, and should be {digest}; `larder verify` quarantines it"
            ));
        }
        Ok(Self { digest, fast, size_bytes: blob.size_bytes(), source: ArchiveSource::Stored(blob) })
    }

    fn into_archive_bytes(self) -> Result<ArchiveBytes, String> {
        match self.source {
            ArchiveSource::Stored(_) => Ok(ArchiveBytes::Stored),
            ArchiveSource::Staged(stage) => stage.verify(self.digest).map_err(|verdict| verdict.to_string()),
        }
    }
}

/// A verified proof set of a bundle. Its archive follows.
pub(super) struct BundledSet {
    package: Package,
    set: Arc<ProofSet>,
    confirmed: Confirmation,
    /// True if an operator accepts it whatever was verified before.
    is_accepted: bool,
    /// True if a key that the operator trusts signed the bundle.
    is_vouched_for: bool,
}

impl BundledSet {
    /// Verifies a set by its files. `None` if it, or a newer one, is stored already.
    ///
    /// # Errors
    /// The reason that it is refused.
    pub(super) fn check(
        library: &Library,
        entry: &ProviderEntry,
        small_files: &SmallFiles,
        criteria: &EntryCriteria<'_>,
    ) -> Result<Option<AcceptedEntry>, String> {
        let (package, fetch_origin, now) = (entry.package(), &entry.said, criteria.now);
        let config = library.runtime.config();
        let policy = config.upstream(&package.provider.host).map_err(|e| e.to_string())?.settings.verification;
        let [body, sums] = [small_files.get(FileRole::Document)?, small_files.get(FileRole::Sums)?];
        let signature = small_files.get_or_empty(FileRole::Signature);
        let unreadable = |reason: String| format!("its download document cannot be read: {reason}");
        let document = DownloadDocument::parse(&body, &fetch_origin.url, &package.platform).map_err(unreadable)?;
        if document.shasum != entry.archive.sha256 {
            let (named, actual) = (document.shasum, entry.archive.sha256);
            return Err(format!(
                "its download document names an archive with SHA-256 {named}, but the bundle has {actual}"
            ));
        }
        if !is_document_url_of(fetch_origin, &package) {
            return Err(format!(
                "its download document came from {}, which is not that of {package}",
                fetch_origin.asked
            ));
        }
        let filename = document.name_in_sums.as_str();
        let verified = verify_proof_set(policy, &sums, &signature, &document.keys, filename, &document.shasum);
        let (proof, _) = verified.map_err(|verdict| {
            library.runtime.counters.count_unverified(&package.provider.host, verdict.metric_label());
            format!("verification failed: {}", sanitized(&verdict.to_string()))
        })?;
        let signer = proof.how.fingerprint();
        if let (Some(claimed), Some(signer)) = (entry.signed_by.as_deref(), signer)
            && claimed != signer
        {
            return Err(format!("its manifest names key {claimed}, but key {signer} signed it"));
        }
        let fetched = fetch_origin.fetched.min(now);
        let urls = [fetch_origin.asked.clone(), fetch_origin.url.clone()];
        let set = set_of_files(&package, urls, fetched, proof, [body, sums, signature]).map_err(unreadable)?;
        let confirmed = Confirmation { checked: fetch_origin.checked.min(now), gone: fetch_origin.gone };
        if library.has_set_or_newer(&package, &set, confirmed, now).map_err(store_failed)? {
            return Ok(None);
        }
        let is_accepted = criteria.is_accepted(library, &Artifact::from(&package));
        let is_vouched_for = matches!(criteria.signature_status, SignatureStatus::SignedBy(_));
        let accepted = Self { package, set: Arc::new(set), confirmed, is_accepted, is_vouched_for };
        Ok(Some(AcceptedEntry::Provider(Box::new(accepted))))
    }

    /// Commits the set with its archive.
    ///
    /// # Errors
    /// The reason that it is refused.
    pub(super) fn commit(
        self,
        library: &Library,
        arrived: ArrivedArchive,
        now: Timestamp,
    ) -> Result<ApplyOutcome, EntryRefusal> {
        let note = self.check_history(library, now)?;
        let Self { package, set, confirmed, .. } = self;
        let archive = set.named_archive(arrived.fast, arrived.size_bytes, now);
        let record_proof = || library.replace_set(&package, &set, confirmed, now);
        let bytes = arrived.into_archive_bytes()?;
        let committed = library.commit(&package, archive, bytes, record_proof).map_err(store_failed)?;
        let outcome = if committed.is_some() { ApplyOutcome::Applied { note } } else { ApplyOutcome::Held };
        library.runtime.config().not_found.remove(&Key::ProofSet(package.clone()));
        library.enforce_size_limit();
        library.require_kept(&(&package).into()).map_err(store_failed)?;
        Ok(outcome)
    }

    /// Compares the set with the first-seen record, with the verdicts for a set from upstream. Returns a note for the
    /// operator, if any.
    fn check_history(&self, library: &Library, now: Timestamp) -> Result<Option<String>, EntryRefusal> {
        let Some(sums) = self.set.checksums() else { return Err("its SHA256SUMS cannot be read".to_owned().into()) };
        let Package { provider, version, .. } = &self.package;
        let accept = format!("{provider}@{version}");
        let refused = |reason: String| EntryRefusal {
            why: format!("{reason}; if the publisher released this, apply it with --accept {accept}"),
            accept: Some(accept.clone()),
        };
        let seen = observation(&self.package, &self.set, &sums);
        if self.is_accepted {
            // The bundle in the operator's hands is what was decided about.
            let accepted = library.histories.accept(provider, &[seen], AcceptScope::Version, |_, _| false);
            accepted.map_err(store_failed)?;
            let signer = self.set.proof().how.fingerprint().map(str::to_owned);
            let found = AcceptedFinding::one(self.package.platform.clone(), signer);
            let accepted = AlarmEvent::Accepted {
                scope: AcceptScope::Version,
                findings: &[(version.clone(), found)].into_iter().collect(),
            };
            library.alarms.resolve(&provider.into(), &accepted);
            return Ok(None);
        }
        let keys = library.histories.keys_of(provider).map_err(store_failed)?.unwrap_or_default();
        let key = seen.signer.key();
        let is_known = key.is_some_and(|key| keys.contains(key));
        if !self.is_vouched_for && !is_known && !keys.keys().is_empty() {
            let signer = key.map_or_else(|| "none".to_owned(), |key| format!("key {key}"));
            let reason =
                format!("its signer ({signer}) is not known for this provider, and no trusted key signed the bundle");
            let part = AlarmPart::Platform(self.package.platform.clone());
            let subject = AlarmSubject { part, ..AlarmKind::WaitsForAccept.of(version) };
            let facts = seen.facts().into_iter().collect();
            library.raise_alarm(
                provider,
                subject,
                AlarmFinding { detail: format!("in a bundle: {reason}"), facts },
                now,
            );
            return Err(refused(reason));
        }
        // A bundle without a trusted signature cannot introduce a key for a provider.
        let signer = if self.is_vouched_for || is_known { seen.signer.clone() } else { Signer::NotChecked };
        match library.admit_blocking(&Observation { signer, ..seen }, now).map_err(store_failed)? {
            Ok(Admission::Consistent) => Ok(None),
            Ok(Admission::HistoryUnavailable) => Err(store_failed(StoreError::Unavailable).into()),
            Ok(Admission::Changed(change)) => Ok(Some(format!(
                "it was published again, signed by a known key: its proof set {change}; lock files with the old hashes refuse it"
            ))),
            Err(reason) => Err(refused(reason.to_string())),
        }
    }
}

impl Library {
    /// Replaces the stored set, which becomes the previous one; synced. False if a newer set was stored since the
    /// verification.
    fn replace_set(
        &self,
        package: &Package,
        set: &Arc<ProofSet>,
        confirmed: Confirmation,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let ((is_replaced, is_import_replaced), written) =
            self.change_set(package, Durability::Synced, |step, stored| {
                let (stored, name) = (stored?, step.name_record()?);
                let other = stored.as_ref().filter(|stored| !set.is_same(&stored.current));
                let is_later = |stored: &StoredProofSet| stored.confirmed.is_confirmed_after(confirmed, now);
                if other
                    .is_some_and(|other| is_later(other) && step.local.current == Some(other.current.document.shasum))
                {
                    return Ok(((false, false), None));
                }
                let imported =
                    other.filter(|other| other.current.was_imported()).map(|other| other.current.document.shasum);
                let differing =
                    imported.filter(|imported| *imported != set.document.shasum && !name.is_repacked(imported));
                step.alarms.extend(differing.map(|imported| NewAlarm {
                    subject: AlarmKind::ImportedDiffers.of(&package.version),
                    finding: imported_differs(imported, set.document.shasum).into(),
                    time: now,
                }));
                let confirmed = match &stored {
                    Some(stored) if other.is_none() && is_later(stored) => stored.confirmed,
                    _ => confirmed,
                };
                let predecessor = step.predecessor_of(set, stored, now)?;
                let replaced = StoredProofSet { predecessor, current: Arc::clone(set), confirmed };
                Ok(((true, differing.is_some()), Some((replaced, now))))
            })?;
        if is_import_replaced {
            tracing::error!(%package, "ALARM: an unsigned import differs from a bundle's verified archive; the bundle's is served from now on");
        }
        written.map(|()| is_replaced)
    }

    /// True if this set or a newer one is stored, with its archive.
    pub(super) fn has_set_or_newer(
        &self,
        package: &Package,
        set: &ProofSet,
        confirmed: Confirmation,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let Some(stored) = self.read_set(package)? else { return Ok(false) };
        let current = &stored.stored_set.current;
        let is_same = current.is_same(set);
        Ok((is_same || stored.stored_set.confirmed.is_confirmed_after(confirmed, now))
            && self.is_stored_here(package, current.document.shasum)?)
    }

    /// True if this larder has an archive of a package, and its file is on this machine.
    pub(super) fn is_stored_here(&self, artifact: impl Into<Artifact>, digest: Digest) -> Result<bool, StoreError> {
        let artifact = artifact.into();
        let is_here = self.is_stored(&artifact, &digest)? && default_if_store_unavailable(self.is_at_hand(&digest))?;
        if is_here {
            self.require_kept(&artifact)?;
        }
        Ok(is_here)
    }
}

/// True if a URL is a download document URL of the package (provider registry protocol).
fn is_document_url_of(fetch_origin: &FetchOrigin, package: &Package) -> bool {
    let Some(segments) = fetch_origin.asked.path_segments() else { return false };
    let segments: Vec<&str> = segments.collect();
    let Some([namespace, type_, version, "download", os, arch]) = segments.last_chunk::<6>() else { return false };
    let Package { provider, version: stored_version, platform } = package;
    // Upstream may spell the version in another way.
    let spelled = percent_encoding::percent_decode_str(version).decode_utf8_lossy();
    namespace.eq_ignore_ascii_case(provider.namespace.as_str())
        && type_.eq_ignore_ascii_case(provider.type_.as_str())
        && Version::parse_of_module(&spelled).is_ok_and(|version| version == *stored_version)
        && (*os, *arch) == (platform.os.as_str(), platform.arch.as_str())
}

/// A version of a bundle whose location was parsed. Its archive follows.
pub(super) struct BundledModule {
    package: ModulePackage,
    /// The canonical spelling, under which it is stored.
    key: ModulePackage,
    location: StoredDocument,
    origin: String,
    claimed_tree: ModuleTree,
    /// True if an operator accepts it whatever was seen before.
    is_accepted: bool,
}

impl BundledModule {
    /// Judges a version of a bundle by its location. `None` if it is stored already.
    ///
    /// # Errors
    /// The reason that it is refused.
    pub(super) fn check(
        library: &Library,
        entry: &ModuleEntry,
        small_files: &SmallFiles,
        criteria: &EntryCriteria<'_>,
    ) -> Result<Option<AcceptedEntry>, String> {
        let (package, now) = (entry.package(), criteria.now);
        let location = document_from_bundle(&entry.said, small_files.get(FileRole::Location)?, Bytes::new(), now);
        let key = library.runtime.config().key_of_package(&package);
        let location_document = Arc::new(location.clone()).as_location(&package).map_err(|e| e.to_string())?;
        if let Some(subdir) = &entry.subdir {
            // Part of a location, which is sent as a header.
            let is_one = subdir.bytes().all(|byte| byte.is_ascii_graphic()) && !subdir.contains(['?', '#']);
            TreePath::parse(subdir.as_bytes())
                .ok()
                .filter(|path| is_one && !path.is_root())
                .ok_or("its subdir is not a path")?;
        }
        drop(subdir_in_archive(&package, location_document.parsed.subdir.as_ref()).map_err(|e| e.to_string())?);
        let is_stored = || -> Result<bool, StoreError> {
            let first_seen = module_history::read_first_seen(library, &key)?.intact();
            Ok(first_seen.is_some_and(|seen| seen.tree.packed.tree_digest == entry.tree)
                && library.is_stored_here(&key, entry.archive.sha256)?
                && library.has_document_or_newer(&Key::location(&key), &location, now)?)
        };
        if is_stored().map_err(store_failed)? {
            return Ok(None);
        }
        let claimed_tree = ModuleTree {
            packed: PackedTree {
                tree_digest: entry.tree,
                commit: entry.commit.clone(),
                packer: entry.packer,
                source: entry.source,
                subdir: entry.subdir.clone(),
            },
            validators: Validators::default(),
            at: entry.first_seen.min(now),
        };
        let origin = entry.origin.clone();
        let is_accepted = criteria.is_accepted(library, &Artifact::Module(key.clone()));
        let accepted = Self { package, key, location, origin, claimed_tree, is_accepted };
        Ok(Some(AcceptedEntry::Module(Box::new(accepted))))
    }

    /// Commits the version in this order: first-seen record, archive, location, name.
    ///
    /// # Errors
    /// The reason that it is refused.
    pub(super) fn commit(
        self,
        library: &Library,
        arrived: ArrivedArchive,
        now: Timestamp,
    ) -> Result<ApplyOutcome, EntryRefusal> {
        self.check_tree(library, &arrived)?;
        let Self { package, key, location, origin, claimed_tree, is_accepted } = self;
        let comparison = if is_accepted {
            module_history::accept(library, &key, &claimed_tree).map(|_| TreeComparison::Consistent)
        } else {
            module_history::compare(library, &key, &claimed_tree, ComparisonPurpose::Store)
        };
        // Not `larder accept`: that would ask upstream, but the tree is in the bundle.
        let accept_command = format!("`larder bundle apply` with `--accept {key}`");
        let comparison = comparison.map_err(store_failed)?;
        library.require_first_seen_tree(&package, &key, &claimed_tree, comparison, &accept_command).map_err(
            |error| EntryRefusal { accept: error.waits_for_accept().then(|| key.to_string()), why: error.to_string() },
        )?;
        library.resolve_tree_alarms(&key);
        let ArrivedArchive { digest, fast, size_bytes, .. } = arrived;
        let archive = StoredArchive::of_tree(claimed_tree.packed.clone(), digest, fast, size_bytes, origin, now);
        let location_key = Key::location(&key);
        let record_proof = || {
            library
                .replace_document(&location_key, location, now, Durability::Synced, |_, _, incoming| Ok(incoming))?;
            Ok(true)
        };
        let (archive, bytes) = (archive.map_err(store_failed)?, arrived.into_archive_bytes()?);
        library.commit(&key, archive, bytes, record_proof).map_err(store_failed)?;
        library.runtime.config().not_found.remove(&location_key);
        library.enforce_size_limit();
        library.require_kept(&(&key).into()).map_err(store_failed)?;
        Ok(ApplyOutcome::Applied { note: None })
    }

    /// Checks that larder packed the archive from the tree that the manifest names.
    fn check_tree(&self, library: &Library, arrived: &ArrivedArchive) -> Result<(), String> {
        let scratch = library.scratch().map_err(store_failed)?;
        let mut tree = Tree::new(scratch.file().map_err(store_failed)?, TreeLimits::default());
        let unpacked = match &arrived.source {
            ArchiveSource::Staged(stage) => {
                unpack(ArchiveFormat::TarGz, stage.file().map_err(store_failed)?, &mut tree)
            }
            ArchiveSource::Stored(blob) => unpack(ArchiveFormat::TarGz, blob.reader(), &mut tree),
        };
        let mut packed_anew = Hasher::new();
        let packed = unpacked.and_then(|()| pack(&tree, &TreePath::root(), &mut packed_anew));
        let PackResult { tree_digest: packed_tree, .. } =
            packed.map_err(|e| format!("its archive is not a module: {e}"))?;
        let claimed = &self.claimed_tree.packed;
        if packed_tree != claimed.tree_digest {
            return Err(format!("its tree has digest {packed_tree}, but its manifest names {}", claimed.tree_digest));
        }
        let (anew, _) = packed_anew.finish();
        // Clients use another tar reader than larder. Only the output of our packer reads the same in all of them.
        if claimed.packer != PACKER || anew != arrived.digest {
            return Err("its archive was made by another packer, or has contents that larder never packs".to_owned());
        }
        let subdir = claimed.subdir.as_deref().unwrap_or_default();
        let below = TreePath::parse(subdir.as_bytes()).map_err(|bad| bad.to_string())?;
        if !below.is_root() && tree.get(&below) != Some(&TreeEntry::Folder) {
            return Err(format!("its archive has no folder {subdir}"));
        }
        Ok(())
    }
}
