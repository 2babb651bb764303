//! Starts the background tasks of the library, and stops everything when the mirror closes.

use std::sync::{Arc, Weak};

use crate::mirror::Library;
use crate::mirror::library::missing::Unsaved;
use crate::store::StoreError;
use crate::supervisor::{Supervisor, Task};

impl Library {
    pub(in crate::mirror) fn spawn_background_tasks(self: &Arc<Self>, supervisor: &Supervisor) {
        let (mirror, evictor) = (Arc::downgrade(self), Arc::clone(&self.evictor));
        let evicting = move || Self::run_evictor(Weak::clone(&mirror), Arc::clone(&evictor));
        let watched = supervisor.clone();
        self.runtime.tasks.spawn(async move { watched.run(Task::Evictor, evicting).await });
        let (mirror, watched) = (Arc::downgrade(self), supervisor.clone());
        let indexing = move || Self::rebuild_index(Weak::clone(&mirror));
        self.runtime.tasks.spawn(async move { watched.run(Task::Index, indexing).await });
        // The last process may have ended while over the limit.
        self.enforce_size_limit();
    }

    /// Stops the work in progress, which resumes at the next start, and closes the store.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.store.archives.stop();
        let stopped = self.runtime.tasks.stop().await;
        if let Err(error) = self.save_missing(Unsaved::Counts) {
            tracing::warn!(%error, "the missing list could not be written");
        }
        if !stopped {
            // The index may miss a commit in progress. Without the clean mark, it is rebuilt.
            tracing::warn!("some work did not stop in time; the index is rebuilt at the next start");
            return Ok(());
        }
        self.store.close()
    }
}
