//! Records of jobs, so that they survive a restart: the order of a running job, the result of a finished one.
//! Progress is not recorded: a resumed job asks the store again.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::id::JobId;
use super::job_report::Job;
use super::job_state::ItemSubject;
use super::running_job::JobOrigin;
use super::warm::WarmUp;
use crate::store::{Durability, Key, Recorded, Store, StoreError};

/// The records of a store.
#[derive(Debug, Clone)]
pub(super) struct JobRecords(Arc<Store>);

/// The record of one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct JobRecord<W = WarmUp> {
    /// The report at the time of writing. A running job's items are left out: they are resolved again.
    pub(super) job: Job,
    pub(super) beginning: JobOrigin,
    /// The packages of its items.
    pub(super) about: Vec<ItemSubject>,
    /// The order to resume; `None` once it has ended.
    pub(super) warm_up: Option<W>,
}

impl JobRecords {
    pub(super) fn of(store: Arc<Store>) -> Self {
        Self(store)
    }

    /// Writes a job's record durably. After a disk error the job runs, but does not resume after a restart.
    pub(super) async fn write(&self, id: JobId, written: JobRecord<Arc<WarmUp>>) {
        if let Err(error) = self.put(id, written).await {
            tracing::warn!(job = %id, %error, "a job could not be recorded; after a restart it is as before");
        }
    }

    /// Writes the result of a job. If the disk refuses, the old record is removed: it would resume a job that a person
    /// may have stopped.
    pub(super) async fn write_end(&self, id: JobId, written: JobRecord<Arc<WarmUp>>) {
        let Err(error) = self.put(id, written).await else { return };
        match self.on_disk(move |store| store.records.remove(&Key::Job(id.number()), Durability::Synced)).await {
            Ok(()) => {
                tracing::warn!(job = %id, %error, "the result of a job could not be recorded; after a restart it is forgotten")
            }
            Err(also) => {
                tracing::error!(job = %id, %error, also, "the result of a job could not be written, nor its record removed; after a restart the job resumes");
            }
        }
    }

    /// Removes the records of jobs.
    pub(super) async fn forget(&self, ids: Vec<JobId>) {
        let removed = self.on_disk(move |store| {
            ids.iter().try_for_each(|id| store.records.remove(&Key::Job(id.number()), Durability::Synced))
        });
        if let Err(error) = removed.await {
            tracing::warn!(%error, "the records of old jobs could not be removed; they are listed again after a restart");
        }
    }

    /// Reads all job records. Unreadable ones are quarantined and logged.
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

    /// Reads the shared record of all recurring jobs; the default if there is none.
    pub(super) async fn recurring<T: DeserializeOwned + Default + Send + 'static>(&self) -> T {
        let read = self.on_disk(|store| read(store, &Key::RecurringJobs));
        read.await
            .unwrap_or_else(|error| {
                tracing::error!(%error, "when the recurring warm-ups ran last cannot be read; they run now");
                None
            })
            .unwrap_or_default()
    }

    /// Writes the shared record of all recurring jobs.
    pub(super) async fn write_recurring<T: Serialize + Send + 'static>(&self, all: T) {
        if let Err(error) = self.on_disk(move |store| put(store, &Key::RecurringJobs, &all)).await {
            tracing::warn!(%error, "the last run of a recurring warm-up could not be recorded; after a restart it may run again");
        }
    }

    async fn put(&self, id: JobId, written: JobRecord<Arc<WarmUp>>) -> Result<(), String> {
        self.on_disk(move |store| {
            let JobRecord { job, beginning, about: subjects, warm_up } = &written;
            let written = Writing { job, beginning, about: subjects, warm_up: warm_up.as_deref() };
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
    beginning: &'a JobOrigin,
    about: &'a [ItemSubject],
    warm_up: Option<&'a WarmUp>,
}

fn put(store: &Store, key: &Key, written: &impl Serialize) -> Result<(), StoreError> {
    let record = serde_json::to_vec(written).expect("our own records are plain data, which always serialises");
    store.records.put(key, &record, Durability::Synced)?;
    Ok(())
}

fn read<T: DeserializeOwned>(store: &Store, key: &Key) -> Result<Option<T>, StoreError> {
    let Recorded::Whole(record) = store.records.read(key)? else { return Ok(None) };
    match serde_json::from_slice(&record) {
        Ok(written) => Ok(Some(written)),
        Err(error) => {
            tracing::error!(?key, %error, "a record does not say what such a record says");
            store.records.quarantine(key)?;
            Ok(None)
        }
    }
}
