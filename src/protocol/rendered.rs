//! Rendered answers in memory: path and base -> route, bytes, gzip form, ETag and lifetime; and small verified archives. A
//! hot request needs nothing else: no parser, no JSON, no disk, no lock across an await. Renderings in progress are shared: parsing
//! a large list takes many times its size in memory, and all clients that wait for its fetch would do it at once.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, WeakShared};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use moka::sync::Cache;
use parking_lot::Mutex;

use super::render;
use super::route::{Api, Route};
use super::view::View;
use crate::clock::Timestamp;
use crate::digest::{Digest, FastHash};
use crate::error::Error;
use crate::mirror::{Answer, HiddenVersions, Outcome, RequestContext, StoredDocument};
use crate::policy::ClientLimits;
use crate::store::ReadBudget;

/// Size in bytes below which compression gains nothing.
const MIN_GZIP_BYTES: usize = 512;

/// About the size in memory of what one rule hides.
const HIDDEN_BYTES: usize = 1024;

/// A rendered document.
#[derive(Debug, Clone)]
pub struct RenderedDocument {
    /// The plain form.
    pub plain: DocumentForm,
    /// The gzip form, where it is smaller.
    pub gzip: Option<DocumentForm>,
    /// The versions that are missing from a list, by rule.
    pub hidden: Arc<[HiddenVersions]>,
}

/// One form of a document, as it is sent.
#[derive(Debug, Clone)]
pub struct DocumentForm {
    /// Its bytes.
    pub body: Bytes,
    /// Its ETag, in quotes.
    pub tag: Bytes,
    /// The headers of a fresh answer with it. Those of another answer differ in some values.
    pub headers: HeaderMap,
}

/// The most bytes that the headers of one form take in memory.
const HEADER_BYTES: usize = 1024;
/// Clients ask each time, with the ETag.
pub const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");

impl DocumentForm {
    fn new(body: Vec<u8>, tag: String, coding: Option<&'static str>, has_other_form: bool) -> Self {
        let tag = Bytes::from(tag);
        let mut headers = HeaderMap::with_capacity(6);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.extend(coding.map(|coding| (header::CONTENT_ENCODING, HeaderValue::from_static(coding))));
        headers.extend(HeaderValue::from_maybe_shared(tag.clone()).ok().map(|tag| (header::ETAG, tag)));
        headers.insert(header::CACHE_CONTROL, NO_CACHE);
        headers.extend(has_other_form.then(|| (header::VARY, HeaderValue::from_static("Accept-Encoding"))));
        headers.insert(CACHE_STATUS, HeaderValue::from_static(HIT));
        Self { body: Bytes::from(body), tag, headers }
    }

    fn weight(&self) -> usize {
        self.body.len() + self.tag.len() + HEADER_BYTES
    }
}

/// The header of RFC 9211.
pub const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
/// Its value for a fresh answer.
pub const HIT: &str = "larder; hit";

impl RenderedDocument {
    /// Creates a document with its tags, and its gzip form if that is smaller.
    pub fn new(body: Vec<u8>) -> Self {
        let gzip = (body.len() >= MIN_GZIP_BYTES).then(|| gzip(&body)).flatten();
        Self::of_forms(body, gzip)
    }

    /// Creates a document without a gzip form.
    pub fn plain(body: Vec<u8>) -> Self {
        Self::of_forms(body, None)
    }

    fn of_forms(body: Vec<u8>, gzip: Option<Vec<u8>>) -> Self {
        let gzip = gzip.filter(|gzip| gzip.len() < body.len());
        let mut tag = blake3::hash(&body).to_hex().to_string();
        tag.truncate(32);
        let plain = DocumentForm::new(body, format!("\"{tag}\""), None, gzip.is_some());
        let gzip = gzip.map(|gzip| DocumentForm::new(gzip, format!("\"{tag}-gzip\""), Some("gzip"), true));
        Self { plain, gzip, hidden: Arc::default() }
    }

    fn weight(&self) -> usize {
        let hidden = self.hidden.len() * HIDDEN_BYTES;
        self.plain.weight() + self.gzip.as_ref().map_or(0, DocumentForm::weight) + hidden
    }
}

fn gzip(body: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
    // Writing to memory does not fail. If it did, the plain form would be sent.
    encoder.write_all(body).ok()?;
    encoder.finish().ok()
}

/// A reply that can be sent unchanged.
#[derive(Debug, Clone)]
pub enum FinishedReply {
    /// A document.
    Document(Arc<RenderedDocument>),
    /// The location of a module, as sent to clients.
    Location(Arc<str>),
    /// A small archive that was checked when it was read (promise 10).
    Archive {
        /// Its bytes.
        bytes: Bytes,
        /// Its SHA-256.
        digest: Digest,
        /// Time of first storing, where recorded.
        stored: Option<Timestamp>,
    },
}

impl FinishedReply {
    fn weight(&self) -> usize {
        match self {
            Self::Document(rendered) => rendered.weight(),
            Self::Location(location) => location.len(),
            Self::Archive { bytes, .. } => bytes.len(),
        }
    }
}

/// A rendered answer. Its outcome is the one that is reported when it is sent again.
#[derive(Debug, Clone)]
pub struct RenderedAnswer {
    /// The answer and its freshness.
    pub answer: Answer<FinishedReply>,
    /// Time of rendering.
    pub made: Timestamp,
    /// The state that it depends on, at the time of rendering.
    pub basis: AnswerBasis,
}

/// The state that an answer depends on. An answer of another state is rendered anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnswerBasis {
    /// The generation of its provider, its module or its pages.
    pub generation: u64,
    /// The circuit breakers that closed so far. Only what is stale depends on them: with an open one upstream is not asked.
    pub closings: u64,
}

/// The weight of an entry of so many bytes. Keys and bookkeeping count as well, or small answers would be free.
fn cache_weight(bytes: usize) -> u32 {
    u32::try_from(bytes + 512).unwrap_or(u32::MAX)
}

/// Number of answers that a path has in memory: to requests that see larder at different bases, with different rights. A
/// request chooses its base by its Host, within the names of the certificate or of a trusted proxy. With a wildcard
/// certificate these are unlimited.
const MAX_ANSWERS: usize = 64;
/// The answers of one path take at most this part of the memory, beside the last one.
const MAX_SHARE_OF_PATH: u64 = 16;

/// A path with answers in memory. All that a request for it needs is here, so that it is one lookup.
#[derive(Debug)]
pub struct KnownPath {
    route: Arc<Route>,
    api: Api,
    view: Option<View>,
    answers: Vec<KnownAnswer>,
}

/// A rendered answer to the requests of one variant: with one base and class of rights.
#[derive(Debug)]
struct KnownAnswer {
    variant: Box<str>,
    rendered: RenderedAnswer,
    /// True if it was sent since answers last had to make room.
    is_used: AtomicBool,
}

impl KnownPath {
    /// The route of the path.
    pub(super) fn route(&self) -> &Arc<Route> {
        &self.route
    }

    /// The protocol that the path belongs to.
    pub(super) fn api(&self) -> Api {
        self.api
    }

    /// The view that the path names.
    pub(super) fn view(&self) -> Option<View> {
        self.view
    }

    /// Returns the answer to requests of a variant, if it is fresh and nothing changed since.
    pub(super) fn fresh(&self, variant: &str, basis: AnswerBasis, now: Timestamp) -> Option<Answer<FinishedReply>> {
        let known = self.answers.iter().find(|known| *known.variant == *variant)?;
        let RenderedAnswer { answer, made, basis: made_of } = &known.rendered;
        // After the clock was set back, the answer would stay fresh for too long.
        let is_fresh = *made <= now && now < answer.fresh_until;
        let is_of_now = made_of.generation == basis.generation
            && (answer.outcome != Outcome::Stale || made_of.closings == basis.closings);
        if !(is_fresh && is_of_now) {
            return None;
        }
        // Written only when it changes: other cores read it, too.
        if !known.is_used.load(Ordering::Relaxed) {
            known.is_used.store(true, Ordering::Relaxed);
        }
        Some(answer.clone())
    }

    /// The answers with another one, of at most so many bytes. It takes the place of its predecessor, or of those that were not
    /// sent lately.
    fn with(answers: &[KnownAnswer], variant: &str, rendered: RenderedAnswer, max_bytes: usize) -> Vec<KnownAnswer> {
        let others = answers.iter().filter(|known| *known.variant != *variant);
        let mut kept: Vec<KnownAnswer> = others.map(KnownAnswer::copy).collect();
        kept.push(KnownAnswer { variant: variant.into(), rendered, is_used: AtomicBool::new(false) });
        while kept.len() > 1 && (kept.len() > MAX_ANSWERS || weight_of(&kept) > max_bytes) {
            let others = &kept[..kept.len() - 1];
            let unused = others.iter().position(|known| !known.is_used.load(Ordering::Relaxed));
            if unused.is_none() {
                kept.iter().for_each(|known| known.is_used.store(false, Ordering::Relaxed));
            }
            kept.remove(unused.unwrap_or_default());
        }
        kept
    }
}

/// About the size in memory of an answer without its document.
const ANSWER_BYTES: usize = 256;

/// The bytes that answers take. Clients of different rights often have one document.
fn weight_of(answers: &[KnownAnswer]) -> usize {
    let mut documents = HashSet::new();
    let weights = answers.iter().map(|known| {
        let value = &known.rendered.answer.value;
        let is_shared = match value {
            FinishedReply::Document(document) => !documents.insert(Arc::as_ptr(document)),
            _ => false,
        };
        known.variant.len() + ANSWER_BYTES + if is_shared { 0 } else { value.weight() }
    });
    weights.sum()
}

impl KnownAnswer {
    fn copy(&self) -> Self {
        let is_used = AtomicBool::new(self.is_used.load(Ordering::Relaxed));
        Self { variant: self.variant.clone(), rendered: self.rendered.clone(), is_used }
    }
}

/// Rendered answers by path, up to a number of bytes.
#[derive(Debug)]
pub struct RenderedAnswers {
    paths: Cache<Arc<str>, Arc<KnownPath>, foldhash::fast::RandomState>,
    max_bytes_of_path: usize,
    /// Memory for archives, including evicted ones that clients still read.
    archives: ReadBudget,
}

impl RenderedAnswers {
    /// Creates a memory of at most this many bytes.
    pub fn up_to(bytes: u64) -> Self {
        let weigh = |path: &Arc<str>, known: &Arc<KnownPath>| cache_weight(path.len() + weight_of(&known.answers));
        let paths = Cache::builder().max_capacity(bytes).weigher(weigh);
        let archives = ReadBudget::new(usize::try_from(bytes).unwrap_or(usize::MAX));
        let max_bytes_of_path = usize::try_from(bytes / MAX_SHARE_OF_PATH).unwrap_or(usize::MAX);
        Self { paths: paths.build_with_hasher(foldhash::fast::RandomState::default()), max_bytes_of_path, archives }
    }

    /// Returns what is known of a path: as larder writes it, below the mount, with its view.
    pub fn known(&self, path: &str) -> Option<Arc<KnownPath>> {
        self.paths.get(path)
    }

    /// Stores the answer to the requests of a variant for a route. An archive is stored only if the memory budget has space
    /// for a copy.
    pub fn insert(&self, route: &Arc<Route>, view: Option<View>, variant: &str, mut rendered: RenderedAnswer) {
        if let FinishedReply::Archive { bytes, .. } = &mut rendered.answer.value {
            // A copy: the mirror's bytes are shared by concurrent readers, and would count as in use while they are
            // stored here.
            let Some(copy) = self.archives.copy(bytes) else { return };
            *bytes = copy;
        }
        let path = path_of(route, view);
        let api = Api::of_path(&route.path());
        self.paths.entry(path.into()).and_upsert_with(|entry| {
            let known = entry.map(|entry| entry.into_value());
            let answers = known.as_ref().map_or(&[][..], |known| &known.answers);
            let answers = KnownPath::with(answers, variant, rendered.clone(), self.max_bytes_of_path);
            Arc::new(KnownPath { route: Arc::clone(route), api, view, answers })
        });
    }
}

/// The path of a route in a view, as larder writes it.
pub(super) fn path_of(route: &Route, view: Option<View>) -> String {
    match view {
        Some(view) => format!("{view}{}", route.path()),
        None => route.path(),
    }
}

/// A version list for clients, and what rules took from it.
pub(super) struct RenderedList {
    pub(super) body: Vec<u8>,
    pub(super) hidden: Vec<HiddenVersions>,
}

type Rendering = BoxFuture<'static, Result<Arc<RenderedDocument>, Error>>;

/// The state that a rendering depends on besides its document, where policies ask for the age of versions. A minute later more
/// versions may be old enough, and another generation may know other times.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct AgesBasis {
    minute: u64,
    generation: u64,
    /// The end of the approval that ends first.
    approvals_end: Option<Timestamp>,
    limits: ClientLimits,
}

impl AgesBasis {
    /// The longest time for which such an answer is fresh.
    pub(super) const LIFETIME: Duration = Duration::from_secs(60);

    pub(super) fn new(call: &RequestContext, generation: u64, approvals_end: Option<Timestamp>) -> Self {
        Self { minute: call.now.0 / Self::LIFETIME.as_secs(), generation, approvals_end, limits: call.limits().clone() }
    }
}

type RenderingKey = (Route, FastHash, Option<AgesBasis>);

/// Renderings by route and by hash of the source document: those in progress, and the last ones.
#[derive(Debug)]
pub(super) struct Renderings {
    running: Mutex<HashMap<RenderingKey, WeakShared<Rendering>>>,
    /// Whatever freshness says: a stale document is rendered once, and all clients that read it share its bytes.
    last: Cache<RenderingKey, Arc<RenderedDocument>>,
    /// Stale documents, with their hashes: during an outage a long one is asked for again and again, and is neither read nor
    /// hashed each time. A document that was just fetched is not kept: it holds memory that further fetches need.
    documents: Cache<Route, (Arc<StoredDocument>, FastHash)>,
}

/// The longest that a document stays in memory unused.
const DOCUMENT_IDLE: Duration = Duration::from_secs(60);

impl Renderings {
    /// Renderings and stale documents that take at most this many bytes.
    pub(super) fn up_to(bytes: u64) -> Self {
        let bytes = bytes / 2;
        let weigh = |_: &RenderingKey, rendered: &Arc<RenderedDocument>| cache_weight(rendered.weight());
        let weigh_document =
            |_: &Route, (document, _): &(Arc<StoredDocument>, FastHash)| cache_weight(document.size_bytes());
        let documents = Cache::builder().max_capacity(bytes).weigher(weigh_document).time_to_idle(DOCUMENT_IDLE);
        Self {
            running: Mutex::default(),
            last: Cache::builder().max_capacity(bytes).weigher(weigh).build(),
            documents: documents.build(),
        }
    }

    /// The rendering of a route's answer from a document: the last one, one in progress, or a new one with `body`. A rendering
    /// in progress is dropped when no client waits for it.
    ///
    /// # Errors
    /// Those of `body`.
    pub(super) async fn share(
        &self,
        route: &Route,
        document: &Answer<Arc<StoredDocument>>,
        ages: Option<AgesBasis>,
        body: impl Future<Output = Result<RenderedList, Error>> + Send + 'static,
    ) -> Result<Arc<RenderedDocument>, Error> {
        let key = (route.clone(), self.hash_of(route, document), ages);
        if let Some(rendered) = self.last.get(&key) {
            return Ok(rendered);
        }
        let rendering = {
            let mut running = self.running.lock();
            running.retain(|_, rendering| rendering.upgrade().is_some());
            match running.get(&key).and_then(WeakShared::upgrade) {
                Some(rendering) => rendering,
                None => {
                    let rendering = async move {
                        let RenderedList { body, hidden } = body.await?;
                        Ok(Arc::new(RenderedDocument { hidden: hidden.into(), ..render(body).await }))
                    };
                    let rendering = rendering.boxed().shared();
                    running.extend(rendering.downgrade().map(|weak| (key.clone(), weak)));
                    rendering
                }
            }
        };
        let rendered = rendering.await?;
        self.last.insert(key, Arc::clone(&rendered));
        Ok(rendered)
    }

    fn hash_of(&self, route: &Route, document: &Answer<Arc<StoredDocument>>) -> FastHash {
        let Answer { value, outcome, .. } = document;
        match self.documents.get(route) {
            Some((last, hash)) if Arc::ptr_eq(&last, value) => hash,
            _ => {
                let hash = value.content_hash();
                if matches!(outcome, Outcome::Stale | Outcome::Gone) {
                    self.documents.insert(route.clone(), (Arc::clone(value), hash));
                }
                hash
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Hostname;

    /// Promise 11: a client that keeps changing its Host is answered, and does not fill the memory.
    #[test]
    fn a_path_keeps_the_answers_that_are_asked_for_again() {
        let answers = RenderedAnswers::up_to(64 << 20);
        let route = Arc::new(Route::Discovery(Hostname::parse("registry.example").unwrap()));
        let base = |number: usize| format!("https://h{number}.example");
        let now = Timestamp(1_000);
        let value = FinishedReply::Document(Arc::new(RenderedDocument::plain(b"{}".to_vec())));
        let answer = Answer { value, outcome: Outcome::Hit, fresh_until: Timestamp(2_000), checked: now };
        let rendered = RenderedAnswer { answer, made: now, basis: AnswerBasis::default() };
        let frequent_base = base(0);
        let is_cached = |base: &str| {
            answers.known(&route.path()).is_some_and(|known| known.fresh(base, AnswerBasis::default(), now).is_some())
        };
        let mut misses = 0;
        for number in 1..2_000 {
            answers.insert(&route, None, &base(number), rendered.clone());
            if number % 10 == 0 && !is_cached(&frequent_base) {
                misses += 1;
                answers.insert(&route, None, &frequent_base, rendered.clone());
            }
        }
        answers.insert(&route, None, "", rendered.clone());
        let count = (0..2_000).filter(|number| is_cached(&base(*number))).count();
        assert!((1..=MAX_ANSWERS).contains(&count), "{count}");
        assert!(is_cached(""));
        assert!(misses < 10, "the most requested base was missing {misses} times");
    }

    /// Clients of fifty classes read one long list, which is in memory once.
    #[test]
    fn the_answers_of_one_path_do_not_take_the_memory_of_others() {
        let answers = RenderedAnswers::up_to(16 << 20);
        let route = Arc::new(Route::Discovery(Hostname::parse("registry.example").unwrap()));
        let now = Timestamp(1_000);
        let insert = |variant: &str, document: &Arc<RenderedDocument>| {
            let value = FinishedReply::Document(Arc::clone(document));
            let answer = Answer { value, outcome: Outcome::Hit, fresh_until: Timestamp(2_000), checked: now };
            answers.insert(&route, None, variant, RenderedAnswer { answer, made: now, basis: AnswerBasis::default() });
        };
        let fresh = |variant: &str| {
            answers
                .known(&route.path())
                .is_some_and(|known| known.fresh(variant, AnswerBasis::default(), now).is_some())
        };
        let shared = Arc::new(RenderedDocument::plain(vec![b' '; 900_000]));
        (0..50).for_each(|class| insert(&class.to_string(), &shared));
        assert!((0..50).all(|class| fresh(&class.to_string())));
        // With links of their own, they share nothing.
        (0..50).for_each(|class| insert(&class.to_string(), &Arc::new(RenderedDocument::plain(vec![b' '; 900_000]))));
        assert_eq!((0..50).filter(|class| fresh(&class.to_string())).collect::<Vec<_>>(), [49]);
    }
}
