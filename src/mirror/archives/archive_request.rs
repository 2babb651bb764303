//! Requests one file from upstream: resumes at the next byte, and gives up when a retry is useless. For an archive of a
//! proof set, it replaces an expired URL. The retry policy is a small state machine without I/O.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use url::Url;

use crate::address::{Hostname, Package};
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::documents::RETRIES;
use crate::mirror::effects::Effects;
use crate::mirror::library::damage::DELETED_UPSTREAM;
use crate::mirror::library::proof_set::{ProofSet, StoredProofSet};
use crate::mirror::{Archives, Documents, FetchReason, RequestContext};
use crate::upstream::CredentialScope;
use crate::upstream::discovery::Service;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::origin;
use crate::upstream::request::{IncomingFile, UpstreamRequest, Validators};
use crate::verify::VerificationError;

/// A file that is downloaded over as many connections as needed.
pub trait DownloadSource {
    fn state(&mut self) -> &mut DownloadState;

    /// Requests the bytes from `from` on. The source may start at byte 0 all the same.
    async fn send(&mut self, from: u64, validators: &Validators) -> Result<IncomingFile, Error>;
}

/// The state of a download, over all its connections.
#[derive(Debug)]
pub struct DownloadState {
    /// The file, for messages: "the archive of …".
    pub subject: String,
    pub attempts: DownloadAttempts,
}

impl DownloadState {
    /// Handles a connection that broke at byte `offset` after `received_bytes` new bytes: pauses before the next
    /// attempt, or returns the error.
    pub async fn handle_break(&mut self, error: UpstreamError, received_bytes: u64, offset: u64) -> Result<(), Error> {
        match self.attempts.after_break(received_bytes) {
            NextStep::RetryAfter(pause) => {
                tracing::warn!(of = self.subject, %error, at_byte = offset, "a download broke; it is resumed");
                tokio::time::sleep(pause).await;
                Ok(())
            }
            NextStep::TooSlow => Err(UpstreamError { fault: self.attempts.too_slow(), ..error }.into()),
            NextStep::GiveUp => Err(error.into()),
        }
    }
}

/// A file that a service of an upstream names, and the state of its download.
pub struct FileRequest {
    pub call: RequestContext,
    pub download: DownloadState,
    documents: Arc<Documents>,
    service: Service,
    host: Hostname,
    url: Url,
}

impl FileRequest {
    pub fn new(
        documents: &Arc<Documents>,
        (service, host): (Service, &Hostname),
        subject: String,
        url: Url,
        call: RequestContext,
    ) -> Self {
        let attempts = DownloadAttempts::new(documents.runtime.limits.stall);
        let download = DownloadState { subject, attempts };
        Self { call, download, documents: Arc::clone(documents), service, host: host.clone(), url }
    }

    async fn send_once(&self, from: u64, validators: &Validators) -> Result<IncomingFile, UpstreamError> {
        let credentials = self.documents.credentials_for(self.service, &self.host, &self.call).await;
        let (outbound, limit) = (&self.call.config.outbound, self.documents.runtime.limits.stall);
        match timeout(limit, outbound.file(self.upstream_request(&credentials), from, validators)).await {
            Ok(answered) => answered,
            Err(_) => Err(self.upstream_error(Fault::Slow(format!("no first byte within {} s", limit.as_secs())))),
        }
    }

    /// Returns the length that upstream announces, in bytes, without fetching the body. `None` where it announces none.
    pub async fn announced_length(&self) -> Option<u64> {
        let credentials = self.documents.credentials_for(self.service, &self.host, &self.call).await;
        let length = self.call.config.outbound.announced_length(self.upstream_request(&credentials)).await;
        length.unwrap_or_else(|error| {
            tracing::debug!(of = self.download.subject, %error, "upstream does not say how large an archive is");
            None
        })
    }

    fn upstream_request<'a>(&'a self, credentials: &'a CredentialScope) -> UpstreamRequest<'a> {
        self.call.upstream_request(&self.download.subject, &self.url, &self.host, credentials, RETRIES)
    }

    fn upstream_error(&self, fault: Fault) -> UpstreamError {
        UpstreamError { subject: self.download.subject.clone(), origin: origin(&self.url), fault }
    }
}

/// A file that no proof set names: its URL cannot be refreshed.
impl DownloadSource for FileRequest {
    fn state(&mut self) -> &mut DownloadState {
        &mut self.download
    }

    async fn send(&mut self, from: u64, validators: &Validators) -> Result<IncomingFile, Error> {
        Ok(self.send_once(from, validators).await?)
    }
}

/// The request for the archive of a verified set.
pub struct ArchiveRequest {
    pub(super) archives: Arc<Archives>,
    pub(super) package: Package,
    pub(super) set: Arc<ProofSet>,
    pub file: FileRequest,
    /// True if upstream answered 404 for the document, of which a copy is kept.
    is_deleted_version: bool,
}

impl DownloadSource for ArchiveRequest {
    fn state(&mut self) -> &mut DownloadState {
        &mut self.file.download
    }

    async fn send(&mut self, from: u64, validators: &Validators) -> Result<IncomingFile, Error> {
        loop {
            let started = Instant::now();
            let answered = self.file.send_once(from, validators).await;
            if self.file.download.attempts.is_too_slow_to_answer(started.elapsed()) {
                return Err(self.file.upstream_error(self.file.download.attempts.too_slow()).into());
            }
            let error = match answered {
                Ok(incoming) => return Ok(incoming),
                Err(error) => error,
            };
            if self.file.download.attempts.may_refresh_url(&error.fault) {
                let refreshed = self.refreshed_set(&error).await?;
                self.is_deleted_version = refreshed.confirmed.gone;
                self.file.url = refreshed.current.document.archive_url.clone();
                continue;
            }
            let is_deleted = match error.fault {
                Fault::Absent(_) => true,
                Fault::Denied(_) | Fault::Rejected { .. } => self.is_deleted_version,
                _ => false,
            };
            if is_deleted {
                self.drop_lost().await;
            }
            return Err(as_upstream_failure(error, "a file that its own document names").into());
        }
    }
}

impl ArchiveRequest {
    pub fn new(archives: Arc<Archives>, package: Package, set: Arc<ProofSet>, call: RequestContext) -> Self {
        let (subject, url) = (format!("the archive of {package}"), set.document.archive_url.clone());
        let service = (Service::Providers, &package.provider.host);
        let file = FileRequest::new(&archives.proof_sets.documents, service, subject, url, call);
        Self { archives, package, set, file, is_deleted_version: false }
    }

    /// Registries sign the URLs in their documents, and those expire: fetch the document once more.
    async fn refreshed_set(&self, error: &UpstreamError) -> Result<Arc<StoredProofSet>, Error> {
        tracing::warn!(package = %self.package, %error, "the archive's URL was refused; its document is fetched again");
        let proof_sets = &self.archives.proof_sets;
        let flight = proof_sets.join_set_flight(&self.package, None, FetchReason::ExpiredUrl, &self.file.call);
        let refreshed = match flight.await {
            Err(deleted @ Error::NotFound(_)) => {
                self.drop_lost().await;
                return Err(deleted);
            }
            refreshed => refreshed?.value,
        };
        if refreshed.current.document.shasum != self.set.document.shasum {
            return Err(Error::Interrupted(format!(
                "{}: upstream has replaced it meanwhile",
                self.file.download.subject
            )));
        }
        Ok(refreshed)
    }

    /// Takes the archive off its name, unless it is here: upstream has deleted it.
    async fn drop_lost(&self) {
        self.archives.library.drop_lost(&self.package, self.set.document.shasum, DELETED_UPSTREAM).await;
    }

    /// Returns the error for bytes with the wrong digest. The version may have been republished since the set was
    /// fetched, so the next request revalidates the set.
    pub(super) async fn wrong_digest_error(&self, actual: Digest) -> Error {
        let expected = self.set.document.shasum;
        self.archives.runtime.counters.count_unverified(
            &self.package.provider.host,
            VerificationError::Bytes { actual, expected }.metric_label(),
        );
        if let Err(error) = self.archives.proof_sets.expire_set(&self.package, expected).await {
            tracing::error!(package = %self.package, %error, "a proof set could not be marked for revalidation");
        }
        let verdict = format!("its bytes have SHA-256 {actual}, and its verified SHA256SUMS say {expected}");
        let subject = format!("{} from {}", self.file.download.subject, origin(&self.set.document.archive_url));
        Error::Unverified { subject, verdict, instead: None }
    }

    /// The size of an earlier download without an announced length.
    pub(super) fn learned_length(&self) -> Option<u64> {
        self.archives.learned_lengths.get(&self.key(), self.file.call.now)
    }

    /// Remembers the length of an archive that upstream sends without one. The next fill reserves that much disk space
    /// before a client gets a byte.
    pub(super) fn remember_length(&self, bytes: u64) {
        let now = self.file.call.now;
        self.archives.learned_lengths.insert(Effects::Real, self.key(), bytes, LENGTH_LIFETIME, now);
    }

    fn key(&self) -> (Package, Digest) {
        (self.package.clone(), self.set.document.shasum)
    }
}

/// The time for which the length of an archive is remembered that upstream sent without one.
const LENGTH_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The error for an upstream whose announced length now differs from the one that clients were sent.
pub fn length_mismatch(incoming: &IncomingFile, sent_to_clients: u64, announced_length: u64) -> Error {
    incoming
        .upstream_error(Fault::Unusable(format!("it announced {sent_to_clients} bytes, and then {announced_length}")))
        .into()
}

/// Turns a 4xx for `file`, which upstream itself names, into an upstream failure: the client asked for something that
/// exists.
pub fn as_upstream_failure(error: UpstreamError, file: &str) -> UpstreamError {
    let status = match error.fault {
        Fault::Absent(status) | Fault::Rejected { status, .. } => status,
        _ => return error,
    };
    let fault = Fault::Unusable(format!("{status} for {file}"));
    UpstreamError { fault, ..error }
}

/// The most consecutive breaks without a new byte.
const MAX_FRUITLESS_BREAKS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);
/// The minimum throughput over the stall time.
const MIN_DOWNLOAD_RATE: u64 = 1024;

/// The length announced to clients. If it changed, a client could take a part of the archive for the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnnouncedLength {
    Nothing,
    /// This many bytes.
    Length(u64),
    /// Announced as unknown.
    NoLength,
}

/// The next step after a connection broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Request the rest after this pause.
    RetryAfter(Duration),
    /// A retry is useless.
    GiveUp,
    TooSlow,
}

/// The result of comparing upstream's announcement with the earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthAgreement {
    /// The announcements do not contradict each other. The download continues with this length; `None` if it is
    /// unknown.
    Length(Option<u64>),
    /// The partial download must be discarded.
    StartOver,
    /// They contradict each other, and clients were sent the first.
    Never { sent_to_clients: u64, announced_length: u64 },
}

/// The partial download: its size, and the length announced for the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartialDownload {
    pub bytes: u64,
    pub length: Option<u64>,
}

/// The state of the attempts to fetch one archive.
#[derive(Debug)]
pub struct DownloadAttempts {
    pub announced: AnnouncedLength,
    has_refreshed_url: bool,
    fruitless: u32,
    stall: Duration,
    /// The wait since throughput was last judged, over all connections, and the bytes received in it.
    waited: Duration,
    received_bytes: u64,
}

impl DownloadAttempts {
    /// Starts without attempts. An upstream that is too slow over `stall` is given up.
    pub fn new(stall: Duration) -> Self {
        Self {
            announced: AnnouncedLength::Nothing,
            has_refreshed_url: false,
            fruitless: 0,
            stall,
            waited: Duration::ZERO,
            received_bytes: 0,
        }
    }

    /// Records that clients may be sent this length from now on.
    pub fn announce(&mut self, length: Option<u64>) {
        self.announced = length.map_or(AnnouncedLength::NoLength, AnnouncedLength::Length);
    }

    /// Counts a wait for an answer. Returns true if upstream is too slow; before anything was announced to clients,
    /// never.
    pub fn is_too_slow_to_answer(&mut self, waited: Duration) -> bool {
        self.announced != AnnouncedLength::Nothing && self.is_too_slow(waited, 0)
    }

    /// Counts a wait and its bytes. Returns true if upstream is too slow: a whole stall time had too few bytes.
    pub fn is_too_slow(&mut self, waited: Duration, received_bytes: u64) -> bool {
        self.waited += waited;
        self.received_bytes += received_bytes;
        if self.waited < self.stall {
            return false;
        }
        self.waited = Duration::ZERO;
        std::mem::take(&mut self.received_bytes) < MIN_DOWNLOAD_RATE * self.stall.as_secs()
    }

    /// The fault of an upstream that is too slow.
    pub fn too_slow(&self) -> Fault {
        Fault::Slow(format!("less than 1 KiB/s over {} s", self.stall.as_secs()))
    }

    /// Returns true after a refusal if the URL may have expired: then the document that names it is fetched again, once.
    pub fn may_refresh_url(&mut self, fault: &Fault) -> bool {
        let may_refresh = !self.has_refreshed_url && fault.may_be_an_expired_url();
        self.has_refreshed_url |= may_refresh;
        may_refresh
    }

    /// Decides the next step after a connection broke with `received_bytes` new bytes.
    pub fn after_break(&mut self, received_bytes: u64) -> NextStep {
        if received_bytes > 0 {
            self.fruitless = 0;
            // A long download may outlive its second URL too.
            self.has_refreshed_url = false;
        } else {
            self.fruitless += 1;
        }
        let pause = PAUSE * (self.fruitless + 1);
        if self.fruitless >= MAX_FRUITLESS_BREAKS {
            NextStep::GiveUp
        } else if self.is_too_slow(pause, 0) {
            NextStep::TooSlow
        } else {
            NextStep::RetryAfter(pause)
        }
    }

    /// Compares the first byte and the length that upstream announces now with the partial download.
    pub fn compare_length(&self, before: PartialDownload, from: u64, length: Option<u64>) -> LengthAgreement {
        match (self.announced, length) {
            (AnnouncedLength::Length(sent_to_clients), Some(announced_length))
                if sent_to_clients != announced_length =>
            {
                LengthAgreement::Never { sent_to_clients, announced_length }
            }
            (AnnouncedLength::Length(announced), _) => LengthAgreement::Length(Some(announced)),
            (AnnouncedLength::NoLength, _) => LengthAgreement::Length(None),
            // The partial download of an earlier run is only useful if it fits.
            (AnnouncedLength::Nothing, length) => {
                let fits = before.length.is_none() || length.is_none() || before.length == length;
                let starts_over = from == 0 && before.bytes > 0;
                if starts_over || !fits { LengthAgreement::StartOver } else { LengthAgreement::Length(length) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(30);
    const NOT_FOUND: Fault = Fault::Absent(404);
    const DOWN: Fault = Fault::Trouble { status: 503, errors: Vec::new(), retry_after: None };

    enum Event {
        Broke(u64),
        Waited(u64, u64),
    }
    use Event::{Broke, Waited};

    const fn after(milliseconds: u64) -> NextStep {
        NextStep::RetryAfter(Duration::from_millis(milliseconds))
    }

    /// Each row: a first refusal, the bytes until the connection broke after it, the next refusal, and its answer.
    #[test]
    fn a_url_that_may_have_expired_is_replaced_once_and_again_after_bytes_have_arrived() {
        for (row, (first, broke, last, expected)) in [
            (None, None, NOT_FOUND, true),
            (None, None, DOWN, false),
            (None, None, Fault::Denied(403), true),
            (None, None, Fault::Denied(451), false),
            (Some(NOT_FOUND), None, NOT_FOUND, false),
            (Some(NOT_FOUND), Some(1), NOT_FOUND, true),
            (Some(NOT_FOUND), Some(0), NOT_FOUND, false),
        ]
        .into_iter()
        .enumerate()
        {
            let mut attempts = DownloadAttempts::new(STALL);
            assert!(first.is_none_or(|fault| attempts.may_refresh_url(&fault)), "row {row}");
            if let Some(received_bytes) = broke {
                attempts.after_break(received_bytes);
            }
            assert_eq!(attempts.may_refresh_url(&last), expected, "row {row}");
        }
    }

    /// Each row: a sequence of events, and the step after the last one.
    #[test]
    fn breaks_decide_the_next_step() {
        let table: [(&[Event], NextStep); 5] = [
            // Breaks without bytes end the download, each after a longer pause.
            (&[Broke(1)], after(200)),
            (&[Broke(0)], after(400)),
            (&[Broke(0), Broke(0)], after(600)),
            (&[Broke(0), Broke(0), Broke(0)], NextStep::GiveUp),
            // Too little over the stall time.
            (&[Waited(29_900, 100), Broke(1)], NextStep::TooSlow),
        ];
        for (row, (events, expected)) in table.into_iter().enumerate() {
            let mut attempts = DownloadAttempts::new(STALL);
            let mut next = None;
            for event in events {
                next = Some(match event {
                    Broke(received_bytes) => attempts.after_break(*received_bytes),
                    Waited(milliseconds, received_bytes) => {
                        assert!(!attempts.is_too_slow(Duration::from_millis(*milliseconds), *received_bytes));
                        continue;
                    }
                });
            }
            assert_eq!(next, Some(expected), "row {row}");
        }
    }

    #[test]
    fn a_break_with_progress_resets_the_fruitless_count() {
        let mut attempts = DownloadAttempts::new(STALL);
        for _ in 0..10 {
            assert_eq!(
                [attempts.after_break(0), attempts.after_break(0), attempts.after_break(5)],
                [after(400), after(600), after(200)]
            );
        }
    }

    #[test]
    fn silence_before_an_answer_counts_only_after_a_length_was_announced() {
        let mut attempts = DownloadAttempts::new(STALL);
        assert!(!attempts.is_too_slow_to_answer(STALL * 2));
        attempts.announce(None);
        assert!(attempts.is_too_slow_to_answer(STALL * 2));
    }

    #[test]
    fn throughput_is_measured_over_each_stall_time() {
        let mut attempts = DownloadAttempts::new(STALL);
        assert!(!attempts.is_too_slow(STALL, 30 * 1024));
        assert!(!attempts.is_too_slow(STALL / 2, 0));
        assert!(attempts.is_too_slow(STALL / 2, 30 * 1024 - 1));
    }

    /// Each row: the announced length, the partial download with its length, upstream's announcement, and the result.
    #[test]
    fn announced_lengths_are_compared() {
        let (nothing, length, no_length) =
            (AnnouncedLength::Nothing, AnnouncedLength::Length(10), AnnouncedLength::NoLength);
        let table = [
            (nothing, (0, None), (0, Some(10)), LengthAgreement::Length(Some(10))),
            (nothing, (0, None), (0, None), LengthAgreement::Length(None)),
            (nothing, (4, Some(10)), (4, Some(10)), LengthAgreement::Length(Some(10))),
            (nothing, (4, None), (4, Some(10)), LengthAgreement::Length(Some(10))),
            (nothing, (4, Some(10)), (4, None), LengthAgreement::Length(None)),
            // Another file, or one that starts over: the partial download of an earlier run is useless.
            (nothing, (4, Some(10)), (4, Some(11)), LengthAgreement::StartOver),
            (nothing, (4, Some(10)), (0, Some(10)), LengthAgreement::StartOver),
            // Clients have bytes of the first: a restart is compared, and another length never fits.
            (length, (4, Some(10)), (4, Some(10)), LengthAgreement::Length(Some(10))),
            (length, (4, Some(10)), (0, Some(10)), LengthAgreement::Length(Some(10))),
            (length, (4, Some(10)), (4, None), LengthAgreement::Length(Some(10))),
            (
                length,
                (4, Some(10)),
                (4, Some(11)),
                LengthAgreement::Never { sent_to_clients: 10, announced_length: 11 },
            ),
            (length, (4, Some(10)), (0, Some(9)), LengthAgreement::Never { sent_to_clients: 10, announced_length: 9 }),
            (no_length, (4, None), (4, Some(10)), LengthAgreement::Length(None)),
            (no_length, (4, None), (0, None), LengthAgreement::Length(None)),
        ];
        for (row, (announced, (bytes, before), (from, now), expected)) in table.into_iter().enumerate() {
            let attempts = DownloadAttempts { announced, ..DownloadAttempts::new(STALL) };
            let agreed = attempts.compare_length(PartialDownload { bytes, length: before }, from, now);
            assert_eq!(agreed, expected, "row {row}");
        }
    }
}
