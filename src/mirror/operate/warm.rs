//! The steps of a warm-up: fetch the version list, the proof set and the archive of a package, and sync them to disk. A
//! warm-up waits where an upstream asks for a delay, and stays within the upstream's rate budget.

use crate::mirror::{Library, Operations, Runtime, VerifiedReader};
use std::sync::Arc;

use url::Url;

use crate::address::{Artifact, Hostname, Package, ProviderAddress};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::archives::Archive;
use crate::mirror::archives::archive_request::ArchiveRequest;
use crate::mirror::archives::tail_stream::FillProgress;
use crate::mirror::archives::verified_open::OpenOutcome;
use crate::mirror::documents::revalidate::Revalidatable;
use crate::mirror::library::proof_set::ProofSet;
use crate::mirror::library::{PackageHashState, StoredArchive};
use crate::mirror::proof_sets;
use crate::mirror::request_context::CallerKind;
use crate::mirror::{Answer, Connectivity, Outcome, RequestContext, Urgency};
use crate::store::{Key, Recorded, StoreError};
use crate::upstream::backoff::BudgetPurpose;
use crate::upstream::breaker::Origin;
use crate::upstream::providers::VersionList;

/// The download document, SHA256SUMS and the signature.
const REQUESTS_FOR_A_SET: u32 = 3;

/// The origin of a stored archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WarmedArchive {
    /// It was already stored.
    AlreadyStored,
    /// It was fetched and verified.
    Fetched,
}

/// A document as an `init` would get it.
#[derive(Debug)]
pub struct WarmedDocument<T> {
    /// The document.
    pub value: T,
    /// A message for people if upstream could not be asked, with the time of the last confirmation. `None` if upstream
    /// has confirmed the document.
    pub unconfirmed: Option<String>,
}

impl Operations {
    /// Fetches the version list of a provider and the discovery document that leads to it. Offline, returns the list
    /// that clients see.
    ///
    /// # Errors
    /// The fetch failed. [`Error::HeldBack`] and [`Error::Spared`] where a later attempt may succeed.
    pub async fn warm_list(
        self: &Arc<Self>,
        address: &ProviderAddress,
        urgency: Urgency,
        now: Timestamp,
    ) -> Result<WarmedDocument<VersionList>, Error> {
        let (subject, host) = (format!("the version list of {address}"), &address.host);
        let call = self.runtime.step_context_for(urgency, now);
        let upstream = call.upstream(host)?;
        let mut origins = vec![Origin::of(&upstream.settings.url)];
        let mut missing = 0;
        for key in [Key::Discovery(host.clone()), Key::ProviderVersions(address.clone())] {
            match self.library.stored_document(&key).await? {
                Some(stored) => origins.extend(stored.value.origins()),
                None => missing += 1,
            }
        }
        self.runtime.charge_job(&subject, host, &origins, missing, &call)?;
        let lookup = async {
            if self.runtime.connectivity() == Connectivity::Online {
                self.documents.discovery(host, &call).await?;
            }
            self.offline.client_versions(address, &call).await
        };
        let list = lookup.await.map_err(|error| or_retry_later(&subject, host, &origins, error, &call))?;
        let unconfirmed = self.runtime.unconfirmed(&subject, host, &origins, &list, &call)?;
        Ok(WarmedDocument { value: list.value, unconfirmed })
    }

    /// Fetches the proof set that an `init` would get for a package.
    ///
    /// # Errors
    /// Like [`Mirror::warm_list`].
    pub async fn warm_set(
        self: &Arc<Self>,
        package: &Package,
        urgency: Urgency,
        now: Timestamp,
    ) -> Result<WarmedDocument<Arc<ProofSet>>, Error> {
        let (subject, host) = (proof_sets::describe_set(package), &package.provider.host);
        let call = self.runtime.step_context_for(urgency, now);
        let mut origins = Vec::new();
        if let Some(list) = self.library.stored_document(&Key::ProviderVersions(package.provider.clone())).await? {
            origins.extend(list.value.origins());
        }
        let stored = self.proof_sets.usable_set(package, &call).await?;
        let missing = if stored.is_some() { 0 } else { REQUESTS_FOR_A_SET };
        self.runtime.charge_job(&subject, host, &origins, missing, &call)?;
        let set = self.proof_sets.proof_set(package, &call).await;
        let set = set.map_err(|error| or_retry_later(&subject, host, &origins, error, &call))?;
        let unconfirmed = self.runtime.unconfirmed(&subject, host, &origins, &set, &call)?;
        Ok(WarmedDocument { value: set.value, unconfirmed })
    }

    /// Returns the size of a set's archive as announced by its document or its server, without downloading it.
    pub async fn announced_size(
        self: &Arc<Self>,
        package: &Package,
        set: &Arc<ProofSet>,
        now: Timestamp,
    ) -> Option<u64> {
        if let Some(size_bytes) = set.document.announced_size(&package.platform) {
            return Some(size_bytes);
        }
        let call = self.runtime.step_context(now);
        let origin = Origin::of(&set.document.archive_url);
        if self.runtime.connectivity() == Connectivity::Offline
            || self.runtime.charge_job("the size of an archive", &package.provider.host, &[origin], 1, &call).is_err()
        {
            return None;
        }
        ArchiveRequest::new(Arc::clone(&self.archives), package.clone(), Arc::clone(set), call).announced_length().await
    }

    /// Ensures that the archive of a set is stored. Meanwhile reports the bytes received and the total. Follows the
    /// fill without reading its bytes.
    ///
    /// # Errors
    /// Like [`Mirror::warm_list`]; also where the disk cannot store the archive.
    pub async fn warm_archive(
        self: &Arc<Self>,
        package: &Package,
        digest: Digest,
        now: Timestamp,
        report: impl Fn(u64, Option<u64>) + Send + Sync,
    ) -> Result<(WarmedArchive, StoredArchive), Error> {
        let subject = format!("the archive of {package}");
        let call = self.runtime.step_context(now);
        if let Some(archive) = self.library.stored_archive(package, digest).await?
            && let OpenOutcome::Checked(Archive::OnDisk { .. } | Archive::InMemory { .. }) =
                self.archives.reader.open_stored(package, &archive, &call).await?
        {
            return Ok((WarmedArchive::AlreadyStored, archive));
        }
        let Some(stored) = self.proof_sets.usable_set(package, &call).await? else {
            return Err(self.library.not_stored_error(&proof_sets::describe_set(package)).await);
        };
        let stored_set = Arc::clone(&stored.stored_set);
        let (set, _) = stored.find(&digest.prefix(), now).ok_or_else(|| Error::Interrupted(subject.clone()))?;
        let origin = Origin::of(&set.document.archive_url);
        if !self.library.has_archive(digest).await? {
            if self.runtime.connectivity() == Connectivity::Offline {
                return Err(self.library.missing_error(package, subject, &call).await);
            }
            self.runtime.charge_job(&subject, &package.provider.host, std::slice::from_ref(&origin), 1, &call)?;
        }
        let mut progress = self.archives.join_fill(package, &stored_set, &set, &call)?;
        loop {
            // The borrowed state may hold the file open, so do not keep it beyond this line.
            let ended = match &*progress.borrow_and_update() {
                FillProgress::Waiting => None,
                FillProgress::Streaming { written, length, .. } => {
                    report(*written, *length);
                    None
                }
                // Without a download, the bytes were already stored under another name.
                FillProgress::Committed { bytes: None, archive } => {
                    Some(Ok((WarmedArchive::AlreadyStored, (**archive).clone())))
                }
                FillProgress::Committed { bytes: Some(_), archive } => {
                    Some(Ok((WarmedArchive::Fetched, (**archive).clone())))
                }
                FillProgress::NotStored { error: reason, .. } | FillProgress::NoSpace(reason) => {
                    Some(Err(reason.clone().into()))
                }
                FillProgress::Failed(error) => Some(Err(error.clone())),
            };
            if let Some(ended) = ended {
                return ended
                    .map_err(|error| or_retry_later(&subject, &package.provider.host, &[origin], error, &call));
            }
            if progress.changed().await.is_err() {
                return Err(Error::Interrupted(subject));
            }
        }
    }
}

impl Library {
    /// Returns the `h1:` that a client computes of a stored zip; `None` if it is not a zip that has one.
    ///
    /// # Errors
    /// The disk failed, or the archive is no longer stored.
    pub async fn package_hash(self: &Arc<Self>, package: &Package, digest: Digest) -> Result<Option<String>, Error> {
        let mut archive = self.stored_archive(package, digest).await?;
        if archive.as_ref().is_some_and(|archive| archive.hashes == PackageHashState::NotYet) {
            self.compute_hashes_queued(package, digest).await?;
            archive = self.stored_archive(package, digest).await?;
        }
        match archive.map(|archive| archive.hashes) {
            Some(PackageHashState::Known { zip, .. }) => Ok(Some(zip)),
            Some(PackageHashState::Impossible { .. }) => Ok(None),
            Some(PackageHashState::NotYet) | None => {
                Err(self.not_stored_error(&format!("the archive of {package}")).await)
            }
        }
    }

    /// Syncs the documents that a warmed package needs, so that they survive a power cut. They were written without a
    /// sync, unlike the archive and its name.
    ///
    /// # Errors
    /// [`Error::NotKept`] where one is not stored, so that an `init` would have to ask upstream.
    pub async fn sync_warmed(self: &Arc<Self>, package: &Package, digest: Digest) -> Result<(), Error> {
        let keys = required_documents(package, self.runtime.connectivity());
        let synced = self.on_disk(move |library| {
            for (key, subject) in keys {
                if !library.store.records.sync(&key)? {
                    return Ok(Some(subject));
                }
            }
            Ok(None)
        });
        match synced.await? {
            Some(subject) => Err(self.not_stored_error(&subject).await),
            None if self.is_installable(package, digest).await? => Ok(()),
            None => Err(self.not_stored_error(&format!("the archive of {package}")).await),
        }
    }
}

impl VerifiedReader {
    /// Checks a stored archive as before an answer. A damaged one is quarantined.
    pub async fn is_sound(
        self: &Arc<Self>,
        artifact: impl Into<Artifact>,
        archive: &StoredArchive,
        now: Timestamp,
    ) -> Result<bool, Error> {
        // Opening a missing archive would take it off its name, which must not happen here.
        if !self.library.has_archive(archive.digest).await? {
            return Ok(false);
        }
        Ok(matches!(
            self.open_stored(artifact, archive, &self.runtime.job_context(now)).await?,
            OpenOutcome::Checked(_)
        ))
    }
}

impl Library {
    /// Returns true if a package can be installed from the store, with this archive.
    pub async fn is_installable(self: &Arc<Self>, package: &Package, digest: Digest) -> Result<bool, Error> {
        let owned_package = package.clone();
        self.on_disk(move |library| {
            for (key, _) in required_documents(&owned_package, library.runtime.connectivity()) {
                if matches!(library.store.records.read(&key)?, Recorded::Absent | Recorded::Damaged) {
                    return Ok(false);
                }
            }
            let Some(set) = library.read_set(&owned_package)? else { return Ok(false) };
            let sets = [Some(&set.stored_set.current), set.fallback.as_ref()];
            let is_proven = sets.into_iter().flatten().any(|set| set.document.shasum == digest);
            Ok(is_proven
                && library.catalog.name(&owned_package)?.get(&digest).is_some()
                && library.store.blobs.is_stored(&digest)?)
        })
        .await
    }

    /// The error for an object that was stored before and is missing now.
    pub async fn not_stored_error(self: &Arc<Self>, subject: &str) -> Error {
        match self.on_disk(|library| library.store.check()).await {
            Err(gone @ Error::Store(StoreError::Gone)) => gone,
            Err(_) | Ok(()) => Error::NotKept(subject.to_owned()),
        }
    }
}

impl Runtime {
    /// Returns a message about an answer that upstream did not confirm.
    ///
    /// # Errors
    /// [`Error::HeldBack`] where upstream asked for a delay: the job tries again after it.
    pub(in crate::mirror) fn unconfirmed<T>(
        &self,
        subject: &str,
        host: &Hostname,
        origins: &[Origin],
        answer: &Answer<T>,
        call: &RequestContext,
    ) -> Result<Option<String>, Error> {
        if answer.outcome != Outcome::Stale {
            return Ok(None);
        }
        if self.connectivity() == Connectivity::Online
            && call.caller != CallerKind::PlanStep
            && let Some(until) = call.config.outbound.retry_after_until(host, origins, call.now)
        {
            return Err(Error::HeldBack { subject: subject.to_owned(), until });
        }
        let since = match answer.checked {
            Timestamp(0) => String::new(),
            checked => format!(", and last confirmed it at {}", checked.date_time()),
        };
        Ok(Some(format!("upstream could not be asked about {subject}{since}: there may be a newer one")))
    }

    /// Checks that a job may fetch something that is not stored, at a cost of `requests`.
    pub(in crate::mirror) fn charge_job(
        &self,
        subject: &str,
        host: &Hostname,
        origins: &[Origin],
        requests: u32,
        call: &RequestContext,
    ) -> Result<(), Error> {
        if requests == 0 || self.connectivity() == Connectivity::Offline {
            return Ok(());
        }
        if let Some(until) = call.config.outbound.retry_after_until(host, origins, call.now) {
            return Err(Error::HeldBack { subject: subject.to_owned(), until });
        }
        let has_room = call.config.outbound.spend(host, BudgetPurpose::Job, requests, call.now);
        if has_room { Ok(()) } else { Err(Error::Spared(subject.to_owned())) }
    }
}

/// The documents that a package needs besides its archive and name, each with a description. Offline, version lists are
/// built from the store and no discovery document is used, so only the proof set is needed.
fn required_documents(package: &Package, link: Connectivity) -> Vec<(Key, String)> {
    let provider = &package.provider;
    let mut keys = vec![(Key::ProofSet(package.clone()), proof_sets::describe_set(package))];
    if link == Connectivity::Online {
        keys.push((Key::Discovery(provider.host.clone()), format!("the discovery document of {}", provider.host)));
        keys.push((Key::ProviderVersions(provider.clone()), format!("the version list of {provider}")));
    }
    keys
}

/// Returns the error of a fetch, or the time to try again if upstream asked for a delay.
pub(in crate::mirror) fn or_retry_later(
    subject: &str,
    host: &Hostname,
    origins: &[Origin],
    error: Error,
    call: &RequestContext,
) -> Error {
    let Error::Upstream(failed) = &error else { return error };
    // A redirect may have led to an origin that is not in the list.
    let last = Url::parse(&failed.origin).ok().map(|url| Origin::of(&url));
    let origins: Vec<Origin> = origins.iter().cloned().chain(last).collect();
    match call.config.outbound.retry_after_until(host, &origins, call.now) {
        Some(until) => Error::HeldBack { subject: subject.to_owned(), until },
        None => error,
    }
}
