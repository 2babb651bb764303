//! What an operator wants never evicted, and no more so.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Mirror;
use crate::address::{Artifact, PackageRef, PackageSelector};
use crate::error::Error;
use crate::store::{Key, StoreError};

/// Whether a package is to be pinned or unpinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// Eviction and purge leave it alone from now on.
    Set,
    /// It is as any other from now on.
    Lift,
}

/// What came of pinning or unpinning one package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinned {
    /// The package; what was told where it names nothing that is held.
    #[serde(flatten)]
    pub package: PackageRef,
    /// How it is now.
    pub outcome: PinOutcome,
}

/// How a package is after it was to be pinned or unpinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PinOutcome {
    /// It is pinned now.
    Pinned,
    /// It is not any more.
    Unpinned,
    /// It was so already.
    AsBefore,
    /// It is when its job has fetched it.
    WhenItComes,
    /// No archive of it is held: there is nothing to pin, and a pin is not remembered for later.
    NotHeld,
}

impl Pin {
    /// How something is that is still on its way.
    pub fn of_what_comes(self) -> PinOutcome {
        match self {
            Self::Set => PinOutcome::WhenItComes,
            Self::Lift => PinOutcome::Unpinned,
        }
    }
}

impl Pinned {
    /// Whether it is as it was to be.
    pub fn is_well(&self) -> bool {
        self.outcome != PinOutcome::NotHeld
    }
}

impl Mirror {
    /// Pins or unpins what is held of what an operator means.
    ///
    /// # Errors
    /// Where the disk fails; some of it may be done then.
    pub async fn pin(self: &Arc<Self>, what: &PackageSelector, pin: Pin) -> Result<Vec<Pinned>, Error> {
        let of = what.clone();
        let mut pinned = self
            .on_disk(move |mirror| {
                let mut meant: Vec<Artifact> = match &of {
                    PackageSelector::Provider(of) => {
                        let mut packages = mirror.store.records.packages_with_names(&of.of)?;
                        packages.retain(|package| of.versions.include(&package.version));
                        packages.iter().map(Artifact::from).collect()
                    }
                    PackageSelector::Module(of) => {
                        let mut packages = Vec::new();
                        for key in mirror.terms().keys_of(&of.of) {
                            packages.extend(mirror.store.records.module_packages_with_names(&key)?);
                        }
                        packages.retain(|package| of.versions.include(&package.version));
                        packages.iter().map(Artifact::from).collect()
                    }
                };
                meant.sort();
                mirror.pin_each(&meant, pin)
            })
            .await?;
        if pinned.iter().any(Pinned::is_well) {
            // A name may be left of what is not held.
            pinned.retain(Pinned::is_well);
        } else {
            pinned = vec![Pinned { package: what.into(), outcome: PinOutcome::NotHeld }];
        }
        Ok(pinned)
    }

    /// Pins or unpins these packages.
    ///
    /// # Errors
    /// Where the disk fails; some of it may be done then.
    pub async fn pin_artifacts(self: &Arc<Self>, packages: Vec<Artifact>, pin: Pin) -> Result<Vec<Pinned>, Error> {
        self.on_disk(move |mirror| mirror.pin_each(&packages, pin)).await
    }

    fn pin_each(&self, packages: &[Artifact], pin: Pin) -> Result<Vec<Pinned>, StoreError> {
        let _nothing_is_evicted = self.evictor.block_evictions();
        let mut pinned = Vec::with_capacity(packages.len());
        for package in packages {
            let is_held = self.is_held(package)?;
            let mut outcome = PinOutcome::NotHeld;
            self.catalog.change_name(package, |name| {
                // A pin whose archive was lost can be lifted all the same.
                if is_held || (name.pinned && pin == Pin::Lift) {
                    let before = std::mem::replace(&mut name.pinned, pin == Pin::Set);
                    outcome = match pin {
                        _ if before == name.pinned => PinOutcome::AsBefore,
                        Pin::Set => PinOutcome::Pinned,
                        Pin::Lift => PinOutcome::Unpinned,
                    };
                }
            })?;
            if matches!(outcome, PinOutcome::Pinned | PinOutcome::Unpinned) {
                tracing::info!(%package, ?outcome, "told by the operator");
            }
            pinned.push(Pinned { package: package.into(), outcome });
        }
        Ok(pinned)
    }

    fn is_held(&self, package: &Artifact) -> Result<bool, StoreError> {
        for held in &self.catalog.name(package)?.archives {
            if self.store.blobs.holds(&held.digest)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The documents that what is pinned cannot be installed without: they are no more evicted than its archives.
    pub(super) fn documents_of_what_is_pinned(&self) -> Result<BTreeSet<Key>, StoreError> {
        let mut keys = BTreeSet::new();
        self.store.index.needs_to_be_whole()?;
        for of in self.store.index.names(|of, name| name.pinned.then_some(of))? {
            keys.insert(Key::Discovery(of.host().clone()));
            match of {
                Artifact::Provider(package) => {
                    keys.insert(Key::ProviderVersions(package.provider.clone()));
                    keys.insert(Key::ProofSet(package));
                }
                Artifact::Module(package) => {
                    keys.insert(Key::ModuleVersions(package.module.clone()));
                    keys.insert(Key::ModuleLocation(package));
                }
            }
        }
        Ok(keys)
    }
}
