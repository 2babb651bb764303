//! Small archives in memory while they are sent, within one memory budget, however many are requested and however
//! slowly they are read (DESIGN, promise 11). Concurrent readers of an archive share a copy.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::digest::Digest;
use crate::store::{ReadBudget, ReadGrant};

/// The memory budget of all copies, in bytes.
const ALL_BYTES: usize = 64 << 20;
/// The number of entries from which on those without readers are removed.
const MAX_LISTED: usize = 1000;

#[derive(Debug)]
pub(in crate::mirror) struct SmallCopies {
    memory: ReadBudget,
    // Weak, because a list that owns the bytes would keep them in memory.
    shared: Mutex<HashMap<Digest, Weak<Bytes>>>,
}

/// A copy as the owner of a response body.
struct CopyOwner(Arc<Bytes>);

impl AsRef<[u8]> for CopyOwner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Default for SmallCopies {
    fn default() -> Self {
        Self { memory: ReadBudget::new(ALL_BYTES), shared: Mutex::default() }
    }
}

impl SmallCopies {
    /// The copy that is being sent to another client, if any.
    pub(in crate::mirror) fn shared_copy(&self, digest: &Digest) -> Option<Bytes> {
        self.shared.lock().get(digest).and_then(Weak::upgrade).map(|copy| Bytes::from_owner(CopyOwner(copy)))
    }

    /// Reserves memory for an archive; `None` where the budget is used up.
    pub(in crate::mirror) fn reserve(&self, bytes: u64) -> Option<ReadGrant> {
        usize::try_from(bytes).ok().and_then(|bytes| self.memory.try_grant(bytes))
    }

    /// Shares a new copy with other readers for as long as it has any.
    pub(in crate::mirror) fn share(&self, digest: Digest, bytes: Vec<u8>, grant: ReadGrant) -> Bytes {
        let copy = Arc::new(grant.fill(bytes));
        let mut shared = self.shared.lock();
        if shared.len() >= MAX_LISTED {
            shared.retain(|_, copy| copy.strong_count() > 0);
        }
        shared.insert(digest, Arc::downgrade(&copy));
        drop(shared);
        Bytes::from_owner(CopyOwner(copy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DESIGN, promise 11: an entry without a reader takes no memory, and all copies stay within the budget.
    #[test]
    fn a_copy_holds_its_memory_while_it_is_read() {
        let copies = SmallCopies::default();
        let digest = Digest::of(b"one");
        let all = vec![7; ALL_BYTES];
        let first = copies.share(digest, all, copies.reserve(ALL_BYTES as u64).unwrap());
        let part = copies.shared_copy(&digest).unwrap().slice(1..2);
        assert!(copies.reserve(1).is_none());
        drop(first);
        assert!(copies.reserve(1).is_none() && copies.shared_copy(&digest).is_some(), "a part of it is still read");
        drop(part);
        assert!(copies.reserve(1).is_some() && copies.shared_copy(&digest).is_none());
    }
}
