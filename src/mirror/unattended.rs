//! Fills that clients started and that nobody waits for any more. A client that asks for many archives and leaves each
//! would have larder fetch them all: so each address has only so many of them at one time (promise 11). Beyond that none
//! starts, and of the archives of providers that were asked for at once and left at once the latest are given up; modules
//! have few places to be worked on anyway.

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

/// How many fills that nobody waits for may run for one client address before it may start no other.
const MOST_UNATTENDED: usize = 16;
/// How often a fill looks whether it is one too many.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The address of a client, as far as it tells clients apart: of IPv6 the network that one client is given, a /64.
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

/// A handle on a fill that tells whether anybody waits for it, and keeps nobody waiting by itself.
pub(super) trait Followed: fmt::Debug + Send {
    fn is_followed(&self) -> bool;
}

impl Followed for watch::Sender<Progress> {
    fn is_followed(&self) -> bool {
        // The flights have one receiver, from which those who join get theirs.
        self.receiver_count() > 1
    }
}

impl<F: Future + Send> Followed for WeakShared<F>
where
    F::Output: Clone + Send + Sync,
{
    fn is_followed(&self) -> bool {
        // The flights have one, and the one that counts is another.
        self.upgrade().and_then(|shared| shared.strong_count()).is_some_and(|count| count > 2)
    }
}

/// The running fills of one address, each under a number of its own: the earlier, the lower.
type Fills = BTreeMap<u64, Box<dyn Followed>>;

/// The running fills that clients started, by address. An address without one has no entry.
#[derive(Debug, Clone, Default)]
pub(super) struct StartedFills(Arc<Mutex<RunningDownloads>>);

#[derive(Debug, Default)]
struct RunningDownloads {
    by: HashMap<ClientAddress, Fills>,
    next: u64,
}

/// One fill in the list of the client that started it, until this is dropped.
#[derive(Debug)]
pub(super) struct StartedFill {
    of: StartedFills,
    client: ClientAddress,
    number: u64,
}

impl StartedFills {
    /// Whether a fill may start for this client; a job may always, because it waits.
    ///
    /// # Errors
    /// [`Error::Unattended`] while too many run that this client started and that nobody waits for.
    pub(super) fn may_start(&self, client: Option<ClientAddress>, what: impl FnOnce() -> String) -> Result<(), Error> {
        let Some(client) = client else { return Ok(()) };
        let running = self.0.lock();
        let unattended = running.by.get(&client).map_or(0, |fills| unattended(fills.values()));
        if unattended < MOST_UNATTENDED { Ok(()) } else { Err(Error::Unattended { what: what(), running: unattended }) }
    }

    /// How many fills run that clients started and that nobody waits for.
    pub(super) fn unattended(&self) -> usize {
        self.0.lock().by.values().map(|fills| unattended(fills.values())).sum()
    }

    /// Lists a fill that others can follow already; nothing for a job's.
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
    /// Waits until a fill is one too many: nobody waits for it, nor for as many as may be that its client started
    /// before it. Says why it is given up then. A job's never is.
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
        // Not under the lock: it may be the last to hold on to what the fill told.
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

    /// Promise 11: only those that nobody waits for count, and addresses whose fills have ended are forgotten.
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

    /// The same for work that is awaited, as that on modules.
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
