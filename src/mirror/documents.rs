//! Stored documents: their record format, and how they are fetched, stored and replaced.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use url::Url;

use super::counters::Stored;
use super::freshness::{Age, FreshnessDecision, RevalidationOrder, Rule, decide};
use super::pull::{AskedAgain, Flight, Landed};
use super::{Mirror, RequestContext, parts, unless_gone};
use crate::clock::Timestamp;
use crate::digest::{FastHash, FastHasher};
use crate::error::Error;
use crate::store::{Durability, Key, StoreError};
use crate::upstream::ask::{Document, Fetched, UpstreamRequest, Validators};
use crate::upstream::breaker::Origin;
use crate::upstream::discovery::Discovery;
use crate::upstream::error::UpstreamError;
use crate::upstream::memory_budget::MemoryGrant;
use crate::upstream::providers::VersionList;
use crate::upstream::{CredentialScope, Upstream};

/// The number of retries of a fetch when nothing is stored.
pub(super) const RETRIES: usize = 2;

pub(super) type DocumentFlight = Flight<Arc<KeptDocument>>;

/// Documents of this size or larger are parsed on a blocking thread, in bytes.
const LARGE_DOCUMENT: usize = 64 * 1024;

/// The most large documents parsed at a time in this process. Parsing takes several times the size of a document.
static LARGE_READS: Semaphore = Semaphore::const_new(4);

/// The state of the store when a flight begins.
pub(super) enum Meanwhile {
    /// Another flight has just fetched the document.
    Landed(Landed<Arc<KeptDocument>>),
    /// The stored copy to build on, if any.
    Held(Option<Arc<KeptDocument>>),
}

/// The result of replacing a stored document.
pub(super) enum Placed {
    /// The new document was stored.
    Put,
    /// The old document stays, because it was confirmed later.
    OutlastedBy(Box<KeptDocument>),
}

/// A stored document: upstream's bytes and their metadata.
#[derive(Debug, Clone)]
pub struct KeptDocument {
    pub(super) about: DocumentSubject,
    /// The bytes upstream sent.
    pub(super) body: Bytes,
    /// Entries of an earlier copy that upstream has dropped: versions that are still stored (a JSON list), or services
    /// (a JSON object).
    pub(super) dropped: Bytes,
    /// Memory reserved for the body, if it was just fetched.
    pub(super) _room: MemoryGrant,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct DocumentSubject {
    /// The requested URL.
    pub(super) asked: Url,
    /// The URL after redirects.
    pub(super) url: Url,
    /// The origins contacted, redirects included.
    #[serde(default)]
    pub(super) origins: Vec<Origin>,
    #[serde(default)]
    pub(super) validators: Validators,
    pub(super) fetched: Timestamp,
    pub(super) checked: Timestamp,
    #[serde(default)]
    pub(super) gone: bool,
    /// Set for a document from a bundle until it is fetched from upstream. No credential is sent to the origins it
    /// names.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) carried: bool,
}

impl KeptDocument {
    pub(super) fn age(&self) -> Age {
        Age { checked: self.about.checked, gone: self.about.gone }
    }

    pub(super) fn read(record: Vec<u8>) -> Option<Self> {
        let (about, parts) = parts::read(record)?;
        let [body, dropped] = <[Bytes; 2]>::try_from(parts).ok()?;
        Some(Self { about, body, dropped, _room: MemoryGrant::default() })
    }

    pub(super) fn write(&self) -> Vec<u8> {
        parts::write(&self.about, &[&self.body, &self.dropped])
    }

    pub(super) fn of(document: Document, asked: Url, now: Timestamp) -> Self {
        let Document { body, validators, url, origins, room, .. } = document;
        let about = DocumentSubject {
            asked,
            url,
            origins,
            validators,
            fetched: now,
            checked: now,
            gone: false,
            carried: false,
        };
        Self { about, body, dropped: Bytes::new(), _room: room }
    }

    pub(super) fn checked_again(&self, now: Timestamp, gone: bool) -> Self {
        let about = DocumentSubject { checked: now, gone, ..self.about.clone() };
        Self { about, ..self.clone() }
    }

    pub(super) fn says_the_same_as(&self, other: &Self) -> bool {
        self.body == other.body && self.dropped == other.dropped
    }

    pub(super) fn dropped(&self) -> Vec<Box<RawValue>> {
        serde_json::from_slice(&self.dropped).unwrap_or_default()
    }

    /// A hash of the content, including dropped entries.
    pub fn says(&self) -> FastHash {
        let mut hasher = FastHasher::new();
        hasher.update(&(self.body.len() as u64).to_le_bytes());
        hasher.update(&self.body);
        hasher.update(&self.dropped);
        hasher.finish()
    }

    /// Parses the document as discovery.
    pub fn discovery(&self) -> Result<Discovery, String> {
        Discovery::parse(&self.body, self.about.url.clone())
    }

    /// Parses the document as a version list, with the dropped versions that are still stored.
    pub async fn versions(self: &Arc<Self>) -> Result<VersionList, String> {
        self.read_as(Self::as_versions).await
    }

    pub(super) fn as_versions(&self) -> Result<VersionList, String> {
        let mut list = VersionList::parse(&self.body)?;
        list.add(self.dropped());
        Ok(list)
    }

    /// Parses the document; a large one on a blocking thread, so that it delays no other task.
    pub(super) async fn read_as<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Self) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        if self.body.len() < LARGE_DOCUMENT {
            return read(self);
        }
        let turn = LARGE_READS.acquire().await;
        let kept = Arc::clone(self);
        let reading = tokio::task::spawn_blocking(move || {
            // The permit is released when the parsing ends, even if the caller has gone.
            let _turn = turn;
            read(&kept)
        });
        reading.await.unwrap_or_else(|_| Err("reading it ended unexpectedly".to_owned()))
    }
}

impl AskedAgain for Arc<KeptDocument> {
    fn origins(&self) -> Vec<Origin> {
        let DocumentSubject { asked, origins, .. } = &self.about;
        let mut origins = origins.clone();
        let first = Origin::of(asked);
        if !origins.contains(&first) {
            origins.push(first);
        }
        origins
    }
}

impl Upstream {
    pub(super) fn rule(&self, fresh: impl Fn(&crate::config::FreshnessLifetimes) -> std::time::Duration) -> Rule {
        let settings = &self.settings;
        Rule {
            fresh: fresh(&settings.fresh),
            not_found: settings.fresh.not_found,
            patience: settings.patience,
            place: RevalidationOrder::AsBefore,
        }
    }
}

impl Mirror {
    /// Reads the store at the start of a flight: another may have landed since the caller read it.
    pub(super) async fn landed_meanwhile(
        self: &Arc<Self>,
        key: &Key,
        seen: Option<Age>,
        rule: &Rule,
        call: &RequestContext,
    ) -> Result<Meanwhile, Error> {
        let held = self.held_document(key).await?;
        if held.is_none()
            && let Some(said) = call.terms.absent.get(key, call.now)
        {
            return Err(Error::NotFound(said));
        }
        Ok(match held {
            Some(held)
                if seen != Some(held.age)
                    && decide(Some(held.age), rule, self.link(), call.now) == FreshnessDecision::Serve =>
            {
                Meanwhile::Landed(held)
            }
            held => Meanwhile::Held(held.map(|held| held.value)),
        })
    }

    pub(super) async fn held_document(self: &Arc<Self>, key: &Key) -> Result<Option<Landed<Arc<KeptDocument>>>, Error> {
        let wanted = key.clone();
        self.on_disk(move |mirror| {
            let Some(record) = unless_gone(mirror.store.records.get(&wanted))? else { return Ok(None) };
            let Some(kept) = KeptDocument::read(record) else {
                mirror.store.records.quarantine(&wanted)?;
                return Ok(None);
            };
            Ok(Some(Landed { age: kept.age(), value: Arc::new(kept) }))
        })
        .await
    }

    #[expect(clippy::too_many_arguments, reason = "an Ask and what it is made of")]
    pub(super) async fn ask(
        &self,
        what: &str,
        url: &Url,
        upstream: &Upstream,
        grant: &CredentialScope,
        before: Option<&KeptDocument>,
        limit: u64,
        call: &RequestContext,
    ) -> Result<Fetched, UpstreamError> {
        let retries = if before.is_some() { 0 } else { RETRIES };
        let RequestContext { via, asker, now, .. } = call;
        let upstream = &upstream.settings.host;
        let ask = UpstreamRequest { what, url, upstream, grant, via, retries, asker: *asker, now: *now };
        let held = before.filter(|before| before.about.asked == *url).map(|before| &before.about.validators);
        call.terms.outbound.document(ask, held, limit).await
    }

    /// Stores a document that was just fetched, and enforces the size limit. A stored copy that was confirmed later
    /// stays; it is also returned, unless it was fetched from another URL. A failed write is logged, and the caller
    /// still gets the document.
    pub(super) async fn keep_document(self: &Arc<Self>, key: Key, kept: KeptDocument) -> DocumentFlight {
        let coming = kept.clone();
        let put = self.on_disk(move |mirror| {
            let now = coming.about.checked;
            let placed = mirror.place_document(&key, coming, now, Durability::Lazy, |_, coming| Ok(coming))?;
            mirror.keep_to_the_limit();
            Ok(placed)
        });
        let kept = match put.await {
            Ok(placed) => {
                self.was_kept(Stored::Document);
                match placed {
                    Placed::OutlastedBy(held) if held.about.asked == kept.about.asked => *held,
                    Placed::Put | Placed::OutlastedBy(_) => kept,
                }
            }
            Err(error) => {
                tracing::error!(%error, "a document could not be kept");
                if let Error::Store(why) = &error {
                    self.was_not_kept(Stored::Document, why);
                }
                kept
            }
        };
        Ok(Landed { age: kept.age(), value: Arc::new(kept) })
    }

    /// Stores the document that `made` builds from the old and the new one, unless the old one was confirmed later.
    pub(super) fn place_document(
        &self,
        key: &Key,
        coming: KeptDocument,
        now: Timestamp,
        durability: Durability,
        made: impl FnOnce(Option<&KeptDocument>, KeptDocument) -> Result<KeptDocument, StoreError>,
    ) -> Result<Placed, StoreError> {
        let _lock = self.catalog.record_lock(key).lock();
        let held = unless_gone(self.store.records.get(key))?.and_then(KeptDocument::read);
        if let Some(held) = held.as_ref().filter(|held| held.age().outlasts(coming.age(), now)) {
            return Ok(Placed::OutlastedBy(Box::new(held.clone())));
        }
        let made = made(held.as_ref(), coming)?;
        let size_bytes = self.store.records.put(key, &made.write(), durability)?;
        self.store.index.document_stored(key, size_bytes, made.about.checked);
        Ok(Placed::Put)
    }

    /// Writes a document and indexes its size.
    pub(super) fn write_document(
        &self,
        key: &Key,
        record: &[u8],
        now: Timestamp,
        durability: Durability,
    ) -> Result<(), StoreError> {
        let _lock = self.catalog.record_lock(key).lock();
        let size_bytes = self.store.records.put(key, record, durability)?;
        self.store.index.document_stored(key, size_bytes, now);
        Ok(())
    }

    pub(super) fn remove_document(&self, key: &Key, durability: Durability) -> Result<(), StoreError> {
        let _lock = self.catalog.record_lock(key).lock();
        self.store.records.remove(key, durability)?;
        self.store.index.document_gone(key);
        Ok(())
    }

    pub(super) async fn drop_document(self: &Arc<Self>, key: Key) -> Result<(), Error> {
        self.on_disk(move |mirror| mirror.remove_document(&key, Durability::Synced)).await
    }
}
