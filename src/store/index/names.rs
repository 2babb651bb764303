//! Name records in the index: the archives that each lists, and the names by digest. Copies of the records, so that
//! eviction need not read all of them.

use std::path::Path;

use super::super::{Key, StoreError};
use super::Index;
use crate::address::Artifact;
use crate::digest::Digest;

pub(super) const NAME: u8 = b'n';
const LISTED: u8 = b'l';
const DIGEST_BYTES: usize = 32;
const PINNED: u8 = 1;
const IMPORTED: u8 = 2;

/// The archives of a name, according to the index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexedName {
    /// Exempt from eviction.
    pub pinned: bool,
    /// One of its archives was imported without signatures.
    pub imported: bool,
    /// The archives, each once.
    pub archives: Vec<ListedArchive>,
}

/// An archive that a name lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedArchive {
    /// Its SHA-256.
    pub digest: Digest,
    /// Its `h1:` hashes are not computed yet.
    pub lacks_hashes: bool,
}

impl IndexedName {
    /// Returns true if the name lists no archive and is not pinned: then no record exists.
    pub fn is_empty(&self) -> bool {
        self.archives.is_empty() && !self.pinned
    }

    fn lists(&self, digest: &Digest) -> bool {
        self.archives.iter().any(|listed| listed.digest == *digest)
    }

    fn encode(&self) -> Vec<u8> {
        let mut value = vec![if self.pinned { PINNED } else { 0 } | if self.imported { IMPORTED } else { 0 }];
        for listed in &self.archives {
            value.extend_from_slice(listed.digest.as_bytes());
            value.push(listed.lacks_hashes.into());
        }
        value
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let (flags, listed) = value.split_first()?;
        let mut name = Self { pinned: flags & PINNED > 0, imported: flags & IMPORTED > 0, archives: Vec::new() };
        let mut pieces = listed.chunks_exact(DIGEST_BYTES + 1);
        for piece in &mut pieces {
            let (digest, lacks_hashes) = piece.split_at_checked(DIGEST_BYTES)?;
            let digest = Digest::from_bytes(digest.try_into().ok()?);
            name.archives.push(ListedArchive { digest, lacks_hashes: *lacks_hashes != [0] });
        }
        (flags & !(PINNED | IMPORTED) == 0 && pieces.remainder().is_empty()).then_some(name)
    }
}

fn name_key(artifact: &Artifact) -> Vec<u8> {
    [&[NAME], Key::Name(artifact.clone()).path().as_os_str().as_encoded_bytes()].concat()
}

fn listed_prefix(digest: &Digest) -> Vec<u8> {
    [&[LISTED], &digest.as_bytes()[..]].concat()
}

fn listed_key(digest: &Digest, artifact: &Artifact) -> Vec<u8> {
    [&listed_prefix(digest), Key::Name(artifact.clone()).path().as_os_str().as_encoded_bytes()].concat()
}

fn artifact(path: &[u8]) -> Option<Artifact> {
    match Key::from_path(Path::new(std::str::from_utf8(path).ok()?))? {
        Key::Name(artifact) => Some(artifact),
        _ => None,
    }
}

impl Index {
    /// Records the archives that a name lists; the caller holds the lock of the name's record. An empty `name` removes the
    /// entry.
    pub(super) fn name_changed(&self, artifact: &Artifact, name: &IndexedName) {
        self.unreadable.lock().remove(artifact);
        let previous = match self.name(artifact) {
            Ok(previous) => previous.unwrap_or_default(),
            Err(error) => return self.mark_broken(&error),
        };
        if previous == *name {
            return;
        }
        let mut changes = Vec::new();
        for removed in previous.archives.iter().filter(|listed| !name.lists(&listed.digest)) {
            changes.push((listed_key(&removed.digest, artifact), None));
        }
        for added in name.archives.iter().filter(|listed| !previous.lists(&listed.digest)) {
            changes.push((listed_key(&added.digest, artifact), Some(Vec::new())));
        }
        changes.push((name_key(artifact), (!name.is_empty()).then(|| name.encode())));
        self.put(&changes);
        // The set of pinned names changes after the entry: a scan of all entries holds its lock, and sees either state.
        if let Some(pinned) = self.pinned.lock().as_mut() {
            if name.pinned {
                pinned.insert(artifact.clone())
            } else {
                pinned.remove(artifact)
            };
        }
    }

    /// The pinned names. The first call scans all names; a fill at the size limit calls it.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn pinned_names(&self) -> Result<Vec<Artifact>, StoreError> {
        let mut pinned = self.pinned.lock();
        let names = match pinned.take() {
            Some(names) => names,
            None => self.names(|artifact, name| name.pinned.then_some(artifact))?.into_iter().collect(),
        };
        Ok(pinned.insert(names).iter().cloned().collect())
    }

    /// The archives that a name lists; `None` if the index has no entry.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn name(&self, artifact: &Artifact) -> Result<Option<IndexedName>, StoreError> {
        let value = self.entries.read().get(&name_key(artifact))?;
        Ok(value.as_deref().and_then(IndexedName::decode))
    }

    /// The names that list an archive.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn names_of(&self, digest: &Digest) -> Result<Vec<Artifact>, StoreError> {
        let prefix = listed_prefix(digest);
        let mut found = Vec::new();
        self.entries.read().each_with_prefix(&prefix, |key, _| found.extend(artifact(&key[prefix.len()..])))?;
        Ok(found)
    }

    /// The names for which `choose` returns a value.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn names<T>(&self, mut choose: impl FnMut(Artifact, IndexedName) -> Option<T>) -> Result<Vec<T>, StoreError> {
        let mut chosen = Vec::new();
        self.entries.read().each_with_prefix(&[NAME], |key, value| {
            if let Some((artifact, name)) = artifact(&key[1..]).zip(IndexedName::decode(value)) {
                chosen.extend(choose(artifact, name));
            }
        })?;
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// An entry round-trips, and nothing else parses as one.
        #[test]
        fn an_encoded_name_decodes_to_itself(pinned: bool, imported: bool, archives: Vec<([u8; 32], bool)>, other: Vec<u8>) {
            let listed = |(digest, lacks_hashes)| ListedArchive { digest: Digest::from_bytes(digest), lacks_hashes };
            let name = IndexedName { pinned, imported, archives: archives.into_iter().map(listed).collect() };
            let encoded = name.encode();
            prop_assert_eq!(IndexedName::decode(&encoded), Some(name));
            prop_assert_eq!(IndexedName::decode(&encoded[..encoded.len() - 1]), None);
            if let Some(read) = IndexedName::decode(&other) {
                prop_assert_eq!(read.archives.len(), (other.len() - 1) / 33);
            }
        }
    }
}
