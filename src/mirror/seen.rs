//! What was ever proven of a provider: when each version was first seen, every digest its sums gave, and
//! the keys that signed. Never evicted: this is how a version that is published anew is noticed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Mirror;
use super::proof_set::ProofSet;
use crate::address::{Package, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::store::{Durability, Key, StoreError};
use crate::verify::{Checksums, How};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    /// The fingerprints of the keys that signed a proven set, and when each was first seen.
    #[serde(default)]
    keys: BTreeMap<String, Timestamp>,
    #[serde(default)]
    versions: BTreeMap<Version, SeenVersion>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SeenVersion {
    first_seen: Timestamp,
    /// Every digest that proven sums of this version gave a file.
    #[serde(default)]
    digests: BTreeMap<String, Vec<Digest>>,
}

/// How proven sums stand to what was proven before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum History {
    /// No file has another digest than before.
    Consistent,
    /// A file has, and a key that signed for this provider before vouches for it.
    RepublishedByKnownKey {
        /// The file.
        file: String,
    },
    /// A file has, and nobody known vouches for it.
    RepublishedByStranger {
        /// The file.
        file: String,
    },
}

/// How what was seen came to be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// By its record.
    Recorded,
    /// From what is held: it must be put even if nothing is added to it.
    Rebuilt,
    /// Not at all, because the store is gone: it must not be put over what is recorded there.
    Unknown,
}

/// A file that proven sums give another digest than sums proven before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedFile {
    /// Its name.
    pub file: String,
    /// Every digest that it had before.
    pub before: Vec<Digest>,
    /// The one it has now.
    pub now: Digest,
}

/// What a proven set changes of what was proven before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Changes {
    /// The files whose digests are others than before.
    pub(super) files: Vec<ChangedFile>,
    /// The keys that were known for the provider.
    pub(super) keys_before: Vec<String>,
}

/// Reads what was seen of a provider. A record that is not there may have been damaged and set aside:
/// then what is still held says what was proven.
fn read(mirror: &Mirror, address: &ProviderAddress) -> Result<(Seen, Known), StoreError> {
    match read_there(mirror, address) {
        Err(StoreError::Gone) => {
            tracing::error!(provider = %address, "ALARM: the store is gone, so nobody can tell whether upstream has published anything anew; it is taken as it is");
            Ok((Seen::default(), Known::Unknown))
        }
        read => read,
    }
}

fn read_there(mirror: &Mirror, address: &ProviderAddress) -> Result<(Seen, Known), StoreError> {
    let key = Key::Seen(address.clone());
    if let Some(seen) = recorded(mirror, &key)? {
        return Ok((seen, Known::Recorded));
    }
    let mut seen = Seen::default();
    for package in mirror.store.records.packages_with_sets(address)? {
        note_set(mirror, &mut seen, &package)?;
    }
    Ok((seen, Known::Rebuilt))
}

fn recorded(mirror: &Mirror, key: &Key) -> Result<Option<Seen>, StoreError> {
    let Some(record) = mirror.store.records.get(key)? else { return Ok(None) };
    match serde_json::from_slice(&record) {
        Ok(seen) => Ok(Some(seen)),
        Err(_) => {
            mirror.store.records.set_aside(key)?;
            Ok(None)
        }
    }
}

/// Notes what the held set of a package proves; says whether anything about that is new.
fn note_set(mirror: &Mirror, seen: &mut Seen, package: &Package) -> Result<bool, StoreError> {
    let Some(held) = mirror.read_set(package)? else { return Ok(false) };
    let predecessor = held.kept.predecessor.as_ref().map(|(set, _)| set);
    let mut news = false;
    // What was imported without signatures proves nothing.
    let sets = predecessor.into_iter().chain([&held.kept.current]).filter(|set| set.proof().how != How::Imported);
    for set in sets {
        if let Some(sums) = set.checksums() {
            news |= seen.note(&package.version, &sums, set.proof().how.fingerprint(), set.fetched());
        }
    }
    Ok(news)
}

/// A held set that could not be read, and whose version nothing else tells of: were it removed, a version that is
/// published anew would pass for the one that it proved.
#[derive(Debug)]
pub(super) struct Untold {
    pub(super) package: Package,
    pub(super) why: StoreError,
}

/// Puts down all that the held sets of a provider prove, before any of them may go. The sets it names must stay.
///
/// # Errors
/// What was proven could not be read, or not be put down: then none of them may go.
pub(super) fn note_held(mirror: &Mirror, address: &ProviderAddress) -> Result<Vec<Untold>, StoreError> {
    let key = Key::Seen(address.clone());
    let _lock = mirror.record_lock(&key).lock();
    let mut seen = recorded(mirror, &key)?.unwrap_or_default();
    let (mut news, mut unread) = (false, Vec::new());
    for package in mirror.store.records.packages_with_sets(address)? {
        match note_set(mirror, &mut seen, &package) {
            Ok(new) => news |= new,
            Err(StoreError::Gone) => return Err(StoreError::Gone),
            Err(why) => unread.push(Untold { package, why }),
        }
    }
    if news {
        put(mirror, &key, &seen)?;
    }
    unread.retain(|untold| !seen.knows_digests_of(&untold.package.version));
    Ok(unread)
}

/// What proven sums of a package's version ever gave its archive; nothing where none speak of it. Whether a key is known
/// for the provider is told by the second.
pub(super) fn digests_of(
    mirror: &Mirror,
    package: &Package,
    file: &str,
    key: Option<&str>,
) -> Result<(Vec<Digest>, bool), StoreError> {
    let of = Key::Seen(package.provider.clone());
    let _lock = mirror.record_lock(&of).lock();
    let (seen, _) = read_there(mirror, &package.provider)?;
    let digests = seen.versions.get(&package.version).and_then(|version| version.digests.get(file));
    let is_known = key.is_some_and(|key| seen.keys.contains_key(key));
    Ok((digests.cloned().unwrap_or_default(), is_known))
}

/// Whether keys are known for a provider, and this is none of them.
pub(super) fn is_stranger(mirror: &Mirror, provider: &ProviderAddress, key: Option<&str>) -> Result<bool, StoreError> {
    let of = Key::Seen(provider.clone());
    let _lock = mirror.record_lock(&of).lock();
    let (seen, _) = read_there(mirror, provider)?;
    Ok(!seen.keys.is_empty() && !key.is_some_and(|key| seen.keys.contains_key(key)))
}

/// Sees to it that what a held set proves is put down, before that set goes.
///
/// # Errors
/// It is not: then the set must stay.
pub(super) fn note_before_it_goes(mirror: &Mirror, package: &Package) -> Result<(), StoreError> {
    let key = Key::Seen(package.provider.clone());
    let seen = {
        let _lock = mirror.record_lock(&key).lock();
        recorded(mirror, &key)?
    };
    if seen.is_some_and(|seen| seen.knows_digests_of(&package.version)) {
        return Ok(());
    }
    match note_held(mirror, &package.provider)?.into_iter().find(|untold| untold.package == *package) {
        Some(untold) => Err(untold.why),
        None => Ok(()),
    }
}

impl Seen {
    fn knows_digests_of(&self, version: &Version) -> bool {
        self.versions.get(version).is_some_and(|seen| !seen.digests.is_empty())
    }

    /// The files that proven sums give another digest than was proven before.
    fn changes(&self, version: &Version, sums: &Checksums) -> Vec<ChangedFile> {
        let Some(before) = self.versions.get(version) else { return Vec::new() };
        let changed = |(file, now): (&str, Digest)| {
            let before = before.digests.get(file).filter(|before| !before.contains(&now))?;
            Some(ChangedFile { file: file.to_owned(), before: before.clone(), now })
        };
        sums.iter().filter_map(changed).collect()
    }

    /// Notes proven sums; says whether anything about them is new.
    fn note(&mut self, version: &Version, sums: &Checksums, fingerprint: Option<&str>, now: Timestamp) -> bool {
        let mut news = false;
        let version =
            self.versions.entry(version.clone()).or_insert(SeenVersion { first_seen: now, digests: BTreeMap::new() });
        for (file, digest) in sums.iter() {
            let before = version.digests.entry(file.to_owned()).or_default();
            if !before.contains(&digest) {
                before.push(digest);
                news = true;
            }
        }
        if let Some(fingerprint) = fingerprint.filter(|fingerprint| !self.keys.contains_key(*fingerprint)) {
            self.keys.insert(fingerprint.to_owned(), now);
            news = true;
        }
        news
    }
}

fn put(mirror: &Mirror, key: &Key, seen: &Seen) -> Result<(), StoreError> {
    let record =
        serde_json::to_vec(seen).map_err(|e| StoreError::Index(format!("what was seen cannot be written: {e}")))?;
    mirror.store.records.put(key, &record, Durability::Synced).map(|_| ())
}

fn must_be_put(how: Known, news: bool) -> bool {
    match how {
        Known::Recorded => news,
        Known::Rebuilt => true,
        Known::Unknown => false,
    }
}

/// Notes the versions of a list that were not seen before.
pub(super) fn note_versions(
    mirror: &Mirror,
    address: &ProviderAddress,
    versions: &[Version],
    now: Timestamp,
) -> Result<(), StoreError> {
    let key = Key::Seen(address.clone());
    let _lock = mirror.record_lock(&key).lock();
    let (mut seen, how) = read(mirror, address)?;
    let known = seen.versions.len();
    for version in versions {
        seen.versions.entry(version.clone()).or_insert(SeenVersion { first_seen: now, digests: BTreeMap::new() });
    }
    let news = seen.versions.len() != known;
    if must_be_put(how, news) { put(mirror, &key, &seen) } else { Ok(()) }
}

/// Holds proven sums against what was proven before; notes them unless a stranger changed them. A disk that
/// cannot be written costs the note, not the answer.
pub(super) fn judge(
    mirror: &Mirror,
    package: &Package,
    sums: &Checksums,
    fingerprint: Option<&str>,
    now: Timestamp,
) -> Result<History, StoreError> {
    let key = Key::Seen(package.provider.clone());
    let _lock = mirror.record_lock(&key).lock();
    let (mut seen, how) = read(mirror, &package.provider)?;
    if how == Known::Recorded && !seen.knows_digests_of(&package.version) {
        // A set may be held whose digests could not be noted, because the disk was full.
        let platforms = mirror.store.records.platforms_with_sets(&package.provider, &package.version)?;
        for platform in platforms {
            note_set(mirror, &mut seen, &Package { platform, ..package.clone() })?;
        }
    }
    let known_key = fingerprint.is_some_and(|fingerprint| seen.keys.contains_key(fingerprint));
    let changed = seen.changes(&package.version, sums).into_iter().next();
    let history = match changed.map(|changed| changed.file) {
        None => History::Consistent,
        Some(file) if known_key => History::RepublishedByKnownKey { file },
        Some(file) => return Ok(History::RepublishedByStranger { file }),
    };
    let news = seen.note(&package.version, sums, fingerprint, now);
    if must_be_put(how, news)
        && let Err(error) = put(mirror, &key, &seen)
    {
        tracing::error!(%package, %error, to_do = error.to_do(), "what was proven could not be noted");
    }
    Ok(history)
}

/// Notes proven sets whoever vouches for them, because an operator says so: their digests and their keys are known
/// from now on. Says what each changes of what was proven before the first of them.
pub(super) fn accept(
    mirror: &Mirror,
    address: &ProviderAddress,
    sets: &[(Package, ProofSet)],
    now: Timestamp,
) -> Result<Vec<Changes>, StoreError> {
    let key = Key::Seen(address.clone());
    let _lock = mirror.record_lock(&key).lock();
    // What was proven before must be known: so a store that is gone is an error here.
    let (mut seen, how) = read_there(mirror, address)?;
    let keys_before: Vec<String> = seen.keys.keys().cloned().collect();
    let sums: Vec<_> = sets.iter().map(|(package, set)| (package, set, set.checksums())).collect();
    let changes = sums.iter().map(|(package, _, sums)| Changes {
        files: sums.as_ref().map(|sums| seen.changes(&package.version, sums)).unwrap_or_default(),
        keys_before: keys_before.clone(),
    });
    let changes: Vec<Changes> = changes.collect();
    let mut news = false;
    for (package, set, sums) in &sums {
        if let Some(sums) = sums {
            news |= seen.note(&package.version, sums, set.proof().how.fingerprint(), now);
        }
    }
    if must_be_put(how, news) {
        put(mirror, &key, &seen)?;
    }
    Ok(changes)
}
