//! The memory budget of document bodies (DESIGN, promise 11). Each upstream has a share, so that one with large and
//! slow documents leaves memory for the others.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::address::Hostname;

/// Step size for bodies without a length, in KiB.
const ROOM_STEP_KIB: u64 = 64;

/// Memory limits for documents, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentMemoryLimits {
    /// Limit for one upstream, wherever its documents lead.
    pub each_kib: u32,
    /// Limit for all upstreams together.
    pub all_kib: u32,
}

/// The limit that refused a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum MemoryLimitReached {
    #[error("as many bytes of documents of this upstream are in memory as may be at one time")]
    OfThisUpstream,
    #[error("as many bytes of documents are in memory as may be at one time")]
    OfAll,
}

/// The memory budget; clones share it.
#[derive(Debug, Clone)]
pub(super) struct DocumentMemory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bound: DocumentMemoryLimits,
    taken: Mutex<TakenMemory>,
}

/// Memory in use, in KiB. An upstream without any has no entry.
#[derive(Debug, Default)]
struct TakenMemory {
    by_host: HashMap<Hostname, u64>,
    all: u64,
}

/// The memory of a complete body, released with its last copy.
#[derive(Debug, Clone, Default)]
pub struct MemoryGrant(#[expect(dead_code, reason = "held only for its Drop")] Option<Arc<GrowingMemory>>);

/// The memory of an arriving body. A request for more never waits: it is granted or refused.
#[derive(Debug)]
pub(super) struct GrowingMemory {
    memory: DocumentMemory,
    upstream: Hostname,
    kib: u64,
}

impl DocumentMemory {
    pub(super) fn new(bound: DocumentMemoryLimits) -> Self {
        Self(Arc::new(Inner { bound, taken: Mutex::default() }))
    }

    /// Starts a body of this upstream, without any memory yet.
    pub(super) fn start_body(&self, upstream: &Hostname) -> GrowingMemory {
        GrowingMemory { memory: self.clone(), upstream: upstream.clone(), kib: 0 }
    }

    fn take(&self, upstream: &Hostname, kib: u64) -> Result<(), MemoryLimitReached> {
        let DocumentMemoryLimits { each_kib, all_kib } = self.0.bound;
        let mut taken = self.0.taken.lock();
        let total = taken.by_host.get(upstream).copied().unwrap_or_default().saturating_add(kib);
        let all = taken.all.saturating_add(kib);
        if total > u64::from(each_kib) {
            return Err(MemoryLimitReached::OfThisUpstream);
        }
        if all > u64::from(all_kib) {
            return Err(MemoryLimitReached::OfAll);
        }
        taken.by_host.insert(upstream.clone(), total);
        taken.all = all;
        Ok(())
    }

    fn release(&self, upstream: &Hostname, kib: u64) {
        let mut taken = self.0.taken.lock();
        taken.all = taken.all.saturating_sub(kib);
        if let Some(total) = taken.by_host.get_mut(upstream) {
            *total = total.saturating_sub(kib);
            if *total == 0 {
                taken.by_host.remove(upstream);
            }
        }
    }
}

impl GrowingMemory {
    /// Grows the body's memory to this many bytes.
    ///
    /// # Errors
    /// The limit that was reached; the memory so far stays allocated.
    pub(super) fn grow_to(&mut self, bytes: u64) -> Result<(), MemoryLimitReached> {
        let needed = bytes.div_ceil(1024);
        if needed <= self.kib {
            return Ok(());
        }
        let needed = if self.kib == 0 { needed } else { needed.next_multiple_of(ROOM_STEP_KIB) };
        self.memory.take(&self.upstream, needed - self.kib)?;
        self.kib = needed;
        Ok(())
    }

    pub(super) fn into_grant(self) -> MemoryGrant {
        MemoryGrant((self.kib > 0).then(|| Arc::new(self)))
    }
}

impl Drop for GrowingMemory {
    fn drop(&mut self) {
        if self.kib > 0 {
            self.memory.release(&self.upstream, self.kib);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DESIGN, promise 11: limits hold to the KiB, the last copy releases its memory, and no empty entry stays.
    #[test]
    fn each_upstream_has_a_share_of_the_memory_budget() {
        let memory = DocumentMemory::new(DocumentMemoryLimits { each_kib: 100, all_kib: 150 });
        let (one, other) = (Hostname::parse("a.example").unwrap(), Hostname::parse("b.example").unwrap());
        let body = |upstream, kib| {
            let mut growing = memory.start_body(upstream);
            growing.grow_to(kib * 1024).map(|()| growing.into_grant())
        };
        let first = body(&one, 60).unwrap();
        let copy = first.clone();
        assert_eq!(body(&one, 41).unwrap_err(), MemoryLimitReached::OfThisUpstream);
        let second = body(&other, 90).unwrap();
        assert_eq!(body(&one, 1).unwrap_err(), MemoryLimitReached::OfAll);
        drop(first);
        assert_eq!(body(&one, 41).unwrap_err(), MemoryLimitReached::OfThisUpstream, "a copy is left");
        drop((copy, second));
        assert!(memory.0.taken.lock().by_host.is_empty());
        drop(body(&one, 100).unwrap());
        assert_eq!(body(&one, u64::MAX / 1024).unwrap_err(), MemoryLimitReached::OfThisUpstream);
        assert_eq!(memory.0.taken.lock().all, 0);
    }

    /// DESIGN, promise 11: a body without a length grows in steps; a refused one releases its memory.
    #[test]
    fn a_body_grows_until_it_reaches_a_limit() {
        let memory = DocumentMemory::new(DocumentMemoryLimits { each_kib: 130, all_kib: 150 });
        let one = Hostname::parse("a.example").unwrap();
        let mut growing = memory.start_body(&one);
        growing.grow_to(0).unwrap();
        assert!(memory.0.taken.lock().by_host.is_empty());
        growing.grow_to(10).unwrap();
        growing.grow_to(2000).unwrap();
        growing.grow_to(64 * 1024 + 1).unwrap();
        assert_eq!(memory.0.taken.lock().all, 128);
        assert_eq!(growing.grow_to(128 * 1024 + 1), Err(MemoryLimitReached::OfThisUpstream));
        assert_eq!(memory.0.taken.lock().all, 128);
        drop(growing);
        assert_eq!(memory.0.taken.lock().all, 0);
    }
}
