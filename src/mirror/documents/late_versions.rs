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
use crate::mirror::RequestContext;
use crate::mirror::documents::Documents;
use crate::mirror::effects::Effects;
use crate::mirror::library::stored_document::StoredDocument;
use crate::store::Key;
use crate::upstream::backoff::BudgetPurpose;
use crate::upstream::discovery::Service;
use crate::upstream::providers::{LateVersion, VersionList};
use crate::upstream::request::RequestPriority;
use crate::wording::format_timestamp;

/// The most late versions of one list.
const MAX_LATE: usize = 8;
/// The most versions that only the other registry lists and that are looked at with one list.
const MAX_CANDIDATES: usize = 3;
/// The time after which a list that did not change, or a version that proved not to be late, is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);
/// The same for a version that somebody asks for by its number.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// The most searches at a time; a list that comes meanwhile is looked at when it comes again.
pub(super) const MAX_SEARCHES: usize = 4;

impl Documents {
    /// Looks for late versions in the background, after a list came for a client, if it is another one than `before` or was not
    /// looked at for a while. Only of providers that clients ask for at both registries.
    pub(super) fn look_for_late_versions(
        self: &Arc<Self>,
        provider: &ProviderAddress,
        list: &StoredDocument,
        before: Option<&StoredDocument>,
        call: &RequestContext,
    ) {
        let Some(other) = self.other_registry(provider, call) else {
            return self.forget_late_versions(provider, list);
        };
        let is_same = before.is_some_and(|before| before.body == list.body);
        // A list that only this search wants starts no other search.
        if call.priority == RequestPriority::Job
            || (is_same && call.config.searched_late.get(provider, call.present()).is_some())
        {
            return;
        }
        let Ok(turn) = Arc::clone(&self.late_searches).try_acquire_owned() else { return };
        let (documents, provider) = (Arc::clone(self), provider.clone());
        let call = RequestContext { priority: RequestPriority::Job, ..self.runtime.flight_context(call) };
        self.runtime.tasks.spawn(async move {
            let _turn = turn;
            let list_there = Key::version_list(elsewhere(&provider, &other));
            if !documents.library.stored_document(&list_there).await.is_ok_and(|list| list.is_some()) {
                return;
            }
            call.config.searched_late.insert(Effects::Real, provider.clone(), (), LOOK_AGAIN, call.present());
            if let Err(error) = documents.find_late_versions(&provider, &other, &call).await {
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

    /// A late version that was asked for by its number: from the list's record, or found out now.
    /// `None` if it is not late, or that is not known, and for a module.
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
        self.permit(provider, version, call).await?;
        let key = Key::version_list(Address::from(provider));
        let Some(list) = self.library.stored_document(&key).await?.map(|stored| stored.value) else { return Ok(None) };
        let Ok(listed_here) = list.versions(Service::Providers).await else { return Ok(None) };
        if listed_here.get(version).is_some() {
            return Ok(None);
        }
        let is_asked_for = |late: &&LateVersion| {
            late.version == *version && platform.is_none_or(|platform| late.platform == *platform)
        };
        let known = listed_here.late.iter().find(is_asked_for);
        let other = self.other_registry(provider, call);
        let (None, Some(other)) = (known, other) else { return Ok(known.cloned()) };
        let platform = platform.cloned().unwrap_or_else(|| a_platform(&listed_here));
        let package = Package { provider: provider.clone(), version: version.clone(), platform };
        if call.config.not_late.get(&package, call.present()).is_some() {
            return Ok(None);
        }
        let patience = call.upstream(&other)?.settings.patience;
        let asking = async {
            let listed_there = self.list_elsewhere(provider, &other, call).await?;
            self.judge_unlisted(&package, &list, &other, &listed_there, call).await
        };
        let asked = tokio::time::timeout(self.wait_for_opinion(patience, call), asking).await;
        let Ok(found) = asked.unwrap_or_else(|_| Err(Error::Slow(package.to_string()))) else { return Ok(None) };
        let Some(found) = found else {
            call.config.not_late.insert(Effects::Real, package, (), ASK_AGAIN, call.present());
            return Ok(None);
        };
        let late = found.clone();
        self.record_late_versions(&list, key, move |known| {
            let others = known.iter().filter(|known| known.version != late.version).take(MAX_LATE - 1).cloned();
            [late.clone()].into_iter().chain(others).collect()
        })
        .await?;
        Ok(Some(found))
    }

    /// Looks again at the late versions of a list, and at the newest that only the other registry lists. Records those that are
    /// late with the list. What cannot be asked about now stays as it is.
    async fn find_late_versions(
        self: &Arc<Self>,
        provider: &ProviderAddress,
        other: &Hostname,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let key = Key::version_list(Address::from(provider));
        let Some(list) = self.library.stored_document(&key).await?.map(|stored| stored.value) else { return Ok(()) };
        let Ok(listed_here) = list.versions(Service::Providers).await else { return Ok(()) };
        let listed_there = self.list_elsewhere(provider, other, call).await?;
        let mut late = Vec::new();
        for package in candidates(&listed_here, &listed_there, provider, call) {
            match self.judge_unlisted(&package, &list, other, &listed_there, call).await {
                Ok(Some(found)) => late.push(found),
                Ok(None) => drop(call.config.not_late.insert(Effects::Real, package, (), LOOK_AGAIN, call.present())),
                Err(_) => {
                    late.extend(listed_here.late.iter().find(|known| known.version == package.version).cloned());
                }
            }
        }
        self.record_late_versions(&list, key, move |_| late.clone()).await
    }

    /// The versions that the other registry lists now; none where it has no such provider.
    async fn list_elsewhere(
        self: &Arc<Self>,
        provider: &ProviderAddress,
        other: &Hostname,
        call: &RequestContext,
    ) -> Result<VersionList, Error> {
        let address = elsewhere(provider, other);
        let call = RequestContext { priority: RequestPriority::Job, ..call.clone() };
        let list = match self.get(&address, &call).await {
            Ok(answer) => answer.value,
            Err(Error::NotFound(_)) => return Ok(VersionList::empty(Service::Providers)),
            Err(error) => return Err(error),
        };
        let mut listed =
            list.versions(Service::Providers).await.map_err(|reason| Error::unreadable_list(&address, reason))?;
        let dropped: BTreeSet<Version> =
            list.dropped_versions(Service::Providers).into_iter().map(|listed| listed.version).collect();
        listed.versions.retain(|listed| !dropped.contains(&listed.version));
        Ok(listed)
    }

    /// Says of a version that its list does not name whether it is late: both registries have its document, and both documents
    /// name the same archive.
    ///
    /// # Errors
    /// One of them cannot be asked now.
    async fn judge_unlisted(
        self: &Arc<Self>,
        package: &Package,
        list: &StoredDocument,
        other: &Hostname,
        listed_there: &VersionList,
        call: &RequestContext,
    ) -> Result<Option<LateVersion>, Error> {
        let Package { provider, version, platform } = package;
        // Somebody may ask for any version by its number.
        let backoff = &call.config.outbound.backoff;
        for host in [&provider.host, other] {
            if !backoff.spend(host, BudgetPurpose::SecondOpinion, 1, call.present()) {
                return Err(Error::RevalidationSkipped(package.to_string()));
            }
        }
        let Some(document) = self.download_document(package, call).await? else { return Ok(None) };
        let opinion = self.opinion_of(other.clone(), package, &document.archive_url, call).await?;
        let listed_by = listed_there.get(version).map(|_| other);
        let (version, platform) = (version.clone(), platform.clone());
        Ok(opinion.map(|_| LateVersion { version, platform, note: note(listed_by, list) }))
    }

    async fn record_late_versions(
        self: &Arc<Self>,
        list: &StoredDocument,
        key: Key,
        change: impl Fn(&[LateVersion]) -> Vec<LateVersion> + Send + 'static,
    ) -> Result<(), Error> {
        let text = list.body.clone();
        self.library.on_disk(move |library| library.change_late_versions(&key, &text, change)).await
    }

    /// Forgets the late versions of a list for which nobody looks for them any more.
    fn forget_late_versions(self: &Arc<Self>, provider: &ProviderAddress, list: &StoredDocument) {
        if list.metadata.late.is_empty() {
            return;
        }
        let (documents, list) = (Arc::clone(self), list.clone());
        let key = Key::version_list(Address::from(provider));
        self.runtime.tasks.spawn(async move {
            if let Err(error) = documents.record_late_versions(&list, key, |_| Vec::new()).await {
                tracing::warn!(%error, "what was known of late versions could not be removed");
            }
        });
    }
}

/// The same provider at the other registry.
fn elsewhere(provider: &ProviderAddress, other: &Hostname) -> Address {
    Address::Provider(ProviderAddress { host: other.clone(), ..provider.clone() })
}

/// A platform that the newest versions of a list have: this machine's, if they have it.
fn a_platform(list: &VersionList) -> Platform {
    let newest =
        list.versions.iter().filter(|listed| !listed.version.is_pre_release()).max_by_key(|listed| &listed.version);
    let platforms = newest.map(|listed| listed.platforms()).unwrap_or_default();
    let own = Platform::of_this_machine();
    if platforms.contains(&own) { own } else { platforms.into_iter().next().unwrap_or(own) }
}

/// The packages that may be late: those that are known to be, and the newest versions that only the other registry lists.
fn candidates(
    listed_here: &VersionList,
    listed_there: &VersionList,
    provider: &ProviderAddress,
    call: &RequestContext,
) -> Vec<Package> {
    let package =
        |version: &Version, platform| Package { provider: provider.clone(), version: version.clone(), platform };
    let here: BTreeSet<&Version> = listed_here.versions.iter().map(|listed| &listed.version).collect();
    let mut candidates: Vec<Package> =
        listed_here.late.iter().map(|late| package(&late.version, late.platform.clone())).collect();
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

/// Says of a late version who lists it, and when the list was written where upstream tells that. A version may also have been
/// withdrawn, so nothing is said of the future.
fn note(listed_by: Option<&Hostname>, list: &StoredDocument) -> String {
    let who = match listed_by {
        Some(registry) => format!("{registry} lists it and this registry does not"),
        None => "listed by neither public registry".to_owned(),
    };
    let written = list.metadata.validators.last_modified.as_deref().map(httpdate::parse_http_date);
    let written = written.and_then(Result::ok).map(|written| format_timestamp(Timestamp::of(written)));
    let written = written.map(|written| format!("; the list is of {written}")).unwrap_or_default();
    format!("{who}, although its document answers{written}")
}
