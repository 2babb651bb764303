//! A stored document: its record format, and how it is parsed.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use url::Url;

use crate::address::{Version, Versions};
use crate::clock::Timestamp;
use crate::digest::{FastHash, FastHasher};
use crate::mirror::freshness::Confirmation;
use crate::mirror::freshness::{Confirmed, FlightResult, Revalidatable};
use crate::mirror::library::record_format as parts;
use crate::upstream::backoff::Origin;
use crate::upstream::discovery::{Discovery, Service};
use crate::upstream::limits::MemoryGrant;
use crate::upstream::providers::{LateVersion, ListedVersion, VersionList};
use crate::upstream::request::{Document, Validators};

pub type DocumentFlightResult = FlightResult<Arc<StoredDocument>>;

/// Size in bytes from which a document is parsed on a blocking thread.
const LARGE_DOCUMENT: usize = 64 * 1024;

/// The most large documents parsed at a time in this process. Parsing takes several times the size of a document.
static LARGE_READS: Semaphore = Semaphore::const_new(4);

/// A stored document: upstream's bytes and their metadata.
#[derive(Debug, Clone)]
pub struct StoredDocument {
    pub(in crate::mirror) metadata: DocumentMetadata,
    /// The bytes upstream sent.
    pub body: Bytes,
    /// Entries of an earlier copy that upstream has dropped: versions that are still stored (a JSON list), or services
    /// (a JSON object).
    pub dropped: Bytes,
    /// Memory reserved for the body, if it was just fetched.
    pub _room: MemoryGrant,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DocumentMetadata {
    /// The requested URL.
    pub asked: Url,
    /// The URL after redirects.
    pub url: Url,
    /// The origins contacted, redirects included.
    #[serde(default)]
    pub origins: Vec<Origin>,
    #[serde(default)]
    pub validators: Validators,
    pub fetched: Timestamp,
    /// The time of upstream's last answer about the document, a 304 or a 404 included.
    pub checked: Timestamp,
    /// True if that answer was a 404.
    #[serde(default)]
    pub gone: bool,
    /// Set for a document from a bundle until it is fetched from upstream. No credential is sent to the origins it
    /// names.
    #[serde(rename = "carried", default, skip_serializing_if = "std::ops::Not::not")]
    pub from_bundle: bool,
    /// Set for a version list that was stored without the times of its versions, because their record could not be written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_times: bool,
    /// The versions that upstream has and that its list does not name yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<LateVersion>,
}

impl DocumentMetadata {
    /// The metadata of a document that upstream sent now.
    pub(in crate::mirror) fn new(asked: Url, url: Url, now: Timestamp) -> Self {
        Self {
            asked,
            url,
            origins: Vec::new(),
            validators: Validators::default(),
            fetched: now,
            checked: now,
            gone: false,
            from_bundle: false,
            without_times: false,
            late: Vec::new(),
        }
    }

    pub(in crate::mirror) fn with_late(&self, late: Vec<LateVersion>) -> Self {
        Self { late, ..self.clone() }
    }
}

impl StoredDocument {
    pub(in crate::mirror) fn confirmation(&self) -> Confirmation {
        Confirmation { checked: self.metadata.checked, gone: self.metadata.gone }
    }

    pub(in crate::mirror) fn read(record: Vec<u8>) -> Option<Self> {
        let (metadata, parts) = parts::read(record)?;
        let [body, dropped] = <[Bytes; 2]>::try_from(parts).ok()?;
        Some(Self { metadata, body, dropped, _room: MemoryGrant::default() })
    }

    pub(in crate::mirror) fn write(&self) -> Vec<u8> {
        parts::write(&self.metadata, &[&self.body, &self.dropped])
    }

    pub(in crate::mirror) fn of(document: Document, requested_url: Url, now: Timestamp) -> Self {
        let Document { body, validators, url, origins, memory, .. } = document;
        let metadata = DocumentMetadata { origins, validators, ..DocumentMetadata::new(requested_url, url, now) };
        Self { metadata, body, dropped: Bytes::new(), _room: memory }
    }

    /// A document in place of one that upstream does not have.
    pub(in crate::mirror) fn of_nothing(body: Bytes, url: Url, now: Timestamp) -> Self {
        let metadata = DocumentMetadata::new(url.clone(), url, now);
        Self { metadata, body, dropped: Bytes::new(), _room: MemoryGrant::default() }
    }

    pub(in crate::mirror) fn confirmed_at(&self, now: Timestamp, gone: bool) -> Self {
        let metadata = DocumentMetadata { checked: now, gone, ..self.metadata.clone() };
        Self { metadata, ..self.clone() }
    }

    pub(in crate::mirror) fn has_same_content(&self, other: &Self) -> bool {
        self.body == other.body && self.dropped == other.dropped && self.metadata.late == other.metadata.late
    }

    pub(in crate::mirror) fn dropped(&self) -> Vec<Box<RawValue>> {
        serde_json::from_slice(&self.dropped).unwrap_or_default()
    }

    pub(in crate::mirror) fn with_dropped(self, dropped: &impl Serialize) -> Self {
        Self { dropped: serde_json::to_vec(dropped).map(Bytes::from).unwrap_or_default(), ..self }
    }

    /// Size in memory, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.body.len() + self.dropped.len()
    }

    /// A hash of the content, including dropped entries.
    pub fn content_hash(&self) -> FastHash {
        let mut hasher = FastHasher::new();
        hasher.update(&(self.body.len() as u64).to_le_bytes());
        hasher.update(&self.body);
        hasher.update(&self.dropped);
        for LateVersion { version, note, .. } in &self.metadata.late {
            hasher.update(format!("{version}: {note}\n").as_bytes());
        }
        hasher.finish()
    }

    /// Parses the document as discovery.
    pub fn discovery(&self) -> Result<Discovery, String> {
        Discovery::parse(&self.body, self.metadata.url.clone())
    }

    /// Parses the document; a large one on a blocking thread, so that it delays no other task.
    pub async fn parse_as<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Self) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        if self.body.len() < LARGE_DOCUMENT {
            return read(self);
        }
        let turn = LARGE_READS.acquire().await;
        let document = Arc::clone(self);
        let reading = tokio::task::spawn_blocking(move || {
            // The permit is released when the parsing ends, even if the caller has gone.
            let _turn = turn;
            read(&document)
        });
        reading.await.unwrap_or_else(|_| Err("reading it ended unexpectedly".to_owned()))
    }

    /// Parses the document as a version list, with the dropped versions that are still stored.
    pub async fn versions(self: &Arc<Self>, service: Service) -> Result<VersionList, String> {
        self.parse_as(move |document| document.as_versions(service)).await
    }

    pub(in crate::mirror) fn as_versions(&self, service: Service) -> Result<VersionList, String> {
        let mut list = match service {
            Service::Providers => VersionList::parse(&self.body)?,
            Service::Modules => VersionList::parse_of_module(&self.body)?,
        };
        list.add_new_versions(self.dropped());
        list.late = self.metadata.late.iter().filter(|late| list.get(&late.version).is_none()).cloned().collect();
        Ok(list)
    }

    /// The versions of the list, with the dropped ones that are still stored. One that cannot be read names nothing.
    pub(in crate::mirror) fn named_versions(&self, service: Service) -> BTreeSet<Version> {
        let Ok(mut named) = VersionList::named(service, &self.body) else { return BTreeSet::new() };
        named.extend(self.dropped_versions(service).into_iter().map(|listed| listed.version));
        named
    }

    /// The versions that upstream has dropped from the list.
    pub fn dropped_versions(&self, service: Service) -> Vec<ListedVersion> {
        let mut list = VersionList::empty(service);
        list.add_new_versions(self.dropped());
        list.versions
    }

    /// Removes these versions, which upstream has dropped, from the list.
    pub fn without_dropped(self, versions: &Versions) -> Self {
        #[derive(Deserialize)]
        struct DroppedEntry {
            version: String,
        }
        let mut remaining = self.dropped();
        remaining.retain(|raw| {
            let entry = serde_json::from_str::<DroppedEntry>(raw.get()).ok();
            let version = entry.and_then(|entry| Version::parse_of_module(&entry.version).ok());
            !version.is_some_and(|version| versions.include(&version))
        });
        self.with_dropped(&remaining)
    }
}

impl Revalidatable for Arc<StoredDocument> {
    fn origins(&self) -> Vec<Origin> {
        let DocumentMetadata { asked, origins, .. } = &self.metadata;
        let mut origins = origins.clone();
        let first = Origin::of(asked);
        if !origins.contains(&first) {
            origins.push(first);
        }
        origins
    }
}

impl From<StoredDocument> for Confirmed<Arc<StoredDocument>> {
    fn from(document: StoredDocument) -> Self {
        Self { confirmed: document.confirmation(), value: Arc::new(document) }
    }
}
