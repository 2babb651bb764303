//! From the wire into the stage: one task reads, one thread hashes and writes, and what is there already
//! is compared where upstream starts over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};

use super::Mirror;
use super::attempts::Attempts;
use super::follow::Progress;
use super::library::Reservation;
use crate::error::Error;
use crate::store::{FileBytes, Staged, StoreError};
use crate::upstream::ask::Incoming;
use crate::upstream::error::{Fault, UpstreamError};

/// Pieces between the reader and the writer; with those of the connection, all the memory a fill takes.
const PIECES_WAITING: usize = 4;
/// A download without a length takes its room in steps of this.
const ROOM_STEP_BYTES: u64 = 1 << 20;
/// What is staged is written back in stretches, so that the sync at the end is short.
const WRITE_BACK_BYTES: u64 = 32 << 20;

/// How a stretch of a download ended.
pub(super) enum TransferEnd {
    /// Upstream sent all it announced.
    Whole,
    /// The connection broke; what is staged can be built on.
    Broken(UpstreamError),
    /// It contradicts what it said or sent before: nothing of it can be built on.
    Differs(Error),
    /// It is given up, or the disk failed.
    Failed(Error),
}

/// What takes a stretch of a download from the wire into the stage.
pub(super) struct Pump<'a, L> {
    pub(super) mirror: &'a Arc<Mirror>,
    pub(super) attempts: &'a mut Attempts,
    pub(super) room: &'a mut Reservation,
    pub(super) progress: &'a watch::Sender<Progress>,
    /// Resolves when it is to be given up.
    pub(super) given_up: L,
}

impl<L: Future<Output = Error>> Pump<'_, L> {
    /// Appends what arrives to the stage until it ends. The stage comes back, unless its thread died.
    pub(super) async fn run(
        self,
        staged: Staged,
        mut incoming: Incoming,
        length: Option<u64>,
    ) -> (Option<Staged>, TransferEnd) {
        let Self { mirror, attempts, room, progress, given_up } = self;
        let (pieces, waiting) = mpsc::channel(PIECES_WAITING);
        let writer =
            Writer { staged, at: incoming.from, length, progress: progress.clone(), write_back: WriteBack::default() };
        let (end, ended) = oneshot::channel();
        // A thread of its own: a slow upstream must not take one from those who read what is held.
        let thread = std::thread::Builder::new().name("fill".into());
        let started = thread.spawn(move || {
            // Nobody may be left to be told.
            let _ = end.send(writer.run(waiting));
        });
        if started.is_err() {
            return (None, TransferEnd::Failed(Error::Interrupted("a fill".into())));
        }
        let growing = length.is_none().then_some(room);
        let read = tokio::select! {
            read = read(mirror, &mut incoming, attempts, growing, pieces) => read,
            why = given_up => Err(NotRead::GivenUp(why)),
        };
        let Ok((staged, written)) = ended.await else {
            return (None, TransferEnd::Failed(Error::Interrupted("a fill".into())));
        };
        let whole = length.is_none_or(|length| staged.written() == length);
        let ended = match (written, read) {
            (Err(Stopped::Disk(error)), _) => TransferEnd::Failed(error.into()),
            (Err(Stopped::Differs), _) => {
                let fault = Fault::Unusable("it started the download over with other bytes".into());
                TransferEnd::Differs(incoming.failed(fault).into())
            }
            (Err(Stopped::TooLong), _) => {
                let fault = Fault::Unusable("it sent more than it announced".into());
                TransferEnd::Differs(incoming.failed(fault).into())
            }
            (Ok(()), Err(NotRead::GivenUp(error))) => TransferEnd::Failed(error),
            (Ok(()), Err(NotRead::Upstream(error))) => match error.fault {
                Fault::TooLarge(_) => TransferEnd::Differs(error.into()),
                Fault::Slow(_) => TransferEnd::Failed(error.into()),
                _ => TransferEnd::Broken(error),
            },
            (Ok(()), Ok(())) if whole => TransferEnd::Whole,
            (Ok(()), Ok(())) => TransferEnd::Broken(incoming.failed(Fault::Unreachable("the body ended early".into()))),
        };
        (Some(staged), ended)
    }
}

/// Why no more was read.
enum NotRead {
    Upstream(UpstreamError),
    /// It would not fit, or is not wanted any more.
    GivenUp(Error),
}

/// Reads to the end. What has no length takes its room as it grows.
async fn read(
    mirror: &Arc<Mirror>,
    incoming: &mut Incoming,
    attempts: &mut Attempts,
    mut growing: Option<&mut Reservation>,
    pieces: mpsc::Sender<Bytes>,
) -> Result<(), NotRead> {
    let mut received = incoming.from;
    while let Some(piece) = next_piece(mirror, incoming, attempts, received).await.map_err(NotRead::Upstream)? {
        received += piece.len() as u64;
        if let Some(room) = growing.as_deref_mut() {
            // In steps, or a store that is full would be gone over for every piece.
            let step = received.next_multiple_of(ROOM_STEP_BYTES).min(mirror.store_bytes()).max(received);
            mirror.reserve(room, step).await.map_err(NotRead::GivenUp)?;
        }
        if pieces.send(piece).await.is_err() {
            // The writer stopped, and says why.
            return Ok(());
        }
    }
    Ok(())
}

/// The next bytes, unless upstream takes too long over them, or sends too much; `None` at the end.
pub(super) async fn next_piece(
    mirror: &Mirror,
    incoming: &mut Incoming,
    attempts: &mut Attempts,
    received: u64,
) -> Result<Option<Bytes>, UpstreamError> {
    let (stall, limit) = (mirror.limits.stall, mirror.limits.archive_bytes);
    let began = Instant::now();
    let piece = match timeout(stall, incoming.next()).await {
        Ok(piece) => piece?,
        Err(_) => return Err(incoming.failed(Fault::Slow(format!("no byte for {} s", stall.as_secs())))),
    };
    let Some(piece) = piece else { return Ok(None) };
    if received + piece.len() as u64 > limit {
        return Err(incoming.failed(Fault::TooLarge(limit)));
    }
    // Only the time spent waiting for upstream counts, and not what our own disk or a client takes.
    if attempts.is_too_slow(began.elapsed(), piece.len() as u64) {
        return Err(incoming.failed(Fault::Slow(format!("less than 1 KiB/s over {} s", stall.as_secs()))));
    }
    Ok(Some(piece))
}

enum Stopped {
    Disk(StoreError),
    Differs,
    TooLong,
}

struct Writer {
    staged: Staged,
    at: u64,
    length: Option<u64>,
    progress: watch::Sender<Progress>,
    write_back: WriteBack,
}

impl Writer {
    fn run(mut self, mut pieces: mpsc::Receiver<Bytes>) -> (Staged, Result<(), Stopped>) {
        while let Some(piece) = pieces.blocking_recv() {
            if let Err(stopped) = self.take(&piece) {
                return (self.staged, Err(stopped));
            }
        }
        (self.staged, Ok(()))
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), Stopped> {
        let known = self.staged.written().saturating_sub(self.at).min(piece.len() as u64);
        let (again, new) = piece.split_at(usize::try_from(known).unwrap_or(piece.len()));
        if !again.is_empty() && !self.staged.agrees(self.at, again).map_err(Stopped::Disk)? {
            return Err(Stopped::Differs);
        }
        self.at += piece.len() as u64;
        if new.is_empty() {
            return Ok(());
        }
        if self.length.is_some_and(|length| self.staged.written() + new.len() as u64 > length) {
            return Err(Stopped::TooLong);
        }
        self.staged.append(new).map_err(Stopped::Disk)?;
        let written = self.staged.written();
        let (bytes, length) = (self.staged.bytes(), self.length);
        self.write_back.after(written, &bytes);
        self.progress.send_replace(Progress::Streaming { bytes, written, length });
        Ok(())
    }
}

/// Writes back what is staged behind the writer's back, one stretch at a time.
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
        // Without a thread the sync at the end is only longer.
        if started.is_err() {
            self.under_way.store(false, Ordering::Release);
        }
    }
}
