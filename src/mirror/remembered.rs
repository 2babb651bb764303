//! What is known for a short while only, such as that upstream has no such thing. Bounded in number.

use std::collections::HashMap;
use std::hash::Hash;

use parking_lot::Mutex;

use crate::clock::Timestamp;

const MOST: usize = 10_000;

/// Values that are believed until a moment each has.
#[derive(Debug)]
pub(super) struct Remembered<K, V>(Mutex<HashMap<K, (Timestamp, V)>>);

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Remembered<K, V> {
    /// What is known of `key` and still believed.
    pub(super) fn get(&self, key: &K, now: Timestamp) -> Option<V> {
        let map = self.0.lock();
        map.get(key).filter(|(until, _)| now < *until).map(|(_, value)| value.clone())
    }

    /// Believes `value` until a moment. When too much is remembered, what is believed longest goes first:
    /// it was learnt last, and whoever asks for ten thousand absent things asks for no reason of ours.
    pub(super) fn put(&self, key: K, value: V, until: Timestamp, now: Timestamp) {
        let mut map = self.0.lock();
        if map.len() >= MOST && !map.contains_key(&key) {
            map.retain(|_, (until, _)| now < *until);
        }
        if map.len() < MOST || map.contains_key(&key) {
            map.insert(key, (until, value));
        }
    }

    /// Forgets everything that `which` says.
    pub(super) fn forget(&self, which: impl Fn(&K) -> bool) {
        self.0.lock().retain(|key, _| !which(key));
    }
}
