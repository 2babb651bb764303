//! The verdicts of the policies about every version of a provider or a module, for an operator.

use std::collections::BTreeSet;

use crate::address::{Address, PackageSelector, Version, Versions};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::{Alarm, AlarmKind, JudgedVersion, Operations, RequestContext, VerdictKind};
use crate::store::Key;
use crate::upstream::providers::VersionList;
use crate::wording::format_timestamp;

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
        self.library.refresh((&address).into()).await?;
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

    /// Says in the alarm of a withdrawn version which newer one a policy holds back: that may be the one that replaces it.
    /// Reads the disk.
    pub(super) fn with_held_successors(&self, alarms: Vec<Alarm>, now: Timestamp) -> Vec<Alarm> {
        let config = self.runtime.config();
        let access = config.access(now);
        if access.is_open() {
            return alarms;
        }
        let held_successor = |alarm: &Alarm| {
            let host = config.upstreams.hosts().into_iter().next()?;
            let withdrawn = Version::parse_of_module(&alarm.version).ok()?;
            let address = PackageSelector::parse(&alarm.address, host).ok()?.address();
            let of_address = self.library.read_access(&address, &access, &config).ok()?;
            let list = self.library.read_document(&Key::version_list(&address)).ok()??;
            let newer = list.as_versions((&address).into()).ok()?.versions.into_iter().map(|listed| listed.version);
            let judged = newer.filter(|version| *version > withdrawn).map(|version| of_address.judged(version, true));
            let held = judged
                .filter(|judged| judged.verdict == VerdictKind::Held)
                .max_by(|one, other| one.version.cmp(&other.version))?;
            let until = held.until.map(|until| format!(" until {}", format_timestamp(until))).unwrap_or_default();
            let reason = held.reason.unwrap_or_default();
            Some(format!("{}, which may replace it, is held back{until}: {reason}", held.version))
        };
        let with_successor = |alarm: Alarm| {
            let successor = if alarm.kind == AlarmKind::Dropped { held_successor(&alarm) } else { None };
            match successor {
                Some(successor) => Alarm { detail: format!("{}; {successor}", alarm.detail), ..alarm },
                None => alarm,
            }
        };
        alarms.into_iter().map(with_successor).collect()
    }

    async fn upstream_list(&self, address: &Address, call: &RequestContext) -> Result<VersionList, Error> {
        let document = self.documents.get(address, call).await?.value;
        document.versions(address.into()).await.map_err(|reason| Error::unreadable_list(address, reason))
    }
}
