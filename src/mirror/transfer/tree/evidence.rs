//! Finds proof for an archive of an imported tree. The sources in order: stored sets, upstream, files beside it in the
//! tree. The tree comes last because its author controls both.

use std::sync::Arc;
use std::time::Duration;

use crate::address::Package;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::filesystem_mirror::MirrorPath;
use crate::mirror::archives::verified_open::unless_damaged;
use crate::mirror::library::proof_set::{ProofSet, StoredProofSet, UsableProofSet};
use crate::mirror::library::provider_history::Admission;
use crate::mirror::library::{PackageHashState, Recoverable, Signer};
use crate::mirror::transfer::tree::sidecar_files::{SidecarFiles, SidecarProof};
use crate::mirror::transfer::tree::{ProvenBy, UnsignedPolicy};
use crate::mirror::{Connectivity, Library, RequestContext, Transfers, default_if_gone};
use crate::store::StoreError;
use crate::upstream::Upstream;
use crate::upstream::breaker::Origin;
use crate::verify::ProofBasis;

/// The requests for one proof set: document, sums and signature.
const REQUESTS_PER_SET: u32 = 3;
/// Interval between two checks of an upstream's rate limit.
const RATE_LIMIT_POLL: Duration = Duration::from_millis(500);
/// Maximum wait for an upstream's rate limit.
const MAX_RATE_LIMIT_WAIT: Duration = Duration::from_secs(30);

/// The note on a key that only the tree vouches for.
const UNKNOWN_KEY_NOTE: &str = "signed by a key from the tree that never signed for this provider before";

pub(in crate::mirror) enum ArchiveEvidence {
    /// The archive is stored already.
    AlreadyStored,
    /// A proof set names it.
    Proven { proven_by: ProvenBy, stored_set: Arc<StoredProofSet>, set: Arc<ProofSet>, notes: Vec<String> },
    /// No proof exists, for this reason.
    NoProof(String),
    /// A proof set names other bytes, or the proof is invalid or could not be fetched.
    Against(String),
}

impl Transfers {
    /// Finds the evidence for an archive of a tree.
    ///
    /// # Errors
    /// The store failed.
    pub(in crate::mirror) async fn find_evidence(
        self: &Arc<Self>,
        package: &Package,
        digest: Digest,
        beside: &SidecarFiles,
        unsigned: UnsignedPolicy,
        call: &RequestContext,
    ) -> Result<ArchiveEvidence, Error> {
        let upstream = Arc::clone(call.upstream(&package.provider.host)?);
        let stored =
            self.proof_sets.usable_set(package, call).await?.filter(|stored| is_proven(&stored.stored_set.current));
        if let Some(proven) = stored.as_ref().and_then(|stored| evidence_of_set(stored, digest, ProvenBy::HeldSet)) {
            return Ok(proven);
        }
        let mut nothing = "this mirror is offline, so upstream cannot be asked".to_owned();
        if self.runtime.connectivity() == Connectivity::Online {
            match self.fetch_upstream_set(package, call).await {
                Ok(Some(stored)) => {
                    return Ok(evidence_of_set(&stored, digest, ProvenBy::Upstream)
                        .unwrap_or_else(|| contradicting_set(digest, &stored, "upstream's")));
                }
                Ok(None) => nothing = format!("{} does not know it", package.provider.host),
                Err(Error::Store(error)) => return Err(error.into()),
                Err(error @ (Error::Unverified { .. } | Error::Unaccepted { .. })) => {
                    return Ok(ArchiveEvidence::Against(error.to_string()));
                }
                Err(error) => {
                    return Ok(
                        match self.evidence_in_tree(package, digest, beside, &upstream, unsigned, call).await? {
                            ArchiveEvidence::NoProof(_) => ArchiveEvidence::Against(upstream_unavailable(&error)),
                            evidence => evidence,
                        },
                    );
                }
            }
        } else if let Some(stored) = stored {
            return Ok(contradicting_set(digest, &stored, "the stored"));
        }
        Ok(match self.evidence_in_tree(package, digest, beside, &upstream, unsigned, call).await? {
            ArchiveEvidence::NoProof(besides) => ArchiveEvidence::NoProof(format!("{nothing}, and {besides}")),
            evidence => evidence,
        })
    }

    /// Fetches the proof set from upstream. `None` if upstream has no such package.
    pub(in crate::mirror) async fn fetch_upstream_set(
        self: &Arc<Self>,
        package: &Package,
        call: &RequestContext,
    ) -> Result<Option<UsableProofSet>, Error> {
        let (host, subject) = (&package.provider.host, crate::mirror::proof_sets::describe_set(package));
        let origins = [Origin::of(&call.upstream(host)?.settings.url)];
        let mut waited = Duration::ZERO;
        let now = loop {
            let now = call.now.after(call.started.elapsed());
            match self.runtime.charge_job(&subject, host, &origins, REQUESTS_PER_SET, call) {
                Ok(()) => break now,
                Err(Error::RevalidationSkipped(_)) if waited < MAX_RATE_LIMIT_WAIT => {}
                // An operator waits for the verdict. A backoff of upstream may last minutes, so it is an error.
                Err(error) => return Err(error),
            }
            tokio::time::sleep(RATE_LIMIT_POLL).await;
            waited += RATE_LIMIT_POLL;
        };
        let call = self.runtime.step_context(now);
        match self.proof_sets.proof_set(package, &call).await {
            Ok(_) => Ok(self
                .proof_sets
                .usable_set(package, &call)
                .await?
                .filter(|stored| is_proven(&stored.stored_set.current))),
            Err(Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The evidence of the files in the tree and of the first-seen record.
    async fn evidence_in_tree(
        self: &Arc<Self>,
        package: &Package,
        digest: Digest,
        beside: &SidecarFiles,
        upstream: &Upstream,
        unsigned: UnsignedPolicy,
        call: &RequestContext,
    ) -> Result<ArchiveEvidence, Error> {
        let name = MirrorPath::archive(package).file_name();
        let set = match beside.find_proof(package, upstream, call.now) {
            SidecarProof::Proven(set) => set,
            SidecarProof::Bad(reason) => {
                return Ok(ArchiveEvidence::Against(format!("the proof files next to it do not verify: {reason}")));
            }
            SidecarProof::None => {
                let owned_package = package.clone();
                let proven = self.library.on_disk(move |library| library.histories.digests_of(&owned_package)).await?;
                match &proven {
                    Recoverable::Lost(_) => return Ok(ArchiveEvidence::Against(record_lost(package))),
                    Recoverable::Whole(proven) if !proven.is_empty() && !proven.contains(&digest) => {
                        return Ok(ArchiveEvidence::Against(format!(
                            "its SHA-256 is {digest}, but verified sums of this version list {}",
                            proven[0]
                        )));
                    }
                    Recoverable::Whole(_) | Recoverable::Absent => {}
                }
                return Ok(match beside.listed(package, &name) {
                    Some(listed) if listed != digest => ArchiveEvidence::Against(format!(
                        "its SHA-256 is {digest}, but the SHA256SUMS beside it says {listed}"
                    )),
                    _ => ArchiveEvidence::NoProof("no signed proof set is beside it".to_owned()),
                });
            }
        };
        if set.document.shasum != digest {
            let proven = set.document.shasum;
            return Ok(ArchiveEvidence::Against(format!(
                "its SHA-256 is {digest}, but the signed proof set next to it says {proven}"
            )));
        }
        let key = set.proof().how.fingerprint().map(str::to_owned);
        let mut notes = set.proof().warnings.clone();
        // The author of the tree may have made the key too. A key counts only if it is in the provider's log, or if the
        // operator vouches for it.
        let Some(key) = key else {
            return Ok(ArchiveEvidence::NoProof("the sums next to it are unsigned".to_owned()));
        };
        let provider = package.provider.clone();
        let known = self.library.on_disk(move |library| library.histories.keys_of(&provider)).await?;
        let is_known = known.is_some_and(|log| log.contains(&key));
        let signer = match unsigned {
            _ if is_known => Signer::Key(key),
            UnsignedPolicy::Refused => return Ok(ArchiveEvidence::NoProof(format!("it is {UNKNOWN_KEY_NOTE}: {key}"))),
            UnsignedPolicy::Allowed => {
                notes.push(format!("{UNKNOWN_KEY_NOTE}: {key}"));
                // Stored on the operator's word. The key is not added to the provider's log.
                Signer::NotChecked
            }
        };
        match self.library.admit(package, &set, signer, call.now).await {
            Ok(Admission::Consistent | Admission::Changed(_)) => {}
            Ok(Admission::HistoryUnavailable) => return Err(StoreError::Gone.into()),
            Err(error @ (Error::Unverified { .. } | Error::Unaccepted { .. })) => {
                return Ok(ArchiveEvidence::Against(error.to_string()));
            }
            Err(error) => return Err(error),
        }
        // Stale at once, because upstream did not confirm it.
        let stored_set = self.proof_sets.store_set_confirmed_at(package, *set, Timestamp(0), call.now).await?.value;
        let set = Arc::clone(&stored_set.current);
        Ok(ArchiveEvidence::Proven { proven_by: ProvenBy::Tree, stored_set, set, notes })
    }
}

pub(in crate::mirror) fn is_proven(set: &ProofSet) -> bool {
    set.proof().how != ProofBasis::Imported
}

/// Proof may have existed, so a lost record must not make the archive acceptable as unproven.
pub(in crate::mirror) fn record_lost(package: &Package) -> String {
    let Package { provider, version, .. } = package;
    format!(
        "its first-seen record is damaged, so its verified digests are unknown; `larder accept {provider}@{version}` accepts upstream's version"
    )
}

/// A failed request to upstream must not make the archive acceptable as unproven.
pub(in crate::mirror) fn upstream_unavailable(error: &Error) -> String {
    let when = match error {
        Error::HeldBack { until, .. } => format!("try again after {}", until.date_time()),
        _ => "try again".to_owned(),
    };
    format!("upstream could not be asked: {error}; {when}, or import it into an offline transfers")
}

/// The stored set that names this archive, as evidence.
fn evidence_of_set(stored: &UsableProofSet, digest: Digest, proven_by: ProvenBy) -> Option<ArchiveEvidence> {
    let sets = [Some(&stored.stored_set.current), stored.fallback.as_ref()];
    let set = sets.into_iter().flatten().find(|set| set.document.shasum == digest)?;
    Some(ArchiveEvidence::Proven {
        proven_by,
        stored_set: Arc::clone(&stored.stored_set),
        set: Arc::clone(set),
        notes: Vec::new(),
    })
}

fn contradicting_set(digest: Digest, stored: &UsableProofSet, owner: &str) -> ArchiveEvidence {
    let proven = stored.stored_set.current.document.shasum;
    ArchiveEvidence::Against(format!("its SHA-256 is {digest}, but {owner} proof set says {proven}"))
}

impl Transfers {
    /// Finds the evidence about an unpacked package with this `h1:`. If a proven archive exists here or upstream, the
    /// unpacked files are refused: storing them would bypass its proof.
    ///
    /// # Errors
    /// The store failed.
    pub(in crate::mirror) async fn find_unpacked_evidence(
        self: &Arc<Self>,
        package: &Package,
        h1: &str,
        call: &RequestContext,
    ) -> Result<ArchiveEvidence, Error> {
        let owned_package = package.clone();
        let hashes = self.library.on_disk(move |library| library.held_package_hashes(&owned_package)).await?;
        if hashes.iter().any(|stored| stored == h1) {
            return Ok(ArchiveEvidence::AlreadyStored);
        }
        if let Some(other) = hashes.first() {
            return Ok(ArchiveEvidence::Against(format!(
                "its files have {h1}, but those of the stored archive have {other}"
            )));
        }
        let warm = format!("run `larder warm {}@{}`", package.provider, package.version);
        if self.proof_sets.usable_set(package, call).await?.is_some_and(|stored| is_proven(&stored.stored_set.current))
        {
            let reason = "a stored proof set covers its published archive, not unpacked files";
            return Ok(ArchiveEvidence::Against(format!("{reason}; import that archive, or {warm}")));
        }
        let mut nothing = "this mirror is offline, so upstream cannot be asked".to_owned();
        if self.runtime.connectivity() == Connectivity::Online {
            match self.fetch_upstream_set(package, call).await {
                Ok(Some(_)) => {
                    let reason = "upstream's proof set covers the published archive, not unpacked files";
                    return Ok(ArchiveEvidence::Against(format!("{reason}; {warm}")));
                }
                Ok(None) => nothing = format!("{} does not know it", package.provider.host),
                Err(Error::Store(error)) => return Err(error.into()),
                Err(error) => return Ok(ArchiveEvidence::Against(upstream_unavailable(&error))),
            }
        }
        let owned_package = package.clone();
        let proven = self.library.on_disk(move |library| library.histories.digests_of(&owned_package)).await?;
        if matches!(proven, Recoverable::Lost(_)) {
            return Ok(ArchiveEvidence::Against(record_lost(package)));
        }
        if let Some(proven) = proven.into_value().first() {
            let reason =
                format!("its archive was verified here before, with SHA-256 {proven}, but is no longer stored");
            return Ok(ArchiveEvidence::Against(format!("{reason}; import that archive, or {warm}")));
        }
        Ok(ArchiveEvidence::NoProof(format!("{nothing}, and no signature covers unpacked files")))
    }
}

impl Library {
    /// The directory `h1:` of each stored archive of a package that is not damaged.
    fn held_package_hashes(&self, package: &Package) -> Result<Vec<String>, StoreError> {
        let mut known = Vec::new();
        for archive in self.catalog.name(package)?.archives {
            let Some(blob) = default_if_gone(self.store.blobs.open(&archive.digest))? else { continue };
            if unless_damaged(blob.fast_hash())? != Some(archive.fast) {
                continue;
            }
            if archive.hashes == PackageHashState::NotYet {
                self.compute_hashes(package, &archive.digest)?;
            }
            let now = self.catalog.name(package)?.get(&archive.digest).map(|archive| archive.hashes.clone());
            if let Some(PackageHashState::Known { directory, .. }) = now {
                known.push(directory);
            }
        }
        Ok(known)
    }
}
