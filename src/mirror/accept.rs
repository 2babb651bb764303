//! What only an operator can decide: that a version which somebody unknown has published anew is right.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};

use super::discovery::Faith;
use super::documents::RETRIES;
use super::proof_set::ProofSet;
pub use super::seen::ChangedFile;
use super::sets::{self, NoSet};
use super::{AlarmKind, Call, Mirror, seen};
use crate::address::{Meant, Package, Platform, ProviderAddress, Version, Versions, What};
use crate::digest::Digest;
use crate::error::Error;

/// How many sets are asked for at one time.
const AT_ONE_TIME: usize = 8;

/// What came of accepting one package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The package.
    pub what: String,
    /// How it went.
    #[serde(flatten)]
    pub ruling: Ruling,
}

/// How the acceptance of one package went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Ruling {
    /// What upstream has now is believed from now on.
    Accepted {
        /// What it changes.
        files: Vec<ChangedFile>,
        /// The fingerprints of the keys that were known for the provider before.
        keys_before: Vec<String>,
        /// The fingerprint of the key that vouches now; none where nobody signed.
        key: Option<String>,
    },
    /// The tree that upstream has now of a version of a module is the right one from now on.
    AcceptedTree {
        /// The digest of the tree that was pinned before; none where nothing was.
        tree_before: Option<Digest>,
        /// That of the one that is pinned now.
        tree: Digest,
        /// The commit that it was before, where it was one.
        commit_before: Option<String>,
        /// The commit that it is now, where it is one.
        commit: Option<String>,
    },
    /// A version of a module is at a source that larder cannot fetch: clients are sent there, and nothing is checked.
    AcceptedElsewhere {
        /// The digest of the tree that was pinned before; none where nobody knows it any more.
        tree_before: Option<Digest>,
        /// What it is, for people.
        source: String,
    },
    /// Upstream has nothing else than what was proven before.
    NothingToAccept,
    /// It could not be had, or does not prove: nothing was accepted.
    Failed {
        /// Why.
        error: String,
    },
}

impl Mirror {
    /// Fetches what upstream has now, proves it as ever, and believes it whatever was proven before. Of a provider
    /// as a whole, and of what meets a constraint, that is every package whose set is held.
    ///
    /// # Errors
    /// [`Error::Sealed`] where nothing may be asked, [`Error::UnknownHost`], and what the version list fails with.
    pub async fn accept(self: &Arc<Self>, what: &What, call: &Call) -> Result<Vec<Accepted>, Error> {
        self.must_be_online(&format!("accepting {what}"))?;
        call.upstream(what.host())?;
        // In a task: who asked may leave, and half a decision is none.
        let (mirror, of, call) = (Arc::clone(self), what.clone(), self.inner(call));
        let work = self.tasks.spawn(async move {
            match &of {
                What::Provider(meant) => mirror.accept_all(meant, &call).await,
                What::Module(meant) => mirror.accept_module(&meant.of, &meant.versions, &call).await,
            }
        });
        match work.await {
            Ok(Some(accepted)) => accepted,
            Ok(None) | Err(_) => Err(Error::Interrupted(format!("accepting {what}"))),
        }
    }

    async fn accept_all(self: &Arc<Self>, what: &Meant<ProviderAddress>, call: &Call) -> Result<Vec<Accepted>, Error> {
        self.forget_absences(what);
        let packages = self.packages_to_accept(what, call).await?;
        let fetching = packages.into_iter().map(|package| async move {
            let fetched = self.current_set(&package, call).await;
            (package, fetched)
        });
        let mut fetching = stream::iter(fetching).buffered(AT_ONE_TIME);
        let (mut proven, mut accepted) = (Vec::new(), Vec::new());
        while let Some((package, fetched)) = fetching.next().await {
            match fetched {
                Ok(set) => proven.push((package, set)),
                Err(error) => {
                    let ruling = Ruling::Failed { error: error.to_string() };
                    accepted.push(Accepted { what: package.to_string(), ruling });
                }
            }
        }
        // All are held against what was proven before any of them is noted: the sums of one version list them all.
        let (provider, now) = (what.of.clone(), self.inner(call).now);
        let noting = self.on_disk(move |mirror| {
            let noted = seen::accept(mirror, &provider, &proven, now)?;
            Ok(proven.into_iter().zip(noted).collect::<Vec<_>>())
        });
        for ((package, set), changes) in noting.await? {
            let key = set.proof().how.fingerprint().map(str::to_owned);
            self.keep_set(&package, set, now).await?;
            self.settled(&package.provider, &package.version, AlarmKind::WaitsForAccept);
            let what = package.to_string();
            let seen::Changes { files, keys_before } = changes;
            let ruling = if files.is_empty() {
                Ruling::NothingToAccept
            } else {
                tracing::warn!(%package, files = files.len(), key, "accepted by the operator: a version that was published anew");
                Ruling::Accepted { files, keys_before, key }
            };
            accepted.push(Accepted { what, ruling });
        }
        accepted.sort_by(|one, other| one.what.cmp(&other.what));
        Ok(accepted)
    }

    /// The held packages; of one version, those that upstream lists, too.
    async fn packages_to_accept(
        self: &Arc<Self>,
        what: &Meant<ProviderAddress>,
        call: &Call,
    ) -> Result<Vec<Package>, Error> {
        let held = self.held_packages(what).await?;
        let Versions::Exactly(version) = &what.versions else { return Ok(held) };
        let listed = match self.listed_platforms(what, version, call).await {
            Ok(platforms) => platforms,
            Err(error) if held.is_empty() => return Err(error),
            Err(error) => {
                tracing::warn!(%what, %error, "the version list cannot be read: what is held alone is accepted anew");
                return Ok(held);
            }
        };
        let package = |platform| Package { provider: what.of.clone(), version: version.clone(), platform };
        let packages: BTreeSet<Package> = listed.into_iter().map(package).chain(held).collect();
        Ok(packages.into_iter().collect())
    }

    async fn listed_platforms(
        self: &Arc<Self>,
        what: &Meant<ProviderAddress>,
        version: &Version,
        call: &Call,
    ) -> Result<Vec<Platform>, Error> {
        let list = self.provider_versions(&what.of, call).await?.value.versions().await;
        let list = list.map_err(|why| Error::NotFound(format!("the version list of {}: {why}", what.of)))?;
        let listed = list.get(version).ok_or_else(|| Error::NotFound(format!("upstream lists no {what}")))?;
        Ok(listed.platforms.clone())
    }

    /// The set that upstream has now, proven. Nothing of it is built on what is held: it is judged as a whole.
    async fn current_set(self: &Arc<Self>, package: &Package, call: &Call) -> Result<ProofSet, Error> {
        let asked = sets::what(package);
        let upstream = Arc::clone(call.upstream(&package.provider.host)?);
        let work = async {
            match self.ask_for_set(&asked, &upstream, package, Faith::InAny, None, RETRIES, call).await {
                Ok(set) => Ok(set),
                Err(NoSet::Absent(error)) => Err(Error::NotFound(error.to_string())),
                Err(NoSet::Failed(error)) => Err(error),
            }
        };
        self.within_limits(&asked, &package.provider.host, work).await
    }
}
