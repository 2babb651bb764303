//! A map of values with a lifetime, such as cached 404s. Bounded in number.

use std::collections::HashMap;
use std::hash::Hash;

use parking_lot::Mutex;

use crate::clock::{CLOCK_SLACK, Timestamp};

const MAX_TTL_ENTRIES: usize = 10_000;

/// A map whose values expire.
#[derive(Debug)]
pub(in crate::mirror) struct TtlCache<K, V>(Mutex<HashMap<K, TtlEntry<V>>>);

#[derive(Debug)]
struct TtlEntry<V> {
    since: Timestamp,
    until: Timestamp,
    value: V,
}

impl<V> TtlEntry<V> {
    /// A value stored while the clock was ahead is ignored after it was set back.
    fn holds(&self, now: Timestamp) -> bool {
        self.since <= now.after(CLOCK_SLACK) && now < self.until
    }
}

impl<K, V> Default for TtlCache<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq + Clone, V: Clone> TtlCache<K, V> {
    pub(in crate::mirror) fn get(&self, key: &K, now: Timestamp) -> Option<V> {
        let map = self.0.lock();
        map.get(key).filter(|believed| believed.holds(now)).map(|believed| believed.value.clone())
    }

    /// Stores a value until `until`. A full map takes no more: a client that requests ten thousand absent objects has
    /// them asked for upstream.
    pub(in crate::mirror) fn insert(&self, key: K, value: V, until: Timestamp, now: Timestamp) {
        let mut map = self.0.lock();
        if map.len() >= MAX_TTL_ENTRIES && !map.contains_key(&key) {
            map.retain(|_, believed| believed.holds(now));
        }
        if map.len() < MAX_TTL_ENTRIES || map.contains_key(&key) {
            map.insert(key, TtlEntry { since: now, until, value });
        }
    }

    pub(in crate::mirror) fn remove_if(&self, which: impl Fn(&K) -> bool) {
        self.0.lock().retain(|key, _| !which(key));
    }
}
