//! From the wire into the stage: one task reads, one thread hashes and writes, and what is there already
//! is compared where upstream starts over.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use super::Mirror;
use super::fill::Progress;
use crate::error::Error;
use crate::store::{Staged, StoreError};
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::Incoming;

/// Pieces between the reader and the writer; with those of the connection, all the memory a fill takes.
const PIECES_WAITING: usize = 16;
/// Slower than this over the stall time is given up.
const LEAST_BYTES_PER_SECOND: u64 = 1024;
/// What is staged is written back in stretches, so that the sync at the end is short.
const WRITE_BACK_BYTES: u64 = 32 << 20;

/// How a stretch of a download ended.
pub(super) enum Ended {
    /// Upstream sent all it announced.
    Whole,
    /// The connection broke; what is staged can be built on.
    Broken(UpstreamError),
    /// Upstream started over with other bytes: what was followed was wrong, or this is.
    Differs(Error),
    /// It is given up, or the disk failed.
    Failed(Error),
}

/// Appends what arrives to the stage until it ends. The stage comes back, unless its thread died.
pub(super) async fn pump(
    mirror: &Arc<Mirror>,
    staged: Staged,
    mut incoming: Incoming,
    progress: &watch::Sender<Progress>,
) -> (Option<Staged>, Ended) {
    let (pieces, waiting) = mpsc::channel(PIECES_WAITING);
    let writer =
        Writer { staged, at: incoming.from, length: incoming.length, progress: progress.clone(), written_back: 0 };
    let writer = tokio::task::spawn_blocking(move || writer.run(waiting));
    let read = read(mirror, &mut incoming, pieces).await;
    let Ok((staged, written)) = writer.await else {
        return (None, Ended::Failed(Error::Interrupted("a fill".into())));
    };
    let whole = incoming.length.is_none_or(|length| staged.written() == length);
    let ended = match (written, read) {
        (Err(Stopped::Disk(error)), _) => Ended::Failed(error.into()),
        (Err(Stopped::Differs), _) => {
            let fault = Fault::Unusable("it started the download over with other bytes".into());
            Ended::Differs(incoming.failed(fault).into())
        }
        (Ok(()), Err(error)) if matches!(error.fault, Fault::Slow(_) | Fault::TooLarge(_)) => {
            Ended::Failed(error.into())
        }
        (Ok(()), Err(error)) => Ended::Broken(error),
        (Ok(()), Ok(())) if whole => Ended::Whole,
        (Ok(()), Ok(())) => Ended::Broken(incoming.failed(Fault::Unreachable("the body ended early".into()))),
    };
    (Some(staged), ended)
}

async fn read(mirror: &Mirror, incoming: &mut Incoming, pieces: mpsc::Sender<Bytes>) -> Result<(), UpstreamError> {
    let (stall, limit) = (mirror.limits.stall, mirror.limits.archive_bytes);
    let slow = |why: String| Fault::Slow(why);
    let mut received = incoming.from;
    let (mut window_began, mut window_bytes) = (Instant::now(), 0u64);
    loop {
        let piece = match timeout(stall, incoming.next()).await {
            Ok(piece) => piece?,
            Err(_) => return Err(incoming.failed(slow(format!("no byte for {} s", stall.as_secs())))),
        };
        let Some(piece) = piece else { return Ok(()) };
        received += piece.len() as u64;
        if received > limit {
            return Err(incoming.failed(Fault::TooLarge(limit)));
        }
        window_bytes += piece.len() as u64;
        if window_began.elapsed() >= stall {
            if window_bytes < LEAST_BYTES_PER_SECOND * stall.as_secs() {
                return Err(incoming.failed(slow(format!("{window_bytes} bytes in {} s", stall.as_secs()))));
            }
            (window_began, window_bytes) = (Instant::now(), 0);
        }
        if pieces.send(piece).await.is_err() {
            // The writer stopped, and says why.
            return Ok(());
        }
    }
}

enum Stopped {
    Disk(StoreError),
    Differs,
}

struct Writer {
    staged: Staged,
    at: u64,
    length: Option<u64>,
    progress: watch::Sender<Progress>,
    written_back: u64,
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
        self.staged.append(new).map_err(Stopped::Disk)?;
        let written = self.staged.written();
        let (bytes, length) = (self.staged.bytes(), self.length);
        self.progress.send_replace(Progress::Streaming { bytes, written, length });
        if written - self.written_back >= WRITE_BACK_BYTES {
            self.written_back = written;
            let behind = self.staged.bytes();
            // A thread of its own: the write-back must not hold up what arrives.
            std::thread::spawn(move || behind.write_back());
        }
        Ok(())
    }
}
