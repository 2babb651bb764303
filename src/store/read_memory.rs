//! Memory for archive bytes on their way to clients: one budget for all connections, and one small piece for each
//! connection when the budget is used up. Clients that do not read never fill the memory or delay other clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::READ_BUFFER_BYTES;

/// The bytes that each connection may have in memory when the budget is used up.
const RESERVED_BYTES: usize = 16 * 1024;

/// The memory budget of all connections; clones share it.
#[derive(Debug, Clone)]
pub struct ReadBudget(Arc<Semaphore>);

/// The share of one connection in the budget; clones share it.
#[derive(Debug, Clone)]
pub struct ReadShare {
    /// The bytes of the budget.
    budget: Arc<Semaphore>,
    /// One permit: for the small piece beyond the budget.
    reserve: Arc<Semaphore>,
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
        let (reserve, waiting) = (Arc::new(Semaphore::new(1)), Arc::default());
        ReadShare { budget: Arc::clone(&self.0), reserve, waiting, piece_bytes: READ_BUFFER_BYTES }
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
        Self { piece_bytes: bytes.min(READ_BUFFER_BYTES), ..self.clone() }
    }

    /// The number of this connection's reads that wait for memory, until another connection or this one releases some.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Memory for up to `max_bytes` bytes. If the budget is used up: for a small piece, once the previous one is released.
    pub(super) async fn grant(&self, max_bytes: usize) -> ReadGrant {
        let permits = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let bytes = max_bytes.min(self.piece_bytes);
        if let Ok(permit) = Arc::clone(&self.budget).try_acquire_many_owned(permits(bytes)) {
            return ReadGrant { bytes, _permit: Some(permit) };
        }
        let bytes = bytes.min(RESERVED_BYTES);
        let _waiting = WaitingRead::count(&self.waiting);
        let permit = tokio::select! {
            biased;
            reserved = Arc::clone(&self.reserve).acquire_owned() => reserved,
            from_budget = Arc::clone(&self.budget).acquire_many_owned(permits(bytes)) => from_budget,
        };
        // Fails only on a closed semaphore, which does not happen.
        ReadGrant { bytes, _permit: permit.ok() }
    }
}

/// Counts one waiting read while it exists.
struct WaitingRead<'a>(&'a AtomicUsize);

impl<'a> WaitingRead<'a> {
    fn count(waiting: &'a AtomicUsize) -> Self {
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
        Bytes::from_owner(GrantedPiece { buffer, _grant: self })
    }
}

/// Bytes with the memory grant that covers them.
struct GrantedPiece {
    buffer: Vec<u8>,
    _grant: ReadGrant,
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

    /// Clients that fill the budget and read nothing leave every other connection one piece at a time (DESIGN, promise 11).
    #[tokio::test]
    async fn a_connection_continues_when_others_use_up_the_budget() {
        let memory = ReadBudget::new(100_000);
        let (hog, other) = (memory.share(), memory.share());
        let piece = async |share: &ReadShare, max_bytes: usize| {
            let grant = share.grant(max_bytes).await;
            let bytes = grant.bytes();
            grant.fill(vec![0; bytes])
        };
        let mut hogged = vec![piece(&hog, 60_000).await, piece(&hog.in_pieces_of(40_000), 1 << 20).await];
        assert_eq!(hogged.iter().map(Bytes::len).collect::<Vec<_>>(), [60_000, 40_000]);
        hogged.push(piece(&hog, 60_000).await);
        assert_eq!(hogged[2].len(), RESERVED_BYTES);
        let mut further = std::pin::pin!(piece(&hog, 60_000));
        assert!(further.as_mut().now_or_never().is_none() && hog.waiting() == 1);

        for _ in 0..3 {
            let own = piece(&other, 1 << 20).await;
            assert_eq!((own.len(), other.waiting()), (RESERVED_BYTES, 0));
        }
        let held = piece(&other, 100).await;
        assert_eq!(held.len(), 100);
        assert!(piece(&other, 100).now_or_never().is_none() && other.waiting() == 0);

        // A part of a piece keeps all of it in memory.
        let part = hogged[0].slice(..1);
        drop(hogged.remove(0));
        assert!(further.as_mut().now_or_never().is_none());
        drop(part);
        assert_eq!((further.await.len(), hog.waiting()), (RESERVED_BYTES, 0));
    }
}
