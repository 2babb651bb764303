//! Rendered answers in memory: route and base -> bytes, gzip form, ETag and lifetime; and small verified archives. A
//! hot request needs nothing else: no JSON, no disk, no lock across an await. Renderings in progress are shared: parsing
//! a large list takes many times its size in memory, and all clients that wait for its fetch would do it at once.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, WeakShared};
use moka::Equivalent;
use moka::sync::Cache;
use parking_lot::Mutex;

use super::render;
use super::route::Route;
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedDocument {
    /// The plain bytes.
    pub body: Bytes,
    /// The gzip form, where it is smaller.
    pub gzip: Option<Bytes>,
    /// ETag of the plain form, in quotes.
    pub tag: Bytes,
    /// ETag of the gzip form, in quotes.
    pub gzip_tag: Bytes,
    /// The versions that are missing from a list, by rule.
    pub hidden: Arc<[HiddenVersions]>,
}

impl RenderedDocument {
    /// Creates a document with its tags, and its gzip form if that is smaller.
    pub fn new(body: Vec<u8>) -> Self {
        let gzip = (body.len() >= MIN_GZIP_BYTES).then(|| gzip(&body)).flatten().filter(|gzip| gzip.len() < body.len());
        Self { gzip: gzip.map(Bytes::from), ..Self::plain(body) }
    }

    /// Creates a document without a gzip form.
    pub fn plain(body: Vec<u8>) -> Self {
        let mut tag = blake3::hash(&body).to_hex().to_string();
        tag.truncate(32);
        let (tag, gzip_tag) = (format!("\"{tag}\"").into(), format!("\"{tag}-gzip\"").into());
        Self { body: Bytes::from(body), gzip: None, tag, gzip_tag, hidden: Arc::default() }
    }

    fn weight(&self) -> usize {
        let hidden = self.hidden.len() * HIDDEN_BYTES;
        self.body.len() + self.gzip.as_ref().map_or(0, Bytes::len) + self.tag.len() + self.gzip_tag.len() + hidden
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

/// The route and the base of a rendered answer, for lookups without a copy. Its bytes depend on these, and on the generation
/// of its subject.
#[derive(Hash)]
struct KeyRef<'a>(&'a Route, &'a str);

impl Equivalent<(Route, String)> for KeyRef<'_> {
    fn equivalent(&self, (route, base): &(Route, String)) -> bool {
        self.0 == route && self.1 == base
    }
}

/// The weight of an entry of so many bytes. Keys and bookkeeping count as well, or small answers would be free.
fn cache_weight(bytes: usize) -> u32 {
    u32::try_from(bytes + 512).unwrap_or(u32::MAX)
}

/// Number of bases with stored answers. A request chooses its base by its Host, within the names of the certificate or
/// of a trusted proxy. With a wildcard certificate these are unlimited.
const MAX_BASES: u64 = 64;

/// Rendered answers, up to a number of bytes.
#[derive(Debug)]
pub struct RenderedAnswers {
    cache: Cache<(Route, String), RenderedAnswer>,
    /// The most requested bases.
    bases: Cache<String, ()>,
    /// Memory for archives, including evicted ones that clients still read.
    archives: ReadBudget,
}

impl RenderedAnswers {
    /// Creates a memory of at most this many bytes.
    pub fn up_to(bytes: u64) -> Self {
        let weigh = |_: &(Route, String), rendered: &RenderedAnswer| cache_weight(rendered.answer.value.weight());
        let cache = Cache::builder().max_capacity(bytes).weigher(weigh).build();
        let archives = ReadBudget::new(usize::try_from(bytes).unwrap_or(usize::MAX));
        Self { cache, bases: Cache::new(MAX_BASES), archives }
    }

    /// Returns the answer to a route, if it is fresh and nothing changed since.
    pub fn fresh(
        &self,
        route: &Route,
        base: &str,
        basis: AnswerBasis,
        now: Timestamp,
    ) -> Option<Answer<FinishedReply>> {
        if !self.is_among_bases(base) {
            return None;
        }
        let RenderedAnswer { answer, made, basis: made_of } = self.cache.get(&KeyRef(route, base))?;
        // After the clock was set back, the answer would stay fresh for too long.
        let is_fresh = made <= now && now < answer.fresh_until;
        let is_of_now = made_of.generation == basis.generation
            && (answer.outcome != Outcome::Stale || made_of.closings == basis.closings);
        (is_fresh && is_of_now).then_some(answer)
    }

    /// Stores an answer if its base is, or now becomes, one of the most requested ones. An archive is stored
    /// only if the memory budget has space for a copy.
    pub fn insert(&self, route: &Route, base: &str, mut rendered: RenderedAnswer) {
        if !self.is_among_bases(base) {
            self.bases.insert(base.to_owned(), ());
            // Evicts now, perhaps the new base itself.
            self.bases.run_pending_tasks();
        }
        if let FinishedReply::Archive { bytes, .. } = &mut rendered.answer.value {
            // A copy: the mirror's bytes are shared by concurrent readers, and would count as in use while they are
            // stored here.
            let Some(copy) = self.archives.copy(bytes) else { return };
            *bytes = copy;
        }
        self.cache.insert((route.clone(), base.to_owned()), rendered);
    }

    fn is_among_bases(&self, base: &str) -> bool {
        base.is_empty() || self.bases.get(base).is_some()
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
    fn answers_are_cached_for_the_most_requested_bases_only() {
        let answers = RenderedAnswers::up_to(64 << 20);
        let route = Route::Discovery(Hostname::parse("registry.example").unwrap());
        let base = |number: usize| format!("https://h{number}.example");
        let now = Timestamp(1_000);
        let value = FinishedReply::Document(Arc::new(RenderedDocument::plain(b"{}".to_vec())));
        let answer = Answer { value, outcome: Outcome::Hit, fresh_until: Timestamp(2_000), checked: now };
        let rendered = RenderedAnswer { answer, made: now, basis: AnswerBasis::default() };
        let frequent_base = base(0);
        let is_cached = |base: &str| answers.fresh(&route, base, AnswerBasis::default(), now).is_some();
        let mut misses = 0;
        for number in 1..2_000 {
            answers.insert(&route, &base(number), rendered.clone());
            if number % 10 == 0 && !is_cached(&frequent_base) {
                misses += 1;
                answers.insert(&route, &frequent_base, rendered.clone());
            }
        }
        answers.insert(&route, "", rendered.clone());
        let count = (0..2_000).filter(|number| is_cached(&base(*number))).count();
        assert!((1..=MAX_BASES as usize).contains(&count), "{count}");
        assert!(is_cached(""));
        assert!(misses < 10, "the most requested base was missing {misses} times");
    }
}
