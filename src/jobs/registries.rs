//! Answers the registry queries of `requirements::resolve` from the mirror: version lists as clients see them, and the
//! files of modules, which are fetched and stored if necessary. Says whether what is missing can still become available.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::Read;
use std::sync::Arc;

use flate2::read::GzDecoder;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::job_limits::RetryPolicy;
use crate::address::{ModuleAddress, ModulePackage, ProviderAddress, Version};
use crate::clock::Clock;
use crate::error::Error;
use crate::mirror::{Archive, Mirror, ModuleArchiveRef, WarmedDocument};
use crate::requirements::{Files, ModuleFiles, Registries, UnlistedVersions};
use crate::upstream::error::Fault;

/// A mirror's answers for one job or plan.
pub(super) struct MirrorRegistries<'a> {
    mirror: &'a Arc<Mirror>,
    clock: &'a Clock,
    retry_policy: &'a RetryPolicy<'a>,
    findings: Mutex<ResolveFindings>,
}

/// Findings of a resolution besides the resolved versions.
#[derive(Debug, Default)]
pub(super) struct ResolveFindings {
    /// Availability of unresolved providers and modules, by printed name.
    pub(super) availability: BTreeMap<String, ItemAvailability>,
    /// Unconfirmed answers, as text.
    pub(super) unconfirmed: BTreeSet<String>,
}

impl<'a> MirrorRegistries<'a> {
    pub(super) fn new(mirror: &'a Arc<Mirror>, clock: &'a Clock, retry_policy: &'a RetryPolicy<'a>) -> Self {
        Self { mirror, clock, retry_policy, findings: Mutex::default() }
    }

    pub(super) fn findings(self) -> ResolveFindings {
        self.findings.into_inner()
    }

    fn record_answer<T>(
        &self,
        address: &impl Display,
        classify: fn(&Error) -> ItemAvailability,
        answer: Result<WarmedDocument<T>, Error>,
    ) -> Result<T, Error> {
        let mut findings = self.findings.lock();
        if let Err(error) = &answer {
            findings.availability.insert(address.to_string(), classify(error));
        }
        let WarmedDocument { value, unconfirmed } = answer?;
        findings.unconfirmed.extend(unconfirmed);
        Ok(value)
    }

    async fn read_list<'b, T>(
        &self,
        address: &impl Display,
        list: impl Fn() -> BoxFuture<'b, Result<WarmedDocument<T>, Error>>,
    ) -> Result<T, Error> {
        let answer = self.retry_policy.run_step(list, || {}).await;
        self.record_answer(address, ItemAvailability::after_document_error, answer)
    }

    fn record_unlisted<T>(&self, address: &impl Display, answer: Result<T, Error>) -> Result<T, Error> {
        let answer = answer.map(|value| WarmedDocument { value, unconfirmed: None });
        self.record_answer(address, ItemAvailability::after_document_error, answer)
    }
}

impl Registries for MirrorRegistries<'_> {
    type Error = Error;

    async fn provider_versions(&self, address: &ProviderAddress) -> Result<Vec<Version>, Error> {
        let list = || -> BoxFuture<'_, _> {
            Box::pin(self.mirror.operations.warm_list(address, self.retry_policy.urgency(), self.clock.now()))
        };
        let list = self.read_list(address, list).await?;
        Ok(list.versions.into_iter().map(|listed| listed.version).collect())
    }

    async fn module_versions(&self, address: &ModuleAddress) -> Result<Vec<Version>, Error> {
        let list = || -> BoxFuture<'_, _> {
            Box::pin(self.mirror.operations.warm_module_list(address, self.retry_policy.urgency(), self.clock.now()))
        };
        let list = self.read_list(address, list).await?;
        Ok(list.versions.into_iter().map(|listed| listed.version).collect())
    }

    async fn unlisted_provider_versions(&self, address: &ProviderAddress) -> Result<Option<UnlistedVersions>, Error> {
        let unlisted =
            self.record_unlisted(address, self.mirror.offline.listed_versions_offline(&address.into()).await)?;
        Ok(unlisted.map(|(versions, platforms)| UnlistedVersions { versions, platforms }))
    }

    async fn unlisted_module_versions(&self, address: &ModuleAddress) -> Result<Option<UnlistedVersions>, Error> {
        let unlisted =
            self.record_unlisted(address, self.mirror.offline.listed_versions_offline(&address.into()).await)?;
        Ok(unlisted.map(|(versions, platforms)| UnlistedVersions { versions, platforms }))
    }

    async fn module_files(&self, package: &ModulePackage) -> Result<ModuleFiles, Error> {
        let fetch = || -> BoxFuture<'_, _> {
            Box::pin(self.mirror.operations.warm_module(package, self.retry_policy.urgency(), self.clock.now()))
        };
        let (_, stored) =
            self.record_answer(package, ItemAvailability::after_error, self.retry_policy.run_step(fetch, || {}).await)?;
        let subdir = stored.proof.how.tree().and_then(|tree| tree.subdir.clone()).unwrap_or_default();
        let archive_ref = ModuleArchiveRef { package: package.clone(), digest: Some(stored.digest.prefix()) };
        let files = match self
            .mirror
            .modules
            .module_archive(&archive_ref, &self.mirror.runtime.job_context(self.clock.now()))
            .await?
            .value
        {
            Archive::InMemory { bytes, .. } => files_of(package, std::io::Cursor::new(bytes)).await?,
            Archive::OnDisk { blob, .. } => files_of(package, blob.reader()).await?,
            Archive::Arriving { .. } | Archive::PassedThrough { .. } => {
                return Err(self.mirror.library.not_stored_error(&format!("the archive of {package}")).await);
            }
        };
        Ok(ModuleFiles { files, subdir })
    }
}

/// The files of a packed module that a client reads.
async fn files_of(package: &ModulePackage, archive: impl Read + Send + 'static) -> Result<Files, Error> {
    let interrupted = || Error::Interrupted(format!("reading the archive of {package}"));
    let reading = tokio::task::spawn_blocking(move || Files::from_tar(GzDecoder::new(archive)));
    let read = reading.await.map_err(|_| interrupted())?;
    read.map_err(|bad| Error::Unreadable { subject: format!("the archive of {package}"), reason: bad.to_string() })
}

/// Availability of an item that is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemAvailability {
    /// This mirror is offline; a bundle can bring the item.
    NeedsBundle,
    /// Upstream gave no answer.
    Unknown,
    /// The item cannot be had from upstream: it does not exist, is refused, or is unusable.
    Unavailable,
}

impl ItemAvailability {
    /// Availability after a failed document fetch: an unusable answer counts as an upstream failure.
    pub(super) fn after_document_error(error: &Error) -> Self {
        match error {
            Error::Upstream(error) if matches!(error.fault, Fault::Unusable(_)) => Self::Unknown,
            error => Self::after_error(error),
        }
    }

    /// Availability of a module after a failure: an unusable source or archive is final.
    pub(super) fn after_error(error: &Error) -> Self {
        match error {
            Error::Offline(_) => Self::NeedsBundle,
            Error::HeldBack { .. }
            | Error::RevalidationSkipped(_)
            | Error::Busy { .. }
            | Error::TooManyUnattendedFills { .. }
            | Error::Slow(_)
            | Error::Interrupted(_) => Self::Unknown,
            Error::Upstream(error) => match &error.fault {
                Fault::Trouble { .. }
                | Fault::Unreachable(_)
                | Fault::NoSuchName(_)
                | Fault::Untrusted(_)
                | Fault::Slow(_)
                | Fault::LocalLimit(_) => Self::Unknown,
                Fault::Absent(_)
                | Fault::Denied(_)
                | Fault::Rejected { .. }
                | Fault::Looped
                | Fault::Unusable(_)
                | Fault::TooLarge(_)
                | Fault::Refused(_) => Self::Unavailable,
            },
            Error::UnknownHost(_)
            | Error::NotFound(_)
            | Error::Unverified { .. }
            | Error::Unaccepted { .. }
            | Error::Sealed(_)
            | Error::NotStored(_)
            | Error::Unreadable { .. }
            | Error::Looped
            | Error::Store(_) => Self::Unavailable,
        }
    }
}
