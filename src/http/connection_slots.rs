//! Connection slots: limits in total, for each address, and for all addresses outside `clients` together; and spare slots for
//! connections beyond them.

use std::{
    collections::HashMap,
    net::IpAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures_util::poll;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use super::{
    idle::Activity,
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
/// ask for the health of larder, and read why it gets nothing else. Its first request for more gets the slot of the connection
/// that is idle for the longest time: clients keep connections that they no longer need.
#[derive(Debug, Clone)]
pub struct ConnectionSlots(Arc<SlotTable>);

#[derive(Debug)]
struct SlotTable {
    all: Arc<Semaphore>,
    spare: Arc<Semaphore>,
    /// True while the accept loop waits for a free slot.
    is_full: AtomicBool,
    /// Tells the requests that wait for a slot of their address.
    released: Notify,
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
    /// The open connections, by their numbers.
    connections: HashMap<u64, (IpAddr, Arc<Activity>)>,
    last_number: u64,
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
            released: Notify::new(),
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
        taken.last_number += 1;
        let number = taken.last_number;
        let state = Mutex::new(SlotState { lack, _permit: permit });
        Ok(ConnectionSlot { slots: self.clone(), number, address, peer_class, state })
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

    /// Closes the connection that is idle for the longest time, for another one: of all, or of this address. Returns false if
    /// none is idle. No connection gives way to an outsider.
    fn close_an_idle_one(&self, address: Option<IpAddr>, peer_class: PeerClass) -> bool {
        if peer_class == PeerClass::Outsider {
            return false;
        }
        let taken = self.taken.lock();
        let candidates = taken.connections.values().filter(|(of, _)| address.is_none_or(|address| *of == address));
        let mut idle: Vec<_> =
            candidates.filter_map(|(_, activity)| activity.idle_since().map(|since| (since, activity))).collect();
        idle.sort_unstable_by_key(|(since, _)| *since);
        // One may have begun a request meanwhile.
        idle.into_iter().any(|(_, activity)| activity.give_way())
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
    number: u64,
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

    /// Lists the connection among those that give way to others while they are idle.
    pub(super) fn watch(&self, activity: &Arc<Activity>) {
        let watched = (self.address, Arc::clone(activity));
        self.slots.0.taken.lock().connections.insert(self.number, watched);
    }

    /// Exchanges a spare slot for one of the clients, before a request is answered. Waits for a moment: where all are taken, for
    /// one that ends, and where the address has reached its limit, for an idle connection of its own.
    ///
    /// # Errors
    /// The reason for the client, with the remedy.
    pub(super) async fn require_own(&self) -> Result<(), String> {
        let table = &self.slots.0;
        let limits = &table.limits;
        let deadline = Instant::now() + limits.wait;
        loop {
            let mut released = pin!(table.released.notified());
            released.as_mut().enable();
            let Some(lack) = self.state.lock().lack else { return Ok(()) };
            let refusal = match self.exchange(self.permit(lack, deadline).await) {
                Ok(()) => return Ok(()),
                Err(refusal) => refusal,
            };
            // Once more after each release: a new connection may have been faster.
            let is_room_coming =
                refusal == ConnectionRefusal::Address && table.close_an_idle_one(Some(self.address), self.peer_class);
            if !is_room_coming || timeout_at(deadline, released).await.is_err() {
                table.requests.record_connection_refusal(refusal);
                return Err(match refusal {
                    ConnectionRefusal::Full => format!(
                        "all {} connections are taken: try again, or raise the limit of open files (larder doctor)",
                        limits.all
                    ),
                    _ => format!(
                        "{} has {} connections, which is as many as one address may have: close some, or name a proxy \
                         in trusted_proxies",
                        self.address, limits.each_address
                    ),
                });
            }
        }
    }

    /// A permit for a slot of the clients. Where all are taken, it is that of the connection that is idle for the longest time,
    /// or else of one that ends before the deadline.
    async fn permit(&self, lack: SlotLack, deadline: Instant) -> Option<OwnedSemaphorePermit> {
        let table = &self.slots.0;
        let mut wait = pin!(Arc::clone(&table.all).acquire_owned());
        // Before an idle connection ends, or a new one could take its slot.
        if let Poll::Ready(free) = poll!(wait.as_mut()) {
            return free.ok();
        }
        if lack == SlotLack::Address {
            return None;
        }
        table.close_an_idle_one(None, self.peer_class);
        timeout_at(deadline, wait).await.ok()?.ok()
    }

    /// Exchanges the spare slot for one with this permit.
    ///
    /// # Errors
    /// The limit that does not allow it.
    fn exchange(&self, permit: Option<OwnedSemaphorePermit>) -> Result<(), ConnectionRefusal> {
        let table = &self.slots.0;
        let mut taken = table.taken.lock();
        // Another request of the connection may have been faster.
        if self.state.lock().lack.is_none() {
            return Ok(());
        }
        // The connection itself is none of those that it is held against.
        taken.release(self.address, self.peer_class, true);
        let refusal = table.refusal(&taken, self.address, self.peer_class);
        let own = refusal.map_or(permit.ok_or(ConnectionRefusal::Full), Err);
        taken.take(self.address, self.peer_class, own.is_err());
        *self.state.lock() = SlotState { lack: None, _permit: own? };
        Ok(())
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let is_spare = self.state.get_mut().lack.is_some();
        let mut taken = self.slots.0.taken.lock();
        taken.connections.remove(&self.number);
        taken.release(self.address, self.peer_class, is_spare);
        drop(taken);
        self.slots.0.released.notify_waiters();
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
