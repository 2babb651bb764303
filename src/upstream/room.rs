//! The room that the bodies of documents take in memory, among all that are there at one time (promise 11).

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A body without a length takes its room in steps of this, in KiB.
const ROOM_STEP_KIB: u64 = 64;

/// The room that a body takes among all that are in memory; free again with the last copy.
#[derive(Debug, Clone, Default)]
pub struct Room(#[expect(dead_code, reason = "held, and never looked at")] Option<Arc<OwnedSemaphorePermit>>);

/// The room of a body that is still coming. It is taken or not: who has some never waits for more.
pub(super) struct Growing<'a> {
    of: &'a Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

impl<'a> Growing<'a> {
    pub(super) fn new(of: &'a Arc<Semaphore>) -> Self {
        Self { of, taken: None }
    }

    pub(super) fn grow_to(&mut self, bytes: u64) -> bool {
        let has = self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits) as u64;
        let needed = bytes.div_ceil(1024);
        if needed <= has {
            return true;
        }
        let needed = if has == 0 { needed } else { needed.next_multiple_of(ROOM_STEP_KIB) };
        let Ok(more) = u32::try_from(needed - has) else { return false };
        match (Arc::clone(self.of).try_acquire_many_owned(more), &mut self.taken) {
            (Ok(more), Some(taken)) => taken.merge(more),
            (Ok(more), none) => *none = Some(more),
            (Err(_), _) => return false,
        }
        true
    }

    pub(super) fn taken(self) -> Room {
        Room(self.taken.map(Arc::new))
    }
}
