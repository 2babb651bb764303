//! Downloads a module source archive into staging. Broken downloads are resumed, also after a restart.

use crate::mirror::Modules;
use std::collections::HashSet;
use std::future::pending;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::digest::FastHash;
use crate::error::Error;
use crate::mirror::archives::archive_request::{announced, length_mismatch};
use crate::mirror::archives::download::{ConnectionCopy, TransferEnd};
use crate::mirror::archives::fill::{is_complete, validators};
use crate::mirror::archives::retry_policy::{DownloadAttempts, LengthAgreement, NextStep, PartialDownload};
use crate::mirror::archives::tail_stream::FillProgress;
use crate::mirror::library::Reservation;
use crate::store::Staged;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::{Outbound, origin};
use crate::upstream::request::{IncomingFile, UpstreamRequest, Validators};

/// The staging names in use. Two fetches that append to one file would mix their bytes.
#[derive(Debug, Clone, Default)]
pub(in crate::mirror) struct StageNames(Arc<Mutex<HashSet<String>>>);

/// A staging name, reserved until dropped.
pub(in crate::mirror) struct StageName {
    name: String,
    names: StageNames,
}

impl StageNames {
    /// Reserves the name, or a numbered variant while another fetch uses it: an `accept` and a client's fill may run
    /// concurrently.
    fn reserve(&self, name: &str) -> StageName {
        let mut taken = self.0.lock();
        let mut reserved = name.to_owned();
        for number in 1_u64.. {
            if taken.insert(reserved.clone()) {
                break;
            }
            reserved = format!("{name}~{number}");
        }
        StageName { name: reserved, names: self.clone() }
    }
}

impl Drop for StageName {
    fn drop(&mut self) {
        self.names.0.lock().remove(&self.name);
    }
}

/// A complete download.
pub(in crate::mirror) struct DownloadedSource {
    pub(in crate::mirror) staged: Staged,
    /// The validators that its server sent.
    pub(in crate::mirror) validators: Validators,
    /// Released once nothing reads the staging file any more.
    pub(in crate::mirror) name: StageName,
}

/// The download of one archive.
pub(in crate::mirror) struct SourceDownload<'a> {
    modules: &'a Arc<Modules>,
    outbound: &'a Outbound,
    ask: UpstreamRequest<'a>,
    reservation: &'a mut Reservation,
    attempts: DownloadAttempts,
}

impl<'a> SourceDownload<'a> {
    pub(in crate::mirror) fn new(
        modules: &'a Arc<Modules>,
        outbound: &'a Outbound,
        ask: UpstreamRequest<'a>,
        reservation: &'a mut Reservation,
    ) -> Self {
        Self { modules, outbound, ask, reservation, attempts: DownloadAttempts::new(modules.runtime.limits.stall) }
    }

    /// Downloads until the archive is complete. `subject` names the package: a staging file belongs to one package and one
    /// URL.
    pub(in crate::mirror) async fn run(mut self, subject: &str) -> Result<DownloadedSource, Error> {
        let name = FastHash::of(format!("{subject} {}", self.ask.url).as_bytes()).to_string();
        let reserved = self.modules.work.stage_names.reserve(&format!("module~{}", &name[..32]));
        let name = reserved.name.as_str();
        let mut staged = self.stage(name).await?;
        if !is_resumable(&staged) {
            staged = self.start_over(staged, name).await?;
        }
        while !is_complete(&staged) {
            let had = staged.written();
            let incoming = self.incoming(had, &validators(&staged)).await?;
            let before = PartialDownload { bytes: had, length: staged.note().and_then(|note| note.length) };
            let length = match self.attempts.compare_length(before, announced(&incoming)) {
                LengthAgreement::Length(length) => length,
                LengthAgreement::StartOver => {
                    staged = self.start_over(staged, name).await?;
                    if incoming.from > 0 {
                        continue;
                    }
                    incoming.length
                }
                // No client reads this download, so no length was announced to one.
                LengthAgreement::Never { announced, now } => return Err(length_mismatch(&incoming, announced, now)),
            };
            let limit = self.modules.runtime.limits.archive_bytes;
            if length.is_some_and(|length| length > limit) {
                return Err(incoming.failed(Fault::TooLarge(limit)).into());
            }
            let bytes = length.unwrap_or(0).max(staged.written());
            let (taken_for, taken) =
                self.modules.library.reserve_staging_space(self.reservation, staged, &incoming, length, bytes).await?;
            staged = taken_for;
            if let Err(reason) = taken {
                // Bytes of an earlier run are kept for a resume once there is disk space. An empty file is not worth
                // keeping.
                if staged.written() == 0 {
                    self.modules.library.on_disk(move |_| staged.discard()).await?;
                }
                return Err(reason.into());
            }
            let (nobody, _) = watch::channel(FillProgress::Waiting);
            let (modules, attempts, reservation) = (self.modules, &mut self.attempts, &mut *self.reservation);
            let pump = ConnectionCopy {
                library: &modules.library,
                attempts,
                reservation,
                progress: &nobody,
                given_up: pending(),
            };
            let pumped = pump.run(staged, incoming, length).await;
            staged = pumped.0.ok_or_else(|| Error::Interrupted(self.ask.label.to_owned()))?;
            match pumped.1 {
                TransferEnd::Whole => break,
                TransferEnd::Differs(error) | TransferEnd::Failed(error) => {
                    self.modules.library.on_disk(move |_| staged.discard()).await?;
                    return Err(error);
                }
                TransferEnd::Broken(error) => match self.attempts.after_break(staged.written().saturating_sub(had)) {
                    NextStep::RetryAfter(pause) => {
                        tracing::warn!(subject, %error, at_byte = staged.written(), "a download broke; it is resumed");
                        tokio::time::sleep(pause).await;
                        if !is_resumable(&staged) {
                            staged = self.start_over(staged, name).await?;
                        }
                    }
                    NextStep::TooSlow | NextStep::RefreshUrl | NextStep::GiveUp => return Err(error.into()),
                },
            }
        }
        let validators = validators(&staged);
        Ok(DownloadedSource { staged, validators, name: reserved })
    }

    async fn incoming(&self, from: u64, validators: &Validators) -> Result<IncomingFile, Error> {
        let limit = self.modules.runtime.limits.stall;
        match timeout(limit, self.outbound.file(self.ask, from, validators)).await {
            Ok(answered) => Ok(answered?),
            Err(_) => {
                let fault = Fault::Slow(format!("no first byte within {} s", limit.as_secs()));
                Err(UpstreamError { subject: self.ask.label.to_owned(), origin: origin(self.ask.url), fault }.into())
            }
        }
    }

    async fn stage(&self, name: &str) -> Result<Staged, Error> {
        let name = name.to_owned();
        self.modules.library.on_disk(move |library| library.store.blobs.stage(&name)).await
    }

    async fn start_over(&self, staged: Staged, name: &str) -> Result<Staged, Error> {
        self.modules.library.on_disk(move |_| staged.discard()).await?;
        self.stage(name).await
    }
}

/// True if the staged bytes may be resumed. No digest verifies them in the end, so the server must be able to confirm
/// by a strong ETag or a date that the file is unchanged.
fn is_resumable(staged: &Staged) -> bool {
    let Validators { etag, last_modified } = validators(staged);
    staged.written() == 0 || last_modified.is_some() || etag.is_some_and(|etag| !etag.starts_with("W/"))
}
