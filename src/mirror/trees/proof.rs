//! Finds proof for an archive of an imported tree. The sources in order: stored sets, upstream, files beside it in the
//! tree. The tree comes last because its author controls both.

use std::sync::Arc;
use std::time::Duration;

use super::super::library::{Readable, Signer};
use super::super::proof_set::{HeldSet, KeptSet, ProofSet};
use super::super::proving::Admitted;
use super::super::{Link, Mirror, RequestContext};
use super::beside::{Beside, Witness};
use super::{ProvenBy, Unsigned};
use crate::address::Package;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::filesystem_mirror::MirrorPath;
use crate::store::StoreError;
use crate::upstream::Upstream;
use crate::upstream::breaker::Origin;
use crate::verify::How;

/// The requests for one proof set: document, sums and signature.
const REQUESTS: u32 = 3;
/// Interval between two checks of an upstream's rate limit.
const BUDGET_AGAIN: Duration = Duration::from_millis(500);
/// Maximum wait for an upstream's rate limit.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The note on a key that only the tree vouches for.
const NEW_KEY: &str = "signed by a key that came with the tree and was never seen for this provider";

pub(super) enum ArchiveEvidence {
    /// The archive is stored already.
    Held,
    /// A proof set names it.
    Proven { by: ProvenBy, kept: Arc<KeptSet>, set: Arc<ProofSet>, notes: Vec<String> },
    /// No proof exists, for this reason.
    Nothing(String),
    /// A proof set names other bytes, or the proof is invalid or could not be fetched.
    Against(String),
}

impl Mirror {
    /// Finds the evidence for an archive of a tree.
    ///
    /// # Errors
    /// The store failed.
    pub(super) async fn said_for(
        self: &Arc<Self>,
        package: &Package,
        digest: Digest,
        beside: &Beside,
        unsigned: Unsigned,
        call: &RequestContext,
    ) -> Result<ArchiveEvidence, Error> {
        let upstream = Arc::clone(call.upstream(&package.provider.host)?);
        let held = self.held_set(package, call).await?.filter(|held| is_proven(&held.kept.current));
        if let Some(proven) = held.as_ref().and_then(|held| of_kept(held, digest, ProvenBy::HeldSet)) {
            return Ok(proven);
        }
        let mut nothing = "this mirror is offline, so upstream cannot be asked".to_owned();
        if self.link() == Link::Online {
            match self.set_of_upstream(package, call).await {
                Ok(Some(held)) => {
                    return Ok(of_kept(&held, digest, ProvenBy::Upstream)
                        .unwrap_or_else(|| against(digest, &held, "upstream's")));
                }
                Ok(None) => nothing = format!("{} does not know it", package.provider.host),
                Err(Error::Store(error)) => return Err(error.into()),
                Err(error @ (Error::Unverified { .. } | Error::Unaccepted { .. })) => {
                    return Ok(ArchiveEvidence::Against(error.to_string()));
                }
                Err(error) => {
                    return Ok(match self.by_the_tree(package, digest, beside, &upstream, unsigned, call).await? {
                        ArchiveEvidence::Nothing(_) => ArchiveEvidence::Against(not_asked(&error)),
                        said => said,
                    });
                }
            }
        } else if let Some(held) = held {
            return Ok(against(digest, &held, "the held"));
        }
        Ok(match self.by_the_tree(package, digest, beside, &upstream, unsigned, call).await? {
            ArchiveEvidence::Nothing(besides) => ArchiveEvidence::Nothing(format!("{nothing}, and {besides}")),
            said => said,
        })
    }

    /// Fetches the proof set from upstream. `None` if upstream has no such package.
    pub(super) async fn set_of_upstream(
        self: &Arc<Self>,
        package: &Package,
        call: &RequestContext,
    ) -> Result<Option<HeldSet>, Error> {
        let (host, what) = (&package.provider.host, super::super::sets::what(package));
        let origins = [Origin::of(&call.upstream(host)?.settings.url)];
        let mut waited = Duration::ZERO;
        let now = loop {
            let now = call.now.after(call.began.elapsed());
            match self.may_fetch(&what, host, &origins, REQUESTS, call) {
                Ok(()) => break now,
                Err(Error::Spared(_)) if waited < LONGEST_WAIT => {}
                // An operator waits for the verdict. A backoff of upstream may last minutes, so it is an error.
                Err(error) => return Err(error),
            }
            tokio::time::sleep(BUDGET_AGAIN).await;
            waited += BUDGET_AGAIN;
        };
        let call = self.step(now);
        match self.proof_set(package, &call).await {
            Ok(_) => Ok(self.held_set(package, &call).await?.filter(|held| is_proven(&held.kept.current))),
            Err(Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The evidence of the files in the tree and of the first-seen record.
    async fn by_the_tree(
        self: &Arc<Self>,
        package: &Package,
        digest: Digest,
        beside: &Beside,
        upstream: &Upstream,
        unsigned: Unsigned,
        call: &RequestContext,
    ) -> Result<ArchiveEvidence, Error> {
        let name = MirrorPath::archive(package).file_name();
        let set = match beside.witness(package, upstream, call.now) {
            Witness::Proven(set) => set,
            Witness::Bad(why) => {
                return Ok(ArchiveEvidence::Against(format!("what lies beside it does not prove: {why}")));
            }
            Witness::None => {
                let of = package.clone();
                let proven = self.on_disk(move |mirror| mirror.histories.digests_of(&of)).await?;
                match &proven {
                    Readable::Lost(_) => return Ok(ArchiveEvidence::Against(record_lost(package))),
                    Readable::Whole(proven) if !proven.is_empty() && !proven.contains(&digest) => {
                        return Ok(ArchiveEvidence::Against(format!(
                            "its SHA-256 is {digest}, and proven sums of this version gave it {}",
                            proven[0]
                        )));
                    }
                    Readable::Whole(_) | Readable::Absent => {}
                }
                return Ok(match beside.listed(package, &name) {
                    Some(listed) if listed != digest => ArchiveEvidence::Against(format!(
                        "its SHA-256 is {digest}, and the SHA256SUMS beside it says {listed}"
                    )),
                    _ => ArchiveEvidence::Nothing("no signed proof set lies beside it".to_owned()),
                });
            }
        };
        if set.document.shasum != digest {
            let proven = set.document.shasum;
            return Ok(ArchiveEvidence::Against(format!(
                "its SHA-256 is {digest}, and the signed one beside it is {proven}"
            )));
        }
        let key = set.proof().how.fingerprint().map(str::to_owned);
        let mut notes = set.proof().warnings.clone();
        // The author of the tree may have made the key too. A key counts only if it is in the provider's log, or if the
        // operator vouches for it.
        let Some(key) = key else {
            return Ok(ArchiveEvidence::Nothing("nobody signed what lies beside it".to_owned()));
        };
        let of = package.provider.clone();
        let known = self.on_disk(move |mirror| mirror.histories.keys_of(&of)).await?;
        let is_known = known.is_some_and(|log| log.knows(&key));
        let signer = match unsigned {
            _ if is_known => Signer::Key(key),
            Unsigned::Refused => return Ok(ArchiveEvidence::Nothing(format!("it is {NEW_KEY}: {key}"))),
            Unsigned::Taken => {
                notes.push(format!("{NEW_KEY}: {key}"));
                // Stored on the operator's word. The key is not added to the provider's log.
                Signer::NotChecked
            }
        };
        match self.admit(package, &set, signer, call.now).await {
            Ok(Admitted::Consistent | Admitted::Changed(_)) => {}
            Ok(Admitted::Unjudged) => return Err(StoreError::Gone.into()),
            Err(error @ (Error::Unverified { .. } | Error::Unaccepted { .. })) => {
                return Ok(ArchiveEvidence::Against(error.to_string()));
            }
            Err(error) => return Err(error),
        }
        // Stale at once, because upstream did not confirm it.
        let kept = self.keep_set_as_of(package, *set, Timestamp(0), call.now).await?.value;
        let set = Arc::clone(&kept.current);
        Ok(ArchiveEvidence::Proven { by: ProvenBy::Tree, kept, set, notes })
    }
}

pub(super) fn is_proven(set: &ProofSet) -> bool {
    set.proof().how != How::Imported
}

/// Proof may have existed, so a lost record must not make the archive acceptable as unproven.
pub(super) fn record_lost(package: &Package) -> String {
    let Package { provider, version, .. } = package;
    format!(
        "its first-seen record is damaged, so nobody can tell what was proven of it; `larder accept {provider}@{version}` takes what upstream has"
    )
}

/// A failed request to upstream must not make the archive acceptable as unproven.
pub(super) fn not_asked(error: &Error) -> String {
    let when = match error {
        Error::HeldBack { until, .. } => format!("try again after {}", until.date_time()),
        _ => "try again".to_owned(),
    };
    format!("upstream could not be asked: {error}; {when}, or import it into a mirror that is offline")
}

/// The stored set that names this archive, as evidence.
fn of_kept(held: &HeldSet, digest: Digest, by: ProvenBy) -> Option<ArchiveEvidence> {
    let sets = [Some(&held.kept.current), held.fallback.as_ref()];
    let set = sets.into_iter().flatten().find(|set| set.document.shasum == digest)?;
    Some(ArchiveEvidence::Proven { by, kept: Arc::clone(&held.kept), set: Arc::clone(set), notes: Vec::new() })
}

fn against(digest: Digest, held: &HeldSet, whose: &str) -> ArchiveEvidence {
    let proven = held.kept.current.document.shasum;
    ArchiveEvidence::Against(format!("its SHA-256 is {digest}, and {whose} proof set says {proven}"))
}
