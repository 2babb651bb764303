//! Connection slots: limits in total, for each address, and for all addresses outside `clients` together.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    listener::Limits,
    requests::{ConnectionRefusal, RequestMetrics},
};

/// The class of a peer at a listener, by its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerClass {
    /// Allowed by `clients`.
    Client,
    /// A trusted proxy. It may have many connections, and each request names its client.
    Proxy,
    /// Outside `clients`: answered once, with a refusal.
    Outsider,
}

/// The connection slots of one listener, shared by all copies.
#[derive(Debug, Clone)]
pub struct ConnectionSlots(Arc<SlotTable>);

#[derive(Debug)]
struct SlotTable {
    all: Arc<Semaphore>,
    /// True while the accept loop waits for a free slot.
    is_full: AtomicBool,
    taken: Mutex<TakenSlots>,
    max_each_address: usize,
    max_outsiders: usize,
    requests: RequestMetrics,
}

/// Slots in use. There are at most as many addresses as connections.
#[derive(Debug, Default)]
struct TakenSlots {
    by_address: HashMap<IpAddr, usize>,
    outsiders: usize,
}

impl ConnectionSlots {
    /// Creates the slots that `limits` allows. Refused connections are counted in `requests`.
    pub fn new(limits: &Limits, requests: RequestMetrics) -> Self {
        Self(Arc::new(SlotTable {
            all: Arc::new(Semaphore::new(limits.connections.clamp(1, Semaphore::MAX_PERMITS))),
            is_full: AtomicBool::new(false),
            taken: Mutex::default(),
            max_each_address: limits.each_address,
            max_outsiders: limits.outsiders,
            requests,
        }))
    }

    /// Returns true if a new connection from this address would wait or be closed.
    pub fn is_full_for(&self, address: IpAddr, peer_class: PeerClass) -> bool {
        self.0.is_full.load(Ordering::Relaxed) || self.0.refusal(&self.0.taken.lock(), address, peer_class).is_some()
    }

    /// Waits for a free slot. Calls `when_full` if there is none at once.
    pub(super) async fn reserve(&self, mut when_full: impl FnMut()) -> OwnedSemaphorePermit {
        loop {
            if let Ok(permit) = Arc::clone(&self.0.all).try_acquire_owned() {
                return permit;
            }
            self.0.is_full.store(true, Ordering::Relaxed);
            when_full();
            // Fails only on a closed semaphore. This one is never closed.
            if let Ok(permit) = Arc::clone(&self.0.all).acquire_owned().await {
                self.0.is_full.store(false, Ordering::Relaxed);
                return permit;
            }
        }
    }

    /// Assigns a reserved slot to this address until it is dropped.
    ///
    /// # Errors
    /// The limit that the address has reached, with the reservation, which stays for another address.
    pub(super) fn assign(
        &self,
        permit: OwnedSemaphorePermit,
        address: IpAddr,
        peer_class: PeerClass,
    ) -> Result<ConnectionSlot, (OwnedSemaphorePermit, ConnectionRefusal)> {
        let mut taken = self.0.taken.lock();
        if let Some(refusal) = self.0.refusal(&taken, address, peer_class) {
            self.0.requests.record_connection_refusal(refusal);
            return Err((permit, refusal));
        }
        taken.outsiders += usize::from(peer_class == PeerClass::Outsider);
        if peer_class != PeerClass::Proxy {
            *taken.by_address.entry(address).or_default() += 1;
        }
        Ok(ConnectionSlot { slots: self.clone(), address, peer_class, _permit: permit })
    }

    /// Counts an outsider that sent no request in time as a refused connection.
    pub(super) fn record_slow_outsider(&self) {
        self.0.requests.record_connection_refusal(ConnectionRefusal::SlowOutsider);
    }
}

impl SlotTable {
    fn refusal(&self, taken: &TakenSlots, address: IpAddr, peer_class: PeerClass) -> Option<ConnectionRefusal> {
        let is_outsider = peer_class == PeerClass::Outsider;
        if is_outsider && taken.outsiders >= self.max_outsiders {
            return Some(ConnectionRefusal::Outsiders);
        }
        let address_slots = taken.by_address.get(&address).copied().unwrap_or_default();
        (peer_class != PeerClass::Proxy && address_slots >= self.max_each_address).then_some(ConnectionRefusal::Address)
    }
}

/// The slot of one connection, released on drop.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: ConnectionSlots,
    address: IpAddr,
    pub(super) peer_class: PeerClass,
    /// One of [`SlotTable::all`].
    _permit: OwnedSemaphorePermit,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.0.taken.lock();
        taken.outsiders -= usize::from(self.peer_class == PeerClass::Outsider);
        if let Some(address_slots) =
            taken.by_address.get_mut(&self.address).filter(|_| self.peer_class != PeerClass::Proxy)
        {
            *address_slots -= 1;
            if *address_slots == 0 {
                taken.by_address.remove(&self.address);
            }
        }
    }
}
