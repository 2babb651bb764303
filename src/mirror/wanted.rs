//! A document that stands alone, on its way: what is held of it, the one flight for it, and what becomes of it once
//! upstream says that it does not exist. What is asked, and what the answer must be, is for whoever wants it.

use std::sync::Arc;

use super::documents::{DocumentFlight, KeptDocument, Meanwhile};
use super::freshness::{Age, Rule};
use super::pull::Landed;
use super::single_flight::Awaited;
use super::{FetchReason, Mirror, RequestContext};
use crate::address::Hostname;
use crate::error::Error;
use crate::store::Key;
use crate::upstream::Upstream;
use crate::upstream::discovery::Service;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::origin;

/// What is wanted.
#[derive(Debug, Clone)]
pub(super) struct WantedDocument {
    /// What is asked for, for people.
    pub(super) what: String,
    pub(super) key: Key,
    pub(super) upstream: Arc<Upstream>,
    /// Which service of the upstream it comes from.
    pub(super) service: Service,
    pub(super) rule: Rule,
}

impl WantedDocument {
    pub(super) fn host(&self) -> &Hostname {
        &self.upstream.settings.host
    }

    /// That upstream sent something that is not what was asked for.
    pub(super) fn unusable(&self, why: impl Into<String>) -> UpstreamError {
        let (asked, at) = (self.what.clone(), origin(&self.upstream.settings.url));
        UpstreamError { asked, at, fault: Fault::Unusable(why.into()) }
    }
}

impl Mirror {
    /// What is held, and by which rule it is asked about again.
    ///
    /// # Errors
    /// [`Error::NotFound`] where nothing is held, and upstream said a moment ago that it does not exist.
    pub(super) async fn held_or_absent(
        self: &Arc<Self>,
        wanted: &WantedDocument,
        call: &RequestContext,
    ) -> Result<(Option<Landed<Arc<KeptDocument>>>, Rule), Error> {
        let held = self.held_document(&wanted.key).await?;
        if held.is_none()
            && let Some(said) = call.terms.absent.get(&wanted.key, call.now)
        {
            return Err(Error::NotFound(said));
        }
        let rule = match held.as_ref().filter(|held| !held.age.gone) {
            Some(held) => {
                let asked = &held.value.about.asked;
                self.rule_for_what_is_of(wanted.service, asked, &wanted.upstream, wanted.rule).await?
            }
            None => wanted.rule,
        };
        Ok((held, rule))
    }

    /// Joins the flight for a document, or starts it with `fetch`, which is given what it may build on. `seen` is what
    /// the caller saw held.
    pub(super) fn fly_for_document<F: Future<Output = DocumentFlight> + Send>(
        self: &Arc<Self>,
        wanted: &WantedDocument,
        seen: Option<Age>,
        errand: FetchReason,
        call: &RequestContext,
        fetch: impl FnOnce(Arc<Self>, Option<Arc<KeptDocument>>, RequestContext) -> F + Send + 'static,
    ) -> Awaited<DocumentFlight> {
        let of = (wanted.key.clone(), errand, call.company());
        self.documents.share(&self.tasks, of, Err(Error::Interrupted(wanted.what.clone())), || {
            let (mirror, call, wanted) = (Arc::clone(self), self.inner(call), wanted.clone());
            async move {
                let work = async {
                    match mirror.landed_meanwhile(&wanted.key, seen, &wanted.rule, &call).await? {
                        Meanwhile::Landed(landed) => Ok(landed),
                        Meanwhile::Held(before) => {
                            mirror.spend(&wanted.what, wanted.host(), errand, 1, &call)?;
                            fetch(Arc::clone(&mirror), before, call).await
                        }
                    }
                };
                mirror.within_limits(&wanted.what, wanted.host(), work).await
            }
        })
    }

    /// What is held of a document that upstream says does not exist (`keep_gone`).
    ///
    /// # Errors
    /// [`Error::NotFound`] where nothing is kept of it; that is remembered for a while.
    pub(super) async fn kept_though_gone(
        self: &Arc<Self>,
        wanted: &WantedDocument,
        before: Option<Arc<KeptDocument>>,
        error: &UpstreamError,
        call: &RequestContext,
    ) -> Result<KeptDocument, Error> {
        match before {
            Some(before) if wanted.upstream.settings.keep_gone => {
                if !before.about.gone {
                    let what = &wanted.what;
                    tracing::warn!(what, %error, "upstream has deleted it; what is held is kept (keep_gone)");
                }
                Ok(before.checked_again(call.now, true))
            }
            before => {
                let until = call.now.after(wanted.rule.believed());
                call.terms.absent.put(wanted.key.clone(), error.to_string(), until, call.now);
                if before.is_some() && self.is_on_these_terms(call) {
                    self.drop_document(wanted.key.clone()).await?;
                }
                Err(Error::NotFound(error.to_string()))
            }
        }
    }
}
