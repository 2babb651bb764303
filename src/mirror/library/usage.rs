//! The record of how larder is used with a store: as a service, or by `larder run` alone, and what the runs were sent.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::Library;
use crate::mirror::library::is_default;
use crate::store::{Durability, Key, ReadOutcome, Store, StoreError};

/// The use of a store since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Usage {
    /// The last attempt to serve.
    #[serde(default, skip_serializing_if = "is_default")]
    pub served: Served,
    /// The packages of all runs; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<RunTotals>,
}

/// The last attempt to serve from a store. In JSON no member, a time, or null.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Served {
    /// There was none.
    #[default]
    #[serde(skip)]
    Never,
    /// It began at this time.
    At(Timestamp),
    /// The record is damaged or cannot be read: a service may have had the store.
    Unknown,
}

/// The packages that the clients of all `larder run` were sent. What a killed larder counted last is not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunTotals {
    /// The first run that was sent a package.
    pub first: Timestamp,
    /// The last one.
    pub last: Timestamp,
    /// The packages.
    #[serde(flatten)]
    pub packages: PackageAmounts,
}

/// Packages by their source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PackageAmounts {
    /// From the store: the traffic saved.
    pub store: FileAmount,
    /// Fetched or confirmed for the run that asked.
    pub upstream: FileAmount,
}

impl PackageAmounts {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { store: self.store.plus(other.store), upstream: self.upstream.plus(other.upstream) }
    }

    /// The amounts after `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { store: self.store.since(earlier.store), upstream: self.upstream.since(earlier.upstream) }
    }
}

/// An amount of files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FileAmount {
    /// Files.
    pub count: u64,
    /// Their bytes.
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
    /// The use that no record tells.
    pub const UNKNOWN: Self = Self { served: Served::Unknown, runs: None };

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
            ReadOutcome::Damaged => Self::UNKNOWN,
        }
    }

    /// True if the store was used by runs, and never by a service.
    pub fn is_by_runs_alone(&self) -> bool {
        self.served == Served::Never && self.runs.is_some()
    }

    /// The start of the last service, if runs have used the store long after it.
    pub fn served_before_runs(&self) -> Option<Timestamp> {
        let (Served::At(served), Some(runs)) = (self.served, self.runs) else { return None };
        (runs.last.since(served) > SERVED_LATELY).then_some(served)
    }
}

/// The time without a service after which runs alone use a store, if they do.
const SERVED_LATELY: Duration = Duration::from_secs(7 * 24 * 3600);

impl Library {
    /// The use of this store.
    pub fn usage(&self) -> Usage {
        let read = self.store.records.read(&Key::Usage);
        let read = read.inspect_err(|error| tracing::warn!(%error, "the record of larder's use cannot be read"));
        read.map_or(Usage::UNKNOWN, |record| Usage::read(record.json()))
    }

    /// Records an attempt to serve, also one that fails afterwards. Blocks.
    ///
    /// # Errors
    /// The record was not written.
    pub fn record_service(&self, now: Timestamp) -> Result<(), StoreError> {
        self.change_usage(|usage| usage.served = Served::At(now))
    }

    /// Adds packages that runs were sent.
    ///
    /// # Errors
    /// The record was not written.
    pub async fn add_to_runs(self: &Arc<Self>, new: PackageAmounts, now: Timestamp) -> Result<(), Error> {
        let add = move |usage: &mut Usage| {
            let earlier =
                usage.runs.unwrap_or(RunTotals { first: now, last: now, packages: PackageAmounts::default() });
            usage.runs = Some(RunTotals { last: now, packages: earlier.packages.plus(new), ..earlier });
        };
        self.on_disk(move |library| library.change_usage(add)).await
    }

    fn change_usage(&self, change: impl Fn(&mut Usage)) -> Result<(), StoreError> {
        self.store.records.change(&Key::Usage, |step| {
            let mut usage = Usage::read(step.read(&Key::Usage)?.json());
            change(&mut usage);
            step.put_json(&Key::Usage, &usage, Durability::Lazy);
            Ok(())
        })
    }
}
