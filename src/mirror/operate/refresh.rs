//! Revalidates version lists, stored proof sets and cached locations for an operator, whatever their age. Of one exact
//! version it also asks again for what is not stored and failed before, or has an alarm.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};

use crate::address::{
    Address, Artifact, ModuleAddress, ModulePackage, Package, PackageRef, PackageSelector, ProviderAddress, Selection,
    Version, Versions,
};
use crate::error::Error;
use crate::mirror::documents::DocumentKind;
use crate::mirror::freshness::FlightResult;
use crate::mirror::library::proof_set::StoredProofSet;
use crate::mirror::library::stored_document::{DocumentFlightResult, StoredDocument};
use crate::mirror::library::{AlarmPart, AlarmSubject};
use crate::mirror::modules::fill::RecheckMode;
use crate::mirror::{FetchReason, Operations, RequestContext};
use crate::store::Key;

/// The most sets fetched at a time.
const AT_ONE_TIME: usize = 8;

/// The result of refreshing one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    pub fn of<T>(flight: &FlightResult<T>, is_as_before: impl FnOnce(&T) -> bool) -> Self {
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
    /// Revalidates the version list and the stored sets, even if they are fresh, and forgets cached 404s. Of one exact
    /// version it also asks for the sets, the location and the tree that are not stored, if upstream's last answer about
    /// them failed, or an alarm says that they are refused.
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
        self.library.refresh((&address).into()).await?;
        call.access().permit_any(&address)?;
        let access = self.documents.access_to(&address, call).await?;
        // Of several versions those that no client gets are left out; one that is named says why.
        let is_asked = |version: &Version| matches!(versions, Versions::Exactly(_)) || access.allows(version);
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
                let mut sets = BTreeSet::from_iter(self.library.packages_with_sets_in(selection).await?);
                if let Versions::Exactly(version) = versions {
                    sets.extend(self.remembered_sets(selection, version, call).await);
                }
                sets.retain(|package| is_asked(&package.version));
                let asking = sets.into_iter().map(|package| async {
                    let subject = PackageRef::from(&package);
                    let outcome = self.refresh_set(package, call).await;
                    RefreshResult { package: subject, outcome: outcome.unwrap_or_else(failed) }
                });
                refreshed.extend(stream::iter(asking).buffered(AT_ONE_TIME).collect::<Vec<_>>().await);
            }
            PackageSelector::Module(selection) => {
                let module = Address::Module(call.config.key_of(&selection.of));
                let located = self.library.on_disk(move |library| library.package_documents(&module));
                let mut packages: BTreeSet<Artifact> =
                    located.await?.into_iter().map(|(artifact, _)| artifact).collect();
                packages.retain(|artifact| versions.include(artifact.version()) && is_asked(artifact.version()));
                if let Versions::Exactly(version) = versions {
                    packages.extend(self.remembered_module(&selection.of, version, call));
                }
                for artifact in packages {
                    let Artifact::Module(key) = artifact else { continue };
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
        self.documents.permit(&package.provider, &package.version, call).await?;
        let before = self.proof_sets.usable_set(&package, call).await?.map(|stored| stored.stored_set);
        let seen = before.as_ref().map(|stored_set| stored_set.confirmed);
        let flight = self.proof_sets.join_set_flight(&package, seen, FetchReason::NotStored, call).await;
        if flight.is_ok() {
            // The set names the archive, so a failure of the time before it says nothing any more.
            call.config.last_answers.forget(&Key::Name(Artifact::from(&package)));
        }
        Ok(RefreshOutcome::of(&flight, |now: &Arc<StoredProofSet>| {
            before.is_some_and(|before| before.current.has_same_files(&now.current))
        }))
    }

    /// Refetches a cached location. Checks that a stored version still resolves to the first-seen tree, and fetches the
    /// tree of one that is not stored and was refused.
    async fn refresh_location(&self, package: &ModulePackage, call: &RequestContext) -> Result<RefreshOutcome, Error> {
        self.documents.permit(&package.module, &package.version, call).await?;
        let key = call.config.key_of_package(package);
        let is_tree_refused = self.is_tree_refused(&key, call);
        let (flight, outcome) = self.refresh_document(package, call).await?;
        let Some(fetched) = flight.ok().filter(|fetched| !fetched.confirmed.gone) else { return Ok(outcome) };
        if self.library.stored_module(&key).await?.is_some() {
            let location = fetched.value.as_location(package)?;
            self.modules.recheck(package, &location, RecheckMode::Always, call).await?;
        } else if is_tree_refused {
            self.modules.module_fill(package, call).await?;
        }
        Ok(outcome)
    }

    /// The packages of a version whose last fetch failed, or whose set is refused by an alarm.
    async fn remembered_sets(
        &self,
        selection: &Selection<ProviderAddress>,
        version: &Version,
        call: &RequestContext,
    ) -> BTreeSet<Package> {
        let provider = Address::from(&selection.of);
        let package = |platform| Package { provider: selection.of.clone(), version: version.clone(), platform };
        let answers = call.config.last_answers.packages(&provider, &selection.versions, call.now);
        let mut packages: BTreeSet<Package> = answers
            .into_iter()
            .filter_map(|artifact| match artifact {
                Artifact::Provider(package) => Some(package),
                Artifact::Module(_) => None,
            })
            .collect();
        for AlarmSubject { part, .. } in self.refusals(&provider, version) {
            match part {
                AlarmPart::Platform(platform) => drop(packages.insert(package(platform))),
                // Any platform may end it.
                AlarmPart::Version | AlarmPart::Key(_) => {
                    // A list that cannot be read is a result of its own.
                    if let Ok(Ok(platforms)) = self.listed_platforms(selection, version, call).await {
                        packages.extend(platforms.into_iter().map(package));
                    }
                }
            }
        }
        packages
    }

    /// The module version, if its last fetch failed or its tree is refused by an alarm.
    fn remembered_module(&self, module: &ModuleAddress, version: &Version, call: &RequestContext) -> Option<Artifact> {
        let key = ModulePackage { module: call.config.key_of(module), version: version.clone() };
        let location_failed = call.config.last_answers.get(&Key::location(&key), call.now).is_some();
        (location_failed || self.is_tree_refused(&key, call)).then_some(Artifact::Module(key))
    }

    /// True for a module version whose last fill failed, or that an alarm refuses.
    fn is_tree_refused(&self, key: &ModulePackage, call: &RequestContext) -> bool {
        let name = Key::Name(Artifact::Module(key.clone()));
        call.config.last_answers.get(&name, call.now).is_some()
            || !self.refusals(&(&key.module).into(), &key.version).is_empty()
    }

    /// The alarms that refuse what upstream has of a version.
    fn refusals(&self, address: &Address, version: &Version) -> Vec<AlarmSubject> {
        self.library.alarms.subjects(address, |subject| subject.kind.refuses() && subject.version == *version)
    }
}

fn failed(error: Error) -> RefreshOutcome {
    RefreshOutcome::Failed { error: error.to_string() }
}
