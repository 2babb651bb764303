//! A tree on its way into the store: read as a tar, one archive after the other, each held whole or not at all. What is
//! told of an archive is so, whatever becomes of the rest; the same tree again goes on where it ended.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Read};
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::super::eviction::Reservation;
use super::super::names::PackageHashesKnown;
use super::super::{Call, Link, Mirror, seen};
use super::beside::Beside;
use super::imported::{sums_of, unsigned_set};
use super::proof::Said;
use super::{ImportCounts, ImportStep, ImportedFile, Judged, Unsigned};
use crate::address::{Package, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::digest::{Digest, FastHash};
use crate::error::Error;
use crate::filesystem_mirror::carried::{Carried, Contents, Tar};
use crate::filesystem_mirror::index::Hashes;
use crate::filesystem_mirror::{Meaning, Member, TreePath};
use crate::store::{Staged, StoreError};
use crate::verify::{How, PackageLimits, Verified, package_hashes};

/// How many steps may wait for whoever is told of them.
const STEPS_WAITING: usize = 16;
/// How much is written at a time, in bytes.
const WRITTEN_AT_ONCE: usize = 256 << 10;
/// Where an archive came from that no upstream sent.
const ORIGIN: &str = "an import";

impl Mirror {
    /// Takes a tree in, which arrives as a tar in the order of its names, so that what lies beside an archive comes
    /// before it. Tells what comes of each file. Ends when nobody listens any more.
    ///
    /// # Errors
    /// [`Error::Busy`] while another tree is.
    pub fn import(
        self: &Arc<Self>,
        tar: impl Read + Send + 'static,
        unsigned: Unsigned,
        call: &Call,
    ) -> Result<Receiver<ImportStep>, Error> {
        let alone = Arc::clone(&self.importing).try_lock_owned();
        let alone = alone.map_err(|_| Error::Busy("another tree is being imported".to_owned()))?;
        let (tell, told) = channel(STEPS_WAITING);
        let import = Import {
            mirror: Arc::clone(self),
            runtime: Handle::current(),
            call: self.inner(call),
            unsigned,
            tell,
            beside: Beside::default(),
            taken: HashMap::new(),
            unpacked: BTreeSet::new(),
            touched: BTreeSet::new(),
            vouched_for: BTreeSet::new(),
            counts: ImportCounts::default(),
        };
        self.tasks.spawn_blocking(move || {
            import.go(tar);
            drop(alone);
        });
        Ok(told)
    }
}

struct Import {
    mirror: Arc<Mirror>,
    runtime: Handle,
    call: Call,
    unsigned: Unsigned,
    tell: Sender<ImportStep>,
    beside: Beside,
    /// The first archive of each package.
    taken: HashMap<Package, Digest>,
    /// Those that lie there unpacked.
    unpacked: BTreeSet<Package>,
    touched: BTreeSet<ProviderAddress>,
    /// Versions with archives that nothing proves.
    vouched_for: BTreeSet<(ProviderAddress, Version)>,
    counts: ImportCounts,
}

/// An archive that has arrived, and is not visible.
struct Arrived {
    staged: Staged,
    digest: Digest,
    fast: FastHash,
    hashes: PackageHashesKnown,
    _room: Reservation,
}

impl Import {
    fn go(mut self, tar: impl Read) {
        let read = Tar::new(tar).each(|entry| self.entry(entry));
        // What came whole is settled, however the rest ended.
        let settled = self.settle();
        let last = match (read, settled) {
            (Ok(()), Ok(())) => ImportStep::Done(self.counts),
            (Err(error), _) => ImportStep::Stopped { error: format!("the tree could not be read: {error}") },
            (_, Err(error)) => ImportStep::Stopped { error: error.to_string() },
        };
        // Nobody may be left to be told.
        let _ = self.tell.blocking_send(last);
    }

    fn entry<R: Read>(&mut self, entry: Carried<'_, R>) -> io::Result<()> {
        let (path, meaning, mut contents) = match entry {
            Carried::Refused { path, why } => return self.refused(path, None, 0, why),
            Carried::File { path, meaning, contents } => (path, meaning, contents),
        };
        let size_bytes = contents.size_bytes();
        match meaning {
            Meaning::Foreign => Ok(()),
            Meaning::Misnamed(why) => self.refused(path, None, size_bytes, why),
            Meaning::Unpacked(package) => {
                if !self.unpacked.insert(package.clone()) {
                    return Ok(());
                }
                let why = "it is unpacked, and the archive that was published cannot be made of that again: import a tree of archives, as `terraform providers mirror` makes it";
                self.refused(path, Some(&package), 0, why.to_owned())
            }
            Meaning::File(TreePath { provider, member: Member::Archive(version, platform) }) => {
                self.beside.at(&provider);
                self.archive(path, &Package { provider, version, platform }, &mut contents)
            }
            Meaning::File(file) => match self.beside.take(file, &mut contents)? {
                Ok(()) => Ok(()),
                Err(why) => self.refused(path, None, size_bytes, why),
            },
        }
    }

    fn archive<R: Read>(&mut self, path: String, package: &Package, contents: &mut Contents<'_, R>) -> io::Result<()> {
        let size_bytes = contents.size_bytes();
        let mut notes = Vec::new();
        let judged = match self.arrive(package, contents)? {
            Err(error) => Judged::Refused { why: error.to_string() },
            Ok(arrived) => match self.judge(package, arrived, &mut notes) {
                Ok(judged) => judged,
                Err(error) => Judged::Refused { why: error.to_string() },
            },
        };
        self.tell(path, Some(package), size_bytes, judged, notes)
    }

    /// Stages an archive. What fails on our side leaves the rest of the tree to be read.
    fn arrive<R: Read>(
        &mut self,
        package: &Package,
        contents: &mut Contents<'_, R>,
    ) -> io::Result<Result<Arrived, Error>> {
        let size_bytes = contents.size_bytes();
        let begun = self.call.upstream(&package.provider.host).cloned().and_then(|_| self.stage(package, size_bytes));
        let (mut staged, room) = match begun {
            Ok(begun) => begun,
            Err(error) => return Ok(Err(error)),
        };
        let mut buffer = vec![0; WRITTEN_AT_ONCE];
        loop {
            match contents.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => {
                    if let Err(error) = staged.append(&buffer[..read]) {
                        // It is told why; that its leftovers stay a while is no news.
                        let _ = staged.discard();
                        return Ok(Err(error.into()));
                    }
                }
                Err(broken) => {
                    let _ = staged.discard();
                    return Err(broken);
                }
            }
        }
        let (digest, fast) = staged.hashes();
        let hashes = match staged.file().map(|file| package_hashes(file, PackageLimits::default())) {
            Err(error) => return Ok(Err(error.into())),
            Ok(Ok(hashes)) => PackageHashesKnown::Known { zip: hashes.zip, directory: hashes.directory },
            Ok(Err(bad)) => PackageHashesKnown::Impossible { why: bad.to_string() },
        };
        Ok(Ok(Arrived { staged, digest, fast, hashes, _room: room }))
    }

    fn stage(&self, package: &Package, size_bytes: u64) -> Result<(Staged, Reservation), Error> {
        let mirror = &self.mirror;
        let limit = mirror.limits.archive_bytes;
        if size_bytes > limit {
            return Err(StoreError::NoRoom { needed: size_bytes, limit, stays: 0 }.into());
        }
        // Nothing is evicted then, so nothing may come for which something would have to be.
        if mirror.link() == Link::Offline && !mirror.has_room_for(size_bytes) {
            let (limit, stays) = (mirror.store_bytes(), mirror.store.index.totals().bytes());
            return Err(StoreError::NoRoom { needed: size_bytes, limit, stays }.into());
        }
        let mut room = mirror.reservation();
        self.runtime.block_on(mirror.reserve(&mut room, size_bytes))?;
        let name = format!("import~{}", &FastHash::of(package.to_string().as_bytes()).to_string()[..16]);
        let mut staged = mirror.store.blobs.stage(&name)?;
        if staged.written() > 0 {
            // Of an import that was cut short: nobody knows whether it was of the same bytes.
            staged.discard()?;
            staged = mirror.store.blobs.stage(&name)?;
        }
        Ok((staged, room))
    }

    /// Decides about an archive that has arrived, and keeps it or throws it away.
    fn judge(&mut self, package: &Package, arrived: Arrived, notes: &mut Vec<String>) -> Result<Judged, Error> {
        let digest = arrived.digest;
        let first = *self.taken.entry(package.clone()).or_insert(digest);
        let refuse = |arrived: Arrived, why: String| {
            arrived.staged.discard()?;
            Ok(Judged::Refused { why })
        };
        if first != digest {
            return refuse(arrived, "another file of the tree is the same package, with other bytes".to_owned());
        }
        self.touched.insert(package.provider.clone());
        let now = self.call.now.after(self.call.began.elapsed());
        let call = self.mirror.step(now);
        let said = self.runtime.block_on(self.mirror.said_for(package, digest, &self.beside, self.unsigned, &call));
        let said = match said {
            Ok(said) => said,
            Err(error) => return refuse(arrived, error.to_string()),
        };
        let contradiction = self.contradicted(package, &arrived);
        match said {
            Said::Against(why) => refuse(arrived, why),
            Said::Proven { by, kept, set, notes: said } => {
                notes.extend(said);
                notes.extend(contradiction.map(|why| format!("{why}; it is proven all the same")));
                if self.is_held(package, digest)? {
                    arrived.staged.discard()?;
                    return Ok(Judged::Held);
                }
                tracing::info!(%package, ?by, "an archive of a tree is proven, and held from now on");
                self.keep(package, &kept, &set, arrived, now)?;
                Ok(Judged::Proven { by })
            }
            Said::Nothing(why) => match (&arrived.hashes, contradiction) {
                (_, Some(why)) => refuse(arrived, why),
                _ if self.unsigned == Unsigned::Refused => {
                    refuse(arrived, format!("nothing proves it: {why}; --unsigned takes it on your word"))
                }
                (PackageHashesKnown::Impossible { why }, None) => {
                    let why = format!("no client could install it: {why}");
                    refuse(arrived, why)
                }
                (_, None) => self.on_their_word(package, arrived, now),
            },
        }
    }

    /// What `VERSION.json` beside an archive has against it.
    fn contradicted(&self, package: &Package, arrived: &Arrived) -> Option<String> {
        let name = format!("{}.json", package.version);
        let index = match self.beside.version_index(&package.version)? {
            Ok(index) => index,
            Err(why) => return Some(format!("{name} beside it cannot be read: {why}")),
        };
        let h1 = match &arrived.hashes {
            PackageHashesKnown::Known { zip, .. } => Some(zip.clone()),
            PackageHashesKnown::NotYet | PackageHashesKnown::Impossible { .. } => None,
        };
        let hashes = Hashes { digest: arrived.digest, h1 };
        let takes = index.takes(&package.platform, &hashes);
        (!takes)
            .then(|| format!("{name} beside it lists other hashes: one of the two was changed since they were made"))
    }

    /// Keeps an archive that nothing proves, because the operator says so.
    fn on_their_word(&mut self, package: &Package, arrived: Arrived, now: Timestamp) -> Result<Judged, Error> {
        let digest = arrived.digest;
        let call = self.mirror.step(now);
        let held = self.runtime.block_on(self.mirror.held_set(package, &call))?;
        let before = held.map(|held| held.kept.current.document.shasum);
        if let Some(before) = before.filter(|before| *before != digest) {
            arrived.staged.discard()?;
            let why = format!("its SHA-256 is {digest}, and {before} was imported before: purge that first");
            return Ok(Judged::Refused { why });
        }
        if before == Some(digest) && self.is_held(package, digest)? {
            arrived.staged.discard()?;
            self.vouched_for.insert((package.provider.clone(), package.version.clone()));
            return Ok(Judged::Held);
        }
        let upstream = Arc::clone(self.call.upstream(&package.provider.host)?);
        let set = unsigned_set(package, digest, sums_of([(package, digest)]), &upstream, now);
        let set = set.map_err(|why| Error::Interrupted(format!("the set of {package}: {why}")))?;
        let kept = self.runtime.block_on(self.mirror.keep_unsigned(package, set, &call))?;
        let set = Arc::clone(&kept.current);
        if set.document.shasum != digest {
            arrived.staged.discard()?;
            let why =
                format!("its SHA-256 is {digest}, and a proof set that came meanwhile says {}", set.document.shasum);
            return Ok(Judged::Refused { why });
        }
        tracing::warn!(%package, %digest, "imported without signatures: the operator vouches for it");
        let is_unsigned = set.proof().how == How::Imported;
        // That there is such a version is all that is noted: its digest is nobody's but the operator's.
        seen::note_versions(&self.mirror, &package.provider, std::slice::from_ref(&package.version), now)?;
        self.keep(package, &kept, &set, arrived, now)?;
        if !is_unsigned {
            return Ok(Judged::Proven { by: super::ProvenBy::HeldSet });
        }
        self.vouched_for.insert((package.provider.clone(), package.version.clone()));
        Ok(Judged::Unsigned)
    }

    fn is_held(&self, package: &Package, digest: Digest) -> Result<bool, Error> {
        let is_named = self.mirror.name(package)?.get(&digest).is_some();
        Ok(is_named && self.mirror.store.blobs.holds(&digest)?)
    }

    fn keep(
        &self,
        package: &Package,
        kept: &super::super::proof_set::KeptSet,
        set: &super::super::proof_set::ProofSet,
        arrived: Arrived,
        now: Timestamp,
    ) -> Result<(), Error> {
        let Arrived { staged, digest, fast, hashes, _room: room } = arrived;
        let size_bytes = staged.written();
        let verified = Verified::by_digest(staged, digest, set.document.shasum).map_err(|verdict| {
            Error::Unverified { asked: format!("the archive of {package}"), verdict: verdict.to_string() }
        })?;
        self.mirror.commit(package, kept, set, verified, fast, size_bytes, now)?;
        drop(room);
        self.mirror.amend(package, digest, |held| (held.hashes, held.origin) = (hashes, ORIGIN.to_owned()))?;
        self.mirror.keep_to_the_limit();
        Ok(())
    }

    /// Completes and syncs what several archives have in common.
    fn settle(&self) -> Result<(), Error> {
        self.runtime.block_on(async {
            let call = self.mirror.step(self.call.now.after(self.call.began.elapsed()));
            for (provider, version) in &self.vouched_for {
                self.mirror.complete_sums(provider, version, &call).await?;
            }
            let providers: BTreeSet<_> = self.vouched_for.iter().map(|(provider, _)| provider).collect();
            for provider in providers {
                self.mirror.list_imported(provider, &call).await?;
            }
            for provider in &self.touched {
                self.mirror.sync_what_leads_to(provider).await?;
                self.mirror.changed(provider);
            }
            Ok(())
        })
    }

    fn refused(&mut self, file: String, of: Option<&Package>, size_bytes: u64, why: String) -> io::Result<()> {
        self.tell(file, of, size_bytes, Judged::Refused { why }, Vec::new())
    }

    fn tell(
        &mut self,
        file: String,
        of: Option<&Package>,
        size_bytes: u64,
        judged: Judged,
        notes: Vec<String>,
    ) -> io::Result<()> {
        if let Judged::Refused { why } = &judged {
            tracing::warn!(file, why, "a file of a tree stays out");
        }
        self.counts.count(&judged);
        let what = of.map(|package| format!("{}@{}", package.provider, package.version));
        let platform = of.map(|package| package.platform.to_string());
        let told = ImportStep::File(ImportedFile { file, what, platform, size_bytes, judged, notes });
        // Whoever has gone does not want the rest.
        self.tell.blocking_send(told).map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "nobody listens any more"))
    }
}
