//! Imports a proof set of a bundle: verify it, compare it with the first-seen record, store it with its archive.

use std::sync::Arc;

use crate::address::{Artifact, Package, Version};
use crate::bundle::{ApplyOutcome, FetchOrigin, FileRole, ProviderEntry, SignatureStatus};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::mirror::freshness::Age;
use crate::mirror::library::proof_set::{ProofSet, ProofSetMetadata, StoredProofSet};
use crate::mirror::library::provider_history::Admission;
use crate::mirror::library::{
    AcceptScope, AcceptedFinding, AlarmEvent, AlarmKind, AlarmPart, Observation, Signer, StoredArchive, observation,
};
use crate::mirror::transfer::bundle::archives::StagedBundleArchive;
use crate::mirror::transfer::bundle::entry::{EntryCriteria, SmallFiles, store_failed};
use crate::mirror::transfer::tree::imported_differs;
use crate::mirror::{Library, default_if_gone};
use crate::store::{Durability, IndexEntry, Key, StoreError};
use crate::upstream::error::sanitized;
use crate::upstream::providers::DownloadDocument;
use crate::upstream::request::Validators;
use crate::verify::{ProofBasis, verify_proof_set};

pub(in crate::mirror) struct BundledSet {
    pub(in crate::mirror) package: Package,
    set: Arc<ProofSet>,
    age: Age,
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
    pub(in crate::mirror) fn check_entry(
        library: &Library,
        entry: &ProviderEntry,
        small: &SmallFiles,
        judging: &EntryCriteria<'_>,
    ) -> Result<Option<Self>, String> {
        let (package, fetch_origin, now) = (entry.package(), &entry.said, judging.now);
        let terms = library.runtime.config();
        let policy = terms.upstream(&package.provider.host).map_err(|e| e.to_string())?.settings.verification;
        let [body, sums] = [small.get(FileRole::Document)?, small.get(FileRole::Sums)?];
        let signature = small.get_or_empty(FileRole::Signature);
        let unreadable = |reason: String| format!("its download document cannot be read: {reason}");
        let document = DownloadDocument::parse(&body, &fetch_origin.url, &package.platform).map_err(unreadable)?;
        if document.shasum != entry.archive.sha256 {
            let (named, carried) = (document.shasum, entry.archive.sha256);
            return Err(format!(
                "its download document names an archive with SHA-256 {named}, but the bundle has {carried}"
            ));
        }
        if !is_document_url_of(fetch_origin, &package) {
            return Err(format!(
                "its download document came from {}, which is not that of {package}",
                fetch_origin.asked
            ));
        }
        let filename = document.filename.as_str();
        let verified = verify_proof_set(policy, &sums, &signature, &document.keys, filename, &document.shasum);
        let (proof, _) = verified.map_err(|verdict| {
            library.runtime.counters.count_unproven(&package.provider.host, verdict.metric_label());
            format!("verification failed: {}", sanitized(&verdict.to_string()))
        })?;
        let signer = proof.how.fingerprint();
        if let (Some(claimed), Some(signer)) = (entry.signed_by.as_deref(), signer)
            && claimed != signer
        {
            return Err(format!("its manifest names key {claimed}, but key {signer} signed it"));
        }
        let fetched = fetch_origin.fetched.min(now);
        let metadata = ProofSetMetadata {
            asked: fetch_origin.asked.clone(),
            url: fetch_origin.url.clone(),
            origins: Vec::new(),
            validators: Validators::default(),
            sums_validators: Validators::default(),
            signature_validators: Validators::default(),
            fetched,
            proof,
        };
        let set = ProofSet::new(metadata, body, sums, signature, &package).map_err(unreadable)?;
        let age = Age { checked: fetch_origin.checked.min(now), gone: fetch_origin.gone };
        if library.has_set_or_newer(&package, &set, age, now).map_err(store_failed)? {
            return Ok(None);
        }
        let is_accepted = judging.is_accepted(library, &Artifact::from(&package));
        let is_vouched_for = matches!(judging.signature_status, SignatureStatus::SignedBy(_));
        Ok(Some(Self { package, set: Arc::new(set), age, is_accepted, is_vouched_for }))
    }

    pub(in crate::mirror) fn digest(&self) -> Digest {
        self.set.document.shasum
    }

    /// Commits the set with its archive.
    ///
    /// # Errors
    /// The reason that it is refused.
    pub(in crate::mirror) fn commit(
        self,
        library: &Library,
        arrived: StagedBundleArchive,
        now: Timestamp,
    ) -> Result<ApplyOutcome, String> {
        let note = match self.check_history(library, now) {
            Ok(note) => note,
            Err(reason) => return Err(arrived.discard_with(reason)),
        };
        let Self { package, set, age, .. } = self;
        let StagedBundleArchive { fast, size_bytes, .. } = arrived;
        let archive = StoredArchive::of_set(&set, fast, size_bytes, now);
        let record_proof = || Ok(library.put_carried_set(&package, &set, age, now)?.is_some());
        let committed = library.commit(&package, archive, arrived.source.into(), record_proof).map_err(store_failed)?;
        let outcome = if committed.is_some() { ApplyOutcome::Applied { note } } else { ApplyOutcome::Held };
        library.runtime.config().not_found.remove_if(|key| *key == Key::ProofSet(package.clone()));
        library.enforce_size_limit();
        Ok(outcome)
    }

    /// Compares the set with the first-seen record, with the verdicts for a set from upstream. Returns a note for the
    /// operator, if any.
    fn check_history(&self, library: &Library, now: Timestamp) -> Result<Option<String>, String> {
        let Some(sums) = self.set.checksums() else { return Err("its SHA256SUMS cannot be read".to_owned()) };
        let Package { provider, version, .. } = &self.package;
        let seen = observation(&self.package, &self.set, &sums);
        if self.is_accepted {
            library.histories.accept(provider, &[seen], AcceptScope::Version).map_err(store_failed)?;
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
            let (part, detail) = (AlarmPart::Platform(self.package.platform.clone()), format!("in a bundle: {reason}"));
            library.raise_alarm_about_part(AlarmKind::WaitsForAccept, provider, version, part, detail, now);
            return Err(format!("{reason}; --accept {provider}@{version} accepts it"));
        }
        // A bundle without a trusted signature cannot introduce a key for a provider.
        let signer = if self.is_vouched_for || is_known { seen.signer.clone() } else { Signer::NotChecked };
        match library.admit_blocking(&Observation { signer, ..seen }, now).map_err(store_failed)? {
            Ok(Admission::Consistent) => Ok(None),
            Ok(Admission::HistoryUnavailable) => Err(store_failed(StoreError::Gone)),
            Ok(Admission::Changed(change)) => Ok(Some(format!(
                "it was published again, signed by a known key: its proof set {}; lock files with the old hashes refuse it",
                change.describe()
            ))),
            Err(reason) => Err(format!(
                "{}; if the publisher released this, apply it with --accept {provider}@{version}",
                reason.words
            )),
        }
    }
}

impl Library {
    /// Replaces the stored set, which becomes the previous one; synced. `None` if a newer set was stored since the
    /// verification.
    fn put_carried_set(
        &self,
        package: &Package,
        set: &Arc<ProofSet>,
        age: Age,
        now: Timestamp,
    ) -> Result<Option<StoredProofSet>, StoreError> {
        let key = Key::ProofSet(package.clone());
        self.store.records.change(&key, |step| {
            if self.has_set_or_newer(package, set, age, now)? {
                return Ok(None);
            }
            let stored = self.read_set(package)?.map(|stored| Arc::unwrap_or_clone(stored.stored_set));
            let predecessor = match stored {
                None => None,
                // An unsigned set is never kept as the previous one.
                Some(stored) if stored.current.proof().how == ProofBasis::Imported => {
                    let before = stored.current.document.shasum;
                    if before != set.document.shasum && !self.is_repacked(package, before)? {
                        if !step.has_turn() {
                            return Ok(None);
                        }
                        tracing::error!(%package, "ALARM: an unsigned import differs from a bundle's verified archive; the bundle's is served from now on");
                        let detail = imported_differs(before, set.document.shasum);
                        self.raise_alarm(AlarmKind::ImportedDiffers, &package.provider, &package.version, detail, now);
                    }
                    None
                }
                Some(stored) if set.has_same_files(&stored.current) => stored.predecessor,
                Some(stored) if default_if_gone(self.store.blobs.is_stored(&stored.current.document.shasum))? => {
                    Some((stored.current, now))
                }
                Some(stored) => stored.predecessor,
            };
            let kept = StoredProofSet { predecessor, current: Arc::clone(set), age };
            step.put(&key, kept.write(), Durability::Synced, IndexEntry::Document(now));
            Ok(Some(kept))
        })
    }
}

/// True if a URL is a download document URL of the package (PROTOCOL 2.1).
fn is_document_url_of(fetch_origin: &FetchOrigin, package: &Package) -> bool {
    let Some(segments) = fetch_origin.asked.path_segments() else { return false };
    let segments: Vec<&str> = segments.collect();
    let Some([namespace, type_, version, "download", os, arch]) = segments.last_chunk::<6>() else { return false };
    let Package { provider, version: stored_version, platform } = package;
    // Upstream may spell the version in another way.
    let spelled = percent_encoding::percent_decode_str(version).decode_utf8_lossy();
    namespace.eq_ignore_ascii_case(provider.namespace.as_str())
        && type_.eq_ignore_ascii_case(provider.type_.as_str())
        && Version::parse_lenient(&spelled).is_ok_and(|version| version == *stored_version)
        && (*os, *arch) == (platform.os.as_str(), platform.arch.as_str())
}
