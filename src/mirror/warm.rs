//! What a warm-up asks of the mirror, step by step: the list, the proof set and the archive of a package, held as an
//! `init` will ask for them, and on the disk before it is told. A request that nobody waits for: it asks no upstream
//! that wants to be left alone, and no more often than its budget allows.

use std::sync::Arc;

use url::Url;

use super::archives::Archive;
use super::asking::Asking;
use super::call::CallerKind;
use super::follow::Progress;
use super::library::{PackageHashState, StoredArchive};
use super::opened::Opened;
use super::proof_set::ProofSet;
use super::pull::AskedAgain;
use super::{Answer, Link, Mirror, Outcome, RequestContext, Urgency, sets};
use crate::address::{Artifact, Hostname, Package, ProviderAddress};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::store::{Key, Recorded, StoreError};
use crate::upstream::breaker::Origin;
use crate::upstream::providers::VersionList;
use crate::upstream::restraint::Spends;

/// The document, its sums and its signature.
const REQUESTS_FOR_A_SET: u32 = 3;

/// How an archive came to be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// It was held already.
    Held,
    /// It was fetched and proven.
    Fetched,
}

/// A document as an `init` would be given it, and what is to be known of it.
#[derive(Debug)]
pub struct Resolved<T> {
    /// What it says.
    pub value: T,
    /// Where upstream could not be asked about it: since when it has been held as it is. `None` where upstream has
    /// confirmed it.
    pub unconfirmed: Option<String>,
}

impl Mirror {
    /// The version list of a provider, held with the discovery document that leads to it; while sealed, what clients are
    /// shown of it.
    ///
    /// # Errors
    /// Why it cannot be had; [`Error::HeldBack`] and [`Error::Spared`] where it may be asked for later.
    pub async fn warm_list(
        self: &Arc<Self>,
        address: &ProviderAddress,
        haste: Urgency,
        now: Timestamp,
    ) -> Result<Resolved<VersionList>, Error> {
        let (what, host) = (format!("the version list of {address}"), &address.host);
        let call = self.step_in(haste, now);
        let upstream = call.upstream(host)?;
        let mut origins = vec![Origin::of(&upstream.settings.url)];
        let mut missing = 0;
        for key in [Key::Discovery(host.clone()), Key::ProviderVersions(address.clone())] {
            match self.held_document(&key).await? {
                Some(held) => origins.extend(held.value.origins()),
                None => missing += 1,
            }
        }
        self.may_fetch(&what, host, &origins, missing, &call)?;
        let asked = async {
            if self.link() == Link::Online {
                self.discovery(host, &call).await?;
            }
            self.client_versions(address, &call).await
        };
        let list = asked.await.map_err(|error| or_held_back(&what, host, &origins, error, &call))?;
        let unconfirmed = self.unconfirmed(&what, host, &origins, &list, &call)?;
        Ok(Resolved { value: list.value, unconfirmed })
    }

    /// The proof set that an `init` would be given for a package.
    ///
    /// # Errors
    /// As for the list.
    pub async fn warm_set(
        self: &Arc<Self>,
        package: &Package,
        haste: Urgency,
        now: Timestamp,
    ) -> Result<Resolved<Arc<ProofSet>>, Error> {
        let (what, host) = (sets::what(package), &package.provider.host);
        let call = self.step_in(haste, now);
        let mut origins = Vec::new();
        if let Some(list) = self.held_document(&Key::ProviderVersions(package.provider.clone())).await? {
            origins.extend(list.value.origins());
        }
        let held = self.held_set(package, &call).await?;
        let missing = if held.is_some() { 0 } else { REQUESTS_FOR_A_SET };
        self.may_fetch(&what, host, &origins, missing, &call)?;
        let set = self.proof_set(package, &call).await;
        let set = set.map_err(|error| or_held_back(&what, host, &origins, error, &call))?;
        let unconfirmed = self.unconfirmed(&what, host, &origins, &set, &call)?;
        Ok(Resolved { value: set.value, unconfirmed })
    }

    /// How large the archive of a set is, as far as its document or its server tells without sending it.
    pub async fn announced_size(
        self: &Arc<Self>,
        package: &Package,
        set: &Arc<ProofSet>,
        now: Timestamp,
    ) -> Option<u64> {
        if let Some(size_bytes) = set.document.announced_size(&package.platform) {
            return Some(size_bytes);
        }
        let call = self.step(now);
        let origin = Origin::of(&set.document.archive_url);
        if self.link() == Link::Offline
            || self.may_fetch("the size of an archive", &package.provider.host, &[origin], 1, &call).is_err()
        {
            return None;
        }
        Asking::new(Arc::clone(self), package.clone(), Arc::clone(set), call).announced_length().await
    }

    /// Sees to it that the archive of a set is held, and tells while it arrives how many bytes of how many are here.
    /// Follows the fill as it is, and takes no byte of it.
    ///
    /// # Errors
    /// As for the list, and where the disk would not keep it.
    pub async fn warm_archive(
        self: &Arc<Self>,
        package: &Package,
        digest: Digest,
        now: Timestamp,
        tell: impl Fn(u64, Option<u64>) + Send + Sync,
    ) -> Result<(Came, StoredArchive), Error> {
        let what = format!("the archive of {package}");
        let call = self.step(now);
        if let Some(held) = self.name_entry(package, digest).await?
            && let Opened::Checked(Archive::Held { .. } | Archive::InMemory { .. }) =
                self.open_held(package, &held, &call).await?
        {
            return Ok((Came::Held, held));
        }
        let Some(held) = self.held_set(package, &call).await? else {
            return Err(self.not_kept(&sets::what(package)).await);
        };
        let kept = Arc::clone(&held.kept);
        let (set, _) = held.find(&digest.prefix(), now).ok_or_else(|| Error::Interrupted(what.clone()))?;
        let origin = Origin::of(&set.document.archive_url);
        if !self.holds(digest).await? {
            if self.link() == Link::Offline {
                return Err(self.missing_error(package, what, &call).await);
            }
            self.may_fetch(&what, &package.provider.host, std::slice::from_ref(&origin), 1, &call)?;
        }
        let mut progress = self.fill_of(package, &kept, &set, &call)?;
        loop {
            // Nothing of it is kept beyond this line: it may hold the file open.
            let ended = match &*progress.borrow_and_update() {
                Progress::Asking => None,
                Progress::Streaming { written, length, .. } => {
                    tell(*written, *length);
                    None
                }
                // Where nothing arrived, its bytes were held under another name.
                Progress::Committed { bytes: None, held } => Some(Ok((Came::Held, (**held).clone()))),
                Progress::Committed { bytes: Some(_), held } => Some(Ok((Came::Fetched, (**held).clone()))),
                Progress::Unkept { why, .. } | Progress::NoPlace(why) => Some(Err(why.clone().into())),
                Progress::Failed(error) => Some(Err(error.clone())),
            };
            if let Some(ended) = ended {
                return ended.map_err(|error| or_held_back(&what, &package.provider.host, &[origin], error, &call));
            }
            if progress.changed().await.is_err() {
                return Err(Error::Interrupted(what));
            }
        }
    }

    /// The `h1:` that a client computes of a held archive as it arrives; `None` where it is no zip that has one.
    ///
    /// # Errors
    /// The disk failed, or it is not held any more.
    pub async fn package_hash(self: &Arc<Self>, package: &Package, digest: Digest) -> Result<Option<String>, Error> {
        let mut held = self.name_entry(package, digest).await?;
        if held.as_ref().is_some_and(|held| held.hashes == PackageHashState::NotYet) {
            self.compute_hashes_in_turn(package, digest).await?;
            held = self.name_entry(package, digest).await?;
        }
        match held.map(|held| held.hashes) {
            Some(PackageHashState::Known { zip, .. }) => Ok(Some(zip)),
            Some(PackageHashState::Impossible { .. }) => Ok(None),
            Some(PackageHashState::NotYet) | None => Err(self.not_kept(&format!("the archive of {package}")).await),
        }
    }

    /// Makes everything that was warmed for a package survive a power cut: what proves it and leads to it was put
    /// lazily, and its archive and its name were not.
    ///
    /// # Errors
    /// [`Error::NotKept`] where some of it is not held, so that an `init` would have to ask upstream.
    pub async fn settle(self: &Arc<Self>, package: &Package, digest: Digest) -> Result<(), Error> {
        let keys = leading_to(package, self.link());
        let synced = self.on_disk(move |mirror| {
            for (key, what) in keys {
                if !mirror.store.records.sync(&key)? {
                    return Ok(Some(what));
                }
            }
            Ok(None)
        });
        match synced.await? {
            Some(what) => Err(self.not_kept(&what).await),
            None if self.still_holds(package, digest).await? => Ok(()),
            None => Err(self.not_kept(&format!("the archive of {package}")).await),
        }
    }

    /// Whether a held archive is what was proven: looked at as before an answer, so a damaged one is set aside.
    pub async fn is_sound(
        self: &Arc<Self>,
        of: impl Into<Artifact>,
        held: &StoredArchive,
        now: Timestamp,
    ) -> Result<bool, Error> {
        // A name keeps what is not there just now.
        if !self.holds(held.digest).await? {
            return Ok(false);
        }
        Ok(matches!(self.open_held(of, held, &self.job(now)).await?, Opened::Checked(_)))
    }

    /// Whether a package can be installed from what is held, with this archive.
    pub async fn still_holds(self: &Arc<Self>, package: &Package, digest: Digest) -> Result<bool, Error> {
        let of = package.clone();
        self.on_disk(move |mirror| {
            for (key, _) in leading_to(&of, mirror.link()) {
                if matches!(mirror.store.records.look(&key)?, Recorded::Absent | Recorded::Damaged) {
                    return Ok(false);
                }
            }
            let Some(set) = mirror.read_set(&of)? else { return Ok(false) };
            let sets = [Some(&set.kept.current), set.fallback.as_ref()];
            let is_proven = sets.into_iter().flatten().any(|set| set.document.shasum == digest);
            Ok(is_proven && mirror.catalog.name(&of)?.get(&digest).is_some() && mirror.store.blobs.holds(&digest)?)
        })
        .await
    }

    /// What to say of something that is not there although it was had.
    pub async fn not_kept(self: &Arc<Self>, what: &str) -> Error {
        match self.on_disk(|mirror| mirror.store.check()).await {
            Err(gone @ Error::Store(StoreError::Gone)) => gone,
            Err(_) | Ok(()) => Error::NotKept(what.to_owned()),
        }
    }

    /// What is to be known of an answer that upstream did not confirm.
    ///
    /// # Errors
    /// [`Error::HeldBack`] where upstream has only asked for time: it will be asked then.
    pub(super) fn unconfirmed<T>(
        &self,
        what: &str,
        host: &Hostname,
        origins: &[Origin],
        answer: &Answer<T>,
        call: &RequestContext,
    ) -> Result<Option<String>, Error> {
        if answer.outcome != Outcome::Stale {
            return Ok(None);
        }
        if self.link() == Link::Online
            && call.part != CallerKind::Look
            && let Some(until) = call.terms.outbound.asked_to_wait(host, origins, call.now)
        {
            return Err(Error::HeldBack { what: what.to_owned(), until });
        }
        let since = match answer.checked {
            Timestamp(0) => String::new(),
            checked => format!(", and last confirmed it at {}", checked.date_time()),
        };
        Ok(Some(format!("upstream could not be asked about {what}{since}: there may be a newer one")))
    }

    /// Leave for a job to fetch what is not held; `requests` are what that takes.
    pub(super) fn may_fetch(
        &self,
        what: &str,
        of: &Hostname,
        origins: &[Origin],
        requests: u32,
        call: &RequestContext,
    ) -> Result<(), Error> {
        if requests == 0 || self.link() == Link::Offline {
            return Ok(());
        }
        if let Some(until) = call.terms.outbound.asked_to_wait(of, origins, call.now) {
            return Err(Error::HeldBack { what: what.to_owned(), until });
        }
        let has_room = call.terms.outbound.spend(of, Spends::Job, requests, call.now);
        if has_room { Ok(()) } else { Err(Error::Spared(what.to_owned())) }
    }
}

/// What a package cannot be installed without, besides its archive and its name; and what each is called. A sealed
/// mirror makes its lists of what it holds, and asks for nothing by a discovery document.
fn leading_to(package: &Package, link: Link) -> Vec<(Key, String)> {
    let provider = &package.provider;
    let mut keys = vec![(Key::ProofSet(package.clone()), sets::what(package))];
    if link == Link::Online {
        keys.push((Key::Discovery(provider.host.clone()), format!("the discovery document of {}", provider.host)));
        keys.push((Key::ProviderVersions(provider.clone()), format!("the version list of {provider}")));
    }
    keys
}

/// What a fetch failed with, or when to try again where the upstream said so.
pub(super) fn or_held_back(
    what: &str,
    host: &Hostname,
    origins: &[Origin],
    error: Error,
    call: &RequestContext,
) -> Error {
    let Error::Upstream(failed) = &error else { return error };
    // It may be none that is known of: where a redirect led.
    let last = Url::parse(&failed.at).ok().map(|at| Origin::of(&at));
    let origins: Vec<Origin> = origins.iter().cloned().chain(last).collect();
    match call.terms.outbound.asked_to_wait(host, &origins, call.now) {
        Some(until) => Error::HeldBack { what: what.to_owned(), until },
        None => error,
    }
}
