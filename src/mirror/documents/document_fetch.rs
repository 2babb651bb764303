//! Fetches one document: loads the stored copy, shares one request per key, handles an upstream 404. The URL and the
//! checks of the answer are left to the caller.

use std::sync::Arc;

use url::Url;

use crate::address::Hostname;
use crate::error::Error;
use crate::mirror::documents::revalidate::Aged;
use crate::mirror::freshness::{Age, FreshnessDecision, FreshnessRule, decide};
use crate::mirror::library::stored_document::{DocumentFlight, StoredDocument};
use crate::mirror::single_flight::SharedResult;
use crate::mirror::{Documents, FetchReason, RequestContext};
use crate::store::Key;
use crate::upstream::backoff::RequestTime;
use crate::upstream::discovery::Service;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::origin;
use crate::upstream::request::{AcceptedCoding, Fetched, UpstreamRequest};
use crate::upstream::{CredentialScope, Upstream};

#[derive(Debug, Clone)]
pub(in crate::mirror) struct DocumentRequest {
    pub(in crate::mirror) subject: String,
    pub(in crate::mirror) key: Key,
    pub(in crate::mirror) upstream: Arc<Upstream>,
    /// The upstream's service that has it.
    pub(in crate::mirror) service: Service,
    pub(in crate::mirror) rule: FreshnessRule,
}

impl DocumentRequest {
    pub(in crate::mirror) fn host(&self) -> &Hostname {
        &self.upstream.settings.host
    }

    /// The error for an answer that cannot be used.
    pub(in crate::mirror) fn unusable(&self, reason: impl Into<String>) -> UpstreamError {
        let (subject, origin) = (self.subject.clone(), origin(&self.upstream.settings.url));
        UpstreamError { subject, origin, fault: Fault::Unusable(reason.into()) }
    }
}

impl Documents {
    /// Returns the stored copy and its freshness rule.
    ///
    /// # Errors
    /// [`Error::NotFound`] where nothing is stored and a 404 is cached.
    pub(in crate::mirror) async fn stored_or_not_found(
        self: &Arc<Self>,
        wanted: &DocumentRequest,
        call: &RequestContext,
    ) -> Result<(Option<Aged<Arc<StoredDocument>>>, FreshnessRule), Error> {
        let stored = self.library.stored_document(&wanted.key).await?;
        if stored.is_none()
            && let Some(not_found) = call.config.not_found.get(&wanted.key, call.now)
        {
            return Err(Error::NotFound(not_found));
        }
        let rule = match stored.as_ref().filter(|stored| !stored.age.gone) {
            Some(stored) => {
                let url = &stored.value.metadata.asked;
                self.rule_for_location(wanted.service, url, &wanted.upstream, wanted.rule).await?
            }
            None => wanted.rule,
        };
        Ok((stored, rule))
    }

    /// Joins or starts the flight for a document. `fetch` gets the copy to build on. `seen` is the age of the copy that
    /// the caller read.
    pub(in crate::mirror) fn join_document_flight<F: Future<Output = DocumentFlight> + Send>(
        self: &Arc<Self>,
        wanted: &DocumentRequest,
        seen: Option<Age>,
        fetch_reason: FetchReason,
        call: &RequestContext,
        fetch: impl FnOnce(Arc<Self>, Option<Arc<StoredDocument>>, RequestContext) -> F + Send + 'static,
    ) -> SharedResult<DocumentFlight> {
        let flight = (wanted.key.clone(), fetch_reason, call.flight_group());
        self.flights.join_or_spawn(&self.runtime.tasks, flight, Err(Error::Interrupted(wanted.subject.clone())), || {
            let (documents, call, wanted) = (Arc::clone(self), self.runtime.flight_context(call), wanted.clone());
            async move {
                let work = async {
                    match documents.reread_store(&wanted.key, seen, &wanted.rule, &call).await? {
                        FlightStart::AlreadyFetched(fetched) => Ok(fetched),
                        FlightStart::BuildOn(before) => {
                            documents.runtime.charge_revalidation(
                                &wanted.subject,
                                wanted.host(),
                                fetch_reason,
                                1,
                                &call,
                            )?;
                            fetch(Arc::clone(&documents), before, call).await
                        }
                    }
                };
                documents.runtime.with_deadline(&wanted.subject, wanted.host(), work).await
            }
        })
    }

    /// Handles an upstream 404: returns the stored copy as deleted upstream (`keep_gone`), or removes it.
    ///
    /// # Errors
    /// [`Error::NotFound`] where no copy is kept. It is cached for a while.
    pub(in crate::mirror) async fn keep_gone_copy(
        self: &Arc<Self>,
        wanted: &DocumentRequest,
        before: Option<Arc<StoredDocument>>,
        error: &UpstreamError,
        call: &RequestContext,
    ) -> Result<StoredDocument, Error> {
        match before {
            Some(before) if wanted.upstream.settings.keep_gone => {
                if !before.metadata.gone {
                    let subject = &wanted.subject;
                    tracing::warn!(subject, %error, "upstream has deleted it; the stored copy stays (keep_gone)");
                }
                Ok(before.confirmed(call.now, true))
            }
            before => {
                let until = call.now.after(wanted.rule.not_found_lifetime());
                call.config.not_found.insert(wanted.key.clone(), error.to_string(), until, call.now);
                if before.is_some() && self.runtime.is_current_config(call) {
                    self.library.drop_document(wanted.key.clone()).await?;
                }
                Err(Error::NotFound(error.to_string()))
            }
        }
    }

    /// Reads the store at the start of a flight: another may have landed since the caller read it.
    pub(in crate::mirror) async fn reread_store(
        self: &Arc<Self>,
        key: &Key,
        seen: Option<Age>,
        rule: &FreshnessRule,
        call: &RequestContext,
    ) -> Result<FlightStart, Error> {
        let stored = self.library.stored_document(key).await?;
        if stored.is_none()
            && let Some(not_found) = call.config.not_found.get(key, call.now)
        {
            return Err(Error::NotFound(not_found));
        }
        Ok(match stored {
            Some(stored)
                if seen != Some(stored.age)
                    && decide(Some(stored.age), rule, self.runtime.connectivity(), call.now)
                        == FreshnessDecision::Serve =>
            {
                FlightStart::AlreadyFetched(stored)
            }
            stored => FlightStart::BuildOn(stored.map(|stored| stored.value)),
        })
    }

    #[expect(clippy::too_many_arguments, reason = "an Ask and what it is made of")]
    pub(in crate::mirror) async fn fetch_from(
        &self,
        subject: &str,
        url: &Url,
        upstream: &Upstream,
        credential_scope: &CredentialScope,
        before: Option<&StoredDocument>,
        limit: u64,
        call: &RequestContext,
    ) -> Result<Fetched, UpstreamError> {
        let retries = if before.is_some() { 0 } else { RETRIES };
        let RequestContext { via, priority, now, .. } = call;
        let upstream = &upstream.settings.host;
        let ask = UpstreamRequest {
            label: subject,
            url,
            upstream,
            credentials: credential_scope,
            via,
            retries,
            priority: *priority,
            time: RequestTime::new(*now),
        };
        let validators =
            before.filter(|before| before.metadata.asked == *url).map(|before| &before.metadata.validators);
        call.config.outbound.document(AcceptedCoding::Any, ask, validators, limit).await
    }
}

/// The number of retries of a fetch when nothing is stored.
pub(in crate::mirror) const RETRIES: usize = 2;

/// The state of the store when a flight begins.
pub(in crate::mirror) enum FlightStart {
    /// Another flight has just fetched the document.
    AlreadyFetched(Aged<Arc<StoredDocument>>),
    /// The stored copy to build on, if any.
    BuildOn(Option<Arc<StoredDocument>>),
}
