//! The requirements of an order.

use crate::address::Artifact;

/// The result of resolving an order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvedRequirements {
    /// Required archives, each once, in order of address.
    pub archives: Vec<RequiredArchive>,
    /// Unavailable items, with reasons.
    pub cannot: Vec<UnavailableItem>,
}

/// One archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredArchive {
    /// Which.
    pub artifact: Artifact,
    /// For each lock file that lists any for it, and each list once: those one of which it must have. It has to fit all of
    /// them. Empty where no lock file says anything, and then any archive does.
    pub hashes: Vec<Vec<String>>,
    /// The requirements that name it: an address as given, a lock file, or a file with its line.
    pub required_by: Vec<String>,
}

/// An item that no registry provides.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnavailableItem {
    /// Its name: a source as written, an address, a file.
    pub subject: String,
    /// Why not, and what to do.
    pub reason: String,
    /// The requirements that name it.
    pub required_by: Vec<String>,
}
