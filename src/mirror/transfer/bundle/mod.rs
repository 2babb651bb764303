//! Import and export of bundles, for stores without a network between them. Imported entries are verified like
//! responses from upstream. All functions block.

pub(in crate::mirror) mod archives;
pub(in crate::mirror) mod capacity;
pub(in crate::mirror) mod documents;
pub(in crate::mirror) mod entry;
pub(in crate::mirror) mod export;
pub(in crate::mirror) mod import;
pub(in crate::mirror) mod merge_list;
pub(in crate::mirror) mod modules;
pub(in crate::mirror) mod sets;
pub(in crate::mirror) mod spool;

pub(in crate::mirror) use crate::mirror::transfer::bundle::archives::{ArchiveBytesSource, StagedBundleArchive};
pub(in crate::mirror) use crate::mirror::transfer::bundle::entry::{EntryCriteria, store_failed};
pub use crate::mirror::transfer::bundle::export::{GatherError, GatheredBundle};
pub use crate::mirror::transfer::bundle::import::{ApplyError, ApplyOptions};
