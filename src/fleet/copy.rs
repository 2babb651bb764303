//! The copy of the shared records that each replica keeps in its folder. A hit needs no database; what is not here, or may be old,
//! is asked for; and a step that judged by an old copy loses its write, and judges again.
//!
//! Of each group the folder has a list of its records, with the generation at which the list was right, and the bytes of those that
//! were needed, with a hash that says whether a file is still that of the list. A group is *current* while nothing was heard of a
//! change, *old* afterwards, and *unknown* if it was never copied, or if the last process did not close the index. An old or unknown
//! group is brought up to date before it is read; while the database does not answer, it is read as it is, and nothing is said to
//! be absent. What concerns several groups is asked of the database alone.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::feed::{Feed, Following};
use super::groups::{CopiedGroups, GroupStripe};
use super::records::{DatabaseRecords, Delta, Extent, SharedRecord, SharedWrite, Written};
use super::replicas::Announcement;
use crate::address::Artifact;
use crate::clock::{Clock, Timestamp};
use crate::digest::Digest;
use crate::store::{
    Change, Contact, CopiedRecord, Durability, Fleet, FleetEvents, Generation, GroupRef, Index, IndexEntry,
    IndexedName, Key, Moment, NameCursor, ReadOutcome, RecordAction, RecordGroup, RecordScope, Records, ReplicaAmounts,
    StoreError, Trimmed, Turns, Unreached, WriteOutcome,
};

/// The names that are copied when they are read together. Of more, only the bytes are asked for.
const FEW_NAMES: usize = 20;
/// The rounds that a read tries, while the group changes under it.
const MAX_ROUNDS: usize = 10;

/// The records of a replica.
#[derive(Debug)]
pub struct CopiedRecords {
    /// The bytes that are here.
    local: Box<dyn Records>,
    /// The lists of what there is.
    index: Arc<Index>,
    shared: Arc<DatabaseRecords>,
    groups: Arc<CopiedGroups>,
    feed: Arc<Feed>,
    events: Arc<FleetEvents>,
    following: Mutex<Option<Following>>,
    turns: Turns,
    /// The number of questions about the generation of an unknown group.
    unknown: AtomicU64,
}

impl CopiedRecords {
    /// The copy in a folder, of the records in the database. `local` are the records of the folder, and `index` is its index.
    /// After a silence of `serve_behind` by `clock`, which earlier processes count to, nothing is served.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn new(
        local: Box<dyn Records>,
        index: Arc<Index>,
        shared: DatabaseRecords,
        serve_behind: Option<Duration>,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        if !index.is_complete() {
            // The last process may have ended between a record and its note.
            index.forget_copied_moments()?;
        }
        let seen = index.seen_life()?;
        let silence = seen.map_or(Duration::ZERO, |seen| clock.now().since(seen.at));
        seen.into_iter().for_each(|seen| shared.remember_life(seen));
        let (shared, groups) = (Arc::new(shared), Arc::<CopiedGroups>::default());
        let contact = Contact::new(silence, serve_behind);
        let events = Arc::new(FleetEvents::new(clock.clone()));
        let life = seen.map(|seen| seen.life);
        let feed = Feed::new(
            Arc::clone(&shared),
            Arc::clone(&index),
            Arc::clone(&groups),
            contact,
            clock,
            Arc::clone(&events),
            life,
        );
        let (following, turns, unknown) = Default::default();
        Ok(Self { local, index, shared, groups, feed, events, following, turns, unknown })
    }

    /// The records in the database.
    pub fn shared(&self) -> Arc<DatabaseRecords> {
        Arc::clone(&self.shared)
    }

    /// The news of other replicas.
    pub fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Announces this replica, and hears of the changes of others each second from now on.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn join_fleet(&self, announcement: Announcement) -> std::io::Result<()> {
        // The first answers to clients are no older than they must be. Without an answer of the database this replica begins behind.
        let asked = Instant::now();
        match self.feed.hear() {
            Ok(_) => self.feed.contact().heard(asked),
            Err(error) => {
                tracing::warn!(%error, "the database does not answer at the start; what is here is served, and may be behind");
            }
        }
        *self.following.lock() = Some(self.feed.follow(announcement)?);
        Ok(())
    }

    /// Brings a group up to date, unless it is current.
    fn ensure(&self, group: &RecordGroup) -> Result<(), StoreError> {
        if self.is_current(group)? {
            return Ok(());
        }
        // A change that is being applied is here in a moment, and the database would be asked for all of the group.
        drop(self.groups.of(&group.as_ref()).applying.lock());
        if self.is_current(group)? { Ok(()) } else { self.bring_up_to_date(group) }
    }

    fn is_current(&self, group: &RecordGroup) -> Result<bool, StoreError> {
        // An index that was lost meanwhile has no copy, and one of another life is none.
        let is_of_life = |at| self.shared.is_of_known_life(at);
        let is_current = self.groups.of(&group.as_ref()).is_current(group);
        Ok(is_current && self.index.copied_moment(group)?.is_some_and(is_of_life))
    }

    /// True for a copy without a change of which this replica has heard.
    fn is_known_to_be_old(&self, group: &RecordGroup) -> Result<bool, StoreError> {
        let Some(changed) = self.groups.of(&group.as_ref()).changed_at(group) else { return Ok(false) };
        Ok(!self.index.copied_moment(group)?.is_some_and(|copied| copied.has(changed)))
    }

    /// Asks the database what changed in a group, and applies it.
    fn bring_up_to_date(&self, group: &RecordGroup) -> Result<(), StoreError> {
        self.try_to_bring_up_to_date(group).inspect_err(|_| {
            // An answer rendered from the old copy must not outlive this moment.
            self.groups.of(&group.as_ref()).changes.fetch_add(1, Ordering::AcqRel);
        })
    }

    fn try_to_bring_up_to_date(&self, group: &RecordGroup) -> Result<(), StoreError> {
        let groups = self.groups.of(&group.as_ref());
        for _ in 0..MAX_ROUNDS {
            let marks = groups.marks.load(Ordering::Acquire);
            let before = self.index.copied_moment(group)?;
            // Nothing was heard of a change, so only the generation is asked for.
            if let Some(before) = before
                && groups.is_current(group)
            {
                let at = self.shared.moment(group)?;
                // An earlier one is that of a database that forgot, which the whole question notices.
                if at.has(before) && self.has(group, at)? {
                    return Ok(());
                }
            }
            let delta = self.shared.delta(group, before)?;
            if self.apply_delta(group, before, delta, marks)? {
                return Ok(());
            }
        }
        Err(StoreError::Busy(group.to_string()))
    }

    /// True if the copy of a group has all that the database had at a moment.
    fn has(&self, group: &RecordGroup, at: Moment) -> Result<bool, StoreError> {
        Ok(self.index.copied_moment(group)?.is_some_and(|copied| copied.has(at)))
    }

    /// Applies what changed since `before`, also to a copy that has a part of it by now; then that is current, unless it became old since
    /// `marks`. Returns false if the copy was lost meanwhile, or is of another life.
    fn apply_delta(
        &self,
        group: &RecordGroup,
        before: Option<Moment>,
        delta: Delta,
        marks: u64,
    ) -> Result<bool, StoreError> {
        let groups = self.groups.of(&group.as_ref());
        let _applying = groups.applying.lock();
        let copied = self.index.copied_moment(group)?;
        // Nothing has changed, or changes of this replica have brought it here meanwhile.
        if copied.is_some_and(|copied| copied.has(delta.at)) {
            groups.make_current(group, marks);
            return Ok(true);
        }
        let is_of_life = copied.is_some_and(|copied| copied.life == delta.at.life);
        let continues = |copied: Moment| before.is_some_and(|before| copied.has(before));
        let fits = delta.extent == Extent::Whole || copied.is_some_and(continues);
        if copied != before && !(is_of_life && fits) {
            return Ok(false);
        }
        let (mut changes, mut notes) = (Vec::new(), Vec::new());
        if delta.extent == Extent::Whole {
            // Records that are not in it were removed.
            let named: BTreeSet<PathBuf> = delta.records.iter().map(|record| record.key.path()).collect();
            self.index.each_copied_record(group, None, |path, _| {
                if !named.contains(&path) {
                    changes.extend(Key::from_path(&path).map(removal));
                    notes.push((path, None));
                }
                ControlFlow::Continue(())
            })?;
        }
        for SharedRecord { key, at, size_bytes, written, body, hash, name, objects } in delta.records {
            objects.iter().for_each(|(digest, object)| self.index.note_object(digest, Some(object)));
            let path = key.path();
            let Some(size_bytes) = size_bytes else {
                changes.push(removal(key));
                notes.push((path, None));
                continue;
            };
            let known = self.index.copied_record(group, &path)?;
            let copy = match known {
                Some(known) => known.here,
                // The notes were lost, and not the files.
                None => self.local.read(&key)?.intact().as_deref().map(CopiedRecord::hash_of),
            };
            let kept = copy.filter(|copy| hash == Some(*copy));
            let here = body.as_deref().map(CopiedRecord::hash_of).or(kept);
            let entry = match name {
                Some(name) => IndexEntry::Name(name),
                None => entry_of_copy(&key, here.map(|_| (size_bytes, written))),
            };
            let action = match body {
                Some(body) => RecordAction::Put(body, Durability::Copy),
                None if kept.is_some() => RecordAction::Keep,
                None => RecordAction::Remove(Durability::Copy),
            };
            notes.push((path, Some(CopiedRecord { at, size_bytes, written, here })));
            changes.push(Change { key, action, entry });
        }
        self.replace(group, delta.at, &changes, &notes)?;
        groups.make_current(group, marks);
        Ok(true)
    }

    /// Applies a write of this replica that the database has taken, onto the copy that it continues. That is current then, unless it became
    /// old since `marks`.
    fn apply_own(
        &self,
        group: &RecordGroup,
        read_at: Moment,
        Written { at, time }: Written,
        changes: &[Change],
        marks: u64,
    ) -> Result<(), StoreError> {
        let groups = self.groups.of(&group.as_ref());
        let _applying = groups.applying.lock();
        match self.index.copied_moment(group)? {
            Some(copied) if copied == read_at => {}
            // A reader has brought it here.
            Some(copied) if copied.has(at) => {
                groups.make_current(group, marks);
                return Ok(());
            }
            _ => {
                groups.make_old(group);
                return Ok(());
            }
        }
        let notes = changes.iter().filter_map(|Change { key, action, .. }| {
            let note = match action {
                RecordAction::Put(body, _) => {
                    let size_bytes = body.len() as u64;
                    let here = Some(CopiedRecord::hash_of(body));
                    Some(CopiedRecord { at, size_bytes, written: time, here })
                }
                RecordAction::Remove(_) | RecordAction::Quarantine => None,
                RecordAction::Keep => return None,
            };
            Some((key.path(), note))
        });
        let notes: Vec<_> = notes.collect();
        let changes: Vec<Change> = changes.iter().cloned().map(as_copy).collect();
        self.replace(group, at, &changes, &notes)?;
        groups.make_current(group, marks);
        Ok(())
    }

    /// Changes the copy of a group, which is unknown until that is done. The caller holds its lock.
    fn replace(
        &self,
        group: &RecordGroup,
        at: Moment,
        changes: &[Change],
        notes: &[(PathBuf, Option<CopiedRecord>)],
    ) -> Result<(), StoreError> {
        // If it fails, the group is neither current nor known.
        self.groups.of(&group.as_ref()).make_unknown(group);
        self.index.note_copied_moment(group, None);
        self.write_local(group, changes)?;
        self.index.note_copied_records(group, notes);
        self.index.note_copied_moment(group, Some(at));
        // Last: answers rendered from now on are of the changed copy.
        self.groups.of(&group.as_ref()).changes.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    fn write_local(&self, group: &RecordGroup, changes: &[Change]) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        // Groups share generations in the folder, so another one may come between.
        loop {
            let read_at = self.local.generation(group)?;
            if self.local.write(group, read_at, changes)? == WriteOutcome::Written {
                return Ok(());
            }
        }
    }

    /// The bytes of a record of the list, from the database; they are kept here, unless they are newer than the list. `None` if the record was
    /// removed, or the database has an earlier one, or is in another life.
    fn fetch(&self, group: &RecordGroup, key: &Key, listed: CopiedRecord) -> Result<Option<Vec<u8>>, StoreError> {
        let Some((at, body)) = self.shared.body(key)?.filter(|(at, _)| at.has(listed.at)) else { return Ok(None) };
        if at != listed.at {
            // A step that reads it loses to the change. Later reads of the group are as new.
            self.groups.of(&group.as_ref()).has_changed(group, at);
            return Ok(Some(body));
        }
        let groups = self.groups.of(&group.as_ref());
        let _applying = groups.applying.lock();
        let path = key.path();
        if self.index.copied_record(group, &path)? == Some(listed) {
            let action = RecordAction::Put(body.clone(), Durability::Copy);
            let entry = entry_of_copy(key, Some((listed.size_bytes, listed.written)));
            let kept = self.write_local(group, &[Change { key: key.clone(), action, entry }]);
            match kept {
                Ok(()) => {
                    let here = CopiedRecord { here: Some(CopiedRecord::hash_of(&body)), ..listed };
                    self.index.note_copied_records(group, &[(path, Some(here))]);
                }
                Err(error) => {
                    tracing::warn!(%key, %error, "the copy of a record could not be stored; it is read from the database");
                }
            }
        }
        Ok(Some(body))
    }

    /// Reads a record of the list: its copy, or its bytes in the database. `None` if that has none as new as the list.
    fn read_listed(&self, group: &RecordGroup, key: &Key, listed: CopiedRecord) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(hash) = listed.here
            && let ReadOutcome::Intact(body) = self.local.read(key)?
            && CopiedRecord::hash_of(&body) == hash
        {
            return Ok(Some(body));
        }
        // A copy that is lost, damaged or of another generation is no damage: the record is in the database.
        self.fetch(group, key, listed)
    }

    /// Says where a group is read, after an attempt to bring its copy up to date: in the database, while this machine's disk takes no
    /// copy.
    ///
    /// # Errors
    /// The database does not answer.
    fn place_after(group: &RecordGroup, attempt: Result<(), StoreError>) -> Result<Place, StoreError> {
        match attempt {
            Ok(()) => Ok(Place::Copy),
            Err(unknown @ (StoreError::Unreachable(_) | StoreError::Busy(_))) => Err(unknown),
            Err(error) => {
                tracing::warn!(%group, %error, "the copy of records could not be stored; they are read from the database");
                Ok(Place::Database)
            }
        }
    }

    /// Brings a group up to date unless it is current, and says where it is read.
    ///
    /// # Errors
    /// The database does not answer.
    fn place(&self, group: &RecordGroup) -> Result<Place, StoreError> {
        Self::place_after(group, self.ensure(group))
    }

    /// The records of this machine, if the group is one of them.
    fn own(&self, group: &RecordGroup) -> Option<&dyn Records> {
        group.is_of_machine().then_some(&*self.local)
    }

    /// Runs `own` on the copy of one group if the paths of `folder` are all in it, and otherwise `all` on the database: what is
    /// here would be a partial list.
    fn listed<T>(
        &self,
        folder: &Path,
        own: impl FnOnce(&RecordGroup) -> Result<T, StoreError>,
        all: impl FnOnce(&dyn Records) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match RecordGroup::of_folder(folder) {
            None if RecordGroup::is_folder_of_machine(folder) => all(&*self.local),
            Some(group) => match self.ensure_or_behind(&group)? {
                Place::Copy => own(&group),
                Place::Database => all(&*self.shared),
            },
            None => all(&*self.shared),
        }
    }

    /// As [`Self::place`]; without the database, a copy that was whole once counts.
    fn ensure_or_behind(&self, group: &RecordGroup) -> Result<Place, StoreError> {
        match self.place(group) {
            Err(StoreError::Unreachable(_))
                if self.index.copied_moment(group)?.is_some() && !self.is_known_to_be_old(group)? =>
            {
                Ok(Place::Copy)
            }
            place => place,
        }
    }
}

/// The place at which a group is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Copy,
    Database,
}

/// A change as it is made to a copy: nothing waits for the disk, and nothing is quarantined, for the record is in the database.
fn as_copy(mut change: Change) -> Change {
    change.action = match change.action {
        RecordAction::Put(body, _) => RecordAction::Put(body, Durability::Copy),
        RecordAction::Remove(_) | RecordAction::Quarantine => RecordAction::Remove(Durability::Copy),
        RecordAction::Keep => RecordAction::Keep,
    };
    change
}

/// The entry of a copy in the index of this machine, by its size in bytes and the time of the record, if the bytes are here. Names have
/// others.
fn entry_of_copy(key: &Key, here: Option<(u64, Timestamp)>) -> IndexEntry {
    match here {
        _ if !key.is_counted() => IndexEntry::Unindexed,
        Some((size_bytes, written)) => IndexEntry::Found(size_bytes, written),
        None => IndexEntry::Gone,
    }
}

/// True for a record that permits nothing by itself: a file of one that was removed meanwhile is only old.
fn may_be_read_without_note(key: &Key) -> bool {
    key.is_history() || matches!(key, Key::Name(_) | Key::ProofSet(_) | Key::Document(_))
}

/// The removal of a record from a copy.
fn removal(key: Key) -> Change {
    let entry = if let Key::Name(_) = key { IndexEntry::Name(IndexedName::default()) } else { IndexEntry::Gone };
    Change { key, action: RecordAction::Remove(Durability::Copy), entry }
}

impl Records for CopiedRecords {
    fn read(&self, key: &Key) -> Result<ReadOutcome, StoreError> {
        let (group, path) = (key.group(), key.path());
        if let Some(own) = self.own(&group) {
            return own.read(key);
        }
        for _ in 0..MAX_ROUNDS {
            let place = self.place(&group);
            if let Ok(Place::Database) = place {
                return self.shared.read(key);
            }
            match (self.index.copied_record(&group, &path)?, place) {
                // A command has returned because this replica has heard of the change.
                (_, Err(error)) if self.is_known_to_be_old(&group)? => return Err(error),
                (Some(listed), _) => match self.read_listed(&group, key, listed)? {
                    Some(body) => return Ok(ReadOutcome::Intact(body)),
                    None => self.groups.of(&group.as_ref()).make_old(&group),
                },
                (None, Ok(_)) => return Ok(ReadOutcome::Absent),
                // Nobody knows that it is absent. Where a killed process left no notes of a group, a file is its last record.
                (None, Err(error)) if may_be_read_without_note(key) && self.index.copied_moment(&group)?.is_none() => {
                    match self.local.read(key)? {
                        ReadOutcome::Intact(body) => return Ok(ReadOutcome::Intact(body)),
                        _ => return Err(error),
                    }
                }
                (None, Err(error)) => return Err(error),
            }
        }
        Err(StoreError::Busy(group.to_string()))
    }

    fn stat(&self, key: &Key) -> Result<Option<(u64, Timestamp)>, StoreError> {
        let group = key.group();
        if let Some(own) = self.own(&group) {
            return own.stat(key);
        }
        let place = self.place(&group);
        if let Ok(Place::Database) = place {
            return self.shared.stat(key);
        }
        match self.index.copied_record(&group, &key.path())? {
            Some(listed) if place.is_ok() || !self.is_known_to_be_old(&group)? => {
                Ok(Some((listed.size_bytes, listed.written)))
            }
            _ => place.map(|_| None),
        }
    }

    fn refresh(&self, scope: RecordScope<'_>) -> Result<(), StoreError> {
        match scope {
            RecordScope::Group(group) if group.is_of_machine() => Ok(()),
            RecordScope::Group(group) => Self::place_after(group, self.bring_up_to_date(group)).map(drop),
            RecordScope::All => self.feed.hear_now(),
        }
    }

    fn generation(&self, group: &RecordGroup) -> Result<Generation, StoreError> {
        if let Some(own) = self.own(group) {
            return own.generation(group);
        }
        match self.place(group) {
            Ok(Place::Copy) | Err(StoreError::Unreachable(_)) => {}
            Ok(Place::Database) => return self.shared.generation(group),
            Err(error) => return Err(error),
        }
        let unknown = || {
            // No write names it, and no two reads are of one.
            Generation(i64::MAX.cast_unsigned() - self.unknown.fetch_add(1, Ordering::Relaxed))
        };
        Ok(self.index.copied_moment(group)?.map_or_else(unknown, Moment::as_generation))
    }

    fn generation_now(&self, group: GroupRef<'_>) -> Generation {
        let GroupStripe { marks, changes, .. } = self.groups.of(&group);
        let (marks, changes) = (marks.load(Ordering::Acquire), changes.load(Ordering::Acquire));
        // Each only grows.
        Generation(marks.wrapping_add(changes).wrapping_add(self.local.generation_now(group).0))
    }

    fn write(&self, group: &RecordGroup, read_at: Generation, changes: &[Change]) -> Result<WriteOutcome, StoreError> {
        if let Some(own) = self.own(group) {
            return own.write(group, read_at, changes);
        }
        let groups = self.groups.of(&group.as_ref());
        // A step that changes nothing loses to nobody.
        let changes_records = changes.iter().any(|change| change.action != RecordAction::Keep);
        let mut writing = if changes_records { Some(groups.turn_to_write()?) } else { None };
        let Some(read_at) = self.index.copied_moment(group)?.filter(|at| at.as_generation() == read_at) else {
            drop(writing);
            return match self.place(group)? {
                Place::Copy => Ok(WriteOutcome::Conflict),
                Place::Database => self.shared.write(group, read_at, changes).inspect(|_| {
                    groups.make_old(group);
                }),
            };
        };
        if !changes.is_empty() && !changes_records {
            // Only the index changes, which is of this machine.
            let _applying = groups.applying.lock();
            if self.index.copied_moment(group)? != Some(read_at) || self.is_known_to_be_old(group)? {
                return Ok(WriteOutcome::Conflict);
            }
            return self.write_local(group, changes).map(|()| WriteOutcome::Written);
        }
        // The copy stays current meanwhile: nobody was told of a change yet.
        let marks = groups.marks.load(Ordering::Acquire);
        let outcome = self.shared.write_at(group, read_at, changes);
        match &outcome {
            Ok(SharedWrite::Written(written)) => {
                if let Err(error) = self.apply_own(group, read_at, *written, changes, marks) {
                    groups.has_changed(group, written.at);
                    tracing::warn!(%group, %error, "the copy of a change could not be stored; it is read from the database");
                }
            }
            Ok(SharedWrite::Unchanged) => groups.make_current(group, marks),
            Ok(SharedWrite::Conflict) => groups.make_old(group),
            // The state of the database is unknown.
            Err(error) => {
                groups.make_old(group);
                if let (StoreError::Unreachable(_), Some(writing)) = (error, &mut writing) {
                    **writing = Some(Instant::now());
                }
            }
        }
        Ok(match outcome? {
            SharedWrite::Written(_) | SharedWrite::Unchanged => WriteOutcome::Written,
            SharedWrite::Conflict => WriteOutcome::Conflict,
        })
    }

    fn of_machine(&self) -> &dyn Records {
        &*self.local
    }

    fn trim(&self, key: &Key) -> Result<Trimmed, StoreError> {
        let (group, path) = (key.group(), key.path());
        if self.own(&group).is_some() {
            return Ok(Trimmed::OnlyHere);
        }
        if key.is_history() {
            return Ok(Trimmed::Kept);
        }
        let _applying = self.groups.of(&group.as_ref()).applying.lock();
        self.write_local(&group, &[removal(key.clone())])?;
        if let Some(listed) = self.index.copied_record(&group, &path)? {
            self.index.note_copied_records(&group, &[(path, Some(CopiedRecord { here: None, ..listed }))]);
        }
        Ok(Trimmed::Copy)
    }

    fn fleet(&self) -> Option<&dyn Fleet> {
        Some(self)
    }

    fn turns(&self) -> &Turns {
        &self.turns
    }

    fn sync(&self, key: &Key) -> Result<bool, StoreError> {
        if let Some(own) = self.own(&key.group()) {
            return own.sync(key);
        }
        // A record in the database is durable.
        Ok(self.stat(key)?.is_some())
    }

    fn page(&self, folder: &Path, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, u64)>, StoreError> {
        let own = |group: &RecordGroup| {
            let mut keys = Vec::new();
            self.index.each_copied_record(group, after.map(Key::path).as_deref(), |path, record| {
                if path.starts_with(folder) {
                    keys.extend(Key::from_path(&path).map(|key| (key, record.size_bytes)));
                }
                if keys.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            Ok(keys)
        };
        self.listed(folder, own, |records| records.page(folder, after, limit))
    }

    fn names_in(&self, folder: &Path) -> Result<Vec<String>, StoreError> {
        let own = |group: &RecordGroup| {
            let mut names = BTreeSet::new();
            self.index.each_copied_record(group, None, |path, _| {
                let below = path.strip_prefix(folder).ok().and_then(|below| below.iter().next()?.to_str());
                names.extend(below.map(str::to_owned));
                ControlFlow::Continue(())
            })?;
            Ok(names.into_iter().collect())
        };
        self.listed(folder, own, |records| records.names_in(folder))
    }

    fn name(&self, artifact: &Artifact) -> Result<Option<IndexedName>, StoreError> {
        match self.ensure_or_behind(&Key::Name(artifact.clone()).group())? {
            Place::Copy => self.local.name(artifact),
            Place::Database => self.shared.name(artifact),
        }
    }

    fn name_records(&self, artifacts: &[Artifact]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        if artifacts.len() <= FEW_NAMES {
            // Copies that are current are read without a question.
            return artifacts.iter().map(|name| Ok(self.read(&Key::Name(name.clone()))?.intact())).collect();
        }
        match self.shared.name_records(artifacts) {
            Err(StoreError::Unreachable(_)) => self.local.name_records(artifacts),
            records => records,
        }
    }

    fn each_name(
        &self,
        folder: &Path,
        after: Option<&NameCursor>,
        visit: &mut dyn FnMut(Artifact, IndexedName) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        if let Some(group) = RecordGroup::of_folder(folder)
            && self.ensure_or_behind(&group)? == Place::Copy
        {
            return self.local.each_name(folder, after, visit);
        }
        self.shared.each_name(folder, after, visit)
    }

    fn names_of(&self, digest: &Digest) -> Result<Vec<Artifact>, StoreError> {
        self.shared.names_of(digest)
    }

    fn pinned_names(&self) -> Result<Vec<Artifact>, StoreError> {
        self.shared.pinned_names()
    }

    fn imported_names(&self, limit: usize) -> Result<Vec<Artifact>, StoreError> {
        self.shared.imported_names(limit)
    }

    fn unreadable_name(&self) -> Option<StoreError> {
        self.local.unreadable_name()
    }
}

impl Fleet for CopiedRecords {
    fn contact(&self) -> &Contact {
        self.feed.contact()
    }

    fn events(&self) -> &Arc<FleetEvents> {
        &self.events
    }

    fn questions(&self) -> u64 {
        self.shared.questions()
    }

    fn spread(&self) -> Result<Vec<Unreached>, StoreError> {
        self.feed.spread()
    }

    fn settings_of_others(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.feed.settings_of_others()
    }

    fn announce_settings(&self, settings: String) {
        self.feed.announce(|report| report.settings = settings);
    }

    fn announce_amounts(&self, amounts: ReplicaAmounts) {
        self.feed.announce(|report| report.amounts = Some(amounts));
    }

    fn claim(&self, work: &str) -> Result<bool, StoreError> {
        self.feed.claim(work)
    }

    fn claims_of_others(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.feed.claims_of_others()
    }

    fn give_up(&self, work: &str) -> Result<(), StoreError> {
        self.feed.give_up(work)
    }

    fn leave(&self) {
        // Its end says so.
        let following = self.following.lock().take();
        drop(following);
    }
}
