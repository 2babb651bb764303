//! Copies a download from the connection to the staging file: one task reads, one thread hashes and writes. Where
//! upstream starts over, the bytes already staged are compared.

use crate::mirror::Library;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};

use crate::error::Error;
use crate::mirror::archives::archive_request::DownloadAttempts;
use crate::mirror::archives::fill::FillProgress;
use crate::mirror::library::Reservation;
use crate::store::{FileBytes, Staged, StoreError};
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::request::IncomingFile;

/// Pieces queued between reader and writer. With the buffers of the connection, this is all the memory of a fill.
const PIECES_WAITING: usize = 4;
/// The step in which a download of unknown length reserves disk space.
const ROOM_STEP_BYTES: u64 = 1 << 20;
/// The amount of staged bytes after which write-back starts, so that the final sync is short.
const WRITE_BACK_BYTES: u64 = 32 << 20;

/// The end of one connection of a download.
pub(in crate::mirror) enum TransferEnd {
    /// Upstream sent everything that it announced.
    Whole,
    /// The connection broke. The download can be resumed.
    Broken(UpstreamError),
    /// Upstream contradicts what it announced or sent before. The staged bytes are useless.
    Differs(Error),
    /// The download is given up, or the disk failed.
    Failed(Error),
}

/// Copies the bytes of one connection to the staging file.
pub(in crate::mirror) struct ConnectionCopy<'a, L> {
    pub(in crate::mirror) library: &'a Arc<Library>,
    pub(in crate::mirror) attempts: &'a mut DownloadAttempts,
    pub(in crate::mirror) reservation: &'a mut Reservation,
    pub(in crate::mirror) progress: &'a watch::Sender<FillProgress>,
    /// Resolves when the download must be given up.
    pub(in crate::mirror) given_up: L,
}

impl<L: Future<Output = Error>> ConnectionCopy<'_, L> {
    /// Appends the arriving bytes until the connection ends. Returns the staging file, unless its thread died.
    pub(in crate::mirror) async fn run(
        self,
        staged: Staged,
        mut incoming: IncomingFile,
        length: Option<u64>,
    ) -> (Option<Staged>, TransferEnd) {
        let Self { library, attempts, reservation, progress, given_up } = self;
        let (pieces, waiting) = mpsc::channel(PIECES_WAITING);
        let writer = DownloadWriter {
            staged,
            offset: incoming.from,
            length,
            progress: progress.clone(),
            write_back: WriteBack::default(),
        };
        let (end, ended) = oneshot::channel();
        // A dedicated thread: a slow upstream must not occupy one that serves stored archives.
        let thread = std::thread::Builder::new().name("fill".into());
        let started = thread.spawn(move || {
            // The receiver may be gone.
            let _ = end.send(writer.run(waiting));
        });
        if started.is_err() {
            return (None, TransferEnd::Failed(Error::Interrupted("a fill".into())));
        }
        let growing = length.is_none().then_some(reservation);
        let read = tokio::select! {
            read = read(library, &mut incoming, attempts, growing, pieces) => read,
            why = given_up => Err(ReadStop::GivenUp(why)),
        };
        let Ok((staged, written)) = ended.await else {
            return (None, TransferEnd::Failed(Error::Interrupted("a fill".into())));
        };
        let whole = length.is_none_or(|length| staged.written() == length);
        let ended = match (written, read) {
            (Err(WriteStop::Disk(error)), _) => TransferEnd::Failed(error.into()),
            (Err(WriteStop::Differs), _) => {
                let fault = Fault::Unusable("it started the download over with other bytes".into());
                TransferEnd::Differs(incoming.upstream_error(fault).into())
            }
            (Err(WriteStop::TooLong), _) => {
                let fault = Fault::Unusable("it sent more than it announced".into());
                TransferEnd::Differs(incoming.upstream_error(fault).into())
            }
            (Ok(()), Err(ReadStop::GivenUp(error))) => TransferEnd::Failed(error),
            (Ok(()), Err(ReadStop::Upstream(error))) => match error.fault {
                Fault::TooLarge(_) => TransferEnd::Differs(error.into()),
                Fault::Slow(_) => TransferEnd::Failed(error.into()),
                _ => TransferEnd::Broken(error),
            },
            (Ok(()), Ok(())) if whole => TransferEnd::Whole,
            (Ok(()), Ok(())) => {
                TransferEnd::Broken(incoming.upstream_error(Fault::Unreachable("the body ended early".into())))
            }
        };
        (Some(staged), ended)
    }
}

/// The reason why reading stopped.
enum ReadStop {
    Upstream(UpstreamError),
    /// There is no disk space, or the fill is no longer wanted.
    GivenUp(Error),
}

/// Reads to the end. A download of unknown length reserves disk space as it grows.
async fn read(
    library: &Arc<Library>,
    incoming: &mut IncomingFile,
    attempts: &mut DownloadAttempts,
    mut growing: Option<&mut Reservation>,
    pieces: mpsc::Sender<Bytes>,
) -> Result<(), ReadStop> {
    let mut received = incoming.from;
    while let Some(piece) = next_piece(library, incoming, attempts, received).await.map_err(ReadStop::Upstream)? {
        received += piece.len() as u64;
        if let Some(growing_memory) = growing.as_deref_mut() {
            // In steps, or a full store would be scanned for every piece.
            let step = received.next_multiple_of(ROOM_STEP_BYTES).min(library.size_limit_bytes()).max(received);
            library.reserve(growing_memory, step).await.map_err(ReadStop::GivenUp)?;
        }
        if pieces.send(piece).await.is_err() {
            // The writer stopped and reports the cause.
            return Ok(());
        }
    }
    Ok(())
}

/// Returns the next bytes; `None` at the end. Fails where upstream is too slow or sends too much.
pub(in crate::mirror) async fn next_piece(
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
        return Err(incoming.upstream_error(Fault::Slow(format!("less than 1 KiB/s over {} s", stall.as_secs()))));
    }
    Ok(Some(piece))
}

enum WriteStop {
    Disk(StoreError),
    Differs,
    TooLong,
}

struct DownloadWriter {
    staged: Staged,
    offset: u64,
    length: Option<u64>,
    progress: watch::Sender<FillProgress>,
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
            return Err(WriteStop::Differs);
        }
        self.offset += piece.len() as u64;
        if new.is_empty() {
            return Ok(());
        }
        if self.length.is_some_and(|length| self.staged.written() + new.len() as u64 > length) {
            return Err(WriteStop::TooLong);
        }
        self.staged.append(new).map_err(WriteStop::Disk)?;
        let written = self.staged.written();
        let (bytes, length) = (self.staged.bytes(), self.length);
        self.write_back.after(written, &bytes);
        self.progress.send_replace(FillProgress::Streaming { bytes, written, length });
        Ok(())
    }
}

/// Writes to a staging file and keeps the store error, which [`io::Error`] would hide.
pub(in crate::mirror) struct StageWriter<'a> {
    staged: &'a mut Staged,
    failed: Option<StoreError>,
}

impl<'a> StageWriter<'a> {
    pub(in crate::mirror) fn new(staged: &'a mut Staged) -> Self {
        Self { staged, failed: None }
    }

    /// Returns the result of the work that wrote, or the store error that ended it.
    pub(in crate::mirror) fn end<T>(self, written: T) -> Result<T, StoreError> {
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
    under_way: Arc<AtomicBool>,
}

impl WriteBack {
    fn after(&mut self, written: u64, bytes: &FileBytes) {
        if written - self.written < WRITE_BACK_BYTES || self.under_way.swap(true, Ordering::AcqRel) {
            return;
        }
        self.written = written;
        let (bytes, under_way) = (bytes.clone(), Arc::clone(&self.under_way));
        let thread = std::thread::Builder::new().name("write-back".into());
        let started = thread.spawn(move || {
            bytes.write_back();
            under_way.store(false, Ordering::Release);
        });
        // Without it, only the final sync takes longer.
        if started.is_err() {
            self.under_way.store(false, Ordering::Release);
        }
    }
}
