//! Serves, revalidates, fetches and replaces proof sets.

pub mod fetch;
pub mod files;

use std::sync::Arc;

use crate::address::{Address, Package, Version};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::counters::ObjectKind;
use crate::mirror::freshness::{Confirmation, Confirmed, FlightResult, FreshnessDecision, decide};
use crate::mirror::library::alarms::AlarmFinding;
use crate::mirror::library::first_seen::HistoryRefusal;
use crate::mirror::library::proof_set::{ProofSet, SetStep, StoredProofSet, UsableProofSet, imported_differs};
use crate::mirror::library::provider_history::Admission;
use crate::mirror::library::{Signer, default_if_store_unavailable, observation};
use crate::mirror::proof_sets::fetch::SetBasis;
use crate::mirror::request_context::{ConfigAndProxyPath, DocumentRequest};
use crate::mirror::single_flight::{SharedResult, SingleFlights};
use crate::mirror::tasks::WorkLimit;
use crate::mirror::{AlarmKind, Answer, Documents, FetchReason, Library, Outcome, RequestContext, Runtime};
use crate::store::{Durability, Key, StoreError};
use crate::upstream::discovery::Service;
use crate::upstream::error::Fault;
use crate::upstream::outbound::Connectivity;
use crate::verify::ProofBasis;

/// The most proof sets verified at a time; each may take a second of CPU.
const MAX_CONCURRENT_VERIFICATIONS: usize = 2;
/// The download document, SHA256SUMS and the signature.
pub const REQUESTS_PER_SET: u32 = 3;

pub type SetFlightResult = FlightResult<Arc<StoredProofSet>>;

/// Returns true for a fetch that failed because upstream has no such package.
pub fn is_absent(error: &Error) -> bool {
    matches!(error, Error::Upstream(error) if matches!(error.fault, Fault::Absent(_)))
}

/// Fetches, verifies and serves proof sets.
#[derive(Debug)]
pub struct ProofSets {
    pub(in crate::mirror) runtime: Arc<Runtime>,
    pub(in crate::mirror) library: Arc<Library>,
    pub(in crate::mirror) documents: Arc<Documents>,
    flights: SingleFlights<(Package, FetchReason, ConfigAndProxyPath), SharedResult<SetFlightResult>>,
    verification_limit: WorkLimit,
}

impl ProofSets {
    pub(in crate::mirror) fn new(runtime: Arc<Runtime>, library: Arc<Library>, documents: Arc<Documents>) -> Arc<Self> {
        let verification_limit = WorkLimit::of(MAX_CONCURRENT_VERIFICATIONS);
        Arc::new(Self { runtime, library, documents, flights: SingleFlights::default(), verification_limit })
    }

    /// Returns the proof set to serve for a package: the current one, or its predecessor while only that one's archive
    /// is stored and upstream does not answer (promise 2).
    pub async fn proof_set(
        self: &Arc<Self>,
        package: &Package,
        call: &RequestContext,
    ) -> Result<Answer<Arc<ProofSet>>, Error> {
        self.documents.permit(&package.provider, &package.version, call).await?;
        let mut request = self.set_request(package, call)?;
        let stored = self.usable_set(package, call).await?;
        if let Some(stored) = stored.as_ref().filter(|stored| !stored.stored_set.confirmed.gone) {
            let url = &stored.stored_set.current.metadata.asked;
            let documents = &self.documents;
            let rule = documents.rule_if_service_moved(Service::Providers, url, &request.upstream, request.rule);
            request.rule = rule.await?;
        }
        let fallback = stored.as_ref().and_then(|stored| stored.fallback.clone());
        if stored.is_none() {
            call.refuse_if_absent(&Key::ProofSet(package.clone()))?;
        }
        if self.runtime.connectivity() == Connectivity::Offline {
            let has_archive = match &stored {
                Some(archive) => self.library.file_is_at_hand(archive.offline_set().document.shasum).await?,
                None => false,
            };
            if !has_archive {
                return Err(self.offline_package_error(package, request.subject, call).await);
            }
        }
        let seen = stored.as_ref().map(|stored| stored.stored_set.confirmed);
        let fetched = stored.map(|stored| {
            let mut confirmed = stored.stored_set.confirmed;
            if stored.fallback.is_some() {
                // Revalidate now: the predecessor is served only if upstream cannot be reached.
                confirmed.checked = Timestamp(0);
            }
            Confirmed { confirmed, value: stored.stored_set }
        });
        let start_flight =
            |fetch_reason, call: &RequestContext| self.join_set_flight(package, seen, fetch_reason, call);
        let answer = self.documents.serve_or_fetch(&request, call, fetched, start_flight).await;
        let answer = answer.inspect_err(|error| self.library.record_if_offline(error, call, || package.into()))?;
        let outcome = answer.outcome;
        let answer = answer.map(|stored| Arc::clone(&stored.current));
        Ok(match fallback {
            None => answer,
            Some(value) if matches!(outcome, Outcome::Stale | Outcome::Gone) => {
                let checked = seen.map_or(answer.checked, |confirmed| confirmed.checked);
                Answer { value, outcome, fresh_until: call.now, checked }
            }
            // While only the predecessor's archive is stored, every request revalidates.
            Some(_) => Answer { fresh_until: call.now, ..answer },
        })
    }

    /// The request for the set of a package.
    pub fn set_request(&self, package: &Package, call: &RequestContext) -> Result<DocumentRequest, Error> {
        let upstream = Arc::clone(call.upstream(&package.provider.host)?);
        let rule = upstream.freshness_rule(|fresh| fresh.download);
        Ok(DocumentRequest { subject: describe_set(package), key: Key::ProofSet(package.clone()), upstream, rule })
    }

    /// The error for a package that is not stored while offline.
    async fn offline_package_error(&self, package: &Package, subject: String, call: &RequestContext) -> Error {
        let missing = self.library.missing_error(package, subject, call).await;
        match (&missing, self.is_version_known(package).await) {
            // A 404 tells the client that other platforms may exist. The package is recorded as missing all the same.
            (Error::Offline(_), Ok(true)) if !call.is_step() => Error::NotFound(missing.to_string()),
            (_, Err(error)) => error,
            _ => missing,
        }
    }

    /// Returns true if the version is in the stored version list, or if a set of another platform is stored.
    async fn is_version_known(&self, package: &Package) -> Result<bool, Error> {
        let Package { provider, version, .. } = package;
        if !self.library.platforms_with_sets(provider, version).await?.is_empty() {
            return Ok(true);
        }
        let list = self.library.stored_version_list(&provider.into()).await?;
        Ok(list.is_some_and(|list| list.get(&package.version).is_some()))
    }

    /// Reads the stored set, of any replica. A set that does not meet today's `verification` counts as not stored (promise 1).
    pub async fn usable_set(
        self: &Arc<Self>,
        package: &Package,
        call: &RequestContext,
    ) -> Result<Option<UsableProofSet>, Error> {
        let policy = call.upstream(&package.provider.host)?.settings.verification;
        let package = package.clone();
        let find = move |library: &Library| {
            let group = Key::ProofSet(package.clone()).group();
            library.find(&group, || {
                let stored = default_if_store_unavailable(library.read_set(&package))?;
                Ok(stored.and_then(|stored| stored.meeting_policy(policy)))
            })
        };
        self.library.on_disk(find).await
    }

    /// Joins or starts the fetch of a package's set. `seen` is the confirmation of the copy that the caller read.
    pub fn join_set_flight(
        self: &Arc<Self>,
        package: &Package,
        seen: Option<Confirmation>,
        fetch_reason: FetchReason,
        call: &RequestContext,
    ) -> SharedResult<SetFlightResult> {
        let key = (package.clone(), fetch_reason, call.config_and_proxy_path());
        let work = || {
            let (proof_sets, package, call) = (Arc::clone(self), package.clone(), self.runtime.flight_context(call));
            async move {
                let request = proof_sets.set_request(&package, &call)?;
                let work = proof_sets.fetch_set(&request, &package, seen, fetch_reason, &call);
                proof_sets.runtime.with_deadline(&request, &call, work).await
            }
        };
        let if_task_dies = Err(Error::Interrupted(describe_set(package)));
        self.flights.join_or_spawn(call.effects(), &self.runtime.tasks, key, if_task_dies, work)
    }

    async fn fetch_set(
        self: &Arc<Self>,
        request: &DocumentRequest,
        package: &Package,
        seen: Option<Confirmation>,
        fetch_reason: FetchReason,
        call: &RequestContext,
    ) -> SetFlightResult {
        let DocumentRequest { subject, key, rule, .. } = request;
        self.library.refresh(key.group()).await?;
        let before = self.usable_set(package, call).await?.map(|stored| stored.stored_set);
        let is_expired = fetch_reason == FetchReason::ExpiredUrl;
        if let Some(before) = before.as_ref().filter(|before| !is_expired && seen != Some(before.confirmed)) {
            // Another flight, or another replica, has stored a newer set since the caller read the store.
            if decide(before.confirmed, rule, self.runtime.connectivity(), call.now) == FreshnessDecision::Serve {
                return Ok(Confirmed { confirmed: before.confirmed, value: Arc::clone(before) });
            }
        }
        self.runtime.spend_revalidation_budget(request, fetch_reason, REQUESTS_PER_SET, call)?;
        let basis = match &before {
            None => SetBasis::Nothing,
            Some(_) if is_expired => SetBasis::Expired,
            Some(before) => SetBasis::Stored(before),
        };
        let located = self.locate_set(package, basis, call).await?;
        let replay = || {
            let patience = if before.is_some() { rule.patience } else { self.runtime.limits.answer_within };
            call.config.last_answers.replay(key, subject, patience, call.now)?;
            let value = before.clone().ok_or_else(|| Error::WouldAsk(subject.clone()))?;
            Ok(Confirmed { confirmed: Confirmation { checked: call.now, ..value.confirmed }, value })
        };
        let ask = Box::pin(async {
            match self.fetch_located_set(package, basis, located, call).await {
                Ok(set) => self.judge_set(package, set, call).await,
                Err(error) if is_absent(&error) => self.set_is_gone(package, before.clone(), &error, call).await,
                Err(error) => Err(error),
            }
        });
        call.ask(key, rule.patience, ask, replay).await
    }

    /// Judges a verified set, just fetched, by the history of its version, and stores it unless it is refused.
    pub async fn judge_set(
        self: &Arc<Self>,
        package: &Package,
        set: ProofSet,
        call: &RequestContext,
    ) -> SetFlightResult {
        let admitted = self.library.admit(package, &set, Signer::of(&set.proof().how), call.now).await?;
        let admission = match admitted {
            Ok(admission) => admission,
            Err(refusal) => return Err(self.refused_set(package, &set, &refusal, call).await),
        };
        match admission {
            Admission::Consistent | Admission::Changed(_) => self.store_set(package, set, call.now, call.now).await,
            Admission::HistoryUnavailable => {
                // Once the store is back, its history may contradict this set.
                let confirmed = Confirmation { checked: call.now, gone: false };
                let value = Arc::new(StoredProofSet { predecessor: None, current: Arc::new(set), confirmed });
                Ok(Confirmed { confirmed, value })
            }
        }
    }

    /// The error for a set that the history of its version refuses. Where the archive is another one than before, the other public
    /// registry is asked about it.
    async fn refused_set(
        self: &Arc<Self>,
        package: &Package,
        set: &ProofSet,
        refusal: &HistoryRefusal,
        call: &RequestContext,
    ) -> Error {
        let opinion = match refusal.changed_archive(set) {
            Some((before, now)) => {
                let opinion = self.documents.second_opinion(package, &set.document.archive_url, call).await;
                opinion.map(|opinion| opinion.of_change(before, now))
            }
            None => None,
        };
        let instead = self.stored_version_before(package, call).await;
        refusal.error(package, set, opinion.unwrap_or_else(|| refusal.to_string()), instead)
    }

    /// The newest version before a refused one that clients could install from the store.
    async fn stored_version_before(self: &Arc<Self>, package: &Package, call: &RequestContext) -> Option<Box<Version>> {
        let upstream = call.upstream(&package.provider.host).ok()?;
        let address = Address::from(&package.provider);
        // A refusal waits for nothing else.
        if call.access().needs_ages(&address) {
            return None;
        }
        let access = self.documents.access_to(&address, call).await.ok()?;
        let (package, policy) = (package.clone(), upstream.settings.verification);
        let find = move |library: &Library| {
            library.newest_stored_before(&package, policy, |version| access.permit(version).is_ok())
        };
        self.library.on_disk(find).await.ok().flatten().map(Box::new)
    }

    async fn set_is_gone(
        self: &Arc<Self>,
        package: &Package,
        before: Option<Arc<StoredProofSet>>,
        error: &Error,
        call: &RequestContext,
    ) -> SetFlightResult {
        let upstream = call.upstream(&package.provider.host)?;
        match before {
            Some(before) if upstream.settings.keep_gone => {
                if !before.confirmed.gone {
                    tracing::warn!(%package, %error, "upstream has deleted it; the stored copy stays (keep_gone)");
                }
                let confirmed = Confirmation { checked: call.now, gone: true };
                self.change_set(package, move |_, stored| {
                    Ok(StoredProofSet { confirmed, ..stored.unwrap_or((*before).clone()) })
                })
                .await
            }
            before => {
                let (key, lifetime) = (Key::ProofSet(package.clone()), upstream.not_found_lifetime());
                let absence = call.remember_absence(key, error.to_string(), lifetime);
                if before.is_some() && self.runtime.is_current_config(call) {
                    let owned_package = package.clone();
                    self.library.on_disk(move |library| library.remove_set(&owned_package)).await?;
                }
                Err(absence)
            }
        }
    }

    /// Replaces a package's set by one that upstream confirmed at `checked`. The old set becomes the predecessor, unless
    /// it was imported without signatures.
    pub async fn store_set(
        self: &Arc<Self>,
        package: &Package,
        set: ProofSet,
        checked: Timestamp,
        now: Timestamp,
    ) -> SetFlightResult {
        self.replace_imported_set(package, &set, now).await?;
        let current = Arc::new(set);
        self.change_set(package, move |step, stored| {
            let predecessor = step.predecessor_of(&current, stored, now)?;
            Ok(StoredProofSet {
                predecessor,
                current: Arc::clone(&current),
                confirmed: Confirmation { checked, gone: false },
            })
        })
        .await
    }

    /// Makes the next request for a package's set revalidate it, unless it was replaced meanwhile.
    pub async fn expire_set(self: &Arc<Self>, package: &Package, wrong: Digest) -> Result<(), Error> {
        let owned_package = package.clone();
        let expire = move |library: &Library| {
            let expired = library.change_set(&owned_package, Durability::Lazy, |_, stored| {
                let stored = stored?.filter(|stored| stored.current.document.shasum == wrong);
                let expired = |stored: StoredProofSet| {
                    let (confirmed, last_use) = (stored.confirmed, stored.current.fetched());
                    let confirmed = Confirmation { checked: Timestamp(0), ..confirmed };
                    (StoredProofSet { confirmed, ..stored }, last_use)
                };
                Ok(((), stored.map(expired)))
            });
            expired?.1
        };
        self.library.on_disk(expire).await?;
        Ok(())
    }

    /// Replaces a package's set by the result of `change`. A stored set that was confirmed later stays. A failed write
    /// is logged, and the caller still gets the set.
    async fn change_set(
        self: &Arc<Self>,
        package: &Package,
        change: impl Fn(&SetStep<'_>, Option<StoredProofSet>) -> Result<StoredProofSet, StoreError> + Send + 'static,
    ) -> SetFlightResult {
        let owned_package = package.clone();
        let changed = self.library.on_disk(move |library| {
            let ((changed, is_put), written) = library.change_set(&owned_package, Durability::Lazy, |step, read| {
                // Do not overwrite a set that was not read: the store may be back by now.
                let is_gone = matches!(read, Err(StoreError::Unavailable));
                let stored = default_if_store_unavailable(read)?;
                let changed = change(step, stored.clone())?;
                if let Some(before) = stored
                    .filter(|before| before.confirmed.is_confirmed_after(changed.confirmed, changed.confirmed.checked))
                {
                    return Ok(((before, false), None));
                }
                let to_put = (!is_gone).then(|| (changed.clone(), changed.confirmed.checked));
                Ok(((changed, !is_gone), to_put))
            })?;
            match written {
                Ok(()) if is_put => library.count_stored(ObjectKind::Document),
                Ok(()) => return Ok(changed),
                Err(error) => {
                    tracing::error!(package = %owned_package, %error, "a proof set could not be stored");
                    library.count_not_stored(ObjectKind::Document, &error);
                }
            }
            library.enforce_size_limit();
            Ok(changed)
        });
        let changed = Arc::new(changed.await?);
        Ok(Confirmed { confirmed: changed.confirmed, value: changed })
    }

    /// Stores an unsigned set, unless a verified one is stored by now. Returns the set in place.
    pub async fn keep_unsigned(
        self: &Arc<Self>,
        package: &Package,
        set: ProofSet,
        call: &RequestContext,
    ) -> Result<Arc<StoredProofSet>, Error> {
        let policy = call.upstream(&package.provider.host)?.settings.verification;
        let current = Arc::new(set);
        let stored = self.change_set(package, move |_, stored| {
            let is_proven = |stored: &StoredProofSet| {
                let how = &stored.current.proof().how;
                *how != ProofBasis::Imported && policy.is_met_by(how)
            };
            Ok(match stored.filter(is_proven) {
                Some(proven) => proven,
                // Stale at once, so that upstream is asked as soon as it can be. Marked as deleted upstream, so that it
                // is evicted last.
                None => {
                    let confirmed = Confirmation { checked: Timestamp(0), gone: true };
                    StoredProofSet { current: Arc::clone(&current), predecessor: None, confirmed }
                }
            })
        });
        Ok(stored.await?.value)
    }

    /// Prepares to replace an unsigned set by a verified one: raises an alarm if the bytes differ, or marks the stored
    /// archive as verified.
    async fn replace_imported_set(&self, package: &Package, set: &ProofSet, now: Timestamp) -> Result<(), Error> {
        let (package, digest) = (package.clone(), set.document.shasum);
        let (proof, filename) = (set.proof().clone(), set.document.filename.clone());
        let facts = set.checksums().map(|sums| observation(&package, set, &sums).facts()).unwrap_or_default();
        let replace = move |library: &Library| {
            let stored = default_if_store_unavailable(library.read_set(&package))?.map(|stored| stored.stored_set);
            let imported = stored.filter(|stored_set| stored_set.current.was_imported());
            let Some(before) = imported.map(|imported| imported.current.document.shasum) else { return Ok(()) };
            if before == digest {
                tracing::info!(%package, "an unsigned import is verified now: it equals upstream's archive");
                return library.change_archive(&package, &digest, |archive| {
                    (archive.proof, archive.filename) = (proof.clone(), filename.clone());
                });
            }
            if library.is_repacked(&package, before)? {
                tracing::info!(%package, "an unpacked import is replaced by upstream's archive from now on");
                return Ok(());
            }
            tracing::error!(%package, imported = %before, upstream = %digest, "ALARM: an unsigned import differs from upstream's archive; upstream's is served from now on");
            let Package { provider, version, .. } = &package;
            library.raise_alarm(
                provider,
                AlarmKind::ImportedDiffers.of(version),
                AlarmFinding { detail: imported_differs(before, digest), facts: facts.iter().cloned().collect() },
                now,
            );
            Ok(())
        };
        self.library.on_disk(replace).await
    }
}

/// Names the set of a package, for messages.
pub fn describe_set(package: &Package) -> String {
    Key::ProofSet(package.clone()).to_string()
}
