//! Passes an archive that cannot be stored from upstream to one client. It is hashed in transit, and its last bytes are
//! withheld until it is verified (promise 9).

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, stream};
use tokio::sync::OwnedSemaphorePermit;

use crate::address::Package;
use crate::digest::Hasher;
use crate::error::Error;
use crate::mirror::archives::Archive;
use crate::mirror::archives::archive_request::{
    AnnouncedLength, ArchiveRequest, DownloadSource, LengthAgreement, PartialDownload, length_mismatch,
};
use crate::mirror::archives::download::{TAIL_BYTES, next_piece};
use crate::mirror::library::proof_set::ProofSet;
use crate::mirror::{Archives, RequestContext, SMALL_ARCHIVE_BYTES};
use crate::store::StoreError;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::Connectivity;
use crate::upstream::request::{IncomingFile, Validators};

/// The most clients with a pass-through at a time. Each takes a connection to upstream.
pub(super) const MAX_PASS_THROUGHS: usize = 16;

impl Archives {
    /// Passes an archive through to one client. `reason` is the error that prevents storing it.
    pub async fn pass_through(
        self: &Arc<Self>,
        package: &Package,
        set: &Arc<ProofSet>,
        reason: StoreError,
        call: &RequestContext,
    ) -> Result<Archive, Error> {
        if self.runtime.connectivity() == Connectivity::Offline {
            return Err(reason.into());
        }
        let Ok(permit) = Arc::clone(&self.pass_through_permits).try_acquire_owned() else {
            let reason = format!(
                "this mirror cannot store it ({}), and as many clients as may be at one time get archives straight from upstream",
                reason.without_paths()
            );
            return Err(Error::Busy { subject: format!("the archive of {package}"), reason });
        };
        self.runtime.counters.passed_through.inc();
        let asking =
            ArchiveRequest::new(Arc::clone(self), package.clone(), Arc::clone(set), self.runtime.flight_context(call));
        PassThrough::begin(asking, permit).await?.into_archive(call).await
    }
}

/// A pass-through of an archive to one client.
pub struct PassThrough {
    request: ArchiveRequest,
    /// `None` while reconnecting: a request that waits for a concurrency permit must not hold another.
    incoming: Option<IncomingFile>,
    validators: Validators,
    length: Option<u64>,
    /// `received` counts all connections; `received_before` is its value at the start of the last one.
    received: u64,
    received_before: u64,
    hasher: Hasher,
    /// The bytes received and not yet sent.
    withheld: BytesMut,
    is_verified: bool,
    _permit: OwnedSemaphorePermit,
}

impl std::fmt::Debug for PassThrough {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PassThrough").field("received", &self.received).finish_non_exhaustive()
    }
}

impl PassThrough {
    async fn begin(mut asking: ArchiveRequest, permit: OwnedSemaphorePermit) -> Result<Self, Error> {
        let incoming = asking.send(0, &Validators::default()).await?;
        let limit = asking.archives.runtime.limits.archive_bytes;
        if incoming.length.is_some_and(|length| length > limit) {
            return Err(incoming.upstream_error(Fault::TooLarge(limit)).into());
        }
        Ok(Self {
            validators: incoming.validators.clone(),
            length: incoming.length,
            request: asking,
            incoming: Some(incoming),
            received: 0,
            received_before: 0,
            hasher: Hasher::new(),
            withheld: BytesMut::new(),
            is_verified: false,
            _permit: permit,
        })
    }

    /// Receives the bytes that are needed before the status line (promise 3).
    async fn into_archive(mut self, call: &RequestContext) -> Result<Archive, Error> {
        loop {
            let may_begin = self.length.unwrap_or(self.received) > SMALL_ARCHIVE_BYTES;
            if may_begin && self.length.is_none() && !call.takes_unknown_length {
                let reason = "upstream does not say how long it is, this mirror cannot store it, and a client of HTTP/1.0 could not tell a part of it from the whole";
                return Err(Error::Busy {
                    subject: self.request.file.download.subject.clone(),
                    reason: reason.to_owned(),
                });
            }
            if may_begin {
                self.request.file.download.attempts.announce(self.length);
                let length = self.length;
                return Ok(Archive::PassedThrough { passing: Box::new(self), length });
            }
            match self.next().await? {
                Some(piece) => self.withheld.extend_from_slice(&piece),
                None => {
                    self.verify().await?;
                    let digest = self.request.set.document.shasum;
                    return Ok(Archive::InMemory { bytes: self.withheld.freeze(), digest, stored: None });
                }
            }
        }
    }

    /// Streams the bytes, the last of them only after verification. Ends in an error where they are wrong or do not
    /// arrive, so that the client does not take the body for complete.
    pub fn stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send {
        stream::try_unfold(self, |mut passing| async move {
            match passing.next_chunk().await {
                Ok(chunk) => Ok(chunk.map(|bytes| (bytes, passing))),
                Err(error) => {
                    tracing::error!(package = %passing.request.package, %error, "the pass-through of an archive broke off");
                    Err(io::Error::other(error.to_string()))
                }
            }
        })
    }

    /// Returns the next bytes to send; `None` after the last.
    async fn next_chunk(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let before_the_tail = self.length.unwrap_or(self.received).saturating_sub(TAIL_BYTES).min(self.received);
            let sendable = if self.is_verified { self.received } else { before_the_tail };
            let forwarded = self.received.saturating_sub(self.withheld.len() as u64);
            // The withheld bytes are in memory, so their length fits a usize.
            let more = (sendable.saturating_sub(forwarded) as usize).min(self.withheld.len());
            if more > 0 {
                return Ok(Some(self.withheld.split_to(more).freeze()));
            }
            if self.is_verified {
                return Ok(None);
            }
            match self.next().await? {
                Some(piece) => self.withheld.extend_from_slice(&piece),
                None => self.verify().await?,
            }
        }
    }

    /// Returns the next bytes, over as many connections as needed; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let ArchiveRequest { archives, file, .. } = &mut self.request;
            let incoming = self.incoming.as_mut().ok_or_else(|| Error::Interrupted(file.download.subject.clone()))?;
            let error = match next_piece(&archives.library, incoming, &mut file.download.attempts, self.received).await
            {
                Ok(Some(piece)) => {
                    self.received += piece.len() as u64;
                    if self.length.is_some_and(|length| self.received > length) {
                        let fault = Fault::Unusable("it sent more than it announced".into());
                        return Err(incoming.upstream_error(fault).into());
                    }
                    self.hasher.update(&piece);
                    return Ok(Some(piece));
                }
                Ok(None) if self.length.is_none_or(|length| self.received == length) => return Ok(None),
                Ok(None) => incoming.upstream_error(Fault::Unreachable("the body ended early".into())),
                Err(error) if matches!(error.fault, Fault::Slow(_) | Fault::TooLarge(_)) => return Err(error.into()),
                Err(error) => error,
            };
            self.incoming = None;
            self.resume(error).await?;
        }
    }

    async fn resume(&mut self, broken: UpstreamError) -> Result<(), Error> {
        self.request
            .file
            .download
            .handle_break(broken, self.received.saturating_sub(self.received_before), self.received)
            .await?;
        loop {
            let incoming = self.request.send(self.received, &self.validators).await?;
            let before = PartialDownload { bytes: self.received, length: self.length };
            let agreed =
                self.request.file.download.attempts.compare_length(before, incoming.body_offset, incoming.length);
            let length = match agreed {
                LengthAgreement::Length(length) if incoming.body_offset == self.received => length,
                LengthAgreement::Never { sent_to_clients, announced_length } => {
                    return Err(length_mismatch(&incoming, sent_to_clients, announced_length));
                }
                LengthAgreement::StartOver
                    if self.request.file.download.attempts.announced == AnnouncedLength::Nothing =>
                {
                    self.restart();
                    if incoming.body_offset > 0 {
                        continue;
                    }
                    incoming.length
                }
                // The bytes already sent were not stored, so a restart cannot be compared with them.
                LengthAgreement::Length(_) | LengthAgreement::StartOver => {
                    let fault = Fault::Unusable("it started the download over instead of resuming it".into());
                    return Err(incoming.upstream_error(fault).into());
                }
            };
            self.validators = incoming.validators.clone();
            (self.length, self.received_before, self.incoming) = (length, self.received, Some(incoming));
            return Ok(());
        }
    }

    fn restart(&mut self) {
        self.withheld.clear();
        self.hasher = Hasher::new();
        self.received = 0;
    }

    async fn verify(&mut self) -> Result<(), Error> {
        let (actual, _) = std::mem::take(&mut self.hasher).finish();
        if actual != self.request.set.document.shasum {
            return Err(self.request.wrong_digest_error(actual).await);
        }
        if self.length.is_none() {
            self.request.remember_length(self.received);
        }
        self.is_verified = true;
        Ok(())
    }
}
