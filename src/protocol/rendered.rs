//! Finished answers in memory: route and form -> bytes, their gzip form, ETag and fresh time. All that a
//! hot request touches; no JSON, no disk, no lock held across a wait.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use moka::sync::Cache;

use super::route::{Form, Route};
use crate::clock::Timestamp;

/// Smaller than this, gzip gains nothing.
const WORTH_GZIP: usize = 512;

/// A document as it goes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// Its bytes.
    pub body: Bytes,
    /// The same in gzip, where that is smaller.
    pub gzip: Option<Bytes>,
    /// Its entity tag, without quotes; the gzip form's has `-gzip` at its end.
    pub tag: String,
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
        Self { body: Bytes::from(body), gzip: None, tag }
    }

    fn weight(&self) -> usize {
        self.body.len() + self.gzip.as_ref().map_or(0, Bytes::len) + self.tag.len()
    }
}

fn gzip(body: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
    // Writing to memory does not fail; if it did, the plain form would go out.
    encoder.write_all(body).ok()?;
    encoder.finish().ok()
}

/// A finished answer, and how long it may be given out.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The answer.
    pub rendered: Arc<Rendered>,
    /// When it was made.
    pub made: Timestamp,
    /// When upstream had last confirmed what it is made of.
    pub checked: Timestamp,
    /// Until when it is fresh.
    pub fresh_until: Timestamp,
    /// What the mirror's revision of its provider was when it was rendered.
    pub revision: u64,
}

/// The answers that are kept, up to a number of bytes.
#[derive(Debug)]
pub struct Answers(Cache<(Route, Form), Kept>);

impl Answers {
    /// Makes room for `bytes` of answers.
    pub fn with_room_for(bytes: u64) -> Self {
        // A key and its bookkeeping weigh something too, or small answers would be free.
        let weigh = |_: &(Route, Form), kept: &Kept| u32::try_from(kept.rendered.weight() + 512).unwrap_or(u32::MAX);
        Self(Cache::builder().max_capacity(bytes).weigher(weigh).build())
    }

    /// The answer to a route, if it is fresh and nothing changed since; and when upstream had confirmed it.
    pub fn fresh(
        &self,
        route: &Route,
        form: Form,
        revision: u64,
        now: Timestamp,
    ) -> Option<(Arc<Rendered>, Timestamp)> {
        let kept = self.0.get(&(route.clone(), form))?;
        // A clock that was set back would keep it for ever.
        let timely = kept.made <= now && now < kept.fresh_until;
        (timely && kept.revision == revision).then_some((kept.rendered, kept.checked))
    }

    /// Keeps an answer.
    pub fn keep(&self, route: Route, form: Form, kept: Kept) {
        self.0.insert((route, form), kept);
    }
}
