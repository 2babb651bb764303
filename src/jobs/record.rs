//! What is written down of jobs, so that they survive a restart: of one that runs, what it was told; of one that has
//! ended, how. How far one is, is not written: the store knows what is held, and a job that goes on asks it.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::id::JobId;
use super::report::Job;
use super::told::ItemSubject;
use super::under::Beginning;
use super::warm::WarmUp;
use crate::store::{Durability, Key, Recorded, Store, StoreError};

/// The records of a store.
#[derive(Debug, Clone)]
pub(super) struct JobRecords(Arc<Store>);

/// What is written of one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct JobRecord<W = WarmUp> {
    /// How it was when it was written. Of one that had not ended, its items are left out: they are found out again.
    pub(super) job: Job,
    pub(super) beginning: Beginning,
    /// What its items stand for.
    pub(super) about: Vec<ItemSubject>,
    /// What it goes on with; none once it has ended.
    pub(super) warm_up: Option<W>,
}

impl JobRecords {
    pub(super) fn of(store: Arc<Store>) -> Self {
        Self(store)
    }

    /// Writes a job down, and returns when that survives a power cut. A disk that takes no record costs the job its
    /// going on after a restart, and nothing else.
    pub(super) async fn write(&self, id: JobId, written: JobRecord<Arc<WarmUp>>) {
        if let Err(error) = self.put(id, written).await {
            tracing::warn!(job = %id, %error, "a job could not be written down; after a restart it is as it was before");
        }
    }

    /// Writes down how a job ended. Where the disk does not take that, nothing stays written of it: what was written
    /// before would have it go on after a restart, and somebody may have stopped it.
    pub(super) async fn write_end(&self, id: JobId, written: JobRecord<Arc<WarmUp>>) {
        let Err(error) = self.put(id, written).await else { return };
        match self.on_disk(move |store| store.records.remove(&Key::Job(id.number()), Durability::Synced)).await {
            Ok(()) => {
                tracing::warn!(job = %id, %error, "how a job ended could not be written down; after a restart it is forgotten")
            }
            Err(also) => {
                tracing::error!(job = %id, %error, also, "how a job ended could not be written down, nor what was written removed; after a restart it goes on");
            }
        }
    }

    /// Forgets jobs.
    pub(super) async fn forget(&self, ids: Vec<JobId>) {
        let removed = self.on_disk(move |store| {
            ids.iter().try_for_each(|id| store.records.remove(&Key::Job(id.number()), Durability::Synced))
        });
        if let Err(error) = removed.await {
            tracing::warn!(%error, "the records of old jobs could not be removed; they are listed again after a restart");
        }
    }

    /// Every job that is written down. What cannot be read is set aside, and said.
    pub(super) async fn all(&self) -> Vec<(JobId, JobRecord)> {
        let read = self.on_disk(|store| {
            let mut jobs = Vec::new();
            for number in store.records.jobs()? {
                match read(store, &Key::Job(number)) {
                    Ok(written) => jobs.extend(written.map(|written| (JobId::of_number(number), written))),
                    Err(error) => {
                        tracing::error!(job = hex::encode(number), %error, "a job cannot be read; it is left out")
                    }
                }
            }
            Ok(jobs)
        });
        read.await.unwrap_or_else(|error| {
            tracing::error!(%error, "the jobs of an earlier run cannot be read; they are left out");
            Vec::new()
        })
    }

    /// What is written of all recurring jobs together; its default where that is nothing.
    pub(super) async fn recurring<T: DeserializeOwned + Default + Send + 'static>(&self) -> T {
        let read = self.on_disk(|store| read(store, &Key::RecurringJobs));
        read.await
            .unwrap_or_else(|error| {
                tracing::error!(%error, "when the recurring warm-ups ran last cannot be read; they run now");
                None
            })
            .unwrap_or_default()
    }

    /// Writes that anew.
    pub(super) async fn write_recurring<T: Serialize + Send + 'static>(&self, all: T) {
        if let Err(error) = self.on_disk(move |store| put(store, &Key::RecurringJobs, &all)).await {
            tracing::warn!(%error, "when a recurring warm-up ran could not be written down; after a restart it may run again");
        }
    }

    async fn put(&self, id: JobId, written: JobRecord<Arc<WarmUp>>) -> Result<(), String> {
        self.on_disk(move |store| {
            let JobRecord { job, beginning, about, warm_up } = &written;
            let written = Writing { job, beginning, about, warm_up: warm_up.as_deref() };
            put(store, &Key::Job(id.number()), &written)
        })
        .await
    }

    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, String> {
        let store = Arc::clone(&self.0);
        let worked = tokio::task::spawn_blocking(move || work(&store)).await;
        worked.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}

/// [`JobRecord`] by reference: an order may be large.
#[derive(Serialize)]
struct Writing<'a> {
    job: &'a Job,
    beginning: &'a Beginning,
    about: &'a [ItemSubject],
    warm_up: Option<&'a WarmUp>,
}

fn put(store: &Store, key: &Key, written: &impl Serialize) -> Result<(), StoreError> {
    let record = serde_json::to_vec(written).expect("our own records are plain data, which always serialises");
    store.records.put(key, &record, Durability::Synced)?;
    Ok(())
}

fn read<T: DeserializeOwned>(store: &Store, key: &Key) -> Result<Option<T>, StoreError> {
    let Recorded::Whole(record) = store.records.look(key)? else { return Ok(None) };
    match serde_json::from_slice(&record) {
        Ok(written) => Ok(Some(written)),
        Err(error) => {
            tracing::error!(?key, %error, "a record does not say what such a record says");
            store.records.set_aside(key)?;
            Ok(None)
        }
    }
}
