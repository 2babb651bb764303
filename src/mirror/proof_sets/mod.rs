//! Serves, revalidates, fetches and replaces proof sets.

pub(in crate::mirror) mod fetch;
pub(in crate::mirror) mod replace;

use crate::mirror::request_context::FlightGroup;
use crate::mirror::single_flight::SingleFlights;
use crate::mirror::tasks::WorkLimit;
use crate::mirror::{Documents, Library, Runtime};
use std::sync::Arc;

use crate::address::Package;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::documents::discovery::DiscoveryTrust;
use crate::mirror::documents::document_fetch::RETRIES;
use crate::mirror::documents::listed::ListingState;
use crate::mirror::documents::revalidate::{Aged, FlightResult};
use crate::mirror::freshness::{Age, FreshnessDecision, decide};
use crate::mirror::library::Signer;
use crate::mirror::library::proof_set::{ProofSet, StoredProofSet, UsableProofSet};
use crate::mirror::library::provider_history::Admission;
use crate::mirror::proof_sets::fetch::{ProofSetFetch, companion_failure};
use crate::mirror::single_flight::SharedResult;
use crate::mirror::{Answer, FetchReason, Outcome, RequestContext, default_if_gone};
use crate::store::Key;
use crate::upstream::Upstream;
use crate::upstream::discovery::Service;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::{Connectivity, origin};
use crate::upstream::providers::download_url;

/// The most proof sets verified at a time; each may take a second of CPU.
const MAX_CONCURRENT_VERIFICATIONS: usize = 2;
/// The download document, SHA256SUMS and the signature.
const REQUESTS: u32 = 3;

pub(in crate::mirror) type SetFlight = FlightResult<Arc<StoredProofSet>>;

/// The extent of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::mirror) enum ProofSetRefresh {
    /// The stored set may be confirmed by upstream, or served as it is.
    IfChanged(FetchReason),
    Whole,
}

/// The treatment of a version that upstream's own list does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::mirror) enum UnlistedPolicy {
    /// Not fetched. Chosen where nothing of the version is stored.
    Refused,
    Fetched,
}

/// The reason why a fetch brought no set.
pub(in crate::mirror) enum SetFetchError {
    /// Upstream has no such package.
    Absent(Arc<UpstreamError>),
    /// The fetch or the verification failed.
    Failed(Error),
}

impl From<SetFetchError> for Error {
    fn from(no_set: SetFetchError) -> Self {
        match no_set {
            SetFetchError::Absent(error) => Self::NotFound(error.to_string()),
            SetFetchError::Failed(error) => error,
        }
    }
}

impl From<Error> for SetFetchError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Fetches, verifies and serves proof sets.
#[derive(Debug)]
pub struct ProofSets {
    pub(in crate::mirror) runtime: Arc<Runtime>,
    pub(in crate::mirror) library: Arc<Library>,
    pub(in crate::mirror) documents: Arc<Documents>,
    flights: SingleFlights<(Package, ProofSetRefresh, FlightGroup), SharedResult<SetFlight>>,
    verification_limit: WorkLimit,
}

impl ProofSets {
    pub(in crate::mirror) fn new(runtime: Arc<Runtime>, library: Arc<Library>, documents: Arc<Documents>) -> Arc<Self> {
        let verification_limit = WorkLimit::of(MAX_CONCURRENT_VERIFICATIONS);
        Arc::new(Self { runtime, library, documents, flights: SingleFlights::default(), verification_limit })
    }
}

impl ProofSets {
    /// Returns the proof set to serve for a package: the current one, or its predecessor while only that one's archive
    /// is stored and upstream does not answer (DESIGN, promise 2).
    pub async fn proof_set(
        self: &Arc<Self>,
        package: &Package,
        call: &RequestContext,
    ) -> Result<Answer<Arc<ProofSet>>, Error> {
        let upstream = Arc::clone(call.upstream(&package.provider.host)?);
        let subject = describe_set(package);
        let mut rule = upstream.rule(|fresh| fresh.download);
        let stored = self.usable_set(package, call).await?;
        if let Some(stored) = stored.as_ref().filter(|stored| !stored.stored_set.age.gone) {
            rule = self
                .documents
                .rule_for_location(Service::Providers, &stored.stored_set.current.metadata.asked, &upstream, rule)
                .await?;
        }
        let fallback = stored.as_ref().and_then(|stored| stored.fallback.clone());
        if stored.is_none()
            && let Some(not_found) = call.config.not_found.get(&Key::ProofSet(package.clone()), call.now)
        {
            return Err(Error::NotFound(not_found));
        }
        if self.runtime.connectivity() == Connectivity::Offline {
            let has_archive = match &stored {
                Some(archive) => self.library.has_archive(archive.offline_set().document.shasum).await?,
                None => false,
            };
            if !has_archive {
                return Err(self.offline_package_error(package, subject, call).await);
            }
        }
        let seen = stored.as_ref().map(|stored| stored.stored_set.age);
        let fetched = stored.map(|stored| {
            let mut age = stored.stored_set.age;
            if stored.fallback.is_some() {
                // Revalidate now: the predecessor is served only if upstream cannot be reached.
                age.checked = Timestamp(0);
            }
            Aged { age, value: stored.stored_set }
        });
        let fly = |fetch_reason, call: &RequestContext| {
            self.join_set_flight(package, upstream, seen, ProofSetRefresh::IfChanged(fetch_reason), call)
        };
        let answer = self.documents.serve_or_fetch(&subject, &package.provider.host, call, &rule, fetched, fly).await;
        let answer = answer.inspect_err(|error| self.library.record_if_offline(error, call, || package.into()))?;
        Ok(match (answer.outcome, fallback) {
            (Outcome::Stale | Outcome::Gone, Some(predecessor)) => {
                let checked = seen.map_or(answer.checked, |age| age.checked);
                Answer { value: predecessor, outcome: answer.outcome, fresh_until: call.now, checked }
            }
            (outcome, fallback) => {
                // While only the predecessor's archive is stored, every request revalidates.
                let fresh_until = if fallback.is_some() { call.now } else { answer.fresh_until };
                let checked = answer.checked;
                Answer { value: Arc::clone(&answer.value.current), outcome, fresh_until, checked }
            }
        })
    }

    /// The error for a package that is not stored while offline.
    async fn offline_package_error(
        self: &Arc<Self>,
        package: &Package,
        subject: String,
        call: &RequestContext,
    ) -> Error {
        let missing = self.library.missing_error(package, subject, call).await;
        match (&missing, self.is_version_known(package).await) {
            // A 404 tells the client that other platforms may exist. The package is recorded as missing all the same.
            (Error::Offline(_), Ok(true)) if !call.is_step() => Error::NotFound(missing.to_string()),
            (_, Err(error)) => error,
            _ => missing,
        }
    }

    /// Returns true if the version is in the stored version list, or if a set of another platform is stored.
    async fn is_version_known(self: &Arc<Self>, package: &Package) -> Result<bool, Error> {
        let Package { provider, version, .. } = package;
        if !self.library.platforms_with_sets(provider, version).await?.is_empty() {
            return Ok(true);
        }
        let list = self.library.stored_document(&Key::ProviderVersions(package.provider.clone())).await?;
        let Some(stored) = list else { return Ok(false) };
        let list = stored.value.versions().await.ok();
        Ok(list.is_some_and(|list| list.get(&package.version).is_some()))
    }

    /// Revalidates a set even if it is fresh, unless another flight has done so since the caller read `seen`.
    pub(in crate::mirror) async fn revalidate_set(
        self: &Arc<Self>,
        package: &Package,
        seen: Option<Age>,
        call: &RequestContext,
    ) -> Result<UsableProofSet, Error> {
        if let Some(merged) = call.config.not_found.get(&Key::ProofSet(package.clone()), call.now) {
            return Err(Error::NotFound(merged));
        }
        let upstream = Arc::clone(call.upstream(&package.provider.host)?);
        let fetched =
            self.join_set_flight(package, upstream, seen, ProofSetRefresh::IfChanged(FetchReason::Fetch), call).await?;
        Ok(UsableProofSet { stored_set: fetched.value, fallback: None })
    }

    /// Fetches the whole set unconditionally, because the URLs in the stored one have expired.
    pub(in crate::mirror) async fn refetch_set(
        self: &Arc<Self>,
        package: &Package,
        call: &RequestContext,
    ) -> Result<Arc<StoredProofSet>, Error> {
        let upstream = Arc::clone(call.upstream(&package.provider.host)?);
        Ok(self.join_set_flight(package, upstream, None, ProofSetRefresh::Whole, call).await?.value)
    }

    /// Reads the stored set. A set that does not meet today's `verification` counts as not stored (DESIGN, promise 1).
    pub(in crate::mirror) async fn usable_set(
        self: &Arc<Self>,
        package: &Package,
        call: &RequestContext,
    ) -> Result<Option<UsableProofSet>, Error> {
        let policy = call.upstream(&package.provider.host)?.settings.verification;
        let package = package.clone();
        let stored = self.library.on_disk(move |library| default_if_gone(library.read_set(&package))).await?;
        Ok(stored.and_then(|stored| stored.meeting_policy(policy)))
    }
}

impl ProofSets {
    /// Joins or starts the fetch of a package's set. `seen` is the age of the copy that the caller read.
    pub(in crate::mirror) fn join_set_flight(
        self: &Arc<Self>,
        package: &Package,
        upstream: Arc<Upstream>,
        seen: Option<Age>,
        anew: ProofSetRefresh,
        call: &RequestContext,
    ) -> SharedResult<SetFlight> {
        let subject = describe_set(package);
        // A conditional fetch may return the very URLs that have expired, so the two kinds never share a flight.
        let key = (package.clone(), anew, call.flight_group());
        self.flights.join_or_spawn(&self.runtime.tasks, key, Err(Error::Interrupted(subject.clone())), || {
            let (proof_sets, package, call) = (Arc::clone(self), package.clone(), self.runtime.flight_context(call));
            async move {
                let work = proof_sets.fetch_set(&subject, &upstream, &package, seen, anew, &call);
                proof_sets.runtime.with_deadline(&subject, &package.provider.host, work).await
            }
        })
    }

    async fn fetch_set(
        self: &Arc<Self>,
        subject: &str,
        upstream: &Upstream,
        package: &Package,
        seen: Option<Age>,
        anew: ProofSetRefresh,
        call: &RequestContext,
    ) -> SetFlight {
        let before = self.usable_set(package, call).await?.map(|stored| stored.stored_set);
        if let Some(before) =
            before.as_ref().filter(|before| anew != ProofSetRefresh::Whole && seen != Some(before.age))
        {
            // Another flight has landed since the caller read the store.
            let rule = upstream.rule(|fresh| fresh.download);
            if decide(Some(before.age), &rule, self.runtime.connectivity(), call.now) == FreshnessDecision::Serve {
                return Ok(Aged { age: before.age, value: Arc::clone(before) });
            }
        }
        if let ProofSetRefresh::IfChanged(fetch_reason) = anew {
            self.runtime.charge_revalidation(subject, &package.provider.host, fetch_reason, REQUESTS, call)?;
        }
        let trust = DiscoveryTrust::for_what_is_held(before.as_ref());
        let build_on = before.as_deref().filter(|_| anew != ProofSetRefresh::Whole);
        let (retries, unlisted) =
            if before.is_some() { (0, UnlistedPolicy::Fetched) } else { (RETRIES, UnlistedPolicy::Refused) };
        match self.fetch_verified_set(subject, upstream, package, trust, build_on, retries, unlisted, call).await {
            Ok(set) => {
                match self.library.admit(package, &set, Signer::of(&set.proof().how), call.now).await? {
                    Admission::Consistent | Admission::Changed(_) => self.store_set(package, set, call.now).await,
                    Admission::HistoryUnavailable => {
                        // Once the store is back, its history may contradict this set.
                        let age = Age { checked: call.now, gone: false };
                        let value = Arc::new(StoredProofSet { predecessor: None, current: Arc::new(set), age });
                        Ok(Aged { age, value })
                    }
                }
            }
            Err(SetFetchError::Absent(error)) => self.set_is_gone(upstream, package, before, &error, call).await,
            Err(SetFetchError::Failed(error)) => Err(error),
        }
    }

    /// Fetches and verifies a set. Does not compare it with earlier sets of the version.
    #[expect(clippy::too_many_arguments, reason = "what is asked for, of whom, and on what it may build")]
    pub(in crate::mirror) async fn fetch_verified_set(
        self: &Arc<Self>,
        subject: &str,
        upstream: &Upstream,
        package: &Package,
        trust: DiscoveryTrust,
        build_on: Option<&StoredProofSet>,
        retries: usize,
        unlisted: UnlistedPolicy,
        call: &RequestContext,
    ) -> Result<ProofSet, SetFetchError> {
        let (base, credential_scope) =
            self.documents.resolve_service(Service::Providers, upstream, trust, call).await?;
        let listed = match unlisted {
            UnlistedPolicy::Refused => {
                self.documents
                    .must_be_listed(package, upstream.rule(|fresh| fresh.download).not_found_lifetime(), call)
                    .await?
            }
            UnlistedPolicy::Fetched => self.documents.listed(package, call).await,
        };
        let spelled = listed.spelled(&package.version);
        let unusable = |reason: String| UpstreamError {
            subject: subject.to_owned(),
            origin: origin(&base),
            fault: Fault::Unusable(reason),
        };
        let url = download_url(&base, &package.provider, &spelled, &package.platform)
            .map_err(|e| Error::from(unusable(e.to_string())))?;
        let visit =
            ProofSetFetch { subject, url: &url, upstream, credential_scope: &credential_scope, package, call, retries };
        let fetched = match self.fetch_and_verify_set(&visit, build_on).await {
            Err(Error::Upstream(error)) if matches!(error.fault, Fault::Absent(_)) && error.subject == subject => {
                return Err(match listed {
                    // A 404 for this spelling proves nothing while the list cannot be read.
                    ListingState::Unknown(Some(unread)) => SetFetchError::Failed(unread),
                    _ => SetFetchError::Absent(error),
                });
            }
            // The document was just revalidated, and one of its files failed: its URLs may have expired.
            Err(Error::Upstream(error)) if error.subject != subject && error.fault.may_be_an_expired_url() => {
                self.fetch_and_verify_set(&visit, None).await
            }
            fetched => fetched,
        };
        fetched.map_err(|error| SetFetchError::Failed(companion_failure(error, subject)))
    }

    async fn set_is_gone(
        self: &Arc<Self>,
        upstream: &Upstream,
        package: &Package,
        before: Option<Arc<StoredProofSet>>,
        error: &UpstreamError,
        call: &RequestContext,
    ) -> SetFlight {
        match before {
            Some(before) if upstream.settings.keep_gone => {
                if !before.age.gone {
                    tracing::warn!(%package, %error, "upstream has deleted it; the stored copy stays (keep_gone)");
                }
                let age = Age { checked: call.now, gone: true };
                self.change_set(package, move |_, stored| {
                    Ok(StoredProofSet { age, ..stored.unwrap_or((*before).clone()) })
                })
                .await
            }
            before => {
                let key = Key::ProofSet(package.clone());
                let until = call.now.after(upstream.rule(|fresh| fresh.download).not_found_lifetime());
                call.config.not_found.insert(key, error.to_string(), until, call.now);
                if before.is_some() && self.runtime.is_current_config(call) {
                    let owned_package = package.clone();
                    self.library.on_disk(move |library| library.remove_set(&owned_package)).await?;
                    self.library.bump_revision(&package.provider);
                }
                Err(Error::NotFound(error.to_string()))
            }
        }
    }
}

pub(in crate::mirror) fn describe_set(package: &Package) -> String {
    format!("the download document of {package}")
}
