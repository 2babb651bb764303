//! Requests one archive from upstream: resumes at the next byte, replaces an expired URL, and gives up when a retry is
//! useless.

use crate::mirror::Archives;
use std::sync::Arc;

use tokio::time::{Instant, timeout};
use url::Url;

use crate::address::Package;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::RequestContext;
use crate::mirror::archives::retry_policy::{BodyAnnouncement, DownloadAttempts, NextStep};
use crate::mirror::documents::RETRIES;
use crate::mirror::documents::discovery::DiscoveryTrust;
use crate::mirror::library::proof_set::ProofSet;
use crate::upstream::CredentialScope;
use crate::upstream::backoff::RequestTime;
use crate::upstream::discovery::Service;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::origin;
use crate::upstream::request::{IncomingFile, UpstreamRequest, Validators};
use crate::verify::VerificationError;

/// The archive of a verified set, and the state of its download.
pub(in crate::mirror) struct ArchiveRequest {
    pub(in crate::mirror) archives: Arc<Archives>,
    pub(in crate::mirror) package: Package,
    pub(in crate::mirror) set: Arc<ProofSet>,
    pub(in crate::mirror) call: RequestContext,
    pub(in crate::mirror) subject: String,
    pub(in crate::mirror) attempts: DownloadAttempts,
    url: Url,
}

impl ArchiveRequest {
    pub(in crate::mirror) fn new(
        archives: Arc<Archives>,
        package: Package,
        set: Arc<ProofSet>,
        call: RequestContext,
    ) -> Self {
        let subject = format!("the archive of {package}");
        let url = set.document.archive_url.clone();
        let attempts = DownloadAttempts::new(archives.runtime.limits.stall);
        Self { archives, package, set, call, subject, attempts, url }
    }

    /// Requests the bytes from `from` on. Upstream may start at byte 0 all the same.
    pub(in crate::mirror) async fn send(&mut self, from: u64, validators: &Validators) -> Result<IncomingFile, Error> {
        loop {
            let started = Instant::now();
            let answered = self.ask_once(from, validators).await;
            if self.attempts.is_too_slow_to_answer(started.elapsed()) {
                return Err(self.too_slow());
            }
            let error = match answered {
                Ok(incoming) => return Ok(incoming),
                Err(error) => error,
            };
            match self.attempts.after_refusal(&error.fault) {
                NextStep::RefreshUrl => self.url = self.refreshed_url(&error).await?,
                NextStep::RetryAfter(_) | NextStep::GiveUp | NextStep::TooSlow => {
                    return Err(as_upstream_failure(error).into());
                }
            }
        }
    }

    /// Handles a connection that broke at byte `offset` after `brought` new bytes: pauses before the next attempt, or
    /// returns the error.
    pub(in crate::mirror) async fn handle_break(
        &mut self,
        error: UpstreamError,
        brought: u64,
        offset: u64,
    ) -> Result<(), Error> {
        match self.attempts.after_break(brought) {
            NextStep::RetryAfter(pause) => {
                tracing::warn!(package = %self.package, %error, at_byte = offset, "a download broke; it is resumed");
                tokio::time::sleep(pause).await;
                Ok(())
            }
            NextStep::TooSlow => Err(self.too_slow()),
            NextStep::RefreshUrl | NextStep::GiveUp => Err(error.into()),
        }
    }

    async fn ask_once(&self, from: u64, validators: &Validators) -> Result<IncomingFile, UpstreamError> {
        let credential_scope = self.grant().await;
        let limit = self.archives.runtime.limits.stall;
        match timeout(limit, self.call.config.outbound.file(self.of(&credential_scope), from, validators)).await {
            Ok(answered) => answered,
            Err(_) => Err(self.failed(Fault::Slow(format!("no first byte within {} s", limit.as_secs())))),
        }
    }

    /// Returns the length that upstream announces, in bytes, without fetching the body. `None` where it announces none.
    pub(in crate::mirror) async fn announced_length(&self) -> Option<u64> {
        let credential_scope = self.grant().await;
        match self.call.config.outbound.announced_length(self.of(&credential_scope)).await {
            Ok(length) => length,
            Err(error) => {
                tracing::debug!(package = %self.package, %error, "upstream does not say how large an archive is");
                None
            }
        }
    }

    /// Returns the credential scope for the download. The service is looked up again, because it may have moved since
    /// the set was fetched.
    async fn grant(&self) -> CredentialScope {
        let Some(upstream) = self.call.config.upstreams.get(&self.package.provider.host) else {
            return CredentialScope::default();
        };
        let call = self.archives.runtime.flight_context(&self.call);
        match self
            .archives
            .proof_sets
            .documents
            .resolve_service(Service::Providers, upstream, DiscoveryTrust::InAny, &call)
            .await
        {
            Ok((_, credential_scope)) => credential_scope,
            Err(_) => upstream.credential_scope.clone(),
        }
    }

    fn of<'b>(&'b self, credential_scope: &'b CredentialScope) -> UpstreamRequest<'b> {
        UpstreamRequest {
            label: &self.subject,
            url: &self.url,
            upstream: &self.package.provider.host,
            credentials: credential_scope,
            via: &self.call.via,
            retries: RETRIES,
            priority: self.call.priority,
            time: RequestTime::new(self.archives.runtime.flight_context(&self.call).now),
        }
    }

    fn failed(&self, fault: Fault) -> UpstreamError {
        UpstreamError { subject: self.subject.clone(), origin: origin(&self.url), fault }
    }

    fn too_slow(&self) -> Error {
        let reason = format!("less than 1 KiB/s over {} s", self.archives.runtime.limits.stall.as_secs());
        self.failed(Fault::Slow(reason)).into()
    }

    /// Registries sign the URLs in their documents, and those expire: fetch the document once more.
    async fn refreshed_url(&self, error: &UpstreamError) -> Result<Url, Error> {
        tracing::warn!(package = %self.package, %error, "the archive's URL was refused; its document is fetched again");
        let refreshed = self.archives.proof_sets.refetch_set(&self.package, &self.call).await?;
        if refreshed.current.document.shasum != self.set.document.shasum {
            return Err(Error::Interrupted(format!("{}: upstream has replaced it meanwhile", self.subject)));
        }
        Ok(refreshed.current.document.archive_url.clone())
    }

    /// Returns the error for bytes with the wrong digest. The version may have been republished since the set was
    /// fetched, so the next request revalidates the set.
    pub(in crate::mirror) async fn wrong_digest_error(&self, actual: Digest) -> Error {
        let expected = self.set.document.shasum;
        self.archives
            .runtime
            .counters
            .count_unproven(&self.package.provider.host, VerificationError::Bytes { actual, expected }.metric_label());
        if let Err(error) = self.archives.proof_sets.expire_set(&self.package, expected).await {
            tracing::error!(package = %self.package, %error, "a proof set could not be marked to be asked again");
        }
        let verdict = format!("its bytes have SHA-256 {actual}, and its verified SHA256SUMS say {expected}");
        let subject = format!("{} from {}", self.subject, origin(&self.set.document.archive_url));
        Error::Unverified { subject, verdict }
    }
}

pub(in crate::mirror) fn announced(incoming: &IncomingFile) -> BodyAnnouncement {
    BodyAnnouncement { from: incoming.from, length: incoming.length }
}

/// The error for an upstream that contradicts the length announced to clients.
pub(in crate::mirror) fn length_mismatch(incoming: &IncomingFile, announced: u64, now: u64) -> Error {
    incoming.failed(Fault::Unusable(format!("it announced {announced} bytes, and then {now}"))).into()
}

/// Turns a 4xx for a file of a verified document into an upstream failure: the client asked for something that exists.
fn as_upstream_failure(error: UpstreamError) -> UpstreamError {
    let status = match error.fault {
        Fault::Absent(status) | Fault::Rejected { status, .. } => status,
        _ => return error,
    };
    let fault = Fault::Unusable(format!("{status} for a file that its own document names"));
    UpstreamError { fault, ..error }
}
