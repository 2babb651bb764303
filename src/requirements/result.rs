//! The requirements of an order.

use crate::address::Artifact;

/// The result of resolving an order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvedRequirements {
    /// Required archives, each once, in order of address.
    pub archives: Vec<RequiredArchive>,
    /// The items that no registry provides, with reasons.
    pub cannot: Vec<UnavailableItem>,
}

/// One archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredArchive {
    /// The artifact.
    pub artifact: Artifact,
    /// The accepted hashes of each lock file that lists any. The archive must match each list; without lists, any
    /// archive is accepted.
    pub hashes: Vec<Vec<String>>,
    /// The requirements that name it: an address as given, a lock file, or a file with its line.
    pub required_by: Vec<String>,
}

/// An item that no registry provides.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnavailableItem {
    /// The name of the item: a source as written, an address, or a file.
    pub subject: String,
    /// The reason and the remedy.
    pub reason: String,
    /// The requirements that name it.
    pub required_by: Vec<String>,
}
