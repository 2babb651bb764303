//! Limits the fills that clients start and abandon. A client that requests many archives and disconnects each time
//! would have larder fetch them all (Promise 11). Beyond the limit of its address, no other fill starts, and the latest
//! of its abandoned provider fills are cancelled. Module fills are few anyway, by their own concurrency limit.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::pending;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::WeakShared;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::follow::Progress;
use crate::error::Error;

/// The most abandoned fills of a client address before it may start no other.
const MOST_UNATTENDED: usize = 16;
/// The interval at which a fill checks if it is over the limit.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A client's address. Of IPv6 only the /64 network counts, because one client gets all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientAddress(IpAddr);

impl From<IpAddr> for ClientAddress {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// A handle that reports if anything waits for a fill. The handle itself does not count.
pub(super) trait Followed: fmt::Debug + Send {
    fn is_followed(&self) -> bool;
}

impl Followed for watch::Sender<Progress> {
    fn is_followed(&self) -> bool {
        // The flight map has one receiver, from which joiners clone theirs.
        self.receiver_count() > 1
    }
}

impl<F: Future + Send> Followed for WeakShared<F>
where
    F::Output: Clone + Send + Sync,
{
    fn is_followed(&self) -> bool {
        // The flight map has one clone, and `upgrade` makes another.
        self.upgrade().and_then(|shared| shared.strong_count()).is_some_and(|count| count > 2)
    }
}

/// The fills in progress of one address, by ascending start number.
type Fills = BTreeMap<u64, Box<dyn Followed>>;

/// The fills in progress that clients started, by address. An address without one has no entry.
#[derive(Debug, Clone, Default)]
pub(super) struct StartedFills(Arc<Mutex<RunningDownloads>>);

#[derive(Debug, Default)]
struct RunningDownloads {
    by: HashMap<ClientAddress, Fills>,
    next: u64,
}

/// An entry in the list of the client that started the fill, removed on drop.
#[derive(Debug)]
pub(super) struct StartedFill {
    of: StartedFills,
    client: ClientAddress,
    number: u64,
}

impl StartedFills {
    /// Checks that this client may start a fill. A job always may, because it waits for it.
    ///
    /// # Errors
    /// [`Error::Unattended`] while too many abandoned fills of this client are in progress.
    pub(super) fn may_start(&self, client: Option<ClientAddress>, what: impl FnOnce() -> String) -> Result<(), Error> {
        let Some(client) = client else { return Ok(()) };
        let running = self.0.lock();
        let unattended = running.by.get(&client).map_or(0, |fills| unattended(fills.values()));
        if unattended < MOST_UNATTENDED { Ok(()) } else { Err(Error::Unattended { what: what(), running: unattended }) }
    }

    /// The number of fills in progress that clients started and abandoned.
    pub(super) fn unattended(&self) -> usize {
        self.0.lock().by.values().map(|fills| unattended(fills.values())).sum()
    }

    /// Lists a fill that others can already join. A job's fill is not listed.
    pub(super) fn started(&self, client: Option<ClientAddress>, fill: impl Followed + 'static) -> Option<StartedFill> {
        let client = client?;
        let mut running = self.0.lock();
        let number = running.next;
        running.next += 1;
        running.by.entry(client).or_default().insert(number, Box::new(fill));
        Some(StartedFill { of: self.clone(), client, number })
    }
}

fn unattended<'a>(fills: impl Iterator<Item = &'a Box<dyn Followed>>) -> usize {
    fills.filter(|fill| !fill.is_followed()).count()
}

impl StartedFill {
    /// Waits until this fill must be cancelled: it is abandoned, and so are as many earlier ones of its client as the
    /// limit allows. Returns the error. A job's fill is never cancelled.
    pub(super) async fn one_too_many(started: Option<&Self>, what: &str) -> Error {
        let Some(started) = started else { return pending().await };
        let mut looks = tokio::time::interval(LOOK_EVERY);
        while !started.is_one_too_many() {
            looks.tick().await;
        }
        Error::Unattended { what: what.to_owned(), running: MOST_UNATTENDED }
    }

    fn is_one_too_many(&self) -> bool {
        let running = self.of.0.lock();
        let Some(fills) = running.by.get(&self.client) else { return false };
        let is_followed = fills.get(&self.number).is_none_or(|fill| fill.is_followed());
        !is_followed && unattended(fills.range(..self.number).map(|(_, fill)| fill)) >= MOST_UNATTENDED
    }
}

impl Drop for StartedFill {
    fn drop(&mut self) {
        let mut running = self.of.0.lock();
        let Some(fills) = running.by.get_mut(&self.client) else { return };
        let ended = fills.remove(&self.number);
        if fills.is_empty() {
            running.by.remove(&self.client);
        }
        drop(running);
        // Outside the lock: this may drop the last reference to the fill's result.
        drop(ended);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn client(address: &str) -> ClientAddress {
        address.parse::<IpAddr>().unwrap().into()
    }

    fn may_start(started: &StartedFills, address: &str) -> bool {
        started.may_start(Some(client(address)), String::new).is_ok()
    }

    /// Promise 11: a client has as many IPv6 addresses as it likes, and one /64.
    #[test]
    fn an_ipv6_network_of_64_bits_is_one_client() {
        assert_eq!(client("2001:db8:0:1::1"), client("2001:db8:0:1:ffff::2"));
        assert_ne!(client("2001:db8:0:1::1"), client("2001:db8:0:2::1"));
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
        assert_ne!(client("192.0.2.1"), client("192.0.2.2"));
    }

    /// Promise 11: only abandoned fills count, and addresses without a fill are forgotten.
    #[test]
    fn sixteen_fills_that_nobody_waits_for_are_as_many_as_one_address_may_have() {
        let started = StartedFills::default();
        let mut fills = Vec::new();
        for _ in 0..MOST_UNATTENDED {
            assert!(may_start(&started, "192.0.2.1"));
            let (tell, flight) = watch::channel(Progress::Asking);
            let work = started.started(Some(client("192.0.2.1")), tell);
            fills.push((flight, work));
        }
        assert!(!may_start(&started, "192.0.2.1"));
        assert!(may_start(&started, "192.0.2.2"));
        assert!(started.may_start(None, String::new).is_ok());
        let follower = fills[3].0.clone();
        assert!(may_start(&started, "192.0.2.1"), "one of them is followed");
        drop(follower);
        assert!(!may_start(&started, "192.0.2.1"));
        fills.pop();
        assert!(may_start(&started, "192.0.2.1"), "one of them has ended");
        fills.clear();
        assert!(started.0.lock().by.is_empty());
    }

    /// Promise 11: the same rule for fills with a shared future, as those of modules.
    #[test]
    fn awaited_work_is_followed_while_anybody_has_a_copy_beside_the_flights() {
        let flight = std::future::pending::<()>().boxed().shared();
        let fill = flight.downgrade().unwrap();
        assert!(!fill.is_followed());
        let follower = flight.clone();
        assert!(fill.is_followed());
        drop(follower);
        assert!(!fill.is_followed());
        drop(flight);
        assert!(!fill.is_followed());
    }
}
