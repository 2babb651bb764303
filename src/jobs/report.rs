//! What a job tells of itself: the JSON of `/admin/v1/jobs`, written by the running larder and read by the commands.

use serde::{Deserialize, Serialize};

use crate::address::PackageRef;
use crate::clock::Timestamp;

/// A job: `GET /admin/v1/jobs/ID`, and the answer to `POST /admin/v1/warm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its name in `/admin/v1/jobs/ID`.
    pub id: String,
    /// How far it is.
    pub state: JobState,
    /// When it was taken on, in seconds since 1970.
    pub started: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// What it was told, one entry for each address, for each entry of a lock file, and for each folder.
    pub what: Vec<String>,
    /// For which platforms, as `OS_ARCH`.
    pub platforms: Vec<String>,
    /// Whether what it warms is pinned.
    pub pin: bool,
    /// Whether it still finds out what its configurations need: items are added while it does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resolving: bool,
    /// What upstream could not be asked about while it found that out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unconfirmed: Vec<String>,
    /// Each archive that it is about. Until the version is chosen, an address stands for those it will name.
    pub items: Vec<JobItem>,
}

/// A job in a list: `GET /admin/v1/jobs`. Its items are only counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSummary {
    /// Its name in `/admin/v1/jobs/ID`.
    pub id: String,
    /// How far it is.
    pub state: JobState,
    /// When it was taken on, in seconds since 1970.
    pub started: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// What it was told.
    pub what: Vec<String>,
    /// For which platforms, as `OS_ARCH`.
    pub platforms: Vec<String>,
    /// Whether what it warms is pinned.
    pub pin: bool,
    /// Whether it still finds out what its configurations need.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resolving: bool,
    /// How many archives it is about, by how far they are.
    pub items: ItemCounts,
}

/// How many items there are, by how far they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemCounts {
    /// All of them.
    pub all: u64,
    /// Those that were held already.
    pub held: u64,
    /// Those that were fetched.
    pub fetched: u64,
    /// Those that could not be had.
    pub failed: u64,
    /// Those that were cancelled.
    pub cancelled: u64,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It is at it.
    Running,
    /// Everything it was about is held.
    Done,
    /// It came to its end, and something could not be had.
    Failed,
    /// It was told to stop.
    Cancelled,
}

/// One archive of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobItem {
    /// The archive; before the version is chosen, what was asked for in its place.
    #[serde(flatten)]
    pub package: PackageRef,
    /// How far it is.
    #[serde(flatten)]
    pub state: ItemState,
    /// How much of its archive is here, in bytes.
    pub bytes: u64,
    /// The size of its archive, in bytes, once it is known.
    pub size_bytes: Option<u64>,
    /// Where upstream could not be asked what it has now: that, and since when what is held has not been confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unconfirmed: Option<String>,
}

/// How far an archive of a job is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ItemState {
    /// Its turn has not come.
    Waiting,
    /// Its documents are asked for.
    Resolving,
    /// Its archive is on its way.
    Fetching,
    /// It was held already.
    Held,
    /// It was fetched, proven and kept.
    Fetched,
    /// It could not be had.
    Failed {
        /// What was asked, what came back, and what to do.
        error: String,
    },
    /// The job was stopped before its end.
    Cancelled,
}

impl ItemCounts {
    /// Counts them.
    pub fn of(items: &[JobItem]) -> Self {
        let mut counts = Self { all: items.len() as u64, ..Self::default() };
        for item in items {
            match item.state {
                ItemState::Waiting | ItemState::Resolving | ItemState::Fetching => {}
                ItemState::Held => counts.held += 1,
                ItemState::Fetched => counts.fetched += 1,
                ItemState::Failed { .. } => counts.failed += 1,
                ItemState::Cancelled => counts.cancelled += 1,
            }
        }
        counts
    }
}

impl JobState {
    /// Whether nothing more happens.
    pub fn has_ended(self) -> bool {
        self != Self::Running
    }
}

impl ItemState {
    /// Whether nothing more happens.
    pub fn has_ended(&self) -> bool {
        !matches!(self, Self::Waiting | Self::Resolving | Self::Fetching)
    }
}
