//! Versions that a public registry does not list although it has their documents: its list is late, or leaves them out. Clients
//! read the list alone and say that no release matches. The list that they get from larder says why, in a warning.
//!
//! A version counts as late where both public registries are upstreams, its list here does not name it, and its documents at
//! both name the same archive. Candidates are the newest versions that the other registry lists, and versions that somebody
//! asked for by their number.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::address::{Address, Hostname, Package, Platform, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::documents::Documents;
use crate::mirror::effects::Effects;
use crate::mirror::library::stored_document::StoredDocument;
use crate::mirror::{Connectivity, RequestContext};
use crate::store::Key;
use crate::upstream::backoff::BudgetPurpose;
use crate::upstream::discovery::Service;
use crate::upstream::providers::{LateVersion, VersionList};
use crate::upstream::request::RequestPriority;
use crate::wording::format_seconds;

/// The namespace whose providers the two registries build themselves: their archives differ.
const OWN_BUILDS: &str = "hashicorp";
/// The most late versions of one list.
const MAX_LATE: usize = 8;
/// The most versions that only the other registry lists and that are looked at with one list.
const MAX_CANDIDATES: usize = 3;
/// The time for which a version that proved not to be late is not looked at again.
const ASK_AGAIN: Duration = Duration::from_secs(3600);

impl Documents {
    /// Looks for late versions in the background, after a list came for a client. A registry that nobody uses through this larder
    /// is not asked.
    pub(super) fn look_for_late_versions(self: &Arc<Self>, provider: &ProviderAddress, call: &RequestContext) {
        let Some(other) = self.other_registry(provider, call) else { return };
        // A list that only this search wants starts no other search.
        if call.priority == RequestPriority::Job || provider.namespace.as_str() == OWN_BUILDS {
            return;
        }
        let (documents, provider) = (Arc::clone(self), provider.clone());
        let call = RequestContext { priority: RequestPriority::Job, ..self.runtime.flight_context(call) };
        self.runtime.tasks.spawn(async move {
            let is_in_use = documents.library.stored_document(&Key::discovery(&other)).await;
            if is_in_use.is_ok_and(|discovery| discovery.is_some())
                && let Err(error) = documents.find_late_versions(&provider, &other, &call).await
            {
                tracing::debug!(%provider, %error, "versions that the list leaves out could not be looked for");
            }
        });
    }

    /// The error for a package whose version upstream's list does not name, which `reason` says. Where the version is late, it
    /// says that, too.
    pub async fn unlisted_error(self: &Arc<Self>, package: &Package, reason: String, call: &RequestContext) -> Error {
        let Package { provider, version, platform } = package;
        match self.late_version_for(provider, version, Some(platform), call).await {
            Ok(Some(LateVersion { note, .. })) => {
                let lifetime = call.upstream(&provider.host).map(|upstream| upstream.not_found_lifetime());
                let key = Key::ProofSet(package.clone());
                call.remember_absence(key, format!("{reason}: {note}"), lifetime.unwrap_or_default())
            }
            Ok(None) | Err(_) => Error::NotFound(reason),
        }
    }

    /// What is known of a version that was asked for by its number and that upstream's list does not name, or found out now.
    /// `None` if it is not late, and for a module.
    pub async fn late_version(
        self: &Arc<Self>,
        address: &Address,
        version: &Version,
        call: &RequestContext,
    ) -> Option<LateVersion> {
        let Address::Provider(provider) = address else { return None };
        self.late_version_for(provider, version, None, call).await.ok().flatten()
    }

    /// The late version, of which a document for this platform is asked for, or for any platform of the list.
    async fn late_version_for(
        self: &Arc<Self>,
        provider: &ProviderAddress,
        version: &Version,
        platform: Option<&Platform>,
        call: &RequestContext,
    ) -> Result<Option<LateVersion>, Error> {
        let Some(other) = self.other_registry(provider, call) else { return Ok(None) };
        let key = Key::version_list(Address::from(provider));
        let Some(list) = self.library.stored_document(&key).await?.map(|stored| stored.value) else { return Ok(None) };
        let known = list.metadata.late.iter().find(|late| late.version == *version);
        if known.is_some() || call.effects() == Effects::None {
            return Ok(known.cloned());
        }
        let Ok(listed_here) = list.versions(Service::Providers).await else { return Ok(None) };
        let any_platform = || listed_here.versions.iter().find_map(|listed| listed.platforms().into_iter().next());
        let platform = platform.cloned().or_else(any_platform).unwrap_or_else(Platform::of_this_machine);
        let package = Package { provider: provider.clone(), version: version.clone(), platform };
        let listed_there = self.list_elsewhere(provider, &other, call).await;
        let found = self.judge_unlisted(&package, &list, &other, &listed_there, call).await;
        if let Some(found) = found.clone() {
            self.record_late_versions(&list, key, move |known| {
                let others = known.iter().filter(|late| late.version != found.version).take(MAX_LATE - 1).cloned();
                [found.clone()].into_iter().chain(others).collect()
            })
            .await?;
        }
        Ok(found)
    }

    /// The other public registry, where it is an upstream that may be asked.
    fn other_registry(&self, provider: &ProviderAddress, call: &RequestContext) -> Option<Hostname> {
        let other = provider.host.other_public_registry().filter(|other| call.upstream(other).is_ok())?;
        (self.runtime.connectivity() == Connectivity::Online).then_some(other)
    }

    /// Looks again at the late versions of a list, and at the newest that only the other registry lists. Records those that are
    /// late with the list.
    async fn find_late_versions(
        self: &Arc<Self>,
        provider: &ProviderAddress,
        other: &Hostname,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let key = Key::version_list(Address::from(provider));
        let Some(list) = self.library.stored_document(&key).await?.map(|stored| stored.value) else { return Ok(()) };
        let Ok(listed_here) = list.versions(Service::Providers).await else { return Ok(()) };
        let listed_there = self.list_elsewhere(provider, other, call).await;
        let mut late = Vec::new();
        for package in candidates(&list, &listed_here, &listed_there, provider, call) {
            match self.judge_unlisted(&package, &list, other, &listed_there, call).await {
                Some(found) => late.push(found),
                None => drop(call.config.not_late.insert(Effects::Real, package, (), ASK_AGAIN, call.present())),
            }
        }
        self.record_late_versions(&list, key, move |_| late.clone()).await
    }

    /// The list of the other registry; an empty one where it cannot be read.
    async fn list_elsewhere(
        self: &Arc<Self>,
        provider: &ProviderAddress,
        other: &Hostname,
        call: &RequestContext,
    ) -> VersionList {
        let address = Address::Provider(ProviderAddress { host: other.clone(), ..provider.clone() });
        let call = RequestContext { priority: RequestPriority::Job, ..call.clone() };
        let list = match self.get(&address, &call).await {
            Ok(answer) => answer.value.versions(Service::Providers).await.ok(),
            Err(_) => None,
        };
        list.unwrap_or_else(|| VersionList::empty(Service::Providers))
    }

    /// Says of a version that its list does not name whether it is late: both registries have its document, and both documents
    /// name the same archive.
    async fn judge_unlisted(
        self: &Arc<Self>,
        package: &Package,
        list: &StoredDocument,
        other: &Hostname,
        listed_there: &VersionList,
        call: &RequestContext,
    ) -> Option<LateVersion> {
        let Package { provider, version, platform } = package;
        // Somebody may ask for any version by its number.
        if !call.config.outbound.backoff.spend(&provider.host, BudgetPurpose::Revalidation, 1, call.present()) {
            return None;
        }
        let document = self.download_document(package, call).await.ok()?;
        self.second_opinion(package, &document.archive_url, call).await?;
        let listed_by = listed_there.get(version).map(|_| other);
        let note = note(listed_by, list, call.present());
        Some(LateVersion { version: version.clone(), platform: platform.clone(), note })
    }

    async fn record_late_versions(
        self: &Arc<Self>,
        list: &StoredDocument,
        key: Key,
        change: impl Fn(&[LateVersion]) -> Vec<LateVersion> + Send + 'static,
    ) -> Result<(), Error> {
        let fetched = list.metadata.fetched;
        self.library.on_disk(move |library| library.change_late_versions(&key, fetched, change)).await
    }
}

/// The packages that may be late: those that are known to be, and the newest versions that only the other registry lists.
fn candidates(
    list: &StoredDocument,
    listed_here: &VersionList,
    listed_there: &VersionList,
    provider: &ProviderAddress,
    call: &RequestContext,
) -> Vec<Package> {
    let package =
        |version: &Version, platform| Package { provider: provider.clone(), version: version.clone(), platform };
    let here: BTreeSet<&Version> = listed_here.versions.iter().map(|listed| &listed.version).collect();
    let known = list.metadata.late.iter().filter(|late| !here.contains(&late.version));
    let mut candidates: Vec<Package> = known.map(|late| package(&late.version, late.platform.clone())).collect();
    let mut only_there: Vec<Package> = listed_there
        .versions
        .iter()
        .filter(|listed| !here.contains(&listed.version) && !listed.version.is_pre_release())
        .filter(|listed| candidates.iter().all(|known| known.version != listed.version))
        .filter_map(|listed| Some(package(&listed.version, listed.platforms().into_iter().next()?)))
        .filter(|package| call.config.not_late.get(package, call.present()).is_none())
        .collect();
    only_there.sort_by(|one, other| other.version.cmp(&one.version));
    candidates.extend(only_there.into_iter().take(MAX_CANDIDATES));
    candidates.truncate(MAX_LATE);
    candidates
}

/// Says of a late version who lists it, and how old the list is where upstream tells that.
fn note(listed_by: Option<&Hostname>, list: &StoredDocument, now: Timestamp) -> String {
    let who = match listed_by {
        Some(registry) => format!("{registry} lists it, and this registry does not yet"),
        None => "listed by neither public registry yet".to_owned(),
    };
    let written =
        list.metadata.validators.last_modified.as_deref().and_then(|date| httpdate::parse_http_date(date).ok());
    let age = written.map(|written| format_seconds(now.since(Timestamp::of(written)).as_secs()));
    let age = age.map(|age| format!(": the list is {age} old")).unwrap_or_default();
    format!("{who}, although its document answers{age}")
}
