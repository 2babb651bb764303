//! What a warm-up asks of the mirror for a module: the list, the location and the archive, held as an `init` will ask
//! for them, and on the disk before it is told.

use std::sync::Arc;

use super::super::library::HeldArchive;
use super::super::pull::AskedAgain;
use super::super::warm::or_held_back;
use super::super::{Came, Link, Mirror, Resolved, Urgency};
use super::location::what;
use crate::address::{ModuleAddress, ModulePackage};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::store::{Key, Recorded};
use crate::upstream::breaker::Origin;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::modules::ModuleVersionList;
use crate::upstream::source::PackageSource;

impl Mirror {
    /// The version list of a module, held with the discovery document that leads to it; while sealed, what clients are
    /// shown of it.
    ///
    /// # Errors
    /// Why it cannot be had; [`Error::HeldBack`] and [`Error::Spared`] where it may be asked for later.
    pub async fn warm_module_list(
        self: &Arc<Self>,
        address: &ModuleAddress,
        haste: Urgency,
        now: Timestamp,
    ) -> Result<Resolved<ModuleVersionList>, Error> {
        let (what, host) = (format!("the version list of {address}"), &address.host);
        let call = self.step_in(haste, now);
        let upstream = call.upstream(host)?;
        let mut origins = vec![Origin::of(&upstream.settings.url)];
        let mut missing = 0;
        for key in [Key::Discovery(host.clone()), Key::ModuleVersions(call.terms.key_of(address))] {
            match self.held_document(&key).await? {
                Some(held) => origins.extend(held.value.origins()),
                None => missing += 1,
            }
        }
        self.may_fetch(&what, host, &origins, missing, &call)?;
        let asked = async {
            if self.link() == Link::Online {
                self.discovery(host, &call).await?;
            }
            self.shown_module_versions(address, &call).await
        };
        let list = asked.await.map_err(|error| or_held_back(&what, host, &origins, error, &call))?;
        let unconfirmed = self.unconfirmed(&what, host, &origins, &list, &call)?;
        Ok(Resolved { value: list.value, unconfirmed })
    }

    /// Sees to it that the location and the archive of a version are held.
    ///
    /// # Errors
    /// As for the list; and where larder cannot fetch its source, so that a client would have to.
    pub async fn warm_module(
        self: &Arc<Self>,
        package: &ModulePackage,
        haste: Urgency,
        now: Timestamp,
    ) -> Result<Resolved<(Came, HeldArchive)>, Error> {
        let Resolved { value: held, unconfirmed } = self.module_as_held(package, haste, now).await?;
        if let Some(held) = held {
            return Ok(Resolved { value: (Came::Held, held), unconfirmed });
        }
        let host = &package.module.host;
        let call = self.step_in(haste, now);
        let archive = format!("the archive of {package}");
        let origins = self.origins_of_module(&call.terms.key_of_package(package).module).await?;
        self.may_fetch(&archive, host, &origins, 1, &call)?;
        let filled = self.module_fill(package, &call).await;
        let held = filled.map_err(|error| or_held_back(&archive, host, &origins, error, &call))?;
        Ok(Resolved { value: (Came::Fetched, held), unconfirmed })
    }

    /// The archive of a version that is held, once it is known where upstream has it; `None` where it is still to be
    /// fetched.
    ///
    /// # Errors
    /// As for [`warm_module`](Self::warm_module).
    pub async fn module_as_held(
        self: &Arc<Self>,
        package: &ModulePackage,
        haste: Urgency,
        now: Timestamp,
    ) -> Result<Resolved<Option<HeldArchive>>, Error> {
        let (asked, host) = (what(package), &package.module.host);
        let call = self.step_in(haste, now);
        let key = call.terms.key_of_package(package);
        if self.link() == Link::Offline
            && let Some(held) = self.held_module(&key).await?
        {
            return Ok(Resolved { value: Some(held), unconfirmed: None });
        }
        let origins = self.origins_of_module(&key.module).await?;
        let missing = u32::from(self.held_document(&Key::ModuleLocation(key.clone())).await?.is_none());
        self.may_fetch(&asked, host, &origins, missing, &call)?;
        let location = self.location(package, &call).await;
        let location = location.map_err(|error| or_held_back(&asked, host, &origins, error, &call))?;
        let unconfirmed = self.unconfirmed(&asked, host, &origins, &location, &call)?;
        let said = Arc::clone(&location.value).said(package)?;
        if let Some(held) = self.held_module(&key).await? {
            return Ok(Resolved { value: Some(held), unconfirmed });
        }
        if let PackageSource::Unsupported(source) = &said.located.source {
            let (what, at) = (source.what(), source.host().unwrap_or_else(|| "somewhere".to_owned()));
            let fault = Fault::Unusable(format!(
                "names {what} at {at}, which larder cannot fetch; clients fetch it there themselves"
            ));
            return Err(UpstreamError { asked, at: host.to_string(), fault }.into());
        }
        if self.link() == Link::Offline {
            return Err(self.lacks(&key, format!("the archive of {package}"), &call).await);
        }
        Ok(Resolved { value: None, unconfirmed })
    }

    /// Whom it took to get the version list of a module.
    async fn origins_of_module(self: &Arc<Self>, module: &ModuleAddress) -> Result<Vec<Origin>, Error> {
        let list = self.held_document(&Key::ModuleVersions(module.clone())).await?;
        Ok(list.map(|list| list.value.origins()).unwrap_or_default())
    }

    /// Makes everything that was warmed for a version survive a power cut.
    ///
    /// # Errors
    /// [`Error::NotKept`] where some of it is not held, so that an `init` would have to ask upstream.
    pub async fn settle_module(self: &Arc<Self>, package: &ModulePackage, digest: Digest) -> Result<(), Error> {
        let keys = leading_to(&self.terms().key_of_package(package), self.link());
        let synced = self.on_disk(move |mirror| {
            for (key, what) in keys {
                if !mirror.store.records.sync(&key)? {
                    return Ok(Some(what));
                }
            }
            Ok(None)
        });
        match synced.await? {
            Some(what) => Err(self.not_kept(&what).await),
            None if self.still_holds_module(package, digest).await? => Ok(()),
            None => Err(self.not_kept(&format!("the archive of {package}")).await),
        }
    }

    /// Whether a version can be installed from what is held, with this archive.
    pub async fn still_holds_module(self: &Arc<Self>, package: &ModulePackage, digest: Digest) -> Result<bool, Error> {
        let key = self.terms().key_of_package(package);
        self.on_disk(move |mirror| {
            for (of, _) in leading_to(&key, mirror.link()) {
                if matches!(mirror.store.records.look(&of)?, Recorded::Absent | Recorded::Damaged) {
                    return Ok(false);
                }
            }
            Ok(mirror.catalog.name(&key)?.get(&digest).is_some() && mirror.store.blobs.holds(&digest)?)
        })
        .await
    }
}

/// What a version cannot be installed without, besides its archive and its name; and what each is called. A sealed
/// mirror makes its lists and locations of what it holds.
fn leading_to(key: &ModulePackage, link: Link) -> Vec<(Key, String)> {
    let host = &key.module.host;
    let mut keys = vec![(Key::SeenModule(key.clone()), format!("what was seen of {key}"))];
    if link == Link::Online {
        keys.push((Key::Discovery(host.clone()), format!("the discovery document of {host}")));
        keys.push((Key::ModuleVersions(key.module.clone()), format!("the version list of {}", key.module)));
        keys.push((Key::ModuleLocation(key.clone()), what(key)));
    }
    keys
}
