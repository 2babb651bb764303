//! The archives that a person looks at first when space is short: the largest, and those unused for the longest time.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::address::PackageRef;
use crate::clock::Timestamp;
use crate::mirror::Operations;
use crate::store::{IndexedArchive, StoreError};

/// The most names read of one archive.
const MAX_NAMES: usize = 16;

/// A stored archive with the packages that list it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredArchiveNames {
    /// The packages; empty if none needs it any more. At most sixteen.
    pub packages: Vec<PackageRef>,
    /// The size, in bytes.
    pub size_bytes: u64,
    /// The last use.
    pub last_use: Timestamp,
}

/// The archives that a person looks at first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NotableArchives {
    /// The largest first.
    pub largest: Vec<StoredArchiveNames>,
    /// Those unused for the longest time first.
    pub oldest: Vec<StoredArchiveNames>,
}

impl Operations {
    /// The largest archives and those unused for the longest time, `number` of each. Scans the index.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn notable_archives(&self, number: usize) -> Result<NotableArchives, StoreError> {
        let (mut largest, mut oldest) = (FirstOf::new(number), FirstOf::new(number));
        self.library.each_file(|archive| {
            largest.offer((Reverse(archive.size_bytes), archive.digest), &archive);
            oldest.offer((archive.last_use, archive.digest), &archive);
        })?;
        let names = |archive: IndexedArchive| -> Result<StoredArchiveNames, StoreError> {
            let packages = self.library.names_of(&archive.digest)?;
            let packages = packages.iter().take(MAX_NAMES).map(PackageRef::from).collect();
            Ok(StoredArchiveNames { packages, size_bytes: archive.size_bytes, last_use: archive.last_use })
        };
        let largest = largest.archives.into_values().map(names).collect::<Result<_, _>>()?;
        let oldest = oldest.archives.into_values().map(names).collect::<Result<_, _>>()?;
        Ok(NotableArchives { largest, oldest })
    }
}

/// The archives with the smallest keys of all that are offered. Takes memory for these only.
struct FirstOf<K> {
    number: usize,
    archives: BTreeMap<K, IndexedArchive>,
}

impl<K: Ord> FirstOf<K> {
    fn new(number: usize) -> Self {
        Self { number, archives: BTreeMap::new() }
    }

    fn offer(&mut self, key: K, archive: &IndexedArchive) {
        self.archives.insert(key, archive.clone());
        if self.archives.len() > self.number {
            self.archives.pop_last();
        }
    }
}
