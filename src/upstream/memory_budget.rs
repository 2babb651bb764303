//! The memory budget of document bodies (DESIGN, promise 11). Each upstream has a share, so that an upstream with large
//! and slow documents leaves memory for the others.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::address::Hostname;

/// A body without a Content-Length grows in steps of this size.
const GROWTH_STEP_KIB: u64 = 64;

/// Memory limits for documents, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentMemoryLimits {
    /// Limit for one upstream, including the documents at other origins that its documents lead to.
    pub each_kib: u32,
    /// Limit for all upstreams together.
    pub all_kib: u32,
}

/// The limit that refused a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum MemoryLimitReached {
    #[error("as many bytes of documents of this upstream are in memory as may be at one time")]
    PerUpstream,
    #[error("as many bytes of documents are in memory as may be at one time")]
    Total,
}

/// The memory budget; clones share it.
#[derive(Debug, Clone)]
pub(super) struct DocumentMemory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limits: DocumentMemoryLimits,
    used: Mutex<UsedMemory>,
}

/// Memory in use, in KiB. An upstream that uses none has no entry.
#[derive(Debug, Default)]
struct UsedMemory {
    by_upstream: HashMap<Hostname, u64>,
    total: u64,
}

/// The memory of a complete body, released when the last clone is dropped.
#[derive(Debug, Clone, Default)]
pub struct MemoryGrant(#[expect(dead_code, reason = "held only for its Drop")] Option<Arc<GrowingMemory>>);

/// The memory of an arriving body. Growth is granted or refused at once; it never waits.
#[derive(Debug)]
pub(super) struct GrowingMemory {
    memory: DocumentMemory,
    upstream: Hostname,
    kib: u64,
}

impl DocumentMemory {
    pub(super) fn new(limits: DocumentMemoryLimits) -> Self {
        Self(Arc::new(Inner { limits, used: Mutex::default() }))
    }

    /// Starts a body of this upstream. The body has no memory yet.
    pub(super) fn start_body(&self, upstream: &Hostname) -> GrowingMemory {
        GrowingMemory { memory: self.clone(), upstream: upstream.clone(), kib: 0 }
    }

    fn take(&self, upstream: &Hostname, kib: u64) -> Result<(), MemoryLimitReached> {
        let DocumentMemoryLimits { each_kib, all_kib } = self.0.limits;
        let mut used = self.0.used.lock();
        let of_upstream = used.by_upstream.get(upstream).copied().unwrap_or_default().saturating_add(kib);
        let total = used.total.saturating_add(kib);
        if of_upstream > u64::from(each_kib) {
            return Err(MemoryLimitReached::PerUpstream);
        }
        if total > u64::from(all_kib) {
            return Err(MemoryLimitReached::Total);
        }
        used.by_upstream.insert(upstream.clone(), of_upstream);
        used.total = total;
        Ok(())
    }

    fn release(&self, upstream: &Hostname, kib: u64) {
        let mut used = self.0.used.lock();
        used.total = used.total.saturating_sub(kib);
        if let Some(of_upstream) = used.by_upstream.get_mut(upstream) {
            *of_upstream = of_upstream.saturating_sub(kib);
            if *of_upstream == 0 {
                used.by_upstream.remove(upstream);
            }
        }
    }
}

impl GrowingMemory {
    /// Grows the body's memory to this many bytes.
    ///
    /// # Errors
    /// The limit that was reached. The body keeps the memory that it has.
    pub(super) fn grow_to(&mut self, bytes: u64) -> Result<(), MemoryLimitReached> {
        let needed = bytes.div_ceil(1024);
        if needed <= self.kib {
            return Ok(());
        }
        let needed = if self.kib == 0 { needed } else { needed.next_multiple_of(GROWTH_STEP_KIB) };
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

    /// Limits are exact to the KiB, the last clone releases its memory, and no empty entry stays (DESIGN, promise 11).
    #[test]
    fn each_upstream_has_a_share_of_the_memory_budget() {
        let memory = DocumentMemory::new(DocumentMemoryLimits { each_kib: 100, all_kib: 150 });
        let (a, b) = (Hostname::parse("a.example").unwrap(), Hostname::parse("b.example").unwrap());
        let body = |upstream, kib| {
            let mut growing = memory.start_body(upstream);
            growing.grow_to(kib * 1024).map(|()| growing.into_grant())
        };
        let first = body(&a, 60).unwrap();
        let first_clone = first.clone();
        assert_eq!(body(&a, 41).unwrap_err(), MemoryLimitReached::PerUpstream);
        let second = body(&b, 90).unwrap();
        assert_eq!(body(&a, 1).unwrap_err(), MemoryLimitReached::Total);
        drop(first);
        assert_eq!(body(&a, 41).unwrap_err(), MemoryLimitReached::PerUpstream, "a clone of the first body is left");
        drop((first_clone, second));
        assert!(memory.0.used.lock().by_upstream.is_empty());
        drop(body(&a, 100).unwrap());
        assert_eq!(body(&a, u64::MAX / 1024).unwrap_err(), MemoryLimitReached::PerUpstream);
        assert_eq!(memory.0.used.lock().total, 0);
    }

    /// A body without a Content-Length grows in steps, and a refused body releases its memory (DESIGN, promise 11).
    #[test]
    fn a_body_grows_until_it_reaches_a_limit() {
        let memory = DocumentMemory::new(DocumentMemoryLimits { each_kib: 130, all_kib: 150 });
        let upstream = Hostname::parse("a.example").unwrap();
        let mut growing = memory.start_body(&upstream);
        growing.grow_to(0).unwrap();
        assert!(memory.0.used.lock().by_upstream.is_empty());
        growing.grow_to(10).unwrap();
        growing.grow_to(2000).unwrap();
        growing.grow_to(64 * 1024 + 1).unwrap();
        assert_eq!(memory.0.used.lock().total, 128);
        assert_eq!(growing.grow_to(128 * 1024 + 1), Err(MemoryLimitReached::PerUpstream));
        assert_eq!(memory.0.used.lock().total, 128);
        drop(growing);
        assert_eq!(memory.0.used.lock().total, 0);
    }
}
