//! Revalidates version lists, stored proof sets and cached locations for an operator, whatever their age.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};

use crate::address::{Address, Artifact, ModulePackage, Package, PackageRef, PackageSelector};
use crate::error::Error;
use crate::mirror::documents::DocumentKind;
use crate::mirror::documents::revalidate::FlightResult;
use crate::mirror::library::proof_set::StoredProofSet;
use crate::mirror::library::stored_document::{DocumentFlightResult, StoredDocument};
use crate::mirror::modules::fill::RecheckMode;
use crate::mirror::{FetchReason, Operations, RequestContext};

/// The most sets fetched at a time.
const AT_ONE_TIME: usize = 8;

/// The result of refreshing one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefreshResult {
    /// The object.
    #[serde(flatten)]
    pub package: PackageRef,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: RefreshOutcome,
}

/// The outcome of refreshing one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum RefreshOutcome {
    /// The stored copy is unchanged.
    Unchanged,
    /// It was not stored before, or it has changed.
    New,
    /// Upstream has deleted it. The stored copy stays.
    Gone,
    /// Upstream does not have it, and no copy is stored.
    Absent {
        /// Upstream's answer.
        error: String,
    },
    /// The fetch or the verification failed. The stored copy stays.
    Failed {
        /// The cause.
        error: String,
    },
}

impl RefreshOutcome {
    /// The outcome of a flight; `is_as_before` compares its result with the stored copy.
    pub(in crate::mirror) fn of<T>(flight: &FlightResult<T>, is_as_before: impl FnOnce(&T) -> bool) -> Self {
        match flight {
            Ok(fetched) if fetched.confirmed.gone => Self::Gone,
            Ok(fetched) if is_as_before(&fetched.value) => Self::Unchanged,
            Ok(_) => Self::New,
            Err(Error::NotFound(error)) => Self::Absent { error: error.clone() },
            Err(error) => Self::Failed { error: error.to_string() },
        }
    }

    /// Returns true if upstream was asked, and has the object or had it.
    pub fn succeeded(&self) -> bool {
        !matches!(self, Self::Failed { .. } | Self::Absent { .. })
    }
}

impl Operations {
    /// Revalidates the version list and the stored sets, even if they are fresh, and forgets cached 404s.
    ///
    /// # Errors
    /// [`Error::Sealed`] while offline, and [`Error::UnknownHost`].
    pub async fn refresh(
        &self,
        selector: &PackageSelector,
        call: &RequestContext,
    ) -> Result<Vec<RefreshResult>, Error> {
        self.runtime.must_be_online(&format!("asking for {selector} again"))?;
        call.upstream(selector.host())?;
        let (address, versions) = (selector.address(), selector.versions());
        self.runtime.forget_absences(&call.config.canonical(&address), versions);
        let mut refreshed = Vec::new();
        // An operator's request is sent even during backoff, so the location is refreshed first.
        if let Err(error) = self.refresh_document(selector.host(), call).await.and_then(|(flight, _)| flight) {
            refreshed.push(RefreshResult { package: PackageRef::discovery(selector.host()), outcome: failed(error) });
        }
        let list = self.refresh_document(&address, call).await.map_or_else(failed, |(_, outcome)| outcome);
        refreshed.push(RefreshResult { package: PackageRef::version_list(&address), outcome: list });
        // A failure of one does not stop the others.
        match selector {
            PackageSelector::Provider(selection) => {
                let sets = self.library.packages_with_sets_in(selection).await?;
                let asking = sets.into_iter().map(|package| async {
                    let subject = PackageRef::from(&package);
                    let outcome = self.refresh_set(package, call).await;
                    RefreshResult { package: subject, outcome: outcome.unwrap_or_else(failed) }
                });
                refreshed.extend(stream::iter(asking).buffered(AT_ONE_TIME).collect::<Vec<_>>().await);
            }
            PackageSelector::Module(selection) => {
                let key = call.config.key_of(&selection.of);
                let located =
                    self.library.on_disk(move |library| library.store.records.package_documents(&Address::Module(key)));
                for (artifact, _) in located.await? {
                    let Artifact::Module(key) = artifact else { continue };
                    if !versions.include(&key.version) {
                        continue;
                    }
                    let package = ModulePackage { module: selection.of.clone(), version: key.version.clone() };
                    let outcome = self.refresh_location(&package, call).await.unwrap_or_else(failed);
                    refreshed.push(RefreshResult { package: (&key).into(), outcome });
                }
            }
        }
        Ok(refreshed)
    }

    /// Fetches a document even if it is fresh. Returns the fetched document too.
    async fn refresh_document<K: DocumentKind>(
        &self,
        kind: &K,
        call: &RequestContext,
    ) -> Result<(DocumentFlightResult, RefreshOutcome), Error> {
        let before = self.library.stored_document(&kind.key(&call.config)).await?;
        let seen = before.as_ref().map(|stored| stored.confirmed);
        let flight = self.documents.fetch_now(kind, seen, call).await;
        let outcome = RefreshOutcome::of(&flight, |now: &Arc<StoredDocument>| {
            before.is_some_and(|before| before.value.has_same_content(now))
        });
        Ok((flight, outcome))
    }

    async fn refresh_set(&self, package: Package, call: &RequestContext) -> Result<RefreshOutcome, Error> {
        let before = self.proof_sets.usable_set(&package, call).await?.map(|stored| stored.stored_set);
        let seen = before.as_ref().map(|stored_set| stored_set.confirmed);
        let flight = self.proof_sets.join_set_flight(&package, seen, FetchReason::NotStored, call).await;
        Ok(RefreshOutcome::of(&flight, |now: &Arc<StoredProofSet>| {
            before.is_some_and(|before| before.current.has_same_files(&now.current))
        }))
    }

    /// Refetches a cached location, and checks that a stored version still resolves to the first-seen tree.
    async fn refresh_location(&self, package: &ModulePackage, call: &RequestContext) -> Result<RefreshOutcome, Error> {
        let (flight, outcome) = self.refresh_document(package, call).await?;
        if let Ok(fetched) = &flight
            && !fetched.confirmed.gone
            && self.library.stored_module(&call.config.key_of_package(package)).await?.is_some()
        {
            let location = fetched.value.as_location(package)?;
            self.modules.recheck(package, &location, RecheckMode::Always, call).await?;
        }
        Ok(outcome)
    }
}

fn failed(error: Error) -> RefreshOutcome {
    RefreshOutcome::Failed { error: error.to_string() }
}
