//! Reads and replaces the stored record of a proof set.

use std::sync::Arc;

use crate::address::Package;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::counters::ObjectKind;
use crate::mirror::documents::revalidate::Aged;
use crate::mirror::freshness::Age;
use crate::mirror::library::proof_set::{ProofSet, StoredProofSet, imported_differs};
use crate::mirror::proof_sets::SetFlight;
use crate::mirror::{AlarmKind, Library, ProofSets, RequestContext, default_if_gone};
use crate::store::{Durability, IndexEntry, Key, StoreError};
use crate::verify::ProofBasis;

impl ProofSets {
    /// Replaces a package's set. The old set becomes the predecessor, unless it was imported without signatures.
    pub(in crate::mirror) async fn store_set(
        self: &Arc<Self>,
        package: &Package,
        set: ProofSet,
        now: Timestamp,
    ) -> SetFlight {
        self.store_set_confirmed_at(package, set, now, now).await
    }

    /// Replaces a package's set by one that upstream confirmed at `checked`.
    pub(in crate::mirror) async fn store_set_confirmed_at(
        self: &Arc<Self>,
        package: &Package,
        set: ProofSet,
        checked: Timestamp,
        now: Timestamp,
    ) -> SetFlight {
        self.replace_imported_set(package, &set, now).await?;
        let current = Arc::new(set);
        self.change_set(package, move |library, stored| {
            let predecessor = match stored {
                None => None,
                Some(stored) if stored.current.proof().how == ProofBasis::Imported => None,
                Some(stored) if current.has_same_files(&stored.current) => stored.predecessor,
                // While only the older predecessor's archive is stored, that one stays the fallback.
                Some(stored) => match library.only_predecessor_is_stored(&stored)? {
                    Some(_) => stored.predecessor,
                    None => Some((stored.current, now)),
                },
            };
            Ok(StoredProofSet { predecessor, current: Arc::clone(&current), age: Age { checked, gone: false } })
        })
        .await
    }

    /// Makes the next request for a package's set revalidate it, unless it was replaced meanwhile.
    pub(in crate::mirror) async fn expire_set(self: &Arc<Self>, package: &Package, wrong: Digest) -> Result<(), Error> {
        let key = Key::ProofSet(package.clone());
        let owned_package = package.clone();
        self.library
            .on_disk(move |library| {
                library.store.records.change(&key, |step| {
                    let stored = library.read_set(&owned_package)?.map(|stored| stored.stored_set);
                    if let Some(stored) = stored.filter(|stored| stored.current.document.shasum == wrong) {
                        let age = Age { checked: Timestamp(0), ..stored.age };
                        let expired = StoredProofSet { age, ..(*stored).clone() };
                        let entry = IndexEntry::Document(expired.current.fetched());
                        step.put(&key, expired.write(), Durability::Lazy, entry);
                    }
                    Ok(())
                })
            })
            .await?;
        self.library.bump_revision(&package.provider);
        Ok(())
    }

    /// Replaces a package's set by the result of `change`. A stored set that was confirmed later stays. A failed write
    /// is logged, and the caller still gets the set.
    pub(in crate::mirror) async fn change_set(
        self: &Arc<Self>,
        package: &Package,
        change: impl Fn(&Library, Option<StoredProofSet>) -> Result<StoredProofSet, StoreError> + Send + 'static,
    ) -> SetFlight {
        let owned_package = package.clone();
        let changed = self.library.on_disk(move |library| {
            let key = Key::ProofSet(owned_package.clone());
            let ((changed, is_put), written) = library.store.records.judge(&key, |step| {
                let read = library.read_set(&owned_package);
                // Do not overwrite a set that was not read: the store may be back by now.
                let is_gone = matches!(read, Err(StoreError::Gone));
                let stored = default_if_gone(read)?.map(|stored| Arc::unwrap_or_clone(stored.stored_set));
                let before = stored.clone();
                let changed = change(library, stored)?;
                if let Some(before) =
                    before.filter(|before| before.age.is_confirmed_after(changed.age, changed.age.checked))
                {
                    return Ok((before, false));
                }
                if !is_gone {
                    step.put(&key, changed.write(), Durability::Lazy, IndexEntry::Document(changed.age.checked));
                }
                Ok((changed, !is_gone))
            })?;
            match written {
                Ok(()) if is_put => library.record_stored(ObjectKind::Document),
                Ok(()) => return Ok(changed),
                Err(error) => {
                    tracing::error!(package = %owned_package, %error, "a proof set could not be stored");
                    library.record_not_stored(ObjectKind::Document, &error);
                }
            }
            library.enforce_size_limit();
            Ok(changed)
        });
        let changed = Arc::new(changed.await?);
        self.library.bump_revision(&package.provider);
        Ok(Aged { age: changed.age, value: changed })
    }

    /// Stores an unsigned set, unless a verified one is stored by now. Returns the set in place.
    pub(in crate::mirror) async fn keep_unsigned(
        self: &Arc<Self>,
        package: &Package,
        set: ProofSet,
        call: &RequestContext,
    ) -> Result<Arc<StoredProofSet>, Error> {
        let policy = call.upstream(&package.provider.host)?.settings.verification;
        let current = Arc::new(set);
        let stored = self.change_set(package, move |_, stored| {
            let is_proven = |stored: &StoredProofSet| {
                let how = &stored.current.proof().how;
                *how != ProofBasis::Imported && policy.is_met_by(how)
            };
            Ok(match stored.filter(is_proven) {
                Some(proven) => proven,
                // Stale at once, so that upstream is asked as soon as it can be. Marked as deleted upstream, so that it
                // is evicted last.
                None => {
                    let age = Age { checked: Timestamp(0), gone: true };
                    StoredProofSet { current: Arc::clone(&current), predecessor: None, age }
                }
            })
        });
        Ok(stored.await?.value)
    }

    /// Prepares to replace an unsigned set by a verified one: raises an alarm if the bytes differ, or marks the stored
    /// archive as verified.
    pub(in crate::mirror) async fn replace_imported_set(
        self: &Arc<Self>,
        package: &Package,
        set: &ProofSet,
        now: Timestamp,
    ) -> Result<(), Error> {
        let owned_package = package.clone();
        let stored = self.library.on_disk(move |library| default_if_gone(library.read_set(&owned_package))).await?;
        let imported = stored
            .map(|stored| stored.stored_set)
            .filter(|stored_set| stored_set.current.proof().how == ProofBasis::Imported);
        let Some(imported) = imported else { return Ok(()) };
        let Package { provider, version, .. } = package;
        let (digest, proof) = (set.document.shasum, set.proof().clone());
        let before = imported.current.document.shasum;
        if before != digest {
            let owned_package = package.clone();
            if self.library.on_disk(move |library| library.is_repacked(&owned_package, before)).await? {
                tracing::info!(%package, "an unpacked import is replaced by upstream's archive from now on");
                return Ok(());
            }
            tracing::error!(%package, imported = %before, upstream = %digest, "ALARM: an unsigned import differs from upstream's archive; upstream's is served from now on");
            let (provider, version) = (provider.clone(), version.clone());
            return self
                .library
                .on_disk(move |library| {
                    let detail = imported_differs(before, digest);
                    library.raise_alarm(AlarmKind::ImportedDiffers, &provider, &version, detail, now);
                    Ok(())
                })
                .await;
        }
        tracing::info!(%package, "an unsigned import is verified now: it equals upstream's archive");
        let (owned_package, filename) = (package.clone(), set.document.filename.clone());
        self.library
            .on_disk(move |library| {
                library.catalog.change_name(&owned_package, |name| {
                    if let Some(archive) = name.archives.iter_mut().find(|archive| archive.digest == digest) {
                        (archive.proof, archive.filename) = (proof.clone(), filename.clone());
                    }
                })
            })
            .await
    }
}
