//! Reports of jobs and their identifiers: the JSON of `/admin/v1/jobs`, written by the running larder and read by the
//! commands.

use serde::{Deserialize, Serialize};

use crate::address::PackageRef;
use crate::clock::Timestamp;

/// A job: `GET /admin/v1/jobs/ID`, and the answer to `POST /admin/v1/warm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Job<T = Vec<JobItem>> {
    /// The ID in `/admin/v1/jobs/ID`.
    #[cfg_attr(test, schemars(regex(pattern = "^[0-9a-f]{16}$")))]
    pub id: String,
    /// State of the job.
    pub state: JobState,
    /// When the job was accepted.
    pub started: Timestamp,
    /// When the job ended; `None` while it runs.
    pub ended: Option<Timestamp>,
    /// The order: one entry for each address, lock-file entry and folder.
    #[serde(rename = "what")]
    pub ordered: Vec<String>,
    /// The platforms, as `OS_ARCH`.
    pub platforms: Vec<String>,
    /// True if the job pins the packages that it stores.
    pub pin: bool,
    /// True while requirements are being resolved: items are still added.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resolving: bool,
    /// Notes for people about stored documents that a resolution used although upstream did not confirm them; left out
    /// of a list of jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unconfirmed: Vec<String>,
    /// One entry for each archive. Until a version is chosen, the entry has the requested address.
    pub items: T,
}

/// A job in a list. The items are only counted.
pub type JobSummary = Job<ItemCounts>;

/// The listed jobs: `GET /admin/v1/jobs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobList {
    /// Newest first.
    pub jobs: Vec<JobSummary>,
}

impl<T> Job<T> {
    /// The same job with other items.
    pub(super) fn with_items<U>(self, items: U) -> Job<U> {
        let Self { id, state, started, ended, ordered, platforms, pin, resolving, unconfirmed, items: _ } = self;
        Job { id, state, started, ended, ordered, platforms, pin, resolving, unconfirmed, items }
    }
}

/// Counts of items by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ItemCounts {
    /// All items.
    pub all: u64,
    /// Stored before the job.
    #[serde(rename = "held")]
    pub already_stored: u64,
    /// Fetched by the job.
    pub fetched: u64,
    /// Unavailable.
    pub failed: u64,
    /// Cancelled.
    pub cancelled: u64,
}

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// In progress.
    Running,
    /// Everything is stored.
    Done,
    /// Finished, and something was unavailable.
    Failed,
    /// Cancelled.
    Cancelled,
}

/// One archive of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobItem {
    /// The archive; before a version is chosen, the requested address.
    #[serde(flatten)]
    pub package: PackageRef,
    /// State of the item.
    #[serde(flatten)]
    pub state: ItemState,
    /// Bytes of the archive that have arrived.
    pub bytes: u64,
    /// Size of the archive in bytes, once known.
    pub size_bytes: Option<u64>,
    /// A note for people if the item depends on a stored document that upstream did not confirm, with the time of the
    /// last confirmation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unconfirmed: Option<String>,
}

/// State of an archive in a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ItemState {
    /// Waits for its turn, or for an upstream.
    Waiting,
    /// The documents of the archive are being fetched.
    Resolving,
    /// The archive is being fetched.
    Fetching,
    /// Stored before the job.
    #[serde(rename = "held")]
    AlreadyStored,
    /// Fetched, verified and stored.
    Fetched,
    /// Unavailable.
    Failed {
        /// The attempt, its result, and the remedy.
        error: String,
    },
    /// The job was stopped before its end.
    Cancelled,
}

impl ItemCounts {
    /// Counts items by state.
    pub fn of<'a>(states: impl Iterator<Item = &'a ItemState>) -> Self {
        let mut counts = Self::default();
        for state in states {
            counts.all += 1;
            match state {
                ItemState::Waiting | ItemState::Resolving | ItemState::Fetching => {}
                ItemState::AlreadyStored => counts.already_stored += 1,
                ItemState::Fetched => counts.fetched += 1,
                ItemState::Failed { .. } => counts.failed += 1,
                ItemState::Cancelled => counts.cancelled += 1,
            }
        }
        counts
    }
}

impl JobState {
    /// The name in JSON and in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns true for a final state.
    pub fn has_ended(self) -> bool {
        self != Self::Running
    }
}

impl ItemState {
    /// Returns true for a final state.
    pub fn has_ended(&self) -> bool {
        !matches!(self, Self::Waiting | Self::Resolving | Self::Fetching)
    }

    /// Returns true if the archive is stored.
    pub fn was_stored(&self) -> bool {
        matches!(self, Self::AlreadyStored | Self::Fetched)
    }
}

/// Identifier of a job: sixteen random hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, derive_more::Display)]
#[display("{}", hex::encode(_0))]
pub struct JobId(pub(super) [u8; 8]);

impl JobId {
    /// Parses the printed form.
    pub fn parse(text: &str) -> Option<Self> {
        let mut id = [0; 8];
        hex::decode_to_slice(text, &mut id).ok()?;
        Some(Self(id)).filter(|id| id.to_string() == text)
    }

    pub(super) fn random() -> Option<Self> {
        let mut id = [0; 8];
        aws_lc_rs::rand::fill(&mut id).ok()?;
        Some(Self(id))
    }
}
