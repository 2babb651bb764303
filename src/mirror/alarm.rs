//! Raising and resolving alarms, and counting them.

use std::sync::Arc;

use super::Mirror;
use super::library::{Alarm, AlarmKind};
use crate::address::{Address, Version};
use crate::clock::Timestamp;
use crate::error::Error;

impl Mirror {
    /// Raises an alarm, once as long as its detail stays the same. Writes to the disk.
    pub(super) fn alarm(
        &self,
        kind: AlarmKind,
        address: impl Into<Address>,
        version: &Version,
        detail: impl Into<String>,
        at: Timestamp,
    ) {
        let (address, detail) = (address.into(), detail.into());
        if self.alarms.raise(kind, address, version, detail, at) {
            self.counters.alarm(kind);
        }
    }

    /// Resolves alarms of these kinds about a version. Writes to the disk where there is one.
    pub(super) fn resolved(&self, kinds: &[AlarmKind], address: impl Into<Address>, version: &Version) {
        let address = address.into();
        self.alarms.resolve(&address, |kind, of| kinds.contains(&kind) && of == version);
    }

    /// The same, from where the disk must not be waited for.
    pub(super) async fn resolved_soon(
        self: &Arc<Self>,
        kinds: &'static [AlarmKind],
        address: impl Into<Address>,
        version: &Version,
    ) -> Result<(), Error> {
        let (address, version) = (address.into(), version.clone());
        if !self.alarms.has(&address) {
            return Ok(());
        }
        self.on_disk(move |mirror| {
            mirror.alarms.resolve(&address, |kind, of| kinds.contains(&kind) && *of == version);
            Ok(())
        })
        .await
    }

    /// Raises an alarm for each stored version that upstream's list has dropped, and resolves those of all others.
    pub(super) async fn alarm_of_dropped(
        self: &Arc<Self>,
        address: impl Into<Address>,
        dropped: Vec<Version>,
        at: Timestamp,
    ) -> Result<(), Error> {
        let address = address.into();
        let before = self.alarms.versions(&address, |kind| kind == AlarmKind::Dropped);
        if before == dropped {
            return Ok(());
        }
        self.on_disk(move |mirror| {
            mirror.alarms.resolve(&address, |kind, of| kind == AlarmKind::Dropped && !dropped.contains(of));
            for version in &dropped {
                let detail = "upstream lists it no more; it is stored, and stays listed here (keep_gone)";
                mirror.alarm(AlarmKind::Dropped, address.clone(), version, detail, at);
            }
            Ok(())
        })
        .await
    }

    /// The alarms that stand, at most a thousand of each kind.
    pub fn alarms(&self) -> Vec<Alarm> {
        self.alarms.all()
    }

    /// The number of alarms that refuse something until `accept`.
    pub(super) fn waiting_for_accept(&self) -> usize {
        self.alarms.all().iter().filter(|alarm| alarm.kind.refuses()).count()
    }
}
