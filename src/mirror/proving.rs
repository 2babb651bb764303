//! Asking for a proof set and judging it: the document, then its sums and signature side by side; proven
//! together, and held against what was proven before. Nothing of an unproven set leaves this file.

use std::sync::Arc;

use bytes::Bytes;
use url::Url;

use super::counters::REPUBLISHED;
use super::proof_set::{About, KeptSet, ProofSet};
use super::seen::{self, History};
use super::{AlarmKind, Call, Mirror};
use crate::address::Package;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::upstream::ask::{Ask, Document, Fetched, Validators};
use crate::upstream::breaker::Origin;
use crate::upstream::error::{Fault, UpstreamError, relayed};
use crate::upstream::outbound::origin;
use crate::upstream::providers::DownloadDocument;
use crate::upstream::room::Room;
use crate::upstream::{Grant, Upstream};
use crate::verify::{Policy, Proof, judge};

const LARGEST_DOWNLOAD_DOCUMENT: u64 = 2 << 20;
const LARGEST_SUMS: u64 = 4 << 20;
const LARGEST_SIGNATURE: u64 = 64 << 10;

/// A file beside a document, and whom it took to get it where it was not held.
type Companion = (Bytes, Validators, Vec<Origin>);

impl Mirror {
    /// Fetches a document, and its sums and signature side by side; proves them.
    pub(super) async fn visit(
        self: &Arc<Self>,
        visit: &Visit<'_>,
        before: Option<&KeptSet>,
    ) -> Result<ProofSet, Error> {
        let held = before.map(|kept| &*kept.current).filter(|held| held.about.asked == *visit.asked);
        let conditions = held.map(|held| &held.about.validators);
        let limit = self.limits.document_bytes.min(LARGEST_DOWNLOAD_DOCUMENT);
        let fetched = visit.call.terms.outbound.document(visit.ask(visit.what, visit.asked), conditions, limit).await?;
        let unusable = |at: &Url, why: String| UpstreamError {
            asked: visit.what.to_owned(),
            at: origin(at),
            fault: Fault::Unusable(why),
        };
        // The room is taken for as long as the body is looked at.
        let (body, url, validators, mut origins, _room) = match (fetched, held) {
            (Fetched::New(Document { body, validators, url, origins, room, .. }), _) => {
                (body, url, validators, origins, room)
            }
            (Fetched::Unchanged, Some(held)) => {
                let About { url, validators, origins, .. } = held.about.clone();
                (held.body.clone(), url, validators, origins, Room::default())
            }
            (Fetched::Unchanged, None) => {
                return Err(unusable(visit.asked, "304 to an unconditional request".into()).into());
            }
        };
        let document =
            DownloadDocument::parse(&body, &url, &visit.package.platform).map_err(|why| unusable(&url, why))?;
        let policy = visit.upstream.settings.verification;
        let sums_held = held.filter(|held| held.document.sums_url == document.sums_url);
        let sums_held = sums_held.map(|held| (&held.sums, &held.about.sums_validators));
        let signature_held = held.filter(|held| held.document.signature_url == document.signature_url);
        let signature_held = signature_held.map(|held| (&held.signature, &held.about.signature_validators));
        let (sums, signature) = tokio::try_join!(
            self.companion(visit, "SHA256SUMS", &document.sums_url, sums_held, LARGEST_SUMS),
            self.signature(visit, policy, &document, signature_held),
        )?;
        let proven = prove(policy, &sums.0, &signature.0, document).await;
        // It may quote what upstream wrote, and that may be the query of a URL.
        let proof = proven.map_err(|(kind, verdict)| {
            self.counters.unproven(&visit.package.provider.host, kind);
            unverified(visit.what, &url, relayed(&verdict))
        })?;
        for warning in &proof.warnings {
            tracing::warn!(package = %visit.package, warning, "a proof was accepted with a warning");
        }
        origins.extend([sums.2, signature.2].into_iter().flatten());
        origins.sort();
        origins.dedup();
        let about = About {
            asked: visit.asked.clone(),
            url: url.clone(),
            origins,
            validators,
            sums_validators: sums.1,
            signature_validators: signature.1,
            fetched: visit.call.now,
            proof,
        };
        Ok(ProofSet::new(about, body, sums.0, signature.0, visit.package).map_err(|why| unusable(&url, why))?)
    }

    async fn signature(
        &self,
        visit: &Visit<'_>,
        policy: Policy,
        document: &DownloadDocument,
        held: Option<(&Bytes, &Validators)>,
    ) -> Result<Companion, Error> {
        let none = Ok(Companion::default());
        let Some(url) = &document.signature_url else { return none };
        match self.companion(visit, "the signature of SHA256SUMS", url, held, LARGEST_SIGNATURE).await {
            // Nobody asked for a signature where checksums suffice, so its absence is no failure there.
            Err(Error::Upstream(error)) if policy == Policy::Checksum && matches!(error.fault, Fault::Absent(_)) => {
                none
            }
            fetched => fetched,
        }
    }

    /// Fetches a file that the document names, byte for byte.
    async fn companion(
        &self,
        visit: &Visit<'_>,
        name: &str,
        url: &Url,
        held: Option<(&Bytes, &Validators)>,
        limit: u64,
    ) -> Result<Companion, Error> {
        let what = format!("{name} of {}", visit.package);
        let fetched = visit
            .call
            .terms
            .outbound
            .small_file(visit.ask(&what, url), held.map(|(_, validators)| validators), limit)
            .await?;
        match (fetched, held) {
            (Fetched::New(Document { body, validators, origins, .. }), _) => Ok((body, validators, origins)),
            (Fetched::Unchanged, Some((bytes, validators))) => Ok((bytes.clone(), validators.clone(), Vec::new())),
            (Fetched::Unchanged, None) => {
                let fault = Fault::Unusable("304 to an unconditional request".into());
                Err(UpstreamError { asked: what, at: origin(url), fault }.into())
            }
        }
    }

    /// Lets a proven set in, unless it changes what was proven of its version before.
    pub(super) async fn admit(
        self: &Arc<Self>,
        package: &Package,
        set: &ProofSet,
        now: Timestamp,
    ) -> Result<(), Error> {
        let Some(checksums) = set.checksums() else { return Ok(()) };
        let fingerprint = set.about.proof.how.fingerprint().map(str::to_owned);
        let of = package.clone();
        let judged =
            self.on_disk(move |mirror| seen::judge(mirror, &of, &checksums, fingerprint.as_deref(), now)).await?;
        let Package { provider, version, .. } = package;
        match judged {
            History::Consistent => {
                self.settled(provider, version, AlarmKind::WaitsForAccept);
                Ok(())
            }
            History::RepublishedByKnownKey { file } => {
                tracing::error!(%package, file, "ALARM: upstream has published this version anew, signed by a key known for the provider; the new set is served");
                self.settled(provider, version, AlarmKind::WaitsForAccept);
                self.alarm(provider, version, AlarmKind::Republished, Some(&relayed(&file)), now);
                Ok(())
            }
            History::RepublishedByStranger { file } => {
                let file = relayed(&file);
                self.counters.unproven(&provider.host, REPUBLISHED);
                self.alarm(provider, version, AlarmKind::WaitsForAccept, Some(&file), now);
                let verdict = format!(
                    "its SHA256SUMS give {file} another digest than was proven before, and no key known for this provider vouches for that; if its publisher did this, `larder accept {}@{}` takes it",
                    package.provider, package.version
                );
                Err(unverified(&format!("the download document of {package}"), &set.about.url, verdict))
            }
        }
    }
}

/// One round of questions about a package.
pub(super) struct Visit<'a> {
    pub(super) what: &'a str,
    pub(super) asked: &'a Url,
    pub(super) upstream: &'a Upstream,
    pub(super) grant: &'a Grant,
    pub(super) package: &'a Package,
    pub(super) call: &'a Call,
    pub(super) retries: usize,
}

impl Visit<'_> {
    fn ask<'b>(&'b self, what: &'b str, url: &'b Url) -> Ask<'b> {
        let upstream = &self.upstream.settings.host;
        let Call { via, asker, now, .. } = self.call;
        Ask { what, url, upstream, grant: self.grant, via, retries: self.retries, asker: *asker, now: *now }
    }
}

fn unverified(asked: &str, url: &Url, verdict: String) -> Error {
    tracing::error!(asked, at = origin(url), verdict, "what upstream sent does not prove");
    Error::Unverified { asked: format!("{asked} from {}", origin(url)), verdict }
}

/// A file that a document names is missing: that is upstream's trouble, and not "no such package".
pub(super) fn not_of_the_document(error: Error, what: &str) -> Error {
    match error {
        Error::Upstream(error)
            if error.asked != what
                && (error.fault.may_be_an_expired_url() || matches!(error.fault, Fault::Rejected { .. })) =>
        {
            let fault =
                Fault::Unusable(format!("its own document leads to a file that it does not give: it {}", error.fault));
            UpstreamError { fault, ..(*error).clone() }.into()
        }
        error => error,
    }
}

/// Judges a set where it may take its time: a registry may list many keys. An error with its word for metrics.
async fn prove(
    policy: Policy,
    sums: &Bytes,
    signature: &Bytes,
    document: DownloadDocument,
) -> Result<Proof, (&'static str, String)> {
    let (sums, signature) = (sums.clone(), signature.clone());
    let judging = tokio::task::spawn_blocking(move || {
        judge(policy, &sums, &signature, &document.keys, document.filename.as_str(), &document.shasum)
    });
    match judging.await {
        Ok(judged) => judged.map(|(proof, _)| proof).map_err(|verdict| (verdict.word(), verdict.to_string())),
        Err(_) => Err(("signature", "judging it ended unexpectedly".to_owned())),
    }
}
