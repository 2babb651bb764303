//! Records requests for packages that are not stored while larder is offline. They are saved a moment later, and
//! reported until the package is stored.

use crate::mirror::{Library, Runtime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::address::{ModulePackage, Package, PackageRef, Platform};
use crate::error::Error;
use crate::mirror::library::missing::{MissingPackage, MissingRequests, RequestCount};
use crate::mirror::{RequestContext, RuntimeConfig};
use parking_lot::Mutex;

use crate::store::{Durability, IndexEntry, Key, Recorded, Store, StoreError};

/// The delay before the record is saved. A kill loses what was recorded since the last save.
const SAVE_DELAY: Duration = Duration::from_secs(1);

/// The packages requested while offline and not stored.
#[derive(Debug)]
pub(in crate::mirror) struct MissingLog {
    pub(in crate::mirror) requests: Mutex<MissingRequests>,
    pub(in crate::mirror) is_save_scheduled: AtomicBool,
}

impl MissingLog {
    /// Loads the missing packages of an earlier run.
    pub(in crate::mirror) fn load(store: &Store) -> Self {
        Self { requests: Mutex::new(load_missing(store)), is_save_scheduled: AtomicBool::new(false) }
    }
}

/// Loads the record of an earlier run. An unreadable one is logged and ignored.
fn load_missing(store: &Store) -> MissingRequests {
    let read = store.records.read(&Key::Missing).and_then(|found| match found {
        Recorded::Whole(record) => match MissingRequests::read(&record) {
            Some(wants) => Ok(wants),
            None => store.records.quarantine(&Key::Missing).map(|()| MissingRequests::default()),
        },
        Recorded::Absent | Recorded::Damaged => Ok(MissingRequests::default()),
    });
    read.unwrap_or_else(|error| {
        tracing::error!(%error, "the missing list of an earlier run cannot be read; it starts empty");
        MissingRequests::default()
    })
}

impl Library {
    /// Records a package as missing and returns the error for it (DESIGN, promise 12).
    pub(in crate::mirror) async fn missing_error(
        self: &Arc<Self>,
        missing: impl Into<MissingPackage>,
        subject: String,
        call: &RequestContext,
    ) -> Error {
        let error = self.offline_error(subject).await;
        self.record_if_offline(&error, call, || missing.into());
        error
    }

    /// The error for something not stored while offline. If the store itself is gone, the error says that instead.
    pub(in crate::mirror) async fn offline_error(self: &Arc<Self>, subject: String) -> Error {
        match self.on_disk(|library| library.store.check()).await {
            Ok(()) => Error::Offline(subject),
            Err(gone) => gone,
        }
    }

    /// Records a request as missing if it failed because larder is offline.
    pub(in crate::mirror) fn record_if_offline(
        self: &Arc<Self>,
        error: &Error,
        call: &RequestContext,
        missing: impl FnOnce() -> MissingPackage,
    ) {
        if let Error::Offline(_) = error {
            self.record_missing(missing(), call);
        }
    }

    /// Records a request for a non-package, in words, for this run only.
    pub(in crate::mirror) fn record_text_if_offline(&self, error: &Error, call: &RequestContext) {
        if let (Error::Offline(subject), false) = (error, call.is_plan_step()) {
            self.missing.requests.lock().note_words(subject);
        }
    }

    /// Records a package as missing, unless the request only looks (a plan): then no client was refused.
    pub(in crate::mirror) fn record_missing(
        self: &Arc<Self>,
        missing: impl Into<MissingPackage>,
        call: &RequestContext,
    ) {
        if call.is_plan_step() {
            return;
        }
        self.missing.requests.lock().note(missing.into(), call.now);
        if self.missing.is_save_scheduled.swap(true, Ordering::AcqRel) {
            return;
        }
        // A weak reference: the pending save must not keep the mirror, and with it the store lock, alive.
        let library = Arc::downgrade(self);
        self.runtime.tasks.spawn(async move {
            tokio::time::sleep(SAVE_DELAY).await;
            let Some(library) = library.upgrade() else { return };
            library.missing.is_save_scheduled.store(false, Ordering::Release);
            if let Err(error) = library.on_disk(Self::save_missing).await {
                tracing::error!(%error, "the missing list could not be written; it is written again with the next entry");
            }
        });
    }

    /// Saves the record if it changed since the last save.
    pub(in crate::mirror) fn save_missing(&self) -> Result<(), StoreError> {
        if !self.missing.requests.lock().take_changed() {
            return Ok(());
        }
        let saved = self.store.records.change(&Key::Missing, |step| {
            let record = self.missing.requests.lock().write();
            step.put(&Key::Missing, record, Durability::Lazy, IndexEntry::Unindexed);
            Ok(())
        });
        saved.inspect_err(|_| self.missing.requests.lock().mark_unsaved())
    }

    /// Marks the record as unsaved, because the file on disk is lost.
    pub(in crate::mirror) fn mark_missing_unsaved(&self) {
        self.missing.requests.lock().mark_unsaved();
    }

    /// The packages requested while offline and not stored, for configured upstreams only.
    ///
    /// # Errors
    /// The lookup was interrupted.
    pub async fn missing(self: &Arc<Self>) -> Result<Vec<MissingPackage>, Error> {
        self.on_disk(|library| Ok(library.missing_now())).await
    }
}

impl Runtime {
    /// The platforms that a missing package without a platform is meant for (`[network] sealed_platforms`); empty if
    /// not configured.
    pub fn sealed_platforms(&self) -> Vec<Platform> {
        self.config.load().required_platforms.platforms().cloned().collect()
    }
}

impl Library {
    /// Forgets all missing packages.
    ///
    /// # Errors
    /// The record could not be saved.
    pub async fn forget_missing(self: &Arc<Self>) -> Result<(), Error> {
        self.on_disk(|library| {
            library.missing.requests.lock().forget();
            library.save_missing()
        })
        .await
    }

    /// Lists the missing packages and forgets those stored meanwhile. Blocks: reads the disk for packages that changed
    /// since the last lookup.
    pub(in crate::mirror) fn missing_now(&self) -> Vec<MissingPackage> {
        let terms = self.runtime.config.load_full();
        let noted: Vec<(MissingPackage, RequestCount)> =
            self.missing.requests.lock().things().map(|(missing, count)| (missing.clone(), *count)).collect();
        let mut missing = Vec::new();
        for (thing, count) in noted {
            if terms.upstreams.get(thing.host()).is_none() {
                continue;
            }
            let revision = match &thing {
                MissingPackage::Provider { of: address, .. } => self.revision(address),
                MissingPackage::Module { of: address, .. } => self.revision_of_module(address),
            };
            let found = (revision, terms.generation);
            if count.last_miss == Some(found) {
                missing.push(thing);
                continue;
            }
            match self.is_stored_now(&thing, &terms) {
                Ok(is_held) => {
                    self.missing.requests.lock().record_lookup(&thing, count, is_held, found);
                    if !is_held {
                        missing.push(thing);
                    }
                }
                // A failed lookup does not mean that the package is stored.
                Err(error) => {
                    tracing::debug!(what = %PackageRef::from(&thing), %error, "its state in the store cannot be read");
                    missing.push(thing);
                }
            }
        }
        missing
    }

    /// Lists the missing packages together with the missing non-packages.
    pub(in crate::mirror) fn missing_in_words(&self) -> Vec<PackageRef> {
        let mut words: Vec<PackageRef> = self.missing_now().iter().map(PackageRef::from).collect();
        words.extend(self.missing.requests.lock().words().map(|word| PackageRef::requested(word)));
        words
    }

    fn is_stored_now(&self, missing: &MissingPackage, terms: &RuntimeConfig) -> Result<bool, StoreError> {
        match missing {
            MissingPackage::Provider { of: address, version, platform } => {
                let Some(upstream) = terms.upstreams.get(&address.host) else { return Ok(false) };
                let policy = upstream.settings.verification;
                let Some(version) = version else {
                    let stored = self.read_stored_versions(address, policy)?;
                    return Ok(stored.values().any(|for_| terms.required_platforms.shows(for_)));
                };
                let platforms = match platform {
                    Some(platform) => vec![platform.clone()],
                    None => self.store.records.platforms_with_sets(address, version)?,
                };
                for platform in platforms {
                    let package = Package { provider: address.clone(), version: version.clone(), platform };
                    if self.holds_package(&package, policy)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            MissingPackage::Module { of: address, version } => {
                let key = terms.key_of(address);
                match version {
                    None => Ok(!self.read_stored_module_versions(&key)?.is_empty()),
                    Some(version) => {
                        let package = ModulePackage { module: key, version: version.clone() };
                        Ok(self.current_module_archive(&package)?.is_some())
                    }
                }
            }
        }
    }
}
