//! The archives whose hashes documents lack: clients asked for their versions, and a background task fetches them.

use std::time::Duration;

use indexmap::IndexSet;
use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::address::Package;

/// The most packages that wait. A further one is asked for again by a later client.
const MAX_WAITING: usize = 4096;
/// The most packages that are remembered as tried.
const MAX_TRIED: u64 = 16_384;
/// The time until a package is tried again: it may have failed, or not fit into the store.
pub const RETRY_AFTER: Duration = Duration::from_secs(3600);

/// A queue of packages, each once, and none that was tried within [`RETRY_AFTER`].
#[derive(Debug)]
pub struct WantedHashes {
    waiting: Mutex<IndexSet<Package>>,
    tried: Cache<Package, ()>,
    added: Notify,
}

impl Default for WantedHashes {
    fn default() -> Self {
        let tried = Cache::builder().max_capacity(MAX_TRIED).time_to_live(RETRY_AFTER).build();
        Self { waiting: Mutex::default(), tried, added: Notify::default() }
    }
}

impl WantedHashes {
    /// Adds a package, unless it waits, was tried, or the queue is full.
    pub fn want(&self, package: Package) {
        if self.tried.contains_key(&package) {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.len() < MAX_WAITING && waiting.insert(package) {
            self.added.notify_one();
        }
    }

    /// Waits for the next package, which then counts as tried.
    pub async fn next(&self) -> Package {
        loop {
            let next = self.waiting.lock().shift_remove_index(0);
            if let Some(next) = next {
                self.tried.insert(next.clone(), ());
                return next;
            }
            self.added.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::address::{Hostname, Name, Platform, ProviderAddress, Version};

    #[test]
    fn a_package_is_tried_once_and_no_more_wait_than_the_limit() {
        let provider = ProviderAddress {
            host: Hostname::parse("r.example").unwrap(),
            namespace: Name::parse("acme").unwrap(),
            type_: Name::parse("null").unwrap(),
        };
        let package = |number: usize| Package {
            provider: provider.clone(),
            version: Version::parse(&format!("1.{number}.0")).unwrap(),
            platform: Platform::parse("linux_amd64").unwrap(),
        };
        let wanted = WantedHashes::default();
        for number in [1, 2, 1] {
            wanted.want(package(number));
        }
        assert_eq!(wanted.next().now_or_never(), Some(package(1)));
        wanted.want(package(1));
        assert_eq!(wanted.next().now_or_never(), Some(package(2)));
        assert_eq!(wanted.next().now_or_never(), None);
        (3..MAX_WAITING + 13).for_each(|number| wanted.want(package(number)));
        assert_eq!(wanted.waiting.lock().len(), MAX_WAITING);
    }
}
