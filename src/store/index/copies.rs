//! The notes of a replica about its copy of the records that all replicas share: of each group the generation of the copy, and of
//! each record of the group its generation, its size, and whether its bytes are here.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::super::{Generation, RecordGroup, StoreError, sort_text};
use super::Index;
use super::entries::{decode_numbers, encode_numbers};
use crate::clock::Timestamp;

/// The kinds of records that this larder knows. A copy of another larder is compared whole: it may have skipped some.
const FORMAT: u64 = 1;
const GENERATION: u8 = b'g';
const RECORD: u8 = b'c';
/// Between the name of a group and the path of a record; in no name.
const SEPARATOR: &str = "\0";

/// A record that the replicas share, as its group was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiedRecord {
    /// The generation at which it was written.
    pub generation: Generation,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// The time at which it was written.
    pub written: Timestamp,
    /// The beginning of the hash of its bytes, if they are in the folder: a file may be that of an earlier generation.
    pub here: Option<u64>,
}

impl CopiedRecord {
    fn encode(self) -> Vec<u8> {
        let numbers = [self.generation.0, self.size_bytes, self.written.0];
        encode_numbers(&numbers.into_iter().chain(self.here).collect::<Vec<_>>())
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let (numbers, here) = match *decode_numbers(value)? {
            [generation, size_bytes, written] => ([generation, size_bytes, written], None),
            [generation, size_bytes, written, here] => ([generation, size_bytes, written], Some(here)),
            _ => return None,
        };
        let [generation, size_bytes, written] = numbers;
        Some(Self { generation: Generation(generation), size_bytes, written: Timestamp(written), here })
    }

    /// The beginning of the hash of a record's bytes.
    pub fn hash_of(body: &[u8]) -> u64 {
        blake3::hash(body).as_bytes().first_chunk().map_or(0, |beginning| u64::from_be_bytes(*beginning))
    }
}

impl Index {
    /// The generation at which a group was copied; `None` for a group that was never copied whole.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn copied_generation(&self, group: &RecordGroup) -> Result<Option<Generation>, StoreError> {
        let value = self.entries.read().get(&generation_key(group))?;
        Ok(value.and_then(|value| match *decode_numbers(&value)? {
            [FORMAT, generation] => Some(Generation(generation)),
            _ => None,
        }))
    }

    /// Notes the generation of the copy of a group, or that it is not known.
    pub fn note_copied_generation(&self, group: &RecordGroup, generation: Option<Generation>) {
        self.put(&[(generation_key(group), generation.map(|generation| encode_numbers(&[FORMAT, generation.0])))]);
    }

    /// Forgets the generations of all copies. What is here stays.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn forget_copied_generations(&self) -> Result<(), StoreError> {
        let mut changes = Vec::new();
        self.entries.read().each_with_prefix(&[GENERATION], |key, _| changes.push((key.to_vec(), None)))?;
        self.put(&changes);
        Ok(())
    }

    /// The note about a record.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn copied_record(&self, group: &RecordGroup, path: &Path) -> Result<Option<CopiedRecord>, StoreError> {
        let value = self.entries.read().get(&record_key(group, path))?;
        Ok(value.as_deref().and_then(CopiedRecord::decode))
    }

    /// Notes which records of a group there are: `None` removes one.
    pub fn note_copied_records(&self, group: &RecordGroup, records: &[(PathBuf, Option<CopiedRecord>)]) {
        let change = |(path, record): &(PathBuf, Option<CopiedRecord>)| {
            (record_key(group, path), record.map(CopiedRecord::encode))
        };
        self.put(&records.iter().map(change).collect::<Vec<_>>());
    }

    /// Visits the records of a group, in the order of their paths, after the path `after`, until `visit` breaks.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn each_copied_record(
        &self,
        group: &RecordGroup,
        after: Option<&Path>,
        mut visit: impl FnMut(PathBuf, CopiedRecord) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let prefix = record_key(group, Path::new(""));
        let after = after.map(|after| record_key(group, after)).unwrap_or_default();
        self.entries.read().each_after(&prefix, &after, |key, value| {
            let path =
                std::str::from_utf8(&key[prefix.len()..]).map(|place| PathBuf::from(place.replace('\u{1}', "/")));
            match path.ok().zip(CopiedRecord::decode(value)) {
                Some((path, record)) => visit(path, record),
                None => ControlFlow::Continue(()),
            }
        })
    }
}

fn generation_key(group: &RecordGroup) -> Vec<u8> {
    [&[GENERATION], group.name().as_bytes()].concat()
}

/// The key of a record: those of one group sort as their paths do.
fn record_key(group: &RecordGroup, path: &Path) -> Vec<u8> {
    [&[RECORD], group.name().as_bytes(), SEPARATOR.as_bytes(), sort_text(path).as_bytes()].concat()
}
