//! Raises, resolves and counts alarms.

use crate::mirror::Library;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::address::{Address, Version, Versions};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::library::{Alarm, AlarmEvent, AlarmKind, AlarmPart, AlarmSubject, RaiseOutcome};

impl Library {
    /// Raises an alarm about a version, once for the same detail. Writes to disk.
    pub(in crate::mirror) fn raise_alarm(
        &self,
        kind: AlarmKind,
        address: impl Into<Address>,
        version: &Version,
        detail: impl Into<String>,
        time: Timestamp,
    ) {
        self.raise_alarm_about_part(kind, address, version, AlarmPart::Whole, detail, time);
    }

    /// Raises an alarm about part of a version: its set for a platform, or its signing key.
    pub(in crate::mirror) fn raise_alarm_about_part(
        &self,
        kind: AlarmKind,
        address: impl Into<Address>,
        version: &Version,
        part: AlarmPart,
        detail: impl Into<String>,
        time: Timestamp,
    ) {
        let (address, subject) = (address.into(), AlarmSubject { kind, version: version.clone(), part });
        match self.alarms.raise(subject, &address, detail.into(), time, self.runtime.connectivity()) {
            RaiseOutcome::New => self.runtime.counters.alarm(kind),
            RaiseOutcome::Unchanged => {}
            RaiseOutcome::TooMany => {
                tracing::error!(%address, %version, kind = kind.name(), "there are too many alarms of this kind about it: this one is only logged");
            }
        }
    }

    /// Resolves alarms of these kinds about a version. Writes to disk if there are any.
    pub(in crate::mirror) fn resolve_alarms(
        &self,
        kinds: &[AlarmKind],
        address: impl Into<Address>,
        version: &Version,
    ) {
        self.alarms.resolve(&address.into(), &AlarmEvent::Ended { kinds, version });
    }

    /// Resolves alarms like [`Self::resolve_alarms`], for async code. Returns their number.
    pub(in crate::mirror) async fn resolve_alarms_async(
        self: &Arc<Self>,
        kinds: &'static [AlarmKind],
        address: impl Into<Address>,
        version: &Version,
    ) -> Result<usize, Error> {
        let (address, version) = (address.into(), version.clone());
        if !self.alarms.has(&address) {
            return Ok(0);
        }
        self.on_disk(move |library| {
            Ok(library.alarms.resolve(&address, &AlarmEvent::Ended { kinds, version: &version }).len())
        })
        .await
    }

    /// Resolves the alarms that only a purge of these versions resolves. Writes to disk.
    pub(in crate::mirror) fn resolve_purged(
        &self,
        address: impl Into<Address>,
        versions: &Versions,
        left: &BTreeSet<Version>,
    ) {
        let address = address.into();
        let is_configured = self.runtime.config().upstream(address.host()).is_ok();
        self.alarms.resolve(&address, &AlarmEvent::Purged { versions, left, is_configured });
    }

    /// Raises an alarm for each stored version that upstream's list has dropped, and resolves those of all others.
    pub(in crate::mirror) async fn update_dropped_alarms(
        self: &Arc<Self>,
        address: impl Into<Address>,
        dropped: Vec<Version>,
        time: Timestamp,
    ) -> Result<(), Error> {
        let address = address.into();
        let before = self.alarms.subjects(&address, |subject| subject.kind == AlarmKind::Dropped);
        let before: Vec<Version> = before.into_iter().map(|subject| subject.version).collect();
        if before == dropped {
            return Ok(());
        }
        self.on_disk(move |library| {
            library.alarms.resolve(&address, &AlarmEvent::ListRead { dropped: &dropped });
            for version in &dropped {
                let detail = "upstream lists it no more; it is stored, and stays listed here (keep_gone)";
                library.raise_alarm(AlarmKind::Dropped, address.clone(), version, detail, time);
            }
            Ok(())
        })
        .await
    }

    /// The unresolved alarms, at most a thousand of each kind about each address.
    pub fn alarms(&self) -> Vec<Alarm> {
        self.alarms.all()
    }

    /// The number of alarms that refuse something until `accept`.
    pub(in crate::mirror) fn waiting_for_accept(&self) -> usize {
        self.alarms.all().iter().filter(|alarm| alarm.kind.refuses()).count()
    }
}
