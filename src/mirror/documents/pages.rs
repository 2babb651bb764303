//! Serves pages of the registry HTTP API: lists, searches and details. Offline, a page that is not stored is built from
//! the stored packages.

use crate::mirror::Documents;
use std::sync::Arc;

use bytes::Bytes;
use url::Url;

use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::documents::discovery::DiscoveryTrust;
use crate::mirror::documents::document_fetch::DocumentRequest;
use crate::mirror::library::stored_document::{DocumentFlight, StoredDocument};
pub(in crate::mirror) use crate::mirror::offline::stored_pages::latest;
pub use crate::mirror::offline::stored_pages::{PageFromStore, StoredDetails, StoredEntry, StoredList, StoredSubject};
use crate::mirror::{Answer, Outcome, RequestContext, RuntimeConfig};
use crate::store::Key;
use crate::upstream::error::Fault;
use crate::upstream::pages::PageRef;
use crate::upstream::providers::RawObject;
use crate::upstream::request::Fetched;

/// A page as upstream sent it.
#[derive(Debug, Clone)]
pub struct UpstreamPage {
    /// The body.
    pub body: Bytes,
    /// The URL of the body. Its relative links resolve against this.
    pub url: Url,
    /// The base URLs of its service upstream. Links below them are available through larder too.
    pub bases: Vec<Url>,
}

impl StoredDocument {
    /// Parses the document as a page; a large one on a blocking thread, so that it delays no other task.
    pub async fn read_page<T: Send + 'static>(
        self: &Arc<Self>,
        page: &PageRef,
        read: impl FnOnce(UpstreamPage) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let page = page.clone();
        let read = move |document: &Self| {
            let urls = [&document.metadata.asked, &document.metadata.url];
            let bases = urls.into_iter().filter_map(|url| page.base_of(url)).collect();
            read(UpstreamPage { body: document.body.clone(), url: document.metadata.url.clone(), bases })
        };
        self.parse_as(read).await
    }
}

impl RuntimeConfig {
    /// The key of a page. Where the registry ignores case, all spellings of a name share one key.
    pub(in crate::mirror) fn key_of_page(&self, page: &PageRef) -> Key {
        let folds = self.upstreams.get(&page.host).is_some_and(|upstream| upstream.settings.fold_case);
        let text = if folds { page.folded_text() } else { page.text() };
        Key::Page(page.host.clone(), Digest::of(text.as_bytes()))
    }
}

impl Documents {
    /// Returns a page of the registry HTTP API.
    pub async fn page(
        self: &Arc<Self>,
        page: &PageRef,
        call: &RequestContext,
    ) -> Result<Answer<Arc<StoredDocument>>, Error> {
        let upstream = Arc::clone(call.upstream(&page.host)?);
        let rule = upstream.rule(|fresh| fresh.api);
        let (subject, key, service) = (page.label(), call.config.key_of_page(page), page.path.service());
        let wanted = DocumentRequest { subject, key, upstream, service, rule };
        let (stored, rule) = self.stored_or_not_found(&wanted, call).await?;
        let seen = stored.as_ref().map(|stored| stored.age);
        let fly = |fetch_reason, call: &RequestContext| {
            let (request, page) = (wanted.clone(), page.clone());
            self.join_document_flight(&wanted, seen, fetch_reason, call, |documents, before, call| async move {
                documents.fetch_page(&request, &page, before, &call).await
            })
        };
        let pulled = self.serve_or_fetch(&wanted.subject, &page.host, call, &rule, stored, fly).await;
        let Answer { value, outcome, fresh_until, checked } =
            pulled.inspect_err(|error| self.library.record_text_if_offline(error, call))?;
        if matches!(outcome, Outcome::Hit | Outcome::Stale | Outcome::Gone) {
            let (key, now) = (wanted.key, call.now);
            self.library
                .on_disk(move |library| {
                    library.store.index.document_used(&key, now);
                    Ok(())
                })
                .await?;
        }
        Ok(Answer { value, outcome, fresh_until, checked })
    }

    async fn fetch_page(
        self: &Arc<Self>,
        wanted: &DocumentRequest,
        page: &PageRef,
        before: Option<Arc<StoredDocument>>,
        call: &RequestContext,
    ) -> DocumentFlight {
        let (subject, upstream) = (&wanted.subject, &*wanted.upstream);
        let unusable = |reason: String| wanted.unusable(reason);
        let trust = DiscoveryTrust::for_what_is_held(before.as_ref());
        let (base, credential_scope) = self.resolve_service(page.path.service(), upstream, trust, call).await?;
        let url = page.url(&base).map_err(|e| unusable(e.to_string()))?;
        let fetched = self
            .fetch_from(
                subject,
                &url,
                upstream,
                &credential_scope,
                before.as_deref(),
                self.runtime.limits.document_bytes,
                call,
            )
            .await;
        let stored_document = match (fetched, before) {
            (Ok(Fetched::Unchanged), Some(before)) => before.confirmed(call.now, false),
            (Ok(Fetched::Unchanged), None) => return Err(unusable("304 to an unconditional request".into()).into()),
            (Ok(Fetched::New(document)), _) => {
                let stored_document = StoredDocument::of(document, url, call.now);
                Arc::new(stored_document.clone()).parse_as(is_page).await.map_err(&unusable)?;
                stored_document
            }
            (Err(error), before) if matches!(error.fault, Fault::Absent(_)) => {
                self.keep_gone_copy(wanted, before, &error, call).await?
            }
            (Err(error), _) => return Err(error.into()),
        };
        self.library.store_document(wanted.key.clone(), stored_document).await
    }
}

/// Checks that a page is a JSON object. Its contents are left to the reader.
fn is_page(document: &StoredDocument) -> Result<(), String> {
    let read = serde_json::from_slice::<RawObject>(&document.body);
    read.map(drop).map_err(|e| format!("its page is not a JSON object: {e}"))
}
