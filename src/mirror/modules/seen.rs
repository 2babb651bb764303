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
    /// Whether all spellings of the module were one while it was known (`fold_case`): it says what each of them was.
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

/// What is recorded of a version.
#[expect(clippy::large_enum_variant, reason = "it is read and written, and kept nowhere")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(in crate::mirror) enum SeenRecord {
    /// What it was.
    Seen(SeenModule),
    /// Nothing any more, whatever an archive or another spelling tells: an operator has accepted that larder cannot
    /// fetch it.
    Forgotten {
        /// When.
        forgotten: Timestamp,
    },
}

/// What is left of what was seen of a version.
#[expect(clippy::large_enum_variant, reason = "it is looked at where it arrives, and kept nowhere")]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Recalled {
    /// Nothing was seen, or what was is forgotten: what comes next is the first.
    #[default]
    Never,
    /// This.
    Seen(SeenModule),
    /// That something was seen, and not what: its record is damaged, and no archive tells. So nothing passes for it.
    Lost,
}

impl Recalled {
    /// What was seen, where that is known.
    pub(super) fn seen(self) -> Option<SeenModule> {
        if let Self::Seen(seen) = self { Some(seen) } else { None }
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
    /// Nobody can tell: what was seen is lost.
    Lost,
}

/// What was seen of a version.
///
/// # Errors
/// Where the disk fails: nobody may take what comes next for the first then.
pub(super) fn known(mirror: &Mirror, package: &ModulePackage) -> Result<Recalled, StoreError> {
    let _lock = mirror.catalog.record_lock(&Key::SeenModule(package.clone())).lock();
    read(mirror, package)
}

/// The same, for whoever has its lock. Where its record is damaged, or of another spelling from before `fold_case` was
/// changed, what is still known is put down again.
fn read(mirror: &Mirror, package: &ModulePackage) -> Result<Recalled, StoreError> {
    let folds = folds(mirror, package);
    let again = |seen: SeenModule| put(mirror, package, &seen).map(|()| Recalled::Seen(seen));
    let mut is_lost = match recorded(mirror, package)? {
        // From now on it says what each spelling was, also after the next change.
        Recorded::Whole(SeenRecord::Seen(seen)) if folds && !seen.folded => return again(seen),
        Recorded::Whole(SeenRecord::Seen(seen)) => return Ok(Recalled::Seen(seen)),
        Recorded::Whole(SeenRecord::Forgotten { .. }) => return Ok(Recalled::Never),
        Recorded::Absent => false,
        Recorded::Damaged => true,
    };
    // The name first: it tells what an operator has accepted since, too.
    if let Some(seen) = by_name(mirror, package)? {
        tracing::error!(%package, "what was seen of a version of a module was lost; it is put down again as its archive tells");
        return again(seen);
    }
    let others = match package.folded() {
        _ if folds => mirror.store.records.spellings_seen(package)?,
        // Two spellings are two modules, unless they were one when this was put down.
        one if one != *package => vec![one],
        _ => vec![],
    };
    for other in others {
        match recorded(mirror, &other)? {
            Recorded::Whole(SeenRecord::Seen(seen)) if folds || seen.folded => {
                tracing::info!(%package, as = %other, "a version of a module was seen in another spelling, and is held against that");
                return again(seen);
            }
            Recorded::Damaged => is_lost = true,
            Recorded::Whole(_) | Recorded::Absent => {}
        }
    }
    Ok(if is_lost { Recalled::Lost } else { Recalled::Never })
}

/// Whether all spellings of a module are one now.
fn folds(mirror: &Mirror, package: &ModulePackage) -> bool {
    let terms = mirror.terms();
    terms.upstreams.get(&package.module.host).is_some_and(|upstream| upstream.settings.fold_case)
}

/// What is recorded under one spelling. What is damaged stays where it is: that it is there tells that something was
/// seen, until something else is put in its place.
fn recorded(mirror: &Mirror, package: &ModulePackage) -> Result<Recorded<SeenRecord>, StoreError> {
    Ok(match mirror.store.records.look(&Key::SeenModule(package.clone()))? {
        Recorded::Whole(record) => serde_json::from_slice(&record).map_or(Recorded::Damaged, Recorded::Whole),
        Recorded::Absent => Recorded::Absent,
        Recorded::Damaged => Recorded::Damaged,
    })
}

/// What the name of a held archive tells.
fn by_name(mirror: &Mirror, package: &ModulePackage) -> Result<Option<SeenModule>, StoreError> {
    let name = mirror.catalog.name(package)?;
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
    let folded = seen.folded || folds(mirror, package);
    write(mirror, package, &SeenRecord::Seen(SeenModule { folded, ..seen.clone() }))
}

fn write(mirror: &Mirror, package: &ModulePackage, record: &SeenRecord) -> Result<(), StoreError> {
    let record = serde_json::to_vec(record)
        .map_err(|e| StoreError::Index(format!("what was seen of a module cannot be written: {e}")))?;
    mirror.store.records.put(&Key::SeenModule(package.clone()), &record, Durability::Synced).map(drop)
}

/// Holds a tree against what was seen before, and puts down what is new about it; synced, before anything of it is
/// visible.
///
/// # Errors
/// Where it could not be put down: then nothing of it may be kept.
pub(super) fn judge(mirror: &Mirror, package: &ModulePackage, sighting: Sighting) -> Result<Judged, StoreError> {
    let _lock = mirror.catalog.record_lock(&Key::SeenModule(package.clone())).lock();
    match read(mirror, package)? {
        Recalled::Never => {
            let at = sighting.at;
            put(mirror, package, &SeenModule::of(at, sighting, at))?;
            Ok(Judged::Consistent)
        }
        Recalled::Seen(mut seen) => {
            seen.looked = sighting.at;
            change(mirror, package, seen, sighting)
        }
        Recalled::Lost => Ok(Judged::Lost),
    }
}

/// The same for what was only looked at, and of a location that upstream had confirmed at `looked`.
pub(super) fn looked(
    mirror: &Mirror,
    package: &ModulePackage,
    sighting: Sighting,
    looked: Timestamp,
) -> Result<Judged, StoreError> {
    let _lock = mirror.catalog.record_lock(&Key::SeenModule(package.clone())).lock();
    match read(mirror, package)? {
        Recalled::Never => Ok(Judged::Consistent),
        Recalled::Seen(mut seen) => {
            seen.looked = looked;
            change(mirror, package, seen, sighting)
        }
        Recalled::Lost => Ok(Judged::Lost),
    }
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
    let _lock = mirror.catalog.record_lock(&Key::SeenModule(package.clone())).lock();
    let before = read(mirror, package)?.seen();
    let first_seen = before.as_ref().map_or(sighting.at, |seen| seen.first_seen);
    let looked = sighting.at;
    let folded = before.as_ref().is_some_and(|seen| seen.folded);
    put(mirror, package, &SeenModule { folded, ..SeenModule::of(first_seen, sighting, looked) })?;
    Ok(before.map(|seen| seen.pinned))
}

/// Forgets what was seen of a version, because an operator accepts that larder cannot fetch it any more.
pub(super) fn forget(mirror: &Mirror, package: &ModulePackage, now: Timestamp) -> Result<(), StoreError> {
    let _lock = mirror.catalog.record_lock(&Key::SeenModule(package.clone())).lock();
    write(mirror, package, &SeenRecord::Forgotten { forgotten: now })
}

/// Notes that upstream has moved a version to where larder cannot follow. Says what was seen of it before.
pub(super) fn moved_elsewhere(mirror: &Mirror, package: &ModulePackage, what: &str) -> Result<Recalled, StoreError> {
    let _lock = mirror.catalog.record_lock(&Key::SeenModule(package.clone())).lock();
    let mut recalled = read(mirror, package)?;
    if let Recalled::Seen(seen) = &mut recalled
        && seen.elsewhere.as_deref() != Some(what)
    {
        seen.elsewhere = Some(what.to_owned());
        put(mirror, package, seen)?;
    }
    Ok(recalled)
}
