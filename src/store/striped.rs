//! A fixed number of values for any number of keys.

use std::hash::{BuildHasher, Hash, RandomState};

/// Values that keys share by their hash: locks and counters. A thread must not take two locks of one kind.
#[derive(Debug)]
pub(crate) struct Striped<T> {
    pub(crate) stripes: Box<[T]>,
    hasher: RandomState,
}

impl<T: Default> Default for Striped<T> {
    fn default() -> Self {
        Self { stripes: (0..256).map(|_| T::default()).collect(), hasher: RandomState::new() }
    }
}

impl<T> Striped<T> {
    pub(crate) fn of(&self, key: &(impl Hash + ?Sized)) -> &T {
        // The modulus keeps the index in bounds.
        &self.stripes[self.hasher.hash_one(key) as usize % self.stripes.len()]
    }
}
