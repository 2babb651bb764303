//! What an `init` will ask for.

use crate::address::Artifact;

/// Everything that an order comes to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Closure {
    /// Each archive once, in order of what it is of.
    pub wanted: Vec<RequiredArchive>,
    /// What no `init` could have, and why.
    pub cannot: Vec<Cannot>,
}

/// One archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredArchive {
    /// Which.
    pub of: Artifact,
    /// For each lock file that lists any for it, and each list once: those one of which it must have. It has to fit all of
    /// them. Empty where no lock file says anything, and then any archive does.
    pub hashes: Vec<Vec<String>>,
    /// Who wants it: an address as it was given, or the name of a lock file, or a file with its line.
    pub by: Vec<String>,
}

/// Something that cannot be had from a registry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cannot {
    /// What: a source as it is written, an address, a file.
    pub what: String,
    /// Why not, and what to do.
    pub why: String,
    /// Who wants it.
    pub by: Vec<String>,
}
