//! Serves module archives: opens a stored one, or fills it first.

use crate::mirror::Modules;
use std::sync::Arc;

use crate::address::{Artifact, ModulePackage};
use crate::digest::DigestPrefix;
use crate::error::Error;
use crate::mirror::archives::verified_open::OpenOutcome;
use crate::mirror::documents::revalidate::too_many_waiting;
use crate::mirror::modules::ModuleArchiveRef;
use crate::mirror::{Answer, Archive, Connectivity, Outcome, RequestContext, default_if_gone};

impl Modules {
    /// The archive that one of larder's URLs names. A missing one is fetched and packed, however long that takes:
    /// clients wait for an archive without a limit (PROTOCOL 2.5).
    ///
    /// # Errors
    /// [`Error::NotFound`] if no archive of the version has this digest, even after asking upstream.
    pub async fn module_archive(
        self: &Arc<Self>,
        wanted: &ModuleArchiveRef,
        call: &RequestContext,
    ) -> Result<Answer<Archive>, Error> {
        let package = &wanted.package;
        call.upstream(&package.module.host)?;
        let key = call.config.key_of_package(package);
        let answer = |value, outcome| Answer { value, outcome, fresh_until: call.now, checked: call.now };
        if let Some(archive) = self.open_module(&key, wanted.digest.as_ref(), call).await? {
            return Ok(answer(archive, Outcome::Hit));
        }
        if call.config.refetched_locations.get(&key, call.now).is_some()
            && self.library.stored_module(&key).await?.is_some()
        {
            return Err(no_such_archive(wanted));
        }
        if self.runtime.connectivity() == Connectivity::Offline {
            return Err(self.library.missing_error(&key, format!("the archive of {package}"), call).await);
        }
        let _place =
            self.runtime.try_wait(call).ok_or_else(|| too_many_waiting(&format!("the archive of {package}")))?;
        if self.library.stored_module(&key).await?.is_some() {
            // Another archive is stored. The version may have been republished, and accepted on another mirror.
            let seen = self.documents.get(package, call).await.ok().map(|answer| answer.value.age());
            self.documents.fetch_now(package, seen, call).await?;
        } else {
            self.module_fill(package, call).await?;
        }
        match self.open_module(&key, wanted.digest.as_ref(), call).await? {
            Some(archive) => Ok(answer(archive, Outcome::Miss)),
            None => {
                let rule = call.upstream(&package.module.host)?.rule(|fresh| fresh.download);
                call.config.refetched_locations.insert(key, (), call.now.after(rule.not_found_lifetime()), call.now);
                Err(no_such_archive(wanted))
            }
        }
    }

    /// Opens and verifies a stored archive: the one with this digest, or the current one.
    async fn open_module(
        self: &Arc<Self>,
        key: &ModulePackage,
        digest: Option<&DigestPrefix>,
        call: &RequestContext,
    ) -> Result<Option<Archive>, Error> {
        let stored_archive = match digest {
            None => self.library.stored_module(key).await?,
            Some(prefix) => {
                let (artifact, prefix) = (Artifact::Module(key.clone()), *prefix);
                self.library
                    .on_disk(move |library| {
                        Ok(default_if_gone(library.catalog.name(&artifact))?.find(&prefix).cloned())
                    })
                    .await?
            }
        };
        let Some(stored_archive) = stored_archive else { return Ok(None) };
        match self.reader.open_stored(key, &stored_archive, call).await? {
            OpenOutcome::Checked(archive) => Ok(Some(archive)),
            OpenOutcome::Missing | OpenOutcome::Damaged => Ok(None),
        }
    }

    /// Fills the archive of a version unless it is stored.
    ///
    /// # Errors
    /// The error of the fill, or of a mirror that is offline.
    pub(in crate::mirror) async fn ensure_module_stored(
        self: &Arc<Self>,
        package: &ModulePackage,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let key = call.config.key_of_package(package);
        match self.library.stored_module(&key).await? {
            Some(_) => Ok(()),
            None if self.runtime.connectivity() == Connectivity::Offline => {
                Err(self.library.missing_error(&key, format!("the archive of {package}"), call).await)
            }
            None => self.module_fill(package, call).await.map(drop),
        }
    }
}

fn no_such_archive(ModuleArchiveRef { package, digest }: &ModuleArchiveRef) -> Error {
    let digest = digest.as_ref().map(ToString::to_string).unwrap_or_default();
    Error::NotFound(format!("{package} has no archive with SHA-256 prefix {digest}; request its download again"))
}
