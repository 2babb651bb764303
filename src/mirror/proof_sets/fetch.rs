//! Fetches and verifies a proof set: the document, then SHA256SUMS and the signature in parallel. A verified set is
//! compared with the history of its version before it is admitted. An unverified set never leaves this file.

use crate::mirror::{Library, ProofSets};
use std::sync::Arc;

use bytes::Bytes;
use url::Url;

use crate::address::Package;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::RequestContext;
use crate::mirror::counters::{REPUBLISHED, SEEN_DAMAGED, SIGNATURE_LOST};
use crate::mirror::library::proof_set::{ProofSet, ProofSetMetadata, StoredProofSet};
use crate::mirror::library::{
    AlarmEvent, AlarmKind, AlarmPart, HistoryChange, HistoryRefusal, HistoryVerdict, Observation, Signer, observation,
};
use crate::store::StoreError;
use crate::upstream::breaker::Origin;
use crate::upstream::error::{Fault, UpstreamError, sanitized};
use crate::upstream::memory_budget::MemoryGrant;
use crate::upstream::outbound::origin;
use crate::upstream::providers::DownloadDocument;
use crate::upstream::request::{Document, Fetched, UpstreamRequest, Validators};
use crate::upstream::{CredentialScope, Upstream};
use crate::verify::{Proof, VerificationPolicy, verify_proof_set};

const MAX_DOWNLOAD_DOCUMENT: u64 = 2 << 20;
const MAX_SUMS: u64 = 4 << 20;
const MAX_SIGNATURE: u64 = 64 << 10;

/// The most known keys that an alarm names.
const KEYS_SHOWN: usize = 3;

/// SHA256SUMS or a signature: its bytes, its validators, and the origins contacted for it.
type CompanionFile = (Bytes, Validators, Vec<Origin>);

impl ProofSets {
    pub(in crate::mirror) async fn fetch_and_verify_set(
        self: &Arc<Self>,
        visit: &ProofSetFetch<'_>,
        before: Option<&StoredProofSet>,
    ) -> Result<ProofSet, Error> {
        let before_set =
            before.map(|before_set| &*before_set.current).filter(|before_set| before_set.metadata.asked == *visit.url);
        let conditions = before_set.map(|before_set| &before_set.metadata.validators);
        let limit = self.runtime.limits.document_bytes.min(MAX_DOWNLOAD_DOCUMENT);
        let fetched =
            visit.call.config.outbound.document(visit.request(visit.subject, visit.url), conditions, limit).await?;
        let unusable = |url: &Url, reason: String| UpstreamError {
            subject: visit.subject.to_owned(),
            origin: origin(url),
            fault: Fault::Unusable(reason),
        };
        // `_room` reserves memory for the body until this function ends.
        let (body, url, validators, mut origins, _room) = match (fetched, before_set) {
            (Fetched::New(Document { body, validators, url, origins, memory: room, .. }), _) => {
                (body, url, validators, origins, room)
            }
            (Fetched::Unchanged, Some(before_set)) => {
                let ProofSetMetadata { url, validators, origins, .. } = before_set.metadata.clone();
                (before_set.body.clone(), url, validators, origins, MemoryGrant::default())
            }
            (Fetched::Unchanged, None) => {
                return Err(unusable(visit.url, "304 to an unconditional request".into()).into());
            }
        };
        let document =
            DownloadDocument::parse(&body, &url, &visit.package.platform).map_err(|reason| unusable(&url, reason))?;
        let policy = visit.upstream.settings.verification;
        let sums_held = before_set.filter(|before_set| before_set.document.sums_url == document.sums_url);
        let sums_held = sums_held.map(|before_set| (&before_set.sums, &before_set.metadata.sums_validators));
        let signature_held =
            before_set.filter(|before_set| before_set.document.signature_url == document.signature_url);
        let signature_held =
            signature_held.map(|before_set| (&before_set.signature, &before_set.metadata.signature_validators));
        let (sums, signature) = tokio::try_join!(
            self.companion(visit, "SHA256SUMS", &document.sums_url, sums_held, MAX_SUMS),
            self.signature(visit, policy, &document, signature_held),
        )?;
        let proven = self.verify_set(policy, &sums.0, &signature.0, document).await;
        // The verdict may quote upstream's text, which may contain the query of a URL.
        let proof = proven.map_err(|(kind, verdict)| {
            self.runtime.counters.count_unproven(&visit.package.provider.host, kind);
            unverified(visit.subject, &url, sanitized(&verdict))
        })?;
        for warning in &proof.warnings {
            tracing::warn!(package = %visit.package, warning, "a proof was accepted with a warning");
        }
        origins.extend([sums.2, signature.2].into_iter().flatten());
        origins.sort();
        origins.dedup();
        let metadata = ProofSetMetadata {
            asked: visit.url.clone(),
            url: url.clone(),
            origins,
            validators,
            sums_validators: sums.1,
            signature_validators: signature.1,
            fetched: visit.call.now,
            proof,
        };
        Ok(ProofSet::new(metadata, body, sums.0, signature.0, visit.package)
            .map_err(|reason| unusable(&url, reason))?)
    }

    /// Verifies a set on a blocking thread, because a registry may list many keys. At most two run at a time; one whose
    /// caller has gone counts until it ends. The error carries its metric label.
    async fn verify_set(
        &self,
        policy: VerificationPolicy,
        sums: &Bytes,
        signature: &Bytes,
        document: DownloadDocument,
    ) -> Result<Proof, (&'static str, String)> {
        let (sums, signature) = (sums.clone(), signature.clone());
        let judged_set = self.verification_limit.run(&self.runtime.tasks, move || {
            verify_proof_set(policy, &sums, &signature, &document.keys, document.filename.as_str(), &document.shasum)
        });
        match judged_set.await {
            Some(judged_set) => {
                judged_set.map(|(proof, _)| proof).map_err(|verdict| (verdict.metric_label(), verdict.to_string()))
            }
            None => Err(("signature", "judging it ended unexpectedly".to_owned())),
        }
    }

    async fn signature(
        &self,
        visit: &ProofSetFetch<'_>,
        policy: VerificationPolicy,
        document: &DownloadDocument,
        before_file: Option<(&Bytes, &Validators)>,
    ) -> Result<CompanionFile, Error> {
        let none = Ok(CompanionFile::default());
        let Some(url) = &document.signature_url else { return none };
        match self.companion(visit, "the signature of SHA256SUMS", url, before_file, MAX_SIGNATURE).await {
            // A policy of checksums needs no signature, so its absence is not an error.
            Err(Error::Upstream(error))
                if policy == VerificationPolicy::Checksum && matches!(error.fault, Fault::Absent(_)) =>
            {
                none
            }
            fetched => fetched,
        }
    }

    /// Fetches a file that the document names, byte for byte.
    async fn companion(
        &self,
        visit: &ProofSetFetch<'_>,
        name: &str,
        url: &Url,
        before_file: Option<(&Bytes, &Validators)>,
        limit: u64,
    ) -> Result<CompanionFile, Error> {
        let subject = format!("{name} of {}", visit.package);
        let fetched = visit
            .call
            .config
            .outbound
            .small_file(visit.request(&subject, url), before_file.map(|(_, validators)| validators), limit)
            .await?;
        match (fetched, before_file) {
            (Fetched::New(Document { body, validators, origins, .. }), _) => Ok((body, validators, origins)),
            (Fetched::Unchanged, Some((bytes, validators))) => Ok((bytes.clone(), validators.clone(), Vec::new())),
            (Fetched::Unchanged, None) => {
                let fault = Fault::Unusable("304 to an unconditional request".into());
                Err(UpstreamError { subject, origin: origin(url), fault }.into())
            }
        }
    }
}

impl Library {
    /// Admits a verified set, unless it contradicts an earlier one without the right to (DESIGN, promise 14).
    pub(in crate::mirror) async fn admit(
        self: &Arc<Self>,
        package: &Package,
        set: &ProofSet,
        signer: Signer,
        now: Timestamp,
    ) -> Result<Admission, Error> {
        let Some(sums) = set.checksums() else { return Ok(Admission::HistoryUnavailable) };
        let (owned_package, verified) = (package.clone(), set.clone());
        let admitted = self.on_disk(move |library| {
            let seen = Observation { signer, ..observation(&owned_package, &verified, &sums) };
            library.admit_blocking(&seen, now)
        });
        match admitted.await? {
            Ok(admitted) => Ok(admitted),
            Err(reason) => {
                let subject = format!("the download document of {package} from {}", origin(&set.metadata.url));
                let command = reason.command(package);
                Err(Error::Unaccepted { subject, verdict: reason.words, command })
            }
        }
    }

    /// Compares a verified set with the history of its version, raises and resolves alarms, and records it.
    pub(in crate::mirror) fn admit_blocking(
        &self,
        seen: &Observation<'_>,
        now: Timestamp,
    ) -> Result<Result<Admission, AdmissionRefusal>, StoreError> {
        let package = seen.package;
        let (provider, version) = (&package.provider, &package.version);
        let signer = match seen.signer.key() {
            Some(key) => format!("signed by key {key}"),
            None => "unsigned".to_owned(),
        };
        let judgement = self.histories.decide(seen, |judgement| {
            let known = judgement.known_keys_without_signer.as_ref().map(|known| list_keys(known));
            let is_refused = matches!(judgement.verdict, HistoryVerdict::Refused(_));
            if let (Some(known), Some(key), false) = (&known, seen.signer.key(), is_refused) {
                tracing::error!(%package, key, known, "ALARM: a key that never signed for this provider signs for it now; it may sign new versions, and vouches for no other bytes of versions that were verified before");
                let detail = format!("signed by key {key}; the keys known for this provider are {known}");
                self.raise_alarm_about_part(AlarmKind::NewKey, provider, version, AlarmPart::Key(key.to_owned()), detail, now);
            }
            match &judgement.verdict {
                HistoryVerdict::Consistent => {}
                HistoryVerdict::Republished(change) => {
                    let change = change.describe();
                    tracing::error!(%package, change, signer, "ALARM: upstream has changed a version that was verified before; a key that may vouch for it did; the new set is served");
                    self.raise_alarm(AlarmKind::Republished, provider, version, format!("its proof set {change}; {signer}"), now);
                }
                HistoryVerdict::Refused(refusal) => {
                    let kind = AdmissionRefusal::kind(refusal);
                    let words = match refusal {
                        HistoryRefusal::ChangedByUntrustedKey(change) => {
                            format!("its proof set for {} {}", package.platform, change.describe())
                        }
                        refusal => AdmissionRefusal::refusal_text(refusal),
                    };
                    tracing::error!(%package, words, signer, "ALARM: a proof set is refused until it is accepted");
                    let known = known.map(|known| format!("; the keys known for this provider are {known}"));
                    let detail = format!("{words}; {signer}{}", known.unwrap_or_default());
                    let part = match kind {
                        AlarmKind::SignatureLost => AlarmPart::Whole,
                        _ => AlarmPart::Platform(package.platform.clone()),
                    };
                    self.raise_alarm_about_part(kind, provider, version, part, detail, now);
                }
            }
            self.alarms.ensure_saved(&provider.into())
        })?;
        let Some(judgement) = judgement else { return Ok(Ok(Admission::HistoryUnavailable)) };
        match judgement.verdict {
            HistoryVerdict::Refused(refusal) => {
                self.runtime.counters.count_unproven(&provider.host, AdmissionRefusal::word(&refusal));
                let words = AdmissionRefusal::refusal_text(&refusal);
                Ok(Err(AdmissionRefusal { words, is_of_the_provider: refusal == HistoryRefusal::SignatureLost }))
            }
            verdict => {
                let admitted = AlarmEvent::Admitted { package, is_signed: seen.signer.key().is_some() };
                self.alarms.resolve(&provider.into(), &admitted);
                Ok(Ok(match verdict {
                    HistoryVerdict::Republished(change) => Admission::Changed(change),
                    HistoryVerdict::Consistent | HistoryVerdict::Refused(_) => Admission::Consistent,
                }))
            }
        }
    }
}

/// Lists keys for people: the first few, and the number of the others.
fn list_keys(keys: &[String]) -> String {
    let (shown, more) = keys.split_at(keys.len().min(KEYS_SHOWN));
    match more.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The reason for admitting a verified set.
pub(in crate::mirror) enum Admission {
    /// Consistent with everything verified before.
    Consistent,
    /// It changes the version, and its key may vouch for that.
    Changed(HistoryChange),
    /// The store is gone, so the history is unknown: the set is served but not stored.
    HistoryUnavailable,
}

/// The refusal of a verified set.
pub(in crate::mirror) struct AdmissionRefusal {
    pub(in crate::mirror) words: String,
    is_of_the_provider: bool,
}

impl AdmissionRefusal {
    fn kind(refusal: &HistoryRefusal) -> AlarmKind {
        match refusal {
            HistoryRefusal::ChangedByUntrustedKey(_) | HistoryRefusal::Full => AlarmKind::WaitsForAccept,
            HistoryRefusal::SignatureLost => AlarmKind::SignatureLost,
            HistoryRefusal::RecordLost => AlarmKind::DamagedRecord,
        }
    }

    fn word(refusal: &HistoryRefusal) -> &'static str {
        match refusal {
            HistoryRefusal::ChangedByUntrustedKey(_) | HistoryRefusal::Full => REPUBLISHED,
            HistoryRefusal::SignatureLost => SIGNATURE_LOST,
            HistoryRefusal::RecordLost => SEEN_DAMAGED,
        }
    }

    fn refusal_text(refusal: &HistoryRefusal) -> String {
        match refusal {
            HistoryRefusal::ChangedByUntrustedKey(change) => {
                format!(
                    "it was published again: its proof set {}, and no key that may vouch for that signed it",
                    change.describe()
                )
            }
            HistoryRefusal::SignatureLost => {
                "this provider was signed before, and the registry lists no key for it now".into()
            }
            HistoryRefusal::RecordLost => {
                "its first-seen record is damaged, so a change by upstream cannot be detected".into()
            }
            HistoryRefusal::Full => "as much is recorded of it, or of the versions of its provider, as may be".into(),
        }
    }

    /// The command that accepts the refused set.
    fn command(&self, package: &Package) -> String {
        let Package { provider, version, .. } = package;
        let subject = if self.is_of_the_provider { provider.to_string() } else { format!("{provider}@{version}") };
        format!("`larder accept {subject}`")
    }
}

/// The parameters of fetching one proof set.
pub(in crate::mirror) struct ProofSetFetch<'a> {
    pub(in crate::mirror) subject: &'a str,
    pub(in crate::mirror) url: &'a Url,
    pub(in crate::mirror) upstream: &'a Upstream,
    pub(in crate::mirror) credential_scope: &'a CredentialScope,
    pub(in crate::mirror) package: &'a Package,
    pub(in crate::mirror) call: &'a RequestContext,
    pub(in crate::mirror) retries: usize,
}

impl ProofSetFetch<'_> {
    fn request<'b>(&'b self, subject: &'b str, url: &'b Url) -> UpstreamRequest<'b> {
        let upstream = &self.upstream.settings.host;
        let RequestContext { via, priority, now, .. } = self.call;
        UpstreamRequest {
            label: subject,
            url,
            upstream,
            credentials: self.credential_scope,
            via,
            retries: self.retries,
            priority: *priority,
            now: *now,
        }
    }
}

fn unverified(subject: &str, url: &Url, verdict: String) -> Error {
    Error::Unverified { subject: format!("{subject} from {}", origin(url)), verdict }
}

/// Turns a missing companion file into an upstream failure: it must not look like "no such package".
pub(in crate::mirror) fn companion_failure(error: Error, subject: &str) -> Error {
    match error {
        Error::Upstream(error)
            if error.subject != subject
                && (error.fault.may_be_an_expired_url() || matches!(error.fault, Fault::Rejected { .. })) =>
        {
            let fault =
                Fault::Unusable(format!("its own document leads to a file that it does not give: it {}", error.fault));
            UpstreamError { fault, ..(*error).clone() }.into()
        }
        error => error,
    }
}
