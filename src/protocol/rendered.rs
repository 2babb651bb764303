//! Finished answers in memory: route and form -> bytes, their gzip form, ETag and fresh time; and small archives that
//! were checked. All that a hot request touches; no JSON, no disk, no lock held across a wait.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use moka::Equivalent;
use moka::sync::Cache;

use super::route::{Form, Route};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::mirror::Outcome;
use crate::store::ReadMemory;

/// Smaller than this, gzip gains nothing.
const WORTH_GZIP: usize = 512;

/// A document as it goes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// Its bytes.
    pub body: Bytes,
    /// The same in gzip, where that is smaller.
    pub gzip: Option<Bytes>,
    /// Its entity tag, in quotes.
    pub tag: Bytes,
    /// That of its gzip form.
    pub gzip_tag: Bytes,
}

impl Rendered {
    /// Finishes an answer.
    pub fn new(body: Vec<u8>) -> Self {
        let gzip = (body.len() >= WORTH_GZIP).then(|| gzip(&body)).flatten().filter(|gzip| gzip.len() < body.len());
        Self { gzip: gzip.map(Bytes::from), ..Self::plain(body) }
    }

    /// An answer without a gzip form.
    pub fn plain(body: Vec<u8>) -> Self {
        let mut tag = blake3::hash(&body).to_hex().to_string();
        tag.truncate(32);
        let (tag, gzip_tag) = (format!("\"{tag}\"").into(), format!("\"{tag}-gzip\"").into());
        Self { body: Bytes::from(body), gzip: None, tag, gzip_tag }
    }

    fn weight(&self) -> usize {
        self.body.len() + self.gzip.as_ref().map_or(0, Bytes::len) + self.tag.len() + self.gzip_tag.len()
    }
}

fn gzip(body: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
    // Writing to memory does not fail; if it did, the plain form would go out.
    encoder.write_all(body).ok()?;
    encoder.finish().ok()
}

/// What can be given out as it is.
#[derive(Debug, Clone)]
pub enum Finished {
    /// A document.
    Document(Arc<Rendered>),
    /// Where a module is, as it is told.
    Location(Arc<str>),
    /// A small archive that was checked when it was read (promise 10).
    Archive {
        /// Its bytes.
        bytes: Bytes,
        /// Its SHA-256.
        digest: Digest,
    },
}

impl Finished {
    fn weight(&self) -> usize {
        match self {
            Self::Document(rendered) => rendered.weight(),
            Self::Location(location) => location.len(),
            Self::Archive { bytes, .. } => bytes.len(),
        }
    }
}

/// A finished answer, and how long it may be given out.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The answer.
    pub answer: Finished,
    /// When it was made.
    pub made: Timestamp,
    /// When upstream had last confirmed what it is made of.
    pub checked: Timestamp,
    /// Until when it is fresh.
    pub fresh_until: Timestamp,
    /// What the mirror's revision of its provider was when it was rendered.
    pub revision: u64,
    /// How it came about, for whoever it is given to again.
    pub outcome: Outcome,
}

/// What an answer is kept under.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    route: Route,
    form: Form,
}

/// A [`Key`] that is only looked for. It hashes like one, field by field.
#[derive(Hash)]
struct Wanted<'a> {
    route: &'a Route,
    form: Form,
}

impl Equivalent<Key> for Wanted<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        *self.route == key.route && self.form == key.form
    }
}

/// The answers that are kept, up to a number of bytes.
#[derive(Debug)]
pub struct Answers {
    cache: Cache<Key, Kept>,
    /// For archives: what is kept no more, and still read by clients, takes its room until they have it.
    archives: ReadMemory,
}

impl Answers {
    /// Makes room for `bytes` of answers.
    pub fn with_room_for(bytes: u64) -> Self {
        // A key and its bookkeeping weigh something too, or small answers would be free.
        let weigh = |_: &Key, kept: &Kept| u32::try_from(kept.answer.weight() + 512).unwrap_or(u32::MAX);
        let cache = Cache::builder().max_capacity(bytes).weigher(weigh).build();
        Self { cache, archives: ReadMemory::new(usize::try_from(bytes).unwrap_or(usize::MAX)) }
    }

    /// The answer to a route, if it is fresh and nothing changed since.
    pub fn fresh(&self, route: &Route, form: Form, revision: u64, now: Timestamp) -> Option<Kept> {
        let kept = self.cache.get(&Wanted { route, form })?;
        // A clock that was set back would keep it for ever.
        let timely = kept.made <= now && now < kept.fresh_until;
        (timely && kept.revision == revision).then_some(kept)
    }

    /// Keeps an answer; an archive only where there is room in memory for a copy of it.
    pub fn keep(&self, route: Route, form: Form, kept: Kept) {
        let answer = match kept.answer {
            // Bytes of its own: those of the mirror are shared by whoever reads at the same time, so they would count as
            // checked for as long as they were kept here.
            Finished::Archive { bytes, digest } => {
                let Some(bytes) = self.archives.copy(&bytes) else { return };
                Finished::Archive { bytes, digest }
            }
            answer => answer,
        };
        self.cache.insert(Key { route, form }, Kept { answer, ..kept });
    }
}
