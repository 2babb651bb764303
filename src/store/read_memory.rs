//! Memory for archive bytes on their way to clients: one budget for all connections, and one small piece for each
//! connection beyond it. So clients that do not read never fill the memory, and none delays another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::READ_AT_ONCE;

/// The bytes that each connection may always have in memory.
const OWN_BYTES: usize = 16 * 1024;

/// The budget; all copies share it.
#[derive(Debug, Clone)]
pub struct ReadBudget(Arc<Semaphore>);

/// The share of one connection; all copies share it.
#[derive(Debug, Clone)]
pub struct ReadShare {
    all: Arc<Semaphore>,
    own: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    piece_bytes: usize,
}

impl ReadBudget {
    /// A budget of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))))
    }

    /// The share of a new connection.
    pub fn share(&self) -> ReadShare {
        let (own, waiting) = (Arc::new(Semaphore::new(1)), Arc::default());
        ReadShare { all: Arc::clone(&self.0), own, waiting, piece_bytes: READ_AT_ONCE }
    }

    /// Memory for so many bytes, if it is free now.
    pub fn try_grant(&self, bytes: usize) -> Option<ReadGrant> {
        let permit = Arc::clone(&self.0).try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()?;
        Some(ReadGrant { bytes, _permit: Some(permit) })
    }

    /// Copies bytes if the budget has space now.
    pub fn copy(&self, bytes: &[u8]) -> Option<Bytes> {
        Some(self.try_grant(bytes.len())?.fill(bytes.to_vec()))
    }
}

impl ReadShare {
    /// Limits pieces to this many bytes.
    #[must_use]
    pub fn in_pieces_of(&self, bytes: usize) -> Self {
        Self { piece_bytes: bytes.min(READ_AT_ONCE), ..self.clone() }
    }

    /// The number of this connection's reads that wait for memory: for other connections, or for its own peer.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Memory for up to `most` bytes. If the budget is used up: for a small piece, once the previous one is released.
    pub(super) async fn grant(&self, most: usize) -> ReadGrant {
        let permits = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let bytes = most.min(self.piece_bytes);
        if let Ok(permit) = Arc::clone(&self.all).try_acquire_many_owned(permits(bytes)) {
            return ReadGrant { bytes, _permit: Some(permit) };
        }
        let bytes = bytes.min(OWN_BYTES);
        let _waits = WaitingRead::one_more(&self.waiting);
        let permit = tokio::select! {
            biased;
            own = Arc::clone(&self.own).acquire_owned() => own,
            of_all = Arc::clone(&self.all).acquire_many_owned(permits(bytes)) => of_all,
        };
        // Fails only on a closed semaphore, which does not happen.
        ReadGrant { bytes, _permit: permit.ok() }
    }
}

/// One waiting read.
struct WaitingRead<'a>(&'a AtomicUsize);

impl<'a> WaitingRead<'a> {
    fn one_more(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for WaitingRead<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Memory for one piece, released with the piece.
#[derive(Debug)]
pub struct ReadGrant {
    bytes: usize,
    _permit: Option<OwnedSemaphorePermit>,
}

impl ReadGrant {
    /// Granted bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Fills the granted memory; `buffer` is no longer than the grant.
    pub fn fill(self, buffer: Vec<u8>) -> Bytes {
        Bytes::from_owner(GrantedPiece { buffer, _room: self })
    }
}

struct GrantedPiece {
    buffer: Vec<u8>,
    _room: ReadGrant,
}

impl AsRef<[u8]> for GrantedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// DESIGN, promise 11: clients that fill the budget and read nothing leave every other connection one piece at a
    /// time.
    #[tokio::test]
    async fn a_connection_goes_on_where_others_use_up_the_budget() {
        let memory = ReadBudget::new(100_000);
        let (hog, other) = (memory.share(), memory.share());
        let piece = async |share: &ReadShare, most: usize| {
            let grant = share.grant(most).await;
            let bytes = grant.bytes();
            grant.fill(vec![0; bytes])
        };
        let mut hogged = vec![piece(&hog, 60_000).await, piece(&hog.in_pieces_of(40_000), 1 << 20).await];
        assert_eq!(hogged.iter().map(Bytes::len).collect::<Vec<_>>(), [60_000, 40_000]);
        hogged.push(piece(&hog, 60_000).await);
        assert_eq!(hogged[2].len(), OWN_BYTES);
        let mut further = std::pin::pin!(piece(&hog, 60_000));
        assert!(further.as_mut().now_or_never().is_none() && hog.waiting() == 1);

        for _ in 0..3 {
            let own = piece(&other, 1 << 20).await;
            assert_eq!((own.len(), other.waiting()), (OWN_BYTES, 0));
        }
        let kept = piece(&other, 100).await;
        assert_eq!(kept.len(), 100);
        assert!(piece(&other, 100).now_or_never().is_none() && other.waiting() == 0);

        // A part of a piece keeps all of it in memory.
        let part = hogged[0].slice(..1);
        drop(hogged.remove(0));
        assert!(further.as_mut().now_or_never().is_none());
        drop(part);
        assert_eq!((further.await.len(), hog.waiting()), (OWN_BYTES, 0));
    }
}
