//! The groups of which the copy of a replica is current, as far as it has heard.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::store::{Moment, RecordGroup, StoreError, Striped};

/// The time that a change waits for those of this replica before it.
const WRITE_WAIT: Duration = Duration::from_secs(2);

/// All groups, in stripes.
pub(super) type CopiedGroups = Striped<GroupStripe>;

/// Some of the groups.
#[derive(Debug, Default)]
pub(super) struct GroupStripe {
    /// Held while a change is written to the database and applied: of two at a time, one would only lose. The time at which the database
    /// last left one without an answer.
    pub(super) writing: Mutex<Option<Instant>>,
    /// Held while a copy is changed.
    pub(super) applying: Mutex<()>,
    /// The groups that are current.
    current: Mutex<HashSet<RecordGroup>>,
    /// The groups of which it was heard that they have changed since they were copied. Others were told so: they are not served as they
    /// were.
    changed: Mutex<HashMap<RecordGroup, Moment>>,
    /// Grows when a group becomes old.
    pub(super) marks: AtomicU64,
    /// Grows when a copy was changed, and when an old one is read because the database does not answer.
    pub(super) changes: AtomicU64,
}

impl CopiedGroups {
    /// Makes all groups old.
    pub(super) fn make_all_old(&self) {
        self.stripes.iter().for_each(GroupStripe::make_all_old);
    }
}

impl GroupStripe {
    pub(super) fn is_current(&self, group: &RecordGroup) -> bool {
        self.current.lock().contains(group)
    }

    /// Waits for the changes of this replica before this one.
    ///
    /// # Errors
    /// The database did not answer one of them meanwhile, and would take as long again not to answer this one.
    pub(super) fn turn_to_write(&self) -> Result<MutexGuard<'_, Option<Instant>>, StoreError> {
        let began = Instant::now();
        let unanswered =
            || StoreError::Unreachable("it left a change of the same records without an answer".to_owned());
        let turn = self.writing.try_lock_for(WRITE_WAIT).ok_or_else(unanswered)?;
        if turn.is_some_and(|unanswered_at| unanswered_at >= began) { Err(unanswered()) } else { Ok(turn) }
    }

    /// Makes a group old: only a reader of the group afterwards can make it current.
    pub(super) fn make_old(&self, group: &RecordGroup) {
        let mut current = self.current.lock();
        current.remove(group);
        self.marks.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes a group old, and notes that it has changed since it was copied.
    pub(super) fn has_changed(&self, group: &RecordGroup, at: Moment) {
        // Locked first, so that nobody makes it current, and forgets the change, in between.
        let mut current = self.current.lock();
        let mut changed = self.changed.lock();
        if !changed.get(group).is_some_and(|known| known.has(at)) {
            changed.insert(group.clone(), at);
        }
        current.remove(group);
        self.marks.fetch_add(1, Ordering::AcqRel);
    }

    /// The moment at which a group changed that was copied before; `None` if nothing was heard of that.
    pub(super) fn changed_at(&self, group: &RecordGroup) -> Option<Moment> {
        self.changed.lock().get(group).copied()
    }

    /// Makes all groups old.
    fn make_all_old(&self) {
        let mut current = self.current.lock();
        current.clear();
        self.marks.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes a group old while its copy changes.
    pub(super) fn make_unknown(&self, group: &RecordGroup) {
        self.current.lock().remove(group);
    }

    /// Makes a group current, unless one became old since `marks` was read.
    pub(super) fn make_current(&self, group: &RecordGroup, marks: u64) {
        let mut current = self.current.lock();
        if self.marks.load(Ordering::Acquire) == marks {
            current.insert(group.clone());
            self.changed.lock().remove(group);
        }
    }
}
