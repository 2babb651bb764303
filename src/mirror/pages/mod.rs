//! Pull-through for the pages of the registry HTTP API: lists, searches and details. Offline, what no page is held of
//! is answered from what is stored.

mod stored;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use url::Url;

pub(super) use self::stored::latest;
pub use self::stored::{FromStore, StoredDetails, StoredEntry, StoredList, StoredThing};
use super::discovery::Faith;
use super::documents::{DocumentFlight, KeptDocument, Meanwhile};
use super::freshness::Age;
use super::single_flight::Awaited;
use super::{Answer, Call, Errand, Mirror, Outcome, Terms};
use crate::digest::Digest;
use crate::error::Error;
use crate::store::Key;
use crate::upstream::Upstream;
use crate::upstream::ask::Fetched;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::{Link, origin};
use crate::upstream::pages::PageRef;
use crate::upstream::providers::RawObject;

/// For how long a page that is made of what is stored is given out again as it is.
const STORED_IS_FRESH: Duration = Duration::from_secs(5);

/// What there is to show.
#[derive(Debug, Clone)]
pub enum PageFound {
    /// What upstream says, or said.
    Upstream(Arc<KeptDocument>),
    /// What is stored, because nobody can be asked.
    Stored(Box<FromStore>),
}

/// A page as upstream sent it.
#[derive(Debug, Clone)]
pub struct UpstreamPage {
    /// Its bytes.
    pub body: Bytes,
    /// Where they came from: what is relative in them resolves against this.
    pub url: Url,
    /// The bases of its service there: what is below them is there through larder too.
    pub bases: Vec<Url>,
}

impl KeptDocument {
    /// Reads the document as a page; a large one where that holds up nobody else.
    pub async fn read_page<T: Send + 'static>(
        self: &Arc<Self>,
        page: &PageRef,
        read: impl FnOnce(UpstreamPage) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let page = page.clone();
        let read = move |kept: &Self| {
            let urls = [&kept.about.asked, &kept.about.url];
            let bases = urls.into_iter().filter_map(|url| page.base_of(url)).collect();
            read(UpstreamPage { body: kept.body.clone(), url: kept.about.url.clone(), bases })
        };
        self.read_as(read).await
    }
}

impl Terms {
    /// What a page is kept under: one key for every spelling of its names where the registry takes them for one.
    fn key_of_page(&self, page: &PageRef) -> Key {
        let folds = self.upstreams.get(&page.host).is_some_and(|upstream| upstream.settings.fold_case);
        let text = if folds { page.folded_text() } else { page.text() };
        Key::Page(page.host.clone(), Digest::of(text.as_bytes()))
    }
}

impl Mirror {
    /// A page of the registry HTTP API.
    pub async fn page(self: &Arc<Self>, page: &PageRef, call: &Call) -> Result<Answer<PageFound>, Error> {
        let upstream = Arc::clone(call.upstream(&page.host)?);
        let what = page.what();
        let mut rule = upstream.rule(|fresh| fresh.api);
        let key = call.terms.key_of_page(page);
        let held = self.held_document(&key).await?;
        if held.is_none() {
            if self.link() == Link::Offline
                && let Some(found) = self.page_from_store(page, call).await?
            {
                let (value, checked) = (PageFound::Stored(Box::new(found)), call.now);
                let fresh_until = call.now.after(STORED_IS_FRESH);
                return Ok(Answer { value, outcome: Outcome::Stale, fresh_until, checked });
            }
            if let Some(said) = call.terms.absent.get(&key, call.now) {
                return Err(Error::NotFound(said));
            }
        }
        if let Some(held) = held.as_ref().filter(|held| !held.age.gone) {
            rule = self.rule_for_what_is_of(page.path.service(), &held.value.about.asked, &upstream, rule).await?;
        }
        let seen = held.as_ref().map(|held| held.age);
        let fly = |errand, call: &Call| self.fly_for_page(what.clone(), upstream, page, seen, errand, call);
        let Answer { value, outcome, fresh_until, checked } =
            self.pull(&what, &page.host, call, &rule, held, fly).await?;
        if matches!(outcome, Outcome::Hit | Outcome::Stale | Outcome::Gone) {
            let now = call.now;
            self.on_disk(move |mirror| {
                mirror.store.index.document_used(&key, now);
                Ok(())
            })
            .await?;
        }
        Ok(Answer { value: PageFound::Upstream(value), outcome, fresh_until, checked })
    }

    /// Joins the flight for a page, or starts it. `seen` is what the caller saw held.
    fn fly_for_page(
        self: &Arc<Self>,
        what: String,
        upstream: Arc<Upstream>,
        page: &PageRef,
        seen: Option<Age>,
        errand: Errand,
        call: &Call,
    ) -> Awaited<DocumentFlight> {
        let rule = upstream.rule(|fresh| fresh.api);
        let key = call.terms.key_of_page(page);
        let of = (key.clone(), errand, call.terms.generation);
        self.documents.share(&self.tasks, of, Err(Error::Interrupted(what.clone())), || {
            let (mirror, call, page) = (Arc::clone(self), self.inner(call), page.clone());
            async move {
                let work = async {
                    match mirror.landed_meanwhile(&key, seen, &rule, &call).await? {
                        Meanwhile::Landed(landed) => Ok(landed),
                        Meanwhile::Held(before) => {
                            mirror.spend(&what, &page.host, errand, 1, &call)?;
                            mirror.fetch_page(&what, &upstream, &page, before, &call).await
                        }
                    }
                };
                mirror.within_limits(&what, &page.host, work).await
            }
        })
    }

    async fn fetch_page(
        self: &Arc<Self>,
        what: &str,
        upstream: &Upstream,
        page: &PageRef,
        before: Option<Arc<KeptDocument>>,
        call: &Call,
    ) -> DocumentFlight {
        let unusable = |why: String| UpstreamError {
            asked: what.to_owned(),
            at: origin(&upstream.settings.url),
            fault: Fault::Unusable(why),
        };
        let faith = Faith::for_what_is_held(before.as_ref());
        let (base, grant) = self.service(page.path.service(), upstream, faith, call).await?;
        let asked = page.url(&base).map_err(|e| unusable(e.to_string()))?;
        let fetched =
            self.ask(what, &asked, upstream, &grant, before.as_deref(), self.limits.document_bytes, call).await;
        let key = call.terms.key_of_page(page);
        let kept = match (fetched, before) {
            (Ok(Fetched::Unchanged), Some(before)) => before.checked_again(call.now, false),
            (Ok(Fetched::Unchanged), None) => return Err(unusable("304 to an unconditional request".into()).into()),
            (Ok(Fetched::New(document)), _) => {
                let kept = KeptDocument::of(document, asked, call.now);
                Arc::new(kept.clone()).read_as(is_page).await.map_err(&unusable)?;
                kept
            }
            (Err(error), Some(before)) if matches!(error.fault, Fault::Absent(_)) && upstream.settings.keep_gone => {
                before.checked_again(call.now, true)
            }
            (Err(error), before) if matches!(error.fault, Fault::Absent(_)) => {
                let until = call.now.after(upstream.rule(|fresh| fresh.api).believed());
                call.terms.absent.put(key.clone(), error.to_string(), until, call.now);
                if before.is_some() && self.is_on_these_terms(call) {
                    self.drop_document(key).await?;
                }
                return Err(Error::NotFound(error.to_string()));
            }
            (Err(error), _) => return Err(error.into()),
        };
        self.keep_document(key, kept).await
    }
}

/// Every page is an object; what is in it is for whoever asked.
fn is_page(kept: &KeptDocument) -> Result<(), String> {
    let read = serde_json::from_slice::<RawObject>(&kept.body);
    read.map(drop).map_err(|e| format!("its page is no JSON object: {e}"))
}
