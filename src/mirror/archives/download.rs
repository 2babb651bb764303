//! Downloads a file to staging, and resumes where a connection breaks. One task reads, one thread hashes and writes.
//! Where upstream starts over, the bytes already staged are compared. Any number of clients follow the download of an
//! archive, each at its own speed.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};

use crate::error::Error;
use crate::mirror::Library;
use crate::mirror::archives::archive_request::{
    DownloadAttempts, DownloadSource, LengthAgreement, PartialDownload, length_mismatch,
};
use crate::mirror::archives::unattended::ListedFill;
use crate::mirror::library::fill_progress::FillProgress;
use crate::mirror::library::{Reservation, StoredArchive};
use crate::store::{Intake, PieceReader, READ_BUFFER_BYTES, ReadShare, ResumeNote, Staged, StoreError};
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::request::{IncomingFile, Validators};

/// Pieces queued between reader and writer. With the buffers of the connection, this is all the memory of a fill.
const PIECES_WAITING: usize = 4;
/// The step in which a download of unknown length reserves disk space.
const ROOM_STEP_BYTES: u64 = 1 << 20;
/// The amount of staged bytes after which write-back starts, so that the final sync is short.
const WRITE_BACK_BYTES: u64 = 32 << 20;

/// A download to a staging file, over as many connections as needed.
pub struct Download<'a, S> {
    pub library: &'a Arc<Library>,
    pub source: &'a mut S,
    pub stage_name: &'a str,
    pub reservation: &'a mut Reservation,
    /// The bytes to reserve where upstream announces no length.
    pub expected_bytes: u64,
    /// False if no digest verifies the bytes in the end. Then a download is resumed only if its server can confirm, by
    /// a strong ETag or a date, that the file is unchanged.
    pub is_verified_by_digest: bool,
    /// The way of the bytes to where the larder keeps them, if they go there while they arrive.
    pub intake: Option<&'a Arc<dyn Intake>>,
    /// The clients that follow the download, if any. They are told the announced length.
    pub progress: Option<&'a watch::Sender<FillProgress>>,
    /// The entry in the list of the client that started it. The download is given up once that is over its limit.
    pub listed_fill: Option<&'a ListedFill>,
}

impl<S: DownloadSource> Download<'_, S> {
    /// Downloads until everything is staged.
    pub async fn run(mut self) -> Result<Staged, Error> {
        let (library, limit) = (self.library, self.library.runtime.limits.archive_bytes);
        let subject = self.source.state().subject.clone();
        let mut staged = self.stage().await?;
        loop {
            let before =
                PartialDownload { bytes: staged.written(), length: staged.note().and_then(|note| note.length) };
            let validators = validators(&staged);
            if before.bytes > 0 && !self.is_verified_by_digest && validators.for_range().is_none() {
                staged = self.start_over(staged).await?;
                continue;
            }
            if before.bytes > 0 && before.length == Some(before.bytes) {
                return Ok(staged);
            }
            let incoming = tokio::select! {
                answered = self.source.send(before.bytes, &validators) => answered?,
                reason = ListedFill::until_over_limit(self.listed_fill, &subject) => return Err(reason),
            };
            let length =
                match self.source.state().attempts.compare_length(before, incoming.body_offset, incoming.length) {
                    LengthAgreement::Length(length) => length,
                    LengthAgreement::StartOver => {
                        staged = self.start_over(staged).await?;
                        if incoming.body_offset > 0 {
                            continue;
                        }
                        incoming.length
                    }
                    LengthAgreement::Never { sent_to_clients, announced_length } => {
                        library.discard_staged(staged).await?;
                        return Err(length_mismatch(&incoming, sent_to_clients, announced_length));
                    }
                };
            if length.is_some_and(|length| length > limit) {
                return Err(incoming.upstream_error(Fault::TooLarge(limit)).into());
            }
            // For the whole length, before any client gets a byte.
            let bytes = length.unwrap_or(self.expected_bytes).max(staged.written());
            let Validators { etag, last_modified } = incoming.validators.clone();
            let note = ResumeNote { etag, last_modified, length };
            let (returned, reserved) = library.reserve_staging_space(self.reservation, staged, note, bytes).await?;
            staged = returned;
            if let Err(reason) = reserved {
                // Bytes of an earlier run can be resumed once there is space. An empty file is useless.
                if staged.written() == 0 {
                    library.try_to_discard_staged(staged, &subject).await;
                }
                return Err(reason.into());
            }
            if let Some(progress) = self.progress {
                self.source.state().attempts.announce(length);
                let (bytes, written) = (staged.bytes(), staged.written());
                progress.send_replace(FillProgress::Streaming { bytes, written, length });
            }
            let copied = self.copy_connection(staged, incoming, length, &subject).await;
            let (returned, ended) = copied.ok_or_else(|| Error::Interrupted(subject.clone()))?;
            staged = returned;
            match ended {
                ConnectionEnd::Whole => return Ok(staged),
                ConnectionEnd::Differs(error) => {
                    library.discard_staged(staged).await?;
                    return Err(error);
                }
                ConnectionEnd::Failed(error) => {
                    // The disk is full: the partial file is worth less than the space it takes.
                    if matches!(error, Error::Store(_)) {
                        library.try_to_discard_staged(staged, &subject).await;
                    }
                    return Err(error);
                }
                ConnectionEnd::Broken(error) => {
                    let offset = staged.written();
                    self.source.state().handle_break(error, offset.saturating_sub(before.bytes), offset).await?;
                }
            }
        }
    }

    async fn stage(&self) -> Result<Staged, Error> {
        let name = self.stage_name.to_owned();
        self.library.on_disk(move |library| library.stage(&name)).await
    }

    async fn start_over(&self, staged: Staged) -> Result<Staged, Error> {
        self.library.discard_staged(staged).await?;
        self.stage().await
    }

    /// Appends the arriving bytes until the connection ends. `None` if the thread of the staging file died.
    async fn copy_connection(
        &mut self,
        staged: Staged,
        mut incoming: IncomingFile,
        length: Option<u64>,
        subject: &str,
    ) -> Option<(Staged, ConnectionEnd)> {
        let (pieces, waiting) = mpsc::channel(PIECES_WAITING);
        let writer = DownloadWriter {
            staged,
            offset: incoming.body_offset,
            length,
            intake: self.intake.cloned(),
            progress: self.progress.cloned(),
            write_back: WriteBack::default(),
        };
        let (end, ended) = oneshot::channel();
        // A dedicated thread: a slow upstream must not occupy one that serves stored archives.
        let thread = std::thread::Builder::new().name("fill".into());
        let started = thread.spawn(move || {
            // The receiver may be gone.
            let _ = end.send(writer.run(waiting));
        });
        started.ok()?;
        let growing = length.is_none().then_some(&mut *self.reservation);
        let read = tokio::select! {
            read = read(self.library, &mut incoming, &mut self.source.state().attempts, growing, pieces) => read,
            reason = ListedFill::until_over_limit(self.listed_fill, subject) => Err(ConnectionEnd::Failed(reason)),
        };
        let (staged, written) = ended.await.ok()?;
        let whole = length.is_none_or(|length| staged.written() == length);
        let ended = match (written, read) {
            (Err(WriteStop::Disk(error)), _) => ConnectionEnd::Failed(error.into()),
            (Err(WriteStop::Differs(reason)), _) => {
                ConnectionEnd::Differs(incoming.upstream_error(Fault::Unusable(reason.into())).into())
            }
            (Ok(()), Err(end)) => end,
            (Ok(()), Ok(())) if whole => ConnectionEnd::Whole,
            (Ok(()), Ok(())) => {
                ConnectionEnd::Broken(incoming.upstream_error(Fault::Unreachable("the body ended early".into())))
            }
        };
        Some((staged, ended))
    }
}

impl Library {
    pub(super) async fn discard_staged(self: &Arc<Self>, staged: Staged) -> Result<(), Error> {
        self.on_disk(move |_| staged.discard()).await
    }

    async fn try_to_discard_staged(self: &Arc<Self>, staged: Staged, subject: &str) {
        if let Err(error) = self.discard_staged(staged).await {
            tracing::warn!(of = subject, %error, "the staging file of a download could not be removed");
        }
    }
}

/// The validators for resuming a staged download.
pub fn validators(staged: &Staged) -> Validators {
    let note = staged.note().cloned().unwrap_or_default();
    Validators { etag: note.etag, last_modified: note.last_modified }
}

/// The end of one connection of a download.
enum ConnectionEnd {
    /// Upstream sent everything that it announced.
    Whole,
    /// The connection broke. The download can be resumed.
    Broken(UpstreamError),
    /// Upstream contradicts what it announced or sent before. The staged bytes are useless.
    Differs(Error),
    /// The download is given up, or the disk failed.
    Failed(Error),
}

impl ConnectionEnd {
    fn of(error: UpstreamError) -> Self {
        match error.fault {
            Fault::TooLarge(_) => Self::Differs(error.into()),
            Fault::Slow(_) => Self::Failed(error.into()),
            _ => Self::Broken(error),
        }
    }
}

/// Reads to the end. A download of unknown length reserves disk space as it grows.
async fn read(
    library: &Arc<Library>,
    incoming: &mut IncomingFile,
    attempts: &mut DownloadAttempts,
    mut growing: Option<&mut Reservation>,
    pieces: mpsc::Sender<Bytes>,
) -> Result<(), ConnectionEnd> {
    let mut received = incoming.body_offset;
    while let Some(piece) = next_piece(library, incoming, attempts, received).await.map_err(ConnectionEnd::of)? {
        received += piece.len() as u64;
        if let Some(reservation) = growing.as_deref_mut() {
            // In steps, or a full store would be scanned for every piece.
            let step = received.next_multiple_of(ROOM_STEP_BYTES).min(library.size_limit_bytes()).max(received);
            library.reserve(reservation, step).await.map_err(ConnectionEnd::Failed)?;
        }
        if pieces.send(piece).await.is_err() {
            // The writer stopped and reports the cause.
            return Ok(());
        }
    }
    Ok(())
}

/// Returns the next bytes; `None` at the end. Fails where upstream is too slow or sends too much.
pub(super) async fn next_piece(
    library: &Library,
    incoming: &mut IncomingFile,
    attempts: &mut DownloadAttempts,
    received: u64,
) -> Result<Option<Bytes>, UpstreamError> {
    let (stall, limit) = (library.runtime.limits.stall, library.runtime.limits.archive_bytes);
    let began = Instant::now();
    let piece = match timeout(stall, incoming.next()).await {
        Ok(piece) => piece?,
        Err(_) => return Err(incoming.upstream_error(Fault::Slow(format!("no byte for {} s", stall.as_secs())))),
    };
    let Some(piece) = piece else { return Ok(None) };
    if received + piece.len() as u64 > limit {
        return Err(incoming.upstream_error(Fault::TooLarge(limit)));
    }
    // Count only the wait for upstream, not the time that our disk or a client takes.
    if attempts.is_too_slow(began.elapsed(), piece.len() as u64) {
        return Err(incoming.upstream_error(attempts.too_slow()));
    }
    Ok(Some(piece))
}

enum WriteStop {
    Disk(StoreError),
    Differs(&'static str),
}

struct DownloadWriter {
    staged: Staged,
    offset: u64,
    length: Option<u64>,
    intake: Option<Arc<dyn Intake>>,
    progress: Option<watch::Sender<FillProgress>>,
    write_back: WriteBack,
}

impl DownloadWriter {
    fn run(mut self, mut pieces: mpsc::Receiver<Bytes>) -> (Staged, Result<(), WriteStop>) {
        while let Some(piece) = pieces.blocking_recv() {
            if let Err(stopped) = self.take(&piece) {
                return (self.staged, Err(stopped));
            }
        }
        (self.staged, Ok(()))
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), WriteStop> {
        let known = self.staged.written().saturating_sub(self.offset).min(piece.len() as u64);
        let (again, new) = piece.split_at(usize::try_from(known).unwrap_or(piece.len()));
        if !again.is_empty() && !self.staged.agrees(self.offset, again).map_err(WriteStop::Disk)? {
            return Err(WriteStop::Differs("it started the download over with other bytes"));
        }
        self.offset += piece.len() as u64;
        if new.is_empty() {
            return Ok(());
        }
        if self.length.is_some_and(|length| self.staged.written() + new.len() as u64 > length) {
            return Err(WriteStop::Differs("it sent more than it announced"));
        }
        self.staged.append(new).map_err(WriteStop::Disk)?;
        let written = self.staged.written();
        let (bytes, length) = (self.staged.bytes(), self.length);
        self.write_back.after(&self.staged);
        if let Some(intake) = &self.intake {
            intake.staged(&bytes, written);
        }
        if let Some(progress) = &self.progress {
            progress.send_replace(FillProgress::Streaming { bytes, written, length });
        }
        Ok(())
    }
}

/// Writes to a staging file and keeps the store error, which [`io::Error`] would hide.
pub struct StageWriter<'a> {
    staged: &'a mut Staged,
    failed: Option<StoreError>,
}

impl<'a> StageWriter<'a> {
    pub fn new(staged: &'a mut Staged) -> Self {
        Self { staged, failed: None }
    }

    /// Returns the result of the work that wrote, or the store error that ended it.
    pub fn end<T>(self, written: T) -> Result<T, StoreError> {
        self.failed.map_or(Ok(written), Err)
    }
}

impl Write for StageWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.staged.append(bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(error) => {
                self.failed = Some(error);
                Err(io::Error::other("the staging file could not be written"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts write-back of the staged bytes on another thread, one stretch at a time.
#[derive(Default)]
struct WriteBack {
    written: u64,
    in_progress: Arc<AtomicBool>,
}

impl WriteBack {
    fn after(&mut self, staged: &Staged) {
        if staged.written() - self.written < WRITE_BACK_BYTES || self.in_progress.swap(true, Ordering::AcqRel) {
            return;
        }
        self.written = staged.written();
        let (sync, in_progress) = (staged.sync(), Arc::clone(&self.in_progress));
        let thread = std::thread::Builder::new().name("write-back".into());
        let started = thread.spawn(move || {
            // A failure is reported again when the file is published.
            let _ = sync.run();
            in_progress.store(false, Ordering::Release);
        });
        // Without it, only the final sync takes longer.
        if started.is_err() {
            self.in_progress.store(false, Ordering::Release);
        }
    }
}

/// The number of bytes withheld at the end of a download.
pub(super) const TAIL_BYTES: u64 = 64 * 1024;

/// Waits until the archive of a fill is stored, without reading its bytes. Meanwhile reports the bytes received and the
/// total. Returns the archive, and true if it was downloaded now: its bytes may have been stored under another name.
///
/// # Errors
/// The fill failed, or the disk could not store the archive.
pub async fn until_stored(
    mut progress: watch::Receiver<FillProgress>,
    subject: &str,
    report: impl Fn(u64, Option<u64>),
) -> Result<(StoredArchive, bool), Error> {
    loop {
        // The borrowed state may hold the file open, so it ends with this statement.
        match &*progress.borrow_and_update() {
            FillProgress::Waiting | FillProgress::Verified { .. } => {}
            FillProgress::Streaming { written, length, .. } => report(*written, *length),
            FillProgress::Committed { bytes, archive } => return Ok(((**archive).clone(), bytes.is_some())),
            FillProgress::NotStored { error: reason, .. } | FillProgress::NoSpace(reason) => {
                return Err(reason.clone().into());
            }
            FillProgress::Failed(error) => return Err(error.clone()),
        }
        if progress.changed().await.is_err() {
            return Err(Error::Interrupted(subject.to_owned()));
        }
    }
}

/// Streams the bytes of a fill to one client as they arrive, within the read budget `memory`. Ends in an error where the
/// fill fails, or where it has another length than the one announced to the client, if any: the client must not take the
/// body for complete.
pub fn tail_stream(
    progress: watch::Receiver<FillProgress>,
    announced: Option<u64>,
    memory: ReadShare,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let reader = PieceReader::new(memory);
    stream::try_unfold((progress, 0, reader), move |(mut progress, offset, mut reader)| async move {
        loop {
            let state = progress.borrow_and_update().clone();
            let (bytes, limit, is_whole) = match state {
                FillProgress::Waiting | FillProgress::Verified { .. } => (None, 0, false),
                FillProgress::Streaming { bytes, written, .. } => {
                    let before_the_tail = announced.unwrap_or(written).saturating_sub(TAIL_BYTES);
                    (Some(bytes), written.min(before_the_tail), false)
                }
                FillProgress::Committed { bytes, archive } => (bytes, archive.size_bytes, true),
                FillProgress::NotStored { bytes, size_bytes, .. } => (Some(bytes), size_bytes, true),
                FillProgress::NoSpace(_) => {
                    return Err(io::Error::other("the disk would not take it; the next request gets it without"));
                }
                FillProgress::Failed(error) => return Err(io::Error::other(error.to_string())),
            };
            if is_whole && announced.is_some_and(|announced| announced != limit) {
                return Err(io::Error::other("upstream sent another length than it announced"));
            }
            if is_whole && offset == limit {
                return Ok(None);
            }
            if let Some(bytes) = bytes.filter(|_| offset < limit) {
                let most = usize::try_from(limit - offset).unwrap_or(READ_BUFFER_BYTES);
                let piece = reader.read_at(&bytes, offset, most).await?;
                if piece.is_empty() {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
                }
                let next = offset + piece.len() as u64;
                return Ok(Some((piece, (progress, next, reader))));
            }
            reader.release();
            if progress.changed().await.is_err() {
                return Err(io::Error::other("the fill was interrupted"));
            }
        }
    })
}
