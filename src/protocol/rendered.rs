//! Finished answers in memory: route and base -> bytes, their gzip form, ETag and fresh time; and small archives that
//! were checked. All that a hot request touches; no JSON, no disk, no lock held across a wait.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use moka::Equivalent;
use moka::sync::Cache;

use super::route::{Base, Route};
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
        /// When it was first stored, if that is known.
        stored: Option<Timestamp>,
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

/// The key of a finished answer: everything that its bytes depend on besides the mirror's revision.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    route: Route,
    base: Base<'static>,
}

/// A borrowed [`Key`], for lookups without a copy. It hashes like one, field by field.
#[derive(Hash)]
struct KeyRef<'a> {
    route: &'a Route,
    base: &'a Base<'a>,
}

impl Equivalent<Key> for KeyRef<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        *self.route == key.route && *self.base == key.base
    }
}

/// A borrowed base, for lookups without a copy.
#[derive(Hash)]
struct BaseRef<'a>(&'a Base<'a>);

impl Equivalent<Base<'static>> for BaseRef<'_> {
    fn equivalent(&self, base: &Base<'static>) -> bool {
        self.0 == base
    }
}

/// How many bases have their answers kept. A request chooses its base by its Host, as far as the certificate or a trusted
/// proxy lets it: with a wildcard certificate there is no end to them.
const MOST_BASES: u64 = 64;

/// The answers that are kept, up to a number of bytes.
#[derive(Debug)]
pub struct Answers {
    cache: Cache<Key, Kept>,
    /// The bases that are asked for most.
    bases: Cache<Base<'static>, ()>,
    /// For archives: what is kept no more, and still read by clients, takes its room until they have it.
    archives: ReadMemory,
}

impl Answers {
    /// Makes room for `bytes` of answers.
    pub fn with_room_for(bytes: u64) -> Self {
        // A key and its bookkeeping weigh something too, or small answers would be free.
        let weigh = |_: &Key, kept: &Kept| u32::try_from(kept.answer.weight() + 512).unwrap_or(u32::MAX);
        let cache = Cache::builder().max_capacity(bytes).weigher(weigh).build();
        let archives = ReadMemory::new(usize::try_from(bytes).unwrap_or(usize::MAX));
        Self { cache, bases: Cache::new(MOST_BASES), archives }
    }

    /// The answer to a route, if it is fresh and nothing changed since.
    pub fn fresh(&self, route: &Route, base: &Base<'_>, revision: u64, now: Timestamp) -> Option<Kept> {
        if !self.is_among_bases(base) {
            return None;
        }
        let kept = self.cache.get(&KeyRef { route, base })?;
        // A clock that was set back would keep it for ever.
        let timely = kept.made <= now && now < kept.fresh_until;
        (timely && kept.revision == revision).then_some(kept)
    }

    /// Keeps an answer: it is given out while its base is among those that are asked for most. An archive is kept only where
    /// there is room in memory for a copy of it.
    pub fn keep(&self, route: &Route, base: &Base<'_>, kept: Kept) {
        let key = Key { route: route.clone(), base: base.clone().into_owned() };
        if !self.is_among_bases(base) {
            self.bases.insert(key.base.clone(), ());
            // Until then it is not decided whether the newcomer or another one stays.
            self.bases.run_pending_tasks();
        }
        let answer = match kept.answer {
            // Bytes of its own: those of the mirror are shared by whoever reads at the same time, so they would count as
            // checked for as long as they were kept here.
            Finished::Archive { bytes, digest, stored } => {
                let Some(bytes) = self.archives.copy(&bytes) else { return };
                Finished::Archive { bytes, digest, stored }
            }
            answer => answer,
        };
        self.cache.insert(key, Kept { answer, ..kept });
    }

    fn is_among_bases(&self, base: &Base<'_>) -> bool {
        *base == Base::PathAbsolute || self.bases.get(&BaseRef(base)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Hostname;
    use crate::protocol::route::{Origin, Scheme};

    /// Promise 11: a client that asks under ever other names gets its answers, and fills no memory with them.
    #[test]
    fn answers_are_kept_for_so_many_bases_and_for_those_that_are_asked_for_most() {
        let answers = Answers::with_room_for(64 << 20);
        let route = Route::Discovery(Hostname::parse("registry.example").unwrap());
        let base = |number: usize| {
            Base::Absolute(Origin::parse(Scheme::Https, &format!("h{number}.example")).unwrap().into_owned())
        };
        let now = Timestamp(1_000);
        let answer = Finished::Document(Arc::new(Rendered::plain(b"{}".to_vec())));
        let kept =
            Kept { answer, made: now, checked: now, fresh_until: Timestamp(2_000), revision: 0, outcome: Outcome::Hit };
        let often = base(0);
        let is_kept = |base: &Base<'_>| answers.fresh(&route, base, 0, now).is_some();
        let mut misses = 0;
        for number in 1..2_000 {
            answers.keep(&route, &base(number), kept.clone());
            if number % 10 == 0 && !is_kept(&often) {
                misses += 1;
                answers.keep(&route, &often, kept.clone());
            }
        }
        answers.keep(&route, &Base::PathAbsolute, kept.clone());
        let count = (0..2_000).filter(|number| is_kept(&base(*number))).count();
        assert!((1..=MOST_BASES as usize).contains(&count), "{count}");
        assert!(is_kept(&Base::PathAbsolute));
        assert!(misses < 10, "the one that is asked for most was not there {misses} times");
    }
}
