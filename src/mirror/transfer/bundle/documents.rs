//! Imports a document of a bundle: parse it, then replace the stored one unless that is newer.

use crate::mirror::Library;
use bytes::Bytes;

use crate::address::Version;
use crate::bundle::{ApplyOutcome, BundleEntry, BundledDocument, FetchOrigin, FileRole};
use crate::clock::Timestamp;
use crate::mirror::library::stored_document::{DocumentMetadata, ReplaceOutcome, StoredDocument};
use crate::mirror::transfer::bundle::entry::{SmallFiles, store_failed};
use crate::store::{Durability, Key};
use crate::upstream::memory_budget::MemoryGrant;
use crate::upstream::request::Validators;

pub(in crate::mirror) struct BundledDocumentUpdate {
    key: Key,
    stored: StoredDocument,
    /// The provider versions that it lists.
    versions: Vec<Version>,
}

impl BundledDocumentUpdate {
    /// Parses the document of an entry. `None` if it, or a newer one, is stored already.
    ///
    /// # Errors
    /// The reason that it is refused.
    pub(in crate::mirror) fn check_entry(
        library: &Library,
        entry: &BundleEntry,
        document: &BundledDocument,
        small: &SmallFiles,
        now: Timestamp,
    ) -> Result<Option<Self>, String> {
        let (key, kept) = (library.entry_key(entry), document_of(document, small, now)?);
        let versions = match &key {
            Key::ProviderVersions(_) => {
                kept.as_versions().map(|list| list.versions.into_iter().map(|listed| listed.version).collect())
            }
            Key::ModuleVersions(_) => kept.as_module_versions().map(|_| Vec::new()),
            _ => kept.discovery_for_clients().map(|_| Vec::new()),
        };
        let versions = versions.map_err(|reason| format!("its document cannot be read: {reason}"))?;
        let is_held = library.has_document_or_newer(&key, &kept, now).map_err(store_failed)?
            || library.keeps_own_discovery(&key, &kept).map_err(store_failed)?;
        if is_held {
            return Ok(None);
        }
        Ok(Some(Self { key, stored: kept, versions }))
    }

    /// Replaces the stored document, unless a newer one was stored since.
    pub(in crate::mirror) fn commit(self, library: &Library, now: Timestamp) -> Result<ApplyOutcome, String> {
        let Self { key, stored, versions } = self;
        if let Key::ProviderVersions(address) = &key {
            library.histories.record_listed(address, &versions, stored.metadata.checked).map_err(store_failed)?;
        }
        let made = |before: Option<&StoredDocument>, coming| library.merge_stored_entries(&key, before, coming);
        let placed = library.replace_document(&key, stored, now, Durability::Synced, made).map_err(store_failed)?;
        if matches!(placed, ReplaceOutcome::KeptExisting(_)) {
            return Ok(ApplyOutcome::Held);
        }
        let terms = library.runtime.config();
        terms.not_found.remove_if(|absent| {
            *absent == key
                || match (absent, &key) {
                    (Key::ProofSet(package), Key::ProviderVersions(address)) => package.provider == *address,
                    (Key::ModuleLocation(package), Key::ModuleVersions(address)) => package.module == *address,
                    _ => false,
                }
        });
        match &key {
            Key::ProviderVersions(address) => library.bump_revision(address),
            Key::ModuleVersions(address) => library.bump_revision(address),
            _ => {}
        }
        library.enforce_size_limit();
        Ok(ApplyOutcome::Applied { note: None })
    }
}

fn document_of(document: &BundledDocument, small: &SmallFiles, now: Timestamp) -> Result<StoredDocument, String> {
    let kept = document_from_bundle(
        &document.said,
        small.get(FileRole::Document)?,
        small.get_or_empty(FileRole::Dropped),
        now,
    );
    if !kept.dropped.is_empty() && serde_json::from_slice::<serde::de::IgnoredAny>(&kept.dropped).is_err() {
        return Err("its list of dropped versions is not JSON".to_owned());
    }
    Ok(kept)
}

/// Builds the stored form of a document from its manifest entry.
pub(in crate::mirror) fn document_from_bundle(
    fetch_origin: &FetchOrigin,
    body: Bytes,
    dropped: Bytes,
    now: Timestamp,
) -> StoredDocument {
    let metadata = DocumentMetadata {
        asked: fetch_origin.asked.clone(),
        url: fetch_origin.url.clone(),
        origins: Vec::new(),
        validators: Validators::default(),
        // A time in the future is clamped, because the other machine's clock may be ahead.
        fetched: fetch_origin.fetched.min(now),
        checked: fetch_origin.checked.min(now),
        gone: fetch_origin.gone,
        carried: true,
    };
    StoredDocument { metadata, body, dropped, _room: MemoryGrant::default() }
}
