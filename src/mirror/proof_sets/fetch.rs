//! Fetches and verifies a proof set: the document, then SHA256SUMS and the signature in parallel. A verified set is
//! compared with the history of its version before it is admitted. An unverified set never leaves this file.

use std::sync::Arc;

use bytes::Bytes;
use url::Url;

use crate::address::{Address, Package};
use crate::error::Error;
use crate::mirror::documents::RETRIES;
use crate::mirror::documents::discovery::DiscoveryTrust;
use crate::mirror::documents::second_opinion::MAX_DOWNLOAD_DOCUMENT;
use crate::mirror::documents::version_lists::ListingState;
use crate::mirror::library::proof_set::{ProofSet, ProofSetMetadata, StoredProofSet};
use crate::mirror::proof_sets::{describe_set, is_absent};
use crate::mirror::{ProofSets, RequestContext};
use crate::store::Key;
use crate::upstream::backoff::Origin;
use crate::upstream::discovery::Service;
use crate::upstream::error::{Fault, UpstreamError, sanitized};
use crate::upstream::limits::MemoryGrant;
use crate::upstream::outbound::origin;
use crate::upstream::providers::{DownloadDocument, download_url};
use crate::upstream::request::{AcceptedCoding, Document, Fetched, UpstreamRequest, Validators};
use crate::upstream::{CredentialScope, Upstream};
use crate::verify::{Checksums, Proof, VerificationError, VerificationPolicy, verify_proof_set};

const MAX_SUMS: u64 = 4 << 20;
const MAX_SIGNATURE: u64 = 64 << 10;

/// SHA256SUMS or a signature: its bytes, its validators, and the origins contacted for it.
type CompanionFile = (Bytes, Validators, Vec<Origin>);

/// The stored set that a fetch builds on.
#[derive(Debug, Clone, Copy)]
pub enum SetBasis<'a> {
    /// None is stored, so a version that upstream's own list does not name is refused.
    Nothing,
    /// Upstream may confirm this set.
    Stored(&'a StoredProofSet),
    /// One is stored, but its URLs have expired.
    Expired,
    /// Whatever is stored, an operator asks what upstream has now, to judge it as a whole.
    Rejudged,
}

impl ProofSets {
    /// Fetches and verifies a set. Does not compare it with earlier sets of the version.
    ///
    /// # Errors
    /// One that `is_absent` recognises, where upstream has no such package.
    pub async fn fetch_verified_set(
        self: &Arc<Self>,
        package: &Package,
        basis: SetBasis<'_>,
        call: &RequestContext,
    ) -> Result<ProofSet, Error> {
        let located = self.locate_set(package, basis, call).await?;
        self.fetch_located_set(package, basis, located, call).await
    }

    /// Finds the URL of a package's download document.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a version that is not stored and that upstream's list does not name.
    pub async fn locate_set(
        self: &Arc<Self>,
        package: &Package,
        basis: SetBasis<'_>,
        call: &RequestContext,
    ) -> Result<LocatedSet, Error> {
        let upstream = &**call.upstream(&package.provider.host)?;
        let trust = match basis {
            SetBasis::Nothing | SetBasis::Rejudged => DiscoveryTrust::AnyStored,
            SetBasis::Expired | SetBasis::Stored(_) => DiscoveryTrust::ConfirmedOnly,
        };
        let (base, credential_scope) =
            self.documents.resolve_service(Service::Providers, upstream, trust, call).await?;
        let provider = Address::from(&package.provider);
        let listed = match basis {
            SetBasis::Nothing => {
                let key = Key::ProofSet(package.clone());
                match self.documents.must_be_listed(&provider, &package.version, &key, call).await {
                    Err(Error::NotFound(reason)) => {
                        return Err(self.documents.unlisted_error(package, reason, call).await);
                    }
                    listed => listed?,
                }
            }
            _ => self.documents.listing_state(&provider, &package.version, call).await,
        };
        let spelled = listed.upstream_spelling().unwrap_or(package.version.as_str());
        let url = download_url(&base, &package.provider, spelled, &package.platform)
            .map_err(|e| UpstreamError::unusable(describe_document(package), origin(&base), e.to_string()))?;
        Ok(LocatedSet { url, credential_scope, listed })
    }

    /// Fetches and verifies a set whose download document is at a known URL.
    ///
    /// # Errors
    /// Those of [`fetch_verified_set`](Self::fetch_verified_set).
    pub async fn fetch_located_set(
        self: &Arc<Self>,
        package: &Package,
        basis: SetBasis<'_>,
        located: LocatedSet,
        call: &RequestContext,
    ) -> Result<ProofSet, Error> {
        let LocatedSet { url, credential_scope, listed } = located;
        let (subject, upstream) = (&*describe_document(package), &**call.upstream(&package.provider.host)?);
        let (build_on, retries) = match basis {
            SetBasis::Nothing | SetBasis::Rejudged => (None, RETRIES),
            SetBasis::Expired => (None, 0),
            SetBasis::Stored(before) => (Some(before), 0),
        };
        let fetch =
            ProofSetFetch { subject, url: &url, upstream, credential_scope: &credential_scope, package, call, retries };
        let fetched = match self.fetch_and_verify_set(&fetch, build_on).await {
            // The document was just revalidated, and one of its files failed: its URLs may have expired.
            Err(Error::Upstream(error)) if error.subject != subject && error.fault.may_be_an_expired_url() => {
                self.fetch_and_verify_set(&fetch, None).await
            }
            fetched => fetched,
        };
        fetched.map_err(|error| match (companion_failure(error, subject), listed) {
            // A 404 for this spelling proves nothing while the list cannot be read.
            (error, ListingState::Unknown(Some(unread))) if is_absent(&error) => unread,
            (error, _) => error,
        })
    }

    async fn fetch_and_verify_set(
        self: &Arc<Self>,
        fetch: &ProofSetFetch<'_>,
        before: Option<&StoredProofSet>,
    ) -> Result<ProofSet, Error> {
        let stored = before.map(|before| &*before.current).filter(|set| set.metadata.asked == *fetch.url);
        let conditions = stored.map(|stored| &stored.metadata.validators);
        let limit = self.runtime.limits.document_bytes.min(MAX_DOWNLOAD_DOCUMENT);
        let (outbound, request) = (&fetch.call.config.outbound, fetch.request(fetch.subject, fetch.url));
        let fetched = outbound.document(AcceptedCoding::Any, request, conditions, limit).await?;
        let unusable = |url: &Url, reason: String| UpstreamError::unusable(fetch.subject, origin(url), reason);
        // `_grant` reserves memory for the body until this function ends.
        let (body, url, validators, mut origins, _grant) = match (fetched, stored) {
            (Fetched::New(Document { body, validators, url, origins, memory: grant, .. }), _) => {
                (body, url, validators, origins, grant)
            }
            (Fetched::Unchanged, Some(stored)) => {
                let ProofSetMetadata { url, validators, origins, .. } = stored.metadata.clone();
                (stored.body.clone(), url, validators, origins, MemoryGrant::default())
            }
            (Fetched::Unchanged, None) => {
                return Err(unusable(fetch.url, "304 to an unconditional request".into()).into());
            }
        };
        let document =
            DownloadDocument::parse(&body, &url, &fetch.package.platform).map_err(|reason| unusable(&url, reason))?;
        let policy = fetch.upstream.settings.verification;
        let stored_sums = stored.filter(|set| set.document.sums_url == document.sums_url);
        let stored_sums = stored_sums.map(|set| (&set.sums, &set.metadata.sums_validators));
        let stored_signature = stored.filter(|set| set.document.signature_url == document.signature_url);
        let stored_signature = stored_signature.map(|set| (&set.signature, &set.metadata.signature_validators));
        let (sums, signature) = tokio::try_join!(
            self.companion(fetch, "SHA256SUMS", &document.sums_url, stored_sums, MAX_SUMS),
            self.signature(fetch, policy, &document, stored_signature),
        )?;
        let archive_url = document.archive_url.clone();
        let proof = match self.verify_set(policy, &sums.0, &signature.0, document).await {
            Some(Ok((proof, _))) => proof,
            Some(Err(verdict)) => return Err(self.unverified_set(fetch, &url, &archive_url, verdict).await),
            None => return Err(Error::Interrupted(describe_set(fetch.package))),
        };
        for warning in &proof.warnings {
            tracing::warn!(package = %fetch.package, warning, "a proof was accepted with a warning");
        }
        origins.extend([sums.2, signature.2].into_iter().flatten());
        origins.sort();
        origins.dedup();
        let metadata = ProofSetMetadata {
            asked: fetch.url.clone(),
            url: url.clone(),
            origins,
            validators,
            sums_validators: sums.1,
            signature_validators: signature.1,
            fetched: fetch.call.now,
            proof,
        };
        Ok(ProofSet::new(metadata, body, sums.0, signature.0, fetch.package)
            .map_err(|reason| unusable(&url, reason))?)
    }

    /// Verifies a set on a blocking thread, because a registry may list many keys. At most two run at a time; one whose
    /// caller has gone counts until it ends. `None` if the thread ended early.
    async fn verify_set(
        &self,
        policy: VerificationPolicy,
        sums: &Bytes,
        signature: &Bytes,
        document: DownloadDocument,
    ) -> Option<Result<(Proof, Checksums), VerificationError>> {
        let (sums, signature) = (sums.clone(), signature.clone());
        let verifying = self.verification_limit.run(&self.runtime.tasks, move || {
            verify_proof_set(policy, &sums, &signature, &document.keys, &document.name_in_sums, &document.shasum)
        });
        verifying.await
    }

    /// Counts a set that does not verify, whose document came from `url`, and says why.
    async fn unverified_set(
        self: &Arc<Self>,
        fetch: &ProofSetFetch<'_>,
        url: &Url,
        archive_url: &Url,
        verdict: VerificationError,
    ) -> Error {
        let ProofSetFetch { package, call, .. } = fetch;
        self.runtime.counters.count_unverified(&package.provider.host, verdict.metric_label());
        let opinion = match verdict {
            VerificationError::Contradiction { listed, stated, .. } => {
                let opinion = self.documents.second_opinion(package, archive_url, call).await;
                opinion.map(|opinion| opinion.of_contradiction(stated, listed))
            }
            _ => None,
        };
        Error::Unverified {
            subject: format!("{} from {}", describe_set(package), origin(url)),
            // The verdict may quote upstream's text, which may contain the query of a URL.
            verdict: opinion.unwrap_or_else(|| sanitized(&verdict.to_string())),
            instead: self.stored_version_before(package, call).await,
        }
    }

    async fn signature(
        &self,
        fetch: &ProofSetFetch<'_>,
        policy: VerificationPolicy,
        document: &DownloadDocument,
        stored_file: Option<(&Bytes, &Validators)>,
    ) -> Result<CompanionFile, Error> {
        let none = Ok(CompanionFile::default());
        let Some(url) = &document.signature_url else { return none };
        match self.companion(fetch, "the signature of SHA256SUMS", url, stored_file, MAX_SIGNATURE).await {
            // A policy of checksums needs no signature, so its absence is not an error.
            Err(error) if policy == VerificationPolicy::Checksum && is_absent(&error) => none,
            fetched => fetched,
        }
    }

    /// Fetches a file that the document names, byte for byte.
    async fn companion(
        &self,
        fetch: &ProofSetFetch<'_>,
        name: &str,
        url: &Url,
        stored_file: Option<(&Bytes, &Validators)>,
        limit: u64,
    ) -> Result<CompanionFile, Error> {
        let subject = format!("{name} of {}", fetch.package);
        let (outbound, conditions) = (&fetch.call.config.outbound, stored_file.map(|(_, validators)| validators));
        let request = fetch.request(&subject, url);
        let fetched = outbound.document(AcceptedCoding::Identity, request, conditions, limit).await?;
        match (fetched, stored_file) {
            (Fetched::New(Document { body, validators, origins, .. }), _) => Ok((body, validators, origins)),
            (Fetched::Unchanged, Some((bytes, validators))) => Ok((bytes.clone(), validators.clone(), Vec::new())),
            (Fetched::Unchanged, None) => {
                Err(UpstreamError::unusable(subject, origin(url), "304 to an unconditional request").into())
            }
        }
    }
}

/// The place of a download document, and the state of its version in upstream's list.
#[derive(Debug)]
pub struct LocatedSet {
    url: Url,
    credential_scope: CredentialScope,
    listed: ListingState,
}

/// Names the download document of a package, for messages.
fn describe_document(package: &Package) -> String {
    format!("the download document of {package}")
}

/// The parameters of fetching one proof set.
struct ProofSetFetch<'a> {
    /// The download document, for messages.
    subject: &'a str,
    url: &'a Url,
    upstream: &'a Upstream,
    credential_scope: &'a CredentialScope,
    package: &'a Package,
    call: &'a RequestContext,
    retries: usize,
}

impl ProofSetFetch<'_> {
    fn request<'b>(&'b self, subject: &'b str, url: &'b Url) -> UpstreamRequest<'b> {
        self.call.upstream_request(subject, url, &self.package.provider.host, self.credential_scope, self.retries)
    }
}

/// Turns a missing companion file into an upstream failure: it must not look like "no such package".
fn companion_failure(error: Error, subject: &str) -> Error {
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
