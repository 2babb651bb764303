//! The record of how larder is used with a store: as a service, or by `larder run` alone, and what the runs were sent.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::Library;
use crate::store::{Durability, Key, ReadOutcome, Store, StoreError};

/// The use of a store since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The last attempt to serve, in seconds since 1970; `None` without one. 0 where the record was damaged: then a service
    /// may have had the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<Timestamp>,
    /// The packages of all runs; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<RunTotals>,
}

/// The packages that the clients of all `larder run` were sent. What a killed larder counted last is not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTotals {
    /// The first run that was sent a package, in seconds since 1970.
    pub first: Timestamp,
    /// The last one.
    pub last: Timestamp,
    /// Packages from the store: the traffic saved.
    pub store: FileAmount,
    /// Packages that were fetched or confirmed for the run that asked.
    pub upstream: FileAmount,
}

/// An amount of files that clients were sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAmount {
    /// Files.
    pub count: u64,
    /// Body bytes sent.
    pub bytes: u64,
}

impl FileAmount {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { count: self.count.saturating_add(other.count), bytes: self.bytes.saturating_add(other.bytes) }
    }

    /// The amount after `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { count: self.count.saturating_sub(earlier.count), bytes: self.bytes.saturating_sub(earlier.bytes) }
    }
}

impl Usage {
    /// The use of the store in `folder`, which may be open in another process.
    ///
    /// # Errors
    /// This user may not read it, or the disk failed.
    pub fn of_store_in(folder: &Path) -> Result<Self, StoreError> {
        Ok(Self::read(Store::read_unopened(folder, &Key::Usage)?.json()))
    }

    fn read(record: ReadOutcome<Self>) -> Self {
        match record {
            ReadOutcome::Intact(usage) => usage,
            ReadOutcome::Absent => Self::default(),
            ReadOutcome::Damaged => Self { served: Some(Timestamp(0)), runs: None },
        }
    }

    /// True if the store was used by runs, and never by a service.
    pub fn is_by_runs_alone(&self) -> bool {
        self.served.is_none() && self.runs.is_some()
    }

    /// True if runs have used the store long after the last service began.
    pub fn is_by_runs_lately(&self) -> bool {
        let served = self.served.filter(|served| served.0 > 0);
        served.zip(self.runs).is_some_and(|(served, runs)| runs.last.since(served) > SERVED_LATELY)
    }
}

/// The time without a service after which runs alone use a store, if they do.
const SERVED_LATELY: Duration = Duration::from_secs(7 * 24 * 3600);

impl Library {
    /// The use of this store.
    pub fn usage(&self) -> Usage {
        let read = self.store.records.read_as(&Key::Usage, |record| serde_json::from_slice(&record).ok());
        let read = read.inspect_err(|error| tracing::warn!(%error, "the record of larder's use cannot be read"));
        read.map(Usage::read).unwrap_or_default()
    }

    /// Records an attempt to serve, also one that fails afterwards. Blocks.
    ///
    /// # Errors
    /// The record was not written.
    pub fn record_service(&self, now: Timestamp) -> Result<(), StoreError> {
        self.change_usage(|usage| usage.served = Some(now))
    }

    /// Adds packages that runs were sent.
    ///
    /// # Errors
    /// The record was not written.
    pub async fn add_to_runs(
        self: &Arc<Self>,
        store: FileAmount,
        upstream: FileAmount,
        now: Timestamp,
    ) -> Result<(), Error> {
        let add = move |usage: &mut Usage| {
            usage.runs = Some(match usage.runs {
                Some(RunTotals { first, store: earlier, upstream: asked_earlier, .. }) => {
                    RunTotals { first, last: now, store: earlier.plus(store), upstream: asked_earlier.plus(upstream) }
                }
                None => RunTotals { first: now, last: now, store, upstream },
            });
        };
        self.on_disk(move |library| library.change_usage(add)).await
    }

    fn change_usage(&self, change: impl Fn(&mut Usage)) -> Result<(), StoreError> {
        // A damaged record is gone once it was read, and the step may be repeated.
        let mut damaged = None;
        self.store.records.change(&Key::Usage, |step| {
            let mut usage = Usage::read(step.read(&Key::Usage)?.json());
            if usage.served == Some(Timestamp(0)) {
                damaged = usage.served;
            }
            usage.served = usage.served.or(damaged);
            change(&mut usage);
            step.put_json(&Key::Usage, &usage, Durability::Lazy);
            Ok(())
        })
    }
}
