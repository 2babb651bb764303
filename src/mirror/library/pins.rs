//! Pins: packages that are exempt from eviction and purge.

use crate::address::Artifact;
use crate::mirror::Library;
use crate::mirror::operate::{PinChange, PinOutcome, PinResult};
use crate::store::StoreError;

impl Library {
    pub(in crate::mirror) fn pin_each(
        &self,
        packages: &[Artifact],
        pin: PinChange,
    ) -> Result<Vec<PinResult>, StoreError> {
        let _nothing_is_evicted = self.evictor.block_evictions();
        let mut pinned = Vec::with_capacity(packages.len());
        for package in packages {
            let is_held = self.is_held(package)?;
            let mut outcome = PinOutcome::NotHeld;
            self.catalog.change_name(package, |name| {
                // A pin can be lifted even if the archive was lost.
                if is_held || (name.pinned && pin == PinChange::Lift) {
                    let before = std::mem::replace(&mut name.pinned, pin == PinChange::Set);
                    outcome = match pin {
                        _ if before == name.pinned => PinOutcome::AsBefore,
                        PinChange::Set => PinOutcome::Pinned,
                        PinChange::Lift => PinOutcome::Unpinned,
                    };
                }
            })?;
            if matches!(outcome, PinOutcome::Pinned | PinOutcome::Unpinned) {
                tracing::info!(%package, ?outcome, "told by the operator");
            }
            pinned.push(PinResult { package: package.into(), outcome });
        }
        Ok(pinned)
    }

    pub(in crate::mirror) fn is_held(&self, package: &Artifact) -> Result<bool, StoreError> {
        for archive in &self.catalog.name(package)?.archives {
            if self.store.blobs.is_stored(&archive.digest)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
