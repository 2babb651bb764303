//! Finds the proof set that a URL of a file names, and asks upstream again where none is stored.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::timeout_at;

use crate::address::{Package, Platform, ProviderAddress, Version};
use crate::digest::DigestPrefix;
use crate::error::Error;
use crate::mirror::freshness::{CHECKED_COPY_LIFETIME, Confirmation};
use crate::mirror::library::file_refs::{ProofFileBytes, ProofFileRef};
use crate::mirror::library::proof_set::UsableProofSet;
use crate::mirror::proof_sets::{ProofSets, describe_set};
use crate::mirror::{Answer, FetchReason, Outcome, RequestContext};
use crate::store::Key;
use crate::upstream::outbound::Connectivity;
use crate::upstream::providers::ListedVersion;

/// The most platforms of a version for which upstream is asked for SHA256SUMS or a signature. Nearly every provider has
/// one SHA256SUMS for all platforms.
const MAX_PLATFORMS_ASKED: usize = 4;

/// A file of a package, as a URL names it.
#[derive(Debug, Clone, Copy)]
pub struct RequestedFile<'a> {
    pub package: &'a Package,
    pub digest: &'a DigestPrefix,
    pub name: &'a str,
}

impl RequestedFile<'_> {
    pub fn not_found_error(&self) -> Error {
        let Self { package, digest, name } = self;
        Error::NotFound(format!(
            "{package} has no file {name} whose SHA-256 begins with {digest}: ask its download document again"
        ))
    }
}

impl ProofSets {
    /// Returns SHA256SUMS or a signature from any stored proof set of the version, current or previous, that contains
    /// the digest. Where none does, asks upstream again for the sets that may contain it.
    ///
    /// # Errors
    /// [`Error::NotFound`] where no set contains the digest, even after asking upstream.
    pub async fn proof_file(
        self: &Arc<Self>,
        wanted: &ProofFileRef,
        call: &RequestContext,
    ) -> Result<Answer<ProofFileBytes>, Error> {
        let ProofFileRef { provider, version, digest, file } = wanted;
        self.documents.permit(provider, version, call).await?;
        let stored = self.library.platforms_with_sets(provider, version).await?;
        let package = |platform| Package { provider: provider.clone(), version: version.clone(), platform };
        for platform in &stored {
            let usable = self.usable_set(&package(platform.clone()), call).await?;
            if let Some(set) = usable.and_then(|usable| usable.with_proof_file(*file, digest, call.now)) {
                let fresh_until = call.now.after(CHECKED_COPY_LIFETIME);
                return Ok(Answer { fresh_until, ..Answer::of_now(set.proof_file(*file), Outcome::Hit, call) });
            }
        }
        let mut last_error = None;
        for platform in self.likely_platforms(provider, version, stored).await? {
            let package = package(platform);
            let requested = RequestedFile { package: &package, digest, name: file.name() };
            let seen = self.usable_set(&package, call).await?.map(|usable| usable.stored_set.confirmed);
            match self.refetch_set_listing(requested, seen, call).await {
                Ok(usable) => match usable.with_proof_file(*file, digest, call.now) {
                    Some(set) => return Ok(Answer::of_now(set.proof_file(*file), Outcome::Miss, call)),
                    None => last_error = last_error.or(Some(requested.not_found_error())),
                },
                // A file absent for one platform may exist for another. After any other failure its absence is
                // unproven.
                Err(Error::NotFound(reason)) => last_error = last_error.or(Some(Error::NotFound(reason))),
                Err(error) => return Err(error),
            }
        }
        let subject = format!("{} of {provider} {version}", file.name());
        Err(last_error.unwrap_or_else(|| Error::NotFound(format!("{subject}: no platform of that version is known"))))
    }

    /// Returns the platforms to ask upstream about when no stored set contains a file: those with a set first, then
    /// those in the cached version list, the common ones before the others.
    async fn likely_platforms(
        &self,
        provider: &ProviderAddress,
        version: &Version,
        stored: Vec<Platform>,
    ) -> Result<Vec<Platform>, Error> {
        let mut likely = stored;
        let list = self.library.stored_version_list(&provider.into()).await?;
        let listed = list.as_ref().and_then(|list| list.get(version)).map(ListedVersion::platforms).unwrap_or_default();
        likely.extend(Platform::common().filter(|common| listed.is_empty() || listed.contains(common)));
        likely.extend(listed);
        let mut seen = HashSet::new();
        likely.retain(|platform| seen.insert(platform.clone()));
        likely.truncate(MAX_PLATFORMS_ASKED);
        Ok(likely)
    }

    /// Fetches the proof set again, for a URL whose digest no stored set lists. Where the new set does not list it
    /// either, upstream is not asked again for a while.
    pub async fn refetch_set_listing(
        self: &Arc<Self>,
        wanted: RequestedFile<'_>,
        seen: Option<Confirmation>,
        call: &RequestContext,
    ) -> Result<UsableProofSet, Error> {
        let (package, key) = (wanted.package, Key::ProofSet(wanted.package.clone()));
        self.library.refresh(key.group()).await?;
        if let Some(usable) = self.usable_set(package, call).await?
            && usable.find(wanted.digest, call.now).is_some()
        {
            return Ok(usable);
        }
        if call.config.refetched_sets.get(package, call.now).is_some() {
            return Err(wanted.not_found_error());
        }
        if self.runtime.connectivity() == Connectivity::Offline {
            return Err(self.library.missing_error(package, format!("{} of {package}", wanted.name), call).await);
        }
        let subject = describe_set(package);
        let _place = self.runtime.take_waiting_place(&subject, call)?;
        call.refuse_if_absent(&key)?;
        let flight = self.join_set_flight(package, seen, FetchReason::NotStored, call);
        let fetched = timeout_at(call.deadline, flight).await.map_err(|_| Error::Slow(subject))??;
        let stored = UsableProofSet { stored_set: fetched.value, fallback: None };
        if stored.find(wanted.digest, call.now).is_none() {
            let lifetime = call.upstream(&package.provider.host)?.not_found_lifetime();
            call.config.refetched_sets.insert(call.effects(), package.clone(), (), lifetime, call.now);
        }
        Ok(stored)
    }
}
