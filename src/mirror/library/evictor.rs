//! The one task that evicts, as those see it who write to the store: they ask it, and wait for no more than they need.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

use crate::store::{IndexedArchive, StoreError};

/// What those who write share with the task that evicts.
#[derive(Debug, Default)]
pub(in crate::mirror) struct Evictor {
    /// Held while one thing is evicted, and by whoever pins or purges.
    alone: Mutex<()>,
    asked: AtomicU64,
    wake: Notify,
    passes: watch::Sender<Passes>,
    reserved: Arc<AtomicU64>,
    candidates: Mutex<VecDeque<IndexedArchive>>,
}

/// How many archives are candidates after one look at the index: looking at all of them takes long, and whatever comes or is
/// used later is younger than all of these.
const CANDIDATES: usize = 10_000;

/// The passes over what is stored.
#[derive(Debug, Default)]
struct Passes {
    /// Up to which of those who asked they have ended.
    ended: u64,
    /// What the last one failed with.
    failed: Option<StoreError>,
}

/// Room that is promised to a fill under way, in bytes; given back when it is dropped.
#[derive(Debug)]
pub(in crate::mirror) struct Reservation {
    bytes: u64,
    reserved: Arc<AtomicU64>,
}

impl Reservation {
    pub(in crate::mirror) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Raises the promise by so many bytes.
    pub(in crate::mirror) fn add(&mut self, more: u64) {
        self.reserved.fetch_add(more, Ordering::Relaxed);
        self.bytes = self.bytes.saturating_add(more);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Evictor {
    /// Nothing is evicted while this is held. Taken before the lock of any digest or record.
    pub(in crate::mirror) fn held_back(&self) -> MutexGuard<'_, ()> {
        self.alone.lock()
    }

    /// The archive that was used longest ago when the index was looked at; it may have been used or removed since.
    pub(in crate::mirror) fn next_candidate(&self) -> Option<IndexedArchive> {
        self.candidates.lock().pop_front()
    }

    /// Takes these for candidates, all of them or the first; says whether it was all.
    pub(in crate::mirror) fn look_at(&self, mut oldest: Vec<IndexedArchive>, only_first: bool) -> bool {
        let is_cut = only_first && oldest.len() > CANDIDATES;
        if is_cut {
            oldest.truncate(CANDIDATES);
        }
        *self.candidates.lock() = oldest.into();
        !is_cut
    }

    /// Promises no room yet.
    pub(in crate::mirror) fn reservation(&self) -> Reservation {
        Reservation { bytes: 0, reserved: Arc::clone(&self.reserved) }
    }

    /// What is promised to fills, in bytes.
    pub(in crate::mirror) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Asks for a pass; waits for nothing.
    pub(in crate::mirror) fn notify(&self) -> u64 {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.wake.notify_one();
        asked
    }

    /// Asks for a pass, and waits until there is `enough` room, or until a pass has ended that began after it was asked.
    ///
    /// # Errors
    /// What that pass failed with.
    pub(in crate::mirror) async fn make_room(&self, enough: impl Fn() -> bool) -> Result<(), StoreError> {
        let mut passes = self.passes.subscribe();
        let asked = self.notify();
        loop {
            if enough() {
                return Ok(());
            }
            {
                let passes = passes.borrow_and_update();
                if passes.ended >= asked {
                    return passes.failed.clone().map_or(Ok(()), Err);
                }
            }
            // Its sender is here.
            let _ = passes.changed().await;
        }
    }

    /// Waits until every pass has ended that was asked for by now.
    pub(in crate::mirror) async fn at_rest(&self) {
        let asked = self.asked.load(Ordering::SeqCst);
        // Its sender is here.
        let _ = self.passes.subscribe().wait_for(|passes| passes.ended >= asked).await;
    }

    /// Waits until a pass is asked for, and says by how many: what comes then answers them all.
    pub(in crate::mirror) async fn asked(&self) -> u64 {
        loop {
            let asked = self.asked.load(Ordering::SeqCst);
            if asked > self.passes.borrow().ended {
                return asked;
            }
            self.wake.notified().await;
        }
    }

    /// Tells those who wait that something was evicted.
    pub(in crate::mirror) fn goes_on(&self) {
        self.passes.send_modify(|_| ());
    }

    /// Tells those who `asked` how the pass ended.
    pub(in crate::mirror) fn ended(&self, asked: u64, failed: Option<StoreError>) {
        self.passes.send_replace(Passes { ended: asked, failed });
    }
}
