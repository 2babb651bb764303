//! Pull-through for archives and the two files beside them: held and checked, or arriving and followed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::call::Part;
use super::fill::{Fill, FillKey};
use super::follow::{Follow, Progress};
use super::freshness::Age;
use super::library::HeldArchive;
use super::opened::Opened;
use super::passing::Passing;
use super::proof_set::{HeldSet, KeptSet, ProofSet, SetFile};
use super::pull::nobody_may_wait;
use super::{Answer, Call, Mirror, Outcome, SMALL_ARCHIVE_BYTES, unless_gone};
use crate::address::{FileName, Package};
use crate::clock::Timestamp;
use crate::digest::{Digest, DigestPrefix};
use crate::error::Error;
use crate::store::{Blob, StoreError};
use crate::upstream::outbound::Link;

/// One file of a package, as our URLs name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ArchiveRef {
    /// The package.
    pub package: Package,
    /// The first digits of the file's own SHA-256: so a client never mixes two sets.
    pub digest: DigestPrefix,
    /// The file's name.
    pub filename: FileName,
}

/// A file to send.
#[derive(Debug)]
pub enum Archive {
    /// Whole and checked, in memory.
    InMemory {
        /// Its bytes.
        bytes: Bytes,
        /// Its SHA-256.
        digest: Digest,
    },
    /// Held and checked, read as it is sent.
    Held {
        /// Its bytes.
        blob: Blob,
        /// Its SHA-256.
        digest: Digest,
    },
    /// On its way from upstream: not proven yet, so nothing of it may look complete.
    Arriving {
        /// Its bytes; the last of them only come once it is proven and kept.
        follow: Follow,
        /// Its length, where upstream gave one.
        length: Option<u64>,
    },
    /// The same, for one client alone: the disk would not take it.
    Passing {
        /// Its bytes; the last of them only come once they are proven.
        passing: Box<Passing>,
        /// Its length, where upstream gave one.
        length: Option<u64>,
    },
}

/// How long a copy in memory of a checked archive is as good as reading and checking it again, unless its provider's
/// revision changes.
const COPY_BELIEVED: Duration = Duration::from_secs(60);

/// The name of SHA256SUMS in our URLs.
const SUMS_NAME: &str = "SHA256SUMS";
/// The name of its signature in our URLs.
const SIGNATURE_NAME: &str = "SHA256SUMS.sig";

impl ProofSet {
    /// What our URLs call the archive, SHA256SUMS and the signature of this set.
    ///
    /// # Errors
    /// None that these fixed names could cause; they are parsed like any other.
    pub fn references(&self, package: &Package) -> Result<[ArchiveRef; 3], crate::address::BadAddress> {
        let reference =
            |digest: Digest, filename| ArchiveRef { package: package.clone(), digest: digest.prefix(), filename };
        Ok([
            reference(self.document.shasum, self.document.filename.clone()),
            reference(self.sums_digest(), FileName::parse(SUMS_NAME)?),
            reference(self.signature_digest(), FileName::parse(SIGNATURE_NAME)?),
        ])
    }
}

impl Mirror {
    /// The file that one of our URLs names.
    ///
    /// # Errors
    /// [`Error::NotFound`] where no kept set or name lists its digest, also after asking upstream anew.
    pub async fn archive(self: &Arc<Self>, wanted: &ArchiveRef, call: &Call) -> Result<Answer<Archive>, Error> {
        let package = &wanted.package;
        let policy = call.upstream(&package.provider.host)?.settings.verification;
        if let Some(held) = self.held(wanted).await?.filter(|held| policy.is_met_by(&held.proof.how))
            && let Opened::Checked(archive) = self.open_held(package, &held, call).await?
        {
            let fresh_until = call.now.after(COPY_BELIEVED);
            return Ok(Answer { value: archive, outcome: Outcome::Hit, fresh_until, checked: call.now });
        }
        let held = self.held_set(package, call).await?;
        if let Some(held) = &held
            && let Some((set, file)) = held.find(&wanted.digest, call.now)
        {
            return self.of_set(wanted, held, &set, file, call).await;
        }
        let held = self.set_that_lists(wanted, held.map(|held| held.kept.age), call).await?;
        match held.find(&wanted.digest, call.now) {
            Some((set, file)) => self.of_set(wanted, &held, &set, file, call).await,
            None => Err(no_such_file(wanted)),
        }
    }

    /// Asks for the set of an archive URL that nothing kept lists; where it does not list it either, not
    /// again for a while.
    async fn set_that_lists(
        self: &Arc<Self>,
        wanted: &ArchiveRef,
        seen: Option<Age>,
        call: &Call,
    ) -> Result<HeldSet, Error> {
        let package = &wanted.package;
        if call.terms.asked_anew.get(package, call.now).is_some() {
            return Err(no_such_file(wanted));
        }
        if self.link() == Link::Offline {
            return Err(self.lacks(package, format!("{} of {package}", wanted.filename), call).await);
        }
        let _place = self.place(call).ok_or_else(|| nobody_may_wait(&format!("the download document of {package}")))?;
        let asked = tokio::time::timeout_at(call.deadline, self.ask_again(package, seen, call)).await;
        let held = asked.map_err(|_| Error::Slow(format!("the download document of {package}")))??;
        if held.find(&wanted.digest, call.now).is_none() {
            let rule = call.upstream(&package.provider.host)?.rule(|fresh| fresh.download);
            call.terms.asked_anew.put(package.clone(), (), call.now.after(rule.believed()), call.now);
        }
        Ok(held)
    }

    async fn of_set(
        self: &Arc<Self>,
        wanted: &ArchiveRef,
        held: &HeldSet,
        set: &Arc<ProofSet>,
        file: SetFile,
        call: &Call,
    ) -> Result<Answer<Archive>, Error> {
        let named = set.references(&wanted.package).ok();
        if !named.is_some_and(|named| named.contains(wanted)) {
            return Err(no_such_file(wanted));
        }
        let in_memory = |bytes: &Bytes, digest| {
            let value = Archive::InMemory { bytes: bytes.clone(), digest };
            Ok(Answer { value, outcome: Outcome::Hit, fresh_until: call.now, checked: call.now })
        };
        match file {
            SetFile::Sums => in_memory(&set.sums, set.sums_digest()),
            SetFile::Signature => in_memory(&set.signature, set.signature_digest()),
            SetFile::Archive => self.cold(&wanted.package, &held.kept, set, call).await,
        }
    }

    /// Joins the fill of an archive that is not held, or starts it.
    async fn cold(
        self: &Arc<Self>,
        package: &Package,
        kept: &Arc<KeptSet>,
        set: &Arc<ProofSet>,
        call: &Call,
    ) -> Result<Answer<Archive>, Error> {
        let digest = set.document.shasum;
        // Whoever asks right after a fill landed finds the archive, not another fill.
        if let Some(held) = self.name_entry(package, digest).await?
            && let Opened::Checked(archive) = self.open_held(package, &held, call).await?
        {
            return Ok(Answer { value: archive, outcome: Outcome::Hit, fresh_until: call.now, checked: call.now });
        }
        if self.link() == Link::Offline && !self.holds(digest).await? {
            return Err(self.lacks(package, format!("the archive of {package}"), call).await);
        }
        let _place = self.place(call).ok_or_else(|| nobody_may_wait(&format!("the archive of {package}")))?;
        let progress = self.fill_of(package, kept, set, call)?;
        let (value, outcome) = match self.arrival(package, progress, call).await? {
            Arrival::Kept(archive) => (archive, Outcome::Miss),
            // Nobody waits for its bytes: it was to be kept.
            Arrival::Unkept(_, why) | Arrival::NoPlace(why) if call.part != Part::Request => return Err(why.into()),
            Arrival::Unkept(archive, _) => {
                self.counters.passed_through.inc();
                (archive, Outcome::Passed)
            }
            Arrival::NoPlace(why) => (self.pass_through(package, set, why, call).await?, Outcome::Passed),
        };
        Ok(Answer { value, outcome, fresh_until: call.now, checked: call.now })
    }

    /// Joins the fill of an archive, or starts it.
    ///
    /// # Errors
    /// [`Error::Unattended`] where it would be one too many that its client started and does not wait for.
    pub(super) fn fill_of(
        self: &Arc<Self>,
        package: &Package,
        kept: &Arc<KeptSet>,
        set: &Arc<ProofSet>,
        call: &Call,
    ) -> Result<watch::Receiver<Progress>, Error> {
        let key = FillKey { package: package.clone(), digest: set.document.shasum };
        let may_start = || self.started_fills.may_start(call.client, || format!("the archive of {package}"));
        self.fills.try_join((key, call.came()), may_start, |landing| {
            let (tell, progress) = watch::channel(Progress::Asking);
            let followed = tell.clone();
            let fill =
                Fill::new(Arc::clone(self), package.clone(), Arc::clone(kept), Arc::clone(set), self.inner(call), tell);
            let (mirror, package) = (Arc::clone(self), package.clone());
            let go = || {
                let started = self.started_fills.started(call.client, followed);
                self.tasks.spawn(async move {
                    if let Some(digest) = fill.listed(started).run(landing).await {
                        mirror.complete_hashes_of(package, digest).await;
                    }
                });
            };
            (progress, go)
        })
    }

    /// Waits until there is something to send: proven and kept, or large and under way (promise 3).
    async fn arrival(
        self: &Arc<Self>,
        package: &Package,
        mut progress: watch::Receiver<Progress>,
        call: &Call,
    ) -> Result<Arrival, Error> {
        loop {
            let state = progress.borrow_and_update().clone();
            match state {
                Progress::Asking => {}
                Progress::Streaming { written, length, .. } => {
                    let may_begin = match length {
                        Some(length) => length > SMALL_ARCHIVE_BYTES,
                        None => written > SMALL_ARCHIVE_BYTES && call.takes_unknown_length,
                    };
                    if may_begin {
                        let follow = Follow::new(progress, length);
                        return Ok(Arrival::Kept(Archive::Arriving { follow, length }));
                    }
                }
                Progress::Committed { held, bytes } => {
                    let length = Some(held.size_bytes);
                    return match (self.open_held(package, &held, call).await?, bytes) {
                        (Opened::Checked(archive), _) => Ok(Arrival::Kept(archive)),
                        // Evicted already; the file that it arrived in is still open.
                        (Opened::Missing, Some(_)) => {
                            let follow = Follow::new(progress, length);
                            Ok(Arrival::Kept(Archive::Arriving { follow, length }))
                        }
                        (Opened::Missing | Opened::Damaged, _) => {
                            Err(Error::Interrupted(format!("the archive of {package}")))
                        }
                    };
                }
                Progress::Unkept { size_bytes, why, .. } => {
                    let length = Some(size_bytes);
                    let follow = Follow::new(progress, length);
                    return Ok(Arrival::Unkept(Archive::Arriving { follow, length }, why));
                }
                Progress::NoPlace(why) => return Ok(Arrival::NoPlace(why)),
                Progress::Failed(error) => return Err(error),
            }
            if progress.changed().await.is_err() {
                return Err(Error::Interrupted(format!("the archive of {package}")));
            }
        }
    }

    /// What a name lists of what a URL of ours names.
    pub(super) async fn held(self: &Arc<Self>, wanted: &ArchiveRef) -> Result<Option<HeldArchive>, Error> {
        let wanted = wanted.clone();
        self.on_disk(move |mirror| {
            let name = unless_gone(mirror.catalog.name(&wanted.package))?;
            Ok(name.find(&wanted.digest).filter(|held| held.filename == wanted.filename).cloned())
        })
        .await
    }

    /// What is known of a held archive.
    pub async fn name_entry(self: &Arc<Self>, package: &Package, digest: Digest) -> Result<Option<HeldArchive>, Error> {
        let package = package.clone();
        self.on_disk(move |mirror| Ok(unless_gone(mirror.catalog.name(&package))?.get(&digest).cloned())).await
    }

    /// Notes a use, at most once a minute.
    pub(super) fn used(self: &Arc<Self>, digest: Digest, now: Timestamp) {
        if self.used_lately.get(&digest, now).is_some() {
            return;
        }
        self.used_lately.put(digest, (), now.after(Duration::from_secs(60)), now);
        let mirror = Arc::clone(self);
        self.tasks.spawn_blocking(move || mirror.store.index.archive_used(&digest, now));
    }
}

/// What came of waiting for a fill.
enum Arrival {
    /// It is kept, or will be before its last bytes leave.
    Kept(Archive),
    /// It is proven, and could not be kept.
    Unkept(Archive, StoreError),
    /// The disk would not take it.
    NoPlace(StoreError),
}

fn no_such_file(wanted: &ArchiveRef) -> Error {
    let ArchiveRef { package, digest, filename } = wanted;
    Error::NotFound(format!(
        "{package} has no file {filename} whose SHA-256 begins with {digest}: ask its download document again"
    ))
}
