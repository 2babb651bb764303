//! The dates of versions as documents. They are fetched where a policy needs them, behind the version list: neither their
//! absence nor a failure changes the list.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use url::{ParseError, Url};

use crate::address::{Address, Hostname};
use crate::config::FreshnessLifetimes;
use crate::error::Error;
use crate::mirror::RuntimeConfig;
use crate::mirror::documents::{DocumentFetch, DocumentKind};
use crate::mirror::library::Library;
use crate::mirror::library::stored_document::StoredDocument;
use crate::mirror::request_context::RequestContext;
use crate::store::{DocumentKey, Key};
use crate::upstream::dates;
use crate::upstream::discovery::Service;
use crate::upstream::error::UpstreamError;
use crate::upstream::providers::MAX_VERSIONS;
use crate::upstream::request::Document;

/// Names the dates of the versions of an address.
#[derive(Debug, Clone)]
pub struct VersionDates(pub Address);

impl DocumentKind for VersionDates {
    fn label(&self) -> String {
        format!("the dates of the versions of {}", self.0)
    }

    fn host(&self) -> &Hostname {
        self.0.host()
    }

    fn key(&self, config: &RuntimeConfig) -> Key {
        Key::Document(DocumentKey::Dates(config.canonical(&self.0)))
    }

    /// They are at the origin of the registry, and no service has them.
    fn service(&self) -> Option<Service> {
        None
    }

    fn lifetime(lifetimes: &FreshnessLifetimes) -> Duration {
        lifetimes.versions
    }

    /// Nobody misses a package for want of a date.
    fn record_missing(&self, _: &Arc<Library>, _: &Error, _: &RequestContext) {}

    fn url(&self, base: &Url, _: &DocumentFetch<'_>) -> Result<Url, ParseError> {
        dates::dates_url(base, &self.0)
    }

    async fn check_answer(
        &self,
        fetch: &DocumentFetch<'_>,
        answer: Document,
        url: Url,
    ) -> Result<StoredDocument, Error> {
        let document = Arc::new(StoredDocument::of(answer, url, fetch.call.now));
        let dates = document.parse_as(|document| dates::parse(&document.body)).await;
        let mut dates = dates.map_err(|reason| fetch.unusable(reason))?;
        // Dates stay: an answer without them, or with an earlier one, must not make a version older.
        let before = fetch.before.as_ref().map(|before| dates::dates_of_record(&before.body)).unwrap_or_default();
        for (version, date) in before.into_iter().take(MAX_VERSIONS) {
            dates
                .entry(version)
                .and_modify(|told| *told = if date <= fetch.call.now { date.max(*told) } else { *told })
                .or_insert(date);
        }
        let body = Bytes::from(dates::write(&dates));
        Ok(StoredDocument { body, ..Arc::unwrap_or_clone(document) })
    }

    /// A registry that tells no dates is not asked each time: no dates are stored.
    async fn handle_not_found(&self, fetch: &DocumentFetch<'_>, _: UpstreamError) -> Result<StoredDocument, Error> {
        if let Some(before) = &fetch.before {
            return Ok(before.confirmed_at(fetch.call.now, false));
        }
        let (base, now) = (&fetch.request.upstream.settings.url, fetch.call.now);
        let url = dates::dates_url(base, &self.0).map_err(|e| fetch.unusable(e.to_string()))?;
        Ok(StoredDocument::of_nothing(Bytes::from(dates::write(&BTreeMap::new())), url, now))
    }
}
