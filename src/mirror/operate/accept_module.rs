//! Accepts a moved module version on an operator's word.

use crate::mirror::Operations;
use std::sync::Arc;

use crate::address::{ModuleAddress, ModulePackage, Versions};
use crate::error::Error;
use crate::mirror::library::intake::TreeExpectation;
use crate::mirror::library::module_history::{self, FirstSeenLookup};
use crate::mirror::{AcceptOutcome, AcceptResult, RequestContext};
use crate::upstream::source::PackageSource;

impl Operations {
    /// Fetches the selected versions and pins their current trees. For a whole module or a constraint, that is every
    /// version that has moved or whose record is lost.
    pub(in crate::mirror) async fn accept_module(
        self: &Arc<Self>,
        module: &ModuleAddress,
        versions: &Versions,
        call: &RequestContext,
    ) -> Result<Vec<AcceptResult>, Error> {
        let module_key = call.config.key_of(module);
        let mut packages = match versions {
            Versions::Exactly(version) => vec![ModulePackage { module: module_key, version: version.clone() }],
            versions => self.moved_modules(module_key, versions.clone()).await?,
        };
        packages.sort();
        let mut accepted = Vec::new();
        for key in packages {
            let package = ModulePackage { module: module.clone(), version: key.version.clone() };
            let outcome = match self.accept_package(&package, &key, call).await {
                Ok(outcome) => outcome,
                Err(error @ Error::NotFound(_))
                    if self
                        .library
                        .resolve_alarms_async(crate::mirror::modules::RESOLVED_BY_ACCEPT, &key.module, &key.version)
                        .await?
                        > 0 =>
                {
                    AcceptOutcome::Withdrawn { error: error.to_string() }
                }
                Err(error) => AcceptOutcome::Failed { error: error.to_string() },
            };
            accepted.push(AcceptResult { package: (&key).into(), ruling: outcome });
        }
        Ok(accepted)
    }

    async fn moved_modules(
        self: &Arc<Self>,
        address: ModuleAddress,
        versions: Versions,
    ) -> Result<Vec<ModulePackage>, Error> {
        self.library
            .on_disk(move |library| {
                let mut moved = Vec::new();
                for package in library.store.records.module_packages_seen(&address)? {
                    let waits = match module_history::read_first_seen(library, &package)? {
                        FirstSeenLookup::Recorded(seen) => seen.has_moved(),
                        FirstSeenLookup::Lost => true,
                        FirstSeenLookup::Never => false,
                    };
                    if versions.include(&package.version) && waits {
                        moved.push(package);
                    }
                }
                Ok(moved)
            })
            .await
    }

    async fn accept_package(
        self: &Arc<Self>,
        package: &ModulePackage,
        key: &ModulePackage,
        call: &RequestContext,
    ) -> Result<AcceptOutcome, Error> {
        // Refetches the location even if the cached one is fresh.
        let age = self.documents.location(package, call).await?.value.age();
        let fetched = self.documents.fetch_location_now(package, Some(age), call).await?;
        if fetched.age.gone {
            return Err(Error::NotFound(format!("upstream no longer has {package}")));
        }
        let location = fetched.value.as_location(package)?;
        let owned_key = key.clone();
        let recalled =
            self.library.on_disk(move |library| module_history::read_first_seen(library, &owned_key)).await?;
        let was_seen = recalled != FirstSeenLookup::Never;
        let before = recalled.first_seen().map(|seen| seen.pinned);
        if let PackageSource::Unsupported(source) = &location.located.source
            && was_seen
        {
            let (owned_key, kind, now) = (key.clone(), source.kind_name(), call.now);
            let tree_before = before.map(|before| before.tree);
            self.library
                .on_disk(move |library| {
                    library.catalog.change_name(&owned_key, |name| name.archives.clear())?;
                    module_history::forget(library, &owned_key, now)
                })
                .await?;
            self.library.bump_module_revision(&key.module);
            self.library
                .resolve_alarms_async(crate::mirror::modules::RESOLVED_BY_ACCEPT, &key.module, &key.version)
                .await?;
            tracing::warn!(%package, kind, "accepted by the operator: clients fetch it directly from now on");
            return Ok(AcceptOutcome::AcceptedElsewhere { tree_before, source: kind.to_owned() });
        }
        let archive = self.modules.fill_module(package, key, TreeExpectation::Accepted, call).await?;
        let Some(now) = archive.proof.how.tree() else {
            return Err(Error::Interrupted(format!("accepting {package}")));
        };
        if before.as_ref().is_some_and(|before| before.matches_archive(now)) {
            return Ok(AcceptOutcome::NothingToAccept);
        }
        tracing::warn!(%package, tree = %now.tree, commit = now.commit, "accepted by the operator: another tree is pinned from now on");
        Ok(AcceptOutcome::AcceptedTree {
            tree_before: before.as_ref().map(|before| before.tree),
            tree: now.tree,
            commit_before: before.and_then(|before| before.commit),
            commit: now.commit.clone(),
        })
    }
}
