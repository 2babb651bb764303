//! The notes of a replica about its copy of the records that all replicas share: of each group the moment of the copy, and of
//! each record of the group its generation, its size, and whether its bytes are here.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::super::{Generation, RecordGroup, StoreError, sort_text};
use super::Index;
use super::entries::{decode_numbers, encode_numbers};
use crate::clock::Timestamp;
use crate::digest::Digest;

/// The kinds of records that this larder knows. A copy of another larder is compared whole: it may have skipped some.
const FORMAT: u64 = 1;
const MOMENT: u8 = b'g';
const LIFE: u8 = b'y';
const RECORD: u8 = b'c';
const OBJECT: u8 = b'o';
const WRONG_OBJECT: u8 = b'w';
/// Between the name of a group and the path of a record; in no name.
const SEPARATOR: &str = "\0";

/// A generation of shared records, in one life of their database: a restored one may come to the same generation with other records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The beginning of the hash of the life.
    pub life: u64,
    /// The generation.
    pub generation: Generation,
}

impl Moment {
    /// The generation that a step names after it has read at this moment: of two moments of a group never the same.
    pub fn as_generation(self) -> Generation {
        Generation(self.life.wrapping_add(self.generation.0))
    }

    /// True if everything of `other` is in this moment.
    pub fn has(self, other: Self) -> bool {
        self.life == other.life && self.generation.0 >= other.generation.0
    }

    /// The moment in a life at which a step has read.
    pub fn in_life(life: u64, read_at: Generation) -> Self {
        Self { life, generation: Generation(read_at.0.wrapping_sub(life)) }
    }
}

/// The life of the database, as a replica last saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenLife {
    /// The beginning of its hash.
    pub life: u64,
    /// The log, by the beginning of a hash.
    pub log: u64,
    /// The last position in the log.
    pub position: u64,
    /// The time, by the clock of this machine.
    pub at: Timestamp,
}

/// A record that the replicas share, as its group was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiedRecord {
    /// The life in which it was copied, and the generation at which it was written.
    pub at: Moment,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// The time at which it was written.
    pub written: Timestamp,
    /// The beginning of the hash of its bytes, if they are in the folder: a file may be that of an earlier generation.
    pub here: Option<u64>,
}

impl CopiedRecord {
    fn encode(self) -> Vec<u8> {
        let numbers = [self.at.life, self.at.generation.0, self.size_bytes, self.written.0];
        encode_numbers(&numbers.into_iter().chain(self.here).collect::<Vec<_>>())
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let (numbers, here) = match *decode_numbers(value)? {
            [life, generation, size_bytes, written] => ([life, generation, size_bytes, written], None),
            [life, generation, size_bytes, written, here] => ([life, generation, size_bytes, written], Some(here)),
            _ => return None,
        };
        let [life, generation, size_bytes, written] = numbers;
        let at = Moment { life, generation: Generation(generation) };
        Some(Self { at, size_bytes, written: Timestamp(written), here })
    }

    /// The beginning of the hash of a record's bytes.
    pub fn hash_of(body: &[u8]) -> u64 {
        blake3::hash(body).as_bytes().first_chunk().map_or(0, |beginning| u64::from_be_bytes(*beginning))
    }
}

impl Index {
    /// The moment at which a group was copied; `None` for a group that was never copied whole.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn copied_moment(&self, group: &RecordGroup) -> Result<Option<Moment>, StoreError> {
        let value = self.entries.read().get(&moment_key(group))?;
        Ok(value.and_then(|value| match *decode_numbers(&value)? {
            [FORMAT, life, generation] => Some(Moment { life, generation: Generation(generation) }),
            _ => None,
        }))
    }

    /// Notes the moment of the copy of a group, or that it is not known.
    pub fn note_copied_moment(&self, group: &RecordGroup, at: Option<Moment>) {
        let value = at.map(|Moment { life, generation }| encode_numbers(&[FORMAT, life, generation.0]));
        self.put(&[(moment_key(group), value)]);
    }

    /// The life of the database that was seen last.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn seen_life(&self) -> Result<Option<SeenLife>, StoreError> {
        let value = self.entries.read().get(&[LIFE])?;
        Ok(value.and_then(|value| match *decode_numbers(&value)? {
            [life, log, position, at] => Some(SeenLife { life, log, position, at: Timestamp(at) }),
            _ => None,
        }))
    }

    /// Notes the life of the database.
    pub fn note_seen_life(&self, SeenLife { life, log, position, at }: SeenLife) {
        self.put(&[(vec![LIFE], Some(encode_numbers(&[life, log, position, at.0])))]);
    }

    /// Forgets the moments of all copies. What is here stays.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn forget_copied_moments(&self) -> Result<(), StoreError> {
        let mut changes = Vec::new();
        self.entries.read().each_with_prefix(&[MOMENT], |key, _| changes.push((key.to_vec(), None)))?;
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

impl Index {
    /// The object of an archive in the bucket, as it was noted; `None` if it was never needed here.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn object_of(&self, digest: &Digest) -> Result<Option<String>, StoreError> {
        let value = self.entries.read().get(&object_key(digest))?;
        Ok(value.and_then(|value| std::str::from_utf8(&value).map(str::to_owned).ok()))
    }

    /// Notes the object of an archive in the bucket: it is found while the database does not answer.
    pub fn note_object(&self, digest: &Digest, object: Option<&str>) {
        self.put(&[(object_key(digest), object.map(|object| object.as_bytes().to_vec()))]);
    }

    /// The object that was found to have other bytes than an archive; `None` if none was.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn wrong_object_of(&self, digest: &Digest) -> Result<Option<String>, StoreError> {
        let value = self.entries.read().get(&wrong_object_key(digest))?;
        Ok(value.and_then(|value| String::from_utf8(value.to_vec()).ok()))
    }

    /// Notes the object that has other bytes than an archive, also for later processes; `None` ends the note.
    pub fn note_wrong_object(&self, digest: &Digest, object: Option<&str>) {
        self.put(&[(wrong_object_key(digest), object.map(|object| object.as_bytes().to_vec()))]);
    }
}

fn object_key(digest: &Digest) -> Vec<u8> {
    [&[OBJECT], &digest.as_bytes()[..]].concat()
}

fn wrong_object_key(digest: &Digest) -> Vec<u8> {
    [&[WRONG_OBJECT], &digest.as_bytes()[..]].concat()
}

fn moment_key(group: &RecordGroup) -> Vec<u8> {
    [&[MOMENT], group.name().as_bytes()].concat()
}

/// The key of a record: those of one group sort as their paths do.
fn record_key(group: &RecordGroup, path: &Path) -> Vec<u8> {
    [&[RECORD], group.name().as_bytes(), SEPARATOR.as_bytes(), sort_text(path).as_bytes()].concat()
}
