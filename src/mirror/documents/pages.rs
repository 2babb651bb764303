//! Pages of the registry HTTP API as documents: lists, searches and details.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use url::{ParseError, Url};

use crate::address::Hostname;
use crate::config::FreshnessLifetimes;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::RuntimeConfig;
use crate::mirror::documents::{DocumentFetch, DocumentKind};
use crate::mirror::library::stored_document::StoredDocument;
use crate::store::{DocumentKey, Key};
use crate::upstream::discovery::Service;
use crate::upstream::pages::PageRef;
use crate::upstream::providers::RawObject;
use crate::upstream::request::Document;

impl DocumentKind for PageRef {
    fn label(&self) -> String {
        Self::label(self)
    }

    fn host(&self) -> &Hostname {
        &self.host
    }

    /// Where the registry ignores case, all spellings of a name share one key.
    fn key(&self, config: &RuntimeConfig) -> Key {
        let folds = config.upstreams.get(&self.host).is_some_and(|upstream| upstream.settings.fold_case);
        let text = if folds { self.folded_text() } else { self.text() };
        Key::Document(DocumentKey::Page(self.host.clone(), Digest::of(text.as_bytes())))
    }

    fn service(&self) -> Option<Service> {
        Some(self.path.service())
    }

    fn lifetime(lifetimes: &FreshnessLifetimes) -> Duration {
        lifetimes.api
    }

    fn url(&self, base: &Url, _: &DocumentFetch<'_>) -> Result<Url, ParseError> {
        Self::url(self, base)
    }

    /// Checks that a page is a JSON object. Its contents are left to the reader.
    async fn check_answer(
        &self,
        fetch: &DocumentFetch<'_>,
        answer: Document,
        url: Url,
    ) -> Result<StoredDocument, Error> {
        let page = Arc::new(StoredDocument::of(answer, url, fetch.call.now));
        let read = |page: &StoredDocument| serde_json::from_slice::<RawObject>(&page.body).map(drop);
        let read = page.parse_as(move |page| read(page).map_err(|e| format!("its page is not a JSON object: {e}")));
        read.await.map_err(|reason| fetch.unusable(reason))?;
        Ok(Arc::unwrap_or_clone(page))
    }
}

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
