//! The version lists that clients see: upstream's, or offline only the versions that can be installed, including stored
//! versions that upstream's list lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::address::{ModuleAddress, ModulePackage, Platform, ProviderAddress, Version};
use crate::error::Error;
use crate::mirror::documents::module_versions::entry_of_module;
use crate::mirror::documents::pages::latest;
use crate::mirror::documents::provider_versions::entry_of;
use crate::mirror::library::installable::StoredVersions;
use crate::mirror::library::stored_document::StoredDocument;
use crate::mirror::offline::{RequiredPlatforms, STORED_ANSWER_LIFETIME};
use crate::mirror::{Answer, Connectivity, Offline, Outcome, RequestContext};
use crate::store::Key;
use crate::upstream::modules::ModuleVersionList;
use crate::upstream::providers::VersionList;

impl Offline {
    /// The version list of a provider for clients. Offline: the versions whose set and archive are stored, for any
    /// platform or for all of `sealed_platforms`, even if the cached list does not name them.
    ///
    /// # Errors
    /// [`Error::Offline`] if the list would be empty: clients take that for "no such provider" (PROTOCOL 2.2).
    pub async fn client_versions(
        self: &Arc<Self>,
        address: &ProviderAddress,
        call: &RequestContext,
    ) -> Result<Answer<VersionList>, Error> {
        if self.runtime.connectivity() == Connectivity::Online {
            let document = self.documents.provider_versions(address, call).await?;
            let list = document.value.versions().await.map_err(|reason| unreadable(address, reason))?;
            return Ok(document.map(|_| list));
        }
        let stored = self.stored_provider_versions(address, call).await?;
        let shown: BTreeMap<&Version, &BTreeSet<Platform>> = call.config.required_platforms.shown(&stored).collect();
        if shown.is_empty() {
            return Err(self
                .library
                .missing_error(address, describe_empty_list(address, &call.config.required_platforms), call)
                .await);
        }
        let document = match self.library.stored_document(&Key::ProviderVersions(address.clone())).await? {
            Some(_) => Some(self.documents.provider_versions(address, call).await?),
            None => None,
        };
        let list = match &document {
            Some(document) => readable_or_log(address, document.value.versions().await),
            None => None,
        };
        let mut list = list.unwrap_or_else(|| VersionList { versions: Vec::new(), other_members: Default::default() });
        list.versions.retain(|listed| shown.contains_key(&listed.version));
        // Entries already listed stay as upstream wrote them.
        let entry = |(version, for_): (&&Version, &&BTreeSet<Platform>)| entry_of(version, for_.iter());
        list.add_missing(shown.iter().filter_map(entry).collect());
        Ok(stored_answer(document, list, call))
    }

    /// The version list of a module for clients. Offline: the versions whose archives are stored.
    ///
    /// # Errors
    /// Those of [`shown_versions`](Self::client_versions).
    pub async fn client_module_versions(
        self: &Arc<Self>,
        address: &ModuleAddress,
        call: &RequestContext,
    ) -> Result<Answer<ModuleVersionList>, Error> {
        if self.runtime.connectivity() == Connectivity::Online {
            let document = self.documents.module_versions(address, call).await?;
            let list = document.value.module_versions().await.map_err(|reason| unreadable(address, reason))?;
            return Ok(document.map(|_| list));
        }
        call.upstream(&address.host)?;
        let key = call.config.key_of(address);
        let stored = self.stored_module_versions(&key).await?;
        if stored.is_empty() {
            return Err(self.library.missing_error(&key, format!("any version of {address}"), call).await);
        }
        let document = match self.library.stored_document(&Key::ModuleVersions(key)).await? {
            Some(_) => Some(self.documents.module_versions(address, call).await?),
            None => None,
        };
        let list = match &document {
            Some(document) => readable_or_log(address, document.value.module_versions().await),
            None => None,
        };
        let mut list = list.unwrap_or_else(|| ModuleVersionList {
            versions: Vec::new(),
            module_members: Default::default(),
            other_members: Default::default(),
        });
        list.versions.retain(|listed| stored.contains(&listed.version));
        list.add_missing(stored.iter().filter_map(entry_of_module).collect());
        Ok(stored_answer(document, list, call))
    }

    /// The versions in the cached upstream list of a provider, and the platforms that must be stored before clients see
    /// a version. `None` if online: clients then see all versions.
    ///
    /// # Errors
    /// [`Error::Offline`] if no upstream list is cached.
    pub async fn listed_versions_offline(
        self: &Arc<Self>,
        address: &ProviderAddress,
    ) -> Result<Option<(Vec<Version>, Vec<Platform>)>, Error> {
        if self.runtime.connectivity() == Connectivity::Online {
            return Ok(None);
        }
        let list = match self.library.stored_document(&Key::ProviderVersions(address.clone())).await? {
            Some(list) => readable_or_log(address, list.value.versions().await),
            None => None,
        };
        match list {
            Some(list) => {
                let versions = list.versions.into_iter().map(|listed| listed.version).collect();
                Ok(Some((versions, self.runtime.sealed_platforms())))
            }
            None => Err(self.library.offline_error(format!("the version list of {address}")).await),
        }
    }

    /// The versions in the cached upstream list of a module. `None` if online: clients then see all versions.
    ///
    /// # Errors
    /// Those of [`versions_beyond`](Self::listed_versions_offline).
    pub async fn listed_module_versions_offline(
        self: &Arc<Self>,
        address: &ModuleAddress,
    ) -> Result<Option<Vec<Version>>, Error> {
        if self.runtime.connectivity() == Connectivity::Online {
            return Ok(None);
        }
        let key = Key::ModuleVersions(self.runtime.config().key_of(address));
        let list = match self.library.stored_document(&key).await? {
            Some(list) => readable_or_log(address, list.value.module_versions().await),
            None => None,
        };
        match list {
            Some(list) => Ok(Some(list.versions.into_iter().map(|listed| listed.version).collect())),
            None => Err(self.library.offline_error(format!("the version list of {address}")).await),
        }
    }

    /// The platforms that a version is stored for, online or offline. A version without any is recorded as missing.
    ///
    /// # Errors
    /// [`Error::Offline`] if neither a list nor any version of the provider is stored.
    pub async fn stored_platforms(
        self: &Arc<Self>,
        address: &ProviderAddress,
        version: &Version,
        call: &RequestContext,
    ) -> Result<Answer<BTreeSet<Platform>>, Error> {
        let stored = self.stored_provider_versions(address, call).await?;
        let document = match self.library.stored_document(&Key::ProviderVersions(address.clone())).await? {
            Some(_) => Some(self.documents.provider_versions(address, call).await?),
            None if stored.is_empty() => {
                return Err(self.library.missing_error(address, format!("the version list of {address}"), call).await);
            }
            None => None,
        };
        let platforms = stored.get(version).cloned().unwrap_or_default();
        if platforms.is_empty() {
            self.library.record_missing((address, version), call);
        }
        Ok(stored_answer(document, platforms, call))
    }
}

/// Wraps a value computed from the store. It stays fresh for a moment, since upstream cannot be asked again while
/// offline.
fn stored_answer<T>(document: Option<Answer<Arc<StoredDocument>>>, value: T, call: &RequestContext) -> Answer<T> {
    let moment = call.now.after(STORED_ANSWER_LIFETIME);
    match document {
        Some(document) => {
            let fresh_until = if document.outcome == Outcome::Hit { document.fresh_until.min(moment) } else { moment };
            Answer { value, outcome: document.outcome, fresh_until, checked: document.checked }
        }
        None => Answer { value, outcome: Outcome::Stale, fresh_until: moment, checked: call.now },
    }
}

/// Describes an empty list for error messages.
fn describe_empty_list(address: &ProviderAddress, sealed_for: &RequiredPlatforms) -> String {
    let named: Vec<String> = sealed_for.platforms().map(ToString::to_string).collect();
    match named.as_slice() {
        [] => format!("any version of {address}"),
        [one] => format!("any version of {address} for {one}"),
        all => format!("any version of {address} for all of {}", all.join(", ")),
    }
}

/// An unreadable cached list must not hide stored versions.
fn readable_or_log<T>(address: &impl std::fmt::Display, read: Result<T, String>) -> Option<T> {
    read.inspect_err(|reason| {
        tracing::error!(of = %address, reason, "a cached version list cannot be read; stored versions are listed without it");
    })
    .ok()
}

fn unreadable(address: &impl std::fmt::Display, reason: String) -> Error {
    Error::Interrupted(format!("the cached version list of {address} cannot be read: {reason}"))
}

impl Offline {
    /// The stored versions of a provider. Concurrent callers share one lookup.
    pub(in crate::mirror) async fn stored_provider_versions(
        self: &Arc<Self>,
        address: &ProviderAddress,
        call: &RequestContext,
    ) -> Result<Arc<StoredVersions>, Error> {
        let policy = call.upstream(&address.host)?.settings.verification;
        let lost = Err(Error::Interrupted(format!("the stored versions of {address}")));
        let key = (address.clone(), self.library.revision(address), call.config.generation);
        let look = self.provider_lookups.join_or_spawn(&self.runtime.tasks, key, lost, || {
            let (offline, owned_address) = (Arc::clone(self), address.clone());
            async move {
                offline
                    .library
                    .on_disk(move |library| library.read_stored_versions(&owned_address, policy).map(Arc::new))
                    .await
            }
        });
        look.await
    }

    /// The stored versions of a module. `key` is the canonical spelling.
    pub(in crate::mirror) async fn stored_module_versions(
        self: &Arc<Self>,
        key: &ModuleAddress,
    ) -> Result<Arc<BTreeSet<Version>>, Error> {
        let lost = Err(Error::Interrupted(format!("the stored versions of {key}")));
        let look = self.module_lookups.join_or_spawn(
            &self.runtime.tasks,
            (key.clone(), self.library.revision_of_module(key)),
            lost,
            || {
                let (offline, owned_key) = (Arc::clone(self), key.clone());
                async move {
                    offline
                        .library
                        .on_disk(move |library| library.read_stored_module_versions(&owned_key).map(Arc::new))
                        .await
                }
            },
        );
        look.await
    }

    /// The latest version that a module's list names. A pre-release only if there is no release.
    pub async fn latest_of_module(
        self: &Arc<Self>,
        address: &ModuleAddress,
        call: &RequestContext,
    ) -> Result<Answer<ModulePackage>, Error> {
        let Answer { value, outcome, fresh_until, checked } = self.client_module_versions(address, call).await?;
        let versions: Vec<Version> = value.versions.into_iter().map(|listed| listed.version).collect();
        let none = || Error::NotFound(format!("the version list of {address} names no version"));
        let version = latest(&versions).cloned().ok_or_else(none)?;
        let value = ModulePackage { module: address.clone(), version };
        Ok(Answer { value, outcome, fresh_until, checked })
    }
}
