//! The warm-up of a module: its list, location and archive, fetched as `init` needs them and synced to disk.

use crate::mirror::Operations;
use std::sync::Arc;

use crate::address::{ModuleAddress, ModulePackage};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::documents::module_location::location_label;
use crate::mirror::documents::revalidate::Revalidatable;
use crate::mirror::library::StoredArchive;
use crate::mirror::request_context::or_retry_later;
use crate::mirror::{Connectivity, Urgency, WarmedArchive, WarmedDocument};
use crate::store::Key;
use crate::upstream::breaker::Origin;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::modules::ModuleVersionList;
use crate::upstream::source::PackageSource;

impl Operations {
    /// Warms the version list of a module and the discovery document. Offline, returns the list that clients see.
    ///
    /// # Errors
    /// The error of the fetch; [`Error::HeldBack`] and [`Error::Spared`] if a retry later may succeed.
    pub async fn warm_module_list(
        self: &Arc<Self>,
        address: &ModuleAddress,
        urgency: Urgency,
        now: Timestamp,
    ) -> Result<WarmedDocument<ModuleVersionList>, Error> {
        let (subject, host) = (format!("the version list of {address}"), &address.host);
        let call = self.runtime.step_context_for(urgency, now);
        let upstream = call.upstream(host)?;
        let mut origins = vec![Origin::of(&upstream.settings.url)];
        let mut missing = 0;
        for key in [Key::Discovery(host.clone()), Key::ModuleVersions(call.config.key_of(address))] {
            match self.library.stored_document(&key).await? {
                Some(stored) => origins.extend(stored.value.origins()),
                None => missing += 1,
            }
        }
        self.runtime.charge_job(&subject, host, &origins, missing, &call)?;
        let lookup = async {
            if self.runtime.connectivity() == Connectivity::Online {
                self.documents.discovery(host, &call).await?;
            }
            self.offline.client_module_versions(address, &call).await
        };
        let list = lookup.await.map_err(|error| or_retry_later(&subject, host, &origins, error, &call))?;
        let unconfirmed = self.runtime.unconfirmed(&subject, host, &origins, &list, &call)?;
        Ok(WarmedDocument { value: list.value, unconfirmed })
    }

    /// Warms the location and the archive of a version.
    ///
    /// # Errors
    /// Those of [`warm_module_list`](Self::warm_module_list), and a source that only clients can fetch.
    pub async fn warm_module(
        self: &Arc<Self>,
        package: &ModulePackage,
        urgency: Urgency,
        now: Timestamp,
    ) -> Result<WarmedDocument<(WarmedArchive, StoredArchive)>, Error> {
        let WarmedDocument { value, unconfirmed } = self.warmed_module(package, urgency, now).await?;
        if let Some(stored_archive) = value {
            return Ok(WarmedDocument { value: (WarmedArchive::AlreadyStored, stored_archive), unconfirmed });
        }
        let host = &package.module.host;
        let call = self.runtime.step_context_for(urgency, now);
        let archive = format!("the archive of {package}");
        let origins = self.origins_of_module(&call.config.key_of_package(package).module).await?;
        self.runtime.charge_job(&archive, host, &origins, 1, &call)?;
        let filled = self.modules.module_fill(package, &call).await;
        let stored_archive = filled.map_err(|error| or_retry_later(&archive, host, &origins, error, &call))?;
        Ok(WarmedDocument { value: (WarmedArchive::Fetched, stored_archive), unconfirmed })
    }

    /// The stored archive of a version, after its location is fetched or revalidated. `None` if the archive is to be
    /// fetched.
    ///
    /// # Errors
    /// Those of [`warm_module`](Self::warm_module).
    pub async fn warmed_module(
        self: &Arc<Self>,
        package: &ModulePackage,
        urgency: Urgency,
        now: Timestamp,
    ) -> Result<WarmedDocument<Option<StoredArchive>>, Error> {
        let (subject, host) = (location_label(package), &package.module.host);
        let call = self.runtime.step_context_for(urgency, now);
        let key = call.config.key_of_package(package);
        if self.runtime.connectivity() == Connectivity::Offline
            && let Some(archive) = self.library.stored_module(&key).await?
        {
            return Ok(WarmedDocument { value: Some(archive), unconfirmed: None });
        }
        let origins = self.origins_of_module(&key.module).await?;
        let missing = u32::from(self.library.stored_document(&Key::ModuleLocation(key.clone())).await?.is_none());
        self.runtime.charge_job(&subject, host, &origins, missing, &call)?;
        let location = self.documents.location(package, &call).await;
        let location = location.map_err(|error| or_retry_later(&subject, host, &origins, error, &call))?;
        let unconfirmed = self.runtime.unconfirmed(&subject, host, &origins, &location, &call)?;
        let located = Arc::clone(&location.value).as_location(package)?;
        if let Some(archive) = self.library.stored_module(&key).await? {
            return Ok(WarmedDocument { value: Some(archive), unconfirmed });
        }
        if let PackageSource::Unsupported(source) = &located.located.source {
            let (kind, source_host) =
                (source.kind_name(), source.host().unwrap_or_else(|| "an unknown host".to_owned()));
            let fault = Fault::Unusable(format!(
                "names {kind} at {source_host}, which larder cannot fetch; clients fetch it directly"
            ));
            return Err(UpstreamError { subject, origin: host.to_string(), fault }.into());
        }
        if self.runtime.connectivity() == Connectivity::Offline {
            return Err(self.library.missing_error(&key, format!("the archive of {package}"), &call).await);
        }
        Ok(WarmedDocument { value: None, unconfirmed })
    }

    /// The origins that the module's version list was fetched from.
    async fn origins_of_module(self: &Arc<Self>, module: &ModuleAddress) -> Result<Vec<Origin>, Error> {
        let list = self.library.stored_document(&Key::ModuleVersions(module.clone())).await?;
        Ok(list.map(|list| list.value.origins()).unwrap_or_default())
    }
}
