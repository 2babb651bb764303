//! The groups of which the copy of a replica is current, as far as it has heard.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::store::{RecordGroup, Striped};

/// All groups, in stripes.
pub(super) type CopiedGroups = Striped<GroupStripe>;

/// Some of the groups.
#[derive(Debug, Default)]
pub(super) struct GroupStripe {
    /// Held while a copy is changed.
    pub(super) applying: Mutex<()>,
    /// The groups that are current.
    current: Mutex<HashSet<RecordGroup>>,
    /// Grows when a group becomes old.
    pub(super) marks: AtomicU64,
    /// Grows when a copy was changed, and when an old one is read because the database does not answer.
    pub(super) changes: AtomicU64,
}

impl CopiedGroups {
    /// Makes these groups old; `None` makes all of them.
    pub(super) fn make_groups_old(&self, groups: Option<&[RecordGroup]>) {
        match groups {
            Some(groups) => groups.iter().for_each(|group| {
                self.of(&group.as_ref()).make_old(group);
            }),
            None => self.stripes.iter().for_each(GroupStripe::make_all_old),
        }
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
        }
    }
}
