//! Import and export of bundles, for stores without a network between them. Imported entries are verified like
//! responses from upstream. All functions block.

mod archives;
mod documents;
mod fit;
mod give;
mod held;
mod intake;
mod listed;
mod sets;
mod shared;
mod staying;
mod take;

pub(super) use self::archives::{ArchiveBytesSource, StagedBundleArchive};
pub use self::give::{GatherError, GatheredBundle};
pub(super) use self::intake::{EntryCriteria, store_failed};
pub(super) use self::staying::EvictionHolds;
pub use self::take::{ApplyError, ApplyOptions};
