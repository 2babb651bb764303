//! Connection slots: limits in total, for each address, and for all addresses outside `clients` together; and spare slots for
//! connections beyond them.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

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
///
/// Beside the slots for clients there are a few spare ones. A connection without a slot of its own gets one, so that it can
/// ask for the health of larder, and read why it gets nothing else.
#[derive(Debug, Clone)]
pub struct ConnectionSlots(Arc<SlotTable>);

#[derive(Debug)]
struct SlotTable {
    all: Arc<Semaphore>,
    spare: Arc<Semaphore>,
    /// True while the accept loop waits for a free slot.
    is_full: AtomicBool,
    taken: Mutex<TakenSlots>,
    limits: SlotLimits,
    requests: RequestMetrics,
}

#[derive(Debug)]
struct SlotLimits {
    all: usize,
    each_address: usize,
    outsiders: usize,
    spare_each_address: usize,
    /// The longest wait of a request for a slot while all are taken.
    wait: Duration,
}

/// Slots in use. There are at most as many addresses as connections.
#[derive(Debug, Default)]
struct TakenSlots {
    by_address: HashMap<IpAddr, TakenByAddress>,
    outsiders: usize,
}

#[derive(Debug, Default)]
struct TakenByAddress {
    slots: usize,
    spare: usize,
}

/// A place for the next connection, whatever its address.
#[derive(Debug)]
pub(super) enum Reservation {
    Slot(OwnedSemaphorePermit),
    /// All slots are taken.
    Spare(OwnedSemaphorePermit),
}

impl ConnectionSlots {
    /// Creates the slots that `limits` allows. Refused connections are counted in `requests`.
    pub fn new(limits: &Limits, requests: RequestMetrics) -> Self {
        let semaphore = |permits: usize| Arc::new(Semaphore::new(permits.clamp(1, Semaphore::MAX_PERMITS)));
        Self(Arc::new(SlotTable {
            all: semaphore(limits.connections),
            spare: semaphore(limits.spare),
            is_full: AtomicBool::new(false),
            taken: Mutex::default(),
            limits: SlotLimits {
                all: limits.connections,
                each_address: limits.each_address,
                outsiders: limits.outsiders,
                spare_each_address: (limits.spare / 2).max(1),
                wait: limits.slot_wait,
            },
            requests,
        }))
    }

    /// Returns true if a new connection from this address would wait, or get no slot.
    pub fn is_full_for(&self, address: IpAddr, peer_class: PeerClass) -> bool {
        let is_full = self.0.is_full.load(Ordering::Relaxed) && self.0.all.available_permits() == 0;
        is_full || self.0.refusal(&self.0.taken.lock(), address, peer_class).is_some()
    }

    /// Waits for a place. Calls `when_full` if no slot is free at once.
    pub(super) async fn reserve(&self, mut when_full: impl FnMut()) -> Reservation {
        loop {
            if let Ok(permit) = Arc::clone(&self.0.all).try_acquire_owned() {
                self.0.is_full.store(false, Ordering::Relaxed);
                return Reservation::Slot(permit);
            }
            self.0.is_full.store(true, Ordering::Relaxed);
            when_full();
            // Acquiring fails only on a closed semaphore. These are never closed.
            tokio::select! {
                biased;
                Ok(permit) = Arc::clone(&self.0.all).acquire_owned() => {
                    self.0.is_full.store(false, Ordering::Relaxed);
                    return Reservation::Slot(permit);
                }
                Ok(permit) = Arc::clone(&self.0.spare).acquire_owned() => return Reservation::Spare(permit),
                else => {}
            }
        }
    }

    /// Assigns a place to this address until the returned value is dropped.
    ///
    /// # Errors
    /// The limit that the address has reached, with the place, which stays for another address.
    pub(super) fn assign(
        &self,
        place: Reservation,
        address: IpAddr,
        peer_class: PeerClass,
    ) -> Result<ConnectionSlot, (Reservation, ConnectionRefusal)> {
        let mut taken = self.0.taken.lock();
        let refusal = self.0.refusal(&taken, address, peer_class);
        // A slot may have become free since the place was reserved.
        let place = match place {
            Reservation::Spare(spare) => match Arc::clone(&self.0.all).try_acquire_owned() {
                Ok(permit) => Reservation::Slot(permit),
                Err(_) => Reservation::Spare(spare),
            },
            slot @ Reservation::Slot(_) => slot,
        };
        let lack = match (&place, refusal) {
            (_, Some(refusal @ ConnectionRefusal::Outsiders)) => return Err(self.refuse(place, refusal)),
            (_, Some(_)) => Some(SlotLack::Address),
            (Reservation::Spare(_), None) => Some(SlotLack::All),
            (Reservation::Slot(_), None) => None,
        };
        let permit = match (place, lack) {
            (Reservation::Slot(permit), None) => permit,
            (place, _) => match self.0.spare_permit(place, &taken, address, peer_class) {
                Ok(permit) => permit,
                // A place that this address may not have stays for another one.
                Err(place) => return Err(self.refuse(place, refusal.unwrap_or(ConnectionRefusal::Full))),
            },
        };
        taken.take(address, peer_class, lack.is_some());
        let state = Mutex::new(SlotState { lack, _permit: permit });
        Ok(ConnectionSlot { slots: self.clone(), address, peer_class, state })
    }

    fn refuse(&self, place: Reservation, refusal: ConnectionRefusal) -> (Reservation, ConnectionRefusal) {
        self.0.requests.record_connection_refusal(refusal);
        (place, refusal)
    }

    /// Counts a connection that waits because the process has no file descriptor left.
    pub(super) fn record_no_open_file(&self) {
        self.0.requests.record_connection_refusal(ConnectionRefusal::OpenFiles);
    }

    /// Counts an outsider that sent no request in time as a refused connection.
    pub(super) fn record_slow_outsider(&self) {
        self.0.requests.record_connection_refusal(ConnectionRefusal::SlowOutsider);
    }
}

impl SlotTable {
    /// A spare slot for this address, in place of what was reserved; or the place, if the address has its share of them, or
    /// none is left.
    fn spare_permit(
        &self,
        place: Reservation,
        taken: &TakenSlots,
        address: IpAddr,
        peer_class: PeerClass,
    ) -> Result<OwnedSemaphorePermit, Reservation> {
        let spare_of_address = taken.by_address.get(&address).map_or(0, |taken| taken.spare);
        // A proxy connects for many.
        if peer_class != PeerClass::Proxy && spare_of_address >= self.limits.spare_each_address {
            return Err(place);
        }
        match place {
            Reservation::Spare(permit) => Ok(permit),
            Reservation::Slot(permit) => {
                Arc::clone(&self.spare).try_acquire_owned().map_err(|_| Reservation::Slot(permit))
            }
        }
    }

    fn refusal(&self, taken: &TakenSlots, address: IpAddr, peer_class: PeerClass) -> Option<ConnectionRefusal> {
        let is_outsider = peer_class == PeerClass::Outsider;
        if is_outsider && taken.outsiders >= self.limits.outsiders {
            return Some(ConnectionRefusal::Outsiders);
        }
        let slots = taken.by_address.get(&address).map_or(0, |taken| taken.slots);
        (peer_class != PeerClass::Proxy && slots >= self.limits.each_address).then_some(ConnectionRefusal::Address)
    }
}

impl TakenSlots {
    fn take(&mut self, address: IpAddr, peer_class: PeerClass, is_spare: bool) {
        self.outsiders += usize::from(peer_class == PeerClass::Outsider);
        if is_spare || peer_class != PeerClass::Proxy {
            let taken = self.by_address.entry(address).or_default();
            *(if is_spare { &mut taken.spare } else { &mut taken.slots }) += 1;
        }
    }

    fn release(&mut self, address: IpAddr, peer_class: PeerClass, is_spare: bool) {
        self.outsiders -= usize::from(peer_class == PeerClass::Outsider);
        if is_spare || peer_class != PeerClass::Proxy {
            let Some(taken) = self.by_address.get_mut(&address) else { return };
            let count = if is_spare { &mut taken.spare } else { &mut taken.slots };
            *count = count.saturating_sub(1);
            if taken.slots == 0 && taken.spare == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

/// The reason why a connection has a spare slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotLack {
    /// All slots were taken.
    All,
    /// Its address had as many as one address may have.
    Address,
}

/// The slot of one connection, released on drop.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: ConnectionSlots,
    address: IpAddr,
    pub(super) peer_class: PeerClass,
    state: Mutex<SlotState>,
}

#[derive(Debug)]
struct SlotState {
    /// Set while it is a spare slot.
    lack: Option<SlotLack>,
    /// One of [`SlotTable::all`] or [`SlotTable::spare`].
    _permit: OwnedSemaphorePermit,
}

impl ConnectionSlot {
    /// True for a spare slot.
    pub(super) fn is_spare(&self) -> bool {
        self.state.lock().lack.is_some()
    }

    /// Exchanges a spare slot for one of the clients, before a request is answered. Waits for a moment where all are taken,
    /// and not where the address has reached its limit.
    ///
    /// # Errors
    /// The reason for the client, with the remedy.
    pub(super) async fn require_own(&self) -> Result<(), String> {
        let table = &self.slots.0;
        let Some(lack) = self.state.lock().lack else { return Ok(()) };
        let limits = &table.limits;
        let permit = match lack {
            SlotLack::Address => Arc::clone(&table.all).try_acquire_owned().ok(),
            SlotLack::All => {
                let waited = timeout(limits.wait, Arc::clone(&table.all).acquire_owned()).await;
                waited.ok().and_then(Result::ok)
            }
        };
        let mut taken = table.taken.lock();
        // Another request of the connection may have been faster.
        if self.state.lock().lack.is_none() {
            return Ok(());
        }
        // The connection itself is none of those that it is held against.
        taken.release(self.address, self.peer_class, true);
        let refusal = table.refusal(&taken, self.address, self.peer_class);
        let stays_spare = permit.is_none() || refusal.is_some();
        taken.take(self.address, self.peer_class, stays_spare);
        if stays_spare {
            table.requests.record_connection_refusal(refusal.unwrap_or(ConnectionRefusal::Full));
        }
        match (permit, refusal) {
            (Some(permit), None) => {
                *self.state.lock() = SlotState { lack: None, _permit: permit };
                Ok(())
            }
            (_, Some(_)) => Err(format!(
                "{} has {} connections, which is as many as one address may have: close some, or name a proxy in \
                 trusted_proxies",
                self.address, limits.each_address
            )),
            (None, None) => Err(format!(
                "all {} connections are taken: try again, or raise the limit of open files (larder doctor)",
                limits.all
            )),
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let is_spare = self.state.get_mut().lack.is_some();
        self.slots.0.taken.lock().release(self.address, self.peer_class, is_spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All addresses outside `clients` have a limit together. The last one within it is not counted against itself when it
    /// exchanges a spare slot for one of its own.
    #[tokio::test]
    async fn a_connection_on_a_spare_slot_is_not_held_against_itself() {
        let limits = Limits { connections: 1, outsiders: 1, spare: 4, ..Limits::default() };
        let slots = ConnectionSlots::new(&limits, RequestMetrics::default());
        let connect = async |address: [u8; 4], peer_class| {
            let place = slots.reserve(|| ()).await;
            slots.assign(place, IpAddr::from(address), peer_class).map_err(|(_, refusal)| refusal)
        };
        let client = connect([127, 0, 0, 1], PeerClass::Client).await.unwrap();
        let outsider = connect([127, 0, 0, 2], PeerClass::Outsider).await.unwrap();
        assert!(outsider.is_spare() && !client.is_spare());
        let another = connect([127, 0, 0, 3], PeerClass::Outsider).await;
        assert_eq!(another.map(|slot| slot.is_spare()), Err(ConnectionRefusal::Outsiders));
        drop(client);
        assert_eq!(outsider.require_own().await, Ok(()));
        assert!(!outsider.is_spare());
        drop(outsider);
        assert!(!connect([127, 0, 0, 3], PeerClass::Outsider).await.unwrap().is_spare());
    }
}
