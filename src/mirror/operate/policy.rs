//! The verdicts of the policies about every version of a provider or a module, for an operator.

use std::collections::BTreeSet;

use crate::address::{Address, PackageSelector, Version, Versions};
use crate::error::Error;
use crate::mirror::{JudgedVersion, Operations, RequestContext};
use crate::upstream::providers::VersionList;

/// The verdicts about an address.
#[derive(Debug, Clone)]
pub struct PolicyVerdicts {
    /// The rule that denies every version, with its reason.
    pub denied: Option<String>,
    /// The selected versions, the newest first.
    pub versions: Vec<JudgedVersion>,
    /// The reason why there is no list.
    pub no_list: Option<Error>,
}

impl Operations {
    /// Judges the selected versions of an address: those that upstream lists, and an exact one also where no list names it.
    /// Without a stored list that is fresh, upstream is asked for it, unless a rule denies the whole address.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn policy_verdicts(
        &self,
        selector: &PackageSelector,
        call: &RequestContext,
    ) -> Result<PolicyVerdicts, Error> {
        let address = selector.address();
        let denied = call.access().permit_any(&address).err();
        let list = match denied {
            Some(_) => self.library.stored_version_list(&call.config.canonical(&address)).await,
            None => self.upstream_list(&address, call).await.map(Some),
        };
        let (listed, no_list) = match list {
            Ok(list) => (list.map(|list| list.versions).unwrap_or_default(), None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let access = match denied {
            // Upstream is not asked about it.
            Some(_) => call.access().of(&address, Default::default()),
            None => self.documents.access_to(&address, call).await?,
        };
        let listed: BTreeSet<Version> = listed.into_iter().map(|listed| listed.version).collect();
        let exact = match selector.versions() {
            Versions::Exactly(version) => Some(version.clone()),
            _ => None,
        };
        let selected: BTreeSet<Version> =
            listed.iter().filter(|version| selector.versions().include(version)).cloned().chain(exact).collect();
        let versions = selected.into_iter().rev().map(|version| {
            let is_listed = listed.contains(&version);
            access.judged(version, is_listed)
        });
        let denied = denied.map(|error| error.explain().cause);
        Ok(PolicyVerdicts { denied, versions: versions.collect(), no_list })
    }

    async fn upstream_list(&self, address: &Address, call: &RequestContext) -> Result<VersionList, Error> {
        let document = self.documents.get(address, call).await?.value;
        document.versions(address.into()).await.map_err(|reason| Error::unreadable_list(address, reason))
    }
}
