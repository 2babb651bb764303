//! The other replicas of a fleet: the words that one replica hears of them, and says to them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Contact, FleetEvents, StoreError};

/// The other replicas of a fleet, as one replica meets them.
pub trait Fleet: fmt::Debug + Send + Sync {
    /// When the shared records last answered this replica.
    fn contact(&self) -> &Contact;

    /// The events of the fleet, as this replica met them.
    fn events(&self) -> &Arc<FleetEvents>;

    /// The questions to the shared records since the start, without those by which this replica hears of others. A hit asks none.
    fn questions(&self) -> u64;

    /// Waits until all replicas have heard of what was written before, for a few seconds at most. Returns those that have not.
    ///
    /// # Errors
    /// The shared records do not answer.
    fn spread(&self) -> Result<Vec<Unreached>, StoreError>;

    /// The settings of the other replicas that run, each with its URL. Blocks.
    ///
    /// # Errors
    /// The shared records do not answer.
    fn settings_of_others(&self) -> Result<Vec<(String, String)>, StoreError>;

    /// Announces the settings of this replica from now on.
    fn announce_settings(&self, settings: String);

    /// Announces the amounts of this replica from now on.
    fn announce_amounts(&self, amounts: ReplicaAmounts);

    /// Claims work that one replica does for all, for half a minute more, or until this replica ends. Returns false if another one has it.
    /// Blocks.
    ///
    /// # Errors
    /// The shared records do not answer.
    fn claim(&self, work: &str) -> Result<bool, StoreError>;

    /// The work that other replicas have claimed, each with the URL of the replica. Blocks.
    ///
    /// # Errors
    /// The shared records do not answer.
    fn claims_of_others(&self) -> Result<Vec<(String, String)>, StoreError>;

    /// Gives up work that this replica may have claimed. Blocks.
    ///
    /// # Errors
    /// The shared records do not answer.
    fn give_up(&self, work: &str) -> Result<(), StoreError>;

    /// Says to the other replicas that this one ends. Waits for a few seconds at most.
    fn leave(&self);
}

/// The amounts of a replica, for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ReplicaAmounts {
    /// The bytes that its folder has, as `[store] max_size` counts them.
    pub stored_bytes: u64,
    /// The archives that the bucket has refused so far.
    pub owed_archives: u64,
    /// Their bytes.
    pub owed_bytes: u64,
}

/// A replica that may serve what a command has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Unreached {
    /// Its URL.
    pub url: String,
    /// The seconds since it last reached the shared records.
    pub silent_seconds: u64,
    /// True if it was heard a moment ago: it serves clients, and has not heard of the change yet.
    pub is_heard: bool,
}
