//! What a version of a module was when it was first seen: never evicted, because nobody else tells that a tag was
//! moved (DESIGN 6).

use serde::{Deserialize, Serialize};

use super::super::Mirror;
use crate::address::ModulePackage;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::store::{Durability, Key, Recorded, StoreError};

/// What a version of a module was, and what it was found to be since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::mirror) struct SeenModule {
    pub(super) first_seen: Timestamp,
    /// The tree that is pinned: what was seen first, or was accepted last.
    pub(super) pinned: Sighting,
    /// Another tree that upstream has shown since, and that nobody has accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moved: Option<Sighting>,
}

/// One look at what a location led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::mirror) struct Sighting {
    /// The digest of its tree, links resolved; it depends on no packer.
    pub(super) tree: Digest,
    /// Which commit it was, where it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) commit: Option<String>,
    /// The packer that made an archive of it.
    pub(super) packer: u32,
    /// The SHA-256 of the location that led there; the location itself may hold secrets.
    pub(super) source: Digest,
    pub(super) at: Timestamp,
}

/// How a tree stands to what was seen before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judged {
    /// It is what was seen, or the first that is.
    Consistent,
    /// It is another.
    Moved {
        /// What is pinned.
        pinned: Digest,
    },
}

/// What was seen of a version.
///
/// # Errors
/// A record that was damaged is set aside, and an error: nobody may take what comes next for the first.
pub(super) fn read(mirror: &Mirror, package: &ModulePackage) -> Result<Option<SeenModule>, StoreError> {
    let key = Key::SeenModule(package.clone());
    match mirror.store.records.look(&key)? {
        Recorded::Absent => Ok(None),
        Recorded::Whole(record) => match serde_json::from_slice(&record) {
            Ok(seen) => Ok(Some(seen)),
            Err(_) => {
                mirror.store.records.set_aside(&key)?;
                Ok(rebuilt(mirror, package)?)
            }
        },
        Recorded::Damaged => rebuilt(mirror, package),
    }
}

/// What the name of a held archive tells, where the record itself is lost.
fn rebuilt(mirror: &Mirror, package: &ModulePackage) -> Result<Option<SeenModule>, StoreError> {
    let name = mirror.name(package)?;
    let held = name.archives.iter().rev().find_map(|held| held.proof.how.tree().zip(Some(held.kept)));
    tracing::error!(%package, rebuilt = held.is_some(), "ALARM: what was seen of a version of a module was damaged; without an archive of it, what comes next is taken as it is");
    Ok(held.map(|(packed, kept)| {
        let pinned = Sighting {
            tree: packed.tree,
            commit: packed.commit.clone(),
            packer: packed.packer,
            source: packed.source,
            at: kept,
        };
        SeenModule { first_seen: kept, pinned, moved: None }
    }))
}

fn put(mirror: &Mirror, package: &ModulePackage, seen: &SeenModule) -> Result<(), StoreError> {
    let record = serde_json::to_vec(seen)
        .map_err(|e| StoreError::Index(format!("what was seen of a module cannot be written: {e}")))?;
    mirror.store.records.put(&Key::SeenModule(package.clone()), &record, Durability::Synced).map(drop)
}

/// Holds a tree against what was seen before, and puts down what is new about it; synced, before anything of it is
/// visible.
///
/// # Errors
/// Where it could not be put down: then nothing of it may be kept.
pub(super) fn judge(mirror: &Mirror, package: &ModulePackage, sighting: Sighting) -> Result<Judged, StoreError> {
    let _lock = mirror.record_lock(&Key::SeenModule(package.clone())).lock();
    let Some(mut seen) = read(mirror, package)? else {
        put(mirror, package, &SeenModule { first_seen: sighting.at, pinned: sighting, moved: None })?;
        return Ok(Judged::Consistent);
    };
    let before = seen.clone();
    let judged = if seen.pinned.tree == sighting.tree {
        seen.pinned = sighting;
        seen.moved = None;
        Judged::Consistent
    } else {
        let pinned = seen.pinned.tree;
        seen.moved = Some(sighting);
        Judged::Moved { pinned }
    };
    if seen != before {
        put(mirror, package, &seen)?;
    }
    Ok(judged)
}

/// Takes a tree for the right one from now on, because an operator says so. Says which was pinned before.
pub(super) fn accept(
    mirror: &Mirror,
    package: &ModulePackage,
    sighting: Sighting,
) -> Result<Option<Sighting>, StoreError> {
    let _lock = mirror.record_lock(&Key::SeenModule(package.clone())).lock();
    let before = read(mirror, package)?;
    let first_seen = before.as_ref().map_or(sighting.at, |seen| seen.first_seen);
    put(mirror, package, &SeenModule { first_seen, pinned: sighting, moved: None })?;
    Ok(before.map(|seen| seen.pinned))
}
