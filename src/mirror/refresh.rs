//! What an operator wants asked again now, whatever its age: a provider's version list, and the sets that are held.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};

use super::proof_set::KeptSet;
use super::pull::Flight;
use super::sets::ProofSetRefresh;
use super::{FetchReason, Mirror, RequestContext};
use crate::address::{Package, PackageRef, PackageSelector, ProviderAddress, Selection};
use crate::error::Error;
use crate::store::Key;
use crate::upstream::Upstream;

/// How many sets are asked for at one time.
const AT_ONE_TIME: usize = 8;

/// What came of asking for one thing again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refreshed {
    /// What was asked for.
    #[serde(flatten)]
    pub package: PackageRef,
    /// What upstream said.
    #[serde(flatten)]
    pub news: News,
}

/// What upstream said to what was asked again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum News {
    /// It is as it is held.
    Unchanged,
    /// It was not held, or is another now.
    New,
    /// Upstream has deleted it; what is held is kept.
    Gone,
    /// Upstream does not have it, and nothing is held.
    Absent {
        /// What upstream said.
        error: String,
    },
    /// It could not be asked, or what came does not prove: what is held stays.
    Failed {
        /// Why.
        error: String,
    },
}

impl News {
    /// Tells what came of a flight; `is_as_before` holds what it brought against what was held.
    pub(super) fn of<T>(flight: Flight<T>, is_as_before: impl FnOnce(&T) -> bool) -> Self {
        match flight {
            Ok(landed) if landed.age.gone => Self::Gone,
            Ok(landed) if is_as_before(&landed.value) => Self::Unchanged,
            Ok(_) => Self::New,
            Err(Error::NotFound(error)) => Self::Absent { error },
            Err(error) => Self::Failed { error: error.to_string() },
        }
    }

    /// Whether upstream was asked and has it, or had it.
    pub fn is_well(&self) -> bool {
        !matches!(self, Self::Failed { .. } | Self::Absent { .. })
    }
}

impl Mirror {
    /// Asks upstream again for the version list and the held sets, however fresh they are; forgets that it said no.
    ///
    /// # Errors
    /// [`Error::Sealed`] where nothing may be asked, and [`Error::UnknownHost`].
    pub async fn refresh(
        self: &Arc<Self>,
        what: &PackageSelector,
        call: &RequestContext,
    ) -> Result<Vec<Refreshed>, Error> {
        self.must_be_online(&format!("asking for {what} again"))?;
        match what {
            PackageSelector::Provider(meant) => self.refresh_provider(meant, call).await,
            PackageSelector::Module(meant) => self.refresh_module(meant, call).await,
        }
    }

    async fn refresh_provider(
        self: &Arc<Self>,
        what: &Selection<ProviderAddress>,
        call: &RequestContext,
    ) -> Result<Vec<Refreshed>, Error> {
        let upstream = Arc::clone(call.upstream(&what.of.host)?);
        self.forget_absences(what);
        let mut refreshed = Vec::new();
        // What an operator asks for is asked, also while the origin is left alone; so where to ask is asked first.
        if let Err(error) = self.refresh_discovery(&what.of.host, call).await {
            let package = PackageRef::discovery(&what.of.host);
            refreshed.push(Refreshed { package, news: News::Failed { error: error.to_string() } });
        }
        let list = self.refresh_versions(&what.of, call).await;
        let list = list.unwrap_or_else(|error| News::Failed { error: error.to_string() });
        refreshed.push(Refreshed { package: PackageRef::version_list(&what.of), news: list });
        let sets = self.held_packages(what).await?;
        let asking = sets.into_iter().map(|package| async {
            let of = PackageRef::from(&package);
            // What is wrong with one keeps nobody from the others.
            let news = self.refresh_set(Arc::clone(&upstream), package, call).await;
            Refreshed { package: of, news: news.unwrap_or_else(|error| News::Failed { error: error.to_string() }) }
        });
        let mut asking = stream::iter(asking).buffered(AT_ONE_TIME);
        while let Some(set) = asking.next().await {
            refreshed.push(set);
        }
        Ok(refreshed)
    }

    async fn refresh_versions(
        self: &Arc<Self>,
        address: &ProviderAddress,
        call: &RequestContext,
    ) -> Result<News, Error> {
        let before = self.held_document(&Key::ProviderVersions(address.clone())).await?;
        let seen = before.as_ref().map(|held| held.age);
        let flight = self.ask_versions_again(address, seen, call).await;
        Ok(News::of(flight, |now| before.is_some_and(|before| before.value.says_the_same_as(now))))
    }

    async fn refresh_set(
        self: &Arc<Self>,
        upstream: Arc<Upstream>,
        package: Package,
        call: &RequestContext,
    ) -> Result<News, Error> {
        let before = self.held_set(&package, call).await?.map(|held| held.kept);
        let seen = before.as_ref().map(|kept| kept.age);
        let flight = self.fly(&package, upstream, seen, ProofSetRefresh::IfChanged(FetchReason::Fetch), call).await;
        Ok(News::of(flight, |now: &Arc<KeptSet>| {
            before.is_some_and(|before| before.current.names_the_same_files_as(&now.current))
        }))
    }

    /// The packages that an operator means and whose sets are held.
    pub(super) async fn held_packages(
        self: &Arc<Self>,
        what: &Selection<ProviderAddress>,
    ) -> Result<Vec<Package>, Error> {
        let what = what.clone();
        self.on_disk(move |mirror| {
            let mut packages = mirror.store.records.packages_with_sets(&what.of)?;
            packages.retain(|package| what.versions.include(&package.version));
            packages.sort();
            Ok(packages)
        })
        .await
    }

    /// Forgets that upstream said no to what an operator means.
    pub(super) fn forget_absences(&self, what: &Selection<ProviderAddress>) {
        let means = |package: &Package| package.provider == what.of && what.versions.include(&package.version);
        let terms = self.terms();
        terms.absent.forget(|key| match key {
            Key::ProofSet(package) => means(package),
            Key::ProviderVersions(address) => *address == what.of,
            Key::Discovery(_)
            | Key::ModuleVersions(_)
            | Key::ModuleLocation(_)
            | Key::Page(..)
            | Key::SeenModule(_)
            | Key::Name(_)
            | Key::Seen(_)
            | Key::FirstSeen(..)
            | Key::KeyLog(_)
            | Key::FirstListed(_)
            | Key::Alarms(_)
            | Key::Job(_)
            | Key::RecurringJobs
            | Key::Missing => false,
        });
        terms.asked_anew.forget(means);
    }

    pub(super) fn must_be_online(&self, what: &str) -> Result<(), Error> {
        match self.link() {
            super::Link::Online => Ok(()),
            super::Link::Offline => Err(Error::Sealed(what.to_owned())),
        }
    }
}
