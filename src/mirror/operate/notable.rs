//! The archives that a person looks at first when space is short: the largest, and those unused for the longest time.

use std::cmp::Reverse;

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
        let index = &self.library.store.index;
        let mut archives = index.archives_by_age()?;
        let names = |archive: &IndexedArchive| -> Result<StoredArchiveNames, StoreError> {
            let packages = index.names_of(&archive.digest)?;
            let packages = packages.iter().take(MAX_NAMES).map(PackageRef::from).collect();
            Ok(StoredArchiveNames { packages, size_bytes: archive.size_bytes, last_use: archive.last_use })
        };
        let oldest = archives.iter().take(number).map(names).collect::<Result<_, _>>()?;
        // Only the largest need an order.
        if archives.len() > number {
            archives.select_nth_unstable_by_key(number, |archive| Reverse(archive.size_bytes));
            archives.truncate(number);
        }
        archives.sort_unstable_by_key(|archive| (Reverse(archive.size_bytes), archive.digest));
        let largest = archives.iter().map(names).collect::<Result<_, _>>()?;
        Ok(NotableArchives { largest, oldest })
    }
}
