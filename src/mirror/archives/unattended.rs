//! Limits the fills that clients start and abandon. A client that requests many archives and disconnects each time
//! would have larder fetch them all (promise 11). Beyond the limit of its address, no other fill starts, and the latest
//! of its abandoned provider fills are cancelled. Module fills are few anyway, by their own concurrency limit.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::WeakShared;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::Error;
use crate::mirror::ClientAddress;

/// The most abandoned fills of a client address before it may start no other.
const MAX_UNATTENDED_FILLS: usize = 16;
/// The interval at which a fill checks if it is over the limit.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A handle that reports if anything waits for a fill. The handle itself does not count.
pub trait CountsWaiters: fmt::Debug + Send {
    fn has_waiters(&self) -> bool;
}

impl<T: fmt::Debug + Send + Sync> CountsWaiters for watch::Sender<T> {
    fn has_waiters(&self) -> bool {
        // The flight map has one receiver, from which joiners clone theirs.
        self.receiver_count() > 1
    }
}

impl<F: Future + Send> CountsWaiters for WeakShared<F>
where
    F::Output: Clone + Send + Sync,
{
    fn has_waiters(&self) -> bool {
        // The flight map has one clone, and `upgrade` makes another.
        self.upgrade().and_then(|shared| shared.strong_count()).is_some_and(|count| count > 2)
    }
}

/// The fills in progress of one address, by ascending start number.
type Fills = BTreeMap<u64, Box<dyn CountsWaiters>>;

/// The fills in progress that clients started, by address. An address without one has no entry.
#[derive(Debug, Clone, Default)]
pub struct FillsByClient(Arc<Mutex<RunningFills>>);

#[derive(Debug, Default)]
struct RunningFills {
    by_client: HashMap<ClientAddress, Fills>,
    next: u64,
}

/// An entry in the list of the client that started the fill, removed on drop.
#[derive(Debug)]
pub struct ListedFill {
    fills: FillsByClient,
    client: ClientAddress,
    number: u64,
}

impl FillsByClient {
    /// Checks that this client may start a fill. A job always may, because it waits for it.
    ///
    /// # Errors
    /// [`Error::TooManyUnattendedFills`] while too many abandoned fills of this client are in progress.
    pub fn may_start(&self, client: Option<ClientAddress>, subject: impl FnOnce() -> String) -> Result<(), Error> {
        let Some(client) = client else { return Ok(()) };
        let running = self.0.lock();
        let unattended = running.by_client.get(&client).map_or(0, |fills| unattended(fills.values()));
        if unattended < MAX_UNATTENDED_FILLS {
            Ok(())
        } else {
            Err(Error::TooManyUnattendedFills { subject: subject(), running: unattended })
        }
    }

    /// The number of fills in progress that clients started and abandoned.
    pub fn unattended(&self) -> usize {
        self.0.lock().by_client.values().map(|fills| unattended(fills.values())).sum()
    }

    /// Lists a fill that others can already join. A job's fill is not listed.
    pub fn started(&self, client: Option<ClientAddress>, fill: impl CountsWaiters + 'static) -> Option<ListedFill> {
        let client = client?;
        let mut running = self.0.lock();
        let number = running.next;
        running.next += 1;
        running.by_client.entry(client).or_default().insert(number, Box::new(fill));
        Some(ListedFill { fills: self.clone(), client, number })
    }
}

fn unattended<'a>(fills: impl Iterator<Item = &'a Box<dyn CountsWaiters>>) -> usize {
    fills.filter(|fill| !fill.has_waiters()).count()
}

impl ListedFill {
    /// Waits until this fill must be cancelled: it is abandoned, and so are as many earlier ones of its client as the
    /// limit allows. Returns the error. A job's fill is never cancelled.
    pub async fn until_over_limit(started: Option<&Self>, subject: &str) -> Error {
        let Some(started) = started else { return pending().await };
        let mut checks = tokio::time::interval(CHECK_INTERVAL);
        while !started.is_over_limit() {
            checks.tick().await;
        }
        Error::TooManyUnattendedFills { subject: subject.to_owned(), running: MAX_UNATTENDED_FILLS }
    }

    fn is_over_limit(&self) -> bool {
        let running = self.fills.0.lock();
        let Some(fills) = running.by_client.get(&self.client) else { return false };
        let is_followed = fills.get(&self.number).is_none_or(|fill| fill.has_waiters());
        !is_followed && unattended(fills.range(..self.number).map(|(_, fill)| fill)) >= MAX_UNATTENDED_FILLS
    }
}

impl Drop for ListedFill {
    fn drop(&mut self) {
        let mut running = self.fills.0.lock();
        let Some(fills) = running.by_client.get_mut(&self.client) else { return };
        let ended = fills.remove(&self.number);
        if fills.is_empty() {
            running.by_client.remove(&self.client);
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
        address.parse::<std::net::IpAddr>().unwrap().into()
    }

    fn may_start(started: &FillsByClient, address: &str) -> bool {
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
    fn one_address_may_have_sixteen_unattended_fills() {
        let started = FillsByClient::default();
        let mut fills = Vec::new();
        for _ in 0..MAX_UNATTENDED_FILLS {
            assert!(may_start(&started, "192.0.2.1"));
            let (sender, flight) = watch::channel(());
            let work = started.started(Some(client("192.0.2.1")), sender);
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
        assert!(started.0.lock().by_client.is_empty());
    }

    /// Promise 11: the same rule for fills with a shared future, as those of modules.
    #[test]
    fn a_shared_future_has_waiters_while_a_joiner_holds_a_clone() {
        let flight = std::future::pending::<()>().boxed().shared();
        let fill = flight.downgrade().unwrap();
        assert!(!fill.has_waiters());
        let follower = flight.clone();
        assert!(fill.has_waiters());
        drop(follower);
        assert!(!fill.has_waiters());
        drop(flight);
        assert!(!fill.has_waiters());
    }
}
