//! Pull-through for archives and the two files beside them: held and checked, or arriving and followed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::call::CallerKind;
use super::fill::{Fill, FillKey};
use super::follow::{Follow, Progress};
use super::freshness::Age;
use super::library::StoredArchive;
use super::opened::Opened;
use super::passing::Passing;
use super::proof_set::{HeldSet, KeptSet, ProofSet, SetFile};
use super::pull::nobody_may_wait;
use super::{Answer, Mirror, Outcome, RequestContext, SMALL_ARCHIVE_BYTES, unless_gone};
use crate::address::{FileName, Package, Platform, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::digest::{Digest, DigestPrefix};
use crate::error::Error;
use crate::store::{Blob, Key, StoreError};
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
        /// When it was first stored; nothing is known of that for what is part of a proof set.
        stored: Option<Timestamp>,
    },
    /// Held and checked, read as it is sent.
    Held {
        /// Its bytes.
        blob: Blob,
        /// Its SHA-256.
        digest: Digest,
        /// When it was first stored.
        stored: Timestamp,
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

/// For how many platforms of a version upstream is asked for a file of its proof sets. All platforms of nearly every
/// provider share one SHA256SUMS.
const MOST_ASKED: usize = 4;

/// SHA256SUMS of a version or its signature, as our URLs name it: the same for every platform, because clients such as
/// Renovate count one list of hashes for each URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProofFileRef {
    /// The provider.
    pub provider: ProviderAddress,
    /// Its version.
    pub version: Version,
    /// The first digits of the file's own SHA-256.
    pub digest: DigestPrefix,
    /// Which of the two files.
    pub file: ProofFile,
}

/// A file of a proof set that proves its archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProofFile {
    /// SHA256SUMS.
    Sums,
    /// Its signature.
    Signature,
}

impl ProofFile {
    /// The file's name in our URLs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sums => "SHA256SUMS",
            Self::Signature => "SHA256SUMS.sig",
        }
    }

    /// The file with this name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Sums, Self::Signature].into_iter().find(|file| file.name() == name)
    }
}

/// What our URLs call the files of a proof set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct References {
    /// The archive.
    pub archive: ArchiveRef,
    /// SHA256SUMS.
    pub sums: ProofFileRef,
    /// The signature.
    pub signature: ProofFileRef,
}

impl ProofSet {
    /// What our URLs call the files of this set.
    pub fn references(&self, package: &Package) -> References {
        let Package { provider, version, .. } = package;
        let proof = |digest: Digest, file| ProofFileRef {
            provider: provider.clone(),
            version: version.clone(),
            digest: digest.prefix(),
            file,
        };
        let filename = self.document.filename.clone();
        References {
            archive: ArchiveRef { package: package.clone(), digest: self.document.shasum.prefix(), filename },
            sums: proof(self.sums_digest(), ProofFile::Sums),
            signature: proof(self.signature_digest(), ProofFile::Signature),
        }
    }

    fn proof_file(&self, file: ProofFile) -> Archive {
        let (bytes, digest) = match file {
            ProofFile::Sums => (&self.sums, self.sums_digest()),
            ProofFile::Signature => (&self.signature, self.signature_digest()),
        };
        Archive::InMemory { bytes: bytes.clone(), digest, stored: None }
    }
}

impl Mirror {
    /// The file that one of our URLs names.
    ///
    /// # Errors
    /// [`Error::NotFound`] where no kept set or name lists its digest, also after asking upstream anew.
    pub async fn archive(
        self: &Arc<Self>,
        wanted: &ArchiveRef,
        call: &RequestContext,
    ) -> Result<Answer<Archive>, Error> {
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
        let of = FileOf { package, digest: &wanted.digest, name: wanted.filename.as_str() };
        let held = self.set_that_lists(of, held.map(|held| held.kept.age), call).await?;
        match held.find(&wanted.digest, call.now) {
            Some((set, file)) => self.of_set(wanted, &held, &set, file, call).await,
            None => Err(of.is_absent()),
        }
    }

    /// SHA256SUMS or a signature: of any stored proof set of the version, current or previous, that holds the digest.
    /// Where none does, upstream is asked again for the sets that it may be of.
    ///
    /// # Errors
    /// [`Error::NotFound`] where no set holds the digest, also after asking upstream.
    pub async fn proof_file(
        self: &Arc<Self>,
        wanted: &ProofFileRef,
        call: &RequestContext,
    ) -> Result<Answer<Archive>, Error> {
        let ProofFileRef { provider, version, digest, file } = wanted;
        let stored = self.platforms_with_sets(provider, version).await?;
        let package = |platform| Package { provider: provider.clone(), version: version.clone(), platform };
        for platform in &stored {
            let held = self.held_set(&package(platform.clone()), call).await?;
            if let Some(set) = held.and_then(|held| held.with_proof_file(*file, digest, call.now)) {
                let fresh_until = call.now.after(COPY_BELIEVED);
                return Ok(Answer {
                    value: set.proof_file(*file),
                    outcome: Outcome::Hit,
                    fresh_until,
                    checked: call.now,
                });
            }
        }
        let mut asked = None;
        for platform in self.likely_platforms(provider, version, stored).await? {
            let package = package(platform);
            let of = FileOf { package: &package, digest, name: file.name() };
            let seen = self.held_set(&package, call).await?.map(|held| held.kept.age);
            match self.set_that_lists(of, seen, call).await {
                Ok(held) => match held.with_proof_file(*file, digest, call.now) {
                    Some(set) => {
                        let (value, fresh_until) = (set.proof_file(*file), call.now);
                        return Ok(Answer { value, outcome: Outcome::Miss, fresh_until, checked: call.now });
                    }
                    None => asked = asked.or(Some(of.is_absent())),
                },
                // What is absent for one platform may be there for another; any other failure hides whether it is.
                Err(Error::NotFound(why)) => asked = asked.or(Some(Error::NotFound(why))),
                Err(error) => return Err(error),
            }
        }
        let what = format!("{} of {provider} {version}", file.name());
        Err(asked.unwrap_or_else(|| Error::NotFound(format!("{what}: no platform of that version is known"))))
    }

    /// The platforms for which upstream is asked again when no stored set holds a file: those with a set, then those that
    /// the cached version list names, the most used first.
    async fn likely_platforms(
        self: &Arc<Self>,
        provider: &ProviderAddress,
        version: &Version,
        stored: Vec<Platform>,
    ) -> Result<Vec<Platform>, Error> {
        let mut likely = stored;
        let cached = self.held_document(&Key::ProviderVersions(provider.clone())).await?;
        let list = match &cached {
            Some(cached) => cached.value.versions().await.ok(),
            None => None,
        };
        let listed = list.as_ref().and_then(|list| list.get(version)).map(|listed| &listed.platforms[..]);
        let names_none = listed.is_none_or(<[_]>::is_empty);
        likely.extend(Platform::common().filter(|common| names_none || listed.is_some_and(|all| all.contains(common))));
        likely.extend(listed.unwrap_or_default().iter().cloned());
        let mut seen = HashSet::new();
        likely.retain(|platform| seen.insert(platform.clone()));
        likely.truncate(MOST_ASKED);
        Ok(likely)
    }

    /// Asks for the set of an archive URL that nothing kept lists; where it does not list it either, not
    /// again for a while.
    async fn set_that_lists(
        self: &Arc<Self>,
        wanted: FileOf<'_>,
        seen: Option<Age>,
        call: &RequestContext,
    ) -> Result<HeldSet, Error> {
        let package = wanted.package;
        if call.terms.asked_anew.get(package, call.now).is_some() {
            return Err(wanted.is_absent());
        }
        if self.link() == Link::Offline {
            return Err(self.missing_error(package, format!("{} of {package}", wanted.name), call).await);
        }
        let _place = self.place(call).ok_or_else(|| nobody_may_wait(&format!("the download document of {package}")))?;
        let asked = tokio::time::timeout_at(call.deadline, self.ask_again(package, seen, call)).await;
        let held = asked.map_err(|_| Error::Slow(format!("the download document of {package}")))??;
        if held.find(wanted.digest, call.now).is_none() {
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
        call: &RequestContext,
    ) -> Result<Answer<Archive>, Error> {
        let name = wanted.filename.as_str();
        let proof = |file: ProofFile| {
            let value = set.proof_file(file);
            Answer { value, outcome: Outcome::Hit, fresh_until: call.now, checked: call.now }
        };
        match file {
            SetFile::Archive if set.document.filename == wanted.filename => {
                self.cold(&wanted.package, &held.kept, set, call).await
            }
            // URLs of before named the platform with these, too.
            SetFile::Proof(file) if file.name() == name => Ok(proof(file)),
            SetFile::Archive | SetFile::Proof(_) => {
                Err(FileOf { package: &wanted.package, digest: &wanted.digest, name }.is_absent())
            }
        }
    }

    /// Joins the fill of an archive that is not held, or starts it.
    async fn cold(
        self: &Arc<Self>,
        package: &Package,
        kept: &Arc<KeptSet>,
        set: &Arc<ProofSet>,
        call: &RequestContext,
    ) -> Result<Answer<Archive>, Error> {
        let digest = set.document.shasum;
        // Whoever asks right after a fill landed finds the archive, not another fill.
        if let Some(held) = self.name_entry(package, digest).await?
            && let Opened::Checked(archive) = self.open_held(package, &held, call).await?
        {
            return Ok(Answer { value: archive, outcome: Outcome::Hit, fresh_until: call.now, checked: call.now });
        }
        if self.link() == Link::Offline && !self.holds(digest).await? {
            return Err(self.missing_error(package, format!("the archive of {package}"), call).await);
        }
        let _place = self.place(call).ok_or_else(|| nobody_may_wait(&format!("the archive of {package}")))?;
        let progress = self.fill_of(package, kept, set, call)?;
        let (value, outcome) = match self.arrival(package, progress, call).await? {
            Arrival::Kept(archive) => (archive, Outcome::Miss),
            // Nobody waits for its bytes: it was to be kept.
            Arrival::Unkept(_, why) | Arrival::NoPlace(why) if call.part != CallerKind::Request => {
                return Err(why.into());
            }
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
        call: &RequestContext,
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
        call: &RequestContext,
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
    pub(super) async fn held(self: &Arc<Self>, wanted: &ArchiveRef) -> Result<Option<StoredArchive>, Error> {
        let wanted = wanted.clone();
        self.on_disk(move |mirror| {
            let name = unless_gone(mirror.catalog.name(&wanted.package))?;
            Ok(name.find(&wanted.digest).filter(|held| held.filename == wanted.filename).cloned())
        })
        .await
    }

    /// What is known of a held archive.
    pub async fn name_entry(
        self: &Arc<Self>,
        package: &Package,
        digest: Digest,
    ) -> Result<Option<StoredArchive>, Error> {
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

/// A file of a package's proof set.
#[derive(Debug, Clone, Copy)]
struct FileOf<'a> {
    package: &'a Package,
    digest: &'a DigestPrefix,
    name: &'a str,
}

impl FileOf<'_> {
    fn is_absent(&self) -> Error {
        let Self { package, digest, name } = self;
        Error::NotFound(format!(
            "{package} has no file {name} whose SHA-256 begins with {digest}: ask its download document again"
        ))
    }
}
