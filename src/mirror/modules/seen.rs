//! What a version of a module was when it was first seen: never evicted, because nobody else tells that a tag was
//! moved (DESIGN 6).

use serde::{Deserialize, Serialize};

use super::super::Mirror;
use crate::address::ModulePackage;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::store::{Durability, Key, Recorded, StoreError};
use crate::upstream::ask::Validators;
use crate::verify::PackedTree;

/// What a version of a module was, and what it was found to be since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::mirror) struct SeenModule {
    pub(super) first_seen: Timestamp,
    /// The tree that is pinned: what was seen first, or was accepted last.
    pub(super) pinned: Sighting,
    /// Another tree that upstream has shown since, and that nobody has accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moved: Option<Sighting>,
    /// When upstream had confirmed the location of which what it leads to was last looked at.
    pub(super) looked: Timestamp,
    /// Whether all spellings of the module were one when it was put down (`fold_case`).
    #[serde(default)]
    pub(super) folded: bool,
    /// The kind of source that upstream has moved it to since, where larder cannot fetch that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) elsewhere: Option<String>,
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
    /// Where in it the module is: another folder of the same tree is another module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) subdir: Option<String>,
    /// What the server of an archive said of its bytes, for asking whether they changed.
    #[serde(default)]
    pub(super) validators: Validators,
    pub(super) at: Timestamp,
}

impl Sighting {
    pub(super) fn has_validators(&self) -> bool {
        self.validators != Validators::default()
    }

    /// Whether it is the same module, whoever packs it.
    fn is_what(&self, other: &Self) -> bool {
        self.tree == other.tree && self.subdir == other.subdir
    }

    /// Whether an archive is packed of it.
    pub(super) fn is_packed_as(&self, packed: &PackedTree) -> bool {
        self.tree == packed.tree && self.subdir == packed.subdir
    }
}

impl SeenModule {
    fn of(first_seen: Timestamp, pinned: Sighting, looked: Timestamp) -> Self {
        Self { first_seen, pinned, moved: None, looked, folded: false, elsewhere: None }
    }

    /// Whether upstream has something else now, and nobody has accepted that.
    pub(super) fn has_moved(&self) -> bool {
        self.moved.is_some() || self.elsewhere.is_some()
    }
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
/// Where the disk fails: nobody may take what comes next for the first then.
pub(super) fn known(mirror: &Mirror, package: &ModulePackage) -> Result<Option<SeenModule>, StoreError> {
    let _lock = mirror.record_lock(&Key::SeenModule(package.clone())).lock();
    read(mirror, package)
}

/// The same, for whoever has its lock. A record that is not there may have been damaged, or be of another spelling from
/// before `fold_case` was changed: what is still known is put down again.
fn read(mirror: &Mirror, package: &ModulePackage) -> Result<Option<SeenModule>, StoreError> {
    if let Some(seen) = recorded(mirror, package)? {
        return Ok(Some(seen));
    }
    // The name first: it tells what an operator has accepted since, too.
    if let Some(seen) = by_name(mirror, package)? {
        tracing::error!(%package, "what was seen of a version of a module was lost; it is put down again as its archive tells");
        put(mirror, package, &seen)?;
        return Ok(Some(seen));
    }
    if folds(mirror, package) {
        for sibling in mirror.store.records.spellings_seen(package)? {
            if let Some(seen) = recorded(mirror, &sibling)? {
                tracing::info!(%package, as = %sibling, "a version of a module was seen in another spelling, and is held against that");
                put(mirror, package, &seen)?;
                return Ok(Some(seen));
            }
        }
        return Ok(None);
    }
    // Two spellings are two modules, unless they were one when this was put down.
    let one = package.folded();
    match if one == *package { None } else { recorded(mirror, &one)? } {
        Some(seen) if seen.folded => {
            put(mirror, package, &seen)?;
            Ok(Some(seen))
        }
        Some(_) | None => Ok(None),
    }
}

/// Whether all spellings of a module are one now.
fn folds(mirror: &Mirror, package: &ModulePackage) -> bool {
    let terms = mirror.terms();
    terms.upstreams.get(&package.module.host).is_some_and(|upstream| upstream.settings.fold_case)
}

fn recorded(mirror: &Mirror, package: &ModulePackage) -> Result<Option<SeenModule>, StoreError> {
    let key = Key::SeenModule(package.clone());
    let damaged = || {
        tracing::error!(%package, "ALARM: what was seen of a version of a module was damaged; unless an archive of it is held, what comes next is taken as it is");
    };
    match mirror.store.records.look(&key)? {
        Recorded::Absent => Ok(None),
        Recorded::Damaged => {
            damaged();
            Ok(None)
        }
        Recorded::Whole(record) => match serde_json::from_slice(&record) {
            Ok(seen) => Ok(Some(seen)),
            Err(_) => {
                mirror.store.records.set_aside(&key)?;
                damaged();
                Ok(None)
            }
        },
    }
}

/// What the name of a held archive tells.
fn by_name(mirror: &Mirror, package: &ModulePackage) -> Result<Option<SeenModule>, StoreError> {
    let name = mirror.name(package)?;
    let held = name.archives.iter().rev().find_map(|held| held.proof.how.tree().zip(Some(held.kept)));
    Ok(held.map(|(packed, kept)| {
        let pinned = Sighting {
            tree: packed.tree,
            commit: packed.commit.clone(),
            packer: packed.packer,
            source: packed.source,
            subdir: packed.subdir.clone(),
            validators: Validators::default(),
            at: kept,
        };
        SeenModule::of(kept, pinned, Timestamp(0))
    }))
}

fn put(mirror: &Mirror, package: &ModulePackage, seen: &SeenModule) -> Result<(), StoreError> {
    let seen = SeenModule { folded: folds(mirror, package), ..seen.clone() };
    let record = serde_json::to_vec(&seen)
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
        let at = sighting.at;
        put(mirror, package, &SeenModule::of(at, sighting, at))?;
        return Ok(Judged::Consistent);
    };
    seen.looked = sighting.at;
    change(mirror, package, seen, sighting)
}

/// The same for what was only looked at, and of a location that upstream had confirmed at `looked`.
pub(super) fn looked(
    mirror: &Mirror,
    package: &ModulePackage,
    sighting: Sighting,
    looked: Timestamp,
) -> Result<Judged, StoreError> {
    let _lock = mirror.record_lock(&Key::SeenModule(package.clone())).lock();
    let Some(mut seen) = read(mirror, package)? else { return Ok(Judged::Consistent) };
    seen.looked = looked;
    change(mirror, package, seen, sighting)
}

fn change(
    mirror: &Mirror,
    package: &ModulePackage,
    mut seen: SeenModule,
    sighting: Sighting,
) -> Result<Judged, StoreError> {
    seen.elsewhere = None;
    let judged = if seen.pinned.is_what(&sighting) {
        seen.pinned = sighting;
        seen.moved = None;
        Judged::Consistent
    } else {
        let pinned = seen.pinned.tree;
        seen.moved = Some(sighting);
        Judged::Moved { pinned }
    };
    put(mirror, package, &seen)?;
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
    let looked = sighting.at;
    put(mirror, package, &SeenModule::of(first_seen, sighting, looked))?;
    Ok(before.map(|seen| seen.pinned))
}

/// Forgets what was seen of a version, because an operator accepts that larder cannot fetch it any more. Its name is to
/// be empty by then, or that would tell it again.
pub(super) fn forget(mirror: &Mirror, package: &ModulePackage) -> Result<(), StoreError> {
    let spellings = if folds(mirror, package) { mirror.store.records.spellings_seen(package)? } else { Vec::new() };
    for spelling in spellings.into_iter().chain([package.clone()]) {
        let key = Key::SeenModule(spelling);
        let _lock = mirror.record_lock(&key).lock();
        mirror.store.records.remove(&key)?;
    }
    Ok(())
}

/// Notes that upstream has moved a version to where larder cannot follow. `None` where it was never seen.
pub(super) fn moved_elsewhere(
    mirror: &Mirror,
    package: &ModulePackage,
    what: &str,
) -> Result<Option<SeenModule>, StoreError> {
    let _lock = mirror.record_lock(&Key::SeenModule(package.clone())).lock();
    let Some(mut seen) = read(mirror, package)? else { return Ok(None) };
    if seen.elsewhere.as_deref() != Some(what) {
        seen.elsewhere = Some(what.to_owned());
        put(mirror, package, &seen)?;
    }
    Ok(Some(seen))
}
