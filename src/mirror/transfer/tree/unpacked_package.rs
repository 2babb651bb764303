//! Finds evidence for an unpacked package of a tree. No SHA256SUMS names its zip, so no signature proves it. Its `h1:`
//! equals that of the published archive, which tells whether its files are the same.

use crate::mirror::{Library, Transfers};
use std::sync::Arc;

use crate::address::Package;
use crate::error::Error;
use crate::mirror::archives::verified_open::unless_damaged;
use crate::mirror::library::{PackageHashState, Recoverable};
use crate::mirror::transfer::tree::evidence::{ArchiveEvidence, is_proven, record_lost, upstream_unavailable};
use crate::mirror::{Connectivity, RequestContext, default_if_gone};
use crate::store::StoreError;

impl Transfers {
    /// Finds the evidence about an unpacked package with this `h1:`. If a proven archive exists here or upstream, the
    /// unpacked files are refused: storing them would bypass its proof.
    ///
    /// # Errors
    /// The store failed.
    pub(in crate::mirror) async fn find_unpacked_evidence(
        self: &Arc<Self>,
        package: &Package,
        h1: &str,
        call: &RequestContext,
    ) -> Result<ArchiveEvidence, Error> {
        let owned_package = package.clone();
        let hashes = self.library.on_disk(move |library| library.held_package_hashes(&owned_package)).await?;
        if hashes.iter().any(|stored| stored == h1) {
            return Ok(ArchiveEvidence::AlreadyStored);
        }
        if let Some(other) = hashes.first() {
            return Ok(ArchiveEvidence::Against(format!(
                "its files have {h1}, but those of the stored archive have {other}"
            )));
        }
        let warm = format!("run `larder warm {}@{}`", package.provider, package.version);
        if self.proof_sets.usable_set(package, call).await?.is_some_and(|stored| is_proven(&stored.stored_set.current))
        {
            let reason = "a stored proof set covers its published archive, not unpacked files";
            return Ok(ArchiveEvidence::Against(format!("{reason}; import that archive, or {warm}")));
        }
        let mut nothing = "this mirror is offline, so upstream cannot be asked".to_owned();
        if self.runtime.connectivity() == Connectivity::Online {
            match self.fetch_upstream_set(package, call).await {
                Ok(Some(_)) => {
                    let reason = "upstream's proof set covers the published archive, not unpacked files";
                    return Ok(ArchiveEvidence::Against(format!("{reason}; {warm}")));
                }
                Ok(None) => nothing = format!("{} does not know it", package.provider.host),
                Err(Error::Store(error)) => return Err(error.into()),
                Err(error) => return Ok(ArchiveEvidence::Against(upstream_unavailable(&error))),
            }
        }
        let owned_package = package.clone();
        let proven = self.library.on_disk(move |library| library.histories.digests_of(&owned_package)).await?;
        if matches!(proven, Recoverable::Lost(_)) {
            return Ok(ArchiveEvidence::Against(record_lost(package)));
        }
        if let Some(proven) = proven.into_value().first() {
            let reason =
                format!("its archive was verified here before, with SHA-256 {proven}, but is no longer stored");
            return Ok(ArchiveEvidence::Against(format!("{reason}; import that archive, or {warm}")));
        }
        Ok(ArchiveEvidence::NoProof(format!("{nothing}, and no signature covers unpacked files")))
    }
}

impl Library {
    /// The directory `h1:` of each stored archive of a package that is not damaged.
    fn held_package_hashes(&self, package: &Package) -> Result<Vec<String>, StoreError> {
        let mut known = Vec::new();
        for archive in self.catalog.name(package)?.archives {
            let Some(blob) = default_if_gone(self.store.blobs.get(&archive.digest))? else { continue };
            if unless_damaged(blob.fast_hash())? != Some(archive.fast) {
                continue;
            }
            if archive.hashes == PackageHashState::NotYet {
                self.compute_hashes(package, &archive.digest)?;
            }
            let now = self.catalog.name(package)?.get(&archive.digest).map(|archive| archive.hashes.clone());
            if let Some(PackageHashState::Known { directory, .. }) = now {
                known.push(directory);
            }
        }
        Ok(known)
    }
}
