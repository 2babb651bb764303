//! The steps of a warm-up: fetch the version list, the proof set and the archive of a package, and sync them to disk. A
//! warm-up waits where an upstream asks for a delay, and stays within the upstream's rate budget.

use std::sync::Arc;

use crate::address::{Address, Artifact, ModulePackage, Package};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::archives::archive_request::ArchiveRequest;
use crate::mirror::archives::download::until_stored;
use crate::mirror::documents::module_location::location_label;
use crate::mirror::freshness::Revalidatable;
use crate::mirror::library::StoredArchive;
use crate::mirror::library::proof_set::ProofSet;
use crate::mirror::request_context::JobRequest;
use crate::mirror::request_context::WarmedDocument;
use crate::mirror::{ClientList, Connectivity, Operations, RequestContext, Urgency, VerifiedReader, proof_sets};
use crate::store::Key;
use crate::upstream::backoff::Origin;
use crate::upstream::error::UpstreamError;
use crate::upstream::source::PackageSource;

/// The origin of a stored archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WarmedArchive {
    /// It was already stored.
    AlreadyStored,
    /// It was fetched and verified.
    Fetched,
}

impl Operations {
    /// Fetches the version list of a provider or a module, and the discovery document that leads to it. Offline, returns
    /// the list that clients see.
    ///
    /// # Errors
    /// The fetch failed. [`Error::HeldBack`] and [`Error::RevalidationSkipped`] where a later attempt may succeed.
    pub async fn warm_list(
        &self,
        address: &Address,
        call: &RequestContext,
    ) -> Result<WarmedDocument<ClientList>, Error> {
        call.access().permit_any(address)?;
        let (subject, host) = (format!("the version list of {address}"), address.host());
        let upstream = call.upstream(host)?;
        let mut origins = vec![Origin::of(&upstream.settings.url)];
        let mut missing = 0;
        for key in [Key::discovery(host), Key::version_list(call.config.canonical(address))] {
            match self.library.stored_document(&key).await? {
                Some(stored) => origins.extend(stored.value.origins()),
                None => missing += 1,
            }
        }
        let request = JobRequest { runtime: &self.runtime, subject: &subject, host, origins: &origins, call };
        request.charge(missing)?;
        let lookup = async {
            if self.runtime.connectivity() == Connectivity::Online {
                self.documents.get(host, call).await?;
            }
            self.offline.client_versions(address, call).await
        };
        request.document(lookup.await)
    }

    /// Fetches the proof set that an `init` would get for a package.
    ///
    /// # Errors
    /// Like [`Self::warm_list`].
    pub async fn warm_set(
        &self,
        package: &Package,
        call: &RequestContext,
    ) -> Result<WarmedDocument<Arc<ProofSet>>, Error> {
        let (subject, host) = (proof_sets::describe_set(package), &package.provider.host);
        // Before the upstream is charged for it.
        self.documents.permit(&package.provider, &package.version, call).await?;
        let origins = self.origins_of_list(Key::version_list(&package.provider)).await?;
        let request = JobRequest { runtime: &self.runtime, subject: &subject, host, origins: &origins, call };
        let stored = self.proof_sets.usable_set(package, call).await?;
        request.charge(if stored.is_some() { 0 } else { proof_sets::REQUESTS_PER_SET })?;
        request.document(self.proof_sets.proof_set(package, call).await)
    }

    /// Returns the size of a set's archive as announced by its document or its server, without downloading it.
    pub async fn announced_size(&self, package: &Package, set: &Arc<ProofSet>, now: Timestamp) -> Option<u64> {
        if let Some(size_bytes) = set.document.announced_size(&package.platform) {
            return Some(size_bytes);
        }
        if self.runtime.connectivity() == Connectivity::Offline {
            return None;
        }
        let call = self.runtime.step_context(Urgency::Job, now);
        let (host, origins) = (&package.provider.host, [Origin::of(&set.document.archive_url)]);
        let subject = "the size of an archive";
        JobRequest { runtime: &self.runtime, subject, host, origins: &origins, call: &call }.charge(1).ok()?;
        let request = ArchiveRequest::new(Arc::clone(&self.archives), package.clone(), Arc::clone(set), call);
        request.file.announced_length().await
    }

    /// Ensures that the archive of a set is stored. Meanwhile reports the bytes received and the total. Follows the
    /// fill without reading its bytes.
    ///
    /// # Errors
    /// Like [`Self::warm_list`]; also where the disk cannot store the archive.
    pub async fn warm_archive(
        &self,
        package: &Package,
        digest: Digest,
        now: Timestamp,
        report: impl Fn(u64, Option<u64>) + Send + Sync,
    ) -> Result<(WarmedArchive, StoredArchive), Error> {
        let subject = format!("the archive of {package}");
        let call = self.runtime.step_context(Urgency::Job, now);
        self.documents.permit(&package.provider, &package.version, &call).await?;
        if let Some(archive) = self.library.stored_archive(package, digest).await? {
            if self.archives.reader.open_stored(package, &archive, &call).await?.is_ok() {
                return Ok((WarmedArchive::AlreadyStored, archive));
            }
            // It was found without a question to the others, and upstream may be asked now.
            self.library.refresh(Key::Name(package.into()).group()).await?;
        }
        let Some(stored) = self.proof_sets.usable_set(package, &call).await? else {
            return Err(self.library.not_stored_error(&proof_sets::describe_set(package)).await);
        };
        let stored_set = Arc::clone(&stored.stored_set);
        let (set, _) = stored.find(&digest.prefix(), now).ok_or_else(|| Error::Interrupted(subject.clone()))?;
        let (host, origins) = (&package.provider.host, [Origin::of(&set.document.archive_url)]);
        let request = JobRequest { runtime: &self.runtime, subject: &subject, host, origins: &origins, call: &call };
        // An archive at hand that is not here could not be had.
        if !self.library.file_is_here(digest).await? {
            if self.runtime.connectivity() == Connectivity::Offline {
                return Err(self.library.missing_error(package, subject, &call).await);
            }
            request.charge(1)?;
        }
        let progress = self.archives.join_fill(package, &stored_set, &set, &call)?;
        let (archive, is_new) =
            until_stored(progress, &subject, report).await.map_err(|error| request.or_retry_later(error))?;
        Ok((if is_new { WarmedArchive::Fetched } else { WarmedArchive::AlreadyStored }, archive))
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
        // Opening a missing archive counts as finding it missing, which must not happen here. What only the bucket has is checked when it
        // comes.
        if !self.library.file_is_here(archive.digest).await? {
            return self.library.file_is_at_hand(archive.digest).await;
        }
        let opened = self.open_stored(artifact, archive, &self.runtime.job_context(now)).await?;
        Ok(opened.is_ok())
    }
}

impl Operations {
    /// Warms the location and the archive of a version.
    ///
    /// # Errors
    /// Those of [`warm_list`](Self::warm_list), and a source that only clients can fetch.
    pub async fn warm_module(
        &self,
        package: &ModulePackage,
        call: &RequestContext,
    ) -> Result<WarmedDocument<(WarmedArchive, StoredArchive)>, Error> {
        let WarmedDocument { value, unconfirmed } = self.warmed_module(package, call).await?;
        if let Some(stored_archive) = value {
            return Ok(WarmedDocument { value: (WarmedArchive::AlreadyStored, stored_archive), unconfirmed });
        }
        let (subject, host) = (format!("the archive of {package}"), &package.module.host);
        let origins = self.origins_of_list(Key::version_list(&call.config.key_of(&package.module))).await?;
        let request = JobRequest { runtime: &self.runtime, subject: &subject, host, origins: &origins, call };
        request.charge(1)?;
        let filled = self.modules.module_fill(package, call).await;
        let stored_archive = filled.map_err(|error| request.or_retry_later(error))?;
        Ok(WarmedDocument { value: (WarmedArchive::Fetched, stored_archive), unconfirmed })
    }

    /// The stored archive of a version, after its location is fetched or revalidated. `None` if the archive is to be
    /// fetched.
    ///
    /// # Errors
    /// Those of [`warm_module`](Self::warm_module).
    pub async fn warmed_module(
        &self,
        package: &ModulePackage,
        call: &RequestContext,
    ) -> Result<WarmedDocument<Option<StoredArchive>>, Error> {
        let (subject, host) = (location_label(package), &package.module.host);
        self.documents.permit(&package.module, &package.version, call).await?;
        let key = call.config.key_of_package(package);
        if self.runtime.connectivity() == Connectivity::Offline
            && let Some(archive) = self.library.stored_module(&key).await?
        {
            return Ok(WarmedDocument { value: Some(archive), unconfirmed: None });
        }
        let origins = self.origins_of_list(Key::version_list(&key.module)).await?;
        let request = JobRequest { runtime: &self.runtime, subject: &subject, host, origins: &origins, call };
        request.charge(self.library.stored_document(&Key::location(&key)).await?.is_none().into())?;
        let WarmedDocument { value, unconfirmed } = request.document(self.documents.get(package, call).await)?;
        let location = value.as_location(package)?;
        if let Some(archive) = self.library.stored_module(&key).await? {
            return Ok(WarmedDocument { value: Some(archive), unconfirmed });
        }
        if let PackageSource::Unsupported(source) = &location.parsed.source {
            let reason = format!("names {}, which larder cannot fetch; clients fetch it directly", source.describe());
            return Err(UpstreamError::unusable(subject, host, reason).into());
        }
        if self.runtime.connectivity() == Connectivity::Offline {
            return Err(self.library.missing_error(&key, format!("the archive of {package}"), call).await);
        }
        Ok(WarmedDocument { value: None, unconfirmed })
    }

    /// The origins that a version list was fetched from.
    async fn origins_of_list(&self, list: Key) -> Result<Vec<Origin>, Error> {
        let list = self.library.stored_document(&list).await?;
        Ok(list.map(|list| list.value.origins()).unwrap_or_default())
    }
}
