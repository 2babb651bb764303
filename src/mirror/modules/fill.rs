//! One version of a module on its way into the store: located, fetched, packed, held against what was seen of it
//! before, committed. It outlives whoever asked first, and all who wait share how it ends (promise 4).

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::counters::{REFUSED_TREE, REPUBLISHED, SEEN_DAMAGED, Stored};
use super::super::fill::Counted;
use super::super::freshness::Age;
use super::super::library::{HeldArchive, PackageHashesKnown, Zip};
use super::super::single_flight::awaited;
use super::super::{AlarmKind, Call, Mirror};
use super::fetch::{Fetch, FetchedTree, NoTree};
use super::location::Said;
use super::seen::{self, Judged, Sighting};
use crate::address::{Artifact, FileName, ModulePackage};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::pack::{PACKER, PackResult, TreeError, pack, resolve};
use crate::store::{Staged, StoreError};
use crate::verify::{How, PackedTree, Proof, Verified};

/// What every archive of a module is called.
pub(super) const ARCHIVE: &str = "module.tar.gz";

/// How much is evicted first where the disk is full in the middle of a fill, in bytes.
const ROOM_AT_FIRST: u64 = 64 << 20;
/// The most that is evicted for one module: the largest tree that may be.
const MOST_ROOM: u64 = 4 << 30;

/// What a fetched tree is held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Believing {
    /// What was seen first.
    WhatWasSeen,
    /// It itself: an operator says that it is right.
    WhatIsThereNow,
}

/// A tree that was packed, and is not visible yet.
pub(super) struct PackedArchive {
    staged: Staged,
    sighting: Sighting,
    origin: String,
}

impl Mirror {
    /// Joins the fill of a version that is not held, or starts it, and waits for it.
    ///
    /// # Errors
    /// [`Error::Unattended`] where it would be one too many that its client started and does not wait for, or how it
    /// ended.
    pub(super) async fn module_fill(
        self: &Arc<Self>,
        package: &ModulePackage,
        call: &Call,
    ) -> Result<HeldArchive, Error> {
        let key = call.terms.key_of_package(package);
        let what = format!("the archive of {package}");
        let lost = Err(Error::Interrupted(what.clone()));
        let (of, client) = ((key.clone(), call.company()), call.client);
        let may_start = || self.started_fills.may_start(client, || what);
        let filled = self.module_fills.try_join(of, may_start, |landing| {
            let (mirror, package, call) = (Arc::clone(self), package.clone(), self.inner(call));
            let work = async move {
                // Whoever asks right after a fill landed finds the archive, not another fill.
                if let Some(held) = mirror.held_module(&key).await? {
                    return Ok(held);
                }
                let filled = mirror.fill_module(&package, &key, Believing::WhatWasSeen, &call).await;
                if let Err(error) = &filled {
                    tracing::error!(%package, %error, "a module could not be filled");
                }
                filled
            };
            let (filled, spawn) = awaited(&self.tasks, lost, work);
            let followed = filled.downgrade();
            let go = || {
                let started = followed.and_then(|followed| self.started_fills.started(client, followed));
                spawn((started, landing));
            };
            (filled, go)
        });
        filled?.await
    }

    /// Fetches, packs and commits a version.
    pub(super) async fn fill_module(
        self: &Arc<Self>,
        package: &ModulePackage,
        key: &ModulePackage,
        believing: Believing,
        call: &Call,
    ) -> Result<HeldArchive, Error> {
        let _under_way = Counted::new(&self.counters.fills);
        let mut room = ROOM_AT_FIRST;
        let filled = loop {
            match self.try_to_fill_module(package, key, believing, call).await {
                Err(Error::Store(full)) if full.is_full() && room <= MOST_ROOM => {
                    // How much it takes is not known before: so more and more goes, until it fits or that is no use.
                    let bytes = room;
                    if let Err(why) = self.on_disk(move |mirror| mirror.make_some_room(bytes, &full)).await {
                        break Err(why);
                    }
                    room = room.saturating_mul(8);
                }
                filled => break filled,
            }
        };
        match &filled {
            Ok(_) => self.was_kept(Stored::Archive),
            Err(Error::Store(why)) => self.was_not_kept(Stored::Archive, why),
            Err(_) => {}
        }
        filled
    }

    async fn try_to_fill_module(
        self: &Arc<Self>,
        package: &ModulePackage,
        key: &ModulePackage,
        believing: Believing,
        call: &Call,
    ) -> Result<HeldArchive, Error> {
        let packed = self.packed(package, call).await?;
        let (package, key, now) = (package.clone(), key.clone(), self.inner(call).now);
        let filled = self.on_disk(move |mirror| mirror.commit_module(&package, &key, packed, believing, now)).await;
        filled.and_then(|filled| filled)
    }

    /// Fetches a version and packs it into a stage. A location that may be too old is asked for anew, once.
    pub(super) async fn packed(self: &Arc<Self>, package: &ModulePackage, call: &Call) -> Result<PackedArchive, Error> {
        // For it alone: what it takes up while it is unpacked is given back when it is packed.
        let mut room = self.reservation();
        let said = self.location(package, call).await?.value.said(package)?;
        let fetched = match Fetch::new(self, package, call, &mut room).await?.tree(&said).await {
            Err(NoTree::MayBeTooOld(error)) => {
                tracing::warn!(%package, %error, "what a location names was refused; the location is asked anew");
                let said = self.location_asked_anew(package, said.age, call).await?;
                let fetched = Fetch::new(self, package, call, &mut room).await?.tree(&said).await;
                (fetched.map_err(NoTree::error)?, said)
            }
            fetched => (fetched.map_err(NoTree::error)?, said),
        };
        let (fetched, said) = fetched;
        // What the archive may take: links become copies.
        let (fetched, resolved) = self
            .on_disk(move |_| {
                let bytes = resolve(&fetched.tree, &fetched.root).map(|resolved| resolved.max_archive_bytes());
                Ok((fetched, bytes))
            })
            .await?;
        if let Ok(bytes) = resolved {
            self.reserve(&mut room, bytes).await?;
        }
        // A stage of its own: one that an operator accepts may be packed beside one that a client asked for.
        static PACKED: AtomicU64 = AtomicU64::new(0);
        let name = format!("packed~{}", PACKED.fetch_add(1, Ordering::Relaxed));
        let (of, now) = (package.clone(), self.inner(call).now);
        self.on_disk(move |mirror| pack_into_stage(mirror, &of, &name, fetched, &said, now)).await?
    }

    pub(super) async fn location_asked_anew(
        self: &Arc<Self>,
        package: &ModulePackage,
        seen: Age,
        call: &Call,
    ) -> Result<Said, Error> {
        self.ask_location_again(package, Some(seen), call).await?.value.said(package)
    }

    /// Makes a packed archive a held one: what was seen, then the blob, then its name, each synced with its folder; only
    /// then is the index told (promise 9).
    fn commit_module(
        &self,
        package: &ModulePackage,
        key: &ModulePackage,
        packed: PackedArchive,
        believing: Believing,
        now: Timestamp,
    ) -> Result<Result<HeldArchive, Error>, StoreError> {
        let PackedArchive { staged, sighting, origin } = packed;
        match believing {
            Believing::WhatWasSeen => {
                let judged = seen::judge(self, key, sighting.clone())?;
                let accepting = format!("`larder accept {key}`");
                if let Err(refused) = self.must_be_what_was_seen(package, key, &sighting, judged, &accepting) {
                    staged.discard()?;
                    return Ok(Err(refused));
                }
            }
            Believing::WhatIsThereNow => {
                seen::accept(self, key, sighting.clone())?;
                self.resolved(super::RESOLVED, &key.module, &key.version);
            }
        }
        let (digest, fast) = staged.hashes();
        let size_bytes = staged.written();
        let Ok(verified) = Verified::by_digest(staged, digest, digest) else {
            return Ok(Err(Error::Interrupted(format!("the archive of {package}"))));
        };
        let Sighting { tree, commit, packer, source, subdir, .. } = sighting;
        let how = How::Tree(PackedTree { tree, commit, packer, source, subdir });
        let proof = Proof { how, warnings: Vec::new() };
        let filename = FileName::parse(ARCHIVE).map_err(|e| StoreError::Index(e.to_string()))?;
        let hashes = PackageHashesKnown::NotYet;
        let held = HeldArchive {
            digest,
            fast,
            filename,
            size_bytes,
            hashes,
            proof,
            zip: Zip::Published,
            origin,
            kept: now,
            first_kept: None,
        };
        {
            let _lock = self.catalog.digest_lock(&digest).lock();
            self.store.blobs.publish(verified)?;
            self.checked.lock().insert(digest);
            let named = self.catalog.change_name(Artifact::Module(key.clone()), |name| {
                // One that an operator has replaced stays for whoever was told its digest; it is current no more.
                name.put(held.clone());
            });
            // Where it lies there without a name: what eviction does not know of, it cannot evict.
            self.store.index.archive_kept(&digest, size_bytes, now);
            named?;
        }
        self.module_changed(&key.module);
        self.keep_to_the_limit();
        Ok(Ok(held))
    }

    /// A version whose tree is another than the one that was seen first, or of which nobody knows that: an alarm, and not
    /// served (DESIGN 6). `accepting` is the command that takes it all the same.
    ///
    /// # Errors
    /// [`Error::Unverified`], unless it is what was seen.
    pub(super) fn must_be_what_was_seen(
        &self,
        package: &ModulePackage,
        key: &ModulePackage,
        now: &Sighting,
        judged: Judged,
        accepting: &str,
    ) -> Result<(), Error> {
        let Sighting { tree, commit, .. } = now;
        let commit = commit.as_deref().unwrap_or("none");
        let (verdict, kind, detail) = match judged {
            Judged::Consistent => return Ok(()),
            Judged::Moved { pinned } => {
                tracing::error!(%package, %tree, %pinned, commit, "ALARM: upstream has published a version of a module anew, with another tree than the one that was seen first; it is not served until it is accepted");
                self.counters.unproven(&key.module.host, REPUBLISHED);
                let elsewhere = if *tree == pinned { ", where the module was in another folder" } else { "" };
                let verdict = format!(
                    "its tree has digest {tree}, and the one that was seen first has {pinned}{elsewhere}: upstream has moved it"
                );
                (
                    verdict,
                    AlarmKind::Moved,
                    format!("its tree is {tree} (commit {commit}); it was {pinned} at first{elsewhere}"),
                )
            }
            Judged::Lost => {
                tracing::error!(%package, %tree, commit, "ALARM: what was seen first of a version of a module is damaged, and no archive tells what it was; it is not served until it is accepted");
                self.counters.unproven(&key.module.host, SEEN_DAMAGED);
                let verdict = format!(
                    "its tree has digest {tree}, and the record of the one that was seen first is damaged, so nobody can tell whether upstream has moved it"
                );
                (verdict, AlarmKind::DamagedRecord, super::DAMAGED.to_owned())
            }
        };
        self.alarm(kind, &key.module, &key.version, detail, now.at);
        Err(Error::Unaccepted { asked: format!("the archive of {package}"), verdict, command: accepting.to_owned() })
    }
}

/// Packs a tree into a stage of its own. The scratch folder goes with the tree.
fn pack_into_stage(
    mirror: &Mirror,
    package: &ModulePackage,
    name: &str,
    fetched: FetchedTree,
    said: &Said,
    now: Timestamp,
) -> Result<Result<PackedArchive, Error>, StoreError> {
    // What an earlier run left of it is worth nothing: it is made anew in a moment.
    mirror.store.blobs.stage(name)?.discard()?;
    let mut out = Stage { staged: mirror.store.blobs.stage(name)?, failed: None };
    let packed = pack(&fetched.tree, &fetched.root, &mut out);
    let Stage { staged, failed } = out;
    if let Some(failed) = failed {
        staged.discard()?;
        return Ok(Err(failed.into()));
    }
    let PackResult { tree, notes } = match packed {
        Ok(packed) => packed,
        Err(TreeError::Spool(source)) => {
            staged.discard()?;
            return Err(StoreError::Io {
                doing: "pack a module in",
                path: mirror.store.root().join("staging"),
                source,
            });
        }
        Err(why) => {
            staged.discard()?;
            mirror.counters.unproven(&package.module.host, REFUSED_TREE);
            let asked = format!("the package of {package} from {}", fetched.origin);
            return Ok(Err(Error::Unverified { asked, verdict: why.to_string() }));
        }
    };
    for note in notes {
        tracing::warn!(%package, note, "a module was packed without something that is in its repository");
    }
    let sighting = Sighting {
        tree,
        commit: fetched.commit,
        packer: PACKER,
        source: said.digest,
        subdir: fetched.subdir.clone(),
        validators: fetched.validators,
        at: now,
    };
    Ok(Ok(PackedArchive { staged, sighting, origin: fetched.origin }))
}

/// A stage that is written to.
struct Stage {
    staged: Staged,
    failed: Option<StoreError>,
}

impl Write for Stage {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.staged.append(bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(error) => {
                self.failed = Some(error);
                Err(io::Error::other("the stage could not be written"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
