//! Rebuilds the index in the background after `kill -9`, after damage, or for the store of an older larder.

use crate::mirror::Library;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::address::Artifact;
use crate::store::StoreError;

const REBUILD_RETRY_DELAY: Duration = Duration::from_secs(10);

impl Library {
    /// Rebuilds the index. Retries until it succeeds or the mirror is dropped.
    pub(in crate::mirror) async fn rebuild_index(library: Weak<Self>) {
        while let Some(library) = library.upgrade() {
            let mirror_clone = Arc::clone(&library);
            match library.runtime.tasks.spawn_blocking(move || mirror_clone.reconcile_index()).await {
                Ok(true) => return library.enforce_size_limit(),
                Ok(false) => {}
                Err(panicked) => {
                    let reason = "it panicked while it was made whole".to_owned();
                    library.store.index.completed(Err(StoreError::Index(reason)));
                    if let Ok(panic) = panicked.try_into_panic() {
                        std::panic::resume_unwind(panic);
                    }
                }
            }
            drop(library);
            tokio::time::sleep(REBUILD_RETRY_DELAY).await;
        }
    }

    /// Returns true if the index is whole now.
    fn reconcile_index(&self) -> bool {
        let index = &self.store.index;
        if !index.begin_completion() {
            self.refresh_size_limit();
            return true;
        }
        let named_by_set = |artifact: &Artifact| match artifact {
            Artifact::Provider(package) => {
                Ok(self.read_set(package)?.map(|stored| stored.stored_set.current.document.shasum))
            }
            Artifact::Module(_) => Ok(None),
        };
        let ended = self.catalog.reconcile(named_by_set, || self.runtime.tasks.is_stopping());
        if let Err(error) = &ended
            && !self.runtime.tasks.is_stopping()
        {
            tracing::error!(%error, to_do = error.remedy(), "the index could not be completed; it is tried again");
        }
        // Reported here and not in the async task, which a shutdown may cancel: others wait for it.
        index.completed(ended);
        self.refresh_size_limit();
        index.is_complete()
    }
}
