//! Records of jobs, so that they survive a restart: the order of a running job, the result of a finished one.
//! Progress is not recorded: a resumed job checks the store again.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::job_report::{Job, JobId};
use super::running_job::{ItemSubject, JobOrigin};
use super::warm::WarmUp;
use crate::store::{Durability, Key, Recorded, Store, StoreError};

/// The records of a store.
#[derive(Debug, Clone)]
pub(super) struct JobRecords(Arc<Store>);

/// The record of one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct JobRecord<W = WarmUp> {
    /// The report at the time of writing. The items of a running job are omitted: the resumed job resolves them again.
    pub(super) job: Job,
    pub(super) beginning: JobOrigin,
    /// The package of each item.
    pub(super) about: Vec<ItemSubject>,
    /// The order to resume; `None` once the job has ended.
    pub(super) warm_up: Option<W>,
}

impl JobRecords {
    pub(super) fn of(store: Arc<Store>) -> Self {
        Self(store)
    }

    /// Writes a job's record durably. After a disk error the job runs, but does not resume after a restart.
    pub(super) async fn write(&self, id: JobId, record: JobRecord<Arc<WarmUp>>) {
        if let Err(error) = self.put(id, record).await {
            tracing::warn!(job = %id, %error, "the order of a job could not be recorded; after a restart its previous record, if any, is used");
        }
    }

    /// Writes the result of a job. If the disk refuses, the old record is removed: it would resume a job that a person
    /// may have stopped.
    pub(super) async fn write_end(&self, id: JobId, record: JobRecord<Arc<WarmUp>>) {
        let Err(error) = self.put(id, record).await else { return };
        match self.run_blocking(move |store| store.records.remove(&Key::Job(id.bytes()), Durability::Synced)).await {
            Ok(()) => {
                tracing::warn!(job = %id, %error, "the result of a job could not be recorded; after a restart it is forgotten")
            }
            Err(remove_error) => {
                tracing::error!(job = %id, %error, remove_error, "the result of a job could not be recorded, and its old record could not be removed; after a restart the job resumes");
            }
        }
    }

    /// Removes the records of jobs.
    pub(super) async fn forget(&self, ids: Vec<JobId>) {
        let removed = self.run_blocking(move |store| {
            ids.iter().try_for_each(|id| store.records.remove(&Key::Job(id.bytes()), Durability::Synced))
        });
        if let Err(error) = removed.await {
            tracing::warn!(%error, "the records of old jobs could not be removed; those jobs are listed again after a restart");
        }
    }

    /// Reads all job records. Unreadable ones are quarantined and logged.
    pub(super) async fn all(&self) -> Vec<(JobId, JobRecord)> {
        let read = self.run_blocking(|store| {
            let mut jobs = Vec::new();
            for id in store.records.jobs()? {
                match read(store, &Key::Job(id)) {
                    Ok(record) => jobs.extend(record.map(|record| (JobId::from_bytes(id), record))),
                    Err(error) => {
                        tracing::error!(job = hex::encode(id), %error, "the record of a job cannot be read; the job is not listed")
                    }
                }
            }
            Ok(jobs)
        });
        read.await.unwrap_or_else(|error| {
            tracing::error!(%error, "the jobs of an earlier run cannot be read; none of them is listed");
            Vec::new()
        })
    }

    /// Reads the shared record of all recurring jobs; the default if there is none.
    pub(super) async fn recurring<T: DeserializeOwned + Default + Send + 'static>(&self) -> T {
        let read = self.run_blocking(|store| read(store, &Key::RecurringJobs));
        read.await
            .unwrap_or_else(|error| {
                tracing::error!(%error, "the last runs of the recurring warm-ups cannot be read; every warm-up runs now");
                None
            })
            .unwrap_or_default()
    }

    /// Writes the shared record of all recurring jobs.
    pub(super) async fn write_recurring<T: Serialize + Send + 'static>(&self, last_runs: T) {
        if let Err(error) = self.run_blocking(move |store| put(store, &Key::RecurringJobs, &last_runs)).await {
            tracing::warn!(%error, "the last run of a recurring warm-up could not be recorded; after a restart it may run again");
        }
    }

    async fn put(&self, id: JobId, record: JobRecord<Arc<WarmUp>>) -> Result<(), String> {
        self.run_blocking(move |store| {
            let JobRecord { job, beginning, about, warm_up } = record;
            put(store, &Key::Job(id.bytes()), &JobRecord { job, beginning, about, warm_up: warm_up.as_deref() })
        })
        .await
    }

    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, String> {
        let store = Arc::clone(&self.0);
        let result = tokio::task::spawn_blocking(move || work(&store)).await;
        result.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}

fn put(store: &Store, key: &Key, value: &impl Serialize) -> Result<(), StoreError> {
    let bytes = serde_json::to_vec(value).expect("our own records are plain data, which always serialises");
    store.records.put(key, &bytes, Durability::Synced)?;
    Ok(())
}

fn read<T: DeserializeOwned>(store: &Store, key: &Key) -> Result<Option<T>, StoreError> {
    let Recorded::Whole(bytes) = store.records.read(key)? else { return Ok(None) };
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok(Some(value)),
        Err(error) => {
            tracing::error!(?key, %error, "a record cannot be parsed; it is quarantined");
            store.records.quarantine(key)?;
            Ok(None)
        }
    }
}
