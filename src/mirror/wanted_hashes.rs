//! The versions whose hashes are to be completed: clients asked for them, and a background task fetches what lacks.

use indexmap::IndexSet;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::address::{ProviderAddress, Version};

/// The most versions that wait. A further one is asked for again by the next client.
const MAX_WAITING: usize = 4096;

/// A queue of versions, each once.
#[derive(Debug, Default)]
pub struct WantedHashes {
    waiting: Mutex<IndexSet<(ProviderAddress, Version)>>,
    added: Notify,
}

impl WantedHashes {
    /// Adds a version, unless it waits already or the queue is full.
    pub fn want(&self, provider: &ProviderAddress, version: &Version) {
        let mut waiting = self.waiting.lock();
        if waiting.len() < MAX_WAITING && waiting.insert((provider.clone(), version.clone())) {
            self.added.notify_one();
        }
    }

    /// Waits for the next version.
    pub async fn next(&self) -> (ProviderAddress, Version) {
        loop {
            if let Some(next) = self.waiting.lock().shift_remove_index(0) {
                return next;
            }
            self.added.notified().await;
        }
    }
}
