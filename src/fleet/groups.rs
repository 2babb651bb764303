//! The groups of which the copy of a replica is current, as far as it has heard.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::store::{Moment, RecordGroup, Striped};

/// All groups, in stripes.
pub(super) type CopiedGroups = Striped<GroupStripe>;

/// Some of the groups.
#[derive(Debug, Default)]
pub(super) struct GroupStripe {
    /// Held while a change is written to the database and applied: of two at a time, one would only lose.
    pub(super) writing: Mutex<()>,
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

    /// Makes a group old. Returns the mark: only a reader of the group afterwards can make it current.
    pub(super) fn make_old(&self, group: &RecordGroup) -> u64 {
        let mut current = self.current.lock();
        current.remove(group);
        self.marks.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Notes that a group has changed since it was copied.
    pub(super) fn note_change(&self, group: &RecordGroup, at: Moment) {
        self.changed.lock().insert(group.clone(), at);
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
