//! Small archives in memory, on their way to clients: within one budget, however many are asked for and however slowly
//! they are read (promise 11). Those who are sent the same one at the same time share a copy.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::digest::Digest;
use crate::store::{MemoryRoom, ReadMemory};

/// The bytes of all copies.
const ALL_BYTES: usize = 64 << 20;
/// From this many copies on, those that nobody reads any more are forgotten.
const MOST_LISTED: usize = 1000;

/// The copies that are in memory.
#[derive(Debug)]
pub(super) struct SmallCopies {
    memory: ReadMemory,
    // The bytes lie elsewhere: a list of what holds them itself would keep them in memory.
    shared: Mutex<HashMap<Digest, Weak<Bytes>>>,
}

/// A copy as the bytes of an answer.
struct Reader(Arc<Bytes>);

impl AsRef<[u8]> for Reader {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Default for SmallCopies {
    fn default() -> Self {
        Self { memory: ReadMemory::new(ALL_BYTES), shared: Mutex::default() }
    }
}

impl SmallCopies {
    /// The copy of an archive that somebody is being sent.
    pub(super) fn shared(&self, digest: &Digest) -> Option<Bytes> {
        self.shared.lock().get(digest).and_then(Weak::upgrade).map(|copy| Bytes::from_owner(Reader(copy)))
    }

    /// Room for an archive of so many bytes; nothing where others have it.
    pub(super) fn room(&self, bytes: u64) -> Option<MemoryRoom> {
        usize::try_from(bytes).ok().and_then(|bytes| self.memory.room_at_once(bytes))
    }

    /// A copy for all who ask for the same archive as long as somebody reads it.
    pub(super) fn share(&self, digest: Digest, bytes: Vec<u8>, room: MemoryRoom) -> Bytes {
        let copy = Arc::new(room.taken_by(bytes));
        let mut shared = self.shared.lock();
        if shared.len() >= MOST_LISTED {
            shared.retain(|_, copy| copy.strong_count() > 0);
        }
        shared.insert(digest, Arc::downgrade(&copy));
        drop(shared);
        Bytes::from_owner(Reader(copy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise 11: what is listed and read by nobody takes no room, and all copies together take no more than there is.
    #[test]
    fn a_copy_takes_its_room_for_as_long_as_somebody_reads_it() {
        let copies = SmallCopies::default();
        let digest = Digest::of(b"one");
        let all = vec![7; ALL_BYTES];
        let first = copies.share(digest, all, copies.room(ALL_BYTES as u64).unwrap());
        let part = copies.shared(&digest).unwrap().slice(1..2);
        assert!(copies.room(1).is_none());
        drop(first);
        assert!(copies.room(1).is_none() && copies.shared(&digest).is_some(), "a part of it is still read");
        drop(part);
        assert!(copies.room(1).is_some() && copies.shared(&digest).is_none());
    }
}
